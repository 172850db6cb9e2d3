"""Residual norms with dropout and a factor for each row on the branch that joins the residual
stream: h = dropout(x) * row_scale + residual, y = norm(h).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.core import dispatch, into, sharded
from warpsmith.core.catalogue import Gradients, Op, Property
from warpsmith.norm import arguments, ladders, references
from warpsmith.norm import dropout_add_norm_cases as cases
from warpsmith.norm.norms import LAYER_EPS, RMS_EPS, Norm, backward, forward
from warpsmith.spec import philox
from warpsmith.spec.peers import PerInput, RetainedGraph

_RMS, _LAYER = Norm(layer=False, source="dropout_add"), Norm(layer=True, source="dropout_add")

# --- gradients ------------------------------------------------------------------------------------

#: h stands for x and residual; x is kept only for the gradient of row_scale.
_SAVES = {
    "dtype": lambda x: x.dtype,
    "x": lambda x, row_scale: x if row_scale is not None and row_scale.requires_grad else None,
}


def _derivative(norm: Norm) -> Callable[..., Gradients]:
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
        run = getattr(torch.ops.warpsmith, norm.backward_name)
        affine = (weight, bias) if norm.layer else (weight,)
        numbers = (p, seed, offset, eps, zero_centered)
        dh, dx, *of_affine = run(grad_y, grad_h, h, *affine, row_scale, *numbers)
        of_scale = None
        if x is not None and row_scale is not None:
            # The gradient of what dropout leaves of x, unrounded. The operator itself is asked: the
            # generator written out in PyTorch is an expression that a compiler would expand.
            wide = references.widest(grad_y, h)
            wider = [t if t is None else t.to(wide) for t in (grad_y, grad_h, h, *affine)]
            _, of_x, *_ = run(*wider, None, *numbers)
            of_scale = (of_x * x).sum(-1).to(row_scale.dtype)
        named = dict(zip(norm.affine, of_affine, strict=True))
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
        row_scale: Tensor,
        p: float,
        seed: int,
        offset: int,
        eps: float,
        bias: Tensor | None = None,
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

    def run(
        grad: Tensor,
        grad_h: Tensor,
        h: Tensor,
        weight: Tensor,
        row_scale: Tensor,
        p: float,
        seed: int,
        offset: int,
        eps: float,
        bias: Tensor | None = None,
    ) -> Any:
        x, kept = known(h, p, seed, offset)
        found = graph((grad, grad_h), h, x, weight, bias, (row_scale, kept), p, eps)
        return found if bias is not None else found[:3]

    return run


def _compiled_backward() -> Callable[..., Any]:
    return _backward_by(torch.compile(_written, dynamic=False))


# --- the operators --------------------------------------------------------------------------------


def _forward(norm: Norm, *properties: Property) -> Op:
    return forward(
        norm,
        source="dropout_add_norm",
        ladder=ladders.residual(norm.layer),
        backward=_derivative(norm),
        from_output=True,
        saves=_SAVES,
        samples=cases.samples(norm),
        errors=cases.errors(norm),
        properties=(Property("drops what philox says", cases.drops_what_philox_says), *properties),
        bench=cases.bench(norm),
        peers={"compile": _compiled},
        eager=_by(_written),
    )


_rms_op = _forward(
    _RMS, Property("without dropout a residual norm", cases.without_dropout_a_residual_norm)
)
_layer_op = _forward(_LAYER)
_dropout_add_rms_norm = dispatch.public(_rms_op)
_dropout_add_layer_norm = dispatch.public(_layer_op)
_dropout_add_rms_norm_into = into.register(_rms_op)
_dropout_add_layer_norm_into = into.register(_layer_op)

for _norm in (_RMS, _LAYER):
    backward(
        _norm,
        samples=cases.backward_samples(_norm),
        errors=cases.backward_errors(_norm),
        properties=(Property("repeatable", cases.repeatable(_norm)),),
        bench=cases.bench_backward(_norm),
        peers={"compile": _compiled_backward},
        eager=_backward_by(_written),
    )


def _drawn(
    x: Tensor, p: float, seed: int | None, offset: int | None
) -> tuple[Tensor, float, int, int]:
    """x, p, seed and offset of a call; x with what PyTorch's dropout has left of it where a fresh
    seed would be the same for ever.
    """
    drawn = philox.drawn(seed, offset, p)
    if drawn is None:
        return torch.nn.functional.dropout(x, p), 0.0, 0, 0
    return x, p, *drawn


def dropout_add_rms_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None = None,
    row_scale: Tensor | None = None,
    p: float = 0.0,
    seed: int | None = None,
    offset: int | None = None,
    eps: float | None = RMS_EPS,
    zero_centered: bool = False,
    *,
    bias: Tensor | None = None,
    rounding: str = "once",
    out: tuple[Tensor, Tensor] | None = None,
    variant: str | None = None,
) -> tuple[Tensor, Tensor]:
    """What ends a branch of a transformer and begins the next: ``h = dropout(x) * row_scale +
    residual``, rounded once, and ``y = h / sqrt(mean(h^2) + eps) * weight``.

    What is kept is divided by 1 - p. Which elements are dropped depends on seed and offset, and on
    nothing else: the same on every device and in every kernel, and the backward pass computes it
    again instead of keeping a mask (`warpsmith.philox.keep_mask`). For another mask in the next
    step, count offset up, or leave the seed out. Squares are summed in f32 only. Differentiable in
    x, residual, weight and row_scale, through both results.

    Args:
        x: [..., n], f32, f16 or bf16 (f64 and fp8 without a kernel of their own), any strides.
        residual: like x, in the dtype of x or f32; None for zeros. Of another dtype than these it
            is read, and h handed out, in f32, as are the parameters.
        weight: [n], in the dtype of x or f32; None for ones.
        row_scale: [...], f32: a factor for each row of x, 0 or 1 / (1 - rate) in stochastic depth;
            None for ones.
        p: the probability of dropping an element of x; 0 drops nothing.
        seed: of the generator; any 64-bit number. Without it and `offset` one is drawn, as in
            `dropout`.
        offset: which of the independent streams of that seed; any 64-bit number.
        eps: added to the mean before the root; None as in `rms_norm`.
        zero_centered: the weight is stored as its distance from one, so 1 + weight is multiplied.
        bias: [n], added to y by PyTorch's kernels, after it was rounded.
        rounding: "once" or "before_weight", as in `add_rms_norm`.
        out: tensors for y and h, best contiguous, of their shapes and dtypes, which get the results
            and are returned. Not differentiable, and with no variant.
        variant: one rung by name instead of the best one, "bf16x8_pack_f32".

    Returns:
        y in the dtype of x and h in that of residual, both contiguous, in the shape of x.

    Raises:
        RuntimeError: x is not floating-point or 0-d; residual, weight or row_scale has another
            shape, dtype or device; p is no probability; the variant cannot take the input.
        ValueError: the variant or the rounding does not exist; the variant comes with out.

    Reference:
        Huang et al. 2016, Deep Networks with Stochastic Depth, https://arxiv.org/abs/1603.09382
    """
    if eps is None:
        eps = arguments.eps_of(x)
    if bias is not None or rounding != "once":
        return arguments.residual_parameters(
            "dropout_add_rms_norm",
            lambda w: dropout_add_rms_norm(
                x, residual, w, row_scale, p, seed, offset, eps, zero_centered, out=out,
                variant=variant,
            ),
            weight,
            bias,
            rounding,
            zero_centered,
            out,
        )  # fmt: skip
    if not arguments.taken(x, residual, weight):
        (residual,), (weight,) = (arguments.fitting(x, a) for a in (residual, weight))
    if rules := sharded.of(x):
        y, h = rules.dropped(
            _RMS.name,
            lambda **given: dropout_add_rms_norm(
                **given, p=p, eps=eps, zero_centered=zero_centered, out=out, variant=variant
            ),
            {"x": x, "residual": residual, "weight": weight, "row_scale": row_scale},
            p,
            seed,
            offset,
        )
        return y, h
    x, p, drawn, at = _drawn(x, p, seed, offset)
    given = (x, residual, weight, row_scale, p, drawn, at, eps, zero_centered)
    if out is not None:
        y, h = _dropout_add_rms_norm_into(out, variant, *given)
        return y, h
    return _dropout_add_rms_norm(variant, *given)


def dropout_add_layer_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    row_scale: Tensor | None = None,
    p: float = 0.0,
    seed: int | None = None,
    offset: int | None = None,
    eps: float = LAYER_EPS,
    zero_centered: bool = False,
    *,
    out: tuple[Tensor, Tensor] | None = None,
    variant: str | None = None,
) -> tuple[Tensor, Tensor]:
    """What ends a branch of a transformer and begins the next: ``h = dropout(x) * row_scale +
    residual``, rounded once, and ``y = (h - mean(h)) / sqrt(var(h) + eps) * weight + bias``.

    Dropout and row_scale as in `dropout_add_rms_norm`. Sums are held in f32 only. Differentiable in
    x, residual, weight, bias and row_scale, through both results.

    Args:
        x: [..., n], f32, f16 or bf16 (f64 and fp8 without a kernel of their own), any strides.
        residual: like x, in the dtype of x or f32; None for zeros. Of another dtype than these it
            is read, and h handed out, in f32, as are the parameters.
        weight: [n], in the dtype of x or f32; None for ones.
        bias: [n], in the dtype of weight, or of x or f32 without one; None for zeros.
        row_scale: [...], f32: a factor for each row of x, 0 or 1 / (1 - rate) in stochastic depth;
            None for ones.
        p: the probability of dropping an element of x; 0 drops nothing.
        seed: of the generator; any 64-bit number. Without it and `offset` one is drawn, as in
            `dropout`.
        offset: which of the independent streams of that seed; any 64-bit number.
        eps: added to the variance, which divides by n, before the root.
        zero_centered: the weight is stored as its distance from one, so 1 + weight is multiplied.
        out: tensors for y and h, best contiguous, of their shapes and dtypes, which get the results
            and are returned. Not differentiable, and with no variant.
        variant: one rung by name instead of the best one, "bf16x8_pack_f32".

    Returns:
        y in the dtype of x and h in that of residual, both contiguous, in the shape of x.

    Raises:
        RuntimeError: x is not floating-point or 0-d; residual, weight, bias or row_scale has
            another shape, dtype or device; p is no probability; the variant cannot take the input.
        ValueError: the variant does not exist, or comes with out.

    Reference:
        Huang et al. 2016, Deep Networks with Stochastic Depth, https://arxiv.org/abs/1603.09382
    """
    if not (arguments.taken(x, residual, weight, bias) and arguments.alike(weight, bias)):
        (residual,) = arguments.fitting(x, residual)
        weight, bias = arguments.fitting(x, weight, bias)
    if rules := sharded.of(x):
        affine = {"weight": weight, "bias": bias}
        y, h = rules.dropped(
            _LAYER.name,
            lambda **given: dropout_add_layer_norm(
                **given, p=p, eps=eps, zero_centered=zero_centered, out=out, variant=variant
            ),
            {"x": x, "residual": residual, **affine, "row_scale": row_scale},
            p,
            seed,
            offset,
        )
        return y, h
    x, p, drawn, at = _drawn(x, p, seed, offset)
    given = (x, residual, weight, bias, row_scale, p, drawn, at, eps, zero_centered)
    if out is not None:
        y, h = _dropout_add_layer_norm_into(out, variant, *given)
        return y, h
    return _dropout_add_layer_norm(variant, *given)
