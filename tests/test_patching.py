"""`warpsmith.patch` on models of transformers: the same answers and gradients as before, and back.

They are made from configurations, of a few layers and random weights.
"""

from __future__ import annotations

import copy
import functools
import pickle
import re
from collections.abc import Callable
from pathlib import Path
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
Answers = dict[str, Tensor]
Loss = Callable[[Any], Tensor]
_LM = {"scaled_dot_product_attention": 1, "cross_entropy": 1}
_LLAMA = {"add_rms_norm": 2, "rope": 2, "silu_and_mul": 2, "rms_norm": 5, **_LM}
_QWEN3 = {"add_rms_norm": 2, "qk_norm_rope": 2, "silu_and_mul": 2, "rms_norm": 9, **_LM}
_GEMMA = {"add_rms_norm": 2, "rope": 2, "gelu_tanh_and_mul": 2, **_LM}
_LAYERS = {"add_layer_norm": 2, "layer_norm": 5, "scaled_dot_product_attention": 1}
#: How many modules of each each function serves, of two layers.
SERVED: dict[str, dict[str, int]] = {
    "Llama": _LLAMA,
    "Mistral": _LLAMA,
    "Qwen2": _LLAMA,
    "Qwen3": _QWEN3,
    "Gemma2": {**_GEMMA, "rms_norm": 9},
    "Gemma3": {**_GEMMA, "rms_norm": 13},
    "Phi3": _LLAMA,
    "Mixtral": _LLAMA,
    "Qwen3Moe": _QWEN3,
    "GPT2": {**_LAYERS, **_LM, "gelu_tanh": 2},
    "ViT": {**_LAYERS, "gelu": 2},
    "CLIP": {**_LAYERS, "add_layer_norm": 4, "layer_norm": 11, "quick_gelu": 4},
    "Bert": {**_LM, "add_layer_norm": 4, "layer_norm": 6, "gelu": 3},
}
DECODERS = [name for name in MODELS if name not in ("ViT", "CLIP", "Bert")]


def _drop(more: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in more.items() if k not in ("head_dim", "num_key_value_heads")}


def make(name: str, seed: int = 0, **changes: Any) -> Any:
    """A model with weights that are the same each time, norms' away from one."""
    model_class, config_class, sizes = MODELS[name]
    sizes = {**(_drop(sizes) if name == "Bert" else sizes), **changes}
    if name == "CLIP":
        text = {**_drop(TEXT), "eos_token_id": 2, **changes}
        sizes = {"text_config": text, "vision_config": {**VISION, **changes}, "projection_dim": 16}
    torch.manual_seed(seed)
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


def own_loss(out: Any) -> Tensor:
    return out.loss  # type: ignore[no-any-return]


def answers(
    model: Any, name: str, scale: float = 1.0, loss: Loss = own_loss, **more: Any
) -> Answers:
    """Outputs and gradients by name; the gradients of so many times the loss."""
    model.zero_grad()
    out = model(**inputs(name), **more)
    (loss(out) * scale).backward()
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
def test_what_is_served_of_each_architecture(name: str) -> None:
    model = make(name)
    report = warpsmith.patch(model)
    assert report.functions() == SERVED[name]
    names = dict(model.named_modules())
    for entry in (*report.replaced, *report.left):
        assert type(names[entry.name]).__name__ == entry.module
    assert all(kept.why for kept in report.left)
    assert f"1 {type(model).__name__} -> scaled_dot_product_attention" in str(report)


@pytest.mark.parametrize("name", MODELS)
def test_training_and_what_watches_it(name: str) -> None:
    """Hidden states, gradient checkpointing, and both together."""
    model = make(name).train()
    for dropout in (m for m in model.modules() if isinstance(m, torch.nn.Dropout)):
        dropout.p = 0.0
    if name == "GPT2":
        model.config.attn_pdrop = 0.0
    for module in model.modules():
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    more = {"output_hidden_states": True} if name != "CLIP" else {}
    expected = answers(model, name, **more)
    warpsmith.patch(model)
    agree(answers(model, name, **more), expected)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    agree(answers(model, name, **more), expected)


