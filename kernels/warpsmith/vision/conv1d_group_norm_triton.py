"""A convolution of signals with group norm, and the convolution's gradients, in Triton."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.spec.triton.functions import INTERPRETED, mish, silu

#: Positions, rows and the inner dimension of a tile.
BN, BM, BK = 64, 64, 32
BLOCK = 1024


@triton.jit
def _dot(a, b, sums):
    if INTERPRETED:
        return sums + tl.dot(a.to(tl.float32), b.to(tl.float32))
    else:
        return tl.dot(a, b, sums, input_precision="ieee")


@triton.jit
def _added(total, piece):
    """total + piece, and what was lost of it, with which the next piece starts: Kahan 1965,
    "Further remarks on reducing truncation errors", https://doi.org/10.1145/363707.363723. Of
    `total += tl.dot(a, b)` the compiler would make one chain of additions through all products.
    """
    both = total + piece
    lost = piece - (both - total)
    return both, tl.where(tl.abs(lost) < float("inf"), lost, 0.0)  # an infinite sum lost nothing


@triton.jit
def conv1d_kernel(
    x_ptr,  # [n, channels, length]
    weight_ptr,  # of a row, a channel and a tap
    bias_ptr,  # [rows], or not read
    h_ptr,  # [n, rows, length]
    positions, rows, channels, length,
    row_stride, channel_stride, tap_stride, before,
    HAS_BIAS: tl.constexpr, TAPS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A tile of rows and positions: a product of matrices for each tap."""
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    position = tl.program_id(1).to(tl.int64) * BN + tl.arange(0, BN)
    sample = position // length
    along = position - sample * length
    IN_PIECES: tl.constexpr = x_ptr.dtype.element_ty == tl.float32
    sums = tl.zeros([BM, BN], dtype=tl.float32)
    piece = sums
    for start in range(0, channels, BK):
        channel = start + tl.arange(0, BK).to(tl.int64)
        for tap in tl.static_range(TAPS):
            moved = along + tap - before
            inside = (position < positions) & (moved >= 0) & (moved < length)
            x = tl.load(
                x_ptr + (sample * channels * length + moved)[None, :] + channel[:, None] * length,
                mask=inside[None, :] & (channel < channels)[:, None],
                other=0.0,
            )
            place = row[:, None] * row_stride + channel[None, :] * channel_stride + tap * tap_stride
            weight = tl.load(
                weight_ptr + place,
                mask=(row < rows)[:, None] & (channel < channels)[None, :],
                other=0.0,
            )
            piece = _dot(weight, x, piece)
            if IN_PIECES:
                sums, piece = _added(sums, piece)
    if not IN_PIECES:
        sums = piece
    if HAS_BIAS:
        sums += tl.load(bias_ptr + row, mask=row < rows, other=0.0).to(tl.float32)[:, None]
    to = (sample * rows * length + along)[None, :] + row[:, None] * length
    there = (row < rows)[:, None] & (position < positions)[None, :]
    tl.store(h_ptr + to, sums.to(h_ptr.dtype.element_ty), mask=there)


