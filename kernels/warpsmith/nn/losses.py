"""Losses of language models."""

from __future__ import annotations

import torch
from torch import Tensor

import warpsmith
from warpsmith.nn import calls


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """`torch.nn.CrossEntropyLoss` by `warpsmith.cross_entropy`: in f32 whatever the dtype of the
    logits, and, without a soft cap, without a copy of them in f32.

    Arguments are PyTorch's, and two more by name; the loss is in f32.

    Args:
        weight: [classes], of each class, or None.
        size_average: as in PyTorch, which wants `reduction` in its place.
        ignore_index: rows of this target have loss and gradient 0.
        reduce: as `size_average`.
        reduction: "mean", "sum" or "none".
        label_smoothing: the share of the target's weight that is spread over all classes.
        z_loss: the weight of the squared log-sum-exp.
        softcap: the bound of the logits, ``softcap * tanh(logits / softcap)``, or None.

    Shape:
        logits: [n, classes], f32, f16 or bf16; target: [n], int64 or int32. Of any rank, and with
        probabilities in the place of classes, as in PyTorch; classes in front of other dimensions
        are moved behind them, which copies the logits in their dtype.
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        z_loss: float = 0.0,
        softcap: float | None = None,
    ) -> None:
        super().__init__(weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        self.z_loss, self.softcap = z_loss, softcap

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return calls.cross_entropy(
            input,
            target,
            self.weight,
            self.ignore_index,
            self.reduction,
            self.label_smoothing,
            self.z_loss,
            self.softcap,
        )


class FusedLinearCrossEntropyLoss(torch.nn.Module):
    """The head of a language model and its loss, without all the logits at once:
    ``cross_entropy(x weight^T + bias, target)`` by `warpsmith.fused_linear_cross_entropy`.

    The weight is the caller's, as that of embeddings often is: ``loss(lm_head.weight, x, target)``.

    Args:
        ignore_index: rows of this target have loss and gradient 0.
        label_smoothing: the share of the target's weight that is spread over all classes.
        z_loss: the weight of the squared log-sum-exp.
        reduction: "mean", "sum" or "none".
        accumulate_f32: whether the gradient of the weight is summed over chunks in f32.
        softcap: the bound of the logits, ``softcap * tanh(logits / softcap)``, or None.
        class_weight: [classes], what the losses of a class's rows are multiplied by, or None; a
            buffer of the module.
        chunk_rows: rows of a chunk; None for those that the function takes.

    Shape:
        weight: [classes, d]; x: [..., d] in its dtype; target: [...], int64 or int32; bias:
        [classes]; token_weight: [...], what each row's loss is multiplied by. Returns a scalar in
        f32, or the shape of target.

    Raises:
        ValueError: the reduction does not exist.

    Reference:
        Hsu et al. 2024, Liger Kernel, https://arxiv.org/abs/2410.10989
    """

    class_weight: Tensor | None

    def __init__(
        self,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        reduction: str = "mean",
        accumulate_f32: bool = False,
        *,
        softcap: float | None = None,
        class_weight: Tensor | None = None,
        chunk_rows: int | None = None,
    ) -> None:
        super().__init__()
        if reduction not in ("none", "mean", "sum"):
            raise ValueError(
                "FusedLinearCrossEntropyLoss: expected reduction to be one of 'none', 'mean', "
                f"'sum', got {reduction!r}"
            )
        self.ignore_index, self.label_smoothing, self.z_loss = ignore_index, label_smoothing, z_loss
        self.reduction, self.accumulate_f32 = reduction, accumulate_f32
        self.softcap, self.chunk_rows = softcap, chunk_rows
        self.register_buffer("class_weight", class_weight)

    def forward(
        self,
        weight: Tensor,
        x: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        token_weight: Tensor | None = None,
    ) -> Tensor:
        return warpsmith.fused_linear_cross_entropy(
            x,
            weight,
            target,
            bias,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            z_loss=self.z_loss,
            reduction=self.reduction,
            class_weight=self.class_weight,
            token_weight=token_weight,
            softcap=self.softcap,
            chunk_rows=self.chunk_rows,
            accumulate_f32=self.accumulate_f32,
        )

    def extra_repr(self) -> str:
        return f"ignore_index={self.ignore_index}, reduction={self.reduction!r}"
