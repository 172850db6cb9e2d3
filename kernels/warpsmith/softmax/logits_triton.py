"""Logits of attention scores in Triton: z = x * scale + bias, -inf where excluded."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.softmax.logits import MOST_LEADING
from warpsmith.spec.rows import as_rows

# Elements of a tile; longer rows are walked in sweeps.
MOST_RESIDENT = 16384
# Tile of the kernels that sweep.
SWEEP = 4096
# Short rows share a program, so that it has some 2048 values to load at once.
SHARED_TILE = 2048


@triton.jit
def operand_rows(row, sizes, strides):
    """Offsets of the rows of an operand; sizes and strides of the leading dimensions, innermost
    first.
    """
    rest = row // sizes[0]
    offset = (row - rest * sizes[0]) * strides[0]
    outer = rest // sizes[1]
    offset += (rest - outer * sizes[1]) * strides[1]
    rest = outer // sizes[2]
    return offset + (outer - rest * sizes[2]) * strides[2] + rest * strides[3]


@triton.jit
def live_columns(row, queries, cols, CAUSAL: tl.constexpr):
    """Columns up to the diagonal: query i sees keys up to i + cols - queries."""
    if CAUSAL:
        return tl.minimum(tl.maximum(row % queries + 1 + cols - queries, 0), cols)
    else:
        return row * 0 + cols


@triton.jit
def read_logits(
    x_ptr,
    bias_ptr,
    mask_ptr,
    x_row,
    row,
    col,
    valid,
    scale,
    sizes,
    bias_strides,
    bias_col,
    mask_strides,
    mask_col,
    HAS_BIAS: tl.constexpr,
    HAS_MASK: tl.constexpr,
):
    """Logits at [rows, cols], -inf where they are excluded or not valid."""
    z = tl.load(x_ptr + x_row + col, mask=valid, other=0.0).to(tl.float32) * scale
    if HAS_BIAS:
        bias_row = operand_rows(row, sizes, bias_strides)
        z += tl.load(bias_ptr + bias_row + col * bias_col, mask=valid, other=0.0).to(tl.float32)
    if HAS_MASK:
        mask_row = operand_rows(row, sizes, mask_strides)
        hidden = tl.load(mask_ptr + mask_row + col * mask_col, mask=valid, other=0)
        z = tl.where(hidden != 0, -float("inf"), z)
    return tl.where(valid, z, -float("inf"))


@triton.jit
def exp_below(z, most):
    """e^(z - most); a row without any logit has the maximum -inf and gives 0."""
    return tl.exp(z - tl.where(most == -float("inf"), 0.0, most))


@triton.jit
def reciprocal(total):
    """1 / total; 0 for a row without any logit."""
    one = tl.zeros_like(total) + 1.0
    return tl.where(total == 0.0, 0.0, tl.div_rn(one, total))


@dataclass(frozen=True)
class Logits:
    """Operands as the kernels take them."""

    x: Tensor
    bias: Tensor
    mask: Tensor
    rows: int
    cols: int
    x_stride: int
    queries: int
    sizes: tuple[int, ...]
    bias_strides: tuple[int, ...]
    bias_col: int
    mask_strides: tuple[int, ...]
    mask_col: int

    @property
    def arguments(self) -> tuple[Any, ...]:
        return (
            self.x, self.bias, self.mask, self.rows, self.cols, self.x_stride, self.queries,
            self.sizes, self.bias_strides, self.bias_col, self.mask_strides, self.mask_col,
        )  # fmt: skip


def _leading(x: Tensor) -> tuple[int, ...]:
    """Sizes before the last dimension, innermost first, as many as a kernel unfolds."""
    sizes = tuple(reversed(x.shape[:-1]))
    if len(sizes) > MOST_LEADING:
        return (math.prod(sizes), 1, 1, 1)
    return (*sizes, *(1 for _ in range(MOST_LEADING - len(sizes))))


def _over(operand: Tensor | None, x: Tensor) -> tuple[Tensor, tuple[int, ...], int]:
    """An operand's data, its strides along the leading dimensions, its stride along columns."""
    if operand is None:
        return x, (0,) * MOST_LEADING, 0
    wide = operand.expand(x.shape)
    if x.dim() - 1 > MOST_LEADING:
        wide = wide.contiguous().view(-1, x.shape[-1])
    strides = tuple(reversed(wide.stride()[:-1]))
    return wide, (*strides, *(0 for _ in range(MOST_LEADING - len(strides)))), wide.stride(-1)


def prepare(x: Tensor, bias: Tensor | None, mask: Tensor | None) -> Logits:
    sizes = _leading(x)
    added, bias_strides, bias_col = _over(bias, x)
    excluded, mask_strides, mask_col = _over(None if mask is None else mask.view(torch.uint8), x)
    queries = x.shape[-2] if x.dim() > 1 else 1
    layout = as_rows(x)
    x = x.contiguous() if layout.copied else x
    return Logits(
        x, added, excluded, layout.rows, layout.cols, layout.stride, queries,
        sizes, bias_strides, bias_col, mask_strides, mask_col,
    )  # fmt: skip


def shared_rows(rows: int, block: int) -> int:
    """Rows of a resident tile."""
    return min(max(SHARED_TILE // block, 1), triton.next_power_of_2(rows))


def warps_for(values: int) -> int:
    """Warps for a tile: 16 values a thread, which is two 128-bit loads of 16-bit values."""
    return min(max(values // 512, 4), 16)


def on(x: Tensor) -> torch.cuda.device:
    """Launches go to the current device: make it that of the tensor."""
    return torch.cuda.device(x.device if x.device.type == "cuda" else -1)
