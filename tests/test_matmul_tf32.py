"""Products of TF32: how operands are rounded, and gradients but for that rounding."""

from __future__ import annotations

import math

import pytest
import torch

import warpsmith
from warpsmith.gemm import matmul_tf32_cases
from warpsmith.gemm.matmul_tf32_cases import round_to_tf32


def nearest(x: float) -> float:
    """By the definition: the multiple of the spacing that is nearest, the larger one of two."""
    _, exponent = math.frexp(x)
    spacing = math.ldexp(1.0, max(exponent, -125) - 11)
    whole = math.floor(abs(x) / spacing + 0.5)
    return math.copysign(whole * spacing, x)


def bits(*values: int) -> torch.Tensor:
    signed = [v - (1 << 32) if v >> 31 else v for v in values]
    return torch.tensor(signed, dtype=torch.int32).view(torch.float32)


def test_rounding_is_to_nearest_and_ties_go_away_from_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-(1 << 31), 1 << 31, (20000,), generator=generator).to(torch.int32)
    x = torch.cat((x.view(torch.float32), torch.randn(2000, generator=generator), torch.zeros(2)))
    x = x[x.isfinite() & (x.abs() < 3.4e38)]
    ties = ((x.view(torch.int32) & -0x2000) + 0x1000).view(torch.float32)
    for values in (x, ties[ties.isfinite()]):
        expected = torch.tensor([nearest(v) for v in values.tolist()], dtype=torch.float64)
        assert torch.equal(round_to_tf32(values).double(), expected)
        assert torch.equal(round_to_tf32(values.double()), expected)


def test_more_products_than_a_grid_has_blocks() -> None:
    a = torch.ones(1, 2, 3)
    for batch, served in ((1 << 31, "wmma_naive"), ((1 << 31) - 1, "mma_peak")):
        batched = a.expand(batch, 2, 3)
        choice = warpsmith.which("matmul_tf32", batched, batched.transpose(1, 2), sm=90)
        assert choice.variant is not None
        assert choice.variant.rung.name == served


def test_what_rounding_leaves_alone() -> None:
    whole = bits(0x7F800000, 0xFF800000, 0x00000000, 0x80000000, 0x7F7FE000, 0x3F802000)
    assert torch.equal(round_to_tf32(whole).view(torch.int32), whole.view(torch.int32))
    assert round_to_tf32(bits(0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0x7F800001)).isnan().all()
    assert torch.equal(
        round_to_tf32(bits(0x7F7FFFFF, 0xFF7FF000)), torch.tensor((math.inf, -math.inf))
    )


def test_gradients_are_those_of_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the rounding, without which finite differences can see them."""
    monkeypatch.setattr(matmul_tf32_cases, "round_to_tf32", lambda x: x)
    generator = torch.Generator().manual_seed(0)

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    for a, b in (((3, 4), (4, 2)), ((4,), (4, 2)), ((3, 4), (4,)), ((4,), (4,))):
        assert torch.autograd.gradcheck(torch.ops.warpsmith.matmul_tf32, (leaf(*a), leaf(*b)))
    for a, b in (
        ((2, 3, 4), (4, 2)),
        ((3, 4), (2, 4, 2)),
        ((2, 1, 3, 4), (3, 4, 1)),
        ((2, 3, 4), (4,)),
    ):
        assert torch.autograd.gradcheck(torch.ops.warpsmith.matmul_tf32, (leaf(*a), leaf(*b)))


def test_differs_from_a_product_of_f32() -> None:
    a, b = torch.full((5, 7), 1 + 2.0**-11), torch.ones(7, 3)
    assert torch.equal(warpsmith.matmul_tf32(a, b), torch.full((5, 3), 7 * (1 + 2.0**-10)))
    assert torch.equal(warpsmith.matmul(a, b), torch.full((5, 3), 7 * (1 + 2.0**-11)))
