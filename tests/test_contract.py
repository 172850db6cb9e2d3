"""Every public function with a gradient, in every part of PyTorch's machinery: the cells of
`warpsmith.measure.contract`, but those of autocast (`test_autocast.py`) and of several processes
(`test_sharding.py`).
"""

from __future__ import annotations

import copy
import functools
import inspect
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import warpsmith
from conftest import GPU
from warpsmith.core.catalogue import Inputs
from warpsmith.gemm.gated_linear import _run_composed
from warpsmith.gemm.linear_epilogue import composed
from warpsmith.measure import contract, host_times

pytestmark = [
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
    pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight"),
]
SEED = 7
PAGE = Path(__file__).resolve().parents[1] / "docs/pytorch.md"
#: What draws, with a seed, so that two calls may be compared.
DRAWN: dict[str, Callable[..., Any]] = {
    "dropout": lambda x: warpsmith.dropout(x, 0.1, SEED),
    "bias_dropout_add": lambda x, b, r: warpsmith.bias_dropout_add(x, b, r, 0.1, SEED)[0],
    "dropout_add_rms_norm": functools.partial(warpsmith.dropout_add_rms_norm, p=0.1, seed=SEED),
    "dropout_add_layer_norm": functools.partial(warpsmith.dropout_add_layer_norm, p=0.1, seed=SEED),
    "bias_scale_mask_softmax_dropout": lambda x, bias: warpsmith.bias_scale_mask_softmax_dropout(
        x, bias, scale=0.125, p=0.1, seed=SEED
    )[0],
}
#: Calls with `out`, of functions that take more than their case says, or less.
WRITTEN: dict[str, Callable[..., Any]] = {
    **DRAWN,
    "fused_qkv": functools.partial(
        warpsmith.fused_qkv, heads=2, kv_heads=1, head_dim=host_times.COLS // 4
    ),
    "quantized_linear": lambda x, weight, scales, dense, **named: warpsmith.quantized_linear(
        x, weight, scales, **named
    ),
}
Function = Callable[..., tuple[Tensor, ...]]


def functions(machinery: str) -> Any:
    names = [pytest.param(name, id=name) for name in contract.FUNCTIONS]
    assert machinery in contract.MACHINERY
    return pytest.mark.parametrize("name", names)


def as_tuple(out: Any) -> tuple[Tensor, ...]:
    return tuple(o for o in (out if isinstance(out, tuple | list) else (out,)) if o is not None)


def case(name: str, device: str = "cpu") -> tuple[Function, Function, tuple[Tensor, ...]]:
    """Ours and PyTorch's as functions of the tensors that a gradient is taken by, and these."""
    of = host_times.CASES[name]
    args = list(of.args(Inputs(torch.float32, device)))
    places = [
        i
        for i, a in enumerate(args)
        if isinstance(a, Tensor) and a.is_floating_point() and i not in of.constants
    ]

    def by_tensors(function: Callable[..., Any]) -> Function:
        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            given = dict(zip(places, tensors, strict=True))
            return as_tuple(function(*(given.get(i, a) for i, a in enumerate(args))))

        return run

    ours = DRAWN.get(name) or of.ours or getattr(warpsmith, name)
    return by_tensors(ours), by_tensors(of.theirs), tuple(args[i] for i in places)


def scalar(function: Function) -> Callable[..., Tensor]:
    """The squares of all results that have a gradient."""
    return lambda *t: sum(o.square().sum() for o in function(*t) if o.is_floating_point())


