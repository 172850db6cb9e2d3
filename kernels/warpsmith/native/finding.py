"""Where the library of a call is found, first hit wins:

    $WARPSMITH_LIBRARY_DIR      a folder of ready-made libraries, of whatever sources
    warpsmith/lib               in the installed wheel, if it was built with torch and nvcc at hand
    the cache                   compiled on first use for the visible GPUs
                                ($WARPSMITH_CACHE, ~/.cache/warpsmith)

The last two are used only while they match the sources they were built from. A process loads one
library for all its GPUs, so it must hold code for each of them that the kernels run on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpsmith.core.json_files import read_json
from warpsmith.native import build, csrc, driver, libraries, store, toolchain


@dataclass(frozen=True)
class Status:
    """Where a library comes from, without compiling anything."""

    library: str
    origin: str  # "environment", "wheel", "cache" or "none"
    path: Path | None
    archs: tuple[str, ...]
    detail: str


def _device_archs() -> tuple[str, ...]:
    """The architectures of the visible GPUs, each once, in ascending order."""
    import torch

    if not torch.cuda.is_available():
        return ()
    if sm := toolchain.claimed_sm():
        return (f"{sm}{toolchain.PTX}",)
    found = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    return tuple(
        "90a" if capability == (9, 0) else "{}{}".format(*capability)
        for capability in sorted(found)
    )


def wanted_archs() -> tuple[str, ...]:
    """What a library has to hold code for: the visible GPUs that the kernels run on; all of the
    visible ones where they run on none.
    """
    devices = _device_archs()
    return tuple(arch for arch in devices if toolchain.sm_of(arch) >= toolchain.MIN_SM) or devices


def cache_name(library: str, *archs: str) -> str:
    """The folder of a library in the cache: another one for other sources, flags or headers."""
    cutlass = libraries.cutlass_for(library)
    key = libraries.key(library, archs, cutlass.version if cutlass else "")
    return f"{libraries.symbol(library)}-sm{'-'.join(archs)}-{key}"


def cache_dir(library: str, archs: Sequence[str]) -> Path:
    return store.cache_root() / cache_name(library, *archs)


def _runs_on(archs: Sequence[str], arch: str) -> bool:
    """Machine code of sm_80 also runs on sm_86 and sm_89, but not across a major version."""
    if arch in archs:
        return True
    return arch.isdigit() and any(
        a.isdigit() and a[:-1] == arch[:-1] and int(a) <= int(arch) for a in archs
    )


def _no_code(library: str, archs: Sequence[str], wanted: Sequence[str]) -> str:
    """Says which GPUs a library has no code for; empty where it has code for all."""
    lacking = ", ".join(f"sm_{arch}" for arch in wanted if not _runs_on(archs, arch))
    return f"{library} has no code for {lacking}; " if lacking else ""


def manifest(folder: Path, library: str) -> dict[str, Any]:
    """What is known of a library in a folder; empty where nothing is."""
    return read_json(folder / f"{libraries.symbol(library)}.json") or {}


def files(folder: Path, library: str) -> list[Path]:
    """A library in a folder: its file, what is known of it, and what it is linked with."""
    known = folder / f"{libraries.symbol(library)}.json"
    host = str(manifest(folder, library)["host"])
    return [folder / libraries.file_name(library), known, folder / host]


def _driver_lacks(known: dict[str, Any]) -> str:
    """What the driver is too old for in a library; empty where it runs it, as far as is known."""
    toolkit = known.get("nvcc", 0)
    return driver.lacks(toolkit if isinstance(toolkit, int) else 0)


def _archs(known: dict[str, Any]) -> tuple[str, ...]:
    return tuple(map(str, known.get("archs", ())))


def is_current(folder: Path, library: str, archs: Sequence[str] | None = None) -> bool:
    """Whether a folder's library was built from these sources, whatever headers are here now; and
    for these architectures, where they are given.
    """
    known = manifest(folder, library)
    built = _archs(known)
    if archs is not None and sorted(archs) != sorted(built):
        return False
    return known.get("key") == libraries.key(library, built, str(known.get("cutlass", "")))


def status(library: str) -> Status:
    """What is there for the library now; compiles nothing."""
    name = libraries.file_name(library)
    wanted = wanted_archs()
    detail = ""
    value = os.environ.get("WARPSMITH_LIBRARY_DIR")
    if value and (path := Path(value) / name).exists():
        known = manifest(path.parent, library)
        archs = _archs(known)
        # without a manifest nobody can tell
        detail = _no_code("the library in WARPSMITH_LIBRARY_DIR", archs, wanted) if archs else ""
        if lacking := _driver_lacks(known):
            detail += f"{lacking}; "
        if not detail:
            older = "" if is_current(path.parent, library) else ", built from other sources"
            told = f"named by WARPSMITH_LIBRARY_DIR{older}"
            return Status(library, "environment", path, archs, told)
    wheel = csrc.PACKAGE / "lib"
    if (wheel / name).exists():
        known = manifest(wheel, library)
        archs = _archs(known)
        if not is_current(wheel, library):
            detail += "the wheel's library is older than the sources; "
        elif lacking := _no_code("the wheel's library", archs, wanted):
            detail += lacking
        elif lacking := _driver_lacks(known):
            detail += f"{lacking}; "
        else:
            return Status(library, "wheel", wheel / name, archs, f"{detail}compiled ahead of time")
    if wanted:
        path = cache_dir(library, wanted) / name
        if path.exists():
            return Status(library, "cache", path, wanted, f"{detail}compiled on first use")
    return Status(library, "none", None, (), detail + _why_no_compile(wanted))


_FIRST_USE = "not compiled yet; the first use compiles it"


def _why_no_compile(archs: Sequence[str]) -> str:
    import torch

    if not archs:
        return "no CUDA GPU"
    if toolchain.sm_of(archs[-1]) < toolchain.MIN_SM:
        return f"the GPU is sm_{archs[-1]}, the kernels need sm_{toolchain.MIN_SM}"
    if toolchain.version_numbers(torch.__version__) < toolchain.MIN_TORCH:
        oldest = ".".join(map(str, toolchain.MIN_TORCH))
        return f"PyTorch {torch.__version__} is older than {oldest}"
    if reason := toolchain.why_no_compiler() or driver.lacks(toolchain.nvcc_major()):
        return reason
    if os.environ.get("WARPSMITH_BUILD", "1") == "0":
        return "compiling on first use is switched off (WARPSMITH_BUILD=0)"
    return _FIRST_USE


_failures: dict[str, str] = {}


def give_up(library: str, why: str) -> None:
    """Lets its operators do without the library from now on."""
    _failures[library] = why


def why_not(library: str) -> str:
    """Why there is no such compiled library."""
    return _failures.get(library) or status(library).detail


def will_compile(found: Status) -> bool:
    """Whether the first use compiles it."""
    return found.path is None and found.detail.endswith(_FIRST_USE)


def _say(library: str, done: int, total: int) -> None:
    end = "\n" if done == total else ""
    sys.stderr.write(
        f"\rwarpsmith: compiling '{library}' for this machine, once: {done}/{total}{end}"
    )
    sys.stderr.flush()


def prepare(names: Iterable[str]) -> None:
    """Compiles what is missing of several libraries, side by side."""
    wanted = list(dict.fromkeys(names))
    missing = [name for name in wanted if name not in _failures and will_compile(status(name))]
    if len(missing) > 1:
        done: dict[str, tuple[int, int]] = {}

        def say(library: str, count: int, total: int) -> None:
            done[library] = count, total
            if len(done) == len(missing):
                counts, totals = zip(*done.values(), strict=True)
                _say(f"{len(missing)} libraries", sum(counts), sum(totals))

        with contextlib.suppress(build.BuildError, OSError):  # `find` tells of it
            build.compiled(missing, wanted_archs(), say)
            sys.stderr.write("\n")
    for name in missing:
        find(name)


def find(library: str) -> Path | None:
    """The library for all visible GPUs, compiled now if need be; None where there can be none.
    What has failed once in a process is not tried again.
    """
    if library in _failures:
        return None
    found = status(library)
    if found.path is not None:
        return found.path
    archs = wanted_archs()
    if not will_compile(found):
        return None
    from filelock import FileLock

    folder = cache_dir(library, archs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "lock"):  # a second process waits, then finds the library
            found = status(library)
            if found.path is not None:
                return found.path
            started = time.monotonic()
            (path,) = build.build([library], archs, folder, _say, split=True)
    except (build.BuildError, OSError, ImportError) as error:  # no room, or no right to write
        give_up(library, str(error))
        if isinstance(error, build.BuildError):
            sys.stderr.write(" failed\n")  # on the line of progress
        return None
    took = time.monotonic() - started
    logging.getLogger("warpsmith").info("compiled '%s' in %.0f s", library, took)
    return path
