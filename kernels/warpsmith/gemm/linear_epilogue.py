"""A linear layer with all that may follow it in the same kernel."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import autocast, autograd, catalogue, dispatch, into, messages
from warpsmith.core.catalogue import Cost, Gradients, Needs, Op, PartCall, Property
from warpsmith.gemm import fused_cases as cases
from warpsmith.gemm.accumulate_matmul import accumulate_matmul_op
from warpsmith.gemm.activations import (
    activate,
    check_activation,
    check_bias,
    check_residual,
    check_weight,
    empty_rows,
    largest_of_rows,
    sums,
)
from warpsmith.gemm.fused_problem import FusedProblem, ladder, of_layer
from warpsmith.gemm.linear_weight_gradient import linear_weight_gradient_op
from warpsmith.gemm.matmul import check_operand, moved_bytes, operations
from warpsmith.spec import references

_OP = "linear_epilogue"
#: y, before and amax.
Result = tuple[Tensor, "Tensor | None", "Tensor | None"]


def _check(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str
) -> None:
    _check_layer(_OP, x, weight, bias, residual, activation)


def _check_layer(
    op: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str,
) -> None:
    check_operand(op, "x", x, 1)
    check_weight(op, "weight", weight, x)
    check_bias(op, "bias", bias, x, weight.shape[0])
    check_activation(op, activation)
    check_residual(op, residual, x, weight.shape[0])


def _eager(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    scale: float,
    activation: str,
    keep: bool,
    amax: bool,
) -> Result:
    """As PyTorch users write it."""
    fits = bias is None or bias.dtype == x.dtype
    before = torch.nn.functional.linear(
        x * scale if scale != 1.0 else x, weight, bias if fits else None
    )
    if bias is not None and not fits:
        before = (before + bias).to(x.dtype)
    y = activate(before, activation)
    y = y if residual is None else y + residual
    largest = largest_of_rows(y) if amax else None
    return (y.clone() if y is before else y), before if keep else None, largest


@references.written_as(_eager)
def _reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    scale: float,
    activation: str,
    keep: bool,
    amax: bool,
) -> Result:
    before = sums(x, weight, bias, scale)
    y = activate(before, activation)
    y = y if residual is None else y + residual
    y = y.to(x.dtype)
    largest = largest_of_rows(y) if amax else None
    return (y.clone() if y is before else y), before.to(x.dtype) if keep else None, largest


def _fake(x: Tensor, weight: Tensor, keep: bool, amax: bool) -> Result:
    shape = (*x.shape[:-1], weight.shape[0])
    return x.new_empty(shape), x.new_empty(shape) if keep else None, empty_rows(x) if amax else None


def _problem(x: Tensor, weight: Tensor, *_: Any) -> FusedProblem:
    return of_layer(x, weight, "epilogue")


def rows(x: Tensor) -> Tensor:
    """As a matrix."""
    return x.unsqueeze(0) if x.dim() == 1 else x.flatten(0, -2)


def alike(*tensors: Tensor) -> tuple[Tensor, ...]:
    """As matrices whose rows are in one order, which is of no matter where they are summed over: of
    rows on several processes the dimension that is cut comes first, as PyTorch 2.11 joins it with
    those behind it only.
    """
    last = tensors[0].dim() - 1
    placed = (p for t in tensors for p in getattr(t, "placements", ()))
    cut = {p.dim for p in placed if p.is_shard() and 0 < p.dim < last}
    if cut:
        order = sorted(range(last), key=lambda dim: dim not in cut)
        tensors = tuple(t.permute(*order, last) for t in tensors)
    return tuple(rows(t) for t in tensors)


def bias_gradient(grad: Tensor, bias: Tensor) -> Tensor:
    """The sum over rows, in the dtype of the bias."""
    return alike(grad)[0].sum(0, dtype=bias.dtype)


def parameter_gradients(
    grad: Tensor, x: Tensor, bias: Tensor | None, weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Of the weight, where `weight` asks for it, and of the bias, where there is one to find: both
    in one pass over `grad` where a kernel is proven to serve that, which spares a launch that reads
    it once more.
    """
    grad, x = alike(grad, x)
    if bias is not None and weight and in_one_pass(grad, x):
        of_both = torch.ops.warpsmith.linear_weight_gradient
        return of_both(grad, x, bias.dtype != grad.dtype)  # type: ignore[no-any-return]
    of_weight = torch.ops.warpsmith.matmul(grad.t(), x) if weight else None  # as the weight lies
    return of_weight, None if bias is None else bias_gradient(grad, bias)


