"""Calls on which gemv is tested and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.spec.determinism import RUNS

Call = tuple[Tensor, Tensor]


def call(inputs: Inputs, m: int, k: int, vectors: int = 0) -> Call:
    """`vectors` 0 stands for a 1-D x."""
    x = inputs.randn(vectors, k, salt=1) if vectors else inputs.randn(k, salt=1)
    return inputs.randn(m, k), x


def _label(m: int, k: int, vectors: int) -> str:
    return f"{m}x{k}" + (f", {vectors} vectors" if vectors else "")


def shaped(m: int, k: int, vectors: int = 0, *, small: bool = True) -> Sample:
    return Sample(_label(m, k, vectors), lambda i: call(i, m, k, vectors), small=small)


#: m, k, vectors (0: a 1-D x): lengths around those at which warps, packs and blocks end.
_SMALL = (
    (1, 1, 0),
    (1, 7, 0),
    (7, 1, 0),
    (16, 16, 0),
    (7, 16, 1),
    (33, 7, 2),
    (16, 33, 3),
    (127, 16, 0),
    (129, 33, 0),
    (128, 128, 0),
    (33, 128, 1),
    (7, 127, 4),
    (1, 1000, 0),
    (33, 1000, 2),
    (16, 1000, 16),
    (40, 1032, 5),
    (127, 129, 0),
    (1, 4097, 0),
    (33, 4104, 3),
    (7, 4160, 9),
    (65, 8, 0),
    (300, 8, 5),
    (257, 24, 0),
    (600, 17, 0),
    (515, 1, 0),
    (130, 126, 6),
    (37, 256, 0),
    (19, 504, 0),
    (170, 36, 9),
    (210, 36, 10),
    (250, 36, 16),
)
_LARGE = (
    (4097, 7, 0),
    (4097, 16, 16),
    (1000, 1000, 8),
    (1000, 1000, 0),
    (2049, 40, 0),
    (1031, 320, 5),
    (5000, 768, 0),
    (3001, 127, 3),
    (9001, 17, 0),
    (129, 4096, 1),
    (128, 4097, 0),
    (4097, 128, 0),
    (4097, 1032, 7),
    (4096, 1024, 12),
    (1000, 4160, 16),
    (8513, 264, 13),
    (257, 8200, 2),
    (3, 65536, 0),
    (64, 40960, 4),
    (64, 40960, 13),
    (4224, 4104, 13),
    (5009, 1032, 9),
    (18513, 1832, 11),
    (8190, 264, 13),
    (14330, 264, 16),
    (16890, 264, 13),
)


def samples() -> tuple[Sample, ...]:
    return (
        *(shaped(*shape) for shape in _SMALL),
        *(shaped(*shape, small=False) for shape in _LARGE),
        Sample("no rows", lambda i: call(i, 0, 64)),
        Sample("no vectors", lambda i: (i.randn(5, 64), i.randn(0, 64))),
        Sample("k of 0", lambda i: (i.randn(5, 0), i.randn(3, 0))),
        Sample("k of 0, 1-D", lambda i: (i.randn(5, 0), i.randn(0))),
        Sample("row stride", lambda i: (i.randn(33, 320)[:, :256], i.randn(256, salt=1))),
        Sample("odd row stride", lambda i: (i.randn(9, 257)[:, :256], i.randn(4, 256, salt=1))),
        Sample("row stride of x", lambda i: (i.randn(40, 512), i.randn(6, 640, salt=1)[:, 64:576])),
        Sample("strided x", lambda i: (i.randn(17, 256), i.randn(512, salt=1)[::2])),
        Sample("transposed x", lambda i: (i.randn(17, 256), i.randn(256, 5, salt=1).t())),
        Sample("expanded x", lambda i: (i.randn(17, 256), i.randn(256, salt=1).expand(6, 256))),
        Sample("expanded weights", lambda i: (i.randn(512).expand(40, 512), i.randn(512, salt=1))),
        Sample("short rows, stride", lambda i: (i.randn(90, 40)[:, :32], i.randn(3, 32, salt=1))),
        Sample("close rows, stride", lambda i: (i.randn(300, 23)[:, 2:19], i.randn(17, salt=1))),
        Sample("expanded short rows", lambda i: (i.randn(19).expand(70, 19), i.randn(19, salt=1))),
        Sample(
            "overlapping rows", lambda i: (i.randn(364).as_strided((70, 19), (5, 1)), i.randn(19))
        ),
        Sample("one row of a stride", lambda i: (i.randn(2, 90)[:1, :21], i.randn(2, 21, salt=1))),
        Sample("expanded columns", lambda i: (i.randn(40, 1).expand(40, 512), i.randn(512))),
        Sample("misaligned short rows", lambda i: (i.misaligned(300, 21), i.randn(5, 21, salt=1))),
        Sample("misaligned", lambda i: (i.misaligned(20, 256), i.randn(256, salt=1))),
        Sample("misaligned x", lambda i: (i.randn(20, 512), i.misaligned(3, 512, salt=1))),
        Sample("misaligned by 4 values", lambda i: _by_four(i)),
        Sample("transposed", lambda i: (i.randn(264, 48).t(), i.randn(264, salt=1))),
        Sample("transposed, odd", lambda i: (i.randn(129, 33).t(), i.randn(3, 129, salt=1))),
        Sample("transposed, deep", lambda i: (i.randn(1032, 24).t(), i.randn(1032, salt=1))),
        Sample(
            "transposed, misaligned x",
            lambda i: (i.randn(520, 16).t(), i.misaligned(3, 520, salt=1)),
        ),
        Sample("transposed, deeper", lambda i: _transposed(i, 8200, 200, 11), small=False),
        Sample("transposed, 5 vectors", lambda i: _transposed(i, 520, 1000, 5), small=False),
        Sample("many short odd rows", lambda i: (i.randn(600_011, 5), i.randn(5)), small=False),
        Sample(
            "many short odd rows, 3 vectors",
            lambda i: (i.randn(600_011, 7), i.randn(3, 7, salt=1)),
            small=False,
        ),
        Sample("transposed, 16 vectors", lambda i: _transposed(i, 1032, 4520, 16), small=False),
        Sample("transposed, wide", lambda i: _transposed(i, 520, 13_016, 9), small=False),
        Sample("transposed, wider", lambda i: _transposed(i, 520, 25_352, 3), small=False),
        Sample("transposed, long", lambda i: _transposed(i, 4097, 96, 1), small=False),
        Sample(
            "transposed, long and wide",
            lambda i: _transposed(i, 4104, 33_800, 3),
            small=False,
            huge=True,
            dtypes=("f32",),
        ),
        Sample("transposed, column stride", lambda i: _columns(i)),
        Sample("transposed, misaligned", lambda i: (i.misaligned(65, 40).t(), i.randn(65, salt=1))),
        Sample("every second value", lambda i: (i.randn(19, 130)[:, ::2], i.randn(65, salt=1))),
        Sample(
            "every second row and value",
            lambda i: (i.randn(20, 130)[::2, ::2], i.randn(2, 65, salt=1)),
        ),
        Sample("one column, strided", lambda i: (i.randn(64, 3)[:, 1:2], i.randn(1, salt=1))),
        Sample("one row, strided", lambda i: (i.randn(3, 64).t()[:1], i.randn(3, salt=1))),
        Sample(
            "scaled by 100",
            lambda i: (i.plain(40, 1024, scale=100.0), i.plain(3, 1024, scale=1e-2, salt=1)),
        ),
        Sample("sums beyond f16", lambda i: _beyond_f16(i), dtypes=("f16",)),
        Sample("single outlier", lambda i: _single(i, 20000.0)),
        Sample("nan", lambda i: _single(i, float("nan"))),
        Sample("infinity", lambda i: _single(i, float("inf"))),
        Sample("infinity times zero", lambda i: _infinity_times_zero(i)),
        Sample(
            "k of 65536",
            lambda i: (i.plain(40, 65536), i.plain(5, 65536, salt=1)),
            small=False,
        ),
        Sample(
            "past 2^31 elements",
            lambda i: (i.plain(131_073, 16_392), i.plain(16_392, salt=1)),
            small=False,
            huge=True,
            dtypes=("f16", "bf16"),
        ),
        Sample(
            "past 2^31 elements, 3 vectors",
            lambda i: (i.plain(131_073, 16_392), i.plain(3, 16_392, salt=1)),
            small=False,
            huge=True,
            dtypes=("f16", "bf16"),
        ),
        Sample(
            "past 2^31 elements, transposed",
            lambda i: (i.plain(131_073, 16_392).t(), i.plain(131_073, salt=1)),
            small=False,
            huge=True,
            dtypes=("f16", "bf16"),
        ),
        *(
            Sample(f"past 2^31 elements, {label}", make, small=False, huge=True, dtypes=("bf16",))
            for label, make in (
                ("deep columns", lambda i: (i.plain(131_072, 16_392).t(), i.plain(131_072))),
                ("short rows", lambda i: (i.plain(8_388_610, 256), i.plain(256, salt=1))),
                ("short odd rows", lambda i: (i.plain(16_909_330, 127), i.plain(127, salt=1))),
            )
        ),
    )


def _by_four(inputs: Inputs) -> Call:
    return inputs.misaligned(20, 256, offset=4), inputs.misaligned(256, offset=4, salt=1)


def _beyond_f16(inputs: Inputs) -> Call:
    return inputs.plain(33, 512, scale=1e3), inputs.plain(3, 512, scale=1e3, salt=1)


def _transposed(inputs: Inputs, k: int, m: int, vectors: int) -> Call:
    return inputs.randn(k, m).t(), inputs.randn(vectors, k, salt=1)


def _columns(inputs: Inputs) -> Call:
    return inputs.randn(72, 320)[:, 32:288].t(), inputs.randn(2, 72, salt=1)


def _single(inputs: Inputs, value: float) -> Call:
    a, x = inputs.plain(33, 1024), inputs.plain(3, 1024, salt=1)
    a[7, 1000] = value
    return a, x


def _infinity_times_zero(inputs: Inputs) -> Call:
    a, x = inputs.plain(20, 512), inputs.plain(512, salt=1)
    a[3, 77] = float("inf")
    x[77] = 0
    return a, x


# --- measured -------------------------------------------------------------------------------------

#: Rows that are shorter than what a warp reads at once, or not whole packs of 16 bytes.
_SHORT = ((1 << 22, 16), (1 << 22, 17), (1 << 20, 64), (1 << 18, 256))
#: Column-major weights, as of a gradient of x: m, k, vectors.
_COLUMNS = (*((14336, 4096, n) for n in (1, 4, 8, 16)), (4096, 14336, 1))
_SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336), (28672, 8192), (128256, 4096))


def _bench(m: int, k: int, vectors: int) -> Sample:
    label = f"{m}x{k}" + (f", {vectors} vectors" if vectors > 1 else "")

    def make(inputs: Inputs) -> Call:
        x = inputs.plain(vectors, k, salt=1) if vectors > 1 else inputs.plain(k, salt=1)
        return inputs.plain(m, k), x

    return Sample(label, make, small=False, ladder=vectors == 1 and (m, k) == _SHAPES[-1])


def _bench_columns(m: int, k: int, vectors: int) -> Sample:
    rows = _bench(m, k, vectors)

    def make(inputs: Inputs) -> Call:
        _, x = rows.make(inputs)
        return inputs.plain(k, m).t(), x

    return Sample(f"{rows.label}, column-major", make, small=False)


def bench() -> tuple[Sample, ...]:
    return (
        *(_bench(m, k, n) for n in (1, 2, 4, 8, 16) for m, k in _SHAPES),
        *(_bench(m, k, 1) for m, k in _SHORT),
        *(_bench_columns(m, k, n) for m, k, n in _COLUMNS),
    )


# --- refused --------------------------------------------------------------------------------------

ERRORS = (
    Bad(
        "integers",
        lambda i: (torch.ones(8, 8, dtype=torch.int32, device=i.device), i.randn(8)),
        r"gemv: expected a to be a floating-point tensor, got torch\.int32",
    ),
    Bad(
        "fp8",
        lambda i: (i.randn(8, 8).to(torch.float8_e4m3fn), i.randn(8)),
        r"gemv: expected a to have at least 16 bits an element, got torch\.float8_e4m3fn",
    ),
    Bad(
        "1-D a",
        lambda i: (i.randn(8), i.randn(8)),
        r"gemv: expected a to be 2-D, got shape \(8,\)",
    ),
    Bad(
        "0-d x",
        lambda i: (i.randn(8, 8), i.randn()),
        r"gemv: expected x to be 1-D or 2-D, got shape \(\)",
    ),
    Bad(
        "3-D x",
        lambda i: (i.randn(8, 8), i.randn(2, 2, 8)),
        r"gemv: expected x to be 1-D or 2-D, got shape \(2, 2, 8\)",
    ),
    Bad(
        "another length",
        lambda i: (i.randn(4, 8), i.randn(4)),
        r"gemv: expected x to have 8 values in its last dimension, .*, got shape \(4,\)",
    ),
    Bad(
        "too many vectors",
        lambda i: (i.randn(4, 8), i.randn(17, 8)),
        r"gemv: expected x to have at most 16 rows, got 17",
    ),
    Bad(
        "another dtype",
        lambda i: (i.randn(4, 8), i.randn(8).double()),
        r"gemv: expected x to have dtype torch\.\w+ like a, got torch\.float64",
    ),
    Bad(
        "x on the CPU",
        lambda i: (i.randn(4, 8), torch.ones(8, dtype=i.dtype)),
        r"gemv: expected x to be on cuda:\d+ like a, got cpu",
        cuda_only=True,
    ),
    Bad(
        "pack, misaligned",
        lambda i: (
            Inputs(torch.float32, i.device).misaligned(4, 8),
            Inputs(torch.float32, i.device).randn(8),
        ),
        r"gemv.*: .*needs rows aligned to 16 bytes",
        variant="f32x4_pack",
    ),
    Bad(
        "k16, long rows",
        lambda i: call(Inputs(torch.float32, i.device), 4, 129),
        r"gemv.*: .*needs k of at most 128",
        variant="f32_k16",
    ),
    Bad(
        "columns, contiguous rows",
        lambda i: call(Inputs(torch.float32, i.device), 4, 8),
        r"gemv.*: .*needs weights with contiguous columns",
        variant="f32_columns",
    ),
    Bad(
        "short_rows, long rows",
        lambda i: call(Inputs(torch.float32, i.device), 4, 516),
        r"gemv.*: .*needs rows of at most 2 KiB",
        variant="f32x4_pack_short_rows",
    ),
    Bad(
        "staged_rows, rows far apart",
        lambda i: (
            Inputs(torch.float32, i.device).randn(4, 22)[:, :9],
            Inputs(torch.float32, i.device).randn(9),
        ),
        r"gemv.*: .*needs rows that lie at most twice their length apart",
        variant="f32_staged_rows",
    ),
    Bad(
        "skinny_columns, odd columns",
        lambda i: _transposed(Inputs(torch.float16, i.device), 8, 17, 1),
        r"gemv.*: .*needs columns aligned to 16 bytes",
        variant="f16x8_pack_skinny_columns_f32",
    ),
    Bad(
        "skinny_columns, odd k",
        lambda i: _transposed(Inputs(torch.float16, i.device), 12, 16, 1),
        r"gemv.*: .*needs k of whole packs of 16 bytes",
        variant="f16x8_pack_skinny_columns_f32",
    ),
)


# --- properties -----------------------------------------------------------------------------------


def deterministic(function: Callable[..., Any], inputs: Inputs) -> None:
    for m, k, vectors in ((200, 16384, 0), (96, 8192, 5)):
        args = call(inputs, m, k, vectors)
        first = function(*args)
        for _ in range(RUNS - 1):
            assert torch.equal(function(*args), first), "two runs of one call differ"


def whole_numbers(function: Callable[..., Any], inputs: Inputs) -> None:
    """Products of small whole numbers add up exactly, so that only the result is rounded."""
    generator = torch.Generator(device=inputs.device).manual_seed(inputs.seed)
    for m, k, vectors in ((67, 4104, 3), (130, 8200, 1), (35, 1000, 11)):
        shape = (m + vectors, k)
        values = torch.randint(-2, 4, shape, generator=generator, device=inputs.device).double()
        a, x = values[:m], values[m:]
        out = function(a.to(inputs.dtype), x.to(inputs.dtype))
        assert torch.equal(out, (x @ a.t()).to(inputs.dtype)), f"{m}x{k}, {vectors} vectors"


def vectors_do_not_mix(function: Callable[..., Any], inputs: Inputs) -> None:
    """A vector of NaN spoils its own result only."""
    a, x = call(inputs, 70, 1024, 7)
    clean = function(a, x)
    x[3] = float("nan")
    out = function(a, x)
    assert out[3].isnan().all()
    keep = torch.arange(7, device=inputs.device) != 3
    assert torch.equal(out[keep], clean[keep])
