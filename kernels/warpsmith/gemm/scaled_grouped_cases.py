"""Calls on which products of groups of fp8 rows are tested and measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.gemm.grouped_cases import MODELS, SKEWS, ends, shares
from warpsmith.gemm.scaled_matmul_cases import scales
from warpsmith.spec.spoilt import Spoiler

Call = tuple[Any, ...]
Function = Callable[..., Any]


def call(
    i: Inputs,
    sizes: Sequence[int],
    n: int,
    k: int,
    *,
    out: str = "bf16",
    other: bool = False,
    rows: bool = False,
    fast: bool = False,
) -> Call:
    """`other`: w is of the other format; `rows`: it is row-major."""
    groups, m = len(sizes), sum(sizes)
    formats = (torch.float8_e4m3fn, torch.float8_e5m2)
    of_w = Inputs(formats[i.dtype == formats[0]], i.device, i.seed) if other else i
    w = of_w.plain(groups, k, n, salt=1) if rows else of_w.plain(groups, n, k, salt=1).mT
    scale_x, scale_w = scales(i, m), scales(i, groups, n, salt=3)
    return i.randn(m, k), w, ends(i, *sizes), scale_x, scale_w, out, fast


def _sample(sizes: Sequence[int], n: int, k: int, *, small: bool = True, **options: Any) -> Sample:
    said = "".join(f", {name} {value}" for name, value in options.items())
    label = f"{sum(sizes)} in {len(sizes)}, {n}x{k}{said}"
    return Sample(label, lambda i: call(i, sizes, n, k, **options), small=small)


def _strided(i: Inputs) -> Call:
    """Parts of tensors, scales in columns."""
    x, w, offsets, scale_x, scale_w, out, fast = call(i, (20, 0, 13), 24, 64)
    wide = torch.stack((scale_x, scale_x), 1)
    x = i.randn(33, 96)[:, :64]
    return x, w, offsets, wide[:, 0], scale_w.t().contiguous().t(), out, fast


def _nonfinite(i: Inputs) -> Call:
    """e4m3 has a NaN, e5m2 infinities too."""
    x, w, *rest = call(i, (20, 13), 24, 64)
    x.view(torch.uint8)[20, 7] = 0x7C if i.dtype == torch.float8_e5m2 else 0x7F
    w.mT.view(torch.uint8)[1, 5, 63] = 0xFF
    return x, w, *rest


def samples() -> tuple[Sample, ...]:
    return (
        _sample((1,), 1, 1),
        _sample((7, 0, 9), 16, 33, out="f16"),
        _sample((0, 33, 2, 0), 40, 144),
        _sample((130, 0, 3), 136, 272),
        _sample((16,) * 8, 24, 48, out="f16"),
        _sample((40, 25), 72, 128, other=True),
        _sample((40, 25), 72, 400, fast=True),
        _sample((40, 25), 24, 80, rows=True),
        _sample((5, 8), 24, 80, out="f32"),
        _sample((0, 128, 129, 0), 264, 400, small=False),
        _sample((300, 1, 99), 200, 528, small=False, other=True),
        _sample((300, 1, 99), 520, 528, small=False, fast=True),
        _sample((3, 2, 0, 1) * 20, 264, 1040, small=False),
        Sample("parts of tensors", _strided),
        Sample("nan and infinities", _nonfinite),
        Sample(
            "x column-major",
            lambda i: (i.randn(64, 13).t(), *call(i, (4, 9), 24, 64)[1:]),
        ),
        _sample((0, 0), 8, 16),
        _sample((3, 5), 0, 16),
        _sample((3, 5), 8, 0),
    )


_spoilt = Spoiler(
    "scaled_grouped_matmul",
    lambda i: {
        "x": i.randn(6, 16),
        "w": i.randn(2, 16, 8),
        "offsets": ends(i, 2, 4),
        "scale_x": scales(i, 6),
        "scale_w": scales(i, 2, 8),
    },
)

ERRORS: tuple[Bad, ...] = (
    _spoilt(
        "x in f32",
        r"expected x to be an fp8 tensor, got torch\.float32",
        x=lambda i: torch.ones(6, 16, device=i.device),
    ),
    _spoilt("1-D x", r"expected x to be 2-D, got shape \(16,\)", x=lambda i: i.randn(16)),
    _spoilt("2-D w", r"expected w to be 3-D, got shape \(16, 8\)", w=lambda i: i.randn(16, 8)),
    _spoilt(
        "shapes",
        r"cannot multiply shapes \(6, 16\) and \(2, 32, 8\)",
        w=lambda i: i.randn(2, 32, 8),
    ),
    _spoilt(
        "offsets in int64",
        r"expected offsets to have dtype torch\.int32, got torch\.int64",
        offsets=lambda i: ends(i, 2, 4).long(),
    ),
    _spoilt(
        "too many offsets",
        r"expected offsets to have shape \(2,\), one end per matrix of w, got \(3,\)",
        offsets=lambda i: ends(i, 2, 2, 2),
    ),
    _spoilt(
        "scale_x of another length",
        r"expected scale_x to have shape \(6,\), one value per row of x, got \(7,\)",
        scale_x=lambda i: scales(i, 7),
    ),
    _spoilt(
        "1-D scale_w",
        r"expected scale_w to have shape \(2, 8\), one value per column of each matrix of w, "
        r"got \(8,\)",
        scale_w=lambda i: scales(i, 8),
    ),
    _spoilt(
        "scale_w in f64",
        r"expected scale_w to have dtype torch\.float32, got torch\.float64",
        scale_w=lambda i: scales(i, 2, 8).double(),
    ),
    _spoilt(
        "w in f64, scales in f32",
        r"expected scale_x to have dtype torch\.float64, got torch\.float32",
        w=lambda i: torch.ones(2, 16, 8, dtype=torch.float64, device=i.device),
    ),
    _spoilt(
        "no such dtype",
        r"expected out_dtype to be 'f16', 'bf16' or 'f32', got 'f8'",
        out_dtype="f8",
    ),
)


# --- mathematical facts ---------------------------------------------------------------------------


def whole_numbers(scaled_grouped_matmul: Function, inputs: Inputs) -> None:
    """Sums of small integers are exact; groups of every length about that of a tile."""
    generator = torch.Generator().manual_seed(inputs.seed)
    sizes = (1, 31, 32, 33, 0, 63, 64, 65, 127, 128, 129, 0, 2)
    total, groups = sum(sizes), len(sizes)

    def drawn(*shape: int) -> Tensor:
        made = torch.randint(-2, 3, shape, generator=generator)
        return made.to(inputs.device, torch.float32).to(inputs.dtype)

    x, w = drawn(total, 160), drawn(groups, 136, 160).mT
    ones = torch.ones(max(total, groups * 136), device=inputs.device)
    scale_x, scale_w = ones[:total], ones[: groups * 136].view(groups, 136)
    y = scaled_grouped_matmul(x, w, ends(inputs, *sizes), scale_x, scale_w, "f16")
    first = 0
    for group, size in enumerate(sizes):
        rows = slice(first, first + size)
        exact = (x[rows].double() @ w[group].double()).half()
        assert torch.equal(y[rows], exact), f"group {group} of {size} rows"
        first += size


def rows_of_no_group(scaled_grouped_matmul: Function, inputs: Inputs) -> None:
    """Rows past the last end do not matter to those before it."""
    x, w, offsets, scale_x, scale_w, *_ = call(inputs, (40, 0, 75), 72, 64)
    more = torch.cat((x.view(torch.uint8), torch.full((50, 64), 0x7F, device=x.device).byte()))
    longer = torch.cat((scale_x, torch.full_like(scale_x[:50], math.nan)))
    y = scaled_grouped_matmul(more.view(x.dtype), w, offsets, longer, scale_w)[:115]
    assert torch.equal(y, scaled_grouped_matmul(x, w, offsets, scale_x, scale_w))


# --- benchmarks -----------------------------------------------------------------------------------


def bench() -> tuple[Sample, ...]:
    def case(model: str, skew: str, n: int, k: int) -> Sample:
        rows, experts, *_ = MODELS[model]
        sizes = shares(rows, experts, SKEWS[skew])

        def make(i: Inputs) -> Call:
            w = i.plain(experts, n, k, salt=1).mT
            of = scales(i, rows), scales(i, experts, n, salt=3)
            return i.plain(rows, k), w, ends(i, *sizes), *of, "bf16"

        return Sample(f"{model} {skew} {rows}x{n}x{k} in {experts}", make, small=False)

    return tuple(
        case(model, skew, *nk) for model in MODELS for skew in SKEWS for nk in MODELS[model][2:]
    )


def scaled_grouped_mm(
    x: Tensor,
    w: Tensor,
    offsets: Tensor,
    scale_x: Tensor,
    scale_w: Tensor,
    out: str = "bf16",
    fast_accum: bool = False,
) -> Tensor:
    """PyTorch's own, which gives bf16."""
    if out != "bf16":
        raise NotImplementedError("torch._scaled_grouped_mm gives bf16")
    return torch._scaled_grouped_mm(
        x,
        w,
        scale_x,
        scale_w,
        offs=offsets,
        out_dtype=torch.bfloat16,
        use_fast_accum=fast_accum,
    )
