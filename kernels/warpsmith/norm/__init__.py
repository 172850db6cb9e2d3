"""Normalisations over rows."""

from warpsmith.norm.add_norm import add_layer_norm, add_rms_norm
from warpsmith.norm.rms_norm import rms_norm

__all__ = ["add_layer_norm", "add_rms_norm", "rms_norm"]
