"""Layers of transformers' Llama and Qwen3 as they are and after `warpsmith.patch`:
`python benchmarks/patched.py [--compile] [--out <folder>]`.

Two layers of random weights at the model's own sizes, bf16, in the phases of `models.py`. `eager`
is transformers with the attention that PyTorch chooses; `patched` has all that `patch` serves,
`patched, sdpa` all but attention, and each of the others one kind alone beside PyTorch's attention.
With `--compile`, `compiled` and `compiled, patched` go through `torch.compile`. Prints a line for
each, with its error against float32 over that of `eager` and its speed over that of `eager`, and
with `--out` writes `patched.json`. An implementation that is further from float32 than `eager` by
more than a tenth gets no number. Needs transformers.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

if find_spec("warpsmith") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import warpsmith
from models import MODELS, PHASES, Model, Phase, Runner, relative_error
from warpsmith.core import json_files
from warpsmith.measure import bench, limits, timing

NAME = "patched"
#: Of the last hidden state, or of the gradient of the input, over that of `eager`.
MOST_ERROR_RATIO = 1.1
_PRINTED = ("case", "impl", "ms", "of_eager", "of_eagers_error", "error")
#: What is patched, by its name, and the attention beside it.
_KINDS = ("norms", "residuals", "gates", "rope")
_NONE = dict.fromkeys((*_KINDS, "activations", "attention", "loss"), False)
PATCHES: dict[str, tuple[dict[str, bool], str]] = {
    "patched": ({}, "warpsmith"),
    "patched, sdpa": ({"attention": False}, "sdpa"),
    **{kind: ({**_NONE, kind: True}, "sdpa") for kind in ("norms", "gates", "rope")},
    "norms, residuals": ({**_NONE, "norms": True, "residuals": True}, "sdpa"),
}


def runners(model: Model, phase: Phase, device: str, compiled: bool) -> dict[str, Any]:
    """Functions of nothing by the name of the implementation; `exact` is in f32."""
    runner = Runner(model, phase, torch.bfloat16, device)
    runner.to(torch.float32)
    exact = runner.run("sdpa").detach()
    runner.to(torch.bfloat16)
    found: dict[str, Any] = {"exact": lambda: exact, "eager": lambda: runner.run("sdpa")}
    for name, (options, attention) in PATCHES.items():
        found[name] = _patched(runner, options, attention)
    if compiled:
        for name, options in (("compiled", None), ("compiled, patched", {})):
            attention = "sdpa" if options is None else "warpsmith"
            found[name] = _patched(runner, options, attention, compiled=True)
    return found


def _patched(
    runner: Runner, options: dict[str, bool] | None, attention: str, compiled: bool = False
) -> Callable[[], Any]:
    made = copy.copy(runner)
    made.model = copy.deepcopy(runner.model)
    if options is not None:
        report = warpsmith.patch(made.model, **options)
        assert report, report
    if compiled:
        made.model.forward = torch.compile(made.model.forward)
    return lambda: made.run(attention)


def measure(
    model: Model, phase: Phase, seconds: float, known: dict[str, Any], compiled: bool
) -> list[bench.Row]:
    found = runners(model, phase, "cuda", compiled)
    exact = found.pop("exact")()
    rows: dict[str, bench.Row] = {}
    calls: dict[str, Callable[[int], Any]] = {}
    for name, run in found.items():
        row = rows[name] = {"case": f"bf16 {model.name} {phase}", "impl": name}
        error = relative_error(run().detach(), exact)
        least = rows["eager"].setdefault("relative_error", error)
        row["relative_error"] = error
        row["of_eagers_error"] = round(error / least, 4)
        if not error <= MOST_ERROR_RATIO * least:  # NaN is not
            row["error"] = f"relative error {error:.3g}, allowed {MOST_ERROR_RATIO * least:.3g}"
            print(row, flush=True)
            continue
        calls[name] = lambda i, run=run: run()
    del exact
    torch.cuda.empty_cache()
    graph = phase.name == "decode"  # where the host would be what is timed
    for name, time in timing.measure(calls, sets=1, seconds=seconds, graph=graph).items():
        bench.fill_row(rows[name], time, known, "bf16", 0, 0)
    for row in rows.values():
        if "ms" in row and "ms" in rows["eager"]:
            row["of_eager"] = round(rows["eager"]["ms"] / row["ms"], 4)
        print({key: row.get(key) for key in _PRINTED}, flush=True)
    return list(rows.values())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the record")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each implementation")
    parser.add_argument("--compile", action="store_true", help="torch.compile as well")
    parser.add_argument("--only", default="", help="models and phases whose names contain this")
    options = parser.parse_args(arguments)
    import transformers

    environment = {**limits.environment(), "transformers": transformers.__version__}
    rows: list[bench.Row] = []
    known = limits.ensure(options.out or limits.results_dir())
    for model in MODELS:
        for phase in PHASES:
            if options.only in f"{model.name} {phase}":
                rows += measure(model, phase, options.seconds, known, options.compile)
                torch.cuda.empty_cache()
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        record = {"environment": environment, "rows": rows}
        json_files.write_json(options.out / f"{NAME}.json", record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
