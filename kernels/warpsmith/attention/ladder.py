"""The rungs of attention: kernels of sequences of one length and of several alike."""

from __future__ import annotations

from torch import Tensor

from warpsmith.attention.conditions import has_options, needs_packed_heads
from warpsmith.attention.few_queries import FEW_QUERIES
from warpsmith.attention.ladder_climb import CLIMB, NAIVE
from warpsmith.core.arguments_by_name import Call
from warpsmith.core.catalogue import Rung

#: What a thread of `online` can hold of an answer's row, times the lanes of a warp.
ONLINE_DIM = 1024
#: The head dimensions that `mma_peak` has a tile for.
PEAK_DIM = 256


def _needs_online(q: Tensor, v: Tensor) -> str | None:
    if max(q.shape[-1], v.shape[-1]) > ONLINE_DIM:
        return f"needs head dimensions of at most {ONLINE_DIM}"
    return None


def _needs_tile(q: Tensor, v: Tensor) -> str | None:
    if reason := needs_packed_heads(q, v):
        return reason
    if max(q.shape[-1], v.shape[-1]) > PEAK_DIM:
        return f"needs head dimensions of at most {PEAK_DIM}"
    return None


def _needs_plain_tile(call: Call) -> str | None:
    if reason := _needs_tile(call.q, call.v):
        return reason
    if has_options(call) or call.return_max_logits:
        return "needs a call without options beyond a window"
    return None


LADDER: tuple[Rung, ...] = (
    # Before `online`, so that it serves what that does not take, and by name: it holds all scores,
    # is slower, and takes as many of them as fit, which would let a batch's size choose the rung.
    NAIVE,
    Rung(
        "online",
        "a warp for four queries, the softmax rescaled as larger scores come; every option",
        technique="online",
        when=_needs_online,
    ),
    *CLIMB,
    Rung(
        "mma_options",
        "tensor cores, with every option as a branch that all blocks take alike",
        dtypes=("f16", "bf16"),
        technique="mma_options",
        when=_needs_tile,
    ),
    Rung(
        "mma_peak",
        "tiles by head dimension and GPU, softmax in few instructions",
        dtypes=("f16", "bf16"),
        technique="mma_peak",
        when=_needs_plain_tile,
    ),
    FEW_QUERIES,
)
