"""How a permutation of dimensions comes to turning matrices over; mirrors csrc/transform/transpose.

A batch of matrices: `rows` is the dimension along which the result is contiguous, `cols` the one
along which x is, or comes closest to it; all other dimensions are the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from warpsmith.spec.layout import address

#: Dimensions of the batch that kernels walk.
MOST_BATCH_DIMS = 6
MOST_TILES = (1 << 31) - 1
#: The least side of a tile, and that of a matrix for which tiles are worth it.
LEAST_TILE, SKINNY = 16, 8
#: What a tensor map can count: elements along a dimension, bytes from one line to the next.
MOST_EXTENT, MOST_PITCH = (1 << 31) - 1, 1 << 40


@dataclass(frozen=True)
class Dim:
    """How many, and how far apart in x and in the result."""

    size: int
    x: int
    y: int


@dataclass(frozen=True)
class Moved:
    rows: int
    cols: int
    x_row: int
    x_col: int
    y_col: int
    #: Innermost first.
    batch: tuple[Dim, ...]
    address: int
    itemsize: int

    @property
    def count(self) -> int:
        count = 1
        for dim in self.batch:
            count *= dim.size
        return count

    # --- what rungs ask, in the words of the kernels ---

    def needs_rank(self) -> str | None:
        if len(self.batch) <= MOST_BATCH_DIMS:
            return None
        return "needs at most 8 dimensions after merging"

    def needs_tiles(self) -> str | None:
        tiles = self.count * -(-self.rows // LEAST_TILE) * -(-self.cols // LEAST_TILE)
        return None if tiles <= MOST_TILES else "needs at most 2^31 - 1 tiles"

    def needs_turning(self) -> str | None:
        if self.x_col == 1 and self.x_row != 1:
            return None
        return "needs x to be contiguous along another dimension than its result"

    def _reads_whole(self, width: int) -> bool:
        return (
            self.x_col == 1
            and self.cols % width == 0
            and (self.rows == 1 or self.x_row % width == 0)
            and self.address % (width * self.itemsize) == 0
            and all(dim.x % width == 0 for dim in self.batch)
        )

    def _writes_whole(self, width: int) -> bool:
        return (
            self.rows % width == 0
            and (self.cols == 1 or self.y_col % width == 0)
            and all(dim.y % width == 0 for dim in self.batch)
        )

    def needs_read_x4(self) -> str | None:
        if self._reads_whole(4):
            return None
        return "needs rows of x that are whole groups of 4 elements"

    def needs_written_x4(self) -> str | None:
        if self._writes_whole(4):
            return None
        return "needs rows of the result that are whole groups of 4 elements"

    def needs_packs(self) -> str | None:
        width = 16 // self.itemsize
        if self._reads_whole(width) and self._writes_whole(width):
            return None
        return "needs rows of x and of the result that are whole packs of 16 bytes"

    def needs_map(self) -> str | None:
        stride = self.batch[0].x if self.batch else 0
        lines = ((self.count, stride), (self.rows, self.x_row))
        extents = max(self.count, self.rows, self.cols) <= MOST_EXTENT
        # that lines begin at whole packs has been asked before
        pitches = all(
            size == 1 or self.cols <= pitch < MOST_PITCH // self.itemsize for size, pitch in lines
        )
        if len(self.batch) <= 1 and extents and pitches:
            return None
        return "needs a batch along one dimension, and strides that a tensor map can have"

    def needs_copying(self) -> str | None:
        if self.x_row == 1:
            return None
        return "needs x to be contiguous along the last dimension of its result"

    def suits_tiles(self) -> str | None:
        if reason := self.needs_turning():
            return reason
        return None if min(self.rows, self.cols) >= SKINNY else "the matrices are skinny"


def _merged(x: Tensor, order: Sequence[int]) -> list[Dim]:
    """Dimensions of the contiguous result, without those of size 1, neighbours merged that x walks
    as one.
    """
    walked: list[list[int]] = []
    for d in order:
        size, stride = x.shape[d], x.stride(d)
        if size == 1:
            continue
        if walked and walked[-1][1] == size * stride:
            walked[-1] = [walked[-1][0] * size, stride]
        else:
            walked.append([size, stride])
    dims: list[Dim] = []
    pitch = 1
    for size, stride in reversed(walked):
        dims.insert(0, Dim(size, stride, pitch))
        pitch *= size
    return dims


def moved(x: Tensor, order: Sequence[int]) -> Moved:
    """What a permutation comes to.

    Args:
        x: at least one element.
        order: dimensions of x, none of them negative, as the result has them.
    """
    start, itemsize = address(x), x.element_size()
    dims = _merged(x, order)
    if not dims:
        return Moved(1, 1, 1, 1, 1, (), start, itemsize)
    rows = dims.pop()
    if not dims:
        return Moved(rows.size, 1, rows.x, 1, rows.size, (), start, itemsize)
    at = len(dims) - 1
    if rows.x != 1:
        contiguous = [d for d, dim in enumerate(dims) if dim.x == 1]
        least = min(dim.x for dim in dims)
        at = (contiguous or [d for d, dim in enumerate(dims) if dim.x == least])[-1]
    cols = dims.pop(at)
    batch = tuple(reversed(dims))
    return Moved(rows.size, cols.size, rows.x, cols.x, cols.y, batch, start, itemsize)
