"""Calls on which softmax, log_softmax and their gradients are tested and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample

Function = Callable[..., Any]

# --- samples --------------------------------------------------------------------------------------


def _along_last(rows: int, cols: int, *, small: bool = True) -> Sample:
    return Sample(f"{rows}x{cols}", lambda i: (i.randn(rows, cols), -1), small=small)


def _along(dim: int, *shape: int, small: bool = True) -> Sample:
    label = f"{'x'.join(str(size) for size in shape)} along {dim}"
    return Sample(label, lambda i: (i.randn(*shape), dim), small=small)


#: A result of more than 2^31 elements. In float64 it takes 16 GiB, as does what it comes from.
PAST_2_31 = (1 << 21) + 1, 1024


def samples(past: bool = False) -> tuple[Sample, ...]:
    """past: with a result past 2^31 elements; one operator of a set of kernels needs that."""
    most = Sample(
        "answers past 2^31 elements",
        lambda i: (i.plain(*PAST_2_31), -1),
        small=False,
        huge=True,
        dtypes=("f16",),
    )
    widths = (1, 2, 3, 7, 63, 64, 255, 256, 1000, 1023, 1024, 1025, 2048, 4097)
    rows = (1, 3, 33)
    return (
        *(_along_last(rows[k % 3], n) for k, n in enumerate(widths) if rows[k % 3] * n < 40_000),
        *(
            _along_last(m, n, small=False)
            for m, n in (
                (199, 512), (40001, 3), (1030, 96), (2500, 1024), (37, 1128), (5, 8192), (3, 12345),
                (3, 25216), (3, 25217), (3, 50257), (3, 50432), (3, 50434), (3, 65536), (3, 100003),
                (2, 131072), (2, 262143), (3, 262144), (2, 300001), (2600, 1029), (150, 50257),
            )
        ),
        # of as many values as clusters hold of rows that begin anywhere, and of one more
        *(
            _along_last(3, n, small=False)
            for most in (25596, 51192, 51196, 102392, 102396, 204792)
            for n in (most - 1, most + 1)
        ),
        Sample("defaults", lambda i: (i.randn(4, 64),)),
        Sample("0-d", lambda i: (i.randn(), -1)),
        Sample("1-d", lambda i: (i.randn(768), 0)),
        Sample("3-d", lambda i: (i.randn(2, 5, 128), 2)),
        Sample("trailing ones", lambda i: (i.randn(4, 9, 1, 1), 1)),
        Sample("no rows", lambda i: (i.randn(0, 16), -1)),
        Sample("no columns", lambda i: (i.randn(4, 0), -1)),
        Sample("no columns along 0", lambda i: (i.randn(0, 4), 0)),
        Sample("nothing inside", lambda i: (i.randn(3, 4, 0), 1)),
        # other dimensions
        _along(0, 5, 16),
        _along(0, 33, 31),
        _along(1, 3, 1, 8),
        _along(1, 2, 100, 24),
        _along(1, 2, 129, 7),
        _along(-2, 2, 300, 24),
        _along(0, 16, 2, 3, 8),
        _along(1, 64, 40, 72, small=False),
        _along(1, 3, 4097, 16, small=False),
        _along(0, 9001, 3, small=False),
        _along(1, 2, 20000, 40, small=False),
        # strides
        Sample("row stride", lambda i: (i.randn(9, 320)[:, :256], -1)),
        Sample("odd row stride", lambda i: (i.randn(9, 259)[:, :256], -1)),
        Sample("row stride, long", lambda i: (i.randn(3, 70001)[:, 3:40000], -1), small=False),
        Sample("expanded rows", lambda i: (i.randn(1, 64).expand(6, 64), -1)),
        Sample("expanded columns", lambda i: (i.randn(6, 1).expand(6, 64), -1)),
        Sample("transposed", lambda i: (i.randn(64, 24).t(), -1)),
        Sample("transposed along 0", lambda i: (i.randn(64, 24).t(), 0)),
        Sample("middle transposed", lambda i: (i.randn(3, 4, 5, 32).transpose(1, 2), -1)),
        Sample("misaligned", lambda i: (i.misaligned(5, 256), -1)),
        Sample("misaligned pairs", lambda i: (i.misaligned(5, 64, offset=2), -1)),
        Sample("misaligned, long", lambda i: (i.misaligned(3, 12000), -1), small=False),
        Sample("misaligned, odd", lambda i: (i.misaligned(5, 12345, offset=3), -1), small=False),
        Sample("misaligned, very long", lambda i: (i.misaligned(2, 70000), -1), small=False),
        *(
            Sample(
                f"3x{n} from the end of a line",
                lambda i, n=n: (i.misaligned(3, n, offset=63), -1),  # type: ignore[misc]
                small=False,
            )
            for n in (63, 25596, 51192, 51196, 102392, 102396, 204792)
        ),
        Sample("odd row stride, long", lambda i: (i.randn(5, 20003)[:, 1:20000], -1), small=False),
        Sample("column stride", lambda i: (i.randn(3, 20, 40)[:, :, :24], 1)),
        Sample("odd column stride", lambda i: (i.randn(3, 20, 41)[:, :, 1:25], 1)),
        Sample("every other column", lambda i: (i.randn(3, 40, 16)[:, ::2], 1)),
        Sample("misaligned columns", lambda i: (i.misaligned(3, 20, 16), 1)),
        Sample("expanded along 1", lambda i: (i.randn(3, 1, 16).expand(3, 20, 16), 1)),
        # values
        Sample("no outliers", lambda i: (i.plain(64, 1000), -1), small=False),
        Sample("no outliers along 0", lambda i: (i.plain(200, 24), 0)),
        Sample("nearly uniform", lambda i: (i.plain(5, 1000, scale=1 / 64), -1)),
        Sample("constant", lambda i: (i.plain(1, 1).expand(7, 300).contiguous(), -1)),
        Sample("scaled by 100", lambda i: (i.plain(5, 1000, scale=100.0), -1)),
        Sample("scaled by 100 along 0", lambda i: (i.plain(200, 16, scale=100.0), 0)),
        Sample("one outlier", lambda i: (_outlier(i, 1e4), -1)),
        Sample("largest numbers", lambda i: (_largest(i), -1)),
        Sample("masked", lambda i: (_masked(i, 65), -1)),
        Sample("masked along 0", lambda i: (_masked(i, 72), 0)),
        Sample("masked, long", lambda i: (_masked(i, 2056), -1), small=False),
        Sample("special", lambda i: (_special(i), -1)),
        Sample("special, long", lambda i: (_special(i, 35003), -1), small=False),
        Sample("special along 0", lambda i: (_special(i).t().contiguous(), 0)),
        # sizes
        Sample(
            "rows past 2^31 elements",
            lambda i: (i.plain(257, (1 << 23) + 8)[:, :1024], -1),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
        Sample(
            "columns past 2^31 elements",
            lambda i: (i.plain(257, (1 << 23) + 8)[:, :1024], 0),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
        *((most,) if past else ()),
    )  # fmt: skip


def _outlier(inputs: Inputs, value: float) -> Tensor:
    x = inputs.plain(5, 250)
    x[1, 7], x[2, 249], x[3] = value, -value, -value
    return x


def _largest(inputs: Inputs) -> Tensor:
    """Differences overflow, exponentials must not."""
    x = inputs.plain(4, 72)
    most = torch.finfo(inputs.dtype).max
    x[0, 5], x[1, 5], x[1, 9], x[2], x[3] = most, most, -most, -most, most
    return x


def _masked(inputs: Inputs, n: int) -> Tensor:
    """Causal scores: row k sees its first k + 1 values."""
    return inputs.randn(n, n).masked_fill_(
        torch.ones(n, n, dtype=torch.bool, device=inputs.device).triu_(1), float("-inf")
    )


def _special(inputs: Inputs, n: int = 64) -> Tensor:
    """Rows with NaN and infinities; the fourth is all -inf."""
    x = inputs.randn(8, n)
    nan, inf = float("nan"), float("inf")
    x[0, 3] = nan
    x[1, 5] = inf
    x[2, 7], x[2, 8] = -inf, inf
    x[3] = -inf
    x[4, :-1] = -inf
    x[5] = inf
    x[6, 1], x[6, 60] = nan, inf
    return x


def backward_samples(function: Function, past: bool = False) -> tuple[Sample, ...]:
    """The gradient of `function` at its own samples.

    The result lies in memory as the sample's x does, where nothing overlaps.
    """

    def answer(x: Tensor, dim: int) -> Tensor:
        y = function(x, dim)
        aligned = x.is_contiguous() and x.data_ptr() % 16 == 0
        return y if aligned or 0 in x.stride() else x.copy_(y)

    def backwards(sample: Sample) -> Sample:
        def make(inputs: Inputs) -> tuple[Any, ...]:
            x, dim = (*sample.make(inputs), -1)[:2]
            return inputs.randn(*x.shape, salt=2), answer(x, dim), dim

        return Sample(sample.label, make, sample.small, sample.huge, sample.dtypes)

    def with_grad(label: str, grad: Callable[[Inputs], Tensor], dim: int) -> Sample:
        def make(inputs: Inputs) -> tuple[Any, ...]:
            g = grad(inputs)
            return g, function(inputs.randn(*g.shape), dim), dim

        return Sample(label, make)

    return (
        *(backwards(sample) for sample in samples(past)),
        with_grad("strided gradient", lambda i: i.randn(9, 80, salt=2)[:, :64], -1),
        with_grad("expanded gradient", lambda i: i.randn(64, salt=2).expand(9, 64), -1),
        with_grad("gradient of a sum", lambda i: i.randn(1, salt=2).expand(9, 64), -1),
        with_grad("misaligned gradient", lambda i: i.misaligned(5, 64, salt=2), -1),
        with_grad("misaligned odd gradient", lambda i: i.misaligned(3, 2049, salt=2), -1),
        with_grad("transposed gradient", lambda i: i.randn(64, 24, salt=2).t(), -1),
        with_grad("strided gradient along 1", lambda i: i.randn(3, 20, 40)[:, :, :24], 1),
        with_grad("expanded gradient along 1", lambda i: i.randn(24).expand(3, 20, 24), 1),
        with_grad("misaligned gradient along 1", lambda i: i.misaligned(3, 20, 16, salt=2), 1),
    )


BENCH_SHAPES = (
    (262144, 256),
    (65536, 1024),
    (32768, 4096),
    (16384, 8192),
    (8192, 32768),
    (8192, 50257),
    (2048, 131072),
    (512, 262144),
)


def bench() -> tuple[Sample, ...]:
    return (
        *(
            Sample(f"{m}x{n}", lambda i, m=m, n=n: (i.plain(m, n), -1), small=False)  # type: ignore[misc]
            for m, n in BENCH_SHAPES
        ),
        Sample("64x1024x1024 along 1", lambda i: (i.plain(64, 1024, 1024), 1), small=False),
    )


def bench_backward(function: Function) -> tuple[Sample, ...]:
    def backwards(sample: Sample) -> Sample:
        def make(inputs: Inputs) -> tuple[Any, ...]:
            x, dim = sample.make(inputs)
            return inputs.plain(*x.shape, salt=2), function(x, dim), dim

        return Sample(sample.label, make, small=False)

    return tuple(backwards(sample) for sample in bench())


# --- bad calls ------------------------------------------------------------------------------------


def _f32(i: Inputs) -> Inputs:
    return Inputs(torch.float32, i.device)


def errors(op: str) -> tuple[Bad, ...]:
    return (
        Bad(
            "integers",
            lambda i: (torch.ones(2, 8, dtype=torch.int32, device=i.device), -1),
            rf"{op}: expected x to be a floating-point tensor, got torch\.int32",
        ),
        Bad(
            "dim beyond the last",
            lambda i: (i.randn(2, 8), 2),
            rf"{op}: expected dim to lie in \[-2, 1\], got 2",
            error=(IndexError, RuntimeError),
        ),
        Bad(
            "dim before the first",
            lambda i: (i.randn(2, 8), -3),
            rf"{op}: expected dim to lie in \[-2, 1\], got -3",
            error=(IndexError, RuntimeError),
        ),
        Bad(
            "dim of 0-d",
            lambda i: (i.randn(), 1),
            rf"{op}: expected dim to lie in \[-1, 0\], got 1",
            error=(IndexError, RuntimeError),
        ),
        Bad(
            "pack, misaligned",
            lambda i: (_f32(i).misaligned(2, 8), -1),
            rf"{op}.*: .*needs rows aligned to 16 bytes",
            variant="f32x4_pack_online",
        ),
        Bad(
            "warp, row too long",
            lambda i: (_f32(i).plain(2, 1025), -1),
            rf"{op}.*: .*needs at most 1024 columns",
            variant="f32_warp",
        ),
        Bad(
            "shared, row too long",
            lambda i: (_f32(i).plain(2, 25217), -1),
            rf"{op}.*: .*needs rows of at most 98\.5 KiB",
            variant="f32_shared",
        ),
        Bad(
            "peeled, row too long",
            lambda i: (_f32(i).plain(1, 262145), -1),
            rf"{op}.*: .*(needs rows of at most 1 MiB|sm_90)",
            variant="f32x4_pack_peeled",
        ),
        Bad(
            "peeled registers, row too long",
            lambda i: (_f32(i).plain(1, 102397), -1),
            rf"{op}.*: .*(needs rows of at most 409584 bytes|sm_90)",
            variant="f32x4_pack_peeled_registers",
        ),
        Bad(
            "rows along the first dimension",
            lambda i: (_f32(i).plain(4, 8), 0),
            rf"{op}.*: .*works along the last dimension",
            variant="f32_online",
        ),
        Bad(
            "columns along the last dimension",
            lambda i: (_f32(i).plain(4, 8), 1),
            rf"{op}.*: .*works along another dimension than the last",
            variant="f32_columns",
        ),
        Bad(
            "variant of another dtype",
            lambda i: (_f32(i).randn(2, 8), -1),
            rf"{op}_bf16x8_pack_online_f32: takes bf16, got f32",
            variant="bf16x8_pack_online_f32",
        ),
    )


def backward_errors(op: str) -> tuple[Bad, ...]:
    return (
        Bad(
            "integers",
            lambda i: (i.randn(2, 8), torch.ones(2, 8, dtype=torch.int32, device=i.device), -1),
            rf"{op}: expected y to be a floating-point tensor, got torch\.int32",
        ),
        Bad(
            "gradient of another shape",
            lambda i: (i.randn(2, 7), i.randn(2, 8), -1),
            rf"{op}: expected grad to have shape \(2, 8\) like y, got \(2, 7\)",
        ),
        Bad(
            "gradient of another dtype",
            lambda i: (i.randn(2, 8).double(), i.randn(2, 8), -1),
            rf"{op}: expected grad to have dtype torch\.\w+ like y, got torch\.float64",
        ),
        Bad(
            "gradient on the CPU",
            lambda i: (torch.ones(2, 8, dtype=i.dtype), i.randn(2, 8), -1),
            rf"{op}: expected grad to be on cuda:\d+ like y, got cpu",
            cuda_only=True,
        ),
        Bad(
            "dim beyond the last",
            lambda i: (i.randn(2, 8), i.randn(2, 8), 2),
            rf"{op}: expected dim to lie in \[-2, 1\], got 2",
            error=(IndexError, RuntimeError),
        ),
        Bad(
            "columns along the last dimension",
            lambda i: (_f32(i).plain(4, 8), _f32(i).plain(4, 8), 1),
            rf"{op}.*: .*works along another dimension than the last",
            variant="f32_columns",
        ),
    )


# --- properties -----------------------------------------------------------------------------------

#: Row lengths that the rungs share out among themselves.
_WIDTHS = (3, 63, 1000, 1023, 1024, 4096, 12345)
#: What the sum of a row is off by at most, in f32: a few ulp. PyTorch on a CPU adds one by one.
_SUM_ERROR = 16 * torch.finfo(torch.float32).eps


def _eps(inputs: Inputs) -> float:
    return torch.finfo(inputs.dtype).eps


def rows_sum_to_one(softmax: Function, inputs: Inputs) -> None:
    """Every result is rounded by half an ulp of its own, together half an ulp of 1 at most; the
    arithmetic before that is f32's, within a few ulp.
    """
    subnormal = torch.finfo(inputs.dtype).smallest_normal * _eps(inputs)
    for n in _WIDTHS:
        for x, dim in (
            (inputs.randn(5, n), -1),
            (inputs.plain(5, n, scale=100.0), -1),
            (inputs.plain(n, 5), 0),
        ):
            off = float((softmax(x, dim).double().sum(dim) - 1).abs().max())
            assert off <= _eps(inputs) / 2 + _SUM_ERROR + n * subnormal, (
                f"{n} values: off by {off:.3g}"
            )


def exponentials_sum_to_one(log_softmax: Function, inputs: Inputs) -> None:
    """A result y is rounded by eps |y| / 2, which moves its exponential by as much, relatively."""
    for n in _WIDTHS:
        for x, dim in ((inputs.randn(5, n), -1), (inputs.plain(n, 5), 0)):
            y = log_softmax(x, dim).double()
            off = (y.exp().sum(dim) - 1).abs()
            allowed = _SUM_ERROR + _eps(inputs) * (y.exp() * y.abs()).sum(dim)
            assert bool((off <= allowed).all()), f"{n} values: {float(off.max()):.3g}"


def shift_invariant(function: Function, inputs: Inputs) -> None:
    """These sums are exact at every dtype, so not a bit may change."""
    for n in (63, 1024, 4096):
        x = (inputs.plain(5, n) * 4).round().clamp(-8, 8) / 4
        assert torch.equal(function(x + 8, -1), function(x, -1))
        assert torch.equal(function(x.t() - 8, 0), function(x.t(), 0))


def keeps_the_order(function: Function, inputs: Inputs) -> None:
    """Larger inputs have no smaller results, and the largest stays where it is."""
    for n in _WIDTHS:
        x = (inputs.plain(3, n) * 16).round() / 16
        x[:, n // 2] = 9.0
        y = function(x, -1)
        assert bool((y.argmax(-1) == n // 2).all())
        ordered = y.gather(-1, x.argsort(-1))
        assert bool((ordered.diff(dim=-1) >= 0).all())


def masked_out(softmax: Function, inputs: Inputs) -> None:
    """-inf gets 0, and a row of nothing else is NaN as in PyTorch."""
    for n in (40, 1023, 4096):
        x = inputs.plain(4, n)
        x[:, n // 4 :: 3] = float("-inf")
        x[2] = float("-inf")
        for y in (softmax(x, -1), softmax(x.t().contiguous(), 0).t()):
            rest = [0, 1, 3]
            assert bool(y[2].isnan().all())
            assert bool((y[rest] == 0).eq(x[rest] == float("-inf")).all())


def one_outlier(softmax: Function, inputs: Inputs) -> None:
    for n in (40, 1023, 4096):
        x = inputs.plain(3, n)
        x[:, 11] = 1e4
        y = softmax(x, -1)
        assert bool((y[:, 11] == 1).all())
        assert int(y.count_nonzero()) == 3


def keeps_small_results(softmax: Function, inputs: Inputs) -> None:
    """exp(-90) is subnormal in f32 and bf16, and no zero; in f16 exp(-16) is."""
    below = -16.0 if inputs.dtype == torch.float16 else -90.0
    for n in (8, 2048):
        x = torch.full((2, n), below, dtype=inputs.dtype, device=inputs.device)
        x[:, 5] = 0.0
        exact = torch.softmax(x.double(), -1)
        off = (softmax(x, -1).double() - exact).abs()
        step = torch.finfo(inputs.dtype).smallest_normal * _eps(inputs)
        assert bool((off <= 2 * _eps(inputs) * exact + step).all())


def accurate_far_below(log_softmax: Function, inputs: Inputs) -> None:
    """Nothing cancels in very negative results."""
    for n in (40, 1023, 4096):
        x = inputs.plain(3, n, scale=10.0)
        x[:, 11] = 1e4
        exact = torch.log_softmax(x.double(), -1)
        off = (log_softmax(x, -1).double() - exact).abs()
        assert bool((off <= 2 * _eps(inputs) * exact.abs()).all())


def batch_invariant(function: Function, inputs: Inputs) -> None:
    """A row has the same bits whatever stands around it, and in every run."""
    for n in _WIDTHS:
        x = inputs.randn(7, n)
        y = function(x, -1)
        assert torch.equal(function(x, -1), y), f"{n}: differs from run to run"
        for row in (0, 3, 6):
            alone = function(x[row : row + 1].clone(), -1)
            assert torch.equal(alone[0], y[row]), f"{n}: row {row} alone differs"
        columns = inputs.randn(3, n, 8)
        y = function(columns, 1)
        assert torch.equal(function(columns[1:2].clone(), 1)[0], y[1]), f"{n}: columns differ"
        if y.is_cuda:  # PyTorch on a CPU makes no such promise
            fewer = function(columns[:, :, :5].contiguous(), 1)
            assert torch.equal(fewer, y[:, :, :5]), f"{n}: fewer columns differ"


def same_bits_anywhere(function: Function, inputs: Inputs) -> None:
    """A row has the same bits wherever it begins, as long as its rung does not ask for packs."""
    for n in (1025, 16383, 32769, 50257, 51191, 102391):
        row = inputs.randn(n)
        wanted = function(row, -1)
        for offset in (1, 2, 3, 7, 31, 63) if wanted.is_cuda else ():
            there = torch.empty(n + offset, dtype=row.dtype, device=row.device)[offset:]
            there.copy_(row)
            assert torch.equal(function(there, -1), wanted), f"{n} values from {offset} on"
        rows = function(row.expand(9, n).contiguous(), -1)  # each begins at another place
        if wanted.is_cuda:
            assert torch.equal(rows, wanted.expand(9, n)), f"{n} values in each row"


def gradient_sums_to_zero(forward: Function) -> Callable[[Function, Inputs], None]:
    """The result does not change when a row is shifted, so its gradient has no part along that.

    Judged at the result of float64 rounded once.
    """

    def check(backward: Function, inputs: Inputs) -> None:
        for n in (63, 1000, 4096):
            grad, x = inputs.plain(5, n, salt=2), inputs.plain(5, n)
            dx = backward(grad, forward(x.double(), -1).to(inputs.dtype), -1).double()
            allowed = 4 * _eps(inputs) * (dx.abs().sum(-1) + grad.double().abs().sum(-1))
            assert bool((dx.sum(-1).abs() <= allowed).all())

    return check


def gradient_batch_invariant(backward: Function, inputs: Inputs) -> None:
    """A row's gradient has the same bits whatever stands around it, and in every run."""
    for n in _WIDTHS:
        grad, y = inputs.randn(7, n, salt=2), inputs.plain(7, n).abs()
        dx = backward(grad, y, -1)
        assert torch.equal(backward(grad, y, -1), dx), f"{n}: differs from run to run"
        for row in (0, 3, 6) if dx.is_cuda else ():  # PyTorch on a CPU makes no such promise
            alone = backward(grad[row : row + 1].clone(), y[row : row + 1].clone(), -1)
            assert torch.equal(alone[0], dx[row]), f"{n}: row {row} alone differs"
