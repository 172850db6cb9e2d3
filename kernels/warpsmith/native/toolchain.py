"""The compilers and the headers that the sources are built with: nvcc, the host's C++ compiler,
PyTorch's stable ABI, and those of CUTLASS, which need not be there.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

#: What a release is compiled for: A100, RTX 3090 (runs sm_80 code), RTX 4090 and L40S, H100 and
#: H200.
RELEASE_ARCHS: tuple[str, ...] = ("80", "89", "90a")
#: The oldest compute capability that the kernels run on.
MIN_SM = 80
MIN_TORCH = (2, 11)
#: The first that knows --compress-mode.
MIN_NVCC = (12, 8)
MIN_CUTLASS = (4, 2)
_ABI_TARGET = f"0x{MIN_TORCH[0]:02x}{MIN_TORCH[1]:02x}000000000000"

#: Of bindings, and of what else the host's compiler sees.
CXX_FLAGS = (
    "-std=c++20",
    "-O2",
    "-fPIC",
    "-DNDEBUG",
    "-Wall",
    "-Wno-unknown-pragmas",
    f"-DTORCH_TARGET_VERSION={_ABI_TARGET}",
)
NVCC_FLAGS = (
    "-std=c++20",
    "--expt-relaxed-constexpr",
    "-Xptxas=-v",
    "--compress-mode=size",
    # of host code, for which gcc takes half as long as at -O2; kernels are optimised in full
    "-O1",
    "-Xcompiler=-fPIC",
    # as PyTorch's own extensions: conversions are written out
    "-D__CUDA_NO_HALF_OPERATORS__",
    "-D__CUDA_NO_HALF_CONVERSIONS__",
    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__",
)


def version_numbers(version: str) -> tuple[int, ...]:
    """Major and minor: of "2.13.0+cu130" (2, 13)."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def sm_of(arch: str) -> int:
    """The compute capability of an architecture as nvcc names it: 90 of "90a"."""
    return int(arch.removesuffix(PTX).rstrip("a"))


#: Ends the name of an architecture of which a library has PTX alone, which a driver compiles for
#: newer GPUs: "80-ptx".
PTX = "-ptx"
#: Environment variable: a compute capability that all GPUs pass for, an older one than theirs.
#: Libraries have its PTX, choose for it, and keep to its shared memory (csrc/host/launch.h).
AS = "WARPSMITH_AS"


def claimed_sm() -> int:
    """The compute capability that all GPUs pass for; 0 where each is what it is."""
    return int(os.environ.get(AS) or 0)


def gencode(archs: Sequence[str]) -> list[str]:
    flags = []
    for arch in archs:
        virtual = f"compute_{arch.removesuffix(PTX)}"
        code = virtual if arch.endswith(PTX) else f"sm_{arch}"
        flags.append(f"-gencode=arch={virtual},code={code}")
    return flags


# --- nvcc -----------------------------------------------------------------------------------------


def _cuda_homes() -> Iterable[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if value := os.environ.get(variable):
            yield Path(value)
    if nvcc := shutil.which("nvcc"):
        text = subprocess.run(
            [nvcc, "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True, check=False
        ).stderr
        for line in text.splitlines():
            if line.startswith("#$ TOP="):  # also sees through wrapper scripts and symbolic links
                yield Path(line.removeprefix("#$ TOP=").strip())
    yield Path("/usr/local/cuda")
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        yield from sorted(p for p in Path(root).glob("cu*") if (p / "bin/nvcc").exists())


@functools.cache
def cuda_home() -> Path | None:
    """The CUDA toolkit: CUDA_HOME, nvcc on PATH, /usr/local/cuda, or the pip packages of
    `warpsmith[nvcc]`.
    """
    for home in _cuda_homes():
        if (home / "bin/nvcc").exists():
            return home.resolve()
    return None


def find_nvcc() -> Path | None:
    home = cuda_home()
    return home / "bin/nvcc" if home else None


@functools.cache
def _release(nvcc: Path) -> str:
    try:
        done = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.partition("release ")[2].partition(",")[0]


def nvcc_version() -> str:
    nvcc = find_nvcc()
    return _release(nvcc) if nvcc else ""


def nvcc_major() -> int:
    """Of the toolkit that compiles here; 0 where its version is not known."""
    return next(iter(version_numbers(nvcc_version())), 0)


def why_no_compiler() -> str | None:
    """Why nothing can be compiled, and what to do about it; None where it can."""
    if find_nvcc() is None:
        return "no CUDA compiler: set CUDA_HOME, or `pip install 'warpsmith[nvcc]'`"
    version = nvcc_version()
    if version and version_numbers(version) < MIN_NVCC:
        wanted = ".".join(map(str, MIN_NVCC))
        return f"nvcc {version} is older than {wanted}: set CUDA_HOME to a newer CUDA toolkit"
    return None


def cuda_library_dirs(home: Path) -> list[str]:
    """Where cudart_static lies; the layout differs between toolkits, distributions and pip
    packages.
    """
    names = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
    return [str(home / name) for name in names if (home / name).is_dir()]


# --- the host's compiler and PyTorch --------------------------------------------------------------


def cxx() -> str:
    return os.environ.get("CXX") or ("g++" if shutil.which("g++") else "c++")


@functools.cache
def _told_version(compiler: str) -> str:
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout


def identity() -> str:
    """Names the compilers: objects of others are others."""
    return f"{_told_version(str(find_nvcc()))} {_told_version(cxx())}"


@functools.cache
def torch_include_dirs() -> tuple[str, ...]:
    import torch

    return (str(Path(torch.__file__).parent / "include"),)


@functools.cache
def torch_library_dir() -> str:
    import torch

    return str(Path(torch.__file__).parent / "lib")


# --- headers that need not be there ---------------------------------------------------------------


@dataclass(frozen=True)
class Cutlass:
    """The headers of CUTLASS, CuTe's among them."""

    include: Path
    version: str

    @property
    def flags(self) -> list[str]:
        return ["-isystem", str(self.include), f"-DWARPSMITH_CUTLASS={self.version}"]


def _cutlass_includes() -> Iterable[Path]:
    if value := os.environ.get("CUTLASS_PATH"):
        yield Path(value) / "include"
        return
    spec = importlib.util.find_spec("cutlass_library")  # of the PyPI package nvidia-cutlass
    for root in spec.submodule_search_locations or () if spec else ():
        yield Path(root) / "source" / "include"


def find_cutlass() -> Cutlass | None:
    """CUTLASS_PATH and nothing else where that is set; otherwise the wheel of `warpsmith[cutlass]`.
    None where there are no headers, or older ones than the sources are written for.
    """
    for include in _cutlass_includes():
        header = include / "cutlass" / "version.h"
        if header.is_file():
            found = re.findall(
                r"^#define CUTLASS_(?:MAJOR|MINOR|PATCH) +(\d+)", header.read_text(), re.MULTILINE
            )
            if tuple(map(int, found)) >= MIN_CUTLASS:
                return Cutlass(include.resolve(), ".".join(found))
    return None
