"""The Triton twins of the elementwise family: three kernels, and a function as their parameter.

flat    all operands alike and without gaps: one run of elements
tile    up to four dimensions at any strides, in tiles of the inner two
table   fp8 functions of one value, as a table of all 256 results

In the first two, what fp8 values are multiplied by is looked up in such a table too: the function
of a gate, and slopes.
"""

# mypy: ignore-errors
from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import is_fp8
from warpsmith.spec import layout
from warpsmith.spec.triton import functions
from warpsmith.spec.triton.convert import decode, encode
from warpsmith.spec.triton.functions import INTERPRETED

#: Four warps, each thread with two 16-byte accesses in flight per operand: small enough that many
#: blocks fit an SM. One access is 1 % faster where there is little to compute, and 3 % slower for
#: gelu.
NUM_WARPS = 4
PACKS = 2
THREADS = 32 * NUM_WARPS
#: A tile of operands that are not all contiguous along the rows, which the caches turn around.
SQUARE = (32, 64)
#: Dimensions that the tile kernel walks.
MAX_RANK = 4
#: Shorter runs of columns than this are not worth a block that fits them without a tail.
MIN_WHOLE = 256

#: Dtypes that travel as integers, which the kernels convert: their name, and the integers.
_INTEGERS = {torch.float8_e4m3fn: ("e4m3", torch.uint8), torch.float8_e5m2: ("e5m2", torch.uint8)}
if INTERPRETED.value:
    _INTEGERS[torch.bfloat16] = ("bf16", torch.int16)


# --- how a function meets its operands: values in, a tuple of values out --------------------------


@triton.jit
def unary(F: tl.constexpr, v, p, EXACT: tl.constexpr):
    return (F(v[0], p, EXACT),)


@triton.jit
def unary_backward(F: tl.constexpr, v, p, EXACT: tl.constexpr):
    return (F(v[0], v[1], p, EXACT),)


@triton.jit
def binary(F: tl.constexpr, v, p, EXACT: tl.constexpr):
    return (F(v[0], v[1]),)


@triton.jit
def ternary(F: tl.constexpr, v, p, EXACT: tl.constexpr):
    return (F(v[0], v[1], v[2]),)


@triton.jit
def biased(F: tl.constexpr, v, p, EXACT: tl.constexpr):
    return (F(v[0] + v[1], p, EXACT),)


@triton.jit
def biased_backward(F: tl.constexpr, v, p, EXACT: tl.constexpr):
    return (F(v[0], v[1] + v[2], p, EXACT),)


@triton.jit
def gated(F: tl.constexpr, v, p, EXACT: tl.constexpr):
    return (F(v[0], p, EXACT) * v[1],)


@triton.jit
def gated_backward(F: tl.constexpr, v, p, EXACT: tl.constexpr):
    """F is the function with its derivative; v is grad, gate, up."""
    value, slope = F(v[1], p, EXACT)
    return (v[0] * v[2] * slope, v[0] * value)


# --- functions of fp8 by table: of one operand the codes, and in place of the parameter the answers
# x: all numbers [256]; answers, slopes: float32 [256]; codes: uint8, grad and results: float32, of
# the shape of a tile, [BLOCK] or [BM, BN]


@triton.jit
def answers_of(F: tl.constexpr, x, p):
    return F(x, p, False)


@triton.jit
def slopes_of(F: tl.constexpr, x, p):
    return F(1.0, x, p, False)


@triton.jit
def look_up(codes, answers, EXACT: tl.constexpr):
    index = tl.reshape(codes, (codes.numel,)).to(tl.int32)
    return tl.reshape(tl.gather(answers, index, 0), codes.shape)


@triton.jit
def look_up_slope(grad, codes, slopes, EXACT: tl.constexpr):
    return grad * look_up(codes, slopes, EXACT)


@triton.jit
def look_up_both(codes, answers, EXACT: tl.constexpr):
    return look_up(codes, answers[0], EXACT), look_up(codes, answers[1], EXACT)


#: Gradients that are 0 where the function is flat, whatever `grad` is.
MASKING = (functions.relu_backward, functions.hardswish_backward, functions.hardshrink_backward)


