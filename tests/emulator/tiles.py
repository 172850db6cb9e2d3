"""Every tile of the menu of wgmma, also those that no call of that size chooses."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import torch

from emulator import checks
from warpsmith.core.catalogue import Op
from warpsmith.gemm.wgmma_plan import MENU

#: Takes the place of the choice: "<tile of the menu>/<slices of k>".
FORCED = "WARPSMITH_WGMMA_TILE"
SLICES = (1, 2, 5)


def results(op: Op) -> Iterator[tuple[str, str]]:
    """Calls of `matmul` and `linear`, whose library is loaded: several tiles along each dimension,
    with and without a remainder.
    """
    if op.name not in ("matmul", "linear"):
        return
    generator = torch.Generator().manual_seed(7)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(torch.bfloat16)

    variant = next(v for v in op.variants if v.rung.name == "wgmma_peak" and v.dtype == "bf16")
    for tile, slices in itertools.product(range(len(MENU)), SLICES):
        m, n, k = (40, 264, 328) if slices == 5 else (64, 128, 128)
        x, weight = randn(m, k), randn(n, k)
        if op.name == "matmul":
            args = (x, weight.t(), False, "same")
        else:
            args = (x, weight, randn(n), "gelu", False)
        os.environ[FORCED] = f"{tile}/{slices}"
        label = f"{m}x{n}x{k}, {MENU[tile]}, {slices} slices"
        yield label, checks.wrong(op, variant, args, label)
    os.environ.pop(FORCED)
