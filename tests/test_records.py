"""Records of benchmarks: written case by case, and gone on with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from warpsmith.cli import arguments
from warpsmith.core import catalogue, json_files
from warpsmith.measure import bench, limits
from warpsmith.records import sources


def test_a_benchmark_goes_on_with_the_cases_that_are_missing(tmp_path: Path) -> None:
    relu, elu = catalogue.get("relu"), catalogue.get("elu")
    cases = bench.missing_cases(None, relu)
    assert len(cases) > 2
    done = [{"case": case, "impl": "auto", "ms": 1.0} for case in cases[:2]]
    peer = {"case": cases[2], "impl": "torch", "ms": 1.0}
    here = limits.environment()
    fresh = {"environment": here, "source": sources.of_benchmark(relu), "rows": [*done, peer]}
    assert bench.missing_cases(fresh, relu) == cases[2:]
    assert bench.missing_cases(fresh | {"source": "older"}, relu) == cases

    json_files.write_json(bench.record_path(tmp_path, "relu"), fresh)
    whole = bench.Plan()
    rest = bench.without_measured(whole, [relu, elu], tmp_path)
    assert bench.count_cases([relu], rest) == len(cases) - 2
    assert bench.count_cases([elu], rest) == bench.count_cases([elu], whole)
    json_files.write_json(
        bench.record_path(tmp_path, "relu"), fresh | {"environment": here | {"driver": "other"}}
    )
    rest = bench.without_measured(whole, [relu], tmp_path)
    assert bench.count_cases([relu], rest) == len(cases)


def test_a_benchmark_is_on_record_case_by_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relu = catalogue.get("relu")

    def one_case(*_: object) -> Iterator[list[bench.Row]]:
        yield [{"case": "f32 16Mi", "impl": "auto", "ms": 1.0}]
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(limits, "ensure", lambda folder: {})
    monkeypatch.setattr(limits, "environment", lambda: {"gpu": "one"})
    monkeypatch.setattr(bench, "bench_op", one_case)
    with pytest.raises(KeyboardInterrupt):
        bench.bench([relu], bench.Plan(), out=tmp_path)
    record = json_files.read_json(bench.record_path(tmp_path, "relu"))
    assert record is not None
    assert record["source"] == sources.of_benchmark(relu)
    assert record["rows"] == [{"case": "f32 16Mi", "impl": "auto", "ms": 1.0}]


def test_host_times_alone_replace_no_rows() -> None:
    row = {"case": "f32 1Mi", "impl": "auto", "ms": 1.0}
    here = {"environment": {"driver": "1"}, "source": "a", "rows": [row]}
    elsewhere = {"environment": {"driver": "2"}, "source": "a", "rows": [], "overhead": [row]}
    assert bench.merge(here, elsewhere) == here
    assert bench.merge(here, elsewhere | {"rows": [row]})["environment"] == {"driver": "2"}
    assert bench.merge(here, elsewhere | {"source": "b"})["rows"] == []


@pytest.mark.parametrize(
    ("text", "peers"), [(None, None), ("none", ()), ("torch,quack", ("torch", "quack"))]
)
def test_peers_are_all_none_or_named(text: str | None, peers: tuple[str, ...] | None) -> None:
    assert arguments.parse_peers(text) == peers
