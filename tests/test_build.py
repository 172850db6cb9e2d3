"""The first-use build: one compile for racing processes and all visible GPUs, and a failure that
keeps its words; which library serves; the headers that a build can do without.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from warpsmith.cli import doctor
from warpsmith.core import dispatch
from warpsmith.native import build, csrc, driver, finding, libraries, store, toolchain

LIBRARY = "elementwise/glu"
#: Has sources that want the headers of CUTLASS.
CUTE = "gemm/matmul"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WARPSMITH_CACHE", str(tmp_path))
    monkeypatch.delenv("WARPSMITH_LIBRARY_DIR", raising=False)
    monkeypatch.delenv("WARPSMITH_BUILD", raising=False)
    monkeypatch.setenv("CUTLASS_PATH", str(tmp_path / "no_cutlass"))
    pretend_gpu(monkeypatch)
    monkeypatch.setattr(finding, "_failures", {})


def pretend_gpu(patch: pytest.MonkeyPatch, *archs: str) -> None:
    patch.setattr(finding, "_device_archs", lambda: archs or ("90a",))
    patch.setattr(toolchain, "find_nvcc", lambda: Path("nvcc"))
    patch.setattr(toolchain, "nvcc_version", lambda: "13.0")


def slow_build(
    names: list[str], archs: list[str], out: Path, on_progress: object, split: bool
) -> list[Path]:
    (library,) = names
    with (out / "compiles").open("a") as log:
        log.write("once\n")
    time.sleep(1.0)
    path = out / libraries.file_name(library)
    path.write_bytes(b"library")
    return [path]


def first_use(found: multiprocessing.Queue) -> None:
    with pytest.MonkeyPatch.context() as patch:
        pretend_gpu(patch)
        patch.setattr(build, "build", slow_build)
        found.put(str(finding.find(LIBRARY)))


def test_racing_processes_compile_once() -> None:
    context = multiprocessing.get_context("spawn")
    found: multiprocessing.Queue = context.Queue()
    processes = [context.Process(target=first_use, args=(found,)) for _ in range(2)]
    for process in processes:
        process.start()
    paths = {found.get(timeout=120) for _ in processes}
    for process in processes:
        process.join()
    assert len(paths) == 1
    library = Path(paths.pop())
    assert library.read_bytes() == b"library"
    assert (library.parent / "compiles").read_text() == "once\n"
    assert finding.status(LIBRARY).origin == "cache"


def test_a_failed_compile_keeps_the_compilers_words(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []

    def broken(*args: object, split: bool) -> list[Path]:
        compiled.append(args)
        raise build.BuildError("relu.cu(7): error: expected a ';'")

    monkeypatch.setattr(build, "build", broken)
    for _ in range(2):
        assert finding.find(LIBRARY) is None
        assert "expected a ';'" in finding.why_not(LIBRARY)
    assert len(compiled) == 1  # not minutes for every call


def test_a_library_that_cannot_be_loaded_is_done_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / libraries.file_name(LIBRARY)).write_bytes(b"no library")
    monkeypatch.setenv("WARPSMITH_LIBRARY_DIR", str(tmp_path))
    for _ in range(2):
        assert not dispatch.load(LIBRARY)
        assert "cannot be loaded" in finding.why_not(LIBRARY)


def test_setup_knows_the_oldest_torch() -> None:
    setup = (Path(__file__).parents[1] / "setup.py").read_text()
    assert f"[:2])) < {toolchain.MIN_TORCH}:" in setup


def test_a_user_without_a_home_has_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.delenv("WARPSMITH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert store.cache_root() == Path("/somewhere/warpsmith")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert store.cache_root().parent == Path(tempfile.gettempdir())


def test_a_cache_that_cannot_be_written_is_told_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WARPSMITH_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(build, "build", slow_build)
    assert finding.find(LIBRARY) is None
    assert str(tmp_path / "file") in finding.why_not(LIBRARY)


def test_the_compilers_words_are_found_in_a_log() -> None:
    log = "\n".join(
        [
            "ptxas info    : Compiling entry function 'relu' for 'sm_90a'",
            'relu.cu(7): error: expected a ";"',
            "      int x",
            "1 error detected in the compilation of relu.cu.",
        ]
    )
    assert build.failure(log).splitlines() == log.splitlines()[1:]


class Compiler:
    """In the place of nvcc, g++ and the linker: writes what it is asked for, and notes the call."""

    def __init__(self, fails: str = "", words: str = "relu.cu(7): error: no") -> None:
        self.calls: list[list[str]] = []
        self._fails, self._words = fails, words

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.calls.append(command)
        to = Path(command[command.index("-o") + 1])
        if self._fails and any(word.endswith(self._fails) for word in command):
            return subprocess.CompletedProcess(command, 1, self._words, self._words)
        to.write_text(" ".join(command))
        return subprocess.CompletedProcess(command, 0, "", "")

    def compiled(self) -> list[str]:
        """The sources, by their names."""
        return [Path(call[call.index("-c") + 1]).name for call in self.calls if "-c" in call]


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler()
    use(made, monkeypatch)
    return made


def use(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.subprocess, "run", compiler)
    monkeypatch.setattr(toolchain, "cuda_home", lambda: Path("/opt/cuda"))
    monkeypatch.setattr(toolchain, "identity", lambda: "nvcc 13.0")


@pytest.mark.parametrize("fails", ["", "naive.cu"])
def test_the_last_file_is_told_of_where_nothing_failed(
    fails: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(Compiler(fails), monkeypatch)
    monkeypatch.setenv("MAX_JOBS", "1")
    told: list[tuple[int, int]] = []

    def run() -> None:
        build.build([LIBRARY], ["90a"], tmp_path, lambda _, done, total: told.append((done, total)))

    if fails:
        wanted = f"compiling '{LIBRARY}' failed:\nnaive.cu:\nrelu.cu\\(7\\): error: no"
        with pytest.raises(build.BuildError, match=wanted):
            run()
    else:
        run()
    total = len(libraries.sources(LIBRARY))
    assert told[0] == (0, total)
    assert ((total, total) in told) == (not fails)
    if not fails:
        assert told == [(done, total) for done in range(total + 1)]


def test_what_was_compiled_before_is_taken_from_the_store(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = tmp_path / "csrc"
    shutil.copytree(csrc.CSRC, code)
    monkeypatch.setattr(csrc, "CSRC", code)
    everything = build.build([LIBRARY, "elementwise/weighted_sum"], ["90a"], tmp_path / "a")
    assert [path.name for path in everything] == [
        "warpsmith_elementwise_glu.so",
        "warpsmith_elementwise_weighted_sum.so",
    ]
    assert compiler.compiled().count("library.cpp") == 1  # one object for both
    elsewhere = tmp_path / "elsewhere" / "csrc"
    shutil.copytree(code, elsewhere)
    monkeypatch.setattr(csrc, "CSRC", elsewhere)
    for edit, compiled_again in (
        ("", set()),
        ("// a comment\n", set()),
        ("int another;\n", {"naive.cu"}),
    ):
        path = elsewhere / "elementwise/glu/naive.cu"
        path.write_text(path.read_text() + edit)
        compiler.calls.clear()
        build.build([LIBRARY], ["90a"], tmp_path / "b")
        assert set(compiler.compiled()) == compiled_again
    compiler.calls.clear()
    build.build([LIBRARY], ["80"], tmp_path / "b")
    assert {Path(name).suffix for name in compiler.compiled()} == {".cu"}


def test_what_threads_share_is_kept_apart(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The records speak of what one thread makes of a file."""
    monkeypatch.setenv("WARPSMITH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MAX_JOBS", "4")
    kernels = {p.name for p in libraries.sources(LIBRARY) if p.suffix == ".cu"}

    def compiled(split: bool) -> tuple[set[str], bool]:
        """What was compiled of it now, and whether by threads."""
        compiler.calls.clear()
        build.build([LIBRARY], ["90a"], tmp_path, split=split)
        return kernels & set(compiler.compiled()), any(
            "--split-compile=4" in call for call in compiler.calls
        )

    assert compiled(split=True) == (kernels, True)
    assert compiled(split=True) == (set(), False)
    assert compiled(split=False) == (kernels, False)
    monkeypatch.setenv("WARPSMITH_CACHE", str(tmp_path / "another"))
    assert compiled(split=False) == (kernels, False)
    assert compiled(split=True) == (set(), False)


