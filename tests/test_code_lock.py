"""What the records speak for: launches and Python. Machine code: `test_machine_code`."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from warpsmith.core import catalogue, dispatch, json_files
from warpsmith.measure import limits
from warpsmith.native import code_lock, csrc, machine_code, python_code
from warpsmith.native.code_lock import NOT_TAKEN, Lock, LockError, Trace

RELU, GELU = catalogue.get("relu"), catalogue.get("gelu")
PACK = "1,1,1\t256,1,1\t1,1,1\t0\t0\t{}"


def compiled(**changed: str) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Kernels of relu and gelu, one a rung: their names and digests."""
    return {
        (op.name, rung.name): [
            (f"{op.name}_{rung.name}_kernel", changed.get(f"{op.name}_{rung.name}", rung.name))
        ]
        for op in (RELU, GELU)
        for rung in op.ladder
    }


def trace(op: catalogue.Op, **arguments: str) -> Trace:
    """Every rung takes every timed call with one launch, the last one serves; `arguments` are what
    its launches get, by rung.
    """
    lines = [
        f"{op.name}_{rung.name}_kernel\t{PACK.format(arguments.get(rung.name, 'same'))}"
        for rung in op.ladder
    ]
    calls = [f"timed {dtype} {sample.label}" for dtype, sample, _ in python_code.timed(op)]
    rungs = {
        rung.name: {
            v.name: {call: [i] for call in calls if call.startswith(f"timed {v.dtype} ")}
            for v in op.variants
            if v.rung is rung
        }
        for i, rung in enumerate(op.ladder)
    }
    last = len(op.ladder) - 1
    auto = {call: (op.ladder[-1].name, [last]) for call in calls}
    return Trace(lines, auto, rungs)


def lock(kernels: dict[str, str] | None = None, **traces: dict[str, str]) -> Lock:
    made = Lock("13.0", "90a", 132, {}, {})
    for op in (RELU, GELU):
        found = code_lock.entries(
            op, trace(op, **traces.get(op.name, {})), compiled(**kernels or {})
        )
        made = made.with_op(op, *found)
    return made


def changed_rows(after: Lock, before: Lock) -> set[tuple[str, str]]:
    """Operator and implementation of the rows that are not fresh any more."""
    return {
        (op.name, impl)
        for op in (RELU, GELU)
        for dtype, sample, _ in python_code.timed(op)
        for impl in ("auto", "triton", "torch", *(v.name for v in op.variants if v.dtype == dtype))
        if after.row(op, f"{dtype} {sample.label}", impl)
        != before.row(op, f"{dtype} {sample.label}", impl)
    }


def of_rung(op: catalogue.Op, rung: str) -> set[tuple[str, str]]:
    timed = {dtype for dtype, _, _ in python_code.timed(op)}
    return {(op.name, v.name) for v in op.variants if v.rung.name == rung and v.dtype in timed}


def test_a_changed_rung_changes_its_rows_and_no_others() -> None:
    first = RELU.ladder[0].name
    before, after = lock(), lock({f"relu_{first}": "other code"})
    assert changed_rows(after, before) == of_rung(RELU, first)
    assert after.ops == before.ops
    changed = {name for name in after.rungs if after.rungs[name] != before.rungs[name]}
    assert changed == {f"relu/{first}"}
    assert after.rung(RELU, first) != before.rung(RELU, first)


def test_what_serves_changes_with_the_rung_that_serves() -> None:
    last = RELU.ladder[-1].name
    after = lock({f"relu_{last}": "other code"})
    assert changed_rows(after, lock()) == of_rung(RELU, last) | {("relu", "auto")}


def test_a_kernel_of_no_rung_belongs_to_those_that_launch_it() -> None:
    first = RELU.ladder[0].name
    made = trace(RELU)
    lines = [*made.lines, f"join_kernel\t{PACK.format('same')}"]
    rungs = {
        rung: {
            variant: {call: [*found, len(made.lines)] if rung == first else found}
            for variant, calls in variants.items()
            for call, found in calls.items()
        }
        for rung, variants in made.rungs.items()
    }
    made = dataclasses.replace(made, lines=lines, rungs=rungs)

    def rows(digest: str) -> dict[str, dict[str, str]]:
        shared = {("relu", ""): [("join_kernel", digest), ("another_kernel", digest)]}
        return code_lock.entries(RELU, made, compiled() | shared)[1]

    before, after = rows("a join"), rows("another join")
    assert {rung for rung in after if after[rung] != before[rung]} == {first}
    assert after[first]["sass"] == machine_code.combined([first, "another join"])
    assert after[first]["sass"] != before[first]["sass"]
    assert after[first]["timed"] != before[first]["timed"]


