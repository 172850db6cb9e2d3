"""A verification cut into units, which worker processes share: it finds what one process finds."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from warpsmith.cli import main as cli
from warpsmith.core import catalogue
from warpsmith.core.catalogue import DTYPES
from warpsmith.proof import pool, verify
from warpsmith.proof.verify import units
from warpsmith.records import freshness

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
    one, many = (json.loads((tmp_path / name).read_text()) for name in ("alone", "shared"))
    for entry in (*one["ops"].values(), *many["ops"].values()):
        assert entry.pop("seconds").keys() == entry["kinds"].keys()
    assert one == many


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


def test_what_an_operator_took_counts() -> None:
    ops = [catalogue.get(name) for name in ("relu", "elu", "gelu", "rope_store_kv")]
    where = (ops, torch.device("cuda"), frozenset(verify.KINDS), tuple(DTYPES), 4)
    plain = {u.op: u.rank for u in units.divide(*where)}
    took = {"relu": 10.0, "elu": 12.0, "rope_store_kv": 180.0}
    found = units.divide(*where, took=took)
    ranks = {u.op: u.rank for u in found}
    for name in took:
        ordinary = [u for u in found if u.op == name and not math.isinf(u.bytes)]
        assert math.isclose(sum(u.cost for u in ordinary), ranks[name])
    assert max(plain, key=plain.__getitem__) != "rope_store_kv"
    assert max(ranks, key=ranks.__getitem__) == "rope_store_kv"
    assert ranks["gelu"] == pytest.approx(12.0 * plain["gelu"] / plain["elu"], rel=0.1)
    count = Counter(u.op for u in found)
    assert count["rope_store_kv"] > count["relu"]


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
    told: list[Sequence[verify.Result]] = []
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


def test_quick_operators_are_a_unit_each() -> None:
    ops = list(catalogue.load().values())
    quick = {op.name: 7 for op in ops if op.family != "loss"}
    where = (torch.device("cuda"), frozenset(verify.KINDS), tuple(DTYPES), 16)
    found = units.divide(ops, *where, quick)
    few = [u for u in found if u.quick is not None]
    assert sorted(u.op for u in few) == sorted(quick)
    assert {u.quick for u in few} == {7}
    for u in few:
        assert set(u.dtypes) == set(catalogue.get(u.op).dtypes)
        assert {units.CHECKS[i] for i in u.checks} == set(units.CHECKS) - {units.huge_checks}
    rest = [op for op in ops if op.name not in quick]
    assert [u for u in found if u.quick is None] == units.divide(rest, *where)
