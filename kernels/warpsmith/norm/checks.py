"""The checks that the row-wise normalisations share; they speak like those of the bindings."""

from __future__ import annotations

import torch
from torch import Tensor

from warpsmith.core.catalogue import is_fp8
from warpsmith.spec.checks import check_device, shape_text, wide_dtype


def check_weight(
    op: str, weight: Tensor | None, x: Tensor, name: str = "weight", like: str = "x"
) -> None:
    """One value per column, in the dtype of `x` or in f32."""
    if weight is None:
        return
    check_device(op, name, weight, x, like)
    n = x.shape[-1]
    if weight.dim() != 1 or weight.shape[0] != n:
        raise RuntimeError(
            f"{op}: expected {name} to have shape ({n},), the last dimension of {like}, "
            f"got {shape_text(weight)}"
        )
    if weight.dtype not in (x.dtype, torch.float32):
        wide = "" if x.dtype == torch.float32 else " or torch.float32"
        raise RuntimeError(
            f"{op}: expected {name} to have dtype {x.dtype}{wide}, got {weight.dtype}"
        )


def check_zero_centered(op: str, memory_efficient: bool, variant: str | None) -> None:
    """What a weight around zero does not go with."""
    if memory_efficient:
        raise ValueError(
            f"{op}: expected memory_efficient to be False where zero_centered is True, got True"
        )
    if variant is not None:
        raise ValueError(
            f"{op}: expected variant to be None where zero_centered is True, got '{variant}'; "
            f"the variants of add_{op} take zero-centred weights"
        )


def check_parameters(
    op: str, weight: Tensor | None, bias: Tensor | None, x: Tensor, like: str = "x"
) -> None:
    """As a weight each, and both of one dtype."""
    check_weight(op, weight, x, "weight", like)
    check_weight(op, bias, x, "bias", like)
    if weight is not None and bias is not None and bias.dtype != weight.dtype:
        raise RuntimeError(
            f"{op}: expected bias to have dtype {weight.dtype} like weight, got {bias.dtype}"
        )


def check_rstd(op: str, rstd: Tensor, x: Tensor, like: str = "x") -> None:
    """One value per row of `x`, in f32 or wider."""
    check_device(op, "rstd", rstd, x, like)
    wide = wide_dtype(x.dtype)
    if rstd.dtype != wide:
        raise RuntimeError(f"{op}: expected rstd to have dtype {wide}, got {rstd.dtype}")
    if rstd.shape != x.shape[:-1]:
        raise RuntimeError(
            f"{op}: expected rstd to have shape {tuple(x.shape[:-1])}, that of the rows of {like}, "
            f"got {shape_text(rstd)}"
        )


def check_residual(op: str, residual: Tensor | None, x: Tensor) -> None:
    """Device and shape of `x`; its dtype, or f32."""
    if residual is None:
        return
    _check_placed_like(op, "residual", residual, "x", x)
    _check_wide_dtype(op, "residual", residual, x)


def _check_wide_dtype(op: str, name: str, tensor: Tensor, x: Tensor) -> None:
    if tensor.dtype not in (x.dtype, torch.float32):
        wide = "" if x.dtype == torch.float32 else " or torch.float32"
        raise RuntimeError(
            f"{op}: expected {name} to have dtype {x.dtype}{wide}, got {tensor.dtype}"
        )


def check_row_scale(op: str, row_scale: Tensor | None, x: Tensor) -> None:
    """One f32 value per row."""
    if row_scale is None:
        return
    check_device(op, "row_scale", row_scale, x)
    if row_scale.shape != x.shape[:-1]:
        raise RuntimeError(
            f"{op}: expected row_scale to have shape {tuple(x.shape[:-1])}, that of x without its "
            f"last dimension, got {shape_text(row_scale)}"
        )
    both_double = x.dtype == row_scale.dtype == torch.float64
    if not (row_scale.dtype == torch.float32 or both_double):
        raise RuntimeError(
            f"{op}: expected row_scale to have dtype torch.float32, got {row_scale.dtype}"
        )


def check_residual_gradients(op: str, grad: Tensor, grad_h: Tensor | None, h: Tensor) -> None:
    """`grad` as x would be, `h` as a residual of it, `grad_h` like `h`."""
    if not grad.is_floating_point():
        raise RuntimeError(f"{op}: expected grad to be a floating-point tensor, got {grad.dtype}")
    if grad.dim() == 0:
        raise RuntimeError(f"{op}: expected at least 1 dimension in grad, got shape ()")
    _check_placed_like(op, "h", h, "grad", grad)
    _check_wide_dtype(op, "h", h, grad)
    if grad_h is None:
        return
    _check_placed_like(op, "grad_h", grad_h, "h", h)
    if grad_h.dtype != h.dtype:
        raise RuntimeError(
            f"{op}: expected grad_h to have dtype {h.dtype} like h, got {grad_h.dtype}"
        )


def _check_placed_like(op: str, name: str, tensor: Tensor, other: str, like: Tensor) -> None:
    check_device(op, name, tensor, like, other)
    if tensor.shape != like.shape:
        raise RuntimeError(
            f"{op}: expected {name} to have shape {shape_text(like)} like {other}, "
            f"got {shape_text(tensor)}"
        )


def check_fp8(op: str, scale: Tensor | None, dtype: torch.dtype, x: Tensor) -> None:
    """One f32 value, and a dtype to quantise to."""
    if scale is not None:
        check_device(op, "scale", scale, x)
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
