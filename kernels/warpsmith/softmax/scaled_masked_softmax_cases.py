"""Calls on which scaled_masked_softmax and its gradient are tested and measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.softmax.logits import beyond_diagonal
from warpsmith.softmax.softmax_cases import PAST_2_31

SCALE = 0.125

Function = Callable[..., Any]

# --- tensors --------------------------------------------------------------------------------------


def hidden(inputs: Inputs, *shape: int, salt: int = 5) -> Tensor:
    """A bool mask that excludes half of the entries."""
    return inputs.plain(*shape, salt=salt) > 0


def hidden_keys(inputs: Inputs, *shape: int) -> Tensor:
    """The same, but the first key is always seen."""
    mask = hidden(inputs, *shape)
    mask[..., 0] = False
    return mask


def misaligned_mask(inputs: Inputs, *shape: int) -> Tensor:
    """Contiguous, one byte past an aligned address."""
    return hidden(inputs, math.prod(shape) + 1)[1:].view(shape)


def additive(inputs: Inputs, *shape: int) -> Tensor:
    """Zeros and minus infinity."""
    zeros = torch.zeros(shape, dtype=inputs.dtype, device=inputs.device)
    return zeros.masked_fill(hidden(inputs, *shape), -math.inf)


def least(inputs: Inputs, *shape: int) -> Tensor:
    """Zeros and the least finite number, for whole rows too: what some models add as a mask."""
    zeros = torch.zeros(shape, dtype=inputs.dtype, device=inputs.device)
    mask = hidden(inputs, *shape)
    mask[..., 0, :] = True
    return zeros.masked_fill(mask, torch.finfo(inputs.dtype).min)


def some_rows(inputs: Inputs, *shape: int) -> Tensor:
    """A bool mask with rows that exclude everything, and rows that exclude nothing."""
    mask = hidden(inputs, *shape)
    mask[..., 0, :] = True
    mask[..., 1, :] = False
    return mask


def special(inputs: Inputs, keys: int = 64) -> Tensor:
    """Rows with NaN and infinities, and one of minus infinity alone."""
    x = inputs.randn(6, keys)
    x[0, 3] = math.nan
    x[1, 5] = math.inf
    x[2, 7] = -math.inf
    x[3] = -math.inf
    x[4, :2] = torch.tensor([math.inf, math.nan], dtype=x.dtype)
    return x


# --- samples --------------------------------------------------------------------------------------


def _widths() -> tuple[Sample, ...]:
    """Every rung and tile, without a mask and causal."""
    small = (
        (1, 1), (3, 1), (2, 2), (5, 3), (5, 7), (9, 8), (3, 63), (5, 64), (7, 72), (3, 128),
        (5, 200), (3, 255), (3, 256), (3, 512), (2, 1000), (2, 1023), (2, 1024),
    )  # fmt: skip
    large = (
        (199, 63), (199, 64), (130, 504), (70, 2048), (33, 2056), (9, 4096), (5, 8192), (3, 12345),
        (5, 16384), (3, 16392), (3, 20000), (3, 32768), (3, 40000), (2, 65536), (2, 100003),
        (2, 131072), (2, 262144), (1, 524288),
    )  # fmt: skip

    def of(queries: int, keys: int, small: bool) -> list[Sample]:
        return [
            Sample(
                f"{queries}x{keys}",
                lambda i: (i.randn(2, queries, keys), None, SCALE, False),
                small=small,
            ),
            Sample(
                f"{queries}x{keys} causal",
                lambda i: (i.randn(2, queries, keys), None, SCALE, True),
                small=small,
            ),
        ]

    return tuple(
        s
        for shapes, is_small in ((small, True), (large, False))
        for shape in shapes
        for s in of(*shape, is_small)
    )


def samples() -> tuple[Sample, ...]:
    return (
        *_widths(),
        Sample("defaults", lambda i: (i.randn(4, 64),)),
        Sample("1-d", lambda i: (i.randn(96), hidden(i, 96), SCALE, False)),
        Sample("1-d causal", lambda i: (i.randn(96), None, SCALE, True)),
        Sample("mask of the matrix", lambda i: (i.randn(5, 64), hidden(i, 5, 64), SCALE, False)),
        Sample("another shape", lambda i: (i.randn(9, 32), hidden(i, 9, 32), SCALE, False)),
        Sample(
            "mask for all heads",
            lambda i: (i.randn(2, 3, 5, 64), some_rows(i, 2, 1, 5, 64), SCALE, False),
        ),
        Sample(
            "mask of keys",
            lambda i: (i.randn(2, 3, 5, 64), hidden(i, 2, 1, 1, 64), SCALE, False),
        ),
        Sample(
            "mask of queries",
            lambda i: (i.randn(2, 3, 5, 64), hidden(i, 2, 1, 5, 1), SCALE, False),
        ),
        Sample("mask of 2-d", lambda i: (i.randn(2, 3, 5, 64), hidden(i, 5, 64), SCALE, False)),
        Sample("mask of 1-d", lambda i: (i.randn(2, 3, 5, 72), hidden(i, 72), SCALE, False)),
        Sample("mask of 0-d", lambda i: (i.randn(2, 3, 8), hidden(i), SCALE, False)),
        Sample(
            "mask for outer heads",
            lambda i: (i.randn(2, 3, 2, 5, 64), hidden(i, 1, 3, 1, 5, 64), SCALE, False),
        ),
        Sample(
            "mask and 6-d",
            lambda i: (i.randn(2, 1, 3, 2, 4, 32), hidden(i, 2, 1, 1, 2, 1, 32), SCALE, True),
        ),
        Sample(
            "mask and causal",
            lambda i: (i.randn(2, 3, 7, 40), some_rows(i, 2, 1, 7, 40), SCALE, True),
        ),
        Sample(
            "mask, odd",
            lambda i: (i.randn(2, 3, 5, 63), some_rows(i, 2, 1, 5, 63), SCALE, True),
        ),
        Sample(
            "mask, misaligned",
            lambda i: (i.randn(2, 5, 64), misaligned_mask(i, 5, 64), SCALE, False),
        ),
        Sample(
            "mask, row stride",
            lambda i: (i.randn(2, 5, 64), hidden(i, 5, 80)[:, :64], SCALE, False),
        ),
        Sample(
            "mask, odd row stride",
            lambda i: (i.randn(2, 5, 64), hidden(i, 5, 67)[:, :64], SCALE, False),
        ),
        Sample(
            "mask, transposed",
            lambda i: (i.randn(2, 24, 64), hidden(i, 64, 24).t(), SCALE, False),
        ),
        Sample(
            "mask, expanded",
            lambda i: (i.randn(2, 5, 64), hidden(i, 5, 1).expand(5, 64), SCALE, False),
        ),
        Sample(
            "mask, all of it",
            lambda i: (i.randn(3, 40), hidden(i, 3, 40) | True, SCALE, False),
        ),
        Sample(
            "additive mask",
            lambda i: (i.randn(2, 3, 5, 64), additive(i, 2, 1, 5, 64), SCALE, False),
        ),
        Sample(
            "additive mask, f32",
            lambda i: (i.randn(2, 5, 64), additive(i, 5, 64).float(), SCALE, True),
        ),
        Sample(
            "additive mask, least number",
            lambda i: (i.randn(2, 3, 6, 64), least(i, 2, 1, 6, 64), SCALE, False),
        ),
        Sample("bias", lambda i: (i.randn(2, 3, 5, 40), i.randn(3, 5, 40, salt=1), SCALE, False)),
        Sample(
            "bias, f32",
            lambda i: (i.randn(2, 5, 32), i.randn(5, 32, salt=1).float(), 0.5, False),
            dtypes=("f16", "bf16"),
        ),
        Sample("bias of queries", lambda i: (i.randn(2, 5, 64), i.randn(5, 1, salt=1), 1.0, True)),
        Sample("bias, odd", lambda i: (i.randn(2, 3, 13), i.randn(3, 13, salt=1), SCALE, True)),
        Sample(
            "bias, misaligned",
            lambda i: (i.randn(2, 5, 64), i.misaligned(5, 64, salt=1), SCALE, False),
        ),
        Sample(
            "bias, transposed",
            lambda i: (i.randn(2, 24, 64), i.randn(64, 24, salt=1).t(), SCALE, False),
        ),
        Sample("scale 0, bias", lambda i: (i.randn(3, 24), i.randn(3, 24, salt=1), 0.0, False)),
        Sample("negative scale", lambda i: (i.randn(2, 5, 64), None, -0.5, True)),
        Sample("f16 times 100", lambda i: (i.plain(3, 5, 64, scale=100.0), None, 1.0, False)),
        Sample("more keys than queries", lambda i: (i.randn(2, 3, 40), None, SCALE, True)),
        Sample("more queries than keys", lambda i: (i.randn(2, 40, 24), None, SCALE, True)),
        Sample("special", lambda i: (special(i), None, 1.0, False)),
        Sample("special, causal", lambda i: (special(i), None, 1.0, True)),
        Sample("special, masked", lambda i: (special(i), hidden(i, 6, 64), 1.0, True)),
        Sample("no rows", lambda i: (i.randn(2, 0, 16), None, SCALE, True)),
        Sample("no columns", lambda i: (i.randn(4, 0), None, SCALE, True)),
        Sample("no batch, mask", lambda i: (i.randn(0, 3, 16), hidden(i, 3, 16), SCALE, False)),
        Sample("misaligned", lambda i: (i.misaligned(2, 5, 64), None, SCALE, True)),
        Sample("row stride", lambda i: (i.randn(9, 80)[:, :64], None, SCALE, True)),
        Sample("odd row stride", lambda i: (i.randn(9, 67)[:, :64], None, SCALE, True)),
        Sample(
            "transposed",
            lambda i: (i.randn(2, 64, 24).transpose(1, 2), hidden(i, 24, 64), SCALE, False),
        ),
        Sample(
            "heads inside",
            lambda i: (i.randn(2, 5, 3, 64).transpose(1, 2), hidden(i, 5, 64), SCALE, True),
        ),
        Sample("expanded", lambda i: (i.randn(1, 64).expand(6, 64), None, SCALE, True)),
        *_large(),
    )


def _masked_at(m: int, n: int) -> Sample:
    return Sample(
        f"mask, {m}x{n}",
        lambda i: (i.randn(2, 3, m, n), some_rows(i, 2, 1, m, n), SCALE, True),
        small=False,
    )


def _biased_at(m: int, n: int) -> Sample:
    return Sample(
        f"bias, {m}x{n}",
        lambda i: (i.randn(2, 3, m, n), i.randn(3, m, n, salt=1), SCALE, False),
        small=False,
    )


def _widely_biased_at(m: int, n: int) -> Sample:
    return Sample(
        f"bias in f32, {m}x{n}",
        lambda i: (i.randn(2, m, n), i.randn(m, n, salt=1).float(), SCALE, True),
        small=False,
        dtypes=("f16", "bf16"),
    )


def _large() -> tuple[Sample, ...]:
    """Masks and biases at the tiles that small samples do not reach."""
    masked = (
        (40, 512), (17, 1024), (9, 2048), (5, 4096), (3, 8192), (3, 16384), (2, 32768), (2, 40000),
        (2, 131072), (2, 262144),
    )  # fmt: skip
    return (
        *(_masked_at(m, n) for m, n in masked),
        *(_biased_at(m, n) for m, n in masked),
        *(_widely_biased_at(m, n) for m, n in ((9, 2048), (3, 32768), (2, 40000), (2, 262144))),
        Sample(
            "mask of queries, long",
            lambda i: (i.randn(2, 3, 5, 40000), hidden(i, 2, 1, 5, 1), SCALE, False),
            small=False,
        ),
        Sample(
            "bias of queries, long",
            lambda i: (i.randn(2, 5, 40000), i.randn(5, 1, salt=1), 1.0, True),
            small=False,
        ),
        Sample("special, long", lambda i: (special(i, 40000), None, 1.0, False), small=False),
        Sample(
            "special, masked, long",
            lambda i: (special(i, 40000), hidden(i, 6, 40000), 1.0, True),
            small=False,
        ),
        Sample(
            "decode",
            lambda i: (i.randn(8, 32, 1, 1024), hidden(i, 8, 1, 1, 1024), SCALE, True),
            small=False,
        ),
        Sample(
            "rows past 2^31 elements",
            lambda i: (
                i.plain(257, (1 << 23) + 8)[:, :1024],
                i.plain(257, 1024, salt=1) > 0,
                SCALE,
                True,
            ),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
        Sample(
            "answers past 2^31 elements",
            lambda i: (i.plain(*PAST_2_31), None, SCALE, False),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
    )


def probabilities(inputs: Inputs, *shape: int, causal: bool = False) -> Tensor:
    """Softmax of random scores, zero beyond the diagonal."""
    x = inputs.plain(*shape).float()
    if causal:
        x = x.masked_fill(beyond_diagonal(x), -math.inf)
    return torch.softmax(x, -1).nan_to_num(0.0).to(inputs.dtype)


def backward_samples() -> tuple[Sample, ...]:
    shapes = (
        (1, 1), (3, 1), (5, 3), (3, 63), (5, 64), (7, 72), (3, 128), (3, 256), (2, 512), (2, 1000),
        (2, 1023), (2, 1024),
    )  # fmt: skip
    large = (
        (199, 64), (130, 504), (70, 2048), (33, 2056), (9, 4096), (3, 8192), (3, 12345), (3, 16384),
        (3, 20000), (3, 32768), (3, 40000), (2, 65536), (2, 100003), (2, 131072), (2, 262144),
        (1, 524288),
    )  # fmt: skip

    def of(m: int, n: int, causal: bool, small: bool) -> Sample:
        return Sample(
            f"{m}x{n} causal" if causal else f"{m}x{n}",
            lambda i: (
                i.randn(2, m, n, salt=2),
                probabilities(i, 2, m, n, causal=causal),
                SCALE,
                causal,
            ),
            small=small,
        )

    return (
        *(of(*s, causal, True) for s in shapes for causal in (False, True)),
        *(of(*s, causal, False) for s in large for causal in (False, True)),
        Sample("defaults", lambda i: (i.randn(4, 64, salt=2), probabilities(i, 4, 64))),
        Sample("1-d", lambda i: (i.randn(96, salt=2), probabilities(i, 96), SCALE, True)),
        Sample(
            "no probabilities",
            lambda i: (i.randn(2, 9, 64, salt=2), i.randn(2, 9, 64), SCALE, True),
        ),
        Sample(
            "more queries than keys",
            lambda i: (i.randn(2, 40, 24, salt=2), probabilities(i, 2, 40, 24), SCALE, True),
        ),
        Sample(
            "expanded gradient",
            lambda i: (i.randn(64, salt=2).expand(9, 64), probabilities(i, 9, 64), SCALE, False),
        ),
        Sample(
            "one gradient for all",
            lambda i: (i.randn(1, 1, salt=2).expand(9, 64), probabilities(i, 9, 64), SCALE, False),
        ),
        Sample(
            "strided gradient",
            lambda i: (i.randn(9, 80, salt=2)[:, :64], probabilities(i, 9, 64), SCALE, False),
        ),
        Sample(
            "misaligned gradient",
            lambda i: (i.misaligned(5, 64, salt=2), probabilities(i, 5, 64), SCALE, True),
        ),
        Sample(
            "misaligned",
            lambda i: (i.randn(5, 64, salt=2), i.misaligned(5, 64), SCALE, True),
        ),
        Sample(
            "transposed",
            lambda i: (
                i.randn(2, 64, 24, salt=2).transpose(1, 2),
                probabilities(i, 2, 24, 64),
                SCALE,
                True,
            ),
        ),
        Sample(
            "heads inside",
            lambda i: (
                i.randn(2, 5, 3, 64, salt=2).transpose(1, 2),
                probabilities(i, 2, 5, 3, 64).transpose(1, 2),
                SCALE,
                True,
            ),
        ),
        Sample("no rows", lambda i: (i.randn(2, 0, 16), i.randn(2, 0, 16), SCALE, True)),
        Sample("no columns", lambda i: (i.randn(4, 0), i.randn(4, 0), SCALE, True)),
        Sample("scale 0", lambda i: (i.randn(3, 24, salt=2), probabilities(i, 3, 24), 0.0, False)),
        Sample(
            "rows past 2^31 elements",
            lambda i: (
                i.plain(257, (1 << 23) + 8, salt=2)[:, :1024],
                probabilities(i, 257, 1024),
                SCALE,
                True,
            ),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
    )


# --- benchmarks -----------------------------------------------------------------------------------

BENCH = (
    Sample("8x32x1x8192", lambda i: (i.plain(8, 32, 1, 8192), None, SCALE, False), small=False),
    Sample(
        "64x16x512x512 mask",
        lambda i: (i.plain(64, 16, 512, 512), hidden(i, 64, 1, 512, 512), SCALE, False),
        small=False,
    ),
    Sample(
        "64x16x512x512 causal",
        lambda i: (i.plain(64, 16, 512, 512), None, SCALE, True),
        small=False,
    ),
    Sample(
        "4x32x4096x4096 causal",
        lambda i: (i.plain(4, 32, 4096, 4096), None, SCALE, True),
        small=False,
        dtypes=("bf16",),
    ),
    Sample(
        "16x32x2048x2048 causal",
        lambda i: (i.plain(16, 32, 2048, 2048), None, SCALE, True),
        small=False,
    ),
    Sample(
        "16x32x2048x2048 mask",
        lambda i: (i.plain(16, 32, 2048, 2048), hidden(i, 16, 1, 2048, 2048), SCALE, False),
        small=False,
    ),
    Sample("8x256x65536", lambda i: (i.plain(8, 256, 65536), None, SCALE, False), small=False),
    Sample(
        "4x256x131072 causal",
        lambda i: (i.plain(4, 256, 131072), None, SCALE, True),
        small=False,
    ),
)


def _bench_backward(*shape: int, causal: bool) -> Sample:
    label = "x".join(map(str, shape)) + (" causal" if causal else "")

    def make(inputs: Inputs) -> tuple[Any, ...]:
        y = inputs.plain(*shape)
        live = y.tril(shape[-1] - shape[-2]) if causal else y
        return inputs.plain(*shape, salt=2), live, SCALE, causal

    return Sample(label, make, small=False)


BACKWARD_BENCH = (
    _bench_backward(64, 16, 512, 512, causal=False),
    _bench_backward(4, 16, 4096, 4096, causal=True),
    _bench_backward(8, 32, 2048, 2048, causal=False),
    _bench_backward(8, 32, 2048, 2048, causal=True),
    _bench_backward(8, 256, 65536, causal=False),
    _bench_backward(4, 256, 131072, causal=True),
)

# --- bad calls ------------------------------------------------------------------------------------


ERRORS = (
    Bad(
        "integers",
        lambda i: (torch.ones(2, 8, dtype=torch.int32, device=i.device), None, SCALE, False),
        r"scaled_masked_softmax: expected x to be a floating-point tensor, got torch\.int32",
    ),
    Bad(
        "0-d",
        lambda i: (i.randn(), None, SCALE, False),
        r"scaled_masked_softmax: expected at least 1 dimension in x, got shape \(\)",
    ),
    Bad(
        "integer mask",
        lambda i: (i.randn(2, 8), torch.ones(2, 8, dtype=torch.int64, device=i.device), 1.0, False),
        r"scaled_masked_softmax: expected mask to have dtype torch\.bool, torch\.\w+.*, "
        r"got torch\.int64",
    ),
    Bad(
        "f64 mask",
        lambda i: (i.randn(2, 8), i.randn(2, 8).double(), SCALE, False),
        r"expected mask to have dtype torch\.bool, torch\.float32, got torch\.float64",
    ),
    Bad(
        "mask of another length",
        lambda i: (i.randn(2, 3, 8), hidden(i, 3, 7), SCALE, False),
        r"expected mask to be broadcastable to the shape \(2, 3, 8\) of x, got \(3, 7\)",
    ),
    Bad(
        "mask of more dimensions",
        lambda i: (i.randn(3, 8), hidden(i, 1, 3, 8), SCALE, False),
        r"expected mask to be broadcastable to the shape \(3, 8\) of x, got \(1, 3, 8\)",
    ),
    Bad(
        "mask that x would broadcast to",
        lambda i: (i.randn(1, 8), hidden(i, 3, 8), SCALE, False),
        r"expected mask to be broadcastable to the shape \(1, 8\) of x, got \(3, 8\)",
    ),
    Bad(
        "mask on the CPU",
        lambda i: (i.randn(2, 8), torch.ones(8, dtype=torch.bool), SCALE, False),
        r"scaled_masked_softmax: expected mask to be on cuda:\d+ like x, got cpu",
        cuda_only=True,
    ),
    Bad(
        "warp, row too long",
        lambda i: (Inputs(torch.float32, i.device).plain(1, 2052), None, SCALE, False),
        r"scaled_masked_softmax.*: .*needs rows of at most 2048 columns",
        variant="f32x4_pack_warp",
    ),
    Bad(
        "cluster, row too long",
        lambda i: (Inputs(torch.float32, i.device).plain(1, 262148), None, SCALE, False),
        r"scaled_masked_softmax.*: .*(needs rows of at most 1 MiB|sm_90)",
        variant="f32x4_pack_cluster",
    ),
    Bad(
        "warp, misaligned mask",
        lambda i: (
            Inputs(torch.float32, i.device).plain(2, 8),
            misaligned_mask(i, 2, 8),
            1.0,
            False,
        ),
        r"scaled_masked_softmax.*: .*needs rows of x, bias and mask aligned to packs",
        variant="f32x4_pack_warp",
    ),
)

BACKWARD_ERRORS = (
    Bad(
        "integers",
        lambda i: (i.randn(2, 8), torch.ones(2, 8, dtype=torch.int32, device=i.device), 1.0, False),
        r"scaled_masked_softmax_backward: expected y to be a floating-point tensor, "
        r"got torch\.int32",
    ),
    Bad(
        "gradient of another shape",
        lambda i: (i.randn(2, 7), i.randn(2, 8), SCALE, False),
        r"scaled_masked_softmax_backward: expected grad to have shape \(2, 8\) like y, "
        r"got \(2, 7\)",
    ),
    Bad(
        "gradient of another dtype",
        lambda i: (i.randn(2, 8).double(), i.randn(2, 8), SCALE, False),
        r"expected grad to have dtype torch\.\w+ like y, got torch\.float64",
    ),
    Bad(
        "gradient on the CPU",
        lambda i: (torch.ones(2, 8, dtype=i.dtype), i.randn(2, 8), SCALE, False),
        r"expected grad to be on cuda:\d+ like y, got cpu",
        cuda_only=True,
    ),
)


# --- properties -----------------------------------------------------------------------------------


def rows_sum_to_one(function: Function, inputs: Inputs) -> None:
    """Or to zero, where everything is excluded; 64 roundings of half an ulp bound the error."""
    x, mask = inputs.randn(2, 9, 64), some_rows(inputs, 9, 64)
    total = function(x, mask, SCALE, True).double().sum(-1)
    empty = (mask | beyond_diagonal(x)).all(-1)
    bound = 64 * torch.finfo(inputs.dtype).eps
    assert bool(((total - 1).abs() <= bound).logical_or(empty).all())
    assert bool((total[:, empty] == 0).all())


def masked_is_absent(function: Function, inputs: Inputs) -> None:
    """Excluded columns may as well not be there, whatever they hold."""
    x, keep = inputs.randn(3, 5, 48), torch.arange(0, 48, 3, device=inputs.device)
    mask = torch.ones(48, dtype=torch.bool, device=inputs.device)
    mask[keep] = False
    spoiled = x.masked_fill(mask, math.nan)
    whole, part = function(spoiled, mask, SCALE, False), function(x[..., keep], None, SCALE, False)
    assert not whole[..., mask].any()
    torch.testing.assert_close(whole[..., keep], part)


def causal_is_a_mask(function: Function, inputs: Inputs) -> None:
    for queries, keys in ((24, 24), (5, 40), (40, 24)):
        x = inputs.randn(2, queries, keys)
        torch.testing.assert_close(
            function(x, None, SCALE, True), function(x, beyond_diagonal(x), SCALE, False)
        )


def shift_invariant(function: Function, inputs: Inputs) -> None:
    """Whole numbers and a power of two change no rounding."""
    x = (inputs.plain(5, 96) * 4).round()
    assert torch.equal(function(x + 16, None, 0.5, False), function(x, None, 0.5, False))


def rows_independent(function: Function, inputs: Inputs) -> None:
    x, mask = inputs.randn(6, 264), hidden(inputs, 264)
    changed = x.clone()
    changed[2] = inputs.randn(264, salt=3)
    rest = [0, 1, 3, 4, 5]
    before, after = function(x, mask, SCALE, True)[rest], function(changed, mask, SCALE, True)[rest]
    assert torch.equal(before, after), "a row's result depends on another row"


def gradient_sums_to_zero(function: Function, inputs: Inputs) -> None:
    """Probabilities sum to one, so that a shift of all logits changes nothing."""
    y = probabilities(inputs, 5, 64)
    dx = function(inputs.randn(5, 64, salt=2), y, 1.0, False).double()
    bound = 256 * torch.finfo(inputs.dtype).eps * dx.abs().sum(-1)
    assert bool((dx.sum(-1).abs() <= bound).all())
