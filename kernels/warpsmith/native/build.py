"""Compiles the CUDA sources: one builder, ahead of time (setup.py, `warpsmith build`) and on first
use.

A family becomes one shared library, `warpsmith_<family>.so`, against PyTorch's stable ABI: it loads
under every Python and every PyTorch from `MIN_TORCH` on. Where a library is looked for, first hit
wins:

    $WARPSMITH_LIBRARY_DIR      a folder of ready-made libraries, of whatever sources
    warpsmith/lib               in the installed wheel, if it was built with torch and nvcc at hand
    the cache                   compiled on first use for the visible GPUs
                                ($WARPSMITH_CACHE, ~/.cache/warpsmith)

The last two are used only while they match the sources they were built from. A process loads one
library for all its GPUs, so it must hold code for each of them that the kernels run on.

Sources called `cute_*` are written with the headers of CUTLASS, which need not be there: without
them such a source compiles to a rung that refuses every call.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from warpsmith.core import families
from warpsmith.native import driver, machine

PACKAGE = Path(__file__).resolve().parents[1]
#: The CUDA sources: beside the package in an installed wheel, at the repository's root in a
#: checkout.
CSRC = PACKAGE / "csrc" if (PACKAGE / "csrc").is_dir() else PACKAGE.parent.parent / "csrc"

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

CXX_FLAGS = [
    "-std=c++20",
    "-O2",
    "-g0",  # Python's own flags ask for -g, which makes a binding's object 15 times as large
    "-Wall",
    "-Wno-unknown-pragmas",
    f"-DTORCH_TARGET_VERSION={_ABI_TARGET}",
]
NVCC_FLAGS = ["-std=c++20", "--expt-relaxed-constexpr", "-Xptxas=-v", "--compress-mode=size"]
#: nvcc's -O speaks of host code; kernels are always optimised in full. What a self test computes to
#: compare with is small, and would take gcc longest.
HOST_OPTIMISATION = {"selftest": "-O1"}

#: So many cores compile a family about as fast as more do.
_CORES_OF_A_FAMILY = 8

Progress = Callable[[str, int, int], None]


class BuildError(RuntimeError):
    """A compile failed; the message ends with the compiler's own words."""


@dataclass(frozen=True)
class Status:
    """Where the library of a family comes from, without compiling anything."""

    family: str
    origin: str  # "environment", "wheel", "cache" or "none"
    path: Path | None
    archs: tuple[str, ...]
    detail: str


# --- sources --------------------------------------------------------------------------------------


def sources(family: str) -> list[Path]:
    """What is compiled into the family's library."""
    own = [p for p in sorted((CSRC / family).rglob("*")) if p.suffix in (".cu", ".cpp")]
    if not own:
        raise BuildError(f"no CUDA sources for family '{family}' under {CSRC}")
    return own + sorted((CSRC / "host").glob("*.cpp"))


_COMMENT_OR_LITERAL = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL
)


def without_comments(source: str) -> str:
    """C++ less its comments and its layout, on which nothing depends that is measured."""
    bare = _COMMENT_OR_LITERAL.sub(lambda m: m[0] if m[0][0] in "\"'" else " ", source)
    return " ".join(bare.split())


def _digest(paths: Iterable[Path], *extra: str) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.relative_to(CSRC).as_posix().encode())
        digest.update(without_comments(path.read_text()).encode())
    for text in extra:
        digest.update(text.encode())
    return digest.hexdigest()[:16]


def _code(*folders: Path) -> list[Path]:
    suffixes = (".cu", ".cuh", ".cpp", ".h")
    return sorted(p for folder in folders for p in folder.rglob("*") if p.suffix in suffixes)


_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def _with_includes(paths: Iterable[Path], root: Path | None = None) -> list[Path]:
    """The files and every file of `root`, by default csrc, that they include, directly or not."""
    root = root or CSRC
    found: set[Path] = set()
    waiting = list(paths)
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            included = (root / name for name in _INCLUDE.findall(path.read_text()))
            waiting.extend(p for p in included if p.is_file())
    return sorted(found)


