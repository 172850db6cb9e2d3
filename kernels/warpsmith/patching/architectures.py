"""Which class of which architecture is served by which rule.

A model of Hugging Face is made of classes of its own, whose names begin with its: the tables say
what stands for each. Another model becomes known by a line here and one in the tests.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.nn import Module

from warpsmith.patching import blocks, diffusion, heads, mlps, norms, rope
from warpsmith.patching.attention_norms import QWEN3
from warpsmith.patching.rules import Rule

#: What decoders of language models have in common.
_DECODER = {
    "RMSNorm": norms.LLAMA,
    "MLP": mlps.GATED,
    "DecoderLayer": blocks.LLAMA,
    "Attention": rope.ROPE,
}
#: Where the head and the loss are all that is behind the last norm.
_HEAD = {"ForCausalLM": heads.HEAD}


@dataclass(frozen=True)
class Architecture:
    """The classes of a model.

    Args:
        prefix: with which their names begin.
        package: in which they lie.
        rules: by the rest of their names.
    """

    prefix: str
    package: str
    rules: dict[str, Rule]


def _hf(name: str, prefix: str, rules: dict[str, Rule]) -> Architecture:
    return Architecture(prefix, f"transformers.models.{name}.", rules)


_GEMMA = {
    **_DECODER,
    "RMSNorm": norms.GEMMA,
    "DecoderLayer": blocks.GEMMA,
    "ForCausalLM": heads.CAPPED,
}
_MOE = {**_DECODER, "Experts": mlps.EXPERTS, "ForCausalLM": heads.ROUTED}

ARCHITECTURES = (
    _hf("llama", "Llama", {**_DECODER, **_HEAD}),
    _hf("mistral", "Mistral", {**_DECODER, **_HEAD}),
    _hf("qwen2", "Qwen2", {**_DECODER, **_HEAD}),
    _hf("qwen3", "Qwen3", {**_DECODER, **_HEAD, "Attention": QWEN3}),
    _hf("gemma2", "Gemma2", _GEMMA),
    _hf("gemma3", "Gemma3", {**_GEMMA, "ForConditionalGeneration": heads.GEMMA3_IMAGES}),
    _hf(
        "phi3",
        "Phi3",
        {**_DECODER, **_HEAD, "MLP": mlps.GATED_JOINED, "DecoderLayer": blocks.PHI3},
    ),
    _hf("mixtral", "Mixtral", _MOE),
    _hf("qwen3_moe", "Qwen3Moe", {**_MOE, "Attention": QWEN3}),
    _hf("gpt2", "GPT2", {"Block": blocks.GPT2, "MLP": mlps.GPT2}),
    _hf("vit", "ViT", {"Layer": blocks.VIT, "MLP": mlps.VIT}),
    _hf("clip", "CLIP", {"EncoderLayer": blocks.CLIP, "MLP": mlps.VIT}),
    _hf(
        "bert",
        "Bert",
        {"SelfOutput": blocks.BERT, "Output": blocks.BERT, "Intermediate": mlps.BERT},
    ),
    Architecture(
        "",
        "diffusers.models.",
        {
            "ResnetBlock2D": diffusion.RESNET,
            "GEGLU": diffusion.GEGLU,
            "SwiGLU": diffusion.SWIGLU,
            "GELU": diffusion.GELU,
        },
    ),
)


def _table() -> dict[tuple[str, str], Rule]:
    return {
        (a.package, a.prefix + name): rule for a in ARCHITECTURES for name, rule in a.rules.items()
    }


_RULES = _table()


def of_type(cls: type[Module]) -> Rule | None:
    """The rule of modules of a class."""
    package = cls.__module__.rpartition(".")[0] + "."
    return _RULES.get((package, cls.__name__))


def of_class(cls: type[Module]) -> Architecture | None:
    """The architecture that a class belongs to."""
    home = cls.__module__
    return next((a for a in ARCHITECTURES if home.startswith(a.package)), None)


def rule_of(module: Module) -> Rule | None:
    """The rule of a module of one of these architectures."""
    return of_type(type(module))
