"""What is compared with is compiled before anything is timed."""

from __future__ import annotations

import math
import pickle
from pathlib import Path

import pytest
import torch

from warpsmith.core import catalogue
from warpsmith.measure import bench, warm
from warpsmith.proof import pool


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
    assert warm.tasks(ops, bench.Plan(peers=("torch",))) == []
    assert {task.op for task in warm.tasks(ops, bench.Plan(peers=("quack",)))} == {"rms_norm"}


def test_what_hangs_when_it_is_compiled_is_not_called_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    op = catalogue.get("relu")
    plan = bench.Plan(dtypes=("f32",))
    done = [pool.Outcome(["triton", "compile"]) for _ in warm.tasks([op], plan)]
    done[1].fault = "no result for 180 s, stopped"
    said: list[str] = []
    monkeypatch.setattr(pool, "run", lambda todo, **options: done)
    monkeypatch.setattr(warm.finding, "prepare", lambda libraries: None)
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
