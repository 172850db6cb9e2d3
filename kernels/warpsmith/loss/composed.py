"""What `cross_entropy` takes beyond the index of a class for each row of logits, by the kernels for
that and PyTorch's: class weights, probabilities, a soft cap, logits of any rank, other results.

With w class weights, p probabilities and s label smoothing over C classes:

    index y         w[y] (1 - s) (lse - x[y]) + s / C (lse sum(w) - sum(w x))
    probabilities   lse sum(q) - sum(q x),   q = w ((1 - s) p + s / C)

Both read the logits in one kernel, for the log-sum-exp and the logit of the class, and once more
where there is a sum over classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import sharded
from warpsmith.loss.checks import check_smoothing, wide_dtype

_OP = "cross_entropy"
#: `run(logits, target, ignore_index, label_smoothing)`: losses and log-sum-exps of rows [n, v].
Run = Callable[[Tensor, Tensor, int, float], tuple[Tensor, Tensor]]


def capped(logits: Tensor, softcap: float) -> Tensor:
    """`softcap * tanh(logits / softcap)` in f32: near the cap, 16 bits would round to 1/8."""
    if not softcap > 0.0:
        raise ValueError(f"{_OP}: expected softcap to be above 0 or None, got {softcap}")
    return torch.tanh(logits.to(wide_dtype(logits)) / softcap) * softcap


def as_rows(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor, torch.Size]:
    """Rows of logits [n, v], what each is to be, and the shape of the losses.

    Raises:
        RuntimeError: the shapes are neither PyTorch's, classes in the second dimension, nor those
            of classes in the last one.
    """
    shape = target.shape
    if target.is_floating_point() and target.shape == logits.shape:
        by_class = 1 if logits.dim() > 1 else 0
        rest = (*logits.shape[:by_class], *logits.shape[by_class + 1 :])
        rows, shares = (
            x.movedim(by_class, -1).reshape(-1, x.shape[by_class]) for x in (logits, target)
        )
        return rows, shares, torch.Size(rest)
    if logits.dim() == 1 and target.dim() == 0:
        return logits[None], target[None], shape
    if logits.dim() > 1 and shape == (logits.shape[0], *logits.shape[2:]):
        rows = logits.movedim(1, -1).reshape(-1, logits.shape[1])
        return rows, target.reshape(-1), shape
    if logits.dim() > 1 and shape == logits.shape[:-1]:
        return logits.reshape(-1, logits.shape[-1]), target.reshape(-1), shape
    raise RuntimeError(
        f"{_OP}: expected target to have the shape of logits without their classes, in the second "
        f"or the last dimension, or as probabilities all of it; got {tuple(target.shape)} beside "
        f"{tuple(logits.shape)}"
    )


def _check_weight(weight: Tensor, logits: Tensor) -> None:
    count = logits.shape[1]
    if weight.dim() != 1 or weight.shape[0] != count or not weight.is_floating_point():
        raise RuntimeError(
            f"{_OP}: expected weight to be floating-point of shape ({count},), one for each class, "
            f"got {weight.dtype} of {tuple(weight.shape)}"
        )
    if weight.device != logits.device:
        raise RuntimeError(
            f"{_OP}: expected weight to be on {logits.device} like logits, got {weight.device}"
        )


def _of_index(
    run: Run,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    smoothing: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses, log-sum-exps, and what each row counts for in a mean."""
    wide = wide_dtype(logits)
    kept = target != ignore_index
    if weight is None:
        loss, lse = run(logits, target, ignore_index, smoothing)
        return loss, lse, kept.to(wide)
    weight = weight.to(wide)
    loss, lse = run(logits, target, ignore_index, 0.0)
    place = torch.where(kept, target, 0).long()
    count = torch.where(kept, weight[place], 0.0)
    # 0 times a loss that is infinite, or of no class, is none
    loss = torch.where(kept, loss * (count * (1.0 - smoothing)), 0.0)
    if smoothing:
        over = lse * weight.sum() - (logits * weight).sum(-1, dtype=wide)
        loss = loss + torch.where(kept, over, 0.0) * (smoothing / logits.shape[1])
    return loss, lse, count


def _of_probabilities(
    run: Run, logits: Tensor, target: Tensor, weight: Tensor | None, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    wide = wide_dtype(logits)
    first = logits.new_zeros(logits.shape[:1], dtype=torch.int64)  # sharded, if they are
    _, lse = run(logits, first, -1, 0.0)
    share = target.to(wide)
    if smoothing:
        share = (1.0 - smoothing) * share + smoothing / logits.shape[1]
    if weight is not None:
        share = share * weight.to(wide)
    loss = lse * share.sum(-1) - (share * logits).sum(-1)
    return loss, lse, torch.ones_like(lse)


def reduce_loss(loss: Tensor, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
    """The losses of the rows [n], their sum, or their mean over the rows that are not ignored."""
    if reduction == "none":
        return loss
    total = loss.sum()
    return total if reduction == "sum" else total / (target != ignore_index).sum()


def _reduced(x: Tensor, count: Tensor, reduction: str, shape: torch.Size) -> Tensor:
    if reduction == "none":
        return x.view(shape)
    return x.sum() if reduction == "sum" else x.sum() / count.sum()


def cross_entropy(
    run: Run,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    reduction: str,
    softcap: float | None,
    returned: tuple[bool, bool, bool],
) -> Any:
    """The public function. `returned`: whether the z-loss, the log-sum-exps and the accuracy are to
    follow the loss.
    """
    check_smoothing(_OP, label_smoothing)
    rows, to_be, shape = as_rows(logits, target)
    if softcap is not None:
        rows = capped(rows, softcap)
    if weight is not None:
        _check_weight(weight, rows)
    if probable := to_be.is_floating_point():
        loss, lse, count = _of_probabilities(run, rows, to_be, weight, label_smoothing)
        kept = torch.ones_like(lse, dtype=torch.bool)
    else:
        loss, lse, count = _of_index(run, rows, to_be, weight, ignore_index, label_smoothing)
        kept = to_be != ignore_index
    found = _reduced(loss, count, reduction, shape)
    squares = None
    if z_loss or returned[0]:
        squares = _reduced(z_loss * lse.square(), kept, reduction, shape)
        found = found + squares
    more: list[Tensor | None] = []
    if returned[0]:
        more.append(squares)
    if returned[1]:
        more.append(lse.view(shape))
    if returned[2]:
        if sharded.of(rows):
            raise RuntimeError(
                f"{_OP}: expected no return_accuracy of sharded logits; compare the argmax of "
                "logits.full_tensor() with target"
            )
        with torch.no_grad():
            best = torch.ops.warpsmith.argmax(rows, -1)
            right = best == (torch.ops.warpsmith.argmax(to_be, -1) if probable else to_be)
            right = right & kept
        mean = right.sum() / kept.sum()
        more.append(right.view(shape) if reduction == "none" else mean)
    return (found, *more) if more else found
