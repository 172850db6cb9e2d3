"""Modules in the place of PyTorch's, and the context that serves PyTorch's functions."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import warpsmith
from warpsmith import nn

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def randn(*shape: int, dtype: torch.dtype = torch.float32, salt: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(salt)).to(dtype)


def through(module: Callable[..., Any], *args: Tensor) -> list[Tensor]:
    """Outputs, and the gradients of arguments and parameters."""
    args = tuple(a.clone().requires_grad_(a.is_floating_point()) for a in args)
    if isinstance(module, torch.nn.Module):
        module.zero_grad()
    outs = module(*args)
    outs = outs if isinstance(outs, tuple) else (outs,)
    sum((o.double() * randn(*o.shape, salt=9)).sum() for o in outs).backward()
    parameters = list(module.parameters()) if isinstance(module, torch.nn.Module) else []
    grads = [a.grad for a in args if a.grad is not None] + [p.grad for p in parameters]
    return [*(o.detach() for o in outs), *grads]


def agree(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    for f, e in zip(found, expected, strict=True):
        assert f.dtype == e.dtype
        wide = {torch.bfloat16: 2e-2, torch.float16: 4e-3}.get(f.dtype, 1e-5)
        torch.testing.assert_close(f, e, rtol=wide, atol=wide)


def loaded(ours: torch.nn.Module, theirs: torch.nn.Module, dtype: torch.dtype) -> None:
    """Parameters that differ from ones and zeros, the same in both, under the same names."""
    for i, parameter in enumerate(theirs.parameters()):
        parameter.data += randn(*parameter.shape, salt=i) * 0.3
    ours.load_state_dict(theirs.state_dict(), strict=True)
    ours.to(dtype), theirs.to(dtype)


def _without_bias(norm: torch.nn.GroupNorm) -> torch.nn.GroupNorm:
    """As PyTorch's from 2.13 on with `bias=False`."""
    norm.register_parameter("bias", None)
    return norm


def test_modules_take_the_arguments_of_pytorchs() -> None:
    for name in nn.__all__:
        theirs = getattr(torch.nn, name, None)
        if theirs is not None:
            wanted = set(inspect.signature(theirs).parameters)
            assert wanted <= set(inspect.signature(getattr(nn, name)).parameters), name


