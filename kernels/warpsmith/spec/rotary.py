"""Rotary positions: angles, how models scale them, checks and the reference;
`warpsmith.transform.rotary` has what users call.

An angle is counted in turns, as a fraction of 64 bits: `turns[i]` is by how much pair i turns from
one position to the next, in 2^-64 of a turn. A product with a position wraps where the circle does
and is exact.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from warpsmith.core.catalogue import DTYPE_NAMES, PACK
from warpsmith.spec import memory
from warpsmith.spec.checks import check_device, check_like, shape_text, wide_dtype
from warpsmith.spec.kept import kept
from warpsmith.spec.rows import address

#: Of 2^-64 of a turn, in radians.
_UNIT = 2 * math.pi / 2.0**64


# --- frequencies ----------------------------------------------------------------------------------


def frequencies(rotary_dim: int, base: float = 10000.0) -> Tensor:
    """Radians per position of each pair, `base ** (-2 i / rotary_dim)`: f64, [rotary_dim / 2].

    Raises:
        ValueError: `rotary_dim` is odd or less than 2, or `base` not above 0.

    Reference:
        Su et al. 2021, "RoFormer", https://arxiv.org/abs/2104.09864.
    """
    if rotary_dim < 2 or rotary_dim % 2 or not base > 0:
        raise ValueError(
            f"rotary: expected an even rotary_dim of at least 2 and a base above 0, got "
            f"{rotary_dim} and {base}"
        )
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64, device="cpu") / rotary_dim
    return torch.pow(torch.tensor(base, dtype=torch.float64, device="cpu"), -exponents)


def llama3(
    frequencies: Tensor,
    factor: float = 8.0,
    low: float = 1.0,
    high: float = 4.0,
    original_length: int = 8192,
) -> Tensor:
    """The frequencies of Llama 3.1 and later: of waves that fit `original_length` less than `low`
    times, divided by `factor`; of those that fit it more than `high` times, as they are; between
    them a mixture.

    Reference:
        `rope_scaling` of "llama3" in Hugging Face's configurations, as published with Llama 3.1.
    """
    waves = original_length * frequencies / (2 * math.pi)
    share = ((waves - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (share + (1 - share) / factor)


def yarn(
    frequencies: Tensor,
    factor: float,
    original_length: int,
    fast: float = 32.0,
    slow: float = 1.0,
) -> tuple[Tensor, float]:
    """The frequencies of YaRN, and what cosines and sines are multiplied with (`factor` of rope).

    Pairs that turn more than `fast` times over `original_length` stay, those that turn less than
    `slow` times are divided by `factor`; between the two pairs, found by the base that the
    frequencies have, a ramp.

    Reference:
        Peng et al. 2023, https://arxiv.org/abs/2309.00071, section 3.
    """
    pairs = frequencies.numel()
    ratio = float(frequencies[0] / frequencies[-1]) if pairs > 1 else 1.0
    step = math.log(ratio) / max(pairs - 1, 1)

    def pair_of(rounds: float) -> float:
        """The pair that turns so many times, as a real number."""
        wanted = 2 * math.pi * rounds / original_length
        return math.log(float(frequencies[0]) / wanted) / step if step else 0.0

    first = max(math.floor(pair_of(fast)), 0)
    last = min(math.ceil(pair_of(slow)), pairs * 2 - 1)
    width = max(last - first, 0.001)
    ramp = ((torch.arange(pairs, dtype=torch.float64, device="cpu") - first) / width).clamp(
        0.0, 1.0
    )
    scaled = frequencies * (1 - ramp) + frequencies / factor * ramp
    return scaled, 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def turns(frequencies: Tensor) -> Tensor:
    """Frequencies in radians per position as int64, in 2^-64 of a turn: [pairs]."""
    share = frequencies.double() / (2 * math.pi)
    share = share - share.floor()  # whole turns are none
    # in two steps: a product with 2^64 would not fit
    upper = (share * 2.0**32).floor()
    lower = ((share * 2.0**32 - upper) * 2.0**32).round()
    return (upper.long() << 32) + lower.long()


@kept("rotary")
def turns_of(rotary_dim: int, base: float, device: torch.device) -> Tensor:
    """Those of plain frequencies, made once."""
    return turns(frequencies(rotary_dim, base)).to(device)


def axes(sections: tuple[int, ...] | list[int], device: torch.device | str = "cpu") -> Tensor:
    """Which of several positions each pair has, int32, where sections of pairs follow each other
    (MRoPE): (16, 24, 24) are 16 pairs of the first, 24 of the second, 24 of the third.
    """
    of_pairs = [axis for axis, count in enumerate(sections) for _ in range(count)]
    return torch.tensor(of_pairs, dtype=torch.int32, device=device)


def tables(turns: Tensor, length: int, factor: float = 1.0) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions below `length`: f32, [length, pairs], exact."""
    angles = radians(torch.arange(length, device=turns.device)[:, None], turns)
    return (angles.cos() * factor).float(), (angles.sin() * factor).float()


