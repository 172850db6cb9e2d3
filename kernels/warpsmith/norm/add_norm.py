"""Residual addition fused with the norm that follows it, RMS norm or layer norm, and its gradients:
h = x + residual, y = norm(h).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.core import dispatch, into
from warpsmith.core.catalogue import Gradients, Op, Property
from warpsmith.norm import add_norm_cases as cases
from warpsmith.norm import arguments, ladders
from warpsmith.norm.norms import LAYER_EPS, RMS_EPS, Norm, backward, forward
from warpsmith.spec.peers import PerInput, RetainedGraph

_RMS, _LAYER = Norm(layer=False, source="add"), Norm(layer=True, source="add")

# --- gradients ------------------------------------------------------------------------------------

#: h stands for x and residual, which need not be kept.
_SAVES = {
    "h": lambda x, residual, h: x if residual is None else h,
    "added": lambda residual: residual is not None,
    "dtype": lambda x: x.dtype,
}


def _derivative(norm: Norm) -> Callable[..., Gradients]:
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
        function = getattr(torch.ops.warpsmith, norm.backward_name)
        affine = (weight, bias) if norm.layer else (weight,)
        dh, dx, *of_affine = function(grad_y, grad_h, h, *affine, eps, zero_centered, separate_x)
        named = dict(zip(norm.affine, of_affine, strict=True))
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

    def run(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        y, h, *_ = rmsnorm_fwd(x, weight, residual=residual, eps=eps)
        return y, h

    return run


def _liger() -> Callable[..., Any]:
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

    def run(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
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
        grad: Tensor, grad_h: Tensor, h: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        dh, dw = rmsnorm_bwd(h, weight, grad, rstd(h, eps), dresidual_out=grad_h)[:2]
        return dh, grad.new_empty(0), dw

    return run


# --- the operators --------------------------------------------------------------------------------


def _forward(norm: Norm, *properties: Property, **settings: Any) -> Op:
    return forward(
        norm,
        source="add_norm",
        ladder=ladders.residual(norm.layer),
        backward=_derivative(norm),
        saves=_SAVES,
        aliases=(f"fused_{norm.name}",),
        samples=cases.samples(norm),
        errors=cases.errors(norm),
        properties=(
            Property("both outputs agree", cases.outputs_agree),
            Property("rows independent", cases.rows_independent),
            *properties,
        ),
        bench=cases.bench(norm),
        **settings,
    )


def _backward(norm: Norm, eager: Callable[..., Any], **peers: Any) -> Op:
    return backward(
        norm,
        samples=cases.backward_samples(norm),
        errors=cases.backward_errors(norm),
        properties=(Property("repeatable", cases.repeatable(norm)),),
        bench=cases.bench_backward(norm),
        peers={"compile": _compiled_backward(eager), **peers},
        eager=_eager_backward(eager),
    )


_rms_op = _forward(_RMS, peers={"quack": _quack, "liger": _liger}, eager=_eager_rms)
_layer_op = _forward(_LAYER, Property("shift invariant", cases.shift_invariant), eager=_eager_layer)
_add_rms_norm = dispatch.public(_rms_op)
_add_layer_norm = dispatch.public(_layer_op)
_add_rms_norm_into = into.register(_rms_op)
_add_layer_norm_into = into.register(_layer_op)
_backward(_RMS, _eager_rms, quack=_quack_backward)
_backward(_LAYER, _eager_layer)

Pair = tuple[Tensor, Tensor | None]


def _into(
    run: Callable[..., Any],
    norm: Norm,
    out: Pair,
    variant: str | None,
    x: Tensor,
    residual: Tensor | None,
    *others: Any,
) -> tuple[Tensor, Tensor]:
    """Both results, in the tensors that were given for them."""
    if not isinstance(out, tuple | list) or len(out) != 2:
        raise TypeError(f"{norm.name}: expected out to be two tensors, for y and h")
    y, h = out
    if residual is not None:
        y, h = run((y, h), variant, x, residual, *others)
        return y, h
    if h is not None:
        raise RuntimeError(
            f"{norm.name}: expected out to have None for h without a residual: h is x"
        )
    run((y, x.new_empty(0)), variant, x, None, *others)
    return y, x


def add_rms_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None = None,
    eps: float | None = RMS_EPS,
    zero_centered: bool = False,
    *,
    bias: Tensor | None = None,
    rounding: str = "once",
    out: Pair | None = None,
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
        residual: like x, in the dtype of x or f32; None where there is none yet: h is then x. Of
            another dtype than these it is read, and h handed out, in f32, as are the parameters.
        weight: [n], in the dtype of x or f32; None for ones.
        eps: added to the mean before the root; None as in `rms_norm`.
        zero_centered: the weight is stored as its distance from one, so 1 + weight is multiplied.
        bias: [n], added to y by PyTorch's kernels, after it was rounded.
        rounding: "once", or "before_weight", as Llama's norm in Hugging Face: y to the dtype of x,
            times the weight, and rounded again.
        out: tensors for y and h, best contiguous, of their shapes and dtypes, which get the results
            and are returned; without a residual None for h, which is x itself. Not differentiable,
            and with no variant.
        variant: one rung by name instead of the best one, "bf16x8_pack_f32".

    Returns:
        y, contiguous, in the shape and dtype of x; and h, in the dtype of residual: contiguous, or
        x itself without a residual.

    Raises:
        RuntimeError: x is not floating-point or 0-d; residual or weight has another shape, dtype or
            device; the variant cannot take the input.
        ValueError: the variant or the rounding does not exist; the variant comes with out.

    Reference:
        Zhang & Sennrich 2019, Root Mean Square Layer Normalization,
        https://arxiv.org/abs/1910.07467
    """
    if eps is None:
        eps = arguments.eps_of(x)
    if bias is not None or rounding != "once":
        return arguments.residual_parameters(
            "add_rms_norm",
            lambda w: add_rms_norm(x, residual, w, eps, zero_centered, out=out, variant=variant),
            weight,
            bias,
            rounding,
            zero_centered,
            out,
        )
    if not arguments.taken(x, residual, weight):
        (residual,), (weight,) = (arguments.fitting(x, a) for a in (residual, weight))
    if out is not None:
        return _into(
            _add_rms_norm_into, _RMS, out, variant, x, residual, weight, eps, zero_centered
        )
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
    out: Pair | None = None,
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
        residual: like x, in the dtype of x or f32; None where there is none yet: h is then x. Of
            another dtype than these it is read, and h handed out, in f32, as are the parameters.
        weight: [n], in the dtype of x or f32; None for ones.
        bias: [n], in the dtype of weight, or of x or f32 without one; None for zeros.
        eps: added to the variance, which divides by n, before the root.
        zero_centered: the weight is stored as its distance from one, so 1 + weight is multiplied.
        out: tensors for y and h, best contiguous, of their shapes and dtypes, which get the results
            and are returned; without a residual None for h, which is x itself. Not differentiable,
            and with no variant.
        variant: one rung by name instead of the best one, "bf16x8_pack_f32".

    Returns:
        y, contiguous, in the shape and dtype of x; and h, in the dtype of residual: contiguous, or
        x itself without a residual.

    Raises:
        RuntimeError: x is not floating-point or 0-d; residual, weight or bias has another shape,
            dtype or device; the variant cannot take the input.
        ValueError: the variant does not exist, or comes with out.

    Reference:
        Ba, Kiros & Hinton 2016, Layer Normalization, https://arxiv.org/abs/1607.06450
    """
    if not (arguments.taken(x, residual, weight, bias) and arguments.alike(weight, bias)):
        (residual,) = arguments.fitting(x, residual)
        weight, bias = arguments.fitting(x, weight, bias)
    if out is not None:
        return _into(
            _add_layer_norm_into, _LAYER, out, variant, x, residual, weight, bias, eps,
            zero_centered,
        )  # fmt: skip
    y, h = _add_layer_norm(variant, x, residual, weight, bias, eps, zero_centered)
    return y, x if residual is None else h
