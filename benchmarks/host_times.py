"""What each public function that has a gradient costs the host, beside what it replaces in PyTorch,
in microseconds: without gradient, forward where one is required, forward and backward.
`python benchmarks/host_times.py [FUNCTION ...]`, on a GPU and an idle machine, writes the record;
with `--device cpu` it shows the times of references, which say nothing about kernels.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from warpsmith.core import json_files
from warpsmith.measure import host_times, limits
from warpsmith.measure.record import record_path
from warpsmith.records import sources

NAME = "host_times"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("function", nargs="*", help="all by default")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, help="folder of the record")
    options = parser.parse_args(arguments)
    if unknown := set(options.function) - set(host_times.CASES):
        parser.error(f"no such function: {', '.join(sorted(unknown))}")
    if options.device == "cuda":
        limits.need_gpu()
    names = options.function or list(host_times.CASES)
    rows = host_times.measure_all(names, options.device, lambda line: print(line, flush=True))
    if options.device == "cuda":
        path = record_path(options.out or limits.results_dir(), NAME)
        old = json_files.read_json(path) or {"rows": []}
        kept = [row for row in old["rows"] if row["case"] not in names]
        json_files.write_json(
            path,
            {
                "environment": limits.environment(),
                "source": sources.of_host_times(),
                "rows": sorted(
                    kept + rows, key=lambda row: list(host_times.CASES).index(row["case"])
                ),
            },
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
