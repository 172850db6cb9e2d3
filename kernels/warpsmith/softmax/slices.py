"""How a tensor lies in memory as softmaxes along one dimension; mirrors csrc/softmax/slices.h."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from warpsmith.spec.rows import address


@dataclass(frozen=True)
class Slices:
    """A tensor as [outer, cols, inner]: the dimensions before one, itself, and those after it."""

    outer: int
    cols: int
    inner: int
    #: Elements from one outer index to the next.
    stride: int
    #: Elements from one column to the next; 1 where inner is 1.
    col_stride: int
    #: The dimensions do not merge, or inner is strided: a kernel gets a contiguous copy.
    copied: bool


def as_slices(x: Tensor, dim: int) -> Slices:
    """Merges the dimensions before and after `dim`, where a single stride walks them.

    Args:
        x: any shape without a zero.
        dim: counted from either end; 0 or -1 for a tensor without dimensions.

    Returns:
        The slices of `x`, or those of the contiguous copy that a kernel would get.
    """
    if x.dim() == 0:
        return Slices(1, 1, 1, 1, 1, False)
    at = dim % x.dim()
    cols = x.shape[at]
    merges = True
    inner = 1
    for d in reversed(range(at + 1, x.dim())):
        if x.shape[d] == 1:
            continue
        merges = merges and x.stride(d) == inner
        inner *= x.shape[d]
    outer, stride = 1, cols * inner
    for d in reversed(range(at)):
        if x.shape[d] == 1:
            continue
        if outer == 1:
            stride = x.stride(d)
        else:
            merges = merges and x.stride(d) == stride * outer
        outer *= x.shape[d]
    col_stride = inner if cols == 1 else x.stride(at)
    if merges and (inner > 1 or col_stride == 1):
        return Slices(outer, cols, inner, stride, col_stride, False)
    return Slices(outer, cols, inner, cols * inner, inner, True)


def tiles_slices(x: Tensor, dim: int, width: int) -> bool:
    """Whether accesses of `width` values tile the rows along the last dimension exactly."""
    layout = as_slices(x, dim)
    if layout.cols % width or (layout.outer > 1 and layout.stride % width):
        return False
    return layout.copied or address(x) % (width * x.element_size()) == 0
