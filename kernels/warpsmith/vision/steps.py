"""Steps of a schedule: what their operators ask of them, and tables that are computed once."""

from __future__ import annotations

import torch
from torch import Tensor

from warpsmith.core.catalogue import Inputs
from warpsmith.spec.checks import check_device


def check_steps(op: str, t: Tensor, x: Tensor, like: str) -> None:
    check_device(op, "t", t, x, like)
    if t.dtype not in (torch.int32, torch.int64):
        raise RuntimeError(f"{op}: expected t to hold int32 or int64, got {t.dtype}")


def rows_of(table: Tensor, t: Tensor) -> Tensor:
    """The table's row of each step; NaN where it has none."""
    known = (t >= 0) & (t < table.shape[0])
    if table.shape[0] == 0:
        return table.new_full((t.shape[0], table.shape[1]), float("nan"))
    rows = table[torch.where(known, t, 0).long()]
    return torch.where(known[:, None], rows, float("nan"))


def steps(i: Inputs, n: int, limit: int, dtype: torch.dtype = torch.int64) -> Tensor:
    if torch.device(i.device).type == "meta":
        return torch.empty(n, dtype=dtype, device="meta")
    generator = i.generator((n, limit))
    return torch.randint(0, limit, (n,), generator=generator, device=i.device, dtype=dtype)
