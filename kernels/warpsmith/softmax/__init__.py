"""Softmax and its relatives along any dimension."""

from warpsmith.softmax.softmax import log_softmax, softmax

__all__ = ["log_softmax", "softmax"]
