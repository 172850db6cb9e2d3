"""The residual norms and their gradients in PyTorch, at any floating dtype."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional as F


def add(x: Tensor, residual: Tensor | None) -> Tensor:
    """`h = x + residual` in the dtype of `residual`, rounded once; without one, `x` itself."""
    if residual is None:
        return x
    wide = torch.promote_types(x.dtype, residual.dtype)
    return (x.to(wide) + residual.to(wide)).to(residual.dtype)


def norm(
    h: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    zero_centered: bool,
    layer: bool,
    dtype: torch.dtype,
) -> Tensor:
    """The norm of `h` in `dtype`, rounded once; `layer` subtracts the mean."""
    if h.numel() == 0:
        return torch.empty(h.shape, dtype=dtype, device=h.device)
    given = [t for t in (h, weight, bias) if t is not None]
    if zero_centered or any(t.dtype != dtype for t in given):
        wide = widest(*given, dtype)
        h = h.to(wide)
        weight = None if weight is None else weight.to(wide) + (1.0 if zero_centered else 0.0)
        bias = None if bias is None else bias.to(wide)
    shape = h.shape[-1:]
    if layer:
        return F.layer_norm(h, shape, weight, bias, eps).to(dtype)
    return F.rms_norm(h, shape, weight, eps).to(dtype)


def widest(*of: Tensor | torch.dtype) -> torch.dtype:
    """A dtype that holds all of them, f32 at least."""
    dtypes = (t.dtype if isinstance(t, Tensor) else t for t in of)
    return functools.reduce(torch.promote_types, dtypes, torch.float32)


def nothing_like(x: Tensor) -> Tensor:
    """An empty tensor that depends on `x`, as an output of an operator of `x` does."""
    return x.reshape(-1)[:0].clone()


def norm_backward(
    grad: Tensor,
    grad_h: Tensor | None,
    h: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    zero_centered: bool,
    layer: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of `h`, unrounded, and of weight and bias; empty where there are none."""
    wide = widest(grad, h)
    g, values = grad.to(wide), h.to(wide)
    if layer:
        values = values - values.mean(-1, keepdim=True)
    rstd = torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)
    xhat = values * rstd
    scaled = g
    if weight is not None:
        scaled = g * (weight.to(wide) + (1.0 if zero_centered else 0.0))
    dh = scaled - xhat * (scaled * xhat).mean(-1, keepdim=True)
    if layer:
        dh = dh - scaled.mean(-1, keepdim=True)
    dh = rstd * dh
    if grad_h is not None:
        dh = dh + grad_h.to(wide)
    shape = h.shape[-1:]
    dw = grad.new_empty(0) if weight is None else (g * xhat).sum_to_size(shape).to(weight.dtype)
    db = grad.new_empty(0) if bias is None else g.sum_to_size(shape).to(bias.dtype)
    return dh, dw, db
