"""Attention to a cache of keys and values in Triton: contiguous or in pages, 16 bits or e4m3."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.attention.attention_triton import (
    narrowed,
    power,
    product,
    storage_format,
    stored,
    tanh,
)
from warpsmith.attention.options import empty_out
from warpsmith.core.catalogue import is_fp8
from warpsmith.core.twins import interpreting
from warpsmith.spec.checks import wide_dtype
from warpsmith.spec.triton.convert import decode

UNLIMITED = 1 << 30
#: In f32, where the error of a sum grows with how many terms are added one to another: keys whose
#: weights and values are summed by themselves, and likewise values of a query's row and of a key's.
PIECE, DEPTH = 256, 128
#: At 16 bits, whose rounding of weights is more than that, keys of a piece.
LONG_PIECE = 1 << 16


@triton.jit
def cached(
    cache_ptr, page, token, page_stride, token_stride, column, d, seen,
    FORMAT: tl.constexpr, KEPT: tl.constexpr, HARDWARE: tl.constexpr, ELEMENT: tl.constexpr,
):  # fmt: skip
    """A tile [keys, d] of a head of the cache as factors beside the queries; 0 where nothing is."""
    at = page * page_stride + token * token_stride
    x = tl.load(
        cache_ptr + at[:, None] + column[None, :],
        mask=seen[:, None] & (column[None, :] < d),
        other=0,
    )
    if KEPT == "e4m3":
        x = narrowed(decode(x, KEPT, HARDWARE), FORMAT, ELEMENT)
    return x


@triton.jit
def attention_with_kv_cache_kernel(
    q_ptr,  # [batch, m, heads, d]
    k_ptr,  # [pages, tokens, kv_heads, d]
    v_ptr,  # [pages, tokens, kv_heads, dv]
    out_ptr,  # [batch, m, heads, dv]
    lse_ptr,  # [batch, heads, m], or None
    lengths_ptr,  # [batch]
    table_ptr,  # [batch, width], or None
    slopes_ptr,  # [batch, heads] or [heads], or None
    sinks_ptr,  # [heads], or None
    tree_ptr,  # [batch, m], or None
    k_scale_ptr,  # [kv_heads], or one, or None
    v_scale_ptr,
    m,
    heads,
    kv_heads,
    d,
    dv,
    appended,
    tokens,
    pages,
    width,
    scale,
    softcap,
    left,
    right,
    slopes_batch,
    k_scale_step,
    v_scale_step,
    q_batch,
    q_token,
    q_head,
    k_page,
    k_token,
    k_head,
    v_page,
    v_token,
    v_head,
    out_batch,
    out_token,
    out_head,
    CAPPED: tl.constexpr,
    FORMAT: tl.constexpr,
    KEPT: tl.constexpr,
    HARDWARE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BQ: tl.constexpr,
    BV: tl.constexpr,
    LONG: tl.constexpr,
    PIECE: tl.constexpr,
):
    """Queries that share a head of keys, BM of them, packed; keys one tile after the other. LONG:
    rows of more than BQ values, read in pieces.
    """
    pair = tl.program_id(0)
    batch = pair // kv_heads
    kv_head = pair - batch * kv_heads
    group = heads // kv_heads
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    there = row < m * group
    query = row // group
    head = kv_head * group + row % group
    n = tl.load(lengths_ptr + batch) + appended
    place = query + n - m
    sequence = batch.to(tl.int64)
    out_column = tl.arange(0, BV)
    q_at = sequence * q_batch + query.to(tl.int64) * q_token + head.to(tl.int64) * q_head
    depth = tl.arange(0, BQ)
    q = tl.load(
        q_ptr + q_at[:, None] + depth[None, :],
        mask=there[:, None] & (depth[None, :] < d),
        other=0,
    )
    if k_scale_ptr is not None:
        scale *= tl.load(k_scale_ptr + kv_head * k_scale_step)
    largest = tl.full([BM], -float("inf"), dtype=tl.float32)
    total = tl.zeros([BM], dtype=tl.float32)
    if sinks_ptr is not None:
        largest = tl.load(sinks_ptr + head, mask=there, other=0.0)
        total = tl.where(largest == -float("inf"), 0.0, tl.exp(largest - largest))  # or NaN
    out = tl.zeros([BM, BV], dtype=tl.float32)

    first = tl.maximum(tl.program_id(1) * BM // group + n - m - left, 0)
    end = tl.minimum(
        tl.minimum(tl.program_id(1) * BM + BM, m * group) // group + n - m + right + 1, n
    )
    for first_of_piece in range(first // BN * BN, end, PIECE):
        before = largest
        piece_total = tl.zeros([BM], dtype=tl.float32)
        piece_out = tl.zeros([BM, BV], dtype=tl.float32)
        for start in range(first_of_piece, tl.minimum(first_of_piece + PIECE, end), BN):
            key = start + tl.arange(0, BN)
            of_cache = key < n
            page = (key - key) + batch
            token = key
            if table_ptr is not None:
                which = key // tokens
                token = key - which * tokens
                of_cache &= which < width
                page = tl.load(table_ptr + sequence * width + which, mask=of_cache, other=-1)
            of_cache &= (page >= 0) & (page < pages) & (token < tokens)
            page = page.to(tl.int64)
            token = token.to(tl.int64)

            # scores
            k_at = k_ptr + kv_head.to(tl.int64) * k_head
            k = cached(
                k_at, page, token, k_page, k_token, depth, d,
                of_cache, FORMAT, KEPT, HARDWARE, q_ptr.dtype.element_ty,
            )  # fmt: skip
            s = product(q, tl.trans(k), FORMAT) * scale
            if LONG:
                for c in range(BQ, d, BQ):
                    q_more = tl.load(
                        q_ptr + q_at[:, None] + (c + depth)[None, :],
                        mask=there[:, None] & ((c + depth)[None, :] < d),
                        other=0,
                    )
                    k = cached(
                        k_at, page, token, k_page, k_token, c + depth, d,
                        of_cache, FORMAT, KEPT, HARDWARE, q_ptr.dtype.element_ty,
                    )  # fmt: skip
                    s += product(q_more, tl.trans(k), FORMAT) * scale
            if CAPPED:
                s = softcap * tanh(s / softcap)
            past = key[None, :] - place[:, None]
            if slopes_ptr is not None:
                slope = tl.load(slopes_ptr + batch * slopes_batch + head, mask=there, other=0.0)
                s -= slope[:, None] * tl.abs(past).to(tl.float32)
            seen = (past >= -left) & (past <= right) & of_cache[None, :]
            if tree_ptr is not None:
                word = tl.load(tree_ptr + sequence * m + query, mask=there, other=0)
                drafted = key - (n - m)
                bit = (word[:, None] >> tl.maximum(drafted, 0).to(tl.int64)[None, :]) & 1
                seen &= (drafted[None, :] < 0) | (bit != 0)
            s = tl.where(seen, s, -float("inf"))

            # softmax
            top = tl.maximum(largest, tl.max(s, axis=1))
            base = tl.where(top == -float("inf"), 0.0, top)
            rescale = power(largest - base, False)
            weight = power(s - base[:, None], False)
            piece_total = piece_total * rescale + tl.sum(weight, axis=1)
            largest = top

            # values
            v = cached(
                v_ptr + kv_head.to(tl.int64) * v_head, page, token, v_page, v_token, out_column, dv,
                of_cache, FORMAT, KEPT, HARDWARE, q_ptr.dtype.element_ty,
            )  # fmt: skip
            weights = narrowed(weight, FORMAT, q_ptr.dtype.element_ty)
            piece_out = piece_out * rescale[:, None] + product(weights, v, FORMAT)

        rescale = power(before - tl.where(largest == -float("inf"), 0.0, largest), False)
        total = total * rescale + piece_total
        out = out * rescale[:, None] + piece_out

    empty = total == 0.0
    divisor = tl.where(empty, 1.0, total)
    if v_scale_ptr is not None:
        out *= tl.load(v_scale_ptr + kv_head * v_scale_step)
    out = tl.where(empty[:, None], 0.0, out / divisor[:, None])
    out_at = sequence * out_batch + query.to(tl.int64) * out_token + head.to(tl.int64) * out_head
    tl.store(
        out_ptr + out_at[:, None] + out_column[None, :],
        narrowed(out, FORMAT, q_ptr.dtype.element_ty),
        mask=there[:, None] & (out_column[None, :] < dv),
    )
    if lse_ptr is not None:
        lse = tl.where(empty, -float("inf"), largest + tl.log(divisor))
        tl.store(lse_ptr + (sequence * heads + head) * m + query, lse, mask=there)


def attention_with_kv_cache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor,
    scale: float,
    block_table: Tensor | None,
    appended: int,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
    tree: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    return_lse: bool,
    batch_invariant: bool,
) -> tuple[Tensor, Tensor | None]:
    batch, m, heads, d = q.shape
    pages, tokens, kv_heads, _ = k_cache.shape
    dv = v_cache.shape[3]
    out = empty_out(q, dv)
    lse = q.new_empty((batch, heads, m), dtype=wide_dtype(q.dtype)) if return_lse else None
    if out.numel() == 0 and (lse is None or lse.numel() == 0):
        return out, lse
    given = q if q.stride(3) == 1 or d == 1 else q.contiguous()
    kept = [
        x if x.stride(3) == 1 or x.shape[3] <= 1 else x.contiguous() for x in (k_cache, v_cache)
    ]
    if is_fp8(k_cache.dtype):
        kept = [x.view(torch.uint8) for x in kept]
    hardware = not interpreting() and torch.cuda.get_device_capability(q.device) >= (8, 9)
    rows = m * (heads // kv_heads)
    bm = 16 if rows <= 16 else 32
    deep, long = (max(16, triton.next_power_of_2(max(x, 1))) for x in (d, dv))
    single = q.dtype == torch.float32

    def dense(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.contiguous()

    def side(keys: int) -> int:
        return UNLIMITED if keys < 0 else min(keys, UNLIMITED)

    with torch.cuda.device_of(q):
        attention_with_kv_cache_kernel[(batch * kv_heads, triton.cdiv(rows, bm))](
            *stored(given, *kept, out),
            lse,
            lengths.contiguous(),
            dense(block_table),
            None if alibi_slopes is None else alibi_slopes.float().contiguous(),
            None if sinks is None else sinks.float().contiguous(),
            dense(tree),
            None if k_scale is None else k_scale.float().contiguous(),
            None if v_scale is None else v_scale.float().contiguous(),
            m,
            heads,
            kv_heads,
            d,
            dv,
            appended,
            tokens,
            pages,
            1 if block_table is None else block_table.shape[1],
            scale,
            softcap,
            side(window_left),
            0 if causal else side(window_right),
            heads if alibi_slopes is not None and alibi_slopes.dim() == 2 else 0,
            0 if k_scale is None else k_scale.dim(),
            0 if v_scale is None else v_scale.dim(),
            *given.stride()[:3],
            *kept[0].stride()[:3],
            *kept[1].stride()[:3],
            *out.stride()[:3],
            CAPPED=softcap > 0.0,
            FORMAT=storage_format(q.dtype),
            KEPT="e4m3" if is_fp8(k_cache.dtype) else "",
            HARDWARE=hardware,
            BM=bm,
            BN=max(16, min(32 if single else 64, (4096 if single else 8192) // max(deep, long))),
            BQ=min(deep, DEPTH) if single else deep,
            BV=long,
            LONG=single and d > DEPTH,
            PIECE=PIECE if single else LONG_PIECE,
            num_warps=8,  # fewer have too few registers
            num_stages=1 if single else 2,  # in 99 KB
        )
    return out, lse
