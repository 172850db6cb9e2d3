"""Softmax and its relatives: along any dimension, and of attention scores."""

from warpsmith.softmax.bias_scale_mask_softmax_dropout import bias_scale_mask_softmax_dropout
from warpsmith.softmax.scaled_masked_softmax import scaled_masked_softmax
from warpsmith.softmax.softmax import log_softmax, softmax

__all__ = [
    "bias_scale_mask_softmax_dropout",
    "log_softmax",
    "scaled_masked_softmax",
    "softmax",
]
