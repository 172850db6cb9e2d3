"""The climb of matrix products, and the ladder that each operator over it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from warpsmith.catalogue import Rung
from warpsmith.gemm import ladder_mma, ladder_simt
from warpsmith.gemm.problem import OnProblem, Problem

ACCUMULATORS = {"f32": ("f32",), "f16": ("f32", "f16"), "bf16": ("f32",)}

NAIVE = Rung(
    "naive",
    "a thread per element, any layout",
    technique="naive",
    accumulators=ACCUMULATORS,
    seeds=("sgemm_naive_{dtype}", "hgemm_naive_{dtype}"),
)

LADDER: tuple[Rung, ...] = (NAIVE, *ladder_simt.SIMT, *ladder_mma.WMMA, *ladder_mma.MMA)

#: The rungs that take everything: epilogues, batches, any layout.
WHOLE = ("naive", *ladder_simt.WHOLE, *ladder_mma.WHOLE)


def on(problem: Callable[..., Problem], rung: Rung) -> Rung:
    """The rung with its conditions on the arguments of an operator, of which `problem` makes the
    product.
    """
    when = rung.when.of(problem) if isinstance(rung.when, OnProblem) else rung.when
    suits = rung.suits.of(problem) if isinstance(rung.suits, OnProblem) else rung.suits
    return replace(rung, when=when, suits=suits)


def whole(problem: Callable[..., Problem]) -> tuple[Rung, ...]:
    """The ladder of an operator that does more than multiply; accumulates in f32 only."""
    rungs = (rung for rung in LADDER if rung.name in WHOLE)
    return tuple(replace(on(problem, rung), accumulators=("f32",), seeds=()) for rung in rungs)
