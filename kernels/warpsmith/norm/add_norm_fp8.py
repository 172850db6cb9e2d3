"""RMS norm and layer norm into fp8 with a static scale, alone or after a residual addition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import dispatch, into
from warpsmith.core.catalogue import Property
from warpsmith.norm import add_norm_fp8_cases as cases
from warpsmith.norm import ladders
from warpsmith.norm.norms import LAYER_EPS, RMS_EPS, Norm, forward


def _operator(added: bool, layer: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The call behind the public function, and that behind its `out`."""
    norm = Norm(layer, "add" if added else "", "fp8")
    op = forward(
        norm,
        source="add_norm_fp8",
        ladder=ladders.residual(layer, alone=True),
        elementwise=True,
        samples=cases.samples(norm),
        errors=cases.errors(norm),
        properties=() if added else (Property("saturates", cases.saturates(norm)),),
        bench=cases.bench(norm),
    )
    return dispatch.public(op), into.register(op)


_rms_norm_fp8, _rms_norm_fp8_into = _operator(added=False, layer=False)
_add_rms_norm_fp8, _add_rms_norm_fp8_into = _operator(added=True, layer=False)
_layer_norm_fp8, _layer_norm_fp8_into = _operator(added=False, layer=True)
_add_layer_norm_fp8, _add_layer_norm_fp8_into = _operator(added=True, layer=True)


def _as_tensor(scale: float | Tensor | None, x: Tensor) -> Tensor | None:
    if scale is None or isinstance(scale, Tensor):
        return scale
    return torch.full((), scale, dtype=torch.float32, device=x.device)


