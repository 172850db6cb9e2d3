"""Rows by their indices: embedding, index_select, gather_rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import FLOATS, FP8, PACK, Cost, Gradients, Op, Rung
from warpsmith.spec import memory
from warpsmith.spec.bits import as_bits, says_which
from warpsmith.spec.checks import check_dim, shape_text, wide_dtype
from warpsmith.spec.rows import MOST_ROWS, address
from warpsmith.transform import gather_cases as cases
from warpsmith.transform import indices
from warpsmith.transform.indices import require_dimension

#: Threads of a block, and the packs below which `stream` does not suit.
_THREADS, _LEAST_PACKS = 256, 1 << 18
_MOVED = (*FLOATS, *FP8, "i8", "i32")


# --- checks and references ------------------------------------------------------------------------


def _check_embedding(weight: Tensor, indices_: Tensor, padding_idx: int | None) -> None:
    op = "embedding"
    if not weight.is_floating_point():
        raise RuntimeError(
            f"{op}: expected weight to be a floating-point tensor, got {weight.dtype}"
        )
    if weight.dim() != 2:
        raise RuntimeError(
            f"{op}: expected weight to have shape [rows, cols], got {shape_text(weight)}"
        )
    indices.check_dtype(op, "indices", indices_, weight, "weight")
    rows = weight.shape[0]
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise RuntimeError(
            f"{op}: expected padding_idx to be one of {rows} rows, got {padding_idx}"
        )


def _check_index_select(x: Tensor, dim: int, index: Tensor) -> None:
    require_dimension("index_select", x)
    check_dim("index_select", x, dim)
    indices.check("index_select", index, x)


def _check_gather_rows(x: Tensor, index: Tensor) -> None:
    require_dimension("gather_rows", x)
    indices.check("gather_rows", index, x)


def _embedding(weight: Tensor, at: Tensor, scale: float) -> Tensor:
    rows = weight[indices.inside("embedding", at, weight.shape[0])]
    if scale == 1.0:
        return rows
    return (rows.to(wide_dtype(weight.dtype)) * scale).to(weight.dtype)


def _index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    return x.index_select(dim, indices.inside("index_select", index, x.shape[dim]))


def _gather_rows(x: Tensor, index: Tensor) -> Tensor:
    at = indices.inside("gather_rows", index, x.shape[0], least=None)
    kept = at >= 0
    y = x.new_zeros(index.numel(), *x.shape[1:])
    return y.index_put((kept.nonzero()[:, 0],), x[at[kept]])


def _fake_embedding(weight: Tensor, at: Tensor) -> Tensor:
    return weight.new_empty(*at.shape, weight.shape[1])


def _fake_index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    shape = list(x.shape)
    shape[dim] = index.numel()
    return x.new_empty(shape)


# --- derivatives ----------------------------------------------------------------------------------


def _derive_embedding(
    grad: Tensor, weight_rows: int, at: Tensor, padding_idx: int | None, scale: float
) -> Gradients:
    found = torch.ops.warpsmith.embedding_backward(grad, at, weight_rows, padding_idx, scale)
    return {"weight": found}


def _derive_index_select(grad: Tensor, rows: int, dim: int, index: Tensor) -> Gradients:
    shape = list(grad.shape)
    shape[dim] = rows
    return {"x": torch.ops.warpsmith.index_add(grad.new_zeros(shape), dim, index, grad)}


def _derive_gather_rows(grad: Tensor, rows: int, index: Tensor) -> Gradients:
    return {"x": torch.ops.warpsmith.scatter_rows(grad, index, rows)}


# --- the ladder -----------------------------------------------------------------------------------


def _along(name: str, x: Tensor, dim: int, count: int) -> tuple[tuple[int, int, int], Tensor]:
    """[outer, count, inner] of the result, and the rows that a kernel reads."""
    inner = x.shape[dim:].numel() // max(x.shape[dim], 1)
    if x.shape[dim] == 0:
        inner = x.shape[dim + 1 :].numel()
    unit = memory.has_unit_columns(x) if name == "embedding" else x.is_contiguous()
    rows = x if unit else torch.empty(x.shape, dtype=x.dtype, device="meta")
    return (x.shape[:dim].numel(), count, inner), rows


_Operands = Callable[..., "tuple[tuple[int, int, int], Tensor, bool]"]


def _conditions(operands: _Operands) -> Callable[..., Any]:
    """Conditions of an operator from its operands: the result's [outer, count, inner], the rows
    that are read, and whether they are scaled.
    """

    def needs(
        unit: int, word: int, scales: bool, scales_fp8: bool = True, counts_in_32_bits: bool = False
    ) -> Callable[[Any], str | None]:
        """Of units of so many bytes in words of so many; of 0, of the values."""

        def why(call: Any) -> str | None:
            (outer, count, inner), x, scaled = operands(call)
            if outer * count * inner == 0:
                return None
            size = x.element_size()
            if scaled and not (scales and (scales_fp8 or size > 1)):
                return "needs a scale of 1"
            if unit:
                strides = (memory.step(x, 0),) if x.dim() == 2 else ()
                strides = (*strides, inner) if x.dim() != 2 or outer > 1 else strides
                whole = inner * size % unit == 0
                whole = whole and all(s * size % word == 0 for s in strides)
                if not whole or address(x) % word:
                    return "needs rows of whole accesses, aligned"
            units = outer * count * inner * size // (unit or size)
            if counts_in_32_bits:
                return None if units <= MOST_ROWS else "needs less than 2^31 packs"
            blocks = -(-units // _THREADS)
            return None if blocks <= MOST_ROWS else "needs at most 2^31 - 1 blocks"

        return why

    return needs


def _ladder(operands: _Operands, dtypes: tuple[str, ...], seed: str = "") -> tuple[Rung, ...]:
    """`seed`: rows of the seed list, of few and of many indices."""
    few_seeds, many_seeds = (
        (f"{seed}_{size}_{{dtype}}",) if seed else () for size in ("small", "large")
    )
    needs = _conditions(operands)

    def many(call: Any) -> str | None:
        (outer, count, inner), x, _ = operands(call)
        packs = outer * count * inner * x.element_size() // 16
        return None if packs >= _LEAST_PACKS else "few rows, for which a thread a pack is faster"

    return (
        Rung("naive", "one value a thread", dtypes=dtypes, when=needs(0, 0, True)),
        Rung(
            "x2",
            "two values of 16 bits a thread",
            dtypes=("f16", "bf16"),
            width=2,
            when=needs(4, 4, False),
        ),
        Rung(
            "x4",
            "four values of 32 bits a thread, an access each",
            dtypes=("f32",),
            width=4,
            when=needs(16, 4, False),
        ),
        Rung(
            "x8",
            "eight values of 16 bits a thread, an access each",
            dtypes=("f16", "bf16"),
            width=8,
            when=needs(16, 2, False),
        ),
        Rung(
            "pack",
            "one 128-bit access a thread",
            seeds=few_seeds,
            dtypes=dtypes,
            width=PACK,
            pack=True,
            when=needs(16, 16, True),
        ),
        Rung(
            "stream",
            "four packs a thread on their way past L1",
            seeds=many_seeds,
            dtypes=dtypes,
            width=PACK,
            pack=True,
            technique="stream",
            when=needs(16, 16, True, scales_fp8=False, counts_in_32_bits=True),
            suits=many,
        ),
    )


def _of_embedding(call: Any) -> tuple[tuple[int, int, int], Tensor, bool]:
    weight, at, scale = call.weight, call.indices, call.scale
    return *_along("embedding", weight, 0, at.numel()), scale != 1.0


def _of_index_select(call: Any) -> tuple[tuple[int, int, int], Tensor, bool]:
    x, dim, index = call.x, call.dim, call.index
    return *_along("index_select", x, dim % x.dim(), index.numel()), False


def _of_gather_rows(call: Any) -> tuple[tuple[int, int, int], Tensor, bool]:
    return *_along("gather_rows", call.x, 0, call.index.numel()), False


# --- the operators --------------------------------------------------------------------------------


def _bytes(x: Tensor, count: int, outer: int, inner: int, index: Tensor) -> int:
    return 2 * outer * count * inner * x.element_size() + index.numel() * index.element_size()


def _bytes_embedding(weight: Tensor, indices: Tensor) -> int:
    return _bytes(weight, indices.numel(), 1, weight.shape[1], indices)


def _bytes_select(x: Tensor, dim: int, index: Tensor) -> int:
    at = dim % x.dim()
    inner = x.shape[at + 1 :].numel()
    return _bytes(x, index.numel(), x.shape[:at].numel(), inner, index)


op_embedding = catalogue.add(
    Op(
        "embedding(Tensor weight, Tensor indices, int? padding_idx=None, float scale=1.0) -> "
        "Tensor",
        family="transform",
        source="gather",
        reference=lambda weight, indices, scale: _embedding(weight, indices, scale),
        ladder=_ladder(_of_embedding, (*FLOATS, *FP8)),
        triton="gather_triton:embedding",
        fake=lambda weight, indices: _fake_embedding(weight, indices),
        check=lambda weight, indices, padding_idx: _check_embedding(weight, indices, padding_idx),
        backward=lambda grad, weight_rows, indices, padding_idx, scale: _derive_embedding(
            grad, weight_rows, indices, padding_idx, scale
        ),
        saves={"weight_rows": lambda weight: weight.shape[0]},
        reads_fp8=True,
        elementwise=True,
        samples=cases.EMBEDDING,
        errors=cases.EMBEDDING_ERRORS,
        cost=Cost(bytes=_bytes_embedding),
        bench=cases.EMBEDDING_BENCH,
        bench_dtypes=("bf16", "f32"),
        eager=lambda weight, indices, padding_idx, scale: _eager_embedding(
            weight, indices, padding_idx, scale
        ),
    )
)
op_index_select = catalogue.add(
    Op(
        "index_select(Tensor x, int dim, Tensor index) -> Tensor",
        family="transform",
        source="gather",
        reference=_index_select,
        ladder=_ladder(_of_index_select, _MOVED, "index_select"),
        triton="gather_triton:index_select",
        fake=_fake_index_select,
        check=_check_index_select,
        backward=_derive_index_select,
        saves={"rows": lambda x, dim: x.shape[dim]},
        elementwise=True,
        samples=cases.SELECT,
        errors=cases.SELECT_ERRORS,
        cost=Cost(bytes=_bytes_select),
        bench=cases.SELECT_BENCH,
        bench_dtypes=("bf16", "f32"),
        eager=lambda x, dim, index: torch.index_select(x, dim, index),
    )
)
op_gather_rows = catalogue.add(
    Op(
        "gather_rows(Tensor x, Tensor index) -> Tensor",
        family="transform",
        source="gather",
        reference=_gather_rows,
        ladder=_ladder(_of_gather_rows, _MOVED),
        triton="gather_triton:gather_rows",
        fake=lambda x, index: x.new_empty(index.numel(), *x.shape[1:]),
        check=_check_gather_rows,
        backward=_derive_gather_rows,
        saves={"rows": lambda x: x.shape[0]},
        elementwise=True,
        samples=cases.ROWS,
        errors=cases.ROWS_ERRORS,
        cost=Cost(bytes=lambda x, index: _bytes_select(x, 0, index)),
        bench=cases.ROWS_BENCH,
        bench_dtypes=("bf16",),
        eager=lambda x, index: x[index.clamp(min=0)] * (index >= 0)[:, None],
    )
)
for _op in (op_embedding, op_index_select, op_gather_rows):
    dispatch.register(_op)
_run_embedding, _run_select, _run_rows = map(
    dispatch.public, (op_embedding, op_index_select, op_gather_rows)
)


def _backward_in_any_order(
    grad: Tensor, weight: Tensor, indices: Tensor, padding_idx: int | None, scale: float
) -> Gradients:
    run = torch.ops.warpsmith.embedding_backward
    return {"weight": run(grad, indices, weight.shape[0], padding_idx, scale, False)}


_run_in_any_order = dispatch.register_composite(
    "embedding_in_any_order(Tensor weight, Tensor indices, int? padding_idx, float scale) "
    "-> Tensor",
    lambda *args: torch.ops.warpsmith.embedding(*args),
    lambda weight, indices, padding_idx, scale: _fake_embedding(weight, indices),
    _backward_in_any_order,
    called="embedding",
)


def _eager_embedding(weight: Tensor, at: Tensor, padding_idx: int | None, scale: float) -> Tensor:
    rows = torch.nn.functional.embedding(at, weight, padding_idx)
    return rows if scale == 1.0 else rows * scale


def embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int | None = None,
    scale: float = 1.0,
    *,
    deterministic: bool = True,
    variant: str | None = None,
) -> Tensor:
    """Rows of a table: `y[...] = weight[indices[...]] * scale`.

    The gradient of `weight` is dense and of its dtype.

    Args:
        weight: [rows, cols], f32, f16, bf16, e4m3 or e5m2 (f64 without a kernel); rows may lie at
            any stride.
        indices: int64 or int32, of any shape. They may come first and the table second, too, as in
            PyTorch.
        padding_idx: a row that gets no gradient; from the end if negative.
        scale: what rows are multiplied with, in f32.
        deterministic: the terms of a row's gradient are added up in f32, in their order, and
            rounded once; else with atomics, in any order, each rounded.
        variant: one rung by name instead of the best one; beside `deterministic` only.

    Returns:
        A contiguous tensor of the dtype of `weight`, of the shape of `indices` and cols.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit.
        IndexError: on a CPU, an index outside of the table. On a GPU it ends the kernel with a
            message, and CUDA fails with an assertion from then on.
        ValueError: the variant does not exist, or comes with deterministic=False.

    Reference:
        `torch.nn.functional.embedding`.
    """
    both = isinstance(weight, Tensor) and isinstance(indices, Tensor)
    if both and indices.is_floating_point() and not weight.is_floating_point():
        weight, indices = indices, weight
    if not deterministic:
        if variant is not None:
            raise ValueError(
                f"embedding: expected no variant beside deterministic=False, got '{variant}'"
            )
        return _run_in_any_order(weight, indices, padding_idx, scale)
    return _run_embedding(variant, weight, indices, padding_idx, scale)


def _is_single(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dim() == 0


def index_select(x: Tensor, dim: int, index: Tensor, *, variant: str | None = None) -> Tensor:
    """What of a dimension indices name: `y[:, j, :] = x[:, index[j], :]` for the dimension `dim`.

    Args:
        x: at least one dimension and any dtype (elements of 1, 2 and 4 bytes have kernels); what is
            not contiguous is copied.
        dim: which dimension.
        index: int64 or int32, 1-D, or without dimensions for a single one; may name one place
            several times.
        variant: one rung by name instead of the best one.

    Returns:
        A contiguous tensor like `x` with as many places along `dim` as there are indices; values
        are moved bit by bit.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit.
        IndexError: for a dimension that `x` does not have; on a CPU, for an index outside of [0,
            size). On a GPU that ends the kernel with a message.
        ValueError: the variant does not exist.

    Reference:
        `torch.index_select`.
    """
    at = index.reshape(1) if _is_single(index) else index
    return as_bits(_run_select, variant, x, dim, at)


def gather_rows(x: Tensor, index: Tensor, *, variant: str | None = None) -> Tensor:
    """Rows by their indices, and zeros: `y[j] = x[index[j]]`, or 0 where `index[j] < 0`.

    Takes the padding out of a batch, or puts it back: with the places of tokens in the padded batch
    it gathers these, and with the places of padded tokens among the gathered ones, -1 where there
    is none, it puts them back in one pass. `scatter_rows` does so from the former.

    Args:
        x: [rows, ...], any dtype that `index_select` takes.
        index: int64 or int32, 1-D.
        variant: one rung by name instead of the best one.

    Returns:
        A contiguous tensor of shape [len(index), ...].

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit.
        IndexError: on a CPU, for an index that is rows or more. On a GPU that ends the kernel with
            a message.
        ValueError: the variant does not exist.

    Reference:
        `index_first_axis` of https://github.com/Dao-AILab/flash-attention, with zeros.
    """
    at = index.reshape(1) if _is_single(index) else index
    return as_bits(_run_rows, variant, x, at)


says_which(index_select)
says_which(gather_rows)