def test_threads_make_an_object_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPSMITH_CACHE", str(tmp_path))
    made: list[Path] = []

    def make(to: Path) -> str:
        made.append(to)
        time.sleep(0.2)  # the others come meanwhile
        to.write_text("code")
        return "said"

    def obtain(key: str) -> store.Object:
        return store.obtain(key, make, lambda: key)

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(obtain, [store.key_of(["a"])] * 4))
    assert [(f.path.read_text(), f.log) for f in found] == [("code", "said")] * 4
    assert len(made) == 1


def test_objects_that_nobody_asks_for_go(tmp_path: Path) -> None:
    made = [store.obtain(name, lambda to: to.write_text("") or "", name.lower) for name in "ab"]
    os.utime(made[0].path, (0, 0))
    store.prune()
    assert [found.path.exists() for found in made] == [False, True]
    assert store.find("b") == made[1]


def test_what_was_edited_while_it_was_compiled_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = tmp_path / "csrc"
    shutil.copytree(csrc.CSRC, code)
    monkeypatch.setattr(csrc, "CSRC", code)
    source = code / "elementwise/glu/naive.cu"
    text = source.read_text()

    class Edited(Compiler):
        def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
            source.write_text(text + "int another;\n")
            return super().__call__(command)

    use(Edited(), monkeypatch)
    with pytest.raises(build.BuildError, match=r"naive\.cu: edited while it was compiled"):
        build.build([LIBRARY], ["80"], tmp_path / "a")
    source.write_text(text)
    again = Compiler()
    use(again, monkeypatch)
    build.build([LIBRARY], ["80"], tmp_path / "a")
    assert source.name in again.compiled()