def gradients(function: Function, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    leaves = tuple(t.detach().clone().requires_grad_() for t in tensors)
    return torch.autograd.grad(scalar(function)(*leaves), leaves)


def close(found: Any, wanted: Any, rtol: float = 1e-4) -> None:
    """Tensor by tensor, by their size as a whole: transforms may round in another order."""
    for a, b in zip(as_tuple(found), as_tuple(wanted), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        a, b = a.detach(), b.detach()
        scale = float(b.float().norm()) + 1e-6
        assert float((a.float() - b.float()).norm()) <= rtol * scale


def of_batch(tensors: tuple[Tensor, ...], k: int) -> tuple[Tensor, ...]:
    return tuple(t * (1.0 - 0.25 * k) for t in tensors)


def batch(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    pairs = zip(of_batch(tensors, 0), of_batch(tensors, 1), strict=True)
    return tuple(torch.stack(pair) for pair in pairs)


def everything(tensors: tuple[Tensor, ...]) -> tuple[int, ...]:
    return tuple(range(len(tensors)))


@pytest.fixture
def _nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# --- transforms -----------------------------------------------------------------------------------


@functions("grad")
def test_grad(name: str) -> None:
    ours, _, tensors = case(name)
    found = torch.func.grad(scalar(ours), argnums=everything(tensors))(*tensors)
    close(found, gradients(ours, tensors))


@functions("vmap")
def test_vmap(name: str) -> None:
    ours, _, tensors = case(name)
    found = torch.vmap(ours)(*batch(tensors))
    for k in range(2):
        close([o[k] for o in found], ours(*of_batch(tensors, k)))


@functions("vmap(grad)")
def test_vmap_of_grad(name: str) -> None:
    ours, _, tensors = case(name)
    run = torch.func.grad(scalar(ours), argnums=everything(tensors))
    found = torch.vmap(run)(*batch(tensors))
    for k in range(2):
        close([o[k] for o in found], gradients(ours, of_batch(tensors, k)))


@functions("jacrev")
def test_jacrev(name: str) -> None:
    """Some rows of the Jacobian against backward passes of their own."""
    ours, _, tensors = case(name)
    leaf = tensors[0].clone().requires_grad_()
    y = ours(leaf, *tensors[1:])[0].flatten()
    some = torch.tensor(sorted({0, y.numel() // 2, y.numel() - 1}))
    rows = torch.func.jacrev(lambda x: ours(x, *tensors[1:])[0].flatten()[some])(tensors[0])
    for row, k in zip(rows, some, strict=True):
        (wanted,) = torch.autograd.grad(y[k], leaf, retain_graph=True)
        close(row, wanted)


# --- derivatives of other kinds -------------------------------------------------------------------


def second(function: Function, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    leaves = tuple(t.detach().clone().requires_grad_() for t in tensors)
    first = torch.autograd.grad(scalar(function)(*leaves), leaves, create_graph=True)
    found = torch.autograd.grad(sum(g.square().sum() for g in first), leaves, allow_unused=True)
    return tuple(
        torch.zeros_like(t) if g is None else g for g, t in zip(found, leaves, strict=True)
    )


def _refusal(name: str) -> str:
    """What a function says of second derivatives: in its own name, whose other name it is, or in
    PyTorch's words where that serves it on a CPU.
    """
    if name == "scaled_dot_product_attention":
        return "derivative for aten::_scaled_dot_product.* is not implemented"
    called = getattr(warpsmith, name).__name__
    return rf"^{called}: second derivatives are not implemented"


@functions("second")
def test_second_derivatives(name: str) -> None:
    ours, theirs, tensors = case(name)
    if not contract.works("second", name):
        said = _refusal(name)
        with pytest.raises(RuntimeError, match=said):
            second(ours, tensors)
        first = torch.func.grad(scalar(ours))
        twice = torch.func.grad(lambda *t: first(*t).square().sum())
        with pytest.raises(RuntimeError, match=said):
            twice(*tensors)
        return
    if name in DRAWN:  # products with a mask, which PyTorch draws in another way
        kept = tuple(o.detach() for o in ours(*(torch.ones_like(t) for t in tensors)))
        assert kept
        second(ours, tensors)
        return
    close(second(ours, tensors), second(theirs, tensors), 1e-2 if "tf32" in name else 1e-4)


X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
W, V = torch.eye(8), torch.ones(8)
#: Calls that other operators serve than the one of the function's name, by what they are.
OTHERS: dict[str, Callable[[Tensor], Any]] = {
    "gelu by tanh": lambda x: warpsmith.gelu(x, "tanh"),
    "bias_gelu by tanh": lambda x: warpsmith.bias_gelu(x, V, "tanh"),
    "gelu_and_mul by tanh": lambda x: warpsmith.gelu_and_mul(x, X, "tanh"),
    "rms_norm, zero-centred": lambda x: warpsmith.rms_norm(x, V, zero_centered=True),
    "rms_norm of y": lambda x: warpsmith.rms_norm(x, V, memory_efficient=True),
    "layer_norm, zero-centred": lambda x: warpsmith.layer_norm(x, V, zero_centered=True),
    "linear with relu": lambda x: warpsmith.linear(x, W, V, "relu"),
    "linear and a residual": lambda x: warpsmith.linear(x, W, V, "silu", residual=X),
    "linear in steps": lambda x: composed(x, W, V, X, 1.0, "gelu", True),
    "gated_linear in steps": lambda x: _run_composed(x, W, W, V, None, "gelu"),
    "gated_linear with relu": lambda x: warpsmith.gated_linear(x, W, W, activation="relu"),
    "fused_mlp without a gate": lambda x: warpsmith.fused_mlp(x, W, W, activation="gelu"),
    "fused_linear_cross_entropy of rows": lambda x: warpsmith.fused_linear_cross_entropy(
        x, W, torch.arange(4), reduction="none"
    ),
    "cross_entropy of probabilities": lambda x: warpsmith.cross_entropy(x, X.softmax(-1)),
    "embedding in any order": lambda x: warpsmith.embedding(
        x, torch.arange(4), deterministic=False
    ),
}


@pytest.mark.parametrize("call", OTHERS)
def test_second_derivatives_are_refused_by_name(call: str) -> None:
    with pytest.raises(RuntimeError, match=rf"^{call.split()[0].strip(',')}: second derivatives"):
        second(lambda x: as_tuple(OTHERS[call](x)), (X,))


@pytest.mark.parametrize("name", sorted(set(DRAWN) & contract.TWICE))
def test_second_derivatives_of_what_is_dropped(name: str) -> None:
    """By differences of the first."""
    ours, _, tensors = case(name)
    tensors = tuple(t.double() for t in tensors)
    leaves = tuple(t.requires_grad_() for t in tensors)
    assert torch.autograd.gradgradcheck(lambda *t: ours(*t)[0], leaves, fast_mode=True)


@functions("forward")
def test_forward_mode(name: str) -> None:
    ours, _, tensors = case(name)
    tangents = tuple(torch.ones_like(t) for t in tensors)
    with pytest.raises(NotImplementedError, match=r"forward-mode|forward AD"):
        torch.func.jvp(ours, tensors, tangents)


#: Forward over reverse mode, of a function of one tensor.
OVER_REVERSE: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "jvp of grad": lambda f, x: torch.func.jvp(torch.func.grad(f), (x,), (torch.ones_like(x),)),
    "jacfwd of grad": lambda f, x: torch.func.jacfwd(torch.func.grad(f))(x),
    "jvp of vjp": lambda f, x: torch.func.jvp(
        lambda x: torch.func.vjp(f, x)[1](torch.ones(()))[0], (x,), (torch.ones_like(x),)
    ),
}


@pytest.mark.parametrize("how", OVER_REVERSE)
@functions("forward")
def test_forward_over_reverse_is_not_lost(name: str, how: str) -> None:
    ours, _, (x, *rest) = case(name)

    def total(x: Tensor) -> Tensor:
        return sum(o.square().sum() for o in ours(x, *rest) if o.is_floating_point())  # type: ignore[return-value]

    with pytest.raises(NotImplementedError, match=r"forward-mode|forward AD"):
        OVER_REVERSE[how](total, x)


def test_forward_mode_of_an_operator_itself() -> None:
    x = torch.randn(4)
    with pytest.raises(NotImplementedError, match="gelu: forward-mode derivatives"):
        torch.func.jvp(torch.ops.warpsmith.gelu, (x,), (x,))


# --- programs -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_nothing_compiled_before")
@functions("export")
def test_export(name: str) -> None:
    ours, _, tensors = case(name)

    class Module(torch.nn.Module):
        def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
            return ours(*given)

    file = io.BytesIO()
    torch.export.save(torch.export.export(Module(), tensors), file)
    file.seek(0)
    close(torch.export.load(file).module()(*tensors), ours(*tensors))


@pytest.mark.usefixtures("_nothing_compiled_before")
@functions("compile")
def test_compile(name: str) -> None:
    ours, _, tensors = case(name)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    close(compiled(*tensors), ours(*tensors))
    close(gradients(compiled, tensors), gradients(ours, tensors))


@functions("checkpoint")
def test_checkpoint(name: str) -> None:
    ours, _, tensors = case(name)

    def saved(reentrant: bool) -> tuple[Tensor, ...]:
        leaves = tuple(t.detach().clone().requires_grad_() for t in tensors)
        out = checkpoint(ours, *leaves, use_reentrant=reentrant)
        sum(o.square().sum() for o in as_tuple(out)).backward()
        return tuple(t.grad for t in leaves if t.grad is not None)

    wanted = gradients(ours, tensors)
    for reentrant in (False, True):
        close(saved(reentrant), wanted)


@functions("deepcopy")
def test_deepcopy(name: str) -> None:
    ours, _, tensors = case(name)

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.function = host_times.CASES[name].ours or getattr(warpsmith, name)
            self.given = torch.nn.ParameterList([torch.nn.Parameter(t.clone()) for t in tensors])

        def forward(self) -> tuple[Tensor, ...]:
            return ours(*self.given)

    module = Module()
    scalar(lambda: module())().backward()
    copied = copy.deepcopy(module)
    close(copied(), module())
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    close(module(), ours(*tensors))


@functions("inference")
def test_inference(name: str) -> None:
    ours, _, tensors = case(name)
    wanted = gradients(ours, tensors)
    with torch.inference_mode():
        found = ours(*tensors)
    assert not any(o.requires_grad for o in found)
    close(found, ours(*tensors))
    close(gradients(ours, tensors), wanted)


@pytest.mark.skipif(not GPU, reason="needs a GPU")
@functions("graph")
def test_graph(name: str) -> None:
    """Forward and backward in one graph, which follows its inputs."""
    ours, _, tensors = case(name, "cuda")
    leaves = tuple(t.detach().clone().requires_grad_() for t in tensors)

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(scalar(ours)(*leaves), leaves)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    fresh = of_batch(tensors, 1)
    with torch.no_grad():
        for leaf, t in zip(leaves, fresh, strict=True):
            leaf.copy_(t)
    graph.replay()
    close(found, gradients(ours, fresh))


@functions("out")
def test_out(name: str) -> None:
    takes = "out" in inspect.signature(getattr(warpsmith, name)).parameters
    assert takes == contract.works("out", name)
    if not takes:
        return
    of = host_times.CASES[name]
    args = of.args(Inputs(torch.float32, "cpu"))
    run = functools.partial(WRITTEN.get(name) or getattr(warpsmith, name), *args)
    wanted = as_tuple(run())
    outs = tuple(torch.full_like(w, float("nan")) for w in wanted)
    found = run(out=outs if len(outs) > 1 else outs[0])
    assert all(a is b for a, b in zip(as_tuple(found), outs, strict=True))
    close(outs, wanted)


# --- the table ------------------------------------------------------------------------------------


def test_the_table_is_of_what_there_is() -> None:
    assert set(contract.FUNCTIONS) >= contract.TWICE | contract.sharded()
    table = contract.table()
    assert table in PAGE.read_text(), "run `warpsmith report`"
    assert all(f"| `{name}` |" in table for name in contract.FUNCTIONS)
