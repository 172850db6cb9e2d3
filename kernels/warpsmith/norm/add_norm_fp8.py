"""RMS norm and layer norm into fp8 with a static scale, alone or after a residual addition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import Cost, Op, Property, is_fp8
from warpsmith.norm import add_norm_fp8_cases as cases
from warpsmith.norm.add_norm_ladder import ladder
from warpsmith.norm.add_norm_reference import add, norm, widest
from warpsmith.norm.checks import check_parameters, check_residual
from warpsmith.spec.checks import check_rows, shape_text

RMS_EPS, LAYER_EPS = cases.RMS_EPS, cases.LAYER_EPS

# --- one signature for all four -------------------------------------------------------------------


def _on_full(of: cases.Norm, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of (x, residual, weight, bias, scale, dtype, ...), which gets None for what the
    operator has not, as one of the operator's own arguments.
    """

    def on_given(x: Tensor, *given: Any) -> Any:
        residual, weight, *rest = given if of.added else (None, *given)
        bias, *rest = rest if of.layer else (None, *rest)
        return function(x, residual, weight, bias, *rest)

    return on_given


# --- checks ---------------------------------------------------------------------------------------


def _check(op: str) -> Callable[..., None]:
    def check(
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        scale: Tensor | None,
        dtype: torch.dtype,
        *rest: Any,
    ) -> None:
        check_rows(op, x)
        check_residual(op, residual, x)
        check_parameters(op, weight, bias, x)
        if scale is not None:
            if scale.device != x.device:
                raise RuntimeError(
                    f"{op}: expected scale to be on {x.device} like x, got {scale.device}"
                )
            both_double = x.dtype == scale.dtype == torch.float64
            if scale.numel() != 1 or not (scale.dtype == torch.float32 or both_double):
                raise RuntimeError(
                    f"{op}: expected scale to be one torch.float32 value, "
                    f"got shape {shape_text(scale)} of {scale.dtype}"
                )
        if not is_fp8(dtype):
            raise RuntimeError(
                f"{op}: expected dtype to be torch.float8_e4m3fn or torch.float8_e5m2, got {dtype}"
            )

    return check


# --- references -----------------------------------------------------------------------------------


def _reference(layer: bool) -> Callable[..., Any]:
    def reference(
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        scale: Tensor | None,
        dtype: torch.dtype,
        eps: float,
        zero_centered: bool,
    ) -> Tensor | tuple[Tensor, Tensor]:
        h = add(x, residual)
        y = norm(h, weight, bias, eps, zero_centered, layer, dtype=widest(h))
        if scale is not None:
            y = y * scale.reshape(())
        limit = torch.finfo(dtype).max
        y = y.clamp(-limit, limit).to(dtype)
        return y if residual is None else (y, h)

    return reference


def _fake(
    x: Tensor, residual: Tensor | None, weight: Any, bias: Any, scale: Any, dtype: torch.dtype,
    *rest: Any,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    y = x.new_empty(x.shape, dtype=dtype)
    return y if residual is None else (y, residual.new_empty(x.shape))


# --- the operators --------------------------------------------------------------------------------


def _size(*tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))


def _bytes(x: Tensor, residual: Tensor | None, weight: Any, bias: Any, *rest: Any) -> int:
    return _size(x, residual, weight, bias) + _size(residual) + x.numel()


def _operands(x: Any, residual: Any, weight: Any, bias: Any, *rest: Any) -> tuple[Any, ...]:
    return x, residual, weight, bias


def _operator(added: bool, layer: bool) -> Op:
    of = cases.Norm(added, layer)
    residual, bias = "Tensor residual, " * added, "Tensor? bias, " * layer
    flops = 6 + added + 3 * layer
    return Op(
        f"{of.name}(Tensor x, {residual}Tensor? weight, {bias}Tensor? scale, ScalarType dtype, "
        f"float eps={'1e-5' if layer else '1e-6'}, bool zero_centered=False) "
        f"-> {'(Tensor, Tensor)' if added else 'Tensor'}",
        family="norm",
        source="add_norm_fp8",
        reference=_on_full(of, _reference(layer)),
        ladder=ladder(_on_full(of, _operands), f"{'three' if layer else 'two'} sweeps", True),
        triton=f"add_norm_triton:{of.name}",
        fake=_on_full(of, _fake),
        check=_on_full(of, _check(of.name)),
        accumulates=True,
        elementwise=True,
        samples=cases.samples(of),
        errors=cases.errors(of),
        properties=() if added else (Property("saturates", cases.saturates(of)),),
        cost=Cost(bytes=_on_full(of, _bytes), flops=lambda x, *rest: flops * x.numel()),
        bench=cases.bench(of),
    )


