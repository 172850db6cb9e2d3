"""Attention of Hugging Face's models through warpsmith.

    import warpsmith.transformers

    warpsmith.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="warpsmith")

The function serves every model that takes its attention from transformers' registry: causal and
bidirectional, grouped heads, padding, sliding windows, soft caps, attention sinks, position biases,
packed sequences, dropout. transformers is imported by `register` and by nothing else here.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

import warpsmith
from warpsmith.core import compiling

#: How models ask for it: `attn_implementation="warpsmith"`.
NAME = "warpsmith"
#: Where a mask keeps how many keys before its own a query sees, if that is all that it stands for.
_LEFT = "_warpsmith_left"
#: Where it keeps the tokens of each sequence in a cache of fixed size, if it is causal up to them.
_LENGTHS = "_warpsmith_lengths"
#: Up to so many queries are decoding.
_FEW_QUERIES = 16


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
    attention, None where it is causal and nothing else.

    That holds in a captured graph and in compiled code as well, where versions of transformers make
    a mask of what the numbers of tokens say already. A mask of several queries behind a cache, and
    one of a sliding window, without padding, also says so: `attention` then reads none, and skips
    the keys outside of a window. One of a few queries behind a cache of fixed size says how far
    that is filled, which is known on the GPU alone.
    """
    from transformers.masking_utils import sdpa_mask

    if "q_length" not in named:  # an older version, which counts its tokens on the GPU
        return sdpa_mask(*args, **named)
    if _needs_none(named):
        return None
    made = sdpa_mask(*args, **named)
    if made is not None and _is_causal(named):
        window = named.get("local_size")
        setattr(made, _LEFT, -1 if window is None else window - 1)
    if made is not None and (lengths := _lengths(named)) is not None:
        setattr(made, _LENGTHS, lengths)
    return made


def _needs_none(named: dict[str, Any]) -> bool:
    """Whether numbers of tokens alone say that `attention` does without a mask: one query that sees
    all keys, queries from the first key on, or all of them where nothing is causal.
    """
    if named.get("attention_mask") is not None or named.get("use_vmap", False):
        return False
    if compiling.exporting():
        return False  # what is exported serves other numbers of tokens
    q, n = named.get("q_length"), named.get("kv_length")
    first, first_key = named.get("q_offset", 0), named.get("kv_offset", 0)
    if not all(isinstance(x, int | torch.SymInt) for x in (q, n, first, first_key)):
        return False  # a cache of fixed size counts its tokens on the GPU
    assert q is not None
    assert n is not None
    window = named.get("local_size")
    if window is not None and n >= window:
        return False
    if named.get("allow_is_bidirectional_skip", False):
        return True  # every key is seen
    from_first = first == first_key and (first == 0 or q == n)
    sees_all = q == 1 and first + q == first_key + n
    return _may_be_causal(named) and bool(from_first or sees_all)


def _may_be_causal(named: dict[str, Any]) -> bool:
    """Not of packed sequences, nor of a pattern of the model's own."""
    return bool(named.get("allow_is_causal_skip", True)) and not named.get("use_vmap", False)


def _is_causal(named: dict[str, Any]) -> bool:
    """Whether a mask is causal and nothing else, within the last `local_size` keys where there is
    such a limit.
    """
    if not _may_be_causal(named):
        return False
    first, first_key = named.get("q_offset", 0), named.get("kv_offset", 0)
    if isinstance(first, Tensor) or isinstance(first_key, Tensor):
        return False  # only the GPU knows
    if first + named["q_length"] != first_key + named["kv_length"]:
        return False  # the last query does not stand at the last key
    padding = named.get("attention_mask")
    if padding is not None and (_records() or not bool(padding.all())):
        return False
    zero, one = torch.tensor(0), torch.tensor(1)
    rule, window = named["mask_function"], named.get("local_size")
    if window is None:
        far = torch.tensor(named["kv_length"])
        return bool(rule(zero, zero, far, zero)) and not bool(rule(zero, zero, zero, one))
    # chunks of the same size look alike from outside: there the second query of a chunk does not
    # see the last key of the one before
    query = torch.tensor(window)
    return bool(rule(zero, zero, query, one)) and not bool(rule(zero, zero, query, zero))


def _lengths(named: dict[str, Any]) -> Tensor | None:
    """Of each sequence, those of this call among them, where a mask is causal up to there and
    nothing else, and the cache counts on the GPU.
    """
    from transformers.masking_utils import causal_mask_function

    first, few = named.get("q_offset"), named.get("q_length", 0) <= _FEW_QUERIES
    if not few or not isinstance(first, Tensor) or first.numel() != 1:
        return None
    if torch.compiler.is_compiling() or named.get("mask_function") is not causal_mask_function:
        return None
    if named.get("attention_mask") is not None or named.get("local_size") is not None:
        return None
    if named.get("kv_offset", 0) != 0 or named.get("use_vmap", False):
        return None
    filled = (first.reshape(1) + named["q_length"]).to(torch.int32)
    return filled.expand(named["batch_size"]).contiguous()


