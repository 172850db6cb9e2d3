"""Verifies, benchmarks and sanitises every operator, side by side on all GPUs of this machine:
`python benchmarks/everything.py verify bench sanitize overhead --work <folder>`.

Each task (some operators) is a process of `warpsmith verify` or `warpsmith bench` with
a GPU of its own; its records go to a folder of its own under `--work`. What is asked for first is
done first, and a run that `--limit` ends goes on where it stopped when it is started again: with
the operator at which a verification was, with the case at which a benchmark was. `collect` enters
what is fresh into benchmarks/results:

    python benchmarks/everything.py collect --work <folder>

Asked for nothing but `verify`, tasks see a second GPU, to check that it is served as well; asked
for nothing but `sanitize`, one task shares its processes out among all GPUs.
Host times per call (`overhead`) are measured when all else is done, as they need a quiet host.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

if find_spec("warpsmith") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels"))

from warpsmith.core import catalogue, json_files
from warpsmith.measure import bench, limits, record
from warpsmith.native import finding, libraries, machine
from warpsmith.native.code_lock import Lock
from warpsmith.proof import pool
from warpsmith.proof.verify import sanitizer, units
from warpsmith.records import freshness

KINDS = ("verify", "bench", "sanitize", "overhead")
#: Records that scripts beside this one write, and the family whose operators they measure.
SCRIPTS = {
    "fused_linear_cross_entropy": "loss",
    "mma_peak": "gemm",
    "attention_memory": "attention",
    "models": "attention",
    "models_attention": "attention",
}
#: Scripts that write more than one record: by record which one, and what it is given for that.
ARGUMENTS = {"models_attention": ("models", "--attention")}
#: Seconds that have to be left where a task is started; what is done of it when time is up is on
#: record, operator by operator.
SHORTEST = {"verify": 60.0, "sanitize": 60.0, "bench": 30.0, "overhead": 30.0}
#: Seconds after which a silent verification and a process of compute-sanitizer are stopped.
SILENT, LONGEST_EXAMINED = 240, 500
#: Tasks a kind is cut into, for each GPU: few, as starting them costs time, and of benchmarks each
#: compiles all that it compares with before it measures anything.
CUTS = {"verify": 1, "bench": 2, "sanitize": 1, "overhead": 1}
#: `warpsmith verify` runs the tests of the device vocabulary only when it is given all operators.
SELF_TESTS = """
import sys
from pathlib import Path
from warpsmith.proof import verify
from warpsmith.records import freshness
results = verify.self_tests()
freshness.record_verification(Path(sys.argv[1]) / "verify.json", results)
failed = [result for result in results if not result.ok]
for result in failed:
    print(f"FAILED {result.op} {result.label}: {result.detail}")
