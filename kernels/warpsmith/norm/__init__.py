"""Normalisations over rows, and over groups of channels."""

from warpsmith.norm import from_output as _from_output  # noqa: F401  enters the catalogue
from warpsmith.norm.add_norm import add_layer_norm, add_rms_norm
from warpsmith.norm.add_norm_fp8 import (
    add_layer_norm_fp8,
    add_rms_norm_fp8,
    layer_norm_fp8,
    rms_norm_fp8,
)
from warpsmith.norm.dropout_add_norm import dropout_add_layer_norm, dropout_add_rms_norm
from warpsmith.norm.group_norm import group_norm
from warpsmith.norm.layer_norm import layer_norm
from warpsmith.norm.rms_norm import rms_norm

__all__ = [
    "add_layer_norm",
    "add_layer_norm_fp8",
    "add_rms_norm",
    "add_rms_norm_fp8",
    "dropout_add_layer_norm",
    "dropout_add_rms_norm",
    "group_norm",
    "layer_norm",
    "layer_norm_fp8",
    "rms_norm",
    "rms_norm_fp8",
]
