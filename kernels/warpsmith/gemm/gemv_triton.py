"""A matrix times a few vectors in Triton."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import is_fp8
from warpsmith.core.twins import interpreting
from warpsmith.spec.triton.convert import decode

#: Values of a tile: rows * vectors * columns.
TILE = 8192
#: fp8 travels as bytes.
_FORMATS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}


@triton.jit
def gemv_kernel(
    a_ptr,  # [m, k], any strides
    x_ptr,  # [vectors, k], any strides
    scale_ptr,  # [m], or one value; of those that SCALED
    y_ptr,  # [vectors, m]
    m,
    k,
    a_row,
    a_col,
    x_row,
    x_col,
    scale_step,
    vectors,
    SCALED: tl.constexpr,
    FORMAT: tl.constexpr,
    HARDWARE: tl.constexpr,
    ROWS: tl.constexpr,
    COUNT: tl.constexpr,
    COLS: tl.constexpr,
):
    """ROWS rows and all vectors per program; k lane by lane, then the lanes."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    vector = tl.arange(0, COUNT).to(tl.int64)  # [COUNT]
    lanes = tl.zeros([COUNT, ROWS, COLS], dtype=tl.float32)
    in_rows, in_vectors = row < m, vector < vectors
    for start in range(0, k, COLS):
        col = start + tl.arange(0, COLS).to(tl.int64)  # [COLS]
        in_k = col < k
        a_at = a_ptr + row[:, None] * a_row + col[None, :] * a_col
        a = tl.load(a_at, mask=in_rows[:, None] & in_k[None, :], other=0)
        a = decode(a, FORMAT, HARDWARE)
        x_at = x_ptr + vector[:, None] * x_row + col[None, :] * x_col
        x = tl.load(x_at, mask=in_vectors[:, None] & in_k[None, :], other=0).to(tl.float32)
        lanes += a[None, :, :] * x[:, None, :]
    y = tl.sum(lanes, axis=2)  # [COUNT, ROWS]
    if SCALED:
        y *= tl.load(scale_ptr + row * scale_step, mask=in_rows, other=0)[None, :]
    y_at = y_ptr + vector[:, None] * m + row[None, :]
    tl.store(y_at, y.to(y_ptr.dtype.element_ty), mask=in_vectors[:, None] & in_rows[None, :])


def product(a: Tensor, x: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """`scale` is None, one value, or one per row; `dtype` that of the result."""
    m, k = a.shape
    y = torch.empty((*x.shape[:-1], m), dtype=dtype, device=a.device)
    if y.numel() == 0:
        return y
    x = x.unsqueeze(0) if x.dim() == 1 else x
    count = triton.next_power_of_2(len(x))
    rows = 4 if count <= 4 else 2
    cols = min(TILE // (rows * count), triton.next_power_of_2(max(k, 16)))
    with torch.cuda.device_of(a):
        gemv_kernel[(triton.cdiv(m, rows),)](
            a.view(torch.uint8) if is_fp8(a.dtype) else a,
            x,
            scale,
            y,
            m,
            k,
            *a.stride(),
            *x.stride(),
            scale.stride(0) if scale is not None and scale.dim() else 0,
            len(x),
            SCALED=scale is not None,
            FORMAT=_FORMATS.get(a.dtype, ""),
            HARDWARE=not interpreting() and torch.cuda.get_device_capability(a.device) >= (8, 9),
            ROWS=rows,
            COUNT=count,
            COLS=cols,
        )
    return y


def gemv(a: Tensor, x: Tensor) -> Tensor:
    return product(a, x, None, a.dtype)
