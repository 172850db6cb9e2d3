"""Calls of the quantisers for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.quantize.reference import (
    BLOCK,
    GROUP,
    GROUPS,
    ROW,
    SHARERS,
    TENSOR,
    dequantized,
    largest,
    quantized,
)
from warpsmith.spec.spoilt import Spoiler

E4M3, E5M2, INT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
_CODES = {"e4m3": E4M3, "e5m2": E5M2, "i8": INT8}

#: One row more than 2^31 elements.
PAST_2_31 = ((1 << 21) + 1, 1024)

Make = Callable[[Inputs], Tensor]


def _special(i: Inputs) -> Tensor:
    """Rows with NaN, infinities, zeros, and values next to the smallest; the first is ordinary."""
    x = i.plain(6, 128)
    x[1, 3], x[2, 5], x[2, 8] = float("nan"), float("inf"), float("-inf")
    x[3] = 0.0
    x[4] = torch.finfo(i.dtype).tiny / 4
    x[5] = torch.finfo(i.dtype).max
    return x


def _shaped(*shape: int) -> Make:
    return lambda i: i.randn(*shape)


#: In every layout that memory may have.
_LAYOUTS: dict[str, Make] = {
    "1-d": lambda i: i.randn(768),
    "4-d": lambda i: i.randn(2, 3, 4, 72),
    "row stride": lambda i: i.randn(9, 320)[:, :256],
    "odd row stride": lambda i: i.randn(9, 259)[:, :256],
    "expanded": lambda i: i.randn(1, 64).expand(6, 64),
    "transposed": lambda i: i.randn(256, 24).t(),
    "middle transposed": lambda i: i.randn(3, 4, 5, 32).transpose(1, 2),
    "misaligned": lambda i: i.misaligned(5, 256),
}
_SHAPES = ((1, 1), (3, 7), (5, 96), (33, 128), (2, 384), (7, 1000), (130, 264), (3, 4104))
_EMPTY = ((0, 16), (4, 0), (0, 0))


def samples() -> tuple[Sample, ...]:
    found = []

    def add(
        label: str, make: Make, sharers: str, codes: str, small: bool = True, **more: Any
    ) -> None:
        name = f"{label} {sharers} {codes}"
        call = lambda i: (make(i), *SHARERS[sharers], _CODES[codes])  # noqa: E731
        found.append(Sample(name, call, small=small, **more))

    for n, (rows, cols) in enumerate((*_SHAPES, *_EMPTY)):
        for k, sharers in enumerate(SHARERS):
            codes = tuple(_CODES)[(n + k) % 3]
            add(f"{rows}x{cols}", _shaped(rows, cols), sharers, codes)
    for n, (label, make) in enumerate(_LAYOUTS.items()):
        for sharers in ("tensor", "token", "group"):
            add(label, make, sharers, tuple(_CODES)[n % 3])
    for label in ("row stride", "transposed", "misaligned"):
        add(label, _LAYOUTS[label], "block", "e4m3")
    for codes in _CODES:
        add("special", _special, "token", codes)
    for sharers in ("tensor", "group", "block"):
        add("special", _special, sharers, "e4m3")
    add("1031x4096", lambda i: i.randn(1031, 4096), "token", "e4m3", small=False)
    add("257x16384", lambda i: i.randn(257, 16384), "token", "i8", small=False)
    add("19x40000", lambda i: i.randn(19, 40000), "token", "e5m2", small=False)
    add("1031x4224", lambda i: i.randn(1031, 4224), "group", "e4m3", small=False)
    add("1031x4104", lambda i: i.randn(1031, 4104), "block", "e4m3", small=False)
    add("1031x4104", lambda i: i.randn(1031, 4104), "tensor", "e4m3", small=False)
    past: Make = lambda i: i.plain(*PAST_2_31)  # noqa: E731
    for sharers in SHARERS:
        add("past 2^31", past, sharers, "e4m3", small=False, huge=True, dtypes=("f16",))
    return tuple(found)


def bench() -> tuple[Sample, ...]:
    shapes = ((32768, 4096), (8192, 14336))
    plain = {f"{m}x{n} {name}": (m, n, name, E4M3) for m, n in shapes for name in SHARERS}
    plain["32768x4096 token i8"] = (32768, 4096, "token", INT8)
    plain["64x4096 token"] = (64, 4096, "token", E4M3)

    def case(label: str, m: int, n: int, name: str, dtype: torch.dtype) -> Sample:
        return Sample(label, lambda i: (i.plain(m, n), *SHARERS[name], dtype), small=False)

    return tuple(case(label, *of) for label, of in plain.items())


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """But for what sort of NaN one is."""
    if a.dtype.itemsize == 1:
        a, b = a.float(), b.float()
    return (
        a.shape == b.shape
        and torch.equal(a.nan_to_num(-1.0), b.nan_to_num(-1.0))
        and bool((a.isnan() == b.isnan()).all())
    )


def exact(quantize: Any, inputs: Inputs) -> None:
    """The bits of the reference, of values of all magnitudes and their neighbours."""
    exponents = torch.linspace(-60, 60, 12, device=inputs.device).exp2()
    for make in (_special, lambda i: i.randn(260, 640, salt=5)):
        x = make(inputs)
        if inputs.dtype != torch.float16:
            x = (x.float() * exponents.repeat(x.shape[0])[: x.shape[0], None]).to(x.dtype)
        for sharers in (TENSOR, ROW, GROUPS, BLOCK):
            for dtype in (E4M3, E5M2, INT8):
                ours, wanted = quantize(x, *sharers, dtype), quantized(x.float(), sharers, dtype)
                for name, a, b in zip(("q", "scale"), ours, wanted, strict=True):
                    assert _same_bits(a, b), f"{name} of {dtype}, {sharers}: other bits"


def near(quantize: Any, inputs: Inputs) -> None:
    """What codes stand for is no further off than half the distance of neighbouring codes."""
    x = inputs.plain(64, 512)
    for sharers in (TENSOR, ROW, GROUPS, BLOCK):
        for dtype in (E4M3, INT8):
            q, scale = quantize(x, *sharers, dtype)
            off = (dequantized(q, scale, sharers) - x.float()).abs()
            top = dequantized(torch.ones_like(q), scale, sharers) * largest(dtype)
            relative = 2.0**-4 if dtype == E4M3 else 0.0
            half_step = 0.5 / 127 if dtype == INT8 else 2.0**-10 / 448
            assert (off <= x.float().abs() * relative + top * half_step * 1.001).all()


# --- fused ----------------------------------------------------------------------------------------


def _norm_call(
    i: Inputs, x: Tensor, group: int, dtype: torch.dtype = E4M3, wide: bool = False, **more: Any
) -> dict[str, Any]:
    weight = i.plain(x.shape[-1], salt=3)
    return {
        "x": x,
        "weight": weight.float() if wide else weight,
        "dtype": dtype,
        "group": group,
        "eps": 1e-6,
        **more,
    }


def _past_2_31(make: Callable[[Inputs], Any]) -> Sample:
    """In groups: with a scale a row, the reference is not computed a few rows at a time."""
    return Sample("past 2^31 elements", make, small=False, huge=True, dtypes=("f16",))


_GROUPS = {"token": 0, "group": GROUP}
_ROWS: dict[str, Make] = {
    **{f"{m}x{n}": _shaped(m, n) for m, n in (*_SHAPES, *_EMPTY)},
    **_LAYOUTS,
}


def norm_samples() -> tuple[Sample, ...]:
    def case(label: str, make: Make, group: int, dtype: torch.dtype) -> Sample:
        return Sample(label, lambda i: _norm_call(i, make(i), group, dtype))

    found = [
        case(f"{label} {name}", make, group, (E4M3, E5M2)[n % 2])
        for n, (label, make) in enumerate(_ROWS.items())
        for name, group in _GROUPS.items()
    ]
    x: Make = lambda i: i.randn(5, 256)  # noqa: E731
    found += [
        Sample("no weight", lambda i: _norm_call(i, x(i), 0, weight=None)),
        Sample("weight in f32", lambda i: _norm_call(i, x(i), GROUP, wide=True)),
        Sample("weight around zero", lambda i: _norm_call(i, x(i), 0, zero_centered=True)),
        Sample(
            "weight in f32 around zero",
            lambda i: _norm_call(i, x(i), GROUP, wide=True, zero_centered=True),
        ),
        Sample("large eps", lambda i: _norm_call(i, x(i), 0) | {"eps": 0.5}),
        Sample("special", lambda i: _norm_call(i, _norm_special(i), 0)),
        Sample("special groups", lambda i: _norm_call(i, _norm_special(i), GROUP)),
        Sample("517x4096", lambda i: _norm_call(i, i.randn(517, 4096), 0), small=False),
        Sample("517x7168", lambda i: _norm_call(i, i.randn(517, 7168), GROUP), small=False),
        Sample("19x40960", lambda i: _norm_call(i, i.randn(19, 40960), GROUP), small=False),
        _past_2_31(lambda i: _norm_call(i, i.plain(*PAST_2_31), GROUP)),
    ]
    return tuple(found)


def _norm_special(i: Inputs) -> Tensor:
    """Without rows whose squares leave the range of f32, where order decides."""
    return _special(i)[:4]


def norm_bench() -> tuple[Sample, ...]:
    def case(m: int, n: int, name: str, group: int) -> Sample:
        make = lambda i: _norm_call(i, i.plain(m, n), group)  # noqa: E731
        return Sample(f"{m}x{n} {name}", make, small=False)

    shapes = ((32768, 4096), (16384, 7168), (64, 4096))
    return tuple(case(*shape, *of) for shape in shapes for of in _GROUPS.items())


def _silu_call(x: Tensor, up: Tensor | None, group: int, dtype: torch.dtype = E4M3) -> Any:
    return {"x": x, "up": up, "dtype": dtype, "group": group}


def _doubled(i: Inputs, make: Make) -> Tensor:
    x = make(i)
    return torch.cat((x, x.flip(-1)), -1)


def silu_samples() -> tuple[Sample, ...]:
    def pair(label: str, make: Make, group: int, dtype: torch.dtype) -> Sample:
        return Sample(label, lambda i: _silu_call(make(i), make(i).flip(-1), group, dtype))

    def halves(label: str, make: Make, group: int, dtype: torch.dtype) -> Sample:
        return Sample(label, lambda i: _silu_call(_doubled(i, make), None, group, dtype))

    found = []
    for n, (label, make) in enumerate(_ROWS.items()):
        dtype = (E4M3, E5M2)[n % 2]
        for name, group in _GROUPS.items():
            found.append(pair(f"{label} {name}", make, group, dtype))
        found.append(halves(f"{label} halves", make, GROUP * (n % 2), dtype))
    found += [
        Sample(
            "halves with a row stride",
            lambda i: _silu_call(i.randn(9, 640)[:, :512], None, 0),
        ),
        Sample(
            "halves of transposed rows",
            lambda i: _silu_call(i.randn(512, 12).t(), None, GROUP),
        ),
        Sample(
            "two strides",
            lambda i: _silu_call(i.randn(9, 640)[:, :256], i.randn(9, 320)[:, :256], GROUP),
        ),
        Sample("special", lambda i: _silu_call(_special(i)[:4], i.randn(4, 128), 0)),
        Sample("special groups", lambda i: _silu_call(_special(i)[:4], i.randn(4, 128), GROUP)),
        Sample("517x14336", lambda i: _silu_call(i.randn(517, 28672), None, GROUP), small=False),
        Sample("19x40960", lambda i: _silu_call(i.randn(19, 81920), None, 0), small=False),
        _past_2_31(lambda i: _silu_call(i.plain(*PAST_2_31), i.plain(*PAST_2_31, salt=1), GROUP)),
    ]
    return tuple(found)


def silu_bench() -> tuple[Sample, ...]:
    def case(m: int, n: int, name: str, group: int) -> Sample:
        make = lambda i: _silu_call(i.plain(m, 2 * n), None, group)  # noqa: E731
        return Sample(f"{m}x{n} {name}", make, small=False)

    shapes = ((8192, 14336), (64, 14336))
    return tuple(case(*shape, *of) for shape in shapes for of in _GROUPS.items())


# --- bad calls ------------------------------------------------------------------------------------


def _bad_values(bad: Spoiler) -> tuple[Bad, ...]:
    return (
        bad.integers(),
        bad.no_dimension(),
        bad(
            "fp8",
            r"expected x to have at least 16 bits an element, got torch\.float8_e5m2",
            x=lambda i: torch.ones(2, 8, device=i.device).to(E5M2),
        ),
    )


def errors() -> tuple[Bad, ...]:
    good = lambda i: {"x": i.randn(2, 8), "block_rows": 1, "block_cols": 0, "dtype": E4M3}  # noqa: E731
    bad = Spoiler("quantize", good)
    return (
        *_bad_values(bad),
        bad("to 16 bits", r"expected dtype to be .* got torch\.float16", dtype=torch.float16),
        bad("other blocks", r"expected block_rows .* got 1 and 64", block_cols=64),
        bad(
            "blocks of 3-d",
            r"expected x to be 2-D for blocks of 128 x 128, got shape \(2, 3, 8\)",
            x=lambda i: i.randn(2, 3, 8),
            block_rows=128,
            block_cols=128,
        ),
        bad.refused("odd rows", "needs rows", "f32x4_pack", x=lambda i: i.randn(3, 7)),
        bad.refused("one scale", "the tensor shares", "f32x4_pack_registers", block_rows=0),
    )


def _bad_codes(bad: Spoiler) -> tuple[Bad, ...]:
    return (
        bad("to int8", r"expected dtype to be .* got torch\.int8", dtype=INT8),
        bad("other groups", "expected group to be 0, a row, or 128, got 64", group=64),
        bad.refused("odd rows", "needs rows", "f32x4_pack", **_ODD),
        bad.refused("parts of groups", "needs groups", "f32x4_pack_registers", group=128),
    )


_ODD: dict[str, Any] = {"x": lambda i: i.randn(3, 6)}


def norm_errors() -> tuple[Bad, ...]:
    good = lambda i: _norm_call(i, i.randn(2, 8), 0)  # noqa: E731
    bad = Spoiler("rms_norm_quantize", good)
    return (
        *_bad_values(bad),
        bad.other_length("weight"),
        bad.other_length("weight", 2, 8),
        bad(
            "weight of another dtype",
            r"expected weight to have dtype torch\.\w+.*, got torch\.float64",
            weight=lambda i: i.plain(8).double(),
        ),
        bad.on_the_cpu("weight", 8),
        *(b for b in _bad_codes(bad) if b.label != "odd rows"),
    )


def silu_errors() -> tuple[Bad, ...]:
    good = lambda i: _silu_call(i.randn(2, 8), i.randn(2, 8, salt=1), 0)  # noqa: E731
    bad = Spoiler("silu_and_mul_quantize", good)
    return (
        *_bad_values(bad),
        bad.other_shape("up", 2, 7),
        bad.other_dtype("up", like="x"),
        bad.on_the_cpu("up", 2, 8, narrow=True),
        bad(
            "odd", "expected the last dimension of x to be even", x=lambda i: i.randn(2, 7), up=None
        ),
        *(b for b in _bad_codes(bad) if b.label != "odd rows"),
    )
