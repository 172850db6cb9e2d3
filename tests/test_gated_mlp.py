"""Gates of MLPs whose products join them: where, and that answers and gradients stay."""

from __future__ import annotations

import copy
import types
from typing import Any

import pytest
import torch
from torch import Tensor

import warpsmith
from warpsmith import nn
from warpsmith.core import elsewhere
from warpsmith.nn import gated as module
from warpsmith.nn.gated import Faster, gated


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has it pay everywhere; the activations of the calls that were joined."""
    seen: list[str] = []
    function = warpsmith.gated_linear

    def record(*args: Any, **named: Any) -> Any:
        seen.append(args[5])
        return function(*args, **named)

    monkeypatch.setattr(warpsmith, "gated_linear", record)
    monkeypatch.setattr(module, "pays", lambda x, weight: True)
    return seen


def mlp(dtype: torch.dtype = torch.float32, bias: bool = False) -> nn.SwiGLU:
    torch.manual_seed(0)
    return nn.SwiGLU(16, 24, bias, dtype=dtype)


def rows(dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 5, 16, generator=generator).to(dtype).requires_grad_()


def gradients(made: torch.nn.Module, x: Tensor) -> list[Tensor]:
    y = made(x)
    generator = torch.Generator().manual_seed(2)
    grad = torch.randn(y.shape, generator=generator).to(y.dtype)
    return [y, *torch.autograd.grad(y, [x, *made.parameters()], grad)]


# --- where ----------------------------------------------------------------------------------------


def test_a_range_of_sizes() -> None:
    case = Faster(90, (512, 1152, 6912), (None, 4096, None))
    assert case.has(90, 512, 1152, 6912)
    assert case.has(90, 10**6, 4096, 10**6)
    assert not case.has(80, 512, 1152, 6912)
    assert not case.has(90, 511, 1152, 6912)
    assert not case.has(90, 512, 4097, 6912)


def test_the_record_speaks_of_prefill_and_not_of_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_sm", lambda index: 90)
    weight: Any = types.SimpleNamespace(shape=(14336, 4096))

    def call(tokens: int, dtype: torch.dtype = torch.bfloat16, cuda: bool = True) -> Any:
        device = types.SimpleNamespace(index=None)
        numel = lambda: tokens * 4096  # noqa: E731
        return types.SimpleNamespace(is_cuda=cuda, dtype=dtype, numel=numel, device=device)

    assert module.pays(call(8192), weight)
    assert module.pays(call(512), weight)
    assert not any(module.pays(call(tokens), weight) for tokens in (0, 1, 32, 64))
    assert not module.pays(call(8192, torch.float32), weight)
    assert not module.pays(call(8192, cuda=False), weight)
    monkeypatch.setattr(module, "_sm", lambda index: 80)
    assert not module.pays(call(8192), weight)
    monkeypatch.setattr(module, "FASTER", ())
    assert not module.pays(call(8192), weight)


def test_the_rules_of_the_record_are_read() -> None:
    rules = [rule for rule in elsewhere.rules() if rule.op == module.CHOICE]
    assert len(module.FASTER) == len(rules) > 0
    assert all(rule.implementation == "gated_linear" and rule.ratio > 1.03 for rule in rules)


def test_what_is_not_a_plain_layer_is_called(joined: list[str]) -> None:
    x = rows()
    changes = {
        "hook": lambda m: m.up_proj.register_forward_hook(lambda *args: None),
        "pre-hook": lambda m: m.gate_proj.register_forward_pre_hook(lambda *args: None),
        "backward hook": lambda m: m.gate_proj.register_full_backward_hook(lambda *args: None),
        "forward": lambda m: setattr(m.up_proj, "forward", m.up_proj.forward),
        "class": lambda m: setattr(m, "gate_proj", torch.nn.Sequential(m.gate_proj)),
        "shape": lambda m: setattr(m, "gate_proj", torch.nn.Linear(16, 1, False)),
    }
    for name, change in changes.items():
        made = mlp()
        change(made)
        if name == "class":  # what has a weight, but another forward
            made.gate_proj.weight = made.gate_proj[0].weight
        made(x)
        assert joined == [], name
    mlp()(x)
    assert joined == ["silu"]


def test_neither_under_autocast_nor_under_transforms(joined: list[str]) -> None:
    made, x = mlp(), rows()
    with torch.autocast("cpu", torch.bfloat16):
        made(x)
    torch.func.vmap(made)(x.detach())
    torch.func.grad(lambda x: made(x).sum())(x.detach())
    assert joined == []


def test_other_dtypes_are_pytorchs(joined: list[str]) -> None:
    with pytest.raises(RuntimeError, match="dtype"):
        mlp(torch.bfloat16)(rows())
    assert joined == []


# --- the same answers -----------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("bias", [False, True])
def test_answers_and_gradients(
    activation: str, bias: bool, joined: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = mlp(bias=bias)
    made.activation = activation
    found = gradients(made, rows())
    with torch.no_grad():
        torch.testing.assert_close(made(rows()), found[0], rtol=1e-5, atol=1e-6)
    assert joined == [activation] * 2
    monkeypatch.setattr(module, "pays", lambda x, weight: False)
    expected = gradients(made, rows())
    assert joined == [activation] * 2
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_errors_are_no_larger_in_16_bits(joined: list[str]) -> None:
    made = mlp(torch.bfloat16)
    exact = gradients(
        copy.deepcopy(made).float(), rows(torch.bfloat16).detach().float().requires_grad_()
    )
    found = gradients(made, rows(torch.bfloat16))

    def plain(x: Tensor) -> Tensor:
        gate = torch.nn.functional.silu(made.gate_proj(x))
        return made.down_proj(gate * made.up_proj(x))

    x = rows(torch.bfloat16)
    y = plain(x)
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).to(y.dtype)
    eager = [y, *torch.autograd.grad(y, [x, *made.parameters()], grad)]
    for a, b, c in zip(found, eager, exact, strict=True):
        assert (a.float() - c).norm() <= 1.1 * (b.float() - c).norm()
    assert joined


@pytest.mark.parametrize("frozen", ["gate_proj", "up_proj", "x"])
def test_what_needs_no_gradient_gets_none(frozen: str, joined: list[str]) -> None:
    made, x = mlp(bias=True), rows()
    if frozen == "x":
        x = x.detach()
    else:
        getattr(made, frozen).requires_grad_(False)
    made(x).sum().backward()
    assert joined
    for name, parameter in made.named_parameters():
        assert (parameter.grad is None) == name.startswith(frozen), name


def test_second_derivatives_are_refused(joined: list[str]) -> None:
    made, x = mlp(), rows()
    first = torch.autograd.grad(made(x).sum(), x, create_graph=True)[0]
    assert joined
    with pytest.raises(RuntimeError, match="gated_linear"):
        first.sum().backward()


def test_compiles_whole(joined: list[str]) -> None:
    made = mlp()
    expected = gradients(made, rows())
    found = gradients(torch.compile(made, backend="aot_eager", fullgraph=True), rows())
    assert joined
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_layers_that_are_served_here_join_too(joined: list[str]) -> None:
    made = mlp()
    warpsmith.patch(made, linear=True)
    gated(rows(), made.gate_proj, made.up_proj, "silu")
    assert joined == ["silu"]
