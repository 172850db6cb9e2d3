"""Attention of new queries to a cache of keys and values."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from warpsmith.attention import cache_checks as caches
from warpsmith.attention import kv_cache_cases as cases
from warpsmith.attention import kv_cache_plan as plans
from warpsmith.attention import options, reference
from warpsmith.attention.kv_cache_plan import KvCachePlan
from warpsmith.attention.store_kv import op as store_kv_op
from warpsmith.core import autocast, catalogue, dispatch, messages
from warpsmith.core.arguments_by_name import Call
from warpsmith.core.catalogue import Cost, Op, Property, Rung
from warpsmith.spec.checks import shape_text, wide_dtype
from warpsmith.spec.rows import MOST_ROWS, address

_OP, _PLAN = "attention_with_kv_cache", "plan_attention_with_kv_cache"
#: What every call is that has no such option.
_PLAIN = dict.fromkeys(("mask", "bias", "gate", "q_documents", "k_documents"))


def _check(call: Call) -> None:
    q, k_cache, v_cache = call.q, call.k_cache, call.v_cache
    caches.check_wide_floating(_OP, "q", q)
    caches.check_heads(_OP, "q", q)
    caches.check_caches(_OP, k_cache, v_cache, q, "q")
    if q.shape[3] == 0:
        raise RuntimeError(
            f"{_OP}: expected q to have heads of at least one value, got shape {shape_text(q)}"
        )
    if k_cache.shape[3] != q.shape[3]:
        raise RuntimeError(
            f"{_OP}: expected k_cache to have the last dimension of q, got {shape_text(k_cache)} "
            f"and {shape_text(q)}"
        )
    heads, kv_heads = q.shape[2], k_cache.shape[2]
    if heads and (not kv_heads or heads % kv_heads):
        raise RuntimeError(
            f"{_OP}: expected the heads of q to be a multiple of those of k_cache, got {heads} and "
            f"{kv_heads}"
        )
    caches.check_sequences(_OP, call.lengths, call.block_table, k_cache, q, "q")
    caches.check_scales(_OP, call.k_scale, call.v_scale, k_cache, q, "q")
    options.check_options(_OP, _problem(q, k_cache, v_cache), tuple(q.shape), _as_options(call))
    if not 0 <= call.appended < options.MOST_TOKENS:
        raise RuntimeError(
            f"{_OP}: expected appended not to be negative, and less than 2^30, got {call.appended}"
        )
    if not 0 <= call.blocks <= plans.MOST_BLOCKS:
        raise RuntimeError(
            f"{_OP}: expected blocks to be between 0 and {plans.MOST_BLOCKS}, got {call.blocks}"
        )


def _problem(q: Tensor, k_cache: Tensor, v_cache: Tensor) -> options.Problem:
    batch, m, heads, d = q.shape
    _, tokens, kv_heads, _ = k_cache.shape
    return options.Problem(batch, m, tokens, heads, kv_heads, d, v_cache.shape[3])


def _as_options(call: Any, **changes: Any) -> SimpleNamespace:
    """The call as one of flash_attention."""
    names = ("q", "scale", "causal", "window_left", "window_right", "softcap")
    same = {name: getattr(call, name) for name in (*names, "alibi_slopes", "sinks", "tree")}
    rest = {"dropout_p": 0.0, "seed": 0, "offset": 0, "return_max_logits": False}
    return SimpleNamespace(**(same | _PLAIN | rest | changes))


def _reference(call: Call) -> tuple[Tensor, Tensor | None]:
    return _over_cache(call, reference.wide_product)


def _over_cache(call: Call, product: reference.Product) -> tuple[Tensor, Tensor | None]:
    """By caches multiplied by their scales. Where one of these is not finite, it is products and
    answers that are multiplied in float64, the yardstick of the others, as kernels have it: 0 times
    infinity is NaN, and infinities of either sign cancel, where a sum is neither. Who dequantises
    first gets the other. Either is right.
    """
    q = call.q
    wide = wide_dtype(q.dtype)
    given = [scale for scale in (call.k_scale, call.v_scale) if scale is not None]
    last = q.dtype == torch.float64 and not all(scale.isfinite().all() for scale in given)

    def of_heads(scale: Tensor | None) -> Tensor:  # [heads, 1]
        heads, scale = q.shape[2], q.new_ones(1) if scale is None else scale.reshape(-1)
        return scale.to(q.device, wide).repeat_interleave(heads // scale.numel())[:, None]

    def scaled_product(q: Tensor, k: Tensor) -> Tensor:
        return product(q, k) * of_heads(call.k_scale)[..., None]

    lengths = [int(n) + call.appended for n in call.lengths.tolist()]
    outs, sums = [], []
    for b, n in enumerate(lengths):
        if n < 0:
            raise IndexError(f"{_OP}: expected lengths not to be negative, got {n}")
        positions = torch.arange(n, device=q.device)[None]
        table = None if call.block_table is None else call.block_table[b : b + 1]
        if table is None:
            kept = call.k_cache[b : b + 1], call.v_cache[b : b + 1]
        else:
            kept = call.k_cache, call.v_cache
        page, token = caches.places(positions, table, kept[0], _OP)

        def of_sequence(
            cache: Tensor,
            scale: Tensor | None,
            at: tuple[Tensor, Tensor] = (page, token),
        ) -> Tensor:
            if catalogue.is_fp8(cache.dtype):  # which cannot be indexed everywhere
                values = cache.view(torch.uint8)[at].view(cache.dtype).to(wide)
            else:
                values = cache[at].to(wide)
            if scale is not None and not last:
                values = values * scale.to(wide).reshape(-1, 1)
            return values.to(q.dtype)

        slopes = call.alibi_slopes
        out, lse, _ = reference.attend_heads(
            _as_options(
                call,
                q=q[b : b + 1],
                k=of_sequence(kept[0], call.k_scale),
                v=of_sequence(kept[1], call.v_scale),
                alibi_slopes=slopes[b : b + 1]
                if slopes is not None and slopes.dim() == 2
                else slopes,
                tree=None if call.tree is None else call.tree[b : b + 1],
                return_lse=True,
            ),
            scaled_product if last else product,
        )
        if last:
            assert lse is not None
            seen = (lse != -math.inf).mT[..., None]
            out = torch.where(seen, out * of_heads(call.v_scale), out)
        outs.append(out)
        sums.append(lse)
    if not outs:
        out, lse = _fake(q, call.v_cache, call.return_lse)
        return out, lse
    whole = options.empty_out(q, call.v_cache.shape[3]).copy_(torch.cat(outs))
    return whole, torch.cat(sums) if call.return_lse else None  # type: ignore[arg-type]


def _fake(q: Tensor, v_cache: Tensor, return_lse: bool) -> tuple[Tensor, Tensor | None]:
    batch, m, heads, _ = q.shape
    lse = q.new_empty((batch, heads, m), dtype=wide_dtype(q.dtype)) if return_lse else None
    return options.empty_out(q, v_cache.shape[3]), lse


def _twin_lacks(q: Tensor, v_cache: Tensor) -> str | None:
    return options.twin_lacks(q.shape[3], v_cache.shape[3])


def _too_large(
    q: Tensor, k_cache: Tensor, lengths: Tensor, block_table: Tensor | None, appended: int
) -> str | None:
    if lengths.is_meta:
        of_table = 1 if block_table is None else block_table.shape[1]
        keys = q.shape[0] * of_table * k_cache.shape[1]
    else:
        keys = int(lengths.long().sum()) + appended * len(lengths)
    return options.too_many_scores(q, q.shape[1] * q.shape[2] * keys)


# --- the ladder -----------------------------------------------------------------------------------


def _rows(q: Tensor, k_cache: Tensor) -> int:
    """Queries that share a head of keys."""
    return q.shape[1] * (q.shape[2] // max(k_cache.shape[2], 1))


def _any(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor | None) -> str | None:
    if why := caches.needs_countable(k_cache, v_cache, block_table):
        return why
    if max(q.shape[3], v_cache.shape[3]) > 1024:
        return "needs head dimensions of at most 1024"
    return None if q.shape[:3].numel() <= MOST_ROWS else "needs at most 2^31 - 1 rows"


def _aligned(x: Tensor, width: int, bytes_: int) -> bool:
    strides = (x.stride(i) for i in range(3) if x.shape[i] > 1)
    return all(stride % width == 0 for stride in strides) and address(x) % bytes_ == 0


def _queries(q: Tensor) -> Tensor:
    """As a kernel gets them: what could be read 16 bytes at a time and cannot, is copied."""
    size = q.element_size()
    unit, could = q.shape[3] == 1 or q.stride(3) == 1, q.shape[3] * size % 16 == 0
    if unit and (not could or _aligned(q, 16 // size, 16)):
        return q
    return torch.empty(q.shape, dtype=q.dtype, device="meta")


def _split(e4m3: bool, rung: str) -> Any:
    size = 1 if e4m3 else 2
    width = 16 // size

    def when(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor | None) -> str | None:
        if why := caches.needs_countable(k_cache, v_cache, block_table):
            return why
        if q.dtype == torch.float32:
            return "needs q in 16 bits"
        if catalogue.is_fp8(k_cache.dtype) != e4m3:
            return "needs a cache in e4m3" if e4m3 else "needs a cache in 16 bits"
        d, dv = q.shape[3], v_cache.shape[3]
        if max(d, dv) > 256:
            return "needs head dimensions of at most 256"
        whole = _aligned(k_cache, width, 16) and _aligned(v_cache, width, 16)
        if not whole or d % width or dv % width:
            return "needs heads of the cache that are whole packs of 16 bytes, aligned"
        if not _aligned(_queries(q), 2, 4):
            return "needs heads of q aligned to 4 bytes"
        if block_table is not None and k_cache.shape[1] % 16:
            return "needs pages of a multiple of 16 tokens"
        of_head = _rows(q, k_cache)
        cut = plans.cut_of(rung, of_head, d, dv)
        assert cut is not None, rung
        tiles = -(-of_head // cut.rows)
        width_of_table = 1 if block_table is None else block_table.shape[1]
        most = -(-width_of_table * k_cache.shape[1] // cut.tile.round) + 16
        if q.shape[0] * k_cache.shape[2] * tiles * most >= 2**30:
            return "needs fewer or shorter sequences"
        return None

    return when


def _suits_tiles(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor | None,
    batch_invariant: bool,
) -> str | None:
    rows = _rows(q, k_cache)
    if batch_invariant or rows > plans.MOST_PAIRED_QUERIES:
        return None
    if rows <= plans.FEW_QUERIES:
        return f"{plans.FEW_QUERIES} queries or less share a head of keys"
    pages = 1 if block_table is None else plans.table_width(block_table)
    values = q.shape[0] * pages * k_cache.shape[1] * k_cache.shape[2]
    values *= q.shape[3] + v_cache.shape[3]
    if values * k_cache.element_size() > plans.MOST_PAIRED_BYTES:
        return None
    return f"{plans.MOST_PAIRED_QUERIES} queries or less share a head of keys in caches like L2"


_HALVES = ("f16", "bf16")

_LADDER = (
    Rung("naive", "a block per query and head, keys in turn", when=_any),
    Rung(
        "split_kv",
        "keys shared out evenly among blocks, whose sums the last one joins; queries of a group "
        "packed into one tile",
        dtypes=_HALVES,
        width=8,
        technique="split_kv",
        when=_split(False, "split_kv"),
    ),
    Rung(
        "split_kv_e4m3",
        "the same from a cache in e4m3, widened between shared memory and the tensor cores",
        dtypes=_HALVES,
        width=16,
        technique="split_kv_e4m3",
        when=_split(True, "split_kv_e4m3"),
    ),
    Rung(
        "query_tiles",
        "tiles of 64 queries, whose four warps share keys: several new tokens, chunks of prompts",
        dtypes=_HALVES,
        width=8,
        technique="query_tiles",
        when=_split(False, "query_tiles"),
        suits=_suits_tiles,
    ),
    Rung(
        "query_tiles_e4m3",
        "the same from a cache in e4m3",
        dtypes=_HALVES,
        width=16,
        technique="query_tiles_e4m3",
        when=_split(True, "query_tiles_e4m3"),
        suits=_suits_tiles,
    ),
)


# --- what a call costs ----------------------------------------------------------------------------


def _bytes(q: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, appended: int) -> int:
    if q.device.type == "meta":
        return 0
    keys = int(lengths.sum()) + appended * len(lengths)
    of_token = k_cache.shape[2] * (k_cache.shape[3] + v_cache.shape[3]) * k_cache.element_size()
    rows = q.shape[:3].numel() * (q.shape[3] + v_cache.shape[3] + 2)
    return keys * of_token + rows * q.element_size()


def _flops(q: Tensor, v_cache: Tensor, lengths: Tensor, appended: int) -> int:
    keys = int(lengths.sum()) + appended * len(lengths)
    return 2 * keys * q.shape[1] * q.shape[2] * (q.shape[3] + v_cache.shape[3])


op = catalogue.add(
    Op(
        "attention_with_kv_cache(Tensor q, Tensor k_cache, Tensor v_cache, Tensor lengths, "
        "float scale, Tensor? block_table=None, int appended=0, bool causal=True, "
        "int window_left=-1, int window_right=-1, float softcap=0.0, Tensor? alibi_slopes=None, "
        "Tensor? sinks=None, Tensor? tree=None, Tensor? k_scale=None, Tensor? v_scale=None, "
        "bool return_lse=False, bool batch_invariant=False, int blocks=0) "
        "-> (Tensor out, Tensor? lse)",
        family="attention",
        source="kv_cache",
        reference=_reference,
        alternatives=reference.alternatives(_over_cache),
        ladder=_LADDER,
        triton="kv_cache_triton:attention_with_kv_cache",
        fake=_fake,
        check=_check,
        twin_lacks=_twin_lacks,
        too_large=_too_large,
        samples=cases.SAMPLES,
        errors=cases.ERRORS,
        properties=(
            Property("pages may lie anyhow", cases.pages_anyhow),
            Property("the same bits in every run", cases.repeatable),
            Property("what no query sees may be anything", cases.garbage),
            Property("sequences alone", cases.alone),
        ),
        cost=Cost(bytes=_bytes, flops=_flops),
        bench=cases.BENCH,
        bench_dtypes=("bf16",),
        peers=cases.PEERS,
    )
)
dispatch.register(op)
_attend = dispatch.public(op)
#: In the name of this function.
_store = dispatch.public(store_kv_op, _OP)


def attention_with_kv_cache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor,
    scale: float | None = None,
    block_table: Tensor | None = None,
    appended: int = 0,
    causal: bool = True,
    *,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    tree: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    return_lse: bool = False,
    batch_invariant: bool = False,
    blocks: int = 0,
    plan: KvCachePlan | None = None,
    k: Tensor | None = None,
    v: Tensor | None = None,
    layout: str = "bshd",
    variant: str | None = None,
) -> Any:
    """Attention of new queries to a cache, ``softmax(scale q k^T) v`` for each head: decoding,
    several drafted tokens, or a chunk of a prompt behind those that are in the cache.

    Query i of m stands at key ``i + n - m`` of its sequence, which has n tokens in the cache. With
    `k` and `v`, `store_kv` puts these behind what the cache holds first. How long sequences are is
    read on the GPU: a captured call may be replayed with other lengths and pages. Scores and sums
    are in f32. Not differentiable.

    What lies in a cache behind a sequence's last token may be anything. What a window or a tree
    hides within it has to be finite: its values may be multiplied by a weight of 0.

    Args:
        q: [b, m, heads, d], f32, f16 or bf16, any strides; d and dv up to 1024 where a kernel is to
            serve it.
        k_cache: [pages, tokens of a page, kv_heads, d], of the dtype of q or e4m3. Each of its
            heads serves heads / kv_heads neighbouring ones of q. Without a block_table, a page is
            all that a sequence may have: [b, capacity, kv_heads, d].
        v_cache: [pages, tokens of a page, kv_heads, dv], of the dtype of k_cache.
        lengths: int32, [b]: tokens of each sequence in the cache, without those that this call
            appends.
        scale: of products; ``d ** -0.5`` where it is None.
        block_table: int32, [b, most pages]: the pages of each sequence in order. What lies behind
            the last token may be anything.
        appended: how many tokens of each sequence are in the cache beyond `lengths`; those of `k`
            are counted without it.
        causal: a query sees no key past its place.
        window: how many keys before and past its place a query sees; -1 for all.
        softcap: scores become ``softcap tanh(score / softcap)``; 0: they stay.
        alibi_slopes: f32, [heads] or [b, heads]: scores lose slope times the distance of the key.
        sinks: f32, [heads]: logits that take their share of the sum and have no value.
        tree: int64, [b, m], m at most 64: of the last m keys, query i sees those whose bit is set
            in word i, among those that it sees anyhow.
        k_scale: f32, of shape () or [kv_heads], for a cache in e4m3: what is stored times the scale
            is the key.
        v_scale: the same of values.
        return_lse: also return ``log(sum(exp(score)))`` of each query, to base e.
        batch_invariant: the bits of a result depend on its sequence alone.
        blocks: among how many keys are shared out, where a kernel splits them: up to 65535; 0: as
            many as the GPU holds at once, for the longest sequences that the cache has room for.
        plan: what `plan_attention_with_kv_cache` made for calls of these shapes: it says `blocks`.
        k: [b, new tokens, kv_heads, d], of the dtype of q: appended to the cache first.
        v: [b, new tokens, kv_heads, dv].
        layout: "bshd", or "bhsd" of q, k, v and what is returned: [b, heads, m, d].
        variant: one rung by name instead of the best one.

    Returns:
        [b, m, heads, dv] of q's dtype, in the order of q's dimensions in memory; with `return_lse`
        also f32 [b, heads, m]. A query that sees nothing gets 0, and -inf.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit; a side of the window is below -1; scales
            without a cache in e4m3, or none with one; `appended` beside k and v; `blocks` beside a
            plan, or a plan for other shapes, dtypes, devices or promises; the variant cannot take
            the call. On a GPU and under autocast, `k` and `v` may be in the cache by then, behind
            `lengths`.
        IndexError: on a CPU, a page outside the cache, a sequence longer than it or of negative
            length, which on a GPU end the kernel with a message.
        ValueError: the layout or the variant does not exist.
        TypeError: an argument is of another kind; the window has no two sides.

    Reference:
        `torch.nn.functional.scaled_dot_product_attention` of each sequence's keys and values.
    """
    if layout not in ("bshd", "bhsd"):
        raise ValueError(f"{_OP}: expected layout to be 'bshd' or 'bhsd', got {layout!r}")
    messages.expect_tensors(_OP, q=q, k_cache=k_cache, v_cache=v_cache)
    if layout == "bhsd":
        q, k, v = map(options.turned, (q, k, v))
    if plan is not None:
        if not isinstance(plan, KvCachePlan):
            given = type(plan).__name__
            raise TypeError(f"{_OP}: expected plan to be a KvCachePlan or None, got {given}")
        if blocks:
            raise RuntimeError(f"{_OP}: expected blocks to be 0 beside a plan, got {blocks}")
        plan.check(_OP, q, k_cache, v_cache, block_table, batch_invariant)
        blocks = plan.blocks
    if (k is None) != (v is None):
        raise RuntimeError(f"{_OP}: expected both k and v, or neither")
    if k is not None and v is not None:
        if appended:
            raise RuntimeError(f"{_OP}: expected appended to be 0 beside k and v, got {appended}")
        messages.expect_tensors(_OP, k=k, v=v)
        appended = k.shape[1] if k.dim() == 4 else 0
    args = (
        q, k_cache, v_cache, lengths, options.default_scale(scale, q), block_table, appended,
        causal, *options.sides(_OP, window), softcap, alibi_slopes, sinks, tree, k_scale, v_scale,
        return_lse, batch_invariant, blocks,
    )  # fmt: skip
    if k is not None:
        # Before anything is written. A GPU does not wait for Python's checks; autocast casts later.
        if not (q.is_cuda or torch.compiler.is_compiling() or autocast.is_enabled()):
            dispatch.checked(op, args)
        _store(None, k, v, k_cache, v_cache, None, lengths, block_table, k_scale, v_scale)
    out, lse = _attend(variant, *args)
    out = out.transpose(1, 2) if layout == "bhsd" else out
    return (out, lse) if return_lse else out


def plan_attention_with_kv_cache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor | None = None,
    block_table: Tensor | None = None,
    batch_invariant: bool = False,
    *,
    layout: str = "bshd",
) -> KvCachePlan:
    """How `attention_with_kv_cache` is cut among blocks, decided once for calls of these shapes,
    which take it as `plan=`.

    A call without a plan shares its keys out among all blocks that the GPU holds at once, for
    sequences as long as the cache has room for. A plan takes the fewest blocks with which
    sequences of `lengths` are through as soon, and leaves the rest of the GPU to others. What it
    fixes holds whatever lengths a call has: blocks find their shares on the GPU, so that neither a
    call nor the replay of a graph that captured one is planned again, waits for the host or needs
    another workspace. With the same plan, bits depend on neither the GPU's size nor the capacity of
    the cache. The first plan on a GPU finds or compiles the kernels, which cannot be done while a
    graph is captured.

    Args:
        q: as `attention_with_kv_cache` takes it; of no tensor here, the values matter, but those of
            `lengths`.
        k_cache: of caches, the number of their pages may change.
        v_cache: likewise.
        lengths: int32 or int64, [b], on any device: tokens of each sequence, appended ones among
            them, for which blocks are counted; sequences may grow beyond it, at the price of fewer
            blocks than could share them. Read here, and never again. None: as many as the cache
            has room for.
        block_table: [b, most pages], or None.
        batch_invariant: as the calls have it.
        layout: "bshd", or "bhsd" of q.

    Returns:
        A `KvCachePlan`, which does not change and holds no memory of a GPU. Where the call goes to
        the Triton twin or to the reference, there is nothing to cut: `blocks` is 0.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit; lengths are negative or longer than the
            cache has room for.
        ValueError: the layout does not exist.
        TypeError: an argument is of another kind.

    Reference:
        Ye et al. 2025, "FlashInfer", https://arxiv.org/abs/2501.01005, plans on the host likewise,
        from lengths that hold for one step.
    """
    if layout not in ("bshd", "bhsd"):
        raise ValueError(f"{_PLAN}: expected layout to be 'bshd' or 'bhsd', got {layout!r}")
    messages.expect_tensors(_PLAN, q=q, k_cache=k_cache, v_cache=v_cache)
    if lengths is not None:
        messages.expect_tensors(_PLAN, lengths=lengths)
    if layout == "bhsd":
        q = options.turned(q)
    gpu = plans.Gpu.of(q.device, dispatch.device_sm(q.device)) if q.is_cuda else None
    try:
        return _planned(q, k_cache, v_cache, lengths, block_table, batch_invariant, gpu)
    except (RuntimeError, TypeError) as error:
        if said := messages.in_words(op, _PLAN, error):
            raise said from error
        raise


def _planned(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor | None,
    block_table: Tensor | None,
    batch_invariant: bool,
    gpu: plans.Gpu | None,
    sm: int | None = None,
) -> KvCachePlan:
    """`sm`: of another GPU than the tensors' own, `gpu`."""
    e4m3 = catalogue.is_fp8(k_cache.dtype)
    one = torch.ones((), dtype=torch.float32, device=q.device) if e4m3 else None
    held = torch.zeros(q.shape[:1], dtype=torch.int32, device=q.device)
    named = {"block_table": block_table, "batch_invariant": batch_invariant}
    choice = dispatch.which(
        _OP, q, k_cache, v_cache, held, 1.0, k_scale=one, v_scale=one, sm=sm, **named
    )
    batch, _, _, d = q.shape
    tokens, kv_heads, dv = *k_cache.shape[1:3], v_cache.shape[3]
    capacity = tokens * (1 if block_table is None else block_table.shape[1])
    keys = [capacity] * batch
    if lengths is not None:
        if lengths.shape != (batch,) or lengths.dtype not in (torch.int32, torch.int64):
            raise RuntimeError(
                f"{_PLAN}: expected lengths to be int32 or int64 of shape ({batch},), got "
                f"{lengths.dtype} of {shape_text(lengths)}"
            )
        keys = lengths.tolist()
        if wrong := [n for n in keys if not 0 <= n <= capacity]:
            raise RuntimeError(
                f"{_PLAN}: expected lengths between 0 and {capacity}, which the cache has room "
                f"for, got {wrong[0]}"
            )
    blocks = workspace = 0
    of_head = _rows(q, k_cache)
    rung = choice.variant.rung.name if choice.variant else ""
    cut = plans.cut_of(rung, of_head, d, dv)
    if cut is not None and gpu is not None:
        blocks = plans.split(gpu, cut, of_head, kv_heads, keys)
        work = batch * kv_heads * -(-of_head // cut.rows)
        workspace = plans.workspace_bytes(gpu, cut, blocks, work, capacity, batch_invariant)
    return KvCachePlan(
        blocks,
        workspace,
        choice.name,
        tuple(q.shape),
        tuple(k_cache.shape[1:]),
        tuple(v_cache.shape[1:]),
        plans.table_width(block_table),
        q.dtype,
        k_cache.dtype,
        q.device,
        batch_invariant,
    )
