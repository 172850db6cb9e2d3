"""`warpsmith verify`: the checks of each operator, compute-sanitizer, random calls."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from warpsmith.cli.arguments import (
    find_ops,
    need_gpu,
    parse_device,
    parse_dtypes,
    parse_jobs,
    parse_part,
    parse_rungs,
)
from warpsmith.core import elsewhere
from warpsmith.core.catalogue import Op
from warpsmith.native import toolchain
from warpsmith.native.console import UsageError, print_json, progress_bar, say, write

if TYPE_CHECKING:
    from warpsmith.records.verifications import Plan

#: So many operators are named.
_SHOWN = 12
#: Random calls between two messages.
_SAID_EVERY = 5000
#: Where the failures of random calls go, by default.
FAILURES = Path("build/random_failures.jsonl")


def verify(args: argparse.Namespace) -> int:
    os.environ[elsewhere.OWN_KERNELS] = "1"  # for the workers too: whatever serves users
    ops = find_ops(args.op)
    if args.claim is not None:
        os.environ[toolchain.AS] = str(args.claim)  # for the workers too
        os.environ.setdefault("CUDA_CACHE_MAXSIZE", str(1 << 32))  # of what the driver compiles
    device = parse_device(args.device)
    if device.type == "cuda":
        need_gpu("verify", "`--device cpu` verifies what means something there")
        torch.cuda.set_device(device.index or 0)  # whose folder gets the record
        if args.claim and torch.cuda.get_device_capability() < divmod(args.claim, 10):
            raise UsageError(f"--as {args.claim} needs a GPU of sm_{args.claim} or newer")
    elif args.claim:
        raise UsageError(f"--as {args.claim} is of kernels: it needs a GPU")
    if args.random is not None or args.calls is not None:
        return _random_calls(args, ops, device)
    return _checks(args, ops, device)


def _checks(args: argparse.Namespace, ops: list[Op], device: torch.device) -> int:
    from warpsmith.measure import limits
    from warpsmith.proof import verify as verification
    from warpsmith.records import freshness, verifications

    kinds = args.kinds.split(",") if args.kinds else None
    dtypes = parse_dtypes(args.dtype, ops)
    ops = [op for op in ops if not dtypes or set(dtypes).intersection(op.dtypes)]
    if args.sanitize and (kinds or dtypes or args.quick):
        raise UsageError(
            "--sanitize examines all dtypes and no kinds: leave out --dtype, --kinds, --quick"
        )
    unrecorded = bool(kinds or dtypes or args.claim or device.type != "cuda")
    if unrecorded and (args.changed or args.full):
        raise UsageError(
            "--changed and --full are of what records hold: leave out --dtype, --kinds, --as and "
            "--device cpu, which write none"
        )
    keep, quick = None, {}
    rungs: Mapping[str, frozenset[str]] = {}
    took: Mapping[str, float] = {}
    if args.sanitizer or unrecorded:
        rungs = parse_rungs(args.rungs)
        if args.quick:
            seed = _fresh_seed() if args.seed is None else args.seed
            quick = dict.fromkeys((op.name for op in ops), seed)
            say(f"a choice of the checks, with --seed {seed}")
    elif args.sanitize:
        path = freshness.sanitizer_record(Path(args.out or limits.results_root()))
        if args.changed:
            ops, rungs = freshness.not_examined(path, ops)
        keep = functools.partial(freshness.record_sanitizer, path, rungs=rungs)
    else:
        path = (Path(args.out) if args.out else limits.results_dir()) / "verify.json"
        modes = {"quick": args.quick, "full": args.full, "changed": args.changed}
        mode = next((mode for mode, asked in modes.items() if asked), "both")
        plan = verifications.plan(path, [op.name for op in ops], mode, args.seed)
        ops = [op for op in ops if op.name in plan.full or op.name in plan.quick]
        quick, rungs, took = dict(plan.quick), plan.rungs, plan.took
        _say_what(plan)
        verifications.begin(path, plan)
        keep = functools.partial(verifications.enter, path, plan)
    if args.changed and not ops:
        write("all of it is on record as it is")
        return 0
    options: dict[str, Any] = {"jobs": parse_jobs(args.jobs, args.device), "complete": keep}
    if args.timeout is not None:
        options["timeout"] = args.timeout
    with progress_bar("verify", None) as (bar, task):

        def step(result: verification.Result) -> None:
            bar.update(task, description=f"{result.op} {result.kind}")
            bar.advance(task)

        try:
            if args.sanitize:
                options["spread"] = device.index is None
                results = verification.run_sanitizer(ops, progress=step, rungs=rungs, **options)
            else:
                results = verification.verify(
                    ops,
                    device=device,
                    sanitizer=args.sanitizer,
                    progress=step,
                    kinds=kinds,
                    dtypes=dtypes,
                    part=parse_part(args.part),
                    quick=quick,
                    rungs=rungs,
                    took=took,
                    **options,
                )
        except ValueError as error:
            raise UsageError(str(error)) from error
    if not results:
        raise UsageError("these operators have nothing to check of these kinds here")
    failed = [result for result in results if not result.ok]
    if keep is not None:
        keep(results)
        say(f"wrote {path}")
    if args.json:
        print_json({"checks": len(results), "failed": [dataclasses.asdict(r) for r in failed]})
    else:
        for result in failed:
            write(f"FAILED {result.op} {result.kind} {result.label}: {result.detail}")
        skipped = sum(result.kind == "skipped" for result in results)
        write(
            f"{len(results)} checks, {len(ops)} operators, {len(failed)} failed, {skipped} skipped"
        )
    return 1 if failed else 0


def _fresh_seed() -> int:
    return random.SystemRandom().randrange(2**32)


def _say_what(plan: Plan) -> None:
    """Which operators are verified how."""
    if plan.full:
        shown = f": {', '.join(plan.full)}" if len(plan.full) <= _SHOWN else ""
        say(f"{len(plan.full)} operators in full{shown}")
    if plan.quick:
        how = "what is left of a run that was cut off" if plan.resumed else "a choice of the checks"
        say(f"{len(plan.quick)} operators quickly, {how}, with --seed {plan.seed}")


def _random_calls(args: argparse.Namespace, ops: list[Op], device: torch.device) -> int:
    from warpsmith.proof import random_calls

    if args.kinds or args.dtype or args.sanitize:
        raise UsageError("random calls have no kinds, and all dtypes: leave out what selects them")
    if args.random is not None and args.random < 1:
        raise UsageError(f"expected a number of random calls, got {args.random}")
    seed = _fresh_seed() if args.seed is None else args.seed
    path = Path(args.out) / FAILURES.name if args.out else FAILURES
    path.parent.mkdir(parents=True, exist_ok=True)
    if args.calls is not None:
        try:
            lines = Path(args.calls).read_text().splitlines()
            calls = [random_calls.Call.parse(line) for line in lines if line.strip()]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"cannot read the calls of {args.calls}: {error!r}") from None
        known = {op.name for op in ops}
        calls = [call for call in calls if call.op in known]
        wanted, what = len(calls), f"{len(calls)} calls of {args.calls}"
    else:
        wanted, what = max(args.random, len(ops)), f"random calls with --seed {seed}"
        say(f"{wanted} {what}; what fails goes to {path}")
    options: dict[str, Any] = {} if args.timeout is None else {"timeout": args.timeout}
    made = failed = 0
    with progress_bar("random calls", wanted) as (bar, task):

        def step(progress: random_calls.Progress) -> None:
            nonlocal made, failed
            bar.update(task, description=progress.op)
            bar.advance(task, progress.made)
            made, failed = made + progress.made, failed + len(progress.failures)
            for failure in progress.failures:
                say(f"FAILED {failure}")
            # for whoever reads what a run that was cut off said
            if progress.made and made % _SAID_EVERY == 0:
                say(f"{made} calls made, {failed} failures")

        if args.calls is not None:
            failures: list[random_calls.Failure] = []
            taken = 0
            for progress in random_calls.remake(calls, device):
                step(progress)
                failures += progress.failures
                taken += progress.passed
        else:
            taken, failures = random_calls.random_calls(
                ops,
                wanted,
                seed=seed,
                device=device,
                jobs=parse_jobs(args.jobs, args.device),
                record=path,
                progress=step,
                **options,
            )
    if args.json:
        found = [dataclasses.asdict(failure) for failure in failures]
        print_json({"calls": taken, "seed": seed, "failed": found})
    else:
        by_op: dict[str, int] = {}
        for failure in failures:
            by_op[failure.call.op] = by_op.get(failure.call.op, 0) + 1
        for name, count in by_op.items():
            write(f"FAILED {name}: {count}")
        write(f"{what}: {taken} taken, {len(ops)} operators, {len(failures)} failed")
    return 1 if failures else 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("op", nargs="*", help="operators, families or patterns; all by default")
    add("--device", default="cuda", help="cuda, cuda:1; cpu for what runs there")
    add(
        "--as",
        dest="claim",
        type=int,
        choices=(80, 89),
        metavar="SM",
        help="80 or 89: what a GPU of this compute capability would run, on a newer one: its code, "
        "which the driver compiles from PTX, its choices, its shared memory; writes no record",
    )
    add("--kinds", help="comma list (samples, variants, …); all by default")
    add("--dtype", help="comma list; every dtype by default")
    add(
        "--out",
        help="folder for verify.json, benchmarks/results/<gpu> by default; with --sanitize, for "
        "sanitizer.json, benchmarks/results by default; with --random, for the failures, build by "
        "default",
    )
    add(
        "--jobs",
        default="1",
        help="processes side by side, or auto: as many as cores and memory allow; 1 by default",
    )
    add(
        "--timeout",
        type=float,
        help="seconds without a result after which one of several processes is stopped, 600 by "
        "default; with --sanitize, seconds that a process may take, 3600 by default",
    )
    add(
        "--sanitizer",
        action="store_true",
        help=argparse.SUPPRESS,  # the small samples, as compute-sanitizer runs them
    )
    add("--part", default="0/1", help=argparse.SUPPRESS)  # 0/4: every fourth variant
    add("--rungs", action="append", default=[], help=argparse.SUPPRESS)  # relu=x4,strided
    add(
        "--sanitize",
        action="store_true",
        help="launch compute-sanitizer's tools on the small samples",
    )
    how_much = parser.add_mutually_exclusive_group()
    how_much.add_argument(
        "--quick",
        action="store_true",
        help="a choice of the checks, another for each seed: each variant, dtype and kind of check "
        "at least once; it stands for no full verification",
    )
    how_much.add_argument(
        "--changed",
        action="store_true",
        help="only what is not verified as it is: operators, or rungs where nothing else changed",
    )
    how_much.add_argument(
        "--full",
        action="store_true",
        help="all checks of all operators; without any of these, those operators in full that "
        "have no full verification as they are now, and the others quickly",
    )
    add(
        "--random",
        type=int,
        metavar="N",
        help="make N random calls instead, spread over the operators; every failure is a line of "
        f"JSON in {FAILURES}",
    )
    add(
        "--seed",
        type=int,
        help="of what chance chooses; a fresh one by default, which is printed",
    )
    add("--calls", metavar="FILE", help="make the calls of such a file again")
