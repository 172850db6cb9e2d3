"""Reductions along dimensions where no sample reaches: several dimensions or all, integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import warpsmith
from conftest import GPU
from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import Inputs

DEVICE = "cuda" if GPU else "cpu"
SEVERAL = ("sum", "mean", "amax", "amin", "var")
POSITIONS = ("argmax", "argmin")
DIMS: tuple[Any, ...] = (None, (), (1,), (0, 1), (1, 2), (2, 0), (-1, -3), [0, 3], (3, 1, 0, 2))
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "permuted": lambda x: x.permute(2, 0, 3, 1).contiguous().permute(1, 3, 0, 2),
    "stepped": lambda x: x.repeat_interleave(2, 3)[..., ::2],
}


def tensor(layout: str = "contiguous", shape: tuple[int, ...] = (3, 4, 5, 6)) -> Tensor:
    """In float64, so that the order of additions does not show."""
    return LAYOUTS[layout](Inputs(torch.float64, DEVICE).randn(*shape))


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert ours.is_contiguous()
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-10, equal_nan=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("op", SEVERAL)
def test_several_dimensions(op: str, dims: Any, keepdim: bool, layout: str) -> None:
    ours, theirs = (tensor(layout).requires_grad_() for _ in range(2))
    out = getattr(warpsmith, op)(ours, dims, keepdim=keepdim)
    # spelt out, as PyTorch's own gradient of a variance over () is infinite
    wanted = getattr(torch, op)(theirs, dims or (0, 1, 2, 3), keepdim=keepdim)
    assert_same(out, wanted)
    grad = torch.randn_like(wanted)
    out.backward(grad)
    wanted.backward(grad)
    assert ours.grad is not None
    assert theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("op", POSITIONS)
def test_positions_among_all(op: str, keepdim: bool, layout: str) -> None:
    """Counted in the order of the shape, and the first of equal ones."""
    x = tensor(layout).round()
    found = getattr(warpsmith, op)(x, None, keepdim)
    extreme = x.max() if op == "argmax" else x.min()
    assert found.shape == ((1, 1, 1, 1) if keepdim else ())
    assert int(found) == int((x.flatten() == extreme).nonzero()[0])


@pytest.mark.parametrize("op", [*SEVERAL, *POSITIONS])
def test_without_dim_all_values(op: str) -> None:
    x = tensor(shape=(3, 4))
    function, theirs = getattr(warpsmith, op), getattr(torch, op)
    assert_same(function(x), theirs(x))
    assert_same(function(x, keepdim=True), theirs(x, dim=None, keepdim=True))


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("dims", [None, 1, (0, 2)], ids=str)
def test_in_another_dtype(op: str, dims: Any) -> None:
    """Not rounded to that of x, whose largest number the sum of these passes."""
    x = torch.full((4, 5, 6), 60000.0, dtype=torch.float16, device=DEVICE)
    function, theirs = getattr(warpsmith, op), getattr(torch, op)
    # PyTorch's mean in f32 is an ulp off: that in f64 is exact, and fits f32.
    wanted = theirs(x, dims, dtype=torch.float64).float()
    assert_same(function(x, dims, dtype=torch.float32), wanted)
    whole = torch.arange(24, device=DEVICE).view(2, 3, 4)
    wanted = theirs(whole, dims, dtype=torch.float64)
    assert_same(function(whole, dims, dtype=torch.float64), wanted)
    if op == "sum":
        wanted = theirs(whole, dims, dtype=torch.int32)
        assert_same(function(whole, dims, dtype=torch.int32), wanted)


@pytest.mark.parametrize("op", [*SEVERAL, *POSITIONS])
@pytest.mark.parametrize("shape", [(), (1,), (4, 0), (2, 1, 3)], ids=str)
def test_all_of_odd_shapes(op: str, shape: tuple[int, ...]) -> None:
    x = torch.ones(shape, dtype=torch.float64, device=DEVICE)
    try:
        wanted = getattr(torch, op)(x, None if op in POSITIONS else tuple(range(x.dim())))
    except (IndexError, RuntimeError):
        with pytest.raises(IndexError, match=rf"{op}: expected dimension 1 of x.*\(4, 0\)"):
            getattr(warpsmith, op)(x, None)
    else:
        assert_same(getattr(warpsmith, op)(x, None), wanted)


@pytest.mark.parametrize("op", ["sum", "mean", "var"])
@pytest.mark.parametrize("dims", [None, (0, 2), (1, 2)], ids=str)
def test_batch_invariant_whatever_the_strides(op: str, dims: Any) -> None:
    function = lambda x: getattr(warpsmith, op)(x, dims, batch_invariant=True)  # noqa: E731
    x = Inputs(torch.float32, DEVICE).randn(5, 70, 90)
    assert torch.equal(function(x), function(x.permute(2, 0, 1).contiguous().permute(1, 2, 0)))


@pytest.mark.parametrize("op", SEVERAL)
def test_refused_dimensions(op: str) -> None:
    function, x = getattr(warpsmith, op), tensor()
    with pytest.raises(RuntimeError, match=rf"{op}: expected every dimension at most once in dim"):
        function(x, (1, 1))
    with pytest.raises(RuntimeError, match=rf"{op}: .*at most once in dim, got \(1, -3\)"):
        function(x, (1, -3))
    with pytest.raises(IndexError, match=rf"{op}: expected dim to lie in \[-4, 3\], got 4"):
        function(x, (0, 4))


@pytest.mark.gpu
@pytest.mark.parametrize("op", SEVERAL)
def test_variants_serve_several_dimensions(op: str) -> None:
    x = Inputs(torch.float32, DEVICE).randn(6, 5, 64)
    found = getattr(warpsmith, op)(x, (1, 2), variant="f32x4_pack")
    torch.testing.assert_close(found, getattr(torch, op)(x, (1, 2)), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dims", [-1, 0, (0, 1), None], ids=str)
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64])
@pytest.mark.parametrize("op", ["sum", "amax", "amin", *POSITIONS])
def test_integers(op: str, dtype: torch.dtype, dims: Any) -> None:
    """As PyTorch's, which serves them: exact, sums in int64."""
    if op in POSITIONS and dims == (0, 1):
        pytest.skip("one dimension or all")
    x = torch.randint(0, 100, (7, 33), device=DEVICE).to(dtype)
    if op in POSITIONS and dtype == torch.bool:
        with pytest.raises(RuntimeError, match=rf"{op}: expected x to hold real numbers"):
            getattr(warpsmith, op)(x, dims)
        return
    wanted = getattr(torch, op)(x, () if dims is None and op not in POSITIONS else dims)
    found = getattr(warpsmith, op)(x, dims)
    assert found.dtype == wanted.dtype
    if op in POSITIONS:  # PyTorch may point at any of equal ones
        extreme = (torch.amax if op == "argmax" else torch.amin)(x, () if dims is None else dims)
        at = x.flatten()[found]
        if dims is not None:
            at = x.gather(dims, found.unsqueeze(dims)).squeeze(dims)
        assert torch.equal(at, extreme)
    else:
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("op", ["mean", "var"])
@pytest.mark.parametrize("dims", [-1, None, (0, 1)], ids=str)
def test_means_of_integers_are_refused(op: str, dims: Any) -> None:
    x = torch.ones(3, 4, dtype=torch.int32, device=DEVICE)
    with pytest.raises(RuntimeError, match=rf"{op}: expected x to be a floating-point tensor"):
        getattr(warpsmith, op)(x, dims)


