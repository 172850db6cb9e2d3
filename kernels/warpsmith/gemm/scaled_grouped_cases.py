"""Calls on which products of groups of fp8 values are tested and measured."""

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
    of_w = _other_format(i) if other else i
    w = of_w.plain(groups, k, n, salt=1) if rows else of_w.plain(groups, n, k, salt=1).mT
    scale_x, scale_w = scales(i, m), scales(i, groups, n, salt=3)
    return i.randn(m, k), w, ends(i, *sizes), scale_x, scale_w, out, fast


def _other_format(i: Inputs) -> Inputs:
    formats = (torch.float8_e4m3fn, torch.float8_e5m2)
    return Inputs(formats[i.dtype == formats[0]], i.device, i.seed)


def along_k(
    i: Inputs,
    sizes: Sequence[int],
    m: int,
    n: int,
    *,
    room: int = 0,
    out: str = "bf16",
    other: bool = False,
    fast: bool = False,
) -> Call:
    """x row-major and w column-major, stored by features as tensor cores read them. `room`: values
    of k behind the last group, so that lines may be whole packs.
    """
    groups, k = len(sizes), sum(sizes) + room
    w = (_other_format(i) if other else i).randn(n, k, salt=1).t()
    scale_x, scale_w = scales(i, groups, m), scales(i, groups, n, salt=3)
    return i.randn(m, k), w, ends(i, *sizes), scale_x, scale_w, out, fast


def _along_k(sizes: Sequence[int], m: int, n: int, *, small: bool = True, **options: Any) -> Sample:
    said = "".join(f", {name} {value}" for name, value in options.items())
    label = f"along k {sum(sizes)} in {len(sizes)}, {m}x{n}{said}"
    return Sample(label, lambda i: along_k(i, sizes, m, n, **options), small=small)


def _sample(sizes: Sequence[int], n: int, k: int, *, small: bool = True, **options: Any) -> Sample:
    said = "".join(f", {name} {value}" for name, value in options.items())
    label = f"{sum(sizes)} in {len(sizes)}, {n}x{k}{said}"
    return Sample(label, lambda i: call(i, sizes, n, k, **options), small=small)


def _strided(i: Inputs) -> Call:
    """Parts of tensors, scales in columns."""
    x, w, offs, scale_x, scale_w, out, fast = call(i, (20, 0, 13), 24, 64)
    wide = torch.stack((scale_x, scale_x), 1)
    x = i.randn(33, 96)[:, :64]
    return x, w, offs, wide[:, 0], scale_w.t().contiguous().t(), out, fast


def _nonfinite(i: Inputs) -> Call:
    """e4m3 has a NaN, e5m2 infinities too."""
    x, w, *rest = call(i, (20, 13), 24, 64)
    x.view(torch.uint8)[20, 7] = 0x7C if i.dtype == torch.float8_e5m2 else 0x7F
    w.mT.view(torch.uint8)[1, 5, 63] = 0xFF
    return x, w, *rest


def _nonfinite_along_k(i: Inputs) -> Call:
    """In the first and the last value of a group, and past the last group."""
    x, w, *rest = along_k(i, (37, 20, 43), 24, 40, room=12)
    nan = 0x7C if i.dtype == torch.float8_e5m2 else 0x7F
    x.view(torch.uint8)[3, 37] = x.view(torch.uint8)[:, 100:] = nan
    w.t().view(torch.uint8)[9, 56] = w.t().view(torch.uint8)[:, 100:] = nan
    return x, w, *rest


def _scales_of_nothing(i: Inputs) -> Call:
    """A group without values of k is zeros, whatever its scales."""
    x, w, offs, scale_x, scale_w, *rest = along_k(i, (37, 0, 20), 24, 40)
    scale_x[1, 2], scale_w[1, 3] = float("nan"), float("inf")
    return x, w, offs, scale_x, scale_w, *rest


def _along_k_by_tokens(i: Inputs) -> Call:
    """As tokens lie: both have to be copied."""
    x, w, *rest = along_k(i, (9, 20, 3), 24, 40)
    return x.t().contiguous().t(), w.contiguous(), *rest


def _along_k_strided(i: Inputs) -> Call:
    """Parts of tensors, scales in columns."""
    x, w, offs, scale_x, scale_w, *rest = along_k(i, (20, 0, 12), 24, 40)
    x, w = i.randn(24, 96)[:, 16:48], i.randn(40, 64, salt=1)[:, :32].t()
    return x, w, offs, scale_x.t().contiguous().t(), scale_w.t().contiguous().t(), *rest


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
        _along_k((1,), 1, 1),
        _along_k((7, 0, 9), 16, 33, out="f32"),
        _along_k((63, 65, 64, 0), 72, 24),
        _along_k((3, 2, 0, 1, 0, 9), 130, 200, room=1),
        _along_k((0, 129, 127), 136, 40, out="f16", other=True),
        _along_k((200, 8), 24, 200, fast=True),
        _along_k((700, 1, 0, 299), 392, 528, room=24, small=False),
        _along_k((257, 15, 512), 136, 264, small=False, other=True),
        Sample("along k, stored by tokens", _along_k_by_tokens),
        Sample("along k, parts of tensors", _along_k_strided),
        Sample("along k, nan and infinities", _nonfinite_along_k),
        Sample("along k, scales of an empty group", _scales_of_nothing),
        Sample("along k of 0", lambda i: along_k(i, (0, 0), 8, 16)),
        Sample("no groups along k", lambda i: along_k(i, (), 8, 16)),
        _sample((0, 0), 8, 16),
        _sample((3, 5), 0, 16),
        _sample((3, 5), 8, 0),
    )


