"""Products of groups in Triton. Where there are many rows, 16-bit operands that TMA can read come
by descriptors (spec/triton/boxes.py), others by pointers.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.spec.triton.boxes import boxes_of_both, load_box
from warpsmith.spec.triton.convert import decode, encode
from warpsmith.spec.triton.functions import INTERPRETED

#: Values of k of f32 operands that are added up by themselves (matmul_triton.py).
DEPTH = 128
GROUP = tl.constexpr(8)


@triton.jit
def clipped(end, total):
    return tl.minimum(tl.maximum(end, 0), total)


@triton.jit
def multiply(
    of_x, of_w,  # pointers, or where BOXED descriptors
    group, top, bottom, left, n,  # the tile's product of w, and the rows and columns it starts at
    first, last,
    x_row, x_col, w_group, w_row, w_col, w_step,
    FORMAT: tl.constexpr, DEPTH: tl.constexpr,
    BOXED: tl.constexpr, X_TURNED: tl.constexpr, W_TURNED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The sums of a tile over the values of k from `first` to `last`; where BOXED, all of k. Rows
    from `bottom` on and columns from `n` on are of no meaning.
    """
    if not BOXED:
        row = (top + tl.arange(0, BM)).to(tl.int64)[:, None]  # [BM, 1]
        col = (left + tl.arange(0, BN)).to(tl.int64)[None, :]  # [1, BN]
        inner = (first + tl.arange(0, BK)).to(tl.int64)
        x_ptr = of_x + row * x_row + inner[None, :] * x_col  # [BM, BK]
        w_ptr = of_w + group.to(tl.int64) * w_group + inner[:, None] * w_row + col * w_col
    total = tl.zeros([BM, BN], dtype=tl.float32)
    sums = tl.zeros([BM, BN], dtype=tl.float32)
    for start in range(first, last, BK):
        if BOXED:
            x = load_box(of_x, 0, top, start, X_TURNED)
            w = load_box(of_w, group * w_step, left, start, W_TURNED).T
        else:
            within = tl.arange(0, BK) < last - start
            x = tl.load(x_ptr, mask=(row < bottom) & within[None, :], other=0)
            w = tl.load(w_ptr, mask=within[:, None] & (col < n), other=0)
            x_ptr += tl.cast(x_col, tl.int64) * BK
            w_ptr += tl.cast(w_row, tl.int64) * BK
        if INTERPRETED:
            sums += tl.dot(decode(x, FORMAT, False), decode(w, FORMAT, False))
        else:
            sums = tl.dot(x, w, sums, input_precision="ieee")
        if DEPTH > 0:  # noqa: SIM102 (without it, no condition is compiled)
            if (start + BK - first) % DEPTH == 0:
                total += sums
                sums = tl.zeros([BM, BN], dtype=tl.float32)
    return total + sums


