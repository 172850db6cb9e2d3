"""Losses with the arguments that PyTorch's take, and with what language models ask of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import warpsmith

ROWS, CLASSES = 6, 5
LOGITS = 3 * torch.randn(ROWS, CLASSES, generator=torch.Generator().manual_seed(0))
TARGET = torch.tensor([0, 4, -100, 2, 2, 1])
WEIGHT = torch.tensor([0.5, 2.0, 1.0, 0.0, 3.0])
SHARES = torch.randn(ROWS, CLASSES, generator=torch.Generator().manual_seed(1)).softmax(-1)
CUBE = torch.randn(2, CLASSES, 3, 4, generator=torch.Generator().manual_seed(2))
PLACES = torch.randint(0, CLASSES, (2, 3, 4), generator=torch.Generator().manual_seed(3))

REDUCTIONS = ("mean", "sum", "none")
#: Logits, target and what else is given.
CASES: dict[str, tuple[Tensor, Tensor, dict[str, Any]]] = {
    "class weights": (LOGITS, TARGET, {"weight": WEIGHT}),
    "class weights, smoothed": (LOGITS, TARGET, {"weight": WEIGHT, "label_smoothing": 0.1}),
    "probabilities": (LOGITS, SHARES, {}),
    "probabilities, smoothed": (LOGITS, SHARES, {"label_smoothing": 0.2}),
    "probabilities and weights": (LOGITS, SHARES, {"weight": WEIGHT, "label_smoothing": 0.2}),
    "one row": (LOGITS[0], TARGET[0], {}),
    "one row of probabilities": (LOGITS[0], SHARES[0], {}),
    "images": (CUBE, PLACES, {"ignore_index": 2}),
    "images of probabilities": (CUBE, CUBE.softmax(1), {"weight": WEIGHT}),
    "images and weights": (CUBE, PLACES, {"weight": WEIGHT, "label_smoothing": 0.1}),
}


def gradients(function: Callable[..., Tensor], logits: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logits.clone().requires_grad_()
    loss = function(leaf)
    factors = torch.arange(1.0, loss.numel() + 1).view(loss.shape)
    return loss, torch.autograd.grad((loss * factors).sum(), leaf)[0]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", CASES)
def test_as_in_pytorch(name: str, reduction: str) -> None:
    logits, target, given = CASES[name]
    ours, theirs = (
        gradients(lambda x, f=f: f(x, target, reduction=reduction, **given), logits)
        for f in (warpsmith.cross_entropy, F.cross_entropy)
    )
    assert ours[0].shape == theirs[0].shape
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_weights_come_third_and_losses_stay_in_f32() -> None:
    loss = warpsmith.cross_entropy(LOGITS.bfloat16(), TARGET, WEIGHT)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(
        loss, F.cross_entropy(LOGITS.bfloat16().float(), TARGET, WEIGHT), rtol=1e-5, atol=1e-6
    )


def test_classes_in_the_last_dimension() -> None:
    logits, target = CUBE.movedim(1, -1), PLACES
    for reduction in REDUCTIONS:
        found = warpsmith.cross_entropy(logits, target, reduction=reduction)
        torch.testing.assert_close(found, F.cross_entropy(CUBE, PLACES, reduction=reduction))


def test_a_soft_cap() -> None:
    wanted = gradients(lambda x: F.cross_entropy(2.0 * torch.tanh(x / 2.0), TARGET), LOGITS)
    found = gradients(lambda x: warpsmith.cross_entropy(x, TARGET, softcap=2.0), LOGITS)
    torch.testing.assert_close(found, wanted)
    with pytest.raises(ValueError, match="cross_entropy: expected softcap to be above 0"):
        warpsmith.cross_entropy(LOGITS, TARGET, softcap=0.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_soft_cap_is_in_f32(dtype: torch.dtype) -> None:
    """Near the cap 16 bits have steps of 1/8 or 1/64, of which the loss would have a share."""
    generator = torch.Generator().manual_seed(8)
    logits = (20 * torch.randn(256, 1000, generator=generator)).to(dtype)
    target = torch.randint(0, 1000, (256,), generator=generator)

    def wanted(x: Tensor) -> Tensor:
        return F.cross_entropy(30.0 * torch.tanh(x / 30.0), target, reduction="none")

    found = gradients(
        lambda x: warpsmith.cross_entropy(x, target, softcap=30.0, reduction="none"), logits
    )
    loss, grad = gradients(wanted, logits.double())
    torch.testing.assert_close(found[0].double(), loss, rtol=1e-6, atol=3e-5)
    rounded = grad.to(dtype).double()
    torch.testing.assert_close(
        found[1].double(), rounded, rtol=2 * torch.finfo(dtype).eps, atol=1e-5
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_what_else_is_returned(reduction: str) -> None:
    plain = warpsmith.cross_entropy(LOGITS, TARGET, reduction=reduction)
    whole = warpsmith.cross_entropy(LOGITS, TARGET, reduction=reduction, z_loss=0.01)
    loss, z_loss, lse, accuracy = warpsmith.cross_entropy(
        LOGITS,
        TARGET,
        reduction=reduction,
        z_loss=0.01,
        return_z_loss=True,
        return_lse=True,
        return_accuracy=True,
    )
    torch.testing.assert_close(loss, whole)
    torch.testing.assert_close(z_loss, whole - plain, rtol=1e-4, atol=1e-5)
    kept = TARGET >= 0
    torch.testing.assert_close(lse[kept], LOGITS.logsumexp(-1)[kept])
    assert not lse[~kept].any()
    right = (LOGITS.argmax(-1) == TARGET) & kept
    if reduction == "none":
        assert torch.equal(accuracy, right)
    else:
        torch.testing.assert_close(accuracy, right.sum() / kept.sum())


def test_the_z_loss_beside_class_weights() -> None:
    given = {"weight": WEIGHT, "z_loss": 0.01}
    kept = TARGET >= 0
    wanted = F.cross_entropy(LOGITS, TARGET, WEIGHT)
    wanted = wanted + 0.01 * LOGITS.logsumexp(-1)[kept].square().mean()
    torch.testing.assert_close(warpsmith.cross_entropy(LOGITS, TARGET, **given), wanted)


def test_bad_arguments_are_named() -> None:
    for target, given in ((TARGET, {"weight": WEIGHT}), (SHARES, {}), (TARGET, {"softcap": 1.0})):
        with pytest.raises(RuntimeError, match="cross_entropy: expected label_smoothing to be"):
            warpsmith.cross_entropy(LOGITS, target, label_smoothing=1.5, **given)
    with pytest.raises(RuntimeError, match=r"cross_entropy: expected weight to be floating-point"):
        warpsmith.cross_entropy(LOGITS, TARGET, WEIGHT[:4])
    with pytest.raises(RuntimeError, match=r"cross_entropy: expected target to have the shape of"):
        warpsmith.cross_entropy(CUBE, PLACES[0])


# --- binary cross-entropy -------------------------------------------------------------------------

X = 2 * torch.randn(4, 3, generator=torch.Generator().manual_seed(5))
T = torch.rand(4, 3, generator=torch.Generator().manual_seed(6)).round(decimals=1)
T[0] = torch.tensor([0.0, 1.0, 1.0])
W = torch.tensor([0.5, 2.0, 0.0])
GIVEN: dict[str, dict[str, Tensor]] = {
    "weight": {"weight": W},
    "a weight for each row": {"weight": torch.tensor([[1.0], [2.0], [0.5], [3.0]])},
    "pos_weight": {"pos_weight": W},
    "both": {"weight": W, "pos_weight": 1.5 - W / 2},
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", GIVEN)
def test_bce_as_in_pytorch(name: str, reduction: str) -> None:
    def both(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        x, t = X.clone().requires_grad_(), T.clone().requires_grad_()
        loss = function(x, t, reduction=reduction, **GIVEN[name])
        return loss, *torch.autograd.grad(loss.square().sum(), (x, t))

    ours, theirs = both(warpsmith.bce_with_logits), both(F.binary_cross_entropy_with_logits)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_bce_of_two_dtypes() -> None:
    found = warpsmith.bce_with_logits(X.bfloat16(), T)
    torch.testing.assert_close(found, F.binary_cross_entropy_with_logits(X.bfloat16().float(), T))
    found = warpsmith.bce_with_logits(X.bfloat16(), T.bfloat16(), pos_weight=W)
    wanted = F.binary_cross_entropy_with_logits(
        X.bfloat16().float(), T.bfloat16().float(), pos_weight=W
    )
    torch.testing.assert_close(found, wanted)
