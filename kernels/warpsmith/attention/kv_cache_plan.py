"""Among how many blocks attention to a cache is shared out; counts as csrc/attention/kv_cache does
(tiles.h, split.h).
"""

from __future__ import annotations

from collections.abc import Sequence
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
#: Nor where a block's keys would be less than so many times what it leaves of sums.
_KEYS_OF_PIECE = 4
#: After so many it is cut where a result must not depend on other sequences.
_INVARIANT_ROUNDS = 16
#: So many queries that share a head of keys go through two tiles of 16 side by side, as long as all
#: caches together have no more bytes than these.
FEW_QUERIES, MOST_PAIRED_QUERIES = 16, 32
MOST_PAIRED_BYTES = 160 << 20


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
_ROWS = {"split_kv": 16, "split_kv_e4m3": 16, "query_tiles": 64, "query_tiles_e4m3": 64}


class Cut(NamedTuple):
    """What of a rung its split depends on."""

    tile: Tile
    d: int  # head dimension that the tile is made for
    rows: int  # its queries
    e4m3: bool


def cut_of(rung: str, of_head: int, d: int, dv: int) -> Cut | None:
    """None for a rung that does not split; `of_head`: queries that share a head of keys."""
    place = 0 if max(d, dv) <= 64 else 1 if max(d, dv) <= 128 else 2
    e4m3 = rung.endswith("_e4m3")
    if rung not in _ROWS:
        return None
    rows = _ROWS[rung]
    return Cut(TILES[e4m3, rows][place], (64, 128, 256)[place], rows, e4m3)


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


def split(gpu: Gpu, cut: Cut, of_head: int, kv_heads: int, keys: Sequence[int]) -> int:
    """The fewest blocks that are through as soon as all that a GPU holds at once.

    Args:
        gpu: the GPU.
        cut: of the rung.
        of_head: queries that share a head of keys.
        kv_heads: of the cache.
        keys: of each sequence.
    """
    tile = cut.tile
    tiles = -(-of_head // cut.rows)
    rounds = kv_heads * tiles * sum(max(1, -(-n // tile.round)) for n in keys)
    ring = 2 * tile.keys * cut.d * (1 if cut.e4m3 else 2) * tile.stages * tile.groups
    smem = ring + (2 * cut.rows * cut.d if cut.d > 128 else 0)
    fit = max(1, min(tile.resident, (gpu.block_smem + 1024) // (smem + 1024)))
    most = min(gpu.multiprocessors * fit, MOST_BLOCKS)
    # d values of f32 a query, against d of a key and of its value
    of_piece = _KEYS_OF_PIECE * 4 * min(of_head, cut.rows)
    least = max(_LEAST_ROUNDS, -(-of_piece // (2 * tile.round * (1 if cut.e4m3 else 2))))
    return max(1, -(-rounds // max(least, -(-rounds // most))))


def workspace_bytes(
    gpu: Gpu, cut: Cut, blocks: int, work: int, capacity: int, batch_invariant: bool
) -> int:
    """Of a call that is cut among `blocks`; `work`: heads of keys and tiles of queries, `capacity`:
    tokens that a sequence may have.
    """
    pieces = counters = blocks
    if batch_invariant:
        rounds = -(-capacity // cut.tile.round)
        pieces = counters = work * max(1, -(-rounds // _INVARIANT_ROUNDS))
    return 4 * (pieces * 2 * cut.rows * (cut.d + 2) + counters)
