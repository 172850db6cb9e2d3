"""Softmax of attention scores, scaled and masked: y = softmax(x * scale), and its gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import PACK, Cost, Gradients, Needs, Op, Property, Rung
from warpsmith.softmax import logits
from warpsmith.softmax import scaled_masked_softmax_cases as cases
from warpsmith.softmax.logits import (
    KeptSoftmax,
    additive_gradient,
    beyond_diagonal,
    check_broadcasts,
    fits_cluster,
    live_elements,
    masked_logits,
    needs_cluster_grid,
    needs_grid,
    operand_bytes,
    pack_of,
    row_bytes,
    suits_cluster,
    wide_dtype,
)
from warpsmith.spec.rows import tiles_rows

# --- checks ---------------------------------------------------------------------------------------


def _check(x: Tensor, mask: Tensor | None) -> None:
    op = "scaled_masked_softmax"
    logits.check_rows(op, x)
    if mask is None:
        return
    check_broadcasts(op, "mask", mask, x)
    if mask.dtype != torch.bool and not logits.is_bias_dtype(mask.dtype, x):
        raise RuntimeError(
            f"{op}: expected mask to have dtype torch.bool, {logits.bias_dtypes(x)}, "
            f"got {mask.dtype}"
        )


def _check_backward(grad: Tensor, y: Tensor) -> None:
    op = "scaled_masked_softmax_backward"
    logits.check_rows(op, y, "y")
    if grad.device != y.device:
        raise RuntimeError(f"{op}: expected grad to be on {y.device} like y, got {grad.device}")
    if grad.dtype != y.dtype:
        raise RuntimeError(f"{op}: expected grad to have dtype {y.dtype} like y, got {grad.dtype}")
    if grad.shape != y.shape:
        raise RuntimeError(
            f"{op}: expected grad to have shape {tuple(y.shape)} like y, got {tuple(grad.shape)}"
        )


# --- references -----------------------------------------------------------------------------------


def _split(mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """A mask as what is added and what excludes."""
    if mask is not None and mask.dtype == torch.bool:
        return None, mask
    return mask, None


def _reference(x: Tensor, mask: Tensor | None, scale: float, causal: bool) -> Tensor:
    z = masked_logits(x, *_split(mask), scale, causal)
    y = KeptSoftmax.apply(z, x.dtype)
    return y.masked_fill(beyond_diagonal(x), 0.0) if causal else y


def _reference_backward(grad: Tensor, y: Tensor, scale: float, causal: bool) -> Tensor:
    g, p = grad.to(wide_dtype(y)), y.to(wide_dtype(y))
    if causal:
        excluded = beyond_diagonal(y)
        g, p = g.masked_fill(excluded, 0.0), p.masked_fill(excluded, 0.0)
    dx = scale * p * (g - (g * p).sum(-1, keepdim=True))
    return (dx.masked_fill(excluded, 0.0) if causal else dx).to(y.dtype)


def _derivative(
    grad_y: Tensor, y: Tensor, mask: Tensor | None, scale: float, causal: bool, needs: Needs
) -> Gradients:
    backward = torch.ops.warpsmith.scaled_masked_softmax_backward
    dx = backward(grad_y, y, scale, causal)
    if mask is None or "mask" not in needs:
        return {"x": dx}

    def unscaled() -> Tensor:
        wide = wide_dtype(y)
        return backward(grad_y.to(wide), y.to(wide), 1.0, causal)

    return {"x": dx, "mask": additive_gradient(mask, dx, scale, unscaled)}


# --- what the rungs take --------------------------------------------------------------------------


def _needs_packs(x: Tensor, mask: Tensor | None) -> str | None:
    return logits.needs_packs(x, *_split(mask))


def _needs_packs_backward(grad: Tensor, y: Tensor) -> str | None:
    if y.numel() == 0 or (tiles_rows(grad, pack_of(y)) and tiles_rows(y, pack_of(y))):
        return None
    return "needs rows aligned to 16 bytes"


def _needs_warp(x: Tensor, mask: Tensor | None) -> str | None:
    if why := _needs_packs(x, mask) or needs_grid(x):
        return why
    fits = x.numel() == 0 or x.shape[-1] <= logits.WARP_COLS
    return None if fits else "needs rows of at most 2048 columns"


def _needs_block(x: Tensor, mask: Tensor | None) -> str | None:
    if why := _needs_packs(x, mask) or needs_grid(x):
        return why
    return None if row_bytes(x) <= logits.BLOCK_BYTES else "needs rows of at most 64 KiB"


def _suits_block(x: Tensor, causal: bool) -> str | None:
    most = logits.most_warp_cols(x, causal)
    return None if x.shape[-1] > most else "the row fits a warp's registers"


def _needs_cluster(x: Tensor, mask: Tensor | None) -> str | None:
    return _needs_packs(x, mask) or needs_cluster_grid(x) or fits_cluster(x)


def _suits_cluster(x: Tensor) -> str | None:
    return suits_cluster(x)


def _needs_warp_backward(grad: Tensor, y: Tensor) -> str | None:
    if why := _needs_packs_backward(grad, y) or needs_grid(y):
        return why
    return None if row_bytes(y) <= 4 << 10 else "needs rows of at most 4 KiB"


def _needs_block_backward(grad: Tensor, y: Tensor) -> str | None:
    if why := _needs_packs_backward(grad, y) or needs_grid(y):
        return why
    return None if row_bytes(y) <= logits.BLOCK_BYTES else "needs rows of at most 64 KiB"


def _suits_block_backward(y: Tensor) -> str | None:
    return None if row_bytes(y) > 4 << 10 else "the row fits a warp's registers"


def _needs_cluster_backward(grad: Tensor, y: Tensor) -> str | None:
    return _needs_packs_backward(grad, y) or needs_cluster_grid(y) or fits_cluster(y)


def _suits_cluster_backward(y: Tensor) -> str | None:
    return suits_cluster(y)


# --- peers ----------------------------------------------------------------------------------------


def _eager(x: Tensor, mask: Tensor | None, scale: float, causal: bool) -> Tensor:
    z = x * scale
    if mask is not None:
        z = z.masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else z + mask
    if causal:
        queries, keys = x.shape[-2:]
        hidden = torch.ones(queries, keys, dtype=torch.bool, device=x.device)
        z = z.masked_fill(hidden.triu(1 + keys - queries), -torch.inf)
    return torch.softmax(z, -1)


def _eager_backward(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """What PyTorch's autograd runs; excluded entries of y are 0 already."""
    return torch.ops.aten._softmax_backward_data(grad, y, -1, y.dtype) * scale


