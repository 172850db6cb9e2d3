"""What CI asks of compiled kernels: `warpsmith build --report`."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from warpsmith.native import build, inspection, libraries, machine_code
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
    #: How large the libraries are, and what took longest to compile; more than `MOST_SECONDS` are
    #: no problem, as on a busy machine any file takes them.
    notes: list[str]


#: Of a library's kernels at most this share should be identical to another one.
MOST_IDENTICAL = 0.02
#: MiB that the libraries of families may have together, compiled for sm_90a alone.
MOST_MIB = {
    ("attention",): 12,
    ("elementwise",): 5,
    ("gemm",): 10,
    ("loss",): 2,
    ("norm",): 7,  # the wish was 6
    ("quantize",): 1,
    ("reduce",): 3,
    ("softmax",): 4,
    ("transform", "vision"): 4,
}
#: A file should take no longer to compile for one architecture on one core.
MOST_SECONDS = 60
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


def sizes(files: Iterable[Path]) -> tuple[list[str], list[str]]:
    """Of compiled libraries, by family, their size for sm_90a alone, less what they hold for other
    architectures: where it is within `MOST_MIB`, and where it is not. Libraries may be missing.
    """
    found: dict[str, list[int]] = {}
    for file in files:
        library, packed = libraries.of_file(file), machine_code.packed(file)
        if library is not None and 90 in packed:
            others = sum(size for sm, size in packed.items() if sm != 90)
            family = libraries.family_of(library)
            found.setdefault(family, []).append(file.stat().st_size - others)
    within: list[str] = []
    beyond: list[str] = []
    for families, most in MOST_MIB.items():
        held = [size for family in families for size in found.get(family, ())]
        there_are = sum(len(libraries.of_family(family)) for family in families)
        line = (
            f"{' and '.join(families)}: {sum(held) / 2**20:.2f} MiB for sm_90a, of at most {most}, "
            f"in {len(held)} of {there_are} libraries"
        )
        if held:
            (beyond if sum(held) > most * 2**20 else within).append(line)
    return within, beyond


def slow(took: Iterable[tuple[float, str]], archs: int) -> list[str]:
    """The file that took longest to compile, and all that took too long for one architecture."""
    longest = sorted(set(took), reverse=True)
    lines = [f"{file}: {seconds:.0f} s to compile, the longest" for seconds, file in longest[:1]]
    if archs == 1:
        for seconds, file in longest:
            if seconds > MOST_SECONDS:
                lines.append(f"{file}: {seconds:.0f} s to compile, of at most {MOST_SECONDS}")
    return lines


#: The dtype by which a kernel multiplies, the first one in its name, and the columns of its tile.
_DTYPE = re.compile(r"\b(?:bf16|f16|f32|e4m3|e5m2|i8)\b")
_COLUMNS = re.compile(r"\b(?:WgmmaTile\{\d+|QuantizedWgmma<\w+, \d+|Case<WgmmaKind<[^>]*>), (\d+)")
_INSTRUCTIONS = {"e4m3": "QGMMA", "e5m2": "QGMMA", "i8": "IGMMA"}


def wrong_products(name: str, found: Iterable[str]) -> str | None:
    """What is wrong with a kernel for sm_90a whose name says that it multiplies by wgmma: it is to
    have the instruction of its dtype and of its tile's columns, and none of mma.sync.

    Args:
        name: tidied, "matmul_wgmma_kernel<Config<bf16, WgmmaTile{128, 256, 2}>>".
        found: its instructions of tensor cores (`machine_code.products`).
    """
    head, _, arguments = name.partition("<")
    if "wgmma" not in head:
        return None
    dtype, columns = _DTYPE.search(arguments), _COLUMNS.search(arguments)
    wanted = _INSTRUCTIONS.get(dtype[0] if dtype else "", "HGMMA") + ".64x"
    wanted += columns[1] if columns else ""
    fits = any(each == wanted or (not columns and each.startswith(wanted)) for each in found)
    if fits and all("GMMA" in each for each in found):
        return None
    got = ", ".join(sorted(found)) or "no products"
    return f"expected {wanted} and no mma.sync, got {got}"


def _wrong(kernel: Kernel) -> Iterator[str]:
    """What a kernel uses that it should not."""
    most = largest_smem(kernel.arch)
    smem = kernel.static_smem + (kernel.dynamic_smem or 0)
    if most is not None and smem > most:
        yield f"{smem} B of shared memory, of {most} that a block may have"
    if kernel.stack or kernel.local:
        yield f"stack {kernel.stack} B, local {kernel.local} B"


def resource_report(
    files: Sequence[Path], logs: Sequence[Path] | None = None, archs: Sequence[str] = ()
) -> ResourceReport:
    """Checks that compiled libraries hold kernels, and these for spills, local memory, more shared
    memory than there is (of launches on record: `launches`), serialised wgmma, kernels named after
    wgmma that multiply otherwise, and host code that calls a device function, in place of which
    nvcc ends the process; and how large they are.

    Args:
        files: `warpsmith_<library>.so`.
        logs: build logs to search for warnings; by default those beside the libraries.
        archs: architectures of which each library must hold kernels, "90a".

    Returns:
        The kernels, the problems, empty where all is well, the libraries that hold too much twice,
        and notes.
    """
    kernels: list[Kernel] = []
    problems: list[str] = []
    repeated: list[str] = []
    for file in files:
        if "exit" in imports(file):
            problems.append(f"{file.name}: host code calls a __device__ function")
        found = inspection.resources(file)
        held = {kernel.arch for kernel in found}
        if not held:
            problems.append(f"{file.name}: no kernel could be read")
        problems += [f"{file.name}: no kernel for sm_{a}" for a in archs if held and a not in held]
        kernels += found
        codes = machine_code.read(file)
        repeated += [
            f"{file.name} (sm_{arch}): {same} of {count} kernels are identical to another one"
            for arch, (same, count) in identical(codes).items()
            if same > MOST_IDENTICAL * count
        ]
        problems += [f"{k.name} (sm_{k.arch}): {line}" for k in found for line in _wrong(k)]
        names = {(kernel.arch, kernel.symbol): kernel.name for kernel in found}
        for code in (code for code in codes if code.arch == "90a" and not code.empty):
            name = names.get((code.arch, code.symbol), "")
            if line := wrong_products(name, code.products):
                problems.append(f"{name} (sm_90a): {line}")
    notes, beyond = sizes(files)
    problems += beyond
    if logs is None:
        folders = {file.parent for file in files}
        logs = sorted(log for folder in folders for log in folder.glob("*build.log"))
    took: list[tuple[float, str]] = []
    for log in logs:
        text = log.read_text(errors="replace")
        matches = (_SERIALISED.match(line) for line in text.splitlines())
        problems += [f"{log.name}: {match[0].strip()}" for match in matches if match]
        took += build.seconds_of(text)
    return ResourceReport(kernels, problems, repeated, [*notes, *slow(took, len(archs))])