def test_functions_of_the_runtime_that_libraries_share(compiler: Compiler, tmp_path: Path) -> None:
    build.build([LIBRARY], ["90a"], tmp_path)
    *_, host, library = [call for call in compiler.calls if "-shared" in call]
    assert "-lcudart_static" in host
    assert "-lcudart_static" not in library
    assert "-Wl,--wrap=cudaLaunchKernelExC" in library
    assert str(tmp_path / libraries.host_file()) in library
    assert finding.manifest(tmp_path, LIBRARY)["host"] == libraries.host_file()


def test_a_failed_first_use_says_so_on_its_line_of_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(
        names: object, archs: object, out: object, say: build.Progress, split: bool
    ) -> list[Path]:
        say(LIBRARY, 0, 9)
        raise build.BuildError("no")

    monkeypatch.setattr(build, "build", broken)
    assert finding.find(LIBRARY) is None
    assert capsys.readouterr().err.endswith("once: 0/9 failed\n")


def test_every_library_that_fails_is_told_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(Compiler("naive.cu"), monkeypatch)
    names = ["gemm/gemv_complex", "elementwise/weighted_sum", "elementwise/glu"]
    with pytest.raises(build.BuildError) as failed:
        build.build(names, ["90a"], tmp_path)
    assert [f"compiling '{name}' failed" in str(failed.value) for name in names] == [True] * 3
    assert not list(tmp_path.glob("warpsmith_gemm*"))


def test_no_compile_where_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPSMITH_BUILD", "0")
    assert finding.find(LIBRARY) is None
    assert "WARPSMITH_BUILD=0" in finding.why_not(LIBRARY)


