"""Triton's interpreter with bounds: a kernel may touch no memory but that of its own arguments.

On a GPU a stray access ends the process, or reads what happens to lie there. The interpreter would
do the latter: here it raises `StrayAccessError`, which says how many lanes went astray.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

#: What the interpreter has for an access: where its pointers are among the arguments and where its
#: mask is, if it has one; and what it is.
_ACCESSES: dict[str, tuple[int, int | None, str]] = {
    "create_masked_load": (0, 1, "load"),
    "create_masked_store": (0, 2, "store"),
    "create_atomic_rmw": (1, 3, "reduction"),
    "create_atomic_cas": (0, None, "compare and swap"),
}


class StrayAccessError(IndexError):
    """A kernel left the memory of the tensors that it was given."""


class _Bounds:
    """Where the storages of tensors lie: the first addresses, ascending, and the ends."""

    def __init__(self, tensors: Iterator[Tensor]) -> None:
        storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
        ranges = sorted((first, first + size) for first, size in storages.items() if size > 0)
        self.first = np.array([first for first, _ in ranges], dtype=np.uint64)
        self.end = np.array([end for _, end in ranges], dtype=np.uint64)

    def check(self, pointers: Any, mask: Any, what: str) -> None:
        """Of handles of the interpreter; without a mask all lanes are live."""
        places = np.asarray(pointers.data, dtype=np.uint64)
        if mask is not None:
            places = places[np.broadcast_to(np.asarray(mask.data, dtype=bool), places.shape)]
        places = places.ravel()
        if not places.size:
            return
        size = np.uint64(max(1, pointers.get_element_ty().primitive_bitwidth // 8))
        inside = np.zeros(places.shape, dtype=bool)
        if self.first.size:
            at = np.searchsorted(self.first, places, side="right").astype(np.int64) - 1
            inside = (at >= 0) & (places + size <= self.end[np.maximum(at, 0)])
        if not inside.all():
            astray = int((~inside).sum())
            raise StrayAccessError(f"a {what} outside its tensors: {astray} of {places.size} lanes")


def _tensors(arguments: Any) -> Iterator[Tensor]:
    for a in arguments:
        if isinstance(a, Tensor):
            yield a
        elif isinstance(a, tuple):
            yield from _tensors(a)
        elif isinstance(getattr(a, "base", None), Tensor):  # a tensor descriptor
            yield a.base


@functools.cache
def guard() -> None:
    """From now on, in this process. Triton has to be interpreting."""
    from triton.runtime import interpreter

    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    if not all(hasattr(builder, name) for name in _ACCESSES):
        return  # it is built in another way
    launched: list[_Bounds] = []

    def guard_of(name: str, pointers_at: int, mask_at: int | None, what: str) -> None:
        plain = getattr(builder, name)

        @functools.wraps(plain)
        def run(self: Any, *given: Any, **named: Any) -> Any:
            mask = None if mask_at is None else given[mask_at]
            launched[-1].check(given[pointers_at], mask, what)
            return plain(self, *given, **named)

        setattr(builder, name, run)

    for name, told in _ACCESSES.items():
        guard_of(name, *told)
    plain = executor.__call__

    def call(self: Any, *given: Any, **named: Any) -> Any:
        launched.append(_Bounds(_tensors((*given, *named.values()))))
        try:
            return plain(self, *given, **named)
        finally:
            launched.pop()

    executor.__call__ = call
