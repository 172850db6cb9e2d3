"""What a GPU can do at best: the data sheets, and the ceilings measured on the card at hand.

A kernel is judged against the measured ceilings. `load` reads them from
`benchmarks/results/<gpu>/limits.json`, `ensure` measures them when they are not there yet.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from warpsmith.core import json_files
from warpsmith.measure import timing
from warpsmith.native import csrc


@dataclass(frozen=True)
class Sheet:
    """A data sheet: dense peaks in TFLOP/s (TOP/s for int8), bandwidth in TB/s, L2 in MB.

    16-bit and fp8 peaks are those with f32 accumulation. None: the card has no such unit.
    """

    name: str
    folder: str
    bandwidth: float
    f32: float
    tf32: float
    f16: float
    bf16: float
    fp8: float | None
    int8: float
    l2: float


#: First match wins, so the longer names stand first. The pattern is searched in
#: torch.cuda.get_device_name().
SHEETS: tuple[tuple[str, Sheet], ...] = (
    (r"\bA100\b.*80GB PCIe|\bA100-PCIE-80GB",
     Sheet("A100 PCIe 80 GB", "a100-pcie-80gb", 1.935, 19.5, 156, 312, 312, None, 624, 40)),
    (r"\bA100\b.*80GB",
     Sheet("A100 SXM 80 GB", "a100-80gb", 2.039, 19.5, 156, 312, 312, None, 624, 40)),
    (r"\bA100\b",
     Sheet("A100 40 GB", "a100-40gb", 1.555, 19.5, 156, 312, 312, None, 624, 40)),
    (r"RTX 3090 Ti",
     Sheet("RTX 3090 Ti", "rtx-3090-ti", 1.008, 40.0, 40.0, 80.0, 80.0, None, 320, 6)),
    (r"RTX 3090",
     Sheet("RTX 3090", "rtx-3090", 0.936, 35.6, 35.6, 71.0, 71.0, None, 284, 6)),
    (r"RTX 4090",
     Sheet("RTX 4090", "rtx-4090", 1.008, 82.6, 82.6, 165.2, 165.2, 330.3, 660.6, 72)),
    (r"RTX 5090",
     Sheet("RTX 5090", "rtx-5090", 1.792, 104.8, 104.8, 209.5, 209.5, 419.0, 838.0, 96)),
    (r"\bL20\b",
     Sheet("L20", "l20", 0.864, 59.8, 59.8, 119.5, 119.5, 239.0, 239.0, 96)),
    (r"\bL40S\b",
     Sheet("L40S", "l40s", 0.864, 91.6, 183.0, 362.0, 362.0, 733.0, 733.0, 96)),
    (r"\bH100 PCIe",
     Sheet("H100 PCIe", "h100-pcie", 2.0, 51.0, 378.0, 756.0, 756.0, 1513.0, 1513.0, 50)),
    (r"\bH100 NVL",
     Sheet("H100 NVL", "h100-nvl", 3.9, 60.0, 417.5, 835.5, 835.5, 1671.0, 1671.0, 50)),
    (r"\bH100\b",
     Sheet("H100 SXM", "h100", 3.35, 67.0, 494.7, 989.4, 989.4, 1978.9, 1978.9, 50)),
    (r"\bH200 NVL",
     Sheet("H200 NVL", "h200-nvl", 4.8, 60.0, 417.5, 835.5, 835.5, 1671.0, 1671.0, 50)),
    (r"\bH200\b",
     Sheet("H200", "h200", 4.8, 67.0, 494.7, 989.4, 989.4, 1978.9, 1978.9, 50)),
    (r"\bB200\b",
     Sheet("B200", "b200", 8.0, 75.0, 1100.0, 2250.0, 2250.0, 4500.0, 4500.0, 126)),
)  # fmt: skip

#: A part of a GPU, or a smaller one of the same name.
_LESS = re.compile(r"\bMIG\b|\bLaptop\b|\b[45]090 D\b")

#: Dtype of an operator -> the matrix ceiling that bounds its arithmetic.
MATRIX_OF = {"f32": "f32", "f16": "f16", "bf16": "bf16", "e4m3": "fp8", "e5m2": "fp8", "i8": "int8"}


def sheet(gpu: str) -> Sheet | None:
    """The data sheet of a GPU by its PyTorch name ("NVIDIA H200"); None for one not listed."""
    if _LESS.search(gpu):
        return None
    return next((sheet for pattern, sheet in SHEETS if re.search(pattern, gpu)), None)


def folder_name(gpu: str) -> str:
    """The name of a GPU's folder under `benchmarks/results`: "h200"."""
    if known := sheet(gpu):
        return known.folder
    bare = re.sub(r"(?i)\b(nvidia|geforce|graphics|tesla)\b", " ", gpu)
    return re.sub(r"[^a-z0-9]+", "-", bare.lower()).strip("-") or "gpu"


