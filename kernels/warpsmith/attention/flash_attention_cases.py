"""Calls on which attention is tested and measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from warpsmith.attention import options
from warpsmith.core.catalogue import Inputs, Sample, parse_schema
from warpsmith.spec.checks import wide_dtype

Named = dict[str, Any]
Make = Callable[[Inputs], Any]


# --- makers of arguments --------------------------------------------------------------------------


def wide(i: Inputs) -> Inputs:
    """For what stays in f32 beside 16 bits."""
    return Inputs(wide_dtype(i.dtype), i.device, i.seed)


def _made(given: Mapping[str, Any], i: Inputs) -> Named:
    return {name: value(i) if callable(value) else value for name, value in given.items()}


def heads(
    i: Inputs, b: int, m: int, n: int, h: int, d: int, *, kv: int = 0, dv: int = 0, **given: Any
) -> Named:
    """Normal queries, keys and values; a scale of 1 / sqrt(d) where none is given."""
    kv, dv = kv or h, dv or d
    tensors = {
        "q": i.plain(b, m, h, d, salt=1),
        "k": i.plain(b, n, kv, d, salt=2),
        "v": i.plain(b, n, kv, dv, salt=3),
        "scale": d**-0.5,
    }
    return tensors | _made(given, i)


def _sample(
    label: str,
    *sizes: int,
    small: bool = True,
    huge: bool = False,
    dtypes: tuple[str, ...] | None = None,
    **given: Any,
) -> Sample:
    """`sizes`: b, m, n, heads, d."""

    def make(i: Inputs) -> Named:
        return heads(i, *sizes, **given)

    text = f"{sizes[0]}x{sizes[1]}x{sizes[3]}x{sizes[4]} of {sizes[2]}"
    text = f"{text}, {label}" if label else text
    return Sample(text, make, small, huge, dtypes)


def _slopes(h: int) -> Make:
    """The geometric ones of ALiBi."""
    return lambda i: torch.tensor(
        [2.0 ** (-8.0 * (j + 1) / h) for j in range(h)], dtype=wide(i).dtype, device=i.device
    )


def bools(*shape: int, share: float = 0.7) -> Make:
    def make(i: Inputs) -> Tensor:
        generator = wide(i).generator((*shape, 77))
        made = torch.rand(shape, generator=generator, device=generator.device) < share
        return made.to(i.device)

    return make


def _documents(b: int, tokens: int, each: int) -> Make:
    def make(i: Inputs) -> Tensor:
        one = torch.arange(tokens, dtype=torch.int32, device=i.device) // each
        return one.expand(b, tokens).contiguous()

    return make


def draft(b: int, m: int) -> Make:
    """A tree in which token i follows token (i - 1) // 2: every ancestor and itself are seen."""

    def make(i: Inputs) -> Tensor:
        words = [1]
        for j in range(1, m):
            words.append(words[(j - 1) // 2] | 1 << j)
        signed = [w - 2**64 if w >= 2**63 else w for w in words]
        return torch.tensor([signed] * b, dtype=torch.int64, device=i.device)

    return make


def _outliers(i: Inputs, b: int, m: int, n: int, h: int, d: int, **given: Any) -> Named:
    return heads(i, b, m, n, h, d, **given) | {
        "q": i.randn(b, m, h, d, salt=1),
        "k": i.randn(b, n, h, d, salt=2),
        "v": i.randn(b, n, h, d, salt=3),
    }


def _heavy(i: Inputs, b: int, m: int, n: int, h: int, d: int) -> Named:
    """Cubes of normal values: far from normal."""
    made = heads(i, b, m, n, h, d)
    return made | {name: made[name] ** 3 / 2 for name in ("q", "k", "v")}


def everything(i: Inputs, b: int, m: int, n: int, h: int, d: int, **given: Any) -> Named:
    return heads(
        i,
        b,
        m,
        n,
        h,
        d,
        causal=True,
        window_left=n // 2,
        softcap=3.0,
        alibi_slopes=_slopes(h),
        mask=bools(b, 1, m, n),
        bias=lambda i: i.plain(1, h, m, n, salt=4),
        sinks=lambda i: wide(i).plain(h, salt=5),
        gate=lambda i: i.plain(b, m, h, given.get("dv") or d, salt=6),
        q_documents=lambda i: _documents(b, n, 40)(i)[:, n - m :].contiguous(),
        k_documents=_documents(b, n, 40),
        dropout_p=0.2,
        seed=3,
        offset=5,
        return_lse=True,
        return_max_logits=True,
        **given,
    )


# --- layouts in memory ----------------------------------------------------------------------------


def _packed(i: Inputs) -> Named:
    """Views of one product, as a projection leaves them."""
    together = i.plain(2, 40, 3, 2, 64)
    q, k, v = together.unbind(2)
    return {"q": q, "k": k, "v": v, "scale": 0.125, "causal": True}


def _heads_first(i: Inputs) -> Named:
    made = heads(i, 2, 33, 40, 2, 64, return_lse=True)
    swapped = {name: made[name].transpose(1, 2).contiguous() for name in ("q", "k", "v")}
    return made | {name: x.transpose(1, 2) for name, x in swapped.items()}


def _expanded(i: Inputs) -> Named:
    made = heads(i, 1, 20, 40, 3, 32, kv=1)
    return made | {name: made[name].expand(1, 40, 3, 32) for name in ("k", "v")}


def _misaligned(i: Inputs) -> Named:
    made = heads(i, 1, 20, 24, 1, 32)
    return made | {
        "q": i.misaligned(1, 20, 1, 32, salt=1),
        "k": i.misaligned(1, 24, 1, 32, salt=2),
        "v": i.misaligned(1, 24, 1, 32, offset=3, salt=3),
        "gate": i.misaligned(1, 20, 1, 32, salt=4),
    }


def _columns(i: Inputs) -> Named:
    """Heads whose values are not contiguous."""
    made = heads(i, 1, 20, 24, 2, 16)
    turned = {name: made[name].transpose(2, 3).contiguous() for name in ("q", "k", "v")}
    return made | {name: x.transpose(2, 3) for name, x in turned.items()}


def _nan_behind(i: Inputs) -> Named:
    """Keys and values of a cache that is not full."""
    made = heads(i, 2, 10, 70, 1, 64)
    for name in ("k", "v"):
        cache = made[name].new_full((2, 96, 1, 64), math.nan)
        cache[:, :70] = made[name]
        made[name] = cache[:, :70]
    return made


def _scalar_bias(i: Inputs) -> Named:
    made = heads(i, 1, 5, 9, 2, 16)
    return made | {"bias": i.plain(), "mask": bools(9)(i)}


# --- samples --------------------------------------------------------------------------------------

_BOTH: Named = {"return_lse": True, "return_max_logits": True}


def _options_samples() -> tuple[Sample, ...]:
    return (
        Sample("everything, d 64", lambda i: everything(i, 2, 37, 70, 2, 64)),
        Sample("everything, d 40, values of 72", lambda i: everything(i, 1, 70, 70, 1, 40, dv=72)),
        _sample("softcap", 1, 20, 40, 2, 64, softcap=0.5, **_BOTH),
        _sample("ALiBi", 2, 30, 40, 2, 32, alibi_slopes=_slopes(2), causal=True),
        _sample(
            "ALiBi by sequence",
            2,
            9,
            70,
            2,
            16,
            alibi_slopes=lambda i: wide(i).plain(2, 2, scale=0.2, salt=4),
        ),
        _sample("mask", 2, 20, 70, 2, 32, mask=bools(2, 1, 20, 70), **_BOTH),
        _sample("mask of a head", 1, 20, 70, 2, 32, mask=bools(2, 20, 70, share=0.1), **_BOTH),
        _sample("bias", 2, 20, 70, 2, 32, bias=lambda i: i.randn(2, 2, 20, 70, salt=4)),
        _sample("bias of a key", 1, 20, 70, 2, 32, bias=lambda i: i.plain(1, 70, salt=4)),
        Sample("bias of one value, mask of a key", _scalar_bias),
        _sample("sinks", 1, 20, 40, 2, 64, sinks=lambda i: wide(i).plain(2, salt=4), **_BOTH),
        _sample(
            "sinks, fewer keys than queries",
            1,
            40,
            20,
            2,
            64,
            causal=True,
            sinks=lambda i: wide(i).plain(2, salt=4),
            **_BOTH,
        ),
        _sample("gate", 2, 20, 40, 2, 64, gate=lambda i: i.randn(2, 20, 2, 64, salt=4)),
        _sample(
            "documents",
            2,
            70,
            70,
            1,
            32,
            causal=True,
            q_documents=_documents(2, 70, 30),
            k_documents=_documents(2, 70, 30),
        ),
        _sample("tree", 2, 21, 90, 2, 32, tree=draft(2, 21), **_BOTH),
        _sample("tree of 64", 1, 64, 100, 1, 32, tree=draft(1, 64)),
        _sample("tree, fewer keys than queries", 1, 21, 8, 1, 32, tree=draft(1, 21)),
        _sample("dropout", 2, 20, 70, 2, 32, dropout_p=0.3, seed=7, offset=-2, return_lse=True),
        _sample("dropout of all", 1, 9, 20, 1, 32, dropout_p=1.0),
        _sample("negative scale", 1, 20, 40, 2, 32, scale=-0.2, **_BOTH),
        _sample("no scale", 1, 20, 40, 2, 32, scale=0.0),
    )


def _layout_samples() -> tuple[Sample, ...]:
    return (
        Sample("packed", _packed),
        Sample("heads first", _heads_first),
        Sample("expanded keys", _expanded),
        Sample("misaligned", _misaligned),
        Sample("columns", _columns),
        Sample("NaN behind the keys", _nan_behind),
    )


def few_queries() -> tuple[Sample, ...]:
    """Decoding, and drafted tokens: of each, the keys are many."""
    padding: Named = {"mask": bools(2, 1, 1, 200)}
    sinks: Named = {"sinks": lambda i: wide(i).plain(4, salt=4)}
    return (
        _sample("decoding, GQA", 2, 1, 200, 4, 64, kv=1, causal=True, return_lse=True),
        _sample("decoding, d 128", 1, 1, 300, 2, 128, causal=True),
        _sample("decoding, d 256", 1, 1, 150, 2, 256, kv=1),
        _sample("drafted, window", 1, 3, 260, 4, 32, kv=2, causal=True, window_left=150),
        _sample("32 queries of a head", 1, 16, 170, 2, 32, kv=1, causal=True, return_lse=True),
        _sample("padding", 2, 1, 200, 4, 32, kv=2, return_lse=True, **padding),
        _sample("a mask for each", 2, 3, 130, 4, 32, kv=2, mask=bools(2, 4, 3, 130, share=0.4)),
        _sample("padding, soft cap", 2, 2, 200, 4, 32, kv=2, softcap=2.0, **sinks, **padding),
        _sample("drafted tree", 1, 7, 140, 2, 32, tree=draft(1, 7), return_lse=True),
        _sample("nothing to see", 2, 1, 0, 2, 16, return_lse=True),
        _sample("nothing seen", 1, 2, 140, 2, 32, mask=bools(140, share=0.0), return_lse=True),
        _sample("ALiBi, negative scale, a tree beside a mask", 1, 5, 140, 2, 32, scale=-0.2,
                alibi_slopes=_slopes(2), tree=draft(1, 5), mask=bools(5, 140)),
        Sample("decoding, heads first", _decoding_heads_first),
    )  # fmt: skip


def _decoding_heads_first(i: Inputs) -> Named:
    """Keys as Hugging Face's caches have them, with room behind."""
    made = heads(i, 2, 2, 150, 4, 64, kv=2, causal=True)
    rooms = {name: i.plain(2, 2, 190, 64, salt=5 + salt) for salt, name in enumerate("kv")}
    return made | {name: x[:, :, :150].transpose(1, 2) for name, x in rooms.items()}


def _value_samples() -> tuple[Sample, ...]:
    return (
        Sample("outliers", lambda i: _outliers(i, 1, 65, 70, 1, 64, **_BOTH)),
        Sample("outliers, causal", lambda i: _outliers(i, 1, 65, 65, 1, 64, causal=True, **_BOTH)),
        _sample("scores times 100", 1, 40, 70, 1, 64, scale=12.5, **_BOTH),
        Sample("far from normal, d 256", lambda i: _heavy(i, 1, 17, 20, 1, 256)),
    )


#: Head dimensions of queries and keys, and of values.
DIMS = (
    (8, 8), (16, 16), (32, 32), (40, 40), (72, 72), (80, 80), (96, 96), (104, 64), (112, 112),
    (128, 128), (160, 160), (192, 128), (192, 192), (224, 224), (248, 256), (256, 256),
)  # fmt: skip
_LARGE_DIMS = (264, 320, 512, 1024)
#: Tokens of queries and keys.
_LENGTHS = (1, 3, 63, 64, 65, 127, 129)


def samples() -> tuple[Sample, ...]:
    return (
        _sample("", 1, 3, 5, 2, 8),
        _sample("causal", 1, 65, 65, 1, 64, causal=True, **_BOTH),
        _sample("GQA", 2, 17, 33, 4, 32, kv=2, return_lse=True),
        _sample("more keys, causal", 1, 33, 97, 1, 64, causal=True, return_lse=True),
        _sample("fewer keys, causal", 1, 70, 20, 1, 64, causal=True, **_BOTH),
        _sample("window", 1, 65, 90, 1, 64, window_left=20, window_right=7, return_lse=True),
        _sample("window, causal", 1, 129, 129, 1, 32, window_left=31, causal=True),
        _sample("window past the keys", 1, 70, 10, 1, 32, window_left=3, window_right=2, **_BOTH),
        *_options_samples(),
        *_value_samples(),
        *_layout_samples(),
        *(
            _sample("causal" if t % 2 else "", 1, 19, 37, 1, d, dv=dv, causal=t % 2 == 1)
            for t, (d, dv) in enumerate(DIMS)
        ),
        *(_sample("", 1, m, n, 1, 16) for m in _LENGTHS for n in dict.fromkeys((m, 129))),
        *(_sample("causal", 1, n, n, 1, 32, causal=True, **_BOTH) for n in _LENGTHS),
        _sample("MQA", 1, 20, 40, 4, 32, kv=1, causal=True),
        *(_sample("", 1, 5, 9, 1, d) for d in (3, 12, 65)),
        *(_sample("causal", 1, 7, 9, 1, d, causal=True, return_lse=True) for d in _LARGE_DIMS),
        _sample("no keys", 1, 5, 0, 2, 16, **_BOTH),
        _sample("no queries", 1, 0, 5, 2, 16, **_BOTH),
        _sample("no sequences", 0, 5, 5, 2, 16, **_BOTH),
        *(
            _sample("causal" if causal else "", 1, n, n, 2, d, causal=causal, small=False, **_BOTH)
            for n in (1000, 2049)
            for d in (64, 128, 256)
            for causal in (False, True)
        ),
        Sample("everything, 1000 of 2049", lambda i: everything(i, 1, 1000, 2049, 2, 128),
               small=False),
        _sample("window, causal", 1, 2049, 2049, 2, 128, window_left=300, causal=True, small=False),
        _sample("2^31 elements of keys", 1, 16, 2**20 + 1, 16, 128, kv=16, small=False, huge=True,
                dtypes=("bf16",)),
    )  # fmt: skip


# --- sequences of several lengths -----------------------------------------------------------------

#: Of 16 heads of 128 values, the second sequence begins past 2^31 elements.
PAST_2_31 = (2**20 + 1, 300)


def starts(*lengths: int) -> Make:
    def make(i: Inputs) -> Tensor:
        sums = [sum(lengths[:j]) for j in range(len(lengths) + 1)]
        return torch.tensor(sums, dtype=torch.int32, device=i.device)

    return make


def sequences(
    i: Inputs, m: tuple[int, ...], n: tuple[int, ...], h: int, d: int, **given: Any
) -> Named:
    kv, dv = given.pop("kv", h), given.pop("dv", d)
    made = {
        "q": i.plain(sum(m), h, d, salt=1),
        "k": i.plain(sum(n), kv, d, salt=2),
        "v": i.plain(sum(n), kv, dv, salt=3),
        "cu_seqlens_q": starts(*m)(i),
        "cu_seqlens_k": starts(*n)(i),
        "max_seqlen_q": max(m, default=0),
        "max_seqlen_k": max(n, default=0),
        "scale": d**-0.5,
    }
    return made | _made(given, i)


def _varlen(
    label: str,
    m: tuple[int, ...],
    n: tuple[int, ...],
    h: int,
    d: int,
    small: bool = True,
    **given: Any,
) -> Sample:
    return Sample(label, lambda i: sequences(i, m, n, h, d, **given), small)


def _varlen_everything(i: Inputs) -> Named:
    m, n = (30, 0, 7), (40, 5, 70)
    return sequences(
        i, m, n, 2, 64, causal=True, window_left=30, softcap=3.0, alibi_slopes=_slopes(2),
        mask=bools(3, 1, 30, 70), bias=lambda i: i.plain(1, 2, 30, 70, salt=4),
        sinks=lambda i: wide(i).plain(2, salt=5), gate=lambda i: i.plain(37, 2, 64, salt=6),
        q_documents=_documents(3, 30, 11), k_documents=_documents(3, 70, 11),
        dropout_p=0.2, seed=3, offset=5, **_BOTH,
    )  # fmt: skip


def _nan_beside(i: Inputs) -> Named:
    """A sequence between two others is NaN throughout."""
    made = sequences(i, (20, 9, 20), (25, 9, 30), 1, 64, **_BOTH)
    made["q"][20:29] = made["k"][25:34] = made["v"][25:34] = math.nan
    return made


def _varlen_packed(i: Inputs) -> Named:
    q, k, v = i.plain(50, 3, 2, 64).unbind(1)
    cu = starts(20, 30)(i)
    return {
        "q": q, "k": k, "v": v, "cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 30,
        "max_seqlen_k": 30, "scale": 0.125, "causal": True,
    }  # fmt: skip


def varlen_samples() -> tuple[Sample, ...]:
    some = (17, 1, 33)
    return (
        _varlen("17 1 33, d 64", some, some, 2, 64, return_lse=True),
        _varlen("17 1 33, d 32, causal, GQA", some, some, 4, 32, kv=2, causal=True, **_BOTH),
        _varlen("fewer and more keys, causal", (20, 9, 5), (3, 70, 5), 1, 64, causal=True, **_BOTH),
        _varlen("empty sequences", (0, 9, 0, 7, 0), (5, 0, 0, 9, 0), 1, 64, **_BOTH),
        _varlen("window", (40, 70), (50, 60), 1, 64, window_left=9, window_right=4),
        Sample("everything", _varlen_everything),
        Sample("NaN in another sequence", _nan_beside),
        Sample("packed", _varlen_packed),
        _varlen("longest named longer", (9, 20), (9, 20), 1, 64, max_seqlen_q=150, causal=True),
        _varlen("tree", (5, 5), (30, 9), 2, 32, tree=draft(2, 5)),
        _varlen("d 192, values of 128", (9, 20), (20, 9), 1, 192, dv=128),
        _varlen("d 256", (9, 20), (20, 9), 1, 256, causal=True),
        _varlen("d 12", (9, 20), (20, 9), 1, 12),
        _varlen("d 320", (2, 5), (5, 2), 1, 320),
        _varlen("no sequences", (), (), 2, 16, **_BOTH),
        _varlen("no tokens", (0, 0), (0, 0), 2, 16, **_BOTH),
        *(
            _varlen(f"1 1000 129 2049, d {d}{', causal' * causal}", lengths, lengths, 2, d, False,
                    causal=causal, **_BOTH)
            for lengths in ((1, 1000, 129, 2049),)
            for d in (64, 128, 256)
            for causal in (False, True)
        ),
        Sample("2^31 elements of keys", lambda i: sequences(i, (7, 9), PAST_2_31, 16, 128),
               small=False, huge=True, dtypes=("bf16",)),
    )  # fmt: skip


# --- properties -----------------------------------------------------------------------------------

_HEAD = "Tensor q, Tensor k, Tensor v, "
_VARLEN_HEAD = (
    f"{_HEAD}Tensor cu_seqlens_q, Tensor cu_seqlens_k, int max_seqlen_q, int max_seqlen_k, "
)


def in_order(schema: Any, named: Mapping[str, Any]) -> tuple[Any, ...]:
    """All arguments, in the schema's order."""
    return tuple(
        named.get(a.name, a.default_value if a.has_default_value() else None)
        for a in schema.arguments
    )


def positional(named: Named) -> tuple[Any, ...]:
    """Those of `flash_attention`."""
    schema = parse_schema(f"flash_attention({_HEAD}{options.OPTIONS}, {options.PROMISES}) -> ()")
    return in_order(schema, named)


def equal_keys_average(flash_attention: Any, inputs: Inputs) -> None:
    made = heads(inputs, 1, 9, 64, 2, 32)
    made["k"] = made["k"][:, :1].expand(1, 64, 2, 32)
    out = flash_attention(*positional(made))[0].double()
    mean = made["v"].double().mean(1, keepdim=True).expand_as(out)
    assert (out - mean).abs().max() <= 4 * torch.finfo(inputs.dtype).eps


def one_key_is_copied(flash_attention: Any, inputs: Inputs) -> None:
    made = heads(inputs, 2, 9, 1, 2, 32, return_lse=True)
    out, lse, _ = flash_attention(*positional(made))
    assert torch.equal(out, made["v"].expand_as(out))
    score = (made["q"].double() * made["k"].double()).sum(-1) * made["scale"]
    error = (lse.double() - score.transpose(1, 2)).abs().max()
    assert error <= 64 * torch.finfo(wide_dtype(inputs.dtype)).eps * score.abs().max().clamp(min=1)


def rows_alone(flash_attention: Any, inputs: Inputs) -> None:
    """A query has the same answer without those before it; on a GPU the same bits."""
    made = heads(inputs, 2, 90, 90, 2, 32, causal=True, batch_invariant=True)
    whole = flash_attention(*positional(made))[0]
    alone = flash_attention(
        *positional(
            made | {"q": made["q"][1:, 61:]} | {name: made[name][1:] for name in ("k", "v")}
        )
    )[0]
    if whole.is_cuda:
        assert torch.equal(whole[1:, 61:], alone)
    assert torch.allclose(whole[1:, 61:], alone, rtol=0, atol=4 * torch.finfo(inputs.dtype).eps)


def sequences_alone_as_promised(varlen: Any, inputs: Inputs) -> None:
    """Likewise, on a GPU with the same bits where the sequence is far from alone."""
    made = sequences(inputs, (20, 133, 7), (300, 190, 7), 2, 32, kv=1, causal=True)
    made |= {"window_left": 70, "batch_invariant": True}
    schema = parse_schema(f"varlen({_VARLEN_HEAD}{options.OPTIONS}, {options.PROMISES}) -> ()")

    def answer(given: Named) -> Tensor:
        found = varlen(*in_order(schema, given))[0]
        assert isinstance(found, Tensor)
        return found

    cu = {"cu_seqlens_q": starts(133)(inputs), "cu_seqlens_k": starts(190)(inputs)}
    most = {"max_seqlen_q": 133, "max_seqlen_k": 190}
    own = {"q": made["q"][20:153]} | {name: made[name][300:490] for name in ("k", "v")}
    whole, alone = answer(made)[20:153], answer(made | own | cu | most)
    if whole.is_cuda:
        assert torch.equal(whole, alone)
    assert torch.allclose(whole, alone, rtol=0, atol=4 * torch.finfo(inputs.dtype).eps)


def repeatable(flash_attention: Any, inputs: Inputs) -> None:
    arguments = positional(everything(inputs, 2, 37, 70, 2, 64))
    first = flash_attention(*arguments)
    for _ in range(3):
        for a, b in zip(first, flash_attention(*arguments), strict=True):
            assert torch.equal(a, b)


def sequences_alone(varlen: Any, inputs: Inputs) -> None:
    """A sequence has the answer that it has by itself."""
    made = sequences(inputs, (20, 33), (20, 33), 2, 32, causal=True)
    tail = (made["scale"], True)
    whole = varlen(*list(made.values())[:7], *tail)[0]
    own = [made[name][20:] for name in ("q", "k", "v")]
    cu = starts(33)(inputs)
    alone = varlen(*own, cu, cu, 33, 33, *tail)[0]
    if whole.is_cuda:
        assert torch.equal(whole[20:], alone)
    assert torch.allclose(whole[20:], alone, rtol=0, atol=4 * torch.finfo(inputs.dtype).eps)
