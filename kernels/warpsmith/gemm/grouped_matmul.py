"""Products of groups of rows, each with a matrix of its own: the experts of a mixture."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch, into
from warpsmith.core.catalogue import Cost, Gradients, Needs, Op, Property, Rung
from warpsmith.gemm import grouped_cases as cases
from warpsmith.gemm.grouped import (
    condition,
    grouped_problem,
    needs_16_bits,
    needs_countable_tiles,
    needs_few_groups,
    needs_lines_for_maps,
    needs_operand_packs_16,
)
from warpsmith.gemm.grouped_plan import GroupedSizes, choose
from warpsmith.gemm.ladder_mma import HALVES
from warpsmith.gemm.ladder_wgmma import multiprocessors
from warpsmith.gemm.matmul import check_alike, check_operand
from warpsmith.gemm.reference_in_large import among_others
from warpsmith.spec.checks import check_device, shape_text


def check_groups(op: str, x: Tensor, w: Tensor, offs: Tensor) -> None:
    """Of what the kernels of groups share: the shapes, and the ends of groups."""
    check_device(op, "offs", offs, x, "x")
    if offs.dtype != torch.int32:
        raise RuntimeError(f"{op}: expected offs to have dtype torch.int32, got {offs.dtype}")
    if offs.dim() != 1:
        raise RuntimeError(f"{op}: expected offs to be 1-D, got shape {shape_text(offs)}")
    if x.shape[1] != w.shape[-2]:
        raise RuntimeError(f"{op}: cannot multiply shapes {shape_text(x)} and {shape_text(w)}")
    if w.dim() == 3 and offs.shape[0] != w.shape[0]:
        raise RuntimeError(
            f"{op}: expected offs to have shape ({w.shape[0]},), one end per matrix of w, "
            f"got {shape_text(offs)}"
        )


def check_ends(op: str, x: Tensor, w: Tensor, offs: Tensor) -> None:
    """Of the references, on a CPU: on a GPU nobody waits to see the ends."""
    if offs.is_cuda:
        return
    ends, total = offs.tolist(), x.shape[1 if w.dim() == 2 else 0]
    for before, end in itertools.pairwise(ends):
        if end < before:
            raise RuntimeError(
                f"{op}: expected offs that do not decrease, got {end} behind {before}"
            )
    for end in (*ends[:1], *ends[-1:]):
        if not 0 <= end <= total:
            raise RuntimeError(f"{op}: expected offs to lie in [0, {total}], got {end}")


def _check(x: Tensor, w: Tensor, offs: Tensor) -> None:
    op = "grouped_matmul"
    check_operand(op, "x", x, 0)
    check_operand(op, "w", w, 0)
    if x.dim() != 2:
        raise RuntimeError(f"{op}: expected x to be 2-D, got shape {shape_text(x)}")
    if w.dim() not in (2, 3):
        raise RuntimeError(f"{op}: expected w to be 2-D or 3-D, got shape {shape_text(w)}")
    check_alike(op, "w", w, x, "x")
    check_groups(op, x, w, offs)


def result_shape(x: Tensor, w: Tensor, offs: Tensor) -> tuple[int, ...]:
    """[m, n], or of groups along k [groups, m, n]."""
    shape = (x.shape[0], w.shape[-1])
    return (offs.shape[0], *shape) if w.dim() == 2 else shape


def spans(offs: Tensor, total: int) -> list[slice]:
    """The rows of each group, within the total."""
    ends = [min(max(end, 0), total) for end in offs.tolist()]
    return [slice(first, max(first, end)) for first, end in zip((0, *ends), ends, strict=False)]


Product = Callable[[Tensor, Tensor], Tensor]


def _group_by_group(multiply: Product, x: Tensor, w: Tensor, offs: Tensor) -> Tensor:
    out = x.new_zeros(result_shape(x, w, offs))
    along_k = w.dim() == 2
    for group, span in enumerate(spans(offs, x.shape[1 if along_k else 0])):
        if span.start == span.stop:
            continue
        if along_k:
            out[group] = multiply(x[:, span], w[span])
        else:
            out[span] = multiply(x[span], w[group])
    return out


def _reference(x: Tensor, w: Tensor, offs: Tensor) -> Tensor:
    check_ends("grouped_matmul", x, w, offs)
    return _group_by_group(torch.matmul, x, w, offs)


def _among_others(x: Tensor, w: Tensor, offs: Tensor) -> Tensor:
    def multiply(a: Tensor, b: Tensor) -> Tensor:
        return among_others(torch.matmul, a, b)

    return _group_by_group(multiply, x, w, offs)


def _derivative(grad: Tensor, x: Tensor, w: Tensor, offs: Tensor, needs: Needs) -> Gradients:
    """Products of groups again: of rows and along k change places."""
    product = torch.ops.warpsmith.grouped_matmul
    grad = grad.to(x.dtype)
    found: dict[str, Tensor | None] = {}
    if w.dim() == 3:
        if "x" in needs:
            found["x"] = product(grad, w.mT, offs)
        if "w" in needs:  # as w lies, which autograd would copy it to
            if w.shape[1] > 1 and w.stride(1) == 1:
                found["w"] = product(grad.t(), x, offs).mT
            else:
                found["w"] = product(x.t(), grad, offs)
    else:
        if "x" in needs:
            found["x"] = product(w, grad.mT, offs).t()
        if "w" in needs:
            found["w"] = product(x.t(), grad, offs)
    return found


def _suits_naive(x: Tensor, w: Tensor, offs: Tensor) -> str | None:
    p = grouped_problem(x, w, offs)
    depth = p.k + p.groups if p.along_k else p.k
    few = p.empty or p.m * p.n <= 2**24 // depth
    return None if few else "the products are large"


def _plan_wgmma(x: Tensor, w: Tensor, offs: Tensor) -> str | None:
    p = grouped_problem(x, w, offs)
    if p.empty:
        return None
    return str(choose(GroupedSizes(p.groups, p.m, p.n, p.k, p.along_k, p.size, multiprocessors())))


_LADDER = (
    Rung("naive", "a thread per element, any layout", technique="naive", suits=_suits_naive),
    Rung(
        "mma_groups",
        "tensor cores: blocks that walk the tiles of all groups",
        dtypes=HALVES,
        technique="mma_groups",
        when=condition(
            needs_16_bits, needs_few_groups, needs_operand_packs_16, needs_countable_tiles
        ),
    ),
    Rung(
        "wgmma_groups",
        "wgmma: the copy engine cuts boxes where groups end, a tile by cost",
        dtypes=HALVES,
        technique="wgmma_groups",
        min_sm=90,
        when=condition(
            needs_16_bits,
            needs_few_groups,
            needs_lines_for_maps,
            needs_countable_tiles,
            wgmma=True,
        ),
        plan=_plan_wgmma,
    ),
)


def _bytes(x: Tensor, w: Tensor, offs: Tensor) -> int:
    written = math.prod(result_shape(x, w, offs))
    return (x.numel() + w.numel() + written) * x.element_size() + 4 * offs.numel()


grouped_matmul_op = catalogue.add(
    Op(
        "grouped_matmul(Tensor x, Tensor w, Tensor offs) -> Tensor",
        family="gemm",
        reference=_reference,
        ladder=_LADDER,
        triton="grouped_matmul_triton:grouped_matmul",
        fake=lambda x, w, offs: x.new_empty(result_shape(x, w, offs)),
        check=_check,
        backward=_derivative,
        alternatives=(_among_others,),
        samples=cases.samples(),
        errors=cases.ERRORS,
        properties=(
            Property("whole numbers are exact", cases.whole_numbers),
            Property("rows of no group", cases.rows_of_no_group),
            Property("ends that decrease or pass the last row", cases.wrong_ends),
            Property("deterministic", cases.deterministic),
        ),
        cost=Cost(
            bytes=_bytes,
            flops=lambda x, w: 2 * x.shape[0] * x.shape[1] * w.shape[-1],
        ),
        bench=cases.bench(),
        bench_dtypes=("bf16",),
        peers={"grouped_mm": lambda: cases.grouped_mm},
    )
)
dispatch.register(grouped_matmul_op)
_grouped_matmul = dispatch.public(grouped_matmul_op)
_grouped_matmul_into = into.register(grouped_matmul_op)


def grouped_matmul(
    x: Tensor,
    w: Tensor,
    offs: Tensor,
    *,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """Products of groups of rows, each with a matrix of its own: `y[r] = x[r] w[g]` for the rows r
    of group g, which are `offs[g - 1]` to `offs[g] - 1`, from 0 on. The ends stay on the
    GPU: what a call launches does not depend on them, so that it may be captured in a graph.

    With a 2-D w, groups are cut along k: `y[g] = x_g w_g`, with the columns of x and the rows of w
    that belong to group g, and zeros where none do. That is the gradient of w in the form above.

    Sums are held in f32 and rounded once; f32 operands are multiplied as they are, without TF32.
    Differentiable in x and w. Under autocast both are cast, as of every product.

    Args:
        x: [m, k], f32, f16 or bf16 (f64 by the reference), any strides; best row-major, and of
            groups along k column-major.
        w: [groups, k, n], of the dtype and device of x, any strides; best row-major or
            column-major. Or [k, n], which cuts groups along k; best row-major.
        offs: int32, [groups]: where each group ends. They do not decrease, and the last is m at
            most, or k. As with PyTorch's function, rows past the last belong to no group: the
            result, and the gradient of x, hold anything there.
        out: a tensor for the result, best contiguous, of its shape and dtype, which is returned
            (`docs/pytorch.md`, results in tensors of the caller). Not differentiable, and with no
            variant.
        variant: one rung by name instead of the best one, "bf16_mma_groups".

    Returns:
        A contiguous tensor [m, n], or [groups, m, n] of groups along k, of the dtype of x.

    Raises:
        RuntimeError: an operand is not floating-point, or fp8; dtypes, devices or shapes do not
            fit; offs are no int32, or, on a CPU, decrease or lie outside of the rows (on a GPU,
            where a look at them would cost a synchronisation, groups end with the rows then, and
            those that would end before they begin are empty); the variant cannot take the input.
        ValueError: the variant does not exist, or comes with out.

    Reference:
        `torch.nn.functional.grouped_mm`.
    """
    if out is not None:
        return _grouped_matmul_into(out, variant, x, w, offs)  # type: ignore[no-any-return]
    return _grouped_matmul(variant, x, w, offs)
