"""`fused_linear_cross_entropy` of sharded tensors.

Where rows lie on several processes, each makes the losses of its own, and their sum and what a
mean divides by are added up. Where classes do, the logits of a chunk of rows are a product of the
part of the weight that is here, and `cross_entropy` adds up over the processes what rows have in
common; the backward pass computes the logits of each chunk again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from warpsmith.loss.cross_entropy import cross_entropy
from warpsmith.loss.fused_linear_cross_entropy import (
    _OP,
    bytes_of_row,
    default_chunk,
    fused_linear_cross_entropy,
    pieces,
    weights_of_rows,
)


def run(rules: Any, tensors: Mapping[str, Any], reduction: str, **options: Any) -> Tensor:
    """The public function, of which some tensors are sharded. `rules`: `warpsmith.sharding`."""
    if any(p.is_shard(0) for p in getattr(tensors["weight"], "placements", ())):
        return _by_classes(rules, tensors, reduction, **options)

    def of_part(part: int, **parts: Any) -> tuple[Tensor, ...]:
        how = "none" if reduction == "none" else "sum"
        loss = fused_linear_cross_entropy(**parts, reduction=how, **options)
        counted = _weights(parts, options) if reduction == "mean" else None
        return (loss,) if counted is None else (loss, counted.sum())

    loss, *count = rules.in_parts(_OP, of_part, tensors, {"reduction": reduction})
    return loss / count[0] if count else loss  # type: ignore[no-any-return]


def _weights(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> Tensor:
    """What the loss of each row counts for: nothing where it is ignored."""
    ignore_index, target = options["ignore_index"], tensors["target"].flatten()
    found = weights_of_rows(
        tensors["x"],
        tensors["weight"],
        target,
        tensors["class_weight"],
        tensors["token_weight"],
        ignore_index,
        options["label_smoothing"],
    )
    return torch.where(target == ignore_index, 0.0, found)


def _by_classes(
    rules: Any,
    tensors: Mapping[str, Any],
    reduction: str,
    *,
    softcap: float | None,
    chunk_rows: int | None,
    accumulate_f32: bool,  # the gradient of the weight is summed as PyTorch does
    **options: Any,
) -> Tensor:
    x, target, bias = (tensors[n] for n in ("x", "target", "bias"))
    weight = tensors["weight"].to(x.dtype)
    shape = target.shape
    x, target = x.flatten(0, -2), target.flatten()

    def losses(rows: Tensor, of_rows: Tensor) -> Tensor:
        logits = torch.ops.warpsmith.linear(rows, weight)
        logits = logits if bias is None else logits + bias
        given: Tensor = cross_entropy(logits, of_rows, reduction="none", softcap=softcap, **options)
        return given

    rows, here = x.shape[0], weight.to_local().shape[0]
    if any(p.is_shard(0) for p in x.placements):  # cut already
        chunk = rows
    else:
        chunk = chunk_rows or default_chunk(rows, bytes_of_row(max(here, 1), x, softcap))
    parts = [
        checkpoint(losses, x[part], target[part], use_reentrant=False)
        for part in pieces(rows, chunk)
    ]
    loss = torch.cat(parts) if len(parts) > 1 else parts[0]
    whole = {n: t if t is None else t.full_tensor() for n, t in tensors.items() if n != "weight"}
    counted = rules.replicated(_weights({**whole, "weight": weight}, options), x.device_mesh)
    loss = torch.where(counted == 0.0, 0.0, loss * counted)
    if reduction == "none":
        return loss.view(shape)
    return loss.sum() / counted.sum() if reduction == "mean" else loss.sum()
