"""The first-use build: one compile for racing processes and all visible GPUs, and a failure that
keeps its words; which library serves; the headers that a build can do without.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import cpp_extension

from warpsmith.cli import doctor
from warpsmith.core import dispatch
from warpsmith.native import build, driver

FAMILY = "elementwise"
#: Has sources that want the headers of CUTLASS.
CUTE_FAMILY = "gemm"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WARPSMITH_CACHE", str(tmp_path))
    monkeypatch.delenv("WARPSMITH_LIBRARY_DIR", raising=False)
    monkeypatch.delenv("WARPSMITH_BUILD", raising=False)
    monkeypatch.setenv("CUTLASS_PATH", str(tmp_path / "no_cutlass"))
    pretend_gpu(monkeypatch)
    monkeypatch.setattr(build, "_failures", {})


def pretend_gpu(patch: pytest.MonkeyPatch, *archs: str) -> None:
    patch.setattr(build, "_device_archs", lambda: archs or ("90a",))
    patch.setattr(build, "find_nvcc", lambda: Path("nvcc"))
    patch.setattr(build, "nvcc_version", lambda: "13.0")


def slow_compile(family: str, archs: list[str], out: Path, on_progress: object) -> Path:
    with (out / "compiles").open("a") as log:
        log.write("once\n")
    time.sleep(1.0)
    path = out / f"warpsmith_{family}.so"
    path.write_bytes(b"library")
    return path


def first_use(found: multiprocessing.Queue) -> None:
    with pytest.MonkeyPatch.context() as patch:
        pretend_gpu(patch)
        patch.setattr(build, "_compile", slow_compile)
        found.put(str(build.library(FAMILY)))


def test_racing_processes_compile_once() -> None:
    context = multiprocessing.get_context("spawn")
    found: multiprocessing.Queue = context.Queue()
    processes = [context.Process(target=first_use, args=(found,)) for _ in range(3)]
    for process in processes:
        process.start()
    paths = {found.get(timeout=120) for _ in processes}
    for process in processes:
        process.join()
    assert len(paths) == 1
    library = Path(paths.pop())
    assert library.read_bytes() == b"library"
    assert (library.parent / "compiles").read_text() == "once\n"
    assert build.status(FAMILY).origin == "cache"


def test_a_failed_compile_keeps_the_compilers_words(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []

    def broken(*args: object) -> Path:
        compiled.append(args)
        raise build.BuildError("relu.cu(7): error: expected a ';'")

    monkeypatch.setattr(build, "_compile", broken)
    for _ in range(2):
        assert build.library(FAMILY) is None
        assert "expected a ';'" in build.why_not(FAMILY)
    assert len(compiled) == 1  # not minutes for every call


def test_a_library_that_cannot_be_loaded_is_done_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / f"warpsmith_{FAMILY}.so").write_bytes(b"no library")
    monkeypatch.setenv("WARPSMITH_LIBRARY_DIR", str(tmp_path))
    for _ in range(2):
        assert not dispatch.load_family(FAMILY)
        assert "cannot be loaded" in build.why_not(FAMILY)


def test_setup_knows_the_oldest_torch() -> None:
    setup = (Path(__file__).parents[1] / "setup.py").read_text()
    assert f"[:2])) < {build.MIN_TORCH}:" in setup


def test_a_user_without_a_home_has_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.delenv("WARPSMITH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert build.cache_root() == Path("/somewhere/warpsmith")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert build.cache_root().parent == Path(tempfile.gettempdir())


def test_a_cache_that_cannot_be_written_is_told_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WARPSMITH_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(build, "_compile", slow_compile)
    assert build.library(FAMILY) is None
    assert str(tmp_path / "file") in build.why_not(FAMILY)


def test_the_compilers_words_are_found_in_a_log() -> None:
    log = "\n".join(
        [
            "[1/3] nvcc -c -Werror relu.cu -o relu.o",
            "ptxas info    : Compiling entry function 'relu' for 'sm_90a'",
            "FAILED: [code=2] relu.o ",
            "/usr/local/cuda/bin/nvcc -c -Werror relu.cu -o relu.o",
            'relu.cu(7): error: expected a ";"',
            "      int x",
            "1 error detected in the compilation of relu.cu.",
            "ninja: build stopped: subcommand failed.",
            "Traceback (most recent call last):",
            '  File "setup.py", line 3, in run',
            "RuntimeError: Error compiling objects for extension",
        ]
    )
    assert build._failure(log).splitlines() == [
        "FAILED: [code=2] relu.o ",
        'relu.cu(7): error: expected a ";"',
        "1 error detected in the compilation of relu.cu.",
    ]


@pytest.mark.parametrize("status", [0, 1])
def test_the_last_file_is_told_of_where_nothing_failed(
    status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def compiler(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        (Path(command[-2]) / f"warpsmith_{FAMILY}.so").write_bytes(b"library")
        return subprocess.CompletedProcess(command, status, "relu.cu(7): error: no")

    monkeypatch.setattr(build.subprocess, "run", compiler)
    told: list[tuple[int, int]] = []
    try:
        build.build([FAMILY], ["90a"], tmp_path, lambda _, done, total: told.append((done, total)))
    except build.BuildError:
        assert status == 1
    total = len(build.sources(FAMILY))
    assert told == ([(0, total)] if status else [(0, total), (total, total)])


def test_a_failed_first_use_says_so_on_its_line_of_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(family: str, archs: object, out: object, say: build.Progress) -> Path:
        say(family, 0, 9)
        raise build.BuildError("no")

    monkeypatch.setattr(build, "_compile", broken)
    assert build.library(FAMILY) is None
    assert capsys.readouterr().err.endswith("once: 0/9 failed\n")


def test_every_family_that_fails_is_told_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(family: str, *_: object) -> Path:
        if family == "norm":
            return tmp_path
        raise build.BuildError(f"compiling '{family}' failed")

    monkeypatch.setattr(build, "_compile", fail)
    with pytest.raises(build.BuildError, match="'gemm' failed\n\ncompiling 'loss' failed"):
        build.build(["gemm", "norm", "loss"], ["90a"], tmp_path)
    with pytest.raises(build.BuildError, match=r"'loss' failed$"):
        build.build(["norm", "loss"], ["90a"], tmp_path)
    assert build.build(["norm"], ["90a"], tmp_path) == [tmp_path]


def test_no_compile_where_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPSMITH_BUILD", "0")
    assert build.library(FAMILY) is None
    assert "WARPSMITH_BUILD=0" in build.why_not(FAMILY)


@pytest.mark.parametrize("version", ["12.6", "11.8"])
def test_an_old_nvcc_is_told_of(
    version: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build, "nvcc_version", lambda: version)
    monkeypatch.setattr(build, "_compile", slow_compile)
    assert build.library(FAMILY) is None
    assert f"nvcc {version} is older than 12.8" in build.why_not(FAMILY)
    with pytest.raises(build.BuildError, match=f"nvcc {version} is older than 12.8"):
        build.build([FAMILY], ["90a"], tmp_path)
    assert "is older than 12.8" in doctor._nvcc_advice()


def test_the_oldest_nvcc_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "nvcc_version", lambda: "12.8")
    assert build.why_no_compiler() is None
    monkeypatch.setattr(build, "find_nvcc", lambda: None)
    assert "pip install 'warpsmith[nvcc]'" in str(build.why_no_compiler())


@pytest.mark.parametrize(
    ("version", "nvcc", "of_nvcc", "of_driver"),
    [
        (None, "13.0", "", ""),
        ((13, 0), "13.5", "", ""),
        ((13, 0), "12.8", "", ""),
        ((12, 9), "13.0", "too old for code of CUDA 13: update it, or .* CUDA 12", ""),
        ((12, 2), "12.8", "", r"need one for CUDA 12\.4"),
    ],
)
def test_doctor_tells_of_an_old_driver(
    version: tuple[int, int] | None,
    nvcc: str,
    of_nvcc: str,
    of_driver: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(build, "nvcc_version", lambda: nvcc)
    monkeypatch.setattr(driver, "cuda", lambda: version)
    advice = {row["what"]: row["advice"] for row in doctor.examine()["machine"]}
    for what, wanted in (("nvcc", of_nvcc), ("driver", of_driver)):
        assert re.search(wanted, advice[what]) if wanted else not advice[what]


@pytest.mark.parametrize(
    ("version", "why"),
    [((12, 9), "too old for code of CUDA 13"), ((12, 2), r"need one for CUDA 12\.4")],
)
def test_an_old_driver_is_the_reason_for_the_fallback(
    version: tuple[int, int], why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Code that it cannot run would fail in every call, where another implementation serves."""
    pretend_gpu(monkeypatch, "90a")
    monkeypatch.setattr(build, "why_no_compiler", lambda: None)
    monkeypatch.setattr(build, "nvcc_version", lambda: "13.0")
    monkeypatch.setattr(driver, "cuda", lambda: version)
    assert build.library(FAMILY) is None
    assert re.search(why, build.why_not(FAMILY))
    put_library(tmp_path / "ready", "90a")
    monkeypatch.setenv("WARPSMITH_LIBRARY_DIR", str(tmp_path / "ready"))
    manifest = tmp_path / "ready" / f"{FAMILY}.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"nvcc": 13}))
    assert build.library(FAMILY) is None
    monkeypatch.setattr(driver, "cuda", lambda: (13, 0))
    assert build.library(FAMILY) == tmp_path / "ready" / f"warpsmith_{FAMILY}.so"


