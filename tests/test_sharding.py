"""Sharded tensors on two processes, against the same call unsharded: rows, columns, parts of sums,
classes; gradients too, and FSDP.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from warpsmith.measure import contract

HERE = Path(__file__).parent
WORKER = HERE / "sharded.py"
PROCESSES = 2


def _run(*args: str) -> dict[str, str]:
    """What each case said, "" where all was well."""
    if not torch.distributed.is_available():
        pytest.skip("PyTorch was built without torch.distributed")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(PROCESSES),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    running = [
        subprocess.Popen(
            [sys.executable, str(WORKER), *args],
            env=env | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(PROCESSES)
    ]
    done = [process.communicate(timeout=600) for process in running]
    for process, (_, said) in zip(running, done, strict=True):
        assert process.returncode == 0, said[-4000:]
    return json.loads(done[0][0].splitlines()[-1])


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    return _run()


@pytest.fixture(scope="module")
def in_steps() -> dict[str, str]:
    return _run(_worker().IN_STEPS)


def _worker() -> Any:
    sys.path.insert(0, str(HERE))
    return importlib.import_module("sharded")


def cases() -> list[str]:
    return list(_worker().CASES)


@pytest.mark.parametrize("name", cases())
def test_as_unsharded(name: str, found: dict[str, str]) -> None:
    assert found[name] == ""


@pytest.mark.parametrize("name", _worker().in_steps())
def test_products_in_steps(name: str, in_steps: dict[str, str]) -> None:
    assert in_steps[name] == ""


def test_every_function_of_the_table_is_tried() -> None:
    assert {name.partition(":")[0] for name in cases()} - {"FSDP2"} == contract.sharded()
