"""Activations and gates of MLPs."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

import warpsmith
from warpsmith.nn import calls
from warpsmith.nn.gated import gated
from warpsmith.patching.compiled import left
from warpsmith.patching.rules import Left, Rule, reads

#: Activations by the class of the module that computes them, of PyTorch and of transformers.
NAMES = {
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
    "QuickGELUActivation": "quick_gelu",
    "Mish": "mish",
    "MishActivation": "mish",
    "ReLU": "relu",
}
#: Those that PyTorch computes in one kernel as fast, with less work for the host.
SINGLE = ("silu", "mish", "relu")


def activation_of(module: Any) -> str | None:
    """Which activation a module computes, by the names of `warpsmith.nn.calls`."""
    if isinstance(module, torch.nn.GELU):
        return "gelu_tanh" if module.approximate == "tanh" else "gelu"
    name = type(module).__name__
    home = type(module).__module__
    if not home.startswith(("torch.nn.", "transformers.activations")):
        return None
    return NAMES.get(name)


# --- activations ----------------------------------------------------------------------------------


def make_activation(base: type[Module], option: Any) -> dict[str, Any]:
    plain: Any = base.forward

    def forward(self: Any, input: Tensor) -> Tensor:
        served = calls.fits(input) and not left("activations", input)
        return getattr(warpsmith, option)(input) if served else plain(self, input)

    return {"forward": forward}


def _activation(module: Any) -> str:
    name = activation_of(module)
    if name is None:
        raise Left("no such activation here")
    if name in SINGLE:
        raise Left("PyTorch computes it in one kernel, too")
    return name


ACTIVATION = Rule("activations", "{}", make_activation, (), _activation)


# --- gates ----------------------------------------------------------------------------------------


def _gate(attribute: str) -> Any:
    def option(module: Any) -> str:
        name = activation_of(getattr(module, attribute))
        if name not in calls.GATES:
            found = type(getattr(module, attribute)).__name__
            raise Left(f"no gate with {found} here")
        return name

    return option


def make_gated(base: type[Module], option: Any) -> dict[str, Any]:
    """Llama's: `down_proj(act_fn(gate_proj(x)) * up_proj(x))`, the products with the gate where
    that pays.
    """

    plain: Any = base.forward

    def forward(self: Any, x: Tensor) -> Tensor:
        if left("gates", x):
            return plain(self, x)
        return self.down_proj(gated(x, self.gate_proj, self.up_proj, option))

    return {"forward": forward}


def make_gated_joined(base: type[Module], option: Any) -> dict[str, Any]:
    """Phi-3's, whose gate and up come from one product."""

    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        return self.down_proj(joined(self.gate_up_proj(hidden_states), option))

    return {"forward": forward}


def joined(x: Tensor, activation: str) -> Tensor:
    """A gate of the two halves of a tensor."""
    by_compiler = left("gates", x)
    if calls.fits(x) and not by_compiler:
        return getattr(warpsmith, calls.GATES[activation])(x)
    gate, up = x.chunk(2, dim=-1)
    if by_compiler:
        return calls.activate_plainly(gate, activation) * up
    return calls.gate(gate, up, activation)


#: Products of experts, as transformers names them, that do not call `_apply_gate`.
_WITHOUT_GATE = ("eager", "sonicmoe")


def make_experts(base: type[Module], option: Any) -> dict[str, Any]:
    """Of experts whose products are batched or grouped: what transformers calls between them."""

    def _apply_gate(self: Any, gate_up_out: Tensor) -> Tensor:
        return joined(gate_up_out, option)

    return {"_apply_gate": _apply_gate}


def _experts(module: Any) -> str:
    gate = getattr(type(module), "_apply_gate", None)
    if gate is None:
        raise Left("this version of transformers computes its gate among the products")
    if set(gate.__code__.co_names) != {"chunk", "act_fn"}:
        raise Left("its gate is not the one that this stands for")
    products = getattr(getattr(module, "config", None), "_experts_implementation", None)
    if products in _WITHOUT_GATE:
        raise Left(f"its products, {products}, compute the gate themselves")
    return _gate("act_fn")(module)


GATED = Rule(
    "gates",
    "{}_and_mul",
    make_gated,
    reads("down_proj act_fn gate_proj up_proj"),
    _gate("act_fn"),
    parts=("act_fn",),
)
GATED_JOINED = Rule(
    "gates",
    "{}_and_mul",
    make_gated_joined,
    reads("gate_up_proj chunk activation_fn down_proj"),
    _gate("activation_fn"),
    parts=("activation_fn",),
)
EXPERTS = Rule("gates", "{}_and_mul", make_experts, (), _experts, parts=("act_fn",))


# --- products -------------------------------------------------------------------------------------


def make_linear(base: type[Module], option: Any) -> dict[str, Any]:
    def forward(self: Any, input: Tensor) -> Tensor:
        return calls.linear(input, self.weight, self.bias)

    return {"forward": forward}


LINEAR = Rule("linear", "linear", make_linear)


def make_linear_activation(base: type[Module], option: Any) -> dict[str, Any]:
    """A product and the activation behind it in one kernel, then what follows."""
    first, activation, rest = option

    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        layer = getattr(self, first)
        # transformers' Conv1D has its weight the other way round
        weight = layer.weight if isinstance(layer, torch.nn.Linear) else layer.weight.t()
        x = calls.linear(hidden_states, weight, layer.bias, activation)
        for name in rest:
            x = getattr(self, name)(x)
        return x

    return {"forward": forward}


def _activated(first: str, attribute: str, *rest: str) -> Rule:
    def option(module: Any) -> Hashable:
        layer = getattr(module, first)
        if type(layer).__name__ not in ("Linear", "Conv1D") or "forward" in layer.__dict__:
            raise Left(f"{first} is not a plain linear layer")
        if layer._forward_hooks or layer._forward_pre_hooks:
            raise Left(f"{first} has hooks")
        activation = activation_of(getattr(module, attribute))
        if activation not in ("relu", "gelu", "gelu_tanh", "silu"):
            found = type(getattr(module, attribute)).__name__
            raise Left(f"no product with {found} here")
        return (first, activation, rest)

    names = " ".join((first, attribute, *rest))
    parts = (first, attribute)
    return Rule("linear", "linear", make_linear_activation, reads(names), option, parts)


VIT = _activated("fc1", "activation_fn", "fc2")
GPT2 = _activated("c_fc", "act", "c_proj", "dropout")
BERT = _activated("dense", "intermediate_act_fn")
