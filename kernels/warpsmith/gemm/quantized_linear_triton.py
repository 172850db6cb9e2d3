"""A linear layer of packed weights in Triton."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.twins import interpreting
from warpsmith.gemm.quantized_weight import UNIT, WORDS, bits_of
from warpsmith.spec.rows import as_rows
from warpsmith.spec.triton.convert import decode, encode

#: Values of k of a step: every group is a multiple of them.
DEPTH = 32
#: Terms that are added up one after another at most; a multiple of the shorter groups.
PART = 128
BAND = 8


@triton.jit
def codes(words_ptr, row, col, units, n, k, BITS: tl.constexpr, WORDS_OF_UNIT: tl.constexpr):
    """Those of `row` [1, BN] and `col` [BK, 1], looked up where they lie."""
    within = (row < n) & (col < k)
    unit = (row // 64).to(tl.int64) * units + col // 64
    r, g, down = row % 64 // 16, row % 8, row // 8 % 2
    fragment, right, t, second = col % 64 // 16, col // 8 % 2, col % 8 // 2, col % 2
    lane = 4 * g + t
    if BITS == 4:
        word = 128 * r + 4 * lane + fragment
        shift = 4 * (down + 2 * right) + 16 * second
        packed = tl.load(words_ptr + unit * WORDS_OF_UNIT + word, mask=within, other=0)
        return (packed >> shift) & 15
    else:
        word = 256 * r + 128 * (fragment // 2) + 4 * lane + 2 * (fragment % 2) + right
        shift = 8 * down + 16 * second
        packed = tl.load(words_ptr + unit * WORDS_OF_UNIT + word, mask=within, other=0)
        return (((packed >> shift) & 255) ^ 128) - 128


@triton.jit
def quantized_linear_kernel(
    x_ptr,  # [m, k]
    words_ptr,  # [units of n, units of k, WORDS_OF_UNIT]
    scales_ptr,  # [groups, n]
    zeros_ptr,  # [groups, n]
    bias_ptr,  # [n]
    d_ptr,  # [m, n]
    m, n, k, units, group, x_stride,
    BITS: tl.constexpr, WORDS_OF_UNIT: tl.constexpr, HAS_ZEROS: tl.constexpr,
    HAS_BIAS: tl.constexpr, FORMAT: tl.constexpr, WIDE: tl.constexpr,
    BAND: tl.constexpr, PART: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A tile per program, BAND rows of tiles column by column. Codes less their zeros are exact in
    16 bits; the sums of a group are multiplied by its scale.
    """
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    index = tl.program_id(0)
    band = index // (BAND * tiles_n)
    rows = tl.minimum(tiles_m - band * BAND, BAND)
    in_band = index % (BAND * tiles_n)
    i = ((band * BAND + in_band % rows).to(tl.int64) * BM + tl.arange(0, BM))[:, None]  # [BM, 1]
    j = (in_band // rows * BN + tl.arange(0, BN))[None, :]  # [1, BN]
    depth = tl.arange(0, BK)
    total = tl.zeros([BM, BN], dtype=tl.float32)
    of_group = tl.zeros([BM, BN], dtype=tl.float32)
    own = tl.zeros([BM, BN], dtype=tl.float32)
    for start in range(0, k, BK):
        at = (start // group).to(tl.int64) * n + j
        within = (i < m) & (start + depth[None, :] < k)
        x = tl.load(x_ptr + i * x_stride + start + depth[None, :], mask=within, other=0)
        code = codes(words_ptr, j, start + depth[:, None], units, n, k, BITS, WORDS_OF_UNIT)
        if HAS_ZEROS:
            code -= tl.load(zeros_ptr + at, mask=j < n, other=0).to(tl.int32)
        elif BITS == 4:
            code -= 8
        wide = decode(x, FORMAT, False)
        if WIDE:
            own = tl.dot(wide, code.to(tl.float32), own, input_precision="ieee")
        else:
            own = tl.dot(x, code.to(x_ptr.dtype.element_ty), own)
        # a long group loses less in parts, which have one scale: an infinite one would make NaN of
        # parts of opposite signs
        ends = ((start + BK) % group == 0) | (start + BK >= k)
        if ends | ((start + BK) % PART == 0):
            of_group += own
            own = tl.zeros([BM, BN], dtype=tl.float32)
        if ends:
            scale = decode(tl.load(scales_ptr + at, mask=j < n, other=0), FORMAT, False)
            total += of_group * scale
            of_group = tl.zeros([BM, BN], dtype=tl.float32)
    if HAS_BIAS:
        total += decode(tl.load(bias_ptr + j, mask=j < n, other=0), FORMAT, False)
    d = encode(total, FORMAT, False, d_ptr.dtype.element_ty)
    tl.store(d_ptr + i * n + j, d, mask=(i < m) & (j < n))


def quantized_linear(
    x: Tensor, weight: Tensor, scales: Tensor, zeros: Tensor | None, bias: Tensor | None
) -> Tensor:
    n, k = scales.shape[1], x.shape[-1]
    d = torch.empty((*x.shape[:-1], n), dtype=x.dtype, device=x.device)
    if d.numel() == 0:
        return d
    layout = as_rows(x)
    rows = x.contiguous() if layout.copied else x
    words, bits = weight.contiguous(), bits_of(weight)
    by_bits = interpreting() and x.dtype == torch.bfloat16
    floats = (rows, scales.contiguous(), rows if bias is None else bias.contiguous(), d)
    rows, scales, of_bias, out = (t.view(torch.int16) if by_bits else t for t in floats)
    group = k // scales.shape[0] if scales.shape[0] > 1 else max(k, 1)
    large = layout.rows > 64
    bm, bn, warps = (64, 64, 4) if large else (16, 64, 4)
    programs = triton.cdiv(layout.rows, bm) * triton.cdiv(n, bn)
    with torch.cuda.device_of(x):
        quantized_linear_kernel[(programs,)](
            rows, words, scales, words if zeros is None else zeros.contiguous(), of_bias, out,
            layout.rows, n, k, -(-k // UNIT), group, layout.stride,
            bits, WORDS[bits], zeros is not None, bias is not None, "bf16" if by_bits else "",
            by_bits or x.dtype == torch.float32, BAND, PART, bm, bn, DEPTH, num_warps=warps,
        )  # fmt: skip
    return d