def source_hash(family: str, source_dir: str | None = None) -> str:
    """Identifies the CUDA code behind a family, or behind one source folder of it ("rms_norm",
    "rms_norm/backward"): its sources, every header that the kernels include, what launches them and
    what chooses between them. A folder inside another one is not part of it.
    """
    code = _code(CSRC / family)
    if source_dir:
        folder = CSRC / family / source_dir
        code = [path for path in code if path.parent == folder]
    host = (CSRC / "host" / name for name in ("launch.cpp", "ladder.h"))
    kernels = _with_includes([*host, *(p for p in code if p.suffix == ".cu")])
    return _digest(sorted({*code, *kernels}))


def file_hash(path: Path) -> str:
    """Identifies a file of CUDA code, with every header that it includes."""
    return _digest(sorted(_with_includes([path])))


def nvcc_flags(family: str) -> list[str]:
    return [*NVCC_FLAGS, HOST_OPTIMISATION.get(family, "-O3")]


def _key(family: str, archs: Sequence[str], cutlass: str) -> str:
    """Identifies a library: its sources, the flags, the architectures, and the version of CUTLASS
    that it is built with (empty: without).
    """
    code = sorted(_with_includes(_code(CSRC / family, CSRC / "host")))
    return _digest(code, *CXX_FLAGS, *nvcc_flags(family), *archs, cutlass)


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


def cutlass_for(family: str) -> Cutlass | None:
    """The headers that the family is built with; None also where no source of it needs them."""
    needed = any(path.name.startswith("cute_") for path in sources(family))
    return find_cutlass() if needed else None


def _cutlass_version(family: str) -> str:
    found = cutlass_for(family)
    return found.version if found else ""


# --- the compiler ---------------------------------------------------------------------------------


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


