"""One value in the place of those that a mask names, in Triton."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def masked_fill_kernel(
    x_ptr,  # [n]
    y_ptr,  # [n]
    mask_ptr,  # [n], bytes
    filled_ptr,  # [1]
    n,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < n
    x = tl.load(x_ptr + at, mask=there, other=0)
    masked = tl.load(mask_ptr + at, mask=there, other=0) != 0
    filled = tl.load(filled_ptr + tl.zeros([BLOCK], dtype=tl.int64))
    tl.store(y_ptr + at, tl.where(masked, filled, x), mask=there)


def masked_fill(x: Tensor, mask: Tensor, value: float) -> Tensor:
    """As integers of one size: what is left keeps its bits."""
    y = x.new_empty(x.shape)
    if x.numel() == 0:
        return y
    same = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    given, out = x.contiguous().view(-1).view(same), y.view(-1).view(same)
    masked = mask.expand(x.shape).contiguous().view(-1).view(torch.uint8)
    filled = torch.full((1,), value, dtype=x.dtype, device=x.device).view(same)
    with torch.cuda.device_of(x):
        masked_fill_kernel[(triton.cdiv(x.numel(), BLOCK),)](
            given, out, masked, filled, x.numel(), BLOCK=BLOCK
        )
    return y
