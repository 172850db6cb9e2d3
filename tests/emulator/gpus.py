"""GPUs that the emulator can pretend to be, and calls that go as far as their launches."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from typing import Any

import torch

import emulator
from warpsmith.core import dispatch, into
from warpsmith.core.catalogue import Op

#: Compute capability -> multiprocessors, of an A100, an RTX 4090 and an H200.
GPUS = {80: 108, 89: 128, 90: 132}

#: Multiprocessors of a GPU on which kernels are run: grids stay small.
FEW = 4

#: What `chosen` says where the library hands a call back.
FALLBACK = "fallback"


@functools.cache
def _runtime() -> ctypes.CDLL:
    return emulator.load(emulator.runtime())


def use(sm: int, multiprocessors: int) -> None:
    """Makes such a GPU the current one, of all libraries in this process."""
    _runtime().emulator_use_gpu(sm, multiprocessors)


@contextlib.contextmanager
def dry_run() -> Iterator[None]:
    """Within it launches start nothing, and no memory is touched."""
    _runtime().emulator_set_dry(True)
    try:
        yield
    finally:
        _runtime().emulator_set_dry(False)


def unwritten(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments like those, with tensors of the CPU whose memory nothing has touched, however large
    they are: for dry runs.
    """
    return tuple(_unwritten(a) if isinstance(a, torch.Tensor) else a for a in args)


def _unwritten(x: torch.Tensor) -> torch.Tensor:
    last = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    count = x.storage_offset() + last + 1 if x.numel() else 0
    return torch.empty(count, dtype=x.dtype).as_strided(x.shape, x.stride(), x.storage_offset())


_fallen_back: list[str] = []


def register_auto(op: Op) -> None:
    """Defines `op.auto`, which the emulated library implements: the operator with the rung that the
    binding in C++ chooses. What it hands back is noted, in a dry run only that.
    """
    library = dispatch._library  # one, that all of it may go at the same time when Python ends
    library.define(f"{op.name}.auto{op.schema[len(op.name) :]}")
    if op in into.operators():
        library.define(into.schema(op, "auto_out"))

    def note(*args: Any) -> Any:
        _fallen_back.append(op.name)
        if _runtime().emulator_is_dry():
            return op.fake(*dispatch.normalise(op, args))
        return fallback(*args)

    fallback = dispatch._fallback(op)

    library.impl(f"{op.name}.fallback", note, "CPU")


def forget() -> None:
    """What calls before handed back."""
    _fallen_back.clear()


def fell_back() -> bool:
    """Whether a call has been handed back since."""
    return bool(_fallen_back)


def chosen(op: Op, args: tuple[Any, ...]) -> str:
    """The rung that the binding in C++ takes for a call, `FALLBACK`, or "" for no kernel at all.

    Args:
        op: an operator whose library is loaded.
        args: all its arguments. The call is made, unless within `dry_run`.
    """
    _fallen_back.clear()
    dispatch.last_rung(op.library)  # forgets those of earlier calls
    getattr(torch.ops.warpsmith, op.name).auto(*args)
    return FALLBACK if _fallen_back else dispatch.last_rung(op.library)
