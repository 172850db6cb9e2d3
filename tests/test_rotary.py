"""Rotary positions where no sample reaches: angles against whole numbers, scaling, gradients, what
the public functions add, and a position outside on a GPU.
"""

from __future__ import annotations

import fractions
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import warpsmith
from warpsmith.core import catalogue
from warpsmith.core.catalogue import Inputs
from warpsmith.spec.rotary import turns_of
from warpsmith.transform import rope_cases as cases
from warpsmith.transform import rotary


def _heads(batch: int = 2, tokens: int = 5, d: int = 64) -> tuple[Tensor, Tensor]:
    given = cases.heads(Inputs(torch.float64), batch, tokens, 4, 2, d)
    return given["q"], given["k"]


# --- angles ---------------------------------------------------------------------------------------


def test_turns_are_those_of_the_frequencies() -> None:
    """Within 2^-53 of a turn, which is what f64 holds of one."""
    frequencies = rotary.frequencies(128, 500000.0)
    for frequency, turn in zip(
        frequencies.tolist(), rotary.turns(frequencies).tolist(), strict=True
    ):
        share = fractions.Fraction(frequency / (2 * math.pi))
        assert abs(fractions.Fraction(turn, 2**64) - share) <= fractions.Fraction(1, 2**53)


@pytest.mark.parametrize("position", [1, 1_000_003, 2**31 - 1, -77])
def test_angles_are_exact_at_any_position(position: int) -> None:
    """Against whole numbers of any length."""
    turns = rotary.turns(rotary.frequencies(64))
    angles = rotary.radians(torch.tensor([[position]]), turns)[0]
    for angle, turn in zip(angles.tolist(), turns.tolist(), strict=True):
        whole = position * turn % 2**64
        whole -= 2**64 if whole >= 2**63 else 0
        exact = float(fractions.Fraction(whole, 2**64)) * 2 * math.pi
        assert abs(angle - exact) <= 2**-50


def test_llama3_scales_long_waves_alone() -> None:
    plain = rotary.frequencies(128, 500000.0)
    scaled = rotary.llama3(plain, factor=8.0, original_length=8192)
    waves = 2 * math.pi / plain
    short, long = waves < 8192 / 4, waves > 8192
    assert torch.equal(scaled[short], plain[short])
    torch.testing.assert_close(scaled[long], plain[long] / 8, rtol=1e-14, atol=0)
    between = ~(short | long)
    assert between.any()
    assert ((scaled < plain) & (scaled > plain / 8))[between].all()


def test_yarn_keeps_fast_pairs_and_stretches_slow_ones() -> None:
    plain = rotary.frequencies(64, 10000.0)
    scaled, factor = rotary.yarn(plain, factor=16.0, original_length=4096)
    rounds = 4096 * plain / (2 * math.pi)
    torch.testing.assert_close(scaled[rounds > 40], plain[rounds > 40])
    torch.testing.assert_close(scaled[rounds < 0.7], plain[rounds < 0.7] / 16)
    assert (scaled.diff() < 0).all()
    assert factor == pytest.approx(0.1 * math.log(16) + 1)


def test_tables_are_what_turns_give() -> None:
    q, k = (x.float() for x in _heads())
    turns = turns_of(64, 10000.0, torch.device("cpu"))
    cos, sin = rotary.tables(turns, 9)
    for ours, theirs in zip(
        warpsmith.rope(q, k, turns=turns), warpsmith.rope(q, k, cos, sin), strict=True
    ):
        assert torch.equal(ours, theirs)


# --- calls ----------------------------------------------------------------------------------------


