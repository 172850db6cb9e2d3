"""Calls on which the residual norms with dropout are tested and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.norm.add_norm_cases import BENCH_SHAPES, HALVES, of
from warpsmith.norm.norms import Norm
from warpsmith.norm.plain_cases import PAST_2_31, far_apart, repeatable_gradients
from warpsmith.spec import philox

RMS = Norm(layer=False, source="dropout_add")

P, SEED, OFFSET = 0.1, 0x1234_5678_9ABC, 3


def _call(
    norm: Norm,
    i: Inputs,
    x: Tensor,
    residual: Tensor | None,
    row_scale: Tensor | None = None,
    p: float = P,
    seed: int = SEED,
    offset: int = OFFSET,
    *,
    wide: bool = False,
    zero_centered: bool = False,
) -> tuple[Any, ...]:
    x, residual, *affine, eps, centered = of(
        norm, i, x, residual, wide, zero_centered=zero_centered
    )
    return x, residual, *affine, row_scale, p, seed, offset, eps, centered


def _row_scale(i: Inputs, *shape: int) -> Tensor:
    """Stochastic depth: every third row is dropped."""
    scale = torch.full(shape, 1.5, device=i.device)
    scale.view(-1)[2::3] = 0.0
    return scale


def samples(norm: Norm) -> tuple[Sample, ...]:
    def sample(
        label: str,
        *shape: int,
        p: float = P,
        scaled: bool = True,
        small: bool = True,
        huge: bool = False,
        dtypes: tuple[str, ...] | None = None,
        wide: str = "",
        **options: Any,
    ) -> Sample:
        def make(i: Inputs) -> tuple[Any, ...]:
            x, residual = i.randn(*shape), i.randn(*shape, salt=1)
            row_scale = _row_scale(i, *shape[:-1]) if scaled else None
            if "residual" in wide:
                residual = residual.float() + 2.0**-12
            return _call(norm, i, x, residual, row_scale, p, wide="weight" in wide, **options)

        return Sample(label, make, small=small, huge=huge, dtypes=dtypes)

    small = ((3, 1), (5, 3), (7, 7), (2, 63), (9, 64), (33, 32), (3, 1000), (2, 1023), (3, 1024))
    large = ((199, 512), (37, 2048), (2, 4096), (3, 8192), (3, 12345), (3, 16384), (2, 40000))
    many = ((300, 16640), (150, 65536), (40, 262144))
    return (
        *(sample(f"{m}x{n}", m, n) for m, n in small),
        *(sample(f"{m}x{n}", m, n, small=False) for m, n in (*large, (1, 131072), (1, 300001))),
        *(sample(f"{m}x{n}", m, n, small=False, huge=True) for m, n in many),
        sample("half dropped", 5, 96, p=0.5),
        sample("all dropped", 5, 96, p=1.0),
        sample("nothing dropped", 5, 96, p=0.0),
        sample("nothing dropped, rows alike", 5, 96, p=0.0, scaled=False),
        sample("rows alike", 5, 129, scaled=False),
        sample("negative seed", 5, 96, seed=-5, offset=-7),
        sample("zero-centred", 3, 128, zero_centered=True),
        sample("1-d", 768),
        sample("3-d", 2, 5, 72),
        sample("no rows", 0, 16),
        sample("no columns", 4, 0),
        sample("f32 residual", 5, 256, wide="residual", dtypes=HALVES),
        sample("f32 residual, odd", 5, 129, wide="residual", dtypes=HALVES),
        sample("f32 residual, long", 3, 20000, wide="residual", small=False, dtypes=HALVES),
        sample("f32 weight", 5, 256, wide="weight", dtypes=HALVES),
        sample("f32 residual and weight", 5, 64, wide="residual weight", dtypes=HALVES),
        Sample(
            "hundredfold",
            lambda i: _call(
                norm, i, i.plain(5, 1000, scale=100.0), i.plain(5, 1000, scale=100.0, salt=1)
            ),
        ),
        Sample("special", lambda i: _call(norm, i, _special(i), i.randn(5, 64, salt=1))),
        Sample(
            "special, rows dropped",
            lambda i: _call(norm, i, _special(i), i.randn(5, 64, salt=1), _row_scale(i, 5), p=0.5),
        ),
        *(() if norm.layer else _PAST_2_31),
        Sample("no residual", lambda i: _call(norm, i, i.randn(5, 256), None)),
        Sample("no residual, odd", lambda i: _call(norm, i, i.randn(5, 129), None)),
        Sample(
            "row stride",
            lambda i: _call(norm, i, i.randn(9, 96)[:, :64], i.randn(9, 80, salt=1)[:, 16:]),
        ),
        Sample(
            "transposed", lambda i: _call(norm, i, i.randn(64, 24).t(), i.randn(24, 64, salt=1))
        ),
        Sample(
            "misaligned",
            lambda i: _call(norm, i, i.misaligned(5, 64), i.randn(5, 64, salt=1)),
        ),
        Sample(
            "strided row scale",
            lambda i: _call(
                norm, i, i.randn(9, 64), i.randn(9, 64, salt=1), _row_scale(i, 9, 2)[:, 1]
            ),
        ),
        Sample("defaults", lambda i: (i.randn(4, 64), i.randn(4, 64, salt=1))),
        Sample(
            "rows past 2^31 elements",
            lambda i: _call(norm, i, far_apart(i), far_apart(i, salt=1), _row_scale(i, 257)),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
    )


#: One of the two for both, as their offsets and the counters of the generator are the same code.
_PAST_2_31 = (
    Sample(
        "outputs past 2^31 elements",
        lambda i: _call(RMS, i, i.plain(*PAST_2_31), i.plain(*PAST_2_31, salt=1)),
        small=False,
        huge=True,
        dtypes=("f16",),
    ),
)


def _special(i: Inputs) -> Tensor:
    """Rows with NaN, infinities, kept and dropped, and zeros. Of even length: what PyTorch answers
    for a row with an infinity depends on its kernel, which is another for odd ones on GPUs.
    """
    x = i.randn(5, 64)
    x[0, 3:9] = float("nan")
    x[1, 5:11] = float("inf")
    x[2, 7:11], x[2, 11:14] = float("-inf"), float("inf")
    x[3] = 0.0
    return x


def backward_samples(norm: Norm) -> tuple[Sample, ...]:
    def backward(sample: Sample) -> Sample:
        """x turns into its norm's gradient, the residual into h."""

        def make(i: Inputs) -> tuple[Any, ...]:
            x, residual, *rest = sample.make(i)
            if residual is None:
                return i.randn(*x.shape, salt=4), None, x, *rest
            return x, i.randn(*x.shape, salt=4).to(residual.dtype), residual, *rest

        return Sample(sample.label, make, sample.small, sample.huge, sample.dtypes)

    def special(i: Inputs) -> tuple[Any, ...]:
        """In h; infinite gradients make whole columns of dw infinite."""
        h = _special(i)
        return i.randn(5, 64), None, h, *_call(norm, i, h, None, _row_scale(i, 5))[2:]

    def past_2_31(i: Inputs) -> tuple[Any, ...]:
        """Without grad_h, for which a GPU has no room in f64."""
        h = i.plain(*PAST_2_31)
        return i.plain(*PAST_2_31, salt=4), None, h, *_call(norm, i, h, None)[2:]

    others = ("defaults", "special", "special, rows dropped", _PAST_2_31[0].label)
    return (
        *(backward(s) for s in samples(norm) if s.label not in others),
        Sample("special", special),
        Sample(_PAST_2_31[0].label, past_2_31, small=False, huge=True, dtypes=_PAST_2_31[0].dtypes),
    )


