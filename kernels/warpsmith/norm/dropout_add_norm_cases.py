"""Calls on which the residual norms with dropout are tested and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.norm import add_norm_cases
from warpsmith.norm.add_norm_cases import Pair, backward, pair
from warpsmith.norm.calls import (
    BENCH_SHAPES,
    HALVES,
    PAST_2_31,
    Sampler,
    backwards,
    benchmarks,
    far_apart,
    plain,
    repeatable_gradients,
    rows,
)
from warpsmith.norm.norms import Norm
from warpsmith.spec import philox
from warpsmith.spec.spoilt import Spoiler

P, SEED, OFFSET = 0.1, 0x1234_5678_9ABC, 3


def _call(
    norm: Norm, i: Inputs, x: Tensor, residual: Tensor | None, **changes: Any
) -> dict[str, Any]:
    drawn = {"row_scale": None, "p": P, "seed": SEED, "offset": OFFSET}
    return add_norm_cases.call(norm, i, x, residual, **drawn | changes)


def _row_scale(i: Inputs, *shape: int) -> Tensor:
    """Stochastic depth: every third row is dropped."""
    scale = torch.full(shape, 1.5, device=i.device)
    scale.view(-1)[2::3] = 0.0
    return scale


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


# --- samples --------------------------------------------------------------------------------------

_SMALL = ((3, 1), (5, 3), (7, 7), (2, 63), (9, 64), (33, 32), (3, 1000), (2, 1023), (3, 1024))
_LARGE = (
    (199, 512), (37, 2048), (2, 4096), (3, 8192), (3, 12345), (3, 16384), (2, 40000), (1, 131072),
    (1, 300001),
)  # fmt: skip
_MANY = ((300, 16640), (150, 65536), (40, 262144))
_PAST = "outputs past 2^31 elements"


def samples(norm: Norm) -> tuple[Sample, ...]:
    plainly = Sampler(norm, _call)
    scaled = Sampler(
        norm,
        lambda norm, i, x, residual, **changes: _call(
            norm, i, x, residual, **{"row_scale": _row_scale(i, *x.shape[:-1])} | changes
        ),
    )
    hundred: Pair = plain(5, 1000, scale=100.0), plain(5, 1000, scale=100.0, salt=1)
    beside: Callable[..., Pair] = lambda x, *shape: (x, rows(*shape, salt=1))  # noqa: E731
    past: Pair = plain(*PAST_2_31), plain(*PAST_2_31, salt=1)
    return (
        *scaled.grid(_SMALL, pair, small=True),
        *scaled.grid(_LARGE, pair, small=False),
        *scaled.grid(_MANY, pair, small=False, huge=True),
        scaled("half dropped", pair(5, 96), p=0.5),
        scaled("all dropped", pair(5, 96), p=1.0),
        scaled("nothing dropped", pair(5, 96), p=0.0),
        plainly("nothing dropped, rows alike", pair(5, 96), p=0.0),
        plainly("rows alike", pair(5, 129)),
        scaled("negative seed", pair(5, 96), seed=-5, offset=-7),
        scaled("zero-centred", pair(3, 128), zero_centered=True),
        scaled("1-d", pair(768)),
        scaled("3-d", pair(2, 5, 72)),
        scaled("no rows", pair(0, 16)),
        scaled("no columns", pair(4, 0)),
        scaled("f32 residual", pair(5, 256), True, HALVES, "residual"),
        scaled("f32 residual, odd", pair(5, 129), True, HALVES, "residual"),
        scaled("f32 residual, long", pair(3, 20000), False, HALVES, "residual"),
        scaled("f32 weight", pair(5, 256), True, HALVES, "weight"),
        scaled("f32 weight, full tile", pair(5, 1024), True, HALVES, "weight"),
        scaled("f32 residual and weight", pair(5, 64), True, HALVES, "residual weight"),
        plainly("hundredfold", hundred),
        plainly("special", beside(_special, 5, 64)),
        scaled("special, rows dropped", beside(_special, 5, 64), p=0.5),
        # one of the two for both, as their offsets and the generator's counters are the same code
        *([] if norm.layer else [plainly.past_2_31(_PAST, past)]),
        plainly("no residual", (rows(5, 256), None)),
        plainly("no residual, odd", (rows(5, 129), None)),
        plainly("no residual, full tile", (rows(5, 2048), None)),
        plainly(
            "row stride",
            (lambda i: i.randn(9, 96)[:, :64], lambda i: i.randn(9, 80, salt=1)[:, 16:]),
        ),
        plainly("transposed", beside(lambda i: i.randn(64, 24).t(), 24, 64)),
        plainly("misaligned", beside(lambda i: i.misaligned(5, 64), 5, 64)),
        plainly("strided row scale", pair(9, 64), row_scale=lambda i: _row_scale(i, 9, 2)[:, 1]),
        Sample("defaults", lambda i: {"x": i.randn(4, 64), "residual": i.randn(4, 64, salt=1)}),
        scaled.past_2_31("rows past 2^31 elements", (far_apart, lambda i: far_apart(i, salt=1))),
    )


def _gradients(
    norm: Norm, i: Inputs, grad: Tensor, grad_h: Tensor | None, h: Tensor, **changes: Any
) -> dict[str, Any]:
    given = _call(norm, i, h, None, **changes)
    del given["x"], given["residual"]
    return {"grad": grad, "grad_h": grad_h, "h": h, **given}


def backward_samples(norm: Norm) -> tuple[Sample, ...]:
    def special(i: Inputs) -> dict[str, Any]:
        """In h; infinite gradients make whole columns of dw infinite."""
        return _gradients(norm, i, i.randn(5, 64), None, _special(i), row_scale=_row_scale(i, 5))

    def past_2_31(i: Inputs) -> dict[str, Any]:
        """Without grad_h, for which a GPU has no room in f64."""
        return _gradients(norm, i, i.plain(*PAST_2_31, salt=4), None, i.plain(*PAST_2_31))

    # The gradients have no tiles that a row must fill.
    full = ("f32 weight, full tile", "no residual, full tile")
    others = ("defaults", "special", "special, rows dropped", _PAST, *full)
    return (
        *(backwards(s, backward(norm)) for s in samples(norm) if s.label not in others),
        Sample("special", special),
        Sample(_PAST, past_2_31, small=False, huge=True, dtypes=("f16",)),
    )


_BENCH = tuple(shape for shape in BENCH_SHAPES if 1024 <= shape[1] <= 32768)


def bench(norm: Norm) -> tuple[Sample, ...]:
    def make(i: Inputs, m: int, n: int) -> dict[str, Any]:
        x, residual = i.plain(m, n), i.plain(m, n, salt=1)
        return _call(norm, i, x, residual, row_scale=_row_scale(i, m))

    return benchmarks(make, _BENCH)


def bench_backward(norm: Norm) -> tuple[Sample, ...]:
    def make(i: Inputs, m: int, n: int) -> dict[str, Any]:
        grad, grad_h, h = (i.plain(m, n, salt=k) for k in range(3))
        return _gradients(norm, i, grad, grad_h, h, row_scale=_row_scale(i, m))

    return benchmarks(make, _BENCH)


# --- bad calls ------------------------------------------------------------------------------------


def errors(norm: Norm) -> tuple[Bad, ...]:
    def good(i: Inputs) -> dict[str, Any]:
        return _call(norm, i, i.randn(2, 3, 8), i.randn(2, 3, 8, salt=1))

    def flat(i: Inputs) -> dict[str, Any]:
        return _call(norm, i, i.randn(2, 8), None)

    spoil, ones = Spoiler(norm.name, good), torch.ones
    between = "expected p to be between 0 and 1, got"
    return (
        spoil("no probability", rf"{between} 1\.5", p=1.5),
        spoil("NaN for a probability", f"{between} nan", p=float("nan")),
        spoil(
            "row scale of another shape",
            r"expected row_scale to have shape \(2, 3\), that of x without its last dimension, "
            r"got \(6,\)",
            row_scale=lambda i: ones(6, device=i.device),
        ),
        spoil(
            "row scale of another dtype",
            r"expected row_scale to have dtype torch\.float32, got torch\.float16",
            row_scale=lambda i: ones(2, 3, device=i.device).half(),
        ),
        Spoiler(norm.name, flat).other_shape("residual", 8),
        spoil.on_the_cpu("row_scale", 2, 3, said="row scale"),
    )


def backward_errors(norm: Norm) -> tuple[Bad, ...]:
    def good(i: Inputs) -> dict[str, Any]:
        return _gradients(norm, i, i.randn(2, 8), None, i.randn(2, 8))

    spoil = Spoiler(norm.backward_name, good, like="grad")
    return (
        spoil("no probability", r"expected p to be between 0 and 1, got -0\.5", p=-0.5),
        spoil.other_shape("h", 2, 7),
    )


# --- properties -----------------------------------------------------------------------------------


def repeatable(norm: Norm) -> Callable[[Callable[..., Any], Inputs], None]:
    def arguments(i: Inputs, grad: Tensor, h: Tensor) -> tuple[Any, ...]:
        scale = _row_scale(i, h.shape[0])
        return tuple(_gradients(norm, i, grad, grad, h, row_scale=scale).values())

    return repeatable_gradients(arguments)


def drops_what_philox_says(function: Callable[..., Any], inputs: Inputs) -> None:
    """Ones become 0 or 1 / (1 - p), as the mask has it, whatever the width of the rows."""
    for cols in (7, 64, 328, 4096):
        x = torch.ones(5, cols, dtype=inputs.dtype, device=inputs.device)
        for offset in (0, 1 << 40):
            kept = philox.keep_mask(x.shape, 0.5, 11, offset, x.device)
            options = {"p": 0.5, "seed": 11, "offset": offset}
            assert torch.equal(function(x, None, **options)[1], kept.to(x.dtype) * 2.0)


def without_dropout_a_residual_norm(function: Callable[..., Any], inputs: Inputs) -> None:
    x, residual = inputs.randn(5, 328), inputs.randn(5, 328, salt=1)
    weight = inputs.randn(328, salt=2)
    y, h = function(x, residual, weight)
    wanted_y, wanted_h = torch.ops.warpsmith.add_rms_norm(x, residual, weight)
    assert torch.equal(h, wanted_h)
    torch.testing.assert_close(y, wanted_y)
