"""RMS norm of the heads of queries and keys, then rotary positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import DTYPE_NAMES, PACK, Cost, Gradients, Op, Rung
from warpsmith.spec import memory, rotary
from warpsmith.spec.checks import check_device, check_like, shape_text
from warpsmith.spec.rows import address
from warpsmith.transform import qk_norm_rope_cases as cases
from warpsmith.transform import rope as plain

_OP, _BACKWARD = "qk_norm_rope", "qk_norm_rope_backward"
_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor q_weight, Tensor k_weight, Tensor? cos=None, Tensor? sin=None, "
    "Tensor? positions=None, Tensor? turns=None, Tensor? axes=None, float factor=1.0, "
    "bool interleaved=False, float eps=1e-06"
)


# --- checks and references ------------------------------------------------------------------------


def _check_weights(op: str, q: Tensor, q_weight: Tensor, k_weight: Tensor) -> None:
    for name, weight in (("q_weight", q_weight), ("k_weight", k_weight)):
        check_device(op, name, weight, q, "q")
        if weight.dtype not in (torch.float32, q.dtype):
            raise RuntimeError(
                f"{op}: expected {name} to have dtype torch.float32 or that of q, {q.dtype}, got "
                f"{weight.dtype}"
            )
        if tuple(weight.shape) != (q.shape[3],):
            raise RuntimeError(
                f"{op}: expected {name} to have shape ({q.shape[3]},), one value for each of a "
                f"head, got {shape_text(weight)}"
            )
    if k_weight.dtype != q_weight.dtype:
        raise RuntimeError(
            f"{op}: expected k_weight to have dtype {q_weight.dtype} like q_weight, got "
            f"{k_weight.dtype}"
        )


def _check(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    positions: Tensor | None,
    turns: Tensor | None,
    axes: Tensor | None,
) -> None:
    rotary.check_heads(_OP, q, k)
    _check_weights(_OP, q, q_weight, k_weight)
    rotary.check(_OP, q, cos, sin, positions, turns, axes)


def _check_backward(
    grad_q: Tensor,
    grad_k: Tensor,
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    positions: Tensor | None,
    turns: Tensor | None,
    axes: Tensor | None,
) -> None:
    rotary.check_heads(_BACKWARD, q, k)
    check_like(_BACKWARD, "grad_q", grad_q, q, "q")
    check_like(_BACKWARD, "grad_k", grad_k, k, "k")
    _check_weights(_BACKWARD, q, q_weight, k_weight)
    rotary.check(_BACKWARD, q, cos, sin, positions, turns, axes)


def _reference(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    positions: Tensor | None,
    turns: Tensor | None,
    axes: Tensor | None,
    factor: float,
    interleaved: bool,
    eps: float,
) -> tuple[Tensor, Tensor]:
    c, s = rotary.angles(_OP, q, cos, sin, positions, turns, axes, factor)

    def one(x: Tensor, weight: Tensor) -> Tensor:
        wide = x.to(c.dtype)
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return rotary.rotated(normal * weight.to(c.dtype), c, s, interleaved).to(x.dtype)

    return one(q, q_weight), one(k, k_weight)


def _reference_backward(
    grad_q: Tensor,
    grad_k: Tensor,
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    positions: Tensor | None,
    turns: Tensor | None,
    axes: Tensor | None,
    factor: float,
    interleaved: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    c, s = rotary.angles(_BACKWARD, q, cos, sin, positions, turns, axes, factor)

    def one(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        wide, g = x.to(c.dtype), rotary.rotated(grad.to(c.dtype), c, -s, interleaved)
        rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        normal, scaled = wide * rstd, g * weight.to(c.dtype)
        dx = (scaled - normal * (normal * scaled).mean(-1, keepdim=True)) * rstd
        return dx.to(x.dtype), (g * normal).sum((0, 1, 2)).to(weight.dtype)

    (dq, dq_weight), (dk, dk_weight) = one(grad_q, q, q_weight), one(grad_k, k, k_weight)
    return dq, dk, dq_weight, dk_weight


def _derivative(
    grad_q_out: Tensor | None,
    grad_k_out: Tensor | None,
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    positions: Tensor | None,
    turns: Tensor | None,
    axes: Tensor | None,
    factor: float,
    interleaved: bool,
    eps: float,
) -> Gradients:
    """No heads stand for an output that nobody used."""
    grads = [
        x[:, :, :0] if g is None else g
        for x, g in zip((q, k), (grad_q_out, grad_k_out), strict=True)
    ]
    heads = [
        x[:, :, :0] if g is None else x
        for x, g in zip((q, k), (grad_q_out, grad_k_out), strict=True)
    ]
    found = torch.ops.warpsmith.qk_norm_rope_backward(
        *grads, *heads, q_weight, k_weight, cos, sin, positions, turns, axes, factor, interleaved,
        eps,
    )  # fmt: skip
    names = ("q", "k", "q_weight", "k_weight")
    used = (grad_q_out, grad_k_out, grad_q_out, grad_k_out)
    return {
        name: None if g is None else x for name, g, x in zip(names, used, found, strict=True)
    }  # fmt: skip


# --- the ladders ----------------------------------------------------------------------------------


def _any(q: Tensor, k: Tensor) -> str | None:
    return plain.needs_rows(q, k)


def _lanes(q: Tensor, pairs: int) -> int:
    places, lanes = plain.places(q, pairs, in_place=False), 1
    while lanes < places:
        lanes *= 2
    return lanes


def _packs(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    turns: Tensor | None,
    axes: Tensor | None,
) -> str | None:
    if (why := plain.needs_packs(q, k, cos, sin, turns, axes)) or plain.is_empty(q, k):
        return why
    lanes = _lanes(q, rotary.pairs_of(cos, turns))
    if lanes > 32:
        return "needs heads of at most 1024 bytes"
    if any(w.is_contiguous() and address(w) % 16 for w in (q_weight, k_weight)):
        return "needs weights aligned to 16 bytes"
    rows = q.shape[0] * q.shape[1] * (q.shape[2] + k.shape[2])
    return None if rows * lanes < 2**31 else "needs less than 2^31 lanes of heads"


def _few_heads(q: Tensor, k: Tensor) -> str | None:
    if plain.is_empty(q, k):
        return None
    return None if q.shape[2] + k.shape[2] < 65536 else "needs less than 65536 heads"


def _packs_backward(
    grad_q: Tensor,
    grad_k: Tensor,
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    turns: Tensor | None,
    axes: Tensor | None,
) -> str | None:
    if (why := _few_heads(q, k)) or plain.is_empty(q, k):
        return why
    if why := _packs(q, k, q_weight, k_weight, cos, sin, turns, axes):
        return why
    width = PACK[DTYPE_NAMES[q.dtype]]
    for g in (grad_q, grad_k):
        if g.shape[2] and not rotary.in_packs(memory.as_kernels_get(g), 3, width):
            return "needs gradients aligned to 16 bytes"
    return None


def _wide(name: str, story: str, **more: Any) -> Rung:
    return Rung(name, story, width=PACK, pack=True, **more)


# --- the operators --------------------------------------------------------------------------------


def _bytes(
    q: Tensor, k: Tensor, q_weight: Tensor, cos: Tensor | None, sin: Tensor | None,
    positions: Tensor | None, turns: Tensor | None,
) -> int:  # fmt: skip
    weights = 2 * q_weight.numel() * q_weight.element_size()
    return plain.bytes_of(q, k, cos, sin, positions, turns) + weights


def _bytes_backward(
    q: Tensor, k: Tensor, q_weight: Tensor, cos: Tensor | None, sin: Tensor | None,
    positions: Tensor | None, turns: Tensor | None,
) -> int:  # fmt: skip
    grads = (q.numel() + k.numel()) * q.element_size()
    weights = 4 * q_weight.numel() * q_weight.element_size()
    return plain.bytes_of(q, k, cos, sin, positions, turns) + grads + weights


op = catalogue.add(
    Op(
        f"{_OP}({_ARGUMENTS}) -> (Tensor q_out, Tensor k_out)",
        family="transform",
        reference=_reference,
        ladder=(
            Rung("naive", "a block per token, a warp per head", when=_any),
            _wide("pack", "the lanes of a head hold it in registers", when=_packs),
            _wide(
                "stream",
                "lanes take their place in four heads: eight loads on their way",
                technique="stream",
                when=_packs,
                suits=plain.suits_stream,
            ),
        ),
        triton="qk_norm_rope_triton:qk_norm_rope",
        fake=lambda q, k: (memory.empty_rows_like(q), memory.empty_rows_like(k)),
        check=_check,
        backward=_derivative,
        samples=cases.samples(),
        errors=cases.errors(_OP),
        cost=Cost(bytes=_bytes, flops=lambda q, k: 8 * (q.numel() + k.numel())),
        bench=cases.bench(),
        bench_dtypes=("bf16", "f16"),
    )
)
op_backward = catalogue.add(
    Op(
        f"{_BACKWARD}(Tensor grad_q, Tensor grad_k, {_ARGUMENTS}) -> "
        "(Tensor dq, Tensor dk, Tensor dq_weight, Tensor dk_weight)",
        family="transform",
        source="qk_norm_rope/backward",
        reference=_reference_backward,
        ladder=(
            Rung("naive", "a block per head goes through tokens", when=_few_heads),
            _wide(
                "pack",
                "a head in the registers of its lanes, weights' gradients in those of a block",
                when=_packs_backward,
            ),
        ),
        triton="qk_norm_rope_triton:qk_norm_rope_backward",
        fake=lambda q, k, q_weight, k_weight: (
            memory.empty_rows_like(q),
            memory.empty_rows_like(k),
            q_weight.new_empty(q_weight.shape),
            k_weight.new_empty(k_weight.shape),
        ),
        check=_check_backward,
        samples=cases.backward_samples(),
        errors=cases.backward_errors(),
        cost=Cost(bytes=_bytes_backward, flops=lambda q, k: 20 * (q.numel() + k.numel())),
        bench=cases.backward_bench(),
        bench_dtypes=("bf16", "f16"),
    )
)
dispatch.register(op)
dispatch.register(op_backward)
_qk_norm_rope = dispatch.public(op)


def qk_norm_rope(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    positions: Tensor | None = None,
    turns: Tensor | None = None,
    axes: Tensor | None = None,
    factor: float = 1.0,
    interleaved: bool = False,
    eps: float = 1e-06,
    *,
    base: float | None = None,
    rotary_dim: int | None = None,
    variant: str | None = None,
) -> tuple[Tensor, Tensor]:
    """RMS norm of every head, then `rope`, in one launch: `rope(x / sqrt(mean(x^2) + eps) *
    weight)`, as in Qwen3.

    Args:
        q: [batch, tokens, heads, d], f32, f16 or bf16.
        k: [batch, tokens, heads of k, d], of the dtype of q.
        q_weight: [d], f32 or of the dtype of q.
        k_weight: [d], of the dtype of q_weight.
        cos: as in `rope`, as is what follows up to `interleaved`.
        sin: like `cos`.
        positions: of tokens.
        turns: in place of tables.
        axes: which of several positions a pair has.
        factor: of cosines and sines that come from turns.
        interleaved: pairs are neighbours.
        eps: added to the mean square of a head.
        base: as in `rope`.
        rotary_dim: as in `rope`.
        variant: one rung by name instead of the best one.

    Returns:
        q and k, with the strides of q and k where these are dense and their heads without gaps,
        else contiguous. Rounded once.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit; both tables and turns are given; a table
            requires a gradient.
        IndexError: on a CPU, as `rope` does; on a GPU the kernel ends with a message.
        ValueError: the variant does not exist; base or rotary_dim come beside tables or turns; base
            is not above 0, or an odd number of values would turn.
        TypeError: base or rotary_dim are no numbers.

    Reference:
        Qwen3 2025, https://arxiv.org/abs/2505.09388; Zhang & Sennrich 2019, "Root Mean Square Layer
        Normalization", https://arxiv.org/abs/1910.07467; Su et al. 2021,
        https://arxiv.org/abs/2104.09864.
    """
    turns, positions = rotary.given(_OP, q, cos, positions, turns, axes, base, rotary_dim)
    rotary.require_constants(_OP, cos=cos, sin=sin)
    return _qk_norm_rope(
        variant, q, k, q_weight, k_weight, cos, sin, positions, turns, axes, factor, interleaved,
        eps,
    )  # fmt: skip
