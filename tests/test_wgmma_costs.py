"""The script that fits the costs of tiles of wgmma: what it times, and what it makes of times."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from warpsmith.core import catalogue
from warpsmith.gemm import wgmma_plan

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
SMS = 132
#: Neither what is written today, nor near it.
TRUE = {"wide_apart_percent": 13, "swapped_scales_percent": 37}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """With costs of its own, few cases, and copies of the files that it writes."""
    monkeypatch.syspath_prepend(str(FOLDER))
    module = importlib.import_module("wgmma_costs")
    costs = SimpleNamespace(**vars(wgmma_plan.costs()))
    monkeypatch.setattr(wgmma_plan, "costs", lambda: costs)
    monkeypatch.setattr(module, "SQUARES", (1024, 4096))
    monkeypatch.setattr(module, "WEIGHTS", ((4096, 4096), (28672, 4096)))
    monkeypatch.setattr(module, "ROWS", (64, 256, 1024))
    monkeypatch.setattr(module, "HEADER", tmp_path / module.HEADER.name)
    shutil.copy(FOLDER.parent / "csrc/gemm/wgmma_costs.h", module.HEADER)
    monkeypatch.setattr(wgmma_plan, "COSTS", tmp_path / wgmma_plan.COSTS.name)
    return module


def rows_of(script: ModuleType, costs: dict[str, int]) -> list[dict[str, Any]]:
    """Cases with the times that the model says, of what has a chance by today's costs."""
    rows = script.cases(script.SUMS, SMS)
    for row in rows:
        sizes = script.sizes_of(row)
        row["times"] = [{"tile": t, "slices": s} for t, s in script.with_a_chance(sizes)]
    known = vars(wgmma_plan.costs())
    today = {**known}
    known.update(costs)
    for row in rows:
        for time, clocks in zip(row["times"], script.clocks_of(row), strict=True):
            time["us"] = clocks / 1755
    known.update(today)
    return rows


def without_values(header: str) -> str:
    return re.sub(r"(?<= = )\d+; *(?=//)", lambda found: " " * len(found[0]), header)


def test_costs_of_sums_that_leave_are_found_in_times_of_the_model(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before, old = {**vars(wgmma_plan.costs())}, script.HEADER.read_text()
    taken = {"gpu": "a GPU", "rows": rows_of(script, TRUE)}
    (tmp_path / "times.json").write_text(json.dumps(taken))
    arguments = ["wgmma_costs.py", "--fit", str(tmp_path / "times.json"), "--only", "fp8"]
    monkeypatch.setattr("sys.argv", arguments)
    assert script.main() == 0

    costs, new = json.loads(wgmma_plan.COSTS.read_text()), script.HEADER.read_text()
    dated = {"date": costs["date"], "gpu": "a GPU"}
    assert costs == {**before, **TRUE, **dated}
    assert "kWideApartPercent = 13; " in new
    assert "kSwappedScalesPercent = 37; " in new
    assert without_values(new) == without_values(old).replace(before["date"], costs["date"])


def test_fits_touch_nothing_but_their_own_costs(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "STEPS", 3)
    rows = rows_of(script, {"step_percent": 150, "memory_rate": 2000, **TRUE})
    known = vars(wgmma_plan.costs())
    for dtype, fitted in script.FITTED.items():
        of_dtype = [row for row in rows if script.dtype_of(row) == dtype]
        before, misfit = {**known}, script.misfit(of_dtype)
        script.fit(of_dtype, fitted)
        assert {name for name in known if known[name] != before[name]} <= set(fitted)
        assert script.misfit(of_dtype) < misfit
    every = {name for fitted in script.FITTED.values() for name in fitted}
    assert set(known) - every == {"date", "gpu", "least_steps", "rows_of_invariant"}


def test_what_is_timed_is_what_the_model_is_asked_about(script: ModuleType) -> None:
    for row in script.cases(script.SUMS, SMS):
        sizes = script.sizes_of(row)
        made = script.operands(row, "meta")
        product = script.product(row)
        assert product(*made).shape == (sizes.m, sizes.n)
        timed = list(script.with_a_chance(sizes))
        chosen = wgmma_plan.choose(sizes, menu=script.menu_of(sizes))
        assert len(set(timed)) == len(timed)
        assert chosen.tile in {tile for tile, _ in timed}
        if script.dtype_of(row) == "bf16" or torch.cuda.is_available():
            continue
        rungs = catalogue.get("scaled_matmul").ladder
        rung = next(rung for rung in rungs if rung.name == "wgmma_peak")
        said = rung.plan(*made, "bf16", False)
        assert said == f"{chosen}: {chosen.clocks} clocks expected, the least of its menu"


def test_tiles_that_scales_of_blocks_make_slow_are_timed_whatever_that_is_said_to_cost(
    script: ModuleType,
) -> None:
    (row,) = (
        row
        for row in script.cases(["fp8"], SMS)
        if row["sums"] == "scaled" and row["m"] == 64 and row["n"] == 28672
    )
    sizes = script.sizes_of(row)
    menu = script.menu_of(sizes)
    for percent in (1, 1000):
        wgmma_plan.costs().swapped_scales_percent = percent
        assert any(menu[tile].swapped for tile, _ in script.with_a_chance(sizes))
