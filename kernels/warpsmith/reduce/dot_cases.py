"""Calls on which dot is tested and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.reduce.reduce_sum_cases import CHUNKS, SEVERAL_TILES, edges


def vectors(n: int, *, small: bool = True) -> Sample:
    return Sample(str(n), lambda i: (i.randn(n), i.randn(n, salt=1)), small=small)


def samples() -> tuple[Sample, ...]:
    return (
        *(vectors(n) for n in (1, 2, 3, 63, 1000, 1023, 4096, 12345, 16384, 16401)),
        *(vectors(n, small=False) for n in (65537, 1_000_003)),
        Sample("empty", lambda i: (i.randn(0), i.randn(0))),
        Sample("with itself", lambda i: (i.randn(999),) * 2),
        Sample("every second", lambda i: (i.randn(2001)[::2], i.randn(1001, salt=1))),
        Sample("both strided", lambda i: (i.randn(3000)[::3], i.randn(1000, 3, salt=1)[:, 1])),
        Sample("expanded", lambda i: (i.randn(1).expand(777), i.randn(777, salt=1))),
        *(_misaligned(4099, offset, offset) for offset in (1, 2, 5)),
        *(_misaligned(4099, *offsets) for offsets in ((0, 1), (1, 0), (2, 4), (1, 3), (3, 5))),
        _misaligned(5, 3, 3),
        _misaligned(1_000_003, 1, 1, small=False),
        _misaligned(1_000_003, 1, 2, small=False),
        Sample(
            "several tiles a block",
            lambda i: _two(i, SEVERAL_TILES // 2 // i.dtype.itemsize),
            small=False,
        ),
        Sample(
            "a chunk a block",
            lambda i: _two(i, CHUNKS // 2 // i.dtype.itemsize),
            small=False,
            huge=True,
        ),
        Sample(
            "scaled by 100",
            lambda i: (i.plain(9700, scale=100.0), i.plain(9700, scale=1e-2, salt=1)),
        ),
        Sample("squares beyond f16", lambda i: (i.plain(500, scale=1e3),) * 2),
        Sample("single outlier", lambda i: (_single_outlier(i), i.plain(4097, salt=1))),
        Sample("nan", lambda i: (_nan(i), i.plain(4097, salt=1))),
        Sample("zero times infinity", lambda i: (_infinite(i), i.plain(4097, salt=1) * 0)),
        Sample(
            "past 2^31 elements",
            lambda i: (_edges(i), torch.ones_like(_edges(i))),
            small=False,
            huge=True,
            dtypes=("f32", "f16", "bf16"),
        ),
    )


def _two(inputs: Inputs, n: int) -> tuple[Tensor, Tensor]:
    return inputs.randn(n), inputs.randn(n, salt=1)


def _shifted(inputs: Inputs, n: int, x: int, y: int) -> tuple[Tensor, Tensor]:
    return inputs.misaligned(n, offset=x), inputs.misaligned(n, offset=y, salt=1)


def _misaligned(n: int, x: int, y: int, *, small: bool = True) -> Sample:
    label = f"{n}, misaligned by {x} and {y}"
    return Sample(label, lambda i: _shifted(i, n, x, y), small=small)


def _single_outlier(inputs: Inputs) -> Tensor:
    x = inputs.plain(4097)
    x[1234] = 20000.0
    return x


def _nan(inputs: Inputs) -> Tensor:
    x = inputs.plain(4097)
    x[4096] = float("nan")
    return x


def _infinite(inputs: Inputs) -> Tensor:
    x = inputs.plain(4097)
    x[77] = float("inf")
    return x


def _edges(inputs: Inputs) -> Tensor:
    return edges(inputs, (1 << 31) + 4099)


def _bench(label: str, n: int) -> Sample:
    return Sample(label, lambda i: (i.plain(n), i.plain(n, salt=1)), small=False)


BENCH = (_bench("1Mi", 1 << 20), _bench("64Mi", 64 << 20), _bench("1Gi", 1 << 30))

ERRORS = (
    Bad(
        "integers",
        lambda i: (torch.ones(8, dtype=torch.int32, device=i.device),) * 2,
        r"dot: expected x to be a floating-point tensor, got torch\.int32",
    ),
    Bad(
        "fp8",
        lambda i: (i.randn(8).to(torch.float8_e4m3fn),) * 2,
        r"dot: expected x to have at least 16 bits an element, got torch\.float8_e4m3fn",
    ),
    Bad(
        "matrix",
        lambda i: (i.randn(2, 8), i.randn(2, 8)),
        r"dot: expected x to be 1-D, got shape \(2, 8\)",
    ),
    Bad(
        "0-d",
        lambda i: (i.randn(), i.randn()),
        r"dot: expected x to be 1-D, got shape \(\)",
    ),
    Bad(
        "another length",
        lambda i: (i.randn(8), i.randn(7)),
        r"dot: expected y to have shape \(8,\) like x, got \(7,\)",
    ),
    Bad(
        "length 1",
        lambda i: (i.randn(8), i.randn(1)),
        r"dot: expected y to have shape \(8,\) like x, got \(1,\)",
    ),
    Bad(
        "another dtype",
        lambda i: (i.randn(8), i.randn(8).double()),
        r"dot: expected y to have dtype torch\.\w+ like x, got torch\.float64",
    ),
    Bad(
        "y on the CPU",
        lambda i: (i.randn(8), torch.ones(8, dtype=i.dtype)),
        r"dot: expected y to be on cuda:\d+ like x, got cpu",
        cuda_only=True,
    ),
    Bad(
        "pack, not aligned alike",
        lambda i: _shifted(Inputs(torch.float32, i.device), 64, 1, 2),
        r"dot.*: .*needs x and y aligned alike to 16 bytes",
        variant="f32x4_pack",
    ),
)


# --- properties -----------------------------------------------------------------------------------


def whole_numbers(function: Callable[..., Any], inputs: Inputs) -> None:
    """Products of small whole numbers add up exactly, so that only the result is rounded."""
    generator = torch.Generator(device=inputs.device).manual_seed(inputs.seed)
    x, y = torch.randint(-2, 4, (2, 40_003), generator=generator, device=inputs.device)
    out = function(x.to(inputs.dtype), y.to(inputs.dtype))
    wanted = (x * y).sum()
    assert torch.equal(out, wanted.to(out.dtype)), f"{out.item()} instead of {wanted.item()}"


def symmetric(function: Callable[..., Any], inputs: Inputs) -> None:
    x, y = _two(inputs, 12345)
    assert torch.equal(function(x, y), function(y, x))
