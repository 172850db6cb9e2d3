"""Timing arithmetic, records, tables, plots: all that needs no GPU."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import recorded
from test_command_line import run
from warpsmith.cli import arguments
from warpsmith.core import catalogue, json_files
from warpsmith.measure import bench, limits, timing
from warpsmith.measure.record import record_path
from warpsmith.measure.timing import Timing
from warpsmith.native import csrc
from warpsmith.native.code_lock import Lock
from warpsmith.native.console import UsageError
from warpsmith.proof import verify
from warpsmith.records import freshness, report

ENVIRONMENT = {"gpu": "NVIDIA H200", "driver": "1", "cuda": "13.0", "torch": "2.11", "triton": None}
LIMITS = {"measured": {"copy_tbps": 4.0, "bf16_tflops": 800.0}}


def row(case: str, impl: str, ms: float, moved: int = 4_000_000_000) -> dict[str, Any]:
    made = {"case": case, "impl": impl}
    bench.fill_row(made, Timing.of([ms] * 3, "graph"), LIMITS, case.split(" ")[0], moved, 0)
    return made


def record(*rows: dict[str, Any], source: str = "abc", date: str = "2026-01-01") -> dict[str, Any]:
    return {"environment": ENVIRONMENT | {"date": date}, "source": source, "rows": list(rows)}


# --- timing ---------------------------------------------------------------------------------------


def test_a_long_call_is_timed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    lasts = {"first": 2 * timing.LONG_MS, "then": timing.LONG_MS}
    called: list[int] = []

    def took(implementation: timing.Implementation, sets: int, calls: int) -> float:
        for i in range(calls):
            implementation(i % sets)
        return lasts["first"] if len(called) == 1 else lasts["then"]

    monkeypatch.setattr(timing, "_ms_of", took)
    program = timing._program(called.append, 3, True, [])
    program.run()
    assert (called, program.calls, program.method) == ([0, 0, 0], 1, "loop")
    # Prepared on the first call, short from then on.
    called.clear()
    lasts["then"] = 0.5
    assert timing._estimate_ms(called.append, 3) == 0.5
    assert called == [0, 0, *range(3), *range(3)]


def test_percentiles() -> None:
    assert timing.percentiles([5.0, 1.0, 3.0, 2.0, 4.0]) == pytest.approx((1.8, 3.0, 4.2))
    assert timing.percentiles([2.0]) == (2.0, 2.0, 2.0)


def test_sets_exceed_the_cache() -> None:
    l2 = 60 << 20
    assert timing.sets_for(1 << 30, l2) == 2
    assert timing.sets_for(l2, l2) == 3
    assert timing.sets_for(1 << 20, l2) == 180
    assert timing.sets_for(16, l2) == timing.MAX_SETS
    assert timing.sets_for(0, l2) == 2


def test_bytes_of_counts_what_is_read() -> None:
    x = torch.zeros(8, 4)
    assert timing.bytes_of((x, [x[:, 0]], None, 3)) == x.numel() * 4
    assert timing.bytes_of(torch.zeros(4).expand(100, 4)) == 16
    assert timing.bytes_of(torch.zeros(0)) == 0


def test_host_times_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    clock = iter(range(100))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(clock) ** 2))
    functions = {name: functools.partial(called.append, name) for name in "ab"}
    times = timing.host_times(functions, calls=2, batches=3)
    assert "".join(called) == "aabb" + 3 * "aabb"
    # A batch lasts as long as the squares of its start and its end lie apart: 1, 5, 9, 13, ...
    assert times == {"a": pytest.approx(9e6 / 2), "b": pytest.approx(13e6 / 2)}


def test_host_times_of_what_cannot_be_called(monkeypatch: pytest.MonkeyPatch) -> None:
    op, x = catalogue.get("relu"), torch.ones(4)
    monkeypatch.setattr(bench, "overhead_sample", lambda op, dtype: (op.bench[0], (x,)))
    monkeypatch.setattr(bench, "eager_function", lambda op, args: torch.linalg.inv)
    monkeypatch.setattr(torch, "zeros", lambda size, device: torch.ones(size))
    monkeypatch.setattr(timing, "host_times", lambda calls: dict.fromkeys(calls, 2.0))
    rows = {row["impl"]: row for row in bench.measure_overhead(op, "f32")}
    assert list(rows) == ["auto", "torch", "torch.add"]
    assert "linalg.inv" in rows["torch"]["error"]
    assert rows["auto"]["cpu_us"] == rows["torch.add"]["cpu_us"] == 2.0


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "folder"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("NVIDIA L20", "l20"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        # Others whose names hold one of these.
        ("NVIDIA GH200 480GB", "gh200-480gb"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA RTX A1000", "rtx-a1000"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx-4090-laptop-gpu"),
        ("NVIDIA GeForce RTX 4090 D", "rtx-4090-d"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "h100-80gb-hbm3-mig-1g-10gb"),
    ],
)
def test_folder_name(gpu: str, folder: str) -> None:
    assert limits.folder_name(gpu) == folder


def test_floor_is_the_larger_of_memory_and_arithmetic() -> None:
    assert limits.floor_ms(LIMITS, "bf16", 4_000_000_000, 0) == pytest.approx(1.0)
    assert limits.floor_ms(LIMITS, "bf16", 0, 800_000_000_000) == pytest.approx(1.0)
    assert limits.floor_ms(LIMITS, "e4m3", 4_000_000_000, 10**15) == pytest.approx(1.0)


def test_records_read_back(tmp_path: Path) -> None:
    content = record(row("bf16 16Mi", "auto", 1.5)) | {"nested": {"a": {"b": [1, 2]}, "empty": []}}
    json_files.write_json(tmp_path / "deep" / "relu.json", content)
    assert json_files.read_json(tmp_path / "deep" / "relu.json") == content
    assert json_files.read_json(tmp_path / "none.json") is None
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["relu.json"]


# --- records --------------------------------------------------------------------------------------


def test_a_row_carries_rate_and_fraction() -> None:
    made = row("bf16 1Mi", "auto", 2.0)
    assert made["tbps"] == pytest.approx(2.0)
    assert made["of_limit"] == pytest.approx(0.5)
    assert "method" not in made


def test_ladder_cases_show_every_rung_that_takes_a_benchmark() -> None:
    for op in catalogue.load().values():
        for dtype in op.bench_dtypes:
            samples = {s.label: s for s in op.bench_for(dtype)}
            chosen = bench.ladder_cases(op, dtype)
            assert bool(chosen) == bool(samples)
            shown, all_rungs = (
                {r for label in labels for r in bench._rungs_for(op, samples[label], dtype, None)}
                for labels in (chosen, samples)
            )
            assert shown == all_rungs


def test_an_operator_may_name_the_cases_of_its_ladder() -> None:
    matmul = catalogue.get("matmul")
    cube = "8192x8192x8192"
    assert f"{cube} NN" in bench.ladder_cases(matmul, "f32")
    assert {f"{cube} NN", f"{cube} TN"} <= set(bench.ladder_cases(matmul, "bf16"))


def test_an_operator_comes_before_a_family_of_its_name() -> None:
    assert [op.name for op in arguments.find_ops(["softmax"])] == ["softmax"]
    assert arguments.find_ops(["gemm"])[0].name == "matmul"  # an alias before the family
    assert len(arguments.find_ops(["gemm"])) > 4
    assert {op.family for op in arguments.find_ops(["gemm"])} == {"gemm"}


def test_unknown_variants_are_refused() -> None:
    ops = [catalogue.get("relu"), catalogue.get("rms_norm")]
    assert arguments.parse_variants("ladder", ops) == "ladder"
    names = "pack,f16x8_pack,rms_norm_bf16x8_pack_f32"
    assert arguments.parse_variants(names, ops) == tuple(names.split(","))
    with pytest.raises(UsageError, match=r"unknown variant 'largest'"):
        arguments.parse_variants("largest", ops)
    with pytest.raises(UsageError, match=r"unknown variant 'registrs'; did you mean registers"):
        arguments.parse_variants("pack,registrs", ops)


def test_unknown_peers_are_refused() -> None:
    relu, softmax = catalogue.get("relu"), catalogue.get("softmax")
    assert arguments.parse_peers("torch,compile,triton", [relu]) == ("torch", "compile", "triton")
    assert arguments.parse_peers("liger", [relu, softmax]) == ("liger",)
    known = "known: torch, compile, triton, or none"
    with pytest.raises(UsageError, match=rf"unknown peer 'liger'; {known}"):
        arguments.parse_peers("torch,liger", [relu])
    with pytest.raises(UsageError, match=r"unknown peer 'torhc'; .* triton, liger, quack, or"):
        arguments.parse_peers("torhc", [softmax])


@pytest.mark.parametrize("error", [ImportError("no such module"), RuntimeError("half installed")])
def test_a_peer_that_cannot_be_had_is_left_out(error: Exception) -> None:
    def broken() -> bench.Function:
        raise error

    op = dataclasses.replace(
        catalogue.get("softmax"), peers={"liger": broken, "other": lambda: abs}
    )
    sample = op.bench[0]
    case = bench.Case(op, "f32", sample, [(torch.zeros(2, 2), -1)], cold=False)
    plan = bench.Plan(variants="none", peers=("liger", "other"))
    said: list[str] = []
    functions = bench.implementations(case, plan, False, said.append)
    assert functions.keys() == {"auto", "other"}
    assert said == [f"softmax: liger is left out: {type(error).__name__}: {error}"]


def test_a_peer_that_fails_on_a_later_buffer_set_costs_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    called: list[Any] = []

    def fails(x: torch.Tensor, dim: int) -> torch.Tensor:
        if x.sum() > 0:
            raise torch.cuda.OutOfMemoryError("no room")
        return x

    op = catalogue.get("softmax")
    sets = [(torch.full((2, 2), float(i)), -1) for i in range(2)]
    case = bench.Case(op, "f32", op.bench[0], sets, cold=False)
    case.functions = {"auto": called.append, "torch": torch.softmax, "liger": fails}
    case.rows = {name: {"impl": name} for name in case.functions}
    made = {name: case.call(function) for name, function in case.functions.items()}
    assert bench._failing_later(case, made) == ["liger"]
    assert case.rows["liger"]["error"] == "OutOfMemoryError: no room"
    assert not called  # ours would end the case, and should


def test_cases_that_no_operator_has_are_refused() -> None:
    relu, matmul = catalogue.get("relu"), catalogue.get("matmul")
    assert arguments.parse_cases("8192x8192x8192", [relu, matmul]) == "8192x8192x8192"
    with pytest.raises(UsageError, match=r"relu has no case 'xyz'; there are 'f32 "):
        arguments.parse_cases("xyz", [relu])
    with pytest.raises(UsageError, match=r"the 2 operators have no case 'bf16'; there are 'f32 "):
        arguments.parse_cases("bf16", [relu, matmul], ("f32",))


def test_dtypes_that_no_operator_has_are_refused() -> None:
    relu, elu = catalogue.get("relu"), catalogue.get("elu")
    assert arguments.parse_dtypes("e4m3,bf16", [relu, elu]) == ("e4m3", "bf16")
    assert arguments.parse_dtypes("i8") == ("i8",)
    with pytest.raises(UsageError, match=r"the 2 operators have no dtype 'i8'; known: f32, "):
        arguments.parse_dtypes("bf16,i8", [relu, elu])


def test_host_times_alone_leave_out_every_case() -> None:
    ops = [catalogue.get("relu"), catalogue.get("softmax")]
    assert bench.count_cases(ops, bench.Plan()) > 0
    assert bench.count_cases(ops, bench.Plan(timed=False)) == 0


@pytest.mark.parametrize("replays", [0.01, 1.5, 20, 1000])
def test_turns_are_spread_evenly(replays: float) -> None:
    takes = timing.turns_of(replays)
    for turns in range(takes, timing.MAX_TURNS + 1):
        taken = [turn for turn in range(turns) if timing.takes_part(turn, takes, turns)]
        assert len(taken) == takes
        assert max(b - a for a, b in itertools.pairwise(taken)) <= math.ceil(turns / takes)


# --- report ---------------------------------------------------------------------------------------


@pytest.fixture
def results() -> report.Results:
    relu = catalogue.get("relu")
    pack = next(v for v in relu.variants if v.dtype == "bf16" and v.rung.name == "pack")
    wrong = {"case": "bf16 256Mi", "impl": "liger", "error": "3 of 9 elements are wrong"}
    rows = [
        row("bf16 16Mi", "auto", 1.0),
        row("bf16 16Mi", "torch", 2.0),
        row("bf16 256Mi", "auto", 10.0, 36_000_000_000),
        row("bf16 256Mi", "torch", 9.0, 36_000_000_000),
        row("bf16 256Mi", "compile", 20.0, 36_000_000_000),
        row("bf16 256Mi", pack.name, 10.0, 36_000_000_000),
        wrong,
    ]
    made = recorded.made(*rows)
    made["overhead"] = [
        {"case": "bf16 4x1024", "impl": impl, "cpu_us": us}
        for impl, us in (("auto", 6.5), ("torch", 4.4), ("torch.add", 5.0))
    ]
    lock: Any = recorded.Everything()
    return report.Results("h200", {"relu": made}, None, lock=lock)


def test_headline_takes_the_largest_case_and_hides_no_loss(results: report.Results) -> None:
    text = report.block("headline:bf16", results)
    assert (
        "| `relu` | bf16 256Mi | 10.000 ms | 3.60 TB/s | 90 % | 0.90× | 2.00× | 0.90× (PyTorch) |"
        in text
    )
    assert report.block("elementwise", results).count("`relu`") == 1
    assert report.block("norm", results) == "No records yet."


def test_families_count_what_they_lose(results: report.Results) -> None:
    lines = report.block("families", results).splitlines()
    assert lines[2:] == ["| elementwise | 1 | 2 | 95 % | 1.34× | 2.00× | 1.34× | 1 of 2 |"]
    assert report.block("families", report.Results("h200", {}, None)) == "No records yet."


def test_all_cases_stand_beside_the_limit(results: report.Results) -> None:
    text = report.all_cases(results, [catalogue.get("relu")])
    assert text.splitlines()[2].startswith("| `relu`")
    assert "| 2 | 95 % | – | 1.34× | 1.41× | 2.00× | 2.22× |" in text


def test_short_calls_stand_beside_a_copy(results: report.Results) -> None:
    copies = [[1000, 2.0], [2000, 3.0], [4000, 5.0]]
    times = [limits.copy_ms({"copies": copies}, moved) for moved in (999, 1000, 1500, 3000, 8000)]
    assert times == [None, 2.0, 2.5, 4.0, 10.0]
    assert limits.copy_ms({}, 1000) is None
    known = LIMITS | {"copies": [[4 * 10**9, 0.8], [4 * 10**10, 9.5]]}
    text = report.all_cases(dataclasses.replace(results, limits=known), [catalogue.get("relu")])
    assert "| 2 | 95 % | 83 % | 1.34×" in text


def test_no_loss_is_hidden(results: report.Results) -> None:
    relu = catalogue.get("relu")
    line = "| `relu` | bf16 256Mi | 10.000 ms | 9.000 ms (PyTorch) | 0.90× | 1.00× | 90 % |"
    assert report.slower(results, [relu]).splitlines()[2] == line
    for row in results.records["relu"]["rows"]:
        if row["impl"] == "torch":
            row["ms"] = 9.9
    assert report.slower(results, [relu]) == "None on record."


def test_ladder_follows_the_spec(results: report.Results) -> None:
    lines = report.block("ladder:relu", results).splitlines()
    rungs = [rung.name for rung in catalogue.get("relu").ladder]
    assert [line.split("`")[1] for line in lines[2 : 2 + len(rungs)]] == rungs
    assert any("3.60 TB/s (90 %)" in line and "`pack`" in line for line in lines)
    assert any(line.startswith("| liger |  | no number") for line in lines)


def test_wrong_answers_have_no_number(results: report.Results) -> None:
    text = report.block("cases:relu", results)
    assert "no number" in text
    assert "- bf16 256Mi, liger: 3 of 9 elements are wrong" in text


def test_other_blocks(results: report.Results) -> None:
    assert "| `relu` | bf16 4x1024 | 6.5 | 4.4 | 5.0 |" in report.block("overhead", results)
    assert "NVIDIA H200" in report.block("environment", results)
    with pytest.raises(ValueError, match="no table is called 'nonsense'"):
        report.block("nonsense", results)


def test_fill_is_idempotent(results: report.Results) -> None:
    text = (
        "intro\n<!-- warpsmith:begin headline:bf16 -->\nold\n\nold\n"
        "<!-- warpsmith:end headline:bf16 -->\n"
        "more\n<!-- warpsmith:begin limits -->\n<!-- warpsmith:end limits -->\nend\n"
    )
    filled = report.fill(text, results)
    assert "old" not in filled
    assert filled.startswith("intro\n")
    assert filled.endswith("\nend\n")
    assert report.fill(filled, results) == filled
    with pytest.raises(ValueError, match="do not pair up"):
        report.fill("<!-- warpsmith:begin limits -->\n", results)


def test_stale(results: report.Results) -> None:
    cases = bench.case_names(catalogue.get("relu"), bench.Plan())
    rows = [{"case": case, "impl": "auto", "ms": 1.0} for case in cases]

    def told(*rows: dict[str, Any], **changed: Any) -> list[str]:
        results.records["relu"] = recorded.made(*rows, **changed)
        return freshness.stale(results)

    messages = told(*rows)
    assert not any(m.startswith("relu:") for m in messages)
    assert "mma_peak: no record for h200" in messages
    assert f"relu: not measured at {cases[0]}" in told(*rows[1:])
    assert "relu: no number at f32 1Mi: wrong" in told(
        {"case": "f32 1Mi", "impl": "auto", "error": "wrong"}
    )
    missing = f"relu: not measured at {', '.join(cases[:4])} and {len(cases) - 4} more"
    assert missing in told()
    assert missing in told(*({"case": case, "impl": "torch"} for case in cases))
    older = told(*({**row, "code": "before"} for row in rows[:2]), *rows[2:])
    assert f"relu: auto is not what was measured, at {cases[0]}, {cases[1]}" in older
    pack = next(v for v in catalogue.get("relu").variants if v.rung.name == "pack")
    older = told(*rows, {"case": cases[0], "impl": pack.name, "ms": 1.0, "code": "before"})
    assert f"relu: pack is not what was measured, at {cases[0]}" in older


def test_the_self_tests_have_to_be_on_record(tmp_path: Path) -> None:
    entry = {"source": csrc.source_hash("selftest"), "failed": []}
    for entries, wanted in (
        ({}, ["selftest: not verified on h200"]),
        (
            {"selftest": entry | {"failed": ["device vec: wrong"]}},
            ["selftest: verification failed on h200"],
        ),
        (
            {"selftest": entry | {"source": "0"}},
            ["selftest: verified on h200 before a change of source"],
        ),
        ({"selftest": entry}, []),
    ):
        json_files.write_json(tmp_path / "h200" / "verify.json", {"ops": entries})
        found = freshness.unverified(tmp_path, "h200", None)
        assert [m for m in found if m.startswith("selftest")] == wanted


def test_a_verification_counts_for_cards_that_launch_the_same(tmp_path: Path) -> None:
    relu = catalogue.get("relu")
    lock: Any = recorded.Everything()
    hopper = {"sm": "90", "multiprocessors": 132}
    verified = {"device": hopper, "ops": {"relu": recorded.entry(relu)}}
    json_files.write_json(tmp_path / "h200" / "verify.json", verified)
    for device, counts in ((hopper, True), ({"sm": "90", "multiprocessors": 114}, False)):
        json_files.write_json(tmp_path / "h100" / "limits.json", {"device": device})
        messages = freshness.unverified(tmp_path, "h100", lock)
        assert any(m.startswith("relu: not verified") for m in messages) is False
        assert (messages == ["no verification on record for h100"]) != counts
        entry = freshness.verification("relu", tmp_path, "h100", lock)
        assert (entry is not None) == counts


@pytest.mark.parametrize(
    ("later", "parts"),
    [({}, ()), ({"relu": "pack"}, ("pack",)), ({"relu": "all"}, None), ({"gelu": "all"}, ())],
)
def test_what_a_verification_does_not_speak_for(
    later: dict[str, str], parts: tuple[str, ...] | None
) -> None:
    lock: Any = recorded.Everything(**later)
    entry = recorded.entry(catalogue.get("relu"))
    found = freshness.changed("relu", entry, lock)
    if parts is None:
        assert "python" in found
        assert freshness.rungs_to_verify("relu", entry, lock) is None
    else:
        assert found == parts
        assert freshness.rungs_to_verify("relu", entry, lock) == frozenset(parts)
    assert "nvcc" in freshness.changed("relu", entry | {"nvcc": "12.9"}, lock)
    assert freshness.changed("relu", entry | {"failed": ["wrong"]}, lock) == ("all",)
    assert freshness.changed("relu", None, lock) == ("all",)


def test_a_verification_of_rungs_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relu = catalogue.get("relu")
    path = tmp_path / "verify.json"
    before = recorded.entry(relu, checks=9, date="2026-01-01")
    json_files.write_json(path, {"ops": {"relu": before}})
    monkeypatch.setattr(Lock, "load", lambda: recorded.Everything(relu="pack"))
    checked = [verify.Result("relu", "variants", "f32x4_pack (7,)", True)]
    freshness.record_verification(path, checked, {"relu": frozenset({"pack"})})
    (after,) = (json_files.read_json(path) or {})["ops"].values()
    assert after == before | {"rungs": {**before["rungs"], "pack": "later"}}


def test_what_the_sanitizer_found_is_said(tmp_path: Path) -> None:
    lock: Any = recorded.Everything()
    json_files.write_json(tmp_path / "h200" / "verify.json", {"ops": {}})
    relu = recorded.entry(catalogue.get("relu"), gpu="NVIDIA A100")
    unseen = "relu: these kernels have not been under compute-sanitizer"
    for entry, wanted in (
        ({}, [unseen]),
        (relu | {"rungs": {}, "tools": {}}, [unseen]),
        (relu | {"tools": {"memcheck": {"ok": True}}}, []),
        (
            relu | {"tools": {"memcheck": {"ok": False}}},
            ["relu: compute-sanitizer's memcheck found something on NVIDIA A100"],
        ),
    ):
        json_files.write_json(tmp_path / "sanitizer.json", {"ops": {"relu": entry}})
        found = freshness.unverified(tmp_path, "h200", lock)
        assert [m for m in found if m.startswith("relu:") and "sanitizer" in m] == wanted


def test_tables_mark_stale_records(results: report.Results) -> None:
    blocks = ("headline:bf16", "ladder:relu", "cases:relu")
    assert not any(report.AGED in report.block(name, results) for name in blocks)
    results.records["relu"]["rows"][0]["code"] = "before"
    assert all(report.AGED in report.block(name, results) for name in blocks)
    assert "| `relu` † | bf16 256Mi |" in report.block("headline:bf16", results)


def test_records_of_scripts_have_tables(tmp_path: Path) -> None:
    """Beside those of the operators, where they exist, and with the same mark when they age."""
    name = "fused_linear_cross_entropy"
    case = "bf16 8192x4096 to 32000"
    rows = [
        {"case": case, "impl": "auto", "ms": 9.5, "tflops": 678.0, "peak_mib": 512.0},
        {"case": case, "impl": "liger", "error": "relative errors [1]"},
    ]
    layer = record(*rows, source=report.OTHERS[name].source())
    peak = record(
        {"case": "mma_f16_f32", "impl": "registers", "tflops": 660.1},
        {"case": "f16 4096^3 NN", "impl": "f16_mma_peak_f32", "ms": 0.2, "tflops": 610.0,
         "of_mma_peak": 0.924, "of_cublas": 0.85},
        source="0",
    )  # fmt: skip
    for stem, made in ((name, layer), ("mma_peak", peak)):
        json_files.write_json(record_path(tmp_path, stem), made)
    found = report.Results.load(tmp_path)
    page = report.benchmarks_page(found, [], tmp_path)
    assert f"| {case} | warpsmith | 9.500 ms | 678 TFLOP/s | 512 MiB |" in page
    assert f"| {case} | liger | no number | – | – |" in page
    assert "| f16 4096^3 NN | f16_mma_peak_f32 | 200.0 µs | 610 TFLOP/s | 92 % | 85 % |" in page
    assert report.AGED not in report.block(f"other:{name}", found)
    assert report.AGED in report.block("other:mma_peak", found)
    assert any(m.startswith("mma_peak: its record") for m in freshness.stale(found))
    assert "mma.sync" not in report.benchmarks_page(report.Results("none", {}, None), [], tmp_path)


def test_plots(results: report.Results, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from warpsmith.records import plots

    shown = plots.kept("![](docs/plots/h200/relu.sizes.png) ![](docs/plots/h200/no_op.sizes.png)")
    overviews = [f"{family}.png" for family in catalogue.FAMILIES]
    assert shown == [*overviews, "attention_memory.png", "relu.sizes.png"]
    wanted = [*shown, *plots.of_operators([catalogue.get("relu"), catalogue.get("silu")])]
    drawn = plots.draw(results, tmp_path / "plots", list(dict.fromkeys(wanted)))
    names = [path.name for path in drawn]
    assert names == ["elementwise.png", "relu.sizes.png", "relu.ladder.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
    page = report.benchmarks_page(results, drawn, tmp_path)
    assert all(f"(plots/{name})" in page for name in names)


def test_report_without_matplotlib_is_one_line(
    results: report.Results,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = tmp_path / "benchmarks" / "results"
    json_files.write_json(record_path(root / "h200", "relu"), results.records["relu"])
    monkeypatch.setattr(limits, "results_root", lambda: root)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, _, err = run(capsys, "report", "--gpu", "h200")
    assert status == 2
    assert "pip install 'warpsmith[bench]'" in err
    assert "--no-plots" in err
    assert err.strip().count("\n") == 0
    assert run(capsys, "report", "--gpu", "h200", "--no-plots")[0] == 0
