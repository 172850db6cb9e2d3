"""Cumulative sums in Triton.

Sequences run along one side of a tile, the scanned dimension along the other; tiles follow each
other with a carry. Where sequences are few, they are cut into chunks: a first launch sums the
chunks, and each program of the second adds up what comes before its own.
"""

# mypy: ignore-errors
from __future__ import annotations

import inspect

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import is_fp8
from warpsmith.reduce.cumsum import sum_dtype, view

#: Values of a tile: 16 of 16 bits per thread at 8 warps, which is two 128-bit loads.
TILE = 4096
#: A tile is scanned in runs, whose sums are then added up, at most so many: where Triton is
#: interpreted, the values of a run are added one after the other.
LEAST_RUN, MOST_RUNS = 16, 64
#: Neighbouring columns of a tile.
COLUMNS = 64
#: Programs that keep a GPU busy, tiles that make a chunk worth one, and most chunks of a sequence,
#: whose sums one tile holds.
PROGRAMS, LEAST_TILES, MOST_CHUNKS = 2048, 2, 1024


@triton.jit
def _place(kept, x_batch, x_kept, y_batch, KEEP: tl.constexpr):
    """This program's sequences: their first index, which are real, where they lie in x and y."""
    blocks = tl.cdiv(kept, KEEP)
    program = tl.program_id(0).to(tl.int64)
    batch = program // blocks
    k = (program % blocks) * KEEP + tl.arange(0, KEEP)  # [KEEP]
    return batch * kept + k, k < kept, batch * x_batch + k * x_kept, batch * y_batch, k


@triton.jit
def _load(x_ptr, base, j, n, stride_n, valid, REVERSE: tl.constexpr, SUM: tl.constexpr):
    place = n - 1 - j if REVERSE else j
    x = tl.load(x_ptr + base[:, None] + place[None, :] * stride_n, mask=valid, other=0)
    return x.to(SUM)


@triton.jit
def _scan(x, KEEP: tl.constexpr, ALONG: tl.constexpr, RUN: tl.constexpr):
    """Sums along a tile and of all of it: within runs of neighbours, then over the runs before."""
    RUNS: tl.constexpr = ALONG // RUN
    runs = tl.reshape(x, [KEEP, RUNS, RUN])
    within = tl.cumsum(runs, axis=2)
    totals = tl.sum(runs, axis=2)  # [KEEP, RUNS]
    if RUNS == 1:
        return tl.reshape(within, [KEEP, ALONG]), tl.sum(totals, axis=1)
    else:
        place = tl.arange(0, RUNS)
        earlier = (place[None, :] < place[:, None])[None, :, :]  # [1, RUNS, RUNS]
        before = tl.sum(tl.where(earlier, totals[:, None, :], 0), axis=2)  # [KEEP, RUNS]
        scanned = tl.reshape(before[:, :, None] + within, [KEEP, ALONG])
        return scanned, tl.sum(totals, axis=1)


@triton.jit
def chunk_sums_kernel(
    x_ptr,
    sum_ptr,  # [chunks, batches * kept]
    kept,
    n,
    x_batch,
    x_kept,
    x_n,
    chunk,
    sequences,
    REVERSE: tl.constexpr,
    KEEP: tl.constexpr,
    ALONG: tl.constexpr,
):
    SUM: tl.constexpr = sum_ptr.dtype.element_ty
    sequence, real, base, _, _ = _place(kept, x_batch, x_kept, 0, KEEP)
    index = tl.program_id(1).to(tl.int64)
    end = tl.minimum((index + 1) * chunk, n)
    tile = tl.zeros([KEEP, ALONG], dtype=SUM)
    for start in range(index * chunk, end, ALONG):
        j = start + tl.arange(0, ALONG).to(tl.int64)  # [ALONG]
        valid = real[:, None] & (j < end)[None, :]
        tile += _load(x_ptr, base, j, n, x_n, valid, REVERSE, SUM)
    tl.store(sum_ptr + index * sequences + sequence, tl.sum(tile, axis=1), mask=real)


