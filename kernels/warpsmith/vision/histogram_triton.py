"""Histograms in Triton: every value adds one to its bin in global memory."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def histogram_kernel(
    x_ptr,  # [n]
    edges_ptr,  # [bins + 1]; unused for integers
    count_ptr,  # [bins]
    n,
    bins,
    UNSIGNED: tl.constexpr,
    STEPS: tl.constexpr,  # of the search among edges; 0 for integers
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = i < n
    x = tl.load(x_ptr + i, mask=there, other=0)
    if STEPS == 0:
        bin = x.to(tl.int64)
        if UNSIGNED:
            bin = bin & 255
        there = there & (bin >= 0) & (bin < bins)
    else:
        first, last = tl.load(edges_ptr), tl.load(edges_ptr + bins)
        there = there & (x >= first) & (x <= last)
        low = tl.zeros([BLOCK], dtype=tl.int64)
        high = low + bins
        for _ in range(STEPS):
            middle = (low + high) // 2
            above = tl.load(edges_ptr + middle) <= x
            narrow = high - low > 1
            low = tl.where(narrow & above, middle, low)
            high = tl.where(narrow & (above == 0), middle, high)
        bin = tl.where(x == last, bins - 1, low)
    tl.atomic_add(count_ptr + bin, tl.full([BLOCK], 1, tl.int64), mask=there)


def histogram(x: Tensor, bins: int, edges: Tensor | None, is_unsigned: bool) -> Tensor:
    counts = torch.zeros(bins, dtype=torch.int64, device=x.device)
    if x.numel() == 0:
        return counts
    if edges is not None:  # narrower dtypes are compared as they are, in f32
        x, edges = x.float(), edges.float().contiguous()
    x = x.contiguous()
    steps = 0 if edges is None else bins.bit_length() + 1
    unsigned = is_unsigned and x.dtype == torch.int8
    with torch.cuda.device(x.device if x.device.type == "cuda" else -1):
        histogram_kernel[(triton.cdiv(x.numel(), BLOCK),)](
            x, counts if edges is None else edges, counts, x.numel(), bins, unsigned, steps, BLOCK,
            num_warps=4,
        )  # fmt: skip
    return counts
