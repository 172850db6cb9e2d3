"""Random calls of what moves data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warpsmith.proof.random_calls.draw import Draw

Roles = dict[str, Callable[[], Any]]


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


PLANS: Mapping[str, Callable[[Draw], Roles]] = {
    **dict.fromkeys(("transpose", "permute"), _moved),
    **dict.fromkeys(("pack_qkv", "unpack_qkv"), _qkv),
}
