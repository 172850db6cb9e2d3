"""What of the records is up to date: verification, compute-sanitizer, benchmarks and the pages made
of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from warpsmith.core import catalogue, json_files
from warpsmith.measure import bench, limits
from warpsmith.native import csrc
from warpsmith.records import sources
from warpsmith.records.report import OTHERS, Results, fill, is_stale, other_is_stale

# --- verification ---------------------------------------------------------------------------------


def verified_source(name: str) -> str:
    """The hash that the entry of an operator or of the self tests has to bear to be up to date."""
    op = catalogue.load().get(name)
    return sources.of_verification(op) if op else csrc.source_hash(name)


def record_verification(path: Path, results: Sequence[Any]) -> None:
    """Enters the outcome of `verify` into its record; operators not run keep their entry."""
    record = json_files.read_json(path) or {}
    environment = limits.environment()
    entries = record.get("ops", {})
    for name in dict.fromkeys(result.op for result in results):
        mine = [result for result in results if result.op == name]
        entries[name] = {
            "source": verified_source(name),
            "date": environment["date"],
            "checks": len(mine),
            "failed": [f"{r.kind} {r.label}: {r.detail}" for r in mine if not r.ok],
            "kinds": dict(Counter(result.kind for result in mine)),
        }
    json_files.write_json(path, {**record, "environment": environment, "ops": entries})


def sanitizer_record(folder: Path) -> Path:
    """What compute-sanitizer found speaks of code, whichever GPU ran it: one record for all."""
    return folder / "sanitizer.json"


def record_sanitizer(path: Path, results: Sequence[Any]) -> None:
    """Enters what compute-sanitizer found; operators not examined keep their entry."""
    environment = limits.environment()
    entries = (json_files.read_json(path) or {}).get("ops", {})
    for name in dict.fromkeys(result.op for result in results):
        entries[name] = {
            "source": verified_source(name),
            "date": environment["date"],
            "gpu": environment["gpu"],
            "tools": {r.label: {"ok": r.ok, "detail": r.detail} for r in results if r.op == name},
        }
    json_files.write_json(path, {"ops": entries})


# --- staleness ------------------------------------------------------------------------------------


def stale(results: Results) -> list[str]:
    """Operators whose record is older than their sources, those without one, and cases that were
    not measured or have no number of ours.
    """
    messages = []
    for op in catalogue.load().values():
        record = results.records.get(op.name)
        if record is None:
            messages.append(f"{op.name}: no record for {results.gpu}")
        elif is_stale(record, op):
            messages.append(
                f"{op.name}: its record ({record['environment']['date']}) is older than its sources"
            )
        elif missing := bench.missing_cases(record, op):
            messages.append(f"{op.name}: {len(missing)} cases not measured, '{missing[0]}' first")
        if record is not None:
            messages += [
                f"{op.name}: no number at {row['case']}: {row['error']}"
                for row in record["rows"]
                if row["impl"] == "auto" and "error" in row
            ]
    for name in OTHERS:
        if name not in results.others:
            messages.append(f"{name}: no record for {results.gpu}")
        elif other_is_stale(results, name):
            date = results.others[name]["environment"]["date"]
            messages.append(f"{name}: its record ({date}) is older than its sources")
    return messages


def unverified(root: Path, gpu: str) -> list[str]:
    """Operators whose verification on a GPU is missing, failed, or older than their sources; and
    those of which compute-sanitizer has not seen these sources, or found something in them.
    """
    record = json_files.read_json(root / gpu / "verify.json")
    if record is None:
        return [f"no verification on record for {gpu}"]
    messages = []
    examined = (json_files.read_json(sanitizer_record(root)) or {}).get("ops", {})
    for name in (*catalogue.load(), "selftest"):
        source = verified_source(name)
        entry = record["ops"].get(name)
        if entry is None:
            messages.append(f"{name}: not verified on {gpu}")
        elif entry["failed"]:
            messages.append(f"{name}: verification failed on {gpu}")
        elif entry["source"] != source:
            messages.append(f"{name}: verified on {gpu} before its sources changed")
        quick = record.get("quick", {}).get("ops", {}).get(name)
        if quick is not None and quick["failed"] and quick["source"] == source:
            messages.append(f"{name}: a quick verification failed on {gpu}")
        found = examined.get(name, {})
        messages += [
            f"{name}: compute-sanitizer's {tool} found something on {found['gpu']}"
            for tool, result in found.get("tools", {}).items()
            if not result["ok"]
        ]
        if found.get("source") != source and name != "selftest":
            messages.append(f"{name}: these sources have not been under compute-sanitizer")
    return messages


def outdated_pages(pages: Iterable[Path], results: Results) -> list[str]:
    """Pages whose tables are not what the records give."""
    messages = []
    for page in pages:
        text = page.read_text() if page.is_file() else ""
        if fill(text, results) != text:
            messages.append(f"{page.name}: tables differ from the records; run `warpsmith report`")
    return messages
