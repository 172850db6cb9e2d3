"""The first-use build: one compile for racing processes, and a failure that keeps its words; the
headers that a build can do without.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from torch.utils import cpp_extension

from warpsmith import build

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


def pretend_gpu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(build, "_gpu_arch", lambda: "90a")
    patch.setattr(build, "find_nvcc", lambda: Path("nvcc"))


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
    def broken(*args: object) -> Path:
        raise build.BuildError("relu.cu(7): error: expected a ';'")

    monkeypatch.setattr(build, "_compile", broken)
    assert build.library(FAMILY) is None
    assert "expected a ';'" in build.why_not(FAMILY)


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
            "[1/3] nvcc -c relu.cu -o relu.o",
            "ptxas info    : Compiling entry function 'relu' for 'sm_90a'",
            "FAILED: relu.o",
            'relu.cu(7): error: expected a ";"',
            "      int x",
            "1 error detected in the compilation of relu.cu.",
            "ninja: build stopped: subcommand failed.",
            "Traceback (most recent call last):",
            '  File "setup.py", line 3, in run',
        ]
    )
    assert build._failure(log).splitlines() == [
        "FAILED: relu.o",
        'relu.cu(7): error: expected a ";"',
        "1 error detected in the compilation of relu.cu.",
    ]


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