class Table(NamedTuple):
    """Which operand stays as its codes, what is asked about all of them, and the function in whose
    place results are looked up.
    """

    operand: int
    answers: object
    look_up: object


TABLES = {
    unary_backward: Table(1, slopes_of, look_up_slope),
    gated: Table(0, answers_of, look_up),
    gated_backward: Table(1, answers_of, look_up_both),
}


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _load(
    pointers, offsets, masks, FORMAT: tl.constexpr, HARDWARE: tl.constexpr, CODES: tl.constexpr
):
    values = ()
    for k in tl.static_range(len(pointers)):
        value = tl.load(pointers[k] + offsets[k], mask=None if masks is None else masks[k])
        if k == CODES:
            values += (value,)
        else:
            values += (decode(value, FORMAT, HARDWARE),)
    return values


@triton.jit
def _numbers(FORMAT: tl.constexpr, HARDWARE: tl.constexpr):
    """All of fp8, in the order of their codes."""
    return decode(tl.arange(0, 256).to(tl.uint8), FORMAT, HARDWARE)


@triton.jit
def _store(pointers, offsets, values, mask, FORMAT: tl.constexpr, HARDWARE: tl.constexpr):
    for k in tl.static_range(len(pointers)):
        value = encode(values[k], FORMAT, HARDWARE, pointers[k].dtype.element_ty)
        tl.store(pointers[k] + offsets[k], value, mask=mask)


@triton.jit
def _apply(
    outputs,
    inputs,
    out_offsets,
    in_offsets,
    mask,
    in_masks,
    parameter,
    WRAP: tl.constexpr,
    F: tl.constexpr,
    FORMAT: tl.constexpr,
    HARDWARE: tl.constexpr,
    EXACT: tl.constexpr,
    CODES: tl.constexpr,
    ANSWERS: tl.constexpr,
    LOOK_UP: tl.constexpr,
):
    values = _load(inputs, in_offsets, in_masks, FORMAT, HARDWARE, CODES)
    if CODES is None:
        results = WRAP(F, values, parameter, EXACT)
    else:
        answers = ANSWERS(F, _numbers(FORMAT, HARDWARE), parameter)
        results = WRAP(LOOK_UP, values, answers, EXACT)
    _store(outputs, out_offsets, results, mask, FORMAT, HARDWARE)


@triton.jit
def _same(pointers, offsets):
    same = ()
    for _ in tl.static_range(len(pointers)):
        same += (offsets,)
    return same


