"""Moving data: transposes, permutations, heads of a fused projection."""

from warpsmith.transform.qkv import pack_qkv, unpack_qkv
from warpsmith.transform.transpose import permute, transpose

__all__ = ["pack_qkv", "permute", "transpose", "unpack_qkv"]
