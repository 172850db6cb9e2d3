"""Models of transformers with their attention through this library: the same answers as eagerly.

They are made from configurations, of a few layers and random weights.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import warpsmith
import warpsmith.transformers as ours

transformers = pytest.importorskip("transformers", minversion="4.53")

SIZES = {
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


def _config(kind: str, **more: Any) -> Any:
    return getattr(transformers, f"{kind}Config")(**{**SIZES, **more})


MODELS = {
    "Llama": lambda: _config("Llama"),
    "Qwen3": lambda: _config("Qwen3"),
    "Mistral": lambda: _config("Mistral", sliding_window=5),
    "Gemma2": lambda: _config("Gemma2", sliding_window=5, attn_logit_softcapping=2.0),
    "GptOss": lambda: _config(
        "GptOss", sliding_window=5, num_local_experts=2, num_experts_per_tok=1
    ),
}


@pytest.fixture(autouse=True)
def _registered() -> None:
    ours.register()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The calls of attention that reach this library."""
    seen: list[tuple[str, dict[str, Any]]] = []
    names = ("flash_attention", "flash_attention_varlen", "scaled_dot_product_attention")
    for name in names:
        function = getattr(warpsmith, name)

        def record(*args: Any, _name: str = name, _call: Any = function, **named: Any) -> Any:
            seen.append((_name, named))
            return _call(*args, **named)

        monkeypatch.setattr(warpsmith, name, record)
    return seen


def _model(kind: str, implementation: str) -> Any:
    torch.manual_seed(0)
    config = MODELS[kind]()
    config._attn_implementation = implementation
    return transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation=implementation
    ).eval()


def _answers(kind: str, **inputs: Any) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        return tuple(_model(kind, name)(**inputs).logits for name in (ours.NAME, "eager"))  # type: ignore[return-value]


def _tokens(*shape: int) -> Tensor:
    return torch.randint(1, 61, shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("kind", MODELS)
def test_models_answer_the_same(kind: str, calls: list[Any]) -> None:
    found, expected = _answers(kind, input_ids=_tokens(2, 13))
    assert len(calls) == SIZES["num_hidden_layers"]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_padding_is_not_seen(kind: str) -> None:
    seen = torch.ones(2, 13, dtype=torch.long)
    seen[1, :6] = 0
    found, expected = _answers(kind, input_ids=_tokens(2, 13), attention_mask=seen)
    kept = seen.bool()
    torch.testing.assert_close(found[kept], expected[kept], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_generation_is_the_same(kind: str) -> None:
    tokens = _tokens(2, 7)
    made = [
        _model(kind, name).generate(tokens, max_new_tokens=9, do_sample=False, eos_token_id=None)
        for name in (ours.NAME, "eager")
    ]
    assert torch.equal(*made)


def test_a_window_is_not_a_mask(calls: list[Any]) -> None:
    """The keys outside of a sliding window are skipped; with padding, they are masked."""
    _answers("Mistral", input_ids=_tokens(1, 13))
    assert [(name, named["window"], named["mask"]) for name, named in calls] == [
        ("flash_attention", (4, -1), None)
    ] * 2
    calls.clear()
    seen = torch.ones(1, 13, dtype=torch.long)
    seen[0, 0] = 0
    _answers("Mistral", input_ids=_tokens(1, 13), attention_mask=seen)
    assert [name for name, _ in calls] == ["scaled_dot_product_attention"] * 2


def test_chunks_are_no_window() -> None:
    from transformers import masking_utils

    def named(rule: Any) -> dict[str, Any]:
        return {"q_length": 9, "kv_length": 9, "mask_function": rule, "local_size": 4}

    window = masking_utils.sliding_window_causal_mask_function(4)
    chunks = masking_utils.chunked_causal_mask_function(4, torch.zeros(1, dtype=torch.long))
    assert ours._is_window(4, named(window))
    assert not ours._is_window(4, named(chunks))
    assert not ours._is_window(4, named(window) | {"allow_is_causal_skip": False})
    assert not ours._is_window(4, named(window) | {"kv_length": 12})


def test_packed_sequences(calls: list[Any]) -> None:
    """With their lengths given, sequences side by side answer as each alone."""
    model, tokens = _model("Llama", ours.NAME), _tokens(1, 12)
    parts = ((0, 5), (5, 12))
    cu = torch.tensor([0, 5, 12], dtype=torch.int32)
    place = torch.cat([torch.arange(b - a) for a, b in parts])[None]
    lengths = {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu, "max_length_q": 7, "max_length_k": 7}
    with torch.no_grad():
        together = model(tokens, position_ids=place, **lengths).logits
        assert [name for name, _ in calls] == ["flash_attention_varlen"] * 2
        for a, b in parts:
            alone = model(tokens[:, a:b]).logits
            torch.testing.assert_close(together[:, a:b], alone, rtol=1e-4, atol=1e-5)


def test_position_bias_and_mask_meet() -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 2, 5, 8, generator=generator) for _ in range(3))
    bias = torch.randn(1, 2, 5, 5, generator=generator)
    seen = torch.rand(2, 1, 5, 5, generator=generator) < 0.7
    module = torch.nn.Module()
    out, _ = ours.attention(module, q, k, v, seen, position_bias=bias)
    scores = (q @ k.mT * 8**-0.5 + bias).masked_fill(~seen, -torch.inf)
    expected = torch.nan_to_num(scores.softmax(-1)) @ v
    torch.testing.assert_close(out, expected.transpose(1, 2), rtol=1e-5, atol=1e-6)
    out, _ = ours.attention(module, q, k, v, None, position_bias=bias)
    scores = (q @ k.mT * 8**-0.5 + bias).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    torch.testing.assert_close(out, (scores.softmax(-1) @ v).transpose(1, 2), rtol=1e-5, atol=1e-6)
