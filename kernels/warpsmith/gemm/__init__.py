"""Matrix products: a matrix times a few vectors."""

from warpsmith.gemm.gemv import gemv
from warpsmith.gemm.gemv_complex import gemv_complex
from warpsmith.gemm.gemv_scaled import gemv_scaled

__all__ = ["gemv", "gemv_complex", "gemv_scaled"]
