"""Matrix products."""

from warpsmith.gemm.accumulate_matmul import accumulate_matmul
from warpsmith.gemm.fused_mlp import fused_mlp
from warpsmith.gemm.fused_qkv import fused_qkv
from warpsmith.gemm.gated_linear import gated_linear
from warpsmith.gemm.gemv import gemv
from warpsmith.gemm.gemv_complex import gemv_complex
from warpsmith.gemm.gemv_scaled import gemv_scaled
from warpsmith.gemm.grouped_matmul import grouped_matmul
from warpsmith.gemm.linear import addmm, linear
from warpsmith.gemm.matmul import matmul
from warpsmith.gemm.matmul_tf32 import matmul_tf32
from warpsmith.gemm.quantized_linear import quantized_linear
from warpsmith.gemm.quantized_weight import QuantizedWeight, repack_quantized_weight
from warpsmith.gemm.scaled_grouped_matmul import scaled_grouped_matmul
from warpsmith.gemm.scaled_matmul import scaled_matmul

__all__ = [
    "QuantizedWeight",
    "accumulate_matmul",
    "addmm",
    "fused_mlp",
    "fused_qkv",
    "gated_linear",
    "gemv",
    "gemv_complex",
    "gemv_scaled",
    "grouped_matmul",
    "linear",
    "matmul",
    "matmul_tf32",
    "quantized_linear",
    "repack_quantized_weight",
    "scaled_grouped_matmul",
    "scaled_matmul",
]
