"""Attention: out = softmax(score(q k^T)) v for each head, whose scores are never in memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from warpsmith.attention import drawn, options, reference
from warpsmith.attention import flash_attention_backward as gradients
from warpsmith.attention import flash_attention_bench as bench
from warpsmith.attention import flash_attention_cases as cases
from warpsmith.attention import flash_attention_errors as errors
from warpsmith.attention.ladder import LADDER
from warpsmith.core import catalogue, dispatch, messages
from warpsmith.core.arguments_by_name import Call
from warpsmith.core.catalogue import Cost, Op, Property
from warpsmith.spec import philox
from warpsmith.spec.checks import wide_dtype

_OUTPUTS = "(Tensor out, Tensor? lse, Tensor? max_logits)"


def _check(call: Call) -> None:
    q, k, v = call.q, call.k, call.v
    options.check_heads("flash_attention", q, k, v, 4)
    out = (*q.shape[:-1], v.shape[-1])
    options.check_options("flash_attention", options.problem(q, k, v), out, call)


def _check_varlen(call: Call) -> None:
    op, q, k, v = "flash_attention_varlen", call.q, call.k, call.v
    options.check_heads(op, q, k, v, 3)
    most = call.max_seqlen_q, call.max_seqlen_k
    options.check_sequences(op, q, call.cu_seqlens_q, call.cu_seqlens_k, *most)
    p = options.problem_varlen(q, k, v, call.cu_seqlens_q, *most)
    options.check_options(op, p, (*q.shape[:-1], v.shape[-1]), call)


def _fake(
    q: Tensor, v: Tensor, return_lse: bool, return_max_logits: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    wide, heads = wide_dtype(q.dtype), q.shape[-2]
    tokens = (q.shape[0], heads, q.shape[1]) if q.dim() == 4 else (heads, q.shape[0])
    return (
        options.empty_out(q, v.shape[-1]),
        q.new_empty(tokens, dtype=wide) if return_lse else None,
        q.new_empty((heads,), dtype=wide) if return_max_logits else None,
    )


# --- what a call costs ----------------------------------------------------------------------------


def seen_keys(m: int, n: int, causal: bool, left: int, right: int) -> int:
    """Scores of one head that are within the window."""
    last = n - m + (0 if causal else right) if causal or right >= 0 else None
    if last is None and left < 0:
        return m * n
    total = 0
    for i in range(m):
        end = n if last is None else min(n, i + last + 1)
        begin = 0 if left < 0 else max(0, i + n - m - left)
        total += max(0, end - begin)
    return total


def _bytes(q: Tensor, k: Tensor, v: Tensor) -> int:
    out = q.shape[:-1].numel() * v.shape[-1]
    return (q.numel() + k.numel() + v.numel() + out) * q.element_size()


def _flops(call: Call) -> int:
    p = options.problem(call.q, call.k, call.v)
    keys = seen_keys(p.m, p.n, call.causal, call.window_left, call.window_right)
    return 2 * p.batch * p.heads * keys * (p.d + p.dv)


def _flops_varlen(call: Call) -> int:
    heads, d = call.q.shape[1:]
    q, k = call.cu_seqlens_q.diff().tolist(), call.cu_seqlens_k.diff().tolist()
    window = call.causal, call.window_left, call.window_right
    return (
        2
        * heads
        * sum(seen_keys(*mn, *window) for mn in zip(q, k, strict=True))
        * (d + call.v.shape[-1])
    )


def _terms(call: Call) -> Tensor:
    """The largest that a sum can become which a kernel may hold in 16 bits: a score before it is
    scaled, or, where all weights lie on one key, a value.
    """
    q, k, v = (x.flatten(0, -3) if x.dim() == 4 else x for x in (call.q, call.k, call.v))
    if not q.numel() or not k.numel():
        return call.q.new_zeros(1, 1)
    largest = [x.abs().amax((0, 1)) for x in (q, k)]
    return torch.stack([(largest[0] * largest[1]).sum(), v.abs().amax()]).unsqueeze(-1)


# --- the operators --------------------------------------------------------------------------------

flash_attention_op = catalogue.add(
    Op(
        f"flash_attention(Tensor q, Tensor k, Tensor v, {options.OPTIONS}, {options.PROMISES}) "
        f"-> {_OUTPUTS}",
        family="attention",
        reference=reference.attention,
        alternatives=reference.alternatives(reference.attend_heads),
        ladder=LADDER,
        triton="flash_attention_triton:flash_attention",
        fake=_fake,
        check=_check,
        twin_lacks=options.attention_twin_lacks,
        too_large=options.attention_too_large,
        backward=gradients.derivative,
        from_output=True,
        recomputes=True,
        constants=("max_logits",),
        accumulates=True,
        terms=_terms,
        samples=(*cases.samples(), *cases.few_queries()),
        errors=errors.errors(),
        properties=(
            Property("equal keys average", cases.equal_keys_average),
            Property("one key is copied", cases.one_key_is_copied),
            Property("rows do not depend on their neighbours", cases.rows_alone),
            Property("the same bits in every run", cases.repeatable),
        ),
        cost=Cost(bytes=_bytes, flops=_flops),
        bench=(*bench.bench(), *bench.decoding()),
        bench_dtypes=("bf16", "f16"),
        peers=bench.PEERS,
        eager=bench.eager,
    )
)

flash_attention_varlen_op = catalogue.add(
    Op(
        "flash_attention_varlen(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, "
        "Tensor cu_seqlens_k, int max_seqlen_q, int max_seqlen_k, "
        f"{options.OPTIONS}, {options.PROMISES}) -> {_OUTPUTS}",
        family="attention",
        source="flash_attention",
        reference=reference.attention_varlen,
        alternatives=reference.alternatives(reference.attend_sequences),
        ladder=LADDER,
        triton="flash_attention_triton:flash_attention_varlen",
        fake=_fake,
        check=_check_varlen,
        twin_lacks=options.attention_twin_lacks,
        too_large=options.attention_too_large,
        backward=gradients.derivative_varlen,
        from_output=True,
        recomputes=True,
        constants=("max_logits",),
        accumulates=True,
        terms=_terms,
        samples=cases.varlen_samples(),
        errors=errors.varlen_errors(),
        properties=(
            Property("sequences alone", cases.sequences_alone),
            Property("sequences alone, as promised", cases.sequences_alone_as_promised),
        ),
        cost=Cost(bytes=_bytes, flops=_flops_varlen),
        bench=bench.varlen_bench(),
        bench_dtypes=("bf16", "f16"),
        peers=bench.VARLEN_PEERS,
        eager=bench.eager_varlen,
    )
)

dispatch.register(flash_attention_op)
dispatch.register(flash_attention_varlen_op)
_flash_attention = dispatch.public(flash_attention_op)
_flash_attention_varlen = dispatch.public(flash_attention_varlen_op)


# --- the public functions -------------------------------------------------------------------------


def _needs_gradient(*tensors: Tensor | None) -> bool:
    if torch.is_grad_enabled():
        for x in tensors:
            if isinstance(x, Tensor) and x.requires_grad:  # others are refused by the operator
                return True
    return False


def _asked(found: Any, return_lse: bool, return_max_logits: bool) -> Any:
    out, lse, max_logits = found
    beside = (lse,) if return_lse else ()
    beside += (max_logits,) if return_max_logits else ()
    return (out, *beside) if beside else out


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    gate: Tensor | None = None,
    q_documents: Tensor | None = None,
    k_documents: Tensor | None = None,
    tree: Tensor | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    offset: int | None = None,
    return_lse: bool = False,
    return_max_logits: bool = False,
    deterministic: bool = True,
    batch_invariant: bool = False,
    layout: str = "bshd",
    variant: str | None = None,
) -> Any:
    """Attention of every head, ``out = softmax(s) v`` with the scores ``s = scale q k^T``, which
    are never in memory.

    Query i of m stands at key ``i + n - m`` of n: the last query at the last key. In this order, a
    score is scaled, capped to ``softcap tanh(s / softcap)``, loses ``slope |key - place|``, and
    gains the bias; then keys that a query does not see are left out. A query that sees none has the
    answer 0 and the log-sum-exp -inf.

    Differentiable in q, k, v, alibi_slopes, bias, sinks and gate. Scores and sums are in f32;
    weights have the dtype of v, by which they are multiplied. Kernels serve d and dv of up to 1024,
    on tensor cores in f16 and bf16 where both are multiples of 8 and, beside more options than a
    window, at most 256. Longer heads are served with scores in memory, at most 2 GB of them.

    What a window, a mask, documents or a tree hide has to be finite all the same: values, and for
    gradients keys and queries too, may be multiplied by a weight of 0, which is NaN for NaN and
    infinities. What lies past the end of a sequence, or in another one, never reaches a result.

    Args:
        q: [b, m, heads, d], f32, f16 or bf16 (f64 by the reference), any strides.
        k: [b, n, kv_heads, d], of q's dtype and device, any strides. Each of its heads serves as
            many neighbouring heads of q as there are for it: MHA, GQA, MQA.
        v: [b, n, kv_heads, dv], of q's dtype and device, any strides.
        causal: whether a query sees no key past its place.
        scale: what products are multiplied by; None stands for ``d ** -0.5``.
        window: how many keys before and past its place a query sees; -1 for all.
        softcap: the bound of scores, 0 for none; finite in f32.
        alibi_slopes: [heads] or [b, heads], f32: what a score loses for each key of distance.
        mask: bool, broadcast to [b, heads, m, n]: True is seen.
        bias: of q's dtype, broadcast to [b, heads, m, n].
        sinks: [heads], f32: a logit of each head that takes its share of the softmax and of the
            log-sum-exp, and has no value.
        gate: [b, m, heads, dv], of q's dtype: the answer is multiplied by its sigmoid.
        q_documents: [b, m], int32: a query sees the keys of its own document only.
        k_documents: [b, n], int32, beside q_documents.
        tree: [b, m], int64, m <= 64: of the last m keys, query i sees key j where bit j of word i
            is set, and all keys before those.
        dropout_p: the probability of dropping a weight; what is kept is divided by
            ``1 - dropout_p``. Weight ((b * heads + head) * m + query) * n + key is kept where
            Philox4x32-10 says so, as in `dropout`. The log-sum-exp is without dropout.
        seed: of the generator, any 64-bit number; None for a fresh one, which is drawn from
            PyTorch's generator for the CPU. Compiled code, and a CUDA graph while it is recorded,
            would keep that for ever: there PyTorch draws on the device, anew on every replay, and
            its own attention serves the call, or, beside options that it does not have, the
            reference, whose scores are in memory.
        offset: which of that seed's streams, any 64-bit number; without a seed, of seed 0.
        return_lse: whether to return ``log(sum(exp(s)))`` of each query's scores, to base e;
            differentiable.
        return_max_logits: whether to return the largest score of each head.
        deterministic: False lets the gradient of q be summed in any order. The answer itself has
            the same bits in every run.
        batch_invariant: whether a query shall have the same bits whatever other queries and
            sequences the call has, of heads of up to 1024 values; past 256, of up to 65535
            sequences.
        layout: "bshd" for the shapes above, "bhsd" for [b, heads, tokens, d], of q, k, v, gate and
            the answer.
        variant: one rung by name instead of the best one, "bf16_mma_peak_f32". Those that end in
            `_f16` hold sums in f16, which overflow beyond 65504 and keep 11 bits: of p v, and of
            q k too where the name has no "mixed".

    Returns:
        The answer, of q's shape and dtype with values of dv, its dimensions in the order of q's in
        memory; with `return_lse` or `return_max_logits` a tuple, in which [b, heads, m] and [heads]
        in f32 (f64 for f64) follow.

    Raises:
        RuntimeError: dtypes, devices or shapes do not fit; an option is outside of its range; the
            variant cannot take the call; on a GPU, no kernel takes it, and its scores are more than
            the 2 GB that the reference is given.
        ValueError: the layout or the variant does not exist.
        TypeError: an argument is of another kind; the window has no two sides.

    Reference:
        Dao 2023, "FlashAttention-2", https://arxiv.org/abs/2307.08691;
        `torch.nn.functional.scaled_dot_product_attention`.
    """
    if layout not in ("bshd", "bhsd"):
        raise ValueError(f"flash_attention: expected layout to be 'bshd' or 'bhsd', got '{layout}'")
    messages.expect_tensors("flash_attention", q=q, k=k, v=v)
    scale, sides = options.default_scale(scale, q), options.sides("flash_attention", window)
    if layout == "bhsd":
        q, k, v, gate = map(options.turned, (q, k, v, gate))
    if dropout_p > 0.0 and seed is None and offset is None:
        draw = philox.drawn(None, None, dropout_p)
        if draw is None:
            found = drawn.attend(flash_attention_op, (
                q, k, v, scale, causal, *sides, softcap, alibi_slopes, mask, bias, sinks, gate,
                q_documents, k_documents, tree, dropout_p, 0, 0, return_lse, return_max_logits,
                deterministic, batch_invariant,
            ))  # fmt: skip
            if layout == "bhsd":
                found = (found[0].transpose(1, 2), *found[1:])
            return _asked(found, return_lse, return_max_logits)
        seed, offset = draw
    found = _flash_attention(
        variant, q, k, v, scale, causal, *sides, softcap, alibi_slopes, mask, bias, sinks, gate,
        q_documents, k_documents, tree, dropout_p, philox.signed(seed), philox.signed(offset),
        return_lse or _needs_gradient(q, k, v, alibi_slopes, bias, sinks, gate),
        return_max_logits, deterministic, batch_invariant,
    )  # fmt: skip
    if layout == "bhsd":
        found = (found[0].transpose(1, 2), *found[1:])
    return _asked(found, return_lse, return_max_logits)


def flash_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    gate: Tensor | None = None,
    q_documents: Tensor | None = None,
    k_documents: Tensor | None = None,
    tree: Tensor | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    offset: int | None = None,
    return_lse: bool = False,
    return_max_logits: bool = False,
    deterministic: bool = True,
    batch_invariant: bool = False,
    variant: str | None = None,
) -> Any:
    """`flash_attention` of sequences of several lengths that lie one behind the other.

    Args:
        q: [tokens, heads, d], f32, f16 or bf16, any strides; the queries of sequence s are those
            from ``cu_seqlens_q[s]`` to before ``cu_seqlens_q[s + 1]``. What no sequence covers gets
            no answer.
        k: [tokens of keys, kv_heads, d], of q's dtype and device, any strides.
        v: [tokens of keys, kv_heads, dv], likewise.
        cu_seqlens_q: [b + 1], int32, on q's device: from 0 on, ascending, within the tokens. On a
            GPU they are not checked.
        cu_seqlens_k: [b + 1], likewise, of keys.
        max_seqlen_q: at least the queries of the longest sequence; on a GPU, those past it may be
            left without an answer.
        max_seqlen_k: at least the keys of the longest sequence.
        causal: as all that follows, in `flash_attention`, with m = max_seqlen_q and
            n = max_seqlen_k in shapes and in the numbers of weights, but in each sequence its own
            m and n in the place of a query.
        scale: likewise.
        window: likewise.
        softcap: likewise.
        alibi_slopes: likewise.
        mask: likewise.
        bias: likewise.
        sinks: likewise.
        gate: [tokens, heads, dv].
        q_documents: likewise.
        k_documents: likewise.
        tree: likewise.
        dropout_p: likewise.
        seed: likewise, but that compiled code and CUDA graphs have to be given one.
        offset: likewise.
        return_lse: likewise; [heads, tokens].
        return_max_logits: likewise; over all sequences.
        deterministic: likewise.
        batch_invariant: likewise.
        variant: likewise.

    Returns:
        The answer [tokens, heads, dv], and what else is asked for, as `flash_attention` does.

    Raises:
        RuntimeError: as in `flash_attention`; dropout has no seed in compiled code or a CUDA graph;
            on a CPU, sequences do not begin at 0, ascend and end within the tokens, or are longer
            than `max_seqlen_q` and `max_seqlen_k` say.
        ValueError: the variant does not exist.
        TypeError: as in `flash_attention`.

    Reference:
        `torch.nn.attention.varlen.varlen_attn`.
    """
    messages.expect_tensors("flash_attention_varlen", q=q, k=k, v=v)
    sides = options.sides("flash_attention_varlen", window)
    options.check_starts("flash_attention_varlen", "q", cu_seqlens_q, q, max_seqlen_q)
    options.check_starts("flash_attention_varlen", "k", cu_seqlens_k, k, max_seqlen_k)
    if dropout_p > 0.0 and seed is None and offset is None:
        draw = philox.drawn(None, None, dropout_p)
        if draw is None:
            raise RuntimeError(
                "flash_attention_varlen: expected a seed beside dropout_p in compiled code and "
                "CUDA graphs, where one that is drawn would be kept for ever"
            )
        seed, offset = draw
    found = _flash_attention_varlen(
        variant, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        options.default_scale(scale, q), causal, *sides, softcap, alibi_slopes, mask, bias, sinks,
        gate, q_documents, k_documents, tree, dropout_p, philox.signed(seed),
        philox.signed(offset),
        return_lse or _needs_gradient(q, k, v, alibi_slopes, bias, sinks, gate),
        return_max_logits, deterministic, batch_invariant,
    )  # fmt: skip
    return _asked(found, return_lse, return_max_logits)
