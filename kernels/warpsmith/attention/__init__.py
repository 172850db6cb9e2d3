"""Attention."""

from warpsmith.attention.store_kv import store_kv

__all__ = [
    "store_kv",
]
