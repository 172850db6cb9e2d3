"""Checks that families share; they speak like those of the bindings."""

from __future__ import annotations

import torch
from torch import Tensor


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """In which the statistics of a row are held: f32, or f64 for f64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def shape_text(x: Tensor) -> str:
    return str(tuple(x.shape))


def check_rows(op: str, x: Tensor, name: str = "x") -> None:
    if not x.is_floating_point():
        raise RuntimeError(f"{op}: expected {name} to be a floating-point tensor, got {x.dtype}")
    if x.dim() == 0:
        raise RuntimeError(f"{op}: expected at least 1 dimension in {name}, got shape ()")


def check_device(op: str, name: str, tensor: Tensor, x: Tensor, like: str = "x") -> None:
    """That of `x`, which messages call `like`."""
    if tensor.device != x.device:
        raise RuntimeError(
            f"{op}: expected {name} to be on {x.device} like {like}, got {tensor.device}"
        )


def check_like(op: str, name: str, tensor: Tensor, x: Tensor, like: str = "x") -> None:
    """Device, dtype and shape of `x`, which messages call `like`."""
    check_device(op, name, tensor, x, like)
    if tensor.dtype != x.dtype:
        raise RuntimeError(
            f"{op}: expected {name} to have dtype {x.dtype} like {like}, got {tensor.dtype}"
        )
    if tensor.shape != x.shape:
        raise RuntimeError(
            f"{op}: expected {name} to have shape {shape_text(x)} like {like}, "
            f"got {shape_text(tensor)}"
        )


def check_dim(op: str, x: Tensor, dim: int) -> int:
    """`dim` counted from the front; a tensor without dimensions passes for one of size 1.

    Raises:
        IndexError: for a dimension that `x` does not have, as in PyTorch.
    """
    rank = max(x.dim(), 1)
    if not -rank <= dim < rank:
        raise IndexError(f"{op}: expected dim to lie in [{-rank}, {rank - 1}], got {dim}")
    return dim % rank
