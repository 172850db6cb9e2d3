"""What the records speak for: `benchmarks/code.json`, the digests of every operator and rung.

    ops     <op>          key     tokens of the CUDA sources: while they are these, the rest holds
                          python  the spec and its twin (`python_code`)
                          cases   the calls that a verification makes
                          auto    which rung each call gets, and what it launches beyond that rung
                          timed   of each timed call, what it launches
    rungs   <op>/<rung>   sass    machine code of its kernels for `arch` (`machine_code`), and of
                                  those that it launches of files without a rung
                          host    what it launches, of every small sample and timed call
                          timed   of each timed call, variant by variant

A launch is the kernel (by its digest), grid, block, cluster, dynamic shared memory, whether it
starts early, and its arguments without addresses; dry runs of the emulator note them
(`tests/emulator/launches.py`). Rungs written with CuTe, which the emulator does not run, have
tokens of their sources in its place. `-` stands for a call that the rung does not take.

`warpsmith build --arch 90a --report --lock` writes the file, and `--report` compares it: both need
a compiler, and the notes of the dry runs. What reads it needs neither. `warpsmith report` enters
`python` and `cases`.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import Op
from warpsmith.core.json_files import read_json, write_json
from warpsmith.native import csrc, inspection, libraries, machine_code, python_code, toolchain

#: The architecture of the cards that have records, and what the dry runs take such a card for.
ARCH, SM, MULTIPROCESSORS = "90a", 90, 132
#: A call that a rung does not take, or a library hands back.
NOT_TAKEN = "-"

#: The file.
NAME = "code.json"
#: What to do about it.
_HOW = f"`warpsmith build OPERATOR --arch {ARCH} --report --lock` enters it"

#: Kernel -> digests: of one name there may be several, in several files.
Kernels = Mapping[str, Sequence[str]]
Row = dict[str, str]


class LockError(RuntimeError):
    """What is compiled and what was launched do not fit together; the message says what to do."""


def _digest(*texts: str, length: int = 12) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:length]


def default_path() -> Path | None:
    """Where the file is of the checkout that this package runs from, or else of the one that is
    the working directory; None without a checkout.
    """
    home = csrc.home()
    is_checkout = (home / "benchmarks").is_dir() and (home / "csrc").is_dir()
    return home / "benchmarks" / NAME if is_checkout else None


def traces_path(family: str) -> Path:
    """Where the dry runs leave what they noted of a family."""
    return csrc.home() / "build" / "launches" / f"{family}.json"


@functools.cache
def sources_key(family: str, source_dir: str) -> str:
    """Tokens of the CUDA sources in a folder, of all that they include, and of what every library
    has; and the flags of the compiler.
    """
    folder = csrc.CSRC / family / source_dir
    own = [p for p in csrc.code(folder) if p.parent in (folder, folder / "parts")]
    host = sorted((csrc.CSRC / "host").glob("*.cpp"))
    files = csrc.with_includes([*own, *host])
    return csrc.digest(files, *toolchain.CXX_FLAGS, *libraries.nvcc_flags())[:12]


def _rung_source(op: Op, rung: str) -> Path:
    return csrc.CSRC / op.family / op.source_dir / f"{rung}.cu"


def _is_cute(rung: str) -> bool:
    return rung.startswith("cute_")


# --- making entries -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trace:
    """What the dry runs noted of an operator."""

    #: Launches, a line each: kernel, and what it was launched with, between tabs.
    lines: Sequence[str]
    #: "small bf16 3x16" (small, large, timed) -> the rung that served, and its launches.
    auto: Mapping[str, tuple[str, Sequence[int]]]
    #: Rung -> variant -> call -> its launches.
    rungs: Mapping[str, Mapping[str, Mapping[str, Sequence[int]]]]

    @staticmethod
    def of(op: Op, noted: Mapping[str, Any]) -> Trace:
        mine = noted["ops"][op.name]
        return Trace(noted["lines"], mine["auto"], mine["rungs"])

    def kernels(self, rung: str) -> set[str]:
        """The names, tidied, of what a rung launches in all its calls."""
        calls = (made for variant in self.rungs.get(rung, {}).values() for made in variant.values())
        numbers = {number for call in calls for number in call}
        return {_tidied(self.lines[number].partition("\t")[0]) for number in numbers}


@functools.cache
def _tidied(name: str) -> str:
    return inspection.tidy(name)


def _launches(trace: Trace, numbers: Sequence[int], kernels: Kernels) -> str:
    """Launches with digests in place of names."""
    found = []
    for number in numbers:
        name, _, rest = trace.lines[number].partition("\t")
        if name == "memset":
            found.append(trace.lines[number])
            continue
        digests = kernels.get(_tidied(name))
        if not digests:
            raise LockError(
                f"no compiled kernel is called {_tidied(name)}: are both of these sources?"
            )
        found.append(f"{' '.join(digests)}\t{rest}")
    return "\n".join(found)


def _is_recorded(call: str) -> bool:
    return not call.startswith("large ")


def rung_row(op: Op, rung: str, trace: Trace, mine: Kernels, others: Kernels) -> Row:
    """The digests of a rung.

    Args:
        op, rung: whose.
        trace: of the operator.
        mine: its kernels.
        others: all of the library, should it launch one of another file.
    """
    kernels = {**others, **mine}
    sass = machine_code.combined(digest for digests in mine.values() for digest in digests)
    noted = trace.rungs.get(rung, {})
    calls = sorted(
        f"{variant}\n{_launches(trace, numbers, kernels)}"
        for variant, made in noted.items()
        for call, numbers in made.items()
        if _is_recorded(call)
    )
    timed = []
    for variant in (v for v in op.variants if v.rung.name == rung):
        made = noted.get(variant.name, {})
        for dtype, sample, described in python_code.timed(op):
            if dtype == variant.dtype:
                numbers = made.get(f"timed {dtype} {sample.label}")
                timed.append(
                    NOT_TAKEN
                    if numbers is None
                    else _digest(described, _launches(trace, numbers, kernels), length=6)
                )
    return {"sass": sass, "host": _digest(*calls), "timed": " ".join(timed)}


def cute_row(op: Op, rung: str, sass: str) -> Row:
    """The same of a rung that the emulator does not run."""
    folder = csrc.CSRC / op.family / op.source_dir
    files = csrc.with_includes([_rung_source(op, rung), *sorted(folder.glob("*.cpp"))])
    host = csrc.digest(files)[:12]
    timed = []
    for variant in (v for v in op.variants if v.rung.name == rung):
        for dtype, sample, described in python_code.timed(op):
            if dtype == variant.dtype:
                made = sample.make(op.inputs(dtype, "meta"))
                taken = variant.rung.min_sm <= SM and _takes(variant, dispatch.normalise(op, made))
                timed.append(_digest(described, sass, host, length=6) if taken else NOT_TAKEN)
    return {"sass": sass, "host": host, "timed": " ".join(timed)}


def _takes(variant: catalogue.Variant, args: tuple[Any, ...]) -> bool:
    return dispatch.refusal(variant, args, SM) is None


def op_row(op: Op, trace: Trace, kernels: Mapping[str, Kernels], others: Kernels) -> Row:
    """The digests of an operator.

    Args:
        op: whose.
        trace: of it.
        kernels: of each of its rungs.
        others: all of the library.
    """
    choices = []
    for call, (rung, numbers) in sorted(trace.auto.items()):
        if _is_recorded(call):
            named = (made.get(call) for made in trace.rungs.get(rung, {}).values())
            beyond = (
                ""
                if list(numbers) in [list(n) for n in named if n is not None]
                else "\n".join(trace.lines[n].partition("\t")[2] for n in numbers)
            )
            choices.append(f"{call}\t{rung}\t{beyond}")
    timed = []
    for dtype, sample, described in python_code.timed(op):
        rung, numbers = trace.auto[f"timed {dtype} {sample.label}"]
        mine = {**others, **kernels.get(rung, {})}
        served = rung in kernels
        launched = _launches(trace, numbers, mine) if served else ""
        timed.append(_digest(described, launched, length=6) if served else NOT_TAKEN)
    return {
        "key": sources_key(op.family, op.source_dir),
        "python": python_code.of_spec(op),
        "cases": python_code.of_cases(op),
        "auto": _digest(*choices),
        "timed": " ".join(timed),
    }


def entries(
    op: Op,
    trace: Trace,
    compiled: Mapping[tuple[str, str], Sequence[tuple[str, str]]],
    known: Mapping[str, Row] | None = None,
) -> tuple[Row, dict[str, Row]]:
    """The rows of an operator and of its rungs.

    Args:
        op: whose.
        trace: what the dry runs noted of it.
        compiled: `inspection.code` of its library.
        known: rows of rungs as they were: a CuTe rung keeps its machine code where it was built
            without CUTLASS.
    """
    every: dict[str, list[str]] = {}
    for kernels in compiled.values():
        for name, digest in kernels:
            if digest not in every.setdefault(name, []):
                every[name].append(digest)
    shared = compiled.get((op.name, ""), ())
    mine: dict[str, dict[str, list[str]]] = {}
    for rung in op.ladder:
        launched = trace.kernels(rung.name)
        used = [kernel for kernel in shared if kernel[0] in launched]
        for name, digest in (*compiled.get((op.name, rung.name), ()), *used):
            mine.setdefault(rung.name, {}).setdefault(name, []).append(digest)
    rows = {}
    for rung in op.ladder:
        if _is_cute(rung.name):
            of = [digest for digests in mine.get(rung.name, {}).values() for digest in digests]
            before = (known or {}).get(f"{op.name}/{rung.name}", {}).get("sass", NOT_TAKEN)
            rows[rung.name] = cute_row(op, rung.name, machine_code.combined(of) if of else before)
        else:
            rows[rung.name] = rung_row(op, rung.name, trace, mine.get(rung.name, {}), every)
    return op_row(op, trace, mine, every), rows


# --- the file -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lock:
    """The file's content."""

    toolkit: str
    arch: str
    multiprocessors: int
    ops: Mapping[str, Row]
    rungs: Mapping[str, Row]

    @staticmethod
    def load(path: Path | None = None) -> Lock | None:
        """None where there is no such file."""
        path = path or default_path()
        content = read_json(path) if path else None
        return Lock(**content) if content else None

    def save(self, path: Path) -> None:
        """A line for each operator and for each rung, sorted."""
        write_json(
            path,
            {
                "toolkit": self.toolkit,
                "arch": self.arch,
                "multiprocessors": self.multiprocessors,
                "ops": dict(sorted(self.ops.items())),
                "rungs": dict(sorted(self.rungs.items())),
            },
        )

    def with_op(self, op: Op, row: Row, rungs: Mapping[str, Row]) -> Lock:
        """The same with an operator's rows in place of what it had."""
        others = {k: v for k, v in self.rungs.items() if k.rpartition("/")[0] != op.name}
        mine = {f"{op.name}/{rung}": entry for rung, entry in rungs.items()}
        return Lock(
            self.toolkit,
            self.arch,
            self.multiprocessors,
            {**self.ops, op.name: row},
            others | mine,
        )

    def with_python(self) -> Lock:
        """The same with the Python of every operator that it has, as it is now."""
        known = catalogue.load()
        fresh = {
            name: row
            | {
                "python": python_code.of_spec(known[name]),
                "cases": python_code.of_cases(known[name]),
            }
            for name, row in self.ops.items()
            if name in known
        }
        return replace(self, ops=fresh)

    def knows(self, op: Op) -> bool:
        """Whether it was made of the CUDA sources as they are."""
        row = self.ops.get(op.name)
        return row is not None and row["key"] == sources_key(op.family, op.source_dir)

    def rung(self, op: Op, rung: str) -> str:
        """What a verification of a rung speaks for; empty where nothing is known."""
        row = self.rungs.get(f"{op.name}/{rung}")
        return _digest(row["sass"], row["host"], length=8) if row else ""

    def verification(self, op: Op) -> dict[str, Any]:
        """What a verification of an operator speaks for."""
        return {
            "python": python_code.of_spec(op),
            "cases": python_code.of_cases(op),
            "auto": self.ops.get(op.name, {}).get("auto", ""),
            "rungs": {rung.name: self.rung(op, rung.name) for rung in op.ladder},
        }

    def row(self, op: Op, case: str, impl: str) -> str | None:
        """What a row of a benchmark speaks for: a timed call of an implementation. Those that are
        not ours go by the call; what they are is in the environment.

        Args:
            op: the operator.
            case: "bf16 4096x4096".
            impl: "auto", a variant, "triton", or a peer.

        Returns:
            None for what is no timed call, or not known.
        """
        if case not in (calls := _calls(op)):
            return None
        place, call = calls[case]
        token: str | None = None
        if impl == "auto":
            token = self._token(self.ops.get(op.name), place)
            impl = "triton" if token == NOT_TAKEN else impl
        elif (impl, case) in (places := _places(op)):
            rung, place = places[impl, case]
            token = self._token(self.rungs.get(f"{op.name}/{rung}"), place)
        elif all(variant.name != impl for variant in op.variants):
            token = _digest(call, length=6)
        if impl == "triton":
            token = _digest(call, python_code.of_twin(op), length=6)
        return token

    @staticmethod
    def _token(row: Mapping[str, str] | None, place: int) -> str | None:
        tokens = row["timed"].split() if row else []
        return tokens[place] if place < len(tokens) else None


