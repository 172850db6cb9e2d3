"""The rungs of attention: kernels of sequences of one length and of several alike."""

from __future__ import annotations

from torch import Tensor

from warpsmith.attention.ladder_climb import CLIMB
from warpsmith.core.catalogue import Rung

#: What a thread of `online` can hold of an answer's row, times the lanes of a warp.
ONLINE_DIM = 1024
#: The head dimensions that `mma_peak` has a tile for.
PEAK_DIM = 256


def _needs_online(q: Tensor, v: Tensor) -> str | None:
    if max(q.shape[-1], v.shape[-1]) > ONLINE_DIM:
        return f"needs head dimensions of at most {ONLINE_DIM}"
    return None


LADDER: tuple[Rung, ...] = (
    Rung(
        "online",
        "a warp for four queries, the softmax rescaled as larger scores come; every option",
        technique="online",
        when=_needs_online,
        unproven=True,
    ),
    *CLIMB,
)
