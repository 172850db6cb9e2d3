"""Products of layers in Triton: the product's twin in f32, and PyTorch's operators on it."""

from __future__ import annotations

from torch import Tensor

from warpsmith.gemm.activations import activate, deal_out, largest_of_rows
from warpsmith.gemm.matmul_triton import matmul


def _sums(x: Tensor, weight: Tensor, bias: Tensor | None, scale: float = 1.0) -> Tensor:
    """In f32, what goes into the activation."""
    sums = matmul(x, weight.t(), out_dtype="f32")
    if scale != 1.0:
        sums = sums * scale
    return sums if bias is None else sums + bias.float()


def linear_epilogue(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    scale: float,
    activation: str,
    keep: bool,
    amax: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    before = _sums(x, weight, bias, scale)
    y = activate(before, activation)
    y = (y if residual is None else y + residual.float()).to(x.dtype)
    largest = largest_of_rows(y) if amax else None
    return (y.clone() if y is before else y), before.to(x.dtype) if keep else None, largest


def gated_linear(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    b_gate: Tensor | None,
    b_up: Tensor | None,
    activation: str,
    keep: bool,
    amax: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    gate, up = _sums(x, w_gate, b_gate), _sums(x, w_up, b_up)
    y = (activate(gate, activation) * up).to(x.dtype)
    kept = (gate.to(x.dtype), up.to(x.dtype)) if keep else (None, None)
    return y, *kept, largest_of_rows(y) if amax else None


def fused_qkv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    heads: int,
    kv_heads: int,
    head_dim: int,
    layout: str,
) -> tuple[Tensor, Tensor, Tensor]:
    return deal_out(_sums(x, weight, bias).to(x.dtype), heads, kv_heads, head_dim, layout)


def accumulate_matmul(a: Tensor, b: Tensor, total: Tensor) -> None:
    total += matmul(a, b, out_dtype="f32")


def linear_weight_gradient(grad: Tensor, x: Tensor, wide_bias: bool) -> tuple[Tensor, Tensor]:
    sums = grad.float().sum(0)
    return matmul(grad.t(), x), sums if wide_bias else sums.to(grad.dtype)
