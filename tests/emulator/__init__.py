"""Runs the CUDA kernels on the CPU, so that what they compute can be checked where there is no GPU.

The sources of csrc go through g++ instead of nvcc. On the way, `rewritten` puts the headers of this
folder in the place of the few that hold PTX, and turns dynamic shared memory and launches into C++;
everything else is compiled as it stands. `emulator.h` says how a block runs.

What it finds: wrong results, reads of shared memory that nothing wrote, barriers that are missing
(run it in both orders of threads), copies that are read before they were waited for, misaligned
accesses, deadlocks. What it cannot find: races that both orders survive, missing fences, anything
about speed.

    python tests/emulator softmax var       operators; the first argument may be a family
    python tests/emulator selftest          the self tests of csrc/selftest
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch.utils import cpp_extension

from warpsmith.native import csrc, libraries, store, toolchain

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1] / "build" / "emulator"

#: What the CuTe rungs are written with is not emulated; of the self tests, what measures or breaks
#: a GPU.
LEFT_OUT = re.compile(r"/cute_|selftest/(faults|mma_rate)\.cu")

_DYNAMIC = re.compile(
    r"extern __shared__ (?:__align__\((\d+)\) )?([\w:]+) (\w+)\[\];",
)
_ALIGNED = re.compile(r"__shared__ (alignas\([^)]*\))")
#: What bindings do with tensors: a dry run leaves it (tensors.h).
_TENSORS = re.compile(r"\btorch::stable::(contiguous|clone|zero_|fill_|copy_)\(")
#: Functions of device/cluster.h in PTX: the declaration up to the brace, and what they do here.
_CLUSTER = {
    "int cluster_rank()": "return emu::cluster_rank();",
    "void cluster_arrive()": "emu::cluster_arrive();",
    "void cluster_arrive_relaxed()": "emu::cluster_arrive();",
    "void cluster_wait()": "emu::cluster_wait();",
    "void store_remote(float* local, int rank, float value)": (
        "*static_cast<float*>(emu::in_block(local, rank)) = value;"
    ),
}
#: Text that has to be there, by file, and what takes its place: tensors are on the CPU.
_TEXTS = {
    "host/into.h": [(' + ".out")', ' + ".auto_out")')],
    "host/launch.h": [
        (
            "  launch(kernel, config, stream, addresses);\n",
            "  emu::prepare_launch(function, kernel.name, arguments...);\n"
            "  launch(kernel, config, stream, addresses);\n",
        ),
        ("void launch_as(void (*)(Params...),", "void launch_as(void (*function)(Params...),"),
        ("  return {detail::spelling<kernel>(),", "  return {emu::spelling<emu::Named<kernel>>(),"),
    ],
    "host/launch.cpp": [
        (  # not the last launch is kept, but that of the most shared memory
            "  kernel.state->last.note(config);\n",
            "  if (config.dynamic_smem >= kernel.state->last.dynamic_smem())"
            " kernel.state->last.note(config);\n",
        ),
        (
            "  if (device < 0 || device >= kMaxDevices) throw",
            "  if (device < 0) return device_info(current_device());\n"
            "  if (device >= kMaxDevices) throw",
        ),
    ],
    "host/library.cpp": [
        (  # once it is told, it is forgotten: a call that launches nothing leaves it empty
            "return std::string(last_rung);",
            "return std::string(std::exchange(last_rung, std::string_view()));",
        ),
    ],
    "host/tensor.cpp": [
        (
            "cudaStream_t current_stream(int device) {\n",
            "cudaStream_t current_stream(int device) {\n  if (device < 0) return nullptr;\n",
        ),
    ],
    "host/tensor.h": [
        (
            "bool is_dense(const Tensor& tensor);\n",
            "bool is_dense(const Tensor& tensor);\n"
            '}\n#include "tensors.h"\nnamespace warpsmith {\n',
        ),
    ],
    "host/tensor_map.cpp": [
        (
            "namespace warpsmith {\n",
            'extern "C" bool emulator_has_context();\n#include "matrix.h"\nnamespace warpsmith {\n',
        ),
        (
            "  static const auto encoder = [] {\n",
            "  if (!emulator_has_context())"
            " return [](auto...) { return CUDA_ERROR_INVALID_CONTEXT; };\n"
            # the type, which only tensor_add asks for, behind what others read of a map and what a
            # dry run notes of it
            "  return [](CUtensorMap* map, CUtensorMapDataType type, auto... rest) {\n"
            "    const CUresult status = emu::emulated_tensor_map_encode(map, type, rest...);\n"
            "    static_assert(sizeof(emu::TensorMap) + sizeof(type) <= sizeof(*map));\n"
            "    char* to = reinterpret_cast<char*>(map) + sizeof(emu::TensorMap);\n"
            "    if (status == CUDA_SUCCESS && !emu::is_dry()) {\n"
            "      std::memcpy(to, &type, sizeof(type));\n"
            "    }\n"
            "    return status;\n"
            "  };\n  static const auto encoder = [] {\n",
        ),
    ],
}


def rewritten(name: str, text: str) -> str:
    """A source of csrc as g++ gets it.

    Args:
        name: path below csrc.
        text: the source.

    Raises:
        ValueError: where a header no longer holds what is to be replaced.
    """
    if name.startswith("device/ptx/"):
        own = HERE / f"ptx_{Path(name).name}"  # of what few kernels use
        if not own.is_file():
            return '#pragma once\n#include "ptx.h"\n'
        digest = hashlib.sha256(own.read_bytes()).hexdigest()  # of objects that include it
        return f'#pragma once\n#include "{own.name}"\nstatic_assert("{digest}");\n'
    if name == "device/cluster.h":
        for declaration, body in _CLUSTER.items():
            begin = text.find(declaration + " {")
            if begin < 0:
                raise ValueError(f"{name}: no '{declaration}'")
            end = text.find("\n\n", begin)
            text = f"{text[:begin]}{declaration} {{ {body} }}{text[end:]}"
    for old, new in _TEXTS.get(name, ()):
        if old not in text:
            raise ValueError(f"{name}: no '{old.strip()}'")
        text = text.replace(old, new)
    text = _DYNAMIC.sub(
        lambda m: f"auto* const {m[3]} = static_cast<{m[2]}*>(emu::dynamic_shared({m[1] or 16}));",
        text,
    )
    text = _ALIGNED.sub(r"\1 __shared__", text)
    text = text.replace("#include <mma.h>", '#include "matrix.h"')
    if name.endswith((".cpp", ".h")):
        text = _TENSORS.sub(r"emu::\1(", text)
    if name.endswith(".cpp") or name == "host/serve.h":
        text = text.replace(
            "STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA,",
            "STABLE_TORCH_LIBRARY_IMPL(warpsmith, CPU,",
        )
        text = re.sub(r"\b(m|library)\.impl\(", r"emu::implement(\1, ", text)
    return text


def _write(to: Path, text: str) -> None:
    """At once, for whoever compiles it meanwhile."""
    to.parent.mkdir(parents=True, exist_ok=True)
    scratch = to.with_suffix(f".{os.getpid()}")
    scratch.write_text(text)
    scratch.replace(to)


def _write_sources(folder: Path) -> None:
    for path in csrc.code(csrc.CSRC):
        name = path.relative_to(csrc.CSRC).as_posix()
        text = rewritten(name, path.read_text())
        to = folder / name
        if not to.exists() or to.read_text() != text:
            _write(to, text)


@functools.cache
def _torch_flags() -> tuple[str, ...]:
    return tuple(f"-I{path}" for path in cpp_extension.include_paths())


def _cuda_include() -> Path:
    home = toolchain.cuda_home()
    if home is None:
        raise RuntimeError(
            "the emulator needs the headers of CUDA: `pip install 'warpsmith[nvcc]'`"
        )
    return home / "include"


_FLAGS = (
    "-std=c++20",
    "-O1",
    "-fPIC",
    "-w",
    "-fno-strict-aliasing",
    "-pthread",
    "-U_FORTIFY_SOURCE",
    "-fno-gnu-unique",  # with -Bsymbolic: what families have in common, each has to itself
    "-ftrivial-auto-var-init=pattern",  # of what launches note before it is written
)


def _run(command: Sequence[str | Path]) -> None:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line][:12]
        raise RuntimeError("\n".join(errors or [done.stderr[-2000:]]))


def _versions() -> tuple[str, ...]:
    return (toolchain.identity(), torch.__version__)


_HEADER_LOCK = threading.Lock()


def _compiled_header(name: str, flags: Sequence[str]) -> Path:
    """A folder in which g++ finds a header of ours compiled, for sources of the same flags: to read
    its text takes longer than most sources do.
    """
    texts = "".join(path.read_text() for path in sorted(HERE.glob("*.h")))
    key = store.key_of([name, texts, *_FLAGS, *flags, *_versions()])
    to = ROOT / "headers" / key / f"{name}.gch"
    with _HEADER_LOCK:
        if not to.exists():
            to.parent.mkdir(parents=True, exist_ok=True)
            scratch = to.with_suffix(f".{os.getpid()}")
            _run(["g++", *_FLAGS, *flags, "-x", "c++-header", HERE / name, "-o", scratch])
            scratch.replace(to)  # other processes may make it too
    return to.parent


def _object(
    source: Path, flags: Sequence[str], told: Sequence[str], digest: Callable[[], str]
) -> Path:
    """Compiles what was not compiled before, in whatever checkout.

    Args:
        source: a rewritten one.
        flags: of all sources of its kind.
        told: more, of its own.
        digest: of what it is made.
    """
    header = "bindings.h"
    if source.suffix == ".cu":
        header, flags = "emulator.h", ("-DEMULATED_DEVICE", *flags)
    words = ("-x", "c++", "-include", header, *flags, *told)
    named = [word for word in words if not word.startswith(("-I", "/"))]

    def compile_to(path: Path) -> str:
        first = f"-I{_compiled_header(header, flags)}"
        _run(["g++", *_FLAGS, first, *words, "-c", source, "-o", path])
        return ""

    def key() -> str:
        where = source.relative_to(ROOT).as_posix()
        return store.key_of([where, digest(), *_FLAGS, *named, *_versions()])

    return store.obtain(key(), compile_to, key).path


_RUNTIME = (
    "emulator.h",
    "background.h",
    "gpu.h",
    "shadow.h",
    "gpu.cpp",
    "notes.cpp",
    "runtime.cpp",
)


def runtime() -> Path:
    """The library of the emulator itself."""
    texts = "".join((HERE / name).read_text() for name in _RUNTIME)
    to = ROOT / f"libemulator-{hashlib.sha256(texts.encode()).hexdigest()[:16]}.so"
    if not to.exists():
        to.parent.mkdir(parents=True, exist_ok=True)
        scratch = to.with_suffix(f".{os.getpid()}")
        flags = (*_FLAGS, f"-I{_cuda_include()}", "-shared")
        sources = (HERE / name for name in _RUNTIME if name.endswith(".cpp"))
        _run(["g++", *flags, *sources, "-o", scratch])
        scratch.replace(to)
    return to


def load(path: Path) -> ctypes.CDLL:
    """A library of the emulator, whose CUDA runtime is found before that of a PyTorch for GPUs."""
    return ctypes.CDLL(str(path), mode=os.RTLD_DEEPBIND)


def load_operators(path: Path) -> None:
    """Those of a library, for PyTorch, to which it is there already then."""
    load(path)
    torch.ops.load_library(str(path))


#: What sources are compiled with, beside those of csrc.
_HEADERS = {
    ".cu": ("emulator.h", "ptx.h", "matrix.h"),
    ".cpp": ("bindings.h", "emulator.h", "gpu.h", "tensors.h", "matrix.h"),
}


def library(
    name: str,
    sources: Sequence[Path],
    jobs: int = 2,
    definitions: Callable[[Path], Sequence[str]] = lambda source: (),
    sm: int = 90,
) -> Path:
    """A shared library of sources, compiled with the headers of csrc.

    Args:
        name: of the library, "norm/rms_norm".
        sources: rewritten ones.
        jobs: compilers at a time.
        definitions: what a source is told of the library.
        sm: for which kernels are compiled.

    Raises:
        RuntimeError: with the compiler's words on every source that fails.
    """
    folder = ROOT / "csrc"
    _write_sources(folder)
    flags = (f"-I{HERE}", f"-I{folder}", f"-I{_cuda_include()}")
    binding = (*_torch_flags(), toolchain.CXX_FLAGS[-1])

    def compile_one(source: Path) -> Path:
        told = definitions(source)
        included = [source, *(folder / word for word in told if word != "-include")]

        def digest() -> str:
            common = "".join((HERE / name).read_text() for name in _HEADERS[source.suffix])
            return csrc.digest(csrc.with_includes(included, folder), common, root=ROOT)

        target = () if sm == 90 else (f"-DEMULATED_ARCH={10 * sm}",)
        more = binding if source.suffix == ".cpp" else target
        return _object(source, (*flags, *more), told, digest)

    failures: list[str] = []

    def attempt(source: Path) -> Path:
        try:
            return compile_one(source)
        except RuntimeError as error:
            failures.append(f"{source.name}: {error}")
            return source

    with ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(attempt, sources))
    if failures:
        raise RuntimeError("\n".join(failures))
    torch_lib = Path(torch.__file__).parent / "lib"
    links = (
        runtime(),
        "-Wl,-Bsymbolic",
        f"-Wl,-rpath,{ROOT}",
        f"-L{torch_lib}",
        "-ltorch_cpu",
        "-lc10",
    )
    words = [*(path.name for path in objects), *map(str, links)]
    key = hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]
    to = ROOT / key / libraries.file_name(name)  # its code asks for its file's name
    if not to.exists():
        to.parent.mkdir(exist_ok=True)
        scratch = to.with_suffix(f".{os.getpid()}")
        _run(["g++", "-shared", "-o", scratch, *objects, *links])
        scratch.replace(to)
    return to


@functools.cache
def files_of(family: str, source_dir: str, rung: str) -> tuple[Path, ...]:
    """The sources that register a rung."""
    folder = csrc.CSRC / family / source_dir
    return tuple(p for p in folder.glob("*.cu") if f'registered{{"{rung}"' in p.read_text())


def is_shared(source: Path) -> bool:
    """Whether a source of a ladder registers no rung, but holds what several rungs launch."""
    return source.parent.name != libraries.SELFTEST and "registered{" not in source.read_text()


def is_left_out(family: str, source_dir: str, rung: str) -> bool:
    """Whether the emulated library lacks a rung."""
    files = files_of(family, source_dir, rung)
    return bool(files) and all(LEFT_OUT.search(path.as_posix()) for path in files)


def emulated(name: str, jobs: int = 2, sm: int = 90) -> Path | None:
    """A compiled library ("norm/rms_norm", "selftest") for the CPU, less the rungs that are left
    out, and with what it shares with others; for an older architecture than sm_90 the kernels that
    have code of their own for it, None where none has.
    """
    from emulator import architectures

    own = libraries.sources(name)
    if sm != 90:
        differing = {p for p in own if p.suffix == ".cu" and architectures.differs(p, sm)}
        if not differing:
            return None
        own = [p for p in own if p.suffix != ".cu" or p in differing or is_shared(p)]
    shared = [path for path in libraries.sources(libraries.HOST) if path.name != "runtime.cpp"]
    paths = [*own, *shared]
    kept = {
        ROOT / "csrc" / p.relative_to(csrc.CSRC): p for p in paths if not LEFT_OUT.search(str(p))
    }

    def definitions(source: Path) -> Sequence[str]:
        return libraries.definitions(name, kept[source])

    return library(name, list(kept), jobs, definitions, sm)


def probe_sources() -> list[Path]:
    """Kernels with one mistake each, and what they launch with."""
    to = ROOT / "probe.cu"
    _write(to, rewritten("probe.cu", (HERE / "probe.cu").read_text()))
    return [to, ROOT / "csrc" / "host" / "tensor_map.cpp"]
