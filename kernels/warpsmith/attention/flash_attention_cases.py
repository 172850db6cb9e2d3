"""Calls on which attention is tested and measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.attention import options, reference
from warpsmith.core.arguments_by_name import Call
from warpsmith.core.catalogue import Bad, Inputs, Sample, parse_schema
from warpsmith.spec.checks import wide_dtype
from warpsmith.spec.spoilt import Spoiler

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
    return Sample(f"{text}, {label}" if label else text, make, small, huge, dtypes)


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
    """Heads whose values do not lie side by side."""
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
    )  # fmt: skip


# --- bad calls ------------------------------------------------------------------------------------


def _shared_errors(op: str, spoil: Spoiler, b: int, m: int, n: int) -> tuple[Bad, ...]:
    """Of an operator whose good call has 4 heads of queries and 2 of keys, d 16, values of 8."""

    def of(dtype: torch.dtype, *shape: int) -> Make:
        return lambda i: torch.ones(shape, dtype=dtype, device=i.device)

    half, f32, i32, i64 = torch.float16, torch.float32, torch.int32, torch.int64
    scores = rf"\({b}, 4, {m}, {n}\)"
    return (
        spoil.integers(),
        spoil("fp8 queries",
              "expected q to have at least 16 bits an element, got torch.float8_e4m3fn",
              q=lambda i: spoil.good(i)["q"].to(torch.float8_e4m3fn)),
        spoil("keys of another dtype",
              r"expected k to have dtype torch\.\w+ like q, got torch.float64",
              k=lambda i: spoil.good(i)["k"].double()),
        spoil("values of another dtype",
              r"expected v to have dtype torch\.\w+ like q, got torch.float64",
              v=lambda i: spoil.good(i)["v"].double()),
        spoil("window on the left", r"expected window_left to be -1 \(no limit\) or more, got -2",
              window_left=-2),
        spoil("window on the right", r"expected window_right to be -1 \(no limit\) or more, got -7",
              window_right=-7),
        spoil("negative cap", "expected softcap not to be negative, got -1.5", softcap=-1.5),
        spoil("cap of NaN", "expected softcap not to be negative, got -?nan", softcap=math.nan),
        spoil("slopes of another dtype",
              r"expected alibi_slopes to have dtype torch.float32, got torch.float16",
              alibi_slopes=of(half, 4)),
        spoil("slopes of another shape",
              rf"expected alibi_slopes to have shape \(4,\) or \({b}, 4\), got \(3,\)",
              alibi_slopes=of(f32, 3)),
        spoil("mask of floats", "expected mask to have dtype torch.bool, got torch.float32",
              mask=of(f32, m, n)),
        spoil("mask of another shape",
              rf"expected mask to be broadcastable to the shape {scores} of the scores, "
              rf"got \({m}, {n + 1}\)", mask=of(torch.bool, m, n + 1)),
        spoil("bias of another dtype", r"expected bias to have dtype torch\.\w+, got torch.float64",
              bias=of(torch.float64, m, n)),
        spoil("bias of five dimensions",
              rf"expected bias to be broadcastable to the shape {scores} of the scores, got "
              rf"\(1, 1, 1, {m}, {n}\)", bias=lambda i: i.plain(1, 1, 1, m, n)),
        spoil("sinks of another dtype",
              "expected sinks to have dtype torch.float32, got torch.int32", sinks=of(i32, 4)),
        spoil("sinks of another shape",
              r"expected sinks to have shape \(4,\), the heads of q, got \(2,\)", sinks=of(f32, 2)),
        spoil("gate of another dtype", r"expected gate to have dtype torch\.\w+ like q, got "
              "torch.float64", gate=lambda i: spoil.good(i)["q"].double()),
        spoil("gate of another shape", r"expected gate to have shape \(.*8\), that of the output, "
              r"got \(.*16\)", gate=lambda i: spoil.good(i)["q"]),
        spoil("documents of queries alone",
              "expected both q_documents and k_documents or neither", q_documents=of(i32, b, m)),
        spoil("documents of another dtype",
              "expected q_documents to have dtype torch.int32, got torch.int64",
              q_documents=of(i64, b, m), k_documents=of(i32, b, n)),
        spoil("documents of another shape",
              rf"expected k_documents to have shape \({b}, {n}\), the tokens of each sequence, "
              rf"got \({n},\)", q_documents=of(i32, b, m), k_documents=of(i32, n)),
        spoil("tree of another dtype", "expected tree to have dtype torch.int64, got torch.int32",
              tree=of(i32, b, m)),
        spoil("tree of another shape",
              rf"expected tree to have shape \({b}, {m}\), the queries of each sequence, "
              rf"got \({b}, {m + 1}\)", tree=of(i64, b, m + 1)),
        spoil("dropout above 1", "expected dropout_p to be between 0 and 1, got 1.5",
              dropout_p=1.5),
        spoil("keys on the CPU", r"expected k to be on cuda:\d+ like q, got cpu", True,
              k=lambda i: spoil.good(i)["k"].cpu()),
    )  # fmt: skip


def errors() -> tuple[Bad, ...]:
    spoil = Spoiler("flash_attention", lambda i: heads(i, 2, 3, 5, 4, 16, kv=2, dv=8), "q")
    return (
        *_shared_errors("flash_attention", spoil, 2, 3, 5),
        spoil("three dimensions", r"expected q to have 4 dimensions, got shape \(3, 4, 16\)",
              q=lambda i: i.plain(3, 4, 16)),
        spoil("another batch", r"expected k to have the batch and the last dimension of q, "
              r"got \(3, 5, 2, 16\) and \(2, 3, 4, 16\)", k=lambda i: i.plain(3, 5, 2, 16)),
        spoil("another head dimension", "expected k to have the batch and the last dimension of q",
              k=lambda i: i.plain(2, 5, 2, 8)),
        spoil("other values", "expected v to have the shape of k but for the last dimension, "
              r"got \(2, 4, 2, 8\) and \(2, 5, 2, 16\)", v=lambda i: i.plain(2, 4, 2, 8)),
        spoil("heads that do not divide",
              "expected the heads of q to be a multiple of those of k, got 4 and 3",
              k=lambda i: i.plain(2, 5, 3, 16), v=lambda i: i.plain(2, 5, 3, 8)),
        spoil("too many tokens",
              r"expected fewer than 2\^30 tokens in a sequence, got 1073741824",
              q=lambda i: i.plain(2, 1, 4, 16).expand(2, 2**30, 4, 16)),
        spoil("a tree of 65", "expected at most 64 queries beside a tree, got 65",
              q=lambda i: i.plain(2, 65, 4, 16),
              tree=lambda i: torch.ones(2, 65, dtype=torch.int64, device=i.device)),
    )  # fmt: skip


def varlen_errors() -> tuple[Bad, ...]:
    op = "flash_attention_varlen"
    spoil = Spoiler(op, lambda i: sequences(i, (3, 2), (5, 1), 4, 16, kv=2, dv=8), "q")

    def cu(*shape: int, dtype: torch.dtype = torch.int32) -> Make:
        return lambda i: torch.zeros(shape, dtype=dtype, device=i.device)

    return (
        *_shared_errors(op, spoil, 2, 3, 5),
        spoil("four dimensions", r"expected q to have 3 dimensions, got shape \(1, 3, 4, 16\)",
              q=lambda i: i.plain(1, 3, 4, 16)),
        spoil("another head dimension", r"expected k to have the last dimension of q, "
              r"got \(6, 2, 8\) and \(5, 4, 16\)", k=lambda i: i.plain(6, 2, 8)),
        spoil("other values", "expected v to have the shape of k but for the last dimension, "
              r"got \(5, 2, 8\) and \(6, 2, 16\)", v=lambda i: i.plain(5, 2, 8)),
        spoil("heads that do not divide",
              "expected the heads of q to be a multiple of those of k, got 4 and 3",
              k=lambda i: i.plain(6, 3, 16), v=lambda i: i.plain(6, 3, 8)),
        spoil("int64 starts", "expected cu_seqlens_q to have dtype torch.int32, got torch.int64",
              cu_seqlens_q=cu(3, dtype=torch.int64)),
        spoil("2-d starts",
              r"expected cu_seqlens_k to have shape \(sequences \+ 1,\), got \(1, 3\)",
              cu_seqlens_k=cu(1, 3)),
        spoil("no starts", r"expected cu_seqlens_q to have shape \(sequences \+ 1,\), got \(0,\)",
              cu_seqlens_q=cu(0)),
        spoil("more sequences of keys",
              "expected as many sequences of queries as of keys, got 2 and 3", cu_seqlens_k=cu(4)),
        spoil("negative length", "expected max_seqlen_q not to be negative, got -1",
              max_seqlen_q=-1),
        spoil("a tree of 65", "expected at most 64 queries beside a tree, got 65", max_seqlen_q=65,
              tree=lambda i: torch.ones(2, 65, dtype=torch.int64, device=i.device)),
    )  # fmt: skip


# --- properties -----------------------------------------------------------------------------------

_HEAD = "Tensor q, Tensor k, Tensor v, "


def positional(named: Named) -> tuple[Any, ...]:
    """All arguments of `flash_attention`, in the schema's order."""
    schema = parse_schema(f"flash_attention({_HEAD}{options.OPTIONS}, {options.PROMISES}) -> ()")
    return tuple(
        named.get(a.name, a.default_value if a.has_default_value() else None)
        for a in schema.arguments
    )


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


PEERS = {
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
        out = varlen_attn(
            call.q, call.k, call.v, call.cu_seqlens_q, call.cu_seqlens_k, call.max_seqlen_q,
            call.max_seqlen_k, scale=call.scale, window_size=window,
            enable_gqa=call.q.shape[1] != call.k.shape[1],
        )  # fmt: skip
        return out, None, None

    return run


VARLEN_PEERS = {"varlen_attn": _varlen_attn}


def eager_varlen(call: Call) -> Any:
    return reference.attention_varlen(call)


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


def bench() -> tuple[Sample, ...]:
    lengths = (512, 1024, 2048, 4096, 8192, 16384)
    return (
        *(
            _bench(d, n, causal, ladder=n == 4096 and not causal and d < 256)
            for d in (64, 128, 256)
            for causal in (False, True)
            for n in lengths
        ),
        *(_bench(d, n, causal) for d in (96, 192) for causal in (False, True) for n in (4096,)),
        _bench(192, 4096, True, " values of 128", dv=128),
        *(
            _bench(d, n, causal)
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
