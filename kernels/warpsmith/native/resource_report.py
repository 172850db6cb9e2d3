"""What CI asks of compiled kernels: `warpsmith build --report`."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from warpsmith.native import inspection, machine_code
from warpsmith.native.inspection import Kernel
from warpsmith.native.machine_code import Code
from warpsmith.native.occupancy import largest_smem


@dataclass(frozen=True)
class ResourceReport:
    """A build with `problems` is not good enough."""

    kernels: list[Kernel]
    problems: list[str]
    #: Libraries of which more kernels are others once more than `MOST_IDENTICAL`.
    repeated: list[str]


#: Of a library's kernels at most this share should be identical to another one.
MOST_IDENTICAL = 0.02
#: ptxas: wgmma serialised (C7510 and kin), which costs a kernel half its speed and more.
_SERIALISED = re.compile(r".*\bC75\d\d\b.*")


def imports(library: Path) -> set[str]:
    """Names of the functions that a library takes from others; none where binutils are missing."""
    nm = shutil.which("nm")
    if nm is None:
        return set()
    command = [nm, "--dynamic", "--undefined-only", str(library)]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    return {line.split()[-1].partition("@")[0] for line in lines if line.strip()}


def identical(codes: Iterable[Code]) -> dict[str, tuple[int, int]]:
    """Of each architecture, how many kernels are the same machine code as one before them, and how
    many there are. Several rungs may launch one kernel, each from a file of its own; or tiles may
    differ in what the compiler makes nothing of. Kernels that are empty do not count: what needs
    another architecture has no code of its own on this one.
    """
    digests: dict[str, list[str]] = {}
    for code in (code for code in codes if not code.empty):
        digests.setdefault(code.arch, []).append(code.digest)
    return {arch: (len(found) - len(set(found)), len(found)) for arch, found in digests.items()}


def resource_report(
    libraries: Sequence[Path], logs: Sequence[Path] | None = None, archs: Sequence[str] = ()
) -> ResourceReport:
    """Checks that compiled libraries hold kernels, and these for spills, local memory, more shared
    memory than there is (of launches on record: `launches`), serialised wgmma and host code that
    calls a device function, in place of which nvcc ends the process.

    Args:
        libraries: `warpsmith_<library>.so` files.
        logs: build logs to search for warnings; by default those beside the libraries.
        archs: architectures of which each library must hold kernels, "90a".

    Returns:
        The kernels, the problems, empty where all is well, and the libraries that hold too much
        twice.
    """
    kernels: list[Kernel] = []
    problems: list[str] = []
    repeated: list[str] = []
    for library in libraries:
        if "exit" in imports(library):
            problems.append(f"{library.name}: host code calls a __device__ function")
        found = inspection.resources(library)
        held = {kernel.arch for kernel in found}
        if not held:
            problems.append(f"{library.name}: no kernel could be read")
        problems += [
            f"{library.name}: no kernel for sm_{a}" for a in archs if held and a not in held
        ]
        kernels += found
        repeated += [
            f"{library.name} (sm_{arch}): {same} of {count} kernels are identical to another one"
            for arch, (same, count) in identical(machine_code.read(library)).items()
            if same > MOST_IDENTICAL * count
        ]
        for kernel in found:
            most = largest_smem(kernel.arch)
            smem = kernel.static_smem + (kernel.dynamic_smem or 0)
            if most is not None and smem > most:
                problems.append(
                    f"{kernel.name} (sm_{kernel.arch}): {smem} B of shared memory, of {most} that "
                    "a block may have"
                )
            if kernel.stack == 0 and kernel.local == 0:
                continue
            what = (
                f"{kernel.name} (sm_{kernel.arch}): stack {kernel.stack} B, local {kernel.local} B"
            )
            problems.append(what)
    if logs is None:
        folders = {library.parent for library in libraries}
        logs = sorted(log for folder in folders for log in folder.glob("*build.log"))
    for log in logs:
        matches = (_SERIALISED.match(line) for line in log.read_text(errors="replace").splitlines())
        problems += [f"{log.name}: {match[0].strip()}" for match in matches if match]
    return ResourceReport(kernels, problems, repeated)
