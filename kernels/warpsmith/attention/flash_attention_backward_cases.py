"""Calls on which gradients of attention are tested and measured: those of attention itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.attention import flash_attention_bench as timed
from warpsmith.attention import flash_attention_cases as forward
from warpsmith.attention import options, reference
from warpsmith.attention.flash_attention_cases import Make, Named
from warpsmith.core.arguments_by_name import Call
from warpsmith.core.catalogue import Bad, Inputs, Sample, parse_schema
from warpsmith.spec.checks import wide_dtype
from warpsmith.spec.peers import RetainedGraph
from warpsmith.spec.spoilt import Spoiler

#: What attention returns and promises beside its answer, of which its gradients know nothing.
_ASKED = ("return_lse", "return_max_logits")

# --- from a call of attention to one of its gradients ---------------------------------------------


def call_of(named: Named) -> Call:
    """A call of `flash_attention` or `flash_attention_varlen`, with the defaults of its options."""
    schema = parse_schema(f"options({options.OPTIONS}, {options.PROMISES}) -> ()")
    defaults = {
        a.name: a.default_value if a.has_default_value() else None for a in schema.arguments
    }
    given = defaults | named
    return Call(tuple(given), tuple(given.values()))


def gradient_of(made: Named, i: Inputs, upstream: Callable[..., Tensor] | None = None) -> Named:
    """What the gradients of a call are asked with: its answer, and a normal gradient of it; one of
    the log-sum-exp where the call returns that.
    """
    named = {name: x for name, x in made.items() if name not in _ASKED}
    q, v = made["q"], made["v"]
    shape = (*q.shape[:-1], v.shape[-1])
    varlen = q.dim() == 3
    tokens = (q.shape[1], q.shape[0]) if varlen else (q.shape[0], q.shape[2], q.shape[1])
    if q.is_meta:
        out, lse = q.new_empty(shape), q.new_empty(tokens, dtype=wide_dtype(q.dtype))
    else:
        answers = reference.attention_varlen if varlen else reference.attention
        out, lse, _ = answers(call_of(named | {"return_lse": True}))
    grad_lse = forward.wide(i).plain(*tokens, salt=12) if made.get("return_lse") else None
    return {
        "grad_out": (upstream or i.plain)(*shape, salt=11),
        "grad_lse": grad_lse,
        "out": options.empty_out(q, shape[-1]).copy_(out),
        "lse": lse,
    } | named


def _of(sample: Sample) -> Sample:
    return replace(sample, make=lambda i: gradient_of(sample.make(i), i))


def _sample(label: str, make: Callable[[Inputs], Named], small: bool = True) -> Sample:
    return Sample(label, lambda i: gradient_of(make(i), i), small)


# --- what gradients depend on and answers do not --------------------------------------------------


def _grad_expanded(i: Inputs) -> Named:
    """The gradient of a sum."""
    made = gradient_of(forward.heads(i, 1, 20, 30, 2, 64), i)
    return made | {"grad_out": i.plain().expand(1, 20, 2, 64)}


def _grad_heads_first(i: Inputs) -> Named:
    made = gradient_of(forward.heads(i, 2, 20, 30, 2, 64), i)
    turned = made["grad_out"].transpose(1, 2).contiguous().transpose(1, 2)
    return made | {"grad_out": turned}


def _no_bias_gradient(i: Inputs) -> Named:
    made = gradient_of(
        forward.heads(i, 1, 20, 30, 2, 64, bias=lambda i: i.plain(20, 30, salt=4)), i
    )
    return made | {"bias_gradient": False}


def _unordered(i: Inputs) -> Named:
    made = gradient_of(forward.heads(i, 1, 70, 200, 1, 64, causal=True), i)
    return made | {"deterministic": False}


def _nan_unseen(i: Inputs) -> Named:
    """NaN in a key and a value, beside queries that see nothing, whose gradients are zeros."""
    made = forward.heads(i, 1, 70, 20, 1, 64, causal=True)
    made["k"][:, 7, :, 9] = made["v"][:, 3, :, 5] = math.nan
    return gradient_of(made, i)


def _own_samples() -> tuple[Sample, ...]:
    def tiles(label: str, *sizes: int, **given: Any) -> Sample:
        return _sample(label, lambda i: forward.heads(i, *sizes, **given))

    return (
        tiles("three blocks of keys, causal", 1, 200, 300, 1, 64, causal=True, return_lse=True),
        tiles("three blocks of keys, window", 1, 200, 300, 1, 64, window_left=70, window_right=5),
        tiles("two blocks of keys, d 128, causal", 1, 150, 150, 1, 128, causal=True),
        tiles("d 96", 1, 100, 140, 2, 96, kv=1),
        tiles("d 256, two blocks, GQA, causal", 1, 100, 130, 2, 256, kv=1, causal=True),
        tiles("d 192, values of 128, window", 1, 90, 140, 1, 192, dv=128, window_left=50),
        Sample(
            "everything, d 160, gradients",
            lambda i: gradient_of(forward.everything(i, 1, 70, 140, 2, 160), i),
        ),
        tiles("d 320, GQA, causal", 1, 70, 90, 2, 320, kv=1, causal=True, return_lse=True),
        tiles("d 512", 1, 130, 70, 1, 512),
        Sample(
            "everything, d 264, gradients",
            lambda i: gradient_of(forward.everything(i, 1, 70, 90, 2, 264), i),
        ),
        tiles("d 768, window", 1, 40, 70, 1, 768, window_left=20, window_right=9),
        tiles("d 1024, causal", 1, 70, 70, 1, 1024, causal=True),
        tiles("GQA 4 of 2 blocks", 1, 90, 140, 8, 64, kv=2, causal=True),
        Sample("gradient of a sum", _grad_expanded),
        Sample("gradient with heads first", _grad_heads_first),
        Sample("no gradient of the bias", _no_bias_gradient),
        Sample("in any order", _unordered),
        Sample("NaN beside queries that see nothing", _nan_unseen),
    )


def _huge(label: str, make: Callable[[Inputs], Named]) -> Sample:
    """Of keys or of values alone: with their gradients in f64, both would take over 60 GB."""

    def gradient(i: Inputs) -> Named:
        return gradient_of(make(i), i)

    return Sample(label, gradient, small=False, huge=True, dtypes=("bf16",))


def samples() -> tuple[Sample, ...]:
    return (
        *_own_samples(),
        *(_of(sample) for sample in forward.samples() if not sample.huge),
        _huge("2^31 elements of keys", lambda i: forward.heads(i, 1, 16, 2**20 + 1, 16, 128, dv=8)),
    )


def varlen_samples() -> tuple[Sample, ...]:
    return (
        *(_of(sample) for sample in forward.varlen_samples() if not sample.huge),
        _huge(
            "2^31 elements of values",
            lambda i: forward.sequences(i, (7, 9), forward.PAST_2_31, 16, 8, dv=128),
        ),
    )


# --- bad calls ------------------------------------------------------------------------------------


def _answer_errors(spoil: Spoiler, rows: str, lse: str) -> tuple[Bad, ...]:
    def of(dtype: torch.dtype, *shape: int) -> Make:
        return lambda i: torch.ones(shape, dtype=dtype, device=i.device)

    f32, f64 = torch.float32, torch.float64
    return (
        spoil("answer of another shape",
              rf"expected out to have shape \({rows}\), that of the output, got \(3,\)",
              out=lambda i: i.plain(3)),
        spoil("gradient of another shape",
              rf"expected grad_out to have shape \({rows}\), that of the output, got \(3,\)",
              grad_out=lambda i: i.plain(3)),
        spoil("gradient of another dtype",
              r"expected grad_out to have dtype torch\.\w+ like q, got torch.float64",
              grad_out=of(f64, 3)),
        spoil("log-sum-exp of another dtype",
              "expected lse to have dtype torch.float32, got torch.float64", lse=of(f64, 3)),
        spoil("log-sum-exp of another shape",
              rf"expected lse to have shape \({lse}\), a value for each query and head, got \(3,\)",
              lse=of(f32, 3)),
        spoil("its gradient of another shape",
              rf"expected grad_lse to have shape \({lse}\), a value for each query and head, got "
              r"\(3,\)", grad_lse=of(f32, 3)),
        spoil("negative cap", "expected softcap not to be negative, got -1.5", softcap=-1.5),
        spoil("sinks of another shape",
              r"expected sinks to have shape \(4,\), the heads of q, got \(2,\)", sinks=of(f32, 2)),
        spoil("answer on the CPU", r"expected out to be on cuda:\d+ like q, got cpu", True,
              out=lambda i: spoil.good(i)["out"].cpu()),
    )  # fmt: skip


def errors() -> tuple[Bad, ...]:
    def good(i: Inputs) -> Named:
        return gradient_of(forward.heads(i, 2, 3, 5, 4, 16, kv=2, dv=8), i)

    spoil = Spoiler("flash_attention_backward", good, "q")
    return (
        *_answer_errors(spoil, "2, 3, 4, 8", "2, 4, 3"),
        spoil("heads that do not divide",
              "expected the heads of q to be a multiple of those of k, got 4 and 3",
              k=lambda i: i.plain(2, 5, 3, 16), v=lambda i: i.plain(2, 5, 3, 8)),
    )  # fmt: skip


def varlen_errors() -> tuple[Bad, ...]:
    def good(i: Inputs) -> Named:
        return gradient_of(forward.sequences(i, (3, 2), (5, 1), 4, 16, kv=2, dv=8), i)

    spoil = Spoiler("flash_attention_varlen_backward", good, "q")
    return (
        *_answer_errors(spoil, "5, 4, 8", "4, 5"),
        spoil("negative length", "expected max_seqlen_q not to be negative, got -1",
              max_seqlen_q=-1),
    )  # fmt: skip


# --- properties -----------------------------------------------------------------------------------

_HEAD = "Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse"


def positional(named: Mapping[str, Any]) -> tuple[Any, ...]:
    """All arguments of `flash_attention_backward` up to its options, in the schema's order."""
    schema = parse_schema(f"flash_attention_backward({_HEAD}, {options.OPTIONS}) -> ()")
    return forward.in_order(schema, named)