def radians(positions: Tensor, turns: Tensor) -> Tensor:
    """The angle of each pair at its position, [..., pairs]: f64."""
    return (positions.long() * turns).double() * _UNIT


# --- checks ---------------------------------------------------------------------------------------


def check_dtype(op: str, name: str, x: Tensor, dtype: torch.dtype) -> None:
    if x.dtype != dtype:
        raise RuntimeError(f"{op}: expected {name} to have dtype {dtype}, got {x.dtype}")


def check_heads(op: str, q: Tensor, k: Tensor) -> None:
    if not q.is_floating_point():
        raise RuntimeError(f"{op}: expected q to be a floating-point tensor, got {q.dtype}")
    if q.element_size() < 2:
        raise RuntimeError(f"{op}: expected q to have at least 16 bits an element, got {q.dtype}")
    if q.dim() != 4:
        raise RuntimeError(
            f"{op}: expected q to have shape [batch, tokens, heads, d], got {shape_text(q)}"
        )
    check_device(op, "k", k, q, "q")
    if k.dtype != q.dtype:
        raise RuntimeError(f"{op}: expected k to have dtype {q.dtype} like q, got {k.dtype}")
    if k.dim() != 4 or k.shape[:2] != q.shape[:2] or k.shape[3] != q.shape[3]:
        raise RuntimeError(
            f"{op}: expected k to have the batch, tokens and d of q, {shape_text(q)}, got "
            f"{shape_text(k)}"
        )


def _check_tables(op: str, q: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None) -> None:
    batch, tokens = q.shape[:2]
    check_device(op, "cos", cos, q, "q")
    if cos.dtype not in (torch.float32, q.dtype):
        raise RuntimeError(
            f"{op}: expected cos to have dtype torch.float32 or that of q, {q.dtype}, got "
            f"{cos.dtype}"
        )
    by_token = (
        cos.dim() == 3
        and cos.shape[0] in (1, batch)
        and cos.shape[1] == tokens
        and positions is None
    )
    if not by_token and cos.dim() != 2:
        raise RuntimeError(
            f"{op}: expected cos to have shape [rows, pairs], or without positions "
            f"[batch, tokens, pairs], got {shape_text(cos)}"
        )
    check_like(op, "sin", sin, cos, "cos")
    if cos.dim() == 2 and positions is None and cos.shape[0] < tokens:
        raise RuntimeError(
            f"{op}: expected cos to have a row for each of {tokens} tokens, got {shape_text(cos)}"
        )


def _check_positions(
    op: str, q: Tensor, positions: Tensor | None, axes: Tensor | None, pairs: int
) -> None:
    if positions is None:
        if axes is not None:
            raise RuntimeError(f"{op}: expected positions beside axes")
        return
    check_device(op, "positions", positions, q, "q")
    if positions.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(
            f"{op}: expected positions to have dtype torch.int64 or torch.int32, got "
            f"{positions.dtype}"
        )
    rank = 2 if axes is None else 3
    fits = (
        positions.dim() == rank
        and positions.shape[-2] in (1, q.shape[0])
        and positions.shape[-1] == q.shape[1]
    )
    if not fits:
        shape = "[batch, tokens]" if axes is None else "[axes, batch, tokens]"
        raise RuntimeError(
            f"{op}: expected positions to have shape {shape} beside q of {shape_text(q)}, got "
            f"{shape_text(positions)}"
        )
    if axes is None:
        return
    check_device(op, "axes", axes, q, "q")
    check_dtype(op, "axes", axes, torch.int32)
    if tuple(axes.shape) != (pairs,):
        raise RuntimeError(
            f"{op}: expected axes to have shape ({pairs},), one for each pair, got "
            f"{shape_text(axes)}"
        )


