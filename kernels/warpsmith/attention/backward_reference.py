"""Gradients of attention in PyTorch, from the answer and its log-sum-exp, as kernels compute them:
at 16 bits with sums in f32, and with probabilities and gradients of scores in the dtype of what
they are multiplied with. That they are what autograd finds in the forward reference is tested in
f64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warpsmith.attention import reference
from warpsmith.attention.options import Problem, empty_out, problem, problem_varlen
from warpsmith.spec import philox
from warpsmith.spec.checks import wide_dtype

Gradients = tuple[
    Tensor, Tensor, Tensor, "Tensor | None", "Tensor | None", "Tensor | None", "Tensor | None"
]


@dataclass
class _Sums:
    """Gradients in the wide dtype; of q, k, v and gate in the shape of a call."""

    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor
    bias: Tensor | None
    sinks: Tensor | None
    slopes: Tensor | None  # [batch, heads]


@dataclass(frozen=True)
class _Sequence:
    """Tensors [b, tokens, heads, d] of sequences of one length, and the sums of their gradients."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    grad: Tensor
    gate: Tensor | None
    lse: Tensor  # [b, heads, m]
    grad_lse: Tensor | None
    sums: _Sums


def _sum_to(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Summed over what a tensor of that shape is broadcast along."""
    full = (*(1,) * (x.dim() - len(shape)), *shape)
    along = [i for i, (a, b) in enumerate(zip(x.shape, full, strict=True)) if b == 1 and a != 1]
    return (x.sum(along, keepdim=True) if along else x).reshape(shape)


def _rows(x: Tensor, of: Any) -> Tensor:
    """[b, heads, rows, d]."""
    return x[of.batch, of.rows, of.heads].transpose(1, 2)


def _add(call: Any, s: _Sequence, p: Problem, at: Any, of: Any) -> None:
    """What queries `of` of a sequence, `at` in the options, add to the sums."""
    dtype, wide = s.q.dtype, wide_dtype(s.q.dtype)
    group = s.q.shape[2] // max(s.k.shape[2], 1)
    m, n = s.q.shape[1], s.k.shape[1]

    def rounded(x: Tensor) -> Tensor:
        return x.to(dtype).to(wide)

    # rows of queries
    q, out, grad = (_rows(x, of).to(wide) for x in (s.q, s.out, s.grad))
    k, v = (reference._grouped(x, of, group).to(wide) for x in (s.k, s.v))
    lse = s.lse[of.batch, of.heads, of.rows, None]
    dots = (grad * out).sum(-1, keepdim=True)
    if s.grad_lse is not None:
        dots = dots - s.grad_lse[of.batch, of.heads, of.rows, None]
    empty = lse == -math.inf
    dots, lse = dots.masked_fill(empty, 0.0), lse.masked_fill(empty, math.inf)
    if s.gate is not None:
        share = _rows(s.gate, of).to(wide).sigmoid()
        s.sums.gate[of.batch, of.rows, of.heads] = (grad * out * (1 - share)).transpose(1, 2)
        grad = rounded(grad * share)
    if s.sums.sinks is not None:
        share = (call.sinks[of.heads, None, None] - lse).exp()
        s.sums.sinks[of.heads] -= (share * dots).sum((0, 2, 3))

    # scores
    scores = call.scale * (q @ k.mT)
    growth = torch.ones((), dtype=wide, device=q.device)
    if call.softcap > 0.0:
        ratio = (scores / call.softcap).tanh()
        scores, growth = call.softcap * ratio, 1 - ratio * ratio
    place = reference._indices(of.rows, q.device) + n - m
    away = (torch.arange(n, device=q.device) - place[:, None]).abs()
    if call.alibi_slopes is not None:
        slopes = call.alibi_slopes.expand(p.batch, p.heads)[at.batch, at.heads]
        scores = scores - slopes[:, :, None, None] * away
    if call.bias is not None:
        scores = scores + call.bias.expand(p.scores)[at.batch, at.heads, at.rows, :n].to(wide)
    weights = (scores - lse).exp()
    seen = reference._seen(call, p, at, of, (m, n))
    if seen is not None:
        weights = weights.masked_fill(~seen, 0.0)

    # gradients
    kept, grad_weights = weights, grad @ v.mT
    if call.dropout_p > 0.0:
        b, h = (reference._indices(span, q.device) for span in (at.batch, at.heads))
        line = (b[:, None, None] * p.heads + h[:, None]) * p.m
        line = line + reference._indices(at.rows, q.device)
        element = line[..., None] * p.n + torch.arange(n, device=q.device)
        keeps, scale = reference._kept(element, call), philox.keep_scale(call.dropout_p)
        kept = torch.where(keeps, weights * scale, 0.0)
        grad_weights = torch.where(keeps, grad_weights * scale, 0.0)
    grad_scores = weights * (grad_weights - dots)
    if seen is not None:
        grad_scores = grad_scores.masked_fill(~seen, 0.0)
    if s.sums.bias is not None:
        whole = grad_scores.new_zeros(p.scores)
        whole[at.batch, at.heads, at.rows, :n] = grad_scores
        s.sums.bias += _sum_to(whole, tuple(call.bias.shape))
    if s.sums.slopes is not None:
        s.sums.slopes[at.batch, at.heads] -= (away * grad_scores).sum((2, 3))
    grad_products = rounded(grad_scores * growth)
    dq = call.scale * reference.mixed(grad_products, k, seen)
    s.sums.q[of.batch, of.rows, of.heads] = dq.transpose(1, 2)
    turned = None if seen is None else seen.mT
    dk = call.scale * reference.mixed(grad_products.mT, q, turned)
    dv = reference.mixed(rounded(kept).mT, grad, turned)
    heads = reference._indices(of.heads, q.device) // group
    for sums, x in ((s.sums.k, dk), (s.sums.v, dv)):
        sums[of.batch].index_add_(2, heads, x.transpose(1, 2))


def _zeros(call: Any, p: Problem) -> _Sums:
    wide = wide_dtype(call.q.dtype)

    def like(x: Tensor) -> Tensor:
        return torch.zeros(x.shape, dtype=wide, device=x.device)

    asked = call.bias is not None and call.bias_gradient
    return _Sums(
        like(call.q),
        like(call.k),
        like(call.v),
        like(call.out),
        like(call.bias) if asked else None,
        None if call.sinks is None else like(call.sinks),
        None if call.alibi_slopes is None else call.q.new_zeros(p.batch, p.heads, dtype=wide),
    )


def _laid_out(x: Tensor, like: Tensor) -> Tensor:
    """`x`, which is contiguous, in the dtype of `like` and in the order of its dimensions."""
    if x.dtype == like.dtype and like.is_contiguous():
        return x
    return empty_out(like, x.shape[-1]).copy_(x)


def _answer(call: Any, sums: _Sums) -> Gradients:
    slopes = sums.slopes
    if slopes is not None and call.alibi_slopes.dim() == 1:
        slopes = slopes.sum(0)
    return (
        _laid_out(sums.q, call.q),
        _laid_out(sums.k, call.k),
        _laid_out(sums.v, call.v),
        None if sums.bias is None else sums.bias.to(call.q.dtype),
        sums.sinks,
        slopes,
        None if call.gate is None else _laid_out(sums.gate, call.gate),
    )


def _most(call: Any) -> int:
    return reference.PIECE_DROPPED if call.dropout_p > 0.0 else reference.PIECE


def gradients(call: Any) -> Gradients:
    """Of tensors [batch, tokens, heads, d]; `call` has the arguments of
    `flash_attention_backward`.
    """
    p = problem(call.q, call.k, call.v)
    sums = _zeros(call, p)
    s = _Sequence(
        call.q, call.k, call.v, call.out, call.grad_out, call.gate, call.lse, call.grad_lse, sums
    )
    if p.batch * p.m * p.heads:
        for at in reference._pieces(p, _most(call)):
            _add(call, s, p, at, at)
    return _answer(call, sums)


def gradients_varlen(call: Any) -> Gradients:
    """Of sequences that lie one behind the other, [tokens, heads, d]; `call` has the arguments of
    `flash_attention_varlen_backward`. Tokens that no sequence covers get zeros.
    """
    p = problem_varlen(
        call.q, call.k, call.v, call.cu_seqlens_q, call.max_seqlen_q, call.max_seqlen_k
    )
    sums = _zeros(call, p)
    begins_q, begins_k = call.cu_seqlens_q.tolist(), call.cu_seqlens_k.tolist()
    for i in range(p.batch if p.heads else 0):
        queries = slice(begins_q[i], begins_q[i + 1])
        keys = slice(begins_k[i], begins_k[i + 1])

        def own(x: Tensor | None, rows: slice = queries) -> Any:
            return None if x is None else x[rows].unsqueeze(0)

        parts = _Sums(
            own(sums.q),
            own(sums.k, keys),
            own(sums.v, keys),
            own(sums.gate),
            sums.bias,
            sums.sinks,
            sums.slopes,
        )
        lse, grad_lse = call.lse[:, queries].unsqueeze(0), call.grad_lse
        grad_lse = None if grad_lse is None else grad_lse[:, queries].unsqueeze(0)
        s = _Sequence(
            own(call.q), own(call.k, keys), own(call.v, keys), own(call.out), own(call.grad_out),
            own(call.gate), lse, grad_lse, parts,
        )  # fmt: skip
        if not s.q.shape[1]:
            continue
        for of in reference._pieces(problem(s.q, s.k, s.v), _most(call)):
            at = reference._Rows(slice(i, i + 1), of.heads, of.rows)
            _add(call, s, p, at, of)
    return _answer(call, sums)
