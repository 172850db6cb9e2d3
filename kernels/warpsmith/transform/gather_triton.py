"""Rows by their indices in Triton."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpsmith.core.catalogue import is_fp8
from warpsmith.spec.memory import has_unit_columns

#: Values of a program.
BLOCK = 1024


@triton.jit
def gather_kernel(
    x_ptr,  # [outer, rows, inner]
    y_ptr,  # [outer, count, inner]
    index_ptr,  # [count]
    rows,
    count,
    inner,
    x_outer,
    x_row,
    scale,
    SCALED: tl.constexpr,
    ZEROS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A piece of a row per program."""
    place = tl.program_id(0).to(tl.int64)
    outer = place // count
    row = tl.load(index_ptr + (place - outer * count)).to(tl.int64)
    tl.device_assert(row < rows, "an index lies outside of the rows that there are")
    if not ZEROS:
        tl.device_assert(row >= 0, "an index lies outside of the rows that there are")
    at = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < inner
    # whole blocks of one value: the interpreter takes no mask that is a number
    rows_of = row + tl.zeros([BLOCK], dtype=tl.int64)
    inside = there & (rows_of >= 0) & (rows_of < rows)  # never a stray access
    values = tl.load(x_ptr + outer * x_outer + row * x_row + at, mask=inside, other=0)
    if SCALED:
        values = (values.to(tl.float32) * scale).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + place * inner + at, values, mask=there)


def _whole(x: Tensor) -> Tensor:
    """As integers of its size: what is moved keeps its bits."""
    same = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.view(same[x.element_size()])


def _gather(
    x: Tensor, y: Tensor, index: Tensor, dim: int, scale: float = 1.0, zeros: bool = False
) -> Tensor:
    """`x`: its rows along `dim` at unit stride."""
    if y.numel() == 0:
        return y
    outer, inner = x.shape[:dim].numel(), x.shape[dim + 1 :].numel()
    scaled = scale != 1.0
    given, out = (x, y) if scaled else (_whole(x), _whole(y))
    with torch.cuda.device_of(x):
        gather_kernel[(outer * index.numel(), triton.cdiv(inner, BLOCK))](
            given,
            out,
            index.contiguous(),
            x.shape[dim],
            index.numel(),
            inner,
            x.shape[dim] * inner,
            x.stride(0) if dim == 0 else inner,
            scale,
            SCALED=scaled,
            ZEROS=zeros,
            BLOCK=BLOCK,
        )
    return y


def embedding(weight: Tensor, indices: Tensor, scale: float) -> Tensor:
    if is_fp8(weight.dtype) and scale != 1.0:
        return (embedding(weight, indices, 1.0).float() * scale).to(weight.dtype)
    y = weight.new_empty(*indices.shape, weight.shape[1])
    table = weight if has_unit_columns(weight) else weight.contiguous()
    return _gather(table, y, indices, 0, scale)


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    at = dim % x.dim()
    y = x.new_empty(*x.shape[:at], index.numel(), *x.shape[at + 1 :])
    return _gather(x.contiguous(), y, index, at)


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    y = x.new_empty(index.numel(), *x.shape[1:])
    return _gather(x.contiguous(), y, index, 0, zeros=True)
