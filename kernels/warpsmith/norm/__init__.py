"""Normalisations over rows and over groups of channels."""

from warpsmith.norm.group_norm import group_norm
from warpsmith.norm.rms_norm import rms_norm

__all__ = ["group_norm", "rms_norm"]
