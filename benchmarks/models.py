"""Whole models as they are, patched, compiled, and both: `python benchmarks/models.py`.

Models of transformers and diffusers from their configurations (`model_runs.py`), of random weights
at their own widths and of few layers, bf16, in their phases: `prefill` and `forward`, `training`
(forward and backward), `decode` (a token for each of some sequences that have a cache). `eager` is
the model with the attention that PyTorch chooses; `patched` is `warpsmith.patch` of it, and
`patched, linear` has its matrix products served here as well; `compiled` and `compiled, patched` go
through `torch.compile`, each afresh and for the one shape; `liger` is Liger's patch, where that is
installed (`--site FOLDER` finds what lies there).

For each: its time, which in `decode` is that of the host too but where it says "as a graph"; by
what it is faster than `eager`; the parts of the GPU's time by kind of kernel; the most memory that
a call takes beyond what it is given; and its error against f32 over that of `eager`. What is
further from f32 than `eager` by more than a tenth gets no number.

`--kinds` adds each kind of what is patched alone, compiled and not, by which `elsewhere.py` says
what is left to torch.compile. `--attention` measures attention alone instead, exchanged in a model
that is otherwise as it was: `auto` is warpsmith, `flash` and `cudnn` are PyTorch's backends, `sdpa`
what PyTorch chooses of them, with bounds of twice the error of `flash`.

Writes `models.json`, or `models_attention.json`, case by case; cases that were not asked for by
`--only`, and implementations that were not run, stay as they are on record.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import re
import site
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

if find_spec("warpsmith") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import warpsmith
import warpsmith.transformers
from model_runs import MODELS, Model, Phase, Runner, exactly, relative_error
from warpsmith.core import json_files
from warpsmith.measure import bench, kernel_kinds, limits, timing
from warpsmith.measure.record import record_path
from warpsmith.native import recorded_library
from warpsmith.records.others import OTHERS

NAME, ATTENTION = "models", "models_attention"
DEVICE = "cuda"
#: Of errors over that of `eager`; of attention alone over that of `flash`.
MOST_ERROR_RATIO, MOST_ATTENTION_ERROR_RATIO = 1.1, 2.0
#: What `patch` is told where one kind alone is served, by its name.
_NONE = dict.fromkeys(
    ("norms", "residuals", "gates", "activations", "rope", "attention", "loss"), False
)
KINDS: dict[str, dict[str, bool]] = {
    "norms": {**_NONE, "norms": True, "residuals": True},
    "gates": {**_NONE, "gates": True},
    "activations": {**_NONE, "activations": True},
    # beside the former, as heads may have norms in front of it
    "rope": {**_NONE, "norms": True, "residuals": True, "rope": True},
}
#: Where attention is exchanged: what transformers is asked for, and PyTorch is held to.
BACKENDS: dict[str, tuple[str, SDPBackend | None]] = {
    "flash": ("sdpa", SDPBackend.FLASH_ATTENTION),
    "auto": (warpsmith.transformers.NAME, None),
    "cudnn": ("sdpa", SDPBackend.CUDNN_ATTENTION),
    "sdpa": ("sdpa", None),
}
Calls = dict[str, Callable[[], Tensor]]

# --- implementations ------------------------------------------------------------------------------


def implementations(
    runner: Runner, compiled: bool = True, kinds: bool = False, liger: bool = True
) -> Calls:
    """Functions of nothing by the name of the implementation. Each is made when it is first
    called, and raises what is wrong with it there.
    """
    wanted: dict[str, Callable[[], Callable[[], Tensor]]] = {
        "eager": lambda: runner.run,
        "patched": lambda: _patched(runner, {}),
        "patched, linear": lambda: _patched(runner, {"linear": True}),
    }
    if liger and find_spec("liger_kernel") is not None and _liger_name(runner.model) is not None:
        wanted["liger"] = lambda: _liger(runner)
    options = {name: KINDS[name] for name in KINDS if kinds and _has(runner.model, name)}
    for name, option in options.items():
        wanted[name] = lambda option=option: _patched(runner, option)  # type: ignore[misc]
    if compiled:
        wanted["compiled"] = lambda: _patched(runner, None, compiled=True)
        for name, option in {"patched": {}, **options}.items():
            wanted[f"compiled, {name}"] = lambda option=option: (  # type: ignore[misc]
                _patched(runner, option, compiled=True)
            )
    return {name: _later(make) for name, make in wanted.items()}


def _later(make: Callable[[], Callable[[], Tensor]]) -> Callable[[], Tensor]:
    made: list[Callable[[], Tensor]] = []

    def call() -> Tensor:
        if not made:
            made.append(make())
        return made[0]()

    return call


def _has(model: Any, kind: str) -> bool:
    """Whether a model has something of a kind."""
    replaced = warpsmith.patch(model, **KINDS[kind]).replaced
    warpsmith.unpatch(model)
    return any(r.kind == kind for r in replaced)


def _patched(
    runner: Runner, options: dict[str, bool] | None, compiled: bool = False
) -> Callable[[], Tensor]:
    made = runner.beside(copy.deepcopy(runner.model))
    if options is not None:
        report = warpsmith.patch(made.model, **options)
        assert report, report
    if not compiled:
        return made.run
    call = torch.compile(made.model.forward, dynamic=False)
    return lambda: made.run(call)


def _liger_name(model: Any) -> str | None:
    """Liger's function for a model."""
    kind = getattr(getattr(model, "config", None), "model_type", None)
    functions = _liger_functions()
    name = f"apply_liger_kernel_to_{kind}"
    return name if kind is not None and hasattr(functions, name) else None


