"""Gradients of attention in Triton: nothing is added by atomics, so that all bits stay the same.

dk and dv of a tile of keys are summed over the queries and heads that see it, dq of a tile of
queries over the keys: each score is computed twice. What a bias gets is a third such pass, over the
places of the bias, with the sum over what it was broadcast along inside.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.attention.attention_triton import (
    Lengths,
    Options,
    first_of,
    keeps_of,
    keys_seen,
    narrowed,
    options,
    power,
    product,
    queries_seeing,
    scores,
    sequence,
    storage_format,
    stored,
    visible,
)
from warpsmith.attention.flash_attention_triton import (
    LOG2E,
    Tile,
    aligned,
    in_pieces,
    is_plain,
    is_windowed,
    products,
    row_strides,
    widths,
)
from warpsmith.attention.options import empty_out
from warpsmith.spec.triton import philox as philox_triton
from warpsmith.spec.triton.convert import decode, encode
from warpsmith.spec.triton.functions import logistic
from warpsmith.spec.triton.philox import NOT_SPECIALISED

#: Queries and keys of a tile, by head dimension: for dk and dv, a program has `n` keys; for dq,
#: `m` queries.
HALVES: Mapping[int, tuple[Tile, Tile]] = {
    64: (Tile(64, 64, 8, 2), Tile(64, 64, 8, 2)),
    128: (Tile(32, 64, 8, 2), Tile(64, 32, 8, 2)),
    256: (Tile(16, 32, 8, 1), Tile(32, 16, 8, 1)),
    512: (Tile(16, 16, 8, 1), Tile(16, 16, 8, 1)),
    1024: (Tile(16, 16, 8, 1), Tile(16, 16, 8, 1)),
}
#: Beside options, or where rows end within the tile: what addresses and values of these take would
#: spill.
WITH_OPTIONS: Mapping[int, tuple[Tile, Tile]] = {
    **HALVES,
    64: (Tile(64, 32, 8, 1), Tile(32, 64, 8, 1)),
    128: (Tile(32, 16, 8, 1), Tile(16, 32, 8, 1)),
    256: (Tile(16, 16, 8, 1), Tile(16, 16, 8, 1)),
}
SINGLES: Mapping[int, tuple[Tile, Tile]] = {
    64: (Tile(32, 32, 8, 1), Tile(32, 32, 8, 1)),
    **dict.fromkeys((128, 256, 512, 1024), (Tile(16, 16, 8, 1), Tile(16, 16, 8, 1))),
}
#: Rows of a program that prepares.
ROWS = 16


@triton.jit
def prepare_kernel(
    grad_ptr, out_ptr, gate_ptr,  # rows of heads, strides of batch, token and head
    do_ptr, dgate_ptr,  # likewise
    grad_lse_ptr,  # [batch, heads, m] f32, or [heads, all tokens]
    delta_ptr,  # likewise
    grad_strides, out_strides, gate_strides, do_strides, dgate_strides,
    tokens, heads, tiles,
    FORMAT: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """delta = sum(grad out) - grad_lse. Behind a gate also the gradients of what it lets through,
    grad sigmoid(gate), and of the gate itself, grad out (1 - sigmoid(gate)).
    """
    head = (tl.program_id(0) // tiles % heads).to(tl.int64)
    batch = (tl.program_id(0) // tiles // heads).to(tl.int64)
    row = tl.program_id(0) % tiles * BM + tl.arange(0, BM)
    token = row[:, None].to(tl.int64)
    dim = tl.arange(0, BDV)[None, :]
    valid = (token < tokens) & (dim < DV)
    at = batch * grad_strides[0] + token * grad_strides[1] + head * grad_strides[2] + dim
    grad = decode(tl.load(grad_ptr + at, mask=valid, other=0), FORMAT, False)
    at = batch * out_strides[0] + token * out_strides[1] + head * out_strides[2] + dim
    out = decode(tl.load(out_ptr + at, mask=valid, other=0), FORMAT, False)
    delta = tl.sum(grad * out, 1)
    rows = (batch * heads + head) * tokens + row
    if grad_lse_ptr is not None:
        delta -= tl.load(grad_lse_ptr + rows, mask=row < tokens, other=0.0)
    tl.store(delta_ptr + rows, delta, mask=row < tokens)
    if gate_ptr is not None:
        at = batch * gate_strides[0] + token * gate_strides[1] + head * gate_strides[2] + dim
        gate = decode(tl.load(gate_ptr + at, mask=valid, other=0), FORMAT, False)
        through = logistic(gate, True)
        do = encode(grad * through, FORMAT, False, do_ptr.dtype.element_ty)
        at = batch * do_strides[0] + token * do_strides[1] + head * do_strides[2] + dim
        tl.store(do_ptr + at, do, mask=valid)
        dgate = encode(grad * out * logistic(-gate, True), FORMAT, False, do_ptr.dtype.element_ty)
        at = batch * dgate_strides[0] + token * dgate_strides[1] + head * dgate_strides[2] + dim
        tl.store(dgate_ptr + at, dgate, mask=valid)


@triton.jit
def gradients(
    qk, dov, lse, delta, given, at, query, key, m, n, drops, keep_scale,
    BASE2: tl.constexpr, DROPS: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    """Of a tile, either way round: the weights of its values, the gradient of its scores, and the
    derivative of the soft cap.
    """
    batch, heads, head = at
    place = query + (n - m)
    inside = (query < m) & (key < n)
    s, slope = scores(qk, given, batch, head, query, key, place, inside, FORMAT)
    sees = visible(given, batch, head, query, key, place, m, n, inside)
    p = tl.where(sees, power(s - lse, BASE2), 0.0)
    weight = p
    dp = dov
    if DROPS:
        kept = keeps_of(given, batch, heads, head, query, key, drops)
        weight = tl.where(kept, p * keep_scale, 0.0)
        dp = tl.where(kept, dov * keep_scale, 0.0)
    ds = tl.where(sees, p * (dp - delta), 0.0)
    return weight, ds, slope


@triton.jit
def row_values(lse_ptr, delta_ptr, rows, live, BASE2: tl.constexpr):
    """The LSE, +inf for rows that see nothing, so that their weights are 0, and delta."""
    lse = tl.load(lse_ptr + rows, mask=live, other=float("inf"))
    lse = tl.where(lse == -float("inf"), float("inf"), lse)
    if BASE2:
        lse *= 1.4426950408889634
    return lse, tl.load(delta_ptr + rows, mask=live, other=0.0)


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def keys_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr,  # rows of heads, strides of batch, token and head
    lse_ptr, delta_ptr,  # [batch, heads, m] f32, or [heads, all tokens]
    dk_ptr, dv_ptr,
    q_strides, k_strides, v_strides, do_strides, dk_strides, dv_strides,
    given, heads, group, row_stride, tiles, scale,
    seed, offset, last_dropped, keep_scale,
    BASE2: tl.constexpr, DROPS: tl.constexpr, FORMAT: tl.constexpr,
    QK_PIECES: tl.constexpr, VO_PIECES: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """dk and dv of a tile of keys, over all heads that share it."""
    tile = tl.program_id(0) % tiles
    kv_heads = heads // group
    kv_head = tl.program_id(0) // tiles % kv_heads
    batch = tl.program_id(0) // tiles // kv_heads
    m, n, q_first, k_first = sequence(given.lengths, batch)
    if tile * BN >= n:
        return
    wide_batch, wide_head = batch.to(tl.int64), kv_head.to(tl.int64)
    k_ptr += wide_batch * k_strides[0] + k_first * k_strides[1] + wide_head * k_strides[2]
    v_ptr += wide_batch * v_strides[0] + k_first * v_strides[1] + wide_head * v_strides[2]
    q_ptr += wide_batch * q_strides[0] + q_first * q_strides[1]
    do_ptr += wide_batch * do_strides[0] + q_first * do_strides[1]

    key = tile * BN + tl.arange(0, BN)[:, None]  # [BN, 1]
    wide_key = key.to(tl.int64)
    dim, v_dim = tl.arange(0, BD)[None, :], tl.arange(0, BDV)[None, :]
    k, v = key, key  # longer rows are read in pieces
    if not QK_PIECES:
        k = tl.load(k_ptr + wide_key * k_strides[1] + dim,
                    mask=(key < n) & (dim < D), other=0)  # fmt: skip
    if not VO_PIECES:
        v = tl.load(v_ptr + wide_key * v_strides[1] + v_dim,
                    mask=(key < n) & (v_dim < DV), other=0)  # fmt: skip
    dk = tl.zeros([BN, BD], dtype=tl.float32)
    dv = tl.zeros([BN, BDV], dtype=tl.float32)
    drops = (seed, offset, last_dropped)
    low, high = queries_seeing(given, tile * BN, tl.minimum(tile * BN + BN, n), m, n)
    low = low // BM * BM
    for member in range(group):
        head = kv_head * group + member
        q_at = q_ptr + tl.cast(head, tl.int64) * q_strides[2]
        do_at = do_ptr + tl.cast(head, tl.int64) * do_strides[2]
        rows = first_of(given.lengths, batch, q_first, row_stride, heads, head)
        for start in range(low, high, BM):
            query = start + tl.arange(0, BM)[None, :]  # [1, BM]
            token = start + tl.arange(0, BM)[:, None]  # [BM, 1]
            lse, delta = row_values(lse_ptr, delta_ptr, rows + query, query < m, BASE2)
            qk = products(k, k_ptr, q_at, k_strides[1], q_strides[1], key, query, n, m,
                          True, QK_PIECES, FORMAT, D, BD)  # fmt: skip
            dov = products(v, v_ptr, do_at, v_strides[1], do_strides[1], key, query, n, m,
                           True, VO_PIECES, FORMAT, DV, BDV)  # fmt: skip
            weight, ds, slope = gradients(
                qk, dov, lse, delta, given, (batch, heads, head), query, key, m, n,
                drops, keep_scale, BASE2, DROPS, FORMAT,
            )  # fmt: skip
            do = tl.load(do_at + token.to(tl.int64) * do_strides[1] + v_dim,
                         mask=(token < m) & (v_dim < DV), other=0)  # fmt: skip
            dv += product(narrowed(weight, FORMAT, do_ptr.dtype.element_ty), do, FORMAT)
            q = tl.load(q_at + token.to(tl.int64) * q_strides[1] + dim,
                        mask=(token < m) & (dim < D), other=0)  # fmt: skip
            dk += product(narrowed(ds * slope, FORMAT, q_ptr.dtype.element_ty), q, FORMAT)
    dk_ptr += wide_batch * dk_strides[0] + k_first * dk_strides[1] + wide_head * dk_strides[2]
    dv_ptr += wide_batch * dv_strides[0] + k_first * dv_strides[1] + wide_head * dv_strides[2]
    dk = encode(dk * scale, FORMAT, False, dk_ptr.dtype.element_ty)
    tl.store(dk_ptr + wide_key * dk_strides[1] + dim, dk, mask=(key < n) & (dim < D))
    dv = encode(dv, FORMAT, False, dv_ptr.dtype.element_ty)
    tl.store(dv_ptr + wide_key * dv_strides[1] + v_dim, dv, mask=(key < n) & (v_dim < DV))


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def queries_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr,  # rows of heads, strides of batch, token and head
    lse_ptr, delta_ptr,  # [batch, heads, m] f32, or [heads, all tokens]
    dq_ptr,
    dslope_ptr,  # like lse: of each row, what the slope of its head gets
    q_strides, k_strides, v_strides, do_strides, dq_strides,
    given, heads, group, row_stride, tiles, scale,
    seed, offset, last_dropped, keep_scale,
    BASE2: tl.constexpr, DROPS: tl.constexpr, FORMAT: tl.constexpr, LATE_FIRST: tl.constexpr,
    QK_PIECES: tl.constexpr, VO_PIECES: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """dq of a tile of queries."""
    tile = tl.program_id(0) % tiles
    if LATE_FIRST:
        tile = tiles - 1 - tile
    head = tl.program_id(0) // tiles % heads
    batch = tl.program_id(0) // tiles // heads
    m, n, q_first, k_first = sequence(given.lengths, batch)
    if tile * BM >= m:
        return
    wide_batch, wide_head = batch.to(tl.int64), head.to(tl.int64)
    kv_head = (head // group).to(tl.int64)
    q_ptr += wide_batch * q_strides[0] + q_first * q_strides[1] + wide_head * q_strides[2]
    do_ptr += wide_batch * do_strides[0] + q_first * do_strides[1] + wide_head * do_strides[2]
    k_ptr += wide_batch * k_strides[0] + k_first * k_strides[1] + kv_head * k_strides[2]
    v_ptr += wide_batch * v_strides[0] + k_first * v_strides[1] + kv_head * v_strides[2]

    query = tile * BM + tl.arange(0, BM)[:, None]  # [BM, 1]
    token = query.to(tl.int64)
    dim, v_dim = tl.arange(0, BD)[None, :], tl.arange(0, BDV)[None, :]
    q, do = query, query  # longer rows are read in pieces
    if not QK_PIECES:
        q = tl.load(q_ptr + token * q_strides[1] + dim,
                    mask=(query < m) & (dim < D), other=0)  # fmt: skip
    if not VO_PIECES:
        do = tl.load(do_ptr + token * do_strides[1] + v_dim,
                     mask=(query < m) & (v_dim < DV), other=0)  # fmt: skip
    rows = first_of(given.lengths, batch, q_first, row_stride, heads, head)
    lse, delta = row_values(lse_ptr, delta_ptr, rows + query, query < m, BASE2)
    dq = tl.zeros([BM, BD], dtype=tl.float32)
    dslope = tl.zeros([BM], dtype=tl.float32)
    drops = (seed, offset, last_dropped)
    low, high = keys_seen(given, tile * BM, tl.minimum(tile * BM + BM, m), m, n)
    for start in range(low // BN * BN, high, BN):
        key = start + tl.arange(0, BN)[None, :]  # [1, BN]
        row = start + tl.arange(0, BN)[:, None]  # [BN, 1]
        qk = products(q, q_ptr, k_ptr, q_strides[1], k_strides[1], query, key, m, n,
                      True, QK_PIECES, FORMAT, D, BD)  # fmt: skip
        dov = products(do, do_ptr, v_ptr, do_strides[1], v_strides[1], query, key, m, n,
                       True, VO_PIECES, FORMAT, DV, BDV)  # fmt: skip
        _, ds, slope = gradients(
            qk, dov, lse, delta, given, (batch, heads, head), query, key, m, n,
            drops, keep_scale, BASE2, DROPS, FORMAT,
        )  # fmt: skip
        if dslope_ptr is not None:
            away = tl.abs(key - (query + (n - m))).to(tl.float32)
            dslope -= tl.sum(ds * away, 1)
        k = tl.load(k_ptr + row.to(tl.int64) * k_strides[1] + dim,
                    mask=(row < n) & (dim < D), other=0)  # fmt: skip
        dq += product(narrowed(ds * slope, FORMAT, k_ptr.dtype.element_ty), k, FORMAT)
    dq_ptr += wide_batch * dq_strides[0] + q_first * dq_strides[1] + wide_head * dq_strides[2]
    dq = encode(dq * scale, FORMAT, False, dq_ptr.dtype.element_ty)
    tl.store(dq_ptr + token * dq_strides[1] + dim, dq, mask=(query < m) & (dim < D))
    if dslope_ptr is not None:
        at = tile * BM + tl.arange(0, BM)
        tl.store(dslope_ptr + rows + at, dslope, mask=at < m)


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def bias_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr,  # rows of heads, strides of batch, token and head
    lse_ptr, delta_ptr,  # [batch, heads, m] f32, or [heads, all tokens]
    dbias_ptr,  # [own batch, own heads, own m, own n]: 1 where the bias was broadcast
    q_strides, k_strides, v_strides, do_strides,
    given, batches, heads, group, row_stride, own, tiles_m, tiles_n,
    seed, offset, last_dropped, keep_scale,
    BASE2: tl.constexpr, DROPS: tl.constexpr, FORMAT: tl.constexpr,
    SUMS_M: tl.constexpr, SUMS_N: tl.constexpr,
    QK_PIECES: tl.constexpr, VO_PIECES: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """What a tile of the bias gets, over all batches, heads, queries and keys that share it."""
    # the tile, and over how many of each it sums
    across = 1 if SUMS_N else tiles_n
    down = 1 if SUMS_M else tiles_m
    index = tl.program_id(0)
    tile_n, index = index % across, index // across
    tile_m, index = index % down, index // down
    own_head, own_batch = index % own[1], index // own[1]
    of_batch, of_head = batches // own[0], heads // own[1]
    of_m = tiles_m if SUMS_M else 1
    of_n = tiles_n if SUMS_N else 1
    dim, v_dim = tl.arange(0, BD)[None, :], tl.arange(0, BDV)[None, :]
    total = tl.zeros([BM, BN], dtype=tl.float32)
    for part in range(of_batch * of_head * of_m * of_n):
        query = (tile_m + part % of_m) * BM + tl.arange(0, BM)[:, None]  # [BM, 1]
        key = (tile_n + part // of_m % of_n) * BN + tl.arange(0, BN)[None, :]  # [1, BN]
        head = own_head + part // of_m // of_n % of_head
        batch = own_batch + part // of_m // of_n // of_head
        m, n, q_first, k_first = sequence(given.lengths, batch)
        wide_batch, wide_head = tl.cast(batch, tl.int64), tl.cast(head, tl.int64)
        kv_head = wide_head // group
        q_at = q_ptr + wide_batch * q_strides[0] + q_first * q_strides[1] + wide_head * q_strides[2]
        k_at = k_ptr + wide_batch * k_strides[0] + k_first * k_strides[1] + kv_head * k_strides[2]
        v_at = v_ptr + wide_batch * v_strides[0] + k_first * v_strides[1] + kv_head * v_strides[2]
        do_at = do_ptr + wide_batch * do_strides[0] + q_first * do_strides[1]
        do_at += wide_head * do_strides[2]
        token = query.to(tl.int64)
        q, do = query, query
        if not QK_PIECES:
            q = tl.load(q_at + token * q_strides[1] + dim,
                        mask=(query < m) & (dim < D), other=0)  # fmt: skip
        if not VO_PIECES:
            do = tl.load(do_at + token * do_strides[1] + v_dim,
                         mask=(query < m) & (v_dim < DV), other=0)  # fmt: skip
        rows = first_of(given.lengths, batch, q_first, row_stride, heads, head)
        lse, delta = row_values(lse_ptr, delta_ptr, rows + query, query < m, BASE2)
        qk = products(q, q_at, k_at, q_strides[1], k_strides[1], query, key, m, n,
                      True, QK_PIECES, FORMAT, D, BD)  # fmt: skip
        dov = products(do, do_at, v_at, do_strides[1], v_strides[1], query, key, m, n,
                       True, VO_PIECES, FORMAT, DV, BDV)  # fmt: skip
        _, ds, _ = gradients(
            qk, dov, lse, delta, given, (batch, heads, head), query, key, m, n,
            (seed, offset, last_dropped), keep_scale, BASE2, DROPS, FORMAT,
        )  # fmt: skip
        total += ds
    row = tile_m * BM + tl.arange(0, BM)[:, None]
    col = tile_n * BN + tl.arange(0, BN)[None, :]
    if SUMS_M:
        total = tl.sum(total, 0, keep_dims=True)
        row = tl.zeros([1, 1], dtype=tl.int32)
    if SUMS_N:
        total = tl.sum(total, 1, keep_dims=True)
        col = tl.zeros([1, 1], dtype=tl.int32)
    plane = (tl.cast(own_batch, tl.int64) * own[1] + own_head) * own[2]
    grad = encode(total, FORMAT, False, dbias_ptr.dtype.element_ty)
    tl.store(dbias_ptr + (plane + row) * own[3] + col, grad, mask=(row < own[2]) & (col < own[3]))


class Gradients(NamedTuple):
    """In the order in which the operator returns them."""

    dq: Tensor
    dk: Tensor
    dv: Tensor
    dbias: Tensor | None
    dsinks: Tensor | None
    dslopes: Tensor | None
    dgate: Tensor | None


def run(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    given: Options,
    *,
    batch: int,
    bias: Tensor | None,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
    gate: Tensor | None,
    dropout: tuple[float, int, int],
) -> Gradients:
    """All gradients of a call, of which `given` has the options."""
    dense = given.lengths.cu_q is None
    heads, kv_heads, d, dv = q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]
    tokens = given.lengths.m if dense else q.shape[0]
    dq, dk, dv_out = empty_out(q, d), empty_out(k, d), empty_out(v, dv)
    if not dense:  # behind the last sequence
        for x in (dq, dk, dv_out):
            x.zero_()
    dgate = None if gate is None else empty_out(gate, dv)
    delta = lse.new_empty(lse.shape)
    dslope = None if alibi_slopes is None else lse.new_zeros(lse.shape)
    q, k, v, out, grad_out = (aligned(x) for x in (q, k, v, out, grad_out))
    gate = None if gate is None else aligned(gate)
    do = grad_out if gate is None else empty_out(grad_out, dv)
    lse = lse.contiguous()
    single = q.dtype not in (torch.float16, torch.bfloat16)
    base2 = is_plain(given) and not single
    score = given.score._replace(scale=given.score.scale * LOG2E) if base2 else given.score
    scale, given = given.score.scale, given._replace(score=score)
    drops, words = philox_triton.arguments(*dropout)
    fmt, (bd, bdv) = storage_format(q.dtype), widths(d, dv, single)
    sizes = {"D": d, "DV": dv, "BD": bd, "BDV": bdv}
    sizes |= {"QK_PIECES": in_pieces(bd, single), "VO_PIECES": in_pieces(bdv, single)}
    flags = {"BASE2": base2, "DROPS": drops, "FORMAT": fmt, **sizes}
    simple = is_plain(given) and is_windowed(given) and not drops and (d, dv) == (bd, bdv)
    tiles_of = SINGLES if single else HALVES if simple else WITH_OPTIONS
    of_keys, of_queries = tiles_of[max(bd, bdv, 64)]
    strides = tuple(row_strides(x) for x in (q, k, v, do))
    inputs = (*stored(q, k, v, do), lse, delta)
    group = heads // kv_heads if kv_heads else 1
    none = (0, 0, 0)
    with torch.cuda.device_of(q):
        if lse.numel():
            tiles = triton.cdiv(tokens, ROWS)
            prepare_kernel[(tiles * lse.numel() // tokens,)](
                *stored(grad_out, out, gate, do, dgate),
                None if grad_lse is None else grad_lse.contiguous(), delta,
                row_strides(grad_out), row_strides(out),
                none if gate is None else row_strides(gate), row_strides(do),
                none if dgate is None else row_strides(dgate),
                tokens, heads, tiles, FORMAT=fmt, DV=dv, BDV=bdv, BM=ROWS,
            )  # fmt: skip
        if dk.numel():
            tiles, t = triton.cdiv(given.lengths.n, of_keys.n), of_keys
            keys_kernel[(tiles * kv_heads * batch,)](
                *inputs, *stored(dk, dv_out), *strides, row_strides(dk), row_strides(dv_out),
                given, heads, group, tokens, tiles, scale, *words,
                **flags, BM=t.m, BN=t.n, num_warps=t.warps, num_stages=t.stages,
            )  # fmt: skip
        if dq.numel():
            tiles, t = triton.cdiv(given.lengths.m, of_queries.m), of_queries
            queries_kernel[(tiles * heads * batch,)](
                *inputs, *stored(dq), dslope, *strides, row_strides(dq),
                given, heads, group, tokens, tiles, scale, *words,
                **flags, LATE_FIRST=given.seen.right < given.lengths.n,
                BM=t.m, BN=t.n, num_warps=t.warps, num_stages=t.stages,
            )  # fmt: skip
    dbias = None
    if bias is not None:
        dbias = _of_bias(bias, given, batch, heads, inputs, strides, words, flags, group, tokens)
    dsinks = None if sinks is None else _of_sinks(sinks, lse, delta)
    dslopes = None if dslope is None else _of_slopes(alibi_slopes, dslope, given.lengths)
    return Gradients(dq, dk, dv_out, dbias, dsinks, dslopes, dgate)


def _of_bias(
    bias: Tensor,
    given: Options,
    batch: int,
    heads: int,
    inputs: tuple[Any, ...],
    strides: tuple[Any, ...],
    words: tuple[Any, ...],
    flags: dict[str, Any],
    group: int,
    tokens: int,
) -> Tensor:
    grad = torch.zeros(bias.shape, dtype=bias.dtype, device=bias.device)
    m, n = given.lengths.m, given.lengths.n
    if not grad.numel() or not m * n * heads * batch:
        return grad
    own = (*(1,) * (4 - bias.dim()), *bias.shape)
    single = bias.dtype == torch.float32
    tile = (SINGLES if single else WITH_OPTIONS)[max(flags["BD"], flags["BDV"], 64)][1]
    sums_m, sums_n = own[2] == 1, own[3] == 1
    tiles_m, tiles_n = triton.cdiv(m, tile.m), triton.cdiv(n, tile.n)
    programs = own[0] * own[1] * (1 if sums_m else tiles_m) * (1 if sums_n else tiles_n)
    with torch.cuda.device_of(grad):
        bias_kernel[(programs,)](
            *inputs, *stored(grad), *strides, given, batch, heads, group, tokens,
            own, tiles_m, tiles_n, *words, **flags, SUMS_M=sums_m, SUMS_N=sums_n,
            BM=tile.m, BN=tile.n, num_warps=tile.warps, num_stages=1,
        )  # fmt: skip
    return grad


def _of_sinks(sinks: Tensor, lse: Tensor, delta: Tensor) -> Tensor:
    """A sink's share has no value: its score gets -share delta of each row."""
    share = (sinks.float()[:, None] - lse).exp()
    share = torch.where(lse == -math.inf, 0.0, share)
    rows = -(share * delta)
    rows = rows.transpose(0, 1).flatten(1) if rows.dim() == 3 else rows
    return rows.sum(1).to(sinks.dtype)


