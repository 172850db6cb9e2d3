"""RMS norm: y = x / sqrt(mean(x^2) + eps) * weight over the last dimension, alone and with the rstd
of its rows, and its gradients.
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
from warpsmith.norm.add_norm import add_rms_norm
from warpsmith.norm.checks import check_zero_centered
from warpsmith.norm.norms import (
    RMS_EPS,
    Norm,
    backward,
    derivative,
    derivative_from_output,
    forward,
)
from warpsmith.spec.peers import PerInput, RetainedGraph

EPS = RMS_EPS
_PLAIN, _WITH_RSTD = Norm(layer=False), Norm(layer=False, sink="with_rstd")

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

rms_norm_op = forward(
    _PLAIN,
    ladder=ladders.plain(layer=False),
    backward=derivative(_PLAIN),
    samples=cases.samples(_PLAIN),
    errors=cases.errors(_PLAIN),
    properties=cases.properties(_PLAIN),
    bench=cases.bench(_PLAIN),
    peers={"quack": _quack, "liger": _liger},
    eager=_eager,
)
rms_norm_with_rstd_op = forward(
    _WITH_RSTD,
    ladder=ladders.rms_with_rstd(),
    backward=derivative_from_output(_WITH_RSTD),
    constants=("rstd",),
    source="rms_norm",
    samples=cases.with_rstd_samples(_WITH_RSTD),
    errors=cases.errors(_WITH_RSTD),
    bench=cases.bench(_WITH_RSTD),
)
rms_norm_backward_op = backward(
    _PLAIN,
    samples=cases.backward_samples(_PLAIN),
    errors=cases.backward_errors(_PLAIN),
    properties=cases.backward_properties(_PLAIN),
    bench=cases.bench(_PLAIN, backward=True),
    peers={"compile": _compiled_backward, "quack": _quack_backward, "liger": _liger_backward},
    eager=RetainedGraph(_eager),
)

_rms_norm = dispatch.public(rms_norm_op)
_rms_norm_into = into.register(rms_norm_op)
_rms_norm_with_rstd = dispatch.public(rms_norm_with_rstd_op)
_zero_centered = autograd.speaking("rms_norm", add_rms_norm)


def rms_norm(
    x: Tensor,
    *order: Any,
    weight: Tensor | None = None,
    eps: float | None = EPS,
    normalized_shape: int | Sequence[int] | None = None,
    bias: Tensor | None = None,
    rounding: str = "once",
    zero_centered: bool = False,
    memory_efficient: bool = False,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """Divides every row by its root mean square: ``y = x / sqrt(mean(x^2) + eps) * weight``.

        rms_norm(x, weight=None, eps=1e-6)
        rms_norm(x, normalized_shape, weight=None, eps=1e-6)

    The mean is over the last dimension; sums are held in f32 unless the variant says otherwise.
    Differentiable in x and weight; the backward pass recomputes the root mean square, so that only
    the inputs are kept.

    Args:
        x: [..., n], f32, f16 or bf16 (f64 and fp8 without a kernel of their own), any strides.
        *order: what follows, by position: `weight` and `eps`, or as in PyTorch `normalized_shape`
            in front of them.
        weight: [n], in the dtype of x or f32, or in 16 bits of another kind, which are read in f32;
            None for ones. One of more dimensions, [heads, n], say, is broadcast: PyTorch's kernels
            multiply by it.
        eps: added to the mean before the root; None, as in PyTorch, for the epsilon of f32, or of
            f64 for f64.
        normalized_shape: the last dimensions of x, over all of which the mean is. The weight has
            this shape.
        bias: like weight, added to the result by PyTorch's kernels, after it was rounded.
        rounding: "once", or "before_weight", as Llama's norm in Hugging Face: to the dtype of x,
            times the weight, and rounded again.
        zero_centered: the weight is stored as its distance from one, so 1 + weight is multiplied.
            That is done by the kernels of `add_rms_norm`, which messages then name; neither
            memory_efficient nor a variant goes with it.
        memory_efficient: keep y and one value per row for the backward pass instead of x, which
            may then be freed: x / rms is recomputed as y / weight. It has the digits that y has
            left; weights of a magnitude below eps are divided by as if they were eps, so that a
            weight of 0 gets no gradient.
        out: a tensor of the shape and dtype of x, best contiguous, which gets the result and is
            returned (`docs/pytorch.md`, results in tensors of the caller). Not differentiable, and
            with no variant.
        variant: one rung by name instead of the best one, "f16x8_pack_f32". Variants that end in
            f16 or bf16 add squares in that dtype: in f16 the sum overflows, and the row becomes 0,
            once the squares of a thread's share pass 65504; in bf16 it keeps 8 bits.

    Returns:
        A contiguous tensor of the shape and dtype of x.

    Raises:
        RuntimeError: x is not floating-point or 0-d; weight has another shape, dtype or device; the
            variant cannot take the input.
        ValueError: the variant or the rounding does not exist; zero_centered comes with a variant
            or with memory_efficient; out comes with a variant.
        TypeError: there is more by position than these.

    Reference:
        Zhang & Sennrich 2019, Root Mean Square Layer Normalization,
        https://arxiv.org/abs/1910.07467
    """
    if len(order) == 1 and isinstance(order[0], Tensor):
        weight = order[0]
    elif order:
        named = (normalized_shape, weight, eps)
        normalized_shape, weight, eps = arguments.in_order(
            "rms_norm", order, ("weight", "eps"), named
        )
    if eps is None:
        eps = arguments.eps_of(x)
    if (
        normalized_shape is not None
        or bias is not None
        or rounding != "once"
        or not (weight is None or arguments.fits(x, weight))
    ):
        y = _composed(
            x, weight, eps, normalized_shape, bias, rounding, zero_centered, memory_efficient,
            variant,
        )  # fmt: skip
        return y if out is None else into.copied("rms_norm", y, out, variant)
    if out is not None and not (zero_centered and weight is not None):
        return _rms_norm_into(out, variant, x, weight, eps)  # type: ignore[no-any-return]
    if zero_centered and weight is not None:
        check_zero_centered("rms_norm", memory_efficient, variant)
        into_y = None if out is None else (out, None)
        return _zero_centered(x, None, weight, eps, zero_centered=True, out=into_y)[0]
    if memory_efficient:
        return _rms_norm_with_rstd(variant, x, weight, eps)[0]
    return _rms_norm(variant, x, weight, eps)


def _composed(
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    shape: int | Sequence[int] | None,
    bias: Tensor | None,
    rounding: str,
    zero_centered: bool,
    memory_efficient: bool,
    variant: str | None,
) -> Tensor:
    """By `rms_norm` as its kernels take it, and by PyTorch's."""
    arguments.check_rounding("rms_norm", rounding)

    def run(rows: Tensor, weight: Tensor | None) -> Tensor:
        return _served(rows, weight, eps, zero_centered, memory_efficient, variant)

    if shape is not None:
        for name, p in (("weight", weight), ("bias", bias)):
            arguments.check_shape("rms_norm", name, p, shape)
    apart = rounding == "before_weight" or arguments.is_by_head(x, weight)
    factor = None
    if apart and weight is not None:
        factor = 1.0 + weight if zero_centered else weight
        weight = None
    (weight,) = arguments.fitting(x, weight)
    y = arguments.over_shape("rms_norm", run, x, shape, weight)
    if factor is None and bias is None:
        return y
    return arguments.times(y, factor, bias)


def _served(
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    zero_centered: bool,
    memory_efficient: bool,
    variant: str | None,
) -> Tensor:
    """As the function itself, of what its kernels take."""
    if zero_centered and weight is not None:
        check_zero_centered("rms_norm", memory_efficient, variant)
        return _zero_centered(x, None, weight, eps, zero_centered=True)[0]
    if memory_efficient:
        return _rms_norm_with_rstd(variant, x, weight, eps)[0]
    return _rms_norm(variant, x, weight, eps)