@pytest.mark.parametrize("name", DECODERS)
def test_generation_is_the_same(name: str) -> None:
    model, given = make(name), tokens(2, 7)
    mask = torch.ones_like(given)
    mask[1, :3] = 0
    options = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = model.generate(given, attention_mask=mask, **options)
    warpsmith.patch(model)
    assert torch.equal(model.generate(given, attention_mask=mask, **options), expected)
    static = model.generate(given, attention_mask=mask, cache_implementation="static", **options)
    assert torch.equal(static, expected)


@pytest.mark.parametrize("name", MODELS)
def test_copies_are_models_of_their_own(name: str) -> None:
    model = make(name)
    warpsmith.patch(model)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert not warpsmith.patch(copied)
        same(answers(copied, name), answers(model, name))
        warpsmith.unpatch(copied)
        assert not any(swap.is_swapped(module) for module in copied.modules())
        model.load_state_dict(copied.state_dict())
    assert any(swap.is_swapped(module) for module in model.modules())


#: What keeps the gradients of these small models from where f16 has no digits left.
SCALE = 1024.0
#: Every expert has every token: which ones have it turns on the last digit of a router's logit.
ALL_EXPERTS = {name: {"num_experts_per_tok": 4} for name in ("Mixtral", "Qwen3Moe")}


#: Models whose errors are taken together: those of one are small or large by luck.
SEEDS = range(16)
#: What is differentiated there in place of a loss of a few logits, of which all gradients would
#: share the roundings of one difference.
STEADY: dict[str, Loss] = {
    "ViT": lambda out: out.logits.mean(),
    "CLIP": lambda out: (out.text_embeds + out.image_embeds).mean(),
}


def judged(model: Any, name: str) -> Answers:
    return answers(model, name, SCALE, STEADY.get(name, own_loss))


def exactly(model: Any, run: Callable[[Any], Answers]) -> Answers:
    """The answers of a model that is not patched in f64, of those tensors that f32 gets right.

    The others are zero, but for roundings, which relative to that are of any size: the gradients of
    the biases of keys, for softmax is blind to what all keys have in common.
    """
    wide = copy.deepcopy(model).double()
    wide.set_experts_implementation("eager")  # PyTorch has no grouped products in f64
    exact, rough = run(wide), run(copy.deepcopy(model).float())
    known = {k: x for k, x in exact.items() if (rough[k] - x).norm() <= 0.01 * x.norm()}
    assert len(known) >= 0.9 * len(exact)
    return known


def error(found: list[Answers], exact: list[Answers]) -> float:
    """Of all outputs and gradients of some models together, each relative to its own size."""
    parts = [
        (f[k].double() - e[k]).norm() / e[k].norm().clamp_min(1e-6)
        for f, e in zip(found, exact, strict=True)
        for k in e
    ]
    return float(torch.stack(parts).square().mean().sqrt())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_errors_are_no_larger_in_16_bits(name: str, dtype: torch.dtype) -> None:
    """Against f64 with the same weights."""
    found, plain, exact = [], [], []
    for seed in SEEDS:
        model = make(name, seed, **ALL_EXPERTS.get(name, {})).to(dtype)
        exact.append(exactly(model, lambda m: judged(m, name)))
        plain.append(judged(model, name))
        warpsmith.patch(model)
        found.append(judged(model, name))
        assert found[-1].keys() == plain[-1].keys()
    assert error(found, exact) <= 1.1 * error(plain, exact)


@pytest.mark.parametrize("name", MODELS)
def test_autocast(name: str) -> None:
    found, plain, exact = [], [], []
    for seed in SEEDS:
        model = make(name, seed, **ALL_EXPERTS.get(name, {}))
        exact.append(exactly(model, lambda m: judged(m, name)))
        with torch.autocast("cpu", torch.bfloat16):
            plain.append(judged(model, name))
            warpsmith.patch(model)
            found.append(judged(model, name))
        assert {k: v.dtype for k, v in found[-1].items() if k != "loss"} == {
            k: v.dtype for k, v in plain[-1].items() if k != "loss"
        }
    assert error(found, exact) <= 1.1 * error(plain, exact)


