"""`warpsmith verify` itself: it must report what is wrong with a kernel, and go on."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import json
import math
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from warpsmith.cli import main as cli
from warpsmith.core import catalogue
from warpsmith.core.catalogue import DTYPES, Variant
from warpsmith.measure import bench, warm
from warpsmith.proof import pool, verify
from warpsmith.proof.verify import sanitizer, units
from warpsmith.proof.verify.run import Run, small_samples
from warpsmith.records import freshness

Function = Callable[..., Any]


def replace_kernel(monkeypatch: pytest.MonkeyPatch, broken: Function) -> None:
    monkeypatch.setattr(Run, "function", lambda self, variant=None: broken)


def failures(kind: str) -> list[verify.Result]:
    results = verify.verify(["relu"], device="cpu", kinds=(kind,), dtypes=("f32",))
    assert results
    return [result for result in results if not result.ok]


def test_the_real_operator_passes() -> None:
    assert not failures("samples")


def test_wrong_values_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_kernel(monkeypatch, lambda x: torch.relu(x) + (x > 2) * 1e-3)
    found = failures("samples")
    assert any("relu [f32 33x65]" in result.detail for result in found)


def test_swallowed_nan_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_kernel(monkeypatch, lambda x: torch.relu(x.nan_to_num(0.0)))
    assert [result for result in failures("nonfinite") if result.label == "auto f32 nan"]


def test_written_inputs_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_kernel(monkeypatch, lambda x: torch.relu(x).copy_(x.relu_()) if x.numel() else x)
    assert any(
        "wrote to the memory of argument 0" in result.detail for result in failures("samples")
    )


def test_unwritten_outputs_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets_the_tail(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        if x.dim() == 1:
            out[: x.numel() // 4 * 4] = torch.relu(x)[: x.numel() // 4 * 4]
            return out
        return out.copy_(torch.relu(x))

    replace_kernel(monkeypatch, forgets_the_tail)
    found = failures("samples")
    assert {"f32 7", "f32 63", "f32 4099"} <= {result.label for result in found}
    assert "f32 33x65" not in {result.label for result in found}


def test_wrong_layout_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_kernel(monkeypatch, lambda x: torch.relu(x).contiguous())
    assert any("strides" in result.detail for result in failures("samples"))


def test_variant_that_takes_what_the_spec_refuses_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace_kernel(monkeypatch, torch.relu)
    found = failures("refusals")
    assert found
    assert all("took a call that the spec refuses" in result.detail for result in found)


def test_refusal_must_give_the_reason_of_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(x: Tensor) -> Tensor:
        raise RuntimeError("relu: not today")

    replace_kernel(monkeypatch, refuses)
    found = failures("refusals")
    assert found
    assert all("the refusal should say" in result.detail for result in found)


def test_bad_call_that_passes_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_kernel(monkeypatch, torch.relu)
    assert any("did not raise" in result.detail for result in failures("errors"))


def test_wrong_gradient_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_kernel(monkeypatch, lambda x: torch.relu(x) * 1.01)
    assert any("gradient of x" in result.detail for result in failures("gradients"))


def test_every_result_is_announced() -> None:
    seen: list[verify.Result] = []
    results = verify.verify(["relu"], device="cpu", kinds=("errors",), progress=seen.append)
    assert seen == results
    assert {result.op for result in results} == {"relu"}


def test_unknown_names_raise() -> None:
    with pytest.raises(ValueError, match="no_such_kind"):
        verify.verify(["relu"], device="cpu", kinds=("no_such_kind",))
    with pytest.raises(ValueError, match="no_such_operator"):
        verify.verify(["no_such_operator"], device="cpu")


def test_cuda_kinds_are_left_out_on_a_cpu() -> None:
    assert verify.verify(["relu"], device="cpu", kinds=verify.CUDA_KINDS) == []


# --- worker processes -----------------------------------------------------------------------------

#: A worker in which some operators misbehave: gelu crashes, and relu finds the GPU's memory taken
#: for as long as there are others.
BROKEN_WORKER = """
import os
import torch
from warpsmith.proof import worker
from warpsmith.proof.verify.run import Run

