"""Plans of attention to a cache: counted as the kernels do, and refused where they do not fit."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch
from torch import Tensor

import warpsmith
from warpsmith.attention import kv_cache, kv_cache_plan
from warpsmith.attention import kv_cache_cases as cases
from warpsmith.attention.kv_cache_plan import Gpu, KvCachePlan
from warpsmith.core import dispatch
from warpsmith.core.catalogue import Inputs
from warpsmith.native.csrc import CSRC

H200 = Gpu(132, 227 * 1024)
RTX_4090 = Gpu(128, 99 * 1024)
#: Of csrc/attention/kv_cache/tiles.h, which tile a row of a table in Python is.
STRUCTS = {
    "SplitKvTile": (kv_cache_plan.TILES, False, 16),
    "SplitKvE4m3Tile": (kv_cache_plan.TILES, True, 16),
    "QueryTilesTile": (kv_cache_plan.TILES, False, 64),
    "QueryTilesE4m3Tile": (kv_cache_plan.TILES, True, 64),
}


def given(**changes: Any) -> dict[str, Any]:
    made = cases.call(Inputs(torch.bfloat16), 1, 8, 2, 64, [60, 9], **changes)
    return {name: made[name] for name in made if name != "scale"}


def shapes(
    batch: int, m: int, capacity: int, heads: int = 32, kv_heads: int = 8, d: int = 128
) -> tuple[Tensor, Tensor, Tensor]:
    """q and caches of bf16 that take no memory."""
    q = torch.empty(batch, m, heads, d, dtype=torch.bfloat16, device="meta")
    cache = torch.empty(batch, capacity, kv_heads, d, dtype=torch.bfloat16, device="meta")
    return q, cache, cache


def planned(
    *call: Tensor, lengths: list[int] | None = None, gpu: Gpu = H200, **more: Any
) -> KvCachePlan:
    held = None if lengths is None else torch.tensor(lengths)
    table, invariant = more.pop("block_table", None), more.pop("batch_invariant", False)
    return kv_cache._planned(*call, held, table, invariant, gpu, sm=90)


@pytest.mark.parametrize("struct", STRUCTS)
def test_tiles_are_those_of_the_kernels(struct: str) -> None:
    tiles, e4m3, rows = STRUCTS[struct]
    text = (CSRC / "attention/kv_cache/tiles.h").read_text()
    found = re.findall(rf"struct {struct}<T, (\d+)> : SplitTile<([\w, ]+)>", text)
    assert [int(d) for d, _ in found] == [64, 128, 256]
    for (_, parameters), tile in zip(found, tiles[e4m3, rows], strict=True):
        cache, _, warps_m, *rest = parameters.split(", ")
        assert (cache == "e4m3", 16 * int(warps_m), tuple(map(int, rest))) == (e4m3, rows, tile)


def test_numbers_are_those_of_the_kernels() -> None:
    text = (CSRC / "attention/kv_cache/split.h").read_text()
    for name, value in (
        ("kLeastRounds", kv_cache_plan._LEAST_ROUNDS),
        ("kKeysOfPiece", kv_cache_plan._KEYS_OF_PIECE),
        ("kInvariantRounds", kv_cache_plan._INVARIANT_ROUNDS),
    ):
        assert f"constexpr int {name} = {value};" in text
    few = f"kFewQueries = {kv_cache_plan.FEW_QUERIES}"
    pairs = f"kMostPairedQueries = {kv_cache_plan.MOST_PAIRED_QUERIES}"
    assert f"constexpr int {few}, {pairs};" in text
    assert f"kMostPairedBytes = int64_t{{{kv_cache_plan.MOST_PAIRED_BYTES >> 20}}} << 20;" in text
    binding = (CSRC / "attention/kv_cache/kv_cache.h").read_text()
    assert f"kMostPlannedBlocks = {kv_cache_plan.MOST_BLOCKS};" in binding


def test_a_long_sequence_has_the_gpu_and_a_short_one_leaves_it() -> None:
    """Tiles of 64 keys, two blocks a multiprocessor: 264 on an H200."""
    one = shapes(1, 1, 131072)
    # 8 heads of 2048 rounds: 62 or 63 for each of 264 blocks, which 63 each of 261 are done with
    assert planned(*one).blocks == 261
    assert planned(*one, gpu=RTX_4090).blocks == 128  # has room for one block: 128 rounds each
    # 8 of 128: 4 each
    assert planned(*one, lengths=[8192]).blocks == 256
    # 8 of 3, of which nobody takes fewer than 2
    assert planned(*one, lengths=[130]).blocks == 12
    assert planned(*one, lengths=[0]).blocks == 4


def test_sequences_and_tiles_of_queries_count() -> None:
    plan = planned(*shapes(3, 1, 4096), lengths=[64, 640, 0])
    assert (plan.blocks, plan.served_by) == (48, "attention_with_kv_cache_bf16x8_split_kv")
    # 512 tokens of 4 heads each: 32 tiles of 64 rows, 8 heads, 16 rounds of 32 keys
    plan = planned(*shapes(1, 512, 512))
    assert plan.served_by == "attention_with_kv_cache_bf16x8_query_tiles"
    assert plan.blocks == -(-32 * 8 * 16 // 16)


def test_large_pieces_have_many_keys() -> None:
    """Tiles of 32 keys: 16 KB a round, against 32 KB for the sums of 64 queries."""
    assert planned(*shapes(1, 16, 2048)).blocks == 64  # 8 heads of 64 rounds, 8 each
    assert planned(*shapes(1, 16, 8192)).blocks == 256  # 8 of 256
    assert planned(*shapes(1, 9, 2048)).blocks == -(-8 * 64 // 5)  # 36


def test_two_tiles_share_keys_that_stay_in_l2() -> None:
    """8 tokens of 4 heads each: 32 queries, two tiles of 16 with rounds of 64 keys."""
    plan = planned(*shapes(1, 8, 8192))
    assert plan.served_by == "attention_with_kv_cache_bf16x8_split_kv"
    assert plan.blocks == 8 * 2 * 128 // 8
    for more in (shapes(1, 8, 131072), shapes(1, 9, 8192)):
        assert planned(*more).served_by == "attention_with_kv_cache_bf16x8_query_tiles"


def test_the_workspace_is_that_of_the_blocks() -> None:
    plan = planned(*shapes(1, 1, 131072))
    assert plan.workspace_bytes == 4 * plan.blocks * (2 * 16 * 130 + 1)
    plan = planned(*shapes(2, 1, 4096), batch_invariant=True)
    assert plan.served_by == "attention_with_kv_cache_bf16x8_query_tiles"
    assert plan.workspace_bytes == 4 * 2 * 8 * 8 * (2 * 64 * 130 + 1)  # 16 rounds of 32 a piece


def test_what_does_not_split_has_no_blocks() -> None:
    q, cache, _ = shapes(1, 1, 64, d=512)
    plan = planned(q, cache, cache)
    assert plan.served_by == "attention_with_kv_cache_bf16"  # naive
    assert (plan.blocks, plan.workspace_bytes) == (0, 0)


@pytest.mark.parametrize("page", [0, 16])
def test_calls_with_a_plan(page: int) -> None:
    call = given(page=page)
    names = ("q", "k_cache", "v_cache", "lengths", "block_table")
    plan = warpsmith.plan_attention_with_kv_cache(**{n: call[n] for n in names if n in call})
    assert isinstance(plan, KvCachePlan)
    assert (plan.blocks, plan.served_by) == (0, "reference")
    wanted = warpsmith.attention_with_kv_cache(**call)
    for lengths in ([60, 9], [1, 0], [33, 60]):
        call["lengths"] = torch.tensor(lengths, dtype=torch.int32)
        wanted = warpsmith.attention_with_kv_cache(**call)
        for own in (plan, dataclasses.replace(plan, blocks=3)):
            assert torch.equal(warpsmith.attention_with_kv_cache(**call, plan=own), wanted)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.blocks = 3  # type: ignore[misc]


def test_heads_before_tokens() -> None:
    call = given()
    q = call.pop("q").transpose(1, 2)
    three = call["k_cache"], call["v_cache"], call["lengths"]
    plan = warpsmith.plan_attention_with_kv_cache(q, *three, layout="bhsd")
    out = warpsmith.attention_with_kv_cache(q, **call, layout="bhsd", plan=plan)
    assert out.shape == q.shape
    with pytest.raises(ValueError, match="expected layout to be 'bshd' or 'bhsd', got 'sbhd'"):
        warpsmith.plan_attention_with_kv_cache(q, *three, layout="sbhd")


def test_a_plan_says_blocks_to_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(kv_cache, "_attend", lambda *a: seen.append(a) or kv_cache.op.fake(*a[1:]))
    call = given()
    plan = warpsmith.plan_attention_with_kv_cache(call["q"], call["k_cache"], call["v_cache"])
    warpsmith.attention_with_kv_cache(**call, plan=dataclasses.replace(plan, blocks=77))
    warpsmith.attention_with_kv_cache(**call, blocks=5)
    warpsmith.attention_with_kv_cache(**call)
    at = 1 + kv_cache.op.argument_names.index("blocks")
    assert [a[at] for a in seen] == [77, 5, 0]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another batch": (
        {"q": lambda c: c["q"][:1]},
        r"expected q to have shape \(2, 1, 8, 64\), that of the plan, got \(1, 1, 8, 64\)",
    ),
    "more tokens": ({"q": lambda c: c["q"].expand(2, 3, 8, 64)}, "expected q to have shape"),
    "another dtype": (
        {"q": lambda c: c["q"].half()},
        r"expected q to have dtype torch\.bfloat16, that of the plan, got torch\.float16",
    ),
    "other pages": (
        {"k_cache": lambda c: c["k_cache"].reshape(-1, 8, 2, 64)},
        r"expected k_cache to have pages of shape \(16, 2, 64\), that of the plan, got",
    ),
    "other values": (
        {"v_cache": lambda c: c["v_cache"][..., :32]},
        r"expected v_cache to have pages of shape \(16, 2, 64\), that of the plan, got",
    ),
    "a cache of another dtype": (
        {"k_cache": lambda c: c["k_cache"].to(torch.float8_e4m3fn)},
        r"expected k_cache to have dtype torch\.bfloat16, that of the plan, got "
        r"torch\.float8_e4m3fn",
    ),
    "a longer table": (
        {"block_table": lambda c: c["block_table"].repeat(1, 2)},
        r"expected a block_table of 5 pages a sequence, as planned \(0: none\), got 10",
    ),
    "no table": (
        {"block_table": lambda _: None},
        r"expected a block_table of 5 pages a sequence, as planned \(0: none\), got 0",
    ),
    "another device": (
        {"q": lambda c: c["q"].to("meta")},
        "expected q to be on cpu, that of the plan, got meta",
    ),
    "batch-invariant": (
        {"batch_invariant": lambda _: True},
        "expected batch_invariant=False, as planned, got True",
    ),
    "blocks beside it": ({"blocks": lambda _: 2}, "expected blocks to be 0 beside a plan, got 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_plan_for_another_call_is_refused(case: str) -> None:
    call = given(page=16)
    three = call["q"], call["k_cache"], call["v_cache"]
    plan = warpsmith.plan_attention_with_kv_cache(*three, block_table=call["block_table"])
    warpsmith.attention_with_kv_cache(**call, plan=plan)
    changes, message = REFUSED[case]
    call |= {name: change(call) for name, change in changes.items()}
    with pytest.raises(RuntimeError, match=f"attention_with_kv_cache: {message}"):
        warpsmith.attention_with_kv_cache(**call, plan=plan)


def test_more_pages_are_no_other_call() -> None:
    call = given(page=16)
    three = call["q"], call["k_cache"], call["v_cache"]
    plan = warpsmith.plan_attention_with_kv_cache(*three, block_table=call["block_table"])
    wanted = warpsmith.attention_with_kv_cache(**call, plan=plan)
    for name in ("k_cache", "v_cache"):
        call[name] = torch.cat((call[name], call[name]))
    assert torch.equal(warpsmith.attention_with_kv_cache(**call, plan=plan), wanted)


def test_lengths_that_do_not_fit_are_refused() -> None:
    call = given()
    three = call["q"], call["k_cache"], call["v_cache"]
    for lengths, message in (
        ([61, 1], "expected lengths between 0 and 60, which the cache has room for, got 61"),
        ([1, -1], "expected lengths between 0 and 60, which the cache has room for, got -1"),
        ([1], r"expected lengths to be int32 or int64 of shape \(2,\), got torch.int64 of \(1,\)"),
        ([1.0, 2.0], r"expected lengths to be int32 or int64 of shape \(2,\), got torch.float32"),
    ):
        with pytest.raises(RuntimeError, match=f"^plan_attention_with_kv_cache: {message}"):
            warpsmith.plan_attention_with_kv_cache(*three, torch.tensor(lengths))
    said = "^plan_attention_with_kv_cache: expected k_cache to have the last dimension of q"
    with pytest.raises(RuntimeError, match=said):
        warpsmith.plan_attention_with_kv_cache(call["q"][..., :32], *three[1:])


def test_a_compiled_call_takes_a_plan() -> None:
    call = given(page=16)
    three = call["q"], call["k_cache"], call["v_cache"]
    plan = warpsmith.plan_attention_with_kv_cache(*three, block_table=call["block_table"])
    plan = dataclasses.replace(plan, blocks=7)
    torch._dynamo.reset()
    attend = torch.compile(
        lambda **c: warpsmith.attention_with_kv_cache(**c, plan=plan),
        fullgraph=True,
        backend="aot_eager",
    )
    assert torch.equal(attend(**call), warpsmith.attention_with_kv_cache(**call))


# --- on a GPU -------------------------------------------------------------------------------------

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@gpu
def test_a_plan_counts_for_the_gpu_that_is_there() -> None:
    q, cache, _ = (torch.zeros_like(x, device="cuda") for x in shapes(1, 1, 4096))
    found = Gpu.of(q.device, dispatch.device_sm(q.device))
    assert found.multiprocessors == torch.cuda.get_device_properties(0).multi_processor_count
    plan = warpsmith.plan_attention_with_kv_cache(q, cache, cache)
    assert plan.blocks == planned(*shapes(1, 1, 4096), gpu=found).blocks


@gpu
@pytest.mark.parametrize("m", [1, 20])
def test_a_captured_call_with_a_plan_serves_other_lengths(m: int) -> None:
    i = Inputs(torch.bfloat16, "cuda")
    call = cases.call(i, m, 8, 2, 128, [4000, 40, 900], page=64, capacity=8000)
    plan = warpsmith.plan_attention_with_kv_cache(
        call["q"], call["k_cache"], call["v_cache"], call["lengths"], call["block_table"]
    )
    assert plan.blocks > 0
    before = torch.cuda.memory_allocated()
    attend = lambda: warpsmith.attention_with_kv_cache(**call, plan=plan)  # noqa: E731
    attend()
    assert torch.cuda.max_memory_allocated() >= before + plan.workspace_bytes
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = attend()
    for lengths in ([20, 20, 20], [8000, 8000, 8000], [0, 5000, 64], [123, 21, 7777]):
        call["lengths"].copy_(torch.tensor(lengths))
        with torch.cuda.device(0):
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            try:
                graph.replay()
                alone = attend()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        assert torch.equal(captured, alone), lengths


@gpu
def test_bits_of_a_plan_do_not_depend_on_the_capacity() -> None:
    i = Inputs(torch.bfloat16, "cuda")
    call = cases.call(i, 1, 8, 2, 128, [3000, 17], capacity=3000)
    three = call["q"], call["k_cache"], call["v_cache"]
    plan = warpsmith.plan_attention_with_kv_cache(*three, call["lengths"])
    first = warpsmith.attention_with_kv_cache(**call, plan=plan)
    larger = dict(call)
    for name in ("k_cache", "v_cache"):
        larger[name] = torch.nn.functional.pad(call[name], (0, 0, 0, 0, 0, 20000))
    plan = warpsmith.plan_attention_with_kv_cache(
        call["q"], larger["k_cache"], larger["v_cache"], call["lengths"]
    )
    assert torch.equal(first, warpsmith.attention_with_kv_cache(**larger, plan=plan))
