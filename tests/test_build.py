"""The first-use build: one compile for racing processes, and a failure that keeps its words."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest

from warpsmith import build

FAMILY = "elementwise"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WARPSMITH_CACHE", str(tmp_path))
    monkeypatch.delenv("WARPSMITH_LIBRARY_DIR", raising=False)
    monkeypatch.delenv("WARPSMITH_BUILD", raising=False)
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


def test_no_compile_where_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPSMITH_BUILD", "0")
    assert build.library(FAMILY) is None
    assert "WARPSMITH_BUILD=0" in build.why_not(FAMILY)
