"""What the Triton twins of the normalisations share: tile sizes, launches, sums of partials."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.spec.rows import as_rows

# Elements of a tile; longer rows are walked in two sweeps.
MOST_RESIDENT = 32768
# Rows of at most this many values let a program keep its columns' share of dw in registers.
MOST_PERSISTENT = 8192
# Tile of the two-sweep kernels: 16 bytes a thread and load at 8 warps, several loads in flight.
SWEEP = 8192
# Short rows share a program, so that it has some 4096 values to load at once.
SHARED_TILE = 4096


@triton.jit
def sum_partials_kernel(
    partial_ptr,  # [partials, cols] f32
    dw_ptr,  # [cols]
    partials,
    cols,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    in_row = col < cols
    sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for first in range(0, partials, ROWS):
        row = (first + tl.arange(0, ROWS)[:, None]).to(tl.int64)  # [ROWS, 1]
        sums += tl.load(partial_ptr + row * cols + col, mask=(row < partials) & in_row, other=0.0)
    dw = tl.sum(sums, axis=0)[None, :]  # [1, BLOCK]
    tl.store(dw_ptr + col, dw.to(dw_ptr.dtype.element_ty), mask=in_row)


def warps_for(values: int) -> int:
    """Warps for a tile: 16 values a thread, which is two 128-bit loads of 16-bit values."""
    return min(max(values // 512, 4), 16)


def multiprocessors(x: Tensor) -> int:
    if x.device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(x.device).multi_processor_count


def unit_stride(x: Tensor) -> tuple[Tensor, int, int, int]:
    """`x` (or a copy), its rows, columns, and the stride between rows."""
    layout = as_rows(x)
    return x.contiguous() if layout.copied else x, layout.rows, layout.cols, layout.stride


def empty_rstd(x: Tensor, wanted: bool) -> Tensor:
    """A value per row, or none."""
    return torch.empty(x.shape[:-1] if wanted else 0, dtype=torch.float32, device=x.device)


def workspace(x: Tensor, partials: int, cols: int, has_weight: bool) -> Tensor:
    size = (partials, cols) if has_weight else (0, cols)
    return torch.empty(size, dtype=torch.float32, device=x.device)


def on(x: Tensor) -> torch.cuda.device:
    """Launches go to the current device: make it that of the tensor."""
    return torch.cuda.device(x.device if x.device.type == "cuda" else -1)
