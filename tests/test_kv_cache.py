"""Attention to caches: what the catalogue cannot say of the public functions."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import warpsmith
from warpsmith.attention import kv_cache_cases as cases
from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import Bad, Inputs

E4M3 = torch.float8_e4m3fn


def _sequence(given: dict[str, Any], b: int) -> tuple[Tensor, Tensor]:
    """Keys and values of a sequence, [tokens, heads, d], gathered one by one."""
    n = int(given["lengths"][b])
    table, tokens = given.get("block_table"), given["k_cache"].shape[1]
    places = [
        (b if table is None else int(table[b, i // tokens]), i % tokens if table is not None else i)
        for i in range(n)
    ]
    return tuple(  # type: ignore[return-value]
        torch.stack([given[name][page, token] for page, token in places])
        for name in ("k_cache", "v_cache")
    )


@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize("m", [1, 4])
def test_it_is_attention_of_each_sequence(page: int, m: int) -> None:
    given = cases.call(Inputs(torch.float32), m, 4, 2, 16, [30, 5, 17], page=page)
    out, lse = warpsmith.attention_with_kv_cache(**given, return_lse=True)
    for b in range(3):
        k, v = _sequence(given, b)
        n = len(k)
        seen = torch.ones(m, n, dtype=torch.bool).tril(n - m)
        q, k, v = (x.transpose(0, 1)[None] for x in (given["q"][b], k, v))
        wanted = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        torch.testing.assert_close(out[b], wanted[0].transpose(0, 1), rtol=1e-5, atol=1e-5)
        scores = (q * 0.25) @ k.repeat_interleave(2, 1).mT
        sums = scores.masked_fill(~seen, -torch.inf).logsumexp(-1)
        torch.testing.assert_close(lse[b], sums[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize("e4m3", [False, True])
def test_new_tokens_are_appended_first(page: int, e4m3: bool) -> None:
    """One after the other, each attending to those before, as all at once."""
    i = Inputs(torch.float32)
    given = cases.call(i, 5, 4, 2, 32, [30, 9], page=page, e4m3=e4m3, capacity=35)
    lengths = given["lengths"] - 5
    lengths[1] = 2
    k, v = i.plain(2, 5, 2, 32, salt=11), i.plain(2, 5, 2, 32, salt=12)
    whole = {name: x.clone() if isinstance(x, Tensor) else x for name, x in given.items()}
    out = warpsmith.attention_with_kv_cache(**(whole | {"lengths": lengths}), k=k, v=v)
    steps = []
    for j in range(5):
        one = {"q": given["q"][:, j : j + 1], "lengths": lengths + j}
        steps.append(
            warpsmith.attention_with_kv_cache(**(given | one), k=k[:, j : j + 1], v=v[:, j : j + 1])
        )
    torch.testing.assert_close(out, torch.cat(steps, 1), rtol=1e-5, atol=1e-6)
    for name in ("k_cache", "v_cache"):
        assert torch.equal(whole[name].float(), given[name].float())


def test_heads_before_tokens() -> None:
    given = cases.call(Inputs(torch.float32), 3, 4, 2, 16, [30, 5])
    turned = given | {"q": given["q"].transpose(1, 2)}
    out = warpsmith.attention_with_kv_cache(**turned, layout="bhsd")
    wanted = warpsmith.attention_with_kv_cache(**given)
    torch.testing.assert_close(out, wanted.transpose(1, 2))


@pytest.mark.parametrize("window", [(-1, -1), (9, 0), (9, 3), [4, -1]])
def test_a_window_is_a_pair(window: Any) -> None:
    given = cases.call(Inputs(torch.float32), 5, 2, 1, 16, [60], causal=False)
    found = warpsmith.attention_with_kv_cache(**given, window=window)
    sides = {"window_left": window[0], "window_right": window[1]}
    wanted, _ = torch.ops.warpsmith.attention_with_kv_cache(*cases._args(given | sides))
    assert torch.equal(found, wanted)


def test_a_call_says_what_does_not_fit() -> None:
    given = cases.call(Inputs(torch.float32), 1, 4, 2, 16, [30, 5])
    with pytest.raises(ValueError, match="expected layout to be 'bshd' or 'bhsd', got 'sbhd'"):
        warpsmith.attention_with_kv_cache(**given, layout="sbhd")
    k = torch.zeros(2, 1, 2, 16)
    with pytest.raises(RuntimeError, match="expected both k and v, or neither"):
        warpsmith.attention_with_kv_cache(**given, k=k)
    with pytest.raises(RuntimeError, match="expected appended to be 0 beside k and v, got 2"):
        warpsmith.attention_with_kv_cache(**given, k=k, v=k, appended=2)


def test_what_is_refused_appends_nothing() -> None:
    given = cases.call(Inputs(torch.float32), 1, 4, 2, 16, [30, 5], capacity=40)
    k = torch.ones(2, 1, 2, 16)
    before = {name: given[name].clone() for name in ("k_cache", "v_cache")}
    said = "^attention_with_kv_cache: expected "
    for options, message in (
        ({"sinks": torch.zeros(3)}, r"sinks to have shape \(4,\)"),
        ({"k": k[..., :8]}, r"k_cache to have shape \(2, 40, 2, 8\)"),
        ({"v": k.double()}, r"v to have dtype torch.float32 like k, got torch.float64"),
        ({"k": k[:, 0]}, r"k to have shape \[batch, tokens, heads, d\], got \(2, 2, 16\)"),
    ):
        with pytest.raises(RuntimeError, match=said + message):
            warpsmith.attention_with_kv_cache(**given, **({"k": k, "v": k} | options))
        for name, kept in before.items():
            assert torch.equal(given[name], kept)


@pytest.mark.parametrize("bad", cases.cpu_errors(), ids=lambda bad: bad.label)
def test_what_points_outside_raises_on_a_cpu(bad: Bad) -> None:
    op = catalogue.get("attention_with_kv_cache")
    named = bad.make(Inputs(torch.float32))
    with pytest.raises(bad.error, match=bad.message):
        warpsmith.attention_with_kv_cache(**named)
    assert dispatch.which(op.name, *cases._args(named)).implementation == "reference"


def test_a_token_without_room_raises_on_a_cpu() -> None:
    k_cache, k = torch.zeros(1, 4, 1, 8), torch.ones(1, 2, 1, 8)
    with pytest.raises(IndexError, match="the cache has no room for the tokens of a sequence"):
        warpsmith.store_kv(k, k, k_cache, k_cache.clone(), lengths=torch.tensor([3]).int())
    with pytest.raises(IndexError, match="a slot lies behind the end of the cache"):
        warpsmith.store_kv(k, k, k_cache, k_cache.clone(), slots=torch.tensor([[0, 4]]))
    assert not k_cache.any()


def test_tokens_one_behind_the_other() -> None:
    k_cache, v_cache = torch.zeros(2, 4, 1, 8), torch.zeros(2, 4, 1, 8)
    k = torch.arange(24.0).view(3, 1, 8)
    warpsmith.store_kv(k, -k, k_cache, v_cache, torch.tensor([6, -1, 0]))
    assert torch.equal(k_cache[1, 2], k[0])
    assert torch.equal(v_cache[0, 0], -k[2])
    assert k_cache.count_nonzero() == k[[0, 2]].count_nonzero()


def test_halves_of_a_cache_merge() -> None:
    """Attention to the first half of the keys, and to the second, is attention to all."""
    given = cases.call(Inputs(torch.float32), 1, 4, 2, 16, [30, 30], causal=False)
    whole, lse = warpsmith.attention_with_kv_cache(**given, return_lse=True)
    halves = []
    for part in (slice(0, 13), slice(13, 30)):
        own = {name: given[name][:, part] for name in ("k_cache", "v_cache")}
        own["lengths"] = torch.full((2,), part.stop - part.start, dtype=torch.int32)
        halves += warpsmith.attention_with_kv_cache(**(given | own), return_lse=True)
    out, sums = warpsmith.merge_attention_states(*halves)
    torch.testing.assert_close(out, whole, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(sums, lse)


# --- on a GPU -------------------------------------------------------------------------------------

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@gpu
@pytest.mark.parametrize("e4m3", [False, True])
def test_a_captured_call_serves_other_lengths(e4m3: bool) -> None:
    i = Inputs(torch.bfloat16, "cuda")
    given = cases.call(i, 1, 8, 2, 128, [4000, 17, 900], page=64, capacity=8000, e4m3=e4m3)
    name = "bf16x16_split_kv_e4m3" if e4m3 else "bf16x8_split_kv"

    def attend() -> Tensor:
        return warpsmith.attention_with_kv_cache(**given, variant=name)

    attend()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = attend()
    for lengths in ([1, 1, 1], [8000, 8000, 8000], [0, 5000, 64], [123, 1, 7777]):
        given["lengths"].copy_(torch.tensor(lengths))
        for _ in range(3):
            graph.replay()
            assert torch.equal(captured, attend()), lengths


_OUTSIDE = """
import torch, warpsmith
q = torch.zeros(1, 1, 2, 64, device="cuda", dtype=torch.float16)
cache = torch.zeros(4, 16, 1, 64, device="cuda", dtype=torch.float16)
given = {{"block_table": torch.tensor([[1, {page}]], device="cuda", dtype=torch.int32)}}
if {e4m3}:
    cache = cache.to(torch.float8_e4m3fn)
    given |= dict.fromkeys(("k_scale", "v_scale"), torch.ones((), device="cuda"))
