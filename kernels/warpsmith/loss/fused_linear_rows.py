"""A linear layer and the cross-entropy of each row of its outputs, which holds the logits of a
chunk of rows at a time: what `fused_linear_cross_entropy` runs for a loss per row.

What the losses are multiplied by is known in the backward pass only, so that it computes the logits
of each chunk again, and then their gradient over them: a matrix product more than where the losses
are summed. The idea: Wijmans et al. 2024, https://arxiv.org/abs/2411.09009.
"""

from __future__ import annotations

import torch
from torch import Tensor

from warpsmith.core import dispatch
from warpsmith.core.catalogue import Gradients as Found
from warpsmith.core.catalogue import Needs
from warpsmith.loss.checks import wide_dtype
from warpsmith.loss.fused_linear_cross_entropy import Gradients, Logits, check

_CALLED = "fused_linear_cross_entropy"
_OP = f"{_CALLED}_rows"
_GIVEN = (
    "Tensor x, Tensor weight, Tensor target, Tensor? bias, int ignore_index, "
    "float label_smoothing, float z_loss, float softcap, int? chunk_rows, bool accumulate_f32"
)


@torch.no_grad()
def _forward(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    chunk_rows: int | None,
    accumulate_f32: bool,
) -> tuple[Tensor, Tensor]:
    check(x, weight, target, bias, chunk_rows)
    loss = torch.empty(x.shape[0], dtype=wide_dtype(x), device=x.device)
    lse = torch.empty_like(loss)
    logits = Logits(x, weight, bias, chunk_rows, softcap)
    for part in logits.parts:
        loss[part], lse[part] = torch.ops.warpsmith.cross_entropy_forward(
            logits.of(part, False), target[part], ignore_index, label_smoothing, z_loss
        )
    return loss, lse


def _fake(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, *rest: object) -> object:
    check(x, weight, target, bias, None)
    loss = x.new_empty(x.shape[0], dtype=wide_dtype(x))
    return loss, torch.empty_like(loss)


@torch.no_grad()
def _backward(
    grad_loss: Tensor,
    grad_lse: Tensor,
    lse: Tensor,
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    chunk_rows: int | None,
    accumulate_f32: bool,
    grad_x: bool,
    grad_weight: bool,
    grad_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    logits = Logits(x, weight, bias, chunk_rows, softcap)
    wanted = (grad_x, grad_weight, grad_bias)
    gradients = Gradients(logits, weight, bias, accumulate_f32, wanted)
    for part in logits.parts:
        chunk = logits.of(part, True)
        torch.ops.warpsmith.cross_entropy_backward_(
            chunk,
            target[part],
            lse[part],
            grad_loss[part],
            grad_lse[part],
            ignore_index,
            label_smoothing,
            z_loss,
        )
        gradients.add(part, chunk)
        del chunk
    del logits
    return gradients.total()


def _fake_backward(
    grad_loss: Tensor,
    grad_lse: Tensor,
    lse: Tensor,
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    chunk_rows: int | None,
    accumulate_f32: bool,
    grad_x: bool,
    grad_weight: bool,
    grad_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape if grad_x else (0,)),
        weight.new_empty(weight.shape if grad_weight else (0,)),
        (x if bias is None else bias).new_empty(weight.shape[0] if grad_bias else 0),
    )


dispatch.register_composite(
    f"{_OP}_backward(Tensor grad_loss, Tensor grad_lse, Tensor lse, {_GIVEN}, "
    "bool grad_x, bool grad_weight, bool grad_bias) -> (Tensor dx, Tensor dweight, Tensor dbias)",
    _backward,
    _fake_backward,
    called=_CALLED,
)


def _derivative(
    grad_loss: Tensor | None,
    grad_lse: Tensor | None,
    lse: Tensor,
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    chunk_rows: int | None,
    accumulate_f32: bool,
    needs: Needs,
) -> Found:
    grad_loss, grad_lse = (torch.zeros_like(lse) if g is None else g for g in (grad_loss, grad_lse))
    names = ("x", "weight", "bias")
    found = torch.ops.warpsmith.fused_linear_cross_entropy_rows_backward(
        grad_loss.contiguous(),
        grad_lse.contiguous(),
        lse,
        x,
        weight,
        target,
        bias,
        ignore_index,
        label_smoothing,
        z_loss,
        softcap,
        chunk_rows,
        accumulate_f32,
        *(name in needs for name in names),
    )
    return {name: g for name, g in zip(names, found, strict=True) if name in needs}


#: `rows(*all arguments)`: losses and log-sum-exps [n].
rows = dispatch.register_composite(
    f"{_OP}({_GIVEN}) -> (Tensor loss, Tensor lse)", _forward, _fake, _derivative, _CALLED
)
