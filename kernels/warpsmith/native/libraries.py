"""Which compiled libraries there are: small ones, so that a first call compiles what it needs.

A source folder of csrc is a library, and is called by its path: "norm/rms_norm", or
"norm/rms_norm/backward". One that many operators share is cut into groups of functions: with
`elementwise/map/parts/binary.h` there is a library "elementwise/map/binary", the folder's sources
compiled with that header before each.

What all of them need, the CUDA runtime and most of csrc/host, is in one library beside them, with
which they are linked (`HOST`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from warpsmith.core import families
from warpsmith.native import csrc, toolchain

#: The self tests of the device vocabulary, a library like any other.
SELFTEST = "selftest"
#: What it is called in progress and messages; its file's name ends in a hash.
HOST = "host"
#: Sources of csrc/host that every library has to itself: its list of kernels, and what knows
#: PyTorch's types, which must not cross from one library to another.
_OF_EACH = ("library.cpp", "tensor.cpp")


def of_family(family: str) -> tuple[str, ...]:
    """The libraries of a family, or "selftest"."""
    if family == SELFTEST:
        return (SELFTEST,)
    found = []
    for folder in sorted({path.parent for path in (csrc.CSRC / family).rglob("*.cu")}):
        name = folder.relative_to(csrc.CSRC).as_posix()
        parts = sorted(path.stem for path in (folder / "parts").glob("*.h"))
        found += [f"{name}/{part}" for part in parts] or [name]
    return tuple(found)


#: What libraries are of.
FAMILIES = (*families.FAMILIES, SELFTEST)


def all_libraries() -> tuple[str, ...]:
    """Every library with CUDA sources, the self tests included, family by family."""
    return tuple(name for family in FAMILIES for name in of_family(family))


def family_of(library: str) -> str:
    return library.partition("/")[0]


def part_of(library: str) -> Path | None:
    """The header that says which functions a library has of its folder; None where it has all."""
    path = csrc.CSRC / library
    header = path.parent / "parts" / f"{path.name}.h"
    return header if header.is_file() else None


def folder_of(library: str) -> Path:
    return (csrc.CSRC / library).parent if part_of(library) else csrc.CSRC / library


def symbol(library: str) -> str:
    """Its name as a part of others: "norm_rms_norm"."""
    return library.replace("/", "_")


def file_name(library: str) -> str:
    return f"warpsmith_{symbol(library)}.so"


def of_file(path: Path) -> str | None:
    """The library that a file holds by its name; None for none of those that there are."""
    return next((name for name in all_libraries() if path.name == file_name(name)), None)


def sources(library: str) -> list[Path]:
    """What is compiled into a library, in the order in which it is linked.

    Raises:
        ValueError: there is no such library.
    """
    if library == HOST:
        host = sorted((csrc.CSRC / HOST).glob("*.cpp"))
        return [path for path in host if path.name not in _OF_EACH]
    folder = folder_of(library)
    own = [path for path in sorted(folder.glob("*")) if path.suffix in (".cu", ".cpp")]
    if not own:
        raise ValueError(f"no CUDA sources for '{library}' under {csrc.CSRC}")
    return own + [csrc.CSRC / "host" / name for name in _OF_EACH]


def definitions(library: str, source: Path) -> list[str]:
    """What a source of a library is told of it: where its folder is cut, its functions."""
    header = part_of(library) if source.parent == folder_of(library) else None
    return ["-include", header.relative_to(csrc.CSRC).as_posix()] if header else []


def needs(library: str, paths: Iterable[Path]) -> list[Path]:
    """Every file of csrc that sources of a library are made of."""
    header = part_of(library)
    told = {header} if header and any(definitions(library, path) for path in paths) else set()
    return csrc.with_includes({*paths, *told})


def nvcc_flags() -> list[str]:
    """Of kernels, and of the host code around them: see `cxx_flags`."""
    return [*toolchain.NVCC_FLAGS, "-Xcompiler=-fvisibility=hidden"]


def cxx_flags(library: str) -> list[str]:
    """A library shows nothing of itself to others but what it says it does; its namesakes in
    another one, of templates that both use, are others.
    """
    hidden = [] if library == HOST else ["-fvisibility=hidden"]
    return [*toolchain.CXX_FLAGS, *hidden]


def cutlass_for(library: str) -> toolchain.Cutlass | None:
    """The headers that the library is built with; None also where no source of it needs them."""
    needed = any(path.name.startswith("cute_") for path in sources(library))
    return toolchain.find_cutlass() if needed else None


def host_key() -> str:
    """Identifies the library that all others are linked with."""
    paths = sources(HOST)
    return csrc.digest(csrc.with_includes(paths), *cxx_flags(HOST))


def host_file() -> str:
    return f"warpsmith_{HOST}_{host_key()}.so"


def key(library: str, archs: Sequence[str], cutlass: str) -> str:
    """Identifies a library: its sources, the flags, the architectures, and the version of CUTLASS
    that it is built with (empty: without).
    """
    paths = needs(library, sources(library))
    flags = [*cxx_flags(library), *nvcc_flags()]
    return csrc.digest(paths, library, *flags, *archs, cutlass, host_key())
