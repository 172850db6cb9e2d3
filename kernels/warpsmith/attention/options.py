"""What operators of attention are told beyond queries, keys and values, and what they ask of it.
The bindings make the same checks in the same words (csrc/attention/checks.h).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue
from warpsmith.spec.checks import check_device, shape_text, wide_dtype

#: What a score is made of and what a query sees, as schemas write it.
OPTIONS = (
    "float scale, bool causal=False, int window_left=-1, int window_right=-1, float softcap=0.0, "
    "Tensor? alibi_slopes=None, Tensor? mask=None, Tensor? bias=None, Tensor? sinks=None, "
    "Tensor? gate=None, Tensor? q_documents=None, Tensor? k_documents=None, Tensor? tree=None, "
    "float dropout_p=0.0, int seed=0, int offset=0"
)
#: What is returned beside the answer, and what is promised of it.
PROMISES = (
    "bool return_lse=False, bool return_max_logits=False, bool deterministic=True, "
    "bool batch_invariant=False"
)
#: Of a sequence: places of keys and sides of windows are added up in 32 bits.
MOST_TOKENS = 1 << 30
#: The widest heads that Triton twins have tiles for.
TWIN_DIM = 1024
#: The reference is asked for no more scores than these on a GPU.
MOST_SCORE_BYTES = 2 << 30
#: Keys that a word of `tree` speaks of.
TREE_KEYS = 64
_MOST_SOFTCAP = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Problem:
    """The sizes of a call. `m` and `n` are the tokens of a sequence, or the most of any."""

    batch: int
    m: int
    n: int
    heads: int
    kv_heads: int
    d: int
    dv: int

    @property
    def scores(self) -> tuple[int, int, int, int]:
        return self.batch, self.heads, self.m, self.n


def problem(q: Tensor, k: Tensor, v: Tensor) -> Problem:
    """Of tensors [batch, tokens, heads, d]."""
    b, m, h, d = q.shape
    return Problem(b, m, k.shape[1], h, k.shape[2], d, v.shape[3])


def problem_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, max_seqlen_q: int, max_seqlen_k: int
) -> Problem:
    """Of sequences that lie one behind the other, [tokens, heads, d]."""
    batch = cu_seqlens_q.shape[0] - 1
    return Problem(
        batch, max_seqlen_q, max_seqlen_k, q.shape[1], k.shape[1], q.shape[2], v.shape[2]
    )


# --- checks ---------------------------------------------------------------------------------------


def _fail(op: str, what: str) -> None:
    raise RuntimeError(f"{op}: {what}")


def check_alike(op: str, name: str, tensor: Tensor, q: Tensor) -> None:
    check_device(op, name, tensor, q, "q")
    if tensor.dtype != q.dtype:
        _fail(op, f"expected {name} to have dtype {q.dtype} like q, got {tensor.dtype}")


def check_dtype(op: str, name: str, tensor: Tensor, q: Tensor, dtype: torch.dtype) -> None:
    check_device(op, name, tensor, q, "q")
    if tensor.dtype != dtype:
        _fail(op, f"expected {name} to have dtype {dtype}, got {tensor.dtype}")


def check_shape(op: str, name: str, tensor: Tensor, shape: tuple[int, ...], of: str) -> None:
    if tuple(tensor.shape) != shape:
        _fail(op, f"expected {name} to have shape {shape}, {of}, got {shape_text(tensor)}")


def _broadcasts(shape: torch.Size, to: tuple[int, ...]) -> bool:
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(a in (1, b) for a, b in pairs)


def check_heads(op: str, q: Tensor, k: Tensor, v: Tensor, rank: int) -> None:
    """Queries, keys and values of `rank` dimensions, the last two of which are heads and d."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not x.is_floating_point():
            _fail(op, f"expected {name} to be a floating-point tensor, got {x.dtype}")
        if catalogue.is_fp8(x.dtype):
            _fail(op, f"expected {name} to have at least 16 bits an element, got {x.dtype}")
        if x.dim() != rank:
            _fail(op, f"expected {name} to have {rank} dimensions, got shape {shape_text(x)}")
    check_alike(op, "k", k, q)
    check_alike(op, "v", v, q)
    if not q.shape[-1]:
        _fail(op, f"expected q to have heads of at least one value, got shape {shape_text(q)}")
    if (rank == 4 and k.shape[0] != q.shape[0]) or k.shape[-1] != q.shape[-1]:
        what = "the batch and the last dimension" if rank == 4 else "the last dimension"
        _fail(op, f"expected k to have {what} of q, got {shape_text(k)} and {shape_text(q)}")
    if k.shape[:-1] != v.shape[:-1]:
        _fail(
            op,
            f"expected v to have the shape of k but for the last dimension, got "
            f"{shape_text(v)} and {shape_text(k)}",
        )
    heads, kv_heads = q.shape[-2], k.shape[-2]
    if heads and (not kv_heads or heads % kv_heads):
        _fail(
            op,
            f"expected the heads of q to be a multiple of those of k, got {heads} and {kv_heads}",
        )


