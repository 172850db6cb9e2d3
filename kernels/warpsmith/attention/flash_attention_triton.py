"""FlashAttention-2 in Triton, with every option: a tile of queries in a program, keys in sweeps.

The keys that all queries of a tile see by the window alone, and that end within the sequence, go
through a loop without masks. The derivatives: `flash_attention_backward_triton.py`.

Reference: Dao 2023, FlashAttention-2, https://arxiv.org/abs/2307.08691.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.attention.attention_triton import (
    Lengths,
    Options,
    added,
    first_of,
    keeps_of,
    keys_seen,
    narrowed,
    options,
    power,
    product,
    scores,
    sequence,
    storage_format,
    stored,
    visible,
)
from warpsmith.attention.options import empty_out
from warpsmith.spec.triton import philox as philox_triton
from warpsmith.spec.triton.convert import decode, encode
from warpsmith.spec.triton.functions import logistic
from warpsmith.spec.triton.philox import NOT_SPECIALISED

LOG2E = 1.4426950408889634
LN2 = tl.constexpr(0.6931471805599453)
#: Rows of q up to so many values stay on the chip. Longer ones are read anew for each tile of keys,
#: in pieces of so many; in f32, where the error of a sum grows with its length, from there on.
LONGEST, DEPTH = 256, tl.constexpr(128)
#: Rows of so many values in 16 bits and of more are swizzled alike in shared memory, shorter ones
#: each in another way.
SWIZZLED = 64


class Tile(NamedTuple):
    """Queries of a program, keys of a step."""

    m: int
    n: int
    warps: int
    stages: int


#: By head dimension, for values in 16 bits. Each fits the 99 KB of sm_89.
HALVES: Mapping[int, Tile] = {
    64: Tile(128, 64, 4, 3),
    128: Tile(128, 64, 8, 2),
    256: Tile(64, 32, 8, 2),  # the sums of 64 rows take half of the registers
    512: Tile(32, 16, 4, 2),
    1024: Tile(16, 16, 4, 1),
}
#: Beside options, whose addresses and values take registers.
WITH_OPTIONS: Mapping[int, Tile] = {
    **HALVES,
    64: Tile(64, 64, 8, 2),
    128: Tile(64, 32, 8, 2),
    256: Tile(64, 32, 8, 1),
}
#: For f32, which no tensor core multiplies exactly: bound by registers.
SINGLES: Mapping[int, Tile] = {
    64: Tile(32, 32, 4, 2),
    128: Tile(32, 32, 8, 1),
    256: Tile(16, 32, 8, 1),
    512: Tile(16, 16, 4, 1),
    1024: Tile(16, 16, 4, 1),
}


@triton.jit
def products(
    q, q_ptr, k_ptr, q_token, k_token, query, key, m, n,
    MASKED: tl.constexpr, PIECES: tl.constexpr, FORMAT: tl.constexpr,
    D: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """q k^T, [BM, BN]: of the q at hand, or of pieces of long rows, in f32 each summed by itself.
    MASKED: keys may end within the tile.
    """
    PIECE: tl.constexpr = DEPTH if PIECES else BD
    dim = tl.arange(0, PIECE)
    k_at = k_ptr + key.to(tl.int64) * k_token + dim[:, None]  # [PIECE, BN]
    if not PIECES:
        if MASKED:
            return product(q, tl.load(k_at, mask=(dim[:, None] < D) & (key < n), other=0), FORMAT)
        elif D < BD:
            return product(q, tl.load(k_at, mask=dim[:, None] < D, other=0), FORMAT)
        else:
            return product(q, tl.load(k_at), FORMAT)
    else:
        q_at = q_ptr + query.to(tl.int64) * q_token + dim[None, :]  # [BM, PIECE]
        s = query.to(tl.float32) * 0.0 + key.to(tl.float32) * 0.0
        lost = s
        for start in range(0, D, PIECE):
            rest = D - start
            q_piece = tl.load(q_at + start, mask=(query < m) & (dim[None, :] < rest), other=0)
            k_piece = tl.load(k_at + start, mask=(key < n) & (dim[:, None] < rest), other=0)
            if q_ptr.dtype.element_ty == tl.float32:
                s, lost = added(s, product(q_piece, k_piece, FORMAT), lost)
            else:
                s += product(q_piece, k_piece, FORMAT)
        return s


@triton.jit
def attend(
    state, q, q_ptr, k_ptr, v_ptr, q_token, k_token, v_token, options, at, query, m, n,
    first, last, drops,
    MASKED: tl.constexpr, BASE2: tl.constexpr, DROPS: tl.constexpr, MAX_LOGITS: tl.constexpr,
    PIECES: tl.constexpr, FORMAT: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr,
    BN: tl.constexpr,
):  # fmt: skip
    """Adds the keys [first, last) to the sums of a tile of queries: `state` is these, their scale's
    logarithm, the sum of exponentials and the largest score.
    """
    total, most, exponentials, top = state
    batch, heads, head = at
    v_dim = tl.arange(0, BDV)[None, :]
    step = tl.arange(0, BN)
    place = query + (n - m)
    for start in range(first, last, BN):
        key = start + step
        v_at = v_ptr + key[:, None].to(tl.int64) * v_token + v_dim  # [BN, BDV]
        if MASKED:
            s = products(
                q, q_ptr, k_ptr, q_token, k_token, query, key[None, :], m, n,
                True, PIECES, FORMAT, D, BD,
            )  # fmt: skip
            inside = (query < m) & (key[None, :] < n)
            s, _ = scores(s, options, batch, head, query, key[None, :], place, inside, FORMAT)
            seen = visible(options, batch, head, query, key[None, :], place, m, n, inside)
            s = tl.where(seen, s, -float("inf"))
        else:
            s = products(
                q, q_ptr, k_ptr, q_token, k_token, query, key[None, :], m, n,
                False, PIECES, FORMAT, D, BD,
            )  # fmt: skip
            s, _ = scores(s, options, batch, head, query, key[None, :], place, query < m, FORMAT)
        largest = tl.max(s, 1)
        if MAX_LOGITS:
            wrong = tl.max((s != s).to(tl.int32), 1) > 0  # which a maximum drops
            top = tl.where(wrong, float("nan"), tl.maximum(top, largest, tl.PropagateNan.ALL))
        now = tl.maximum(most, largest)
        ceiling = now
        if MASKED:
            ceiling = tl.where(now == -float("inf"), 0.0, now)
        p = power(s - ceiling[:, None], BASE2)
        fade = power(most - ceiling, BASE2)
        exponentials = exponentials * fade + tl.sum(p, 1)
        most = now
        if DROPS:
            kept = keeps_of(options, batch, heads, head, query, key[None, :], drops)
            p = tl.where(kept, p, 0.0)
        if MASKED:
            v = tl.load(v_at, mask=(key[:, None] < n) & (v_dim < DV), other=0)
        else:
            v = tl.load(v_at, mask=v_dim < DV, other=0) if DV < BDV else tl.load(v_at)
        p = narrowed(p, FORMAT, v_ptr.dtype.element_ty)
        total = total * fade[:, None] + product(p, v, FORMAT)
    return total, most, exponentials, top


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def flash_attention_kernel(
    q_ptr, k_ptr, v_ptr,  # rows of heads, strides of batch, token and head
    out_ptr,
    lse_ptr,  # [batch, heads, m] f32, or [heads, all tokens]
    top_ptr,  # likewise
    gate_ptr,  # like out
    sinks_ptr,  # [heads] f32
    q_strides, k_strides, v_strides, out_strides, gate_strides,
    given, heads, group, row_stride, tiles,
    seed, offset, last_dropped, keep_scale,
    MASKED_ONLY: tl.constexpr, BASE2: tl.constexpr, DROPS: tl.constexpr,
    PIECES: tl.constexpr, FORMAT: tl.constexpr, LATE_FIRST: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0) % tiles
    if LATE_FIRST:  # which see the most keys, where there is a diagonal
        tile = tiles - 1 - tile
    head = tl.program_id(0) // tiles % heads
    batch = tl.program_id(0) // tiles // heads
    m, n, q_first, k_first = sequence(given.lengths, batch)
    if tile * BM >= m:
        return
    wide_batch, kv_head = batch.to(tl.int64), (head // group).to(tl.int64)
    q_ptr += wide_batch * q_strides[0] + q_first * q_strides[1] + head.to(tl.int64) * q_strides[2]
    k_ptr += wide_batch * k_strides[0] + k_first * k_strides[1] + kv_head * k_strides[2]
    v_ptr += wide_batch * v_strides[0] + k_first * v_strides[1] + kv_head * v_strides[2]

    query = tile * BM + tl.arange(0, BM)[:, None]  # [BM, 1]
    dim, v_dim = tl.arange(0, BD)[None, :], tl.arange(0, BDV)[None, :]
    q = query  # longer rows are read in pieces
    if not PIECES:
        q = tl.load(q_ptr + query.to(tl.int64) * q_strides[1] + dim,
                    mask=(query < m) & (dim < D), other=0)  # fmt: skip

    total = tl.zeros([BM, BDV], dtype=tl.float32)
    most = tl.full([BM], -float("inf"), dtype=tl.float32)
    exponentials = tl.zeros([BM], dtype=tl.float32)
    if sinks_ptr is not None:
        sink = tl.load(sinks_ptr + head)
        most = tl.zeros([BM], dtype=tl.float32) + (sink / LN2 if BASE2 else sink)
        exponentials += tl.where(sink == -float("inf"), 0.0, tl.exp(sink - sink))  # or NaN
    top = tl.full([BM], -float("inf"), dtype=tl.float32)
    drops = (seed, offset, last_dropped)
    at = (batch, heads, head)
    MAX_LOGITS: tl.constexpr = top_ptr is not None

    # [low, high) are seen by any of the queries, [whole_low, whole_high) by all of them
    last_query = tl.minimum(tile * BM + BM, m)
    low, high = keys_seen(given, tile * BM, last_query, m, n)
    low = low // BN * BN
    if MASKED_ONLY:
        whole_low, whole_high = high, high
    else:
        seen = given.seen
        whole_low = tl.maximum(last_query - 1 + n - m - seen.left, 0)
        whole_low = tl.minimum(tl.maximum(tl.cdiv(whole_low, BN) * BN, low), high)
        whole_high = tl.minimum(tile * BM + n - m + seen.right + 1, n)
        whole_high = tl.maximum(whole_high // BN * BN, whole_low)
    state = (total, most, exponentials, top)
    state = attend(
        state, q, q_ptr, k_ptr, v_ptr, q_strides[1], k_strides[1], v_strides[1],
        given, at, query, m, n, low, whole_low, drops,
        True, BASE2, DROPS, MAX_LOGITS, PIECES, FORMAT, D, DV, BD, BDV, BN,
    )  # fmt: skip
    if not MASKED_ONLY:
        state = attend(
            state, q, q_ptr, k_ptr, v_ptr, q_strides[1], k_strides[1], v_strides[1],
            given, at, query, m, n, whole_low, whole_high, drops,
            False, BASE2, DROPS, MAX_LOGITS, PIECES, FORMAT, D, DV, BD, BDV, BN,
        )  # fmt: skip
        state = attend(
            state, q, q_ptr, k_ptr, v_ptr, q_strides[1], k_strides[1], v_strides[1],
            given, at, query, m, n, whole_high, high, drops,
            True, BASE2, DROPS, MAX_LOGITS, PIECES, FORMAT, D, DV, BD, BDV, BN,
        )  # fmt: skip
    total, most, exponentials, top = state

    UNIT: tl.constexpr = LN2 if BASE2 else 1.0
    row = tl.arange(0, BM) + tile * BM
    rows = first_of(given.lengths, batch, q_first, row_stride, heads, head) + row
    if lse_ptr is not None:
        lse = tl.where(exponentials == 0.0, -float("inf"), most * UNIT + tl.log(exponentials))
        tl.store(lse_ptr + rows, lse, mask=row < m)
    if top_ptr is not None:
        tl.store(top_ptr + rows, top * UNIT, mask=row < m)
    share = tl.where(exponentials == 0.0, 0.0, keep_scale / exponentials)
    out = total * share[:, None]
    valid = (query < m) & (v_dim < DV)
    if gate_ptr is not None:
        gate_ptr += wide_batch * gate_strides[0] + q_first * gate_strides[1]
        gate_at = query.to(tl.int64) * gate_strides[1] + head.to(tl.int64) * gate_strides[2] + v_dim
        gate = decode(tl.load(gate_ptr + gate_at, mask=valid, other=0), FORMAT, False)
        out *= logistic(gate, True)
    out_ptr += wide_batch * out_strides[0] + q_first * out_strides[1]
    out_at = query.to(tl.int64) * out_strides[1] + head.to(tl.int64) * out_strides[2] + v_dim
    tl.store(out_ptr + out_at, encode(out, FORMAT, False, out_ptr.dtype.element_ty), mask=valid)


def padded(d: int) -> int:
    """A head dimension as tiles have it."""
    return max(triton.next_power_of_2(d), 16)


def widths(d: int, dv: int, single: bool) -> tuple[int, int]:
    """Of rows of q and k, and of v, as tiles have them: in 16 bits swizzled alike.

    Of tiles that come to the same place in shared memory, one after the other, but are swizzled
    apart, ptxas 12.8, which is Triton 3.6's, has `wgmma` read the second from anywhere.
    """
    bd, bdv = padded(d), padded(dv)
    if single:
        return bd, bdv
    return max(bd, min(bdv, SWIZZLED)), max(bdv, min(bd, SWIZZLED))


def in_pieces(width: int, single: bool) -> bool:
    """Whether rows of so many values are read in pieces."""
    return width > (DEPTH.value if single else LONGEST)


def row_strides(x: Tensor) -> tuple[int, int, int]:
    """Strides of batch, token and head of [batch, tokens, heads, d] or [tokens, heads, d]."""
    *batch, token, head, _ = x.stride()
    return (batch[0] if batch else 0, token, head)


def aligned(x: Tensor) -> Tensor:
    """With contiguous values of a row."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def is_plain(given: Options) -> bool:
    """Whether scores are a multiple of the products, so that they can be powers of two at once."""
    score = given.score
    return score.softcap is None and score.slopes is None and score.bias is None