print(f"{len(results)} self tests, {len(failed)} failed")
sys.exit(1 if failed else 0)
"""


@dataclass(frozen=True)
class Task:
    name: str
    command: tuple[str, ...]
    kind: str
    ops: tuple[str, ...] = ()  # the command's last words

    def left(self, folder: Path) -> tuple[str, ...]:
        """The command for the operators of which an earlier start of it left no record; empty where
        it left all.
        """
        todo = outdated(self.kind, folder, self.ops) if self.ops else []
        if todo:  # what ended an earlier start comes last
            first = starts(folder) % len(todo)
            todo = [*todo[first:], *todo[:first]]
        return () if self.ops and not todo else (*self.command, *todo)

    def finished(self, folder: Path, status: int) -> bool:
        """Whether a process that ended so did all there is to do. 1 is also a verification's word
        for failed checks, which are on record then.
        """
        if status != 1 or self.kind not in ("verify", "sanitize"):
            return status == 0
        known = json_files.read_json(checks_record(self.kind, folder)) or {}
        failed = {name for name, entry in known.get("ops", {}).items() if found_fault(entry)}
        if not self.ops:
            return "selftest" in failed
        return failed.issuperset(outdated(self.kind, folder, self.ops))


def checks_record(kind: str, folder: Path) -> Path:
    """Where verifications, or what compute-sanitizer found, stand in a folder."""
    return folder / "verify.json" if kind == "verify" else freshness.sanitizer_record(folder)


def found_fault(entry: dict[str, Any]) -> bool:
    """Whether an entry of either record tells of a failure."""
    return bool(entry.get("failed")) or not all(t["ok"] for t in entry.get("tools", {}).values())


def starts(folder: Path) -> int:
    """How often a task was started before."""
    path = folder / "starts"
    return int(path.read_text()) if path.exists() else 0


def _cost(kind: str, op: catalogue.Op) -> float:
    """An estimate of what an operator costs, in units of the kind: checks, calls or rows."""
    if kind == "verify":
        return units.cost(op)
    if kind == "sanitize":
        return sum(sanitizer.cost(op, dtype) for dtype in op.dtypes)
    return sum(
        len(bench.bench_cases(op, dtype, bench.Plan())) + sum(v.dtype == dtype for v in op.variants)
        for dtype in op.dtypes
    )


def outdated(kind: str, folder: Path, names: Sequence[str] = ()) -> list[str]:
    """Operators (of `names`, or of all) whose record of a kind is missing, not of what they are
    now, or of a failure.
    """
    lock = Lock.load()
    examined = (json_files.read_json(freshness.sanitizer_record(folder)) or {}).get("ops", {})
    found = []
    for name in names or catalogue.load():
        op = catalogue.get(name)
        known = record.load(folder, op)
        if kind == "verify":
            done = not freshness.is_changed(folder / "verify.json", name, lock)
        elif kind == "sanitize":
            entry = examined.get(name, {})
            done = not found_fault(entry) and freshness.is_examined(name, entry, lock)
        elif kind == "bench":
            done = not bench.missing_cases(known, op, lock)
        else:
            done = bool(known and known.get("overhead"))
        if not done:
            found.append(name)
    return found


def tasks(
    kinds: Sequence[str],
    gpus: int,
    seconds: float,
    older_than: Path | None = None,
    families: Sequence[str] = (),
) -> list[Task]:
    """Costly ones first within a kind.

    Args:
        kinds: of `KINDS`, in the order in which they are to be done.
        gpus: how many there are.
        seconds: of device time for each implementation and case.
        older_than: a GPU's folder of records; what they have of these sources is left out.
        families: of `libraries.FAMILIES`, all without any; others are left out.
    """
    families = families or libraries.FAMILIES
    warpsmith = (sys.executable, "-m", "warpsmith")
    jobs = str(max(1, machine.cores() // gpus - 1))
    found = []
    for kind in kinds:
        verify, measure = (*warpsmith, "verify", "--jobs", jobs), (*warpsmith, "bench", "--changed")
        commands = {
            "verify": (*verify, "--changed", "--timeout", str(SILENT)),
            "bench": (*measure, "--no-overhead", "--warm", jobs, "--seconds", str(seconds)),
            "sanitize": (*verify, "--sanitize", "--changed", "--timeout", str(LONGEST_EXAMINED)),
            "overhead": (*measure, "--overhead-only"),
        }
        names: Iterable[str] = catalogue.load()
        if older_than is not None:
            names = outdated(kind, older_than.parent if kind == "sanitize" else older_than)
        ops = [op for op in map(catalogue.get, names) if op.family in families]
        costs = {op.name: _cost(kind, op) for op in ops}
        piles = pool.deal(costs, CUTS[kind] * gpus)
        for pile in sorted(piles, key=lambda pile: -sum(costs[name] for name in pile)):
            name = f"{kind}-{pile[0]}-{zlib.crc32(' '.join(pile).encode()):08x}"
            found.append(Task(name, (*commands[kind], "--out", "{out}"), kind, tuple(pile)))
        if kind == "verify" and "selftest" in families:
            found.append(Task("self-tests", (sys.executable, "-c", SELF_TESTS, "{out}"), kind))
        if kind == "bench":
            here = Path(__file__).resolve().parent
            found += [
                Task(name, (*script, "--seconds", str(4 * seconds), "--out", "{out}"), kind)
                for name, family in SCRIPTS.items()
                if family in families
                for file, *more in [ARGUMENTS.get(name, (name,))]
                for script in [(sys.executable, str(here / f"{file}.py"), *more)]
            ]
    return found


@dataclass
class Queue:
    """What is to do, taken from by a thread per GPU."""

    waiting: list[Task]
    work: Path
    ends: float
    gpus: int = 1
    seen: int = 1  # GPUs that a task sees
    lock: threading.Lock = field(default_factory=threading.Lock)
    running: int = 0
    quiet: bool = False  # whether what runs are host times
    failed: int = 0  # tasks
    visible: tuple[str, ...] = ()  # names of the GPUs, where the caller chose some

    def take(self) -> Task | None:
        """The first task for which there is time; host times only when nothing else runs."""
        while True:
            with self.lock:
                left = self.ends - time.monotonic()
                task = next((t for t in self.waiting if SHORTEST[t.kind] <= left), None)
                if task is None:
                    return None
                if task.kind != "overhead" or self.running == 0 or self.quiet:
                    self.running += 1
                    self.quiet = task.kind == "overhead"
                    self.waiting.remove(task)
                    return task
            time.sleep(0.2)

    def run(self, task: Task, gpu: int) -> bool:
        """Whether it went well, as far as time allowed."""
        folder = self.work / task.name
        folder.mkdir(parents=True, exist_ok=True)
        known = limits.load(self.work)
        if known is not None:
            json_files.write_json(folder / "limits.json", known)
        seen = [(gpu + i) % self.gpus for i in range(min(self.seen, self.gpus))]
        names = [self.visible[i] if self.visible else str(i) for i in seen]
        environment = pool.environment(CUDA_VISIBLE_DEVICES=",".join(names))
        command = [word.replace("{out}", str(folder)) for word in task.left(folder)]
        if not command:
            (folder / "done").write_text("0")
            return True
        (folder / "starts").write_text(str(starts(folder) + 1))
        began = time.monotonic()
        with (self.work / f"{task.name}.log").open("a") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
            try:
                code = process.wait(timeout=max(1.0, self.ends - began))
                status = str(code)
                if task.finished(folder, code):
                    (folder / "done").write_text(status)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                status = "out of time"
        lines = (self.work / f"{task.name}.log").read_text().splitlines()
        with self.lock:
            took = time.monotonic() - began
            print(f"{took:6.0f} s  {task.name}: {status}; {lines[-1] if lines else ''}", flush=True)
            for line in [line for line in lines if line.startswith("FAILED")][:10]:
                print(f"          {line[:300]}", flush=True)
        return status in ("0", "out of time")

    def serve(self, gpu: int) -> None:
        while (task := self.take()) is not None:
            well = False
            try:
                well = self.run(task, gpu)
            except Exception as error:  # the other tasks are still done
                print(f"         {task.name}: {error!r}", flush=True)
            with self.lock:
                self.running -= 1
                self.failed += not well


def go_on_from(results: Path, work: Path, waiting: Sequence[Task]) -> None:
    """Gives tasks what stands on record of the rest of their operators: fresh rows beside which
    others are missing, rungs that did not change.
    """
    lock = Lock.load()
    for task in waiting:
        if task.ops and task.kind in ("verify", "sanitize"):
            folder = results.parent if task.kind == "sanitize" else results
            known = json_files.read_json(checks_record(task.kind, folder)) or {}
            mine = {name: entry for name, entry in known.get("ops", {}).items() if name in task.ops}
            entries = {name: entry for name, entry in mine.items() if not found_fault(entry)}
            path = checks_record(task.kind, work / task.name)
            if entries and not path.exists():
                json_files.write_json(path, {"ops": entries})
        for name in task.ops if task.kind == "bench" else ():
            op = catalogue.get(name)
            measured = record.load(results, op)
            path = record.record_path(work / task.name, name)
            if record.measured_cases(measured, op, lock) and not path.exists():
                json_files.write_json(path, measured)


def check_libraries() -> None:
    """What a library of other sources does would be recorded under the name of these.

    Raises:
        SystemExit: with the libraries that were not built from this checkout.
    """
    old = [
        status.library
        for status in map(finding.status, libraries.all_libraries())
        if status.path is not None and not finding.is_current(status.path.parent, status.library)
    ]
    if old:
        raise SystemExit(f"libraries that were built from other sources: {', '.join(old)}")


def _enter(path: Path, found: dict[str, Any], is_fresh: Callable[[str, Any], bool]) -> int:
    """Adds the fresh entries of a record of verification, or of compute-sanitizer, to `path`."""
    ours = json_files.read_json(path) or {"ops": {}}
    fresh = {name: e for name, e in found.get("ops", {}).items() if is_fresh(name, e)}
    json_files.write_json(path, ours | found | {"ops": ours["ops"] | fresh})
    return len(fresh)


def collect(work: Path) -> None:
    """Enters the fresh records of all tasks into those of this checkout; of two the later one."""
    lock = Lock.load()
    ops = catalogue.load()
    root = limits.results_root()
    known = limits.load(work)
    if known is not None:
        folder = root / limits.folder_name(known["device"]["name"])
        json_files.write_json(folder / "limits.json", known)
    entered = 0
    for path in sorted(work.glob("*/*.json"), key=lambda path: path.stat().st_mtime):
        found = json_files.read_json(path) or {}
        if path.name == freshness.sanitizer_record(root).name:
            entered += _enter(
                root / path.name, found, lambda name, e: freshness.is_examined(name, e, lock)
            )
        elif known is None:
            raise SystemExit(f"no limits.json in {work}: nothing was measured there")
        elif path.stem in ops:
            op = ops[path.stem]
            rows = [r for r in found["rows"] if record.is_fresh(r, found, op, lock)]
            old = json_files.read_json(folder / path.name)
            if rows or found.get("overhead"):
                fresh = {**found, "rows": rows}
                json_files.write_json(folder / path.name, record.merge(old, fresh, op))
                entered += 1
        elif path.stem in SCRIPTS:
            json_files.write_json(folder / path.name, found)
            entered += 1
        elif path.stem == "verify":
            entered += _enter(
                folder / path.name,
                found,
                lambda name, e: not freshness.changed(name, {**e, "failed": []}, lock),
            )
    print(f"{entered} entries into {root}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="+", choices=(*KINDS, "collect"))
    parser.add_argument("--work", type=Path, required=True, help="folder of logs and new records")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds in all")
    parser.add_argument("--seconds", type=float, default=0.25, help="per implementation and case")
    parser.add_argument(
        "--stale", action="store_true", help="only what benchmarks/results has not of these sources"
    )
    parser.add_argument(
        "--family",
        nargs="+",
        choices=libraries.FAMILIES,
        default=(),
        help="only operators of these, and the self tests; all without",
    )
    options = parser.parse_args(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    kinds = sorted(set(options.kind) - {"collect"}, key=options.kind.index)
    if "overhead" in kinds[:-1]:
        parser.error("overhead comes last: it wants a quiet host")
    status = 0
    if kinds:
        gpus = torch.cuda.device_count()
        if len({torch.cuda.get_device_name(i) for i in range(gpus)}) != 1:
            raise SystemExit(
                "needs a GPU, and several have to be of one kind: see CUDA_VISIBLE_DEVICES"
            )
        check_libraries()
        ends = time.monotonic() + options.limit
        if kinds != ["sanitize"] and limits.load(options.work) is None:
            print("measuring the limits of this GPU (about half a minute)", flush=True)
            limits.ensure(options.work)
        known = limits.results_dir() if options.stale else None
        spread = kinds == ["sanitize"]
        servers = 1 if spread else gpus
        waiting = [
            task
            for task in tasks(kinds, servers, options.seconds, known, options.family)
            if not (options.work / task.name / "done").exists()
        ]
        if known is not None:
            go_on_from(known, options.work, waiting)
        # Beside a benchmark no other task may use its GPU.
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        visible = tuple(filter(None, chosen.split(",")))
        seen = gpus if spread else 2 if kinds == ["verify"] else 1
        queue = Queue(waiting, options.work, ends, gpus, seen=seen, visible=visible)
        threads = [threading.Thread(target=queue.serve, args=(gpu,)) for gpu in range(servers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(f"{len(queue.waiting)} tasks not started, {queue.failed} failed", flush=True)
        status = 1 if queue.failed else 0
    if "collect" in options.kind:
        collect(options.work)
    return status


if __name__ == "__main__":
    sys.exit(main())
