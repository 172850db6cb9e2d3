"""Queries, keys and values taken apart and put together, in Triton."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import is_fp8

BLOCK = 1024


@triton.jit
def qkv_kernel(
    packed_ptr,  # [b, s, heads + 2 kv_heads, d]
    bias_ptr,
    q_ptr,  # [b, heads, s, d]
    k_ptr,  # [b, kv_heads, s, d]
    v_ptr,
    n, tokens, heads, kv_heads, d,
    UNPACK: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = i < n
    line = i // d
    col = i - line * d
    token = line // (heads + 2 * kv_heads)
    head = line - token * (heads + 2 * kv_heads)
    batch = token // tokens
    token -= batch * tokens
    in_q = there & (head < heads)
    in_k = there & (head >= heads) & (head < heads + kv_heads)
    in_v = there & (head >= heads + kv_heads)
    q_at = ((batch * heads + head) * tokens + token) * d + col
    k_at = ((batch * kv_heads + head - heads) * tokens + token) * d + col
    v_at = ((batch * kv_heads + head - heads - kv_heads) * tokens + token) * d + col
    if UNPACK:
        x = tl.load(packed_ptr + i, mask=there, other=0.0)
        if BIAS:
            bias = tl.load(bias_ptr + head * d + col, mask=there, other=0.0)
            x = (x.to(tl.float32) + bias.to(tl.float32)).to(packed_ptr.dtype.element_ty)
        tl.store(q_ptr + q_at, x, mask=in_q)
        tl.store(k_ptr + k_at, x, mask=in_k)
        tl.store(v_ptr + v_at, x, mask=in_v)
    else:
        x = tl.load(q_ptr + q_at, mask=in_q, other=0.0)
        x = tl.where(in_k, tl.load(k_ptr + k_at, mask=in_k, other=0.0), x)
        x = tl.where(in_v, tl.load(v_ptr + v_at, mask=in_v, other=0.0), x)
        tl.store(packed_ptr + i, x, mask=there)


def _launch(x: Tensor, bias: Tensor | None, q: Tensor, k: Tensor, v: Tensor, unpack: bool) -> None:
    if x.numel() == 0:
        return
    with torch.cuda.device(x.device if x.device.type == "cuda" else -1):
        qkv_kernel[(triton.cdiv(x.numel(), BLOCK),)](
            x, x if bias is None else bias, q, k, v, x.numel(), q.shape[2], q.shape[1], k.shape[1],
            q.shape[3], unpack, bias is not None, BLOCK, num_warps=4,
        )  # fmt: skip


def unpack_qkv(
    x: Tensor, heads: int, kv_heads: int, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    if is_fp8(x.dtype):
        wide = unpack_qkv(x.float(), heads, kv_heads, None if bias is None else bias.float())
        return wide[0].to(x.dtype), wide[1].to(x.dtype), wide[2].to(x.dtype)
    b, s, cols = x.shape
    d = cols // (heads + 2 * kv_heads)
    q = x.new_empty((b, heads, s, d))
    k, v = (x.new_empty((b, kv_heads, s, d)) for _ in range(2))
    _launch(x.contiguous(), None if bias is None else bias.contiguous(), q, k, v, True)
    return q, k, v


def pack_qkv(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if is_fp8(q.dtype):
        return pack_qkv(q.float(), k.float(), v.float()).to(q.dtype)
    b, heads, s, d = q.shape
    x = q.new_empty((b, s, (heads + 2 * k.shape[1]) * d))
    _launch(x, None, q.contiguous(), k.contiguous(), v.contiguous(), False)
    return x
