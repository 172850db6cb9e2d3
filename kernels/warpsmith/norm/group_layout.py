"""How a tensor lies in memory as groups of channels; mirrors group.h and group_operands.h in
csrc/norm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Groups:
    """A tensor as [n, c, spatial], or as [n, spatial, c] with channels last."""

    n: int
    c: int
    spatial: int
    groups: int
    channels_last: bool
    #: Strides of the dense tensor that a kernel sees.
    strides: tuple[int, ...]
    #: The tensor itself has other strides: a kernel gets a copy.
    copied: bool

    @property
    def group_channels(self) -> int:
        return self.c // self.groups

    @property
    def rows(self) -> int:
        """Groups of all samples."""
        return self.n * self.groups

    @property
    def row_size(self) -> int:
        """Values of a group."""
        return self.group_channels * self.spatial

    def unit_packs(self, width: int) -> int:
        """Packs of channels up to the first boundary that both a pack and a group end on."""
        return self.group_channels // math.gcd(self.group_channels, width)

    def columns(self, width: int, most: int) -> int:
        """Packs of a tile of channels that holds whole groups: `most`, unless one unit has more."""
        unit = self.unit_packs(width)
        units = self.c // width // unit
        tiles = -(-units // min(max(most // unit, 1), units))
        return -(-units // tiles) * unit


def is_channels_last(x: Tensor) -> bool:
    """Whether the channels of `x` are neighbours in memory.

    With one channel or one position there is no difference, and the tensor counts as contiguous.

    Args:
        x: [n, c, *spatial].
    """
    if x.numel() == 0 or x.shape[1] == 1 or math.prod(x.shape[2:]) == 1:
        return False
    return x.stride(1) == 1


def dense_strides(x: Tensor) -> tuple[int, ...]:
    """Strides of a dense tensor of the shape of `x`, in its own memory format."""
    last = is_channels_last(x)
    strides = [0] * x.dim()
    stride = x.shape[1] if last else 1
    for d in reversed(range(2, x.dim())):
        strides[d] = stride
        stride *= x.shape[d]
    strides[1] = 1 if last else stride
    strides[0] = stride if last else stride * x.shape[1]
    return tuple(strides)


def as_groups(x: Tensor, groups: int) -> Groups:
    """The layout of `x`, or of the dense copy that a kernel would get.

    Args:
        x: [n, c, *spatial], with something in it.
        groups: a divisor of c.
    """
    strides = dense_strides(x)
    same = all(s == 1 or x.stride(d) == strides[d] for d, s in enumerate(x.shape))
    n, c = x.shape[:2]
    spatial = math.prod(x.shape[2:])
    return Groups(n, c, spatial, groups, is_channels_last(x), strides, not same)


def empty_like(x: Tensor) -> Tensor:
    """What group_norm returns for `x`, uninitialised: dense, in the memory format of `x`."""
    if x.numel() == 0:
        return x.new_empty(x.shape)
    return x.new_empty_strided(x.shape, dense_strides(x))


def dense(x: Tensor, strides: tuple[int, ...]) -> Tensor:
    """`x` itself where it has these strides, otherwise a copy that does."""
    if all(s == 1 or x.stride(d) == strides[d] for d, s in enumerate(x.shape)):
        return x
    return x.new_empty_strided(x.shape, strides).copy_(x)
