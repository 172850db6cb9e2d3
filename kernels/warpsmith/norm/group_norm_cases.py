"""Calls on which group_norm and its gradient are tested and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.norm.calls import near_largest, same_twice
from warpsmith.spec.accuracy import ulp

EPS = 1e-5

Shape = tuple[int, ...]


def _last(x: Tensor) -> Tensor:
    """[n, *spatial, c] as [n, c, *spatial], channels last."""
    return x.movedim(-1, 1)


def nhwc(make: Callable[..., Tensor], shape: Shape, **how: Any) -> Tensor:
    """A tensor of that shape whose channels are neighbours in memory."""
    return _last(make(shape[0], *shape[2:], shape[1], **how))


def _vectors(i: Inputs, c: int) -> tuple[Tensor, Tensor]:
    return i.randn(c, salt=1), i.randn(c, salt=2)


def call(
    i: Inputs, x: Tensor, groups: int, activation: str = "none", eps: float = EPS
) -> tuple[Any, ...]:
    """The arguments of a call with weight and bias."""
    return x, groups, *_vectors(i, x.shape[1]), eps, activation


def _plain(
    shape: Shape, groups: int, activation: str = "none", *, last: bool = False, small: bool = True
) -> Sample:
    text = "x".join(map(str, shape))
    label = f"{text} g{groups}" + (f" {activation}" if activation != "none" else "")

    def make(i: Inputs) -> tuple[Any, ...]:
        return call(i, nhwc(i.randn, shape) if last else i.randn(*shape), groups, activation)

    return Sample(label + (" nhwc" if last else ""), make, small=small)


# --- samples --------------------------------------------------------------------------------------

_CONTIGUOUS = (
    ((2, 4, 2, 2), 2, "silu"),
    ((3, 4, 4), 2, "mish"),
    ((4, 6), 3, "none"),
    ((5, 64), 4, "silu"),
    ((1, 1, 1), 1, "none"),
    ((3, 6, 5), 3, "none"),
    ((2, 32, 63), 32, "silu"),
    ((1, 10, 1000), 2, "none"),
    ((1, 3, 1023), 3, "mish"),
    ((2, 6, 3, 3), 3, "silu"),
    ((2, 16, 3, 3), 2, "mish"),
    ((2, 32, 4, 4), 8, "silu"),
    ((1, 40, 16, 16), 4, "silu"),
    ((2, 8, 2, 3, 4), 4, "silu"),
    ((1, 2, 96, 96), 1, "none"),
)
_CONTIGUOUS_LARGE = (
    ((4, 64, 8, 8), 32, "mish"),
    ((70, 64, 2, 2), 32, "none"),
    ((1, 2, 12345), 1, "silu"),
    ((1, 640, 7, 7), 32, "silu"),
    ((2, 320, 64, 64), 32, "silu"),
    ((140, 320, 8, 8), 32, "mish"),
    ((140, 32, 32, 32), 4, "none"),
    ((9, 64, 64, 64), 4, "silu"),
    ((1, 64, 128, 128), 4, "mish"),
    ((3, 8, 256, 256), 1, "none"),
    ((1, 32, 256, 256), 2, "silu"),
    ((70001, 4, 4), 2, "none"),
    ((2, 2100, 3, 8), 2, "silu"),
    ((17, 4, 256, 136), 1, "silu"),
    ((9, 4, 256, 264), 1, "silu"),
    ((4, 384, 64, 64), 32, "silu"),
    ((4, 192, 64, 64), 32, "none"),
)
_CHANNELS_LAST = (
    ((2, 4, 2, 2), 2, "silu"),
    ((1, 320, 3, 3), 32, "none"),
    ((2, 64, 5, 5), 32, "mish"),
    ((3, 12, 7), 2, "silu"),
    ((2, 8, 2, 3, 5), 4, "silu"),
    ((5, 80, 9), 2, "mish"),
    ((1, 2056, 2), 8, "none"),
    ((1, 4096, 2, 2), 32, "silu"),
    ((2, 16, 23, 19), 1, "none"),
)
_CHANNELS_LAST_LARGE = (
    ((2, 64, 5, 5), 64, "silu"),
    ((3, 320, 33, 31), 32, "silu"),
    ((2, 320, 64, 64), 32, "mish"),
    ((2, 1280, 16, 16), 32, "silu"),
    ((1, 256, 96, 96), 32, "none"),
    ((1, 128, 256, 256), 32, "silu"),
    ((1, 16, 300, 301), 8, "mish"),
    ((300, 64, 4, 4), 32, "silu"),
    ((2, 2560, 8, 8), 32, "none"),
)


#: Of 12 to 480 KiB in 16 bits.
_CONSTANT = ((2, 4, 12, 128), (2, 8, 7, 512), (2, 8, 15, 512), (1, 8, 60, 512))


def forward_samples() -> tuple[Sample, ...]:
    """Those of `samples()`, and long groups of one value, whose mean has to be exact."""

    def constant(shape: Shape) -> Sample:
        return Sample(
            f"constant {'x'.join(map(str, shape))}",
            lambda i: call(i, torch.full_like(i.plain(*shape), 1000.0), 1, "silu"),
            small=False,
        )

    return *samples(), *(constant(shape) for shape in _CONSTANT)


def samples() -> tuple[Sample, ...]:
    return (
        *(_plain(*given) for given in _CONTIGUOUS),
        *(_plain(*given, small=False) for given in _CONTIGUOUS_LARGE),
        *(_plain(*given, last=True) for given in _CHANNELS_LAST),
        *(_plain(*given, last=True, small=False) for given in _CHANNELS_LAST_LARGE),
        Sample("defaults", lambda i: (i.randn(2, 8, 6), 4)),
        Sample("no weight", lambda i: (i.randn(2, 8, 16), 2, None, i.randn(8), EPS, "silu")),
        Sample("no bias", lambda i: (i.randn(2, 8, 16), 2, i.randn(8), None, EPS, "silu")),
        Sample("neither", lambda i: (nhwc(i.randn, (2, 16, 6)), 2, None, None, EPS, "mish")),
        Sample(
            "neither, large",
            lambda i: (i.randn(1, 64, 96, 96), 4, None, None, EPS, "silu"),
            small=False,
        ),
        Sample(
            "f32 weight",
            lambda i: (i.randn(2, 16, 8, 8), 4, i.randn(16).float(), i.randn(16), EPS, "silu"),
            dtypes=("f16", "bf16"),
        ),
        Sample(
            "f32 weight and bias, nhwc",
            lambda i: (
                nhwc(i.randn, (2, 40, 5, 5)), 4, i.randn(40).float(), i.randn(40).float(), EPS,
                "none",
            ),
            dtypes=("f16", "bf16"),
        ),
        Sample(
            "strided weight and bias",
            lambda i: (
                i.randn(2, 8, 12), 4, i.randn(16, salt=1)[::2], i.randn(24, salt=2)[::3], EPS,
                "silu",
            ),
        ),
        Sample(
            "misaligned weight",
            lambda i: (
                i.randn(2, 8, 16), 4, i.misaligned(8, salt=1), i.misaligned(8, salt=2), EPS, "none"
            ),
        ),
        Sample(
            "near the largest",
            lambda i: call(i, near_largest(i).view(3, 4, 256), 2),
            dtypes=("f32", "bf16"),
        ),
        Sample("no samples", lambda i: call(i, i.randn(0, 8, 4, 4), 4, "silu")),
        Sample("no positions", lambda i: call(i, i.randn(2, 8, 0, 4), 4)),
        Sample("no channels", lambda i: call(i, i.randn(2, 0, 4), 1)),
        Sample("misaligned", lambda i: call(i, i.misaligned(2, 16, 8, 8), 4, "silu")),
        Sample(
            "misaligned, nhwc",
            lambda i: call(i, _last(i.misaligned(2, 5, 5, 16)), 4, "silu"),
        ),
        Sample("samples of a batch", lambda i: call(i, i.randn(6, 8, 16)[::2], 4)),
        Sample("part of the channels", lambda i: call(i, i.randn(3, 24, 4, 4)[:, 4:20], 4, "silu")),
        Sample(
            "part of the channels, nhwc",
            lambda i: call(i, nhwc(i.randn, (3, 24, 4, 4))[:, 4:20], 4, "silu"),
        ),
        Sample("cropped", lambda i: call(i, i.randn(2, 8, 9, 9)[:, :, 1:9, :8], 2, "mish")),
        Sample(
            "cropped, nhwc",
            lambda i: call(i, nhwc(i.randn, (2, 8, 9, 9))[:, :, 1:9, :8], 2),
        ),
        Sample("rotated", lambda i: call(i, i.randn(2, 8, 6, 4).transpose(2, 3), 2, "silu")),
        Sample("batch last", lambda i: call(i, i.randn(8, 6, 4, 3).permute(3, 0, 1, 2), 2)),
        Sample("expanded", lambda i: call(i, i.randn(1, 8, 1, 16).expand(3, 8, 2, 16), 2)),
        Sample("large eps", lambda i: call(i, i.randn(2, 8, 16), 2, "none", 10.0)),
        Sample("eps 0", lambda i: call(i, i.randn(2, 8, 16), 2, "silu", 0.0)),
        Sample("a mean of 1000", lambda i: call(i, i.plain(2, 8, 16, 16) + 1000, 2)),
        Sample(
            "a mean of 1000, nhwc",
            lambda i: call(i, nhwc(i.plain, (2, 16, 17, 16)) + 1000, 2),
        ),
        Sample(
            "a mean of 1000, large",
            lambda i: call(i, i.plain(1, 16, 200, 200) + 1000, 2),
            small=False,
        ),
        Sample("scaled by 100", lambda i: call(i, i.plain(2, 8, 16, scale=100.0), 2, "silu")),
        Sample("one outlier", lambda i: call(i, _outlier(i.plain(2, 8, 10, 16)), 2)),
        Sample(
            "one outlier, nhwc",
            lambda i: call(i, _outlier(nhwc(i.plain, (2, 16, 10, 9))), 2),
        ),
        Sample("small values", lambda i: call(i, i.plain(2, 8, 64, scale=1e-3), 2, "silu")),
        Sample("constant", lambda i: call(i, torch.full_like(i.plain(2, 8, 16), 3.0), 2, "silu")),
        Sample("special", lambda i: call(i, _special(i.randn(4, 16, 8)), 4)),
        Sample("special, nhwc", lambda i: call(i, _special(nhwc(i.randn, (4, 16, 8))), 4)),
        Sample(
            "past 2^31 elements",
            lambda i: call(i, i.plain(2, 512, (1 << 21) + 8), 512, "silu"),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
        Sample(
            "past 2^31 elements, nhwc",
            lambda i: call(i, nhwc(i.plain, (2, 512, (1 << 21) + 8)), 32),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
        *(_past_2_31(*given) for given in _PAST_2_31_SMALLER),
    )  # fmt: skip


#: Groups of 1 KiB and of 128 KiB; and channels last, at as few positions as a cluster holds.
_PAST_2_31_SMALLER = (
    ((2049, 4096, 256), 2048, "silu", False),
    ((1025, 512, 4096), 32, "silu", False),
    ((1025, 512, 4096), 32, "none", True),
)


def _past_2_31(shape: Shape, groups: int, activation: str, last: bool) -> Sample:
    text = f"{'x'.join(map(str, shape))} g{groups}" + (" nhwc" if last else "")

    def make(i: Inputs) -> tuple[Any, ...]:
        return call(i, nhwc(i.plain, shape) if last else i.plain(*shape), groups, activation)

    return Sample(f"past 2^31 elements, {text}", make, small=False, huge=True, dtypes=("f16",))


def _outlier(x: Tensor) -> Tensor:
    x[0, 1, 2] = 3e4
    return x


def _special(x: Tensor) -> Tensor:
    """Groups with NaN, infinities and zeros."""
    x[0, 3, 2] = float("nan")
    x[1, 5, 7] = float("inf")
    x[2, 7, 0], x[2, 8, 1] = float("-inf"), float("inf")
    x[3] = 0.0
    return x


def _with_gradient(sample: Sample) -> Sample:
    """The same call, backwards: a gradient like x in front."""

    def make(inputs: Inputs) -> tuple[Any, ...]:
        x, groups, *rest = sample.make(inputs)
        defaults: tuple[Any, ...] = (None, None, EPS, "none")
        grad = torch.empty_like(x).copy_(inputs.randn(*x.shape, salt=3))
        return grad, x, groups, *rest, *defaults[len(rest) :]

    return Sample(sample.label, make, sample.small, sample.huge, sample.dtypes)


def backward_samples() -> tuple[Sample, ...]:
    def given(
        i: Inputs, grad: Tensor, x: Tensor, groups: int, activation: str = "silu"
    ) -> tuple[Any, ...]:
        return grad, *call(i, x, groups, activation)

    def past_2_31(label: str, shape: Shape, groups: int, last: bool = False) -> Sample:
        """With a contiguous gradient, as a GPU has no room for one more copy in f64."""

        def make(i: Inputs) -> tuple[Any, ...]:
            x = nhwc(i.plain, shape) if last else i.plain(*shape)
            return given(i, i.plain(*shape, salt=3), x, groups, "none")

        return Sample(f"past 2^31 elements{label}", make, small=False, huge=True, dtypes=("f16",))

    return (
        *(_with_gradient(s) for s in samples() if not s.huge),
        Sample(
            "contiguous gradient, nhwc",
            lambda i: given(i, i.randn(2, 16, 5, 5, salt=3), nhwc(i.randn, (2, 16, 5, 5)), 4),
        ),
        Sample(
            "nhwc gradient",
            lambda i: given(i, nhwc(i.randn, (2, 16, 4, 4), salt=3), i.randn(2, 16, 4, 4), 4),
        ),
        Sample(
            "expanded gradient",
            lambda i: given(i, i.randn(1, 1, 1, salt=3).expand(2, 16, 8), i.randn(2, 16, 8), 4),
        ),
        past_2_31("", (2, 512, (1 << 21) + 8), 512),
        past_2_31(", groups of 32 KiB", (513, 1024, 4096), 256),
        past_2_31(", nhwc", (1025, 512, 4096), 32, last=True),
        Sample(
            "misaligned gradient",
            lambda i: given(i, i.misaligned(2, 16, 8, salt=3), i.randn(2, 16, 8), 4),
        ),
    )


# --- benchmarks -----------------------------------------------------------------------------------


def _bench(
    shape: Shape,
    activation: str = "silu",
    *,
    last: bool = False,
    dtypes: tuple[str, ...] | None = None,
    backward: bool = False,
) -> Sample:
    label = f"{'x'.join(map(str, shape))} {activation}" + (" nhwc" if last else "")

    def tensor(i: Inputs, salt: int) -> Tensor:
        return nhwc(i.plain, shape, salt=salt) if last else i.plain(*shape, salt=salt)

    def make(i: Inputs) -> tuple[Any, ...]:
        c = shape[1]
        weight, bias = i.plain(c, salt=1), i.plain(c, salt=2)
        args = tensor(i, 0), 32, weight, bias, EPS, activation
        return (tensor(i, 3), *args) if backward else args

    return Sample(label, make, small=False, dtypes=dtypes)


_HALF = ("bf16",)
_TWO = ("f32", "bf16")


def bench() -> tuple[Sample, ...]:
    """Shapes of diffusion models and their decoders, 32 groups; the largest last."""
    return (
        _bench((2, 1280, 16, 16), dtypes=_HALF),
        _bench((2, 640, 32, 32), dtypes=_HALF),
        _bench((2, 320, 64, 64), dtypes=_TWO),
        _bench((2, 320, 64, 64), last=True, dtypes=_HALF),
        _bench((1, 512, 128, 128), dtypes=_HALF),
        _bench((32, 128, 64, 64), dtypes=_HALF),
        _bench((1, 256, 256, 256), dtypes=_HALF),
        _bench((1, 128, 512, 512), dtypes=_TWO),
        _bench((1, 128, 512, 512), last=True, dtypes=_HALF),
        _bench((32, 320, 64, 64), dtypes=_TWO),
        _bench((32, 320, 64, 64), "mish", dtypes=_HALF),
        _bench((32, 320, 64, 64), last=True, dtypes=_TWO),
        _bench((1, 128, 1024, 1024), dtypes=_HALF),
        _bench((16, 128, 256, 256), last=True, dtypes=_HALF),
        _bench((16, 128, 256, 256)),
    )


def bench_backward() -> tuple[Sample, ...]:
    return (
        _bench((2, 320, 64, 64), dtypes=_HALF, backward=True),
        _bench((32, 320, 64, 64), dtypes=_TWO, backward=True),
        _bench((32, 320, 64, 64), last=True, dtypes=_HALF, backward=True),
        _bench((1, 128, 512, 512), dtypes=_HALF, backward=True),
        _bench((16, 128, 256, 256), last=True, dtypes=_HALF, backward=True),
        _bench((16, 128, 256, 256), backward=True),
    )


# --- bad calls ------------------------------------------------------------------------------------


def _none(x: Tensor, groups: int, activation: str = "none") -> tuple[Any, ...]:
    return x, groups, None, None, EPS, activation


ERRORS = (
    Bad(
        "integers",
        lambda i: _none(torch.ones(2, 8, dtype=torch.int32, device=i.device), 2),
        r"group_norm: expected x to be a floating-point tensor, got torch\.int32",
    ),
    Bad(
        "1-d",
        lambda i: _none(i.randn(8), 2),
        r"group_norm: expected at least 2 dimensions in x, got shape \(8,\)",
    ),
    Bad(
        "no groups",
        lambda i: _none(i.randn(2, 8), 0),
        r"group_norm: expected groups to be at least 1, got 0",
    ),
    Bad(
        "channels that do not divide",
        lambda i: _none(i.randn(2, 8, 4), 3),
        r"group_norm: expected groups to divide the 8 channels of x, got 3",
    ),
    Bad(
        "more groups than channels",
        lambda i: _none(i.randn(2, 8, 4), 16),
        r"group_norm: expected groups to divide the 8 channels of x, got 16",
    ),
    Bad(
        "unknown activation",
        lambda i: _none(i.randn(2, 8, 4), 2, "relu"),
        r"group_norm: expected activation to be 'none', 'silu' or 'mish', got 'relu'",
    ),
    Bad(
        "weight of another length",
        lambda i: (i.randn(2, 8, 4), 2, i.randn(7), None, EPS, "none"),
        r"group_norm: expected weight to have shape \(8,\), the channels of x, got \(7,\)",
    ),
    Bad(
        "2-d bias",
        lambda i: (i.randn(2, 8, 4), 2, None, i.randn(1, 8), EPS, "none"),
        r"group_norm: expected bias to have shape \(8,\), the channels of x, got \(1, 8\)",
    ),
    Bad(
        "integer weight",
        lambda i: (
            i.randn(2, 8, 4), 2, torch.ones(8, dtype=torch.int64, device=i.device), None, EPS,
            "none",
        ),
        r"group_norm: expected weight to have dtype torch\.\w+.*, got torch\.int64",
    ),
    Bad(
        "bias on the CPU",
        lambda i: (i.randn(2, 8, 4), 2, None, torch.ones(8), EPS, "none"),
        r"group_norm: expected bias to be on cuda:\d+ like x, got cpu",
        cuda_only=True,
    ),
    Bad(
        "pack, odd group",
        lambda i: _none(Inputs(torch.float32, i.device).randn(2, 6, 3), 2),
        r"group_norm.*: .*needs groups aligned to 16 bytes",
        variant="f32x4_pack",
    ),
    Bad(
        "pack, channels last",
        lambda i: _none(nhwc(Inputs(torch.float32, i.device).randn, (2, 8, 4)), 2),
        r"group_norm.*: .*needs contiguous x",
        variant="f32x4_pack",
    ),
    Bad(
        "nhwc, contiguous",
        lambda i: _none(Inputs(torch.float32, i.device).randn(2, 8, 4), 2),
        r"group_norm.*: .*needs channels-last x",
        variant="f32x4_pack_nhwc_split",
    ),
    Bad(
        "variant of another dtype",
        lambda i: _none(Inputs(torch.float32, i.device).randn(2, 8, 4), 2),
        r"group_norm_bf16x8_pack_f32: takes bf16, got f32",
        variant="bf16x8_pack_f32",
    ),
)  # fmt: skip

BACKWARD_ERRORS = (
    Bad(
        "gradient of another shape",
        lambda i: (i.randn(2, 8, 3), *_none(i.randn(2, 8, 4), 2)),
        r"group_norm_backward: expected grad to have shape \(2, 8, 4\) like x, got \(2, 8, 3\)",
    ),
    Bad(
        "gradient of another dtype",
        lambda i: (i.randn(2, 8, 4).double(), *_none(i.randn(2, 8, 4), 2)),
        r"group_norm_backward: expected grad to have dtype torch\.\w+ like x, got torch\.float64",
    ),
    Bad(
        "channels that do not divide",
        lambda i: (i.randn(2, 8, 4), *_none(i.randn(2, 8, 4), 3)),
        r"group_norm_backward: expected groups to divide the 8 channels of x, got 3",
    ),
    Bad(
        "unknown activation",
        lambda i: (i.randn(2, 8, 4), *_none(i.randn(2, 8, 4), 2, "gelu")),
        r"group_norm_backward: expected activation to be 'none', 'silu' or 'mish', got 'gelu'",
    ),
    Bad(
        "weight of another length",
        lambda i: (i.randn(2, 8, 4), i.randn(2, 8, 4), 2, i.randn(7), None, EPS, "none"),
        r"group_norm_backward: expected weight to have shape \(8,\), .*, got \(7,\)",
    ),
    Bad(
        "gradient on the CPU",
        lambda i: (torch.ones(2, 8, 4, dtype=i.dtype), *_none(i.randn(2, 8, 4), 2)),
        r"group_norm_backward: expected grad to be on cuda:\d+ like x, got cpu",
        cuda_only=True,
    ),
    Bad(
        "shared, odd channels",
        lambda i: (
            *(Inputs(torch.float32, i.device).randn(2, 8, 3, salt=s) for s in (1, 2)),
            2, None, None, EPS, "none",
        ),
        r"group_norm_backward.*: .*needs channels aligned to 16 bytes",
        variant="f32x4_pack_shared",
    ),
)  # fmt: skip


# --- properties -----------------------------------------------------------------------------------


def groups_independent(function: Callable[..., Any], inputs: Inputs) -> None:
    for x in (inputs.randn(3, 32, 6, 4), nhwc(inputs.randn, (3, 32, 6, 4))):
        changed = x.clone()
        changed[1, 8:16] = inputs.randn(8, 6, 4, salt=5)
        before, after = (function(*call(inputs, given, 4, "silu")) for given in (x, changed))
        same = torch.ones(3, 32, dtype=torch.bool, device=before.device)
        same[1, 8:16] = False
        assert torch.equal(before[same], after[same]), "a group's result depends on another group"


def repeatable(function: Callable[..., Any], inputs: Inputs) -> None:
    for x in (inputs.randn(2, 64, 24, 8), nhwc(inputs.randn, (2, 64, 24, 8))):
        args = call(inputs, x, 8, "mish")
        assert torch.equal(function(*args), function(*args)), "two calls differ"


def layouts_agree(function: Callable[..., Any], inputs: Inputs) -> None:
    """Within a few float32 ulp of the terms that a value is the sum of: (x - mean) * rstd * weight
    and bias. The layouts add in different orders, so mean and rstd differ in their last bits, and
    that stays where the terms cancel. PyTorch is as far from the exact result.
    """
    x = inputs.plain(2, 40, 9, 8)
    last = x.new_empty(2, 9, 8, 40).movedim(-1, 1).copy_(x)
    one, other = (function(*call(inputs, given, 4, "silu")) for given in (x, last))
    assert other.stride(1) == 1
    weight, bias = (v.double().abs().view(-1, 1, 1) for v in _vectors(inputs, 40))
    # of x, and as much again of the mean: both in units of the standard deviation
    terms = (F.group_norm(x.double(), 4).abs() + 1.0) * weight + bias
    rounding = ulp(one.double(), inputs.dtype)
    allowed = rounding + 4 * torch.finfo(torch.float32).eps * terms
    excess = (one.double() - other.double()).abs() - allowed
    assert not bool((excess > 0).any()), f"{float(excess.max()):.3g} more than allowed"


def normalised(function: Callable[..., Any], inputs: Inputs) -> None:
    """Without weight and bias, every group has mean 0 and variance 1."""
    y = function(inputs.randn(3, 16, 64), 4, None, None, 0.0, "none")
    groups = y.double().reshape(3 * 4, -1)
    mean, variance = groups.mean(-1), groups.square().mean(-1)
    torch.testing.assert_close(mean, torch.zeros_like(mean), rtol=0.0, atol=4e-3)
    torch.testing.assert_close(variance, torch.ones_like(mean), rtol=8e-3, atol=0.0)


def balanced(function: Callable[..., Any], inputs: Inputs) -> None:
    """The result does not change when a constant is added to a group, so dx sums to 0 over it."""
    for make in (inputs.randn, lambda *shape, **how: nhwc(inputs.randn, shape, **how)):
        grad, x = make(2, 16, 8, 4, salt=3), make(2, 16, 8, 4)
        dx, _, _ = function(grad, *call(inputs, x, 4, "silu"))
        groups = dx.double().reshape(2 * 4, -1)
        assert bool((groups.sum(-1).abs() <= 2e-2 * groups.abs().sum(-1)).all())


def repeatable_gradients(function: Callable[..., Any], inputs: Inputs) -> None:
    for make in (inputs.randn, lambda *shape, **how: nhwc(inputs.randn, shape, **how)):
        grad, x = make(3, 64, 24, 8, salt=3), make(3, 64, 24, 8)
        same_twice(function, (grad, *call(inputs, x, 8, "silu")))
