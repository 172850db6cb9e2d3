"""PyTorch's error for a small product, measured inside a large one.

Of the same numbers, PyTorch's errors depend on how many rows and columns a call has: a row alone is
multiplied by kernels that spread its sums over many threads, and are nearly exact, a few rows by
others that split k, and only larger products by the kernels whose errors users know. For the
accuracy of a row it must not matter which of them PyTorch chose for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

#: Rows and columns from which libraries take the kernels that they have for large products: on GPUs
#: so many that tiles of 128 x 128 keep every multiprocessor busy for several rounds, as fewer are a
#: reason to split k.
LARGE_ON_GPU = 4096
LARGE_ON_CPU = 128
#: Elements of products that are held at a time.
HELD = 2**28


def _large(x: Tensor) -> int:
    """Rows or columns of a large product where x is."""
    return LARGE_ON_GPU if x.is_cuda else LARGE_ON_CPU


def repeated(x: Tensor, dim: int) -> Tensor:
    """x over and over along a dimension that is shorter than a large product's, up to that size."""
    size, large = x.shape[dim], _large(x)
    if size == 0 or size >= large:
        return x
    return x.index_select(dim, torch.arange(large, device=x.device) % size)


def among_others(multiply: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> Tensor:
    """`multiply(a, b)` for operands as `torch.matmul` takes them, computed as part of a product
    of so many rows and columns that it is a large one, in which those of a and b are repeated;
    of a batch, a few at a time.
    """
    left = a.unsqueeze(0) if a.dim() == 1 else a
    right = b.unsqueeze(1) if b.dim() == 1 else b
    shape = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    products = math.prod(shape)
    large = _large(a)
    step = max(1, HELD // (max(left.shape[-2], large) * max(right.shape[-1], large)))

    def part(left: Tensor, right: Tensor) -> Tensor:
        product = multiply(repeated(left, -2), repeated(right, -1))
        return product[..., : left.shape[-2], : right.shape[-1]]

    if products > step:
        each = [x.expand(*shape, *x.shape[-2:]).flatten(0, -3) for x in (left, right)]
        parts = zip(*(x.split(step) for x in each), strict=True)
        own = torch.cat([part(*pair).clone() for pair in parts]).unflatten(0, shape)
    else:
        own = part(left, right)
    own = own.squeeze(-2) if a.dim() == 1 else own
    return own.squeeze(-1) if b.dim() == 1 else own
