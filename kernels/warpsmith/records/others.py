"""The records of scripts in `benchmarks`, which are no operator's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from warpsmith.core import catalogue
from warpsmith.records import sources


@dataclass(frozen=True)
class Other:
    """A record of a script in `benchmarks`, which is no operator's."""

    title: str
    about: str
    #: A hash of what its numbers depend on.
    source: Callable[[], str]


def _layer_source() -> str:
    return sources.of_composite(catalogue.composites()["fused_linear_cross_entropy"])


OTHERS: dict[str, Other] = {
    "fused_linear_cross_entropy": Other(
        "`fused_linear_cross_entropy`",
        "Forward and backward of a linear layer with cross-entropy (x to classes): time of a step, "
        "and the most memory that it holds on top of its inputs, gradients included.",
        _layer_source,
    ),
    "attention_memory": Other(
        "Attention with scores in memory and without",
        "Causal attention from 512 to 16384 tokens, and a layer of Llama 3 8B around it, forward: "
        "time, and the most memory that a call holds on top of its inputs.",
        lambda: sources.of_attention("scaled_masked_softmax", "rms_norm", "add_rms_norm"),
    ),
    "models": Other(
        "Whole models",
        "Models from their configurations, of two layers (the UNet: four blocks) and random "
        "weights at their publishers' widths, bf16: as they are with the attention that PyTorch "
        "chooses, patched, through `torch.compile`, and both. Time of the host counts but in "
        "graphs; errors are against f32, over that of `eager`; memory is what a call takes beyond "
        "its arguments and parameters; parts are of the time of the GPU.",
        sources.of_models,
    ),
    "models_attention": Other(
        "Attention in layers of transformers' models",
        "Two layers of each model, of which attention alone is exchanged.",
        sources.of_attention,
    ),
    "mma_peak": Other(
        "`mma.sync` at its peak",
        "What the instruction does in loops over registers, and the part of it that matrix "
        "products with it reach.",
        sources.of_mma_peak,
    ),
    "host_times": Other(
        "Host time of the public functions",
        "As a user calls them, on tensors so small that the host is all that matters, beside "
        "PyTorch's function or the calls that it stands for. Bounds: without gradient 1.3 times "
        "PyTorch's or 3 µs more, forward where a gradient is required 1.5 times or 8 µs more, "
        "forward and backward 1.25 times or 30 µs more, whichever is larger.",
        sources.of_host_times,
    ),
}
