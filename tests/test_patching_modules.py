"""`warpsmith.patch` on modules of PyTorch: what is known by its type."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import warpsmith
from warpsmith.patching import swap


class Odd(torch.nn.LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        return input


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16),
            torch.nn.LayerNorm(16),
            torch.nn.GELU(),
            torch.nn.RMSNorm(16),
            torch.nn.GELU(approximate="tanh"),
            torch.nn.Unflatten(-1, (4, 4)),
            torch.nn.GroupNorm(2, 4),
            torch.nn.SiLU(),
            Odd(4),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def answers(model: torch.nn.Module) -> list[Tensor]:
    model.zero_grad()
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    out = model(x.to(next(model.parameters()).dtype))
    out.square().sum().backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def test_what_is_known_by_its_type() -> None:
    model = Net()
    expected, exact = answers(model), answers(copy.deepcopy(model).double())
    report = warpsmith.patch(model, linear=True)
    assert report.functions() == {
        "linear": 1, "layer_norm": 1, "gelu": 1, "rms_norm": 1, "gelu_tanh": 1, "group_norm": 1,
    }  # fmt: skip
    left = {kept.module: kept.why for kept in report.left}
    assert left == {
        "Unflatten": "no counterpart here",
        "SiLU": "PyTorch computes it in one kernel, too",
        "Odd": "its class is made of LayerNorm and has a forward of its own",
    }
    assert "1 SiLU left: PyTorch computes" in str(report)
    # Ten operations in a row, whose sums have at most 24 terms: 240 roundings of 2^-24.
    for found, wide in zip(answers(model), exact, strict=True):
        assert (found - wide).abs().max() <= 240 * 2**-24 * wide.abs().max()
    warpsmith.unpatch(model)
    assert all(map(torch.equal, answers(model), expected))


#: What modules of PyTorch could also be served by.
COUNTERPARTS: dict[str, tuple[torch.nn.Module, str | None]] = {
    "Softmax": (torch.nn.Softmax(-1), "softmax"),
    "LogSoftmax": (torch.nn.LogSoftmax(-1), "log_softmax"),
    "BCEWithLogitsLoss": (torch.nn.BCEWithLogitsLoss(), "bce_with_logits"),
    "GLU": (torch.nn.GLU(), "glu"),
    "Hardswish": (torch.nn.Hardswish(), "hardswish"),
    "Sigmoid": (torch.nn.Sigmoid(), "sigmoid"),
    "ELU": (torch.nn.ELU(), "elu"),
    "Hardshrink": (torch.nn.Hardshrink(), "hardshrink"),
    "Upsample": (torch.nn.Upsample(scale_factor=2), "upsample_nearest2d"),
    "of attention": (torch.nn.MultiheadAttention(4, 2), "linear"),
    "bilinear": (torch.nn.Upsample(scale_factor=2, mode="bilinear"), None),
    "Tanh": (torch.nn.Tanh(), None),
}


@pytest.mark.parametrize("name", COUNTERPARTS)
def test_what_has_a_counterpart_is_said_to_have_one(name: str) -> None:
    module, function = COUNTERPARTS[name]
    (left,) = warpsmith.patch(torch.nn.Sequential(module)).left
    if function is None:
        assert left.why == "no counterpart here"
    else:
        assert left.why == (
            f"has a counterpart, warpsmith.{function}, which patch does not put in its place"
        )
        assert callable(getattr(warpsmith, function))


def test_modules_of_ones_own_are_said_to_be() -> None:
    from warpsmith import nn

    own = nn.RMSNorm(4), nn.Linear(4, 4), nn.CrossEntropyLoss(), nn.Dropout()
    left = warpsmith.patch(torch.nn.Sequential(*own)).left
    assert [kept.why for kept in left] == ["it is warpsmith's own"] * len(own)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_pytorchs_loss(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 5, generator=generator).to(dtype).requires_grad_()
    weight = torch.rand(5, generator=generator).to(dtype)
    target = torch.tensor([0, 4, -100, 2, 2, 1])
    loss = torch.nn.CrossEntropyLoss(weight, label_smoothing=0.1)
    expected = loss(x, target)
    exact = torch.nn.functional.cross_entropy(
        x.double(), target, weight.double(), label_smoothing=0.1
    )
    model = torch.nn.Sequential(loss)
    assert not warpsmith.patch(model, loss=False)
    assert warpsmith.patch(model).functions() == {"cross_entropy": 1}
    found = loss(x, target)
    assert found.dtype == expected.dtype
    assert abs(found.double() - exact) <= 2 * torch.finfo(dtype).eps * exact
    (grad,) = torch.autograd.grad(found, x)
    (wanted,) = torch.autograd.grad(exact, x)
    torch.testing.assert_close(grad, wanted.to(dtype))
    warpsmith.unpatch(model)
    assert type(loss) is torch.nn.CrossEntropyLoss


def test_without_data_patched_modules_answer() -> None:
    """On the device "meta", which has no autocast."""
    with torch.device("meta"):
        model, x = Net(), torch.empty(6, 8)
        expected = model(x).shape
        warpsmith.patch(model, linear=True)
        assert model(x).shape == expected
        loss = torch.nn.CrossEntropyLoss()
        warpsmith.patch(loss)
        with warpsmith.use():
            assert torch.nn.functional.softmax(x, -1).shape == x.shape
            assert loss(x, torch.empty(6, dtype=torch.long)).shape == ()


def test_options_turn_kinds_off() -> None:
    report = warpsmith.patch(Net(), norms=False)
    assert report.functions() == {"gelu": 1, "gelu_tanh": 1}
    assert {k.module for k in report.left if k.why == "norms=False"} == {
        "LayerNorm", "RMSNorm", "GroupNorm",
    }  # fmt: skip


def test_classes_keep_names_and_places() -> None:
    model = torch.nn.LayerNorm(4)
    text, cls = repr(model), type(model)
    assert warpsmith.patch(model)
    assert isinstance(model, cls)
    assert repr(model) == text
    assert str(type(model)) == str(cls)
    other = torch.nn.LayerNorm(4)
    warpsmith.patch(other)
    assert type(other) is type(model)
    for copied in (copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))):
        assert type(copied) is type(model)
    assert not warpsmith.patch(model)
    assert not warpsmith.unpatch(model)
    assert type(model) is cls


def test_a_class_that_was_exchanged_since_is_said() -> None:
    model = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.LayerNorm(4))
    warpsmith.patch(model)
    model[0].__class__ = type("Wrapped", (type(model[0]),), {})
    report = warpsmith.unpatch(model)
    assert [kept.name for kept in report.left] == ["0"]
    assert swap.is_swapped(model[0])
    assert type(model[1]) is torch.nn.LayerNorm


def test_what_was_given_back_is_said() -> None:
    model = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.LayerNorm(4), torch.nn.ReLU())
    warpsmith.patch(model)
    report = warpsmith.unpatch(model)
    assert not report
    assert [(r.name, r.module) for r in report.restored or ()] == [
        ("0", "LayerNorm"),
        ("1", "LayerNorm"),
    ]
    assert str(report) == "    2 LayerNorm restored"
    assert str(warpsmith.unpatch(model)) == "nothing was restored"


def test_nothing_known_is_said() -> None:
    report = warpsmith.patch(torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1)))
    assert not report
    assert str(report).startswith("nothing was replaced")


@pytest.mark.parametrize("function", ["patch", "unpatch"])
@pytest.mark.parametrize("bad", [None, 3, torch.nn.LayerNorm, torch.zeros(1)])
def test_what_is_no_module_is_refused(function: str, bad: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{function}: expected a torch.nn.Module, got "):
        getattr(warpsmith, function)(bad)


def test_patching_imports_no_transformers() -> None:
    import subprocess
    import sys

    code = (
        "import sys, torch, warpsmith; warpsmith.patch(torch.nn.LayerNorm(2)); "
        "assert not {'transformers', 'diffusers', 'triton'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_sharded_models_stay_served(tmp_path: Any) -> None:
    """`fully_shard` puts a class of its own on top of ours, which unpatching names."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    expected = Net()
    for parameter in expected.parameters():
        parameter.data += 0.1
    model = copy.deepcopy(expected)
    warpsmith.patch(model)
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = dist.init_device_mesh("cpu", (1,))
        for layer in (model.layers[1], model.layers[3]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        out = model(torch.ones(2, 8))
        torch.testing.assert_close(out, expected(torch.ones(2, 8)))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # FSDP warns of views
            model(torch.ones(2, 8)).sum().backward()
        used = [p for n, p in model.named_parameters() if not n.startswith("layers.8")]
        assert all(p.grad is not None for p in used)
        names = [kept.name for kept in warpsmith.unpatch(model).left]
        assert names == ["layers.1", "layers.3"]
    finally:
        dist.destroy_process_group()
