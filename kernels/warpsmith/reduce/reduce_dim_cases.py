"""Calls on which the reductions along a dimension are tested and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample

#: What follows the tensor in a call, by position: (dim, keepdim) -> the rest.
Rest = Callable[[int, bool], tuple[Any, ...]]
Make = Callable[[Inputs], Tensor]

# --- tensors --------------------------------------------------------------------------------------

#: shape, dim, keepdim
SHAPES: tuple[tuple[tuple[int, ...], int, bool], ...] = (
    ((3, 16), -1, False),
    ((4, 3, 5), 1, False),
    ((7, 9), 0, True),
    ((7, 257), 1, False),
    ((5, 1000), -1, True),
    ((3, 1023), -1, False),
    ((1, 63), -1, False),
    ((64, 24), -1, False),
    ((129, 8), 1, False),
    ((37, 2), -1, False),
    ((12345,), 0, False),
    ((257, 40), 0, False),
    ((1000, 3), 0, False),
    ((65, 33), -2, False),
    ((2, 100, 48), 1, True),
    ((2, 3, 4, 5), -3, False),
    ((6, 1), -1, False),
    ((1, 40), 0, False),
    ((1, 1, 1), 1, False),
    ((), -1, True),
)

LARGER: tuple[tuple[tuple[int, ...], int, bool], ...] = (
    ((199, 512), -1, False),
    ((2500, 1024), -1, False),
    ((1030, 96), 1, False),
    ((37, 4100), -1, False),
    ((5, 8192), -1, False),
    ((3, 12345), -1, False),
    ((5, 65536), -1, False),
    ((2, 300001), -1, False),
    ((1 << 20,), 0, False),
    ((1 << 22,), 0, False),
    ((3, (1 << 18) + 8), 1, False),
    ((4099, 264), 0, False),
    ((20011, 33), 0, False),
    ((3, 5000, 130), 1, False),
    ((70000, 4, 8), 1, False),
)

#: label, tensor, dim
VIEWS: tuple[tuple[str, Make, int], ...] = (
    ("misaligned", lambda i: i.misaligned(5, 256), -1),
    ("misaligned by 4", lambda i: i.misaligned(5, 64, offset=4), -1),
    ("misaligned columns", lambda i: i.misaligned(40, 64), 0),
    ("row stride", lambda i: i.randn(9, 320)[:, :256], -1),
    ("odd row stride", lambda i: i.randn(9, 259)[:, :256], -1),
    ("padded columns", lambda i: i.randn(40, 96)[:, :67], 0),
    ("transposed, along rows", lambda i: i.randn(64, 24).t(), 0),
    ("transposed, along columns", lambda i: i.randn(64, 24).t(), 1),
    ("middle transposed", lambda i: i.randn(3, 4, 5, 32).transpose(1, 2), -1),
    ("outer transposed", lambda i: i.randn(4, 3, 50, 16).transpose(0, 1), 2),
    ("channels last, over channels", lambda i: i.randn(2, 5, 6, 24).permute(0, 3, 1, 2), 1),
    ("every other column", lambda i: i.randn(40, 68)[:, ::2], -1),
    ("every other row", lambda i: i.randn(40, 68)[::2], 0),
    ("both stepped", lambda i: i.randn(40, 68)[::2, ::2], 0),
    ("expanded rows", lambda i: i.randn(64).expand(9, 64), 0),
    ("expanded columns", lambda i: i.randn(9, 1).expand(9, 64), -1),
    ("expanded from one", lambda i: i.randn(1, 1).expand(9, 64), -1),
)


def _special(inputs: Inputs) -> Tensor:
    """Rows with NaN, infinities, zeros of both signs, and ties."""
    x = inputs.randn(8, 64)
    x[0, 3] = x[0, 40] = float("nan")
    x[1, 5] = float("inf")
    x[2, 7], x[2, 8] = float("-inf"), float("inf")
    x[3] = 0.0
    x[3, ::2] = -0.0
    x[4] = float("-inf")
    x[5] = float("inf")
    x[6] = float("nan")
    x[7, 10] = x[7, 50] = 100.0
    x[7, 20] = x[7, 60] = -100.0
    return x


def _ties(inputs: Inputs) -> Tensor:
    """Few values, many times each."""
    x = inputs.plain(33, 700)
    return (x * 2).round().clamp(-3, 3)


def _far_from_zero(inputs: Inputs) -> Tensor:
    """Mean 1e4, variance 1: the digits of the variance are the last ones of the values."""
    return inputs.plain(5, 4000) + 1e4


def _far_columns(inputs: Inputs) -> Tensor:
    return inputs.plain(1500, 24) + 1e4


def _late_outlier(inputs: Inputs) -> Tensor:
    x = inputs.plain(3, 5000)
    x[0, 0], x[1, 4999], x[2, 2500] = 3000.0, 3000.0, -3000.0
    return x


def _calls(rest: Rest) -> Callable[..., Callable[[Inputs], tuple[Any, ...]]]:
    def call(make: Make, dim: int, keepdim: bool = False) -> Callable[[Inputs], tuple[Any, ...]]:
        return lambda inputs: (make(inputs), *rest(dim, keepdim))

    return call


def samples(rest: Rest, *, takes_nothing: bool, huge: bool) -> tuple[Sample, ...]:
    """The calls of one operator.

    Args:
        rest: makes the arguments after the tensor.
        takes_nothing: whether it has a result for a dimension of size 0.
        huge: with tensors beyond 2^31 elements; the kernels are the same for all operators.
    """
    call = _calls(rest)

    def shaped(shape: tuple[int, ...], dim: int, keepdim: bool, small: bool) -> Sample:
        label = f"{'x'.join(map(str, shape)) or '0-d'} along {dim}{', kept' if keepdim else ''}"
        return Sample(label, call(lambda i: i.randn(*shape), dim, keepdim), small=small)

    nothing = (
        Sample("along a size of 0", call(lambda i: i.randn(4, 0), 1)),
        Sample("along a size of 0, columns", call(lambda i: i.randn(0, 5), 0, True)),
        Sample(
            "along a size of 0, transposed", call(lambda i: i.randn(4, 5, 0).transpose(0, 1), 2)
        ),
    )
    return (
        *(shaped(*case, small=True) for case in SHAPES),
        *(shaped(*case, small=False) for case in LARGER),
        *(Sample(label, call(make, dim)) for label, make, dim in VIEWS),
        Sample("no outputs", call(lambda i: i.randn(0, 16), 1)),
        Sample("no outputs, columns", call(lambda i: i.randn(16, 0), 0)),
        *(nothing if takes_nothing else ()),
        Sample("defaults", lambda i: (i.randn(4, 64),)),
        Sample("special", call(_special, -1)),
        Sample("special, columns", call(lambda i: _special(i).t(), 0)),
        Sample("special columns", call(_special, 0)),
        Sample("ties", call(_ties, -1)),
        Sample("ties, columns", call(_ties, 0)),
        Sample("values of 100", call(lambda i: i.plain(9, 1000, scale=100.0), -1)),
        Sample("far from zero", call(_far_from_zero, -1), dtypes=("f32",)),
        Sample("far from zero, columns", call(_far_columns, 0), dtypes=("f32",)),
        Sample("one outlier", call(_late_outlier, -1)),
        *(_huge(rest) if huge else ()),
    )


def _huge(rest: Rest) -> tuple[Sample, ...]:
    call = _calls(rest)
    return (
        Sample(
            "rows past 2^31 elements",
            call(lambda i: i.plain(257, (1 << 23) + 8)[:, :1024], -1),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
        Sample(
            "columns past 2^31 elements",
            call(lambda i: i.plain(257, (1 << 23) + 8)[:, :1000], 0),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
        Sample("one row of 2^31", call(_long_row, -1), small=False, huge=True, dtypes=("f16",)),
        Sample(
            "columns of 2^25",
            call(lambda i: _long_row(i)[: 1 << 31].view(1 << 25, 64), 0),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
    )


def invariant(rest: Rest) -> tuple[Sample, ...]:
    """The same calls with the promise that no other row changes the result; `rest` makes it."""
    call = _calls(rest)
    tensors: tuple[tuple[str, Make, int, bool], ...] = (
        ("7x257", lambda i: i.randn(7, 257), -1, True),
        ("transposed", lambda i: i.randn(257, 7).t(), -1, True),
        ("257x7 along 0", lambda i: i.randn(257, 7), 0, True),
        ("257x1 along 0", lambda i: i.randn(257, 1), 0, True),
        ("stepped columns", lambda i: i.randn(40, 68)[:, ::2], 0, True),
        ("0-d", lambda i: i.randn(), 0, True),
        ("4x1000", lambda i: i.randn(4, 1000), -1, True),
        ("5x8192", lambda i: i.randn(5, 8192), -1, False),
        ("3x100001", lambda i: i.randn(3, 100001), -1, False),
        ("5000x67 along 0", lambda i: i.randn(5000, 67), 0, False),
    )
    return tuple(
        Sample(f"batch invariant, {label}", call(make, dim), small=small)
        for label, make, dim, small in tensors
    )


def corrections(rest: Callable[[int], Rest]) -> tuple[Sample, ...]:
    """Variances that divide by something else than n - 1, nothing among it."""

    def call(correction: int, shape: tuple[int, ...], dim: int) -> Callable[..., tuple[Any, ...]]:
        return lambda inputs: (inputs.randn(*shape), *rest(correction)(dim, False))

    chosen = ((0, (5, 100), -1), (2, (100, 5), 0), (3, (4, 3), -1), (5, (4, 3), -1))
    return tuple(
        Sample(f"correction {c}, {'x'.join(map(str, shape))} along {dim}", call(c, shape, dim))
        for c, shape, dim in chosen
    )


def _long_row(inputs: Inputs) -> Tensor:
    """More values than a 32-bit index can count, from a repeated pattern; their sum fits f16."""
    pattern = 1 << 20
    values = inputs.randn(pattern) * 2.0**-14
    return values.repeat((1 << 11) + 1)[: (1 << 31) + 1024]


# --- benchmark ------------------------------------------------------------------------------------

BENCH_ROWS = ((65536, 1024), (16384, 8192), (2048, 131072), (512, 262144), (1, 1 << 26))
BENCH_COLUMNS = ((8192, 8192), (65536, 1024))


def bench(rest: Rest) -> tuple[Sample, ...]:
    def case(rows: int, cols: int, dim: int) -> Sample:
        label = f"{rows}x{cols}" + (" along 0" if dim == 0 else "")
        make = lambda i: (i.plain(rows, cols), *rest(dim, False))  # noqa: E731
        return Sample(label, make, small=False)

    return (
        *(case(*shape, -1) for shape in BENCH_ROWS),
        *(case(*shape, 0) for shape in BENCH_COLUMNS),
    )


# --- bad calls ------------------------------------------------------------------------------------


def errors(
    op: str, rest: Rest, first: str, *, takes_nothing: bool, floats_only: bool, positions: bool
) -> tuple[Bad, ...]:
    """What `op` refuses; `first` is the technique part of a variant that wants rows."""
    lookup = (IndexError, RuntimeError)
    nothing = (
        Bad(
            "along a size of 0",
            lambda i: (i.randn(3, 0), *rest(1, False)),
            rf"{op}: expected dimension 1 of x, which is reduced, to have a size other than 0, "
            rf"got shape \(3, 0\)",
            error=lookup,
        ),
    )
    wanted = "be a floating-point tensor" if floats_only else "hold real numbers"
    integers = (
        Bad(
            "integers",
            lambda i: (torch.ones(2, 8, dtype=torch.int32, device=i.device), *rest(-1, False)),
            rf"{op}: expected x to be a floating-point tensor, got torch\.int32",
        ),
    )
    booleans = (
        Bad(
            "booleans",
            lambda i: (torch.ones(2, 8, dtype=torch.bool, device=i.device), *rest(-1, False)),
            rf"{op}: expected x to hold real numbers, got torch\.bool",
        ),
    )
    return (
        *(integers if floats_only else ()),
        *(booleans if positions else ()),
        Bad(
            "complex numbers",
            lambda i: (torch.ones(2, 8, dtype=torch.complex64, device=i.device), *rest(-1, False)),
            rf"{op}: expected x to {wanted}, got torch\.complex64",
        ),
        Bad(
            "dimension beyond the last",
            lambda i: (i.randn(2, 8), *rest(2, False)),
            rf"{op}: expected dim to lie in \[-2, 1\], got 2",
            error=lookup,
        ),
        Bad(
            "dimension before the first",
            lambda i: (i.randn(2, 8), *rest(-3, False)),
            rf"{op}: expected dim to lie in \[-2, 1\], got -3",
            error=lookup,
        ),
        Bad(
            "dimension of a 0-d tensor",
            lambda i: (i.randn(), *rest(1, False)),
            rf"{op}: expected dim to lie in \[-1, 0\], got 1",
            error=lookup,
        ),
        *(() if takes_nothing else nothing),
        Bad(
            "pack, along columns",
            lambda i: (Inputs(torch.float32, i.device).randn(8, 8), *rest(0, False)),
            rf"{op}.*: .*needs the reduced dimension at unit stride",
            variant="f32x4_pack",
        ),
        Bad(
            "columns, along rows",
            lambda i: (Inputs(torch.float32, i.device).randn(8, 8), *rest(-1, False)),
            rf"{op}.*: .*needs the kept dimensions at unit stride",
            variant="f32x4_pack_columns",
        ),
        Bad(
            "variant of another dtype",
            lambda i: (Inputs(torch.float32, i.device).randn(2, 8), *rest(-1, False)),
            rf"{op}_{first}: takes bf16, got f32",
            variant=first,
        ),
    )
