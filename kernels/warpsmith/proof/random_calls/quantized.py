"""Random calls of quantisers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from warpsmith.core.catalogue import FP8
from warpsmith.proof.random_calls.call import dtype_text

if TYPE_CHECKING:
    from warpsmith.proof.random_calls.draw import Draw

Roles = dict[str, Callable[[], Any]]

#: Beyond which a group of 128, or a block of as many rows, has a neighbour.
_WIDE, _TALL = (96, 128, 130, 256, 264), (127, 128, 130)


def _plain(draw: Draw) -> Roles:
    sharers = draw.pick(((0, 0), (1, 0), (1, 128), (128, 128)))
    shape = draw.shape(1)
    if sharers == (128, 128):
        shape = (draw.pick((*_TALL, *range(1, 4))), draw.pick(_WIDE))
    elif sharers == (1, 128) and draw.maybe():
        shape = (*shape[:-1], draw.pick(_WIDE))
    return {
        "x": lambda: draw.tensor(shape),
        "block_rows": lambda: sharers[0],
        "block_cols": lambda: sharers[1],
        "dtype": lambda: dtype_text(draw.pick((*FP8, "i8"))),
    }


def _fused(draw: Draw) -> Roles:
    halved = "up" in draw.op.argument_names and draw.maybe()
    shape = draw.shape(1)
    if draw.maybe():
        shape = (*shape[:-1], draw.pick(_WIDE))
    last = shape[-1]
    if halved:
        shape = (*shape[:-1], 2 * last)
    return {
        "x": lambda: draw.tensor(shape),
        "up": lambda: None if halved else draw.tensor(shape),
        "weight": lambda: draw.tensor((last,), "normal", draw.wide()) if draw.maybe() else None,
        "dtype": lambda: dtype_text(draw.pick(FP8)),
        "group": lambda: draw.pick((0, 128)),
        "eps": lambda: draw.pick((1e-6, 1e-5)),
        "zero_centered": draw.maybe,
    }


PLANS: Mapping[str, Callable[[Draw], Roles]] = {
    "quantize": _plain,
    **dict.fromkeys(("rms_norm_quantize", "silu_and_mul_quantize"), _fused),
}