rms_norm_fp8_op = catalogue.add(_operator(added=False, layer=False))
add_rms_norm_fp8_op = catalogue.add(_operator(added=True, layer=False))
layer_norm_fp8_op = catalogue.add(_operator(added=False, layer=True))
add_layer_norm_fp8_op = catalogue.add(_operator(added=True, layer=True))

dispatch.register(rms_norm_fp8_op)
dispatch.register(add_rms_norm_fp8_op)
dispatch.register(layer_norm_fp8_op)
dispatch.register(add_layer_norm_fp8_op)
_rms_norm_fp8 = dispatch.public(rms_norm_fp8_op)
_add_rms_norm_fp8 = dispatch.public(add_rms_norm_fp8_op)
_layer_norm_fp8 = dispatch.public(layer_norm_fp8_op)
_add_layer_norm_fp8 = dispatch.public(add_layer_norm_fp8_op)


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
        variant: one rung by name instead of the best one, "bf16x8_pack_f32".

    Returns:
        A contiguous tensor of the shape of x in dtype.

    Raises:
        RuntimeError: x is not floating-point or 0-d; weight has another shape, dtype or device;
            scale is not one f32 value; dtype is not fp8; the variant cannot take the input.
        ValueError: the variant does not exist.

    Reference:
        Micikevicius et al. 2022, FP8 Formats for Deep Learning, https://arxiv.org/abs/2209.05433
    """
    return _rms_norm_fp8(variant, x, weight, _as_tensor(scale, x), dtype, eps, zero_centered)


def add_rms_norm_fp8(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    scale: float | Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
    eps: float = RMS_EPS,
    zero_centered: bool = False,
    *,
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
        variant: one rung by name instead of the best one, "bf16x8_pack_f32".

    Returns:
        y in dtype and h in the dtype of residual, both contiguous, in the shape of x.

    Raises:
        RuntimeError: x is not floating-point or 0-d; residual or weight has another shape, dtype or
            device; scale is not one f32 value; dtype is not fp8; the variant cannot take the input.
        ValueError: the variant does not exist.

    Reference:
        Micikevicius et al. 2022, FP8 Formats for Deep Learning, https://arxiv.org/abs/2209.05433
    """
    return _add_rms_norm_fp8(
        variant, x, residual, weight, _as_tensor(scale, x), dtype, eps, zero_centered
    )


def layer_norm_fp8(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
    eps: float = LAYER_EPS,
    zero_centered: bool = False,
    *,
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
        variant: one rung by name instead of the best one, "bf16x8_pack_f32".

    Returns:
        A contiguous tensor of the shape of x in dtype.

    Raises:
        RuntimeError: x is not floating-point or 0-d; weight or bias has another shape, dtype or
            device; scale is not one f32 value; dtype is not fp8; the variant cannot take the input.
        ValueError: the variant does not exist.

    Reference:
        Micikevicius et al. 2022, FP8 Formats for Deep Learning, https://arxiv.org/abs/2209.05433
    """
    scale = _as_tensor(scale, x)
    return _layer_norm_fp8(variant, x, weight, bias, scale, dtype, eps, zero_centered)


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
        variant: one rung by name instead of the best one, "bf16x8_pack_f32".

    Returns:
        y in dtype and h in the dtype of residual, both contiguous, in the shape of x.

    Raises:
        RuntimeError: x is not floating-point or 0-d; residual, weight or bias has another shape,
            dtype or device; scale is not one f32 value; dtype is not fp8; the variant cannot take
            the input.
        ValueError: the variant does not exist.

    Reference:
        Micikevicius et al. 2022, FP8 Formats for Deep Learning, https://arxiv.org/abs/2209.05433
    """
    scale = _as_tensor(scale, x)
    return _add_layer_norm_fp8(variant, x, residual, weight, bias, scale, dtype, eps, zero_centered)
