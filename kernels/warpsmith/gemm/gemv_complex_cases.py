"""Calls on which gemv_complex is tested and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.spec.determinism import RUNS

Call = tuple[Tensor, Tensor]


def call(inputs: Inputs, m: int, k: int, vectors: int = 0) -> Call:
    """`vectors` 0 stands for a single x."""
    shape = (vectors, k, 2) if vectors else (k, 2)
    return inputs.randn(m, k, 2), inputs.randn(*shape, salt=1)


def _shaped(m: int, k: int, vectors: int = 0, *, small: bool = True) -> Sample:
    label = f"{m}x{k}" + (f", {vectors} vectors" if vectors else "")
    return Sample(label, lambda i: call(i, m, k, vectors), small=small)


def samples() -> tuple[Sample, ...]:
    return (
        *(_shaped(1, k) for k in (1, 7, 1000)),
        *(
            _shaped(m, k)
            for m, k in ((7, 16), (33, 33), (127, 4), (129, 128), (128, 129), (16, 127))
        ),
        *(_shaped(m, k, n) for m, k, n in ((33, 132, 1), (17, 260, 3), (5, 1028, 16))),
        *(_shaped(m, k, small=False) for m, k in ((1000, 1000), (130, 4097), (4097, 16))),
        _shaped(64, 20480, 2, small=False),
        Sample("no rows", lambda i: call(i, 0, 8)),
        Sample("no vectors", lambda i: (i.randn(3, 8, 2), i.randn(0, 8, 2))),
        Sample("k of 0", lambda i: call(i, 5, 0)),
        Sample("row stride", lambda i: (i.randn(9, 40, 2)[:, :32], i.randn(32, 2, salt=1))),
        Sample("transposed", lambda i: (i.randn(24, 33, 2).transpose(0, 1), i.randn(24, 2))),
        Sample("planes", lambda i: (i.randn(2, 9, 32).permute(1, 2, 0), i.randn(32, 2, salt=1))),
        Sample("misaligned", lambda i: (i.misaligned(9, 32, 2), i.randn(32, 2, salt=1))),
        Sample("misaligned x", lambda i: (i.randn(9, 32, 2), i.misaligned(3, 32, 2, salt=1))),
        Sample("strided x", lambda i: (i.randn(9, 32, 2), i.randn(64, 2, salt=1)[::2])),
        Sample(
            "scaled by 100",
            lambda i: (i.plain(20, 256, 2, scale=100.0), i.plain(256, 2, scale=1e-2, salt=1)),
        ),
        Sample("nan", lambda i: _single(i, float("nan"))),
        Sample("infinity", lambda i: _single(i, float("inf"))),
        Sample(
            "past 2^31 elements, 3 vectors",
            lambda i: (i.plain(65_537, 16_392, 2), i.plain(3, 16_392, 2, salt=1)),
            small=False,
            huge=True,
            dtypes=("f16", "bf16"),
        ),
        Sample(
            "past 2^31 elements, transposed",
            lambda i: (i.plain(16_392, 65_537, 2).transpose(0, 1), i.plain(16_392, 2, salt=1)),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
    )


def _single(inputs: Inputs, value: float) -> Call:
    a, x = inputs.plain(20, 256, 2), inputs.plain(3, 256, 2, salt=1)
    a[7, 100, 1] = value
    return a, x


def _bench(m: int, k: int) -> Sample:
    return Sample(f"{m}x{k}", lambda i: (i.plain(m, k, 2), i.plain(k, 2, salt=1)), small=False)


BENCH = (_bench(4096, 4096), _bench(14336, 4096))

ERRORS = (
    Bad(
        "integers",
        lambda i: (torch.ones(8, 8, 2, device=i.device).int(), i.randn(8, 2)),
        r"gemv_complex: expected a to be a floating-point tensor, got torch\.int32",
    ),
    Bad(
        "no pairs",
        lambda i: (i.randn(4, 8), i.randn(8, 2)),
        r"gemv_complex: expected a to have shape \(m, k, 2\), got shape \(4, 8\)",
    ),
    Bad(
        "another length",
        lambda i: (i.randn(4, 8, 2), i.randn(4, 2)),
        r"gemv_complex: expected x to have shape \(8, 2\) or .*, got shape \(4, 2\)",
    ),
    Bad(
        "too many vectors",
        lambda i: (i.randn(4, 8, 2), i.randn(17, 8, 2)),
        r"gemv_complex: expected x to have at most 16 vectors, got 17",
    ),
    Bad(
        "another dtype",
        lambda i: (i.randn(4, 8, 2), i.randn(8, 2).double()),
        r"gemv_complex: expected x to have dtype torch\.\w+ like a, got torch\.float64",
    ),
    Bad(
        "x on the CPU",
        lambda i: (i.randn(4, 8, 2), torch.ones(8, 2, dtype=i.dtype)),
        r"gemv_complex: expected x to be on cuda:\d+ like a, got cpu",
        cuda_only=True,
    ),
)


def deterministic(function: Callable[..., Any], inputs: Inputs) -> None:
    args = call(inputs, 70, 4100, 2)
    first = function(*args)
    for _ in range(RUNS - 1):
        assert torch.equal(function(*args), first), "two runs of one call differ"


def turns(function: Callable[..., Any], inputs: Inputs) -> None:
    """A product with i exchanges the parts, one of them with another sign."""
    a, x = call(inputs, 40, 516)
    turned = torch.stack((-x[:, 1], x[:, 0]), -1)
    y, out = function(a, x), function(a, turned)
    again = torch.stack((-y[:, 1], y[:, 0]), -1).double()
    spread = 2.0**-9 if inputs.dtype != torch.float32 else 2.0**-18
    assert (out.double() - again).abs().max() <= spread * y.double().abs().max()
