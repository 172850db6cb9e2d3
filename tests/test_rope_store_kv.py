"""Rotary positions and the cache in one launch: that it is `rope` and then `store_kv`, what the
public function adds, and what points outside.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import warpsmith
from warpsmith.attention import rope_store_kv_cases as cases
from warpsmith.attention.rope_store_kv import positions_of
from warpsmith.core import catalogue
from warpsmith.core.catalogue import Inputs

CALLS = cases.CALLS | cases.VIEWS
RUNGS = ("naive", "pack", "stream")


def _copied(given: dict[str, Any]) -> dict[str, Any]:
    """With caches of its own."""
    mine = dict(given)
    for name in ("k_cache", "v_cache"):
        mine[name] = torch.empty_strided(
            given[name].shape,
            given[name].stride(),
            dtype=given[name].dtype,
            device=given[name].device,
        ).copy_(given[name])
    return mine


def _raw(x: Tensor) -> Tensor:
    """Its bits, NaN among them."""
    whole = x.contiguous()
    return whole.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.element_size()])


def _two_steps(given: dict[str, Any], variant: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    mine = _copied(given)
    angles = {name: mine.get(name) for name in ("cos", "sin", "turns", "axes")}
    options = {name: mine[name] for name in ("factor", "interleaved") if name in mine}
    at = positions_of(mine["k"], mine.get("cos"), mine.get("positions"), mine.get("lengths"))
    q, k = warpsmith.rope(mine["q"], mine["k"], positions=at, **angles, **options, variant=variant)
    names = ("slots", "lengths", "block_table", "k_scale", "v_scale")
    places = {name: mine.get(name) for name in names}
    caches = mine["k_cache"], mine["v_cache"]
    warpsmith.store_kv(k, mine["v"], *caches, **places)
    return q, *caches


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("label", CALLS)
def test_it_is_rope_and_then_store_kv(label: str, dtype: torch.dtype) -> None:
    given = CALLS[label](Inputs(dtype))
    wanted = _two_steps(given)
    mine = _copied(given)
    out = warpsmith.rope_store_kv(**mine), mine["k_cache"], mine["v_cache"]
    for ours, theirs in zip(out, wanted, strict=True):
        assert torch.equal(_raw(ours), _raw(theirs))


def test_in_place_in_a_fused_projection() -> None:
    given = cases.CALLS["out of a fused projection"](Inputs(torch.float32))
    rows = torch.cat([given[name] for name in ("q", "k", "v")], dim=2)
    before = rows.clone()
    q, k, v = rows[:, :, :4], rows[:, :, 4:6], rows[:, :, 6:]
    wanted = warpsmith.rope_store_kv(**_copied(given))
    mine = _copied(given | {"q": q, "k": k, "v": v})
    assert warpsmith.rope_store_kv(**mine, inplace=True) is q
    assert torch.equal(q, wanted)
    assert torch.equal(rows[:, :, 4:], before[:, :, 4:])


@pytest.mark.parametrize("inplace", [False, True])
def test_tokens_one_behind_the_other(inplace: bool) -> None:
    """[tokens, heads, d] at slots and positions, [tokens] each."""
    i = Inputs(torch.float32)
    at = torch.tensor([[3, 0, 7, 500]])
    given = cases.call(i, 1, 4, 4, 2, 64, pages=3, slots=[[40, -1, 0, 17]]) | {"positions": at}
    wanted = warpsmith.rope_store_kv(**given)
    flat = given | {name: given[name][0].clone() for name in ("q", "k", "v", "slots", "positions")}
    flat |= {name: torch.zeros_like(given[name]) for name in ("k_cache", "v_cache")}
    out = warpsmith.rope_store_kv(**flat, inplace=inplace)
    assert (out is flat["q"]) is inplace
    assert torch.equal(out, wanted[0])
    for name in ("k_cache", "v_cache"):
        assert torch.equal(flat[name][2, 8], given[name][2, 8])
        kept = flat[name].flatten(2).any(-1).flatten().nonzero().flatten()
        assert kept.tolist() == [0, 17, 40]


def test_angles_that_are_not_said_are_those_of_base() -> None:
    given = cases.call(Inputs(torch.float32), 2, 5, 4, 2, 64)
    plain = {name: x for name, x in given.items() if name != "turns"}
    wanted = warpsmith.rope_store_kv(**given)
    assert torch.equal(warpsmith.rope_store_kv(**plain), wanted)
    half = warpsmith.rope_store_kv(**plain, rotary_dim=32, base=500000.0)
    assert torch.equal(half[..., 32:], given["q"][..., 32:])
    assert not torch.equal(half[..., :32], wanted[..., :32])


def test_what_points_outside_raises_on_a_cpu() -> None:
    i = Inputs(torch.float32)
    given = cases.call(i, 2, 5, 4, 2, 64, lengths=[3, 12])
    with pytest.raises(IndexError, match="rope_store_kv: the cache has no room for the tokens"):
        warpsmith.rope_store_kv(**given)
    given = cases.call(i, 1, 2, 4, 2, 64, slots=[[0, 16]])
    with pytest.raises(IndexError, match="rope_store_kv: a slot lies behind the end of the"):
        warpsmith.rope_store_kv(**given)
    given = cases.call(i, 2, 5, 4, 2, 64, lengths=[3, 11], angles=cases.tables(i, 15, 32))
    with pytest.raises(IndexError, match="rope_store_kv: a position lies outside of cos and sin"):
        warpsmith.rope_store_kv(**given)


def test_it_is_not_differentiable() -> None:
    given = cases.call(Inputs(torch.float32), 2, 5, 4, 2, 64)
    for name in ("q", "k", "v"):
        with pytest.raises(RuntimeError, match="rope_store_kv: not differentiable"):
            warpsmith.rope_store_kv(**given | {name: given[name].clone().requires_grad_()})


# --- on a GPU -------------------------------------------------------------------------------------


def _named(rung: str, dtype: str) -> str:
    variants = catalogue.get("rope_store_kv").variants
    return next(v.name for v in variants if (v.rung.name, v.dtype) == (rung, dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("rung", RUNGS)
def test_every_rung_has_the_bits_of_the_two_launches(rung: str, dtype: str) -> None:
    labels = ["over pages", "slots", "tables", "three axes", "e4m3, scales of heads", "partial"]
    for label in labels:
        given = cases.CALLS[label](catalogue.get("rope_store_kv").inputs(dtype, "cuda"))
        wanted = _two_steps(given)
        mine = _copied(given)
        q = warpsmith.rope_store_kv(**mine, variant=_named(rung, dtype))
        for ours, theirs in zip((q, mine["k_cache"], mine["v_cache"]), wanted, strict=True):
            assert torch.equal(_raw(ours), _raw(theirs)), label


_OUTSIDE = """
import torch, warpsmith
q = torch.zeros(1, 2, 2, 64, device="cuda", dtype=torch.float16)
cache = torch.zeros(4, 16, 2, 64, device="cuda", dtype=torch.float16)
table = torch.ones(100, 32, device="cuda")
where = {where}
where = {{name: torch.tensor(x, device="cuda", dtype=torch.int64 if name in ("slots", "positions")
                             else torch.int32) for name, x in where.items()}}
