"""Calls on which rope is tested and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Property, Sample
from warpsmith.spec import rotary
from warpsmith.spec.spoilt import Spoiler

Named = dict[str, Any]


def ints(i: Inputs, values: Any, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=i.device)


def heads(
    i: Inputs, batch: int, tokens: int, q_heads: int, k_heads: int, d: int, plain: bool = False
) -> Named:
    make = i.plain if plain else i.randn
    return {
        "q": make(batch, tokens, q_heads, d, salt=1),
        "k": make(batch, tokens, k_heads, d, salt=2),
    }


def turns(i: Inputs, pairs: int, base: float = 10000.0) -> Tensor:
    return rotary.turns_of(2 * pairs, base, torch.device(i.device))


def tables(i: Inputs, rows: int, pairs: int, wide: bool = True, base: float = 10000.0) -> Named:
    """In f32, or in the dtype of the call."""
    made = rotary.tables(rotary.turns_of(2 * pairs, base, torch.device("cpu")), rows)
    cos, sin = (t.to(device=i.device, dtype=None if wide else i.dtype) for t in made)
    return {"cos": cos, "sin": sin}


def by_token(i: Inputs, batch: int, tokens: int, pairs: int, wide: bool = True) -> Named:
    """Of the first half of a table that has both halves, as models make it."""
    made = tables(i, batch * tokens, pairs, wide)
    both = {name: torch.cat((t, t), -1).view(batch, tokens, -1) for name, t in made.items()}
    return {name: t[..., :pairs] for name, t in both.items()}


def fused(i: Inputs, batch: int, tokens: int, q_heads: int, k_heads: int, d: int) -> Named:
    """q and k as they come out of one projection with v."""
    rows = i.randn(batch, tokens, (q_heads + 2 * k_heads) * d)
    split = rows.unflatten(-1, (-1, d))
    return {"q": split[:, :, :q_heads], "k": split[:, :, q_heads : q_heads + k_heads]}


def by_head(i: Inputs, batch: int, tokens: int, q_heads: int, k_heads: int, d: int) -> Named:
    """[batch, heads, tokens, d] in memory."""
    return {
        "q": i.randn(batch, q_heads, tokens, d, salt=1).transpose(1, 2),
        "k": i.randn(batch, k_heads, tokens, d, salt=2).transpose(1, 2),
    }


def spread(i: Inputs, batch: int, tokens: int, most: int, axes: int = 0) -> Tensor:
    """Positions from 0 to `most`, both of them among them."""
    shape = (axes, batch, tokens) if axes else (batch, tokens)
    count = torch.Size(shape).numel()
    at = torch.arange(count, dtype=torch.float64) * (most / max(count - 1, 1))
    return at.round().long().view(shape).to(i.device)


_Make = Callable[[Inputs], Named]

#: Those whose angles cannot lie outside of a table come first: they are the ones that are spoilt.
CALLS: dict[str, _Make] = {
    "turns": lambda i: heads(i, 2, 5, 4, 2, 64) | {"turns": turns(i, 32)},
    "tables by token": lambda i: heads(i, 2, 5, 3, 1, 32) | by_token(i, 2, 5, 16),
    "interleaved": lambda i: (
        heads(i, 2, 5, 5, 2, 64) | {"turns": turns(i, 32), "interleaved": True}
    ),
    "tables": lambda i: heads(i, 2, 7, 4, 2, 64) | tables(i, 9, 32),
    "tables in the dtype of q": lambda i: heads(i, 2, 7, 4, 2, 64) | tables(i, 7, 32, wide=False),
    "tables by token in the dtype of q": lambda i: (
        heads(i, 1, 7, 6, 1, 128) | by_token(i, 1, 7, 64, wide=False)
    ),
    "one table for all sequences": lambda i: heads(i, 3, 6, 2, 2, 64) | by_token(i, 1, 6, 32),
    "interleaved tables": lambda i: (
        heads(i, 2, 7, 4, 2, 96) | tables(i, 7, 48) | {"interleaved": True}
    ),
    "tables at positions": lambda i: (
        heads(i, 2, 5, 4, 2, 64) | tables(i, 100, 32) | {"positions": spread(i, 2, 5, 99)}
    ),
    "positions of a million": lambda i: (
        heads(i, 2, 9, 4, 2, 128) | {"turns": turns(i, 64), "positions": spread(i, 2, 9, 1_000_003)}
    ),
    "positions of two billion": lambda i: (
        heads(i, 1, 9, 2, 1, 64)
        | {"turns": turns(i, 32, 500000.0), "positions": spread(i, 1, 9, 2**31 - 1)}
    ),
    "positions in i32": lambda i: (
        heads(i, 2, 5, 4, 2, 64)
        | {"turns": turns(i, 32), "positions": spread(i, 2, 5, 131071).int()}
    ),
    "negative positions": lambda i: (
        heads(i, 1, 5, 2, 1, 64)
        | {"turns": turns(i, 32), "positions": spread(i, 1, 5, 4000) - 2000}
    ),
    "positions of one sequence": lambda i: (
        heads(i, 3, 5, 2, 1, 64) | {"turns": turns(i, 32), "positions": spread(i, 1, 5, 77)}
    ),
    "transposed positions": lambda i: (
        heads(i, 3, 5, 2, 1, 64) | {"turns": turns(i, 32), "positions": spread(i, 5, 3, 77).t()}
    ),
    "two axes": lambda i: (
        heads(i, 2, 6, 4, 2, 64)
        | {
            "turns": turns(i, 32),
            "positions": spread(i, 2, 6, 999, axes=2),
            "axes": rotary.axes((12, 20), i.device),
        }
    ),
    "three axes": lambda i: (
        heads(i, 2, 6, 4, 2, 128)
        | {
            "turns": turns(i, 64, 1e6),
            "positions": spread(i, 2, 6, 30000, axes=3),
            "axes": rotary.axes((16, 24, 24), i.device),
        }
    ),
    "interleaved axes, tables": lambda i: (
        heads(i, 2, 6, 3, 2, 64)
        | tables(i, 50, 32)
        | {
            "positions": spread(i, 1, 6, 49, axes=3).int(),
            "axes": ints(i, [0, 1, 2] * 10 + [0, 0], torch.int32),
        }
    ),
    "partial": lambda i: heads(i, 2, 5, 4, 2, 96) | {"turns": turns(i, 16)},
    "partial, a pack left over": lambda i: heads(i, 2, 5, 5, 3, 72) | {"turns": turns(i, 16)},
    "partial, interleaved": lambda i: (
        heads(i, 2, 5, 4, 2, 128) | tables(i, 5, 32) | {"interleaved": True}
    ),
    "scaled": lambda i: heads(i, 2, 5, 4, 2, 64) | {"turns": turns(i, 32), "factor": 1.37},
    "inverse": lambda i: heads(i, 2, 5, 4, 2, 64) | {"turns": turns(i, 32), "inverse": True},
    "inverse tables": lambda i: heads(i, 2, 5, 4, 2, 64) | tables(i, 5, 32) | {"inverse": True},
    "out of a fused projection": lambda i: fused(i, 2, 5, 4, 2, 64) | {"turns": turns(i, 32)},
    "heads before tokens": lambda i: by_head(i, 2, 5, 4, 2, 64) | {"turns": turns(i, 32)},
    "no keys": lambda i: heads(i, 2, 5, 4, 0, 64) | {"turns": turns(i, 32)},
    "no queries": lambda i: heads(i, 2, 5, 0, 3, 64) | {"turns": turns(i, 32)},
    "no tokens": lambda i: heads(i, 2, 0, 4, 2, 64) | {"turns": turns(i, 32)},
    "no batch": lambda i: heads(i, 0, 4, 4, 2, 64) | {"turns": turns(i, 32)},
    "one pair": lambda i: heads(i, 1, 3, 3, 1, 2) | {"turns": turns(i, 1)},
    "odd heads": lambda i: heads(i, 2, 5, 3, 2, 7) | {"turns": turns(i, 3)},
    "halves without whole packs": lambda i: heads(i, 2, 5, 3, 2, 36) | {"turns": turns(i, 18)},
    "prime everything": lambda i: heads(i, 3, 13, 11, 7, 62) | {"turns": turns(i, 31)},
    "a step": lambda i: heads(i, 8, 1, 32, 8, 128) | by_token(i, 8, 1, 64),
    "twice five heads": lambda i: heads(i, 1, 9, 10, 5, 32) | {"turns": turns(i, 16)},
}
#: Views of q and k that only an operator that makes its outputs takes as they are.
VIEWS: dict[str, _Make] = {
    "misaligned": lambda i: {
        "q": i.misaligned(2, 5, 4, 64),
        "k": i.misaligned(2, 5, 2, 64, offset=3, salt=1),
        "turns": turns(i, 32),
    },
    "columns apart": lambda i: {
        "q": i.randn(2, 5, 64, 4, salt=1).transpose(2, 3),
        "k": i.randn(2, 5, 2, 128, salt=2)[..., ::2],
        "turns": turns(i, 32),
    },
    "misaligned tables": lambda i: (
        heads(i, 2, 5, 4, 2, 64) | {name: t[:, 1:] for name, t in tables(i, 7, 33).items()}
    ),
    "tables with columns apart": lambda i: (
        heads(i, 2, 5, 4, 2, 64) | {name: t[:, ::2] for name, t in tables(i, 7, 64).items()}
    ),
}
EXPANDED: dict[str, _Make] = {
    "expanded": lambda i: {
        "q": i.randn(2, 5, 1, 64, salt=1).expand(2, 5, 4, 64),
        "k": i.randn(1, 5, 2, 64, salt=2).expand(2, 5, 2, 64),
        "turns": turns(i, 32),
    },
}


def _special(i: Inputs) -> Named:
    """NaN, infinities and zeros of both signs, in what turns and in what does not."""
    given = heads(i, 2, 5, 4, 2, 96)
    values = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0)
    for n, value in enumerate(values):
        given["q"][:, n, :, 5 * n :: 31] = value
    return given | {"turns": turns(i, 32)}


def _long(i: Inputs, batch: int, tokens: int, q_heads: int, k_heads: int, d: int) -> Named:
    return heads(i, batch, tokens, q_heads, k_heads, d) | {
        "turns": turns(i, d // 2),
        "positions": spread(i, batch, tokens, 1_000_000),
    }


def samples(views: bool = True) -> tuple[Sample, ...]:
    made = CALLS | (VIEWS | EXPANDED if views else {k: VIEWS[k] for k in list(VIEWS)[2:]})
    return (
        *(Sample(label, make) for label, make in made.items()),
        # Triton's interpreter has no NaN in bf16 that keeps its bits
        Sample("special values", _special, dtypes=("f32", "f16")),
        Sample("long", lambda i: _long(i, 2, 300, 8, 2, 128), small=False),
        Sample("long, interleaved", lambda i: _long(i, 1, 257, 8, 2, 64) | {"interleaved": True},
               small=False),
        Sample("many tokens", lambda i: _long(i, 2, 2048, 32, 8, 128), small=False),
        Sample(
            "past 2^31 elements",
            lambda i: heads(i, 1, 2**20 + 9, 32, 1, 64, plain=True) | {"turns": turns(i, 32)},
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
    )  # fmt: skip


# --- wrong calls ----------------------------------------------------------------------------------


def _good(i: Inputs) -> Named:
    return {
        "q": torch.ones(2, 5, 4, 64, device=i.device),
        "k": torch.ones(2, 5, 2, 64, device=i.device),
        "turns": turns(i, 32),
    }


def angle_errors(op: str, good: _Make) -> tuple[Bad, ...]:
    """Those of angles, of q [2, 5, 4, 64]."""
    bad = Spoiler(op, good, "q")
    none: Named = {"turns": None}
    table = lambda *shape: lambda i: torch.ones(shape, device=i.device)  # noqa: E731
    at = lambda *shape: lambda i: ints(i, 0).expand(shape)  # noqa: E731
    axis = lambda n: lambda i: ints(i, [0] * n, torch.int32)  # noqa: E731

    def both(*shape: int) -> Named:
        return {"cos": table(*shape), "sin": table(*shape)}

    return (
        bad("cos alone", "expected both cos and sin, or neither", cos=table(5, 32)),
        bad("nothing", "expected either cos and sin or turns", **none),
        bad("tables and turns", "expected either cos and sin or turns", **both(5, 32)),
        bad(
            "tables of f64",
            r"expected cos to have dtype torch\.float32 or that of q, torch\.float32, got "
            r"torch\.float64",
            **none,
            cos=lambda i: torch.ones(5, 32, device=i.device).double(),
            sin=lambda i: torch.ones(5, 32, device=i.device).double(),
        ),
        bad(
            "flat tables",
            r"expected cos to have shape \[rows, pairs\], or without positions "
            r"\[batch, tokens, pairs\], got \(32,\)",
            **none,
            **both(32),
        ),
        bad(
            "tables by token at positions",
            r"expected cos to have shape \[rows, pairs\], or without positions .*, got "
            r"\(2, 5, 32\)",
            **none,
            **both(2, 5, 32),
            positions=at(2, 5),
        ),
        bad(
            "tables of other tokens",
            r"expected cos to have shape \[rows, pairs\].*, got \(2, 4, 32\)",
            **none,
            **both(2, 4, 32),
        ),
        bad(
            "another sin",
            r"expected sin to have shape \(5, 32\) like cos, got \(5, 16\)",
            **none,
            cos=table(5, 32),
            sin=table(5, 16),
        ),
        bad(
            "too few rows",
            r"expected cos to have a row for each of 5 tokens, got \(4, 32\)",
            **none,
            **both(4, 32),
        ),
        bad(
            "turns of f32",
            r"expected turns to have dtype torch\.int64, got torch\.float32",
            turns=table(32),
        ),
        bad(
            "turns in rows",
            r"expected turns to have shape \[pairs\], got \(1, 32\)",
            turns=at(1, 32),
        ),
        bad(
            "too many pairs",
            "expected 1 to 32 pairs of a head of 64 values, got 33",
            turns=at(33),
        ),
        bad("no pairs", "expected 1 to 32 pairs of a head of 64 values, got 0", turns=at(0)),
        bad("axes alone", "expected positions beside axes", axes=axis(32)),
        bad(
            "positions of f32",
            r"expected positions to have dtype torch\.int64 or torch\.int32, got torch\.float32",
            positions=table(2, 5),
        ),
        bad(
            "positions of other tokens",
            r"expected positions to have shape \[batch, tokens\] beside q of \(2, 5, 4, 64\), got "
            r"\(2, 6\)",
            positions=at(2, 6),
        ),
        bad(
            "positions without axes",
            r"expected positions to have shape \[axes, batch, tokens\] beside .*, got \(2, 5\)",
            positions=at(2, 5),
            axes=axis(32),
        ),
        bad(
            "axes of i64",
            r"expected axes to have dtype torch\.int32, got torch\.int64",
            positions=at(3, 2, 5),
            axes=at(32),
        ),
        bad(
            "axes of other pairs",
            r"expected axes to have shape \(32,\), one for each pair, got \(16,\)",
            positions=at(3, 2, 5),
            axes=axis(16),
        ),
        bad(
            "turns on the CPU",
            r"expected turns to be on cuda:\d+ like q, got cpu",
            cuda_only=True,
            turns=lambda i: torch.zeros(32, dtype=torch.int64),
        ),
    )


def head_errors(op: str, good: _Make) -> tuple[Bad, ...]:
    bad = Spoiler(op, good, "q")
    ones = lambda *shape: lambda i: torch.ones(shape, device=i.device)  # noqa: E731
    return (
        bad(
            "integers",
            r"expected q to be a floating-point tensor, got torch\.int32",
            q=lambda i: torch.ones(2, 5, 4, 64, dtype=torch.int32, device=i.device),
        ),
        bad(
            "fp8",
            r"expected q to have at least 16 bits an element, got torch\.float8_e4m3fn",
            q=lambda i: torch.ones(2, 5, 4, 64, device=i.device).to(torch.float8_e4m3fn),
        ),
        bad(
            "3-d q",
            r"expected q to have shape \[batch, tokens, heads, d\], got \(5, 4, 64\)",
            q=ones(5, 4, 64),
        ),
        bad(
            "k of another dtype",
            r"expected k to have dtype torch\.float32 like q, got torch\.float16",
            k=lambda i: torch.ones(2, 5, 2, 64, device=i.device).half(),
        ),
        bad(
            "k of another length",
            r"expected k to have the batch, tokens and d of q, \(2, 5, 4, 64\), got "
            r"\(2, 6, 2, 64\)",
            k=ones(2, 6, 2, 64),
        ),
        bad(
            "k on the CPU",
            r"expected k to be on cuda:\d+ like q, got cpu",
            cuda_only=True,
            k=lambda i: torch.ones(2, 5, 2, 64),
        ),
    )


def errors(op: str) -> tuple[Bad, ...]:
    bad = Spoiler(op, _good, "q")
    ones = lambda *shape: lambda i: torch.ones(shape, device=i.device)  # noqa: E731
    return (
        *head_errors(op, _good),
        *angle_errors(op, _good),
        bad.refused(
            "halves without whole packs",
            "needs heads of which both halves are whole packs of 16 bytes, aligned",
            "f32x4_pack",
            q=ones(2, 5, 4, 36),
            k=ones(2, 5, 2, 36),
            turns=lambda i: turns(i, 18),
        ),
        bad.refused(
            "misaligned tables",
            "needs cos and sin aligned to the angles of half a pack",
            "f32x4_pack_stream",
            cos=lambda i: torch.ones(5, 33, device=i.device)[:, 1:],
            sin=lambda i: torch.ones(5, 33, device=i.device)[:, 1:],
            turns=None,
        ),
    )


def _overlapping(i: Inputs) -> dict[str, Any]:
    """Out of one projection, the first head of keys being the last one of queries."""
    fused = torch.ones(2, 5, 8, 64, device=i.device)
    return _good(i) | {"q": fused[:, :, :4], "k": fused[:, :, 3:5]}


def errors_in_place() -> tuple[Bad, ...]:
    op = "rope_inplace"
    bad = Spoiler(op, _good, "q")
    written = ", as they are written to"
    ones = lambda *shape: lambda i: torch.ones(shape, device=i.device)  # noqa: E731
    return (
        *errors(op),
        bad(
            "expanded q",
            f"expected q that are not expanded{written}",
            q=lambda i: torch.ones(2, 5, 1, 64, device=i.device).expand(2, 5, 4, 64),
        ),
        bad(
            "overlapping k",
            f"expected k without elements that overlap{written}",
            k=lambda i: ones(1000)(i).as_strided((2, 5, 2, 64), (200, 32, 64, 1)),
        ),
        Bad(
            "keys that are queries, too",
            _overlapping,
            f"{op}: expected k to share no memory with q, which is written to",
        ),
        bad.refused(
            "columns apart",
            "needs heads without gaps",
            "f32",
            q=lambda i: torch.ones(2, 5, 4, 128, device=i.device)[..., ::2],
        ),
    )


# --- properties -----------------------------------------------------------------------------------


def _position_zero(rope: Any, i: Inputs) -> None:
    """Nothing turns at position 0."""
    given = heads(i, 2, 1, 4, 2, 64)
    q, k = rope(given["q"], given["k"], None, None, None, turns(i, 32))
    assert torch.equal(q, given["q"])
    assert torch.equal(k, given["k"])


def _quarter(rope: Any, i: Inputs) -> None:
    """A quarter of a turn takes (x, y) to (-y, x), at every position that is one; a zero may become
    what float64 has for the cosine of a quarter, 6e-17.
    """
    given = heads(i, 1, 3, 2, 1, 32)
    quarter = torch.full((16,), 1 << 62, dtype=torch.int64, device=i.device)
    at = ints(i, [[1, 400_000_005, -3]])
    q, _ = rope(given["q"], given["k"], None, None, at, quarter)
    x, y = given["q"].chunk(2, dim=-1)
    wanted = torch.cat((-y, x), dim=-1)
    assert torch.equal(torch.where(wanted == 0, 0.0, q), wanted)
    assert float(q[wanted == 0].abs().sum()) < 1e-14


PROPERTIES = (
    Property("position 0", _position_zero),
    Property("a quarter of a turn", _quarter),
)

# --- benchmarks -----------------------------------------------------------------------------------

#: Heads of q and k, and their length.
_LLAMA, _QWEN = (32, 8, 128), (32, 8, 128)


def _model(i: Inputs, tokens: int, q_heads: int, k_heads: int, d: int, batch: int = 1) -> Named:
    given = heads(i, batch, tokens, q_heads, k_heads, d, plain=True)
    made = tables(i, tokens, d // 2)
    return given | {name: t[None] for name, t in made.items()}


def _by_position(i: Inputs, tokens: int) -> Named:
    given = heads(i, 1, tokens, *_LLAMA, plain=True)
    return given | {"turns": turns(i, 64, 500000.0), "positions": spread(i, 1, tokens, 131071)}


BENCH = (
    *(
        Sample(
            f"Llama 8B {tokens} tokens",
            lambda i, n=tokens: _model(i, n, *_LLAMA),  # type: ignore[misc]
            small=False,
            ladder=tokens == 8192,
        )
        for tokens in (512, 2048, 8192, 32768)
    ),
    Sample("Llama 8B 32 x 1 tokens", lambda i: _model(i, 1, *_LLAMA, batch=32), small=False),
    *(
        Sample(
            f"Llama 8B {tokens} tokens, turns",
            lambda i, n=tokens: _by_position(i, n),  # type: ignore[misc]
            small=False,
        )
        for tokens in (2048, 32768)
    ),
    Sample(
        "interleaved 8192 tokens",
        lambda i: _model(i, 8192, *_LLAMA) | {"interleaved": True},
        small=False,
    ),
    Sample("d 64, 16384 tokens", lambda i: _model(i, 16384, 32, 8, 64), small=False),
)
