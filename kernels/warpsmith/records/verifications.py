"""Which operators a verification checks in full and which by a choice, and where one was cut off.

A record of verifications has two parts: `ops`, what was verified in full, and `quick`, the latest
choice, with its seed. A quick verification enters the second part only: it never stands for a full
one, and takes nothing from it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warpsmith.core import json_files
from warpsmith.measure import limits
from warpsmith.native.code_lock import Lock
from warpsmith.records import freshness


@dataclass(frozen=True)
class Plan:
    """Operators to verify: by name those in full, and the seed of each that is verified quickly.

    Attributes:
        full: names.
        quick: seeds by name.
        seed: of the quick ones.
        resumed: whether the quick ones are what is left of a run that was cut off.
        rungs: of those in full the rungs that changed, where nothing else did.
        took: by operator, the seconds of processes that the last full verification took.
    """

    full: tuple[str, ...]
    quick: Mapping[str, int]
    seed: int
    resumed: bool = False
    rungs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    took: Mapping[str, float] = field(default_factory=dict)


def plan(path: Path, names: Sequence[str], mode: str, seed: int | None = None) -> Plan:
    """What to verify, and how.

    Args:
        path: the record.
        names: operators.
        mode: "full", all of them in full; "quick", all of them quickly; "changed", in full those
            that no record has as they are now; "both", these in full, the others quickly.
        seed: of the quick ones. By default that of a run that was cut off, which is then gone on
            with, or a fresh one.

    Returns:
        The plan; of a run that was cut off, what it left.
    """
    record = json_files.read_json(path) or {}
    lock = Lock.load()
    full: Sequence[str] = ()
    rungs: dict[str, frozenset[str]] = {}
    if mode == "full":
        full = names
    elif mode in ("changed", "both"):
        full = [name for name in names if freshness.is_changed(path, name, lock)]
        of_rungs = {
            name: freshness.rungs_to_verify(name, record.get("ops", {}).get(name), lock)
            for name in full
        }
        rungs = {name: found for name, found in of_rungs.items() if found}
    quickly = [name for name in names if name not in full] if mode != "changed" else []
    entries = record.get("ops", {}).items()
    took = {name: sum(entry.get("seconds", {}).values()) for name, entry in entries}
    before = record.get("quick", {})
    if before.get("left") and seed in (None, before["seed"]):
        remain = [name for name in quickly if not _is_done(before, name)]
        if remain:
            resumed = len(remain) < len(quickly)
            seeds = dict.fromkeys(remain, before["seed"])
            return Plan(tuple(full), seeds, before["seed"], resumed, rungs, took)
    if seed is None:
        seed = random.SystemRandom().randrange(2**32)
    return Plan(tuple(full), dict.fromkeys(quickly, seed), seed, rungs=rungs, took=took)


def _is_done(quick: Mapping[str, Any], name: str) -> bool:
    """Whether the latest quick verification has seen an operator as it is now."""
    entry = quick["ops"].get(name)
    if entry is None or name in quick["left"] or entry["seed"] != quick["seed"]:
        return False
    return bool(entry["source"] == freshness.verified_source(name))


def begin(path: Path, planned: Plan) -> None:
    """Notes what a run is going to verify quickly, so that another can go on with it."""
    if not planned.quick:
        return
    quick = {"seed": planned.seed, "left": list(planned.quick)}

    def begun(record: dict[str, Any]) -> dict[str, Any]:
        entries = record.get("quick", {}).get("ops", {})
        return {"ops": {}, **record, "quick": {**quick, "ops": entries}}

    json_files.update_json(path, begun)


def enter(path: Path, planned: Plan, results: Sequence[Any]) -> None:
    """Enters outcomes, each into the part of the record that its operator's mode has."""
    in_full = [result for result in results if result.op not in planned.quick]
    if in_full:
        freshness.record_verification(path, in_full, planned.rungs)
    names = dict.fromkeys(result.op for result in results if result.op in planned.quick)
    if not names:
        return
    environment = limits.environment()
    found = {}
    for name in names:
        mine = [result for result in results if result.op == name]
        found[name] = {
            "source": freshness.verified_source(name),
            "date": environment["date"],
            "seed": planned.quick[name],
            "checks": len(mine),
            "failed": [f"{r.kind} {r.label}: {r.detail}" for r in mine if not r.ok],
        }

    def entered(record: dict[str, Any]) -> dict[str, Any]:
        before = record.get("quick", {})
        left = [name for name in before.get("left", ()) if name not in names]
        quick = {"seed": planned.seed, "left": left, "ops": {**before.get("ops", {}), **found}}
        return {"environment": environment, "ops": {}, **record, "quick": quick}

    json_files.update_json(path, entered)
