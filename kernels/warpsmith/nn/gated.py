"""The gate of an MLP and the two products in front of it in one kernel, where the record has that
faster than PyTorch's products and a gate (core/elsewhere.json).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import warpsmith
from warpsmith.core import autocast, autograd, dispatch, elsewhere
from warpsmith.core.compiling import constant
from warpsmith.nn import calls

#: The name of the rules; they are those of the record of `gated_linear`.
CHOICE = "gated_mlp"
_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Faster:
    """Calls of 16 bits that `gated_linear` answers over 3 % faster."""

    sm: int
    #: Of rows of x, of their values, and of the values of a row of the result.
    least: tuple[int, int, int]
    most: tuple[int | None, int | None, int | None]

    def has(self, sm: int, *sizes: int) -> bool:
        return sm == self.sm and all(
            low <= size and (high is None or size <= high)
            for size, low, high in zip(sizes, self.least, self.most, strict=True)
        )


def _faster(rule: elsewhere.Rule) -> Faster:
    ranges = [rule.told[name] for name in ("x.rows", "x.cols", "w_gate.rows")]
    return Faster(rule.sm, *zip(*ranges, strict=True))


#: By the record.
FASTER = tuple(_faster(rule) for rule in elsewhere.rules() if rule.op == CHOICE)


@constant
def _sm(index: int) -> int:
    """The compute capability of a GPU, which compiled code takes for a constant."""
    return dispatch.device_sm(torch.device("cuda", index))


def pays(x: Tensor, weight: Tensor) -> bool:
    """Whether one kernel is the faster way for rows and a weight of these sizes."""
    if not x.is_cuda or x.dtype not in _HALVES or not FASTER:
        return False
    n, k = weight.shape
    rows = x.numel() // k if k else 0
    if all(rows < case.least[0] for case in FASTER):  # decoding, which is to cost the host least
        return False
    return any(case.has(_sm(x.device.index or 0), rows, k, n) for case in FASTER)


def _is_plain(layer: Any) -> bool:
    """Whether calling a layer is the product with its weight and nothing else."""
    return (
        getattr(type(layer), "_warpsmith_base", type(layer)) is torch.nn.Linear
        and "forward" not in layer.__dict__
        and not (layer._forward_hooks or layer._forward_pre_hooks)
        and not (layer._backward_hooks or layer._backward_pre_hooks)
        and type(layer.weight) in (Tensor, torch.nn.Parameter)
    )


def _joins(x: Tensor, gate: Any, up: Any) -> bool:
    parameters = (gate.weight, up.weight, gate.bias, up.bias)
    return (
        type(x) in (Tensor, torch.nn.Parameter)
        and x.dim() > 0
        and gate.weight.shape == up.weight.shape
        and x.shape[-1] == gate.weight.shape[1]
        and calls.fits(x, *parameters)
        and not autocast.is_on(x)
        and (torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active())
    )


class _Gated(torch.autograd.Function):
    """`gated_linear`, whose gradients take PyTorch's products, as those of two linear layers do."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: Tensor,
        w_gate: Tensor,
        w_up: Tensor,
        b_gate: Tensor | None,
        b_up: Tensor | None,
        activation: str,
    ) -> Tensor:
        y, gate, up = warpsmith.gated_linear(x, w_gate, w_up, b_gate, b_up, activation, keep=True)
        ctx.save_for_backward(x, w_gate, w_up, gate, up)
        ctx.activation = activation
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, w_gate, w_up, gate, up = ctx.saved_tensors
        needs = ctx.needs_input_grad
        backward = getattr(torch.ops.warpsmith, f"{calls.GATES[ctx.activation]}_backward")
        found: list[Tensor | None] = [None] * 5
        with torch.no_grad():
            rows = x.reshape(-1, x.shape[-1])
            grads = [g.reshape(-1, g.shape[-1]) for g in backward(grad, gate, up)]
            if needs[0]:
                found[0] = (grads[0] @ w_gate).addmm_(grads[1], w_up).view(x.shape)
            for i, g in enumerate(grads):
                if needs[1 + i]:
                    found[1 + i] = g.t() @ rows
                if needs[3 + i]:
                    found[3 + i] = g.sum(0)
        of = (grad, x, w_gate, w_up)
        handed = [None if g is None else autograd.once("gated_linear", g, *of) for g in found]
        return (*handed, None)


def gated(x: Tensor, gate: Any, up: Any, activation: str) -> Tensor:
    """`act(gate(x)) * up(x)` of two linear layers.

    Args:
        x: [..., k].
        gate: a module, whose result goes into the activation.
        up: a module, whose result is multiplied with that.
        activation: one of `calls.GATES`.
    """
    if not (_is_plain(gate) and pays(x, gate.weight) and _is_plain(up) and _joins(x, gate, up)):
        return calls.gate(gate(x), up(x), activation)
    given = (x, gate.weight, up.weight, gate.bias, up.bias)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given):
        return _Gated.apply(*given, activation)  # type: ignore[no-untyped-call, no-any-return]
    return warpsmith.gated_linear(*given, activation)
