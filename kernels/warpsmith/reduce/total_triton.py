"""What the Triton twins of sums over all elements share: the last of their two launches."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from warpsmith.spec.layout import is_dense

#: Elements that a program loads together: several 16-byte loads a thread.
BLOCK = 4096
#: Times that a program does so, adding lane by lane. Long enough that partial sums are few, and
#: short enough that a lane's sum in f32 rounds seldom.
STEPS = 8
#: Partial sums that the last launch loads together.
PARTIALS = 1024


@triton.jit
def total_kernel(partial_ptr, out_ptr, count, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
    """One program adds up `count` partial sums, f64 (which the result ROUNDS) or int64."""
    lanes = tl.zeros([BLOCK], dtype=partial_ptr.dtype.element_ty)
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        lanes += tl.load(partial_ptr + at, mask=at < count, other=0)
    total = tl.sum(lanes, axis=0)
    if ROUNDS:
        tl.store(out_ptr, total.to(tl.float32).to(out_ptr.dtype.element_ty))
    else:
        tl.store(out_ptr, total)


def flat(x: Tensor) -> Tensor:
    """The elements of `x` as they lie in memory, of a copy where it has gaps or overlaps."""
    return x.as_strided((x.numel(),), (1,)) if is_dense(x) else x.contiguous().view(-1)


def programs(n: int) -> int:
    return triton.cdiv(n, BLOCK * STEPS)