def in_one_pass(grad: Tensor, x: Tensor) -> bool:
    """Whether the kernels of `linear_weight_gradient` are the better ones."""
    packs = grad.shape[1] % 8 == x.shape[1] % 8 == 0 and grad.dtype.itemsize == 2
    return grad.is_cuda and packs and is_proven(linear_weight_gradient_op)


def gradient_of_sums(
    grad_y: Tensor | None,
    grad_before: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: float,
    activation: str,
    before: Tensor | None,
) -> Tensor:
    """Of what goes into the activation, which is computed again where it was not kept."""
    grad = grad_y
    if grad_y is not None and activation != "none":
        if before is None:
            again = torch.ops.warpsmith.linear_epilogue
            before, *_ = again(x, weight, bias, None, scale, "none", False)
        grad = getattr(torch.ops.warpsmith, f"{activation}_backward")(grad_y, before)
    if grad_before is not None:
        grad = grad_before if grad is None else grad + grad_before
    assert grad is not None
    return grad


def _derivative(
    grad_y: Tensor | None,
    grad_before: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: float,
    activation: str,
    before: Tensor | None,
    needs: Needs,
) -> Gradients:
    grad = gradient_of_sums(grad_y, grad_before, x, weight, bias, scale, activation, before)
    found: dict[str, Tensor | None] = {}
    if "residual" in needs:
        found["residual"] = grad_y
    asked = bias if "bias" in needs else None
    if scale != 1.0:
        found["bias"] = None if asked is None else bias_gradient(grad, asked)
        grad, asked = grad * scale, None
    if "x" in needs:
        found["x"] = torch.ops.warpsmith.matmul(grad, weight)
    of_weight, of_bias = parameter_gradients(grad, x, asked, "weight" in needs)
    found["weight"] = of_weight
    if asked is not None:
        found["bias"] = of_bias
    return found


def _bytes(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, keep: bool
) -> int:
    more = sum(t.numel() * t.element_size() for t in (bias, residual) if t is not None)
    result = math.prod(x.shape[:-1]) * weight.shape[0] * x.element_size()
    return moved_bytes(x, weight.t()) + more + (result if keep else 0)


linear_epilogue_op = catalogue.add(
    Op(
        "linear_epilogue(Tensor x, Tensor weight, Tensor? bias=None, Tensor? residual=None, "
        'float scale=1.0, str activation="none", bool keep=False, bool amax=False) '
        "-> (Tensor y, Tensor? before, Tensor? amax)",
        family="gemm",
        source="fused_linear",
        reference=_reference,
        eager=_eager,
        ladder=ladder(_problem),
        triton="fused_linear_triton:linear_epilogue",
        fake=_fake,
        check=_check,
        backward=_derivative,
        constants=("amax",),
        samples=cases.epilogue_samples(),
        errors=cases.EPILOGUE_ERRORS,
        properties=(
            Property("residual alone", cases.residual_alone),
            Property("deterministic", cases.epilogue_deterministic),
        ),
        cost=Cost(bytes=_bytes, flops=lambda x, weight: operations(x, weight.t())),
        bench=cases.epilogue_bench(),
        bench_dtypes=("bf16",),
    )
)
dispatch.register(linear_epilogue_op)
run = dispatch.public(linear_epilogue_op)
_into = into.register(linear_epilogue_op)
_KINDS = (*messages.kinds_of(linear_epilogue_op.parsed), ("batch_invariant", "bool"))


