"""How calls reach autograd: which way is taken when, what is kept and computed, and that nothing is
lost when gradients are differentiated in their turn.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import warpsmith
from warpsmith.core import autograd, catalogue, dispatch
from warpsmith.core.catalogue import Op
from warpsmith.measure import host_times

DIFFERENTIABLE = [op for op in catalogue.load().values() if op.backward is not None]
W, B, UP = torch.randn(16, 16), torch.randn(16), torch.randn(4, 16)
TARGET = torch.tensor([3, 0, 15, 7])

#: Functions of x [4, 16] and what PyTorch makes of them.
PAIRS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "gelu": (warpsmith.gelu, F.gelu),
    "bias_gelu": (lambda x: warpsmith.bias_gelu(x, B), lambda x: F.gelu(x + B)),
    "silu_and_mul": (lambda x: warpsmith.silu_and_mul(x, UP), lambda x: F.silu(x) * UP),
    "mul": (lambda x: warpsmith.mul(x, x), torch.square),
    "softmax": (warpsmith.softmax, lambda x: F.softmax(x, -1)),
    "rms_norm": (lambda x: warpsmith.rms_norm(x, B), lambda x: F.rms_norm(x, (16,), B, 1e-6)),
    "layer_norm": (warpsmith.layer_norm, lambda x: F.layer_norm(x, (16,))),
    "add_rms_norm": (
        lambda x: sum(warpsmith.add_rms_norm(x, UP, B)),
        lambda x: F.rms_norm(x + UP, (16,), B, 1e-6) + (x + UP),
    ),
    "linear": (lambda x: warpsmith.linear(x, W, B), lambda x: F.linear(x, W, B)),
    "matmul": (lambda x: warpsmith.matmul(x, W), lambda x: x @ W),
    "var": (lambda x: warpsmith.var(x, -1), lambda x: x.var(-1)),
    "cumsum": (lambda x: warpsmith.cumsum(x, -1), lambda x: x.cumsum(-1)),
    "cross_entropy": (
        lambda x: warpsmith.cross_entropy(x, TARGET),
        lambda x: F.cross_entropy(x, TARGET),
    ),
    "inplace_backward": (
        lambda x: warpsmith.cross_entropy(x * 1, TARGET, inplace_backward=True),
        lambda x: F.cross_entropy(x, TARGET),
    ),
    "fused_linear_cross_entropy": (
        lambda x: warpsmith.fused_linear_cross_entropy(x, W, TARGET, B),
        lambda x: F.cross_entropy(F.linear(x, W, B), TARGET),
    ),
}
pairs = pytest.mark.parametrize("name", PAIRS)


def rows() -> Tensor:
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(3))


def squares(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A scalar whose gradient depends on the function's values."""
    return lambda x: function(x).square().sum()


# --- which way ------------------------------------------------------------------------------------