def repeatable(backward: Any, inputs: Inputs) -> None:
    made = forward.everything(inputs, 2, 37, 200, 2, 64)
    arguments = positional(gradient_of(made, inputs))
    first = backward(*arguments)
    for _ in range(3):
        for a, b in zip(first, backward(*arguments), strict=True):
            assert (a is None and b is None) or torch.equal(a, b)


def sequences_alone(backward: Any, inputs: Inputs) -> None:
    """A sequence has the gradients that it has by itself; on a GPU the same bits."""
    made = gradient_of(forward.heads(inputs, 3, 70, 190, 4, 64, kv=1, causal=True), inputs)
    tensors = {name: x for name, x in made.items() if isinstance(x, Tensor)}
    own = made | {name: x[1:2] for name, x in tensors.items()}
    promises = True, True  # deterministic, batch_invariant
    whole, alone = (backward(*positional(given), *promises)[:3] for given in (made, own))
    for a, b in zip(whole, alone, strict=True):
        if a.is_cuda:
            assert torch.equal(a[1:2], b)
        eps = 16 * torch.finfo(inputs.dtype).eps
        assert torch.allclose(a[1:2].double(), b.double(), rtol=eps, atol=eps)


def unseen_gets_nothing(backward: Any, inputs: Inputs) -> None:
    """Keys that nobody sees, and queries that see nothing."""
    made = forward.heads(inputs, 1, 50, 90, 2, 32, causal=True)
    seen = torch.ones(50, 90, dtype=torch.bool, device=inputs.device)
    seen[:, 20:70] = False
    seen[10:20] = False
    dq, dk, dv, *_ = backward(*positional(gradient_of(made | {"mask": seen}, inputs)))
    assert not dk[:, 20:70].any()
    assert not dv[:, 20:70].any()
    assert not dq[:, 10:20].any()
    assert dq[:, :10].any()
    assert dk[:, :20].any()


