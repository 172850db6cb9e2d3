"""The dot product in Triton: partial sums, then their sum."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.reduce.total_triton import BLOCK, PARTIALS, STEPS, flat, programs, total_kernel


@triton.jit
def dot_kernel(
    x_ptr,  # [n]
    y_ptr,  # [n]
    partial_ptr,  # [programs], f64
    n,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Each program adds STEPS blocks of products lane by lane, then its lanes."""
    program = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    lanes = tl.zeros([BLOCK], dtype=tl.float32)
    for step in range(STEPS):
        start = (program * STEPS + step) * BLOCK
        left = tl.minimum(n - start, BLOCK).to(tl.int32)
        x = tl.load(x_ptr + start + at, mask=at < left, other=0).to(tl.float32)
        y = tl.load(y_ptr + start + at, mask=at < left, other=0).to(tl.float32)
        lanes += x * y
    tl.store(partial_ptr + program, tl.sum(lanes.to(tl.float64), axis=0))


def dot(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty((), dtype=x.dtype, device=x.device)
    n = x.numel()
    if n == 0:
        return out.zero_()
    partial = torch.empty(programs(n), dtype=torch.float64, device=x.device)
    with torch.cuda.device_of(x):
        dot_kernel[(len(partial),)](flat(x), flat(y), partial, n, BLOCK=BLOCK, STEPS=STEPS)
        total_kernel[(1,)](partial, out, len(partial), ROUNDS=True, BLOCK=PARTIALS)
    return out