#: What is said of a command, or a script, where it is missing.
NO_GPU = "needs a CUDA GPU, and PyTorch sees none; `warpsmith doctor` says why"


def gpu_name() -> str:
    return torch.cuda.get_device_name(torch.cuda.current_device())


def need_gpu() -> None:
    """Ends a script that measures, with a line, where there is no GPU.

    Raises:
        SystemExit: PyTorch sees none.
    """
    if not torch.cuda.is_available():
        raise SystemExit(NO_GPU)


def results_root() -> Path:
    """`benchmarks/results` of the checkout that this package runs from, else below the working
    directory.
    """
    return csrc.home() / "benchmarks" / "results"


def results_dir(root: Path | None = None) -> Path:
    """The folder of the GPU at hand."""
    return (root or results_root()) / folder_name(gpu_name())


def environment() -> dict[str, str | None]:
    """What a measurement depends on besides the code."""
    try:
        import triton

        triton_version: str | None = triton.__version__
    except ImportError:
        triton_version = None
    cudnn = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    return {
        "gpu": gpu_name() if torch.cuda.is_available() else None,
        "driver": driver_version(),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "triton": triton_version,
        "cudnn": str(cudnn) if cudnn else None,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }


def driver_version() -> str | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (subprocess.SubprocessError, OSError):
        return None
    return out.strip().splitlines()[0].strip() if out.strip() else None


# --- measured ceilings ----------------------------------------------------------------------------

GIB = 1 << 30
MATRIX_SIZE = 8192
#: Bytes that the copies move, read plus written, beside which calls of any length are held: up to
#: a length at which launching them no longer shows. (A CUDA graph copies 512 MiB and more by a
#: slower engine than a stream does.)
COPIES = tuple(1 << n for n in range(23, 30))


def _burst_and_sustained(call: Callable[[int], Any], seconds: float) -> tuple[float, float]:
    """Milliseconds of a call on a rested GPU and after `seconds` of load."""
    torch.cuda.synchronize()
    time.sleep(0.5)
    burst = timing.measure({"it": call}, sets=2, seconds=0.03, rounds=7, graph=False)["it"].ms
    if seconds <= 0:
        return burst, burst
    steady = timing.sustained({"it": call}, sets=2, seconds=seconds, graph=False)["it"].ms
    return burst, steady


