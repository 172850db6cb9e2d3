"""Calls on which the gated linear unit is tested and timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.elementwise import samples as common

Operand = Callable[[Inputs], Tensor]

#: Shape and dimension.
SHAPES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((2,), 0),
    ((14,), -1),
    ((1000,), 0),
    ((8200,), -1),
    ((33, 64), 1),
    ((33, 130), -1),
    ((34, 65), 0),
    ((6, 64), -2),
    ((3, 4, 5), 1),
    ((2, 6, 8, 4), 1),
    ((5, 7, 2), 2),
    ((0, 4), 1),
    ((3, 0), 1),
    ((0, 3), 0),
)
VIEWS: dict[str, tuple[Operand, int]] = {
    "misaligned": (lambda i: i.misaligned(33, 64), 1),
    "transposed": (lambda i: i.randn(64, 34).t(), 1),
    "left columns": (lambda i: i.randn(40, 96)[:, :64], 1),
    "every other column": (lambda i: i.randn(40, 68)[:, ::2], 1),
    "expanded": (lambda i: i.randn(64).expand(9, 64), 1),
    "channels last": (
        lambda i: i.randn(2, 4, 5, 6).to(memory_format=torch.channels_last),
        1,
    ),
}


def _half(i: Inputs, x: Tensor, dim: int) -> Tensor:
    """A gradient of the shape of one half."""
    shape = list(x.shape)
    shape[dim] //= 2
    return i.randn(*shape, salt=2)


def _calls() -> dict[str, tuple[Operand, int]]:
    return {
        **{
            f"{common.text(shape)} along {dim}": (lambda i, s=shape: i.randn(*s), dim)  # type: ignore[misc]
            for shape, dim in SHAPES
        },
        **VIEWS,
    }


def _special(i: Inputs) -> Tensor:
    """Every special value with every other."""
    x = common.special_values(i)
    n = x.numel()
    return torch.stack((x[:, None].expand(n, n), x.expand(n, n)), dim=1)


def samples() -> tuple[Sample, ...]:
    """x, dim."""
    return (
        *(
            Sample(label, lambda i, of=of, dim=dim: (of(i), dim))  # type: ignore[misc]
            for label, (of, dim) in _calls().items()
        ),
        Sample("default dimension", lambda i: (i.randn(5, 64),)),
        # Triton's interpreter has no subnormals of bf16
        Sample("special values", lambda i: (_special(i), 1), dtypes=("f32", "f16")),
        Sample("large", lambda i: (i.randn(65, 8192), 1), small=False),
        Sample("large, along 0", lambda i: (i.randn(130, 4099), 0), small=False),
        Sample(
            "past 2^31 elements",
            lambda i: (i.plain(common.HUGE // 1024, 1024), 1),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
    )


def backward_samples() -> tuple[Sample, ...]:
    """grad, x, dim."""

    def call(i: Inputs, x: Tensor, dim: int) -> tuple[Any, ...]:
        return _half(i, x, dim), x, dim

    return (
        *(
            Sample(label, lambda i, of=of, dim=dim: call(i, of(i), dim))  # type: ignore[misc]
            for label, (of, dim) in _calls().items()
        ),
        Sample("misaligned grad", lambda i: (i.misaligned(33, 32), i.randn(33, 64), 1)),
        Sample("transposed grad", lambda i: (i.randn(32, 33).t(), i.randn(33, 64), 1)),
        Sample("expanded grad", lambda i: (i.randn(1).expand(33, 32), i.randn(33, 64), 1)),
        Sample("large", lambda i: call(i, i.randn(65, 8192), 1), small=False),
        Sample(
            "past 2^31 elements",
            lambda i: call(i, i.plain(common.HUGE // 1024, 1024), 1),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
    )


# --- wrong calls ----------------------------------------------------------------------------------


def _errors(op: str, *grad: Callable[[Inputs], Tensor]) -> tuple[Bad, ...]:
    def call(i: Inputs, x: Tensor, *dim: int) -> tuple[Any, ...]:
        return (*(g(i).to(x.dtype) for g in grad), x, *dim)

    def ones(i: Inputs, *shape: int) -> Tensor:
        return torch.ones(shape, device=i.device)

    return (
        *(
            Bad(
                f"{dtype}",
                lambda i, d=dtype: call(i, ones(i, 4, 8).to(d)),  # type: ignore[misc]
                f"{op}: expected x to be a floating-point tensor, got {dtype}",
            )
            for dtype in (torch.int32, torch.bool, torch.complex64)
        ),
        Bad(
            "odd size",
            lambda i: call(i, ones(i, 4, 7)),
            rf"{op}: expected dimension 1 of x to be even, got shape \(4, 7\)",
        ),
        Bad(
            "0-d",
            lambda i: call(i, ones(i)),
            rf"{op}: expected at least 1 dimension in x, got shape \(\)",
        ),
        Bad(
            "no such dimension",
            lambda i: call(i, ones(i, 4, 8), 2),
            rf"{op}: expected dim to lie in \[-2, 1\], got 2",
            error=IndexError,
        ),
        Bad(
            "ragged halves",
            lambda i: call(i, ones(i, 4, 10)),
            f"{op}.*needs halves that are whole packs",
            variant="f32x4_pack_stream",
        ),
    )


def errors() -> tuple[Bad, ...]:
    return (
        *_errors("glu"),
        Bad(
            "a pack across a boundary",
            lambda i: (torch.ones(65, device=i.device)[1:],),
            "glu.*needs x aligned to 16 bytes",
            variant="f32x4_pack",
        ),
    )


def backward_errors() -> tuple[Bad, ...]:
    op = "glu_backward"

    def ones(i: Inputs, *shape: int) -> Tensor:
        return torch.ones(shape, device=i.device)

    return (
        *_errors(op, lambda i: ones(i, 4, 5)),
        Bad(
            "grad of another shape",
            lambda i: (ones(i, 4, 8), ones(i, 4, 8)),
            rf"{op}: expected grad to have shape \(4, 4\), half of x, got \(4, 8\)",
        ),
        Bad(
            "grad of another dtype",
            lambda i: (ones(i, 4, 4).half(), ones(i, 4, 8)),
            rf"{op}: expected grad to have dtype torch\.float32 like x, got torch\.float16",
        ),
        Bad(
            "grad on the CPU",
            lambda i: (ones(i, 4, 4).cpu(), ones(i, 4, 8)),
            rf"{op}: expected grad to be on cuda:\d+ like x, got cpu",
            cuda_only=True,
        ),
    )


# --- properties -----------------------------------------------------------------------------------


def zero_gate_halves(glu: Any, inputs: Inputs) -> None:
    a = inputs.plain(33, 64)
    assert torch.equal(glu(torch.cat((a, torch.zeros_like(a)), dim=1), 1), a / 2)


# --- benchmarks -----------------------------------------------------------------------------------

#: Elements of the result, and x: along the last dimension, and along the channels of images.
_BENCH: dict[str, tuple[tuple[int, ...], int]] = {
    "16Mi": ((4096, 2 * common.COLS), 1),
    "64Mi": ((16384, 2 * common.COLS), 1),
    "256Mi": ((65536, 2 * common.COLS), 1),
    "64Mi channels": ((64, 512, 64, 64), 1),
}


def bench() -> tuple[Sample, ...]:
    return tuple(
        Sample(label, lambda i, s=shape, d=dim: (i.plain(*s), d), small=False)  # type: ignore[misc]
        for label, (shape, dim) in _BENCH.items()
    )


def backward_bench() -> tuple[Sample, ...]:
    def call(i: Inputs, shape: tuple[int, ...], dim: int) -> tuple[Any, ...]:
        x = i.plain(*shape)
        halved = (*shape[:dim], shape[dim] // 2, *shape[dim + 1 :])
        return i.plain(*halved, salt=2), x, dim

    return tuple(
        Sample(label, lambda i, s=shape, d=dim: call(i, s, d), small=False)  # type: ignore[misc]
        for label, (shape, dim) in _BENCH.items()
    )