@triton.jit
def normalise_kernel(
    h_ptr,  # [n, groups, size], channels and positions of a group
    weight_ptr,  # [groups * channels]
    bias_ptr,
    y_ptr,  # as h
    size, length, groups, channels, eps,
    ACTIVATION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A group per program, in three sweeps."""
    group = tl.program_id(0).to(tl.int64)
    h_ptr += group * size
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.load(h_ptr + i, mask=i < size, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / size
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        deviation = tl.load(h_ptr + i, mask=i < size, other=0.0).to(tl.float32) - mean
        squares += tl.where(i < size, deviation * deviation, 0.0)
    rstd = 1.0 / tl.sqrt_rn(tl.sum(squares, axis=0) / size + eps)
    first = group % groups * channels
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        there = i < size
        h = tl.load(h_ptr + i, mask=there, other=0.0).to(tl.float32)
        channel = first + i // length
        weight = tl.load(weight_ptr + channel, mask=there, other=0.0).to(tl.float32)
        bias = tl.load(bias_ptr + channel, mask=there, other=0.0).to(tl.float32)
        z = (h - mean) * rstd * weight + bias
        if ACTIVATION == "mish":
            z = mish(z, 0.0, y_ptr.dtype.element_ty == tl.float32)
        elif ACTIVATION == "silu":
            z = silu(z, 0.0, y_ptr.dtype.element_ty == tl.float32)
        tl.store(y_ptr + group * size + i, z.to(y_ptr.dtype.element_ty), mask=there)


@triton.jit
def weight_gradient_kernel(
    grad_ptr,  # [n, rows, length]
    x_ptr,  # [n, channels, length]
    dweight_ptr,  # [rows, channels, taps]
    positions, rows, channels, length, taps, before,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A tile of rows and channels of one tap."""
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    channel = tl.program_id(1).to(tl.int64) * BN + tl.arange(0, BN)
    tap = tl.program_id(2)
    IN_PIECES: tl.constexpr = x_ptr.dtype.element_ty == tl.float32
    sums = tl.zeros([BM, BN], dtype=tl.float32)
    piece = sums
    for start in range(0, positions, BK):
        position = start + tl.arange(0, BK).to(tl.int64)
        sample = position // length
        along = position - sample * length
        moved = along + tap - before
        there = position < positions
        inside = there & (moved >= 0) & (moved < length)
        grad = tl.load(
            grad_ptr + (sample * rows * length + along)[None, :] + row[:, None] * length,
            mask=(row < rows)[:, None] & there[None, :],
            other=0.0,
        )
        x = tl.load(
            x_ptr + (sample * channels * length + moved)[:, None] + channel[None, :] * length,
            mask=inside[:, None] & (channel < channels)[None, :],
            other=0.0,
        )
        piece = _dot(grad, x, piece)
        if IN_PIECES:
            sums, piece = _added(sums, piece)
    if not IN_PIECES:
        sums = piece
    to = (row[:, None] * channels + channel[None, :]) * taps + tap
    within = (row < rows)[:, None] & (channel < channels)[None, :]
    tl.store(dweight_ptr + to, sums.to(dweight_ptr.dtype.element_ty), mask=within)


@triton.jit
def bias_gradient_kernel(grad_ptr, dbias_ptr, positions, rows, length, BLOCK: tl.constexpr):
    """A channel per program."""
    row = tl.program_id(0).to(tl.int64)
    sums = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, positions, BLOCK):
        position = start + tl.arange(0, BLOCK).to(tl.int64)
        sample = position // length
        place = (sample * rows + row) * length + position - sample * length
        sums += tl.load(grad_ptr + place, mask=position < positions, other=0.0).to(tl.float32)
    tl.store(dbias_ptr + row, tl.sum(sums, axis=0).to(dbias_ptr.dtype.element_ty))


def _convolve(
    x: Tensor, weight: Tensor, strides: tuple[int, int, int], bias: Tensor | None, h: Tensor
) -> None:
    """`strides` of rows, channels and taps; of a negative one of taps, the first is the last."""
    n, channels, length = x.shape
    rows, taps = h.shape[1], weight.shape[2]
    before, last = (taps - 1) // 2, 0
    if strides[2] < 0:
        before, last = taps - 1 - before, taps - 1
    grid = (triton.cdiv(rows, BM), triton.cdiv(n * length, BN))
    conv1d_kernel[grid](
        x, weight.view(-1)[last:], h if bias is None else bias, h, n * length, rows, channels,
        length, *strides, before, HAS_BIAS=bias is not None, TAPS=taps, BM=BM, BN=BN, BK=BK,
        num_warps=4,
    )  # fmt: skip


def conv1d_group_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm_weight: Tensor,
    norm_bias: Tensor,
    groups: int,
    eps: float,
    activation: str,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    n, c, length = x.shape
    rows, _, taps = weight.shape
    y = x.new_empty((n, rows, length))
    h = torch.empty_like(y) if keep else x.new_empty(0)
    if y.numel() == 0:
        return y, h
    x, weight, norm_weight, norm_bias = (
        a.contiguous() for a in (x, weight, norm_weight, norm_bias)
    )
    bias = None if bias is None else bias.contiguous()
    between = h if keep else torch.empty_like(y)
    size = rows // groups * length
    with torch.cuda.device_of(x):
        _convolve(x, weight, (c * taps, taps, 1), bias, between)
        normalise_kernel[(n * groups,)](
            between, norm_weight, norm_bias, y, size, length, groups, rows // groups, eps,
            ACTIVATION=activation, BLOCK=min(BLOCK, triton.next_power_of_2(size)), num_warps=4,
        )  # fmt: skip
    return y, h


def conv1d_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n, c, length = x.shape
    rows, _, taps = weight.shape
    dx, dweight = x.new_empty(x.shape), weight.new_empty(weight.shape)
    dbias = weight.new_empty(rows)
    if x.numel() == 0:
        return dx, dweight.zero_(), dbias.zero_()
    grad, x, weight = (a.contiguous() for a in (grad, x, weight))
    grid = (triton.cdiv(rows, BM), triton.cdiv(c, BN), taps)
    with torch.cuda.device_of(x):
        _convolve(grad, weight, (taps, c * taps, -1), None, dx)
        weight_gradient_kernel[grid](
            grad, x, dweight, n * length, rows, c, length, taps, (taps - 1) // 2,
            BM=BM, BN=BN, BK=BK, num_warps=4,
        )  # fmt: skip
        bias_gradient_kernel[(rows,)](grad, dbias, n * length, rows, length, BLOCK, num_warps=4)
    return dx, dweight, dbias
