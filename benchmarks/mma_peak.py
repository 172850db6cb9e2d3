"""What `mma.sync` can do on this GPU, and the part of it that matrix products reach:
`python benchmarks/mma_peak.py [--out <folder>]`.

The instruction's peak comes from loops over registers (`csrc/selftest/mma_rate.cu`). Writes
`mma_peak.json` beside the other records: a row per instruction with `tflops` (TOP/s for int8), and
one per product and implementation with `of_mma_peak` and `of_cublas`: our rungs, cuBLAS of the same
accumulator, and our Triton twin held to the same instruction.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

if find_spec("warpsmith") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels"))

import warpsmith
from warpsmith.core import catalogue, dispatch, json_files, twins
from warpsmith.core.catalogue import DTYPES, Inputs
from warpsmith.measure import bench, limits, timing
from warpsmith.measure.record import record_path
from warpsmith.native import finding
from warpsmith.records import sources

NAME = "mma_peak"
SIZES = (4096, 8192)


@dataclass(frozen=True)
class Product:
    """A product on one instruction: rungs of an operator, and the rate they are held against."""

    op: str
    dtype: str
    instruction: str
    rungs: tuple[str, ...]
    #: Of `torch.backends.cuda.matmul`, set for cuBLAS: what makes it accumulate or multiply alike.
    setting: str = ""
    twin: bool = True


PRODUCTS = (
    Product("matmul", "f16", "mma_f16_f32", ("f16_mma_peak_f32", "f16_mma_tma_f32")),
    Product("matmul", "bf16", "mma_bf16_f32", ("bf16_mma_peak_f32", "bf16_mma_tma_f32")),
    Product(
        "matmul",
        "f16",
        "mma_f16_f16",
        ("f16_mma_peak_f16", "f16_mma_tma_f16"),
        "allow_fp16_accumulation",
        twin=False,
    ),
    Product("matmul_tf32", "f32", "mma_tf32", ("f32x4_mma_peak", "f32x4_mma_tma"), "allow_tf32"),
)


def hold_triton_to_mma_sync() -> None:
    """Makes Triton choose the instructions of sm_80 for this process; the code is still this GPU's.

    For a comparison on equal terms: on Hopper it takes wgmma otherwise.
    """
    from triton.backends.nvidia.compiler import CUDABackend

    make = CUDABackend.make_ttgir
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()  # whose keys do not know of this
    CUDABackend.make_ttgir = staticmethod(
        lambda mod, metadata, opt, capability: make(mod, metadata, opt, min(capability, 80))
    )


@contextlib.contextmanager
def cublas_set(setting: str) -> Iterator[None]:
    if setting and hasattr(torch.backends.cuda.matmul, setting):
        old = getattr(torch.backends.cuda.matmul, setting)
        setattr(torch.backends.cuda.matmul, setting, True)
        yield
        setattr(torch.backends.cuda.matmul, setting, old)
    else:
        yield


def instruction_peaks() -> dict[str, float]:
    """TFLOP/s of each instruction; those that this GPU lacks are left out."""
    path = finding.find("selftest")
    if path is None:
        raise SystemExit(finding.why_not("selftest"))
    torch.ops.load_library(str(path))
    names = torch.ops.warpsmith._measurement_names().split(",")
    rates = {name: torch.ops.warpsmith._measure(name) / 1e12 for name in names}
    return {name: rate for name, rate in rates.items() if rate > 0}


def product_rows(
    product: Product, size: int, peaks: dict[str, float], seconds: float
) -> list[bench.Row]:
    rows: list[bench.Row] = []
    flops = 2 * size**3
    made = Inputs(DTYPES[product.dtype], "cuda")
    a, b = made.plain(size, size), made.plain(size, size, salt=1)
    public = getattr(warpsmith, product.op)
    op = catalogue.get(product.op)
    twin = twins.triton_function(op)
    for layout, right in (("NN", b), ("TN", b.t())):
        calls: dict[str, Callable[[int], Any]] = {
            rung: lambda i, x=a, y=right, v=rung: public(x, y, variant=v)  # type: ignore[misc]
            for rung in product.rungs
        }
        calls["cublas"] = lambda i, x=a, y=right: torch.matmul(x, y)  # type: ignore[misc]
        if product.twin:
            every = dispatch.normalise(op, (a, right))
            calls["triton, mma.sync"] = lambda i, every=every: twin(*every)  # type: ignore[misc]
        case = f"{product.instruction} {size}x{size}x{size} {layout}"
        with cublas_set(product.setting):
            for name, call in list(calls.items()):
                try:
                    call(0)
                except Exception as error:  # the others are still measured
                    rows.append({"case": case, "impl": name, "error": bench.first_line(error)})
                    del calls[name]
            times = timing.measure(calls, sets=1, seconds=seconds)
        for name, time in times.items():
            rate = flops / time.ms / 1e9
            row = {
                "case": case,
                "impl": name,
                "ms": time.ms,
                "tflops": round(rate, 1),
            }
            if "cublas" in times:
                row["of_cublas"] = round(times["cublas"].ms / time.ms, 3)
            if name != "cublas":  # on Hopper it uses other instructions
                row["of_mma_peak"] = round(rate / peaks[product.instruction], 3)
            rows.append(row)
            print(row)
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the record")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each implementation")
    options = parser.parse_args(arguments)
    hold_triton_to_mma_sync()
    peaks = instruction_peaks()
    rows: list[bench.Row] = [
        {"case": name, "impl": "registers", "tflops": round(rate, 1)}
        for name, rate in peaks.items()
    ]
    for row in rows:
        print(row)
    for size in SIZES:
        for product in PRODUCTS:
            rows += product_rows(product, size, peaks, options.seconds)
            torch.cuda.empty_cache()
    record: dict[str, Any] = {
        "environment": limits.environment(),
        "source": sources.of_mma_peak(),
        "rows": rows,
    }
    folder = options.out or limits.results_dir()
    json_files.write_json(record_path(folder, NAME), record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
