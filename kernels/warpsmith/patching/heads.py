"""Heads of language models together with their loss, without the logits."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch.nn import Module

import warpsmith
from warpsmith.nn import calls
from warpsmith.patching.losses import IGNORED, LOSSES, shifted
from warpsmith.patching.rules import Left, Rule, reads


def make_head(base: type[Module], option: Any) -> dict[str, Any]:
    plain: Any = base.forward
    original = inspect.unwrap(plain)
    positional = tuple(inspect.signature(original).parameters)[1:]
    output = original.__globals__["CausalLMOutputWithPast"]

    @functools.wraps(plain)
    def forward(self: Any, *args: Any, **named: Any) -> Any:
        given = {**dict(zip(positional, args, strict=False)), **named}
        if not _fuses(self, given):
            return plain(self, *args, **named)
        labels, _ = given.pop("labels"), given.pop("logits_to_keep", None)
        found = self.model(**given)
        x = found.last_hidden_state
        ignored = given.get("ignore_index", IGNORED)
        target = given.get("shift_labels")
        target = shifted(labels, ignored) if target is None else target
        items = given.get("num_items_in_batch")
        loss = warpsmith.fused_linear_cross_entropy(
            x.reshape(-1, x.shape[-1]),
            self.lm_head.weight,
            target.reshape(-1).to(x.device),
            self.lm_head.bias,
            ignore_index=ignored,
            reduction="mean" if items is None else "sum",
        )
        if items is not None:
            loss = loss / (items.to(loss.device) if isinstance(items, torch.Tensor) else items)
        return output(
            loss=loss,
            past_key_values=found.past_key_values,
            hidden_states=found.hidden_states,
            attentions=found.attentions,
        )

    return {"forward": forward}


def _fuses(self: Any, given: dict[str, Any]) -> bool:
    weight = self.lm_head.weight
    return (
        self.training
        and given.get("labels") is not None
        and isinstance(given.get("logits_to_keep", 0), int)
        and given.get("logits_to_keep", 0) == 0
        and given.get("return_dict") is not False
        and weight.dtype in calls.FLOATS
        and not torch.is_autocast_enabled(weight.device.type)
    )


def _option(module: Any) -> None:
    head = module.lm_head
    if not isinstance(head, torch.nn.Linear) or "forward" in head.__dict__:
        raise Left("its head is not a Linear of PyTorch's")
    if head._forward_hooks or head._forward_pre_hooks:
        raise Left("its head has hooks")
    replaced = module.__dict__.get("_loss_function")
    if replaced is not None and replaced not in LOSSES.values():
        raise Left("its loss has been replaced already")


HEAD = Rule(
    "fused_loss",
    "fused_linear_cross_entropy",
    make_head,
    reads(
        "CausalLMOutputWithPast attentions config hidden_states int isinstance last_hidden_state "
        "lm_head loss_function model past_key_values slice vocab_size"
    ),
    _option,
)
