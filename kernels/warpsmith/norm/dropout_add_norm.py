"""Residual norms with dropout and a factor for each row on the branch that joins the residual
stream: h = dropout(x) * row_scale + residual, y = norm(h).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import Cost, Gradients, Op, Property
from warpsmith.norm import dropout_add_norm_cases as cases
from warpsmith.norm.add_norm_ladder import backward_ladder, ladder
from warpsmith.norm.add_norm_reference import norm, norm_backward, widest
from warpsmith.norm.checks import (
    check_parameters,
    check_residual,
    check_residual_gradients,
    check_row_scale,
)
from warpsmith.spec import philox
from warpsmith.spec.checks import check_rows
from warpsmith.spec.peers import PerInput, RetainedGraph

RMS_EPS, LAYER_EPS = cases.RMS.eps, cases.LAYER.eps

# --- one signature for both norms -----------------------------------------------------------------


def _with_bias(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of (x, residual, weight, bias, ...), for an RMS norm, which has no bias."""

    def without(x: Any, residual: Any, weight: Any, *rest: Any) -> Any:
        return function(x, residual, weight, None, *rest)

    return without


def _with_bias_backward(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of (grad, grad_h, h, weight, bias, ...)."""

    def without(grad: Any, grad_h: Any, h: Any, weight: Any, *rest: Any) -> Any:
        return function(grad, grad_h, h, weight, None, *rest)

    return without


# --- checks ---------------------------------------------------------------------------------------


def _check(op: str) -> Callable[..., None]:
    def check(
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        row_scale: Tensor | None,
        p: float,
        *rest: Any,
    ) -> None:
        check_rows(op, x)
        check_residual(op, residual, x)
        check_parameters(op, weight, bias, x)
        check_row_scale(op, row_scale, x)
        philox.check(op, p)

    return check


def _check_backward(op: str) -> Callable[..., None]:
    def check(
        grad: Tensor,
        grad_h: Tensor | None,
        h: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        row_scale: Tensor | None,
        p: float,
        *rest: Any,
    ) -> None:
        check_residual_gradients(op, grad, grad_h, h)
        check_parameters(op, weight, bias, grad)
        check_row_scale(op, row_scale, grad)
        philox.check(op, p)

    return check


# --- references -----------------------------------------------------------------------------------


def _drop(x: Tensor, p: float, seed: int, offset: int) -> Tensor:
    """Zeroes what is dropped and divides the rest by 1 - p."""
    if philox.threshold(p) == 0:
        return x
    kept = philox.keep_mask(x.shape, p, seed, offset, x.device)
    return torch.where(kept, x * philox.keep_scale(p), 0.0)


def _branch(x: Tensor, row_scale: Tensor | None, p: float, seed: int, offset: int) -> Tensor:
    scaled = x if row_scale is None else x * row_scale.to(x.dtype).unsqueeze(-1)
    return _drop(scaled, p, seed, offset)


def _reference(layer: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    def reference(
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        row_scale: Tensor | None,
        p: float,
        seed: int,
        offset: int,
        eps: float,
        zero_centered: bool,
    ) -> tuple[Tensor, Tensor]:
        like = x if residual is None else residual
        wide = widest(x, like)
        h = _branch(x.to(wide, copy=True), row_scale, p, seed, offset)
        if residual is not None:
            h = h + residual.to(wide)
        h = h.to(like.dtype)
        return norm(h, weight, bias, eps, zero_centered, layer, x.dtype), h

    return reference


def _reference_backward(layer: bool) -> Callable[..., tuple[Tensor, ...]]:
    def reference(
        grad: Tensor,
        grad_h: Tensor | None,
        h: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        row_scale: Tensor | None,
        p: float,
        seed: int,
        offset: int,
        eps: float,
        zero_centered: bool,
    ) -> tuple[Tensor, ...]:
        dh, dw, db = norm_backward(grad, grad_h, h, weight, bias, eps, zero_centered, layer)
        dx = _branch(dh, row_scale, p, seed, offset).to(grad.dtype, copy=True)
        return dh.to(h.dtype), dx, dw, *((db,) if layer else ())

    return reference


def _fake(x: Tensor, residual: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    like = x if residual is None else residual
    return x.new_empty(x.shape), like.new_empty(x.shape)


def _fake_backward(
    grad: Tensor, grad_h: Tensor | None, h: Tensor, weight: Tensor | None, *rest: Any
) -> tuple[Tensor, ...]:
    dw = grad.new_empty(0) if weight is None else weight.new_empty(weight.shape)
    return h.new_empty(h.shape), grad.new_empty(grad.shape), dw


def _fake_layer_backward(
    grad: Tensor, grad_h: Tensor | None, h: Tensor, weight: Tensor | None, bias: Any, *rest: Any
) -> tuple[Tensor, ...]:
    db = grad.new_empty(0) if bias is None else bias.new_empty(bias.shape)
    return *_fake_backward(grad, grad_h, h, weight), db


# --- gradients ------------------------------------------------------------------------------------


#: h stands for x and residual; x is kept only for the gradient of row_scale.
_SAVES = {
    "dtype": lambda x: x.dtype,
    "x": lambda x, row_scale: x if row_scale is not None and row_scale.requires_grad else None,
}


def _derivative(backward: str, layer: bool) -> Callable[..., Gradients]:
    def derivative(
        grad_y: Tensor | None,
        grad_h: Tensor | None,
        h: Tensor,
        dtype: torch.dtype,
        x: Tensor | None,
        weight: Tensor | None,
        row_scale: Tensor | None,
        p: float,
        seed: int,
        offset: int,
        eps: float,
        zero_centered: bool,
        bias: Tensor | None = None,
    ) -> Gradients:
        if grad_y is None:  # nobody used y
            grad_y = torch.zeros(h.shape, dtype=dtype, device=h.device)
        run = getattr(torch.ops.warpsmith, backward)
        affine = (weight, bias) if layer else (weight,)
        numbers = (p, seed, offset, eps, zero_centered)
        dh, dx, *of_affine = run(grad_y, grad_h, h, *affine, row_scale, *numbers)
        of_scale = None
        if x is not None and row_scale is not None:
            # The gradient of what dropout leaves of x, unrounded. The operator itself is asked: the
            # generator written out in PyTorch is an expression that a compiler would expand.
            wide = widest(grad_y, h)
            wider = [t if t is None else t.to(wide) for t in (grad_y, grad_h, h, *affine)]
            _, of_x, *_ = run(*wider, None, *numbers)
            of_scale = (of_x * x).sum(-1).to(row_scale.dtype)
        named = dict(zip(("weight", "bias"), of_affine, strict=False))
        return {"x": dx, "residual": dh, "row_scale": of_scale, **named}

    return derivative


# --- peers ----------------------------------------------------------------------------------------
#
# They get the mask of what is kept, made once per input: PyTorch's own generator draws other
# numbers, and torch.compile does not end on ours written out.


def _known(x: Tensor, p: float, seed: int, offset: int) -> Tensor:
    return philox.keep_mask(x.shape, p, seed, offset, x.device)


def _written(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    row_scale: Tensor,
    kept: Tensor,
    p: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """What PyTorch runs once it has drawn its mask."""
    dropped = x * kept * (row_scale.unsqueeze(-1) / (1.0 - p))
    h = (dropped + residual).to(x.dtype)
    if bias is not None:
        return F.layer_norm(h, h.shape[-1:], weight, bias, eps), h
    return F.rms_norm(h, h.shape[-1:], weight, eps), h


def _by(written: Callable[..., Any]) -> Callable[..., Any]:
    masks = PerInput(_known)

    def run(
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        row_scale: Tensor,
        p: float,
        seed: int,
        offset: int,
        eps: float,
        zero_centered: bool,
    ) -> Any:
        kept = masks(x, p, seed, offset)
        return written(x, residual, weight, bias, row_scale, kept, p, eps)

    return run


def _compiled() -> Callable[..., Any]:
    return _by(torch.compile(_written, dynamic=False))


def _backward_by(written: Callable[..., Any]) -> Callable[..., Any]:
    """Its backward alone, after a forward of zeros added to h."""
    known = PerInput(lambda h, *drawn: (torch.zeros_like(h), _known(h, *drawn)))

    # Row scale and mask, of which no gradient is wanted, are hidden in a tuple.
    def forward(h: Tensor, x: Tensor, weight: Any, bias: Any, constants: Any, *rest: Any) -> Any:
        return written(x, h, weight, bias, *constants, *rest)

    graph = RetainedGraph(forward)

    def run(grad: Tensor, grad_h: Tensor, h: Tensor, *others: Any) -> Any:
        weight, bias, row_scale, *drawn, eps, _ = others
        x, kept = known(h, *drawn)
        found = graph((grad, grad_h), h, x, weight, bias, (row_scale, kept), drawn[0], eps)
        return found if bias is not None else found[:3]

    return run


def _compiled_backward() -> Callable[..., Any]:
    return _backward_by(torch.compile(_written, dynamic=False))


# --- the operators --------------------------------------------------------------------------------


def _size(*tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))


def _bytes(x: Tensor, residual: Tensor | None, *rest: Any) -> int:
    h = x if residual is None else residual
    return _size(x, residual, *rest) + _size(x) + _size(h)


def _bytes_backward(grad: Tensor, grad_h: Tensor | None, h: Tensor, *rest: Any) -> int:
    affine = rest[:-6]
    return _size(grad, grad_h, h, *rest) + _size(h, grad) + _size(*affine)


def _operands(x: Any, residual: Any, weight: Any, bias: Any, *rest: Any) -> tuple[Any, ...]:
    return x, residual, weight, bias


def _backward_operands(grad: Any, grad_h: Any, h: Any, weight: Any, *rest: Any) -> tuple[Any, ...]:
    return grad, grad_h, h, weight


_TAIL = "float p=0.0, int seed=0, int offset=0, float eps={eps}, bool zero_centered=False"
_TAIL_BACKWARD = "float p, int seed, int offset, float eps, bool zero_centered"

dropout_add_rms_norm_op = catalogue.add(
    Op(
        "dropout_add_rms_norm(Tensor x, Tensor? residual, Tensor? weight=None, "
        f"Tensor? row_scale=None, {_TAIL.format(eps='1e-6')}) -> (Tensor y, Tensor h)",
        family="norm",
        source="dropout_add_norm",
        reference=_with_bias(_reference(layer=False)),
        ladder=ladder(_with_bias(_operands), "two sweeps over h"),
        triton="add_norm_triton:dropout_add_rms_norm",
        fake=_fake,
        check=_with_bias(_check("dropout_add_rms_norm")),
        backward=_derivative("dropout_add_rms_norm_backward", layer=False),
        saves=_SAVES,
        accumulates=True,
        samples=cases.samples(cases.RMS),
        errors=cases.errors(cases.RMS),
        properties=(
            Property("drops what philox says", cases.drops_what_philox_says),
            Property("without dropout a residual norm", cases.without_dropout_a_residual_norm),
        ),
        cost=Cost(bytes=_bytes, flops=lambda x, *rest: 7 * x.numel()),
        bench=cases.bench(cases.RMS),
        peers={"compile": lambda: _with_bias(_compiled())},
        eager=_with_bias(_by(_written)),
    )
)

dropout_add_layer_norm_op = catalogue.add(
    Op(
        "dropout_add_layer_norm(Tensor x, Tensor? residual, Tensor? weight=None, "
        f"Tensor? bias=None, Tensor? row_scale=None, {_TAIL.format(eps='1e-5')}) "
        "-> (Tensor y, Tensor h)",
        family="norm",
        source="dropout_add_norm",
        reference=_reference(layer=True),
        ladder=ladder(_operands, "three sweeps over h"),
        triton="add_norm_triton:dropout_add_layer_norm",
        fake=_fake,
        check=_check("dropout_add_layer_norm"),
        backward=_derivative("dropout_add_layer_norm_backward", layer=True),
        saves=_SAVES,
        accumulates=True,
        samples=cases.samples(cases.LAYER),
        errors=cases.errors(cases.LAYER),
        properties=(Property("drops what philox says", cases.drops_what_philox_says),),
        cost=Cost(bytes=_bytes, flops=lambda x, *rest: 10 * x.numel()),
        bench=cases.bench(cases.LAYER),
        peers={"compile": _compiled},
        eager=_by(_written),
    )
)

dropout_add_rms_norm_backward_op = catalogue.add(
    Op(
        "dropout_add_rms_norm_backward(Tensor grad, Tensor? grad_h, Tensor h, Tensor? weight, "
        f"Tensor? row_scale, {_TAIL_BACKWARD}) -> (Tensor, Tensor, Tensor)",
        family="norm",
        source="dropout_add_norm_backward",
        reference=_with_bias_backward(_reference_backward(layer=False)),
        ladder=backward_ladder(_backward_operands),
        triton="add_norm_backward_triton:dropout_add_rms_norm_backward",
        fake=_fake_backward,
        check=_with_bias_backward(_check_backward("dropout_add_rms_norm_backward")),
        samples=cases.backward_samples(cases.RMS),
        errors=cases.backward_errors(cases.RMS),
        properties=(Property("repeatable", cases.repeatable(cases.RMS)),),
        cost=Cost(bytes=_bytes_backward, flops=lambda grad, *rest: 15 * grad.numel()),
        bench=cases.bench_backward(cases.RMS),
        peers={"compile": lambda: _with_bias_backward(_compiled_backward())},
        eager=_with_bias_backward(_backward_by(_written)),
    )
)

dropout_add_layer_norm_backward_op = catalogue.add(
    Op(
        "dropout_add_layer_norm_backward(Tensor grad, Tensor? grad_h, Tensor h, Tensor? weight, "
        f"Tensor? bias, Tensor? row_scale, {_TAIL_BACKWARD}) "
        "-> (Tensor, Tensor, Tensor, Tensor)",
        family="norm",
        source="dropout_add_norm_backward",
        reference=_reference_backward(layer=True),
        ladder=backward_ladder(_backward_operands),
        triton="add_norm_backward_triton:dropout_add_layer_norm_backward",
        fake=_fake_layer_backward,
        check=_check_backward("dropout_add_layer_norm_backward"),
        samples=cases.backward_samples(cases.LAYER),
        errors=cases.backward_errors(cases.LAYER),
        properties=(Property("repeatable", cases.repeatable(cases.LAYER)),),
        cost=Cost(bytes=_bytes_backward, flops=lambda grad, *rest: 19 * grad.numel()),
        bench=cases.bench_backward(cases.LAYER),
        peers={"compile": _compiled_backward},
        eager=_backward_by(_written),
    )
)

dispatch.register(dropout_add_rms_norm_op)
dispatch.register(dropout_add_layer_norm_op)
dispatch.register(dropout_add_rms_norm_backward_op)
dispatch.register(dropout_add_layer_norm_backward_op)
_dropout_add_rms_norm = dispatch.public(dropout_add_rms_norm_op)
_dropout_add_layer_norm = dispatch.public(dropout_add_layer_norm_op)


def dropout_add_rms_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None = None,
    row_scale: Tensor | None = None,
    p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    eps: float = RMS_EPS,
    zero_centered: bool = False,
    *,
    variant: str | None = None,
) -> tuple[Tensor, Tensor]:
    """What ends a branch of a transformer and begins the next: ``h = dropout(x) * row_scale +
    residual``, rounded once, and ``y = h / sqrt(mean(h^2) + eps) * weight``.

    What is kept is divided by 1 - p. Which elements are dropped depends on seed and offset, and on
    nothing else: the same on every device and in every kernel, and the backward pass computes it
    again instead of keeping a mask (`warpsmith.philox.keep_mask`). For another mask in the next
    step, count offset up. Squares are summed in f32 only. Differentiable in x, residual, weight and
    row_scale, through both results.

    Args:
        x: [..., n], f32, f16 or bf16 (f64 and fp8 without a kernel of their own), any strides.
        residual: like x, in the dtype of x or f32; None for zeros.
        weight: [n], in the dtype of x or f32; None for ones.
        row_scale: [...], f32: a factor for each row of x, 0 or 1 / (1 - rate) in stochastic depth;
            None for ones.
        p: the probability of dropping an element of x; 0 drops nothing.
        seed: of the generator; any 64-bit number.
        offset: which of the independent streams of that seed; any 64-bit number.
        eps: added to the mean before the root.
        zero_centered: the weight is stored as its distance from one, so 1 + weight is multiplied.
        variant: one rung by name instead of the best one, "bf16x8_pack_f32".

    Returns:
        y in the dtype of x and h in that of residual, both contiguous, in the shape of x.

    Raises:
        RuntimeError: x is not floating-point or 0-d; residual, weight or row_scale has another
            shape, dtype or device; p is no probability; the variant cannot take the input.
        ValueError: the variant does not exist.

    Reference:
        Huang et al. 2016, Deep Networks with Stochastic Depth, https://arxiv.org/abs/1603.09382
    """
    return _dropout_add_rms_norm(
        variant, x, residual, weight, row_scale, p, seed, offset, eps, zero_centered
    )


def dropout_add_layer_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    row_scale: Tensor | None = None,
    p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    eps: float = LAYER_EPS,
    zero_centered: bool = False,
    *,
    variant: str | None = None,
) -> tuple[Tensor, Tensor]:
    """What ends a branch of a transformer and begins the next: ``h = dropout(x) * row_scale +
    residual``, rounded once, and ``y = (h - mean(h)) / sqrt(var(h) + eps) * weight + bias``.

    Dropout and row_scale as in `dropout_add_rms_norm`. Sums are held in f32 only. Differentiable in
    x, residual, weight, bias and row_scale, through both results.

    Args:
        x: [..., n], f32, f16 or bf16 (f64 and fp8 without a kernel of their own), any strides.
        residual: like x, in the dtype of x or f32; None for zeros.
        weight: [n], in the dtype of x or f32; None for ones.
        bias: [n], in the dtype of weight, or of x or f32 without one; None for zeros.
        row_scale: [...], f32: a factor for each row of x, 0 or 1 / (1 - rate) in stochastic depth;
            None for ones.
        p: the probability of dropping an element of x; 0 drops nothing.
        seed: of the generator; any 64-bit number.
        offset: which of the independent streams of that seed; any 64-bit number.
        eps: added to the variance, which divides by n, before the root.
        zero_centered: the weight is stored as its distance from one, so 1 + weight is multiplied.
        variant: one rung by name instead of the best one, "bf16x8_pack_f32".

    Returns:
        y in the dtype of x and h in that of residual, both contiguous, in the shape of x.

    Raises:
        RuntimeError: x is not floating-point or 0-d; residual, weight, bias or row_scale has
            another shape, dtype or device; p is no probability; the variant cannot take the input.
        ValueError: the variant does not exist.

    Reference:
        Huang et al. 2016, Deep Networks with Stochastic Depth, https://arxiv.org/abs/1603.09382
    """
    return _dropout_add_layer_norm(
        variant, x, residual, weight, bias, row_scale, p, seed, offset, eps, zero_centered
    )
