"""Reductions along one dimension: sum, mean, amax, amin, argmax, argmin, var.

They share one set of kernels, csrc/reduce/reduce_dim, whose parameter is the reducer. None uses
atomics: every result is bitwise the same from run to run. The public functions are in over_dims.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import PACK, Cost, Gradients, Inputs, Op, Property, Rung
from warpsmith.reduce import reduce_dim_cases as cases
from warpsmith.reduce.dims import (
    ROWS_AT_ONCE,
    DimView,
    is_last,
    size_along,
    view_by_memory,
    view_by_shape,
)
from warpsmith.spec.checks import check_dim
from warpsmith.spec.determinism import cancelling, deterministic

Arguments = tuple[Any, ...]

# --- checks ---------------------------------------------------------------------------------------


#: Reductions that PyTorch, too, has for floating-point tensors only.
FLOATS_ONLY = ("mean", "var")
#: Reductions that have no result for no values at all.
NEED_VALUES = ("amax", "amin", "argmax", "argmin")
#: The first of two equal values is told from the other, which PyTorch does not do for booleans.
POSITIONS = ("argmax", "argmin")


def check_dtype(op: str, x: Tensor) -> None:
    if op in FLOATS_ONLY and not x.is_floating_point():
        raise RuntimeError(f"{op}: expected x to be a floating-point tensor, got {x.dtype}")
    if x.is_complex() or (op in POSITIONS and x.dtype == torch.bool):
        raise RuntimeError(f"{op}: expected x to hold real numbers, got {x.dtype}")


def check_size(op: str, x: Tensor, dim: int) -> None:
    if op in NEED_VALUES and size_along(x, dim) == 0:
        raise IndexError(
            f"{op}: expected dimension {dim} of x, which is reduced, to have a size other "
            f"than 0, got shape {tuple(x.shape)}"
        )


def _check(op: str) -> Callable[..., None]:
    def check(x: Tensor, dim: int) -> None:
        check_dtype(op, x)
        check_size(op, x, check_dim(op, x, dim))

    return check


# --- what the rungs take --------------------------------------------------------------------------

#: Up to here a warp reads a row in a few accesses per lane.
WARP_ROW_BYTES = 8 << 10
#: From here on a row is worth several blocks ...
SPLIT_ROW_BYTES = 64 << 10
#: ... where there are fewer rows than this, unless a block to each has all of them at work at once.
MANY_ROWS = 2048


def view(x: Tensor, dim: int, batch_invariant: bool) -> DimView:
    """How kernels see a call."""
    dim = dim % max(x.dim(), 1)
    if batch_invariant:
        return view_by_shape(x, dim, columns=not is_last(x, dim))
    return view_by_memory(x, dim)


class Conditions:
    """What the rungs take, for one operator.

    Args:
        position: whether it answers with positions.
        invariant: finds `batch_invariant` among the arguments; None where there is none.
    """

    def __init__(self, position: bool = False, invariant: int | None = None) -> None:
        self.position = position
        self.invariant = invariant

    def promised(self, args: Arguments) -> bool:
        return self.invariant is not None and bool(args[self.invariant])

    def view(self, args: Arguments) -> DimView:
        return view(args[0], args[1], self.promised(args))

    def positions(self, *args: Any) -> str | None:
        x, dim = args[:2]
        if self.position and x.numel() and size_along(x, dim) >= 1 << 32:
            return "needs fewer than 2^32 values along the dimension"
        return None

    def short(self, *args: Any) -> str | None:
        x, dim = args[:2]
        if x.numel() and size_along(x, dim) > 1 << 22:
            return "needs at most 2^22 values along the dimension"
        return None

    def values(self, *args: Any) -> str | None:
        return None if args[0].numel() else "needs values to reduce"

    def short_values(self, *args: Any) -> str | None:
        return self.values(*args) or self.short(*args)

    def rows(self, *args: Any) -> str | None:
        if why := self.values(*args) or self.positions(*args):
            return why
        columns = self.view(args).columns
        return "needs the reduced dimension at unit stride" if columns else None

    def short_rows(self, *args: Any) -> str | None:
        return self.short(*args) or self.rows(*args)

    def columns(self, *args: Any) -> str | None:
        if why := self.values(*args) or self.positions(*args):
            return why
        columns = self.view(args).columns
        return None if columns else "needs the kept dimensions at unit stride"

    def fits_warp(self, *args: Any) -> str | None:
        row_bytes = self.view(args).n * args[0].element_size()
        return None if row_bytes <= WARP_ROW_BYTES else "the row is long enough for a block"

    def few_long(self, *args: Any) -> str | None:
        seen = self.view(args)
        row_bytes = seen.n * args[0].element_size()
        if self.promised(args):
            return None if row_bytes > SPLIT_ROW_BYTES else "the row is too short to be split"
        if row_bytes < SPLIT_ROW_BYTES:
            return "the row is too short to be split"
        enough = seen.outer >= MANY_ROWS or seen.outer in ROWS_AT_ONCE
        return "there are enough rows for all blocks" if enough else None


#: The groups in which the reductions are compiled.
_PARTS = {
    "sum": "sums",
    "mean": "sums",
    "amax": "extremes",
    "amin": "extremes",
    "argmax": "positions",
    "argmin": "positions",
    "var": "variance",
}


def _ladder(takes: Conditions, seeds: tuple[str, ...] = ()) -> tuple[Rung, ...]:
    return (
        Rung(
            "naive",
            "a block per output, joined by a tree in shared memory",
            technique="naive",
            when=takes.short,
        ),
        Rung(
            "shuffle",
            "warp shuffles replace the tree: one barrier instead of eight",
            technique="shuffle",
            when=takes.short_values,
        ),
        Rung(
            "pack",
            "128-bit accesses, four on their way per thread",
            width=PACK,
            pack=True,
            when=takes.rows,
            seeds=seeds,
        ),
        Rung(
            "warp",
            "a warp or a part of one per short row",
            width=PACK,
            pack=True,
            technique="warp",
            when=takes.short_rows,
            suits=takes.fits_warp,
        ),
        Rung(
            "split",
            "several blocks per long row, joined in a fixed order",
            width=PACK,
            pack=True,
            technique="split",
            when=takes.rows,
            suits=takes.few_long,
        ),
        Rung(
            "columns",
            "lanes along the kept dimensions, the reduced one shared by a block or several",
            width=PACK,
            pack=True,
            technique="columns",
            when=takes.columns,
        ),
    )


# --- gradients ------------------------------------------------------------------------------------


def _spread(grad: Tensor, x: Tensor, dim: int, keepdim: bool) -> Tensor:
    """A gradient of the output, in the shape of the input."""
    if not keepdim and x.dim():
        grad = grad.unsqueeze(dim)
    return grad.expand(x.shape)


def _sum_backward(grad: Tensor, x: Tensor, dim: int, keepdim: bool) -> Gradients:
    return {"x": _spread(grad, x, dim, keepdim)}


def _mean_backward(grad: Tensor, x: Tensor, dim: int, keepdim: bool) -> Gradients:
    return {"x": _spread(grad, x, dim, keepdim) / size_along(x, dim)}


def _extreme_backward(name: str) -> Callable[..., Gradients]:
    """Values that share the extreme share its gradient, as in PyTorch."""

    def backward(grad: Tensor, x: Tensor, dim: int, keepdim: bool) -> Gradients:
        extreme = x == getattr(torch.ops.warpsmith, name)(x, dim, True)
        dx = _spread(grad, x, dim, keepdim) * extreme / extreme.sum(dim, keepdim=True)
        return {"x": dx}

    return backward


def _var_backward(
    grad: Tensor, x: Tensor, dim: int, correction: int, keepdim: bool, batch_invariant: bool
) -> Gradients:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    centred = wide - torch.ops.warpsmith.mean(wide, dim, True, batch_invariant)
    freedom = size_along(x, dim) - correction
    factor = 2 / freedom if freedom else float("inf")
    dx = factor * _spread(grad, x, dim, keepdim).to(wide.dtype) * centred
    return {"x": dx.to(x.dtype)}


# --- properties -----------------------------------------------------------------------------------


def _permutation_changes_nothing(function: Callable[..., Any], inputs: Inputs) -> None:
    x = inputs.randn(9, 300)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0)).to(x.device)
    assert torch.equal(function(x, -1, False), function(x[:, order], -1, False))


def _rows_independent(function: Callable[..., Any], inputs: Inputs) -> None:
    x = inputs.randn(6, 264)
    changed = x.clone()
    changed[2] = inputs.randn(264, salt=3)
    rest = [0, 1, 3, 4, 5]
    assert torch.equal(function(x, -1)[rest], function(changed, -1)[rest])


def _ones_count(function: Callable[..., Any], inputs: Inputs) -> None:
    for shape, dim in (((3, 255), -1), ((255, 3), 0)):
        ones = torch.ones(shape, device=inputs.device).to(inputs.dtype)
        assert (function(ones, dim) == 255).all()


def _mean_of_equal_values(function: Callable[..., Any], inputs: Inputs) -> None:
    x = inputs.plain(5, 1).mul(8).round()  # whole numbers, so that sums are exact
    assert torch.equal(function(x.expand(5, 64), -1), x[:, 0])


def _is_among_the_values(function: Callable[..., Any], inputs: Inputs) -> None:
    x = inputs.randn(9, 300)
    assert (function(x, -1, True) == x).any(-1).all()


def _points_at_the_extreme(name: str) -> Callable[[Callable[..., Any], Inputs], None]:
    def check(function: Callable[..., Any], inputs: Inputs) -> None:
        x = inputs.randn(9, 300)
        found = x.gather(-1, function(x, -1, True))
        assert torch.equal(found, getattr(torch, name)(x, -1, True))

    return check


REPEATS = Property("same bits on every run", deterministic(lambda i: (cancelling(i, 1 << 18), 0)))


def _var_of_equal_values(function: Callable[..., Any], inputs: Inputs) -> None:
    assert (function(inputs.randn(5, 1).expand(5, 64), -1) == 0).all()


def _var_ignores_a_shift(function: Callable[..., Any], inputs: Inputs) -> None:
    """Whole numbers, so that the shift itself rounds nothing."""
    x = inputs.plain(5, 1000).mul(4).round()
    torch.testing.assert_close(function(x + 4096, -1), function(x, -1), rtol=1e-6, atol=0.0)


# --- the operators --------------------------------------------------------------------------------


def _shape(x: Tensor, dim: int, keepdim: bool) -> list[int]:
    shape = list(x.shape)
    if not shape:
        return shape
    if keepdim:
        shape[dim] = 1
    else:
        del shape[dim]
    return shape


def _outputs(x: Tensor, dim: int) -> int:
    size = 1
    for n in _shape(x, dim, False):
        size *= n
    return size


def _add(
    name: str,
    schema: str,
    reference: Callable[..., Tensor],
    *,
    keepdim_at: int = 2,
    invariant_at: int | None = None,
    rest: cases.Rest = lambda dim, keepdim: (dim, keepdim),
    position: bool = False,
    accumulates: bool = False,
    backward: Callable[..., Gradients] | None = None,
    properties: tuple[Property, ...] = (),
    samples: tuple[catalogue.Sample, ...] = (),
    seeds: tuple[str, ...] = (),
    flops: int = 1,
    huge: bool = False,
) -> Callable[..., Any]:
    """Enters one reduction; `keepdim_at` and `invariant_at` find these two among the arguments."""

    def fake(*args: Any) -> Tensor:
        x, dim, keepdim = args[0], args[1], args[keepdim_at]
        counts = position or (name == "sum" and not x.is_floating_point())
        return x.new_empty(_shape(x, dim, keepdim), dtype=torch.int64 if counts else x.dtype)

    def moved(*args: Any) -> int:
        x, dim = args[:2]
        size = x.element_size()
        return x.numel() * size + _outputs(x, dim) * (8 if position else size)

    other = "bf16x8_pack_f32" if accumulates else "bf16x8_pack"
    takes_nothing = name not in NEED_VALUES
    op = Op(
        schema,
        family="reduce",
        source="reduce_dim",
        part=_PARTS[name],
        reference=reference,
        ladder=_ladder(Conditions(position, invariant_at), seeds),
        triton=f"reduce_dim_triton:{name}",
        fake=fake,
        check=_check(name),
        backward=backward,
        accumulates=accumulates,
        samples=(*cases.samples(rest, takes_nothing=takes_nothing, huge=huge), *samples),
        errors=cases.errors(
            name,
            rest,
            other,
            takes_nothing=takes_nothing,
            floats_only=name in FLOATS_ONLY,
            positions=name in POSITIONS,
        ),
        properties=properties,
        cost=Cost(bytes=moved, flops=lambda *args: flops * args[0].numel()),
        bench=cases.bench(rest),
    )
    catalogue.add(op)
    dispatch.register(op)
    return dispatch.public(op)


def _with_invariance(batch_invariant: bool) -> cases.Rest:
    return lambda dim, keepdim: (dim, keepdim, batch_invariant)


def _var_rest(correction: int = 1, batch_invariant: bool = False) -> cases.Rest:
    return lambda dim, keepdim: (dim, correction, keepdim, batch_invariant)


run_sum = _add(
    "sum",
    "sum(Tensor x, int dim=-1, bool keepdim=False, bool batch_invariant=False) -> Tensor",
    lambda x, dim, keepdim: torch.sum(x, dim, keepdim=keepdim),
    invariant_at=3,
    rest=_with_invariance(False),
    accumulates=True,
    backward=_sum_backward,
    properties=(
        Property("ones count", _ones_count),
        Property("rows independent", _rows_independent),
        REPEATS,
    ),
    samples=cases.invariant(_with_invariance(True)),
    huge=True,
)
run_mean = _add(
    "mean",
    "mean(Tensor x, int dim=-1, bool keepdim=False, bool batch_invariant=False) -> Tensor",
    lambda x, dim, keepdim: torch.mean(x, dim, keepdim=keepdim),
    invariant_at=3,
    rest=_with_invariance(False),
    accumulates=True,
    backward=_mean_backward,
    properties=(
        Property("mean of equal values", _mean_of_equal_values),
        Property("rows independent", _rows_independent),
        REPEATS,
    ),
    samples=cases.invariant(_with_invariance(True)),
    seeds=("batch_invariant_mean_{dtype}",),
)
_EXTREME = (
    Property("order does not matter", _permutation_changes_nothing),
    Property("one of the values", _is_among_the_values),
)
run_amax = _add(
    "amax",
    "amax(Tensor x, int dim=-1, bool keepdim=False) -> Tensor",
    lambda x, dim, keepdim: torch.amax(x, dim, keepdim=keepdim),
    backward=_extreme_backward("amax"),
    properties=_EXTREME,
    huge=True,
)
run_amin = _add(
    "amin",
    "amin(Tensor x, int dim=-1, bool keepdim=False) -> Tensor",
    lambda x, dim, keepdim: torch.amin(x, dim, keepdim=keepdim),
    backward=_extreme_backward("amin"),
    properties=_EXTREME,
)
run_argmax = _add(
    "argmax",
    "argmax(Tensor x, int dim=-1, bool keepdim=False) -> Tensor",
    lambda x, dim, keepdim: torch.argmax(x, dim, keepdim=keepdim),
    position=True,
    properties=(Property("points at the largest", _points_at_the_extreme("amax")),),
    huge=True,
)
run_argmin = _add(
    "argmin",
    "argmin(Tensor x, int dim=-1, bool keepdim=False) -> Tensor",
    lambda x, dim, keepdim: torch.argmin(x, dim, keepdim=keepdim),
    position=True,
    properties=(Property("points at the smallest", _points_at_the_extreme("amin")),),
)
run_var = _add(
    "var",
    "var(Tensor x, int dim=-1, int correction=1, bool keepdim=False, bool batch_invariant=False)"
    " -> Tensor",
    lambda x, dim, correction, keepdim: torch.var(x, dim, correction=correction, keepdim=keepdim),
    keepdim_at=3,
    invariant_at=4,
    rest=_var_rest(),
    accumulates=True,
    backward=_var_backward,
    properties=(
        Property("zero for equal values", _var_of_equal_values),
        Property("ignores a shift", _var_ignores_a_shift, ("f32",)),
        REPEATS,
    ),
    samples=(
        *cases.invariant(_var_rest(batch_invariant=True)),
        *cases.corrections(lambda correction: _var_rest(correction)),
    ),
    flops=4,
    huge=True,
)
