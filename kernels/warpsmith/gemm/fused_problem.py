"""Products of layers with what follows them, as kernels are given them, and what these refuse;
mirrors csrc/gemm/fused_linear.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Rung
from warpsmith.gemm.ladder import on
from warpsmith.gemm.ladder_mma import HALVES
from warpsmith.gemm.ladder_wgmma import multiprocessors, needs_lines_for_maps, needs_wgmma
from warpsmith.gemm.problem import (
    Check,
    Matrix,
    OfProblem,
    Problem,
    condition,
    in_packs,
    needs_tiles_in_grid,
    operands_in_packs,
    product,
)
from warpsmith.gemm.wgmma_plan import choice_for_fused
from warpsmith.spec.rows import address


@dataclass(frozen=True)
class FusedProblem(Problem):
    """`FusedArgs`."""

    #: "epilogue", "gate", "heads", "add" or "gradient".
    ends: str = "epilogue"
    #: Of a gate, the other weight.
    up: Matrix | None = None
    head_size: int = 0
    #: Where results go, where they are not new.
    to: int = 0


def of_layer(
    x: Tensor, weight: Tensor, ends: str, up: Tensor | None = None, head_size: int = 0
) -> FusedProblem:
    """x as one matrix of rows, or the copy that a kernel would get in its place."""
    p = product(x, weight, transposed=True)
    if p.batch != 1 or not (p.a.by_rows or p.k == 1):
        rows = math.prod(x.shape[:-1])
        a = Matrix(0, p.k if rows > 1 else 0, 0, True)
        p = replace(p, a=a, m=rows, batch=1 if rows else p.batch)
    b, other = p.b, None
    if up is not None:
        other = product(x, up, transposed=True).b
        if other.by_rows != b.by_rows:  # both are copied
            whole = torch.empty(weight.shape, dtype=weight.dtype, device="meta")
            b = other = replace(product(x, whole, transposed=True).b, address=0)
    given = {f.name: getattr(p, f.name) for f in fields(p)} | {"b": b}
    return FusedProblem(**given, ends=ends, up=other, head_size=head_size)


def of_sum(a: Tensor, b: Tensor, total: Tensor) -> FusedProblem:
    p = product(a, b)
    given = {f.name: getattr(p, f.name) for f in fields(p)}
    return FusedProblem(**given, ends="add", to=address(total))


def of_weight_gradient(grad: Tensor, x: Tensor, *_: Any) -> FusedProblem:
    p = product(grad.t(), x)
    given = {f.name: getattr(p, f.name) for f in fields(p)}
    return FusedProblem(**given, ends="gradient")


# --- conditions -----------------------------------------------------------------------------------


def _fused(p: Problem) -> FusedProblem:
    assert isinstance(p, FusedProblem)
    return p


def _needs_layout(p: Problem) -> str | None:
    if _fused(p).ends not in ("add", "gradient"):
        return None if p.a.by_rows else "needs x row-major"
    return None if not p.a.by_rows and p.b.by_rows else "needs a column-major and b row-major"


def packed(p: Problem) -> bool:
    """Whether accesses of 16 bytes serve all operands and results."""
    q = _fused(p)
    up = q.up is None or in_packs(q.up, p.k, p.n, p.size, 16)
    return operands_in_packs(p, 16) and up and q.to % 16 == 0


def _needs_packs(p: Problem) -> str | None:
    return None if packed(p) else "needs operands and results in packs of 16 bytes"


def _needs_heads(values: int) -> Check:
    def check(p: Problem) -> str | None:
        whole = _fused(p).head_size % values == 0
        return None if whole else f"needs heads of a multiple of {values} values"

    return check


def _needs_maps(p: Problem) -> str | None:
    up = _fused(p).up
    why = None if up is None else needs_lines_for_maps(replace(p, b=up))
    return needs_lines_for_maps(p) or why


def _suits_naive(p: Problem) -> str | None:
    return None if p.m * p.n <= 2**26 // p.k else "the product is large"


def _plan(p: Problem) -> str:
    choice = choice_for_fused(p, _fused(p).ends, multiprocessors())
    return f"{choice}: {choice.clocks} clocks expected, the least of its menu"


_RUNGS = (
    Rung("naive", "a thread per element, any layout", suits=condition(_suits_naive)),
    Rung(
        "mma",
        "tensor cores by mma.sync, what follows on eight neighbours of a lane",
        dtypes=HALVES,
        technique="mma",
        when=condition(_needs_layout, _needs_packs, _needs_heads(8), needs_tiles_in_grid),
    ),
    Rung(
        "wgmma",
        "two warpgroups in turns: one multiplies under what the other does to its sums",
        dtypes=HALVES,
        technique="wgmma",
        when=condition(
            needs_wgmma,
            _needs_layout,
            _needs_packs,
            _needs_heads(64),
            _needs_maps,
            needs_tiles_in_grid,
        ),
        plan=OfProblem(_plan),
        min_sm=90,
    ),
)


def ladder(problem: Callable[..., Problem]) -> tuple[Rung, ...]:
    """Of an operator, of whose calls `problem` makes the products."""
    return tuple(on(problem, rung) for rung in _RUNGS)