# --- the operators --------------------------------------------------------------------------------


def _bytes(x: Tensor, mask: Tensor | None, causal: bool) -> int:
    elements = live_elements(x, causal) + x.numel()
    return elements * x.element_size() + operand_bytes(mask)


def _bytes_backward(y: Tensor, causal: bool) -> int:
    return (2 * live_elements(y, causal) + y.numel()) * y.element_size()


scaled_masked_softmax_op = catalogue.add(
    Op(
        "scaled_masked_softmax"
        "(Tensor x, Tensor? mask=None, float scale=1.0, bool causal=False) -> Tensor y",
        family="softmax",
        reference=_reference,
        ladder=(
            Rung("naive", "a block per row in three sweeps: maximum, sum, write"),
            Rung(
                "online",
                "maximum and sum in one sweep of 128-bit accesses, the write in another",
                width=PACK,
                pack=True,
                technique="online",
                when=_needs_packs,
            ),
            Rung(
                "warp",
                "a warp per row, read once into registers, causal rows up to their diagonal only",
                width=PACK,
                pack=True,
                technique="warp",
                when=_needs_warp,
            ),
            Rung(
                "block",
                "the row in the registers of a block, joined behind one barrier",
                width=PACK,
                pack=True,
                technique="block",
                when=_needs_block,
                suits=_suits_block,
            ),
            Rung(
                "cluster",
                "longer rows in the registers of a cluster, one exchange between its blocks",
                width=PACK,
                pack=True,
                technique="cluster",
                min_sm=90,
                when=_needs_cluster,
                suits=_suits_cluster,
            ),
        ),
        triton="scaled_masked_softmax_triton:scaled_masked_softmax",
        yields=True,
        fake=lambda x: x.new_empty(x.shape),
        check=_check,
        backward=_derivative,
        accumulates=True,
        aliases=("scale_mask_softmax",),
        samples=cases.samples(),
        errors=cases.ERRORS,
        properties=(
            Property("rows sum to one", cases.rows_sum_to_one),
            Property("masked is absent", cases.masked_is_absent),
            Property("causal is a mask", cases.causal_is_a_mask),
            Property("shift invariant", cases.shift_invariant),
            Property("rows independent", cases.rows_independent),
        ),
        cost=Cost(bytes=_bytes, flops=lambda x, causal: 5 * live_elements(x, causal)),
        bench=cases.BENCH,
        bench_dtypes=("f32", "bf16"),
        eager=_eager,
    )
)

