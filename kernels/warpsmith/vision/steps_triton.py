"""What steps of a schedule index, in Triton: rows of a table, and the measure of noise."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import is_fp8

BLOCK = 1024


@triton.jit
def _steps(t_ptr, at, there, limit):
    """Steps, and which of them the table has."""
    step = tl.load(t_ptr + at, mask=there, other=0).to(tl.int64)
    return step, (step >= 0) & (step < limit)


@triton.jit
def timestep_rows_kernel(
    table_ptr, t_ptr, y_ptr, n, dim, limit, pitch, step_pitch, BLOCK: tl.constexpr
):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = i < n
    row = i // dim
    step, known = _steps(t_ptr, row, there, limit)
    place = table_ptr + step * pitch + (i - row * dim) * step_pitch
    value = tl.load(place, mask=there & known, other=0.0)
    value = tl.where(known, value.to(tl.float32), float("nan"))
    tl.store(y_ptr + i, value.to(y_ptr.dtype.element_ty), mask=there)


@triton.jit
def add_noise_kernel(
    x_ptr, noise_ptr, t_ptr, table_ptr, y_ptr, n, inner, limit, BLOCK: tl.constexpr
):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = i < n
    step, known = _steps(t_ptr, i // inner, there, limit)
    keep = tl.load(table_ptr + 2 * step, mask=there & known, other=float("nan"))
    add = tl.load(table_ptr + 2 * step + 1, mask=there & known, other=float("nan"))
    x = tl.load(x_ptr + i, mask=there, other=0.0).to(tl.float32)
    noise = tl.load(noise_ptr + i, mask=there, other=0.0).to(tl.float32)
    y = keep * x + add * noise
    tl.store(y_ptr + i, y.to(y_ptr.dtype.element_ty), mask=there)


def timestep_rows(table: Tensor, t: Tensor) -> Tensor:
    if is_fp8(table.dtype):
        return timestep_rows(table.float(), t).to(table.dtype)
    y = table.new_empty((t.shape[0], table.shape[1]))
    if y.numel() == 0:
        return y
    with torch.cuda.device(table.device if table.device.type == "cuda" else -1):
        timestep_rows_kernel[(triton.cdiv(y.numel(), BLOCK),)](
            table, t.contiguous(), y, y.numel(), table.shape[1], table.shape[0], *table.stride(),
            BLOCK, num_warps=4,
        )  # fmt: skip
    return y


def add_noise(x: Tensor, noise: Tensor, t: Tensor, table: Tensor) -> Tensor:
    if is_fp8(x.dtype):
        return add_noise(x.float(), noise.float(), t, table).to(x.dtype)
    y = x.new_empty(x.shape)
    if y.numel() == 0:
        return y
    x, noise, t, table = (a.contiguous() for a in (x, noise, t, table))
    with torch.cuda.device(x.device if x.device.type == "cuda" else -1):
        add_noise_kernel[(triton.cdiv(y.numel(), BLOCK),)](
            x, noise, t, table, y, y.numel(), y.numel() // y.shape[0], table.shape[0], BLOCK,
            num_warps=4,
        )  # fmt: skip
    return y
