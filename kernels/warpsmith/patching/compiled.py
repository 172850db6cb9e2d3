"""What a patched model leaves to torch.compile where it is compiled: the kinds of modules that, on
the record of whole models, are faster as they were (core/elsewhere.json).

A compiler fuses what stands beside a norm or a gate with it, and cannot reach into a kernel. Which
of the two is worth more only a whole model tells.
"""

from __future__ import annotations

import torch
from torch import Tensor

from warpsmith.core import dispatch, elsewhere
from warpsmith.core.compiling import constant

#: The name of the rules.
CHOICE = "patch"
#: By compute capability the kinds that are left, each with what the record says.
LEFT: dict[int, dict[str, str]] = {}
for _rule in elsewhere.rules():
    if _rule.op == CHOICE:
        LEFT.setdefault(_rule.sm, {})[_rule.told["kind"]] = (
            f"left to torch.compile where it compiles them, which has whole models "
            f"{_rule.ratio:.3f} times as fast with that, on the record of {_rule.date}"
        )


@constant
def _is_left(kind: str, index: int) -> bool:
    """By the GPU, which compiled code takes for a constant; -1 is none."""
    return index >= 0 and kind in LEFT.get(dispatch.device_sm(torch.device("cuda", index)), ())


def left(kind: str, x: Tensor) -> bool:
    """Whether a call of modules of a kind goes through the module's own forward."""
    if not LEFT or not torch.compiler.is_compiling():
        return False
    return _is_left(kind, (x.device.index or 0) if x.is_cuda else -1)


def said(device: torch.device) -> dict[str, str]:
    """What of a model on a device is left, and why."""
    return LEFT.get(dispatch.device_sm(device), {}) if LEFT and device.type == "cuda" else {}
