"""How the operands of an elementwise call lie in memory: the layout of the result, and what decides
which rungs can take the call.

The compiled library makes the same analysis before it launches; tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

#: Bytes of the widest access, and the alignment that it needs.
PACK_BYTES = 16
#: Dimensions that the `strided` rung can walk.
MAX_RANK = 8


def is_dense(x: Tensor) -> bool:
    """No gaps and no overlaps: the strides are those of a permutation of a contiguous tensor."""
    if x.is_contiguous():
        return True
    expected = 1
    dims = [(stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if size != 1]
    for stride, size in sorted(dims):
        if stride != expected:
            return False
        expected = expected * size
    return True


def empty_like(x: Tensor) -> Tensor:
    """Uninitialised, with the strides of `x` where it is dense, else contiguous."""
    if is_dense(x):
        return x.new_empty_strided(x.shape, x.stride())
    return x.new_empty(x.shape)


def empty_for(shape: Sequence[int], *inputs: Tensor) -> Tensor:
    """The result of inputs that broadcast: like the first that has its shape and is dense."""
    for operand in inputs:
        if tuple(operand.shape) == tuple(shape) and is_dense(operand):
            return empty_like(operand)
    return inputs[0].new_empty(tuple(shape))


def as_meta(x: Tensor) -> Tensor:
    """The same shape and strides without data."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """The two halves of the last dimension, as views."""
    d = x.shape[-1] // 2
    return x.narrow(-1, 0, d), x.narrow(-1, d, d)


def address(x: Tensor) -> int:
    """Where the data start. Tensors without data start where they would in an allocation of their
    own, which is aligned to everything: a half of an output that is yet to be made need not be.
    """
    if x.is_meta:
        return int(x.storage_offset()) * x.element_size()
    try:
        return x.data_ptr()
    except RuntimeError:
        return 0


@dataclass(frozen=True)
class Layout:
    """Operands over one index space, without the dimensions that need no index of their own.

    Attributes:
        sizes: what is left of the result's shape, outermost first as the first output lies in
            memory.
        strides: per operand, outputs first, in elements; 0 broadcasts.
        addresses: per operand, in bytes.
        itemsize: bytes of an element, the same for all operands.
    """

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    addresses: tuple[int, ...]
    itemsize: int

    @staticmethod
    def of(operands: Sequence[Tensor]) -> Layout:
        """Merges neighbouring dimensions that every operand walks alike.

        Args:
            operands: outputs, then inputs; the inputs broadcast to the shape of the first output.
        """
        shape = operands[0].shape
        walked = [t.expand(shape).stride() for t in operands]
        order = [d for d, size in enumerate(shape) if size != 1]
        order.sort(key=lambda d: -walked[0][d])
        sizes: list[int] = []
        strides: list[list[int]] = [[] for _ in operands]
        for d in order:
            pairs = list(zip(strides, walked, strict=True))
            if sizes and all(s[-1] == w[d] * shape[d] for s, w in pairs):
                sizes[-1] *= shape[d]
                for s, w in pairs:
                    s[-1] = w[d]
            else:
                sizes.append(shape[d])
                for s, w in pairs:
                    s.append(w[d])
        return Layout(
            tuple(sizes),
            tuple(tuple(s) for s in strides),
            tuple(address(t) for t in operands),
            operands[0].element_size(),
        )

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def is_rows(self) -> bool:
        """At most two dimensions, the inner one at unit stride in every operand."""
        return self.rank <= 2 and all(s[-1] == 1 for s in self.strides if s)

    @property
    def rows(self) -> int:
        return self.sizes[0] if self.rank == 2 else 1

    @property
    def cols(self) -> int:
        return self.sizes[-1] if self.sizes else 1

    @property
    def alignment(self) -> int:
        """Bytes: the largest power of two up to 16 that divides the address of every row."""
        bits = PACK_BYTES
        for start, strides in zip(self.addresses, self.strides, strict=True):
            bits |= start
            if self.rank == 2:
                bits |= strides[0] * self.itemsize
        return bits & -bits

    def needs_rows(self) -> str | None:
        return None if self.is_rows else "needs unit-stride rows"

    def needs_width(self, width: int) -> str | None:
        """Why an access of `width` elements cannot serve; None where it can."""
        if reason := self.needs_rows():
            return reason
        whole = self.rows == 1 or self.cols % width == 0
        if whole and self.alignment >= width * self.itemsize:
            return None
        return f"needs data aligned to {'2 elements' if width == 2 else '16 bytes'}"

    def needs_pack(self) -> str | None:
        return self.needs_width(PACK_BYTES // self.itemsize)

    def needs_rank(self) -> str | None:
        if self.rank <= MAX_RANK:
            return None
        return f"needs at most {MAX_RANK} dimensions after merging"
