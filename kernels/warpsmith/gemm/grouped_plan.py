"""Which tile multiplies groups by wgmma; mirrors csrc/gemm/grouped_matmul/wgmma_plan.h in whole
numbers, so that both always agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from warpsmith.gemm.wgmma_plan import Sizes, Tile, cost, costs

#: Swapped: rows of x are columns of the tile, for groups of few rows.
MENU = (
    Tile(128, 256),
    Tile(128, 128, turns=True),
    Tile(128, 64, swapped=True),
    Tile(128, 32, swapped=True),
)

#: Of fp8 (csrc/gemm/scaled_grouped_matmul/wgmma_tiles.h). The last is for sums that stay in the
#: tensor cores.
SCALED_MENU = (
    Tile(128, 192),
    Tile(128, 64, swapped=True),
    Tile(128, 32, swapped=True),
    Tile(128, 256),
)
SHARE_OF_LESS = 16


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


def cost_of(p: GroupedSizes, tile: Tile) -> int:
    """Of groups whose ends lie anywhere half a tile is lost in each; groups along k are taken for
    equally long. What waits for memory still does better with less to multiply.
    """
    batch, m, k, matrices = 1, p.m, p.k, min(p.groups, p.m)
    if p.along_k:
        batch, k, matrices = p.groups, max(p.k // p.groups, 1), 0
    else:
        rows = tile.bn if tile.swapped else tile.bm
        m = rows * min(-(-p.m // rows) + p.groups // 2, p.m)
    sizes = Sizes(batch, m, p.n, k, p.size, sm_count=p.sm_count)
    moved = (matrices * p.n * p.k + p.m * p.k) * p.size // costs().memory_rate + costs().once
    multiplied = cost(sizes, 0, 1, (tile,)).clocks
    return max(multiplied, moved) + multiplied // SHARE_OF_LESS


def choose(p: GroupedSizes, menu: Sequence[Tile] = MENU) -> GroupedChoice:
    """The cheapest. Of groups along k tiles are not swapped."""
    tiles = [tile for tile in menu if not (p.along_k and tile.swapped)]
    clocks = {tile: cost_of(p, tile) for tile in tiles}
    best = min(tiles, key=lambda tile: clocks[tile])
    return GroupedChoice(best, clocks[best])
