"""Attention that no kernel takes: the Triton twin, then the reference, then a refusal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from warpsmith.attention import options
from warpsmith.core import catalogue, dispatch, references, twins
from warpsmith.core.catalogue import Op

#: In f32: 2 GB of them.
MOST = (2 << 30) // 4


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def call(name: str, m: int, n: int, dtype: torch.dtype = torch.bfloat16, d: int = 8) -> Any:
    """Of 2 sequences and 4 heads, each with m queries and n keys, by name; without memory."""
    wide = dtype if dtype == torch.float64 else torch.float32
    starts = meta(3, dtype=torch.int32)
    q, k, lse = meta(2, m, 4, d, dtype=dtype), meta(2, n, 2, d, dtype=dtype), meta(2, 4, m)
    if "varlen" in name:
        q, k, lse = q.flatten(0, 1), k.flatten(0, 1), meta(4, 2 * m)
    made: dict[str, Any] = {"q": q, "scale": 1.0}
    if name == "attention_with_kv_cache":
        return made | {"k_cache": k, "v_cache": k, "lengths": meta(2, dtype=torch.int32)}
    made |= {"k": k, "v": k}
    if "varlen" in name:
        made |= {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
        made |= {"max_seqlen_q": m, "max_seqlen_k": n}
    if "backward" in name:
        made |= {"grad_out": q, "out": q, "lse": lse.to(wide)}
    return made


def arguments(op: Op, given: dict[str, Any]) -> tuple[Any, ...]:
    return dispatch.in_order(op, (), {"grad_lse": None} | given if "lse" in given else given)


OPS = [op for op in catalogue.load().values() if op.too_large is not None]


class ReachedError(Exception):
    """The reference was asked."""


@pytest.fixture
def _no_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    def reached(*_: Any) -> None:
        raise ReachedError

    monkeypatch.setattr(twins, "why_no_triton", lambda: "Triton is not installed")
    monkeypatch.setattr(references, "computed", reached)


def test_all_that_form_scores_are_asked() -> None:
    assert {op.name for op in OPS} == {
        "flash_attention",
        "flash_attention_varlen",
        "flash_attention_backward",
        "flash_attention_varlen_backward",
        "attention_with_kv_cache",
    }


@pytest.mark.usefixtures("_no_twin")
@pytest.mark.parametrize("op", OPS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_reference_is_given_2_gb_of_scores(op: Op, dtype: torch.dtype) -> None:
    fallback = getattr(torch.ops.warpsmith, op.name).fallback
    m = 1 << 13
    n = MOST // 8 // m // (2 if dtype == torch.float64 else 1)
    with pytest.raises(ReachedError):
        fallback(*arguments(op, call(op.name, m, n, dtype)))
    wide = "float64" if dtype == torch.float64 else "float32"
    wide = "float64" if dtype == torch.float64 else "float32"
    for more in ((m + 1, n), (m, n + 1)):
        message = (
            rf"^{op.name}: no compiled kernel serves the call; .*its {8 * more[0] * more[1]} "
            rf"scores in {wide} would take 2 GB in the PyTorch reference, which is given at most"
        )
        if dtype == torch.float64:
            message = message.replace("; .*its", "; its")
        with pytest.raises(RuntimeError, match=message):
            fallback(*arguments(op, call(op.name, *more, dtype)))


def test_sequences_count_by_their_own_lengths() -> None:
    """Not by the longest: one of 2^14 among short ones."""
    varlen = catalogue.get("flash_attention_varlen")
    given = call("flash_attention_varlen", 1 << 14, 1 << 14, torch.float32)
    assert varlen.too_large is not None
    assert varlen.too_large(*arguments(varlen, given)) is not None
    given["cu_seqlens_q"] = torch.tensor([0, 1 << 13, (1 << 13) + 5], dtype=torch.int32)
    given["cu_seqlens_k"] = torch.tensor([0, 1 << 14, (1 << 14) + 9], dtype=torch.int32)
    assert f"its {MOST + 4 * 45} scores" in str(varlen.too_large(*arguments(varlen, given)))
    given["cu_seqlens_q"][2] -= 5
    assert varlen.too_large(*arguments(varlen, given)) is None

    cached = catalogue.get("attention_with_kv_cache")
    assert cached.too_large is not None
    given = call("attention_with_kv_cache", 1 << 14, 1 << 16)
    assert cached.too_large(*arguments(cached, given)) is not None
    given |= {"lengths": torch.tensor([1 << 12, (1 << 12) - 6], dtype=torch.int32), "appended": 3}
    assert cached.too_large(*arguments(cached, given)) is None
    given["lengths"][0] += 1
    assert f"its {MOST + 4 * (1 << 14)} scores" in str(cached.too_large(*arguments(cached, given)))


def test_a_cpu_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "MOST_SCORE_BYTES", 16)
    q = torch.randn(1, 5, 1, 8, dtype=torch.float64)
    out = torch.ops.warpsmith.flash_attention(q, q, q, 1.0)[0]
    torch.testing.assert_close(
        out, (q[:, :, 0] @ q[:, :, 0].mT).softmax(-1)[:, :, None] @ q[0, :, 0]
    )
    with pytest.raises(RuntimeError, match="its 25 scores in float64 would take"):
        torch.ops.warpsmith.flash_attention.fallback(q, q, q, 1.0)


@pytest.mark.parametrize("op", OPS, ids=str)
def test_heads_wider_than_the_twins_tiles_go_to_the_reference(op: Op) -> None:
    given = call(op.name, 3, 4, d=1032)
    for name, x in given.items():
        if isinstance(x, Tensor):
            given[name] = torch.full(x.shape, 0.03, dtype=x.dtype)
            if x.dtype == torch.int32:
                given[name] = torch.tensor([1, 3, 4][: len(x)], dtype=torch.int32)
            if name.startswith("cu_"):
                given[name] -= 1
    args = arguments(op, given)
    found = getattr(torch.ops.warpsmith, op.name).fallback(*args)
    wanted = getattr(torch.ops.warpsmith, op.name)(*args)
    for a, b in zip(found, wanted, strict=True):
        assert (a is b is None) or torch.equal(a, b)


def test_which_says_what_is_refused() -> None:
    pytest.importorskip("triton")
    name = "flash_attention_backward"
    op = catalogue.get(name)
    choice = dispatch.which(name, *arguments(op, call(name, 64, 64, d=1032)), sm=90)
    assert choice.implementation == "reference"
    assert choice.reason.endswith("the Triton twin needs heads of at most 1024 values")
    large = 1 << 14, 1 << 14
    choice = dispatch.which(name, *arguments(op, call(name, *large, d=1032)), sm=90)
    assert choice.implementation == "refused"
    assert "its 2147483648 scores in float32 would take 8 GB in the PyTorch" in choice.reason
    choice = dispatch.which(name, *arguments(op, call(name, *large, d=1024)), sm=90)
    assert choice.implementation == "cuda"