real = Run.function

def function(self, variant=None):
    if self.op.name == "gelu":
        os.abort()
    if self.op.name == "relu" and self.crowded:
        open(__file__ + ".crowded", "w").close()
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")
    return real(self, variant)

Run.function = function
worker.main()
"""

#: A task that needs no operator, and no time to import.
SLEEPER = """
import dataclasses, time

@dataclasses.dataclass(frozen=True)
class Sleeper:
    seconds: float
    cost: float
    rank: float = 0.0
    bytes: float = 0.0

    def run(self, emit, crowded):
        emit(self.seconds)
        time.sleep(self.seconds)
"""


def test_workers_find_what_one_process_finds(tmp_path: Path) -> None:
    ops, kinds, dtypes = ["relu", "dot"], ("samples", "refusals", "errors"), ("f16", "bf16")
    alone = verify.verify(ops, device="cpu", kinds=kinds, dtypes=dtypes)
    seen: list[verify.Result] = []
    shared = verify.verify(
        ops, device="cpu", kinds=kinds, dtypes=dtypes, jobs=2, progress=seen.append
    )
    assert shared == alone
    assert sorted(map(repr, seen)) == sorted(map(repr, shared))
    for name, results in (("alone", alone), ("shared", shared)):
        freshness.record_verification(tmp_path / name, results)
    assert (tmp_path / "alone").read_text() == (tmp_path / "shared").read_text()


def wait_for(condition: Callable[[], bool], seen: Callable[[], object] = str) -> None:
    """As long as workers may take to start: until then they do not look for their parent. `seen` is
    what to tell of a wait in vain.
    """
    ends = time.monotonic() + pool.STARTUP_SECONDS
    while not condition():
        assert time.monotonic() < ends, f"waited in vain {seen()}"
        time.sleep(0.1)


def living(processes: list[str]) -> dict[str, str]:
    """The status of those that are there and no zombies."""
    found = {}
    for process in processes:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found[process] = Path(f"/proc/{process}/status").read_text()
    return {process: status for process, status in found.items() if "State:\tZ" not in status}


def verify_with_broken_workers(
    ops: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[verify.Result]]:
    script = folder / "worker.py"
    script.write_text(BROKEN_WORKER)
    monkeypatch.setattr(pool, "COMMAND", (*pool.COMMAND[:-2], str(script)))
    results = verify.verify(ops, device="cpu", kinds=("errors",), dtypes=("f32",), jobs=2)
    freshness.record_verification(folder / "verify.json", results)
    return {name: [result for result in results if result.op == name] for name in ops}


def errors_of(op: str) -> list[verify.Result]:
    return verify.verify([op], device="cpu", kinds=("errors",), dtypes=("f32",))


def test_a_crash_stays_with_its_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = verify_with_broken_workers(["gelu", "sigmoid"], tmp_path, monkeypatch)
    (crashed,) = found["gelu"]
    assert (crashed.kind, crashed.ok) == ("worker", False)
    assert "its process ended (Aborted)" in crashed.detail
    assert found["sigmoid"] == errors_of("sigmoid")
    entries = json.loads((tmp_path / "verify.json").read_text())["ops"]
    assert {name for name, entry in entries.items() if entry["failed"]} == {"gelu"}


def test_a_hang_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    make = importlib.import_module("sleeper").Sleeper
    tasks = [make(0.0, cost=1.0), make(3600.0, cost=2.0)]
    quick, hung = pool.run(tasks, jobs=1, timeout=4.0)
    assert hung == pool.Outcome([3600.0], "no result for 4 s, stopped")
    assert quick == pool.Outcome([0.0])


def test_workers_end_with_their_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleeper.py").write_text(
        SLEEPER.replace(
            "time.sleep(self", "open(__file__ + '.began', 'w').close(); time.sleep(self"
        )
    )
    script = "from sleeper import Sleeper; from warpsmith.proof import pool; " + (
        "pool.run([Sleeper(3600.0, 1.0)] * 2, jobs=2)"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    parent = subprocess.Popen([sys.executable, "-c", script], env=pool.environment())
    wait_for((tmp_path / "sleeper.py.began").exists)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    workers: list[str] = []

    def both_are_there() -> bool:  # a read may miss some while others come or go
        workers[:] = children.read_text().split()
        return len(workers) == 2

    wait_for(both_are_there)
    parent.kill()
    parent.wait()
    wait_for(lambda: not living(workers), seen=lambda: living(workers))


def test_a_worker_whose_parent_is_gone_ends_at_once() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        worker = subprocess.run(
            [*pool.COMMAND, str(gone.pid), str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env=pool.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            start_new_session=True,
            timeout=pool.STARTUP_SECONDS,
        )
    assert worker.returncode == -signal.SIGKILL, worker.stderr.decode()


def test_lack_of_memory_beside_others_is_tried_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = verify_with_broken_workers(["relu", "sigmoid"], tmp_path, monkeypatch)
    assert (tmp_path / "worker.py.crowded").exists()
    assert found == {"relu": errors_of("relu"), "sigmoid": errors_of("sigmoid")}
    assert all(result.ok for results in found.values() for result in results)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("jobs", [2, 16])
def test_units_cover_every_check_once(device: str, jobs: int) -> None:
    ops = list(catalogue.load().values())
    found = units.divide(ops, torch.device(device), frozenset(verify.KINDS), tuple(DTYPES), jobs)
    for op in ops:
        parts: dict[tuple[int, str], list[tuple[int, int]]] = {}
        for u in [u for u in found if u.op == op.name]:
            for key in itertools.product(u.checks, u.dtypes):
                parts.setdefault(key, []).append(u.part)
        for mine in parts.values():
            assert mine == [(i, len(mine)) for i in range(len(mine))], op.name
        needed = {(i, d) for i in range(len(units.CHECKS)) for d in op.dtypes}
        for check, dtype in needed - set(parts):
            assert units.CHECKS[check] is units.huge_checks, op.name
            assert device == "cpu" or not any(s.huge for s in op.samples_for(dtype)), op.name
        (rank,) = {unit.rank for unit in found if unit.op == op.name}
        ordinary = [u for u in found if u.op == op.name and not math.isinf(u.bytes)]
        assert math.isclose(rank, sum(unit.cost for unit in ordinary))
    for unit in found:
        assert math.isinf(unit.bytes) == (unit.checks == (units.CHECKS.index(units.huge_checks),))
    costs = [unit.cost for unit in found if not math.isinf(unit.bytes)]
    assert max(costs) < sum(costs) / jobs


def test_parts_of_the_samples_are_the_whole() -> None:
    place = units.CHECKS.index(units.sample_checks)

    def labels(part: tuple[int, int]) -> list[str]:
        found: list[tuple[int, verify.Result]] = []
        kinds = frozenset(verify.KINDS) - frozenset(verify.CUDA_KINDS)
        where = ("add", "cpu", kinds, ("f32", "bf16"), ("f32",), (place,), 1.0, 1.0)
        units.Unit(*where, part=part).run(found.append, crowded=False)
        return [f"{result.kind} {result.label}" for _, result in found]

    whole, parts = labels((0, 1)), [labels((i, 2)) for i in range(2)]
    assert all(parts)
    assert sorted(label for part in parts for label in part) == sorted(whole)


@pytest.mark.parametrize("jobs", [1, 2])
def test_operators_are_told_of_when_they_are_done(jobs: int) -> None:
    told: list[list[verify.Result]] = []
    results = verify.verify(
        ["relu", "gelu"], device="cpu", kinds=["errors", "samples"], jobs=jobs, complete=told.append
    )
    key = dataclasses.astuple
    assert len(told) == 2
    assert sorted(key(r) for mine in told for r in mine) == sorted(map(key, results))
    assert sorted({r.op for r in mine} == {mine[0].op} for mine in told) == [True, True]


def test_results_before_a_crash_are_kept_and_in_order() -> None:
    def result(kind: str, label: str) -> verify.Result:
        return verify.Result("relu", kind, label, True)

    def unit(dtype: str) -> units.Unit:
        return units.Unit("relu", "cpu", frozenset(), ("f32", "f16"), (dtype,), (0, 5), 1.0, 1.0)

    first = pool.Outcome([(0, result("samples", "f32 7")), (5, result("opcheck", "f32"))])
    second = pool.Outcome([(0, result("samples", "f16 7"))], fault="gone")
    results = units.join(catalogue.get("relu"), [unit("f32"), unit("f16")], [first, second])
    assert [r.label for r in results] == ["f32 7", "f16 7", "f32", "f16"]
    assert results[-1].detail == "gone after samples f16 7"
    assert [r.ok for r in results] == [True, True, True, False]


def test_workers_need_an_operator_of_the_catalogue() -> None:
    stranger = dataclasses.replace(catalogue.get("relu"))
    with pytest.raises(ValueError, match="workers know the catalogue only, not relu"):
        verify.verify([stranger], device="cpu", jobs=2)


@pytest.mark.parametrize("jobs", ["0", "-1", "many"])
def test_number_of_jobs_is_checked(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "relu", "--device", "cpu", f"--jobs={jobs}"]) == 2
    assert "is no number of processes" in capsys.readouterr().err


@pytest.mark.parametrize("times", [1, pool.MORE])
@pytest.mark.parametrize(("gib", "jobs"), [(140, 16), (80, 8), (24, 3)])
def test_workers_cannot_take_each_others_memory(
    gib: int, jobs: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = gib * pool.GIB
    properties = SimpleNamespace(total_memory=total)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    memory = pool.Memory.of(0, jobs, times)

    def task(size: float) -> Any:
        return SimpleNamespace(bytes=size)

    ordinary, unlimited = task(pool.TASK_BYTES), task(math.inf)
    if times == 1:
        assert memory.of_task(unlimited) > 2 * memory.of_task(ordinary)
        assert memory.holds(unlimited, [ordinary] * (jobs - 1))
    else:
        assert memory.of_task(ordinary) == times * pool.TASK_BYTES
    assert not memory.holds(unlimited, [unlimited])
    for size in (pool.TASK_BYTES, 2 * pool.TASK_BYTES, total, math.inf):
        busy: list[Any] = []
        while len(busy) < jobs and memory.holds(task(size), busy):
            busy.append(task(size))
        assert busy
        taken = sum(pool.Share(0, memory.of_task(other)).fraction() * total for other in busy)
        assert taken + jobs * pool.CONTEXT_BYTES <= total
    assert pool.Share(0, math.inf).fraction() == 1.0


def test_automatic_jobs() -> None:
    assert 1 <= pool.sensible_jobs(torch.device("cpu")) <= (os.cpu_count() or 1)


def test_every_case_is_compiled_beforehand() -> None:
    ops = [catalogue.get(name) for name in ("rms_norm", "matmul", "add")]
    plan = bench.Plan(dtypes=("bf16",), variants="all")
    todo = warm.tasks(ops, plan)
    assert len(todo) == bench.count_cases(ops, plan)
    assert pickle.loads(pickle.dumps(todo)) == todo
    assert {task.plan.variants for task in todo} == {"none"}
    sizes = [task.bytes for task in todo]
    assert min(sizes) == pool.TASK_BYTES
    assert pool.TASK_BYTES < max(sizes) < math.inf


def test_what_hangs_when_it_is_compiled_is_not_called_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    op = catalogue.get("relu")
    plan = bench.Plan(dtypes=("f32",))
    done = [pool.Outcome(["triton", "compile"]) for _ in warm.tasks([op], plan)]
    done[1].fault = "no result for 180 s, stopped"
    said: list[str] = []
    monkeypatch.setattr(pool, "run", lambda todo, **options: done)
    monkeypatch.setattr(warm.build, "library", lambda family: None)
    monkeypatch.setattr(warm, "forget_choices", lambda folder: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    plan = warm.warm([op], plan, jobs=1, say=said.append, step=lambda: None)
    (key,) = plan.stuck
    assert key == ("relu", f"f32 {op.bench[1].label}")
    assert len(said) == 1
    assert "compile: not compiled: no result for 180 s" in said[0]

    case = bench.Case(op, "f32", op.bench[1], [(torch.ones(8),)], cold=False)
    case.functions = {"auto": torch.relu, "compile": lambda x: pytest.fail("called")}
    bench.gate(case, said.append, plan.stuck[key])
    assert list(case.functions) == ["auto"]
    assert "error" not in case.rows["auto"]
    assert "did not come to an end" in case.rows["compile"]["error"]


def test_choices_made_beside_other_workers_are_forgotten(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    for name in ("cab.py", "cab.best_config"):
        (tmp_path / "ab" / name).touch()
    warm.forget_choices(tmp_path)
    assert [path.name for path in (tmp_path / "ab").iterdir()] == ["cab.py"]


# --- compute-sanitizer ----------------------------------------------------------------------------


def test_copies_for_the_sanitizer_keep_strides_offsets_and_sharing() -> None:
    base = torch.arange(40.0)
    args = (base[1:31].view(5, 6).t(), base[3:], 2.5, None)
    copies = sanitizer._copied_exactly(args, torch.device("cpu"))
    for a, b in zip(args[:2], copies[:2], strict=True):
        assert isinstance(a, Tensor)
        assert (a.stride(), a.storage_offset()) == (b.stride(), b.storage_offset())
        assert torch.equal(a, b)
    assert copies[2:] == args[2:]
    assert copies[0].untyped_storage().data_ptr() == copies[1].untyped_storage().data_ptr()


def fake_sanitizer(folder: Path, script: str, finds: str = "check") -> Path:
    """One that finds the faults planted for tools of such names."""
    path = folder / "compute-sanitizer"
    report = f'echo "========= {" ".join(sanitizer._FAULTY.values())}"; exit 99'
    planted = f'case "$*" in *{finds}*commit_fault*) {report};; *commit_fault*) exit 0;; esac'
    path.write_text(f"#!/bin/sh\n{planted}\n{script}\n")
    path.chmod(0o755)
    return path


def test_sanitizer_that_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_sanitizer(tmp_path, 'echo "$@"; echo "========= ERROR SUMMARY: 0 errors"')
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: path)
    results = verify.run_sanitizer(["relu", "gelu"])
    assert [(result.op, result.label) for result in results] == [
        (op, tool) for op in ("relu", "gelu") for tool in verify.SANITIZER_TOOLS
    ]
    assert all(result.ok for result in results)
    assert all("0 errors" in result.detail for result in results)


def test_sanitizer_that_finds_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'case "$*" in *bf16*) echo "========= Invalid __global__ write"; exit 99;; esac'
    path = fake_sanitizer(tmp_path, script)
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: path)
    (result,) = verify.run_sanitizer(["relu"], tools=("memcheck",))
    assert not result.ok
    assert result.op == "relu"
    dtypes, message = result.detail.split(": ", 1)
    assert "bf16" in dtypes.split(", ")
    assert message == "exit status 99\n========= Invalid __global__ write"


def test_a_tool_that_misses_a_planted_fault_has_seen_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fake_sanitizer(tmp_path, 'echo "========= 0 errors"', finds="memcheck")
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: path)
    told: list[verify.Result] = []
    tools = ("memcheck", "racecheck")
    results = verify.run_sanitizer(["relu"], tools=tools, complete=told.extend)
    assert [(r.label, r.ok) for r in results] == [("memcheck", True), ("racecheck", False)]
    assert results[1].detail == "nothing is known from racecheck: it misses a fault that is there"
    assert told == results


def test_a_fault_that_could_not_be_planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else a tool reports is not the fault that it has to find."""
    path = fake_sanitizer(tmp_path, "", finds="nothing")
    text = path.read_text().replace("exit 0", 'echo "========= out of memory"; exit 99')
    path.write_text(text)
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: path)
    (result,) = verify.run_sanitizer(["relu"], tools=("initcheck",))
    assert not result.ok
    assert "no fault could be planted for it: exit status 99" in result.detail
    assert "out of memory" in result.detail


