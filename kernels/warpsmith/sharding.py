"""Sharding rules: what `torch.distributed.tensor` is told of operators, so that each process
computes on its part and no more is moved between them than has to be.

A rule names, for one dimension of a mesh, placements of the arguments and those of the results that
follow. That all is replicated is a rule of every operator. Rules are registered when PyTorch's
module is there already and a family is imported, when a call of a public function meets a tensor
that has none, or when this module is imported.

Classes that lie on several processes are no rule, as they have to be summed over in between:
`cross_entropy` does so within its operators. Nor are groups of channels, of which each process has
another number, and what is dropped, which is drawn for each part: such calls are made of the parts
(`in_parts`).

Reference:
    Shoeybi et al. 2019, Megatron-LM, https://arxiv.org/abs/1909.08053; Korthikanti et al. 2022,
    Reducing Activation Recomputation (sequence parallelism), https://arxiv.org/abs/2205.05198.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed._functional_collectives as collectives
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.experimental import register_sharding

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import Op
from warpsmith.spec import philox

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


def _scores(*names: str) -> Rule:
    """Rows of attention scores, and what broadcasts to them; the queries of a causal matrix are
    counted, and stay together.
    """

    def rule(given: Given) -> Ways:
        rank = given[names[0]].ndim
        for dim in range(rank - (2 if given.get("causal") else 1)):
            placed: dict[str, Placement] = {}
            for n in names:
                x = given.get(n)
                own = dim - rank + (0 if x is None else x.ndim)
                if x is not None and own >= 0 and x.shape[own] != 1:
                    placed[n] = Shard(own)
            yield [Shard(dim)] * 2, placed

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


def _epilogue(given: Given) -> Ways:
    """As `linear`; a residual lies as the result does, and so does what is kept, None where nothing
    is. The largest of a row whose columns lie apart is the largest of what each part has.
    """
    last = given["x"].ndim - 1
    keep, amax = given.get("keep", False), given.get("amax", False)

    def way(of: Placement, most: Placement, bias: Placement, **placed: Placement) -> Any:
        placed |= {"bias": bias, "residual": of}
        here = {n: p for n, p in placed.items() if given.get(n) is not None}
        return [of, of if keep else None, most if amax else None], here

    for dim in range(last):
        yield way(Shard(dim), Shard(dim), Replicate(), x=Shard(dim))
    yield way(Shard(last), Partial("max"), Shard(0), weight=Shard(0))
    if given.get("activation", "none") == "none" and not amax:
        yield way(Partial(), Partial(), Partial(), x=Shard(last), weight=Shard(1))


def _weight_gradient(given: Given) -> Ways:
    """Columns of either operand, and parts of the sums over rows."""
    yield [Shard(0), Shard(0)], {"grad": Shard(1)}
    yield [Shard(1), Replicate()], {"x": Shard(1)}
    yield [Partial(), Partial()], {"grad": Shard(0), "x": Shard(0)}


RULES: dict[str, Rule] = {
    "add": _broadcasting("x", "y", linear=True),
    "mul": _broadcasting("x", "y"),
    "mul_add": _broadcasting("x", "y", "z"),
    **{f"bias_{f}": _biased("x") for f in ("gelu", "gelu_tanh")},
    **{f"bias_{f}_backward": _biased("x", "grad") for f in ("gelu", "gelu_tanh")},
    **{f"{f}_and_mul": _gated("x") for f in ("silu", "gelu", "gelu_tanh")},
    **{f"{f}_and_mul_backward": _gated("x", "grad") for f in ("silu", "gelu", "gelu_tanh")},
    "glu": _along("x"),
    "glu_backward": _along("x", "grad"),
    "weighted_sum_forward": _alike(*(f"x{k}" for k in range(8))),
    "softmax": _along("x"),
    "log_softmax": _along("x"),
    "softmax_backward": _along("y", "grad"),
    "log_softmax_backward": _along("y", "grad"),
    "scaled_masked_softmax": _scores("x", "mask"),
    "scaled_masked_softmax_backward": _scores("y", "grad"),
    "rms_norm": _rows("x"),
    "layer_norm": _rows("x"),
    "rms_norm_backward": _rows("x", "grad", parameters=1),
    "layer_norm_backward": _rows("x", "grad", parameters=2),
    "rms_norm_with_rstd": _rows("x", results=2),
    "layer_norm_with_rstd": _rows("x", results=2),
    "rms_norm_backward_from_output": _rows("y", "grad", "rstd", parameters=1),
    "layer_norm_backward_from_output": _rows("y", "grad", "rstd", parameters=2),
    "add_rms_norm": _residual,
    "add_layer_norm": _residual,
    "add_rms_norm_backward": _residual_backward(1),
    "add_layer_norm_backward": _residual_backward(2),
    "bce_with_logits_forward": _bce,
    "bce_with_logits_backward": _bce_backward,
    "matmul": _matmul,
    "linear": _linear,
    "linear_epilogue": _epilogue,
    "linear_weight_gradient": _weight_gradient,
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
        self.local = _part(logits, self.placements)
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
        return _part(x, self.rows)

    def back(self, local: Tensor, placements: tuple[Placement, ...], shape: torch.Size) -> DTensor:
        return _wrapped(local, self.mesh, placements, shape)

    def reduced(self, x: Tensor, how: str) -> Tensor:
        assert self.group is not None
        found = collectives.all_reduce(x, how, self.group)
        return found.wait() if isinstance(found, collectives.AsyncCollectiveTensor) else found

    def places(self, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The class of each row among those that are here, -1 where the row is ignored; and which
        rows have theirs here, are ignored, or have none at all.
        """
        here = self.local.shape[1]
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
    local, at = classes.local, classes.of_rows(target)
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
    local, at = classes.local, classes.of_rows(target)
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


