"""Calls on which matrix products are tested and measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample

Function = Callable[..., Any]

#: m, n, k: every size of {1, 7, 16, 33, 127, 128, 129} beside every other in some place.
_SMALL = (
    (1, 1, 1),
    (7, 16, 33),
    (16, 33, 7),
    (33, 7, 16),
    (1, 128, 127),
    (128, 1, 129),
    (127, 33, 1),
    (127, 128, 129),
    (128, 129, 16),
    (129, 127, 128),
    (128, 128, 128),
    (64, 256, 32),
    (70, 72, 1032),
)
_LARGE = (
    (1000, 1000, 1000),
    (1, 4097, 1000),
    (4097, 16, 129),
    (129, 4097, 33),
    (33, 127, 4097),
    (1000, 7, 4097),
    (512, 512, 512),
    (256, 384, 1024),
    (4097, 1000, 128),
)


def left(inputs: Inputs, *shape: int) -> Tensor:
    return inputs.randn(*shape)


def right(inputs: Inputs, *shape: int) -> Tensor:
    return inputs.randn(*shape, salt=1)


def _plain(
    m: int, n: int, k: int, *, small: bool = True, dtypes: tuple[str, ...] | None = None
) -> Sample:
    label = f"{m}x{n}x{k}"
    return Sample(label, lambda i: (left(i, m, k), right(i, k, n)), small=small, dtypes=dtypes)


def _layouts(m: int, n: int, k: int, *, small: bool = True) -> tuple[Sample, ...]:
    """The same product with one operand or both column-major."""

    def sample(name: str, a: bool, b: bool) -> Sample:
        def make(i: Inputs) -> tuple[Any, ...]:
            x = left(i, k, m).t() if a else left(i, m, k)
            y = right(i, n, k).t() if b else right(i, k, n)
            return x, y

        return Sample(f"{name} {m}x{n}x{k}", make, small=small)

    return sample("TN", False, True), sample("NT", True, False), sample("TT", True, True)


def _skewed(m: int, n: int, k: int) -> tuple[Sample, ...]:
    """Every layout, of operands whose first value lies at an odd address of 16-bit values."""

    def sample(name: str, a: bool, b: bool) -> Sample:
        def make(i: Inputs) -> tuple[Any, ...]:
            x = i.misaligned(k, m, offset=3).t() if a else i.misaligned(m, k, offset=5)
            y = i.misaligned(n, k, salt=1).t() if b else i.misaligned(k, n, offset=7, salt=1)
            return x, y

        return Sample(f"misaligned {name} {m}x{n}x{k}", make)

    layouts = (("NN", 0, 0), ("TN", 0, 1), ("NT", 1, 0), ("TT", 1, 1))
    return tuple(sample(name, bool(a), bool(b)) for name, a, b in layouts)


def _special(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """NaN, infinities, and infinity times zero, each in rows and columns of their own."""
    a, b = inputs.plain(40, 72), inputs.plain(72, 24, salt=1)
    a[3, 71] = math.nan
    a[5, 0] = math.inf
    a[7, 8], a[7, 9] = math.inf, -math.inf
    a[9, 17] = math.inf
    b[17, 11] = 0.0
    b[70, 13] = -math.inf
    return a, b


def _special_odd(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The last values of odd lines, which zeros may follow."""
    a, b = inputs.plain(41, 73), inputs.plain(73, 27, salt=1)
    a[3, 72], a[40, 72], a[7, 0] = math.nan, math.inf, -math.inf
    b[72, 26], b[5, 26], b[0, 11] = math.inf, math.nan, 0.0
    return a, b


