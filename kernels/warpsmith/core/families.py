"""The families in listing order, and which functions each makes public.

Each is a package under `warpsmith` and one folder of `csrc`. A family is imported when one of its
functions or operators is first asked for, so that `import warpsmith` takes as long however many
there are.
"""

from __future__ import annotations

PUBLIC: dict[str, tuple[str, ...]] = {
    "elementwise": (
        "add",
        "bias_dropout_add",
        "bias_gelu",
        "bias_gelu_tanh",
        "dropout",
        "elu",
        "gelu",
        "gelu_and_mul",
        "gelu_tanh",
        "gelu_tanh_and_mul",
        "glu",
        "hardshrink",
        "hardswish",
        "mish",
        "mul",
        "mul_add",
        "quick_gelu",
        "relu",
        "relu_squared",
        "sigmoid",
        "silu",
        "silu_and_mul",
        "swish",
        "weighted_sum",
    ),
    "transform": (
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
    ),
    "reduce": (
        "amax",
        "amin",
        "argmax",
        "argmin",
        "cumsum",
        "dot",
        "mean",
        "reduce_sum",
        "sum",
        "var",
    ),
    "softmax": (
        "bias_scale_mask_softmax_dropout",
        "log_softmax",
        "scaled_masked_softmax",
        "softmax",
    ),
    "norm": (
        "add_layer_norm",
        "add_layer_norm_fp8",
        "add_rms_norm",
        "add_rms_norm_fp8",
        "dropout_add_layer_norm",
        "dropout_add_rms_norm",
        "group_norm",
        "layer_norm",
        "layer_norm_fp8",
        "rms_norm",
        "rms_norm_fp8",
    ),
    "quantize": (
        "quantize_fp8",
        "quantize_int8",
        "rms_norm_quantize",
        "silu_and_mul_quantize",
    ),
    "loss": (
        "bce_with_logits",
        "cross_entropy",
        "cross_entropy_with_grad",
        "fused_linear_cross_entropy",
    ),
    "gemm": (
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
    ),
    "attention": (
        "KvCachePlan",
        "attention_with_kv_cache",
        "flash_attention",
        "flash_attention_varlen",
        "merge_attention_states",
        "plan_attention_with_kv_cache",
        "rope_store_kv",
        "scaled_dot_product_attention",
        "store_kv",
    ),
    "vision": (
        "add_noise",
        "conv1d_group_norm",
        "histogram",
        "nms",
        "nms_fixed",
        "noise_table",
        "timestep_embedding",
        "upsample_nearest2d",
    ),
}
FAMILIES: tuple[str, ...] = tuple(PUBLIC)
#: What works on models: modules, by the attribute of `warpsmith` that each gives.
TOOLS: dict[str, str] = {
    "nn": "warpsmith.nn",
    "patch": "warpsmith.patching",
    "unpatch": "warpsmith.patching",
    "use": "warpsmith.patching.use",
}


def of_function(name: str) -> str | None:
    """The family of a public function."""
    return next((family for family, names in PUBLIC.items() if name in names), None)


def likely(name: str) -> list[str]:
    """All families, those first of which some function begins the name of an operator: the gradient
    or a variant of it.
    """

    def alike(family: str) -> int:
        return max((len(n) for n in PUBLIC[family] if f"{name}_".startswith(f"{n}_")), default=0)

    return sorted(FAMILIES, key=alike, reverse=True)
