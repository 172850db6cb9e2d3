"""The square of relu, on top of relu and mul: it has no kernel of its own yet."""

from __future__ import annotations

import torch
from torch import Tensor

from warpsmith.core import autograd, catalogue
from warpsmith.core.catalogue import Composite, PartCall
from warpsmith.elementwise.binary import mul
from warpsmith.elementwise.unary import relu


def relu_squared(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """`max(x, 0)^2`, by the kernels of `relu` and `mul`; NaN stays NaN.

    relu rounds nothing, so that the result is rounded once. Differentiable.

    Args:
        x: any shape, strides and floating dtype, as in `relu`.
        out: a tensor for the result, of its shape and dtype, which is returned; not differentiable.

    Returns:
        A tensor of the shape and dtype of `x`, with its strides where it is dense.

    Raises:
        RuntimeError: for an `x` that is not floating-point.

    Reference:
        So et al. 2021, "Primer", https://arxiv.org/abs/2109.08668
    """
    return _run(x, out)  # type: ignore[no-any-return]


def _square(x: Tensor, out: Tensor | None) -> Tensor:
    y = relu(x)
    return mul(y, y, out=out)


_run = autograd.speaking("relu_squared", _square)


def _calls(x: Tensor) -> tuple[PartCall, ...]:
    y = torch.empty_like(x)
    return PartCall("relu", (x,), "what is above zero"), PartCall("mul", (y, y), "its square")


composite = catalogue.add_composite(
    Composite(
        "relu_squared(Tensor x) -> Tensor",
        family="elementwise",
        parts=(("relu", "what is above zero"), ("mul", "its square")),
        calls=_calls,
        module=__name__,
        shaped=("x",),
    )
)
