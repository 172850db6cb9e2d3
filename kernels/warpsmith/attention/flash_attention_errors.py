"""Calls of attention that are refused, and with which words."""

from __future__ import annotations

import math

import torch

from warpsmith.attention.flash_attention_cases import Make, heads, sequences
from warpsmith.core.catalogue import Bad
from warpsmith.spec.spoilt import Spoiler


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
        spoil("cap of infinity", "expected softcap to be finite in float32, got inf",
              softcap=math.inf),
        spoil("heads of nothing", "expected q to have heads of at least one value, got shape ",
              q=lambda i: spoil.good(i)["q"][..., :0], k=lambda i: spoil.good(i)["k"][..., :0]),
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
