"""Calls on which attention_with_kv_cache is tested and measured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.attention.store_kv_cases import E4M3, block_table, ints, scales
from warpsmith.core.arguments_by_name import Call
from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.spec.spoilt import Spoiler

Named = dict[str, Any]


# --- makers of arguments --------------------------------------------------------------------------


def call(
    i: Inputs,
    m: int,
    heads: int,
    kv_heads: int,
    d: int,
    lengths: list[int],
    *,
    dv: int = 0,
    page: int = 0,
    capacity: int = 0,
    e4m3: bool = False,
    scale_heads: bool = False,
    garbage: bool = False,
    **given: Any,
) -> Named:
    """`lengths`: of sequences, the new tokens among them. In pages of `page` tokens that lie
    anyhow, or a page of `capacity` for each sequence.
    """
    dv, batch, most = dv or d, len(lengths), max([capacity, 1, *lengths])
    pages, tokens = (batch * -(-most // page) + 1, page) if page else (batch, most)
    made: Named = {
        "q": i.plain(batch, m, heads, d, salt=1),
        "k_cache": i.plain(pages, tokens, kv_heads, d, salt=2),
        "v_cache": i.plain(pages, tokens, kv_heads, dv, salt=3),
        "lengths": ints(i, lengths),
        "scale": d**-0.5,
    }
    if e4m3:
        each = kv_heads if scale_heads else 0
        made |= {"k_scale": scales(i, each, 0.5), "v_scale": scales(i, each, 2.0)}
        made |= {name: made[name].to(E4M3) for name in ("k_cache", "v_cache")}
    if page:
        made["block_table"] = block_table(i, batch, pages)
    made |= {name: value(i) if callable(value) else value for name, value in given.items()}
    return made


def _wide(*shape: int, scale: float = 1.0) -> Callable[[Inputs], Tensor]:
    return lambda i: Inputs(torch.float32, i.device, i.seed).plain(*shape, scale=scale, salt=9)


def _words(batch: int, m: int) -> Callable[[Inputs], Tensor]:
    """A tree in which each token follows the one of half its number."""

    def path(at: int) -> int:
        return 1 << at | (path((at - 1) // 2) if at else 0)

    return lambda i: torch.tensor([[path(j) for j in range(m)]] * batch, device=i.device)


def _sample(
    label: str,
    m: int,
    heads: int,
    kv_heads: int,
    d: int,
    lengths: list[int],
    small: bool = True,
    dtypes: tuple[str, ...] | None = None,
    **given: Any,
) -> Sample:
    def make(i: Inputs) -> Named:
        return call(i, m, heads, kv_heads, d, lengths, **given)

    return Sample(label, make, small=small, dtypes=dtypes)


def _strided(i: Inputs) -> Named:
    """q among what a projection leaves, both caches in one tensor."""
    given = call(i, 2, 4, 2, 64, [19, 40])
    both = i.plain(2, 40, 2, 2, 64, salt=5)
    return given | {
        "q": i.plain(2, 2, 8, 64, salt=6)[:, :, 2:6],
        "k_cache": both[:, :, 0],
        "v_cache": both[:, :, 1],
    }


def _heads_first(i: Inputs) -> Named:
    given = call(i, 3, 4, 2, 64, [19, 40])
    return given | {
        "q": i.plain(2, 4, 3, 64, salt=6).transpose(1, 2),
        "k_cache": i.plain(2, 2, 40, 64, salt=7).transpose(1, 2),
        "v_cache": i.plain(2, 2, 40, 64, salt=8).transpose(1, 2),
    }


def _gaps(i: Inputs) -> Named:
    return call(i, 1, 2, 1, 16, [9]) | {"k_cache": i.plain(1, 9, 1, 32, salt=7)[..., ::2]}


def _misaligned(i: Inputs) -> Named:
    k_cache = i.plain(2 * 40 * 64 + 1, salt=7)[1:].view(2, 40, 1, 64)
    return call(i, 1, 2, 1, 64, [19, 40]) | {"k_cache": k_cache}


def spoilt(i: Inputs, given: Named) -> Named:
    """With NaN wherever no sequence has a token: past ends, and in pages that nobody has."""
    k, v = (given[name].float() for name in ("k_cache", "v_cache"))
    seen = torch.zeros(k.shape[:2], dtype=torch.bool, device=k.device)
    tokens, appended = k.shape[1], given.get("appended", 0)
    for b, n in enumerate(given["lengths"].tolist()):
        for position in range(n + appended):
            table = given.get("block_table")
            page = b if table is None else int(table[b, position // tokens])
            seen[page, position % tokens] = True
    nan = float("nan")
    changed = {"k_cache": k, "v_cache": v}
    for name, x in changed.items():
        x[~seen] = nan
        changed[name] = x.to(given[name].dtype)
    return given | changed


SAMPLES = (
    _sample("one key", 1, 1, 1, 64, [1], capacity=20),
    _sample("decode", 1, 2, 2, 64, [63, 64, 65]),
    _sample("decode, 2 queries a head", 1, 4, 2, 64, [1, 127, 33]),
    _sample("decode, pages of 16", 1, 4, 1, 64, [129, 7, 48], page=16),
    _sample("decode, pages of 32", 1, 2, 1, 128, [129, 7], page=32),
    _sample("decode, pages of 256", 1, 2, 1, 64, [150, 3], page=256),
    _sample("decode, d of 128", 1, 4, 1, 128, [100, 31], capacity=140),
    _sample("decode, d of 256", 1, 4, 1, 256, [70, 33]),
    _sample("decode, d of 192 and 128", 1, 2, 1, 192, [70], dv=128),
    _sample("decode, d of 80", 1, 4, 2, 80, [50, 20]),
    _sample("decode, d of 8", 1, 2, 1, 8, [50], capacity=60),
    _sample("decode, d of 7", 1, 2, 1, 7, [50], dv=5, capacity=60),
    _sample("decode, d of 512", 1, 1, 1, 512, [20]),
    _sample("pages of 24", 1, 2, 1, 32, [70, 30], page=24),
    _sample("3 tokens", 3, 4, 1, 64, [40, 3]),
    _sample("8 tokens", 8, 4, 2, 64, [65, 20], page=16),
    _sample("16 tokens, d of 128", 16, 2, 1, 128, [100], page=16),
    _sample("chunk of 70", 70, 1, 1, 64, [130, 70], page=64),
    _sample("chunk of 40, d of 256", 40, 2, 1, 256, [50]),
    _sample("more tokens than keys", 5, 2, 1, 64, [3, 0, 6]),
    _sample("empty sequences", 1, 2, 1, 64, [0, 40, 0], page=16),
    _sample("appended", 2, 2, 1, 64, [38, 0], capacity=50, appended=2),
    _sample("not causal", 4, 2, 2, 64, [30, 60], causal=False),
    _sample("window", 3, 2, 1, 64, [90, 20], window_left=20, page=16),
    _sample("window to both sides", 9, 2, 1, 64, [60], causal=False, window_left=9, window_right=3),
    _sample("soft cap", 1, 4, 2, 64, [50, 70], softcap=2.0),
    _sample("alibi", 3, 4, 2, 64, [50, 70], alibi_slopes=_wide(4, scale=0.1)),
    _sample("alibi of sequences", 1, 4, 2, 64, [50, 70], alibi_slopes=_wide(2, 4, scale=0.1)),
    _sample("sinks", 2, 4, 2, 64, [50, 0, 1], sinks=_wide(4)),
    _sample("tree", 6, 2, 1, 64, [40, 9, 6], causal=False, tree=_words(3, 6), page=16),
    _sample("tree of 40", 40, 1, 1, 64, [90], tree=_words(1, 40)),
    _sample("negative scale", 1, 2, 1, 64, [50], scale=-0.2),
    _sample("large logits", 1, 2, 1, 64, [50, 70], scale=12.5),
    _sample("lse", 1, 4, 2, 64, [50, 0, 9], return_lse=True),
    _sample("lse of several tokens", 5, 2, 1, 64, [50, 2], return_lse=True, sinks=_wide(2)),
    _sample("batch invariant", 2, 2, 1, 64, [150, 30], batch_invariant=True, page=16),
    _sample("one block", 1, 4, 2, 64, [150, 0, 70], blocks=1),
    _sample("three blocks", 2, 4, 2, 64, [150, 9, 70], blocks=3, page=16, return_lse=True),
    _sample("more blocks than rounds", 1, 4, 2, 64, [200, 1], blocks=50),
    _sample(
        "three blocks, batch invariant", 2, 2, 1, 64, [150, 30], blocks=3, batch_invariant=True
    ),
    _sample("a row's columns among blocks", 1, 2, 1, 64, [150], blocks=12, return_lse=True),
    _sample("two blocks of several tiles", 40, 2, 1, 64, [150, 70], blocks=2),
    _sample("five blocks, e4m3", 1, 4, 2, 64, [150, 9, 70], blocks=5, e4m3=True),
    _sample("e4m3", 1, 4, 2, 64, [63, 65], e4m3=True),
    _sample("e4m3, pages of 16", 1, 4, 1, 128, [100, 33], e4m3=True, page=16, scale_heads=True),
    _sample("e4m3, d of 256", 1, 2, 1, 256, [40], e4m3=True),
    _sample("e4m3, 9 tokens", 9, 4, 2, 64, [50, 9], e4m3=True, page=16, scale_heads=True),
    _sample("e4m3, 20 tokens of 128", 20, 1, 1, 128, [50], e4m3=True, softcap=3.0),
    _sample("e4m3, d of 8", 1, 2, 1, 8, [50], e4m3=True),
    Sample("strided", _strided),
    Sample("heads before tokens", _heads_first),
    Sample("gaps between a head's values", _gaps),
    Sample("misaligned cache", _misaligned),
    _sample("no tokens", 0, 2, 1, 64, [4]),
    _sample("no sequences", 1, 2, 1, 64, []),
    _sample("many sequences", 1, 2, 1, 16, [*range(40)], page=16),
    _sample("decode, 4096 keys", 1, 32, 8, 128, [4096, 1000], small=False, page=64),
    _sample("8 tokens, 2049 keys", 8, 32, 8, 128, [2049, 700], small=False, page=16),
    _sample("chunk of 300", 300, 8, 2, 128, [1000, 300], small=False, page=64),
    _sample("e4m3, 3000 keys", 1, 16, 2, 128, [3000], small=False, e4m3=True, page=32),
    Sample(
        "past 2^31 elements",
        lambda i: call(i, 1, 32, 8, 128, [1000, 900], page=64, capacity=16500 * 64),
        small=False,
        huge=True,
        dtypes=("bf16",),
    ),
)


# --- facts ----------------------------------------------------------------------------------------


def _args(given: Named) -> tuple[Any, ...]:
    names = (
        "q", "k_cache", "v_cache", "lengths", "scale", "block_table", "appended", "causal",
        "window_left", "window_right", "softcap", "alibi_slopes", "sinks", "tree", "k_scale",
        "v_scale", "return_lse", "batch_invariant", "blocks",
    )  # fmt: skip
    defaults = {"appended": 0, "causal": True, "softcap": 0.0, "return_lse": True}
    defaults |= {"window_left": -1, "window_right": -1, "batch_invariant": False, "blocks": 0}
    return tuple((defaults | given).get(name) for name in names)


def _same(a: Any, b: Any) -> None:
    for x, y in zip(a, b, strict=True):
        assert (x is y is None) or torch.equal(x, y)


def pages_anyhow(attend: Any, i: Inputs) -> None:
    """Pages in order and pages in none give the same bits."""
    given = call(i, 1, 4, 2, 64, [129, 40], page=16)
    order = torch.randperm(
        given["k_cache"].shape[0], generator=torch.Generator().manual_seed(i.seed)
    ).to(i.device)
    moved = given | {name: given[name][order] for name in ("k_cache", "v_cache")}
    place = order.argsort().int()
    table = given["block_table"]
    moved["block_table"] = torch.where(table < 0, table, place[table.clamp_min(0).long()])
    _same(attend(*_args(given)), attend(*_args(moved)))


def repeatable(attend: Any, i: Inputs) -> None:
    args = _args(call(i, 2, 4, 2, 64, [150, 70, 9], page=16))
    first = attend(*args)
    for _ in range(3):
        _same(first, attend(*args))


def garbage(attend: Any, i: Inputs) -> None:
    """NaN past the ends of sequences, and in pages that nobody has, reaches no result."""
    for page in (0, 16):
        for e4m3 in (False, True):
            given = call(i, 2, 4, 2, 64, [50, 7, 0], page=page, e4m3=e4m3, capacity=90)
            _same(attend(*_args(given)), attend(*_args(spoilt(i, given))))


def alone(attend: Any, i: Inputs) -> None:
    """With batch_invariant, a sequence has the same bits alone and among others."""
    given = call(i, 1, 4, 2, 64, [130, 70, 20], page=16) | {"batch_invariant": True}
    together = attend(*_args(given))
    for b in range(3):
        own = {name: given[name][b : b + 1] for name in ("q", "lengths", "block_table")}
        single = attend(*_args(given | own))
        for x, y in zip(together, single, strict=True):
            assert torch.equal(x[b : b + 1], y)


# --- measured -------------------------------------------------------------------------------------


def _bench(batch: int, n: int, m: int = 1, page: int = 0, e4m3: bool = False) -> Sample:
    """32 heads, 8 of keys, d of 128; sequences of one length, as peers want them."""
    label = f"{batch} sequences of {n}" + (f", {m} tokens" if m > 1 else "")
    label += f", pages of {page}" if page else ""
    label += ", e4m3" if e4m3 else ""

    def make(i: Inputs) -> Named:
        pages, tokens = (batch * -(-n // page), page) if page else (batch, n)
        made: Named = {"q": i.plain(batch, m, 32, 128, salt=1)}
        for salt, name in ((2, "k_cache"), (3, "v_cache")):
            cache = i.plain(pages, tokens, 8, 128, salt=salt)
            made[name] = cache.to(E4M3) if e4m3 else cache
        made |= {"lengths": ints(i, [n] * batch), "scale": 128**-0.5}
        if page:
            order = torch.randperm(pages, generator=torch.Generator().manual_seed(7))
            made["block_table"] = order.int().view(batch, -1).to(i.device)
        if e4m3:
            made |= {"k_scale": scales(i), "v_scale": scales(i)}
        return made

    return Sample(
        label, make, small=False, ladder=(batch, n, m, page, e4m3) == (8, 8192, 1, 0, False)
    )


BENCH = (
    *(_bench(1, n) for n in (2048, 8192, 32768, 131072)),
    *(_bench(b, 8192) for b in (8, 32)),
    _bench(128, 2048),
    *(_bench(1, 8192, m) for m in (2, 4, 8, 16)),
    _bench(8, 8192, 8),
    *(_bench(8, 8192, 1, page) for page in (16, 64, 256)),
    _bench(8, 8192, 8, 64),
    _bench(8, 8192, 1, 0, True),
    _bench(8, 8192, 1, 64, True),
    _bench(8, 8192, 8, 64, True),
    _bench(1, 8192, 512, 64),
)


def _peer(backend: str) -> Callable[[], Callable[..., Any]]:
    """PyTorch's attention over a cache that lies as it wants it."""

    def factory() -> Callable[..., Any]:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        chosen = getattr(SDPBackend, backend)

        def attend(call: Call) -> Any:
            if call.block_table is not None or call.k_scale is not None:
                raise NotImplementedError("a cache without pages, of q's dtype")
            q, k, v = (x.transpose(1, 2) for x in (call.q, call.k_cache, call.v_cache))
            if q.shape[2] > 1:
                raise NotImplementedError("one token: the peer's causal mask starts at the top")
            with sdpa_kernel(chosen) if chosen else contextlib.nullcontext():
                out = F.scaled_dot_product_attention(q, k, v, scale=call.scale, enable_gqa=True)
            return out.transpose(1, 2), None

        return attend

    return factory


