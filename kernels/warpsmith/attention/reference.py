"""Attention in PyTorch, with every option and at any floating dtype: what all kernels are held
against, forward and, through autograd, backward.

Scores are formed for as many rows at a time as fit, so that long sequences need no more memory than
short ones. At 16 bits it computes as PyTorch's fused kernels do: scores and sums in f32,
probabilities in the dtype of the values that they are multiplied with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from warpsmith.attention.options import Problem, problem, problem_varlen
from warpsmith.spec import philox
from warpsmith.spec.checks import wide_dtype

#: Scores at a time; fewer beside dropout, whose generator takes over a hundred bytes for each.
PIECE, PIECE_DROPPED = 1 << 26, 1 << 22

Answer = tuple[Tensor, "Tensor | None", "Tensor | None"]


@dataclass(frozen=True)
class _Rows:
    """Of which sequences, heads and queries."""

    batch: slice
    heads: slice
    rows: slice


def _pieces(p: Problem, most: int) -> Iterator[_Rows]:
    if math.prod(p.scores) <= most:
        yield _Rows(slice(0, p.batch), slice(0, p.heads), slice(0, p.m))
        return
    step = max(1, most // max(p.n, 1))
    for b in range(p.batch):
        for h in range(p.heads):
            for first in range(0, p.m, step):
                rows = slice(first, min(p.m, first + step))
                yield _Rows(slice(b, b + 1), slice(h, h + 1), rows)


def _indices(span: slice, device: torch.device) -> Tensor:
    return torch.arange(span.start, span.stop, device=device)


def _kept(element: Tensor, call: Any) -> Tensor:
    """Whether dropout keeps the elements of these numbers."""
    group, place = element // 4, element % 4
    offset = (torch.full_like(group, word) for word in philox.split(call.offset))
    counter = (group & 0xFFFFFFFF, group >> 32, *offset)
    words = torch.stack(philox.philox(counter, philox.split(call.seed)), -1)  # type: ignore[arg-type]
    chosen = words.gather(-1, place.unsqueeze(-1)).squeeze(-1)
    return chosen >= philox.threshold(call.dropout_p)


def _grouped(x: Tensor, of: _Rows, group: int) -> Tensor:
    """The keys or values [b, n, kv_heads, d] of each of the query heads: [b, heads, n, d]."""
    x = x[of.batch].transpose(1, 2)
    heads = _indices(of.heads, x.device) // group
    return x if group == 1 and of.heads.stop == x.shape[1] and of.heads.start == 0 else x[:, heads]


def _seen(call: Any, p: Problem, at: _Rows, of: _Rows, sizes: tuple[int, int]) -> Tensor | None:
    """Which keys queries see, broadcastable to the scores [b, heads, rows, n]; None: all.
    `of`: the rows within the tensors at hand, `at`: within those of the options.
    """
    m, n = sizes
    device = call.q.device
    row, key = _indices(of.rows, device), torch.arange(n, device=device)
    past = key - (row + n - m)[:, None]  # keys past the query's place
    seen: list[Tensor] = []
    if call.causal or call.window_right >= 0:
        seen.append(past <= (0 if call.causal else call.window_right))
    if call.window_left >= 0:
        seen.append(past >= -call.window_left)
    if call.mask is not None:
        seen.append(call.mask.expand(p.scores)[at.batch, at.heads, at.rows, :n])
    if call.q_documents is not None:
        own = call.q_documents[at.batch, at.rows]
        seen.append((own[:, :, None] == call.k_documents[at.batch, None, :n])[:, None])
    if call.tree is not None:
        bit = key - (n - m)
        words = call.tree[at.batch, at.rows, None]
        seen.append((((words >> bit.clamp(0, 63)) & 1).bool() | (bit < 0))[:, None])
    together = None
    for one in seen:
        together = one if together is None else together & one
    return together


Product = Callable[[Tensor, Tensor], Tensor]


def wide_product(q: Tensor, k: Tensor) -> Tensor:
    """q k^T, [b, heads, m, n], in the wide dtype."""
    wide = wide_dtype(q.dtype)
    return q.to(wide) @ k.to(wide).mT


def _cut_off_product(q: Tensor, k: Tensor) -> Tensor:
    """The same as tensor cores find it from values in 16 bits: after every 8 products, the fewest
    that an instruction adds, what does not fit in f32 is cut off instead of rounded.
    """
    if q.element_size() > 2:
        return wide_product(q, k)
    total = q.new_zeros((*q.shape[:3], k.shape[2]), dtype=torch.float64)
    for first in range(0, q.shape[3], 8):
        few = slice(first, first + 8)
        total += q[..., few].double() @ k[..., few].double().mT
        total = (total.view(torch.int64) & -(1 << 29)).view(torch.float64)  # 52 bits to 23
    return total.to(torch.float32)


def mixed(weights: Tensor, values: Tensor, seen: Tensor | None) -> Tensor:
    """weights [.., m, n] @ values [.., n, d], of weights that are 0 where nothing is seen.

    0 times NaN or infinity is NaN, so that a value which a query does not see leaves NaN in its
    answer where the two are multiplied, as in PyTorch's products and in tiles that some query sees,
    and nothing where they are not, as in tiles that none does. Either is right: in float64, the
    yardstick of the others, what is not seen counts for nothing, below it is multiplied, and so it
    is in compiled code, which cannot look at values.
    """
    if values.dtype != torch.float64 or seen is None or torch.compiler.is_compiling():
        return weights @ values
    spoilt = ~values.isfinite()
    if not spoilt.any():
        return weights @ values
    out = weights @ values.masked_fill(spoilt, 0.0)
    special, hidden = torch.where(spoilt, values, 0.0), ~seen.expand(weights.shape)
    for i in spoilt.any(-1).flatten(0, -2).any(0).nonzero().flatten().tolist():
        term = weights[..., i, None] * special[..., i, :].unsqueeze(-2)
        out = out + term.masked_fill(hidden[..., i, None], 0.0)
    return out


class _TanhByExponentials(TorchFunctionMode):
    """`tanh` to an ulp of 1 instead of one of its own, which is what counts for scores: a soft cap
    multiplies it by the largest that they become.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.tanh:
            return 1.0 - 2.0 / (1.0 + (2.0 * args[0]).exp())
        return func(*args, **(kwargs or {}))