# --- groups of channels ---------------------------------------------------------------------------


def _group_norm(
    defaults: tuple[Any, ...], op: Any, args: tuple[Any, ...], kwargs: Any, backward: bool = False
) -> Any:
    """Samples, or whole groups of channels, on several processes."""
    args += defaults[len(args) :]
    grads, (x, groups, weight, bias, *rest) = args[:backward], args[backward:]
    mesh, here = x.device_mesh, groups
    kept: list[Placement] = []
    of_channels: list[Placement] = []
    for i, p in enumerate(x.placements):
        whole = p.is_shard(1) and here % mesh.size(i) == 0 and here == groups
        here = here // mesh.size(i) if whole else here
        kept.append(p if whole or p.is_shard(0) else Replicate())
        of_channels.append(Shard(0) if whole else Replicate())

    def local(t: DTensor | None, placements: list[Placement]) -> Tensor | None:
        return None if t is None else _part(t, placements)

    vectors = [local(v, of_channels) for v in (weight, bias)]
    found = op(*(local(t, kept) for t in (*grads, x)), here, *vectors, *rest)
    sums = [Partial() if p.is_shard(0) else c for p, c in zip(kept, of_channels, strict=True)]
    y, *of_vectors = found if backward else (found,)
    out = [_wrapped(y, mesh, kept, x.shape)]
    for v, of in zip(of_vectors, (weight, bias), strict=False):
        none = [Replicate()] * mesh.ndim
        out.append(
            _wrapped(v, mesh, none if of is None else sums, v.shape if of is None else of.shape)
        )
    return tuple(out) if backward else out[0]


def _part(x: DTensor, placements: Iterable[Placement]) -> Tensor:
    """What is here of x, placed so, for an operator, which autograd does not follow: what requires
    a gradient PyTorch 2.11 does not redistribute there.
    """
    detached: DTensor = x.detach()  # type: ignore[assignment]
    return detached.redistribute(placements=tuple(placements)).to_local()


def _wrapped(local: Tensor, mesh: Any, placements: Iterable[Placement], shape: Any) -> DTensor:
    """A part as what it is of."""
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        local.contiguous(), mesh, tuple(placements), run_check=False, shape=shape, stride=stride
    )


