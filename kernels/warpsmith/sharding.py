"""Sharding rules: what `torch.distributed.tensor` is told of operators, so that each process
computes on its part and no more is moved between them than has to be.

A rule names, for one dimension of a mesh, placements of the arguments and those of the results that
follow. That all is replicated is a rule of every operator. Rules are registered when PyTorch's
module is there already and a family is imported, when a call of a public function meets a tensor
that has none, or when this module is imported.

Classes that lie on several processes are no rule, as they have to be summed over in between:
`cross_entropy` does so within its operators.

Reference:
    Shoeybi et al. 2019, Megatron-LM, https://arxiv.org/abs/1909.08053; Korthikanti et al. 2022,
    Reducing Activation Recomputation (sequence parallelism), https://arxiv.org/abs/2205.05198.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed._functional_collectives as collectives
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.experimental import register_sharding

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import Op

#: The arguments of a call by their names, tensors as what is known of them.
Given = Mapping[str, Any]
#: Placements of the results, and those of arguments; the others are replicated.
Ways = Iterator[tuple[Iterable[Placement], Mapping[str, Placement]]]
Rule = Callable[[Given], Ways]


# --- elementwise ----------------------------------------------------------------------------------


def _alike(*names: str, last: bool = True) -> Rule:
    """Tensors of one shape, any of whose dimensions may be cut, but for the last if it is told."""

    def rule(given: Given) -> Ways:
        present = [n for n in names if given.get(n) is not None]
        for dim in range(given[names[0]].ndim - (not last)):
            yield [Shard(dim)], {n: Shard(dim) for n in present}

    return rule


def _broadcasting(*names: str, linear: bool = False) -> Rule:
    """Tensors that broadcast: a dimension is cut in all that have it."""

    def rule(given: Given) -> Ways:
        rank = max(given[n].ndim for n in names)
        for dim in range(rank):
            placed = {}
            for n in names:
                own = dim - rank + given[n].ndim
                if own >= 0 and given[n].shape[own] != 1:
                    placed[n] = Shard(own)
            yield [Shard(dim)], placed
        if linear:
            yield [Partial()], {n: Partial() for n in names}

    return rule


def _biased(*names: str) -> Rule:
    """x, and what is like it, beside a bias of its last dimension."""

    def rule(given: Given) -> Ways:
        last = given["x"].ndim - 1
        for dim in range(last + 1):
            placed: dict[str, Placement] = {n: Shard(dim) for n in names}
            if dim == last:
                placed["bias"] = Shard(0)
            yield [Shard(dim)], placed

    return rule


def _gated(*names: str) -> Rule:
    """Gate and up, or both in one, which is not cut between them."""

    def rule(given: Given) -> Ways:
        apart = given.get("up") is not None
        cut = (*names, "up") if apart else names
        for dim in range(given["x"].ndim - (not apart)):
            yield [Shard(dim), Shard(dim) if apart else Replicate()], dict.fromkeys(cut, Shard(dim))

    return rule


# --- rows -----------------------------------------------------------------------------------------


def _along(name: str, *others: str) -> Rule:
    """Cut along any dimension but `dim`."""

    def rule(given: Given) -> Ways:
        rank = given[name].ndim
        kept = given.get("dim", -1) % max(rank, 1)
        for dim in range(rank):
            if dim != kept:
                yield [Shard(dim)], dict.fromkeys((name, *others), Shard(dim))

    return rule


def _rows(name: str, *others: str, results: int = 1, parameters: int = 0) -> Rule:
    """Rows of the last dimension, which is whole: cut along any other one. Behind the results come
    gradients of parameters, which are sums over rows.
    """

    def rule(given: Given) -> Ways:
        present = [n for n in (name, *others) if given.get(n) is not None]
        for dim in range(given[name].ndim - 1):
            of_rows: list[Placement] = [Shard(dim)] * results
            sums = [
                Partial() if given.get(n) is not None else Replicate()
                for n in ("weight", "bias")[:parameters]
            ]
            yield [*of_rows, *sums], dict.fromkeys(present, Shard(dim))

    return rule


def _residual(given: Given) -> Ways:
    present = [n for n in ("x", "residual") if given.get(n) is not None]
    for dim in range(given["x"].ndim - 1):
        h = Shard(dim) if "residual" in present else Replicate()  # of no elements
        yield [Shard(dim), h], dict.fromkeys(present, Shard(dim))


def _residual_backward(parameters: int) -> Rule:
    def rule(given: Given) -> Ways:
        rows = [n for n in ("grad", "grad_h", "h") if given.get(n) is not None]
        for dim in range(given["h"].ndim - 1):
            dx = Shard(dim) if given["separate_x"] else Replicate()  # of no elements
            sums = [
                Partial() if given.get(n) is not None else Replicate()
                for n in ("weight", "bias")[:parameters]
            ]
            yield [Shard(dim), dx, *sums], dict.fromkeys(rows, Shard(dim))

    return rule


# --- losses ---------------------------------------------------------------------------------------


def _bce(given: Given) -> Ways:
    """Each element by itself, their sum, or their mean where all have as many."""
    x, reduction = given["x"], given.get("reduction", 1)
    for dim in range(x.ndim):
        even = x.shape[dim] % x.mesh.size() == 0
        if reduction == 1 and not even:
            continue
        out = (Shard(dim), Partial("avg"), Partial())[reduction]
        yield [out], {"x": Shard(dim), "target": Shard(dim)}


def _bce_backward(given: Given) -> Ways:
    for dim in range(given["x"].ndim):
        placed: dict[str, Placement] = {"x": Shard(dim), "target": Shard(dim)}
        if given["grad"].ndim:
            placed["grad"] = Shard(dim)
        yield [Shard(dim)], placed


# --- products -------------------------------------------------------------------------------------


def _matmul(given: Given) -> Ways:
    a, b = given["a"], given["b"]
    if a.ndim < 2 or b.ndim < 2:
        return
    rank = max(a.ndim, b.ndim)
    for dim in range(rank - 2):  # of batches
        placed: dict[str, Placement] = {}
        for n, x in (("a", a), ("b", b)):
            own = dim - rank + x.ndim
            if own >= 0 and x.shape[own] != 1:
                placed[n] = Shard(own)
        yield [Shard(dim)], placed
    yield [Shard(rank - 2)], {"a": Shard(a.ndim - 2)}
    yield [Shard(rank - 1)], {"b": Shard(b.ndim - 1)}
    yield [Partial()], {"a": Shard(a.ndim - 1), "b": Shard(b.ndim - 2)}


def _linear(given: Given) -> Ways:
    """Rows, columns of the result, and parts of the sum, for which a bias is a part, too."""
    last = given["x"].ndim - 1
    bias = given.get("bias") is not None
    for dim in range(last):
        yield [Shard(dim)], {"x": Shard(dim)}
    yield [Shard(last)], {"weight": Shard(0), **({"bias": Shard(0)} if bias else {})}
    if given.get("activation", "none") == "none":
        placed: dict[str, Placement] = {"x": Shard(last), "weight": Shard(1)}
        yield [Partial()], {**placed, **({"bias": Partial()} if bias else {})}


RULES: dict[str, Rule] = {
    "add": _broadcasting("x", "y", linear=True),
    "mul": _broadcasting("x", "y"),
    "mul_add": _broadcasting("x", "y", "z"),
    **{f"bias_{f}": _biased("x") for f in ("gelu", "gelu_tanh")},
    **{f"bias_{f}_backward": _biased("x", "grad") for f in ("gelu", "gelu_tanh")},
    **{f"{f}_and_mul": _gated("x") for f in ("silu", "gelu", "gelu_tanh")},
    **{f"{f}_and_mul_backward": _gated("x", "grad") for f in ("silu", "gelu", "gelu_tanh")},
    "softmax": _along("x"),
    "log_softmax": _along("x"),
    "softmax_backward": _along("y", "grad"),
    "log_softmax_backward": _along("y", "grad"),
    "rms_norm": _rows("x"),
    "layer_norm": _rows("x"),
    "rms_norm_backward": _rows("x", "grad", parameters=1),
    "layer_norm_backward": _rows("x", "grad", parameters=2),
    "add_rms_norm": _residual,
    "add_layer_norm": _residual,
    "add_rms_norm_backward": _residual_backward(1),
    "add_layer_norm_backward": _residual_backward(2),
    "bce_with_logits_forward": _bce,
    "bce_with_logits_backward": _bce_backward,
    "matmul": _matmul,
    "linear": _linear,
}
#: Of operators by the group of functions that they belong to: activations.
RULES_OF_PARTS: dict[str, Rule] = {"unary": _alike("x"), "unary_backward": _alike("x", "grad")}


# --- classes on several processes -----------------------------------------------------------------


class _Classes:
    """Logits [n, v] whose rows, or classes, lie on several processes, and the part that is here."""

    def __init__(self, logits: DTensor) -> None:
        placements: list[Placement] = []
        self.group: tuple[Any, int] | None = None
        for i, p in enumerate(logits.placements):
            kept = p.is_shard(0) or (p.is_shard(1) and self.group is None)
            if p.is_shard(1) and kept:
                self.group = (logits.device_mesh, i)
            placements.append(p if kept else Replicate())
        self.mesh, self.placements = logits.device_mesh, tuple(placements)
        self.shape = logits.shape
        self.logits = logits.redistribute(placements=self.placements)
        self.rows = tuple(p if p.is_shard(0) else Replicate() for p in placements)
        _, (_, self.first) = compute_local_shape_and_global_offset(
            logits.shape, self.mesh, self.placements
        )

    def of_rows(self, x: Tensor) -> Tensor:
        """What of one number per row is here."""
        if not isinstance(x, DTensor):
            raise RuntimeError(
                "cross_entropy: expected target to be a DTensor beside logits that are one"
            )
        return x.redistribute(placements=self.rows).to_local()

    def back(self, local: Tensor, placements: tuple[Placement, ...], shape: torch.Size) -> DTensor:
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(
            local.contiguous(), self.mesh, placements, run_check=False, shape=shape, stride=stride
        )

    def reduced(self, x: Tensor, how: str) -> Tensor:
        assert self.group is not None
        found = collectives.all_reduce(x, how, self.group)
        return found.wait() if isinstance(found, collectives.AsyncCollectiveTensor) else found

    def places(self, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The class of each row among those that are here, -1 where the row is ignored; and which
        rows have theirs here, are ignored, or have none at all.
        """
        here = self.logits.to_local().shape[1]
        wide = target.long()
        ignored = target == ignore_index
        mine = ~ignored & (wide >= self.first) & (wide < self.first + here)
        none = ~ignored & ((wide < 0) | (wide >= self.shape[1]))
        local = torch.where(mine, wide - self.first, 0).masked_fill(ignored, -1)
        return local, mine, ignored, none


