"""A matrix times a few vectors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.core import catalogue, dispatch, into
from warpsmith.core.catalogue import PACK, Condition, Cost, Gradients, Needs, Op, Property, Rung
from warpsmith.gemm import gemv_cases as cases
from warpsmith.gemm import layout

# --- checks ---------------------------------------------------------------------------------------


def _check(a: Tensor, x: Tensor) -> None:
    if not a.is_floating_point():
        raise RuntimeError(f"gemv: expected a to be a floating-point tensor, got {a.dtype}")
    if catalogue.is_fp8(a.dtype):
        raise RuntimeError(f"gemv: expected a to have at least 16 bits an element, got {a.dtype}")
    layout.check_matrix("gemv", a)
    layout.check_device_of_x("gemv", x, a)
    if x.dtype != a.dtype:
        raise RuntimeError(f"gemv: expected x to have dtype {a.dtype} like a, got {x.dtype}")
    layout.check_vectors("gemv", x, a)


# --- gradients ------------------------------------------------------------------------------------


def _backward(grad: Tensor, a: Tensor, x: Tensor, needs: Needs) -> Gradients:
    grad_a = grad_x = None
    if "a" in needs:
        one = x.dim() == 1
        grad_a = torch.outer(grad, x) if one else torch.ops.warpsmith.matmul(grad.t(), x)
    if "x" in needs:
        grad_x = torch.ops.warpsmith.gemv(a.t(), grad)
    return {"a": grad_a, "x": grad_x}


# --- the ladder -----------------------------------------------------------------------------------


def _when(condition: Callable[[Tensor], str | None]) -> Condition:
    """A condition on the weights; an empty product runs no kernel and needs nothing."""
    return lambda a, x: None if layout.is_empty(a, x) else condition(a)


def _needs_x4(a: Tensor) -> str | None:
    if why := layout.needs_rows(a):
        return why
    return None if layout.tiles_weights(a, 4) else "needs rows aligned to 4 values"


def _needs_short_rows(a: Tensor) -> str | None:
    if why := layout.needs_rows(a):
        return why
    return None if a.shape[1] <= 128 else "needs k of at most 128"


def _needs_short_packs(a: Tensor) -> str | None:
    if why := layout.needs_packs(a):
        return why
    return None if _row_bytes(a) <= 2048 else "needs rows of at most 2 KiB"


def _pitch(a: Tensor) -> int:
    """Values from one row to the next."""
    return a.shape[1] if a.shape[0] == 1 else a.stride(0)


def _needs_close_rows(a: Tensor) -> str | None:
    if why := _needs_short_rows(a):
        return why
    if _pitch(a) > 2 * a.shape[1]:
        return "needs rows that lie at most twice their length apart"
    return None


def _needs_columns(a: Tensor) -> str | None:
    if why := layout.needs_countable(a):
        return why
    return None if layout.has_contiguous_columns(a) else "needs weights with contiguous columns"


def _needs_column_packs(a: Tensor) -> str | None:
    if why := _needs_columns(a):
        return why
    width = 16 // a.element_size()
    if not layout.tiles_weights(a.t(), width):
        return "needs columns aligned to 16 bytes"
    return None if a.shape[1] % width == 0 else "needs k of whole packs of 16 bytes"


def _row_bytes(a: Tensor) -> int:
    return a.shape[1] * a.element_size()


def _most_block_vectors(a: Tensor) -> int:
    return 1 if a.element_size() == 2 else 2


def _suits(good: Callable[[Tensor, int], bool], why_not: str) -> Condition:
    return lambda a, x: None if good(a, layout.vector_count(x)) else why_not


_F16_SUMS = {"f32": ("f32",), "f16": ("f16", "f32"), "bf16": ("f32",)}

_LADDER = (
    Rung("naive", "a thread per row, weights of any strides", when=_when(layout.needs_countable)),
    Rung(
        "k16",
        "short rows: two of them per warp, a value per lane",
        technique="k16",
        accumulators=_F16_SUMS,
        when=_when(_needs_short_rows),
        suits=_suits(lambda a, n: a.shape[1] <= 32, "the row is longer than 32 values"),
        seeds=("sgemv_k16_{dtype}", "hgemv_k16_{dtype}", "gemv_n16_rows_per_warp_{dtype}:f32"),
    ),
    Rung(
        "k32",
        "a warp per row, a value per lane, shuffles",
        technique="k32",
        accumulators=_F16_SUMS,
        when=_when(layout.needs_rows),
        suits=_suits(lambda a, n: a.shape[1] > 32, "the row has at most 32 values"),
        seeds=("sgemv_k32_{dtype}", "hgemv_k32_{dtype}", "gemv_n32_{dtype}:f32"),
    ),
    Rung(
        "k128",
        "four values per lane and load",
        width=4,
        technique="k128",
        accumulators=_F16_SUMS,
        when=_when(_needs_x4),
        suits=_suits(lambda a, n: a.shape[1] > 64, "the row has at most 64 values"),
        seeds=("sgemv_k128_{dtype}x4", "hgemv_k128_{dtype}x4", "gemv_n128_float4_{dtype}:f32"),
    ),
    Rung(
        "staged_rows",
        "short rows of any length: a stretch of them in shared memory, a thread per row",
        technique="staged_rows",
        when=_when(_needs_close_rows),
        suits=_suits(
            lambda a, n: _pitch(a) % (16 // a.element_size()) != 0,
            "rows that lie whole packs of 16 bytes apart meet in the banks of shared memory",
        ),
    ),
    Rung(
        "pack",
        "128-bit loads, four of them in flight",
        width=PACK,
        pack=True,
        when=_when(layout.needs_packs),
        suits=_suits(lambda a, n: a.shape[1] >= 128, "the row has less than 128 values"),
    ),
    Rung(
        "rows",
        "four rows per warp share what it reads of the vector",
        width=PACK,
        pack=True,
        technique="rows",
        when=_when(layout.needs_packs),
        suits=_suits(lambda a, n: a.shape[1] >= 256, "the row has less than 256 values"),
    ),
    Rung(
        "short_rows",
        "rows of up to 2 KiB: a lane per pack, eight packs of several rows in flight, once for "
        "all vectors",
        width=PACK,
        pack=True,
        technique="short_rows",
        when=_when(_needs_short_packs),
    ),
    Rung(
        "columns",
        "weights that lie column by column: neighbouring rows of the result, k over warps and "
        "blocks",
        technique="columns",
        when=_when(_needs_columns),
        suits=_suits(lambda a, n: not layout.has_contiguous_rows(a), "the rows are contiguous"),
    ),
    Rung(
        "skinny_columns",
        "weights that lie column by column, through rings of asynchronous copies, once for all "
        "vectors, into tensor cores (16 bits) or tiles of registers (f32)",
        width=PACK,
        pack=True,
        technique="skinny_columns",
        when=_when(_needs_column_packs),
        suits=_suits(
            lambda a, n: (
                not layout.has_contiguous_rows(a)
                and a.shape[1] >= 512
                and (n > 1 or a.element_size() == 2)
            ),
            "the rows are contiguous, k so short that it leaves warps without a share, or one "
            "vector in f32",
        ),
    ),
    Rung(
        "block",
        "all threads of a block along the same four rows: many short blocks",
        width=PACK,
        pack=True,
        technique="block",
        when=_when(layout.needs_packs),
        suits=_suits(
            lambda a, n: n <= _most_block_vectors(a) and _row_bytes(a) >= 2048,
            "rows of less than 2 KiB, or more vectors than one, two in f32",
        ),
    ),
    Rung(
        "split_k",
        "few long rows: slices of k over blocks, added up by a second launch",
        width=PACK,
        pack=True,
        technique="split_k",
        when=_when(layout.needs_packs),
        suits=_suits(
            lambda a, n: (
                n <= _most_block_vectors(a) and a.shape[0] <= 1024 and _row_bytes(a) >= 16384
            ),
            "the rows fill the GPU, or are short, or more vectors than one, two in f32",
        ),
    ),
    Rung(
        "skinny",
        "several vectors: weights through rings of asynchronous copies, once for all vectors, "
        "into tensor cores (16 bits) or tiles of registers (f32)",
        width=PACK,
        pack=True,
        technique="skinny",
        when=_when(layout.needs_packs),
        suits=_suits(
            lambda a, n: n > _most_block_vectors(a) and _row_bytes(a) >= 1024,
            "one vector, in f32 at most two, or rows of less than 1 KiB",
        ),
    ),
)


def _terms(a: Tensor, x: Tensor) -> Tensor:
    return a * (x if x.dim() == 1 else x.unsqueeze(-2))


gemv_op = catalogue.add(
    Op(
        "gemv(Tensor a, Tensor x) -> Tensor",
        family="gemm",
        reference=lambda a, x: F.linear(x, a),
        ladder=_LADDER,
        triton="gemv_triton:gemv",
        fake=lambda a, x: layout.empty_product(a, x, a.dtype),
        check=_check,
        backward=_backward,
        accumulates=True,
        terms=_terms,
        samples=cases.samples(),
        errors=cases.ERRORS,
        properties=(
            Property("deterministic", cases.deterministic),
            Property("whole numbers are exact", cases.whole_numbers),
            Property("vectors do not mix", cases.vectors_do_not_mix),
        ),
        cost=Cost(
            bytes=lambda a, x: (
                (a.numel() + x.numel() + layout.vector_count(x) * a.shape[0]) * a.element_size()
            ),
            flops=lambda a, x: 2 * a.numel() * layout.vector_count(x),
        ),
        bench=cases.bench(),
    )
)
dispatch.register(gemv_op)
_gemv = dispatch.public(gemv_op)
_gemv_into = into.register(gemv_op)


def gemv(a: Tensor, x: Tensor, *, out: Tensor | None = None, variant: str | None = None) -> Tensor:
    """A matrix times one vector or a few: `y[row] = a[row, 0] * x[0] + a[row, 1] * x[1] + ...`.

    For a batch of vectors this is a linear layer without bias at the batch sizes of decoding: the
    weights are read once for all of them. Products are added in f32 and rounded once; the same
    inputs give the same bits on every run. Differentiable in a and x.

    Args:
        a: [m, k], the weights, f32, f16 or bf16 (f64 by the reference), any strides: rows of any
            pitch, and transposed views, are read where they lie.
        x: [k] or [vectors, k] with at most 16 vectors, of the dtype and device of a, any strides.
        out: a tensor for the result, best contiguous, of its shape and dtype, which is returned;
            not differentiable, and with no variant.
        variant: one rung by name instead of the best one, "bf16x8_pack_skinny_f32". Those of f16
            whose name ends in "f16" add in f16: they overflow beyond 65504 and keep 11 bits.

    Returns:
        [m] or [vectors, m], contiguous, of the dtype of a; zeros where k is 0.

    Raises:
        RuntimeError: a is not floating-point, or fp8, or not 2-D; x has another dtype or device,
            does not fit a, or has more than 16 rows; the variant cannot take the input.
        ValueError: the variant does not exist, or comes with out.

    Reference:
        `torch.mv(a, x)`, and `torch.nn.functional.linear(x, a)`.
    """
    if out is not None:
        return _gemv_into(out, variant, a, x)  # type: ignore[no-any-return]
    return _gemv(variant, a, x)
