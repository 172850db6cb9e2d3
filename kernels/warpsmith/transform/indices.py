"""Checks of indices; mirrors csrc/transform/index_operands.h."""

from __future__ import annotations

import torch
from torch import Tensor

from warpsmith.spec.checks import check_device, shape_text


def check_dtype(op: str, name: str, index: Tensor, x: Tensor, like: str) -> None:
    check_device(op, name, index, x, like)
    if index.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(
            f"{op}: expected {name} to have dtype torch.int64 or torch.int32, got {index.dtype}"
        )


def check(op: str, index: Tensor, x: Tensor, like: str = "x") -> None:
    check_dtype(op, "index", index, x, like)
    if index.dim() != 1:
        raise RuntimeError(
            f"{op}: expected index to have 1 dimension, got shape {shape_text(index)}"
        )


def require_dimension(op: str, x: Tensor) -> None:
    if x.dim() == 0:
        raise RuntimeError(f"{op}: expected at least 1 dimension in x, got shape ()")


def inside(op: str, index: Tensor, rows: int, least: int | None = 0) -> Tensor:
    """The indices as int64, all of them in [least, rows): those of a reference. `least`: None where
    anything below 0 has a meaning.

    Raises:
        IndexError: for one that is outside.
    """
    if index.numel():
        low, high = (int(x) for x in index.aminmax())
        below = least is not None and low < least
        if below or high >= rows:
            wanted = f"indices below {rows}" if least is None else "no index, as there are no rows"
            if rows and least is not None:
                wanted = f"indices in [{least}, {rows - 1}]"
            raise IndexError(f"{op}: expected {wanted}, got {low if below else high}")
    return index.long()
