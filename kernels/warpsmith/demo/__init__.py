"""A Llama-3-8B decoder layer, through warpsmith and through PyTorch.

    m = rms_norm(r) * w1,    x = r + W_out attention(rope(W_qkv m)),
    n = rms_norm(x) * w2,    y = x + W_down (silu(W_gate n) * (W_up n))

The tokens are one sequence, attention is causal, with 32 heads of queries and 8 of keys, which
are turned by their positions (RoPE). The sum behind attention is fused into the second norm
(`add_rms_norm`), as a real layer has it. Weights and residual stream are random but seeded, the
sizes and token counts are the model's own. The products with weights are PyTorch's on both sides;
everything around them is warpsmith's on one side. Results are checked before anything is timed:

- every operator, on the tensors that reach it, by the accuracy rule of `warpsmith.testing`;
- the whole layer against float64, by the bound that `error_bound` derives.

Without a GPU the same layer runs in a small configuration through the PyTorch references and, each
operator by itself, through the Triton twins under Triton's interpreter. Nothing is timed there.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from warpsmith.cli.arguments import parse_device
from warpsmith.core import catalogue, twins
from warpsmith.core.catalogue import DTYPES, FLOATS
from warpsmith.demo.checks import WHOLE, Check, check_layer, check_steps, check_training
from warpsmith.demo.model import HEAD_DIM, LLAMA_3_8B, SMALL, STEPS, Config, Weights
from warpsmith.demo.times import Row, time_layer
from warpsmith.measure import limits
from warpsmith.native import finding
from warpsmith.native.console import UsageError, print_json, print_table, progress_bar, say, write

#: Gradients are checked in float64 with all activations kept: for no more tokens than these.
TRAINING_TOKENS = 128

# --- what the reader sees -------------------------------------------------------------------------


def _ms(value: float | None) -> str:
    if value is None:
        return ""
    return f"{1000 * value:.1f} µs" if value < 1 else f"{value:.2f} ms"


def _factor(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}×"


def print_times(rows: Sequence[Row]) -> None:
    header = ("tokens", "step", "kernel", "warpsmith", "PyTorch", "torch.compile", "vs PyTorch")
    table = []
    before = None
    for row in rows:
        if before not in (None, row.tokens):
            table.append(("",) * 9)
        table.append(
            (
                "" if row.tokens == before else str(row.tokens),
                row.step,
                row.kernel,
                _ms(row.ms),
                _ms(row.torch_ms),
                _ms(row.compile_ms),
                _factor(row.speedup(row.torch_ms)),
                _factor(row.speedup(row.compile_ms)),
                f"{100 * row.limit_ms / row.ms:.0f} %",
            )
        )
        before = row.tokens
    print_table("", (*header, "vs compile", "of limit"), table)
    write(
        "Medians, cold L2, from CUDA graphs, so without the host's time. Matrix products are"
        " PyTorch's in both.\nOf limit: the least time for the bytes (at this card's measured copy"
        " rate) and the products,\nover the time taken; that of the layer is the sum over its"
        " steps."
    )


def print_checks(checks: Sequence[Check]) -> None:
    counts = sorted({check.tokens for check in checks})
    cells: dict[tuple[str, str], dict[int, str]] = {}
    for c in checks:
        cells.setdefault((c.what, c.served), {})[c.tokens] = f"{c.error:.2f}" if c.ok else "WRONG"
    rows = [(*key, *(cell.get(n, "") for n in counts)) for key, cell in cells.items()]
    header = [f"{n} token{'s' if n > 1 else ''}" for n in counts]
    print_table("", ("errors of", "implementation", *header), rows)
    write(
        "Operators and gradients: relative to PyTorch's own error at the same dtype (right up to 2,"
        " and one ulp);\nthe whole layer: relative to the bound that its roundings allow (right up"
        " to 1).\n"
    )


def _verdict(checks: Sequence[Check]) -> str:
    wrong = [check for check in checks if not check.ok]
    if wrong:
        return f"{len(wrong)} of {len(checks)} results are WRONG"
    steps = max((c.error for c in checks if c.what != WHOLE), default=0.0)
    whole = max(c.error for c in checks if c.what == WHOLE)
    return (
        f"All {len(checks)} results are right: operators within {steps:.2f} of PyTorch's own error"
        f" (2, and one ulp, allowed),\nthe whole layer within {whole:.2f} of the bound that its"
        " roundings allow."
    )


def _as_json(config: Config, place: str, dtype: str, checks: Any, rows: Sequence[Row]) -> None:
    times = [
        asdict(row)
        | {
            "vs_torch": row.speedup(row.torch_ms),
            "vs_compile": row.speedup(row.compile_ms),
            "of_limit": row.limit_ms / row.ms,
        }
        for row in rows
    ]
    print_json(
        {
            "config": asdict(config),
            "device": place,
            "dtype": dtype,
            "ok": all(check.ok for check in checks),
            "checks": [
                asdict(check) | {"error": check.error if math.isfinite(check.error) else None}
                for check in checks
            ],
            "rows": times,
        }
    )


# --- the command ----------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="warpsmith demo",
        description="A Llama-3-8B decoder layer through warpsmith and through"
        " PyTorch: checked against each other and against float64, then timed.",
    )
    root.add_argument("--tokens", help="comma list of token counts, 1,16,128")
    root.add_argument("--dtype", choices=FLOATS, default="bf16", help="bf16 by default")
    root.add_argument(
        "--device", help="cuda, cuda:1, or cpu for a small configuration; a GPU by default"
    )
    root.add_argument(
        "--seconds", type=float, default=0.1, help="device time per implementation and step"
    )
    root.add_argument(
        "--no-compile", action="store_true", help="leave out torch.compile, which takes minutes"
    )
    root.add_argument(
        "--train", action="store_true", help="also check the gradients of a training step"
    )
    root.add_argument("--json", action="store_true", help="print one JSON document")
    return root


def _tokens(text: str | None, config: Config) -> tuple[int, ...]:
    if text is None:
        return config.tokens
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise UsageError(f"cannot read the token counts '{text}'; write them as 1,16,128")
    return counts


def _device(text: str | None) -> torch.device:
    if text is None:
        text = "cuda" if torch.cuda.is_available() else "cpu"
    device = parse_device(text)
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise UsageError("PyTorch sees no CUDA GPU; `warpsmith doctor` says why")
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.device("cuda", index)


def _interpreter() -> str | None:
    """Turns Triton's interpreter on; why the twins cannot run, where that is too late."""
    if why := twins.why_no_triton():
        return why
    if not twins.interpreting():
        return "Triton was imported before its interpreter was switched on (TRITON_INTERPRET=1)"
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo.

    Args:
        argv: the arguments of `warpsmith demo`; those of the process by default.

    Returns:
        0 where every result is right, else 1.

    Raises:
        UsageError: for token counts or a device that make no sense here.
    """
    args = parser().parse_args(argv)
    device = _device(args.device)
    with torch.no_grad():
        if device.type == "cpu":
            return _on_cpu(args, device)
        with torch.cuda.device(device):
            return _on_gpu(args, device)


def _heading(config: Config, dtype: str, place: str) -> str:
    return (
        f"A decoder layer of {config.name}: hidden {config.hidden}, ffn {config.ffn}, heads of"
        f" {HEAD_DIM}, {dtype}, on {place}.\n"
        "m = rms_norm(r) * w1, x = r + W_out attention(W_qkv m),\n"
        "n = rms_norm(x) * w2, y = x + W_down (silu(W_gate n) * (W_up n))\n"
    )


def _on_cpu(args: argparse.Namespace, device: torch.device) -> int:
    config = SMALL
    counts = _tokens(args.tokens, config)
    if "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1"
    why = _interpreter()
    place = "the CPU"
    if not args.json:
        write(_heading(config, args.dtype, place))
        without = "This machine has no GPU that PyTorch can use"
        chosen = "The CPU was asked for"
        write(
            f"{chosen if torch.cuda.is_available() else without}, so the layer is small, no CUDA"
            " kernel runs and nothing is timed:\nthe PyTorch references serve the calls, and each"
            " Triton twin is run by Triton's interpreter beside them.\n"
        )
    if why:
        say(f"the Triton twins are left out: {why}")
    weights = Weights(config, DTYPES[args.dtype], device)
    checks: list[Check] = []
    for tokens in counts:
        found, values = check_steps(weights, tokens, twins=why is None)
        checks += found + check_layer(weights, values)
    if args.train:
        checks += check_training(weights, min(max(counts), TRAINING_TOKENS))
    if args.json:
        _as_json(config, place, args.dtype, checks, ())
    else:
        print_checks(checks)
        write(_verdict(checks))
    return _report(checks)


def _on_gpu(args: argparse.Namespace, device: torch.device) -> int:
    config = LLAMA_3_8B
    place = torch.cuda.get_device_name(device)
    counts = _tokens(args.tokens, config)
    if not args.json:
        write(_heading(config, args.dtype, place))
    # may compile, and shows its own progress
    finding.prepare(catalogue.get(step.op).library for step in STEPS if step.op)
    weights = Weights(config, DTYPES[args.dtype], device)
    checks: list[Check] = []
    rows: list[Row] = []
    with progress_bar("the limits of this card", len(counts)) as (bar, task):
        known = limits.load(limits.results_dir()) or limits.measure(seconds=0)
        if args.train:
            checks += check_training(weights, min(max(counts), TRAINING_TOKENS))
        for tokens in counts:
            bar.update(task, description=f"{tokens} tokens")
            try:
                found, values = check_steps(weights, tokens, twins=False)
                found += check_layer(weights, values)
                checks += found
                if all(check.ok for check in found):
                    rows += time_layer(values, known, args.seconds, not args.no_compile)
            except torch.cuda.OutOfMemoryError:
                say(f"{tokens} tokens are left out: they need more memory than this GPU has free")
            values = {}
            torch.cuda.empty_cache()
            bar.advance(task)
    if all(check.what != WHOLE for check in checks):
        raise UsageError("no token count fits this GPU's memory; try --tokens 1")
    if args.json:
        _as_json(config, place, args.dtype, checks, rows)
    else:
        if rows:
            print_times(rows)
        write("\n" + _verdict(checks))
    return _report(checks)


def _report(checks: Sequence[Check]) -> int:
    wrong = [check for check in checks if not check.ok]
    for check in wrong:
        say(f"WRONG: {check.tokens} tokens, {check.what}, {check.served}: {check.detail}")
    return 1 if wrong else 0