_spoilt = Spoiler(
    "scaled_grouped_matmul",
    lambda i: {
        "x": i.randn(6, 16),
        "w": i.randn(2, 16, 8),
        "offs": ends(i, 2, 4),
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
    _spoilt("1-D w", r"expected w to be 2-D or 3-D, got shape \(8,\)", w=lambda i: i.randn(8)),
    _spoilt(
        "shapes",
        r"cannot multiply shapes \(6, 16\) and \(2, 32, 8\)",
        w=lambda i: i.randn(2, 32, 8),
    ),
    _spoilt(
        "offs in int64",
        r"expected offs to have dtype torch\.int32, got torch\.int64",
        offs=lambda i: ends(i, 2, 4).long(),
    ),
    _spoilt(
        "too many offs",
        r"expected offs to have shape \(2,\), one end per matrix of w, got \(3,\)",
        offs=lambda i: ends(i, 2, 2, 2),
    ),
    _spoilt(
        "scale_x of another length",
        r"expected scale_x to have shape \(6,\), one value per row of x, got \(7,\)",
        scale_x=lambda i: scales(i, 7),
    ),
    _spoilt(
        "scale_x of groups along k",
        r"expected scale_x to have shape \(2, 6\), one value per group and row of x, got \(6,\)",
        w=lambda i: i.randn(16, 8),
    ),
    _spoilt(
        "scale_w of groups along k",
        r"expected scale_w to have shape \(2, 8\), one value per group and column of w, "
        r"got \(1, 8\)",
        w=lambda i: i.randn(16, 8),
        scale_x=lambda i: scales(i, 2, 6),
        scale_w=lambda i: scales(i, 1, 8),
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


def whole_numbers_along_k(scaled_grouped_matmul: Function, inputs: Inputs) -> None:
    """Groups that begin and end at every place of a pack, what is past the last NaN."""
    generator = torch.Generator().manual_seed(inputs.seed)
    sizes = (1, 14, 2, 17, 0, 15, 33, 130, 127, 0, 3, 2)
    total, groups = sum(sizes), len(sizes)

    def drawn(lines: int) -> Tensor:
        made = torch.randint(-2, 3, (lines, total + 8), generator=generator).float()
        made[:, total:] = math.nan
        return made.to(inputs.device).to(inputs.dtype)

    x, w = drawn(72), drawn(136).t()
    scale_x, scale_w = (torch.ones(groups, of, device=inputs.device) for of in (72, 136))
    y = scaled_grouped_matmul(x, w, ends(inputs, *sizes), scale_x, scale_w, "f16")
    first = 0
    for group, size in enumerate(sizes):
        span = slice(first, first + size)
        exact = (x[:, span].double() @ w[span].double()).half()
        assert torch.equal(y[group], exact), f"group {group} of {size} values of k"
        first += size


def rows_of_no_group(scaled_grouped_matmul: Function, inputs: Inputs) -> None:
    """Rows past the last end do not matter to those before it."""
    x, w, offs, scale_x, scale_w, *_ = call(inputs, (40, 0, 75), 72, 64)
    more = torch.cat((x.view(torch.uint8), torch.full((50, 64), 0x7F, device=x.device).byte()))
    longer = torch.cat((scale_x, torch.full_like(scale_x[:50], math.nan)))
    y = scaled_grouped_matmul(more.view(x.dtype), w, offs, longer, scale_w)[:115]
    assert torch.equal(y, scaled_grouped_matmul(x, w, offs, scale_x, scale_w))


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

    def along(model: str, skew: str, m: int, n: int) -> Sample:
        rows, experts, *_ = MODELS[model]
        sizes = shares(rows, experts, SKEWS[skew])

        def make(i: Inputs) -> Call:
            of = scales(i, experts, m), scales(i, experts, n, salt=3)
            return i.plain(m, rows), i.plain(n, rows, salt=1).t(), ends(i, *sizes), *of, "bf16"

        label = f"{model} {skew} along k {m}x{n}x{rows} in {experts}"
        return Sample(label, make, small=False)

    return (
        *(case(model, skew, *nk) for model in MODELS for skew in SKEWS for nk in MODELS[model][2:]),
        *(along(model, skew, *MODELS[model][2]) for model in MODELS for skew in SKEWS),
    )


def scaled_grouped_mm(
    x: Tensor,
    w: Tensor,
    offs: Tensor,
    scale_x: Tensor,
    scale_w: Tensor,
    out_dtype: str = "bf16",
    fast_accum: bool = False,
) -> Tensor:
    """PyTorch's own, which gives bf16, and takes groups along k that are packs of 16 bytes."""
    if out_dtype != "bf16":
        raise NotImplementedError("torch._scaled_grouped_mm gives bf16")
    along_k = w.dim() == 2
    # where PyTorch's kernel asserts, the process loses its GPU; a capture has had its eager call
    if along_k and not torch.cuda.is_current_stream_capturing() and bool((offs % 16).any()):
        raise NotImplementedError("torch._scaled_grouped_mm takes groups of whole packs")
    return torch._scaled_grouped_mm(
        x,
        w,
        scale_x.reshape(-1) if along_k else scale_x,
        scale_w.reshape(-1) if along_k else scale_w,
        offs=offs,
        out_dtype=torch.bfloat16,
        use_fast_accum=fast_accum,
    )