PEERS = {
    "sdpa_flash": _peer("FLASH_ATTENTION"),
    "sdpa_cudnn": _peer("CUDNN_ATTENTION"),
}


# --- refused --------------------------------------------------------------------------------------

_OP = "attention_with_kv_cache"
_bad = Spoiler(_OP, lambda i: call(i, 1, 4, 2, 64, [20, 9]), like="q")
_paged = Spoiler(_OP, lambda i: call(i, 1, 4, 2, 64, [20, 9], page=16), like="q")

ERRORS = (
    _bad.integers(),
    _bad(
        "fp8 queries",
        r"expected q to have at least 16 bits an element, got torch\.float8_e4m3fn",
        q=lambda i: i.plain(2, 1, 4, 64).to(E4M3),
    ),
    _bad(
        "3-D queries",
        r"expected q to have shape \[batch, tokens, heads, d\], got \(2, 4, 64\)",
        q=lambda i: i.plain(2, 4, 64),
    ),
    _bad(
        "another d",
        r"expected k_cache to have the last dimension of q, got \(2, 20, 2, 64\) and "
        r"\(2, 1, 4, 32\)",
        q=lambda i: i.plain(2, 1, 4, 32),
    ),
    _bad(
        "heads that do not divide",
        r"expected the heads of q to be a multiple of those of k_cache, got 3 and 2",
        q=lambda i: i.plain(2, 1, 3, 64),
    ),
    _bad(
        "a cache of another dtype",
        r"expected k_cache to have dtype torch\.\w+ like q, or torch\.float8_e4m3fn, got "
        r"torch\.float64",
        k_cache=lambda i: i.plain(2, 20, 2, 64).double(),
    ),
    _bad(
        "64-bit lengths",
        r"expected lengths to have dtype torch\.int32, got torch\.int64",
        lengths=lambda i: ints(i, [20, 9], torch.int64),
    ),
    _bad(
        "another batch",
        r"expected lengths to have shape \(2,\), got \(3,\)",
        lengths=lambda i: ints(i, [20, 9, 1]),
    ),
    _paged(
        "a table of another batch",
        r"expected block_table to have shape \(2, pages\), got \(1, 3\)",
        block_table=lambda i: ints(i, [[0, 1, 2]]),
    ),
    _paged(
        "no table of so many pages",
        r"expected k_cache to have 2 pages, one a sequence where there is no block_table",
        block_table=None,
    ),
    _bad(
        "a scale without e4m3",
        "expected no k_scale or v_scale beside caches that are not in e4m3",
        v_scale=lambda i: scales(i),
    ),
    _bad("a window below -1", "expected window_left to be -1", window_left=-2),
    _bad("a negative soft cap", "expected softcap not to be negative, got -1", softcap=-1.0),
    _bad("no soft cap", "expected softcap to be finite in float32, got inf", softcap=float("inf")),
    _bad(
        "heads of nothing",
        r"expected q to have heads of at least one value, got shape \(2, 1, 4, 0\)",
        q=lambda i: i.plain(2, 1, 4, 0),
        k_cache=lambda i: i.plain(2, 20, 2, 0),
    ),
    _bad("negative appended", "expected appended not to be negative", appended=-1),
    _bad("negative blocks", "expected blocks to be between 0 and 65535, got -1", blocks=-1),
    _bad("too many blocks", "expected blocks to be between 0 and 65535, got 65536", blocks=65536),
    _bad(
        "sinks of other heads",
        r"expected sinks to have shape \(4,\), the heads of q, got \(2,\)",
        sinks=_wide(2),
    ),
    _bad.on_the_cpu("k_cache", 2, 20, 2, 64, narrow=True),
)


def cpu_errors() -> tuple[Bad, ...]:
    """What is seen on a CPU, and ends a kernel on a GPU."""
    outside = (
        _bad(
            "longer than the cache",
            "the cache has no room for the tokens of a sequence",
            lengths=lambda i: ints(i, [20, 21]),
        ),
        _bad(
            "a negative length",
            "expected lengths not to be negative, got -1",
            lengths=lambda i: ints(i, [20, -1]),
        ),
        _paged(
            "a page outside",
            "block_table names a page that the cache does not have",
            block_table=lambda i: ints(i, [[0, 77], [1, 2]]),
        ),
    )
    return tuple(replace(bad, error=IndexError) for bad in outside)
