"""The library `csrc/autograd`, with which autograd records calls without Python: compiled with the
host's C++ compiler for the PyTorch at hand, in half a minute. It is looked for in

    $WARPSMITH_LIBRARY_DIR      a folder of ready-made libraries (`warpsmith build autograd`)
    the cache                   where the first use on a GPU compiles it, in the background, for the
                                processes that come later

and nothing needs it: without it, or with WARPSMITH_RECORD=0, calls cost the host more.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from warpsmith.native import build as builder
from warpsmith.native import csrc, store, toolchain

#: What `warpsmith build` calls it; the other libraries are of kernels.
NAME = "autograd"
SOURCE = csrc.CSRC / "autograd" / "recorded.cpp"
_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden")
_PREFIX = f"warpsmith_{NAME}-torch"
#: Seconds after which a compiler that has left nothing is taken for dead.
_DEAD = 600.0


@dataclass(frozen=True)
class Status:
    """Whether calls are recorded in C++, as far as that is known without loading anything."""

    path: Path | None  # the library
    why_not: str = ""  # where there is none
    cure: str = ""  # what a user may do about it
    begins: bool = False  # whether the first use compiles it

    def __str__(self) -> str:
        if self.path is None:
            return f"records calls in Python: {self.why_not}"
        return f"records calls in C++: {self.path}"


def file_name() -> str:
    """Of the library for this PyTorch: builds of one version have the same interface."""
    import torch

    version, sources = torch.__version__.partition("+")[0], _digest()[:8]
    return f"{_PREFIX}{version}-{sources}.so"


def _digest() -> str:
    """Of the sources; nothing where they are not there."""
    return csrc.digest([SOURCE], *_FLAGS) if os.path.isfile(SOURCE) else ""


def _cached() -> Path:
    """Homes may be shared by machines of several kinds, and by builds of one version."""
    import torch

    build = (torch.version.git_version or "", str(torch._C._GLIBCXX_USE_CXX11_ABI))
    key = csrc.digest([SOURCE], *_FLAGS, sys.platform, platform.machine(), *build)
    return store.cache_root() / f"{NAME}-{key}" / file_name()


def _named_folder() -> Path | None:
    folder = os.environ.get("WARPSMITH_LIBRARY_DIR")
    return Path(folder) if folder else None


def find() -> Path | None:
    """The library, if it is there."""
    folder = _named_folder()
    places = [folder / file_name()] if folder else []
    if os.path.isfile(SOURCE):
        places.append(_cached())
    # which, other than Path's, has no word for a folder that may not be read
    return next((place for place in places if os.path.isfile(place)), None)


def why_not() -> str | None:
    """Why it cannot be compiled here; None where it can."""
    import torch

    if shutil.which(toolchain.cxx()) is None:
        return f"no C++ compiler: {toolchain.cxx()} is not there (set CXX)"
    if toolchain.version_numbers(torch.__version__) < toolchain.MIN_TORCH:
        return f"PyTorch {torch.__version__} is older than the kernels need"
    if not os.path.isfile(SOURCE):
        return f"{SOURCE} is not there"
    return None


def _begun() -> float | None:
    """How many seconds ago a compiler began in the background; None where none did."""
    try:
        return time.time() - _cached().with_name("begun").stat().st_mtime
    except OSError:
        return None


def _is_at_work() -> bool:
    ago = _begun()
    return ago is not None and 0.0 <= ago < _DEAD


def status() -> Status:
    """What holds now; loads nothing, compiles nothing."""
    import torch

    if os.environ.get("WARPSMITH_RECORD", "1") == "0":
        return Status(None, "switched off (WARPSMITH_RECORD=0)")
    if path := find():
        return Status(path)
    folder, by_hand = _named_folder(), f"`warpsmith build {NAME}` compiles it"
    other = folder is not None and any(folder.glob(f"{_PREFIX}*.so"))
    told = "the library in WARPSMITH_LIBRARY_DIR is of another PyTorch or source; " if other else ""
    if reason := why_not():
        return Status(None, told + reason)
    if os.environ.get("WARPSMITH_BUILD", "1") == "0":
        why = "compiling on first use is switched off (WARPSMITH_BUILD=0)"
        return Status(None, told + why, by_hand)
    if not torch.cuda.is_available():
        return Status(None, f"{told}not compiled, as there is no CUDA GPU")
    if os.path.isfile(_cached().with_name("begun.failed")):
        return Status(None, f"{told}the compiler failed", f"`warpsmith build {NAME}` says why")
    if _is_at_work():
        return Status(None, f"{told}a compiler is at work on it in the background")
    if _begun() is None:
        why = "not compiled yet; the first use compiles it in the background"
        return Status(None, told + why, begins=True)
    why = "the compiler in the background left nothing; the next use tries again"
    return Status(None, told + why, f"{by_hand}, or says why not", begins=True)


# --- compiling ------------------------------------------------------------------------------------


def _includes() -> list[str]:
    (include,) = toolchain.torch_include_dirs()
    headers = (include, f"{include}/torch/csrc/api/include")
    return [word for path in headers for word in ("-isystem", path)]


def _libraries() -> list[str]:
    return [f"-L{toolchain.torch_library_dir()}", "-ltorch_cpu", "-lc10"]


def build(folder: Path, on_progress: builder.Progress | None = None) -> Path:
    """Compiles it into a folder; needs neither nvcc nor a GPU.

    Args:
        folder: for the library.
        on_progress: as that of `build.build`.

    Raises:
        BuildError: there is no compiler; or what the compiler said.
    """
    if reason := why_not():
        raise builder.BuildError(reason)
    tell = on_progress or (lambda library, done, total: None)
    tell(NAME, 0, 1)
    key = functools.partial(builder.object_key, NAME, SOURCE, _FLAGS, of_torch=True)
    command = (toolchain.cxx(), *_FLAGS, *_includes(), "-c", str(SOURCE))
    try:
        made = builder.Step(SOURCE, command, key(), key, weight=0).run()
    except builder.BuildError as error:
        raise builder.BuildError(f"compiling '{NAME}' failed:\n{error}") from error
    folder.mkdir(parents=True, exist_ok=True)
    to = folder / file_name()
    builder.link([str(made.path), *_libraries()], to, NAME)
    tell(NAME, 1, 1)
    return to


#: That this process has begun: nobody waits for them.
_compilers: list[subprocess.Popen[bytes]] = []


def _begin() -> None:
    """Compiles it beside this process, which it may outlive; once, however many processes ask."""
    to = _cached()
    begun = to.with_name("begun")
    command = [sys.executable, "-m", "warpsmith", "build", NAME, "--out", str(to.parent)]
    then = f'$(command -v nice) "$@" || mv "{begun}" "{begun}.failed"'
    with contextlib.suppress(OSError):  # no right to write: then without it
        to.parent.mkdir(parents=True, exist_ok=True)
        if _is_at_work():
            return
        begun.unlink(missing_ok=True)
        with begun.open("x"):
            pass
        compiler = subprocess.Popen(
            ["sh", "-c", then, "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _compilers.append(compiler)


# --- in use ---------------------------------------------------------------------------------------


@functools.cache
def load() -> bool:
    """Whether it is in use in this process: decided once."""
    return loaded()


def recorder() -> str:
    """What records calls in this process, as records of times say it: "C++" or "Python"."""
    return "C++" if load() else "Python"


def loaded() -> bool:
    """Whether it is in use: loaded now if it is there; otherwise a compiler begins, if it may."""
    import torch

    with contextlib.suppress(OSError):  # of another PyTorch, or folders that may not be read
        found = status()
        if found.path is not None:
            if not _is_here():
                torch.ops.load_library(str(found.path))
            return True
        if found.begins:
            _begin()
    return False


def _is_here() -> bool:
    """Whether this process has loaded one: a second would define the same again."""
    import torch

    return hasattr(torch.ops.warpsmith, "_record")
