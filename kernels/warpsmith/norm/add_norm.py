"""Residual addition fused with the norm that follows it, RMS norm or layer norm, and its gradients:
h = x + residual, y = norm(h).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import Cost, Gradients, Op, Property
from warpsmith.norm import add_norm_cases as cases
from warpsmith.norm.add_norm_ladder import backward_ladder, ladder
from warpsmith.norm.add_norm_reference import add, norm, norm_backward, nothing_like
from warpsmith.norm.checks import (
    check_parameters,
    check_residual,
    check_residual_gradients,
    check_weight,
)
from warpsmith.spec.checks import check_rows
from warpsmith.spec.peers import PerInput, RetainedGraph

RMS_EPS, LAYER_EPS = cases.RMS_EPS, cases.LAYER_EPS

# --- checks ---------------------------------------------------------------------------------------


def _check_rms(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, eps: float, zero_centered: bool
) -> None:
    op = "add_rms_norm"
    check_rows(op, x)
    check_residual(op, residual, x)
    check_weight(op, weight, x)


def _check_layer(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    zero_centered: bool,
) -> None:
    op = "add_layer_norm"
    check_rows(op, x)
    check_residual(op, residual, x)
    check_parameters(op, weight, bias, x)


def _check_rms_backward(
    grad: Tensor,
    grad_h: Tensor | None,
    h: Tensor,
    weight: Tensor | None,
    eps: float,
    zero_centered: bool,
    separate_x: bool,
) -> None:
    op = "add_rms_norm_backward"
    check_residual_gradients(op, grad, grad_h, h)
    check_weight(op, weight, grad)


def _check_layer_backward(
    grad: Tensor,
    grad_h: Tensor | None,
    h: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    zero_centered: bool,
    separate_x: bool,
) -> None:
    op = "add_layer_norm_backward"
    check_residual_gradients(op, grad, grad_h, h)
    check_parameters(op, weight, bias, grad)


# --- references -----------------------------------------------------------------------------------


def _reference_rms(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, eps: float, zero_centered: bool
) -> tuple[Tensor, Tensor]:
    return _reference_layer(x, residual, weight, None, eps, zero_centered, layer=False)


def _reference_layer(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    zero_centered: bool,
    layer: bool = True,
) -> tuple[Tensor, Tensor]:
    h = add(x, residual)
    y = norm(h, weight, bias, eps, zero_centered, layer, x.dtype)
    return y, nothing_like(x) if residual is None else h


def _reference_rms_backward(
    grad: Tensor,
    grad_h: Tensor | None,
    h: Tensor,
    weight: Tensor | None,
    eps: float,
    zero_centered: bool,
    separate_x: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    gradients = _reference_layer_backward(
        grad, grad_h, h, weight, None, eps, zero_centered, separate_x, layer=False
    )
    return gradients[:3]


def _reference_layer_backward(
    grad: Tensor,
    grad_h: Tensor | None,
    h: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    zero_centered: bool,
    separate_x: bool,
    layer: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dh, dw, db = norm_backward(grad, grad_h, h, weight, bias, eps, zero_centered, layer)
    dx = dh.to(grad.dtype, copy=True) if separate_x else grad.new_empty(0)
    return dh.to(h.dtype), dx, dw, db


def _fake_rms(x: Tensor, residual: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(0) if residual is None else residual.new_empty(x.shape)


def _fake_rms_backward(
    grad: Tensor,
    grad_h: Tensor | None,
    h: Tensor,
    weight: Tensor | None,
    eps: float,
    zero_centered: bool,
    separate_x: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    dx = grad.new_empty(grad.shape if separate_x else 0)
    dw = grad.new_empty(0) if weight is None else weight.new_empty(weight.shape)
    return h.new_empty(h.shape), dx, dw


def _fake_layer_backward(
    grad: Tensor,
    grad_h: Tensor | None,
    h: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    zero_centered: bool,
    separate_x: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    db = grad.new_empty(0) if bias is None else bias.new_empty(bias.shape)
    return *_fake_rms_backward(grad, grad_h, h, weight, eps, zero_centered, separate_x), db


# --- gradients ------------------------------------------------------------------------------------


#: h stands for x and residual, which need not be kept.
_SAVES = {
    "h": lambda x, residual, h: x if residual is None else h,
    "added": lambda residual: residual is not None,
    "dtype": lambda x: x.dtype,
}


def _derivative(backward: str, layer: bool) -> Callable[..., Gradients]:
    def derivative(
        grad_y: Tensor | None,
        grad_h: Tensor | None,
        h: Tensor,
        added: bool,
        dtype: torch.dtype,
        weight: Tensor | None,
        eps: float,
        zero_centered: bool,
        bias: Tensor | None = None,
    ) -> Gradients:
        if not added:
            grad_h = None
        if grad_y is None:  # nobody used y
            return {"x": None if grad_h is None else grad_h.to(dtype), "residual": grad_h}
        separate_x = h.dtype != dtype
        function = getattr(torch.ops.warpsmith, backward)
        affine = (weight, bias) if layer else (weight,)
        dh, dx, *of_affine = function(grad_y, grad_h, h, *affine, eps, zero_centered, separate_x)
        named = dict(zip(("weight", "bias"), of_affine, strict=False))
        return {"x": dx if separate_x else dh, "residual": dh, **named}

    return derivative


# --- peers ----------------------------------------------------------------------------------------


def _eager_rms(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, zero_centered: bool
) -> tuple[Tensor, Tensor]:
    h = x + residual
    return F.rms_norm(h, h.shape[-1:], weight, eps), h


def _eager_layer(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, zero_centered: bool
) -> tuple[Tensor, Tensor]:
    h = x + residual
    return F.layer_norm(h, h.shape[-1:], weight, bias, eps), h


def _quack() -> Callable[..., Any]:
    from quack.rmsnorm import rmsnorm_fwd

    def run(
        x: Tensor, residual: Tensor, weight: Tensor, eps: float, zero_centered: bool
    ) -> tuple[Tensor, Tensor]:
        y, h, *_ = rmsnorm_fwd(x, weight, residual=residual, eps=eps)
        return y, h

    return run


def _liger() -> Callable[..., Any]:
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

    def run(
        x: Tensor, residual: Tensor, weight: Tensor, eps: float, zero_centered: bool
    ) -> tuple[Tensor, Tensor]:
        return LigerFusedAddRMSNormFunction.apply(x, residual, weight, eps, 0.0, "llama", False)

    return run


class _RetainedGraph(RetainedGraph):
    """Of h -> (norm(h), h): gradients of both outputs in, those of h and the weights out."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)

    def __call__(self, grad: Tensor, *args: Any) -> Any:
        grad_h, h, *rest, _ = args
        dh, *of_affine = super().__call__((grad, grad_h), h, *rest)
        return dh, grad.new_empty(0), *of_affine