@functools.cache
def _calls(op: Op) -> dict[str, tuple[int, str]]:
    """Timed calls by case: where they stand in the row of the operator, and what they are."""
    timed = enumerate(python_code.timed(op))
    return {f"{dtype} {sample.label}": (i, said) for i, (dtype, sample, said) in timed}


@functools.cache
def _places(op: Op) -> dict[tuple[str, str], tuple[str, int]]:
    """Timed calls by variant and case: the rung, and where they stand in its row."""
    found: dict[tuple[str, str], tuple[str, int]] = {}
    for rung in op.ladder:
        place = 0
        for variant in (v for v in op.variants if v.rung is rung):
            for dtype, sample, _ in python_code.timed(op):
                if dtype == variant.dtype:
                    found[variant.name, f"{dtype} {sample.label}"] = (rung.name, place)
                    place += 1
    return found


def save_traces(family: str, noted: Mapping[str, Any]) -> None:
    """Keeps what the dry runs noted of a family, for `made_of`."""
    keys = {
        op.name: sources_key(op.family, op.source_dir)
        for op in catalogue.load().values()
        if op.family == family
    }
    path = traces_path(family)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**noted, "keys": keys}))


def made_of(files: Iterable[Path], before: Lock | None) -> Lock:
    """The lock for libraries that were compiled here, with what was known of all other operators.

    Raises:
        LockError: the dry runs of a family are missing, or of other sources.
    """
    compiled: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for path in files:
        for key, kernels in inspection.code(path, ARCH).items():
            compiled.setdefault(key, []).extend(kernels)
    lock = before or Lock("", ARCH, MULTIPROCESSORS, {}, {})
    ops = catalogue.load()
    lock = replace(
        lock,
        toolkit=toolchain.nvcc_version(),
        ops={name: row for name, row in lock.ops.items() if name in ops},
        rungs={name: row for name, row in lock.rungs.items() if name.rpartition("/")[0] in ops},
    )
    noted: dict[str, Any] = {}
    for op in (ops[name] for name in dict.fromkeys(name for name, _ in compiled)):
        if op.family not in noted:
            noted[op.family] = read_json(traces_path(op.family)) or {"keys": {}}
        if noted[op.family]["keys"].get(op.name) != sources_key(op.family, op.source_dir):
            raise LockError(
                f"{op.name}: no dry runs of these sources; run "
                f"`python tests/emulator/launches.py {op.family}` first"
            )
        lock = lock.with_op(op, *entries(op, Trace.of(op, noted[op.family]), compiled, lock.rungs))
    return lock


def differences(known: Lock | None, made: Lock) -> list[str]:
    """What a lock says otherwise than one that was made of libraries, in words. Of another
    compiler's machine code nothing can be said.
    """
    if known is None:
        return [f"there is no benchmarks/code.json; {_HOW}"]
    if known.toolkit != made.toolkit:
        return []
    found = []
    for name, row in made.ops.items():
        before = known.ops.get(name, {})
        parts = [key for key in row if key != "timed" and row[key] != before.get(key)]
        rungs = [
            rung.rpartition("/")[2]
            for rung, entry in made.rungs.items()
            if rung.rpartition("/")[0] == name and entry != known.rungs.get(rung)
        ]
        if rungs or parts or row != before:
            changed = ", ".join([*rungs, *parts]) or "timed"
            found.append(f"benchmarks/code.json is not of this {name} ({changed}); {_HOW}")
    return found
