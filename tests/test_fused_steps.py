"""Products of layers that a GPU computes in several steps: what `which` says of them, and that the
steps refuse what the kernels would.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import warpsmith
from test_public import Calls
from warpsmith.core import catalogue, dispatch, public_calls
from warpsmith.core.catalogue import Bad

F32 = torch.float32


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions take tensors on the CPU and without content for those of a GPU."""
    for name in ("linear_epilogue", "fused_qkv"):
        monkeypatch.setattr(sys.modules[f"warpsmith.gemm.{name}"], "is_on_gpu", lambda _: True)


# --- what serves ----------------------------------------------------------------------------------


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


W, W_ODD, BIAS, WIDE = empty(64, 64), empty(64, 63), empty(64), empty(64, dtype=F32)
HEADS = {"heads": 2, "kv_heads": 1, "head_dim": 16}
Call = tuple[str, tuple[Any, ...], dict[str, Any]]

#: A call of so many rows, and what it comes to: of up to 64, and of more.
CALLS: dict[str, tuple[Callable[[int], Call], str, str]] = {
    "linear": (lambda m: ("linear", (empty(m, 64), W, BIAS, "gelu"), {}), "linear", "linear"),
    "linear that keeps": (
        lambda m: ("linear", (empty(m, 64).requires_grad_(), W, None, "gelu"), {}),
        "linear",
        "linear_epilogue",
    ),
    "linear, f32": (
        lambda m: ("linear", (empty(m, 64, dtype=F32), empty(64, 64, dtype=F32)), {"scale": 2.0}),
        "matmul",
        "matmul",
    ),
    "residual": (
        lambda m: ("linear", (empty(m, 64), W), {"residual": empty(m, 64)}),
        "linear",
        "linear_epilogue",
    ),
    "residual, invariant": (
        lambda m: (
            ("linear", (empty(m, 64), W), {"residual": W[:m], "batch_invariant": True})
            if m <= 64
            else ("linear", (empty(m, 64), W), {"scale": 2.0, "batch_invariant": True})
        ),
        "linear",
        "matmul",
    ),
    "residual, out": (
        lambda m: ("linear", (empty(m, 64), W, None, "relu"), {"residual": empty(m, 64)} | out(m)),
        "linear add",
        "linear_epilogue",
    ),
    "keep, amax": (
        lambda m: ("linear", (empty(m, 64), W, BIAS, "silu"), {"keep": True, "amax": True}),
        "linear silu",
        "linear_epilogue",
    ),
    "scale, f32 bias": (
        lambda m: ("linear", (empty(m, 64), W, WIDE, "gelu_tanh"), {"scale": 0.5}),
        "matmul gelu_tanh",
        "linear_epilogue",
    ),
    "buffer": (
        lambda m: (
            "linear",
            (empty(m, 64), W, None, "silu"),
            {"grad_weight": empty(64, 64, dtype=F32)},
        ),
        "linear silu",
        "linear_epilogue",
    ),
    "gate": (
        lambda m: ("gated_linear", (empty(m, 64), W, W), {"amax": True}),
        "linear linear silu_and_mul",
        "gated_linear",
    ),
    "gate, odd k": (
        lambda m: ("gated_linear", (empty(m, 63), W_ODD, W_ODD, WIDE), {}),
        "linear linear silu_and_mul",
        "linear linear silu_and_mul",
    ),
    "gate of relu": (
        lambda m: ("gated_linear", (empty(m, 64), W, W, None, None, "relu"), {}),
        "linear linear",
        "gated_linear",
    ),
    "gate of relu, out": (
        lambda m: ("gated_linear", (empty(m, 64), W, W, None, None, "relu"), out(m)),
        "linear linear mul",
        "gated_linear",
    ),
    "heads": (
        lambda m: ("fused_qkv", (empty(1, m, 64), W), HEADS),
        "linear",
        "fused_qkv",
    ),
    "odd heads": (
        lambda m: ("fused_qkv", (empty(1, m, 64), W, WIDE), HEADS | {"heads": 14, "head_dim": 4}),
        "linear",
        "linear",
    ),
    "mlp": (
        lambda m: ("fused_mlp", (empty(m, 64), W, W), {"b_up": BIAS, "residual": empty(m, 64)}),
        "linear linear",
        "linear_epilogue linear_epilogue",
    ),
    "mlp, biases of f32": (
        lambda m: ("fused_mlp", (empty(m, 64), W, W), {"b_up": WIDE, "b_down": WIDE}),
        "matmul silu matmul",
        "linear_epilogue linear_epilogue",
    ),
    "mlp, gate, biases of f32": (
        lambda m: ("fused_mlp", (empty(m, 64), W, W, W), {"b_up": WIDE, "b_gate": WIDE}),
        "linear linear silu_and_mul linear",
        "gated_linear linear_epilogue",
    ),
}