def _liger_functions() -> Any:
    import liger_kernel.transformers

    return liger_kernel.transformers


def _liger(runner: Runner) -> Callable[[], Tensor]:
    """Liger's patch of a copy. It also changes functions of the model's module, which then are so
    while the copy is called, and not when others are.
    """
    made = runner.beside(copy.deepcopy(runner.model))
    if made.grad is not None:  # its norms write their gradient over the one that they are given
        made.grad = made.grad.clone()
    module = sys.modules[type(made.model).__module__].__dict__
    before = dict(module)
    apply = getattr(_liger_functions(), _liger_name(made.model) or "")
    try:
        apply(fused_linear_cross_entropy=False, cross_entropy=True, model=made.model)
        theirs = {name: x for name, x in module.items() if before.get(name) is not x}
    finally:
        module.update(before)
    ours = {name: before[name] for name in theirs if name in before}

    def call() -> Tensor:
        module.update(theirs)
        try:
            return made.run()
        finally:
            module.update(ours)

    return call


def attention_alone(runner: Runner) -> Calls:
    """The model as it was, but for who attends."""
    warpsmith.transformers.register()

    def call(name: str) -> Tensor:
        attention, backend = BACKENDS[name]
        runner.model.config._attn_implementation = attention
        held = contextlib.nullcontext() if backend is None else sdpa_kernel(backend)
        with held:
            return runner.run()

    return {name: lambda name=name: call(name) for name in BACKENDS}  # type: ignore[misc]


# --- measurement ----------------------------------------------------------------------------------


def judged(
    calls: Calls, exact: Tensor, most: float, rows: dict[str, bench.Row]
) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Those that run, and are as near to f32 as they have to be: so often the error of the first,
    which counts as the least there is to be had.
    """
    least: float | None = None
    for name, run in calls.items():
        row = rows[name]
        try:
            error = relative_error(run().detach(), exact)
        except Exception as problem:  # out of memory, a backend that does not take it
            row["error"] = bench.first_line(problem)
            continue
        least = error if least is None else least
        row["relative_error"] = float(f"{error:.4g}")
        row["of_eagers_error"] = round(error / least, 4)
        if not error <= most * least:  # NaN is not
            row["error"] = f"relative error {error:.3g}, allowed {most * least:.3g}"
            continue
        yield name, run


def _most_memory(run: Callable[[], Tensor]) -> float:
    """MiB that a call takes at most, beyond what there was."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)


