"""Bad calls of the bindings in C++ and of the checks in Python: both refuse the same ones, in the
same words. What Python alone refused would fail beneath a binding that lets it through to the
fallback, and the stable ABI hands no message back up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import dispatch, references
from warpsmith.core.catalogue import DTYPES, Op, Variant

Arguments = tuple[Any, ...]

#: What the emulator is, where it is not told otherwise.
SM = 90

#: Samples of each dtype whose arguments are spoilt, and the elements of the largest of them.
SAMPLES, MOST = 3, 3000
_DTYPES = (torch.bool, torch.int32, torch.int64, torch.complex64, *DTYPES.values())
_INTEGERS = (-100, -1, 0, 1, 2, 7, 1 << 40)
_NUMBERS = (float("nan"), float("inf"), -1.0, 0.0, 1.0, 2.0)


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return (x if dtype.is_complex else x.real).float().to(dtype)


def _spoilt_tensor(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    for dtype in _DTYPES:
        if dtype != x.dtype:
            yield f"as {dtype}", _cast(x, dtype)
    yield "with a dimension more", x.unsqueeze(0)
    if x.dim() == 0:
        return
    yield "flat", x.flatten()
    for dim in (0, -1):
        size = x.shape[dim]
        yield f"empty along {dim}", x.narrow(dim, 0, 0)
        yield f"doubled along {dim}", torch.cat([x, x], dim)
        if size:
            yield f"shorter along {dim}", x.narrow(dim, 0, size - 1)
    if x.numel():
        yield "0-d", x.flatten()[0]


def _spoilt(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Tensor):
        yield from _spoilt_tensor(value)
    elif isinstance(value, str):
        yield "unknown", "unknown"
    elif isinstance(value, float):
        yield from ((str(number), number) for number in _NUMBERS)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield from ((str(number), number) for number in _INTEGERS)


def _bad_calls(op: Op, args: Arguments) -> Iterator[tuple[str, Arguments]]:
    for i, (name, value) in enumerate(zip(op.argument_names, args, strict=True)):
        for label, bad in _spoilt(value):
            yield f"{name} {label}", (*args[:i], bad, *args[i + 1 :])
    for dtype in _DTYPES:
        yield (
            f"all as {dtype}",
            tuple(_cast(a, dtype) if isinstance(a, Tensor) else a for a in args),
        )


def _samples(op: Op, dtype: str) -> Iterator[tuple[str, Arguments]]:
    for sample in op.samples_for(dtype):
        if sample.small:
            args = dispatch.normalise(op, sample.make(op.inputs(dtype)))
            elements = sum(a.numel() for a in args if isinstance(a, Tensor))
            if 0 < elements <= MOST:
                yield str(sample), args


def _by_python(op: Op, args: Arguments) -> Exception | None:
    try:
        if op.check is not None:
            op.check(*args)
    except Exception as error:
        return error
    return None


def _by_binding(op: Op, variant: Variant, args: Arguments) -> Exception | None:
    given = [a.clone() if isinstance(a, Tensor) else a for a in args]
    rung = getattr(torch.ops.warpsmith, op.name).rung
    try:
        rung(*given, rung=variant.rung.name, accumulator=variant.accumulator)
    except Exception as error:
        return error
    return None


def _refuses_values(op: Op, args: Arguments) -> bool:
    """Whether the reference finds an index outside, which no check of shapes sees: a kernel ends
    with a message there. Or there is no memory for its result.
    """
    try:
        references.reference(op, args)
    except IndexError:
        return True
    except RuntimeError as error:
        return "memory" in str(error)
    return False


def _said(error: Exception | None) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0]}" if error else "nothing"


def differences(op: Op) -> Iterator[tuple[str, str]]:
    """Each bad call, and what the two say where they differ, else an empty text."""
    for dtype in op.dtypes:
        variant = next(v for v in op.variants if v.dtype == dtype)
        for sample, good in itertools.islice(_samples(op, dtype), SAMPLES):
            for label, args in _bad_calls(op, good):
                python, binding = _by_python(op, args), _by_binding(op, variant, args)
                same = _said(python) == _said(binding)
                if python is None and not same:
                    same = dispatch.refusal(variant, args, SM) is not None
                    same = same or _refuses_values(op, args)
                said = f"Python: {_said(python)}; the binding: {_said(binding)}"
                yield f"{op.name} [{dtype} {sample}] {label}", "" if same else said