def _cross_entropy(
    defaults: tuple[Any, ...], op: Any, args: tuple[Any, ...], kwargs: Any
) -> tuple[DTensor, DTensor]:
    args += defaults[len(args) :]
    logits, target, ignore_index, smoothing, z_loss = args
    classes = _Classes(logits)
    local, at = classes.logits.to_local(), classes.of_rows(target)
    if classes.group is None:
        loss, lse = op(local, at, ignore_index, smoothing, z_loss)
    else:
        place, mine, ignored, none = classes.places(at, ignore_index)
        wide = torch.float64 if local.dtype == torch.float64 else torch.float32
        if local.shape[1]:
            lse = op(local, place.clamp(min=0), -1, 0.0, 0.0)[1]
            found = local.gather(1, place.clamp(min=0)[:, None])[:, 0].to(wide)
        else:
            lse = torch.full(local.shape[:1], -math.inf, dtype=wide, device=local.device)
            found = torch.zeros_like(lse)
        most = classes.reduced(lse, "max")
        lse = most + classes.reduced((lse - most).exp(), "sum").log()
        found = classes.reduced(torch.where(mine, found, 0.0), "sum")
        loss = (1.0 - smoothing) * (lse - found)
        if smoothing:
            mean = classes.reduced(local.sum(1, dtype=wide), "sum") / classes.shape[1]
            loss = loss + smoothing * (lse - mean)
        if z_loss:
            loss = loss + z_loss * lse.square()
        loss = loss.masked_fill(none, math.nan).masked_fill(ignored, 0.0)
        lse = lse.masked_fill(ignored, 0.0)
    rows = classes.shape[:1]
    return classes.back(loss, classes.rows, rows), classes.back(lse, classes.rows, rows)


