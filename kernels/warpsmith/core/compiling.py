"""What compiled code is told of functions here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """Has compiled code take the result of a function for a constant:
    `torch.compiler.assume_constant_result`, which would import the compiler here and now.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant
def exporting() -> bool:
    """`torch.compiler.is_exporting`, which is True in all that PyTorch 2.11 compiles."""
    return torch.compiler.is_exporting()
