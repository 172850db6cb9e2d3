"""Calls on which rows added up by their indices are tested and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.spec.spoilt import Spoiler
from warpsmith.transform.gather_cases import Named, bits, drawn, ints

_Make = Callable[[Inputs], Named]
#: Rows of 4096 values, of which there are more than 2^31.
_PAST = 2**19 + 5
_ANY_ORDER: Named = {"deterministic": False}


def _distinct(i: Inputs, rows: int, count: int) -> Tensor:
    if torch.device(i.device).type == "meta":
        return torch.empty(count, dtype=torch.int64, device="meta")
    generator = i.generator((rows, count))
    return torch.randperm(rows, generator=generator, device=i.device)[:count]


def _past(make: Callable[[Inputs, Tensor], Named]) -> Sample:
    """Of so many rows that are written to."""
    return Sample(
        "past 2^31 elements",
        lambda i: make(i, i.plain(_PAST, 4096)),
        small=False,
        huge=True,
        dtypes=("f16",),
    )


# --- embedding_backward ---------------------------------------------------------------------------


def _grad(i: Inputs, rows: int, cols: int, *at: int, wide: bool = True) -> Named:
    return {
        "grad": i.randn(*at, cols, salt=3),
        "indices": drawn(i, rows, *at, wide=wide),
        "rows": rows,
    }


EMBEDDING = (
    Sample("repeated", lambda i: _grad(i, 7, 32, 5, 9)),
    Sample("i32", lambda i: _grad(i, 50, 64, 37, wide=False)),
    Sample("odd columns", lambda i: _grad(i, 11, 37, 4, 9)),
    Sample("scaled", lambda i: _grad(i, 11, 32, 30) | {"scale": 2.5}),
    Sample("padding_idx", lambda i: _grad(i, 5, 32, 40) | {"padding_idx": 3}),
    Sample("negative padding_idx", lambda i: _grad(i, 5, 32, 40) | {"padding_idx": -5}),
    Sample("all of one row", lambda i: _grad(i, 9, 32, 300) | {"indices": ints(i, [4] * 300)}),
    Sample("distinct", lambda i: _grad(i, 99, 32, 60) | {"indices": _distinct(i, 99, 60)}),
    Sample("any order", lambda i: _grad(i, 7, 32, 5, 9) | _ANY_ORDER),
    Sample("any order, odd", lambda i: _grad(i, 7, 13, 5, 9) | _ANY_ORDER | {"padding_idx": 2}),
    Sample("no indices", lambda i: _grad(i, 9, 32, 0)),
    Sample("no columns", lambda i: _grad(i, 9, 0, 4)),
    Sample("0-d", lambda i: {"grad": i.randn(32), "indices": ints(i, 2), "rows": 5}),
    Sample("misaligned", lambda i: _grad(i, 9, 32, 14) | {"grad": i.misaligned(14, 32)}),
    Sample("expanded", lambda i: _grad(i, 9, 32, 14) | {"grad": i.randn(32).expand(14, 32)}),
    Sample("two looks, i32", lambda i: _grad(i, 40, 8, 1300, wide=False) | {"padding_idx": 7}),
    Sample("more than are scanned", lambda i: _grad(i, 40, 8, 2200)),
    Sample("long", lambda i: _grad(i, 500, 768, 3000), small=False),
    Sample("many", lambda i: _grad(i, 32000, 1024, 4096), small=False),
    Sample(
        "past 2^31 elements",
        lambda i: _grad(i, _PAST, 4096, 3000),
        small=False,
        huge=True,
        dtypes=("f16",),
    ),
)


def _good_grad(i: Inputs) -> Named:
    grad = torch.ones(2, 3, 8, device=i.device)
    return {"grad": grad, "indices": ints(i, [[1, 2, 3], [3, 8, 0]]), "rows": 9}


_bad = Spoiler("embedding_backward", _good_grad, "grad")
EMBEDDING_ERRORS = (
    _bad.integers(),
    _bad(
        "indices of another shape",
        r"expected grad to have the shape of indices, \(2,\), and a dimension more, got "
        r"\(2, 3, 8\)",
        indices=lambda i: ints(i, [1, 2]),
    ),
    _bad(
        "floating indices",
        r"expected indices to have dtype torch\.int64 or torch\.int32, got torch\.float32",
        indices=lambda i: torch.ones(2, 3, device=i.device),
    ),
    _bad("negative rows", "expected rows to be at least 0, got -1", rows=-1),
    _bad("padding_idx outside", "expected padding_idx to be one of 9 rows, got 9", padding_idx=9),
    _bad.refused("in order, by atomics", "needs deterministic=False", "f32_atomic"),
)


def _vocabulary(i: Inputs, tokens: int, rows: int, cols: int, **more: Any) -> Named:
    return {
        "grad": i.plain(tokens, cols),
        "indices": drawn(i, rows, tokens),
        "rows": rows,
        **more,
    }


EMBEDDING_BENCH = (
    Sample("4096 tokens, 128k x 4096", lambda i: _vocabulary(i, 4096, 131072, 4096), small=False),
    Sample("512 tokens, 128k x 4096", lambda i: _vocabulary(i, 512, 131072, 4096), small=False),
    Sample(
        "32768 tokens, 50k x 768",
        lambda i: _vocabulary(i, 32768, 50304, 768),
        small=False,
        ladder=True,
    ),
    Sample(
        "4096 tokens, 128k x 4096, any order",
        lambda i: _vocabulary(i, 4096, 131072, 4096, deterministic=False),
        small=False,
    ),
)

# --- index_add ------------------------------------------------------------------------------------


def _terms(i: Inputs, shape: tuple[int, ...], dim: int, count: int, wide: bool = True) -> Named:
    at = dim % len(shape)
    return {
        "x": i.randn(*shape),
        "dim": dim,
        "index": drawn(i, shape[at], count, wide=wide),
        "source": i.randn(*shape[:at], count, *shape[at + 1 :], salt=5),
    }


_CALLS: dict[str, _Make] = {
    "rows": lambda i: _terms(i, (9, 64), 0, 33),
    "columns": lambda i: _terms(i, (5, 9), 1, 33),
    "in the middle": lambda i: _terms(i, (3, 7, 32), 1, 20),
    "in the middle, i32": lambda i: _terms(i, (3, 7, 32), -2, 20, wide=False),
    "odd": lambda i: _terms(i, (7, 5, 13), 1, 11),
    "a vector": lambda i: _terms(i, (31,), 0, 200),
    "one place": lambda i: _terms(i, (4, 1, 16), 1, 9),
    "scaled": lambda i: _terms(i, (9, 64), 0, 33) | {"alpha": -0.75},
    "any order": lambda i: _terms(i, (9, 64), 0, 20) | _ANY_ORDER,
    "any order, odd": lambda i: _terms(i, (3, 7, 13), 1, 20) | _ANY_ORDER | {"alpha": 0.5},
    "no index": lambda i: _terms(i, (4, 6, 16), 1, 0),
    "no values": lambda i: _terms(i, (4, 6, 0), 1, 3),
    "more than are scanned": lambda i: _terms(i, (40, 4), 0, 2200),
    "misaligned": lambda i: _terms(i, (9, 32), 0, 14) | {"source": i.misaligned(14, 32)},
    "transposed source": lambda i: _terms(i, (9, 32), 0, 14) | {"source": i.randn(32, 14).t()},
    "transposed": lambda i: _terms(i, (9, 32), 0, 14) | {"x": i.randn(32, 9).t()},
    "left columns": lambda i: _terms(i, (9, 32), 0, 14) | {"x": i.randn(9, 50)[:, :32]},
}
INDEX_ADD = (
    *(Sample(label, make) for label, make in _CALLS.items()),
    Sample("expanded", lambda i: _terms(i, (9, 32), 0, 14) | {"x": i.randn(1, 32).expand(9, 32)}),
    Sample("long", lambda i: _terms(i, (100, 1024), 0, 700), small=False),
    Sample("many", lambda i: _terms(i, (3000, 512), 0, 5000), small=False),
    _past(lambda i, x: _terms(i, (1, 4096), 0, 3000) | {"x": x, "index": drawn(i, len(x), 3000)}),
)
IN_PLACE = (
    *(Sample(label, make) for label, make in _CALLS.items()),
    Sample("long", lambda i: _terms(i, (100, 1024), 0, 700), small=False),
    Sample("many", lambda i: _terms(i, (3000, 512), 0, 5000), small=False),
    _past(lambda i, x: _terms(i, (1, 4096), 0, 3000) | {"x": x, "index": drawn(i, len(x), 3000)}),
)


def _good(i: Inputs) -> Named:
    return {
        "x": torch.ones(9, 8, device=i.device),
        "dim": 0,
        "index": ints(i, [1, 2, 8]),
        "source": torch.ones(3, 8, device=i.device),
    }


def index_errors(op: str, good: _Make, name: str, what: str) -> tuple[Bad, ...]:
    bad = Spoiler(op, good)
    short: dict[str, Any] = {name: lambda i: torch.ones(2, 8, device=i.device)}
    half: dict[str, Any] = {name: lambda i: torch.ones(3, 8, device=i.device).half()}
    return (
        bad.integers(),
        bad.no_dimension(),
        bad(
            "2-d index",
            r"expected index to have 1 dimension, got shape \(1, 2\)",
            index=lambda i: ints(i, [[1, 2]]),
        ),
        bad(
            "floating index",
            r"expected index to have dtype torch\.int64 or torch\.int32, got torch\.float32",
            index=lambda i: torch.ones(3, device=i.device),
        ),
        bad(
            f"{name} of another shape",
            rf"expected {name} to have shape \(3, 8\), {what}, got \(2, 8\)",
            **short,
        ),
        bad(
            f"{name} of another dtype",
            rf"expected {name} to have dtype torch\.float32 like x, got torch\.float16",
            **half,
        ),
    )


def index_add_errors(op: str) -> tuple[Bad, ...]:
    what = "that of x with a place for each index"
    return (
        *index_errors(op, _good, "source", what),
        Bad(
            "no such dimension",
            lambda i: _good(i) | {"dim": 2},
            rf"{op}: expected dim to lie in \[-2, 1\], got 2",
            error=IndexError,
        ),
        Spoiler(op, _good).refused(
            "in order, by atomics", "needs deterministic=False", "f32_atomic"
        ),
    )


def _overlapping(i: Inputs) -> dict[str, Any]:
    given = _good(i)
    return given | {"source": given["x"][-given["index"].numel() :]}


IN_PLACE_ERRORS = (
    *index_add_errors("index_add_inplace"),
    Spoiler("index_add_inplace", _good)(
        "expanded x",
        "expected x that are not expanded, as they are written to",
        x=lambda i: torch.ones(1, 8, device=i.device).expand(9, 8),
    ),
    Bad(
        "terms out of what is written to",
        _overlapping,
        "index_add_inplace: expected source to share no memory with x, which is written to",
    ),
    Spoiler("index_add_inplace", _good).refused(
        "columns apart",
        "needs x to be contiguous",
        "f32_scan",
        x=lambda i: torch.ones(9, 16, device=i.device)[:, ::2],
    ),
)

_SHAPES: dict[str, tuple[tuple[int, ...], int]] = {
    "32Mi": ((1 << 25,), 0),
    "32Ki x 1Ki": ((1 << 15, 1 << 10), 0),
    "32 x 1Ki x 1Ki": ((32, 1 << 10, 1 << 10), 1),
}


def _plain(i: Inputs, shape: tuple[int, ...], dim: int, count: int, **more: Any) -> Named:
    source = i.plain(*shape[:dim], count, *shape[dim + 1 :], salt=5)
    x, index = i.plain(*shape), drawn(i, shape[dim], count)
    return {"x": x, "dim": dim, "index": index, "source": source, **more}


IN_PLACE_BENCH = tuple(
    Sample(
        f"{count} into {label}{'' if deterministic else ', any order'}",
        lambda i, s=shape, d=dim, n=count, f=deterministic: _plain(  # type: ignore[misc]
            i, s, d, n, deterministic=f
        ),
        small=False,
        ladder=label == "32Ki x 1Ki" and count == 1024,
    )
    for label, (shape, dim) in _SHAPES.items()
    for count in (15, 1024)
    for deterministic in (True, False)
)
INDEX_ADD_BENCH = (
    Sample("1024 into 32Ki x 1Ki", lambda i: _plain(i, (1 << 15, 1 << 10), 0, 1024), small=False),
)

# --- index_put ------------------------------------------------------------------------------------


def _from_both_ends(i: Inputs, rows: int, count: int, wide: bool = True) -> Tensor:
    index = drawn(i, rows, count, wide=wide)
    if not index.is_meta:
        index[::3] -= rows
    return index


def _values(
    i: Inputs, shape: tuple[int, ...], count: int, accumulate: bool, wide: bool = True
) -> Named:
    index = _from_both_ends(i, shape[0], count, wide)
    return {
        "x": i.randn(*shape),
        "index": index,
        "values": i.randn(count, *shape[1:], salt=5),
        "accumulate": accumulate,
    }


def _all_bits(i: Inputs) -> Named:
    return {"x": bits(i, 64, 32), "values": bits(i, 64, 32).flip(0)}


INDEX_PUT = (
    Sample("added", lambda i: _values(i, (9, 64), 33, True)),
    Sample("put", lambda i: _values(i, (9, 64), 33, False)),
    Sample("put, in any order", lambda i: _values(i, (9, 64), 33, False) | _ANY_ORDER),
    Sample("added in any order", lambda i: _values(i, (9, 64), 20, True) | _ANY_ORDER),
    Sample("odd", lambda i: _values(i, (7, 3, 5), 20, True)),
    Sample("put, odd", lambda i: _values(i, (7, 3, 5), 20, False)),
    Sample("a vector", lambda i: _values(i, (31,), 200, True)),
    Sample("no index", lambda i: _values(i, (9, 64), 0, True)),
    Sample("no values", lambda i: _values(i, (9, 0), 4, True)),
    Sample("transposed", lambda i: _values(i, (9, 32), 14, True) | {"x": i.randn(32, 9).t()}),
    Sample("put, every kind of bits", lambda i: _values(i, (64, 32), 64, False) | _all_bits(i)),
    Sample("two looks", lambda i: _values(i, (900, 4), 1300, True)),
    Sample("two looks, put", lambda i: _values(i, (40, 4), 1300, False)),
    Sample("more than are scanned", lambda i: _values(i, (40, 4), 2200, True)),
    Sample("more than are scanned, i32", lambda i: _values(i, (40, 4), 2200, True, wide=False)),
    Sample("more than are scanned, put", lambda i: _values(i, (3000, 5), 2200, False)),
    Sample("more than are scanned, all of one row", lambda i: _values(i, (1, 4), 2200, False)),
    # Some terms a place: atomics of 16 bits round at each.
    Sample(
        "more than are scanned, any order", lambda i: _values(i, (900, 4), 2200, True) | _ANY_ORDER
    ),
    Sample("long", lambda i: _values(i, (100, 1024), 700, True), small=False),
    Sample("many", lambda i: _values(i, (3000, 512), 5000, True), small=False),
    Sample("many, put", lambda i: _values(i, (3000, 512), 5000, False), small=False),
    _past(
        lambda i, x: (
            _values(i, (1, 4096), 3000, False) | {"x": x, "index": _from_both_ends(i, len(x), 3000)}
        )
    ),
)
INDEX_PUT_ERRORS = index_errors(
    "index_put",
    lambda i: {
        "x": torch.ones(9, 8, device=i.device),
        "index": ints(i, [1, -2, 8]),
        "values": torch.ones(3, 8, device=i.device),
    },
    "values",
    "a row of x for each index",
)
INDEX_PUT_BENCH = (
    Sample(
        "1024 added to 32Ki x 1Ki",
        lambda i: {
            "x": i.plain(1 << 15, 1 << 10),
            "index": drawn(i, 1 << 15, 1024),
            "values": i.plain(1024, 1 << 10, salt=5),
            "accumulate": True,
        },
        small=False,
        ladder=True,
    ),
    Sample(
        "32768 added to 32Ki x 1Ki",
        lambda i: {
            "x": i.plain(1 << 15, 1 << 10),
            "index": drawn(i, 1 << 15, 1 << 15),
            "values": i.plain(1 << 15, 1 << 10, salt=5),
            "accumulate": True,
        },
        small=False,
    ),
)

# --- scatter_rows ---------------------------------------------------------------------------------


def _rows(i: Inputs, shape: tuple[int, ...], rows: int, **more: Any) -> Named:
    index = drawn(i, rows, shape[0])
    if not index.is_meta:
        index[1::4] = -1
    return {"x": i.randn(*shape), "index": index, "rows": rows, **more}


SCATTER = (
    Sample("repeated", lambda i: _rows(i, (33, 64), 9)),
    Sample("distinct", lambda i: _rows(i, (33, 64), 99) | {"index": _distinct(i, 99, 33)}),
    Sample(
        "distinct, every kind of bits",
        lambda i: _rows(i, (64, 32), 99) | {"x": bits(i, 64, 32), "index": _distinct(i, 99, 64)},
    ),
    Sample("heads", lambda i: _rows(i, (20, 4, 16), 31)),
    Sample("odd", lambda i: _rows(i, (20, 3, 7), 31)),
    Sample("a vector", lambda i: _rows(i, (97,), 200)),
    Sample("any order", lambda i: _rows(i, (33, 64), 99, deterministic=False)),
    Sample("no rows", lambda i: _rows(i, (0, 6), 4)),
    Sample("no columns", lambda i: _rows(i, (4, 0), 3)),
    Sample("transposed", lambda i: _rows(i, (32, 9), 14) | {"x": i.randn(9, 32).t()}),
    Sample("two looks", lambda i: _rows(i, (2048, 5), 1500)),
    Sample("more than are scanned", lambda i: _rows(i, (2200, 5), 3000)),
    Sample("long", lambda i: _rows(i, (400, 1024), 700), small=False),
    Sample(
        "past 2^31 elements",
        lambda i: _rows(i, (3000, 4096), _PAST),
        small=False,
        huge=True,
        dtypes=("f16",),
    ),
)
_bad_rows = Spoiler(
    "scatter_rows",
    lambda i: {
        "x": torch.ones(3, 8, device=i.device),
        "index": ints(i, [1, -2, 8]),
        "rows": 9,
    },
)
SCATTER_ERRORS = (
    _bad_rows.integers(),
    _bad_rows.no_dimension(),
    _bad_rows(
        "indices of other rows",
        "expected an index for each of 3 rows of x, got 2",
        index=lambda i: ints(i, [1, 2]),
    ),
    _bad_rows("negative rows", "expected rows to be at least 0, got -1", rows=-1),
)
SCATTER_BENCH = (
    Sample(
        "16384 into 32768 x 4096",
        lambda i: {
            "x": i.plain(16384, 4096),
            "index": _distinct(i, 32768, 16384),
            "rows": 32768,
            "deterministic": False,
        },
        small=False,
        ladder=True,
    ),
)
