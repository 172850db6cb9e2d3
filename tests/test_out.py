"""`out=`: results that go into tensors of the caller."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import warpsmith
from conftest import GPU
from warpsmith.core import dispatch, into, messages
from warpsmith.core.catalogue import Op
from warpsmith.proof import testing

DEVICE = "cuda" if GPU else "cpu"
OPS = into.operators()
ops = pytest.mark.parametrize("op", OPS, ids=str)
X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)).to(DEVICE)
W = torch.randn(8, 8, generator=torch.Generator().manual_seed(1)).to(DEVICE)
#: Calls that more than one kernel serves, or PyTorch's beside them.
COMPOSED: dict[str, Callable[..., Any]] = {
    "rms_norm of two dimensions": lambda **o: warpsmith.rms_norm(X, (6, 8), **o),
    "rms_norm, a bias": lambda **o: warpsmith.rms_norm(X, W[0], bias=W[1], **o),
    "rms_norm, zero-centred": lambda **o: warpsmith.rms_norm(X, W[0], zero_centered=True, **o),
    "layer_norm by head": lambda **o: warpsmith.layer_norm(X.view(3, 2, 8), W[:2], **o),
    "layer_norm, zero-centred": lambda **o: warpsmith.layer_norm(
        X, W[0], W[1], zero_centered=True, **o
    ),
    "add of a number": lambda **o: warpsmith.add(X, 2.0, **o),
    "mul of two dtypes": lambda **o: warpsmith.mul(X, X.half(), **o),
    "mul_add of a value": lambda **o: warpsmith.mul_add(X, X, X, value=0.5, **o),
    "relu_squared": lambda **o: warpsmith.relu_squared(X, **o),
    "gelu, tanh": lambda **o: warpsmith.gelu(X, "tanh", **o),
    "a clamped gate": lambda **o: warpsmith.silu_and_mul(X, limit=1.0, **o),
    "linear, a residual": lambda **o: warpsmith.linear(X, W, residual=X, scale=0.5, **o),
    "linear, gelu": lambda **o: warpsmith.linear(X, W, W[0], "gelu", **o),
    "group_norm, its parameters of another kind": lambda **o: warpsmith.group_norm(
        X, 2, W[0].half(), W[1].bfloat16(), activation="silu", **o
    ),
    "gemv_complex of complex numbers": lambda **o: warpsmith.gemv_complex(
        torch.view_as_complex(W.view(8, 4, 2)), torch.view_as_complex(X[0].view(4, 2)), **o
    ),
    "matmul in f32": lambda **o: warpsmith.matmul(X.half(), W.half(), out_dtype="f32", **o),
    "softmax in f32": lambda **o: warpsmith.softmax(X.half(), 0, dtype=torch.float32, **o),
    "linear, a bias of f32": lambda **o: warpsmith.linear(X.half(), W.half(), W[0], **o),
    "gated_linear": lambda **o: warpsmith.gated_linear(X, W, W, W[0], W[1], "relu", **o),
    "fused_mlp": lambda **o: warpsmith.fused_mlp(X, W, W[:4], b_up=W[0], **o),
    "fused_mlp, a gate and a residual": lambda **o: warpsmith.fused_mlp(
        X, W, W, W, W[0], b_gate=W[1], residual=X, **o
    ),
}
#: Calls that a GPU answers by several kernels where rows are few, by the public function.
BY_PARTS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("linear", lambda **o: warpsmith.linear(X, W, W[0], "gelu", residual=X, **o)),
    ("linear", lambda **o: warpsmith.linear(X, W, W[0], "gelu", scale=0.5, **o)),
    ("linear", lambda **o: warpsmith.linear(X, W, W[0], scale=0.5, **o)),
    ("gated_linear", lambda **o: warpsmith.gated_linear(X, W, W, None, W[1], **o)),
    ("gated_linear", lambda **o: warpsmith.gated_linear(X, W, W, W[0], None, "relu", **o)),
    ("fused_mlp", lambda **o: warpsmith.fused_mlp(X, W, W[:4], b_down=W[0, :4], **o)),
    ("fused_mlp", lambda **o: warpsmith.fused_mlp(X, W, W, W, residual=X, **o)),
    ("fused_qkv", lambda **o: warpsmith.fused_qkv(X[None], W, W[0], heads=2, kv_heads=1, head_dim=2,
                                                 **o)),
    ("fused_qkv", lambda **o: warpsmith.fused_qkv(X[None], W, heads=2, kv_heads=1, head_dim=2,
                                                 layout="bhsd", **o)),
)  # fmt: skip


def calls(op: Op, dtype: str, device: str = DEVICE) -> list[tuple[Any, ...]]:
    """A few of the operator's samples."""
    made = [
        dispatch.normalise(op, s.make(op.inputs(dtype, device)))
        for s in op.samples_for(dtype)
        if s.small and not s.huge
    ]
    few = [a for a in made if sum(t.numel() for t in a if isinstance(t, Tensor)) <= 20_000]
    return [a for a in few if into.is_alone(op, a)][:8]


