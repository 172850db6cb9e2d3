"""Calls on which weighted sums are tested and timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.elementwise import samples as common
from warpsmith.elementwise.dropout_cases import special_values

#: Exact in 16 bits and not, of both signs.
WEIGHTS = (0.5, -1.25, 0.3, 2.0, -0.7, 1.0, 0.125, 3.1)
Operand = Callable[[Inputs, int], Tensor]


def _call(i: Inputs, terms: int, of: Operand) -> tuple[Any, ...]:
    x0, *others = (of(i, salt) for salt in range(terms))
    return x0, list(WEIGHTS[:terms]), *others


def _sample(label: str, terms: int, of: Operand, small: bool = True) -> Sample:
    return Sample(label, lambda i: _call(i, terms, of), small=small)


def _mixed(i: Inputs, salt: int) -> Tensor:
    x = i.randn(33, 64, salt=salt) if salt % 2 else i.randn(64, 33, salt=salt).t()
    return x if salt < 3 else i.misaligned(33, 64, salt=salt)


def _special(i: Inputs) -> tuple[Any, ...]:
    x = special_values(i)
    return x, [1.0, -0.5], x.flip(0)


def _huge(i: Inputs) -> tuple[Any, ...]:
    x = i.plain(common.HUGE)
    return x, [0.5, 0.25], x.flip(0)


def samples() -> tuple[Sample, ...]:
    """x0, weights, x1 to x7."""
    shapes: tuple[tuple[int, ...], ...] = ((), (1,), (3, 0, 5), (7,), (4099,), (33, 65))
    return (
        *(
            _sample(f"{terms} of 1000", terms, lambda i, salt: i.randn(1000, salt=salt))
            for terms in range(1, 9)
        ),
        *(
            _sample(
                f"3 of {common.text(shape)}",
                3,
                lambda i, salt, s=shape: i.randn(*s, salt=salt),  # type: ignore[misc]
            )
            for shape in shapes
        ),
        *(_sample(f"2: {label}", 2, of) for label, of in common.VIEWS.items()),
        _sample("5 of several layouts", 5, _mixed),
        Sample(
            "one of them misaligned",
            lambda i: (i.randn(1000), [0.5, 2.0], i.misaligned(1000)),
        ),
        Sample("special values", _special),
        Sample("weight 0", lambda i: (special_values(i), [0.0])),
        _sample("8, large", 8, lambda i, salt: i.randn(common.LARGE, salt=salt), small=False),
        _sample("3, large", 3, lambda i, salt: i.randn(common.LARGE, salt=salt), small=False),
        Sample(
            "past 2^31 elements",
            _huge,
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
    )


# --- wrong calls ----------------------------------------------------------------------------------


def errors() -> tuple[Bad, ...]:
    op = "weighted_sum_forward"

    def ones(i: Inputs, *shape: int) -> Tensor:
        return torch.ones(shape or (8,), device=i.device)

    return (
        *(
            Bad(
                f"{dtype}",
                lambda i, d=dtype: (ones(i).to(d), [1.0]),  # type: ignore[misc]
                f"{op}: expected x0 to be a floating-point tensor, got {dtype}",
            )
            for dtype in (torch.int32, torch.bool, torch.complex64)
        ),
        Bad(
            "x1 of another dtype",
            lambda i: (ones(i), [1.0, 1.0], ones(i).half()),
            rf"{op}: expected x1 to have dtype torch\.float32 like x0, got torch\.float16",
        ),
        Bad(
            "x2 of another shape",
            lambda i: (ones(i), [1.0] * 3, ones(i), ones(i, 2, 4)),
            rf"{op}: expected x2 to have shape \(8,\) like x0, got \(2, 4\)",
        ),
        Bad(
            "x1 on the CPU",
            lambda i: (ones(i), [1.0, 1.0], ones(i).cpu()),
            rf"{op}: expected x1 to be on cuda:\d+ like x0, got cpu",
            cuda_only=True,
        ),
        Bad(
            "a tensor left out",
            lambda i: (ones(i), [1.0, 1.0], None, ones(i)),
            f"{op}: expected no tensor after x1, which is missing, got x2",
        ),
        Bad(
            "no weight for the last",
            lambda i: (ones(i), [1.0], ones(i)),
            f"{op}: expected a weight for each of 2 tensors, got 1",
        ),
        Bad(
            "a pack across a boundary",
            lambda i: (torch.ones(65, device=i.device)[1:], [1.0]),
            f"{op}.*needs data aligned to 16 bytes",
            variant="f32x4_pack_stream",
        ),
    )


# --- properties -----------------------------------------------------------------------------------


def one_changes_nothing(weighted_sum: Any, inputs: Inputs) -> None:
    x = inputs.randn(1000)
    assert torch.equal(weighted_sum(x, [1.0]), x)


def cancels(weighted_sum: Any, inputs: Inputs) -> None:
    x = inputs.randn(1000)
    assert (weighted_sum(x, [0.5, -0.5], x) == 0).all()


# --- benchmarks -----------------------------------------------------------------------------------


def bench() -> tuple[Sample, ...]:
    """Tensors [rows, 4096] of 16, 64 and 256 Mi elements."""
    sizes = (("16Mi", 4), ("64Mi", 2), ("64Mi", 4), ("64Mi", 8), ("256Mi", 2))

    def of(label: str) -> Operand:
        return lambda i, salt: i.plain(common.ROWS[label], common.COLS, salt=salt)

    return tuple(_sample(f"{n} of {label}", n, of(label), small=False) for label, n in sizes)
