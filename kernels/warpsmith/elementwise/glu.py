"""The gated linear unit along a dimension: y = a * sigmoid(b), a and b the halves of x."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from warpsmith.core import catalogue, dispatch, into
from warpsmith.core.catalogue import DTYPE_NAMES, PACK, Cost, Gradients, Op, Property, Rung
from warpsmith.elementwise import checks
from warpsmith.elementwise import glu_cases as cases
from warpsmith.elementwise.flat import aligned
from warpsmith.spec import references
from warpsmith.spec.checks import check_dim


def _halved(op: str, x: Tensor, dim: int) -> tuple[int, ...]:
    """Shape of a half."""
    checks.floating(op, "x", x)
    checks.at_least_one_dimension(op, x)
    at = check_dim(op, x, dim)
    shape = list(x.shape)
    if shape[at] % 2 != 0:
        raise RuntimeError(
            f"{op}: expected dimension {at} of x to be even, got shape {tuple(shape)}"
        )
    shape[at] //= 2
    return tuple(shape)


def _check(x: Tensor, dim: int) -> None:
    _halved("glu", x, dim)


def _check_backward(grad: Tensor, x: Tensor, dim: int) -> None:
    op = "glu_backward"
    shape = _halved(op, x, dim)
    checks.like(op, "grad", grad, x)
    if tuple(grad.shape) != shape:
        raise RuntimeError(
            f"{op}: expected grad to have shape {shape}, half of x, got {tuple(grad.shape)}"
        )


def _fake(x: Tensor, dim: int) -> Tensor:
    return x.new_empty(_halved("glu", x, dim))


@references.rounded_once
def _reference_backward(grad: Tensor, x: Tensor, dim: int) -> Tensor:
    if x.dtype != torch.float64:
        return torch.ops.aten.glu_backward(grad, x, dim)
    a, b = x.chunk(2, dim)  # 1 - sigmoid(b), as PyTorch writes it, cancels
    s = b.sigmoid()
    return torch.cat((grad * s, grad * a * s * (-b).sigmoid()), dim)


def _derivative(grad: Tensor, x: Tensor, dim: int) -> Gradients:
    return {"x": torch.ops.warpsmith.glu_backward(grad, x, dim)}


# --- what the rungs take --------------------------------------------------------------------------


def _needs_whole_packs(x: Tensor, dim: int) -> str | None:
    whole = x.shape[dim:].numel() // 2 % PACK[DTYPE_NAMES[x.dtype]] == 0
    return None if whole else "needs halves that are whole packs"


def _needs_packs(x: Tensor, dim: int) -> str | None:
    if x.numel() == 0:
        return None
    return _needs_whole_packs(x, dim) if aligned(x) else "needs x aligned to 16 bytes"


def _needs_packs_backward(grad: Tensor, x: Tensor, dim: int) -> str | None:
    if x.numel() == 0:
        return None
    if not aligned(grad, x):
        return "needs grad and x aligned to 16 bytes"
    return _needs_whole_packs(x, dim)


def _stream(when: Callable[..., str | None], story: str) -> Rung:
    return Rung("stream", story, width=PACK, pack=True, technique="stream", when=when)


# --- the operators --------------------------------------------------------------------------------


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


glu_op = catalogue.add(
    Op(
        "glu(Tensor x, int dim=-1) -> Tensor",
        family="elementwise",
        elementwise=True,
        reference=F.glu,
        ladder=(
            Rung("naive", "one element a thread"),
            Rung(
                "pack",
                "one 128-bit access a thread and half",
                width=PACK,
                pack=True,
                when=_needs_packs,
            ),
            _stream(_needs_packs, "two packs of each half on their way past L1"),
        ),
        triton="glu_triton:glu",
        fake=_fake,
        check=_check,
        backward=_derivative,
        samples=cases.samples(),
        errors=cases.errors(),
        properties=(Property("a gate of 0 halves", cases.zero_gate_halves),),
        cost=Cost(bytes=lambda x: 3 * _bytes(x) // 2, flops=lambda x: 3 * x.numel()),
        bench=cases.bench(),
    )
)

glu_backward_op = catalogue.add(
    Op(
        "glu_backward(Tensor grad, Tensor x, int dim=-1) -> Tensor",
        family="elementwise",
        source="glu/backward",
        elementwise=True,
        reference=_reference_backward,
        eager=references.through_f32(_reference_backward),
        ladder=(
            Rung("naive", "one element a thread"),
            _stream(_needs_packs_backward, "128-bit accesses past L1"),
        ),
        triton="glu_triton:glu_backward",
        fake=lambda x: x.new_empty(x.shape),
        check=_check_backward,
        samples=cases.backward_samples(),
        errors=cases.backward_errors(),
        cost=Cost(
            bytes=lambda x: 5 * _bytes(x) // 2,
            flops=lambda x: 6 * x.numel(),
        ),
        bench=cases.backward_bench(),
    )
)

dispatch.register(glu_op)
dispatch.register(glu_backward_op)
_glu = dispatch.public(glu_op)
_glu_into = into.register(glu_op)


def glu(
    x: Tensor, dim: int = -1, *, out: Tensor | None = None, variant: str | None = None
) -> Tensor:
    """Gated linear unit, `a * sigmoid(b)`, where a and b are the first and the second half of `x`
    along `dim`.

    The gate comes second, as in PyTorch; in `silu_and_mul` and its kin it comes first.

    Args:
        x: at least one dimension, float32, float16 or bfloat16 (float64 and fp8 without a kernel
            of their own); what is not contiguous is copied.
        dim: of even size.
        out: a tensor for the result, of its shape and dtype, which is returned; not differentiable,
            and with no variant.
        variant: the kernel to use; by default the fastest that takes the call.

    Returns:
        A contiguous tensor of the dtype of `x`, half as large along `dim`.

    Raises:
        RuntimeError: for another dtype or an odd size, or where the variant cannot take the call.
        IndexError: for a dimension that `x` does not have.
        ValueError: for an unknown variant, or one beside `out`.

    Reference:
        Dauphin et al. 2017, "Language Modeling with Gated Convolutional Networks",
        https://arxiv.org/abs/1612.08083; `torch.nn.functional.glu`.
    """
    if out is not None:
        return _glu_into(out, variant, x, dim)  # type: ignore[no-any-return]
    return _glu(variant, x, dim)
