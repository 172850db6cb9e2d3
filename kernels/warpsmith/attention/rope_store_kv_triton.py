"""Rotary positions and the cache of keys and values in Triton."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.attention.rope_store_kv import positions_of
from warpsmith.attention.store_kv_triton import find_place, store_heads
from warpsmith.core.catalogue import is_fp8
from warpsmith.core.twins import interpreting
from warpsmith.spec.memory import empty_rows_like, has_unit_columns, step
from warpsmith.spec.triton.convert import encode
from warpsmith.spec.triton.rotary import angle_tables

BLOCK_HEADS = 8


@triton.jit
def _narrowed(x, scale, NARROWS: tl.constexpr, DTYPE: tl.constexpr, HARDWARE: tl.constexpr):
    """Turned values as they are stored: in their own dtype, or from there in e4m3."""
    y = x.to(DTYPE)
    if NARROWS:
        wide = tl.div_rn(y.to(tl.float32), scale)
        wide = tl.where(wide > 448.0, 448.0, wide)  # NaN passes
        wide = tl.where(wide < -448.0, -448.0, wide)
        y = encode(wide, "e4m3", HARDWARE, tl.uint8)
    return y


@triton.jit
def rope_store_kernel(
    x_ptr,  # [batch, m, heads, d]
    y_ptr,  # the same, or [pages, tokens, heads, d]
    cos_ptr,  # [batch or 1, m, pairs] f32
    sin_ptr,  # [batch or 1, m, pairs] f32
    slots_ptr,  # [batch, m]
    lengths_ptr,  # [batch]
    table_ptr,  # [batch, width]
    scale_ptr,  # [heads], or one
    m,
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
    tokens,
    pages,
    width,
    STORES: tl.constexpr,
    HAS_SLOTS: tl.constexpr,
    HAS_TABLE: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    SCALE_STEP: tl.constexpr,
    HARDWARE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    COPIES: tl.constexpr,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    REST: tl.constexpr,
):
    """A token per program, some heads at a time: into y as x lies, or into a cache."""
    program = tl.program_id(0).to(tl.int64)
    batch = program // m
    token = program - batch * m
    if STORES:
        page, place = find_place(
            slots_ptr, lengths_ptr, table_ptr, program, batch, token, tokens, width,
            HAS_SLOTS, HAS_TABLE,
        )  # fmt: skip
        stored = (page >= 0) & (page < pages)
        to = y_ptr + page[:, None] * y_batch + place[:, None] * y_token
    else:
        stored = tl.full([1], 1, tl.int1)
        to = y_ptr + batch * y_batch + token * y_token
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
        known = (head < heads) & stored[:, None]
        there = known & turning[None, :]
        x = x_ptr + batch * x_batch + token * x_token + head * x_head
        y = to + head * y_head
        scale = head.to(tl.float32)
        if HAS_SCALE:
            scale = tl.load(scale_ptr + head * SCALE_STEP, mask=known, other=1.0).to(tl.float32)
        low = tl.load(x + first, mask=there, other=0.0).to(tl.float32)
        high = tl.load(x + second, mask=there, other=0.0).to(tl.float32)
        kept = tl.arange(0, REST)
        copied = known & (kept < rest)[None, :]
        of = x_ptr.dtype.element_ty
        if COPIES:
            column = (kept + 2 * pairs)[None, :]
            values = tl.load(x + column, mask=copied, other=0.0)
            if HAS_SCALE:
                values = _narrowed(values, scale, HAS_SCALE, of, HARDWARE)
            tl.store(y + column, values, mask=copied)
        one = low * cosine - high * sine
        two = high * cosine + low * sine
        tl.store(y + first, _narrowed(one, scale, HAS_SCALE, of, HARDWARE), mask=there)
        tl.store(y + second, _narrowed(two, scale, HAS_SCALE, of, HARDWARE), mask=there)


def _turn(
    x: Tensor,
    y: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool,
    slots: Tensor | None,
    lengths: Tensor | None,
    block_table: Tensor | None,
    scale: Tensor | None,
    stores: bool,
) -> None:
    if x.numel() == 0:
        return
    batch, m, heads, d = x.shape
    pairs = cos.shape[-1]
    rest = d - 2 * pairs
    same = not stores and x.data_ptr() == y.data_ptr()

    def stand_in(t: Tensor | None) -> Tensor:
        return x if t is None else t.contiguous()

    with torch.cuda.device_of(x):
        rope_store_kernel[(batch * m,)](
            x,
            y.view(torch.uint8) if is_fp8(y.dtype) else y,
            cos,
            sin,
            stand_in(slots),
            stand_in(lengths),
            stand_in(block_table),
            stand_in(scale),
            m,
            heads,
            *(step(x, i) for i in range(3)),
            *(step(y, i) for i in range(3)),
            cos.stride(0) if cos.shape[0] > 1 else 0,
            pairs,
            rest,
            y.shape[1],
            y.shape[0],
            1 if block_table is None else block_table.shape[1],
            STORES=stores,
            HAS_SLOTS=slots is not None,
            HAS_TABLE=block_table is not None,
            HAS_SCALE=scale is not None and stores,
            SCALE_STEP=0 if scale is None else scale.dim(),
            HARDWARE=not interpreting() and torch.cuda.get_device_capability(x.device) >= (8, 9),
            INTERLEAVED=interleaved,
            COPIES=rest > 0 and not same,
            HEADS=BLOCK_HEADS,
            PAIRS=triton.next_power_of_2(pairs),
            REST=triton.next_power_of_2(max(rest, 1)),
        )


def _rope_store_kv(
    q: Tensor,
    q_out: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    positions: Tensor | None,
    turns: Tensor | None,
    axes: Tensor | None,
    slots: Tensor | None,
    lengths: Tensor | None,
    block_table: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    factor: float,
    interleaved: bool,
) -> None:
    at = positions_of(k, cos, positions, lengths)
    c, s = angle_tables(q, cos, sin, at, turns, axes, factor, inverse=False)
    _turn(
        q if has_unit_columns(q) else q.contiguous(), q_out, c, s, interleaved,
        None, None, None, None, stores=False,
    )  # fmt: skip
    keys = k if has_unit_columns(k) else k.contiguous()
    cache = k_cache if has_unit_columns(k_cache) else k_cache.contiguous()
    _turn(keys, cache, c, s, interleaved, slots, lengths, block_table, k_scale, stores=True)
    if cache is not k_cache:
        k_cache.copy_(cache)
    store_heads(v, v_cache, slots, lengths, block_table, v_scale)


def rope_store_kv(q: Tensor, *given: object) -> Tensor:
    q_out = empty_rows_like(q)
    _rope_store_kv(q, q_out, *given)  # type: ignore[arg-type]
    return q_out


def rope_store_kv_inplace(q: Tensor, *given: object) -> None:
    y = q if has_unit_columns(q) else q.contiguous()
    _rope_store_kv(y, y, *given)  # type: ignore[arg-type]
    if y is not q:
        q.copy_(y)