def is_windowed(given: Options) -> bool:
    """Whether what a query sees is a window."""
    seen = given.seen
    return seen.mask is None and seen.q_documents is None and seen.tree is None


def run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    given: Options,
    *,
    sinks: Tensor | None,
    gate: Tensor | None,
    dropout: tuple[float, int, int],
    batch: int,
    return_lse: bool,
    return_max_logits: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Writes the output. Returns the LSE and the largest score of each head, where asked for."""
    heads, kv_heads, d, dv = q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]
    dense = given.lengths.cu_q is None
    tokens = given.lengths.m if dense else q.shape[0]
    shape = (batch, heads, tokens) if dense else (heads, tokens)
    lse = q.new_empty(shape, dtype=torch.float32) if return_lse else None
    top = q.new_empty(shape, dtype=torch.float32) if return_max_logits else None
    if not dense:  # behind the last sequence
        out.zero_()
        for rows in (lse, top):
            if rows is not None:
                rows.fill_(-float("inf"))
    if 0 not in shape:
        q, k, v = aligned(q), aligned(k), aligned(v)
        gate = None if gate is None else aligned(gate)
        single = q.dtype not in (torch.float16, torch.bfloat16)
        base2 = is_plain(given) and not single
        score = given.score._replace(scale=given.score.scale * LOG2E) if base2 else given.score
        bd, bdv = widths(d, dv, single)
        plain = is_plain(given) and is_windowed(given) and dropout[0] == 0.0
        tile = (SINGLES if single else HALVES if plain else WITH_OPTIONS)[max(bd, bdv, 64)]
        tiles = triton.cdiv(given.lengths.m, tile.m)
        drops, words = philox_triton.arguments(*dropout)
        with torch.cuda.device_of(out):
            flash_attention_kernel[(tiles * heads * batch,)](
                *stored(q, k, v, out), lse, top, *stored(gate),
                None if sinks is None else sinks.float().contiguous(),
                row_strides(q), row_strides(k), row_strides(v), row_strides(out),
                (0, 0, 0) if gate is None else row_strides(gate),
                given._replace(score=score), heads, heads // kv_heads, tokens, tiles, *words,
                MASKED_ONLY=not is_windowed(given), BASE2=base2, DROPS=drops,
                PIECES=in_pieces(bd, single), FORMAT=storage_format(q.dtype),
                LATE_FIRST=given.seen.right < given.lengths.n,
                D=d, DV=dv, BD=bd, BDV=bdv, BM=tile.m, BN=tile.n,
                num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip
    if top is not None:
        rows = top.transpose(0, 1).flatten(1) if dense else top
        infinite = rows.new_full((heads, 1), -float("inf"))
        top = torch.cat((rows, infinite), 1).amax(1)
    return lse, top


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
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
    return_lse: bool,
    return_max_logits: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    batch, m, heads, _ = q.shape
    given = options(
        lengths=Lengths(m, k.shape[1], None, None), batch=batch, heads=heads, scale=scale,
        causal=causal, window_left=window_left, window_right=window_right, softcap=softcap,
        alibi_slopes=alibi_slopes, mask=mask, bias=bias, q_documents=q_documents,
        k_documents=k_documents, tree=tree,
    )  # fmt: skip
    out = empty_out(q, v.shape[-1])
    lse, top = run(
        q, k, v, out, given, sinks=sinks, gate=gate, dropout=(dropout_p, seed, offset),
        batch=batch, return_lse=return_lse, return_max_logits=return_max_logits,
    )  # fmt: skip
    return out, lse, top


def flash_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
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
    return_lse: bool,
    return_max_logits: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    batch, heads = len(cu_seqlens_q) - 1, q.shape[1]
    lengths = Lengths(
        max_seqlen_q, max_seqlen_k, cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous()
    )
    given = options(
        lengths=lengths, batch=batch, heads=heads, scale=scale,
        causal=causal, window_left=window_left, window_right=window_right, softcap=softcap,
        alibi_slopes=alibi_slopes, mask=mask, bias=bias, q_documents=q_documents,
        k_documents=k_documents, tree=tree,
    )  # fmt: skip
    out = empty_out(q, v.shape[-1])
    lse, top = run(
        q, k, v, out, given, sinks=sinks, gate=gate, dropout=(dropout_p, seed, offset),
        batch=batch, return_lse=return_lse, return_max_logits=return_max_logits,
    )  # fmt: skip
    return out, lse, top
