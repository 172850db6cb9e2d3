"""`python tests/emulator [--elements N] [--seconds S] [OPERATOR | selftest ...]`"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"  # what no kernel serves goes to the twin
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from emulator import checks, refusals
from warpsmith.cli.arguments import UsageError, find_ops


def main() -> int:
    parser = argparse.ArgumentParser(
        description="runs CUDA kernels on the CPU and judges their answers"
    )
    parser.add_argument(
        "op", nargs="*", help="operators, families or patterns, selftest; all by default"
    )
    parser.add_argument("--elements", type=int, default=20_000, help="of the largest samples")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each operator")
    parser.add_argument("--jobs", type=int, default=2, help="compilers at a time")
    options = parser.parse_args()
    names = [name for name in options.op if name != "selftest"]
    try:
        ops = find_ops(names) if names or not options.op else []
    except UsageError as error:
        parser.error(str(error))
    for library in dict.fromkeys(op.library for op in ops):
        checks.load(library, options.jobs)
    failed = 0
    if not options.op or "selftest" in options.op:
        told = list(checks.self_tests(options.jobs))
        differing = [f"{name}: {said}" for name, said in told if said]
        for line in differing[:10]:
            print(f"FAILED {line}")
        print(f"selftest: {len(told)} tests, {len(differing)} failed", flush=True)
        failed += len(differing)
    for op in ops:
        found = list(checks.results(op, most=options.elements, seconds=options.seconds))
        wrong = [result for result in found if result.message]
        for result in wrong[:10]:
            print(f"FAILED {result}")
        ran = {result.variant.name for result in found}
        idle = " ".join(v.name for v in op.variants if v.name not in ran)
        rest = f"; not run: {idle}" if idle else ""
        print(f"{op.name}: {len(found)} calls, {len(wrong)} failed{rest}", flush=True)
        refused = list(refusals.differences(op))
        differ = [f"{call}: {said}" for call, said in refused if said]
        for line in differ[:10]:
            print(f"FAILED {line}")
        print(f"{op.name}: {len(refused)} bad calls, {len(differ)} refused otherwise", flush=True)
        failed += len(wrong) + len(differ)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
