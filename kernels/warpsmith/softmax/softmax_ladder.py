"""The ladders of softmax, log_softmax and their gradients, and what their rungs take; mirrors
csrc/softmax/softmax and its gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from warpsmith.core import catalogue
from warpsmith.core.catalogue import PACK, Condition, Rung
from warpsmith.softmax.slices import as_slices, tiles_slices
from warpsmith.spec.rows import MOST_ROWS, needs_held, needs_streamed, suits_streamed

# --- what the rungs take --------------------------------------------------------------------------


def _pack(x: Tensor) -> int:
    return PACK[catalogue.DTYPE_NAMES[x.dtype]]


def _needs_rows(x: Tensor, dim: int) -> str | None:
    if x.numel() == 0 or as_slices(x, dim).inner == 1:
        return None
    return "works along the last dimension"


def _needs_columns(x: Tensor, dim: int) -> str | None:
    if x.numel() == 0 or as_slices(x, dim).inner > 1:
        return None
    return "works along another dimension than the last"


#: Of a row that `shared` holds: sm_89 gives a block 99 KiB.
_MOST_SHARED_BYTES = 98 * 1024 + 512
#: Of a row that `peeled_registers` holds in a cluster of 8, wherever it begins, ...
_MOST_PEELED_BYTES = (8 * 320 * 10 - 1) * 16
#: ... and in one of 4.
_MOST_SERVED_PEELED_BYTES = (4 * 320 * 10 - 1) * 16
#: Values of a column that the strips of a cluster hold, of all inputs together ...
_STRIP_COLUMNS = 8192
#: ... and up to here caches hold a column well enough.
_FEW_COLUMNS = 64


def _needs_strip(x: Tensor, dim: int, inputs: int = 1) -> str | None:
    if why := _needs_columns(x, dim):
        return why
    most = _STRIP_COLUMNS // inputs
    return None if _cols(x, dim) <= most else f"needs at most {most} columns"


def _suits_strip(x: Tensor, dim: int) -> str | None:
    return None if _cols(x, dim) > _FEW_COLUMNS else "caches hold a short column well enough"


def _needs_width(width: Callable[[Tensor], int], reason: str) -> Condition:
    def when(x: Tensor, dim: int) -> str | None:
        if why := _needs_rows(x, dim):
            return why
        return None if x.numel() == 0 or tiles_slices(x, dim, width(x)) else reason

    return when


_needs_pairs = _needs_width(lambda x: 2, "needs rows aligned to 2 elements")
_needs_packs = _needs_width(_pack, "needs rows aligned to 16 bytes")


def _cols(x: Tensor, dim: int) -> int:
    return as_slices(x, dim).cols if x.numel() else 0


def _needs_warp(x: Tensor, dim: int) -> str | None:
    if why := _needs_rows(x, dim):
        return why
    return None if _cols(x, dim) <= 1024 else "needs at most 1024 columns"


def _needs_shared(x: Tensor, dim: int) -> str | None:
    if why := _needs_rows(x, dim):
        return why
    return None if _row_bytes(x, dim) <= _MOST_SHARED_BYTES else "needs rows of at most 98.5 KiB"


def _suits_block(x: Tensor, dim: int) -> str | None:
    return None if _cols(x, dim) > 1024 else "the row fits the registers of a warp"


def _rows(x: Tensor, dim: int) -> int:
    return x.numel() // x.shape[dim] if x.numel() and x.dim() else 1


def _row_bytes(x: Tensor, dim: int) -> int:
    return _cols(x, dim) * x.element_size()


def _needs_peeled(x: Tensor, dim: int) -> str | None:
    return _needs_rows(x, dim) or needs_streamed(_rows(x, dim), _row_bytes(x, dim))


def _suits_peeled(x: Tensor, dim: int) -> str | None:
    most = 32 << 10 if x.dtype == torch.float32 else _MOST_SHARED_BYTES
    return None if _row_bytes(x, dim) > most else "the row fits shared memory well"


def _needs_peeled_registers(x: Tensor, dim: int) -> str | None:
    if why := _needs_rows(x, dim):
        return why
    if _rows(x, dim) > MOST_ROWS // 8:
        return "needs at most 2^28 - 1 rows"
    if _row_bytes(x, dim) <= _MOST_PEELED_BYTES:
        return None
    return f"needs rows of at most {_MOST_PEELED_BYTES} bytes"


def _suits_peeled_registers(x: Tensor, dim: int) -> str | None:
    if 64 << 10 < _row_bytes(x, dim) <= _MOST_SERVED_PEELED_BYTES:
        return None
    return "serves rows of 64 KiB to what a cluster of 4 holds"


def _needs_registers(x: Tensor, dim: int) -> str | None:
    return _needs_packs(x, dim) or needs_held(_rows(x, dim), _row_bytes(x, dim))


def _needs_cluster(x: Tensor, dim: int) -> str | None:
    return _needs_packs(x, dim) or needs_streamed(_rows(x, dim), _row_bytes(x, dim))


def _suits_cluster(x: Tensor, dim: int) -> str | None:
    return suits_streamed(_row_bytes(x, dim))


def _of_output(when: Condition) -> Condition:
    """The same condition of the backward's y."""
    return lambda grad, y, dim: when(y, dim)


