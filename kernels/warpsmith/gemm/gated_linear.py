"""The gate of an MLP: two linear layers of the same rows, one through an activation, multiplied."""

from __future__ import annotations

import math
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.core import (
    autocast,
    autograd,
    catalogue,
    dispatch,
    into,
    messages,
    public_calls,
    sharded,
)
from warpsmith.core.catalogue import Cost, Gradients, Needs, Op, PartCall, Property
from warpsmith.gemm import fused_cases as cases
from warpsmith.gemm.activations import (
    activate,
    check_activation,
    check_bias,
    check_weight,
    empty_rows,
    largest_of_rows,
    sums,
)
from warpsmith.gemm.fused_problem import FusedProblem, ladder, of_layer
from warpsmith.gemm.linear_epilogue import (
    differentiates,
    is_proven,
    parameter_gradients,
    rows,
    serves,
    suits,
)
from warpsmith.gemm.matmul import check_operand, moved_bytes, operations
from warpsmith.spec import references
from warpsmith.spec.checks import shape_text

_OP = "gated_linear"


def _check(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    b_gate: Tensor | None,
    b_up: Tensor | None,
    activation: str,
) -> None:
    check_operand(_OP, "x", x, 1)
    check_weight(_OP, "w_gate", w_gate, x)
    check_weight(_OP, "w_up", w_up, x)
    if w_up.shape != w_gate.shape:
        raise RuntimeError(
            f"{_OP}: expected w_up to have the shape {shape_text(w_gate)} of w_gate, "
            f"got {shape_text(w_up)}"
        )
    check_bias(_OP, "b_gate", b_gate, x, w_gate.shape[0])
    check_bias(_OP, "b_up", b_up, x, w_gate.shape[0])
    if b_gate is not None and b_up is not None and b_up.dtype != b_gate.dtype:
        raise RuntimeError(
            f"{_OP}: expected b_up to have dtype {b_gate.dtype} like b_gate, got {b_up.dtype}"
        )
    check_activation(_OP, activation, gate=True)


#: y, gate, up and amax.
Result = tuple[Tensor, "Tensor | None", "Tensor | None", "Tensor | None"]


def _eager(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    b_gate: Tensor | None,
    b_up: Tensor | None,
    activation: str,
    keep: bool,
    amax: bool,
) -> Result:
    """As PyTorch users write it."""
    gate, up = (
        F.linear(x, w, b) if b is None or b.dtype == x.dtype else (F.linear(x, w) + b).to(x.dtype)
        for w, b in ((w_gate, b_gate), (w_up, b_up))
    )
    y = activate(gate, activation) * up
    return y, *((gate, up) if keep else (None, None)), largest_of_rows(y) if amax else None


@references.written_as(_eager)
def _reference(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    b_gate: Tensor | None,
    b_up: Tensor | None,
    activation: str,
    keep: bool,
    amax: bool,
) -> Result:
    gate, up = sums(x, w_gate, b_gate), sums(x, w_up, b_up)
    y = (activate(gate, activation) * up).to(x.dtype)
    kept = (gate.to(x.dtype), up.to(x.dtype)) if keep else (None, None)
    return y, *kept, largest_of_rows(y) if amax else None


def _with_our_gate(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    b_gate: Tensor | None,
    b_up: Tensor | None,
    activation: str,
    keep: bool,
    amax: bool,
) -> Result:
    """PyTorch's products, and the gate of this library."""
    gate, up = F.linear(x, w_gate, b_gate), F.linear(x, w_up, b_up)
    y = getattr(torch.ops.warpsmith, f"{activation}_and_mul")(gate, up)
    return y, *((gate, up) if keep else (None, None)), largest_of_rows(y) if amax else None


def _fake(x: Tensor, w_gate: Tensor, keep: bool, amax: bool) -> Result:
    def empty() -> Tensor:
        return x.new_empty((*x.shape[:-1], w_gate.shape[0]))

    kept = (empty(), empty()) if keep else (None, None)
    return empty(), *kept, empty_rows(x) if amax else None