HANDLERS: dict[str, Callable[..., Any]] = {
    "group_norm": _group_norm,
    "group_norm_backward": functools.partial(_group_norm, backward=True),
    "cross_entropy_forward": _cross_entropy,
    "cross_entropy_backward": _cross_entropy_backward,
}


# --- calls that are made of parts -----------------------------------------------------------------


def _dropped(given: Given) -> Ways:
    """Elements, of which each part draws for itself; beside a bias and a residual sum."""
    for [y], placed in _biased("x")({"x": given["x"]}):
        cut = {"x": y, "residual": y, "bias": placed.get("bias", Replicate())}
        yield [y], {n: p for n, p in cut.items() if given.get(n) is not None}


def _dropped_rows(given: Given) -> Ways:
    for dim in range(given["x"].ndim - 1):
        names = [n for n in ("x", "residual", "row_scale") if given.get(n) is not None]
        yield [Shard(dim), Shard(dim)], dict.fromkeys(names, Shard(dim))


def _losses(given: Given) -> Ways:
    """Rows: the loss of each, or sums over them."""
    for dim in range(given["x"].ndim - 1):
        names = [n for n in ("x", "target", "token_weight") if given.get(n) is not None]
        each = given["reduction"] == "none"
        yield [Shard(dim) if each else Partial()] * 2, dict.fromkeys(names, Shard(dim))


PARTS: dict[str, Rule] = {
    "dropout": _dropped,
    "bias_dropout_add": _dropped,
    "dropout_add_rms_norm": _dropped_rows,
    "dropout_add_layer_norm": _dropped_rows,
    "bias_scale_mask_softmax_dropout": _scores("x", "bias", "mask"),
    "fused_linear_cross_entropy": _losses,
}


def in_parts(
    name: str,
    run: Callable[..., tuple[Tensor, ...]],
    tensors: Mapping[str, Any],
    numbers: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Any, ...]:
    """A call on the parts that are here, by the placements of x; PyTorch differentiates what leads
    there and back.

    Args:
        name: the public function, by which `PARTS` has the rule.
        run: gets the parts by name, and `part`, the number of the part; returns the parts of the
            results. Of more results than the rule has, the others are handed out as they are.
        tensors: the arguments that are tensors or None, sharded all of them.
        numbers: the others that the rule asks for.
    """
    x = tensors["x"]
    for n, t in tensors.items():
        if t is not None and not isinstance(t, DTensor):
            raise RuntimeError(f"{name}: expected {n} to be a DTensor beside others that are one")
    mesh, ways = x.device_mesh, list(PARTS[name]({**tensors, **numbers}))
    placed: dict[str, list[Placement]] = {n: [] for n, t in tensors.items() if t is not None}
    results: list[list[Placement]] = [[] for _ in (ways[0][0] if ways else ())]
    part = 0
    for i, p in enumerate(x.placements):
        way = next((w for w in ways if w[1]["x"] == p), ([Replicate()] * len(results), {}))
        if way[1]:
            part = part * mesh.size(i) + mesh.get_local_rank(i)
        for n, of in placed.items():
            of.append(way[1].get(n, Replicate()))
        for of, q in zip(results, way[0], strict=False):
            of.append(q)

    def local(n: str) -> Tensor:
        cut = [p.is_shard() for p in placed["x"]]
        grads = [
            Partial() if c and not p.is_shard() else p for p, c in zip(placed[n], cut, strict=True)
        ]
        return tensors[n].redistribute(placements=placed[n]).to_local(grad_placements=grads)

    found = run(part=part, **{n: local(n) if n in placed else None for n in tensors})
    several = zip(found, results, strict=False)
    handed = [_wrapped(t, mesh, of, _whole_shape(t, of, x)) for t, of in several]
    return (*handed, *found[len(results) :])


def replicated(x: Tensor, mesh: Any) -> DTensor:
    """A tensor that all processes have."""
    return DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)


