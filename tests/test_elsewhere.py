"""Calls that another implementation serves faster on the record: what rules say of a call, how they
are derived, and that `which` and the fallback go by them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import warpsmith
from warpsmith.core import catalogue, dispatch, elsewhere, references, twins
from warpsmith.core.elsewhere import Rule
from warpsmith.native import csrc
from warpsmith.records import elsewhere as derived
from warpsmith.records.elsewhere import Case
from warpsmith.records.report import Results

YIELDING = [op for op in catalogue.load().values() if op.yields]


def rule(op: str, implementation: str = "torch", **told: Any) -> Rule:
    named = {name.replace("_of_", "."): value for name, value in told.items()}
    return Rule(op, 90, implementation, 1.2, 3, named, "2026-01-02")


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the rules that there are."""

    def run(*rules: Rule) -> None:
        monkeypatch.delenv(elsewhere.OWN_KERNELS, raising=False)
        monkeypatch.setattr(elsewhere, "rules", lambda: rules)

    return run


# --- what is told of a call -----------------------------------------------------------------------


def told(op: str, *args: Any) -> dict[str, Any]:
    spec = catalogue.get(op)
    return elsewhere.told_of(spec, dispatch.normalise(spec, args))


def test_sizes_and_layout_of_a_tensor() -> None:
    x = torch.empty(3, 5, 64, dtype=torch.bfloat16, device="meta")
    found = told("softmax", x)
    assert found == {
        "x.dtype": "bf16",
        "x.rank": 3,
        "x.rows": 15,
        "x.cols": 64,
        "x.order": "rows",
        "x.packs": True,
        "dim": -1,
    }
    assert told("softmax", x[..., :60])["x.order"] == "other"
    assert not told("softmax", x[..., :60])["x.packs"]
    transposed = told("softmax", x.mT)
    assert (transposed["x.order"], transposed["x.packs"]) == ("columns", True)
    assert (transposed["x.rows"], transposed["x.cols"]) == (192, 5)
    odd = torch.empty(4, 63, dtype=torch.float16, device="meta")
    assert not told("softmax", odd)["x.packs"]
    assert told("softmax", torch.empty((), device="meta"))["x.rows"] == 1


def test_tensors_that_are_not_there_and_numbers() -> None:
    x, w = torch.empty(3, 8, device="meta"), torch.empty(5, 8, device="meta")
    found = told("linear", x, w)
    assert found["bias.dtype"] == "absent"
    assert found["activation"] == "none"
    assert found["batch_invariant"] is False
    scale = told("scaled_masked_softmax", x, None, 2)["scale"]
    assert isinstance(scale, float)
    assert scale == 2.0


@pytest.mark.parametrize(
    ("wanted", "found", "held"),
    [
        ([2, 5], 5, True),
        ([2, 5], 6, False),
        ([2, None], 10**9, True),
        ([2, None], 1, False),
        ("rows", "rows", True),
        (False, 0, False),
        (1, 1, True),
    ],
)
def test_a_value_or_a_range_of_them(wanted: Any, found: Any, held: bool) -> None:
    made = rule("softmax", dim=wanted)
    assert elsewhere.holds(made, 90, {"dim": found}) is held
    assert not elsewhere.holds(made, 80, {"dim": found})
    assert not elsewhere.holds(made, 90, {})


def test_a_library_is_told_numbers() -> None:
    made = rule("linear", x_of_rows=[16, None], x_of_dtype="bf16", bias_of_dtype="absent")
    told_ = elsewhere.as_told(catalogue.get("linear"), [made])
    assert told_ == f"90 3 0 2 16 {2**63 - 1} 0 0 2 2 2 0 -1 -1"
    # FNV-1a of "a", and 0.5 by its bits
    assert elsewhere._number("value", "a") == 0xAF63DC4C8601EC8C - 2**64
    assert elsewhere._number("value", 0.5) == 0x3FE0000000000000
    text = elsewhere.as_told(catalogue.get("linear"), [rule("linear", batch_invariant=False)])
    assert text == "90 1 4 6 0 0"


# --- what serves a call ---------------------------------------------------------------------------


