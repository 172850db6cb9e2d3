"""Reductions, and scans."""

from warpsmith.reduce.cumsum import cumsum
from warpsmith.reduce.reduce_dim import amax, amin, argmax, argmin, mean, sum, var

__all__ = ["amax", "amin", "argmax", "argmin", "cumsum", "mean", "sum", "var"]