def check(
    op: str,
    q: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    positions: Tensor | None,
    turns: Tensor | None,
    axes: Tensor | None,
) -> None:
    """Angles of a call."""
    if (cos is None) != (sin is None):
        raise RuntimeError(f"{op}: expected both cos and sin, or neither")
    if (cos is None) == (turns is None):
        raise RuntimeError(f"{op}: expected either cos and sin or turns")
    if cos is not None and sin is not None:
        _check_tables(op, q, cos, sin, positions)
        pairs = cos.shape[-1]
    else:
        assert turns is not None
        check_device(op, "turns", turns, q, "q")
        check_dtype(op, "turns", turns, torch.int64)
        if turns.dim() != 1:
            raise RuntimeError(
                f"{op}: expected turns to have shape [pairs], got {shape_text(turns)}"
            )
        pairs = turns.shape[0]
    d = q.shape[3]
    if pairs < 1 or 2 * pairs > d:
        raise RuntimeError(
            f"{op}: expected 1 to {d // 2} pairs of a head of {d} values, got {pairs}"
        )
    _check_positions(op, q, positions, axes, pairs)


def _plain_turns(op: str, q: Tensor, base: float | None, rotary_dim: int | None) -> Tensor:
    d = q.shape[-1] if rotary_dim is None else rotary_dim
    for name, value, kind, has in (
        ("rotary_dim", d, "a whole number", "__index__"),
        ("base", base, "a number", "__float__"),
    ):
        if value is not None and not hasattr(value, has):
            found = type(value).__name__
            raise TypeError(f"{op}: expected {name} to be {kind}, got {found}")
    base = 10000.0 if base is None else base
    if not base > 0:
        raise ValueError(f"{op}: expected base to be above 0, got {base}")
    if d < 2 or d % 2:
        wanted = "rotary_dim to be an even number"
        if rotary_dim is None:
            wanted = "heads of q to have an even number of values"
        raise ValueError(f"{op}: expected {wanted} of at least 2, got {d}")
    return turns_of(d, base, q.device)


def given(
    op: str,
    q: Tensor,
    cos: Tensor | None,
    positions: Tensor | None,
    turns: Tensor | None,
    axes: Tensor | None,
    base: float | None,
    rotary_dim: int | None,
) -> tuple[Tensor | None, Tensor | None]:
    """Turns and positions of a public call: plain turns where it has neither tables nor turns, and
    positions of tokens for every sequence.

    Raises:
        ValueError: a base or a rotary_dim that nothing is, or could be, made of.
        TypeError: one that is no number.
        RuntimeError: tables that hold each angle twice, as those of transformers do.
    """
    if not isinstance(q, Tensor) or q.dim() == 0:  # which the operator says
        return turns, positions
    if cos is None and turns is None:
        turns = _plain_turns(op, q, base, rotary_dim)
    elif base is not None or rotary_dim is not None:
        name, value = ("base", base) if base is not None else ("rotary_dim", rotary_dim)
        beside = "turns" if cos is None else "cos and sin"
        raise ValueError(f"{op}: expected no {name} beside {beside}, got {value}")
    elif isinstance(cos, Tensor) and cos.dim() and q.dim() and 2 * cos.shape[-1] > q.shape[-1]:
        d = q.shape[-1]
        if cos.shape[-1] == d:
            raise RuntimeError(
                f"{op}: expected cos and sin to have each angle of a head of {d} values once, as "
                f"cos[..., :{d // 2}] has them, got {shape_text(cos)}"
            )
    if isinstance(positions, Tensor) and positions.dim() == (1 if axes is None else 2):
        positions = positions.unsqueeze(-2)
    return turns, positions


def require_constants(op: str, **tables: Tensor | None) -> None:
    """Raises where a gradient of a table would be lost."""
    if torch.is_grad_enabled():
        for name, x in tables.items():
            if isinstance(x, Tensor) and x.requires_grad:
                raise RuntimeError(f"{op}: expected {name} that requires no gradient")


# --- the reference --------------------------------------------------------------------------------


def pairs_of(cos: Tensor | None, turns: Tensor | None) -> int:
    """How many pairs of a head turn."""
    of = turns if cos is None else cos
    assert of is not None
    return of.shape[-1]


