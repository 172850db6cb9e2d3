"""Programs that AOTInductor compiles ahead: a package that runs without the Python that made it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import warpsmith
from conftest import GPU
from warpsmith.core import catalogue
from warpsmith.proof import pool

DEVICE = "cuda" if GPU else "cpu"


class Layer(nn.Module):
    """A small decoder layer and what a sampler makes of it."""

    def __init__(self, heads: int = 2, d: int = 16) -> None:
        super().__init__()
        self.heads, n = heads, heads * d
        self.norm = nn.Parameter(torch.rand(n) + 0.5)
        self.qkv = nn.Parameter(torch.randn(3 * n, n) / n**0.5)
        self.gate_up = nn.Parameter(torch.randn(4 * n, n) / n**0.5)
        self.down = nn.Parameter(torch.randn(n, 2 * n) / n**0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        b, m, n = x.shape
        y = warpsmith.rms_norm(x, self.norm)
        qkv = warpsmith.linear(y, self.qkv).view(b, m, 3, self.heads, n // self.heads)
        q, k, v = qkv.unbind(2)
        out = warpsmith.flash_attention(q, k, v, causal=True)
        x, y = x + out.reshape(b, m, n), out.reshape(b, m, n)
        y = warpsmith.silu_and_mul(warpsmith.linear(warpsmith.rms_norm(x, self.norm), self.gate_up))
        x = x + warpsmith.linear(y, self.down)
        return x, warpsmith.softmax(x)


class Plain(nn.Module):
    """Nothing of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.linear(x).relu(),)


MODULES = {"layer": Layer, "plain": Plain}


def answers_as_the_module(name: str, path: str) -> None:
    torch.manual_seed(0)
    module = MODULES[name]().to(DEVICE).eval()
    x = torch.randn(2, 24, 32, device=DEVICE)
    with torch.no_grad():
        wanted = module(x)
        program = torch.export.export(module, (x,))
        torch._inductor.aoti_compile_and_package(
            program,
            package_path=path,
            inductor_configs={"aot_inductor.compile_wrapper_opt_level": "O0"},  # for g++'s sake
        )
        called = {str(node.target) for node in program.graph.nodes}
        if name == "layer":
            ours = {f"warpsmith.{op}.default" for op in ("rms_norm", "linear", "softmax")}
            assert ours <= called, called
        catalogue.load()
        found = torch._inductor.aoti_load_package(path)(x)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b)
        again = torch._inductor.aoti_load_package(path)(2 * x)
        torch.testing.assert_close(tuple(again), tuple(module(2 * x)))


def in_a_process(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A package that breaks the process that loads it breaks no other test."""
    command = [sys.executable, __file__, name, str(folder / f"{name}.pt2")]
    return subprocess.run(command, capture_output=True, text=True, env=pool.environment())


@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
def test_a_package_answers_as_the_module(tmp_path: Path) -> None:
    done = in_a_process("layer", tmp_path)
    if done.returncode < 0 and in_a_process("plain", tmp_path).returncode < 0:
        pytest.skip("a package without any of our operators breaks its process, too")
    assert done.returncode == 0, done.stderr[-3000:]


if __name__ == "__main__":
    answers_as_the_module(*sys.argv[1:])
