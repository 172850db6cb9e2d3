"""Rotary positions applied to queries and keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import DTYPE_NAMES, PACK, Cost, Gradients, Op, Rung
from warpsmith.spec import memory, rotary
from warpsmith.spec.rows import MOST_ROWS
from warpsmith.transform import rope_cases as cases

_ARGUMENTS = (
    "Tensor? cos=None, Tensor? sin=None, Tensor? positions=None, Tensor? turns=None, "
    "Tensor? axes=None, float factor=1.0, bool interleaved=False, bool inverse=False"
)
#: Places below which `stream` does not suit.
_LEAST_WORK = 1 << 19


# --- checks and references ------------------------------------------------------------------------


def _check(
    q: Tensor,
    k: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    positions: Tensor | None,
    turns: Tensor | None,
    axes: Tensor | None,
) -> None:
    rotary.check_heads("rope", q, k)
    rotary.check("rope", q, cos, sin, positions, turns, axes)


def _check_in_place(
    q: Tensor,
    k: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    positions: Tensor | None,
    turns: Tensor | None,
    axes: Tensor | None,
) -> None:
    op = "rope_inplace"
    rotary.check_heads(op, q, k)
    memory.check_apart(op, "q", q)
    memory.check_apart(op, "k", k)
    memory.check_own_memory(op, "q", q, "k", k)
    rotary.check(op, q, cos, sin, positions, turns, axes)


def _reference(
    q: Tensor,
    k: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    positions: Tensor | None,
    turns: Tensor | None,
    axes: Tensor | None,
    factor: float,
    interleaved: bool,
    inverse: bool,
) -> tuple[Tensor, Tensor]:
    c, s = rotary.angles("rope", q, cos, sin, positions, turns, axes, factor)
    s = -s if inverse else s
    q_out, k_out = (rotary.turned(x, c, s, interleaved) for x in (q, k))
    return q_out, k_out


def _eager(
    q: Tensor,
    k: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    positions: Tensor | None,
    turns: Tensor | None,
    axes: Tensor | None,
    factor: float,
    interleaved: bool,
    inverse: bool,
) -> tuple[Tensor, Tensor]:
    """As models write it, where they would."""
    if cos is None or sin is None or cos.dim() != 3 or interleaved or inverse:
        return _reference(
            q, k, cos, sin, positions, turns, axes, factor, interleaved, inverse
        )  # fmt: skip
    both = [torch.cat((t, t), dim=-1)[:, :, None] for t in (cos, sin)]

    def turned(x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return (x * both[0] + torch.cat((-b, a), dim=-1) * both[1]).to(x.dtype)

    return turned(q), turned(k)


def _eager_in_place(q: Tensor, k: Tensor, *angles: Any) -> None:
    for x, y in zip((q, k), _eager(q, k, *angles), strict=True):
        x.copy_(y)


def _derivative(
    grad_q_out: Tensor | None,
    grad_k_out: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    positions: Tensor | None,
    turns: Tensor | None,
    axes: Tensor | None,
    factor: float,
    interleaved: bool,
    inverse: bool,
) -> Gradients:
    """The other way round; no heads stand for an output that nobody used."""
    given = [g for g in (grad_q_out, grad_k_out) if g is not None]
    none = given[0][:, :, :0]
    q, k = (none if g is None else g for g in (grad_q_out, grad_k_out))
    turned = torch.ops.warpsmith.rope(
        q, k, cos, sin, positions, turns, axes, factor, interleaved, not inverse
    )
    pairs = zip(("q", "k"), (grad_q_out, grad_k_out), turned, strict=True)
    return {name: None if grad is None else x for name, grad, x in pairs}


# --- the ladder -----------------------------------------------------------------------------------


def is_empty(q: Tensor, k: Tensor) -> bool:
    return q.numel() == 0 and k.numel() == 0


def _needs_head_packs(q: Tensor, k: Tensor, pairs: int) -> str | None:
    width = PACK[DTYPE_NAMES[q.dtype]]
    packs = q.shape[3] % width == 0 and pairs % width == 0
    for x in (q, k):
        packs = packs and (x.shape[2] == 0 or rotary.in_packs(memory.as_kernels_get(x), 3, width))
    if packs:
        return None
    return "needs heads of which both halves are whole packs of 16 bytes, aligned"


def places(q: Tensor, pairs: int, in_place: bool) -> int:
    """Places of a head: those that turn, and pairs of packs that are copied."""
    width = PACK[DTYPE_NAMES[q.dtype]]
    rest = 0 if in_place else q.shape[3] - 2 * pairs
    return pairs // width - (-rest // (2 * width))


def _work(q: Tensor, k: Tensor, pairs: int, in_place: bool) -> int:
    """Places of all heads."""
    return q.shape[0] * q.shape[1] * (q.shape[2] + k.shape[2]) * places(q, pairs, in_place)


def needs_rows(q: Tensor, k: Tensor, in_place: bool = False) -> str | None:
    """Why no rung takes a call."""
    if is_empty(q, k):
        return None
    if in_place and not (memory.has_unit_columns(q) and memory.has_unit_columns(k)):
        return "needs heads without gaps"
    if q.shape[0] * q.shape[1] > MOST_ROWS:
        return "needs at most 2^31 - 1 rows"
    return None


def needs_packs(
    q: Tensor,
    k: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    turns: Tensor | None,
    axes: Tensor | None,
    in_place: bool = False,
) -> str | None:
    """Why packs do not serve."""
    if (why := needs_rows(q, k, in_place)) or is_empty(q, k):
        return why
    pairs = rotary.pairs_of(cos, turns)
    if why := _needs_head_packs(q, k, pairs) or rotary.needs_table_packs(q, cos, sin, axes):
        return why
    few = _work(q, k, pairs, in_place) < 2**31
    return None if few else "needs less than 2^31 places of heads"


def suits_stream(
    q: Tensor, k: Tensor, cos: Tensor | None, turns: Tensor | None, in_place: bool = False
) -> str | None:
    """Whether threads of four heads pay."""
    work = _work(q, k, rotary.pairs_of(cos, turns), in_place)
    return None if work >= _LEAST_WORK else "few heads, for which a thread each is faster"


def _ladder(in_place: bool) -> tuple[Rung, ...]:
    def any_(q: Tensor, k: Tensor) -> str | None:
        return needs_rows(q, k, in_place)

    def packs(
        q: Tensor,
        k: Tensor,
        cos: Tensor | None,
        sin: Tensor | None,
        turns: Tensor | None,
        axes: Tensor | None,
    ) -> str | None:
        return needs_packs(q, k, cos, sin, turns, axes, in_place)

    def many(q: Tensor, k: Tensor, cos: Tensor | None, turns: Tensor | None) -> str | None:
        return suits_stream(q, k, cos, turns, in_place)

    return (
        Rung("naive", "a block per token, a pair a thread", when=any_),
        Rung(
            "pack",
            "two 128-bit accesses a thread and head",
            width=PACK,
            pack=True,
            when=packs,
        ),
        Rung(
            "stream",
            "a thread turns its place in four heads: eight loads on their way, angles found once",
            width=PACK,
            pack=True,
            technique="stream",
            when=packs,
            suits=many,
        ),
    )


# --- the operators --------------------------------------------------------------------------------


def bytes_of(
    q: Tensor, k: Tensor, cos: Tensor | None, sin: Tensor | None, positions: Tensor | None,
    turns: Tensor | None,
) -> int:  # fmt: skip
    angles = rotary.angle_bytes(q, cos, sin, positions, turns)
    return 2 * (q.numel() + k.numel()) * q.element_size() + angles


def _bytes_in_place(
    q: Tensor, k: Tensor, cos: Tensor | None, sin: Tensor | None, positions: Tensor | None,
    turns: Tensor | None,
) -> int:  # fmt: skip
    turning = 2 * rotary.pairs_of(cos, turns)
    rows = q.shape[0] * q.shape[1] * (q.shape[2] + k.shape[2])
    return 2 * rows * turning * q.element_size() + rotary.angle_bytes(q, cos, sin, positions, turns)


def _flops(q: Tensor, k: Tensor, cos: Tensor | None, turns: Tensor | None) -> int:
    rows = q.shape[0] * q.shape[1] * (q.shape[2] + k.shape[2])
    return 6 * rows * rotary.pairs_of(cos, turns)


def _liger() -> Callable[..., Any]:
    from liger_kernel.ops.rope import rope_forward

    from warpsmith.spec.peers import PerInput

    both = PerInput(lambda t: torch.cat((t, t), dim=-1))

    def run(
        q: Tensor, k: Tensor, cos: Tensor | None, sin: Tensor | None, interleaved: bool,
        inverse: bool,
    ) -> None:  # fmt: skip
        if cos is None or sin is None or cos.dim() != 3 or interleaved or inverse:
            raise NotImplementedError("takes a table by token, and halves")
        rope_forward(q.transpose(1, 2), k.transpose(1, 2), both(cos), both(sin))

    return run


op = catalogue.add(
    Op(
        f"rope(Tensor q, Tensor k, {_ARGUMENTS}) -> (Tensor q_out, Tensor k_out)",
        family="transform",
        reference=_reference,
        ladder=_ladder(in_place=False),
        triton="rope_triton:rope",
        fake=lambda q, k: (memory.empty_rows_like(q), memory.empty_rows_like(k)),
        check=_check,
        backward=_derivative,
        elementwise=True,
        cancels=True,
        samples=cases.samples(),
        errors=cases.errors("rope"),
        properties=cases.PROPERTIES,
        cost=Cost(bytes=bytes_of, flops=_flops),
        bench=cases.BENCH,
        bench_dtypes=("bf16", "f16", "f32"),
        eager=_eager,
    )
)
op_in_place = catalogue.add(
    Op(
        f"rope_inplace(Tensor(a!) q, Tensor(b!) k, {_ARGUMENTS}) -> ()",
        family="transform",
        source="rope",
        reference=_reference,
        ladder=_ladder(in_place=True),
        triton="rope_triton:rope_inplace",
        fake=lambda: None,
        check=_check_in_place,
        elementwise=True,
        cancels=True,
        samples=cases.samples(views=False),
        errors=cases.errors_in_place(),
        cost=Cost(bytes=_bytes_in_place, flops=_flops),
        bench=cases.BENCH,
        bench_dtypes=("bf16", "f16"),
        peers={"liger": _liger},
        eager=_eager_in_place,
    )
)
dispatch.register(op)
dispatch.register(op_in_place)
_rope, _rope_in_place = dispatch.public(op), dispatch.public(op_in_place)


def rope(
    q: Tensor,
    k: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    positions: Tensor | None = None,
    turns: Tensor | None = None,
    axes: Tensor | None = None,
    factor: float = 1.0,
    interleaved: bool = False,
    inverse: bool = False,
    *,
    base: float | None = None,
    rotary_dim: int | None = None,
    inplace: bool = False,
    variant: str | None = None,
) -> Any:
    """Rotary positions: turns each pair (x, y) of values of a head by the angle of its token and
    its place in the head, to `(x cos - y sin, y cos + x sin)`.

    Pair i of a head is `(x[i], x[i + pairs])`, or `(x[2 i], x[2 i + 1])` if `interleaved`; values
    from `2 * pairs` on stay as they are. Angles come from tables, or from turns: `positions *
    turns` in 2^-64 of a turn, which is exact at any position. q and k are read as they lie, out of
    a fused projection, say, at whatever strides, and may have different numbers of heads.
    `warpsmith.transform.rotary` makes turns and tables, with the scaling of Llama 3 and YaRN.

    Args:
        q: [batch, tokens, heads, d], f32, f16 or bf16.
        k: [batch, tokens, heads of k, d], of the dtype of q.
        cos: [rows, pairs], of which a token takes the row of its position, or, without
            `positions`, [batch or 1, tokens, pairs]; f32 or of the dtype of q. A constant. Each
            angle once: of tables that hold it for both values of a pair, as those of transformers,
            `cos[..., : d // 2]`.
        sin: like `cos`.
        positions: int64 or int32, [batch or 1, tokens] or [tokens]; by default 0, 1, ... in each
            sequence. With `axes`, [axes, batch or 1, tokens] or [axes, tokens].
        turns: int64, [pairs], in place of tables; by default that of `base` and `rotary_dim`.
        axes: int32, [pairs]: which of several positions (of time, height and width, say) turns a
            pair.
        factor: cosines and sines that come from turns are multiplied with it.
        interleaved: pairs are neighbours.
        inverse: turns the other way round, which is the derivative.
        base: pair i turns by `base ** (-i / pairs)` radians a position; by default 10000. Where
            turns are made here only.
        rotary_dim: `2 * pairs` where turns are made here; by default d.
        inplace: writes over q and k, which must require no gradient.
        variant: one rung by name instead of the best one.

    Returns:
        q and k turned, with the strides of q and k where these are dense and their heads without
        gaps, else contiguous; q alone if there is no k; q and k themselves if `inplace`.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit; both tables and turns are given; a table
            requires a gradient; with `inplace`, elements of q and k share memory.
        IndexError: on a CPU, a position that tables do not have, or an axis that there is none of.
            On a GPU these end the kernel with a message, and CUDA fails with an assertion from then
            on.
        ValueError: the variant does not exist; base or rotary_dim come beside tables or turns; base
            is not above 0, or an odd number of values would turn.
        TypeError: base or rotary_dim are no numbers.

    Reference:
        Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding",
        https://arxiv.org/abs/2104.09864.
    """
    turns, positions = rotary.given("rope", q, cos, positions, turns, axes, base, rotary_dim)
    rotary.require_constants("rope", cos=cos, sin=sin)
    keys = k
    if k is None and isinstance(q, Tensor):
        rotary.check_heads("rope", q, q)
        keys = q[:, :, :0]
    given = (q, keys, cos, sin, positions, turns, axes, factor, interleaved, inverse)
    if inplace:
        _rope_in_place(variant, *given)
        return q if k is None else (q, k)
    q_out, k_out = _rope(variant, *given)
    return q_out if k is None else (q_out, k_out)