def alternatives(attend: Callable[..., tuple[Any, ...]]) -> tuple[Callable[[Any], Any], ...]:
    """Another way of PyTorch to the outputs of `attend`, one of the functions below: by products as
    tensor cores find them, and the tanh of kernels.
    """

    def another(call: Any) -> tuple[Any, ...]:
        with _TanhByExponentials():
            return tuple(x for x in attend(call, _cut_off_product) if x is not None)

    return (another,)


def _attend(
    call: Any, q: Tensor, k: Tensor, v: Tensor, p: Problem, at: _Rows, of: _Rows, product: Product
) -> tuple[Tensor, Tensor, Tensor]:
    """The answer before its gate, [b, heads, rows, dv], the LSE [b, heads, rows] and the largest
    score of each head [heads], of queries `of` of q.
    """
    wide = wide_dtype(q.dtype)
    group = q.shape[2] // max(k.shape[2], 1)
    m, n = q.shape[1], k.shape[1]
    rows = q[of.batch, of.rows, of.heads].transpose(1, 2)
    keys, values = _grouped(k, of, group), _grouped(v, of, group).to(wide)
    scores = call.scale * product(rows, keys)
    if call.softcap > 0.0:
        scores = call.softcap * (scores / call.softcap).tanh()
    if call.alibi_slopes is not None:
        slopes = call.alibi_slopes.expand(p.batch, p.heads)[at.batch, at.heads]
        place = _indices(of.rows, q.device) + n - m
        away = (torch.arange(n, device=q.device) - place[:, None]).abs()
        scores = scores - slopes[:, :, None, None] * away
    if call.bias is not None:
        scores = scores + call.bias.expand(p.scores)[at.batch, at.heads, at.rows, :n].to(wide)
    seen = _seen(call, p, at, of, (m, n))
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)

    if n:
        largest = scores.detach().amax(-1, keepdim=True)
    else:
        largest = scores.new_full((*scores.shape[:-1], 1), -math.inf)
    top = largest
    if call.sinks is not None:
        sinks = call.sinks[at.heads, None, None].to(wide)
        top = torch.maximum(top, sinks.detach())
    top = top.masked_fill(top == -math.inf, 0.0)
    weights = (scores - top).exp()
    total = weights.sum(-1, keepdim=True)
    if call.sinks is not None:
        total = total + (sinks - top).exp()
    empty = total == 0
    total = total.masked_fill(empty, 1.0)
    lse = (top + total.log()).masked_fill(empty, -math.inf).squeeze(-1)
    weights = weights / total
    if call.dropout_p > 0.0 and call.seed is None:  # drawn.py
        weights = torch.nn.functional.dropout(weights, call.dropout_p)
    elif call.dropout_p > 0.0:
        b, h = (_indices(span, q.device) for span in (at.batch, at.heads))
        line = (b[:, None, None] * p.heads + h[:, None]) * p.m + _indices(at.rows, q.device)
        element = line[..., None] * p.n + torch.arange(n, device=q.device)
        kept = _kept(element, call)
        weights = torch.where(kept, weights * philox.keep_scale(call.dropout_p), 0.0)
    out = mixed(weights.to(q.dtype).to(wide), values, seen)
    # A sum that is no number leaves none, where a sink is NaN and there are no keys, too, and where
    # dropout, which PyTorch multiplies with, takes all weights.
    if call.sinks is not None or call.dropout_p > 0.0:
        out = out.masked_fill(total.isnan(), math.nan)
    return out, lse, largest.amax((0, 2, 3))


