"""Transposes and permutations in Triton: tiles of matrices, which the compiler transposes on the
way from the layout in which they are read to that in which they are written.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.transform.moved import MOST_BATCH_DIMS, Dim, moved
from warpsmith.transform.transpose import ordered, swapped

#: Elements are moved as integers of their size.
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Bytes of a tile's side: whole lines on both sides of memory.
SIDE = 256


@triton.jit
def _split(index, size, x, y, x_at, y_at):
    """Takes a dimension of the batch off the index."""
    rest = index // size
    i = index - rest * size
    return rest, x_at + i * x, y_at + i * y


@triton.jit
def transpose_kernel(
    x_ptr,  # [batch, rows, cols]
    y_ptr,  # [batch, cols, rows]
    rows, cols, x_row, x_col, y_col, across, down,
    n0, x0, y0, n1, x1, y1, n2, x2, y2, n3, x3, y3, n4, x4, y4, n5, x5, y5,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0).to(tl.int64)
    line = tile // across
    index = line // down
    row = (line - index * down) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    col = (tile - line * across) * COLS + tl.arange(0, COLS)  # [COLS]
    x_at = tl.zeros([], dtype=tl.int64)
    y_at = tl.zeros([], dtype=tl.int64)
    index, x_at, y_at = _split(index, n0, x0, y0, x_at, y_at)
    index, x_at, y_at = _split(index, n1, x1, y1, x_at, y_at)
    index, x_at, y_at = _split(index, n2, x2, y2, x_at, y_at)
    index, x_at, y_at = _split(index, n3, x3, y3, x_at, y_at)
    index, x_at, y_at = _split(index, n4, x4, y4, x_at, y_at)
    index, x_at, y_at = _split(index, n5, x5, y5, x_at, y_at)
    there = (row < rows)[:, None] & (col < cols)[None, :]  # [ROWS, COLS]
    x = tl.load(x_ptr + x_at + row[:, None] * x_row + col[None, :] * x_col, mask=there)
    turned = (col < cols)[:, None] & (row < rows)[None, :]  # [COLS, ROWS]
    tl.store(y_ptr + y_at + col[:, None] * y_col + row[None, :], tl.trans(x), mask=turned)


def _moved(x: Tensor, order: Sequence[int]) -> Tensor:
    y = x.new_empty([x.shape[d] for d in order])
    if y.numel() == 0:
        return y
    call = moved(x, order)
    if len(call.batch) > MOST_BATCH_DIMS:  # more dimensions than anybody permutes
        return y.copy_(x.permute(list(order)))
    batch = (*call.batch, *(Dim(1, 0, 0),) * (MOST_BATCH_DIMS - len(call.batch)))
    side = SIDE // x.element_size()
    rows = min(side, triton.next_power_of_2(call.rows))
    cols = min(side, triton.next_power_of_2(call.cols))
    across, down = triton.cdiv(call.cols, cols), triton.cdiv(call.rows, rows)
    integer = INTEGERS[x.element_size()]
    with torch.cuda.device(x.device if x.device.type == "cuda" else -1):
        transpose_kernel[(call.count * across * down,)](
            x.view(integer), y.view(integer), call.rows, call.cols, call.x_row, call.x_col,
            call.y_col, across, down, *(n for d in batch for n in (d.size, d.x, d.y)),
            rows, cols, num_warps=8,
        )  # fmt: skip
    return y


def transpose(x: Tensor) -> Tensor:
    return _moved(x, swapped(x.dim()))


def permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    return _moved(x, ordered(x.dim(), dims))