@pytest.mark.parametrize("name", ["Llama", "Qwen3", "Gemma2", "GPT2", "Bert", "ViT"])
def test_compiles_whole(name: str) -> None:
    model = make(name)
    warpsmith.patch(model)
    given = inputs(name)
    given.pop("labels")
    if name in DECODERS:
        given["use_cache"] = False
    with torch.no_grad():
        expected = model(**given).logits
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(**given).logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "count"),
    [("Llama", 15), ("GPT2", 3), ("ViT", 13), ("CLIP", 26), ("Bert", 14)],
)
def test_products_on_request(name: str, count: int) -> None:
    """Every linear layer, each once: that whose activation joins it through its MLP."""
    model = make(name)
    expected = answers(model, name)
    served = warpsmith.patch(model, linear=True).functions()
    assert served["linear"] == count
    agree(answers(model, name), expected)
    warpsmith.unpatch(model)
    same(answers(model, name), expected)


def test_a_product_that_an_mlp_serves_is_not_left() -> None:
    report = warpsmith.patch(make("GPT2"), linear=True)
    left = [kept.name.partition(".h.")[2] for kept in report.left if kept.module == "Conv1D"]
    assert left == [
        f"{i}.{n}" for i in range(2) for n in ("attn.c_attn", "attn.c_proj", "mlp.c_proj")
    ]


@pytest.mark.parametrize("fused", [False, True], ids=["loss", "fused loss"])
@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
def test_training_compiles_whole(name: str, fused: bool) -> None:
    model = make(name).train()
    given = {**inputs(name), "use_cache": False}
    loss = model(**given).loss
    loss.backward()
    expected = {n: p.grad for n, p in model.named_parameters()}
    warpsmith.patch(model, fused_loss=fused)
    model.zero_grad()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    found = compiled(**given).loss
    found.backward()
    torch.testing.assert_close(found, loss, rtol=1e-4, atol=1e-5)
    agree({n: p.grad for n, p in model.named_parameters()}, expected)


def test_what_is_saved_loads_anywhere(tmp_path: Path) -> None:
    model = make("Llama")
    warpsmith.patch(model)
    model.save_pretrained(tmp_path)
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    assert loaded.config._attn_implementation == "sdpa"
    assert not any(swap.is_swapped(module) for module in loaded.modules())
    torch.testing.assert_close(
        loaded.eval()(**inputs("Llama")).logits, model(**inputs("Llama")).logits
    )
    assert type(model).__name__ in loaded.config.architectures


#: What is not zero where the head of a model is served, and what a call may ask for there.
_CAPPED = {"final_logit_softcapping": 0.1}
HEADS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Gemma2": (_CAPPED, {}),
    "Gemma3": (_CAPPED, {}),
    "Mixtral": ({"router_aux_loss_coef": 0.5}, {"output_router_logits": True}),
    "Qwen3Moe": ({"router_aux_loss_coef": 0.5}, {"output_router_logits": True}),
}


def with_images() -> tuple[Any, dict[str, Any]]:
    """Gemma 3 of text and images, whose logits are not capped, and a call with an image."""
    torch.manual_seed(0)
    text = {**TEXT, **_CAPPED, "vocab_size": 64, "sliding_window": 5}
    vision = {**VISION, "vision_use_head": False}
    config = transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=62
    )
    model, ids = transformers.Gemma3ForConditionalGeneration(config), tokens(2, 11)
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight)
    ids[:, 2:6] = 62
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(5))
    labels = ids.masked_fill(ids == 62, -100)
    return model, {"input_ids": ids, "labels": labels, "pixel_values": pixels}


