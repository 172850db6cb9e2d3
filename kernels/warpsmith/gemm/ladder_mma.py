"""The rungs of the matrix product that use tensor cores, by `nvcuda::wmma` and by `mma.sync`."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import torch

from warpsmith.core.catalogue import Condition, Rung, always
from warpsmith.gemm import padding
from warpsmith.gemm.problem import (
    Matrix,
    OnProblem,
    Problem,
    condition,
    needs_a_row_major,
    needs_b_column_major,
    needs_cutlass,
    needs_one_product,
    needs_operand_packs_16,
    needs_packs_16,
    needs_plain,
    needs_result_like_operands,
    needs_row_major,
    needs_tiles_in_grid,
)
from warpsmith.spec.gpus import needs_much_shared_memory

HALVES = ("f16", "bf16")
ACCUMULATORS: Mapping[str, tuple[str, ...]] = {"f16": ("f16", "f32"), "bf16": ("f32",)}

NN = condition(needs_plain, needs_row_major, needs_packs_16)
TN = condition(needs_plain, needs_b_column_major, needs_packs_16)


@functools.cache
def _clusters() -> int:
    """Pairs of multiprocessors: of this machine's GPU, or of an H200."""
    if not torch.cuda.is_available():
        return 66
    return max(1, torch.cuda.get_device_properties().multi_processor_count // 2)


def _needs_shared_memory(p: Problem) -> str | None:
    return needs_much_shared_memory(p.sm)


def _needs_maps(p: Problem) -> str | None:
    """Of a and b, by which the copy engine finds its way (host/tensor_map.h)."""

    def can_map(x: Matrix, rows: int, cols: int) -> bool:
        lines, length = (rows, cols) if x.by_rows else (cols, rows)
        apart = lines == 1 or length <= x.ld < 2**40 // p.size
        return max(lines, length) < 2**31 and apart

    if can_map(p.a, p.m, p.k) and can_map(p.b, p.k, p.n):
        return None
    return "needs sizes of at most 2^31 - 1 and lines of a and b that do not overlap"


def _suits_waves(p: Problem) -> str | None:
    """Of the pairs of multiprocessors, each with a tile of 256 x 256 (csrc/tile/waves.h)."""
    if p.b.by_rows:
        return "b is row-major: mma_peak is faster"
    if p.k < 512:
        return "so short a k leaves the copies of a tile nothing to overlap with"
    pairs, tile, step = _clusters(), 256, 64
    tiles, steps = math.ceil(p.m / tile) * math.ceil(p.n / tile), math.ceil(p.k / step)
    whole, last = divmod(tiles, pairs)

    def cost(slices: int) -> int:
        summing = 10 if slices > 1 else 0
        return math.ceil(last * slices / pairs) * math.ceil(steps / slices) + summing

    slices, most = 1, steps // 4
    if whole and last and not p.batch_invariant:
        for wanted in (min(pairs // last, most), 2, 3, 4, 5):
            if 0 < wanted <= most and cost(wanted) < cost(slices):
                slices = wanted
        slices = math.ceil(steps / math.ceil(steps / slices))
    depth = whole * p.k + cost(slices) * step
    busy, paid = float(p.m) * float(p.n) * float(p.k), float(depth) * (pairs * tile * tile)
    fits = tiles > pairs and busy >= 0.875 * paid
    return None if fits else "its large tiles do not keep the GPU busy"


def _rung(
    name: str,
    story: str,
    when: OnProblem,
    *seeds: str,
    suits: Condition = always,
    min_sm: int = 80,
) -> Rung:
    return Rung(
        name,
        story,
        dtypes=HALVES,
        technique=name,
        accumulators=ACCUMULATORS,
        when=when,
        suits=suits,
        min_sm=min_sm,
        seeds=tuple(s if "{dtype}" in s else f"hgemm_{s}_{{dtype}}" for s in seeds),
    )


WMMA: tuple[Rung, ...] = (
    _rung("wmma_naive", "a fragment of 16 x 16 a warp", NN, "wmma_m16n16k16_naive"),
    _rung(
        "wmma_mma4x2",
        "4 x 2 warps share what their block loads",
        NN,
        "wmma_m16n16k16_mma4x2",
    ),
    _rung(
        "wmma_warp2x4",
        "2 x 4 fragments a warp, tiles of 128 x 128",
        NN,
        "wmma_m16n16k16_mma4x2_warp2x4",
    ),
    _rung(
        "wmma_dbuf_async",
        "two stages, filled by cp.async",
        NN,
        "wmma_m16n16k16_mma4x2_warp2x4_dbuf_async",
    ),
    _rung(
        "wmma_m32n8k16",
        "the instruction's other shape",
        NN,
        "wmma_m32n8k16_mma2x4_warp2x4_dbuf_async",
    ),
    _rung(
        "wmma_stages",
        "a ring of four stages",
        NN,
        "wmma_m16n16k16_mma4x2_warp2x4_stages",
    ),
    _rung(
        "wmma_dsmem",
        "the ring in dynamic shared memory, twice as deep",
        NN,
        "wmma_m16n16k16_mma4x2_warp2x4_stages_dsmem",
    ),
    _rung(
        "wmma_block_swizzle",
        "tiles in groups, for L2",
        NN,
        "wmma_m16n16k16_mma4x2_warp2x4_stages_dsmem_swizzle",
    ),
    _rung(
        "wmma_warp4x4",
        "4 x 4 fragments a warp, tiles of 256 x 128",
        NN,
        "wmma_m16n16k16_mma4x2_warp4x4_stages_dsmem",
    ),
    _rung(
        "wmma_mma4x4",
        "4 x 4 warps on tiles of up to 256 x 256",
        NN,
        "wmma_m16n16k16_mma4x4",
        "wmma_m16n16k16_mma4x4_warp4x4_stages_dsmem",
    ),
)

MMA: tuple[Rung, ...] = (
    _rung("mma_naive", "a tile of 16 x 8 a warp, by ldmatrix", NN, "mma_m16n8k16_naive"),
    _rung(
        "mma_mma2x4",
        "2 x 4 warps share what their block loads",
        NN,
        "mma_m16n8k16_mma2x4",
    ),
    _rung(
        "mma_warp4x4",
        "4 x 4 tiles a warp, blocks of 128 x 128",
        NN,
        "mma_m16n8k16_mma2x4_warp4x4",
    ),
    _rung(
        "mma_stages",
        "a ring of two stages, filled by cp.async",
        NN,
        "mma_m16n8k16_mma2x4_warp4x4_stages",
    ),
    _rung(
        "mma_dsmem",
        "the ring in dynamic shared memory, twice as deep",
        NN,
        "mma_m16n8k16_mma2x4_warp4x4_stages_dsmem",
        "mma_m16n8k16_mma2x4_warp4x4x2_stages_dsmem",
        "mma_m16n8k16_mma2x4_warp4x4x2_stages_dsmem_x4",
    ),
    _rung(
        "mma_block_swizzle",
        "tiles in groups, for L2",
        NN,
        "mma_m16n8k16_mma2x4_warp4x4_stages_swizzle",
    ),
    _rung(
        "mma_swizzle",
        "operands swizzled in shared memory instead of padded",
        NN,
        "mma_m16n8k16_mma2x4_warp4x4x2_stages_dsmem_swizzle",
    ),
    _rung(
        "mma_register_dbuf",
        "fragments double-buffered in registers, 64 x 64 a warp",
        NN,
        "mma_m16n8k16_mma2x4_warp4x4x2_stages_dsmem_rr",
    ),
    _rung(
        "mma_tn",
        "b column-major, padded as in mma_dsmem",
        TN,
        "mma_m16n8k16_mma2x4_warp4x4_stages_dsmem_tn",
    ),
    _rung(
        "mma_tn_swizzle",
        "b column-major, swizzled",
        TN,
        "mma_m16n8k16_mma2x4_warp4x4x2_stages_dsmem_tn_swizzle_x4",
    ),
    _rung(
        "mma_tn_stages_swizzle",
        "b column-major, swizzled, double-buffered in registers, 64 along k a step",
        TN,
    ),
    _rung(
        "cute_tn_stages_swizzle",
        "the same written with CuTe, whole lines stored",
        condition(needs_cutlass, *TN.checks),
        "mma_stages_swizzle_tn_cute",
    ),
    _rung(
        "mma_unaligned",
        "any alignment and layout, loads through registers, split-K",
        condition(needs_tiles_in_grid),
    ),
    _rung(
        "mma_peak",
        "any layout, tiles up to 128 x 256, split-K, whole lines stored",
        condition(needs_operand_packs_16, needs_tiles_in_grid),
        "batch_invariant_mm_{dtype}",
        "sgemm_128x256_async_{dtype}:f32",
    ),
    _rung(
        "mma_tma",
        "large products, b column-major: the copy engine brings operands, b for a cluster of two",
        condition(
            needs_result_like_operands,
            needs_one_product,
            _needs_shared_memory,
            needs_a_row_major,
            needs_operand_packs_16,
            _needs_maps,
        ),
        suits=condition(_suits_waves),
        min_sm=90,
    ),
    _rung(
        "mma_padded",
        "operands not in packs of 16 bytes copied to lines that are, then mma_tma or mma_peak",
        condition(padding.needs_padding, needs_tiles_in_grid),
        suits=condition(padding.suits_padding),
    ),
)

#: Those that take epilogues and, but for mma_tma, batches.
WHOLE = ("mma_unaligned", "mma_peak", "mma_tma", "mma_padded")