@pytest.mark.parametrize("op", ["sum", "amax", "argmin"])
def test_the_reference_serves_integers(op: str) -> None:
    """The Triton twins are written for floating-point numbers."""
    x = torch.empty(7, 33, dtype=torch.int32, device="meta")
    assert warpsmith.which(op, x, sm=90).implementation == "reference"
    spec = catalogue.get(op)
    assert dispatch.fallback_choice(spec, (x, -1, False), "").implementation == "reference"


@pytest.mark.parametrize("rung", ["naive", "shuffle", "pack_warp"])
def test_rungs_that_lose_digits_refuse_long_rows(rung: str) -> None:
    op = catalogue.get("sum")
    variant = next(v for v in op.variants if v.dtype == "f32" and v.name.endswith(f"_{rung}"))
    for n, refused in ((1 << 22, False), ((1 << 22) + 1, True)):
        args = dispatch.normalise(op, (torch.empty(1, n, device="meta"),))
        assert ("2^22" in (dispatch.refusal(variant, args, 90) or "")) == refused


@pytest.mark.parametrize(
    ("shape", "dim", "refused"),
    [((4, 0), 1, True), ((0, 5), -2, True), ((0, 16), 1, False), ((16, 0), 0, False)],
)
def test_only_naive_reduces_nothing_to_something(
    shape: tuple[int, int], dim: int, refused: bool
) -> None:
    op = catalogue.get("sum")
    args = dispatch.normalise(op, (torch.empty(shape), dim))
    reasons = {v.rung.name: dispatch.refusal(v, args, 90) for v in op.variants if v.dtype == "f32"}
    wanted = "needs values to reduce" if refused else None
    assert reasons.pop("naive") is None
    assert set(reasons.values()) == {wanted}
