"""Layer norm: y = (x - mean) / sqrt(var + eps) * weight + bias over the last dimension, alone and
with the rstd of its rows, and its gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import PACK, Cost, Gradients, Op, Property, Rung
from warpsmith.norm import conditions
from warpsmith.norm import layer_norm_cases as cases
from warpsmith.norm.add_norm import add_layer_norm
from warpsmith.norm.checks import check_parameters, check_zero_centered
from warpsmith.spec.checks import check_like, check_rows, wide_dtype
from warpsmith.spec.peers import PerInput, RetainedGraph

EPS = cases.EPS
#: Longer rows go to a cluster; `kWorthwhileBytes` in csrc/norm/layer_norm/cluster.cu.
_HELD_BYTES = 64 << 10

Parameter = Tensor | None

# --- checks ---------------------------------------------------------------------------------------


def _check(x: Tensor, weight: Parameter, bias: Parameter, eps: float) -> None:
    check_rows("layer_norm", x)
    check_parameters("layer_norm", weight, bias, x)


def _check_with_rstd(x: Tensor, weight: Parameter, bias: Parameter, eps: float) -> None:
    check_rows("layer_norm_with_rstd", x)
    check_parameters("layer_norm_with_rstd", weight, bias, x)


def _check_backward(
    grad: Tensor, x: Tensor, weight: Parameter, bias: Parameter, eps: float
) -> None:
    op = "layer_norm_backward"
    check_rows(op, x)
    check_like(op, "grad", grad, x)
    check_parameters(op, weight, bias, x)


# --- references -----------------------------------------------------------------------------------


def _eager(x: Tensor, weight: Parameter, bias: Parameter, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def _reference(x: Tensor, weight: Parameter, bias: Parameter, eps: float) -> Tensor:
    if x.numel() == 0:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    parameters = [p for p in (weight, bias) if p is not None]
    if all(p.dtype == x.dtype for p in parameters):
        return _eager(x, weight, bias, eps)
    wide = torch.promote_types(x.dtype, parameters[0].dtype)
    w, b = (p if p is None else p.to(wide) for p in (weight, bias))
    return _eager(x.to(wide), w, b, eps).to(x.dtype)


def _reference_with_rstd(
    x: Tensor, weight: Parameter, bias: Parameter, eps: float
) -> tuple[Tensor, Tensor]:
    y = _reference(x, weight, bias, eps)
    wide = wide_dtype(x.dtype)
    if x.numel() == 0:
        return y, torch.zeros(x.shape[:-1], dtype=wide, device=x.device)
    variance = x.detach().to(wide).var(-1, correction=0)
    return y, torch.rsqrt(variance + eps)


def _standardised(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(x - mean) / std, and 1 / std as [..., 1]."""
    centred = x - x.mean(-1, keepdim=True)
    rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return centred * rstd, rstd


def _reference_backward(
    grad: Tensor, x: Tensor, weight: Parameter, bias: Parameter, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    wide = wide_dtype(x.dtype)
    g, values = grad.to(wide), x.to(wide)
    xhat, rstd = _standardised(values, eps)
    scaled = g if weight is None else g * weight.to(wide)
    inner = scaled - scaled.mean(-1, keepdim=True)
    dx = rstd * (inner - xhat * (scaled * xhat).mean(-1, keepdim=True))
    dw, db = (
        x.new_empty(0) if p is None else product.sum_to_size(x.shape[-1:]).to(p.dtype)
        for p, product in ((weight, g * xhat), (bias, g))
    )
    return dx.to(x.dtype), dw, db


def _fake(x: Tensor, weight: Parameter, bias: Parameter, eps: float) -> Tensor:
    return x.new_empty(x.shape)


def _fake_with_rstd(
    x: Tensor, weight: Parameter, bias: Parameter, eps: float
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1], dtype=wide_dtype(x.dtype))


