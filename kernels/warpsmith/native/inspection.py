"""What the compiler made of the kernels: registers, shared and local memory, occupancy, SASS and
PTX.

Without a GPU the numbers come from the compiled library itself, through the toolkit's `cuobjdump`,
and the occupancy is computed from them; with one, the driver says it of the launches that there
were, through the pybind11 module `csrc/inspect`.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from warpsmith.core import catalogue
from warpsmith.core.catalogue import Op
from warpsmith.native import (
    build,
    csrc,
    cubins,
    finding,
    launches,
    libraries,
    machine_code,
    store,
    toolchain,
)
from warpsmith.native.console import progress_bar, say
from warpsmith.native.cubins import InspectionError
from warpsmith.native.occupancy import occupancy


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel. Counts are per thread (registers, stack, local) or bytes per block
    (smem).
    """

    name: str
    arch: str
    registers: int
    stack: int
    local: int
    static_smem: int
    ops: tuple[str, ...] = ()
    rung: str | None = None
    source: str | None = None
    symbol: str = ""
    max_threads: int | None = None
    dynamic_smem_limit: int | None = None
    #: The launch that the occupancy is of; None where there was none yet. From a file: that on
    #: record (`launches`), else that of the largest block, without dynamic shared memory.
    threads: int | None = None
    cluster: int | None = None
    dynamic_smem: int | None = None
    blocks_per_sm: int | None = None
    occupancy: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}


# --- names ----------------------------------------------------------------------------------------


@functools.cache
def _demangler() -> Any:
    for name in ("libstdc++.so.6", "libc++abi.so.1", ctypes.util.find_library("stdc++")):
        try:
            function = ctypes.CDLL(name).__cxa_demangle if name else None
        except (OSError, AttributeError):
            continue
        if function is not None:
            function.restype = ctypes.c_void_p
            function.argtypes = [
                ctypes.c_char_p,
                ctypes.c_void_p,
                ctypes.c_void_p,
                ctypes.POINTER(ctypes.c_int),
            ]
            return function
    return None


def demangle(symbol: str) -> str:
    """The C++ name of a symbol, by the C++ runtime that PyTorch brings along; the symbol itself
    where that fails.
    """
    function = _demangler()
    if function is None:
        return symbol
    status = ctypes.c_int()
    address = function(symbol.encode(), None, None, ctypes.byref(status))
    if not address or status.value != 0:
        return symbol
    text = ctypes.string_at(address).decode()
    ctypes.CDLL(None).free(ctypes.c_void_p(address))
    return text


_NAMESPACES = re.compile(
    r"warpsmith::|\(anonymous namespace\)::|\{anonymous\}::|_GLOBAL__N__\w+::|<unnamed>::"
)
_CASTS = re.compile(r"\((?:int|bool|unsigned int|long)\)")
_ENUM = re.compile(r"enum class (\w+)[^{;]*\{([^}]*)\}")


@functools.cache
def _enumerators() -> dict[tuple[str, str], str]:
    """(enumeration, value) -> name, of all in `csrc` whose values count up from 0. Where two of one
    name differ, those that do are left out.
    """
    found: dict[tuple[str, str], set[str]] = {}
    for path in sorted(csrc.CSRC.rglob("*")):
        if path.suffix not in (".h", ".cuh", ".cu"):
            continue
        for name, body in _ENUM.findall(re.sub(r"//.*", "", path.read_text())):
            for value, enumerator in enumerate(body.replace(" ", "").replace("\n", "").split(",")):
                found.setdefault((name, str(value)), set()).add(enumerator)
    return {at: names.pop() for at, names in found.items() if len(names) == 1}


def _named_enumerators(name: str) -> str:
    """`(Order)1`, as compiled files spell it, is `Order::columns`."""

    def named(match: re.Match[str]) -> str:
        enumerator = _enumerators().get((match[1], match[2]))
        return match[0] if enumerator is None else f"{match[1]}::{enumerator}"

    return re.sub(r"\((\w+)\)(\d+)", named, name)