def version_numbers(version: str) -> tuple[int, ...]:
    """Major and minor: of "2.13.0+cu130" (2, 13)."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def why_no_compiler() -> str | None:
    """Why nothing can be compiled, and what to do about it; None where it can."""
    if find_nvcc() is None:
        return "no CUDA compiler: set CUDA_HOME, or `pip install 'warpsmith[nvcc]'`"
    version = nvcc_version()
    if version and version_numbers(version) < MIN_NVCC:
        wanted = ".".join(map(str, MIN_NVCC))
        return f"nvcc {version} is older than {wanted}: set CUDA_HOME to a newer CUDA toolkit"
    return None


def _gencode(arch: str) -> str:
    return f"-gencode=arch=compute_{arch},code=sm_{arch}"


def _library_dirs(home: Path) -> list[str]:
    """Where cudart_static lies; the layout differs between toolkits, distributions and pip
    packages.
    """
    names = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
    return [str(home / name) for name in names if (home / name).is_dir()]


# --- building -------------------------------------------------------------------------------------


def extension(family: str, archs: Sequence[str]) -> object:
    """The setuptools extension of a family, with the flags that the stable ABI asks for."""
    from torch.utils import cpp_extension

    home = cuda_home()
    if home is None:
        raise BuildError("no CUDA compiler: set CUDA_HOME, or `pip install 'warpsmith[nvcc]'`")
    cpp_extension.CUDA_HOME = str(home)  # None on a CPU-only PyTorch even where a toolkit exists
    cutlass = cutlass_for(family)
    flags = [f"-DWARPSMITH_FAMILY={family}", *(cutlass.flags if cutlass else ())]
    built = cpp_extension.CUDAExtension(
        f"warpsmith_{family}",
        [str(path) for path in sources(family)],
        include_dirs=[str(CSRC)],
        extra_compile_args={
            "cxx": [*CXX_FLAGS, *flags],
            "nvcc": [*nvcc_flags(family), *flags, *(_gencode(arch) for arch in archs)],
        },
    )
    # The library must load beside any PyTorch, CPU-only ones included: the CUDA parts of libtorch
    # are found at run time.
    built.libraries = ["torch_cpu", "c10", "cudart_static", "rt", "dl", "pthread"]
    built.library_dirs += _library_dirs(home)
    return built


def build_extension_class() -> type:
    """torch's build_ext, less its demand that nvcc be of PyTorch's own CUDA version (the stable ABI
    needs no such thing).
    """
    from torch.utils import cpp_extension

    class BuildFamily(cpp_extension.BuildExtension):  # type: ignore[misc, name-defined]
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, no_python_abi_suffix=True, **kwargs)

        def build_extensions(self) -> None:
            check = cpp_extension._check_cuda_version
            cpp_extension._check_cuda_version = lambda *args: None
            try:
                super().build_extensions()
            finally:
                cpp_extension._check_cuda_version = check

    return BuildFamily


class _Watch:
    """Tells `on_progress` how many object files are done while the compiler runs, and of the last
    one only where nothing failed.
    """

    def __init__(self, family: str, folder: Path, total: int, on_progress: Progress | None) -> None:
        self._family, self._folder, self._total, self._report = family, folder, total, on_progress
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        assert self._report is not None
        told = 0
        while not self._stop.wait(0.5):
            # The last file is told by __exit__, once linking is over too.
            done = min(sum(1 for _ in self._folder.rglob("*.o")), self._total - 1)
            if done > told:
                told = done
                self._report(self._family, done, self._total)

    def __enter__(self) -> None:
        if self._report:
            self._report(self._family, 0, self._total)
            self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._stop.set()
        if self._report:
            if self._thread.is_alive():
                self._thread.join()
            if kind is None:
                self._report(self._family, self._total, self._total)


_SCRIPT = """
import sys
from setuptools import Distribution
from warpsmith.native import build
family, archs, lib, temp = sys.argv[1], sys.argv[2].split(","), sys.argv[3], sys.argv[4]
distribution = Distribution({
    "name": "warpsmith_" + family,
    "ext_modules": [build.extension(family, archs)],
    "cmdclass": {"build_ext": build.build_extension_class()},
})
command = distribution.get_command_obj("build_ext")
command.build_lib, command.build_temp = lib, temp
command.ensure_finalized()
command.run()
"""


def _compile(family: str, archs: Sequence[str], out: Path, on_progress: Progress | None) -> Path:
    """Compiles in a process of its own, which leaves this one's environment and working directory
    alone.
    """
    name = f"warpsmith_{family}.so"
    out.mkdir(parents=True, exist_ok=True)
    cutlass = _cutlass_version(family)
    key = _key(family, archs, cutlass)  # of what is compiled, whatever is edited meanwhile
    with tempfile.TemporaryDirectory(prefix=f"warpsmith_{family}_") as scratch:
        objects = Path(scratch) / "objects"
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(PACKAGE.parent), *sys.path]))
        environment.setdefault("MAX_JOBS", str(machine.cores()))
        environment["PATH"] = os.pathsep.join(
            [sysconfig.get_path("scripts"), environment.get("PATH", "")]
        )
        command = [sys.executable, "-c", _SCRIPT, family, ",".join(archs), scratch, str(objects)]
        with _Watch(family, objects, len(sources(family)), on_progress):
            done = subprocess.run(
                command,
                cwd=scratch,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            (out / f"{family}.build.log").write_text(done.stdout)
            if done.returncode != 0:
                raise BuildError(f"compiling '{family}' failed:\n{_failure(done.stdout)}")
        # Atomic: a process that loads the library meanwhile sees the old file or the new one, never
        # a part.
        partial = out / f".{name}.{os.getpid()}"
        shutil.copy2(Path(scratch) / name, partial)
        os.replace(partial, out / name)
    manifest = {
        "family": family,
        "archs": list(archs),
        "cutlass": cutlass,
        "nvcc": nvcc_major(),
        "key": key,
    }
    (out / f"{family}.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return out / name


def _failure(log: str) -> str:
    """The compiler's own words, without the command lines and the resource report around them."""
    noise = (
        "ptxas info",
        "[",
        "Traceback",
        '  File "',
        "    ",
        "ninja:",
        "subprocess.",
        "The above exception",
        "RuntimeError: Error compiling objects",
    )
    # ninja names what failed, and on the next line the command
    log = re.sub(r"^(FAILED: .*\n).*\n", r"\1", log, flags=re.MULTILINE)
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith(noise)]
    wanted = [i for i, line in enumerate(lines) if "error" in line.lower()]
    start = max(0, wanted[0] - 2) if wanted else max(0, len(lines) - 20)
    return "\n".join(lines[start : start + 30])


