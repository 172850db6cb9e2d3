"""PyTorch's functions served here, for code whose modules are not to be touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

import warpsmith
from warpsmith.core import autocast
from warpsmith.nn import calls
from warpsmith.patching.losses import in_pytorchs_dtype


def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    if not calls.fits(x) or approximate not in ("none", "tanh"):
        return F.gelu(x, approximate=approximate)
    return warpsmith.gelu(x, approximate)


def _cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    if size_average is not None or reduce is not None:
        return F.cross_entropy(
            input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing
        )
    return in_pytorchs_dtype(input, target, weight, ignore_index, reduction, label_smoothing)


def _softmax(function: str) -> Callable[..., Tensor]:
    def run(
        input: Tensor,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        plain = getattr(F, function)
        wide = dtype not in (None, input.dtype) or autocast.is_on(input)
        if dim is None or wide or not calls.fits(input):
            return plain(input, dim, _stacklevel + 1, dtype)
        return getattr(warpsmith, function)(input, dim)

    return run


#: What serves a function of PyTorch; each takes its arguments, and hands it what no kernel takes.
SERVED: dict[Callable[..., Any], Callable[..., Any]] = {
    F.layer_norm: lambda input, normalized_shape, weight=None, bias=None, eps=1e-5: (
        calls.layer_norm(input, normalized_shape, weight, bias, eps)
    ),
    F.rms_norm: lambda input, normalized_shape, weight=None, eps=None: calls.rms_norm(
        input, normalized_shape, weight, eps
    ),
    F.group_norm: lambda input, num_groups, weight=None, bias=None, eps=1e-5: calls.group_norm(
        input, num_groups, weight, bias, eps
    ),
    F.gelu: _gelu,
    F.softmax: _softmax("softmax"),
    F.log_softmax: _softmax("log_softmax"),
    F.cross_entropy: _cross_entropy,
    F.scaled_dot_product_attention: (
        lambda *args, **named: warpsmith.scaled_dot_product_attention(*args, **named)
    ),
}


class use(TorchFunctionMode):
    """A context in which functions of `torch.nn.functional` are served by this library.

        with warpsmith.use():
            loss = model(batch)

    Served are `layer_norm`, `rms_norm`, `group_norm`, `gelu`, `softmax`, `log_softmax`,
    `cross_entropy` and `scaled_dot_product_attention`, called as functions or by modules; what a
    kernel does not take is PyTorch's as before, in the dtypes that PyTorch answers in. Gradients
    of what was called within are computed here, too, wherever `backward` is called. PyTorch asks
    the context at every call of a function, which takes the host a few microseconds: where the host
    is what is waited for, `patch` the model instead.

    Args:
        *functions: functions of `torch.nn.functional` to be served; without any all of them.

    Raises:
        ValueError: one of the functions is not served.
    """

    def __init__(self, *functions: Callable[..., Any]) -> None:
        super().__init__()
        for function in functions:
            if function not in SERVED:
                known = ", ".join(sorted(f.__name__ for f in SERVED))
                name = getattr(function, "__name__", function)
                raise ValueError(f"use: expected functions of {known}, got {name}")
        self._served = {f: SERVED[f] for f in functions} if functions else SERVED

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), named: Any = None
    ) -> Any:
        return self._served.get(function, function)(*args, **(named or {}))
