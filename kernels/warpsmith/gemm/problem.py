"""A matrix product as a kernel is given it, and what kernels refuse; mirrors gemm.h and operands.h
in csrc/gemm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import dispatch
from warpsmith.core.catalogue import Condition
from warpsmith.spec.rows import address

Check = Callable[["Problem"], "str | None"]


@dataclass(frozen=True)
class Matrix:
    """A batch of matrices of which rows or columns are contiguous."""

    address: int
    #: Elements from one row to the next, or column to the next; 0 where there is one only.
    ld: int
    #: Elements from one matrix to the next; 0 where the whole batch shares one.
    batch: int
    #: Rows are contiguous; otherwise columns are.
    by_rows: bool


@dataclass(frozen=True)
class Problem:
    """`GemmArgs`: d[batch, m, n] = activation(alpha * a[batch, m, k] b[batch, k, n] + beta * c)."""

    a: Matrix
    b: Matrix
    batch: int
    m: int
    n: int
    k: int
    dtype: torch.dtype
    #: Strides of what is added over the batch, the rows and the columns; None where nothing is.
    c: tuple[int, int, int] | None = None
    alpha: float = 1.0
    activation: str = "none"
    #: The bits of a row do not depend on how many rows there are.
    batch_invariant: bool = False
    #: The result is f32, of operands of 16 bits: the product alone.
    wide: bool = False
    #: The compute capability of the GPU that is asked about; None: of any.
    sm: int | None = None

    @property
    def size(self) -> int:
        """Bytes an element."""
        return self.dtype.itemsize

    @property
    def empty(self) -> bool:
        """No kernel is asked."""
        return 0 in (self.batch, self.m, self.n, self.k)


# --- tensors as matrices --------------------------------------------------------------------------

Layout = tuple[tuple[int, ...], tuple[int, ...]]


def _order(shape: Sequence[int], strides: Sequence[int]) -> tuple[bool, int] | None:
    """Whether rows are contiguous, and `ld`; None where neither rows nor columns are."""
    (rows, cols), (row_stride, col_stride) = shape[-2:], strides[-2:]
    unit_rows = rows == 1 or row_stride == 1
    unit_cols = cols == 1 or col_stride == 1
    if not (unit_rows or unit_cols):
        return None
    if unit_rows and (cols == 1 or not unit_cols):
        return False, col_stride if cols > 1 else 0
    return True, row_stride if rows > 1 else 0


def _batch_stride(shape: Sequence[int], strides: Sequence[int], batch: Sequence[int]) -> int | None:
    """The one stride that walks the batch; None where there is none."""
    lead = len(shape) - 2
    count, stride = 1, 0
    for i, size in enumerate(reversed(batch)):
        if size == 1:
            continue
        repeats = i >= lead or shape[lead - 1 - i] == 1
        own = 0 if repeats else strides[lead - 1 - i]
        if count == 1:
            stride = own
        if own != stride * count:
            return None
        count *= size
    return stride


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides))


def _matrix(x: Tensor, shape: tuple[int, int], batch: Sequence[int], transposed: bool) -> Matrix:
    """`x` as matrices of that shape, or the copy that a kernel would get in its place."""

    def walk(lead: Sequence[int], strides: Sequence[int]) -> tuple[bool, int, int] | None:
        whole = (*lead, *shape)
        if x.dim() == 1:
            strides = (0, strides[0]) if shape[0] == 1 and x.shape[0] == shape[1] else (*strides, 0)
        last = strides[-2:][::-1] if transposed else strides[-2:]
        strides = (*strides[:-2], *last)
        ordered, stride = _order(whole, strides), _batch_stride(whole, strides, batch)
        return None if ordered is None or stride is None else (*ordered, stride)

    if found := walk(x.shape[:-2], x.stride()):
        return Matrix(address(x), found[1], found[2], found[0])
    lead = tuple(batch) if x.dim() > 2 else ()
    own = x.shape[-2:]
    copied = walk(lead, _contiguous((*lead, *own)))
    assert copied is not None
    return Matrix(0, copied[1], copied[2], copied[0])


def _addend(c: Tensor, batch: Sequence[int], m: int, n: int) -> tuple[int, int, int]:
    shape = (1,) * (2 - c.dim()) + tuple(c.shape)
    strides = (0,) * (2 - c.dim()) + c.stride()
    walked = _batch_stride(shape, strides, batch)
    if walked is None:
        whole = (*batch, m, n)
        shape, strides = whole, _contiguous(whole)
        walked = _batch_stride(shape, strides, batch)
        assert walked is not None
    row, col = (s if size > 1 else 0 for size, s in zip(shape[-2:], strides[-2:], strict=True))
    return walked, row, col


def _merged(p: Problem) -> Problem:
    """A batch that shares b, and whose rows of a one stride walks, is one product."""
    if p.batch == 1 or p.b.batch != 0 or not p.a.by_rows:
        return p
    c = p.c
    if c is not None and c[0] != c[1] * p.m:
        return p
    a = p.a
    if p.m == 1:
        a = replace(a, ld=a.batch)
        c = None if c is None else (c[0], c[0], c[2])
    elif a.batch != a.ld * p.m:
        return p
    c = None if c is None else (0, *c[1:])
    return replace(p, a=replace(a, batch=0), c=c, m=p.m * p.batch, batch=1)


def product(
    a: Tensor,
    b: Tensor,
    *,
    transposed: bool = False,
    c: Tensor | None = None,
    alpha: float = 1.0,
    activation: str = "none",
    batch_invariant: bool = False,
    wide: bool = False,
) -> Problem:
    """The product of two tensors, as `torch.matmul` reads them, and what is done to it.

    Args:
        a: [..., m, k] or [k].
        b: [..., k, n] or [k]; [n, k] if `transposed`.
        transposed: whether `b` is read with its last two dimensions swapped.
        c: what is added, broadcast to the product.
        alpha: what the product is multiplied by.
        activation: what the sum goes through.
        batch_invariant: whether the bits of a row may not depend on how many rows there are.
        wide: whether the result is f32, whatever the operands are.
    """
    rows = (1, *a.shape) if a.dim() == 1 else tuple(a.shape)
    columns = (*b.shape, 1) if b.dim() == 1 else tuple(b.shape)
    if transposed:
        columns = (*columns[:-2], columns[-1], columns[-2])
    batch = tuple(torch.broadcast_shapes(rows[:-2], columns[:-2]))
    (m, k), n = rows[-2:], columns[-1]
    return _merged(
        Problem(
            a=_matrix(a, (m, k), batch, False),
            b=_matrix(b, (k, n), batch, transposed),
            batch=math.prod(batch),
            m=m,
            n=n,
            k=k,
            dtype=a.dtype,
            c=None if c is None else _addend(c, batch, m, n),
            alpha=alpha,
            activation=activation,
            batch_invariant=batch_invariant,
            wide=wide and a.dtype.itemsize < 4,
        )
    )


# --- conditions -----------------------------------------------------------------------------------


def needs_product_alone(p: Problem) -> str | None:
    alone = p.c is None and p.alpha == 1.0 and p.activation == "none"
    return None if alone else "computes the product alone"


def needs_result_like_operands(p: Problem) -> str | None:
    return "gives results of the operands' dtype" if p.wide else None


def needs_one_product(p: Problem) -> str | None:
    return None if p.batch == 1 else "takes one product at a time"


def needs_plain(p: Problem) -> str | None:
    return needs_result_like_operands(p) or needs_product_alone(p) or needs_one_product(p)


def needs_free_order(p: Problem) -> str | None:
    return "adds up few rows in an order of its own" if p.batch_invariant else None


def needs_a_row_major(p: Problem) -> str | None:
    return None if p.a.by_rows else "needs a row-major"


def needs_row_major(p: Problem) -> str | None:
    return None if p.a.by_rows and p.b.by_rows else "needs a and b row-major"


def needs_b_column_major(p: Problem) -> str | None:
    fits = p.a.by_rows and not p.b.by_rows
    return None if fits else "needs a row-major and b column-major"


def in_packs(x: Matrix, rows: int, cols: int, size: int, width: int) -> bool:
    """Whether a matrix splits into accesses of `width` bytes, none across the end of a row or
    column.
    """
    extent = cols if x.by_rows else rows
    return all(
        count % width == 0 for count in (x.address, x.ld * size, x.batch * size, extent * size)
    )


def operands_in_packs(p: Problem, width: int) -> bool:
    return (
        in_packs(p.a, p.m, p.k, p.size, width)
        and in_packs(p.b, p.k, p.n, p.size, width)
        and p.n * p.size % width == 0
    )


def needs_packs_8(p: Problem) -> str | None:
    return None if operands_in_packs(p, 8) else "needs a, b and the product in packs of 8 bytes"


def needs_packs_16(p: Problem) -> str | None:
    return None if operands_in_packs(p, 16) else "needs a, b and the product in packs of 16 bytes"


def needs_operand_packs_16(p: Problem) -> str | None:
    whole = in_packs(p.a, p.m, p.k, p.size, 16) and in_packs(p.b, p.k, p.n, p.size, 16)
    return None if whole else "needs a and b in packs of 16 bytes"


def needs_tiles_in_grid(p: Problem) -> str | None:
    tiles = math.ceil(p.m / 64) * math.ceil(p.n / 64) * p.batch
    return None if tiles < 2**31 else "needs fewer than 2^31 tiles of 64 x 64"


def needs_cutlass(p: Problem) -> str | None:
    """Asks the compiled library, where it is loaded."""
    if dispatch.built_with_cutlass("gemm/matmul") is False:
        return "was built without the headers of CUTLASS: pip install 'warpsmith[cutlass]'"
    return None


@dataclass(frozen=True)
class OnProblem:
    """A condition of a rung, by the checks that every operator over its ladder shares."""

    checks: tuple[Check, ...]

    def of(self, problem: Callable[..., Problem]) -> Condition:
        """The condition on the arguments of an operator, of which `problem` makes the product."""

        def condition(*args: Any, sm: int | None = None) -> str | None:
            p = replace(problem(*args), sm=sm)
            if p.empty:
                return None
            return next((why for check in self.checks if (why := check(p))), None)

        return condition

    def __call__(self, *args: Any) -> str | None:
        raise TypeError("bind it to an operator first: `ladder_for`")


@dataclass(frozen=True)
class OfProblem:
    """What a rung says of a call, by the problem that an operator over its ladder makes of it."""

    text: Callable[[Problem], str]

    def of(self, problem: Callable[..., Problem]) -> Condition:
        def say(*args: Any) -> str | None:
            p = problem(*args)
            return None if p.empty else self.text(p)

        return say

    def __call__(self, *args: Any) -> str | None:
        raise TypeError("bind it to an operator first: `on`")


def condition(*checks: Check) -> OnProblem:
    """The checks in the order in which the kernel makes them."""
    return OnProblem(checks)
