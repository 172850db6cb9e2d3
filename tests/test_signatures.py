"""Arguments as PyTorch's functions of the same names take them, in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import warpsmith

HALF = torch.bfloat16
X, Y = (torch.randn(6, 16, generator=torch.Generator().manual_seed(k)) for k in range(2))
CUBE = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(3))
AT = torch.tensor([3, 0, 3])

Call = Callable[[], Any]
PAIRS: dict[str, tuple[Call, Call]] = {
    "softmax in f32": (
        lambda: warpsmith.softmax(X.to(HALF), 0, dtype=torch.float32),
        lambda: F.softmax(X.to(HALF), 0, dtype=torch.float32),
    ),
    "log_softmax in f32": (
        lambda: warpsmith.log_softmax(X.to(HALF), -1, dtype=torch.float32),
        lambda: F.log_softmax(X.to(HALF), -1, dtype=torch.float32),
    ),
    "cumsum in f64": (
        lambda: warpsmith.cumsum(X, 1, dtype=torch.float64),
        lambda: torch.cumsum(X, 1, dtype=torch.float64),
    ),
    "cumsum of integers in f32": (
        lambda: warpsmith.cumsum(AT, 0, dtype=torch.float32),
        lambda: torch.cumsum(AT, 0, dtype=torch.float32),
    ),
    "var, 1.5": (
        lambda: warpsmith.var(X, 1, correction=1.5),
        lambda: torch.var(X, 1, correction=1.5),
    ),
    "var of two dimensions, 0.5": (
        lambda: warpsmith.var(CUBE, (0, 2), correction=0.5, keepdim=True),
        lambda: torch.var(CUBE, (0, 2), correction=0.5, keepdim=True),
    ),
    "var, 1.0": (lambda: warpsmith.var(X, correction=1.0), lambda: torch.var(X)),
    "var, more than there are": (
        lambda: warpsmith.var(X[:, :2], 1, correction=2.5),
        lambda: torch.full((6,), torch.inf),
    ),
    "transpose(0, 1)": (
        lambda: warpsmith.transpose(CUBE, 0, 1),
        lambda: CUBE.transpose(0, 1).contiguous(),
    ),
    "transpose(-1, -2)": (
        lambda: warpsmith.transpose(CUBE, -1, -2),
        lambda: CUBE.transpose(-1, -2).contiguous(),
    ),
    "transpose(1, 2)": (
        lambda: warpsmith.transpose(CUBE, 1, 2),
        lambda: CUBE.transpose(1, 2).contiguous(),
    ),
    "transpose(0, 0)": (lambda: warpsmith.transpose(CUBE, 0, 0), lambda: CUBE),
    "transpose(0, 0) of a number": (
        lambda: warpsmith.transpose(X[0, 0], 0, 0),
        lambda: X[0, 0].transpose(0, 0),
    ),
    "permute one by one": (
        lambda: warpsmith.permute(CUBE, 2, 0, 1),
        lambda: CUBE.permute(2, 0, 1).contiguous(),
    ),
    "embedding(indices, table)": (
        lambda: warpsmith.embedding(AT, X),
        lambda: F.embedding(AT, X),
    ),
    "embedding of one": (lambda: warpsmith.embedding(X, AT[0]), lambda: F.embedding(AT[0], X)),
    "index_select of one": (
        lambda: warpsmith.index_select(X, 1, AT[0]),
        lambda: torch.index_select(X, 1, AT[0]),
    ),
    "gather_rows of one": (lambda: warpsmith.gather_rows(X, AT[0]), lambda: X[3:4]),
    "index_add of one": (
        lambda: warpsmith.index_add(X, 0, AT[0], Y[:1]),
        lambda: torch.index_add(X, 0, AT[0], Y[:1]),
    ),
    "index_put of a tuple": (
        lambda: warpsmith.index_put(X, (AT[:2],), Y[:2]),
        lambda: torch.index_put(X, (AT[:2],), Y[:2]),
    ),
    "index_put of a number": (
        lambda: warpsmith.index_put(X, (AT,), torch.tensor(2.0)),
        lambda: torch.index_put(X, (AT,), torch.tensor(2.0)),
    ),
    "index_put of a row": (
        lambda: warpsmith.index_put(X, AT, Y[0], True),
        lambda: torch.index_put(X, (AT,), Y[0], True),
    ),
    "index_put of one": (
        lambda: warpsmith.index_put(X, AT[0], Y[0]),
        lambda: torch.index_put(X, (AT[0],), Y[0]),
    ),
    "index_put of places": (
        lambda: warpsmith.index_put(CUBE, (AT[:, None], torch.tensor([-1, 0])), CUBE[0, 0], True),
        lambda: torch.index_put(CUBE, (AT[:, None], torch.tensor([-1, 0])), CUBE[0, 0], True),
    ),
}


SIGNAL, TAPS = torch.randn(2, 4, 8), torch.randn(6, 4, 3)
PAIRS |= {
    "matmul in f32": (
        lambda: warpsmith.matmul(X.to(HALF), X.to(HALF).t(), out_dtype=torch.float32),
        lambda: X.to(HALF).float() @ X.to(HALF).float().t(),
    ),
    "matmul in its own dtype": (
        lambda: warpsmith.matmul(X, X.t(), out_dtype=torch.float32),
        lambda: X @ X.t(),
    ),
    "a convolution without affine weights": (
        lambda: warpsmith.conv1d_group_norm(SIGNAL, TAPS, None, None, None, 2, activation="none"),
        lambda: F.group_norm(F.conv1d(SIGNAL, TAPS, padding=1), 2),
    ),
    "noise in f64": (
        lambda: warpsmith.add_noise(
            X.double(),
            Y.double(),
            torch.zeros(6).long(),
            warpsmith.noise_table(torch.tensor([0.25])),
        ),
        lambda: 0.5 * X.double() + torch.tensor(0.75).double().sqrt().float().double() * Y.double(),
    ),
}


def test_a_transform_of_a_batched_convolution() -> None:
    """Of which no tensor says that it requires a gradient."""

    def loss(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda taps: torch.vmap(lambda x: function(x, taps))(SIGNAL[:, None]).square().sum()

    def plain(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
        return F.mish(F.group_norm(F.conv1d(x, taps, padding=1), 2))

    ours = loss(lambda x, taps: warpsmith.conv1d_group_norm(x, taps, None, None, None, 2))
    torch.testing.assert_close(
        torch.func.grad(ours)(TAPS), torch.func.grad(loss(plain))(TAPS), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("name", PAIRS)
def test_as_in_pytorch(name: str) -> None:
    ours, theirs = (call() for call in PAIRS[name])
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    torch.testing.assert_close(ours, theirs)


def test_gradients_of_what_is_composed() -> None:
    at, others = torch.tensor([[1], [2]]), torch.tensor([0, -1, 3])

    def gradients(function: Callable[..., torch.Tensor], *given: Any) -> tuple[torch.Tensor, ...]:
        x, values = CUBE.clone().requires_grad_(), CUBE[0, 0].clone().requires_grad_()
        y = function(x, *given, values)
        return torch.autograd.grad(y.square().sum(), (x, values))

    for accumulate in (False, True):
        ours, theirs = (
            gradients(lambda x, v, f=f, add=accumulate: f(x, (at, others), v, add))
            for f in (warpsmith.index_put, torch.index_put)
        )
        torch.testing.assert_close(ours, theirs)
    x = X.clone().requires_grad_()
    ours, theirs = (
        torch.autograd.grad(f(x, 1, correction=0.5).sum(), x) for f in (warpsmith.var, torch.var)
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_gradient_of_a_table_in_any_order(
    deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU both are the reference; the backward operator is told which is wanted."""
    seen: list[Any] = []
    plain = torch.ops.warpsmith.embedding_backward
    weight = X.clone().requires_grad_()
    y = warpsmith.embedding(weight, AT, -1, 2.0, deterministic=deterministic)

    def told(*args: Any) -> torch.Tensor:
        seen.append(args[5] if len(args) > 5 else True)
        return plain(*args)

    monkeypatch.setattr(torch.ops.warpsmith, "embedding_backward", told)
    (found,) = torch.autograd.grad(y.sum(), weight)
    assert seen == [deterministic]
    other = X.clone().requires_grad_()
    wanted = torch.autograd.grad((F.embedding(AT, other, padding_idx=-1) * 2).sum(), other)[0]
    torch.testing.assert_close(found, wanted)


