"""Matrix products."""

from warpsmith.gemm.linear import addmm, linear
from warpsmith.gemm.matmul import matmul
from warpsmith.gemm.scaled_matmul import scaled_matmul

__all__ = ["addmm", "linear", "matmul", "scaled_matmul"]
