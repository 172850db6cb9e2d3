"""A lock and records that tests of records share."""

from __future__ import annotations

from typing import Any

from warpsmith.core.catalogue import Op
from warpsmith.measure import record, timing

TOOLKIT = "13.0"


class Everything:
    """A lock that knows every call of every operator as it is now, or `later`."""

    toolkit = TOOLKIT
    ops: dict[str, dict[str, str]] = {}  # noqa: RUF012

    def __init__(self, **later: str) -> None:
        #: Operator -> an implementation that is not what it was.
        self.later = later

    def knows(self, op: Op) -> bool:
        return True

    def row(self, op: Op, case: str, impl: str) -> str:
        return "later" if self.later.get(op.name) in (impl, "all") else "now"

    def verification(self, op: Op) -> dict[str, Any]:
        all_of_it = "later" if self.later.get(op.name) == "all" else "now"
        rungs = {r.name: self.row(op, "", r.name) for r in op.ladder}
        return {"python": all_of_it, "cases": "now", "auto": "now", "rungs": rungs}


def run(**changed: Any) -> dict[str, Any]:
    """The environment of a run."""
    software = {"driver": "1", "cuda": "13.0", "torch": "2.11", "triton": None}
    here = {"gpu": "NVIDIA H200", "date": "2026-01-01", "nvcc": TOOLKIT, "timing": timing.METHOD}
    return software | here | changed


def made(*rows: dict[str, Any], **changed: Any) -> record.Record:
    """A record of one run, whose rows speak for what is there now."""
    return record.made(run(**changed), rows=[{"code": "now", **row} for row in rows])


def entry(op: Op, **changed: Any) -> dict[str, Any]:
    """A verification of what is there now."""
    return {"failed": [], **Everything().verification(op), "nvcc": TOOLKIT} | changed
