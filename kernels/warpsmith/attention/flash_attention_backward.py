"""Gradients of attention: of queries, keys, values, a bias, sinks, ALiBi slopes and a gate."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from warpsmith.attention import backward_reference, options
from warpsmith.attention import flash_attention_backward_cases as cases
from warpsmith.core import catalogue, dispatch
from warpsmith.core.arguments_by_name import Call
from warpsmith.core.catalogue import Cost, Gradients, Needs, Op, Property, Rung
from warpsmith.spec.checks import wide_dtype

_OUTPUTS = (
    "(Tensor dq, Tensor dk, Tensor dv, Tensor? dbias, Tensor? dsinks, Tensor? dslopes, "
    "Tensor? dgate)"
)
_GIVEN = "Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse"
_PROMISES = "bool deterministic=True, bool batch_invariant=False, bool bias_gradient=True"
_VARLEN = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, int max_seqlen_q, int max_seqlen_k"

# --- checks ---------------------------------------------------------------------------------------


def _check_answer(op: str, call: Call) -> None:
    q = call.q
    out, wide = (*q.shape[:-1], call.v.shape[-1]), wide_dtype(q.dtype)
    lse = (q.shape[0], q.shape[2], q.shape[1]) if q.dim() == 4 else (q.shape[1], q.shape[0])
    of = "a value for each query and head"
    for name in ("grad_out", "out"):
        options.check_alike(op, name, getattr(call, name), q)
        options.check_shape(op, name, getattr(call, name), out, "that of the output")
    for name in ("lse", "grad_lse"):
        if (x := getattr(call, name)) is not None:
            options.check_dtype(op, name, x, q, wide)
            options.check_shape(op, name, x, lse, of)


def _check(call: Call) -> None:
    op, q, k, v = "flash_attention_backward", call.q, call.k, call.v
    options.check_heads(op, q, k, v, 4)
    out = (*q.shape[:-1], v.shape[-1])
    options.check_options(op, options.problem(q, k, v), out, call)
    _check_answer(op, call)


def _check_varlen(call: Call) -> None:
    op, q, k, v = "flash_attention_varlen_backward", call.q, call.k, call.v
    options.check_heads(op, q, k, v, 3)
    most = call.max_seqlen_q, call.max_seqlen_k
    options.check_sequences(op, q, call.cu_seqlens_q, call.cu_seqlens_k, *most)
    p = options.problem_varlen(q, k, v, call.cu_seqlens_q, *most)
    options.check_options(op, p, (*q.shape[:-1], v.shape[-1]), call)
    _check_answer(op, call)


def _fake(call: Call) -> Any:
    def like(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.new_empty(x.shape)

    q, k, v, gate = call.q, call.k, call.v, call.gate
    return (
        options.empty_out(q, q.shape[-1]),
        options.empty_out(k, k.shape[-1]),
        options.empty_out(v, v.shape[-1]),
        like(call.bias) if call.bias_gradient else None,
        like(call.sinks),
        like(call.alibi_slopes),
        None if gate is None else options.empty_out(gate, v.shape[-1]),
    )


# --- what the rungs take --------------------------------------------------------------------------

#: The longest rows that a lane of `naive` holds, times the lanes of a warp.
NAIVE_DIM = 1024
#: The widest tiles of `mma_peak` and `mma_wide`.
PEAK_DIM, WIDE_DIM = 128, 256


def _widest(call: Call) -> int:
    return max(call.q.shape[-1], call.v.shape[-1])


def _few_rows(call: Call) -> str | None:
    varlen = call.q.dim() == 3
    batch = call.cu_seqlens_q.shape[0] - 1 if varlen else call.q.shape[0]
    m, n = (call.max_seqlen_q, call.max_seqlen_k) if varlen else (call.q.shape[1], call.k.shape[1])
    blocks = (m + n + 256) * call.q.shape[-2] * batch // 4
    bias = call.bias
    biases = bias.numel() // 64 if bias is not None and call.bias_gradient else 0
    return None if max(blocks, biases) < 2**31 else "needs fewer rows and heads"


def _needs_naive(call: Call) -> str | None:
    if _widest(call) > NAIVE_DIM:
        return f"needs heads of at most {NAIVE_DIM} values"
    return _few_rows(call)


def _needs_tile(call: Call) -> str | None:
    if call.q.shape[-1] % 8 or call.v.shape[-1] % 8:
        return "needs heads of a multiple of 8 values"
    return _few_rows(call)


def _needs_peak(call: Call) -> str | None:
    if _widest(call) > PEAK_DIM:
        return f"needs heads of at most {PEAK_DIM} values"
    return _needs_tile(call)


def _needs_large(call: Call) -> str | None:
    if not WIDE_DIM < _widest(call) <= NAIVE_DIM:
        return f"needs heads of {WIDE_DIM + 1} to {NAIVE_DIM} values"
    return _needs_tile(call)


def _needs_wide(call: Call) -> str | None:
    if not PEAK_DIM < _widest(call) <= WIDE_DIM:
        return f"needs heads of {PEAK_DIM + 1} to {WIDE_DIM} values"
    return _needs_tile(call)


_HALVES = ("f16", "bf16")

LADDER: tuple[Rung, ...] = (
    Rung(
        "naive",
        "a warp for each key and for each query, every option",
        when=_needs_naive,
    ),
    Rung(
        "mma_peak",
        "a block for 128 keys, probabilities and their gradients as operands in registers, dq "
        "summed in the order of the keys; d up to 128",
        dtypes=_HALVES,
        technique="mma_peak",
        when=_needs_peak,
    ),
    Rung(
        "mma_wide",
        "two warps to a key's gradients, a half of the queries each, then of the columns; d up to "
        "256",
        dtypes=_HALVES,
        technique="mma_wide",
        when=_needs_wide,
    ),
    Rung(
        "mma_large",
        "dk and dv in one pass, dq in another, rows of 64 streamed in chunks; d up to 1024",
        dtypes=_HALVES,
        technique="mma_large",
        when=_needs_large,
    ),
)

# --- what a call costs ----------------------------------------------------------------------------


def _bytes(call: Call) -> int:
    """Each operand once, and a gradient of its size."""
    twice = (call.q, call.k, call.v, call.gate, call.sinks, call.alibi_slopes)
    bias = call.bias
    read = (call.out, call.grad_out, call.lse, call.grad_lse, call.mask, bias)
    tensors = [x for x in (*twice, *twice, *read) if x is not None]
    total = sum(x.numel() * x.element_size() for x in tensors)
    asked = bias is not None and call.bias_gradient
    return total + (bias.numel() * bias.element_size() if asked else 0)


def _flops(call: Call) -> int:
    from warpsmith.attention.flash_attention import seen_keys

    p = options.problem(call.q, call.k, call.v)
    keys = seen_keys(p.m, p.n, call.causal, call.window_left, call.window_right)
    return 2 * p.batch * p.heads * keys * (3 * p.d + 2 * p.dv)


def _flops_varlen(call: Call) -> int:
    from warpsmith.attention.flash_attention import seen_keys

    heads, d = call.q.shape[1:]
    q, k = call.cu_seqlens_q.diff().tolist(), call.cu_seqlens_k.diff().tolist()
    window = call.causal, call.window_left, call.window_right
    keys = sum(seen_keys(*mn, *window) for mn in zip(q, k, strict=True))
    return 2 * heads * keys * (3 * d + 2 * call.v.shape[-1])


# --- the operators --------------------------------------------------------------------------------

flash_attention_backward_op = catalogue.add(
    Op(
        f"flash_attention_backward({_GIVEN}, {options.OPTIONS}, {_PROMISES}) -> {_OUTPUTS}",
        family="attention",
        source="flash_attention/backward",
        reference=backward_reference.gradients,
        ladder=LADDER,
        triton="flash_attention_backward_triton:flash_attention_backward",
        fake=_fake,
        check=_check,
        twin_lacks=options.attention_twin_lacks,
        too_large=options.attention_too_large,
        accumulates=True,
        samples=cases.samples(),
        errors=cases.errors(),
        properties=(
            Property("the same bits in every run", cases.repeatable),
            Property("sequences alone, as promised", cases.sequences_alone),
            Property("nothing comes back from what is not seen", cases.unseen_gets_nothing),
            Property("gradients of equal answers cancel", cases.constants_cancel),
        ),
        cost=Cost(bytes=_bytes, flops=_flops),
        bench=cases.bench(),
        bench_dtypes=("bf16",),
        peers=cases.PEERS,
        eager=cases.eager,
    )
)

flash_attention_varlen_backward_op = catalogue.add(
    Op(
        f"flash_attention_varlen_backward({_GIVEN}, {_VARLEN}, {options.OPTIONS}, {_PROMISES}) "
        f"-> {_OUTPUTS}",
        family="attention",
        source="flash_attention/backward",
        reference=backward_reference.gradients_varlen,
        ladder=LADDER,
        triton="flash_attention_backward_triton:flash_attention_varlen_backward",
        fake=_fake,
        check=_check_varlen,
        twin_lacks=options.attention_twin_lacks,
        too_large=options.attention_too_large,
        accumulates=True,
        samples=cases.varlen_samples(),
        errors=cases.varlen_errors(),
        cost=Cost(bytes=_bytes, flops=_flops_varlen),
        bench=cases.varlen_bench(),
        bench_dtypes=("bf16",),
        peers=cases.VARLEN_PEERS,
        eager=cases.eager_varlen,
    )
)

dispatch.register(flash_attention_backward_op)
dispatch.register(flash_attention_varlen_backward_op)

# --- the derivatives of the operators that these are gradients of ---------------------------------


def _gradients(op: str, starts: tuple[Any, ...], given: dict[str, Any]) -> Gradients:
    q, v, out, lse = given["q"], given["v"], given["out"], given["lse"]
    grad_out, needs = given["grad_out"], given["needs"]
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    told = [given[name] for name in _TOLD]
    if lse is None:  # the answer alone was asked for
        forward = getattr(torch.ops.warpsmith, op)
        lse = forward(q, given["k"], v, *starts, *told, return_lse=True)[1]
    backward = getattr(torch.ops.warpsmith, f"{op}_backward")
    found = backward(
        grad_out, given["grad_lse"], q, given["k"], v, out, lse, *starts, *told,
        given["deterministic"], given["batch_invariant"],
        given["bias"] is not None and "bias" in needs,
    )  # fmt: skip
    names = ("q", "k", "v", "bias", "sinks", "alibi_slopes", "gate")
    return dict(zip(names, found, strict=True))


_TOLD = tuple(a.name for a in catalogue.parse_schema(f"told({options.OPTIONS}) -> ()").arguments)


def derivative(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    gate: Tensor | None,
    q_documents: Tensor | None,
    k_documents: Tensor | None,
    tree: Tensor | None,
    dropout_p: float,
    seed: int,
    offset: int,
    deterministic: bool,
    batch_invariant: bool,
    out: Tensor,
    lse: Tensor | None,
    grad_out: Tensor | None,
    grad_lse: Tensor | None,
    needs: Needs,
) -> Gradients:
    """Of `flash_attention`."""
    return _gradients("flash_attention", (), dict(locals()))


def derivative_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    gate: Tensor | None,
    q_documents: Tensor | None,
    k_documents: Tensor | None,
    tree: Tensor | None,
    dropout_p: float,
    seed: int,
    offset: int,
    deterministic: bool,
    batch_invariant: bool,
    out: Tensor,
    lse: Tensor | None,
    grad_out: Tensor | None,
    grad_lse: Tensor | None,
    needs: Needs,
) -> Gradients:
    """Of `flash_attention_varlen`."""
    given = dict(locals())
    starts = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return _gradients("flash_attention_varlen", starts, given)
