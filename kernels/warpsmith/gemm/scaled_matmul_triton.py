"""The product of two 8-bit matrices with scales in Triton."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import is_fp8
from warpsmith.core.twins import interpreting
from warpsmith.gemm.scaled_matmul import RESULTS, reference
from warpsmith.spec.triton.convert import decode, encode

#: fp8 travels as bytes.
_FORMATS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
GROUP = 8


@triton.jit
def scaled_matmul_kernel(
    a_ptr,  # [m, k], any strides
    b_ptr,  # [k, n], any strides
    scale_a_ptr,  # [m], or one value, or of BLOCKS [m, k / 128]
    scale_b_ptr,  # [n], or one value, or of BLOCKS [k / 128, n / 128]
    scale_result_ptr,  # of results of fp8, one value
    d_ptr,  # [m, n]
    m, n, k, a_row, a_col, b_row, b_col,
    scale_a_step, scale_b_step, scale_a_step_k, scale_b_step_k,
    FORMAT_A: tl.constexpr, FORMAT_B: tl.constexpr, BLOCKS: tl.constexpr,
    OUT: tl.constexpr, LARGEST: tl.constexpr, SCALED: tl.constexpr,
    SIMULATED: tl.constexpr, HARDWARE: tl.constexpr, GROUP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A tile per program, GROUP rows of tiles column by column. 8-bit values are exact in f16."""
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    index = tl.program_id(0)
    group = index // (GROUP * tiles_n)
    rows = tl.minimum(tiles_m - group * GROUP, GROUP)
    in_group = index % (GROUP * tiles_n)
    tile_m, tile_n = group * GROUP + in_group % rows, in_group // rows
    row = (tile_m.to(tl.int64) * BM + tl.arange(0, BM))[:, None]  # [BM, 1]
    col = (tile_n.to(tl.int64) * BN + tl.arange(0, BN))[None, :]  # [1, BN]
    inner = tl.arange(0, BK).to(tl.int64)
    a_ptr += row * a_row + inner[None, :] * a_col  # [BM, BK]
    b_ptr += inner[:, None] * b_row + col * b_col  # [BK, BN]
    of_b = col // 128 if BLOCKS else col
    scale_a_ptr += row * scale_a_step
    scale_b_ptr += of_b * scale_b_step
    total = tl.zeros([BM, BN], dtype=tl.float32)
    for start in range(0, k, BK):
        within = start + tl.arange(0, BK) < k
        a = tl.load(a_ptr, mask=(row < m) & within[None, :], other=0)
        b = tl.load(b_ptr, mask=within[:, None] & (col < n), other=0)
        left, right = decode(a, FORMAT_A, HARDWARE), decode(b, FORMAT_B, HARDWARE)
        if BLOCKS:  # a step lies within one of 128 values of k
            scale_a = tl.load(scale_a_ptr + start // 128 * scale_a_step_k, mask=row < m, other=0.0)
            scale_b = tl.load(scale_b_ptr + start // 128 * scale_b_step_k, mask=col < n, other=0.0)
            if not SIMULATED:
                own = tl.dot(left.to(tl.float16), right.to(tl.float16))
            else:
                own = tl.dot(left, right)
            total += own * (scale_a * scale_b)
        elif not SIMULATED:
            total = tl.dot(left.to(tl.float16), right.to(tl.float16), total)
        else:
            total += tl.dot(left, right)
        a_ptr += tl.cast(a_col, tl.int64) * BK
        b_ptr += tl.cast(b_row, tl.int64) * BK
    if not BLOCKS:
        total *= tl.load(scale_a_ptr, mask=row < m, other=0.0) * tl.load(
            scale_b_ptr, mask=col < n, other=0.0
        )
    inside = (row < m) & (col < n)
    if LARGEST > 0:  # NaN passes, which tl.clamp need not let through
        if SCALED:
            total *= tl.load(scale_result_ptr)
        total = tl.where(total > LARGEST, LARGEST, total)
        total = tl.where(total < -LARGEST, -LARGEST, total)
    d = encode(total, OUT, HARDWARE, d_ptr.dtype.element_ty)
    tl.store(d_ptr + row * n + col, d, mask=inside)


def scaled_matmul(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    out_dtype: str,
    fast_accum: bool = False,
    scale_result: Tensor | None = None,
) -> Tensor:
    if scale_a.dtype == torch.float64:  # wider than the kernel's sums
        return reference(a, b, scale_a, scale_b, out_dtype, fast_accum, scale_result)
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty((m, n), dtype=RESULTS[out_dtype], device=a.device)
    if out.numel() == 0 or k == 0:  # no products to scale, by whatever it is
        return out.zero_()
    operands = (a.view(torch.uint8), b.view(torch.uint8)) if is_fp8(a.dtype) else (a, b)
    blocks = scale_a.dim() == 2
    steps_a = (*scale_a.stride(), 0, 0)[:2]  # along m, along k
    steps_b = scale_b.stride()[::-1] if blocks else (*scale_b.stride(), 0, 0)[:2]
    simulated = interpreting()
    fp8 = is_fp8(out.dtype)
    by_bits = fp8 or (simulated and out_dtype == "bf16")
    codes = torch.uint8 if fp8 else torch.int16
    capable = not simulated and torch.cuda.get_device_capability(a.device) >= (8, 9)
    large = m >= 128 and n >= 128 and not simulated
    side, depth, warps = (128, 64, 8) if large else (64, 64, 4)
    with torch.cuda.device_of(a):
        scaled_matmul_kernel[(triton.cdiv(m, side) * triton.cdiv(n, side),)](
            *operands,
            scale_a,
            scale_b,
            scale_a if scale_result is None else scale_result,
            out.view(codes) if by_bits else out,
            m,
            n,
            k,
            *a.stride(),
            *b.stride(),
            steps_a[0],
            steps_b[0],
            steps_a[1],
            steps_b[1],
            FORMAT_A=_FORMATS.get(a.dtype, ""),
            FORMAT_B=_FORMATS.get(b.dtype, ""),
            BLOCKS=blocks,
            OUT=out_dtype if by_bits else "",
            LARGEST=torch.finfo(out.dtype).max if fp8 else 0.0,
            SCALED=scale_result is not None,
            SIMULATED=simulated,
            HARDWARE=capable,
            GROUP=GROUP,
            BM=side,
            BN=side,
            BK=depth,
            num_warps=warps,
        )
    return out
