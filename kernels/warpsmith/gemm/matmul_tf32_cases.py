"""Calls on which products of TF32 are tested and measured."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.gemm import matmul_cases
from warpsmith.gemm.matmul_cases import LADDER, Function, left, right

OP = "matmul_tf32"


def round_to_tf32(x: Tensor) -> Tensor:
    """The f32 values of x rounded to 10 bits of mantissa, to nearest, ties away from zero.

    Infinities and NaN stay. Half of what the 13 bits below are worth is added to the bits, and the
    bits are cut off; a carry into the exponent is as it should be, up to infinity.
    """
    single = x.to(torch.float32)
    bits = (single.view(torch.int32) + 0x1000) & -0x2000
    return torch.where(single.isfinite(), bits.view(torch.float32), single).to(x.dtype)


def _filled(inputs: Inputs, shape: tuple[int, int], bits: tuple[int, ...]) -> Tensor:
    """Values of these bits, in turn."""
    signed = [b - (1 << 32) if b >> 31 else b for b in bits]
    values = torch.tensor(signed, dtype=torch.int32).view(torch.float32)
    count = math.prod(shape)
    repeated = values.repeat(-(-count // len(bits)))[:count]
    return repeated.view(shape).to(inputs.device, inputs.dtype)


#: Halfway between two values of TF32, and the values of f32 beside these; of either sign.
_TIES = (
    0x3F801000,
    0x3F800FFF,
    0x3F801001,
    0x3F803000,
    0xBF801000,
    0xBF800FFF,
    0x3FFFF000,
    0xBFFFF001,
)
#: NaN that only the bits which TF32 keeps tell from infinity, or only the sign from an overflow.
_NANS = (0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFC00000, 0x7FFFF000)


def _nans(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """In one row of a and one column of b each."""
    a, b = inputs.plain(40, 24), inputs.plain(24, 36, salt=1)
    values = _filled(inputs, (len(_NANS), 1), _NANS)[:, 0]
    for i, value in enumerate(values):
        a[7 * i, 5 * i % 24] = value
        b[(3 * i + 1) % 24, 7 * i] = value
    return a, b


def _extremes(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """What rounds up to infinity, what does not, and subnormal numbers."""
    bits = (0x7F7FFFFF, 0x7F7FEFFF, 0x00400000, 0x80012345, 0x00800FFF, 0x3F800000)
    return torch.diag(_filled(inputs, (1, 24), bits)[0]), torch.eye(
        24, 20, device=inputs.device
    ).to(inputs.dtype)


def _long(m: int, n: int, k: int) -> Sample:
    return Sample(
        f"{m}x{n}x{k} plain", lambda i: (i.plain(m, k), i.plain(k, n, salt=1)), small=False
    )


def samples() -> tuple[Sample, ...]:
    shared = (s for s in matmul_cases.samples() if s.dtypes is None or "f32" in s.dtypes)
    return (
        *shared,
        Sample("ties", lambda i: (_filled(i, (33, 40), _TIES), _filled(i, (40, 24), _TIES[::-1]))),
        Sample("NaN of any bits", _nans),
        Sample("extremes", _extremes),
        Sample(
            "ones", lambda i: (_filled(i, (9, 5000), (0x3F800000,)), right(i, 5000, 7)), small=False
        ),
        _long(64, 48, 8192),
        _long(100, 4, 65536),
        Sample(
            "NT, misaligned by one of two",
            lambda i: (left(i, 72, 64).t(), i.misaligned(72, 40, salt=1)),
        ),
        Sample(
            "past 2^31 elements of a",
            lambda i: (i.plain(70000, 32768), i.plain(32768, 8, salt=1)),
            small=False,
            huge=True,
        ),
        Sample(
            "past 2^31 elements of the product",
            lambda i: (i.plain(50000, 16), i.plain(16, 50000, salt=1)),
            small=False,
            huge=True,
        ),
    )


def errors() -> tuple[Bad, ...]:
    return (
        *matmul_cases.errors(OP),
        Bad(
            "16 bits",
            lambda i: (i.randn(3, 3).half(), i.randn(3, 3).half()),
            rf"{OP}: expected a to have dtype torch.float32, got torch.float16",
        ),
    )


# --- mathematical facts ---------------------------------------------------------------------------


def _without_ties(x: Tensor) -> Tensor:
    """f32 values of which none lies halfway between two of TF32: rungs differ in how those go."""
    bits = x.view(torch.int32)
    return torch.where((bits & 0x1FFF) == 0x1000, bits ^ 1, bits).view(torch.float32)


def rounds_operands(matmul: Function, inputs: Inputs) -> None:
    """Of each row only one product is not zero: what comes out is what was rounded."""
    x = _without_ties(inputs.randn(129, 65))
    one = torch.eye(65, dtype=x.dtype, device=x.device)
    assert torch.equal(matmul(x, one), round_to_tf32(x))
    assert torch.equal(matmul(x.t()[:, :65].contiguous(), one), round_to_tf32(x.t()[:, :65]))


def ignores_what_it_cuts_off(matmul: Function, inputs: Inputs) -> None:
    """Operands that are rounded already give the same bits."""
    a = _without_ties(inputs.randn(70, 90))
    b = _without_ties(inputs.randn(90, 50, salt=1))
    assert torch.equal(matmul(a, b), matmul(round_to_tf32(a), round_to_tf32(b)))


# --- benchmarks -----------------------------------------------------------------------------------


def _case(m: int, n: int, k: int, layout: str) -> Sample:
    def make(i: Inputs) -> tuple[Any, ...]:
        b = i.plain(n, k, salt=1).t() if layout == "TN" else i.plain(k, n, salt=1)
        return i.plain(m, k), b

    ladder = m == n == k and m in LADDER
    return Sample(f"{m}x{n}x{k} {layout}", make, small=False, ladder=ladder)


def bench() -> tuple[Sample, ...]:
    cubes = (1024, 2048, 4096, 8192)
    return (
        *(_case(n, n, n, layout) for n in cubes for layout in ("NN", "TN")),
        _case(1000, 1000, 1000, "NN"),
        _case(4097, 5000, 3001, "NN"),
        _case(128, 4096, 4096, "TN"),
        _case(256, 256, 65536, "NN"),
    )
