"""The checks that the row-wise normalisations share; they speak like those of the bindings."""

from __future__ import annotations

import torch
from torch import Tensor


def shape_text(x: Tensor) -> str:
    return str(tuple(x.shape))


def check_rows(op: str, x: Tensor) -> None:
    if not x.is_floating_point():
        raise RuntimeError(f"{op}: expected x to be a floating-point tensor, got {x.dtype}")
    if x.dim() == 0:
        raise RuntimeError(f"{op}: expected at least 1 dimension in x, got shape ()")


def check_like(op: str, name: str, tensor: Tensor, x: Tensor) -> None:
    """Device, dtype and shape of `x`."""
    if tensor.device != x.device:
        raise RuntimeError(f"{op}: expected {name} to be on {x.device} like x, got {tensor.device}")
    if tensor.dtype != x.dtype:
        raise RuntimeError(
            f"{op}: expected {name} to have dtype {x.dtype} like x, got {tensor.dtype}"
        )
    if tensor.shape != x.shape:
        raise RuntimeError(
            f"{op}: expected {name} to have shape {shape_text(x)} like x, got {shape_text(tensor)}"
        )


def check_weight(op: str, weight: Tensor | None, x: Tensor, name: str = "weight") -> None:
    """One value per column, in the dtype of `x` or in f32."""
    if weight is None:
        return
    if weight.device != x.device:
        raise RuntimeError(f"{op}: expected {name} to be on {x.device} like x, got {weight.device}")
    n = x.shape[-1]
    if weight.dim() != 1 or weight.shape[0] != n:
        raise RuntimeError(
            f"{op}: expected {name} to have shape ({n},), the last dimension of x, "
            f"got {shape_text(weight)}"
        )
    if weight.dtype not in (x.dtype, torch.float32):
        wide = "" if x.dtype == torch.float32 else " or torch.float32"
        raise RuntimeError(
            f"{op}: expected {name} to have dtype {x.dtype}{wide}, got {weight.dtype}"
        )