def check_sequences(
    op: str,
    q: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
) -> None:
    """Where sequences begin, and the longest of them."""
    for name, cu in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        check_dtype(op, name, cu, q, torch.int32)
        if cu.dim() != 1 or cu.shape[0] == 0:
            _fail(op, f"expected {name} to have shape (sequences + 1,), got {shape_text(cu)}")
    if cu_seqlens_q.shape != cu_seqlens_k.shape:
        _fail(
            op,
            "expected as many sequences of queries as of keys, got "
            f"{cu_seqlens_q.shape[0] - 1} and {cu_seqlens_k.shape[0] - 1}",
        )
    for name, most in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        if most < 0:
            _fail(op, f"expected {name} not to be negative, got {most}")


def check_options(op: str, p: Problem, out: tuple[int, ...], call: Any) -> None:
    """Everything in OPTIONS. `out`: the shape of the answer."""
    q = call.q
    wide = wide_dtype(q.dtype)
    if max(p.m, p.n) >= MOST_TOKENS:
        _fail(op, f"expected fewer than 2^30 tokens in a sequence, got {max(p.m, p.n)}")
    for name in ("window_left", "window_right"):
        if getattr(call, name) < -1:
            _fail(op, f"expected {name} to be -1 (no limit) or more, got {getattr(call, name)}")
    if not call.softcap >= 0.0:
        _fail(op, f"expected softcap not to be negative, got {call.softcap:g}")
    if call.softcap > _MOST_SOFTCAP:
        _fail(op, f"expected softcap to be finite in float32, got {call.softcap:g}")
    if (slopes := call.alibi_slopes) is not None:
        check_dtype(op, "alibi_slopes", slopes, q, wide)
        if tuple(slopes.shape) not in ((p.heads,), (p.batch, p.heads)):
            _fail(
                op,
                f"expected alibi_slopes to have shape ({p.heads},) or ({p.batch}, "
                f"{p.heads}), got {shape_text(slopes)}",
            )
    for name, dtype in (("mask", torch.bool), ("bias", q.dtype)):
        if (x := getattr(call, name)) is None:
            continue
        check_dtype(op, name, x, q, dtype)
        if not _broadcasts(x.shape, p.scores):
            _fail(
                op,
                f"expected {name} to be broadcastable to the shape {p.scores} of the scores, "
                f"got {shape_text(x)}",
            )
    if (sinks := call.sinks) is not None:
        check_dtype(op, "sinks", sinks, q, wide)
        check_shape(op, "sinks", sinks, (p.heads,), "the heads of q")
    if (gate := call.gate) is not None:
        check_alike(op, "gate", gate, q)
        check_shape(op, "gate", gate, out, "that of the output")
    if (call.q_documents is None) != (call.k_documents is None):
        _fail(op, "expected both q_documents and k_documents or neither")
    for name, tokens in (("q_documents", p.m), ("k_documents", p.n)):
        if (x := getattr(call, name)) is not None:
            check_dtype(op, name, x, q, torch.int32)
            check_shape(op, name, x, (p.batch, tokens), "the tokens of each sequence")
    if (tree := call.tree) is not None:
        check_dtype(op, "tree", tree, q, torch.int64)
        check_shape(op, "tree", tree, (p.batch, p.m), "the queries of each sequence")
        if p.m > TREE_KEYS:
            _fail(op, f"expected at most {TREE_KEYS} queries beside a tree, got {p.m}")
    if not 0.0 <= call.dropout_p <= 1.0:
        _fail(op, f"expected dropout_p to be between 0 and 1, got {call.dropout_p:g}")


# --- how calls are made ---------------------------------------------------------------------------


def default_scale(scale: float | None, q: Tensor) -> float:
    if scale is not None:
        return scale
    return 1.0 / math.sqrt(q.shape[-1]) if q.dim() and q.shape[-1] else 1.0


def sides(called: str, window: Any) -> tuple[int, int]:
    """How many keys before and past its place a query sees, of a public function's pair.

    Raises:
        TypeError: it is no pair.
        RuntimeError: a side is below -1.
    """
    try:
        before, past = window
    except (TypeError, ValueError):
        message = f"{called}: expected window to be two numbers of keys, before and past"
        raise TypeError(f"{message}, got {window!r}") from None
    for side in (before, past):
        if isinstance(side, int) and side < -1:
            message = f"{called}: expected the sides of window to be -1 (no limit) or more"
            raise RuntimeError(f"{message}, got {window!r}")
    return before, past


