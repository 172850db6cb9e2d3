"""Normalisations over rows."""

from warpsmith.norm import from_output as _from_output  # noqa: F401  enters the catalogue
from warpsmith.norm.layer_norm import layer_norm
from warpsmith.norm.rms_norm import rms_norm

__all__ = ["layer_norm", "rms_norm"]
