"""What no elementwise operator may take. The compiled library says the same in the same words."""

from __future__ import annotations

import torch
from torch import Tensor

FLOATING = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)


def floating(op: str, name: str, tensor: Tensor) -> None:
    if tensor.dtype not in FLOATING:
        raise RuntimeError(
            f"{op}: expected {name} to be a floating-point tensor, got {tensor.dtype}"
        )


def like(op: str, name: str, tensor: Tensor, x: Tensor) -> None:
    """Same device and dtype as `x`."""
    if tensor.device != x.device:
        raise RuntimeError(f"{op}: expected {name} to be on {x.device} like x, got {tensor.device}")
    if tensor.dtype != x.dtype:
        raise RuntimeError(
            f"{op}: expected {name} to have dtype {x.dtype} like x, got {tensor.dtype}"
        )


def shaped(op: str, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise RuntimeError(
            f"{op}: expected {name} to have shape {shape} like x, got {tuple(tensor.shape)}"
        )


def broadcast_shape(op: str, *inputs: Tensor) -> tuple[int, ...]:
    """Shape of the result of a function of several values."""
    try:
        return tuple(torch.broadcast_shapes(*(x.shape for x in inputs)))
    except RuntimeError:
        *shapes, last = (str(tuple(x.shape)) for x in inputs)
        raise RuntimeError(
            f"{op}: shapes {', '.join(shapes)} and {last} do not broadcast"
        ) from None


def bias(op: str, x: Tensor, bias: Tensor) -> None:
    floating(op, "x", x)
    at_least_one_dimension(op, x)
    like(op, "bias", bias, x)
    n = x.shape[-1]
    if bias.dim() != 1 or bias.shape[0] != n:
        raise RuntimeError(
            f"{op}: expected bias to have shape ({n},), the last dimension of x, "
            f"got {tuple(bias.shape)}"
        )


def at_least_one_dimension(op: str, x: Tensor) -> None:
    if x.dim() == 0:
        raise RuntimeError(f"{op}: expected at least 1 dimension in x, got shape ()")


def gate_shape(op: str, x: Tensor, up: Tensor | None) -> tuple[int, ...]:
    """Shape of the gate: that of `x`, or of one half of it where there is no `up`."""
    floating(op, "x", x)
    shape = tuple(x.shape)
    if up is not None:
        like(op, "up", up, x)
        shaped(op, "up", up, shape)
        return shape
    at_least_one_dimension(op, x)
    if shape[-1] % 2 != 0:
        raise RuntimeError(f"{op}: expected the last dimension of x to be even, got shape {shape}")
    return (*shape[:-1], shape[-1] // 2)
