"""Which tile multiplies groups by wgmma; mirrors csrc/gemm/grouped_matmul/wgmma_plan.h in whole
numbers, so that both always agree.
"""

from __future__ import annotations

from dataclasses import dataclass

from warpsmith.gemm.wgmma_plan import Sizes, Tile, cost, costs

#: Swapped: rows of x are columns of the tile, for groups of few rows.
MENU = (
    Tile(128, 256),
    Tile(128, 128, turns=True),
    Tile(128, 64, swapped=True),
    Tile(128, 32, swapped=True),
)


@dataclass(frozen=True)
class GroupedSizes:
    """What the choice follows from: the ends of the groups are not known."""

    groups: int
    m: int
    n: int
    k: int
    along_k: bool = False
    #: Bytes a value.
    size: int = 2
    sm_count: int = 132


@dataclass(frozen=True)
class GroupedChoice:
    tile: Tile
    #: That the model expects, of a multiprocessor.
    clocks: int

    def __str__(self) -> str:
        return f"{self.tile}: {self.clocks} clocks expected, the least of its menu"


def cost_of(p: GroupedSizes, tile: int) -> int:
    """Of groups whose ends lie anywhere half a tile is lost in each; groups along k are taken for
    equally long.
    """
    t, batch, m, k, matrices = MENU[tile], 1, p.m, p.k, min(p.groups, p.m)
    if p.along_k:
        batch, k, matrices = p.groups, max(p.k // p.groups, 1), 0
    else:
        rows = t.bn if t.swapped else t.bm
        m = rows * min(-(-p.m // rows) + p.groups // 2, p.m)
    sizes = Sizes(batch, m, p.n, k, p.size, sm_count=p.sm_count)
    moved = (matrices * p.n * p.k + p.m * p.k) * p.size // costs().memory_rate + costs().once
    return max(cost(sizes, tile, 1, MENU).clocks, moved)


def choose(p: GroupedSizes) -> GroupedChoice:
    """The cheapest. Of groups along k tiles are not swapped."""
    tiles = [i for i, t in enumerate(MENU) if not (p.along_k and t.swapped)]
    clocks = {tile: cost_of(p, tile) for tile in tiles}
    best = min(tiles, key=lambda tile: clocks[tile])
    return GroupedChoice(MENU[best], clocks[best])
