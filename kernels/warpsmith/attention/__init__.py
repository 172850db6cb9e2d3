"""Attention."""

from warpsmith.attention.merge_attention_states import merge_attention_states
from warpsmith.attention.store_kv import store_kv

__all__ = [
    "merge_attention_states",
    "store_kv",
]