def _whole_shape(part: Tensor, placements: Iterable[Placement], x: DTensor) -> torch.Size:
    """Of a result whose cut dimensions are those of x."""
    sizes = list(part.shape)
    for p in placements:
        if isinstance(p, Shard):
            sizes[p.dim] = x.shape[p.dim]
    return torch.Size(sizes)


def dropped(
    name: str,
    run: Callable[..., tuple[Tensor, ...]],
    tensors: Mapping[str, Any],
    p: float,
    seed: int | None,
    offset: int | None,
    numbers: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Any, ...]:
    """`in_parts` of a function that drops: each part has a stream of the generator of its own, and
    what several processes hold alike has one mask. `run` gets `seed` and `offset`, too.
    """
    drawn = philox.drawn(seed, offset, p)
    if drawn is None:
        return in_parts(name, lambda part, **t: run(seed=None, offset=None, **t), tensors, numbers)
    if seed is None and offset is None:
        _require_one_seed(name, tensors["x"], drawn[0])

    def of_part(part: int, **parts: Any) -> tuple[Tensor, ...]:
        return run(seed=drawn[0], offset=offset_of(drawn[1], part), **parts)

    return in_parts(name, of_part, tensors, numbers)


def offset_of(offset: int, part: int) -> int:
    """The stream of a part, among those of a call's seed: 2^48 further on than that of the part
    before it.
    """
    wrapped = (offset + (part << 48)) % (1 << 64)
    return wrapped - (1 << 64) if wrapped >> 63 else wrapped


_agreed: set[Any] = set()


def _require_one_seed(name: str, x: DTensor, seed: int) -> None:
    """That the processes which hold the same draw the same; asked once for each mesh."""
    if x.device_mesh in _agreed or all(p.is_shard() for p in x.placements):
        return
    _agreed.add(x.device_mesh)
    mine = torch.tensor(seed, device=x.to_local().device)
    for i, p in enumerate(x.placements):
        if p.is_shard():
            continue
        least, most = (
            collectives.all_reduce(mine, how, (x.device_mesh, i)) for how in ("min", "max")
        )
        if int(least) != int(most):
            _agreed.discard(x.device_mesh)
            raise RuntimeError(
                f"{name}: expected one seed on all processes that hold the same; give one, or "
                "call torch.manual_seed with one number on all of them"
            )


# --- registration ---------------------------------------------------------------------------------


def _strategies(op: Op, rule: Rule) -> Callable[..., Any]:
    names, count = op.argument_names, len(op.outputs)

    def run(*args: Any) -> list[tuple[list[Any], list[Any]]]:
        given = dict(zip(names, args, strict=False))
        tensors = {n for n, a in given.items() if hasattr(a, "placements")}

        def way(results: Iterable[Placement | None], placed: Mapping[str, Placement]) -> Any:
            inputs = [placed.get(n, Replicate()) if n in tensors else None for n in given]
            return list(results)[:count], inputs

        ways = [way(*found) for found in rule(given)]
        left_out = [p is None for p in ways[0][0]] if ways else [False] * count
        whole = [None if left else Replicate() for left in left_out]
        return [way(whole, {}), *ways]

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
        # a choice of placements is kept for calls that look alike, for which PyTorch leaves bools,
        # floats and names out, which rules look at
        DTensor._op_dispatcher.sharding_propagator.op_to_schema_info[default].static_argnum = 0
    else:
        return
    _known.add(op.name)


def register_all() -> None:
    """Those of all families that are imported."""
    for op in catalogue.known():
        if dispatch.is_registered(op):
            register(op)


def _tell_dtypes_apart() -> None:
    """What `to` makes of a tensor is kept for calls that look alike, and PyTorch 2.11 does not look
    at the dtype that is asked for: a gradient that is f32 already is met before one that is to be.
    """
    known = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info
    if found := known.get(torch.ops.aten.to.dtype):
        found.static_argnum = min(found.static_argnum, 1)


_tell_dtypes_apart()
register_all()
