"""The library `csrc/autograd`, with which autograd records calls without Python: compiled with the
host's C++ compiler for the PyTorch at hand, in half a minute. It is looked for in

    $WARPSMITH_LIBRARY_DIR      a folder of ready-made libraries
    the cache                   where `warpsmith build --autograd` compiles it, or the first use, in
                                the background, for the processes that come later

and nothing needs it: without it, or with WARPSMITH_RECORD=0, calls cost the host more.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from warpsmith.native import csrc, store, toolchain

SOURCE = csrc.CSRC / "autograd" / "recorded.cpp"
_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-s")
#: Seconds after which a compiler that has left nothing is taken for dead.
_DEAD = 600.0


def file_name() -> str:
    """Of the library for this PyTorch: builds of one version have the same interface."""
    import torch

    version = torch.__version__.partition("+")[0]
    return f"warpsmith_autograd-torch{version}.so"


def _cached() -> Path:
    key = csrc.digest([SOURCE], *_FLAGS, sys.platform)
    return store.cache_root() / f"autograd-{key}" / file_name()


def find() -> Path | None:
    """The library, if it is there."""
    folder = os.environ.get("WARPSMITH_LIBRARY_DIR")
    places = ([Path(folder) / file_name()] if folder else []) + [_cached()]
    return next((place for place in places if place.is_file()), None)


def why_not() -> str | None:
    """Why it cannot be compiled here; None where it can."""
    import torch

    if shutil.which(toolchain.cxx()) is None:
        return f"no C++ compiler: {toolchain.cxx()} is not there (set CXX)"
    if toolchain.version_numbers(torch.__version__) < toolchain.MIN_TORCH:
        return f"PyTorch {torch.__version__} is older than the kernels need"
    if not SOURCE.is_file():
        return f"{SOURCE} is not there"
    return None


def _command(to: Path) -> list[str]:
    (include,) = toolchain.torch_include_dirs()
    headers = (include, f"{include}/torch/csrc/api/include")
    words = [toolchain.cxx(), *_FLAGS, *(word for path in headers for word in ("-isystem", path))]
    libraries = [f"-L{toolchain.torch_library_dir()}", "-ltorch_cpu", "-lc10"]
    return [*words, str(SOURCE), *libraries, "-o", str(to)]


def build(folder: Path | None = None) -> Path:
    """Compiles it, into the cache or another folder; what is there already is not compiled again.

    Raises:
        RuntimeError: there is no compiler; or what the compiler said.
    """
    to = _cached() if folder is None else folder / file_name()
    if folder is None and to.is_file():
        return to
    if reason := why_not():
        raise RuntimeError(reason)
    to.parent.mkdir(parents=True, exist_ok=True)
    partial = to.with_name(f".{os.getpid()}.{to.name}")
    done = subprocess.run(_command(partial), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        partial.unlink(missing_ok=True)
        raise RuntimeError(f"compiling {SOURCE} failed:\n{done.stderr.strip()[-4000:]}")
    partial.replace(to)
    return to


def build_once(folder: Path) -> Path:
    """Compiles it into a folder, for all processes that ask."""
    from filelock import FileLock

    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):
        to = folder / file_name()
        return to if to.is_file() else build(folder)


def _begin() -> None:
    """Compiles it beside this process, which it may outlive; once, however many processes ask."""
    to = _cached()
    begun = to.with_name("begun")
    with contextlib.suppress(OSError):  # no right to write: then without it
        to.parent.mkdir(parents=True, exist_ok=True)
        if begun.exists() and time.time() - begun.stat().st_mtime < _DEAD:
            return
        begun.unlink(missing_ok=True)
        with begun.open("x"):
            pass
        partial = to.with_name(f".{os.getpid()}.{to.name}")
        then = f'nice "$@" && mv "{partial}" "{to}"'
        subprocess.Popen(
            ["sh", "-c", then, "sh", *_command(partial)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


@functools.cache
def load() -> bool:
    """Whether it is in use in this process: decided once."""
    return loaded()


def loaded() -> bool:
    """Whether it is in use: loaded now if it is there; otherwise a compiler begins, if it may."""
    import torch

    if os.environ.get("WARPSMITH_RECORD", "1") == "0":
        return False
    path = find()
    if path is None:
        allowed = os.environ.get("WARPSMITH_BUILD", "1") != "0" and torch.cuda.is_available()
        if allowed and why_not() is None:
            _begin()
        return False
    try:
        torch.ops.load_library(str(path))
    except OSError:  # of another PyTorch, whatever its name says
        return False
    return True