def measure(
    case: str, runner: Runner, options: argparse.Namespace, known: dict[str, Any]
) -> list[bench.Row]:
    torch._dynamo.reset()
    runner.to(torch.float32)
    with exactly():
        exact = runner.run().detach()
    runner.to(torch.bfloat16)
    torch.cuda.empty_cache()
    alone = options.attention
    calls = (
        attention_alone(runner)
        if alone
        else implementations(runner, options.compile, options.kinds)
    )
    rows: dict[str, bench.Row] = {name: {"case": case, "impl": name} for name in calls}
    most = MOST_ATTENTION_ERROR_RATIO if alone else MOST_ERROR_RATIO
    runs = dict(judged(calls, exact, most, rows))
    del exact
    torch.cuda.empty_cache()
    for name, run in runs.items():
        rows[name]["peak_mib"] = _most_memory(run)
        rows[name]["shares"] = kernel_kinds.shares(run)
    timed: dict[str, Callable[[int], Any]] = {
        name: lambda i, run=run: run()  # type: ignore[misc]
        for name, run in runs.items()
    }
    graph = runner.phase.graph
    for name, time in timing.measure(timed, sets=1, seconds=options.seconds, graph=graph).items():
        bench.fill_row(rows[name], time, known, "bf16", 0, 0)
        if not graph:  # as it was asked for
            rows[name].pop("note", None)
    base = "flash" if alone else "eager"
    for row in rows.values():
        if "ms" in row and "ms" in rows[base]:
            row[f"of_{base}"] = round(rows[base]["ms"] / row["ms"], 4)
        print({key: x for key, x in row.items() if key not in ("ms_low", "ms_high")}, flush=True)
    return list(rows.values())


def merged(old: list[bench.Row], new: list[bench.Row]) -> list[bench.Row]:
    """Rows of before, but for those that there are anew, in the order of the models."""
    done = {(row["case"], row["impl"]) for row in new}
    rows = [row for row in old if (row["case"], row["impl"]) not in done] + new
    order = [f"bf16 {model.name} {phase}" for model in MODELS for phase in model.phases]
    return sorted(rows, key=lambda row: order.index(row["case"]) if row["case"] in order else -1)


def chosen(options: argparse.Namespace) -> list[tuple[str, Model, Phase]]:
    found = [
        (f"bf16 {model.name} {phase}", model, phase) for model in MODELS for phase in model.phases
    ]
    if options.attention:  # of the models that 8192 tokens are asked of
        found = [entry for entry in found if entry[1].kind in ("Llama", "Qwen3")]
        found = [entry for entry in found if entry[2].name != "decode" or entry[2].graph]
    return [entry for entry in found if re.search(options.only, entry[0])]


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the record")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each implementation")
    parser.add_argument("--only", default="", help="cases in whose names this is found: a pattern")
    parser.add_argument(
        "--no-compile", dest="compile", action="store_false", help="nothing through torch.compile"
    )
    parser.add_argument("--kinds", action="store_true", help="each kind alone as well")
    parser.add_argument("--attention", action="store_true", help="attention alone")
    parser.add_argument("--site", type=Path, action="append", default=[], help="more packages")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parsed(arguments)
    for folder in options.site:
        site.addsitedir(str(folder))
    if DEVICE == "cuda":
        limits.need_gpu()
    folder = options.out or limits.results_dir()
    known = limits.ensure(folder)
    name = ATTENTION if options.attention else NAME
    environment = limits.environment()
    environment["autograd"] = recorded_library.recorder()
    for package in ("transformers", "diffusers", "liger_kernel"):
        if find_spec(package) is not None:
            from importlib.metadata import version

            environment[package] = version(package)
    source = OTHERS[name].source()
    for case, model, phase in chosen(options):
        if find_spec(model.home) is None:
            print(f"{case}: {model.home} is not installed", flush=True)
            continue
        rows = measure(case, Runner.make(model, phase, torch.bfloat16, DEVICE), options, known)
        torch.cuda.empty_cache()
        before = json_files.read_json(record_path(folder, name)) or {}
        old = before.get("rows", []) if before.get("source") == source else []
        record = {"environment": environment, "source": source, "rows": merged(old, rows)}
        json_files.write_json(record_path(folder, name), record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
