"""Records of benchmarks: rows of several runs, each with what it speaks for.

A record is `benchmarks/results/<gpu>/<op>.json`. `runs` has the environment of each run that rows
are left of. A row is a case and an implementation with the run that it was measured in, and `code`,
the digest of what it ran (`native.code_lock`): it is fresh as long as that is what the sources give
now. Times compare within a run. The peers of a case stand beside the `auto` that they were measured
with; a row of ours of another run has their times of its own run in `peers`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from warpsmith.core import json_files
from warpsmith.core.catalogue import Op
from warpsmith.measure import limits, timing
from warpsmith.native import python_code, toolchain
from warpsmith.native.code_lock import NOT_TAKEN, Lock

Row = dict[str, Any]
Record = dict[str, Any]

#: Ours, beside the variants.
OURS = ("auto", "triton")


def record_path(folder: Path, op_name: str) -> Path:
    return folder / f"{op_name}.json"


def is_peer(op: Op, name: str) -> bool:
    """Whether an implementation is not ours: one that a user could have chosen instead."""
    return name not in OURS and all(name != variant.name for variant in op.variants)


# --- runs -----------------------------------------------------------------------------------------


def this_run() -> dict[str, Any]:
    """The environment of what is measured now: software, compiler, and the way of timing."""
    return {
        **limits.environment(),
        "nvcc": toolchain.nvcc_version() or None,
        "timing": timing.METHOD,
    }


def run_name(environment: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()[:6]


def made(environment: Mapping[str, Any], **tables: list[Row]) -> Record:
    """A record of one run: its `rows`, or the host times of `overhead`."""
    name = run_name(environment)
    marked = {table: [{**row, "run": name} for row in rows] for table, rows in tables.items()}
    return {
        "environment": dict(environment),
        "runs": {name: dict(environment)},
        "rows": [],
    } | marked


def with_code(op: Op, rows: Iterable[Row], lock: Lock | None) -> list[Row]:
    """The rows with what they speak for, as far as the lock is of the sources as they are."""
    if lock is None or not lock.knows(op):
        return list(rows)
    found = []
    for row in rows:
        code = lock.row(op, row["case"], row["impl"])
        found.append({**row, "code": code} if code else row)
    return found


def merge(old: Record | None, new: Record, op: Op) -> Record:
    """Rows of `new` replace those of `old` with the same case and implementation; others stay, less
    cases and variants that are no more.

    Where `new` has a case without `auto`, its peers only go along with its rows; otherwise they
    replace those of `old`, whose times the rows that stay take with them.
    """
    if old is None or "runs" not in old:
        return new
    before = [row for row in old["rows"] if _is_there(op, row)]
    came = [dict(row) for row in new["rows"]]
    with_auto = {row["case"] for row in (*before, *came) if row["impl"] == "auto"}
    renewed = {row["case"] for row in came if row["impl"] == "auto"}
    visiting = {row["case"] for row in came} & with_auto - renewed
    came = _with_peers(op, came, visiting)
    came = [row for row in came if not (row["case"] in visiting and is_peer(op, row["impl"]))]
    replaced = {(row["case"], row["impl"]) for row in came}
    before = _with_peers(op, before, renewed)
    kept = [
        row
        for row in before
        if (row["case"], row["impl"]) not in replaced
        and not (row["case"] in renewed and is_peer(op, row["impl"]))
    ]
    merged: Record = {
        "environment": new["environment"],
        "runs": {},
        "rows": _in_order(op, [*kept, *came]),
    }
    hosts = {row["impl"]: row for row in (*old.get("overhead", ()), *new.get("overhead", ()))}
    if hosts:
        merged["overhead"] = list(hosts.values())
    used = {row["run"] for row in (*merged["rows"], *hosts.values()) if "run" in row}
    runs = {**old["runs"], **new["runs"]}
    merged["runs"] = {name: runs[name] for name in runs if name in used}
    return merged


def _with_peers(op: Op, rows: list[Row], cases: set[str]) -> list[Row]:
    """In these cases each row of ours takes its peers' times with it."""
    times: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if is_peer(op, row["impl"]) and "ms" in row:
            times.setdefault((row["case"], row.get("run", "")), {})[row["impl"]] = row["ms"]
    found = []
    for row in rows:
        beside = times.get((row["case"], row.get("run", "")))
        if row["case"] in cases and beside and "peers" not in row and not is_peer(op, row["impl"]):
            row = {**row, "peers": beside}
        found.append(row)
    return found


