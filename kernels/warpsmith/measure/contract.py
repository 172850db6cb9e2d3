"""What holds of every public function with a gradient in PyTorch's machinery.

One table: by function and part of the machinery, whether it works or is refused in words.
`tests/test_contract.py` goes through all of it, and `docs/pytorch.md` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping

from warpsmith.core import catalogue
from warpsmith.measure import host_times

#: The columns, and what is meant by each.
MACHINERY: Mapping[str, str] = {
    "autocast": "dtypes as PyTorch's function of that name answers in; gradients in those given",
    "grad": "`torch.func.grad` by all arguments at once",
    "vmap": "`torch.vmap`, one call for each of the batch",
    "vmap(grad)": "gradients of each of a batch",
    "jacrev": "`torch.func.jacrev`",
    "second": "second derivatives, by `create_graph=True` and by transforms",
    "forward": "forward mode: `torch.func.jvp`, `torch.autograd.forward_ad`",
    "export": "`torch.export`, saved, loaded and run",
    "compile": "`torch.compile(fullgraph=True)`, with its gradients",
    "checkpoint": "activation checkpointing",
    "deepcopy": "copies of modules that hold the function and its parameters",
    "inference": "`torch.inference_mode`, and what was made there used elsewhere",
    "graph": "CUDA graphs; what is dropped is drawn anew on each replay",
    "out": "results in tensors of the caller, `out=`",
    "DTensor": "sharding rules: no more is moved between processes than has to be",
}

FUNCTIONS: tuple[str, ...] = tuple(host_times.CASES)
#: Functions that have no gradient. What prepares a call on the host is none of them: plans, tables
#: of noise, repacked weights.
PLAIN: tuple[str, ...] = (
    "argmax", "argmin", "layer_norm_fp8", "rms_norm_fp8", "add_layer_norm_fp8", "add_rms_norm_fp8",
    "rms_norm_quantize", "silu_and_mul_quantize", "quantize_fp8", "quantize_int8",
    "cross_entropy_with_grad", "accumulate_matmul", "gemv_complex", "gemv_scaled", "scaled_matmul",
    "scaled_grouped_matmul", "attention_with_kv_cache", "merge_attention_states", "store_kv",
    "rope_store_kv", "histogram", "nms", "nms_fixed", "timestep_embedding",
)  # fmt: skip
PLAIN_MACHINERY: tuple[str, ...] = ("vmap", "export", "compile", "inference", "graph", "out")


def _named(names: str) -> frozenset[str]:
    return frozenset(names.split())


#: Functions that are differentiated twice; the others refuse to.
TWICE = _named(
    "add mul mul_add dropout bias_dropout_add weighted_sum amax amin mean sum var cumsum "
    "gather_rows scatter_rows index_select index_add index_put masked_fill rope transpose "
    "permute unpack_qkv pack_qkv add_noise upsample_nearest2d reduce_sum dot matmul "
    "matmul_tf32 linear addmm gemv grouped_matmul fused_qkv quantized_linear"
)
#: Functions whose tensors may be sharded, beside all activations.
SHARDED = _named(
    "add mul mul_add bias_gelu bias_gelu_tanh silu_and_mul gelu_and_mul gelu_tanh_and_mul softmax "
    "relu_squared glu weighted_sum dropout bias_dropout_add "
    "log_softmax scaled_masked_softmax bias_scale_mask_softmax_dropout rms_norm layer_norm "
    "add_rms_norm add_layer_norm dropout_add_rms_norm dropout_add_layer_norm group_norm "
    "cross_entropy bce_with_logits fused_linear_cross_entropy matmul linear"
)


#: Of those without a gradient: what writes to arguments, which `vmap` refuses, as it does of
#: PyTorch's; and what waits for the GPU to say how many results there are.
WRITES = _named("accumulate_matmul store_kv rope_store_kv")
WAITS = _named("nms")
#: Functions that take `out`, beside all activations.
WRITTEN = _named(
    "add mul mul_add bias_gelu bias_gelu_tanh silu_and_mul gelu_and_mul gelu_tanh_and_mul "
    "glu relu_squared rms_norm layer_norm group_norm add_rms_norm add_layer_norm rms_norm_fp8 "
    "layer_norm_fp8 add_rms_norm_fp8 add_layer_norm_fp8 dropout_add_rms_norm "
    "dropout_add_layer_norm softmax log_softmax matmul matmul_tf32 linear addmm grouped_matmul "
    "scaled_matmul scaled_grouped_matmul quantized_linear gated_linear fused_mlp fused_qkv gemv "
    "gemv_complex gemv_scaled"
)


def activations() -> frozenset[str]:
    """Functions of one tensor, by all their names."""
    ops = catalogue.load().values()
    names = {n for op in ops if op.part == "unary" for n in (op.name, *op.aliases)}
    return frozenset(names & set(FUNCTIONS))


def sharded() -> frozenset[str]:
    return SHARDED | activations()


def written() -> frozenset[str]:
    return WRITTEN | activations()


def works(machinery: str, function: str) -> bool:
    """Whether a function works there; it says that it does not otherwise."""
    if machinery == "second":
        return function in TWICE
    if machinery == "vmap" and function in PLAIN:
        return function not in WRITES | WAITS
    if machinery == "graph":
        return function not in WAITS
    if machinery == "forward":
        return False
    if machinery == "DTensor":
        return function in sharded()
    if machinery == "out":
        return function in written()
    return True


def table() -> str:
    """As the documentation shows it."""
    return _table(FUNCTIONS, tuple(MACHINERY))


def plain_table() -> str:
    """The same of functions without a gradient."""
    return _table(PLAIN, PLAIN_MACHINERY)


def _table(functions: tuple[str, ...], machinery: tuple[str, ...]) -> str:
    rows = [
        "| function | " + " | ".join(machinery) + " |",
        "| :-- |" + " :-: |" * len(machinery),
    ]
    for function in functions:
        cells = ("yes" if works(m, function) else "no" for m in machinery)
        rows.append(f"| `{function}` | " + " | ".join(cells) + " |")
    return "\n".join(rows)
