"""The rungs of the matrix product by wgmma, the instructions of sm_90 for whole warpgroups."""

from __future__ import annotations

import functools

import torch

from warpsmith.core.catalogue import Rung
from warpsmith.gemm.ladder_mma import HALVES
from warpsmith.gemm.problem import (
    Matrix,
    Problem,
    condition,
    needs_packs_16,
    needs_plain,
)

ACCUMULATORS = {"f16": ("f32",), "bf16": ("f32",)}


@functools.cache
def _lacks_wgmma() -> bool:
    """Of this machine's GPU, where there is one; the condition is about no other."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0)


def _needs_wgmma(p: Problem) -> str | None:
    return "needs sm_90, the only one with wgmma" if _lacks_wgmma() else None


def _needs_maps(p: Problem) -> str | None:
    """Of a, b and the product, by which the copy engine finds its way (host/tensor_map.h)."""

    def can_map(x: Matrix, rows: int, cols: int) -> bool:
        lines, length = (rows, cols) if x.by_rows else (cols, rows)
        apart = lines == 1 or length <= x.ld < 2**40 // p.size
        return max(lines, length) < 2**31 and apart

    if can_map(p.a, p.m, p.k) and can_map(p.b, p.k, p.n) and p.n < 2**40 // p.size:
        return None
    return "needs sizes of at most 2^31 - 1 and lines of a and b that do not overlap"


_WHEN = condition(_needs_wgmma, needs_plain, needs_packs_16, _needs_maps)


def _rung(name: str, story: str) -> Rung:
    return Rung(
        name,
        story,
        dtypes=HALVES,
        technique=name,
        accumulators=ACCUMULATORS,
        when=_WHEN,
        min_sm=90,
        unproven=True,
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
)
