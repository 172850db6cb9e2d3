"""RMS norm: y = x / sqrt(mean(x^2) + eps) * weight over the last dimension, and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import PACK, Cost, Gradients, Op, Property, Rung
from warpsmith.norm import conditions
from warpsmith.norm import rms_norm_cases as cases
from warpsmith.norm.add_norm import add_rms_norm
from warpsmith.norm.checks import check_weight, check_zero_centered
from warpsmith.spec.checks import check_like, check_rows, wide_dtype
from warpsmith.spec.peers import PerInput, RetainedGraph

EPS = cases.EPS

# --- checks ---------------------------------------------------------------------------------------


def _check(x: Tensor, weight: Tensor | None, eps: float) -> None:
    check_rows("rms_norm", x)
    check_weight("rms_norm", weight, x)


def _check_with_rstd(x: Tensor, weight: Tensor | None, eps: float) -> None:
    check_rows("rms_norm_with_rstd", x)
    check_weight("rms_norm_with_rstd", weight, x)


def _check_backward(grad: Tensor, x: Tensor, weight: Tensor | None, eps: float) -> None:
    op = "rms_norm_backward"
    check_rows(op, x)
    check_like(op, "grad", grad, x)
    check_weight(op, weight, x)


# --- references -----------------------------------------------------------------------------------


def _reference(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if x.numel() == 0:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    shape = x.shape[-1:]
    if weight is None or weight.dtype == x.dtype:
        return F.rms_norm(x, shape, weight, eps)
    wide = torch.promote_types(x.dtype, weight.dtype)
    return F.rms_norm(x.to(wide), shape, weight.to(wide), eps).to(x.dtype)


def _reference_with_rstd(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    y = _reference(x, weight, eps)
    wide = wide_dtype(x.dtype)
    if x.numel() == 0:
        return y, torch.zeros(x.shape[:-1], dtype=wide, device=x.device)
    return y, torch.rsqrt(x.detach().to(wide).square().mean(-1) + eps)


def _reference_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(x.dtype, torch.float32)
    g, values = grad.to(wide), x.to(wide)
    rstd = torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)
    xhat = values * rstd
    scaled = g if weight is None else g * weight.to(wide)
    dx = rstd * (scaled - xhat * (scaled * xhat).mean(-1, keepdim=True))
    if weight is None:
        return dx.to(x.dtype), x.new_empty(0)
    return dx.to(x.dtype), (g * xhat).sum_to_size(x.shape[-1:]).to(weight.dtype)


def _fake(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return x.new_empty(x.shape)


def _fake_with_rstd(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1], dtype=wide_dtype(x.dtype))


def _fake_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    dw = x.new_empty(0) if weight is None else weight.new_empty(weight.shape)
    return x.new_empty(x.shape), dw


def _derivative(grad: Tensor, x: Tensor, weight: Tensor | None, eps: float) -> Gradients:
    dx, dw = torch.ops.warpsmith.rms_norm_backward(grad, x, weight, eps)
    return {"x": dx, "weight": dw}


def _derivative_with_rstd(
    grad_y: Tensor, y: Tensor, weight: Tensor | None, rstd: Tensor, eps: float
) -> Gradients:
    dx, dw = torch.ops.warpsmith.rms_norm_backward_from_output(grad_y, y, weight, rstd, eps)
    return {"x": dx, "weight": dw}


# --- what the rungs take --------------------------------------------------------------------------


def _needs_pairs(x: Tensor, weight: Tensor | None, eps: float) -> str | None:
    if conditions.tiled(2, (x,), (weight,)):
        return None
    return "needs rows and weight aligned to 2 elements"


def _needs_packs(x: Tensor, weight: Tensor | None, eps: float) -> str | None:
    if conditions.tiled(conditions.pack_of(x), (x,), (weight,)):
        return None
    return "needs rows and weight aligned to 16 bytes"


def _needs_registers(x: Tensor, weight: Tensor | None, eps: float) -> str | None:
    return _needs_packs(x, weight, eps) or conditions.needs_registers(x)


def _needs_cluster(x: Tensor, weight: Tensor | None, eps: float) -> str | None:
    return _needs_packs(x, weight, eps) or conditions.needs_cluster(x)


def _suits_cluster(x: Tensor, weight: Tensor | None, eps: float) -> str | None:
    return conditions.suits_cluster(x)


def _needs_packs_backward(grad: Tensor, x: Tensor, weight: Tensor | None, eps: float) -> str | None:
    if conditions.tiled(conditions.pack_of(x), (x, grad), (weight,)):
        return None
    return "needs rows and weight aligned to 16 bytes"


def _at_most(cols: int) -> Callable[..., str | None]:
    def condition(grad: Tensor, x: Tensor, weight: Tensor | None, eps: float) -> str | None:
        return _needs_packs_backward(grad, x, weight, eps) or conditions.needs_columns(x, cols)

    return condition


def _suits_cluster_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, eps: float
) -> str | None:
    return conditions.suits_cluster_backward(x)


# --- peers ----------------------------------------------------------------------------------------


def _eager(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def _quack() -> Callable[..., Any]:
    from quack.rmsnorm import rmsnorm_fwd

    def run(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        return rmsnorm_fwd(x, weight, eps=eps)[0]

    return run


def _liger() -> Callable[..., Any]:
    from liger_kernel.ops.rms_norm import rms_norm_forward

    def run(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        return rms_norm_forward(x, weight, eps, 0.0, "llama", False)[0]

    return run


def _compiled_backward() -> Callable[..., Any]:
    return RetainedGraph(torch.compile(_eager, dynamic=False))


def _quack_backward() -> Callable[..., Any]:
    from quack.rmsnorm import rmsnorm_bwd

    rstd = PerInput(lambda x, eps: torch.rsqrt(x.float().square().mean(-1) + eps))

    def run(grad: Tensor, x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
        dx, dw = rmsnorm_bwd(x, weight, grad, rstd(x, eps))[:2]
        return dx, x.new_empty(0) if dw is None else dw

    return run


def _liger_backward() -> Callable[..., Any]:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    def forward(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        return LigerRMSNormFunction.apply(x, weight, eps, 0.0, "llama", False)

    return RetainedGraph(forward)


# --- the operators --------------------------------------------------------------------------------


def _bytes(x: Tensor, weight: Tensor | None, eps: float) -> int:
    extra = 0 if weight is None else weight.numel() * weight.element_size()
    return 2 * x.numel() * x.element_size() + extra


def _bytes_with_rstd(x: Tensor, weight: Tensor | None, eps: float) -> int:
    return _bytes(x, weight, eps) + 4 * conditions.row_count(x)


def _bytes_backward(grad: Tensor, x: Tensor, weight: Tensor | None, eps: float) -> int:
    extra = 0 if weight is None else 2 * weight.numel() * weight.element_size()
    return 3 * x.numel() * x.element_size() + extra


_BOTH = ("f32", "same")
_HALVES = ("f16", "bf16")

rms_norm_op = catalogue.add(
    Op(
        "rms_norm(Tensor x, Tensor? weight=None, float eps=1e-6) -> Tensor",
        family="norm",
        reference=_reference,
        ladder=(
            Rung(
                "tree",
                "a block per row, summed by a tree in shared memory",
                technique="tree",
                accumulators=_BOTH,
            ),
            Rung(
                "shuffle",
                "warp shuffles replace the tree: one barrier instead of eight",
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
                "128-bit accesses, the row read twice",
                width=PACK,
                pack=True,
                accumulators=_BOTH,
                when=_needs_packs,
            ),
            Rung(
                "registers",
                "the row held in registers and read once, short rows sharing a block",
                width=PACK,
                pack=True,
                technique="registers",
                when=_needs_registers,
                seeds=("batch_invariant_rms_norm_{dtype}",),
            ),
            Rung(
                "cluster",
                "long rows streamed through a cluster, which keeps its weight and reads rows ahead",
                width=PACK,
                pack=True,
                technique="cluster",
                min_sm=90,
                when=_needs_cluster,
                suits=_suits_cluster,
            ),
        ),
        triton="rms_norm_triton:rms_norm",
        fake=_fake,
        check=_check,
        backward=_derivative,
        accumulates=True,
        samples=cases.samples(),
        errors=cases.ERRORS,
        properties=(
            Property("scale invariant", cases.scale_invariant),
            Property("rows independent", cases.rows_independent),
            Property("unit rms", cases.unit_rms),
        ),
        cost=Cost(bytes=_bytes, flops=lambda x, weight, eps: 4 * x.numel()),
        bench=tuple(cases.bench(*shape) for shape in cases.BENCH_SHAPES),
        peers={"quack": _quack, "liger": _liger},
        eager=_eager,
    )
)

rms_norm_with_rstd_op = catalogue.add(
    Op(
        "rms_norm_with_rstd(Tensor x, Tensor? weight=None, float eps=1e-6) "
        "-> (Tensor y, Tensor rstd)",
        family="norm",
        reference=_reference_with_rstd,
        ladder=(
            Rung("shuffle", "a block per row, summed by warp shuffles"),
            Rung(
                "pack",
                "128-bit accesses, the row read twice",
                width=PACK,
                pack=True,
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
                "long rows streamed through a cluster, which keeps its weight and reads rows ahead",
                width=PACK,
                pack=True,
                technique="cluster",
                min_sm=90,
                when=_needs_cluster,
                suits=_suits_cluster,
            ),
        ),
        triton="rms_norm_triton:rms_norm_with_rstd",
        fake=_fake_with_rstd,
        check=_check_with_rstd,
        backward=_derivative_with_rstd,
        constants=("rstd",),
        accumulates=True,
        samples=cases.with_rstd_samples(),
        errors=cases.WITH_RSTD_ERRORS,
        cost=Cost(bytes=_bytes_with_rstd, flops=lambda x, weight, eps: 4 * x.numel()),
        bench=tuple(cases.bench(*shape) for shape in cases.BENCH_SHAPES),
    )
)

rms_norm_backward_op = catalogue.add(
    Op(
        "rms_norm_backward(Tensor grad, Tensor x, Tensor? weight, float eps) -> (Tensor, Tensor)",
        family="norm",
        reference=_reference_backward,
        ladder=(
            Rung("naive", "a block per row for dx, then column sums for dw"),
            Rung(
                "registers",
                "persistent blocks, dw in registers, the next rows on their way meanwhile",
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
        triton="rms_norm_triton:rms_norm_backward",
        fake=_fake_backward,
        check=_check_backward,
        samples=cases.backward_samples(),
        errors=cases.BACKWARD_ERRORS,
        properties=(
            Property("orthogonal to x", cases.orthogonal),
            Property("repeatable", cases.repeatable),
        ),
        cost=Cost(bytes=_bytes_backward, flops=lambda grad, x, weight, eps: 12 * x.numel()),
        bench=tuple(cases.bench_backward(*shape) for shape in cases.BENCH_SHAPES),
        peers={
            "compile": _compiled_backward,
            "quack": _quack_backward,
            "liger": _liger_backward,
        },
        eager=RetainedGraph(_eager),
    )
)

dispatch.register(rms_norm_op)
dispatch.register(rms_norm_with_rstd_op)
dispatch.register(rms_norm_backward_op)
_rms_norm = dispatch.public(rms_norm_op)
_rms_norm_with_rstd = dispatch.public(rms_norm_with_rstd_op)


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = EPS,
    *,
    zero_centered: bool = False,
    memory_efficient: bool = False,
    variant: str | None = None,
) -> Tensor:
    """Divides every row by its root mean square: ``y = x / sqrt(mean(x^2) + eps) * weight``.

    The mean is over the last dimension; sums are held in f32 unless the variant says otherwise.
    Differentiable in x and weight; the backward pass recomputes the root mean square, so that only
    the inputs are kept.

    Args:
        x: [..., n], f32, f16 or bf16 (f64 and fp8 without a kernel of their own), any strides.
        weight: [n], in the dtype of x or f32; None for ones.
        eps: added to the mean before the root.
        zero_centered: the weight is stored as its distance from one, so 1 + weight is multiplied.
            That is done by the kernels of `add_rms_norm`, which messages then name; neither
            memory_efficient nor a variant goes with it.
        memory_efficient: keep y and one value per row for the backward pass instead of x, which
            may then be freed: x / rms is recomputed as y / weight. It has the digits that y has
            left; weights of a magnitude below eps are divided by as if they were eps, so that a
            weight of 0 gets no gradient.
        variant: one rung by name instead of the best one, "f16x8_pack_f32". Variants that end in
            f16 or bf16 add squares in that dtype: in f16 the sum overflows, and the row becomes 0,
            once the squares of a thread's share pass 65504; in bf16 it keeps 8 bits.

    Returns:
        A contiguous tensor of the shape and dtype of x.

    Raises:
        RuntimeError: x is not floating-point or 0-d; weight has another shape, dtype or device; the
            variant cannot take the input.
        ValueError: the variant does not exist; zero_centered comes with a variant or with
            memory_efficient.

    Reference:
        Zhang & Sennrich 2019, Root Mean Square Layer Normalization,
        https://arxiv.org/abs/1910.07467
    """
    if zero_centered and weight is not None:
        check_zero_centered("rms_norm", memory_efficient, variant)
        return add_rms_norm(x, None, weight, eps, zero_centered=True)[0]
    if memory_efficient:
        return _rms_norm_with_rstd(variant, x, weight, eps)[0]
    return _rms_norm(variant, x, weight, eps)
