"""Calls on which linear and addmm are tested and measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample

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


def _past_2_31(what: str, x: tuple[int, int], n: int, activation: str = "none") -> Sample:
    return Sample(
        f"past 2^31 elements of {what}",
        lambda i: _layer(i, x, n, activation),
        small=False,
        huge=True,
        dtypes=("bf16",),
    )


def _decoded(m: int, n: int, k: int, activation: str = "none", **options: Any) -> Sample:
    """A token of each of a few sequences, at once."""
    return _sample((m, k), n, activation=activation, **options)


def _with_columns(x: Tensor, weight: Tensor, *rest: Any) -> tuple[Any, ...]:
    """The same layer, its weight in memory as [k, n]."""
    return x, weight.t().contiguous().t(), *rest


def _transposed(m: int, activation: str) -> Sample:
    def make(i: Inputs) -> tuple[Any, ...]:
        return _with_columns(*_layer(i, (m, 1024), 72, activation))

    return Sample(f"{m} tokens, weight transposed, {activation}", make)


def _special_tokens(inputs: Inputs) -> tuple[Any, ...]:
    x, weight, bias, activation = _layer(inputs, (3, 1024), 40, "relu")
    x[1, 7], weight[5, 1023], weight[32, 0], bias[11] = math.nan, math.inf, -math.inf, math.nan
    return x, weight, bias, activation


def _special(inputs: Inputs) -> tuple[Any, ...]:
    x, weight, bias, activation = _layer(inputs, (20, 40), 24, "silu")
    x[3, 7], x[5, 0], weight[2, 39], bias[11] = math.nan, math.inf, -math.inf, math.nan
    return x, weight, bias, activation


def linear_samples() -> tuple[Sample, ...]:
    return (
        *(_sample((33, 40), 24, activation=name) for name in _ACTIVATIONS),
        *(_sample((129, 127), 7, activation=name, bias=False) for name in _ACTIVATIONS),
        _sample((7, 1), 16, activation="relu"),
        _sample((127, 7), 127, activation="gelu"),
        _sample((128, 33), 16, activation="silu"),
        _sample((7, 129), 127, activation="none"),
        _sample((4097, 129), 16, activation="gelu_tanh", small=False),
        _sample((127, 33), 4097, activation="relu", small=False),
        _sample((1, 64), 128, activation="silu"),
        _sample((16, 128), 136, activation="gelu"),
        _sample((64,), 40, activation="relu"),
        _sample((2, 3, 5, 40), 24, activation="none"),
        _sample((130, 264), 200, activation="gelu_tanh"),
        _sample((20, 1544), 40, activation="gelu"),
        _sample((3, 1543), 33, activation="silu"),
        _sample((1000, 1000), 1000, activation="silu", small=False),
        _sample((5, 4097), 129, activation="none", small=False),
        _sample((24, 65536), 16, activation="gelu", small=False),
        _sample((257, 512), 1024, activation="relu", small=False),
        *(_sample((71, 75), 77, activation=name) for name in _ACTIVATIONS),
        _sample((1001, 999), 1003, activation="silu", small=False),
        _sample((2500, 2055), 2553, activation="gelu", small=False),
        _sample((17000, 1096), 520, activation="gelu", small=False),
        *(_decoded(1, 33, 1032, name) for name in _ACTIVATIONS),
        *(_decoded(2, 7, 1024, name) for name in ("gelu", "silu")),
        *(_decoded(5, 67, 1024, name) for name in _ACTIVATIONS),
        *(_decoded(8, 129, 1032, name) for name in ("none", "silu")),
        *(_decoded(16, 65, 1024, name) for name in _ACTIVATIONS),
        *(_decoded(m, 31, 1024, "gelu_tanh", bias=False) for m in (1, 4, 16)),
        _decoded(17, 65, 1024, "gelu"),
        _decoded(70, 1, 1032, "silu"),
        *(_decoded(m, 5, 8192, "relu") for m in (3, 16)),
        _decoded(16, 9000, 1024, "silu", small=False),
        _decoded(8, 4099, 4096, "gelu", small=False),
        _past_2_31("weight", (8, 2048), (1 << 20) + 8),
        _past_2_31("the result", (46_344, 16), 46_344, "relu"),
        Sample("tokens of a batch", lambda i: _layer(i, (5, 1, 1024), 33, "silu")),
        Sample(
            "tokens, misaligned weights",
            lambda i: (
                i.randn(8, 1024),
                i.misaligned(33, 1024, salt=1),
                i.randn(33, salt=2),
                "silu",
            ),
        ),
        Sample(
            "tokens, row strides",
            lambda i: (
                i.randn(5, 1040)[:, :1024],
                i.randn(33, 1032, salt=1)[:, 8:],
                i.randn(66, salt=2)[::2],
                "relu",
            ),
        ),
        _transposed(1, "silu"),
        _transposed(2, "none"),
        _transposed(8, "gelu"),
        _transposed(16, "relu"),
        _transposed(17, "gelu_tanh"),
        Sample("tokens, special values", _special_tokens),
        Sample(
            "tokens, special values, weight transposed",
            lambda i: _with_columns(*_special_tokens(i)),
        ),
        # in the tiles and shares of `skinny` that 132 multiprocessors choose
        _decoded(16, 8190, 264, "relu", small=False),
        _decoded(16, 14330, 264, "silu", small=False),
        _decoded(13, 16890, 264, small=False),
        _decoded(11, 18513, 1832, "gelu", small=False),
        Sample("k = 0", lambda i: _layer(i, (5, 0), 7, "relu")),
        Sample("no rows", lambda i: _layer(i, (0, 16), 7, "relu")),
        Sample("no columns", lambda i: _layer(i, (4, 16), 0, "relu")),
        Sample("rows of a batch, k = 0", lambda i: _layer(i, (2, 3, 0), 5, "relu")),
        Sample("rows of a batch, no columns", lambda i: _layer(i, (2, 3, 4), 0, "relu")),
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
        Sample("batch-invariant, tokens", lambda i: (*_layer(i, (5, 1024), 67, "silu"), True)),
        Sample("batch-invariant, odd", lambda i: (*_layer(i, (70, 1033), 7, "gelu"), True)),
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


def deterministic(linear: Callable[..., Any], inputs: Inputs) -> None:
    """A long k over few tiles, which is what gets split; and few rows."""
    for m in (40, 3):
        args = _layer(inputs, (m, 9000), 72, "silu")
        first = linear(*args)
        assert all(torch.equal(first, linear(*args)) for _ in range(5))


def linear_bench() -> tuple[Sample, ...]:
    """The projections of a Llama-3-8B layer, for a prompt and for a few sequences at once."""
    layers = (
        (4096, 4096, "none"),
        (14336, 4096, "silu"),
        (14336, 4096, "gelu"),
        (4096, 14336, "none"),
    )

    def case(
        m: int, n: int, k: int, activation: str, dtypes: tuple[str, ...] | None = None
    ) -> Sample:
        return Sample(
            f"{m}x{n}x{k} {activation}",
            lambda i: _layer(i, (m, k), n, activation),
            small=False,
            dtypes=dtypes,
        )

    return (
        *(case(m, *layer) for layer in layers for m in (128, 4096)),
        *(case(m, *layer, ("bf16",)) for layer in layers for m in (1, 8, 16)),
    )


# --- addmm ----------------------------------------------------------------------------------------


def _added(
    inputs: Inputs, c: tuple[int, ...], m: int, n: int, k: int, beta: float, alpha: float
) -> tuple[Any, ...]:
    a, b = inputs.randn(m, k, salt=1), inputs.randn(k, n, salt=2)
    return inputs.randn(*c), a, b, beta, alpha


def _scaled(c: tuple[int, ...], beta: float, alpha: float) -> Sample:
    label = f"c {c}, beta {beta}, alpha {alpha}"
    return Sample(label, lambda i: _added(i, c, 33, 24, 40, beta, alpha))


def _shaped(m: int, n: int, k: int, *, small: bool = True) -> Sample:
    label = f"{m}x{n}x{k}"
    return Sample(label, lambda i: _added(i, (m, n), m, n, k, 0.5, 2.0), small=small)


def _few_rows(m: int, c: tuple[int, ...], beta: float, alpha: float) -> Sample:
    """Few rows times a row-major b."""
    label = f"{m} rows, c {c}, beta {beta}, alpha {alpha}"
    return Sample(label, lambda i: _added(i, c, m, 72, 4096, beta, alpha))


def _rows(m: int, n: int, k: int, c: tuple[int, ...], *scales: float) -> Sample:
    """Few rows times a column-major b."""

    def make(i: Inputs) -> tuple[Any, ...]:
        return i.randn(*c), i.randn(m, k, salt=1), i.randn(n, k, salt=2).t(), *scales

    return Sample(f"{m}x{n}x{k}, c {c}, beta and alpha {scales}", make)


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
        _rows(1, 33, 1024, (33,), 1.0, 1.0),
        _rows(2, 33, 1024, (2, 33), 0.5, -2.0),
        _rows(5, 67, 1032, (5, 1), 2.0, 1.0),
        _rows(8, 129, 1024, (8, 129), 0.0, 0.5),
        _rows(16, 65, 1024, (16, 65), -1.0, 0.25),
        _rows(16, 3, 8192, (16, 3), 0.5, 2.0),
        _rows(17, 65, 1024, (17, 65), 0.5, 2.0),
        _rows(70, 1, 1024, (70, 1), 0.5, 2.0),
        _rows(70, 1, 1024, (1,), 1.0, 1.0),
        _few_rows(1, (72,), 1.0, 1.0),
        _few_rows(5, (5, 72), 0.5, -2.0),
        _few_rows(9, (9, 1), 0.5, 2.0),
        _few_rows(16, (72,), 0.0, 2.0),
        _few_rows(17, (72,), 1.0, 0.5),
        Sample(
            "column of columns",
            lambda i: (
                i.randn(72, 1),
                i.randn(1024, 72, salt=1).t(),
                i.randn(1024, 1, salt=2),
                0.5,
                2.0,
            ),
        ),
        Sample(
            "more products than a grid is high",
            lambda i: (
                i.randn(70000, 2, 2),
                i.randn(70000, 2, 4, salt=1),
                i.randn(70000, 4, 2, salt=2),
                0.5,
                2.0,
            ),
            small=False,
        ),
        Sample(
            "few rows, c transposed",
            lambda i: (
                i.randn(33, 5).t(),
                i.randn(5, 1024, salt=1),
                i.randn(33, 1024, salt=2).t(),
            ),
        ),
        Sample(
            "few rows, c unread",
            lambda i: (_nan(i, 33), i.randn(5, 1024), i.randn(33, 1024, salt=2).t(), 0.0, 2.0),
        ),
        _shaped(7, 16, 1),
        _shaped(127, 16, 7),
        _shaped(7, 16, 33),
        _shaped(127, 16, 127),
        _shaped(7, 4097, 129, small=False),
        _shaped(4097, 16, 4097, small=False),
        Sample(
            "batch of none",
            lambda i: (i.randn(24), i.randn(0, 9, 16), i.randn(0, 16, 24), 0.5, 2.0),
        ),
        Sample(
            "past 2^31 elements of c and the result",
            lambda i: _added(i, (46_344, 46_344), 46_344, 46_344, 16, 0.5, 2.0),
            small=False,
            huge=True,
            dtypes=("bf16",),
        ),
        Sample("128s", lambda i: _added(i, (128, 128), 128, 128, 128, 1.0, 1.0)),
        Sample("odd", lambda i: _added(i, (129, 127), 129, 127, 65, 0.5, 2.0)),
        Sample("few, long", lambda i: _added(i, (33, 40), 33, 40, 1544, 0.5, 2.0)),
        Sample("few, long, odd", lambda i: _added(i, (37,), 33, 37, 1543, 0.5, 2.0)),
        Sample(
            "batch, long",
            lambda i: (i.randn(33, 24), i.randn(3, 33, 1032), i.randn(3, 1032, 24, salt=1), 2.0),
        ),
        Sample("large", lambda i: _added(i, (1000, 1000), 1000, 1000, 1000, 0.5, 2.0), small=False),
        Sample("k = 65536", lambda i: _added(i, (16,), 24, 16, 65536, 0.5, 2.0), small=False),
        Sample(
            "large, odd", lambda i: _added(i, (1001, 999), 1001, 999, 1003, 0.5, 2.0), small=False
        ),
        Sample(
            "batch, odd",
            lambda i: (
                i.randn(3, 33, 1),
                i.randn(3, 33, 41, salt=1),
                i.randn(3, 27, 41, salt=2).mT,
                0.5,
                2.0,
            ),
        ),
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
        Sample(
            "rows of a batch, k = 0",
            lambda i: (i.randn(5), i.randn(2, 3, 0), i.randn(0, 5), 0.5, 2.0),
        ),
        Sample(
            "rows of a batch, no columns",
            lambda i: (i.randn(3, 1), i.randn(2, 3, 4), i.randn(4, 0), 0.5, 2.0),
        ),
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


def addmm_deterministic(addmm: Callable[..., Any], inputs: Inputs) -> None:
    """A long k over few tiles, which is what gets split; and few rows."""
    for m in (40, 3):
        args = _added(inputs, (m, 72), m, 72, 9000, 0.5, 2.0)
        first = addmm(*args)
        assert all(torch.equal(first, addmm(*args)) for _ in range(5))


def addmm_bench() -> tuple[Sample, ...]:
    """Cubes, and a few tokens through a layer of bias c."""

    def case(n: int) -> Sample:
        def make(i: Inputs) -> tuple[Any, ...]:
            return i.plain(n, n), i.plain(n, n, salt=1), i.plain(n, n, salt=2), 0.5, 2.0

        return Sample(f"{n}x{n}x{n}", make, small=False)

    def tokens(m: int, n: int, k: int) -> Sample:
        def make(i: Inputs) -> tuple[Any, ...]:
            return i.plain(n), i.plain(m, k, salt=1), i.plain(n, k, salt=2).t(), 1.0, 1.0

        return Sample(f"{m}x{n}x{k} TN, c of one row", make, small=False, dtypes=("bf16",))

    return *(case(n) for n in (1024, 4096, 8192)), tokens(1, 4096, 4096), tokens(16, 14336, 4096)
