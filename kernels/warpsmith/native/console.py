"""How the command line speaks: tables for people, JSON for machines, progress on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from warpsmith.native.inspection import Kernel

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


class UsageError(Exception):
    """One line for the user; the command ends with status 2."""


def print_json(content: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(content, indent=1, default=str) + "\n")


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    table = Table(
        title=title or None, title_justify="left", header_style="bold", pad_edge=False, box=None
    )
    for name in header:
        table.add_column(escape(name), overflow="fold")
    for row in rows:
        table.add_row(*("" if cell is None else escape(str(cell)) for cell in row))
    # A pipe has no width of its own, and wrapped columns are no use to a reader or to grep.
    (out if out.is_terminal else Console(highlight=False, width=400)).print(table)


@contextmanager
def progress_bar(label: str, total: int | None) -> Iterator[tuple[Progress, Any]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, transient=True) as progress:
        yield progress, progress.add_task(label, total=total)


def write(text: str) -> None:
    """A line of plain text on standard output."""
    out.print(escape(text), soft_wrap=True)


def say(message: str) -> None:
    """A line for the user on standard error, beside a progress bar where there is one."""
    err.print(escape(message), soft_wrap=True)


def print_facts(facts: dict[str, Any]) -> None:
    """What `doctor` found, as tables."""
    print_table("", ("", "found", "to do"), [tuple(row.values()) for row in facts["machine"]])
    write("")
    print_table(
        "",
        ("family", "what serves it", "library", "architectures", "why", "to do"),
        [
            (f["family"], f["serves"], f["library"], " ".join(f["archs"]), f["why"], f["advice"])
            for f in facts["families"]
        ],
    )


def print_listings(
    label: str, total: int | None, listings: Iterable[tuple[str, str]], as_json: bool
) -> None:
    """Titles and texts, when all are there: beside a bar, standard output would be the terminal."""
    found = []
    with progress_bar(label, total) as (bar, task):
        for listing in listings:
            found.append(listing)
            bar.advance(task)
    if as_json:
        print_json([{"title": title, "code": text} for title, text in found])
    else:
        sys.stdout.writelines(f"// {title}\n{text}\n\n" for title, text in found)


def print_kernels(kernels: Iterable[Kernel]) -> None:
    """Registers, memory and occupancy of compiled kernels as a table."""
    header = ["kernel", "rung", "sm", "registers", "local", "static smem", "max threads"]
    header += ["threads", "cluster", "dynamic smem", "blocks per SM", "occupancy"]
    rows: list[list[object]] = []
    for k in dict.fromkeys(kernels):  # several operators may share one
        local = k.local + k.stack
        row: list[object] = [k.name, k.rung or "", k.arch, k.registers, local, k.static_smem]
        row += [k.max_threads, k.threads, k.cluster, k.dynamic_smem, k.blocks_per_sm]
        unknown = "never launched" if k.dynamic_smem_limit is not None else None
        row.append(unknown if k.occupancy is None else f"{100 * k.occupancy:.0f} %")
        rows.append(row)
    print_table("", header, rows)


def print_record(name: str, record: dict[str, Any]) -> None:
    """A benchmark record as tables."""

    def shown(value: object, digits: int) -> str:
        return f"{value:.{digits}f}" if isinstance(value, float | int) else ""

    rows = []
    for row in record.get("rows", []):
        spread = f"{row['ms_low']:.4f}–{row['ms_high']:.4f}" if "ms_low" in row else ""
        numbers = (
            shown(row.get("ms"), 4),
            spread,
            shown(row.get("tbps"), 3),
            shown(row.get("of_limit"), 3),
        )
        note = row.get("error") or row.get("note") or row.get("serves", "")
        rows.append((row["case"], row["impl"], *numbers, shown(row.get("error_ratio"), 2), note))
    print_table(
        name, ("case", "impl", "ms", "p20–p80", "TB/s", "of limit", "error ratio", ""), rows
    )
    overhead = [
        (row["case"], row["impl"], shown(row.get("cpu_us"), 1))
        for row in record.get("overhead", [])
    ]
    if overhead:
        print_table("host time per call", ("call", "impl", "µs"), overhead)
    write("")
