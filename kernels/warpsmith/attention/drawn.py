"""Attention whose dropped weights PyTorch's generator draws on the device: in compiled code and in
CUDA graphs, for which a seed of the host's would be the same for ever.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.attention import reference
from warpsmith.core import dispatch
from warpsmith.core.arguments_by_name import Call
from warpsmith.core.catalogue import Op

#: What PyTorch's own attention does not have, and the value that stands for its absence.
_ABSENT: dict[str, Any] = {
    "window_left": -1, "window_right": -1, "softcap": 0.0, "alibi_slopes": None, "mask": None,
    "bias": None, "sinks": None, "gate": None, "q_documents": None, "k_documents": None,
    "tree": None, "return_lse": False, "return_max_logits": False,
}  # fmt: skip


def attend(op: Op, args: tuple[Any, ...]) -> reference.Answer:
    """A call of `flash_attention` with dropout, without seed and offset: by PyTorch's own attention
    where that has its options, else by the reference, whose scores are in memory.

    Raises:
        RuntimeError: as the operator; on a GPU the scores would take more than the 2 GB that the
            reference is given.
    """
    if not torch.compiler.is_compiling():
        dispatch.checked(op, args)
    named = dict(zip(op.argument_names, args, strict=True))
    if _is_plain(named):
        return _plain(named), None, None
    assert op.too_large is not None
    if named["q"].is_cuda and (why := op.too_large(*args)):
        raise RuntimeError(f"{op.name}: PyTorch draws what is dropped in a graph; {why}")
    named["seed"] = None  # which the reference leaves to PyTorch
    return reference.attention(Call(tuple(named), tuple(named.values())))


def _is_plain(named: dict[str, Any]) -> bool:
    if any(named[name] is not absent and named[name] != absent for name, absent in _ABSENT.items()):
        return False
    # PyTorch's causal mask begins at the first key, ours ends at the last one
    return not named["causal"] or named["q"].shape[1] == named["k"].shape[1]


def _plain(named: dict[str, Any]) -> Tensor:
    q, k, v = (named[x].transpose(1, 2) for x in "qkv")
    # no comparison of sizes, which are symbols in compiled code
    grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    out = F.scaled_dot_product_attention(
        q, k, v, None, named["dropout_p"], named["causal"], scale=named["scale"], **grouped
    )
    return out.transpose(1, 2)
