"""Timing arithmetic, records, tables, inspection and the command line: all that needs no GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import warpsmith
from warpsmith import (
    arguments,
    bench,
    build,
    catalogue,
    cli,
    freshness,
    inspection,
    limits,
    occupancy,
    report,
    sources,
    timing,
)
from warpsmith.console import UsageError
from warpsmith.resource_report import resource_report
from warpsmith.timing import Timing

ENVIRONMENT = {"gpu": "NVIDIA H200", "driver": "1", "cuda": "13.0", "torch": "2.11", "triton": None}
LIMITS = {"measured": {"copy_tbps": 4.0, "bf16_tflops": 800.0}}


def row(case: str, impl: str, ms: float, moved: int = 4_000_000_000) -> dict[str, Any]:
    made = {"case": case, "impl": impl}
    bench.fill_row(made, Timing.of([ms] * 3, "graph"), LIMITS, case.split(" ")[0], moved, 0)
    return made


def record(*rows: dict[str, Any], source: str = "abc", date: str = "2026-01-01") -> dict[str, Any]:
    return {"environment": ENVIRONMENT | {"date": date}, "source": source, "rows": list(rows)}


# --- timing ---------------------------------------------------------------------------------------


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
    limits.write_json(tmp_path / "deep" / "relu.json", content)
    assert limits.read_json(tmp_path / "deep" / "relu.json") == content
    assert limits.read_json(tmp_path / "none.json") is None
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["relu.json"]


# --- records --------------------------------------------------------------------------------------


def test_merge_replaces_rows_of_the_same_sources() -> None:
    old = record(
        row("bf16 1Mi", "auto", 1.0), row("bf16 1Mi", "torch", 2.0), row("bf16 9Mi", "auto", 9.0)
    )
    new = record(row("bf16 1Mi", "auto", 0.5), row("bf16 1Mi", "quack", 3.0), date="2026-02-02")
    merged = bench.merge(old, new)
    got = {(r["case"], r["impl"]): r["ms"] for r in merged["rows"]}
    assert got == {
        ("bf16 1Mi", "auto"): 0.5,
        ("bf16 1Mi", "torch"): 2.0,
        ("bf16 1Mi", "quack"): 3.0,
        ("bf16 9Mi", "auto"): 9.0,
    }
    assert [r["case"] for r in merged["rows"]] == ["bf16 1Mi"] * 3 + ["bf16 9Mi"]
    assert merged["environment"]["date"] == "2026-02-02"


def test_merge_starts_over() -> None:
    old = record(row("bf16 1Mi", "torch", 2.0))
    new = record(row("bf16 1Mi", "auto", 0.5), source="other")
    assert bench.merge(old, new) == new
    assert bench.merge(None, new) == new
    newer = record(row("bf16 1Mi", "auto", 0.5))
    newer["environment"] = newer["environment"] | {"driver": "2"}
    assert bench.merge(old, newer) == newer


def test_a_row_carries_rate_and_fraction() -> None:
    made = row("bf16 1Mi", "auto", 2.0)
    assert made["tbps"] == pytest.approx(2.0)
    assert made["of_limit"] == pytest.approx(0.5)
    assert "method" not in made


def test_ladder_cases_show_every_rung_that_takes_a_benchmark() -> None:
    for op in catalogue.load().values():
        for dtype in op.bench_dtypes:
            samples = {s.label: s for s in op.bench if s.dtypes is None or dtype in s.dtypes}
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


@pytest.mark.parametrize("replays", [0.01, 1.5, 20, 1000])
def test_turns_are_spread_evenly(replays: float) -> None:
    takes = timing.turns_of(replays)
    for turns in range(takes, timing.MAX_TURNS + 1):
        taken = [turn for turn in range(turns) if timing.takes_part(turn, takes, turns)]
        assert len(taken) == takes
        assert max(b - a for a, b in itertools.pairwise(taken)) <= math.ceil(turns / takes)


def test_sources_cover_spec_and_triton() -> None:
    for op in catalogue.load().values():
        names = {path.name for path in sources.files(op)}
        assert f"{op.triton.partition(':')[0]}.py" in names
        assert len(names) > 1
        assert len(sources.of_benchmark(op)) == 16
    relu = {path.name for path in sources.files(catalogue.get("relu"))}
    assert {"unary.py", "map_triton.py", "layout.py", "samples.py"} <= relu
    assert "gated.py" not in relu


def test_times_depend_on_no_sample_that_is_not_timed() -> None:
    norm = catalogue.get("rms_norm")
    timed = {path.name for path in sources.files(norm, samples=False)}
    assert {"rms_norm.py", "rms_norm_triton.py"} <= timed
    assert not any("cases" in name for name in timed)
    assert "rms_norm_cases.py" in {path.name for path in sources.files(norm)}
    fewer = dataclasses.replace(norm, samples=norm.samples[:1])
    assert sources.of_benchmark(fewer) == sources.of_benchmark(norm)
    shorter = dataclasses.replace(norm, bench=norm.bench[1:])
    assert sources.of_benchmark(shorter) != sources.of_benchmark(norm)


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
    made = record(*rows, source=sources.of_benchmark(relu))
    made["overhead"] = [
        {"case": "bf16 4x1024", "impl": impl, "cpu_us": us}
        for impl, us in (("auto", 6.5), ("torch", 4.4), ("torch.add", 5.0))
    ]
    return report.Results("h200", {"relu": made}, None)


def test_headline_takes_the_largest_case_and_hides_no_loss(results: report.Results) -> None:
    text = report.block("headline:bf16", results)
    assert (
        "| `relu` | bf16 256Mi | 10.000 ms | 3.60 TB/s | 90 % | 0.90× | 2.00× | 0.90× (PyTorch) |"
        in text
    )
    assert report.block("elementwise", results).count("`relu`") == 1
    assert report.block("norm", results) == "No records yet."


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
    cases = bench.missing_cases(None, catalogue.get("relu"))
    rows = [{"case": case, "impl": "auto", "ms": 1.0} for case in cases]
    results.records["relu"]["rows"] = rows
    messages = freshness.stale(results)
    assert not any(m.startswith("relu:") for m in messages)
    assert "mma_peak: no record for h200" in messages
    results.records["relu"]["rows"] = rows[1:]
    assert f"relu: 1 cases not measured, '{cases[0]}' first" in freshness.stale(results)
    results.records["relu"]["rows"] = [{"case": "f32 1Mi", "impl": "auto", "error": "wrong"}]
    assert "relu: no number at f32 1Mi: wrong" in freshness.stale(results)
    results.records["relu"]["rows"] = []
    missing = f"relu: {len(cases)} cases not measured, '{cases[0]}' first"
    assert missing in freshness.stale(results)
    results.records["relu"]["rows"] = [{"case": case, "impl": "torch"} for case in cases]
    assert missing in freshness.stale(results)
    results.records["relu"] |= {"rows": rows, "source": "0"}
    assert any(m.startswith("relu: its record (") for m in freshness.stale(results))


def test_the_self_tests_have_to_be_on_record(tmp_path: Path) -> None:
    entry = {"source": build.source_hash("selftest"), "failed": []}
    for entries, wanted in (
        ({}, ["selftest: not verified on h200"]),
        (
            {"selftest": entry | {"failed": ["device vec: wrong"]}},
            ["selftest: verification failed on h200"],
        ),
        (
            {"selftest": entry | {"source": "0"}},
            ["selftest: verified on h200 before its sources changed"],
        ),
        ({"selftest": entry}, []),
    ):
        limits.write_json(tmp_path / "h200" / "verify.json", {"ops": entries})
        found = freshness.unverified(tmp_path, "h200")
        assert [m for m in found if m.startswith("selftest")] == wanted


def test_what_the_sanitizer_found_is_said(tmp_path: Path) -> None:
    limits.write_json(tmp_path / "h200" / "verify.json", {"ops": {}})
    relu = {"source": freshness.verified_source("relu"), "gpu": "NVIDIA A100"}
    unseen = "relu: these sources have not been under compute-sanitizer"
    for entry, wanted in (
        ({}, [unseen]),
        (relu | {"source": "0", "tools": {}}, [unseen]),
        (relu | {"tools": {"memcheck": {"ok": True}}}, []),
        (
            relu | {"tools": {"memcheck": {"ok": False}}},
            ["relu: compute-sanitizer's memcheck found something on NVIDIA A100"],
        ),
    ):
        limits.write_json(tmp_path / "sanitizer.json", {"ops": {"relu": entry}})
        found = freshness.unverified(tmp_path, "h200")
        assert [m for m in found if m.startswith("relu:") and "sanitizer" in m] == wanted


def test_tables_mark_stale_records(results: report.Results) -> None:
    blocks = ("headline:bf16", "ladder:relu", "cases:relu")
    assert not any(report.AGED in report.block(name, results) for name in blocks)
    results.records["relu"]["source"] = "0"
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
        limits.write_json(bench.record_path(tmp_path, stem), made)
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
    from warpsmith import plots

    drawn = plots.draw(results, tmp_path / "plots")
    names = [path.name for path in drawn]
    assert names == ["elementwise.png", "relu.ladder.png", "relu.sizes.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
    page = report.benchmarks_page(results, drawn, tmp_path)
    assert all(f"(plots/{name})" in page for name in names)


# --- inspection -----------------------------------------------------------------------------------

SYMBOL = "_ZN9warpsmith17map_stream_kernelINS_5UnaryINS_4ReluEEE6__halfLb1EEEvPT0_"
DUMP = f"""
Fatbin elf code:
================
arch = sm_80
code version = [1,8]

