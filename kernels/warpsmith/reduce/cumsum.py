"""Cumulative sums along one dimension, from either end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import PACK, Bad, Cost, Gradients, Inputs, Op, Property, Rung, Sample
from warpsmith.reduce.dims import ROWS_AT_ONCE, DimView, is_last, view_by_shape
from warpsmith.spec.checks import check_dim

DTYPES = ("f32", "f16", "bf16", "i32")
ACCUMULATORS = {"f32": ("f32",), "f16": ("f32",), "bf16": ("f32",), "i32": ("i64",)}

# --- checks and the reference ---------------------------------------------------------------------


def _check(x: Tensor, dim: int) -> None:
    if x.is_complex():
        raise RuntimeError(f"cumsum: expected x to hold real numbers, got {x.dtype}")
    check_dim("cumsum", x, dim)


def _reference(x: Tensor, dim: int, reverse: bool) -> Tensor:
    if not reverse or x.dim() == 0:
        return torch.cumsum(x, dim)
    return torch.cumsum(x.flip(dim), dim).flip(dim)


def sum_dtype(x: Tensor) -> torch.dtype:
    """Sums of integers are held in int64, as in PyTorch."""
    return x.dtype if x.is_floating_point() else torch.int64


def _fake(x: Tensor) -> Tensor:
    return x.new_empty(x.shape, dtype=sum_dtype(x))


def _backward(grad: Tensor, dim: int, reverse: bool, batch_invariant: bool) -> Gradients:
    """A value enters every sum from its place on, so its gradient is the sum of theirs."""
    return {"x": torch.ops.warpsmith.cumsum(grad, dim, not reverse, batch_invariant)}


# --- what the rungs take --------------------------------------------------------------------------

#: Packs of 16 bytes in a tile, where a row is the work of several blocks.
TILE_PACKS = 256 * 8
#: As many rows keep a GPU busy with a block each ...
MANY_ROWS = 1024
#: ... and from here on a row is worth several.
TILED_ROW_BYTES = 64 << 10
#: From so many values of 32 bits on, or 16 bits of a row, `two_pass` outruns `look_back`.
TWO_PASS_VALUES = 16 << 20


def view(x: Tensor, dim: int, batch_invariant: bool = False) -> DimView:
    """How kernels see a call."""
    dim = dim % max(x.dim(), 1)
    if batch_invariant:
        return view_by_shape(x, dim, columns=not is_last(x, dim))
    after = 1
    for n in x.shape[dim + 1 :]:
        after *= n
    return view_by_shape(x, dim, columns=after != 1)


def _needs_short(x: Tensor, dim: int) -> str | None:
    if x.numel() == 0 or x.dim() == 0 or x.shape[dim] <= 1 << 20:
        return None
    return "needs at most 2^20 values along the dimension"


def _needs_rows(x: Tensor, dim: int, batch_invariant: bool) -> str | None:
    columns = x.numel() > 0 and view(x, dim, batch_invariant).columns
    return "needs the dimension to be the last" if columns else None


def _needs_columns(x: Tensor, dim: int, batch_invariant: bool) -> str | None:
    rows = x.numel() > 0 and not view(x, dim, batch_invariant).columns
    return "needs a dimension that is not the last" if rows else None


def _tiles(x: Tensor, seen: DimView) -> int:
    return seen.outer * -(-seen.n // (TILE_PACKS * (16 // x.element_size())))


def _needs_tiles(x: Tensor, dim: int, batch_invariant: bool) -> str | None:
    if x.numel() == 0:
        return None
    if why := _needs_rows(x, dim, batch_invariant):
        return why
    seen = view(x, dim, batch_invariant)
    if x.dtype == torch.int32 and seen.n > 1 << 31:
        return "needs rows of at most 2^31 values"
    return None if _tiles(x, seen) < 1 << 31 else "needs at most 2^31 - 1 tiles"


def _needs_fewer_tiles(x: Tensor, dim: int, batch_invariant: bool) -> str | None:
    if why := _needs_tiles(x, dim, batch_invariant):
        return why
    few = x.numel() == 0 or _tiles(x, view(x, dim, batch_invariant)) <= 1 << 30
    return None if few else "needs at most 2^30 tiles"


def _few_long(x: Tensor, dim: int, batch_invariant: bool) -> str | None:
    seen = view(x, dim, batch_invariant)
    at_once = x.element_size() == 2 and seen.outer in ROWS_AT_ONCE
    if (seen.outer >= MANY_ROWS or at_once) and not batch_invariant:
        return "there are enough rows for all blocks"
    long = seen.n * x.element_size() >= TILED_ROW_BYTES
    return None if long else "the row is too short for several blocks"


def _many_waves(x: Tensor, dim: int, batch_invariant: bool) -> str | None:
    if why := _few_long(x, dim, batch_invariant):
        return why
    if batch_invariant:
        return "how many rows there are must not matter"
    if x.element_size() == 4:
        return None if x.numel() >= TWO_PASS_VALUES else "the rows keep the GPU busy for few waves"
    long = view(x, dim).n >= TWO_PASS_VALUES
    return None if long else "values of 16 bits would be bound by arithmetic"


def _step(name: str, story: str) -> Rung:
    """A rung that reads one value at a time, from anywhere."""
    return Rung(
        name,
        story,
        dtypes=DTYPES,
        technique=name,
        accumulators=ACCUMULATORS,
        when=_needs_short,
        seeds=(f"prefix_sum_{{dtype}}_{name}",),
    )


LADDER = (
    _step("naive", "a thread per sequence"),
    _step("shared", "a tile in shared memory, each value adding those 1, 2, 4 places before it"),
    _step("double_buffered", "two buffers in turns: one barrier a step instead of two"),
    _step("blelloch", "up and down a tree in padded shared memory: 2n additions"),
    _step("warp", "warp shuffles, one barrier a tile"),
    Rung(
        "pack",
        "128-bit accesses, the next tile on its way meanwhile, short rows sharing a warp",
        dtypes=DTYPES,
        accumulators=ACCUMULATORS,
        width=PACK,
        pack=True,
        when=_needs_rows,
    ),
    Rung(
        "look_back",
        "long rows in one pass over many blocks, their sums joined in a fixed tree",
        dtypes=DTYPES,
        accumulators=ACCUMULATORS,
        width=PACK,
        pack=True,
        technique="look_back",
        when=_needs_tiles,
        suits=_few_long,
        seeds=("prefix_sum_{dtype}_look_back",),
    ),
    Rung(
        "two_pass",
        "every tile read twice, but from DRAM once: summed up shortly before it is scanned",
        dtypes=DTYPES,
        accumulators=ACCUMULATORS,
        width=PACK,
        pack=True,
        technique="two_pass",
        when=_needs_fewer_tiles,
        suits=_many_waves,
    ),
    Rung(
        "columns",
        "a thread per pack of columns, which are cut where there are few",
        dtypes=DTYPES,
        accumulators=ACCUMULATORS,
        width=PACK,
        pack=True,
        technique="columns",
        when=_needs_columns,
    ),
)

# --- samples --------------------------------------------------------------------------------------


def _call(
    make: Callable[[Inputs], Tensor], dim: int, reverse: bool = False
) -> Callable[[Inputs], tuple[Any, ...]]:
    return lambda inputs: (make(inputs), dim, reverse)


def _both_ways(
    label: str,
    make: Callable[[Inputs], Tensor],
    dim: int,
    small: bool = True,
    dtypes: tuple[str, ...] | None = None,
) -> tuple[Sample, ...]:
    return (
        Sample(label, _call(make, dim), small=small, dtypes=dtypes),
        Sample(f"{label}, reversed", _call(make, dim, True), small=small, dtypes=dtypes),
    )


def _shaped(shape: tuple[int, ...], dim: int, small: bool = True) -> tuple[Sample, ...]:
    label = f"{'x'.join(map(str, shape)) or '0-d'} along {dim}"
    return _both_ways(label, lambda i: i.randn(*shape), dim, small)


SHAPES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((3, 16), -1),
    ((4, 3, 5), 1),
    ((7, 257), 1),
    ((5, 1000), -1),
    ((3, 1023), -1),
    ((9, 3), -1),
    ((67, 33), -1),
    ((5, 63), -1),
    ((41, 130), -1),
    ((19, 259), -1),
    ((5, 2047), -1),
    ((6, 1), 1),
    ((1, 40), 0),
    ((65, 64), -2),
    ((100, 3), 0),
    ((129, 3), 0),
    ((2, 70, 48), 1),
    ((2, 200, 24), 1),
    ((), -1),
)

LARGER: tuple[tuple[tuple[int, ...], int], ...] = (
    ((199, 512), -1),
    ((300, 2048), -1),
    ((64, 4096), -1),
    ((5, 8192), -1),
    ((3, 12345), -1),
    ((33, 40000), -1),
    ((1, 1 << 21), -1),
    ((3, 300001), -1),
    ((2, (1 << 20) + 8), -1),
    ((1, (9 << 20) + 8), -1),
    ((2, (1 << 24) + 8), -1),
    ((4099, 264), 0),
    ((20011, 33), 0),
    ((3, 1000, 130), 1),
    ((300, 8192), 0),
)

VIEWS: tuple[tuple[str, Callable[[Inputs], Tensor], int], ...] = (
    ("misaligned", lambda i: i.misaligned(5, 256), -1),
    ("misaligned columns", lambda i: i.misaligned(40, 64), 0),
    ("row stride", lambda i: i.randn(9, 320)[:, :256], -1),
    ("odd row stride", lambda i: i.randn(9, 259)[:, :256], -1),
    ("padded columns", lambda i: i.randn(40, 96)[:, :67], 0),
    ("transposed, last", lambda i: i.randn(64, 24).t(), -1),
    ("transposed, first", lambda i: i.randn(64, 24).t(), 0),
    ("outer transposed", lambda i: i.randn(4, 3, 50, 16).transpose(0, 1), 2),
    ("every other column", lambda i: i.randn(40, 68)[:, ::2], -1),
    ("every other row", lambda i: i.randn(40, 68)[::2], 0),
    ("expanded rows", lambda i: i.randn(64).expand(9, 64), 0),
    ("expanded columns", lambda i: i.randn(9, 1).expand(9, 64), -1),
)


def _special(inputs: Inputs) -> Tensor:
    """Rows with NaN and infinities."""
    x = inputs.randn(5, 64)
    x[0, 3] = float("nan")
    x[1, 5] = float("inf")
    x[2, 7], x[2, 8] = float("-inf"), float("inf")
    x[3, 63] = float("inf")
    x[4] = 0.0
    return x


def _extreme_integers(inputs: Inputs) -> Tensor:
    """Sums that only fit 64 bits, of both signs."""
    ends = torch.iinfo(torch.int32)
    x = torch.full((4, 70000), ends.max, dtype=torch.int32, device=inputs.device)
    x[1], x[2, ::2] = ends.min, ends.min
    return x


def _pattern(inputs: Inputs) -> Tensor:
    return torch.tensor([1.0, -1.0, 2.0, -2.0], device=inputs.device).to(inputs.dtype)


def _long(inputs: Inputs) -> Tensor:
    """More values than a 32-bit index can count; sums stay small, are exact in f32, and differ from
    tile to tile.
    """
    x = _pattern(inputs).repeat((1 << 29) + 256)
    x[:: 1 << 21] += 1
    return x


def _long_columns(inputs: Inputs) -> Tensor:
    """The same in columns: every row takes back what the one above it has added, but for one in
    2^17, the last one too, which adds twice as much.
    """
    x = _pattern(inputs).repeat((1 << 21) + 1, 256)
    x[1::2].neg_()
    x[:: 1 << 17] *= 2
    return x


def _invariant(
    label: str, make: Callable[[Inputs], Tensor], dim: int, reverse: bool = False, **how: Any
) -> Sample:
    """With the promise that no other sequence changes the result."""
    arguments = _call(make, dim, reverse)
    return Sample(f"batch invariant, {label}", lambda i: (*arguments(i), True), **how)


INVARIANT = (
    _invariant("7x257", lambda i: i.randn(7, 257), -1),
    _invariant("7x257, reversed", lambda i: i.randn(7, 257), -1, True),
    _invariant("9x256", lambda i: i.randn(9, 256), -1),
    _invariant("misaligned", lambda i: i.misaligned(5, 256), -1),
    _invariant("transposed", lambda i: i.randn(257, 7).t(), -1, True),
    _invariant("257x7 along 0", lambda i: i.randn(257, 7), 0),
    _invariant("257x1 along 0", lambda i: i.randn(257, 1), 0),
    _invariant("1100x40 along 0", lambda i: i.randn(1100, 40), 0, True),
    _invariant("0-d", lambda i: i.randn(), 0),
    _invariant("3x40001", lambda i: i.randn(3, 40001), -1, small=False),
    _invariant("3x40001, reversed", lambda i: i.randn(3, 40001), -1, True, small=False),
    _invariant("1100x32768", lambda i: i.randn(1100, 32768), -1, small=False),
)

SAMPLES = (
    *(sample for shape, dim in SHAPES for sample in _shaped(shape, dim)),
    *(sample for shape, dim in LARGER for sample in _shaped(shape, dim, small=False)),
    *(sample for label, make, dim in VIEWS for sample in _both_ways(label, make, dim)),
    Sample("no rows", _call(lambda i: i.randn(0, 16), -1)),
    Sample("no values", _call(lambda i: i.randn(4, 0), -1)),
    Sample("no columns", _call(lambda i: i.randn(16, 0), 0)),
    Sample("defaults", lambda i: (i.randn(4, 64),)),
    *_both_ways("special", _special, -1, dtypes=("f32", "f16", "bf16")),
    *_both_ways("special columns", _special, 0, dtypes=("f32", "f16", "bf16")),
    *_both_ways(
        "values of 100", lambda i: i.plain(9, 700, scale=100.0), -1, dtypes=("f32", "f16", "bf16")
    ),
    *_both_ways("extreme integers", _extreme_integers, -1, small=False, dtypes=("i32",)),
    *INVARIANT,
    Sample("past 2^31 elements", _call(_long, -1), small=False, huge=True, dtypes=("f16",)),
    Sample(
        "columns past 2^31 elements",
        _call(_long_columns, 0),
        small=False,
        huge=True,
        dtypes=("f16",),
    ),
    Sample(
        "answers past 2^31 elements",
        _call(lambda i: i.plain((1 << 21) + 1, 1024), -1),
        small=False,
        huge=True,
        dtypes=("f16",),
    ),
    Sample(
        "rows past 2^31 elements",
        _call(lambda i: i.plain(257, (1 << 23) + 8)[:, :1024], -1, True),
        small=False,
        huge=True,
        dtypes=("f16",),
    ),
)

ERRORS = (
    Bad(
        "complex numbers",
        lambda i: (torch.ones(2, 8, dtype=torch.complex64, device=i.device), -1, False),
        r"cumsum: expected x to hold real numbers, got torch\.complex64",
    ),
    Bad(
        "dimension beyond the last",
        lambda i: (i.randn(2, 8), 2, False),
        r"cumsum: expected dim to lie in \[-2, 1\], got 2",
        error=(IndexError, RuntimeError),
    ),
    Bad(
        "dimension of a 0-d tensor",
        lambda i: (i.randn(), -2, False),
        r"cumsum: expected dim to lie in \[-1, 0\], got -2",
        error=(IndexError, RuntimeError),
    ),
    Bad(
        "look-back along columns",
        lambda i: (Inputs(torch.float32, i.device).randn(8, 8), 0, False),
        r"cumsum.*: .*needs the dimension to be the last",
        variant="f32x4_pack_look_back",
    ),
    Bad(
        "columns along rows",
        lambda i: (Inputs(torch.float32, i.device).randn(8, 8), -1, False),
        r"cumsum.*: .*needs a dimension that is not the last",
        variant="f32x4_pack_columns",
    ),
    Bad(
        "variant of another dtype",
        lambda i: (Inputs(torch.float32, i.device).randn(2, 8), -1, False),
        r"cumsum_bf16x8_pack_f32: takes bf16, got f32",
        variant="bf16x8_pack_f32",
    ),
)


# --- properties -----------------------------------------------------------------------------------


def _counts(cumsum: Callable[..., Any], inputs: Inputs) -> None:
    """Sums of ones, exact while they fit the dtype."""
    for shape, dim in (((3, 255), -1), ((255, 3), 0)):
        ones = torch.ones(shape, device=inputs.device).to(inputs.dtype)
        wanted = torch.arange(1, 256, device=inputs.device)
        wanted = wanted if dim == -1 else wanted[:, None]
        assert torch.equal(cumsum(ones, dim, False), wanted.expand(shape).to(sum_dtype(ones)))


def _reversed(cumsum: Callable[..., Any], inputs: Inputs) -> None:
    x = inputs.plain(5, 1000)
    for dim in (0, 1):
        assert torch.equal(cumsum(x, dim, True), cumsum(x.flip(dim), dim, False).flip(dim))


def _repeats(cumsum: Callable[..., Any], inputs: Inputs) -> None:
    """The same bits in every run, whichever tile came first."""
    x = inputs.plain(2, 1 << 20) if inputs.device != "cpu" else inputs.plain(2, 4000)
    first = cumsum(x, -1, False)
    assert all(torch.equal(cumsum(x, -1, False), first) for _ in range(8))


# --- the operator ---------------------------------------------------------------------------------


def _bytes(x: Tensor) -> int:
    return x.numel() * (x.element_size() + (x.element_size() if x.is_floating_point() else 8))


def _bench(rows: int, cols: int, dim: int = -1) -> Sample:
    label = f"{rows}x{cols}" + (" along 0" if dim == 0 else "")
    return Sample(label, _call(lambda i: i.plain(rows, cols), dim), small=False)


op = catalogue.add(
    Op(
        "cumsum(Tensor x, int dim=-1, bool reverse=False, bool batch_invariant=False) -> Tensor",
        family="reduce",
        reference=_reference,
        ladder=LADDER,
        triton="cumsum_triton:cumsum",
        fake=_fake,
        check=_check,
        backward=_backward,
        aliases=("prefix_sum",),
        accumulates=True,
        samples=SAMPLES,
        errors=ERRORS,
        properties=(
            Property("ones count", _counts),
            Property("reversed", _reversed),
            Property("the same in every run", _repeats),
        ),
        cost=Cost(bytes=_bytes, flops=lambda x: x.numel()),
        bench=(
            _bench(1, 1 << 26),
            _bench(8192, 8192),
            _bench(262144, 256),
            _bench(512, 131072),
            _bench(8192, 8192, 0),
        ),
        bench_dtypes=DTYPES,
        eager=lambda x, dim: torch.cumsum(x, dim),
    )
)
dispatch.register(op)
_cumsum = dispatch.public(op)


def cumsum(
    x: Tensor,
    dim: int = -1,
    reverse: bool = False,
    batch_invariant: bool = False,
    *,
    dtype: torch.dtype | None = None,
    variant: str | None = None,
) -> Tensor:
    """Cumulative sum along a dimension, ``y[j] = x[0] + ... + x[j]``.

    Floating-point sums are held in float32 and rounded once each, sums of integers are exact in
    int64. The result is bitwise the same from run to run. Differentiable.

    Args:
        x: any shape and strides, float32, float16, bfloat16 or int32 (other real dtypes without a
            kernel of their own).
        dim: the dimension along which sums grow; negative counts from the back.
        reverse: whether to sum from the end instead, ``y[j] = x[j] + ... + x[n - 1]``.
        batch_invariant: whether the sums of a row shall have the same bits whatever other rows the
            tensor holds. The order of additions then depends on the size of the dimension alone,
            and on whether it is the last one.
        dtype: what `x` is cast to first.
        variant: one rung by name instead of the best one, "f32x4_pack_look_back".

    Returns:
        A contiguous tensor of the shape of `x`, in its dtype; int64 for integers.

    Raises:
        RuntimeError: `x` is complex; the variant cannot take the call.
        IndexError: `x` has no such dimension.
        ValueError: the variant does not exist.

    Reference:
        Merrill and Garland 2016, "Single-pass Parallel Prefix Scan with Decoupled Look-back",
        https://research.nvidia.com/publication/2016-03_single-pass-parallel-prefix-scan-decoupled-look-back
    """
    if dtype is not None:
        x = x.to(dtype)
    return _cumsum(variant, x, dim, reverse, batch_invariant)
