"""Arguments of elementwise functions that PyTorch's have, or that models change a gate by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import warpsmith

HALF = torch.bfloat16
X, Y, Z = (torch.randn(4, 16, generator=torch.Generator().manual_seed(k)) for k in range(3))

Call = Callable[[], Any]
CALLS: dict[str, tuple[Call, Call]] = {
    "a number": (lambda: warpsmith.add(X, 0.1), lambda: X + 0.1),
    "a number in 16 bits": (lambda: warpsmith.add(X.to(HALF), 0.1), lambda: X.to(HALF) + 0.1),
    "alpha": (lambda: warpsmith.add(X, Y, alpha=0.3), lambda: torch.add(X, Y, alpha=0.3)),
    "alpha and a number": (lambda: warpsmith.add(X, 2, alpha=3), lambda: torch.add(X, 2, alpha=3)),
    "a wider y": (lambda: warpsmith.add(X.to(HALF), Y), lambda: X.to(HALF) + Y),
    "a narrower y": (lambda: warpsmith.mul(X, Y.to(HALF)), lambda: X * Y.to(HALF)),
    "f16 beside bf16": (lambda: warpsmith.mul(X.half(), Y.to(HALF)), lambda: X.half() * Y.to(HALF)),
    "no dimensions": (
        lambda: warpsmith.add(X.to(HALF), torch.tensor(0.5)),
        lambda: X.to(HALF) + torch.tensor(0.5),
    ),
    "double": (lambda: warpsmith.mul(X, Y.double()), lambda: X * Y.double()),
    "times a number": (lambda: warpsmith.mul(X.to(HALF), 0.3), lambda: X.to(HALF) * 0.3),
    "value": (
        lambda: warpsmith.mul_add(X, Y, Z, value=0.5),
        lambda: torch.addcmul(Z, X, Y, value=0.5),
    ),
    "a factor": (lambda: warpsmith.mul_add(X, 0.5, Z), lambda: torch.add(Z, X, alpha=0.5)),
    "a summand": (lambda: warpsmith.mul_add(X, Y, 1.0), lambda: X * Y + 1.0),
    "two numbers": (lambda: warpsmith.mul_add(X, 2.0, 1.0), lambda: X * 2.0 + 1.0),
    "mixed": (lambda: warpsmith.mul_add(X.to(HALF), Y, Z), lambda: X.to(HALF).float() * Y + Z),
    "a wider up": (
        lambda: warpsmith.silu_and_mul(X.to(HALF), Y),
        lambda: F.silu(X.to(HALF).float()) * Y,
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_as_in_pytorch(name: str) -> None:
    ours, theirs = (call() for call in CALLS[name])
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs)


def test_gradients_have_the_dtypes_that_were_given() -> None:
    def gradients(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        x, y = X.to(HALF).requires_grad_(), Y.clone().requires_grad_()
        return torch.autograd.grad(function(x, y).sum(), (x, y))

    for ours, theirs in ((warpsmith.add, torch.add), (warpsmith.mul, torch.mul)):
        found, wanted = gradients(ours), gradients(theirs)
        assert [g.dtype for g in found] == [HALF, torch.float32]
        torch.testing.assert_close(found, wanted)


def test_numbers_beside_fp8() -> None:
    x = X.to(torch.float8_e4m3fn)
    assert torch.equal(warpsmith.mul(x, 2.0).float(), x.float() * 2.0)


@pytest.mark.parametrize("fused", [True, False], ids=["one tensor", "two"])
def test_the_gate_of_gpt_oss(fused: bool) -> None:
    """As its experts have it, at values beyond the limit."""
    x, up = 5 * X, 5 * Y
    gate, other = x.clamp(max=7.0), up.clamp(-7.0, 7.0)
    wanted = (other + 1) * (gate * torch.sigmoid(gate * 1.702))
    given = (torch.cat((x, up), -1),) if fused else (x, up)
    found = warpsmith.silu_and_mul(*given, limit=7.0, alpha=1.702, shift=1.0)
    torch.testing.assert_close(found, wanted)


def test_the_gate_of_falcon_h1() -> None:
    wanted = F.silu(X * 0.3) * Y
    torch.testing.assert_close(warpsmith.silu_and_mul(X, Y, multiplier=0.3), wanted)
    wanted = F.gelu(X * 0.3, approximate="tanh") * Y
    torch.testing.assert_close(warpsmith.gelu_tanh_and_mul(X, Y, multiplier=0.3), wanted)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="add: expected variant to be None beside a number"):
        warpsmith.add(X, 1.0, variant="f32")
    with pytest.raises(RuntimeError, match="add: expected x to be a floating-point tensor"):
        warpsmith.add(torch.arange(3), torch.arange(3))
    with pytest.raises(RuntimeError, match="mul: expected a floating-point tensor, got"):
        warpsmith.mul(torch.arange(3), 2)
    with pytest.raises(TypeError, match="add: expected tensors or numbers, got str"):
        warpsmith.add(X, "1")
    with pytest.raises(RuntimeError, match="silu_and_mul: expected the last dimension of x to be"):
        warpsmith.silu_and_mul(torch.randn(3, 5), limit=7.0)


def test_the_square_of_relu() -> None:
    for dtype in (torch.float32, HALF):
        x = X.to(dtype).requires_grad_()
        y = warpsmith.relu_squared(x)
        assert torch.equal(y, F.relu(x).square())
        found, wanted = (
            torch.autograd.grad(f(x).float().sum(), x)[0]
            for f in (warpsmith.relu_squared, lambda x: F.relu(x).square())
        )
        torch.testing.assert_close(found, wanted)
