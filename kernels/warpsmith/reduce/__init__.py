"""Reductions, over everything and along a dimension, and cumulative sums."""

from warpsmith.reduce.cumsum import cumsum
from warpsmith.reduce.dot import dot
from warpsmith.reduce.over_dims import amax, amin, argmax, argmin, mean, sum, var
from warpsmith.reduce.reduce_sum import reduce_sum

__all__ = [
    "amax",
    "amin",
    "argmax",
    "argmin",
    "cumsum",
    "dot",
    "mean",
    "reduce_sum",
    "sum",
    "var",
]
