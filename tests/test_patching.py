"""`warpsmith.patch` on models of transformers: the same answers and gradients as before, and back.

They are made from configurations, of a few layers and random weights.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import warpsmith
from warpsmith.patching import swap

transformers = pytest.importorskip("transformers", minversion="5.0")

TEXT = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
}
#: Configurations by what is to be made of them, and what patching is to find there.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", "LlamaConfig", TEXT),
    "Mistral": ("MistralForCausalLM", "MistralConfig", {**TEXT, "sliding_window": 5}),
    "Qwen2": ("Qwen2ForCausalLM", "Qwen2Config", TEXT),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", TEXT),
    "Gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**TEXT, "sliding_window": 5}),
    "Gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**TEXT, "sliding_window": 5}),
    "Phi3": ("Phi3ForCausalLM", "Phi3Config", {**TEXT, "eos_token_id": 1, "bos_token_id": 1}),
    "Mixtral": ("MixtralForCausalLM", "MixtralConfig", {**TEXT, "num_local_experts": 4}),
    "Qwen3Moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**TEXT, **MOE, "num_experts": 4}),
    "GPT2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    ),
    "ViT": ("ViTForImageClassification", "ViTConfig", VISION),
    "CLIP": ("CLIPModel", "CLIPConfig", {}),
    "Bert": ("BertForMaskedLM", "BertConfig", {**TEXT, "hidden_act": "gelu"}),
}
#: What serves how many modules of each: two layers.
SERVED: dict[str, dict[str, int]] = {}
DECODERS = [name for name in MODELS if name not in ("ViT", "CLIP", "Bert")]


def _drop(more: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in more.items() if k not in ("head_dim", "num_key_value_heads")}


def make(name: str, **changes: Any) -> Any:
    """A model with weights that are the same each time, norms' away from one."""
    model_class, config_class, sizes = MODELS[name]
    sizes = {**(_drop(sizes) if name == "Bert" else sizes), **changes}
    if name == "CLIP":
        text = {**_drop(TEXT), "eos_token_id": 2, **changes}
        sizes = {"text_config": text, "vision_config": {**VISION, **changes}, "projection_dim": 16}
    torch.manual_seed(0)
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
            elif not parameter.any():  # Gemma's and Mixtral's are empty until loaded
                parameter.normal_(std=0.02)
    return model.eval()


def tokens(*shape: int) -> Tensor:
    return torch.randint(3, 61, shape, generator=torch.Generator().manual_seed(3))


def inputs(name: str) -> dict[str, Any]:
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(5))
    if name == "ViT":
        return {"pixel_values": pixels, "labels": torch.tensor([0, 1])}
    if name == "CLIP":
        return {"pixel_values": pixels, "input_ids": tokens(2, 9), "return_loss": True}
    ids = tokens(2, 11)
    return {"input_ids": ids, "labels": ids}


def answers(model: Any, name: str, **more: Any) -> dict[str, Tensor]:
    """Outputs and gradients by name."""
    model.zero_grad()
    out = model(**inputs(name), **more)
    out.loss.backward()
    found = {"loss": out.loss.detach()}
    logits = out.logits_per_image if name == "CLIP" else out.logits
    found["logits"] = logits.detach()
    for i, state in enumerate(out.get("hidden_states") or ()):
        found[f"state {i}"] = state.detach()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return {**found, **grads}


def agree(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for key in expected:
        torch.testing.assert_close(found[key], expected[key], rtol=1e-4, atol=1e-5, msg=key)


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for key in expected:
        assert torch.equal(found[key], expected[key]), key


@pytest.mark.parametrize("name", MODELS)
def test_answers_and_gradients_agree(name: str) -> None:
    model = make(name)
    expected, keys = answers(model, name), list(model.state_dict())
    report = warpsmith.patch(model)
    assert report
    assert list(model.state_dict()) == keys
    agree(answers(model, name), expected)
    assert not warpsmith.unpatch(model)
    assert not any(swap.is_swapped(module) for module in model.modules())
    same(answers(model, name), expected)


@pytest.mark.parametrize("name", MODELS)
def test_a_list_of_what_is_served(name: str) -> None:
    print(name, warpsmith.patch(make(name)).functions())
    assert warpsmith.patch(make(name)).functions() == SERVED[name]
