"""Calls on which rows by their indices are tested and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.spec.spoilt import Spoiler

Named = dict[str, Any]
_Make = Callable[[Inputs], Named]


def drawn(i: Inputs, rows: int, *shape: int, wide: bool = True, salt: int = 7) -> Tensor:
    """Uniform indices below `rows`, the last row among them."""
    dtype = torch.int64 if wide else torch.int32
    if torch.device(i.device).type == "meta":
        return torch.empty(shape, dtype=dtype, device="meta")
    generator = i.generator((*shape, salt))
    at = torch.randint(0, max(rows, 1), shape, generator=generator, device=i.device, dtype=dtype)
    if at.numel():
        at.view(-1)[0] = rows - 1
    return at


def ints(i: Inputs, values: Any, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=i.device)


def bits(i: Inputs, *shape: int) -> Tensor:
    """Every kind of bits: NaN with payloads, -0, subnormals."""
    count = torch.Size(shape).numel()
    size = torch.empty(0, dtype=i.dtype).element_size()
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32}[size]
    least = torch.iinfo(whole).min
    step = max(1, (2 ** (8 * size) - 1) // max(count, 1))
    codes = (torch.arange(count, dtype=torch.int64) * step + least).to(whole)
    return codes.view(i.dtype).view(shape).to(i.device)


# --- embedding ------------------------------------------------------------------------------------


def _table(i: Inputs, rows: int, cols: int, *at: int, wide: bool = True) -> Named:
    return {"weight": i.randn(rows, cols), "indices": drawn(i, rows, *at, wide=wide)}


EMBEDDING = (
    Sample("one column", lambda i: _table(i, 7, 1, 5)),
    Sample("packs", lambda i: _table(i, 50, 64, 3, 11)),
    Sample("i32", lambda i: _table(i, 50, 64, 37, wide=False)),
    Sample("odd columns", lambda i: _table(i, 31, 37, 4, 5)),
    Sample("two by two", lambda i: _table(i, 31, 18, 40)),
    Sample("scaled", lambda i: _table(i, 50, 64, 3, 11) | {"scale": 8.0625}),
    Sample("scaled, odd columns", lambda i: _table(i, 13, 9, 21) | {"scale": -0.37}),
    Sample("padding_idx", lambda i: _table(i, 9, 32, 40) | {"padding_idx": 3}),
    Sample("negative padding_idx", lambda i: _table(i, 9, 32, 40) | {"padding_idx": -9}),
    Sample(
        "one index for all",
        lambda i: {"weight": i.randn(9, 32), "indices": ints(i, [4]).expand(6, 50)},
    ),
    Sample("0-d", lambda i: {"weight": i.randn(9, 32), "indices": ints(i, 8)}),
    Sample("no indices", lambda i: _table(i, 9, 32, 0)),
    Sample("no columns", lambda i: _table(i, 9, 0, 4)),
    Sample("misaligned", lambda i: _table(i, 9, 32, 14) | {"weight": i.misaligned(9, 32)}),
    Sample("left columns", lambda i: _table(i, 9, 32, 14) | {"weight": i.randn(9, 64)[:, :32]}),
    Sample("every other row", lambda i: _table(i, 9, 32, 14) | {"weight": i.randn(18, 32)[::2]}),
    Sample("transposed", lambda i: _table(i, 9, 32, 14) | {"weight": i.randn(32, 9).t()}),
    Sample("one row", lambda i: _table(i, 1, 32, 14)),
    Sample("indices apart", lambda i: _table(i, 9, 32, 14) | {"indices": drawn(i, 9, 14, 2)[:, 1]}),
    Sample("long", lambda i: _table(i, 1000, 768, 700), small=False),
    Sample("many", lambda i: _table(i, 32000, 1024, 4, 1100), small=False),
    Sample(
        "past 2^31 elements",
        lambda i: {
            "weight": i.plain(1001, 4096),
            "indices": drawn(i, 1001, 2**19 + 5),
        },
        small=False,
        huge=True,
        dtypes=("f16",),
    ),
)


def _good_table(i: Inputs) -> Named:
    return {"weight": torch.ones(9, 8, device=i.device), "indices": ints(i, [[1, 2], [3, 8]])}


_bad = Spoiler("embedding", _good_table, "weight")
_narrow = {"weight": lambda i: torch.ones(9, 7, device=i.device)}
EMBEDDING_ERRORS = (
    _bad.integers(),
    _bad(
        "1-d weight",
        r"expected weight to have shape \[rows, cols\], got \(9,\)",
        weight=lambda i: torch.ones(9, device=i.device),
    ),
    _bad(
        "floating indices",
        r"expected indices to have dtype torch\.int64 or torch\.int32, got torch\.float32",
        indices=lambda i: torch.ones(3, device=i.device),
    ),
    _bad(
        "padding_idx outside",
        "expected padding_idx to be one of 9 rows, got 9",
        padding_idx=9,
    ),
    _bad(
        "padding_idx before the first row",
        "expected padding_idx to be one of 9 rows, got -10",
        padding_idx=-10,
    ),
    _bad(
        "indices on the CPU",
        r"expected indices to be on cuda:\d+ like weight, got cpu",
        cuda_only=True,
        indices=lambda i: torch.ones(3, dtype=torch.int64),
    ),
    _bad.refused("narrow rows", "needs rows of whole accesses, aligned", "f32x4_pack", **_narrow),
    _bad.refused("a scale", "needs a scale of 1", "f32x4", scale=2.0),
)


def _vocabulary(i: Inputs, tokens: int, rows: int, cols: int) -> Named:
    return {"weight": i.plain(rows, cols), "indices": drawn(i, rows, tokens)}


EMBEDDING_BENCH = (
    Sample("4096 tokens, 128k x 4096", lambda i: _vocabulary(i, 4096, 131072, 4096), small=False),
    Sample(
        "32768 tokens, 128k x 4096",
        lambda i: _vocabulary(i, 32768, 131072, 4096),
        small=False,
        ladder=True,
    ),
    Sample("32 tokens, 128k x 4096", lambda i: _vocabulary(i, 32, 131072, 4096), small=False),
    Sample("65536 tokens, 50k x 768", lambda i: _vocabulary(i, 65536, 50304, 768), small=False),
)

# --- index_select ---------------------------------------------------------------------------------


def _along(i: Inputs, shape: tuple[int, ...], dim: int, count: int, wide: bool = True) -> Named:
    return {
        "x": i.randn(*shape),
        "dim": dim,
        "index": drawn(i, shape[dim], count, wide=wide),
    }


def _past(make: Callable[[Inputs, int], Named]) -> Sample:
    """Both of x and of the result."""
    rows = 2**19 + 5
    return Sample(
        "past 2^31 elements",
        lambda i: {"x": i.plain(rows, 4096)} | make(i, rows),
        small=False,
        huge=True,
        dtypes=("i8",),
    )


SELECT = (
    Sample("rows", lambda i: _along(i, (50, 64), 0, 33)),
    Sample("columns", lambda i: _along(i, (5, 50), 1, 33)),
    Sample("in the middle", lambda i: _along(i, (3, 20, 32), 1, 7)),
    Sample("in the middle, i32", lambda i: _along(i, (3, 20, 32), -2, 7, wide=False)),
    Sample("odd", lambda i: _along(i, (7, 11, 13), 1, 5)),
    Sample("pairs", lambda i: _along(i, (7, 11, 6), 1, 5)),
    Sample("a vector", lambda i: _along(i, (97,), 0, 200)),
    Sample("one place", lambda i: _along(i, (4, 1, 16), 1, 9)),
    Sample("no index", lambda i: _along(i, (4, 6, 16), 1, 0)),
    Sample("no values", lambda i: _along(i, (4, 6, 0), 1, 3)),
    Sample("every kind of bits", lambda i: _along(i, (64, 32), 0, 64) | {"x": bits(i, 64, 32)}),
    Sample("misaligned", lambda i: _along(i, (9, 32), 0, 14) | {"x": i.misaligned(9, 32)}),
    Sample("transposed", lambda i: _along(i, (9, 32), 0, 14) | {"x": i.randn(32, 9).t()}),
    Sample("expanded", lambda i: _along(i, (9, 32), 0, 14) | {"x": i.randn(1, 32).expand(9, 32)}),
    Sample(
        "index apart", lambda i: _along(i, (9, 32), 0, 14) | {"index": drawn(i, 9, 14, 2)[:, 1]}
    ),
    Sample("long", lambda i: _along(i, (400, 1024), 0, 700), small=False),
    Sample("many", lambda i: _along(i, (3000, 2048), 0, 4100), small=False),
    _past(lambda i, rows: {"dim": 0, "index": drawn(i, rows, rows)}),
)


def _good_select(i: Inputs) -> Named:
    return {"x": torch.ones(9, 8, device=i.device), "dim": 0, "index": ints(i, [1, 2, 8])}


def _index_errors(op: str, good: _Make) -> tuple[Bad, ...]:
    bad = Spoiler(op, good)
    return (
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
            "index on the CPU",
            r"expected index to be on cuda:\d+ like x, got cpu",
            cuda_only=True,
            index=lambda i: torch.ones(3, dtype=torch.int64),
        ),
    )


SELECT_ERRORS = (
    *_index_errors("index_select", _good_select),
    Bad(
        "no such dimension",
        lambda i: _good_select(i) | {"dim": 2},
        r"index_select: expected dim to lie in \[-2, 1\], got 2",
        error=IndexError,
    ),
)
_SHAPES: dict[str, tuple[tuple[int, ...], int, int]] = {
    "15 of 32Mi": ((1 << 25,), 0, 15),
    "1024 of 32Mi": ((1 << 25,), 0, 1024),
    "1024 of 32Ki x 1Ki": ((1 << 15, 1 << 10), 0, 1024),
    "32Ki of 32Ki x 1Ki": ((1 << 15, 1 << 10), 0, 1 << 15),
    "1024 of 32 x 1Ki x 1Ki": ((32, 1 << 10, 1 << 10), 1, 1024),
}
SELECT_BENCH = tuple(
    Sample(
        label,
        lambda i, s=shape, d=dim, n=count: {  # type: ignore[misc]
            "x": i.plain(*s),
            "dim": d,
            "index": drawn(i, s[d], n),
        },
        small=False,
        ladder=label.startswith("32Ki"),
    )
    for label, (shape, dim, count) in _SHAPES.items()
)

# --- gather_rows ----------------------------------------------------------------------------------


def _some_left_out(i: Inputs, rows: int, count: int, wide: bool = True) -> Tensor:
    at = drawn(i, rows, count, wide=wide)
    if not at.is_meta:
        at[1::3] = -1
    return at


def _with_gaps(i: Inputs, shape: tuple[int, ...], count: int, wide: bool = True) -> Named:
    return {"x": i.randn(*shape), "index": _some_left_out(i, shape[0], count, wide)}


ROWS = (
    Sample("rows", lambda i: _with_gaps(i, (50, 64), 33)),
    Sample("i32", lambda i: _with_gaps(i, (50, 64), 33, wide=False)),
    Sample("heads", lambda i: _with_gaps(i, (20, 4, 16), 31)),
    Sample("odd", lambda i: _with_gaps(i, (20, 3, 7), 31)),
    Sample("pairs", lambda i: _with_gaps(i, (20, 3, 2), 31)),
    Sample("a vector", lambda i: _with_gaps(i, (97,), 200)),
    Sample("no index", lambda i: _with_gaps(i, (4, 6), 0)),
    Sample("no columns", lambda i: _with_gaps(i, (4, 0), 3)),
    Sample("every kind of bits", lambda i: _with_gaps(i, (64, 32), 64) | {"x": bits(i, 64, 32)}),
    Sample("misaligned", lambda i: _with_gaps(i, (9, 32), 14) | {"x": i.misaligned(9, 32)}),
    Sample("transposed", lambda i: _with_gaps(i, (9, 32), 14) | {"x": i.randn(32, 9).t()}),
    Sample("long", lambda i: _with_gaps(i, (400, 1024), 700), small=False),
    Sample("many", lambda i: _with_gaps(i, (3000, 2048), 4100), small=False),
    _past(lambda i, rows: {"index": _some_left_out(i, rows, rows)}),
)
ROWS_ERRORS = _index_errors(
    "gather_rows",
    lambda i: {"x": torch.ones(9, 8, device=i.device), "index": ints(i, [1, -2, 8])},
)
ROWS_BENCH = (
    Sample(
        "16384 of 32768 x 4096",
        lambda i: {"x": i.plain(32768, 4096), "index": drawn(i, 32768, 16384)},
        small=False,
        ladder=True,
    ),
)
