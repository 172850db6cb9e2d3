"""Products of groups of fp8 rows, each with a matrix of its own, with scales."""

from __future__ import annotations

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import FP8, Cost, Op, Property, Rung
from warpsmith.gemm import scaled_grouped_cases as cases
from warpsmith.gemm.grouped import (
    GroupedProblem,
    condition,
    grouped_problem,
    needs_countable_tiles,
    needs_few_groups,
    needs_lines_for_maps,
)
from warpsmith.gemm.grouped_matmul import check_groups, spans
from warpsmith.gemm.grouped_plan import SCALED_MENU, GroupedSizes, choose
from warpsmith.gemm.ladder_wgmma import multiprocessors
from warpsmith.gemm.matmul import name_of_dtype
from warpsmith.gemm.scaled_matmul import OUT_DTYPES, coarse_sum_error, result_dtype
from warpsmith.spec.checks import check_device, shape_text

_OP = "scaled_grouped_matmul"


def _check_matrix(name: str, x: Tensor, rank: int) -> None:
    if not catalogue.is_fp8(x.dtype) and x.dtype != torch.float64:
        raise RuntimeError(f"{_OP}: expected {name} to be an fp8 tensor, got {x.dtype}")
    if x.dim() != rank:
        raise RuntimeError(f"{_OP}: expected {name} to be {rank}-D, got shape {shape_text(x)}")


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
    x: Tensor, w: Tensor, offsets: Tensor, scale_x: Tensor, scale_w: Tensor, out_dtype: str
) -> None:
    _check_matrix("x", x, 2)
    _check_matrix("w", w, 3)
    check_device(_OP, "w", w, x, "x")
    check_groups(_OP, x, w, offsets)
    wide = torch.float64 if torch.float64 in (x.dtype, w.dtype, scale_x.dtype) else torch.float32
    _check_scale("scale_x", scale_x, wide, x, (x.shape[0],), "row of x")
    of_columns = (w.shape[0], w.shape[2])
    _check_scale("scale_w", scale_w, wide, x, of_columns, "column of each matrix of w")
    if out_dtype not in OUT_DTYPES:
        raise RuntimeError(
            f"{_OP}: expected out_dtype to be 'f16', 'bf16' or 'f32', got '{out_dtype}'"
        )


def reference(
    x: Tensor, w: Tensor, offsets: Tensor, scale_x: Tensor, scale_w: Tensor, out_dtype: str
) -> Tensor:
    wide, out = scale_x.dtype, x.new_zeros((x.shape[0], w.shape[2]), dtype=scale_x.dtype)
    for group, span in enumerate(spans(offsets, x.shape[0])):
        if span.start < span.stop:
            product = torch.matmul(x[span].to(wide), w[group].to(wide))
            out[span] = product * (scale_x[span, None] * scale_w[group])
    return out.to(result_dtype(scale_x, out_dtype))


def _eager(
    x: Tensor, w: Tensor, offsets: Tensor, scale_x: Tensor, scale_w: Tensor, out_dtype: str
) -> Tensor:
    """Dequantisation before the products, as PyTorch users write it."""
    dtype = OUT_DTYPES[out_dtype]
    left = x.to(dtype) * scale_x.to(dtype).unsqueeze(-1)
    right = w.to(dtype) * scale_w.to(dtype).unsqueeze(1)
    if not x.is_cuda:
        return reference(x, w, offsets, scale_x, scale_w, out_dtype)
    return torch.nn.functional.grouped_mm(left, right, offs=offsets)


def _suits_naive(x: Tensor, w: Tensor) -> str | None:
    few = x.numel() == 0 or x.shape[0] * w.shape[2] <= 2**24 // x.shape[1]
    return None if few else "the products are large"


def _needs_w_column_major(p: GroupedProblem) -> str | None:
    return "needs w column-major" if p.w.by_rows else None


_fits_wgmma = condition(
    needs_few_groups,
    _needs_w_column_major,
    needs_lines_for_maps,
    needs_countable_tiles,
    wgmma=True,
)
_has_wgmma = condition(wgmma=True)


def _when_wgmma(x: Tensor, w: Tensor, offsets: Tensor, out_dtype: str = "bf16") -> str | None:
    if 0 in (*x.shape, *w.shape):
        return None
    if why := _has_wgmma(x, w, offsets):
        return why
    return "gives f16 and bf16" if out_dtype == "f32" else _fits_wgmma(x, w, offsets)


def _plan_wgmma(x: Tensor, w: Tensor, offsets: Tensor, fast_accum: bool = False) -> str | None:
    p = grouped_problem(x, w, offsets)
    if p.empty:
        return None
    sizes = GroupedSizes(p.groups, p.m, p.n, p.k, size=1, sm_count=multiprocessors())
    return str(choose(sizes, SCALED_MENU if fast_accum else SCALED_MENU[:-1]))


