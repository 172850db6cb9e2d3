"""The command line: doctor, list, which, demo, build, verify, bench, inspect, report.

Every command prints a table on a terminal and, with `--json`, one JSON document on standard output;
progress and messages go to standard error. Exit status: 0 fine, 1 something is wrong with what was
examined, 2 the call was wrong or cannot run here.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from warpsmith import __version__
from warpsmith.cli import lookup, verification
from warpsmith.cli.arguments import (
    find_libraries,
    find_ops,
    need_gpu,
    parse_archs,
    parse_cases,
    parse_dtypes,
    parse_jobs,
    parse_peers,
    parse_variants,
)
from warpsmith.core import dispatch, elsewhere, json_files
from warpsmith.core.catalogue import DTYPES, Op
from warpsmith.native import build, code_lock, libraries, recorded_library, toolchain
from warpsmith.native.console import (
    UsageError,
    print_json,
    print_kernels,
    print_listings,
    print_record,
    progress_bar,
    say,
    write,
)

# --- build, inspect -------------------------------------------------------------------------------


def build_libraries(args: argparse.Namespace) -> int:
    from warpsmith.native.resource_report import resource_report

    if args.lock and not args.report:
        raise UsageError("--lock enters what --report finds: give both")
    names = find_libraries(args.library)
    kernels = [name for name in names if name != recorded_library.NAME]
    if not kernels and (args.arch or args.report):
        raise UsageError("--arch and --report are of kernels, and autograd has none")
    archs = parse_archs(args.arch or toolchain.RELEASE_ARCHS) if kernels else []
    folder = Path(args.out)
    total = sum(len(libraries.sources(name)) if name in kernels else 1 for name in names)
    done: dict[str, int] = {}
    with progress_bar(f"compiling {names[0]}", total) as (bar, task):

        def advance(library: str, count: int, of: int) -> None:
            done[library] = count
            bar.update(task, completed=sum(done.values()), description=f"compiling {library}")

        built: list[Path] | None = []
        recorder: list[Path] | None = []
        if kernels:
            built = _built(lambda: build.build(kernels, archs, folder, advance))
        if recorded_library.NAME in names:
            recorder = _built(lambda: [recorded_library.build(folder, advance)])
    if built is None or recorder is None:
        return 1
    files = [*built, *recorder]
    result: dict[str, Any] = {"libraries": [str(path) for path in files], "archs": archs}
    problems: list[str] = []
    if args.report:
        report = resource_report(built, archs=archs)
        problems = report.problems
        result |= {"kernels": len(report.kernels), "problems": problems}
        result |= {"repeated": report.repeated, "notes": report.notes}
        result["resources"] = str(folder / "resources.json")
        json_files.write_json(Path(result["resources"]), [k.as_dict() for k in report.kernels])
        if code_lock.ARCH in archs:
            problems += _compare_code(built, args.lock, args.lock)
    if args.json:
        print_json(result)
        return 1 if problems else 0
    for path in files:
        write(str(path))
    if args.report:
        write(
            f"{result['kernels']} kernels, {len(problems)} problems; "
            f"of each kernel: {result['resources']}"
        )
        for line in (*problems, *result["repeated"], *result["notes"]):
            write(line)
    write(f"to use them: WARPSMITH_LIBRARY_DIR={folder.resolve()}")
    return 1 if problems else 0


def _built(make: Callable[[], list[Path]]) -> list[Path] | None:
    """What is built now; None where that fails, of which the user is told: the rest goes on."""
    try:
        return make()
    except build.BuildError as error:
        say(str(error))
        return None


def _compare_code(files: Sequence[Path], enter: bool, must: bool) -> list[str]:
    """Holds what was compiled against benchmarks/code.json, or enters it there; what is wrong: also
    that there are no dry runs, where there `must` be.
    """
    path = code_lock.default_path()
    if path is None:  # no checkout, no records
        return []
    known = code_lock.Lock.load(path)
    try:
        made = code_lock.made_of(files, known)
    except code_lock.LockError as error:
        say(f"benchmarks/code.json is not compared: {error}")
        return [str(error)] if must else []
    if enter:
        made.save(path)
        say(f"wrote {path}")
        return []
    if known is not None and known.toolkit != made.toolkit:
        say(
            f"compiled by nvcc {made.toolkit}, while benchmarks/code.json is of {known.toolkit}: "
            "another compiler's machine code is not compared"
        )
    return code_lock.differences(known, made)


def inspect(args: argparse.Namespace) -> int:
    from warpsmith.native import inspection

    ops = find_ops([args.op])
    parse_archs([args.arch] if args.arch else [])
    try:
        if args.sass:
            for op in ops:
                inspection.library_for(op.library, args.arch)  # may compile, with its own progress
            code = (pair for op in ops for pair in inspection.sass(op, args.arch))
            listings = ((f"{kernel.name}, sm_{kernel.arch}", text) for kernel, text in code)
            print_listings("disassembling", None, listings, args.json)
            return 0
        if args.ptx:
            files = (pair for op in ops for pair in inspection.ptx(op, args.arch or "90a"))
            rungs = sum(len(op.ladder) for op in ops)
            listings = ((path.name, text) for path, text in files)
            print_listings("compiling", rungs, listings, args.json)
            return 0
        if args.arch is None and torch.cuda.is_available():
            _launch_all(ops)
        kernels = [
            k
            for op in ops
            for k in inspection.inspect(op, args.arch, args.threads, args.dynamic_smem)
        ]
    except inspection.InspectionError as error:
        raise UsageError(str(error)) from error
    if args.json:
        print_json([kernel.as_dict() for kernel in kernels])
        return 0
    if not kernels:
        raise UsageError(f"the library holds no kernel of '{args.op}'")
    print_kernels(kernels)
    return 0


def _launch_all(ops: Sequence[Op]) -> None:
    """So that the occupancy is that of the launches which there are."""
    from warpsmith.native import inspection

    with progress_bar("launching", sum(len(op.variants) for op in ops)) as (bar, task):

        def step(variant: str) -> None:
            bar.update(task, description=variant)
            bar.advance(task)

        for op in ops:
            if dispatch.load(op.library):
                inspection.launch_all(op, step)


# --- bench ----------------------------------------------------------------------------------------


def bench(args: argparse.Namespace) -> int:
    from warpsmith.measure import bench as benchmarks
    from warpsmith.measure import limits

    os.environ[elsewhere.OWN_KERNELS] = "1"  # which are measured, whatever serves users
    torch.backends.cudnn.allow_tf32 = False  # PyTorch's convolutions in f32 are what they say
    ops = find_ops(args.op)
    dtypes = parse_dtypes(args.dtype, ops)
    plan = benchmarks.Plan(
        dtypes=dtypes,
        cases=parse_cases(args.cases, ops, dtypes),
        variants=parse_variants(args.variants, ops),
        peers=parse_peers(args.peers, ops),
        sustained=args.sustained,
        overhead=not args.no_overhead,
        timed=not args.overhead_only,
        seconds=args.seconds,
    )
    need_gpu("bench")
    folder = Path(args.out) if args.out else limits.results_dir()
    if args.limits:
        with progress_bar("measuring the limits of this GPU", None):
            known = limits.ensure(folder, again=True)
        if not (args.json and args.op):
            print_json(known["measured"])
        if not args.op:
            return 0
    if args.missing:
        plan = benchmarks.without_measured(plan, ops, folder)
    if args.changed:
        sm = dispatch.device_sm(torch.device("cuda"))
        plan = benchmarks.only_changed(plan, ops, folder, sm)
    if args.warm:
        from warpsmith.measure import warm

        jobs = parse_jobs(args.warm, "cuda")
        with progress_bar("compiling", benchmarks.count_cases(ops, plan)) as (bar, task):
            plan = warm.warm(ops, plan, jobs=jobs, say=say, step=lambda: bar.advance(task))
    with progress_bar("benchmarks", benchmarks.count_cases(ops, plan)) as (bar, task):

        def step(case: str) -> None:
            bar.update(task, description=case)
            bar.advance(task)

        written = benchmarks.bench(ops, plan, out=folder, say=say, step=step)
    records = {path.stem: json_files.read_json(path) for path in written}
    if args.json:
        print_json(records)
        return 0
    for name, record in records.items():
        print_record(name, record or {})
    for path in written:
        say(f"wrote {path}")
    return 0


# --- report ---------------------------------------------------------------------------------------


def report(args: argparse.Namespace) -> int:
    from warpsmith.measure import limits
    from warpsmith.records import api, freshness
    from warpsmith.records import report as reports

    if args.libraries and not args.check:
        raise UsageError("--libraries are checked: give --check, too")
    files = sorted(Path(args.libraries).glob("warpsmith_*.so")) if args.libraries else []
    checked = [path for path in files if libraries.of_file(path) is not None]
    if args.libraries and not checked:
        raise UsageError(f"there are no libraries in {args.libraries}")
    root = limits.results_root()
    home = root.parents[1]
    try:
        gpu = args.gpu or reports.default_gpu(root)
    except FileNotFoundError as error:
        say(str(error))
        return 1 if args.strict else 0
    if not (root / gpu).is_dir():
        raise UsageError(
            f"no records for '{gpu}'; there are: {', '.join(reports.gpus(root)) or 'none'}"
        )
    results = reports.Results.load(root / gpu)
    if results.lock is None and not args.check:  # which says so itself
        say(f"there is no {home / 'benchmarks' / code_lock.NAME}: every row is written as stale")
    readme, docs = home / "README.md", home / "docs"
    plots = docs / "plots" / gpu
    if args.check:
        messages = []
        page = docs / "benchmarks.md"
        with progress_bar("checking the records", 4) as (bar, task):
            messages += freshness.unlocked(results.lock) + freshness.stale(results)
            bar.update(task, advance=1, description="checking the verification")
            messages += freshness.unverified(root, gpu, results.lock)
            bar.update(task, advance=1, description="checking README.md")
            messages += freshness.outdated_pages([readme, docs / "pytorch.md"], results)
            bar.update(task, advance=1, description="checking docs/benchmarks.md")
            wanted = reports.benchmarks_page(results, sorted(plots.glob("*.png")), docs)
        if not page.is_file() or page.read_text() != wanted:
            messages.append("docs/benchmarks.md differs from the records; run `warpsmith report`")
        reference = docs / "api.md"
        if not reference.is_file() or reference.read_text() != api.page():
            messages.append("docs/api.md differs from the docstrings; run `warpsmith report`")
        wrong = _compare_code(checked, enter=False, must=True) if checked else []
        if args.json:
            print_json({"gpu": gpu, "warnings": messages, "problems": wrong})
        else:
            for message in messages:
                write(f"warning: {message}")
            for message in wrong:
                write(message)
            write(f"{len(messages)} warnings, {len(results.records)} operators on record for {gpu}")
        return 1 if wrong or (args.strict and messages) else 0
    written = []
    if not args.no_plots:
        from warpsmith.records import plots as plotting

        if args.plots:
            folder = home / "build" / "plots" / gpu
            names = plotting.of_operators(find_ops(args.plots.split(",")))
        else:
            folder, names = plots, plotting.kept(readme.read_text() if readme.is_file() else "")
        with progress_bar("plots", len(names)) as (bar, task):

            def step(path: Path) -> None:
                bar.update(task, description=path.name)
                bar.advance(task)

            written += plotting.draw(results, folder, names, step)
    if args.plots:
        return _say_written(written, args.json)
    for filled in (readme, docs / "pytorch.md"):
        if filled.is_file():
            filled.write_text(reports.fill(filled.read_text(), results))
            written.append(filled)
    path = home / "benchmarks" / code_lock.NAME
    if results.lock is not None and path.is_file():
        results.lock.with_python().save(path)
        written.append(path)
    docs.mkdir(exist_ok=True)
    page = docs / "benchmarks.md"
    page.write_text(reports.benchmarks_page(results, sorted(plots.glob("*.png")), docs))
    reference = docs / "api.md"
    reference.write_text(api.page())
    written += [page, reference]
    return _say_written(written, args.json)


def _say_written(paths: Sequence[Path], as_json: bool) -> int:
    if as_json:
        print_json([str(path) for path in paths])
    else:
        for path in paths:
            write(str(path))
    return 0


# --- the parser -----------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="warpsmith", description="GPU kernels for PyTorch, from naive to peak."
    )
    root.add_argument("--version", action="version", version=f"warpsmith {__version__}")
    commands = root.add_subparsers(dest="command", metavar="command", required=True)

    def command(name: str, run: Any, summary: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=summary, description=summary)
        sub.set_defaults(run=run)
        sub.add_argument("--json", action="store_true", help="print one JSON document")
        return sub

    command(
        "doctor",
        lookup.doctor,
        "what this machine has, what serves each family, and what to do about it",
    )

    sub = command("list", lookup.list_ops, "operators, their ladders and variants")
    sub.add_argument("op", nargs="?", help="an operator, family or pattern: with every rung")

    sub = command("which", lookup.which, "which kernel serves a call, and why")
    sub.add_argument("op", help="an operator or an alias of one")
    sub.add_argument(
        "--shape", action="append", required=True, help="8192x4096; repeat it for further tensors"
    )
    sub.add_argument(
        "--dtype", help=f"of the first tensor, one of {', '.join(DTYPES)}; f32 where it can be"
    )
    sub.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument that is no tensor: groups=32, window=63,0; repeat it for further ones",
    )
    sub.add_argument(
        "--sm", type=int, help="a compute capability; that of the GPU at hand, or 90 without one"
    )

    commands.add_parser(
        "demo",
        help="a Llama-3-8B decoder layer through warpsmith and through PyTorch",
        add_help=False,
    )

    sub = command("build", build_libraries, "compile libraries ahead of time; needs no GPU")
    sub.add_argument(
        "library",
        nargs="*",
        help="operators, families or libraries (norm/rms_norm), or autograd, the library that "
        "records calls in C++, for the PyTorch at hand, which takes no nvcc; all by default",
    )
    sub.add_argument(
        "--arch", action="append", help="80, 89, 90a, …; repeat it; the release set by default"
    )
    sub.add_argument("--out", default="build/lib", help="folder for the libraries and logs")
    sub.add_argument(
        "--report",
        action="store_true",
        help="fail on spills, local memory, serialised wgmma, host code that calls device code, "
        "and where benchmarks/code.json is not of what was compiled",
    )
    sub.add_argument(
        "--lock",
        action="store_true",
        help="with --report: enter what was compiled into benchmarks/code.json",
    )

    sub = command("verify", verification.verify, "every variant against its reference on this GPU")
    verification.add_arguments(sub)

    sub = command("bench", bench, "time operators on this GPU and write their records")
    sub.add_argument("op", nargs="*", help="operators, families or patterns; all by default")
    sub.add_argument(
        "--variants",
        default="ladder",
        help="ladder (at the cases that show every rung), all, none, or names",
    )
    sub.add_argument("--dtype", help="comma list; the operator's own choice by default")
    sub.add_argument("--cases", help="only cases whose name contains this")
    sub.add_argument(
        "--peers", help="comma list of torch, compile, triton and the operator's peers, or none"
    )
    sub.add_argument(
        "--sustained", action="store_true", help="also time 2 s loops of every implementation"
    )
    sub.add_argument(
        "--seconds", type=float, default=0.25, help="device time per implementation and case"
    )
    host = sub.add_mutually_exclusive_group()
    host.add_argument("--no-overhead", action="store_true", help="leave out the host time per call")
    host.add_argument("--overhead-only", action="store_true", help="only the host time per call")
    left = sub.add_mutually_exclusive_group()
    left.add_argument("--missing", action="store_true", help="only cases that are not on record")
    left.add_argument(
        "--changed",
        action="store_true",
        help="only what is not what it was when it was measured: rows of all else stay",
    )
    sub.add_argument(
        "--warm",
        metavar="JOBS",
        help="first compile what is compared with, in so many processes, or auto",
    )
    sub.add_argument("--limits", action="store_true", help="measure this GPU's limits again")
    sub.add_argument("--out", help="folder for the records; benchmarks/results/<gpu> by default")

    sub = command(
        "inspect", inspect, "registers, memory and occupancy of compiled kernels; SASS and PTX"
    )
    sub.add_argument("op", help="an operator, family or pattern")
    sub.add_argument(
        "--arch", help="80, 89, 90a: read the compiled file instead of asking the driver"
    )
    sub.add_argument(
        "--threads", type=int, help="block size for the occupancy; as launched, or the largest"
    )
    sub.add_argument(
        "--dynamic-smem",
        type=int,
        help="bytes of dynamic shared memory for the occupancy; as launched, or none",
    )
    code = sub.add_mutually_exclusive_group()
    code.add_argument("--sass", action="store_true", help="print the machine code")
    code.add_argument("--ptx", action="store_true", help="print the PTX")

    sub = command(
        "report",
        report,
        "write the README's tables, docs/benchmarks.md and the plots from the records",
    )
    sub.add_argument("--gpu", help="folder under benchmarks/results; the fullest by default")
    sub.add_argument("--check", action="store_true", help="only say what is out of date")
    sub.add_argument(
        "--strict", action="store_true", help="with --check: exit 1 where something is"
    )
    sub.add_argument(
        "--libraries",
        help="with --check: a folder of libraries compiled from these sources; exit 1 where "
        "benchmarks/code.json says otherwise",
    )
    sub.add_argument("--no-plots", action="store_true", help="leave the plots as they are")
    sub.add_argument(
        "--plots",
        help="comma list of operators whose ladder and sizes are plotted, below build/plots, and "
        "nothing else is written; by default the plots that the pages show",
    )
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["demo"]:
            from warpsmith import demo

            return int(demo.main(arguments[1:]) or 0)
        args = parser().parse_args(arguments)
        return int(args.run(args))
    except UsageError as error:
        say(f"warpsmith: {error}")
        return 2
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
