"""Elementwise operators: activations, sums and products, biased and gated activations, dropout."""

from warpsmith.elementwise.binary import add, bias_gelu, bias_gelu_tanh, mul
from warpsmith.elementwise.dropout import bias_dropout_add, dropout
from warpsmith.elementwise.gated import gelu_and_mul, gelu_tanh_and_mul, silu_and_mul
from warpsmith.elementwise.glu import glu
from warpsmith.elementwise.relu_squared import relu_squared
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
from warpsmith.elementwise.weighted_sum import weighted_sum

__all__ = [
    "add",
    "bias_dropout_add",
    "bias_gelu",
    "bias_gelu_tanh",
    "dropout",
    "elu",
    "gelu",
    "gelu_and_mul",
    "gelu_tanh",
    "gelu_tanh_and_mul",
    "glu",
    "hardshrink",
    "hardswish",
    "mish",
    "mul",
    "mul_add",
    "quick_gelu",
    "relu",
    "relu_squared",
    "sigmoid",
    "silu",
    "silu_and_mul",
    "swish",
    "weighted_sum",
]
