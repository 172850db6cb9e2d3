"""Weighted sum in Triton."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import is_fp8
from warpsmith.elementwise.flat import alike
from warpsmith.spec import layout

#: 16 bytes of bf16 a thread and term at 4 warps.
BLOCK = 1024


@triton.jit
def weighted_sum_kernel(
    xs,  # pointers to [n], a tuple
    weights,  # as many numbers
    y_ptr,  # [n]
    n,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = i < n
    total = weights[0] * tl.load(xs[0] + i, mask=there, other=0.0).to(tl.float32)
    for k in tl.static_range(1, len(xs)):
        total += weights[k] * tl.load(xs[k] + i, mask=there, other=0.0).to(tl.float32)
    tl.store(y_ptr + i, total.to(y_ptr.dtype.element_ty), mask=there)


def weighted_sum_forward(x0: Tensor, weights: Sequence[float], *others: Tensor | None) -> Tensor:
    terms = [x0, *(x for x in others if x is not None)]
    same = alike(terms)
    y = layout.empty_like(x0) if same else x0.new_empty(x0.shape)
    if is_fp8(x0.dtype):
        return y.copy_(weighted_sum_forward(x0.float(), weights, *(x.float() for x in terms[1:])))
    n = y.numel()
    if n:
        read = terms if same else [x.contiguous() for x in terms]
        with torch.cuda.device_of(x0):
            grid = (triton.cdiv(n, BLOCK),)
            weighted_sum_kernel[grid](tuple(read), tuple(map(float, weights)), y, n, BLOCK)
    return y
