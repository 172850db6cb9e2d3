"""Appending keys and values to a cache in Triton."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import is_fp8
from warpsmith.core.twins import interpreting
from warpsmith.spec.triton.convert import decode, encode

BLOCK = 256


@triton.jit
def find_place(
    slots_ptr,
    lengths_ptr,
    table_ptr,
    token,
    sequence,
    i,
    tokens,
    width,
    HAS_SLOTS: tl.constexpr,
    HAS_TABLE: tl.constexpr,
):
    """The page of token i of a sequence, `token` of all, and its place there, each a block of one;
    -1 for one that has none.
    """
    # whole blocks of one value: the interpreter takes no mask that is a number
    one = tl.zeros([1], dtype=tl.int64)
    if HAS_SLOTS:
        slot = tl.load(slots_ptr + token) + one
        page = tl.where(slot >= 0, slot // tokens, -1)
        place = slot - slot // tokens * tokens
    else:
        position = tl.load(lengths_ptr + sequence).to(tl.int64) + i + one
        which = position // tokens
        there = (position >= 0) & (which < width)
        place = position - which * tokens
        page = sequence + one
        if HAS_TABLE:
            page = tl.load(table_ptr + sequence * width + which, mask=there, other=-1).to(tl.int64)
        page = tl.where(there, page, -1)
    return page, place


@triton.jit
def store_kv_kernel(
    x_ptr,  # [batch, m, heads, d]
    cache_ptr,  # [pages, tokens, heads, d]
    slots_ptr,  # [batch, m]
    lengths_ptr,  # [batch]
    table_ptr,  # [batch, width]
    scale_ptr,  # [heads], or one
    m,
    heads,
    d,
    x_batch,
    x_token,
    x_head,
    cache_page,
    cache_token,
    cache_head,
    tokens,
    pages,
    width,
    HAS_SLOTS: tl.constexpr,
    HAS_TABLE: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    SCALE_STEP: tl.constexpr,
    READ_AS: tl.constexpr,
    HARDWARE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A token per program; one without a place in the cache is left out."""
    token = tl.program_id(0).to(tl.int64)
    sequence = token // m
    i = token - sequence * m
    page, place = find_place(
        slots_ptr,
        lengths_ptr,
        table_ptr,
        token,
        sequence,
        i,
        tokens,
        width,
        HAS_SLOTS,
        HAS_TABLE,
    )
    there = (page >= 0) & (page < pages)
    for start in range(0, heads * d, BLOCK):
        at = start + tl.arange(0, BLOCK)
        head = at // d
        column = at - head * d
        within = there & (at < heads * d)
        x = tl.load(
            x_ptr + sequence * x_batch + i * x_token + head * x_head + column,
            mask=within,
            other=0,
        )
        if HAS_SCALE:
            scale = tl.load(scale_ptr + head * SCALE_STEP, mask=within, other=1.0)
            y = tl.div_rn(decode(x, READ_AS, HARDWARE), scale.to(tl.float32))
            y = tl.where(y > 448.0, 448.0, y)  # NaN passes
            y = tl.where(y < -448.0, -448.0, y)
            x = encode(y, "e4m3", HARDWARE, tl.uint8)
        to = cache_ptr + page * cache_page + place * cache_token + head * cache_head + column
        tl.store(to, x, mask=within)


def store_heads(
    new: Tensor,
    cache: Tensor,
    slots: Tensor | None,
    lengths: Tensor | None,
    block_table: Tensor | None,
    scale: Tensor | None,
) -> None:
    """Keys, or values, of new tokens."""
    if new.numel() == 0:
        return
    pages, tokens = cache.shape[:2]
    width = 1 if block_table is None else block_table.shape[1]
    hardware = not interpreting() and torch.cuda.get_device_capability(new.device) >= (8, 9)

    def stand_in(x: Tensor | None) -> Tensor:
        return new if x is None else x.contiguous()

    x = new if new.stride(3) == 1 else new.contiguous()
    gaps = cache.stride(3) != 1
    y = cache.contiguous() if gaps else cache
    # Triton's interpreter drops what is subnormal in bfloat16; as integers it stays.
    read_as = "bf16" if scale is not None and interpreting() and new.dtype == torch.bfloat16 else ""
    if is_fp8(y.dtype):
        given = (x.view(torch.int16) if read_as else x, y.view(torch.uint8))
    else:
        same = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
        given = (x.view(same), y.view(same))
    with torch.cuda.device_of(new):
        store_kv_kernel[(new.shape[0] * new.shape[1],)](
            *given,
            stand_in(slots),
            stand_in(lengths),
            stand_in(block_table),
            stand_in(scale),
            new.shape[1],
            *x.shape[2:],
            *x.stride()[:3],
            *y.stride()[:3],
            tokens,
            pages,
            width,
            HAS_SLOTS=slots is not None,
            HAS_TABLE=block_table is not None,
            HAS_SCALE=scale is not None,
            SCALE_STEP=0 if scale is None else scale.dim(),
            READ_AS=read_as,
            HARDWARE=hardware,
            BLOCK=BLOCK,
        )
    if gaps:
        cache.copy_(y)


def store_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor | None,
    lengths: Tensor | None,
    block_table: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> None:
    for new, cache, scale in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        store_heads(new, cache, slots, lengths, block_table, scale)