class Ways:
    """Counts the functions of autograd that run, and the calls that the dispatcher gets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, op: Op) -> None:
        self.kept = 0
        derivative = autograd.derivative_of(op)
        keep = derivative.keep

        def counted(*args: Any) -> None:
            self.kept += 1
            keep(*args)

        monkeypatch.setattr(derivative, "keep", counted)


def test_a_call_is_recorded_only_where_something_needs_a_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways = Ways(monkeypatch, catalogue.get("gelu"))
    x = rows()
    assert not warpsmith.gelu(x).requires_grad
    leaf = x.clone().requires_grad_()
    for off in (torch.no_grad, torch.inference_mode):
        with off():
            assert not warpsmith.gelu(leaf).requires_grad
    assert ways.kept == 0
    y = warpsmith.gelu(leaf)
    assert ways.kept == 1
    assert y.grad_fn.name() == "geluBackward"
    assert torch.ops.warpsmith.gelu(leaf).requires_grad
    assert ways.kept == 2


@pytest.mark.parametrize("public", [True, False], ids=["public", "torch.ops"])
def test_every_way_gives_the_same(public: bool) -> None:
    function = warpsmith.rms_norm if public else torch.ops.warpsmith.rms_norm
    variant = torch.ops.warpsmith.rms_norm_f32

    def gradients(run: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        x, weight = rows().requires_grad_(), B.clone().requires_grad_()
        return torch.autograd.grad(run(x, weight).square().sum(), (x, weight))

    wanted = gradients(lambda x, w: F.rms_norm(x, (16,), w, 1e-6))
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    saved = lambda *args: checkpoint(function, *args, use_reentrant=False)  # noqa: E731
    for way in (function, variant, compiled, saved):
        torch.testing.assert_close(gradients(way), wanted)


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=str)
def test_only_what_is_asked_for_is_computed(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    """A derivative that names `needs` is told what autograd wants, and of nothing else."""
    derivative = autograd.derivative_of(op)
    if not derivative.takes_needs:
        pytest.skip("computes all gradients at once")
    asked: list[frozenset[str]] = []
    function, names = derivative.function, op.derivative_takes

    def told(*given: Any, **named: Any) -> Any:
        asked.append((dict(zip(names, given, strict=False)) | named)["needs"])
        return function(*given, **named)

    monkeypatch.setattr(derivative, "function", told)
    dtype = next(d for d in op.dtypes if catalogue.DTYPES[op.signature(d).first] is torch.float32)
    args = dispatch.normalise(op, op.samples_for(dtype)[0].make(op.inputs(dtype)))
    for slot, a in enumerate(args):
        if isinstance(a, Tensor) and a.is_floating_point():
            leaf = a.detach().requires_grad_()
            out = getattr(torch.ops.warpsmith, op.name)(*args[:slot], leaf, *args[slot + 1 :])
            outs = [o for o in op.results(out) if o is not None and o.requires_grad]
            asked.clear()
            torch.autograd.grad(outs, leaf, [torch.ones_like(o) for o in outs])
            assert asked == [{op.argument_names[slot]}]


def test_what_a_call_keeps_passes_the_hooks_of_saved_tensors() -> None:
    x = rows().requires_grad_()
    packed: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        warpsmith.softmax(x)
    assert len(packed) == 1  # the result alone


def test_a_missing_tensor_is_named_where_a_gradient_is_wanted() -> None:
    with pytest.raises(TypeError, match="linear: expected weight to be a tensor, got None"):
        warpsmith.linear(rows().requires_grad_(), None)


# --- transforms -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pairs
def test_transforms_take_a_gradient(name: str) -> None:
    ours, theirs = PAIRS[name]
    x = rows()
    found = torch.func.grad(squares(ours))(x)
    torch.testing.assert_close(found, torch.func.grad(squares(theirs))(x))
    jacobians = [torch.func.jacrev(f)(x) for f in (ours, theirs)] if "loss" not in name else []
    torch.testing.assert_close(*jacobians)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", ["gelu", "silu", "softmax", "rms_norm"])
def test_gradients_of_each_of_a_batch(name: str) -> None:
    ours = getattr(warpsmith, name)
    theirs = {"softmax": lambda x: F.softmax(x, -1), "rms_norm": PAIRS["rms_norm"][1]}
    reference = theirs.get(name) or getattr(F, name)
    if name == "rms_norm":
        ours = PAIRS[name][0]
    x = rows()
    found, wanted = (torch.vmap(torch.func.grad(squares(f)))(x) for f in (ours, reference))
    torch.testing.assert_close(found, wanted)


def test_what_a_transform_leaves_behind_is_a_tensor_again() -> None:
    left: list[Tensor] = []

    def leaves(x: Tensor) -> Tensor:
        left.append(x * 1)
        return warpsmith.gelu(x).sum()

    torch.func.grad(leaves)(rows())
    torch.testing.assert_close(warpsmith.gelu(left[0]), F.gelu(rows()))


# --- second derivatives ---------------------------------------------------------------------------


def second(function: Callable[[Tensor], Tensor]) -> Tensor:
    x = rows().requires_grad_()
    (first,) = torch.autograd.grad(squares(function)(x), x, create_graph=True)
    return torch.autograd.grad(first.square().sum(), x)[0]


def unless_refused(call: Callable[[], Tensor]) -> Tensor | None:
    """What a call returns; None where it says that it is not implemented."""
    try:
        return call()
    except RuntimeError as error:
        if "not implemented" not in str(error):
            raise
    return None


@pairs
def test_a_second_derivative_is_right_or_refused(name: str) -> None:
    ours, theirs = PAIRS[name]
    found = unless_refused(lambda: second(ours))
    if found is not None:
        torch.testing.assert_close(found, second(theirs))


@pairs
def test_a_second_derivative_within_transforms_is_right_or_refused(name: str) -> None:
    """Not the gradient of a constant, which is what it was of the fused loss."""
    ours, theirs = (
        torch.func.grad(lambda x, f=f: torch.func.grad(squares(f))(x).square().sum())
        for f in PAIRS[name]
    )
    found = unless_refused(lambda: ours(rows()))
    if found is not None:
        torch.testing.assert_close(found, theirs(rows()))


@pytest.mark.parametrize("name", ["mul", "matmul", "linear", "cumsum"])
def test_some_have_second_derivatives(name: str) -> None:
    ours, theirs = PAIRS[name]
    torch.testing.assert_close(second(ours), second(theirs))


@pytest.mark.parametrize("name", ["fused_linear_cross_entropy", "inplace_backward", "softmax"])
def test_a_refused_second_derivative_leaves_the_first(name: str) -> None:
    ours, theirs = PAIRS[name]
    first = []
    for function in (ours, theirs):
        x = rows().requires_grad_()
        first.append(torch.autograd.grad(function(x).sum(), x, create_graph=True)[0])
    torch.testing.assert_close(*first)
    with pytest.raises(RuntimeError, match="not implemented"):
        first[0].sum().backward()


# --- export ---------------------------------------------------------------------------------------


def test_an_exported_program_is_saved_and_loaded() -> None:
    class Block(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return warpsmith.linear(warpsmith.rms_norm(x, B), W)

    program = torch.export.export(Block(), (rows(),))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    found = torch.export.load(file).module()(rows())
    torch.testing.assert_close(found, Block()(rows()))


# --- the host's part ------------------------------------------------------------------------------


def test_every_function_with_a_gradient_is_timed() -> None:
    ops = catalogue.load()
    composites = set(catalogue.composites())
    forwards = {f"{name}_forward" for name in warpsmith.__all__}
    timed = {
        name.removesuffix("_forward") if name in forwards else name
        for name, op in ops.items()
        if op.backward is not None and (name in warpsmith.__all__ or name in forwards)
    }
    aliases = {a for op in DIFFERENTIABLE for a in op.aliases if a in warpsmith.__all__}
    assert set(host_times.CASES) == timed | composites | aliases


@pytest.mark.parametrize("name", host_times.CASES)
def test_what_is_timed_runs(name: str) -> None:
    for calls in host_times.functions(name, "cpu").values():
        for call in calls.values():
            call()


def test_bounds_are_the_larger_of_two() -> None:
    theirs = {"none_us": 5.0, "forward_us": 10.0, "both_us": 200.0}
    assert not host_times.beyond({"none_us": 8.0, "forward_us": 18.0, "both_us": 250.0}, theirs)
    ours = {"none_us": 8.1, "forward_us": 18.1, "both_us": 250.1}
    assert host_times.beyond(ours, theirs) == list(host_times.BOUNDS)
