"""How products are judged: by PyTorch's errors whatever kernel it takes, and by no more."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import warpsmith
from warpsmith.core import catalogue, dispatch, references, twins
from warpsmith.core.catalogue import DTYPES, Inputs, Op, Variant
from warpsmith.gemm import matmul_tf32_cases, reference_in_large
from warpsmith.gemm.linear import ACTIVATIONS
from warpsmith.gemm.reference_in_large import LARGE_ON_CPU, among_others
from warpsmith.proof import testing
from warpsmith.proof.testing import Expected

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


@pytest.mark.parametrize("held", [reference_in_large.HELD, 1])
@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_a_product_among_others_is_the_same_product(
    monkeypatch: pytest.MonkeyPatch, left: tuple[int, ...], right: tuple[int, ...], held: int
) -> None:
    monkeypatch.setattr(reference_in_large, "HELD", held)
    seen = []

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        seen.append((a.shape[-2], b.shape[-1]))
        return torch.matmul(a, b)

    inputs = Inputs(torch.float64)
    a, b = inputs.randn(*left), inputs.randn(*right, salt=1)
    torch.testing.assert_close(among_others(multiply, a, b), torch.matmul(a, b))
    assert all(size >= LARGE_ON_CPU or size == 0 for sizes in seen for size in sizes)
    assert len(seen) == (1 if held > 1 else torch.broadcast_shapes(left[:-2], right[:-2]).numel())


@pytest.mark.parametrize("op", OPS, ids=str)
def test_alternatives_compute_what_the_reference_does(op: Op) -> None:
    assert op.alternatives
    for sample in op.samples_for("f32"):
        if not sample.small:
            continue
        args = dispatch.normalise(op, sample.make(Inputs()))
        wide = references.upcast(args, torch.float64)
        exact = op.reference(*wide)
        for alternative in op.alternatives:
            torch.testing.assert_close(alternative(*wide), exact, equal_nan=True, msg=str(sample))
            assert alternative(*args).dtype == torch.float32


#: What the kernels of larger products lose, in the emulation below.
LOSS = 1e-2


def _multiply(a: Tensor, b: Tensor, batch_invariant: bool = False) -> Tensor:
    """A library that is exact for few rows or columns, and not for many of both."""
    product = torch.matmul(a.double(), b.double()).to(a.dtype)
    many = min(a.shape[-2], b.shape[-1]) >= LARGE_ON_CPU and a.dtype == torch.float32
    return product + LOSS if many else product


@pytest.mark.parametrize("m", [1, 5, 127])
def test_a_row_is_allowed_what_it_loses_among_others_and_no_more(m: int) -> None:
    op = dataclasses.replace(
        catalogue.get("matmul"),
        reference=_multiply,
        alternatives=(lambda a, b, *_: among_others(_multiply, a, b),),
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
        catalogue.get("matmul"), alternatives=(lambda a, b, *_: torch.matmul(a, b) + 100,)
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
    for name in twin.BOXED:
        assert twin.BOX_DEPTH % twin.HALVES[name].k == 0


def test_which_operands_the_twin_reads_by_descriptors() -> None:
    pytest.importorskip("triton")
    from warpsmith.spec.triton.boxes import Boxes, boxes_of

    def read(x: Tensor) -> tuple[tuple[int, ...], bool, int] | None:
        boxes = boxes_of(x, 64)
        return boxes and (tuple(boxes.rows.shape), boxes.turned, boxes.step)

    x = torch.zeros(3, 40, 72, dtype=torch.bfloat16)
    assert read(x) == ((120, 72), False, 40)
    assert read(x[:, :, :63]) == ((120, 63), False, 40)
    assert read(x[:, 8:]) == ((112, 72), False, 40)
    assert read(x[:1].expand(3, 40, 72)) == ((40, 72), False, 0)
    assert read(x.mT[:1]) == ((40, 72), True, 0)
    assert read(torch.zeros(3, 64, 72, dtype=torch.bfloat16).mT) == ((192, 72), True, 64)
    assert read(x.mT) is None  # the last box of a product has values of the next
    assert read(x[:, :, 1:]) is None  # starts at no multiple of 16 bytes
    assert read(torch.zeros(1, 40, 71, dtype=torch.bfloat16)) is None  # nor do its rows
    assert read(x[:, :, ::2]) is None
    assert read(x[:, :1].expand(3, 40, 72)) is None  # rows that are one
    assert read(x[:, :0]) is None
    tile = Boxes(x[0], True, 0).of(128, 64)
    assert tile.block_shape == [64, 128]


def test_a_descriptor_of_groups_reads_none_of_the_next() -> None:
    """NaN of other groups, next to a group's last values of k and columns."""
    if not twins.triton_available() or not twins.interpreting():
        pytest.skip("needs Triton's interpreter")  # on a GPU, samples are judged
    from warpsmith.gemm import grouped_matmul_triton as twin

    x, w = torch.randn(300, 72).half(), torch.randn(3, 40, 72).half().mT
    w[1] = float("nan")
    x[100:200] = float("nan")
    offs = torch.tensor([100, 200, 300], dtype=torch.int32)
    for right in (w, w.contiguous()):
        y = twin.grouped_matmul(x, right, offs)
        for part, group in ((slice(0, 100), 0), (slice(200, 300), 2)):
            wanted = x[part].float() @ right[group].float()
            torch.testing.assert_close(y[part].float(), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("along_k", [False, True])
@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ((2, 2, 9), r"expected offs to lie in \[0, 5\], got 9"),
        ((-2, 2, 5), r"expected offs to lie in \[0, 5\], got -2"),
        ((3, 2, 5), "expected offs that do not decrease, got 2 behind 3"),
    ],
)
def test_a_cpu_refuses_groups_that_do_not_fit(
    ends: tuple[int, ...], message: str, along_k: bool
) -> None:
    shapes = ((4, 5), (5, 6)) if along_k else ((5, 4), (3, 4, 6))
    x, w = map(torch.ones, shapes)
    offs = torch.tensor(ends, dtype=torch.int32)
    with pytest.raises(RuntimeError, match=f"^grouped_matmul: {message}"):
        warpsmith.grouped_matmul(x, w, offs)
    scales = torch.ones(3, 4) if along_k else torch.ones(5), torch.ones(3, 6)
    codes = (t.to(torch.float8_e4m3fn) for t in (x, w))
    with pytest.raises(RuntimeError, match=f"^scaled_grouped_matmul: {message}"):
        warpsmith.scaled_grouped_matmul(*codes, offs, *scales)