def _cross_entropy_backward(
    defaults: tuple[Any, ...], op: Any, args: tuple[Any, ...], kwargs: Any
) -> DTensor:
    args += defaults[len(args) :]
    logits, target, lse, grad_loss, grad_lse, ignore_index, smoothing, z_loss = args
    classes = _Classes(logits)
    local, at = classes.logits.to_local(), classes.of_rows(target)
    lse, of_loss, of_lse = (classes.of_rows(x) for x in (lse, grad_loss, grad_lse))
    if classes.group is None:
        found = op(local, at, lse, of_loss, of_lse, ignore_index, smoothing, z_loss)
    else:
        place, mine, ignored, none = classes.places(at, ignore_index)
        of_loss = of_loss.masked_fill(none, math.nan)
        factor = of_loss * (1.0 + 2.0 * z_loss * lse) + of_lse  # of the softmax
        of_class = torch.where(mine, (1.0 - smoothing) * of_loss, 0.0)
        found = torch.empty_like(local)
        if local.shape[1]:
            found = op(local, place, lse, of_class, factor - of_class, -1, 0.0, 0.0)
        if smoothing:
            share = (of_loss * (smoothing / classes.shape[1])).masked_fill(ignored, 0.0)
            found = (found - share[:, None]).to(found.dtype)
    return classes.back(found, classes.placements, classes.shape)


