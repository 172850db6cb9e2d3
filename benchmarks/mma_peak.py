"""What `mma.sync` can do on this GPU, and the part of it that matrix products reach:
`python benchmarks/mma_peak.py [--out <folder>]`.

The instruction's peak comes from loops over registers (`csrc/selftest/mma_rate.cu`). Writes
`mma_peak.json` beside the other records: a row per instruction with `tflops` (TOP/s for int8), and
one per product with `of_mma_peak` and `of_cublas`.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

if find_spec("warpsmith") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels"))

import warpsmith
from warpsmith import bench, build, limits, timing
from warpsmith.catalogue import DTYPES, Inputs

NAME = "mma_peak"
SIZES = (4096, 8192)
#: Variants, and the measurement that each is held against.
PRODUCTS = (
    ("f16_mma_peak_f32", "mma_f16_f32"),
    ("bf16_mma_peak_f32", "mma_bf16_f32"),
    ("f16_mma_peak_f16", "mma_f16_f16"),
)


def instruction_peaks() -> dict[str, float]:
    """TFLOP/s of each instruction; those that this GPU lacks are left out."""
    path = build.library("selftest")
    if path is None:
        raise SystemExit(build.why_not("selftest"))
    torch.ops.load_library(str(path))
    names = torch.ops.warpsmith._measurement_names().split(",")
    rates = {name: torch.ops.warpsmith._measure(name) / 1e12 for name in names}
    return {name: rate for name, rate in rates.items() if rate > 0}


def product_rows(size: int, peaks: dict[str, float], seconds: float) -> list[bench.Row]:
    rows: list[bench.Row] = []
    flops = 2 * size**3
    for variant, instruction in PRODUCTS:
        dtype = variant.split("_")[0]
        made = Inputs(DTYPES[dtype], "cuda")
        a, b = made.plain(size, size), made.plain(size, size, salt=1)
        for layout, right in (("NN", b), ("TN", b.t())):
            calls = {
                variant: lambda i, x=a, y=right, v=variant: warpsmith.matmul(x, y, variant=v),
                "cublas": lambda i, x=a, y=right: torch.matmul(x, y),
            }
            times = timing.measure(calls, sets=1, seconds=seconds)
            rate = {name: flops / time.ms / 1e9 for name, time in times.items()}
            rows.append(
                {
                    "case": f"{dtype} {size}^3 {layout}",
                    "impl": variant,
                    "ms": times[variant].ms,
                    "tflops": round(rate[variant], 1),
                    "of_mma_peak": round(rate[variant] / peaks[instruction], 3),
                    "of_cublas": round(rate[variant] / rate["cublas"], 3),
                }
            )
            print(rows[-1])
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the record")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each implementation")
    options = parser.parse_args(arguments)
    peaks = instruction_peaks()
    rows: list[bench.Row] = [
        {"case": name, "impl": "registers", "tflops": round(rate, 1)}
        for name, rate in peaks.items()
    ]
    for row in rows:
        print(row)
    for size in SIZES:
        rows += product_rows(size, peaks, options.seconds)
        torch.cuda.empty_cache()
    record: dict[str, Any] = {
        "environment": limits.environment(),
        "source": build.source_hash("gemm", "matmul"),
        "rows": rows,
    }
    folder = options.out or limits.results_dir()
    limits.write_json(bench.record_path(folder, NAME), record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
