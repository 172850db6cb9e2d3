"""Every tile of the menu of wgmma, also those that no call of that size chooses."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import torch

from emulator import checks
from warpsmith.core.catalogue import Op
from warpsmith.gemm.scaled_matmul_cases import BLOCK
from warpsmith.gemm.wgmma_plan import MENU, SCALED_MENU

#: Takes the place of the choice: "<tile of the menu>/<slices of k>".
FORCED = "WARPSMITH_WGMMA_TILE"
SLICES = (1, 2, 5)


def results(op: Op) -> Iterator[tuple[str, str]]:
    """Calls of operators whose library is loaded: several tiles along each dimension, with and
    without a remainder.
    """
    if op.name not in ("matmul", "linear", "scaled_matmul"):
        return
    dtype, menu = ("e4m3", SCALED_MENU) if op.name == "scaled_matmul" else ("bf16", MENU)
    generator = torch.Generator().manual_seed(7)
    variant = next(v for v in op.variants if v.rung.name == "wgmma_peak" and v.dtype == dtype)
    for tile, slices in itertools.product(range(len(menu)), SLICES):
        os.environ[FORCED] = f"{tile}/{slices}"
        for label, args in _calls(op.name, slices, generator):
            label = f"{label}, {menu[tile]}, {slices} slices"
            yield label, checks.wrong(op, variant, args, label)
    os.environ.pop(FORCED)


def _calls(
    name: str, slices: int, generator: torch.Generator
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    m, n, k = (40, 264, 328) if slices == 5 else (64, 128, 128)
    label = f"{m}x{n}x{k}"
    if name == "matmul":
        yield label, (randn(m, k), randn(n, k).t(), False, "same")
    elif name == "linear":
        yield label, (randn(m, k), randn(n, k), randn(n), "gelu", False)
    else:
        m, n, k = (200, 272, 640) if slices == 5 else (64, 128, 256)
        a, b = (randn(rows, k, dtype=torch.float8_e4m3fn) for rows in (m, n))
        blocks = k // BLOCK, -(-n // BLOCK)
        scales = {"rows": (m, n), "blocks": ((m, blocks[0]), blocks)}
        for kind, shapes in scales.items():
            of_a, of_b = (torch.rand(shape, generator=generator) + 0.5 for shape in shapes)
            for fast in (False, True)[: 2 if kind == "rows" else 1]:
                args = (a, b.t(), of_a, of_b, "bf16", fast, None)
                yield f"{m}x{n}x{k} {kind}{' fast' * fast}", args
