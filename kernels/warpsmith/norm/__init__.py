"""Normalisations over rows."""

from warpsmith.norm.rms_norm import rms_norm

__all__ = ["rms_norm"]