def _has_values(x: Any) -> bool:
    """Whether a tensor is one on a CPU whose values can be looked at: in compiled code, under
    transforms and under modes that trace, nobody knows them.
    """
    if type(x) is not Tensor or x.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    traced = torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack()
    return not traced


def check_starts(op: str, name: str, cu: Any, x: Tensor, most: Any) -> None:
    """Where sequences begin in `x`, the queries ("q") or keys ("k"), for a public function: of
    tensors on a CPU. On a GPU nobody waits to see them. What is no list of starts at all, the
    operator's check refuses.

    Raises:
        RuntimeError: they do not begin at 0, decrease or lie past the tokens, or a sequence is
            longer than `most`.
    """
    if not (_has_values(cu) and _has_values(x) and x.dim() and hasattr(most, "__index__")):
        return
    if cu.dtype != torch.int32 or cu.dim() != 1 or not cu.shape[0]:
        return
    starts, called = cu.tolist(), f"cu_seqlens_{name}"
    if starts[0] != 0:
        _fail(op, f"expected {called} to begin with 0, got {starts[0]}")
    for start, end in itertools.pairwise(starts):
        if end < start:
            _fail(op, f"expected {called} not to decrease, got {end} behind {start}")
    if starts[-1] > x.shape[0]:
        tokens = f"the {x.shape[0]} tokens of {name}"
        _fail(op, f"expected {called} to end within {tokens}, got {starts[-1]}")
    longest = max((end - start for start, end in itertools.pairwise(starts)), default=0)
    if longest > most:
        what = f"to be at least {longest}, the longest sequence"
        _fail(op, f"expected max_seqlen_{name} {what}, got {most}")


def turned(x: Any) -> Any:
    """Heads before tokens, or the other way round; what has other dimensions is refused later."""
    return x.transpose(1, 2) if isinstance(x, Tensor) and x.dim() == 4 else x


# --- what falls back ------------------------------------------------------------------------------


def twin_lacks(d: int, dv: int) -> str | None:
    """Why the Triton twin of an operator of attention cannot take a call."""
    return None if max(d, dv) <= TWIN_DIM else f"needs heads of at most {TWIN_DIM} values"


def too_many_scores(q: Tensor, scores: int) -> str | None:
    """Why the reference is not given a call on a GPU that has so many scores, of all its heads."""
    wide = wide_dtype(q.dtype)
    size = scores * wide.itemsize
    if size <= MOST_SCORE_BYTES:
        return None
    return (
        f"its {scores} scores in {str(wide).removeprefix('torch.')} would take "
        f"{size / (1 << 30):.3g} GB in the PyTorch reference, which is given at most "
        f"{MOST_SCORE_BYTES >> 30} GB of them"
    )


def _scores_of(call: Any) -> int:
    """Of a call of `flash_attention`, of `flash_attention_varlen`, or of their gradients."""
    if call.q.dim() == 4:
        return math.prod(problem(call.q, call.k, call.v).scores)
    if call.cu_seqlens_q.is_meta:
        batch, heads = call.cu_seqlens_q.shape[0] - 1, call.q.shape[1]
        return batch * heads * call.max_seqlen_q * call.max_seqlen_k
    m, n = call.cu_seqlens_q.long().diff(), call.cu_seqlens_k.long().diff()
    return call.q.shape[1] * int((m * n).sum())


def attention_twin_lacks(call: Any) -> str | None:
    return twin_lacks(call.q.shape[-1], call.v.shape[-1])


def attention_too_large(call: Any) -> str | None:
    return too_many_scores(call.q, _scores_of(call))


# --- the answer -----------------------------------------------------------------------------------


def empty_out(q: Tensor, dv: int) -> Tensor:
    """Uninitialised, of q's shape with values of dv: without gaps, and its dimensions in the order
    that those of q have in memory.
    """
    shape = (*q.shape[:-1], dv)
    order = list(range(q.dim() - 1))
    if all(stride > 0 for stride, size in zip(q.stride(), q.shape, strict=True) if size > 1):
        steps = q.stride()
        order.sort(key=lambda i: -steps[i])
    strides, stride = [1] * q.dim(), max(dv, 1)
    for i in reversed(order):
        strides[i] = stride
        stride *= max(q.shape[i], 1)
    return q.new_empty_strided(shape, strides)
