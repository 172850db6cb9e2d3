"""The reductions along a dimension in Triton.

    values      sum, mean, amax, amin: one kernel, and a fold as its parameter
    positions   argmax, argmin: the value and where it stands
    squares     var: deviations from the mean and their squares

Kept indices run along one side of a tile, the reduced dimension along the other. Where outputs are
few and the dimension long, programs share an output, and a second launch joins what they found.

Where the result must not depend on other outputs, each is a row of an aligned, contiguous copy: the
compiler lays out a tile, and with it the order of additions, by what it knows of the strides.
"""

# mypy: ignore-errors
from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import is_fp8
from warpsmith.reduce.dims import DimView, size_along
from warpsmith.reduce.reduce_dim import view

#: Values of a tile: 16 of 16 bits per thread at 8 warps, which is two 128-bit loads.
TILE = 4096
#: Kept indices of a tile of columns: neighbours, so that a warp reads whole lines.
COLUMNS = 64
#: Programs that keep a GPU busy.
PROGRAMS = 2048
#: Tiles of an output that are worth a program; as many for each where the result must not depend
#: on the number of outputs.
LEAST_TILES, PROMISED_TILES = 4, 16
#: Programs of one output, which the second dimension of a grid counts.
MOST_SPLITS = 1 << 14

NOWHERE = tl.constexpr(0x7FFFFFFF)


# --- folds: the value of nothing, one more value, the join of a tile along its second side --------


@triton.jit
def add(total, x):
    return total + x


@triton.jit
def add_up(tile):
    return tl.sum(tile, axis=1)


@triton.jit
def larger(best, x):
    return tl.where((x > best) | (x != x), x, best)  # a NaN stays


@triton.jit
def largest(tile):
    nan = tl.max((tile != tile).to(tl.int32), axis=1)
    return tl.where(
        nan > 0, float("nan"), tl.max(tl.where(tile != tile, -float("inf"), tile), axis=1)
    )


@triton.jit
def smaller(best, x):
    return tl.where((x < best) | (x != x), x, best)


@triton.jit
def smallest(tile):
    nan = tl.max((tile != tile).to(tl.int32), axis=1)
    return tl.where(
        nan > 0, float("nan"), tl.min(tl.where(tile != tile, float("inf"), tile), axis=1)
    )


TOTAL = (0.0, add, add_up)
LARGEST = (-float("inf"), larger, largest)
SMALLEST = (float("inf"), smaller, smallest)


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _place(kept, stride_batch, stride_kept, KEEP: tl.constexpr):
    """This program's outputs: their first index, which are real, and where they read from."""
    blocks = tl.cdiv(kept, KEEP)
    program = tl.program_id(0).to(tl.int64)
    batch = program // blocks
    k = (program % blocks) * KEEP + tl.arange(0, KEEP)  # [KEEP]
    return batch * kept + k, k < kept, batch * stride_batch + k * stride_kept


@triton.jit
def values_kernel(
    x_ptr,
    y_ptr,  # [batches * kept, splits] in these strides
    kept,
    n,
    stride_batch,
    stride_kept,
    stride_n,
    chunk,
    y_output,
    y_split,
    divisor,
    F: tl.constexpr,
    KEEP: tl.constexpr,
    ALONG: tl.constexpr,
):
    output, real, base = _place(kept, stride_batch, stride_kept, KEEP)
    split = tl.program_id(1).to(tl.int64)
    end = tl.minimum((split + 1) * chunk, n)
    tile = tl.full([KEEP, ALONG], F[0], dtype=tl.float32)
    for start in range(split * chunk, end, ALONG):
        j = start + tl.arange(0, ALONG).to(tl.int64)  # [ALONG]
        valid = real[:, None] & (j < end)[None, :]
        x = tl.load(x_ptr + base[:, None] + j[None, :] * stride_n, mask=valid, other=F[0])
        tile = F[1](tile, x.to(tl.float32))
    y = tl.div_rn(F[2](tile), tl.zeros([KEEP], dtype=tl.float32) + divisor)
    to = y_ptr + output * y_output + split * y_split
    tl.store(to, y.to(y_ptr.dtype.element_ty), mask=real)


