"""`verify --quick`: a choice that leaves out no variant, dtype or kind, and stands for no full
verification.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from warpsmith.cli import main as cli
from warpsmith.cli import verification
from warpsmith.core import catalogue, json_files
from warpsmith.core.catalogue import Op
from warpsmith.proof import verify
from warpsmith.proof.verify import calls
from warpsmith.proof.verify.run import Run
from warpsmith.records import freshness, verifications


class Pretended(Run):
    """A run on a CPU that takes itself for one on an H100, whose variants are the reference."""

    def __post_init__(self) -> None:
        self.all_dtypes = self.dtypes
        self.sm, self.compiled = 90, True

    @property
    def on_gpu(self) -> bool:
        return True

    def ensure_alive(self) -> None:
        """There is no device to lose."""


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls cost nothing: which are made is the question."""
    monkeypatch.setattr(calls, "run_judged", lambda *args: torch.empty(0))
    monkeypatch.setattr(calls, "_expect_refusal", lambda *args: None)
    monkeypatch.setattr(calls.Expected, "of", lambda op, args: None)


def labels(op: Op, seed: int | None) -> Counter[tuple[str, str]]:
    kinds = frozenset(("samples", "variants", "refusals"))
    chosen = Pretended(op, torch.device("cpu"), kinds, op.dtypes, [], quick=seed)
    calls.sample_checks(chosen)
    return Counter((result.kind, result.label) for result in chosen.results)


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("name", ["relu", "rms_norm", "reduce_sum", "gemv", "softmax"])
def test_every_variant_and_dtype_is_in_a_quick_verification(name: str) -> None:
    op = catalogue.get(name)
    whole, few, again, other = (labels(op, seed) for seed in (None, 1, 1, 2))
    assert few == again != other
    assert few.keys() <= whole.keys()
    assert sum(few.values()) < 0.5 * sum(whole.values())

    def said(found: Counter[tuple[str, str]], kind: str) -> set[str]:
        """Variants, or dtypes."""
        return {label.split()[0] for of, label in found if of == kind}

    for kind in ("samples", "variants"):
        assert said(few, kind) == said(whole, kind)


def test_a_choice_is_some_of_all_and_another_for_each_seed() -> None:
    op = catalogue.get("relu")

    def chosen(seed: int | None, what: str) -> list[int]:
        return Run(op, torch.device("cpu"), frozenset(), (), [], quick=seed).some(
            range(50), 5, what
        )

    assert chosen(None, "a") == list(range(50))
    assert len(set(chosen(1, "a"))) == 5
    assert chosen(1, "a") == sorted(chosen(1, "a")) == chosen(1, "a")
    assert len({str(chosen(seed, what)) for seed in (1, 2) for what in "ab"}) == 4


def test_every_kind_is_in_a_quick_verification() -> None:
    """On a CPU, those that it has."""
    names = ["silu", "rms_norm"]
    whole = verify.verify(names, device="cpu", dtypes=("f32", "bf16"))
    few = verify.verify(names, device="cpu", dtypes=("f32", "bf16"), quick=dict.fromkeys(names, 3))
    assert all(result.ok for result in few)
    kinds = [{(r.op, r.kind) for r in results} for results in (whole, few)]
    assert kinds[0] == kinds[1]
    assert len(few) < 0.6 * len(whole)


# --- the record -----------------------------------------------------------------------------------


def result(op: str, ok: bool = True) -> verify.Result:
    return verify.Result(op, "samples", "f32 7", ok, "" if ok else "wrong")


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """relu was verified in full as it is now, gelu before a change, silu with a failure."""
    monkeypatch.setattr(freshness, "verified_code", lambda name, lock: {"python": f"{name} now"})
    path = tmp_path / "verify.json"
    freshness.record_verification(path, [result("relu"), result("gelu"), result("silu", ok=False)])
    entries = json_files.read_json(path)
    assert entries is not None
    entries["ops"]["gelu"]["python"] = "gelu before"
    json_files.write_json(path, entries)
    return path


NAMES = ("relu", "gelu", "silu", "mish")


def is_verified(record: dict[str, Any], name: str) -> bool:
    return not freshness.changed(name, record["ops"].get(name), None)


def test_what_changed_is_verified_in_full_and_the_rest_quickly(record: Path) -> None:
    plan = verifications.plan(record, NAMES, "both", seed=5)
    assert (plan.full, plan.quick) == (("gelu", "silu", "mish"), {"relu": 5})
    plan = verifications.plan(record, NAMES, "changed", seed=5)
    assert (plan.full, plan.quick) == (("gelu", "silu", "mish"), {})
    assert verifications.plan(record, NAMES, "full").full == NAMES
    plan = verifications.plan(record, NAMES, "quick")
    assert (plan.full, set(plan.quick)) == ((), set(NAMES))
    assert verifications.plan(record, NAMES, "quick").seed != plan.seed


