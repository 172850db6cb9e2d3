"""Sums over all elements where no sample reaches: streams side by side, more captured calls than
there are tickets, accumulators that overflow as documented.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import warpsmith
from warpsmith.core.catalogue import Inputs
from warpsmith.native import csrc
from warpsmith.spec.determinism import bits

pytestmark = pytest.mark.gpu

STREAMS = 8
ROUNDS = 100


def test_streams_side_by_side() -> None:
    """Launches that run at the same time must not count each other's blocks."""
    xs = [Inputs(torch.float32, "cuda", seed).plain(1 << 20) for seed in range(STREAMS)]
    alone = [bits(warpsmith.reduce_sum(x)) for x in xs]
    alone_dot = [bits(warpsmith.dot(x, xs[0])) for x in xs]
    streams = [torch.cuda.Stream() for _ in xs]
    torch.cuda.synchronize()
    together: list[list[torch.Tensor]] = [[] for _ in xs]
    for _ in range(ROUNDS):
        for stream, x, found in zip(streams, xs, together, strict=True):
            with torch.cuda.stream(stream):
                found += [warpsmith.reduce_sum(x), warpsmith.dot(x, xs[0])]
    torch.cuda.synchronize()
    for found, total, product in zip(together, alone, alone_dot, strict=True):
        assert {bits(out) for out in found[::2]} == {total}
        assert {bits(out) for out in found[1::2]} == {product}


def test_graphs_side_by_side() -> None:
    """So must those of graphs, and calls beside them."""
    xs = [Inputs(torch.bfloat16, "cuda", seed).plain(1 << 21) for seed in range(STREAMS)]
    alone = [bits(warpsmith.reduce_sum(x)) for x in xs]
    graphs, outs = [], []
    for x in xs:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outs.append(warpsmith.reduce_sum(x))
        graphs.append(graph)
    streams = [torch.cuda.Stream() for _ in xs]
    for _ in range(ROUNDS):
        for stream, graph in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        beside = warpsmith.reduce_sum(xs[0])
        torch.cuda.synchronize()
        assert [bits(out) for out in outs] == alone
        assert bits(beside) == alone[0]


OUT_OF_TICKETS = """
import torch, warpsmith
x = torch.randn(1 << 15, device="cuda")
alone = warpsmith.reduce_sum(x)
graph = torch.cuda.CUDAGraph()
kept = []
with torch.cuda.graph(graph):
    for i in range({calls}):
        out = warpsmith.reduce_sum(x)
        if i % 1000 == 0 or i >= {calls} - 20:
            kept.append(out)
for _ in range(3):
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(out, alone) for out in kept)
fresh = torch.cuda.Stream()
with torch.cuda.stream(fresh):
    assert torch.equal(warpsmith.reduce_sum(x), alone)
print("all equal")
"""


def test_more_captured_calls_than_tickets() -> None:
    """In a process of its own, which is left without tickets."""
    header = (csrc.CSRC / "reduce" / "ticket.cuh").read_text()
    found = re.search(r"kTickets = 1 << (\d+);", header)
    assert found is not None
    code = OUT_OF_TICKETS.format(calls=(1 << int(found[1])) + 50)
    package = Path(warpsmith.__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=package, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "all equal" in done.stdout


def test_f16_accumulators_overflow_as_documented() -> None:
    """Two such values pass 65504, unless a wider sum takes them. Neighbours meet in f32 only: of so
    many values a thread takes several packs, and adds up what stands in one place of each.
    """
    count = 1 << 16
    x = torch.full((count,), 57344.0, device="cuda").to(torch.float8_e5m2)
    assert warpsmith.reduce_sum(x, variant="e5m2x16_pack_f16").isinf()
    assert float(warpsmith.reduce_sum(x, variant="e5m2x16_pack_f32")) == count * 57344.0

    pairs = torch.tensor([60000.0, -60000.0], device="cuda").half().repeat(2048)
    assert warpsmith.reduce_sum(pairs, variant="f16x8_pack_f16").isnan()
    assert float(warpsmith.reduce_sum(pairs, variant="f16x8_pack_f32")) == 0.0


def test_e4m3_never_overflows_in_f16() -> None:
    """The most values that a thread adds in f16 are too few: 64 times 448."""
    x = torch.full((1 << 20,), 448.0, device="cuda").to(torch.float8_e4m3fn)
    assert float(warpsmith.reduce_sum(x, variant="e4m3x16_pack_f16")) == 448.0 * (1 << 20)
