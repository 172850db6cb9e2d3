"""Cross-entropy of logits against the index of a class, its gradient, and both at once:

loss = (1 - s) (lse - x[target]) + s (lse - mean(x)) + z lse^2,   lse = log(sum(exp(x)))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.core import autograd, catalogue, dispatch, sharded
from warpsmith.core.catalogue import PACK, Cost, Gradients, Op, Property, Rung
from warpsmith.loss import composed
from warpsmith.loss import cross_entropy_cases as cases
from warpsmith.loss.checks import (
    check_cross_entropy,
    check_per_row,
    check_reduction,
    wide_dtype,
)
from warpsmith.spec.peers import RetainedGraph
from warpsmith.spec.rows import address, as_rows

IGNORE_INDEX = cases.IGNORE_INDEX

# --- checks ---------------------------------------------------------------------------------------


def _check(logits: Tensor, target: Tensor, label_smoothing: float) -> None:
    check_cross_entropy("cross_entropy_forward", logits, target, label_smoothing)


def _check_with_grad(
    logits: Tensor, target: Tensor, grad_loss: Tensor | None, label_smoothing: float
) -> None:
    op = "cross_entropy_with_grad"
    check_cross_entropy(op, logits, target, label_smoothing)
    if grad_loss is not None:
        check_per_row(op, "grad_loss", grad_loss, logits)


def _check_backward(
    logits: Tensor,
    target: Tensor,
    lse: Tensor,
    grad_loss: Tensor,
    grad_lse: Tensor,
    label_smoothing: float,
) -> None:
    op = "cross_entropy_backward"
    check_cross_entropy(op, logits, target, label_smoothing)
    check_per_row(op, "lse", lse, logits)
    check_per_row(op, "grad_loss", grad_loss, logits)
    check_per_row(op, "grad_lse", grad_lse, logits)


# --- references -----------------------------------------------------------------------------------


def _reference(
    logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float, z_loss: float
) -> tuple[Tensor, Tensor]:
    wide = logits.to(wide_dtype(logits))
    loss = F.cross_entropy(
        wide,
        target.long(),
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction="none",
    )
    # A row with +inf has no softmax, so its lse is NaN, as its loss is in PyTorch.
    unbounded = (wide.detach() == math.inf).any(-1)
    lse = wide.logsumexp(-1).masked_fill(unbounded, math.nan)
    lse = lse.masked_fill(target == ignore_index, 0.0)
    if z_loss != 0.0:
        loss = loss + z_loss * lse.square()
    return loss, lse


def _gradient(
    softmax: Tensor,
    target: Tensor,
    factor: Tensor,
    grad_loss: Tensor,
    ignore_index: int,
    label_smoothing: float,
) -> Tensor:
    """softmax * factor - grad_loss * (smoothed one-hot), and 0 where the target is to be ignored;
    overwrites `softmax`.
    """
    ignored = (target == ignore_index)[:, None]
    dlogits = softmax.mul_(factor[:, None])
    if softmax.shape[1] == 1:  # nothing to spread over
        label_smoothing = 0.0
    if label_smoothing != 0.0:
        dlogits.sub_(grad_loss[:, None] * (label_smoothing / softmax.shape[1]))
    index = target.long()[:, None].masked_fill(ignored, 0)
    dlogits.scatter_add_(1, index, grad_loss[:, None] * (label_smoothing - 1.0))
    return dlogits.masked_fill_(ignored, 0.0)


def _reference_backward(
    logits: Tensor,
    target: Tensor,
    lse: Tensor,
    grad_loss: Tensor,
    grad_lse: Tensor,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
) -> Tensor:
    softmax = (logits.to(wide_dtype(logits)) - lse[:, None]).exp_()
    factor = grad_loss * (1.0 + 2.0 * z_loss * lse) + grad_lse
    dlogits = _gradient(softmax, target, factor, grad_loss, ignore_index, label_smoothing)
    return dlogits.to(logits.dtype)


def _reference_with_grad(
    logits: Tensor,
    target: Tensor,
    grad_loss: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
) -> tuple[Tensor, Tensor, Tensor]:
    loss, lse = _reference(logits, target, ignore_index, label_smoothing, z_loss)
    weight = torch.ones_like(loss) if grad_loss is None else grad_loss
    softmax = logits.to(wide_dtype(logits)).softmax(-1)
    factor = weight * (1.0 + 2.0 * z_loss * lse)
    dlogits = _gradient(softmax, target, factor, weight, ignore_index, label_smoothing)
    return loss, lse, dlogits.to(logits.dtype)


def _fake(logits: Tensor) -> tuple[Tensor, Tensor]:
    rows, dtype = logits.shape[0], wide_dtype(logits)
    return logits.new_empty((rows,), dtype=dtype), logits.new_empty((rows,), dtype=dtype)


def _fake_with_grad(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return (*_fake(logits), logits.new_empty(logits.shape))


def _fake_backward(logits: Tensor) -> Tensor:
    return logits.new_empty(logits.shape)


def _derivative(
    logits: Tensor,
    target: Tensor,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    lse: Tensor,
    grad_loss: Tensor | None,
    grad_lse: Tensor | None,
) -> Gradients:
    grad_loss, grad_lse = (
        torch.zeros_like(lse) if grad is None else grad for grad in (grad_loss, grad_lse)
    )
    dlogits = torch.ops.warpsmith.cross_entropy_backward(
        logits, target, lse, grad_loss, grad_lse, ignore_index, label_smoothing, z_loss
    )
    return {"logits": dlogits}


# --- what the rungs take --------------------------------------------------------------------------

#: What one dimension of a CUDA grid can count.
MOST_ROWS = (1 << 31) - 1
MOST_PEELED_CLASSES = 1 << 30
CLUSTER = 8


def _row_bytes(logits: Tensor) -> int:
    return logits.shape[1] * logits.element_size()


def _needs_peelable(logits: Tensor) -> str | None:
    fits = logits.numel() == 0 or logits.shape[1] <= MOST_PEELED_CLASSES
    return None if fits else "needs at most 2^30 classes"


def _needs_held(logits: Tensor) -> str | None:
    if logits.shape[0] > MOST_ROWS:
        return "needs at most 2^31 - 1 rows"
    fits = logits.numel() == 0 or _row_bytes(logits) <= 4096
    return None if fits else "needs rows of at most 4 KiB"


def _suits_rows(logits: Tensor) -> str | None:
    if logits.dtype == torch.float32 and _row_bytes(logits) > 2048:
        return "two rows of so many floats would leave room for too few warps"
    return None


def _suits_many(logits: Tensor) -> str | None:
    few = None if _logits_bytes(logits) >= 16 << 20 else "more lanes read less than 16 MiB sooner"
    return _suits_rows(logits) or few


def _suits_many_with_grad(logits: Tensor) -> str | None:
    few = None if logits.numel() >= 32 << 20 else "more lanes read less than 32 Mi logits sooner"
    return _suits_rows(logits) or few


def _needs_split(logits: Tensor) -> str | None:
    if logits.shape[0] > MOST_ROWS // CLUSTER:
        return "needs fewer than 2^28 rows"
    return _needs_peelable(logits)


def _suits_split(logits: Tensor) -> str | None:
    few_and_long = logits.shape[0] <= 256 and _row_bytes(logits) >= 64 << 10
    return None if few_and_long else "the rows fill the GPU one to a block, or are short"


def _needs_packs(logits: Tensor) -> str | None:
    """Of a kernel that writes the gradient, whose first row is aligned."""
    if why := _needs_peelable(logits):
        return why
    rows = as_rows(logits)
    if logits.numel() == 0 or rows.copied:
        return None
    apart = (rows.stride - rows.cols) * logits.element_size()
    if address(logits) % 16 == 0 and (rows.rows == 1 or apart % 16 == 0):
        return None
    return "needs logits and gradient at the same offset from 16 bytes"


def _needs_registers(logits: Tensor) -> str | None:
    if why := _needs_packs(logits):
        return why
    if logits.shape[0] > MOST_ROWS:
        return "needs at most 2^31 - 1 rows"
    fits = logits.numel() == 0 or _row_bytes(logits) <= 64 << 10
    return None if fits else "needs rows of at most 64 KiB"


def _needs_packs_held(logits: Tensor) -> str | None:
    return _needs_packs(logits) or _needs_held(logits)


def _suits_registers(logits: Tensor) -> str | None:
    most_packs = 8 * 32  # of a warp that has a row to itself
    packs = logits.shape[1] * logits.element_size() // 16
    full = logits.dtype == torch.float32 and most_packs // 2 < packs <= most_packs
    return "floats would leave room for too few warps" if full else None


def _needs_cluster(logits: Tensor) -> str | None:
    if why := _needs_packs(logits):
        return why
    if logits.shape[0] > MOST_ROWS // 16:
        return "needs at most 2^27 rows"
    fits = logits.numel() == 0 or _row_bytes(logits) <= 1 << 20
    return None if fits else "needs rows of at most 1 MiB"


def _suits_cluster(logits: Tensor) -> str | None:
    return None if _row_bytes(logits) > 64 << 10 else "the row fits a block's registers"


def _needs_packs_backward(logits: Tensor) -> str | None:
    if logits.shape[0] > MOST_ROWS:
        return "needs at most 2^31 - 1 rows"
    return _needs_packs(logits)


# --- peers ----------------------------------------------------------------------------------------


def _eager_loss(logits: Tensor, target: Tensor, *options: Any) -> Tensor:
    """In f32, as language models train: a loss around 10 in bf16 has two digits."""
    return F.cross_entropy(logits.float(), target, reduction="none")


def _eager(logits: Tensor, target: Tensor) -> tuple[Tensor, None]:
    return _eager_loss(logits, target), None


def _eager_with_grad(logits: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    wide = logits.float()
    lse = wide.logsumexp(-1)
    index = target[:, None]
    loss = lse - wide.gather(1, index)[:, 0]
    softmax = (wide - lse[:, None]).exp()
    return loss, lse, softmax.scatter_add(1, index, -torch.ones_like(lse)[:, None]).to(logits.dtype)


def _retained(forward: Callable[..., Tensor]) -> Callable[..., Any]:
    graph = RetainedGraph(forward)

    def run(logits: Tensor, target: Tensor, grad_loss: Tensor) -> Tensor:
        return graph(grad_loss, logits, target)

    return run


def _compiled_backward() -> Callable[..., Any]:
    return _retained(torch.compile(_eager_loss, dynamic=False))


def _quack() -> Callable[..., Any]:
    from quack.cross_entropy import cross_entropy_fwd

    return lambda logits, target, *options: cross_entropy_fwd(logits, target, return_lse=True)


def _quack_with_grad() -> Callable[..., Any]:
    from quack.cross_entropy import cross_entropy_fwd

    def run(logits: Tensor, target: Tensor) -> Any:
        return cross_entropy_fwd(logits, target, return_lse=True, return_dx=True)

    return run


def _quack_backward() -> Callable[..., Any]:
    from quack.cross_entropy import cross_entropy_bwd

    def run(logits: Tensor, target: Tensor, lse: Tensor, grad_loss: Tensor) -> Tensor:
        return cross_entropy_bwd(logits, target, grad_loss, lse)

    return run


# --- the operators --------------------------------------------------------------------------------


def _logits_bytes(logits: Tensor) -> int:
    return logits.numel() * logits.element_size()


def _bytes(logits: Tensor, target: Tensor) -> int:
    return _logits_bytes(logits) + target.numel() * (target.element_size() + 8)


def _bytes_both(logits: Tensor, target: Tensor) -> int:
    return 2 * _logits_bytes(logits) + target.numel() * (target.element_size() + 12)


_OPTIONS = "int ignore_index=-100, float label_smoothing=0.0, float z_loss=0.0"

cross_entropy_forward_op = catalogue.add(
    Op(
        f"cross_entropy_forward(Tensor logits, Tensor target, {_OPTIONS}) "
        "-> (Tensor loss, Tensor lse)",
        family="loss",
        source="cross_entropy",
        reference=_reference,
        ladder=(
            Rung("naive", "a block per row: the maximum, then the sum of exponentials"),
            Rung("online", "maximum and sum in one sweep, behind one barrier", technique="online"),
            Rung(
                "pack",
                "128-bit accesses, the ragged ends of every row peeled off",
                width=PACK,
                pack=True,
                technique="online",
                when=_needs_peelable,
            ),
            Rung(
                "unroll",
                "four packs in flight per thread, the maximum moved once for all of them",
                width=PACK,
                pack=True,
                technique="unroll",
                when=_needs_peelable,
            ),
            Rung(
                "warp",
                "short rows, each held by a few lanes of a warp",
                width=PACK,
                pack=True,
                technique="warp",
                when=_needs_held,
            ),
            Rung(
                "rows",
                "several short rows by the same lanes, the next on its way while one is summed",
                width=PACK,
                pack=True,
                technique="rows",
                when=_needs_held,
                suits=_suits_many,
            ),
            Rung(
                "cluster",
                "a few long rows, each split over eight blocks",
                width=PACK,
                pack=True,
                technique="cluster",
                min_sm=90,
                when=_needs_split,
                suits=_suits_split,
            ),
        ),
        triton="cross_entropy_triton:cross_entropy_forward",
        fake=_fake,
        check=_check,
        backward=_derivative,
        accumulates=True,
        aliases=("cross_entropy",),
        samples=cases.samples(),
        errors=cases.ERRORS,
        properties=(
            Property("no such class", cases.no_such_class),
            Property("shift invariant", cases.shift_invariant),
            Property("uniform", cases.uniform),
            Property("rows independent", cases.rows_independent),
        ),
        cost=Cost(bytes=_bytes, flops=lambda logits: 4 * logits.numel()),
        bench=tuple(cases.bench(*shape) for shape in cases.BENCH_SHAPES),
        peers={"quack": _quack},
        eager=_eager,
    )
)

cross_entropy_with_grad_op = catalogue.add(
    Op(
        "cross_entropy_with_grad(Tensor logits, Tensor target, Tensor? grad_loss=None, "
        f"{_OPTIONS}) -> (Tensor, Tensor, Tensor)",
        family="loss",
        source="cross_entropy/with_grad",
        reference=_reference_with_grad,
        ladder=(
            Rung("naive", "a block per row, three sweeps"),
            Rung(
                "pack",
                "128-bit accesses, two sweeps, the second from L2",
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
                suits=_suits_registers,
            ),
            Rung(
                "rows",
                "several short rows by the same lanes, the next on its way while one is written",
                width=PACK,
                pack=True,
                technique="rows",
                when=_needs_packs_held,
                suits=_suits_many_with_grad,
            ),
            Rung(
                "cluster",
                "long rows split over a cluster, which holds them in registers",
                width=PACK,
                pack=True,
                technique="cluster",
                min_sm=90,
                when=_needs_cluster,
                suits=_suits_cluster,
                seeds=("fused_linear_cross_entropy_{dtype}",),
            ),
        ),
        triton="cross_entropy_triton:cross_entropy_with_grad",
        fake=_fake_with_grad,
        check=_check_with_grad,
        accumulates=True,
        samples=cases.with_grad_samples(),
        errors=cases.WITH_GRAD_ERRORS,
        properties=(
            Property("no such class", cases.no_such_class),
            Property("gradient sums to zero", cases.gradient_sums_to_zero),
            Property("the same bits in every run", cases.repeatable(cases.with_grad_call)),
        ),
        cost=Cost(bytes=_bytes_both, flops=lambda logits: 8 * logits.numel()),
        bench=tuple(cases.bench_with_grad(*shape) for shape in cases.BENCH_SHAPES),
        peers={"quack": _quack_with_grad},
        eager=_eager_with_grad,
    )
)

cross_entropy_backward_op = catalogue.add(
    Op(
        "cross_entropy_backward(Tensor logits, Tensor target, Tensor lse, Tensor grad_loss, "
        f"Tensor grad_lse, {_OPTIONS}) -> Tensor",
        family="loss",
        source="cross_entropy/backward",
        reference=_reference_backward,
        ladder=(
            Rung("naive", "one value an access"),
            Rung(
                "pack",
                "two packs per thread, and no loop",
                width=PACK,
                pack=True,
                when=_needs_packs_backward,
            ),
        ),
        triton="cross_entropy_triton:cross_entropy_backward",
        fake=_fake_backward,
        check=_check_backward,
        samples=cases.backward_samples(),
        errors=cases.BACKWARD_ERRORS,
        properties=(
            Property("no such class", cases.no_such_class_backward),
            Property("the same bits in every run", cases.repeatable(cases.backward_call)),
        ),
        cost=Cost(bytes=_bytes_both, flops=lambda logits: 4 * logits.numel()),
        bench=tuple(cases.bench_backward(*shape) for shape in cases.BENCH_SHAPES),
        peers={"compile": _compiled_backward, "quack": _quack_backward},
        eager=_retained(_eager_loss),
    )
)

dispatch.register(cross_entropy_forward_op)
dispatch.register(cross_entropy_with_grad_op)
dispatch.register(cross_entropy_backward_op)
dispatch.register_inplace(cross_entropy_with_grad_op, 2)
dispatch.register_inplace(cross_entropy_backward_op, 0)
_forward = dispatch.public(cross_entropy_forward_op)
_with_grad = dispatch.public(cross_entropy_with_grad_op)


# --- the public functions -------------------------------------------------------------------------


class _GradientOverLogits(torch.autograd.Function):
    """The losses of the rows, whose gradient takes the place of the logits."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, variant: str | None, *options: Any
    ) -> Tensor:
        loss, lse = _forward(variant, logits, target, *options)
        ctx.save_for_backward(logits, target, lse)
        ctx.options = options
        return loss

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, lse = ctx.saved_tensors
        dlogits = logits.detach()
        with torch.no_grad():
            torch.ops.warpsmith.cross_entropy_backward_(
                dlogits, target, lse, grad_loss, torch.zeros_like(lse), *ctx.options
            )
        found = autograd.once("cross_entropy", dlogits, logits)
        return found, None, None, *(None for _ in ctx.options)


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
    softcap: float | None = None,
    return_z_loss: bool = False,
    return_lse: bool = False,
    return_accuracy: bool = False,
    inplace_backward: bool = False,
    variant: str | None = None,
) -> Any:
    """The negative log-likelihood of a class under the softmax of each row's logits:
    ``loss = lse - x[target]`` with ``lse = log(sum(exp(x)))``.

    With label smoothing s and z-loss z it is
    ``(1 - s) (lse - x[target]) + s (lse - mean(x)) + z lse^2``. Everything is computed in f32, and
    the loss is f32 whatever the dtype of the logits: around 10, where language models start, bf16
    resolves 1/16. The forward pass reads the logits once, the backward pass reads them once more.

    Args:
        logits: [n, v], f32, f16 or bf16 (f64 without a kernel of its own), any strides. Of any rank
            as in PyTorch, classes in the second dimension (the only one, if there is one), or else,
            where the shape of target says so, in the last.
        target: [n], the index of a class, int64 or int32. One that is no class and not
            `ignore_index` gives a loss and a gradient of NaN on a GPU, where PyTorch ends the
            process; on a CPU it raises. Or probabilities, floating-point, of the shape of logits.
        weight: [v], of each class, or None. A mean then divides by the weights of the targets (of
            probabilities by their number), as in PyTorch.
        ignore_index: rows of this target have loss and gradient 0, whatever their logits.
        label_smoothing: the share of the target's weight that is spread over all classes.
        z_loss: the weight of lse^2, which keeps logits from drifting.
        reduction: "none" for a loss per row, "sum", or "mean" over the rows that are not ignored
            (NaN where all are), as in PyTorch.
        softcap: the logits are capped as ``softcap * tanh(logits / softcap)`` first, in f32; None
            for not. That is done by PyTorch's kernels, which make three tensors of the logits' size
            in f32 and keep two for the backward pass; `fused_linear_cross_entropy` does it for a
            chunk of rows at a time.
        return_z_loss: whether the share of the z-loss in the loss is returned, too, reduced as it.
        return_lse: whether the log-sum-exp of each row is: 0 of one that is ignored.
        return_accuracy: whether the share of rows whose largest logit is the target's is; for
            "none", whether each row's is.
        inplace_backward: whether the backward pass may write the gradient over the logits, which
            saves a tensor of their size. Nobody may use the logits afterwards; a second backward
            raises. Ignored under `torch.compile`, which reuses memory by itself, under the
            transforms of `torch.func`, and of sharded logits.
        variant: one rung of the forward pass by name instead of the best one,
            "bf16x8_pack_unroll_f32".

    Returns:
        An f32 tensor (f64 for f64 logits): [n], or the shape of target, for "none", otherwise a
        scalar; a tuple of it and what else is to be returned, in this order.

    Raises:
        RuntimeError: logits are not floating-point or without a class; target has another shape or
            device, or another dtype; weight has another shape or device; label_smoothing is not
            between 0 and 1; the variant cannot take the input; return_accuracy is asked for of
            sharded logits.
        ValueError: the reduction or the variant does not exist; softcap is not above 0.

    Reference:
        `torch.nn.functional.cross_entropy`. The z-loss: Chowdhery et al. 2022, PaLM,
        https://arxiv.org/abs/2204.02311, section 5.
    """
    check_reduction("cross_entropy", reduction)
    if (
        weight is not None
        or softcap is not None
        or (isinstance(logits, Tensor) and logits.dim() != 2)
        or (isinstance(target, Tensor) and target.dim() != 1)
        or return_z_loss
        or return_lse
        or return_accuracy
    ):
        return composed.cross_entropy(
            lambda rows, to_be, *given: _forward(variant, rows, to_be, *given, 0.0),
            logits,
            target,
            weight,
            ignore_index,
            label_smoothing,
            z_loss,
            reduction,
            softcap,
            (return_z_loss, return_lse, return_accuracy),
        )
    options = (ignore_index, label_smoothing, z_loss)
    if (
        inplace_backward
        and logits.requires_grad
        and torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and not sharded.of(logits)
    ):
        loss = _GradientOverLogits.apply(logits, target, variant, *options)
    else:
        loss = _forward(variant, logits, target, *options)[0]
    return composed.reduce_loss(loss, target, ignore_index, reduction)


