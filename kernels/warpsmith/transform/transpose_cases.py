"""Calls on which transposes and permutations are tested and timed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample

Operand = Callable[[Inputs], Tensor]

#: Prime sizes, sizes around tiles, vectors, single elements, nothing.
SHAPES: tuple[tuple[int, ...], ...] = (
    (1, 1),
    (7, 1),
    (1, 7),
    (3, 5),
    (16, 16),
    (31, 33),
    (64, 48),
    (37, 101),
    (128, 136),
    (130, 67),
    (3, 300),
    (300, 3),
    (2, 3, 17, 19),
    (5, 32, 64),
    (3, 1, 16),
    (3, 16, 1),
    (0, 5),
    (5, 0),
    (0, 4, 4),
)
VIEWS: dict[str, Operand] = {
    "misaligned": lambda i: i.misaligned(48, 64),
    "misaligned by three": lambda i: i.misaligned(33, 70, offset=3),
    "transposed": lambda i: i.randn(40, 24).t(),
    "transposed batch": lambda i: i.randn(3, 40, 24).transpose(1, 2),
    "pitch": lambda i: i.randn(48, 160)[:, 16:80],
    "odd pitch": lambda i: i.randn(40, 77)[:, 2:66],
    "every other column": lambda i: i.randn(24, 66)[:, ::2],
    "every other row": lambda i: i.randn(48, 64)[::2],
    "expanded rows": lambda i: i.randn(1, 32).expand(20, 32),
    "expanded columns": lambda i: i.randn(20, 1).expand(20, 32),
    "expanded batch": lambda i: i.randn(1, 20, 32).expand(3, 20, 32),
    "batch of slices": lambda i: i.randn(3, 40, 64)[:, :32, :48],
    "batch inside": lambda i: i.randn(32, 3, 48).transpose(0, 1),
    "two batch dimensions": lambda i: i.randn(3, 2, 16, 32).transpose(0, 1),
}


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _size(i: Inputs) -> int:
    return torch.empty((), dtype=i.dtype).element_size()


SAMPLES = (
    *(
        Sample(_text(shape), lambda i, s=shape: (i.randn(*s),))  # type: ignore[misc]
        for shape in SHAPES
    ),
    *(
        Sample(label, lambda i, of=of: (of(i),))  # type: ignore[misc]
        for label, of in VIEWS.items()
    ),
    # tiles of odd rows that lie wholly inside, of every size of element
    Sample("517x259", lambda i: (i.randn(517, 259),), small=False),
    Sample("1021x1031", lambda i: (i.randn(1021, 1031),), small=False),
    Sample("1040x2064", lambda i: (i.randn(1040, 2064),), small=False),
    Sample("17x300x500", lambda i: (i.randn(17, 300, 500),), small=False),
    Sample("4x8192x24", lambda i: (i.randn(4, 8192, 24),), small=False),
    Sample(
        "past 2^31 elements",
        lambda i: (i.plain(3, 40000, 17920),),
        small=False,
        huge=True,
        dtypes=("i8", "f16"),
    ),
    Sample(
        "past 2^31 elements, odd",
        lambda i: (i.plain(3, 40001, 17921),),
        small=False,
        huge=True,
        dtypes=("i8",),
    ),
)

ERRORS = (
    Bad(
        "a vector",
        lambda i: (i.randn(8),),
        r"transpose: expected at least 2 dimensions in x, got shape \(8,\)",
    ),
    Bad(
        "0-d",
        lambda i: (i.randn(),),
        r"transpose: expected at least 2 dimensions in x, got shape \(\)",
    ),
    Bad(
        "a variant of whole packs",
        lambda i: (Inputs(torch.float32, i.device).randn(7, 9),),
        r"transpose.*: .*needs rows of x and of the result that are whole packs of 16 bytes",
        variant="f32x4_pack_registers",
    ),
    Bad(
        "a copy of what is to be transposed",
        lambda i: (Inputs(torch.float32, i.device).randn(8, 8),),
        r"transpose.*: .*needs x to be contiguous along the last dimension of its result",
        variant="f32x4_pack_copy",
    ),
    Bad(
        "tiles of what lies transposed",
        lambda i: (Inputs(torch.float32, i.device).randn(8, 8).t(),),
        r"transpose.*: .*needs x to be contiguous along another dimension than its result",
        variant="f32x4_pack_peak",
    ),
)

#: 256 MB, whatever an element has.
_LONG, _BATCH = 1 << 18, 64

BENCH = (
    Sample("8192x8192", lambda i: (i.plain(8192, 8192),), small=False, ladder=True),
    Sample("256 MB, skewed", lambda i: (i.plain(_LONG, (1 << 10) // _size(i)),), small=False),
    Sample(
        "256 MB, batched",
        lambda i: (i.plain(_BATCH, 2048, 2048 // _size(i)),),
        small=False,
    ),
    Sample("8191x8193", lambda i: (i.plain(8191, 8193),), small=False),
)


# --- permutations ---------------------------------------------------------------------------------

PERMUTATIONS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((5,), (0,)),
    ((3, 5), (0, 1)),
    ((3, 5), (-1, -2)),
    ((2, 17, 4, 16), (0, 2, 1, 3)),
    ((2, 4, 17, 16), (0, 2, 1, 3)),
    ((3, 40, 24), (2, 0, 1)),
    ((3, 40, 24), (1, 2, 0)),
    ((2, 9, 11, 13), (0, 3, 1, 2)),
    ((2, 13, 9, 11), (0, 2, 3, 1)),
    ((2, 3, 4, 5), (3, 2, 1, 0)),
    ((2, 32, 3, 4, 16), (2, 0, 3, 1, 4)),
    ((2, 3, 2, 3, 2, 3, 2, 2), (7, 5, 3, 1, 6, 4, 2, 0)),
    ((1, 16, 1, 32), (3, 2, 1, 0)),
    ((0, 4, 3), (2, 1, 0)),
)
PERMUTED_VIEWS: dict[str, tuple[Operand, tuple[int, ...]]] = {
    "0-d": (lambda i: i.randn(), ()),
    "misaligned": (lambda i: i.misaligned(3, 20, 4, 16), (0, 2, 1, 3)),
    "sliced": (lambda i: i.randn(3, 20, 5, 40)[:, :, 1:4, 8:24], (0, 2, 1, 3)),
    "fused projection": (
        lambda i: i.randn(2, 9, 96)[..., 32:64].unflatten(2, (2, 16)),
        (0, 2, 1, 3),
    ),
    "expanded": (lambda i: i.randn(1, 5, 1, 8).expand(3, 5, 4, 8), (2, 0, 3, 1)),
    "channels last": (
        lambda i: i.randn(2, 6, 5, 7).to(memory_format=torch.channels_last),
        (0, 1, 2, 3),
    ),
}

PERMUTE_SAMPLES = (
    *(
        Sample(f"{_text(shape)} {dims}", lambda i, s=shape, d=dims: (i.randn(*s), list(d)))  # type: ignore[misc]
        for shape, dims in PERMUTATIONS
    ),
    *(
        Sample(label, lambda i, of=of, d=dims: (of(i), list(d)))  # type: ignore[misc]
        for label, (of, dims) in PERMUTED_VIEWS.items()
    ),
    Sample("heads", lambda i: (i.randn(2, 300, 12, 64), [0, 2, 1, 3]), small=False),
    Sample("images", lambda i: (i.randn(3, 65, 67, 96), [0, 3, 1, 2]), small=False),
    Sample(
        "past 2^31 elements",
        lambda i: (i.plain(2, 65536, 128, 136), [0, 2, 1, 3]),
        small=False,
        huge=True,
        dtypes=("i8",),
    ),
)


def _bad_dims(label: str, got: str, *dims: int) -> Bad:
    message = rf"permute: expected dims to name each of the 2 dimensions of x once, got \[{got}\]"
    return Bad(label, lambda i: (i.randn(3, 4), list(dims)), message)


PERMUTE_ERRORS = (
    _bad_dims("too few dimensions", "0", 0),
    _bad_dims("too many dimensions", "0, 1, 1", 0, 1, 1),
    _bad_dims("a dimension twice", "1, -1", 1, -1),
    _bad_dims("a dimension that there is not", "0, 2", 0, 2),
    _bad_dims("a dimension before the first", "-3, 1", -3, 1),
    Bad(
        "more dimensions than kernels walk",
        lambda i: (
            Inputs(torch.float32, i.device).randn(*(2,) * 10),
            [9, 7, 5, 3, 1, 8, 6, 4, 2, 0],
        ),
        r"permute.*: .*needs at most 8 dimensions after merging",
        variant="f32_row2col",
    ),
)

PERMUTE_BENCH = (
    Sample("heads 8x4096x32x128", lambda i: (i.plain(8, 4096, 32, 128), [0, 2, 1, 3]), small=False),
    Sample(
        "channels first 16x128x128x256",
        lambda i: (i.plain(16, 128, 128, 256), [0, 3, 1, 2]),
        small=False,
    ),
    Sample("512x512x257 reversed", lambda i: (i.plain(512, 512, 257), [2, 1, 0]), small=False),
)


# --- properties -----------------------------------------------------------------------------------

_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def _all_bits(inputs: Inputs, *shape: int) -> Tensor:
    """Every pattern of bits, as far as there are elements: NaN with payloads, -0, subnormals."""
    size = torch.empty((), dtype=inputs.dtype).element_size()
    step = {1: 1, 2: 257, 4: 16843009 * 251}[size]
    numbers = (torch.arange(math.prod(shape)) * step) & ((1 << (8 * size)) - 1)
    patterns = numbers.to(torch.int64) - (numbers >= 1 << (8 * size - 1)).long() * (1 << (8 * size))
    signed = {1: torch.int8, 2: torch.int16, 4: torch.int32}[size]
    return patterns.to(signed).view(inputs.dtype).view(shape).to(inputs.device)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    raw = _INTEGER[a.element_size()]
    return torch.equal(a.contiguous().view(raw), b.contiguous().view(raw))


def moves_bits(transpose: Callable[..., Any], inputs: Inputs) -> None:
    for shape in ((256, 256), (255, 257), (3, 48, 96), (5, 31, 9)):
        x = _all_bits(inputs, *shape)
        assert _same_bits(transpose(x), x.transpose(-1, -2))


def twice_is_nothing(transpose: Callable[..., Any], inputs: Inputs) -> None:
    x = _all_bits(inputs, 67, 130)
    assert _same_bits(transpose(transpose(x)), x)


def permute_moves_bits(permute: Callable[..., Any], inputs: Inputs) -> None:
    x = _all_bits(inputs, 6, 17, 5, 24)
    for dims in ((0, 2, 1, 3), (3, 1, 0, 2), (2, 3, 0, 1), (0, 3, 2, 1)):
        assert _same_bits(permute(x, list(dims)), x.permute(dims))