def test_a_quick_verification_stands_for_no_full_one(record: Path) -> None:
    before = json.loads(record.read_text())["ops"]
    plan = verifications.plan(record, NAMES, "quick", seed=5)
    verifications.begin(record, plan)
    verifications.enter(record, plan, [result("relu", ok=False), result("gelu")])
    after = json.loads(record.read_text())
    assert after["ops"] == before
    assert after["quick"]["left"] == ["silu", "mish"]
    entries = after["quick"]["ops"]
    assert entries["relu"]["failed"] == ["samples f32 7: wrong"]
    assert (entries["gelu"]["failed"], entries["gelu"]["seed"]) == ([], 5)
    assert is_verified(after, "relu")
    assert not is_verified(after, "gelu")


def test_a_full_verification_of_one_leaves_quick_entries(record: Path) -> None:
    plan = verifications.plan(record, NAMES, "quick", seed=5)
    verifications.enter(record, plan, [result(name) for name in NAMES])
    plan = verifications.plan(record, ["gelu"], "full")
    verifications.enter(record, plan, [result("gelu")])
    after = json.loads(record.read_text())
    assert is_verified(after, "gelu")
    assert set(after["quick"]["ops"]) == set(NAMES)


def test_a_run_that_was_cut_off_goes_on_where_it_stopped(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = verifications.plan(record, NAMES, "quick", seed=5)
    verifications.begin(record, first)
    verifications.enter(record, first, [result("gelu")])
    verifications.enter(record, first, [result("silu", ok=False)])
    second = verifications.plan(record, NAMES, "quick")
    assert second.resumed
    assert second.quick == {"relu": 5, "mish": 5}
    # another seed asks for another choice, and a change for the operator again
    assert set(verifications.plan(record, NAMES, "quick", seed=6).quick) == set(NAMES)
    with monkeypatch.context() as changed:
        later = lambda name, lock: {"python": f"{name} later"}  # noqa: E731
        changed.setattr(freshness, "verified_code", later)
        assert set(verifications.plan(record, NAMES, "quick").quick) == set(NAMES)
    verifications.begin(record, second)
    verifications.enter(record, second, [result("relu"), result("mish")])
    third = verifications.plan(record, NAMES, "quick")
    assert not third.resumed
    assert set(third.quick) == set(NAMES)
    assert third.seed != 5


def test_a_record_that_begins_with_a_quick_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freshness, "verified_code", lambda name, lock: {"python": f"{name} now"})
    path = tmp_path / "verify.json"
    plan = verifications.plan(path, NAMES, "quick", seed=5)
    verifications.begin(path, plan)
    messages = freshness.unverified(tmp_path.parent, tmp_path.name, None)
    assert f"relu: not verified on {tmp_path.name}" in messages
    verifications.enter(path, plan, [result("relu")])
    after = json.loads(path.read_text())
    assert after["environment"]
    assert (after["ops"], set(after["quick"]["ops"])) == ({}, {"relu"})


def test_failures_of_a_quick_verification_are_reported(record: Path) -> None:
    plan = verifications.plan(record, NAMES, "quick", seed=5)
    verifications.enter(record, plan, [result("relu", ok=False)])
    messages = freshness.unverified(record.parent.parent, record.parent.name, None)
    assert f"relu: a quick verification failed on {record.parent.name}" in messages


@pytest.mark.parametrize(
    ("flags", "full", "quick"),
    [
        ((), ["gelu"], ["relu"]),
        (("--changed",), ["gelu"], []),
        (("--quick",), [], ["relu", "gelu"]),
        (("--full",), ["relu"], []),
    ],
)
def test_the_command_asks_for_what_its_flags_say(
    flags: tuple[str, ...],
    full: list[str],
    quick: list[str],
    record: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, Any] = {}

    def pretend(ops: list[Op], **options: Any) -> list[verify.Result]:
        asked.update(options)
        asked["names"] = [op.name for op in ops]
        return [result(op.name) for op in ops]

    monkeypatch.setattr(verification, "need_gpu", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "set_device", lambda where: None)
    monkeypatch.setattr(verify, "verify", pretend)
    names = full + quick
    arguments = ("verify", *names, "--jobs", "1", "--seed", "9", "--out", str(record.parent))
    assert cli.main([*arguments, *flags]) == 0
    assert sorted(asked["names"]) == sorted(names)
    assert asked["quick"] == dict.fromkeys(quick, 9)
    written = json.loads(record.read_text())
    assert set(written.get("quick", {}).get("ops", {})) == set(quick)
    assert all(is_verified(written, name) for name in full)