def _fake_backward(
    grad: Tensor, x: Tensor, weight: Parameter, bias: Parameter, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dw, db = (x.new_empty(0) if p is None else p.new_empty(p.shape) for p in (weight, bias))
    return x.new_empty(x.shape), dw, db


def _derivative(
    grad: Tensor, x: Tensor, weight: Parameter, bias: Parameter, eps: float
) -> Gradients:
    dx, dw, db = torch.ops.warpsmith.layer_norm_backward(grad, x, weight, bias, eps)
    return {"x": dx, "weight": dw, "bias": db}


def _derivative_with_rstd(
    grad_y: Tensor, y: Tensor, weight: Parameter, bias: Parameter, rstd: Tensor, eps: float
) -> Gradients:
    dx, dw, db = torch.ops.warpsmith.layer_norm_backward_from_output(
        grad_y, y, weight, bias, rstd, eps
    )
    return {"x": dx, "weight": dw, "bias": db}


# --- what the rungs take --------------------------------------------------------------------------


def _needs_pairs(x: Tensor, weight: Parameter, bias: Parameter, eps: float) -> str | None:
    if conditions.tiled(2, (x,), (weight, bias)):
        return None
    return "needs rows, weight and bias aligned to 2 elements"


def _needs_packs(x: Tensor, weight: Parameter, bias: Parameter, eps: float) -> str | None:
    if conditions.tiled(conditions.pack_of(x), (x,), (weight, bias)):
        return None
    return "needs rows, weight and bias aligned to 16 bytes"


def _needs_registers(x: Tensor, weight: Parameter, bias: Parameter, eps: float) -> str | None:
    return _needs_packs(x, weight, bias, eps) or conditions.needs_registers(x)


def _needs_cluster(x: Tensor, weight: Parameter, bias: Parameter, eps: float) -> str | None:
    return _needs_packs(x, weight, bias, eps) or conditions.needs_cluster(x)


def _suits_cluster(x: Tensor, weight: Parameter, bias: Parameter, eps: float) -> str | None:
    longer = conditions.row_bytes(x) > _HELD_BYTES
    return None if longer else "the row fits a block's registers"


def _at_most(cols: int) -> Callable[..., str | None]:
    def condition(
        grad: Tensor, x: Tensor, weight: Parameter, bias: Parameter, eps: float
    ) -> str | None:
        if not conditions.tiled(conditions.pack_of(x), (x, grad), (weight,)):
            return "needs rows and weight aligned to 16 bytes"
        return conditions.needs_columns(x, cols)

    return condition


def _suits_cluster_backward(
    grad: Tensor, x: Tensor, weight: Parameter, bias: Parameter, eps: float
) -> str | None:
    return conditions.suits_cluster_backward(x)


# --- peers ----------------------------------------------------------------------------------------


def _quack() -> Callable[..., Any]:
    from quack.rmsnorm import layernorm_fwd

    wide = PerInput(lambda parameter: parameter.float())  # it takes no others

    def run(x: Tensor, weight: Parameter, bias: Parameter, eps: float) -> Tensor:
        parameters = (p if p is None else wide(p) for p in (weight, bias))
        return layernorm_fwd(x, *parameters, eps=eps)

    return run


def _liger() -> Callable[..., Any]:
    from liger_kernel.ops.layer_norm import layer_norm_forward

    def run(x: Tensor, weight: Parameter, bias: Parameter, eps: float) -> Tensor:
        return layer_norm_forward(x, weight, bias, eps)[0]

    return run


def _compiled_backward() -> Callable[..., Any]:
    return RetainedGraph(torch.compile(_eager, dynamic=False))


def _liger_backward() -> Callable[..., Any]:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return RetainedGraph(LigerLayerNormFunction.apply)


# --- the operators --------------------------------------------------------------------------------


def _parameter_bytes(*parameters: Parameter) -> int:
    return sum(p.numel() * p.element_size() for p in parameters if p is not None)


def _bytes(x: Tensor, weight: Parameter, bias: Parameter, eps: float) -> int:
    return 2 * x.numel() * x.element_size() + _parameter_bytes(weight, bias)


def _bytes_with_rstd(x: Tensor, weight: Parameter, bias: Parameter, eps: float) -> int:
    return _bytes(x, weight, bias, eps) + 4 * conditions.row_count(x)


def _bytes_backward(grad: Tensor, x: Tensor, weight: Parameter, bias: Parameter, eps: float) -> int:
    return 3 * x.numel() * x.element_size() + _parameter_bytes(weight, weight, bias)


_BOTH = ("f32", "same")
_HALVES = ("f16", "bf16")
_LADDER = (
    Rung(
        "tree",
        "a block per row, summed by a tree in shared memory, three sweeps",
        technique="tree",
        accumulators=_BOTH,
    ),
    Rung(
        "shuffle",
        "warp shuffles replace the tree: one barrier a sum instead of eight",
        accumulators=_BOTH,
    ),
    Rung(
        "x2",
        "two 16-bit values an access",
        dtypes=_HALVES,
        width=2,
        accumulators=_BOTH,
        when=_needs_pairs,
    ),
    Rung(
        "unroll",
        "four or eight separate loads in flight per thread",
        width=PACK,
        accumulators=_BOTH,
    ),
    Rung(
        "pack",
        "128-bit accesses, the row read three times",
        width=PACK,
        pack=True,
        accumulators=_BOTH,
        when=_needs_packs,
    ),
    Rung(
        "welford",
        "mean and variance in one sweep, the row read twice",
        width=PACK,
        pack=True,
        technique="welford",
        when=_needs_packs,
    ),
    Rung(
        "registers",
        "the row held in registers and read once, short rows sharing a block",
        width=PACK,
        pack=True,
        technique="registers",
        when=_needs_registers,
    ),
    Rung(
        "cluster",
        "long rows streamed through a cluster, which keeps weight and bias and reads rows ahead",
        width=PACK,
        pack=True,
        technique="cluster",
        min_sm=90,
        when=_needs_cluster,
        suits=_suits_cluster,
    ),
)

layer_norm_op = catalogue.add(
    Op(
        "layer_norm(Tensor x, Tensor? weight=None, Tensor? bias=None, float eps=1e-5) -> Tensor",
        family="norm",
        reference=_reference,
        ladder=_LADDER,
        triton="layer_norm_triton:layer_norm",
        fake=_fake,
        check=_check,
        backward=_derivative,
        accumulates=True,
        samples=cases.samples(),
        errors=cases.errors("layer_norm"),
        properties=(
            Property("shift invariant", cases.shift_invariant),
            Property("rows independent", cases.rows_independent),
            Property("standardised", cases.standardised),
            # In 16 bits PyTorch's own function leaves more on a CPU.
            Property("constant rows", cases.constant_rows, dtypes=("f32",)),
        ),
        cost=Cost(bytes=_bytes, flops=lambda x, weight, bias, eps: 7 * x.numel()),
        bench=cases.BENCH,
        peers={"quack": _quack, "liger": _liger},
        eager=_eager,
    )
)

layer_norm_with_rstd_op = catalogue.add(
    Op(
        "layer_norm_with_rstd(Tensor x, Tensor? weight=None, Tensor? bias=None, float eps=1e-5)"
        " -> (Tensor y, Tensor rstd)",
        family="norm",
        source="layer_norm",
        reference=_reference_with_rstd,
        ladder=tuple(rung for rung in _LADDER if rung.name != "tree"),
        triton="layer_norm_triton:layer_norm_with_rstd",
        fake=_fake_with_rstd,
        check=_check_with_rstd,
        backward=_derivative_with_rstd,
        constants=("rstd",),
        accumulates=True,
        samples=cases.with_rstd_samples(),
        errors=cases.errors("layer_norm_with_rstd"),
        cost=Cost(bytes=_bytes_with_rstd, flops=lambda x, weight, bias, eps: 7 * x.numel()),
        bench=cases.BENCH,
    )
)

layer_norm_backward_op = catalogue.add(
    Op(
        "layer_norm_backward(Tensor grad, Tensor x, Tensor? weight, Tensor? bias, float eps)"
        " -> (Tensor, Tensor, Tensor)",
        family="norm",
        reference=_reference_backward,
        ladder=(
            Rung("naive", "a block per row for dx, then column sums for dw and db"),
            Rung(
                "registers",
                "persistent blocks, dw and db in registers, the next rows on their way meanwhile",
                width=PACK,
                pack=True,
                technique="registers",
                when=_at_most(8192),
            ),
            Rung(
                "cluster",
                "long rows split over a cluster, their sums through distributed shared memory",
                width=PACK,
                pack=True,
                technique="cluster",
                min_sm=90,
                when=_at_most(262144),
                suits=_suits_cluster_backward,
            ),
        ),
        triton="norm_backward_triton:layer_norm_backward",
        fake=_fake_backward,
        check=_check_backward,
        samples=cases.backward_samples(),
        errors=cases.BACKWARD_ERRORS,
        properties=(
            Property("orthogonal to x and ones", cases.orthogonal),
            Property("repeatable", cases.repeatable),
        ),
        cost=Cost(bytes=_bytes_backward, flops=lambda grad, x, weight, bias, eps: 17 * x.numel()),
        bench=cases.BENCH_BACKWARD,
        peers={"compile": _compiled_backward, "liger": _liger_backward},
        eager=RetainedGraph(_eager),
    )
)

dispatch.register(layer_norm_op)
dispatch.register(layer_norm_with_rstd_op)
dispatch.register(layer_norm_backward_op)
_layer_norm = dispatch.public(layer_norm_op)
_layer_norm_with_rstd = dispatch.public(layer_norm_with_rstd_op)


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = EPS,
    *,
    zero_centered: bool = False,
    memory_efficient: bool = False,
    variant: str | None = None,
) -> Tensor:
    """Standardises every row: ``y = (x - mean) / sqrt(var + eps) * weight + bias``.

    Mean and variance (that of the population) are over the last dimension; the variance is summed
    from deviations, so that a large mean costs it no digits. Sums are held in f32 unless the
    variant says otherwise. Differentiable in x, weight and bias; the backward pass recomputes mean
    and variance, so that only the inputs are kept.

    Args:
        x: [..., n], f32, f16 or bf16 (f64 and fp8 without a kernel of their own), any strides.
        weight: [n], in the dtype of x or f32; None for ones.
        bias: [n], in the dtype of weight, without one in the dtype of x or f32; None for zeros.
        eps: added to the variance before the root.
        zero_centered: the weight is stored as its distance from one, so 1 + weight is multiplied.
            That is done by the kernels of `add_layer_norm`, which messages then name; neither
            memory_efficient nor a variant goes with it.
        memory_efficient: keep y and one value per row for the backward pass instead of x, which
            may then be freed: ``(x - mean) / sqrt(var + eps)`` is recomputed as
            ``(y - bias) / weight``. It has the digits that y has left: where a weight is small
            beside its bias, few in f16 and bf16; where it is 0 none, and weights of a magnitude
            below eps are divided by as if they were eps, so that a weight of 0 gets no gradient.
        variant: one rung by name instead of the best one, "f16x8_pack_f32". Variants that end in
            f16 or bf16 sum in that dtype: in f16 the sum of squares overflows, and the row becomes
            the bias, once a thread's share passes 65504; in bf16 it keeps 8 bits, and a row that
            deviates from its mean by less than the mean's rounding is of no use.

    Returns:
        A contiguous tensor of the shape and dtype of x.

    Raises:
        RuntimeError: x is not floating-point or 0-d; weight or bias has another shape, dtype or
            device; the variant cannot take the input.
        ValueError: the variant does not exist; zero_centered comes with a variant or with
            memory_efficient.

    Reference:
        Ba, Kiros & Hinton 2016, Layer Normalization, https://arxiv.org/abs/1607.06450. Recomputing
        from the output: `memory_efficient` of NVIDIA Apex's FusedLayerNorm.
    """
    if zero_centered and weight is not None:
        check_zero_centered("layer_norm", memory_efficient, variant)
        return add_layer_norm(x, None, weight, bias, eps, zero_centered=True)[0]
    if memory_efficient:
        return _layer_norm_with_rstd(variant, x, weight, bias, eps)[0]
    return _layer_norm(variant, x, weight, bias, eps)
