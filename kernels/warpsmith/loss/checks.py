"""What no loss may take, in the words of the bindings, and what their references share."""

from __future__ import annotations

import torch
from torch import Tensor

REDUCTIONS = ("none", "mean", "sum")


def wide_dtype(x: Tensor) -> torch.dtype:
    """What losses come in: f32, or f64 for f64 logits."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def check_reduction(op: str, reduction: str, allowed: tuple[str, ...] = REDUCTIONS) -> None:
    if reduction not in allowed:
        known = ", ".join(repr(name) for name in allowed)
        raise ValueError(f"{op}: expected reduction to be one of {known}, got {reduction!r}")


def _check_device(op: str, name: str, tensor: Tensor, like: str, other: Tensor) -> None:
    if tensor.device != other.device:
        raise RuntimeError(
            f"{op}: expected {name} to be on {other.device} like {like}, got {tensor.device}"
        )


def check_target(op: str, target: Tensor, like: str, rows: Tensor) -> None:
    """One index of a class per row of `rows`."""
    _check_device(op, "target", target, like, rows)
    if target.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(
            f"{op}: expected target to have dtype torch.int64 or torch.int32, got {target.dtype}"
        )
    if target.dim() != 1 or target.shape[0] != rows.shape[0]:
        raise RuntimeError(
            f"{op}: expected target to have shape ({rows.shape[0]},), one class per row of {like}, "
            f"got {tuple(target.shape)}"
        )


def check_cross_entropy(op: str, logits: Tensor, target: Tensor, label_smoothing: float) -> None:
    if not logits.is_floating_point():
        raise RuntimeError(
            f"{op}: expected logits to be a floating-point tensor, got {logits.dtype}"
        )
    if logits.dim() != 2:
        raise RuntimeError(
            f"{op}: expected logits to have 2 dimensions, got shape {tuple(logits.shape)}"
        )
    if logits.shape[1] == 0:
        raise RuntimeError(
            f"{op}: expected logits to have at least 1 class, got shape {tuple(logits.shape)}"
        )
    check_target(op, target, "logits", logits)
    check_smoothing(op, label_smoothing)


def check_smoothing(op: str, share: float) -> None:
    if not 0.0 <= share <= 1.0:  # NaN is not either
        raise RuntimeError(f"{op}: expected label_smoothing to be between 0 and 1, got {share:g}")


def check_per_row(op: str, name: str, tensor: Tensor, logits: Tensor) -> None:
    """One number per row of logits, in the dtype of losses."""
    _check_device(op, name, tensor, "logits", logits)
    if tensor.dtype != wide_dtype(logits):
        raise RuntimeError(
            f"{op}: expected {name} to have dtype {wide_dtype(logits)}, got {tensor.dtype}"
        )
    if tensor.dim() != 1 or tensor.shape[0] != logits.shape[0]:
        raise RuntimeError(
            f"{op}: expected {name} to have shape ({logits.shape[0]},), one number per row of "
            f"logits, got {tuple(tensor.shape)}"
        )