def test_models_formula() -> None:
    """cos and sin of both halves, and the half that is turned around."""
    q, k = _heads()
    cos, sin = (t.double() for t in rotary.tables(turns_of(64, 10000.0, torch.device("cpu")), 5))
    both = [torch.cat((t, t), -1)[None, :, None] for t in (cos, sin)]

    def turned(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * both[0] + torch.cat((-b, a), -1) * both[1]

    for ours, x in zip(warpsmith.rope(q, k, cos, sin), (q, k), strict=True):
        torch.testing.assert_close(ours, turned(x))


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_inverse_undoes_it(interleaved: bool) -> None:
    q, k = _heads()
    out = warpsmith.rope(q, k, interleaved=interleaved, rotary_dim=32)
    back = warpsmith.rope(*out, interleaved=interleaved, rotary_dim=32, inverse=True)
    for x, y in zip((q, k), back, strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_gradients(used: tuple[int, ...]) -> None:
    """Twice, and where one output is not used."""
    q, k = (x.requires_grad_() for x in _heads(1, 2, 8))

    def rope(q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        out = warpsmith.rope(q, k, rotary_dim=6)
        return tuple(out[i] for i in used)

    assert torch.autograd.gradcheck(rope, (q, k))
    assert torch.autograd.gradgradcheck(rope, (q, k))


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_gradients_of_normalised_heads(used: tuple[int, ...]) -> None:
    q, k = (x.requires_grad_() for x in _heads(1, 2, 8))
    weights = [torch.randn(8, dtype=torch.float64, requires_grad=True) for _ in range(2)]

    def normalised(*given: Tensor) -> tuple[Tensor, ...]:
        out = warpsmith.qk_norm_rope(*given)
        return tuple(out[i] for i in used)

    assert torch.autograd.gradcheck(normalised, (q, k, *weights))


def test_in_place_and_without_keys() -> None:
    q, k = _heads()
    alone = warpsmith.rope(q)
    both = warpsmith.rope(q, k)
    assert torch.equal(alone, both[0])
    rows = torch.cat((q, k), dim=2)  # of a fused projection
    views = rows[:, :, :4], rows[:, :, 4:]
    out = warpsmith.rope(*views, inplace=True)
    assert all(a is b for a, b in zip(out, views, strict=True))
    assert torch.equal(rows, torch.cat(both, dim=2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_what_is_of_no_pair_keeps_its_bits(dtype: torch.dtype) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    patterns = torch.arange(2**16).to(torch.uint16).view(dtype).view(1, 512, 2, 64).to(device)
    q = torch.cat((torch.ones_like(patterns), patterns), dim=-1)
    ours, written = warpsmith.rope(q, rotary_dim=64), q.clone()
    warpsmith.rope(written, rotary_dim=64, inplace=True)
    for x in (ours, written):
        assert torch.equal(x[..., 64:].view(torch.int16), patterns.view(torch.int16))
        assert not torch.equal(x[:, 1:, :, :64], q[:, 1:, :, :64])


def test_axes_are_compiled() -> None:
    q, positions = torch.randn(1, 4, 2, 16), torch.arange(12).view(3, 1, 4)

    def turned(q: Tensor, positions: Tensor) -> Tensor:
        return warpsmith.rope(q, positions=positions, axes=rotary.axes((2, 3, 3)))

    assert rotary.axes((2, 0, 3)).tolist() == [0, 0, 2, 2, 2]
    compiled = torch.compile(turned, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, positions), turned(q, positions))


@pytest.mark.parametrize(
    ("d", "options", "error", "said"),
    [
        (7, {}, ValueError, "heads of q to have an even number of values of at least 2, got 7"),
        (8, {"rotary_dim": 3}, ValueError, "rotary_dim to be an even number of at least 2, got 3"),
        (8, {"rotary_dim": 2.0}, TypeError, "rotary_dim to be a whole number, got float"),
        (8, {"base": 0.0}, ValueError, "base to be above 0, got 0.0"),
        (8, {"base": "a"}, TypeError, "base to be a number, got str"),
    ],
)
def test_turns_that_there_are_not(
    d: int, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    """In the words of each function that makes them."""
    q, weight, cache = torch.ones(1, 3, 2, d), torch.ones(d), torch.zeros(1, 4, 2, d)
    lengths = torch.zeros(1, dtype=torch.int32)
    calls: dict[str, Callable[[], Any]] = {
        "rope": lambda: warpsmith.rope(q, **options),
        "qk_norm_rope": lambda: warpsmith.qk_norm_rope(q, q, weight, weight, **options),
        "rope_store_kv": lambda: warpsmith.rope_store_kv(
            q, q, q, cache, cache.clone(), lengths=lengths, **options
        ),
    }
    for name, call in calls.items():
        with pytest.raises(error) as raised:
            call()
        assert str(raised.value) == f"{name}: expected {said}"


def test_a_table_gets_no_gradient_in_silence() -> None:
    q, k = _heads()
    cos = torch.ones(5, 32, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match="rope: expected cos that requires no gradient"):
        warpsmith.rope(q, k, cos, torch.zeros_like(cos.detach()))
    with pytest.raises(RuntimeError, match="not differentiable"):
        warpsmith.rope(q.requires_grad_(), k, inplace=True)


def test_lists_are_no_tensors() -> None:
    q = torch.ones(1, 3, 2, 8)
    with pytest.raises(TypeError, match="rope: expected positions to be a tensor or None, got li"):
        warpsmith.rope(q, positions=[0, 1, 2])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="rope: expected cos to be a tensor or None, got list"):
        warpsmith.rope(q, None, [1.0], [0.0])  # type: ignore[arg-type]


def test_positions_outside_of_tables_raise() -> None:
    q, k = _heads()
    cos = torch.ones(9, 32, dtype=torch.float64)
    for outside in (9, -1):
        positions = torch.full((2, 5), 3)
        positions[1, 4] = outside
        with pytest.raises(IndexError, match="a position lies outside of cos and sin"):
            warpsmith.rope(q, k, cos, cos, positions)
    axes = torch.tensor([0] * 31 + [2], dtype=torch.int32)
    with pytest.raises(IndexError, match="axes names a position that positions do not have"):
        warpsmith.rope(q, k, positions=torch.zeros(2, 2, 5, dtype=torch.int64), axes=axes)


# --- on a GPU -------------------------------------------------------------------------------------

_OUTSIDE = """
import torch, warpsmith
q = torch.zeros(1, 2, 2, 64, device="cuda", dtype=torch.float16)
table = torch.ones(8, 32, device="cuda")
positions = torch.tensor([[7, {position}]], device="cuda")
warpsmith.rope(q, q, table, table, positions, variant="{variant}")
torch.cuda.synchronize()
"""


@pytest.mark.gpu
@pytest.mark.parametrize("rung", ["naive", "pack", "stream"])
def test_a_position_outside_ends_the_kernel_with_a_message(rung: str) -> None:
    """In a process of its own, which is of no use for CUDA afterwards."""
    variants = catalogue.get("rope").variants
    named = next(v.name for v in variants if (v.rung.name, v.dtype) == (rung, "f16"))
    for position, fails in ((0, False), (8, True), (-1, True)):
        code = _OUTSIDE.format(position=position, variant=named)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        said = "a position lies outside of cos and sin" in done.stderr
        assert (done.returncode != 0, said) == (fails, fails), done.stderr[-2000:]
