"""Whether results are bitwise equal from run to run, and values on which the order of additions
shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Inputs, is_fp8

#: Runs that must agree.
RUNS = 20
#: Opposite outliers among the values.
PAIRS = 64


def cancelling(inputs: Inputs, n: int) -> Tensor:
    """Normal values and, at random places, outliers that cancel: what is added while one of a pair
    is in a sum and the other is not, drowns. Integers, whose sums have no order, are plain.

    Args:
        inputs: dtype, device and seed.
        n: how many values, some thousands at least.

    Returns:
        A tensor of shape [n].
    """
    x = inputs.plain(n)
    if not x.is_floating_point():
        return x
    large = torch.finfo(x.dtype).max ** 0.5
    generator = torch.Generator().manual_seed(inputs.seed)
    places = torch.randperm(n, generator=generator)[: 2 * PAIRS].to(x.device)
    sizes = large * (0.5 + torch.rand(PAIRS, generator=generator) / 2).to(x.device)
    wide = x.float() if is_fp8(x.dtype) else x
    wide[places[:PAIRS]] = sizes.to(x.dtype).to(wide.dtype)
    wide[places[PAIRS:]] = -sizes.to(x.dtype).to(wide.dtype)
    return wide.to(x.dtype)


def bits(x: Tensor) -> int:
    """The bits of a tensor of one element."""
    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return int(x.view(widths[x.element_size()]))


def distinct_results(
    function: Callable[..., Tensor], args: tuple[Any, ...], runs: int = RUNS
) -> set[int]:
    """The different results, as bits, that the runs of one call give."""
    return {bits(out) for out in [function(*args) for _ in range(runs)]}


def deterministic(
    make: Callable[[Inputs], tuple[Any, ...]],
) -> Callable[[Callable[..., Any], Inputs], None]:
    """The property of an operator with one value as its result that its runs agree bitwise.

    Args:
        make: the arguments of the call.
    """

    def check(function: Callable[..., Any], inputs: Inputs) -> None:
        found = distinct_results(function, make(inputs))
        assert len(found) == 1, f"{len(found)} different results in {RUNS} runs"

    return check
