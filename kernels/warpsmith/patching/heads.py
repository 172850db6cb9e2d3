"""Heads of language models together with their loss, without the logits."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch.nn import Module

import warpsmith
from warpsmith.core import autocast
from warpsmith.nn import calls
from warpsmith.patching import swap
from warpsmith.patching.losses import IGNORED, causal_lm_loss, shifted, standing_for
from warpsmith.patching.rules import CACHE, Left, Rule, reads

#: What keeps the logits that are asked for: a slice, from transformers 5.21 on a function.
_KEEPS = ("slice_logits_to_keep", "int isinstance slice")


@dataclass(frozen=True)
class Head:
    """What stands around the head of a model.

    Args:
        output: the class of what the model returns, by its name in the model's module.
        capped: whether `final_logit_softcapping` of the config bounds the logits.
        routed: whether the loss of the routers is added where their logits are asked for.
    """

    output: str = "CausalLMOutputWithPast"
    capped: bool = False
    routed: bool = False


def make_head(base: type[Module], option: Any) -> dict[str, Any]:
    head: Head = option
    plain: Any = base.forward
    original = inspect.unwrap(plain)
    positional = tuple(inspect.signature(original).parameters)[1:]
    output = original.__globals__[head.output]
    # what the body returns that the model returns, too
    passed = [f.name for f in fields(output) if f.name in original.__code__.co_names]
    balancing = original.__globals__["load_balancing_loss_func"] if head.routed else None

    @functools.wraps(plain)
    def forward(self: Any, *args: Any, **named: Any) -> Any:
        given = {**dict(zip(positional, args, strict=False)), **named}
        cap = self.config.final_logit_softcapping if head.capped else None
        if not _fuses(self, given) or not (cap is None or cap > 0.0):
            return plain(self, *args, **named)
        labels = given.pop("labels")
        for name in ("logits_to_keep", "return_dict"):
            given.pop(name, None)
        if head.routed and given.get("output_router_logits") is None:
            given["output_router_logits"] = self.config.output_router_logits
        found = self.model(**given, return_dict=True)
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
            softcap=cap,
        )
        if items is not None:
            loss = loss / (items.to(loss.device) if isinstance(items, torch.Tensor) else items)
        more = {name: getattr(found, name) for name in passed}
        if balancing is not None and given["output_router_logits"]:
            more["aux_loss"] = balancing(
                found.router_logits,
                self.num_experts,
                self.num_experts_per_tok,
                given.get("attention_mask"),
            )
            loss = loss + self.router_aux_loss_coef * more["aux_loss"].to(loss.device)
        return output(loss=loss, **more)

    return {"forward": forward}


def _unlike(head: Any) -> str | None:
    """Why a head is not the product that this stands for."""
    if not isinstance(head, torch.nn.Linear) or "forward" in head.__dict__:
        return "its head is not a Linear of PyTorch's"
    if type(head).forward is not torch.nn.Linear.forward and not swap.is_swapped(head):
        return "its head is not a Linear of PyTorch's"
    return "its head has hooks" if head._forward_hooks or head._forward_pre_hooks else None


def _fuses(self: Any, given: dict[str, Any]) -> bool:
    """Whether a call asks for the loss alone, of a head and a loss that are as they were."""
    returns = given.get("return_dict")
    if not self.training or given.get("labels") is None or _unlike(self.lm_head) is not None:
        return False
    weight = self.lm_head.weight
    return (
        isinstance(given.get("logits_to_keep", 0), int)
        and given.get("logits_to_keep", 0) == 0
        and bool(self.config.return_dict if returns is None else returns)
        and getattr(self, "_loss_function", None) in (None, causal_lm_loss)
        and weight.dtype in calls.FLOATS
        and not autocast.is_on(weight)
    )


def _rule(head: Head, *names: str) -> Rule:
    def option(module: Any) -> Head:
        why = _unlike(module.lm_head)
        if why is not None:
            raise Left(why)
        if standing_for(module) is not causal_lm_loss:
            raise Left("its loss is not that of the next token")
        return head

    every = f"{head.output} hidden_states attentions"
    every += " model config lm_head loss_function vocab_size"
    versions = [f"{every} {x} {y} {z}" for x in names for y in CACHE for z in _KEEPS]
    return Rule("fused_loss", "fused_linear_cross_entropy", make_head, reads(*versions), option)


HEAD = _rule(Head(), "last_hidden_state")
CAPPED = _rule(Head(capped=True), "last_hidden_state final_logit_softcapping torch tanh")
ROUTED = _rule(
    Head("MoeCausalLMOutputWithPast", routed=True),
    "last_hidden_state output_router_logits router_logits load_balancing_loss_func num_experts "
    "num_experts_per_tok router_aux_loss_coef to device",
)
#: Its logits are not capped, whatever the config says.
GEMMA3_IMAGES = _rule(
    Head("Gemma3CausalLMOutputWithPast"),
    "text_config image_hidden_states",
    "text_config image_outputs",
)
