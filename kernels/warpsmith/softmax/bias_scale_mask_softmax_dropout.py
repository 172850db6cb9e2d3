"""Softmax of attention scores with bias, mask and dropout, and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch, sharded
from warpsmith.core.catalogue import PACK, Cost, Gradients, Needs, Op, Property, Rung
from warpsmith.softmax import bias_scale_mask_softmax_dropout_cases as cases
from warpsmith.softmax import logits
from warpsmith.softmax.logits import (
    additive_gradient,
    beyond_diagonal,
    check_bias,
    check_bool_mask,
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
    without_logits,
)
from warpsmith.spec import philox
from warpsmith.spec.checks import check_like
from warpsmith.spec.peers import PerInput
from warpsmith.spec.rows import tiles_rows

#: The longest rows of the gradient that a block and a cluster can hold.
BLOCK_COLS, CLUSTER_COLS = 16384, 262144

# --- checks ---------------------------------------------------------------------------------------


def _check(x: Tensor, bias: Tensor | None, mask: Tensor | None, p: float) -> None:
    op = "bias_scale_mask_softmax_dropout"
    logits.check_rows(op, x)
    check_bias(op, bias, x)
    check_bool_mask(op, mask, x)
    philox.check(op, p)


def _check_per_row(op: str, name: str, tensor: Tensor | None, x: Tensor) -> None:
    if tensor is None:
        return
    if tensor.device != x.device:
        raise RuntimeError(f"{op}: expected {name} to be on {x.device} like x, got {tensor.device}")
    if tensor.dtype != wide_dtype(x):
        raise RuntimeError(
            f"{op}: expected {name} to have dtype {wide_dtype(x)}, got {tensor.dtype}"
        )
    if tensor.shape != x.shape[:-1]:
        raise RuntimeError(
            f"{op}: expected {name} to have shape {tuple(x.shape[:-1])}, that of x without its "
            f"last dimension, got {tuple(tensor.shape)}"
        )


def _check_backward(
    grad: Tensor,
    x: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    lse: Tensor,
    grad_lse: Tensor | None,
    p: float,
) -> None:
    op = "bias_scale_mask_softmax_dropout_backward"
    logits.check_rows(op, x)
    check_like(op, "grad", grad, x)
    check_bias(op, bias, x)
    check_bool_mask(op, mask, x)
    _check_per_row(op, "lse", lse, x)
    _check_per_row(op, "grad_lse", grad_lse, x)
    philox.check(op, p)


# --- references -----------------------------------------------------------------------------------


def _dropped(y: Tensor, p: float, seed: int, offset: int) -> Tensor:
    if philox.threshold(p) == 0:
        return y * philox.keep_scale(p)
    kept = philox.keep_mask(y.shape, p, seed, offset, y.device)
    return torch.where(kept, y * philox.keep_scale(p), 0.0)


def _reference(
    x: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    scale: float,
    causal: bool,
    p: float,
    seed: int,
    offset: int,
) -> tuple[Tensor, Tensor]:
    z = masked_logits(x, bias, mask, scale, causal)
    empty = without_logits(z)
    z = z.masked_fill(empty, 0.0)  # keeps NaN out of the gradients of such rows
    lse = torch.logsumexp(z, -1, keepdim=True).masked_fill(empty, -torch.inf).squeeze(-1)
    y = torch.softmax(z, -1).masked_fill(empty, 0.0)
    if causal:
        y = y.masked_fill(beyond_diagonal(x), 0.0)
    return _dropped(y, p, seed, offset).to(x.dtype), lse


def _reference_backward(
    grad: Tensor,
    x: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    lse: Tensor,
    grad_lse: Tensor | None,
    scale: float,
    causal: bool,
    p: float,
    seed: int,
    offset: int,
) -> Tensor:
    z = masked_logits(x, bias, mask, scale, causal)
    e = torch.exp(z - lse.masked_fill(lse == -torch.inf, 0.0).unsqueeze(-1))
    total = e.sum(-1, keepdim=True)
    y = torch.where(total == 0, 0.0, e / total)
    g = _dropped(grad.to(wide_dtype(x)), p, seed, offset)
    if causal:
        g = g.masked_fill(beyond_diagonal(x), 0.0)
    along = g - (g * y).sum(-1, keepdim=True)
    if grad_lse is not None:
        along = along + grad_lse.unsqueeze(-1)
    dx = torch.where(total == 0, 0.0, scale * y * along)
    return (dx.masked_fill(beyond_diagonal(x), 0.0) if causal else dx).to(x.dtype)


def _fake(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1], dtype=wide_dtype(x))


def _fake_backward(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _derivative(
    x: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    scale: float,
    causal: bool,
    p: float,
    seed: int,
    offset: int,
    lse: Tensor,
    grad_y: Tensor | None,
    grad_lse: Tensor | None,
    needs: Needs,
) -> Gradients:
    backward = torch.ops.warpsmith.bias_scale_mask_softmax_dropout_backward
    g = torch.zeros_like(x) if grad_y is None else grad_y
    dx = backward(g, x, bias, mask, lse, grad_lse, scale, causal, p, seed, offset)

    if bias is None or "bias" not in needs:
        return {"x": dx}
    added = bias

    def unscaled() -> Tensor:
        wide = wide_dtype(x)
        z, dy = x.to(wide) * scale, g.to(wide)
        return backward(dy, z, added.to(wide), mask, lse, grad_lse, 1.0, causal, p, seed, offset)

    return {"x": dx, "bias": additive_gradient(bias, dx, scale, unscaled)}


# --- what the rungs take --------------------------------------------------------------------------


def _needs_packs(x: Tensor, bias: Tensor | None, mask: Tensor | None) -> str | None:
    return logits.needs_packs(x, bias, mask)


def _needs_warp(x: Tensor, bias: Tensor | None, mask: Tensor | None) -> str | None:
    if why := _needs_packs(x, bias, mask) or needs_grid(x):
        return why
    fits = x.numel() == 0 or x.shape[-1] <= logits.WARP_COLS
    return None if fits else "needs rows of at most 2048 columns"


def _needs_block(x: Tensor, bias: Tensor | None, mask: Tensor | None) -> str | None:
    if why := _needs_packs(x, bias, mask) or needs_grid(x):
        return why
    return None if row_bytes(x) <= logits.BLOCK_BYTES else "needs rows of at most 64 KiB"


def _suits_block(x: Tensor, causal: bool, p: float) -> str | None:
    most = logits.most_warp_cols(x, causal, drops=philox.threshold(p) > 0)
    return None if x.shape[-1] > most else "the row fits a warp's registers"


def _needs_cluster(x: Tensor, bias: Tensor | None, mask: Tensor | None) -> str | None:
    return _needs_packs(x, bias, mask) or needs_cluster_grid(x) or fits_cluster(x)


def _suits_cluster(x: Tensor) -> str | None:
    return suits_cluster(x)


def _needs_packs_backward(
    grad: Tensor, x: Tensor, bias: Tensor | None, mask: Tensor | None
) -> str | None:
    if why := _needs_packs(x, bias, mask):
        return why
    if x.numel() == 0 or tiles_rows(grad, pack_of(x)):
        return None
    return "needs rows of grad aligned to 16 bytes"


def _needs_warp_backward(
    grad: Tensor, x: Tensor, bias: Tensor | None, mask: Tensor | None
) -> str | None:
    if why := _needs_packs_backward(grad, x, bias, mask) or needs_grid(x):
        return why
    return None if row_bytes(x) <= 4 << 10 else "needs rows of at most 4 KiB"


def _fits(x: Tensor, most: int) -> str | None:
    fits = x.numel() == 0 or x.shape[-1] <= most
    return None if fits else f"needs rows of at most {most} columns"


def _needs_block_backward(
    grad: Tensor, x: Tensor, bias: Tensor | None, mask: Tensor | None
) -> str | None:
    if why := _needs_packs_backward(grad, x, bias, mask) or needs_grid(x):
        return why
    return _fits(x, BLOCK_COLS)


def _suits_block_backward(x: Tensor) -> str | None:
    return None if row_bytes(x) > 2 << 10 else "the row fits a warp's registers"


def _needs_cluster_backward(
    grad: Tensor, x: Tensor, bias: Tensor | None, mask: Tensor | None
) -> str | None:
    if why := _needs_packs_backward(grad, x, bias, mask) or needs_cluster_grid(x):
        return why
    return _fits(x, CLUSTER_COLS)


def _suits_cluster_backward(x: Tensor) -> str | None:
    return "the row fits a block's registers" if _fits(x, BLOCK_COLS) is None else None


# --- peers ----------------------------------------------------------------------------------------
#
# PyTorch's dropout draws other numbers, and what it draws cannot be told beforehand: its result
# could not be checked. The peers therefore get a mask of what is dropped, made once per input. That
# spares them the generator and costs them a byte an element. The log-sum-exp, which a PyTorch user
# would not compute, they get for nothing.


def _known(x: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What is kept, the log-sum-exp, the probabilities."""
    bias, mask, scale, causal, p, seed, offset = others
    kept = philox.keep_mask(x.shape, p, seed, offset, x.device)
    y, lse = _reference(x, bias, mask, scale, causal, 0.0, seed, offset)
    return kept, lse, y


