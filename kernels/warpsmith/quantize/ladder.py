"""The rungs of the quantisers, and which calls they take; csrc/quantize/quantize says the same."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from warpsmith.core.catalogue import DTYPE_NAMES, PACK, Rung
from warpsmith.quantize.reference import GROUP, GROUPS, ROW, TENSOR
from warpsmith.spec.rows import MOST_ROWS, as_rows, tiles_rows, tiles_weight

_HELD_BYTES = 64 << 10

Condition = Callable[..., "str | None"]


def halves(x: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gate and what it multiplies."""
    if up is not None:
        return x, up
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


def _needs_packs(x: Tensor, up: Tensor | None, weight: Tensor | None, whole: bool) -> str | None:
    width = PACK[DTYPE_NAMES[x.dtype]]
    if whole and not x.is_contiguous():  # a copy takes its place
        tiles = x.shape[-1] % width == 0
    else:
        tiles = all(tiles_rows(t, width) for t in (x, up) if t is not None)
    return (
        None
        if tiles and tiles_weight(weight, width)
        else "needs rows and weight aligned to 16 bytes"
    )


def _needs_registers(x: Tensor, sharers: tuple[int, int], normalised: bool) -> str | None:
    rows, cols = as_rows(x).rows, x.shape[-1]
    if sharers == GROUPS and cols % GROUP:
        return "needs groups of 128 columns"
    if sharers == ROW or normalised:
        if rows > MOST_ROWS:
            return "needs at most 2^31 - 1 rows"
        held = cols * x.element_size() <= _HELD_BYTES
        return None if held else f"needs rows of at most {_HELD_BYTES >> 10} KiB"
    packs = rows * (cols // PACK[DTYPE_NAMES[x.dtype]])
    return None if packs <= MOST_ROWS else "needs less than 2^31 packs"


def _conditions(
    x: Tensor,
    up: Tensor | None,
    weight: Tensor | None,
    sharers: tuple[int, int],
    normalised: bool,
    held: bool,
) -> str | None:
    if x.numel() == 0:
        return None
    if held and sharers == TENSOR:
        return "the tensor shares a scale"
    if why := _needs_packs(x, up, weight, sharers == TENSOR):
        return why
    return _needs_registers(x, sharers, normalised) if held else None


def _when_plain(held: bool) -> Condition:
    return lambda x, block_rows, block_cols: _conditions(
        x, None, None, (block_rows, block_cols), False, held
    )


def _when_norm(held: bool) -> Condition:
    return lambda x, weight, group: _conditions(x, None, weight, (1, group), True, held)


def _when_silu(held: bool) -> Condition:
    def when(x: Tensor, up: Tensor | None, group: int) -> str | None:
        return _conditions(*halves(x, up), None, (1, group), False, held)

    return when


def _ladder(when: Callable[[bool], Condition]) -> tuple[Rung, ...]:
    return (
        Rung("naive", "one value an access, two sweeps"),
        Rung("pack", "128-bit accesses", width=PACK, pack=True, when=when(False)),
        Rung(
            "registers",
            "rows, groups and tiles stay in registers: values are read once",
            width=PACK,
            pack=True,
            technique="registers",
            when=when(True),
        ),
    )


def plain() -> tuple[Rung, ...]:
    return _ladder(_when_plain)


def norm() -> tuple[Rung, ...]:
    return _ladder(_when_norm)


def silu() -> tuple[Rung, ...]:
    return _ladder(_when_silu)
