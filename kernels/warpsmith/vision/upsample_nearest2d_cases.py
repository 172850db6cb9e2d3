"""Calls on which nearest upsampling is tested and timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample

Size = tuple[int, int]
#: Shape of x, size of the result, scale factors (0: the ratio of the sizes).
CALLS: tuple[tuple[tuple[int, int, int, int], Size, Size | tuple[float, float]], ...] = (
    ((1, 1, 1, 1), (1, 1), (0, 0)),
    ((2, 3, 4, 8), (8, 16), (0, 0)),
    ((2, 3, 4, 8), (8, 16), (2.0, 2.0)),
    ((1, 16, 5, 16), (10, 32), (0, 0)),
    ((1, 2, 7, 11), (14, 22), (2.0, 2.0)),
    ((2, 32, 3, 5), (7, 16), (0, 0)),
    ((2, 3, 5, 7), (13, 32), (0, 0)),
    ((2, 3, 16, 16), (5, 7), (0, 0)),
    ((1, 2, 9, 9), (12, 12), (1.4, 1.4)),
    ((1, 2, 9, 9), (26, 26), (2.9, 2.9)),
    ((1, 1, 10, 10), (3, 48), (0.3, 4.8)),
    ((1, 4, 1, 9), (5, 9), (0, 0)),
    ((1, 4, 6, 6), (12, 12), (1.9, 2.1)),
    ((1, 8, 3, 8), (3, 8), (1.02, 1.1)),
    ((1, 8, 5, 8), (10, 8), (2.0, 1.1)),
    ((2, 3, 8, 5), (8, 7), (1.1, 1.5)),
    ((0, 3, 4, 4), (8, 8), (0, 0)),
    ((2, 0, 4, 4), (8, 8), (0, 0)),
)
VIEWS: dict[str, Callable[[Inputs], Tensor]] = {
    "misaligned": lambda i: i.misaligned(1, 2, 4, 16),
    "sliced": lambda i: i.randn(2, 3, 6, 40)[..., 8:24],
    "transposed": lambda i: i.randn(2, 3, 16, 8).transpose(2, 3),
    "misaligned channels last": lambda i: i.misaligned(2, 4, 4, 16).permute(0, 3, 1, 2),
}


def _last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)


def _label(shape: tuple[int, ...], size: Size, factors: Any) -> str:
    scaled = f" by {factors[0]} and {factors[1]}" if factors[0] else ""
    return f"{'x'.join(map(str, shape))} to {size[0]}x{size[1]}{scaled}"


def _samples(backward: bool) -> tuple[Sample, ...]:
    found = []
    for shape, size, factors in CALLS:
        read = (*shape[:2], *size) if backward else shape
        given = shape[2:] if backward else size

        def call(i: Inputs, read: Any = read, given: Any = given, f: Any = factors) -> Any:
            return i.randn(*read), list(given), float(f[0]), float(f[1])

        def last(i: Inputs, call: Any = call) -> Any:
            x, *rest = call(i)
            return _last(x), *rest

        label = _label(shape, size, factors)
        found += [Sample(label, call), Sample(f"{label}, channels last", last)]
    for label, of in VIEWS.items():
        half = (lambda x: [x.shape[2] // 2, x.shape[3] // 2]) if backward else _twice

        def view(i: Inputs, of: Any = of, half: Any = half) -> Any:
            x = of(i)
            return x, half(x), 0.0, 0.0

        found.append(Sample(label, view))
    return tuple(found)


def _twice(x: Tensor) -> list[int]:
    return [2 * x.shape[2], 2 * x.shape[3]]


SAMPLES = (
    *_samples(backward=False),
    Sample("4x8x100x120 twice", lambda i: (i.randn(4, 8, 100, 120), [200, 240]), small=False),
    Sample(
        "past 2^31 elements",
        lambda i: (i.plain(3, 64, 1000, 2816), [2000, 5632]),
        small=False,
        huge=True,
        dtypes=("i8",),
    ),
)
BACKWARD_SAMPLES = (
    *_samples(backward=True),
    Sample("4x8x200x240 halved", lambda i: (i.randn(4, 8, 200, 240), [100, 120]), small=False),
    Sample(
        "past 2^31 elements",
        lambda i: (i.plain(3, 64, 2000, 5632), [1000, 2816]),
        small=False,
        huge=True,
        dtypes=("f16",),
    ),
)


def _bad(op: str, label: str, message: str, *shape: int, size: Any = (8, 8)) -> Bad:
    return Bad(label, lambda i: (i.randn(*shape), list(size)), f"{op}: {message}")


def errors(op: str, name: str) -> tuple[Bad, ...]:
    images = rf"expected {name} to have shape \(n, c, h, w\) with pixels, got "
    sizes = r"expected size to be a height and a width of at least 1, got "
    return (
        _bad(op, "3-d", images + r"\(3, 4, 4\)", 3, 4, 4),
        _bad(op, "no pixels", images + r"\(1, 3, 0, 4\)", 1, 3, 0, 4),
        _bad(op, "one size", sizes + r"\[8\]", 1, 3, 4, 4, size=(8,)),
        _bad(op, "a size of 0", sizes + r"\[0, 8\]", 1, 3, 4, 4, size=(0, 8)),
        _bad(op, "a negative size", sizes + r"\[8, -1\]", 1, 3, 4, 4, size=(8, -1)),
    )


def backward_errors() -> tuple[Bad, ...]:
    op = "upsample_nearest2d_backward"
    return (
        *errors(op, "grad"),
        Bad(
            "integers",
            lambda i: (torch.ones(1, 1, 2, 2, dtype=torch.int32, device=i.device), [1, 1]),
            rf"{op}: expected grad to be a floating-point tensor, got torch\.int32",
        ),
    )


BENCH = (
    Sample(
        "16x128x256x256 twice",
        lambda i: (i.plain(16, 128, 256, 256), [512, 512]),
        small=False,
        ladder=True,
    ),
    Sample(
        "16x128x256x256 twice, channels last",
        lambda i: (_last(i.plain(16, 128, 256, 256)), [512, 512]),
        small=False,
    ),
    Sample(
        "16x128x256x256 to 640x640", lambda i: (i.plain(16, 128, 256, 256), [640, 640]), small=False
    ),
)
BACKWARD_BENCH = (
    Sample(
        "16x128x256x256 twice",
        lambda i: (i.plain(16, 128, 512, 512), [256, 256]),
        small=False,
        ladder=True,
    ),
    Sample(
        "16x128x256x256 twice, channels last",
        lambda i: (_last(i.plain(16, 128, 512, 512)), [256, 256]),
        small=False,
    ),
    Sample(
        "16x128x256x256 to 640x640", lambda i: (i.plain(16, 128, 640, 640), [256, 256]), small=False
    ),
)


def indexes_like_pytorch(upsample: Callable[..., Any], inputs: Inputs) -> None:
    """Every pixel comes from the one that PyTorch takes, whatever the scale."""
    if not inputs.dtype.is_floating_point or inputs.dtype.itemsize == 1:
        return
    square = ((61, 0.0), (37, 1.37), (333, 0.0), (270, 9.99), (2, 0.1), (54, 2.0), (27, 1.02))
    sides = [((size, size), (factor, factor)) for size, factor in square]
    sides += [((27, 54), (1.02, 2.0)), ((40, 27), (1.5, 1.03)), ((27, 61), (0.0, 0.0))]
    for size, (high, wide) in sides:
        x = torch.arange(27 * 27, device=inputs.device).view(1, 1, 27, 27).to(inputs.dtype)
        theirs = torch.ops.aten.upsample_nearest2d(x, size, high or None, wide or None)
        assert torch.equal(upsample(x, list(size), high, wide), theirs)
