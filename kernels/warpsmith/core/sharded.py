"""Sharded tensors, seen from public functions: whether a call has any, and what serves it then."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import autograd, messages

_PLAIN = (Tensor, torch.nn.Parameter, type(None))


def rules() -> Any:
    """`warpsmith.sharding`, which tells PyTorch of sharded tensors; slow to import. None where this
    version of PyTorch has not what it needs, and refuses calls of sharded tensors.
    """
    try:
        return importlib.import_module("warpsmith.sharding")
    except (ImportError, AttributeError):
        return None


def of(*tensors: Any) -> Any:
    """`warpsmith.sharding` where one of these is sharded; None otherwise."""
    return rules() if _any_sharded(tensors) else None


def refuse(called: str, *tensors: Any) -> None:
    """Of what is made of several operators as the one operator, which has no rule, does it.

    Raises:
        RuntimeError: one of them is sharded.
    """
    if _any_sharded(tensors):
        raise RuntimeError(messages.no_sharded(autograd.speaker(called)))


def _any_sharded(tensors: tuple[Any, ...]) -> bool:
    for t in tensors:
        if type(t) in _PLAIN:
            continue
        known = sys.modules.get("torch.distributed.tensor")
        if known is not None and isinstance(t, known.DTensor):
            return True
    return False
