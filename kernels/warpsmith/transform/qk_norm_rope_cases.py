"""Calls on which qk_norm_rope and its gradients are tested and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.spec.spoilt import Spoiler
from warpsmith.transform import rope_cases as plain
from warpsmith.transform.rope_cases import Named

_Make = Callable[[Inputs], Named]


def _weighted(i: Inputs, given: Named, wide: bool = False) -> Named:
    """With weights; without what turns the other way round, which only rope does."""
    d = given["q"].shape[-1]
    of = Inputs(torch.float32, i.device, i.seed) if wide else i
    named = {"q_weight": of.randn(d, salt=11), "k_weight": of.randn(d, salt=12)}
    return {n: x for n, x in given.items() if n != "inverse"} | named


_LEFT_OUT = ("inverse", "inverse tables", "interleaved axes, tables", "transposed positions")


def _calls() -> dict[str, _Make]:
    made = {n: m for n, m in (plain.CALLS | plain.VIEWS).items() if n not in _LEFT_OUT}
    calls: dict[str, _Make] = {
        name: lambda i, make=make: _weighted(i, make(i))  # type: ignore[misc]
        for name, make in made.items()
    }
    return calls | {
        "weights in f32": lambda i: _weighted(i, plain.CALLS["turns"](i), wide=True),
        "large eps": lambda i: _weighted(i, plain.CALLS["tables"](i)) | {"eps": 0.5},
        "misaligned weights": lambda i: (
            _weighted(i, plain.CALLS["turns"](i)) | {"q_weight": i.misaligned(64)}
        ),
        "lanes that idle": lambda i: _weighted(
            i, plain.heads(i, 2, 5, 4, 2, 80) | {"turns": plain.turns(i, 40)}
        ),
        "a long head": lambda i: _weighted(
            i, plain.heads(i, 1, 3, 2, 1, 256) | {"turns": plain.turns(i, 128)}
        ),
    }


def samples() -> tuple[Sample, ...]:
    return (
        *(Sample(label, make) for label, make in _calls().items()),
        Sample("long", lambda i: _weighted(i, _long(i)), small=False),
        Sample("many tokens", lambda i: _weighted(i, _many(i)), small=False),
        Sample(
            "past 2^31 elements",
            lambda i: _weighted(
                i,
                plain.heads(i, 1, 2**20 + 9, 32, 1, 64, plain=True) | {"turns": plain.turns(i, 32)},
            ),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
    )


def _long(i: Inputs) -> Named:
    return plain.heads(i, 2, 300, 8, 2, 128) | {
        "turns": plain.turns(i, 64),
        "positions": plain.spread(i, 2, 300, 1_000_000),
    }


def _many(i: Inputs) -> Named:
    return plain.heads(i, 2, 2048, 32, 8, 128) | {"turns": plain.turns(i, 64)}


def _with_grads(i: Inputs, given: Named) -> Named:
    q, k = given["q"], given["k"]
    return given | {
        "grad_q": i.randn(*q.shape, salt=21),
        "grad_k": i.randn(*k.shape, salt=22),
    }


def _far_apart(i: Inputs) -> Named:
    """The first and the last heads of more values than that: as many gradients in f64, which they
    are judged by, would not fit a GPU.
    """

    def ends(salt: int) -> tuple[torch.Tensor, torch.Tensor]:
        made = i.plain(1, 2**20 + 9, 33, 64, salt=salt)
        return made[:, :, :2], made[:, :, -1:]

    (q, k), (grad_q, grad_k) = ends(1), ends(2)
    given = _weighted(i, {"q": q, "k": k, "turns": plain.turns(i, 32)})
    return given | {"grad_q": grad_q, "grad_k": grad_k}


def backward_samples() -> tuple[Sample, ...]:
    return (
        *(
            Sample(label, lambda i, make=make: _with_grads(i, make(i)))  # type: ignore[misc]
            for label, make in _calls().items()
        ),
        Sample(
            "gradients by head",
            lambda i: (
                _with_grads(i, _weighted(i, plain.CALLS["turns"](i)))
                | {"grad_q": i.randn(2, 4, 5, 64, salt=31).transpose(1, 2)}
            ),
        ),
        Sample(
            "misaligned gradients",
            lambda i: (
                _with_grads(i, _weighted(i, plain.CALLS["turns"](i)))
                | {"grad_k": i.misaligned(2, 5, 2, 64)}
            ),
        ),
        Sample("long", lambda i: _with_grads(i, _weighted(i, _long(i))), small=False),
        Sample("many tokens", lambda i: _with_grads(i, _weighted(i, _many(i))), small=False),
        Sample("past 2^31 elements", _far_apart, small=False, huge=True, dtypes=("f16",)),
    )


# --- wrong calls ----------------------------------------------------------------------------------


def _good(i: Inputs) -> Named:
    ones = lambda *shape: torch.ones(shape, device=i.device)  # noqa: E731
    return {
        "q": ones(2, 5, 4, 64),
        "k": ones(2, 5, 2, 64),
        "q_weight": ones(64),
        "k_weight": ones(64),
        "turns": plain.turns(i, 32),
    }


def _weight_errors(op: str, good: _Make) -> tuple[Bad, ...]:
    bad = Spoiler(op, good, "q")
    half = lambda n: lambda i: torch.ones(2, 5, n, 64, device=i.device).half()  # noqa: E731
    halves: Named = {"q": half(4), "k": half(2)}
    if op.endswith("_backward"):
        halves |= {"grad_q": half(4), "grad_k": half(2)}
    return (
        bad(
            "q_weight of another dtype",
            r"expected q_weight to have dtype torch\.float32 or that of q, torch\.float32, got "
            r"torch\.float64",
            q_weight=lambda i: torch.ones(64, device=i.device).double(),
        ),
        bad(
            "k_weight of another length",
            r"expected k_weight to have shape \(64,\), one value for each of a head, got \(32,\)",
            k_weight=lambda i: torch.ones(32, device=i.device),
        ),
        bad(
            "weights of two dtypes",
            r"expected k_weight to have dtype torch\.float32 like q_weight, got torch\.float16",
            k_weight=lambda i: torch.ones(64, device=i.device).half(),
            **halves,
        ),
        bad(
            "q_weight on the CPU",
            r"expected q_weight to be on cuda:\d+ like q, got cpu",
            cuda_only=True,
            q_weight=lambda i: torch.ones(64),
        ),
    )


def errors(op: str) -> tuple[Bad, ...]:
    bad = Spoiler(op, _good, "q")
    return (
        *plain.head_errors(op, _good),
        *_weight_errors(op, _good),
        *plain.angle_errors(op, _good),
        bad.refused(
            "misaligned weights",
            "needs weights aligned to 16 bytes",
            "f32x4_pack",
            q_weight=lambda i: torch.ones(65, device=i.device)[1:],
        ),
        bad.refused(
            "long heads",
            "needs heads of at most 1024 bytes",
            "f32x4_pack",
            q=lambda i: torch.ones(1, 2, 1, 512, device=i.device),
            k=lambda i: torch.ones(1, 2, 1, 512, device=i.device),
            q_weight=lambda i: torch.ones(512, device=i.device),
            k_weight=lambda i: torch.ones(512, device=i.device),
            turns=lambda i: plain.turns(i, 256),
        ),
    )


def backward_errors() -> tuple[Bad, ...]:
    op = "qk_norm_rope_backward"

    def good(i: Inputs) -> Named:
        given = _good(i)
        grads = {"grad_q": given["q"], "grad_k": given["k"]}
        return grads | given

    bad = Spoiler(op, good, "q")
    return (
        *_weight_errors(op, good),
        *plain.angle_errors(op, good),
        bad(
            "grad_q of another shape",
            r"expected grad_q to have shape \(2, 5, 4, 64\) like q, got \(2, 5, 3, 64\)",
            grad_q=lambda i: torch.ones(2, 5, 3, 64, device=i.device),
        ),
        bad(
            "grad_k of another dtype",
            r"expected grad_k to have dtype torch\.float32 like k, got torch\.float16",
            grad_k=lambda i: torch.ones(2, 5, 2, 64, device=i.device).half(),
        ),
        bad.refused(
            "misaligned gradients",
            "needs gradients aligned to 16 bytes",
            "f32x4_pack",
            grad_k=lambda i: torch.ones(2 * 5 * 2 * 64 + 1, device=i.device)[1:].view(2, 5, 2, 64),
        ),
    )


# --- benchmarks -----------------------------------------------------------------------------------


def _model(i: Inputs, tokens: int, batch: int = 1) -> Named:
    """Qwen3 8B."""
    given = plain.heads(i, batch, tokens, 32, 8, 128, plain=True)
    made = plain.tables(i, tokens, 64, base=1e6)
    weights: dict[str, Any] = {
        "q_weight": i.plain(128, salt=11),
        "k_weight": i.plain(128, salt=12),
    }
    return given | weights | {name: t[None] for name, t in made.items()}


_TOKENS = (512, 2048, 8192, 32768)


def bench() -> tuple[Sample, ...]:
    return (
        *(
            Sample(
                f"Qwen3 8B {n} tokens",
                lambda i, n=n: _model(i, n),  # type: ignore[misc]
                small=False,
                ladder=n == 8192,
            )
            for n in _TOKENS
        ),
        Sample("Qwen3 8B 32 x 1 tokens", lambda i: _model(i, 1, 32), small=False),
    )


def backward_bench() -> tuple[Sample, ...]:
    return tuple(
        Sample(
            f"Qwen3 8B {n} tokens",
            lambda i, n=n: _with_grads(i, _model(i, n)),  # type: ignore[misc]
            small=False,
            ladder=n == 8192,
        )
        for n in _TOKENS
    )
