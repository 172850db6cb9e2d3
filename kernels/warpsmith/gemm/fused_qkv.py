"""The projections of attention in one product, each head written where attention reads it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.core import autocast, catalogue, dispatch, into, messages, public_calls, sharded
from warpsmith.core.catalogue import Cost, Gradients, Needs, Op, PartCall, Property
from warpsmith.gemm import fused_cases as cases
from warpsmith.gemm.activations import check_bias, check_weight, deal_out, heads_of, sums
from warpsmith.gemm.fused_problem import FusedProblem, ladder, of_layer
from warpsmith.gemm.linear_epilogue import (
    is_on_gpu,
    is_proven,
    parameter_gradients,
    serves,
    suits,
)
from warpsmith.gemm.matmul import check_operand, moved_bytes, operations
from warpsmith.spec import references
from warpsmith.spec.checks import shape_text

_OP = "fused_qkv"
_LAYOUTS = ("bshd", "bhsd")


def _check(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    heads: int,
    kv_heads: int,
    head_dim: int,
    layout: str,
) -> None:
    check_operand(_OP, "x", x, 1)
    if x.dim() != 3:
        raise RuntimeError(f"{_OP}: expected x to be 3-D, got shape {shape_text(x)}")
    check_weight(_OP, "weight", weight, x)
    if min(heads, kv_heads, head_dim) < 1:
        raise RuntimeError(f"{_OP}: expected heads, kv_heads and head_dim to be at least 1")
    n = (heads + 2 * kv_heads) * head_dim
    if weight.shape[0] != n:
        raise RuntimeError(
            f"{_OP}: expected weight to have {n} rows, those of all heads of q, k and v, "
            f"got shape {shape_text(weight)}"
        )
    check_bias(_OP, "bias", bias, x, n)
    if layout not in _LAYOUTS:
        raise RuntimeError(f"{_OP}: expected layout to be 'bshd' or 'bhsd', got '{layout}'")


def _eager(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    heads: int,
    kv_heads: int,
    head_dim: int,
    layout: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """As PyTorch users write it, with the copies that another kernel would make."""
    fits = bias is None or bias.dtype == x.dtype
    columns = F.linear(x, weight, bias if fits else None)
    if bias is not None and not fits:
        columns = (columns + bias).to(x.dtype)
    return deal_out(columns, heads, kv_heads, head_dim, layout)


@references.written_as(_eager)
def _reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    heads: int,
    kv_heads: int,
    head_dim: int,
    layout: str,
) -> tuple[Tensor, Tensor, Tensor]:
    return deal_out(sums(x, weight, bias).to(x.dtype), heads, kv_heads, head_dim, layout)


def _fake(
    x: Tensor, heads: int, kv_heads: int, head_dim: int, layout: str
) -> tuple[Tensor, Tensor, Tensor]:
    batch, tokens, _ = x.shape

    def empty(count: int) -> Tensor:
        sizes = (tokens, count) if layout == "bshd" else (count, tokens)
        return x.new_empty((batch, *sizes, head_dim))

    return empty(heads), empty(kv_heads), empty(kv_heads)


def _problem(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *_: Any,
) -> FusedProblem:
    return of_layer(x, weight, "heads", head_size=head_dim)


def _derivative(
    grad_q: Tensor | None,
    grad_k: Tensor | None,
    grad_v: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    heads: int,
    kv_heads: int,
    head_dim: int,
    layout: str,
    needs: Needs,
) -> Gradients:
    batch, tokens, _ = x.shape

    def columns(grad: Tensor | None, count: int) -> Tensor:
        if grad is None:
            return x.new_zeros((batch, tokens, count * head_dim))
        return (grad.transpose(1, 2) if layout == "bhsd" else grad).flatten(2)

    parts = (columns(grad_q, heads), columns(grad_k, kv_heads), columns(grad_v, kv_heads))
    grad = torch.cat(parts, -1)
    found: dict[str, Tensor | None] = {}
    if "x" in needs:
        found["x"] = torch.ops.warpsmith.matmul(grad, weight)
    found["weight"], found["bias"] = parameter_gradients(
        grad, x, bias if "bias" in needs else None, "weight" in needs
    )
    return found


def _bytes(x: Tensor, weight: Tensor, bias: Tensor | None) -> int:
    more = 0 if bias is None else bias.numel() * bias.element_size()
    return moved_bytes(x, weight.t()) + more


fused_qkv_op = catalogue.add(
    Op(
        "fused_qkv(Tensor x, Tensor weight, Tensor? bias, int heads, int kv_heads, int head_dim, "
        'str layout="bshd") -> (Tensor q, Tensor k, Tensor v)',
        family="gemm",
        source="fused_linear",
        reference=_reference,
        eager=_eager,
        ladder=ladder(_problem),
        triton="fused_linear_triton:fused_qkv",
        fake=_fake,
        check=_check,
        backward=_derivative,
        samples=cases.qkv_samples(),
        errors=cases.QKV_ERRORS,
        properties=(Property("deterministic", cases.qkv_deterministic),),
        cost=Cost(bytes=_bytes, flops=lambda x, weight: operations(x, weight.t())),
        bench=cases.qkv_bench(),
        bench_dtypes=("bf16",),
    )
)
dispatch.register(fused_qkv_op)
_run = dispatch.public(fused_qkv_op)
_into = into.register(fused_qkv_op)
_PROVEN = is_proven(fused_qkv_op)
_KINDS = messages.kinds_of(fused_qkv_op.parsed)


def fused_qkv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    heads: int,
    kv_heads: int | None = None,
    head_dim: int,
    layout: str = "bshd",
    out: tuple[Tensor, Tensor, Tensor] | None = None,
    variant: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of attention in one product: `x weight^T + bias`, whose columns are
    dealt out to heads, by the kernel that multiplies.

    On a GPU few rows, f32, rows that are no packs of 16 bytes and heads of no multiple of 8 values
    go through `linear` and three copies. Sums are held in f32 and rounded once, but in those steps
    a second time with a bias of f32 beside 16 bits. Differentiable in x, weight and bias.

    Args:
        x: [b, s, k], f32, f16 or bf16 (f64 by the reference), any strides.
        weight: [(heads + 2 kv_heads) head_dim, k], of the dtype and device of x, any strides: the
            rows of the heads of q, then those of k, then those of v.
        bias: a value for each row of weight, of the dtype of x or f32; None adds nothing.
        heads: of q.
        kv_heads: of k and of v; None: as many.
        head_dim: of each head. From sm_90 on best a multiple of 64, on tensor cores of 8.
        layout: "bshd" or "bhsd", of the results.
        out: tensors for q, k and v, best contiguous, of their shapes and dtype, which get the
            results and are returned (`docs/pytorch.md`, results in tensors of the caller). Not
            differentiable, and with no variant.
        variant: one rung by name instead of the best one, "bf16_wgmma".

    Returns:
        q, k and v, contiguous, [b, s, heads, head_dim] or [b, heads, s, head_dim], k and v with
        kv_heads.

    Raises:
        RuntimeError: x is not floating-point, or fp8, or not 3-D; the dtypes, devices or shapes do
            not fit; there is no such layout; the variant cannot take the input.
        ValueError: the variant does not exist, or comes with out.

    Reference:
        `torch.nn.functional.linear`, split and reshaped.
    """
    kv_heads = heads if kv_heads is None else kv_heads
    if out is not None:
        into.alone(_OP, variant)
    elif variant is None:
        x, weight, bias = autocast.lowered(x, weight, bias)
    dealt = (heads, kv_heads, head_dim, layout)
    if variant is None and not _serves(x, weight, head_dim):
        sharded.refuse(_OP, x, weight)
        _check_call(x, weight, bias, *dealt)
        if out is None:
            return deal_out(_columns(x, weight, bias), *dealt)
        with autocast.off(x):
            found = heads_of(_columns(x, weight, bias), *dealt)
            return into.copied_all(_OP, ("q", "k", "v"), found, out)  # type: ignore[no-any-return]
    if out is not None:
        return _into(out, variant, x, weight, bias, *dealt)  # type: ignore[no-any-return]
    return _run(variant, x, weight, bias, *dealt)


