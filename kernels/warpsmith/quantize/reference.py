"""Quantisation in PyTorch: what shares a scale, the scale, and codes.

    scale = max(amax / largest, 2^-126)        q = round(y * (1 / scale))

in float32, each step rounded to nearest: kernels have the same bits.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.core.catalogue import is_fp8

#: Values of a row that share a scale, or of either side of a block.
GROUP = 128
#: Its reciprocal is finite, and still normal.
LEAST_SCALE = 2.0**-126
#: How many rows and columns share a scale; 0 stands for all of them.
TENSOR, ROW, BLOCK = (0, 0), (1, 0), (GROUP, GROUP)
GROUPS = (1, GROUP)
SHARERS: dict[str, tuple[int, int]] = {
    "tensor": TENSOR,
    "token": ROW,
    "group": GROUPS,
    "block": BLOCK,
}


def largest(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).max if is_fp8(dtype) else 127.0


def scale_shape(shape: torch.Size, sharers: tuple[int, int]) -> tuple[int, ...]:
    """That of the scales for values of a shape."""
    if sharers == TENSOR:
        return ()
    if sharers == ROW:
        return tuple(shape[:-1])
    last = -(-shape[-1] // GROUP)
    return (-(-shape[0] // GROUP), last) if sharers == BLOCK else (*shape[:-1], last)


def _amax(y: Tensor, sharers: tuple[int, int]) -> Tensor:
    shape = scale_shape(y.shape, sharers)
    if y.numel() == 0:
        return y.new_zeros(shape)
    magnitudes = y.abs()
    if sharers == TENSOR:
        return magnitudes.amax()
    if sharers == ROW:
        return magnitudes.amax(-1)
    padded = F.pad(magnitudes, (0, -y.shape[-1] % GROUP))
    if sharers == GROUPS:
        return padded.view(*shape, GROUP).amax(-1)
    padded = F.pad(padded, (0, 0, 0, -y.shape[0] % GROUP))
    return padded.view(shape[0], GROUP, shape[1], GROUP).amax((1, 3))


def spread(scale: Tensor, shape: torch.Size, sharers: tuple[int, int]) -> Tensor:
    """A scale for each value, or what broadcasts to that."""
    if sharers == TENSOR:
        return scale
    if sharers == ROW:
        return scale.unsqueeze(-1)
    each = scale.repeat_interleave(GROUP, -1)[..., : shape[-1]]
    return each if sharers == GROUPS else each.repeat_interleave(GROUP, 0)[: shape[0]]


def quantized(y: Tensor, sharers: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Codes and scales of y, in f32 or f64."""
    most = largest(dtype)
    # a tensor, because a GPU divides by a number as it multiplies with its reciprocal
    scale = (_amax(y, sharers) / y.new_full((), most)).clamp(min=LEAST_SCALE)
    scaled = y * spread(scale.reciprocal(), y.shape, sharers)
    if not is_fp8(dtype):
        scaled = torch.where(scaled.isnan(), 0, scaled).round()
    return scaled.clamp(-most, most).to(dtype).contiguous(), scale.contiguous()


def dequantized(q: Tensor, scale: Tensor, sharers: tuple[int, int]) -> Tensor:
    return q.to(scale.dtype) * spread(scale, q.shape, sharers)
