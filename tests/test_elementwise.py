"""Elementwise functions: where values are compared with a number."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import warpsmith
from conftest import GPU
from warpsmith import catalogue, dispatch, testing
from warpsmith.catalogue import DTYPES, FLOATS


@pytest.mark.parametrize("lambd", [0.3, 0.7, 1.1])
@pytest.mark.parametrize("dtype", FLOATS)
def test_hardshrink_rounds_lambd_to_the_dtype(dtype: str, lambd: float) -> None:
    """The value nearest to lambd is not beyond it, rounded up or down."""
    device = "cuda" if GPU else "cpu"
    x = torch.tensor([lambd, -lambd, 2.0], dtype=DTYPES[dtype], device=device, requires_grad=True)
    y = warpsmith.hardshrink(x, lambd)
    y.sum().backward()
    assert y.tolist() == F.hardshrink(x, lambd).tolist() == [0.0, 0.0, 2.0]
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 0.0, 1.0]
    far = torch.tensor([torch.inf, 1.0, -60000.0], dtype=DTYPES[dtype], device=device)
    if GPU or dtype != "f16":  # for f16 on a CPU PyTorch refuses a number that is none of its own
        assert warpsmith.hardshrink(far, 1e6).tolist() == [torch.inf, 0.0, 0.0]
    if dispatch.triton_available():
        assert testing.run_triton(catalogue.get("hardshrink"), (far, 1e6)).tolist() == [
            torch.inf,
            0.0,
            0.0,
        ]
        x, ones = x.detach(), torch.ones_like(x)
        forward, backward = catalogue.get("hardshrink"), catalogue.get("hardshrink_backward")
        assert testing.run_triton(forward, (x, lambd)).tolist() == [0.0, 0.0, 2.0]
        assert testing.run_triton(backward, (ones, x, lambd)).tolist() == [0.0, 0.0, 1.0]
