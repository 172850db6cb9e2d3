"""Rotary positions of queries and keys, and the cache of keys and values, in one launch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from warpsmith.attention import rope_store_kv_cases as cases
from warpsmith.attention import store_kv as plain
from warpsmith.core import catalogue, dispatch, messages
from warpsmith.core.catalogue import DTYPE_NAMES, PACK, Cost, Op, Rung
from warpsmith.spec import memory, rotary

_OP, _IN_PLACE = "rope_store_kv", "rope_store_kv_inplace"
_ARGUMENTS = (
    "Tensor? cos=None, Tensor? sin=None, Tensor? positions=None, Tensor? turns=None, "
    "Tensor? axes=None, Tensor? slots=None, Tensor? lengths=None, Tensor? block_table=None, "
    "Tensor? k_scale=None, Tensor? v_scale=None, float factor=1.0, bool interleaved=False"
)
#: Places below which `stream` does not suit.
_LEAST_WORK = 1 << 19


# --- checks and references ------------------------------------------------------------------------


def _check_call(op: str, call: Any, in_place: bool) -> None:
    rotary.check_heads(op, call.q, call.k)
    if in_place:
        memory.check_apart(op, "q", call.q)
        memory.check_own_memory(op, "q", call.q, "k", call.k)
    plain.check(
        op,
        call.k,
        call.v,
        call.k_cache,
        call.v_cache,
        call.slots,
        call.lengths,
        call.block_table,
        call.k_scale,
        call.v_scale,
    )
    if in_place:
        memory.check_own_memory(op, "q", call.q, "v", call.v)
    plain.check_apart_from_caches(op, "q", call.q, call.k_cache, call.v_cache)
    rotary.check(op, call.q, call.cos, call.sin, call.positions, call.turns, call.axes)


def _check(call: Any) -> None:
    _check_call(_OP, call, in_place=False)


def _check_in_place(call: Any) -> None:
    _check_call(_IN_PLACE, call, in_place=True)


def positions_of(
    k: Tensor, cos: Tensor | None, positions: Tensor | None, lengths: Tensor | None
) -> Tensor | None:
    """The positions of a call: where nothing says them, those of its tokens in the cache."""
    by_token = cos is not None and cos.dim() == 3
    if positions is not None or lengths is None or by_token:
        return positions
    return lengths.long()[:, None] + torch.arange(k.shape[1], device=k.device)


def _reference(call: Any) -> tuple[Tensor, Tensor, Tensor]:
    positions = positions_of(call.k, call.cos, call.positions, call.lengths)
    c, s = rotary.angles(
        _OP, call.q, call.cos, call.sin, positions, call.turns, call.axes, call.factor
    )
    q, k = (rotary.turned(x, c, s, call.interleaved) for x in (call.q, call.k))
    caches = plain.stored(
        _OP,
        k,
        call.v,
        call.k_cache,
        call.v_cache,
        call.slots,
        call.lengths,
        call.block_table,
        call.k_scale,
        call.v_scale,
    )
    return q, *caches


def _turned_and_written(call: Any) -> Tensor:
    """What one writes in PyTorch for halves, who knows that all tokens have a place and tables a
    row for each.
    """
    at = positions_of(call.k, call.cos, call.positions, call.lengths)
    if at is None:
        at = torch.arange(call.q.shape[1], device=call.q.device)[None]
    if call.turns is not None:
        angle = rotary.radians(at[..., None], call.turns)
        cos, sin = angle.cos().float(), angle.sin().float()
    elif call.cos.dim() == 2:
        cos, sin = call.cos[at], call.sin[at]
    else:
        cos, sin = call.cos, call.sin
    both = [torch.cat((t, t), dim=-1)[:, :, None] for t in (cos, sin)]

    def turned(x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return (x * both[0] + torch.cat((-b, a), dim=-1) * both[1]).to(x.dtype)

    plain.write(
        turned(call.k),
        call.v,
        call.k_cache,
        call.v_cache,
        call.slots,
        call.lengths,
        call.block_table,
        call.k_scale,
        call.v_scale,
    )
    return turned(call.q)


def _all_written(call: Any) -> None:
    call.q.copy_(_turned_and_written(call))


# --- the ladder -----------------------------------------------------------------------------------


def _is_empty(q: Tensor, k: Tensor, v: Tensor) -> bool:
    return q.numel() == 0 and plain.is_empty(k, v)


def _work(q: Tensor, k: Tensor, v: Tensor, pairs: int) -> int:
    """Places of all heads, of a key and its value together."""
    width = PACK[DTYPE_NAMES[q.dtype]]
    of_key = pairs // width + plain.half_places(q.shape[3] - 2 * pairs, width)
    places = max(of_key, plain.half_places(v.shape[3], width))
    return q.shape[0] * q.shape[1] * (q.shape[2] + k.shape[2]) * places


def _needs_rows(call: Any, in_place: bool) -> str | None:
    """Why no rung takes a call."""
    if _is_empty(call.q, call.k, call.v):
        return None
    why = plain.needs_countable(call.k, call.k_cache, call.v_cache, call.block_table)
    if why is None and in_place and not memory.has_unit_columns(call.q):
        return "needs queries without gaps"
    return why


def _needs_packs(call: Any, in_place: bool) -> str | None:
    q, k, v = call.q, call.k, call.v
    if (why := _needs_rows(call, in_place)) or _is_empty(q, k, v):
        return why
    width, pairs = PACK[DTYPE_NAMES[q.dtype]], rotary.pairs_of(call.cos, call.turns)
    queries = q.shape[2] == 0 or rotary.in_packs(memory.as_kernels_get(q), 3, width)
    stored = plain.are_in_packs(k, v, call.k_cache, call.v_cache)
    if not (queries and stored and pairs % width == 0):
        return "needs heads of which both halves are whole packs of 16 bytes, aligned"
    if why := rotary.needs_table_packs(q, call.cos, call.sin, call.axes):
        return why
    few = _work(q, k, v, pairs) < 2**31
    return None if few else "needs less than 2^31 places of heads"


def _suits_stream(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor | None, turns: Tensor | None
) -> str | None:
    if _work(q, k, v, rotary.pairs_of(cos, turns)) >= _LEAST_WORK:
        return None
    return "few heads, for which a thread each is faster"


def _ladder(in_place: bool) -> tuple[Rung, ...]:
    def any_(call: Any) -> str | None:
        return _needs_rows(call, in_place)

    def packs(call: Any) -> str | None:
        return _needs_packs(call, in_place)

    return (
        Rung("naive", "a block per token, a pair a thread", when=any_),
        Rung(
            "pack",
            "two 128-bit accesses a thread and head, a key and its value together",
            width=PACK,
            pack=True,
            when=packs,
        ),
        Rung(
            "stream",
            "a thread has its place in four queries, or in two keys and their values: eight loads "
            "on their way, angles found once",
            width=PACK,
            pack=True,
            technique="stream",
            when=packs,
            suits=_suits_stream,
        ),
    )


# --- the operators --------------------------------------------------------------------------------


def _angle_bytes(call: Any) -> int:
    return rotary.angle_bytes(call.q, call.cos, call.sin, call.positions, call.turns)


def _stored_bytes(call: Any) -> int:
    values = call.k.numel() + call.v.numel()
    return values * (call.k.element_size() + call.k_cache.element_size())


def _bytes(call: Any) -> int:
    return 2 * call.q.numel() * call.q.element_size() + _stored_bytes(call) + _angle_bytes(call)


def _bytes_in_place(call: Any) -> int:
    turning = 2 * rotary.pairs_of(call.cos, call.turns)
    rows = call.q.shape[0] * call.q.shape[1] * call.q.shape[2]
    return 2 * rows * turning * call.q.element_size() + _stored_bytes(call) + _angle_bytes(call)


def _flops(q: Tensor, k: Tensor, cos: Tensor | None, turns: Tensor | None) -> int:
    rows = q.shape[0] * q.shape[1] * (q.shape[2] + k.shape[2])
    return 6 * rows * rotary.pairs_of(cos, turns)


def _two_launches() -> Any:
    """`rope` and `store_kv`, one after the other."""

    def run(call: Any) -> Tensor:
        positions = positions_of(call.k, call.cos, call.positions, call.lengths)
        angles = (call.cos, call.sin, positions, call.turns, call.axes)
        q, k = torch.ops.warpsmith.rope(call.q, call.k, *angles, call.factor, call.interleaved)
        torch.ops.warpsmith.store_kv(
            k,
            call.v,
            call.k_cache,
            call.v_cache,
            call.slots,
            call.lengths,
            call.block_table,
            call.k_scale,
            call.v_scale,
        )
        return q

    return run


op = catalogue.add(
    Op(
        "rope_store_kv(Tensor q, Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, "
        f"{_ARGUMENTS}) -> Tensor",
        family="attention",
        reference=_reference,
        ladder=_ladder(in_place=False),
        triton="rope_store_kv_triton:rope_store_kv",
        fake=lambda q: memory.empty_rows_like(q),
        check=_check,
        elementwise=True,
        cancels=True,
        samples=cases.samples(),
        errors=cases.errors(_OP),
        properties=cases.PROPERTIES,
        cost=Cost(bytes=_bytes, flops=_flops),
        bench=cases.BENCH,
        bench_dtypes=("bf16", "f16"),
        eager=_turned_and_written,
        peers={"separate": _two_launches},
    )
)
op_in_place = catalogue.add(
    Op(
        "rope_store_kv_inplace(Tensor(a!) q, Tensor k, Tensor v, Tensor(b!) k_cache, "
        f"Tensor(c!) v_cache, {_ARGUMENTS}) -> ()",
        family="attention",
        source="rope_store_kv",
        reference=_reference,
        ladder=_ladder(in_place=True),
        triton="rope_store_kv_triton:rope_store_kv_inplace",
        fake=lambda: None,
        check=_check_in_place,
        elementwise=True,
        cancels=True,
        samples=cases.samples(views=False),
        errors=cases.errors_in_place(),
        cost=Cost(bytes=_bytes_in_place, flops=_flops),
        bench=cases.BENCH,
        bench_dtypes=("bf16",),
        eager=_all_written,
    )
)
dispatch.register(op)
dispatch.register(op_in_place)
_rope_store_kv, _in_place = dispatch.public(op), dispatch.public(op_in_place)


def rope_store_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    positions: Tensor | None = None,
    turns: Tensor | None = None,
    axes: Tensor | None = None,
    slots: Tensor | None = None,
    lengths: Tensor | None = None,
    block_table: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    factor: float = 1.0,
    interleaved: bool = False,
    *,
    base: float | None = None,
    rotary_dim: int | None = None,
    inplace: bool = False,
    variant: str | None = None,
) -> Tensor:
    """Rotary positions of queries and keys, and new tokens written into a cache: what `rope` and
    then `store_kv` of the turned keys do, bit by bit, in one launch and without the keys between.

    `q_out = rope(q)`, `k_cache[page, token] = rope(k)`, `v_cache[page, token] = v`, or both divided
    by a scale and rounded to e4m3. Angles are said as for `rope`, places as for `store_kv`. Where
    `lengths` say the places and nothing the positions, a token stands at its place in its sequence:
    `lengths[b] + i`. Two tokens must not go to one place. Not differentiable.

    Args:
        q: [batch, m, heads, d], f32, f16 or bf16, any strides: m new tokens of each sequence; with
            `slots` also [tokens, heads, d].
        k: [batch, m, heads of k, d], or [tokens, heads of k, d], of the dtype of q.
        v: [batch, m, heads of k, dv], or [tokens, heads of k, dv], of the dtype of q.
        k_cache: [pages, tokens of a page, heads of k, d], of the dtype of k or e4m3, any strides;
            written to. Without a block_table, a page is all that a sequence may have:
            [batch, capacity, heads of k, d].
        v_cache: [pages, tokens of a page, heads of k, dv], of the dtype of k_cache; written to.
        cos: [rows, pairs], of which a token takes the row of its position, or, without
            `positions`, [batch or 1, m, pairs]; f32 or of the dtype of q.
        sin: like `cos`.
        positions: int64 or int32, [batch or 1, m], or [tokens]; by default those of `lengths`, and
            beside `slots` 0, 1, ... in each sequence. With `axes`, [axes, batch or 1, m].
        turns: int64, [pairs], in place of tables; by default that of `base` and `rotary_dim`.
        axes: int32, [pairs]: which of several positions turns a pair.
        slots: int64, [batch, m] or [tokens]: page * tokens of a page + token in the page. Tokens
            with a negative slot are not stored; their queries turn all the same.
        lengths: int32, [batch]: how many tokens of each sequence the cache holds before the call.
        block_table: int32, [batch, most pages], beside `lengths`: the pages of each sequence in
            order. What lies behind the last token may be anything.
        k_scale: f32, of shape () or [heads of k], for a cache in e4m3: a stored value times the
            scale is the turned key. What exceeds 448 is clamped to it.
        v_scale: the same of values.
        factor: cosines and sines that come from turns are multiplied with it.
        interleaved: pairs are neighbours.
        base: pair i turns by `base ** (-i / pairs)` radians a position.
        rotary_dim: `2 * pairs` where turns are made here; by default d.
        inplace: writes over q.
        variant: one rung by name instead of the best one.

    Returns:
        q turned, with its strides where it is dense and its heads without gaps, else contiguous; q
        itself if `inplace`. The caches hold the tokens.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit; both tables and turns are given, or
            neither slots nor lengths, or both; scales without a cache in e4m3, or none with one; an
            argument requires a gradient; elements of the caches share memory, or q, k and v do with
            them; with `inplace`, elements of q do, or k and v with q.
        IndexError: on a CPU, a slot or a page outside the cache, a position that tables do not
            have, or an axis that there is none of. On a GPU what lies outside ends the kernel with
            a message, and CUDA fails with an assertion from then on.
        ValueError: the variant does not exist; base or rotary_dim come beside tables or turns; base
            is not above 0, or an odd number of values would turn.
        TypeError: base or rotary_dim are no numbers.

    Reference:
        Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding",
        https://arxiv.org/abs/2104.09864; `k_cache[slots // page, slots % page] = rope(k)`.
    """
    messages.expect_tensors("rope_store_kv", q=q, k=k, v=v)
    turns, positions = rotary.given(
        "rope_store_kv", q, cos, positions, turns, axes, base, rotary_dim
    )
    rows = slots is not None and slots.dim() == 1 and q.dim() == k.dim() == v.dim() == 3
    given = q
    if rows:
        given, k, v, slots = q[None], k[None], v[None], slots[None]  # type: ignore[index]
    args = (
        given, k, v, k_cache, v_cache, cos, sin, positions, turns, axes, slots, lengths,
        block_table, k_scale, v_scale, factor, interleaved,
    )  # fmt: skip
    if inplace:
        _in_place(variant, *args)
        return q
    out: Tensor = _rope_store_kv(variant, *args)
    return out[0] if rows else out
