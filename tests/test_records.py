"""Records of benchmarks: rows of several runs, fresh as long as what they ran is what there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import recorded
from warpsmith.cli import arguments
from warpsmith.core import catalogue, json_files
from warpsmith.measure import bench, limits, record, timing
from warpsmith.native.code_lock import Lock

NOW: Any = recorded.Everything()
RELU = catalogue.get("relu")
CASES = bench.case_names(RELU, bench.Plan())
VARIANTS = [v.name for v in RELU.variants if CASES[0].startswith(f"{v.dtype} ")]


def row(impl: str = "auto", case: str = CASES[0], ms: float = 1.0, **more: Any) -> record.Row:
    return {"case": case, "impl": impl, "ms": ms, **more}


def test_a_benchmark_goes_on_with_the_cases_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lock, "load", lambda: NOW)
    elu = catalogue.get("elu")
    assert bench.missing_cases(None, RELU, NOW) == CASES
    fresh = recorded.made(*(row(case=case) for case in CASES[:2]), row("torch", CASES[2]))
    assert bench.missing_cases(fresh, RELU, NOW) == CASES[2:]
    assert bench.missing_cases(fresh, RELU, recorded.Everything(relu="auto")) == CASES
    assert bench.missing_cases(fresh, RELU, None) == CASES

    json_files.write_json(record.record_path(tmp_path, "relu"), fresh)
    whole = bench.Plan()
    rest = bench.without_measured(whole, [RELU, elu], tmp_path)
    assert bench.count_cases([RELU], rest) == len(CASES) - 2
    assert bench.count_cases([elu], rest) == bench.count_cases([elu], whole)


@pytest.mark.parametrize("other", [{"nvcc": "12.9"}, {"timing": timing.METHOD + 1}])
def test_another_toolkit_or_way_of_timing_is_never_fresh(other: dict[str, Any]) -> None:
    fresh = recorded.made(row())
    assert record.stale_rows(fresh, RELU, NOW) == []
    assert len(record.stale_rows(recorded.made(row(), **other), RELU, NOW)) == 1


def test_only_what_changed_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed rung: its rows and no others."""
    slow, fast = VARIANTS[:2]
    rows = [row("torch"), *(row(case=case) for case in CASES), row(slow), row(fast)]
    known = recorded.made(*rows)
    changed: Any = recorded.Everything(relu=fast)
    assert [r["impl"] for r in record.stale_rows(known, RELU, changed)] == [fast]
    assert record.to_measure(known, RELU, NOW, {}) == {}
    assert record.to_measure(known, RELU, changed, {}) == {CASES[0]: frozenset({fast})}

    json_files.write_json(record.record_path(tmp_path, "relu"), known)
    monkeypatch.setattr(Lock, "load", lambda: changed)
    monkeypatch.setattr(bench, "ladder_cases", lambda *_: ())
    plan = bench.only_changed(bench.Plan(), [RELU], tmp_path)
    assert bench.case_names(RELU, plan) == CASES[:1]


def test_rows_of_unchanged_rungs_stay() -> None:
    slow, fast = VARIANTS[:2]
    old = recorded.made(
        row(ms=1.0),
        row("torch", ms=2.0),
        row(slow, ms=3.0),
        row(fast, ms=1.0),
        row("torch", "f32 ?"),
    )
    new = recorded.made(row(fast, ms=0.5), row("torch", ms=1.9), date="2026-02-02")
    merged = record.merge(old, new, RELU)
    times = {r["impl"]: r["ms"] for r in merged["rows"]}
    assert times == {
        "auto": 1.0,
        "torch": 2.0,
        slow: 3.0,
        fast: 0.5,
    }  # the case that is no more went
    dates = {r["impl"]: merged["runs"][r["run"]]["date"] for r in merged["rows"]}
    assert dates == {i: "2026-02-02" if i == fast else "2026-01-01" for i in times}
    (again,) = (r for r in merged["rows"] if r["impl"] == fast)
    assert again["peers"] == {"torch": 1.9}


def test_peers_stand_beside_the_run_that_they_were_measured_in() -> None:
    slow = VARIANTS[0]
    old = recorded.made(row(ms=1.0), row("torch", ms=2.0), row(slow, ms=3.0))
    new = recorded.made(row(ms=0.5), row("compile", ms=1.5), date="2026-02-02")
    merged = record.merge(old, new, RELU)
    by_impl = {r["impl"]: r for r in merged["rows"]}
    assert set(by_impl) == {"auto", "compile", slow}
    assert by_impl[slow]["peers"] == {"torch": 2.0}
    assert record.peer_ms(by_impl[slow], by_impl, "torch") == 2.0
    assert record.peer_ms(by_impl["auto"], by_impl, "compile") == 1.5
    assert record.peer_ms(by_impl["auto"], by_impl, "torch") is None
    assert set(merged["runs"]) == {r["run"] for r in merged["rows"]}


def test_host_times_alone_replace_no_rows() -> None:
    old = recorded.made(row())
    hosts = record.made(recorded.run(date="2026-02-02"), overhead=[row()])
    merged = record.merge(old, hosts, RELU)
    assert merged["rows"] == old["rows"]
    assert merged["overhead"] == hosts["overhead"]
    assert len(merged["runs"]) == 2
    assert record.merge(None, hosts, RELU) == hosts


def test_a_benchmark_is_on_record_case_by_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_case(*_: object) -> Iterator[list[record.Row]]:
        yield [row()]
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(limits, "ensure", lambda folder: {})
    monkeypatch.setattr(limits, "environment", lambda: {"gpu": "one"})
    monkeypatch.setattr(bench, "bench_op", one_case)
    monkeypatch.setattr(Lock, "load", lambda: NOW)
    with pytest.raises(KeyboardInterrupt):
        bench.bench([RELU], bench.Plan(), out=tmp_path)
    known = record.load(tmp_path, RELU)
    assert known is not None
    (name,) = known["runs"]
    assert known["runs"][name]["timing"] == timing.METHOD
    assert known["rows"] == [{**row(), "code": "now", "run": name}]


def test_rows_of_sources_that_the_lock_does_not_know_speak_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Old(recorded.Everything):
        def knows(self, op: catalogue.Op) -> bool:
            return False

    old: Any = Old()
    assert record.with_code(RELU, [row()], old) == [row()]
    assert record.with_code(RELU, [row()], NOW) == [row(code="now")]
    said: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(limits, "ensure", lambda folder: {})
    monkeypatch.setattr(bench, "bench_op", lambda *_: iter([[row()]]))
    monkeypatch.setattr(bench, "measure_overhead", lambda *_: [])
    monkeypatch.setattr(Lock, "load", lambda: old)
    monkeypatch.setattr(limits, "environment", lambda: {"gpu": "one"})
    bench.bench([RELU], bench.Plan(), out=tmp_path, say=said.append)
    assert any("code.json is not of these sources" in line for line in said)


@pytest.mark.parametrize(
    ("text", "peers"), [(None, None), ("none", ()), ("torch,quack", ("torch", "quack"))]
)
def test_peers_are_all_none_or_named(text: str | None, peers: tuple[str, ...] | None) -> None:
    assert arguments.parse_peers(text) == peers


def test_errors_on_record_have_no_paths_of_the_machine() -> None:
    error = RuntimeError("refused at /home/me/warpsmith/csrc/host/tensor.h, line 3\nmore")
    assert bench.first_line(error) == "RuntimeError: refused at tensor.h, line 3"
