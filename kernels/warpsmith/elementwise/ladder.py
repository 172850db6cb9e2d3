"""The ladder that all elementwise operators climb: one set of kernels, whose parameter is the
function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import FLOATS, FP8, PACK, Condition, Rung
from warpsmith.spec.layout import Layout, as_meta, empty_for, empty_like, halves

#: The operands of a call, outputs first; None where there is nothing to do.
Describe = Callable[..., "Layout | None"]

ALL = FLOATS + FP8


# --- the operands of each kind of call ------------------------------------------------------------


def _layout(*operands: Tensor) -> Layout | None:
    return Layout.of(operands) if operands[0].numel() else None


def unary(x: Tensor, *parameters: float) -> Layout | None:
    return _layout(empty_like(as_meta(x)), x)


def unary_backward(grad: Tensor, x: Tensor, *parameters: float) -> Layout | None:
    return _layout(empty_like(as_meta(x)), grad, x)


def broadcasting(*inputs: Tensor) -> Layout | None:
    shape = torch.broadcast_shapes(*(x.shape for x in inputs))
    return _layout(empty_for(shape, *map(as_meta, inputs)), *inputs)


def bias(x: Tensor, bias: Tensor) -> Layout | None:
    return _layout(empty_like(as_meta(x)), x, bias)


def bias_backward(grad: Tensor, x: Tensor, bias: Tensor) -> Layout | None:
    return _layout(empty_like(as_meta(x)), grad, x, bias)


def gated(x: Tensor, up: Tensor | None) -> Layout | None:
    if up is not None:
        return _layout(empty_like(as_meta(x)), x, up)
    gate, up = halves(x)
    return _layout(as_meta(gate).new_empty(gate.shape), gate, up)


def gated_backward(grad: Tensor, x: Tensor, up: Tensor | None) -> Layout | None:
    dx = empty_like(as_meta(x))
    if up is not None:
        return _layout(dx, empty_like(as_meta(up)), grad, x, up)
    return _layout(*halves(dx), grad, *halves(x))


# --- conditions -----------------------------------------------------------------------------------


def _condition(describe: Describe, reason: Callable[[Layout], str | None]) -> Condition:
    def when(*args: Any) -> str | None:
        layout = describe(*args)
        return None if layout is None else reason(layout)

    return when


def _rows(layout: Layout) -> str | None:
    return layout.needs_rows()


def _pairs(layout: Layout) -> str | None:
    return layout.needs_width(2)


def _packs(layout: Layout) -> str | None:
    return layout.needs_pack()


def _rank(layout: Layout) -> str | None:
    return layout.needs_rank()


def _no_rows(layout: Layout) -> str | None:
    return "the layout is a plain row layout" if layout.is_rows else None


# --- the rungs ------------------------------------------------------------------------------------


def rungs(
    describe: Describe, *, table: bool = False, seeds: tuple[str, ...] = ()
) -> tuple[Rung, ...]:
    """The climb of a function or a gradient.

    Args:
        describe: gives the layout of a call.
        table: whether it is a function of one value, or the product of one with the others, so
            that 256 results are all that fp8 has.
        seeds: rows of the seed list that its packs answer.
    """
    lut = Rung(
        "lut",
        "fp8 functions through a table of all 256 answers in shared memory",
        dtypes=FP8,
        width=PACK,
        pack=True,
        technique="lut",
        when=_condition(describe, _packs),
    )
    return (
        Rung("scalar", "one element a thread", dtypes=ALL, when=_condition(describe, _rows)),
        Rung("x2", "two elements a thread", dtypes=ALL, width=2, when=_condition(describe, _pairs)),
        Rung(
            "unroll",
            "16 bytes a thread as separate coalesced loads, at any alignment",
            dtypes=ALL,
            width=PACK,
            when=_condition(describe, _rows),
        ),
        Rung(
            "pack",
            "one 128-bit access a thread",
            dtypes=ALL,
            width=PACK,
            pack=True,
            when=_condition(describe, _packs),
            seeds=seeds,
        ),
        Rung(
            "stream",
            "128-bit accesses that bypass the caches, next to no instructions around them",
            dtypes=ALL,
            width=PACK,
            pack=True,
            technique="stream",
            when=_condition(describe, _packs),
        ),
        *((lut,) if table else ()),
        Rung(
            "strided",
            "any strides, read where the operands lie",
            dtypes=ALL,
            technique="strided",
            when=_condition(describe, _rank),
            suits=_condition(describe, _no_rows),
        ),
    )
