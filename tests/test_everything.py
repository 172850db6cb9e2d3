"""The script that measures all operators on all GPUs of a machine: what it starts and collects."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import recorded
from warpsmith.cli import main as cli
from warpsmith.core import catalogue, json_files
from warpsmith.measure import bench, limits
from warpsmith.native import csrc, libraries
from warpsmith.native.code_lock import Lock
from warpsmith.proof import pool


@pytest.fixture(scope="module")
def everything() -> ModuleType:
    path = Path(__file__).resolve().parents[1] / "benchmarks" / "everything.py"
    spec = importlib.util.spec_from_file_location("everything", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("gpus", [1, 4])
@pytest.mark.parametrize("kind", ["verify", "bench", "sanitize", "overhead"])
def test_every_operator_is_in_one_task(everything: ModuleType, kind: str, gpus: int) -> None:
    tasks = everything.tasks([kind], gpus, 0.25)
    assert sorted(name for task in tasks for name in task.ops) == sorted(catalogue.load())
    assert len({task.name for task in tasks}) == len(tasks)
    assert all("{out}" in task.command for task in tasks)


def test_tasks_are_calls_of_the_command_line(everything: ModuleType) -> None:
    calls = [task for task in everything.tasks(everything.KINDS, 1, 0.25) if task.ops]
    assert {task.kind for task in calls} == set(everything.KINDS)
    for task in calls:
        args = cli.parser().parse_args([*task.command[3:], *task.ops])
        assert args.command == ("bench" if task.kind in ("bench", "overhead") else "verify")
        if args.command == "bench":
            assert args.overhead_only == (task.kind == "overhead")
            assert args.no_overhead == (task.kind == "bench")


def test_families_that_were_not_asked_for_are_left_out(everything: ModuleType) -> None:
    tasks = everything.tasks(["verify", "bench"], 1, 0.25, families=["loss"])
    of_loss = {name for name, op in catalogue.load().items() if op.family == "loss"}
    assert {name for task in tasks for name in task.ops} == of_loss
    assert [task.name for task in tasks if not task.ops] == ["fused_linear_cross_entropy"]
    (tests,) = everything.tasks(["verify"], 1, 0.25, families=["selftest"])
    assert tests.name == "self-tests"


def test_what_needs_more_time_than_is_left_waits(everything: ModuleType, tmp_path: Path) -> None:
    def task(kind: str) -> Any:
        return everything.Task(kind, ("true",), kind)

    kinds = ["sanitize", "verify", "bench", "overhead"]
    soon = everything.time.monotonic() + 60
    queue = everything.Queue([task(kind) for kind in kinds], tmp_path, soon)
    assert queue.take().kind == "bench"
    queue.running = 0
    assert queue.take().kind == "overhead"
    assert queue.take() is None
    assert [task.kind for task in queue.waiting] == ["sanitize", "verify"]


def test_what_ended_a_task_comes_last(everything: ModuleType, tmp_path: Path) -> None:
    task = everything.Task("task", ("bench",), "bench", ("relu", "elu", "silu"))
    assert task.left(tmp_path) == ("bench", "relu", "elu", "silu")
    (tmp_path / "starts").write_text("1")
    assert task.left(tmp_path) == ("bench", "elu", "silu", "relu")
    (tmp_path / "starts").write_text("5")
    assert task.left(tmp_path) == ("bench", "silu", "relu", "elu")


def test_tasks_get_gpus_of_the_callers_and_their_failures_count(
    everything: ModuleType, tmp_path: Path
) -> None:
    soon = everything.time.monotonic() + 300
    queue = everything.Queue([], tmp_path, soon, gpus=2, visible=("4", "5"))
    script = "import os, sys; print(os.environ['CUDA_VISIBLE_DEVICES']); sys.exit(3)"
    command = (everything.sys.executable, "-c", script)
    queue.waiting = [everything.Task(name, command, "bench") for name in ("task", "broken", "last")]
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "starts").write_text("")  # no number: an error of the queue's own
    queue.serve(1)
    assert (tmp_path / "task.log").read_text() == "5\n"
    assert (tmp_path / "last.log").read_text() == "5\n"
    assert (queue.running, queue.failed) == (0, 3)
    queue = everything.Queue([], tmp_path, soon, gpus=2, seen=3, visible=("4", "5"))
    queue.waiting = [everything.Task("both", command, "bench")]
    queue.serve(1)
    assert (tmp_path / "both.log").read_text() == "5,4\n"


def test_failed_checks_are_an_answer_and_a_crash_is_none(
    everything: ModuleType, tmp_path: Path
) -> None:
    verify = everything.Task("task", ("verify",), "verify", ("relu", "elu"))
    relu = recorded.entry(catalogue.get("relu"))
    stale = recorded.entry(catalogue.get("elu"), python="before")
    json_files.write_json(tmp_path / "verify.json", {"ops": {"relu": relu, "elu": stale}})
    assert verify.finished(tmp_path, 0)
    assert not verify.finished(tmp_path, 1)
    wrong = stale | {"failed": ["samples: wrong"]}
    json_files.write_json(tmp_path / "verify.json", {"ops": {"relu": relu, "elu": wrong}})
    assert verify.finished(tmp_path, 1)
    assert not verify.finished(tmp_path, -9)
    assert not everything.Task("self-tests", (), "verify").finished(tmp_path, 1)
    assert not everything.Task("task", ("bench",), "bench", ("relu",)).finished(tmp_path, 1)


def test_piles_are_even() -> None:
    for gpus in (1, 2, 4):
        piles = pool.deal(dict.fromkeys(catalogue.load(), 10.0), 5 * gpus)
        assert len(piles) == 5 * gpus
        assert max(map(len, piles)) - min(map(len, piles)) <= 1


def test_libraries_of_other_sources_are_refused(
    everything: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "warpsmith_elementwise_glu.so").write_bytes(b"")
    monkeypatch.setenv("WARPSMITH_LIBRARY_DIR", str(tmp_path))
    with pytest.raises(SystemExit, match="built from other sources: elementwise/glu"):
        everything.check_libraries()
    key = libraries.key("elementwise/glu", ["90a"], "")
    known = {"archs": ["90a"], "cutlass": "", "key": key}
    json_files.write_json(tmp_path / "elementwise_glu.json", known)
    everything.check_libraries()


@pytest.fixture(autouse=True)
def _lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is known as it is now."""
    monkeypatch.setattr(Lock, "load", recorded.Everything)