@triton.jit
def positions_kernel(
    x_ptr,
    from_ptr,  # int64, where the values of x stood, in the strides of x; unused where they are x
    value_ptr,  # [splits, batches * kept] f32
    at_ptr,  # [splits, batches * kept] int64
    kept,
    n,
    stride_batch,
    stride_kept,
    stride_n,
    chunk,
    outputs,
    SIGN: tl.constexpr,
    JOIN: tl.constexpr,
    KEEP: tl.constexpr,
    ALONG: tl.constexpr,
):
    """The largest of SIGN * x, and the first index at which it stands."""
    output, real, base = _place(kept, stride_batch, stride_kept, KEEP)
    split = tl.program_id(1).to(tl.int64)
    end = tl.minimum((split + 1) * chunk, n)
    best = tl.full([KEEP, ALONG], -float("inf"), dtype=tl.float32)
    # Of this chunk, where those that are no better than nothing stand for the first time.
    at = tl.zeros([KEEP, ALONG], dtype=tl.int32) + tl.arange(0, ALONG)[None, :]
    for start in range(split * chunk, end, ALONG):
        j = start + tl.arange(0, ALONG).to(tl.int64)  # [ALONG]
        place = base[:, None] + j[None, :] * stride_n
        valid = real[:, None] & (j < end)[None, :]
        x = tl.load(x_ptr + place, mask=valid, other=-float("inf") * SIGN).to(tl.float32) * SIGN
        # An equal value that comes later does not count.
        better = (x > best) | ((x != x) & (best == best))
        best = tl.where(better, x, best)
        at = tl.where(better, (j - split * chunk).to(tl.int32)[None, :], at)
    nan = best != best
    any_nan = tl.max(nan.to(tl.int32), axis=1)  # [KEEP]
    most = tl.max(tl.where(nan, -float("inf"), best), axis=1)  # [KEEP]
    chosen = tl.where(any_nan[:, None] > 0, nan, best == most[:, None])
    chosen = chosen & (at < (end - split * chunk).to(tl.int32))
    first = split * chunk + tl.min(tl.where(chosen, at, NOWHERE), axis=1).to(tl.int64)  # [KEEP]
    if JOIN:  # of equal values the earlier chunk has the earlier one
        first = tl.load(from_ptr + base + first * stride_n, mask=real, other=0)
    value = tl.where(any_nan > 0, float("nan"), most)
    tl.store(value_ptr + split * outputs + output, value * SIGN, mask=real)
    tl.store(at_ptr + split * outputs + output, first, mask=real)


@triton.jit
def squares_kernel(
    x_ptr,
    mean_ptr,  # [batches * kept] f32
    left_ptr,  # [batches * kept, splits] f32 in these strides: sums of deviations
    square_ptr,  # of their squares
    kept,
    n,
    stride_batch,
    stride_kept,
    stride_n,
    chunk,
    y_output,
    y_split,
    KEEP: tl.constexpr,
    ALONG: tl.constexpr,
):
    output, real, base = _place(kept, stride_batch, stride_kept, KEEP)
    split = tl.program_id(1).to(tl.int64)
    end = tl.minimum((split + 1) * chunk, n)
    mean = tl.load(mean_ptr + output, mask=real, other=0.0)  # [KEEP]
    deviations = tl.zeros([KEEP, ALONG], dtype=tl.float32)
    squares = tl.zeros([KEEP, ALONG], dtype=tl.float32)
    for start in range(split * chunk, end, ALONG):
        j = start + tl.arange(0, ALONG).to(tl.int64)  # [ALONG]
        valid = real[:, None] & (j < end)[None, :]
        x = tl.load(x_ptr + base[:, None] + j[None, :] * stride_n, mask=valid, other=0.0)
        centred = tl.where(valid, x.to(tl.float32) - mean[:, None], 0.0)
        deviations += centred
        squares += centred * centred
    to = output * y_output + split * y_split
    tl.store(left_ptr + to, tl.sum(deviations, axis=1), mask=real)
    tl.store(square_ptr + to, tl.sum(squares, axis=1), mask=real)