@pytest.mark.parametrize("name", [*sorted(set(DECODERS) - {"GPT2"}), "Gemma3 with images"])
def test_the_head_and_the_loss_in_one(name: str) -> None:
    changes, asked = HEADS.get(name, ({}, {}))
    model, given = (make(name, **changes), inputs(name)) if name in MODELS else with_images()
    model.train()
    calls = [asked, {}, {"num_items_in_batch": torch.tensor(7)}]
    expected = [model(**given, **more) for more in calls]
    expected[0].loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    report = warpsmith.patch(model, fused_loss=True)
    assert report.functions()["fused_linear_cross_entropy"] == 1
    if name in MODELS:
        assert report.functions() == {**SERVED[name], "fused_linear_cross_entropy": 1}
    model.zero_grad()
    found = [model(**given, **more) for more in calls]
    found[0].loss.backward()
    for f, e in zip(found, expected, strict=True):
        assert f.logits is None
        assert list(f) == [key for key in e if key != "logits"]
        torch.testing.assert_close(f.loss, e.loss, rtol=1e-4, atol=1e-5)
    if asked:
        assert abs(found[0].loss - found[1].loss) > 0.1
        torch.testing.assert_close(found[0].aux_loss, expected[0].aux_loss)
    agree({n: p.grad for n, p in model.named_parameters() if p.grad is not None}, gradients)
    for more in ({"labels": None}, {"logits_to_keep": 2, "labels": given["labels"][:, -2:]}):
        assert model(**{**given, **more}).logits is not None
    assert isinstance(model(**given, return_dict=False), tuple)
    assert model.eval()(**given).logits is not None
    warpsmith.unpatch(model)
    assert model.train()(**given).logits is not None


def loss_and_gradients(model: Any, given: dict[str, Any]) -> dict[str, Tensor]:
    model.zero_grad()
    loss = model(**given).loss
    (loss * SCALE).backward()
    return {"loss": loss.detach(), **{n: p.grad.clone() for n, p in model.named_parameters()}}


@pytest.mark.parametrize("name", ["Llama", "Gemma2", "Mixtral"])
def test_errors_of_the_head_and_the_loss_are_no_larger_in_16_bits(name: str) -> None:
    changes = {**HEADS.get(name, ({},))[0], **ALL_EXPERTS.get(name, {})}
    given, found, plain, exact = inputs(name), [], [], []
    for seed in SEEDS:
        model = make(name, seed, **changes).to(torch.bfloat16).train()
        exact.append(exactly(model, lambda m: loss_and_gradients(m, given)))
        warpsmith.patch(model)
        plain.append(loss_and_gradients(model, given))
        warpsmith.patch(model, fused_loss=True)
        found.append(loss_and_gradients(model, given))
        assert found[-1].keys() == plain[-1].keys()
        assert model(**given).logits is None
    assert error(found, exact) <= 1.1 * error(plain, exact)


@pytest.mark.parametrize("change", ["loss", "class", "hook", "forward"])
def test_a_head_that_was_changed_is_left(change: str) -> None:
    """Before it is patched, and afterwards."""

    class Other(torch.nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) * 2.0

    def apply(model: Any) -> None:
        if change == "loss":
            model.loss_function = lambda logits, *args, **named: logits.float().mean()
        elif change == "class":
            model.lm_head.__class__ = Other
        elif change == "hook":
            model.lm_head.register_forward_hook(lambda module, args, out: out * 2.0)
        else:
            model.lm_head.forward = lambda x: torch.nn.functional.linear(x, model.lm_head.weight)

    before, after = (make("Llama").train() for _ in range(2))
    apply(before)
    expected = before(**inputs("Llama"))
    left = [k.why for k in warpsmith.patch(before, fused_loss=True).left if k.name == ""]
    assert left[0].startswith("its loss" if change == "loss" else "its head")
    warpsmith.patch(after, fused_loss=True)
    apply(after)
    for model in (before, after):
        found = model(**inputs("Llama"))
        torch.testing.assert_close(found.loss, expected.loss, rtol=1e-4, atol=1e-5)
        assert found.logits is not None


def test_what_is_asked_for_and_not_served_is_named() -> None:
    report = warpsmith.patch(make("Bert"), fused_loss=True)
    assert "fused_loss: no rule for its head" in {k.why for k in report.left if k.name == ""}
    report = warpsmith.patch(make("Mixtral", experts_implementation="eager"))
    assert "silu_and_mul" not in report.functions()
    assert "2 MixtralExperts left: its products, eager, compute the gate" in str(report)
    report = warpsmith.patch(make("Mixtral"))
    assert "SiLUActivation" not in str(report)  # which is no longer called