def tidy(name: str) -> str:
    """A kernel's name as its author wrote it: no namespaces, no parameter list, short dtype names.

    >>> tidy("void warpsmith::(anonymous namespace)::relu_kernel<__half, 8>(__half const*, long)")
    'relu_kernel<f16, 8>'
    """
    # GCC's spelling of launch<kernel>(): "... [with auto kernel = relu_kernel<__half>; ...]".
    if match := re.search(r"\bkernel = (.*?)(?:; [\w:]+ = [^;]*)?\]$", name):
        name = match[1]
    name = _named_enumerators(_CASTS.sub("", _NAMESPACES.sub("", name))).strip("&() ")
    name = name.removeprefix("void ")
    name = _without_parameters(name)
    # Members at the end of a value that are zero are left out by one of two compilers.
    name = re.sub(r"(?:, (?:false|0))+}", "}", name)
    for long, short in (
        ("__nv_bfloat16", "bf16"),
        ("__nv_fp8_e4m3", "e4m3"),
        ("__nv_fp8_e5m2", "e5m2"),
        ("__half", "f16"),
        ("signed char", "i8"),
        ("float", "f32"),
    ):
        name = re.sub(rf"\b{long}\b", short, name)
    return re.sub(r"> (?=>)", ">", name).strip()


def _without_parameters(name: str) -> str:
    depth = 0
    for i, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            return name[:i]
    return name


#: How the maps of the elementwise family name their operators: `UnaryBackward<Relu>` is
#: relu_backward.
_MAPS = {
    "Unary": "{}",
    "UnaryBackward": "{}_backward",
    "Bias": "bias_{}",
    "BiasBackward": "bias_{}_backward",
    "Gated": "{}_and_mul",
    "GatedBackward": "{}_and_mul_backward",
}

#: `Relu`, `Unary<Relu>`; not the name of a template of anything else.
_ARGUMENT = re.compile(r"\b(([A-Z]\w*)\b(?:<(\w+)>|(?!<)))")

#: Functions that are not called what their operators are.
_FUNCTIONS = {
    "Extreme<Largest>": "amax",
    "Extreme<Smallest>": "amin",
    "Position<Largest>": "argmax",
    "Position<Smallest>": "argmin",
    "SoftmaxGradient": "softmax_backward",
    "LogSoftmaxGradient": "log_softmax_backward",
}


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def owners(name: str, source: str | None, ops: Iterable[Op]) -> tuple[tuple[Op, ...], str | None]:
    """The operators and the rung that a kernel belongs to.

    Args:
        name: the kernel's, tidied.
        source: the file that launches it, below `csrc`: "gemm/gemv/skinny.cu"; None where that is
            not known, and the name has to do.
        ops: operators of the kernel's family.
    """
    candidates = list(ops)
    head, _, arguments = name.partition("<")
    if source is None:
        fitting = [o for o in candidates if head.startswith(f"{o.name}_")]
        by_name = max(fitting, key=lambda o: len(o.name), default=None)
        sharing = _functions(arguments, candidates) or ([by_name] if by_name else [])
        stem = max(
            (r.name for o in sharing for r in o.ladder if _inner(head, o).startswith(r.name)),
            key=len,
            default=None,
        )
        return tuple(sharing), stem
    folder, stem = Path(source).parent.as_posix(), Path(source).stem
    candidates = [o for o in candidates if f"{o.family}/{o.source_dir}" == folder]
    with_rung = [o for o in candidates if any(rung.name == stem for rung in o.ladder)]
    sharing = _functions(arguments, with_rung or candidates) or with_rung or candidates
    return tuple(sharing), stem if with_rung else None


def _functions(arguments: str, ops: Sequence[Op]) -> list[Op]:
    """The operators whose function is among the template arguments of a kernel that they share. One
    that returns more of the same function is called `<op>_with_<output>`.
    """
    names = {
        _FUNCTIONS.get(text, _MAPS.get(outer, "{}").format(_snake(inner or outer)))
        for text, outer, inner in _ARGUMENT.findall(arguments)
    }
    return [op for op in ops if op.name.partition("_with_")[0] in names]