def _copy_tbps(seconds: float) -> dict[str, float]:
    free, _ = torch.cuda.mem_get_info()
    size = min(4 * GIB, free // 3) // 4096 * 4096  # read plus written
    count = size // 2 // 4
    source = [torch.randn(count, device="cuda")]
    target = [torch.empty_like(source[0])]
    source.append(target[0])  # there and back: two sets, no third buffer
    target.append(source[0])
    burst, steady = _burst_and_sustained(lambda i: target[i].copy_(source[i]), seconds)
    read, _ = _burst_and_sustained(lambda i: torch.sum(source[i]), 0)
    moved = 2 * count * 4 / 1e9
    copy = max(moved / burst, moved / steady)
    return {
        "copy_tbps": copy,
        "copy_tbps_sustained": moved / steady,
        # A reading rate below the copying rate says that the reduction was slow, not the memory.
        "read_tbps": max(count * 4 / 1e9 / read, copy),
    }


def _copy_ms(moved: int) -> float:
    """Milliseconds of a copy from cold memory, as benchmarks time everything else."""
    sets = timing.sets_for(moved, timing.l2_bytes())
    source = [torch.randn(moved // 8, device="cuda") for _ in range(sets)]
    target = [torch.empty_like(x) for x in source]
    times = timing.measure({"it": lambda i: target[i].copy_(source[i])}, sets=sets, seconds=0.02)
    return times["it"].ms


def _matrices(dtype: torch.dtype, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator(device="cuda").manual_seed(0)
    a = torch.randn(n, n, generator=generator, device="cuda", dtype=torch.float32)
    b = torch.randn(n, n, generator=generator, device="cuda", dtype=torch.float32)
    return a.to(dtype), b.to(dtype)


def _matmul_call(kind: str, n: int) -> Callable[[int], Any]:
    if kind == "fp8":
        a, b = _matrices(torch.float8_e4m3fn, n)
        one = torch.ones((), device="cuda")
        columns = b.t()  # the second operand is column-major
        return lambda i: torch._scaled_mm(
            a, columns, one, one, out_dtype=torch.bfloat16, use_fast_accum=True
        )
    if kind == "int8":
        integers = torch.randint(-128, 128, (2, n, n), device="cuda", dtype=torch.int8)
        transposed = integers[1].t()
        return lambda i: torch._int_mm(integers[0], transposed)
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}.get(kind, torch.float32)
    a, b = _matrices(dtype, n)
    out = torch.empty(n, n, device="cuda", dtype=dtype)
    return lambda i: torch.mm(a, b, out=out)


def _matrix_tflops(seconds: float) -> dict[str, float]:
    """Ceilings of dense matrix products; a kind that this GPU or this PyTorch cannot run is left
    out.
    """
    result: dict[str, float] = {}
    allowed = torch.backends.cuda.matmul.allow_tf32
    free, _ = torch.cuda.mem_get_info()
    n = MATRIX_SIZE if free > 4 * GIB else MATRIX_SIZE // 2
    flops = 2 * n**3 / 1e9
    try:
        for kind in ("f32", "tf32", "f16", "bf16", "fp8", "int8"):
            torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
            try:
                burst, steady = _burst_and_sustained(_matmul_call(kind, n), seconds)
            except (RuntimeError, AttributeError, TypeError):
                continue
            result[f"{kind}_tflops"] = max(flops / burst, flops / steady)
            result[f"{kind}_tflops_sustained"] = flops / steady
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    return result


def device() -> dict[str, Any] | None:
    """The current GPU; None without one."""
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "name": gpu_name(),
        "sm": f"{properties.major}{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
    }


def measure(seconds: float = 2.0) -> dict[str, Any]:
    """Measures the copy, read and matrix ceilings of the current GPU.

    Args:
        seconds: length of each sustained loop; 0 measures bursts only.
    """
    torch.cuda.empty_cache()
    measured = _copy_tbps(seconds)
    free, _ = torch.cuda.mem_get_info()
    copies = [[moved, round(_copy_ms(moved), 6)] for moved in COPIES if 3 * moved < free]
    torch.cuda.empty_cache()
    measured |= _matrix_tflops(seconds)
    torch.cuda.empty_cache()
    name = gpu_name()
    known = sheet(name)
    return {
        "environment": environment(),
        "device": device(),
        "data_sheet": asdict(known) if known else None,
        "measured": {key: round(value, 4) for key, value in measured.items()},
        "copies": copies,  # bytes read plus written, milliseconds
    }


def load(folder: Path) -> dict[str, Any] | None:
    """The limits on record in a GPU's folder; None where there are none."""
    return json_files.read_json(folder / "limits.json")


def ensure(folder: Path, *, again: bool = False) -> dict[str, Any]:
    """The limits in `folder`, measured and written first where there are none."""
    known = None if again else load(folder)
    if known is None:
        known = measure()
        json_files.write_json(folder / "limits.json", known)
    return known


def floor_ms(limits: dict[str, Any], dtype: str, bytes_moved: int, flops: int) -> float:
    """The time below which no kernel can go: the larger of moving the bytes and doing the
    arithmetic.
    """
    measured = limits["measured"]
    memory = bytes_moved / (measured["copy_tbps"] * 1e9)
    peak = measured.get(f"{MATRIX_OF.get(dtype, dtype)}_tflops")
    return max(memory, flops / (peak * 1e9) if peak else 0.0)


def copy_ms(limits: dict[str, Any], bytes_moved: float) -> float | None:
    """How long PyTorch takes to copy so many bytes, read plus written: a straight line between the
    sizes that were measured, and the rate of the longest beyond it. None below the shortest of
    them, or where none was.
    """
    copies: list[list[float]] = limits.get("copies") or []
    if not copies or bytes_moved < copies[0][0]:
        return None
    for (less, short), (more, long) in itertools.pairwise(copies):
        if bytes_moved <= more:
            return short + (long - short) * (bytes_moved - less) / (more - less)
    most, longest = copies[-1]
    return longest * bytes_moved / most
