"""8-bit weights with scales times a few vectors in Triton."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.gemm.gemv_triton import product


def gemv_scaled(a: Tensor, x: Tensor, scale: Tensor) -> Tensor:
    if a.shape[1] == 0:  # no products to scale, by whatever it is
        return x.new_zeros((*x.shape[:-1], a.shape[0]))
    if x.dtype == torch.float64:  # wider than what the kernel adds in
        return (F.linear(x, a.to(x.dtype)) * scale).contiguous()
    return product(a, x, scale, x.dtype)