@triton.jit
def var_resident_kernel(
    x_ptr,
    y_ptr,  # [batches * kept]
    kept,
    n,
    stride_batch,
    stride_kept,
    stride_n,
    divisor,
    KEEP: tl.constexpr,
    ALONG: tl.constexpr,
):
    """Whole rows or columns in registers, read once."""
    output, real, base = _place(kept, stride_batch, stride_kept, KEEP)
    j = tl.arange(0, ALONG).to(tl.int64)  # [ALONG]
    valid = real[:, None] & (j < n)[None, :]
    x = tl.load(x_ptr + base[:, None] + j[None, :] * stride_n, mask=valid, other=0.0)
    x = x.to(tl.float32)
    mean = tl.sum(x, axis=1) / n  # [KEEP]
    centred = tl.where(valid, x - mean[:, None], 0.0)
    # What rounding left of the mean is in every deviation.
    left = tl.sum(centred, axis=1)
    squares = tl.sum(centred * centred, axis=1) - left * left / n
    var = tl.div_rn(squares, tl.zeros([KEEP], dtype=tl.float32) + divisor)
    tl.store(y_ptr + output, var.to(y_ptr.dtype.element_ty), mask=real)


# --- launches -------------------------------------------------------------------------------------


class _Call:
    """A tensor around its dimension, and the tiles that walk it."""

    def __init__(self, x: Tensor, seen: DimView, promise: bool) -> None:
        self.x = x.contiguous() if seen.copied else x
        self.n, self.outputs = seen.n, seen.outputs
        if seen.columns:
            self.batches, self.kept = seen.outer, seen.inner
            strides = (seen.stride_outer, seen.stride_inner, seen.stride_n)
            self.keep = min(COLUMNS, triton.next_power_of_2(seen.inner))
            self.along = min(TILE // self.keep, triton.next_power_of_2(seen.n))
        else:
            self.batches, self.kept = 1, seen.outer
            strides = (0, seen.stride_outer, seen.stride_n)
            self.along = min(TILE, triton.next_power_of_2(seen.n))
            self.keep = TILE // self.along
        self.sizes = (self.kept, self.n, *strides)
        self.tile = {"KEEP": self.keep, "ALONG": self.along, "num_warps": 8}
        blocks = self.batches * triton.cdiv(self.kept, self.keep)
        if promise:
            splits = min(triton.cdiv(self.n, PROMISED_TILES * self.along), MOST_SPLITS)
        else:
            most = triton.cdiv(self.n, LEAST_TILES * self.along)
            splits = min(most, max(PROGRAMS // blocks, 1))
        self.chunk = triton.cdiv(triton.cdiv(self.n, splits), self.along) * self.along
        self.splits = triton.cdiv(self.n, self.chunk)
        self.grid = (blocks, self.splits)
        # What programs leave of an output, as they write it, and as the second launch sees it.
        if promise:
            self.partial = (self.splits, 1)
            self.joined = DimView(self.outputs, self.splits, 1, self.splits, 1, 0, False)
        else:
            self.partial = (1, self.outputs)
            self.joined = DimView(1, self.splits, self.outputs, 0, self.outputs, 1, True)

    def partials(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(self.splits * self.outputs, dtype=dtype, device=self.x.device)


def _on(x: Tensor) -> torch.cuda.device:
    """Launches go to the current device: make it that of the tensor."""
    return torch.cuda.device(x.device if x.device.type == "cuda" else -1)


def _seen(x: Tensor, dim: int, promise: bool) -> tuple[Tensor, DimView]:
    if not promise:
        return x, view(x, dim, False)
    rows = x.movedim(dim, -1).contiguous() if x.dim() else x
    rows = rows.clone() if rows.data_ptr() % 16 else rows
    n = size_along(x, dim)
    return rows, DimView(x.numel() // n, n, 1, n, 1, 0, False)


def _fold(x: Tensor, seen: DimView, y: Tensor, fold: tuple, divisor: float, promise: bool) -> None:
    call = _Call(x, seen, promise)
    whole = call.splits == 1
    to = y if whole else call.partials()
    values_kernel[call.grid](
        call.x, to, *call.sizes, call.chunk, *call.partial, divisor if whole else 1.0, fold,
        **call.tile,
    )  # fmt: skip
    if not whole:
        _fold(to, call.joined, y, fold, divisor, promise)


def _shape(x: Tensor, dim: int, keepdim: bool) -> list[int]:
    shape = list(x.shape)
    if shape and keepdim:
        shape[dim] = 1
    elif shape:
        del shape[dim]
    return shape


def _values(fold: tuple, mean: bool = False) -> Callable[..., Tensor]:
    def run(x: Tensor, dim: int, keepdim: bool, batch_invariant: bool = False) -> Tensor:
        if is_fp8(x.dtype):
            return run(x.float(), dim, keepdim, batch_invariant).to(x.dtype)
        y = x.new_empty(_shape(x, dim, keepdim))
        if x.numel() == 0:
            return y.fill_(float("nan") if mean else 0.0)
        x, seen = _seen(x, dim, batch_invariant)
        with _on(x):
            _fold(x, seen, y, fold, float(seen.n) if mean else 1.0, batch_invariant)
        return y

    return run


def _locate(
    x: Tensor, seen: DimView, source: Tensor | None, value: Tensor, at: Tensor, sign: float
) -> None:
    call = _Call(x, seen, False)
    whole = call.splits == 1
    to, where = (value, at) if whole else (call.partials(), call.partials(torch.int64))
    positions_kernel[call.grid](
        call.x, at if source is None else source, to, where, *call.sizes, call.chunk, call.outputs,
        sign, source is not None, **call.tile,
    )  # fmt: skip
    if not whole:
        _locate(to, call.joined, where, value, at, sign)


def _positions(sign: float) -> Callable[..., Tensor]:
    def run(x: Tensor, dim: int, keepdim: bool) -> Tensor:
        if is_fp8(x.dtype):
            return run(x.float(), dim, keepdim)
        at = x.new_empty(_shape(x, dim, keepdim), dtype=torch.int64)
        if x.numel() == 0:
            return at
        value = torch.empty(at.numel(), dtype=torch.float32, device=x.device)
        with _on(x):
            _locate(x, view(x, dim, False), None, value, at, sign)
        return at

    return run


def var(x: Tensor, dim: int, correction: int, keepdim: bool, batch_invariant: bool) -> Tensor:
    if is_fp8(x.dtype):
        return var(x.float(), dim, correction, keepdim, batch_invariant).to(x.dtype)
    y = x.new_empty(_shape(x, dim, keepdim))
    if x.numel() == 0:
        return y.fill_(float("nan"))
    x, seen = _seen(x, dim, batch_invariant)
    divisor = float(max(seen.n - correction, 0))
    call = _Call(x, seen, batch_invariant)
    with _on(x):
        if call.along >= call.n:
            var_resident_kernel[call.grid](call.x, y, *call.sizes, divisor, **call.tile)
            return y
        mean, left, squares = (
            torch.empty(call.outputs, dtype=torch.float32, device=x.device) for _ in range(3)
        )
        _fold(call.x, seen, mean, TOTAL, float(seen.n), batch_invariant)
        parts = call.partials(), call.partials()
        squares_kernel[call.grid](
            call.x, mean, *parts, *call.sizes, call.chunk, *call.partial, **call.tile
        )
        for part, to in zip(parts, (left, squares), strict=True):
            _fold(part, call.joined, to, TOTAL, 1.0, batch_invariant)
    return y.copy_(((squares - left * left / seen.n) / divisor).view(y.shape))


sum, mean = _values(TOTAL), _values(TOTAL, mean=True)
amax, amin = _values(LARGEST), _values(SMALLEST)
argmax, argmin = _positions(1.0), _positions(-1.0)
