"""Time and peak memory of a linear layer with cross-entropy, forward and backward, against others:
`python benchmarks/fused_linear_cross_entropy.py [--out <folder>]`.

Writes `fused_linear_cross_entropy.json` beside the other records: a row per shape and
implementation, with `peak_mib`, the most memory that a step holds on top of its inputs (the
gradients that it returns included). An implementation whose loss or gradients are further from
float32 than PyTorch's by a factor of two gets no number.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

if find_spec("warpsmith") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels"))

import warpsmith
from warpsmith.core import catalogue, json_files
from warpsmith.core.catalogue import Inputs
from warpsmith.loss.cross_entropy_cases import classes
from warpsmith.measure import bench, limits, timing
from warpsmith.measure.record import record_path
from warpsmith.records import sources

NAME = "fused_linear_cross_entropy"
#: Rows, width, classes: the last layers of Llama 3 8B, GPT-2 XL and Llama 2 7B.
SHAPES = ((8192, 4096, 128256), (8192, 1600, 50257), (8192, 4096, 32000))
#: Of gradients relative to their largest, over that of PyTorch.
MOST_ERROR_RATIO = 2.0
#: Of the loss, which is one number: PyTorch's may be exact by luck.
LOSS_ERROR = 1e-4

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def eager(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, weight).float(), target)


def liger() -> Loss:
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    def loss(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        found = LigerFusedLinearCrossEntropyFunction.apply(x, weight, target)
        return found[0] if isinstance(found, tuple) else found

    return loss


def implementations() -> dict[str, Loss]:
    torch._dynamo.reset()
    found: dict[str, Loss] = {
        "auto": lambda x, w, t: warpsmith.fused_linear_cross_entropy(x, w, t),
        "auto f32": lambda x, w, t: warpsmith.fused_linear_cross_entropy(
            x, w, t, accumulate_f32=True
        ),
        "torch": eager,
        "compile": torch.compile(eager, dynamic=False),
    }
    try:
        found["liger"] = liger()
    except ImportError as error:
        print(f"liger is left out: {error}")
    return found


def step(loss: Loss, inputs: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Loss and gradients, as a training step takes them: the graph is not kept."""
    value = loss(*inputs)
    return value.detach(), *torch.autograd.grad(value, inputs[:2])


def peak_mib(loss: Loss, inputs: tuple[Tensor, Tensor, Tensor]) -> float:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step(loss, inputs)
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def errors(found: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> list[float]:
    pairs = zip(found, exact, strict=True)
    return [float((f.float() - e).abs().max() / e.abs().max()) for f, e in pairs]


def measure_shape(
    shape: tuple[int, int, int], seconds: float, known: dict[str, Any]
) -> list[bench.Row]:
    rows, width, count = shape
    made = Inputs(torch.bfloat16, "cuda")
    x = made.plain(rows, width).requires_grad_()
    weight = (made.plain(count, width, salt=1) * width**-0.5).requires_grad_()
    inputs = x, weight, classes(made, rows, count)
    functions = implementations()

    wide = x.detach().float().requires_grad_(), weight.detach().float().requires_grad_()
    exact = step(eager, (*wide, inputs[2]))
    del wide
    loss_error, *others = (MOST_ERROR_RATIO * e for e in errors(step(eager, inputs), exact))
    allowed = [max(loss_error, LOSS_ERROR), *others]
    table: dict[str, bench.Row] = {}
    for name, function in list(functions.items()):
        row = table[name] = {"case": f"bf16 {rows}x{width} to {count}", "impl": name}
        try:
            ours = errors(step(function, inputs), exact)
        except Exception as error:  # a peer may fail in any way; the others are still measured
            row["error"] = bench.first_line(error)
        else:
            # A NaN is no more allowed than an error is.
            if not all(e <= most for e, most in zip(ours, allowed, strict=True)):
                row["error"] = f"relative errors {ours}, allowed {allowed}"
        if "error" in row:
            del functions[name]
    del exact
    for name, function in functions.items():
        torch.cuda.empty_cache()
        table[name]["peak_mib"] = round(peak_mib(function, inputs), 1)

    calls = {n: lambda i, f=f: step(f, inputs) for n, f in functions.items()}
    times = timing.measure(calls, sets=1, seconds=seconds, graph=False)
    flops = 3 * 2 * rows * width * count
    for name, time in times.items():
        bench.fill_row(table[name], time, known, "bf16", 0, flops)
        print(table[name])
    return list(table.values())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the record")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each implementation")
    options = parser.parse_args(arguments)
    limits.need_gpu()
    source = sources.of_composite(catalogue.composites()[NAME])
    record: dict[str, Any] = {"environment": limits.environment(), "source": source, "rows": []}
    folder = options.out or limits.results_dir()
    known = limits.ensure(folder)
    for shape in SHAPES:
        record["rows"] += measure_shape(shape, options.seconds, known)
        torch.cuda.empty_cache()
    json_files.write_json(record_path(folder, NAME), record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
