"""Patched models under `torch.compile`: what is in their graphs, and that answers stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import warpsmith
import warpsmith.transformers as ours
from warpsmith.patching import swap

transformers = pytest.importorskip("transformers", minversion="5.0")

from test_patching import DECODERS, make  # noqa: E402

#: Those whose layers see all that is before them.
WHOLE = [name for name in DECODERS if name not in ("Mistral", "Gemma2", "Gemma3")]


class Attention:
    """A backend that runs the graph as it is, and keeps what its calls of attention are given:
    whether there is a mask, and whether they are causal.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[bool, bool]] = []

    def __call__(self, graph: Any, inputs: Any) -> Any:
        for node in graph.graph.nodes:
            if getattr(node.target, "__name__", "") == "scaled_dot_product_attention":
                self.calls.append((node.args[3] is not None, node.args[5]))
        return graph


@pytest.fixture(autouse=True)
def _anew() -> None:
    torch._dynamo.reset()


def tokens(*shape: int) -> Tensor:
    return torch.randint(1, 61, shape, generator=torch.Generator().manual_seed(3))


def compiled(model: Any, **inputs: Any) -> tuple[Any, Attention]:
    backend = Attention()
    return torch.compile(model, backend=backend, fullgraph=True)(**inputs), backend


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("use_cache", [False, True], ids=["alone", "cache"])
def test_no_mask_of_scores_where_lengths_say_that_it_is_causal(name: str, use_cache: bool) -> None:
    model = make(name)
    warpsmith.patch(model)
    inputs = {"input_ids": tokens(2, 4), "use_cache": use_cache}  # shorter than any window
    with torch.no_grad():
        expected = model(**inputs)
        found, backend = compiled(model, **inputs)
    assert list(found) == list(expected)
    assert type(found.past_key_values) is type(expected.past_key_values)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-5)
    assert backend.calls == ([] if name == "Gemma2" else [(False, True)] * 2)  # a soft cap


@pytest.mark.parametrize("name", WHOLE)
def test_nor_in_training(name: str) -> None:
    model = make(name).eval()  # without dropout
    warpsmith.patch(model)
    inputs = {"input_ids": tokens(2, 9), "labels": tokens(2, 9), "use_cache": False}
    expected = model(**inputs).loss
    found, backend = compiled(model, **inputs)
    assert backend.calls == [(False, True)] * 2
    torch.testing.assert_close(found.loss, expected, rtol=1e-5, atol=1e-5)


