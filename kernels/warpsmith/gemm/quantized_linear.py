"""A linear layer whose weights have 4 or 8 bits, and activations 16."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.core import catalogue, dispatch, into
from warpsmith.core.catalogue import Cost, Gradients, Needs, Op, Property, Rung, is_fp8
from warpsmith.gemm import quantized_linear_cases as cases
from warpsmith.gemm.ladder_wgmma import lacks_wgmma
from warpsmith.gemm.quantized_weight import (
    GROUPS,
    UNIT,
    WORDS,
    QuantizedWeight,
    bits_of,
    dequantized,
    shifted_codes,
)
from warpsmith.spec.checks import check_device, shape_text, wide_dtype
from warpsmith.spec.cost import size
from warpsmith.spec.rows import MOST_ROWS, address, as_rows, tiles_rows

_OP = "quantized_linear"
#: Rows of weights of a block, and slices of k that it may share a tile with.
_TILE_N, _MOST_SLICES = 128, 16


def _fail(message: str) -> None:
    raise RuntimeError(f"{_OP}: {message}")


def _check_words(weight: Tensor, x: Tensor) -> None:
    check_device(_OP, "weight", weight, x)
    if weight.dtype != torch.int32:
        _fail(f"expected weight to hold torch.int32, got {weight.dtype}")
    if weight.dim() != 3 or weight.shape[2] not in WORDS.values():
        _fail(
            "expected weight to have shape (n / 64, k / 64, 512 or 1024), as "
            f"repack_quantized_weight gives it, got {shape_text(weight)}"
        )


def _check_scales(scales: Tensor, weight: Tensor, x: Tensor) -> None:
    check_device(_OP, "scales", scales, x)
    if scales.dtype != x.dtype:
        _fail(f"expected scales to have dtype {x.dtype} like x, got {scales.dtype}")
    if scales.dim() != 2:
        _fail(f"expected scales to have shape (groups, n), got {shape_text(scales)}")
    k, (groups, n) = x.shape[-1], scales.shape
    units = -(-n // UNIT), -(-k // UNIT)
    if weight.shape[:2] != units:
        _fail(
            f"expected weight to have shape ({units[0]}, {units[1]}, 512 or 1024) for n of {n} and "
            f"k of {k}, got {shape_text(weight)}"
        )
    if groups != 1 and (groups == 0 or k % groups or k // groups not in GROUPS):
        _fail(f"expected one group, or groups of 32, 64 or 128 of {k} values, got {groups} groups")


def _check(
    x: Tensor, weight: Tensor, scales: Tensor, zeros: Tensor | None, bias: Tensor | None
) -> None:
    if not x.is_floating_point():
        _fail(f"expected x to be a floating-point tensor, got {x.dtype}")
    if is_fp8(x.dtype):
        _fail(f"expected x to have at least 16 bits an element, got {x.dtype}")
    if x.dim() == 0:
        _fail("expected at least 1 dimension in x, got shape ()")
    _check_words(weight, x)
    _check_scales(scales, weight, x)
    if zeros is not None:
        check_device(_OP, "zeros", zeros, x)
        if zeros.dtype != torch.int8:
            _fail(f"expected zeros to hold torch.int8, got {zeros.dtype}")
        if zeros.shape != scales.shape:
            _fail(
                f"expected zeros to have shape {shape_text(scales)} like scales, got "
                f"{shape_text(zeros)}"
            )
        if bits_of(weight) == 8:
            _fail("expected zeros to be None beside weights of 8 bits")
    if bias is not None:
        check_device(_OP, "bias", bias, x)
        if bias.dtype != x.dtype:
            _fail(f"expected bias to have dtype {x.dtype} like x, got {bias.dtype}")
        if bias.shape != scales.shape[1:]:
            _fail(f"expected bias to have shape ({scales.shape[1]},), got {shape_text(bias)}")


def _reference(
    x: Tensor, weight: Tensor, scales: Tensor, zeros: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Group by group, as a scale that is no number belongs to all of its group."""
    wide, k, (groups, n) = wide_dtype(x.dtype), x.shape[-1], scales.shape
    codes = shifted_codes(weight, zeros, n, k).to(wide)
    parts = zip(
        x.to(wide).split(max(k // groups, 1), -1),
        codes.split(max(k // groups, 1), -1),
        scales.to(wide),
        strict=True,
    )
    total = sum(F.linear(values, of_group) * scale for values, of_group, scale in parts)
    assert isinstance(total, Tensor)
    return (total if bias is None else total + bias.to(wide)).to(x.dtype)


def _eager(
    x: Tensor, weight: Tensor, scales: Tensor, zeros: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Dequantisation before the product, as PyTorch users write it."""
    return F.linear(x, dequantized(weight, scales, zeros, x.shape[-1]), bias)


def _derivative(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    needs: Needs,
) -> Gradients:
    found: dict[str, Tensor | None] = {}
    k, (groups, n) = x.shape[-1], scales.shape
    if "x" in needs:
        dense = dequantized(weight, scales, zeros, k)
        found["x"] = torch.ops.warpsmith.matmul(grad, dense)
    if "bias" in needs:
        found["bias"] = grad.sum_to_size((n,))
    if "scales" in needs:
        wide, rows = wide_dtype(x.dtype), math.prod(x.shape[:-1])
        # contiguous: of an expanded gradient, as sum() gives it, the product has other bits
        of_rows = grad.to(wide).reshape(rows, n).contiguous()
        of_weight = of_rows.t() @ x.to(wide).reshape(rows, k)
        each = of_weight * shifted_codes(weight, zeros, n, k)
        in_groups = each.reshape(n, groups, k // groups).sum(-1)
        found["scales"] = in_groups.t().to(scales.dtype)
    return found


# --- the ladder -----------------------------------------------------------------------------------


def _suits_naive(x: Tensor, scales: Tensor) -> str | None:
    rows, k = as_rows(x).rows, x.shape[-1]
    few = k == 0 or rows * scales.shape[1] <= (1 << 24) // k
    return None if few else "the product is large"


def _needs_aligned(
    weight: Tensor, scales: Tensor, zeros: Tensor | None, of_zeros: int
) -> str | None:
    aligned = ((weight, 16), (scales, 16), (zeros, of_zeros))
    if any(t is not None and t.is_contiguous() and address(t) % by for t, by in aligned):
        return "needs weight, scales and zeros aligned to 16 bytes"
    return None


def _tile_m(rows: int) -> int:
    """Rows of x of a block."""
    return next((size for size in (16, 32, 64) if rows <= size), 128)


def _needs_few_tiles(rows: int, n: int, tile: int) -> str | None:
    tiles = -(-rows // tile) * -(-n // _TILE_N)
    return None if tiles * _MOST_SLICES <= MOST_ROWS else "needs less than 2^27 tiles"


def _needs_mma(x: Tensor, weight: Tensor, scales: Tensor, zeros: Tensor | None) -> str | None:
    n, rows = scales.shape[1], as_rows(x).rows
    if n == 0 or rows == 0:
        return None
    if not tiles_rows(x, 8):
        return "needs rows of x in packs of 16 bytes"
    if n % 8:
        return "needs n in packs of 8"
    few = _needs_few_tiles(rows, n, _tile_m(rows))
    return _needs_aligned(weight, scales, zeros, 8) or few


def _can_map(x: Tensor) -> bool:
    """`can_map` of host/tensor_map.h, of 16 bits."""
    layout = as_rows(x)
    if not layout.copied and address(x) % 16:
        return False
    small = max(layout.rows, layout.cols) < 2**31
    pitch = layout.stride * 2
    walks = layout.stride >= layout.cols and pitch % 16 == 0 and pitch < 2**40
    return small and (layout.rows == 1 or walks)


def _needs_wgmma(x: Tensor, weight: Tensor, scales: Tensor, zeros: Tensor | None) -> str | None:
    n, rows = scales.shape[1], as_rows(x).rows
    if n == 0 or rows == 0:
        return None
    if lacks_wgmma():
        return "needs sm_90, the only one with wgmma"
    if x.shape[-1] == 0:
        return "needs values along k"
    if not _can_map(x):
        return "needs rows of x in packs of 16 bytes that do not overlap"
    if n % 16:
        return "needs n in packs of 16"
    tiles = _needs_few_tiles(rows, n, min(_tile_m(rows), 64))
    return _needs_aligned(weight, scales, zeros, 16) or tiles


def _suits_wgmma(x: Tensor, scales: Tensor) -> str | None:
    few = as_rows(x).rows <= 32 and scales.shape[1] < x.shape[-1]
    return "few rows of many values each, for which mma is faster" if few else None


def _bytes(
    x: Tensor, weight: Tensor, scales: Tensor, zeros: Tensor | None, bias: Tensor | None
) -> int:
    out = x.numel() // max(x.shape[-1], 1) * scales.shape[1] * x.element_size()
    return size(x, weight, scales, zeros, bias) + out


op = catalogue.add(
    Op(
        f"{_OP}(Tensor x, Tensor weight, Tensor scales, Tensor? zeros=None, Tensor? bias=None) -> "
        "Tensor",
        family="gemm",
        reference=_reference,
        eager=_eager,
        ladder=(
            Rung(
                "naive",
                "a thread per result looks up every code",
                suits=_suits_naive,
            ),
            Rung(
                "mma",
                "weights through a ring of asynchronous copies, widened in registers for mma.sync",
                dtypes=("f16", "bf16"),
                technique="mma",
                when=_needs_mma,
            ),
            Rung(
                "wgmma",
                "the copy engine fills the ring, wgmma takes widened weights from registers",
                dtypes=("f16", "bf16"),
                technique="wgmma",
                min_sm=90,
                when=_needs_wgmma,
                suits=_suits_wgmma,
            ),
        ),
        triton="quantized_linear_triton:quantized_linear",
        fake=lambda x, scales: x.new_empty((*x.shape[:-1], scales.shape[1])),
        check=_check,
        backward=_derivative,
        samples=cases.samples(),
        errors=cases.ERRORS,
        properties=(
            Property("whole numbers are exact", cases.whole_numbers),
            Property("deterministic", cases.deterministic),
            Property("infinite scales have the sign of their groups", cases.infinite_scales),
        ),
        cost=Cost(
            bytes=_bytes,
            flops=lambda x, scales: 2 * x.numel() * scales.shape[1],
        ),
        bench=cases.bench(),
        bench_dtypes=("bf16",),
        peers={"linear": lambda: cases.linear_of_16_bits(dequantized)},
    )
)
dispatch.register(op)
_quantized_linear = dispatch.public(op)
_quantized_linear_into = into.register(op)


def quantized_linear(
    x: Tensor,
    weight: Tensor,
    scales: Tensor | None = None,
    zeros: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """A linear layer of packed weights of 4 or 8 bits:
    `y[i, j] = sum over l of x[i, l] * (code[j, l] - zeros[g, j]) * scales[g, j] + bias[j]`, where g
    is the group of l.

    Codes less their zeros are exact in 16 bits; their products with x are summed in f32 for each
    group, multiplied by its scale in f32, and rounded once at the end: weights are never rounded.
    Sums have the same order on every run. Differentiable in x, scales and bias; the backward pass
    makes the weight that the codes stand for.

    `repack_quantized_weight` makes weight, scales and zeros from what AWQ, GPTQ and quantisers to
    int8 write: `quantized_linear(x, *repacked, bias)`.

    Args:
        x: [..., k], f32, f16 or bf16 (f64 by the reference), any strides. In f32 the products have
            no fast kernel.
        weight: int32 [ceil(n / 64), ceil(k / 64), 512 or 1024], of 4 or 8 bits.
        scales: [groups, n], of the dtype of x. One group, or groups of 32, 64 or 128 values of k.
        zeros: int8 [groups, n], what stands for 0; None: 8 in 4 bits. In 8 bits there are none.
        bias: [n], of the dtype of x, or f32, which is rounded to that first; None adds nothing.
        out: a tensor for the result, best contiguous, of its shape and dtype, which is returned
            (`docs/pytorch.md`, results in tensors of the caller). Not differentiable, and with no
            variant.
        variant: one rung by name instead of the best one, "bf16_mma".

    Returns:
        A contiguous tensor [..., n] of the dtype of x.

    Raises:
        RuntimeError: x is not floating-point of 16 bits or more, or 0-d; dtypes, devices or shapes
            do not fit; groups are of another size; the variant cannot take the input.
        ValueError: the variant does not exist, or comes with out.
        TypeError: there are no scales; a `QuantizedWeight` is not unpacked.

    Reference:
        `torch.nn.functional.linear` of the weight that the codes stand for; Frantar et al. 2024,
        MARLIN, https://arxiv.org/abs/2408.11743
    """
    if isinstance(weight, QuantizedWeight):
        raise TypeError(f"{_OP}: expected a QuantizedWeight to be unpacked, {_OP}(x, *weight)")
    if isinstance(bias, Tensor) and bias.dtype == torch.float32 and isinstance(x, Tensor):
        bias = bias.to(x.dtype) if x.dtype in (torch.float16, torch.bfloat16) else bias
    if out is not None:
        return _quantized_linear_into(out, variant, x, weight, scales, zeros, bias)  # type: ignore[no-any-return]
    return _quantized_linear(variant, x, weight, scales, zeros, bias)
