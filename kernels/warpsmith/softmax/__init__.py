"""Softmax of attention scores."""

from warpsmith.softmax.bias_scale_mask_softmax_dropout import bias_scale_mask_softmax_dropout
from warpsmith.softmax.scaled_masked_softmax import scaled_masked_softmax

__all__ = ["bias_scale_mask_softmax_dropout", "scaled_masked_softmax"]
