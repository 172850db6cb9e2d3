"""Quantisation of a tensor to 8 bits: a scale for all of it, for each row, for 128 values of a row
or for 128 x 128 of a matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import Cost, Op, Property, is_fp8
from warpsmith.quantize import cases, ladder
from warpsmith.quantize.reference import BLOCK, SHARERS, quantized, scale_shape
from warpsmith.spec.checks import shape_text
from warpsmith.spec.cost import moved


def check_values(op: str, x: Tensor) -> None:
    if not x.is_floating_point():
        raise RuntimeError(f"{op}: expected x to be a floating-point tensor, got {x.dtype}")
    if is_fp8(x.dtype):
        raise RuntimeError(f"{op}: expected x to have at least 16 bits an element, got {x.dtype}")
    if x.dim() == 0:
        raise RuntimeError(f"{op}: expected at least 1 dimension in x, got shape ()")


def _check(x: Tensor, block_rows: int, block_cols: int, dtype: torch.dtype) -> None:
    check_values("quantize", x)
    if dtype != torch.int8 and not is_fp8(dtype):
        raise RuntimeError(
            "quantize: expected dtype to be torch.float8_e4m3fn, torch.float8_e5m2 or torch.int8, "
            f"got {dtype}"
        )
    if (block_rows, block_cols) not in SHARERS.values():
        raise RuntimeError(
            "quantize: expected block_rows and block_cols to be 0 and 0, 1 and 0, 1 and 128 or 128 "
            f"and 128, got {block_rows} and {block_cols}"
        )
    if (block_rows, block_cols) == BLOCK and x.dim() != 2:
        raise RuntimeError(
            f"quantize: expected x to be 2-D for blocks of 128 x 128, got shape {shape_text(x)}"
        )


def _reference(
    x: Tensor, block_rows: int, block_cols: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    return quantized(x.float(), (block_rows, block_cols), dtype)


def _fake(x: Tensor, block_rows: int, block_cols: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    shape = scale_shape(x.shape, (block_rows, block_cols))
    return x.new_empty(x.shape, dtype=dtype), x.new_empty(shape, dtype=torch.float32)


_SCHEMA = (
    "quantize(Tensor x, int block_rows, int block_cols, ScalarType dtype) -> "
    "(Tensor q, Tensor scale)"
)

op = catalogue.add(
    Op(
        _SCHEMA,
        family="quantize",
        reference=_reference,
        ladder=ladder.plain(),
        triton="quantize_triton:quantize",
        fake=_fake,
        check=_check,
        elementwise=True,
        samples=cases.samples(),
        errors=cases.errors(),
        properties=(
            Property("the reference's bits", cases.exact),
            Property("dequantises to within half a step", cases.near),
        ),
        cost=Cost(bytes=moved(_SCHEMA, _fake), flops=lambda x: 3 * x.numel()),
        bench=cases.bench(),
    )
)
dispatch.register(op)
_quantize_fp8 = dispatch.public(op, "quantize_fp8")
_quantize_int8 = dispatch.public(op, "quantize_int8")


def _sharers(function: str, granularity: str, known: tuple[str, ...]) -> tuple[int, int]:
    if granularity not in known:
        listed = ", ".join(f"'{name}'" for name in known[:-1])
        raise ValueError(
            f"{function}: expected granularity to be {listed} or '{known[-1]}', got '{granularity}'"
        )
    return SHARERS[granularity]


def quantize_fp8(
    x: Tensor,
    granularity: str = "token",
    dtype: torch.dtype = torch.float8_e4m3fn,
    *,
    variant: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Quantises to fp8 by the largest magnitude: `scale = max(amax / largest, 2^-126)` and
    `q = round(x * (1 / scale))`, with 448 in e4m3 and 57344 in e5m2 as the largest.

    Everything is computed in f32, the quotient, the reciprocal and the product each rounded to
    nearest even, whatever the dtype of x, and so is the code: every implementation gives the same
    bits. Values of which all are 0 have the scale 2^-126. A NaN makes the scale and all that shares
    it NaN; an infinity makes the scale infinite, codes of finite values 0 and its own NaN. Not
    differentiable: where x requires a gradient, so does the scale, and the backward pass raises
    rather than lose it; `x.detach()` says that none is wanted.

    q and scale are what `scaled_matmul` takes: `quantize_fp8(x, "group")` as its a and scale_a, and
    of `q, scale = quantize_fp8(weight, "block")` with a weight [n, k] `q.t()` and `scale.t()` as
    its b and scale_b; likewise "token" for both, or "tensor".

    Args:
        x: [..., n], f32, f16 or bf16 (f64 without a kernel of its own), any strides.
        granularity: what shares a scale: "tensor", all of x; "token", a row; "group", 128 values of
            a row, the last ones of it what is left; "block", 128 x 128 values of a 2-D x.
        dtype: torch.float8_e4m3fn or torch.float8_e5m2.
        variant: one rung by name instead of the best one, "bf16x8_pack".

    Returns:
        q, a contiguous tensor of the shape of x in `dtype`, and scale in f32, contiguous: of shape
        (), x.shape[:-1], (*x.shape[:-1], ceil(n / 128)) or (ceil(m / 128), ceil(n / 128)).

    Raises:
        RuntimeError: x is not floating-point of 16 bits or more, 0-d, or not 2-D where blocks share
            a scale; dtype is not fp8; the variant cannot take the input.
        ValueError: there is no such granularity or variant.

    Reference:
        Micikevicius et al. 2022, FP8 Formats for Deep Learning, https://arxiv.org/abs/2209.05433;
        groups and blocks: DeepSeek-AI 2024, DeepSeek-V3 Technical Report, section 3.3,
        https://arxiv.org/abs/2412.19437
    """
    if not is_fp8(dtype):
        raise RuntimeError(
            "quantize_fp8: expected dtype to be torch.float8_e4m3fn or torch.float8_e5m2, got "
            f"{dtype}"
        )
    sharers = _sharers("quantize_fp8", granularity, tuple(SHARERS))
    return _quantize_fp8(variant, x, *sharers, dtype)


def quantize_int8(
    x: Tensor, granularity: str = "token", *, variant: str | None = None
) -> tuple[Tensor, Tensor]:
    """Quantises to int8, symmetrically: `scale = max(amax / 127, 2^-126)` and
    `q = round(x * (1 / scale))`.

    Computed and rounded as `quantize_fp8` has it, with the same bits in every implementation. The
    code of NaN is 0, beside a scale that is NaN, or infinite where an infinity is what it comes
    from. Not differentiable, as `quantize_fp8`.

    Args:
        x: [..., n], f32, f16 or bf16 (f64 without a kernel of its own), any strides.
        granularity: what shares a scale: "tensor", all of x, or "token", a row.
        variant: one rung by name instead of the best one, "bf16x8_pack".

    Returns:
        q, a contiguous int8 tensor of the shape of x, from -127 to 127, and scale in f32, of shape
        () or x.shape[:-1]: what `scaled_matmul` takes.

    Raises:
        RuntimeError: x is not floating-point of 16 bits or more, or 0-d; the variant cannot take
            the input.
        ValueError: there is no such granularity or variant.

    Reference:
        Jacob et al. 2017, Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference, https://arxiv.org/abs/1712.05877
    """
    sharers = _sharers("quantize_int8", granularity, ("tensor", "token"))
    return _quantize_int8(variant, x, *sharers, torch.int8)
