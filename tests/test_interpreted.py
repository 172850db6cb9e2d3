"""Twins under Triton's interpreter: that it refuses what lies outside of a kernel's tensors."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import pytest
import torch

from warpsmith.core import catalogue, twins
from warpsmith.core.catalogue import Inputs
from warpsmith.proof import interpreted, testing

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
pytestmark = pytest.mark.skipif(not twins.interpreting(), reason="Triton compiles here")


@triton.jit
def copy_kernel(to, x, n, shift, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(to + i, tl.load(x + i + shift, mask=i < n), mask=i < n)


@triton.jit
def add_kernel(to, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.atomic_add(to + i, 1.0, mask=i < n)


@pytest.fixture(autouse=True)
def guarded() -> None:
    interpreted.guard()


def test_what_lies_inside_is_served() -> None:
    whole, to = torch.arange(40.0), torch.zeros(16)
    copy_kernel[(1,)](to, whole[8:24], 16, 0, BLOCK=32)
    assert torch.equal(to, whole[8:24])
    add_kernel[(1,)](to, 16, BLOCK=32)
    assert torch.equal(to, whole[8:24] + 1)


@pytest.mark.parametrize(("n", "shift"), [(16, 1), (17, 0), (16, -1)])
def test_a_load_outside_is_refused(n: int, shift: int) -> None:
    around = torch.arange(48.0)  # lies beside x, and is none of the kernel's
    x, to = around[16:32].clone(), torch.zeros(32)
    with pytest.raises(Exception, match=r"a load outside its tensors: 1 of \d+ lanes"):
        copy_kernel[(1,)](to, x, n, shift, BLOCK=32)


def test_a_store_and_a_reduction_outside_are_refused() -> None:
    x = torch.arange(32.0)
    with pytest.raises(Exception, match="a store outside its tensors: 2 of 16 lanes"):
        copy_kernel[(1,)](torch.zeros(14), x, 16, 0, BLOCK=32)
    with pytest.raises(Exception, match="a reduction outside its tensors: 3 of 16 lanes"):
        add_kernel[(1,)](torch.zeros(13), 16, BLOCK=32)


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("window", [(20, 5), (-1, 0), (-1, 3), (3, -1)])
def test_attention_of_more_queries_than_keys_stays_among_them(
    n: int, window: tuple[int, int]
) -> None:
    """Tiles of fewer queries than keys, of which the first see nothing."""
    op = catalogue.get("flash_attention_varlen")
    inputs = Inputs(torch.float32, "cpu")
    given = {
        "q": inputs.randn(40, 1, 8),
        "k": inputs.randn(n, 1, 8, salt=1),
        "v": inputs.randn(n, 1, 192, salt=2),
        "cu_seqlens_q": torch.tensor([0, 6, 40], dtype=torch.int32),
        "cu_seqlens_k": torch.tensor([0, 0, n], dtype=torch.int32),
        "max_seqlen_q": 34,
        "max_seqlen_k": n,
        "scale": 0.3,
        "causal": False,
        "window_left": window[0],
        "window_right": window[1],
    }
    args = tuple(
        given.get(name, default)
        for name, default in zip(op.argument_names, op.defaults, strict=True)
    )
    verdict = testing.compare(op, testing.run_triton(op, args), args)
    assert verdict.ok, verdict.message
