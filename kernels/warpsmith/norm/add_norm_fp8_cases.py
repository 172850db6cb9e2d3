"""Calls on which the norms into fp8 are tested and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.catalogue import Bad, Inputs, Sample
from warpsmith.norm.add_norm_cases import BENCH_SHAPES, HALVES

EPS = 1e-6
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def _call(
    added: bool,
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    scale: Tensor | None = None,
    dtype: torch.dtype = E4M3,
    eps: float = EPS,
    zero_centered: bool = False,
) -> tuple[Any, ...]:
    given = (x, residual) if added else (x,)
    return *given, weight, scale, dtype, eps, zero_centered


def _scale(i: Inputs, value: float) -> Tensor:
    return torch.full((1,), value, device=i.device)


def samples(added: bool) -> tuple[Sample, ...]:
    def sample(
        label: str,
        make: Callable[[Inputs], tuple[Tensor, Tensor, Tensor | None]],
        scale: float | None = None,
        dtype: torch.dtype = E4M3,
        zero_centered: bool = False,
        **options: Any,
    ) -> Sample:
        def call(i: Inputs) -> tuple[Any, ...]:
            factor = None if scale is None else _scale(i, scale)
            return _call(added, *make(i), factor, dtype, zero_centered=zero_centered)

        return Sample(label, call, **options)

    def rows(m: int, n: int) -> Callable[[Inputs], tuple[Tensor, Tensor, Tensor | None]]:
        return lambda i: (i.randn(m, n), i.randn(m, n, salt=1), i.randn(n, salt=2))

    def special(i: Inputs) -> tuple[Tensor, Tensor, Tensor | None]:
        x, residual, weight = rows(5, 64)(i)
        x[0, 3], x[1, 5], x[2, 7] = float("nan"), float("inf"), float("-inf")
        x[3], residual[3] = 0.0, 0.0
        return x, residual, weight

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
        sample("no rows", rows(0, 16)),
        sample("no columns", rows(4, 0)),
        sample("no weight", lambda i: (*rows(3, 128)(i)[:2], None), 2.0),
        sample("zero-centred", rows(3, 128), 2.0, zero_centered=True),
        sample(
            "f32 weight",
            lambda i: (*rows(3, 256)(i)[:2], i.randn(256, salt=2).float()),
            dtypes=HALVES,
        ),
        sample("1-d", lambda i: (i.randn(768), i.randn(768, salt=1), i.randn(768, salt=2))),
        sample(
            "3-d", lambda i: (i.randn(2, 5, 72), i.randn(2, 5, 72, salt=1), i.randn(72, salt=2))
        ),
        sample(
            "row stride",
            lambda i: (i.randn(9, 80)[:, :64], i.randn(9, 96, salt=1)[:, 32:], i.randn(64, salt=2)),
        ),
        sample(
            "transposed",
            lambda i: (i.randn(64, 24).t(), i.randn(24, 64, salt=1), i.randn(64, salt=2)),
        ),
        sample(
            "misaligned",
            lambda i: (i.misaligned(5, 64), i.randn(5, 64, salt=1), i.misaligned(64, salt=2)),
        ),
        sample("special", special),
        *_wide_residual(added),
    )


def _wide_residual(added: bool) -> tuple[Sample, ...]:
    def sample(label: str, rows: int, cols: int, small: bool = True) -> Sample:
        def call(i: Inputs) -> tuple[Any, ...]:
            residual = i.randn(rows, cols, salt=1).float() + 2.0**-12
            return _call(added, i.randn(rows, cols), residual, i.randn(cols, salt=2))

        return Sample(label, call, small=small, dtypes=HALVES)

    if not added:
        return ()
    return (
        sample("f32 residual", 5, 1024),
        sample("f32 residual, odd", 7, 129),
        sample("f32 residual, long", 3, 40000, small=False),
    )


def bench(added: bool) -> tuple[Sample, ...]:
    def case(rows: int, cols: int) -> Sample:
        def make(i: Inputs) -> tuple[Any, ...]:
            x, residual = i.plain(rows, cols), i.plain(rows, cols, salt=1)
            return _call(added, x, residual, i.plain(cols, salt=2), _scale(i, 16.0))

        return Sample(f"{rows}x{cols}", make, small=False)

    return tuple(case(*shape) for shape in BENCH_SHAPES if 1024 <= shape[1] <= 32768)


def errors(added: bool) -> tuple[Bad, ...]:
    op = "add_rms_norm_fp8" if added else "rms_norm_fp8"

    def call(i: Inputs, **options: Any) -> tuple[Any, ...]:
        x = options.pop("x", i.randn(2, 8))
        return _call(added, x, i.randn(2, 8, salt=1), options.pop("weight", None), **options)

    found: tuple[Bad, ...] = (
        Bad(
            "integers",
            lambda i: call(i, x=torch.ones(2, 8, dtype=torch.int32, device=i.device)),
            rf"{op}: expected x to be a floating-point tensor, got torch\.int32",
        ),
        Bad(
            "two scales",
            lambda i: call(i, scale=torch.ones(2, device=i.device)),
            rf"{op}: expected scale to be one torch\.float32 value, got shape \(2,\) of "
            r"torch\.float32",
        ),
        Bad(
            "scale of another dtype",
            lambda i: call(i, scale=_scale(i, 1.0).half()),
            rf"{op}: expected scale to be one torch\.float32 value, got shape \(1,\) of "
            r"torch\.float16",
        ),
        Bad(
            "another dtype",
            lambda i: call(i, dtype=torch.float16),
            rf"{op}: expected dtype to be torch\.float8_e4m3fn or torch\.float8_e5m2, "
            r"got torch\.float16",
        ),
        Bad(
            "weight of another length",
            lambda i: call(i, weight=i.randn(7)),
            rf"{op}: expected weight to have shape \(8,\), .*, got \(7,\)",
        ),
        Bad(
            "scale on the CPU",
            lambda i: call(i, scale=torch.ones(1)),
            rf"{op}: expected scale to be on cuda:\d+ like x, got cpu",
            cuda_only=True,
        ),
    )
    if added:
        found += (
            Bad(
                "residual of another shape",
                lambda i: (i.randn(2, 8), i.randn(8), None, None, E4M3),
                rf"{op}: expected residual to have shape \(2, 8\) like x, got \(8,\)",
            ),
        )
    return found


def saturates(function: Callable[..., Any], inputs: Inputs) -> None:
    """No finite row gives a NaN, however large the scale."""
    x, scale = inputs.randn(5, 96), _scale(inputs, 1e30)
    for dtype in (E4M3, E5M2):
        y = function(x, None, scale, dtype).float()
        assert torch.equal(y, x.float().sign() * torch.finfo(dtype).max)