warpsmith.rope_store_kv(q, q, q, cache, cache.clone(), table, table, **where, variant="{variant}")
torch.cuda.synchronize()
"""
_PAGES = {"lengths": [20], "block_table": [[1, 3]]}
_PLACES: dict[str, tuple[dict[str, Any], str]] = {
    "inside": (_PAGES, ""),
    "page": (
        _PAGES | {"block_table": [[1, 4]]},
        "block_table names a page that the cache does not have",
    ),
    "room": (
        _PAGES | {"lengths": [31]},
        "the cache has no room for the new tokens of a sequence",
    ),
    "slot": ({"slots": [[3, 64]]}, "a slot lies behind the end of the cache"),
    "position": (
        {"slots": [[3, 63]], "positions": [[99, 100]]},
        "a position lies outside of cos and sin",
    ),
}


@pytest.mark.gpu
@pytest.mark.parametrize("place", _PLACES)
@pytest.mark.parametrize("rung", RUNGS)
def test_what_points_outside_ends_the_kernel_with_a_message(rung: str, place: str) -> None:
    """In a process of its own, which is of no use for CUDA afterwards."""
    where, message = _PLACES[place]
    code = _OUTSIDE.format(where=where, variant=_named(rung, "f16"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode != 0) == bool(message), done.stderr[-2000:]
    assert message in done.stderr, done.stderr[-2000:]
