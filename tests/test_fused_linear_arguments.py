"""The linear layer and its loss in one, with what `cross_entropy` and language models ask of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import warpsmith

ROWS, DIM, CLASSES = 21, 16, 37
X = torch.randn(3, 7, DIM, generator=torch.Generator().manual_seed(0))
W = torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(1)) / 2
B = torch.randn(CLASSES, generator=torch.Generator().manual_seed(2))
TARGET = torch.randint(0, CLASSES, (3, 7), generator=torch.Generator().manual_seed(3))
TARGET[1, 2] = -100
OF_CLASS = torch.rand(CLASSES, generator=torch.Generator().manual_seed(4))
OF_TOKEN = torch.rand(3, 7, generator=torch.Generator().manual_seed(5))
fused = warpsmith.fused_linear_cross_entropy


def theirs(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    reduction: str = "mean",
    class_weight: Tensor | None = None,
    token_weight: Tensor | None = None,
    softcap: float | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    logits = F.linear(x, weight, bias)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    rows, at = logits.flatten(0, -2), target.flatten()
    kept = at >= 0
    loss = F.cross_entropy(rows, at, reduction="none", label_smoothing=label_smoothing)
    loss = loss + z_loss * rows.logsumexp(-1).square() * kept
    factor = kept.to(loss.dtype)
    if class_weight is not None:
        factor = factor * class_weight[at.clamp(min=0)]
    if token_weight is not None:
        factor = factor * token_weight.flatten()
    loss = loss * factor
    if reduction == "none":
        return loss.view(target.shape)
    return loss.sum() if reduction == "sum" else loss.sum() / factor.sum()


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "smoothed": {"label_smoothing": 0.1, "z_loss": 1e-2},
    "a soft cap": {"softcap": 3.0},
    "weights of classes": {"class_weight": OF_CLASS},
    "weights of tokens": {"token_weight": OF_TOKEN, "z_loss": 1e-2},
    "all": {"class_weight": OF_CLASS, "token_weight": OF_TOKEN, "softcap": 3.0},
}


def results(function: Callable[..., Tensor], **given: Any) -> tuple[Tensor, ...]:
    x, w, b = (t.clone().requires_grad_() for t in (X, W, B))
    loss = function(x, w, TARGET, b, **given)
    factors = torch.arange(1.0, loss.numel() + 1).view(loss.shape)
    return loss, *torch.autograd.grad((loss * factors).sum(), (x, w, b))


@pytest.mark.parametrize("chunk_rows", [None, 8])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", CASES)
def test_as_written_out(name: str, reduction: str, chunk_rows: int | None) -> None:
    given = CASES[name] | {"reduction": reduction}
    found = results(fused, chunk_rows=chunk_rows, **given)
    torch.testing.assert_close(found, results(theirs, **given), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_weights_in_f32_beside_16_bits(reduction: str) -> None:
    x, w = X.bfloat16().requires_grad_(), W.clone().requires_grad_()
    b = B.clone().requires_grad_()
    loss = fused(x, w, TARGET, b, reduction=reduction, chunk_rows=8)
    dx, dw, db = torch.autograd.grad(loss.sum(), (x, w, b))
    assert (dx.dtype, dw.dtype, db.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    wide = [t.detach().float().requires_grad_() for t in (x, w.bfloat16(), b.bfloat16())]
    wanted = theirs(wide[0], wide[1], TARGET, wide[2], reduction=reduction)
    torch.testing.assert_close(loss, wanted, rtol=2e-2, atol=2e-2)
    grads = torch.autograd.grad(wanted.sum(), wide)
    for a, g in zip((dx, dw, db), grads, strict=True):
        assert float((a.float() - g).norm()) <= 2e-2 * float(g.norm())
    with torch.autocast("cpu", torch.bfloat16):
        again = fused(X.clone().requires_grad_(), w, TARGET, b, reduction=reduction, chunk_rows=8)
    torch.testing.assert_close(again, loss)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_one_row_alone(reduction: str) -> None:
    given = {"reduction": reduction, "token_weight": OF_TOKEN[0, 0]}
    x, w = X[0, 0].clone().requires_grad_(), W.clone().requires_grad_()
    loss = fused(x, w, TARGET[0, 0], **given)
    wanted = theirs(
        X[:1, :1], W, TARGET[:1, :1], reduction=reduction, token_weight=OF_TOKEN[:1, :1]
    )
    assert loss.shape == ()
    torch.testing.assert_close(loss, wanted.reshape(()))
    loss.backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_a_soft_cap_is_in_f32(reduction: str) -> None:
    """Near the cap bf16 has steps of 1/8, of which the loss of each row would have a share. What is
    left of 16 bits is in the logits, as products have them, and in their gradient.
    """
    rows, classes, cap = 130, 1000, 30.0
    x, w = (
        3 * torch.eye(rows),
        8 * torch.randn(classes, rows, generator=torch.Generator().manual_seed(7)),
    )
    x, w = x.bfloat16(), w.bfloat16()
    target = torch.arange(rows) * 7
    logits = (x @ w.t()).double()  # of one term each
    leaf = logits.requires_grad_()
    wanted = F.cross_entropy(cap * torch.tanh(leaf / cap), target, reduction=reduction)
    (slope,) = torch.autograd.grad(wanted.sum(), leaf)
    x.requires_grad_()
    found = fused(x, w, target, softcap=cap, reduction=reduction)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=3e-5)
    (dx,) = torch.autograd.grad(found.sum(), x)
    exact = slope @ w.double()
    # each factor of a sum is rounded to 8 bits, and so is the sum
    bound = 2**-8 * (slope.abs() @ w.double().abs() + exact.abs())
    assert ((dx.double() - exact).abs() <= bound).all()


def test_a_loss_per_row_in_the_machinery() -> None:
    def rows(x: Tensor, w: Tensor) -> Tensor:
        return fused(x, w, TARGET, reduction="none", softcap=3.0, chunk_rows=8)

    def gradients(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
        return torch.autograd.grad(function(x, w).square().sum(), (x, w))

    wanted = gradients(lambda x, w: theirs(x, w, TARGET, reduction="none", softcap=3.0))
    torch._dynamo.reset()
    compiled = torch.compile(rows, fullgraph=True, backend="aot_eager")
    saved = lambda *args: checkpoint(rows, *args, use_reentrant=False)  # noqa: E731
    for way in (rows, compiled, saved):
        torch.testing.assert_close(gradients(way), wanted, rtol=1e-4, atol=1e-5)
    found = torch.func.grad(lambda x, w: rows(x, w).square().sum(), argnums=(0, 1))(X, W)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(rows(x, W).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="not implemented"):
        first.sum().backward()


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="expected no class_weight beside label_smoothing"):
        fused(X, W, TARGET, class_weight=OF_CLASS, label_smoothing=0.1)
    with pytest.raises(RuntimeError, match=r"expected class_weight to have shape \(37,\)"):
        fused(X, W, TARGET, class_weight=OF_CLASS[1:])
    with pytest.raises(RuntimeError, match="expected token_weight to have the shape of target"):
        fused(X, W, TARGET, token_weight=OF_TOKEN[1:])
    with pytest.raises(RuntimeError, match="expected token_weight that requires no gradient"):
        fused(X, W, TARGET, token_weight=OF_TOKEN.clone().requires_grad_())
    with pytest.raises(ValueError, match="expected softcap to be above 0"):
        fused(X, W, TARGET, softcap=-1.0)
