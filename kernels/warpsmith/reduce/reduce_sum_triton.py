"""The sum of all elements in Triton: partial sums, then their sum."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import is_fp8
from warpsmith.core.twins import interpreting
from warpsmith.reduce.reduce_sum import result_dtype
from warpsmith.reduce.total_triton import BLOCK, PARTIALS, STEPS, flat, programs, total_kernel
from warpsmith.spec.triton.convert import decode

#: fp8 travels as bytes.
_FORMATS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}


@triton.jit
def reduce_sum_kernel(
    x_ptr,  # [n]
    partial_ptr,  # [programs], f64 or int64
    n,
    INTEGER: tl.constexpr,
    FORMAT: tl.constexpr,
    HARDWARE: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Each program adds STEPS blocks lane by lane, then its lanes."""
    program = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    lanes = tl.zeros([BLOCK], dtype=tl.int64 if INTEGER else tl.float32)
    for step in range(STEPS):
        start = (program * STEPS + step) * BLOCK
        left = tl.minimum(n - start, BLOCK).to(tl.int32)
        x = tl.load(x_ptr + start + at, mask=at < left, other=0)
        if INTEGER:
            lanes += x.to(tl.int64)
        else:
            lanes += decode(x, FORMAT, HARDWARE)
    tl.store(partial_ptr + program, tl.sum(lanes.to(partial_ptr.dtype.element_ty), axis=0))


def reduce_sum(x: Tensor) -> Tensor:
    out = torch.empty((), dtype=result_dtype(x), device=x.device)
    if x.numel() == 0:
        return out.zero_()
    values = flat(x)
    if is_fp8(x.dtype):
        values = values.view(torch.uint8)
    hardware = not interpreting() and torch.cuda.get_device_capability(x.device) >= (8, 9)
    integer = not x.is_floating_point()
    wide = torch.int64 if integer else torch.float64
    partial = torch.empty(programs(x.numel()), dtype=wide, device=x.device)
    with torch.cuda.device_of(x):
        reduce_sum_kernel[(len(partial),)](
            values,
            partial,
            x.numel(),
            INTEGER=integer,
            FORMAT=_FORMATS.get(x.dtype, ""),
            HARDWARE=hardware,
            BLOCK=BLOCK,
            STEPS=STEPS,
        )
        total_kernel[(1,)](partial, out, len(partial), ROUNDS=not integer, BLOCK=PARTIALS)
    return out
