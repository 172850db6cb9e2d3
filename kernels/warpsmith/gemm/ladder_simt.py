"""The rungs of the matrix product that multiply on the CUDA cores."""

from __future__ import annotations

from collections.abc import Mapping

from warpsmith.core.catalogue import FLOATS, PACK, Rung
from warpsmith.gemm.problem import (
    Problem,
    condition,
    needs_packs_8,
    needs_packs_16,
    needs_plain,
    needs_row_major,
    needs_tiles_in_grid,
)

ACCUMULATORS: Mapping[str, tuple[str, ...]] = {
    "f32": ("f32",),
    "f16": ("f16", "f32"),
    "bf16": ("f32",),
}
HALVES = ("f16", "bf16")


def _needs_four(p: Problem) -> str | None:
    """Four values a load."""
    return needs_packs_16(p) if p.size == 4 else needs_packs_8(p)


FOURS = condition(needs_plain, needs_row_major, _needs_four)
PACKS = condition(needs_plain, needs_row_major, needs_packs_16)


def _packed(
    name: str,
    story: str,
    *seeds: str,
    dtypes: tuple[str, ...] = FLOATS,
    accumulators: Mapping[str, tuple[str, ...]] = ACCUMULATORS,
) -> Rung:
    """Of the rungs that load 16 bytes at a time."""
    return Rung(
        name,
        story,
        dtypes=dtypes,
        width=PACK,
        pack=True,
        technique=name,
        accumulators=accumulators,
        when=PACKS,
        seeds=seeds,
    )


SIMT: tuple[Rung, ...] = (
    Rung(
        "sliced_k",
        "slices of k in shared memory, any layout",
        technique="sliced_k",
        accumulators=ACCUMULATORS,
        when=condition(needs_plain),
        seeds=("sgemm_sliced_k_{dtype}", "hgemm_sliced_k_{dtype}"),
    ),
    Rung(
        "block_1d",
        "eight values of a column a thread, any layout",
        dtypes=("f32",),
        technique="block_column",
        when=condition(needs_plain),
        seeds=("sgemm_1d_f32", "sgemm_1d_shared_f32"),
    ),
    Rung(
        "block_2d",
        "8 x 8 values a thread, any layout",
        dtypes=("f32",),
        technique="block_square",
        when=condition(needs_plain),
        seeds=("sgemm_2d_block_f32",),
    ),
    Rung(
        "thread_tile",
        "8 x 8 values a thread, four values a load",
        width=4,
        technique="thread_tile",
        accumulators=ACCUMULATORS,
        when=FOURS,
        seeds=("sgemm_t_8x8_sliced_k_{dtype}x4", "hgemm_t_8x8_sliced_k_{dtype}x4"),
    ),
    Rung(
        "thread_tile_pack",
        "the four values in one load, slices of 16 k",
        dtypes=HALVES,
        width=4,
        pack=True,
        technique="thread_tile",
        accumulators=ACCUMULATORS,
        when=FOURS,
        seeds=("hgemm_t_8x8_sliced_k_{dtype}x4_pack",),
    ),
    Rung(
        "thread_tile_pack8",
        "eight values in one load",
        dtypes=HALVES,
        width=8,
        pack=True,
        technique="thread_tile",
        accumulators=ACCUMULATORS,
        when=PACKS,
        seeds=("hgemm_t_8x8_sliced_k_{dtype}x8_pack",),
    ),
    _packed(
        "bank_conflict_free",
        "a transposed and padded, one k at a time",
        "sgemm_t_8x8_sliced_k_{dtype}x4_bcf",
        "sgemm_t_8x8_sliced_k_{dtype}x4_bcf_offset",
        "hgemm_t_8x8_sliced_k_{dtype}x4_bcf",
        "hgemm_t_8x8_sliced_k_{dtype}x4_pack_bcf",
        "hgemm_t_8x8_sliced_k_{dtype}x8_pack_bcf",
    ),
    _packed(
        "double_buffered",
        "two buffers, one barrier a slice",
        "sgemm_t_8x8_sliced_k_{dtype}x4_bcf_dbuf",
        "sgemm_t_8x8_sliced_k_{dtype}x4_bcf_dbuf_offset",
        "hgemm_t_8x8_sliced_k_{dtype}x8_pack_bcf_dbuf",
        "hgemm_t_8x8_sliced_k16_{dtype}x8_pack_dbuf",
    ),
    _packed(
        "k16_t8x4",
        "slices of 16 k, 8 x 4 values a thread",
        "sgemm_t_8x4_sliced_k16_{dtype}x4_bcf_dbuf",
        dtypes=("f32",),
    ),
    _packed(
        "k16_t8x8",
        "slices of 16 k, 8 x 8 values a thread",
        "sgemm_t_8x8_sliced_k16_{dtype}x4_bcf_dbuf",
        dtypes=("f32",),
    ),
    _packed(
        "k16_t8x16",
        "slices of 16 k, 8 x 16 values a thread",
        "sgemm_t_8x16_sliced_k16_{dtype}x4_bcf_dbuf",
        dtypes=("f32",),
    ),
    _packed(
        "k32_t8x8",
        "slices of 32 k, 8 x 8 values a thread",
        "hgemm_t_8x8_sliced_k32_{dtype}x8_pack_dbuf",
        dtypes=HALVES,
    ),
    _packed(
        "k32_t16x8",
        "slices of 32 k, 16 x 8 values a thread",
        "hgemm_t_16x8_sliced_k32_{dtype}x8_pack_dbuf",
        dtypes=HALVES,
    ),
    _packed(
        "async_t8x4",
        "copies in the background, 8 x 4 values a thread",
        "sgemm_t_8x4_sliced_k16_{dtype}x4_bcf_dbuf_async",
        dtypes=("f32",),
    ),
    _packed(
        "async_t8x8",
        "copies in the background, 8 x 8 values a thread",
        "sgemm_t_8x8_sliced_k16_{dtype}x4_bcf_dbuf_async",
        "hgemm_t_8x8_sliced_k16_{dtype}x8_pack_dbuf_async",
    ),
    _packed(
        "async_t8x16",
        "copies in the background, 8 x 16 values a thread",
        "sgemm_t_8x16_sliced_k16_{dtype}x4_bcf_dbuf_async",
        "sgemm_128x256_async_{dtype}",
        dtypes=("f32",),
    ),
    _packed(
        "async_k32_t8x8",
        "copies in the background, slices of 32 k",
        "hgemm_t_8x8_sliced_k32_{dtype}x8_pack_dbuf_async",
        "sgemm_128x128_{dtype}:f32",
        dtypes=HALVES,
    ),
    _packed(
        "async_k32_t16x8",
        "copies in the background, 16 x 8 values a thread",
        "hgemm_t_16x8_sliced_k32_{dtype}x8_pack_dbuf_async",
        dtypes=("f16",),
        accumulators={"f16": ("f16",)},
    ),
    Rung(
        "simt_peak",
        "any layout and alignment, 64 x 64 values a warp, a ring of copies, split-K",
        dtypes=("f32",),
        width=4,
        technique="peak",
        when=condition(needs_tiles_in_grid),
        seeds=("sgemm_128x128_{dtype}", "batch_invariant_mm_{dtype}"),
    ),
)

#: Those that take epilogues and batches.
WHOLE = ("simt_peak",)
