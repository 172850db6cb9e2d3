"""Honest times of GPU code: cold caches, interleaved implementations, medians."""

from warpsmith.measure.timing import *  # noqa: F403