def _from_h(eager: Callable[..., Any]) -> Callable[..., Any]:
    """`eager` of h = h + 0, an addition that costs its backward nothing."""
    return lambda h, *rest: eager(h, 0.0, *rest)


def _eager_backward(eager: Callable[..., Any]) -> Callable[..., Any]:
    return _RetainedGraph(_from_h(eager))


def _compiled_backward(eager: Callable[..., Any]) -> Callable[[], Callable[..., Any]]:
    return lambda: _RetainedGraph(torch.compile(_from_h(eager), dynamic=False))


def _quack_backward() -> Callable[..., Any]:
    from quack.rmsnorm import rmsnorm_bwd

    rstd = PerInput(lambda h, eps: torch.rsqrt(h.float().square().mean(-1) + eps))

    def run(
        grad: Tensor, grad_h: Tensor, h: Tensor, weight: Tensor, eps: float, *rest: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        dh, dw = rmsnorm_bwd(h, weight, grad, rstd(h, eps), dresidual_out=grad_h)[:2]
        return dh, grad.new_empty(0), dw

    return run


# --- the operators --------------------------------------------------------------------------------


def _size(*tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))


def _bytes(x: Tensor, residual: Tensor | None, *affine: Any) -> int:
    return 2 * _size(x, residual) + _size(*affine)


def _bytes_backward(grad: Tensor, grad_h: Tensor | None, h: Tensor, *affine: Any) -> int:
    dx = _size(grad) if affine[-1] else 0
    return _size(grad, grad_h, h) + _size(h) + dx + 2 * _size(*affine)


