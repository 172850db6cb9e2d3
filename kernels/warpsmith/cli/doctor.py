"""What this machine has, what serves each family and why, and what would make it better."""

from __future__ import annotations

import shutil
from typing import Any

import torch

from warpsmith.core import catalogue, twins
from warpsmith.measure import limits
from warpsmith.native import driver, finding, libraries, recorded_library, store, toolchain


def _gpu_facts() -> tuple[str, str]:
    """What GPU there is, and what to do where there is none."""
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        count = torch.cuda.device_count()
        sm = f"sm_{properties.major}{properties.minor}"
        memory = f"{properties.total_memory / 2**30:.0f} GiB"
        text = f"{properties.name}, {sm}, {memory}" + (f", one of {count}" if count > 1 else "")
        if (properties.major, properties.minor) < (8, 0):
            return (
                text,
                "the CUDA kernels need sm_80 (Ampere) or newer; see below what serves instead",
            )
        return text, ""
    if torch.version.cuda is None:
        cure = "this PyTorch is CPU-only: on a machine with a GPU install one with CUDA (https://pytorch.org)"
        return "none that PyTorch can use", cure
    return "none that PyTorch can use", "check `nvidia-smi` and the driver"


def _nvcc_advice() -> str:
    if toolchain.find_nvcc() is None:
        return "pip install 'warpsmith[nvcc]', or set CUDA_HOME"
    if reason := toolchain.why_no_compiler():
        return reason
    return driver.too_old_for(toolchain.nvcc_major())


def _driver_facts() -> tuple[str, str]:
    """What driver there is, and what to do where it is too old."""
    number = limits.driver_version()
    version = driver.cuda()
    if version is None:
        return number or "not found", ""
    cuda = f"CUDA {version[0]}.{version[1]}"
    return f"{number}, {cuda}" if number else cuda, driver.too_old()


def _version_of(module: str) -> str | None:
    try:
        return str(__import__(module).__version__)
    except ImportError:
        return None


def _advice(status: finding.Status) -> str:
    if status.path is None and torch.cuda.is_available() and toolchain.find_nvcc() is None:
        return "pip install 'warpsmith[nvcc]'"
    return ""  # the first use compiles it, or `why` says what stands in the way


def _serves(status: finding.Status) -> str:
    if not torch.cuda.is_available():
        return "PyTorch reference (CPU)"
    if status.path is not None:
        return "CUDA"
    if finding.will_compile(status):
        return "CUDA, after the first use"
    return "Triton" if twins.triton_available() else "PyTorch reference"


def _families() -> list[dict[str, Any]]:
    """What serves each family: its libraries, those together that are served alike."""
    rows = []
    for family in catalogue.FAMILIES:
        alike: dict[tuple[str, ...], list[finding.Status]] = {}
        for status in map(finding.status, libraries.of_family(family)):
            what = (_serves(status), status.origin, *status.archs, status.detail)
            alike.setdefault(what, []).append(status)
        for found in alike.values():
            names = [status.library.removeprefix(f"{family}/") for status in found]
            rows.append(
                {
                    "family": family,
                    "libraries": names,
                    "serves": _serves(found[0]),
                    "library": found[0].origin,
                    "paths": [str(status.path) for status in found if status.path],
                    "archs": list(found[0].archs),
                    "why": found[0].detail,
                    "advice": _advice(found[0]),
                }
            )
    return rows


def examine() -> dict[str, Any]:
    """Facts about the machine and the families, each with what to do about it."""
    gpu, gpu_advice = _gpu_facts()
    nvcc = toolchain.find_nvcc()
    cutlass = toolchain.find_cutlass()
    triton = _version_of("triton")
    recorder = recorded_library.status()
    compiler = shutil.which("c++") or shutil.which("g++")
    checks = [
        ("GPU", gpu, gpu_advice),
        ("driver", *_driver_facts()),
        ("PyTorch", f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}", ""),
        (
            "nvcc",
            f"{toolchain.nvcc_version()} ({nvcc})" if nvcc else "not found",
            _nvcc_advice(),
        ),
        (
            "CUTLASS headers",
            f"{cutlass.version} ({cutlass.include})" if cutlass else "not found",
            "" if cutlass else "for the rungs written with CuTe: pip install 'warpsmith[cutlass]'",
        ),
        (
            "C++ compiler",
            compiler or "not found",
            "" if compiler else "nvcc and Triton need one: install gcc",
        ),
        ("autograd", str(recorder), recorder.cure),
        ("Triton", triton or "not found", "" if triton else "pip install triton"),
        ("cache", str(store.cache_root()), ""),
    ]
    return {
        "machine": [
            {"what": what, "found": found, "advice": advice} for what, found, advice in checks
        ],
        "families": _families(),
    }