def out(m: int) -> dict[str, Any]:
    return {"out": empty(m, 64)}


def described(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """A call, with the shapes and dtypes of its tensors."""
    args = dispatch.normalise(catalogue.get(name), args)
    told = ((tuple(a.shape), a.dtype) if isinstance(a, Tensor) else a for a in args)
    return name, *told


@pytest.mark.parametrize("rows", [16, 512])
@pytest.mark.parametrize("label", CALLS)
def test_which_says_what_functions_call(as_on_a_gpu: None, label: str, rows: int) -> None:
    make, few, many = CALLS[label]
    name, args, named = make(rows)
    with Calls() as calls:
        getattr(warpsmith, name)(*args, **named)
    wanted = (few if rows <= 64 else many).split()
    assert [n for n, _ in calls.seen] == wanted
    parts = public_calls.parts(name, args, named, 90)
    choice = dispatch.which(name, *args, sm=90, **named)
    if parts is None:  # the operator of the name, as it is given
        assert wanted == [name]
        assert choice == dispatch.which(name, *calls.seen[0][1], sm=90)
        return
    made = [described(part.op, part.args) for part in parts if "." not in part.op]
    assert made == [described(*call) for call in calls.seen]
    if len(parts) > 1:
        assert choice.implementation == "composite"
        assert choice.reason.count("; ") >= len(parts) - 1
    else:
        assert choice == dispatch.which(parts[0].op, *parts[0].args, sm=90)


def test_arguments_in_the_operator_s_order_are_the_operator_s() -> None:
    args = (empty(16, 64), W, W, None, None, "silu", False, False)
    choice = dispatch.which("gated_linear", *args, sm=90)
    assert choice.variant is not None
    assert choice.variant.op.name == "gated_linear"


def test_a_cpu_asks_the_operator() -> None:
    x, w = torch.ones(3, 8), torch.ones(8, 8)
    for name, named in (("linear", {"residual": x}), ("gated_linear", {"w_up": w})):
        assert dispatch.which(name, x, w, **named).implementation == "reference"


def test_no_constant_holds_verified_kernels_back() -> None:
    """Whether kernels are proven is said by the marks of rungs, and nowhere else."""
    constants = []
    for path in Path(warpsmith.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                names = (t.id for t in node.targets if isinstance(t, ast.Name))
                constants += [f"{path.name}: {n}" for n in names if "proven" in n.lower()]
    assert not constants


# --- what is refused ------------------------------------------------------------------------------


def errors_of(name: str) -> list[Any]:
    bad = [b for b in catalogue.get(name).errors if not b.cuda_only and b.variant is None]
    return [pytest.param(name, b, id=f"{name}-{b.label}") for b in bad]


@pytest.mark.parametrize(
    ("name", "bad"),
    [*errors_of("linear_epilogue"), *errors_of("gated_linear"), *errors_of("fused_qkv")],
)
def test_steps_refuse_what_the_kernel_does(as_on_a_gpu: None, name: str, bad: Bad) -> None:
    op = catalogue.get(name)
    given = dict(zip(op.argument_names, bad.make(op.inputs("f32")), strict=False))
    called = "linear" if name == "linear_epilogue" else name
    message = bad.message.replace(name, called, 1)
    with pytest.raises(bad.error, match=f"^{message}"):
        getattr(warpsmith, called)(**given)
    if called == "linear":
        with pytest.raises(bad.error, match=f"^{message}"):
            warpsmith.linear(**given, batch_invariant=True)


def drawn(*shape: int) -> Tensor:
    return torch.ones(shape)


X, V = drawn(3, 4), drawn(5, 4)
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "scale": (lambda: warpsmith.linear(X, V, scale="2"), "linear: expected scale to be a number"),
    "residual": (
        lambda: warpsmith.linear(X, V, residual=[1]),
        "linear: expected residual to be a tensor or None, got list",
    ),
    "keep": (
        lambda: warpsmith.linear(X, V, scale=2.0, keep="yes"),
        "linear: expected keep to be a bool, got str",
    ),
    "activation": (
        lambda: warpsmith.linear(X, V, None, ["relu"], scale=2.0),
        "linear: expected activation to be a string, got list",
    ),
    "batch_invariant": (
        lambda: warpsmith.linear(X, V, scale=2.0, batch_invariant="yes"),
        "linear: expected batch_invariant to be a bool, got str",
    ),
    "no weight": (
        lambda: warpsmith.linear(X, None, scale=2.0, batch_invariant=True),
        "linear: expected weight to be a tensor, got None",
    ),
    "another k": (
        lambda: warpsmith.linear(X, drawn(5, 3), scale=2.0),
        r"linear: cannot multiply shapes \(3, 4\) and \(5, 3\) transposed",
    ),
    "a bias of f64 beside f32": (
        lambda: warpsmith.linear(X, V, drawn(5).double(), scale=2.0),
        "linear: expected bias to have dtype torch.float32 like x, got torch.float64",
    ),
    "no buffer": (
        lambda: warpsmith.linear(X, V, grad_weight=[1]),
        "linear: expected grad_weight to be a tensor or None, got list",
    ),
    "a residual beside a buffer": (
        lambda: warpsmith.linear(X, V, residual=drawn(5), grad_weight=torch.zeros(5, 4)),
        r"linear: expected residual to have shape \(3, 5\)",
    ),
    "no w_up": (
        lambda: warpsmith.gated_linear(X, V, None),
        "gated_linear: expected w_up to be a tensor, got None",
    ),
    "b_up": (
        lambda: warpsmith.gated_linear(X, V, V, b_up=[1]),
        "gated_linear: expected b_up to be a tensor or None, got list",
    ),
    "heads": (
        lambda: warpsmith.fused_qkv(drawn(2, 3, 4), drawn(16, 4), heads=2.0, head_dim=4),
        "fused_qkv: expected heads to be a whole number, got float",
    ),
    "head_dim": (
        lambda: warpsmith.fused_qkv(drawn(2, 3, 4), drawn(16, 4), heads=2, head_dim="4"),
        "fused_qkv: expected head_dim to be a whole number, got str",
    ),
    "residual of an mlp": (
        lambda: warpsmith.fused_mlp(X, V, V.t(), residual=drawn(4)),
        r"fused_mlp: expected residual to have shape \(3, 4\)",
    ),
    "biases of an mlp": (
        lambda: warpsmith.fused_mlp(X, V, V.t(), b_down=[1]),
        "fused_mlp: expected b_down to be a tensor or None, got list",
    ),
    "activation of an mlp": (
        lambda: warpsmith.fused_mlp(X, V, V.t(), activation=3),
        "fused_mlp: expected activation to be a string, got int",
    ),
}


@pytest.mark.parametrize("label", WRONG)
def test_steps_name_what_is_wrong(as_on_a_gpu: None, label: str) -> None:
    call, message = WRONG[label]
    with pytest.raises((RuntimeError, TypeError), match=f"^{message}"):
        call()


@pytest.mark.parametrize("dynamic", [False, True])
def test_steps_compile_whole(as_on_a_gpu: None, dynamic: bool) -> None:
    def step(x: Tensor, w: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
        y = warpsmith.linear(x, w, None, "silu", residual=residual, keep=True)
        q, k, v = warpsmith.fused_qkv(x, w, heads=2, kv_heads=1, head_dim=4)
        return *y, q, k, v, warpsmith.fused_mlp(x, w, w.t(), w)

    args = torch.randn(2, 3, 4), torch.randn(16, 4), torch.randn(2, 3, 16)
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for ours, wanted in zip(compiled(*args), step(*args), strict=True):
        torch.testing.assert_close(ours, wanted)
