"""What Triton twins of attention have in common: the options of a call, scores, what is seen.

A tile of scores has queries in one of its dimensions and keys in the other one: the functions here
take their numbers as [BM, 1] and [1, BN], or as [1, BM] and [BN, 1].
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.spec.triton.convert import decode, encode
from warpsmith.spec.triton.functions import INTERPRETED, exponential, exponential_of_two
from warpsmith.spec.triton.philox import keeps

#: Of a side of the window that has no end.
UNLIMITED = 1 << 30
#: Words of `tree` have so many bits.
TREE_BITS = tl.constexpr(64)
#: Below, tanh comes from its series: the other form cancels.
TANH_SERIES = tl.constexpr(0.35)


class Score(NamedTuple):
    """What a score is made of; None where it is not wanted."""

    scale: float
    softcap: float | None
    slopes: Tensor | None  # [heads], or [batch, heads]
    slopes_batch: int
    bias: Tensor | None  # [batch, heads, m, n]
    bias_strides: tuple[int, ...]


class Seen(NamedTuple):
    """What a query sees, beyond the keys from `left` behind its place to `right` past it."""

    left: int
    right: int
    mask: Tensor | None  # [batch, heads, m, n] of bytes
    mask_strides: tuple[int, ...]
    q_documents: Tensor | None  # [batch, m]
    k_documents: Tensor | None  # [batch, n]
    tree: Tensor | None  # [batch, m]


class Lengths(NamedTuple):
    """Tokens of a sequence; where sequences lie one behind the other, the most of any, and where
    each begins.
    """

    m: int
    n: int
    cu_q: Tensor | None  # [batch + 1]
    cu_k: Tensor | None


class Options(NamedTuple):
    """The options of a call as kernels take them."""

    score: Score
    seen: Seen
    lengths: Lengths


def options(
    *,
    lengths: Lengths,
    batch: int,
    heads: int,
    scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    q_documents: Tensor | None,
    k_documents: Tensor | None,
    tree: Tensor | None,
) -> Options:
    """The options of a call, from the operator's arguments."""
    left = window_left if window_left >= 0 else UNLIMITED
    right = window_right if window_right >= 0 else UNLIMITED
    shape = (batch, heads, lengths.m, lengths.n)
    slopes = None if alibi_slopes is None else alibi_slopes.float().contiguous()
    whole = None if bias is None else bias.expand(shape)
    bytes_ = None if mask is None else mask.expand(shape).view(torch.uint8)
    return Options(
        Score(
            scale,
            softcap if softcap > 0.0 else None,
            slopes,
            heads if slopes is not None and slopes.dim() == 2 else 0,
            _as_stored(whole),
            (0, 0, 0, 0) if whole is None else whole.stride(),
        ),
        Seen(
            min(left, UNLIMITED),
            min(right, 0) if causal else min(right, UNLIMITED),
            bytes_,
            (0, 0, 0, 0) if bytes_ is None else bytes_.stride(),
            None if q_documents is None else q_documents.contiguous(),
            None if k_documents is None else k_documents.contiguous(),
            None if tree is None else tree.contiguous(),
        ),
        lengths,
    )


def _as_stored(x: Tensor | None) -> Any:
    """The interpreter loses bits of bf16: there it travels as 16-bit integers."""
    if x is None or not INTERPRETED.value or x.dtype != torch.bfloat16:
        return x
    return x.view(torch.int16)


def stored(*tensors: Tensor | None) -> tuple[Any, ...]:
    """Tensors as kernels take them."""
    return tuple(_as_stored(x) for x in tensors)


def storage_format(dtype: torch.dtype) -> str:
    """How values of that dtype are read and written: see `convert`."""
    return "bf16" if INTERPRETED.value and dtype == torch.bfloat16 else ""


@triton.jit
def product(a, b, FORMAT: tl.constexpr):
    """a b, summed in f32; of values in 16 bits on tensor cores."""
    if INTERPRETED:  # whose products of bf16 are garbage
        return tl.dot(decode(a, FORMAT, False), decode(b, FORMAT, False), input_precision="ieee")
    else:
        return tl.dot(a, b, input_precision="ieee")


@triton.jit
def added(total, more, lost):
    """total + more, and what rounding loses of it, which the next sum gets back: Kahan 1965,
    "Further remarks on reducing truncation errors", https://doi.org/10.1145/363707.363723. Of
    `total += product(...)` the compiler would make one chain of additions through all products.
    """
    more -= lost
    both = total + more
    return both, (both - total) - more


@triton.jit
def narrowed(x, FORMAT: tl.constexpr, ELEMENT: tl.constexpr):
    """f32 as a factor beside values of that type."""
    return encode(x, FORMAT, False, ELEMENT)


@triton.jit
def power(x, BASE2: tl.constexpr):
    """2^x or e^x."""
    if BASE2:
        return exponential_of_two(x)
    else:
        return exponential(x)


