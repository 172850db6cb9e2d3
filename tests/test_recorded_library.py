"""Whether autograd records calls in C++: what is said of it, what compiles it, and when."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from warpsmith.cli import doctor
from warpsmith.cli import main as cli
from warpsmith.native import build, recorded_library, store, toolchain


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with a GPU and a compiler, on which nothing was compiled yet."""
    monkeypatch.setenv("WARPSMITH_CACHE", str(tmp_path / "cache"))
    for name in ("WARPSMITH_LIBRARY_DIR", "WARPSMITH_BUILD", "WARPSMITH_RECORD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CXX", "sh")  # is there, and is never run
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(doctor, "_gpu_facts", lambda: ("a GPU", ""))
    monkeypatch.setattr(doctor, "_families", list)


def begun(seconds: float) -> None:
    """A compiler began so long ago."""
    marker = recorded_library._cached().with_name("begun")
    marker.parent.mkdir(parents=True)
    marker.touch()
    os.utime(marker, (time.time() - seconds,) * 2)


def in_doctor() -> tuple[str, str]:
    (row,) = (row for row in doctor.examine()["machine"] if row["what"] == "autograd")
    return row["found"], row["advice"]


# --- what is said ---------------------------------------------------------------------------------


def test_the_first_use_compiles_it() -> None:
    found = recorded_library.status()
    assert (found.path, found.begins) == (None, True)
    assert in_doctor() == (
        "records calls in Python: not compiled yet; the first use compiles it in the background",
        "",
    )


