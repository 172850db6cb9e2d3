"""What the bindings in C++ choose and refuse, held against what Python says of the same call:
`when` and `suits` of a spec are written a second time in `takes` and `suits` of its rungs.

Calls go as far as their launches (`gpus.dry_run`), on each of `gpus.GPUS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

import emulator
from emulator import gpus
from warpsmith.core import dispatch, elsewhere
from warpsmith.core.catalogue import Op, Variant
from warpsmith.core.elsewhere import Rule

Arguments = tuple[Any, ...]


def differences(op: Op) -> Iterator[tuple[str, str]]:
    """Each sample and benchmark on each GPU: how the two differ, "" where they do not.

    Args:
        op: an operator whose family is loaded.
    """
    op = emulated(op)
    with gpus.dry_run():
        for dtype in op.dtypes:
            variants = [v for v in op.variants if v.dtype == dtype]
            for sample in (*op.samples_for(dtype), *op.bench_for(dtype)):
                made = sample.make(op.inputs(dtype, "meta"))
                args = gpus.unwritten(dispatch.normalise(op, made))
                for sm, multiprocessors in gpus.GPUS.items():
                    gpus.use(sm, multiprocessors)
                    label = f"[{dtype} {sample.label}] on sm_{sm}"
                    yield f"{op.name} {label}", choice(op, args, sm)
                    if op.yields:
                        yield f"{op.name} elsewhere {label}", yields(op, args, sm)
                    for variant in variants:
                        yield f"{variant.op_name} {label}", refusal(variant, args, sm)


def emulated(op: Op) -> Op:
    """The operator with the rungs of its emulated library alone."""
    kept = (
        rung for rung in op.ladder if not emulator.is_left_out(op.family, op.source_dir, rung.name)
    )
    return replace(op, ladder=tuple(kept))


def _may_need_no_kernel(args: Arguments) -> bool:
    """Whether there may be nothing to compute, or to compute with: bindings then answer without a
    launch, or hand the call back. A rung that is named refuses what Python says, of such calls too.
    """
    return any(isinstance(a, torch.Tensor) and a.numel() == 0 for a in args)


def _outcome(call: Callable[[], Any]) -> tuple[Any, str | None]:
    """What a call returns, and the first line of what it raises."""
    try:
        return call(), None
    except RuntimeError as error:
        return None, str(error).splitlines()[0]


def choice(op: Op, args: Arguments, sm: int) -> str:
    """Makes a call on the current GPU, and says how the rung that C++ chooses differs from Python's
    choice; "" where both take the same.

    Args:
        op: an operator of `emulated`, whose family is loaded.
        args: all its arguments.
        sm: the compute capability of the current GPU.
    """
    python = dispatch.pick(op, args, sm)
    wanted = gpus.FALLBACK if python is None else python.rung.name
    chosen, failure = _outcome(lambda: gpus.chosen(op, args))
    if failure is not None:
        return f"Python takes {wanted}, C++ fails: {failure}"
    if chosen == wanted or (chosen in ("", gpus.FALLBACK) and _may_need_no_kernel(args)):
        return ""
    return f"Python takes {wanted}, C++ {chosen or 'none'}"


def yields(op: Op, args: Arguments, sm: int) -> str:
    """Tells the library that calls like this one are served elsewhere, and those of one row more:
    how what it does differs from what `core/elsewhere.py` says; "" where both agree.
    """
    tell = getattr(torch.ops.warpsmith, f"_elsewhere_{op.name}")
    told = elsewhere.told_of(op, args)
    rows = next(name for name in told if name.endswith(".rows"))
    others = ({}, {rows: told[rows] + 1}, {rows: [told[rows], None]}, {rows: [0, told[rows] - 1]})
    try:
        for other in others:
            rule = Rule(op.name, sm, "torch", 2.0, 2, {**told, **other}, "")
            for asked in (sm, sm + 1):
                tell(op.name, elsewhere.as_told(op, [replace(rule, sm=asked)]))
                holds = elsewhere.holds(rule, asked, told)
                chosen, failure = _outcome(lambda: gpus.chosen(op, args))
                there = failure is None and chosen == gpus.FALLBACK
                if holds and not there:
                    return f"a rule of {other or 'the call'} holds, C++ takes {chosen or failure}"
                if not holds and there and not choice_is_elsewhere(op, args, sm):
                    return f"a rule of {other} on sm_{asked} does not hold, C++ hands the call back"
    finally:
        tell(op.name, "")
    return ""


def choice_is_elsewhere(op: Op, args: Arguments, sm: int) -> bool:
    """Whether no kernel may be asked without any rule."""
    return dispatch.pick(op, args, sm) is None or _may_need_no_kernel(args)


def refusal(variant: Variant, args: Arguments, sm: int) -> str:
    """Makes a call of a variant on the current GPU, and says how the two differ in whether it takes
    the call, and in why not; "" where they do not.
    """
    python = dispatch.refusal(variant, args, sm)
    rung = getattr(torch.ops.warpsmith, variant.op.name).rung
    named = {"rung": variant.rung.name, "accumulator": variant.accumulator}
    _, failure = _outcome(lambda: rung(*args, **named))
    if failure is None:
        return "" if python is None else f"Python refuses: {python}; C++ runs"
    wanted = f"{variant.op.name}: rung '{variant.rung.name}' {python}"
    return "" if failure == wanted else f"Python says {python or 'nothing'}, C++ {failure}"
