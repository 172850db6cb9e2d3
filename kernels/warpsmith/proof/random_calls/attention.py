"""Roles of the arguments of attention and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warpsmith.proof.random_calls.call import Shape

Roles = dict[str, Callable[[], Any]]

_HEAD_SIZES = (1, 7, 8, 16, 64, 80, 96, 128, 192, 256)
_TOKENS = (0, 1, 3, 17, 33, 70)
#: Beside a tree.
_FEW = (1, 2, 5, 17)


def _roles(draw: Any) -> Roles:
    """Of sequences of one length, or of several that lie one behind the other."""
    names = draw.op.argument_names
    varlen, backward = "cu_seqlens_q" in names, "grad_out" in names
    batch, kv_heads, group = draw.pick((0, 1, 2, 3)), draw.pick((1, 2)), draw.pick((1, 2, 3))
    heads, d, dv = kv_heads * group, draw.pick(_HEAD_SIZES), draw.pick(_HEAD_SIZES)
    grows = draw.random.random() < 0.2
    m, n = draw.pick(_FEW if grows else _TOKENS), draw.pick(_TOKENS)
    # Sequences of several lengths share out what tokens there are; starts are drawn in `starts`.
    queries, keys = (batch * m, batch * n) if varlen else (m, n)
    before: Shape = () if varlen else (batch,)
    out = (*before, queries, heads, dv)
    scores = (batch, heads, m, n)
    lse = (heads, queries) if varlen else (batch, heads, m)

    def maybe(shape: Shape, values: str = "normal", dtype: str = "") -> Any:
        return draw.tensor(shape, values, dtype) if draw.random.random() < 0.25 else None

    def starts(tokens: int) -> Any:
        return draw.tensor((batch + 1,), f"starts {tokens}", "int32", ("contiguous",))

    documents = draw.random.random() < 0.2
    return {
        "q": lambda: draw.tensor((*before, queries, heads, d)),
        "k": lambda: draw.tensor((*before, keys, kv_heads, d)),
        "v": lambda: draw.tensor((*before, keys, kv_heads, dv)),
        "out": lambda: draw.tensor(out, layouts=("contiguous",)),
        "lse": lambda: draw.tensor(lse, "normal", "f32", ("contiguous",)),
        "grad_out": lambda: draw.tensor(out),
        "grad_lse": lambda: maybe(lse, "normal", "f32"),
        "cu_seqlens_q": lambda: starts(queries),
        "cu_seqlens_k": lambda: starts(keys),
        "max_seqlen_q": lambda: queries,
        "max_seqlen_k": lambda: keys,
        "scale": lambda: draw.pick((0.1, 0.3, -0.2)),
        "causal": draw.maybe,
        "window_left": lambda: draw.pick((-1, -1, 0, 20)),
        "window_right": lambda: draw.pick((-1, -1, 0, 5)),
        "softcap": lambda: draw.pick((0.0, 0.0, 5.0)),
        "alibi_slopes": lambda: maybe(draw.pick(((heads,), (batch, heads))), "unit", "f32"),
        "mask": lambda: None if varlen else maybe(draw.broadcast(scores), "bools", "bool"),
        "bias": lambda: None if varlen else maybe(draw.broadcast(scores)),
        "sinks": lambda: maybe((heads,), "normal", "f32"),
        "gate": lambda: maybe(out),
        "q_documents": lambda: _documents(draw, batch, m) if documents and not varlen else None,
        "k_documents": lambda: _documents(draw, batch, n) if documents and not varlen else None,
        "tree": lambda: _tree(draw, batch, m) if grows and not varlen else None,
        "dropout_p": lambda: draw.pick((0.0, 0.0, 0.0, 0.3, 1.0)),
        "seed": draw.number,
        "offset": draw.number,
        "return_lse": draw.maybe,
        "return_max_logits": draw.maybe,
        "deterministic": (lambda: True) if backward else draw.maybe,
        "batch_invariant": draw.maybe,
        "bias_gradient": draw.maybe,
    }


def _documents(draw: Any, batch: int, tokens: int) -> Any:
    return draw.tensor((batch, tokens), "below 3", "int32")


def _tree(draw: Any, batch: int, m: int) -> Any:
    return draw.tensor((batch, m), "words", "int64")


#: By the operator's name.
PLANS: dict[str, Callable[[Any], Roles]] = dict.fromkeys(
    (
        "flash_attention",
        "flash_attention_varlen",
        "flash_attention_backward",
        "flash_attention_varlen_backward",
    ),
    _roles,
)
