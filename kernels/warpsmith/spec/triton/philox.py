"""Dropout by Philox4x32-10 in Triton; philox.py says which elements are dropped."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from warpsmith.core.twins import interpreting
from warpsmith.spec import philox

#: Arguments of a kernel that Triton must not specialise: they are new in every call.
NOT_SPECIALISED = ("seed", "offset", "last_dropped")


def arguments(p: float, seed: int, offset: int) -> tuple[bool, tuple[Any, ...]]:
    """Whether anything is dropped; the arguments seed, offset, last_dropped and keep_scale."""
    dropped = philox.threshold(p)
    return dropped > 0, (seed, offset, max(dropped - 1, 0), philox.keep_scale(p))


INTERPRETED = tl.constexpr(interpreting())
ROUNDS = tl.constexpr(philox.ROUNDS)
MULTIPLIER_X, MULTIPLIER_Z = map(tl.constexpr, philox.MULTIPLIERS)
WEYL_X, WEYL_Y = map(tl.constexpr, philox.WEYL)


@triton.jit
def _split(number):
    """Low and high word of 64 bits."""
    return number.to(tl.uint32), (number >> 32).to(tl.uint32)


@triton.jit
def _product(x, MULTIPLIER: tl.constexpr):
    """Low and high word, by one instruction: LLVM would make several of a product in 64 bits."""
    if INTERPRETED:
        return _split(x.to(tl.uint64) * MULTIPLIER)
    else:
        return tl.inline_asm_elementwise(
            "{ .reg .b64 wide; mul.wide.u32 wide, $2, $3; mov.b64 {$0, $1}, wide; }",
            "=r,=r,r,r",
            [x, tl.full(x.shape, MULTIPLIER, tl.uint32)],
            dtype=(tl.uint32, tl.uint32),
            is_pure=True,
            pack=1,
        )


@triton.jit
def words_of(group, seed, offset):
    """The four words of each group of four elements. Unlike `tl.philox` it multiplies once for both
    words of a product.
    """
    x, y = _split(group.to(tl.uint64))
    z, w = _split(tl.zeros_like(group).to(tl.uint64) + offset.to(tl.uint64))
    key_x, key_y = _split(seed.to(tl.uint64))
    for _ in tl.static_range(ROUNDS):
        low_x, high_x = _product(x, MULTIPLIER_X)
        low_z, high_z = _product(z, MULTIPLIER_Z)
        x, y = high_z ^ y ^ key_x, low_z
        z, w = high_x ^ w ^ key_y, low_x
        key_x = tl.add(key_x, WEYL_X, sanitize_overflow=False)
        key_y = tl.add(key_y, WEYL_Y, sanitize_overflow=False)
    return x, y, z, w


@triton.jit
def _above(word, last_dropped):
    return word > last_dropped.to(tl.uint32)


@triton.jit
def keep_bits(group, seed, offset, last_dropped):
    """Whether the elements of each group are kept, in four bits."""
    a, b, c, d = words_of(group, seed, offset)
    low = _above(a, last_dropped).to(tl.int32) | _above(b, last_dropped).to(tl.int32) << 1
    high = _above(c, last_dropped).to(tl.int32) | _above(d, last_dropped).to(tl.int32) << 1
    return low | high << 2


@triton.jit
def keeps(element, seed, offset, last_dropped):
    """Whether each element, by its number in the whole tensor, is kept: a call of the generator for
    each of them.
    """
    a, b, c, d = words_of(element // 4, seed, offset)
    place = element % 4
    word = tl.where(place < 2, tl.where(place == 0, a, b), tl.where(place == 2, c, d))
    return _above(word, last_dropped)


@triton.jit
def keeps_groups(group, seed, offset, last_dropped):
    """The same for [..., 4 * n] elements from the numbers [..., n] of their groups."""
    a, b, c, d = words_of(group, seed, offset)
    word = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))
    return _above(word, last_dropped)