def _probabilities(
    x: Tensor, bias: Tensor | None, mask: Tensor | None, scale: float, causal: bool
) -> Tensor:
    z = x * scale
    if bias is not None:
        z = z + bias
    if mask is not None:
        z = z.masked_fill(mask, -torch.inf)
    if causal:
        queries, keys = x.shape[-2:]
        hidden = torch.ones(queries, keys, dtype=torch.bool, device=x.device)
        z = z.masked_fill(hidden.triu(1 + keys - queries), -torch.inf)
    return torch.softmax(z, -1).to(x.dtype)


def _drop(y: Tensor, kept: Tensor, p: float) -> Tensor:
    return torch.ops.aten.native_dropout_backward(y, kept, philox.keep_scale(p))


def _forward_by(written: Callable[..., Tensor]) -> Callable[..., Any]:
    known = PerInput(_known)

    def run(x: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        kept, lse, _ = known(x, *others)
        return written(x, *others[:4], others[4], kept), lse

    return run


def _written(
    x: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    scale: float,
    causal: bool,
    p: float,
    kept: Tensor,
) -> Tensor:
    y = _probabilities(x, bias, mask, scale, causal)
    return _drop(y, kept, p) if p > 0 else y


def _backward_by(written: Callable[..., Tensor]) -> Callable[..., Any]:
    known = PerInput(_known)

    def run(grad: Tensor, x: Tensor, *others: Any) -> Tensor:
        bias, mask, _, _, *rest = others
        kept, _, y = known(x, bias, mask, *rest)
        return written(grad, y, rest[0], rest[2], kept)

    return run


def _written_backward(grad: Tensor, y: Tensor, scale: float, p: float, kept: Tensor) -> Tensor:
    """What PyTorch's autograd runs."""
    dy = _drop(grad, kept, p) if p > 0 else grad
    return torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype) * scale


