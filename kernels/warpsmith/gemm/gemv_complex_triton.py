"""A complex matrix times a few complex vectors in Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from warpsmith.gemm.gemv_triton import product


def gemv_complex(a: Tensor, x: Tensor) -> Tensor:
    """As a real product with twice as many columns and vectors: a pair of weights meets the pair
    of the vector for the real part, and that pair times i for the imaginary one.
    """
    m, k = a.shape[:2]
    if a.numel() == 0 or x.numel() == 0:
        return x.new_zeros((*x.shape[:-2], m, 2))
    real = torch.stack((x[..., 0], -x[..., 1]), -1)
    imaginary = torch.stack((x[..., 1], x[..., 0]), -1)
    values = torch.stack((real, imaginary), -3).reshape(-1, 2 * k)  # [vectors * 2, 2 k]
    y = product(a.reshape(m, 2 * k), values, None, a.dtype)
    return y.reshape(*x.shape[:-2], 2, m).transpose(-1, -2).contiguous()
