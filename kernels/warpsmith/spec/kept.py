"""Tables that a function makes from numbers once and keeps for the calls that follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MOST = 64


def kept(op: str) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Keeps what a function of numbers and a device, its last argument, makes.

    A table that is made while a CUDA graph is recorded would lie in the memory of that graph, and
    be written when it is replayed only; so it has to be there before. Compiled code makes its own.

    Args:
        op: who asks, for the message.
    """

    def keeping(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        tables: dict[tuple[Any, ...], Tensor] = {}

        def get(*args: Any) -> Tensor:
            if torch.compiler.is_compiling():
                return make(*args)
            table = tables.get(args)
            if table is not None:
                return table
            if args[-1].type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise RuntimeError(
                    f"{op}: expected a call with these options before a CUDA graph is recorded, "
                    "as the first one makes a table"
                )
            # others will read it where gradients are recorded
            with torch.inference_mode(False), torch.no_grad():
                table = make(*args)
            if type(table) is Tensor:  # none of a mode that traces
                if len(tables) >= MOST:
                    tables.pop(next(iter(tables)), None)
                tables[args] = table
            return table

        return get

    return keeping