# --- the operators --------------------------------------------------------------------------------


def _bytes(x: Tensor, bias: Tensor | None, mask: Tensor | None, causal: bool) -> int:
    elements = live_elements(x, causal) + x.numel()
    return elements * x.element_size() + operand_bytes(bias, mask) + 4 * logits.rows_of(x)


def _bytes_backward(
    x: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    lse: Tensor,
    grad_lse: Tensor | None,
    causal: bool,
) -> int:
    elements = 2 * live_elements(x, causal) + x.numel()
    return elements * x.element_size() + operand_bytes(bias, mask, lse, grad_lse)


bias_scale_mask_softmax_dropout_op = catalogue.add(
    Op(
        "bias_scale_mask_softmax_dropout(Tensor x, Tensor? bias=None, Tensor? mask=None, "
        "float scale=1.0, bool causal=False, float p=0.0, int seed=0, int offset=0) "
        "-> (Tensor y, Tensor lse)",
        family="softmax",
        source="scaled_masked_softmax",
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
        triton="bias_scale_mask_softmax_dropout_triton:bias_scale_mask_softmax_dropout",
        fake=_fake,
        check=_check,
        backward=_derivative,
        accumulates=True,
        samples=cases.forward_samples(),
        errors=cases.ERRORS,
        properties=(
            Property("drops what philox says", cases.drops_what_philox_says),
            Property("keeps the expectation", cases.keeps_the_expectation),
            Property("without dropout a softmax", cases.without_dropout_a_softmax),
            Property("rows sum to one", cases.rows_sum_to_one),
            Property("shift invariant", cases.shift_invariant),
            Property("bias is a mask", cases.bias_is_a_mask),
            Property("rows independent", cases.rows_independent),
        ),
        cost=Cost(bytes=_bytes, flops=lambda x, causal: (
            6 * live_elements(x, causal)
        )),
        bench=cases.BENCH,
        bench_dtypes=("f32", "bf16"),
        peers={"compile": lambda: _forward_by(torch.compile(_written, dynamic=False))},
        eager=_forward_by(_written),
    )
)  # fmt: skip

