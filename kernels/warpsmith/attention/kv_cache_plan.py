"""Among how many blocks attention to a cache is shared out; counts as csrc/attention/kv_cache does
(tiles.h, split.h).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from warpsmith.spec.checks import shape_text
from warpsmith.spec.gpus import has_little_shared_memory

#: More are refused.
MOST_BLOCKS = 65535
#: A row of work that fewer rounds than these are left of is not shared.
_LEAST_ROUNDS = 2
#: After so many it is cut where a result must not depend on other sequences.
_INVARIANT_ROUNDS = 16


class Tile(NamedTuple):
    """Of a block: groups of warps, each with `keys` of its own at a time."""

    groups: int
    keys: int
    stages: int
    resident: int  # blocks of a multiprocessor, where it has the memory

    @property
    def round(self) -> int:
        return self.groups * self.keys


#: By whether the cache is in e4m3 and by the queries of a tile, for head dimensions up to 64, 128
#: and 256.
TILES: dict[tuple[bool, int], tuple[Tile, Tile, Tile]] = {
    (False, 16): (Tile(4, 16, 4, 3), Tile(4, 16, 3, 2), Tile(2, 16, 2, 3)),
    (True, 16): (Tile(4, 16, 6, 3), Tile(4, 16, 5, 2), Tile(2, 16, 4, 3)),
    (False, 64): (Tile(1, 64, 3, 2), Tile(1, 32, 6, 2), Tile(1, 16, 4, 2)),
    (True, 64): (Tile(1, 32, 6, 2), Tile(1, 32, 6, 2), Tile(1, 16, 8, 2)),
}
#: Which of them a rung has.
ROWS = {"split_kv": 16, "split_kv_e4m3": 16, "query_tiles": 64, "query_tiles_e4m3": 64}


def tile_of(e4m3: bool, rows: int, d: int, dv: int) -> tuple[Tile, int]:
    """The tile, and the head dimension that it is made for."""
    place = 0 if max(d, dv) <= 64 else 1 if max(d, dv) <= 128 else 2
    return TILES[e4m3, rows][place], (64, 128, 256)[place]


class Gpu(NamedTuple):
    """What a split depends on."""

    multiprocessors: int
    block_smem: int  # shared memory that one block may ask for, in bytes

    @classmethod
    def of(cls, device: torch.device, sm: int) -> Gpu:
        """`sm`: its compute capability, or that which it passes for."""
        smem = 99 if has_little_shared_memory(sm) else 227 if sm >= 90 else 163
        return cls(torch.cuda.get_device_properties(device).multi_processor_count, smem * 1024)


@dataclass(frozen=True)
class KvCachePlan:
    """How calls of `attention_with_kv_cache` of these shapes are cut; made by
    `plan_attention_with_kv_cache`.

    Attributes:
        blocks: among how many keys are shared out; 0 where what serves the calls does not split.
        workspace_bytes: what a call allocates beside its results: places for the pieces of sums.
        served_by: the kernel, as `warpsmith.which` names it.
        q, k_cache, v_cache: shapes; those of caches without the number of their pages.
        table_width: pages that a sequence may have; 0 without a table.
        dtype, cache_dtype, device, batch_invariant: of the calls.
    """

    blocks: int
    workspace_bytes: int
    served_by: str
    q: tuple[int, ...]
    k_cache: tuple[int, ...]
    v_cache: tuple[int, ...]
    table_width: int
    dtype: torch.dtype
    cache_dtype: torch.dtype
    device: torch.device
    batch_invariant: bool

    def check(
        self,
        op: str,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor | None,
        batch_invariant: bool,
    ) -> None:
        """Whether it was made for such a call.

        Raises:
            RuntimeError: it was not.
        """
        if tuple(q.shape) != self.q:
            raise RuntimeError(
                f"{op}: expected q to have shape {self.q}, that of the plan, got {shape_text(q)}"
            )
        for name, cache, planned in (
            ("k_cache", k_cache, self.k_cache),
            ("v_cache", v_cache, self.v_cache),
        ):
            if tuple(cache.shape[1:]) != planned:
                raise RuntimeError(
                    f"{op}: expected {name} to have pages of shape {planned}, that of the plan, "
                    f"got {shape_text(cache)}"
                )
        for name, given, planned_dtype in (
            ("q", q.dtype, self.dtype),
            ("k_cache", k_cache.dtype, self.cache_dtype),
        ):
            if given != planned_dtype:
                raise RuntimeError(
                    f"{op}: expected {name} to have dtype {planned_dtype}, that of the plan, got "
                    f"{given}"
                )
        if (width := table_width(block_table)) != self.table_width:
            raise RuntimeError(
                f"{op}: expected a block_table of {self.table_width} pages a sequence, as planned "
                f"(0: none), got {width}"
            )
        if q.device != self.device:
            raise RuntimeError(
                f"{op}: expected q to be on {self.device}, that of the plan, got {q.device}"
            )
        if batch_invariant != self.batch_invariant:
            raise RuntimeError(
                f"{op}: expected batch_invariant={self.batch_invariant}, as planned, got "
                f"{batch_invariant}"
            )


def table_width(block_table: Tensor | None) -> int:
    return 0 if block_table is None else block_table.shape[-1]


def split(
    gpu: Gpu, tile: Tile, tile_d: int, rows_of_tile: int, e4m3: bool, of_head: int,
    kv_heads: int, keys: Iterable[int],
) -> int:  # fmt: skip
    """The fewest blocks that are through as soon as all that a GPU holds at once.

    Args:
        gpu: the GPU.
        tile: of a block; `tile_d`: its head dimension, `rows_of_tile`: its queries.
        e4m3: whether the cache is.
        of_head: queries that share a head of keys.
        kv_heads: of the cache.
        keys: of each sequence.
    """
    ring = 2 * tile.keys * tile_d * (1 if e4m3 else 2) * tile.stages * tile.groups
    smem = ring + (2 * rows_of_tile * tile_d if tile_d > 128 else 0)
    fit = max(1, min(tile.resident, (gpu.block_smem + 1024) // (smem + 1024)))
    rounds = sum(max(1, -(-n // tile.round)) for n in keys)
    rounds *= kv_heads * -(-of_head // rows_of_tile)
    most = min(gpu.multiprocessors * fit, MOST_BLOCKS)
    each = max(_LEAST_ROUNDS, -(-rounds // most))
    return max(1, -(-rounds // each))


def workspace_bytes(
    tile: Tile, tile_d: int, rows_of_tile: int, blocks: int, work: int, capacity: int,
    batch_invariant: bool,
) -> int:  # fmt: skip
    """Of a call that is cut among `blocks`; `work`: heads of keys and tiles of queries, `capacity`:
    tokens that a sequence may have.
    """
    pieces = blocks
    if batch_invariant:
        rounds = -(-capacity // tile.round)
        pieces = work * max(1, -(-rounds // _INVARIANT_ROUNDS))
    return 4 * pieces * (2 * rows_of_tile * (tile_d + 2) + 1)
