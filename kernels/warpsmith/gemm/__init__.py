"""Matrix products."""

from warpsmith.gemm.gemv import gemv
from warpsmith.gemm.gemv_complex import gemv_complex
from warpsmith.gemm.gemv_scaled import gemv_scaled
from warpsmith.gemm.linear import addmm, linear
from warpsmith.gemm.matmul import matmul
from warpsmith.gemm.matmul_tf32 import matmul_tf32
from warpsmith.gemm.quantized_linear import quantized_linear
from warpsmith.gemm.quantized_weight import QuantizedWeight, repack_quantized_weight
from warpsmith.gemm.scaled_matmul import scaled_matmul

__all__ = [
    "QuantizedWeight",
    "addmm",
    "gemv",
    "gemv_complex",
    "gemv_scaled",
    "linear",
    "matmul",
    "matmul_tf32",
    "quantized_linear",
    "repack_quantized_weight",
    "scaled_matmul",
]
