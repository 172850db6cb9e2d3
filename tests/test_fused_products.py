"""Products of layers with what follows them, as public functions: what they compute, what they
keep, and which tile they choose.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import warpsmith
from test_public import Calls
from warpsmith.core import catalogue, dispatch
from warpsmith.gemm import fused_problem, wgmma_plan
from warpsmith.gemm.activations import FUNCTIONS, GATES
from warpsmith.gemm.linear_epilogue import composed, gradient_of_sums
from warpsmith.gemm.problem import product
from warpsmith.native import csrc, toolchain

F64 = torch.float64
ACTIVATIONS = pytest.mark.parametrize("activation", FUNCTIONS)


def leaves(*shapes: tuple[int, ...], dtype: torch.dtype = F64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [
        torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes
    ]


# --- linear ---------------------------------------------------------------------------------------


@ACTIVATIONS
def test_gradcheck_of_linear_and_more(activation: str) -> None:
    def layer(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Any:
        return warpsmith.linear(x, w, b, activation, residual=r, scale=0.5, keep=True)

    shifted = [t.detach().add(0.3).requires_grad_() for t in leaves((3, 4), (5, 4), (5,), (3, 5))]
    assert torch.autograd.gradcheck(layer, shifted)


@ACTIVATIONS
@pytest.mark.parametrize("keep", [False, True])
def test_linear_and_more_in_steps_is_the_same(activation: str, keep: bool) -> None:
    x, w, b, r = leaves((2, 3, 16), (24, 16), (24,), (2, 3, 24), dtype=torch.float32)
    found = composed(x, w, b, r, 0.5, activation, keep)
    wanted = torch.ops.warpsmith.linear_epilogue(x, w, b, r, 0.5, activation, keep, False)
    for a, e in zip(found, wanted, strict=True):
        assert (a is None) == (e is None)
        if a is not None:
            torch.testing.assert_close(a, e)


def test_in_steps_a_scale_meets_sums_that_f16_does_not_hold() -> None:
    x, w = torch.full((2, 64), 64.0).half(), torch.full((8, 64), 64.0).half()
    y, before, _ = composed(x, w, torch.ones(8), None, 2.0**-10, "relu", True)
    assert torch.equal(y, torch.full((2, 8), 257.0).half())
    assert torch.equal(before, y)


def test_linear_alone_is_the_operator_that_it_was() -> None:
    x, w, b = (t.detach() for t in leaves((3, 16), (24, 16), (24,), dtype=torch.float32))
    assert torch.equal(
        warpsmith.linear(x, w, b, "gelu"), torch.ops.warpsmith.linear(x, w, b, "gelu")
    )


@ACTIVATIONS
def test_what_is_kept_for_the_backward_pass_is_not_computed_again(
    monkeypatch: pytest.MonkeyPatch, activation: str
) -> None:
    args = leaves((3, 16), (24, 16), (24,))
    wanted = torch.autograd.grad(warpsmith.linear(*args, activation).sum(), args)
    monkeypatch.setattr(sys.modules["warpsmith.gemm.linear"], "keeps", lambda *_: True)
    y = warpsmith.linear(*args, activation)
    with Calls() as calls:
        found = torch.autograd.grad(y.sum(), args)
    assert {name for name, _ in calls.seen}.isdisjoint(("linear", "linear_epilogue"))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


LAYERS: dict[str, Any] = {
    "linear": lambda x, w, b: warpsmith.linear(x, w, b, "gelu"),
    "linear_epilogue": lambda x, w, b: warpsmith.linear(x, w, b, residual=x.new_ones(2, 3, 32)),
    "gated_linear": lambda x, w, b: warpsmith.gated_linear(x, w, w, b, b),
    "fused_qkv": lambda x, w, b: torch.cat(
        [t.flatten(2) for t in warpsmith.fused_qkv(x, w, b, heads=2, head_dim=8, kv_heads=1)], -1
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_weight_and_bias_come_in_one_pass(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    args, upstream = leaves((2, 3, 16), (32, 16), (32,)), leaves((2, 3, 32))[0].detach()
    wanted = torch.autograd.grad(LAYERS[name](*args), args, upstream)
    module = sys.modules["warpsmith.gemm.linear_epilogue"]
    monkeypatch.setattr(module, "in_one_pass", lambda *_: True)
    y = LAYERS[name](*args)
    with Calls() as calls:
        found = torch.autograd.grad(y, args, upstream)
    passes = [n for n, _ in calls.seen].count("linear_weight_gradient")
    assert passes == (2 if name == "gated_linear" else 1)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)
    y = LAYERS[name](*args[:2], args[2].detach())
    with Calls() as calls:
        torch.autograd.grad(y, args[:2], upstream)
    assert "linear_weight_gradient" not in {n for n, _ in calls.seen}


def test_gradcheck_of_the_gradients_in_one_pass() -> None:
    operator = torch.ops.warpsmith.linear_weight_gradient
    assert torch.autograd.gradcheck(operator, leaves((5, 4), (5, 3)))


def test_a_bias_of_f32_is_not_rounded() -> None:
    x, w = torch.zeros(2, 8, dtype=torch.bfloat16), torch.zeros(4, 8, dtype=torch.bfloat16)
    bias = torch.full((4,), 1 + 2**-12)
    y, before = warpsmith.linear(x, w, bias, "relu", residual=-torch.ones_like(x[:, :4]), keep=True)
    assert torch.equal(y, torch.full_like(y, 2**-12))
    assert torch.equal(before, torch.ones_like(before))


@ACTIVATIONS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, F64])
def test_the_weight_s_gradient_goes_into_a_buffer(activation: str, dtype: torch.dtype) -> None:
    x, w, b, r = leaves((2, 3, 16), (24, 16), (24,), (2, 3, 24), dtype=dtype)
    wide = torch.float64 if dtype == F64 else torch.float32
    buffer = torch.ones(24, 16, dtype=wide)
    for _ in range(2):
        y = warpsmith.linear(x, w, b, activation, residual=r, scale=0.5, grad_weight=buffer)
        y.sum().backward()
    assert w.grad is None
    grads = [t.grad for t in (x, b, r)]
    for t in (x, b, r):
        t.grad = None
    for _ in range(2):
        warpsmith.linear(x, w, b, activation, residual=r, scale=0.5).sum().backward()
    for found, t in zip(grads, (x, b, r), strict=True):
        torch.testing.assert_close(found, t.grad, rtol=0, atol=0)
    exact = torch.ones(24, 16, dtype=wide)
    inputs = (x.detach(), w.detach(), b.detach())
    before = torch.ops.warpsmith.linear_epilogue(*inputs, None, 0.5, "none", False)[0]
    ones = torch.ones_like(before)
    grad = gradient_of_sums(ones, None, *inputs, 0.5, activation, before) * 0.5
    exact += 2 * (grad.flatten(0, 1).to(wide).t() @ x.detach().flatten(0, 1).to(wide))
    torch.testing.assert_close(buffer, exact)


def test_the_buffer_refuses_what_it_cannot_hold() -> None:
    x, w = leaves((3, 16), (24, 16), dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="grad_weight to be a contiguous tensor"):
        warpsmith.linear(x, w, grad_weight=torch.zeros(24, 16, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="expected no grad_weight"):
        warpsmith.linear(x, w, keep=True, grad_weight=torch.zeros(24, 16))
    with pytest.raises(ValueError, match="within a transform"):
        torch.func.grad(lambda x: warpsmith.linear(x, w, grad_weight=torch.zeros(24, 16)).sum())(x)


def test_a_variant_that_cuts_k_promises_no_bits() -> None:
    x, w = leaves((3, 16), (24, 16), dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="expected no batch_invariant"):
        warpsmith.linear(x, w, keep=True, batch_invariant=True, variant="bf16_wgmma")


def test_a_second_derivative_past_the_buffer_is_refused() -> None:
    x, w = leaves((3, 16), (24, 16))
    y = warpsmith.linear(x, w, None, "silu", grad_weight=torch.zeros(24, 16, dtype=F64))
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives are not implemented"):
        first.sum().backward()


def test_the_largest_of_rows_is_that_of_what_is_returned() -> None:
    x, w, up = (t.detach() for t in leaves((2, 3, 16), (24, 16), (24, 16), dtype=torch.bfloat16))
    y, largest = warpsmith.linear(x, w, None, "gelu", amax=True)
    assert torch.equal(largest, y.abs().amax(-1).float())
    y, gate, other, largest = warpsmith.gated_linear(x, w, up, keep=True, amax=True)
    assert torch.equal(largest, y.abs().amax(-1).float())
    assert gate.shape == other.shape == y.shape
    y, before, largest = warpsmith.linear(x, w, keep=True, amax=True)
    assert torch.equal(y, before)
    assert torch.equal(largest, y.abs().amax(-1).float())


# --- gates ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", GATES)
def test_gradcheck_of_gates(activation: str) -> None:
    def gate(*args: Tensor) -> Any:
        x, w_gate, w_up, b_gate, b_up = args
        return warpsmith.gated_linear(x, w_gate, w_up, b_gate, b_up, activation)

    shifted = [
        t.detach().add(0.3).requires_grad_() for t in leaves((3, 4), (5, 4), (5, 4), (5,), (5,))
    ]
    assert torch.autograd.gradcheck(gate, shifted)


@pytest.mark.parametrize("activation", GATES)
def test_gates_that_kept_nothing_compute_it_again(activation: str) -> None:
    args = leaves((3, 16), (24, 16), (24, 16), (24,), (24,))
    grads = []
    for keep in (False, True):
        y = torch.ops.warpsmith.gated_linear(*args, activation, keep)[0]
        grads.append(torch.autograd.grad(y.sum(), args))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


# --- fused_mlp ------------------------------------------------------------------------------------


def mlp(
    x: Tensor,
    up: Tensor,
    down: Tensor,
    gate: Tensor | None,
    b_up: Tensor,
    b_down: Tensor,
    b_gate: Tensor | None,
    activation: str,
) -> Tensor:
    h = F.linear(x, up, b_up)
    if gate is None:
        return F.linear(FUNCTIONS[activation](h), down, b_down)
    return F.linear(FUNCTIONS[activation](F.linear(x, gate, b_gate)) * h, down, b_down)


@pytest.mark.parametrize("gated", [False, True])
@ACTIVATIONS
def test_an_mlp_and_its_gradients(activation: str, gated: bool) -> None:
    if gated and activation == "none":
        pytest.skip("no gate")
    x, up, down, gate, b_up, b_down, b_gate, residual = leaves(
        (2, 3, 16), (24, 16), (8, 24), (24, 16), (24,), (8,), (24,), (2, 3, 8)
    )
    used = [x, up, down, b_up, b_down, residual, *((gate, b_gate) if gated else ())]
    w, b = (gate, b_gate) if gated else (None, None)
    ours = warpsmith.fused_mlp(
        x, up, down, w, b_up, b_down, b, activation=activation, residual=residual
    )
    theirs = mlp(x, up, down, w, b_up, b_down, b, activation) + residual
    torch.testing.assert_close(ours, theirs)
    for a, b in zip(
        torch.autograd.grad(ours.square().sum(), used),
        torch.autograd.grad(theirs.square().sum(), used),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation": "swish"}, "expected activation to be one of .*, got 'swish'"),
        ({"activation": "none"}, "expected activation to be one of 'relu'.*, got 'none'"),
        ({"w_down": torch.zeros(8, 25)}, "expected w_down to have 24 columns"),
        ({"w_up": torch.zeros(24)}, "expected w_up to be 2-D"),
        ({"w_gate": None}, "expected no b_gate without w_gate"),
    ],
)
def test_an_mlp_says_what_is_wrong(change: dict[str, Any], message: str) -> None:
    call: dict[str, Any] = {
        "x": torch.zeros(3, 16),
        "w_up": torch.zeros(24, 16),
        "w_down": torch.zeros(8, 24),
        "w_gate": torch.zeros(24, 16),
        "b_gate": torch.zeros(24),
    }
    with pytest.raises(RuntimeError, match=f"fused_mlp: {message}"):
        warpsmith.fused_mlp(**(call | change))


@pytest.mark.parametrize(
    ("m", "gate", "proven", "wanted"),
    [
        (512, True, True, ["gated_linear", "linear_epilogue"]),
        (512, False, True, ["linear_epilogue", "linear_epilogue"]),
        (512, True, False, ["linear", "linear", "silu_and_mul", "linear"]),
        (64, True, True, ["linear", "linear", "silu_and_mul", "linear"]),
        (64, False, True, ["linear", "linear"]),
    ],
)
def test_an_mlp_says_what_serves_it(
    monkeypatch: pytest.MonkeyPatch, m: int, gate: bool, proven: bool, wanted: list[str]
) -> None:
    module = sys.modules["warpsmith.gemm.fused_mlp"]
    monkeypatch.setattr(module, "is_proven", lambda _: proven)
    x, up, down = (
        torch.empty(s, dtype=torch.bfloat16, device="meta") for s in ((m, 64), (96, 64), (64, 96))
    )
    found = catalogue.composites()["fused_mlp"].calls(x, up, down, up if gate else None)
    assert [part.op for part in found] == wanted
    for part in found:  # what they are given is what they take
        catalogue.get(part.op).check(*dispatch.normalise(catalogue.get(part.op), part.args))


def test_an_mlp_compiles_whole() -> None:
    args = [t.detach() for t in leaves((4, 16), (24, 16), (8, 24), (24, 16), dtype=torch.float32)]
    args[0].requires_grad_()

    def step(*args: Tensor) -> Tensor:
        return warpsmith.fused_mlp(*args, activation="gelu")

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    found, wanted = compiled(*args), step(*args)
    torch.testing.assert_close(found, wanted)
    pairs = (torch.autograd.grad(y.sum(), args[0])[0] for y in (found, wanted))
    torch.testing.assert_close(*pairs)


# --- fused_qkv ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_gradcheck_of_qkv(layout: str) -> None:
    def project(*args: Tensor) -> Any:
        return warpsmith.fused_qkv(*args, heads=2, kv_heads=1, head_dim=3, layout=layout)

    assert torch.autograd.gradcheck(project, leaves((2, 3, 4), (12, 4), (12,)))


def test_qkv_of_which_one_part_is_used() -> None:
    x, w = leaves((2, 3, 16), (32, 16))
    _, k, _ = warpsmith.fused_qkv(x, w, heads=2, kv_heads=1, head_dim=8)
    (found,) = torch.autograd.grad(k.square().sum(), w)
    wanted = torch.autograd.grad(F.linear(x, w)[..., 16:24].square().sum(), w)[0]
    torch.testing.assert_close(found, wanted)


# --- the choice -----------------------------------------------------------------------------------

PROGRAM = """
#include <cstdio>
#include "gemm/fused_linear/wgmma_plan.h"
using namespace warpsmith;
int main() {
  for (const int tile : kFusedTiles) std::printf("%d\\n", tile);
  long long m, n, k;
  int ends, sms;
  while (std::scanf("%lld %lld %lld %d %d", &m, &n, &k, &ends, &sms) == 5) {
    FusedArgs p{};
    p.ends = static_cast<Ends>(ends);
    p.batch = 1, p.m = m, p.n = n, p.k = k, p.sm_count = sms, p.dtype = Dtype::bf16;
    const WgmmaChoice c = choose_fused(p);
    std::printf("%d %d %lld ", c.tile, c.slices, static_cast<long long>(c.depth));
    std::printf("%lld\\n", static_cast<long long>(c.clocks));
  }
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = toolchain.cuda_home()
    if shutil.which("g++") is None or home is None:
        pytest.skip("needs g++ and the headers of CUDA")
    folder = tmp_path_factory.mktemp("fused_plan")
    source, made = folder / "choose.cpp", folder / "choose"
    source.write_text(PROGRAM)
    includes = [f"-I{csrc.CSRC}", f"-I{Path(home) / 'include'}"]
    subprocess.run(
        ["g++", "-std=c++20", "-O1", *includes, str(source), "-o", str(made)], check=True
    )
    return made


def test_both_sides_choose_the_same_tile(program: Path) -> None:
    generator = random.Random(5)
    ends = ("epilogue", "gate", "heads", "add", "gradient")
    sizes = (8, 64, 128, 192, 1024, 4096, 14336, 28672)

    def size() -> int:
        return max(8, generator.choice(sizes) + 8 * generator.randint(-3, 3))

    calls = [
        (size(), size(), size(), generator.randrange(len(ends)), generator.choice((4, 78, 132)))
        for _ in range(10_000)
    ]
    text = "".join(" ".join(map(str, call)) + "\n" for call in calls)
    lines = subprocess.run(
        [str(program)], input=text, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    count = len(wgmma_plan.FUSED_MENU)
    tiles, found = [int(line) for line in lines[:count]], lines[count:]
    assert [wgmma_plan.MENU[tile] for tile in tiles] == list(wgmma_plan.FUSED_MENU)
    used = set()
    for call, line in zip(calls, found, strict=True):
        m, n, k, end, sms = call
        x = torch.empty(m, k, dtype=torch.bfloat16, device="meta")
        p = product(x, torch.empty(k, n, dtype=torch.bfloat16, device="meta"))
        c = wgmma_plan.choice_for_fused(p, ends[end], sms)
        tile = wgmma_plan.MENU.index(c.menu[c.tile])
        assert line == f"{tile} {c.slices} {c.depth} {c.clocks}", call
        used.add((ends[end], tile))
    assert used == {(end, tile) for end in ends for tile in (2, 3, 4)} - {("gate", 2)}


def test_a_layer_is_seen_as_one_matrix_of_rows() -> None:
    weight = torch.zeros(24, 16, dtype=torch.bfloat16)
    whole = torch.zeros(1024, dtype=torch.bfloat16)
    views = [
        (whole[:96].view(2, 3, 16), 16),
        (whole[:192].view(2, 3, 32)[..., :16], 32),
        (whole[:160].view(2, 5, 16)[:, :3], 16),  # a copy
        (whole[:96].view(16, 6).t(), 16),  # a copy
    ]
    for x, ld in views:
        p = fused_problem.of_layer(x, weight, "epilogue")
        assert (p.batch, p.m, p.k, p.n, p.a.by_rows, p.a.ld) == (1, 6, 16, 24, True, ld)


def test_rungs_say_which_heads_they_take() -> None:
    x = torch.zeros(1, 128, 64, dtype=torch.bfloat16)
    op = catalogue.get("fused_qkv")
    for size, refused in ((64, ()), (24, ("wgmma",)), (5, ("mma", "wgmma"))):
        args = (x, torch.zeros(4 * size, 64, dtype=torch.bfloat16), None, 2, 1, size, "bshd")
        variants = [v for v in op.variants if v.dtype == "bf16"]
        found = tuple(v.rung.name for v in variants if dispatch.refusal(v, args, 90))
        assert found == refused, size


def test_sums_that_lie_in_an_operand_are_refused() -> None:
    memory = torch.ones(40)
    total, inner = memory[:18].view(3, 6), memory[6:30].view(4, 6)
    with pytest.raises(RuntimeError, match="expected b to share no memory with total"):
        warpsmith.accumulate_matmul(torch.ones(3, 4), inner, total)
    with pytest.raises(RuntimeError, match="expected a to share no memory with total"):
        warpsmith.accumulate_matmul(memory[10:22].view(3, 4), torch.ones(4, 6), total)
    warpsmith.accumulate_matmul(memory[18:30].view(3, 4), torch.ones(4, 6), total)
    assert torch.equal(total, torch.full((3, 6), 5.0))
