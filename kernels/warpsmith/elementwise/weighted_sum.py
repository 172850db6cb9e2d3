"""The weighted sum of up to eight tensors, in one pass: y = w0 x0 + w1 x1 + ..."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import PACK, Cost, Gradients, Needs, Op, Property, Rung
from warpsmith.elementwise import checks
from warpsmith.elementwise import weighted_sum_cases as cases
from warpsmith.elementwise.flat import aligned, alike
from warpsmith.spec import layout, references

#: Tensors of one launch.
MOST_TERMS = 8


def _terms(x0: Tensor, others: tuple[Tensor | None, ...]) -> list[Tensor]:
    return [x0, *(x for x in others if x is not None)]


def _check(x0: Tensor, weights: Sequence[float], *others: Tensor | None) -> None:
    op = "weighted_sum_forward"
    checks.floating(op, "x0", x0)
    terms = 1
    for k, x in enumerate(others, 1):
        if x is None:
            continue
        if terms < k:
            raise RuntimeError(
                f"{op}: expected no tensor after x{terms}, which is missing, got x{k}"
            )
        terms += 1
        for what, wanted, got in (
            ("be on", x0.device, x.device),
            ("have dtype", x0.dtype, x.dtype),
            ("have shape", tuple(x0.shape), tuple(x.shape)),
        ):
            if got != wanted:
                raise RuntimeError(f"{op}: expected x{k} to {what} {wanted} like x0, got {got}")
    if len(weights) != terms:
        raise RuntimeError(
            f"{op}: expected a weight for each of {terms} tensors, got {len(weights)}"
        )


def _written(x0: Tensor, weights: Sequence[float], *others: Tensor | None) -> Tensor:
    """What a PyTorch user writes: rounded at every term."""
    y = x0 * weights[0]
    for x, weight in zip(_terms(x0, others)[1:], weights[1:], strict=True):
        y = torch.add(y, x, alpha=weight)
    return y


def _reference(x0: Tensor, weights: Sequence[float], *others: Tensor | None) -> Tensor:
    wide = torch.promote_types(x0.dtype, torch.float32)
    return _written(x0.to(wide), weights, *others).to(x0.dtype)


def _fake(x0: Tensor, weights: Sequence[float], *others: Tensor | None) -> Tensor:
    return layout.empty_like(x0) if alike(_terms(x0, others)) else x0.new_empty(x0.shape)


def _derivative(grad: Tensor, weights: Sequence[float], needs: Needs) -> Gradients:
    return {
        f"x{k}": torch.ops.warpsmith.weighted_sum_forward(grad, [weight])
        for k, weight in enumerate(weights)
        if f"x{k}" in needs
    }


def _needs_packs(x0: Tensor, weights: Sequence[float], *others: Tensor | None) -> str | None:
    terms = _terms(x0, others)
    if x0.numel() == 0:
        return None
    if alike(terms):
        fits = all(layout.address(x) % layout.PACK_BYTES == 0 for x in terms)
    else:
        fits = aligned(*terms)
    return None if fits else "needs data aligned to 16 bytes"


def _bytes(x0: Tensor, weights: Sequence[float]) -> int:
    return (len(weights) + 1) * x0.numel() * x0.element_size()


_OTHERS = ", ".join(f"Tensor? x{k}=None" for k in range(1, MOST_TERMS))

weighted_sum_forward_op = catalogue.add(
    Op(
        f"weighted_sum_forward(Tensor x0, float[] weights, {_OTHERS}) -> Tensor",
        family="elementwise",
        source="weighted_sum",
        elementwise=True,
        reference=_reference,
        eager=references.through_f32(_written),
        ladder=(
            Rung("naive", "one element a thread"),
            Rung(
                "pack",
                "one 128-bit access a thread and term",
                width=PACK,
                pack=True,
                when=_needs_packs,
            ),
            Rung(
                "stream",
                "all terms on their way past L1 before the first is waited for",
                width=PACK,
                pack=True,
                technique="stream",
                when=_needs_packs,
            ),
        ),
        triton="weighted_sum_triton:weighted_sum_forward",
        fake=_fake,
        check=_check,
        backward=_derivative,
        aliases=("weighted_sum",),
        samples=cases.samples(),
        errors=cases.errors(),
        properties=(
            Property("a weight of 1 changes nothing", cases.one_changes_nothing),
            Property("x / 2 - x / 2 = 0", cases.cancels),
        ),
        cost=Cost(bytes=_bytes, flops=lambda x0, weights: 2 * len(weights) * x0.numel()),
        bench=cases.bench(),
    )
)
dispatch.register(weighted_sum_forward_op)
_forward = dispatch.public(weighted_sum_forward_op)


def weighted_sum(
    xs: Sequence[Tensor],
    weights: Sequence[float],
    alpha: float = 1.0,
    *,
    variant: str | None = None,
) -> Tensor:
    """The sum `alpha * (weights[0] * xs[0] + weights[1] * xs[1] + ...)`, as in a step of a sampler
    or an average of models.

    Eight tensors are one pass, summed in float32 and rounded once. Of more, the sum of the first
    eight, rounded, enters the next pass.

    Args:
        xs: at least one tensor, or one that holds them as rows; all of one shape, dtype and device,
            float32, float16 or bfloat16 (float64 and fp8 without a kernel of their own). Where
            their strides differ or have gaps, contiguous copies are read.
        weights: a number for each.
        alpha: a factor for all.
        variant: the kernel to use; by default the fastest that takes the call.

    Returns:
        A tensor of the shape and dtype of `xs`, with their strides where these are the same and
        without gaps, else contiguous.

    Raises:
        RuntimeError: for other dtypes, devices, shapes or numbers of weights than these, or where
            the variant cannot take the call.
        ValueError: for an unknown variant.

    Reference:
        `torch.add(y, x, alpha=weight)`, once a tensor.
    """
    if len(xs) == 0 or len(weights) != len(xs):
        raise RuntimeError(
            "weighted_sum: expected at least one tensor and a weight for each, "
            f"got {len(xs)} tensors and {len(weights)} weights"
        )
    scaled = [alpha * weight for weight in weights]
    y = _forward(variant, xs[0], scaled[:MOST_TERMS], *xs[1:MOST_TERMS])
    step = MOST_TERMS - 1
    for start in range(MOST_TERMS, len(xs), step):
        more = slice(start, start + step)
        y = _forward(variant, y, [1.0, *scaled[more]], *xs[more])
    return y
