"""Rows added up by their indices in Triton: sorted, and a program for each."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Values of a program.
BLOCK = 512


@triton.jit
def accumulate_kernel(
    y_ptr,  # [outer, rows, inner]
    source_ptr,  # [outer, count, inner]
    keys_ptr,  # [count], sorted
    order_ptr,  # [count]
    rows,
    count,
    inner,
    left_out,
    alpha,
    ADDS: tl.constexpr,
    REPLACES: tl.constexpr,
    SUMS: tl.constexpr,  # the terms alone, not scaled
    BLOCK: tl.constexpr,
):
    """The first one of a row adds up all of it, the last one replaces it. One alone is no sum."""
    first = tl.program_id(0).to(tl.int64)
    outer = tl.program_id(2).to(tl.int64)
    row = tl.load(keys_ptr + first)
    tl.device_assert(row < rows, "an index lies outside of the rows that there are")
    before = tl.load(keys_ptr + first - 1, mask=first > 0, other=-1)
    after = tl.load(keys_ptr + first + 1, mask=first + 1 < count, other=-1)
    last = (first + 1 == count) | (after != row)
    leads = last if REPLACES else (first == 0) | (before != row)
    if leads & (row >= 0) & (row < rows) & (row != left_out):
        at = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        there = at < inner
        to = y_ptr + (outer * rows + row) * inner + at
        if REPLACES or (SUMS and last):
            j = tl.load(order_ptr + first)
            term = tl.load(source_ptr + (outer * count + j) * inner + at, mask=there)
            tl.store(to, term, mask=there)
        else:
            total = tl.zeros([BLOCK], dtype=tl.float32)
            i = first
            same = True
            while same:
                j = tl.load(order_ptr + i)
                term = tl.load(source_ptr + (outer * count + j) * inner + at, mask=there, other=0.0)
                total += term.to(tl.float32)
                i += 1
                same = (i < count) & (tl.load(keys_ptr + tl.minimum(i, count - 1)) == row)
            total = total * alpha
            if ADDS:
                total += tl.load(to, mask=there, other=0.0).to(tl.float32)
            tl.store(to, total.to(y_ptr.dtype.element_ty), mask=there)


def _accumulate(
    y: Tensor,
    source: Tensor,
    index: Tensor,
    dim: int,
    alpha: float = 1.0,
    *,
    left_out: int = -1,
    adds: bool = True,
    replaces: bool = False,
) -> Tensor:
    """Into `y`, which is contiguous; an index below 0 adds nothing."""
    if source.numel() == 0:
        return y
    keys, order = index.reshape(-1).long().sort(stable=True)
    outer, inner = y.shape[:dim].numel(), y.shape[dim + 1 :].numel()
    with torch.cuda.device_of(y):
        accumulate_kernel[(keys.numel(), triton.cdiv(inner, BLOCK), outer)](
            y,
            source.contiguous(),
            keys,
            order,
            y.shape[dim],
            keys.numel(),
            inner,
            left_out,
            alpha,
            ADDS=adds,
            REPLACES=replaces,
            SUMS=not adds and alpha == 1.0,
            BLOCK=BLOCK,
        )
    return y


def _inside(index: Tensor, rows: int) -> Tensor:
    """An index below 0 as one that is outside."""
    return torch.where(index < 0, rows, index)


def embedding_backward(
    grad: Tensor, indices: Tensor, rows: int, padding_idx: int | None, scale: float
) -> Tensor:
    y = grad.new_zeros(rows, grad.shape[-1])
    left_out = -1 if padding_idx is None else padding_idx % rows
    at = _inside(indices, rows)
    return _accumulate(y, grad, at, 0, scale, left_out=left_out, adds=False)


def _copied(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float) -> Tensor:
    at = dim % x.dim()
    return _accumulate(_copied(x), source, _inside(index, x.shape[at]), at, alpha)


def index_add_inplace(x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float) -> None:
    y = x if x.is_contiguous() else _copied(x)
    at = dim % x.dim()
    _accumulate(y, source, _inside(index, x.shape[at]), at, alpha)
    if y is not x:
        x.copy_(y)


def index_put(x: Tensor, index: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    rows, at = x.shape[0], index.long()
    at = _inside(torch.where(at < 0, at + rows, at), rows)
    return _accumulate(_copied(x), values, at, 0, adds=accumulate, replaces=not accumulate)


def scatter_rows(x: Tensor, index: Tensor, rows: int) -> Tensor:
    return _accumulate(x.new_zeros(rows, *x.shape[1:]), x, index, 0, adds=False)
