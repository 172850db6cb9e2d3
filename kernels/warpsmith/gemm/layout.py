"""How weights lie in memory; mirrors csrc/gemm/gemv/gemv.h and csrc/gemm/vectors.h."""

from __future__ import annotations

import torch
from torch import Tensor

from warpsmith.spec.checks import check_device, shape_text
from warpsmith.spec.rows import MOST_ROWS, address

#: Vectors of one call; more are a matrix product.
MOST_VECTORS = 16


def check_matrix(op: str, a: Tensor) -> None:
    if a.dim() != 2:
        raise RuntimeError(f"{op}: expected a to be 2-D, got shape {shape_text(a)}")


def check_vectors(op: str, x: Tensor, a: Tensor) -> None:
    """[k] or [vectors, k] for a of [m, k]."""
    if x.dim() not in (1, 2):
        raise RuntimeError(f"{op}: expected x to be 1-D or 2-D, got shape {shape_text(x)}")
    k = a.shape[1]
    if x.shape[-1] != k:
        raise RuntimeError(
            f"{op}: expected x to have {k} values in its last dimension, one per column of a, "
            f"got shape {shape_text(x)}"
        )
    if x.dim() == 2 and x.shape[0] > MOST_VECTORS:
        raise RuntimeError(
            f"{op}: expected x to have at most {MOST_VECTORS} rows, got {x.shape[0]}"
        )


def check_device_of_x(op: str, x: Tensor, a: Tensor) -> None:
    check_device(op, "x", x, a, "a")


def empty_product(a: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """[m] or [vectors, m]."""
    return x.new_empty((*x.shape[:-1], a.shape[0]), dtype=dtype)


def vector_count(x: Tensor) -> int:
    return 1 if x.dim() == 1 else x.shape[0]


def is_empty(a: Tensor, x: Tensor) -> bool:
    """Nothing to multiply: no kernel runs."""
    return a.numel() == 0 or x.numel() == 0


def needs_countable(a: Tensor) -> str | None:
    """A grid counts the rows, an int the values of a row."""
    return None if max(a.shape) <= MOST_ROWS else "needs m and k of at most 2^31 - 1"


def has_contiguous_rows(a: Tensor) -> bool:
    return a.shape[1] == 1 or a.stride(1) == 1


def has_contiguous_columns(a: Tensor) -> bool:
    return a.shape[0] == 1 or a.stride(0) == 1


def needs_rows(a: Tensor) -> str | None:
    if why := needs_countable(a):
        return why
    return None if has_contiguous_rows(a) else "needs weights with contiguous rows"


def tiles_weights(a: Tensor, width: int) -> bool:
    """Whether accesses of `width` values tile the rows exactly and aligned."""
    m, k = a.shape
    if not has_contiguous_rows(a) or k % width or (m > 1 and a.stride(0) % width):
        return False
    return address(a) % (width * a.element_size()) == 0


def needs_packs(a: Tensor) -> str | None:
    if why := needs_rows(a):
        return why
    return None if tiles_weights(a, 16 // a.element_size()) else "needs rows aligned to 16 bytes"
