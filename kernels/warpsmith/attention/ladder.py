"""The rungs of attention: kernels of sequences of one length and of several alike."""

from __future__ import annotations

from torch import Tensor

from warpsmith.core.arguments_by_name import Call
from warpsmith.core.catalogue import Rung

#: What a thread of `online` can hold of an answer's row, times the lanes of a warp.
ONLINE_DIM = 1024
#: The head dimensions that `mma_peak` has a tile for.
PEAK_DIM = 256
#: Values in 16 bytes.
_PACK = 8


def _needs_online(q: Tensor, v: Tensor) -> str | None:
    if max(q.shape[-1], v.shape[-1]) > ONLINE_DIM:
        return f"needs head dimensions of at most {ONLINE_DIM}"
    return None


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


LADDER: tuple[Rung, ...] = (
    Rung(
        "online",
        "a warp for four queries, the softmax rescaled as larger scores come; every option",
        technique="online",
        when=_needs_online,
        unproven=True,
    ),
)