def _needs_packs_backward(grad: Tensor, y: Tensor, dim: int) -> str | None:
    return _needs_packs(y, dim) or _needs_packs(grad, dim)


def _needs_registers_backward(grad: Tensor, y: Tensor, dim: int) -> str | None:
    return _needs_packs_backward(grad, y, dim) or needs_held(
        _rows(y, dim), _row_bytes(y, dim), inputs=2
    )


def _needs_cluster_backward(grad: Tensor, y: Tensor, dim: int) -> str | None:
    return _needs_packs_backward(grad, y, dim) or needs_streamed(_rows(y, dim), _row_bytes(y, dim))


def _needs_strip_backward(y: Tensor, dim: int) -> str | None:
    return _needs_strip(y, dim, inputs=2)


def _suits_cluster_backward(y: Tensor, dim: int) -> str | None:
    return suits_streamed(_row_bytes(y, dim), inputs=2)


def _never() -> str | None:
    return "overflows where a value passes 88"


#: exp of the largest value of each row, and 2^31 times that, lie well within float32.
_UNSHIFTED_RANGE = 60.0


def _valid_unshifted(x: Tensor, dim: int) -> bool:
    if x.numel() == 0:
        return True
    peak = x.float().amax(dim)
    return bool(((peak.abs() <= _UNSHIFTED_RANGE) | peak.isnan()).all())


def _valid_unshifted_log(x: Tensor, dim: int) -> bool:
    """Of a single column, the result 0 is x - log(exp(x)), off by an ulp of x."""
    return _cols(x, dim) != 1 and _valid_unshifted(x, dim)


# --- the ladders ----------------------------------------------------------------------------------

_HALVES = ("f16", "bf16")

#: Without the row's maximum.
_UNSAFE = (
    Rung(
        "fence",
        "several blocks to a row add up in global memory, the last one past a fence writes it",
        technique="fence",
        when=_needs_rows,
        suits=_never,
        valid=_valid_unshifted,
    ),
    Rung(
        "fence_pack",
        "128-bit accesses, fewer blocks at one total",
        width=PACK,
        pack=True,
        technique="fence",
        when=_needs_packs,
        suits=_never,
        valid=_valid_unshifted,
        seeds=("softmax_{dtype}x4_fence",),
    ),
    Rung(
        "unsafe",
        "a block per row, no atomics, the same bits in every run",
        technique="unsafe",
        when=_needs_rows,
        suits=_never,
        valid=_valid_unshifted,
        seeds=("softmax_{dtype}",),
    ),
    Rung(
        "unsafe_pack",
        "128-bit accesses, still without the maximum",
        width=PACK,
        pack=True,
        technique="unsafe",
        when=_needs_packs,
        suits=_never,
        valid=_valid_unshifted,
        seeds=("softmax_{dtype}x4",),
    ),
)

#: The same for the logarithm.
_UNSAFE_LOG = tuple(replace(rung, valid=_valid_unshifted_log, seeds=()) for rung in _UNSAFE)


