"""RMS norm, and the middle of SwiGLU, quantised to fp8 in the same pass."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import Cost, Op, is_fp8
from warpsmith.quantize import cases, ladder
from warpsmith.quantize.quantize import check_values
from warpsmith.quantize.reference import GROUP, quantized, scale_shape
from warpsmith.spec.checks import check_device, check_like, shape_text, wide_dtype
from warpsmith.spec.cost import moved

EPS = 1e-6
_NORM, _SILU = "rms_norm_quantize", "silu_and_mul_quantize"


def _check_codes(op: str, dtype: torch.dtype, group: int) -> None:
    if not is_fp8(dtype):
        raise RuntimeError(
            f"{op}: expected dtype to be torch.float8_e4m3fn or torch.float8_e5m2, got {dtype}"
        )
    if group not in (0, GROUP):
        raise RuntimeError(f"{op}: expected group to be 0, a row, or 128, got {group}")


def _check_norm(x: Tensor, weight: Tensor | None, dtype: torch.dtype, group: int) -> None:
    check_values(_NORM, x)
    if weight is not None:
        check_device(_NORM, "weight", weight, x)
        n = x.shape[-1]
        if weight.shape != (n,):
            raise RuntimeError(
                f"{_NORM}: expected weight to have shape ({n},), the last dimension of x, got "
                f"{shape_text(weight)}"
            )
        if weight.dtype not in (x.dtype, torch.float32):
            wide = "" if x.dtype == torch.float32 else " or torch.float32"
            raise RuntimeError(
                f"{_NORM}: expected weight to have dtype {x.dtype}{wide}, got {weight.dtype}"
            )
    _check_codes(_NORM, dtype, group)


def _check_silu(x: Tensor, up: Tensor | None, dtype: torch.dtype, group: int) -> None:
    check_values(_SILU, x)
    if up is not None:
        check_like(_SILU, "up", up, x)
    elif x.shape[-1] % 2:
        raise RuntimeError(
            f"{_SILU}: expected the last dimension of x to be even, got shape {shape_text(x)}"
        )
    _check_codes(_SILU, dtype, group)


def _norm(
    x: Tensor,
    weight: Tensor | None,
    dtype: torch.dtype,
    group: int,
    eps: float,
    zero_centered: bool,
) -> tuple[Tensor, Tensor]:
    wide = x.to(wide_dtype(x.dtype))
    if x.numel():
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        wide = wide * (weight.to(wide.dtype) + float(zero_centered))
    return quantized(wide, (1, group), dtype)


def _silu(x: Tensor, up: Tensor | None, dtype: torch.dtype, group: int) -> tuple[Tensor, Tensor]:
    gate, factor = (t.to(wide_dtype(x.dtype)) for t in ladder.halves(x, up))
    return quantized(F.silu(gate) * factor, (1, group), dtype)


def _fake(
    x: Tensor, dtype: torch.dtype, group: int, up: Tensor | None = None, halved: bool = False
) -> tuple[Tensor, Tensor]:
    last = x.shape[-1] // 2 if halved and up is None else x.shape[-1]
    shape = torch.Size((*x.shape[:-1], last))
    of_scale = scale_shape(shape, (1, group))
    return (
        x.new_empty(shape, dtype=dtype),
        x.new_empty(of_scale, dtype=wide_dtype(x.dtype)),
    )


def _fake_norm(x: Tensor, dtype: torch.dtype, group: int) -> tuple[Tensor, Tensor]:
    return _fake(x, dtype, group)


def _fake_silu(
    x: Tensor, up: Tensor | None, dtype: torch.dtype, group: int
) -> tuple[Tensor, Tensor]:
    return _fake(x, dtype, group, up, halved=True)


_NORM_SCHEMA = (
    f"{_NORM}(Tensor x, Tensor? weight, ScalarType dtype, int group=0, float eps=1e-6, "
    "bool zero_centered=False) -> (Tensor q, Tensor scale)"
)
_SILU_SCHEMA = (
    f"{_SILU}(Tensor x, Tensor? up, ScalarType dtype, int group=0) -> (Tensor q, Tensor scale)"
)

norm_op = catalogue.add(
    Op(
        _NORM_SCHEMA,
        family="quantize",
        source="quantize",
        reference=_norm,
        ladder=ladder.norm(),
        triton="quantize_triton:rms_norm_quantize",
        fake=_fake_norm,
        check=_check_norm,
        elementwise=True,
        samples=cases.norm_samples(),
        errors=cases.norm_errors(),
        cost=Cost(bytes=moved(_NORM_SCHEMA, _fake_norm), flops=lambda x: 7 * x.numel()),
        bench=cases.norm_bench(),
    )
)
silu_op = catalogue.add(
    Op(
        _SILU_SCHEMA,
        family="quantize",
        source="quantize",
        reference=_silu,
        ladder=ladder.silu(),
        triton="quantize_triton:silu_and_mul_quantize",
        fake=_fake_silu,
        check=_check_silu,
        elementwise=True,
        samples=cases.silu_samples(),
        errors=cases.silu_errors(),
        cost=Cost(bytes=moved(_SILU_SCHEMA, _fake_silu), flops=lambda x: 6 * x.numel()),
        bench=cases.silu_bench(),
    )
)
dispatch.register(norm_op)
dispatch.register(silu_op)
_rms_norm_quantize = dispatch.public(norm_op)
_silu_and_mul_quantize = dispatch.public(silu_op)


def rms_norm_quantize(
    x: Tensor,
    weight: Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
    group: int = 0,
    eps: float = EPS,
    zero_centered: bool = False,
    *,
    variant: str | None = None,
) -> tuple[Tensor, Tensor]:
    """RMS norm and `quantize_fp8` of it in one pass: `y = x / sqrt(mean(x^2) + eps) * weight`,
    `scale = max(amax(y) / largest, 2^-126)`, `q = round(y * (1 / scale))`.

    y is held in f32 and rounded once, to q. `rms_norm_fp8` takes a scale that is known beforehand.
    Not differentiable.

    Args:
        x: [..., n], f32, f16 or bf16 (f64 without a kernel of its own), any strides.
        weight: [n], in the dtype of x or f32; None for ones.
        dtype: torch.float8_e4m3fn or torch.float8_e5m2.
        group: how many values of a row share a scale: 0, all of them, or 128.
        eps: added to the mean before the root.
        zero_centered: the weight is stored as its distance from one, so 1 + weight is multiplied.
        variant: one rung by name instead of the best one, "bf16x8_pack_registers".

    Returns:
        q, a contiguous tensor of the shape of x in `dtype`, and scale in f32 (f64 for f64), of
        shape x.shape[:-1] or (*x.shape[:-1], ceil(n / 128)).

    Raises:
        RuntimeError: x is not floating-point of 16 bits or more, or 0-d; weight has another shape,
            dtype or device; dtype is not fp8; group is neither 0 nor 128; the variant cannot take
            the input.
        ValueError: the variant does not exist.

    Reference:
        Zhang & Sennrich 2019, Root Mean Square Layer Normalization,
        https://arxiv.org/abs/1910.07467; and of `quantize_fp8`.
    """
    return _rms_norm_quantize(variant, x, weight, dtype, group, eps, zero_centered)


def silu_and_mul_quantize(
    x: Tensor,
    up: Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
    group: int = 0,
    *,
    variant: str | None = None,
) -> tuple[Tensor, Tensor]:
    """SwiGLU's middle and `quantize_fp8` of it in one pass: `y = silu(gate) * up`,
    `scale = max(amax(y) / largest, 2^-126)`, `q = round(y * (1 / scale))`.

    y is held in f32 and rounded once, to q. Not differentiable.

    Args:
        x: the gate, [..., n], f32, f16 or bf16 (f64 without a kernel of its own), any strides; or,
            without `up`, [..., 2 n] with the gate in the first n columns and up in the last n.
        up: the shape, dtype and device of `x`.
        dtype: torch.float8_e4m3fn or torch.float8_e5m2.
        group: how many values of a row share a scale: 0, all of them, or 128.
        variant: one rung by name instead of the best one, "bf16x8_pack_registers".

    Returns:
        q, a contiguous tensor [..., n] in `dtype`, and scale in f32 (f64 for f64), of shape [...]
        or [..., ceil(n / 128)].

    Raises:
        RuntimeError: x is not floating-point of 16 bits or more, 0-d, or of an odd last dimension
            without `up`; up is not like x; dtype is not fp8; group is neither 0 nor 128; the
            variant cannot take the input.
        ValueError: the variant does not exist.

    Reference:
        Shazeer 2020, "GLU Variants Improve Transformer", https://arxiv.org/abs/2002.05202; and of
        `quantize_fp8`.
    """
    return _silu_and_mul_quantize(variant, x, up, dtype, group)
