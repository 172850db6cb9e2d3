"""What a schema says of an operator's arguments and outputs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch


def parse_schema(schema: str) -> Any:
    """An operator's schema as PyTorch reads it."""
    return torch._C.parse_schema(f"warpsmith::{schema}")


def defaults(schema: Any) -> tuple[Any, ...]:
    """What each argument of a parsed schema is where it is not given; None where it has to be."""
    arguments = schema.arguments
    return tuple(a.default_value if a.has_default_value() else None for a in arguments)


def gradient_names(outputs: Iterable[str]) -> tuple[str, ...]:
    """What a derivative calls the gradients of outputs, by the names that the schema gives them."""
    return tuple(f"grad_{name}" if name else "grad" for name in outputs)


def parse_name(schema: str) -> str:
    return schema[: schema.index("(")]


def alike(returns: str) -> str:
    """What a schema returns, with every output optional where some are. PyTorch hands results back
    to C++ in the reverse of their order, and converts each as the type of its opposite says
    (torch_call_dispatcher, PyTorch 2.13).
    """
    return re.sub(r"\bTensor\b(?!\?)", "Tensor?", returns) if "Tensor?" in returns else returns