@triton.jit
def find_group(ends_ptr, ends_step, groups, m, at, GROUPS: tl.constexpr, BM: tl.constexpr):
    """The group of tile `at` of the rows, the tile's first row, and where the group ends; `groups`
    for a tile past the last.
    """
    each = tl.arange(0, GROUPS)
    ends = clipped(tl.load(ends_ptr + each * ends_step, mask=each < groups, other=0), m)
    before = (each > 0) & (each < groups)
    firsts = clipped(tl.load(ends_ptr + (each - 1) * ends_step, mask=before, other=0), m)
    tiles = tl.where(each < groups, tl.maximum(ends - firsts + BM - 1, 0) // BM, 0)
    upto = tl.cumsum(tiles, 0)
    group = tl.minimum(tl.sum((upto <= at).to(tl.int32), 0), groups)  # those that end before it
    mine = each == group
    first = tl.sum(tl.where(mine, firsts + (at - upto + tiles) * BM, 0), 0)
    return group, first, tl.sum(tl.where(mine, ends, 0), 0)


@triton.jit
def by_rows_kernel(
    of_x,  # [m, k], a pointer, or where BOXED a descriptor
    of_w,  # [groups, k, n], the same
    ends_ptr,  # [groups]
    d_ptr,  # [m, n]
    groups, m, n, k, x_row, x_col, w_group, w_row, w_col, w_step, ends_step,
    FORMAT: tl.constexpr, DEPTH: tl.constexpr, GROUPS: tl.constexpr,
    BOXED: tl.constexpr, X_TURNED: tl.constexpr, W_TURNED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A tile of the rows of one group per program, all columns of a row of tiles one after another.
    There are as many programs as there may be tiles.
    """
    tiles_n = tl.cdiv(n, BN)
    at = tl.program_id(0) // tiles_n
    group, first, end = find_group(ends_ptr, ends_step, groups, m, at, GROUPS, BM)
    if group < groups:
        left = tl.program_id(0) % tiles_n * BN
        top = first.to(tl.int32)
        sums = multiply(
            of_x, of_w, group, top, end, left, n, 0, k, x_row, x_col, w_group, w_row, w_col,
            w_step, FORMAT, DEPTH, BOXED, X_TURNED, W_TURNED, BM, BN, BK,
        )  # fmt: skip
        row = (top + tl.arange(0, BM)).to(tl.int64)[:, None]  # [BM, 1]
        col = (left + tl.arange(0, BN)).to(tl.int64)[None, :]  # [1, BN]
        d = encode(sums, FORMAT, False, d_ptr.dtype.element_ty)
        tl.store(d_ptr + row * n + col, d, mask=(row < end) & (col < n))


@triton.jit
def tile_along_k(tiles_m, tiles_n):
    """The group of this program, and its tile, blocks of rows of tiles column by column."""
    index = tl.program_id(0) % (tiles_m * tiles_n)
    block = index // (GROUP * tiles_n)
    rows = tl.minimum(tiles_m - block * GROUP, GROUP)
    within = index % (GROUP * tiles_n)
    return (
        tl.program_id(0) // (tiles_m * tiles_n), block * GROUP + within % rows, within // rows
    )  # fmt: skip


@triton.jit
def span_of(ends_ptr, ends_step, group, total):
    """Where a group begins and ends."""
    end = clipped(tl.load(ends_ptr + group * ends_step), total)
    first = tl.load(ends_ptr + (group - 1) * ends_step, mask=group > 0, other=0)
    return clipped(first, total), end


@triton.jit
def along_k_kernel(
    x_ptr,  # [m, k]
    w_ptr,  # [k, n]
    ends_ptr,  # [groups]
    d_ptr,  # [groups, m, n]
    m, n, k, x_row, x_col, w_row, w_col, ends_step,
    FORMAT: tl.constexpr, DEPTH: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A tile of one group's product per program."""
    product, tile_m, tile_n = tile_along_k(tl.cdiv(m, BM), tl.cdiv(n, BN))
    first, end = span_of(ends_ptr, ends_step, product, k)
    sums = multiply(
        x_ptr, w_ptr, product, tile_m * BM, m, tile_n * BN, n, first, end,
        x_row, x_col, 0, w_row, w_col, 0, FORMAT, DEPTH, False, False, False, BM, BN, BK,
    )  # fmt: skip
    row = (tile_m * BM + tl.arange(0, BM)).to(tl.int64)[:, None]  # [BM, 1]
    col = (tile_n * BN + tl.arange(0, BN)).to(tl.int64)[None, :]  # [1, BN]
    d = encode(sums, FORMAT, False, d_ptr.dtype.element_ty)
    tl.store(d_ptr + (product.to(tl.int64) * m + row) * n + col, d, mask=(row < m) & (col < n))


def grouped_matmul(x: Tensor, w: Tensor, offs: Tensor) -> Tensor:
    along_k, groups = w.dim() == 2, offs.shape[0]
    (m, k), n = x.shape, w.shape[-1]
    shape = (groups, m, n) if along_k else (m, n)
    out = torch.empty(shape, dtype=x.dtype, device=x.device)
    if out.numel() == 0 or groups == 0:
        return out
    if k == 0:
        return out.zero_()
    singles = x.dtype == torch.float32
    side, depth = (64, 32) if singles else (128, 64)
    rows = side if along_k or m >= 64 * groups or singles else 32
    warps, stages = (4, 2) if singles or rows < side else (8, 3)
    d, format_ = out, ""
    if INTERPRETED.value and x.dtype == torch.bfloat16:
        x, w, d = (t.view(torch.int16) for t in (x, w, out))
        format_ = "bf16"
    shared = {
        "FORMAT": format_,
        "DEPTH": DEPTH if singles else 0,
        "BM": rows,
        "BN": side,
        "BK": depth,
        "num_warps": warps,
        "num_stages": stages,
    }
    many = not (along_k or singles) and rows == side
    boxed = boxes_of_both(x[None], w.mT, depth) if many else None
    left, right, step, turned = x, w, 0, (False, False)
    if boxed:
        left, right = boxed[0].of(rows, depth), boxed[1].of(side, depth)
        step, turned = boxed[1].step, (boxed[0].turned, boxed[1].turned)
    across, down = triton.cdiv(n, side), triton.cdiv(m, rows)
    with torch.cuda.device_of(out):
        if along_k:
            along_k_kernel[(groups * down * across,)](
                x, w, offs, d, m, n, k, *x.stride(), *w.stride(), offs.stride(0), **shared
            )  # fmt: skip
        else:
            by_rows_kernel[((down + groups) * across,)](
                left, right, offs, d, groups, m, n, k, *x.stride(), *w.stride(), step,
                offs.stride(0), GROUPS=triton.next_power_of_2(groups), BOXED=boxed is not None,
                X_TURNED=turned[0], W_TURNED=turned[1], **shared,
            )  # fmt: skip
    return out
