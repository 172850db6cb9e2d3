"""Weighted sum in Triton."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.catalogue import is_fp8
from warpsmith.elementwise import layout

#: 16 bytes of bf16 a thread and load at 4 warps; more terms than two are enough to wait for.
BLOCK = 1024


@triton.jit
def weighted_sum_kernel(xs, weights, y_ptr, n, BLOCK: tl.constexpr):
    """xs: a tuple of pointers to [n]; weights: as many numbers."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = i < n
    total = weights[0] * tl.load(xs[0] + i, mask=there, other=0.0).to(tl.float32)
    for k in tl.static_range(1, len(xs)):
        total += weights[k] * tl.load(xs[k] + i, mask=there, other=0.0).to(tl.float32)
    tl.store(y_ptr + i, total.to(y_ptr.dtype.element_ty), mask=there)


def weighted_sum_forward(x0: Tensor, weights: Sequence[float], *others: Tensor | None) -> Tensor:
    if is_fp8(x0.dtype):
        wide = (None if x is None else x.float() for x in others)
        return weighted_sum_forward(x0.float(), weights, *wide).to(x0.dtype)
    terms = [x0, *(x for x in others if x is not None)]
    alike = layout.is_dense(x0) and all(x.stride() == x0.stride() for x in terms)
    y = layout.empty_like(x0) if alike else x0.new_empty(x0.shape)
    n = y.numel()
    if n:
        read = terms if alike else [x.contiguous() for x in terms]
        with torch.cuda.device_of(x0):
            grid = (triton.cdiv(n, BLOCK),)
            weighted_sum_kernel[grid](tuple(read), tuple(map(float, weights)), y, n, BLOCK)
    return y
