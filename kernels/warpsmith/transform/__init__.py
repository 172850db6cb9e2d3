"""Moving data: rotary positions, tables, indices, transposes, heads of a fused projection."""

from warpsmith.transform.accumulate import index_add, index_put, scatter_rows
from warpsmith.transform.gather import embedding, gather_rows, index_select
from warpsmith.transform.masked_fill import masked_fill
from warpsmith.transform.qk_norm_rope import qk_norm_rope
from warpsmith.transform.qkv import pack_qkv, unpack_qkv
from warpsmith.transform.rope import rope
from warpsmith.transform.transpose import permute, transpose

__all__ = [
    "embedding",
    "gather_rows",
    "index_add",
    "index_put",
    "index_select",
    "masked_fill",
    "pack_qkv",
    "permute",
    "qk_norm_rope",
    "rope",
    "scatter_rows",
    "transpose",
    "unpack_qkv",
]
