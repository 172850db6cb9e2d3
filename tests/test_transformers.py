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
    assert ours._is_causal(named(window))
    assert not ours._is_causal(named(chunks))
    assert not ours._is_causal(named(window) | {"allow_is_causal_skip": False})
    assert not ours._is_causal(named(window) | {"kv_length": 12})


def _behind_a_cache(name: str, cache: Any, *chunks: Tensor, **named: Any) -> Tensor:
    """The answers to the last of several chunks of a prompt."""
    model = _model("Llama", name)
    with torch.no_grad():
        for chunk in chunks:
            logits = model(chunk, past_key_values=cache, use_cache=True, **named).logits
    return logits  # type: ignore[no-any-return]


def _caches(kind: str) -> list[Any]:
    """One for each of two models."""
    if kind == "dynamic":
        return [transformers.DynamicCache() for _ in range(2)]
    return [transformers.StaticCache(config=_config("Llama"), max_cache_len=24) for _ in range(2)]


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_decoding_has_a_mask_only_where_the_gpu_alone_counts_tokens(
    kind: str, captured: bool, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a graph that is being captured, too, where transformers makes one for every model."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captured)
    monkeypatch.setattr(ours, "_records", lambda: captured)
    own, eager = _caches(kind)
    tokens = _tokens(2, 9)
    chunks = tokens[:, :8], tokens[:, 8:]
    seen: list[Any] = []
    attend = warpsmith.scaled_dot_product_attention
    monkeypatch.setattr(
        warpsmith,
        "scaled_dot_product_attention",
        lambda *args, **named: seen.append(args[3:6]) or attend(*args, **named),
    )
    found = _behind_a_cache(ours.NAME, own, *chunks)
    layers = SIZES["num_hidden_layers"]
    assert len(seen) == 2 * layers
    assert all(mask is None and causal for mask, _, causal in seen[:layers])
    for mask, _, causal in seen[layers:]:
        assert (mask is None) == (kind == "dynamic")
        assert not causal
    expected = _behind_a_cache("eager", eager, *chunks)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("padded", [False, True])
def test_a_cache_of_fixed_size_is_read_as_far_as_it_is_filled(
    padded: bool, tokens: int, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "_decodes", lambda *tensors: True)
    lengths: list[list[int]] = []
    attend = warpsmith.attention_with_kv_cache

    def record(q: Tensor, k: Tensor, v: Tensor, held: Tensor, *rest: Any, **named: Any) -> Any:
        assert k.shape[1] == 24
        lengths.append(held.tolist())
        return attend(q, k, v, held, *rest, **named)

    monkeypatch.setattr(warpsmith, "attention_with_kv_cache", record)
    own, eager = _caches("static")
    given = _tokens(2, 8 + tokens)
    chunks = given[:, :8], given[:, 8:]
    named = {"attention_mask": torch.ones(2, 24, dtype=torch.long)} if padded else {}
    found = _behind_a_cache(ours.NAME, own, *chunks, **named)
    assert lengths == ([] if padded else [[8 + tokens] * 2] * SIZES["num_hidden_layers"])
    expected = _behind_a_cache("eager", eager, *chunks, **named)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_what_kernels_of_a_cache_take() -> None:
    def made(d: int, **changes: Any) -> list[Tensor]:
        return [torch.empty(1, 2, 9, d, **{"dtype": torch.bfloat16, **changes}) for _ in range(3)]

    class OnGpu(Tensor):
        is_cuda = True

    def of(tensors: list[Tensor]) -> bool:
        return ours._decodes(*(x.as_subclass(OnGpu) for x in tensors))

    assert of(made(64))
    assert not ours._decodes(*made(64))
    assert not of(made(64, dtype=torch.float32))
    assert not of(made(68))
    assert not of(made(264))
    assert not of([x[..., ::2] for x in made(64)])
    assert not of([x[..., 1:65] for x in made(66)])
    needs = [x.requires_grad_() for x in made(64)]
    assert not of(needs)
    with torch.no_grad():
        assert of(needs)


@pytest.mark.parametrize("padded", [False, True])
def test_several_queries_behind_a_cache_are_causal(padded: bool, calls: list[Any]) -> None:
    own, eager = _caches("dynamic")
    tokens = _tokens(2, 12)
    chunks = tokens[:, :7], tokens[:, 7:]
    found = _behind_a_cache(ours.NAME, own, chunks[0])
    calls.clear()
    model = _model("Llama", ours.NAME)
    seen = torch.ones(2, 12, dtype=torch.long)
    seen[1, :3] = 0 if padded else 1
    with torch.no_grad():
        found = model(chunks[1], past_key_values=own, use_cache=True, attention_mask=seen).logits
    if padded:
        assert [name for name, _ in calls] == ["scaled_dot_product_attention"] * 2
        return
    assert [(name, named["causal"], named["mask"]) for name, named in calls] == [
        ("flash_attention", True, None)
    ] * 2
    expected = _behind_a_cache("eager", eager, *chunks)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_numbers_that_only_the_gpu_has_need_a_mask() -> None:
    plain = {"q_length": 1, "kv_length": 9, "q_offset": 8}
    assert ours._needs_none(plain)
    assert ours._needs_none({"q_length": 9, "kv_length": 12})  # a new cache of fixed size
    assert ours._needs_none(plain | {"local_size": 10})
    for other in (
        {"q_offset": torch.tensor(8)},
        {"q_offset": 5},
        {"q_length": 2, "q_offset": 7},
        {"attention_mask": torch.ones(1, 9, dtype=torch.bool)},
        {"allow_is_causal_skip": False},
        {"use_vmap": True},
        {"local_size": 9},
    ):
        assert not ours._needs_none(plain | other), other


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
