"""Losses of transformers' language models, which ask their `loss_function` for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module

from warpsmith.core import autocast
from warpsmith.nn import calls
from warpsmith.patching.rules import Left, Rule

IGNORED = -100


def in_pytorchs_dtype(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> Tensor:
    """Cross-entropy, computed in f32, in the dtype that PyTorch answers in: that of the logits
    outside of autocast.
    """
    loss = calls.cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing)
    wide = input.dtype not in calls.FLOATS or autocast.is_on(input)
    return loss if wide else loss.to(input.dtype)


def make_cross_entropy(base: type[Module], option: Any) -> dict[str, Any]:
    """Of PyTorch's module."""

    def forward(self: Any, input: Tensor, target: Tensor) -> Tensor:
        return in_pytorchs_dtype(
            input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing
        )

    return {"forward": forward}


CROSS_ENTROPY = Rule("loss", "cross_entropy", make_cross_entropy)


def _mean(logits: Tensor, labels: Tensor, items: Tensor | int | None, ignore_index: int) -> Tensor:
    labels = labels.reshape(-1).to(logits.device)
    if items is None:
        return calls.cross_entropy(logits, labels, ignore_index=ignore_index)
    total = calls.cross_entropy(logits, labels, ignore_index=ignore_index, reduction="sum")
    return total / (items.to(total.device) if isinstance(items, Tensor) else items)


def shifted(labels: Tensor, ignore_index: int) -> Tensor:
    """The next token as the label of each."""
    return F.pad(labels, (0, 1), value=ignore_index)[..., 1:].contiguous()


def causal_lm_loss(
    logits: Tensor,
    labels: Tensor | None,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = IGNORED,
    shift_labels: Tensor | None = None,
    **named: Any,
) -> Tensor:
    """The loss of the next token, in f32 without logits in f32."""
    if shift_labels is None:
        assert labels is not None
        shift_labels = shifted(labels, ignore_index)
    return _mean(logits.view(-1, vocab_size), shift_labels, num_items_in_batch, ignore_index)


def masked_lm_loss(
    logits: Tensor,
    labels: Tensor,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = IGNORED,
    **named: Any,
) -> Tensor:
    """The loss of the tokens that were masked, in f32 without logits in f32."""
    return _mean(logits.view(-1, vocab_size), labels, num_items_in_batch, ignore_index)


#: By the name that transformers has for the loss.
LOSSES = {
    "ForCausalLM": causal_lm_loss,
    "ForConditionalGeneration": causal_lm_loss,
    "ForMaskedLM": masked_lm_loss,
}


def kind_of(model: Module) -> str | None:
    """The name that transformers has for the loss of a model; None where it has none."""
    if not hasattr(type(model), "loss_function"):
        return None
    kind: str | None = getattr(model, "loss_type", None)
    if kind is None and type(model).__name__.endswith("LMHeadModel"):
        return "ForCausalLM"  # what transformers takes where the name of the class says nothing
    return kind


def standing_for(model: Module) -> Callable[..., Tensor] | None:
    """The loss that stands for a model's; None where it has none.

    Raises:
        Left: it is not a loss of these, or has been replaced.
    """
    kind = kind_of(model)
    if kind is None:
        return None
    if getattr(model, "_loss_function", None) not in (None, LOSSES.get(kind)):
        raise Left("its loss has been replaced already")
    if kind not in LOSSES:
        raise Left(f"no loss {kind} here")
    return LOSSES[kind]


def patch(model: Module) -> bool:
    """Serves the loss of a model; False where it has none, or one that is served already.

    Raises:
        Left: it is not a loss of these, or has been replaced.
    """
    loss = standing_for(model)
    if loss is None or "_loss_function" in model.__dict__:
        return False
    model.__dict__["_loss_function"] = loss
    return True


def unpatch(model: Module) -> bool:
    """Whether its loss was served here."""
    was = model.__dict__.get("_loss_function") in LOSSES.values()
    if was:
        del model.__dict__["_loss_function"]
    return was
