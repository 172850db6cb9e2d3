"""Layers for the Hub's `kernels` package, and the layout that it loads them from."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from warpsmith import layers
from warpsmith.native import hub_layout

X = torch.randn(3, 16)


class Norm(nn.Module):
    """As models of transformers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(16) + 0.5)
        self.variance_epsilon = 1e-5

    def forward(self, hidden_states: Tensor) -> Tensor:
        scale = torch.rsqrt(hidden_states.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * (hidden_states * scale)


class CenteredNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16) / 4)
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1.0 + self.weight)


def activation(function: object) -> nn.Module:
    class Activation(nn.Module):
        def forward(self, input: Tensor) -> Tensor:
            return function(input)  # type: ignore[operator]

    return Activation()


def tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


MODULES = {
    "RMSNorm": Norm(),
    "RMSNormZeroCentered": CenteredNorm(),
    "GeLU": activation(F.gelu),
    "GeluTanh": activation(tanh),
    "NewGELU": activation(tanh),
    "FastGELU": activation(tanh),
    "QuickGELU": activation(lambda x: x * torch.sigmoid(1.702 * x)),
    "SiLU": activation(F.silu),
}


def test_every_layer_is_tried() -> None:
    assert set(MODULES) == set(layers.__all__)


@pytest.mark.parametrize("name", MODULES)
def test_a_layer_takes_the_place_of_one(name: str) -> None:
    """With its forward alone, as `kernels` exchanges it."""
    module, layer = MODULES[name], getattr(layers, name)
    wanted = module(X)
    torch.testing.assert_close(layer.forward(module, X), wanted)
    x = X.clone().requires_grad_()
    found = torch.autograd.grad(layer.forward(module, x).square().sum(), x)
    torch.testing.assert_close(found, torch.autograd.grad(module(x).square().sum(), x))
    # what that package asks of a layer
    assert layer.__init__ is nn.Module.__init__
    more = {n for n, _ in inspect.getmembers(layer)} - {n for n, _ in inspect.getmembers(nn.Module)}
    assert more <= {"can_torch_compile", "has_backward"}
    own, other = (inspect.signature(c.forward).parameters for c in (layer, type(module)))
    assert [p.kind for p in own.values()] == [p.kind for p in other.values()]


def test_the_layout_is_whole(tmp_path: Path) -> None:
    """It runs where no other warpsmith is, and finds its sources."""
    made = hub_layout.write(tmp_path)
    assert hub_layout.write(tmp_path) == made
    about = json.loads((made / "metadata.json").read_text())
    assert about["name"] == "warpsmith"
    assert about["backend"] == {"type": "cuda"}
    program = f"""
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location({about["id"]!r}, {str(made / "__init__.py")!r})
kernel = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = kernel
spec.loader.exec_module(kernel)
import warpsmith
from warpsmith.native import csrc
assert warpsmith.__file__.startswith({str(made)!r}), warpsmith.__file__
assert str(csrc.CSRC).startswith({str(made)!r})
assert (csrc.CSRC / "norm/rms_norm/rms_norm.cpp").is_file()
assert (csrc.CSRC / "autograd/recorded.cpp").is_file()
x = torch.randn(3, 8)
torch.testing.assert_close(
    kernel.rms_norm(x, eps=1e-6), torch.nn.functional.rms_norm(x, (8,), eps=1e-6)
)
assert kernel.layers.RMSNorm.forward
"""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr


def test_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "build" / hub_layout.VARIANT).mkdir(parents=True)
    with pytest.raises(FileExistsError, match="no layout"):
        hub_layout.write(tmp_path)


def test_kernels_loads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    kernels = pytest.importorskip("kernels")
    if not hasattr(kernels, "LocalLayerRepository"):
        pytest.skip("`kernels` is the folder of this repository, or older than local layers")
    hub_layout.write(tmp_path)
    repository = kernels.LocalLayerRepository(tmp_path, layer_name="RMSNorm")
    assert repository.load() is layers.RMSNorm
    marked = kernels.use_kernel_forward_from_hub("RMSNorm")(type("Marked", (Norm,), {}))()
    wanted = marked(X)
    with kernels.use_kernel_mapping({"RMSNorm": {"cpu": repository}}, inherit_mapping=False):
        kernels.kernelize(marked, mode=kernels.Mode.INFERENCE, device="cpu")
    assert marked.forward.__func__ is layers.RMSNorm.forward
    torch.testing.assert_close(marked(X), wanted)