def bench(norm: Norm) -> tuple[Sample, ...]:
    def case(rows: int, cols: int) -> Sample:
        def make(i: Inputs) -> tuple[Any, ...]:
            x, residual = i.plain(rows, cols), i.plain(rows, cols, salt=1)
            return _call(norm, i, x, residual, _row_scale(i, rows))

        return Sample(f"{rows}x{cols}", make, small=False)

    return tuple(case(*shape) for shape in _BENCH)


def bench_backward(norm: Norm) -> tuple[Sample, ...]:
    def case(rows: int, cols: int) -> Sample:
        def make(i: Inputs) -> tuple[Any, ...]:
            grad, grad_h, h = (i.plain(rows, cols, salt=k) for k in range(3))
            return (
                grad,
                grad_h,
                *_call(norm, i, h, None, _row_scale(i, rows))[:1],
                *_call(norm, i, h, None, _row_scale(i, rows))[2:],
            )

        return Sample(f"{rows}x{cols}", make, small=False)

    return tuple(case(*shape) for shape in _BENCH)


_BENCH = tuple(shape for shape in BENCH_SHAPES if 1024 <= shape[1] <= 32768)


def errors(norm: Norm) -> tuple[Bad, ...]:
    def call(i: Inputs, row_scale: Tensor | None = None, p: float = P) -> tuple[Any, ...]:
        return _call(norm, i, i.randn(2, 3, 8), i.randn(2, 3, 8, salt=1), row_scale, p)

    return (
        Bad(
            "no probability",
            lambda i: call(i, p=1.5),
            rf"{norm.name}: expected p to be between 0 and 1, got 1\.5",
        ),
        Bad(
            "NaN for a probability",
            lambda i: call(i, p=float("nan")),
            rf"{norm.name}: expected p to be between 0 and 1, got nan",
        ),
        Bad(
            "row scale of another shape",
            lambda i: call(i, torch.ones(6, device=i.device)),
            rf"{norm.name}: expected row_scale to have shape \(2, 3\), that of x without its last "
            r"dimension, got \(6,\)",
        ),
        Bad(
            "row scale of another dtype",
            lambda i: call(i, torch.ones(2, 3, device=i.device).half()),
            rf"{norm.name}: expected row_scale to have dtype torch\.float32, got torch\.float16",
        ),
        Bad(
            "residual of another shape",
            lambda i: (i.randn(2, 8), i.randn(8)),
            rf"{norm.name}: expected residual to have shape \(2, 8\) like x, got \(8,\)",
        ),
        Bad(
            "row scale on the CPU",
            lambda i: call(i, torch.ones(2, 3)),
            rf"{norm.name}: expected row_scale to be on cuda:\d+ like x, got cpu",
            cuda_only=True,
        ),
    )


