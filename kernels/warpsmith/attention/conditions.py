"""What rungs of attention ask of a call."""

from __future__ import annotations

from torch import Tensor

from warpsmith.core.arguments_by_name import Call

#: Values in 16 bytes.
_PACK = 8


def needs_packed_heads(q: Tensor, v: Tensor) -> str | None:
    """What tensor cores and 16-byte copies ask for."""
    if q.shape[-1] % _PACK or v.shape[-1] % _PACK:
        return "needs head dimensions that are multiples of 8"
    return None


def has_options(call: Call) -> bool:
    """Whether a call is more than a product, a window and a softmax."""
    tensors = (call.alibi_slopes, call.mask, call.bias, call.sinks, call.gate, call.q_documents)
    given = any(x is not None for x in (*tensors, call.tree))
    return given or call.softcap > 0.0 or call.dropout_p > 0.0 or not call.scale > 0.0