@pytest.mark.parametrize("version", ["12.6", "11.8"])
def test_an_old_nvcc_is_told_of(
    version: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(toolchain, "nvcc_version", lambda: version)
    assert finding.find(LIBRARY) is None
    assert f"nvcc {version} is older than 12.8" in finding.why_not(LIBRARY)
    with pytest.raises(build.BuildError, match=f"nvcc {version} is older than 12.8"):
        build.build([LIBRARY], ["90a"], tmp_path)
    assert "is older than 12.8" in doctor._nvcc_advice()


def test_the_oldest_nvcc_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "nvcc_version", lambda: "12.8")
    assert toolchain.why_no_compiler() is None
    monkeypatch.setattr(toolchain, "find_nvcc", lambda: None)
    assert "pip install 'warpsmith[nvcc]'" in str(toolchain.why_no_compiler())


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
    monkeypatch.setattr(toolchain, "nvcc_version", lambda: nvcc)
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
    monkeypatch.setattr(toolchain, "why_no_compiler", lambda: None)
    monkeypatch.setattr(toolchain, "nvcc_version", lambda: "13.0")
    monkeypatch.setattr(driver, "cuda", lambda: version)
    assert finding.find(LIBRARY) is None
    assert re.search(why, finding.why_not(LIBRARY))
    put_library(tmp_path / "ready", "90a")
    monkeypatch.setenv("WARPSMITH_LIBRARY_DIR", str(tmp_path / "ready"))
    manifest = tmp_path / "ready" / f"{libraries.symbol(LIBRARY)}.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"nvcc": 13}))
    assert finding.find(LIBRARY) is None
    monkeypatch.setattr(driver, "cuda", lambda: (13, 0))
    assert finding.find(LIBRARY) == tmp_path / "ready" / libraries.file_name(LIBRARY)


# --- which library serves -------------------------------------------------------------------------