@triton.jit
def tanh(x):
    square = x * x
    series = -1382 / 155925
    series = series * square + 62 / 2835
    series = series * square - 17 / 315
    series = series * square + 2 / 15
    series = series * square - 1 / 3
    series = series * square * x + x
    magnitude = 1.0 - 2.0 / (exponential(2.0 * tl.abs(x)) + 1.0)
    far = tl.where(x < 0.0, -magnitude, magnitude)
    return tl.where(tl.abs(x) < TANH_SERIES, series, far)


@triton.jit
def sequence(lengths, batch):
    """Tokens of a sequence, and where it begins in q and in k: 0, where batches have strides."""
    if lengths.cu_q is not None:
        q_first = tl.load(lengths.cu_q + batch).to(tl.int64)
        k_first = tl.load(lengths.cu_k + batch).to(tl.int64)
        m = (tl.load(lengths.cu_q + batch + 1) - q_first).to(tl.int32)
        n = (tl.load(lengths.cu_k + batch + 1) - k_first).to(tl.int32)
        return m, n, q_first, k_first
    else:
        zero = tl.cast(batch, tl.int64) * 0
        return zero.to(tl.int32) + lengths.m, zero.to(tl.int32) + lengths.n, zero, zero


@triton.jit
def first_of(lengths, batch, first, row_stride, heads, head):
    """Where a head's values of a sequence, one a token, begin in [batch, heads, m], or in
    [heads, all tokens] of sequences one behind the other.
    """
    if lengths.cu_q is not None:
        return head * row_stride + first
    else:
        return (tl.cast(batch, tl.int64) * heads + head) * row_stride


@triton.jit
def scores(
    qk, options, batch, head, query, key, place, inside,
    FORMAT: tl.constexpr,
):  # fmt: skip
    """Scores from products, and the derivative of the soft cap."""
    score = options.score
    s = qk * score.scale
    slope = 1.0
    if score.softcap is not None:
        t = tanh(s / score.softcap)
        s = t * score.softcap
        slope = 1.0 - t * t
    if score.slopes is not None:
        alibi = tl.load(score.slopes + batch * score.slopes_batch + head)
        s -= alibi * tl.abs(key - place).to(tl.float32)
    if score.bias is not None:
        at = places(score.bias_strides, batch, head, query, key)
        s += decode(tl.load(score.bias + at, mask=inside, other=0), FORMAT, False)
    return s, slope


@triton.jit
def places(strides, batch, head, query, key):
    """Offsets into [batch, heads, m, n]."""
    outer = tl.cast(batch, tl.int64) * strides[0] + tl.cast(head, tl.int64) * strides[1]
    return outer + query.to(tl.int64) * strides[2] + key.to(tl.int64) * strides[3]


@triton.jit
def visible(options, batch, head, query, key, place, m, n, inside):
    """Whether a query sees a key; not outside of the sequence."""
    seen = options.seen
    sees = inside & (key - place <= seen.right) & (place - key <= seen.left)
    if seen.mask is not None:
        at = places(seen.mask_strides, batch, head, query, key)
        sees = sees & (tl.load(seen.mask + at, mask=inside, other=0) != 0)
    if seen.q_documents is not None:
        own = tl.load(seen.q_documents + tl.cast(batch, tl.int64) * options.lengths.m + query,
                      mask=query < m, other=-1)  # fmt: skip
        its = tl.load(seen.k_documents + tl.cast(batch, tl.int64) * options.lengths.n + key,
                      mask=key < n, other=-2)  # fmt: skip
        sees = sees & (own == its)
    if seen.tree is not None:
        word = tl.load(seen.tree + tl.cast(batch, tl.int64) * options.lengths.m + query,
                       mask=query < m, other=0)  # fmt: skip
        bit = key - (n - m)
        shift = tl.minimum(tl.maximum(bit, 0), TREE_BITS - 1).to(tl.int64)
        sees = sees & ((bit < 0) | (((word >> shift) & 1) != 0))
    return sees


@triton.jit
def keeps_of(options, batch, heads, head, query, key, drops):
    """Which probabilities dropout keeps; `drops`: seed, offset and the last word that drops."""
    lengths = options.lengths
    row = (tl.cast(batch, tl.int64) * heads + head) * lengths.m + query
    return keeps(row * lengths.n + key, drops[0], drops[1], drops[2])


@triton.jit
def keys_seen(options, first, last, m, n):
    """From which key on, and up to which, queries [first, last) see any: more may be masked."""
    seen = options.seen
    low = tl.maximum(first + n - m - seen.left, 0)
    high = tl.maximum(tl.minimum(last + n - m + seen.right, n), 0)  # of more queries than keys
    return low, high


@triton.jit
def queries_seeing(options, first, last, m, n):
    """From which query on, and up to which, keys [first, last) are seen by any."""
    seen = options.seen
    low = tl.maximum(first - seen.right - (n - m), 0)
    high = tl.maximum(tl.minimum(last + seen.left - (n - m), m), 0)
    return low, high
