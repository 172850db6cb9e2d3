"""Calls on which the norms' gradients from their outputs are tested and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.norm.calls import (
    HALVES,
    PAST_2_31,
    Sampler,
    benchmarks,
    plain,
    repeatable_gradients,
    rows,
)
from warpsmith.norm.norms import Norm
from warpsmith.spec.checks import wide_dtype
from warpsmith.spec.spoilt import Spoiler

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


def _parameters(inputs: Inputs, cols: int) -> dict[str, Tensor | None]:
    """Of both signs, none near zero."""
    weight = inputs.plain(cols, scale=0.1, salt=1) + 1
    weight[::3] *= -1
    return {"weight": weight, "bias": inputs.plain(cols, scale=0.5, salt=3)}


def call(norm: Norm, i: Inputs, x: Tensor, **changes: Any) -> dict[str, Any]:
    """The arguments behind the gradient of the call that normalises `x`."""
    affine = _parameters(i, x.shape[-1]) | changes
    affine = {name: affine[name] for name in norm.affine}
    y, rstd = _normalised(x, norm.layer)
    y = y if affine["weight"] is None else y * affine["weight"]
    bias = affine.get("bias")
    y = y if bias is None else y + bias
    return {"y": y.to(x.dtype), **affine, "rstd": rstd, "eps": EPS}


def _in_f32(norm: Norm, i: Inputs, x: Tensor, **changes: Any) -> dict[str, Any]:
    """With parameters in f32."""
    wide = {name: p.float() for name, p in _parameters(i, x.shape[-1]).items() if p is not None}
    return _with_gradient(norm, i, x, **wide | changes)


def _with_gradient(norm: Norm, i: Inputs, x: Tensor, **changes: Any) -> dict[str, Any]:
    return {"grad": i.randn(*x.shape, salt=2), **call(norm, i, x, **changes)}


# --- samples --------------------------------------------------------------------------------------

_SMALL = (
    (3, 1), (199, 2), (7, 3), (3, 7), (5, 63), (199, 64), (9, 255), (7, 256), (3, 1000), (3, 1023),
    (5, 1024),
)  # fmt: skip
_LARGE = (
    (199, 512), (1030, 96), (2500, 1024), (37, 1128), (5, 8192), (3, 12345), (3, 16384), (3, 20000),
    (3, 32768), (5, 65536), (2, 131072), (3, 262144), (2, 300001),
)  # fmt: skip


def _misplaced(x: Tensor) -> Tensor:
    return torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view(x.shape)


def _strided(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_zeros(x.shape[0], 8)], dim=1)[:, : x.shape[1]]


def _far_apart(x: Tensor) -> Tensor:
    """The last of 257 rows begins past 2^31 elements."""
    return x.new_zeros(x.shape[0], (1 << 23) + 8)[:, : x.shape[1]].copy_(x)


def _zero_weights(i: Inputs) -> Tensor:
    weight = _parameters(i, 96)["weight"]
    assert weight is not None
    weight[5:40:7] = 0.0
    weight[6], weight[7] = EPS / 4, -EPS / 4
    return weight


def _special(i: Inputs) -> Tensor:
    x = i.randn(5, 64)
    x[0, 3], x[1, 5], x[3] = float("nan"), float("inf"), 0.0
    return x


def samples(norm: Norm) -> tuple[Sample, ...]:
    def relaid(relay: Callable[[Tensor], Tensor]) -> Sampler:
        """The output, and the gradient, in another layout than they were written in."""

        def laid_out(norm: Norm, i: Inputs, x: Tensor, **changes: Any) -> dict[str, Any]:
            given = _with_gradient(norm, i, x, **changes)
            return given | {"grad": relay(given["grad"]), "y": relay(given["y"])}

        return Sampler(norm, laid_out)

    sample, wide = Sampler(norm, _with_gradient), Sampler(norm, _in_f32)
    past = relaid(_far_apart).past_2_31("rows past 2^31 elements", rows(257, 1024))
    huge: dict[str, Any] = {"small": False, "huge": True, "dtypes": ("f16",)}
    return (
        *sample.grid(_SMALL, rows, small=True),
        *sample.grid(_LARGE, rows, small=False),
        sample("no parameters", rows(7, 256), weight=None, bias=None),
        sample("no weight", rows(7, 129), weight=None),
        sample("no bias", rows(7, 256), bias=None),
        wide("f32 parameters", rows(5, 1024), True, HALVES),
        wide("f32 parameters, many rows", rows(700, 8192), False, HALVES),
        wide("f32 parameters, long", rows(3, 65536), False, HALVES),
        wide("f32 parameters, longest", rows(3, 262144), False, HALVES),
        sample("1-d", rows(768)),
        sample("3-d", rows(2, 5, 128)),
        sample("no rows", rows(0, 16)),
        sample("no columns", rows(4, 0)),
        relaid(_misplaced)("misaligned", rows(5, 256)),
        relaid(_strided)("row stride", rows(9, 256)),
        relaid(lambda x: x.t().contiguous().t())("transposed", rows(24, 64)),
        sample("weights of zero", rows(7, 96), weight=_zero_weights),
        sample("values of 100", plain(5, 1024, scale=100.0)),
        sample("special", _special),
        sample("many rows", rows(20011, 32), small=False),
        # Without a bias, for which a GPU has no room in f64.
        sample("outputs past 2^31 elements", plain(*PAST_2_31), bias=None, **huge),
        past,
    )


def repeatable(norm: Norm) -> Callable[[Callable[..., Any], Inputs], None]:
    return repeatable_gradients(lambda i, grad, x: (grad, *call(norm, i, x).values()))


def bench(norm: Norm) -> tuple[Sample, ...]:
    def make(i: Inputs, m: int, n: int) -> dict[str, Any]:
        return {"grad": i.plain(m, n, salt=2), **call(norm, i, i.plain(m, n))}

    return benchmarks(make)


# --- bad calls ------------------------------------------------------------------------------------


def errors(norm: Norm) -> tuple[Bad, ...]:
    def good(i: Inputs) -> dict[str, Any]:
        return {"grad": i.randn(2, 8), **call(norm, i, i.randn(2, 8), weight=None, bias=None)}

    spoil = Spoiler(norm.backward_name, good, like="y")
    return (
        spoil.other_shape("grad", 2, 7, said="gradient"),
        spoil.other_dtype("grad", said="gradient", like="y"),
        spoil.other_length("weight"),
        spoil(
            "rstd of another shape",
            r"expected rstd to have shape \(2,\), that of the rows of y, got \(3,\)",
            rstd=lambda i: torch.ones(3, device=i.device),
        ),
        spoil(
            "rstd of another dtype",
            r"expected rstd to have dtype torch\.float32, got torch\.float64",
            rstd=lambda i: torch.ones(2, device=i.device, dtype=torch.float64),
        ),
        spoil.on_the_cpu("rstd", 2),
    )
