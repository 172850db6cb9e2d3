"""Norms as PyTorch's functions take their arguments, and what models change about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import warpsmith

HALF = torch.bfloat16
X = torch.randn(4, 6, 16, generator=torch.Generator().manual_seed(0))
X2 = torch.randn(4, 6, 16, generator=torch.Generator().manual_seed(5))
W, B = (torch.randn(16, generator=torch.Generator().manual_seed(k)) for k in (1, 2))
W2, B2 = (torch.randn(6, 16, generator=torch.Generator().manual_seed(k)) for k in (3, 4))
EPS = torch.finfo(torch.float32).eps

Call = Callable[[], Any]
PAIRS: dict[str, tuple[Call, Call]] = {
    "rms, the shape": (
        lambda: warpsmith.rms_norm(X, (16,)),
        lambda: F.rms_norm(X, (16,), None, 1e-6),
    ),
    "rms, a number": (lambda: warpsmith.rms_norm(X, 16, W), lambda: F.rms_norm(X, (16,), W, 1e-6)),
    "rms, all by position": (
        lambda: warpsmith.rms_norm(X, [16], W, 1e-3),
        lambda: F.rms_norm(X, [16], W, 1e-3),
    ),
    "rms, by keyword": (
        lambda: warpsmith.rms_norm(X, (16,), weight=W, eps=None),
        lambda: F.rms_norm(X, (16,), weight=W),
    ),
    "rms, two dimensions": (
        lambda: warpsmith.rms_norm(X, normalized_shape=(6, 16), weight=W2),
        lambda: F.rms_norm(X, (6, 16), W2, 1e-6),
    ),
    "rms, no eps": (lambda: warpsmith.rms_norm(X, W, None), lambda: F.rms_norm(X, (16,), W, EPS)),
    "rms, no eps in 16 bits": (
        lambda: warpsmith.rms_norm(X.to(HALF), W.to(HALF), None),
        lambda: F.rms_norm(X.to(HALF), (16,), W.to(HALF)),
    ),
    "rms, a bias": (
        lambda: warpsmith.rms_norm(X, W, bias=B),
        lambda: F.rms_norm(X, (16,), W, 1e-6) + B,
    ),
    "rms, a weight for each head": (
        lambda: warpsmith.rms_norm(X, W2),
        lambda: F.rms_norm(X, (16,), None, 1e-6) * W2,
    ),
    "rms, a bf16 weight beside f32": (
        lambda: warpsmith.rms_norm(X, W.to(HALF)),
        lambda: F.rms_norm(X, (16,), W.to(HALF).float(), 1e-6),
    ),
    "rms, a bf16 weight beside f16": (
        lambda: warpsmith.rms_norm(X.half(), W.to(HALF)),
        lambda: F.rms_norm(X.half().float(), (16,), W.to(HALF).float(), 1e-6).half(),
    ),
    "rms, no eps, of little": (
        lambda: warpsmith.rms_norm(X.to(HALF) / 64, W.to(HALF), None),
        lambda: F.rms_norm(X.to(HALF) / 64, (16,), W.to(HALF)),
    ),
    "rms, no eps, of little, as a module": (
        lambda: warpsmith.nn.RMSNorm(16).half()(X.half() / 64),
        lambda: torch.nn.RMSNorm(16).half()(X.half() / 64),
    ),
    "add rms, no eps, of little": (
        lambda: warpsmith.add_rms_norm(X.to(HALF) / 64, X.to(HALF) / 64, None, None)[0],
        lambda: F.rms_norm(X.to(HALF) / 32, (16,)),
    ),
    "dropout add rms, no eps, of little": (
        lambda: warpsmith.dropout_add_rms_norm(X / 4096, X / 4096, None, eps=None)[0],
        lambda: F.rms_norm(X / 2048, (16,)),
    ),
    "add rms, no eps, as a module": (
        lambda: warpsmith.nn.AddRMSNorm(16, eps=None)(X.to(HALF) / 64, X.to(HALF) / 64)[0],
        lambda: F.rms_norm(X.to(HALF) / 32, (16,)),
    ),
    "rms, around zero, of two dimensions": (
        lambda: warpsmith.rms_norm(X, (6, 16), W2, zero_centered=True),
        lambda: F.rms_norm(X, (6, 16), 1 + W2, 1e-6),
    ),
    "rms, f64 with no eps": (
        lambda: warpsmith.rms_norm(X.double(), None, None),
        lambda: F.rms_norm(X.double(), (16,)),
    ),
    "layer, the shape": (lambda: warpsmith.layer_norm(X, (16,)), lambda: F.layer_norm(X, (16,))),
    "layer, all by position": (
        lambda: warpsmith.layer_norm(X, (16,), W, B, 1e-3),
        lambda: F.layer_norm(X, (16,), W, B, 1e-3),
    ),
    "layer, by keyword": (
        lambda: warpsmith.layer_norm(X, 16, bias=B, weight=W, eps=1e-3),
        lambda: F.layer_norm(X, (16,), W, B, 1e-3),
    ),
    "layer, as before": (
        lambda: warpsmith.layer_norm(X, W, B, 1e-3),
        lambda: F.layer_norm(X, (16,), W, B, 1e-3),
    ),
    "layer, no eps": (
        lambda: warpsmith.layer_norm(X, W, eps=None),
        lambda: F.layer_norm(X, (16,), W),
    ),
    "layer, two dimensions": (
        lambda: warpsmith.layer_norm(X, (6, 16), W2, B2),
        lambda: F.layer_norm(X, (6, 16), W2, B2),
    ),
    "layer, strides that do not join": (
        lambda: warpsmith.layer_norm(X.transpose(0, 1), (4, 16)),
        lambda: F.layer_norm(X.transpose(0, 1), (4, 16)),
    ),
    "layer, a weight for each head": (
        lambda: warpsmith.layer_norm(X, W2),
        lambda: F.layer_norm(X, (16,)) * W2,
    ),
    "layer, parameters of two dtypes": (
        lambda: warpsmith.layer_norm(X, W.to(HALF), B),
        lambda: F.layer_norm(X, (16,), W.to(HALF).float(), B),
    ),
    "add rms, a bf16 residual beside f16": (
        lambda: warpsmith.add_rms_norm(X.half(), X.to(HALF), W.half())[1],
        lambda: X.half() + X.to(HALF),
    ),
    "add layer, a bf16 residual and weight beside f32": (
        lambda: warpsmith.add_layer_norm(X, X.to(HALF), W.to(HALF), B)[0],
        lambda: F.layer_norm(X + X.to(HALF), (16,), W.to(HALF).float(), B),
    ),
    "dropout add rms, a bf16 residual beside f16": (
        lambda: warpsmith.dropout_add_rms_norm(X.half(), X.to(HALF), W.to(HALF))[1],
        lambda: X.half() + X.to(HALF),
    ),
    "add rms, a bias": (
        lambda: warpsmith.add_rms_norm(X, X2, W, bias=B)[0],
        lambda: F.rms_norm(X + X2, (16,), W, 1e-6) + B,
    ),
    "add rms, a bias and no residual": (
        lambda: warpsmith.add_rms_norm(X, None, W, bias=B)[0],
        lambda: F.rms_norm(X, (16,), W, 1e-6) + B,
    ),
    "dropout add rms, a bias": (
        lambda: warpsmith.dropout_add_rms_norm(X, X2, W, bias=B)[0],
        lambda: F.rms_norm(X + X2, (16,), W, 1e-6) + B,
    ),
    "group, parameters of two dtypes": (
        lambda: warpsmith.group_norm(X, 2, W[:6].to(HALF), B[:6]),
        lambda: F.group_norm(X, 2, W[:6].to(HALF).float(), B[:6]),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_as_in_pytorch(name: str) -> None:
    ours, theirs = (call() for call in PAIRS[name])
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    torch.testing.assert_close(ours, theirs)


def test_the_rounding_of_llama() -> None:
    """As Hugging Face writes it, bit for bit."""
    x, weight = X.to(HALF), W.to(HALF)
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    wanted = weight * normed.to(HALF)
    assert torch.equal(warpsmith.rms_norm(x, weight, rounding="before_weight"), wanted)
    once = (normed * weight.float()).to(HALF)
    assert not torch.equal(wanted, once)
    assert torch.equal(warpsmith.rms_norm(x, weight), once)


@pytest.mark.parametrize("op", ["add_rms_norm", "dropout_add_rms_norm"])
@pytest.mark.parametrize("zero_centered", [False, True])
def test_the_rounding_of_llama_behind_a_residual(op: str, zero_centered: bool) -> None:
    """As Hugging Face writes it, bit for bit: into tensors of the caller, too."""
    function = getattr(warpsmith, op)
    x, residual, weight = X.to(HALF), X2.to(HALF), W.to(HALF)
    h = x + residual
    wide = h.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    factor = 1.0 + weight if zero_centered else weight
    given = {"zero_centered": zero_centered, "rounding": "before_weight"}
    y, found = function(x, residual, weight, **given)
    assert torch.equal(y, factor * normed.to(HALF))
    assert torch.equal(found, h)
    assert not torch.equal(function(x, residual, weight, zero_centered=zero_centered)[0], y)
    out = torch.empty_like(y), torch.empty_like(h)
    into = function(x, residual, weight, **given, out=out)
    assert all(a is b for a, b in zip(into, out, strict=True))
    assert torch.equal(out[0], y)
    assert torch.equal(out[1], h)
    trained = weight.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(
        function(x, residual, trained, **given)[0].float().sum(), trained
    )
    torch.testing.assert_close(gradient, normed.to(HALF).float().sum((0, 1)).to(HALF))
    with pytest.raises(RuntimeError, match=f"{op}: not differentiable with out"):
        function(x, residual, trained, **given, out=out)
    with pytest.raises(ValueError, match=f"{op}: expected rounding to be"):
        function(x, residual, weight, rounding="twice")


def test_gradients_reach_every_parameter() -> None:
    x, w, b = (t.clone().requires_grad_() for t in (X, W2, B2))
    ours = torch.autograd.grad(warpsmith.layer_norm(x, (6, 16), w, b).square().sum(), (x, w, b))
    theirs = torch.autograd.grad(F.layer_norm(x, (6, 16), w, b).square().sum(), (x, w, b))
    torch.testing.assert_close(ours, theirs)
    narrow = W.to(HALF).requires_grad_()
    y = warpsmith.rms_norm(x, narrow, bias=B)
    assert torch.autograd.grad(y.sum(), narrow)[0].dtype == HALF


def test_it_compiles_in_either_order() -> None:
    for order in (((16,), W, 1e-6), (W, 1e-6)):
        found = torch.compile(
            lambda x, order=order: warpsmith.rms_norm(x, *order),
            fullgraph=True,
            backend="aot_eager",
        )(X)
        torch.testing.assert_close(found, warpsmith.rms_norm(X, W))


def test_what_is_refused() -> None:
    with pytest.raises(RuntimeError, match="rms_norm: expected x to end in normalized_shape"):
        warpsmith.rms_norm(X, (6,))
    with pytest.raises(RuntimeError, match="layer_norm: expected weight to have normalized_shape"):
        warpsmith.layer_norm(X, (6, 16), W)
    with pytest.raises(TypeError, match="rms_norm: got normalized_shape twice"):
        warpsmith.rms_norm(X, (16,), normalized_shape=(16,))
    with pytest.raises(TypeError, match="rms_norm takes x"):
        warpsmith.rms_norm(X, (16,), W, 1e-6, 1.0)
    with pytest.raises(ValueError, match="rms_norm: expected rounding to be"):
        warpsmith.rms_norm(X, W, rounding="twice")
    with pytest.raises(RuntimeError, match="rms_norm: expected weight to have shape"):
        warpsmith.rms_norm(X, W2[:5])
    with pytest.raises(RuntimeError, match="rms_norm: expected weight to have dtype"):
        warpsmith.rms_norm(X, W.double())
