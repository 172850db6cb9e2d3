"""PyTorch's functions by name and meaning, served by this library where it takes the call.

The modules of `warpsmith.nn`, `warpsmith.patch` and `warpsmith.use` all go through here: what a
kernel does not take (another dtype, a weight of another dtype, two dimensions to normalise over
with strides that do not join) is PyTorch's, with PyTorch's messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

import warpsmith
from warpsmith.core import autocast

#: What the kernels take.
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
#: A gate's function by the name of its activation.
GATES = {
    "silu": "silu_and_mul",
    "gelu": "gelu_and_mul",
    "gelu_tanh": "gelu_tanh_and_mul",
}
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "silu": F.silu,
    "mish": F.mish,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}
ACTIVATIONS = tuple(_ACTIVATIONS)


def fits(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether a kernel takes these rows with these parameters, and PyTorch would answer in the same
    dtype.
    """
    dtype = x.dtype
    if dtype not in FLOATS:
        return False
    for p in parameters:
        if p is not None and (p.dtype != dtype or p.device != x.device):
            return False
    return True


def _in_f32(x: Tensor) -> bool:
    """Whether autocast has norms of this tensor answer in f32: it has so on GPUs alone."""
    return x.is_cuda and x.dtype in FLOATS[1:] and autocast.is_on(x)


def check_activation(module: str, activation: str) -> None:
    if activation not in ACTIVATIONS:
        known = ", ".join(repr(name) for name in ACTIVATIONS)
        raise ValueError(f"{module}: expected activation to be one of {known}, got {activation!r}")


def check_probability(module: str, p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"{module}: expected p to be between 0 and 1, got {p:g}")


def activate(x: Tensor, activation: str) -> Tensor:
    """An activation by its name, one of `ACTIVATIONS`."""
    if activation not in ("none", "relu") and fits(x):
        return getattr(warpsmith, activation)(x)
    return _ACTIVATIONS[activation](x)


def activate_plainly(x: Tensor, activation: str) -> Tensor:
    """The same by PyTorch, for a compiler to fuse."""
    return _ACTIVATIONS[activation](x)


def gate(x: Tensor, up: Tensor, activation: str) -> Tensor:
    """`act(x) * up`."""
    if fits(x, up) and x.shape == up.shape:
        return getattr(warpsmith, GATES[activation])(x, up)
    return _ACTIVATIONS[activation](x) * up


def _as_rows(x: Tensor, normalized_shape: Sequence[int]) -> Tensor | None:
    """The dimensions to normalise over as one; None where they do not join without a copy."""
    count = len(normalized_shape)
    if not 1 <= count <= x.dim():
        return None
    if count == 1:
        return x if x.shape[-1] == normalized_shape[0] else None
    if tuple(x.shape[-count:]) != tuple(normalized_shape):
        return None
    return x.flatten(-count) if x.is_contiguous() else None


def _flat(parameter: Tensor | None) -> Tensor | None:
    return parameter if parameter is None or parameter.dim() == 1 else parameter.flatten()


def rms_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """As `torch.nn.functional.rms_norm`."""
    rows = _as_rows(x, normalized_shape) if fits(x, weight) else None
    if rows is None:
        return F.rms_norm(x, list(normalized_shape), weight, eps)
    y = warpsmith.rms_norm(rows, weight=_flat(weight), eps=eps)  # by name, which costs less
    return y if rows is x else y.view(x.shape)  # a view would be in the way of FSDP


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """As `torch.nn.functional.layer_norm`, which answers in f32 under autocast."""
    if _in_f32(x):
        x = x.float()
    rows = _as_rows(x, normalized_shape) if fits(x, weight, bias) else None
    if rows is None:
        return F.layer_norm(x, list(normalized_shape), weight, bias, eps)
    y = warpsmith.layer_norm(rows, weight=_flat(weight), bias=_flat(bias), eps=eps)
    return y if rows is x else y.view(x.shape)


def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    activation: str = "none",
) -> Tensor:
    """As `torch.nn.functional.group_norm`, followed by an activation; in f32 under autocast."""
    if _in_f32(x):
        x = x.float()
    # a group of a single value is PyTorch's to refuse
    single = x.dim() < 2 or x.numel() <= x.shape[0] * num_groups
    if not fits(x, weight, bias) or single:
        y = F.group_norm(x, num_groups, weight, bias, eps)
        return activate(y, activation)
    if activation in ("none", "silu", "mish"):
        return warpsmith.group_norm(x, num_groups, weight, bias, eps, activation)
    return activate(warpsmith.group_norm(x, num_groups, weight, bias, eps), activation)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str = "none") -> Tensor:
    """As `torch.nn.functional.linear`, followed by an activation."""
    known = activation in ("none", "relu", "gelu", "gelu_tanh", "silu")
    cast = x.is_floating_point() and autocast.is_on(x)
    if known and x.dim() and fits(x, weight, bias) and not cast:
        return warpsmith.linear(x, weight, bias, activation)
    return activate(F.linear(x, weight, bias), activation)


def dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """As `torch.nn.functional.dropout`. What is dropped follows from PyTorch's seed for the CPU, in
    another way than PyTorch's own.
    """
    if not training or p == 0.0 or not fits(x):
        return F.dropout(x, p, training)
    return warpsmith.dropout(x, p)


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> Tensor:
    """As `torch.nn.functional.cross_entropy`, computed in f32: the loss is f32 whatever the dtype
    of the logits. The z-loss and the cap of the logits are those of `warpsmith.cross_entropy`.
    """
    known = target.is_floating_point() or target.dtype in (torch.int64, torch.int32)
    if not (fits(logits) and known) and z_loss == 0.0 and softcap is None:
        if weight is not None:
            weight = weight.to(logits.dtype)
        return F.cross_entropy(
            logits, target.long() if target.dtype == torch.int32 else target, weight,
            ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing,
        )  # fmt: skip
    return warpsmith.cross_entropy(
        logits, target, weight, ignore_index=ignore_index, label_smoothing=label_smoothing,
        reduction=reduction, z_loss=z_loss, softcap=softcap,
    )  # fmt: skip


# --- residual norms -------------------------------------------------------------------------------


def joins(x: Tensor, residual: Tensor, *parameters: Tensor | None) -> bool:
    """Whether a branch, the residual stream and a norm of their sum go through one kernel: the
    stream may be in f32, and under autocast weights may be.
    """
    dtype, device = x.dtype, x.device
    if dtype not in FLOATS:
        return False
    if residual is not x and (
        x.shape != residual.shape
        or device != residual.device
        or residual.dtype not in (dtype, torch.float32)
    ):
        return False
    for p in parameters:
        if p is None:
            continue
        if p.device != device:
            return False
        if p.dtype != dtype and not (p.dtype == torch.float32 and autocast.is_on(x)):
            return False
    return True