SIZES = (1, 7, 16, 33, 127, 128, 129, 1000, 4097)
ODD_SIZES = (1, 7, 33, 129)


def _products(
    op: Op, inputs: Inputs, sizes: tuple[int, ...]
) -> Iterator[tuple[str, tuple[Tensor, Tensor], Expected]]:
    """Every size beside every other, in every layout: label, operands, and what they are judged by,
    which is the same for all layouts.
    """
    for m, n, k in itertools.product(sizes, repeat=3):
        a, b = inputs.randn(m, k), inputs.randn(k, n, salt=1)
        if op.name == "matmul_tf32":  # which way a tie goes depends on the GPU
            a, b = matmul_tf32_cases._without_ties(a), matmul_tf32_cases._without_ties(b)
        turned_a, turned_b = (x.t().contiguous().t() for x in (a, b))
        expected = Expected.of(op, (a, b))
        layouts = {
            "NN": (a, b),
            "TN": (a, turned_b),
            "NT": (turned_a, b),
            "TT": (turned_a, turned_b),
        }
        for layout, args in layouts.items():
            yield f"{layout} {m}x{n}x{k}", args, expected


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("matmul", "f32"), ("matmul", "f16"), ("matmul", "bf16"), ("matmul_tf32", "f32")],
)
def test_every_size_beside_every_other(name: str, dtype: str) -> None:
    op, multiply = catalogue.get(name), getattr(warpsmith, name)
    wrong = []
    for label, args, expected in _products(op, Inputs(DTYPES[dtype], "cuda"), SIZES):
        found = testing.compare(op, multiply(*args), args, label=label, expected=expected)
        if not found.ok:
            wrong.append(found.message)
    assert not wrong, "\n".join(wrong)


