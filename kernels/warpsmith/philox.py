"""Dropout by Philox4x32-10, in PyTorch: what the kernels drop, element by element."""

from warpsmith.spec.philox import *  # noqa: F403
