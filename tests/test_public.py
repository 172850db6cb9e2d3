"""Public functions: what reaches the operator, and what surrounds a call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import warpsmith
from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import Inputs, Op
from warpsmith.measure import host_times
from warpsmith.proof.verify.calls import as_public

OPS = [op for op in catalogue.load().values() if op.name in warpsmith.__all__]


class Calls(TorchDispatchMode):
    """Records the calls of operators of this package."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "warpsmith":
            self.seen.append((func._schema.name.split("::")[1], args))
        return func(*args, **(kwargs or {}))


def same(a: Any, b: Any) -> bool:
    return a is b if isinstance(a, Tensor) else a == b


@pytest.mark.parametrize("op", OPS, ids=str)
def test_every_argument_reaches_the_operator(op: Op) -> None:
    dtype = op.dtypes[0]
    for sample in [s for s in op.samples_for(dtype) if s.small and not s.huge]:
        args = dispatch.normalise(op, sample.make(op.inputs(dtype)))
        function = getattr(warpsmith, op.name)
        named = as_public(function, dict(zip(op.argument_names, args, strict=True)))
        with Calls() as calls:
            function(**named)
        name, given = calls.seen[0]
        assert name == op.name, sample.label
        assert all(map(same, dispatch.normalise(op, given), args)), sample.label


def test_gradients_pass_through_vmap() -> None:
    x, grad = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6)
    ours, theirs = (
        torch.autograd.grad(torch.vmap(f)(x), x, grad)[0] for f in (warpsmith.silu, functional.silu)
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["matmul", "linear"])
def test_gradients_are_as_batch_invariant_as_the_call(name: str) -> None:
    """The rows of x's gradient; a weight's is a sum over all rows."""
    x, weight = (torch.randn(5, 5) for _ in range(2))
    x.requires_grad_()
    for wanted in (False, True):
        y = getattr(warpsmith, name)(x, weight, batch_invariant=wanted)
        with Calls() as calls:
            torch.autograd.grad(y.sum(), x)
        product = catalogue.get("matmul")
        flags = [dispatch.normalise(product, a)[2] for n, a in calls.seen if n == "matmul"]
        assert flags == [wanted]


@pytest.mark.parametrize("name", host_times.CASES)
def test_the_default_device_changes_nothing(name: str) -> None:
    """What a function makes for itself is where its tensors are, or on the CPU."""
    of = host_times.CASES[name]
    args = of.args(Inputs(torch.float32, "cpu"))
    ours = of.ours or getattr(warpsmith, name)
    with torch.device("meta"):
        found = ours(*args)
    found = found if isinstance(found, tuple | list) else (found,)
    assert {t.device.type for t in found if isinstance(t, Tensor)} == {"cpu"}
