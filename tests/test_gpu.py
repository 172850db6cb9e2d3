"""Every kernel on a GPU: what `warpsmith verify` does, a test per operator and kind of check."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import warpsmith
from test_ops import OPS, applies, report
from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import Op
from warpsmith.native import inspection
from warpsmith.proof import verify

pytestmark = pytest.mark.gpu

#: Checked together, because they share what they compare with.
CALLS = ("samples", "variants", "refusals", "triton")
KINDS: dict[str, tuple[str, ...]] = {
    "calls": CALLS,
    **{kind: (kind,) for kind in verify.KINDS if kind not in CALLS},
}
CASES = [
    pytest.param(op, kind, id=f"{op.name}-{kind}")
    for op in OPS
    for kind in KINDS
    if applies(op, kind)
]


@pytest.mark.parametrize(("op", "kind"), CASES)
def test_on_gpu(op: Op, kind: str) -> None:
    if kind == "device" and torch.cuda.device_count() < 2:
        pytest.skip("needs a second GPU")
    results = verify.verify([op], device="cuda", kinds=KINDS[kind])
    assert results, "nothing was checked"
    if any(result.kind == "device lost" for result in results):
        pytest.exit(report(results), returncode=1)
    assert all(result.ok for result in results), report(results)


def test_device_vocabulary() -> None:
    results = verify.self_tests()
    if not results:
        pytest.skip("the device vocabulary has no self tests in this checkout")
    assert all(result.ok for result in results), report(results)


@pytest.mark.parametrize("op", [warpsmith.relu, warpsmith.rms_norm, warpsmith.reduce_sum])
def test_a_captured_kernel_may_start_early_after_a_memset(op: Callable[[Tensor], Tensor]) -> None:
    x = torch.ones(64, 1024, device="cuda")
    op(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.zero_()
        y = op(x)
    for _ in range(10):
        x.fill_(1.0)
        graph.replay()
        assert not y.any()


@pytest.mark.parametrize("name", ["gemv", "gemv_scaled", "linear", "rms_norm"])
def test_inspect_knows_every_rung_as_it_is_launched(name: str) -> None:
    op = catalogue.get(name)
    inspection.launch_all(op)
    kernels = inspection.inspect(op)
    sm = dispatch.device_sm(torch.device("cuda"))
    launched = {kernel.rung for kernel in kernels if kernel.occupancy is not None}
    assert launched >= {rung.name for rung in op.ladder if rung.min_sm <= sm}
    for kernel in kernels:
        assert name in kernel.ops
        if kernel.occupancy is not None:
            assert kernel.threads
            assert kernel.blocks_per_sm, f"{kernel.name} was launched and fits no multiprocessor"