def test_sanitizer_takes_gpus_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_sanitizer(tmp_path, 'echo "========= on $CUDA_VISIBLE_DEVICES"')
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: path)
    monkeypatch.setattr(pool, "visible_orders", lambda spread: ["3,5", "5,3"] if spread else [])
    results = verify.run_sanitizer(["relu", "gelu"], tools=("memcheck",))
    details = {line for result in results for line in result.detail.splitlines()}
    assert details == {"========= on 3,5", "========= on 5,3"}


def test_gpus_of_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ["H200", "L4", "H200"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(kinds))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: kinds[i])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert pool.visible_orders() == ["0,1,2", "2,0,1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,4,1")
    assert pool.visible_orders() == ["7,4,1", "1,7,4"]
    assert pool.visible_orders(spread=False) == ["1,7,4"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert pool.visible_orders() == []


def test_sanitizer_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_sanitizer(tmp_path, "exec sleep 60")
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: path)
    (result,) = verify.run_sanitizer(["gelu_tanh_and_mul"], tools=("memcheck",), timeout=0.2)
    assert not result.ok
    assert "no result after 0 s" in result.detail


def test_sanitizer_in_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        'case "$*" in *gelu*) echo "========= Invalid read"; exit 99;; esac; echo "========= 0"'
    )
    path = fake_sanitizer(tmp_path, script)
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: path)
    seen: list[verify.Result] = []
    tools = ("memcheck", "racecheck")
    results = verify.run_sanitizer(["relu", "gelu"], tools=tools, jobs=2, progress=seen.append)
    assert [(r.op, r.label, r.ok) for r in results] == [
        (op, tool, op == "relu") for op in ("relu", "gelu") for tool in tools
    ]
    ops = [catalogue.get("relu"), catalogue.get("gelu")]
    hands = Counter(name for h in sanitizer._deal(ops, 2 * sanitizer._HANDS) for name in h.ops)
    assert Counter(result.op for result in seen) == {
        op: 2 * n for op, n in (hands + Counter({"planted fault": 1})).items()
    }
    for result in results:
        assert result.detail.count("exit status 99") == (0 if result.ok else hands["gelu"])


