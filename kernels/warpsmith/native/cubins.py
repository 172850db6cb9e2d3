"""The device code in a compiled library, through the toolkit's `cuobjdump`."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from warpsmith.native import toolchain


class InspectionError(RuntimeError):
    """A tool or a library that is not there; the message says which and what to do."""


@functools.cache
def find_tool(name: str) -> Path | None:
    """A CUDA binary utility: on PATH, beside nvcc, or in the Triton wheel."""
    if found := shutil.which(name):
        return Path(found)
    folders = []
    if nvcc := toolchain.find_nvcc():
        folders.append(nvcc.parent)
    spec = importlib.util.find_spec("triton")
    if spec is not None and spec.submodule_search_locations:
        folders += [Path(root) / "backends/nvidia/bin" for root in spec.submodule_search_locations]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    return None


def cuobjdump(*arguments: str, folder: str | None = None) -> str:
    """What the tool prints.

    Raises:
        InspectionError: it is not there, or fails.
    """
    tool = find_tool("cuobjdump")
    if tool is None:
        raise InspectionError(
            "cuobjdump not found: install the CUDA toolkit's binary utilities or Triton"
        )
    command = [str(tool), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode != 0:
        raise InspectionError(f"cuobjdump failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@dataclass(frozen=True)
class Cubin:
    """The device code of one source file for one architecture."""

    #: Of all files with device code for this architecture, in the order of the link.
    index: int
    arch: str  # "90a"
    elf: bytes


def extract(path: Path, arch: str | None = None) -> Iterator[Cubin]:
    """The device code in a library, a fat binary or an object file, in the order of the link.

    Args:
        path: the file.
        arch: leaves out all others.
    """
    with tempfile.TemporaryDirectory() as folder:
        cuobjdump("--extract-elf", "all", str(path.resolve()), folder=folder)
        # warpsmith_norm.12.sm_90a.cubin: numbered over all architectures
        found = sorted(Path(folder).glob("*.cubin"), key=lambda p: int(p.name.split(".")[-3]))
        seen: dict[str, int] = {}
        for cubin in found:
            name = cubin.stem.rpartition(".sm_")[2]
            if arch is None or name == arch:
                yield Cubin(seen.get(name, 0), name, cubin.read_bytes())
            seen[name] = seen.get(name, 0) + 1
