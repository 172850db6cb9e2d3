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
    "FSDP2": "`fully_shard` of the modules around it",
    "DTensor": "sharding rules: no more is moved between processes than has to be",
}

FUNCTIONS: tuple[str, ...] = tuple(host_times.CASES)


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
    "log_softmax rms_norm layer_norm add_rms_norm add_layer_norm cross_entropy bce_with_logits "
    "matmul linear"
)


def sharded() -> frozenset[str]:
    ops = catalogue.load().values()
    activations = (n for op in ops if op.part == "unary" for n in (op.name, *op.aliases))
    return SHARDED | (set(activations) & set(FUNCTIONS))


def works(machinery: str, function: str) -> bool:
    """Whether a function works there; it says that it does not otherwise."""
    if machinery == "second":
        return function in TWICE
    if machinery == "forward":
        return False
    if machinery == "DTensor":
        return function in sharded()
    return True


def table() -> str:
    """As the documentation shows it."""
    rows = [
        "| function | " + " | ".join(MACHINERY) + " |",
        "| :-- |" + " :-: |" * len(MACHINERY),
    ]
    for function in FUNCTIONS:
        cells = ("yes" if works(m, function) else "no" for m in MACHINERY)
        rows.append(f"| `{function}` | " + " | ".join(cells) + " |")
    return "\n".join(rows)
