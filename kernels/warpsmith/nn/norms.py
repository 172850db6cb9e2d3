"""Norms, and the residual norms that add a branch to the stream first."""

from __future__ import annotations

import torch
from torch import Tensor

import warpsmith
from warpsmith.nn import calls


class RMSNorm(torch.nn.RMSNorm):
    """`torch.nn.RMSNorm` by `warpsmith.rms_norm`: ``y = x / sqrt(mean(x^2) + eps) * weight``.

    Arguments, parameters and state dict are PyTorch's. Rounded once, where the norm of Llama rounds
    to the dtype of x before the weight too.

    Shape:
        x: [..., *normalized_shape], f32, f16 or bf16; the weight in the dtype of x. What a kernel
        does not take is PyTorch's.
    """

    def forward(self, x: Tensor) -> Tensor:
        return calls.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class LayerNorm(torch.nn.LayerNorm):
    """`torch.nn.LayerNorm` by `warpsmith.layer_norm`:
    ``y = (x - mean) / sqrt(var + eps) * weight + bias``.

    Arguments, parameters and state dict are PyTorch's.

    Shape:
        x: [..., *normalized_shape], f32, f16 or bf16. What a kernel does not take is PyTorch's.
    """

    def forward(self, input: Tensor) -> Tensor:
        return calls.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class GroupNorm(torch.nn.GroupNorm):
    """`torch.nn.GroupNorm` and an activation in one kernel:
    ``y = act((x - mean) / sqrt(var + eps) * weight + bias)``.

    Args:
        num_groups: into how many groups the channels are cut.
        num_channels: how many there are.
        eps: added to the variance.
        affine: whether there are a weight and a bias.
        device: of the parameters.
        dtype: of the parameters.
        bias: whether there is one beside the weight.
        activation: "none", "silu" or "mish" in the kernel; "relu", "gelu", "gelu_tanh" and
            "quick_gelu" after it.

    Shape:
        x: [n, c, *spatial], f32, f16 or bf16, contiguous or channels last.

    Raises:
        ValueError: the activation does not exist.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        activation: str = "none",
    ) -> None:
        super().__init__(num_groups, num_channels, eps, affine, device, dtype)
        if not bias:  # which PyTorch's takes from 2.13 on
            self.register_parameter("bias", None)
        calls.check_activation("GroupNorm", activation)
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        return calls.group_norm(
            input, self.num_groups, self.weight, self.bias, self.eps, self.activation
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation!r}"


class AddRMSNorm(torch.nn.RMSNorm):
    """What ends a branch of a transformer and begins the next, in one kernel:
    ``h = residual + dropout(x)``, ``y = h / sqrt(mean(h^2) + eps) * weight``.

    Loads the state dict of a `torch.nn.RMSNorm`, and of transformers' norms of the same formula.

    Args:
        dim: the last dimension of x.
        eps: added to the mean square.
        p: the probability of dropping an element of x while training.
        zero_centered: the weight is stored as its distance from one, as in Gemma.
        device: of the weight.
        dtype: of the weight.

    Shape:
        x, residual: [..., dim]; the residual in the dtype of x or f32. Returns y, in the dtype of
        x, and h, in that of the residual.

    Raises:
        ValueError: p is not between 0 and 1.
    """

    def __init__(
        self,
        dim: int,
        eps: float = 1e-6,
        *,
        p: float = 0.0,
        zero_centered: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, eps, device=device, dtype=dtype)
        calls.check_probability("AddRMSNorm", p)
        self.p, self.zero_centered = p, zero_centered
        if zero_centered:
            torch.nn.init.zeros_(self.weight)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        centered = self.zero_centered
        if self.training and self.p != 0.0:
            return warpsmith.dropout_add_rms_norm(
                x, residual, self.weight, p=self.p, eps=self.eps, zero_centered=centered
            )
        return warpsmith.add_rms_norm(x, residual, self.weight, self.eps, centered)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, p={self.p}, zero_centered={self.zero_centered}"


class AddLayerNorm(torch.nn.LayerNorm):
    """As `AddRMSNorm`, of layer norm: ``h = residual + dropout(x)``,
    ``y = (h - mean) / sqrt(var + eps) * weight + bias``.

    Loads the state dict of a `torch.nn.LayerNorm`.

    Args:
        dim: the last dimension of x.
        eps: added to the variance.
        bias: whether there is one.
        p: the probability of dropping an element of x while training.
        device: of the parameters.
        dtype: of the parameters.

    Shape:
        x, residual: [..., dim]; the residual in the dtype of x or f32. Returns y, in the dtype of
        x, and h, in that of the residual.

    Raises:
        ValueError: p is not between 0 and 1.
    """

    def __init__(
        self,
        dim: int,
        eps: float = 1e-5,
        bias: bool = True,
        *,
        p: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, eps, bias=bias, device=device, dtype=dtype)
        calls.check_probability("AddLayerNorm", p)
        self.p = p

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        if self.training and self.p != 0.0:
            return warpsmith.dropout_add_layer_norm(
                x, residual, self.weight, self.bias, p=self.p, eps=self.eps
            )
        return warpsmith.add_layer_norm(x, residual, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, p={self.p}"