def _of_slopes(slopes: Tensor | None, rows: Tensor, lengths: Lengths) -> Tensor:
    assert slopes is not None
    if rows.dim() == 3:
        per = rows.sum(-1)  # [batch, heads]
    elif slopes.dim() == 1:
        per = rows.sum(-1, keepdim=True).t()
    else:  # the sums of each sequence, without asking the host where it begins
        assert lengths.cu_q is not None
        sums = torch.nn.functional.pad(rows.double().cumsum(1), (1, 0))
        at = lengths.cu_q.long()
        per = (sums[:, at[1:]] - sums[:, at[:-1]]).t()
    return (per if slopes.dim() == 2 else per.sum(0)).to(slopes.dtype).contiguous()


def flash_attention_backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    gate: Tensor | None,
    q_documents: Tensor | None,
    k_documents: Tensor | None,
    tree: Tensor | None,
    dropout_p: float,
    seed: int,
    offset: int,
    bias_gradient: bool = True,
) -> Gradients:
    batch, m, heads, _ = q.shape
    given = options(
        lengths=Lengths(m, k.shape[1], None, None), batch=batch, heads=heads, scale=scale,
        causal=causal, window_left=window_left, window_right=window_right, softcap=softcap,
        alibi_slopes=alibi_slopes, mask=mask, bias=bias, q_documents=q_documents,
        k_documents=k_documents, tree=tree,
    )  # fmt: skip
    return run(
        grad_out, grad_lse, q, k, v, out, lse, given, batch=batch,
        bias=bias if bias_gradient else None,
        alibi_slopes=alibi_slopes, sinks=sinks, gate=gate, dropout=(dropout_p, seed, offset),
    )  # fmt: skip


def flash_attention_varlen_backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    gate: Tensor | None,
    q_documents: Tensor | None,
    k_documents: Tensor | None,
    tree: Tensor | None,
    dropout_p: float,
    seed: int,
    offset: int,
    bias_gradient: bool = True,
) -> Gradients:
    lengths = Lengths(
        max_seqlen_q, max_seqlen_k, cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous()
    )
    batch = len(cu_seqlens_q) - 1
    given = options(
        lengths=lengths, batch=batch, heads=q.shape[1], scale=scale,
        causal=causal, window_left=window_left, window_right=window_right, softcap=softcap,
        alibi_slopes=alibi_slopes, mask=mask, bias=bias, q_documents=q_documents,
        k_documents=k_documents, tree=tree,
    )  # fmt: skip
    return run(
        grad_out, grad_lse, q, k, v, out, lse, given, batch=batch,
        bias=bias if bias_gradient else None,
        alibi_slopes=alibi_slopes, sinks=sinks, gate=gate, dropout=(dropout_p, seed, offset),
    )  # fmt: skip
