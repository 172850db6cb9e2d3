"""How long the first call of an operator takes on a machine that has compiled nothing, and how
large the library is that it compiles:
`python benchmarks/first_call.py [OPERATOR ...] [--cores 16 4]`.

Every call is made by a process of its own, on so many cores, with an empty cache.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import torch

if find_spec("warpsmith") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels"))

from warpsmith.measure import limits

OPERATORS = ("rms_norm", "add", "softmax", "matmul")
_SOURCES = Path(__file__).resolve().parents[1] / "kernels"


def call(name: str) -> None:
    """Makes the first benchmark's call, and prints its seconds and the library's bytes."""
    from warpsmith.core import catalogue
    from warpsmith.core.catalogue import DTYPES, Inputs
    from warpsmith.native import finding

    op = catalogue.get(name)
    args = op.bench[0].make(Inputs(DTYPES[op.bench_dtypes[0]], "cuda"))
    torch.cuda.synchronize()
    began = time.perf_counter()
    getattr(torch.ops.warpsmith, name)(*args)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    found = finding.status(op.library)
    assert found.path is not None, finding.why_not(op.library)
    print(f"{seconds:.2f} {found.path.stat().st_size} {found.origin}")


def measured(name: str, cores: int) -> tuple[float, int]:
    """Seconds and bytes of a first call on so many cores."""
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, __file__, "--call", name],
            env=os.environ | {"WARPSMITH_CACHE": cache, "PYTHONPATH": str(_SOURCES)},
            preexec_fn=lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores]),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    seconds, size, origin = done.stdout.split()
    if origin != "cache":
        raise SystemExit(f"{name}: a library that was there before: {origin}")
    return float(seconds), int(size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("op", nargs="*", default=OPERATORS)
    parser.add_argument("--cores", type=int, nargs="+", default=(16, 4))
    parser.add_argument("--call", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.call:
        call(options.call)
        return
    limits.need_gpu()
    have = len(os.sched_getaffinity(0))
    for cores in options.cores:
        for name in options.op:
            seconds, size = measured(name, cores)
            on = min(cores, have)
            print(f"{name} on {on} cores: {seconds:.1f} s, {size / 2**20:.2f} MiB", flush=True)


if __name__ == "__main__":
    main()
