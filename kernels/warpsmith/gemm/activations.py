"""What products of layers do to their sums, in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.gemm.matmul import check_alike, check_operand
from warpsmith.spec import references
from warpsmith.spec.checks import check_device, shape_text

#: Without the cancellation of PyTorch's gelu, in float64 too.
FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": references.gelu,
    "gelu_tanh": references.gelu_tanh,
    "silu": F.silu,
}
GATES = ("relu", "gelu", "gelu_tanh", "silu")


def activate(x: Tensor, activation: str) -> Tensor:
    return FUNCTIONS[activation](x)


def wide(x: Tensor) -> Tensor:
    """16 bits in f32: kernels round their results alone."""
    return x.float() if x.dtype.itemsize < 4 else x


def sums(x: Tensor, weight: Tensor, bias: Tensor | None, scale: float = 1.0) -> Tensor:
    """`scale x weight^T + bias`, not rounded."""
    total = F.linear(wide(x), wide(weight))
    if scale != 1.0:
        total = total * scale
    return total if bias is None else total + bias.to(total.dtype)


def empty_rows(x: Tensor) -> Tensor:
    """A value for each row, as sums are held."""
    return x.new_empty(x.shape[:-1], dtype=torch.promote_types(x.dtype, torch.float32))


def largest_of_rows(y: Tensor) -> Tensor:
    """The largest magnitude of each; NaN where there is one, 0 where there is nothing."""
    if y.shape[-1] == 0:
        return empty_rows(y).zero_()
    return y.detach().abs().amax(-1).to(torch.promote_types(y.dtype, torch.float32))


def heads_of(
    columns: Tensor, heads: int, kv_heads: int, head_dim: int, layout: str
) -> tuple[Tensor, Tensor, Tensor]:
    """The heads of q, k and v where they lie beside each other."""

    def part(first: int, count: int) -> Tensor:
        x = columns.narrow(-1, first * head_dim, count * head_dim)
        x = x.unflatten(-1, (count, head_dim))
        return x.transpose(1, 2) if layout == "bhsd" else x

    return part(0, heads), part(heads, kv_heads), part(heads + kv_heads, kv_heads)


def deal_out(
    columns: Tensor, heads: int, kv_heads: int, head_dim: int, layout: str
) -> tuple[Tensor, Tensor, Tensor]:
    """The heads of q, k and v, each part contiguous."""
    q, k, v = (
        x.clone(memory_format=torch.contiguous_format)
        for x in heads_of(columns, heads, kv_heads, head_dim, layout)
    )
    return q, k, v


# --- checks ---------------------------------------------------------------------------------------


def check_weight(op: str, name: str, weight: Tensor, x: Tensor) -> None:
    check_operand(op, name, weight, 2)
    if weight.dim() != 2:
        raise RuntimeError(f"{op}: expected {name} to be 2-D, got shape {shape_text(weight)}")
    check_alike(op, name, weight, x, "x")
    if weight.shape[1] != x.shape[-1]:
        raise RuntimeError(
            f"{op}: cannot multiply shapes {shape_text(x)} and {shape_text(weight)} transposed"
        )


def check_bias(op: str, name: str, bias: Tensor | None, x: Tensor, n: int) -> None:
    if bias is None:
        return
    check_device(op, name, bias, x, "x")
    if bias.dtype not in (x.dtype, torch.float32):
        wide = "" if x.dtype == torch.float32 else " or torch.float32"
        raise RuntimeError(
            f"{op}: expected {name} to have dtype {x.dtype} like x{wide}, got {bias.dtype}"
        )
    if bias.shape != (n,):
        raise RuntimeError(
            f"{op}: expected {name} to have shape ({n},), the rows of its weight, "
            f"got {shape_text(bias)}"
        )


def check_residual(op: str, residual: Tensor | None, x: Tensor, n: int) -> None:
    if residual is None:
        return
    check_alike(op, "residual", residual, x, "x")
    wanted = (*x.shape[:-1], n)
    if residual.shape != wanted:
        raise RuntimeError(
            f"{op}: expected residual to have shape {wanted}, that of the result, "
            f"got {shape_text(residual)}"
        )


def check_activation(op: str, activation: str, *, gate: bool = False) -> None:
    if activation in (GATES if gate else FUNCTIONS):
        return
    none = "" if gate else "'none', "
    raise RuntimeError(
        f"{op}: expected activation to be {none}'relu', 'gelu', 'gelu_tanh' or 'silu', "
        f"got '{activation}'"
    )
