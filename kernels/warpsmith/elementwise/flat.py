"""Operators that walk flat memory: a kernel gets a contiguous copy of what does not lie so."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from warpsmith.spec import layout


def aligned(*tensors: Tensor | None) -> bool:
    """Whether all that is not copied starts at a pack; copies do."""
    given = (t for t in tensors if t is not None and t.is_contiguous())
    return all(layout.address(t) % layout.PACK_BYTES == 0 for t in given)


def alike(terms: Sequence[Tensor]) -> bool:
    """Whether one order of elements serves tensors of one shape, so that none is copied."""
    return layout.is_dense(terms[0]) and all(x.stride() == terms[0].stride() for x in terms)
