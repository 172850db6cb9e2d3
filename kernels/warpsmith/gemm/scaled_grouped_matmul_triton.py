"""Products of groups of fp8 rows in Triton."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.twins import interpreting
from warpsmith.gemm.grouped_matmul_triton import find_group
from warpsmith.gemm.scaled_grouped_matmul import OUT_DTYPES, reference
from warpsmith.spec.triton.convert import decode, encode

#: fp8 travels as bytes.
_FORMATS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}


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
    """A tile of the rows of one group per program (grouped_matmul_triton.py). 8-bit values are
    exact in f16.
    """
    tiles_n = tl.cdiv(n, BN)
    at = tl.program_id(0) // tiles_n
    group, first, end = find_group(ends_ptr, ends_step, groups, m, at, GROUPS, BM)
    if group < groups:
        row = (first + tl.arange(0, BM)).to(tl.int64)[:, None]  # [BM, 1]
        col = (tl.program_id(0) % tiles_n * BN + tl.arange(0, BN)).to(tl.int64)[None, :]  # [1, BN]
        inner = tl.arange(0, BK).to(tl.int64)
        of_x = x_ptr + row * x_row + inner[None, :] * x_col  # [BM, BK]
        of_w = w_ptr + group.to(tl.int64) * w_group + inner[:, None] * w_row + col * w_col
        total = tl.zeros([BM, BN], dtype=tl.float32)
        for start in range(0, k, BK):
            within = tl.arange(0, BK) < k - start
            x = tl.load(of_x, mask=(row < end) & within[None, :], other=0)
            w = tl.load(of_w, mask=within[:, None] & (col < n), other=0)
            left, right = decode(x, FORMAT_X, HARDWARE), decode(w, FORMAT_W, HARDWARE)
            if OUT == "":
                total = tl.dot(left.to(tl.float16), right.to(tl.float16), total)
            else:
                total += tl.dot(left, right)
            of_x += tl.cast(x_col, tl.int64) * BK
            of_w += tl.cast(w_row, tl.int64) * BK
        inside = (row < end) & (col < n)
        scales_w = scale_w_ptr + group.to(tl.int64) * scale_w_group
        total *= tl.load(scale_x_ptr + row * scale_x_step, mask=row < end, other=0.0) * tl.load(
            scales_w + col * scale_w_step, mask=col < n, other=0.0
        )
        d = encode(total, "bf16" if OUT == "bf16" else "", False, d_ptr.dtype.element_ty)
        tl.store(d_ptr + row * n + col, d, mask=inside)


def scaled_grouped_matmul(
    x: Tensor,
    w: Tensor,
    offsets: Tensor,
    scale_x: Tensor,
    scale_w: Tensor,
    out_dtype: str,
    fast_accum: bool = False,
) -> Tensor:
    if scale_x.dtype == torch.float64:  # wider than the kernel's sums
        return reference(x, w, offsets, scale_x, scale_w, out_dtype)
    (m, k), (groups, _, n) = x.shape, w.shape
    out = torch.empty((m, n), dtype=OUT_DTYPES[out_dtype], device=x.device)
    if out.numel() == 0 or groups == 0:
        return out
    if k == 0:
        return out.zero_()
    simulated = interpreting()
    by_bits = simulated and out_dtype == "bf16"
    capable = not simulated and torch.cuda.get_device_capability(x.device) >= (8, 9)
    large = m >= 64 * groups and not simulated
    rows, side, depth, warps = (128, 128, 64, 8) if large else (32, 64, 64, 4)
    with torch.cuda.device_of(x):
        scaled_by_rows_kernel[((triton.cdiv(m, rows) + groups) * triton.cdiv(n, side),)](
            x.view(torch.uint8),
            w.view(torch.uint8),
            offsets,
            scale_x,
            scale_w,
            out.view(torch.int16) if by_bits else out,
            groups,
            m,
            n,
            k,
            *x.stride(),
            *w.stride(),
            offsets.stride(0),
            scale_x.stride(0),
            *scale_w.stride(),
            FORMAT_X=_FORMATS[x.dtype],
            FORMAT_W=_FORMATS[w.dtype],
            OUT=out_dtype if simulated else "",
            HARDWARE=capable,
            GROUPS=triton.next_power_of_2(groups),
            BM=rows,
            BN=side,
            BK=depth,
            num_warps=warps,
        )
    return out
