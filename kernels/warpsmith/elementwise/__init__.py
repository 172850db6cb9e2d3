"""Elementwise operators: activations, sums and products, biased and gated activations."""

from warpsmith.elementwise.binary import add, bias_gelu, bias_gelu_tanh, mul
from warpsmith.elementwise.gated import gelu_and_mul, gelu_tanh_and_mul, silu_and_mul
from warpsmith.elementwise.ternary import mul_add
from warpsmith.elementwise.unary import (
    elu,
    gelu,
    gelu_tanh,
    hardshrink,
    hardswish,
    mish,
    quick_gelu,
    relu,
    sigmoid,
    silu,
    swish,
)

__all__ = [
    "add",
    "bias_gelu",
    "bias_gelu_tanh",
    "elu",
    "gelu",
    "gelu_and_mul",
    "gelu_tanh",
    "gelu_tanh_and_mul",
    "hardshrink",
    "hardswish",
    "mish",
    "mul",
    "mul_add",
    "quick_gelu",
    "relu",
    "sigmoid",
    "silu",
    "silu_and_mul",
    "swish",
]
