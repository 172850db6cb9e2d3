"""Layers as the Hub's `kernels` package takes them: in the place of layers that a model has marked
by name, with the parameters of those.

    from pathlib import Path
    from kernels import LocalLayerRepository, kernelize, register_kernel_mapping

    layer = LocalLayerRepository(Path("layout"), layer_name="RMSNorm")
    register_kernel_mapping({"RMSNorm": {"cuda": layer}})

after `python -m warpsmith.native.hub_layout layout`. A layer has a `forward` and nothing else: that
is what the package asks for. `warpsmith.patch` does more, and checks what it replaces.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import Module

import warpsmith
from warpsmith.nn import calls

__all__ = [
    "FastGELU",
    "GeLU",
    "GeluTanh",
    "NewGELU",
    "QuickGELU",
    "RMSNorm",
    "RMSNormZeroCentered",
    "SiLU",
]


class RMSNorm(Module):
    """Llama's: a weight, and an epsilon that models call `variance_epsilon` or `eps`."""

    can_torch_compile = True
    has_backward = True

    weight: Tensor

    def forward(self, hidden_states: Tensor) -> Tensor:
        eps = self.variance_epsilon if hasattr(self, "variance_epsilon") else self.eps
        return warpsmith.rms_norm(hidden_states, self.weight, eps)  # type: ignore[arg-type]


class RMSNormZeroCentered(Module):
    """Gemma's and Qwen3.5's: the weight is stored as its distance from one."""

    can_torch_compile = True
    has_backward = True

    weight: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return warpsmith.rms_norm(x, self.weight, self.eps, zero_centered=True)  # type: ignore[arg-type]


def _activation(name: str) -> Callable[[Module, Tensor], Tensor]:
    """A forward of its own: the Hub takes no layer that has members beside it."""

    def forward(self: Module, input: Tensor) -> Tensor:
        return calls.activate(input, name)

    return forward


class GeLU(Module):
    """By the error function."""

    can_torch_compile = has_backward = True
    forward = _activation("gelu")


class GeluTanh(Module):
    """In its tanh approximation."""

    can_torch_compile = has_backward = True
    forward = _activation("gelu_tanh")


class NewGELU(Module):
    """GPT-2's name for the tanh approximation."""

    can_torch_compile = has_backward = True
    forward = _activation("gelu_tanh")


class FastGELU(Module):
    """The tanh approximation with its constant written out."""

    can_torch_compile = has_backward = True
    forward = _activation("gelu_tanh")


class QuickGELU(Module):
    """By a logistic function."""

    can_torch_compile = has_backward = True
    forward = _activation("quick_gelu")


class SiLU(Module):
    """Sigmoid linear unit."""

    can_torch_compile = has_backward = True
    forward = _activation("silu")
