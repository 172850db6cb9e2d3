"""Products of groups of fp8 values in Triton."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.twins import interpreting
from warpsmith.gemm.grouped_matmul import result_shape
from warpsmith.gemm.grouped_matmul_triton import find_group, span_of, tile_along_k
from warpsmith.gemm.scaled_grouped_matmul import OUT_DTYPES, reference
from warpsmith.spec.triton.convert import decode, encode

#: fp8 travels as bytes.
_FORMATS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}


@triton.jit
def scaled_multiply(
    x_ptr, w_ptr, first, last, row_mask, col_mask, x_col, w_row,
    FORMAT_X: tl.constexpr, FORMAT_W: tl.constexpr, OUT: tl.constexpr, HARDWARE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The sums of a tile over the values of k from `first` to `last`. `x_ptr` [BM, 1] and `w_ptr`
    [1, BN] are those of k = 0. 8-bit values are exact in f16.
    """
    inner = (first + tl.arange(0, BK)).to(tl.int64)
    of_x = x_ptr + inner[None, :] * x_col  # [BM, BK]
    of_w = w_ptr + inner[:, None] * w_row  # [BK, BN]
    total = tl.zeros([BM, BN], dtype=tl.float32)
    for start in range(first, last, BK):
        within = tl.arange(0, BK) < last - start
        x = tl.load(of_x, mask=row_mask & within[None, :], other=0)
        w = tl.load(of_w, mask=within[:, None] & col_mask, other=0)
        left, right = decode(x, FORMAT_X, HARDWARE), decode(w, FORMAT_W, HARDWARE)
        if OUT == "":
            total = tl.dot(left.to(tl.float16), right.to(tl.float16), total)
        else:
            total += tl.dot(left, right)
        of_x += tl.cast(x_col, tl.int64) * BK
        of_w += tl.cast(w_row, tl.int64) * BK
    return total


@triton.jit
def store_scaled(
    total, scales_x, scales_w, d_ptr, row, col, end, n, scaled_end, scaled_n, OUT: tl.constexpr
):
    """Rows before `end`, columns before `n`. From `scaled_end` and `scaled_n` on there are no
    products, which is zeros, whatever the scales.
    """
    total *= tl.load(scales_x, mask=row < scaled_end, other=0.0) * tl.load(
        scales_w, mask=col < scaled_n, other=0.0
    )
    d = encode(total, "bf16" if OUT == "bf16" else "", False, d_ptr.dtype.element_ty)
    tl.store(d_ptr + row * n + col, d, mask=(row < end) & (col < n))


