"""Attention of Hugging Face's models through warpsmith.

    import warpsmith.transformers

    warpsmith.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="warpsmith")

The function serves every model that takes its attention from transformers' registry: causal and
bidirectional, grouped heads, padding, sliding windows, soft caps, attention sinks, position biases,
packed sequences, dropout. transformers is imported by `register` and by nothing else here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import warpsmith

#: How models ask for it: `attn_implementation="warpsmith"`.
NAME = "warpsmith"
#: Where a mask keeps the window that it stands for.
_WINDOW = "_warpsmith_window"


def register(name: str = NAME) -> None:
    """Enters `attention` and `mask` into transformers' registries, for models loaded afterwards.

    Args:
        name: what `attn_implementation` is to be.

    Raises:
        ImportError: transformers is not installed, or has no such registries (before 4.53).
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)


def mask(*args: Any, **named: Any) -> Tensor | None:
    """The mask that models make once for all their layers: what transformers makes for PyTorch's
    attention, None where it is causal and nothing else. A sliding window without padding also says
    so, for `attention` then skips the keys outside of it.
    """
    from transformers.masking_utils import sdpa_mask

    made = sdpa_mask(*args, **named)
    window = named.get("local_size")
    if made is None or window is None or not _is_window(window, named):
        return made
    setattr(made, _WINDOW, window)
    return made


def _is_window(window: int, named: dict[str, Any]) -> bool:
    """Whether a mask is causal within the last `window` keys and nothing else."""
    if not named.get("allow_is_causal_skip", True) or named.get("use_vmap", False):
        return False  # packed sequences, or a pattern of the model's own
    if (
        named.get("q_offset", 0) + named["q_length"] - named.get("kv_offset", 0)
        != named["kv_length"]
    ):
        return False  # the last query does not stand at the last key
    padding = named.get("attention_mask")
    if padding is not None and not (torch.compiler.is_compiling() or bool(padding.all())):
        return False
    if padding is not None and torch.compiler.is_compiling():
        return False
    # chunks of the same size look alike from outside: there the second query of a chunk does not
    # see the last key of the one before
    rule = named["mask_function"]
    query, first, inside = (torch.tensor(i) for i in (window, 0, 1))
    zero = torch.tensor(0)
    return bool(rule(zero, zero, query, inside)) and not bool(rule(zero, zero, query, first))


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **named: Any,
) -> tuple[Tensor, None]:
    """What a layer calls.

    Calls that PyTorch's `scaled_dot_product_attention` could also serve go through warpsmith's,
    which leaves to PyTorch what that is faster at; all others to `flash_attention`, or, with the
    lengths of packed sequences among the arguments, to `flash_attention_varlen`.

    Args:
        module: the layer; `is_causal` of it counts where the argument is None.
        query: [batch, heads, m, d].
        key: [batch, kv_heads, n, d].
        value: [batch, kv_heads, n, dv].
        attention_mask: bool (True is seen) or added to the scores, broadcast to
            [batch, heads, m, n]; may have more keys than there are. None: causal, if the layer is.
        dropout: the probability of dropping a weight.
        scaling: what products are multiplied by; None stands for ``d ** -0.5``.
        is_causal: whether a query sees no later keys where there is no mask.
        softcap: the bound of scores.
        s_aux: [heads], the logits of attention sinks.
        position_bias: added to the scores, broadcast to [batch, heads, m, n].

    Returns:
        [batch, m, heads, dv], contiguous, and None in the place of the weights.
    """
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    lengths = [named.get(f"cu_seq_lens_{x}") for x in "qk"]
    if all(isinstance(x, Tensor) for x in lengths) and query.shape[0] == 1:
        window = named.get("sliding_window")
        limits: dict[str, Any] = {"causal": is_causal, **_extras(softcap, s_aux, dropout)}
        if window is not None and is_causal:
            limits["window"] = (window - 1, -1)
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        cu_q, cu_k = (x.to(torch.int32) for x in lengths if x is not None)
        most_q, most_k = int(named["max_length_q"]), int(named["max_length_k"])
        out = warpsmith.flash_attention_varlen(
            q, k, v, cu_q, cu_k, most_q, most_k, scale=scaling, **limits
        )
        return out.unsqueeze(0).contiguous(), None

    m, n = query.shape[2], key.shape[2]
    causal = is_causal and attention_mask is None and m > 1
    if causal and n > m:  # a cache of fixed size, until now empty: the queries' keys come first
        key, value = key[:, :, :m], value[:, :, :m]
        position_bias = None if position_bias is None else position_bias[..., :m]
    added, seen, window = None, None, None
    if attention_mask is not None:
        window = getattr(attention_mask, _WINDOW, None)
        attention_mask = attention_mask[..., : key.shape[2]]
        if attention_mask.dtype == torch.bool:
            seen = attention_mask if window is None else None
        else:
            added = attention_mask.to(query.dtype)
    if position_bias is not None:
        position_bias = position_bias.to(query.dtype)
        added = position_bias if added is None else added + position_bias
    extras = _extras(softcap, s_aux, 0.0)
    both = added is not None and (seen is not None or causal)
    if not extras and window is None and not both:
        grouped = query.shape[1] != key.shape[1]
        out = warpsmith.scaled_dot_product_attention(
            query, key, value, seen if added is None else added, dropout, causal,
            scale=scaling, enable_gqa=grouped,
        )  # fmt: skip
    else:
        limits = {"causal": causal, **_extras(softcap, s_aux, dropout)}
        if window is not None:
            limits |= {"causal": True, "window": (window - 1, -1)}
        out = warpsmith.flash_attention(
            query, key, value, scale=scaling, mask=seen, bias=added, layout="bhsd",
            **limits,
        )  # fmt: skip
    return out.transpose(1, 2).contiguous(), None


def _extras(softcap: float | None, s_aux: Tensor | None, dropout: float) -> dict[str, Any]:
    """What PyTorch's attention does not have, as `flash_attention` names it; and dropout, with a
    seed of PyTorch's generator for the CPU.
    """
    found: dict[str, Any] = {}
    if softcap:
        found["softcap"] = softcap
    if s_aux is not None:
        found["sinks"] = s_aux.float().reshape(-1)
    if dropout > 0.0:
        found["dropout_p"] = dropout
        found["seed"] = int(torch.empty((), dtype=torch.int64).random_())
    return found
