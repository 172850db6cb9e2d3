"""The quantisers in Triton: one kernel, by flags."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import DTYPE_NAMES, is_fp8
from warpsmith.core.twins import interpreting
from warpsmith.quantize import reference
from warpsmith.quantize.ladder import halves
from warpsmith.quantize.reference import BLOCK, GROUP, LEAST_SCALE, ROW, TENSOR
from warpsmith.spec.rows import as_rows
from warpsmith.spec.triton import functions
from warpsmith.spec.triton.convert import decode, encode

# Values of a tile, 16 a thread at 8 warps; longer rows are walked.
TILE = 4096
#: Added and taken away, it leaves a number below 2^22 rounded to an integer, ties to even.
ROUNDER = tl.constexpr(12582912.0)
_LEAST = tl.constexpr(LEAST_SCALE)


@triton.jit
def values(
    x_ptr, up_ptr, row, col, valid, x_stride, up_stride,
    VALUES: tl.constexpr, FORMAT_X: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    y = decode(tl.load(x_ptr + row * x_stride + col, mask=valid, other=0), FORMAT_X, False)
    if VALUES == "silu":
        up = tl.load(up_ptr + row * up_stride + col, mask=valid, other=0)
        y = functions.silu(y, 0.0, EXACT) * decode(up, FORMAT_X, False)
    return y


@triton.jit
def weighed(y, weight_ptr, col, in_row, HAS_WEIGHT: tl.constexpr, ZERO_CENTERED: tl.constexpr):
    if HAS_WEIGHT:
        weight = tl.load(weight_ptr + col, mask=in_row, other=0.0).to(tl.float32)
        y *= weight + 1.0 if ZERO_CENTERED else weight
    return y


@triton.jit
def quantize_kernel(
    x_ptr,  # [rows, cols], x_stride elements from row to row
    up_ptr,  # [rows, cols], up_stride elements from row to row
    weight_ptr,  # [cols]
    q_ptr,  # [rows, cols]
    scale_ptr,  # [rows / ROWS, cols / each], or one
    amax_ptr,  # bits: of each row where it is found, one where it is given
    rows, cols, each, x_stride, up_stride, eps, largest,
    VALUES: tl.constexpr, FORMAT_X: tl.constexpr, EXACT: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, ZERO_CENTERED: tl.constexpr,
    SQUARE: tl.constexpr, AMAX: tl.constexpr, FORMAT: tl.constexpr, HARDWARE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """ROWS rows, `each` columns of them; SQUARE: all share a scale. AMAX is "find", "given" or
    "". Magnitudes are compared as bits, for which NaN is the largest.
    """
    across = tl.cdiv(cols, each)
    program = tl.program_id(0).to(tl.int64)
    first = program % across * each
    row = program // across * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    end = tl.minimum(first + each, cols)
    lane = tl.arange(0, COLS)[None, :]  # [1, COLS]
    root = tl.full([ROWS, 1], 1.0, dtype=tl.float32)
    if VALUES == "norm":
        squares = tl.zeros([ROWS, COLS], dtype=tl.float32)
        for start in range(0, cols, COLS):
            valid = (row < rows) & (start + lane < cols)
            x = values(
                x_ptr, up_ptr, row, start + lane, valid, x_stride, up_stride, "", FORMAT_X, EXACT
            )
            squares += x * x
        mean = tl.div_rn(tl.sum(squares, axis=1, keep_dims=True), root * cols)
        root = tl.div_rn(root, tl.sqrt_rn(mean + eps))
    most = tl.zeros([ROWS, COLS], dtype=tl.int32)
    if AMAX != "given":
        for start in range(0, each, COLS):
            col = first + start + lane
            valid = (row < rows) & (col < end) & (start + lane < each)
            y = values(x_ptr, up_ptr, row, col, valid, x_stride, up_stride, VALUES, FORMAT_X, EXACT)
            y = weighed(y * root, weight_ptr, col, col < end, HAS_WEIGHT, ZERO_CENTERED)
            most = tl.maximum(most, tl.where(valid, y.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0))
    bits = tl.max(most, axis=1, keep_dims=True)  # [ROWS, 1]
    if SQUARE:
        bits = tl.zeros([ROWS, 1], dtype=tl.int32) + tl.max(bits, axis=0, keep_dims=True)
    if AMAX == "find":
        tl.store(amax_ptr + row, bits, mask=row < rows)
    else:
        if AMAX == "given":
            bits += tl.load(amax_ptr)
        amax = bits.to(tl.float32, bitcast=True)
        scale = tl.div_rn(amax, tl.zeros_like(amax) + largest)
        scale = tl.where(scale < _LEAST, _LEAST, scale)  # NaN passes
        inverse = tl.div_rn(tl.zeros_like(scale) + 1.0, scale)
        place = program // across * across if SQUARE else row * across
        place = place + program % across + tl.zeros([ROWS, 1], dtype=tl.int64)
        if AMAX == "given":
            tl.store(scale_ptr + row * 0, scale, mask=row == 0)
        elif SQUARE:
            tl.store(scale_ptr + place, scale, mask=tl.arange(0, ROWS)[:, None] == 0)
        else:
            tl.store(scale_ptr + place, scale, mask=row < rows)
        for start in range(0, each, COLS):
            col = first + start + lane
            valid = (row < rows) & (col < end) & (start + lane < each)
            y = values(x_ptr, up_ptr, row, col, valid, x_stride, up_stride, VALUES, FORMAT_X, EXACT)
            y = weighed(y * root, weight_ptr, col, col < end, HAS_WEIGHT, ZERO_CENTERED) * inverse
            if FORMAT == "i8":
                y = tl.where(y == y, y, 0.0)
                code = ((y + ROUNDER) - ROUNDER).to(tl.int8)
            else:
                LARGEST: tl.constexpr = 448.0 if FORMAT == "e4m3" else 57344.0
                y = tl.where(y > LARGEST, LARGEST, y)  # NaN passes
                y = tl.where(y < -LARGEST, -LARGEST, y)
                code = encode(y, FORMAT, HARDWARE, q_ptr.dtype.element_ty)
            tl.store(q_ptr + row * cols + col, code, mask=valid)


def _run(
    x: Tensor,
    sharers: tuple[int, int],
    dtype: torch.dtype,
    up: Tensor | None = None,
    weight: Tensor | None = None,
    eps: float = 0.0,
    zero_centered: bool = False,
    kind: str = "",
) -> tuple[Tensor, Tensor]:
    q = torch.empty(x.shape, dtype=dtype, device=x.device)
    shape = reference.scale_shape(x.shape, sharers)
    scale = torch.empty(shape, dtype=torch.float32, device=x.device)
    if x.numel() == 0:
        return q, scale.fill_(LEAST_SCALE)
    layout = as_rows(x)
    x = x.contiguous() if layout.copied else x
    of_up = layout
    if up is not None:
        of_up = as_rows(up)
        up = up.contiguous() if of_up.copied else up
    rows, cols = layout.rows, layout.cols
    by_bits = interpreting() and x.dtype == torch.bfloat16
    given = [t.view(torch.int16) if by_bits else t for t in (x, x if up is None else up)]
    each = cols if sharers in (TENSOR, ROW) else GROUP
    tall = GROUP if sharers == BLOCK else max(1, min(TILE // GROUP, rows)) if each == GROUP else 1
    if kind == "norm" and each == GROUP:
        tall = 1  # a row has one root
    wide = min(triton.next_power_of_2(each), TILE)
    tall = triton.next_power_of_2(tall)
    codes = q.view(torch.uint8) if is_fp8(dtype) else q
    columns = x if weight is None else weight.contiguous()
    exact = x.dtype == torch.float32
    hardware = not interpreting() and torch.cuda.get_device_capability(x.device) >= (8, 9)
    amax = torch.empty(rows if sharers == TENSOR else 0, dtype=torch.int32, device=x.device)

    def launch(find: str, bits: Tensor) -> None:
        programs = triton.cdiv(rows, tall) * triton.cdiv(cols, each)
        quantize_kernel[(programs,)](
            *given, columns, codes, scale, bits, rows, cols, each, layout.stride, of_up.stride, eps,
            reference.largest(dtype), kind, "bf16" if by_bits else "", exact, weight is not None,
            zero_centered, sharers == BLOCK, find, DTYPE_NAMES[dtype], hardware, tall, wide,
            num_warps=8 if tall * wide >= TILE else 4, enable_fp_fusion=False,
        )  # fmt: skip

    with torch.cuda.device_of(x):
        if sharers == TENSOR:
            launch("find", amax)
            launch("given", amax.amax())
        else:
            launch("", amax)
    return q, scale


def quantize(
    x: Tensor, block_rows: int, block_cols: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    return _run(x, (block_rows, block_cols), dtype)


def rms_norm_quantize(
    x: Tensor,
    weight: Tensor | None,
    dtype: torch.dtype,
    group: int,
    eps: float,
    zero_centered: bool,
) -> tuple[Tensor, Tensor]:
    return _run(x, (1, group), dtype, None, weight, eps, zero_centered, "norm")


def silu_and_mul_quantize(
    x: Tensor, up: Tensor | None, dtype: torch.dtype, group: int
) -> tuple[Tensor, Tensor]:
    gate, factor = halves(x, up)
    return _run(gate, (1, group), dtype, factor, kind="silu")