def constants_cancel(backward: Any, inputs: Inputs) -> None:
    """Where all values are the same, so are all answers, whatever the scores."""
    made = forward.heads(inputs, 1, 40, 70, 2, 32)
    made["v"] = made["v"][:, :1].expand(1, 70, 2, 32)
    dq, dk, *_ = backward(*positional(gradient_of(made, inputs)))
    scale = 64 * torch.finfo(inputs.dtype).eps
    assert dq.double().abs().max() < scale
    assert dk.double().abs().max() < 4 * scale


# --- what PyTorch offers --------------------------------------------------------------------------


def _plain(call: Call) -> bool:
    tensors = (call.alibi_slopes, call.mask, call.bias, call.sinks, call.gate, call.q_documents)
    extra = any(x is not None for x in (*tensors, call.tree, call.grad_lse))
    windowed = call.window_left >= 0 or call.window_right >= 0
    return not (extra or windowed or call.softcap or call.dropout_p)


def _forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.transpose(1, 2)


def _by(backend: str) -> Callable[[], Callable[..., Any]]:
    """The backward pass alone: the graph is made once for each input."""

    def factory() -> Callable[..., Any]:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        graph = RetainedGraph(_forward)

        def run(call: Call) -> Any:
            if not _plain(call) or (call.causal and call.q.shape[1] != call.k.shape[1]):
                raise NotImplementedError("PyTorch's has no such option")
            with sdpa_kernel(getattr(SDPBackend, backend)):
                found = graph(call.grad_out, call.q, call.k, call.v, call.causal, call.scale)
            return (*found, None, None, None, None)

        return run

    return factory


def eager(call: Call) -> Any:
    from warpsmith.attention import backward_reference

    return backward_reference.gradients(call)


def eager_varlen(call: Call) -> Any:
    from warpsmith.attention import backward_reference

    return backward_reference.gradients_varlen(call)


VARLEN_PEERS = {"compile": timed.compiled(eager_varlen)}
PEERS = {
    "compile": timed.compiled(eager),
    "sdpa_flash": _by("FLASH_ATTENTION"),
    "sdpa_efficient": _by("EFFICIENT_ATTENTION"),
    "sdpa_cudnn": _by("CUDNN_ATTENTION"),
}


# --- benchmarks -----------------------------------------------------------------------------------


def _in_any_order(sample: Sample) -> Sample:
    """With dq added up by atomics, as PyTorch's backends do it."""
    return Sample(
        f"{sample.label} in any order",
        lambda i: gradient_of(sample.make(i), i) | {"deterministic": False},
        small=False,
    )


def bench() -> tuple[Sample, ...]:
    plain = [_of(sample) for sample in timed.bench()]
    return (*plain, *(_in_any_order(sample) for sample in timed.of_peaks((2048, 8192))))


def varlen_bench() -> tuple[Sample, ...]:
    return tuple(_of(sample) for sample in timed.varlen_bench())