#: Rungs that take any size and layout.
ANY_LAYOUT = (
    ("matmul", "f32", ("naive", "sliced_k", "block_1d", "block_2d", "simt_peak")),
    ("matmul", "f16", ("naive", "sliced_k", "mma_unaligned", "mma_padded")),
    ("matmul", "bf16", ("naive", "sliced_k", "mma_unaligned", "mma_padded")),
    ("matmul_tf32", "f32", ("wmma_naive", "mma_peak")),
)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "dtype", "rungs"), ANY_LAYOUT)
def test_rungs_of_any_layout_at_odd_sizes(name: str, dtype: str, rungs: tuple[str, ...]) -> None:
    op = catalogue.get(name)
    if not dispatch.load(op.library):
        pytest.skip("needs the compiled library")
    variants = [v for v in op.variants if v.dtype == dtype and v.rung.name in rungs]
    assert {v.rung.name for v in variants} == set(rungs)
    wrong = []
    for label, args, expected in _products(op, Inputs(DTYPES[dtype], "cuda"), ODD_SIZES):
        for variant in variants:
            out = getattr(torch.ops.warpsmith, variant.op_name)(*args)
            found = testing.compare(op, out, args, variant=variant, label=label, expected=expected)
            if not found.ok:
                wrong.append(found.message)
    assert not wrong, "\n".join(wrong)


# --- sums in 16 bits ------------------------------------------------------------------------------

LOW_PRECISION = [v for name in ("matmul", "gemv") for v in catalogue.get(name).variants]
LOW_PRECISION = [v for v in LOW_PRECISION if v.low_precision]


