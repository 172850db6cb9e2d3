"""Random shapes, strides, offsets and broadcasts: whatever serves a call agrees with float64.

On a GPU every run draws fresh calls; WARPSMITH_FUZZ_SEED repeats those of another, whose seed it
printed, and WARPSMITH_FUZZ_CALLS says how many an operator makes. Many more of them, side by side:
`warpsmith verify --random 200000 --jobs auto`.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import FUZZ_SEED, GPU
from warpsmith.cli import main as cli
from warpsmith.core import catalogue, twins
from warpsmith.core.catalogue import Op
from warpsmith.proof import pool, random_calls
from warpsmith.proof.random_calls import Call
from warpsmith.proof.random_calls import run as run_module
from warpsmith.proof.random_calls.run import refused
from warpsmith.proof.verify.run import Run

OPS = list(catalogue.load().values())
DEVICE = torch.device("cuda" if GPU else "cpu")
CALLS = int(os.environ.get("WARPSMITH_FUZZ_CALLS", 60 if GPU else 8))
SEED = int(os.environ[FUZZ_SEED])
#: Calls that failed once, as `verify --random` wrote them down.
FOUND = Path(__file__).with_name("found_calls.jsonl").read_text().splitlines()

needs_an_implementation = pytest.mark.skipif(
    not GPU and not (twins.triton_available() and twins.interpreting()),
    reason="on a CPU the Triton twin is what is called, and its interpreter is off or not there",
)


@needs_an_implementation
@pytest.mark.parametrize("op", OPS, ids=str)
def test_random_calls(op: Op) -> None:
    taken = 0
    for progress in random_calls.make(op, DEVICE, SEED, range(CALLS)):
        assert not progress.failures, f"seed {SEED}: {progress.failures[0]}"
        taken += progress.passed
    assert taken >= CALLS // 3, "its check refuses nearly all that is drawn"


@needs_an_implementation
@pytest.mark.parametrize("line", FOUND, ids=lambda line: Call.parse(line).op)
def test_what_failed_once(line: str) -> None:
    (progress,) = random_calls.remake([Call.parse(line)], DEVICE)
    assert progress.passed
    assert not progress.failures, progress.failures[0]


@pytest.mark.parametrize("op", OPS, ids=str)
def test_calls_are_text(op: Op) -> None:
    for index in range(20):
        call = random_calls.draw(op, 1, index)
        again = Call.parse(str(call))
        assert str(again) == str(call) == str(random_calls.draw(op, 1, index))
        for a, b in zip(call.make("cpu"), again.make("cpu"), strict=True):
            if isinstance(a, torch.Tensor):
                assert (a.dtype, a.stride(), a.storage_offset()) == (
                    b.dtype,
                    b.stride(),
                    b.storage_offset(),
                )
                torch.testing.assert_close(a, b, rtol=0.0, atol=0.0, equal_nan=True)
            else:
                assert a == b


def test_draws_reach_every_dtype_layout_and_option() -> None:
    """Of `linear`: what a role can give, some call has."""
    calls = [random_calls.draw(catalogue.get("linear"), 1, i) for i in range(300)]
    assert {call.dtype for call in calls} == {"f32", "f16", "bf16"}
    assert len({call.arguments["activation"] for call in calls}) == 5
    assert {call.arguments["bias"] is None for call in calls} == {True, False}
    assert len({call.arguments["x"]["layout"] for call in calls}) == 7
    assert str(random_calls.draw(calls_of := catalogue.get("linear"), 2, 0)) != str(calls[0])
    assert not refused(calls_of, calls[0].make("cpu"))


def test_an_argument_without_a_role_is_an_error() -> None:
    op = dataclasses.replace(
        catalogue.get("relu"), schema="relu(Tensor x, float steepness) -> Tensor"
    )
    with pytest.raises(random_calls.UnknownRoleError, match="relu: no role for steepness"):
        random_calls.draw(op, 0, 0)


def _broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(self: Run, variant: Any = None) -> Any:
        return lambda x: torch.relu(x) + (x > 2) * 1.0

    monkeypatch.setattr(Run, "function", function)


def test_a_failure_is_written_down_and_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def in_this_process(
        tasks: Any, *, progress: Any, done: Any, **options: Any
    ) -> list[pool.Outcome]:
        outcomes = [pool.Outcome() for _ in tasks]
        for index, outcome in enumerate(outcomes):
            emit = lambda item, to=outcome: (to.items.append(item), progress(item))  # noqa: E731
            tasks[index].run(emit, False)
            done(index, outcome)
        return outcomes

    monkeypatch.setattr(pool, "run", in_this_process)
    with monkeypatch.context() as broken:
        _broken(broken)
        arguments = ("verify", "relu", "--device", "cpu", "--out", str(tmp_path), "--json")
        assert cli.main([*arguments, "--random", "30", "--seed", "5"]) == 1
        said = json.loads(capsys.readouterr().out)
        path = tmp_path / "random_failures.jsonl"
        lines = path.read_text().splitlines()
        assert len(lines) == len(said["failed"]) > 1
        assert {json.loads(line)["implementation"] for line in lines} == {"auto"}
        assert cli.main([*arguments, "--calls", str(path)]) == 1
        assert len(json.loads(capsys.readouterr().out)["failed"]) == len(lines)
    assert cli.main([*arguments, "--calls", str(path)]) == 0


def test_calls_go_on_behind_one_that_ends_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The call that the process was at is a failure; the next are made by another process."""
    asked: list[tuple[int, int]] = []

    def run(tasks: Any, *, progress: Any, done: Any, **options: Any) -> list[pool.Outcome]:
        outcomes = []
        for index, task in enumerate(tasks):
            asked.append((task.start, task.stop))
            crashes = task.start == 0
            made = 7 if crashes else task.stop - task.start
            items = [random_calls.Progress(task.op, 1, 1) for _ in range(made)]
            for item in items:
                progress(item)
            outcomes.append(pool.Outcome(items, "gone" if crashes else ""))
            done(index, outcomes[-1])
        return outcomes

    monkeypatch.setattr(pool, "run", run)
    relu = catalogue.get("relu")
    taken, failures = random_calls.random_calls([relu], 150, seed=3, device="cpu")
    assert asked == [(0, 100), (100, 150), (8, 100)]
    first, second = (run_module._Stretch("relu", "cpu", 3, start, start + 1) for start in (0, 100))
    assert first.rank > second.rank  # other operators come to theirs before
    assert taken == 150
    (failure,) = failures
    assert str(failure.call) == str(random_calls.draw(relu, 3, 7))
    assert (failure.implementation, failure.detail) == ("process", "gone")


def test_what_a_call_of_another_process_broke_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Processes that share a GPU lose it together; the pool runs their stretches again."""
    relu = catalogue.get("relu")
    call = random_calls.draw(relu, 3, 0)
    lost = random_calls.Failure("triton", call, "the CUDA context is lost")
    wrong = random_calls.Failure("auto", call, "1 of 8 elements are wrong")

    def run(tasks: Any, *, progress: Any, done: Any, **options: Any) -> list[pool.Outcome]:
        progress(random_calls.Progress("relu", 1, 1, (lost,)))  # of a run that does not count
        outcome = pool.Outcome([random_calls.Progress("relu", 100, 100, (wrong,))])
        progress(outcome.items[0])
        done(0, outcome)
        return [outcome]

    monkeypatch.setattr(pool, "run", run)
    record, seen = tmp_path / "failures", []
    taken, failures = random_calls.random_calls(
        [relu], 100, seed=3, device="cpu", record=record, progress=seen.append
    )
    assert (taken, failures) == (100, [wrong])
    assert record.read_text() == f"{wrong}\n"
    assert [step.failures for step in seen if step.failures] == [(wrong,)]
