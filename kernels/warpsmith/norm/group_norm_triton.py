"""Group norm in Triton, forward and backward, contiguous and channels last.

Groups that fit a program are normalised by one; larger ones in passes: moments of pieces, their
merger, the result. The gradient always takes passes.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import is_fp8
from warpsmith.norm.group_layout import Groups, as_groups, dense, empty_like
from warpsmith.norm.launch_triton import on, sum_partials_kernel
from warpsmith.norm.norms_triton import mean_of, share_of
from warpsmith.spec.triton.functions import (
    exponential_fine,
    logistic_and_slope,
    mish,
    silu,
)

# Values of a group that a program holds at once; in runs of channels, which coalesce less, fewer.
MOST_RESIDENT = 16384
MOST_RESIDENT_NHWC = 2048
# A step of a program that walks a piece, in values, and the steps of a piece.
TILE = 4096
STEPS = 8
# Channels of a channels-last tile, at most.
TILE_CHANNELS = 128
# Partial results that a merging program reads at once.
MERGED = 1024


@triton.jit
def activate(z, ACTIVATION: tl.constexpr, EXACT: tl.constexpr):
    if ACTIVATION == "silu":
        return silu(z, 0.0, EXACT)
    elif ACTIVATION == "mish":
        return mish(z, 0.0, EXACT)
    else:
        return z


@triton.jit
def activate_backward(grad, z, ACTIVATION: tl.constexpr, EXACT: tl.constexpr):
    """grad times the activation's derivative at z."""
    if ACTIVATION == "silu":
        s, slope = logistic_and_slope(z, EXACT)
        return grad * tl.fma(z, slope, s)
    elif ACTIVATION == "mish":
        # tanh(softplus(z)) is n / d with e = exp(z), n = e (e + 2), d = n + 2; its slope is
        # 4 e (e + 1) / d^2.
        e = exponential_fine(tl.minimum(z, 20.0), EXACT)
        n = e * (e + 2.0)
        r = 1.0 / (n + 2.0)
        slope = tl.fma(z, 4.0 * e * (e + 1.0) * r * r, n * r)
        return tl.where(z > 20.0, grad, grad * slope)
    else:
        return grad


@triton.jit
def reciprocal_std(variance, eps):
    """1 / sqrt(variance + eps) within an ulp, which the approximate instructions are not."""
    one = tl.zeros_like(variance) + 1.0
    return tl.div_rn(one, tl.sqrt_rn(variance + eps))


@triton.jit
def channel_values(ptr, channel, mask, GIVEN: tl.constexpr, NEUTRAL: tl.constexpr):
    if GIVEN:
        return tl.load(ptr + channel, mask=mask, other=0.0).to(tl.float32)
    else:
        return tl.zeros_like(channel).to(tl.float32) + NEUTRAL


@triton.jit
def merge_tile(count, mean, m2, x, valid, n):
    """Moments of the columns of a tile [rows, columns], n valid values each, joined to those given.

    Chan, Golub & LeVeque 1983.
    """
    tile_mean = mean_of(tl.sum(share_of(tl.where(valid, x, 0.0)), axis=0), n)
    deviation = tl.where(valid, x - tile_mean[None, :], 0.0)
    total = count + n
    delta = tile_mean - mean
    m2 += tl.sum(deviation * deviation, axis=0) + delta * (count * n / total) * delta
    return total, mean + delta * (n / total), m2


# --- one program per group ------------------------------------------------------------------------


