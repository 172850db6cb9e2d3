"""Calls on which the norms into fp8 are tested and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.norm.add_norm_cases import BENCH_SHAPES, HALVES
from warpsmith.norm.norms import Norm
from warpsmith.norm.plain_cases import PAST_2_31

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def call(
    norm: Norm,
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    dtype: torch.dtype = E4M3,
    zero_centered: bool = False,
) -> tuple[Any, ...]:
    rows = (x, residual) if norm.source else (x,)
    parameters = (weight, bias) if norm.layer else (weight,)
    return *rows, *parameters, scale, dtype, norm.eps, zero_centered


def of(
    norm: Norm, i: Inputs, x: Tensor, residual: Tensor, step: float = 0.25, **options: Any
) -> tuple[Any, ...]:
    """A call with a plain weight and bias."""
    cols = x.shape[-1]
    if norm.source and norm.layer and residual.dtype == x.dtype:
        # Sums of 8 bits need no rounding. Where a mean or a bias cancels h, its rounding would
        # be far more than that of y, and float64 has none.
        for t in (x, residual):
            t.div_(step).round_().mul_(step)
    return call(norm, x, residual, i.randn(cols, salt=2), i.randn(cols, salt=3), **options)


def _scale(i: Inputs, value: float) -> Tensor:
    return torch.full((1,), value, device=i.device)


#: Makes x and a residual.
Rows = Callable[[Inputs], tuple[Tensor, Tensor]]


def samples(norm: Norm) -> tuple[Sample, ...]:
    def sample(
        label: str,
        make: Rows,
        scale: float | None = None,
        dtype: torch.dtype = E4M3,
        zero_centered: bool = False,
        step: float = 0.25,
        **options: Any,
    ) -> Sample:
        def call(i: Inputs) -> tuple[Any, ...]:
            given: dict[str, Any] = {
                "scale": None if scale is None else _scale(i, scale),
                "dtype": dtype,
            }
            return of(norm, i, *make(i), step, zero_centered=zero_centered, **given)

        return Sample(label, call, **options)

    def rows(*shape: int) -> Rows:
        return lambda i: (i.randn(*shape), i.randn(*shape, salt=1))

    def hundredfold(i: Inputs) -> tuple[Tensor, Tensor]:
        return i.plain(3, 1000, scale=100.0), i.plain(3, 1000, scale=100.0, salt=1)

    def special(i: Inputs) -> tuple[Tensor, Tensor]:
        x, residual = rows(5, 64)(i)
        x[0, 3], x[1, 5], x[2, 7] = float("nan"), float("inf"), float("-inf")
        x[3], residual[3] = 0.0, 0.0
        return x, residual

    plain = ((3, 1), (5, 3), (3, 7), (2, 63), (9, 64), (3, 256), (3, 1000), (2, 1023), (3, 1024))
    large = ((199, 512), (2, 4096), (3, 8192), (3, 12345), (2, 16384), (3, 40000), (2, 131072))
    return (
        *(sample(f"{m}x{n}", rows(m, n)) for m, n in plain),
        *(sample(f"{m}x{n}", rows(m, n), small=False) for m, n in (*large, (1, 262144))),
        sample("many long rows", rows(300, 65536), small=False, huge=True),
        sample("e5m2", rows(3, 256), dtype=E5M2),
        sample("e5m2, odd", rows(3, 129), 3.0, E5M2),
        sample("e5m2, long", rows(3, 40000), 3.0, E5M2, small=False),
        sample("scale", rows(5, 256), 0.3),
        sample("scale, odd", rows(5, 77), 0.3),
        sample("scale, long", rows(3, 65536), 0.3, small=False),
        sample("saturating", rows(5, 96), 400.0),
        sample("saturating e5m2", rows(5, 96), 6e4, E5M2),
        sample("subnormal", rows(5, 96), 2.0**-7),
        sample("hundredfold", hundredfold, 2.0, step=4.0),
        sample("no rows", rows(0, 16)),
        sample("no columns", rows(4, 0)),
        Sample("no weight", lambda i: call(norm, *rows(3, 128)(i), None, scale=_scale(i, 2.0))),
        sample("zero-centred", rows(3, 128), 2.0, zero_centered=True),
        Sample(
            "f32 weight",
            lambda i: call(
                norm, *rows(3, 256)(i), i.randn(256, salt=2).float(), i.randn(256, salt=3).float()
            ),
            dtypes=HALVES,
        ),
        sample("1-d", rows(768)),
        sample("3-d", rows(2, 5, 72)),
        sample("row stride", lambda i: (i.randn(9, 80)[:, :64], i.randn(9, 96, salt=1)[:, 32:])),
        sample("transposed", lambda i: (i.randn(64, 24).t(), i.randn(24, 64, salt=1))),
        Sample(
            "misaligned",
            lambda i: call(
                norm,
                i.misaligned(5, 64),
                i.randn(5, 64, salt=1),
                i.misaligned(64, salt=2),
                i.misaligned(64, offset=2, salt=3),
            ),
        ),
        sample("special", special),
        *(_layer_samples(norm) if norm.layer else ()),
        *(_wide_residual(norm) if norm.source else ()),
        *(_PAST_2_31 if norm == _ALONE else ()),
    )


def _layer_samples(norm: Norm) -> tuple[Sample, ...]:
    def of(i: Inputs, weight: Tensor | None, bias: Tensor | None) -> tuple[Any, ...]:
        return call(norm, i.randn(7, 129), i.randn(7, 129, salt=1), weight, bias)

    return (
        Sample("no bias", lambda i: of(i, i.randn(129, salt=2), None)),
        Sample("bias alone", lambda i: of(i, None, i.randn(129, salt=3))),
    )


_ALONE = Norm(layer=False, sink="fp8")
#: One of the four for all: their offsets are the same code.
_PAST_2_31 = (
    Sample(
        "output past 2^31 elements",
        lambda i: of(_ALONE, i, i.plain(*PAST_2_31), i.plain(1)),
        small=False,
        huge=True,
        dtypes=("f16",),
    ),
)


def _wide_residual(norm: Norm) -> tuple[Sample, ...]:
    def sample(label: str, rows: int, cols: int, small: bool = True) -> Sample:
        def call(i: Inputs) -> tuple[Any, ...]:
            residual = i.randn(rows, cols, salt=1).float() + 2.0**-12
            return of(norm, i, i.randn(rows, cols), residual)

        return Sample(label, call, small=small, dtypes=HALVES)

    return (
        sample("f32 residual", 5, 1024),
        sample("f32 residual, odd", 7, 129),
        sample("f32 residual, long", 3, 40000, small=False),
    )


def bench(norm: Norm) -> tuple[Sample, ...]:
    def case(rows: int, cols: int) -> Sample:
        def make(i: Inputs) -> tuple[Any, ...]:
            x, residual = i.plain(rows, cols), i.plain(rows, cols, salt=1)
            weight, bias = i.plain(cols, salt=2), i.plain(cols, salt=3)
            return call(norm, x, residual, weight, bias, _scale(i, 16.0))

        return Sample(f"{rows}x{cols}", make, small=False)

    return tuple(case(*shape) for shape in BENCH_SHAPES if 1024 <= shape[1] <= 32768)


def errors(norm: Norm) -> tuple[Bad, ...]:
    op = norm.name

    def changed(i: Inputs, **options: Any) -> tuple[Any, ...]:
        x = options.pop("x", i.randn(2, 8))
        return call(norm, x, i.randn(2, 8, salt=1), options.pop("weight", None), **options)

    found: tuple[Bad, ...] = (
        Bad(
            "integers",
            lambda i: changed(i, x=torch.ones(2, 8, dtype=torch.int32, device=i.device)),
            rf"{op}: expected x to be a floating-point tensor, got torch\.int32",
        ),
        Bad(
            "two scales",
            lambda i: changed(i, scale=torch.ones(2, device=i.device)),
            rf"{op}: expected scale to be one torch\.float32 value, got shape \(2,\) of "
            r"torch\.float32",
        ),
        Bad(
            "scale of another dtype",
            lambda i: changed(i, scale=_scale(i, 1.0).half()),
            rf"{op}: expected scale to be one torch\.float32 value, got shape \(1,\) of "
            r"torch\.float16",
        ),
        Bad(
            "another dtype",
            lambda i: changed(i, dtype=torch.float16),
            rf"{op}: expected dtype to be torch\.float8_e4m3fn or torch\.float8_e5m2, "
            r"got torch\.float16",
        ),
        Bad(
            "weight of another length",
            lambda i: changed(i, weight=i.randn(7)),
            rf"{op}: expected weight to have shape \(8,\), .*, got \(7,\)",
        ),
        Bad(
            "scale on the CPU",
            lambda i: changed(i, scale=torch.ones(1)),
            rf"{op}: expected scale to be on cuda:\d+ like x, got cpu",
            cuda_only=True,
        ),
    )
    if norm.layer:
        found += (
            Bad(
                "bias of another length",
                lambda i: changed(i, bias=i.randn(7)),
                rf"{op}: expected bias to have shape \(8,\), .*, got \(7,\)",
            ),
        )
    if norm.source:
        found += (
            Bad(
                "residual of another shape",
                lambda i: call(norm, i.randn(2, 8), i.randn(8), None),
                rf"{op}: expected residual to have shape \(2, 8\) like x, got \(8,\)",
            ),
        )
    return found


def saturates(norm: Norm) -> Callable[[Callable[..., Any], Inputs], None]:
    def check(function: Callable[..., Any], inputs: Inputs) -> None:
        """No finite row gives a NaN, however large the scale."""
        x, scale = inputs.randn(5, 96), _scale(inputs, 1e30)
        from_mean = x.double() - x.double().mean(-1, keepdim=True) if norm.layer else x.double()
        for dtype in (E4M3, E5M2):
            y = function(*call(norm, x, x, None, scale=scale, dtype=dtype)).double()
            assert torch.equal(y, from_mean.sign() * torch.finfo(dtype).max)

    return check
