"""Gradients of the norms from their outputs, for graphs that keep y and rstd and not x.

xhat, the row before weight and bias, is recomputed as (y - bias) / weight; a weight of a magnitude
below eps counts as eps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import PACK, Cost, Op, Property, Rung
from warpsmith.norm import conditions
from warpsmith.norm import from_output_cases as cases
from warpsmith.norm.checks import check_parameters, check_rstd
from warpsmith.spec.checks import check_like, check_rows, wide_dtype

Parameter = Tensor | None

# --- checks ---------------------------------------------------------------------------------------


def _check(
    op: str, grad: Tensor, y: Tensor, weight: Parameter, bias: Parameter, rstd: Tensor
) -> None:
    check_rows(op, y, "y")
    check_like(op, "grad", grad, y, "y")
    check_parameters(op, weight, bias, y, "y")
    check_rstd(op, rstd, y, "y")


def _check_rms(grad: Tensor, y: Tensor, weight: Parameter, rstd: Tensor, eps: float) -> None:
    _check("rms_norm_backward_from_output", grad, y, weight, None, rstd)


def _check_layer(
    grad: Tensor, y: Tensor, weight: Parameter, bias: Parameter, rstd: Tensor, eps: float
) -> None:
    _check("layer_norm_backward_from_output", grad, y, weight, bias, rstd)


# --- references -----------------------------------------------------------------------------------


def _gradients(
    grad: Tensor,
    y: Tensor,
    weight: Parameter,
    bias: Parameter,
    rstd: Tensor,
    eps: float,
    centred: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """dx in the dtype of y; dw and db in f32 or wider, before anyone rounds them."""
    wide = wide_dtype(y.dtype)
    g, weighted = grad.to(wide), y.to(wide)
    if bias is not None:
        weighted = weighted - bias.to(wide)
    scaled, xhat = g, weighted
    if weight is not None:
        w = weight.to(wide)
        scaled = g * w
        xhat = weighted / torch.where(w.abs() < eps, torch.copysign(w.new_tensor(eps), w), w)
    inner = scaled - scaled.mean(-1, keepdim=True) if centred else scaled
    inner = inner - xhat * (g * weighted).mean(-1, keepdim=True)
    shape = y.shape[-1:]
    dw, db = (g * xhat).sum_to_size(shape), g.sum_to_size(shape)
    return (rstd.to(wide).unsqueeze(-1) * inner).to(y.dtype), dw, db


def _as(gradient: Tensor, parameter: Parameter, y: Tensor) -> Tensor:
    return y.new_empty(0) if parameter is None else gradient.to(parameter.dtype)


def _reference_rms(
    grad: Tensor, y: Tensor, weight: Parameter, rstd: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    dx, dw, _ = _gradients(grad, y, weight, None, rstd, eps, centred=False)
    return dx, _as(dw, weight, y)


def _reference_layer(
    grad: Tensor, y: Tensor, weight: Parameter, bias: Parameter, rstd: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dw, db = _gradients(grad, y, weight, bias, rstd, eps, centred=True)
    return dx, _as(dw, weight, y), _as(db, bias, y)


def _empty(parameter: Parameter, y: Tensor) -> Tensor:
    return y.new_empty(0) if parameter is None else parameter.new_empty(parameter.shape)


def _fake_rms(
    grad: Tensor, y: Tensor, weight: Parameter, rstd: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    return y.new_empty(y.shape), _empty(weight, y)


def _fake_layer(
    grad: Tensor, y: Tensor, weight: Parameter, bias: Parameter, rstd: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    return y.new_empty(y.shape), _empty(weight, y), _empty(bias, y)


# --- what the rungs take --------------------------------------------------------------------------


def _needs_packs_rms(
    grad: Tensor, y: Tensor, weight: Parameter, rstd: Tensor, eps: float
) -> str | None:
    if conditions.tiled(conditions.pack_of(y), (y, grad), (weight,)):
        return None
    return "needs rows and weight aligned to 16 bytes"


def _needs_packs_layer(
    grad: Tensor, y: Tensor, weight: Parameter, bias: Parameter, rstd: Tensor, eps: float
) -> str | None:
    if conditions.tiled(conditions.pack_of(y), (y, grad), (weight, bias)):
        return None
    return "needs rows, weight and bias aligned to 16 bytes"


def _at_most(needs_packs: Callable[..., str | None], cols: int) -> Callable[..., str | None]:
    def condition(grad: Tensor, y: Tensor, *rest: Any) -> str | None:
        return needs_packs(grad, y, *rest) or conditions.needs_columns(y, cols)

    return condition


def _suits_cluster(grad: Tensor, y: Tensor, *rest: Any) -> str | None:
    return conditions.suits_cluster_backward(y)


# --- the operators --------------------------------------------------------------------------------


def _bytes(grad: Tensor, y: Tensor, rstd: Tensor, *parameters: Parameter) -> int:
    extra = sum(p.numel() * p.element_size() for p in (rstd, *parameters) if p is not None)
    return 3 * y.numel() * y.element_size() + extra


def _ladder(needs_packs: Callable[..., str | None], sums: str) -> tuple[Rung, ...]:
    return (
        Rung("naive", f"a block per row for dx, then column sums for {sums}"),
        Rung(
            "registers",
            f"persistent blocks, {sums} in registers, the next rows on their way meanwhile",
            width=PACK,
            pack=True,
            technique="registers",
            when=_at_most(needs_packs, 8192),
        ),
        Rung(
            "cluster",
            "long rows split over a cluster, their sums through distributed shared memory",
            width=PACK,
            pack=True,
            technique="cluster",
            min_sm=90,
            when=_at_most(needs_packs, 262144),
            suits=_suits_cluster,
        ),
    )


rms_norm_backward_from_output_op = catalogue.add(
    Op(
        "rms_norm_backward_from_output(Tensor grad, Tensor y, Tensor? weight, Tensor rstd,"
        " float eps) -> (Tensor, Tensor)",
        family="norm",
        reference=_reference_rms,
        ladder=_ladder(_needs_packs_rms, "dw"),
        triton="norm_backward_triton:rms_norm_backward_from_output",
        fake=_fake_rms,
        check=_check_rms,
        samples=cases.samples(cases.saved_by_rms_norm),
        errors=cases.errors("rms_norm_backward_from_output", cases.saved_by_rms_norm),
        properties=(Property("repeatable", cases.repeatable(cases.saved_by_rms_norm)),),
        cost=Cost(
            bytes=lambda grad, y, weight, rstd, eps: _bytes(grad, y, rstd, weight, weight),
            flops=lambda grad, y, weight, rstd, eps: 9 * y.numel(),
        ),
        bench=cases.bench(cases.saved_by_rms_norm),
    )
)

layer_norm_backward_from_output_op = catalogue.add(
    Op(
        "layer_norm_backward_from_output(Tensor grad, Tensor y, Tensor? weight, Tensor? bias,"
        " Tensor rstd, float eps) -> (Tensor, Tensor, Tensor)",
        family="norm",
        reference=_reference_layer,
        ladder=_ladder(_needs_packs_layer, "dw and db"),
        triton="norm_backward_triton:layer_norm_backward_from_output",
        fake=_fake_layer,
        check=_check_layer,
        samples=cases.samples(cases.saved_by_layer_norm),
        errors=cases.errors("layer_norm_backward_from_output", cases.saved_by_layer_norm),
        properties=(Property("repeatable", cases.repeatable(cases.saved_by_layer_norm)),),
        cost=Cost(
            bytes=lambda grad, y, weight, bias, rstd, eps: _bytes(
                grad, y, rstd, weight, weight, bias, bias
            ),
            flops=lambda grad, y, weight, bias, rstd, eps: 13 * y.numel(),
        ),
        bench=cases.bench(cases.saved_by_layer_norm),
    )
)

dispatch.register(rms_norm_backward_from_output_op)
dispatch.register(layer_norm_backward_from_output_op)