@triton.jit
def group_norm_resident_kernel(
    x_ptr,  # [n, c, spatial], or [n, spatial, c]
    weight_ptr,  # [c]
    bias_ptr,  # [c]
    y_ptr,  # as x
    groups,
    size,  # values of a group
    sample,  # values of a sample
    group_step,  # from one group of a sample to the next
    inner,  # values of a run: positions of a channel, or channels of a position
    outer,  # from one run to the next
    group_channels,
    eps,
    CHANNELS_LAST: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    group = row % groups
    start = row // groups * sample + group * group_step
    i = tl.arange(0, BLOCK)
    valid = i < size
    run = i // inner
    within = i - run * inner
    offset = start + run.to(tl.int64) * outer + within
    x = tl.load(x_ptr + offset, mask=valid, other=0.0).to(tl.float32)
    deviation = tl.where(valid, x - tl.sum(x * (1.0 / size), axis=0), 0.0)
    # what rounding the mean has left: two values close to each other lie symmetrically around it
    deviation = tl.where(valid, deviation - tl.sum(deviation, axis=0) / size, 0.0)
    rstd = reciprocal_std(tl.sum(deviation * deviation, axis=0) / size, eps)
    channel = group * group_channels + (within if CHANNELS_LAST else run)
    weight = channel_values(weight_ptr, channel, valid, HAS_WEIGHT, 1.0)
    bias = channel_values(bias_ptr, channel, valid, HAS_BIAS, 0.0)
    z = deviation * (rstd * weight) + bias
    y = activate(z, ACTIVATION, y_ptr.dtype.element_ty == tl.float32)
    tl.store(y_ptr + offset, y.to(y_ptr.dtype.element_ty), mask=valid)


# --- statistics in passes -------------------------------------------------------------------------


@triton.jit
def moments_kernel(
    x_ptr,  # [rows, size]
    moments_ptr,  # [3, rows, pieces]: count, mean, m2
    size,
    pieces,
    plane,  # rows * pieces
    length,  # of a piece
    BLOCK: tl.constexpr,
):
    """Moments of a piece of a contiguous group."""
    program = tl.program_id(0).to(tl.int64)
    row, piece = program // pieces, program % pieces
    end = tl.minimum((piece + 1) * length, size)
    count = tl.zeros([1], dtype=tl.float32)
    mean = tl.zeros([1], dtype=tl.float32)
    m2 = tl.zeros([1], dtype=tl.float32)
    for first in range(piece * length, end, BLOCK):
        i = first + tl.arange(0, BLOCK)[:, None]  # [BLOCK, 1]
        valid = i < end
        x = tl.load(x_ptr + row * size + i, mask=valid, other=0.0).to(tl.float32)
        n = tl.minimum(end - first, BLOCK).to(tl.float32)
        count, mean, m2 = merge_tile(count, mean, m2, x, valid, n)
    to = moments_ptr + program + tl.arange(0, 1)
    tl.store(to, count)
    tl.store(to + plane, mean)
    tl.store(to + 2 * plane, m2)


@triton.jit
def nhwc_moments_kernel(
    x_ptr,  # [n, spatial, c]
    moments_ptr,  # [3, n, slabs, c]: count, mean, m2
    c,
    spatial,
    plane,  # n * slabs * c
    slabs,
    length,  # positions of a slab
    POSITIONS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Moments of each channel over a slab of positions."""
    program = tl.program_id(0).to(tl.int64)
    sample, slab = program // slabs, program % slabs
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)  # [CHANNELS]
    end = tl.minimum((slab + 1) * length, spatial)
    count = tl.zeros([CHANNELS], dtype=tl.float32)
    mean = tl.zeros([CHANNELS], dtype=tl.float32)
    m2 = tl.zeros([CHANNELS], dtype=tl.float32)
    for first in range(slab * length, end, POSITIONS):
        position = first + tl.arange(0, POSITIONS)[:, None]  # [POSITIONS, 1]
        valid = (position < end) & (channel < c)[None, :]
        at = (sample * spatial + position) * c + channel[None, :]
        x = tl.load(x_ptr + at, mask=valid, other=0.0).to(tl.float32)
        n = tl.minimum(end - first, POSITIONS).to(tl.float32)
        count, mean, m2 = merge_tile(count, mean, m2, x, valid, n)
    to = moments_ptr + program * c + channel
    tl.store(to, count, mask=channel < c)
    tl.store(to + plane, mean, mask=channel < c)
    tl.store(to + 2 * plane, m2, mask=channel < c)


@triton.jit
def statistics_kernel(
    moments_ptr,  # [3, ...]: count, mean, m2
    statistics_ptr,  # [2, n * groups]: mean, 1 / std
    plane,  # values of each of the three
    groups,
    entries,  # that a group has
    sample_step,  # from the entries of one sample to those of the next
    group_step,
    inner,  # entries of a run
    outer,  # from one run to the next
    eps,
    BLOCK: tl.constexpr,
):
    """Merges what the pieces or slabs have left of a group."""
    row = tl.program_id(0).to(tl.int64)
    start = row // groups * sample_step + row % groups * group_step
    shift = tl.load(
        moments_ptr + plane + start
    )  # some value of the group: nothing cancels around it
    count = tl.zeros([BLOCK], dtype=tl.float32)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, entries, BLOCK):
        i = first + tl.arange(0, BLOCK)
        valid = i < entries
        at = start + (i // inner).to(tl.int64) * outer + i % inner
        n = tl.load(moments_ptr + at, mask=valid, other=0.0)
        mean = tl.load(moments_ptr + plane + at, mask=valid, other=0.0)
        count += n
        total += tl.where(valid, n * (mean - shift), 0.0)
    size = tl.sum(count, axis=0)
    group_mean = shift + tl.sum(total, axis=0) / size
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, entries, BLOCK):
        i = first + tl.arange(0, BLOCK)
        valid = i < entries
        at = start + (i // inner).to(tl.int64) * outer + i % inner
        n = tl.load(moments_ptr + at, mask=valid, other=0.0)
        mean = tl.load(moments_ptr + plane + at, mask=valid, other=0.0)
        deviation = tl.where(valid, mean - group_mean, 0.0)
        m2 = tl.load(moments_ptr + 2 * plane + at, mask=valid, other=0.0)
        squares += m2 + n * deviation * deviation
    tl.store(statistics_ptr + row, group_mean)
    rstd = reciprocal_std(tl.sum(squares, axis=0) / size, eps)
    tl.store(statistics_ptr + tl.num_programs(0) + row, rstd)


# --- results in passes ----------------------------------------------------------------------------


@triton.jit
def group_norm_apply_kernel(
    x_ptr,  # [n * c, spatial]
    weight_ptr,  # [c]
    bias_ptr,  # [c]
    statistics_ptr,  # [2, n * groups]
    y_ptr,  # [n * c, spatial]
    channels,  # n * c
    c,
    spatial,
    group_channels,
    rows,  # n * groups
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    CHANNELS: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    """A tile of contiguous channels by positions, in any sample."""
    program, across = tl.program_id(0).to(tl.int64), tl.cdiv(spatial, POSITIONS)
    of_all = program // across * CHANNELS + tl.arange(0, CHANNELS)[:, None]
    position = program % across * POSITIONS + tl.arange(0, POSITIONS)[None, :]
    there = of_all < channels
    valid = there & (position < spatial)
    row = of_all // group_channels
    mean = tl.load(statistics_ptr + row, mask=there, other=0.0)
    rstd = tl.load(statistics_ptr + rows + row, mask=there, other=0.0)
    weight = channel_values(weight_ptr, of_all % c, there, HAS_WEIGHT, 1.0)
    bias = channel_values(bias_ptr, of_all % c, there, HAS_BIAS, 0.0)
    at = of_all * spatial + position
    x = tl.load(x_ptr + at, mask=valid, other=0.0).to(tl.float32)
    z = (x - mean) * (rstd * weight) + bias
    y = activate(z, ACTIVATION, y_ptr.dtype.element_ty == tl.float32)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=valid)


@triton.jit
def group_norm_nhwc_apply_kernel(
    x_ptr,  # [n, spatial, c]
    weight_ptr,  # [c]
    bias_ptr,  # [c]
    statistics_ptr,  # [2, n * groups]
    y_ptr,  # [n, spatial, c]
    c,
    spatial,
    group_channels,
    rows,  # n * groups
    slabs,
    length,  # positions of a slab
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    POSITIONS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    sample, slab = program // slabs, program % slabs
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]  # [1, CHANNELS]
    there = channel < c
    row = sample * (c // group_channels) + channel // group_channels
    mean = tl.load(statistics_ptr + row, mask=there, other=0.0)
    rstd = tl.load(statistics_ptr + rows + row, mask=there, other=0.0)
    scale = rstd * channel_values(weight_ptr, channel, there, HAS_WEIGHT, 1.0)
    bias = channel_values(bias_ptr, channel, there, HAS_BIAS, 0.0)
    end = tl.minimum((slab + 1) * length, spatial)
    for first in range(slab * length, end, POSITIONS):
        position = first + tl.arange(0, POSITIONS)[:, None]  # [POSITIONS, 1]
        valid = (position < end) & there
        at = (sample * spatial + position) * c + channel
        x = tl.load(x_ptr + at, mask=valid, other=0.0).to(tl.float32)
        y = activate((x - mean) * scale + bias, ACTIVATION, y_ptr.dtype.element_ty == tl.float32)
        tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=valid)


# --- gradients in passes --------------------------------------------------------------------------


@triton.jit
def channel_sums_kernel(
    grad_ptr,  # [n * c, spatial]
    x_ptr,  # [n * c, spatial]
    weight_ptr,  # [c]
    bias_ptr,  # [c]
    statistics_ptr,  # [2, n * groups]
    sums_ptr,  # [2, n, pieces, c]: of gz * xhat, of gz
    channels,  # n * c
    c,
    spatial,
    group_channels,
    rows,  # n * groups
    plane,  # n * pieces * c
    pieces,
    length,  # of a piece
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    CHANNELS: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    """gz is grad times the activation's derivative, xhat the normalised x."""
    program = tl.program_id(0).to(tl.int64)
    of_all = program // pieces * CHANNELS + tl.arange(0, CHANNELS)[:, None]
    piece = program % pieces
    there = of_all < channels
    row = of_all // group_channels
    mean = tl.load(statistics_ptr + row, mask=there, other=0.0)
    rstd = tl.load(statistics_ptr + rows + row, mask=there, other=0.0)
    weight = channel_values(weight_ptr, of_all % c, there, HAS_WEIGHT, 1.0)
    bias = channel_values(bias_ptr, of_all % c, there, HAS_BIAS, 0.0)
    end = tl.minimum((piece + 1) * length, spatial)
    dw = tl.zeros([CHANNELS, POSITIONS], dtype=tl.float32)
    db = tl.zeros([CHANNELS, POSITIONS], dtype=tl.float32)
    for first in range(piece * length, end, POSITIONS):
        position = first + tl.arange(0, POSITIONS)[None, :]
        valid = there & (position < end)
        at = of_all * spatial + position
        x = tl.load(x_ptr + at, mask=valid, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + at, mask=valid, other=0.0).to(tl.float32)
        xhat = (x - mean) * rstd
        z = xhat * weight + bias
        gz = activate_backward(grad, z, ACTIVATION, x_ptr.dtype.element_ty == tl.float32)
        dw += tl.where(valid, gz * xhat, 0.0)
        db += tl.where(valid, gz, 0.0)
    to = sums_ptr + (of_all // c * pieces + piece) * c + of_all % c
    tl.store(to, tl.sum(dw, axis=1)[:, None], mask=there)
    tl.store(to + plane, tl.sum(db, axis=1)[:, None], mask=there)


@triton.jit
def column_sums(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """[1, COLUMNS] of [ROWS, COLUMNS], in two steps: long chains of additions round more."""
    STEPS: tl.constexpr = 16
    parts = tl.sum(tl.reshape(x, [ROWS // STEPS, STEPS, COLUMNS]), axis=1)
    return tl.sum(parts, axis=0)[None, :]


@triton.jit
def nhwc_channel_sums_kernel(
    grad_ptr,  # [n, spatial, c]
    x_ptr,  # [n, spatial, c]
    weight_ptr,  # [c]
    bias_ptr,  # [c]
    statistics_ptr,  # [2, n * groups]
    sums_ptr,  # [2, n, slabs, c]: of gz * xhat, of gz
    c,
    spatial,
    group_channels,
    rows,  # n * groups
    plane,  # n * slabs * c
    slabs,
    length,  # positions of a slab
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    POSITIONS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    sample, slab = program // slabs, program % slabs
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]  # [1, CHANNELS]
    there = channel < c
    row = sample * (c // group_channels) + channel // group_channels
    mean = tl.load(statistics_ptr + row, mask=there, other=0.0)
    rstd = tl.load(statistics_ptr + rows + row, mask=there, other=0.0)
    weight = channel_values(weight_ptr, channel, there, HAS_WEIGHT, 1.0)
    bias = channel_values(bias_ptr, channel, there, HAS_BIAS, 0.0)
    end = tl.minimum((slab + 1) * length, spatial)
    dw = tl.zeros([POSITIONS, CHANNELS], dtype=tl.float32)
    db = tl.zeros([POSITIONS, CHANNELS], dtype=tl.float32)
    for first in range(slab * length, end, POSITIONS):
        position = first + tl.arange(0, POSITIONS)[:, None]  # [POSITIONS, 1]
        valid = (position < end) & there
        at = (sample * spatial + position) * c + channel
        x = tl.load(x_ptr + at, mask=valid, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + at, mask=valid, other=0.0).to(tl.float32)
        xhat = (x - mean) * rstd
        z = xhat * weight + bias
        gz = activate_backward(grad, z, ACTIVATION, x_ptr.dtype.element_ty == tl.float32)
        dw += tl.where(valid, gz * xhat, 0.0)
        db += tl.where(valid, gz, 0.0)
    to = sums_ptr + program * c + channel
    tl.store(to, column_sums(dw, POSITIONS, CHANNELS), mask=there)
    tl.store(to + plane, column_sums(db, POSITIONS, CHANNELS), mask=there)


@triton.jit
def group_means_kernel(
    sums_ptr,  # [2, n, pieces, c]: of gz * xhat, of gz
    weight_ptr,  # [c]
    means_ptr,  # [2, n * groups]: of gz * weight * xhat, of gz * weight
    groups,
    group_channels,
    pieces,
    plane,  # n * pieces * c
    size,  # values of a group
    HAS_WEIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    group = row % groups
    start = row // groups * pieces * groups * group_channels
    along = tl.zeros([BLOCK], dtype=tl.float32)
    plain = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, pieces * group_channels, BLOCK):
        i = first + tl.arange(0, BLOCK)
        valid = i < pieces * group_channels
        channel = group * group_channels + i % group_channels
        at = start + (i // group_channels).to(tl.int64) * groups * group_channels + channel
        weight = channel_values(weight_ptr, channel, valid, HAS_WEIGHT, 1.0)
        along += weight * tl.load(sums_ptr + at, mask=valid, other=0.0)
        plain += weight * tl.load(sums_ptr + plane + at, mask=valid, other=0.0)
    tl.store(means_ptr + row, tl.sum(along, axis=0) / size)
    tl.store(means_ptr + tl.num_programs(0) + row, tl.sum(plain, axis=0) / size)


@triton.jit
def group_norm_backward_apply_kernel(
    grad_ptr,  # [n * c, spatial], or [n * spatial, c]
    x_ptr,  # as grad
    weight_ptr,  # [c]
    bias_ptr,  # [c]
    statistics_ptr,  # [2, n * groups]
    means_ptr,  # [2, n * groups]
    dx_ptr,  # as grad
    lines,  # n * c, or n * spatial
    line,  # spatial, or c
    c,
    spatial,
    group_channels,
    rows,  # n * groups
    CHANNELS_LAST: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    LINES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A tile of lines: of channels by positions, or of positions by channels."""
    program, across = tl.program_id(0).to(tl.int64), tl.cdiv(line, BLOCK)
    first = program // across * LINES + tl.arange(0, LINES)[:, None]  # [LINES, 1]
    second = program % across * BLOCK + tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    valid = (first < lines) & (second < line)
    if CHANNELS_LAST:
        channel = second
        there = second < line
        row = first // spatial * (c // group_channels) + channel // group_channels
        known = valid
    else:
        channel = first % c
        there = first < lines
        row = first // group_channels
        known = there
    mean = tl.load(statistics_ptr + row, mask=known, other=0.0)
    rstd = tl.load(statistics_ptr + rows + row, mask=known, other=0.0)
    along = tl.load(means_ptr + row, mask=known, other=0.0)
    plain = tl.load(means_ptr + rows + row, mask=known, other=0.0)
    weight = channel_values(weight_ptr, channel, there, HAS_WEIGHT, 1.0)
    bias = channel_values(bias_ptr, channel, there, HAS_BIAS, 0.0)
    at = first * line + second
    x = tl.load(x_ptr + at, mask=valid, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + at, mask=valid, other=0.0).to(tl.float32)
    xhat = (x - mean) * rstd
    z = xhat * weight + bias
    gz = activate_backward(grad, z, ACTIVATION, x_ptr.dtype.element_ty == tl.float32)
    dx = rstd * (gz * weight - plain - xhat * along)
    tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=valid)


# --- launches -------------------------------------------------------------------------------------


def _floats(x: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=x.device)


@dataclass(frozen=True)
class _Tiles:
    """How the passes cut a tensor: contiguous channels or channels-last positions into pieces."""

    layout: Groups
    channels: int  # of a tile
    positions: int  # of a tile
    length: int  # positions of a piece
    pieces: int  # of a channel or a sample

    @property
    def nhwc_grid(self) -> tuple[int, int]:
        return self.layout.n * self.pieces, triton.cdiv(self.layout.c, self.channels)

    @staticmethod
    def of(layout: Groups) -> _Tiles:
        if layout.channels_last:
            channels = min(triton.next_power_of_2(layout.c), TILE_CHANNELS)
            positions = TILE // channels
        else:
            positions = min(triton.next_power_of_2(layout.spatial), TILE)
            channels = TILE // positions
        length = positions * STEPS
        return _Tiles(layout, channels, positions, length, triton.cdiv(layout.spatial, length))


def _statistics(x: Tensor, tiles: _Tiles, eps: float) -> Tensor:
    """[2, n * groups]: mean and 1 / std."""
    layout = tiles.layout
    statistics = _floats(x, 2, layout.rows)
    if layout.channels_last:
        moments = _floats(x, 3, layout.n, tiles.pieces, layout.c)
        plane, entries = moments[0].numel(), tiles.pieces * layout.group_channels
        nhwc_moments_kernel[tiles.nhwc_grid](
            x, moments, layout.c, layout.spatial, plane, tiles.pieces, tiles.length,
            tiles.positions, tiles.channels, num_warps=8,
        )  # fmt: skip
        steps = tiles.pieces * layout.c, layout.group_channels, layout.group_channels, layout.c
    else:
        length = TILE * STEPS
        pieces = triton.cdiv(layout.row_size, length)
        moments = _floats(x, 3, layout.rows, pieces)
        plane, entries = moments[0].numel(), pieces
        moments_kernel[(layout.rows * pieces,)](
            x, moments, layout.row_size, pieces, plane, length, TILE, num_warps=8
        )
        steps = layout.groups * pieces, pieces, pieces, pieces
    block = min(triton.next_power_of_2(entries), MERGED)
    statistics_kernel[(layout.rows,)](
        moments, statistics, plane, layout.groups, entries, *steps, eps, block, num_warps=4
    )
    return statistics


def group_norm(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, activation: str
) -> Tensor:
    if is_fp8(x.dtype):
        w, b = (None if v is None else v.float() for v in (weight, bias))
        return group_norm(x.float(), groups, w, b, eps, activation).to(x.dtype)
    y = empty_like(x)
    if x.numel() == 0:
        return y
    layout = as_groups(x, groups)
    x = dense(x, layout.strides)
    given = weight is not None, bias is not None
    w = x if weight is None else weight.contiguous()
    b = x if bias is None else bias.contiguous()
    shape = layout.c, layout.spatial, layout.group_channels, layout.rows
    with on(x):
        if layout.row_size <= (MOST_RESIDENT_NHWC if layout.channels_last else MOST_RESIDENT):
            runs = (
                (layout.group_channels, layout.group_channels, layout.c)
                if layout.channels_last
                else (layout.row_size, layout.spatial, layout.spatial)
            )
            block = triton.next_power_of_2(layout.row_size)
            group_norm_resident_kernel[(layout.rows,)](
                x, w, b, y, groups, layout.row_size, layout.c * layout.spatial, *runs,
                layout.group_channels, eps, layout.channels_last, *given, activation, block,
                num_warps=min(max(block // 512, 1), 16),
            )  # fmt: skip
            return y
        tiles = _Tiles.of(layout)
        statistics = _statistics(x, tiles, eps)
        if layout.channels_last:
            group_norm_nhwc_apply_kernel[tiles.nhwc_grid](
                x, w, b, statistics, y, *shape, tiles.pieces, tiles.length, *given, activation,
                tiles.positions, tiles.channels, num_warps=8,
            )  # fmt: skip
        else:
            channels = layout.n * layout.c
            across = triton.cdiv(layout.spatial, tiles.positions)
            group_norm_apply_kernel[(triton.cdiv(channels, tiles.channels) * across,)](
                x, w, b, statistics, y, channels, *shape, *given, activation, tiles.channels,
                tiles.positions, num_warps=8,
            )  # fmt: skip
    return y


def group_norm_backward(
    grad: Tensor,
    x: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    activation: str,
) -> tuple[Tensor, Tensor, Tensor]:
    if is_fp8(x.dtype):
        w, b = (None if v is None else v.float() for v in (weight, bias))
        dx, *vectors = group_norm_backward(grad.float(), x.float(), groups, w, b, eps, activation)
        like = (x.dtype if v is None else v.dtype for v in (weight, bias))
        dw, db = (v.to(dtype) for v, dtype in zip(vectors, like, strict=True))
        return dx.to(x.dtype), dw, db
    dx = empty_like(x)
    dw, db = (x.new_empty(0) if v is None else torch.zeros_like(v) for v in (weight, bias))
    if x.numel() == 0:
        return dx, dw, db
    layout = as_groups(x, groups)
    x, grad = dense(x, layout.strides), dense(grad, layout.strides)
    dw, db = dw.contiguous(), db.contiguous()
    given = weight is not None, bias is not None
    w = x if weight is None else weight.contiguous()
    b = x if bias is None else bias.contiguous()
    n, c, spatial = layout.n, layout.c, layout.spatial
    shape = c, spatial, layout.group_channels, layout.rows
    tiles = _Tiles.of(layout)
    with on(x):
        statistics = _statistics(x, tiles, eps)
        sums = _floats(x, 2, n * tiles.pieces, c)
        plane = sums[0].numel()
        # A product that is rounded in one kernel and fused with a sum in another would leave a rest
        # where means are subtracted from what they are the means of.
        alike = {"enable_fp_fusion": False}
        if layout.channels_last:
            nhwc_channel_sums_kernel[tiles.nhwc_grid](
                grad, x, w, b, statistics, sums, *shape, plane, tiles.pieces, tiles.length, *given,
                activation, tiles.positions, tiles.channels, num_warps=8, **alike,
            )  # fmt: skip
        else:
            channel_sums_kernel[(triton.cdiv(n * c, tiles.channels) * tiles.pieces,)](
                grad, x, w, b, statistics, sums, n * c, *shape, plane, tiles.pieces, tiles.length,
                *given, activation, tiles.channels, tiles.positions, num_warps=8, **alike,
            )  # fmt: skip
        means = _floats(x, 2, layout.rows)
        entries = tiles.pieces * layout.group_channels
        group_means_kernel[(layout.rows,)](
            sums, w, means, groups, layout.group_channels, tiles.pieces, plane, layout.row_size,
            given[0], min(triton.next_power_of_2(entries), MERGED), num_warps=4,
        )  # fmt: skip
        lines, line = (n * spatial, c) if layout.channels_last else (n * c, spatial)
        block, together = (
            (tiles.channels, tiles.positions)
            if layout.channels_last
            else (tiles.positions, tiles.channels)
        )
        programs = triton.cdiv(lines, together) * triton.cdiv(line, block)
        group_norm_backward_apply_kernel[(programs,)](
            grad, x, w, b, statistics, means, dx, lines, line, *shape, layout.channels_last,
            *given, activation, together, block, num_warps=8, **alike,
        )  # fmt: skip
        for wanted, part, to in zip(given, sums, (dw, db), strict=True):
            if wanted:
                sum_partials_kernel[(triton.cdiv(c, 64),)](
                    part, to, n * tiles.pieces, c, 64, 64, num_warps=8
                )
    return dx, dw, db
