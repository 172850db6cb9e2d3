"""Attention of transformers' models, through the registry that they take it from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch.nn import Module

from warpsmith import transformers as registry
from warpsmith.patching import unpacked
from warpsmith.patching.rules import Left

#: Where a model keeps what its parts had: implementations by the name of the part.
_BEFORE = "_warpsmith_attention"
#: What may be replaced: other implementations are chosen for a reason, and have masks of their own.
_REPLACED = ("sdpa", "eager")


def models(model: Module) -> Iterator[tuple[str, Any]]:
    """The outermost models of transformers, by name."""
    modeling = sys.modules.get("transformers.modeling_utils")
    if modeling is None:
        return
    seen: set[str] = set()
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") or outer == "" for outer in seen)
        if isinstance(module, modeling.PreTrainedModel) and not inside:
            seen.add(name)
            yield name, module


def _parts(model: Any) -> Iterator[tuple[str, Any]]:
    modeling = sys.modules["transformers.modeling_utils"]
    for name, module in model.named_modules():
        if isinstance(module, modeling.PreTrainedModel):
            yield name, module


def patch(model: Any) -> bool:
    """Has the attention of a model of transformers served here; False where it is already.

    Raises:
        Left: the model does not take its attention from the registry, or asks for weights.
    """
    before = {name: part.config._attn_implementation for name, part in _parts(model)}
    if set(before.values()) == {registry.NAME}:
        return False
    for name, part in _parts(model):
        if not part._can_set_attn_implementation():
            raise Left("it does not take its attention from transformers' registry")
        if before[name] not in _REPLACED:
            raise Left(f"its attention is {before[name]}")
        if getattr(part.config, "output_attentions", False):
            raise Left("it returns the weights of its attention")
        if getattr(part.config, "reorder_and_upcast_attn", False):
            raise Left("it computes its attention in f32")
    registry.register()
    try:
        model.set_attn_implementation(registry.NAME)
    except (ImportError, ValueError) as error:
        _restore(model, before)
        raise Left(str(error)) from None
    model.__dict__[_BEFORE] = before
    unpacked.patch(model)
    return True


def _restore(model: Any, before: dict[str, str]) -> None:
    for name, part in _parts(model):
        if name in before:
            part.config._attn_implementation_internal = before[name]


def unpatch(model: Any) -> bool:
    """Whether its attention had been chosen here."""
    before = model.__dict__.pop(_BEFORE, None)
    unpacked.unpatch(model)
    if before is not None:
        _restore(model, before)
    return before is not None
