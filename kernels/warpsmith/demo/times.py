"""Times of the layer, step by step and as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warpsmith.demo.checks import WHOLE
from warpsmith.demo.model import INPUTS, STEPS, TABLES, layer
from warpsmith.measure import timing
from warpsmith.native.console import say

BETWEEN = "all but the products"


@dataclass(frozen=True)
class Row:
    """Milliseconds of one step; None where that side has no time of its own."""

    tokens: int
    step: str
    kernel: str
    ms: float
    torch_ms: float | None
    compile_ms: float | None
    limit_ms: float

    def speedup(self, base: float | None) -> float | None:
        return None if base is None else base / self.ms


def _times(
    functions: dict[str, Callable[..., Any]],
    args: Sequence[Any],
    outs: Sequence[Tensor],
    seconds: float,
) -> dict[str, float]:
    """Times functions on copies of the same arguments that take turns, so that L2 is cold."""
    moved = timing.bytes_of([*args, *outs])
    count = timing.sets_for(moved, timing.l2_bytes(outs[0].device.index))
    sets = [args] + [
        [a.clone() if isinstance(a, Tensor) else a for a in args] for _ in range(1, count)
    ]

    def on_sets(function: Callable[..., Any]) -> timing.Implementation:
        return lambda i: function(*sets[i])

    calls = {name: on_sets(function) for name, function in functions.items()}
    return {name: t.ms for name, t in timing.measure(calls, sets=count, seconds=seconds).items()}


def _compiled(function: Callable[..., Any], args: Sequence[Any]) -> Callable[..., Any] | None:
    """`torch.compile` of a function for these shapes; None, with a line, where that fails."""
    compiled = torch.compile(function, dynamic=False)
    try:
        compiled(*args)
    except Exception as error:  # a broken compiler installation must not end the demo
        say(f"torch.compile is left out: {str(error).strip().splitlines()[0]}")
        return None
    return compiled


def time_layer(
    values: dict[str, Tensor], known: dict[str, Any], seconds: float, compiled: bool
) -> list[Row]:
    """Times each step and the whole layer.

    Args:
        values: every tensor of a run by name.
        known: the limits of this GPU.
        seconds: device time for each implementation of each step.
        compiled: compare with `torch.compile`, too.
    """
    torch._dynamo.reset()
    tokens = len(values["y"])
    rows: list[Row] = []

    def measure(
        ours: Callable[..., Any],
        theirs: Callable[..., Any],
        args: Sequence[Any],
        outs: Sequence[Tensor],
    ) -> dict[str, float]:
        functions = {"ours": ours, "torch": theirs}
        if compiled and (function := _compiled(theirs, args)):
            functions["compile"] = function
        return _times(functions, args, outs, seconds)

    for step in STEPS:
        args, outs = step.arguments(values), [values[name] for name in step.outputs]
        limit = step.floor_ms(known, args)
        if step.op is None:
            ms = _times({"torch": step.theirs}, args, outs, seconds)["torch"]
            rows.append(Row(tokens, step.name, step.serves(args), ms, None, None, limit))
            continue
        times = measure(step.ours, step.theirs, args, outs)
        rows.append(
            Row(
                tokens,
                step.name,
                step.serves(args),
                times["ours"],
                times["torch"],
                times.get("compile"),
                limit,
            )
        )
    rows.append(_sum(BETWEEN, [row for row in rows if row.torch_ms is not None]))
    inputs = [values[name] for name in INPUTS + TABLES]
    times = measure(layer("ours"), layer("theirs"), inputs, [values["y"]])
    limit = sum(row.limit_ms for row in rows[: len(STEPS)])
    rows.append(Row(tokens, WHOLE, "", times["ours"], times["torch"], times.get("compile"), limit))
    return rows


def _sum(name: str, rows: Sequence[Row]) -> Row:
    def total(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None

    return Row(
        rows[0].tokens,
        name,
        "",
        sum(row.ms for row in rows),
        total([row.torch_ms for row in rows]),
        total([row.compile_ms for row in rows]),
        sum(row.limit_ms for row in rows),
    )