def test_a_process_that_ends_condemns_the_operators_it_had_not_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fake_sanitizer(tmp_path, "kill -9 $PPID; sleep 60")
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: path)
    told: list[verify.Result] = []
    results = verify.run_sanitizer(
        ["dot", "gelu"], tools=("memcheck",), jobs=2, complete=told.extend
    )
    assert [(r.op, r.ok) for r in results] == [("dot", False), ("gelu", False)]
    assert sorted(told, key=lambda r: r.op) == results
    assert all("its process ended (Killed)" in result.detail for result in results)


def test_operators_are_dealt_out_evenly() -> None:
    ops = list(catalogue.load().values())
    wanted = sorted((op.name, dtype) for op in ops for dtype in op.dtypes)
    for count in (8, 90):
        hands = sanitizer._deal(ops, count)
        taken = [
            (name, dtype)
            for hand in hands
            if hand.part[0] == 0
            for name in hand.ops
            for dtype in hand.dtypes or catalogue.get(name).dtypes
        ]
        assert sorted(taken) == wanted
        costs = [hand.cost for hand in hands]
        assert max(costs) < 1.5 * sum(costs) / count
        assert len(hands) < 1.5 * count
        for hand in hands:
            others = [h.part for h in hands if (h.ops, h.dtypes) == (hand.ops, hand.dtypes)]
            assert others == [(i, hand.part[1]) for i in range(hand.part[1])]
    assert any(hand.part[1] > 1 for hand in hands)
    assert any(len(hand.ops) > 1 for hand in hands)


