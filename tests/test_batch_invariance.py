"""A row's result has the same bits alone and among any number of other rows, where an operator
promises so, and not where it does not: reductions without the promise split few long rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import warpsmith
from conftest import GPU
from test_determinism import amid_noise
from warpsmith.core import catalogue, twins
from warpsmith.core.catalogue import DTYPES
from warpsmith.proof import testing


@dataclass(frozen=True)
class Promise:
    """An operator over the last dimension; `rest` are the arguments after the tensor."""

    op: str
    rest: tuple[Any, ...]
    #: Whether its Triton twin promises the same.
    twin: bool = False
    dtypes: tuple[str, ...] = ("f32", "bf16")
    #: Whether it takes a residual, and returns the sum beside the result.
    residual: bool = False

    def __str__(self) -> str:
        return self.op

    def args(self, x: Tensor) -> tuple[Any, ...]:
        return (x, x / 2, *self.rest) if self.residual else (x, *self.rest)

    def __call__(self, x: Tensor) -> Tensor:
        out = getattr(warpsmith, self.op)(*self.args(x))
        return out[0] if self.residual else out


#: Operators whose rows do not depend on each other, to the last bit.
PROMISES = (
    Promise("sum", (-1, False, True), twin=True),
    Promise("mean", (-1, False, True), twin=True),
    Promise("var", (-1, 1, False, True), twin=True),
    Promise("cumsum", (-1, False, True), twin=True),
    Promise("amax", (-1,), twin=True),
    Promise("amin", (-1,), twin=True),
    Promise("argmax", (-1,), twin=True),
    Promise("argmin", (-1,), twin=True),
    Promise("rms_norm", (None,)),
    Promise("layer_norm", (None, None)),
    Promise("add_rms_norm", (), residual=True),
    Promise("add_layer_norm", (), residual=True),
    Promise("softmax", (-1,)),
    Promise("log_softmax", (-1,)),
)
#: Of rows: each is served by another rung of the reductions.
LENGTHS = (257, 1000, 4096, 20000, 40000, 131072)
#: The longest that Triton's interpreter takes in reasonable time.
INTERPRETED = 4096
FEW = 7 if GPU else 3
BATCHES = (7, 4096) if GPU else (3, 20)
LONG = 65536


def rows_of(length: int, dtype: str, device: str) -> Tensor:
    """Values of many magnitudes, so that another order of additions rounds otherwise."""
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(FEW, length, generator=generator)
    x *= torch.exp2(torch.randint(-8, 9, x.shape, generator=generator).float())
    return x.to(DTYPES[dtype]).to(device)


def places(rows: int) -> Tensor:
    """Where the few rows stand in a batch: at both ends and in between."""
    return torch.arange(FEW) * (rows - 1) // (FEW - 1)


def batch_of(rows: int, few: Tensor) -> Tensor:
    """The few rows among others."""
    generator = torch.Generator().manual_seed(rows)
    order = torch.randint(FEW, (rows,), generator=generator).to(few.device)
    batch = few[order].roll(1, dims=-1)
    batch[places(rows).to(few.device)] = few
    return batch


def bits(x: Tensor) -> Tensor:
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def assert_invariant(function: Callable[[Tensor], Tensor], few: Tensor) -> None:
    alone = [function(few[i : i + 1].clone())[0] for i in range(FEW)]
    wanted = bits(torch.stack(alone))
    one_dimension = [function(few[i].clone()) for i in range(FEW)]
    assert torch.equal(bits(torch.stack(one_dimension)), wanted), "one dimension"
    for rows in BATCHES:
        batch = function(batch_of(rows, few))
        found = bits(batch[places(rows).to(batch.device)])
        assert torch.equal(found, wanted), f"alone and among {rows} rows"


CASES = [
    pytest.param(promise, dtype, length, id=f"{promise}-{dtype}-{length}")
    for promise in PROMISES
    for dtype in promise.dtypes
    for length in LENGTHS
]


@pytest.mark.gpu
@pytest.mark.parametrize(("promise", "dtype", "length"), CASES)
def test_kernels(promise: Promise, dtype: str, length: int) -> None:
    assert_invariant(promise, rows_of(length, dtype, "cuda"))


@pytest.mark.parametrize(("promise", "dtype", "length"), CASES)
def test_triton_twins(promise: Promise, dtype: str, length: int) -> None:
    if not promise.twin:
        pytest.skip("the twin promises nothing")
    if not twins.triton_available():
        pytest.skip("needs Triton")
    if not GPU and length > INTERPRETED:
        pytest.skip("too long for Triton's interpreter")
    op = catalogue.get(promise.op)
    twin = lambda x: testing.run_triton(op, (x, *promise.rest))  # noqa: E731
    assert_invariant(twin, rows_of(length, dtype, "cuda" if GPU else "cpu"))


@pytest.mark.parametrize(("promise", "dtype", "length"), CASES)
def test_the_choice_of_the_kernel(promise: Promise, dtype: str, length: int) -> None:
    """Without a GPU: the rung that serves a row is the same in every batch."""

    def rung(rows: int) -> str:
        x = torch.empty(rows, length, dtype=DTYPES[dtype], device="meta")
        choice = warpsmith.which(promise.op, *promise.args(x), sm=90)
        assert choice.variant is not None
        return choice.variant.rung.name

    if promise.op in ("amax", "amin", "argmax", "argmin"):
        pytest.skip("the order in which values meet does not change the answer")
    assert len({rung(rows) for rows in (1, 7, 4096, 1 << 20)}) == 1


def test_without_the_promise_few_long_rows_are_split() -> None:
    def rung(rows: int) -> str:
        x = torch.empty(rows, LONG, device="meta")
        choice = warpsmith.which("sum", x, -1, False, False, sm=90)
        assert choice.variant is not None
        return choice.variant.rung.name

    assert (rung(1), rung(7), rung(4096)) == ("split", "split", "pack")


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_without_the_promise_other_rows_change_the_answer(op: str) -> None:
    """What the promise is about; this also shows that the data tell one order from another."""
    few = rows_of(LONG, "f32", "cuda")
    function = lambda x: getattr(warpsmith, op)(x, -1)  # noqa: E731
    with pytest.raises(AssertionError, match="alone and among 4096 rows"):
        assert_invariant(function, few)


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["sum", "mean", "var", "cumsum"])
@pytest.mark.parametrize("length", [512, 4099, 40000])
def test_columns(op: str, length: int) -> None:
    """The same for columns, whose neighbours come and go."""
    few = rows_of(length, "f32", "cuda")

    def along_columns(rows: Tensor) -> Tensor:
        columns = rows.reshape(-1, length).t().contiguous()
        found = getattr(warpsmith, op)(columns, 0, batch_invariant=True)
        return found.t().reshape(rows.shape) if op == "cumsum" else found.view(rows.shape[:-1])

    assert_invariant(along_columns, few)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["f32_naive", "bf16_naive_f32"])
def test_a_matrix_product_by_name(variant: str) -> None:
    """What serves a product depends on its shape; one variant adds along k in one order."""
    for length in (257, 4096):
        few = rows_of(length, variant.split("_")[0], "cuda")
        weight = batch_of(64, few).t()
        assert_invariant(
            lambda x, w=weight: warpsmith.matmul(x.view(-1, x.shape[-1]), w, variant=variant).view(
                *x.shape[:-1], 64
            ),
            few,
        )


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["sum", "mean", "var", "cumsum"])
def test_strides_and_alignment_do_not_matter(op: str) -> None:
    function = lambda x: getattr(warpsmith, op)(x, -1, batch_invariant=True)  # noqa: E731
    for length in LENGTHS:
        few = rows_of(length, "f32", "cuda")
        padded = torch.empty(FEW, length + 5, device="cuda")
        padded[:, 3:-2] = few
        wanted = bits(function(few))
        assert torch.equal(bits(function(padded[:, 3:-2])), wanted), "misaligned"
        assert torch.equal(bits(function(few.t().contiguous().t())), wanted), "transposed"


#: Of rows of odd lengths, each served by another rung or by another cluster.
ODD_LENGTHS = (1025, 16383, 25595, 32769, 50257, 51191, 51197, 102391, 102397)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("variant", [None, "peeled_registers"])
def test_rows_of_a_softmax_may_begin_anywhere(op: str, dtype: str, variant: str | None) -> None:
    """At every place in a line of 128 bytes, and with a result that lies elsewhere in its own."""
    chosen = {
        v.dtype: v.name.removeprefix(f"{op}_")
        for v in catalogue.get(op).variants
        if v.rung.name == variant
    }
    most = 409584 // DTYPES[dtype].itemsize

    def function(x: Tensor) -> Tensor:
        return getattr(warpsmith, op)(x, -1, variant=None if variant is None else chosen[dtype])

    for length in ODD_LENGTHS:
        if variant is not None and length > most:
            continue
        few = rows_of(length, dtype, "cuda")
        assert_invariant(function, few)
        wanted = bits(function(few))
        apart = torch.empty(FEW, length + 65, dtype=few.dtype, device="cuda")
        for offset in range(64):
            there = apart[:, offset : offset + length].copy_(few)
            assert torch.equal(bits(function(there)), wanted), f"{length} values from {offset} on"


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_the_rung_of_a_softmax_of_odd_rows_does_not_depend_on_where_they_lie(dtype: str) -> None:
    for length in ODD_LENGTHS:
        rungs = set()
        for offset in range(8):
            x = torch.empty(3, length + 8, dtype=DTYPES[dtype], device="meta")
            for rows in (1, 3):
                view = x[:rows, offset : offset + length]
                choice = warpsmith.which("softmax", view, -1, sm=90)
                assert choice.variant is not None
                rungs.add(choice.variant.rung.name)
        assert len(rungs) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["sum", "mean", "var", "cumsum"])
@pytest.mark.parametrize("shape", [(3, 1 << 20), (64, 1 << 16), (4096, 1000)], ids=str)
def test_the_same_bits_in_every_run(op: str, shape: tuple[int, int]) -> None:
    """Whatever else the GPU does; nothing here is added by atomics."""
    x = rows_of(shape[1], "f32", "cuda")[torch.arange(shape[0]) % FEW]
    function = amid_noise(getattr(warpsmith, op))
    for dim in (0, 1):
        wanted = bits(function(x, dim))
        assert all(torch.equal(bits(function(x, dim)), wanted) for _ in range(10))


# --- products -------------------------------------------------------------------------------------

#: k and n of products: rows in packs of 16 bytes, or not.
PRODUCTS = ((257, 33), (4096, 2048), (4095, 2047))
#: The rungs that add up k in its order, in tiles of any size: the promise is kept between those of
#: one family of instructions.
IN_ORDER = {
    "simt": {"simt_peak"},
    "mma": {"mma_unaligned", "mma_peak", "mma_tma", "mma_padded"},
    "wgmma": {"wgmma_peak", "wgmma_padded"},
}
PRODUCT_CASES = [
    pytest.param(op, dtype, k, n, id=f"{op}-{dtype}-{k}x{n}")
    for op in ("matmul", "linear")
    for dtype in ("f32", "f16", "bf16")
    for k, n in PRODUCTS
]


def product_with(op: str, dtype: str, k: int, n: int, device: str) -> tuple[Any, ...]:
    """The arguments after the rows."""
    generator = torch.Generator().manual_seed(n)
    weight = torch.randn(n, k, generator=generator) / 16
    bias = torch.randn(n, generator=generator)
    weight, bias = (x.to(DTYPES[dtype]).to(device) for x in (weight, bias))
    return (weight.t(), True) if op == "matmul" else (weight, bias, "gelu", True)


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "dtype", "k", "n"), PRODUCT_CASES)
def test_kernels_of_products(op: str, dtype: str, k: int, n: int) -> None:
    rest = product_with(op, dtype, k, n, "cuda")
    function = getattr(torch.ops.warpsmith, op)
    assert_invariant(lambda x: function(x, *rest), rows_of(k, dtype, "cuda"))
    if op == "matmul":
        by_rows = rest[0].contiguous()
        assert_invariant(lambda x: function(x, by_rows, True), rows_of(k, dtype, "cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_products_without_the_promise(dtype: str) -> None:
    """The data tell one order of additions from another."""
    weight = product_with("matmul", dtype, 4096, 2048, "cuda")[0]
    with pytest.raises(AssertionError, match="alone and among"):
        assert_invariant(lambda x: warpsmith.matmul(x, weight), rows_of(4096, dtype, "cuda"))


def laid_out(rows: int, k: int, dtype: str, device: str = "meta") -> list[Tensor]:
    """Rows in packs of 16 bytes or not, in columns, and one row over and over."""
    made = DTYPES[dtype]
    x = torch.empty(rows, k, dtype=made, device=device)
    wide = torch.empty(rows + 1, k + 1, dtype=made, device=device)
    return [x, wide[:rows, :k], wide[1:, 1:], x.t().contiguous().t(), x[:1].expand(rows, k)]


@pytest.fixture
def proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rungs by wgmma, as if a GPU had verified them."""
    for op in ("matmul", "linear"):
        for rung in catalogue.get(op).ladder:
            if rung.name in IN_ORDER["wgmma"]:
                monkeypatch.setitem(vars(rung), "unproven", False)


