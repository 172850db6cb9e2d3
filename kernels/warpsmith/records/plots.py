"""PNG plots of the benchmark records. Needs matplotlib (`pip install 'warpsmith[bench]'`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from warpsmith.core import catalogue
from warpsmith.core.catalogue import Op
from warpsmith.native.console import UsageError
from warpsmith.records import report
from warpsmith.records.report import Results

OURS_COLOUR = "#76b900"
RUNG_COLOUR = "#a9cf6b"
OTHER_COLOURS = {"torch": "#ee4c2c", "compile": "#8c564b", "triton": "#1f77b4"}
SPARE_COLOURS = ("#7f7f7f", "#9467bd", "#17becf", "#e377c2", "#bcbd22")
PREFERRED_DTYPES = ("bf16", "f16", "f32", "e4m3", "e5m2", "i8", "i32")
#: A record of a script, which has a plot.
MEMORY = "attention_memory"


def _pyplot() -> Any:
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot
    except ImportError as error:
        raise UsageError(
            "plots need matplotlib: pip install 'warpsmith[bench]', or leave them as they are with "
            "--no-plots"
        ) from error
    return matplotlib.pyplot


def _colour(impl: str, index: int) -> str:
    if impl == "auto":
        return OURS_COLOUR
    return OTHER_COLOURS.get(impl, SPARE_COLOURS[index % len(SPARE_COLOURS)])


def _dtype(record: dict[str, Any]) -> str | None:
    found = report.dtypes(record)
    return next((name for name in PREFERRED_DTYPES if name in found), None)


def _finish(pyplot: Any, figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    # No date and no version inside, so that the same records give the same file.
    figure.savefig(path, dpi=110, metadata={"Software": None, "Creation Time": None})
    pyplot.close(figure)
    return path


def _of_limit_axis(axes: Any, along: str) -> None:
    mark, label = (
        (axes.axvline, axes.set_xlabel) if along == "x" else (axes.axhline, axes.set_ylabel)
    )
    mark(1.0, color="black", linewidth=0.8, linestyle="--")
    label("fraction of the measured limit")
    axes.grid(axis=along, alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def ladder_plot(results: Results, op: Op, path: Path) -> Path | None:
    """A bar for each rung, then the Triton twin and the peers, at each case that the ladder needs.
    None where no rung is on record.
    """
    record = results.records.get(op.name, {})
    dtype = next((d for d in PREFERRED_DTYPES if report.ladder_cases(results, op, d)), None)
    if dtype is None:
        return None
    table = report.cases(record, dtype)
    bars = {
        case: _ladder_bars(table[case], op, dtype)
        for case in report.ladder_cases(results, op, dtype)
    }
    bars = {case: found for case, found in bars.items() if found}
    if not bars:
        return None
    counts = [len(found) for found in bars.values()]
    pyplot = _pyplot()
    figure, columns = pyplot.subplots(
        len(bars),
        squeeze=False,
        figsize=(7.5, sum(0.9 + 0.32 * count for count in counts)),
        height_ratios=[count + 1 for count in counts],
    )
    for axes, (case, found) in zip(columns[:, 0], bars.items(), strict=True):
        names, values, colours = zip(*found, strict=True)
        drawn = axes.barh(range(len(found)), values, color=colours)
        axes.bar_label(drawn, fmt="%.2f", padding=3, fontsize=8)
        axes.set_xlim(0, max(1.12, 1.1 * max(values)))
        axes.set_yticks(range(len(found)), names, fontsize=8)
        axes.invert_yaxis()
        _of_limit_axis(axes, "x")
        axes.set_title(f"{op.name}, {case}, {results.device}", fontsize=10)
    return _finish(pyplot, figure, path)


def _ladder_bars(rows: dict[str, report.Row], op: Op, dtype: str) -> list[tuple[str, float, str]]:
    """Name, fraction of the limit and colour."""
    bars = [
        (variant.name, rows[variant.name]["of_limit"], RUNG_COLOUR)
        for variant in op.variants
        if variant.dtype == dtype and "of_limit" in rows.get(variant.name, {})
    ]
    for index, impl in enumerate(("auto", "triton", *report.peers(rows, op))):
        if "of_limit" in rows.get(impl, {}):
            label = report.LABELS.get(impl, impl)
            bars.append((label, rows[impl]["of_limit"], _colour(impl, index)))
    return bars


def sizes_plot(results: Results, op: Op, path: Path) -> Path | None:
    """Fraction of the limit over the cases of one dtype, a line for each implementation."""
    record = results.records.get(op.name, {})
    dtype = _dtype(record)
    table = report.cases(record, dtype) if dtype else {}
    if len(table) < 2:
        return None
    impls = [i for i in ("auto", "triton") if any(i in rows for rows in table.values())]
    impls += dict.fromkeys(impl for rows in table.values() for impl in report.peers(rows, op))
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(7.5, 4))
    for index, impl in enumerate(impls):
        points = [
            (i, rows[impl]["of_limit"])
            for i, rows in enumerate(table.values())
            if "of_limit" in rows.get(impl, {})
        ]
        if points:
            width = 2.4 if impl == "auto" else 1.3
            label = report.LABELS.get(impl, impl)
            axes.plot(
                *zip(*points, strict=True),
                marker="o",
                linewidth=width,
                color=_colour(impl, index),
                label=label,
            )
    axes.set_xticks(
        range(len(table)), [case.partition(" ")[2] for case in table], rotation=20, fontsize=8
    )
    axes.set_ylim(bottom=0)
    _of_limit_axis(axes, "y")
    axes.legend(fontsize=8)
    axes.set_title(f"{op.name}, {dtype}, {results.device}", fontsize=10)
    return _finish(pyplot, figure, path)


def family_plot(results: Results, family: str, path: Path) -> Path | None:
    """Every operator of a family at its largest case, beside PyTorch and torch.compile."""
    impls = ("auto", "torch", "compile")
    names: list[str] = []
    values: list[list[float]] = []
    used: set[str] = set()
    for op in catalogue.load().values():
        record = results.records.get(op.name)
        dtype = _dtype(record) if record else None
        if op.family != family or record is None or dtype is None:
            continue
        case = report.largest(record, dtype)
        rows = report.cases(record, dtype)[case] if case else {}
        if "of_limit" in rows.get("auto", {}):
            names.append(op.name)
            used.add(dtype)
            values.append([rows.get(impl, {}).get("of_limit", 0.0) for impl in impls])
    if not names:
        return None
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(max(5.0, 0.42 * len(names) + 2), 4.2))
    for index, impl in enumerate(impls):
        positions = [i + 0.27 * (index - 1) for i in range(len(names))]
        heights = [value[index] for value in values]
        axes.bar(positions, heights, 0.27, color=_colour(impl, index), label=report.LABELS[impl])
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=8)
    _of_limit_axis(axes, "y")
    axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.08), ncols=len(impls))
    axes.set_title(
        f"{family}, {'/'.join(sorted(used))}, largest case, {results.device}", fontsize=10
    )
    return _finish(pyplot, figure, path)


def memory_plot(results: Results, path: Path) -> Path | None:
    """Time and peak memory over tokens, of attention above and of a layer below."""
    record = results.others.get(MEMORY)
    if record is None:
        return None
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), sharex=True)
    for line, what in zip(axes, ("attention", "block"), strict=True):
        for axis, key, label in zip(line, ("ms", "peak_mib"), ("ms", "MiB"), strict=True):
            curves: dict[str, list[tuple[int, float]]] = {}
            for row in record["rows"]:
                _, of, _, tokens, _ = row["case"].split()
                if of == what and key in row:
                    curves.setdefault(row["impl"], []).append((int(tokens), row[key]))
            for name, points in curves.items():
                axis.plot(*zip(*sorted(points), strict=True), marker="o", label=name)
            axis.set(xscale="log", yscale="log", title=f"{what}: {label}")
            axis.grid(alpha=0.3)
    axes[0][0].legend()
    for axis in axes[1]:
        axis.set_xlabel("tokens")
    return _finish(pyplot, figure, path)


#: Plots of one operator, by the middle of their file's name.
_OF_AN_OPERATOR = {"ladder": ladder_plot, "sizes": sizes_plot}


def kept(readme: str) -> list[str]:
    """The plots in the repository: an overview of every family, attention with scores in memory and
    without, and those that the README shows.
    """
    ops = catalogue.load()
    shown = re.findall(r"\(docs/plots/\w+/((\w+)\.(\w+)\.png)\)", readme)
    return [f"{subject}.png" for subject in (*catalogue.FAMILIES, MEMORY)] + [
        name for name, op, kind in shown if op in ops and kind in _OF_AN_OPERATOR
    ]


def of_operators(ops: Sequence[Op]) -> list[str]:
    """The ladder and the sizes of operators."""
    return [f"{op.name}.{kind}.png" for op in ops for kind in _OF_AN_OPERATOR]


def draw(
    results: Results,
    folder: Path,
    names: Sequence[str],
    step: Callable[[Path], None] = lambda path: None,
) -> list[Path]:
    """Draws plots of a GPU's records, those for which there is a record.

    Args:
        names: "<family>.png", that of `MEMORY`, "<operator>.ladder.png" or "<operator>.sizes.png".
        step: called before each, with its path.

    Raises:
        UsageError: if matplotlib is not installed.
    """
    drawn = []
    for name in names:
        path = folder / name
        step(path)
        subject, _, kind = path.stem.partition(".")
        if subject == MEMORY:
            drawn.append(memory_plot(results, path))
        elif kind:
            drawn.append(_OF_AN_OPERATOR[kind](results, catalogue.get(subject), path))
        else:
            drawn.append(family_plot(results, subject, path))
    return [path for path in drawn if path is not None]