def _inner(head: str, op: Op) -> str:
    for prefix in (op.name, op.source_dir.replace("/", "_")):
        if head.startswith(f"{prefix}_"):
            return head[len(prefix) + 1 :]
    return head


# --- resources ------------------------------------------------------------------------------------

_ARCH = re.compile(r"^arch = sm_(\w+)", re.MULTILINE)
_FUNCTION = re.compile(r"Function (\S+):\s*\n\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


def parse_resources(text: str, sources: Sequence[str] = ()) -> list[Kernel]:
    """Kernels from the output of `cuobjdump --dump-resource-usage`.

    Args:
        text: a section for each file and architecture, the files in the order of the link.
        sources: those files, below `csrc`.
    """
    kernels = []
    starts = [*_ARCH.finditer(text)]
    ends = [*(start.start() for start in starts[1:]), len(text)]
    archs = [start[1] for start in starts]
    for i, (start, end) in enumerate(zip(starts, ends, strict=False)):
        section = text[start.end() : end]
        source = None
        if archs.count(start[1]) == len(sources):
            source = sources[archs[:i].count(start[1])]
        for symbol, registers, stack, shared, local in _FUNCTION.findall(section):
            kernels.append(
                Kernel(
                    name=tidy(demangle(symbol)),
                    arch=start[1],
                    registers=int(registers),
                    stack=int(stack),
                    local=int(local),
                    static_smem=_user_smem(int(shared), start[1]),
                    symbol=symbol,
                    source=source if _is_of(symbol, source) else None,
                )
            )
    return kernels


def _is_of(symbol: str, source: str | None) -> bool:
    """Whether a symbol may come from a file: one of an anonymous namespace says from which."""
    match = _FILE.search(symbol)
    return source is not None and (match is None or match[1] == Path(source).stem)


def _user_smem(shared: int, arch: str) -> int:
    # From sm_90 on the file's figure includes the first KB of a block's shared memory, which the
    # system keeps.
    return shared - min(shared, 1024) if int(arch.rstrip("af")) >= 90 else shared


#: The file behind an anonymous namespace, which is the rung.
_FILE = re.compile(r"_GLOBAL__N__[0-9a-f]+_\d+_(\w+?)_cu_")


def _with_owners(kernels: Iterable[Kernel], library: str | None) -> list[Kernel]:
    ops = [op for op in catalogue.load().values() if op.library == library]
    result = []
    for kernel in kernels:
        found, rung = owners(kernel.name, kernel.source, ops)
        if kernel.source is None and found and (match := _FILE.search(kernel.symbol)):
            rung = next((r.name for op in found for r in op.ladder if r.name == match[1]), rung)
        result.append(replace(kernel, ops=tuple(op.name for op in found), rung=rung))
    return result


def resources(path: Path) -> list[Kernel]:
    """Every kernel of a compiled library, for every architecture in it."""
    library = libraries.of_file(path)
    record = launches.load()
    kernels = []
    for kernel in read_kernels(path, _sources(library)):
        found = record.get(kernel.arch.rstrip("af"), {}).get(kernel.source or "", ())
        if launch := launches.likely(found, kernel.max_threads):
            kernel = replace(kernel, cluster=launch.cluster)
            kernel = _with_occupancy(kernel, launch.threads, launch.dynamic_smem)
        elif any(kernel.source in files for files in record.values()):  # how, nobody knows
            kernel = replace(kernel, threads=None, dynamic_smem=None)
            kernel = replace(kernel, blocks_per_sm=None, occupancy=None)
        kernels.append(kernel)
    return _with_owners(kernels, library)


def code(path: Path, arch: str) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """The machine code of every rung: operator and rung -> its kernels, each with its tidied name
    and its digest (`machine_code`), sorted. Of a file that several operators share, each gets the
    kernels of its own function and those that are of none. Under the rung "" are those that
    several rungs launch, of files that register none.
    """
    library = libraries.of_file(path)
    ops = [op for op in catalogue.load().values() if op.library == library]
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for kernel in machine_code.read(path, _sources(library), arch):
        name = tidy(demangle(kernel.symbol))
        owning, rung = owners(name, kernel.source, ops)
        for op in owning:
            found.setdefault((op.name, rung or ""), []).append((name, kernel.digest))
    return {key: sorted(kernels) for key, kernels in sorted(found.items())}


def read_kernels(path: Path, sources: Sequence[str] = ()) -> list[Kernel]:
    """Every kernel of a library or a fat binary, linked from `sources`; where it has launch bounds,
    with the occupancy of its largest block. What dynamic shared memory a launch adds is not in the
    file, and not in this occupancy.
    """
    kernels = parse_resources(cubins.cuobjdump("--dump-resource-usage", str(path)), sources)
    threads = {(code.arch, code.symbol): code.max_threads for code in machine_code.read(path)}
    known = (replace(k, max_threads=threads.get((k.arch, k.symbol))) for k in kernels)
    return [_with_occupancy(k) for k in known]


def _with_occupancy(
    kernel: Kernel, threads: int | None = None, dynamic_smem: int | None = None
) -> Kernel:
    """The occupancy of a block from what the file says; by default as launched before, else of the
    largest block that there are launch bounds for.
    """
    most = kernel.max_threads or 1024
    if (wanted := threads or kernel.threads or kernel.max_threads) is None:
        return kernel
    block = min(wanted, most)
    smem = (kernel.dynamic_smem or 0) if dynamic_smem is None else dynamic_smem
    found = occupancy(kernel.arch, block, kernel.registers, kernel.static_smem + smem)
    if found is None:
        return kernel
    blocks, share = found
    return replace(kernel, threads=block, dynamic_smem=smem, blocks_per_sm=blocks, occupancy=share)


def _sources(library: str | None) -> list[str]:
    """The files with kernels that a library is linked from, in that order."""
    paths = libraries.sources(library) if library else []
    paths = [path for path in paths if path.suffix == ".cu"]
    return [path.relative_to(csrc.CSRC).as_posix() for path in paths]


def library_for(library: str, arch: str | None = None) -> Path:
    """The file of a library: one that is there, else one compiled now for `arch` (90a by default),
    with its progress on standard error.

    Raises:
        InspectionError: if there is none and no compiler.
    """
    found = finding.status(library)
    if found.path is not None and (arch is None or not found.archs or arch in found.archs):
        return found.path
    if arch is None and (path := finding.find(library)) is not None:
        return path
    wanted = arch or "90a"
    folder = store.cache_root() / "inspect" / finding.cache_name(library, wanted)
    path = folder / libraries.file_name(library)
    if not path.is_file():
        say(f"compiling '{library}' for sm_{wanted}, once, into {folder}")
        total = len(libraries.sources(library))
        try:
            with progress_bar(f"compiling {library}", total) as (bar, task):

                def advance(library: str, count: int, of: int) -> None:
                    bar.update(task, completed=count)

                build.build([library], [wanted], folder, advance)
        except build.BuildError as error:
            raise InspectionError(f"no compiled library '{library}': {error}") from error
    return path


# --- the driver's view ----------------------------------------------------------------------------


def _compiler() -> str:
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    raise InspectionError(
        "no C++ compiler found (set CXX): the driver's numbers need the inspect module compiled"
    )


@functools.cache
def module() -> Any:
    """The pybind11 module `csrc/inspect`, compiled on first use with the host's compiler into the
    cache.

    Raises:
        InspectionError: no compiler, or the compiler's message.
    """
    from torch.utils import cpp_extension

    source = csrc.CSRC / "inspect" / "inspect.cpp"
    header = csrc.CSRC / "host" / "inspect.h"
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    key = hashlib.sha256(source.read_bytes() + header.read_bytes() + suffix.encode()).hexdigest()[
        :16
    ]
    folder = store.cache_root() / f"inspect-{key}"
    path = folder / f"warpsmith_inspect{suffix}"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        # PyTorch ships the headers of pybind11.
        includes = [str(csrc.CSRC), sysconfig.get_path("include"), *cpp_extension.include_paths()]
        scratch = folder / f"{os.getpid()}{suffix}"
        flags = ["-O2", "-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden"]
        command = [
            _compiler(),
            *flags,
            *(f"-I{i}" for i in includes),
            str(source),
            "-o",
            str(scratch),
            "-ldl",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise InspectionError(f"compiling {source} failed:\n{done.stderr.strip()}")
        scratch.replace(path)
    spec = importlib.util.spec_from_file_location("warpsmith_inspect", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules["warpsmith_inspect"] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def launch_all(op: Op, step: Callable[[str], None] = lambda variant: None) -> None:
    """Launches every variant of an operator on the current GPU, on all its samples but the huge
    ones, so that its kernels have been launched as they are in use.
    """
    import torch

    from warpsmith.core import dispatch

    sm = dispatch.device_sm(torch.device("cuda"))
    for dtype in op.dtypes:
        calls = []
        for sample in op.samples_for(dtype):
            if not sample.huge:
                made = sample.make(op.inputs(dtype, "cuda"))
                calls.append(dispatch.normalise(op, made))
        for variant in (v for v in op.variants if v.dtype == dtype):
            step(variant.op_name)
            run = getattr(torch.ops.warpsmith, variant.op_name)
            for call in calls:
                if dispatch.refusal(variant, call, sm) is None:
                    # A part of a GPU may hold no cluster of so many blocks.
                    with contextlib.suppress(RuntimeError):
                        run(*call)
    torch.cuda.synchronize()


def loaded_kernels(
    library: str, threads: int | None = None, dynamic_smem: int | None = None
) -> list[Kernel]:
    """The kernels of a library as the driver sees them on the current GPU.

    Args:
        library: "elementwise/map/binary".
        threads: block size for which to report the occupancy (less where a kernel allows less);
            by default that of each kernel's last launch, and no occupancy where there was none.
        dynamic_smem: dynamic shared memory per block for the same.

    Raises:
        InspectionError: without a GPU, a compiled library or a C++ compiler.
    """
    import torch

    from warpsmith.core import dispatch

    if not torch.cuda.is_available():
        raise InspectionError("the driver's numbers need a CUDA GPU, and PyTorch sees none")
    if not dispatch.load(library):
        raise InspectionError(f"no compiled library '{library}': {finding.why_not(library)}")
    torch.cuda.init()
    torch.cuda.current_stream().synchronize()
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    resident = properties.max_threads_per_multi_processor
    arch = f"{properties.major}{properties.minor}"
    loaded = module().Library(str(finding.find(library)))
    kernels = []
    for entry in loaded.kernels():
        kernel = Kernel(
            name=tidy(entry.name),
            arch=arch,
            registers=entry.registers,
            stack=0,
            local=entry.local_bytes,
            static_smem=entry.static_smem,
            source=entry.source,
            max_threads=entry.max_threads,
            dynamic_smem_limit=entry.dynamic_smem_limit,
        )
        block = min(threads or entry.launch_threads, entry.max_threads)
        if block:
            smem = entry.launch_dynamic_smem if dynamic_smem is None else dynamic_smem
            blocks = loaded.occupancy(entry.index, block, smem)
            kernel = replace(
                kernel,
                threads=block,
                cluster=entry.launch_cluster or None,
                dynamic_smem=smem,
                blocks_per_sm=blocks,
                occupancy=round(blocks * block / resident, 4),
            )
        kernels.append(kernel)
    return _with_owners(kernels, library)


def inspect(
    op: Op,
    arch: str | None = None,
    threads: int | None = None,
    dynamic_smem: int | None = None,
    driver: bool | None = None,
) -> list[Kernel]:
    """The compiled kernels of an operator.

    Args:
        op: an operator of the catalogue.
        arch: restricts to one architecture ("90a"); compiles for it where there is no library of
            it.
        threads, dynamic_smem: what the occupancy is reported for; by default each kernel's last
            launch (`launch_all`), from the file that on record, else its largest block.
        driver: ask the driver (True), the file (False), or the driver where there is a GPU and no
            `arch` is named.
    """
    import torch

    if driver is None:
        driver = arch is None and torch.cuda.is_available()
    if driver:
        kernels = loaded_kernels(op.library, threads, dynamic_smem)
    else:
        kernels = [
            _with_occupancy(k, threads, dynamic_smem)
            for k in resources(library_for(op.library, arch))
            if arch is None or k.arch == arch
        ]
    order = {rung.name: i for i, rung in enumerate(op.ladder)}
    mine = [kernel for kernel in kernels if op.name in kernel.ops]
    return sorted(mine, key=lambda k: (k.arch, order.get(k.rung or "", len(order)), k.name))


# --- code -----------------------------------------------------------------------------------------


def sass(op: Op, arch: str | None = None) -> Iterator[tuple[Kernel, str]]:
    """Each kernel of an operator with its machine code."""
    library = library_for(op.library, arch)
    kernels = inspect(op, arch, driver=False)
    for name in dict.fromkeys(kernel.arch for kernel in kernels):
        mine = {kernel.symbol: kernel for kernel in kernels if kernel.arch == name}
        text = cubins.cuobjdump("-sass", "-arch", f"sm_{name}", str(library))
        for part in re.split(r"^\s*Function : ", text, flags=re.MULTILINE)[1:]:
            symbol, _, listing = part.partition("\n")
            if kernel := mine.get(symbol.strip()):
                yield kernel, _body(listing)


def _body(text: str) -> str:
    """The instructions of a listing, without their encodings and the headers around them."""
    lines = []
    for line in text.splitlines():
        if match := re.match(
            r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?);?\s*(?:/\* 0x[0-9a-f]+ \*/)?\s*$", line
        ):
            if not match[2].startswith("/*"):
                lines.append(f"{match[1]}  {match[2].rstrip('; ')}")
        elif label := re.match(r"\s*(\.L_x_\d+):", line):
            lines.append(f"{label[1]}:")
    return "\n".join(lines)


def ptx(op: Op, arch: str = "90a") -> Iterator[tuple[Path, str]]:
    """Each source file of an operator, rung by rung, with the PTX that nvcc makes of it; the
    libraries themselves carry machine code only.

    Raises:
        InspectionError: no compiler, or the compiler's message.
    """
    nvcc = toolchain.find_nvcc()
    if nvcc is None:
        raise InspectionError("no CUDA compiler: set CUDA_HOME, or `pip install 'warpsmith[nvcc]'`")
    cutlass = libraries.cutlass_for(op.library)
    folder = csrc.CSRC / op.family / op.source_dir
    ladders = (o.ladder for o in catalogue.load().values() if o.library == op.library)
    of_rungs = {rung.name for ladder in ladders for rung in ladder}
    shared = sorted(path.stem for path in folder.glob("*.cu") if path.stem not in of_rungs)
    for stem in (*(rung.name for rung in op.ladder), *shared):
        path = folder / f"{stem}.cu"
        command = [str(nvcc), *toolchain.NVCC_FLAGS, f"-I{csrc.CSRC}"]
        command += libraries.definitions(op.library, path)
        command += cutlass.flags if cutlass else []
        command += [f"-arch=compute_{arch}", "-ptx", str(path), "-o", "-"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise InspectionError(f"compiling {path} failed:\n{done.stderr.strip()}")
        yield path, _entries(done.stdout, op, path.relative_to(csrc.CSRC).as_posix())


def _entries(text: str, op: Op, source: str) -> str:
    """The kernels of `op` in the PTX module of a file, each under its tidied name."""
    sharing = [other for other in catalogue.load().values() if other.library == op.library]
    parts = []
    for piece in re.split(r"(?=^[ \t]*(?:\.weak |\.visible )?\.entry )", text, flags=re.MULTILINE)[
        1:
    ]:
        symbol = re.search(r"\.entry (\w+)", piece)
        name = tidy(demangle(symbol[1])) if symbol else ""
        if op in owners(name, source, sharing)[0]:
            parts.append(f"// {name}\n{piece.strip()}")
    return "\n\n".join(parts)
