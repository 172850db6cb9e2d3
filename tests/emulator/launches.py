"""What kernels are launched with on every architecture: each call of the catalogue's samples and
benchmarks goes as far as its launches, which start nothing.

    python tests/emulator/launches.py [--check] [FAMILY ...]

writes the dynamic shared memory to `native/launches.json`, for the occupancy that `warpsmith build
--report` and `warpsmith inspect` tell without a GPU; `--check` compares instead. All launches on an
H200 go to `build/launches`, from which `warpsmith build --report` tells what the records speak for.
Rungs written with CuTe are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ctypes

import torch

import emulator
from emulator import checks, gpus
from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import Op, Variant
from warpsmith.native import code_lock, launches, libraries
from warpsmith.native.launches import Launch


def _calls(op: Op, dtype: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Every sample and case: how `code_lock` calls it, and its arguments."""
    samples = [("small" if s.small and not s.huge else "large", s) for s in op.samples_for(dtype)]
    for kind, sample in [*samples, *(("timed", s) for s in op.bench_for(dtype))]:
        args = dispatch.normalise(op, sample.make(op.inputs(dtype, "meta")))
        yield f"{kind} {dtype} {sample.label}", gpus.unwritten(args)


class Notes:
    """The launches that the emulator notes, each line once."""

    def __init__(self) -> None:
        self.lines: dict[str, int] = {}
        self._library = emulator.load(emulator.runtime())
        self._library.emulator_notes.restype = ctypes.c_char_p

    def taken(self) -> list[int]:
        """The numbers of the launches since it was last asked."""
        lines = self._library.emulator_notes().decode().splitlines()
        return [self.lines.setdefault(line, len(self.lines)) for line in lines]


def dry_run(ops: Sequence[Op]) -> dict[int, dict[str, Any]]:
    """All launches of operators whose family is loaded, on each of `gpus.GPUS`: a
    `code_lock.Trace`.
    """
    notes = {sm: Notes() for sm in gpus.GPUS}
    found: dict[int, dict[str, Any]] = {sm: {} for sm in gpus.GPUS}
    with gpus.dry_run():
        for op in ops:
            for sm in gpus.GPUS:
                found[sm][op.name] = {"auto": {}, "rungs": {}}
            kept = [
                v
                for v in op.variants
                if not emulator.is_left_out(op.family, op.source_dir, v.rung.name)
            ]
            for dtype in op.dtypes:
                variants = [v for v in kept if v.dtype == dtype]
                for call, args in _calls(op, dtype):
                    for sm, multiprocessors in gpus.GPUS.items():
                        gpus.use(sm, multiprocessors)
                        _note_call(op, variants, call, args, sm, notes[sm], found[sm][op.name])
    return {sm: {"lines": list(notes[sm].lines), "ops": found[sm]} for sm in gpus.GPUS}


def _note_call(
    op: Op,
    variants: Sequence[Variant],
    call: str,
    args: tuple[Any, ...],
    sm: int,
    notes: Notes,
    to: dict[str, Any],
) -> None:
    """The launches of one call on the current GPU, by the library's choice and by each variant."""
    run = getattr(torch.ops.warpsmith, op.name).rung
    notes.taken()
    to["auto"][call] = (gpus.chosen(op, args), notes.taken())
    for v in variants:
        if dispatch.refusal(v, args, sm) is None:
            with contextlib.suppress(RuntimeError):  # it asks for what is not there
                run(*args, rung=v.rung.name, accumulator=v.accumulator)
                made = to["rungs"].setdefault(v.rung.name, {}).setdefault(v.name, {})
                made[call] = notes.taken()
            notes.taken()


def by_source(noted: dict[str, Any]) -> dict[str, tuple[Launch, ...]]:
    """What of it `launches.json` keeps: by source file."""
    made: dict[str, set[int]] = {}
    for name, of in noted["ops"].items():
        op = catalogue.get(name)
        for rung, variants in of["rungs"].items():
            numbers = made.setdefault(f"{op.family}/{op.source_dir}/{rung}.cu", set())
            numbers.update(
                n for calls in variants.values() for found in calls.values() for n in found
            )
    return {
        source: launches.summed_up(map(_launch, filter(None, map(_told(noted["lines"]), numbers))))
        for source, numbers in made.items()
    }


def _told(lines: Sequence[str]) -> Any:
    return lambda number: None if lines[number].startswith("memset\t") else lines[number]


def _launch(line: str) -> Launch:
    _, _, block, cluster, smem, _, _ = line.split("\t")

    def count(size: str) -> int:
        x, y, z = map(int, size.split(","))
        return x * y * z

    return Launch(count(block), count(cluster), int(smem))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", nargs="*", help="all by default")
    parser.add_argument("--check", action="store_true", help="compare with the record")
    options = parser.parse_args()
    if unknown := [name for name in options.family if name not in catalogue.FAMILIES]:
        parser.error(f"expected families ({', '.join(catalogue.FAMILIES)}), got {unknown[0]}")
    record = {str(sm): dict(launches.load().get(str(sm), {})) for sm in gpus.GPUS}
    differing = []
    for family in options.family or catalogue.FAMILIES:
        ops = [op for op in catalogue.load().values() if op.family == family]
        for name in libraries.of_family(family):
            checks.load(name)
        for sm, noted in dry_run(ops).items():
            files = record[str(sm)]
            before = {
                name: files.pop(name) for name in list(files) if name.startswith(f"{family}/")
            }
            found = {name: kinds for name, kinds in by_source(noted).items() if kinds}
            differing += [] if found == before else [f"{family} on sm_{sm}"]
            files |= found
            print(f"{family}, sm_{sm}: {len(noted['lines'])} launches", flush=True)
            if sm == code_lock.SM:
                code_lock.save_traces(family, noted)
    if not options.check:
        launches.save(record)
        return 0
    if differing:
        print(f"{launches.RECORD.name} differs for {', '.join(differing)}: run {__file__}")
    return 1 if differing else 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.exit(status)
