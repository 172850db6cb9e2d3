"""Dropout that keeps a bit for each element, in Triton, and its gradient."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import is_fp8
from warpsmith.elementwise.dropout import MASK_BITS, words
from warpsmith.spec import philox
from warpsmith.spec.triton import philox as philox_triton
from warpsmith.spec.triton.philox import NOT_SPECIALISED, keep_bits

#: 16 bytes of bf16 a thread and load at 4 warps; four times that where they take two calls of the
#: generator, so that more is under way meanwhile.
BLOCK, DRAWING_BLOCK = 1024, 4096


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def dropout_kernel(
    x_ptr,  # [n]
    bias_ptr,  # [cols]
    residual_ptr,  # [n]
    y_ptr,  # [n]
    mask_ptr,  # [ceil(n / 32)]
    n,
    cols,
    seed,
    offset,
    last_dropped,
    keep_scale,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
    DROPS: tl.constexpr,
    COLUMN: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    MASK_BITS: tl.constexpr,
):
    # rows of what a thread loads at once, a group of the generator or two
    start = tl.program_id(0).to(tl.int64) * BLOCK
    row = start // WIDTH + tl.arange(0, BLOCK // WIDTH)
    column = tl.arange(0, WIDTH)
    i = row[:, None] * WIDTH + column[None, :]
    there = i < n
    value = tl.load(x_ptr + i, mask=there, other=0.0).to(tl.float32)
    if BIASED:
        # one division of 64 bits for the program, then of what fits 32
        first = (start % cols).to(COLUMN) + tl.arange(0, BLOCK // WIDTH) * WIDTH
        if WHOLE:
            col = tl.multiple_of(first % cols, WIDTH)[:, None] + column[None, :]
        else:
            col = (first[:, None] + column[None, :]) % cols
        value += tl.load(bias_ptr + col, mask=there, other=0.0).to(tl.float32)
    bits = (1 << tl.minimum(tl.maximum(n - row * WIDTH, 0), WIDTH).to(tl.int32)) - 1
    if DROPS:
        if WIDTH == 4:
            bits &= keep_bits(row, seed, offset, last_dropped)
        else:
            bits &= (
                keep_bits(2 * row, seed, offset, last_dropped)
                | keep_bits(2 * row + 1, seed, offset, last_dropped) << 4
            )
        kept = (bits[:, None] >> column[None, :]) & 1
        value = tl.where(kept != 0, value * keep_scale, 0.0)
    if ADDED:
        value += tl.load(residual_ptr + i, mask=there, other=0.0).to(tl.float32)
    tl.store(y_ptr + i, value.to(y_ptr.dtype.element_ty), mask=there)
    # words of the mask: what threads join, Triton does not draw again for those that write
    PARTS: tl.constexpr = MASK_BITS // WIDTH
    place = tl.arange(0, PARTS) * WIDTH
    parts = tl.reshape(bits, (BLOCK // MASK_BITS, PARTS)) << place[None, :]
    word = start // MASK_BITS + tl.arange(0, BLOCK // MASK_BITS)
    tl.store(mask_ptr + word, tl.xor_sum(parts, axis=1), mask=word * MASK_BITS < n)


@triton.jit
def dropout_backward_kernel(
    grad_ptr,  # [n]
    mask_ptr,  # [ceil(n / 32)]
    dx_ptr,  # [n]
    n,
    keep_scale,
    BLOCK: tl.constexpr,
    MASK_BITS: tl.constexpr,
):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    i = start + tl.arange(0, BLOCK)
    there = i < n
    grad = tl.load(grad_ptr + i, mask=there, other=0.0).to(tl.float32)
    word = tl.load(mask_ptr + i // MASK_BITS, mask=there, other=0)
    kept = (word >> (i % MASK_BITS).to(tl.int32)) & 1
    dx = tl.where(kept != 0, grad * keep_scale, 0.0)
    tl.store(dx_ptr + i, dx.to(dx_ptr.dtype.element_ty), mask=there)


def bias_dropout_add(
    x: Tensor, bias: Tensor | None, residual: Tensor | None, p: float, seed: int, offset: int
) -> tuple[Tensor, Tensor]:
    if is_fp8(x.dtype):
        bias, residual = (None if t is None else t.float() for t in (bias, residual))
        y, mask = bias_dropout_add(x.float(), bias, residual, p, seed, offset)
        return y.to(x.dtype), mask
    n = x.numel()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mask = torch.empty(words(n), dtype=torch.int32, device=x.device)
    if n == 0:
        return y, mask
    drops, drawn = philox_triton.arguments(p, seed, offset)
    x = x.contiguous()
    cols = x.shape[-1] if x.dim() else 1
    width = 4 if x.dtype.itemsize >= 4 else 8
    block = DRAWING_BLOCK if drops and width == 8 else BLOCK
    with torch.cuda.device_of(x):
        dropout_kernel[(triton.cdiv(n, block),)](
            x, x if bias is None else bias.contiguous(),
            x if residual is None else residual.contiguous(),
            y, mask, n, cols, *drawn,
            BIASED=bias is not None, ADDED=residual is not None, DROPS=drops,
            COLUMN=tl.int32 if cols < 2**31 - block else tl.int64,
            WHOLE=cols % width == 0, WIDTH=width, BLOCK=block, MASK_BITS=MASK_BITS,
        )  # fmt: skip
    return y, mask


def dropout(x: Tensor, p: float, seed: int, offset: int) -> tuple[Tensor, Tensor]:
    return bias_dropout_add(x, None, None, p, seed, offset)


def dropout_backward(grad: Tensor, mask: Tensor, p: float) -> Tensor:
    if is_fp8(grad.dtype):
        return dropout_backward(grad.float(), mask, p).to(grad.dtype)
    n = grad.numel()
    dx = torch.empty(grad.shape, dtype=grad.dtype, device=grad.device)
    if n:
        with torch.cuda.device_of(grad):
            dropout_backward_kernel[(triton.cdiv(n, BLOCK),)](
                grad.contiguous(), mask.contiguous(), dx, n, philox.keep_scale(p), BLOCK, MASK_BITS
            )
    return dx