def _sum_error(x: Tensor, fast_accum: bool = False) -> float:
    return coarse_sum_error(x, x.shape[1] if fast_accum else 128)


_LADDER = (
    Rung("naive", "a thread per element, any layout", dtypes=FP8, suits=_suits_naive),
    Rung(
        "wgmma_groups",
        "wgmma of either format, boxes cut where groups end, sums promoted every 128 of k",
        dtypes=FP8,
        technique="wgmma_groups",
        min_sm=90,
        when=_when_wgmma,
        plan=_plan_wgmma,
        coarse_sums=True,
    ),
)


def _bytes(
    x: Tensor, w: Tensor, offsets: Tensor, scale_x: Tensor, scale_w: Tensor, out_dtype: str
) -> int:
    written = OUT_DTYPES[out_dtype].itemsize * x.shape[0] * w.shape[2]
    scales = scale_x.numel() + scale_w.numel()
    return x.numel() + w.numel() + written + 4 * (scales + offsets.numel())


scaled_grouped_matmul_op = catalogue.add(
    Op(
        "scaled_grouped_matmul(Tensor x, Tensor w, Tensor offsets, Tensor scale_x, "
        "Tensor scale_w, str out_dtype='bf16', bool fast_accum=False) -> Tensor",
        family="gemm",
        reference=reference,
        ladder=_LADDER,
        triton="scaled_grouped_matmul_triton:scaled_grouped_matmul",
        fake=lambda x, w, scale_x, out_dtype: x.new_empty(
            (x.shape[0], w.shape[2]), dtype=result_dtype(scale_x, out_dtype)
        ),
        check=_check,
        sum_error=_sum_error,
        samples=cases.samples(),
        errors=cases.ERRORS,
        properties=(
            Property("whole numbers are exact", cases.whole_numbers),
            Property("rows of no group", cases.rows_of_no_group),
        ),
        cost=Cost(
            bytes=_bytes,
            flops=lambda x, w: 2 * x.shape[0] * x.shape[1] * w.shape[2],
        ),
        bench=cases.bench(),
        bench_dtypes=FP8[:1],
        eager=_eager,
        peers={"scaled_grouped_mm": lambda: cases.scaled_grouped_mm},
    )
)
dispatch.register(scaled_grouped_matmul_op)
_scaled_grouped_matmul = dispatch.public(scaled_grouped_matmul_op)


def scaled_grouped_matmul(
    x: Tensor,
    w: Tensor,
    offsets: Tensor,
    scale_x: Tensor,
    scale_w: Tensor,
    out_dtype: str | torch.dtype = "bf16",
    *,
    fast_accum: bool = False,
    variant: str | None = None,
) -> Tensor:
    """Products of groups of quantised rows, each with a quantised matrix of its own:
    `y[r, j] = scale_x[r] * scale_w[g, j] * (x[r] w[g])[j]` for the rows r of group g, which are
    `offsets[g - 1]` to `offsets[g] - 1`, from 0 on.

    Products are exact; sums are held in f32, scaled once and rounded once. Not differentiable.

    Args:
        x: [m, k], e4m3 or e5m2, any strides; best row-major, with k a multiple of 16.
        w: [groups, k, n], either format, of the device of x, any strides; best column-major:
            weights [groups, n, k] with the last two dimensions swapped.
        offsets: int32, [groups]: where each group ends. They do not decrease, and the last is m at
            most: rows past it belong to no group, and the result holds anything there.
        scale_x: f32, [m]. In f64, as then scale_w has to be, it asks for a reference in f64, which
            takes x and w in f64 too.
        scale_w: f32, [groups, n].
        out_dtype: "f16", "bf16" or "f32", or as a torch.dtype.
        fast_accum: whether sums may stay in the tensor cores of sm_90 over all of k, which keep
            some 14 bits of them, as with `use_fast_accum` in `torch._scaled_grouped_mm`. Otherwise
            they are added up in f32 every 128 values. Without effect elsewhere.
        variant: one rung by name instead of the best one, "e4m3_wgmma_groups".

    Returns:
        A contiguous tensor [m, n] of dtype `out_dtype`.

    Raises:
        RuntimeError: x or w is not fp8; dtypes, devices or shapes do not fit, of a scale or of
            offsets either; there is no such out_dtype; the variant cannot take the input.
        ValueError: the variant does not exist.

    Reference:
        `torch._scaled_grouped_mm`.
    """
    return _scaled_grouped_matmul(
        variant, x, w, offsets, scale_x, scale_w, name_of_dtype(out_dtype), fast_accum
    )
