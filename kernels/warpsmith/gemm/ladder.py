"""The climb of matrix products, and the ladder that each operator over it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from warpsmith.core.catalogue import Rung
from warpsmith.gemm import ladder_mma, ladder_simt, ladder_wgmma
from warpsmith.gemm.problem import (
    OfProblem,
    OnProblem,
    Problem,
    condition,
    needs_b_column_major,
    needs_free_order,
    needs_one_product,
    needs_operand_packs_16,
    needs_result_like_operands,
)

ACCUMULATORS = {"f32": ("f32",), "f16": ("f16", "f32"), "bf16": ("f32",)}

NAIVE = Rung(
    "naive",
    "a thread per element, any layout",
    technique="naive",
    accumulators=ACCUMULATORS,
    seeds=("sgemm_naive_{dtype}", "hgemm_naive_{dtype}"),
)

MOST_VECTORS = 16
MOST_SIZE = 2**31 - 1


def _needs_few(p: Problem) -> str | None:
    if p.m > MOST_VECTORS and p.n > 1:
        return "needs at most 16 rows, or one column"
    return None if max(p.m, p.n, p.k) <= MOST_SIZE else "needs sizes of at most 2^31 - 1"


def _suits_long_rows(p: Problem) -> str | None:
    return None if p.k * p.size >= 1024 else "such short rows leave warps without a share"


def _needs_row_major_few(p: Problem) -> str | None:
    """Read as a product with few rows: of one column, d^T = b^T a^T."""
    by_rows = p.m <= MOST_VECTORS
    fits = p.a.by_rows == by_rows and p.b.by_rows == by_rows
    return None if fits else "needs a and b row-major, or for one column both column-major"


def _suits_deep(p: Problem) -> str | None:
    return None if p.k >= 512 else "such a short k leaves warps without a share"


SKINNY_NN = Rung(
    "skinny_nn",
    "few rows times a row-major b, which is streamed once",
    technique="skinny_nn",
    when=condition(
        needs_free_order,
        needs_result_like_operands,
        needs_one_product,
        _needs_few,
        _needs_row_major_few,
        needs_operand_packs_16,
    ),
    suits=condition(_suits_deep),
)

SKINNY = Rung(
    "skinny",
    "few rows or one column: the larger operand streamed once, as in gemv",
    technique="skinny",
    when=condition(
        needs_free_order,
        needs_result_like_operands,
        needs_one_product,
        needs_b_column_major,
        _needs_few,
        needs_operand_packs_16,
    ),
    suits=condition(_suits_long_rows),
)

LADDER: tuple[Rung, ...] = (
    NAIVE,
    *ladder_simt.SIMT,
    *ladder_mma.WMMA,
    *ladder_mma.MMA,
    *ladder_wgmma.WGMMA,
    SKINNY_NN,
    SKINNY,
)

#: The rungs of operators that do more than multiply: they take epilogues and, but for those with
#: few rows, batches and any layout.
WHOLE = ("naive", *ladder_simt.WHOLE, *ladder_mma.WHOLE, *ladder_wgmma.WHOLE, "skinny_nn", "skinny")


def on(problem: Callable[..., Problem], rung: Rung) -> Rung:
    """The rung with its conditions on the arguments of an operator, of which `problem` makes the
    product.
    """
    when = rung.when.of(problem) if isinstance(rung.when, OnProblem) else rung.when
    suits = rung.suits.of(problem) if isinstance(rung.suits, OnProblem) else rung.suits
    plan = rung.plan.of(problem) if isinstance(rung.plan, OfProblem) else rung.plan
    return replace(rung, when=when, suits=suits, plan=plan)


def whole(problem: Callable[..., Problem]) -> tuple[Rung, ...]:
    """The ladder of an operator that does more than multiply; accumulates in f32 only."""
    rungs = (rung for rung in LADDER if rung.name in WHOLE)
    return tuple(replace(on(problem, rung), accumulators=("f32",), seeds=()) for rung in rungs)
