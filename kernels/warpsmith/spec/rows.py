"""How a tensor lies in memory as rows; mirrors operands.h and rows.h in csrc/row."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

#: What one dimension of a CUDA grid can count.
MOST_ROWS = (1 << 31) - 1
#: The longest row that the registers of a block hold, and the longest two of one length.
HELD_BYTES, HELD_BYTES_2 = 128 << 10, 64 << 10
#: The longest row, or two of one length, that a cluster streams.
STREAMED_BYTES = 1 << 20


def needs_held(rows: int, row_bytes: int, inputs: int = 1) -> str | None:
    """Why the registers of a block do not hold rows of these bytes; `kMostRowBytes` in csrc/row."""
    if rows > MOST_ROWS:
        return "needs at most 2^31 - 1 rows"
    most = HELD_BYTES if inputs == 1 else HELD_BYTES_2
    return None if row_bytes <= most else f"needs rows of at most {most >> 10} KiB"


def needs_streamed(rows: int, row_bytes: int) -> str | None:
    """Why a cluster does not stream rows of these bytes; `kMostClusterBytes` in csrc/row."""
    if rows > MOST_ROWS:
        return "needs at most 2^31 - 1 rows"
    return None if row_bytes <= STREAMED_BYTES else "needs rows of at most 1 MiB"


def suits_streamed(row_bytes: int, inputs: int = 1) -> str | None:
    most = HELD_BYTES if inputs == 1 else HELD_BYTES_2
    return None if row_bytes > most else "the row fits a block's registers"


@dataclass(frozen=True)
class Rows:
    """A tensor as [rows, cols] with unit-stride columns."""

    rows: int
    cols: int
    #: Elements from one row to the next.
    stride: int
    #: The leading dimensions do not merge into one, or columns are strided: a kernel gets a copy.
    copied: bool


def as_rows(x: Tensor) -> Rows:
    """Merges the leading dimensions into one, where a single stride walks them.

    Args:
        x: at least one dimension.

    Returns:
        The rows of `x`, or those of the contiguous copy that a kernel would get.
    """
    cols = x.shape[-1]
    rows, stride = 1, cols
    merges = cols <= 1 or x.stride(-1) == 1
    for d in reversed(range(x.dim() - 1)):
        if x.shape[d] == 1:
            continue
        if rows == 1:
            stride = x.stride(d)
        else:
            merges = merges and x.stride(d) == stride * rows
        rows *= x.shape[d]
    return Rows(rows, cols, stride, False) if merges else Rows(rows, cols, cols, True)


def address(x: Tensor) -> int:
    """Where the data lies; 0, aligned to everything, for tensors without data."""
    try:
        return x.data_ptr()
    except RuntimeError:
        return 0


def tiles_rows(x: Tensor, width: int) -> bool:
    """Whether accesses of `width` values tile the rows of `x` exactly and aligned."""
    layout = as_rows(x)
    if layout.cols % width or (layout.rows > 1 and layout.stride % width):
        return False
    return layout.copied or address(x) % (width * x.element_size()) == 0


def tiles_weight(weight: Tensor | None, width: int) -> bool:
    """Whether a weight can be read `width` values at a time, at most 16 bytes in one access."""
    if weight is None or not weight.is_contiguous():  # the latter is copied
        return True
    return address(weight) % min(width * weight.element_size(), 16) == 0
