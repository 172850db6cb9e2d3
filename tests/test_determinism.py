"""Sums over all elements, and products, are bitwise equal from run to run, whatever else the GPU
does; sums by atomics are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import DTYPES, Inputs, Op, Variant
from warpsmith.spec.determinism import RUNS, cancelling, distinct_results

#: Some thousands of blocks, of which the GPU holds a part at a time.
N = 1 << 24
OPS = tuple(catalogue.get(name) for name in ("reduce_sum", "dot"))


def call(op: Op, dtype: str, device: str = "cuda", n: int = N) -> tuple[Tensor, ...]:
    inputs = Inputs(DTYPES[dtype], device)
    return (cancelling(inputs, n), inputs.plain(n, salt=1))[: len(op.argument_names)]


def function(variant: Variant) -> Callable[..., Any]:
    return getattr(torch.ops.warpsmith, variant.op_name).default


def amid_noise(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same while another stream keeps some multiprocessors busy, more of them every time."""
    noise = torch.zeros(1 << 22, device="cuda")
    side = torch.cuda.Stream()
    count = iter(range(1_000_000))

    def call(*args: Any) -> Tensor:
        with torch.cuda.stream(side):
            noise[: (next(count) % 16 + 1) << 18].add_(1.0)
        return run(*args)

    return call


PRODUCTS = [v for name in ("matmul", "matmul_tf32", "gemv") for v in catalogue.get(name).variants]


def products(inputs: Inputs, op: str) -> Iterator[tuple[Tensor, ...]]:
    """A long k over few tiles, which is what gets split: plain, of columns, of few rows."""
    k, m, n = 8192, 136, 72
    if op == "gemv":
        yield inputs.plain(m, k), inputs.plain(k, salt=1)
        yield inputs.plain(k, m).t(), inputs.plain(k, salt=1)
        yield inputs.plain(k, 128), inputs.plain(128, salt=1)
        return
    rest = (False,) if op == "matmul" else ()
    for rows in (m, 5):
        a = inputs.plain(rows, k)
        yield a, inputs.plain(k, n, salt=1), *rest
        yield a, inputs.plain(n, k, salt=1).t(), *rest
    yield inputs.plain(m, k + 1)[:, 1:], inputs.plain(k, n + 1, salt=1)[:, 1:], *rest


@pytest.mark.gpu
@pytest.mark.parametrize("variant", PRODUCTS, ids=lambda v: v.op_name)
def test_products_have_the_same_bits_on_every_run(variant: Variant) -> None:
    if not dispatch.load(variant.op.library):
        pytest.skip("needs the compiled library")
    if "cute" in variant.rung.name and not dispatch.built_with_cutlass(variant.op.library):
        pytest.skip("built without CUTLASS")
    inputs, sm = Inputs(DTYPES[variant.dtype], "cuda"), dispatch.device_sm(torch.device("cuda"))
    calls = list(products(inputs, variant.op.name))
    taken = [args for args in calls if dispatch.refusal(variant, args, sm) is None]
    if not taken:
        pytest.skip(str(dispatch.refusal(variant, calls[0], sm)))
    run = amid_noise(function(variant))
    for args in taken:
        first = run(*args)
        assert all(torch.equal(run(*args), first) for _ in range(RUNS))


def by_atomics(variant: Variant) -> bool:
    return "atomic" in variant.rung.name


def rungs(*, atomic: bool) -> list[Any]:
    variants = (variant for op in OPS for variant in op.variants)
    return [pytest.param(v, id=v.op_name) for v in variants if by_atomics(v) == atomic]


@pytest.mark.gpu
@pytest.mark.parametrize("variant", rungs(atomic=False))
def test_same_bits_on_every_run(variant: Variant) -> None:
    args = call(variant.op, variant.dtype)
    found = distinct_results(amid_noise(function(variant)), args)
    assert len(found) == 1, f"{len(found)} different results in {RUNS} runs"


@pytest.mark.parametrize("op", OPS, ids=str)
def test_auto_never_picks_atomics(op: Op) -> None:
    for dtype in op.dtypes:
        args = call(op, dtype, "cpu", 1000)
        for given in (args, tuple(a[1:] for a in args), (args[0][:-1], *(a[1:] for a in args[1:]))):
            choice = dispatch.which(op.name, *given, sm=90)
            assert choice.variant is not None
            assert not by_atomics(choice.variant)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", rungs(atomic=True))
def test_atomic_rungs_differ_from_run_to_run(variant: Variant) -> None:
    """The same test on the same values, which an order of additions that changes must fail."""
    args = call(variant.op, variant.dtype)
    found = distinct_results(amid_noise(function(variant)), args)
    assert len(found) > 1, f"one answer in {RUNS} runs: the test above would not notice atomics"


def test_the_values_show_the_order_of_additions() -> None:
    """Even in f64, in which the atomic rung of reduce_sum adds."""
    x = cancelling(Inputs(torch.float32), 1 << 16).double()
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(len(x), generator=generator) for _ in range(3)]
    sums = {float(x[order].cumsum(0)[-1]) for order in orders}
    assert len(sums) == 3
