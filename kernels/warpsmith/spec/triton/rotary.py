"""Angles of rotary positions for Triton twins."""

from __future__ import annotations

import torch
from torch import Tensor

from warpsmith.spec.rotary import pairs_of, radians


def angle_tables(
    x: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    positions: Tensor | None,
    turns: Tensor | None,
    axes: Tensor | None,
    factor: float,
    inverse: bool,
) -> tuple[Tensor, Tensor]:
    """A row for each token, [batch or 1, tokens, pairs], by PyTorch: a fallback's angles. Indices
    outside of a table end as PyTorch's do.
    """
    at = torch.arange(x.shape[1], device=x.device)[None] if positions is None else positions
    pairs = pairs_of(cos, turns)
    if axes is None or positions is None:
        at = at[..., None].expand(*at.shape, pairs)
    else:
        at = at[axes.long()].movedim(0, -1)
    if cos is not None and sin is not None:
        if cos.dim() == 2:
            pair = torch.arange(pairs, device=x.device)
            outside = (at < 0) | (at >= cos.shape[0])
            at = torch.where(outside, cos.shape[0], at).long()  # which PyTorch refuses
            cos, sin = cos[at, pair], sin[at, pair]
    else:
        assert turns is not None
        angle = radians(at, turns)
        cos, sin = angle.cos() * factor, angle.sin() * factor
    cos, sin = cos.float().contiguous(), sin.float().contiguous()
    return cos, -sin if inverse else sin
