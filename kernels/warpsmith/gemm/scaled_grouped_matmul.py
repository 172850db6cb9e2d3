"""Products of groups of fp8 values, of rows or along k, with scales."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch, into
from warpsmith.core.catalogue import FP8, Condition, Cost, Op, Property, Rung
from warpsmith.gemm import scaled_grouped_cases as cases
from warpsmith.gemm.grouped import (
    Check,
    GroupedProblem,
    condition,
    grouped_problem,
    needs_along_k,
    needs_countable_tiles,
    needs_few_groups,
    needs_lines_for_maps,
    needs_operand_packs_16,
    needs_rows,
)
from warpsmith.gemm.grouped_matmul import check_ends, check_groups, result_shape, spans
from warpsmith.gemm.grouped_plan import SCALED_MENU, GroupedSizes, choose
from warpsmith.gemm.ladder_wgmma import multiprocessors
from warpsmith.gemm.matmul import name_of_dtype
from warpsmith.gemm.scaled_matmul import OUT_DTYPES, coarse_sum_error, result_dtype
from warpsmith.spec.checks import check_device, shape_text

_OP = "scaled_grouped_matmul"


def _check_matrix(name: str, x: Tensor, ranks: tuple[int, ...]) -> None:
    if not catalogue.is_fp8(x.dtype) and x.dtype != torch.float64:
        raise RuntimeError(f"{_OP}: expected {name} to be an fp8 tensor, got {x.dtype}")
    if x.dim() not in ranks:
        wanted = " or ".join(f"{rank}-D" for rank in ranks)
        raise RuntimeError(f"{_OP}: expected {name} to be {wanted}, got shape {shape_text(x)}")


def _check_scale(
    name: str, scale: Tensor, dtype: torch.dtype, x: Tensor, wanted: tuple[int, ...], of: str
) -> None:
    check_device(_OP, name, scale, x, "x")
    if scale.dtype != dtype:
        raise RuntimeError(f"{_OP}: expected {name} to have dtype {dtype}, got {scale.dtype}")
    if tuple(scale.shape) != wanted:
        raise RuntimeError(
            f"{_OP}: expected {name} to have shape {wanted}, one value per {of}, "
            f"got {shape_text(scale)}"
        )


def _check(
    x: Tensor, w: Tensor, offs: Tensor, scale_x: Tensor, scale_w: Tensor, out_dtype: str
) -> None:
    _check_matrix("x", x, (2,))
    _check_matrix("w", w, (2, 3))
    check_device(_OP, "w", w, x, "x")
    check_groups(_OP, x, w, offs)
    wide = torch.float64 if torch.float64 in (x.dtype, w.dtype, scale_x.dtype) else torch.float32
    of_rows, of_columns = (offs.shape[0], x.shape[0]), (offs.shape[0], w.shape[-1])
    if w.dim() == 2:
        _check_scale("scale_x", scale_x, wide, x, of_rows, "group and row of x")
        _check_scale("scale_w", scale_w, wide, x, of_columns, "group and column of w")
    else:
        _check_scale("scale_x", scale_x, wide, x, of_rows[1:], "row of x")
        _check_scale("scale_w", scale_w, wide, x, of_columns, "column of each matrix of w")
    if out_dtype not in OUT_DTYPES:
        raise RuntimeError(
            f"{_OP}: expected out_dtype to be 'f16', 'bf16' or 'f32', got '{out_dtype}'"
        )


def reference(
    x: Tensor, w: Tensor, offs: Tensor, scale_x: Tensor, scale_w: Tensor, out_dtype: str
) -> Tensor:
    check_ends("scaled_grouped_matmul", x, w, offs)
    wide, along_k = scale_x.dtype, w.dim() == 2
    out = x.new_zeros(result_shape(x, w, offs), dtype=wide)
    for group, span in enumerate(spans(offs, x.shape[1 if along_k else 0])):
        if span.start == span.stop or w.shape[-2] == 0:  # no products, whatever their scales
            continue
        if along_k:
            product = torch.matmul(x[:, span].to(wide), w[span].to(wide))
            out[group] = product * (scale_x[group, :, None] * scale_w[group])
        else:
            product = torch.matmul(x[span].to(wide), w[group].to(wide))
            out[span] = product * (scale_x[span, None] * scale_w[group])
    return out.to(result_dtype(scale_x, out_dtype))


def _eager(
    x: Tensor, w: Tensor, offs: Tensor, scale_x: Tensor, scale_w: Tensor, out_dtype: str
) -> Tensor:
    """Dequantisation before the products, as PyTorch users write it."""
    if w.dim() == 2 or not x.is_cuda:
        return reference(x, w, offs, scale_x, scale_w, out_dtype)
    dtype = OUT_DTYPES[out_dtype]
    left = x.to(dtype) * scale_x.to(dtype).unsqueeze(-1)
    right = w.to(dtype) * scale_w.to(dtype).unsqueeze(1)
    return torch.nn.functional.grouped_mm(left, right, offs=offs)


def _suits_naive(x: Tensor, w: Tensor, offs: Tensor) -> str | None:
    p = grouped_problem(x, w, offs)
    depth = p.k + p.groups if p.along_k else p.k
    few = p.empty or p.m * p.n <= 2**24 // depth
    return None if few else "the products are large"


def _needs_w_column_major(p: GroupedProblem) -> str | None:
    return "needs w column-major" if p.w.by_rows else None


def _when_wgmma(kind: Check) -> Condition:
    of_kind, capable = condition(kind), condition(wgmma=True)
    rest = condition(
        needs_few_groups, _needs_w_column_major, needs_lines_for_maps, needs_countable_tiles
    )

    def when(x: Tensor, w: Tensor, offs: Tensor, out_dtype: str = "bf16") -> str | None:
        if grouped_problem(x, w, offs).empty:
            return None
        if why := of_kind(x, w, offs) or capable(x, w, offs):
            return why
        return "gives f16 and bf16" if out_dtype == "f32" else rest(x, w, offs)

    return when


def _plan_wgmma(x: Tensor, w: Tensor, offs: Tensor, fast_accum: bool = False) -> str | None:
    p = grouped_problem(x, w, offs)
    if p.empty:
        return None
    sizes = GroupedSizes(p.groups, p.m, p.n, p.k, size=1, sm_count=multiprocessors())
    return str(choose(sizes, SCALED_MENU if fast_accum else SCALED_MENU[:-1]))


def _sum_error(x: Tensor, w: Tensor, fast_accum: bool = False) -> float:
    return coarse_sum_error(x, x.shape[1] if fast_accum and w.dim() == 3 else 128)


_LADDER = (
    Rung("naive", "a thread per element, any layout", dtypes=FP8, suits=_suits_naive),
    Rung(
        "mma_groups",
        "tensor cores, m16n8k32 of either format: blocks that walk the tiles of all groups",
        dtypes=FP8,
        technique="mma_groups",
        min_sm=89,
        when=condition(
            needs_rows,
            needs_few_groups,
            _needs_w_column_major,
            needs_operand_packs_16,
            needs_countable_tiles,
        ),
    ),
    Rung(
        "mma_along_k",
        "tensor cores, groups along k: chunks that a group begins or ends in through registers",
        dtypes=FP8,
        technique="mma_along_k",
        min_sm=89,
        when=condition(needs_along_k, needs_operand_packs_16, needs_countable_tiles),
    ),
    Rung(
        "wgmma_groups",
        "wgmma of either format, boxes cut where groups end, sums promoted every 128 of k",
        dtypes=FP8,
        technique="wgmma_groups",
        min_sm=90,
        when=_when_wgmma(needs_rows),
        plan=_plan_wgmma,
        coarse_sums=True,
    ),
    Rung(
        "wgmma_along_k",
        "wgmma, groups along k: what is another group's is cleared in shared memory",
        dtypes=FP8,
        technique="wgmma_along_k",
        min_sm=90,
        when=_when_wgmma(needs_along_k),
        coarse_sums=True,
    ),
)


def _bytes(
    x: Tensor, w: Tensor, offs: Tensor, scale_x: Tensor, scale_w: Tensor, out_dtype: str
) -> int:
    written = OUT_DTYPES[out_dtype].itemsize * math.prod(result_shape(x, w, offs))
    scales = scale_x.numel() + scale_w.numel()
    return x.numel() + w.numel() + written + 4 * (scales + offs.numel())


scaled_grouped_matmul_op = catalogue.add(
    Op(
        "scaled_grouped_matmul(Tensor x, Tensor w, Tensor offs, Tensor scale_x, "
        "Tensor scale_w, str out_dtype='bf16', bool fast_accum=False) -> Tensor",
        family="gemm",
        reference=reference,
        ladder=_LADDER,
        triton="scaled_grouped_matmul_triton:scaled_grouped_matmul",
        fake=lambda x, w, offs, scale_x, out_dtype: x.new_empty(
            result_shape(x, w, offs), dtype=result_dtype(scale_x, out_dtype)
        ),
        check=_check,
        sum_error=_sum_error,
        samples=cases.samples(),
        errors=cases.ERRORS,
        properties=(
            Property("whole numbers are exact", cases.whole_numbers),
            Property("whole numbers are exact along k", cases.whole_numbers_along_k),
            Property("rows of no group", cases.rows_of_no_group),
        ),
        cost=Cost(
            bytes=_bytes,
            flops=lambda x, w: 2 * x.shape[0] * x.shape[1] * w.shape[-1],
        ),
        bench=cases.bench(),
        bench_dtypes=FP8[:1],
        eager=_eager,
        peers={"scaled_grouped_mm": lambda: cases.scaled_grouped_mm},
    )
)
dispatch.register(scaled_grouped_matmul_op)
_scaled_grouped_matmul = dispatch.public(scaled_grouped_matmul_op)
_scaled_grouped_matmul_into = into.register(scaled_grouped_matmul_op)


def scaled_grouped_matmul(
    x: Tensor,
    w: Tensor,
    offs: Tensor,
    scale_x: Tensor,
    scale_w: Tensor,
    out_dtype: str | torch.dtype = "bf16",
    *,
    fast_accum: bool = False,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """Products of groups of quantised rows, each with a quantised matrix of its own:
    `y[r, j] = scale_x[r] * scale_w[g, j] * (x[r] w[g])[j]` for the rows r of group g, which are
    `offs[g - 1]` to `offs[g] - 1`, from 0 on.

    With a 2-D w, groups are cut along k:
    `y[g, i, j] = scale_x[g, i] * scale_w[g, j] * (x_g w_g)[i, j]`, with the columns of x and the
    rows of w that belong to group g, and zeros where none do.

    Products are exact; sums are held in f32, scaled once and rounded once. Not differentiable, but
    both forms together are training: of `y = scaled_grouped_matmul(x, w, offs, ...)`, with the
    gradient dy quantised by rows and the weights quantised anew by rows of theirs,
    `scaled_grouped_matmul(dy, w.mT, offs, ...)` is the gradient of x; with x and dy quantised by
    columns of each group, `scaled_grouped_matmul(x.t(), dy, offs, ...)` that of w. Its operands are
    best stored the other way round, by features, as tensor cores read fp8 along k alone.

    Args:
        x: [m, k], e4m3 or e5m2, any strides; best row-major, with k a multiple of 16.
        w: [groups, k, n], either format, of the device of x, any strides; best column-major:
            weights [groups, n, k] with the last two dimensions swapped. Or [k, n], which cuts
            groups along k; best column-major.
        offs: int32, [groups]: where each group ends. They do not decrease, and the last is m at
            most, or k: rows past it belong to no group, and the result holds anything there.
        scale_x: f32, [m], or [groups, m] of groups along k. In f64, as then scale_w has to be, it
            asks for a reference in f64, which takes x and w in f64 too.
        scale_w: f32, [groups, n].
        out_dtype: "f16", "bf16" or "f32", or as a torch.dtype.
        fast_accum: whether sums may stay in the tensor cores of sm_90 over all of k, which keep
            some 14 bits of them, as with `use_fast_accum` in `torch._scaled_grouped_mm`. Otherwise
            they are added up in f32 every 128 values. Without effect elsewhere, and on groups
            along k.
        out: a tensor for the result, best contiguous, of its shape and dtype, which is returned
            (`docs/pytorch.md`, results in tensors of the caller). With no
            variant.
        variant: one rung by name instead of the best one, "e4m3_wgmma_groups".

    Returns:
        A contiguous tensor [m, n], or [groups, m, n] of groups along k, of dtype `out_dtype`.

    Raises:
        RuntimeError: x or w is not fp8; dtypes, devices or shapes do not fit, of a scale or of
            the ends either; offs decrease or lie outside of the rows, which is seen on a CPU alone;
            there is no such out_dtype; the variant cannot take the input.
        ValueError: the variant does not exist, or comes with out.

    Reference:
        `torch._scaled_grouped_mm`.
    """
    given = (x, w, offs, scale_x, scale_w, name_of_dtype(out_dtype), fast_accum)
    if out is not None:
        return _scaled_grouped_matmul_into(out, variant, *given)  # type: ignore[no-any-return]
    return _scaled_grouped_matmul(variant, *given)
