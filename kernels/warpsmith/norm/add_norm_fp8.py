"""RMS norm into fp8 with a static scale, alone or after a residual addition."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from warpsmith import catalogue, dispatch
from warpsmith.catalogue import Cost, Op, Property, is_fp8
from warpsmith.norm import add_norm_fp8_cases as cases
from warpsmith.norm.add_norm_ladder import ladder
from warpsmith.norm.add_norm_reference import add, norm, widest
from warpsmith.norm.checks import check_residual, check_rows, check_weight, shape_text

EPS = cases.EPS

# --- checks ---------------------------------------------------------------------------------------


def _check(
    op: str,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    scale: Tensor | None,
    dtype: torch.dtype,
) -> None:
    check_rows(op, x)
    check_residual(op, residual, x)
    check_weight(op, weight, x)
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


def _check_alone(
    x: Tensor, weight: Tensor | None, scale: Tensor | None, dtype: torch.dtype, *rest: Any
) -> None:
    _check("rms_norm_fp8", x, None, weight, scale, dtype)


def _check_added(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    scale: Tensor | None,
    dtype: torch.dtype,
    *rest: Any,
) -> None:
    _check("add_rms_norm_fp8", x, residual, weight, scale, dtype)


# --- references -----------------------------------------------------------------------------------


def _quantised(
    h: Tensor,
    weight: Tensor | None,
    scale: Tensor | None,
    dtype: torch.dtype,
    eps: float,
    zero_centered: bool,
) -> Tensor:
    y = norm(h, weight, None, eps, zero_centered, layer=False, dtype=widest(h))
    if scale is not None:
        y = y * scale.reshape(())
    limit = torch.finfo(dtype).max
    return y.clamp(-limit, limit).to(dtype)


def _reference_alone(
    x: Tensor,
    weight: Tensor | None,
    scale: Tensor | None,
    dtype: torch.dtype,
    eps: float,
    zero_centered: bool,
) -> Tensor:
    return _quantised(x, weight, scale, dtype, eps, zero_centered)


def _reference_added(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    scale: Tensor | None,
    dtype: torch.dtype,
    eps: float,
    zero_centered: bool,
) -> tuple[Tensor, Tensor]:
    h = add(x, residual)
    return _quantised(h, weight, scale, dtype, eps, zero_centered), h


def _fake_alone(
    x: Tensor, weight: Tensor | None, scale: Tensor | None, dtype: torch.dtype, *rest: Any
) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


def _fake_added(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    scale: Tensor | None,
    dtype: torch.dtype,
    *rest: Any,
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape, dtype=dtype), residual.new_empty(x.shape)


# --- the operators --------------------------------------------------------------------------------


def _size(*tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))


def _alone_operands(x: Any, weight: Any, *rest: Any) -> tuple[Any, ...]:
    return x, None, weight, None


def _added_operands(x: Any, residual: Any, weight: Any, *rest: Any) -> tuple[Any, ...]:
    return x, residual, weight, None


rms_norm_fp8_op = catalogue.add(
    Op(
        "rms_norm_fp8(Tensor x, Tensor? weight, Tensor? scale, ScalarType dtype, float eps=1e-6, "
        "bool zero_centered=False) -> Tensor",
        family="norm",
        source="add_norm_fp8",
        reference=_reference_alone,
        ladder=ladder(_alone_operands, "two sweeps"),
        triton="add_norm_triton:rms_norm_fp8",
        fake=_fake_alone,
        check=_check_alone,
        accumulates=True,
        elementwise=True,
        samples=cases.samples(added=False),
        errors=cases.errors(added=False),
        properties=(Property("saturates", cases.saturates),),
        cost=Cost(
            bytes=lambda x, weight, *rest: _size(x, weight) + x.numel(),
            flops=lambda x, *rest: 6 * x.numel(),
        ),
        bench=cases.bench(added=False),
    )
)

add_rms_norm_fp8_op = catalogue.add(
    Op(
        "add_rms_norm_fp8(Tensor x, Tensor residual, Tensor? weight, Tensor? scale, "
        "ScalarType dtype, float eps=1e-6, bool zero_centered=False) -> (Tensor, Tensor)",
        family="norm",
        source="add_norm_fp8",
        reference=_reference_added,
        ladder=ladder(_added_operands, "two sweeps"),
        triton="add_norm_triton:add_rms_norm_fp8",
        fake=_fake_added,
        check=_check_added,
        accumulates=True,
        elementwise=True,
        samples=cases.samples(added=True),
        errors=cases.errors(added=True),
        cost=Cost(
            bytes=lambda x, residual, weight, *rest: (
                _size(x, residual, weight) + _size(residual) + x.numel()
            ),
            flops=lambda x, *rest: 7 * x.numel(),
        ),
        bench=cases.bench(added=True),
    )
)

dispatch.register(rms_norm_fp8_op)
dispatch.register(add_rms_norm_fp8_op)
_rms_norm_fp8 = dispatch.public(rms_norm_fp8_op)
_add_rms_norm_fp8 = dispatch.public(add_rms_norm_fp8_op)


def _as_tensor(scale: float | Tensor | None, x: Tensor) -> Tensor | None:
    if scale is None or isinstance(scale, Tensor):
        return scale
    return torch.full((), scale, dtype=torch.float32, device=x.device)


def rms_norm_fp8(
    x: Tensor,
    weight: Tensor | None = None,
    scale: float | Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
    eps: float = EPS,
    zero_centered: bool = False,
    *,
    variant: str | None = None,
) -> Tensor:
    """RMS norm, quantised in the same pass: ``saturate(x / sqrt(mean(x^2) + eps) * weight *
    scale)``.

    Rounded once, from f32 to nearest even. What lies beyond the largest finite value, infinities
    included, becomes that value; NaN stays NaN. Not differentiable.

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
    eps: float = EPS,
    zero_centered: bool = False,
    *,
    variant: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Residual addition, RMS norm and quantisation in one pass: ``h = x + residual`` and
    ``y = saturate(h / sqrt(mean(h^2) + eps) * weight * scale)``.

    The norm reads h as it is handed out, rounded to its dtype; y is rounded once, as
    `rms_norm_fp8` has it. Not differentiable.

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