def _accumulate(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b, in f32."""
    packs = a.shape[0] % 8 == b.shape[1] % 8 == 0 and a.dtype.itemsize == 2
    if not a.is_cuda or (packs and is_proven(accumulate_matmul_op)):
        torch.ops.warpsmith.accumulate_matmul(a, b, total)
    else:
        total += torch.ops.warpsmith.matmul(a, b, False, "f32")


class IntoBuffer(torch.autograd.Function):
    """The layer, whose backward pass adds the gradient of the weight to sums in f32."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        scale: float,
        activation: str,
        buffer: Tensor,
    ) -> Tensor:
        keep = activation != "none"
        given = (x, weight, bias, residual, scale, activation, keep)
        y, before, _ = run(None, *given, False) if serves(_PROVEN, x, weight) else composed(*given)
        ctx.save_for_backward(x, weight, bias, before)
        ctx.others = scale, activation, buffer  # which later steps write to
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> Any:  # type: ignore[override]
        x, weight, bias, before = ctx.saved_tensors
        scale, activation, buffer = ctx.others
        grads: list[Tensor | None] = [None] * 7
        with torch.no_grad():
            grad = gradient_of_sums(grad_y, None, x, weight, bias, scale, activation, before)
            if ctx.needs_input_grad[2]:
                grads[2] = bias_gradient(grad, bias)
            grad = grad * scale if scale != 1.0 else grad
            if ctx.needs_input_grad[0]:
                grads[0] = torch.ops.warpsmith.matmul(grad, weight)
            if ctx.needs_input_grad[1]:
                _accumulate(buffer, rows(grad).t(), rows(x))
        if ctx.needs_input_grad[3]:
            grads[3] = grad_y
        return tuple(
            g if g is None or g is grad_y else autograd.once("linear", g, grad_y, x, weight)
            for g in grads
        )


def _check_call(*args: Any) -> None:
    """Of the arguments of the operator, and `batch_invariant`: what several steps would take, or
    refuse in words that name none of them.
    """
    *given, _ = args
    if not torch.compiler.is_compiling():  # which traces no look at what is no tensor
        dispatch.require_tensors(linear_epilogue_op, tuple(given), "linear")
        messages.check_kinds("linear", _KINDS, args)
    x, weight, bias, residual, _, activation, *_ = given
    _check_layer("linear", x, weight, bias, residual, activation)


def _composed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    scale: float,
    activation: str,
    keep: bool,
    amax: bool = False,
    batch_invariant: bool = False,
    out: Tensor | None = None,
) -> Result:
    """The same in several steps, by the kernels of each: for f32, for few rows, and for rows that
    are no packs of 16 bytes. What goes into the activation is rounded, and the residual is added to
    a rounded result; a scale and a bias of f32 meet sums that are not, which f16 may not hold.
    Where `out` is given, without `keep` and `amax`, the last kernel writes there.
    """
    _check_call(x, weight, bias, residual, scale, activation, keep, amax, batch_invariant)
    ops = torch.ops.warpsmith
    plain, fused = _of_first_step(x, bias, scale, activation, keep)
    if plain and out is not None and residual is None and activation == fused:
        ops.linear.out(x, weight, bias, fused, batch_invariant, out=out)
        return out, None, None
    if plain:
        before = y = ops.linear(x, weight, bias, fused, batch_invariant)
    else:
        sums = ops.matmul(x, weight.t(), batch_invariant, "f32")
        sums = sums * scale if scale != 1.0 else sums
        before = y = (sums if bias is None else sums + bias).to(x.dtype)
    if out is not None and residual is None:
        if activation == fused:
            return into.copied("linear", y, out), None, None
        return into.by_last("linear", getattr(ops, activation), out, y, before), None, None
    if activation != fused:
        y = getattr(ops, activation)(before)
    if out is not None:
        return into.by_last("linear", ops.add, out, y, y, residual), None, None
    y = y if residual is None else y + residual
    largest = largest_of_rows(y) if amax else None
    return (y.clone() if keep and y is before else y), before if keep else None, largest


composed = autograd.speaking("linear", _composed)


def _of_first_step(
    x: Tensor, bias: Tensor | None, scale: float, activation: str, keep: bool
) -> tuple[bool, str]:
    """Of a layer in steps, whether `linear` makes the first, and with which activation."""
    plain = scale == 1.0 and (bias is None or bias.dtype == x.dtype)
    return plain, activation if plain and not keep else "none"