@triton.jit
def map_flat_kernel(
    outputs,
    inputs,
    parameter,
    n,
    WRAP: tl.constexpr,
    F: tl.constexpr,
    FORMAT: tl.constexpr,
    HARDWARE: tl.constexpr,
    EXACT: tl.constexpr,
    CODES: tl.constexpr,
    ANSWERS: tl.constexpr,
    LOOK_UP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = start + tl.arange(0, BLOCK)  # [BLOCK]
    out_offsets, in_offsets = _same(outputs, offsets), _same(inputs, offsets)
    if start + BLOCK <= n:
        _apply(
            outputs, inputs, out_offsets, in_offsets, None, None, parameter, WRAP, F, FORMAT,
            HARDWARE, EXACT, CODES, ANSWERS, LOOK_UP,
        )  # fmt: skip
    else:
        in_range = offsets < n
        _apply(
            outputs, inputs, out_offsets, in_offsets, in_range, _same(inputs, in_range), parameter,
            WRAP, F, FORMAT, HARDWARE, EXACT, CODES, ANSWERS, LOOK_UP,
        )  # fmt: skip


@triton.jit
def _tile_offsets(strides, i0, i1, row, col, SHARED: tl.constexpr):
    """Per operand, [BM, BN]: where its elements of the tile lie; [1, BN] where rows share them."""
    offsets = ()
    for k in tl.static_range(len(strides)):
        s = strides[k]
        across = i0 * s[0] + i1 * s[1] + col[None, :] * s[3]
        if SHARED is not None and SHARED[k]:
            offsets += (across,)
        else:
            offsets += (across + row[:, None] * s[2],)
    return offsets


@triton.jit
def _tile_masks(pointers, in_range, in_cols, SHARED: tl.constexpr):
    """Per operand: in_range [BM, BN], or in_cols [1, BN] where rows share its elements."""
    masks = ()
    for k in tl.static_range(len(pointers)):
        if SHARED[k]:
            masks += (in_cols,)
        else:
            masks += (in_range,)
    return masks


@triton.jit
def map_tile_kernel(
    outputs,
    inputs,
    out_strides,
    in_strides,
    parameter,
    d1,
    rows,
    cols,
    WRAP: tl.constexpr,
    F: tl.constexpr,
    FORMAT: tl.constexpr,
    HARDWARE: tl.constexpr,
    EXACT: tl.constexpr,
    CODES: tl.constexpr,
    ANSWERS: tl.constexpr,
    LOOK_UP: tl.constexpr,
    SHARED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    pid = tl.program_id(0)
    col_blocks, row_blocks = tl.cdiv(cols, BN), tl.cdiv(rows, BM)
    rest = pid // col_blocks
    outer = rest // row_blocks
    first_col = (pid % col_blocks).to(tl.int64) * BN
    first_row = (rest % row_blocks).to(tl.int64) * BM
    i0, i1 = (outer // d1).to(tl.int64), (outer % d1).to(tl.int64)
    row = first_row + tl.arange(0, BM)  # [BM]
    col = first_col + tl.arange(0, BN)  # [BN]
    out_offsets = _tile_offsets(out_strides, i0, i1, row, col, None)
    in_offsets = _tile_offsets(in_strides, i0, i1, row, col, SHARED)
    if (first_row + BM <= rows) & (first_col + BN <= cols):
        _apply(
            outputs, inputs, out_offsets, in_offsets, None, None, parameter, WRAP, F, FORMAT,
            HARDWARE, EXACT, CODES, ANSWERS, LOOK_UP,
        )  # fmt: skip
    else:
        in_cols = (col < cols)[None, :]
        in_range = (row < rows)[:, None] & in_cols
        in_masks = _tile_masks(inputs, in_range, in_cols, SHARED)
        _apply(
            outputs, inputs, out_offsets, in_offsets, in_range, in_masks, parameter, WRAP, F,
            FORMAT, HARDWARE, EXACT, CODES, ANSWERS, LOOK_UP,
        )  # fmt: skip


@triton.jit
def map_table_kernel(
    output,
    input,
    parameter,
    n,
    F: tl.constexpr,
    FORMAT: tl.constexpr,
    HARDWARE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = start + tl.arange(0, BLOCK)  # [BLOCK]
    answers = answers_of(F, _numbers(FORMAT, HARDWARE), parameter)
    table = encode(answers, FORMAT, HARDWARE, tl.uint8)  # [256]
    if start + BLOCK <= n:
        index = tl.load(input + offsets).to(tl.int32)
        tl.store(output + offsets, tl.gather(table, index, 0))
    else:
        in_range = offsets < n
        index = tl.load(input + offsets, mask=in_range, other=0).to(tl.int32)
        tl.store(output + offsets, tl.gather(table, index, 0), mask=in_range)


# --- launches -------------------------------------------------------------------------------------


def _converts_in_hardware(x: Tensor) -> bool:
    return not INTERPRETED.value and torch.cuda.get_device_capability(x.device) >= (8, 9)


def _whole_columns(cols: int, block: int) -> int:
    """Columns of a tile: the largest power of two that leaves no tail, if that is wide enough."""
    whole = min(cols & -cols, block)
    return whole if whole >= MIN_WHOLE else min(triton.next_power_of_2(cols), block)


def _launch(
    wrap: Callable, function: object, outputs: list[Tensor], inputs: list[Tensor], p: float = 0.0
) -> None:
    """Runs `wrap` of `function` over the operands, which broadcast to the shape of the outputs."""
    x = outputs[0]
    if x.numel() == 0:
        return
    merged = layout.Layout.of([*outputs, *inputs])
    if merged.rank > MAX_RANK:
        return _launch_packed(wrap, function, outputs, inputs, p)
    fp8 = is_fp8(x.dtype)
    name, carrier = _INTEGERS.get(x.dtype, ("", x.dtype))
    table = TABLES.get(wrap) if fp8 and function not in MASKING else None
    packs = 1 if table else PACKS  # a table hides what one access leaves
    block = THREADS * packs * (layout.PACK_BYTES // x.element_size())
    of_all = {
        "F": function,
        "FORMAT": name,
        "HARDWARE": fp8 and _converts_in_hardware(x),
        "num_warps": NUM_WARPS,
        "enable_fp_fusion": True,
    }
    settings = of_all | {
        "WRAP": wrap,
        "EXACT": x.dtype == torch.float32,
        "CODES": table and table.operand,
        "ANSWERS": table and table.answers,
        "LOOK_UP": table and table.look_up,
    }
    outs, ins = (tuple(t.view(carrier) for t in ts) for ts in (outputs, inputs))
    with torch.cuda.device_of(x):
        if merged.rank <= 1 and merged.is_rows:
            n = merged.cols
            grid = (triton.cdiv(n, block),)
            if fp8 and wrap is unary:
                map_table_kernel[grid](outs[0], ins[0], p, n, BLOCK=block, **of_all)
            else:
                map_flat_kernel[grid](outs, ins, p, n, BLOCK=block, **settings)
            return
        missing = MAX_RANK - merged.rank
        d0, d1, rows, cols = (1,) * missing + merged.sizes
        strides = tuple((0,) * missing + s for s in merged.strides)
        shared = tuple(s[2] == 0 and rows > 1 for s in strides[len(outs) :])
        if merged.rank and any(s[-1] != 1 for s in merged.strides):
            bm, bn = SQUARE if rows > 1 else (1, SQUARE[0] * SQUARE[1])
        else:
            # Where rows share an operand: several of them, of one access of every thread each, and
            # fewer where a value takes more registers.
            shared_rows = 4 if len(ins) == 2 and x.element_size() < 4 and name != "e4m3" else 2
            wide, least = (block // packs, shared_rows) if any(shared) else (block, 1)
            bn = _whole_columns(cols, wide)
            bm = max(1, min(least * wide // bn, triton.next_power_of_2(rows)))
        grid = (d0 * d1 * triton.cdiv(rows, bm) * triton.cdiv(cols, bn),)
        map_tile_kernel[grid](
            outs,
            ins,
            strides[: len(outs)],
            strides[len(outs) :],
            p,
            d1,
            rows,
            cols,
            SHARED=shared,
            BM=bm,
            BN=bn,
            **settings,
        )


def _launch_packed(
    wrap: Callable, function: object, outputs: list[Tensor], inputs: list[Tensor], p: float
) -> None:
    """For more dimensions than the tile kernel walks: on contiguous copies of the operands."""
    shape = outputs[0].shape
    packed = [x.new_empty(shape) for x in outputs]
    _launch(wrap, function, packed, [x.expand(shape).contiguous() for x in inputs], p)
    for output, answer in zip(outputs, packed, strict=True):
        output.copy_(answer)


# --- the twins ------------------------------------------------------------------------------------

Twin = Callable[..., "Tensor | tuple[Tensor, Tensor]"]


def _identity(x: Tensor, parameter: float = 0.0) -> float:
    return parameter


def _unary(function: object, parameter_of: Callable[[Tensor, float], float] = _identity) -> Twin:
    def run(x: Tensor, *parameters: float) -> Tensor:  # what it is called differs
        out = layout.empty_like(x)
        _launch(unary, function, [out], [x], parameter_of(x, *parameters))
        return out

    return run


def _unary_backward(
    function: object, parameter_of: Callable[[Tensor, float], float] = _identity
) -> Twin:
    def run(grad: Tensor, x: Tensor, *parameters: float) -> Tensor:
        out = layout.empty_like(x)
        _launch(unary_backward, function, [out], [grad, x], parameter_of(x, *parameters))
        return out

    return run


def _threshold(x: Tensor, parameter: float) -> float:
    """Rounded to the dtype of the values that are compared with it, as in PyTorch, which does not
    compute in fp8. Beyond all numbers of the dtype it stays what it is.
    """
    if x.element_size() == 1:
        return parameter
    rounded = torch.tensor(parameter, dtype=x.dtype, device="cpu").item()
    return rounded if math.isfinite(rounded) else parameter


def _broadcasting(wrap: Callable, function: object) -> Twin:
    def run(*inputs: Tensor) -> Tensor:
        out = layout.empty_for(torch.broadcast_shapes(*(x.shape for x in inputs)), *inputs)
        _launch(wrap, function, [out], list(inputs))
        return out

    return run


def _biased(function: object) -> Twin:
    def run(x: Tensor, bias: Tensor) -> Tensor:
        out = layout.empty_like(x)
        _launch(biased, function, [out], [x, bias])
        return out

    return run


def _biased_backward(function: object) -> Twin:
    def run(grad: Tensor, x: Tensor, bias: Tensor) -> Tensor:
        out = layout.empty_like(x)
        _launch(biased_backward, function, [out], [grad, x, bias])
        return out

    return run


def _gated(function: object) -> Twin:
    def run(x: Tensor, up: Tensor | None = None) -> Tensor:
        if up is not None:
            out, gate = layout.empty_like(x), x
        else:
            gate, up = layout.halves(x)
            out = x.new_empty(gate.shape)
        _launch(gated, function, [out], [gate, up])
        return out

    return run


def _gated_backward(function: object) -> Twin:
    def run(grad: Tensor, x: Tensor, up: Tensor | None = None) -> tuple[Tensor, Tensor]:
        dx = layout.empty_like(x)
        if up is not None:
            d_up = layout.empty_like(up)
            _launch(gated_backward, function, [dx, d_up], [grad, x, up])
            return dx, d_up
        _launch(gated_backward, function, list(layout.halves(dx)), [grad, *layout.halves(x)])
        return dx, x.new_empty(0)

    return run


relu, relu_backward = _unary(functions.relu), _unary_backward(functions.relu_backward)
sigmoid = _unary(functions.sigmoid)
sigmoid_backward = _unary_backward(functions.sigmoid_backward)
elu, elu_backward = _unary(functions.elu), _unary_backward(functions.elu_backward)
gelu, gelu_backward = _unary(functions.gelu), _unary_backward(functions.gelu_backward)
gelu_tanh = _unary(functions.gelu_tanh)
gelu_tanh_backward = _unary_backward(functions.gelu_tanh_backward)
silu, silu_backward = _unary(functions.silu), _unary_backward(functions.silu_backward)
hardswish = _unary(functions.hardswish)
hardswish_backward = _unary_backward(functions.hardswish_backward)
hardshrink = _unary(functions.hardshrink, _threshold)
hardshrink_backward = _unary_backward(functions.hardshrink_backward, _threshold)
quick_gelu = _unary(functions.quick_gelu)
quick_gelu_backward = _unary_backward(functions.quick_gelu_backward)
mish, mish_backward = _unary(functions.mish), _unary_backward(functions.mish_backward)

add, mul = _broadcasting(binary, functions.add), _broadcasting(binary, functions.mul)
mul_add = _broadcasting(ternary, functions.mul_add)

bias_gelu, bias_gelu_tanh = _biased(functions.gelu), _biased(functions.gelu_tanh)
bias_gelu_backward = _biased_backward(functions.gelu_backward)
bias_gelu_tanh_backward = _biased_backward(functions.gelu_tanh_backward)

silu_and_mul, gelu_and_mul = _gated(functions.silu), _gated(functions.gelu)
gelu_tanh_and_mul = _gated(functions.gelu_tanh)
silu_and_mul_backward = _gated_backward(functions.silu_and_slope)
gelu_and_mul_backward = _gated_backward(functions.gelu_and_slope)
gelu_tanh_and_mul_backward = _gated_backward(functions.gelu_tanh_and_slope)
