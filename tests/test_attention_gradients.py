"""Gradients of attention: that their reference is what autograd finds in that of the answer, and
that they come back through the public functions.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import warpsmith
from warpsmith.attention import backward_reference, reference
from warpsmith.attention import flash_attention_backward_cases as cases
from warpsmith.attention import flash_attention_cases as forward
from warpsmith.core import catalogue, dispatch
from warpsmith.core.arguments_by_name import Call
from warpsmith.core.catalogue import Inputs, Sample
from warpsmith.proof.verify.gradients import judge_gradients
from warpsmith.proof.verify.run import Run

F64 = Inputs(torch.float64)
LEAVES = ("q", "k", "v", "bias", "sinks", "alibi_slopes", "gate")


def few(samples: tuple[Sample, ...]) -> list[Any]:
    """Those that are differentiable with ease: no NaN, and not long."""
    return [
        pytest.param(s, id=s.label)
        for s in samples
        if s.small and not any(word in s.label for word in ("NaN", "outliers", "no "))
    ]


def by_autograd(named: dict[str, Any], varlen: bool) -> tuple[Tensor | None, ...]:
    """In the order of the outputs of `flash_attention_backward`."""
    leaves = {
        name: named[name].detach().clone().requires_grad_()
        for name in LEAVES
        if named.get(name) is not None
    }
    given = {n: x for n, x in named.items() if n not in ("grad_out", "grad_lse", "out", "lse")}
    given.pop("bias_gradient", None)
    call = cases.call_of(given | leaves | {"return_lse": True})
    with torch.enable_grad():
        out, lse, _ = (reference.attention_varlen if varlen else reference.attention)(call)
    outs, grads = [out], [named["grad_out"]]
    if named["grad_lse"] is not None:
        # where a query sees nothing, the log-sum-exp is -inf and has no gradient
        outs.append(lse.masked_fill(lse == -torch.inf, 0.0))
        grads.append(named["grad_lse"])
    found = torch.autograd.grad(outs, list(leaves.values()), grads, allow_unused=True)
    return tuple(dict(zip(leaves, found, strict=True)).get(name) for name in LEAVES)


def check(named: dict[str, Any], varlen: bool) -> None:
    op = "flash_attention_varlen_backward" if varlen else "flash_attention_backward"
    names, defaults = catalogue.get(op).argument_names, catalogue.get(op).defaults
    given = dict(zip(names, defaults, strict=True)) | named
    ours = (backward_reference.gradients_varlen if varlen else backward_reference.gradients)(
        Call(tuple(given), tuple(given.values()))
    )
    for name, a, b in zip(LEAVES, ours, by_autograd(named, varlen), strict=True):
        if a is None or (b is None and not a.any()):
            continue
        assert b is not None, name
        error = (a - b).abs().max() if a.numel() else 0.0
        assert error <= 1e-9 * max(1.0, float(b.abs().max() if b.numel() else 0.0)), name


@pytest.mark.parametrize("sample", few(cases.samples()))
def test_reference_is_what_autograd_finds(sample: Sample) -> None:
    if "no gradient of the bias" in sample.label:
        return
    check(sample.make(F64), varlen=False)


@pytest.mark.parametrize("sample", few(cases.varlen_samples()))
def test_reference_of_sequences_is_what_autograd_finds(sample: Sample) -> None:
    check(sample.make(F64), varlen=True)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_gradients_come_back(layout: str) -> None:
    made = forward.everything(F64, 2, 17, 30, 2, 16)
    given = {n: made[n].clone().requires_grad_() for n in LEAVES}
    names = ("q", "k", "v", "gate")
    shown = {n: x.transpose(1, 2) if layout == "bhsd" and n in names else x
             for n, x in given.items()}  # fmt: skip
    rest = {n: x for n, x in made.items() if n not in LEAVES}
    window = rest.pop("window_left"), -1
    positional = tuple(shown.pop(n) for n in ("q", "k", "v"))
    out, lse, most = warpsmith.flash_attention(
        *positional, **shown, **rest, window=window, layout=layout
    )
    assert not most.requires_grad
    up, up_lse = torch.randn_like(out), torch.randn_like(lse)
    seen = lse > -torch.inf
    ((out * up).sum() + (lse[seen] * up_lse[seen]).sum()).backward()
    upstream = up.transpose(1, 2) if layout == "bhsd" else up
    named = made | {"grad_out": upstream, "grad_lse": up_lse, "out": None, "lse": None}
    named = {n: x for n, x in named.items() if n not in ("return_lse", "return_max_logits")}
    for name, wanted in zip(LEAVES, by_autograd(named, varlen=False), strict=True):
        got = given[name].grad
        assert got is not None
        assert wanted is not None
        assert torch.allclose(got, wanted, rtol=1e-9, atol=1e-9), name


def test_gradients_of_sequences_come_back() -> None:
    made = forward.sequences(F64, (7, 3), (9, 5), 2, 16, causal=True)
    q, k, v = (made[n].clone().requires_grad_() for n in ("q", "k", "v"))
    lengths = [made[n] for n in ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")]
    out = warpsmith.flash_attention_varlen(q, k, v, *lengths, causal=True)
    up = torch.randn_like(out)
    out.backward(up)
    named = made | {"grad_out": up, "grad_lse": None, "out": None, "lse": None}
    for x, wanted in zip((q, k, v), by_autograd(named, varlen=True), strict=False):
        assert wanted is not None
        assert torch.allclose(x.grad, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.gpu
def test_a_captured_call_of_sequences_serves_other_lengths() -> None:
    """Forward and backward in one graph; only the starts of the sequences change."""
    random = torch.Generator("cuda").manual_seed(0)
    made = {"device": "cuda", "dtype": torch.bfloat16, "generator": random}
    q, k, v = (torch.randn(700, heads, 64, **made).requires_grad_() for heads in (4, 2, 2))
    up = torch.randn(700, 4, 64, **made)
    starts = torch.tensor([0, 300, 300, 700], dtype=torch.int32, device="cuda")

    def step() -> tuple[Tensor, ...]:
        out = warpsmith.flash_attention_varlen(q, k, v, starts, starts, 700, 700, causal=True)
        return (out.detach(), *torch.autograd.grad(out, (q, k, v), up))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for middle in ((1, 2), (700, 700), (0, 0), (64, 129), (300, 300)):
        starts[1:3].copy_(torch.tensor(middle))
        graph.replay()
        assert all(map(torch.equal, captured, step())), middle


def test_gradcheck() -> None:
    q, k, v = (torch.randn(1, n, 2, 4, dtype=torch.float64, requires_grad=True) for n in (3, 5, 5))
    sinks = torch.randn(2, dtype=torch.float64, requires_grad=True)

    def run(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Any:
        return warpsmith.flash_attention(q, k, v, sinks=sinks, softcap=2.0, causal=True,
                                         return_lse=True)  # fmt: skip

    assert torch.autograd.gradcheck(run, (q, k, v, sinks))


def recomputing(off: float) -> Any:
    """`flash_attention` whose two passes add up the products of a score in other orders; the
    log-sum-exps that the second one gets are too large by that share.
    """
    op = catalogue.get("flash_attention")
    backward = catalogue.get("flash_attention_backward")

    def halves(q: Tensor, k: Tensor) -> Tensor:
        half = q.shape[-1] // 2
        first, second = (reference.wide_product(q[..., at], k[..., at])
                         for at in (slice(half), slice(half, None)))  # fmt: skip
        return second + first

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, given: dict[str, Any]) -> Any:
            named = given | {"q": q, "k": k, "v": v}
            out, lse, _ = reference.attend_heads(Call(tuple(named), tuple(named.values())), halves)
            assert lse is not None
            ctx.save_for_backward(out, lse)
            ctx.given = named
            return out, lse

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            out, lse = ctx.saved_tensors
            told = {n: x for n, x in ctx.given.items() if n in backward.argument_names}
            named = dict(zip(backward.argument_names, backward.defaults, strict=True)) | told
            named |= {"grad_out": grads[0], "grad_lse": grads[1], "out": out}
            named |= {"lse": lse * (1 + off)}
            found = backward_reference.gradients(Call(tuple(named), tuple(named.values())))
            return (*found[:3], None)

    def run(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
        given = dict(zip(op.argument_names, (q, k, v, *rest), strict=True))
        return (*Attention.apply(q, k, v, given), None)

    return run


def scores_of_hundreds(dtype: str) -> tuple[Run, tuple[Any, ...], str]:
    op = catalogue.get("flash_attention")
    (sample,) = [s for s in op.samples_for(dtype) if "scores times 100" in s.label]
    run = Run(op, torch.device("cpu"), frozenset({"gradients"}), (dtype,), [])
    args = dispatch.normalise(op, sample.make(op.inputs(dtype, "cpu")))
    return run, args, f"{dtype} {sample}"


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_scores_are_computed_again_with_roundings_of_their_own(dtype: str) -> None:
    run, args, label = scores_of_hundreds(dtype)
    judge_gradients(run, recomputing(0.0), args, label)


def test_a_log_sum_exp_of_fewer_bits_is_found_out() -> None:
    run, args, label = scores_of_hundreds("f32")
    with pytest.raises(AssertionError, match="gradient of q"):
        judge_gradients(run, recomputing(2.0**-20), args, label)
