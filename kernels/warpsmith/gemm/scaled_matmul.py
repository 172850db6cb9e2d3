"""The product of two 8-bit matrices with scales."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch, into
from warpsmith.core.catalogue import FP8, Condition, Cost, Op, Property, Rung
from warpsmith.gemm import scaled_matmul_cases as cases
from warpsmith.gemm.ladder_wgmma import multiprocessors, needs_lines_for_maps, needs_wgmma
from warpsmith.gemm.matmul import name_of_dtype
from warpsmith.gemm.problem import (
    Problem,
    condition,
    needs_b_column_major,
    needs_operand_packs_16,
    needs_tiles_in_grid,
    product,
)
from warpsmith.gemm.wgmma_plan import choice_for_scaled
from warpsmith.spec.checks import check_device, shape_text

OUT_DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
_FP8_RESULTS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
RESULTS = OUT_DTYPES | _FP8_RESULTS
_DTYPES = (*FP8, "i8")


def _check_scale(
    name: str,
    scale: Tensor,
    dtype: torch.dtype,
    a: Tensor,
    count: int,
    of: str,
    blocks: tuple[int, int],
    of_block: str,
) -> None:
    op = "scaled_matmul"
    check_device(op, name, scale, a, "a")
    if scale.dtype != dtype:
        raise RuntimeError(f"{op}: expected {name} to have dtype {dtype}, got {scale.dtype}")
    if scale.shape not in ((), (count,), blocks):
        raise RuntimeError(
            f"{op}: expected {name} to have shape () or ({count},), one value per {of}, or "
            f"{blocks}, one per {of_block}, got {shape_text(scale)}"
        )


def _check_scale_of_result(scale: Tensor, dtype: torch.dtype, a: Tensor, out_dtype: str) -> None:
    op = "scaled_matmul"
    check_device(op, "scale_result", scale, a, "a")
    if scale.dtype != dtype:
        raise RuntimeError(f"{op}: expected scale_result to have dtype {dtype}, got {scale.dtype}")
    if scale.dim() != 0:
        raise RuntimeError(f"{op}: expected scale_result to have shape (), got {shape_text(scale)}")
    if out_dtype not in _FP8_RESULTS:
        raise RuntimeError(
            f"{op}: expected no scale_result beside results of {OUT_DTYPES[out_dtype]}"
        )


def _check(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    out_dtype: str,
    scale_result: Tensor | None = None,
) -> None:
    op = "scaled_matmul"
    for name, x in (("a", a), ("b", b)):
        if not catalogue.is_fp8(x.dtype) and x.dtype not in (torch.int8, torch.float64):
            raise RuntimeError(f"{op}: expected {name} to be an fp8 or int8 tensor, got {x.dtype}")
        if x.dim() != 2:
            raise RuntimeError(f"{op}: expected {name} to be 2-D, got shape {shape_text(x)}")
    check_device(op, "b", b, a, "a")
    if b.dtype != a.dtype and not (catalogue.is_fp8(a.dtype) and catalogue.is_fp8(b.dtype)):
        raise RuntimeError(f"{op}: expected b to have dtype {a.dtype} like a, got {b.dtype}")
    if a.shape[1] != b.shape[0]:
        raise RuntimeError(f"{op}: cannot multiply shapes {shape_text(a)} and {shape_text(b)}")
    wide = torch.float64 if torch.float64 in (a.dtype, scale_a.dtype) else torch.float32
    (m, k), n = a.shape, b.shape[1]
    deep, across = cases.blocks_of(k), cases.blocks_of(n)
    row, column = "row of a and 128 values of k", "128 x 128 values of b"
    _check_scale("scale_a", scale_a, wide, a, m, "row of a", (m, deep), row)
    _check_scale("scale_b", scale_b, wide, a, n, "column of b", (deep, across), column)
    if (scale_a.dim() == 2) != (scale_b.dim() == 2):
        raise RuntimeError(f"{op}: expected scales of blocks for both of a and b or for neither")
    if out_dtype not in RESULTS:
        raise RuntimeError(
            f"{op}: expected out_dtype to be 'f16', 'bf16', 'f32', 'e4m3' or 'e5m2', "
            f"got '{out_dtype}'"
        )
    if scale_result is not None:
        _check_scale_of_result(scale_result, wide, a, out_dtype)


def result_dtype(scale_a: Tensor, out_dtype: str) -> torch.dtype:
    """Scales of f64 ask for the result in f64."""
    return torch.float64 if scale_a.dtype == torch.float64 else RESULTS[out_dtype]


def _total(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    """The scaled product in the dtype of the scales.

    Sums are scaled, of blocks too, and not what they are sums of: 0 times an infinite scale would
    be NaN, and infinities of either sign would cancel, where the sum is neither.
    """
    wide = scale_a.dtype
    (m, k), n = a.shape, b.shape[1]
    left, right = a.to(wide), b.to(wide)
    if k == 0:  # no products to scale, by whatever it is, as in torch._scaled_mm
        return left.new_zeros(m, n)
    if scale_a.dim() < 2:
        scale = scale_a.unsqueeze(-1) * scale_b if scale_a.dim() else scale_a * scale_b
        return torch.matmul(left, right) * scale
    total = left.new_zeros(m, n)
    for i, start in enumerate(range(0, k, cases.BLOCK)):
        of_block = slice(start, start + cases.BLOCK)
        spread = scale_b[i].repeat_interleave(cases.BLOCK)[:n]
        total += torch.matmul(left[:, of_block], right[of_block]) * (scale_a[:, i, None] * spread)
    return total


def reference(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    out_dtype: str,
    fast_accum: bool = False,
    scale_result: Tensor | None = None,
) -> Tensor:
    total = _total(a, b, scale_a, scale_b)
    if out_dtype in _FP8_RESULTS:
        most = torch.finfo(_FP8_RESULTS[out_dtype]).max
        total = (total if scale_result is None else total * scale_result).clamp(-most, most)
    return total.to(result_dtype(scale_a, out_dtype)).contiguous()


def _eager(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    out_dtype: str,
    fast_accum: bool,
    scale_result: Tensor | None = None,
) -> Tensor:
    """Dequantisation before the product, as PyTorch users write it."""
    if out_dtype in _FP8_RESULTS:
        total = _eager(a, b, scale_a, scale_b, "bf16", fast_accum).float()
        most = torch.finfo(_FP8_RESULTS[out_dtype]).max
        total = total if scale_result is None else total * scale_result
        return total.clamp(-most, most).to(_FP8_RESULTS[out_dtype])
    dtype = OUT_DTYPES[out_dtype]
    if scale_a.dim() == 2:
        k, n = b.shape
        of_rows = scale_a.repeat_interleave(cases.BLOCK, 1)[:, :k]
        spread = scale_b.repeat_interleave(cases.BLOCK, 0).repeat_interleave(cases.BLOCK, 1)
        right = b.to(scale_b.dtype) * spread[:k, :n]
        return torch.matmul((a.to(scale_a.dtype) * of_rows).to(dtype), right.to(dtype))
    left = a.to(dtype) * scale_a.to(dtype).unsqueeze(-1)
    return torch.matmul(left, b.to(dtype) * scale_b.to(dtype))


def _needs_countable_sums(p: Problem) -> str | None:
    return None if p.k <= cases.MOST_DEPTH else f"needs k of at most {cases.MOST_DEPTH}"


def _suits_naive(a: Tensor, b: Tensor) -> str | None:
    few = a.numel() == 0 or a.shape[0] * b.shape[1] <= 2**24 // a.shape[1]
    return None if few else "the product is large"


def _of(*checks: Callable[[Problem], str | None]) -> Condition:
    return condition(*checks).of(lambda a, b, *_: product(a, b))


_when_mma = _of(needs_b_column_major, needs_operand_packs_16)
_when_wgmma = _of(needs_wgmma, needs_b_column_major, needs_lines_for_maps, needs_tiles_in_grid)
_has_countable_sums = _of(_needs_countable_sums)


def _of_integers(takes: Condition) -> Condition:
    """Of the rungs of int8, beside what those of fp8 take."""

    def when(a: Tensor, b: Tensor, scale_a: Tensor, *, sm: int | None = None) -> str | None:
        if 0 in (*a.shape, b.shape[1]):
            return None
        if why := takes(a, b, sm=sm):
            return why
        blocks = scale_a.dim() == 2
        return "takes no scales of blocks" if blocks else _has_countable_sums(a, b, sm=sm)

    return when


def _plan_wgmma(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    out_dtype: str = "bf16",
    fast_accum: bool = False,
) -> str | None:
    (m, k), n = a.shape, b.shape[1]
    if 0 in (m, k, n):
        return None
    sums = "scaled" if scale_a.dim() == 2 else "stay" if fast_accum else "leave"
    integers = a.dtype == torch.int8
    choice = choice_for_scaled(m, n, k, sums, multiprocessors(), integers=integers)
    return f"{choice}: {choice.clocks} clocks expected, the least of its menu"


def coarse_sum_error(a: Tensor, depth: int) -> float:
    """wgmma shifts the 32 products of an instruction and the sum before them to the largest
    exponent among them and drops what is below 2^-13 of it. Where products are alike, the largest
    is a fraction of their sum, and what they lose some 2^-13 of it; where one towers above the
    others, each of these loses up to 2^-13 of nearly all. On an H200 it is 0.1 to 4.7 of 2^-13 of
    the sum of magnitudes: 8 may be for every 128 products that stay there.
    """
    return 2.0**-10 * -(-depth // cases.BLOCK) if catalogue.is_fp8(a.dtype) else 0.0


def _sum_error(a: Tensor, scale_a: Tensor, fast_accum: bool = False) -> float:
    stays = fast_accum and scale_a.dim() < 2
    return coarse_sum_error(a, a.shape[1] if stays else cases.BLOCK)


_SEEDS = ("sgemm_128x128_{dtype}", "sgemm_128x256_async_{dtype}")
_LADDER = (
    Rung("naive", "a thread per element, any layout", dtypes=_DTYPES, suits=_suits_naive),
    Rung(
        "mma_fp8",
        "tensor cores, m16n8k32 of either format of fp8, scales of blocks too; native on sm_89",
        dtypes=FP8,
        technique="mma",
        min_sm=89,
        when=_when_mma,
        seeds=_SEEDS,
    ),
    Rung(
        "mma_i8",
        "tensor cores, m16n8k32 of int8",
        dtypes=("i8",),
        technique="mma",
        when=_of_integers(_when_mma),
        seeds=_SEEDS,
    ),
    Rung(
        "wgmma_peak",
        "wgmma of either format, scales of blocks too, sums promoted every 128 of k",
        dtypes=FP8,
        technique="wgmma_peak",
        min_sm=90,
        when=_when_wgmma,
        plan=_plan_wgmma,
        coarse_sums=True,
    ),
    Rung(
        "wgmma_i8",
        "wgmma of int8: sums exact in int32, a tile by cost",
        dtypes=("i8",),
        technique="wgmma_peak",
        min_sm=90,
        when=_of_integers(_when_wgmma),
        plan=_plan_wgmma,
    ),
)

scaled_matmul_op = catalogue.add(
    Op(
        "scaled_matmul(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, "
        "str out_dtype='bf16', bool fast_accum=False, Tensor? scale_result=None) -> Tensor",
        family="gemm",
        reference=reference,
        ladder=_LADDER,
        triton="scaled_matmul_triton:scaled_matmul",
        yields=True,
        fake=lambda a, b, scale_a, out_dtype: a.new_empty(
            (a.shape[0], b.shape[1]), dtype=result_dtype(scale_a, out_dtype)
        ),
        check=_check,
        samples=cases.samples(),
        errors=cases.ERRORS,
        properties=(
            Property("whole numbers are exact", cases.whole_numbers),
            Property("deterministic", cases.deterministic),
        ),
        cost=Cost(
            bytes=lambda a, b, scale_a, scale_b, out_dtype: (
                a.numel()
                + b.numel()
                + RESULTS[out_dtype].itemsize * a.shape[0] * b.shape[1]
                + 4 * (scale_a.numel() + scale_b.numel())
            ),
            flops=lambda a, b: cases.operations(a, b),
        ),
        bench=cases.bench(),
        bench_dtypes=_DTYPES,
        eager=_eager,
        sum_error=_sum_error,
        peers={"scaled_mm": lambda: cases.scaled_mm},
    )
)
dispatch.register(scaled_matmul_op)
_scaled_matmul = dispatch.public(scaled_matmul_op)
_scaled_matmul_into = into.register(scaled_matmul_op)


def scaled_matmul(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    out_dtype: str | torch.dtype = "bf16",
    *,
    fast_accum: bool = False,
    scale_result: Tensor | None = None,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """The product of two quantised matrices:
    `d[i, j] = scale_a[i] * scale_b[j] * (a[i, 0] * b[0, j] + a[i, 1] * b[1, j] + ...)`, or with
    `scale_a[i, l / 128] * scale_b[l / 128, j / 128]` before each `a[i, l] * b[l, j]`. A result of
    fp8 is `saturate(d * scale_result)`: what lies beyond its largest number becomes that number,
    and NaN stays NaN.

    Products are exact; sums are held in f32, or in int32 by the tensor cores of int8, scaled once,
    those of blocks of k each, and rounded once. The tensor cores of sm_90 keep some 14 bits of a
    sum of fp8 products while 128 of them are added, 2^-13 to 2^-10 of the sum of
    their magnitudes are lost so. Not differentiable.

    Args:
        a: [m, k], e4m3, e5m2 or int8, any strides; best row-major, with k a multiple of 16.
        b: [k, n], of the device of a and of its dtype, or either format of fp8 where a is fp8, any
            strides; best column-major, `weight.t()`.
        scale_a: f32, one value per row of a, [m], or one for all of them, of shape (), or one per
            row and 128 values of k, [m, ceil(k / 128)]. In f64, as then scale_b has to be, it asks
            for a reference in f64, which takes a and b in f64 too.
        scale_b: f32, one value per column of b, [n], or one for all of them, of shape (), or, where
            scale_a has blocks, one per 128 x 128 values of b, [ceil(k / 128), ceil(n / 128)].
        out_dtype: "f16", "bf16", "f32", "e4m3" or "e5m2", or as a torch.dtype.
        fast_accum: whether sums of fp8 may stay in the tensor cores of sm_90 over all of k, which
            keep some 14 bits of them, as with `use_fast_accum` in `torch._scaled_mm`. Otherwise
            they are added up in f32 every 128 values. Without effect elsewhere, and on scales of
            blocks.
        scale_result: one value of the dtype of the scales, of shape (), on the device of a, that
            results of fp8 are multiplied by; 1 without it. What dequantises them is its reciprocal.
        out: a tensor for the result, best contiguous, of its shape and dtype, which is returned
            (`docs/pytorch.md`, results in tensors of the caller). With no variant.
        variant: one rung by name instead of the best one, "i8_mma".

    Returns:
        A contiguous tensor [m, n] of dtype `out_dtype`; zeros where k is 0.

    Raises:
        RuntimeError: a or b is neither fp8 nor int8, or not 2-D; dtypes, devices or shapes do not
            fit, of a scale either; there is no such out_dtype; scale_result stands beside results
            that are not fp8; the variant cannot take the input.
        ValueError: the variant does not exist, or comes with out.

    Reference:
        `torch._scaled_mm`; for int8 `(a.float() @ b.float()) * scale_a[:, None] * scale_b`.
    """
    given = (a, b, scale_a, scale_b, name_of_dtype(out_dtype), fast_accum, scale_result)
    if out is not None:
        return _scaled_matmul_into(out, variant, *given)  # type: ignore[no-any-return]
    return _scaled_matmul(variant, *given)
