"""A matrix of 8-bit weights with scales times a few vectors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.core import catalogue, dispatch, into
from warpsmith.core.catalogue import FP8, PACK, Condition, Cost, Op, Property, Rung
from warpsmith.gemm import gemv_scaled_cases as cases
from warpsmith.gemm import layout
from warpsmith.spec.checks import check_device, shape_text, wide_dtype

_DTYPES = (*FP8, "i8")


def _check(a: Tensor, x: Tensor, scale: Tensor) -> None:
    op = "gemv_scaled"
    if not a.is_floating_point() and a.dtype != torch.int8:
        raise RuntimeError(f"{op}: expected a to be a floating-point or int8 tensor, got {a.dtype}")
    layout.check_matrix(op, a)
    layout.check_device_of_x(op, x, a)
    if not x.is_floating_point():
        raise RuntimeError(f"{op}: expected x to be a floating-point tensor, got {x.dtype}")
    if catalogue.is_fp8(x.dtype):
        raise RuntimeError(f"{op}: expected x to have at least 16 bits an element, got {x.dtype}")
    layout.check_vectors(op, x, a)
    check_device(op, "scale", scale, a, "a")
    if scale.dtype != wide_dtype(x.dtype):
        wide = wide_dtype(x.dtype)
        raise RuntimeError(f"{op}: expected scale to have dtype {wide}, got {scale.dtype}")
    if scale.shape not in ((), a.shape[:1]):
        raise RuntimeError(
            f"{op}: expected scale to have shape () or ({a.shape[0]},), one value per row of a, "
            f"got {shape_text(scale)}"
        )


def _reference(a: Tensor, x: Tensor, scale: Tensor) -> Tensor:
    wide = wide_dtype(x.dtype)
    product = F.linear(x.to(wide), a.to(wide))
    if a.shape[1] == 0:  # no products to scale, by whatever it is, as in torch._scaled_mm
        return product.to(x.dtype)
    return (product * scale.to(wide)).to(x.dtype)


def _eager(a: Tensor, x: Tensor, scale: Tensor) -> Tensor:
    """Weight-only quantisation as PyTorch users write it."""
    return F.linear(x, a.to(x.dtype)) * scale.to(x.dtype)


# --- the ladder -----------------------------------------------------------------------------------


def _countable(a: Tensor, x: Tensor) -> str | None:
    return None if layout.is_empty(a, x) else layout.needs_countable(a)


def _packs(a: Tensor, x: Tensor) -> str | None:
    if why := _countable(a, x):
        return why
    tiled = layout.is_empty(a, x) or layout.tiles_weights(a, 16)
    return None if tiled else "needs rows aligned to 16 bytes"


def _packs_of_16_bits(a: Tensor, x: Tensor) -> str | None:
    if why := _packs(a, x):
        return why
    wide = x.dtype == torch.float32 and not layout.is_empty(a, x)
    return "needs x of 16 bits" if wide else None


def _suits(good: Callable[[Tensor, int], bool], why_not: str) -> Condition:
    return lambda a, x, scale: None if good(a, layout.vector_count(x)) else why_not


def _suits_split_k(a: Tensor, vectors: int) -> bool:
    rows, k = a.shape
    if vectors == 1:  # i8 is widened so fast that a warp to each of many rows does better
        return k >= 1024 and not (a.dtype == torch.int8 and rows >= 8192)
    return vectors == 2 and rows <= 1024 and k >= 16384


_LADDER = (
    Rung("naive", "a thread per row, weights of any strides", dtypes=_DTYPES, when=_countable),
    Rung(
        "pack",
        "a warp per row, 128-bit loads of sixteen weights",
        dtypes=_DTYPES,
        width=PACK,
        pack=True,
        when=_packs,
    ),
    Rung(
        "block",
        "all threads of a block along the same rows, which share what is read of x",
        dtypes=_DTYPES,
        width=PACK,
        pack=True,
        technique="block",
        when=_packs,
        suits=_suits(
            lambda a, n: n > 1 and a.shape[1] >= 1024,
            "a single vector, or rows of less than 1024 values",
        ),
    ),
    Rung(
        "split_k",
        "fewer rows a block; few long ones in slices of k, added up by a second launch",
        dtypes=_DTYPES,
        width=PACK,
        pack=True,
        technique="split_k",
        when=_packs,
        suits=_suits(_suits_split_k, "the rows fill the GPU otherwise, or are short"),
    ),
    Rung(
        "skinny",
        "several vectors: weights through rings of asynchronous copies, widened on their way to "
        "the tensor cores",
        dtypes=_DTYPES,
        width=PACK,
        pack=True,
        technique="skinny",
        when=_packs_of_16_bits,
        suits=_suits(
            lambda a, n: n > 2 and a.shape[1] >= 1024,
            "at most two vectors, or rows of less than 1024 values",
        ),
    ),
)

gemv_scaled_op = catalogue.add(
    Op(
        "gemv_scaled(Tensor a, Tensor x, Tensor scale) -> Tensor",
        family="gemm",
        reference=_reference,
        ladder=_LADDER,
        triton="gemv_scaled_triton:gemv_scaled",
        fake=lambda a, x: layout.empty_product(a, x, x.dtype),
        check=_check,
        accumulates=True,
        samples=cases.samples(),
        errors=cases.ERRORS,
        properties=(
            Property("deterministic", cases.deterministic),
            Property("whole numbers are exact", cases.whole_numbers),
            Property("scales are powers of two", cases.powers_of_two),
        ),
        cost=Cost(
            bytes=lambda a, x, scale: (
                a.numel() * a.element_size()
                + (x.numel() + layout.vector_count(x) * a.shape[0]) * x.element_size()
                + scale.numel() * scale.element_size()
            ),
            flops=lambda a, x: 2 * a.numel() * layout.vector_count(x),
        ),
        bench=cases.bench(),
        bench_dtypes=_DTYPES,
        eager=_eager,
    )
)
dispatch.register(gemv_scaled_op)
_gemv_scaled = dispatch.public(gemv_scaled_op)
_gemv_scaled_into = into.register(gemv_scaled_op)


def gemv_scaled(
    a: Tensor,
    x: Tensor,
    scale: Tensor,
    *,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """8-bit weights with scales times one vector or a few:
    `y[row] = scale[row] * (a[row, 0] * x[0] + a[row, 1] * x[1] + ...)`.

    Only the weights are quantised (weight-only quantisation): products and sums are those of their
    exact values with x, in f32, and each is scaled and rounded once. Half or a quarter of the bytes
    of `gemv`, which is what its time consists of. Not differentiable: backward raises.

    Args:
        a: [m, k], e4m3, e5m2 or int8 (other floating dtypes by Triton or the reference), any
            strides; best with contiguous rows aligned to 16 bytes.
        x: [k] or [vectors, k] with at most 16 vectors, f32, f16 or bf16, any strides.
        scale: f32, one value per row, [m], or one for all of them, of shape ().
        out: a tensor for the result, best contiguous, of its shape and dtype, which is returned;
            with no variant.
        variant: one rung by name instead of the best one, "e4m3x16_pack_skinny_f32".

    Returns:
        [m] or [vectors, m], contiguous, of the dtype of x; zeros where k is 0.

    Raises:
        RuntimeError: a is neither floating-point nor int8, or not 2-D; x is not floating-point, or
            fp8, does not fit a, or has more than 16 rows; scale is not f32, or of another shape; x
            or scale is on another device; the variant cannot take the input.
        ValueError: the variant does not exist, or comes with out.

    Reference:
        `torch.nn.functional.linear(x.float(), a.float()) * scale`, rounded to the dtype of x.
    """
    if out is not None:
        return _gemv_scaled_into(out, variant, a, x, scale)  # type: ignore[no-any-return]
    return _gemv_scaled(variant, a, x, scale)
