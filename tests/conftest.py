"""Shared set-up: where there is no GPU, Triton interprets and what needs one is skipped."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator

import pytest
import torch

import fresh
import interpreter

# Kernels are tested as they are, whatever serves users (core/elsewhere.py).
os.environ.setdefault("WARPSMITH_OWN_KERNELS", "1")

# Calls are recorded in Python, whatever was compiled before; tests of what C++ records ask for it.
os.environ.setdefault("WARPSMITH_RECORD", "0")

#: Whether this machine can run the kernels themselves.
GPU = torch.cuda.is_available()

if not GPU:
    # Triton reads it once, when it is imported.
    os.environ["TRITON_INTERPRET"] = "1"

#: Workers of `pytest -n auto` where there is no GPU; each of them imports PyTorch and Triton.
MOST_WORKERS = 8

#: Names the variable with the seed of random calls: on a GPU a fresh one each run, for all workers.
FUZZ_SEED = "WARPSMITH_FUZZ_SEED"
os.environ.setdefault(FUZZ_SEED, str(secrets.randbits(32) if GPU else 0))

torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else min(2, os.cpu_count() or 1))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """None on a GPU: its memory is shared, and some tests fill it."""
    return 0 if GPU else min(MOST_WORKERS, os.cpu_count() or 1)


@pytest.fixture(scope="session")
def run_fresh() -> Iterator[Callable[[str], str]]:
    """Runs a program in a process that has imported PyTorch and nothing else."""
    with fresh.waiting() as run:
        yield run


def pytest_report_header() -> str:
    return f"random calls: {FUZZ_SEED}={os.environ[FUZZ_SEED]}"


def pytest_configure(config: pytest.Config) -> None:
    # NumPy's remarks on overflows that the interpreter computes.
    config.addinivalue_line("filterwarnings", "ignore:.*encountered in:RuntimeWarning")
    config.addinivalue_line("filterwarnings", "ignore:All-NaN slice encountered:RuntimeWarning")
    config.addinivalue_line("markers", "gpu: needs a CUDA GPU; skipped, with the reason, elsewhere")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if GPU:
        return
    interpreter.hasten()
    skip = pytest.mark.skip(reason="needs a CUDA GPU, and PyTorch sees none")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