def complete_record(name: str) -> dict[str, Any]:
    op = catalogue.get(name)
    cases = bench.case_names(op, bench.Plan())
    return recorded.made(*({"case": case, "impl": "auto", "ms": 1.0} for case in cases))


def partial_record(name: str) -> dict[str, Any]:
    record = complete_record(name)
    return record | {"rows": record["rows"][1:]}


def older(record: dict[str, Any]) -> dict[str, Any]:
    return record | {"rows": [row | {"code": "before"} for row in record["rows"]]}


def test_benchmarks_go_on_from_what_is_on_record(everything: ModuleType, tmp_path: Path) -> None:
    results, work = tmp_path / "results", tmp_path / "work"
    for record, name in ((partial_record("relu"), "relu"), (older(complete_record("elu")), "elu")):
        json_files.write_json(results / f"{name}.json", record)
    task = everything.Task("task", ("bench",), "bench", ("relu", "elu", "silu"))
    check = everything.Task("check", ("verify",), "verify", ("relu",))
    everything.go_on_from(results, work, [task, check])
    assert [path.relative_to(work).as_posix() for path in work.rglob("*.json")] == [
        "task/relu.json"
    ]
    mended = recorded.entry(catalogue.get("elu"), failed=["samples: wrong"])
    entries = {"relu": recorded.entry(catalogue.get("relu")), "elu": mended, "silu": {}}
    json_files.write_json(results / "verify.json", {"ops": entries})
    check = everything.Task("check", ("verify",), "verify", ("relu", "elu"))
    everything.go_on_from(results, work, [check])
    known = json_files.read_json(work / "check" / "verify.json")
    assert known == {"ops": {"relu": entries["relu"]}}
    assert json_files.read_json(work / "task" / "relu.json") == partial_record("relu")


def test_only_what_is_stale(everything: ModuleType, tmp_path: Path) -> None:
    fresh = {name: recorded.entry(op) for name, op in catalogue.load().items()}
    tools = {tool: {"ok": True, "detail": ""} for tool in ("memcheck", "racecheck")}
    ops = dict(fresh)
    ops["relu"] = fresh["relu"] | {"failed": ["samples: wrong"]}
    ops["silu"] = fresh["silu"] | {"python": "before"}
    del ops["gelu"]
    sanitizer = {name: entry | {"tools": tools} for name, entry in fresh.items()}
    sanitizer["elu"] |= {"tools": {"memcheck": {"ok": False, "detail": "a race"}}}
    folder = tmp_path / "h200"
    json_files.write_json(folder / "verify.json", {"ops": ops})
    json_files.write_json(tmp_path / "sanitizer.json", {"ops": sanitizer})
    json_files.write_json(folder / "relu.json", complete_record("relu"))
    json_files.write_json(folder / "elu.json", partial_record("elu"))
    assert sorted(everything.outdated("verify", folder)) == ["gelu", "relu", "silu"]
    assert everything.outdated("sanitize", tmp_path) == ["elu"]
    assert set(everything.outdated("bench", folder)) == set(fresh) - {"relu"}
    assert set(everything.outdated("overhead", folder)) == set(fresh)
    (task,) = everything.tasks(["sanitize"], 2, 0.25, folder)
    assert task.ops == ("elu",)
    assert task.left(tmp_path / "empty")[-1] == "elu"
    relu_and_elu = everything.Task("both", ("bench",), "bench", ("relu", "elu"))
    assert relu_and_elu.left(folder) == ("bench", "elu")
    relu = everything.Task("relu", ("bench",), "bench", ("relu",))
    assert relu.left(folder) == ()