def rms_norm_fp8(
    x: Tensor,
    weight: Tensor | None = None,
    scale: float | Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
    eps: float = RMS_EPS,
    zero_centered: bool = False,
    *,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """RMS norm, quantised in the same pass: ``saturate(x / sqrt(mean(x^2) + eps) * weight *
    scale)``.

    Squares are summed in f32 only, and y is rounded once, to nearest even. What lies beyond the
    largest finite value, infinities included, becomes that value; NaN stays NaN. Not
    differentiable.

    Args:
        x: [..., n], f32, f16 or bf16 (f64 and fp8 without a kernel of their own), any strides.
        weight: [n], in the dtype of x or f32; None for ones.
        scale: one f32 value on the device of x, None for 1. A number works too, at the price of a
            small kernel that makes it a tensor. What dequantises is its reciprocal.
        dtype: torch.float8_e4m3fn or torch.float8_e5m2.
        eps: added to the mean before the root.
        zero_centered: the weight is stored as its distance from one, so 1 + weight is multiplied.
        out: a tensor of the shape of x in dtype, best contiguous, for the result, which is
            returned. With no variant.
        variant: one rung by name instead of the best one, "bf16x8_pack_f32".

    Returns:
        A contiguous tensor of the shape of x in dtype.

    Raises:
        RuntimeError: x is not floating-point or 0-d; weight has another shape, dtype or device;
            scale is not one f32 value; dtype is not fp8; the variant cannot take the input.
        ValueError: the variant does not exist, or comes with out.

    Reference:
        Micikevicius et al. 2022, FP8 Formats for Deep Learning, https://arxiv.org/abs/2209.05433
    """
    given = (x, weight, _as_tensor(scale, x), dtype, eps, zero_centered)
    if out is not None:
        return _rms_norm_fp8_into(out, variant, *given)  # type: ignore[no-any-return]
    return _rms_norm_fp8(variant, *given)


def add_rms_norm_fp8(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    scale: float | Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
    eps: float = RMS_EPS,
    zero_centered: bool = False,
    *,
    out: tuple[Tensor, Tensor] | None = None,
    variant: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Residual addition, RMS norm and quantisation in one pass: ``h = x + residual`` and
    ``y = saturate(h / sqrt(mean(h^2) + eps) * weight * scale)``.

    The norm reads h as it is handed out, rounded to its dtype; sums are held in f32 only, and y is
    rounded once, as `rms_norm_fp8` has it. Not differentiable.

    Args:
        x: [..., n], f32, f16 or bf16 (f64 and fp8 without a kernel of their own), any strides.
        residual: like x, in the dtype of x or f32.
        weight: [n], in the dtype of x or f32; None for ones.
        scale: one f32 value on the device of x, None for 1. A number works too, at the price of a
            small kernel that makes it a tensor. What dequantises is its reciprocal.
        dtype: of y, torch.float8_e4m3fn or torch.float8_e5m2.
        eps: added to the mean before the root.
        zero_centered: the weight is stored as its distance from one, so 1 + weight is multiplied.
        out: tensors for y and h, best contiguous, of their shapes and dtypes, which get the results
            and are returned. With no variant.
        variant: one rung by name instead of the best one, "bf16x8_pack_f32".

    Returns:
        y in dtype and h in the dtype of residual, both contiguous, in the shape of x.

    Raises:
        RuntimeError: x is not floating-point or 0-d; residual or weight has another shape, dtype or
            device; scale is not one f32 value; dtype is not fp8; the variant cannot take the input.
        ValueError: the variant does not exist, or comes with out.

    Reference:
        Micikevicius et al. 2022, FP8 Formats for Deep Learning, https://arxiv.org/abs/2209.05433
    """
    given = (x, residual, weight, _as_tensor(scale, x), dtype, eps, zero_centered)
    if out is not None:
        y, h = _add_rms_norm_fp8_into(out, variant, *given)
        return y, h
    return _add_rms_norm_fp8(variant, *given)


def layer_norm_fp8(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
    eps: float = LAYER_EPS,
    zero_centered: bool = False,
    *,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """Layer norm, quantised in the same pass: ``saturate(((x - mean(x)) / sqrt(var(x) + eps) *
    weight + bias) * scale)``.

    Sums are held in f32 only, and y is rounded once, as `rms_norm_fp8` has it. Not differentiable.

    Args:
        x: [..., n], f32, f16 or bf16 (f64 and fp8 without a kernel of their own), any strides.
        weight: [n], in the dtype of x or f32; None for ones.
        bias: [n], in the dtype of weight, or of x or f32 without one; None for zeros.
        scale: one f32 value on the device of x, None for 1. A number works too, at the price of a
            small kernel that makes it a tensor. What dequantises is its reciprocal.
        dtype: torch.float8_e4m3fn or torch.float8_e5m2.
        eps: added to the variance, which divides by n, before the root.
        zero_centered: the weight is stored as its distance from one, so 1 + weight is multiplied.
        out: a tensor of the shape of x in dtype, best contiguous, for the result, which is
            returned. With no variant.
        variant: one rung by name instead of the best one, "bf16x8_pack_f32".

    Returns:
        A contiguous tensor of the shape of x in dtype.

    Raises:
        RuntimeError: x is not floating-point or 0-d; weight or bias has another shape, dtype or
            device; scale is not one f32 value; dtype is not fp8; the variant cannot take the input.
        ValueError: the variant does not exist, or comes with out.

    Reference:
        Micikevicius et al. 2022, FP8 Formats for Deep Learning, https://arxiv.org/abs/2209.05433
    """
    given = (x, weight, bias, _as_tensor(scale, x), dtype, eps, zero_centered)
    if out is not None:
        return _layer_norm_fp8_into(out, variant, *given)  # type: ignore[no-any-return]
    return _layer_norm_fp8(variant, *given)


def add_layer_norm_fp8(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
    eps: float = LAYER_EPS,
    zero_centered: bool = False,
    *,
    out: tuple[Tensor, Tensor] | None = None,
    variant: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Residual addition, layer norm and quantisation in one pass: ``h = x + residual`` and
    ``y = saturate(((h - mean(h)) / sqrt(var(h) + eps) * weight + bias) * scale)``.

    The norm reads h as it is handed out, rounded to its dtype; sums are held in f32 only, and y is
    rounded once, as `rms_norm_fp8` has it. Not differentiable.

    Args:
        x: [..., n], f32, f16 or bf16 (f64 and fp8 without a kernel of their own), any strides.
        residual: like x, in the dtype of x or f32.
        weight: [n], in the dtype of x or f32; None for ones.
        bias: [n], in the dtype of weight, or of x or f32 without one; None for zeros.
        scale: one f32 value on the device of x, None for 1. A number works too, at the price of a
            small kernel that makes it a tensor. What dequantises is its reciprocal.
        dtype: of y, torch.float8_e4m3fn or torch.float8_e5m2.
        eps: added to the variance, which divides by n, before the root.
        zero_centered: the weight is stored as its distance from one, so 1 + weight is multiplied.
        out: tensors for y and h, best contiguous, of their shapes and dtypes, which get the results
            and are returned. With no variant.
        variant: one rung by name instead of the best one, "bf16x8_pack_f32".

    Returns:
        y in dtype and h in the dtype of residual, both contiguous, in the shape of x.

    Raises:
        RuntimeError: x is not floating-point or 0-d; residual, weight or bias has another shape,
            dtype or device; scale is not one f32 value; dtype is not fp8; the variant cannot take
            the input.
        ValueError: the variant does not exist, or comes with out.

    Reference:
        Micikevicius et al. 2022, FP8 Formats for Deep Learning, https://arxiv.org/abs/2209.05433
    """
    given = (x, residual, weight, bias, _as_tensor(scale, x), dtype, eps, zero_centered)
    if out is not None:
        y, h = _add_layer_norm_fp8_into(out, variant, *given)
        return y, h
    return _add_layer_norm_fp8(variant, *given)
