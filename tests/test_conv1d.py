"""conv1d_group_norm against PyTorch's modules: padding, gradients, what is kept for them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import warpsmith

ACTIVATIONS = {"mish": F.mish, "silu": F.silu, "none": lambda z: z}


def _leaves(taps: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(taps)
    shapes = ((3, 6, 10), (8, 6, taps), (8,), (8,), (8,))
    made = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    return [t.requires_grad_() for t in made]


def _gradients(y: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape)
    return torch.autograd.grad((y * weights).sum(), leaves)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("taps", range(1, 8))
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_results_and_gradients_are_those_of_three_calls(taps: int, activation: str) -> None:
    leaves = _leaves(taps)
    x, weight, bias, scale, shift = leaves
    h = F.conv1d(x, weight, bias, padding="same")
    theirs = ACTIVATIONS[activation](F.group_norm(h, 4, scale, shift))
    ours = warpsmith.conv1d_group_norm(*leaves, 4, activation=activation)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(_gradients(ours, leaves), _gradients(theirs, leaves))


def test_the_operator_finds_what_it_was_not_asked_to_keep() -> None:
    leaves = _leaves(5)
    forward = torch.ops.warpsmith.conv1d_group_norm_forward
    kept, h = forward(*leaves, 2, 1e-5, "mish", True)
    plain, nothing = forward(*leaves, 2, 1e-5, "mish", False)
    assert h.shape == kept.shape
    assert not h.requires_grad
    assert nothing.numel() == 0
    torch.testing.assert_close(_gradients(plain, leaves), _gradients(kept, leaves))


def test_a_block_of_diffusion_policy() -> None:
    conv, norm = nn.Conv1d(14, 32, 5, padding=2), nn.GroupNorm(8, 32)
    x = torch.randn(4, 14, 16)
    with torch.no_grad():
        theirs = F.mish(norm(conv(x)))
        ours = warpsmith.conv1d_group_norm(
            x, conv.weight, conv.bias, norm.weight, norm.bias, norm.num_groups, norm.eps
        )
    torch.testing.assert_close(ours, theirs)
