"""What is asked of few elements: honest computations in float32 pass, wrong ones do not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from warpsmith.core import catalogue
from warpsmith.core.catalogue import DTYPES, FLOATS, Inputs
from warpsmith.proof import testing

NORMS = ("rms_norm_backward", "layer_norm_backward")


def fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a b + c of float32, rounded once."""
    return (a.double() * b.double() + c.double()).float()


def norm_backward(grad: Tensor, x: Tensor, weight: Tensor, eps: float, layer: bool) -> Tensor:
    """dx as a kernel computes it: in float32, products that are subtracted by a fused
    multiply-add.
    """
    g, v, w = grad.float(), x.float(), weight.float()
    centred = v - v.mean(-1, keepdim=True) if layer else v
    rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    xhat = centred * rstd
    scaled = g * w
    slope = (scaled * xhat).mean(-1, keepdim=True)
    inner = fused(g, w.expand_as(g), -scaled.mean(-1, keepdim=True)) if layer else scaled
    return (rstd * fused(-xhat, slope.expand_as(xhat), inner)).to(x.dtype)


def judged(name: str, args: tuple[object, ...], dx: Tensor) -> testing.Comparison:
    op = catalogue.get(name)
    return testing.compare(op, (dx, *testing.yardstick(op, args)[1:]), args)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", NORMS)
def test_gradients_of_rows_of_one_element(name: str, dtype: str) -> None:
    """dx is the difference of two terms that agree; PyTorch's error is one draw, and may be 0."""
    layer = name.startswith("layer")
    for seed in range(8):
        inputs = Inputs(DTYPES[dtype], "cpu", seed)
        rows = 1 + seed % 3
        grad, x = inputs.plain(rows, 1, salt=1), inputs.plain(rows, 1, salt=2)
        weight = inputs.plain(1, salt=3)
        args = (grad, x, weight, *((weight,) if layer else ()), 1e-6)
        dx = norm_backward(grad, x, weight, 1e-6, layer)
        comparison = judged(name, args, dx)
        assert comparison.ok, comparison.message
        # 32 units in the last place of a term are an error; rstd is as large as 1000
        rstd = torch.rsqrt((0.0 if layer else x.float().square()) + torch.tensor(1e-6))
        off = 2.0**-19 * (rstd * grad.float() * weight.float()).abs()
        wrong = (dx.float() + off + 0.02 * dx.float().abs()).to(x.dtype)
        assert not judged(name, args, wrong).ok


@pytest.mark.parametrize("name", NORMS)
def test_longer_rows_are_judged_as_before(name: str) -> None:
    """A gradient without its last term fails, of 3 elements as of 64."""
    layer = name.startswith("layer")
    for cols in (3, 64):
        inputs = Inputs(torch.float32, "cpu", cols)
        grad, x = inputs.plain(2, cols, salt=1), inputs.plain(2, cols, salt=2)
        weight = inputs.plain(cols, salt=3)
        args = (grad, x, weight, *((weight,) if layer else ()), 1e-6)
        dx = norm_backward(grad, x, weight, 1e-6, layer)
        assert judged(name, args, dx).ok
        assert not judged(name, args, dx * (1 + 1e-5)).ok


def test_one_value_that_towers_above_a_row() -> None:
    """The roundings of a mean, of a root that may be off by an ulp, and of a product; no more."""
    op = catalogue.get("rms_norm")
    for seed in range(16):
        x = Inputs(torch.float32, "cpu", seed).plain(64)
        x[seed] = 30.0
        mean = x.square().mean()
        rstd = torch.rsqrt(mean + 1e-6)
        rstd = torch.nextafter(rstd, torch.tensor(9.0 if seed % 2 else 0.0))
        assert testing.compare(op, x * rstd, (x, None, 1e-6)).ok
        assert not testing.compare(op, x * (rstd * (1 + 1.5e-6)), (x, None, 1e-6)).ok


@pytest.mark.parametrize("even", [False, True])
def test_tf32_rounds_ties_either_way(even: bool) -> None:
    """Halfway between two values of TF32 either is as near; any other value is not."""
    op = catalogue.get("matmul_tf32")
    a, b = Inputs(torch.float32).plain(1, 31), Inputs(torch.float32).plain(3, 31, 31, salt=1)
    a.view(torch.int32)[0, ::5] = torch.tensor(0x3F801000, dtype=torch.int32)

    def rounded(x: Tensor, half: int) -> Tensor:
        bits = x.view(torch.int32)
        odd = (bits >> 13) & 1 if even else 1
        return ((bits + half - 1 + odd) & ~0x1FFF).view(torch.float32)

    right = torch.matmul(rounded(a, 0x1000), rounded(b, 0x1000))
    assert testing.compare(op, right, (a, b)).ok
    cut_off = torch.matmul(rounded(a, 0), rounded(b, 0))
    assert not testing.compare(op, cut_off, (a, b)).ok


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_sums_in_16_bits_of_two_elements(dtype: str) -> None:
    """Their mean is off by half a unit in its last place, and their deviation may be small."""
    op = catalogue.get("layer_norm_with_rstd")
    narrow = DTYPES[dtype]
    variant = next(v for v in op.variants if v.dtype == dtype and v.low_precision)
    for pair in ((0.9624, 0.8965), (-0.5342, -0.5190), (0.4780, 0.5234), (1.0, -3.0)):
        x = torch.tensor(pair, dtype=narrow)
        centred = x.float() - (x.sum() / 2).float()
        variance = centred.square().to(narrow).sum().float() / 2
        rstd = torch.rsqrt(variance + 1e-5)
        args = (x, None, None, 1e-5)
        y = (centred * rstd).to(narrow)
        comparison = testing.compare(op, (y, rstd), args, variant=variant)
        assert comparison.ok, comparison.message
    y = (1.2 * y.float()).to(narrow)  # of the last pair, which does not cancel
    assert not testing.compare(op, (y, rstd), args, variant=variant).ok
