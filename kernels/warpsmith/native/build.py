"""Compiles the CUDA sources: one builder, ahead of time (setup.py, `warpsmith build`) and on first
use (`finding`).

A library (`libraries`) is compiled against PyTorch's stable ABI: it loads under every Python and
every PyTorch from `toolchain.MIN_TORCH` on. The compilers are called directly, on as many cores as
there are, the longest files first; object files come from the store and go there.

Sources called `cute_*` are written with the headers of CUTLASS, which need not be there: without
them such a source compiles to a rung that refuses every call.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from warpsmith.native import csrc, libraries, machine, store, toolchain

Progress = Callable[[str, int, int], None]


class BuildError(RuntimeError):
    """A compile failed; the message ends with the compiler's own words."""


@dataclass(frozen=True)
class Step:
    """One run of a compiler."""

    source: Path
    command: tuple[str, ...]  # less the output
    key: str
    key_now: Callable[[], str]  # of the sources as they are by now
    weight: int  # steps of more weight take longer
    #: The key of what a compiler of one thread makes of it, where this one has several.
    unsplit: str | None = None

    def run(self) -> store.Object:
        """The object file, compiled now if the store has none.

        Raises:
            BuildError: with the compiler's words, or an edit came in between.
        """
        try:
            if self.unsplit is not None and (found := store.find(self.unsplit)):
                return found
            return store.obtain(self.key, self._make, self.key_now)
        except store.EditedError as error:
            raise BuildError(f"{self.source.name}: {error}") from error

    def _make(self, to: Path) -> str:
        command = [*self.command, "-o", str(to)]
        started = time.monotonic()
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        seconds = time.monotonic() - started
        where = self.source.relative_to(csrc.CSRC).as_posix()
        log = f"{' '.join(self.command)}\n{done.stdout}\n{where} took {seconds:.1f} s\n"
        if done.returncode != 0:
            raise BuildError(f"{self.source.name}:\n{failure(done.stdout)}")
        return log


def seconds_of(log: str) -> list[tuple[float, str]]:
    """The files of a log, below csrc, and how long each took to compile, by the clock."""
    found = re.findall(r"^(\S+\.(?:cu|cpp)) took ([\d.]+) s$", log, re.MULTILINE)
    return [(float(seconds), file) for file, seconds in found]


def steps(library: str, archs: Sequence[str], threads: int = 1, split: bool = False) -> list[Step]:
    """What has to be compiled for a library, or for the one that all are linked with, in the order
    in which it is linked.

    Args:
        library, archs: of what, and for what.
        threads: of a compiler.
        split: whether these share a file's kernels too, and not its architectures alone. What they
            make of some kernels is other machine code than one thread makes, which is what
            benchmarks/code.json and the records speak of; so it is kept under another key.
    """
    found = libraries.cutlass_for(library) if library != libraries.HOST else None
    home = toolchain.cuda_home()
    if home is None:
        raise BuildError("no CUDA compiler: set CUDA_HOME, or `pip install 'warpsmith[nvcc]'`")
    nvcc = [str(home / "bin" / "nvcc")]
    if host := os.environ.get("CXX"):
        nvcc += ["-ccbin", host]
    if threads > 1:
        nvcc += [f"--threads={min(threads, len(archs))}"]
    includes = [f"-I{csrc.CSRC}", f"-I{home / 'include'}"]
    bindings = [word for path in toolchain.torch_include_dirs() for word in ("-isystem", path)]
    made = []
    for source in libraries.sources(library):
        of_torch = source.suffix == ".cpp"
        own = [*libraries.definitions(library, source), *(found.flags if found else ())]
        if of_torch:
            flags = [*libraries.cxx_flags(library), *own]
            command = [toolchain.cxx(), *flags, *includes, *bindings]
        else:
            flags = [*libraries.nvcc_flags(), *own, *toolchain.gencode(archs)]
            command = [*nvcc, *flags, includes[0]]
        key = functools.partial(object_key, library, source, flags, of_torch)
        unsplit = None
        if split and threads > 1 and not of_torch:
            unsplit = key()
            command.append(f"--split-compile={threads}")
            key = functools.partial(object_key, library, source, [*flags, "split"], of_torch)
        weight = sum(path.stat().st_size for path in libraries.needs(library, [source]))
        made.append(Step(source, (*command, "-c", str(source)), key(), key, weight, unsplit))
    return made


