"""How operands lie in memory; mirrors csrc/host/memory.h."""

from __future__ import annotations

import torch
from torch import Tensor

from warpsmith.spec.layout import is_dense


def check_apart(op: str, name: str, x: Tensor) -> None:
    """Raises where elements that are written to share memory, or may: strides from the smallest on
    have to reach beyond all that those before them reach.
    """
    if x.numel() == 0:
        return
    reach = 0
    dims = sorted((s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n > 1)
    for stride, size in dims:
        if stride == 0:
            raise RuntimeError(
                f"{op}: expected {name} that are not expanded, as they are written to"
            )
        if stride <= reach:
            raise RuntimeError(
                f"{op}: expected {name} without elements that overlap, as they are written to"
            )
        reach += (size - 1) * stride


def has_unit_columns(x: Tensor) -> bool:
    return x.dim() == 0 or x.shape[-1] <= 1 or x.stride(-1) == 1


def empty_rows_like(x: Tensor) -> Tensor:
    """Uninitialised, with the strides of `x` where it is dense and its last dimension lies side by
    side, else contiguous.
    """
    if is_dense(x) and has_unit_columns(x):
        return x.new_empty_strided(x.shape, x.stride())
    return x.new_empty(x.shape)


def step(x: Tensor, dim: int) -> int:
    """From one to the next along a dimension; 0 where there is no next."""
    return x.stride(dim) if x.shape[dim] > 1 else 0


def as_kernels_get(x: Tensor) -> Tensor:
    """`x`, or in its place an empty one that lies as the copy would that a kernel gets."""
    return x if has_unit_columns(x) else torch.empty(x.shape, dtype=x.dtype, device="meta")
