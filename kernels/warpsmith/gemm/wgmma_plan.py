"""Which tile multiplies a call by wgmma, and into how many slices k is cut; mirrors
csrc/gemm/wgmma_plan.h in whole numbers, so that both always agree.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

from warpsmith.gemm.problem import Problem

COSTS = Path(__file__).with_name("wgmma_costs.json")

#: Of a product: partial sums that there is room for on each multiprocessor, slices, and what of k
#: is worth one (csrc/gemm/split.h).
PARTIALS_PER_SM, MOST_SPLITS, LEAST_DEPTH = 32 * 1024, 64, 64


@dataclass(frozen=True)
class Tile:
    """A tile as the instruction sees it."""

    bm: int
    bn: int
    #: Blocks, whose tiles lie below each other and share b.
    cluster: int = 1
    #: Two warpgroups have tiles of their own.
    turns: bool = False
    #: d^T = b^T a^T: columns of the product are rows of the tile.
    swapped: bool = False

    def __str__(self) -> str:
        of = f"tiles of {self.bm} x {self.bn}"
        if self.cluster > 1:
            of += f", clusters of {self.cluster}"
        if self.turns:
            of += ", warpgroups in turns"
        return of + (", operands swapped" if self.swapped else "")


MENU = (
    Tile(128, 256, cluster=2),
    Tile(128, 256),
    Tile(128, 192, cluster=2),
    Tile(128, 128, cluster=2, turns=True),
    Tile(128, 128, turns=True),
    Tile(128, 64),
    Tile(128, 64, swapped=True),
    Tile(64, 64, swapped=True),
    Tile(64, 32, swapped=True),
    Tile(64, 16, swapped=True),
)

#: Of products of fp8 (csrc/gemm/scaled_matmul/wgmma_tiles.h). The last is for sums that stay in the
#: tensor cores.
SCALED_MENU = (
    Tile(128, 192, cluster=2),
    Tile(128, 128),
    Tile(128, 64, swapped=True),
    Tile(64, 64, swapped=True),
    Tile(64, 32, swapped=True),
    Tile(64, 16, swapped=True),
    Tile(128, 128, cluster=2),
    Tile(128, 256, cluster=2),
)
#: Of int8.
INTEGER_MENU = SCALED_MENU[1:-2]


@dataclass(frozen=True)
class Sizes:
    """What the choice follows from."""

    batch: int
    m: int
    n: int
    k: int
    #: Bytes a value of the operands.
    size: int = 2
    #: a is row-major.
    a_along_k: bool = True
    #: The operands of every tile change places: b of TF32 is row-major.
    swaps: bool = False
    #: Partial sums that there is room for.
    most_slices: int = 1
    sm_count: int = 132
    #: Of a step: they "stay" in the tensor cores, "leave" them, or are "scaled" as they leave.
    sums: str = "stay"


@dataclass(frozen=True)
class Choice:
    #: Of the menu.
    tile: int
    #: Of k, and how many steps of a line of 128 bytes each has.
    slices: int
    depth: int
    #: That the model expects, of a multiprocessor.
    clocks: int
    menu: Sequence[Tile] = MENU

    def __str__(self) -> str:
        cut = f", k in {self.slices} slices" if self.slices > 1 else ""
        return f"{self.menu[self.tile]}{cut}"


@functools.cache
def costs() -> SimpleNamespace:
    return SimpleNamespace(**json.loads(COSTS.read_text()))


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def cost(p: Sizes, tile: int, slices: int, menu: Sequence[Tile] = MENU) -> Choice:
    """Of a tile and so many slices, less those that would be empty."""
    c, t = costs(), menu[tile]
    rows, cols = (p.n, p.m) if p.swaps or t.swapped else (p.m, p.n)
    steps = _ceil_div(p.k, 128 // p.size)
    depth = _ceil_div(steps, slices)
    slices = _ceil_div(steps, depth)
    tiles = _ceil_div(rows, t.bm * t.cluster) * _ceil_div(cols, t.bn) * p.batch
    clusters, items = max(1, p.sm_count // t.cluster), tiles * slices
    waves, active = _ceil_div(items, clusters), min(items, clusters) * t.cluster

    math, shared = t.bm * t.bn // 32, t.bm // 64 * (64 + t.bn)
    bytes_ = 128 * (t.bm + t.bn // t.cluster)
    l2 = bytes_ * max(active, c.l2_rate // c.l2_rate_of_one) // c.l2_rate
    percent = c.step_percent
    if p.sums != "stay" and t.bn > 128:
        percent += c.wide_apart_percent
    if p.sums == "scaled" and t.swapped:
        percent += c.swapped_scales_percent
    step = max(math, shared, l2) * percent // 100

    store = c.store_in_turns if t.turns else c.store + t.bm * t.bn // c.store_rate
    values = p.batch * p.m * p.n
    moved = (p.batch * (p.m + p.n) * p.k + values) * p.size // c.memory_rate
    clocks = max(waves * (depth * step + store), moved) + c.once
    if slices > 1:
        clocks += c.second_kernel + slices * values * 8 // c.partials_rate
    return Choice(tile, slices, depth, clocks, menu)


def choose(p: Sizes, invariant: bool = False, menu: Sequence[Tile] = MENU) -> Choice:
    """The cheapest. `invariant`: for any number of rows the same one, without slices."""
    c = costs()
    if invariant:
        p = replace(p, batch=1, m=c.rows_of_invariant, most_slices=1)
    best: Choice | None = None
    for tile, t in enumerate(menu):
        if (t.swapped and (invariant or not p.a_along_k)) or (t.turns and p.swaps):
            continue
        most = min(p.most_slices, p.k * p.size // (128 * c.least_steps))
        slices = 1
        while slices <= max(most, 1):
            found = cost(p, tile, slices, menu)
            if best is None or found.clocks < best.clocks:
                best = found
            slices += 1 if slices < 8 else 4
    assert best is not None
    return best


def most_splits(batch: int, m: int, n: int, k: int, sm_count: int) -> int:
    room = sm_count * PARTIALS_PER_SM // (batch * m * n)
    return max(1, min(room, k // LEAST_DEPTH, MOST_SPLITS))


def choice_for(p: Problem, sm_count: int) -> Choice:
    """For a call of `matmul`, `linear` or `addmm`."""
    most = 1 if p.batch_invariant else most_splits(p.batch, p.m, p.n, p.k, sm_count)
    swaps = p.size == 4 and p.b.by_rows
    sizes = Sizes(p.batch, p.m, p.n, p.k, p.size, p.a.by_rows, swaps, most, sm_count)
    return choose(sizes, p.batch_invariant)


#: Of products of layers (csrc/gemm/fused_linear/wgmma.h): those whose warpgroups take turns, and a
#: wide one.
FUSED_MENU = MENU[2:5]


def choice_for_fused(p: Problem, ends: str, sm_count: int) -> Choice:
    """For a product of a layer with what follows it; a gate's has two weights."""
    may_split = ends in ("epilogue", "add", "gradient")
    most = most_splits(p.batch, p.m, p.n, p.k, sm_count) if may_split else 1
    n = 2 * p.n if ends == "gate" else p.n
    sizes = Sizes(p.batch, p.m, n, p.k, p.size, p.a.by_rows, most_slices=most, sm_count=sm_count)
    return choose(sizes, menu=FUSED_MENU[1:] if ends == "gate" else FUSED_MENU)


def choice_for_scaled(
    m: int, n: int, k: int, sums: str, sm_count: int, *, integers: bool = False
) -> Choice:
    """For a call of `scaled_matmul`. `sums`: as `Sizes.sums`; `integers`: of int8, whose sums are
    whole.
    """
    if integers:
        return choose(Sizes(1, m, n, k, size=1, sm_count=sm_count), menu=INTEGER_MENU)
    most = most_splits(1, m, n, k, sm_count)
    sizes = Sizes(1, m, n, k, size=1, most_slices=most, sm_count=sm_count, sums=sums)
    return choose(sizes, menu=SCALED_MENU if sums == "stay" else SCALED_MENU[:-1])
