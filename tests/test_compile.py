"""torch.compile over calls whose sizes and drawn numbers change: one graph serves them all."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch._inductor import config as inductor
from torch._inductor.utils import fresh_cache

import warpsmith
from conftest import GPU
from warpsmith.core import autocast, compiling
from warpsmith.core.catalogue import Inputs

DEVICE = "cuda" if GPU else "cpu"
#: A graph for the first call, and one in which what differs in the second is a symbol.
GRAPHS = 2


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], **options: Any) -> tuple[Callable[..., Any], Any]:
    graphs = CompileCounterWithBackend("aot_eager")
    return torch.compile(function, backend=graphs, fullgraph=True, **options), graphs


@pytest.mark.parametrize("op", ["sum", "mean", "amax", "amin", "var"])
def test_several_dimensions_of_any_size(op: str) -> None:
    ours, theirs = getattr(warpsmith, op), getattr(torch, op)
    function, graphs = compiled(lambda x: ours(x, (0, 2)), dynamic=True)
    inputs = Inputs(torch.float64, DEVICE)
    for n in (3, 5, 7, 9, 12):
        x = inputs.randn(n, 4, n + 1)
        torch.testing.assert_close(function(x), theirs(x, (0, 2)))
    assert graphs.frame_count <= GRAPHS + 1  # 4 is one of the columns' numbers, too
    strides = inputs.randn(4, 8, 6).permute(2, 0, 1)
    torch.testing.assert_close(function(strides), theirs(strides, (0, 2)))


DRAWS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "dropout": lambda x, k: warpsmith.dropout(x, 0.3, seed=k, offset=k),
    "bias_dropout_add": lambda x, k: warpsmith.bias_dropout_add(x, None, x, 0.3, 7, k)[0],
    "dropout_add_rms_norm": lambda x, k: warpsmith.dropout_add_rms_norm(
        x, x, p=0.3, seed=7, offset=k
    )[0],
    "dropout_add_layer_norm": lambda x, k: warpsmith.dropout_add_layer_norm(
        x, x, p=0.3, seed=7, offset=k
    )[0],
    "softmax": lambda x, k: warpsmith.bias_scale_mask_softmax_dropout(x, p=0.3, seed=7, offset=k)[
        0
    ],
}


@pytest.mark.parametrize("name", DRAWS)
def test_steps_that_draw_share_a_graph(name: str) -> None:
    draw = DRAWS[name]
    function, graphs = compiled(draw)
    for k in range(3, 15):
        x = Inputs(torch.float32, DEVICE).randn(4, 64).requires_grad_()
        ours, theirs = function(x, k), draw(x, k)
        torch.testing.assert_close(ours, theirs)
        grad = torch.ones_like(theirs)
        torch.testing.assert_close(
            torch.autograd.grad(ours, x, grad), torch.autograd.grad(theirs, x, grad)
        )
    assert graphs.frame_count <= GRAPHS


def test_a_mean_of_losses_of_any_batch() -> None:
    function, graphs = compiled(warpsmith.bce_with_logits)
    for rows in range(3, 15):
        x = Inputs(torch.float32, DEVICE).randn(rows, 9).requires_grad_()
        target = torch.rand_like(x)
        ours, theirs = function(x, target), warpsmith.bce_with_logits(x, target)
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(torch.autograd.grad(ours, x), torch.autograd.grad(theirs, x))
    assert graphs.frame_count <= GRAPHS


@pytest.mark.skipif(not GPU and shutil.which("g++") is None, reason="Inductor needs a compiler")
def test_graphs_of_training_come_from_the_cache() -> None:
    """AOTAutograd keeps what it made of a call, backward pass and all, and finds it again. Of
    operators alone, beside which Inductor has nothing to compile.
    """

    def step(x: Tensor, residual: Tensor, weight: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y, h = warpsmith.add_rms_norm(x, residual, weight)
        return warpsmith.softmax(warpsmith.linear(warpsmith.gelu(y), w)), h

    def counted() -> dict[str, int]:
        torch._dynamo.reset()
        counters.clear()
        shapes = ((8, 8), (8, 8), (8,), (8, 8))
        leaves = [torch.randn(s, device=DEVICE, requires_grad=True) for s in shapes]
        y, h = torch.compile(step, fullgraph=True)(*leaves)
        torch.autograd.backward([y, h], [torch.ones_like(y), torch.ones_like(h)])
        return dict(counters["aot_autograd"])

    # No processes that compile side by side, each of which imports PyTorch.
    with fresh_cache(), inductor.patch(compile_threads=1):
        first, second = counted(), counted()
    assert first["autograd_cache_miss"] == 1
    assert first["autograd_cache_saved"] == 1
    assert second["autograd_cache_hit"] == 1
    assert not any("bypass" in name for name in (*first, *second))


def test_what_older_compilers_cannot_ask_is_a_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of PyTorch 2.11 stops at the one question, and answers yes to the other."""

    @torch._dynamo.disable
    def available(device: str) -> bool:
        return device == "cpu"

    monkeypatch.setattr(torch.amp, "is_autocast_available", available)
    monkeypatch.setattr(
        torch.compiler, "is_exporting", lambda: torch.compiler.is_dynamo_compiling()
    )

    def asked(x: torch.Tensor) -> torch.Tensor:
        return x + (10 if autocast.is_on(x) else 0) + (1 if compiling.exporting() else 0)

    run = torch.compile(asked, fullgraph=True, backend="eager")
    assert int(run(torch.zeros(()))) == 0
    with torch.autocast("cpu"):
        assert int(run(torch.zeros(()))) == 10
