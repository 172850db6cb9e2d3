"""What a call must move at least."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.arguments_by_name import Call, by_name
from warpsmith.core.catalogue import parse_schema


def size(*tensors: Any) -> int:
    """Bytes of the tensors among the arguments."""
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))


def moved(
    schema: str, fake: Callable[..., Any], unread: Sequence[str] = ()
) -> Callable[[Call], int]:
    """Bytes of a call that reads each of its tensors once and writes each output once.

    Args:
        schema: of the operator.
        fake: of the operator.
        unread: tensors that it does not read.
    """
    names = tuple(argument.name for argument in parse_schema(schema).arguments)
    outputs = by_name(fake, names, schema)

    def of(call: Call) -> int:
        given = (
            torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="meta")
            if isinstance(a, Tensor)
            else a
            for a in call
        )
        out = outputs(*given)
        read = (a for name, a in zip(names, call, strict=True) if name not in unread)
        return size(*read) + size(*(out if isinstance(out, tuple) else (out,)))

    return of
