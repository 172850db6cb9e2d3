"""Calls on which linear and addmm are tested and measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.catalogue import Bad, Inputs, Sample

_ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")


def _layer(
    inputs: Inputs, x: tuple[int, ...], n: int, activation: str = "none", *, bias: bool = True
) -> tuple[Any, ...]:
    """Weights of a magnitude that leaves the sums near one, where activations bend."""
    k = x[-1]
    weight = inputs.plain(n, k, scale=1 / math.sqrt(max(k, 1)), salt=1)
    return inputs.plain(*x), weight, inputs.plain(n, salt=2) if bias else None, activation


def _sample(x: tuple[int, ...], n: int, *, small: bool = True, **options: Any) -> Sample:
    text = ", ".join(str(v) for v in options.values())
    shape = "x".join(map(str, x))
    return Sample(f"{shape} to {n}, {text}", lambda i: _layer(i, x, n, **options), small=small)


def _special(inputs: Inputs) -> tuple[Any, ...]:
    x, weight, bias, activation = _layer(inputs, (20, 40), 24, "silu")
    x[3, 7], x[5, 0], weight[2, 39], bias[11] = math.nan, math.inf, -math.inf, math.nan
    return x, weight, bias, activation


def linear_samples() -> tuple[Sample, ...]:
    return (
        *(_sample((33, 40), 24, activation=name) for name in _ACTIVATIONS),
        *(_sample((129, 127), 7, activation=name, bias=False) for name in _ACTIVATIONS),
        _sample((1, 64), 128, activation="silu"),
        _sample((16, 128), 136, activation="gelu"),
        _sample((64,), 40, activation="relu"),
        _sample((2, 3, 5, 40), 24, activation="none"),
        _sample((130, 264), 200, activation="gelu_tanh"),
        _sample((20, 1544), 40, activation="gelu"),
        _sample((3, 1543), 33, activation="silu"),
        _sample((1000, 1000), 1000, activation="silu", small=False),
        _sample((5, 4097), 129, activation="none", small=False),
        _sample((257, 512), 1024, activation="relu", small=False),
        Sample("k = 0", lambda i: _layer(i, (5, 0), 7, "relu")),
        Sample("no rows", lambda i: _layer(i, (0, 16), 7, "relu")),
        Sample("no columns", lambda i: _layer(i, (4, 16), 0, "relu")),
        Sample(
            "x transposed",
            lambda i: (i.randn(40, 33).t(), i.randn(24, 40, salt=1), i.randn(24, salt=2), "none"),
        ),
        Sample(
            "weight transposed",
            lambda i: (i.randn(33, 40), i.randn(40, 24, salt=1).t(), i.randn(24, salt=2), "relu"),
        ),
        Sample(
            "strided bias",
            lambda i: (i.randn(33, 40), i.randn(24, 40, salt=1), i.randn(48, salt=2)[::2], "none"),
        ),
        Sample(
            "misaligned",
            lambda i: (
                i.misaligned(64, 64),
                i.misaligned(72, 64, salt=1),
                i.misaligned(72, salt=2),
                "none",
            ),
        ),
        Sample(
            "heads",
            lambda i: (
                i.randn(2, 9, 3, 16).transpose(1, 2),
                i.randn(24, 16, salt=1),
                i.randn(24, salt=2),
                "silu",
            ),
        ),
        Sample("special values", _special),
    )


LINEAR_ERRORS = (
    Bad(
        "0-d",
        lambda i: (i.randn(), i.randn(3, 4), None, "none"),
        r"linear: expected at least 1 dimension in x, got shape \(\)",
    ),
    Bad(
        "weight 3-D",
        lambda i: (i.randn(3, 4), i.randn(2, 3, 4), None, "none"),
        r"linear: expected weight to be 2-D, got shape \(2, 3, 4\)",
    ),
    Bad(
        "inner sizes",
        lambda i: (i.randn(3, 4), i.randn(6, 5), None, "none"),
        r"linear: cannot multiply shapes \(3, 4\) and \(6, 5\) transposed",
    ),
    Bad(
        "bias of another size",
        lambda i: (i.randn(3, 4), i.randn(6, 4), i.randn(4), "none"),
        r"linear: expected bias to have shape \(6,\), the rows of weight, got \(4,\)",
    ),
    Bad(
        "bias of another dtype",
        lambda i: (i.randn(3, 4), i.randn(6, 4), i.randn(6).double(), "none"),
        r"linear: expected bias to have dtype torch.\w+ like x, got torch.float64",
    ),
    Bad(
        "unknown activation",
        lambda i: (i.randn(3, 4), i.randn(6, 4), None, "swish"),
        r"linear: expected activation to be .*, got 'swish'",
    ),
)


def bias_alone(linear: Callable[..., Any], inputs: Inputs) -> None:
    """Of zeros, the bias is left, to the bit."""
    x = torch.zeros(17, 40, dtype=inputs.dtype, device=inputs.device)
    bias = inputs.randn(24, salt=2)
    assert torch.equal(linear(x, inputs.plain(24, 40), bias, "none"), bias.expand(17, 24))


def linear_bench() -> tuple[Sample, ...]:
    """The projections of a Llama-3-8B layer, for a prompt and for a few sequences at once."""
    shapes = tuple(
        (m, n, k, activation)
        for n, k, activation in (
            (4096, 4096, "none"),
            (14336, 4096, "silu"),
            (14336, 4096, "gelu"),
            (4096, 14336, "none"),
        )
        for m in (128, 4096)
    )

    def case(m: int, n: int, k: int, activation: str) -> Sample:
        return Sample(
            f"{m}x{n}x{k} {activation}", lambda i: _layer(i, (m, k), n, activation), small=False
        )

    return tuple(case(*shape) for shape in shapes)


# --- addmm ----------------------------------------------------------------------------------------


def _added(
    inputs: Inputs, c: tuple[int, ...], m: int, n: int, k: int, beta: float, alpha: float
) -> tuple[Any, ...]:
    a, b = inputs.randn(m, k, salt=1), inputs.randn(k, n, salt=2)
    return inputs.randn(*c), a, b, beta, alpha


def _scaled(c: tuple[int, ...], beta: float, alpha: float) -> Sample:
    label = f"c {c}, beta {beta}, alpha {alpha}"
    return Sample(label, lambda i: _added(i, c, 33, 24, 40, beta, alpha))


def _nan(inputs: Inputs, *shape: int) -> Tensor:
    return inputs.plain(*shape).fill_(math.nan)


def addmm_samples() -> tuple[Sample, ...]:
    return (
        _scaled((33, 24), 1.0, 1.0),
        _scaled((33, 24), 0.5, -2.0),
        _scaled((24,), 1.0, 1.0),
        _scaled((33, 1), -1.0, 0.25),
        _scaled((1, 24), 2.0, 1.0),
        _scaled((), 1.0, 1.0),
        _scaled((33, 24), 1.0, 0.0),
        Sample("128s", lambda i: _added(i, (128, 128), 128, 128, 128, 1.0, 1.0)),
        Sample("odd", lambda i: _added(i, (129, 127), 129, 127, 65, 0.5, 2.0)),
        Sample("few, long", lambda i: _added(i, (33, 40), 33, 40, 1544, 0.5, 2.0)),
        Sample("few, long, odd", lambda i: _added(i, (37,), 33, 37, 1543, 0.5, 2.0)),
        Sample(
            "batch, long",
            lambda i: (i.randn(33, 24), i.randn(3, 33, 1032), i.randn(3, 1032, 24, salt=1), 2.0),
        ),
        Sample("large", lambda i: _added(i, (1000, 1000), 1000, 1000, 1000, 0.5, 2.0), small=False),
        Sample("c unread", lambda i: (_nan(i, 33, 24), i.randn(33, 40), i.randn(40, 24), 0.0, 1.0)),
        Sample("c transposed", lambda i: (i.randn(24, 33).t(), i.randn(33, 40), i.randn(40, 24))),
        Sample("c misaligned", lambda i: (i.misaligned(40, 64), i.randn(40, 32), i.randn(32, 64))),
        Sample(
            "batch",
            lambda i: (i.randn(3, 33, 24), i.randn(3, 33, 40), i.randn(3, 40, 24), 2.0, 1.0),
        ),
        Sample(
            "c over the batch", lambda i: (i.randn(33, 24), i.randn(3, 33, 40), i.randn(3, 40, 24))
        ),
        Sample(
            "rows of a batch", lambda i: (i.randn(3, 33, 24), i.randn(3, 33, 40), i.randn(40, 24))
        ),
        Sample(
            "batch of two dimensions",
            lambda i: (i.randn(3, 1, 24), i.randn(2, 1, 9, 16), i.randn(3, 16, 24)),
        ),
        Sample("k = 0", lambda i: (i.randn(5, 7), i.randn(5, 0), i.randn(0, 7), 0.5, 1.0)),
        Sample("no rows", lambda i: (i.randn(7), i.randn(0, 5), i.randn(5, 7), 0.5, 1.0)),
    )


ADDMM_ERRORS = (
    Bad(
        "vector",
        lambda i: (i.randn(3), i.randn(3), i.randn(3, 4)),
        r"addmm: expected at least 2 dimensions in a, got shape \(3,\)",
    ),
    Bad(
        "inner sizes",
        lambda i: (i.randn(3, 6), i.randn(3, 4), i.randn(5, 6)),
        r"addmm: cannot multiply shapes \(3, 4\) and \(5, 6\)",
    ),
    Bad(
        "c of another shape",
        lambda i: (i.randn(4, 6), i.randn(3, 4), i.randn(4, 6)),
        r"addmm: expected c to be broadcastable to the shape \(3, 6\) of the product, "
        r"got \(4, 6\)",
    ),
    Bad(
        "c larger than the product",
        lambda i: (i.randn(2, 3, 6), i.randn(3, 4), i.randn(4, 6)),
        r"addmm: expected c to be broadcastable",
    ),
    Bad(
        "c of another dtype",
        lambda i: (i.randn(3, 6).double(), i.randn(3, 4), i.randn(4, 6)),
        r"addmm: expected c to have dtype torch.\w+ like a, got torch.float64",
    ),
)


def addmm_bench() -> tuple[Sample, ...]:
    def case(n: int) -> Sample:
        def make(i: Inputs) -> tuple[Any, ...]:
            return i.plain(n, n), i.plain(n, n, salt=1), i.plain(n, n, salt=2), 0.5, 2.0

        return Sample(f"{n}x{n}x{n}", make, small=False)

    return tuple(case(n) for n in (1024, 4096, 8192))