def build(
    names: Sequence[str], archs: Sequence[str], out: Path, on_progress: Progress | None = None
) -> list[Path]:
    """Compiles families for GPU architectures; needs nvcc and torch, but no GPU.

    Args:
        names: families, "elementwise".
        archs: compute capabilities as nvcc names them, "80", "89", "90a".
        out: folder for `warpsmith_<family>.so`, its manifest and `<family>.build.log`.
        on_progress: called with (family, files done, files in all).

    Raises:
        BuildError: no compiler, or the compiler's messages, of every family that failed.
    """
    if reason := why_no_compiler():
        raise BuildError(reason)
    # Never one alone: while it compiles its last and longest files, most cores have nothing to do.
    side_by_side = max(2, machine.cores() // _CORES_OF_A_FAMILY)
    with ThreadPoolExecutor(side_by_side) as workers:
        runs = [workers.submit(_compile, name, archs, out, on_progress) for name in names]
    failures = [error for run in runs if isinstance(error := run.exception(), BuildError)]
    if len(failures) > 1:
        raise BuildError("\n\n".join(map(str, failures)))
    return [run.result() for run in runs]


# --- finding --------------------------------------------------------------------------------------


def cache_root() -> Path:
    if value := os.environ.get("WARPSMITH_CACHE"):
        return Path(value)
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(home or Path.home() / ".cache") / "warpsmith"
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir()) / f"warpsmith-{os.getuid()}"


def sm_of(arch: str) -> int:
    """The compute capability of an architecture as nvcc names it: 90 of "90a"."""
    return int(arch.rstrip("a"))


def _device_archs() -> tuple[str, ...]:
    """The architectures of the visible GPUs, each once, in ascending order."""
    import torch

    if not torch.cuda.is_available():
        return ()
    found = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    return tuple(
        "90a" if capability == (9, 0) else "{}{}".format(*capability)
        for capability in sorted(found)
    )


def _wanted_archs() -> tuple[str, ...]:
    """What a library has to hold code for: the visible GPUs that the kernels run on; all of the
    visible ones where they run on none.
    """
    devices = _device_archs()
    return tuple(arch for arch in devices if sm_of(arch) >= MIN_SM) or devices


def cache_name(family: str, *archs: str) -> str:
    """The folder of a library in the cache: another one for other sources, flags or headers."""
    return f"{family}-sm{'-'.join(archs)}-{_key(family, archs, _cutlass_version(family))}"


def _cache_dir(family: str, archs: Sequence[str]) -> Path:
    return cache_root() / cache_name(family, *archs)


def _runs_on(archs: Sequence[str], arch: str) -> bool:
    """Machine code of sm_80 also runs on sm_86 and sm_89, but not across a major version."""
    if arch in archs:
        return True
    return not arch.endswith("a") and any(
        not a.endswith("a") and a[:-1] == arch[:-1] and int(a) <= int(arch) for a in archs
    )


def _no_code(library: str, archs: Sequence[str], wanted: Sequence[str]) -> str:
    """Says which GPUs a library has no code for; empty where it has code for all."""
    lacking = ", ".join(f"sm_{arch}" for arch in wanted if not _runs_on(archs, arch))
    return f"{library} has no code for {lacking}; " if lacking else ""


def _manifest(folder: Path, family: str) -> dict[str, object]:
    path = folder / f"{family}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _driver_lacks(manifest: dict[str, object]) -> str:
    """What the driver is too old for in a library; empty where it runs it, as far as is known."""
    toolkit = manifest.get("nvcc", 0)
    return driver.lacks(toolkit if isinstance(toolkit, int) else 0)


def _archs(manifest: dict[str, object]) -> tuple[str, ...]:
    return tuple(map(str, manifest.get("archs", ())))  # type: ignore[call-overload]


def is_current(folder: Path, family: str, archs: Sequence[str] | None = None) -> bool:
    """Whether a folder's library was built from these sources, whatever headers are here now; and
    for these architectures, where they are given.
    """
    manifest = _manifest(folder, family)
    built = _archs(manifest)
    if archs is not None and sorted(archs) != sorted(built):
        return False
    return manifest.get("key") == _key(family, built, str(manifest.get("cutlass", "")))