def _of_pairs(
    op: str, positions: Tensor, axes: Tensor | None, rows: int | None, pairs: int
) -> Tensor:
    """The position of each pair, [batch, tokens, pairs]; below `rows`.

    Raises:
        IndexError: for one that is outside, or an axis that there is none of.
    """
    if rows is not None and positions.numel():
        least, most = (int(x) for x in positions.aminmax())
        if least < 0 or most >= rows:
            raise IndexError(f"{op}: a position lies outside of cos and sin")
    if axes is None:
        return positions[..., None].expand(*positions.shape, pairs)
    if int(axes.min()) < 0 or int(axes.max()) >= positions.shape[0]:
        raise IndexError(f"{op}: axes names a position that positions do not have")
    return positions[axes.long()].movedim(0, -1)


def angles(
    op: str,
    q: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    positions: Tensor | None,
    turns: Tensor | None,
    axes: Tensor | None,
    factor: float,
) -> tuple[Tensor, Tensor]:
    """Cosines and sines, [batch or 1, tokens, 1, pairs], f32 or f64. Constants to autograd."""
    wide = wide_dtype(q.dtype)
    if positions is None:
        positions = torch.arange(q.shape[1], device=q.device)[None]
        axes = None
    if cos is not None and sin is not None:
        if cos.dim() == 2:
            at = _of_pairs(op, positions, axes, cos.shape[0], cos.shape[1]).long()
            pair = torch.arange(cos.shape[1], device=q.device)
            cos, sin = cos[at, pair], sin[at, pair]
        c, s = cos.to(wide), sin.to(wide)
    else:
        assert turns is not None
        angle = radians(_of_pairs(op, positions, axes, None, turns.shape[0]), turns)
        c, s = (angle.cos() * factor).to(wide), (angle.sin() * factor).to(wide)
    return c.detach()[:, :, None], s.detach()[:, :, None]


def rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Heads in the dtype of cos, [..., heads, d]."""
    pairs = cos.shape[-1]
    turning, rest = x[..., : 2 * pairs].to(cos.dtype), x[..., 2 * pairs :].to(cos.dtype)
    if interleaved:
        a, b = turning[..., 0::2], turning[..., 1::2]
    else:
        a, b = turning[..., :pairs], turning[..., pairs:]
    both = (a * cos - b * sin, b * cos + a * sin)
    if interleaved:
        return torch.cat((torch.stack(both, dim=-1).flatten(-2), rest), dim=-1)
    return torch.cat((*both, rest), dim=-1)


def turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Heads in their own dtype; what is not of a pair is moved with all its bits."""
    turning = 2 * cos.shape[-1]
    pairs = rotated(x[..., :turning], cos, sin, interleaved).to(x.dtype)
    return torch.cat((pairs, x[..., turning:]), dim=-1)


# --- what rungs ask, and what angles cost ---------------------------------------------------------


def in_packs(x: Tensor, dims: int, width: int) -> bool:
    """Whether rows along the first dimensions begin where accesses of so many values may."""
    steps = (memory.step(x, i) for i in range(dims))
    whole = all(stride % width == 0 for stride in steps)
    return whole and address(x) % (width * x.element_size()) == 0


def needs_table_packs(
    q: Tensor, cos: Tensor | None, sin: Tensor | None, axes: Tensor | None
) -> str | None:
    """Why an access does not bring the angles of half a pack of q."""
    if cos is None or sin is None or axes is not None:
        return None
    width = PACK[DTYPE_NAMES[q.dtype]] // 2
    tables = (memory.as_kernels_get(t) for t in (cos, sin))
    if all(in_packs(t, t.dim() - 1, width) for t in tables):
        return None
    return "needs cos and sin aligned to the angles of half a pack"


def angle_bytes(
    q: Tensor, cos: Tensor | None, sin: Tensor | None, positions: Tensor | None,
    turns: Tensor | None,
) -> int:  # fmt: skip
    """What is read to find the angles of the tokens of q."""
    known = [t for t in (positions, turns) if t is not None]
    total = sum(t.numel() * t.element_size() for t in known)
    for t in (cos, sin):
        if t is not None:
            rows = t.shape[0] * t.shape[1] if t.dim() == 3 else t.shape[0]
            used = min(rows, q.shape[0] * q.shape[1])
            total += used * t.shape[-1] * t.element_size()
    return total
