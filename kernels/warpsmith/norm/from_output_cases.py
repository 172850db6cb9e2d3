"""Calls on which the norms' gradients from their outputs are tested and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.norm.norms import Norm
from warpsmith.norm.plain_cases import BENCH_SHAPES, PAST_2_31, repeatable_gradients
from warpsmith.spec.checks import wide_dtype

EPS = 1e-5


def _normalised(x: Tensor, centred: bool) -> tuple[Tensor, Tensor]:
    """xhat and rstd, in f32 or wider."""
    values = x.to(wide_dtype(x.dtype))
    if x.numel() == 0:
        return values, values.new_zeros(x.shape[:-1])
    if centred:
        values = values - values.mean(-1, keepdim=True)
    rstd = torch.rsqrt(values.square().mean(-1, keepdim=True) + EPS)
    return values * rstd, rstd.squeeze(-1)


def saved(norm: Norm, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[Any, ...]:
    """The operator's arguments behind the gradient."""
    xhat, rstd = _normalised(x, norm.layer)
    y = xhat if weight is None else xhat * weight
    if not norm.layer:
        return y.to(x.dtype), weight, rstd, EPS
    return (y if bias is None else y + bias).to(x.dtype), weight, bias, rstd, EPS


def _parameters(inputs: Inputs, cols: int) -> tuple[Tensor, Tensor]:
    """Of both signs, none near zero."""
    weight = inputs.plain(cols, scale=0.1, salt=1) + 1
    weight[::3] *= -1
    return weight, inputs.plain(cols, scale=0.5, salt=3)