HANDLERS: dict[str, Callable[..., Any]] = {
    "cross_entropy_forward": _cross_entropy,
    "cross_entropy_backward": _cross_entropy_backward,
}


# --- registration ---------------------------------------------------------------------------------


def _strategies(op: Op, rule: Rule) -> Callable[..., Any]:
    names, count = op.argument_names, len(op.outputs)

    def run(*args: Any) -> list[tuple[list[Any], list[Any]]]:
        given = dict(zip(names, args, strict=False))
        tensors = {n for n, a in given.items() if hasattr(a, "placements")}

        def way(results: Iterable[Placement], placed: Mapping[str, Placement]) -> Any:
            inputs = [placed.get(n, Replicate()) if n in tensors else None for n in given]
            return list(results)[:count], inputs

        ways = [way(*found) for found in rule(given)]
        return [way([Replicate()] * count, {}), *ways]

    return run


_known: set[str] = set()


def register(op: Op) -> None:
    """Tells PyTorch of an operator, if there is a rule."""
    if op.name in _known:
        return
    default = getattr(torch.ops.warpsmith, op.name).default
    if handler := HANDLERS.get(op.name):
        served = functools.partial(handler, op.defaults)
        DTensor._op_dispatcher._custom_op_handlers[default] = served
    elif rule := RULES.get(op.name) or RULES_OF_PARTS.get(op.part):
        register_sharding(default)(_strategies(op, rule))
    else:
        return
    _known.add(op.name)


def register_all() -> None:
    """Those of all families that are imported."""
    for op in catalogue.known():
        if dispatch.is_registered(op):
            register(op)


register_all()
