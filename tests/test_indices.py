"""Rows by their indices where no sample reaches: gradients, the same bits in every run, and indices
outside, on a CPU and on a GPU.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import warpsmith
from warpsmith.core import catalogue
from warpsmith.core.catalogue import DTYPE_NAMES, Inputs

X = torch.randn(9, 6, dtype=torch.float64)
REPEATED = torch.tensor([4, 0, 8, 4, 4, 1])


@pytest.mark.parametrize("padding_idx", [None, 4, -9])
def test_gradient_of_embedding(padding_idx: int | None) -> None:
    weight = X.clone().requires_grad_()
    grad = torch.randn(6, 6, dtype=torch.float64)
    ours = warpsmith.embedding(weight, REPEATED, padding_idx)
    theirs = functional.embedding(REPEATED, weight, padding_idx)
    assert torch.equal(ours, theirs)
    found = torch.autograd.grad(ours, weight, grad)[0]
    torch.testing.assert_close(found, torch.autograd.grad(theirs, weight, grad)[0])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: warpsmith.index_select(x, -1, torch.tensor([5, 0, 5])),
        lambda x, y: warpsmith.gather_rows(x, torch.tensor([3, -1, 3, 8])),
        lambda x, y: warpsmith.index_add(x, 0, REPEATED, y, 0.5),
        lambda x, y: warpsmith.index_put(x, torch.tensor([4, -5, 8, 0, -1, 4]), y),
        lambda x, y: warpsmith.index_put(x, torch.tensor([4, -5, 8, 0, -1, 4]), y, True),
        lambda x, y: warpsmith.scatter_rows(x, torch.tensor([3, -1, 3, 0, 7, -2, 1, 2, 6]), 8),
    ],
)
def test_gradients(function: Callable[..., Tensor]) -> None:
    x, y = X.clone().requires_grad_(), torch.randn(6, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (x, y))


NONE, ALL = torch.arange(0), torch.arange(16)
MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "transpose": lambda x: warpsmith.transpose(x).t(),
    "permute": lambda x: warpsmith.permute(x, (1, 0)).t(),
    "index_select": lambda x: warpsmith.index_select(x, 0, ALL.to(x.device)),
    "gather_rows": lambda x: warpsmith.gather_rows(x, ALL.to(x.device)),
    "upsample_nearest2d": lambda x: warpsmith.upsample_nearest2d(x[None, None], x.shape)[0, 0],
}
FLOATS_MOVE: dict[str, Callable[[Tensor], Tensor]] = {
    "embedding": lambda x: warpsmith.embedding(x, ALL.to(x.device)),
    "masked_fill": lambda x: warpsmith.masked_fill(x, torch.zeros_like(x, dtype=torch.bool), 1.0),
    "index_add": lambda x: warpsmith.index_add(x, 0, NONE.to(x.device), x[:0]),
    "index_put": lambda x: warpsmith.index_put(x, ALL.to(x.device), x),
    "scatter_rows": lambda x: warpsmith.scatter_rows(x, ALL.to(x.device), 16),
    "index_put added": lambda x: warpsmith.index_put(x, NONE.to(x.device), x[:0], True),
    "qkv": lambda x: warpsmith.pack_qkv(*warpsmith.unpack_qkv(x.view(1, 16, -1), 2))[0],
}
HALVES = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in MOVES for dtype in (*HALVES, torch.float8_e5m2, torch.uint8)]
    + [(name, dtype) for name in FLOATS_MOVE for dtype in (*HALVES, torch.float8_e5m2)],
    ids=str,
)
def test_every_pattern_of_bits_is_moved_as_it_is(name: str, dtype: torch.dtype) -> None:
    """NaN with any payload, -0, subnormals; without a GPU, by the reference."""
    size = 8 * dtype.itemsize
    patterns = torch.arange(2**size).to(torch.uint16 if size == 16 else torch.uint8)
    x = patterns.view(dtype).view(16, -1).to("cuda" if torch.cuda.is_available() else "cpu")
    cols = x.shape[1] // 6 * 6  # whole heads
    x = x[:, :cols].contiguous() if name == "qkv" else x
    y = (MOVES | FLOATS_MOVE)[name](x)
    assert y.dtype == dtype
    raw = torch.int16 if size == 16 else torch.int8
    assert torch.equal(y.contiguous().view(raw), x.view(raw))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("rung", ["naive", "scan", "sorted"])
def test_what_is_no_sum_keeps_its_bits(rung: str, dtype: torch.dtype) -> None:
    """By every kernel that could add it up."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.arange(2**16).to(torch.uint16).view(dtype).view(16, -1).to(device)
    at = torch.tensor([3, *range(16)], device=device)
    variants = catalogue.get("index_put").variants
    variant = next(v.name for v in variants if (v.rung.name, v.dtype) == (rung, DTYPE_NAMES[dtype]))
    put = warpsmith.index_put(x.flip(0), at, torch.cat((x[5:6], x)), variant=variant)
    scattered = warpsmith.scatter_rows(x, at[1:], 16, variant=variant)
    for y in (put, scattered):
        assert torch.equal(y.view(torch.int16), x.view(torch.int16))


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_many_indices_from_both_ends(dtype: torch.dtype, accumulate: bool) -> None:
    """More than kernels look through: the last of a row is the last from whichever end."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(1)
    at = torch.randint(-700, 700, (5000,), generator=generator).to(device=device, dtype=dtype)
    x, values = torch.randn(700, 3, device=device), torch.randn(5000, 3, device=device)
    y = warpsmith.index_put(x, at, values, accumulate)
    wanted = x.double()
    for j, row in enumerate(at.tolist()):
        wanted[row] = values[j] + (wanted[row] if accumulate else 0)
    torch.testing.assert_close(y.double(), wanted, rtol=1e-6, atol=1e-5 if accumulate else 0)


def test_padding_goes_and_comes_back() -> None:
    kept = torch.tensor([0, 1, 2, 5, 6, 8])
    rows = warpsmith.gather_rows(X, kept)
    back = warpsmith.scatter_rows(rows, kept, 9)
    wanted = X.clone()
    wanted[[3, 4, 7]] = 0
    assert torch.equal(back, wanted)
    place = torch.full((9,), -1)
    place[kept] = torch.arange(6)
    assert torch.equal(warpsmith.gather_rows(rows, place), wanted)


def test_masks_may_be_larger() -> None:
    x, mask = torch.randn(4, 1, 6), torch.rand(3, 1, 5, 6) > 0.5
    x.requires_grad_()
    y = warpsmith.masked_fill(x, mask, 2.0)
    assert torch.equal(y, x.masked_fill(mask.expand(3, 4, 5, 6), 2.0))
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, (~mask).expand(3, 4, 5, 6).sum((0, 2), keepdim=True)[0].to(x.dtype))
    with pytest.raises(RuntimeError, match=r"masked_fill: expected mask to broadcast to the shape"):
        warpsmith.masked_fill(torch.ones(4, 5), torch.ones(2, 4, 6, dtype=torch.bool), 0.0)


def test_a_value_beyond_the_range_fills_with_infinity() -> None:
    x, mask = torch.ones(4, dtype=torch.float16), torch.tensor([True, False, True, False])
    y = warpsmith.masked_fill(x, mask, -1e9)
    assert y.tolist() == [-torch.inf, 1, -torch.inf, 1]


def test_a_table_of_integers_is_named() -> None:
    table, indices = torch.ones(3, 4, dtype=torch.int8), torch.tensor([1])
    with pytest.raises(RuntimeError, match=r"a floating-point tensor, got torch\.int8"):
        warpsmith.embedding(table, indices)


def test_the_last_of_several_values_stays() -> None:
    values = torch.arange(6.0)[:, None].expand(6, 6).double()
    out = warpsmith.index_put(X, REPEATED, values)
    assert (out[4] == 4).all()
    assert torch.equal(out[2], X[2])


@pytest.mark.parametrize("outside", [-1, 9])
@pytest.mark.parametrize(
    "function",
    [
        lambda index: warpsmith.embedding(X, index),
        lambda index: warpsmith.index_select(X, 0, index),
        lambda index: warpsmith.index_add(X, 0, index, X[:2]),
        lambda index: warpsmith.index_add(X.clone(), 0, index, X[:2], inplace=True),
    ],
)
def test_an_index_outside_raises(function: Callable[..., Tensor], outside: int) -> None:
    with pytest.raises(IndexError, match=rf"expected indices in \[0, 8\], got {outside}"):
        function(torch.tensor([3, outside]))


def test_an_index_beyond_the_rows_raises_where_less_than_none_has_a_meaning() -> None:
    with pytest.raises(IndexError, match=r"expected indices in \[-9, 8\], got -10"):
        warpsmith.index_put(X, torch.tensor([-10]), X[:1])
    for function in (
        lambda: warpsmith.gather_rows(X, torch.tensor([9])),
        lambda: warpsmith.scatter_rows(X[:1], torch.tensor([9]), 9),
    ):
        with pytest.raises(IndexError, match="got 9"):
            function()


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (
            lambda: warpsmith.index_put(X, (REPEATED, REPEATED + 3), torch.zeros(6).double()),
            IndexError,
            "index_put: expected indices in [-6, 5], got 11",
        ),
        (
            lambda: warpsmith.index_put(X, (None, REPEATED), X[0]),
            TypeError,
            "index_put: expected index to be a tensor or several, got None among them",
        ),
        (
            lambda: warpsmith.index_put(X, [0, 1], X[:2]),
            TypeError,
            "index_put: expected index to be a tensor or several, got int among them",
        ),
        (
            lambda: warpsmith.index_put([1.0], REPEATED, X[:6]),
            TypeError,
            "index_put: expected x to be a tensor, got list",
        ),
        (
            lambda: warpsmith.index_put(X[0, 0], REPEATED, X[:6]),
            RuntimeError,
            "index_put: expected at least 1 dimension in x, got shape ()",
        ),
        (
            lambda: warpsmith.gather_rows(X, REPEATED + 5),
            IndexError,
            "gather_rows: expected indices below 9, got 13",
        ),
        (
            lambda: warpsmith.scatter_rows(X[:6], REPEATED, 3),
            IndexError,
            "scatter_rows: expected indices below 3, got 8",
        ),
        (
            lambda: warpsmith.index_select(X[:0], 0, REPEATED),
            IndexError,
            "index_select: expected no index, as there are no rows, got 8",
        ),
        (
            lambda: warpsmith.embedding(X, REPEATED, deterministic=False, variant="f32"),
            ValueError,
            "embedding: expected no variant beside deterministic=False, got 'f32'",
        ),
        (
            lambda: warpsmith.transpose([1.0], 0, 1),
            TypeError,
            "transpose: expected x to be a tensor, got list",
        ),
        (
            lambda: warpsmith.transpose(X, "a", 0),
            TypeError,
            "transpose: expected dim0 to be a whole number, got str",
        ),
        (
            lambda: warpsmith.transpose(X[None], 0, 1, variant="f32_padded"),
            ValueError,
            "transpose: swaps other dimensions than the last two by permute: unknown variant "
            "'f32_padded'",
        ),
        (
            lambda: warpsmith.permute(X, None),
            TypeError,
            "permute: expected dims to be whole numbers, got None",
        ),
    ],
)
def test_wrong_calls_are_said_in_the_words_of_the_function(
    call: Callable[[], Tensor], error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value).startswith(said)


# --- on a GPU -------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1500, 40_000])
def test_sums_have_the_same_bits_in_every_run(count: int) -> None:
    i = Inputs(torch.bfloat16, "cuda")
    index = torch.randint(0, 700, (count,), device="cuda")
    x, source = i.randn(700, 264), i.randn(count, 264, salt=1)
    first = warpsmith.index_add(x, 0, index, source).view(torch.int16)
    for _ in range(20):
        assert torch.equal(warpsmith.index_add(x, 0, index, source).view(torch.int16), first)


_OUTSIDE = """
import torch, warpsmith
x = torch.zeros(8, 64, device="cuda", dtype=torch.float16)
index = torch.tensor([7, {index}], device="cuda")
torch.ops.warpsmith.{call}
torch.cuda.synchronize()
"""
_CALLS = {
    "embedding": "{variant}(x, index)",
    "index_select": "{variant}(x, 0, index)",
    "gather_rows": "{variant}(x, index)",
    "index_add": "{variant}(x, 0, index, x[:2], 1.0, {deterministic})",
    "embedding_backward": "{variant}(x[:2], index, 8, None, 1.0, {deterministic})",
    "index_add_inplace": "{variant}(x, 0, index, x[:2].clone(), 1.0, {deterministic})",
    "index_put": "{variant}(x, index, x[:2], True, {deterministic})",
    "index_put of values": "{variant}(x, index, x[:2], False, {deterministic})",
    "scatter_rows": "{variant}(x[:2], index, 8, {deterministic})",
}
_RUNGS = [
    (name, rung.name)
    for name in _CALLS
    for rung in catalogue.get(name.split()[0]).ladder
    if "f16" in rung.dtypes and (name, rung.name) != ("index_put of values", "atomic")
]
#: Indices that 8 rows have, and others.
_ENDS = {
    "gather_rows": ((0, -1), (8,)),
    "scatter_rows": ((0, -1), (8,)),
    "index_put": ((0, -8), (8, -9)),
    "index_put of values": ((0, -8), (8, -9)),
}


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "rung"), _RUNGS)
def test_an_index_outside_ends_the_kernel_with_a_message(name: str, rung: str) -> None:
    """In a process of its own, which is of no use for CUDA afterwards."""
    variants = catalogue.get(name.split()[0]).variants
    named = next(v.op_name for v in variants if (v.rung.name, v.dtype) == (rung, "f16"))
    call = _CALLS[name].format(variant=named, deterministic=rung != "atomic")
    inside, outside = _ENDS.get(name, ((0,), (8, -1)))
    running = {
        index: subprocess.Popen(
            [sys.executable, "-c", _OUTSIDE.format(index=index, call=call)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in (*inside, *outside)
    }
    for index, process in running.items():
        errors = process.communicate()[1]
        fails = index in outside
        said = "an index lies outside of the rows that there are" in errors
        assert (process.returncode != 0, said) == (fails, fails), errors[-2000:]
