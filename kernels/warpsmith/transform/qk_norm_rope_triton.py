"""RMS norm of heads and rotary positions in Triton, and their gradients."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.spec.memory import empty_rows_like, has_unit_columns, step
from warpsmith.spec.triton.rotary import angle_tables

#: Tokens and heads whose share of a weight's gradient one program adds up.
CHUNK = 64


@triton.jit
def head_columns(pairs, d, INTERLEAVED: tl.constexpr, COLUMNS: tl.constexpr):
    """Columns of a head, which pair and which side of it each one is, and its partner."""
    column = tl.arange(0, COLUMNS)
    turning = column < 2 * pairs
    if INTERLEAVED:
        pair = column // 2
        second = column % 2 == 1
        partner = tl.where(second, column - 1, column + 1)
    else:
        second = column >= pairs
        pair = tl.where(second, column - pairs, column)
        partner = tl.where(second, column - pairs, column + pairs)
    return column, turning, pair, second, tl.where(turning, partner, column)


@triton.jit
def qk_norm_rope_kernel(
    x_ptr,  # [batch, tokens, heads, d]
    y_ptr,  # [batch, tokens, heads, d]
    weight_ptr,  # [d]
    cos_ptr,  # [batch or 1, tokens, pairs] f32
    sin_ptr,  # [batch or 1, tokens, pairs] f32
    tokens,
    heads,
    d,
    x_batch,
    x_token,
    x_head,
    y_batch,
    y_token,
    y_head,
    cos_batch,
    pairs,
    eps,
    INTERLEAVED: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A token per program."""
    program = tl.program_id(0).to(tl.int64)
    batch = program // tokens
    token = program - batch * tokens
    column, turning, pair, second, partner = head_columns(pairs, d, INTERLEAVED, COLUMNS)
    there = column < d
    angle = batch * cos_batch + token * pairs + pair
    cosine = tl.load(cos_ptr + angle, mask=turning, other=1.0)
    sine = tl.load(sin_ptr + angle, mask=turning, other=0.0)
    sine = tl.where(second, sine, -sine)
    weight = tl.load(weight_ptr + column, mask=there, other=0.0).to(tl.float32)
    of_partner = tl.load(weight_ptr + partner, mask=there, other=0.0).to(tl.float32)
    for head in range(heads):
        x = x_ptr + batch * x_batch + token * x_token + head * x_head
        own = tl.load(x + column, mask=there, other=0.0).to(tl.float32)
        other = tl.load(x + partner, mask=there, other=0.0).to(tl.float32)
        rstd = 1.0 / tl.sqrt(tl.sum(own * own, axis=0) / d + eps)
        normal = own * rstd * weight
        # selected: where nothing turns, 0 times infinity would be added
        turned = tl.where(turning, normal * cosine + other * rstd * of_partner * sine, normal)
        y = y_ptr + batch * y_batch + token * y_token + head * y_head
        tl.store(y + column, turned.to(y_ptr.dtype.element_ty), mask=there)