def _safe(names: str) -> tuple[Rung, ...]:
    """The rungs that subtract it; `names` is what the seed list calls the operator."""
    return (
        Rung(
            "safe",
            "the maximum is subtracted first: three sweeps, nothing overflows",
            technique="safe",
            when=_needs_rows,
            seeds=(f"safe_{names}_{{dtype}}", f"safe_{names}_{{dtype}}_f32"),
        ),
        Rung(
            "safe_x2",
            "two 16-bit values an access",
            dtypes=_HALVES,
            width=2,
            technique="safe",
            when=_needs_pairs,
            seeds=(f"safe_{names}_{{dtype}}x2_f32",),
        ),
        Rung(
            "safe_pack",
            "128-bit accesses, the row read three times",
            width=PACK,
            pack=True,
            technique="safe",
            when=_needs_packs,
            seeds=(f"safe_{names}_{{dtype}}x4", f"safe_{names}_{{dtype}}x8_pack_f32"),
        ),
        Rung(
            "online",
            "maximum and sum in one sweep, at any alignment",
            technique="online",
            when=_needs_rows,
            seeds=(f"online_safe_{names}_{{dtype}}", f"{names}_{{dtype}}_block_uncached"),
        ),
        Rung(
            "online_pack",
            "128-bit accesses, the second sweep backwards through the caches",
            width=PACK,
            pack=True,
            technique="online",
            when=_needs_packs,
            seeds=(f"online_safe_{names}_{{dtype}}x4_pack",),
        ),
        Rung(
            "warp",
            "a warp per row, the row in registers and read once, short rows sharing a warp",
            technique="warp",
            when=_needs_warp,
            seeds=(f"{names}_{{dtype}}_warp",),
        ),
        Rung(
            "shared",
            "the row in shared memory and read once, in packs at any alignment",
            technique="shared",
            when=_needs_shared,
            suits=_suits_block,
            seeds=(f"{names}_{{dtype}}_block_shared",),
        ),
        Rung(
            "peeled",
            "rows that begin anywhere, streamed in packs, the next one gathered meanwhile",
            width=PACK,
            pack=True,
            technique="peeled",
            min_sm=90,
            when=_needs_peeled,
            suits=_suits_peeled,
        ),
        Rung(
            "peeled_registers",
            "rows that begin anywhere in the registers of a cluster, sums handed from lane to lane",
            width=PACK,
            pack=True,
            technique="peeled_registers",
            min_sm=90,
            when=_needs_peeled_registers,
            suits=_suits_peeled_registers,
        ),
        Rung(
            "registers",
            "the row in the registers of as many lanes as it needs, in packs, read once",
            width=PACK,
            pack=True,
            technique="registers",
            when=_needs_registers,
            seeds=(f"batch_invariant_{names}_{{dtype}}",),
        ),
        Rung(
            "cluster",
            "long rows streamed through a cluster, the next one gathered while one is finished",
            width=PACK,
            pack=True,
            technique="cluster",
            min_sm=90,
            when=_needs_cluster,
            suits=_suits_cluster,
        ),
        Rung(
            "columns",
            "other dimensions in place, neighbouring threads on neighbouring columns",
            technique="columns",
            when=_needs_columns,
        ),
        Rung(
            "columns_cluster",
            "strips of columns in the shared memory of a block or a cluster, read once",
            technique="columns_cluster",
            min_sm=90,
            when=_needs_strip,
            suits=_suits_strip,
        ),
    )


SOFTMAX = (*_UNSAFE, *_safe("softmax"))
LOG_SOFTMAX = (*_UNSAFE_LOG, *_safe("log_softmax"))

BACKWARD = (
    Rung(
        "naive",
        "a block per row, two sweeps, at any alignment",
        when=_of_output(_needs_rows),
    ),
    Rung(
        "pack",
        "128-bit accesses, the second sweep backwards through the caches",
        width=PACK,
        pack=True,
        when=_needs_packs_backward,
    ),
    Rung(
        "warp",
        "a warp per row, both rows in registers and read once, short rows sharing a warp",
        technique="warp",
        when=_of_output(_needs_warp),
    ),
    Rung(
        "peeled",
        "rows that begin anywhere, streamed in packs, the next one gathered meanwhile",
        width=PACK,
        pack=True,
        technique="peeled",
        min_sm=90,
        when=_of_output(_needs_peeled),
        suits=_of_output(_suits_block),
    ),
    Rung(
        "registers",
        "both rows in the registers of as many lanes as it needs, read once",
        width=PACK,
        pack=True,
        technique="registers",
        when=_needs_registers_backward,
    ),
    Rung(
        "cluster",
        "long rows streamed through a cluster, the next one gathered while one is finished",
        width=PACK,
        pack=True,
        technique="cluster",
        min_sm=90,
        when=_needs_cluster_backward,
        suits=_suits_cluster_backward,
    ),
    Rung(
        "columns",
        "other dimensions in place, neighbouring threads on neighbouring columns",
        technique="columns",
        when=_of_output(_needs_columns),
    ),
    Rung(
        "columns_cluster",
        "strips of columns in the shared memory of a block or a cluster, read once",
        technique="columns_cluster",
        min_sm=90,
        when=_needs_strip_backward,
        suits=_of_output(_suits_strip),
    ),
)
