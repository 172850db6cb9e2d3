"""The table of whole models: what patching and torch.compile make of each, and of both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from warpsmith.measure.kernel_kinds import KINDS

#: Implementations that are set against `eager`.
COLUMNS = ("patched", "patched, linear", "liger", "compiled", "compiled, patched")
Rows = Mapping[str, Mapping[str, Any]]


def ratio(rows: Rows, name: str, against: str) -> float | None:
    """By what an implementation is faster than another."""
    ours, theirs = (rows.get(n, {}).get("ms") for n in (name, against))
    return theirs / ours if ours and theirs else None


def parts(row: Mapping[str, Any], least: float = 0.01) -> str:
    """The kinds of kernels that the GPU spends its time on, the largest first."""
    found: dict[str, float] = row.get("shares", {})
    kinds = sorted((kind for kind in KINDS if found.get(kind, 0) >= least), key=lambda k: -found[k])
    return ", ".join(f"{kind} {100 * found[kind]:.0f} %" for kind in kinds) or "–"


def _mean(values: Iterable[float | None]) -> float | None:
    logs = [math.log(value) for value in values if value]
    return math.exp(sum(logs) / len(logs)) if logs else None


def lines(cases: Mapping[str, Rows]) -> tuple[list[str], list[list[str]]]:
    """The header and the lines of the table.

    Args:
        cases: rows by case and implementation.
    """
    names = [name for name in COLUMNS if any(name in rows for rows in cases.values())]
    header = ["model", "eager", *names, "of compiled", "error", "memory"]
    if not names:
        return header, []

    def times(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f}×"

    def milliseconds(row: Mapping[str, Any]) -> str:
        return f"{row['ms']:.2f} ms" if "ms" in row else "no number"

    found = []
    for case, rows in cases.items():
        cells = [times(ratio(rows, name, "eager")) for name in names]
        both = times(ratio(rows, "compiled, patched", "compiled"))
        patched, eager = rows.get("patched", {}), rows.get("eager", {})
        ours, theirs = patched.get("peak_mib"), eager.get("peak_mib")
        memory = f"{100 * ours / theirs:.0f} %" if ours and theirs else "–"
        error = patched.get("of_eagers_error")
        error = "–" if error is None else f"{error:.2f}"
        found.append([case.partition(" ")[2], milliseconds(eager), *cells, both, error, memory])
    means = [times(_mean(ratio(rows, name, "eager") for rows in cases.values())) for name in names]
    both = times(_mean(ratio(rows, "compiled, patched", "compiled") for rows in cases.values()))
    return header, [*found, ["geometric mean", "", *means, both, "", ""]]
