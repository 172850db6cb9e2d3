"""Rotary positions in Triton."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.spec.memory import empty_rows_like, has_unit_columns, step
from warpsmith.spec.triton.rotary import angle_tables

BLOCK_HEADS = 8


@triton.jit
def rope_kernel(
    x_ptr,  # [batch, tokens, heads, d]
    y_ptr,  # [batch, tokens, heads, d]
    cos_ptr,  # [batch or 1, tokens, pairs] f32
    sin_ptr,  # [batch or 1, tokens, pairs] f32
    tokens,
    heads,
    x_batch,
    x_token,
    x_head,
    y_batch,
    y_token,
    y_head,
    cos_batch,
    pairs,
    rest,
    INTERLEAVED: tl.constexpr,
    COPIES: tl.constexpr,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    REST: tl.constexpr,
):
    """A token per program, some heads at a time."""
    program = tl.program_id(0).to(tl.int64)
    batch = program // tokens
    token = program - batch * tokens
    pair = tl.arange(0, PAIRS)
    turning = pair < pairs
    angle = batch * cos_batch + token * pairs + pair
    cosine = tl.load(cos_ptr + angle, mask=turning, other=0.0)[None, :]
    sine = tl.load(sin_ptr + angle, mask=turning, other=0.0)[None, :]
    if INTERLEAVED:
        first = (2 * pair)[None, :]
        second = (2 * pair + 1)[None, :]
    else:
        first = pair[None, :]
        second = (pair + pairs)[None, :]
    for start in range(0, heads, HEADS):
        head = (start + tl.arange(0, HEADS)).to(tl.int64)[:, None]
        there = (head < heads) & turning[None, :]
        x = x_ptr + batch * x_batch + token * x_token + head * x_head
        y = y_ptr + batch * y_batch + token * y_token + head * y_head
        low = tl.load(x + first, mask=there, other=0.0).to(tl.float32)
        high = tl.load(x + second, mask=there, other=0.0).to(tl.float32)
        kept = tl.arange(0, REST)
        copied = (head < heads) & (kept < rest)[None, :]
        if COPIES:
            column = (kept + 2 * pairs)[None, :]
            values = tl.load(x + column, mask=copied, other=0.0)
            tl.store(y + column, values, mask=copied)
        tl.store(y + first, (low * cosine - high * sine).to(y_ptr.dtype.element_ty), mask=there)
        tl.store(y + second, (high * cosine + low * sine).to(y_ptr.dtype.element_ty), mask=there)


def _rotate(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> None:
    batch, tokens, heads, d = x.shape
    if x.numel() == 0:
        return
    pairs = cos.shape[-1]
    rest = d - 2 * pairs
    same = x.data_ptr() == y.data_ptr()
    with torch.cuda.device_of(x):
        rope_kernel[(batch * tokens,)](
            x,
            y,
            cos,
            sin,
            tokens,
            heads,
            *(step(x, i) for i in range(3)),
            *(step(y, i) for i in range(3)),
            cos.stride(0) if cos.shape[0] > 1 else 0,
            pairs,
            rest,
            INTERLEAVED=interleaved,
            COPIES=rest > 0 and not same,
            HEADS=BLOCK_HEADS,
            PAIRS=triton.next_power_of_2(pairs),
            REST=triton.next_power_of_2(max(rest, 1)),
        )


def rope(
    q: Tensor,
    k: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    positions: Tensor | None,
    turns: Tensor | None,
    axes: Tensor | None,
    factor: float,
    interleaved: bool,
    inverse: bool,
) -> tuple[Tensor, Tensor]:
    c, s = angle_tables(q, cos, sin, positions, turns, axes, factor, inverse)
    out = empty_rows_like(q), empty_rows_like(k)
    for x, y in zip((q, k), out, strict=True):
        _rotate(x if has_unit_columns(x) else x.contiguous(), y, c, s, interleaved)
    return out


def rope_inplace(
    q: Tensor,
    k: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    positions: Tensor | None,
    turns: Tensor | None,
    axes: Tensor | None,
    factor: float,
    interleaved: bool,
    inverse: bool,
) -> None:
    c, s = angle_tables(q, cos, sin, positions, turns, axes, factor, inverse)
    for x in (q, k):
        y = x if has_unit_columns(x) else x.contiguous()
        _rotate(y, y, c, s, interleaved)
        if y is not x:
            x.copy_(y)
