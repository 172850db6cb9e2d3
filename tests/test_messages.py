"""What public functions say of bad calls: in their own names, and of every kind of argument."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import warpsmith
from warpsmith.core import catalogue, families, messages

X = torch.randn(4, 4)
HEADS = torch.randn(1, 4, 2, 8)
TURNS = torch.ones(4, dtype=torch.int64)

KINDS: dict[str, tuple[Callable[[], Any], str]] = {
    "histogram of so many and a half": (
        lambda: warpsmith.histogram(X, 2.5, X[0]),
        "histogram: expected bins to be a whole number, got float",
    ),
    "unpack_qkv(x, bias)": (
        lambda: warpsmith.unpack_qkv(X, X),
        "unpack_qkv: expected heads to be a whole number, got Tensor",
    ),
    "softmax(x, name)": (
        lambda: warpsmith.softmax(X, "a"),
        "softmax: expected dim to be a whole number, got str",
    ),
    "layer_norm(x, eps)": (
        lambda: warpsmith.layer_norm(X, X[0], 0.5),
        "layer_norm: expected bias to be a tensor or None, got float",
    ),
    "no target": (
        lambda: warpsmith.cross_entropy(X, None),
        "cross_entropy: expected target to be a tensor, got None",
    ),
    "gelu(list)": (
        lambda: warpsmith.gelu([1.0]),
        "gelu: expected x to be a tensor, got list",
    ),
    "rms_norm_quantize(x, weight, eps)": (
        lambda: warpsmith.rms_norm_quantize(X, X[0], 1e-6),
        "rms_norm_quantize: expected dtype to be a torch.dtype, got float",
    ),
    "quantize_int8(list)": (
        lambda: warpsmith.quantize_int8([1.0]),
        "quantize_int8: expected x to be a tensor, got list",
    ),
    "linear of a list and more": (
        lambda: warpsmith.linear([1.0], X, X[0], "gelu", keep=True),
        "linear: expected x to be a tensor, got list",
    ),
    "gated_linear(x, w_gate, None)": (
        lambda: warpsmith.gated_linear(X, X, None),
        "gated_linear: expected w_up to be a tensor, got None",
    ),
    "gated_linear(list)": (
        lambda: warpsmith.gated_linear([1.0], X, X),
        "gated_linear: expected x to be a tensor, got list",
    ),
    "fused_qkv(list)": (
        lambda: warpsmith.fused_qkv([1.0], X, heads=1, head_dim=4),
        "fused_qkv: expected x to be a tensor, got list",
    ),
    "flash_attention(list)": (
        lambda: warpsmith.flash_attention([1.0], HEADS, HEADS),
        "flash_attention: expected q to be a tensor, got list",
    ),
    "flash_attention without keys": (
        lambda: warpsmith.flash_attention(HEADS, None, HEADS, layout="bhsd"),
        "flash_attention: expected k to be a tensor, got None",
    ),
    "flash_attention(sinks=list)": (
        lambda: warpsmith.flash_attention(HEADS, HEADS, HEADS, sinks=[1.0, 2.0]),
        "flash_attention: expected sinks to be a tensor or None, got list",
    ),
    "flash_attention_varlen(list)": (
        lambda: warpsmith.flash_attention_varlen([1.0], HEADS[0], HEADS[0], TURNS, TURNS, 4, 4),
        "flash_attention_varlen: expected q to be a tensor, got list",
    ),
    "flash_attention_varlen of a window": (
        lambda: warpsmith.flash_attention_varlen(
            HEADS[0], HEADS[0], HEADS[0], TURNS, TURNS, 4, 4, window=3
        ),
        "flash_attention_varlen: expected window to be two numbers of keys, before and past, got 3",
    ),
    "attention_with_kv_cache(list)": (
        lambda: warpsmith.attention_with_kv_cache([1.0], HEADS, HEADS, TURNS),
        "attention_with_kv_cache: expected q to be a tensor, got list",
    ),
    "attention_with_kv_cache and a list of keys": (
        lambda: warpsmith.attention_with_kv_cache(HEADS, HEADS, HEADS, TURNS, k=[1.0], v=HEADS),
        "attention_with_kv_cache: expected k to be a tensor, got list",
    ),
    "attention_with_kv_cache by a number": (
        lambda: warpsmith.attention_with_kv_cache(HEADS, HEADS, HEADS, TURNS, plan=3),
        "attention_with_kv_cache: expected plan to be a KvCachePlan or None, got int",
    ),
    "plan_attention_with_kv_cache(list)": (
        lambda: warpsmith.plan_attention_with_kv_cache([1.0], HEADS, HEADS),
        "plan_attention_with_kv_cache: expected q to be a tensor, got list",
    ),
    "plan_attention_with_kv_cache of lengths": (
        lambda: warpsmith.plan_attention_with_kv_cache(HEADS, HEADS, HEADS, [3]),
        "plan_attention_with_kv_cache: expected lengths to be a tensor, got list",
    ),
    "merge_attention_states(list)": (
        lambda: warpsmith.merge_attention_states([1.0], X, HEADS, X),
        "merge_attention_states: expected out_a to be a tensor, got list",
    ),
    "store_kv(list)": (
        lambda: warpsmith.store_kv([1.0], HEADS, HEADS, HEADS, TURNS),
        "store_kv: expected k to be a tensor, got list",
    ),
    "rope_store_kv(list)": (
        lambda: warpsmith.rope_store_kv([1.0], HEADS, HEADS, HEADS, HEADS),
        "rope_store_kv: expected q to be a tensor, got list",
    ),
    "fused_mlp without a way back": (
        lambda: warpsmith.fused_mlp(X, X, None),
        "fused_mlp: expected w_down to be a tensor, got None",
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_an_argument_of_another_kind_is_named(name: str) -> None:
    call, said = KINDS[name]
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value) == said


NAMES: dict[str, tuple[Callable[[], Any], str]] = {
    "bce": (lambda: warpsmith.bce_with_logits(X, X[:2]), "bce_with_logits: expected target"),
    "cross_entropy": (
        lambda: warpsmith.cross_entropy(X, torch.arange(3)),
        "cross_entropy: expected target",
    ),
    "upsample": (
        lambda: warpsmith.upsample_nearest2d(X, scale_factor=2.0),
        "upsample_nearest2d: expected x",
    ),
    "timestep": (
        lambda: warpsmith.timestep_embedding(torch.ones(2, 2, dtype=torch.int64), 32),
        "timestep_embedding: expected t",
    ),
    "rope in place": (
        lambda: warpsmith.rope(HEADS.expand(2, 1, 4, 2, 8)[:, 0, :, 0], inplace=True),
        "rope: expected q to have shape [batch, tokens, heads, d], got (2, 4, 8)",
    ),
    "q and k in 3-D": (
        lambda: warpsmith.rope(HEADS[0]),
        "rope: expected q to have shape [batch, tokens, heads, d], got (4, 2, 8)",
    ),
    "angles twice": (
        lambda: warpsmith.rope(HEADS, None, torch.ones(1, 4, 8), torch.ones(1, 4, 8)),
        "rope: expected cos and sin to have each angle of a head of 8 values once, as "
        "cos[..., :4] has them, got (1, 4, 8)",
    ),
    "rotary_dim beside tables": (
        lambda: warpsmith.rope(HEADS, None, torch.ones(4, 4), torch.ones(4, 4), rotary_dim=4),
        "rope: expected no rotary_dim beside cos and sin, got 4",
    ),
    "base beside turns": (
        lambda: warpsmith.qk_norm_rope(
            HEADS, HEADS, X[0].repeat(2), X[0].repeat(2), turns=TURNS, base=500.0
        ),
        "qk_norm_rope: expected no base beside turns, got 500.0",
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_messages_begin_with_the_function(name: str) -> None:
    call, said = NAMES[name]
    with pytest.raises((RuntimeError, ValueError)) as error:
        call()
    assert str(error.value).startswith(said), str(error.value)


def test_every_operator_of_a_public_function_is_known_by_it() -> None:
    for name, op in catalogue.load().items():
        if op.backward is not None and "backward" not in name:
            assert families.of_function(messages.called_by(op)), name


def test_positions_of_tokens_alone() -> None:
    positions = torch.tensor([3, 1, 0, 2])
    found = warpsmith.rope(HEADS, positions=positions)
    torch.testing.assert_close(found, warpsmith.rope(HEADS, positions=positions[None]))


def test_a_table_made_within_inference_mode_serves_training() -> None:
    q = torch.randn(1, 4, 2, 10)
    with torch.inference_mode():
        warpsmith.rope(q, base=777.0)
    q = q.clone().requires_grad_()
    warpsmith.rope(q, base=777.0).sum().backward()
    assert q.grad is not None


def test_steps_as_diffusers_gives_them() -> None:
    t = torch.tensor([0, 3, 999])
    rows = warpsmith.timestep_embedding(t, 32, cos_first=True, frequency_shift=0.0)
    named = {"flip_sin_to_cos": True, "downscale_freq_shift": 0.0}
    torch.testing.assert_close(warpsmith.timestep_embedding(t, 32, **named), rows)
    torch.testing.assert_close(warpsmith.timestep_embedding(t.float(), 32, **named), rows)
    torch.testing.assert_close(warpsmith.timestep_embedding(t[1], 32, **named), rows[1:2])
    half = torch.tensor([1.5])
    scaled = warpsmith.timestep_embedding(half, 32, scale=2.0, **named)
    torch.testing.assert_close(scaled, warpsmith.timestep_embedding(half * 2, 32, **named))
    torch.testing.assert_close(scaled, warpsmith.timestep_embedding(torch.tensor([3]), 32, **named))


def test_bins_of_floats_as_in_pytorch() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    for options in ({}, {"range": (-1.0, 1.0)}):
        wanted = torch.histogram(x, 16, **options).hist.long()
        assert torch.equal(warpsmith.histogram(x, 16, **options), wanted)
    edges = torch.tensor([-1.0, 0.0, 2.0])
    assert torch.equal(warpsmith.histogram(x, edges), torch.histogram(x, edges).hist.long())
    assert warpsmith.histogram(torch.ones(5), 3).tolist() == [0, 5, 0]
    assert warpsmith.histogram(torch.ones(0), 3).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="histogram: expected no range beside edges"):
        warpsmith.histogram(x, edges, range=(0.0, 1.0))


PARTS: dict[str, tuple[Callable[[], Any], str]] = {
    "a dtype": (
        lambda: warpsmith.fused_mlp(X, X, X.half()),
        r"fused_mlp: expected w_down to have dtype torch\.float32 like x, got torch\.float16",
    ),
    "a way in": (
        lambda: warpsmith.fused_mlp(X, X[:, :3], X, X[:, :3]),
        r"fused_mlp: cannot multiply shapes \(4, 4\) and \(4, 3\) transposed",
    ),
    "a gate": (
        lambda: warpsmith.fused_mlp(X, X, X, X[:3]),
        r"fused_mlp: expected w_gate to have the shape \(4, 4\) of w_up, got \(3, 4\)",
    ),
    "a bias": (
        lambda: warpsmith.fused_mlp(X, X, X, b_down=X[0, :3]),
        r"fused_mlp: expected b_down to have shape \(4,\), the rows of its weight, got \(3,\)",
    ),
    "a residual": (
        lambda: warpsmith.fused_mlp(X, X, X, residual=X[0]),
        r"fused_mlp: expected residual to have shape \(4, 4\), that of the result, got \(4,\)",
    ),
    "a buffer's layer": (
        lambda: warpsmith.linear(X[:, :3], X, grad_weight=X),
        r"linear: cannot multiply shapes \(4, 3\) and \(4, 4\) transposed",
    ),
    "a quantiser": (
        lambda: warpsmith.quantize_fp8(X[None], "block"),
        r"quantize_fp8: expected x to be 2-D for blocks of 128 x 128, got shape \(1, 4, 4\)",
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_function_of_several_operators_speaks_for_them(name: str) -> None:
    call, said = PARTS[name]
    with pytest.raises(RuntimeError, match=f"^{said}$"):
        call()


def test_a_dtype_by_its_name_or_as_pytorch_has_it() -> None:
    x = X.half()
    named = warpsmith.matmul(x, x, out_dtype="f32")
    assert torch.equal(warpsmith.matmul(x, x, out_dtype=torch.float32), named)
    assert warpsmith.matmul(x, x, out_dtype=torch.float16).dtype == torch.float16
    with pytest.raises(RuntimeError, match="expected out_dtype to be 'same' or 'f32', got 'bf16'"):
        warpsmith.matmul(x, x, out_dtype=torch.bfloat16)
    q, ones = X.to(torch.float8_e4m3fn), torch.ones(4)
    assert warpsmith.scaled_matmul(q, q, ones, ones, torch.float16).dtype == torch.float16
    ends = torch.tensor([4], dtype=torch.int32)
    y = warpsmith.scaled_grouped_matmul(q, q[None], ends, ones, ones[None], torch.float32)
    assert y.dtype == torch.float32


def _starts(*places: int) -> Tensor:
    return torch.tensor(places, dtype=torch.int32)


@pytest.mark.parametrize(
    ("q_starts", "k_starts", "most_q", "most_k", "said"),
    [
        ((1, 2), (0, 4), 4, 4, "cu_seqlens_q to begin with 0, got 1"),
        ((-1, 4), (0, 4), 5, 4, "cu_seqlens_q to begin with 0, got -1"),
        ((0, 3, 1), (0, 3, 4), 4, 4, "cu_seqlens_q not to decrease, got 1 behind 3"),
        ((0, 3, 4), (0, 5, 4), 4, 5, "cu_seqlens_k not to decrease, got 4 behind 5"),
        ((0, 4), (0, 5), 4, 5, "cu_seqlens_k to end within the 4 tokens of k, got 5"),
        ((0, 1, 4), (0, 3, 4), 2, 3, "max_seqlen_q to be at least 3, the longest sequence, got 2"),
        ((0, 1, 4), (0, 3, 4), 3, 1, "max_seqlen_k to be at least 3, the longest sequence, got 1"),
    ],
)
def test_sequences_lie_one_behind_the_other(
    q_starts: tuple[int, ...], k_starts: tuple[int, ...], most_q: int, most_k: int, said: str
) -> None:
    x = HEADS[0]
    with pytest.raises(RuntimeError, match=f"^flash_attention_varlen: expected {said}$"):
        warpsmith.flash_attention_varlen(
            x, x, x, _starts(*q_starts), _starts(*k_starts), most_q, most_k
        )


def test_sequences_may_leave_tokens_out() -> None:
    x = HEADS[0]
    for starts in ((0, 2, 3), (0, 0, 4), (0,)):
        cu = _starts(*starts)
        assert warpsmith.flash_attention_varlen(x, x, x, cu, cu, 4, 4).shape == x.shape


ARGUMENTS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "rope over itself": (
        lambda: warpsmith.rope(HEADS.clone().requires_grad_(), inplace=True),
        RuntimeError,
        "rope: not differentiable with inplace; expected arguments that require no gradient",
    ),
    "the second dimension": (
        lambda: warpsmith.transpose(HEADS, 0, 5),
        IndexError,
        "transpose: expected dim1 to lie in [-4, 3], got 5",
    ),
    "the first dimension": (
        lambda: warpsmith.transpose(HEADS, -5, 1),
        IndexError,
        "transpose: expected dim0 to lie in [-4, 3], got -5",
    ),
    "a window": (
        lambda: warpsmith.flash_attention(HEADS, HEADS, HEADS, window=(-2, 0)),
        RuntimeError,
        "flash_attention: expected the sides of window to be -1 (no limit) or more, got (-2, 0)",
    ),
    "a window of a cache": (
        lambda: warpsmith.attention_with_kv_cache(HEADS, HEADS, HEADS, TURNS, window=(0, -3)),
        RuntimeError,
        "attention_with_kv_cache: expected the sides of window to be -1 (no limit) or more, "
        "got (0, -3)",
    ),
    "a weight as a whole": (
        lambda: warpsmith.quantized_linear(X, warpsmith.QuantizedWeight(X, X, None)),
        TypeError,
        "quantized_linear: expected a QuantizedWeight to be unpacked, quantized_linear(x, *weight)",
    ),
    "no scales": (
        lambda: warpsmith.quantized_linear(X, X),
        TypeError,
        "quantized_linear: expected scales to be a tensor, got None",
    ),
    "a place in a cache for each of a batch": (
        lambda: torch.vmap(
            lambda k: warpsmith.store_kv(k, k, HEADS, HEADS, slots=torch.zeros(1, 4).long())
        )(HEADS[None]),
        RuntimeError,
        "store_kv: expected no torch.vmap, as it writes to its arguments",
    ),
    "boxes for each of a batch": (
        lambda: torch.vmap(lambda x: warpsmith.nms(x, x[:, 0], 0.5))(X[None]),
        RuntimeError,
        "nms: expected no torch.vmap, as the host waits",
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_messages_name_what_the_function_has(name: str) -> None:
    call, error, said = ARGUMENTS[name]
    with pytest.raises(error, match=f"^{re.escape(said)}"):
        call()