def _is_there(op: Op, row: Row) -> bool:
    dtype, _, label = row["case"].partition(" ")
    known = dtype in op.dtypes and any(s.label == label for s in op.bench_for(dtype))
    ours = row["impl"] in OURS or any(v.name == row["impl"] for v in op.variants)
    return known and (ours or row["impl"] in ("torch", "compile", *op.peers))


def _in_order(op: Op, rows: list[Row]) -> list[Row]:
    """Case by case as the spec has them; `auto`, the twin, peers, variants."""
    cases = [f"{dtype} {s.label}" for dtype in op.dtypes for s in op.bench_for(dtype)]
    impls = ["auto", "triton", "torch", "compile", *op.peers, *(v.name for v in op.variants)]
    known = {case: i for i, case in enumerate(cases)}
    return sorted(
        rows, key=lambda row: (known.get(row["case"], len(cases)), impls.index(row["impl"]))
    )


# --- what is fresh --------------------------------------------------------------------------------


def is_fresh(row: Row, record: Record, op: Op, lock: Lock | None) -> bool:
    """Whether a row tells what the implementation does now."""
    run = record.get("runs", {}).get(row.get("run", ""))
    if lock is None or run is None or "code" not in row:
        return False
    same_way = run.get("timing") == timing.METHOD and run.get("nvcc") == lock.toolkit
    return same_way and lock.row(op, row["case"], row["impl"]) == row["code"]


def stale_rows(record: Record, op: Op, lock: Lock | None) -> list[Row]:
    """Rows of ours that are not."""
    return [
        row
        for row in record["rows"]
        if not is_peer(op, row["impl"]) and not is_fresh(row, record, op, lock)
    ]


def measured_cases(record: Record | None, op: Op, lock: Lock | None) -> frozenset[str]:
    """Cases at which a record has a fresh row of what users get."""
    rows = record["rows"] if record else ()
    return frozenset(
        row["case"]
        for row in rows
        if row["impl"] == "auto" and is_fresh(row, record or {}, op, lock)
    )


def to_measure(
    record: Record | None, op: Op, lock: Lock | None, ladders: Mapping[str, Iterable[str]]
) -> dict[str, frozenset[str]]:
    """Cases of the benchmark with the implementations of ours that have no fresh row there.

    Args:
        record: of the operator.
        op: the operator.
        lock: of the sources as they are.
        ladders: by dtype the labels of the cases at which all variants are timed.
    """
    rows = record["rows"] if record else ()
    fresh = {(r["case"], r["impl"]) for r in rows if is_fresh(r, record or {}, op, lock)}
    known = {(row["case"], row["impl"]) for row in rows}
    found: dict[str, frozenset[str]] = {}
    for dtype, sample, _ in python_code.timed(op):
        case = f"{dtype} {sample.label}"
        wanted = {"auto"} | {impl for of, impl in known if of == case and not is_peer(op, impl)}
        if sample.label in ladders.get(dtype, ()) and lock is not None:
            mine = (v.name for v in op.variants if v.dtype == dtype)
            wanted |= {name for name in mine if lock.row(op, case, name) not in (None, NOT_TAKEN)}
        if missing := frozenset(impl for impl in wanted if (case, impl) not in fresh):
            found[case] = missing
    return found


def peer_ms(row: Row, beside: Mapping[str, Row], name: str) -> float | None:
    """The time of a peer in the run of a row.

    Args:
        row: one of ours.
        beside: the rows of its case.
        name: the peer's.
    """
    if name in row.get("peers", {}):
        return float(row["peers"][name])
    other = beside.get(name, {})
    return float(other["ms"]) if "ms" in other else None


def load(folder: Path, op: Op) -> Record | None:
    """An operator's record in a GPU's folder."""
    return json_files.read_json(record_path(folder, op.name))
