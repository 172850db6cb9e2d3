"""Transformer blocks: the sum of a branch and the residual stream joins the norm behind it.

Within a block, that is: the sum that a block ends with is its result, which hooks, hidden states
and gradient checkpointing are to see.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import Module

from warpsmith.core import autocast
from warpsmith.patching import decorators
from warpsmith.patching.norms import takes_residual
from warpsmith.patching.rules import Left, Rule, reads


@dataclass(frozen=True)
class Block:
    """A block of two branches by the names of its modules.

    Args:
        first: the norm in front of attention.
        attention: called with keywords, returns the result first.
        second: the norm behind the first sum.
        mlp: the second branch.
        after_attention: a norm or dropout of the first branch.
        after_mlp: of the second.
        foreign: arguments of `forward` that are not attention's; where one is given, the block's
            own forward runs.
    """

    first: str
    attention: str
    second: str
    mlp: str = "mlp"
    after_attention: str | None = None
    after_mlp: str | None = None
    foreign: tuple[str, ...] = ()


def make_block(base: type[Module], option: Any) -> dict[str, Any]:
    block: Block = option
    plain: Any = base.forward
    parameters = list(inspect.signature(plain).parameters.values())[2:]
    positional = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}

    def forward(self: Any, hidden_states: Tensor, *args: Any, **named: Any) -> Tensor:
        given = {**defaults, **dict(zip(positional, args, strict=False)), **named}
        if any(given[name] is not None for name in block.foreign):
            return plain(self, hidden_states, **given)
        for name in block.foreign:
            del given[name]
        x = getattr(self, block.first)(hidden_states)
        x = getattr(self, block.attention)(hidden_states=x, **given)[0]
        if block.after_attention is not None:
            x = getattr(self, block.after_attention)(x)
        x, residual = getattr(self, block.second)(x, hidden_states)
        x = getattr(self, block.mlp)(x)
        if block.after_mlp is not None:
            x = getattr(self, block.after_mlp)(x)
        return residual + x

    return {"forward": decorators.around(forward, plain)}


def _rule(block: Block, norm: str, names: str) -> Rule:
    def option(module: Module) -> Block:
        if not takes_residual(getattr(module, block.second, None)):
            raise Left(f"{block.second} is not served here, or has hooks")
        forward = type(module).forward
        decorators.check(forward)
        if "output_attentions" in inspect.signature(forward).parameters:
            raise Left("it may return the weights of its attention, too")
        return block

    return Rule("residuals", f"add_{norm}", make_block, reads(names), option)


LLAMA = _rule(
    Block("input_layernorm", "self_attn", "post_attention_layernorm"),
    "rms_norm",
    "input_layernorm self_attn post_attention_layernorm mlp",
)
PHI3 = _rule(
    Block(
        "input_layernorm",
        "self_attn",
        "post_attention_layernorm",
        after_attention="resid_attn_dropout",
        after_mlp="resid_mlp_dropout",
    ),
    "rms_norm",
    "input_layernorm self_attn post_attention_layernorm mlp resid_attn_dropout resid_mlp_dropout",
)
GEMMA = _rule(
    Block(
        "input_layernorm",
        "self_attn",
        "pre_feedforward_layernorm",
        after_attention="post_attention_layernorm",
        after_mlp="post_feedforward_layernorm",
    ),
    "rms_norm",
    "input_layernorm self_attn post_attention_layernorm pre_feedforward_layernorm mlp "
    "post_feedforward_layernorm",
)
GPT2 = _rule(
    Block("ln_1", "attn", "ln_2", foreign=("encoder_hidden_states", "encoder_attention_mask")),
    "layer_norm",
    "ln_1 attn crossattention ln_cross_attn ln_2 mlp hasattr ValueError",
)
VIT = _rule(
    Block(
        "layernorm_before",
        "attention",
        "layernorm_after",
        after_attention="dropout",
        after_mlp="dropout",
    ),
    "layer_norm",
    "layernorm_before attention dropout layernorm_after mlp",
)
CLIP = _rule(
    Block("layer_norm1", "self_attn", "layer_norm2"),
    "layer_norm",
    "layer_norm1 self_attn layer_norm2 mlp",
)


# --- norms behind the sum -------------------------------------------------------------------------


def make_bert_output(base: type[Module], option: Any) -> dict[str, Any]:
    """BERT's: `LayerNorm(dropout(dense(x)) + input)`."""

    def forward(self: Any, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        x = self.dropout(self.dense(hidden_states))
        if x.dtype != input_tensor.dtype or autocast.is_on(x):
            return self.LayerNorm(x + input_tensor)  # the sum, and thus the norm, is in f32
        return self.LayerNorm(x, input_tensor)[0]

    return {"forward": forward}


def _bert(module: Any) -> None:
    if not takes_residual(module.LayerNorm):
        raise Left("LayerNorm is not served here, or has hooks")


BERT = Rule(
    "residuals", "add_layer_norm", make_bert_output, reads("dense dropout LayerNorm"), _bert
)