n = torch.tensor([20], device="cuda", dtype=torch.int32)
warpsmith.attention_with_kv_cache(q, cache, cache, n, **given, variant="{variant}")
torch.cuda.synchronize()
"""


@gpu
@pytest.mark.parametrize(
    "rung", [rung.name for rung in catalogue.get("attention_with_kv_cache").ladder]
)
def test_a_page_outside_ends_the_kernel_with_a_message(rung: str) -> None:
    """In a process of its own, which is of no use for CUDA afterwards."""
    variants = catalogue.get("attention_with_kv_cache").variants
    named = next(v.name for v in variants if (v.rung.name, v.dtype) == (rung, "f16"))
    for page, fails in ((3, False), (4, True), (-1, True)):
        code = _OUTSIDE.format(page=page, e4m3=rung.endswith("e4m3"), variant=named)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        said = "block_table names a page that the cache does not have" in done.stderr
        assert (done.returncode != 0, said) == (fails, fails), done.stderr[-2000:]


_STORED_OUTSIDE = """
import torch, warpsmith
k = torch.zeros(1, 2, 2, 64, device="cuda", dtype=torch.float16)
cache = torch.zeros(4, 16, 2, 64, device="cuda", dtype=torch.float16)
where = {where}
where = {{name: torch.tensor(x, device="cuda", dtype=torch.int64 if name == "slots"
                             else torch.int32) for name, x in where.items()}}
