"""Calls on which reduce_sum is tested and measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import FLOATS, FP8, Bad, Inputs, Sample

#: Bytes that give every block of the peak rung several tiles on any GPU up to 132 multiprocessors.
SEVERAL_TILES = 40_000_003
#: And so many that each block takes tiles that lie one after another.
CHUNKS = 100_000_003
#: Places of values around which 32-bit indices break.
_EDGES = (0, (1 << 30) - 1, (1 << 31) - 1, 1 << 31, -1)


def vector(n: int, *, small: bool = True) -> Sample:
    return Sample(str(n), lambda i: (i.randn(n),), small=small)


def _misaligned(n: int, offset: int, *, small: bool = True) -> Sample:
    return Sample(
        f"{n}, misaligned by {offset}", lambda i: (i.misaligned(n, offset=offset),), small=small
    )


def samples() -> tuple[Sample, ...]:
    return (
        *(vector(n) for n in (1, 3, 63, 1000, 1023, 4096, 12345, 16384, 16401)),
        *(vector(n, small=False) for n in (65537, 1_000_003, 2_000_003)),
        Sample("0-d", lambda i: (i.randn(),)),
        Sample("37x129", lambda i: (i.randn(37, 129),)),
        Sample("5x7x11", lambda i: (i.randn(5, 7, 11),)),
        Sample("empty", lambda i: (i.randn(0),)),
        Sample("empty rows", lambda i: (i.randn(3, 0, 5),)),
        Sample("transposed", lambda i: (i.randn(64, 24).t(),)),
        Sample("permuted", lambda i: (i.randn(3, 5, 7, 9).permute(2, 0, 3, 1),)),
        Sample("row stride", lambda i: (i.randn(9, 320)[:, :257],)),
        Sample("every second", lambda i: (i.randn(2001)[::2],)),
        Sample("expanded", lambda i: (i.randn(1, 65).expand(17, 65),)),
        *(_misaligned(4099, offset) for offset in (1, 2, 5, 15)),
        *(_misaligned(n, 3) for n in (1, 7, 20)),
        _misaligned(150_001, 1, small=False),
        Sample("transposed, large", lambda i: (i.randn(1000, 999).t(),), small=False),
        Sample("row stride, large", lambda i: (i.randn(999, 1003)[:, :1000],), small=False),
        Sample(
            "several tiles a block",
            # Without outliers of one sign, which would carry f16 beyond its range.
            lambda i: (i.plain(SEVERAL_TILES // i.dtype.itemsize),),
            small=False,
        ),
        Sample(
            "a chunk a block",
            lambda i: (i.plain(CHUNKS // i.dtype.itemsize),),
            small=False,
            huge=True,
        ),
        Sample("scaled by 100", lambda i: (i.plain(97, 100, scale=100.0),), dtypes=FLOATS),
        Sample("small values", lambda i: (i.plain(97, 100, scale=1e-3),), dtypes=FLOATS),
        Sample(
            "small values, large",
            lambda i: (i.plain(1000, 1000, scale=1e-2),),
            small=False,
            dtypes=(*FLOATS, *FP8),
        ),
        Sample("single outlier", lambda i: (_single_outlier(i),), dtypes=(*FLOATS, "e5m2")),
        Sample("nan", lambda i: (_special(i, math.nan),), dtypes=(*FLOATS, *FP8)),
        Sample("infinity", lambda i: (_special(i, math.inf),), dtypes=(*FLOATS, "e5m2")),
        Sample("opposite infinities", lambda i: (_opposite(i),), dtypes=(*FLOATS, "e5m2")),
        Sample("past int32", lambda i: (_largest(i, 1000),), dtypes=("i32",)),
        Sample("past int32, i8", lambda i: (_largest(i, 20_000_003),), small=False, dtypes=("i8",)),
        Sample(
            "past 2^31 elements",
            lambda i: (_edges(i),),
            small=False,
            huge=True,
            dtypes=("f32", "bf16", "e4m3", "i8", "i32"),
        ),
    )


def _single_outlier(inputs: Inputs) -> Tensor:
    x = inputs.plain(4097)
    x[1234] = 20000.0
    return x


def _special(inputs: Inputs, value: float) -> Tensor:
    x = inputs.plain(4097)
    x[4096] = value
    return x


def _opposite(inputs: Inputs) -> Tensor:
    x = inputs.plain(4097)
    x[0], x[3000] = math.inf, -math.inf
    return x


def _largest(inputs: Inputs, n: int) -> Tensor:
    most = torch.iinfo(inputs.dtype).max
    return torch.full((n,), most, dtype=inputs.dtype, device=inputs.device)


def edges(inputs: Inputs, n: int) -> Tensor:
    """Zeros with a few values where an index that wraps would miss them or find them twice."""
    x = torch.zeros(n, dtype=inputs.dtype, device=inputs.device)
    for value, place in zip((1, 2, 4, 8, 16), _EDGES, strict=True):
        x[place] = value
    return x


def _edges(inputs: Inputs) -> Tensor:
    return edges(inputs, (1 << 31) + 4099)


BENCH = (
    Sample("1Mi", lambda i: (i.plain(1 << 20),), small=False),
    Sample("64Mi", lambda i: (i.plain(64 << 20),), small=False),
    Sample("1Gi", lambda i: (i.plain(1 << 30),), small=False),
)

ERRORS = (
    Bad(
        "variant of another dtype",
        lambda i: (Inputs(torch.float32, i.device).randn(8),),
        r"reduce_sum_bf16_f32: takes bf16, got f32",
        variant="bf16_f32",
    ),
    Bad(
        "variant without a kernel for int64",
        lambda i: (torch.ones(8, dtype=torch.int64, device=i.device),),
        r"reduce_sum_i32x4_pack_i64: takes i32, got torch\.int64",
        variant="i32x4_pack_i64",
    ),
)


# --- properties -----------------------------------------------------------------------------------


def whole_numbers(function: Callable[..., Any], inputs: Inputs) -> None:
    """Small whole numbers add up exactly, so that only the result is rounded."""
    generator = torch.Generator(device=inputs.device).manual_seed(inputs.seed)
    x = torch.randint(-2, 4, (40_003,), generator=generator, device=inputs.device)
    out = function(x.to(inputs.dtype))
    assert torch.equal(out, x.sum().to(out.dtype)), f"{out.item()} instead of {x.sum().item()}"


def layout_free(function: Callable[..., Any], inputs: Inputs) -> None:
    """The order of dimensions is none of a sum's business."""
    generator = torch.Generator(device=inputs.device).manual_seed(inputs.seed)
    x = torch.randint(-2, 4, (30, 40, 50), generator=generator, device=inputs.device)
    x = x.to(inputs.dtype)
    whole = function(x)
    for view in (x.permute(2, 0, 1), x.transpose(0, 1), x.view(-1), x.permute(1, 2, 0)):
        assert torch.equal(function(view), whole)
