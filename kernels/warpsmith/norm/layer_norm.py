"""Layer norm: y = (x - mean) / sqrt(var + eps) * weight + bias over the last dimension, alone and
with the rstd of its rows, and its gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.core import autograd, dispatch, into
from warpsmith.norm import arguments, ladders
from warpsmith.norm import plain_cases as cases
from warpsmith.norm.add_norm import add_layer_norm
from warpsmith.norm.checks import check_zero_centered
from warpsmith.norm.norms import (
    LAYER_EPS,
    Norm,
    Parameter,
    backward,
    derivative,
    derivative_from_output,
    forward,
)
from warpsmith.spec.peers import PerInput, RetainedGraph

EPS = LAYER_EPS
_PLAIN, _WITH_RSTD = Norm(layer=True), Norm(layer=True, sink="with_rstd")

# --- peers ----------------------------------------------------------------------------------------


def _eager(x: Tensor, weight: Parameter, bias: Parameter, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


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

_LADDER = ladders.plain(layer=True)

layer_norm_op = forward(
    _PLAIN,
    ladder=_LADDER,
    backward=derivative(_PLAIN),
    samples=cases.samples(_PLAIN),
    errors=cases.errors(_PLAIN),
    properties=cases.properties(_PLAIN),
    bench=cases.bench(_PLAIN),
    peers={"quack": _quack, "liger": _liger},
    eager=_eager,
)
layer_norm_with_rstd_op = forward(
    _WITH_RSTD,
    source="layer_norm",
    ladder=tuple(rung for rung in _LADDER if rung.name != "tree"),
    backward=derivative_from_output(_WITH_RSTD),
    constants=("rstd",),
    samples=cases.with_rstd_samples(_WITH_RSTD),
    errors=cases.errors(_WITH_RSTD),
    bench=cases.bench(_WITH_RSTD),
)
layer_norm_backward_op = backward(
    _PLAIN,
    samples=cases.backward_samples(_PLAIN),
    errors=cases.backward_errors(_PLAIN),
    properties=cases.backward_properties(_PLAIN),
    bench=cases.bench(_PLAIN, backward=True),
    peers={"compile": _compiled_backward, "liger": _liger_backward},
    eager=RetainedGraph(_eager),
)

_layer_norm = dispatch.public(layer_norm_op)
_layer_norm_into = into.register(layer_norm_op)
_layer_norm_with_rstd = dispatch.public(layer_norm_with_rstd_op)
_zero_centered = autograd.speaking("layer_norm", add_layer_norm)


def layer_norm(
    x: Tensor,
    *order: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float | None = EPS,
    normalized_shape: int | Sequence[int] | None = None,
    zero_centered: bool = False,
    memory_efficient: bool = False,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """Standardises every row: ``y = (x - mean) / sqrt(var + eps) * weight + bias``.

        layer_norm(x, weight=None, bias=None, eps=1e-5)
        layer_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5)

    Mean and variance (that of the population) are over the last dimension; the variance is summed
    from deviations, so that a large mean costs it no digits. Sums are held in f32 unless the
    variant says otherwise. Differentiable in x, weight and bias; the backward pass recomputes mean
    and variance, so that only the inputs are kept.

    Args:
        x: [..., n], f32, f16 or bf16 (f64 and fp8 without a kernel of their own), any strides.
        *order: what follows, by position: `weight`, `bias` and `eps`, or as in PyTorch
            `normalized_shape` in front of them.
        weight: [n], in the dtype of x or f32; None for ones. Of any other dtype than x and bias it
            is read in f32. One of more dimensions, [heads, n], say, is broadcast: PyTorch's kernels
            multiply by it, and add the bias.
        bias: like weight; None for zeros.
        eps: added to the variance before the root; None for 1e-5.
        normalized_shape: the last dimensions of x, over all of which mean and variance are. Weight
            and bias have this shape.
        zero_centered: the weight is stored as its distance from one, so 1 + weight is multiplied.
            That is done by the kernels of `add_layer_norm`, which messages then name; neither
            memory_efficient nor a variant goes with it.
        memory_efficient: keep y and one value per row for the backward pass instead of x, which
            may then be freed: ``(x - mean) / sqrt(var + eps)`` is recomputed as
            ``(y - bias) / weight``. It has the digits that y has left: where a weight is small
            beside its bias, few in f16 and bf16; where it is 0 none, and weights of a magnitude
            below eps are divided by as if they were eps, so that a weight of 0 gets no gradient.
        out: a tensor of the shape and dtype of x, best contiguous, which gets the result and is
            returned (`docs/pytorch.md`, results in tensors of the caller). Not differentiable, and
            with no variant.
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
            memory_efficient; out comes with a variant.
        TypeError: there is more by position than these.

    Reference:
        Ba, Kiros & Hinton 2016, Layer Normalization, https://arxiv.org/abs/1607.06450. Recomputing
        from the output: `memory_efficient` of NVIDIA Apex's FusedLayerNorm.
    """
    if len(order) == 2 and isinstance(order[0], Tensor):
        weight, bias = order
    elif len(order) == 1 and isinstance(order[0], Tensor):
        weight = order[0]
    elif order:
        named = (normalized_shape, weight, bias, eps)
        normalized_shape, weight, bias, eps = arguments.in_order(
            "layer_norm", order, ("weight", "bias", "eps"), named
        )
    if eps is None:
        eps = EPS
    if normalized_shape is not None or not (
        arguments.fits(x, weight) and arguments.fits(x, bias) and arguments.alike(weight, bias)
    ):
        y = _composed(
            x, weight, bias, eps, normalized_shape, zero_centered, memory_efficient, variant
        )
        return y if out is None else into.copied("layer_norm", y, out, variant)
    if out is not None and not (zero_centered and weight is not None):
        return _layer_norm_into(out, variant, x, weight, bias, eps)  # type: ignore[no-any-return]
    if zero_centered and weight is not None:
        check_zero_centered("layer_norm", memory_efficient, variant)
        into_y = None if out is None else (out, None)
        return _zero_centered(x, None, weight, bias, eps, zero_centered=True, out=into_y)[0]
    if memory_efficient:
        return _layer_norm_with_rstd(variant, x, weight, bias, eps)[0]
    return _layer_norm(variant, x, weight, bias, eps)


def _composed(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    shape: int | Sequence[int] | None,
    zero_centered: bool,
    memory_efficient: bool,
    variant: str | None,
) -> Tensor:
    """By `layer_norm` as its kernels take it, and by PyTorch's."""

    def run(rows: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return _served(rows, weight, bias, eps, zero_centered, memory_efficient, variant)

    if shape is not None:
        for name, p in (("weight", weight), ("bias", bias)):
            arguments.check_shape("layer_norm", name, p, shape)
    elif arguments.is_by_head(x, weight) or arguments.is_by_head(x, bias):
        factor = 1.0 + weight if zero_centered and weight is not None else weight
        return arguments.times(run(x, None, None), factor, bias)
    weight, bias = arguments.fitting(x, weight, bias)
    return arguments.over_shape("layer_norm", run, x, shape, weight, bias)


def _served(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    zero_centered: bool,
    memory_efficient: bool,
    variant: str | None,
) -> Tensor:
    """As the function itself, of what its kernels take."""
    if zero_centered and weight is not None:
        check_zero_centered("layer_norm", memory_efficient, variant)
        return _zero_centered(x, None, weight, bias, eps, zero_centered=True)[0]
    if memory_efficient:
        return _layer_norm_with_rstd(variant, x, weight, bias, eps)[0]
    return _layer_norm(variant, x, weight, bias, eps)