@pytest.mark.parametrize(
    ("variables", "why", "cure"),
    [
        ({"WARPSMITH_RECORD": "0"}, "switched off (WARPSMITH_RECORD=0)", ""),
        (
            {"WARPSMITH_BUILD": "0"},
            "compiling on first use is switched off (WARPSMITH_BUILD=0)",
            "`warpsmith build autograd` compiles it",
        ),
        ({"CXX": "/no/c++"}, "no C++ compiler: /no/c++ is not there (set CXX)", ""),
    ],
    ids=["record", "build", "compiler"],
)
def test_what_stands_in_the_way(
    variables: dict[str, str], why: str, cure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert not recorded_library.status().begins
    assert in_doctor() == (f"records calls in Python: {why}", cure)


def test_an_old_pytorch_has_another_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.10.1+cu126")
    found = recorded_library.status()
    assert found.why_not == "PyTorch 2.10.1+cu126 is older than the kernels need"
    assert not found.begins


def test_without_a_gpu_nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = recorded_library.status()
    assert (found.why_not, found.begins) == ("not compiled, as there is no CUDA GPU", False)


def test_a_compiler_at_work_is_waited_for() -> None:
    begun(5)
    found = recorded_library.status()
    assert "a compiler is at work on it" in found.why_not
    assert not found.begins


def test_a_compiler_that_left_nothing_is_told_of() -> None:
    begun(3600)
    found = recorded_library.status()
    assert found.begins
    assert in_doctor() == (f"records calls in Python: {found.why_not}", found.cure)
    assert "left nothing" in found.why_not
    assert "says why not" in found.cure


def test_the_folder_of_ready_made_libraries_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WARPSMITH_LIBRARY_DIR", str(tmp_path))
    (tmp_path / "warpsmith_autograd-torch2.10.9.so").touch()
    found = recorded_library.status()
    assert found.path is None
    assert found.why_not.startswith(
        "the library in WARPSMITH_LIBRARY_DIR is of another PyTorch or source; "
    )
    cached = recorded_library._cached()
    cached.parent.mkdir(parents=True)
    cached.touch()
    assert recorded_library.status().path == cached
    ready = tmp_path / recorded_library.file_name()
    ready.touch()
    assert recorded_library.status().path == ready
    assert in_doctor() == (f"records calls in C++: {ready}", "")


def test_a_cpp_library_that_is_an_archive_stays_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of PyTorch's own: two of them that share some symbols end in a crash."""
    monkeypatch.delenv("CXX")
    if shutil.which(toolchain.cxx()) is None or shutil.which("nm") is None:
        pytest.skip("no C++ compiler")
    source, compiler = tmp_path / "said.cpp", tmp_path / "compiler"
    source.write_text(
        "#include <sstream>\n"
        'extern "C" int said(long x) { std::ostringstream s; s << x; return s.str().size(); }\n'
    )
    compiler.write_text(f'#!/bin/sh\nexec {toolchain.cxx()} -static-libstdc++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    to = tmp_path / "said.so"
    build.link(["-fPIC", str(source)], to, "said")
    command = ["nm", "-D", "--defined-only", "--format=posix", str(to)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["said"]


def test_sources_that_are_missing_are_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(recorded_library, "SOURCE", tmp_path / "recorded.cpp")
    assert not recorded_library.loaded()
    assert recorded_library.status().why_not.endswith("recorded.cpp is not there")


def test_a_first_use_begins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: started.append(command))
    assert not recorded_library.loaded()
    assert not recorded_library.loaded()
    (command,) = started
    assert command[-5:] == [
        "warpsmith",
        "build",
        "autograd",
        "--out",
        str(recorded_library._cached().parent),
    ]
    assert "at work" in recorded_library.status().why_not


# --- warpsmith build autograd ---------------------------------------------------------------------


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> list[build.Step]:
    """Compiles at once; no nvcc is there."""
    ran: list[build.Step] = []

    def run(step: build.Step) -> store.Object:
        ran.append(step)
        return store.Object(Path("recorded.o"), "")

    monkeypatch.setattr(build.Step, "run", run)
    monkeypatch.setattr(build, "link", lambda words, to, of: to.write_bytes(b"library"))
    monkeypatch.setattr(toolchain, "find_nvcc", lambda: None)
    return ran


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(("build", *arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_it_is_built_without_nvcc(
    compiler: list[build.Step], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "out" / recorded_library.file_name()
    status, out, _ = run(capsys, "autograd", "--out", str(path.parent))
    assert status == 0
    assert out.splitlines() == [str(path), f"to use them: WARPSMITH_LIBRARY_DIR={path.parent}"]
    (step,) = compiler
    assert step.source == recorded_library.SOURCE
    status, out, _ = run(capsys, "autograd", "--out", str(path.parent), "--json")
    assert (status, json.loads(out)) == (0, {"libraries": [str(path)], "archs": []})


def test_it_is_built_beside_kernels(
    compiler: list[build.Step],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    asked: list[list[str]] = []

    def build_kernels(names: list[str], *others: Any) -> list[Path]:
        asked.append(names)
        return [tmp_path / "warpsmith_elementwise_glu.so"]

    monkeypatch.setattr(build, "build", build_kernels)
    for names in (("elementwise/glu", "autograd"), ()):
        status, out, _ = run(capsys, *names, "--arch", "90a", "--out", str(tmp_path), "--json")
        assert status == 0
        assert [Path(path).name for path in json.loads(out)["libraries"]] == [
            "warpsmith_elementwise_glu.so",
            recorded_library.file_name(),
        ]
    assert asked[0] == ["elementwise/glu"]
    assert "norm/rms_norm" in asked[1]
    assert "autograd" not in asked[1]


def test_where_kernels_cannot_be_built_it_is(
    compiler: list[build.Step], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = ("elementwise/glu", "autograd")
    status, out, err = run(capsys, *names, "--out", str(tmp_path))
    assert (status, out) == (1, "")
    assert "no CUDA compiler" in err
    assert (tmp_path / recorded_library.file_name()).is_file()


@pytest.mark.parametrize("option", [("--arch", "90a"), ("--report",)])
def test_options_of_kernels_are_not_its(
    option: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, "autograd", *option)
    assert (status, out) == (2, "")
    assert "--arch and --report are of kernels, and autograd has none" in err


@pytest.mark.parametrize(
    ("cxx", "said"),
    [
        ("/no/c++", "no C++ compiler: /no/c++ is not there (set CXX)"),
        ("false", "compiling 'autograd' failed:\nrecorded.cpp:"),
    ],
)
def test_what_keeps_it_from_being_built_is_said(
    cxx: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("CXX", cxx)
    status, out, err = run(capsys, "autograd", "--out", str(tmp_path / "out"))
    assert (status, out) == (1, "")
    assert said in err
    assert not (tmp_path / "out").exists()


def test_a_compiler_that_fails_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "failing"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert not recorded_library.loaded()
    recorded_library._compilers[-1].wait(60)
    found = recorded_library.status()
    assert (found.why_not, found.begins) == ("the compiler failed", False)
    assert found.cure == "`warpsmith build autograd` says why"


def test_a_home_that_may_not_be_read_leaves_calls_to_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(recorded_library, "status", refuse)
    assert not recorded_library.loaded()
