"""Moving data: transposes and permutations."""

from warpsmith.transform.transpose import permute, transpose

__all__ = ["permute", "transpose"]
