"""Transposes and permutations: what the catalogue's samples do not say."""

from __future__ import annotations

import pytest
import torch

import warpsmith
from warpsmith.transform.moved import moved
from warpsmith.transform.transpose import swapped

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.float64,
    torch.complex64,
    torch.float8_e5m2,
    torch.bfloat16,
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_moved(dtype: torch.dtype) -> None:
    x = (torch.arange(2 * 3 * 5).view(2, 3, 5) % 2).to(dtype)
    bits = torch.uint8
    for y, wanted in (
        (warpsmith.transpose(x), x.transpose(1, 2)),
        (warpsmith.permute(x, (2, 0, -2)), x.permute(2, 0, 1)),
    ):
        assert y.dtype == dtype
        assert y.is_contiguous()
        assert torch.equal(y.view(bits), wanted.contiguous().view(bits))


def test_the_result_is_never_a_view() -> None:
    x = torch.ones(4, 3)
    for y in (warpsmith.transpose(x.t()), warpsmith.permute(x, (0, 1))):
        assert y.data_ptr() != x.data_ptr()


def test_gradients_go_back_where_they_came_from() -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(warpsmith.transpose, x)
    assert torch.autograd.gradcheck(lambda x: warpsmith.permute(x, (2, 0, 1)), x)
    assert torch.autograd.gradgradcheck(lambda x: warpsmith.permute(x, (-1, 0, 1)) ** 2, x)


@pytest.mark.parametrize(
    ("x", "rows", "cols", "batch"),
    [
        (torch.empty(8, 6), 8, 6, 0),
        (torch.empty(5, 8, 6), 8, 6, 1),
        (torch.empty(5, 4, 8, 6), 8, 6, 1),  # which merges
        (torch.empty(5, 4, 8, 6).transpose(0, 1), 8, 6, 2),
        (torch.empty(6, 8).t(), 48, 1, 0),  # lies transposed already
        (torch.empty(8, 1), 8, 1, 0),
        (torch.empty(1, 1), 1, 1, 0),
    ],
)
def test_what_a_call_comes_to(x: torch.Tensor, rows: int, cols: int, batch: int) -> None:
    call = moved(x, swapped(x.dim()))
    assert (call.rows, call.cols, len(call.batch)) == (rows, cols, batch)
    assert call.count * rows * cols == x.numel()


def test_unpacked_heads_may_have_gradients_left_out() -> None:
    x = torch.randn(2, 3, 4 * 2, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, b: warpsmith.unpack_qkv(x, 2, 1, b), (x, bias))
    q, _, _ = warpsmith.unpack_qkv(x, 2, 1, bias)
    q.sum().backward()
    assert bias.grad is not None
    assert torch.equal(bias.grad, torch.tensor([6.0] * 4 + [0.0] * 4, dtype=torch.float64))
