"""Losses: cross-entropy, by itself and behind a linear layer, and binary cross-entropy."""

from warpsmith.loss import fused_linear_rows as _fused_linear_rows  # noqa: F401
from warpsmith.loss.bce_with_logits import bce_with_logits
from warpsmith.loss.cross_entropy import cross_entropy, cross_entropy_with_grad
from warpsmith.loss.fused_linear_cross_entropy import fused_linear_cross_entropy

__all__ = [
    "bce_with_logits",
    "cross_entropy",
    "cross_entropy_with_grad",
    "fused_linear_cross_entropy",
]
