"""A product of groups as a kernel is given it, and what kernels refuse; mirrors groups.h and
grouped_matmul/grouped_matmul.h in csrc/gemm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from warpsmith.core.catalogue import Condition
from warpsmith.gemm import ladder_wgmma, problem
from warpsmith.gemm.problem import Matrix, in_packs, product
from warpsmith.spec.rows import address

#: Of which kernels that look groups up in shared memory take so many.
MOST_GROUPS = 512


@dataclass(frozen=True)
class GroupedProblem:
    """`GroupedArgs`: d[r] = x[r] w[g] for the rows r of group g, or d[g] = x_g w_g along k."""

    x: Matrix
    w: Matrix
    groups: int
    m: int
    n: int
    k: int
    along_k: bool
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """Bytes an element."""
        return self.dtype.itemsize

    @property
    def empty(self) -> bool:
        """No kernel is asked."""
        return 0 in (self.groups, self.m, self.n, self.k)


Check = Callable[[GroupedProblem], "str | None"]


def _ordered(x: Tensor, by_rows: bool) -> Matrix:
    """As the kernels read it; a copy in its place where the lines are not contiguous."""
    along = 1 if by_rows else 0
    lines, length = x.shape[1 - along], x.shape[along]
    if length > 1 and x.stride(along) != 1:
        return Matrix(0, length if lines > 1 else 0, 0, by_rows)
    return Matrix(address(x), x.stride(1 - along) if lines > 1 else 0, 0, by_rows)


def grouped_problem(x: Tensor, w: Tensor, offs: Tensor) -> GroupedProblem:
    """Lines of groups along k run along m and n, those of fp8 along k."""
    along_k = w.dim() == 2
    (m, k), n, groups = x.shape, w.shape[-1], offs.shape[0]
    lines_along_k = not along_k or x.dtype.itemsize == 1
    of_w = _ordered(w, not lines_along_k) if along_k else product(x, w).b
    return GroupedProblem(_ordered(x, lines_along_k), of_w, groups, m, n, k, along_k, x.dtype)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def needs_16_bits(p: GroupedProblem) -> str | None:
    return None if p.size == 2 else "takes f16 and bf16"


def needs_few_groups(p: GroupedProblem) -> str | None:
    return None if p.groups <= MOST_GROUPS else f"needs at most {MOST_GROUPS} groups"


def needs_operand_packs_16(p: GroupedProblem) -> str | None:
    whole = in_packs(p.x, p.m, p.k, p.size, 16) and in_packs(p.w, p.k, p.n, p.size, 16)
    return None if whole else "needs x and w in packs of 16 bytes"


def needs_countable_tiles(p: GroupedProblem) -> str | None:
    down, across = _ceil_div(p.m, 64), _ceil_div(p.n, 64)
    tiles = p.groups * down * across if p.along_k else (down + p.groups) * across
    return None if tiles < 2**31 else "needs fewer than 2^31 tiles of 64 x 64"


def _maps(x: Matrix, products: int, rows: int, cols: int, size: int) -> bool:
    """`can_map` of host/tensor_map.h."""
    lines, length = (rows, cols) if x.by_rows else (cols, rows)

    def walks(count: int, stride: int) -> bool:
        pitch = stride * size
        return count == 1 or (length <= stride and pitch % 16 == 0 and pitch < 2**40)

    small = max(lines, length, products) < 2**31
    return x.address % 16 == 0 and small and walks(lines, x.ld) and walks(products, x.batch)


def needs_lines_for_maps(p: GroupedProblem) -> str | None:
    products = 1 if p.w.batch == 0 else p.groups
    maps = _maps(p.x, 1, p.m, p.k, p.size) and _maps(p.w, products, p.k, p.n, p.size)
    if maps and p.n * max(p.size, 2) % 16 == 0 and max(p.m, p.k) < 2**31 - 1:
        return None
    return (
        "needs x, w and the product in lines that begin at multiples of 16 bytes and do not "
        "overlap, and sizes below 2^31 - 1"
    )


def needs_rows(p: GroupedProblem) -> str | None:
    return "takes groups of rows" if p.along_k else None


def needs_along_k(p: GroupedProblem) -> str | None:
    return None if p.along_k else "takes groups along k"


_needs_wgmma = problem.condition(ladder_wgmma.needs_wgmma).of(lambda x, w, *_: product(x, w))


def condition(*checks: Check, wgmma: bool = False) -> Condition:
    """The checks in the order in which the kernel makes them, on the arguments of a call.

    Args:
        checks: of the problem.
        wgmma: whether the GPU has to have wgmma.
    """

    def when(x: Tensor, w: Tensor, offs: Tensor) -> str | None:
        p = grouped_problem(x, w, offs)
        if p.empty:
            return None
        if wgmma and (why := _needs_wgmma(x, w)):
            return why
        return next((why for check in checks if (why := check(p))), None)

    return when
