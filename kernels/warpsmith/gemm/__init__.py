"""Matrix products."""

from warpsmith.gemm.linear import addmm, linear
from warpsmith.gemm.matmul import matmul

__all__ = ["addmm", "linear", "matmul"]
