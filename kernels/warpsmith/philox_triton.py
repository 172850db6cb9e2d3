"""Dropout by Philox4x32-10 in Triton; philox.py says which elements are dropped."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from warpsmith import philox

#: Arguments of a kernel that Triton must not specialise: they are new in every call.
NOT_SPECIALISED = ("seed", "offset", "last_dropped")


def arguments(p: float, seed: int, offset: int) -> tuple[bool, tuple[Any, ...]]:
    """Whether anything is dropped; the arguments seed, offset, last_dropped and keep_scale."""
    dropped = philox.threshold(p)
    return dropped > 0, (seed, offset, max(dropped - 1, 0), philox.keep_scale(p))


@triton.jit
def words_of(group, seed, offset):
    """The four words of each group of four elements."""
    low, high = group.to(tl.uint32), (group >> 32).to(tl.uint32)
    stream = (tl.zeros_like(group) + offset).to(tl.uint64)
    stream_low, stream_high = (stream & 0xFFFFFFFF).to(tl.uint32), (stream >> 32).to(tl.uint32)
    return tl.philox(seed, low, high, stream_low, stream_high)


@triton.jit
def keeps(element, seed, offset, last_dropped):
    """Whether each element, by its number in the whole tensor, is kept: a call of the generator for
    each of them.
    """
    a, b, c, d = words_of(element // 4, seed, offset)
    place = element % 4
    word = tl.where(place < 2, tl.where(place == 0, a, b), tl.where(place == 2, c, d))
    return word.to(tl.int64) > last_dropped


@triton.jit
def keeps_groups(group, seed, offset, last_dropped):
    """The same for [..., 4 * n] elements from the numbers [..., n] of their groups."""
    a, b, c, d = words_of(group, seed, offset)
    word = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))
    return word.to(tl.int64) > last_dropped