bias_scale_mask_softmax_dropout_backward_op = catalogue.add(
    Op(
        "bias_scale_mask_softmax_dropout_backward(Tensor grad, Tensor x, Tensor? bias, "
        "Tensor? mask, Tensor lse, Tensor? grad_lse=None, float scale=1.0, bool causal=False, "
        "float p=0.0, int seed=0, int offset=0) -> Tensor",
        family="softmax",
        source="scaled_masked_softmax/dropout_backward",
        reference=_reference_backward,
        ladder=(
            Rung("naive", "a block per row in two sweeps: sums, write"),
            Rung(
                "pack",
                "128-bit accesses, a call of the generator for four elements",
                width=PACK,
                pack=True,
                when=_needs_packs_backward,
            ),
            Rung(
                "warp",
                "a warp per row, read once into registers, causal rows up to their diagonal only",
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
        triton="bias_scale_mask_softmax_dropout_triton:bias_scale_mask_softmax_dropout_backward",
        fake=_fake_backward,
        check=_check_backward,
        samples=cases.backward_samples(_reference),
        errors=cases.BACKWARD_ERRORS,
        properties=(Property("sums to zero", cases.gradient_sums_to_zero),),
        cost=Cost(
            bytes=_bytes_backward,
            flops=lambda x, causal: 10 * live_elements(x, causal),
        ),
        bench=cases.backward_bench(_reference),
        bench_dtypes=("f32", "bf16"),
        peers={"compile": lambda: _backward_by(torch.compile(_written_backward, dynamic=False))},
        eager=_backward_by(_written_backward),
    )
)

dispatch.register(bias_scale_mask_softmax_dropout_op)
dispatch.register(bias_scale_mask_softmax_dropout_backward_op)
_bias_scale_mask_softmax_dropout = dispatch.public(bias_scale_mask_softmax_dropout_op)


def bias_scale_mask_softmax_dropout(
    x: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    scale: float = 1.0,
    causal: bool = False,
    p: float = 0.0,
    seed: int | None = None,
    offset: int | None = None,
    *,
    excluded: Tensor | None = None,
    variant: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Softmax of attention scores over the keys, then dropout: one kernel, one read, one write.

    ``y = dropout(softmax(z), p)`` with ``z = x * scale + bias``, minus infinity where the mask or
    the diagonal excludes an entry; what is kept is divided by 1 - p. Logits and sums are held in
    f32. A query whose keys are all excluded gets zeros, as in `scaled_masked_softmax`.

    What is dropped depends on seed, offset and the element's place in x alone
    (`warpsmith.philox.keep_mask` computes it), so that the same call gives the same result on every
    GPU, and no mask is stored: the backward pass draws it again. Nor are the probabilities stored:
    the backward pass computes them from x and the second output. Take another offset, or another
    seed, for every call of a training run. Without p this is a softmax.

    Differentiable in x and bias, in both outputs.

    Args:
        x: [..., queries, keys], f32, f16 or bf16 (f64 and fp8 without a kernel of their own), any
            strides.
        bias: broadcastable to x, in the dtype of x or f32; None for zeros.
        mask: as `excluded`, other than in PyTorch's attention.
        scale: multiplies the scores.
        causal: excludes key j from query i where j > i + keys - queries.
        p: probability of dropping an entry, in [0, 1], rounded to a multiple of 2^-32.
        seed: key of the generator, any 64-bit number. Without it and `offset` one is drawn, as in
            `dropout`.
        offset: which of the seed's independent streams, any 64-bit number.
        excluded: bool, broadcastable to x; True excludes the entry.
        variant: one rung by name instead of the best one, "bf16x8_pack_warp_f32".

    Returns:
        y: contiguous, shape and dtype of x.
        lse: [..., queries], f32 (f64 for f64): the logarithm of the sum of e^z of each row.

    Raises:
        RuntimeError: x is not floating-point or 0-d; bias or mask has another dtype or device, or
            does not broadcast to x; p is no probability; the variant cannot take the input.
        TypeError: excluded is no tensor of bools.
        ValueError: the variant does not exist, or excluded comes with a mask.

    Reference:
        `torch.dropout(torch.softmax(x * scale + bias, -1), p, True)`; Salmon et al. 2011, Parallel
        Random Numbers: As Easy as 1, 2, 3.
    """
    if excluded is not None:
        mask = logits.excluding("bias_scale_mask_softmax_dropout", mask, excluded)
    if rules := sharded.of(x):
        y, lse = rules.dropped(
            "bias_scale_mask_softmax_dropout",
            lambda **given: bias_scale_mask_softmax_dropout(
                **given, scale=scale, causal=causal, p=p, variant=variant
            ),
            {"x": x, "bias": bias, "mask": mask},
            p,
            seed,
            offset,
            {"causal": causal},
        )
        return y, lse
    drawn = philox.drawn(seed, offset, p)
    run = _bias_scale_mask_softmax_dropout
    if drawn is None:  # where a fresh seed would be the same for ever
        y, lse = run(variant, x, bias, mask, scale, causal, 0.0, 0, 0)
        return torch.nn.functional.dropout(y, p), lse
    return run(variant, x, bias, mask, scale, causal, p, *drawn)
