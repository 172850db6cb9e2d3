"""Appending keys and values to a cache."""

from __future__ import annotations

import torch
from torch import Tensor

from warpsmith.attention import cache_checks as caches
from warpsmith.attention import store_kv_cases as cases
from warpsmith.core import catalogue, dispatch, messages
from warpsmith.core.catalogue import PACK, Cost, Op, Rung
from warpsmith.spec import memory, rotary
from warpsmith.spec.checks import check_device, shape_text

_OP = "store_kv"


def check_apart_from_caches(
    op: str, name: str, x: Tensor, k_cache: Tensor, v_cache: Tensor
) -> None:
    """What is read while caches are written. One in e4m3 is no view of what is stored."""
    for cache_name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if x.dtype == cache.dtype:
            memory.check_own_memory(op, cache_name, cache, name, x)


def check(
    op: str,
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
    """Tokens and caches of a call of `op`."""
    caches.check_wide_floating(op, "k", k)
    caches.check_heads(op, "k", k)
    check_device(op, "v", v, k, "k")
    if v.dtype != k.dtype:
        raise RuntimeError(f"{op}: expected v to have dtype {k.dtype} like k, got {v.dtype}")
    if v.dim() != 4 or v.shape[:3] != k.shape[:3]:
        raise RuntimeError(
            f"{op}: expected v to have the batch, tokens and heads of k, {shape_text(k)}, got "
            f"{shape_text(v)}"
        )
    caches.check_caches(op, k_cache, v_cache, k, "k")
    pages = tuple(k_cache.shape[:2])
    caches.check_shape(op, "k_cache", k_cache, (*pages, *k.shape[2:]))
    caches.check_shape(op, "v_cache", v_cache, (*pages, *v.shape[2:]))
    memory.check_apart(op, "k_cache", k_cache)
    memory.check_apart(op, "v_cache", v_cache)
    memory.check_own_memory(op, "k_cache", k_cache, "v_cache", v_cache)
    check_apart_from_caches(op, "k", k, k_cache, v_cache)
    check_apart_from_caches(op, "v", v, k_cache, v_cache)
    caches.check_scales(op, k_scale, v_scale, k_cache, k, "k")
    if (slots is None) == (lengths is None):
        raise RuntimeError(f"{op}: expected either slots or lengths")
    if lengths is not None:
        caches.check_sequences(op, lengths, block_table, k_cache, k, "k")
        return
    assert slots is not None
    check_device(op, "slots", slots, k, "k")
    caches.check_dtype(op, "slots", slots, torch.int64)
    caches.check_shape(op, "slots", slots, tuple(k.shape[:2]))
    if block_table is not None:
        raise RuntimeError(f"{op}: expected no block_table beside slots")


def _check(
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
    check(_OP, k, v, k_cache, v_cache, slots, lengths, block_table, k_scale, v_scale)


def stored(
    op: str,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor | None,
    lengths: Tensor | None,
    block_table: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """What the caches hold afterwards."""
    if slots is None:
        assert lengths is not None
        new = torch.arange(k.shape[1], device=k.device)
        page, token = caches.places(lengths.long()[:, None] + new, block_table, k_cache, op)
        kept = torch.ones_like(page, dtype=torch.bool)
    else:
        kept = slots >= 0
        page, token = slots // k_cache.shape[1], slots % k_cache.shape[1]
        if slots.numel() and int(page.max()) >= k_cache.shape[0]:
            raise IndexError(f"{op}: a slot lies behind the end of the cache")

    def with_rows(x: Tensor, cache: Tensor, scale: Tensor | None) -> Tensor:
        rows = x[kept]
        if scale is not None:
            wide = torch.promote_types(x.dtype, scale.dtype)
            rows = rows.to(wide) / scale.to(wide).reshape(-1, 1)
            rows = rows.clamp(-caches.E4M3_MAX, caches.E4M3_MAX)
        rows, cache = rows.to(cache.dtype), cache.clone()
        if catalogue.is_fp8(cache.dtype):  # which cannot be indexed everywhere
            rows, bytes_ = rows.view(torch.uint8), cache.view(torch.uint8)
        else:
            bytes_ = cache
        bytes_[page[kept], token[kept]] = rows
        return cache

    return with_rows(k, k_cache, k_scale), with_rows(v, v_cache, v_scale)


def _reference(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor | None,
    lengths: Tensor | None,
    block_table: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> tuple[Tensor, Tensor]:
    return stored(_OP, k, v, k_cache, v_cache, slots, lengths, block_table, k_scale, v_scale)


def write(
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
    """What one writes in PyTorch, who knows that all tokens have a place: nothing is read back."""
    tokens = k_cache.shape[1]
    if slots is None:
        assert lengths is not None
        at = lengths.long()[:, None] + torch.arange(k.shape[1], device=k.device)
        page, place = at // tokens, at % tokens
        if block_table is None:
            page = torch.arange(len(at), device=k.device)[:, None].expand_as(at)
        else:
            page = block_table.long().gather(1, page)
    else:
        page, place = slots // tokens, slots % tokens
    for x, cache, scale in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        if scale is None:
            cache[page, place] = x
            continue
        rows = (x.float() / scale.reshape(-1, 1)).clamp(-caches.E4M3_MAX, caches.E4M3_MAX)
        cache.view(torch.uint8)[page, place] = rows.to(cache.dtype).view(torch.uint8)


# --- the ladder -----------------------------------------------------------------------------------


def is_empty(k: Tensor, v: Tensor) -> bool:
    return k.numel() == 0 and v.numel() == 0


def needs_countable(
    k: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor | None
) -> str | None:
    """Why no rung takes a call."""
    if why := caches.needs_countable(k_cache, v_cache, block_table):
        return why
    return None if k.shape[0] * k.shape[1] < 2**31 else "needs less than 2^31 tokens"


def _any(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor | None
) -> str | None:
    return None if is_empty(k, v) else needs_countable(k, k_cache, v_cache, block_table)


def are_in_packs(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor) -> bool:
    """Whether accesses of 16 bytes of what is new serve all four."""
    width = PACK[catalogue.DTYPE_NAMES[k.dtype]]
    new = (memory.as_kernels_get(x) for x in (k, v))
    return all(
        x.shape[3] % width == 0 and rotary.in_packs(x, 3, width) for x in (*new, k_cache, v_cache)
    )


def _packs(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor | None
) -> str | None:
    if (why := _any(k, v, k_cache, v_cache, block_table)) or is_empty(k, v):
        return why
    if are_in_packs(k, v, k_cache, v_cache):
        return None
    return "needs heads that are whole packs of 16 bytes, aligned"


def half_places(values: int, width: int) -> int:
    """Pairs of packs, half of so many values apart."""
    return -(-values // (2 * width))


def _places(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor | None
) -> str | None:
    if (why := _packs(k, v, k_cache, v_cache, block_table)) or is_empty(k, v):
        return why
    width = PACK[catalogue.DTYPE_NAMES[k.dtype]]
    places = half_places(max(k.shape[3], v.shape[3]), width)
    few = k.shape[0] * k.shape[1] * k.shape[2] * places < 2**31
    return None if few else "needs less than 2^31 places of heads"


_LADDER = (
    Rung("naive", "a block per token, one value an access", when=_any),
    Rung(
        "pack",
        "128-bit loads of what is new, stores as wide or half",
        width=PACK,
        pack=True,
        when=_packs,
    ),
    Rung(
        "stream",
        "a thread has a place of a key and its value: four loads on their way before the slot is",
        width=PACK,
        pack=True,
        technique="stream",
        when=_places,
    ),
)

op = catalogue.add(
    Op(
        "store_kv(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor? slots=None, "
        "Tensor? lengths=None, Tensor? block_table=None, Tensor? k_scale=None, "
        "Tensor? v_scale=None) -> ()",
        family="attention",
        reference=_reference,
        ladder=_LADDER,
        triton="store_kv_triton:store_kv",
        fake=lambda: None,
        check=_check,
        elementwise=True,
        samples=cases.SAMPLES,
        errors=cases.ERRORS,
        properties=cases.PROPERTIES,
        cost=Cost(
            bytes=lambda k, v, k_cache: (
                (k.numel() + v.numel()) * (k.element_size() + k_cache.element_size())
            ),
        ),
        bench=cases.BENCH,
        bench_dtypes=("bf16", "f16"),
        eager=write,
    )
)
dispatch.register(op)
_store_kv = dispatch.public(op)


def store_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor | None = None,
    lengths: Tensor | None = None,
    block_table: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    *,
    variant: str | None = None,
) -> None:
    """Writes keys and values of new tokens into a cache: `cache[page, token] = x`, or `x / scale`
    rounded to e4m3.

    Where they go is said by `slots`, or follows from `lengths`: token i of sequence b goes to place
    `lengths[b] + i` of its sequence. Two tokens must not go to one place. Not differentiable.

    Args:
        k: [batch, m, heads, d], f32, f16 or bf16, any strides: m new tokens of each sequence; with
            `slots` also [tokens, heads, d].
        v: [batch, m, heads, dv], or [tokens, heads, dv], of the dtype of k.
        k_cache: [pages, tokens of a page, heads, d], of the dtype of k or e4m3, any strides;
            written to. Without a block_table, a page is all that a sequence may have:
            [batch, capacity, heads, d].
        v_cache: [pages, tokens of a page, heads, dv], of the dtype of k_cache; written to.
        slots: int64, [batch, m] or [tokens]: page * tokens of a page + token in the page. Tokens
            with a negative slot are left out.
        lengths: int32, [batch]: how many tokens of each sequence the cache holds before the call.
        block_table: int32, [batch, most pages], beside `lengths`: the pages of each sequence in
            order. What lies behind the last token may be anything.
        k_scale: f32, of shape () or [heads], for a cache in e4m3: a stored value times the scale is
            the key. What exceeds 448 is clamped to it.
        v_scale: the same of values.
        variant: one rung by name instead of the best one.

    Returns:
        Nothing; the caches hold the tokens.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit; neither slots nor lengths are given, or
            both; scales without a cache in e4m3, or none with one; elements of the caches share
            memory, or k and v do with them.
        IndexError: on a CPU, a slot or a page outside the cache. On a GPU these end the kernel with
            a message, and CUDA fails with an assertion from then on.
        ValueError: the variant does not exist.

    Reference:
        `k_cache[slots // page, slots % page] = k`.
    """
    messages.expect_tensors(_OP, k=k, v=v)
    if slots is not None and k.dim() == 3 and v.dim() == 3 and slots.dim() == 1:
        k, v, slots = k[None], v[None], slots[None]
    _store_kv(variant, k, v, k_cache, v_cache, slots, lengths, block_table, k_scale, v_scale)
