"""The ladders of the residual norms, and what their rungs take; mirrors csrc/norm/add_norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from warpsmith.core.catalogue import PACK, Condition, Rung
from warpsmith.spec.rows import tiles_rows, tiles_weight

#: What one dimension of a CUDA grid can count.
MOST_ROWS = (1 << 31) - 1

#: Picks (x, residual, weight, bias) from the arguments of an operator.
Operands = Callable[..., tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]]
#: Picks (grad, grad_h, h, weight).
BackwardOperands = Callable[..., tuple[Tensor, Tensor | None, Tensor, Tensor | None]]


def _widest(*tensors: Tensor | None) -> int:
    return max(t.element_size() for t in tensors if t is not None)


def _needs_packs(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None
) -> str | None:
    width = 16 // _widest(x, residual)
    rows = tiles_rows(x, width) and (residual is None or tiles_rows(residual, width))
    if x.numel() == 0 or (rows and tiles_weight(weight, width) and tiles_weight(bias, width)):
        return None
    return "needs rows, weight and bias aligned to 16 bytes"


def _row_bytes(x: Tensor, residual: Tensor | None) -> int:
    return x.shape[-1] * _widest(x, residual) if x.numel() else 0


def ladder(operands: Operands, what: str, lone_rows: bool = False) -> tuple[Rung, ...]:
    """The rungs of a forward operator.

    Args:
        operands: picks the tensors from the operator's arguments.
        what: ends the story of the first rung.
        lone_rows: whether rows without a residual are held by half as many registers, and left to
            blocks, however long they are.
    """

    def needs_packs(*args: Any) -> str | None:
        return _needs_packs(*operands(*args))

    def needs_registers(*args: Any) -> str | None:
        x, residual, weight, bias = operands(*args)
        if why := _needs_packs(x, residual, weight, bias):
            return why
        if x.numel() and x.numel() // x.shape[-1] > MOST_ROWS:
            return "needs at most 2^31 - 1 rows"
        most = 128 if lone_rows and residual is None else 64
        fits = _row_bytes(x, residual) <= most << 10
        return None if fits else f"needs rows of at most {most} KiB"

    def needs_cluster(*args: Any) -> str | None:
        x, residual, weight, bias = operands(*args)
        if why := _needs_packs(x, residual, weight, bias):
            return why
        return None if _row_bytes(x, residual) <= 1 << 20 else "needs rows of at most 1 MiB"

    def suits_cluster(*args: Any) -> str | None:
        x, residual, _, _ = operands(*args)
        if lone_rows and residual is None:
            return "without a residual too few bytes are on their way"
        return None if _row_bytes(x, residual) > 64 << 10 else "the row fits a block's registers"

    return (
        Rung("naive", f"a block per row, one value an access, {what}"),
        Rung(
            "pack",
            "128-bit accesses, h read back",
            width=PACK,
            pack=True,
            when=needs_packs,
        ),
        Rung(
            "registers",
            "the row held in registers: two reads and two writes, short rows sharing a block",
            width=PACK,
            pack=True,
            technique="registers",
            when=needs_registers,
        ),
        Rung(
            "cluster",
            "long rows split over a cluster that walks over rows, the next one on its way",
            width=PACK,
            pack=True,
            technique="cluster",
            min_sm=90,
            when=needs_cluster,
            suits=suits_cluster,
        ),
    )


def backward_ladder(operands: BackwardOperands) -> tuple[Rung, ...]:
    """The rungs of a backward operator.

    Args:
        operands: picks the tensors from the operator's arguments.
    """

    def at_most(cols: int) -> Condition:
        def condition(*args: Any) -> str | None:
            grad, grad_h, h, weight = operands(*args)
            width = 16 // _widest(grad, h)
            rows = all(tiles_rows(t, width) for t in (grad, grad_h, h) if t is not None)
            if grad.numel() and not (rows and tiles_weight(weight, width)):
                return "needs rows and weight aligned to 16 bytes"
            fits = grad.numel() == 0 or grad.shape[-1] <= cols
            return None if fits else f"needs at most {cols} columns"

        return condition

    def suits_cluster(*args: Any) -> str | None:
        long = operands(*args)[0].shape[-1] > 8192
        return None if long else "the row fits a block's registers"

    return (
        Rung("naive", "a block per row for dh, then column sums for the weight"),
        Rung(
            "registers",
            "persistent blocks, weight gradients in registers, the next rows on their way",
            width=PACK,
            pack=True,
            technique="registers",
            when=at_most(8192),
        ),
        Rung(
            "cluster",
            "long rows split over a cluster, their sums through distributed shared memory",
            width=PACK,
            pack=True,
            technique="cluster",
            min_sm=90,
            when=at_most(262144),
            suits=suits_cluster,
        ),
    )
