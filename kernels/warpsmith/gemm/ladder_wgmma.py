"""The rungs of the matrix product by wgmma, the instructions of sm_90 for whole warpgroups."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from warpsmith.core.catalogue import Rung
from warpsmith.gemm import padding
from warpsmith.gemm.ladder_mma import HALVES
from warpsmith.gemm.problem import (
    Matrix,
    OfProblem,
    OnProblem,
    Problem,
    condition,
    needs_packs_16,
    needs_plain,
    needs_tiles_in_grid,
)
from warpsmith.gemm.wgmma_plan import choice_for, costs

ACCUMULATORS = {"f16": ("f32",), "bf16": ("f32",)}


@functools.cache
def lacks_wgmma() -> bool:
    """Of this machine's GPU, where there is one; the condition is about no other."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0)


def needs_wgmma(p: Problem) -> str | None:
    return "needs sm_90, the only one with wgmma" if lacks_wgmma() else None


def _can_map(p: Problem, x: Matrix, rows: int, cols: int) -> bool:
    """`can_map` of host/tensor_map.h, of a batch of matrices."""
    lines, length = (rows, cols) if x.by_rows else (cols, rows)
    products = 1 if x.batch == 0 else p.batch

    def walks(count: int, stride: int) -> bool:
        pitch = stride * p.size
        return count == 1 or (length <= stride and pitch % 16 == 0 and pitch < 2**40)

    small = max(lines, length, products) < 2**31
    return x.address % 16 == 0 and small and walks(lines, x.ld) and walks(products, x.batch)


def _have_maps(p: Problem) -> bool:
    """Of a and b, by which the copy engine finds its way."""
    return _can_map(p, p.a, p.m, p.k) and _can_map(p, p.b, p.k, p.n)


_NEEDS_LINES = (
    "needs a and b in lines that begin at multiples of 16 bytes and do not overlap, and "
    "sizes below 2^31"
)


def needs_lines_for_maps(p: Problem) -> str | None:
    return None if _have_maps(p) else _NEEDS_LINES


def _needs_lines_where_uncopied(p: Problem) -> str | None:
    mapped = all(
        padding.is_copied(p, x, *sizes) or _can_map(p, x, *sizes)
        for x, sizes in ((p.a, (p.m, p.k)), (p.b, (p.k, p.n)))
    )
    return None if mapped and max(p.batch, p.m, p.n, p.k) < 2**31 else _NEEDS_LINES


def _needs_maps(p: Problem) -> str | None:
    """Of the product as well."""
    if _have_maps(p) and p.n < 2**40 // p.size:
        return None
    return "needs sizes of at most 2^31 - 1 and lines of a and b that do not overlap"


@functools.cache
def multiprocessors() -> int:
    """Of this machine's GPU, or of an H200."""
    if not torch.cuda.is_available():
        return 132
    return int(torch.cuda.get_device_properties().multi_processor_count)


def plan_wgmma(p: Problem) -> str:
    choice = choice_for(p, multiprocessors())
    rows = f" for {costs().rows_of_invariant} rows, however many" if p.batch_invariant else ""
    return f"{choice}: {choice.clocks} clocks expected, the least of its menu{rows}"


_WHEN = condition(needs_wgmma, needs_plain, needs_packs_16, _needs_maps)
_WHEN_WHOLE = condition(needs_wgmma, needs_lines_for_maps, needs_tiles_in_grid)
_WHEN_PADDED = condition(
    needs_wgmma, padding.needs_padding, _needs_lines_where_uncopied, needs_tiles_in_grid
)


def _rung(name: str, story: str, when: OnProblem = _WHEN) -> Rung:
    return Rung(
        name,
        story,
        dtypes=HALVES,
        technique=name,
        accumulators=ACCUMULATORS,
        when=when,
        min_sm=90,
    )


WGMMA: tuple[Rung, ...] = (
    _rung("wgmma_smem", "tiles of 128 x 128 that threads put into shared memory"),
    _rung("wgmma_tma", "the copy engine brings operands, in a ring of four stages"),
    _rung("wgmma_roles", "a warpgroup that copies beside the one that multiplies"),
    _rung("wgmma_wide", "two warpgroups on tiles of 128 x 256"),
    _rung("wgmma_persistent", "blocks that stay, tiles in groups for L2"),
    _rung("wgmma_cluster", "clusters of two, which share b"),
    _rung("wgmma_staged", "results leave by the copy engine, under the next tile"),
    _rung("wgmma_pingpong", "two warpgroups in turns: one multiplies, the other stores"),
    replace(
        _rung("wgmma_peak", "any layout and epilogue, batches, a tile by cost", _WHEN_WHOLE),
        plan=OfProblem(plan_wgmma),
    ),
    replace(
        _rung("wgmma_padded", "operands copied to packs of 16 bytes for wgmma_peak", _WHEN_PADDED),
        suits=condition(padding.suits_padding_for_wgmma),
        plan=OfProblem(plan_wgmma),
    ),
)

#: Those that take epilogues and batches.
WHOLE = ("wgmma_peak", "wgmma_padded")
