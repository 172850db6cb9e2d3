"""Tiles that TMA fetches: descriptors made on the host, and what a kernel reads by them.

A descriptor made on the host is an argument of the launch, as a pointer is: a graph keeps it, and
Triton needs no memory for it.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from warpsmith.core.twins import interpreting
from warpsmith.spec.layout import address

#: Major versions of the architectures with TMA and the shared memory that the tiles here need.
ARCHITECTURES = (9, 10)
#: What TMA wants the base and the pitch of rows to be multiples of, in bytes.
ALIGNMENT = 16
#: Coordinates have 32 bits.
MOST = 1 << 31


@triton.jit
def load_box(boxes, first, outer, inner, TURNED: tl.constexpr):
    """Values `outer` and on by `inner` and on of an operand, zeros past its edges. Its first row is
    `first` of the descriptor; `TURNED`: it is stored transposed.
    """
    if TURNED:
        return boxes.load([first + inner, outer]).T
    else:
        return boxes.load([first + outer, inner])


class Boxes(NamedTuple):
    """An operand [batch, outer, inner] as TMA reads it."""

    rows: Tensor  # 2-D, as stored: the products of a batch one below another
    turned: bool
    step: int  # rows from one product to the next

    def of(self, outer: int, inner: int) -> TensorDescriptor:
        shape = (inner, outer) if self.turned else (outer, inner)
        return TensorDescriptor.from_tensor(self.rows, list(shape))


def boxes_of(x: Tensor, depth: int) -> Boxes | None:
    """None where TMA cannot read `x` [batch, outer, inner] in boxes of `depth` values of the inner
    dimension without what is next to it in memory: of what a box has past an operand's last row,
    which may be the next operand's first, only outer ones do no harm.
    """
    batch, _, inner = x.shape
    if x.numel() == 0:
        return None
    for turned in (False, True):
        stored = x.mT if turned else x
        rows, cols = stored.shape[1:]
        pitch = stored.stride(1)
        if stored.stride(2) != 1 or pitch < cols or pitch * x.element_size() % ALIGNMENT:
            continue
        apart = stored.stride(0) if batch > 1 else 0
        step = apart // pitch
        total = rows + (batch - 1) * step
        if apart % pitch or total >= MOST or cols >= MOST or address(x) % ALIGNMENT:
            continue
        if turned and batch > 1 and inner % depth:
            continue
        return Boxes(stored.as_strided((total, cols), (pitch, 1)), turned, step)
    return None


def boxes_of_both(a: Tensor, b: Tensor, depth: int) -> tuple[Boxes, Boxes] | None:
    """The operands [batch, m, k] and [batch, n, k] of a product; None where TMA cannot read both,
    or tensor cores do not take them as they are: all but those of 16 bits.
    """
    if a.element_size() != 2:
        return None
    if not interpreting() and torch.cuda.get_device_capability(a.device)[0] not in ARCHITECTURES:
        return None
    of_a, of_b = boxes_of(a, depth), boxes_of(b, depth)
    return (of_a, of_b) if of_a and of_b else None


def multiprocessors(device: torch.device) -> int:
    """How many programs are under way at a time, at one a multiprocessor."""
    if interpreting():
        return 3  # so that programs have several tiles
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
