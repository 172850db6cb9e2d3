"""`python tests/emulator [--elements N] [--seconds S] [--nonfinite] [OPERATOR | selftest ...]`"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"  # what no kernel serves goes to the twin
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from emulator import architectures, checks, drift, gpus, refusals, tiles
from warpsmith.cli.arguments import UsageError, find_ops
from warpsmith.core.catalogue import Op
from warpsmith.native.code_lock import Lock


def main() -> int:
    parser = argparse.ArgumentParser(
        description="runs CUDA kernels on the CPU and judges their answers"
    )
    parser.add_argument(
        "op", nargs="*", help="operators, families or patterns, selftest; all by default"
    )
    parser.add_argument(
        "--nonfinite",
        action="store_true",
        help="also plants NaN and infinities among the arguments, for as long again",
    )
    parser.add_argument("--seed", type=int, default=0, help="of which calls get these")
    parser.add_argument("--elements", type=int, default=20_000, help="of the largest samples")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each operator")
    parser.add_argument(
        "--limit",
        type=float,
        default=float("inf"),
        help="seconds after which no operator starts whose sources were not edited",
    )
    parser.add_argument("--jobs", type=int, default=2, help="compilers at a time")
    parser.add_argument(
        "--sm",
        type=int,
        choices=(*architectures.OLDER, 90),
        help="for which to compile; sm_90 by default, and what is another code for an older one",
    )
    options = parser.parse_args()
    names = [name for name in options.op if name != "selftest"]
    try:
        ops = find_ops(names) if names or not options.op else []
    except UsageError as error:
        parser.error(str(error))
    selftest = not options.op or "selftest" in options.op
    ends = time.monotonic() + options.limit
    failed = run(ops, selftest, options.sm or 90, options, ends)
    for sm in architectures.OLDER if options.sm is None else ():
        names = {*(op.library for op in ops), *(["selftest"] if selftest else [])}
        if any(architectures.differs_in(name, sm) for name in names):
            # in a process of its own: a library is loaded once
            command = [sys.executable, str(Path(__file__).parent), *sys.argv[1:], "--sm", str(sm)]
            if ends < float("inf"):
                command += ["--limit", str(ends - time.monotonic())]
            failed += subprocess.run(command, check=False).returncode != 0
    return 1 if failed else 0


def edited_first(ops: Sequence[Op]) -> tuple[list[Op], set[str]]:
    """Operators in an order of chance, before all others those whose sources are not the ones of
    benchmarks/code.json; and the names of these.
    """
    lock = Lock.load()
    edited = {op.name for op in ops if lock is None or not lock.knows(op)}
    ops = random.sample(ops, len(ops))
    return sorted(ops, key=lambda op: op.name not in edited), edited


def run(
    ops: Sequence[Op], selftest: bool, sm: int, options: argparse.Namespace, ends: float
) -> int:
    """How many checks failed; each is told. After `ends` only edited operators start."""
    gpus.use(sm, gpus.FEW)
    target = "" if sm == 90 else f" on sm_{sm}"
    failed, loaded, left = 0, set[str](), list[str]()
    ops, edited = edited_first(ops) if ends < float("inf") else (ops, set())
    if selftest:
        told = list(checks.self_tests(options.jobs, sm))
        failed += tell("selftest", target, "tests", [(name, said) for name, said in told])
    for op in ops:
        if time.monotonic() > ends and op.name not in edited:
            left.append(op.name)
            continue
        if op.library not in loaded:
            loaded.add(op.library)
            checks.load(op.library, options.jobs, sm)
        failed += run_op(op, target, sm, options)
    if left:
        print(f"NO TIME{target} for {len(left)} of {len(ops)} operators: {' '.join(sorted(left))}")
    return failed


def run_op(op: Op, target: str, sm: int, options: argparse.Namespace) -> int:
    """How many checks of a loaded operator failed; each is told."""
    failed = 0
    found = list(checks.results(op, most=options.elements, seconds=options.seconds, sm=sm))
    if found or sm == 90:
        ran = {result.variant.name for result in found}
        idle = " ".join(v.name for v in op.variants if v.name not in ran)
        rest = f"; not run: {idle}" if idle and sm == 90 else ""
        calls = [(f"{result}", result.message) for result in found]
        failed += tell(op.name, target, "calls", calls, rest)
    if sm == 90 and options.nonfinite:
        found = checks.nonfinite_results(
            op, most=options.elements, seconds=options.seconds, seed=options.seed
        )
        calls = [(f"{result}", result.message) for result in found]
        failed += tell(op.name, target, "calls with NaN and infinities", calls)
    if sm == 90:
        if written := list(checks.into_results(op)):
            failed += tell(op.name, target, "calls with out", written)
        if of_tiles := list(tiles.results(op)):
            failed += tell(op.name, target, "calls with tiles of the menu", of_tiles)
        failed += tell(op.name, target, "bad calls", list(refusals.differences(op)))
        failed += tell(op.name, target, "choices and refusals", list(drift.differences(op)))
        gpus.use(sm, gpus.FEW)
    return failed


def tell(
    what: str, target: str, kind: str, results: Sequence[tuple[str, str]], rest: str = ""
) -> int:
    wrong = [f"{label}: {said}" for label, said in results if said]
    for line in wrong[:10]:
        print(f"FAILED{target} {line}")
    print(f"{what}{target}: {len(results)} {kind}, {len(wrong)} failed{rest}", flush=True)
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main())
