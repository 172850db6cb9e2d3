"""Operands of several dtypes, and numbers among them, as PyTorch's arithmetic takes both.

The kernels take tensors of one dtype. Public functions look at the dtypes, which costs the host
next to nothing, and come here only where they differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import is_fp8


def alike(*operands: Tensor) -> tuple[Tensor, ...]:
    """The operands in the dtype in which PyTorch's arithmetic meets: the widest one, those without
    dimensions counting only where there are no others. Where there is none (fp8 beside bf16, say),
    or one is an integer, the operator is to say so.
    """
    counted = [x for x in operands if x.dim()] or list(operands)
    if not all(x.is_floating_point() for x in operands):
        return operands
    dtype = counted[0].dtype
    for x in counted[1:]:
        if x.dtype != dtype:
            if is_fp8(x.dtype) or is_fp8(dtype):
                return operands
            dtype = torch.promote_types(dtype, x.dtype)
    return tuple(x if x.dtype == dtype else x.to(dtype) for x in operands)


def agree(*operands: Any) -> bool:
    """Whether they are tensors of one dtype, as kernels take them."""
    return all(isinstance(x, Tensor) and x.dtype == operands[0].dtype for x in operands)


def with_numbers(op: str, function: Callable[..., Tensor], *operands: Any) -> Tensor:
    """PyTorch's own kernel, for numbers beside a tensor: it holds them in f32, which no 16-bit
    tensor without dimensions does.

    Raises:
        RuntimeError: something is neither a tensor nor a number, or no tensor is floating-point.
    """
    for x in operands:
        if not isinstance(x, (Tensor, int, float)):
            raise TypeError(f"{op}: expected tensors or numbers, got {type(x).__name__}")
    tensors = [x for x in operands if isinstance(x, Tensor)]
    for x in tensors:
        if not x.is_floating_point():
            raise RuntimeError(f"{op}: expected a floating-point tensor, got {x.dtype}")
    if not any(is_fp8(x.dtype) for x in tensors):
        return function(*operands)
    wide = (x.float() if isinstance(x, Tensor) else x for x in operands)
    return function(*wide).to(tensors[0].dtype)


def refuse_variant(op: str, variant: str | None, why: str) -> None:
    if variant is not None:
        raise ValueError(f"{op}: expected variant to be None {why}, got '{variant}'")
