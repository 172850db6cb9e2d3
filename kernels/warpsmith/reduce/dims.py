"""A tensor seen around one of its dimensions: the checks and the layout of the operators along one.

Mirrors host/checks.h, reduce/dims.h, rows_at_once.h and the layout of reduce_dim.cpp in csrc; tests
hold the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

# --- checks ---------------------------------------------------------------------------------------


def size_along(x: Tensor, dim: int) -> int:
    return x.shape[dim] if x.dim() else 1


def is_last(x: Tensor, dim: int) -> bool:
    return dim + 1 >= x.dim()


# --- layout ---------------------------------------------------------------------------------------

#: So many rows, with a block to each, are all at work from the start and keep a GPU busy.
ROWS_AT_ONCE = range(512, 769)


@dataclass(frozen=True)
class Merged:
    """Dimensions as one; `merges` where a single stride walks them. A size of 1 has stride 0."""

    size: int
    stride: int
    merges: bool

    @staticmethod
    def of(sizes: Sequence[int], strides: Sequence[int]) -> Merged:
        size, stride, merges = 1, 0, True
        for n, step in zip(reversed(sizes), reversed(strides), strict=True):
            if n == 1:
                continue
            if size == 1:
                stride = step
            else:
                merges = merges and step == stride * size
            size *= n
        return Merged(size, stride, merges)

    def around(self, inner: Merged) -> Merged:
        """This one and `inner`, whose elements vary faster, as one."""
        if inner.size == 1:
            return self
        if self.size == 1:
            return inner
        chain = self.stride == inner.stride * inner.size
        merges = self.merges and inner.merges and chain
        return Merged(self.size * inner.size, inner.stride, merges)


ONE = Merged(1, 0, True)


@dataclass(frozen=True)
class DimView:
    """x[o, j, i], with j along the dimension.

    Attributes:
        outer, n, inner: sizes.
        stride_outer, stride_n, stride_inner: in elements; 0 for a size of 1.
        columns: i is contiguous; otherwise j is, and `inner` is 1.
        copied: kernels cannot walk the tensor as it lies, and get a contiguous copy.
    """

    outer: int
    n: int
    inner: int
    stride_outer: int
    stride_n: int
    stride_inner: int
    columns: bool
    copied: bool = False

    @property
    def outputs(self) -> int:
        return self.outer * self.inner


@dataclass(frozen=True)
class _Around:
    """Everything before the dimension and everything after it, as one dimension each."""

    outer: Merged
    n: int
    stride_n: int
    inner: Merged

    @staticmethod
    def of(sizes: Sequence[int], strides: Sequence[int], dim: int) -> _Around:
        n = sizes[dim] if sizes else 1
        return _Around(
            Merged.of(sizes[:dim], strides[:dim]),
            n,
            0 if n == 1 else strides[dim],
            Merged.of(sizes[dim + 1 :], strides[dim + 1 :]),
        )

    def rows(self, kept: Merged, copied: bool = False) -> DimView:
        return DimView(kept.size, self.n, 1, kept.stride, self.stride_n, 0, False, copied)

    def columns(self, outer: Merged, inner: Merged, copied: bool = False) -> DimView:
        strides = (outer.stride, self.stride_n, inner.stride)
        return DimView(outer.size, self.n, inner.size, *strides, True, copied)

    def fits(self, columns: bool) -> bool:
        if not (self.outer.merges and self.inner.merges):
            return False
        if columns:
            return self.inner.size == 1 or self.inner.stride == 1
        return self.n == 1 or self.stride_n == 1


def _contiguous_strides(sizes: Sequence[int]) -> tuple[int, ...]:
    strides, stride = [], 1
    for n in reversed(sizes):
        strides.append(stride)
        stride *= n
    return tuple(reversed(strides))


def view_by_shape(x: Tensor, dim: int, columns: bool) -> DimView:
    """As the shape says, whatever the strides: a tensor that lies otherwise is copied."""
    around = _Around.of(x.shape, x.stride(), dim)
    copied = not around.fits(columns)
    if copied:
        around = _Around.of(x.shape, _contiguous_strides(x.shape), dim)
    if columns:
        return around.columns(around.outer, around.inner, copied)
    return around.rows(around.outer, copied)


def view_by_memory(x: Tensor, dim: int) -> DimView:
    """Along the dimension where that has unit stride, across it where a kept one has."""
    around = _Around.of(x.shape, x.stride(), dim)
    kept = around.outer.around(around.inner)
    if kept.merges and around.stride_n == 1:
        return around.rows(kept)
    if around.outer.merges and around.inner.merges and around.inner.stride == 1:
        return around.columns(around.outer, around.inner)
    if kept.merges and kept.stride == 1:
        return around.columns(ONE, kept)
    if kept.merges and around.n == 1:
        return around.rows(kept)
    return view_by_shape(x, dim, around.inner.size > 1)
