"""Which operands are copied to lines in packs of 16 bytes, and when that is worth it; mirrors
csrc/gemm/padding.h.
"""

from __future__ import annotations

import math

from warpsmith.gemm.problem import Matrix, Problem, in_packs

#: Estimates, in multiplications: what a value that is copied costs, and what launching the kernel
#: does.
PER_VALUE, LAUNCH = 200.0, 5e8
#: Values: a call must not want for memory because of its copies.
MOST_COPIED = 2**30


def pitch(length: int) -> int:
    """Values from one line of a copy to the next: long lines start where those of the caches do."""
    to = 8 if length < 512 else 64
    return math.ceil(length / to) * to


def is_copied(p: Problem, x: Matrix, rows: int, cols: int) -> bool:
    """Of batch-invariant products lines that overlap are copied too: maps have none."""
    lines, length = (rows, cols) if x.by_rows else (cols, rows)
    overlap = lines > 1 and x.ld < length
    return not in_packs(x, rows, cols, p.size, 16) or (p.batch_invariant and overlap)


def _copied(p: Problem, x: Matrix, rows: int, cols: int) -> int:
    """The values of its copy; 0 where the operand is read as it lies."""
    if not is_copied(p, x, rows, cols):
        return 0
    lines, length = (rows, cols) if x.by_rows else (cols, rows)
    return (p.batch if x.batch else 1) * lines * pitch(length)


def copied_values(p: Problem) -> int:
    return _copied(p, p.a, p.m, p.k) + _copied(p, p.b, p.k, p.n)


def needs_padding(p: Problem) -> str | None:
    return None if copied_values(p) else "needs a or b not in packs of 16 bytes"


def suits_padding(p: Problem) -> str | None:
    copied = copied_values(p)
    work = float(p.batch) * float(p.m) * float(p.n) * float(p.k)
    if copied <= MOST_COPIED and work > LAUNCH + PER_VALUE * float(copied):
        return None
    return "copies cost more than they save"


def suits_padding_for_wgmma(p: Problem) -> str | None:
    """The same for wgmma, by which batch-invariant products are multiplied whether their rows are
    in packs or not: it adds up otherwise than mma.sync.
    """
    return None if p.batch_invariant else suits_padding(p)