def backward_errors(norm: Norm) -> tuple[Bad, ...]:
    op = norm.backward_name

    def call(i: Inputs, h: Tensor, p: float = P) -> tuple[Any, ...]:
        _, _, *rest = _call(norm, i, i.randn(2, 8), None, None, p)
        return i.randn(2, 8), None, h, *rest

    return (
        Bad(
            "no probability",
            lambda i: call(i, i.randn(2, 8), -0.5),
            rf"{op}: expected p to be between 0 and 1, got -0\.5",
        ),
        Bad(
            "h of another shape",
            lambda i: call(i, i.randn(2, 7)),
            rf"{op}: expected h to have shape \(2, 8\) like grad, got \(2, 7\)",
        ),
    )


# --- properties -----------------------------------------------------------------------------------


def drops_what_philox_says(function: Callable[..., Any], inputs: Inputs) -> None:
    """Ones become 0 or 1 / (1 - p), as the mask has it, whatever the width of the rows."""
    for cols in (7, 64, 328):
        x = torch.ones(5, cols, dtype=inputs.dtype, device=inputs.device)
        for offset in (0, 1 << 40):
            kept = philox.keep_mask(x.shape, 0.5, 11, offset, x.device)
            options = {"p": 0.5, "seed": 11, "offset": offset}
            assert torch.equal(function(x, None, **options)[1], kept.to(x.dtype) * 2.0)


def repeatable(norm: Norm) -> Callable[[Callable[..., Any], Inputs], None]:
    def arguments(i: Inputs, grad: Tensor, h: Tensor) -> tuple[Any, ...]:
        return grad, grad, h, *_call(norm, i, h, None, _row_scale(i, h.shape[0]))[2:]

    return repeatable_gradients(arguments)


def without_dropout_a_residual_norm(function: Callable[..., Any], inputs: Inputs) -> None:
    x, residual = inputs.randn(5, 328), inputs.randn(5, 328, salt=1)
    weight = inputs.randn(328, salt=2)
    y, h = function(x, residual, weight)
    wanted_y, wanted_h = torch.ops.warpsmith.add_rms_norm(x, residual, weight)
    assert torch.equal(h, wanted_h)
    torch.testing.assert_close(y, wanted_y)
