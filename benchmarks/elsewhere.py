"""Derives which calls another implementation serves faster than the kernels here from the records
of a GPU: `python benchmarks/elsewhere.py [--gpu h200] [--check]`.

Writes `kernels/warpsmith/core/elsewhere.json`, by which `auto` serves such calls elsewhere
(core/elsewhere.py), and prints the rules. `--check` writes nothing, and fails where the file is not
what the records give. The records are made by `warpsmith bench`, which measures our own kernels.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from importlib.util import find_spec
from pathlib import Path

if find_spec("warpsmith") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels"))

from warpsmith.core import elsewhere, json_files
from warpsmith.measure import limits
from warpsmith.records import elsewhere as derived
from warpsmith.records import report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", default=None, help="whose records; by default those of most")
    parser.add_argument("--check", action="store_true", help="whether the file is up to date")
    options = parser.parse_args()
    gpu = options.gpu or report.default_gpu()
    results = report.Results.load(limits.results_root() / gpu)
    device = (json_files.read_json(limits.results_root() / gpu / "verify.json") or {})["device"]
    before = elsewhere.rules()
    today = datetime.date.today().isoformat()
    rules = derived.derive(results, int(device["sm"]), today, before)
    for rule in rules:
        print(f"{rule.op}: {rule.implementation} {rule.ratio} in {rule.cases}: {rule.told}")
    made = derived.as_data(rules, today)
    if options.check:
        there = json_files.read_json(elsewhere.DATA) or {}
        return 0 if there.get("rules") == made["rules"] else 1
    json_files.write_json(elsewhere.DATA, made)
    print(f"{len(rules)} rules: {elsewhere.DATA}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