def _rms_operands(x: Any, residual: Any, weight: Any, *rest: Any) -> tuple[Any, ...]:
    return x, residual, weight, None


def _layer_operands(x: Any, residual: Any, weight: Any, bias: Any, *rest: Any) -> tuple[Any, ...]:
    return x, residual, weight, bias


def _backward_operands(grad: Any, grad_h: Any, h: Any, weight: Any, *rest: Any) -> tuple[Any, ...]:
    return grad, grad_h, h, weight


add_rms_norm_op = catalogue.add(
    Op(
        "add_rms_norm(Tensor x, Tensor? residual, Tensor? weight=None, float eps=1e-6, "
        "bool zero_centered=False) -> (Tensor y, Tensor h)",
        family="norm",
        source="add_norm",
        reference=_reference_rms,
        ladder=ladder(_rms_operands, "two sweeps over h"),
        triton="add_norm_triton:add_rms_norm",
        fake=_fake_rms,
        check=_check_rms,
        backward=_derivative("add_rms_norm_backward", layer=False),
        saves=_SAVES,
        accumulates=True,
        aliases=("fused_add_rms_norm",),
        samples=cases.samples(cases.RMS),
        errors=cases.errors(cases.RMS),
        properties=(
            Property("both outputs agree", cases.outputs_agree),
            Property("rows independent", cases.rows_independent),
        ),
        cost=Cost(bytes=_bytes, flops=lambda x, *rest: 5 * x.numel()),
        bench=cases.bench(cases.RMS),
        peers={"quack": _quack, "liger": _liger},
        eager=_eager_rms,
    )
)

add_layer_norm_op = catalogue.add(
    Op(
        "add_layer_norm(Tensor x, Tensor? residual, Tensor? weight=None, Tensor? bias=None, "
        "float eps=1e-5, bool zero_centered=False) -> (Tensor y, Tensor h)",
        family="norm",
        source="add_norm",
        reference=_reference_layer,
        ladder=ladder(_layer_operands, "three sweeps over h"),
        triton="add_norm_triton:add_layer_norm",
        fake=_fake_rms,
        check=_check_layer,
        backward=_derivative("add_layer_norm_backward", layer=True),
        saves=_SAVES,
        accumulates=True,
        aliases=("fused_add_layer_norm",),
        samples=cases.samples(cases.LAYER),
        errors=cases.errors(cases.LAYER),
        properties=(
            Property("both outputs agree", cases.outputs_agree),
            Property("rows independent", cases.rows_independent),
            Property("shift invariant", cases.shift_invariant),
        ),
        cost=Cost(bytes=_bytes, flops=lambda x, *rest: 8 * x.numel()),
        bench=cases.bench(cases.LAYER),
        eager=_eager_layer,
    )
)

add_rms_norm_backward_op = catalogue.add(
    Op(
        "add_rms_norm_backward(Tensor grad, Tensor? grad_h, Tensor h, Tensor? weight, float eps, "
        "bool zero_centered, bool separate_x) -> (Tensor, Tensor, Tensor)",
        family="norm",
        source="add_norm_backward",
        reference=_reference_rms_backward,
        ladder=backward_ladder(_backward_operands),
        triton="add_norm_backward_triton:add_rms_norm_backward",
        fake=_fake_rms_backward,
        check=_check_rms_backward,
        samples=cases.backward_samples(cases.RMS),
        errors=cases.backward_errors(cases.RMS),
        properties=(Property("repeatable", cases.repeatable(cases.RMS)),),
        cost=Cost(bytes=_bytes_backward, flops=lambda grad, *rest: 13 * grad.numel()),
        bench=cases.bench_backward(cases.RMS),
        peers={"compile": _compiled_backward(_eager_rms), "quack": _quack_backward},
        eager=_eager_backward(_eager_rms),
    )
)