def _decodes(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether kernels of a cache take a call."""
    if not query.is_cuda or query.dtype not in (torch.float16, torch.bfloat16):
        return False
    if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
        return False
    # heads of whole packs of 16 bytes
    sizes = *key.stride()[:3], *value.stride()[:3], key.shape[3], value.shape[3]
    whole = all(size % 8 == 0 for size in sizes) and key.stride(3) == value.stride(3) == 1
    return whole and max(key.shape[3], value.shape[3]) <= 256


def _records() -> bool:
    """Whether what is called now runs later, so that nothing can be asked of the GPU."""
    if torch.compiler.is_compiling():
        return True
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


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
    lengths of packed sequences among the arguments, to `flash_attention_varlen`. Decoding from a
    cache of fixed size goes to `attention_with_kv_cache`, which reads what is filled of it.

    It makes no weights that could be returned: a call with ``output_attentions=True`` warns, and
    gets none, as from "sdpa".

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
    if named.get("output_attentions") and not torch.compiler.is_compiling():
        warnings.warn(
            f'attention "{NAME}" makes no weights, which output_attentions=True asks for; "eager" '
            "does, and warpsmith.patch(model, attention=False) leaves it",
            stacklevel=2,
        )
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    starts_q, starts_k = named.get("cu_seq_lens_q"), named.get("cu_seq_lens_k")
    if isinstance(starts_q, Tensor) and isinstance(starts_k, Tensor) and query.shape[0] == 1:
        window = named.get("sliding_window")
        limits: dict[str, Any] = {"causal": is_causal, **_extras(softcap, s_aux, dropout)}
        if window is not None and is_causal:
            limits["window"] = (window - 1, -1)
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        cu_q, cu_k = starts_q.to(torch.int32), starts_k.to(torch.int32)
        most_q, most_k = int(named["max_length_q"]), int(named["max_length_k"])
        out = warpsmith.flash_attention_varlen(
            q, k, v, cu_q, cu_k, most_q, most_k, scale=scaling, **limits
        )
        return out.unsqueeze(0).contiguous(), None

    lengths = getattr(attention_mask, _LENGTHS, None)
    more = position_bias is not None or dropout > 0.0
    if lengths is not None and not more and _decodes(query, key, value):
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        extras = _extras(softcap, s_aux, 0.0)
        out = warpsmith.attention_with_kv_cache(q, k, v, lengths, scaling, **extras)
        return out.contiguous(), None

    m, n = query.shape[2], key.shape[2]
    # a plain bool, where m may be a number that a compiler does not know
    causal = True if m > 1 and is_causal and attention_mask is None else False  # noqa: SIM210
    if causal and n > m:  # a cache of fixed size, until now empty: the queries' keys come first
        key, value = key[:, :, :m], value[:, :, :m]
        position_bias = None if position_bias is None else position_bias[..., :m]
    added, seen, left = None, None, None
    if attention_mask is not None:
        left = getattr(attention_mask, _LEFT, None)
        # compiled code, where sizes are symbols, does not ask whether there are more
        if torch.compiler.is_compiling() or attention_mask.shape[-1] != key.shape[2]:
            attention_mask = attention_mask[..., : key.shape[2]]
        if attention_mask.dtype == torch.bool:
            seen = attention_mask if left is None else None
        else:
            added = attention_mask.to(query.dtype)
    if position_bias is not None:
        position_bias = position_bias.to(query.dtype)
        added = position_bias if added is None else added + position_bias
    extras = _extras(softcap, s_aux, 0.0)
    both = added is not None and (seen is not None or causal)
    if not extras and left is None and not both:
        # no comparison of sizes, which are symbols in compiled code
        grouped = {"enable_gqa": True} if query.shape[1] != key.shape[1] else {}
        out = warpsmith.scaled_dot_product_attention(
            query, key, value, seen if added is None else added, dropout, causal,
            scale=scaling, **grouped,
        )  # fmt: skip
    else:
        limits = {"causal": causal, **_extras(softcap, s_aux, dropout)}
        if left is not None:
            limits |= {"causal": True, "window": (left, -1)}
        out = warpsmith.flash_attention(
            query, key, value, scale=scaling, mask=seen, bias=added, layout="bhsd",
            **limits,
        )  # fmt: skip
    return out.transpose(1, 2).contiguous(), None


def _extras(softcap: float | None, s_aux: Tensor | None, dropout: float) -> dict[str, Any]:
    """What PyTorch's attention does not have, as `flash_attention` names it; and dropout."""
    found: dict[str, Any] = {}
    if softcap:
        found["softcap"] = softcap
    if s_aux is not None:
        found["sinks"] = s_aux.float().reshape(-1)
    if dropout > 0.0:
        found["dropout_p"] = dropout
    return found
