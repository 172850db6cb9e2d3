"""What each public function that has a gradient costs the host, beside what it replaces in PyTorch,
in microseconds: without gradient, forward where one is required, forward and backward.
`python benchmarks/host_times.py [FUNCTION ...]`, on a GPU and an idle machine, writes the record, a
function at a time; `--missing` takes up what was left. With `--device cpu` it shows the times of
references, which say nothing about kernels.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from warpsmith.core import json_files
from warpsmith.measure import host_times, limits
from warpsmith.measure.record import record_path
from warpsmith.native import recorded_library
from warpsmith.records import sources

NAME = "host_times"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("function", nargs="*", help="all by default")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, help="folder of the record")
    parser.add_argument("--missing", action="store_true", help="those that the record lacks")
    options = parser.parse_args(arguments)
    if unknown := set(options.function) - set(host_times.CASES):
        parser.error(f"no such function: {', '.join(sorted(unknown))}")
    if options.device == "cuda":
        limits.need_gpu()
    names, source = options.function or list(host_times.CASES), sources.of_host_times()
    if options.device == "cpu":
        list(host_times.measure_all(names, "cpu", _say))
        return 0
    path = record_path(options.out or limits.results_dir(), NAME)
    record = json_files.read_json(path) or {}
    rows = record.get("rows", []) if record.get("source") == source else []
    if options.missing:
        known = {row["case"] for row in rows}
        names = [name for name in names if name not in known]
    environment, order = limits.environment(), list(host_times.CASES)
    environment["autograd"] = recorded_library.recorder()
    for found in host_times.measure_all(names, "cuda", _say):
        cases = {row["case"] for row in found}
        rows = [row for row in rows if row["case"] not in cases] + found
        rows.sort(key=lambda row: order.index(row["case"]))
        json_files.write_json(path, {"environment": environment, "source": source, "rows": rows})
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
