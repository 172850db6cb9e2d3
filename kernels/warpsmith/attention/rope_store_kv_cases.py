"""Calls on which rope_store_kv is tested and measured."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.attention import store_kv_cases as stores
from warpsmith.core.catalogue import Bad, Inputs, Property, Sample
from warpsmith.spec import rotary
from warpsmith.spec.spoilt import Spoiler

E4M3 = torch.float8_e4m3fn
Named = dict[str, Any]
_Make = Callable[[Inputs], Named]


def turns(i: Inputs, pairs: int, base: float = 10000.0) -> Tensor:
    return rotary.turns_of(2 * pairs, base, torch.device(i.device))


def tables(i: Inputs, rows: int, pairs: int, wide: bool = True) -> Named:
    """In f32, or in the dtype of the call."""
    made = rotary.tables(rotary.turns_of(2 * pairs, 10000.0, torch.device("cpu")), rows)
    cos, sin = (t.to(device=i.device, dtype=None if wide else i.dtype) for t in made)
    return {"cos": cos, "sin": sin}


def by_token(i: Inputs, batch: int, tokens: int, pairs: int) -> Named:
    made = tables(i, batch * tokens, pairs)
    return {name: t.view(batch, tokens, -1) for name, t in made.items()}


def positions(i: Inputs, batch: int, tokens: int, most: int, axes: int = 0) -> Tensor:
    """From 0 to `most`, both of them among them."""
    shape = (axes, batch, tokens) if axes else (batch, tokens)
    count = torch.Size(shape).numel()
    at = torch.arange(count, dtype=torch.float64) * (most / max(count - 1, 1))
    return at.round().long().view(shape).to(i.device)


def call(
    i: Inputs,
    batch: int,
    m: int,
    q_heads: int,
    heads: int,
    d: int,
    dv: int = 0,
    *,
    angles: Named | None = None,
    **stored: Any,
) -> Named:
    """Turns all of a head by default; where tokens go as `store_kv_cases.call` has it."""
    return {
        "q": i.randn(batch, m, q_heads, d, salt=5),
        **stores.call(i, batch, m, heads, d, dv, **stored),
        **({"turns": turns(i, d // 2)} if angles is None else angles),
    }


def _fused(i: Inputs) -> Named:
    """q, k and v in one tensor, as a projection leaves them; the caches as well."""
    given = call(i, 2, 3, 4, 2, 64)
    qkv = i.randn(2, 3, 8, 64)
    both = i.randn(2, 16, 2, 2, 64)
    return given | {
        "q": qkv[:, :, :4],
        "k": qkv[:, :, 4:6],
        "v": qkv[:, :, 6:],
        "k_cache": both[:, :, 0],
        "v_cache": both[:, :, 1],
    }


def _heads_first(i: Inputs) -> Named:
    """q and k as [batch, heads, tokens, d], the caches as [pages, heads, tokens, d]."""
    given = call(i, 2, 3, 4, 2, 64)
    return given | {
        "q": i.randn(2, 4, 3, 64, salt=1).transpose(1, 2),
        "k": i.randn(2, 2, 3, 64, salt=2).transpose(1, 2),
        "k_cache": i.randn(2, 2, 16, 64, salt=3).transpose(1, 2),
        "v_cache": i.randn(2, 2, 16, 64, salt=4).transpose(1, 2),
    }


def _special(i: Inputs) -> Named:
    """NaN, infinities and zeros of both signs, in what turns and in what does not."""
    given = call(i, 2, 5, 4, 2, 96, angles={"turns": turns(i, 32)})
    for n, value in enumerate((float("nan"), float("inf"), -float("inf"), 0.0, -0.0)):
        for name in ("q", "k", "v"):
            given[name][:, n, :, 5 * n :: 31] = value
    return given


def _beyond(i: Inputs) -> Named:
    """Values beyond e4m3."""
    given = call(i, 2, 8, 2, 2, 64, tokens=32, e4m3=True)
    for name in ("k", "v"):
        given[name] = given[name] * 300
        given[name][0, 0, 0, :3] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    return given


CALLS: dict[str, _Make] = {
    "behind lengths": lambda i: call(i, 5, 1, 4, 2, 128, lengths=[0, 3, 15, 7, 1]),
    "several tokens": lambda i: call(i, 2, 7, 5, 3, 64, lengths=[0, 9]),
    "tables by token": lambda i: call(i, 2, 5, 3, 1, 32, angles=by_token(i, 2, 5, 16)),
    "one table for all sequences": lambda i: call(i, 3, 6, 2, 2, 64, angles=by_token(i, 1, 6, 32)),
    "tables": lambda i: call(i, 2, 7, 4, 2, 64, angles=tables(i, 30, 32), lengths=[5, 9]),
    "tables in the dtype of q": lambda i: call(
        i, 2, 7, 4, 2, 64, angles=tables(i, 16, 32, wide=False)
    ),
    "tables at positions": lambda i: call(
        i, 2, 5, 4, 2, 64, angles=tables(i, 100, 32) | {"positions": positions(i, 2, 5, 99)}
    ),
    "positions of a million": lambda i: call(
        i,
        2,
        9,
        4,
        2,
        128,
        angles={"turns": turns(i, 64), "positions": positions(i, 2, 9, 1_000_003)},
    ),
    "positions in i32 of one sequence": lambda i: call(
        i, 3, 5, 2, 1, 64, angles={"turns": turns(i, 32), "positions": positions(i, 1, 5, 77).int()}
    ),
    "three axes": lambda i: call(
        i,
        2,
        6,
        4,
        2,
        128,
        angles={
            "turns": turns(i, 64, 1e6),
            "positions": positions(i, 2, 6, 30000, axes=3),
            "axes": rotary.axes((16, 24, 24), i.device),
        },
    ),
    "interleaved": lambda i: call(i, 2, 5, 5, 2, 64) | {"interleaved": True},
    "interleaved tables": lambda i: (
        call(i, 2, 7, 4, 2, 96, angles=tables(i, 16, 48)) | {"interleaved": True}
    ),
    "partial": lambda i: call(i, 2, 5, 4, 2, 96, angles={"turns": turns(i, 16)}),
    "partial, a pack left over": lambda i: call(i, 2, 5, 5, 3, 72, angles={"turns": turns(i, 16)}),
    "partial, interleaved": lambda i: (
        call(i, 2, 5, 4, 2, 128, angles=tables(i, 16, 32)) | {"interleaved": True}
    ),
    "scaled": lambda i: call(i, 2, 5, 4, 2, 64) | {"factor": 1.37},
    "short values": lambda i: call(i, 2, 5, 4, 2, 64, 24),
    "long values": lambda i: call(i, 2, 5, 6, 3, 32, 96),
    "over pages": lambda i: call(i, 3, 21, 4, 2, 64, pages=9, lengths=[0, 15, 20]),
    "pages of 24": lambda i: call(i, 2, 30, 3, 2, 16, pages=6, tokens=24, lengths=[23, 1]),
    "slots": lambda i: call(i, 1, 5, 4, 2, 64, pages=3, slots=[[40, 0, -1, 17, -7]]),
    "slots of a batch at positions": lambda i: call(
        i,
        2,
        2,
        4,
        2,
        64,
        slots=[[1, 30], [3, 17]],
        angles={"turns": turns(i, 32), "positions": positions(i, 2, 2, 500)},
    ),
    "no token kept": lambda i: call(i, 1, 3, 4, 2, 64, slots=[[-1, -1, -1]]),
    "e4m3": lambda i: call(i, 2, 5, 4, 2, 64, 32, e4m3=True),
    "e4m3, scales of heads": lambda i: call(i, 2, 5, 6, 3, 64, e4m3=True, scale_heads=True),
    "e4m3, pages, odd heads": lambda i: call(i, 2, 5, 3, 3, 10, 9, pages=4, e4m3=True),
    "beyond e4m3": _beyond,
    "odd heads": lambda i: call(i, 2, 3, 5, 3, 7, 5, angles={"turns": turns(i, 3)}),
    "halves without whole packs": lambda i: call(i, 2, 5, 3, 2, 36),
    "prime everything": lambda i: call(i, 3, 13, 11, 7, 62, 61, angles={"turns": turns(i, 31)}),
    "one pair": lambda i: call(i, 1, 3, 3, 1, 2),
    "out of a fused projection": _fused,
    "heads before tokens": _heads_first,
    "no queries": lambda i: call(i, 2, 5, 0, 3, 64),
    "no keys": lambda i: call(i, 2, 5, 4, 0, 64),
    "no tokens": lambda i: call(i, 2, 0, 4, 2, 64),
    "no sequences": lambda i: call(i, 0, 2, 4, 2, 64, slots=[]),
    "gaps between a head's values": lambda i: (
        call(i, 2, 3, 4, 2, 8) | {"k_cache": i.randn(2, 16, 2, 16)[..., ::2]}
    ),
    "misaligned cache": lambda i: call(i, 2, 3, 4, 2, 64) | {"k_cache": i.misaligned(2, 16, 2, 64)},
    "misaligned tables": lambda i: call(
        i, 2, 5, 4, 2, 64, angles={name: t[:, 1:] for name, t in tables(i, 16, 33).items()}
    ),
}
#: Views of q that only an operator that makes its output takes as they are.
VIEWS: dict[str, _Make] = {
    "columns apart": lambda i: call(i, 2, 5, 4, 2, 64) | {
        "q": i.randn(2, 5, 64, 4, salt=1).transpose(2, 3),
        "k": i.randn(2, 5, 2, 128, salt=2)[..., ::2],
    },
    "misaligned q": lambda i: call(i, 2, 5, 4, 2, 64) | {"q": i.misaligned(2, 5, 4, 64)},
    "expanded": lambda i: call(i, 2, 5, 4, 2, 64) | {
        "q": i.randn(2, 5, 1, 64, salt=1).expand(2, 5, 4, 64),
        "k": i.randn(1, 5, 2, 64, salt=2).expand(2, 5, 2, 64),
    },
}  # fmt: skip


def samples(views: bool = True) -> tuple[Sample, ...]:
    made = CALLS | (VIEWS if views else {})
    return (
        *(Sample(label, make) for label, make in made.items()),
        # Triton's interpreter has no NaN in bf16 that keeps its bits
        Sample("special values", _special, dtypes=("f32", "f16")),
        Sample(
            "long",
            lambda i: call(i, 2, 300, 8, 2, 128, pages=50, lengths=[17, 0], e4m3=True),
            small=False,
        ),
        Sample(
            "many tokens",
            lambda i: call(i, 2, 2048, 32, 8, 128, pages=300, lengths=[5, 7]),
            small=False,
        ),
        Sample(
            "past 2^31 elements",
            lambda i: call(i, 2, 3, 8, 8, 128, tokens=1_100_000, lengths=[5, 1_099_990]),
            small=False,
            huge=True,
            dtypes=("bf16",),
        ),
    )


# --- facts ----------------------------------------------------------------------------------------


def _arguments(given: Named, *more: Any) -> list[Any]:
    """By position, up to the scales."""
    names = ("q", "k", "v", "k_cache", "v_cache", "cos", "sin", "positions", "turns", "axes")
    places = ("slots", "lengths", "block_table", "k_scale", "v_scale")
    return [*(given.get(name) for name in (*names, *places)), *more]


def _position_zero(rope_store_kv: Any, i: Inputs) -> None:
    """Nothing turns at position 0, and the cache holds k and v as they are."""
    given = call(i, 2, 1, 4, 2, 64, lengths=[0, 0])
    q, k_cache, v_cache = rope_store_kv(*_arguments(given))
    assert torch.equal(q, given["q"])
    assert torch.equal(k_cache[:, :1], given["k"])
    assert torch.equal(v_cache[:, :1], given["v"])


def _behind_lengths(rope_store_kv: Any, i: Inputs) -> None:
    """A token stands at its place in its sequence where nothing else is said."""
    given = call(i, 3, 21, 4, 2, 64, pages=9, lengths=[0, 15, 20])
    at = given["lengths"].long()[:, None] + torch.arange(21, device=i.device)
    one = rope_store_kv(*_arguments(given))
    two = rope_store_kv(*_arguments(given | {"positions": at}))
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a, b)


def _keys_as_queries(rope_store_kv: Any, i: Inputs) -> None:
    """A key that is a query turns as it does."""
    given = call(i, 2, 7, 2, 2, 64, lengths=[1, 9])
    q, k_cache, _ = rope_store_kv(*_arguments(given | {"q": given["k"].clone()}))
    for b, length in enumerate((1, 9)):
        assert torch.equal(k_cache[b, length : length + 7], q[b])


def _nothing_else(rope_store_kv: Any, i: Inputs) -> None:
    given = call(i, 1, 2, 4, 2, 64, pages=3, slots=[[40, 7]])
    before = given["k_cache"].clone()
    _, after, _ = rope_store_kv(*_arguments(given))
    changed = (after != before).flatten(2).any(-1).flatten().nonzero().flatten()
    assert changed.tolist() == [7, 40]


PROPERTIES = (
    Property("position 0", _position_zero),
    Property("lengths say the positions", _behind_lengths),
    Property("keys turn as queries", _keys_as_queries),
    Property("nothing else is written", _nothing_else),
)


# --- measured -------------------------------------------------------------------------------------


def _bench(batch: int, m: int, e4m3: bool = False, by_turns: bool = False) -> Sample:
    """Llama 3 8B, behind 17 tokens of each sequence."""
    label = f"Llama 8B {batch} x {m} tokens, pages of 64"
    label += (", e4m3" if e4m3 else "") + (", turns" if by_turns else "")

    def make(i: Inputs) -> Named:
        pages = batch * (-(-(m + 17) // 64))
        given: Named = {
            "q": i.plain(batch, m, 32, 128, salt=1),
            "k": i.plain(batch, m, 8, 128, salt=2),
            "v": i.plain(batch, m, 8, 128, salt=3),
        }
        for name in ("k_cache", "v_cache"):
            cache = torch.zeros(pages, 64, 8, 128, dtype=i.dtype, device=i.device)
            given[name] = cache.to(E4M3) if e4m3 else cache
        given["lengths"] = stores.ints(i, [17] * batch)
        table = torch.arange(pages, dtype=torch.int32, device=i.device)
        given["block_table"] = table.view(batch, -1)
        given |= {"turns": turns(i, 64, 500000.0)} if by_turns else tables(i, m + 17, 64)
        if e4m3:
            given |= {"k_scale": stores.scales(i), "v_scale": stores.scales(i)}
        return given

    plain = not e4m3 and not by_turns
    return Sample(label, make, small=False, ladder=plain and m in (1, 8192))


#: A step of 32 sequences, and from 16 MB on.
BENCH = (
    _bench(32, 1),
    _bench(32, 1, e4m3=True),
    _bench(1, 1024),
    _bench(1, 2048),
    _bench(1, 8192),
    _bench(1, 8192, e4m3=True),
    _bench(1, 8192, by_turns=True),
    _bench(4, 8192),
)


# --- refused --------------------------------------------------------------------------------------


def _good(i: Inputs) -> Named:
    """In f32."""
    return call(Inputs(torch.float32, i.device), 2, 5, 4, 2, 64)


def _paged(i: Inputs) -> Named:
    return call(Inputs(torch.float32, i.device), 2, 5, 4, 2, 64, pages=4)


def _stored_where_it_comes_from(name: str, cache: str, i: Inputs) -> Named:
    made = _good(i)
    whole = torch.ones(2, 16, 4, 64, device=i.device)
    heads = 4 if name == "q" else 2
    return made | {cache: whole[:, :, :2], name: whole[:, 4:9, :heads]}


def errors(op: str) -> tuple[Bad, ...]:
    """Of heads, of angles and of places the usual ones; rope and store_kv have the others."""
    bad, paged = Spoiler(op, _good, "q"), Spoiler(op, _paged, "q")
    ones = lambda *shape: lambda i: torch.ones(shape, device=i.device)  # noqa: E731
    narrow = lambda *shape: lambda i: ones(*shape)(i).to(E4M3)  # noqa: E731
    at = lambda *shape: lambda i: stores.ints(i, [0], torch.int64).expand(shape)  # noqa: E731
    return (
        bad(
            "integers",
            r"expected q to be a floating-point tensor, got torch\.int32",
            q=lambda i: torch.ones(2, 5, 4, 64, dtype=torch.int32, device=i.device),
        ),
        bad(
            "3-d q",
            r"expected q to have shape \[batch, tokens, heads, d\], got \(5, 4, 64\)",
            q=ones(5, 4, 64),
        ),
        bad(
            "k of another length",
            r"expected k to have the batch, tokens and d of q, \(2, 5, 4, 64\), got "
            r"\(2, 6, 2, 64\)",
            k=ones(2, 6, 2, 64),
        ),
        bad(
            "k of another dtype",
            r"expected k to have dtype torch\.float32 like q, got torch\.float16",
            k=lambda i: ones(2, 5, 2, 64)(i).half(),
        ),
        bad(
            "values of other heads",
            r"expected v to have the batch, tokens and heads of k, \(2, 5, 2, 64\), got "
            r"\(2, 5, 1, 64\)",
            v=ones(2, 5, 1, 64),
        ),
        bad(
            "values of another dtype",
            r"expected v to have dtype torch\.float32 like k, got torch\.float16",
            v=lambda i: ones(2, 5, 2, 64)(i).half(),
        ),
        bad(
            "cache of another d",
            r"expected k_cache to have shape \(2, 16, 2, 64\), got \(2, 16, 2, 32\)",
            k_cache=ones(2, 16, 2, 32),
        ),
        bad(
            "caches of two sizes",
            r"expected v_cache to have the pages, tokens and heads of k_cache, "
            r"\(2, 16, 2, 64\), got \(2, 8, 2, 64\)",
            v_cache=ones(2, 8, 2, 64),
        ),
        bad(
            "e4m3 without scales",
            "expected k_scale and v_scale beside caches in e4m3",
            k_cache=narrow(2, 16, 2, 64),
            v_cache=narrow(2, 16, 2, 64),
        ),
        bad(
            "scales without e4m3",
            "expected no k_scale or v_scale beside caches that are not in e4m3",
            k_scale=lambda i: stores.scales(i),
        ),
        bad("both slots and lengths", "expected either slots or lengths", slots=at(2, 5)),
        bad("neither slots nor lengths", "expected either slots or lengths", lengths=None),
        bad(
            "slots of other tokens",
            r"expected slots to have shape \(2, 5\), got \(2, 6\)",
            lengths=None,
            slots=at(2, 6),
        ),
        paged(
            "a table beside slots",
            "expected no block_table beside slots",
            lengths=None,
            slots=at(2, 5),
        ),
        paged(
            "no table of so many pages",
            r"expected k_cache to have 2 pages, one a sequence where there is no block_table, got "
            r"shape \(4, 16, 2, 64\)",
            block_table=None,
        ),
        bad("cos alone", "expected both cos and sin, or neither", cos=ones(16, 32)),
        bad("no angles", "expected either cos and sin or turns", turns=None),
        bad(
            "tables of too few rows",
            r"expected cos to have a row for each of 5 tokens, got \(4, 32\)",
            turns=None,
            cos=ones(4, 32),
            sin=ones(4, 32),
        ),
        bad(
            "too many pairs", "expected 1 to 32 pairs of a head of 64 values, got 33", turns=at(33)
        ),
        bad(
            "positions of other tokens",
            r"expected positions to have shape \[batch, tokens\] beside q of \(2, 5, 4, 64\), got "
            r"\(2, 6\)",
            positions=at(2, 6),
        ),
        bad(
            "turns on the CPU",
            r"expected turns to be on cuda:\d+ like q, got cpu",
            cuda_only=True,
            turns=lambda i: torch.zeros(32, dtype=torch.int64),
        ),
        *(
            Bad(
                f"{name} out of {cache}",
                functools.partial(_stored_where_it_comes_from, name, cache),
                f"{op}: expected {name} to share no memory with {cache}, which is written to",
            )
            for name, cache in (("q", "k_cache"), ("q", "v_cache"), ("k", "k_cache"))
        ),
        bad.refused(
            "halves without whole packs",
            "needs heads of which both halves are whole packs of 16 bytes, aligned",
            "f32x4_pack",
            turns=lambda i: turns(i, 18),
        ),
        bad.refused(
            "misaligned tables",
            "needs cos and sin aligned to the angles of half a pack",
            "f32x4_pack_stream",
            cos=lambda i: ones(16, 33)(i)[:, 1:],
            sin=lambda i: ones(16, 33)(i)[:, 1:],
            turns=None,
        ),
        bad.refused(
            "a cache with gaps",
            "needs caches of less than 2\\^30 tokens, and heads without gaps",
            "f32",
            k_cache=lambda i: ones(2, 16, 2, 128)(i)[..., ::2],
        ),
    )


def _overlapping(name: str, i: Inputs) -> Named:
    """Out of one projection, the first head of `name` being the last one of queries."""
    fused = torch.ones(2, 5, 8, 64, device=i.device)
    return _good(i) | {"q": fused[:, :, :4], name: fused[:, :, 3:5]}


def errors_in_place() -> tuple[Bad, ...]:
    op = "rope_store_kv_inplace"
    bad = Spoiler(op, _good, "q")
    ones = lambda *shape: lambda i: torch.ones(shape, device=i.device)  # noqa: E731
    return (
        *errors(op),
        bad(
            "expanded q",
            "expected q that are not expanded, as they are written to",
            q=lambda i: ones(2, 5, 1, 64)(i).expand(2, 5, 4, 64),
        ),
        bad(
            "overlapping q",
            "expected q without elements that overlap, as they are written to",
            q=lambda i: ones(2000)(i).as_strided((2, 5, 4, 64), (400, 64, 32, 1)),
        ),
        *(
            Bad(
                f"queries that are {name}, too",
                functools.partial(_overlapping, name),
                f"{op}: expected {name} to share no memory with q, which is written to",
            )
            for name in ("k", "v")
        ),
        bad.refused(
            "columns apart",
            "needs queries without gaps",
            "f32",
            q=lambda i: ones(2, 5, 4, 128)(i)[..., ::2],
        ),
    )
