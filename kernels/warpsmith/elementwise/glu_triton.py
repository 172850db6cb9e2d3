"""The gated linear unit in Triton, forward and backward."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import is_fp8
from warpsmith.spec.triton.functions import logistic, logistic_and_slope

#: 16 bytes of bf16 a thread and load at 4 warps.
BLOCK = 1024


@triton.jit
def positions(n, inner, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """The elements of a program, which of them exist, and where their first halves lie in x."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    i = start + tl.arange(0, BLOCK)
    # one division of 64 bits for the program, then of what fits 32
    row = start // inner
    col = (start - row * inner).to(INDEX) + tl.arange(0, BLOCK)
    further = col // inner
    return i, i < n, (row + further) * inner * 2 + (col - further * inner)


@triton.jit
def glu_kernel(
    x_ptr,  # [outer, 2, inner]
    y_ptr,  # [outer, inner]
    n,
    inner,
    EXACT: tl.constexpr,
    INDEX: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i, there, at = positions(n, inner, BLOCK, INDEX)
    a = tl.load(x_ptr + at, mask=there, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + at + inner, mask=there, other=0.0).to(tl.float32)
    tl.store(y_ptr + i, (a * logistic(b, EXACT)).to(y_ptr.dtype.element_ty), mask=there)


@triton.jit
def glu_backward_kernel(
    grad_ptr,  # [outer, inner]
    x_ptr,  # [outer, 2, inner]
    dx_ptr,  # [outer, 2, inner]
    n,
    inner,
    EXACT: tl.constexpr,
    INDEX: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i, there, at = positions(n, inner, BLOCK, INDEX)
    grad = tl.load(grad_ptr + i, mask=there, other=0.0).to(tl.float32)
    a = tl.load(x_ptr + at, mask=there, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + at + inner, mask=there, other=0.0).to(tl.float32)
    s, slope = logistic_and_slope(b, EXACT)
    db = a * (grad * slope)  # no product of two large ones
    tl.store(dx_ptr + at, (grad * s).to(dx_ptr.dtype.element_ty), mask=there)
    tl.store(dx_ptr + at + inner, db.to(dx_ptr.dtype.element_ty), mask=there)


def _around(x: Tensor, dim: int) -> int:
    """The size of a half and of what comes after the dimension."""
    return x.shape[dim % x.dim() :].numel() // 2


def _index(inner: int) -> tl.dtype:
    return tl.int32 if inner < 2**31 - BLOCK else tl.int64


def glu(x: Tensor, dim: int) -> Tensor:
    if is_fp8(x.dtype):
        return glu(x.float(), dim).to(x.dtype)
    shape = list(x.shape)
    shape[dim] //= 2
    y = torch.empty(shape, dtype=x.dtype, device=x.device)
    n, inner = y.numel(), _around(x, dim)
    if n:
        with torch.cuda.device_of(x):
            glu_kernel[(triton.cdiv(n, BLOCK),)](
                x.contiguous(), y, n, inner,
                EXACT=x.dtype == torch.float32, INDEX=_index(inner), BLOCK=BLOCK,
            )  # fmt: skip
    return y


def glu_backward(grad: Tensor, x: Tensor, dim: int) -> Tensor:
    if is_fp8(x.dtype):
        return glu_backward(grad.float(), x.float(), dim).to(x.dtype)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    n, inner = grad.numel(), _around(x, dim)
    if n:
        with torch.cuda.device_of(x):
            glu_backward_kernel[(triton.cdiv(n, BLOCK),)](
                grad.contiguous(), x.contiguous(), dx, n, inner,
                EXACT=x.dtype == torch.float32, INDEX=_index(inner), BLOCK=BLOCK,
            )  # fmt: skip
    return dx
