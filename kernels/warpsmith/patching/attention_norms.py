"""Attention whose heads are normalised in front of rotary positions, both in one kernel (Qwen3)."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor
from torch.nn import Module

import warpsmith
from warpsmith.nn import calls
from warpsmith.patching import decorators
from warpsmith.patching.compiled import left
from warpsmith.patching.norms import takes_residual
from warpsmith.patching.rope import ROPE
from warpsmith.patching.rules import CACHE, Left, Rule, reads

#: The arguments of the forward that this one stands for.
_TAKEN = [
    ("self", "hidden_states", "position_embeddings", "attention_mask", name, "kwargs")
    for name in CACHE
]


def make_attention(base: type[Module], option: Any) -> dict[str, Any]:
    found: Any = inspect.unwrap(base.forward)
    names = found.__globals__
    registry, eager = names["ALL_ATTENTION_FUNCTIONS"], names["eager_attention_forward"]
    plain_rope = names["apply_rotary_pos_emb"]
    # a cache of the newer name is also shown what attention is given, which it may add to
    shown = CACHE[0] in inspect.signature(found).parameters

    def turned(self: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        weights = (self.q_norm.weight, self.k_norm.weight)
        tables = cos.dim() == 3 and cos.dtype in (q.dtype, calls.FLOATS[0])
        served = tables and calls.fits(k, q) and calls.joins(q, q, *weights)
        if not served or left("rope", q):
            return plain_rope(self.q_norm(q), self.k_norm(k), cos, sin, unsqueeze_dim=2)
        pairs, eps = cos.shape[-1] // 2, self.q_norm.variance_epsilon
        return warpsmith.qk_norm_rope(q, k, *weights, cos[..., :pairs], sin[..., :pairs], eps=eps)

    def forward(
        self: Any,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        cache: Any = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        rows = hidden_states.shape[:-1]
        q, k, v = (
            project(hidden_states).view(*rows, -1, self.head_dim)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = turned(self, q, k, *position_embeddings)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        cache = past_key_values if cache is None else cache
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx, **({"kwargs": kwargs} if shown else {}))
        attend = registry.get_interface(self.config._attn_implementation, eager)
        out, weights = attend(
            self,
            q,
            k,
            v,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            sliding_window=self.sliding_window,
            **kwargs,
        )
        return self.o_proj(out.reshape(*rows, -1).contiguous()), weights

    return {"forward": decorators.around(forward, base.forward)}


def _option(module: Any) -> None:
    ROPE.option(module)
    taken = tuple(inspect.signature(type(module).forward).parameters)
    if taken not in _TAKEN:
        raise Left("its forward takes other arguments")
    for norm in (module.q_norm, module.k_norm):
        if not takes_residual(norm) or norm.variance_epsilon != module.q_norm.variance_epsilon:
            raise Left("the norms of its heads are not served here, or have hooks")


QWEN3 = Rule(
    "rope",
    "qk_norm_rope",
    make_attention,
    reads(
        "ALL_ATTENTION_FUNCTIONS _attn_implementation apply_rotary_pos_emb attention_dropout "
        "config contiguous eager_attention_forward get_interface head_dim k_norm k_proj layer_idx "
        "o_proj q_norm q_proj reshape scaling shape sliding_window training transpose update "
        "v_proj view"
    ),
    _option,
    otherwise=ROPE,
)