add_layer_norm_backward_op = catalogue.add(
    Op(
        "add_layer_norm_backward(Tensor grad, Tensor? grad_h, Tensor h, Tensor? weight, "
        "Tensor? bias, float eps, bool zero_centered, bool separate_x) "
        "-> (Tensor, Tensor, Tensor, Tensor)",
        family="norm",
        source="add_norm_backward",
        reference=_reference_layer_backward,
        ladder=backward_ladder(_backward_operands),
        triton="add_norm_backward_triton:add_layer_norm_backward",
        fake=_fake_layer_backward,
        check=_check_layer_backward,
        samples=cases.backward_samples(cases.LAYER),
        errors=cases.backward_errors(cases.LAYER),
        properties=(Property("repeatable", cases.repeatable(cases.LAYER)),),
        cost=Cost(bytes=_bytes_backward, flops=lambda grad, *rest: 17 * grad.numel()),
        bench=cases.bench_backward(cases.LAYER),
        peers={"compile": _compiled_backward(_eager_layer)},
        eager=_eager_backward(_eager_layer),
    )
)

dispatch.register(add_rms_norm_op)
dispatch.register(add_layer_norm_op)
dispatch.register(add_rms_norm_backward_op)
dispatch.register(add_layer_norm_backward_op)
_add_rms_norm = dispatch.public(add_rms_norm_op)
_add_layer_norm = dispatch.public(add_layer_norm_op)


def add_rms_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None = None,
    eps: float = RMS_EPS,
    zero_centered: bool = False,
    *,
    variant: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Adds the residual stream and normalises the sum: ``h = x + residual`` and
    ``y = h / sqrt(mean(h^2) + eps) * weight``.

    The norm reads h as it is handed out, rounded to its dtype, so that y is the RMS norm of h bit
    for bit wherever the sum was made. Squares are summed in f32 only: no variant accumulates in the
    dtype of x, as some of `rms_norm` do. Differentiable in x, residual and weight, through both
    results; the backward pass keeps h, which the next layer holds anyway, and neither x nor
    residual.

    Args:
        x: [..., n], f32, f16 or bf16 (f64 and fp8 without a kernel of their own), any strides.
        residual: like x, in the dtype of x or f32; None where there is none yet: h is then x.
        weight: [n], in the dtype of x or f32; None for ones.
        eps: added to the mean before the root.
        zero_centered: the weight is stored as its distance from one, so 1 + weight is multiplied.
        variant: one rung by name instead of the best one, "bf16x8_pack_f32".

    Returns:
        y, contiguous, in the shape and dtype of x; and h, in the dtype of residual: contiguous, or
        x itself without a residual.

    Raises:
        RuntimeError: x is not floating-point or 0-d; residual or weight has another shape, dtype or
            device; the variant cannot take the input.
        ValueError: the variant does not exist.

    Reference:
        Zhang & Sennrich 2019, Root Mean Square Layer Normalization,
        https://arxiv.org/abs/1910.07467
    """
    y, h = _add_rms_norm(variant, x, residual, weight, eps, zero_centered)
    return y, x if residual is None else h


def add_layer_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = LAYER_EPS,
    zero_centered: bool = False,
    *,
    variant: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Adds the residual stream and normalises the sum: ``h = x + residual`` and
    ``y = (h - mean(h)) / sqrt(var(h) + eps) * weight + bias``.

    The norm reads h as it is handed out, rounded to its dtype. Sums are held in f32 only: no
    variant accumulates in the dtype of x, as some of `layer_norm` do. Differentiable in x,
    residual, weight and bias, through both results; the backward pass keeps h, which the next layer
    holds anyway, and neither x nor residual.

    Args:
        x: [..., n], f32, f16 or bf16 (f64 and fp8 without a kernel of their own), any strides.
        residual: like x, in the dtype of x or f32; None where there is none yet: h is then x.
        weight: [n], in the dtype of x or f32; None for ones.
        bias: [n], in the dtype of weight, or of x or f32 without one; None for zeros.
        eps: added to the variance, which divides by n, before the root.
        zero_centered: the weight is stored as its distance from one, so 1 + weight is multiplied.
        variant: one rung by name instead of the best one, "bf16x8_pack_f32".

    Returns:
        y, contiguous, in the shape and dtype of x; and h, in the dtype of residual: contiguous, or
        x itself without a residual.

    Raises:
        RuntimeError: x is not floating-point or 0-d; residual, weight or bias has another shape,
            dtype or device; the variant cannot take the input.
        ValueError: the variant does not exist.

    Reference:
        Ba, Kiros & Hinton 2016, Layer Normalization, https://arxiv.org/abs/1607.06450
    """
    y, h = _add_layer_norm(variant, x, residual, weight, bias, eps, zero_centered)
    return y, x if residual is None else h