def test_variants_share_many_samples() -> None:
    op = catalogue.get("matmul")
    samples = small_samples(op, "f16")
    count = sanitizer.fair_share(len(samples))
    assert sanitizer.MOST_SAMPLES / 2 < count < len(samples)
    shares = [sanitizer.taken(v, samples, count) for v in op.variants if v.dtype == "f16"]
    assert all(len(set(map(str, share))) == count for share in shares)
    assert all(len(share) == count for share in shares)
    fair = len(shares) * count / len(samples)
    assert all(sum(sample in share for share in shares) > fair / 3 for sample in samples)
    assert len(sanitizer.taken(op.variants[0], samples[:3], count)) == 3
    assert sanitizer.fair_share(7) == 7


def test_parts_of_the_variants_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def labels(part: tuple[int, int]) -> list[str]:
        results = verify.verify(["relu"], device="cpu", sanitizer=True, part=part)
        assert all(result.ok for result in results)
        return [result.label for result in results]

    whole = labels((0, 1))
    parts = [labels((i, 3)) for i in range(3)]
    assert all(parts)
    assert sorted(label for part in parts for label in part) == sorted(whole)


@pytest.mark.parametrize("part", ["3/3", "0", "-1/2", "a/b"])
def test_parts_are_checked(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "relu", "--device", "cpu", f"--part={part}"]) == 2
    assert "is no part" in capsys.readouterr().err


