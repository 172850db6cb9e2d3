"""Which dynamic shared memory kernels are launched with on every architecture: each call of the
catalogue's samples and benchmarks goes as far as its launches, which start nothing.

    python tests/emulator/launches.py [--check] [FAMILY ...]

writes it to `warpsmith/launches.json`, for the occupancy that `warpsmith build --report` and
`warpsmith inspect` tell without a GPU; `--check` compares instead. Rungs written with CuTe are left
out.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import emulator
from emulator import checks
from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import Op
from warpsmith.native import inspection, launches, libraries
from warpsmith.native.launches import Launch

#: Compute capability -> multiprocessors, of an A100, an RTX 4090 and an H200.
GPUS = {80: 108, 89: 128, 90: 132}


class Info(ctypes.Structure):
    """`WarpsmithKernelInfo` of host/inspect.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("name_length", ctypes.c_int),
        *((field, ctypes.c_int) for field in ("registers", "static_smem", "dynamic_smem_limit")),
        ("local_bytes", ctypes.c_int),
        ("max_threads", ctypes.c_int),
        ("source", ctypes.c_char_p),
        ("source_length", ctypes.c_int),
        *((field, ctypes.c_int) for field in ("threads", "cluster", "dynamic_smem")),
    )


def _unwritten(a: Any) -> Any:
    """A tensor like one without data. Its memory is never touched, however large it is."""
    if not isinstance(a, torch.Tensor):
        return a
    last = sum((n - 1) * stride for n, stride in zip(a.shape, a.stride(), strict=True))
    count = a.storage_offset() + last + 1 if a.numel() else 0
    return torch.empty(count, dtype=a.dtype).as_strided(a.shape, a.stride(), a.storage_offset())


def _calls(op: Op, dtype: str) -> Iterator[tuple[Any, ...]]:
    """The arguments of every sample and case."""
    for sample in (*op.samples_for(dtype), *op.bench_for(dtype)):
        args = dispatch.normalise(op, sample.make(op.inputs(dtype, "meta")))
        yield tuple(_unwritten(a) for a in args)


def dry_run(family: str, sm: int) -> dict[str, Launch]:
    """In a process of its own: what the GPU is, is asked once."""
    known: dict[str, Launch] = {}
    loaded = []
    for name in libraries.of_family(family):
        checks.load(name)
        loaded.append(ctypes.CDLL(str(emulator.emulated(name))))
    for op in (op for op in catalogue.load().values() if op.family == family):
        rung = getattr(torch.ops.warpsmith, op.name).rung
        variants = [
            v for v in op.variants if not emulator.is_left_out(family, op.source_dir, v.rung.name)
        ]
        for dtype in op.dtypes:
            mine = [v for v in variants if v.dtype == dtype]
            for args in _calls(op, dtype) if mine else ():
                for v in mine:
                    if dispatch.refusal(v, args, sm) is None:
                        with contextlib.suppress(RuntimeError):  # it asks for what is not there
                            rung(*args, rung=v.rung.name, accumulator=v.accumulator)
        info = Info()
        kernels = ((each, i) for each in loaded for i in range(each.warpsmith_kernel_count()))
        for library, index in kernels:
            library.warpsmith_kernel_info(index, ctypes.byref(info))
            if info.dynamic_smem:
                name = inspection.tidy(info.name[: info.name_length].decode())
                launches.enter(known, name, Launch(info.threads, info.cluster, info.dynamic_smem))
    return known


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", nargs="*", help="all by default")
    parser.add_argument("--check", action="store_true", help="compare with the record")
    parser.add_argument("--sm", type=int, choices=GPUS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sm:
        found = dry_run(options.family[0], options.sm)
        print(json.dumps({name: list(astuple(launch)) for name, launch in found.items()}))
        return 0
    record = dict(launches.load())
    differing = []
    for family in options.family or catalogue.FAMILIES:
        for name in libraries.of_family(family):
            emulator.emulated(name)
        found = {}
        for sm, multiprocessors in GPUS.items():
            environment = {
                "WARPSMITH_EMULATOR_DRY": "1",
                "WARPSMITH_EMULATOR_SM": str(sm),
                "WARPSMITH_EMULATOR_SMS": str(multiprocessors),
            }
            command = [sys.executable, __file__, family, "--sm", str(sm)]
            done = subprocess.run(
                command, env=os.environ | environment, stdout=subprocess.PIPE, check=True
            )
            answer = json.loads(done.stdout.splitlines()[-1])
            found[str(sm)] = {name: Launch(*values) for name, values in answer.items()}
            print(f"{family}, sm_{sm}: {len(answer)} kernels", flush=True)
        if found != record.get(family, {}):
            differing.append(family)
        record[family] = found
    if not options.check:
        launches.save(record)
        return 0
    if differing:
        print(f"{launches.RECORD.name} differs for {', '.join(differing)}: run {__file__}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
