"""The PyTorch reference of an operator, run as the operator: its dtypes, layouts and writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Op
from warpsmith.core.inputs import is_fp8


def first_tensor(args: tuple[Any, ...]) -> Tensor:
    return next(a for a in args if isinstance(a, Tensor))


def upcast(args: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    return tuple(
        a.to(dtype) if isinstance(a, Tensor) and a.is_floating_point() else a for a in args
    )


def reference(op: Op, args: tuple[Any, ...], function: Callable[..., Any] | None = None) -> Any:
    """The PyTorch reference at the arguments' own dtype; fp8, in which PyTorch cannot compute, goes
    through float32 and its results into what the fake promises, unless the operator reads it.
    Autocast, which is over for a kernel by the time it runs, is so here too. `function`: what else
    to run in its place.
    """
    with torch.autocast(first_tensor(args).device.type, enabled=False):
        return _reference(op, args) if function is None else function(*args)


def _reference(op: Op, args: tuple[Any, ...]) -> Any:
    if op.reads_fp8 or not is_fp8(first_tensor(args).dtype):
        return op.reference(*args)
    out = op.reference(*upcast(args, torch.float32))
    pairs = zip(out if isinstance(out, tuple) else (out,), promised(op, args), strict=True)
    cast = tuple(o if p is None else o.to(p.dtype) for o, p in pairs)
    return cast if isinstance(out, tuple) else cast[0]


def promised(op: Op, args: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
    """What the fake says of the outputs, None where one is left out, and then the arguments that
    are written to: meta tensors.
    """
    given = tuple(_without_data(a) if isinstance(a, Tensor) else a for a in args)
    with torch.device("meta"):
        return (*op.results(op.fake(*given)), *(given[i] for i in op.written))


def _without_data(x: Tensor) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def _with_strides(out: Tensor, promise: Tensor) -> Tensor:
    if out.stride() == promise.stride():
        return out
    return torch.empty_strided(
        promise.shape, promise.stride(), dtype=out.dtype, device=out.device
    ).copy_(out)


def computed(op: Op, args: tuple[Any, ...], function: Callable[..., Any] | None = None) -> Any:
    """Calls the reference, or `function` in its place: outputs in the layout that the fake
    promises, and what the operator writes to in place.
    """
    found = reference(op, args, function)
    found = found if isinstance(found, tuple) else (found,)
    pairs = list(zip(found, promised(op, args), strict=True))
    outputs = tuple(
        o if o is None or p is None else _with_strides(o, p) for o, p in pairs[: len(op.outputs)]
    )
    for slot, (holds, _) in zip(op.written, pairs[len(op.outputs) :], strict=True):
        if args[slot] is not None:
            args[slot].copy_(holds)
    return outputs if len(outputs) > 1 else outputs[0] if outputs else None