scaled_masked_softmax_backward_op = catalogue.add(
    Op(
        "scaled_masked_softmax_backward"
        "(Tensor grad, Tensor y, float scale=1.0, bool causal=False) -> Tensor",
        family="softmax",
        source="scaled_masked_softmax/backward",
        reference=_reference_backward,
        ladder=(
            Rung("naive", "a block per row in two sweeps: sum of products, write"),
            Rung(
                "pack",
                "128-bit accesses, grad and y read twice",
                width=PACK,
                pack=True,
                when=_needs_packs_backward,
            ),
            Rung(
                "warp",
                "a warp per row, both read once into registers, up to the diagonal only",
                width=PACK,
                pack=True,
                technique="warp",
                when=_needs_warp_backward,
            ),
            Rung(
                "block",
                "the row in the registers of a block, joined behind one barrier",
                width=PACK,
                pack=True,
                technique="block",
                when=_needs_block_backward,
                suits=_suits_block_backward,
            ),
            Rung(
                "cluster",
                "longer rows in the registers of a cluster, one exchange between its blocks",
                width=PACK,
                pack=True,
                technique="cluster",
                min_sm=90,
                when=_needs_cluster_backward,
                suits=_suits_cluster_backward,
            ),
        ),
        triton="scaled_masked_softmax_triton:scaled_masked_softmax_backward",
        fake=lambda y: y.new_empty(y.shape),
        check=_check_backward,
        aliases=("scale_mask_softmax_backward",),
        samples=cases.backward_samples(),
        errors=cases.BACKWARD_ERRORS,
        properties=(Property("sums to zero", cases.gradient_sums_to_zero),),
        cost=Cost(
            bytes=_bytes_backward,
            flops=lambda y, causal: 5 * live_elements(y, causal),
        ),
        bench=cases.BACKWARD_BENCH,
        bench_dtypes=("f32", "bf16"),
        eager=_eager_backward,
    )
)

dispatch.register(scaled_masked_softmax_op)
dispatch.register(scaled_masked_softmax_backward_op)
_scaled_masked_softmax = dispatch.public(scaled_masked_softmax_op)


def scaled_masked_softmax(
    x: Tensor,
    mask: Tensor | None = None,
    scale: float = 1.0,
    causal: bool = False,
    *,
    excluded: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """Softmax of attention scores over the keys: ``y = softmax(x * scale)`` of what is not masked.

    One kernel reads x once and writes y once; a mask that is broadcast is read where it lies, and
    a causal matrix is read up to its diagonal only. Logits and sums are held in f32.

    A query whose keys are all excluded (every logit is minus infinity) gets zeros. F.softmax would
    give NaN, which one matrix product later has spread to every query of the batch, and to all
    weights in the backward pass; zeros make such a query attend to nothing, as in Megatron and in
    PyTorch's scaled_dot_product_attention. A NaN in the scores still shows: its row is NaN, up to
    the diagonal of a causal one.

    Differentiable in x and in an additive mask; the backward pass works from y.

    Args:
        x: [..., queries, keys], f32, f16 or bf16 (f64 and fp8 without a kernel of their own), any
            strides.
        mask: broadcastable to x. The dtype of x, or f32: added to the scaled scores. Bool: as
            `excluded`, other than in PyTorch's attention.
        scale: multiplies the scores.
        causal: excludes key j from query i where j > i + keys - queries, so that the last query
            sees all keys.
        excluded: bool, broadcastable to x, in the place of a mask: True excludes the entry.
        variant: one rung by name instead of the best one, "bf16x8_pack_warp_f32".

    Returns:
        A contiguous tensor of the shape and dtype of x.

    Raises:
        RuntimeError: x is not floating-point or 0-d; mask has another dtype or device, or does not
            broadcast to x; the variant cannot take the input.
        TypeError: excluded is no tensor of bools.
        ValueError: the variant does not exist, or excluded comes with a mask.

    Reference:
        `torch.softmax` of `x * scale` with `masked_fill(mask, -inf)`; Shoeybi et al. 2019,
        Megatron-LM, https://arxiv.org/abs/1909.08053
    """
    if excluded is not None:
        mask = logits.excluding("scaled_masked_softmax", mask, excluded)
    return _scaled_masked_softmax(variant, x, mask, scale, causal)