def test_a_token_after_others() -> None:
    model = make("Llama")
    warpsmith.patch(model)

    def step(compile_it: bool) -> tuple[Tensor, Attention]:
        cache = transformers.DynamicCache()
        with torch.no_grad():
            model(input_ids=tokens(2, 9), past_key_values=cache)
            inputs = {"input_ids": tokens(2, 1), "past_key_values": cache}
            if compile_it:
                found, backend = compiled(model, **inputs)
                return found.logits, backend
            return model(**inputs).logits, Attention()

    found, backend = step(True)
    assert backend.calls == [(False, False)] * 2
    torch.testing.assert_close(found, step(False)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("more", ["padding", "positions", "several after others", "static"])
def test_what_lengths_do_not_say_is_masked(more: str) -> None:
    model = make("Llama")
    warpsmith.patch(model)

    def inputs() -> dict[str, Any]:
        given: dict[str, Any] = {"input_ids": tokens(2, 7), "use_cache": False}
        if more == "padding":
            seen = torch.ones(2, 7, dtype=torch.long)
            seen[1, :3] = 0
            return {**given, "attention_mask": seen}
        if more == "positions":  # of two sequences in one
            place = torch.cat([torch.arange(4), torch.arange(3)])[None].expand(2, 7)
            return {**given, "position_ids": place}
        kind = transformers.DynamicCache
        cache = transformers.StaticCache(model.config, 16) if more == "static" else kind()
        model(input_ids=tokens(2, 3), past_key_values=cache)
        return {"input_ids": tokens(2, 7), "past_key_values": cache}

    with torch.no_grad():
        expected = model(**inputs()).logits
        found, backend = compiled(model, **inputs())
    kept = slice(None) if more != "padding" else (slice(None), slice(3, None))
    torch.testing.assert_close(found.logits[kept], expected[kept], rtol=1e-4, atol=1e-5)
    # the mask of several queries behind a cache says that it is causal: flash_attention reads none
    assert backend.calls == ([] if more == "several after others" else [(True, False)] * 2)


def test_lengths_may_vary() -> None:
    model = make("Llama")
    warpsmith.patch(model)
    backend = Attention()
    run = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for length in (5, 9, 13):
            found = run(input_ids=tokens(2, length)).logits
            expected = model(input_ids=tokens(2, length)).logits
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert backend.calls == [(False, True)] * 2


def test_windows_are_not_read_where_they_are_compiled() -> None:
    """They go to flash_attention, which skips the keys outside."""
    model = make("Mistral")
    warpsmith.patch(model)
    with torch.no_grad():
        for use_cache in (False, True):
            inputs = {"input_ids": tokens(2, 13), "use_cache": use_cache}
            found, backend = compiled(model, **inputs)
            expected = model(**inputs).logits
            torch.testing.assert_close(found.logits, expected, rtol=1e-4, atol=1e-5)
            assert backend.calls == []


def test_no_mask_in_a_graph_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody can look for padding, lengths alone say that there is none to be masked."""
    from transformers import masking_utils

    monkeypatch.setattr(masking_utils, "is_tracing", lambda *args: True)
    rule = masking_utils.causal_mask_function
    named = {
        "batch_size": 2,
        "allow_is_causal_skip": True,
        "device": "cpu",
        "mask_function": rule,
    }
    decoding = {**named, "q_length": 1, "kv_length": 9, "q_offset": 8}
    assert ours.mask(**decoding) is None
    assert ours.mask(**{**named, "q_length": 9, "kv_length": 9}) is None
    assert ours.mask(**{**named, "q_length": 9, "kv_length": 16, "q_offset": 0}) is None
    late = {**named, "q_length": 2, "kv_length": 9, "q_offset": 7}
    for masked in (
        late,
        {**decoding, "allow_is_causal_skip": False},
        {**decoding, "attention_mask": torch.ones(2, 9, dtype=torch.bool)},
        {**late, "kv_length": 16, "q_offset": torch.tensor(0)},
        {
            **decoding,
            "local_size": 4,
            "mask_function": masking_utils.sliding_window_causal_mask_function(4),
        },
    ):
        assert ours.mask(**masked) is not None
    everything = {
        "mask_function": masking_utils.bidirectional_mask_function,
        "allow_is_causal_skip": False,
        "allow_is_bidirectional_skip": True,
    }
    assert ours.mask(**{**late, **everything}) is None


def test_what_is_exported_keeps_its_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    named = {"batch_size": 2, "q_length": 9, "kv_length": 9}
    assert ours._needs_none(named)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    assert not ours._needs_none(named)


def test_the_part_that_makes_masks_is_given_back() -> None:
    model = make("Llama")
    cls = type(model.model)
    warpsmith.patch(model)
    assert swap.is_swapped(model.model)
    assert not warpsmith.patch(model)
    warpsmith.unpatch(model)
    assert type(model.model) is cls
    warpsmith.patch(model, attention=False)
    assert type(model.model) is cls


def test_packed_sequences_without_compilation_are_as_before() -> None:
    model = make("Llama")
    warpsmith.patch(model)
    place = torch.cat([torch.arange(4), torch.arange(3)])[None]
    with torch.no_grad():
        together = model(tokens(1, 7), position_ids=place, use_cache=False).logits
        alone = model(tokens(1, 7)[:, 4:], use_cache=False).logits
    torch.testing.assert_close(together[:, 4:], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
@pytest.mark.parametrize("training", [False, True], ids=["prefill", "training"])
def test_nothing_is_copied_around_kernels(name: str, training: bool) -> None:
    """What strides and operators that write would cost a compiled model shows in its graph."""
    from torch._dynamo.backends.common import aot_autograd

    model = make(name).to(torch.bfloat16)
    warpsmith.patch(model)
    seen: list[str] = []

    def keep(graph: Any, inputs: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    run = torch.compile(
        model.model, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep), fullgraph=True
    )
    with torch.set_grad_enabled(training):
        y = run(input_ids=tokens(2, 9), use_cache=False).last_hidden_state
        if training:
            y.sum().backward()
    assert "warpsmith.rms_norm.default" in seen
    assert ("warpsmith.rms_norm_backward.default" in seen) == training
    copies = ("aten.clone", "aten.copy", "aten.contiguous", "auto_functionalized")
    assert not any(target.startswith(copies) for target in seen)