# --- which library serves -------------------------------------------------------------------------


def put_library(folder: Path, *archs: str) -> None:
    """A library of these sources; without a manifest where there are no architectures."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"warpsmith_{FAMILY}.so").touch()
    if archs:
        manifest = {"archs": archs, "cutlass": "", "key": build._key(FAMILY, archs, "")}
        (folder / f"{FAMILY}.json").write_text(json.dumps(manifest))


def test_the_architectures_of_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    devices = [(9, 0), (8, 6), (12, 0), (9, 0), (7, 5)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(devices))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: devices[device])
    assert build._device_archs() == ("75", "86", "90a", "120")
    assert build._wanted_archs() == ("86", "90a", "120")


def test_the_first_use_compiles_for_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[str, ...]] = []

    def compiler(family: str, archs: tuple[str, ...], out: Path, on_progress: object) -> Path:
        compiled.append(archs)
        put_library(out, *archs)
        return out / f"warpsmith_{family}.so"

    monkeypatch.setattr(build, "_compile", compiler)
    pretend_gpu(monkeypatch, "75", "80", "90a")
    path = build.library(FAMILY)
    assert compiled == [("80", "90a")]
    assert path is not None
    assert build.is_current(path.parent, FAMILY)
    assert build.status(FAMILY).archs == ("80", "90a")
    assert build.library(FAMILY) == path
    pretend_gpu(monkeypatch, "80")
    assert build.library(FAMILY) != path
    assert compiled == [("80", "90a"), ("80",)]


def test_old_gpus_alone_have_no_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend_gpu(monkeypatch, "70", "75")
    assert build.library(FAMILY) is None
    assert build.why_not(FAMILY) == "the GPU is sm_75, the kernels need sm_80"
    put_library(tmp_path / "ready", "80", "90a")
    monkeypatch.setenv("WARPSMITH_LIBRARY_DIR", str(tmp_path / "ready"))
    assert build.library(FAMILY) is None


@pytest.mark.parametrize(
    ("archs", "gpus", "lacking"),
    [
        (("80", "90a"), ("90a",), ""),
        (("80",), ("80", "86", "89"), ""),
        (("80", "90a"), ("75", "80", "90a"), ""),
        ((), ("90a",), ""),
        (("80",), ("90a",), "sm_90a"),
        (("89",), ("80", "89"), "sm_80"),
        (("80", "90a"), ("90a", "100", "120"), "sm_100, sm_120"),
    ],
)
def test_a_library_without_code_for_a_gpu_is_passed_over(
    archs: tuple[str, ...],
    gpus: tuple[str, ...],
    lacking: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    pretend_gpu(monkeypatch, *gpus)
    put_library(tmp_path / "ready", *archs)
    monkeypatch.setenv("WARPSMITH_LIBRARY_DIR", str(tmp_path / "ready"))
    if not lacking:
        assert build.status(FAMILY).origin == "environment"
        return
    told = f"the library in WARPSMITH_LIBRARY_DIR has no code for {lacking}; "
    status = build.status(FAMILY)
    assert (status.origin, status.path) == ("none", None)
    assert status.detail == f"{told}not compiled yet; the first use compiles it"
    put_library(build._cache_dir(FAMILY, gpus), *gpus)
    assert build.status(FAMILY).origin == "cache"
    (why,) = (f["why"] for f in doctor.examine()["families"] if f["family"] == FAMILY)
    assert why == f"{told}compiled on first use"


# --- hashes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "norm/rms_norm/rms_norm.cpp",
        "norm/rms_norm/pack.cu",
        "row/registers.cuh",
        "device/vec.h",
        "host/launch.cpp",
        "host/occupancy.h",
        "host/ladder.h",
    ],
)
def test_a_record_speaks_for_all_that_it_was_measured_with(
    source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = tmp_path / "csrc"
    shutil.copytree(build.CSRC, code)
    monkeypatch.setattr(build, "CSRC", code)
    hashes = {op: build.source_hash("norm", op) for op in ("rms_norm", "group_norm")}
    path = code / source
    path.write_text(path.read_text() + "int another;\n")
    assert build.source_hash("norm", "rms_norm") != hashes["rms_norm"]
    shared = not source.startswith("norm/")
    assert (build.source_hash("norm", "group_norm") != hashes["group_norm"]) == shared


def test_a_folder_inside_another_is_not_part_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = tmp_path / "csrc"
    shutil.copytree(build.CSRC, code)
    (code / "norm/rms_norm_backward").rename(code / "norm/rms_norm/backward")
    monkeypatch.setattr(build, "CSRC", code)
    assert code / "norm/rms_norm/backward/naive.cu" in build.sources("norm")
    hashes = {
        folder: build.source_hash("norm", folder) for folder in ("rms_norm", "rms_norm/backward")
    }
    path = code / "norm/rms_norm/backward/naive.cu"
    path.write_text(path.read_text() + "int another;\n")
    assert build.source_hash("norm", "rms_norm") == hashes["rms_norm"]
    assert build.source_hash("norm", "rms_norm/backward") != hashes["rms_norm/backward"]


# --- headers that need not be there ---------------------------------------------------------------


def put_cutlass(folder: Path, version: str) -> Path:
    """A folder with the one header of CUTLASS that the search reads."""
    header = folder / "include" / "cutlass" / "version.h"
    header.parent.mkdir(parents=True)
    lines = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
    header.write_text("".join(f"#define CUTLASS_{part} {number}\n" for part, number in lines))
    return folder


def flags_of(monkeypatch: pytest.MonkeyPatch, family: str) -> dict[str, list[str]]:
    """What the compilers of a family are called with."""
    home = Path("/opt/cuda")
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", str(home))
    monkeypatch.setattr(build, "cuda_home", lambda: home)
    extension: Any = build.extension(family, ["80"])
    return extension.extra_compile_args


def test_cutlass_is_found_by_its_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert build.find_cutlass() is None
    monkeypatch.setenv("CUTLASS_PATH", str(put_cutlass(tmp_path / "cutlass", "4.3.1")))
    found = build.find_cutlass()
    assert found is not None
    assert found.version == "4.3.1"
    assert found.include == (tmp_path / "cutlass" / "include").resolve()


def test_cutlass_is_found_in_its_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUTLASS_PATH")
    package = tmp_path / "site" / "cutlass_library"
    put_cutlass(package / "source", "4.2.0")
    (package / "__init__.py").write_text("raise ImportError('only its headers are wanted')")
    monkeypatch.syspath_prepend(str(package.parent))
    found = build.find_cutlass()
    assert found is not None
    assert found.include == (package / "source" / "include").resolve()


def test_an_old_cutlass_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUTLASS_PATH", str(put_cutlass(tmp_path / "cutlass", "3.9.2")))
    assert build.find_cutlass() is None


def test_a_build_does_without_cutlass(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags in flags_of(monkeypatch, CUTE_FAMILY).values():
        assert not any("CUTLASS" in flag or flag == "-isystem" for flag in flags)


def test_a_build_takes_cutlass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = put_cutlass(tmp_path / "cutlass", "4.2.0")
    monkeypatch.setenv("CUTLASS_PATH", str(folder))
    for flags in flags_of(monkeypatch, CUTE_FAMILY).values():
        assert "-DWARPSMITH_CUTLASS=4.2.0" in flags
        assert flags[flags.index("-isystem") + 1] == str((folder / "include").resolve())
    for flags in flags_of(monkeypatch, FAMILY).values():  # nothing there is written with CuTe
        assert not any("CUTLASS" in flag for flag in flags)


def test_the_cache_tells_headers_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def names() -> tuple[str, str]:
        return build.cache_name(CUTE_FAMILY, "90a"), build.cache_name(FAMILY, "90a")

    without, other = names()
    found = []
    for folder, version in (("a", "4.2.0"), ("b", "4.2.0"), ("c", "4.3.0")):
        monkeypatch.setenv("CUTLASS_PATH", str(put_cutlass(tmp_path / folder, version)))
        name, same = names()
        assert same == other
        found.append(name)
    assert found[0] == found[1]  # wherever they lie
    assert len({without, *found}) == 3


@pytest.mark.parametrize("cutlass", ["", "4.2.0"])
def test_a_wheel_keeps_the_headers_it_was_built_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cutlass: str
) -> None:
    lib = tmp_path / "package" / "lib"
    lib.mkdir(parents=True)
    (lib / f"warpsmith_{CUTE_FAMILY}.so").touch()
    key = build._key(CUTE_FAMILY, ["90a"], cutlass)
    manifest = {"family": CUTE_FAMILY, "archs": ["90a"], "cutlass": cutlass, "key": key}
    (lib / f"{CUTE_FAMILY}.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(build, "PACKAGE", lib.parent)
    assert build.status(CUTE_FAMILY).origin == "wheel"
    monkeypatch.setenv("CUTLASS_PATH", str(put_cutlass(tmp_path / "cutlass", "4.4.0")))
    assert build.status(CUTE_FAMILY).origin == "wheel"


def test_comments_and_layout_do_not_count() -> None:
    code = 'int a = 1;  // one\n/* two\n  lines */ const char* s = "// kept /* so */";\nf(\'"\');'
    bare = 'int a = 1; const char* s = "// kept /* so */"; f(\'"\');'
    assert build.without_comments(code) == bare
    assert build.without_comments(code.replace("one", "another")) == bare
    assert build.without_comments(code.replace("= 1", "= 2")) != bare
    asm = 'asm("x; // y" :: "r"(16\'384));'
    assert build.without_comments(asm) == asm


def test_the_sources_do_without_iostreams() -> None:
    """Where the linker takes libstdc++ from its archive, the library's streams share some of their
    state with those that PyTorch loaded: a number comes out empty, or the process dies.
    """
    streams = re.compile(r"#\s*include\s*<(\w*streams?|iomanip|locale|regex|format|print)>")
    code = [path for path in build.CSRC.rglob("*") if path.suffix in (".cu", ".cuh", ".cpp", ".h")]
    assert code
    assert [path for path in code if streams.search(path.read_text())] == []