@triton.jit
def qk_norm_rope_backward_kernel(
    grad_ptr,  # [batch, tokens, heads, d]
    x_ptr,  # [batch, tokens, heads, d]
    dx_ptr,  # [batch, tokens, heads, d]
    weight_ptr,  # [d]
    partial_ptr,  # [programs, d] f32
    cos_ptr,  # [batch or 1, tokens, pairs] f32
    sin_ptr,  # [batch or 1, tokens, pairs] f32
    tokens,
    rows,
    heads,
    d,
    g_batch,
    g_token,
    g_head,
    x_batch,
    x_token,
    x_head,
    y_batch,
    y_token,
    y_head,
    cos_batch,
    pairs,
    eps,
    INTERLEAVED: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Some heads of tokens per program, one after the other."""
    column, turning, pair, second, partner = head_columns(pairs, d, INTERLEAVED, COLUMNS)
    there = column < d
    weight = tl.load(weight_ptr + column, mask=there, other=0.0).to(tl.float32)
    total = tl.zeros([COLUMNS], dtype=tl.float32)
    first = tl.program_id(0).to(tl.int64) * CHUNK
    for i in range(CHUNK):
        row = first + i
        # whole blocks of one value: the interpreter takes no mask that is a number
        left = row + tl.zeros([COLUMNS], dtype=tl.int64) < rows
        here = there & left
        place = row // heads
        head = row - place * heads
        batch = place // tokens
        token = place - batch * tokens
        angle = batch * cos_batch + token * pairs + pair
        cosine = tl.load(cos_ptr + angle, mask=turning & left, other=1.0)
        sine = tl.load(sin_ptr + angle, mask=turning & left, other=0.0)
        sine = tl.where(second, -sine, sine)  # the other way round
        grad = grad_ptr + batch * g_batch + token * g_token + head * g_head
        x = x_ptr + batch * x_batch + token * x_token + head * x_head
        g = tl.load(grad + column, mask=here, other=0.0).to(tl.float32) * cosine
        other = tl.load(grad + partner, mask=here, other=0.0).to(tl.float32)
        g += tl.where(turning, other * sine, 0.0)
        own = tl.load(x + column, mask=here, other=0.0).to(tl.float32)
        rstd = 1.0 / tl.sqrt(tl.sum(own * own, axis=0) / d + eps)
        normal = own * rstd
        scaled = g * weight
        mean = tl.sum(normal * scaled, axis=0) / d
        dx = dx_ptr + batch * y_batch + token * y_token + head * y_head
        value = (scaled - normal * mean) * rstd
        tl.store(dx + column, value.to(dx_ptr.dtype.element_ty), mask=here)
        total += tl.where(here, g * normal, 0.0)
    tl.store(partial_ptr + tl.program_id(0).to(tl.int64) * d + column, total, mask=there)


def _unit(x: Tensor) -> Tensor:
    return x if has_unit_columns(x) else x.contiguous()


def _strides(x: Tensor) -> tuple[int, ...]:
    return tuple(step(x, i) for i in range(3))


def qk_norm_rope(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    positions: Tensor | None,
    turns: Tensor | None,
    axes: Tensor | None,
    factor: float,
    interleaved: bool,
    eps: float,
) -> tuple[Tensor, Tensor]:
    c, s = angle_tables(q, cos, sin, positions, turns, axes, factor, inverse=False)
    out = empty_rows_like(q), empty_rows_like(k)
    for x, y, weight in zip((q, k), out, (q_weight, k_weight), strict=True):
        if x.numel() == 0:
            continue
        given = _unit(x)
        with torch.cuda.device_of(x):
            qk_norm_rope_kernel[(x.shape[0] * x.shape[1],)](
                given,
                y,
                weight.contiguous(),
                c,
                s,
                *x.shape[1:],
                *_strides(given),
                *_strides(y),
                c.stride(0) if c.shape[0] > 1 else 0,
                c.shape[-1],
                eps,
                INTERLEAVED=interleaved,
                COLUMNS=triton.next_power_of_2(x.shape[3]),
            )
    return out


def qk_norm_rope_backward(
    grad_q: Tensor,
    grad_k: Tensor,
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    positions: Tensor | None,
    turns: Tensor | None,
    axes: Tensor | None,
    factor: float,
    interleaved: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    c, s = angle_tables(q, cos, sin, positions, turns, axes, factor, inverse=False)

    def one(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        dx = empty_rows_like(x)
        rows = x.shape[0] * x.shape[1] * x.shape[2]
        if rows == 0 or x.shape[3] == 0:
            return dx, torch.zeros_like(weight, memory_format=torch.contiguous_format)
        programs = triton.cdiv(rows, CHUNK)
        partial = torch.empty(programs, x.shape[3], dtype=torch.float32, device=x.device)
        given, of = _unit(x), _unit(grad)
        with torch.cuda.device_of(x):
            qk_norm_rope_backward_kernel[(programs,)](
                of,
                given,
                dx,
                weight.contiguous(),
                partial,
                c,
                s,
                x.shape[1],
                rows,
                *x.shape[2:],
                *_strides(of),
                *_strides(given),
                *_strides(dx),
                c.stride(0) if c.shape[0] > 1 else 0,
                c.shape[-1],
                eps,
                INTERLEAVED=interleaved,
                COLUMNS=triton.next_power_of_2(x.shape[3]),
                CHUNK=CHUNK,
            )
        return dx, partial.sum(0).to(weight.dtype)

    (dq, dq_weight), (dk, dk_weight) = one(grad_q, q, q_weight), one(grad_k, k, k_weight)
    return dq, dk, dq_weight, dk_weight
