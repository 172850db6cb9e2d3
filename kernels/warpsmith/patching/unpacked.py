"""Models that are compiled without a cache, told that their sequences begin at 0.

Without a cache and without a mask, transformers takes positions for those of packed sequences, if
their numbers say so, and has to look at them. Compiled, it cannot, and masks in any case: with
scores' worth of memory, and attention that is several times slower. Where the model itself has made
the positions there is nothing to look at, which a cache that keeps nothing tells it.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from warpsmith.core import compiling
from warpsmith.patching import swap
from warpsmith.patching.rules import CACHE

_TAKES = {"attention_mask", "position_ids", "use_cache"}
#: What may say that a sequence does not begin at 0.
_TELLS = ("attention_mask", "position_ids", *CACHE)


@functools.cache
def _nothing() -> type[Any]:
    """The class of caches that keep nothing; imports transformers."""
    from transformers.cache_utils import Cache

    class Nothing(Cache):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(layers=[])

        def update(
            self,
            key_states: Tensor,
            value_states: Tensor,
            layer_idx: int,
            *args: Any,
            **kwargs: Any,
        ) -> tuple[Tensor, Tensor]:
            return key_states, value_states

        def get_seq_length(self, layer_idx: int = 0) -> int:
            return 0

        def get_query_offset(self, layer_idx: int = 0) -> int:
            return 0

        def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
            return query_length, 0

        @property
        def is_compileable(self) -> bool:
            return False

    return Nothing


def make_model(base: type[Module], option: Any) -> dict[str, Any]:
    plain: Any = base.forward
    positional = tuple(inspect.signature(inspect.unwrap(plain)).parameters)[1:]
    cache = next(name for name in CACHE if name in positional)
    nothing = _nothing()

    @functools.wraps(plain)
    def forward(self: Any, *args: Any, **named: Any) -> Any:
        if not torch.compiler.is_compiling() or compiling.exporting():
            return plain(self, *args, **named)
        given = {**dict(zip(positional, args, strict=False)), **named}
        cached = given.get("use_cache")
        cached = self.config.use_cache if cached is None else cached
        checkpointed = self.training and self.gradient_checkpointing  # which warns of a cache
        told = any(given.get(name) is not None for name in _TELLS)
        if told or cached or checkpointed or given.get("return_dict") is False:
            return plain(self, *args, **named)
        given[cache] = nothing()
        found = plain(self, **given)
        kept = {name: x for name, x in found.items() if name != cache}
        return type(found)(**kept)

    return {"forward": forward}


def _takes(module: Module) -> bool:
    """Whether it is the part of a model that makes positions and masks."""
    forward = inspect.unwrap(type(module).forward)
    code = getattr(forward, "__code__", None)
    if code is None:
        return False
    parameters = set(inspect.signature(forward).parameters)
    return (
        "create_causal_mask" in code.co_names
        and {"DynamicCache", "arange"} <= set(code.co_names)
        and parameters >= _TAKES
        and not parameters.isdisjoint(CACHE)
        and hasattr(module, "gradient_checkpointing")
        and hasattr(getattr(module, "config", None), "use_cache")
        and not getattr(module.config, "add_cross_attention", False)
        and getattr(module.config, "is_causal", True)
        and "forward" not in module.__dict__
        and not swap.is_swapped(module)
    )


def patch(model: Module) -> None:
    from transformers.cache_utils import Cache

    if "query_length" not in inspect.signature(Cache.get_mask_sizes).parameters:
        return  # an older version, whose caches are asked for something else
    for module in model.modules():
        if _takes(module):
            swap.swap(module, make_model, None)


def unpatch(model: Module) -> None:
    for module in model.modules():
        if getattr(type(module), "_warpsmith_made", ("",))[0] == __name__:
            swap.restore(module)
