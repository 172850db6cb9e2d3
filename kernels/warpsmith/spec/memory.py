"""How operands lie in memory; mirrors csrc/host/memory.h and csrc/host/share_memory.h."""

from __future__ import annotations

import torch
from torch import Tensor

from warpsmith.spec.layout import is_dense


def check_apart(op: str, name: str, x: Tensor) -> None:
    """Raises where elements that are written to share memory, or may: strides from the smallest on
    have to reach beyond all that those before them reach.
    """
    if x.numel() == 0:
        return
    reach = 0
    dims = sorted((s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n > 1)
    for stride, size in dims:
        if stride == 0:
            raise RuntimeError(
                f"{op}: expected {name} that are not expanded, as they are written to"
            )
        if stride <= reach:
            raise RuntimeError(
                f"{op}: expected {name} without elements that overlap, as they are written to"
            )
        reach += (size - 1) * stride


def _shared_steps(x: Tensor, y: Tensor) -> list[tuple[int, int, int]] | None:
    """Of each dimension, from larger strides to smaller ones: the stride, the least and the most
    by which an index of `x` may exceed that of `y`; None where the two do not lie alike.
    """
    if x.dim() != y.dim():
        return None
    steps = []
    for dim, (in_x, in_y) in enumerate(zip(x.shape, y.shape, strict=True)):
        if in_x > 1 and in_y > 1 and x.stride(dim) != y.stride(dim):
            return None
        stride = x.stride(dim) if in_x > 1 else y.stride(dim)
        if stride > 0 and (in_x > 1 or in_y > 1):
            steps.append((stride, 1 - in_y, in_x - 1))
    return sorted(steps, reverse=True)


def _reaches(steps: list[tuple[int, int, int]], distance: int) -> bool:
    if not steps:
        return distance == 0
    (stride, fewest, most), *rest = steps
    least_rest = sum(low * s for s, low, _ in rest)
    most_rest = sum(high * s for s, _, high in rest)
    first = max(fewest, -((most_rest - distance) // stride))
    last = min(most, (distance - least_rest) // stride)
    return any(_reaches(rest, distance - n * stride) for n in range(first, last + 1))


def _extent(x: Tensor) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))


def share_memory(x: Tensor, y: Tensor) -> bool:
    """Whether some element of `x` is one of `y`, of the same dtype. Where that is hard to tell, of
    tensors that have gaps and do not lie alike, it is not said of more than their first elements,
    as in PyTorch.
    """
    if x.numel() == 0 or y.numel() == 0:
        return False
    if x.untyped_storage()._cdata != y.untyped_storage()._cdata:
        return False
    distance = int(y.storage_offset() - x.storage_offset())
    if distance >= _extent(x) or -distance >= _extent(y):
        return False
    if distance == 0 or (is_dense(x) and is_dense(y)):
        return True
    steps = _shared_steps(x, y)
    return steps is not None and _reaches(steps, distance)


def check_own_memory(op: str, name: str, x: Tensor, other: str, y: Tensor) -> None:
    """Raises where `x`, which is written to, shares memory with another operand."""
    if share_memory(x, y):
        raise RuntimeError(
            f"{op}: expected {other} to share no memory with {name}, which is written to"
        )


def has_unit_columns(x: Tensor) -> bool:
    return x.dim() == 0 or x.shape[-1] <= 1 or x.stride(-1) == 1


def empty_rows_like(x: Tensor) -> Tensor:
    """Uninitialised, with the strides of `x` where it is dense and its last dimension contiguous,
    else contiguous.
    """
    if is_dense(x) and has_unit_columns(x):
        return x.new_empty_strided(x.shape, x.stride())
    return x.new_empty(x.shape)


def step(x: Tensor, dim: int) -> int:
    """From one to the next along a dimension; 0 where there is no next."""
    return x.stride(dim) if x.shape[dim] > 1 else 0


def as_kernels_get(x: Tensor) -> Tensor:
    """`x`, or in its place an empty one that lies as the copy would that a kernel gets."""
    return x if has_unit_columns(x) else torch.empty(x.shape, dtype=x.dtype, device="meta")
