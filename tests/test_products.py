"""How products are judged: by PyTorch's errors whatever kernel it takes, and by no more."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from warpsmith import catalogue, dispatch, testing
from warpsmith.catalogue import Inputs, Op
from warpsmith.gemm.company import LARGE, among_others

SHAPES = (
    ((40,), (40, 24)),
    ((7, 40), (40,)),
    ((40,), (40,)),
    ((1, 40), (40, 200)),
    ((200, 40), (40, 3)),
    ((3, 5, 40), (40, 24)),
    ((9, 40), (3, 40, 24)),
    ((2, 1, 9, 16), (3, 16, 8)),
    ((40,), (3, 40, 24)),
    ((3, 9, 16), (16,)),
    ((5, 0), (0, 7)),
    ((0, 5), (5, 7)),
)
OPS = [catalogue.get(name) for name in ("matmul", "matmul_tf32", "linear", "addmm")]


@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_a_product_among_others_is_the_same_product(
    left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    seen = []

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        seen.append((a.shape[-2], b.shape[-1]))
        return torch.matmul(a, b)

    inputs = Inputs(torch.float64)
    a, b = inputs.randn(*left), inputs.randn(*right, salt=1)
    torch.testing.assert_close(among_others(multiply, a, b), torch.matmul(a, b))
    assert all(size >= LARGE or size == 0 for size in seen[0])


@pytest.mark.parametrize("op", OPS, ids=str)
def test_alternatives_compute_what_the_reference_does(op: Op) -> None:
    assert op.alternatives
    for sample in op.samples_for("f32"):
        if not sample.small:
            continue
        args = dispatch.normalise(op, sample.make(Inputs()))
        wide = dispatch.upcast(args, torch.float64)
        exact = op.reference(*wide)
        for alternative in op.alternatives:
            torch.testing.assert_close(alternative(*wide), exact, equal_nan=True, msg=str(sample))
            assert alternative(*args).dtype == torch.float32


#: What the kernels of larger products lose, in the emulation below.
LOSS = 1e-2


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    """A library that is exact for few rows or columns, and not for many of both."""
    product = torch.matmul(a.double(), b.double()).to(a.dtype)
    many = a.shape[-2] >= LARGE and b.shape[-1] >= LARGE and a.dtype == torch.float32
    return product + LOSS if many else product


@pytest.mark.parametrize("m", [1, 5, 127])
def test_a_row_is_allowed_what_it_loses_among_others_and_no_more(m: int) -> None:
    op = dataclasses.replace(
        catalogue.get("matmul"),
        reference=_multiply,
        alternatives=(functools.partial(among_others, _multiply),),
    )
    inputs = Inputs()
    args: tuple[Any, ...] = (inputs.plain(m, 64), inputs.plain(64, 40, salt=1))
    right = _multiply(*args)
    for factor, ok in ((0.0, True), (1.5, True), (1.9, True), (2.1, False), (10.0, False)):
        for sign in (1, -1):
            out = right.clone()
            out[0, 3] += sign * factor * LOSS
            assert testing.compare(op, out, args).ok is ok, (factor, sign)
    alone = dataclasses.replace(op, alternatives=())
    assert not testing.compare(alone, right + LOSS, args).ok


def test_products_of_16_bits_are_judged_alone() -> None:
    """The rounding of their results hides what sums in f32 lose."""
    op = dataclasses.replace(
        catalogue.get("matmul"), alternatives=(lambda a, b: torch.matmul(a, b) + 100,)
    )
    inputs = Inputs(torch.float16)
    args = (inputs.plain(3, 64), inputs.plain(64, 40, salt=1))
    right = torch.matmul(*args)
    assert testing.compare(op, right, args).ok
    assert not testing.compare(op, right + 1, args).ok


def test_sums_of_the_twin_end_where_tiles_do() -> None:
    pytest.importorskip("triton")
    from warpsmith.gemm import matmul_triton as twin

    for tile in (*twin.SINGLES.values(), *twin.TF32S.values()):
        assert twin.DEPTH % tile.k == twin.LONG_DEPTH % tile.k == 0
