"""Elementwise functions: what their own samples do not show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import warpsmith
from conftest import GPU
from warpsmith.core import catalogue, dispatch, twins
from warpsmith.core.catalogue import DTYPES, FLOATS, Inputs
from warpsmith.proof import testing

DEVICE = "cuda" if GPU else "cpu"


@pytest.mark.parametrize("lambd", [0.3, 0.7, 1.1])
@pytest.mark.parametrize("dtype", FLOATS)
def test_hardshrink_rounds_lambd_to_the_dtype(dtype: str, lambd: float) -> None:
    """The value nearest to lambd is not beyond it, rounded up or down."""
    x = torch.tensor([lambd, -lambd, 2.0], dtype=DTYPES[dtype], device=DEVICE, requires_grad=True)
    y = warpsmith.hardshrink(x, lambd)
    y.sum().backward()
    assert y.tolist() == F.hardshrink(x, lambd).tolist() == [0.0, 0.0, 2.0]
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 0.0, 1.0]
    far = torch.tensor([torch.inf, 1.0, -60000.0], dtype=DTYPES[dtype], device=DEVICE)
    if GPU or dtype != "f16":  # for f16 on a CPU PyTorch refuses a number that is none of its own
        assert warpsmith.hardshrink(far, 1e6).tolist() == [torch.inf, 0.0, 0.0]
    if twins.triton_available():
        assert testing.run_triton(catalogue.get("hardshrink"), (far, 1e6)).tolist() == [
            torch.inf,
            0.0,
            0.0,
        ]
        x, ones = x.detach(), torch.ones_like(x)
        forward, backward = catalogue.get("hardshrink"), catalogue.get("hardshrink_backward")
        assert testing.run_triton(forward, (x, lambd)).tolist() == [0.0, 0.0, 2.0]
        assert testing.run_triton(backward, (ones, x, lambd)).tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("count", [1, 7, 8, 9, 15, 16, 23])
def test_weighted_sum_of_any_number(count: int) -> None:
    """Eight tensors are one pass; the sum so far enters the next, and gradients pass through."""
    xs = Inputs(torch.float32, DEVICE).plain(count, 5, 33).requires_grad_()
    weights = [0.5 - 0.1 * k for k in range(count)]
    y = warpsmith.weighted_sum(xs, weights, alpha=2.0)
    wanted = 2 * (torch.tensor(weights, device=DEVICE)[:, None, None] * xs).sum(0)
    torch.testing.assert_close(y, wanted)
    grad = torch.randn_like(y)
    ours, theirs = (torch.autograd.grad(out, xs, grad)[0] for out in (y, wanted))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("tensors", "weights"), [(0, 0), (2, 1), (9, 8)])
def test_weighted_sum_wants_a_weight_for_each(tensors: int, weights: int) -> None:
    with pytest.raises(RuntimeError, match=f"got {tensors} tensors and {weights} weights"):
        warpsmith.weighted_sum([torch.ones(3)] * tensors, [1.0] * weights)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_sums_of_several_are_rounded_once(dtype: str) -> None:
    """Ones that vanish one by one beside a number of which they are half a unit."""
    unit = 2.0 / torch.finfo(DTYPES[dtype]).eps
    x, one = (torch.full((3, 40), v, dtype=DTYPES[dtype], device=DEVICE) for v in (unit, 1.0))
    wanted = [unit + 2] * x.numel()
    for name, args in {
        "weighted_sum_forward": (x, [1.0] * 3, one, one),
        "bias_dropout_add": (x, one[0], one),
    }.items():
        op = catalogue.get(name)
        args = dispatch.normalise(op, args)
        outputs = [getattr(torch.ops.warpsmith, name)(*args)]
        if twins.triton_available():
            outputs.append(testing.run_triton(op, args))
        for out in outputs:
            y = out[0] if isinstance(out, tuple) else out
            assert y.flatten().tolist() == wanted


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_of_dropout_follow_its_mask(dtype: str) -> None:
    """Those of x, bias and residual, against what PyTorch makes of the elements that were kept."""
    inputs = Inputs(DTYPES[dtype], DEVICE)
    tensors = [inputs.plain(*shape, salt=k) for k, shape in enumerate(((9, 40), (40,), (9, 40)))]
    x, bias, residual = (t.requires_grad_() for t in tensors)
    y, mask = warpsmith.bias_dropout_add(x, bias, residual, 0.25, seed=7, offset=2)
    assert not mask.requires_grad
    element = torch.arange(x.numel(), device=DEVICE)
    kept = (mask[element // 32] >> (element % 32) & 1).view(x.shape)
    assert 0.6 < kept.float().mean() < 0.9
    wanted = residual + (x + bias) * kept / 0.75
    op = catalogue.get("bias_dropout_add")
    testing.assert_matches(op, (y, mask), (x, bias, residual, 0.25, 7, 2))
    grad = inputs.plain(9, 40, salt=3)
    ours, theirs = (torch.autograd.grad(out, (x, bias, residual), grad) for out in (y, wanted))
    torch.testing.assert_close(ours, theirs)
    other, _ = warpsmith.bias_dropout_add(x, bias, residual, 0.25, seed=7, offset=3)
    assert not torch.equal(y, other)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_halves_of_an_output_lie_where_they_will(activation: str) -> None:
    """The second half of dx starts 4 bytes behind an aligned address, whatever the inputs do."""
    op = catalogue.get(f"{activation}_and_mul_backward")
    args = (torch.ones(1), torch.ones(4)[::2], None)
    refusals = {v.rung.name: dispatch.refusal(v, args, 90) for v in op.variants if v.dtype == "f32"}
    assert refusals["x2"] == "needs data aligned to 2 elements"
    assert refusals["pack"] == "needs data aligned to 16 bytes"
    assert refusals["scalar"] is None


#: Compiles twins for a GPU that is not there, in a process without the interpreter.
_COMPILE = """
import torch, compile_twins
from warpsmith.core import catalogue, twins
compile_twins.pretend(90)
x, row = torch.ones(2, 2).to(torch.float8_e5m2), torch.ones(2).to(torch.float8_e5m2)
calls = {"add": (x, row), "mul_add": (x, row, x), "gelu_tanh": (x,)}
for name in ("bias_gelu", "bias_gelu_tanh"):
    calls |= {name: (x, row), f"{name}_backward": (x, x, row)}
for name, args in calls.items():
    twins.triton_function(catalogue.get(name))(*args)
print(len(calls), "compiled")
"""


@pytest.mark.skipif(twins.why_no_triton() is not None, reason="needs Triton")
def test_twins_in_e5m2_of_rows_of_two_values() -> None:
    """The instructions that convert four values at a time want that many of a tile."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parent), *sys.path))
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "7 compiled\n", done.stderr[-3000:]
