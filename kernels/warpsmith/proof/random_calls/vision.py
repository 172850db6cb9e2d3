"""Random calls of operators on images and of diffusion."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from warpsmith.proof.random_calls.call import CHANNELS_LAST, COLUMNS, LAYOUTS, OWN, SIZES, divisors

if TYPE_CHECKING:
    from warpsmith.proof.random_calls.draw import Draw

Roles = dict[str, Callable[[], Any]]


def _histogram(draw: Draw) -> Roles:
    bins, floats = draw.pick((1, 2, 16, 100, 256)), draw.dtype == "f32"
    return {
        "x": lambda: draw.tensor(draw.shape()),
        "bins": lambda: bins,
        "edges": lambda: draw.tensor((bins + 1,), "ascending") if floats else None,
        "is_unsigned": draw.maybe,
    }


def _upsampled(draw: Draw) -> Roles:
    name = draw.op.argument_names[0]
    draw.layouts = (*LAYOUTS, CHANNELS_LAST)
    shape = tuple(draw.pick((1, 2, 3, 8, 16)) for _ in range(4))
    factors = [draw.pick((0.0, 2.0, 1.3, 0.5)) for _ in range(2)]
    size = [
        max(1, int(n * f)) if f else draw.pick((1, 5, 16))
        for n, f in zip(shape[2:], factors, strict=True)
    ]
    read, given = (shape, size) if name == "x" else ((*shape[:2], *size), list(shape[2:]))
    return {
        name: lambda: draw.tensor(read),
        "size": lambda: given,
        "factor_h": lambda: factors[0],
        "factor_w": lambda: factors[1],
    }


def _stepped(draw: Draw) -> Roles:
    """Steps of a schedule of 50."""
    drawn = draw.tensor
    shape = draw.shape(1)
    n = shape[0] if draw.op.name == "add_noise" else draw.pick(SIZES)
    wide = ("contiguous",)
    width = draw.pick(COLUMNS)
    table = drawn((50, 2), "unit", "f32") if draw.op.name == "add_noise" else drawn((50, width))
    return {
        "x": lambda: drawn(shape),
        "noise": lambda: drawn(shape),
        "t": lambda: drawn((n,), "classes 50", draw.pick(("int64", "int32")), wide),
        "table": lambda: table,
    }


def _nms(draw: Draw) -> Roles:
    n = draw.pick((0, 1, 5, 64, 65, 150))

    def numbers(limit: int) -> Any:
        return draw.tensor((n,), f"classes {limit}", "int64", OWN)

    return {
        "boxes": lambda: draw.tensor((n, 4)),
        "order": lambda: numbers(max(n, 1)),
        "iou_threshold": lambda: draw.pick((0.0, 0.25, 0.7)),
        "classes": lambda: numbers(3) if draw.maybe() else None,
    }


def _conv1d(draw: Draw) -> Roles:
    n, c, length = draw.pick((0, 1, 2, 5)), draw.pick((1, 3, 8, 20)), draw.pick((1, 4, 7, 16, 33))
    out, taps = draw.pick((1, 6, 8, 24, 72)), draw.random.randint(1, 7)
    return {
        "x": lambda: draw.tensor((n, c, length)),
        "weight": lambda: draw.tensor((out, c, taps)),
        "bias": lambda: draw.tensor((out,)) if draw.maybe() else None,
        "norm_weight": lambda: draw.tensor((out,)),
        "norm_bias": lambda: draw.tensor((out,)),
        "groups": lambda: draw.pick(divisors(out)),
        "activation": lambda: draw.pick(("none", "silu", "mish")),
        "keep": draw.maybe,
        "eps": lambda: draw.pick((1e-5, 1e-6)),
        "grad": lambda: draw.tensor((n, out, length)),
    }


PLANS: Mapping[str, Callable[[Draw], Roles]] = {
    "histogram": _histogram,
    "nms_ordered": _nms,
    **dict.fromkeys(("conv1d_group_norm_forward", "conv1d_backward"), _conv1d),
    **dict.fromkeys(("timestep_rows", "add_noise"), _stepped),
    **dict.fromkeys(("upsample_nearest2d_forward", "upsample_nearest2d_backward"), _upsampled),
}
