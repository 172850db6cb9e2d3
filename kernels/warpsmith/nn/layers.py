"""Linear layers with activations, gated MLPs, dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from warpsmith.nn import calls
from warpsmith.nn.gated import gated


class Linear(torch.nn.Linear):
    """`torch.nn.Linear` and an activation in one kernel: ``activation(x weight^T + bias)``.

    Args:
        in_features: of x.
        out_features: of the result.
        bias: whether there is one.
        device: of the parameters.
        dtype: of the parameters.
        activation: "none", "relu", "gelu", "gelu_tanh" or "silu" in the kernel; "mish" and
            "quick_gelu" after it.

    Shape:
        x: [..., in_features], f32, f16 or bf16, in the dtype of the parameters. Under autocast the
        product is PyTorch's.

    Raises:
        ValueError: the activation does not exist.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str = "none",
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        calls.check_activation("Linear", activation)
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        return calls.linear(input, self.weight, self.bias, self.activation)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation!r}"


class _GatedMLP(torch.nn.Module):
    def __init__(self, dim: int, hidden: int, bias: bool, activation: str, **where: Any) -> None:
        super().__init__()
        self.activation = activation
        self.gate_proj = torch.nn.Linear(dim, hidden, bias, **where)
        self.up_proj = torch.nn.Linear(dim, hidden, bias, **where)
        self.down_proj = torch.nn.Linear(hidden, dim, bias, **where)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(gated(x, self.gate_proj, self.up_proj, self.activation))


class SwiGLU(_GatedMLP):
    """The MLP of Llama, whose state dict it loads: ``down(silu(gate(x)) * up(x))``, activation and
    product in one kernel, with the products in front of them where the record has that faster.

    Args:
        dim: of x and the result.
        hidden: between the products.
        bias: whether the products have one.
        device: of the parameters.
        dtype: of the parameters.

    Shape:
        x: [..., dim].

    Reference:
        Shazeer 2020, GLU Variants Improve Transformer, https://arxiv.org/abs/2002.05202
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        bias: bool = False,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, hidden, bias, "silu", device=device, dtype=dtype)


class GeGLU(_GatedMLP):
    """The MLP of Gemma, whose state dict it loads: ``down(gelu(gate(x)) * up(x))``, activation and
    product in one kernel, with the products in front of them where the record has that faster.

    Args:
        dim: of x and the result.
        hidden: between the products.
        bias: whether the products have one.
        approximate: "tanh", as in Gemma, or "none" for the one by erf.
        device: of the parameters.
        dtype: of the parameters.

    Shape:
        x: [..., dim].

    Raises:
        ValueError: the approximation does not exist.

    Reference:
        Shazeer 2020, GLU Variants Improve Transformer, https://arxiv.org/abs/2002.05202
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        bias: bool = False,
        *,
        approximate: str = "tanh",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        names = {"tanh": "gelu_tanh", "none": "gelu"}
        if approximate not in names:
            raise ValueError(
                f"GeGLU: expected approximate to be 'none' or 'tanh', got {approximate!r}"
            )
        super().__init__(dim, hidden, bias, names[approximate], device=device, dtype=dtype)


class Dropout(torch.nn.Dropout):
    """`torch.nn.Dropout` by `warpsmith.dropout`, which keeps a bit per element for the backward
    pass.

    What is dropped follows from PyTorch's seed for the CPU, in another way than PyTorch's own. In
    compiled code and in CUDA graphs, where the seed would stay the same, it is PyTorch's, as it is
    with `inplace`.
    """

    def forward(self, input: Tensor) -> Tensor:
        if self.inplace:
            return super().forward(input)
        return calls.dropout(input, self.p, self.training)
