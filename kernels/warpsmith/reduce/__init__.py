"""Reductions."""

from warpsmith.reduce.dot import dot
from warpsmith.reduce.reduce_sum import reduce_sum

__all__ = ["dot", "reduce_sum"]
