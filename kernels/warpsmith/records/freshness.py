"""What of the records is up to date: verification, compute-sanitizer, benchmarks and the pages made
of them.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from warpsmith.core import catalogue, json_files
from warpsmith.core.catalogue import Op
from warpsmith.measure import bench, limits, record
from warpsmith.native import code_lock
from warpsmith.native.code_lock import Lock
from warpsmith.records import sources
from warpsmith.records.report import OTHERS, Results, fill, other_is_stale

Entry = Mapping[str, Any]

# --- verification ---------------------------------------------------------------------------------


def verified_code(name: str, lock: Lock | None) -> dict[str, Any]:
    """What an entry of an operator, or of the self tests, has to say to be up to date."""
    op = catalogue.load().get(name)
    if op is None:
        return {"source": sources.of_self_tests()}
    if lock is None or not lock.knows(op):
        return {}
    return {**lock.verification(op), "nvcc": lock.toolkit}


def changed(name: str, entry: Entry | None, lock: Lock | None) -> tuple[str, ...]:
    """What an entry does not speak for any more: names of rungs, and of parts of the whole
    operator: "python", "cases", "auto", "nvcc". Empty where it is up to date, `("all",)` where
    there is none, or no telling.
    """
    now = verified_code(name, lock)
    if entry is None or not now or entry.get("failed"):
        return ("all",)
    parts = [key for key, value in now.items() if key != "rungs" and entry.get(key) != value]
    known = entry.get("rungs", {})
    return (*parts, *(r for r, code in now.get("rungs", {}).items() if known.get(r) != code))


def rungs_to_verify(name: str, entry: Entry | None, lock: Lock | None) -> frozenset[str] | None:
    """The rungs of an operator that changed since they were verified; None where more than rungs
    did, and all has to be verified.
    """
    op = catalogue.load().get(name)
    parts = frozenset(changed(name, entry, lock))
    return parts if op is not None and parts <= {rung.name for rung in op.ladder} else None


def is_changed(path: Path, name: str, lock: Lock | None) -> bool:
    """Whether no verification speaks for an operator on the GPU of a record (`path`)."""
    entry = verification(name, path.parent.parent, path.parent.name, lock)
    return bool(changed(name, entry, lock))


def verified_source(name: str, lock: Lock | None = None) -> str:
    """All that an entry has to say as one digest."""
    said = json.dumps(verified_code(name, lock or Lock.load()), sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def record_verification(
    path: Path, results: Sequence[Any], rungs: Mapping[str, frozenset[str]] | None = None
) -> None:
    """Enters the outcome of `verify` into its record; operators not run keep their entry.

    Args:
        path: the record.
        results: of the checks.
        rungs: by operator those that were verified, where not all were; the others keep what their
            entry says.
    """
    environment, device, lock = limits.environment(), limits.device(), Lock.load()

    def entered(known: dict[str, Any]) -> dict[str, Any]:
        entries = _entries(known.get("ops", {}), results, rungs or {}, environment["date"], lock)
        written = {"environment": environment, "device": device or known.get("device")}
        return {**known, **written, "ops": entries}

    json_files.update_json(path, entered)


def _entries(
    known: Mapping[str, Entry],
    results: Sequence[Any],
    rungs: Mapping[str, frozenset[str]],
    date: str | None,
    lock: Lock | None,
) -> dict[str, Any]:
    """Of a record, with what `verify` found in the place of what it had of the same operators."""
    entries = dict(known)
    for name in dict.fromkeys(result.op for result in results):
        mine = [result for result in results if result.op == name]
        failed = [f"{r.kind} {r.label}: {r.detail}" for r in mine if not r.ok]
        code = verified_code(name, lock)
        only = rungs.get(name)
        if only is not None and name in entries:
            before = entries[name]
            entries[name] = {**before, "failed": failed, "rungs": _renewed(before, code, only)}
            continue
        entries[name] = {
            "date": date,
            "checks": len(mine),
            "failed": failed,
            "kinds": dict(Counter(result.kind for result in mine)),
            "seconds": _seconds(mine),
            **code,
        }
    return entries


def _renewed(before: Entry, code: Mapping[str, Any], only: frozenset[str]) -> dict[str, str]:
    """The digests of rungs in an entry of which only some were done again."""
    there = code.get("rungs", {})
    kept = {rung: digest for rung, digest in before.get("rungs", {}).items() if rung in there}
    return {**kept, **{rung: digest for rung, digest in there.items() if rung in only}}


def _seconds(results: Sequence[Any]) -> dict[str, float]:
    """What each kind of check took of the processes that made them."""
    found: dict[str, float] = {}
    for result in results:
        found[result.kind] = found.get(result.kind, 0.0) + result.seconds
    return {kind: round(seconds, 1) for kind, seconds in found.items()}


def verified_on_such(root: Path, gpu: str) -> Iterator[Mapping[str, Entry]]:
    """The entries of a GPU, then those of others that launch the same: cards of as many
    multiprocessors of the same architecture.
    """

    def kind(record: Mapping[str, Any] | None) -> tuple[Any, ...] | None:
        device = (record or {}).get("device")
        return (device["sm"], device["multiprocessors"]) if device else None

    own = json_files.read_json(root / gpu / "verify.json")
    if own is not None:
        yield own["ops"]
    wanted = kind(own) or kind(limits.load(root / gpu))
    for path in sorted(root.glob("*/verify.json")):
        other = json_files.read_json(path)
        if other is not None and path.parent.name != gpu and wanted and kind(other) == wanted:
            yield other["ops"]


def verification(name: str, root: Path, gpu: str, lock: Lock | None) -> Entry | None:
    """The entry that speaks for an operator on a GPU: one that is up to date, else its own."""
    found = [ops[name] for ops in verified_on_such(root, gpu) if name in ops]
    fresh = (entry for entry in found if not changed(name, entry, lock))
    return next(fresh, found[0] if found else None)


def sanitizer_record(folder: Path) -> Path:
    """What compute-sanitizer found speaks of code, whichever GPU ran it: one record for all."""
    return folder / "sanitizer.json"


def record_sanitizer(
    path: Path, results: Sequence[Any], rungs: Mapping[str, frozenset[str]] | None = None
) -> None:
    """Enters what compute-sanitizer found; operators not examined keep their entry.

    Args:
        path: the record.
        results: one an operator and tool.
        rungs: by operator those that were examined, where the record has the others as they are.
    """
    environment = limits.environment()
    lock = Lock.load()

    def entry(name: str, before: Entry) -> dict[str, Any]:
        code = examined_code(name, lock)
        only = (rungs or {}).get(name)
        if only is not None:
            code["rungs"] = _renewed(before, code, only)
        return {
            "date": environment["date"],
            "gpu": environment["gpu"],
            "tools": {r.label: {"ok": r.ok, "detail": r.detail} for r in results if r.op == name},
            **code,
        }

    def entered(known: dict[str, Any]) -> dict[str, Any]:
        entries = known.get("ops", {})
        names = dict.fromkeys(result.op for result in results)
        return {"ops": {**entries, **{name: entry(name, entries.get(name, {})) for name in names}}}

    json_files.update_json(path, entered)


def examined_code(name: str, lock: Lock | None) -> dict[str, Any]:
    """What an entry of compute-sanitizer has to say: it judges kernels, and no results."""
    code = verified_code(name, lock)
    return {key: code[key] for key in ("source", "rungs", "nvcc") if key in code}


def is_examined(name: str, entry: Entry | None, lock: Lock | None) -> bool:
    """Whether compute-sanitizer has seen an operator as it is."""
    now = examined_code(name, lock)
    if not entry or not now:
        return False
    return all(entry.get(key) == value for key, value in now.items())


def not_examined(path: Path, ops: Iterable[Op]) -> tuple[list[Op], dict[str, frozenset[str]]]:
    """Of operators, those that compute-sanitizer has not seen as they are, by its record; and by
    name their rungs that it has not seen, where it found nothing in the others as they are.
    """
    lock = Lock.load()
    known = (json_files.read_json(path) or {}).get("ops", {})
    todo = [op for op in ops if not is_examined(op.name, known.get(op.name), lock)]
    rungs = {op.name: found for op in todo if (found := _unseen(known.get(op.name), op, lock))}
    return todo, rungs


def _unseen(entry: Entry | None, op: Op, lock: Lock | None) -> frozenset[str]:
    """The rungs to examine; empty for all of them."""
    parts = frozenset(changed(op.name, entry, lock))
    if parts & {"all", "nvcc"} or not all(tool["ok"] for tool in (entry or {})["tools"].values()):
        return frozenset()
    rungs = frozenset(rung.name for rung in op.ladder)
    return parts & rungs if not rungs <= parts else frozenset()


# --- staleness ------------------------------------------------------------------------------------


def unlocked(lock: Lock | None) -> list[str]:
    """Operators of whose sources `code.json` knows nothing, so that nothing can be fresh."""
    if lock is None:
        return ["there is no benchmarks/code.json: nothing is known to be fresh"]
    old = [op.name for op in catalogue.load().values() if not lock.knows(op)]
    if not old:
        return []
    families = sorted({catalogue.get(name).family for name in old})
    return [
        f"benchmarks/code.json is older than the CUDA sources of {', '.join(old)}: run "
        f"`python tests/emulator/launches.py {' '.join(families)}`, then "
        f"`warpsmith build {' '.join(families)} --arch {code_lock.ARCH} --report --lock`"
    ]


def _few(names: Iterable[str]) -> str:
    found = list(dict.fromkeys(names))
    return ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")


def stale(results: Results) -> list[str]:
    """Rungs whose rows do not tell what they do now, operators without a record, and cases that
    were not measured or have no number of ours.
    """
    messages = []
    for op in catalogue.load().values():
        known = results.records.get(op.name)
        if known is None:
            messages.append(f"{op.name}: no record for {results.gpu}")
            continue
        rungs: dict[str, str] = {v.name: v.rung.name for v in op.variants}
        found: dict[str, list[str]] = {}
        for row in record.stale_rows(known, op, results.lock):
            found.setdefault(rungs.get(row["impl"]) or row["impl"], []).append(row["case"])
        messages += [
            f"{op.name}: {name} is not what was measured, at {_few(cases)}"
            for name, cases in found.items()
        ]
        measured = {row["case"] for row in known["rows"] if row["impl"] == "auto"}
        missing = [case for case in bench.case_names(op, bench.Plan()) if case not in measured]
        if missing:
            messages.append(f"{op.name}: not measured at {_few(missing)}")
        messages += [
            f"{op.name}: no number at {row['case']}: {row['error']}"
            for row in known["rows"]
            if row["impl"] == "auto" and "error" in row
        ]
    for name in OTHERS:
        if name not in results.others:
            messages.append(f"{name}: no record for {results.gpu}")
        elif other_is_stale(results, name):
            date = results.others[name]["environment"]["date"]
            messages.append(f"{name}: its record ({date}) is older than its sources")
    return messages


def unverified(root: Path, gpu: str, lock: Lock | None) -> list[str]:
    """Operators and rungs whose verification on such a GPU is missing, failed, or of other code;
    and those that compute-sanitizer has not seen as they are, or found something in.
    """
    if not any(True for _ in verified_on_such(root, gpu)):
        return [f"no verification on record for {gpu}"]
    messages = []
    examined = (json_files.read_json(sanitizer_record(root)) or {}).get("ops", {})
    own = json_files.read_json(root / gpu / "verify.json") or {}
    for name in sources.names():
        if not verified_code(name, lock):
            continue  # see `unlocked`
        entry = verification(name, root, gpu, lock)
        if entry is None:
            messages.append(f"{name}: not verified on {gpu}")
        elif entry["failed"]:
            messages.append(f"{name}: verification failed on {gpu}")
        elif parts := changed(name, entry, lock):
            messages.append(f"{name}: verified on {gpu} before a change of {_few(parts)}")
        quick = own.get("quick", {}).get("ops", {}).get(name)
        if quick is not None and quick["failed"] and quick["source"] == verified_source(name, lock):
            messages.append(f"{name}: a quick verification failed on {gpu}")
        found = examined.get(name, {})
        messages += [
            f"{name}: compute-sanitizer's {tool} found something on {found['gpu']}"
            for tool, result in found.get("tools", {}).items()
            if not result["ok"]
        ]
        if name != "selftest" and not is_examined(name, found, lock):
            messages.append(f"{name}: these kernels have not been under compute-sanitizer")
    return messages


def outdated_pages(pages: Iterable[Path], results: Results) -> list[str]:
    """Pages whose tables are not what the records give."""
    messages = []
    for page in pages:
        text = page.read_text() if page.is_file() else ""
        if fill(text, results) != text:
            messages.append(f"{page.name}: tables differ from the records; run `warpsmith report`")
    return messages
