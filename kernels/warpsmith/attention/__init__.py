"""Attention."""

from warpsmith.attention import flash_attention_backward as _gradients  # noqa: F401
from warpsmith.attention.flash_attention import flash_attention, flash_attention_varlen
from warpsmith.attention.kv_cache import attention_with_kv_cache, plan_attention_with_kv_cache
from warpsmith.attention.kv_cache_plan import KvCachePlan
from warpsmith.attention.merge_attention_states import merge_attention_states
from warpsmith.attention.rope_store_kv import rope_store_kv
from warpsmith.attention.scaled_dot_product_attention import scaled_dot_product_attention
from warpsmith.attention.store_kv import store_kv

__all__ = [
    "KvCachePlan",
    "attention_with_kv_cache",
    "flash_attention",
    "flash_attention_varlen",
    "merge_attention_states",
    "plan_attention_with_kv_cache",
    "rope_store_kv",
    "scaled_dot_product_attention",
    "store_kv",
]
