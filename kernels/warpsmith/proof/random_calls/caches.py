"""Roles of the arguments of operators on caches of keys and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warpsmith.proof.random_calls.call import OWN, Shape

Roles = dict[str, Callable[[], Any]]

_HEAD_SIZES = (1, 7, 8, 16, 64, 80, 128, 256)
#: Beside a tree.
_FEW = (1, 2, 3, 5, 8)


def _cache_roles(draw: Any, heads: int, d: int, dv: int, batch: int, capacity: int) -> Roles:
    """Caches in which a sequence has room for `capacity` tokens, and what says where they lie."""
    paged, e4m3 = draw.maybe(), draw.maybe()
    tokens = draw.pick((1, 5, 16, 32, 48)) if paged else capacity
    width = -(-capacity // tokens)
    pages = batch * width + draw.pick((0, 3)) if paged else batch
    dtype = "e4m3" if e4m3 else ""

    def scale() -> Any:
        return draw.tensor(draw.pick(((), (heads,))), "far from zero", "f32") if e4m3 else None

    def cache(size: int) -> Any:
        return draw.tensor((pages, tokens, heads, size), dtype=dtype, layouts=OWN)

    def table() -> Any:
        if not paged:
            return None
        return draw.tensor((batch, width), f"distinct {max(pages, 1)}", "int32", ("contiguous",))

    return {
        "k_cache": lambda: cache(d),
        "v_cache": lambda: cache(dv),
        "block_table": table,
        "k_scale": scale,
        "v_scale": scale,
        "pages": lambda: pages * tokens,
    }


def store_kv(draw: Any) -> Roles:
    batch, m, heads = draw.pick((0, 1, 2, 3)), draw.pick((0, 1, 2, 9)), draw.pick((1, 2, 3))
    d, dv = draw.pick(_HEAD_SIZES), draw.pick(_HEAD_SIZES)
    room = draw.pick((1, 7, 20))
    roles = _cache_roles(draw, heads, d, dv, batch, m + room)
    by_slots = draw.maybe()
    places = roles.pop("pages")()

    def slots() -> Any:
        if not by_slots:
            return None
        return draw.tensor((batch, m), f"distinct {max(places, 1)}", "int64", ("contiguous",))

    table = roles["block_table"]
    return roles | {
        "k": lambda: draw.tensor((batch, m, heads, d)),
        "v": lambda: draw.tensor((batch, m, heads, dv)),
        "slots": slots,
        "lengths": lambda: None if by_slots else draw.tensor((batch,), f"below {room}", "int32"),
        "block_table": lambda: None if by_slots else table(),
    }


def rope_store_kv(draw: Any) -> Roles:
    """Heads of queries beside those of `store_kv`, and the ways of `rope` to say the angles."""
    batch, m, heads = draw.pick((0, 1, 2, 3)), draw.pick((0, 1, 2, 9)), draw.pick((0, 1, 2, 3))
    d, dv, q_heads = draw.pick(_HEAD_SIZES[1:]), draw.pick(_HEAD_SIZES), draw.pick((0, 1, 2, 5, 8))
    pairs = draw.random.randint(1, d // 2) if draw.maybe() else d // 2
    way = draw.pick(("turns", "turns at positions", "axes", "rows", "tokens"))
    room, axes, by_slots = draw.pick((1, 7, 20)), draw.random.randint(1, 3), draw.maybe()
    roles = _cache_roles(draw, heads, d, dv, batch, m + room)
    places = roles.pop("pages")()
    of_table = draw.pick((draw.dtype, "f32"))

    def angle() -> Any:
        if way == "rows":
            return draw.tensor((m + room + draw.random.randint(0, 5), pairs), "unit", of_table)
        if way == "tokens":
            return draw.tensor((draw.pick((1, batch)), m, pairs), "unit", of_table)
        return None

    def positions() -> Any:
        if way not in ("turns at positions", "axes"):
            return None
        of = (axes, batch, m) if way == "axes" else (batch, m)
        return draw.tensor(of, "below 100000", draw.pick(("int64", "int32")))

    def slots() -> Any:
        if not by_slots:
            return None
        return draw.tensor((batch, m), f"distinct {max(places, 1)}", "int64", ("contiguous",))

    cos, table = angle(), roles["block_table"]
    in_place = draw.op.name.endswith("_inplace")
    return roles | {
        "q": lambda: draw.tensor((batch, m, q_heads, d), layouts=OWN if in_place else None),
        "k": lambda: draw.tensor((batch, m, heads, d)),
        "v": lambda: draw.tensor((batch, m, heads, dv)),
        "cos": lambda: cos,
        "sin": lambda: None if cos is None else {**cos, "layout": draw.pick(draw.layouts)},
        "positions": positions,
        "turns": lambda: (
            None if cos is not None else draw.tensor((pairs,), f"below {2**62}", "int64")
        ),
        "axes": lambda: draw.tensor((pairs,), f"below {axes}", "int32") if way == "axes" else None,
        "slots": slots,
        "lengths": lambda: None if by_slots else draw.tensor((batch,), f"below {room}", "int32"),
        "block_table": lambda: None if by_slots else table(),
        "factor": lambda: draw.pick((1.0, 1.25)),
        "interleaved": draw.maybe,
    }


def attention_with_kv_cache(draw: Any) -> Roles:
    batch, kv_heads, group = draw.pick((0, 1, 2, 5)), draw.pick((1, 2)), draw.pick((1, 2, 3, 8))
    grows = draw.maybe()
    m = draw.pick(_FEW if grows else (0, 1, 4, 33))
    heads, d, dv = kv_heads * group, draw.pick(_HEAD_SIZES), draw.pick(_HEAD_SIZES)
    room, appended = draw.pick((1, 30, 150)), draw.pick((0, 3))
    roles = _cache_roles(draw, kv_heads, d, dv, batch, room + appended)
    del roles["pages"]

    def wide(shape: Shape, there: bool) -> Any:
        return draw.tensor(shape, "normal", "f32") if there else None

    return roles | {
        "q": lambda: draw.tensor((batch, m, heads, d)),
        "lengths": lambda: draw.tensor((batch,), f"below {room}", "int32"),
        "scale": lambda: draw.pick((0.1, 1.0, -0.3)),
        "appended": lambda: appended,
        "causal": draw.maybe,
        "window_left": lambda: draw.pick((-1, -1, 0, 20)),
        "window_right": lambda: draw.pick((-1, -1, 0, 5)),
        "softcap": lambda: draw.pick((0.0, 0.0, 5.0)),
        "alibi_slopes": lambda: wide(draw.pick(((heads,), (batch, heads))), draw.maybe()),
        "sinks": lambda: wide((heads,), draw.maybe()),
        "tree": lambda: draw.tensor((batch, m), "words", "int64") if grows else None,
        "return_lse": draw.maybe,
        "batch_invariant": draw.maybe,
        "blocks": lambda: draw.pick((0, 0, 0, 1, 3, 400)),
    }


def merge_attention_states(draw: Any) -> Roles:
    batch, m, heads = draw.pick((0, 1, 3)), draw.pick((0, 1, 9)), draw.pick((1, 2, 3))
    d = draw.pick((*_HEAD_SIZES, 0))
    out, lse = (batch, m, heads, d), (batch, heads, m)
    return {
        "out_a": lambda: draw.tensor(out),
        "out_b": lambda: draw.tensor(out),
        "lse_a": lambda: draw.tensor(lse, "normal", "f32"),
        "lse_b": lambda: draw.tensor(lse, "normal", "f32"),
    }


#: By the operator's name.
PLANS: dict[str, Callable[[Any], Roles]] = {
    "store_kv": store_kv,
    "rope_store_kv": rope_store_kv,
    "rope_store_kv_inplace": rope_store_kv,
    "attention_with_kv_cache": attention_with_kv_cache,
    "merge_attention_states": merge_attention_states,
}