def _beyond_f16(variant: Variant) -> tuple[Tensor, Tensor]:
    """Zero, as a sum of products that are each beyond f16: the second half of k takes back what the
    first added. Any share of k sums to what f16 cannot hold on its way.
    """
    size = 128
    for k in (128, 130):  # rows in whole packs, and not
        signs = torch.ones(k, device="cuda", dtype=torch.float16)
        signs[k // 2 :] = -1
        a = (300 * signs).expand(size, k).contiguous()
        if variant.op.name == "gemv":
            return a, torch.full((k,), 300.0, device="cuda", dtype=torch.float16)
        b = torch.full((size, k), 300.0, device="cuda", dtype=torch.float16)
        for x in (b.t().contiguous(), b.t()):
            if dispatch.refusal(variant, (a, x, False), None) is None:
                return a, x
    raise AssertionError(f"{variant.op_name} takes none of these")


@pytest.mark.gpu
@pytest.mark.parametrize("variant", LOW_PRECISION, ids=str)
def test_f16_accumulators_overflow_as_documented(variant: Variant) -> None:
    if not dispatch.load(variant.op.library):
        pytest.skip("needs the compiled library")
    if "cute" in variant.rung.name and not dispatch.built_with_cutlass(variant.op.library):
        pytest.skip("built without CUTLASS")
    args = _beyond_f16(variant)
    low = getattr(torch.ops.warpsmith, variant.op_name)(*args)
    assert not low.isfinite().any()
    if "f32" in variant.rung.accumulators_of("f16"):
        wide = variant.op_name.removesuffix("_f16") + "_f32"
        assert (getattr(torch.ops.warpsmith, wide)(*args) == 0).all()
    assert (getattr(torch.ops.warpsmith, variant.op.name)(*args) == 0).all()


# --- products without a derivative ----------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("variant", [None, "naive"])
@pytest.mark.parametrize("op", ["gemv_scaled", "gemv_complex"])
def test_backward_says_which_operator_has_no_derivative(
    op: str, variant: str | None, device: str
) -> None:
    if op == "gemv_scaled":
        a = torch.ones(4, 8, device=device, dtype=torch.int8)
        x = torch.randn(8, device=device, requires_grad=True)
        args: tuple[Tensor, ...] = (a, x, torch.ones(4, device=device))
        named = "i8_f32"
    else:
        x = torch.randn(8, 2, device=device, requires_grad=True)
        args = (torch.randn(4, 8, 2, device=device), x)
        named = "f32"
    out = getattr(warpsmith, op)(*args, variant=named if variant else None)
    assert out.requires_grad
    with pytest.raises(RuntimeError, match=rf"{op}: the derivative .* is not implemented"):
        out.sum().backward()


def test_a_real_vector_does_not_fit_a_complex_matrix() -> None:
    a, x = torch.randn(4, 8, dtype=torch.complex64), torch.randn(8)
    with pytest.raises(RuntimeError, match=r"expected x to have dtype torch\.complex64 like a"):
        warpsmith.gemv_complex(a, x)
    with pytest.raises(RuntimeError, match=r"expected x to have dtype torch\.float32 like a"):
        warpsmith.gemv_complex(torch.randn(4, 8, 2), x + 0j)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradcheck_of_linear(activation: str) -> None:
    inputs = Inputs(torch.float64)
    x, weight, bias = (
        inputs.randn(*shape, salt=i).requires_grad_()
        for i, shape in enumerate([(3, 4), (5, 4), (5,)])
    )
    assert torch.autograd.gradcheck(
        lambda *leaves: warpsmith.linear(*leaves, activation=activation), (x, weight, bias)
    )


def test_more_products_than_a_grid_has_blocks() -> None:
    a = torch.ones(1, 2, 8, dtype=torch.float16)
    for batch, naive in ((1 << 31, True), ((1 << 31) - 1, False)):
        batched = a.expand(batch, 2, 8)
        choice = warpsmith.which("matmul", batched, batched.transpose(1, 2), sm=90)
        assert choice.variant is not None
        assert (choice.variant.rung.name == "naive") is naive


@pytest.mark.gpu
def test_a_thread_may_begin_with_a_product() -> None:
    """Autograd's does: it makes no context current where its tensors come from the cache, and the
    driver makes maps of tensors with a current context alone.
    """
    a, b = (torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    wanted = warpsmith.matmul(a, b)
    warpsmith.matmul(a, b)  # leaves the cache what another result needs
    with ThreadPoolExecutor(1) as pool:
        assert torch.equal(pool.submit(warpsmith.matmul, a, b).result(), wanted)


# --- training with experts in fp8 -----------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_gradients_of_grouped_products_in_fp8(device: str) -> None:
    """Both gradients by `scaled_grouped_matmul`, with what `quantize_fp8` makes of the operands,
    are those of the product in f32, as near as three bits of a mantissa bring them.
    """
    generator = torch.Generator().manual_seed(38)
    x, w, dy = (
        torch.randn(*shape, generator=generator).to(device)
        for shape in ((96, 64), (3, 48, 64), (96, 48))  # w: [groups, n, k]
    )
    offs = torch.tensor((37, 37, 96), dtype=torch.int32, device=device)
    leaves = x.clone().requires_grad_(), w.clone().requires_grad_()
    y = warpsmith.grouped_matmul(leaves[0], leaves[1].mT, offs)
    wanted = (y.detach(), *torch.autograd.grad(y, leaves, dy))

    def near(t: Tensor) -> tuple[Tensor, Tensor]:
        return warpsmith.quantize_fp8(t, dtype=torch.float8_e4m3fn)

    def ranging(t: Tensor) -> tuple[Tensor, Tensor]:
        return warpsmith.quantize_fp8(t, dtype=torch.float8_e5m2)

    (qx, sx), (qw, sw), (qdy, sdy) = near(x), near(w), ranging(dy)
    forward = warpsmith.scaled_grouped_matmul(qx, qw.mT, offs, sx, sw, "f32")
    (by_k, of_k), (xt, of_x), (dyt, of_dy) = near(w.mT), near(x.t()), ranging(dy.t())
    dx = warpsmith.scaled_grouped_matmul(qdy, by_k.mT, offs, sdy, of_k, "f32")
    dw = warpsmith.scaled_grouped_matmul(
        dyt, xt.t(), offs, of_dy.expand(3, -1), of_x.expand(3, -1), "f32"
    )
    for name, got, exact in zip(("y", "dx", "dw"), (forward, dx, dw), wanted, strict=True):
        assert got.shape == exact.shape
        error = (got - exact).norm() / exact.norm()
        # of one factor by 2^-4 at most, in e5m2 2^-3; spread evenly, by 0.58 of that
        assert error < 0.58 * math.hypot(2**-4, 2**-4 if name == "y" else 2**-3), name
        assert error > 0.01, f"{name} is no product of fp8"
    assert not dw[1].any()  # a group without tokens
