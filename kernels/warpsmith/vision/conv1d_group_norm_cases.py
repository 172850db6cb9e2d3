"""Calls on which conv1d_group_norm and the gradients of its convolution are tested and timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.spec.spoilt import Spoiler

#: n, c_in, l, c_out, taps, groups, activation.
Case = tuple[int, int, int, int, int, int, str]
CASES: tuple[Case, ...] = (
    (1, 1, 1, 1, 1, 1, "none"),
    (2, 3, 5, 4, 3, 2, "mish"),
    (3, 8, 16, 16, 5, 4, "mish"),
    (2, 16, 8, 8, 5, 8, "silu"),
    (2, 20, 7, 12, 7, 3, "silu"),
    (1, 9, 13, 10, 4, 5, "mish"),
    (2, 5, 3, 6, 6, 1, "none"),
    (5, 7, 1, 6, 2, 2, "silu"),
    (17, 2, 4, 24, 5, 3, "mish"),
    (1, 70, 33, 72, 3, 1, "mish"),
    (9, 24, 8, 144, 5, 2, "silu"),
    (1, 4, 130, 8, 5, 2, "mish"),
    (3, 12, 64, 6, 1, 2, "silu"),
    (2, 1, 6, 20, 3, 2, "mish"),
)
LARGE: tuple[Case, ...] = (
    (64, 14, 16, 256, 5, 8, "mish"),
    (70, 256, 16, 256, 5, 8, "mish"),
    (33, 256, 8, 512, 5, 8, "mish"),
    (64, 512, 4, 1024, 5, 8, "mish"),
    (16, 192, 64, 96, 3, 8, "silu"),
    (3, 130, 127, 258, 7, 2, "silu"),
    (2, 64, 3001, 32, 5, 4, "mish"),
    (1, 2100, 5, 2056, 1, 8, "silu"),
    # what a large GPU has whole rounds of: tiles that smaller calls do not get
    (140, 256, 16, 256, 5, 8, "silu"),
    (144, 16, 4, 1024, 3, 8, "mish"),
    (2, 24, 100, 48, 5, 2, "silu"),
)


def _vectors(i: Inputs, c: int) -> tuple[Any, Any, Any]:
    return i.randn(c, salt=2), i.randn(c, salt=3), i.randn(c, salt=4)


def _make(i: Inputs, case: Case, make: str, keep: bool) -> tuple[Any, ...]:
    n, c, length, out, taps, groups, activation = case
    values = getattr(i, make)
    x, weight = values(n, c, length), values(out, c, taps, salt=1)
    return x, weight, *_vectors(i, out), groups, 1e-5, activation, keep


def _label(case: Case) -> str:
    n, c, length, out, taps, groups, activation = case
    text = f"{n}x{c}x{length} to {out} k{taps} g{groups}"
    return text if activation == "none" else f"{text} {activation}"


def _sample(case: Case, small: bool = True, keep: bool = False) -> Sample:
    label = _label(case) + (" kept" if keep else "")
    return Sample(label, lambda i: _make(i, case, "randn", keep), small=small)


def _odd(i: Inputs) -> tuple[Any, ...]:
    """Views of all kinds."""
    x, weight = i.randn(4, 10, 3).permute(2, 0, 1), i.misaligned(6, 4, 3)
    return x, weight, i.randn(12)[::2], *_vectors(i, 6)[1:], 2, 1e-3, "silu", True


def _no_bias(i: Inputs) -> tuple[Any, ...]:
    x, weight, _, *rest = _make(i, CASES[2], "randn", False)
    return x, weight, None, *rest


SAMPLES = (
    *(_sample(case) for case in CASES),
    *(_sample(case, keep=True) for case in CASES[2:5]),
    *(_sample(case, small=False) for case in LARGE),
    _sample(LARGE[1], small=False, keep=True),
    Sample("defaults", lambda i: _make(i, CASES[2], "randn", False)[:6]),
    Sample("no bias", _no_bias),
    Sample("views", _odd),
    _sample((0, 4, 8, 8, 3, 2, "mish")),
    _sample((0, 4, 8, 8, 3, 2, "mish"), keep=True),
    Sample(
        "misaligned",
        lambda i: (i.misaligned(2, 8, 16), *_make(i, (2, 8, 16, 8, 5, 2, ""), "randn", False)[1:7],
                   "mish"),
    ),
)  # fmt: skip


def _backward(i: Inputs, case: Case, make: str) -> tuple[Any, ...]:
    n, c, length, out, taps = case[:5]
    values = getattr(i, make)
    return values(n, out, length, salt=5), values(n, c, length), values(out, c, taps, salt=1)


def _backward_label(case: Case) -> str:
    return _label(case).split(" g")[0]


def _backward_sample(case: Case, small: bool = True) -> Sample:
    return Sample(_backward_label(case), lambda i: _backward(i, case, "randn"), small=small)


BACKWARD_SAMPLES = (
    *map(_backward_sample, CASES),
    *(_backward_sample(case, small=False) for case in LARGE),
    _backward_sample((16, 512, 64, 512, 5, 8, "mish"), small=False),  # more slices than fit at once
    Sample(
        "views",
        lambda i: (
            i.randn(3, 12, 5)[:, ::2],
            i.randn(4, 5, 3).permute(2, 0, 1),
            i.misaligned(6, 4, 3),
        ),
    ),
    Sample("no samples", lambda i: _backward(i, (0, 4, 8, 8, 3, 2, ""), "randn")),
)


# --- errors ---------------------------------------------------------------------------------------


def _good(i: Inputs) -> dict[str, Any]:
    bias, scale, shift = _vectors(i, 8)
    return {
        "x": i.randn(2, 4, 6),
        "weight": i.randn(8, 4, 3, salt=1),
        "bias": bias,
        "norm_weight": scale,
        "norm_bias": shift,
        "groups": 2,
    }


def _good_backward(i: Inputs) -> dict[str, Any]:
    return {
        "grad": i.randn(2, 8, 6, salt=5),
        "x": i.randn(2, 4, 6),
        "weight": i.randn(8, 4, 3, salt=1),
    }


def _double(*shape: int) -> Callable[[Inputs], Any]:
    return lambda i: i.randn(*shape).double()


def _conv_errors(bad: Spoiler) -> tuple[Bad, ...]:
    signals = r"expected x to have shape \(n, c, l\) with channels and positions, got "
    weights = r"expected weight to have shape \(channels, 4, 1 to 7\), got "
    return (
        bad.integers(),
        bad(
            "fp8",
            r"expected x to have at least 16 bits an element, got torch\.float8_e5m2",
            x=lambda i: torch.ones(2, 4, 6, device=i.device).to(torch.float8_e5m2),
        ),
        bad("2-d", signals + r"\(2, 4\)", x=lambda i: i.randn(2, 4)),
        bad("no channels", signals + r"\(2, 0, 6\)", x=lambda i: i.randn(2, 0, 6)),
        bad("no positions", signals + r"\(2, 4, 0\)", x=lambda i: i.randn(2, 4, 0)),
        bad("2-d weight", weights + r"\(8, 4\)", weight=lambda i: i.randn(8, 4)),
        bad("other channels", weights + r"\(8, 5, 3\)", weight=lambda i: i.randn(8, 5, 3)),
        bad("no channels of weight", weights + r"\(0, 4, 3\)", weight=lambda i: i.randn(0, 4, 3)),
        bad("eight taps", weights + r"\(8, 4, 8\)", weight=lambda i: i.randn(8, 4, 8)),
        bad("no taps", weights + r"\(8, 4, 0\)", weight=lambda i: i.randn(8, 4, 0)),
        bad(
            "weight of another dtype",
            r"expected weight to have dtype torch\.\w+ like x, got torch\.float64",
            weight=_double(8, 4, 3),
        ),
        bad.on_the_cpu("weight", 8, 4, 3, narrow=True),
    )


def _errors() -> tuple[Bad, ...]:
    bad = Spoiler("conv1d_group_norm_forward", _good)
    vectors: list[Bad] = []
    for name in ("bias", "norm_weight", "norm_bias"):
        changes: dict[str, Any] = {name: lambda i: i.randn(7)}
        message = rf"expected {name} to have shape \(8,\), a value for each channel of weight, got "
        vectors.append(bad(f"{name} of another length", message + r"\(7,\)", **changes))
        wide: dict[str, Any] = {name: _double(8)}
        message = rf"expected {name} to have dtype torch\.\w+ like x, got torch\.float64"
        vectors.append(bad(f"{name} of another dtype", message, **wide))
        vectors.append(bad.on_the_cpu(name, 8, narrow=True))
    return (
        *_conv_errors(bad),
        *vectors,
        bad("no groups", "expected groups to be at least 1, got 0", groups=0),
        bad(
            "groups that do not divide",
            "expected groups to divide the 8 channels of weight, got 3",
            groups=3,
        ),
        bad(
            "another activation",
            "expected activation to be 'none', 'silu' or 'mish', got 'relu'",
            activation="relu",
        ),
        bad.refused(
            "long signals",
            "needs groups of at most 128 channels and signals of at most 128 positions",
            "f32_mma_fused",
            x=lambda i: i.randn(1, 4, 129),
        ),
    )


def _backward_errors() -> tuple[Bad, ...]:
    bad = Spoiler("conv1d_backward", _good_backward)
    return (
        *_conv_errors(bad),
        bad(
            "gradient of another shape",
            r"expected grad to have shape \(2, 8, 6\), got \(2, 8, 5\)",
            grad=lambda i: i.randn(2, 8, 5),
        ),
        bad(
            "gradient of another dtype",
            r"expected grad to have dtype torch\.\w+ like x, got torch\.float64",
            grad=_double(2, 8, 6),
        ),
        bad.on_the_cpu("grad", 2, 8, 6, narrow=True),
    )


ERRORS = _errors()
BACKWARD_ERRORS = _backward_errors()


# --- benchmarks: blocks of diffusion policy -------------------------------------------------------

_TIMED: tuple[Case, ...] = (
    (256, 256, 16, 256, 5, 8, "mish"),
    (256, 512, 8, 512, 5, 8, "mish"),
    (256, 1024, 4, 1024, 5, 8, "mish"),
    (64, 256, 16, 256, 5, 8, "mish"),
    (64, 512, 8, 512, 5, 8, "mish"),
    (64, 1024, 4, 1024, 5, 8, "mish"),
    (256, 512, 64, 512, 5, 8, "mish"),
)


def _timed(case: Case, make: Callable[..., Any], label: str) -> Sample:
    ladder = case == _TIMED[1]
    return Sample(label, lambda i: make(i, case), small=False, ladder=ladder)


BENCH = tuple(_timed(c, lambda i, c: _make(i, c, "plain", False), _label(c)) for c in _TIMED)
BACKWARD_BENCH = tuple(
    _timed(c, lambda i, c: _backward(i, c, "plain"), _backward_label(c)) for c in _TIMED
)


# --- properties -----------------------------------------------------------------------------------


def ignores_scale(conv1d_group_norm: Any, inputs: Inputs) -> None:
    """Powers of two in the weights do not matter to what is normalised without an eps."""
    x, weight, bias, *rest = _make(inputs, (3, 8, 16, 16, 5, 4, "mish"), "plain", False)
    rest[3] = 0.0
    small = conv1d_group_norm(x, weight, bias, *rest)[0]
    large = conv1d_group_norm(x, 4 * weight, 4 * bias, *rest)[0]
    limit = 8 * torch.finfo(inputs.dtype).eps * float(small.abs().max())
    assert float((small.double() - large.double()).abs().max()) <= limit
