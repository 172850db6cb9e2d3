"""Products of groups in Triton."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.spec.triton.convert import decode, encode
from warpsmith.spec.triton.functions import INTERPRETED

#: Values of k of f32 operands that are added up by themselves (matmul_triton.py).
DEPTH = 128
GROUP = 8


@triton.jit
def clipped(end, total):
    return tl.minimum(tl.maximum(end, 0), total)


@triton.jit
def multiply(
    x_ptr, w_ptr, first, last, row_mask, col_mask, x_col, w_row,
    FORMAT: tl.constexpr, DEPTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """The sums of a tile over the values of k from `first` to `last`. `x_ptr` [BM, 1] and `w_ptr`
    [1, BN] are those of k = 0.
    """
    inner = (first + tl.arange(0, BK)).to(tl.int64)
    x_ptr += inner[None, :] * x_col  # [BM, BK]
    w_ptr += inner[:, None] * w_row  # [BK, BN]
    total = tl.zeros([BM, BN], dtype=tl.float32)
    sums = tl.zeros([BM, BN], dtype=tl.float32)
    for start in range(first, last, BK):
        within = tl.arange(0, BK) < last - start
        x = tl.load(x_ptr, mask=row_mask & within[None, :], other=0)
        w = tl.load(w_ptr, mask=within[:, None] & col_mask, other=0)
        if INTERPRETED:
            sums += tl.dot(decode(x, FORMAT, False), decode(w, FORMAT, False))
        else:
            sums = tl.dot(x, w, sums, input_precision="ieee")
        x_ptr += tl.cast(x_col, tl.int64) * BK
        w_ptr += tl.cast(w_row, tl.int64) * BK
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
    x_ptr,  # [m, k]
    w_ptr,  # [groups, k, n]
    ends_ptr,  # [groups]
    d_ptr,  # [m, n]
    groups, m, n, k, x_row, x_col, w_group, w_row, w_col, ends_step,
    FORMAT: tl.constexpr, DEPTH: tl.constexpr, GROUPS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A tile of the rows of one group per program, all columns of a row of tiles one after another.
    There are as many programs as there may be tiles.
    """
    tiles_n = tl.cdiv(n, BN)
    at = tl.program_id(0) // tiles_n
    group, first, end = find_group(ends_ptr, ends_step, groups, m, at, GROUPS, BM)
    if group < groups:
        row = (first + tl.arange(0, BM)).to(tl.int64)[:, None]  # [BM, 1]
        col = (tl.program_id(0) % tiles_n * BN + tl.arange(0, BN)).to(tl.int64)[None, :]  # [1, BN]
        of_x = x_ptr + row * x_row  # [BM, 1]
        of_w = w_ptr + group.to(tl.int64) * w_group + col * w_col  # [1, BN]
        sums = multiply(
            of_x, of_w, 0, k, row < end, col < n, x_col, w_row, FORMAT, DEPTH, BM, BN, BK
        )
        d = encode(sums, FORMAT, False, d_ptr.dtype.element_ty)
        tl.store(d_ptr + row * n + col, d, mask=(row < end) & (col < n))


@triton.jit
def along_k_kernel(
    x_ptr,  # [m, k]
    w_ptr,  # [k, n]
    ends_ptr,  # [groups]
    d_ptr,  # [groups, m, n]
    m, n, k, x_row, x_col, w_row, w_col, ends_step,
    FORMAT: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A tile of one group's product per program."""
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    index = tl.program_id(0) % (tiles_m * tiles_n)
    product = tl.program_id(0) // (tiles_m * tiles_n)
    block = index // (GROUP * tiles_n)
    rows = tl.minimum(tiles_m - block * GROUP, GROUP)
    within = index % (GROUP * tiles_n)
    tile_m, tile_n = block * GROUP + within % rows, within // rows
    end = clipped(tl.load(ends_ptr + product * ends_step), k)
    first = clipped(tl.load(ends_ptr + (product - 1) * ends_step, mask=product > 0, other=0), k)
    row = (tile_m.to(tl.int64) * BM + tl.arange(0, BM))[:, None]  # [BM, 1]
    col = (tile_n.to(tl.int64) * BN + tl.arange(0, BN))[None, :]  # [1, BN]
    sums = multiply(
        x_ptr + row * x_row, w_ptr + col * w_col, first, end, row < m, col < n, x_col, w_row,
        FORMAT, DEPTH, BM, BN, BK,
    )  # fmt: skip
    d = encode(sums, FORMAT, False, d_ptr.dtype.element_ty)
    tl.store(d_ptr + (product.to(tl.int64) * m + row) * n + col, d, mask=(row < m) & (col < n))


def grouped_matmul(x: Tensor, w: Tensor, offsets: Tensor) -> Tensor:
    along_k, groups = w.dim() == 2, offsets.shape[0]
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
    across, down = triton.cdiv(n, side), triton.cdiv(m, rows)
    with torch.cuda.device_of(out):
        if along_k:
            along_k_kernel[(groups * down * across,)](
                x, w, offsets, d, m, n, k, *x.stride(), *w.stride(), offsets.stride(0),
                GROUP=GROUP, **shared,
            )  # fmt: skip
        else:
            by_rows_kernel[((down + groups) * across,)](
                x, w, offsets, d, groups, m, n, k, *x.stride(), *w.stride(), offsets.stride(0),
                GROUPS=triton.next_power_of_2(groups), **shared,
            )  # fmt: skip
    return out
