"""Joining two attentions of the same queries in Triton."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.attention.merge_attention_states import _like


@triton.jit
def merge_attention_states_kernel(
    a_ptr,  # [batch, m, heads, d]
    b_ptr,
    out_ptr,
    lse_a_ptr,  # [batch, heads, m], contiguous
    lse_b_ptr,
    lse_ptr,
    m,
    heads,
    d,
    a_batch,
    a_token,
    a_head,
    b_batch,
    b_token,
    b_head,
    out_batch,
    out_token,
    out_head,
    BLOCK: tl.constexpr,
):
    """A row per program."""
    row = tl.program_id(0).to(tl.int64)  # of [batch, heads, m]
    sequence = row // (m * heads)
    head = row // m % heads
    token = row % m
    lse_a = tl.load(lse_a_ptr + row)
    lse_b = tl.load(lse_b_ptr + row)
    larger = tl.where(lse_a > lse_b, lse_a, lse_b)  # NaN spreads
    top = tl.where(larger == -float("inf"), 0.0, larger)
    a = tl.exp(lse_a - top)
    b = tl.exp(lse_b - top)
    total = a + b
    tl.store(lse_ptr + row, top + tl.log(total))
    divisor = tl.where(total == 0.0, 1.0, total)
    a = tl.div_rn(a, divisor)
    b = tl.div_rn(b, divisor)
    a_ptr += sequence * a_batch + token * a_token + head * a_head
    b_ptr += sequence * b_batch + token * b_token + head * b_head
    out_ptr += sequence * out_batch + token * out_token + head * out_head
    for start in range(0, d, BLOCK):
        column = start + tl.arange(0, BLOCK)
        within = column < d
        x = tl.load(a_ptr + column, mask=within, other=0.0).to(tl.float32)
        y = tl.load(b_ptr + column, mask=within, other=0.0).to(tl.float32)
        merged = tl.where(a == 0.0, 0.0, a * x) + tl.where(b == 0.0, 0.0, b * y)
        tl.store(out_ptr + column, merged.to(out_ptr.dtype.element_ty), mask=within)


def merge_attention_states(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(_like(out_a))
    lse = torch.empty(lse_a.shape, dtype=lse_a.dtype, device=lse_a.device)
    if lse.numel() == 0:
        return out, lse
    a, b = (x if x.stride(3) == 1 or x.shape[3] <= 1 else x.contiguous() for x in (out_a, out_b))
    batch, m, heads, d = out.shape
    with torch.cuda.device_of(a):
        merge_attention_states_kernel[(batch * m * heads,)](
            a,
            b,
            out,
            lse_a.contiguous(),
            lse_b.contiguous(),
            lse,
            m,
            heads,
            d,
            *a.stride()[:3],
            *b.stride()[:3],
            *out.stride()[:3],
            BLOCK=min(1024, triton.next_power_of_2(max(d, 1))),
        )
    return out, lse
