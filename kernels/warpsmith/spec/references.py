"""The functions in PyTorch, and their derivatives: what every kernel is held against.

Below float64 they are PyTorch's own operators. In float64, the yardstick of all accuracy tests,
forms replace them that do not cancel: 1 + erf(x) and 1 - sigmoid(x) lose their digits where the
result is small. What PyTorch computes in several steps is rounded once, at the end, as by the
kernels (`rounded_once`).
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten

_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
_INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)
_KAPPA = 0.044715
QUICK_SLOPE = 1.702


#: The attribute of a function that is `rounded_once` with what it was made of.
_WRITTEN = "_warpsmith_written"


def rounded_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of 16-bit tensors computed in float32, and only its results rounded.

    PyTorch rounds after every operator of a formula: 1.0078125 * 1.0078125 - 1.015625 in bf16 is 0
    that way, and 6.1e-5 as documented here.
    """

    @functools.wraps(function)
    def run(*args: Any, **named: Any) -> Any:
        given = (*args, *named.values())
        dtype = next(a for a in given if isinstance(a, Tensor)).dtype
        if dtype not in (torch.float16, torch.bfloat16):
            return function(*args, **named)
        out = function(*map(_wide, args), **{name: _wide(a) for name, a in named.items()})
        return tuple(o.to(dtype) for o in out) if isinstance(out, tuple) else out.to(dtype)

    setattr(run, _WRITTEN, function)
    return run


def written_as(formula: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Marks a reference that rounds once by means of its own, `formula` being what users write."""

    def mark(reference: Callable[..., Any]) -> Callable[..., Any]:
        setattr(reference, _WRITTEN, formula)
        return reference

    return mark


def _wide(a: Any) -> Any:
    return a.float() if isinstance(a, Tensor) else a


def written(function: Callable[..., Any]) -> Callable[..., Any]:
    """The formula of a function that is `rounded_once`: rounded at every step. Others as they
    are.
    """
    return getattr(function, _WRITTEN, function)


@contextlib.contextmanager
def _plain_cpu(x: Tensor) -> Iterator[None]:
    """Without oneDNN, whose gelu gives NaN at infinity and infinity near the end of the range."""
    if x.device.type != "cpu":
        yield
        return
    # `torch.backends.mkldnn.flags` sets more than this, and warns of it.
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


@rounded_once
def sigmoid_backward(grad: Tensor, x: Tensor) -> Tensor:
    if x.dtype == torch.float64:
        return grad * torch.sigmoid(x) * torch.sigmoid(-x)
    return aten.sigmoid_backward(grad, torch.sigmoid(x))


def relu_backward(grad: Tensor, x: Tensor) -> Tensor:
    return aten.threshold_backward(grad, x, 0)


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return F.elu(x, alpha)


def elu_backward(grad: Tensor, x: Tensor, alpha: float = 1.0) -> Tensor:
    # Vectorised CPU code gives NaN for a NaN in x, CUDA passes the gradient on.
    return torch.where(x.isnan(), grad, aten.elu_backward(grad, alpha, 1, 1, False, x))


def _normal_cdf(x: Tensor) -> Tensor:
    return 0.5 * torch.erfc(x * -math.sqrt(0.5))


def gelu(x: Tensor) -> Tensor:
    if x.dtype == torch.float64:
        return x * _normal_cdf(x)
    with _plain_cpu(x):
        return F.gelu(x)


def gelu_backward(grad: Tensor, x: Tensor) -> Tensor:
    if x.dtype == torch.float64:
        density = _INV_SQRT_2PI * torch.exp(-0.5 * x * x)
        return grad * (_normal_cdf(x) + x * density)
    with _plain_cpu(x):
        return aten.gelu_backward(grad, x)


def _twice_inner(x: Tensor) -> Tensor:
    return 2 * _SQRT_2_OVER_PI * (x + _KAPPA * x * x * x)


def gelu_tanh(x: Tensor) -> Tensor:
    if x.dtype == torch.float64:
        return x * torch.sigmoid(_twice_inner(x))
    with _plain_cpu(x):
        return F.gelu(x, approximate="tanh")


def gelu_tanh_backward(grad: Tensor, x: Tensor) -> Tensor:
    if x.dtype == torch.float64:
        u = _twice_inner(x)
        s = torch.sigmoid(u)
        slope = 2 * _SQRT_2_OVER_PI * (1 + 3 * _KAPPA * x * x)
        return grad * (s + x * (s * torch.sigmoid(-u)) * slope)
    with _plain_cpu(x):
        return aten.gelu_backward(grad, x, approximate="tanh")


def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    return aten.silu_backward(grad, x)


def hardswish_backward(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where(x.isnan(), grad, aten.hardswish_backward(grad, x))


def hardshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    return F.hardshrink(x, lambd)


def hardshrink_backward(grad: Tensor, x: Tensor, lambd: float = 0.5) -> Tensor:
    return torch.where((x >= -lambd) & (x <= lambd), torch.zeros_like(grad), grad)


@rounded_once
def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(QUICK_SLOPE * x)


@rounded_once
def quick_gelu_backward(grad: Tensor, x: Tensor) -> Tensor:
    s = torch.sigmoid(QUICK_SLOPE * x)
    return grad * (s + QUICK_SLOPE * aten.sigmoid_backward(x, s))


def mish_backward(grad: Tensor, x: Tensor) -> Tensor:
    return aten.mish_backward(grad, x)


def through_f32(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a PyTorch user writes, rounded at every step. fp8, in which PyTorch cannot compute, goes
    through float32.
    """
    formula = written(function)

    def run(*args: Any) -> Any:
        dtype = next(a for a in args if isinstance(a, Tensor)).dtype
        if dtype.itemsize != 1:
            return formula(*args)
        out = formula(*map(_wide, args))
        return tuple(o.to(dtype) for o in out) if isinstance(out, tuple) else out.to(dtype)

    return run