@triton.jit
def scaled_by_rows_kernel(
    x_ptr,  # [m, k]
    w_ptr,  # [groups, k, n]
    ends_ptr,  # [groups]
    scale_x_ptr,  # [m]
    scale_w_ptr,  # [groups, n]
    d_ptr,  # [m, n]
    groups, m, n, k, x_row, x_col, w_group, w_row, w_col, ends_step,
    scale_x_step, scale_w_group, scale_w_step,
    FORMAT_X: tl.constexpr, FORMAT_W: tl.constexpr, OUT: tl.constexpr, HARDWARE: tl.constexpr,
    GROUPS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A tile of the rows of one group per program (grouped_matmul_triton.py)."""
    tiles_n = tl.cdiv(n, BN)
    at = tl.program_id(0) // tiles_n
    group, first, end = find_group(ends_ptr, ends_step, groups, m, at, GROUPS, BM)
    if group < groups:
        row = (first + tl.arange(0, BM)).to(tl.int64)[:, None]  # [BM, 1]
        col = (tl.program_id(0) % tiles_n * BN + tl.arange(0, BN)).to(tl.int64)[None, :]  # [1, BN]
        total = scaled_multiply(
            x_ptr + row * x_row, w_ptr + group.to(tl.int64) * w_group + col * w_col, 0, k,
            row < end, col < n, x_col, w_row, FORMAT_X, FORMAT_W, OUT, HARDWARE, BM, BN, BK,
        )  # fmt: skip
        scales_w = scale_w_ptr + group.to(tl.int64) * scale_w_group + col * scale_w_step
        store_scaled(
            total, scale_x_ptr + row * scale_x_step, scales_w, d_ptr, row, col, end, n, end, n,
            OUT,
        )  # fmt: skip


@triton.jit
def scaled_along_k_kernel(
    x_ptr,  # [m, k]
    w_ptr,  # [k, n]
    ends_ptr,  # [groups]
    scale_x_ptr,  # [groups, m]
    scale_w_ptr,  # [groups, n]
    d_ptr,  # [groups, m, n]
    m, n, k, x_row, x_col, w_row, w_col, ends_step,
    scale_x_group, scale_x_step, scale_w_group, scale_w_step,
    FORMAT_X: tl.constexpr, FORMAT_W: tl.constexpr, OUT: tl.constexpr, HARDWARE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A tile of one group's product per program."""
    group, tile_m, tile_n = tile_along_k(tl.cdiv(m, BM), tl.cdiv(n, BN))
    first, end = span_of(ends_ptr, ends_step, group, k)
    row = (tile_m.to(tl.int64) * BM + tl.arange(0, BM))[:, None]  # [BM, 1]
    col = (tile_n.to(tl.int64) * BN + tl.arange(0, BN))[None, :]  # [1, BN]
    total = scaled_multiply(
        x_ptr + row * x_row, w_ptr + col * w_col, first, end, row < m, col < n, x_col, w_row,
        FORMAT_X, FORMAT_W, OUT, HARDWARE, BM, BN, BK,
    )  # fmt: skip
    of_group = group.to(tl.int64)
    store_scaled(
        total, scale_x_ptr + of_group * scale_x_group + row * scale_x_step,
        scale_w_ptr + of_group * scale_w_group + col * scale_w_step, d_ptr + of_group * m * n,
        row, col, m, n, tl.where(first < end, m, 0), tl.where(first < end, n, 0), OUT,
    )  # fmt: skip


def scaled_grouped_matmul(
    x: Tensor,
    w: Tensor,
    offs: Tensor,
    scale_x: Tensor,
    scale_w: Tensor,
    out_dtype: str,
    fast_accum: bool = False,
) -> Tensor:
    if scale_x.dtype == torch.float64:  # wider than the kernel's sums
        return reference(x, w, offs, scale_x, scale_w, out_dtype)
    (m, k), n, groups, along_k = x.shape, w.shape[-1], offs.shape[0], w.dim() == 2
    out = torch.empty(result_shape(x, w, offs), dtype=OUT_DTYPES[out_dtype], device=x.device)
    if out.numel() == 0 or groups == 0:
        return out
    if k == 0:
        return out.zero_()
    simulated = interpreting()
    by_bits = simulated and out_dtype == "bf16"
    large = (along_k or m >= 64 * groups) and not simulated
    rows, side, depth, warps = (128, 128, 64, 8) if large else (32, 64, 64, 4)
    tensors = (x.view(torch.uint8), w.view(torch.uint8), offs, scale_x, scale_w)
    d = out.view(torch.int16) if by_bits else out
    steps = (*x.stride(), *w.stride(), offs.stride(0), *scale_x.stride(), *scale_w.stride())
    shared = {
        "FORMAT_X": _FORMATS[x.dtype],
        "FORMAT_W": _FORMATS[w.dtype],
        "OUT": out_dtype if simulated else "",
        "HARDWARE": not simulated and torch.cuda.get_device_capability(x.device) >= (8, 9),
        "BM": rows,
        "BN": side,
        "BK": depth,
        "num_warps": warps,
    }
    down, across = triton.cdiv(m, rows), triton.cdiv(n, side)
    with torch.cuda.device_of(x):
        if along_k:
            scaled_along_k_kernel[(groups * down * across,)](*tensors, d, m, n, k, *steps, **shared)
        else:
            scaled_by_rows_kernel[((down + groups) * across,)](
                *tensors, d, groups, m, n, k, *steps,
                GROUPS=triton.next_power_of_2(groups), **shared,
            )  # fmt: skip
    return out
