"""The MLP of a transformer's layer in two kernels: everything up to the activation or the gate in
one, the way back in another.

It is a composite: `linear_epilogue` and `gated_linear` do the work.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from warpsmith.core import autocast, autograd, catalogue, into, messages
from warpsmith.core.catalogue import Composite, PartCall
from warpsmith.core.schemas import parse_schema
from warpsmith.gemm.activations import FUNCTIONS, GATES, check_bias, check_residual, check_weight
from warpsmith.gemm.gated_linear import calls_of_steps as calls_of_gate
from warpsmith.gemm.gated_linear import gated_linear, gated_linear_op
from warpsmith.gemm.linear_epilogue import (
    calls_of_steps,
    is_proven,
    linear_and_more,
    linear_epilogue_op,
    suits,
)
from warpsmith.gemm.matmul import check_alike, check_operand
from warpsmith.spec.checks import shape_text

_OP = "fused_mlp"


def _check(
    x: Tensor,
    w_up: Tensor,
    w_down: Tensor,
    w_gate: Tensor | None,
    b_gate: Tensor | None,
    activation: str,
) -> None:
    """What the parts would say in words that fit them alone."""
    for name, given in (("x", x), ("w_up", w_up), ("w_down", w_down)):
        if not isinstance(given, Tensor):
            found = "None" if given is None else type(given).__name__
            raise TypeError(f"{_OP}: expected {name} to be a tensor, got {found}")
    known = FUNCTIONS if w_gate is None else GATES
    if activation not in known:
        names = ", ".join(f"'{name}'" for name in known)
        raise RuntimeError(f"{_OP}: expected activation to be one of {names}, got '{activation}'")
    if b_gate is not None and w_gate is None:
        raise RuntimeError(f"{_OP}: expected no b_gate without w_gate")
    for name, w in (("w_up", w_up), ("w_down", w_down)):
        if w.dim() != 2:
            raise RuntimeError(f"{_OP}: expected {name} to be 2-D, got shape {shape_text(w)}")
    if w_down.shape[1] != w_up.shape[0]:
        raise RuntimeError(
            f"{_OP}: expected w_down to have {w_up.shape[0]} columns, the rows of w_up, "
            f"got shape {shape_text(w_down)}"
        )


def _check_operands(
    x: Tensor,
    w_up: Tensor,
    w_down: Tensor,
    w_gate: Tensor | None,
    b_up: Tensor | None,
    b_down: Tensor | None,
    b_gate: Tensor | None,
    residual: Tensor | None,
) -> None:
    """What parts say of operands, in the names that they have here."""
    check_operand(_OP, "x", x, 1)
    for name, w in (("w_up", w_up), ("w_gate", w_gate)):
        if w is not None:
            check_weight(_OP, name, w, x)
    check_alike(_OP, "w_down", w_down, x, "x")
    if w_gate is not None and w_gate.shape != w_up.shape:
        raise RuntimeError(
            f"{_OP}: expected w_gate to have the shape {shape_text(w_up)} of w_up, "
            f"got {shape_text(w_gate)}"
        )
    check_bias(_OP, "b_up", b_up, x, w_up.shape[0])
    check_bias(_OP, "b_gate", b_gate, x, w_up.shape[0])
    check_bias(_OP, "b_down", b_down, x, w_down.shape[0])
    check_residual(_OP, residual, x, w_down.shape[0])


def _calls(
    x: Tensor,
    w_up: Tensor,
    w_down: Tensor,
    w_gate: Tensor | None = None,
    b_up: Tensor | None = None,
    b_down: Tensor | None = None,
    b_gate: Tensor | None = None,
    activation: str = "silu",
    residual: Tensor | None = None,
) -> tuple[PartCall, ...]:
    """The kernels of a call on a GPU, without gradients."""
    given = (x, w_up, w_down, w_gate, b_up, b_down, b_gate, activation, residual)
    messages.check_kinds(_OP, _KINDS, given)
    _check(x, w_up, w_down, w_gate, b_gate, activation)
    _check_operands(x, w_up, w_down, w_gate, b_up, b_down, b_gate, residual)
    h = x.new_empty((*x.shape[:-1], w_up.shape[0]))

    def layer(
        x: Tensor, w: Tensor, b: Tensor | None, r: Tensor | None, activation: str, purpose: str
    ) -> tuple[PartCall, ...]:
        args = (x, w, b, r, 1.0, activation, False)
        if is_proven(linear_epilogue_op) and suits(x, w):
            return (PartCall("linear_epilogue", (*args, False), purpose),)
        return calls_of_steps(*args, purpose=purpose)

    down = layer(h, w_down, b_down, residual, "none", "the way back")
    if w_gate is None:
        return *layer(x, w_up, b_up, None, activation, "the activation"), *down
    if is_proven(gated_linear_op) and suits(x, w_up):
        gate = (x, w_gate, w_up, b_gate, b_up, activation, False, False)
        return PartCall("gated_linear", gate, "the gate"), *down
    return *calls_of_gate(x, w_gate, w_up, b_gate, b_up, activation), *down


composite = catalogue.add_composite(
    Composite(
        f"{_OP}(Tensor x, Tensor w_up, Tensor w_down, Tensor? w_gate=None, Tensor? b_up=None, "
        "Tensor? b_down=None, Tensor? b_gate=None, *, str activation='silu', "
        "Tensor? residual=None) -> Tensor",
        family="gemm",
        parts=(
            ("gated_linear", "both products of a gate side by side, and the gate"),
            ("linear_epilogue", "the first product and its activation, where there is no gate"),
            ("linear_epilogue", "the second product, its bias and the residual"),
            ("linear", "each product by itself: up to 64 rows, f32, rows that are no packs"),
            ("matmul", "the same with a bias of f32 beside 16 bits"),
            ("silu_and_mul", "and the gate between them; likewise gelu and gelu_tanh"),
        ),
        calls=_calls,
        module=__name__,
        shaped=("x", "w_up", "w_down"),
    )
)
_KINDS = messages.kinds_of(parse_schema(composite.schema))


def fused_mlp(
    x: Tensor,
    w_up: Tensor,
    w_down: Tensor,
    w_gate: Tensor | None = None,
    b_up: Tensor | None = None,
    b_down: Tensor | None = None,
    b_gate: Tensor | None = None,
    *,
    activation: str = "silu",
    residual: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The MLP of a transformer's layer: `h w_down^T + b_down + residual` with
    `h = activation(x w_up^T + b_up)`, or, where there is a gate,
    `h = activation(x w_gate^T + b_gate) * (x w_up^T + b_up)`.

    Sums are held in f32; h is rounded once, as is the result, but for few rows on a GPU, as
    `linear` and `gated_linear` have it. Differentiable in all tensors: where a gradient is needed,
    what goes into the activation is kept, and h.

    Args:
        x: [..., k], f32, f16 or bf16 (f64 by the references), any strides.
        w_up: [n, k], of the dtype and device of x, any strides.
        w_down: [m, n], likewise.
        w_gate: [n, k], likewise; None: no gate.
        b_up: [n], of the dtype of x or f32; None adds nothing.
        b_down: [m], likewise.
        b_gate: [n], of the dtype of b_up.
        activation: "silu", "gelu" (by erf), "gelu_tanh" or "relu"; without a gate also "none".
        residual: [..., m], of the dtype of x, added to the result; None adds nothing.
        out: a tensor for the result, best contiguous, of its shape and dtype, which is returned
            (`docs/pytorch.md`, results in tensors of the caller). Not differentiable.

    Returns:
        A contiguous tensor [..., m] of the dtype of x.

    Raises:
        RuntimeError: an operand is not floating-point, or fp8; the dtypes, devices or shapes do not
            fit; the activation is unknown; b_gate has no w_gate.
        TypeError: x, w_up or w_down is no tensor.

    Reference:
        `F.linear(activation(F.linear(x, w_gate, b_gate)) * F.linear(x, w_up, b_up), w_down,
        b_down)`, with `torch.nn.functional` as `F`.
    """
    if not torch.compiler.is_compiling():  # which traces no look at what is no tensor
        every = (x, w_up, w_down, w_gate, b_up, b_down, b_gate, activation, residual)
        messages.check_kinds(_OP, _KINDS, every)
    _check(x, w_up, w_down, w_gate, b_gate, activation)
    given = (x, w_up, w_down, w_gate, b_up, b_down, b_gate, residual)
    if torch.compiler.is_compiling():
        return _call(given, activation, out)
    try:
        return _call(given, activation, out)
    except RuntimeError:
        _check_operands(*(autocast.lowered(*given) if out is None else given))
        raise


def _call(given: tuple[Any, ...], activation: str, out: Tensor | None) -> Tensor:
    if out is None:
        return _run(*given, activation)  # type: ignore[no-any-return]
    x, _, w_down, *_ = given
    into.require(_OP, out, (*x.shape[:-1], w_down.shape[0]), x, given)
    with autocast.off(x):
        return _run(*given, activation, out)  # type: ignore[no-any-return]


def _by_parts(
    x: Tensor,
    w_up: Tensor,
    w_down: Tensor,
    w_gate: Tensor | None,
    b_up: Tensor | None,
    b_down: Tensor | None,
    b_gate: Tensor | None,
    residual: Tensor | None,
    activation: str,
    out: Tensor | None = None,
) -> Tensor:
    if w_gate is None:
        h, *_ = linear_and_more(x, w_up, b_up, None, 1.0, activation)
    else:
        h = gated_linear(x, w_gate, w_up, b_gate, b_up, activation)
    y, *_ = linear_and_more(h, w_down, b_down, residual, 1.0, "none", out=out)
    return y


_run = autograd.speaking(_OP, _by_parts)