def test_a_class_that_was_exchanged_before_is_said() -> None:
    """`fully_shard` puts classes of its own in the places of those that the tables know."""
    model = make("Llama")
    for module in (model, model.model.layers[0], model.model.norm):
        module.__class__ = type(f"FSDP{type(module).__name__}", (type(module),), {})
    left = {kept.name: kept.why for kept in warpsmith.patch(model).left}
    for name, cls in (
        ("", "LlamaForCausalLM"),
        ("model.layers.0", "LlamaDecoderLayer"),
        ("model.norm", "LlamaRMSNorm"),
    ):
        assert left[name] == f"its class is made of {cls}, as fully_shard's are: patch first"


def test_classes_of_no_listed_model_are_said_to_be_that() -> None:
    from transformers.models.granite.modeling_granite import GraniteRMSNorm

    (left,) = warpsmith.patch(torch.nn.Sequential(GraniteRMSNorm(8))).left
    assert left.why == "its architecture is not in the tables"


def test_weights_of_attention_are_missed_aloud() -> None:
    model = make("Llama", attn_implementation="eager")
    given = {"input_ids": tokens(1, 5), "output_attentions": True}
    assert len(model(**given).attentions) == 2
    assert warpsmith.patch(model)
    with pytest.warns(UserWarning, match="makes no weights, which output_attentions=True asks for"):
        assert not model(**given).attentions
    warpsmith.unpatch(model)
    assert len(model(**given).attentions) == 2


@pytest.mark.parametrize("name", ["Llama", "Gemma2", "GPT2", "Bert", "ViT"])
def test_without_data_models_answer(name: str) -> None:
    """On the device "meta", which has no autocast."""
    model = make(name).to("meta")
    assert warpsmith.patch(model)
    given = {k: v.to("meta") for k, v in inputs(name).items()}
    assert model(**given).logits.shape[0] == 2


def test_attention_to_an_encoder() -> None:
    """Blocks with a third branch go their own way."""
    model = make("GPT2", add_cross_attention=True)
    given = {**inputs("GPT2"), "encoder_hidden_states": torch.randn(2, 3, 32)}
    expected = [model(**given).logits, model(**inputs("GPT2")).logits]
    assert warpsmith.patch(model).functions()["add_layer_norm"] == 2
    found = [model(**given).logits, model(**inputs("GPT2")).logits]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_parts_of_a_model_of_ones_own() -> None:
    class Mine(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.text, self.image = make("Llama"), make("ViT")

    model = Mine()
    served = warpsmith.patch(model).functions()
    assert served["scaled_dot_product_attention"] == 2
    assert served["silu_and_mul"] == 2
    warpsmith.unpatch(model)
    assert {m.config._attn_implementation for m in (model.text, model.image)} == {"sdpa"}


@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
def test_the_decoding_that_the_page_shows(name: str) -> None:
    """In a CUDA graph where there is a GPU, step by step where there is none."""
    page = (Path(__file__).resolve().parents[1] / "docs/models.md").read_text()
    (code,) = re.findall(r"```python\n(from transformers import StaticCache.*?)```", page, re.S)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        graph = r"    side = .*?graph = [^\n]*\n[^\n]*\n    (?=    step)"
        code = re.sub(graph, "", code, flags=re.S)
        code = code.replace("        step()\n    for x", "    step()\n    for x")
        code = code.replace("graph.replay()", "step()")
        assert "cuda" not in code
    model, given = make(name).to(device), tokens(2, 7).to(device)
    options = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = model.generate(given, **options)[:, 7:]
    warpsmith.patch(model)
    names: dict[str, Any] = {"torch": torch, "model": model, "tokens": given, "new_tokens": 9}
    exec(compile(code, "docs/models.md", "exec"), names)
    assert torch.equal(torch.cat(names["found"], 1), expected)


# --- what is left ---------------------------------------------------------------------------------


def why_left(model: Any, kind: str) -> str:
    return "; ".join(k.why for k in warpsmith.patch(model).left if kind in k.module)


def test_a_forward_that_was_replaced_is_left() -> None:
    model = make("Llama")
    norm = model.model.layers[0].post_attention_layernorm
    norm.forward = lambda x: x
    report = warpsmith.patch(model)
    left = {kept.name: kept.why for kept in report.left}
    assert "replaced already" in left["model.layers.0.post_attention_layernorm"]
    assert "post_attention_layernorm is not served" in left["model.layers.0"]
    assert report.functions()["add_rms_norm"] == 1


def test_a_forward_that_reads_something_else_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("Llama")
    cls = type(model.model.layers[0].mlp)

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x)) * self.scale

    monkeypatch.setattr(cls, "forward", forward)
    assert "is not the one that this stands for (scale)" in why_left(model, "MLP")


