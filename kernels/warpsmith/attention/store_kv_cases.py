"""Calls on which store_kv is tested and measured."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Property, Sample
from warpsmith.spec.spoilt import Spoiler

E4M3 = torch.float8_e4m3fn
Named = dict[str, Any]


def ints(inputs: Inputs, values: list[Any], dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=inputs.device)


def scales(inputs: Inputs, heads: int = 0, value: float = 0.25) -> Tensor:
    """One, or one of each head."""
    steps = torch.arange(1, heads + 1, device=inputs.device) if heads else None
    one = torch.full((), value, device=inputs.device)
    return one if steps is None else one * steps


def caches(
    inputs: Inputs, pages: int, tokens: int, heads: int, d: int, dv: int, e4m3: bool = False
) -> Named:
    k = inputs.randn(pages, tokens, heads, d, salt=3)
    v = inputs.randn(pages, tokens, heads, dv, salt=4)
    return {"k_cache": k.to(E4M3), "v_cache": v.to(E4M3)} if e4m3 else {"k_cache": k, "v_cache": v}


def call(
    inputs: Inputs,
    batch: int,
    m: int,
    heads: int,
    d: int,
    dv: int = 0,
    *,
    pages: int = 0,
    tokens: int = 16,
    lengths: list[int] | None = None,
    slots: list[list[int]] | None = None,
    e4m3: bool = False,
    scale_heads: bool = False,
) -> Named:
    """Behind `lengths` of pages that lie anyhow, of a cache of a page for each sequence where
    `pages` is 0, or at `slots`.
    """
    dv = dv or d
    given: Named = {
        "k": inputs.randn(batch, m, heads, d, salt=1),
        "v": inputs.randn(batch, m, heads, dv, salt=2),
        **caches(inputs, pages or batch, tokens, heads, d, dv, e4m3),
    }
    if slots is not None:
        given["slots"] = ints(inputs, slots, torch.int64).view(batch, m)
    else:
        given["lengths"] = ints(inputs, lengths or [3] * batch)
        if pages:
            given["block_table"] = block_table(inputs, batch, pages)
    if e4m3:
        each = heads if scale_heads else 0
        given |= {"k_scale": scales(inputs, each), "v_scale": scales(inputs, each, 0.5)}
    return given


def block_table(inputs: Inputs, batch: int, pages: int) -> Tensor:
    """Pages shared out among the sequences, in no order; what is over is outside the cache."""
    generator = torch.Generator().manual_seed(inputs.seed + pages)
    order = torch.randperm(pages, generator=generator)
    width = max(1, pages // max(batch, 1))
    table = torch.full((batch, width + 1), -1, dtype=torch.int32)
    for i in range(batch):
        mine = order[i * width : (i + 1) * width]
        table[i, : len(mine)] = mine.int()
    return table.to(inputs.device)


def _strided(inputs: Inputs) -> Named:
    """k and v in one tensor behind q, as a projection leaves them; the caches as well."""
    given = call(inputs, 2, 3, 2, 64)
    qkv = inputs.randn(2, 3, 6, 64)
    both = inputs.randn(2, 16, 2, 2, 64)
    return given | {
        "k": qkv[:, :, 2:4],
        "v": qkv[:, :, 4:6],
        "k_cache": both[:, :, 0],
        "v_cache": both[:, :, 1],
    }


def _heads_first(inputs: Inputs) -> Named:
    """Caches as [pages, heads, tokens, d], k with its last dimension apart."""
    given = call(inputs, 2, 3, 2, 64)
    return given | {
        "k": inputs.randn(2, 3, 64, 2).transpose(2, 3),
        "k_cache": inputs.randn(2, 2, 16, 64).transpose(1, 2),
        "v_cache": inputs.randn(2, 2, 16, 64).transpose(1, 2),
    }


def _gaps(inputs: Inputs) -> Named:
    given = call(inputs, 2, 3, 2, 8)
    return given | {"k_cache": inputs.randn(2, 16, 2, 16)[..., ::2]}


def _misaligned(inputs: Inputs) -> Named:
    return call(inputs, 2, 3, 2, 64) | {"k_cache": inputs.misaligned(2, 16, 2, 64)}


def _special(inputs: Inputs) -> Named:
    """Values beyond e4m3, NaN and infinities among them."""
    given = call(inputs, 2, 8, 2, 64, tokens=32, e4m3=True)
    for name in ("k", "v"):
        given[name] = given[name] * 300
        given[name][0, 0, 0, :3] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    return given


SAMPLES = (
    Sample("decode", lambda i: call(i, 5, 1, 2, 128, lengths=[0, 3, 15, 7, 1])),
    Sample("one token", lambda i: call(i, 1, 1, 1, 8)),
    Sample("several tokens", lambda i: call(i, 2, 7, 3, 64, 96, lengths=[0, 9])),
    Sample("odd heads", lambda i: call(i, 2, 3, 3, 7, 5)),
    Sample("over pages", lambda i: call(i, 3, 21, 2, 64, pages=9, lengths=[0, 15, 20])),
    Sample("pages of 24", lambda i: call(i, 2, 30, 2, 16, pages=6, tokens=24, lengths=[23, 1])),
    Sample("slots", lambda i: call(i, 1, 5, 2, 64, pages=3, slots=[[40, 0, -1, 17, -7]])),
    Sample("slots of a batch", lambda i: call(i, 2, 2, 2, 64, slots=[[1, 30], [3, 17]])),
    Sample("no token kept", lambda i: call(i, 1, 3, 2, 64, slots=[[-1, -1, -1]])),
    Sample("e4m3", lambda i: call(i, 2, 5, 2, 64, 32, e4m3=True)),
    Sample("e4m3, scales of heads", lambda i: call(i, 2, 5, 3, 64, e4m3=True, scale_heads=True)),
    Sample("e4m3, odd heads", lambda i: call(i, 2, 5, 3, 9, pages=4, e4m3=True)),
    Sample("beyond e4m3", _special),
    Sample("no tokens", lambda i: call(i, 2, 0, 2, 64)),
    Sample("no sequences", lambda i: call(i, 0, 2, 2, 64, slots=[])),
    Sample("strided", _strided),
    Sample("heads before tokens", _heads_first),
    Sample("gaps between a head's values", _gaps),
    Sample("misaligned cache", _misaligned),
    Sample(
        "past 2^31 elements",
        lambda i: call(i, 2, 3, 8, 128, tokens=1_100_000, lengths=[5, 1_099_990]),
        small=False,
        huge=True,
        dtypes=("bf16",),
    ),
)


# --- facts ----------------------------------------------------------------------------------------


def _by_slots_as_by_lengths(store_kv: Any, inputs: Inputs) -> None:
    given = call(inputs, 3, 21, 2, 64, pages=9, lengths=[0, 15, 20])
    names = ("k", "v", "k_cache", "v_cache", "slots", "lengths", "block_table")
    args = [given.get(name) for name in names]
    table, lengths = given["block_table"], given["lengths"]
    position = lengths.long()[:, None] + torch.arange(21, device=lengths.device)
    slots = table.long().gather(1, position // 16) * 16 + position % 16
    one = store_kv(*args)
    two = store_kv(*args[:4], slots, None, None)
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a, b)


def _nothing_else_is_written(store_kv: Any, inputs: Inputs) -> None:
    given = call(inputs, 1, 2, 2, 64, pages=3, slots=[[40, 7]])
    before = given["k_cache"]
    after, _ = store_kv(*given.values())
    changed = (after != before).flatten(2).any(-1).flatten().nonzero().flatten()
    assert changed.tolist() == [7, 40]


PROPERTIES = (
    Property("slots say what lengths and pages say", _by_slots_as_by_lengths),
    Property("nothing else is written", _nothing_else_is_written),
)


# --- measured -------------------------------------------------------------------------------------


def _bench(batch: int, m: int, e4m3: bool = False) -> Sample:
    label = f"{batch * m} tokens, 8 heads of 128, pages of 64" + (", e4m3" if e4m3 else "")

    def make(inputs: Inputs) -> Named:
        pages = batch * (-(-m // 64) + 1)
        given: Named = {
            "k": inputs.plain(batch, m, 8, 128, salt=1),
            "v": inputs.plain(batch, m, 8, 128, salt=2),
        }
        for name in ("k_cache", "v_cache"):
            cache = torch.zeros(pages, 64, 8, 128, dtype=inputs.dtype, device=inputs.device)
            given[name] = cache.to(E4M3) if e4m3 else cache
        given["lengths"] = ints(inputs, [17] * batch)
        given["block_table"] = torch.arange(pages, dtype=torch.int32, device=inputs.device).view(
            batch, -1
        )
        if e4m3:
            given |= {"k_scale": scales(inputs), "v_scale": scales(inputs)}
        return given

    return Sample(label, make, small=False, ladder=(batch, m, e4m3) == (1, 8192, False))


#: Steps of decoding, then what moves from 16 MB on.
BENCH = (
    _bench(32, 1),
    _bench(64, 1),
    _bench(64, 1, True),
    _bench(1, 2048),
    _bench(1, 8192),
    _bench(1, 8192, True),
    _bench(4, 8192),
)


# --- refused --------------------------------------------------------------------------------------


def _good(inputs: Inputs) -> Named:
    return call(inputs, 2, 3, 2, 64)


def _paged(inputs: Inputs) -> Named:
    return call(inputs, 2, 3, 2, 64, pages=4)


def _one_cache(inputs: Inputs) -> Named:
    """Of keys and values in one, the values are taken for those of the next token."""
    both = inputs.randn(2, 18, 2, 64)
    return _good(inputs) | {"k_cache": both[:, :-2], "v_cache": both[:, 2:]}


def _stored_where_it_comes_from(name: str, cache: str, inputs: Inputs) -> Named:
    made = _good(inputs)
    return made | {name: made[cache][:, 4:7]}


_bad = Spoiler("store_kv", _good, like="k")
_bad_paged = Spoiler("store_kv", _paged, like="k")

ERRORS = (
    _bad.integers(),
    _bad(
        "fp8 keys",
        r"expected k to have at least 16 bits an element, got torch\.float8_e4m3fn",
        k=lambda i: i.randn(2, 3, 2, 64).to(E4M3),
    ),
    _bad(
        "3-D keys",
        r"expected k to have shape \[batch, tokens, heads, d\], got \(3, 2, 64\)",
        k=lambda i: i.randn(3, 2, 64),
    ),
    _bad.other_dtype("v", like="k"),
    _bad(
        "values of other heads",
        r"expected v to have the batch, tokens and heads of k, \(2, 3, 2, 64\), got "
        r"\(2, 3, 1, 64\)",
        v=lambda i: i.randn(2, 3, 1, 64),
    ),
    _bad(
        "cache of another dtype",
        r"expected k_cache to have dtype torch\.\w+ like k, or torch\.float8_e4m3fn, got "
        r"torch\.float64",
        k_cache=lambda i: i.randn(2, 16, 2, 64).double(),
    ),
    _bad(
        "pages of no tokens",
        r"expected k_cache to have shape \[pages, tokens of a page, heads, d\], got "
        r"\(2, 0, 2, 64\)",
        k_cache=lambda i: i.randn(2, 0, 2, 64),
    ),
    _bad(
        "caches of two dtypes",
        r"expected v_cache to have dtype torch\.\w+ like k_cache, got torch\.float8_e4m3fn",
        v_cache=lambda i: i.randn(2, 16, 2, 64).to(E4M3),
    ),
    _bad(
        "caches of two sizes",
        r"expected v_cache to have the pages, tokens and heads of k_cache, \(2, 16, 2, 64\), got "
        r"\(2, 8, 2, 64\)",
        v_cache=lambda i: i.randn(2, 8, 2, 64),
    ),
    _bad(
        "cache of another d",
        r"expected k_cache to have shape \(2, 16, 2, 64\), got \(2, 16, 2, 32\)",
        k_cache=lambda i: i.randn(2, 16, 2, 32),
    ),
    _bad(
        "expanded cache",
        "expected k_cache that are not expanded, as they are written to",
        k_cache=lambda i: i.randn(1, 16, 2, 64).expand(2, 16, 2, 64),
    ),
    _bad(
        "overlapping cache",
        "expected v_cache without elements that overlap, as they are written to",
        v_cache=lambda i: i.randn(4000).as_strided((2, 16, 2, 64), (1000, 64, 32, 1)),
    ),
    Bad(
        "one cache for both",
        _one_cache,
        "store_kv: expected v_cache to share no memory with k_cache, which is written to",
    ),
    *(
        Bad(
            f"{name} out of {cache}",
            functools.partial(_stored_where_it_comes_from, name, cache),
            f"store_kv: expected {name} to share no memory with {cache}, which is written to",
        )
        for name in ("k", "v")
        for cache in ("k_cache", "v_cache")
    ),
    _bad(
        "e4m3 without scales",
        "expected k_scale and v_scale beside caches in e4m3",
        k_cache=lambda i: i.randn(2, 16, 2, 64).to(E4M3),
        v_cache=lambda i: i.randn(2, 16, 2, 64).to(E4M3),
    ),
    _bad(
        "scales without e4m3",
        "expected no k_scale or v_scale beside caches that are not in e4m3",
        k_scale=lambda i: scales(i),
    ),
    Bad(
        "scales of other heads",
        lambda i: call(i, 2, 3, 2, 64, e4m3=True) | {"v_scale": scales(i, 3)},
        r"store_kv: expected v_scale to have shape \(\) or \(2,\), one value per head of keys, got "
        r"\(3,\)",
    ),
    _bad(
        "both slots and lengths",
        "expected either slots or lengths",
        slots=lambda i: ints(i, [[0, 1, 2], [3, 4, 5]], torch.int64),
    ),
    _bad("neither slots nor lengths", "expected either slots or lengths", lengths=None),
    _bad(
        "64-bit lengths",
        r"expected lengths to have dtype torch\.int32, got torch\.int64",
        lengths=lambda i: ints(i, [1, 2], torch.int64),
    ),
    _bad(
        "another batch",
        r"expected lengths to have shape \(2,\), got \(3,\)",
        lengths=lambda i: ints(i, [1, 2, 3]),
    ),
    _bad(
        "32-bit slots",
        r"expected slots to have dtype torch\.int64, got torch\.int32",
        lengths=None,
        slots=lambda i: ints(i, [[0, 1, 2], [3, 4, 5]]),
    ),
    _bad_paged(
        "a table of another batch",
        r"expected block_table to have shape \(2, pages\), got \(3, 4\)",
        block_table=lambda i: ints(i, [[0] * 4] * 3),
    ),
    _bad_paged(
        "a table beside slots",
        "expected no block_table beside slots",
        lengths=None,
        slots=lambda i: ints(i, [[0, 1, 2], [3, 4, 5]], torch.int64),
    ),
    _bad_paged(
        "no table of so many pages",
        r"expected k_cache to have 2 pages, one a sequence where there is no block_table, got "
        r"shape \(4, 16, 2, 64\)",
        block_table=None,
    ),
    _bad.on_the_cpu("v", 2, 3, 2, 64, narrow=True),
)
