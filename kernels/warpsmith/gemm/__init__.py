"""Matrix products."""

from warpsmith.gemm.linear import addmm, linear
from warpsmith.gemm.matmul import matmul
from warpsmith.gemm.matmul_tf32 import matmul_tf32
from warpsmith.gemm.scaled_matmul import scaled_matmul

__all__ = ["addmm", "linear", "matmul", "matmul_tf32", "scaled_matmul"]