def halves(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    a = torch.empty(m, k, dtype=torch.bfloat16, device="meta")
    return a, torch.empty(n, k, dtype=torch.bfloat16, device="meta").t()


def test_which_says_what_is_faster(serve: Any) -> None:
    serve(rule("matmul", a_of_rows=[64, 512], b_of_order="columns", batch_invariant=False))
    choice = warpsmith.which("matmul", *halves(64, 128, 256), sm=90)
    assert choice.implementation == "torch"
    assert choice.variant is None
    assert choice.reason == (
        "PyTorch's own is over 3 % faster on the record of 2026-01-02, 1.20 times at least in "
        "3 cases of these sizes"
    )
    for args, sm in ((halves(513, 128, 256), 90), (halves(64, 128, 256), 80)):
        assert warpsmith.which("matmul", *args, sm=sm).implementation == "cuda"
    invariant = warpsmith.which("matmul", *halves(64, 128, 256), True, sm=90)
    assert invariant.implementation == "cuda"


def test_nothing_is_served_elsewhere_where_our_own_kernels_are_asked_for(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(rule("matmul"))
    assert warpsmith.which("matmul", *halves(8, 8, 8), sm=90).implementation == "torch"
    monkeypatch.setenv(elsewhere.OWN_KERNELS, "1")
    assert warpsmith.which("matmul", *halves(8, 8, 8), sm=90).implementation == "cuda"


def test_a_twin_serves_only_where_it_can_run(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(rule("softmax", "triton"))
    x = torch.empty(4, 64, device="meta")
    monkeypatch.setattr(twins, "why_no_triton", lambda: None)
    assert warpsmith.which("softmax", x, sm=90).implementation == "triton"
    assert "the Triton twin" in warpsmith.which("softmax", x, sm=90).reason
    monkeypatch.setattr(twins, "why_no_triton", lambda: "Triton is not installed")
    assert warpsmith.which("softmax", x, sm=90).implementation == "cuda"
    assert elsewhere.served_here(catalogue.get("softmax"), twin=False) == ()


def test_variants_stay_here(serve: Any) -> None:
    serve(rule("softmax"))
    x = torch.randn(4, 64)
    variant = next(v for v in catalogue.get("softmax").variants if v.dtype == "f32")
    out = getattr(torch.ops.warpsmith, variant.op_name)(x, -1)
    torch.testing.assert_close(out, torch.softmax(x, -1))


@pytest.mark.parametrize("implementation", ["torch", "triton"])
def test_the_fallback_goes_by_the_rule(
    implementation: str, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    op, ran = catalogue.get("linear"), []
    serve(rule("linear", implementation))
    monkeypatch.setattr(dispatch, "_faster_here", lambda op, args: elsewhere.of(op)[0])
    monkeypatch.setattr(twins, "triton_function", lambda op: lambda *args: ran.append("triton"))
    monkeypatch.setattr(
        references, "computed", lambda op, args, function=None: ran.append(function or "torch")
    )
    dispatch._fallback(op)(torch.randn(3, 8), torch.randn(5, 8))
    assert ran == ([op.eager] if implementation == "torch" else ["triton"])


@pytest.mark.gpu
@pytest.mark.parametrize("implementation", ["torch", "triton"])
def test_a_call_goes_elsewhere_and_its_gradient_too(implementation: str, serve: Any) -> None:
    op = catalogue.get("matmul")
    assert dispatch.load(op.library)
    a, b = (torch.randn(64, 64, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    sm = dispatch.device_sm(a.device)
    made = Rule("matmul", sm, implementation, 1.2, 3, {"a.rows": [64, 64]}, "2026-01-02")
    serve(made)
    try:
        torch.ops.warpsmith._elsewhere_matmul("matmul", elsewhere.as_told(op, [made]))
        dispatch.last_rung(op.library)
        warpsmith.matmul(a[:32], b)
        before = dispatch.last_rung(op.library)
        found = warpsmith.matmul(a.requires_grad_(), b)
        assert dispatch.last_rung(op.library) == before
        torch.testing.assert_close(found, a @ b, rtol=2e-2, atol=2e-1)
        found.sum().backward()
        assert a.grad is not None
    finally:
        torch.ops.warpsmith._elsewhere_matmul("matmul", "")


# --- how rules are derived ------------------------------------------------------------------------


def case(rows: int, cols: int, torch_: float, triton: float = 1.0, dtype: str = "bf16") -> Case:
    told_ = {"x.dtype": dtype, "x.rows": rows, "x.cols": cols}
    return Case(told_, {"torch": torch_, "triton": triton})


def boxes_of(*cases: Case) -> list[tuple[str, list[Any], list[Any], float, int]]:
    return [
        (r.implementation, r.told["x.rows"], r.told["x.cols"], r.ratio, r.cases)
        for r in derived.ranges("softmax", 90, cases, "2026-01-02")
    ]


def test_a_range_reaches_from_the_least_to_the_largest_case() -> None:
    grid = [(m, n) for m in (16, 64, 256) for n in (64, 128)]
    found = boxes_of(*(case(m, n, 1.2 + m / 1000) for m, n in grid))
    assert found == [("torch", [16, None], [64, None], 1.216, 6)]


def test_no_range_holds_a_case_that_is_not_faster() -> None:
    sizes = (16, 32, 64, 128, 256)
    cases = [case(m, 64, 1.0 if m == 64 else 1.5) for m in sizes]
    found = boxes_of(*cases)
    assert sorted(f[1] for f in found) == [[16, 32], [128, None]]
    made = derived.ranges("softmax", 90, cases, "")
    for each in cases:
        wins = each.ratios["torch"] > derived.FASTER
        assert any(elsewhere.holds(r, 90, each.told) for r in made) == wins


def test_three_percent_are_not_enough_and_one_case_is_no_range() -> None:
    assert boxes_of(case(16, 64, 1.03), case(32, 64, 1.03)) == []
    assert boxes_of(case(16, 64, 1.5), case(32, 64, 1.0)) == []


def test_the_faster_of_two_serves() -> None:
    found = boxes_of(*(case(m, 64, 1.1, 1.3) for m in (16, 32, 64)))
    assert [f[0] for f in found] == ["triton"]


def test_what_is_no_size_is_the_same_in_all_calls_of_a_rule() -> None:
    cases = [case(m, 64, 1.5, dtype=d) for m in (16, 32) for d in ("bf16", "f16")]
    made = derived.ranges("softmax", 90, cases, "")
    assert sorted(r.told["x.dtype"] for r in made) == ["bf16", "f16"]


def test_rules_stay_where_the_record_says_nothing_of_what_runs_now() -> None:
    nothing = Results("h200", {}, None, lock=None)
    kept, other = rule("softmax", dim=-1), rule("no_longer_there")
    of_80 = Rule("softmax", 80, "torch", 1.2, 3, {}, "")
    found = derived.derive(nothing, 90, "2026-02-03", [kept, other, of_80])
    assert found == [of_80, kept]


def test_calls_for_gradients_count_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one backend: the fastest forward and the fastest backward may be of two."""
    forward, backward = "flash_attention", "flash_attention_backward"
    sample = next(s for s in catalogue.get(forward).bench if s.label == "2x8192x16x128 causal")

    def record_of(**ms: float) -> dict[str, Any]:
        case = f"bf16 {sample.label}"
        return {"rows": [{"case": case, "impl": name, "ms": each} for name, each in ms.items()]}

    records = {
        forward: record_of(auto=1.0, sdpa_flash=0.5, sdpa_cudnn=2.0, torch=0.5),
        backward: record_of(auto=3.0, sdpa_flash=2.0, sdpa_cudnn=1.0),
    }
    monkeypatch.setattr(derived.record, "is_fresh", lambda *given: True)
    results = Results("h200", records, None, lock=None)
    name = "scaled_dot_product_attention"
    (answer,), (gradient,) = derived.cases_of_composite(name, results)
    assert answer.told == {"gradient": False, "d": 128, "tokens": 8192}
    assert answer.ratios == {"torch": 2.0}
    assert gradient.told == answer.told | {"gradient": True}
    assert gradient.ratios == {"torch": pytest.approx(1.6)}
    # a record of one way says nothing of both: the rules from before stay
    kept = Rule(name, 90, "torch", 1.2, 3, {"gradient": True}, "")
    alone = Results("h200", {forward: records[forward]}, None, lock=None)
    assert derived.cases_of_composite(name, alone)[1] == []
    assert kept in derived.derive(alone, 90, "", [kept])


def test_twins_that_time_themselves_do_not_stand_in() -> None:
    assert derived.times_itself(catalogue.get("matmul"))
    assert not derived.times_itself(catalogue.get("softmax"))


# --- the file -------------------------------------------------------------------------------------


def test_the_file_has_rules_of_operators_that_ask() -> None:
    names = {op.name for op in YIELDING} | set(derived.COMPOSITES)
    data = json.loads(elsewhere.DATA.read_text())
    assert data["date"] >= "2026-11-28"
    for made in elsewhere.rules():
        if made.op == "patch":
            assert made.implementation == "compile"
            assert made.ratio > derived.FASTER_MODEL
            continue
        assert made.op in names
        kinds = derived.COMPOSITES.get(made.op, ())
        assert made.implementation in {"torch", "triton", *(kind.serves for kind in kinds)}
        assert made.ratio > derived.FASTER
        assert made.cases >= derived.LEAST_CASES
        if made.op in derived.COMPOSITES:
            continue
        op = catalogue.get(made.op)
        assert {name.partition(".")[0] for name in made.told} <= set(op.argument_names)
        assert elsewhere.as_told(op, [made])
        if made.implementation == "torch":
            assert op.torch_lacks is not None


def test_the_file_is_what_the_records_give() -> None:
    script = Path(__file__).parents[1] / "benchmarks" / "elsewhere.py"
    run = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert run.returncode == 0, f"run `python benchmarks/elsewhere.py`: {run.stdout}{run.stderr}"


@pytest.mark.parametrize("op", YIELDING, ids=str)
def test_bindings_ask(op: catalogue.Op) -> None:
    """Of every operator that says so."""
    folder = csrc.CSRC / op.family / op.source_dir
    text = "".join(path.read_text() for path in folder.glob("*.cpp"))
    assert "unless_elsewhere<" in text
    assert "define_elsewhere(" in text
