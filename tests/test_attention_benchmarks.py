"""The scripts that measure attention: what they compare computes the same."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from warpsmith.records import plots, report

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name",
    [
        *("attention_memory", "fused_linear_cross_entropy", "first_call", "host_times"),
        *("mma_peak", "models", "wgmma_costs"),
    ],
)
def test_without_a_gpu_a_script_ends_in_a_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", [name])
    with pytest.raises(SystemExit) as ended:
        script(name).main()
    assert isinstance(ended.value.code, str)
    assert "\n" not in ended.value.code


def test_naive_fused_and_flash_agree() -> None:
    module = script("attention_memory")
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 9, heads, 8, generator=generator) for heads in (4, 2, 2))
    block = module.Block(4, 2, 8, 48, torch.float32, "cpu")
    x = torch.randn(2, 9, 32, generator=generator)
    found = module.implementations("cpu")
    assert set(found) == {"naive", "fused", "flash"}
    for attend in found.values():
        torch.testing.assert_close(attend(q, k, v), module.naive(q, k, v), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(block(attend, x), block(module.naive, x), rtol=1e-5, atol=1e-5)
    changed = module.naive(q, k, v).clone()
    changed[0, 0, 0, 0] += 1.0
    rows: dict[str, Any] = {"naive": {}, "wrong": {}}
    exact = module.naive(q.double(), k.double(), v.double()).float()
    calls = {"naive": lambda: module.naive(q, k, v), "wrong": lambda: changed}
    assert set(module.judged(calls, exact, rows)) == {"naive"}
    assert "relative error" in rows["wrong"]["error"]


def test_the_plot_has_every_curve(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    tokens = script("attention_memory").TOKENS[:3]
    rows = [
        {"case": f"bf16 {what} of {n} tokens", "impl": name, "ms": n * 1e-3, "peak_mib": n + 1.0}
        for what in ("attention", "block")
        for n in tokens
        for name in ("naive", "flash")
    ]
    rows.append({"case": "bf16 attention of 16384 tokens", "impl": "naive", "error": "memory"})
    results = report.Results("h200", {}, None, {plots.MEMORY: {"rows": rows}})
    names = [f"{plots.MEMORY}.png"]
    (drawn,) = plots.draw(results, tmp_path, names)
    assert drawn.stat().st_size > 1000
    assert plots.draw(report.Results("h200", {}, None), tmp_path, names) == []
