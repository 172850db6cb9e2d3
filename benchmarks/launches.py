"""Launches every kernel on a GPU, at all samples and cases but the huge ones, and records those
that take dynamic shared memory: `python benchmarks/launches.py [--out <file>]`.

What is on record of other kernels of a family stays, unless the compiled library has none of that
name. Of parts of a GPU, and of other GPUs than those of sm_90, some rungs are out of reach.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

if find_spec("warpsmith") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels"))

from warpsmith import build, catalogue, dispatch, inspection, launches
from warpsmith.arguments import find_families
from warpsmith.catalogue import DTYPES, Inputs, Op
from warpsmith.console import progress_bar
from warpsmith.launches import Launch


def collect(library: Any, known: dict[str, Launch]) -> set[str]:
    """Enters the last launch of every kernel; returns the kernels' names."""
    names = set()
    for kernel in library.kernels():
        name = inspection.tidy(kernel.name)
        names.add(name)
        if kernel.launch_threads:
            launches.enter(
                known,
                name,
                Launch(kernel.launch_threads, kernel.launch_cluster, kernel.launch_dynamic_smem),
            )
    return names


def launch_cases(op: Op, library: Any, known: dict[str, Launch]) -> None:
    """Every variant at the cases that are timed."""
    sm = dispatch.device_sm(torch.device("cuda"))
    for dtype in op.bench_dtypes:
        for sample in op.bench_for(dtype):
            args = dispatch.normalise(op, sample.make(Inputs(DTYPES[dtype], "cuda")))
            for variant in op.variants:
                if dispatch.refusal(variant, args, sm) is None:
                    # A part of a GPU may hold no cluster of so many blocks.
                    with contextlib.suppress(RuntimeError):
                        getattr(torch.ops.warpsmith, variant.op_name)(*args)
            torch.cuda.synchronize()
            collect(library, known)


def record(family: str) -> dict[str, Launch]:
    if not dispatch.load_family(family):
        raise SystemExit(f"no compiled library of '{family}': {build.why_not(family)}")
    torch.cuda.init()
    library = inspection.module().Library(str(build.library(family)))
    ops = [op for op in catalogue.load().values() if op.family == family]
    known = dict(launches.load().get(family, {}))
    with progress_bar(f"launching {family}", sum(len(op.variants) for op in ops)) as (bar, task):

        def step(variant: str) -> None:
            bar.update(task, advance=1, description=f"launching {variant}")
            collect(library, known)

        for op in ops:
            inspection.launch_all(op, step)
            launch_cases(op, library, known)
    names = collect(library, known)
    return {name: launch for name, launch in known.items() if name in names}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", nargs="*", help="all without")
    parser.add_argument("--out", type=Path, default=launches.RECORD, help="the record")
    options = parser.parse_args(arguments)
    families = dict(launches.load())
    for family in find_families(options.family):
        if family in catalogue.FAMILIES:
            families[family] = record(family)
            launches.save(families, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
