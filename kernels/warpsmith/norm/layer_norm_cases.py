"""Calls on which layer_norm and its gradients are tested and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.norm.rms_norm_cases import (
    BENCH_SHAPES,
    outliers,
    past_2_31,
    repeatable_gradients,
)

EPS = 1e-5

# --- samples --------------------------------------------------------------------------------------


def _weight(inputs: Inputs, cols: int) -> Tensor:
    return inputs.randn(cols, salt=1)


def _bias(inputs: Inputs, cols: int) -> Tensor:
    return inputs.randn(cols, salt=3)


def _of(x: Tensor, inputs: Inputs) -> tuple[Any, ...]:
    """`x` with a weight and a bias."""
    cols = x.shape[-1]
    return x, _weight(inputs, cols), _bias(inputs, cols), EPS


def _plain_rows(rows: int, cols: int, *, small: bool = True) -> Sample:
    return Sample(f"{rows}x{cols}", lambda i: _of(i.randn(rows, cols), i), small=small)


def samples() -> tuple[Sample, ...]:
    widths = (1, 2, 3, 7, 63, 64, 255, 256, 1000, 1023, 1024, 4096)
    rows = (1, 3, 199)
    grid = [_plain_rows(rows[k % 3], n) for k, n in enumerate(widths)]
    grid += [
        _plain_rows(m, n, small=False)
        for m, n in (
            (199, 63), (199, 512), (1030, 96), (2500, 1024), (37, 1128), (5, 8192), (3, 12345),
            (3, 16384), (3, 20000), (3, 32768), (5, 65536), (2, 131072), (3, 262144), (2, 300001),
        )
    ]  # fmt: skip
    return (
        *grid,
        Sample("no weight, no bias", lambda i: (i.randn(7, 256), None, None, EPS)),
        Sample("no weight", lambda i: (i.randn(7, 256), None, _bias(i, 256), EPS)),
        Sample("no bias", lambda i: (i.randn(7, 256), _weight(i, 256), None, EPS)),
        Sample("no weight, odd", lambda i: (i.randn(7, 129), None, _bias(i, 129), EPS)),
        Sample("no bias, odd", lambda i: (i.randn(7, 129), _weight(i, 129), None, EPS)),
        Sample("no weight, long", lambda i: (i.randn(3, 40960), None, None, EPS), small=False),
        Sample(
            "f32 weight and bias",
            lambda i: (i.randn(5, 1024), _weight(i, 1024).float(), _bias(i, 1024).float(), EPS),
            dtypes=("f16", "bf16"),
        ),
        Sample(
            "f32 bias",
            lambda i: (i.randn(5, 264), None, _bias(i, 264).float(), EPS),
            dtypes=("f16", "bf16"),
        ),
        Sample(
            "f32 weight and bias, many rows",
            lambda i: (i.randn(700, 8192), _weight(i, 8192).float(), _bias(i, 8192).float(), EPS),
            small=False,
            dtypes=("f16", "bf16"),
        ),
        Sample(
            "f32 weight and bias, long",
            lambda i: (i.randn(3, 65536), _weight(i, 65536).float(), _bias(i, 65536).float(), EPS),
            small=False,
            dtypes=("f16", "bf16"),
        ),
        Sample("defaults", lambda i: (i.randn(4, 64),)),
        Sample("1-d", lambda i: _of(i.randn(768), i)),
        Sample("3-d", lambda i: _of(i.randn(2, 5, 128), i)),
        Sample("4-d", lambda i: _of(i.randn(2, 3, 4, 72), i)),
        Sample("no rows", lambda i: _of(i.randn(0, 16), i)),
        Sample("no columns", lambda i: _of(i.randn(4, 0), i)),
        Sample("row stride", lambda i: _of(i.randn(9, 320)[:, :256], i)),
        Sample("odd row stride", lambda i: _of(i.randn(9, 259)[:, :256], i)),
        Sample("row stride, long", lambda i: _of(i.randn(3, 70000)[:, :65536], i), small=False),
        Sample("expanded rows", lambda i: _of(i.randn(1, 64).expand(6, 64), i)),
        Sample("transposed", lambda i: _of(i.randn(64, 24).t(), i)),
        Sample("middle transposed", lambda i: _of(i.randn(3, 4, 5, 32).transpose(1, 2), i)),
        Sample("misaligned", lambda i: _of(i.misaligned(5, 256), i)),
        Sample("misaligned pairs", lambda i: (i.misaligned(5, 64, offset=2), None, None, EPS)),
        Sample(
            "misaligned weight",
            lambda i: (i.randn(5, 256), i.misaligned(256, salt=1), _bias(i, 256), EPS),
        ),
        Sample(
            "misaligned bias",
            lambda i: (i.randn(5, 256), _weight(i, 256), i.misaligned(256, salt=3), EPS),
        ),
        Sample(
            "strided weight and bias",
            lambda i: (i.randn(5, 64), _weight(i, 128)[::2], _bias(i, 128)[::2], EPS),
        ),
        Sample("large eps", lambda i: (*_of(i.randn(3, 64), i)[:3], 10.0)),
        Sample("eps 0", lambda i: (*_of(i.randn(3, 64), i)[:3], 0.0)),
        Sample("small values", lambda i: _of(i.plain(3, 1000, scale=1e-3), i)),
        Sample("values of 100", lambda i: _of(i.plain(5, 1024, scale=100.0), i)),
        Sample("one outlier a row", lambda i: _of(outliers(i, 5, 1000), i)),
        Sample("one outlier a row, long", lambda i: _of(outliers(i, 3, 40000), i), small=False),
        Sample("squares beyond f16", lambda i: _of(i.plain(3, 1024, scale=1e4), i)),
        Sample("mean 1e4", lambda i: _of(i.plain(5, 1000) + 1e4, i), dtypes=("f32",)),
        Sample(
            "mean 1e4, long",
            lambda i: _of(i.plain(3, 40000) + 1e4, i),
            small=False,
            dtypes=("f32",),
        ),
        Sample("constant rows", lambda i: _of(_constant(i, 5, 100), i)),
        # A mean held in bf16 is off by more than such a row deviates, as the docstring says.
        Sample(
            "constant rows, long",
            lambda i: _of(_constant(i, 3, 20000), i),
            small=False,
            dtypes=("f32", "f16"),
        ),
        Sample("half constant", lambda i: _of(_half_constant(i, 4, 2048), i)),
        Sample("special", lambda i: _of(_special(i), i)),
        Sample("near the largest", lambda i: _of(near_largest(i), i), dtypes=("f32", "bf16")),
        # On a CPU, PyTorch's own sums stay finite at lengths like this one.
        Sample("near the largest, 516", lambda i: _of(near_largest(i, 516), i), dtypes=("f32",)),
        *past_2_31(lambda i, x: _of(x, i)),
    )  # fmt: skip


def _constant(inputs: Inputs, rows: int, cols: int) -> Tensor:
    """Rows of one value each, with more digits than a sum over them keeps."""
    values = torch.tensor([0.0, 1.1, -333.3, 9999.9, 1e-3], device=inputs.device)
    return values[:rows, None].to(inputs.dtype).expand(rows, cols).contiguous()


def _half_constant(inputs: Inputs, rows: int, cols: int) -> Tensor:
    """The first half of a row lies far from the other: parts of it have means of their own."""
    x = inputs.plain(rows, cols)
    x[:, : cols // 2] = 200.0
    return x


def near_largest(inputs: Inputs, cols: int = 1024) -> Tensor:
    """Rows of one value each, of which two or more add up to infinity. Their mean is exact."""
    values = torch.tensor([2.0**127, -1.5 * 2.0**126, 2.0**120], device=inputs.device)
    return values[:, None].to(inputs.dtype).expand(3, cols).contiguous()


def _special(inputs: Inputs) -> Tensor:
    """Rows with NaN, infinities and zeros."""
    x = inputs.randn(5, 64)
    x[0, 3] = float("nan")
    x[1, 5] = float("inf")
    x[2, 7], x[2, 8] = float("-inf"), float("inf")
    x[3] = 0.0
    return x


def _gentle(inputs: Inputs, cols: int) -> tuple[Tensor, Tensor]:
    """A weight around 1 and a small bias: from the output, xhat comes with the digits of x."""
    weight = inputs.plain(cols, scale=0.1, salt=1) + 1
    return weight, inputs.plain(cols, scale=0.1, salt=3)


def with_rstd_samples() -> tuple[Sample, ...]:
    def of(x: Tensor, i: Inputs) -> tuple[Any, ...]:
        return x, *_gentle(i, x.shape[-1]), EPS

    def plain(m: int, n: int, *, small: bool) -> Sample:
        return Sample(f"{m}x{n}", lambda i: of(i.plain(m, n), i), small=small)

    sizes = (
        (5, 1), (7, 3), (3, 7), (9, 63), (4, 64), (7, 129), (19, 256), (3, 1000), (2, 1023),
        (9, 1024),
    )  # fmt: skip
    long = (
        (199, 512), (20011, 256), (3, 12345), (5, 32768), (2, 131072), (3, 262144), (2, 300001),
    )  # fmt: skip
    return (
        *(plain(m, n, small=True) for m, n in sizes),
        *(plain(m, n, small=False) for m, n in long),
        Sample("no weight, no bias", lambda i: (i.plain(7, 256), None, None, EPS)),
        Sample("no weight", lambda i: (i.plain(7, 96), None, _gentle(i, 96)[1], EPS)),
        Sample("no bias", lambda i: (i.plain(7, 96), _gentle(i, 96)[0], None, EPS)),
        Sample(
            "f32 weight and bias",
            lambda i: (i.plain(5, 264), *(p.float() for p in _gentle(i, 264)), EPS),
            dtypes=("f16", "bf16"),
        ),
        Sample("defaults", lambda i: (i.plain(4, 64),)),
        Sample("1-d", lambda i: of(i.plain(768), i)),
        Sample("3-d", lambda i: of(i.plain(2, 5, 128), i)),
        Sample("no rows", lambda i: of(i.plain(0, 16), i)),
        Sample("no columns", lambda i: of(i.plain(4, 0), i)),
        Sample("row stride", lambda i: of(i.plain(9, 320)[:, :256], i)),
        Sample("transposed", lambda i: of(i.plain(64, 24).t(), i)),
        Sample("misaligned", lambda i: of(i.misaligned(5, 256), i)),
        Sample("values of 100", lambda i: of(i.plain(5, 1024, scale=100.0), i)),
        Sample("one outlier a row", lambda i: of(outliers(i, 5, 1000), i)),
        Sample("one outlier a row, long", lambda i: of(outliers(i, 3, 40000), i), small=False),
        Sample("mean 1e4", lambda i: of(i.plain(5, 1000) + 1e4, i), dtypes=("f32",)),
        Sample("special", lambda i: of(_special(i), i)),
        *past_2_31(lambda i, x: of(x, i)),
    )


def _with_gradient(sample: Sample) -> Sample:
    """The same call, backwards: a gradient like x in front."""

    def make(inputs: Inputs) -> tuple[Any, ...]:
        x, weight, bias, eps = (*sample.make(inputs), None, None, EPS)[:4]
        return inputs.randn(*x.shape, salt=2), x, weight, bias, eps

    return Sample(sample.label, make, sample.small, sample.huge, sample.dtypes)


def backward_samples() -> tuple[Sample, ...]:
    return (
        *(_with_gradient(s) for s in samples()),
        Sample(
            "strided gradient",
            lambda i: (i.randn(9, 80, salt=2)[:, :64], *_of(i.randn(9, 64), i)),
        ),
        Sample(
            "expanded gradient",
            lambda i: (i.randn(64, salt=2).expand(9, 64), *_of(i.randn(9, 64), i)),
        ),
        Sample(
            "misaligned gradient",
            lambda i: (i.misaligned(5, 64, salt=2), *_of(i.randn(5, 64), i)),
        ),
        Sample(
            "many rows",
            lambda i: (i.randn(20011, 32, salt=2), *_of(i.randn(20011, 32), i)),
            small=False,
        ),
    )


def bench(rows: int, cols: int) -> Sample:
    def make(i: Inputs) -> tuple[Any, ...]:
        return i.plain(rows, cols), i.plain(cols, salt=1), i.plain(cols, salt=3), EPS

    return Sample(f"{rows}x{cols}", make, small=False)


def bench_backward(rows: int, cols: int) -> Sample:
    def make(i: Inputs) -> tuple[Any, ...]:
        grad, x = i.plain(rows, cols, salt=2), i.plain(rows, cols)
        return grad, x, i.plain(cols, salt=1), i.plain(cols, salt=3), EPS

    return Sample(f"{rows}x{cols}", make, small=False)


BENCH = tuple(bench(*shape) for shape in BENCH_SHAPES)
BENCH_BACKWARD = tuple(bench_backward(*shape) for shape in BENCH_SHAPES)


# --- bad calls ------------------------------------------------------------------------------------


def errors(op: str) -> tuple[Bad, ...]:
    return (
        Bad(
            "integers",
            lambda i: (torch.ones(2, 8, dtype=torch.int32, device=i.device), None, None, EPS),
            rf"{op}: expected x to be a floating-point tensor, got torch\.int32",
        ),
        Bad(
            "0-d",
            lambda i: (i.randn(), None, None, EPS),
            rf"{op}: expected at least 1 dimension in x, got shape \(\)",
        ),
        Bad(
            "weight of another length",
            lambda i: (i.randn(2, 8), i.randn(7), None, EPS),
            rf"{op}: expected weight to have shape \(8,\), the last dimension of x, got \(7,\)",
        ),
        Bad(
            "bias of another length",
            lambda i: (i.randn(2, 8), None, i.randn(7), EPS),
            rf"{op}: expected bias to have shape \(8,\), the last dimension of x, got \(7,\)",
        ),
        Bad(
            "integer bias",
            lambda i: (
                i.randn(2, 8), None, torch.ones(8, dtype=torch.int64, device=i.device), EPS,
            ),
            rf"{op}: expected bias to have dtype torch\.\w+.*, got torch\.int64",
        ),
        Bad(
            "weight and bias of two dtypes",
            lambda i: (
                Inputs(torch.bfloat16, i.device).randn(2, 8),
                Inputs(torch.bfloat16, i.device).randn(8),
                Inputs(torch.float32, i.device).randn(8),
                EPS,
            ),
            rf"{op}: expected bias to have dtype torch\.bfloat16 like weight, got torch\.float32",
        ),
        Bad(
            "bias on the CPU",
            lambda i: (i.randn(2, 8), None, torch.ones(8), EPS),
            rf"{op}: expected bias to be on cuda:\d+ like x, got cpu",
            cuda_only=True,
        ),
        Bad(
            "pack, misaligned",
            lambda i: (Inputs(torch.float32, i.device).misaligned(2, 8), None, None, EPS),
            rf"{op}.*: .*needs rows, weight and bias aligned to 16 bytes",
            variant="f32x4_pack",
        ),
        Bad(
            "variant of another dtype",
            lambda i: (Inputs(torch.float32, i.device).randn(2, 8), None, None, EPS),
            rf"{op}_bf16x8_pack_f32: takes bf16, got f32",
            variant="bf16x8_pack_f32",
        ),
    )  # fmt: skip


BACKWARD_ERRORS = (
    Bad(
        "gradient of another shape",
        lambda i: (i.randn(2, 7), i.randn(2, 8), None, None, EPS),
        r"layer_norm_backward: expected grad to have shape \(2, 8\) like x, got \(2, 7\)",
    ),
    Bad(
        "gradient of another dtype",
        lambda i: (i.randn(2, 8).double(), i.randn(2, 8), None, None, EPS),
        r"layer_norm_backward: expected grad to have dtype torch\.\w+ like x, got torch\.float64",
    ),
    Bad(
        "bias of another length",
        lambda i: (i.randn(2, 8), i.randn(2, 8), None, i.randn(7), EPS),
        r"layer_norm_backward: expected bias to have shape \(8,\), .*, got \(7,\)",
    ),
    Bad(
        "gradient on the CPU",
        lambda i: (torch.ones(2, 8, dtype=i.dtype), i.randn(2, 8), None, None, EPS),
        r"layer_norm_backward: expected grad to be on cuda:\d+ like x, got cpu",
        cuda_only=True,
    ),
)


# --- properties -----------------------------------------------------------------------------------


def shift_invariant(function: Callable[..., Any], inputs: Inputs) -> None:
    """Quarters below 32 take another 32 without rounding, in every dtype."""
    x = torch.round(4 * inputs.randn(5, 96)) / 4
    weight, bias = _gentle(inputs, 96)
    torch.testing.assert_close(function(x + 32, weight, bias, EPS), function(x, weight, bias, EPS))


def rows_independent(function: Callable[..., Any], inputs: Inputs) -> None:
    x, weight, bias, eps = _of(inputs.randn(6, 264), inputs)
    changed = x.clone()
    changed[2] = inputs.randn(264, salt=3)
    rest = [0, 1, 3, 4, 5]
    before = function(x, weight, bias, eps)[rest]
    after = function(changed, weight, bias, eps)[rest]
    assert torch.equal(before, after), "a row's answer depends on another row"


def standardised(function: Callable[..., Any], inputs: Inputs) -> None:
    y = function(inputs.randn(5, 1024) + 8, None, None, 0.0).double()
    assert bool((y.mean(-1).abs() <= 4e-3).all()), "the mean of a row is not 0"
    variance = y.var(-1, correction=0)
    torch.testing.assert_close(variance, torch.ones_like(variance), rtol=8e-3, atol=0.0)


def constant_rows(function: Callable[..., Any], inputs: Inputs) -> None:
    """The mean of equal values is that value: nothing but the bias is left."""
    for cols in (96, 1000):
        _, weight, bias, eps = _of(inputs.randn(5, cols), inputs)
        y = function(_constant(inputs, 5, cols), weight, bias, eps)
        assert torch.equal(y, bias.expand(5, cols)), "a constant row leaves more than the bias"


repeatable = repeatable_gradients(lambda i, grad, x: (grad, *_of(x, i)))


def orthogonal(function: Callable[..., Any], inputs: Inputs) -> None:
    """The answer changes neither along x nor along ones; without eps, nor does its gradient."""
    grad, x = inputs.randn(5, 512, salt=2), inputs.randn(5, 512)
    dx = function(grad, x, None, None, 0.0)[0].double()
    for along in (x.double(), torch.ones_like(dx)):
        product = dx * along
        assert bool((product.sum(-1).abs() <= 2e-2 * product.abs().sum(-1)).all())