def calls_of_steps(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    scale: float,
    activation: str,
    keep: bool,
    amax: bool = False,
    batch_invariant: bool = False,
    out: Tensor | None = None,
    *,
    purpose: str = "the product",
) -> tuple[PartCall, ...]:
    """The operators that `composed` calls for checked arguments; `purpose`: of the product."""
    plain, fused = _of_first_step(x, bias, scale, activation, keep)
    y = x.new_empty((*x.shape[:-1], weight.shape[0]))
    if plain:
        found = [PartCall("linear", (x, weight, bias, fused, batch_invariant), purpose)]
    else:
        args = (x, weight.t(), batch_invariant, "f32")
        found = [PartCall("matmul", args, f"{purpose}, in f32")]
        if scale != 1.0:
            found.append(PartCall("torch.mul", (), "the scale"))
        if bias is not None:
            found.append(PartCall("torch.add", (), "the bias"))
    if activation != fused:
        found.append(PartCall(activation, (y,), "the activation"))
    if residual is not None:
        by_us = PartCall("add", (y, residual), "the residual")
        found.append(PartCall("torch.add", (), "the residual") if out is None else by_us)
    if amax:
        found.append(PartCall("torch.amax", (), "the largest of rows"))
    return tuple(found)


#: Up to so many rows, kernels of their own multiply faster than tiles of 128 rows.
FEW_ROWS = 64


def is_proven(op: Op) -> bool:
    """Whether a GPU has verified any of its kernels."""
    return any(not rung.unproven for rung in op.ladder)


def suits(x: Tensor, weight: Tensor) -> bool:
    """Whether the fused kernels are the better ones for a layer on a GPU, rather than several
    steps.
    """
    return (
        x.dtype.itemsize == 2
        and x.shape[-1] % 8 == 0
        and weight.shape[0] % 8 == 0
        and x.numel() > FEW_ROWS * x.shape[-1]
    )


def is_on_gpu(x: Tensor) -> bool:
    return x.is_cuda


def serves(proven: bool, x: Tensor, weight: Tensor) -> bool:
    """Whether a call is one for the fused kernels."""
    if not (isinstance(x, Tensor) and isinstance(weight, Tensor) and is_on_gpu(x)):
        return True  # it says what is missing
    return proven and suits(x, weight)


_PROVEN = is_proven(linear_epilogue_op)


def differentiates(*tensors: Tensor | None) -> bool:
    """Whether a backward pass may follow."""
    return torch.is_grad_enabled() and any(
        isinstance(t, Tensor) and t.requires_grad for t in tensors
    )


def keeps(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether a call keeps what goes into its activation, which its backward pass would otherwise
    need a product for.
    """
    return is_on_gpu(x) and keeps_on_gpu(x, weight, bias)


def keeps_on_gpu(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return _PROVEN and suits(x, weight) and differentiates(x, weight, bias)


def linear_and_more(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    scale: float,
    activation: str,
    keep: bool = False,
    amax: bool = False,
    batch_invariant: bool = False,
    variant: str | None = None,
    out: Tensor | None = None,
) -> Result:
    """y, what goes into the activation, and the largest of rows, each where it is asked for. Beside
    `out`, which y goes to, nothing else is; autocast is off then.
    """
    if variant is None:
        x, weight, bias, residual = autocast.lowered(x, weight, bias, residual)
    elif batch_invariant:
        raise ValueError(
            "linear: expected no batch_invariant beside a variant of linear_epilogue, which cuts k "
            "as the number of rows wants it"
        )
    fused = variant is not None or (not batch_invariant and serves(_PROVEN, x, weight))
    if not fused:
        return composed(
            x, weight, bias, residual, scale, activation, keep, amax, batch_invariant, out
        )
    if out is not None:
        given = (x, weight, bias, residual, scale, activation, False, False)
        return _into(out, None, *given), None, None
    kept = keep or (activation != "none" and differentiates(x, weight, bias))
    y, before, largest = run(variant, x, weight, bias, residual, scale, activation, kept, amax)
    return y, before if keep else None, largest


def calls_of_layer(
    on_gpu: bool,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    scale: float,
    activation: str,
    keep: bool,
    amax: bool,
    batch_invariant: bool,
    out: Tensor | None,
) -> tuple[PartCall, ...]:
    """The operators that `linear_and_more` calls."""
    given = (x, weight, bias, residual, scale, activation, keep, amax)
    _check_call(*given, batch_invariant)
    if batch_invariant or (on_gpu and not (_PROVEN and suits(x, weight))):
        return calls_of_steps(*given, batch_invariant, out)
    kept = keep or (activation != "none" and out is None and differentiates(x, weight, bias))
    return (PartCall("linear_epilogue", (*given[:6], kept, amax), ""),)