@pytest.mark.parametrize("sm", [80, 90])
@pytest.mark.parametrize(("op", "dtype", "k", "n"), PRODUCT_CASES)
def test_the_rungs_of_products(op: str, dtype: str, k: int, n: int, sm: int, proven: None) -> None:
    """One family of instructions for every number of rows, wherever they lie; on sm_90 one tile."""
    rest = product_with(op, dtype, k, n, "meta")
    family = "simt" if dtype == "f32" else ("wgmma" if sm == 90 else "mma")
    tiles = set()
    for rows in (1, 2, 7, 16, 64, 1000, 4096, 8192, 1 << 17):
        for x in laid_out(rows, k, dtype):
            choice = warpsmith.which(op, x, *rest, sm=sm)
            assert choice.variant is not None
            assert choice.variant.rung.name in IN_ORDER[family], (rows, x.stride())
            if family == "wgmma":
                assert "clocks expected" in choice.reason
                tiles.add(choice.reason.partition("(")[2])
    assert len(tiles) == (family == "wgmma")


@pytest.mark.gpu
@pytest.mark.parametrize("aligned", [True, False], ids=["in packs", "not in packs"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("op", ["matmul", "linear"])
def test_every_number_of_rows_up_to_8192(op: str, dtype: str, aligned: bool) -> None:
    """To the last bit, of rows that lie in packs of 16 bytes or start anywhere."""
    k, n, most = (512, 256, 8192) if aligned else (515, 131, 8192)
    rest = product_with(op, dtype, k, n, "cuda")
    function = getattr(torch.ops.warpsmith, op)
    x = rows_of(k, dtype, "cuda")[torch.arange(most) % FEW]
    wanted = bits(function(x, *rest))
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for rows in range(1, most):
        wrong += (bits(function(x[most - rows :], *rest)) != wanted[most - rows :]).sum()
    assert not wrong.item()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("op", ["matmul", "linear"])
def test_triton_twins_of_products(op: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not twins.triton_available():
        pytest.skip("needs Triton")
    if not GPU:  # the order in which NumPy's BLAS adds up a row of a tile follows where it lies

        def in_order(a: np.ndarray, b: np.ndarray, dtype: np.dtype | None = None) -> np.ndarray:
            return np.einsum("mk,kn->mn", a, b, dtype=dtype)

        monkeypatch.setattr(np, "matmul", in_order)
    k, n = 257, 33
    device = "cuda" if GPU else "cpu"
    rest = product_with(op, dtype, k, n, device)
    twin = lambda x: testing.run_triton(catalogue.get(op), (x, *rest))  # noqa: E731
    assert_invariant(twin, rows_of(k, dtype, device))


@pytest.mark.parametrize("rung", ["skinny", "skinny_nn"])
def test_rungs_for_few_rows_do_not_promise(rung: str) -> None:
    a, b = torch.randn(3, 1024).bfloat16(), torch.randn(1024, 64).bfloat16()
    b = b if rung == "skinny_nn" else b.t().contiguous().t()
    variant = f"bf16_{rung}_f32"
    assert warpsmith.matmul(a, b, variant=variant).shape == (3, 64)
    with pytest.raises(RuntimeError, match="adds up few rows in an order of its own"):
        warpsmith.matmul(a, b, variant=variant, batch_invariant=True)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_products_compile_with_the_promise(device: str) -> None:
    x, weight = torch.randn(3, 64, device=device), torch.randn(5, 64, device=device)

    def both(x: Tensor) -> Tensor:
        product = warpsmith.matmul(x, weight.t(), batch_invariant=True)
        return product + warpsmith.linear(x, weight, batch_invariant=True)

    x.requires_grad_()
    out = torch.compile(both, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(out, both(x))
    out.sum().backward()
    torch.testing.assert_close(x.grad, 2 * weight.sum(0).expand(3, 64))