def samples(norm: Norm) -> tuple[Sample, ...]:
    def of(i: Inputs, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[Any, ...]:
        return i.randn(*x.shape, salt=2), *saved(norm, x, weight, bias)

    def rows(m: int, n: int, *, small: bool = True) -> Sample:
        return Sample(f"{m}x{n}", lambda i: of(i, i.randn(m, n), *_parameters(i, n)), small=small)

    def relaid(
        label: str, lay_out: Callable[[Tensor], Tensor], m: int, n: int, **how: Any
    ) -> Sample:
        """The output in another layout than it was written in."""

        def make(i: Inputs) -> tuple[Any, ...]:
            grad, y, *rest = of(i, i.randn(m, n), *_parameters(i, n))
            return lay_out(grad), lay_out(y), *rest

        return Sample(label, make, **how)

    def misplaced(x: Tensor) -> Tensor:
        return torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view(x.shape)

    def strided(x: Tensor) -> Tensor:
        return torch.cat([x, x.new_zeros(x.shape[0], 8)], dim=1)[:, : x.shape[1]]

    def far_apart(x: Tensor) -> Tensor:
        """The last of 257 rows begins past 2^31 elements."""
        wide = x.new_zeros(x.shape[0], (1 << 23) + 8)[:, : x.shape[1]]
        return wide.copy_(x)

    def transposed(x: Tensor) -> Tensor:
        return x.t().contiguous().t()

    def zero_weights(i: Inputs) -> tuple[Any, ...]:
        weight, bias = _parameters(i, 96)
        weight[5:40:7] = 0.0
        weight[6], weight[7] = EPS / 4, -EPS / 4
        return of(i, i.randn(7, 96), weight, bias)

    def wide(m: int, n: int) -> Callable[[Inputs], tuple[Any, ...]]:
        return lambda i: of(i, i.randn(m, n), *(p.float() for p in _parameters(i, n)))

    def special(i: Inputs) -> tuple[Any, ...]:
        x = i.randn(5, 64)
        x[0, 3], x[1, 5], x[3] = float("nan"), float("inf"), 0.0
        return of(i, x, *_parameters(i, 64))

    small = (
        (3, 1), (199, 2), (7, 3), (3, 7), (5, 63), (199, 64), (9, 255), (7, 256), (3, 1000),
        (3, 1023), (5, 1024),
    )  # fmt: skip
    large = (
        (199, 512), (1030, 96), (2500, 1024), (37, 1128), (5, 8192), (3, 12345), (3, 16384),
        (3, 20000), (3, 32768), (5, 65536), (2, 131072), (3, 262144), (2, 300001),
    )  # fmt: skip
    return (
        *(rows(m, n) for m, n in small),
        *(rows(m, n, small=False) for m, n in large),
        Sample("no parameters", lambda i: of(i, i.randn(7, 256), None, None)),
        Sample("no weight", lambda i: of(i, i.randn(7, 129), None, _parameters(i, 129)[1])),
        Sample("no bias", lambda i: of(i, i.randn(7, 256), _parameters(i, 256)[0], None)),
        Sample("f32 parameters", wide(5, 1024), dtypes=("f16", "bf16")),
        Sample("f32 parameters, many rows", wide(700, 8192), small=False, dtypes=("f16", "bf16")),
        Sample("f32 parameters, long", wide(3, 65536), small=False, dtypes=("f16", "bf16")),
        Sample("f32 parameters, longest", wide(3, 262144), small=False, dtypes=("f16", "bf16")),
        Sample("1-d", lambda i: of(i, i.randn(768), *_parameters(i, 768))),
        Sample("3-d", lambda i: of(i, i.randn(2, 5, 128), *_parameters(i, 128))),
        Sample("no rows", lambda i: of(i, i.randn(0, 16), *_parameters(i, 16))),
        Sample("no columns", lambda i: of(i, i.randn(4, 0), *_parameters(i, 0))),
        relaid("misaligned", misplaced, 5, 256),
        relaid("row stride", strided, 9, 256),
        relaid("transposed", transposed, 24, 64),
        Sample("weights of zero", zero_weights),
        Sample(
            "values of 100", lambda i: of(i, i.plain(5, 1024, scale=100.0), *_parameters(i, 1024))
        ),
        Sample("special", special),
        Sample(
            "many rows",
            lambda i: of(i, i.randn(20011, 32), *_parameters(i, 32)),
            small=False,
        ),
        # Without a bias, for which a GPU has no room in f64.
        Sample(
            "outputs past 2^31 elements",
            lambda i: of(i, i.plain(*PAST_2_31), _parameters(i, PAST_2_31[1])[0], None),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
        relaid(
            "rows past 2^31 elements",
            far_apart,
            257,
            1024,
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
    )


def repeatable(norm: Norm) -> Callable[[Callable[..., Any], Inputs], None]:
    return repeatable_gradients(
        lambda i, grad, x: (grad, *saved(norm, x, *_parameters(i, x.shape[-1])))
    )


def bench(norm: Norm) -> tuple[Sample, ...]:
    def make(rows: int, cols: int) -> Callable[[Inputs], tuple[Any, ...]]:
        return lambda i: (
            i.plain(rows, cols, salt=2),
            *saved(norm, i.plain(rows, cols), *_parameters(i, cols)),
        )

    return tuple(
        Sample(f"{rows}x{cols}", make(rows, cols), small=False) for rows, cols in BENCH_SHAPES
    )


def errors(norm: Norm) -> tuple[Bad, ...]:
    op = norm.backward_name

    def call(i: Inputs, changed: int, to: Tensor) -> tuple[Any, ...]:
        """A good call but for one argument."""
        given = [i.randn(2, 8), *saved(norm, i.randn(2, 8), None, None)]
        given[changed] = to
        return tuple(given)

    grad, weight, rstd = 0, 2, -2
    return (
        Bad(
            "gradient of another shape",
            lambda i: call(i, grad, i.randn(2, 7)),
            rf"{op}: expected grad to have shape \(2, 8\) like y, got \(2, 7\)",
        ),
        Bad(
            "gradient of another dtype",
            lambda i: call(i, grad, i.randn(2, 8).double()),
            rf"{op}: expected grad to have dtype torch\.\w+ like y, got torch\.float64",
        ),
        Bad(
            "weight of another length",
            lambda i: call(i, weight, i.randn(7)),
            rf"{op}: expected weight to have shape \(8,\), the last dimension of y, got \(7,\)",
        ),
        Bad(
            "rstd of another shape",
            lambda i: call(i, rstd, torch.ones(3, device=i.device)),
            rf"{op}: expected rstd to have shape \(2,\), that of the rows of y, got \(3,\)",
        ),
        Bad(
            "rstd of another dtype",
            lambda i: call(i, rstd, torch.ones(2, device=i.device, dtype=torch.float64)),
            rf"{op}: expected rstd to have dtype torch\.float32, got torch\.float64",
        ),
        Bad(
            "rstd on the CPU",
            lambda i: call(i, rstd, torch.ones(2)),
            rf"{op}: expected rstd to be on cuda:\d+ like y, got cpu",
            cuda_only=True,
        ),
    )
