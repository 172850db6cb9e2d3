"""Random calls of quantisers, and of weights that are quantised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from warpsmith.core.catalogue import FP8
from warpsmith.proof.random_calls.call import COLUMNS, SIZES, dtype_text

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


def _linear(draw: Draw) -> Roles:
    group, bits = draw.pick((0, 32, 64, 128)), draw.pick((4, 8))
    n, rows = draw.pick((*SIZES, *COLUMNS)), draw.pick((*SIZES, 17, 40, 70))
    k = group * draw.pick((1, 2, 3)) if group else draw.pick((0, 1, 7, 8, 72, 256))
    groups = k // group if group else 1
    batch = draw.pick(((rows,), (2, rows), ()))
    words = (-(-n // 64), -(-k // 64), 512 if bits == 4 else 1024)
    zeros = bits == 4 and draw.maybe()
    return {
        "x": lambda: draw.tensor((*batch, k)),
        "weight": lambda: draw.tensor(words, "words", "i32"),
        "scales": lambda: draw.tensor((groups, n), "scales"),
        "zeros": lambda: draw.tensor((groups, n), "classes 17", "i8") if zeros else None,
        "bias": lambda: draw.tensor((n,)) if draw.maybe() else None,
    }


PLANS: Mapping[str, Callable[[Draw], Roles]] = {
    "quantize": _plain,
    "quantized_linear": _linear,
    **dict.fromkeys(("rms_norm_quantize", "silu_and_mul_quantize"), _fused),
}
