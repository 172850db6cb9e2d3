"""Calls on which the norms into fp8 are tested and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.norm.add_norm_cases import Pair, pair
from warpsmith.norm.calls import BENCH_SHAPES, HALVES, PAST_2_31, Sampler, benchmarks, plain, rows
from warpsmith.norm.norms import Norm
from warpsmith.spec.spoilt import Spoiler, Value

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def call(norm: Norm, i: Inputs, x: Tensor, residual: Tensor, **changes: Any) -> dict[str, Any]:
    """With a plain weight and bias."""
    cols = x.shape[-1]
    given = {
        "weight": i.randn(cols, salt=2),
        "bias": i.randn(cols, salt=3),
        "scale": None,
        "dtype": E4M3,
        "eps": norm.eps,
        "zero_centered": False,
    }
    return norm.given(x=x, residual=residual, **given | changes)


def _rounded(step: float) -> Callable[..., dict[str, Any]]:
    """The same. Sums of 8 bits need no rounding: where a mean or a bias cancels h, its rounding
    would be far more than that of y, and float64 has none.
    """

    def rounded(norm: Norm, i: Inputs, x: Tensor, residual: Tensor, **changes: Any) -> Any:
        if norm.source and norm.layer and residual.dtype == x.dtype:
            for t in (x, residual):
                t.div_(step).round_().mul_(step)
        return call(norm, i, x, residual, **changes)

    return rounded


def _scale(value: float) -> Callable[[Inputs], Tensor]:
    return lambda i: torch.full((1,), value, device=i.device)


# --- samples --------------------------------------------------------------------------------------

_SMALL = ((3, 1), (5, 3), (3, 7), (2, 63), (9, 64), (3, 256), (3, 1000), (2, 1023), (3, 1024))
_LARGE = (
    (199, 512), (2, 4096), (3, 8192), (3, 12345), (2, 16384), (3, 40000), (2, 131072), (1, 262144),
)  # fmt: skip


def _special(i: Inputs) -> Tensor:
    x = i.randn(5, 64)
    x[0, 3], x[1, 5], x[2, 7] = float("nan"), float("inf"), float("-inf")
    x[3] = 0.0
    return x


def _zero_row(i: Inputs) -> Tensor:
    residual = i.randn(5, 64, salt=1)
    residual[3] = 0.0
    return residual


def samples(norm: Norm) -> tuple[Sample, ...]:
    sample, raw = Sampler(norm, _rounded(0.25)), Sampler(norm, call)
    hundred: Pair = plain(3, 1000, scale=100.0), plain(3, 1000, scale=100.0, salt=1)
    found = [
        *sample.grid(_SMALL, pair, small=True),
        *sample.grid(_LARGE, pair, small=False),
        sample("many long rows", pair(300, 65536), small=False, huge=True),
        sample("e5m2", pair(3, 256), dtype=E5M2),
        sample("e5m2, odd", pair(3, 129), scale=_scale(3.0), dtype=E5M2),
        sample("e5m2, long", pair(3, 40000), small=False, scale=_scale(3.0), dtype=E5M2),
        sample("scale", pair(5, 256), scale=_scale(0.3)),
        sample("scale, odd", pair(5, 77), scale=_scale(0.3)),
        sample("scale, long", pair(3, 65536), small=False, scale=_scale(0.3)),
        sample("saturating", pair(5, 96), scale=_scale(400.0)),
        sample("saturating e5m2", pair(5, 96), scale=_scale(6e4), dtype=E5M2),
        sample("subnormal", pair(5, 96), scale=_scale(2.0**-7)),
        Sampler(norm, _rounded(4.0))("hundredfold", hundred, scale=_scale(2.0)),
        sample("no rows", pair(0, 16)),
        sample("no columns", pair(4, 0)),
        raw("no weight", pair(3, 128), weight=None, bias=None, scale=_scale(2.0)),
        sample("zero-centred", pair(3, 128), scale=_scale(2.0), zero_centered=True),
        raw("f32 weight", pair(3, 256), dtypes=HALVES, wide="weight"),
        sample("1-d", pair(768)),
        sample("3-d", pair(2, 5, 72)),
        sample(
            "row stride",
            (lambda i: i.randn(9, 80)[:, :64], lambda i: i.randn(9, 96, salt=1)[:, 32:]),
        ),
        sample("transposed", (lambda i: i.randn(64, 24).t(), rows(24, 64, salt=1))),
        raw(
            "misaligned",
            (lambda i: i.misaligned(5, 64), rows(5, 64, salt=1)),
            weight=lambda i: i.misaligned(64, salt=2),
            bias=lambda i: i.misaligned(64, offset=2, salt=3),
        ),
        sample("special", (_special, _zero_row)),
    ]
    if norm.layer:
        found += [
            raw("no bias", pair(7, 129), bias=None),
            raw("bias alone", pair(7, 129), weight=None),
        ]
    if norm.source:
        found += [
            sample("f32 residual", pair(5, 1024), True, HALVES, "residual"),
            sample("f32 residual, odd", pair(7, 129), True, HALVES, "residual"),
            sample("f32 residual, long", pair(3, 40000), False, HALVES, "residual"),
        ]
    elif not norm.layer:  # one of the four for all: their offsets are the same code
        found.append(sample.past_2_31("output past 2^31 elements", (plain(*PAST_2_31), plain(1))))
    return tuple(found)


def bench(norm: Norm) -> tuple[Sample, ...]:
    def make(i: Inputs, m: int, n: int) -> dict[str, Any]:
        affine = {"weight": i.plain(n, salt=2), "bias": i.plain(n, salt=3)}
        pair = i.plain(m, n), i.plain(m, n, salt=1)
        return call(norm, i, *pair, scale=_scale(16.0)(i), **affine)

    return benchmarks(make, [shape for shape in BENCH_SHAPES if 1024 <= shape[1] <= 32768])


# --- bad calls ------------------------------------------------------------------------------------


def errors(norm: Norm) -> tuple[Bad, ...]:
    def good(i: Inputs) -> dict[str, Any]:
        return call(norm, i, i.randn(2, 8), i.randn(2, 8, salt=1), weight=None, bias=None)

    def wrong_scale(label: str, got: str, scale: Value) -> Bad:
        message = rf"expected scale to be one torch\.float32 value, got shape {got}"
        return spoil(label, message, scale=scale)

    spoil = Spoiler(norm.name, good)
    halved = lambda i: _scale(1.0)(i).half()  # noqa: E731
    return (
        spoil.integers(),
        wrong_scale(
            "two scales", r"\(2,\) of torch\.float32", lambda i: torch.ones(2, device=i.device)
        ),
        wrong_scale("scale of another dtype", r"\(1,\) of torch\.float16", halved),
        spoil(
            "another dtype",
            r"expected dtype to be torch\.float8_e4m3fn or torch\.float8_e5m2, got torch\.float16",
            dtype=torch.float16,
        ),
        *(spoil.other_length(name) for name in norm.affine),
        spoil.on_the_cpu("scale", 1),
        *([spoil.other_shape("residual", 8)] if norm.source else ()),
    )


def saturates(norm: Norm) -> Callable[[Callable[..., Any], Inputs], None]:
    def check(function: Callable[..., Any], inputs: Inputs) -> None:
        """No finite row gives a NaN, however large the scale."""
        x, scale = inputs.randn(5, 96), _scale(1e30)(inputs)
        from_mean = x.double() - x.double().mean(-1, keepdim=True) if norm.layer else x.double()
        for dtype in (E4M3, E5M2):
            y = function(
                **call(norm, inputs, x, x, weight=None, bias=None, scale=scale, dtype=dtype)
            ).double()
            assert torch.equal(y, from_mean.sign() * torch.finfo(dtype).max)

    return check
