"""Matrix products: a matrix times a few vectors."""

from warpsmith.gemm.gemv import gemv

__all__ = ["gemv"]