Resource usage:
 Common:
  GLOBAL:0
 Function {SYMBOL}:
  REG:32 STACK:0 SHARED:128 LOCAL:0 CONSTANT[0]:376 TEXTURE:0 SURFACE:0 SAMPLER:0

Fatbin elf code:
================
arch = sm_90a
code version = [1,8]

Resource usage:
 Common:
  GLOBAL:0
 Function {SYMBOL}:
  REG:40 STACK:24 SHARED:1152 LOCAL:8 CONSTANT[0]:552 TEXTURE:0 SURFACE:0 SAMPLER:0
"""


def test_resources_are_parsed() -> None:
    old, new = inspection.parse_resources(DUMP)
    assert (old.arch, old.registers, old.static_smem, old.stack) == ("80", 32, 128, 0)
    assert (new.arch, new.registers, new.static_smem, new.stack, new.local) == (
        "90a",
        40,
        128,
        24,
        8,
    )
    assert old.name == "map_stream_kernel<Unary<Relu>, f16, true>"


@pytest.mark.parametrize(
    ("name", "tidied"),
    [
        (
            "void warpsmith::(anonymous namespace)::k<warpsmith::Unary<warpsmith::Relu>, "
            "__nv_bfloat16, (int)8>(__nv_bfloat16 const*, long)",
            "k<Unary<Relu>, bf16, 8>",
        ),
        (
            "constexpr std::string_view warpsmith::detail::spelling() [with auto kernel = "
            "(& warpsmith::{anonymous}::k<float, true>); "
            "std::string_view = std::basic_string_view<char>]",
            "k<f32, true>",
        ),
        ("plain_kernel", "plain_kernel"),
    ],
)
def test_tidy(name: str, tidied: str) -> None:
    assert inspection.tidy(name) == tidied


def test_sass_is_trimmed() -> None:
    listing = (
        '\t.headerflags @"EF"\n'
        "        /*0000*/   LDC R1, c[0x0][0x28] ;    /* 0x00000a00ff017b82 */\n"
        "                                          /* 0x000fe20000000800 */\n"
        ".L_x_0:\n        /*0010*/   BRA `(.L_x_0);  /* 0xfffffffc00fc7947 */\n"
    )
    assert inspection._body(listing) == "0000  LDC R1, c[0x0][0x28]\n.L_x_0:\n0010  BRA `(.L_x_0)"


def test_resource_report_finds_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "_cuobjdump", lambda *arguments, **options: DUMP)
    log = tmp_path / "elementwise.build.log"
    log.write_text(
        "ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async are serialized\nfine\n"
    )
    found = resource_report([tmp_path / "warpsmith_elementwise.so"], archs=["80", "90a"])
    assert len(found.kernels) == 2
    assert found.kernels[0].ops == ("relu",)
    assert len(found.problems) == 2
    assert "stack 24 B, local 8 B" in found.problems[0]
    assert "C7510" in found.problems[1]


@pytest.mark.parametrize(
    ("dump", "problem"),
    [
        ("", "no kernel could be read"),
        (DUMP[: DUMP.index("arch = sm_90a")], "no kernel for sm_90a"),
        (DUMP.replace("sm_90a", "sm_90"), "no kernel for sm_90a"),
    ],
)
def test_resource_report_misses_kernels(
    dump: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "_cuobjdump", lambda *arguments, **options: dump)
    library = tmp_path / "warpsmith_elementwise.so"
    found = resource_report([library], archs=["80", "90a"])
    assert [p for p in found.problems if "no kernel" in p] == [f"{library.name}: {problem}"]


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks", "share"),
    [
        ("80", 256, 32, 0, 8, 1.0),
        ("89", 256, 32, 0, 6, 1.0),
        ("90a", 256, 128, 0, 2, 0.25),
        ("90a", 96, 41, 0, 13, 0.6094),  # 40 warps by registers
        ("89", 32, 16, 0, 24, 0.5),  # as many as there may be
        ("89", 128, 64, 99 << 10, 1, 0.0833),
        ("80", 256, 168, 48 << 10, 1, 0.125),
        ("90a", 1024, 80, 0, 0, 0.0),
    ],
)
def test_occupancy(
    arch: str, threads: int, registers: int, shared: int, blocks: int, share: float
) -> None:
    """The numbers are those of `cuda_occupancy.h`."""
    assert occupancy.occupancy(arch, threads, registers, shared) == (blocks, share)
    assert occupancy.occupancy("75", threads, registers, shared) is None


#: nvcc takes it: the call is in a template.
MISTAKE = """
struct Rows {
  int n;
  __device__ int size() const { return n; }
};
template <class Body> void visit(Body&& body) { body.template operator()<Rows>(); }
extern "C" bool is_long(int n) {
  bool found = false;
  visit([&]<class T>() { found = T{n}.size() > 3; });
  return found;
}
"""


@pytest.mark.parametrize("source", [MISTAKE, MISTAKE.replace("__device__", "")])
def test_resource_report_finds_device_functions_called_by_the_host(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvcc = build.find_nvcc()
    if nvcc is None or shutil.which("nm") is None:
        pytest.skip("needs nvcc and nm")
    code, library = tmp_path / "mistake.cu", tmp_path / "mistake.so"
    code.write_text(source)
    flags = ["-std=c++20", "-arch=sm_90", "-shared", "-Xcompiler", "-fPIC"]
    subprocess.run([nvcc, *flags, code, "-o", library], check=True)
    kernels = inspection.parse_resources(DUMP)[:1]
    monkeypatch.setattr(inspection, "resources", lambda library: kernels)
    problems = resource_report([library]).problems
    assert len(problems) == (source is MISTAKE)


def test_inspect_says_what_it_compiles_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[tuple[str, int, int]] = []

    class Bar:
        def update(self, task: str, completed: int) -> None:
            told.append((task, completed, len(build.sources("loss"))))

    @contextlib.contextmanager
    def bar(label: str, total: int) -> Iterator[tuple[Bar, str]]:
        yield Bar(), label

    def compiler(family: str, archs: list[str], out: Path, on_progress: build.Progress) -> Path:
        total = len(build.sources(family))
        on_progress(family, total, total)
        out.mkdir(parents=True)
        (out / f"warpsmith_{family}.so").touch()
        return out

    monkeypatch.setenv("WARPSMITH_CACHE", str(tmp_path))
    monkeypatch.delenv("WARPSMITH_LIBRARY_DIR", raising=False)
    monkeypatch.setattr(build, "_device_archs", lambda: ())
    monkeypatch.setattr(build, "why_no_compiler", lambda: None)
    monkeypatch.setattr(build, "_compile", compiler)
    monkeypatch.setattr(inspection, "progress_bar", bar)
    path = inspection.library_for("loss", "80")
    assert capsys.readouterr().err == f"compiling 'loss' for sm_80, once, into {path.parent}\n"
    assert [(task, done == total) for task, done, total in told] == [("compiling loss", True)]
    assert inspection.library_for("loss", "80") == path
    assert capsys.readouterr().err == ""


KERNEL = """
namespace warpsmith {
template <class T> __global__ void probe_kernel(T* x) { x[threadIdx.x] += T(1); }
template <class T> __global__ void __launch_bounds__(192) bound_kernel(T* x) {
  __shared__ T row[192];
  row[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = row[191 - threadIdx.x];
}
void launch(float* x) {
  probe_kernel<float><<<1, 32>>>(x);
  bound_kernel<float><<<1, 192>>>(x);
}
}
"""


def test_a_compiled_kernel_is_read(tmp_path: Path) -> None:
    nvcc = build.find_nvcc()
    if nvcc is None or inspection.find_tool("cuobjdump") is None:
        pytest.skip("needs nvcc and cuobjdump")
    source = tmp_path / "probe.cu"
    source.write_text(KERNEL)
    fatbin = tmp_path / "probe.fatbin"
    command = [nvcc, "-gencode=arch=compute_90,code=sm_90", "-fatbin", source, "-o", fatbin]
    subprocess.run(command, check=True)
    bound, probe = sorted(inspection.read_kernels(fatbin), key=lambda kernel: kernel.name)
    assert (probe.name, probe.arch, probe.local) == ("probe_kernel<f32>", "90", 0)
    assert probe.registers > 0
    assert probe.max_threads is probe.occupancy is None
    assert (bound.name, bound.static_smem) == ("bound_kernel<f32>", 192 * 4)
    assert (bound.max_threads, bound.threads, bound.dynamic_smem) == (192, 192, 0)
    assert (bound.blocks_per_sm, bound.occupancy) == (10, 0.9375)
    assert inspection._with_occupancy(probe, 64).threads == 64
    full = inspection._with_occupancy(bound, 1024, 100 << 10)
    assert (full.threads, full.dynamic_smem, full.blocks_per_sm) == (192, 100 << 10, 2)


@pytest.mark.skipif(
    not (shutil.which("c++") and Path(sysconfig.get_path("include"), "Python.h").exists()),
    reason="needs a C++ compiler and Python's headers",
)
def test_inspect_module_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPSMITH_CACHE", str(tmp_path))
    inspection.module.cache_clear()
    try:
        module = inspection.module()
        with pytest.raises(RuntimeError, match="nowhere"):
            module.Library("/nowhere/lib.so")
    finally:
        inspection.module.cache_clear()


# --- the command line -----------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_build_reports_every_kernel(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "warpsmith_elementwise.so"
    monkeypatch.setattr(inspection, "_cuobjdump", lambda *arguments, **options: DUMP)
    monkeypatch.setattr(build, "build", lambda *arguments: [library])
    call = ("build", "elementwise", "--out", str(tmp_path), "--report")
    status, out, _ = run(capsys, *call, "--arch", "80", "--arch", "89")
    assert status == 1
    assert f"{library.name}: no kernel for sm_89" in out
    status, out, _ = run(capsys, *call, "--arch", "80", "--json")
    found = json.loads(out)
    assert len(found["problems"]) == 1
    kernels = json.loads(Path(found["resources"]).read_text())
    assert [kernel["arch"] for kernel in kernels] == ["80", "90a"]
    assert len(kernels) == found["kernels"]


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "doctor", "--json")
    facts = json.loads(out)
    assert status == 0
    assert [f["family"] for f in facts["families"]] == list(catalogue.FAMILIES)
    assert {"GPU", "PyTorch", "nvcc", "Triton"} <= {m["what"] for m in facts["machine"]}
    status, out, _ = run(capsys, "doctor")
    assert status == 0
    assert "what serves it" in out


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "list", "--json")
    names = [*catalogue.load(), *catalogue.composites()]
    assert [entry["name"] for entry in json.loads(out)] == names
    status, out, _ = run(capsys, "list", "--op", "relu")
    assert status == 0
    assert all(rung.name in out for rung in catalogue.get("relu").ladder)


def test_composites_are_listed_with_what_serves_them(capsys: pytest.CaptureFixture[str]) -> None:
    name = "fused_linear_cross_entropy"
    _, out, _ = run(capsys, "list")
    assert name in out
    status, out, _ = run(capsys, "list", "--op", name)
    assert status == 0
    assert "cross_entropy_with_grad" in out
    assert "torch.mm" in out
    shapes = ("--shape", "8192x4096", "--shape", "128256x4096")
    call = ("which", name, *shapes, "--dtype", "bf16", "--sm", "90")
    _, out, _ = run(capsys, *call, "--json")
    first, second = json.loads(out)["parts"]
    assert first["serves"].startswith("cross_entropy_with_grad_bf16")
    assert second["serves"].startswith("cross_entropy_forward_bf16")
    assert "4 chunks of 2048 x 128256 logits" in first["purpose"]
    status, out, _ = run(capsys, *call)
    assert status == 0
    assert first["serves"] in out
    status, _, err = run(capsys, "which", name, "--shape", "3x4")
    assert status == 2
    assert "wants the shapes of x and weight" in err
    x, weight = torch.empty(300, 8, device="meta"), torch.empty(33, 8, device="meta")
    choice = warpsmith.which(name, x, weight, sm=90)
    assert choice.implementation == "composite"
    assert "2 chunks of 256 x 33 logits" in choice.reason


def test_which(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(
        capsys,
        "which",
        "rms_norm",
        "--shape",
        "8192x4096",
        "--dtype",
        "bf16",
        "--sm",
        "90",
        "--json",
    )
    answer = json.loads(out)
    assert status == 0
    assert answer["implementation"] == "cuda"
    assert [v["variant"] for v in answer["variants"] if v["chosen"]] == [
        answer["serves"].removeprefix("rms_norm_")
    ]
    status, out, _ = run(capsys, "which", "silu_and_mul", "--shape", "16x64", "--sm", "80")
    assert status == 0
    assert "silu_and_mul(16x64) on sm_80" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("which", "norm", "--shape", "3"), "'norm' is several operators: "),
        (("which", "relu", "--shape", "3", "--set", "a=1"), "relu has no argument 'a' to set"),
        (("which", "elu", "--shape", "3", "--set", "alpha=x"), "cannot read 'x' as alpha of elu"),
        (("which", "rellu", "--shape", "3"), "unknown operator 'rellu'; did you mean relu"),
        (("list", "--op", "zzzzzz"), "unknown operator 'zzzzzz'; `warpsmith list` shows them all"),
        (("which", "relu", "--shape", "3y"), "cannot read the shape '3y'"),
        (("which", "relu", "--shape", "3", "--dtype", "f17"), "unknown dtype 'f17'"),
        (("which", "relu", "--shape", "3", "--shape", "4"), "relu takes 1 tensors, got 2 shapes"),
        (("build", "nonsense"), "unknown family 'nonsense'"),
        (("build", "loss", "--arch", "xyz"), "'xyz' is no architecture; write 80, 89 or 90a"),
        (("build", "--arch", "80", "--arch", "70"), "sm_70 is too old: the kernels need sm_80"),
        (("inspect", "relu", "--arch", "sm_90"), "'sm_90' is no architecture"),
    ],
)
def test_usage_errors(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
@pytest.mark.parametrize("command", ["bench", "verify"])
def test_no_gpu_is_one_line(capsys: pytest.CaptureFixture[str], command: str) -> None:
    status, _, err = run(capsys, command, "relu")
    assert status == 2
    assert err.startswith(f"warpsmith: {command} needs a CUDA GPU, and PyTorch sees none")
    assert err.count("\n") == 1
    assert ("--device cpu" in err) == (command == "verify")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"warpsmith {warpsmith.__version__}\n"


def test_report_without_matplotlib_is_one_line(
    results: report.Results,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = tmp_path / "benchmarks" / "results"
    limits.write_json(bench.record_path(root / "h200", "relu"), results.records["relu"])
    monkeypatch.setattr(limits, "results_root", lambda: root)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, _, err = run(capsys, "report", "--gpu", "h200")
    assert status == 2
    assert "pip install 'warpsmith[bench]'" in err
    assert "--no-plots" in err
    assert err.strip().count("\n") == 0
    assert run(capsys, "report", "--gpu", "h200", "--no-plots")[0] == 0


def test_report_check_never_fails_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, _ = run(capsys, "report", "--check")
    assert status == 0


def test_verification_record_keeps_other_operators(tmp_path: Path) -> None:
    from types import SimpleNamespace

    def outcome(op: str, ok: bool) -> Any:
        return SimpleNamespace(
            op=op, kind="samples", label="bf16 (7,)", ok=ok, detail="" if ok else "off by one"
        )

    path = tmp_path / "verify.json"
    freshness.record_verification(path, [outcome("relu", True), outcome("relu", False)])
    freshness.record_verification(path, [outcome("silu", True)])
    ops = json.loads(path.read_text())["ops"]
    assert ops["relu"]["checks"] == 2
    assert ops["relu"]["failed"] == ["samples bf16 (7,): off by one"]
    assert ops["silu"]["kinds"] == {"samples": 1}
    assert ops["silu"]["source"] == sources.of_verification(catalogue.get("silu"))


def test_the_script_is_the_command() -> None:
    script = Path(__file__).resolve().parents[1] / "benchmarks" / "run.py"
    done = subprocess.run(
        [sys.executable, str(script), "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    assert all(
        flag in done.stdout
        for flag in ("--variants", "--dtype", "--cases", "--peers", "--sustained")
    )
