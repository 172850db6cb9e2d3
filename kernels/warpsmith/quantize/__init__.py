"""Quantisation to 8 bits, with scales that follow from the values."""

from warpsmith.quantize.fused import rms_norm_quantize, silu_and_mul_quantize
from warpsmith.quantize.quantize import quantize_fp8, quantize_int8

__all__ = ["quantize_fp8", "quantize_int8", "rms_norm_quantize", "silu_and_mul_quantize"]