def cross_entropy_with_grad(
    logits: Tensor,
    target: Tensor,
    grad_loss: Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    *,
    variant: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The cross-entropy of every row and, while the row is still on the chip, its gradient.

    For whoever takes gradients by hand: one read and one write, where a forward and a backward pass
    read twice. ``torch.ops.warpsmith.cross_entropy_with_grad_`` takes the same arguments, writes
    the gradient over the logits and returns the other two. Not differentiable.

    Args:
        logits: [n, v], as in `cross_entropy`.
        target: [n], int64 or int32.
        grad_loss: [n], f32 (f64 for f64 logits), what the gradient of each row is multiplied by,
            any stride; None for ones.
        ignore_index: rows of this target have loss, lse and gradient 0.
        label_smoothing: the share of the target's weight that is spread over all classes.
        z_loss: the weight of lse^2.
        variant: one rung by name instead of the best one, "bf16x8_pack_cluster_f32".

    Returns:
        The losses [n] and log-sum-exps [n] in f32 (f64 for f64 logits), and the contiguous gradient
        with respect to the logits, [n, v] in their dtype.

    Raises:
        RuntimeError: as in `cross_entropy`; grad_loss has another shape, dtype or device.
        ValueError: the variant does not exist.
    """
    return _with_grad(variant, logits, target, grad_loss, ignore_index, label_smoothing, z_loss)