def put_library(folder: Path, *archs: str) -> None:
    """A library of these sources; without a manifest where there are no architectures."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / libraries.file_name(LIBRARY)).touch()
    if archs:
        manifest = {"archs": archs, "cutlass": "", "key": libraries.key(LIBRARY, archs, "")}
        (folder / f"{libraries.symbol(LIBRARY)}.json").write_text(json.dumps(manifest))


def test_the_architectures_of_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    devices = [(9, 0), (8, 6), (12, 0), (9, 0), (7, 5)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(devices))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: devices[device])
    assert finding._device_archs() == ("75", "86", "90a", "120")
    assert finding.wanted_archs() == ("86", "90a", "120")


def test_gpus_that_pass_for_an_older_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv(toolchain.AS, "80")
    assert finding.wanted_archs() == ("80-ptx",)
    assert toolchain.sm_of("80-ptx") == dispatch.device_sm(torch.device("cuda")) == 80
    assert toolchain.gencode(["80-ptx"]) == ["-gencode=arch=compute_80,code=compute_80"]
    assert not finding._runs_on(("80", "89", "90a"), "80-ptx")
    assert not finding._runs_on(("80-ptx",), "86")


def test_the_first_use_compiles_for_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[str, ...]] = []

    def compiler(
        names: list[str], archs: tuple[str, ...], out: Path, say: object, split: bool
    ) -> list[Path]:
        compiled.append(archs)
        put_library(out, *archs)
        return [out / libraries.file_name(LIBRARY)]

    monkeypatch.setattr(build, "build", compiler)
    pretend_gpu(monkeypatch, "75", "80", "90a")
    path = finding.find(LIBRARY)
    assert compiled == [("80", "90a")]
    assert path is not None
    assert finding.is_current(path.parent, LIBRARY)
    assert finding.status(LIBRARY).archs == ("80", "90a")
    assert finding.find(LIBRARY) == path
    pretend_gpu(monkeypatch, "80")
    assert finding.find(LIBRARY) != path
    assert compiled == [("80", "90a"), ("80",)]


def test_old_gpus_alone_have_no_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend_gpu(monkeypatch, "70", "75")
    assert finding.find(LIBRARY) is None
    assert finding.why_not(LIBRARY) == "the GPU is sm_75, the kernels need sm_80"
    put_library(tmp_path / "ready", "80", "90a")
    monkeypatch.setenv("WARPSMITH_LIBRARY_DIR", str(tmp_path / "ready"))
    assert finding.find(LIBRARY) is None


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
        assert finding.status(LIBRARY).origin == "environment"
        return
    told = f"the library in WARPSMITH_LIBRARY_DIR has no code for {lacking}; "
    status = finding.status(LIBRARY)
    assert (status.origin, status.path) == ("none", None)
    assert status.detail == f"{told}not compiled yet; the first use compiles it"
    put_library(finding.cache_dir(LIBRARY, gpus), *gpus)
    assert finding.status(LIBRARY).origin == "cache"
    rows = [f for f in doctor.examine()["families"] if f["library"] == "cache"]
    assert [(f["family"], f["libraries"], f["why"]) for f in rows] == [
        ("elementwise", ["glu"], f"{told}compiled on first use")
    ]


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
    shutil.copytree(csrc.CSRC, code)
    monkeypatch.setattr(csrc, "CSRC", code)
    hashes = {op: csrc.source_hash("norm", op) for op in ("rms_norm", "group_norm")}
    path = code / source
    path.write_text(path.read_text() + "int another;\n")
    assert csrc.source_hash("norm", "rms_norm") != hashes["rms_norm"]
    shared = not source.startswith("norm/")
    assert (csrc.source_hash("norm", "group_norm") != hashes["group_norm"]) == shared


def test_a_folder_inside_another_is_not_part_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = tmp_path / "csrc"
    shutil.copytree(csrc.CSRC, code)
    shutil.copytree(code / "elementwise/weighted_sum", code / "elementwise/dropout/inner")
    monkeypatch.setattr(csrc, "CSRC", code)
    folders = ("dropout", "dropout/inner")
    path = code / "elementwise/dropout/inner/naive.cu"
    assert path in libraries.sources("elementwise/dropout/inner")
    assert path not in libraries.sources("elementwise/dropout")
    assert {f"elementwise/{name}" for name in folders} <= set(libraries.of_family("elementwise"))
    outer, inner = (csrc.source_hash("elementwise", name) for name in folders)
    path.write_text(path.read_text() + "int another;\n")
    assert csrc.source_hash("elementwise", "dropout") == outer
    assert csrc.source_hash("elementwise", "dropout/inner") != inner


# --- headers that need not be there ---------------------------------------------------------------


def put_cutlass(folder: Path, version: str) -> Path:
    """A folder with the one header of CUTLASS that the search reads."""
    header = folder / "include" / "cutlass" / "version.h"
    header.parent.mkdir(parents=True)
    lines = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
    header.write_text("".join(f"#define CUTLASS_{part} {number}\n" for part, number in lines))
    return folder


def commands_of(monkeypatch: pytest.MonkeyPatch, library: str) -> list[tuple[str, ...]]:
    """What the compilers of a library are called with."""
    monkeypatch.setattr(toolchain, "cuda_home", lambda: Path("/opt/cuda"))
    return [step.command for step in build.steps(library, ["80"])]


def test_cutlass_is_found_by_its_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert toolchain.find_cutlass() is None
    monkeypatch.setenv("CUTLASS_PATH", str(put_cutlass(tmp_path / "cutlass", "4.3.1")))
    found = toolchain.find_cutlass()
    assert found is not None
    assert found.version == "4.3.1"
    assert found.include == (tmp_path / "cutlass" / "include").resolve()


def test_cutlass_is_found_in_its_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUTLASS_PATH")
    package = tmp_path / "site" / "cutlass_library"
    put_cutlass(package / "source", "4.2.0")
    (package / "__init__.py").write_text("raise ImportError('only its headers are wanted')")
    monkeypatch.syspath_prepend(str(package.parent))
    found = toolchain.find_cutlass()
    assert found is not None
    assert found.include == (package / "source" / "include").resolve()


def test_an_old_cutlass_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUTLASS_PATH", str(put_cutlass(tmp_path / "cutlass", "3.9.2")))
    assert toolchain.find_cutlass() is None


def test_a_build_does_without_cutlass(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags in commands_of(monkeypatch, CUTE):
        assert not any("CUTLASS" in flag for flag in flags)


def test_a_build_takes_cutlass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = put_cutlass(tmp_path / "cutlass", "4.2.0")
    monkeypatch.setenv("CUTLASS_PATH", str(folder))
    for flags in commands_of(monkeypatch, CUTE):
        assert "-DWARPSMITH_CUTLASS=4.2.0" in flags
        assert str((folder / "include").resolve()) in flags
    for flags in commands_of(monkeypatch, LIBRARY):  # nothing there is written with CuTe
        assert not any("CUTLASS" in flag for flag in flags)


def test_the_cache_tells_headers_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def names() -> tuple[str, str]:
        return finding.cache_name(CUTE, "90a"), finding.cache_name(LIBRARY, "90a")

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
    (lib / libraries.file_name(CUTE)).touch()
    key = libraries.key(CUTE, ["90a"], cutlass)
    manifest = {"archs": ["90a"], "cutlass": cutlass, "key": key}
    (lib / f"{libraries.symbol(CUTE)}.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(csrc, "PACKAGE", lib.parent)
    assert finding.status(CUTE).origin == "wheel"
    monkeypatch.setenv("CUTLASS_PATH", str(put_cutlass(tmp_path / "cutlass", "4.4.0")))
    assert finding.status(CUTE).origin == "wheel"


def test_comments_and_layout_do_not_count() -> None:
    code = 'int a = 1;  // one\n/* two\n  lines */ const char* s = "// kept /* so */";\nf(\'"\');'
    bare = 'int a = 1; const char* s = "// kept /* so */"; f(\'"\');'
    assert csrc.without_comments(code) == bare
    assert csrc.without_comments(code.replace("one", "another")) == bare
    assert csrc.without_comments(code.replace("= 1", "= 2")) != bare
    asm = 'asm("x; // y" :: "r"(16\'384));'
    assert csrc.without_comments(asm) == asm


def test_the_sources_do_without_iostreams() -> None:
    """Where the linker takes libstdc++ from its archive, the library's streams share some of their
    state with those that PyTorch loaded: a number comes out empty, or the process dies.
    """
    streams = re.compile(r"#\s*include\s*<(\w*streams?|iomanip|locale|regex|format|print)>")
    code = [path for path in csrc.CSRC.rglob("*") if path.suffix in (".cu", ".cuh", ".cpp", ".h")]
    assert code
    assert [path for path in code if streams.search(path.read_text())] == []


def test_kernels_do_without_the_dear_headers() -> None:
    """<atomic>, <algorithm> and <string> took a third of a rung's compile time."""
    dear = re.compile(r"#include <(algorithm|atomic|functional|stdexcept|string|vector)>")
    #: It launches other rungs, by name.
    ladder = {"matmul/mma_padded.cu"}
    found = {}
    for source in csrc.code(*(p for p in csrc.CSRC.iterdir() if p.name != "selftest")):
        if source.suffix != ".cu" or "/".join(source.parts[-2:]) in ladder:
            continue
        for path in csrc.with_includes([source]):
            if names := dear.findall(path.read_text()):
                found[path.relative_to(csrc.CSRC).as_posix()] = names
    del found["host/min_max.h"]  # where libstdc++ has no part of it
    assert not found


def test_every_data_file_is_packaged() -> None:
    tomllib = pytest.importorskip("tomllib")
    root = Path(__file__).parents[1]
    told = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {
        str(path.relative_to(root / "kernels" / "warpsmith"))
        for path in root.glob("kernels/warpsmith/**/*.json")
    }
    assert found <= set(told["package-data"]["warpsmith"])