def test_names_of_kernels_do_not_count() -> None:
    renamed = {key: [(f"x_{name}", d) for name, d in found] for key, found in compiled().items()}
    made = trace(RELU)
    lines = [f"x_{line}" for line in made.lines]
    known = code_lock.entries(RELU, made, compiled())
    assert code_lock.entries(RELU, dataclasses.replace(made, lines=lines), renamed) == known


def test_other_launches_change_the_operators_that_make_them() -> None:
    """A header that decides on copies, say, so that kernels get other strides."""
    rungs = {rung.name: "other strides" for rung in RELU.ladder}
    changed = changed_rows(lock(relu=rungs), lock())
    assert {name for name, _ in changed} == {"relu"}
    assert {impl for _, impl in changed} == {"auto"} | {
        impl for rung in RELU.ladder for _, impl in of_rung(RELU, rung.name)
    }


def test_another_choice_changes_what_serves_alone() -> None:
    made = trace(RELU)
    other = {call: (RELU.ladder[0].name, [0]) for call in made.auto}
    row, rungs = code_lock.entries(RELU, dataclasses.replace(made, auto=other), compiled())
    before = lock()
    after = before.with_op(RELU, row, rungs)
    assert changed_rows(after, before) == {("relu", "auto")}
    assert after.rungs == before.rungs
    assert after.ops["relu"]["auto"] != before.ops["relu"]["auto"]


def test_a_kernel_that_nobody_compiled_is_an_error() -> None:
    with pytest.raises(LockError, match="no compiled kernel is called"):
        code_lock.entries(RELU, trace(RELU), {})


def test_calls_that_a_rung_does_not_take_have_a_place() -> None:
    made = trace(RELU)
    first = RELU.ladder[0].name
    none = {**made.rungs, first: {}}
    _, rungs = code_lock.entries(RELU, dataclasses.replace(made, rungs=none), compiled())
    assert set(rungs[first]["timed"].split()) == {NOT_TAKEN}


def test_the_file_is_a_line_a_rung_and_read_back(tmp_path: Path) -> None:
    made = lock()
    made.save(tmp_path / "code.json")
    assert Lock.load(tmp_path / "code.json") == made
    lines = (tmp_path / "code.json").read_text().splitlines()
    assert sum('"sass"' in line for line in lines) == len(RELU.ladder) + len(GELU.ladder)
    assert Lock.load(tmp_path / "none.json") is None


def test_an_installed_package_finds_the_checkout_in_which_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert code_lock.default_path() == csrc.CSRC.parent / "benchmarks" / "code.json"
    package = tmp_path / "site" / "warpsmith"
    monkeypatch.setattr(csrc, "PACKAGE", package)
    monkeypatch.setattr(csrc, "CSRC", package / "csrc")
    checkout = tmp_path / "checkout"
    for folder in ("benchmarks", "csrc"):
        (checkout / folder).mkdir(parents=True)
    monkeypatch.chdir(checkout)
    assert code_lock.default_path() == checkout / "benchmarks" / "code.json"
    assert limits.results_root() == checkout / "benchmarks" / "results"
    assert code_lock.traces_path("norm") == checkout / "build" / "launches" / "norm.json"
    monkeypatch.chdir(tmp_path)
    assert code_lock.default_path() is None
    assert limits.results_root() == tmp_path / "benchmarks" / "results"


def test_differences_are_said_and_another_toolkit_is_not_compared() -> None:
    known = lock()
    first = RELU.ladder[0].name
    made = lock({f"relu_{first}": "other code"})
    (message,) = code_lock.differences(known, made)
    assert f"not of this relu ({first})" in message
    assert "--report --lock" in message
    assert code_lock.differences(known, known) == []
    assert code_lock.differences(dataclasses.replace(known, toolkit="12.9"), made) == []
    assert "no benchmarks/code.json" in code_lock.differences(None, made)[0]


# --- rungs that no GPU has run --------------------------------------------------------------------


def test_a_rung_without_a_verification_bears_the_mark() -> None:
    """What failed in one may bear it: `report --check` tells of it either way."""
    root = limits.results_root()
    verified: dict[str, set[str]] = {}
    failed: dict[str, set[str]] = {}
    for path in root.glob("*/verify.json"):
        for name, entry in (json_files.read_json(path) or {})["ops"].items():
            found = failed if entry["failed"] else verified
            found.setdefault(name, set()).update(entry.get("rungs", {}))
    for op in catalogue.load().values():
        for rung in op.ladder:
            known = rung.name in verified.get(op.name, ())
            if not known and rung.name in failed.get(op.name, ()):
                continue
            assert known != rung.unproven, f"{op.name}/{rung.name}: " + (
                "verified on a GPU: `unproven` can go" if known else "needs `unproven=True`"
            )


