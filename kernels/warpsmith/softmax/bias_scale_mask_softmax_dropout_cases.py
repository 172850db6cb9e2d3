"""Calls on which bias_scale_mask_softmax_dropout and its gradient are tested and measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.softmax.scaled_masked_softmax_cases import (
    SCALE,
    additive,
    hidden,
    hidden_keys,
    least,
    misaligned_mask,
    some_rows,
    special,
)
from warpsmith.softmax.softmax_cases import PAST_2_31
from warpsmith.spec import philox
from warpsmith.spec.accuracy import F32_EPS

Function = Callable[..., Any]
Reference = Callable[..., tuple[Tensor, Tensor]]

#: p, seed and offset of most samples.
DROPS = (0.25, 1234, 5)

# --- samples --------------------------------------------------------------------------------------


def _shaped(queries: int, keys: int, *, small: bool) -> tuple[Sample, ...]:
    """Bias and mask broadcast over a batch of two, and a causal call without either."""
    return (
        Sample(
            f"{queries}x{keys}",
            lambda i: (
                i.randn(2, 2, queries, keys),
                i.randn(2, queries, keys, salt=1),
                hidden_keys(i, 2, 1, 1, keys),
                SCALE,
                False,
                *DROPS,
            ),
            small=small,
        ),
        Sample(
            f"{queries}x{keys} causal",
            lambda i: (i.randn(2, queries, keys), None, None, SCALE, True, *DROPS),
            small=small,
        ),
    )


def samples() -> tuple[Sample, ...]:
    small = (
        (1, 1),
        (3, 1),
        (5, 3),
        (5, 7),
        (3, 63),
        (5, 64),
        (7, 72),
        (3, 128),
        (3, 256),
        (2, 1000),
    )
    large = (
        (2, 1023), (70, 504), (33, 1024), (19, 2048), (9, 2056), (5, 4096), (3, 8192), (3, 12345),
        (3, 16384), (3, 20000), (3, 32768), (2, 40000), (2, 65536), (1, 100003), (2, 131072),
        (1, 262144), (1, 524288),
    )  # fmt: skip
    return (
        *(s for shape in small for s in _shaped(*shape, small=True)),
        *(s for shape in large for s in _shaped(*shape, small=False)),
        Sample("defaults", lambda i: (i.randn(4, 64),)),
        Sample(
            "1-d", lambda i: (i.randn(96), i.randn(96, salt=1), hidden(i, 96), SCALE, False, *DROPS)
        ),
        Sample(
            "matrix",
            lambda i: (
                i.randn(6, 64),
                i.randn(6, 64, salt=1),
                hidden(i, 6, 64),
                SCALE,
                False,
                *DROPS,
            ),
        ),
        Sample(
            "another matrix",
            lambda i: (
                i.randn(9, 32),
                i.randn(9, 32, salt=1),
                hidden(i, 9, 32),
                SCALE,
                False,
                *DROPS,
            ),
        ),
        Sample("dropout alone", lambda i: (i.randn(9, 64), None, None, 1.0, False, 0.5, -1, -7)),
        Sample(
            "p 0", lambda i: (i.randn(5, 64), i.randn(64, salt=1), None, SCALE, True, 0.0, 1, 0)
        ),
        Sample(
            "p 1", lambda i: (i.randn(5, 64), i.randn(64, salt=1), None, SCALE, True, 1.0, 1, 0)
        ),
        Sample(
            "p below what counts",
            lambda i: (i.randn(5, 64), None, None, SCALE, False, 1e-12, 1, 0),
        ),
        Sample(
            "wide seed and offset",
            lambda i: (i.randn(5, 64), None, None, SCALE, False, 0.9, -(1 << 63), (1 << 62) + 3),
        ),
        Sample(
            "bias and mask cross",
            lambda i: (
                i.randn(2, 3, 2, 4, 24),
                i.randn(2, 1, 2, 4, 24, salt=1),
                hidden(i, 2, 3, 1, 1, 24),
                SCALE,
                False,
                *DROPS,
            ),
        ),
        Sample(
            "6-d",
            lambda i: (
                i.randn(2, 1, 3, 2, 4, 16),
                i.randn(3, 1, 4, 16, salt=1),
                hidden(i, 2, 1, 1, 2, 1, 16),
                SCALE,
                True,
                *DROPS,
            ),
        ),
        Sample(
            "mask of queries, rows without keys",
            lambda i: (
                i.randn(2, 3, 6, 40),
                i.randn(3, 1, 40, salt=1),
                hidden(i, 2, 1, 6, 1),
                SCALE,
                False,
                *DROPS,
            ),
        ),
        Sample(
            "mask of queries, long",
            lambda i: (
                i.randn(2, 3, 6, 40000),
                i.randn(3, 1, 40000, salt=1),
                hidden(i, 2, 1, 6, 1),
                SCALE,
                False,
                *DROPS,
            ),
            small=False,
        ),
        Sample(
            "rows without keys, long",
            lambda i: (
                i.randn(2, 3, 40000),
                i.randn(2, 3, 1, salt=1),
                some_rows(i, 3, 40000),
                SCALE,
                True,
                *DROPS,
            ),
            small=False,
        ),
        Sample(
            "rows without keys",
            lambda i: (
                i.randn(2, 7, 40),
                i.randn(2, 7, 40, salt=1),
                some_rows(i, 7, 40),
                SCALE,
                True,
                *DROPS,
            ),
        ),
        Sample(
            "f32 bias",
            lambda i: (
                i.randn(2, 5, 64),
                i.randn(5, 64, salt=1).float(),
                hidden(i, 64),
                SCALE,
                False,
                *DROPS,
            ),
            dtypes=("f16", "bf16"),
        ),
        Sample(
            "f32 bias, long",
            lambda i: (
                i.randn(2, 3, 16384),
                i.randn(3, 16384, salt=1).float(),
                hidden(i, 16384),
                SCALE,
                True,
                *DROPS,
            ),
            small=False,
            dtypes=("f16", "bf16"),
        ),
        Sample(
            "f32 bias, longer",
            lambda i: (
                i.randn(2, 2, 262144),
                i.randn(2, 262144, salt=1).float(),
                hidden(i, 262144),
                SCALE,
                True,
                *DROPS,
            ),
            small=False,
            dtypes=("f16", "bf16"),
        ),
        Sample(
            "bias beyond L2, repeated",
            lambda i: (
                i.plain(3, 5, 1639, 1024),
                i.plain(5, 1639, 1024, salt=1),
                hidden(i, 3, 1, 1, 1024),
                SCALE,
                False,
                *DROPS,
            ),
            small=False,
        ),
        Sample(
            "bias of queries",
            lambda i: (i.randn(2, 5, 64), i.randn(5, 1, salt=1), None, 0.5, False, *DROPS),
        ),
        Sample(
            "0-d bias", lambda i: (i.randn(3, 24), i.randn(salt=1), hidden(i), 1.0, False, *DROPS)
        ),
        Sample(
            "infinite bias",
            lambda i: (i.randn(2, 5, 64), additive(i, 5, 64), None, SCALE, False, *DROPS),
        ),
        Sample(
            "least bias",
            lambda i: (i.randn(2, 6, 64), least(i, 6, 64), None, SCALE, False, *DROPS),
        ),
        Sample(
            "misaligned bias",
            lambda i: (
                i.randn(2, 5, 64),
                i.misaligned(5, 64, salt=1),
                hidden(i, 64),
                SCALE,
                False,
                *DROPS,
            ),
        ),
        Sample(
            "misaligned mask",
            lambda i: (
                i.randn(2, 5, 64),
                i.randn(5, 64, salt=1),
                misaligned_mask(i, 5, 64),
                SCALE,
                False,
                *DROPS,
            ),
        ),
        Sample(
            "transposed operands",
            lambda i: (
                i.randn(2, 24, 32),
                i.randn(32, 24, salt=1).t(),
                hidden(i, 32, 24).t(),
                SCALE,
                False,
                *DROPS,
            ),
        ),
        Sample(
            "scale 0", lambda i: (i.randn(3, 24), i.randn(3, 24, salt=1), None, 0.0, False, *DROPS)
        ),
        Sample("negative scale", lambda i: (i.randn(5, 64), None, None, -0.5, True, *DROPS)),
        Sample(
            "f16 times 100",
            lambda i: (i.plain(5, 64, scale=100.0), None, None, 1.0, False, *DROPS),
        ),
        Sample(
            "more queries than keys",
            lambda i: (i.randn(2, 40, 24), None, None, SCALE, True, *DROPS),
        ),
        Sample("special", lambda i: (special(i), None, hidden(i, 64), 1.0, True, *DROPS)),
        Sample("special, not masked", lambda i: (special(i), None, None, 1.0, False, *DROPS)),
        Sample(
            "special, long",
            lambda i: (special(i, 40000), None, hidden(i, 40000), 1.0, True, *DROPS),
            small=False,
        ),
        Sample("no rows", lambda i: (i.randn(2, 0, 16), None, None, SCALE, True, *DROPS)),
        Sample("no columns", lambda i: (i.randn(4, 0), None, None, SCALE, True, *DROPS)),
        Sample(
            "no batch",
            lambda i: (i.randn(0, 3, 8), i.randn(3, 8), hidden(i, 8), SCALE, False, *DROPS),
        ),
        Sample("misaligned", lambda i: (i.misaligned(2, 5, 64), None, None, SCALE, True, *DROPS)),
        Sample("row stride", lambda i: (i.randn(9, 80)[:, :64], None, None, SCALE, True, *DROPS)),
        Sample(
            "transposed",
            lambda i: (
                i.randn(2, 64, 24).transpose(1, 2),
                None,
                hidden(i, 24, 64),
                SCALE,
                False,
                *DROPS,
            ),
        ),
        Sample(
            "heads inside",
            lambda i: (
                i.randn(2, 5, 3, 64).transpose(1, 2),
                i.randn(3, 5, 64, salt=1),
                None,
                SCALE,
                True,
                *DROPS,
            ),
        ),
        Sample(
            "rows past 2^31 elements",
            lambda i: (
                i.plain(257, (1 << 23) + 8)[:, :1024],
                i.plain(257, 1024, salt=1),
                None,
                SCALE,
                True,
                *DROPS,
            ),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
    )


#: Philox counts elements past 2^31 here. Backwards, float64 would not fit beside the results.
_PAST = Sample(
    "answers past 2^31 elements",
    lambda i: (i.plain(*PAST_2_31), None, None, SCALE, False, *DROPS),
    small=False,
    huge=True,
    dtypes=("f16",),
)


def forward_samples() -> tuple[Sample, ...]:
    return (*samples(), _PAST)


def _backwards(sample: Sample, reference: Reference, *, outer: bool = False) -> Sample:
    """The same call, backwards. outer: with a gradient of the log-sum-exp too."""

    def make(inputs: Inputs) -> tuple[Any, ...]:
        given = sample.make(inputs)
        given = (*given, *_DEFAULTS[len(given) - 1 :])
        x, bias, mask, scale, causal = given[:5]
        _, lse = reference(x, bias, mask, scale, causal, 0.0, 0, 0)
        grad_lse = inputs.plain(*lse.shape, salt=7).to(lse.dtype) if outer else None
        return inputs.randn(*x.shape, salt=2), x, bias, mask, lse, grad_lse, *given[3:]

    label = f"{sample.label}, gradient of lse" if outer else sample.label
    return Sample(label, make, sample.small, sample.huge, sample.dtypes)


#: Of the arguments after x.
_DEFAULTS: tuple[Any, ...] = (None, None, 1.0, False, 0.0, 0, 0)


def backward_samples(reference: Reference) -> tuple[Sample, ...]:
    def strided(inputs: Inputs, grad: Tensor) -> tuple[Any, ...]:
        x, bias = inputs.randn(9, 64), inputs.randn(64, salt=1)
        _, lse = reference(x, bias, None, SCALE, True, 0.0, 0, 0)
        return grad, x, bias, None, lse, None, SCALE, True, *DROPS

    outer = ("5x64", "3x63 causal", "rows without keys", "3x8192", "3x12345")
    return (
        *(_backwards(s, reference) for s in samples()),
        *(_backwards(s, reference, outer=True) for s in samples() if s.label in outer),
        Sample("strided gradient", lambda i: strided(i, i.randn(9, 80, salt=2)[:, :64])),
        Sample("odd gradient stride", lambda i: strided(i, i.randn(9, 67, salt=2)[:, :64])),
        Sample("expanded gradient", lambda i: strided(i, i.randn(64, salt=2).expand(9, 64))),
        Sample("misaligned gradient", lambda i: strided(i, i.misaligned(9, 64, salt=2))),
        Sample("transposed gradient", lambda i: strided(i, i.randn(64, 9, salt=2).t())),
    )


# --- benchmarks -----------------------------------------------------------------------------------


def _bench(label: str, make: Callable[[Inputs], tuple[Any, ...]]) -> Sample:
    return Sample(label, make, small=False)


BENCH = (
    _bench(
        "64x16x512x512 bias mask",
        lambda i: (
            i.plain(64, 16, 512, 512),
            i.plain(16, 512, 512, salt=1),
            hidden(i, 64, 1, 1, 512),
            SCALE,
            False,
            0.1,
            1,
            0,
        ),
    ),
    _bench(
        "8x16x2048x2048 causal",
        lambda i: (i.plain(8, 16, 2048, 2048), None, None, SCALE, True, 0.1, 1, 0),
    ),
    _bench(
        "8x16x2048x2048 bias mask",
        lambda i: (
            i.plain(8, 16, 2048, 2048),
            i.plain(16, 2048, 2048, salt=1),
            hidden(i, 8, 1, 1, 2048),
            SCALE,
            False,
            0.1,
            1,
            0,
        ),
    ),
    _bench(
        "8x16x2048x2048 bias, p 0",
        lambda i: (
            i.plain(8, 16, 2048, 2048),
            i.plain(16, 2048, 2048, salt=1),
            None,
            SCALE,
            False,
            0.0,
            1,
            0,
        ),
    ),
    _bench(
        "8x256x65536 bias mask",
        lambda i: (
            i.plain(8, 256, 65536),
            i.plain(256, 65536, salt=1),
            hidden(i, 8, 1, 65536),
            SCALE,
            False,
            0.1,
            1,
            0,
        ),
    ),
    _bench(
        "4x256x131072 causal",
        lambda i: (i.plain(4, 256, 131072), None, None, SCALE, True, 0.1, 1, 0),
    ),
)


def backward_bench(reference: Reference) -> tuple[Sample, ...]:
    return tuple(_backwards(s, reference) for s in BENCH)


# --- bad calls ------------------------------------------------------------------------------------

ERRORS = (
    Bad(
        "integers",
        lambda i: (torch.ones(2, 8, dtype=torch.int32, device=i.device),),
        r"bias_scale_mask_softmax_dropout: expected x to be a floating-point tensor, "
        r"got torch\.int32",
    ),
    Bad(
        "0-d",
        lambda i: (i.randn(),),
        r"bias_scale_mask_softmax_dropout: expected at least 1 dimension in x, got shape \(\)",
    ),
    Bad(
        "bool bias",
        lambda i: (i.randn(2, 8), hidden(i, 2, 8)),
        r"expected bias to have dtype torch\.\w+.*, got torch\.bool",
    ),
    Bad(
        "float mask",
        lambda i: (i.randn(2, 8), None, i.randn(2, 8)),
        r"expected mask to have dtype torch\.bool, got torch\.\w+",
    ),
    Bad(
        "bias of another length",
        lambda i: (i.randn(2, 8), i.randn(7)),
        r"expected bias to be broadcastable to the shape \(2, 8\) of x, got \(7,\)",
    ),
    Bad(
        "mask of more dimensions",
        lambda i: (i.randn(8), None, hidden(i, 1, 8)),
        r"expected mask to be broadcastable to the shape \(8,\) of x, got \(1, 8\)",
    ),
    Bad(
        "p above 1",
        lambda i: (i.randn(2, 8), None, None, 1.0, False, 1.5),
        r"bias_scale_mask_softmax_dropout: expected p to be between 0 and 1, got 1\.5",
    ),
    Bad(
        "p NaN",
        lambda i: (i.randn(2, 8), None, None, 1.0, False, math.nan),
        r"expected p to be between 0 and 1, got nan",
    ),
    Bad(
        "bias on the CPU",
        lambda i: (i.randn(2, 8), torch.ones(8, dtype=i.dtype)),
        r"expected bias to be on cuda:\d+ like x, got cpu",
        cuda_only=True,
    ),
)

BACKWARD_ERRORS = (
    Bad(
        "gradient of another shape",
        lambda i: (i.randn(2, 7), i.randn(2, 8), None, None, i.randn(2).float()),
        r"bias_scale_mask_softmax_dropout_backward: expected grad to have shape \(2, 8\) like x, "
        r"got \(2, 7\)",
    ),
    Bad(
        "lse of another shape",
        lambda i: (i.randn(2, 8), i.randn(2, 8), None, None, i.randn(2, 1).float()),
        r"expected lse to have shape \(2,\), that of x without its last dimension, got \(2, 1\)",
    ),
    Bad(
        "lse of another dtype",
        lambda i: (i.randn(2, 8), i.randn(2, 8), None, None, i.randn(2).double()),
        r"expected lse to have dtype torch\.float32, got torch\.float64",
    ),
    Bad(
        "gradient of lse of another shape",
        lambda i: (
            i.randn(2, 8), i.randn(2, 8), None, None, i.randn(2).float(), i.randn(3).float(),
        ),
        r"expected grad_lse to have shape \(2,\), .*, got \(3,\)",
    ),
    Bad(
        "p below 0",
        lambda i: (
            i.randn(2, 8), i.randn(2, 8), None, None, i.randn(2).float(), None, 1.0, False, -0.5,
        ),
        r"expected p to be between 0 and 1, got -0\.5",
    ),
    Bad(
        "cluster, row too long",
        lambda i: (
            *(Inputs(torch.float32, i.device).plain(1, 262148, salt=k) for k in range(2)),
            None, None, torch.zeros(1, device=i.device),
        ),
        r"bias_scale_mask_softmax_dropout_backward.*: .*"
        r"(needs rows of at most 262144 columns|sm_90)",
        variant="f32x4_pack_cluster",
    ),
)  # fmt: skip


# --- properties -----------------------------------------------------------------------------------


def drops_what_philox_says(function: Function, inputs: Inputs) -> None:
    """Where every probability is the same, the pattern shows; it depends on nothing but the place
    in x, the seed and the offset.
    """
    for shape in ((3, 8, 64), (24, 64), (5, 7)):
        x = torch.zeros(shape, dtype=inputs.dtype, device=inputs.device)
        for p, seed, offset in ((0.5, 3, 0), (0.5, 4, 0), (0.5, 3, 1), (0.1, -9, 1 << 40)):
            y, lse = function(x, None, None, 1.0, False, p, seed, offset)
            kept = philox.keep_mask(shape, p, seed, offset, x.device)
            assert torch.equal(y != 0, kept), (shape, p, seed, offset)
            again = function(x, None, None, 1.0, False, p, seed, offset)
            assert torch.equal(y, again[0])
            assert torch.equal(lse, again[1])


def keeps_the_expectation(function: Function, inputs: Inputs) -> None:
    """The sum of 4096 rows of 16 equal probabilities, within five standard deviations."""
    x, p = torch.zeros(4096, 16, dtype=inputs.dtype, device=inputs.device), 0.3
    mean = float(function(x, None, None, 1.0, False, p, 11, 0)[0].double().mean()) * 16
    deviation = math.sqrt(p / (1 - p) / x.numel())
    assert abs(mean - 1) < 5 * deviation + torch.finfo(inputs.dtype).eps


def without_dropout_a_softmax(function: Function, inputs: Inputs) -> None:
    x, mask = inputs.randn(2, 9, 64), some_rows(inputs, 9, 64)
    y, lse = function(x, None, mask, SCALE, True, 0.0, 1, 2)
    wanted = torch.ops.warpsmith.scaled_masked_softmax(x, mask, SCALE, True)
    assert torch.equal(y, wanted)
    assert torch.equal(lse == -math.inf, ~wanted.any(-1))


def bias_is_a_mask(function: Function, inputs: Inputs) -> None:
    x, mask = inputs.randn(2, 6, 48), some_rows(inputs, 6, 48)
    bias = torch.zeros(6, 48, dtype=inputs.dtype, device=inputs.device)
    bias.masked_fill_(mask, -math.inf)
    for a, b in zip(
        function(x, bias, None, SCALE, False, *DROPS),
        function(x, None, mask, SCALE, False, *DROPS),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def rows_sum_to_one(function: Function, inputs: Inputs) -> None:
    """Without dropout: results are rounded by half an ulp of their own, by half an ulp of 1
    together, and the arithmetic before that is f32's, within a few ulp of the largest exponent.
    """
    info = torch.finfo(inputs.dtype)
    for n in (3, 63, 1000, 4096, 12345):
        x, bias = inputs.randn(5, n), inputs.plain(n, salt=1)
        y, _ = function(x, bias, hidden_keys(inputs, n), SCALE, False, 0.0, 1, 2)
        off = (y.double().sum(-1) - 1).abs()
        allowed = info.eps / 2 + 32 * F32_EPS + n * info.smallest_normal * info.eps
        assert float(off.max()) <= allowed, f"{n} values: off by {float(off.max()):.3g}"


def shift_invariant(function: Function, inputs: Inputs) -> None:
    """Without dropout, a shift of all logits moves the log-sum-exp and nothing else. The sums are
    exact at every dtype; in f32, exponents of magnitude 16 are rounded before they are subtracted.
    """
    for n in (63, 1024, 4096):
        x = (inputs.plain(5, n) * 4).round().clamp(-8, 8) / 4
        rest = None, None, 1.0, False, 0.0, 1, 2
        (y, lse), (moved, lse_moved) = function(x, *rest), function(x + 8, *rest)
        rtol = torch.finfo(inputs.dtype).eps + 64 * F32_EPS
        atol = 2 * torch.finfo(inputs.dtype).smallest_normal * torch.finfo(inputs.dtype).eps
        torch.testing.assert_close(moved, y, rtol=rtol, atol=atol)
        torch.testing.assert_close(lse_moved, lse + 8, rtol=8 * F32_EPS, atol=0.0)


def rows_independent(function: Function, inputs: Inputs) -> None:
    x, bias = inputs.randn(6, 264), inputs.randn(264, salt=1)
    changed = x.clone()
    changed[2] = inputs.randn(264, salt=3)
    rest = [0, 1, 3, 4, 5]
    before = function(x, bias, None, SCALE, True, *DROPS)
    after = function(changed, bias, None, SCALE, True, *DROPS)
    for a, b in zip(before, after, strict=True):
        assert torch.equal(a[rest], b[rest]), "a row's result depends on another row"


def gradient_sums_to_zero(function: Function, inputs: Inputs) -> None:
    """A shift of all logits changes nothing but the log-sum-exp, which moves along."""
    x = inputs.plain(5, 64)
    lse = torch.logsumexp(x.float(), -1)
    grad, outer = inputs.randn(5, 64, salt=2), inputs.plain(5, salt=3).float()
    dx = function(grad, x, None, None, lse, outer, 1.0, False, *DROPS).double()
    bound = 256 * torch.finfo(inputs.dtype).eps * dx.abs().sum(-1)
    assert bool(((dx.sum(-1) - outer.double()).abs() <= bound).all())
