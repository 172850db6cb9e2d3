"""The row-wise normalisations and their gradients in PyTorch, at any floating dtype."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.spec import philox
from warpsmith.spec.checks import wide_dtype


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


def rstd(x: Tensor, eps: float, layer: bool) -> Tensor:
    """1 / sqrt(var + eps), or of the mean square, of every row, in f32 or wider."""
    wide = wide_dtype(x.dtype)
    if x.numel() == 0:
        return torch.zeros(x.shape[:-1], dtype=wide, device=x.device)
    values = x.detach().to(wide)
    return torch.rsqrt((values.var(-1, correction=0) if layer else values.square().mean(-1)) + eps)


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


# --- with dropout ---------------------------------------------------------------------------------


def branch(x: Tensor, row_scale: Tensor | None, p: float, seed: int, offset: int) -> Tensor:
    """`dropout(x) * row_scale`: zeroes what is dropped and divides the rest by 1 - p."""
    if row_scale is not None:
        x = x * row_scale.to(x.dtype).unsqueeze(-1)
    if philox.threshold(p) == 0:
        return x
    kept = philox.keep_mask(x.shape, p, seed, offset, x.device)
    return torch.where(kept, x * philox.keep_scale(p), 0.0)


def branch_and_add(
    x: Tensor, residual: Tensor | None, row_scale: Tensor | None, p: float, seed: int, offset: int
) -> Tensor:
    """`h = dropout(x) * row_scale + residual` in the dtype of `residual`, rounded once."""
    like = x if residual is None else residual
    wide = widest(x, like)
    h = branch(x.to(wide, copy=True), row_scale, p, seed, offset)
    return (h if residual is None else h + residual.to(wide)).to(like.dtype)


# --- from the output ------------------------------------------------------------------------------


def backward_from_output(
    grad: Tensor,
    y: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    rstd: Tensor,
    eps: float,
    layer: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """dx in the dtype of y, and dw and db; empty where there are none. xhat, the row before weight
    and bias, is recomputed as (y - bias) / weight; a weight of a magnitude below eps counts as eps.
    """
    wide = wide_dtype(y.dtype)
    g, weighted = grad.to(wide), y.to(wide)
    if bias is not None:
        weighted = weighted - bias.to(wide)
    scaled, xhat = g, weighted
    if weight is not None:
        w = weight.to(wide)
        scaled = g * w
        xhat = weighted / torch.where(w.abs() < eps, torch.copysign(w.new_tensor(eps), w), w)
    inner = scaled - scaled.mean(-1, keepdim=True) if layer else scaled
    inner = inner - xhat * (g * weighted).mean(-1, keepdim=True)
    shape = y.shape[-1:]
    dx = (rstd.to(wide).unsqueeze(-1) * inner).to(y.dtype)
    dw = grad.new_empty(0) if weight is None else (g * xhat).sum_to_size(shape).to(weight.dtype)
    db = grad.new_empty(0) if bias is None else g.sum_to_size(shape).to(bias.dtype)
    return dx, dw, db
