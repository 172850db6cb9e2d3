"""What Triton's compiler makes of attention's twins, which no interpreter shows."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent

#: Prints, of each product of pieces of long rows, what it is added to.
_COMPILE = """
import re
import compile_twins
import torch
from triton.runtime.jit import JITFunction

compile_twins.pretend(90)

def compile_and_show(kernel, grid):
    def run(*args, **options):
        for line in compile_twins.ttir(kernel, *args, **options).splitlines():
            if found := re.search(r"tt.dot %q_piece\\S*, %k_piece\\S*, (%\\w+)", line):
                print(kernel.fn.__name__, found[1])
    return run

JITFunction.__getitem__ = compile_and_show
from warpsmith.attention import flash_attention_backward_triton as backward
from warpsmith.attention import flash_attention_triton as forward
q = torch.zeros(1, 20, 1, 256, dtype=torch.float32)
options = (1.0, True, -1, -1, 0.0, *[None] * 8, 0.0, 0, 0)
forward.flash_attention(q, q, q, *options, False, False)
backward.flash_attention_backward(q, None, q, q, q, q, q.new_zeros(1, 1, 20), *options)
"""


def test_pieces_of_long_rows_are_summed_by_themselves() -> None:
    """In f32 the error of a sum grows with its length: at d 1024, one chain of additions had 2.6
    times PyTorch's error on an H200.
    """
    pytest.importorskip("triton")
    env = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    path = os.pathsep.join([str(TESTS), str(TESTS.parent / "kernels")])
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE],
        capture_output=True,
        text=True,
        env=env | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = [line.split() for line in done.stdout.splitlines()]
    assert {kernel for kernel, _ in found} >= {"keys_kernel", "queries_kernel"}, done.stdout
    assert all(to.startswith("%cst") for _, to in found), done.stdout


@pytest.mark.parametrize("single", [False, True])
def test_tiles_of_keys_and_values_are_swizzled_alike(single: bool) -> None:
    """In 16 bits, of rows shorter than a line of the swizzle too: ptxas 12.8 gets others wrong, as
    seen on an H200 with d = 96, dv = 8 and keys that begin at no multiple of 16 bytes.
    """
    pytest.importorskip("triton")
    forward = importlib.import_module("warpsmith.attention.flash_attention_triton")
    for d in (1, 7, 16, 17, 32, 60, 64, 96, 128, 300):
        for dv in (1, 8, 16, 24, 32, 33, 64, 128, 512):
            bd, bdv = forward.widths(d, dv, single)
            assert bd >= d
            assert bdv >= dv
            line = forward.SWIZZLED
            assert (min(bd, line) == min(bdv, line)) or single
