"""Random calls of what moves data: heads, rows by their indices, dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from warpsmith.proof.random_calls.call import OWN

if TYPE_CHECKING:
    from warpsmith.proof.random_calls.draw import Draw

Roles = dict[str, Callable[[], Any]]

_HEAD_SIZES = (2, 7, 16, 32, 36, 64, 80, 128)
_COUNTS = (0, 1, 2, 3, 7, 31)


def _rotary(draw: Draw) -> Roles:
    """Heads of queries and keys, and one of the ways to say by which angles they turn."""
    names = draw.op.argument_names
    batch, tokens = draw.pick((0, 1, 2, 3)), draw.pick((0, 1, 5, 13))
    q_heads, k_heads, d = draw.pick((1, 2, 5, 8)), draw.pick((0, 1, 2, 3)), draw.pick(_HEAD_SIZES)
    pairs = draw.random.randint(1, d // 2) if draw.maybe() else d // 2
    way = draw.pick(("turns", "turns at positions", "axes", "rows", "tokens"))
    axes = draw.random.randint(1, 3)
    layouts = OWN if "grad_q" not in names and draw.op.written else None
    q, k = (batch, tokens, q_heads, d), (batch, tokens, k_heads, d)
    table = draw.pick((draw.dtype, "f32"))
    weights = draw.pick((draw.dtype, "f32"))
    places = (axes, batch, tokens) if way == "axes" else (batch, tokens)
    rows = tokens + draw.random.randint(0, 5) if way == "rows" else 0

    def angle() -> Any:
        if way == "rows":
            return draw.tensor((rows, pairs), "unit", table)
        if way == "tokens":
            return draw.tensor((draw.pick((1, batch)), tokens, pairs), "unit", table)
        return None

    def positions() -> Any:
        if way not in ("turns at positions", "axes"):
            return None
        return draw.tensor(places, "below 100000", draw.pick(("int64", "int32")))

    cos = angle()

    return {
        "q": lambda: draw.tensor(q, layouts=layouts),
        "k": lambda: draw.tensor(k, layouts=layouts),
        "grad_q": lambda: draw.tensor(q),
        "grad_k": lambda: draw.tensor(k),
        "q_weight": lambda: draw.tensor((d,), "normal", weights),
        "k_weight": lambda: draw.tensor((d,), "normal", weights),
        "cos": lambda: cos,
        "sin": lambda: None if cos is None else {**cos, "layout": draw.pick(draw.layouts)},
        "positions": positions,
        "turns": lambda: (
            None if cos is not None else draw.tensor((pairs,), f"below {2**62}", "int64")
        ),
        "axes": lambda: draw.tensor((pairs,), f"below {axes}", "int32") if way == "axes" else None,
        "factor": lambda: draw.pick((1.0, 1.25)),
        "interleaved": draw.maybe,
        "inverse": draw.maybe,
        "eps": lambda: draw.pick((1e-6, 1e-5)),
    }


def _indexed(draw: Draw) -> Roles:
    """Rows, and indices of them."""
    name = draw.op.name
    shape = draw.shape(2 if "embedding" in name else 1)
    rank = len(shape)
    dim = draw.random.randint(-rank, rank - 1) if "dim" in draw.op.argument_names else 0
    if name.startswith("embedding"):
        shape = (max(shape[0], 1), shape[-1])
    at = dim % len(shape)
    shape = (*shape[:at], max(shape[at], 1), *shape[at + 1 :])
    rows, count = shape[at], draw.pick(_COUNTS)
    of = (count, draw.pick((1, 2))) if name.startswith("embedding") and draw.maybe() else (count,)
    terms = (*shape[:at], count, *shape[at + 1 :])
    integers = draw.pick(("int64", "int32"))
    layouts = OWN if draw.op.written else None

    def index() -> Any:
        return draw.tensor(of, f"below {rows}", integers)

    return {
        "weight": lambda: draw.tensor(shape),
        "grad": lambda: draw.tensor((*of, shape[-1])),
        "indices": index,
        "index": index,
        "x": lambda: draw.tensor(terms if name == "scatter_rows" else shape, layouts=layouts),
        "source": lambda: draw.tensor(terms),
        "values": lambda: draw.tensor(terms),
        "rows": lambda: rows,
        "dim": lambda: dim,
        "padding_idx": lambda: draw.pick((None, draw.random.randint(-rows, rows - 1))),
        "scale": lambda: draw.pick((1.0, 0.5, -3.0)),
        "alpha": lambda: draw.pick((1.0, 0.5, -3.0)),
        "accumulate": draw.maybe,
        "deterministic": lambda: True,
    }


def _moved(draw: Draw) -> Roles:
    """Dimensions in another order."""
    shape = draw.shape(2 if draw.op.name == "transpose" else 0)
    dims = draw.random.sample(range(len(shape)), len(shape))
    return {
        "x": lambda: draw.tensor(shape),
        "dims": lambda: [d - len(shape) if draw.maybe() else d for d in dims],
    }


def _qkv(draw: Draw) -> Roles:
    b, s, d = draw.pick((0, 1, 2)), draw.pick((1, 3, 8)), draw.pick((1, 5, 8, 16))
    heads, kv_heads = draw.pick((1, 2, 3)), draw.pick((1, 2))
    cols = (heads + 2 * kv_heads) * d
    return {
        "x": lambda: draw.tensor((b, s, cols)),
        "heads": lambda: heads,
        "kv_heads": lambda: kv_heads,
        "bias": lambda: draw.tensor((cols,)) if draw.maybe() else None,
        "q": lambda: draw.tensor((b, heads, s, d)),
        "k": lambda: draw.tensor((b, kv_heads, s, d)),
        "v": lambda: draw.tensor((b, kv_heads, s, d)),
    }


def _masked(draw: Draw) -> Roles:
    shape = draw.shape()
    return {
        "x": lambda: draw.tensor(shape),
        "mask": lambda: draw.tensor(draw.broadcast(shape), "bools", "bool"),
        "value": lambda: draw.pick((0.0, -1.5, float("-inf"))),
    }


PLANS: Mapping[str, Callable[[Draw], Roles]] = {
    "masked_fill": _masked,
    **dict.fromkeys(("transpose", "permute"), _moved),
    **dict.fromkeys(("pack_qkv", "unpack_qkv"), _qkv),
    **dict.fromkeys(
        ("rope", "rope_inplace", "qk_norm_rope", "qk_norm_rope_backward"),
        _rotary,
    ),
    **dict.fromkeys(
        (
            "embedding",
            "embedding_backward",
            "index_select",
            "gather_rows",
            "index_add",
            "index_add_inplace",
            "index_put",
            "scatter_rows",
        ),
        _indexed,
    ),
}
