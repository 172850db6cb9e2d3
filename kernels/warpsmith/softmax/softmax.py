"""Softmax along any dimension, y = exp(x - max) / sum(exp(x - max)), its logarithm, and the
gradients of both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith import catalogue, dispatch
from warpsmith.catalogue import PACK, Condition, Cost, Op, Property, Rung
from warpsmith.reduce.dims import check_dim
from warpsmith.rows import MOST_ROWS, needs_held, needs_streamed, suits_streamed
from warpsmith.softmax import softmax_cases as cases
from warpsmith.softmax.slices import as_slices, tiles_slices

# --- checks ---------------------------------------------------------------------------------------


def _check(op: str) -> Callable[..., None]:
    def check(x: Tensor, dim: int) -> None:
        if not x.is_floating_point():
            raise RuntimeError(f"{op}: expected x to be a floating-point tensor, got {x.dtype}")
        check_dim(op, x, dim)

    return check


def _check_backward(op: str) -> Callable[..., None]:
    def check(grad: Tensor, y: Tensor, dim: int) -> None:
        if not y.is_floating_point():
            raise RuntimeError(f"{op}: expected y to be a floating-point tensor, got {y.dtype}")
        if grad.device != y.device:
            raise RuntimeError(f"{op}: expected grad to be on {y.device} like y, got {grad.device}")
        if grad.dtype != y.dtype:
            raise RuntimeError(
                f"{op}: expected grad to have dtype {y.dtype} like y, got {grad.dtype}"
            )
        if grad.shape != y.shape:
            raise RuntimeError(
                f"{op}: expected grad to have shape {tuple(y.shape)} like y, "
                f"got {tuple(grad.shape)}"
            )
        check_dim(op, y, dim)

    return check


# --- references -----------------------------------------------------------------------------------


def _reference(x: Tensor, dim: int) -> Tensor:
    return torch.softmax(x, dim)


def _reference_log(x: Tensor, dim: int) -> Tensor:
    return torch.log_softmax(x, dim)


def _reference_backward(grad: Tensor, y: Tensor, dim: int) -> Tensor:
    return torch.ops.aten._softmax_backward_data(grad, y, dim, y.dtype)


def _reference_log_backward(grad: Tensor, y: Tensor, dim: int) -> Tensor:
    return torch.ops.aten._log_softmax_backward_data(grad, y, dim, y.dtype)


def _fake(x: Tensor, dim: int) -> Tensor:
    return x.new_empty(x.shape)


def _fake_backward(grad: Tensor, y: Tensor, dim: int) -> Tensor:
    return y.new_empty(y.shape)


def _derivative(
    inputs: tuple[Any, ...], needs: tuple[bool, ...], outputs: tuple[Tensor, ...], grad: Tensor
) -> tuple[Tensor | None, ...]:
    return torch.ops.warpsmith.softmax_backward(grad, outputs[0], inputs[1]), None


def _derivative_log(
    inputs: tuple[Any, ...], needs: tuple[bool, ...], outputs: tuple[Tensor, ...], grad: Tensor
) -> tuple[Tensor | None, ...]:
    return torch.ops.warpsmith.log_softmax_backward(grad, outputs[0], inputs[1]), None


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


def _needs_strip_backward(grad: Tensor, y: Tensor, dim: int) -> str | None:
    return _needs_strip(y, dim, inputs=2)


def _suits_cluster_backward(grad: Tensor, y: Tensor, dim: int) -> str | None:
    return suits_streamed(_row_bytes(y, dim), inputs=2)


def _never(x: Tensor, dim: int) -> str | None:
    return "overflows where a value passes 88"


#: exp of the largest value of each row, and 2^31 times that, lie well within float32.
_UNSHIFTED_RANGE = 60.0


def _valid_unshifted(x: Tensor, dim: int) -> bool:
    if x.numel() == 0:
        return True
    peak = x.float().amax(dim)
    return bool(((peak.abs() <= _UNSHIFTED_RANGE) | peak.isnan()).all())


# --- the ladders ----------------------------------------------------------------------------------

_HALVES = ("f16", "bf16")

#: Without the row's maximum; no logarithm of these.
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


def _safe(names: str) -> tuple[Rung, ...]:
    """The rungs that both operators have; `names` is what the seed list calls the operator."""
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


_BACKWARD = (
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

# --- peers ----------------------------------------------------------------------------------------


def _quack() -> Callable[..., Any]:
    from quack.softmax import softmax as theirs

    def run(x: Tensor, dim: int) -> Tensor:
        _last_only(x, dim)
        return theirs(x)

    return run


def _liger() -> Callable[..., Any]:
    from liger_kernel.ops.softmax import _softmax_forward

    def run(x: Tensor, dim: int) -> Tensor:
        _last_only(x, dim)
        return _softmax_forward(x)[0]

    return run


def _quack_backward() -> Callable[..., Any]:
    from quack.softmax import softmax_bwd

    def run(grad: Tensor, y: Tensor, dim: int) -> Tensor:
        _last_only(y, dim)
        return softmax_bwd(grad, y)

    return run


def _liger_backward() -> Callable[..., Any]:
    from liger_kernel.ops.softmax import _softmax_backward
    from liger_kernel.ops.utils import calculate_settings

    def run(grad: Tensor, y: Tensor, dim: int) -> Tensor:
        _last_only(y, dim)
        return _softmax_backward(grad, y, *calculate_settings(y.shape[-1]), False)

    return run


def _last_only(x: Tensor, dim: int) -> None:
    if dim % x.dim() != x.dim() - 1:
        raise ValueError("works along the last dimension only")


# --- the operators --------------------------------------------------------------------------------


def _bytes(x: Tensor, dim: int) -> int:
    return 2 * x.numel() * x.element_size()


def _bytes_backward(grad: Tensor, y: Tensor, dim: int) -> int:
    return 3 * y.numel() * y.element_size()


softmax_op = catalogue.add(
    Op(
        "softmax(Tensor x, int dim=-1) -> Tensor",
        family="softmax",
        reference=_reference,
        ladder=(*_UNSAFE, *_safe("softmax")),
        triton="softmax_triton:softmax",
        fake=_fake,
        check=_check("softmax"),
        backward=_derivative,
        saves_inputs=(),
        saves_output=True,
        accumulates=True,
        samples=cases.samples(past=True),
        errors=cases.errors("softmax"),
        properties=(
            Property("rows sum to one", cases.rows_sum_to_one),
            Property("shift invariant", cases.shift_invariant),
            Property("keeps the order", cases.keeps_the_order),
            Property("masked out", cases.masked_out),
            Property("one outlier", cases.one_outlier),
            Property("keeps small answers", cases.keeps_small_answers),
            Property("batch invariant", cases.batch_invariant),
            Property("the same bits wherever a row lies", cases.same_bits_anywhere),
        ),
        cost=Cost(bytes=_bytes, flops=lambda x, dim: 5 * x.numel()),
        bench=cases.bench(),
        peers={"quack": _quack, "liger": _liger},
    )
)

log_softmax_op = catalogue.add(
    Op(
        "log_softmax(Tensor x, int dim=-1) -> Tensor",
        family="softmax",
        source="softmax",
        reference=_reference_log,
        ladder=_safe("log_softmax"),
        triton="softmax_triton:log_softmax",
        fake=_fake,
        check=_check("log_softmax"),
        backward=_derivative_log,
        saves_inputs=(),
        saves_output=True,
        accumulates=True,
        samples=cases.samples(),
        errors=cases.errors("log_softmax"),
        properties=(
            Property("exponentials sum to one", cases.exponentials_sum_to_one),
            Property("shift invariant", cases.shift_invariant),
            Property("keeps the order", cases.keeps_the_order),
            Property("accurate far below", cases.accurate_far_below),
            Property("batch invariant", cases.batch_invariant),
            Property("the same bits wherever a row lies", cases.same_bits_anywhere),
        ),
        cost=Cost(bytes=_bytes, flops=lambda x, dim: 4 * x.numel()),
        bench=cases.bench(),
    )
)

softmax_backward_op = catalogue.add(
    Op(
        "softmax_backward(Tensor grad, Tensor y, int dim=-1) -> Tensor",
        family="softmax",
        reference=_reference_backward,
        ladder=_BACKWARD,
        triton="softmax_triton:softmax_backward",
        fake=_fake_backward,
        check=_check_backward("softmax_backward"),
        samples=cases.backward_samples(_reference, past=True),
        errors=cases.backward_errors("softmax_backward"),
        properties=(
            Property("sums to zero", cases.gradient_sums_to_zero(_reference)),
            Property("batch invariant", cases.gradient_batch_invariant),
        ),
        cost=Cost(bytes=_bytes_backward, flops=lambda grad, y, dim: 4 * y.numel()),
        bench=cases.bench_backward(_reference),
        peers={"quack": _quack_backward, "liger": _liger_backward},
    )
)

log_softmax_backward_op = catalogue.add(
    Op(
        "log_softmax_backward(Tensor grad, Tensor y, int dim=-1) -> Tensor",
        family="softmax",
        source="softmax_backward",
        reference=_reference_log_backward,
        ladder=_BACKWARD,
        triton="softmax_triton:log_softmax_backward",
        fake=_fake_backward,
        check=_check_backward("log_softmax_backward"),
        samples=cases.backward_samples(_reference_log),
        errors=cases.backward_errors("log_softmax_backward"),
        properties=(
            Property("sums to zero", cases.gradient_sums_to_zero(_reference_log)),
            Property("batch invariant", cases.gradient_batch_invariant),
        ),
        cost=Cost(bytes=_bytes_backward, flops=lambda grad, y, dim: 4 * y.numel()),
        bench=cases.bench_backward(_reference_log),
    )
)

for _op in (softmax_op, log_softmax_op, softmax_backward_op, log_softmax_backward_op):
    dispatch.register(_op)
_softmax = dispatch.public(softmax_op)
_log_softmax = dispatch.public(log_softmax_op)


def softmax(x: Tensor, dim: int = -1, *, variant: str | None = None) -> Tensor:
    """Turns values into probabilities: ``y = exp(x - max) / sum(exp(x - max))`` along `dim`.

    Computed in f32. Differentiable; the backward pass needs the answer only, so x is not kept. As
    in PyTorch, slices that hold a NaN, a +inf or nothing but -inf become NaN.

    Args:
        x: any shape, f32, f16 or bf16 (f64 and fp8 without a kernel of their own), any strides.
        dim: the dimension along which the answers sum to one; 0 or -1 for a 0-d x.
        variant: one rung by name instead of the best one, "f16x8_pack_online_f32". Those named
            unsafe and fence leave the maximum out: they overflow where a value passes 88, and
            divide 0 by 0 where all of a slice lie below -88. Those named fence add in an order that
            changes from run to run.

    Returns:
        A contiguous tensor of the shape and dtype of x.

    Raises:
        RuntimeError: x is not floating-point; the variant cannot take the input.
        IndexError: x has no such dimension.
        ValueError: the variant does not exist.

    Reference:
        Milakov & Gimelshein 2018, Online normalizer calculation for softmax,
        https://arxiv.org/abs/1805.02867
    """
    return _softmax(variant, x, dim)


def log_softmax(x: Tensor, dim: int = -1, *, variant: str | None = None) -> Tensor:
    """The logarithm of the softmax: ``y = x - max - log(sum(exp(x - max)))`` along `dim`.

    Computed in f32, and without cancellation: very negative answers are as accurate as any.
    Differentiable; the backward pass needs the answer only, so x is not kept. As in PyTorch, slices
    that hold a NaN, a +inf or nothing but -inf become NaN.

    Args:
        x: any shape, f32, f16 or bf16 (f64 and fp8 without a kernel of their own), any strides.
        dim: the dimension along which the exponentials of the answers sum to one; 0 or -1 for a 0-d
            x.
        variant: one rung by name instead of the best one, "f16x8_pack_online_f32".

    Returns:
        A contiguous tensor of the shape and dtype of x.

    Raises:
        RuntimeError: x is not floating-point; the variant cannot take the input.
        IndexError: x has no such dimension.
        ValueError: the variant does not exist.

    Reference:
        `torch.nn.functional.log_softmax`.
    """
    return _log_softmax(variant, x, dim)