def test_heads_that_are_not_normalised_here_are_turned_here() -> None:
    model = make("Qwen3")
    expected = answers(model, "Qwen3")
    served = warpsmith.patch(model, norms=False).functions()
    assert served["rope"] == 2
    assert "qk_norm_rope" not in served
    agree(answers(model, "Qwen3"), expected)


def test_hooks_see_what_they_saw() -> None:
    model, seen = make("Llama"), []
    norm = model.model.layers[0].post_attention_layernorm
    norm.register_forward_hook(lambda module, args, out: seen.append(out.shape))
    warpsmith.patch(model)
    model(**inputs("Llama"))
    assert seen == [(2, 11, 32)]


@pytest.mark.parametrize("part", ["self_attn", "decoder layer"])
@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
def test_a_decorator_of_ones_own_is_left(
    name: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls = make(name), []
    layer = model.model.layers[0]
    cls = type(layer.self_attn if part == "self_attn" else layer)
    plain = cls.forward

    @functools.wraps(plain)
    def forward(*args: Any, **named: Any) -> Any:
        calls.append(args)
        return plain(*args, **named)

    monkeypatch.setattr(cls, "forward", forward)
    assert "its forward is decorated" in why_left(model, cls.__name__)
    model(**inputs(name))
    assert len(calls) == 2


@pytest.mark.parametrize("part", ["", "self_attn"])
@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
def test_layers_take_their_cache_by_its_older_name(name: str, part: str) -> None:
    """As transformers' own do, whose decorators see to that where there is a newer one."""
    model = make(name)
    layer = model.model.layers[0].get_submodule(part)
    x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(1))
    turns = model.model.rotary_emb(x, torch.arange(5)[None])

    def run() -> tuple[int, Tensor]:
        cache = transformers.DynamicCache(config=model.config)
        given = {"position_embeddings": turns, "attention_mask": None, "past_key_values": cache}
        y = layer(hidden_states=x, **given)
        return cache.get_seq_length(), y[0] if part else y

    with torch.no_grad():
        expected = run()
        assert warpsmith.patch(model)
        found = run()
    assert found[0] == expected[0] == 5
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-5)


def test_attention_that_was_chosen_is_left() -> None:
    model = make("Llama")
    model.config._attn_implementation_internal = "flex_attention"
    assert "its attention is flex_attention" in why_left(model, "LlamaForCausalLM")
    assert model.config._attn_implementation == "flex_attention"


def test_a_loss_that_was_replaced_is_left() -> None:
    model = make("Llama")
    model.loss_function = len
    assert "loss has been replaced" in why_left(model, "LlamaForCausalLM")
    warpsmith.unpatch(model)
    assert model.loss_function is len


def test_an_error_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("Llama")
    expected = answers(model, "Llama")

    def fail(*args: Any) -> None:
        raise OSError("broken")

    monkeypatch.setattr("warpsmith.patching.losses.patch", fail)
    with pytest.raises(OSError, match="broken"):
        warpsmith.patch(model)
    assert not any(swap.is_swapped(module) for module in model.modules())
    assert model.config._attn_implementation != "warpsmith"
    same(answers(model, "Llama"), expected)
