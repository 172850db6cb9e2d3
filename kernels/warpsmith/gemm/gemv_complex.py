"""A complex matrix times a few complex vectors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.core import catalogue, dispatch, into
from warpsmith.core.catalogue import PACK, Cost, Op, Property, Rung
from warpsmith.gemm import gemv_complex_cases as cases
from warpsmith.gemm import layout
from warpsmith.spec.checks import shape_text, wide_dtype
from warpsmith.spec.rows import MOST_ROWS, address

_OP = "gemv_complex"


def _check(a: Tensor, x: Tensor) -> None:
    if not a.is_floating_point():
        raise RuntimeError(f"{_OP}: expected a to be a floating-point tensor, got {a.dtype}")
    if catalogue.is_fp8(a.dtype):
        raise RuntimeError(f"{_OP}: expected a to have at least 16 bits an element, got {a.dtype}")
    if a.dim() != 3 or a.shape[2] != 2:
        raise RuntimeError(f"{_OP}: expected a to have shape (m, k, 2), got shape {shape_text(a)}")
    layout.check_device_of_x(_OP, x, a)
    if x.dtype != a.dtype:
        raise RuntimeError(f"{_OP}: expected x to have dtype {a.dtype} like a, got {x.dtype}")
    k = a.shape[1]
    if x.dim() not in (2, 3) or x.shape[-2:] != (k, 2):
        raise RuntimeError(
            f"{_OP}: expected x to have shape ({k}, 2) or (vectors, {k}, 2), "
            f"got shape {shape_text(x)}"
        )
    if x.dim() == 3 and x.shape[0] > layout.MOST_VECTORS:
        raise RuntimeError(
            f"{_OP}: expected x to have at most {layout.MOST_VECTORS} vectors, got {x.shape[0]}"
        )


def _reference(a: Tensor, x: Tensor) -> Tensor:
    wide = wide_dtype(a.dtype)
    a_real, a_imaginary = a.to(wide).unbind(-1)
    x_real, x_imaginary = x.to(wide).unbind(-1)
    real = F.linear(x_real, a_real) - F.linear(x_imaginary, a_imaginary)
    imaginary = F.linear(x_imaginary, a_real) + F.linear(x_real, a_imaginary)
    return torch.stack((real, imaginary), -1).to(a.dtype)


def _count(x: Tensor) -> int:
    return 1 if x.dim() == 2 else x.shape[0]


def _countable(a: Tensor, x: Tensor) -> str | None:
    fits = a.shape[0] <= MOST_ROWS and a.shape[1] <= MOST_ROWS // 2
    if fits or layout.is_empty(a, x):
        return None
    return "needs m of at most 2^31 - 1, and half as much for k"


def _packs(a: Tensor, x: Tensor) -> str | None:
    if why := _countable(a, x):
        return why
    m, k = a.shape[:2]
    width = 16 // a.element_size()
    pairs = a.stride(2) == 1 and (k == 1 or a.stride(1) == 2)
    tiled = 2 * k % width == 0 and (m == 1 or a.stride(0) % width == 0) and address(a) % 16 == 0
    return None if layout.is_empty(a, x) or (pairs and tiled) else "needs rows aligned to 16 bytes"


gemv_complex_op = catalogue.add(
    Op(
        "gemv_complex(Tensor a, Tensor x) -> Tensor",
        family="gemm",
        reference=_reference,
        ladder=(
            Rung("naive", "a thread per row, weights of any strides", when=_countable),
            Rung(
                "pack",
                "two rows per warp, 128-bit loads of two or four pairs",
                width=PACK,
                pack=True,
                when=_packs,
                seeds=("complex_half_gemv_{dtype}",),
            ),
        ),
        triton="gemv_complex_triton:gemv_complex",
        fake=lambda a, x: x.new_empty((*x.shape[:-2], a.shape[0], 2)),
        check=_check,
        accumulates=True,
        samples=cases.samples(),
        errors=cases.ERRORS,
        properties=(
            Property("deterministic", cases.deterministic),
            Property("turns with its vector", cases.turns),
        ),
        cost=Cost(
            bytes=lambda a, x: (
                (a.numel() + x.numel() + _count(x) * a.shape[0] * 2) * a.element_size()
            ),
            flops=lambda a, x: 4 * a.numel() * _count(x),
        ),
        bench=cases.BENCH,
    )
)
dispatch.register(gemv_complex_op)
_gemv_complex = dispatch.public(gemv_complex_op)
_gemv_complex_into = into.register(gemv_complex_op)


def gemv_complex(
    a: Tensor, x: Tensor, *, out: Tensor | None = None, variant: str | None = None
) -> Tensor:
    """A complex matrix times one complex vector or a few, complex half included:
    `y[row] = a[row, 0] * x[0] + a[row, 1] * x[1] + ...`.

    Both parts are added in f32 and rounded once. Not differentiable: backward raises.

    Args:
        a: [m, k], complex32 (`torch.chalf`) or complex64; or [m, k, 2], f32, f16 or bf16 pairs of
            a real and an imaginary part. Any strides.
        x: [k] or [vectors, k] with at most 16 vectors, or the same with a last dimension of 2, of
            the dtype and device of a, any strides.
        out: a tensor for the result, best contiguous, of its shape and dtype, which is returned;
            with no variant.
        variant: one rung by name instead of the best one, "f16x8_pack_f32".

    Returns:
        [m] or [vectors, m], complex where a is, otherwise with a last dimension of 2; contiguous;
        zeros where k is 0.

    Raises:
        RuntimeError: a is neither complex nor floating-point, or of another shape; x has another
            dtype or device, does not fit a, or has more than 16 vectors; the variant cannot take
            the input.
        ValueError: the variant does not exist, or comes with out.

    Reference:
        `torch.mv` of complex tensors.
    """
    if not (isinstance(a, Tensor) and a.is_complex() and isinstance(x, Tensor)):
        if out is not None:
            return _gemv_complex_into(out, variant, a, x)  # type: ignore[no-any-return]
        return _gemv_complex(variant, a, x)
    if a.dim() != 2:
        raise RuntimeError(f"{_OP}: expected a to have shape (m, k), got shape {shape_text(a)}")
    if x.dtype != a.dtype:
        raise RuntimeError(f"{_OP}: expected x to have dtype {a.dtype} like a, got {x.dtype}")
    if isinstance(out, Tensor) and out.dtype == a.dtype and not out.is_conj():
        _gemv_complex_into(torch.view_as_real(out), variant, _pairs(a), _pairs(x))
        return out
    y = torch.view_as_complex(_gemv_complex(variant, _pairs(a), _pairs(x)))
    return y if out is None else into.copied(_OP, y, out, variant)


def _pairs(x: Tensor) -> Tensor:
    return torch.view_as_real(x.resolve_conj())