def test_a_part_makes_no_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "relu", "--device", "cpu", "--part=0/4"]) == 2
    assert "for the sanitizer" in capsys.readouterr().err


def test_missing_sanitizer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: None)
    with pytest.raises(ValueError, match="compute-sanitizer is neither"):
        verify.run_sanitizer(["relu"], tools=("racecheck",))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("relu", "--kinds", "graph"), "nothing to check"),
        (("relu", "--sanitize", "--dtype", "f32"), "leave out --dtype, --kinds"),
        (("matmul_tf32", "--dtype", "bf16"), "matmul_tf32 has no dtype 'bf16'"),
    ],
)
def test_what_checks_nothing_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert cli.main(["verify", *arguments, "--device", "cpu"]) == 2
    assert message in capsys.readouterr().err


def test_variants_reach_the_operator_by_either_name() -> None:
    op = catalogue.get("relu")
    for variant in op.variants:
        assert isinstance(variant, Variant)
        assert op.variant(variant.name) is op.variant(variant.op_name)


@pytest.mark.parametrize(("device", "index"), [("cuda", 0), ("cuda:1", 1)])
def test_the_command_verifies_on_the_gpu_that_it_records(
    device: str, index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[Any] = []
    monkeypatch.setattr(cli, "need_gpu", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "set_device", lambda where: chosen.append(int(where)))
    found = [verify.Result("relu", "accuracy", "sample", True, "")]
    monkeypatch.setattr(verify, "verify", lambda *args, **options: found)
    arguments = ("verify", "relu", "--device", device, "--jobs", "1", "--out", str(tmp_path))
    assert cli.main(arguments) == 0
    assert chosen == [index]
    assert "relu" in json.loads((tmp_path / "verify.json").read_text())["ops"]