def _cancelling(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Long sums whose terms cancel but for a few."""
    half = inputs.plain(17, 2048)
    return torch.cat((half, -half, inputs.plain(17, 24, salt=2)), 1), torch.cat(
        (inputs.plain(2048, 9, salt=1),) * 2 + (inputs.plain(24, 9, salt=3),)
    )


def samples() -> tuple[Sample, ...]:
    return (
        *(_plain(*size) for size in _SMALL),
        *(_plain(*size, small=False) for size in _LARGE),
        *_layouts(7, 16, 33),
        *_layouts(128, 128, 64),
        *_layouts(129, 136, 72),
        *_layouts(1000, 129, 520, small=False),
        *_layouts(1000, 136, 520, small=False),
        *_layouts(200, 264, 456, small=False)[:1],
        # Of tiles of 256 x 256 on 66 clusters: three waves, and three tiles more; one, and 34 more,
        # whose slices take two rounds.
        _plain(17000, 520, 1096, small=False),
        *_layouts(17000, 520, 1096, small=False)[:1],
        _plain(2500, 2552, 2056, small=False),
        # Lines at odd addresses: of k, of n, of both; of one operand alone; of a batch.
        _plain(70, 72, 131),
        _plain(70, 75, 136),
        *_layouts(131, 75, 77),
        *_layouts(72, 75, 136),
        *_layouts(75, 72, 136),
        *_layouts(75, 72, 519),
        *_skewed(72, 80, 136),
        *_skewed(71, 75, 77),
        Sample("batch, odd", lambda i: (left(i, 3, 33, 41), right(i, 3, 41, 27))),
        Sample("batch, odd, transposed", lambda i: (left(i, 3, 41, 33).mT, right(i, 3, 27, 41).mT)),
        Sample("matrix times batch, odd", lambda i: (left(i, 33, 41), right(i, 3, 41, 24))),
        Sample("rows of a batch, odd", lambda i: (left(i, 3, 33, 41), right(i, 41, 27))),
        Sample("row of ones, odd", lambda i: (left(i, 1, 41).expand(33, 41), right(i, 41, 24))),
        # The same where a copy is worth it, and of tiles of 256 x 256 with a last wave that is cut.
        _plain(1001, 999, 1003, small=False),
        *_layouts(1001, 1003, 997, small=False),
        Sample(
            "large batch, odd",
            lambda i: (left(i, 3, 700, 801), right(i, 3, 801, 705)),
            small=False,
        ),
        *(
            replace(sample, dtypes=("f16", "bf16"))
            for sample in (
                _plain(2500, 2553, 2055, small=False),
                _plain(2500, 2552, 2055, small=False),
                *_layouts(2497, 2559, 2051, small=False)[:2],
            )
        ),
        *_layouts(1, 40, 1024)[:1],
        *_layouts(2, 33, 2048)[:1],
        *_layouts(16, 70, 1536)[:1],
        *_layouts(5, 1000, 4096, small=False)[:1],
        *(_plain(m, 136, 1024) for m in (1, 2, 8, 9, 16, 17)),
        _plain(5, 64, 520),
        _plain(16, 8, 8192),
        _plain(3, 200, 4096),
        _plain(5, 131, 1024),
        _plain(16, 9000, 1032, small=False),
        _plain(3, 9000, 520, small=False),
        Sample(
            "few rows, row stride", lambda i: (left(i, 5, 1032)[:, 8:], right(i, 1024, 80)[:, :72])
        ),
        Sample("long column of columns", lambda i: (left(i, 1032, 72).t(), right(i, 1032))),
        Sample("long column", lambda i: (left(i, 70, 1032), right(i, 1032))),
        Sample("long row", lambda i: (left(i, 1032), right(i, 70, 1032).t())),
        Sample("k = 0", lambda i: (left(i, 5, 0), right(i, 0, 7))),
        Sample("m = 0", lambda i: (left(i, 0, 5), right(i, 5, 7))),
        Sample("n = 0", lambda i: (left(i, 3, 5), right(i, 5, 0))),
        Sample("rows of a batch, k = 0", lambda i: (left(i, 2, 3, 0), right(i, 0, 5))),
        Sample("rows of a batch, n = 0", lambda i: (left(i, 2, 3, 4), right(i, 4, 0))),
        Sample("vector times matrix", lambda i: (left(i, 40), right(i, 40, 24))),
        Sample("matrix times vector", lambda i: (left(i, 24, 40), right(i, 40))),
        Sample("vector times vector", lambda i: (left(i, 100), right(i, 100))),
        Sample("strided vector", lambda i: (left(i, 80)[::2], right(i, 40, 24))),
        Sample("batch", lambda i: (left(i, 3, 33, 40), right(i, 3, 40, 24))),
        Sample("batch of two dimensions", lambda i: (left(i, 2, 3, 9, 16), right(i, 2, 3, 16, 8))),
        Sample("rows of a batch", lambda i: (left(i, 3, 5, 40), right(i, 40, 24))),
        Sample("matrix times batch", lambda i: (left(i, 33, 40), right(i, 3, 40, 24))),
        Sample("broadcast batch", lambda i: (left(i, 2, 1, 9, 16), right(i, 3, 16, 8))),
        Sample("batch times vector", lambda i: (left(i, 3, 9, 16), right(i, 16))),
        Sample("batch of none", lambda i: (left(i, 0, 9, 16), right(i, 0, 16, 8))),
        Sample("batch, transposed", lambda i: (left(i, 3, 40, 32).mT, right(i, 3, 24, 40).mT)),
        Sample("heads", lambda i: (left(i, 2, 9, 3, 16).transpose(1, 2), right(i, 2, 3, 16, 8))),
        Sample("misaligned", lambda i: (i.misaligned(64, 64), i.misaligned(64, 64, salt=1))),
        Sample(
            "misaligned, transposed",
            lambda i: (i.misaligned(64, 72).t(), i.misaligned(40, 64, offset=3, salt=1).t()),
        ),
        Sample("row stride", lambda i: (left(i, 33, 96)[:, :40], right(i, 40, 72)[:, 8:40])),
        Sample(
            "row stride, TN", lambda i: (left(i, 33, 96)[:, :40], right(i, 24, 72)[:, 8:48].t())
        ),
        Sample("odd row stride", lambda i: (left(i, 33, 95)[:, :40], right(i, 40, 71)[:, :32])),
        Sample(  # windows of one line, which the copy engine does not take, beside an odd operand
            "overlapping rows",
            lambda i: (left(i, 1024).as_strided((33, 64), (16, 1)), right(i, 64, 27)),
        ),
        Sample(
            "batch of overlapping matrices",
            lambda i: (left(i, 1024).as_strided((3, 9, 64), (16, 64, 1)), right(i, 3, 64, 40)),
        ),
        Sample("both strides", lambda i: (left(i, 33, 80)[:, ::2], right(i, 40, 64)[:, ::2])),
        Sample(
            "expanded", lambda i: (left(i, 1, 40).expand(33, 40), right(i, 40, 1).expand(40, 24))
        ),
        Sample(
            "more products than a grid is high",
            lambda i: (i.randn(70000, 2, 4), i.randn(70000, 4, 2, salt=1)),
            small=False,
        ),
        Sample("special values", _special),
        Sample("special values, odd", _special_odd),
        Sample("cancelling", _cancelling, small=False),
        Sample("k = 65536", lambda i: (left(i, 5, 65536), right(i, 65536, 3)), small=False),
        _plain(24, 16, 65536, small=False),
        *_layouts(24, 16, 65536, small=False)[:1],
        Sample(
            "beyond f16 half way",
            lambda i: (i.plain(17, 4096, scale=100.0), i.plain(4096, 9, scale=10.0, salt=1)),
            small=False,
        ),
        Sample(
            "past 2^31 elements of a",
            lambda i: (i.plain(70000, 32768), i.plain(32768, 8, salt=1)),
            small=False,
            huge=True,
            dtypes=("f16", "bf16"),
        ),
        Sample(
            "past 2^31 elements of the product",
            lambda i: (i.plain(50000, 16), i.plain(16, 50000, salt=1)),
            small=False,
            huge=True,
            dtypes=("f16", "bf16"),
        ),
        *_past_2_31(),
    )


def _past_2_31() -> tuple[Sample, ...]:
    """One operand beside a small one, row-major and column-major; and a product of small ones."""
    long, k = (1 << 20) + 8, 2048
    makes: dict[str, Callable[[Inputs], tuple[Any, ...]]] = {
        "a": lambda i: (i.plain(long, k), i.plain(k, 8, salt=1)),
        "a, TT": lambda i: (i.plain(k, long).t(), i.plain(8, k, salt=1).t()),
        "b": lambda i: (i.plain(8, k), i.plain(k, long, salt=1)),
        "b, TN": lambda i: (i.plain(8, k), i.plain(long, k, salt=1).t()),
        "the product": lambda i: (i.plain(46_344, 16), i.plain(16, 46_344, salt=1)),
    }

    def sample(what: str, dtype: str) -> Sample:
        label = f"past 2^31 elements of {what}, {dtype}"
        return Sample(label, makes[what], small=False, huge=True, dtypes=(dtype,))

    return (
        *(sample(what, "f32") for what in makes),
        *(sample(what, "bf16") for what in ("a, TT", "b", "b, TN")),
    )


def invariant() -> tuple[Sample, ...]:
    """Calls whose rows keep their bits among other rows."""
    return (
        Sample("batch-invariant, few rows", lambda i: (left(i, 3, 1032), right(i, 1032, 72), True)),
        Sample("batch-invariant, a row", lambda i: (left(i, 1024), right(i, 40, 1024).t(), True)),
        Sample("batch-invariant, odd", lambda i: (left(i, 70, 1033), right(i, 1033, 7), True)),
        Sample("batch-invariant, an odd row", lambda i: (left(i, 1, 257), right(i, 257, 24), True)),
        Sample(
            "batch-invariant, one row over and over",
            lambda i: (left(i, 1, 136).expand(40, 136), right(i, 24, 136).t(), True),
        ),
    )


def _wide(m: int, n: int, k: int, layout: str, *, small: bool = True) -> Sample:
    def make(i: Inputs) -> tuple[Any, ...]:
        a = left(i, k, m).t() if layout in ("NT", "TT") else left(i, m, k)
        b = right(i, n, k).t() if layout in ("TN", "TT") else right(i, k, n)
        return a, b, False, "f32"

    return Sample(f"{layout} {m}x{n}x{k} to f32", make, small=small)


def wide() -> tuple[Sample, ...]:
    """Results in f32 of operands of any dtype."""
    return (
        *(_wide(129, 136, 72, layout) for layout in ("NN", "TN", "NT", "TT")),
        _wide(7, 33, 16, "TN"),
        _wide(40, 72, 1032, "TN"),
        _wide(70, 75, 131, "NN"),
        _wide(1, 40, 1024, "TN"),
        _wide(5, 0, 3, "NN"),
        _wide(5, 6, 0, "NN"),
        _wide(1000, 136, 520, "TN", small=False),
        _wide(1001, 999, 1003, "NN", small=False),
        _wide(256, 384, 4096, "TN", small=False),
        Sample("batch to f32", lambda i: (left(i, 3, 33, 40), right(i, 3, 40, 24), False, "f32")),
        Sample("vectors to f32", lambda i: (left(i, 72), right(i, 72), False, "f32")),
        Sample(
            "batch-invariant to f32",
            lambda i: (left(i, 3, 1032), right(i, 40, 1032).t(), True, "f32"),
        ),
        Sample("special values to f32", lambda i: (*_special(i), False, "f32")),
    )


NO_SUCH_RESULT = Bad(
    "result of f16",
    lambda i: (i.randn(3, 4), i.randn(4, 5), False, "f16"),
    r"matmul: expected out_dtype to be 'same' or 'f32', got 'f16'",
)


def errors(op: str) -> tuple[Bad, ...]:
    """Of an operator that takes two operands and nothing else."""
    return (
        Bad("0-d", lambda i: (i.randn(), i.randn(3)), rf"{op}: .*at least 1 dimension.* in a"),
        Bad("0-d b", lambda i: (i.randn(3), i.randn()), rf"{op}: .*at least 1 dimension.* in b"),
        Bad(
            "inner sizes",
            lambda i: (i.randn(3, 4), i.randn(5, 6)),
            rf"{op}: cannot multiply shapes \(3, 4\) and \(5, 6\)",
        ),
        Bad(
            "batches",
            lambda i: (i.randn(2, 3, 4), i.randn(3, 4, 5)),
            rf"{op}: cannot multiply shapes \(2, 3, 4\) and \(3, 4, 5\)",
        ),
        Bad(
            "integers",
            lambda i: (torch.ones(3, 3, device=i.device).int(),) * 2,
            rf"{op}: expected a to be a floating-point tensor, got torch.int32",
        ),
        Bad(
            "dtypes differ",
            lambda i: (i.randn(3, 3), i.randn(3, 3).double()),
            rf"{op}: expected b to have dtype torch.\w+ like a, got torch.float64",
        ),
        Bad(
            "devices differ",
            lambda i: (i.randn(3, 3), i.randn(3, 3).cpu()),
            rf"{op}: expected b to be on cuda:\d+ like a, got cpu",
            cuda_only=True,
        ),
    )


# --- mathematical facts ---------------------------------------------------------------------------


def identity(matmul: Function, inputs: Inputs) -> None:
    """Every product but one is zero: exact in any precision."""
    x = inputs.randn(129, 65)
    one = torch.eye(65, dtype=x.dtype, device=x.device)
    assert torch.equal(matmul(x, one), x)


def whole_numbers(matmul: Function, inputs: Inputs) -> None:
    """Sums of small integers are exact, in every order of additions."""
    generator = torch.Generator().manual_seed(inputs.seed)
    a = torch.randint(-3, 4, (130, 70), generator=generator).to(inputs.device, inputs.dtype)
    b = torch.randint(-2, 3, (70, 50), generator=generator).to(inputs.device, inputs.dtype)
    exact = (a.double() @ b.double()).to(inputs.dtype)
    assert torch.equal(matmul(a, b), exact)


def not_rounded(matmul: Function, inputs: Inputs) -> None:
    """Whole numbers that 16 bits do not hold."""
    generator = torch.Generator().manual_seed(inputs.seed)
    for m, n, k in ((130, 50, 700), (9, 40, 4096)):
        drawn = torch.randint(-60, 61, (m + n, k), generator=generator).to(inputs.device)
        a, b = drawn[:m].to(inputs.dtype), drawn[m:].to(inputs.dtype).t()
        out = matmul(a, b, False, "f32")
        assert out.dtype == torch.promote_types(inputs.dtype, torch.float32)
        assert torch.equal(out.double(), a.double() @ b.double()), f"{m}x{n}x{k}"


def deterministic(matmul: Function, inputs: Inputs) -> None:
    """A long k over few tiles, which is what gets split."""
    a, b = inputs.plain(40, 9000), inputs.plain(9000, 72, salt=1)
    first = matmul(a, b)
    assert all(torch.equal(first, matmul(a, b)) for _ in range(5))


# --- benchmarks -----------------------------------------------------------------------------------


def _case(m: int, n: int, k: int, layout: str, dtypes: tuple[str, ...] | None = None) -> Sample:
    def make(i: Inputs) -> tuple[Any, ...]:
        a = i.plain(k, m).t() if layout == "NT" else i.plain(m, k)
        b = i.plain(n, k, salt=1).t() if layout == "TN" else i.plain(k, n, salt=1)
        return a, b

    cubes = SIMT_LADDER if dtypes == ("f32",) else LADDER
    ladder = layout != "NT" and m == n == k and m in cubes
    return Sample(f"{m}x{n}x{k} {layout}", make, small=False, dtypes=dtypes, ladder=ladder)


_HALVES = ("f16", "bf16")
#: The cubes at which all rungs are timed: those that others of this field give figures for.
LADDER, SIMT_LADDER = (8192,), (4096, 8192)
#: Rows of tokens through the weights of a Llama-3-8B layer and of a 70B one.
_LAYERS = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336))
_TOKENS = tuple(
    (m, n, k) for n, k in _LAYERS for m in (16, 128, 1024, 4096) if (m, n, k) != (4096, 4096, 4096)
)
#: Tokens through weights [n, k] of language models, in bf16, that are not among the former.
_WEIGHTS = (
    *((4096, 4096), (28672, 4096), (4096, 14336), (6144, 4096), (8192, 28672)),
    *((7168, 2048), (2112, 7168), (7168, 16384), (151936, 1024)),
)
_MORE_TOKENS = tuple(
    (m, n, k)
    for n, k in _WEIGHTS
    for m in (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
    if (m, n, k) not in {*_TOKENS, *((m, 4096, 4096) for m in (64, 512, 4096))}
)


def bench() -> tuple[Sample, ...]:
    cubes = (1024, 2048, 4096, 8192)
    return (
        *(_case(n, n, n, "NN", dtypes) for n in cubes for dtypes in (("f32",), _HALVES)),
        *(_case(n, n, n, "TN", _HALVES) for n in cubes),
        _case(1000, 1000, 1000, "NN"),
        _case(4097, 5000, 3001, "NN"),
        *(_case(2049, 2051, 2053, layout, ("bf16",)) for layout in ("NN", "TN")),
        *(_case(*size, "TN", _HALVES) for size in _TOKENS),
        *(_case(m, n, k, "NN", ("f32", "bf16")) for m in (1, 16) for n, k in _LAYERS),
        # sizes at which the choice of the tile counts
        *(_case(m, 4096, 4096, "TN", ("f32", "bf16")) for m in (64, 512, 1536)),
        _case(8192, 28672, 8192, "TN", _HALVES),
        *(_case(n, n, n, layout, _HALVES) for n in (512, 16384) for layout in ("NN", "TN", "NT")),
        *(_case(n, n, n, "NT", _HALVES) for n in cubes),
        _case(333, 4096, 4096, "TN", ("bf16",)),
        *(_case(*size, "TN", ("bf16",)) for size in _MORE_TOKENS),
    )
