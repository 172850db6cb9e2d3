"""Calls on which rms_norm and its gradient are tested and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample

EPS = 1e-6
#: One row more than 2^31 elements.
PAST_2_31 = ((1 << 21) + 1, 1024)

# --- samples --------------------------------------------------------------------------------------


def _plain_rows(rows: int, cols: int, *, small: bool = True) -> Sample:
    return Sample(
        f"{rows}x{cols}",
        lambda i: (i.randn(rows, cols), i.randn(cols, salt=1), EPS),
        small=small,
    )


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
        Sample("no weight", lambda i: (i.randn(7, 256), None, EPS)),
        Sample("no weight, odd", lambda i: (i.randn(7, 129), None, EPS)),
        Sample("no weight, long", lambda i: (i.randn(3, 40960), None, EPS), small=False),
        Sample(
            "f32 weight",
            lambda i: (i.randn(5, 1024), i.randn(1024, salt=1).float(), EPS),
            dtypes=("f16", "bf16"),
        ),
        Sample(
            "f32 weight, long",
            lambda i: (i.randn(3, 65536), i.randn(65536, salt=1).float(), EPS),
            small=False,
            dtypes=("f16", "bf16"),
        ),
        Sample("defaults", lambda i: (i.randn(4, 64),)),
        Sample("1-d", lambda i: (i.randn(768), i.randn(768, salt=1), EPS)),
        Sample("3-d", lambda i: (i.randn(2, 5, 128), i.randn(128, salt=1), EPS)),
        Sample("4-d", lambda i: (i.randn(2, 3, 4, 72), i.randn(72, salt=1), EPS)),
        Sample("no rows", lambda i: (i.randn(0, 16), i.randn(16, salt=1), EPS)),
        Sample("no columns", lambda i: (i.randn(4, 0), i.randn(0, salt=1), EPS)),
        Sample("row stride", lambda i: (i.randn(9, 320)[:, :256], i.randn(256, salt=1), EPS)),
        Sample("odd row stride", lambda i: (i.randn(9, 259)[:, :256], i.randn(256, salt=1), EPS)),
        Sample(
            "row stride, long",
            lambda i: (i.randn(3, 70000)[:, :65536], i.randn(65536, salt=1), EPS),
            small=False,
        ),
        Sample("expanded rows", lambda i: (i.randn(1, 64).expand(6, 64), i.randn(64, salt=1), EPS)),
        Sample("transposed", lambda i: (i.randn(64, 24).t(), i.randn(64, salt=1), EPS)),
        Sample(
            "middle transposed",
            lambda i: (i.randn(3, 4, 5, 32).transpose(1, 2), i.randn(32, salt=1), EPS),
        ),
        Sample("misaligned", lambda i: (i.misaligned(5, 256), i.randn(256, salt=1), EPS)),
        Sample("misaligned pairs", lambda i: (i.misaligned(5, 64, offset=2), None, EPS)),
        Sample("misaligned weight", lambda i: (i.randn(5, 256), i.misaligned(256, salt=1), EPS)),
        Sample("strided weight", lambda i: (i.randn(5, 64), i.randn(128, salt=1)[::2], EPS)),
        Sample("large eps", lambda i: (i.randn(3, 64), i.randn(64, salt=1), 10.0)),
        Sample("eps 0", lambda i: (i.randn(3, 64), i.randn(64, salt=1), 0.0)),
        Sample(
            "small values", lambda i: (i.plain(3, 1000, scale=1e-3), i.randn(1000, salt=1), EPS)
        ),
        Sample(
            "squares beyond f16",
            lambda i: (i.plain(3, 1024, scale=1e4), i.randn(1024, salt=1), EPS),
        ),
        Sample("values of 100", lambda i: (i.plain(5, 1024, scale=100.0), i.randn(1024), EPS)),
        Sample("one outlier a row", lambda i: (outliers(i, 5, 1000), i.randn(1000, salt=1), EPS)),
        Sample(
            "one outlier a row, long",
            lambda i: (outliers(i, 3, 40000), i.randn(40000, salt=1), EPS),
            small=False,
        ),
        Sample("special", lambda i: (_special(i), i.randn(64, salt=1), EPS)),
        *past_2_31(lambda i, x: (x, i.plain(x.shape[1], salt=1), EPS)),
    )


def far_apart(inputs: Inputs, salt: int = 0) -> Tensor:
    """[257, 1024], of which the last row begins past 2^31 elements."""
    return inputs.plain(257, (1 << 23) + 8, salt=salt)[:, :1024]


def past_2_31(call: Callable[[Inputs, Tensor], tuple[Any, ...]]) -> tuple[Sample, ...]:
    """Two samples, of `call(inputs, x)`: x has so many elements, or spans them."""

    def huge(label: str, x: Callable[[Inputs], Tensor]) -> Sample:
        return Sample(label, lambda i: call(i, x(i)), small=False, huge=True, dtypes=("f16",))

    return (
        huge("output past 2^31 elements", lambda i: i.plain(*PAST_2_31)),
        huge("rows past 2^31 elements", far_apart),
    )


def outliers(inputs: Inputs, rows: int, cols: int) -> Tensor:
    """Normal rows but for one value each, of magnitude 5000 and of a place of its own."""
    x = inputs.plain(rows, cols)
    for row in range(rows):
        x[row, (row + 1) * cols // (rows + 1)] = 5e3 * (-1) ** row
    return x


def _special(inputs: Inputs) -> Tensor:
    """Rows with NaN, infinities and zeros."""
    x = inputs.randn(5, 64)
    x[0, 3] = float("nan")
    x[1, 5] = float("inf")
    x[2, 7], x[2, 8] = float("-inf"), float("inf")
    x[3] = 0.0
    return x


def with_rstd_samples() -> tuple[Sample, ...]:
    """Weights around 1: from the output, x / rms comes with the digits of x."""

    def of(x: Tensor, i: Inputs) -> tuple[Any, ...]:
        return x, i.plain(x.shape[-1], scale=0.1, salt=1) + 1, EPS

    def plain(m: int, n: int, *, small: bool) -> Sample:
        return Sample(f"{m}x{n}", lambda i: of(i.plain(m, n), i), small=small)

    sizes = (
        (5, 1), (7, 3), (3, 7), (9, 63), (4, 64), (7, 129), (19, 256), (3, 1000), (2, 1023),
        (9, 1024),
    )  # fmt: skip
    long = (
        (199, 512), (20011, 256), (3, 12345), (5, 32768), (2, 65544), (2, 131072), (3, 262144),
        (2, 300001), (1, 600000),
    )  # fmt: skip
    return (
        *(plain(m, n, small=True) for m, n in sizes),
        *(plain(m, n, small=False) for m, n in long),
        Sample("no weight", lambda i: (i.plain(7, 256), None, EPS)),
        Sample(
            "f32 weight",
            lambda i: (i.plain(5, 264), i.plain(264, salt=1).float().abs() + 1, EPS),
            dtypes=("f16", "bf16"),
        ),
        Sample(
            "f32 weight, long",
            lambda i: (i.plain(3, 131072), i.plain(131072, salt=1).float().abs() + 1, EPS),
            small=False,
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
        Sample("special", lambda i: of(_special(i), i)),
        *past_2_31(lambda i, x: of(x, i)),
    )


def _with_gradient(sample: Sample) -> Sample:
    """The same call, backwards: a gradient like x in front."""

    def make(inputs: Inputs) -> tuple[Any, ...]:
        x, weight, eps = (*sample.make(inputs), None, EPS)[:3]
        return inputs.randn(*x.shape, salt=2), x, weight, eps

    return Sample(sample.label, make, sample.small, sample.huge, sample.dtypes)


def backward_samples() -> tuple[Sample, ...]:
    return (
        *(_with_gradient(s) for s in samples()),
        Sample(
            "strided gradient",
            lambda i: (i.randn(9, 80, salt=2)[:, :64], i.randn(9, 64), i.randn(64, salt=1), EPS),
        ),
        Sample(
            "expanded gradient",
            lambda i: (i.randn(64, salt=2).expand(9, 64), i.randn(9, 64), i.randn(64), EPS),
        ),
        Sample(
            "misaligned gradient",
            lambda i: (i.misaligned(5, 64, salt=2), i.randn(5, 64), i.randn(64, salt=1), EPS),
        ),
        Sample(
            "many rows",
            lambda i: (i.randn(20011, 32, salt=2), i.randn(20011, 32), i.randn(32, salt=1), EPS),
            small=False,
        ),
    )


BENCH_SHAPES = (
    (262144, 256),
    (65536, 1024),
    (32768, 4096),
    (16384, 8192),
    (8192, 32768),
    (2048, 131072),
    (512, 262144),
)


def bench(rows: int, cols: int) -> Sample:
    return Sample(
        f"{rows}x{cols}",
        lambda i: (i.plain(rows, cols), i.plain(cols, salt=1), EPS),
        small=False,
    )


def bench_backward(rows: int, cols: int) -> Sample:
    return Sample(
        f"{rows}x{cols}",
        lambda i: (i.plain(rows, cols, salt=2), i.plain(rows, cols), i.plain(cols, salt=1), EPS),
        small=False,
    )


# --- bad calls ------------------------------------------------------------------------------------

ERRORS = (
    Bad(
        "integers",
        lambda i: (torch.ones(2, 8, dtype=torch.int32, device=i.device), None, EPS),
        r"rms_norm: expected x to be a floating-point tensor, got torch\.int32",
    ),
    Bad(
        "0-d",
        lambda i: (i.randn(), None, EPS),
        r"rms_norm: expected at least 1 dimension in x, got shape \(\)",
    ),
    Bad(
        "weight of another length",
        lambda i: (i.randn(2, 8), i.randn(7), EPS),
        r"rms_norm: expected weight to have shape \(8,\), the last dimension of x, got \(7,\)",
    ),
    Bad(
        "2-d weight",
        lambda i: (i.randn(2, 8), i.randn(1, 8), EPS),
        r"rms_norm: expected weight to have shape \(8,\), .*, got \(1, 8\)",
    ),
    Bad(
        "integer weight",
        lambda i: (i.randn(2, 8), torch.ones(8, dtype=torch.int64, device=i.device), EPS),
        r"rms_norm: expected weight to have dtype torch\.\w+.*, got torch\.int64",
    ),
    Bad(
        "weight on the CPU",
        lambda i: (i.randn(2, 8), torch.ones(8), EPS),
        r"rms_norm: expected weight to be on cuda:\d+ like x, got cpu",
        cuda_only=True,
    ),
    Bad(
        "pack, misaligned",
        lambda i: (Inputs(torch.float32, i.device).misaligned(2, 8), None, EPS),
        r"rms_norm.*: .*needs rows and weight aligned to 16 bytes",
        variant="f32x4_pack",
    ),
    Bad(
        "registers, row too long",
        lambda i: (Inputs(torch.float32, i.device).plain(1, 32772), None, EPS),
        r"rms_norm.*: .*needs rows of at most 128 KiB",
        variant="f32x4_pack_registers",
    ),
    Bad(
        "variant of another dtype",
        lambda i: (Inputs(torch.float32, i.device).randn(2, 8), None, EPS),
        r"rms_norm_bf16x8_pack_f32: takes bf16, got f32",
        variant="bf16x8_pack_f32",
    ),
)

WITH_RSTD_ERRORS = (
    Bad(
        "integers",
        lambda i: (torch.ones(2, 8, dtype=torch.int32, device=i.device), None, EPS),
        r"rms_norm_with_rstd: expected x to be a floating-point tensor, got torch\.int32",
    ),
    Bad(
        "weight of another length",
        lambda i: (i.randn(2, 8), i.randn(7), EPS),
        r"rms_norm_with_rstd: expected weight to have shape \(8,\), .*, got \(7,\)",
    ),
    Bad(
        "pack, misaligned",
        lambda i: (Inputs(torch.float32, i.device).misaligned(2, 8), None, EPS),
        r"rms_norm_with_rstd.*: .*needs rows and weight aligned to 16 bytes",
        variant="f32x4_pack",
    ),
    Bad(
        "registers, row too long",
        lambda i: (Inputs(torch.float32, i.device).plain(1, 32772), None, EPS),
        r"rms_norm_with_rstd.*: .*needs rows of at most 128 KiB",
        variant="f32x4_pack_registers",
    ),
)

BACKWARD_ERRORS = (
    Bad(
        "gradient of another shape",
        lambda i: (i.randn(2, 7), i.randn(2, 8), None, EPS),
        r"rms_norm_backward: expected grad to have shape \(2, 8\) like x, got \(2, 7\)",
    ),
    Bad(
        "gradient of another dtype",
        lambda i: (i.randn(2, 8).double(), i.randn(2, 8), None, EPS),
        r"rms_norm_backward: expected grad to have dtype torch\.\w+ like x, got torch\.float64",
    ),
    Bad(
        "weight of another length",
        lambda i: (i.randn(2, 8), i.randn(2, 8), i.randn(7), EPS),
        r"rms_norm_backward: expected weight to have shape \(8,\), .*, got \(7,\)",
    ),
    Bad(
        "gradient on the CPU",
        lambda i: (torch.ones(2, 8, dtype=i.dtype), i.randn(2, 8), None, EPS),
        r"rms_norm_backward: expected grad to be on cuda:\d+ like x, got cpu",
        cuda_only=True,
    ),
)


# --- properties -----------------------------------------------------------------------------------


def same_twice(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    pairs = zip(function(*args), function(*args), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs), "two calls differ"


#: Many rows, odd rows and long ones, whose sums over rows are added up in three different ways.
_SUMMED = ((1031, 264), (129, 129), (40, 8200))


def repeatable_gradients(
    arguments: Callable[[Inputs, Tensor, Tensor], tuple[Any, ...]],
) -> Callable[[Callable[..., Any], Inputs], None]:
    """Every gradient, those of weight and bias included, is the same bit for bit in every run.

    Args:
        arguments: those of the operator, given a gradient and rows like it.
    """

    def check(function: Callable[..., Any], inputs: Inputs) -> None:
        for shape in _SUMMED:
            grad, x = inputs.plain(*shape, salt=2), inputs.plain(*shape)
            same_twice(function, arguments(inputs, grad, x))

    return check


repeatable = repeatable_gradients(
    lambda i, grad, x: (grad, x, i.plain(x.shape[-1], salt=1), EPS),
)


def scale_invariant(function: Callable[..., Any], inputs: Inputs) -> None:
    """A power of two changes no rounding, so it leaves the answer as it was where eps is 0."""
    x, weight = inputs.randn(5, 96), inputs.randn(96, salt=1)
    torch.testing.assert_close(function(4 * x, weight, 0.0), function(x, weight, 0.0))


def rows_independent(function: Callable[..., Any], inputs: Inputs) -> None:
    x, weight = inputs.randn(6, 264), inputs.randn(264, salt=1)
    changed = x.clone()
    changed[2] = inputs.randn(264, salt=3)
    rest = [0, 1, 3, 4, 5]
    before, after = function(x, weight, EPS)[rest], function(changed, weight, EPS)[rest]
    assert torch.equal(before, after), "a row's answer depends on another row"


def unit_rms(function: Callable[..., Any], inputs: Inputs) -> None:
    y = function(inputs.randn(5, 1024), None, 0.0).double()
    rms = y.square().mean(-1).sqrt()
    torch.testing.assert_close(rms, torch.ones_like(rms), rtol=4e-3, atol=0.0)


def orthogonal(function: Callable[..., Any], inputs: Inputs) -> None:
    """The answer does not change along x, so without eps its gradient is orthogonal to x."""
    grad, x = inputs.randn(5, 512, salt=2), inputs.randn(5, 512)
    dx, _ = function(grad, x, None, 0.0)
    product = dx.double() * x.double()
    assert bool((product.sum(-1).abs() <= 2e-2 * product.abs().sum(-1)).all())
