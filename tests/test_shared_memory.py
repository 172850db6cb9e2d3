"""Operands of a call that lie in each other's memory."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from warpsmith.spec import memory


def _elements(x: Tensor) -> set[int]:
    """Where they lie in the storage, one by one."""
    places = torch.arange(x.untyped_storage().nbytes() // x.element_size())
    return set(places.as_strided(x.shape, x.stride(), x.storage_offset()).flatten().tolist())


def test_views_that_lie_alike_are_told_exactly() -> None:
    draw, shared = random.Random(0), 0
    for _ in range(2000):
        storage, at, sizes = torch.zeros(5, 7, 11), [], []
        for length in storage.shape:
            for begin in (draw.randrange(length), draw.randrange(length)):
                at.append(begin)
                sizes.append(draw.randint(1, length - begin))
        dims = (0, 1, 2)
        x, y = (
            storage[tuple(slice(at[i], at[i] + sizes[i]) for i in (2 * d + which for d in dims))]
            for which in (0, 1)
        )
        expected = bool(_elements(x) & _elements(y))
        shared += expected
        assert memory.share_memory(x, y) == memory.share_memory(y, x) == expected
    assert 200 < shared < 1800


def test_heads_of_a_fused_projection_are_apart() -> None:
    fused = torch.zeros(2, 33, (8 + 2 + 2) * 16)
    q, k, v = fused.unflatten(-1, (12, 16)).split((8, 2, 2), dim=2)
    assert not any(memory.share_memory(*pair) for pair in ((q, k), (q, v), (k, v)))
    assert memory.share_memory(q, fused.unflatten(-1, (12, 16))[:, -1:, 7:8])


def test_other_memory_is_not_shared() -> None:
    x = torch.zeros(4, 8, device="meta")
    assert not memory.share_memory(x, torch.zeros(4, 8, device="meta"))
    assert not memory.share_memory(x, x[:0])
    assert memory.share_memory(x, x.t())