PAIRS: dict[str, tuple[Callable[[], Any], Callable[[], Any], tuple[int, ...]]] = {
    "RMSNorm": (lambda: nn.RMSNorm(24), lambda: torch.nn.RMSNorm(24), (3, 5, 24)),
    "RMSNorm eps": (lambda: nn.RMSNorm(24, 0.1), lambda: torch.nn.RMSNorm(24, 0.1), (3, 24)),
    "RMSNorm 2-d": (lambda: nn.RMSNorm((4, 6)), lambda: torch.nn.RMSNorm((4, 6)), (3, 4, 6)),
    "RMSNorm alone": (
        lambda: nn.RMSNorm(24, elementwise_affine=False),
        lambda: torch.nn.RMSNorm(24, elementwise_affine=False),
        (3, 24),
    ),
    "LayerNorm": (lambda: nn.LayerNorm(24), lambda: torch.nn.LayerNorm(24), (3, 5, 24)),
    "LayerNorm 2-d": (lambda: nn.LayerNorm((4, 6)), lambda: torch.nn.LayerNorm((4, 6)), (3, 4, 6)),
    "LayerNorm no bias": (
        lambda: nn.LayerNorm(24, bias=False),
        lambda: torch.nn.LayerNorm(24, bias=False),
        (3, 24),
    ),
    "GroupNorm": (lambda: nn.GroupNorm(2, 8), lambda: torch.nn.GroupNorm(2, 8), (3, 8, 5, 4)),
    "GroupNorm no bias": (
        lambda: nn.GroupNorm(2, 8, bias=False),
        lambda: _without_bias(torch.nn.GroupNorm(2, 8)),
        (3, 8, 5, 4),
    ),
    "Linear": (lambda: nn.Linear(24, 16), lambda: torch.nn.Linear(24, 16), (3, 5, 24)),
    "Linear no bias": (
        lambda: nn.Linear(24, 16, bias=False),
        lambda: torch.nn.Linear(24, 16, bias=False),
        (24,),
    ),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_modules_are_pytorchs(name: str, dtype: torch.dtype) -> None:
    make, theirs, shape = PAIRS[name]
    ours, expected = make(), theirs()
    assert isinstance(ours, type(expected))
    loaded(ours, expected, dtype)
    x = randn(*shape, dtype=dtype)
    agree(through(ours, x), through(expected, x))
    agree(through(copy.deepcopy(ours), x), through(ours, x))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "silu": F.silu,
    "mish": F.mish,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", ["GroupNorm", "Linear"])
def test_activations_join(name: str, activation: str) -> None:
    _, theirs, shape = PAIRS[name]
    args = (2, 8) if name == "GroupNorm" else (24, 16)
    ours, expected = getattr(nn, name)(*args, activation=activation), theirs()
    loaded(ours, expected, torch.float32)
    x = randn(*shape)
    both = torch.nn.Sequential(expected)
    both.forward = lambda x: ACTIVATIONS[activation](expected(x))  # type: ignore[method-assign]
    agree(through(ours, x), through(both, x))
    assert activation in repr(ours)


def test_unknown_activations_are_refused() -> None:
    for make in (
        lambda: nn.Linear(2, 2, activation="tan"),
        lambda: nn.GroupNorm(1, 2, activation=""),
    ):
        with pytest.raises(ValueError, match="expected activation to be one of 'none', 'relu'"):
            make()
    with pytest.raises(ValueError, match="GeGLU: expected approximate to be 'none' or 'tanh'"):
        nn.GeGLU(2, 2, approximate="erf")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("mlp", "act"),
    [
        (nn.SwiGLU(16, 24), F.silu),
        (nn.GeGLU(16, 24), lambda x: F.gelu(x, approximate="tanh")),
        (nn.GeGLU(16, 24, bias=True, approximate="none"), F.gelu),
    ],
)
def test_gated_mlps(mlp: Any, act: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    mlp = copy.deepcopy(mlp).to(dtype)
    expected = copy.deepcopy(mlp)
    expected.forward = lambda x: expected.down_proj(
        act(expected.gate_proj(x)) * expected.up_proj(x)
    )
    x = randn(3, 5, 16, dtype=dtype)
    agree(through(mlp, x), through(expected, x))
    names = {n.partition(".")[0] for n in mlp.state_dict()}
    assert names == {"gate_proj", "up_proj", "down_proj"}


@pytest.mark.parametrize("residual_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["AddRMSNorm", "AddLayerNorm"])
def test_residual_norms(kind: str, residual_dtype: torch.dtype) -> None:
    ours = getattr(nn, kind)(24, 1e-5)
    expected: Any = (torch.nn.RMSNorm if kind == "AddRMSNorm" else torch.nn.LayerNorm)(24, 1e-5)
    loaded(ours, expected, torch.bfloat16)
    x, residual = randn(3, 24, dtype=torch.bfloat16), randn(3, 24, dtype=residual_dtype, salt=1)
    y, h = ours(x, residual)
    assert torch.equal(h, residual + x)
    torch.testing.assert_close(y, expected(h.bfloat16()), rtol=2e-2, atol=2e-2)
    assert y.dtype == torch.bfloat16


def test_residual_norms_around_zero() -> None:
    norm = nn.AddRMSNorm(8, zero_centered=True)
    x = randn(3, 8)
    assert not norm.weight.any()
    y, h = norm(x, torch.zeros_like(x))
    torch.testing.assert_close(y, F.rms_norm(x, (8,), eps=1e-6))
    assert torch.equal(h, x)


@pytest.mark.parametrize("kind", ["AddRMSNorm", "AddLayerNorm"])
def test_residual_norms_drop_while_training(kind: str) -> None:
    norm = getattr(nn, kind)(1000, p=0.25)
    x, residual = torch.ones(20, 1000), torch.zeros(20, 1000)
    torch.manual_seed(0)
    _, first = norm(x, residual)
    _, second = norm(x, residual)
    assert not torch.equal(first, second)
    assert first.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert abs((first == 0).float().mean() - 0.25) < 0.02
    torch.manual_seed(0)
    assert torch.equal(norm(x, residual)[1], first)
    assert torch.equal(norm.eval()(x, residual)[1], x)


def test_dropout_draws_from_pytorchs_seed() -> None:
    drop, x = nn.Dropout(0.25), torch.ones(20, 1000)
    torch.manual_seed(0)
    first, second = drop(x), drop(x)
    assert not torch.equal(first, second)
    assert abs((first == 0).float().mean() - 0.25) < 0.02
    torch.manual_seed(0)
    assert torch.equal(drop(x), first)
    assert torch.equal(drop.eval()(x), x)
    assert torch.equal(nn.Dropout(1.0)(x), torch.zeros_like(x))
    x.requires_grad_()
    torch.manual_seed(0)
    nn.Dropout(0.25)(x).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, first)
    with pytest.raises(ValueError, match="probability"):
        nn.Dropout(1.5)


@pytest.mark.parametrize("p", [-1.0, 2.0])
@pytest.mark.parametrize("kind", ["Dropout", "AddRMSNorm", "AddLayerNorm"])
def test_a_probability_is_one_when_the_module_is_made(kind: str, p: float) -> None:
    size = () if kind == "Dropout" else (16,)
    with pytest.raises(ValueError, match="between 0 and 1"):
        getattr(nn, kind)(*size, p=p)


@pytest.mark.parametrize("kind", ["Dropout", "AddRMSNorm", "AddLayerNorm"])
def test_dropping_modules_work_without_data(kind: str) -> None:
    """In PyTorch's mode of fake tensors, in which no seed can be drawn from a tensor."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        module = nn.Dropout(0.5) if kind == "Dropout" else getattr(nn, kind)(8, p=0.5)
        x = torch.randn(4, 8)
        out = module(*(x,) * (1 if kind == "Dropout" else 2))
    assert {t.shape for t in (out if isinstance(out, tuple) else (out,))} == {(4, 8)}


LOSSES: dict[str, dict[str, Any]] = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "smooth": {"label_smoothing": 0.1, "ignore_index": 3},
    "weights": {"weight": randn(11).abs()},
    "smooth weights": {"weight": randn(11).abs(), "label_smoothing": 0.1},
}


@pytest.mark.parametrize("options", LOSSES.values(), ids=list(LOSSES))
def test_cross_entropy(options: dict[str, Any]) -> None:
    logits, target = randn(6, 11), torch.tensor([1, 3, 3, 10, 0, 7])
    ours, theirs = nn.CrossEntropyLoss(**options), torch.nn.CrossEntropyLoss(**options)
    agree(through(lambda x: ours(x, target), logits), through(lambda x: theirs(x, target), logits))
    half = logits.bfloat16()
    torch.testing.assert_close(ours(half, target), theirs(half.float(), target))


def test_cross_entropy_of_images_and_of_probabilities() -> None:
    loss = nn.CrossEntropyLoss()
    x, index, p = randn(2, 5, 3, 4), torch.ones(2, 3, 4).long(), randn(6, 5).softmax(-1)
    for given in ((x, index), (x.double(), index.int()), (p, p), (p[0], index[0, 0, 0])):
        wide = given[1] if given[1].is_floating_point() else given[1].long()
        torch.testing.assert_close(loss(*given), F.cross_entropy(given[0], wide))


def test_no_loss_copies_its_logits_into_f32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the targets are: all of them are `warpsmith.cross_entropy`'s."""
    seen = []
    real = warpsmith.cross_entropy
    monkeypatch.setattr(
        warpsmith, "cross_entropy", lambda x, *a, **k: seen.append(x.dtype) or real(x, *a, **k)
    )
    x, p = randn(2, 5, 3, dtype=torch.bfloat16), randn(6, 5, dtype=torch.bfloat16)
    nn.CrossEntropyLoss()(x, torch.ones(2, 3).long())
    nn.CrossEntropyLoss()(p, p.softmax(-1))
    nn.CrossEntropyLoss(weight=torch.rand(5))(p, torch.ones(6).long())
    assert seen == [torch.bfloat16] * 3


def test_what_pytorchs_loss_has_not() -> None:
    x, target = 9 * randn(6, 5), torch.arange(6) % 5
    given = {"softcap": 3.0, "z_loss": 1e-2}
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        found = nn.CrossEntropyLoss(**given)(x.to(dtype), target)
        assert torch.equal(found, warpsmith.cross_entropy(x.to(dtype), target, **given))


def test_fused_linear_cross_entropy() -> None:
    x, weight, bias = randn(2, 5, 8), randn(11, 8, salt=1), randn(11, salt=2)
    target = torch.arange(10).view(2, 5)
    target[0, 0] = -100
    loss = nn.FusedLinearCrossEntropyLoss()
    agree(
        through(lambda x, w, b: loss(w, x, target, b), x, weight, bias),
        through(
            lambda x, w, b: F.cross_entropy(F.linear(x, w, b).flatten(0, 1), target.flatten()),
            x, weight, bias,
        ),
    )  # fmt: skip
    with pytest.raises(ValueError, match="expected reduction to be one of 'none', 'mean', 'sum'"):
        nn.FusedLinearCrossEntropyLoss(reduction="average")


def test_fused_linear_cross_entropy_takes_what_the_function_takes() -> None:
    x, weight, of_class = randn(2, 5, 8), randn(11, 8, salt=1), randn(11, salt=2).abs()
    target, of_token = torch.arange(10).view(2, 5), randn(2, 5, salt=3).abs()
    given: dict[str, Any] = {
        "reduction": "none", "softcap": 2.0, "z_loss": 1e-2, "class_weight": of_class,
        "chunk_rows": 3,
    }  # fmt: skip
    loss = nn.FusedLinearCrossEntropyLoss(**given)
    found = loss(weight, x, target, token_weight=of_token)
    wanted = warpsmith.fused_linear_cross_entropy(x, weight, target, token_weight=of_token, **given)
    assert found.shape == (2, 5)
    assert torch.equal(found, wanted)
    assert torch.equal(loss.state_dict()["class_weight"], of_class)
    assert not nn.FusedLinearCrossEntropyLoss().state_dict()
    options = set(inspect.signature(warpsmith.fused_linear_cross_entropy).parameters)
    taken = {*inspect.signature(nn.FusedLinearCrossEntropyLoss).parameters}
    assert options == taken | set(inspect.signature(loss.forward).parameters)


# --- the context ----------------------------------------------------------------------------------

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "layer_norm": lambda x: F.layer_norm(x, (24,), x.new_ones(24), None, 1e-3),
    "layer_norm 2-d": lambda x: F.layer_norm(x, (6, 24)),
    "rms_norm": lambda x: F.rms_norm(x, [24], x.new_ones(24)),
    "group_norm": lambda x: F.group_norm(x, 3),
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softmax": lambda x: F.softmax(x, dim=1),
    "softmax dtype": lambda x: F.softmax(x, -1, dtype=torch.float64),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "cross_entropy": lambda x: F.cross_entropy(x[0], torch.arange(6)),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "module": lambda x: torch.nn.LayerNorm(24, dtype=x.dtype)(x),
    "not served": lambda x: F.relu(x) + 1,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_pytorchs_functions_are_served(name: str, dtype: torch.dtype) -> None:
    def served(x: Tensor) -> Tensor:
        with warpsmith.use():
            return CALLS[name](x)

    x = randn(2, 6, 24, dtype=dtype)
    agree(through(served, x), through(CALLS[name], x))


def test_the_context_is_what_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(warpsmith, "layer_norm", lambda x, **named: seen.append(1) or x)
    x = randn(2, 24)
    F.layer_norm(x, (24,))
    with warpsmith.use(F.gelu):
        F.layer_norm(x, (24,))
    assert not seen
    with warpsmith.use():
        F.layer_norm(x, (24,))
        torch.nn.LayerNorm(24)(x)
    assert len(seen) == 2
    with pytest.raises(ValueError, match="use: expected functions of cross_entropy, gelu"):
        warpsmith.use(F.relu)


def test_the_context_compiles() -> None:
    def run(x: Tensor) -> Tensor:
        with warpsmith.use():
            return F.layer_norm(F.gelu(x), (24,))

    x = randn(2, 24)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), run(x))
