"""Bits of one dtype passed as another: for what moves values and computes nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import autocast, public_calls
from warpsmith.core.catalogue import PartCall
from warpsmith.core.inputs import is_fp8

#: Dtypes without kernels, by those of the same size that have some.
ALIKE = {
    torch.uint8: torch.int8,
    torch.bool: torch.int8,
    torch.int16: torch.float16,
    torch.uint16: torch.float16,
    torch.uint32: torch.int32,
}


def as_bits(run: Callable[..., Any], variant: str | None, x: Tensor, *more: Any) -> Any:
    """`run(variant, x, *more)` of the same bits in a dtype that kernels know, where there is one of
    that size. fp8, which the reference takes through f32, without its NaN's payload, passes as
    integers unless a variant or a gradient needs its name. What passes as a float is none to
    autocast.
    """
    alike = ALIKE.get(x.dtype) if isinstance(x, Tensor) else None
    if isinstance(x, Tensor) and is_fp8(x.dtype) and variant is None and not x.requires_grad:
        alike = torch.int8
    if alike is None:
        return run(variant, x, *more)
    with autocast.off(x):
        return run(variant, x.view(alike), *more).view(x.dtype)


def says_which(function: Callable[..., Any], dtypes: Container[torch.dtype] = ALIKE) -> None:
    """Enters a public function with `which`: of x in one of these dtypes its operator has no kernel
    for, which the function passes as another one.
    """
    signature = inspect.signature(function)

    def calls(on_gpu: bool, **arguments: Any) -> tuple[PartCall, ...] | None:
        x = arguments["x"]
        if not isinstance(x, Tensor) or x.dtype not in dtypes or arguments["variant"] is not None:
            return None
        call = inspect.BoundArguments(signature, arguments)  # type: ignore[arg-type]
        found = public_calls.reached(function.__name__, call.args, call.kwargs)
        return (PartCall(found[0].name, found[1], ""),) if isinstance(found, tuple) else None

    public_calls.in_parts(function, calls)
