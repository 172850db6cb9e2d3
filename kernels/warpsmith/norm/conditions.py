"""What the rungs of the row-wise normalisations ask of a call; mirrors csrc/norm and csrc/row."""

from __future__ import annotations

from torch import Tensor

from warpsmith.catalogue import DTYPE_NAMES, PACK
from warpsmith.rows import tiles_rows, tiles_weight

#: What one dimension of a CUDA grid can count.
MOST_ROWS = (1 << 31) - 1
#: The longest row that a block holds in its registers, and the longest that a cluster streams.
HELD_BYTES = 128 << 10
CLUSTER_BYTES = 1 << 20


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
    if row_count(x) > MOST_ROWS:
        return "needs at most 2^31 - 1 rows"
    return None if row_bytes(x) <= HELD_BYTES else "needs rows of at most 128 KiB"


def needs_cluster(x: Tensor) -> str | None:
    """Of rows that packs tile."""
    if row_count(x) > MOST_ROWS:
        return "needs at most 2^31 - 1 rows"
    return None if row_bytes(x) <= CLUSTER_BYTES else "needs rows of at most 1 MiB"


def suits_cluster(x: Tensor) -> str | None:
    return None if row_bytes(x) > HELD_BYTES else "the row fits a block's registers"


def needs_columns(x: Tensor, most: int) -> str | None:
    fits = x.numel() == 0 or x.shape[-1] <= most
    return None if fits else f"needs at most {most} columns"


def suits_cluster_backward(x: Tensor) -> str | None:
    return None if x.shape[-1] > 8192 else "the row fits a block's registers"