def test_places_outside_are_refused() -> None:
    with pytest.raises(IndexError, match="index_put: expected indices in"):
        warpsmith.index_put(CUBE, (AT, AT + 3), torch.tensor(0.0))
    with pytest.raises(IndexError, match="index_put: expected 1 to 2 tensors of indices, got 3"):
        warpsmith.index_put(X, (AT, AT, AT), X[0])
    with pytest.raises(RuntimeError, match="index_put: expected indices of shapes that broadcast"):
        warpsmith.index_put(X, (AT,), torch.ones(5))
    with pytest.raises(IndexError, match="transpose: expected dim1 to lie in"):
        warpsmith.transpose(CUBE, 0, 3)


@pytest.mark.parametrize(
    "function",
    [
        warpsmith.scaled_masked_softmax,
        lambda x, mask=None, **o: warpsmith.bias_scale_mask_softmax_dropout(x, None, mask, **o)[0],
    ],
)
def test_what_is_excluded_is_said_so(function: Callable[..., Tensor]) -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    excluded = x > 0.5
    wanted = torch.softmax(x.masked_fill(excluded, float("-inf")), -1)
    torch.testing.assert_close(function(x, excluded=excluded), wanted)
    assert torch.equal(function(x, excluded=excluded), function(x, excluded))
    with pytest.raises(ValueError, match=r"softmax.*: expected either a mask or excluded"):
        function(x, excluded, excluded=excluded)
    with pytest.raises(TypeError, match=r"expected excluded to be a tensor of torch\.bool, got"):
        function(x, excluded=x)