def test_a_run_goes_on_where_the_last_one_stopped(
    everything: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(everything, "SHORTEST", dict.fromkeys(everything.KINDS, 0.0))

    def task(name: str, code: str) -> Any:
        return everything.Task(name, (sys.executable, "-c", code, "{out}"), "verify")

    late = task("late", "import time; time.sleep(60)")
    soon = task(
        "soon",
        "import pathlib, sys; print('FAILED relu');"
        "pathlib.Path(sys.argv[1], 'verify.json').write_text("
        '\'{"ops": {"selftest": {"failed": ["1"]}}}\');'
        "sys.exit(1)",
    )
    json_files.write_json(tmp_path / "cut" / "relu.json", complete_record("relu"))
    cut = everything.Task("cut", ("no such program",), "bench", ("relu",))
    broken = everything.Task("broken", (sys.executable, "-c", "raise SystemExit(1)"), "bench")
    queue = everything.Queue([cut, broken, soon, late], tmp_path, everything.time.monotonic() + 3)
    queue.serve(0)
    assert (tmp_path / "cut" / "done").exists()
    assert not (tmp_path / "broken" / "done").exists()
    assert (tmp_path / "soon" / "done").read_text() == "1"
    assert not (tmp_path / "late" / "done").exists()
    assert "FAILED relu" in capsys.readouterr().out


@pytest.fixture
def collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A folder of tasks on an H200, and that of the records into which they are collected."""
    results, work = tmp_path / "results", tmp_path / "work"
    monkeypatch.setattr(limits, "results_root", lambda: results)
    json_files.write_json(work / "limits.json", {"device": {"name": "NVIDIA H200"}})
    return work, results / "h200"


def test_only_fresh_records_are_collected(
    everything: ModuleType, collected: tuple[Path, Path]
) -> None:
    work, folder = collected
    setup = recorded.run()
    relu, silu = catalogue.get("relu"), catalogue.get("silu")
    half = partial_record("relu")
    half["rows"] += older(complete_record("relu"))["rows"][:1]
    json_files.write_json(work / "bench" / "relu.json", half)
    json_files.write_json(work / "bench" / "silu.json", older(complete_record("silu")))
    entries = {
        "relu": recorded.entry(relu),
        "silu": recorded.entry(silu, python="before"),
        "selftest": {"source": csrc.source_hash("selftest")},
    }
    json_files.write_json(work / "verify" / "verify.json", {"environment": setup, "ops": entries})
    everything.collect(work)
    assert json_files.read_json(folder / "relu.json") == partial_record("relu")
    assert not (folder / "silu.json").exists()
    assert set(json_files.read_json(folder / "verify.json")["ops"]) == {"relu", "selftest"}  # type: ignore[index]


def test_what_the_sanitizer_found_is_collected_of_any_gpu(
    everything: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "results_root", lambda: tmp_path / "results")
    json_files.write_json(
        tmp_path / "results" / "sanitizer.json", {"ops": {"elu": {"source": "x"}}}
    )
    entries = {
        "relu": recorded.entry(catalogue.get("relu"), gpu="any"),
        "silu": recorded.entry(catalogue.get("silu"), rungs={}),
    }
    json_files.write_json(tmp_path / "work" / "task" / "sanitizer.json", {"ops": entries})
    everything.collect(tmp_path / "work")
    found = json_files.read_json(tmp_path / "results" / "sanitizer.json")
    assert found == {"ops": {"elu": {"source": "x"}, "relu": entries["relu"]}}
    json_files.write_json(tmp_path / "work" / "task" / "relu.json", complete_record("relu"))
    with pytest.raises(SystemExit, match=r"no limits\.json"):
        everything.collect(tmp_path / "work")


def test_of_two_records_the_later_one_is_collected(
    everything: ModuleType, collected: tuple[Path, Path]
) -> None:
    work, folder = collected
    for task, failed, time in (("verify-b", ["broken"], 1000), ("verify-a", [], 2000)):
        path = work / task / "verify.json"
        entry = recorded.entry(catalogue.get("relu"), failed=failed)
        json_files.write_json(path, {"environment": {}, "ops": {"relu": entry}})
        os.utime(path, (time, time))
    everything.collect(work)
    verified = json_files.read_json(folder / "verify.json")
    assert verified is not None
    assert verified["ops"]["relu"]["failed"] == []


def _count(path: Path) -> None:
    for _ in range(50):
        json_files.update_json(path, lambda known: {"rows": known.get("rows", 0) + 1})


def test_two_processes_may_write_one_record(tmp_path: Path) -> None:
    path = tmp_path / "relu.json"
    processes = [multiprocessing.Process(target=_count, args=(path,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert json_files.read_json(path) == {"rows": 100}
