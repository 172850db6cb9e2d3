"""Calls on which gemv_scaled is tested and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample, is_fp8
from warpsmith.spec.determinism import RUNS

Call = tuple[Tensor, Tensor, Tensor]


def weights(inputs: Inputs, *shape: int) -> Tensor:
    """With outliers where the dtype is floating; every int8 otherwise."""
    if inputs.dtype == torch.int8:
        generator = inputs.generator(shape)
        return torch.randint(
            -128, 128, shape, generator=generator, device=inputs.device, dtype=torch.int8
        )
    return inputs.randn(*shape)


def values(inputs: Inputs, *shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return Inputs(dtype, inputs.device, inputs.seed).randn(*shape, salt=1)


def scales(inputs: Inputs, *shape: int) -> Tensor:
    """Of either sign, over three orders of magnitude."""
    plain = Inputs(torch.float32, inputs.device, inputs.seed).plain(*shape, salt=2)
    return plain.sign() * (plain * 1.2 - 3).exp()


def call(
    inputs: Inputs,
    m: int,
    k: int,
    vectors: int = 0,
    dtype: torch.dtype = torch.float16,
    per_row: bool = True,
) -> Call:
    """`vectors` 0 stands for a 1-D x."""
    x = values(inputs, *((vectors, k) if vectors else (k,)), dtype=dtype)
    return weights(inputs, m, k), x, scales(inputs, m) if per_row else scales(inputs)


_HALF, _BF16, _WIDE = torch.float16, torch.bfloat16, torch.float32

_SMALL = (
    (1, 1, 0, _HALF),
    (7, 16, 1, _BF16),
    (33, 7, 2, _WIDE),
    (127, 33, 3, _HALF),
    (129, 128, 0, _WIDE),
    (16, 129, 4, _BF16),
    (33, 1008, 5, _HALF),
    (33, 1008, 16, _BF16),
    (40, 1040, 9, _HALF),
    (9, 4112, 0, _BF16),
    (7, 4097, 0, _HALF),
    (12, 4112, 2, _WIDE),
    (35, 2064, 3, _WIDE),
    (128, 127, 0, _HALF),
    (128, 1000, 2, _BF16),
)
_LARGE = (
    (4097, 16, 0, _HALF),
    (1000, 1040, 1, _WIDE),
    (1000, 4112, 8, _BF16),
    (1000, 4112, 16, _HALF),
    (257, 8208, 2, _BF16),
    (3, 65536, 0, _HALF),
    (64, 40960, 11, _BF16),
    (100, 20480, 2, _WIDE),
    (8513, 272, 13, _HALF),
    (9000, 48, 16, _BF16),
)


def _shaped(m: int, k: int, vectors: int, dtype: torch.dtype, small: bool) -> Sample:
    label = f"{m}x{k}" + (f", {vectors} vectors" if vectors else "")
    return Sample(
        f"{label}, x {str(dtype)[6:]}", lambda i: call(i, m, k, vectors, dtype), small=small
    )


def samples() -> tuple[Sample, ...]:
    return (
        *(_shaped(*shape, small=True) for shape in _SMALL),
        *(_shaped(*shape, small=False) for shape in _LARGE),
        Sample("one scale", lambda i: call(i, 20, 256, 3, per_row=False)),
        Sample("strided scale", lambda i: (*call(i, 20, 256, 3)[:2], scales(i, 40)[::2])),
        Sample("expanded scale", lambda i: (*call(i, 20, 256)[:2], scales(i, 1).expand(20))),
        Sample("no rows", lambda i: call(i, 0, 64)),
        Sample("no vectors", lambda i: (*_cut(i, 5, 64, 0), scales(i, 5))),
        Sample("k of 0", lambda i: (*call(i, 5, 0, 3)[:2], _special(i, 5))),
        Sample("row stride", lambda i: (*_cut(i, 33, 256, 2, pitch=320), scales(i, 33))),
        Sample("odd row stride", lambda i: (*_cut(i, 9, 256, 1, pitch=257), scales(i, 9))),
        Sample("transposed", lambda i: (weights(i, 48, 33).t(), values(i, 48), scales(i, 33))),
        Sample("misaligned", lambda i: (_misaligned(i, 20, 256), values(i, 256), scales(i, 20))),
        Sample("misaligned x", lambda i: (weights(i, 20, 256), _shifted(i, 256), scales(i, 20))),
        Sample("strided x", lambda i: (weights(i, 17, 64), values(i, 64, 5).t(), scales(i, 17))),
        Sample("every code", lambda i: (_codes(i), values(i, 5, 256), scales(i, 40))),
        Sample("every code, x bfloat16", lambda i: (_codes(i), _bf16(i), scales(i, 40))),
        Sample("nan and infinities", lambda i: _nonfinite(i)),
        Sample("sums beyond f16", lambda i: _beyond_f16(i)),
        Sample(
            "past 2^31 elements",
            lambda i: (_many(i, 131_073, 16_400), values(i, 3, 16_400), scales(i, 131_073)),
            small=False,
            huge=True,
            dtypes=("e4m3", "i8"),
        ),
    )


def _cut(inputs: Inputs, m: int, k: int, vectors: int, pitch: int = 0) -> tuple[Tensor, Tensor]:
    return weights(inputs, m, pitch or k)[:, :k], values(inputs, vectors, k)


def _misaligned(inputs: Inputs, m: int, k: int) -> Tensor:
    return weights(inputs, m * k + 1)[1:].view(m, k)


def _shifted(inputs: Inputs, k: int) -> Tensor:
    return values(inputs, 4 * k + 1)[1:].view(4, k)


def _bf16(inputs: Inputs) -> Tensor:
    return values(inputs, 5, 256, dtype=torch.bfloat16)


def _codes(inputs: Inputs) -> Tensor:
    """Every finite value of the dtype in each row, in another order."""
    codes = torch.arange(256, device=inputs.device).to(torch.uint8).view(inputs.dtype)
    if is_fp8(inputs.dtype):
        wide = codes.float()
        codes = torch.where(wide.isfinite(), wide, 0.0).to(inputs.dtype)
    rows = [codes.view(torch.uint8).roll(7 * row) for row in range(40)]
    return torch.stack(rows).view(inputs.dtype)


def _nonfinite(inputs: Inputs) -> Call:
    """e4m3 has a NaN, e5m2 infinities too; the vectors have all of them."""
    a, x, scale = call(inputs, 40, 1024, 3)
    if is_fp8(inputs.dtype):
        a.view(torch.uint8)[3, 77] = 0x7C if inputs.dtype == torch.float8_e5m2 else 0x7F
        a.view(torch.uint8)[5, 78] = 0xFF
    x[0, 1000] = float("inf")
    x[1, 3] = float("nan")
    return a, x, scale


def _special(inputs: Inputs, count: int) -> Tensor:
    """Scales of nothing."""
    values = (float("nan"), float("inf"), -2.0)
    return torch.tensor([values[i % 3] for i in range(count)], device=inputs.device)


def _beyond_f16(inputs: Inputs) -> Call:
    """The sums leave f16, and their scales bring them back."""
    a, x, _ = call(inputs, 33, 1024, 3)
    return a, x.abs() * 100, scales(inputs, 33) * 1e-4


def _many(inputs: Inputs, m: int, k: int) -> Tensor:
    """Drawn once for all rows, as more random values take memory that the call does not."""
    row = weights(inputs, 2 * k + m)
    return torch.stack([row[start : start + k] for start in range(0, m, 1024)]).repeat_interleave(
        1024, 0
    )[:m]


# --- measured -------------------------------------------------------------------------------------

_SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336), (28672, 8192))


def _bench(m: int, k: int, vectors: int) -> Sample:
    label = f"{m}x{k}" + (f", {vectors} vectors" if vectors > 1 else "")

    def make(inputs: Inputs) -> Call:
        narrow = Inputs(torch.bfloat16, inputs.device, inputs.seed)
        x = narrow.plain(vectors, k, salt=1) if vectors > 1 else narrow.plain(k, salt=1)
        return inputs.plain(m, k), x, scales(inputs, m)

    return Sample(label, make, small=False, ladder=vectors == 1 and (m, k) == _SHAPES[-1])


def bench() -> tuple[Sample, ...]:
    return tuple(_bench(m, k, n) for n in (1, 8, 16) for m, k in _SHAPES)


# --- refused --------------------------------------------------------------------------------------


def _e4m3(inputs: Inputs) -> Inputs:
    return Inputs(torch.float8_e4m3fn, inputs.device)


ERRORS = (
    Bad(
        "int32",
        lambda i: (torch.ones(8, 8, dtype=torch.int32, device=i.device), *call(i, 8, 8)[1:]),
        r"gemv_scaled: expected a to be a floating-point or int8 tensor, got torch\.int32",
    ),
    Bad(
        "1-D a",
        lambda i: (weights(i, 8), *call(i, 8, 8)[1:]),
        r"gemv_scaled: expected a to be 2-D, got shape \(8,\)",
    ),
    Bad(
        "integer x",
        lambda i: (weights(i, 8, 8), torch.ones(8, device=i.device).int(), scales(i, 8)),
        r"gemv_scaled: expected x to be a floating-point tensor, got torch\.int32",
    ),
    Bad(
        "fp8 x",
        lambda i: (weights(i, 8, 8), values(i, 8).to(torch.float8_e5m2), scales(i, 8)),
        r"gemv_scaled: expected x to have at least 16 bits an element, got torch\.float8_e5m2",
    ),
    Bad(
        "another length",
        lambda i: (weights(i, 4, 8), values(i, 4), scales(i, 4)),
        r"gemv_scaled: expected x to have 8 values in its last dimension, .*, got shape \(4,\)",
    ),
    Bad(
        "too many vectors",
        lambda i: call(i, 4, 8, 17),
        r"gemv_scaled: expected x to have at most 16 rows, got 17",
    ),
    Bad(
        "half scales",
        lambda i: (*call(i, 4, 8)[:2], scales(i, 4).half()),
        r"gemv_scaled: expected scale to have dtype torch\.float32, got torch\.float16",
    ),
    Bad(
        "scales per column",
        lambda i: (*call(i, 4, 8)[:2], scales(i, 8)),
        r"gemv_scaled: expected scale to have shape \(\) or \(4,\), .*, got \(8,\)",
    ),
    Bad(
        "scale on the CPU",
        lambda i: (*call(i, 4, 8)[:2], torch.ones(4)),
        r"gemv_scaled: expected scale to be on cuda:\d+ like a, got cpu",
        cuda_only=True,
    ),
    Bad(
        "pack, misaligned",
        lambda i: (_misaligned(_e4m3(i), 4, 16), values(i, 16), scales(i, 4)),
        r"gemv_scaled.*: .*needs rows aligned to 16 bytes",
        variant="e4m3x16_pack_f32",
    ),
    Bad(
        "skinny, x of f32",
        lambda i: call(_e4m3(i), 4, 16, 3, torch.float32),
        r"gemv_scaled.*: .*needs x of 16 bits",
        variant="e4m3x16_pack_skinny_f32",
    ),
)


# --- properties -----------------------------------------------------------------------------------


def deterministic(function: Callable[..., Any], inputs: Inputs) -> None:
    for m, k, vectors in ((200, 32768, 0), (96, 16384, 5)):
        args = call(inputs, m, k, vectors)
        first = function(*args)
        for _ in range(RUNS - 1):
            assert torch.equal(function(*args), first), "two runs of one call differ"


def whole_numbers(function: Callable[..., Any], inputs: Inputs) -> None:
    """Products of small whole numbers add up exactly, so that only the result is rounded."""
    generator = torch.Generator(device=inputs.device).manual_seed(inputs.seed)
    for m, k, vectors, dtype in (
        (67, 4112, 3, _HALF),
        (130, 8208, 1, _WIDE),
        (35, 1040, 11, _BF16),
    ):
        shape = (m + vectors, k)
        drawn = torch.randint(-2, 4, shape, generator=generator, device=inputs.device).double()
        a, x = drawn[:m], drawn[m:]
        one = torch.ones((), device=inputs.device)
        out = function(a.to(inputs.dtype), x.to(dtype), one)
        assert torch.equal(out, (x @ a.t()).to(dtype)), f"{m}x{k}, {vectors} vectors"


def powers_of_two(function: Callable[..., Any], inputs: Inputs) -> None:
    """They change exponents only, however the sum was reached."""
    a, x, _ = call(inputs, 70, 1040, 4, torch.float32)
    one = torch.ones((), device=inputs.device)
    scale = torch.exp2(torch.arange(70, device=inputs.device) % 9 - 4.0)
    assert torch.equal(function(a, x, scale), function(a, x, one) * scale)
