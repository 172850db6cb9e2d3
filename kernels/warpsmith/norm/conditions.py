"""What the rungs of the row-wise normalisations ask of a call; mirrors csrc/norm and csrc/row."""

from __future__ import annotations

from torch import Tensor

from warpsmith.core.catalogue import DTYPE_NAMES, PACK
from warpsmith.spec.rows import (
    needs_held,
    needs_streamed,
    suits_streamed,
    tiles_rows,
    tiles_weight,
)


def pack_of(x: Tensor) -> int:
    """Values of `x` in 128 bits."""
    return PACK[DTYPE_NAMES[x.dtype]]


def row_count(x: Tensor) -> int:
    return x.numel() // x.shape[-1] if x.numel() else 0


def row_bytes(x: Tensor) -> int:
    return x.shape[-1] * x.element_size() if x.numel() else 0


def tiled(width: int, rows: tuple[Tensor, ...], parameters: tuple[Tensor | None, ...]) -> bool:
    """Whether accesses of `width` values tile the rows, and the parameters of their columns."""
    if rows[0].numel() == 0:
        return True
    return all(tiles_rows(x, width) for x in rows) and all(
        tiles_weight(p, width) for p in parameters
    )


def needs_registers(x: Tensor) -> str | None:
    """Of rows that packs tile."""
    return needs_held(row_count(x), row_bytes(x))


def needs_cluster(x: Tensor) -> str | None:
    """Of rows that packs tile."""
    return needs_streamed(row_count(x), row_bytes(x))


def suits_cluster(x: Tensor) -> str | None:
    return suits_streamed(row_bytes(x))


def needs_columns(x: Tensor, most: int) -> str | None:
    fits = x.numel() == 0 or x.shape[-1] <= most
    return None if fits else f"needs at most {most} columns"


def suits_cluster_backward(x: Tensor) -> str | None:
    return None if x.shape[-1] > 8192 else "the row fits a block's registers"