warpsmith.store_kv(k, k, cache, cache.clone(), **where, variant="{variant}")
torch.cuda.synchronize()
"""
_STORED: dict[str, tuple[dict[str, Any], str]] = {
    "inside": ({"slots": [[3, 63]]}, ""),
    "slot": ({"slots": [[3, 64]]}, "a slot lies behind the end of the cache"),
    "room": (
        {"lengths": [31], "block_table": [[1, 3]]},
        "the cache has no room for the new tokens of a sequence",
    ),
    "page": (
        {"lengths": [20], "block_table": [[1, 4]]},
        "block_table names a page that the cache does not have",
    ),
}


@gpu
@pytest.mark.parametrize("place", _STORED)
@pytest.mark.parametrize("rung", ["naive", "pack", "stream"])
def test_a_token_without_a_place_ends_the_kernel_with_a_message(rung: str, place: str) -> None:
    """In a process of its own, which is of no use for CUDA afterwards."""
    variants = catalogue.get("store_kv").variants
    named = next(v.name for v in variants if (v.rung.name, v.dtype) == (rung, "f16"))
    where, message = _STORED[place]
    code = _STORED_OUTSIDE.format(where=where, variant=named)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode != 0) == bool(message), done.stderr[-2000:]
    assert message in done.stderr, done.stderr[-2000:]
