"""Norms of models: alone, and with the residual that is added in front of them.

The forward of each takes the residual as a second argument and then returns the normalised sum and
the sum. Blocks whose structure allows for it call it so; everyone else calls it as before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

import warpsmith
from warpsmith.core import autocast
from warpsmith.nn import calls
from warpsmith.patching.compiled import left
from warpsmith.patching.rules import Left, Rule, reads

#: The option of `patch`.
_KIND = "norms"


def make_rms(base: type[Module], option: Any) -> dict[str, Any]:
    """Of transformers' RMS norms, whose eps has the name that the option says first."""
    eps_name, zero_centered = option
    plain: Any = base.forward

    def forward(self: Any, hidden_states: Tensor, residual: Tensor | None = None) -> Any:
        weight, eps = self.weight, getattr(self, eps_name)
        if residual is None:
            if left(_KIND, hidden_states) or not calls.joins(hidden_states, hidden_states, weight):
                return plain(self, hidden_states)
            if autocast.is_on(hidden_states):
                # what follows would cast an f32 result down again
                return warpsmith.add_rms_norm(hidden_states, None, weight, eps, zero_centered)[0]
            return warpsmith.rms_norm(
                hidden_states, weight=weight, eps=eps, zero_centered=zero_centered
            )
        if left(_KIND, hidden_states) or not calls.joins(hidden_states, residual, weight):
            h = residual + hidden_states
            return plain(self, h), h
        return warpsmith.add_rms_norm(hidden_states, residual, weight, eps, zero_centered)

    return {"forward": forward}


def make_layer(base: type[Module], option: Any) -> dict[str, Any]:
    plain: Any = base.forward

    def forward(self: Any, input: Tensor, residual: Tensor | None = None) -> Any:
        if residual is None:
            if left(_KIND, input):
                return plain(self, input)
            return calls.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
        joins = not left(_KIND, input)
        joins = joins and calls.joins(input, residual, self.weight, self.bias)
        if not joins or len(self.normalized_shape) != 1:
            h = residual + input
            return forward(self, h), h
        return warpsmith.add_layer_norm(input, residual, self.weight, self.bias, self.eps)

    return {"forward": forward}


def make_torch_rms(base: type[Module], option: Any) -> dict[str, Any]:
    plain: Any = base.forward

    def forward(self: Any, x: Tensor) -> Tensor:
        if left(_KIND, x):
            return plain(self, x)
        return calls.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    return {"forward": forward}


def make_group(base: type[Module], option: Any) -> dict[str, Any]:
    plain: Any = base.forward

    def forward(self: Any, input: Tensor, activation: str = "none") -> Tensor:
        if left(_KIND, input):
            return calls.activate_plainly(plain(self, input), activation)
        return calls.group_norm(
            input, self.num_groups, self.weight, self.bias, self.eps, activation
        )

    return {"forward": forward}


def _affine(module: Any) -> None:
    weight = module.weight
    if not isinstance(weight, Tensor) or weight.dim() != 1:
        raise Left("its weight is not one value for each of the last dimension")


def _llama(module: Module) -> Any:
    _affine(module)
    return ("variance_epsilon", False)


def _gemma(module: Any) -> Any:
    _affine(module)
    if set(type(module)._norm.__code__.co_names) != {"torch", "rsqrt", "pow", "mean", "eps"}:
        raise Left("its norm is not the one that this stands for")
    return ("eps", True)


LLAMA = Rule(
    "norms",
    "rms_norm",
    make_rms,
    reads("dtype to torch float32 pow mean rsqrt variance_epsilon weight"),
    _llama,
)
GEMMA = Rule("norms", "rms_norm", make_rms, reads("_norm float weight type_as"), _gemma)
LAYER = Rule("norms", "layer_norm", make_layer)
RMS = Rule("norms", "rms_norm", make_torch_rms)
GROUP = Rule("norms", "group_norm", make_group)


def _made_by(module: Module | None, *makes: Any) -> bool:
    """Whether the norm has become one of these, and nobody looks at its results."""
    made = getattr(type(module), "_warpsmith_made", (None, None))[1]
    hooks = module is not None and (module._forward_hooks or module._forward_pre_hooks)
    return made in [make.__name__ for make in makes] and not hooks


def takes_residual(module: Module | None) -> bool:
    """Whether the norm takes a residual as its second argument."""
    return _made_by(module, make_rms, make_layer)


def takes_activation(module: Module | None) -> bool:
    """Whether the norm takes an activation as its second argument."""
    return _made_by(module, make_group)


#: PyTorch's own, by type.
TORCH: dict[type[Module], Rule] = {
    torch.nn.LayerNorm: LAYER,
    torch.nn.RMSNorm: RMS,
    torch.nn.GroupNorm: GROUP,
}