def _serves(x: Tensor, weight: Tensor, head_dim: int) -> bool:
    if not serves(_PROVEN, x, weight):
        return False
    on_gpu = isinstance(x, Tensor) and isinstance(weight, Tensor) and is_on_gpu(x)
    return not on_gpu or _in_packs(head_dim)


def _in_packs(head_dim: int) -> bool:
    """Whether the kernels store heads in packs of 16 bytes. What is no number they refuse."""
    return not hasattr(head_dim, "__index__") or head_dim % 8 == 0


def _check_call(*args: Any) -> None:
    """What several steps would take, or refuse in words that name none of the arguments."""
    if not torch.compiler.is_compiling():  # which traces no look at what is no tensor
        dispatch.require_tensors(fused_qkv_op, args, _OP)
        messages.check_kinds(_OP, _KINDS, args)
    _check(*args)


def _calls(
    on_gpu: bool,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    heads: int,
    kv_heads: int | None,
    head_dim: int,
    layout: str,
    out: tuple[Tensor, Tensor, Tensor] | None,
    variant: str | None,
) -> tuple[PartCall, ...] | None:
    if variant is not None:
        return None
    if out is None:
        x, weight, bias = autocast.lowered(x, weight, bias)
    given = (x, weight, bias, heads, heads if kv_heads is None else kv_heads, head_dim, layout)
    _check_call(*given)
    if not on_gpu or (_PROVEN and suits(x, weight) and _in_packs(head_dim)):
        return (PartCall(_OP, given, ""),)
    fits = bias is None or bias.dtype == x.dtype
    columns = PartCall("linear", (x, weight, bias if fits else None), "all heads side by side")
    added = () if fits else (PartCall("torch.add", (), "the bias"),)
    return columns, *added, PartCall("torch.copy_", (), "each of q, k and v by itself")


public_calls.in_parts(fused_qkv, _calls)


def _columns(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The heads beside each other, by the kernels of `linear`."""
    if bias is None or bias.dtype == x.dtype:
        return torch.ops.warpsmith.linear(x, weight, bias)  # type: ignore[no-any-return]
    columns: Tensor = torch.ops.warpsmith.linear(x, weight)
    return (columns + bias).to(x.dtype)
