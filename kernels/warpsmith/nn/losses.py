"""Losses of language models."""

from __future__ import annotations

import torch
from torch import Tensor

import warpsmith
from warpsmith.nn import calls


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """`torch.nn.CrossEntropyLoss` by `warpsmith.cross_entropy`: in f32 whatever the dtype of the
    logits, without a copy of them in f32.

    Arguments are PyTorch's, and the loss is in f32. Class weights, probabilities as targets and
    logits of more than two dimensions are computed by PyTorch, in f32 too.

    Shape:
        logits: [n, classes], f32, f16 or bf16; target: [n], int64 or int32.
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return calls.cross_entropy(
            input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing
        )


class FusedLinearCrossEntropyLoss(torch.nn.Module):
    """The head of a language model and its loss, without all the logits at once:
    ``cross_entropy(x weight^T + bias, target)`` by `warpsmith.fused_linear_cross_entropy`.

    The weight is the caller's, as that of embeddings often is: ``loss(lm_head.weight, x, target)``.

    Args:
        ignore_index: rows of this target have loss and gradient 0.
        label_smoothing: the share of the target's weight that is spread over all classes.
        z_loss: the weight of the squared log-sum-exp.
        reduction: "mean" or "sum".
        accumulate_f32: whether the gradient of the weight is summed over chunks in f32.

    Shape:
        weight: [classes, d]; x: [..., d] in its dtype; target: [...], int64 or int32; bias:
        [classes]. Returns a scalar in f32.

    Reference:
        Hsu et al. 2024, Liger Kernel, https://arxiv.org/abs/2410.10989
    """

    def __init__(
        self,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        reduction: str = "mean",
        accumulate_f32: bool = False,
    ) -> None:
        super().__init__()
        if reduction not in ("mean", "sum"):
            raise ValueError(
                "FusedLinearCrossEntropyLoss: expected reduction to be 'mean' or 'sum', "
                f"got {reduction!r}"
            )
        self.ignore_index, self.label_smoothing, self.z_loss = ignore_index, label_smoothing, z_loss
        self.reduction, self.accumulate_f32 = reduction, accumulate_f32

    def forward(
        self, weight: Tensor, x: Tensor, target: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        return warpsmith.fused_linear_cross_entropy(
            x.reshape(-1, x.shape[-1]),
            weight,
            target.reshape(-1),
            bias,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            z_loss=self.z_loss,
            reduction=self.reduction,
            accumulate_f32=self.accumulate_f32,
        )

    def extra_repr(self) -> str:
        return f"ignore_index={self.ignore_index}, reduction={self.reduction!r}"
