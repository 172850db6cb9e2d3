"""Public functions without a gradient in PyTorch's machinery: the second table of
`warpsmith.measure.contract`.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import warpsmith
from conftest import GPU
from warpsmith.core import catalogue, dispatch, families
from warpsmith.measure import contract
from warpsmith.proof.verify.calls import as_public

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")
PAGE = Path(__file__).resolve().parents[1] / "docs/pytorch.md"
DEVICE = "cuda" if GPU else "cpu"
#: What prepares calls.
PREPARES = {
    "KvCachePlan",
    "QuantizedWeight",
    "noise_table",
    "plan_attention_with_kv_cache",
    "repack_quantized_weight",
}
Function = Callable[..., Any]
plain = pytest.mark.parametrize("name", contract.PLAIN)


def boxes(count: int = 9) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    corners = torch.rand(count, 2, generator=g)
    sizes = torch.rand(count, 2, generator=g)
    return torch.cat([corners, corners + sizes], 1), torch.rand(count, generator=g)


def named(name: str) -> dict[str, Any]:
    """Arguments of a call."""
    if name.startswith("quantize_"):
        given: dict[str, Any] = {"x": torch.randn(4, 256)}
    elif name.startswith("nms"):
        found = boxes()
        given = {"boxes": found[0], "scores": found[1], "iou_threshold": 0.3}
    elif name == "timestep_embedding":
        given = {"t": torch.tensor([3, 500, 20]), "dim": 32}
    else:
        op = catalogue.get(name)
        dtype = op.dtypes[0]
        calls = (s.make(op.inputs(dtype)) for s in op.samples_for(dtype) if s.small)
        args = next(a for a in calls if all(t.numel() > 1 for t in a if isinstance(t, Tensor)))
        pairs = zip(op.argument_names, dispatch.normalise(op, args), strict=True)
        given = as_public(getattr(warpsmith, name), dict(pairs))
    return {n: v.to(DEVICE) if isinstance(v, Tensor) else v for n, v in given.items()}


def case(name: str) -> tuple[Function, tuple[Tensor, ...]]:
    """The function of its tensors, and these."""
    given = named(name)
    tensors = [n for n, v in given.items() if isinstance(v, Tensor)]
    rest = {n: v for n, v in given.items() if n not in tensors}

    def run(*args: Tensor) -> Any:
        return getattr(warpsmith, name)(**dict(zip(tensors, args, strict=True)), **rest)

    return run, tuple(given[n] for n in tensors)


def clones(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(t.clone() for t in tensors)


def as_tuple(out: Any) -> tuple[Tensor, ...]:
    outs = out if isinstance(out, tuple | list) else (out,)
    return tuple(o for o in outs if isinstance(o, Tensor))


def same(found: Any, wanted: Any) -> None:
    for a, b in zip(as_tuple(found), as_tuple(wanted), strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a.double(), b.double(), equal_nan=True)


def agrees(name: str, other: Callable[[Function, tuple[Tensor, ...]], Function]) -> None:
    """Results, and what is written to."""
    run, tensors = case(name)
    here, there = clones(tensors), clones(tensors)
    wanted = run(*here)
    same(other(run, clones(tensors))(*there), wanted)
    same(there, here)


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_every_function_is_in_a_table() -> None:
    public = {n for names in families.PUBLIC.values() for n in names}
    assert public == {*contract.FUNCTIONS, *contract.PLAIN, *PREPARES} & public
    assert not set(contract.FUNCTIONS) & set(contract.PLAIN)
    assert contract.plain_table() in PAGE.read_text(), "run `warpsmith report`"


@plain
def test_compile(name: str) -> None:
    agrees(name, lambda run, _: torch.compile(run, fullgraph=True, backend="aot_eager"))


@plain
def test_export(name: str) -> None:
    def exported(run: Function, tensors: tuple[Tensor, ...]) -> Function:
        class Module(torch.nn.Module):
            def forward(self, *given: Tensor) -> Any:
                return run(*given)

        file = io.BytesIO()
        torch.export.save(torch.export.export(Module(), tensors), file)
        file.seek(0)
        return torch.export.load(file).module()

    agrees(name, exported)


@plain
def test_inference(name: str) -> None:
    def inferring(run: Function, _: tuple[Tensor, ...]) -> Function:
        def inside(*given: Tensor) -> Any:
            with torch.inference_mode():
                return run(*given)

        return inside

    agrees(name, inferring)


@plain
def test_vmap(name: str) -> None:
    run, tensors = case(name)
    both = tuple(torch.stack([t, t]) for t in tensors)
    if not contract.works("vmap", name):
        with pytest.raises(RuntimeError, match=rf"^{name}: expected no torch.vmap, as "):
            torch.vmap(run)(*both)
        return
    found = as_tuple(torch.vmap(run)(*both))
    for k in range(2):
        same(tuple(o[k] for o in found), run(*tensors))


@plain
def test_out(name: str) -> None:
    takes = "out" in inspect.signature(getattr(warpsmith, name)).parameters
    assert takes == contract.works("out", name)
    if takes:
        given = named(name)
        wanted = as_tuple(getattr(warpsmith, name)(**given))
        outs = tuple(torch.full_like(w, float("nan")) for w in wanted)
        found = getattr(warpsmith, name)(**given, out=outs if len(outs) > 1 else outs[0])
        assert all(a is b for a, b in zip(as_tuple(found), outs, strict=True))
        same(outs, wanted)


@pytest.mark.gpu
@plain
def test_graph(name: str) -> None:
    if not contract.works("graph", name):
        return
    run, tensors = case(name)
    wanted = run(*clones(tensors))
    static = clones(tensors)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run(*clones(tensors))
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(*static)
    for a, b in zip(static, tensors, strict=True):
        a.copy_(b)
    graph.replay()
    same(found, wanted)