def test_auto_passes_over_what_no_gpu_has_verified() -> None:
    x = torch.ones(64)
    chosen = dispatch.pick(RELU, (x,), 90)
    assert chosen is not None
    marked = [dataclasses.replace(r, unproven=r.name == chosen.rung.name) for r in RELU.ladder]
    other = dispatch.pick(dataclasses.replace(RELU, ladder=tuple(marked)), (x,), 90)
    assert other is not None
    assert other.rung.name != chosen.rung.name


def test_the_library_is_told_what_no_gpu_has_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    *others, last = RELU.ladder
    marked = dataclasses.replace(RELU, ladder=(*others, dataclasses.replace(last, unproven=True)))
    monkeypatch.setattr(catalogue, "of_family", lambda family: (marked, GELU))
    names = [rung.name for rung in RELU.ladder]
    assert dispatch.as_told(GELU, names) == ",".join([*names[:-1], f"{names[-1]}?{RELU.name}"])


# --- Python ---------------------------------------------------------------------------------------

SHARED = '''
"""What two functions share."""
SCALE = 2.0

def scaled(x):
    """Docstring."""
    return x * SCALE  # a comment

def shifted(x):
    return x + 1
'''
SPEC = """
from warpsmith.made_up import shared
from warpsmith.made_up.shared import shifted

def double(x):
    return shared.scaled(x)

def more(x):
    return shifted(x)

def by_name(x, name):
    return getattr(shared, name)(x)

op = catalogue.add(Op("double(Tensor x) -> Tensor", reference=shared.scaled))

def runs(x):
    return run(op, x)
"""


@pytest.fixture
def digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The digest of a function of a package with these two modules."""

    def of(
        function: str, spec: str = SPEC, shared: str = SHARED, through_operators: bool = True
    ) -> str:
        for name, text in (("spec", spec), ("shared", shared)):
            path = tmp_path / f"{name}.py"
            path.write_text(text)
        paths = {f"warpsmith.made_up.{n}": tmp_path / f"{n}.py" for n in ("spec", "shared")}
        monkeypatch.setattr(python_code, "_path", paths.get)
        python_code._module.cache_clear()
        reach = python_code.Reach(through_operators)
        reach.name("warpsmith.made_up.spec", function)
        python_code._module.cache_clear()
        return reach.digest()

    return of


def test_comments_and_what_is_not_used_do_not_count(digest: Any) -> None:
    known = {name: digest(name) for name in ("double", "more", "by_name")}
    assert len(set(known.values())) == 3
    quiet = SHARED.replace("# a comment", "").replace('"""Docstring."""', '"""Other."""')
    assert all(digest(name, shared=quiet) == known[name] for name in known)
    other = SHARED.replace("x + 1", "x + 2")
    assert digest("double", shared=other) == known["double"]
    assert digest("more", shared=other) != known["more"]
    assert digest("by_name", shared=other) != known["by_name"]
    constant = SHARED.replace("2.0", "3.0")
    assert digest("double", shared=constant) != known["double"]
    assert digest("more", shared=constant) == known["more"]


def test_who_times_calls_of_operators_knows_these_by_name(digest: Any) -> None:
    alone = partial(digest, "runs", through_operators=False)
    other = SHARED.replace("2.0", "3.0")
    assert alone(shared=other) == alone()
    assert digest("runs", shared=other) != digest("runs")
    assert alone(spec=SPEC.replace("run(op, x)", "run(op, 2 * x)")) != alone()
    assert alone(spec=SPEC.replace("op", "other_op")) != alone()


def test_the_spec_counts_less_its_samples_and_its_words() -> None:
    rung = RELU.ladder[0]
    same = dataclasses.replace(
        RELU,
        samples=RELU.samples[:1],
        ladder=(dataclasses.replace(rung, story="other words"), *RELU.ladder[1:]),
    )
    assert python_code.of_spec(same) == python_code.of_spec(RELU)
    assert python_code.of_cases(same) != python_code.of_cases(RELU)
    refuses = dataclasses.replace(rung, when=lambda x: "no")
    other = dataclasses.replace(RELU, ladder=(refuses, *RELU.ladder[1:]))
    assert python_code.of_spec(other) != python_code.of_spec(RELU)


def test_a_twin_has_what_it_draws_with() -> None:
    reach = python_code.Reach()
    op = catalogue.get("dropout")
    module, _, function = op.triton.partition(":")
    reach.name(f"warpsmith.{op.family}.{module}", function)
    modules = {key[0] for key in reach._seen}
    assert any("philox" in module for module in modules)


def test_every_digest_is_of_its_own() -> None:
    ops = catalogue.load().values()
    assert len({python_code.of_spec(op) for op in ops}) == len(ops)