def object_key(library: str, source: Path, flags: Sequence[str], of_torch: bool) -> str:
    """Of an object file, wherever the sources and the headers of others lie."""
    files = libraries.needs(library, [source])
    names = [flag for flag in flags if not os.path.isabs(flag)]
    version = ""
    if of_torch:
        import torch

        version = torch.__version__
    where = source.relative_to(csrc.CSRC).as_posix()
    return store.key_of([where, csrc.digest(files), *names, toolchain.identity(), version])


def failure(log: str) -> str:
    """The compiler's own words, without the resource report around them."""
    lines = [
        line for line in log.splitlines() if line.strip() and not line.startswith("ptxas info")
    ]
    wanted = [i for i, line in enumerate(lines) if "error" in line.lower()]
    start = max(0, wanted[0] - 2) if wanted else max(0, len(lines) - 20)
    return "\n".join(lines[start : start + 30])


# --- linking --------------------------------------------------------------------------------------


def wrapped() -> list[str]:
    """The functions of the CUDA runtime that the host library has for all others."""
    return re.findall(r"\b__wrap_(\w+)\(", (csrc.CSRC / "host" / "runtime.cpp").read_text())


def link(words: Sequence[str], to: Path, of: str) -> None:
    """Links to a file that is whole from the moment that it is there."""
    partial = to.with_name(f".{to.name}.{os.getpid()}.{threading.get_ident()}")
    # symbols that nothing defines are an error here, and not when it is loaded; a C++ library that
    # is there as an archive only is not mixed with the one that PyTorch has loaded
    options = ["-shared", "-s", "-Wl,-z,defs", "-Wl,--exclude-libs,libstdc++.a"]
    command = [toolchain.cxx(), *options, f"-Wl,-soname,{to.name}", *words]
    done = subprocess.run(
        [*command, "-o", str(partial)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        partial.unlink(missing_ok=True)
        raise BuildError(f"linking '{of}' failed:\n{done.stderr.strip()[-4000:]}")
    os.replace(partial, to)


def _link_host(objects: Sequence[store.Object], to: Path) -> None:
    if to.exists():
        return
    home = toolchain.cuda_home()
    assert home is not None
    runtime = [f"-L{folder}" for folder in toolchain.cuda_library_dirs(home)]
    runtime += ["-lcudart_static", "-lrt", "-ldl", "-lpthread"]
    link([*(str(made.path) for made in objects), *runtime], to, libraries.HOST)


def _link_library(library: str, objects: Sequence[store.Object], host: Path, to: Path) -> None:
    wraps = [f"-Wl,--wrap={name}" for name in wrapped()]
    files = [*(str(made.path) for made in objects), str(host)]
    torch = [f"-L{toolchain.torch_library_dir()}", "-ltorch_cpu", "-lc10", "-ldl"]
    link([*files, *wraps, *torch, "-Wl,-rpath,$ORIGIN"], to, library)


# --- building -------------------------------------------------------------------------------------


class _Making:
    """One library on its way: which of its objects are there, and what went wrong."""

    def __init__(self, library: str, todo: Sequence[Step], on_progress: Progress | None) -> None:
        self.library, self.todo, self._report = library, todo, on_progress
        self._lock, self._done = threading.Lock(), 0
        self.failed: BuildError | None = None
        self.tell(0)

    def tell(self, done: int) -> None:
        if self._report:
            self._report(self.library, done, len(self.todo))

    def compile(self, step: Step) -> store.Object | None:
        if self.failed is not None:
            return None
        try:
            made = step.run()
        except BuildError as error:
            self.failed = self.failed or error
            return None
        with self._lock:
            self._done += 1
            if self._done < len(self.todo):  # the last one is told once linking is over too
                self.tell(self._done)
        return made


def jobs() -> int:
    """Compilers at a time: MAX_JOBS, or as many as there are cores."""
    value = os.environ.get("MAX_JOBS", "")
    return int(value) if value.isdigit() and int(value) > 0 else machine.cores()


def compiled(
    names: Sequence[str],
    archs: Sequence[str],
    on_progress: Progress | None = None,
    split: bool = False,
) -> dict[str, list[store.Object] | BuildError]:
    """The object files of libraries, in the order in which they are linked, and those of the one
    that all are linked with; or what the compiler said. `split`: see `steps`.
    """
    # of a single library, the last and longest files would keep few cores busy
    threads = jobs() if len(names) == 1 else 1
    makings = [_Making(libraries.HOST, steps(libraries.HOST, archs), None)]
    makings += [_Making(name, steps(name, archs, threads, split), on_progress) for name in names]
    queue = [(making, step) for making in makings for step in making.todo]
    queue.sort(key=lambda pair: -pair[1].weight)
    with ThreadPoolExecutor(jobs()) as workers:
        runs = {
            (making.library, step.source): workers.submit(making.compile, step)
            for making, step in queue
        }
    found: dict[str, list[store.Object] | BuildError] = {}
    for making in makings:
        made = [runs[making.library, step.source].result() for step in making.todo]
        found[making.library] = making.failed or [each for each in made if each is not None]
    store.prune()
    return found


def build(
    names: Sequence[str],
    archs: Sequence[str],
    out: Path,
    on_progress: Progress | None = None,
    split: bool = False,
) -> list[Path]:
    """Compiles libraries for GPU architectures; needs nvcc and torch, but no GPU.

    Args:
        names: libraries, "norm/rms_norm".
        archs: compute capabilities as nvcc names them, "80", "89", "90a".
        out: folder for `warpsmith_<library>.so`, its manifest and `<library>.build.log`, and for
            the library of what all need.
        on_progress: called with (library, files done, files in all), of the last file only where
            nothing failed.
        split: see `steps`; for a library that somebody waits for.

    Raises:
        BuildError: no compiler, or the compiler's messages, of every library that failed.
    """
    if reason := toolchain.why_no_compiler():
        raise BuildError(reason)
    out.mkdir(parents=True, exist_ok=True)
    manifests = {name: _manifest(name, archs) for name in names}  # whatever is edited meanwhile
    host_path = out / libraries.host_file()
    found = compiled(names, archs, on_progress, split)
    paths, failures = [], []
    for name, objects in found.items():
        try:
            if isinstance(objects, BuildError):
                raise BuildError(f"compiling '{name}' failed:\n{objects}")
            if name == libraries.HOST:
                _link_host(objects, host_path)
                continue
            paths.append(_finish(name, objects, host_path, manifests[name], out))
            if on_progress:
                on_progress(name, len(objects), len(objects))
        except BuildError as error:
            failures.append(str(error))
    if failures:
        raise BuildError("\n\n".join(failures))
    return paths


def _manifest(library: str, archs: Sequence[str]) -> dict[str, object]:
    cutlass = libraries.cutlass_for(library)
    version = cutlass.version if cutlass else ""
    return {
        "library": library,
        "archs": list(archs),
        "cutlass": version,
        "nvcc": toolchain.nvcc_major(),
        "host": libraries.host_file(),
        "key": libraries.key(library, archs, version),
    }


def _finish(
    library: str,
    objects: Sequence[store.Object],
    host: Path,
    manifest: dict[str, object],
    out: Path,
) -> Path:
    to = out / libraries.file_name(library)
    _link_library(library, objects, host, to)
    name = libraries.symbol(library)
    (out / f"{name}.build.log").write_text("".join(made.log for made in objects))
    (out / f"{name}.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return to
