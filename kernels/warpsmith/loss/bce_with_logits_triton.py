"""Binary cross-entropy with logits in Triton, forward and backward."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import is_fp8
from warpsmith.loss.checks import wide_dtype

NONE, MEAN = 0, 1
# 16 bytes of bf16 a thread and load at 4 warps, twice.
BLOCK = 2048
# Programs that sum: enough to fill a GPU, few enough that their sums cost nothing.
MOST_PROGRAMS = 2048


@triton.jit
def log1p_unit(e):
    """log(1 + e) for e in [0, 1], relative error 2e-7."""
    p = e * -0.00324402470 + 0.0198514629
    p = p * e - 0.0569595397
    p = p * e + 0.106036559
    p = p * e - 0.153055936
    p = p * e + 0.196759403
    p = p * e - 0.249541342
    p = p * e + 0.333299637
    p = p * e - 0.499999017
    p = p * e + 1.0
    return p * e


@triton.jit
def bce_with_logits_forward_kernel(
    x_ptr,  # [n]
    target_ptr,  # [n]
    loss_ptr,  # [n] f32, or [programs] f32 where SUMS
    n,
    SUMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    total = tl.zeros([BLOCK], dtype=tl.float32)
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    for start in range(tl.program_id(0).to(tl.int64) * BLOCK, n, step):
        i = start + tl.arange(0, BLOCK)
        there = i < n
        x = tl.load(x_ptr + i, mask=there, other=0.0).to(tl.float32)
        t = tl.load(target_ptr + i, mask=there, other=0.0).to(tl.float32)
        least = tl.where(x > 0.0, 0.0, x)  # NaN passes
        loss = (1.0 - t) * x - (least - log1p_unit(tl.exp(-tl.abs(x))))
        if SUMS:
            total += tl.where(there, loss, 0.0)
        else:
            tl.store(loss_ptr + i, loss, mask=there)
    if SUMS:
        tl.store(loss_ptr + tl.program_id(0), tl.sum(total, axis=0))


@triton.jit
def bce_with_logits_backward_kernel(
    x_ptr,  # [n]
    target_ptr,  # [n]
    grad_ptr,  # [n], or [1] where SHARED
    dx_ptr,  # [n]
    n,
    scale,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = i < n
    x = tl.load(x_ptr + i, mask=there, other=0.0).to(tl.float32)
    t = tl.load(target_ptr + i, mask=there, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + (i * 0 if SHARED else i), mask=there, other=0.0)
    dx = (1.0 / (1.0 + tl.exp(-x)) - t) * (grad * scale)
    tl.store(dx_ptr + i, dx.to(dx_ptr.dtype.element_ty), mask=there)


def bce_with_logits_forward(x: Tensor, target: Tensor, reduction: int) -> Tensor:
    if is_fp8(x.dtype):
        return bce_with_logits_forward(x.float(), target.float(), reduction)
    n, sums = x.numel(), reduction != NONE
    programs = triton.cdiv(n, BLOCK)
    if sums:
        programs = min(programs, MOST_PROGRAMS)
    shape = (programs,) if sums else x.shape
    loss = torch.empty(shape, dtype=wide_dtype(x), device=x.device)
    if n:
        with torch.cuda.device_of(x):
            bce_with_logits_forward_kernel[(programs,)](
                x.contiguous(), target.contiguous(), loss, n, sums, BLOCK
            )
    if not sums:
        return loss
    total = loss.double().sum()
    return (total / n if reduction == MEAN else total).to(loss.dtype)


def bce_with_logits_backward(x: Tensor, target: Tensor, grad: Tensor, scale: float) -> Tensor:
    if is_fp8(x.dtype):
        return bce_with_logits_backward(x.float(), target.float(), grad, scale).to(x.dtype)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    n = x.numel()
    if n:
        with torch.cuda.device_of(x):
            bce_with_logits_backward_kernel[(triton.cdiv(n, BLOCK),)](
                x.contiguous(), target.contiguous(), grad.contiguous(), dx, n, scale,
                grad.dim() == 0, BLOCK,
            )  # fmt: skip
    return dx
