"""Transposes of matrices, and permutations of any dimensions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch, messages
from warpsmith.core.catalogue import PACK, Cost, Gradients, Op, Property, Rung
from warpsmith.spec.bits import as_bits, says_which
from warpsmith.transform import transpose_cases as cases
from warpsmith.transform.moved import Moved, moved

#: Kernels know the size of an element alone. The steps of the ladder have a name in a dtype of each
#: size, and bf16.
STEPS = ("f32", "f16", "bf16", "i8")
ALL = ("f32", "f16", "bf16", "e4m3", "e5m2", "i8", "i32")
#: Dtypes in which the reference keeps all bits, too: fp8 goes through f32 there.
EXACT = ("f32", "f16", "bf16", "i8", "i32")

Ask = Callable[[Moved], "str | None"]
#: Makes a condition of a rung out of one of what a call comes to.
Asking = Callable[[Ask], Callable[..., "str | None"]]


# --- what a call comes to -------------------------------------------------------------------------


def swapped(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


def ordered(rank: int, dims: Sequence[int]) -> tuple[int, ...]:
    return tuple(d % rank for d in dims)


def _of_transpose(ask: Ask) -> Callable[..., str | None]:
    def condition(x: Tensor) -> str | None:
        return None if x.numel() == 0 else ask(moved(x, swapped(x.dim())))

    return condition


def _of_permute(ask: Ask) -> Callable[..., str | None]:
    def condition(x: Tensor, dims: Sequence[int]) -> str | None:
        return None if x.numel() == 0 else ask(moved(x, ordered(x.dim(), dims)))

    return condition


def _check(x: Tensor) -> None:
    if x.dim() < 2:
        raise RuntimeError(
            f"transpose: expected at least 2 dimensions in x, got shape {tuple(x.shape)}"
        )


def _check_permute(x: Tensor, dims: Sequence[int]) -> None:
    rank = x.dim()
    counted = [d + rank if d < 0 else d for d in dims]
    if sorted(counted) != list(range(rank)):
        raise RuntimeError(
            f"permute: expected dims to name each of the {rank} dimensions of x once, "
            f"got {list(dims)}"
        )


def _reference(x: Tensor) -> Tensor:
    return x.transpose(-1, -2).clone(memory_format=torch.contiguous_format)


def _reference_permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    return x.permute(list(dims)).clone(memory_format=torch.contiguous_format)


def _fake(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-2], x.shape[-1], x.shape[-2]))


def _fake_permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    return x.new_empty(tuple(x.shape[d] for d in dims))


def _derivative(grad: Tensor) -> Gradients:
    return {"x": torch.ops.warpsmith.transpose(grad)}


def _derivative_permute(grad: Tensor, dims: Sequence[int]) -> Gradients:
    order = ordered(grad.dim(), dims)
    back = [order.index(d) for d in range(len(order))]
    return {"x": torch.ops.warpsmith.permute(grad, back)}


# --- the ladder -----------------------------------------------------------------------------------


def _first(*asks: Ask) -> Ask:
    """The first condition that is not met."""

    def ask(call: Moved) -> str | None:
        return next((reason for one in asks if (reason := one(call))), None)

    return ask


_TILES = _first(Moved.needs_rank, Moved.needs_tiles)
_TURNING = _first(Moved.needs_rank, Moved.needs_turning, Moved.needs_tiles)
_PACKS = _first(_TURNING, Moved.needs_packs)


def _rungs(asking: Asking) -> dict[str, Rung]:
    def step(name: str, story: str, ask: Ask, width: int = 1, technique: str = "") -> Rung:
        return Rung(
            name,
            story,
            dtypes=STEPS,
            width=width,
            technique=technique or name,
            when=asking(ask),
            suits=asking(Moved.suits_tiles),
        )

    def flat(name: str, story: str) -> Rung:
        dtypes = ALL if name == "row2col" else STEPS
        when = asking(Moved.needs_rank)
        return Rung(name, story, dtypes=dtypes, technique=name, when=when)

    rungs = (
        flat("col2row", "a thread for each element of x, which is read along its rows"),
        flat("row2col", "a thread for each element of the result, which is written along its rows"),
        step(
            "col2row4",
            "four neighbours of x to a thread",
            _first(Moved.needs_rank, Moved.needs_read_x4),
            4,
            "col2row",
        ),
        step(
            "row2col4",
            "four neighbours of the result to a thread",
            _first(Moved.needs_rank, Moved.needs_written_x4),
            4,
            "row2col",
        ),
        step("col2row2d", "square blocks along the rows of x", _TILES),
        step("row2col2d", "square blocks along the rows of the result", _TILES),
        step("diagonal2d", "square blocks, taken along diagonals", _TILES),
        step(
            "col2row2d4",
            "square blocks, four neighbours of x to a thread",
            _first(_TILES, Moved.needs_read_x4),
            4,
            "col2row2d",
        ),
        step(
            "row2col2d4",
            "square blocks, four neighbours of the result to a thread",
            _first(_TILES, Moved.needs_written_x4),
            4,
            "row2col2d",
        ),
        step("shared", "lines on both sides, by a tile in shared memory", _TURNING),
        step("padded", "a column of the tile in as many banks", _TURNING),
        step("swizzled", "the same without padding", _TURNING),
        Rung(
            "registers",
            "squares of 16 bytes transposed in registers, 128-bit accesses on both sides",
            dtypes=STEPS,
            width=PACK,
            pack=True,
            technique="registers",
            when=asking(_PACKS),
            suits=asking(Moved.suits_tiles),
        ),
        Rung(
            "tma",
            "tiles brought by the copy engine, transposed in registers",
            dtypes=STEPS,
            width=PACK,
            pack=True,
            technique="tma",
            min_sm=90,
            when=asking(_first(_PACKS, Moved.needs_map)),
            suits=asking(Moved.suits_tiles),
        ),
        Rung(
            "peak",
            "lines of 128 bytes on both sides; aligned words where rows begin anywhere",
            dtypes=ALL,
            width=PACK,
            pack=True,
            technique="peak",
            when=asking(_TURNING),
            suits=asking(Moved.suits_tiles),
        ),
        Rung(
            "copy",
            "rows that are contiguous on both sides, in packs of up to 16 bytes",
            dtypes=ALL,
            width=PACK,
            pack=True,
            technique="copy",
            when=asking(_first(Moved.needs_rank, Moved.needs_copying)),
        ),
    )
    return {rung.name: rung for rung in rungs}


# --- the operators --------------------------------------------------------------------------------


def _bytes(x: Tensor) -> int:
    return 2 * x.numel() * x.element_size()


transpose_op = catalogue.add(
    Op(
        "transpose(Tensor x) -> Tensor",
        family="transform",
        elementwise=True,
        reference=_reference,
        ladder=tuple(_rungs(_of_transpose).values()),
        triton="transpose_triton:transpose",
        fake=_fake,
        check=_check,
        backward=_derivative,
        aliases=("mat_trans",),
        samples=cases.SAMPLES,
        errors=cases.ERRORS,
        properties=(
            Property("bits are moved as they are", cases.moves_bits, EXACT),
            Property("twice is nothing", cases.twice_is_nothing, EXACT),
        ),
        cost=Cost(bytes=_bytes),
        bench=cases.BENCH,
        bench_dtypes=("f32", "bf16", "i8"),
    )
)

permute_op = catalogue.add(
    Op(
        "permute(Tensor x, int[] dims) -> Tensor",
        family="transform",
        source="transpose",
        elementwise=True,
        reference=_reference_permute,
        ladder=tuple(
            rung
            for name, rung in _rungs(_of_permute).items()
            if name in ("row2col", "peak", "copy")
        ),
        triton="transpose_triton:permute",
        fake=_fake_permute,
        check=_check_permute,
        backward=_derivative_permute,
        samples=cases.PERMUTE_SAMPLES,
        errors=cases.PERMUTE_ERRORS,
        properties=(Property("bits are moved as they are", cases.permute_moves_bits, EXACT),),
        cost=Cost(bytes=_bytes),
        bench=cases.PERMUTE_BENCH,
        bench_dtypes=("f32", "bf16", "i8"),
    )
)

dispatch.register(transpose_op)
dispatch.register(permute_op)
_LAST_TWO = ((-2, -1), (-1, -2))
_transpose = dispatch.public(transpose_op)
_permute = dispatch.public(permute_op)


def transpose(x: Tensor, dim0: int = -2, dim1: int = -1, *, variant: str | None = None) -> Tensor:
    """Swaps two dimensions, by default the last two, and moves the elements there,
    ``y[..., j, i] = x[..., i, j]``.

    Bits are moved as they are, NaN and -0 among them. Differentiable.

    Args:
        x: [..., m, n], any strides and any dtype; elements of 1, 2 and 4 bytes have kernels.
        dim0: of the two, one; negative ones count from the back.
        dim1: the other one. Any but the last two are swapped by `permute`.
        variant: one rung by name instead of the best one, "f32x4_pack_peak".

    Returns:
        A contiguous tensor of shape [..., n, m], never a view of `x`.

    Raises:
        RuntimeError: `x` has fewer than two dimensions; the variant cannot take the call.
        IndexError: `x` has no such dimension.
        ValueError: the variant does not exist.
        TypeError: a dimension is no whole number.

    Reference:
        Ruetsch & Micikevicius 2009, "Optimizing Matrix Transpose in CUDA",
        https://www.cs.colostate.edu/~cs675/MatrixTranspose.pdf
    """
    if (dim0, dim1) not in _LAST_TWO:
        return _swapped(x, dim0, dim1, variant)
    return as_bits(_transpose, variant, x)


def _swapped(x: Tensor, dim0: int, dim1: int, variant: str | None) -> Tensor:
    """Of dimensions that are not by their names the last two."""
    messages.expect_tensors("transpose", x=x)
    rank = x.dim()
    for name, dim in (("dim0", dim0), ("dim1", dim1)):
        if not hasattr(dim, "__index__"):
            found = type(dim).__name__
            raise TypeError(f"transpose: expected {name} to be a whole number, got {found}")
        most = max(rank, 1)
        if not -most <= dim < most:
            lies = f"to lie in [{-most}, {most - 1}]"
            raise IndexError(f"transpose: expected {name} {lies}, got {dim}")
    if rank >= 2 and {dim0 % rank, dim1 % rank} == {rank - 2, rank - 1}:
        return as_bits(_transpose, variant, x)
    dims = list(range(rank))
    if rank:
        dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
    if variant is not None:
        try:
            permute_op.variant(variant)
        except ValueError as error:
            raise ValueError(
                f"transpose: swaps other dimensions than the last two by {error}"
            ) from None
    return permute(x, dims, variant=variant)


def permute(x: Tensor, dims: int | Sequence[int], *more: int, variant: str | None = None) -> Tensor:
    """Puts the dimensions into another order and moves the elements there, as
    ``x.permute(dims).contiguous()`` does.

    Heads of attention, say: [batch, tokens, heads, d] with dims (0, 2, 1, 3). Bits are moved as
    they are. Differentiable.

    Args:
        x: any shape, strides and dtype; elements of 1, 2 and 4 bytes have kernels.
        dims: which dimension of `x` each of the result is; negative ones count from the back.
        *more: of dims that are given one by one, those behind the first.
        variant: one rung by name instead of the best one, "bf16x8_pack_copy".

    Returns:
        A contiguous tensor, never a view of `x`.

    Raises:
        RuntimeError: `dims` does not name each dimension once; the variant cannot take the call.
        ValueError: the variant does not exist.
        TypeError: `dims` are no numbers.

    Reference:
        `torch.permute`.
    """
    one_by_one = not isinstance(dims, Iterable)
    order: list[Any] = [dims, *more] if one_by_one else list(dims)  # type: ignore[arg-type]
    if not all(hasattr(dim, "__index__") for dim in order):
        raise TypeError(f"permute: expected dims to be whole numbers, got {dims!r}")
    return as_bits(_permute, variant, x, order)


says_which(transpose)
says_which(permute)
