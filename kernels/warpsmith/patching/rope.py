"""Rotary positions of transformers' attention.

Its layers call a function of their module, `apply_rotary_pos_emb`. Their forward is taken as it is,
and gets another function of that name.
"""

from __future__ import annotations

import inspect
import sys
from types import FunctionType
from typing import Any

from torch import Tensor
from torch.nn import Module

import warpsmith
from warpsmith.nn import calls
from warpsmith.patching import decorators
from warpsmith.patching.compiled import left
from warpsmith.patching.rules import Left, Rule, check_reads, reads

_NAME = "apply_rotary_pos_emb"
#: Pairs are halves of a head, or of its first values (Phi-3).
_KNOWN = reads("unsqueeze rotate_half", "unsqueeze rotate_half shape torch cat")


def make_rope(base: type[Module], option: Any) -> dict[str, Any]:
    forward: Any = inspect.unwrap(base.forward)
    plain = forward.__globals__[_NAME]

    def apply_rotary_pos_emb(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
    ) -> tuple[Tensor, Tensor]:
        heads = unsqueeze_dim == 1
        tables = cos.dim() == 3 and cos.dtype in (q.dtype, calls.FLOATS[0])
        served = tables and q.dim() == 4 and calls.fits(q, k) and not left("rope", q)
        if not served:
            return plain(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)
        pairs = cos.shape[-1] // 2
        if heads:
            q, k = q.transpose(1, 2), k.transpose(1, 2)
        q, k = warpsmith.rope(q, k, cos[..., :pairs], sin[..., :pairs])
        return (q.transpose(1, 2), k.transpose(1, 2)) if heads else (q, k)

    # without a __name__ compilers do not look these globals up in the module of the original
    found = {name: x for name, x in forward.__globals__.items() if name != "__name__"}
    found[_NAME] = apply_rotary_pos_emb
    rebound = FunctionType(
        forward.__code__, found, forward.__name__, forward.__defaults__, forward.__closure__
    )
    rebound.__kwdefaults__ = forward.__kwdefaults__
    rebound.__annotations__ = dict(forward.__annotations__)
    return {"forward": decorators.around(rebound, base.forward)}


def _option(module: Module) -> None:
    plain = type(module).forward
    forward: Any = inspect.unwrap(plain)
    decorators.check(plain)
    home = sys.modules.get(type(module).__module__)
    rotary = getattr(home, _NAME, None)
    code = getattr(forward, "__code__", None)
    if rotary is None or code is None or _NAME not in code.co_names:
        raise Left(f"its forward does not call {_NAME}")
    check_reads(rotary, _KNOWN)


ROPE = Rule("rope", "rope", make_rope, (), _option)