def _problem(x: Tensor, w_gate: Tensor, w_up: Tensor, *_: Any) -> FusedProblem:
    return of_layer(x, w_gate, "gate", w_up)


def _gate_gradients(
    grad: Tensor, gate: Tensor, up: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    ops = torch.ops.warpsmith
    if activation == "relu":
        return ops.relu_backward(grad * up, gate), grad * gate.relu()
    d_gate, d_up = getattr(ops, f"{activation}_and_mul_backward")(grad, gate, up)
    return d_gate, d_up


def _derivative(
    grad_y: Tensor | None,
    grad_gate: Tensor | None,
    grad_up: Tensor | None,
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    b_gate: Tensor | None,
    b_up: Tensor | None,
    activation: str,
    gate: Tensor | None,
    up: Tensor | None,
    needs: Needs,
) -> Gradients:
    ops = torch.ops.warpsmith
    d_gate, d_up = grad_gate, grad_up
    if grad_y is not None:
        if gate is None or up is None:
            gate, *_ = ops.linear_epilogue(x, w_gate, b_gate, None, 1.0, "none", False)
            up, *_ = ops.linear_epilogue(x, w_up, b_up, None, 1.0, "none", False)
        d_gate, d_up = _gate_gradients(grad_y, gate, up, activation)
        d_gate = d_gate if grad_gate is None else d_gate + grad_gate
        d_up = d_up if grad_up is None else d_up + grad_up
    found: dict[str, Tensor | None] = {}
    for of, grad, weight, bias in (
        ("gate", d_gate, w_gate, b_gate),
        ("up", d_up, w_up, b_up),
    ):
        if grad is None:
            continue
        if "x" in needs:
            before = found.get("x")
            found["x"] = (
                ops.matmul(grad, weight)
                if before is None
                else ops.addmm(rows(before), rows(grad), weight).reshape(before.shape)
            )
        found[f"w_{of}"], found[f"b_{of}"] = parameter_gradients(
            grad, x, bias if f"b_{of}" in needs else None, f"w_{of}" in needs
        )
    return found


def _bytes(
    x: Tensor, w_gate: Tensor, b_gate: Tensor | None, b_up: Tensor | None, keep: bool
) -> int:
    more = sum(t.numel() * t.element_size() for t in (w_gate, b_gate, b_up) if t is not None)
    result = math.prod(x.shape[:-1]) * w_gate.shape[0] * x.element_size()
    return moved_bytes(x, w_gate.t()) + more + (2 * result if keep else 0)


gated_linear_op = catalogue.add(
    Op(
        "gated_linear(Tensor x, Tensor w_gate, Tensor w_up, Tensor? b_gate=None, "
        'Tensor? b_up=None, str activation="silu", bool keep=False, bool amax=False) '
        "-> (Tensor y, Tensor? gate, Tensor? up, Tensor? amax)",
        family="gemm",
        source="fused_linear",
        reference=_reference,
        eager=_eager,
        ladder=ladder(_problem),
        triton="fused_linear_triton:gated_linear",
        fake=_fake,
        check=_check,
        backward=_derivative,
        constants=("amax",),
        samples=cases.gated_samples(),
        errors=cases.GATED_ERRORS,
        properties=(Property("deterministic", cases.gated_deterministic),),
        cost=Cost(bytes=_bytes, flops=lambda x, w_gate: 2 * operations(x, w_gate.t())),
        bench=cases.gated_bench(),
        bench_dtypes=("bf16",),
        peers={"cublas_and_gate": lambda: _with_our_gate},
    )
)
dispatch.register(gated_linear_op)
_run = dispatch.public(gated_linear_op)
_into = into.register(gated_linear_op)
_PROVEN = is_proven(gated_linear_op)
_KINDS = messages.kinds_of(gated_linear_op.parsed)


def _check_call(*args: Any) -> None:
    """What several steps would take, or refuse in words that name none of the arguments."""
    if not torch.compiler.is_compiling():  # which traces no look at what is no tensor
        dispatch.require_tensors(gated_linear_op, args, _OP)
        messages.check_kinds(_OP, _KINDS, args)
    _check(*args[:6])


def _composed(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    b_gate: Tensor | None,
    b_up: Tensor | None,
    activation: str,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """In several steps, by the kernels of each, the last of which writes to a given `out`."""
    ops = torch.ops.warpsmith
    gate, up = (
        ops.linear(x, w, b)
        if b is None or b.dtype == x.dtype
        else (ops.linear(x, w) + b).to(x.dtype)
        for w, b in ((w_gate, b_gate), (w_up, b_up))
    )
    gated = None if activation == "relu" else getattr(ops, f"{activation}_and_mul")
    if out is None:
        y = gate.relu() * up if gated is None else gated(gate, up)
    elif gated is None:
        y = into.by_last(_OP, ops.mul, out, gate, gate.relu(), up)
    else:
        y = into.by_last(_OP, gated, out, gate, gate, up)
    return y, gate, up


_run_composed = autograd.speaking("gated_linear", _composed)


def calls_of_steps(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    b_gate: Tensor | None,
    b_up: Tensor | None,
    activation: str,
    amax: bool = False,
    out: Tensor | None = None,
) -> tuple[PartCall, ...]:
    """The operators of the same, for checked arguments."""
    found = []
    for w, b, purpose in (
        (w_gate, b_gate, "what goes into the activation"),
        (w_up, b_up, "what it is multiplied by"),
    ):
        fits = b is None or b.dtype == x.dtype
        found.append(PartCall("linear", (x, w, b if fits else None), purpose))
        if not fits:
            found.append(PartCall("torch.add", (), "its bias"))
    y = x.new_empty((*x.shape[:-1], w_gate.shape[0]))
    if activation != "relu":
        found.append(PartCall(f"{activation}_and_mul", (y, y), "the gate"))
    else:
        by_us = PartCall("mul", (y, y), "the gate")
        found.append(PartCall("torch.relu", (), "the activation"))
        found.append(PartCall("torch.mul", (), "the gate") if out is None else by_us)
    if amax:
        found.append(PartCall("torch.amax", (), "the largest of rows"))
    return tuple(found)


@overload
def gated_linear(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    b_gate: Tensor | None = ...,
    b_up: Tensor | None = ...,
    activation: str = ...,
    *,
    keep: Literal[False] = ...,
    amax: Literal[False] = ...,
    out: Tensor | None = ...,
    variant: str | None = ...,
) -> Tensor: ...
@overload
def gated_linear(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    b_gate: Tensor | None = ...,
    b_up: Tensor | None = ...,
    activation: str = ...,
    *,
    keep: Literal[True],
    amax: bool = ...,
    out: Tensor | None = ...,
    variant: str | None = ...,
) -> tuple[Tensor, ...]: ...
@overload
def gated_linear(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    b_gate: Tensor | None = ...,
    b_up: Tensor | None = ...,
    activation: str = ...,
    *,
    keep: Literal[False] = ...,
    amax: Literal[True],
    out: Tensor | None = ...,
    variant: str | None = ...,
) -> tuple[Tensor, ...]: ...
def gated_linear(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    b_gate: Tensor | None = None,
    b_up: Tensor | None = None,
    activation: str = "silu",
    *,
    keep: bool = False,
    amax: bool = False,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """The gate of an MLP in one kernel: `activation(x w_gate^T + b_gate) * (x w_up^T + b_up)`.

    Both products are computed side by side from one reading of x, in f32, and their product is
    rounded once. Differentiable in all tensors; where a gradient is needed, the forward pass keeps
    both sums, rounded. Few rows, f32, and rows that are no packs of 16 bytes go through two
    products and a gate.

    Args:
        x: [..., k], f32, f16 or bf16 (f64 by the reference), any strides.
        w_gate: [n, k], of the dtype and device of x, any strides.
        w_up: as w_gate. Both may be halves of one tensor.
        b_gate: [n], of the dtype of x or f32; None adds nothing.
        b_up: as b_gate, of its dtype.
        activation: "silu", "gelu" (by erf), "gelu_tanh" or "relu".
        keep: whether both sums are returned too: what goes into the activation, and what it is
            multiplied by.
        amax: whether the largest magnitude of each row of the result is returned too, [...] in f32,
            for a quantiser. Not differentiable.
        out: a tensor for the result, best contiguous, of its shape and dtype, which is returned
            (`docs/pytorch.md`, results in tensors of the caller). Not differentiable, and with no
            variant, keep or amax.
        variant: one rung by name instead of the best one, "bf16_wgmma".

    Returns:
        A contiguous tensor [..., n] of the dtype of x; with `keep` or `amax` a tuple of
        it, of the two that are kept, and of the largest.

    Raises:
        RuntimeError: an operand is not floating-point, or fp8; the dtypes, devices or shapes do not
            fit; the activation is unknown; the variant cannot take the input.
        ValueError: the variant does not exist; out stands beside what it cannot.

    Reference:
        `activation(torch.nn.functional.linear(x, w_gate, b_gate)) * F.linear(x, w_up, b_up)`.
    """
    if out is not None:
        given = (x, w_gate, w_up, b_gate, b_up, activation)
        return _into_given(out, variant, *given, more=keep or amax)
    if variant is None:
        x, w_gate, w_up, b_gate, b_up = autocast.lowered(x, w_gate, w_up, b_gate, b_up)
    if variant is None and not serves(_PROVEN, x, w_gate):
        sharded.refuse(_OP, x, w_gate, w_up)
        _check_call(x, w_gate, w_up, b_gate, b_up, activation, keep, amax)
        y, gate, up = _run_composed(x, w_gate, w_up, b_gate, b_up, activation)
        largest = largest_of_rows(y) if amax else None
    else:
        kept = keep or differentiates(x, w_gate, w_up, b_gate, b_up)
        y, gate, up, largest = _run(variant, x, w_gate, w_up, b_gate, b_up, activation, kept, amax)
    if not (keep or amax):
        return y
    return y, *((gate, up) if keep else ()), *((largest,) if amax else ())


def _into_given(
    out: Tensor,
    variant: str | None,
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    b_gate: Tensor | None,
    b_up: Tensor | None,
    activation: str,
    *,
    more: bool,
) -> Tensor:
    """Into `out`; `more`: something else is asked for beside the result."""
    if more:
        raise ValueError(f"{_OP}: expected neither keep nor amax beside out")
    given = (x, w_gate, w_up, b_gate, b_up, activation)
    if serves(_PROVEN, x, w_gate):
        return _into(out, variant, *given, False, False)  # type: ignore[no-any-return]
    sharded.refuse(_OP, x, w_gate, w_up)
    into.alone(_OP, variant)
    _check_call(*given, False, False)
    with autocast.off(x):
        return _run_composed(*given, out)[0]  # type: ignore[no-any-return]


def _calls(
    on_gpu: bool,
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    b_gate: Tensor | None,
    b_up: Tensor | None,
    activation: str,
    keep: bool,
    amax: bool,
    out: Tensor | None,
    variant: str | None,
) -> tuple[PartCall, ...] | None:
    if variant is not None or not (isinstance(x, Tensor) and isinstance(w_gate, Tensor)):
        return None
    if out is None:
        x, w_gate, w_up, b_gate, b_up = autocast.lowered(x, w_gate, w_up, b_gate, b_up)
    given = (x, w_gate, w_up, b_gate, b_up, activation)
    _check_call(*given, keep, amax)
    if on_gpu and not (_PROVEN and suits(x, w_gate)):
        return calls_of_steps(*given, amax, out)
    kept = keep or (out is None and differentiates(x, w_gate, w_up, b_gate, b_up))
    return (PartCall(_OP, (*given, kept, amax), ""),)


public_calls.in_parts(gated_linear, _calls)