def status(family: str) -> Status:
    """What is there for the family now; compiles nothing."""
    name = f"warpsmith_{family}.so"
    wanted = _wanted_archs()
    detail = ""
    value = os.environ.get("WARPSMITH_LIBRARY_DIR")
    if value and (path := Path(value) / name).exists():
        archs = _archs(_manifest(path.parent, family))
        # without a manifest nobody can tell
        detail = _no_code("the library in WARPSMITH_LIBRARY_DIR", archs, wanted) if archs else ""
        if lacking := _driver_lacks(_manifest(path.parent, family)):
            detail += f"{lacking}; "
        if not detail:
            older = "" if is_current(path.parent, family) else ", built from other sources"
            told = f"named by WARPSMITH_LIBRARY_DIR{older}"
            return Status(family, "environment", path, archs, told)
    wheel = PACKAGE / "lib"
    if (wheel / name).exists():
        archs = _archs(_manifest(wheel, family))
        if not is_current(wheel, family):
            detail += "the wheel's library is older than the sources; "
        elif lacking := _no_code("the wheel's library", archs, wanted):
            detail += lacking
        elif lacking := _driver_lacks(_manifest(wheel, family)):
            detail += f"{lacking}; "
        else:
            return Status(family, "wheel", wheel / name, archs, f"{detail}compiled ahead of time")
    if wanted:
        path = _cache_dir(family, wanted) / name
        if path.exists():
            return Status(family, "cache", path, wanted, f"{detail}compiled on first use")
    return Status(family, "none", None, (), detail + _why_no_compile(wanted))


def _why_no_compile(archs: Sequence[str]) -> str:
    import torch

    if not archs:
        return "no CUDA GPU"
    if sm_of(archs[-1]) < MIN_SM:
        return f"the GPU is sm_{archs[-1]}, the kernels need sm_{MIN_SM}"
    if version_numbers(torch.__version__) < MIN_TORCH:
        return f"PyTorch {torch.__version__} is older than {MIN_TORCH[0]}.{MIN_TORCH[1]}"
    if reason := why_no_compiler() or driver.lacks(nvcc_major()):
        return reason
    if os.environ.get("WARPSMITH_BUILD", "1") == "0":
        return "compiling on first use is switched off (WARPSMITH_BUILD=0)"
    return "not compiled yet; the first use compiles it"


_failures: dict[str, str] = {}


def give_up(family: str, why: str) -> None:
    """Lets a family do without its library from now on."""
    _failures[family] = why


def why_not(family: str) -> str:
    """Why the family has no compiled library."""
    return _failures.get(family) or status(family).detail


def _say(family: str, done: int, total: int) -> None:
    end = "\n" if done == total else ""
    sys.stderr.write(
        f"\rwarpsmith: compiling '{family}' for this machine, once: {done}/{total}{end}"
    )
    sys.stderr.flush()


def library(family: str) -> Path | None:
    """The family's library for all visible GPUs, compiled now if need be; None where there can be
    none. What has failed once in a process is not tried again.
    """
    if family in _failures:
        return None
    found = status(family)
    if found.path is not None:
        return found.path
    archs = _wanted_archs()
    if not found.detail.endswith("the first use compiles it"):
        return None
    from filelock import FileLock

    folder = _cache_dir(family, archs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "lock"):  # a second process waits, then finds the library
            found = status(family)
            if found.path is not None:
                return found.path
            started = time.monotonic()
            path = _compile(family, archs, folder, _say)
    except (BuildError, OSError, ImportError) as error:  # OSError: no room, or no right to write
        give_up(family, str(error))
        if isinstance(error, BuildError):
            sys.stderr.write(" failed\n")  # on the line of progress
        return None
    took = time.monotonic() - started
    logging.getLogger("warpsmith").info("compiled '%s' in %.0f s", family, took)
    return path


def all_families() -> tuple[str, ...]:
    """Every family with CUDA sources, the device vocabulary's self tests included."""
    return (*families.FAMILIES, "selftest")
