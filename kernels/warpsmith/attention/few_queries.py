"""The rung of attention for a few queries after many keys (few_queries.cu)."""

from __future__ import annotations

from torch import Tensor

from warpsmith.attention import kv_cache_plan as plans
from warpsmith.attention.conditions import needs_packed_heads
from warpsmith.core.arguments_by_name import Call
from warpsmith.core.catalogue import Rung

_MOST_DIM = 256
#: Fewer keys are with few blocks as soon.
_FEWEST_SHARED_KEYS = 128


def _rows(q: Tensor, k: Tensor) -> int:
    """Queries that share a head of keys."""
    return q.shape[1] * (q.shape[2] // max(k.shape[2], 1))


def _takes(call: Call) -> str | None:
    q, k, v = call.q, call.k, call.v
    if reason := needs_packed_heads(q, v):
        return reason
    d, dv = q.shape[-1], v.shape[-1]
    if max(d, dv) > _MOST_DIM:
        return f"needs head dimensions of at most {_MOST_DIM}"
    if q.dim() != 4:
        return "needs sequences of one length"
    drops = round(call.dropout_p * 2**32) > 0
    more = any(x is not None for x in (call.bias, call.gate, call.q_documents))
    if more or drops or call.return_max_logits:
        return "takes no bias, gate, documents, dropout or largest scores"
    cut = plans.cut_of("split_kv", 0, d, dv)
    assert cut is not None
    tiles = -(-_rows(q, k) // cut.rows)
    most = -(-k.shape[1] // cut.tile.round) + 16
    if q.shape[0] * k.shape[2] * tiles * most >= 2**30:
        return "needs fewer or shorter sequences"
    return None


def _suits(call: Call) -> str | None:
    q, k, v = call.q, call.k, call.v
    if call.batch_invariant:
        return "another rung would take a query beside more of them"
    if k.shape[1] < _FEWEST_SHARED_KEYS:
        return "few keys are not shared out"
    rows = _rows(q, k)
    if rows <= plans.FEW_QUERIES:
        return None
    if rows > plans.MOST_PAIRED_QUERIES:
        return f"more than {plans.MOST_PAIRED_QUERIES} queries share a head of keys"
    values = q.shape[0] * k.shape[1] * k.shape[2] * (q.shape[3] + v.shape[3])
    if values * q.element_size() <= plans.MOST_PAIRED_BYTES:
        return None
    return "keys are more than L2 holds, and would be read twice"


FEW_QUERIES = Rung(
    "few_queries",
    "a few queries after many keys, which are shared out evenly among blocks",
    dtypes=("f16", "bf16"),
    technique="few_queries",
    when=_takes,
    suits=_suits,
)
