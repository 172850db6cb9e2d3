"""Operators under compute-sanitizer, with a tool that only pretends."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import recorded
from warpsmith.cli import main as cli
from warpsmith.core import catalogue, json_files
from warpsmith.native.code_lock import Lock
from warpsmith.proof import mps, pool, verify
from warpsmith.proof.verify import sanitizer
from warpsmith.proof.verify.run import small_samples
from warpsmith.records import freshness


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


def one_by_one(
    tasks: Sequence[pool.Task], *, done: Callable[[int, pool.Outcome], None], **given: Any
) -> None:
    for index, task in enumerate(tasks):
        outcome = pool.Outcome()
        task.run(outcome.items.append, False)
        done(index, outcome)


def test_a_fault_is_planted_where_operators_are_examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that is blind under MPS is found out, and so is one that could not be tried there."""
    path = fake_sanitizer(tmp_path, 'echo "========= 0 errors"')
    blind = 'case "$CUDA_MPS_PIPE_DIRECTORY" in pipes) echo "========= 0 errors"; exit 0;; esac'
    path.write_text(path.read_text().replace("#!/bin/sh", f"#!/bin/sh\n{blind}"))
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: path)
    monkeypatch.setattr(pool, "run", one_by_one)
    pipes = {"CUDA_MPS_PIPE_DIRECTORY": "pipes"}
    for services, told in (
        ([pipes, pipes], "it misses a fault that is there"),
        ([pipes, {}], "no fault could be planted for it under a second MPS"),
        ([{}, {}], ""),
    ):
        left = iter(services)
        monkeypatch.setattr(mps, "service", lambda left=left: contextlib.nullcontext(next(left)))
        (result,) = verify.run_sanitizer(["relu"], tools=("memcheck",), jobs=2)
        assert result.ok == (not told)
        assert told in result.detail


def test_what_others_break_is_examined_again_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = "========= with ${CUDA_MPS_PIPE_DIRECTORY:-none}"
    broken = f'case "$*-$CUDA_MPS_PIPE_DIRECTORY" in *gelu*-pipes) echo "{told}"; exit 99;; esac'
    path = fake_sanitizer(tmp_path, f'{broken}; echo "{told}"')
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: path)
    monkeypatch.setattr(pool, "run", one_by_one)
    served = contextlib.nullcontext({"CUDA_MPS_PIPE_DIRECTORY": "pipes"})
    monkeypatch.setattr(mps, "service", lambda: served)
    relu, gelu = verify.run_sanitizer(["relu", "gelu"], tools=("memcheck",), jobs=2)
    assert (relu.ok, relu.detail) == (True, "========= with pipes")
    assert (gelu.ok, gelu.detail) == (True, "========= with none")


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


def test_only_rungs_that_changed_are_examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(Lock, "load", recorded.Everything)
    path, ops = tmp_path / "sanitizer.json", [catalogue.get("relu"), catalogue.get("gelu")]
    verify_results = [verify.Result(op.name, "sanitizer", "memcheck", True) for op in ops]
    freshness.record_sanitizer(path, verify_results)
    assert freshness.not_examined(path, ops) == ([], {})
    known = json_files.read_json(path)
    assert known is not None
    known["ops"]["relu"]["rungs"] |= {"x2": "before", "strided": "before"}
    json_files.write_json(path, known)
    todo, rungs = freshness.not_examined(path, ops)
    assert (todo, rungs) == ([ops[0]], {"relu": frozenset({"x2", "strided"})})
    (hand,) = sanitizer._deal(todo, 1, rungs)
    assert hand.rungs == rungs
    assert 0 < hand.cost < sanitizer._deal(todo, 1)[0].cost

    fake = fake_sanitizer(tmp_path, 'echo "========= $@"')
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: fake)
    (result,) = verify.run_sanitizer(todo, tools=("memcheck",), rungs=rungs)
    assert "--rungs relu=strided,x2 relu" in result.detail

    command = ["verify", "relu", "--device", "cpu", "--sanitizer", "--rungs", "relu=strided,x2"]
    assert cli.parser().parse_args(command).rungs == ["relu=strided,x2"]
    called = verify.verify(["relu"], device="cpu", sanitizer=True, rungs=rungs)
    wanted = {v.name for v in ops[0].variants if v.rung.name in rungs["relu"]}
    assert {r.label.split()[0] for r in called} == wanted

    freshness.record_sanitizer(path, [result], rungs)
    assert freshness.not_examined(path, ops) == ([], {})
    freshness.record_sanitizer(path, [replace(result, ok=False)], rungs)
    known = json_files.read_json(path)
    assert known is not None
    known["ops"]["relu"]["rungs"]["x2"] = "before"
    json_files.write_json(path, known)
    assert freshness.not_examined(path, ops) == ([ops[0]], {})  # of a failure nothing is kept


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
