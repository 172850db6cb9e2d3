"""Calls on which attention is timed, and what PyTorch offers for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.attention import reference
from warpsmith.attention.flash_attention_cases import Named, bools, heads, sequences, wide
from warpsmith.core.arguments_by_name import Call
from warpsmith.core.catalogue import Inputs, Sample

# --- what PyTorch offers --------------------------------------------------------------------------


def _is_plain(call: Call) -> bool:
    tensors = (call.alibi_slopes, call.mask, call.bias, call.sinks, call.gate, call.q_documents)
    extra = any(x is not None for x in (*tensors, call.tree)) or call.softcap or call.dropout_p
    windowed = call.window_left >= 0 or call.window_right >= 0
    return not (extra or windowed or call.return_lse or call.return_max_logits)


def _sdpa(call: Call) -> tuple[Tensor, None, None]:
    """PyTorch's own, whose causal mask of fewer queries than keys starts at the first key."""
    if not _is_plain(call) or (call.causal and call.q.shape[1] != call.k.shape[1]):
        raise NotImplementedError("PyTorch's has no such option")
    q, k, v = (x.transpose(1, 2) for x in (call.q, call.k, call.v))
    out = F.scaled_dot_product_attention(
        q, k, v, is_causal=call.causal, scale=call.scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.transpose(1, 2), None, None


def eager(call: Call) -> Any:
    try:
        return _sdpa(call)
    except NotImplementedError:
        return reference.attention(call)


def _backend(name: str) -> Callable[[], Callable[..., Any]]:
    def factory() -> Callable[..., Any]:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backend = getattr(SDPBackend, name)

        def run(call: Call) -> Any:
            with sdpa_kernel(backend):
                return _sdpa(call)

        return run

    return factory


def compiled(written: Callable[..., Any]) -> Callable[[], Callable[..., Any]]:
    """What is written in PyTorch, by torch.compile; but for dropout, because Inductor does not end
    on ten rounds of its generator.
    """

    def factory() -> Callable[..., Any]:
        function = torch.compile(written, dynamic=False)

        def run(call: Call) -> Any:
            if call.dropout_p > 0.0:
                raise NotImplementedError("no compiler is given the generator of dropout")
            return function(call)

        return run

    return factory


PEERS = {
    "compile": compiled(eager),
    "sdpa_flash": _backend("FLASH_ATTENTION"),
    "sdpa_efficient": _backend("EFFICIENT_ATTENTION"),
    "sdpa_cudnn": _backend("CUDNN_ATTENTION"),
}


def _varlen_attn() -> Callable[..., Any]:
    from torch.nn.attention.varlen import varlen_attn

    def run(call: Call) -> Any:
        if call.softcap or call.mask is not None or call.bias is not None or call.dropout_p:
            raise NotImplementedError("PyTorch's has no such option")
        window = (call.window_left, 0 if call.causal else call.window_right)
        # an argument that PyTorch has from 2.12 on
        grouped: dict[str, Any] = {"enable_gqa": True} if call.q.shape[1] != call.k.shape[1] else {}
        out = varlen_attn(
            call.q, call.k, call.v, call.cu_seqlens_q, call.cu_seqlens_k, call.max_seqlen_q,
            call.max_seqlen_k, scale=call.scale, window_size=window, **grouped,
        )  # fmt: skip
        return out, None, None

    return run


def eager_varlen(call: Call) -> Any:
    return reference.attention_varlen(call)


VARLEN_PEERS = {"compile": compiled(eager_varlen), "varlen_attn": _varlen_attn}


# --- benchmarks -----------------------------------------------------------------------------------

#: Tokens of a call, whatever the length of its sequences, and values of all its heads.
_TOKENS, _WIDTH = 16384, 2048


def _bench(
    d: int, n: int, causal: bool, label: str = "", ladder: bool = False, **given: Any
) -> Sample:
    b, h = max(1, _TOKENS // n), max(1, _WIDTH // d)
    if d > 256:
        b, h = max(1, b // 2), 8

    def make(i: Inputs) -> Named:
        return heads(i, b, n, n, h, d, causal=causal, **given)

    text = f"{b}x{n}x{h}x{d}{' causal' if causal else ''}{label}"
    return Sample(text, make, small=False, ladder=ladder)


def of_peaks(lengths: tuple[int, ...]) -> tuple[Sample, ...]:
    """The head dimensions that models have, full and causal."""
    return tuple(
        _bench(d, n, causal) for d in (64, 128, 256) for causal in (False, True) for n in lengths
    )


def bench() -> tuple[Sample, ...]:
    lengths = (512, 1024, 2048, 4096, 8192, 16384)
    ladders = {(64, 1024), (64, 4096), (128, 4096), (512, 8192)}  # the first for `naive`
    return (
        *(
            _bench(d, n, causal, ladder=(d, n) in ladders and not causal)
            for d in (64, 128, 256)
            for causal in (False, True)
            for n in lengths
        ),
        *(_bench(d, n, causal) for d in (96, 192) for causal in (False, True) for n in (4096,)),
        _bench(192, 4096, True, " values of 128", dv=128),
        *(
            _bench(d, n, causal, ladder=(d, n) in ladders and not causal)
            for d in (320, 512, 1024)
            for causal in (False, True)
            for n in (1024, 4096, 8192)
        ),
        _bench(128, 8192, True, " GQA 4", kv=4),
        _bench(128, 8192, True, " window 1024", window_left=1023),
        _bench(64, 4096, True, " softcap", softcap=30.0),
        _bench(64, 4096, True, " sinks", sinks=lambda i: wide(i).plain(32, salt=4)),
        _bench(128, 4096, True, " dropout", dropout_p=0.1, seed=1),
    )


def decoding() -> tuple[Sample, ...]:
    """A few queries after many keys, as a cache of Hugging Face's has them, of Llama-3-8B."""

    def make(b: int, m: int, n: int, label: str = "", **given: Any) -> Sample:
        def call(i: Inputs) -> Named:
            made = heads(i, b, m, n, 32, 128, kv=8, causal=True, **given)
            first = {name: made[name].transpose(1, 2).contiguous() for name in "qkv"}
            return made | {name: x.transpose(1, 2) for name, x in first.items()}

        queries = "a query" if m == 1 else f"{m} queries"
        return Sample(f"{b} x {queries} after {n}, 32x128 GQA 4{label}", call, small=False)

    padding = bools(8, 1, 1, 8192, share=0.9)
    return (
        make(1, 1, 8192),
        make(32, 1, 4096),
        make(1, 4, 8192),
        make(1, 1, 8192, " window 1024", window_left=1023),
        make(8, 1, 8192, " mask", mask=padding),
    )


def varlen_bench() -> tuple[Sample, ...]:
    mixed = (16384 - 8192 - 4096 - 2048 - 1024 - 512 - 512, 512, 512, 1024, 2048, 4096, 8192)

    def make(d: int, causal: bool) -> Sample:
        return Sample(
            f"512 to 8192 tokens, {_WIDTH // d}x{d}{' causal' if causal else ''}",
            lambda i: sequences(i, mixed, mixed, _WIDTH // d, d, causal=causal),
            small=False,
            ladder=d == 128 and causal,
        )

    return tuple(make(d, causal) for d in (64, 128) for causal in (False, True))