def run(op: Op, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
    found = op.results(getattr(torch.ops.warpsmith, op.name).default(*args))
    return found[: len(into.names_of(op))]


def write(op: Op, args: tuple[Any, ...], outs: tuple[Tensor, ...]) -> None:
    named = dict(zip(into.names_of(op), outs, strict=True))
    getattr(torch.ops.warpsmith, op.name).out(*args, **named)


def filled(like: Tensor, gap: int = 1) -> Tensor:
    """NaN, with gaps between elements."""
    wide = torch.full((*like.shape, gap), float("nan"), device=like.device).to(like.dtype)
    return wide[..., 0]


def same(a: Tensor, b: Tensor) -> bool:
    both = (torch.empty(t.shape, dtype=t.dtype).copy_(t).view(-1).view(torch.uint8) for t in (a, b))
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(*both)


def of_public(op: Op) -> Callable[..., Any]:
    return getattr(warpsmith, messages.called_by(op))


@ops
def test_bits_are_those_of_the_call_without(op: Op) -> None:
    for dtype in op.dtypes:
        for args in calls(op, dtype):
            found = run(op, args)
            for gap in (1, 2):
                outs = tuple(filled(f, gap) for f in found)
                write(op, args, outs)
                assert all(map(same, found, outs)), (dtype, gap)


@ops
def test_the_public_function_hands_out_what_it_was_given(op: Op) -> None:
    parameters = inspect.signature(of_public(op)).parameters
    assert parameters["out"].default is None
    dtype = op.dtypes[0]
    args = next(a for a in calls(op, dtype) if all(o.numel() for o in run(op, a)))
    named = dict(zip(op.argument_names, args, strict=True))
    found = of_public(op)(**named)  # which several kernels may serve
    found = found if isinstance(found, tuple) else (found,)
    outs = tuple(map(filled, found))
    version = outs[0]._version
    out = outs if len(outs) > 1 else outs[0]
    given = of_public(op)(**named, out=out)
    given = given if isinstance(given, tuple) else (given,)
    assert all(a is b for a, b in zip(given, outs, strict=True))
    assert all(map(same, found, outs))
    assert outs[0]._version > version  # which autograd goes by


@ops
def test_a_tensor_of_another_kind_is_refused(op: Op) -> None:
    args = next(a for a in calls(op, op.dtypes[0]) if all(o.numel() for o in run(op, a)))
    found = run(op, args)
    other = torch.float64
    for changed, what in (
        (found[0].new_empty((*found[0].shape, 2)), "shape"),
        (found[0].to(other), "dtype"),
        (torch.empty(found[0].shape, dtype=found[0].dtype, device="meta"), "on"),
    ):
        if what == "on" and GPU:
            continue
        with pytest.raises(RuntimeError, match=f"{op.name}: expected .*out to .*{what}"):
            write(op, args, (changed, *found[1:]))


def test_memory_that_elements_share_is_refused() -> None:
    for out, how in (
        (torch.empty(8, device=DEVICE).expand(6, 8), "that are not expanded"),
        (
            torch.empty(13, device=DEVICE).as_strided((6, 8), (1, 1)),
            "without elements that overlap",
        ),
    ):
        with pytest.raises(RuntimeError, match=f"rms_norm: expected tensors for out {how}"):
            warpsmith.rms_norm(X, out=out)
    both = torch.empty_like(X)
    with pytest.raises(RuntimeError, match="tensors for out that share no memory"):
        warpsmith.add_rms_norm(X, X, out=(both, both))
    q, k = X.new_empty(1, 6, 2, 2), X.new_empty(1, 6, 1, 2)
    with pytest.raises(RuntimeError, match="fused_qkv: expected tensors for out that share no"):
        warpsmith.fused_qkv(X[None], W, heads=2, kv_heads=1, head_dim=2, out=(q, k, k))


@pytest.mark.parametrize("name", COMPOSED)
def test_composed_calls_fill_it_too(name: str) -> None:
    call = COMPOSED[name]
    wanted = call()
    out = filled(wanted)
    assert call(out=out) is out
    assert same(out, wanted)
    with pytest.raises(RuntimeError, match=r"expected .*out to have shape"):
        call(out=wanted.new_empty((*wanted.shape, 2)))


@pytest.mark.parametrize(("name", "call"), BY_PARTS)
@pytest.mark.parametrize("autocast", [False, True])
def test_the_last_of_several_kernels_fills_it(
    name: str, call: Callable[..., Any], autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which autocast leaves alone, too."""
    for module in ("linear_epilogue", "gated_linear", "fused_qkv"):
        monkeypatch.setattr(sys.modules[f"warpsmith.gemm.{module}"], "serves", lambda *_: False)
    wanted = call()
    several = isinstance(wanted, tuple)
    wanted = wanted if several else (wanted,)
    outs = tuple(map(filled, wanted))
    with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
        found = call(out=outs if several else outs[0])
    found = found if several else (found,)
    assert all(a is b for a, b in zip(found, outs, strict=True))
    assert all(map(same, outs, wanted))
    other = (*outs[1:], outs[0].new_empty((*outs[0].shape, 2)))
    with pytest.raises(RuntimeError, match=rf"^{name}: expected .*out to have shape"):
        call(out=other if several else other[0])
    if name != "fused_mlp":
        with pytest.raises(ValueError, match=f"^{name}: expected no variant beside out"):
            call(out=outs if several else outs[0], variant="f32_naive")


def test_arguments_may_be_overwritten() -> None:
    """In place, and where the result lies half over an argument."""
    for run in (warpsmith.gelu, warpsmith.rms_norm, lambda x, **o: warpsmith.matmul(x, W, **o)):
        x = X.clone()
        run(x, out=x)
        assert same(x, run(X))
    row = torch.cat([X, X[:1]])
    wanted = warpsmith.rms_norm(row[:6])
    warpsmith.rms_norm(row[:6], out=row[1:])
    assert same(row[1:], wanted)
    gated = torch.cat([X, 2 * X], 1)
    wanted = warpsmith.silu_and_mul(gated)
    warpsmith.silu_and_mul(gated, out=gated[:, :8])
    assert same(gated[:, :8], wanted)


def test_a_residual_that_is_missing() -> None:
    y = torch.empty_like(X)
    given, h = warpsmith.add_rms_norm(X, None, W[0], out=(y, None))
    assert given is y
    assert h is X
    assert same(y, warpsmith.rms_norm(X, W[0]))
    with pytest.raises(RuntimeError, match="None for h without a residual"):
        warpsmith.add_rms_norm(X, None, out=(y, torch.empty_like(X)))


def test_it_is_not_differentiable() -> None:
    """As PyTorch's: refused where a gradient would be lost."""
    w = W[0].clone().requires_grad_()
    out = torch.empty_like(X)
    for call in (
        lambda: warpsmith.rms_norm(X, w, out=out),
        lambda: warpsmith.rms_norm(X, w, bias=w, out=out),
        lambda: warpsmith.gelu(X, out=torch.empty_like(X, requires_grad=True)),
        lambda: warpsmith.softmax(w.half(), dtype=torch.float32, out=torch.empty_like(w)),
        lambda: warpsmith.fused_mlp(X, W, W, b_down=w, out=out),
        lambda: torch.ops.warpsmith.rms_norm.out(X, w, out=out),
    ):
        with pytest.raises(RuntimeError, match="not differentiable with out"):
            call()
    with torch.no_grad():
        warpsmith.rms_norm(X, w, out=out)
    with torch.inference_mode():
        warpsmith.rms_norm(X, w, out=torch.empty_like(X))
    kept = warpsmith.relu(torch.ones_like(X).requires_grad_())
    saved = kept.square()
    with torch.no_grad():
        warpsmith.relu(X, out=kept)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()


def test_what_does_not_go_with_it() -> None:
    out = torch.empty_like(X)
    with pytest.raises(ValueError, match="rms_norm: expected no variant beside out"):
        warpsmith.rms_norm(X, out=out, variant="f32x4_pack_f32")
    with pytest.raises(ValueError, match="linear: expected neither keep nor amax nor grad_weight"):
        warpsmith.linear(X, W, out=out, keep=True)
    with pytest.raises(ValueError, match="gated_linear: expected neither keep nor amax beside out"):
        warpsmith.gated_linear(X, W, W, out=out, amax=True)
    with pytest.raises(RuntimeError, match="gated_linear: expected no more results than out is"):
        torch.ops.warpsmith.gated_linear.out(X, W, W, keep=True, out=out)
    with pytest.raises(TypeError, match="gelu: expected out to be a tensor, got list"):
        warpsmith.gelu(X, out=[out])
    with pytest.raises(TypeError, match="add_rms_norm: expected out to be two tensors"):
        warpsmith.add_rms_norm(X, X, out=out)
    with pytest.raises(TypeError, match="fused_qkv: expected out to be a tuple of 3 tensors"):
        warpsmith.fused_qkv(X[None], W, heads=2, kv_heads=1, head_dim=2, out=out)
    with pytest.raises(TypeError, match="fused_mlp: expected out to be a tensor, got tuple"):
        warpsmith.fused_mlp(X, W, W, out=(out, out))
    with pytest.raises(RuntimeError, match=r"^gelu: expected no torch\.vmap with out, as"):
        torch.vmap(lambda x: warpsmith.gelu(x, out=out[0]))(X)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", ["rms_norm", "gelu", "linear", "add_rms_norm", "fused_mlp"])
def test_compiled(name: str, dynamic: bool | None) -> None:
    others = {"linear": (W,), "add_rms_norm": (X,), "fused_mlp": (W, W, W)}.get(name, ())

    def run(x: Tensor, *out: Tensor) -> Tensor:
        given = out if len(out) > 1 else out[0]
        y = getattr(warpsmith, name)(x, *others, out=given)
        return 2 * (y[0] if isinstance(y, tuple) else y)

    torch._dynamo.reset()
    backend = "inductor" if GPU else "aot_eager"
    compiled = torch.compile(run, fullgraph=True, backend=backend, dynamic=dynamic)
    outs = tuple(torch.empty_like(X) for _ in range(2 if name == "add_rms_norm" else 1))
    y = compiled(X, *outs)
    wanted = getattr(warpsmith, name)(X, *others)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for a, b in zip(outs, wanted, strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(y, 2 * wanted[0])


@pytest.mark.parametrize("name", ["rms_norm", "silu_and_mul", "linear"])
def test_pytorch_checks_the_overload(name: str) -> None:
    args = (X, W) if name == "linear" else (X,)
    out = torch.empty_like(getattr(warpsmith, name)(*args))
    overload = getattr(torch.ops.warpsmith, name).out
    torch.library.opcheck(overload, args, {"out": out})


@pytest.mark.gpu
@ops
def test_kernels_write_there_themselves(op: Op) -> None:
    """No memory is allocated but what the call without `out` does beside its results, and a graph
    that is replayed writes there again.
    """
    dtype = op.dtypes[0]
    args = next(a for a in calls(op, dtype) if all(o.numel() for o in run(op, a)))
    found = run(op, args)
    outs = tuple(map(filled, found))

    def allocations(call: Callable[[], Any]) -> int:
        call()
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        kept = call()
        after = torch.cuda.memory_stats()["allocation.all.allocated"]
        del kept
        return int(after - before)

    plain = allocations(lambda: run(op, args))
    assert allocations(lambda: write(op, args, outs)) == plain - len(outs)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        write(op, args, outs)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        write(op, args, outs)
    for out in outs:
        out.copy_(filled(out))
    graph.replay()
    torch.cuda.synchronize()
    assert all(map(same, found, outs))


@pytest.mark.gpu
@ops
def test_kernels_against_the_reference(op: Op) -> None:
    """At all dtypes, into contiguous tensors and into columns of wider ones."""
    for dtype in op.dtypes:
        for args in calls(op, dtype)[:3]:
            for gap in (1, 2):
                outs = tuple(filled(f, gap) for f in run(op, args))
                write(op, args, outs)
                packed = tuple(o.contiguous() for o in outs)
                promised = testing.promised(op, args)[: len(outs)]
                laid = tuple(
                    torch.empty_strided(p.shape, p.stride(), dtype=p.dtype, device=DEVICE).copy_(o)
                    for o, p in zip(packed, promised, strict=True)
                )
                laid += (None,) * (len(op.outputs) - len(outs))
                testing.assert_matches(op, laid if len(laid) > 1 else laid[0], args)