def _gated(call: Any, out: Tensor) -> Tensor:
    """`out` in the wide dtype, rounded once."""
    if call.gate is not None:
        out = out * call.gate.to(out.dtype).sigmoid()
    return out.to(call.q.dtype)


def _answer(call: Any, out: Tensor, lse: Tensor, largest: Tensor) -> Answer:
    return (
        _gated(call, out),
        lse.contiguous() if call.return_lse else None,
        largest if call.return_max_logits else None,
    )


def _empty(call: Any, shape: tuple[int, ...], lse: tuple[int, ...], heads: int) -> Answer:
    wide = wide_dtype(call.q.dtype)
    return _answer(
        call,
        call.q.new_zeros(shape, dtype=wide),
        call.q.new_zeros(lse, dtype=wide),
        call.q.new_full((heads,), -math.inf, dtype=wide),
    )


def attention(call: Any) -> Answer:
    """Of tensors [batch, tokens, heads, d]; `call` has the arguments of `flash_attention`."""
    return attend_heads(call, wide_product)


def attend_heads(call: Any, product: Product) -> Answer:
    """The same by this product of queries and keys."""
    q, k, v = call.q, call.k, call.v
    p = problem(q, k, v)
    if not p.batch * p.m * p.heads:
        return _empty(call, (p.batch, p.m, p.heads, p.dv), (p.batch, p.heads, p.m), p.heads)
    most = PIECE_DROPPED if call.dropout_p > 0.0 else PIECE
    found = [_attend(call, q, k, v, p, at, at, product) for at in _pieces(p, most)]
    if len(found) == 1:
        out, lse, largest = found[0]
        return _answer(call, out.transpose(1, 2), lse, largest)
    out = torch.cat([o.flatten(0, 2) for o, _, _ in found]).view(p.batch, p.heads, p.m, p.dv)
    lse = torch.cat([x.flatten() for _, x, _ in found]).view(p.batch, p.heads, p.m)
    largest = torch.stack([x for _, _, x in found]).view(p.batch, p.heads, -1).amax((0, 2))
    return _answer(call, out.transpose(1, 2), lse, largest)


def attention_varlen(call: Any) -> Answer:
    """Of sequences that lie one behind the other, [tokens, heads, d]; `call` has the arguments of
    `flash_attention_varlen`. Tokens behind the last sequence, which kernels leave alone, get zeros.
    """
    return attend_sequences(call, wide_product)


def attend_sequences(call: Any, product: Product) -> Answer:
    """The same by this product of queries and keys."""
    q, k, v = call.q, call.k, call.v
    p = problem_varlen(q, k, v, call.cu_seqlens_q, call.max_seqlen_q, call.max_seqlen_k)
    wide = wide_dtype(q.dtype)
    begins_q, begins_k = call.cu_seqlens_q.tolist(), call.cu_seqlens_k.tolist()
    outs, lses = [], []
    largest = q.new_full((p.heads,), -math.inf, dtype=wide)
    for s in range(p.batch if p.heads else 0):
        own_q = q[begins_q[s] : begins_q[s + 1]].unsqueeze(0)
        own_k, own_v = (x[begins_k[s] : begins_k[s + 1]].unsqueeze(0) for x in (k, v))
        if not own_q.shape[1]:
            continue
        own = problem(own_q, own_k, own_v)
        parts = []
        for of in _pieces(own, PIECE_DROPPED if call.dropout_p > 0.0 else PIECE):
            at = _Rows(slice(s, s + 1), of.heads, of.rows)
            parts.append(_attend(call, own_q, own_k, own_v, p, at, of, product))
            largest[of.heads] = torch.maximum(largest[of.heads], parts[-1][2])
        out = torch.cat([o.flatten(0, 2) for o, _, _ in parts]).view(p.heads, own.m, p.dv)
        outs.append(out.transpose(0, 1))
        lses.append(torch.cat([x.flatten() for _, x, _ in parts]).view(p.heads, own.m))
    rest = q.shape[0] - sum(o.shape[0] for o in outs)
    outs.append(q.new_zeros((rest, p.heads, p.dv), dtype=wide))
    lses.append(q.new_full((p.heads, rest), -math.inf, dtype=wide))
    return _answer(call, torch.cat(outs), torch.cat(lses, 1), largest)