@triton.jit
def cumsum_kernel(
    x_ptr,
    y_ptr,
    sum_ptr,  # [chunks, batches * kept]; unused where there is one chunk
    kept,
    n,
    x_batch,
    x_kept,
    x_n,
    y_batch,
    y_kept,
    y_n,
    chunk,
    sequences,
    REVERSE: tl.constexpr,
    SUM: tl.constexpr,
    CHUNKS: tl.constexpr,
    KEEP: tl.constexpr,
    ALONG: tl.constexpr,
    RUN: tl.constexpr,
):
    sequence, real, base, y_base, k = _place(kept, x_batch, x_kept, y_batch, KEEP)
    index = tl.program_id(1).to(tl.int64)
    end = tl.minimum((index + 1) * chunk, n)
    carry = tl.zeros([KEEP], dtype=SUM)
    if CHUNKS > 1:
        for first in range(0, index, 16):
            c = first + tl.arange(0, 16).to(tl.int64)
            before = real[:, None] & (c < index)[None, :]
            sums = tl.load(
                sum_ptr + c[None, :] * sequences + sequence[:, None], mask=before, other=0
            )
            carry += tl.sum(sums, axis=1)
    for start in range(index * chunk, end, ALONG):
        j = start + tl.arange(0, ALONG).to(tl.int64)  # [ALONG]
        valid = real[:, None] & (j < end)[None, :]
        x = _load(x_ptr, base, j, n, x_n, valid, REVERSE, SUM)
        # Triton 3.6 asserts where such a carry adds the tl.sum of what tl.load returned.
        scanned, total = _scan(x, KEEP, ALONG, RUN)
        y = carry[:, None] + scanned
        place = n - 1 - j if REVERSE else j
        to = y_ptr + y_base + k[:, None] * y_kept + place[None, :] * y_n
        tl.store(to, y.to(y_ptr.dtype.element_ty), mask=valid)
        carry += total


#: What depends on the other sequences. Triton lays a tile out by what it knows of these, and the
#: layout is the order of additions: with a promise to keep, it is told nothing.
OTHERS = ("kept", "x_batch", "x_kept", "x_n", "y_batch", "y_kept", "y_n", "sequences")


def _untold(kernel):
    names = [name for name in OTHERS if name in inspect.signature(kernel.fn).parameters]
    return triton.jit(kernel.fn, do_not_specialize=names)


invariant_chunk_sums_kernel = _untold(chunk_sums_kernel)
invariant_cumsum_kernel = _untold(cumsum_kernel)


def cumsum(x: Tensor, dim: int, reverse: bool, batch_invariant: bool) -> Tensor:
    if is_fp8(x.dtype):
        return cumsum(x.float(), dim, reverse, batch_invariant).to(x.dtype)
    y = x.new_empty(x.shape, dtype=sum_dtype(x))
    if x.numel() == 0:
        return y
    seen = view(x, dim, batch_invariant)
    x = x.contiguous() if seen.copied else x
    if seen.columns:
        batches, kept = seen.outer, seen.inner
        x_strides = (seen.stride_outer, seen.stride_inner, seen.stride_n)
        y_strides = (seen.n * kept, 1, kept)
        keep = COLUMNS if batch_invariant else min(COLUMNS, triton.next_power_of_2(kept))
    else:
        batches, kept = 1, seen.outer
        x_strides = (0, seen.stride_outer, seen.stride_n)
        y_strides = (0, seen.n, 1)
        keep = max(TILE // triton.next_power_of_2(seen.n), 1)
    along = min(TILE // keep, triton.next_power_of_2(seen.n))
    blocks = batches * triton.cdiv(kept, keep)
    most = min(triton.cdiv(seen.n, LEAST_TILES * along), MOST_CHUNKS)
    chunks = most if batch_invariant else min(most, max(PROGRAMS // blocks, 1))
    chunk = triton.cdiv(triton.cdiv(seen.n, chunks), along) * along
    chunks = triton.cdiv(seen.n, chunk)
    run = min(max(along // MOST_RUNS, LEAST_RUN), along)
    whole = y.dtype == torch.int64
    held = tl.int64 if whole else tl.float32
    kind = torch.int64 if whole else torch.float32
    sums = torch.empty((chunks, batches * kept), dtype=kind, device=x.device)
    first, second = chunk_sums_kernel, cumsum_kernel
    if batch_invariant:
        first, second = invariant_chunk_sums_kernel, invariant_cumsum_kernel
    with torch.cuda.device(x.device if x.device.type == "cuda" else -1):
        grid = (blocks, chunks)
        if chunks > 1:
            first[grid](
                x, sums, kept, seen.n, *x_strides, chunk, sums.shape[1], reverse, keep, along,
                num_warps=8,
            )  # fmt: skip
        second[grid](
            x, y, sums, kept, seen.n, *x_strides, *y_strides, chunk, sums.shape[1],
            reverse, held, chunks, keep, along, run, num_warps=8,
        )  # fmt: skip
    return y
