"""Rows added up by their indices: embedding's gradient, index_add, index_put, scatter_rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch, messages
from warpsmith.core.catalogue import Condition, Cost, Gradients, Op, Rung, always
from warpsmith.spec import memory
from warpsmith.spec.checks import check_device, check_dim, shape_text, wide_dtype
from warpsmith.spec.rows import MOST_ROWS
from warpsmith.transform import accumulate_cases as cases
from warpsmith.transform import indices

#: Of so many indices at most, blocks find those of their row by themselves.
MOST_SCANNED = 2048
#: Terms of 16 bits up to which atomics suit where `sorted` could add them in order; and where
#: `scan` could: these, and so many more for each index.
MOST_NARROW_ATOMICS, FEW_NARROW_ATOMICS, NARROW_ATOMICS_OF_LOOK = 1 << 22, 1 << 17, 1 << 8


# --- checks ---------------------------------------------------------------------------------------


def _check_floating(op: str, name: str, x: Tensor) -> None:
    if not x.is_floating_point():
        raise RuntimeError(f"{op}: expected {name} to be a floating-point tensor, got {x.dtype}")


def _check_embedding_backward(grad: Tensor, at: Tensor, rows: int, padding_idx: int | None) -> None:
    op = "embedding_backward"
    _check_floating(op, "grad", grad)
    indices.check_dtype(op, "indices", at, grad, "grad")
    if grad.dim() != at.dim() + 1 or grad.shape[:-1] != at.shape:
        raise RuntimeError(
            f"{op}: expected grad to have the shape of indices, {shape_text(at)}, and a dimension "
            f"more, got {shape_text(grad)}"
        )
    if rows < 0:
        raise RuntimeError(f"{op}: expected rows to be at least 0, got {rows}")
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise RuntimeError(
            f"{op}: expected padding_idx to be one of {rows} rows, got {padding_idx}"
        )


def _check_terms(
    op: str, name: str, terms: Tensor, x: Tensor, dim: int, count: int, what: str
) -> None:
    check_device(op, name, terms, x)
    if terms.dtype != x.dtype:
        raise RuntimeError(
            f"{op}: expected {name} to have dtype {x.dtype} like x, got {terms.dtype}"
        )
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :])
    if tuple(terms.shape) != shape:
        raise RuntimeError(
            f"{op}: expected {name} to have shape {shape}, {what}, got {shape_text(terms)}"
        )


def _check_index_add(op: str, x: Tensor, dim: int, index: Tensor, source: Tensor) -> None:
    _check_floating(op, "x", x)
    indices.require_dimension(op, x)
    at = check_dim(op, x, dim)
    indices.check(op, index, x)
    what = "that of x with a place for each index"
    _check_terms(op, "source", source, x, at, index.numel(), what)


def _check_in_place(x: Tensor, dim: int, index: Tensor, source: Tensor) -> None:
    _check_index_add("index_add_inplace", x, dim, index, source)
    memory.check_apart("index_add_inplace", "x", x)
    memory.check_own_memory("index_add_inplace", "x", x, "source", source)


def _check_index_put(x: Tensor, index: Tensor, values: Tensor) -> None:
    op = "index_put"
    _check_floating(op, "x", x)
    indices.require_dimension(op, x)
    indices.check(op, index, x)
    _check_terms(op, "values", values, x, 0, index.numel(), "a row of x for each index")


def _check_scatter_rows(x: Tensor, index: Tensor, rows: int) -> None:
    op = "scatter_rows"
    _check_floating(op, "x", x)
    indices.require_dimension(op, x)
    indices.check(op, index, x)
    if index.numel() != x.shape[0]:
        raise RuntimeError(
            f"{op}: expected an index for each of {x.shape[0]} rows of x, got {index.numel()}"
        )
    if rows < 0:
        raise RuntimeError(f"{op}: expected rows to be at least 0, got {rows}")


# --- references -----------------------------------------------------------------------------------


def _added(x: Tensor, dim: int, at: Tensor, terms: Tensor, alpha: float) -> Tensor:
    """In f32 at least, and rounded once."""
    wide = wide_dtype(x.dtype)
    return x.to(wide).index_add(dim, at, terms.to(wide), alpha=alpha).to(x.dtype)


def _added_to(x: Tensor, dim: int, at: Tensor, terms: Tensor, alpha: float) -> Tensor:
    """What no index names keeps its bits: NaN would lose its payload on its way through f32."""
    named = torch.zeros(x.shape[dim], dtype=torch.bool, device=x.device).index_fill(0, at, True)
    along = [-1 if i == dim % x.dim() else 1 for i in range(x.dim())]
    return torch.where(named.view(along), _added(x, dim, at, terms, alpha), x)


def _sums(x: Tensor, rows: int, at: Tensor, alpha: float = 1.0) -> Tensor:
    """Of the rows of x that name each row. One alone, not scaled, is moved with all its bits."""
    y = _added(x.new_zeros(rows, *x.shape[1:]), 0, at, x, alpha)
    if alpha != 1.0:
        return y
    named = torch.zeros(rows, dtype=torch.int64, device=x.device)
    alone = named.index_add(0, at, torch.ones_like(at))[at] == 1
    return y.index_put((at[alone],), x[alone])


def _embedding_backward(
    grad: Tensor, at: Tensor, rows: int, padding_idx: int | None, scale: float
) -> Tensor:
    places = indices.inside("embedding_backward", at, rows).reshape(-1)
    terms = grad.reshape(places.numel(), grad.shape[-1])
    if padding_idx is not None:
        kept = places != padding_idx % rows
        places, terms = places[kept], terms[kept]
    return _sums(terms, rows, places, scale)


def _index_add(
    x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float, op: str = "index_add"
) -> Tensor:
    return _added_to(x, dim, indices.inside(op, index, x.shape[dim]), source, alpha)


def _index_put(x: Tensor, index: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    rows = x.shape[0]
    at = indices.inside("index_put", index, rows, least=-rows)
    at = torch.where(at < 0, at + rows, at)
    if accumulate:
        return _added_to(x, 0, at, values, 1.0)
    # the last of those that name one row
    last = torch.full((rows,), -1, dtype=torch.int64, device=x.device)
    order = torch.arange(at.numel(), device=x.device)
    last = last.scatter_reduce(0, at, order, "amax")
    kept = (last >= 0).nonzero()[:, 0]
    return x.index_put((kept,), values[last[kept]])


def _scatter_rows(x: Tensor, index: Tensor, rows: int) -> Tensor:
    at = indices.inside("scatter_rows", index, rows, least=None)
    kept = at >= 0
    return _sums(x[kept], rows, at[kept])


# --- derivatives ----------------------------------------------------------------------------------


def _derive_index_add(
    grad: Tensor, dim: int, index: Tensor, alpha: float, needs: frozenset[str]
) -> Gradients:
    taken = torch.ops.warpsmith.index_select(grad, dim, index) if "source" in needs else None
    return {"x": grad, "source": None if taken is None else taken * alpha}


def _derive_scatter_rows(grad: Tensor, index: Tensor) -> Gradients:
    return {"x": torch.ops.warpsmith.gather_rows(grad, index)}


def _derive_index_put(
    grad: Tensor, index: Tensor, accumulate: bool, needs: frozenset[str]
) -> Gradients:
    rows = grad.shape[0]
    at = index.long()
    at = torch.where(at < 0, at + rows, at)
    values = torch.ops.warpsmith.index_select(grad, 0, at) if "values" in needs else None
    if accumulate:
        return {"x": grad, "values": values}
    order = torch.arange(at.numel(), device=grad.device)
    last = torch.full((rows,), -1, dtype=torch.int64, device=grad.device)
    last = last.scatter_reduce(0, at, order, "amax")
    if values is not None:
        won = (last[at] == order).view(-1, *[1] * (grad.dim() - 1))
        values = torch.where(won, values, 0.0)
    untouched = (last < 0).view(-1, *[1] * (grad.dim() - 1))
    return {"x": torch.where(untouched, grad, 0.0), "values": values}


# --- the ladder -----------------------------------------------------------------------------------

#: What a call is to the kernels: the terms to add, the number of indices, whether terms are added
#: in their order, whether x can be written.
_Operands = Callable[[Any], "tuple[Tensor, int, bool, bool]"]


def _ladder(operands: _Operands, seeds: Mapping[str, str] | None = None) -> tuple[Rung, ...]:
    def needs(what: Callable[[int, bool], str | None]) -> Callable[[Any], str | None]:
        def why(call: Any) -> str | None:
            terms, count, deterministic, written = operands(call)
            if terms.numel() == 0:
                return None
            if not written:
                return "needs x to be contiguous"
            return what(count, deterministic)

        return why

    def grid(count: int, _: bool) -> str | None:
        return None if count <= MOST_ROWS else "needs at most 2^31 - 1 rows"

    def few(count: int, _: bool) -> str | None:
        return None if count <= MOST_SCANNED else "needs at most 2048 indices"

    def in_any_order(count: int, deterministic: bool) -> str | None:
        return grid(count, deterministic) or (
            "needs deterministic=False" if deterministic else None
        )

    def many(call: Any) -> str | None:
        _, count, *_ = operands(call)
        return None if count > MOST_SCANNED else "few indices, for which a sort takes longer"

    def narrow(call: Any) -> str | None:
        terms, count, *_ = operands(call)
        few = FEW_NARROW_ATOMICS + NARROW_ATOMICS_OF_LOOK * count
        most = few if count <= MOST_SCANNED else MOST_NARROW_ATOMICS
        if terms.element_size() > 2 or terms.numel() <= most:
            return None
        return "many values of 16 bits, which are added in order sooner"

    rungs: tuple[tuple[str, str, Condition, Condition], ...] = (
        ("naive", "a value a thread looks through all indices", needs(grid), always),
        ("scan", "a block finds the few indices of its row together", needs(few), always),
        ("sorted", "indices are sorted: those of a row follow each other", needs(grid), many),
        ("atomic", "added as they come, on request", needs(in_any_order), narrow),
    )
    return tuple(
        Rung(
            name,
            story,
            technique="" if name == "naive" else name,
            when=when,
            suits=suits,
            seeds=(seeds[name],) if seeds and name in seeds else (),
        )
        for name, story, when, suits in rungs
    )


def _of_embedding(call: Any) -> tuple[Tensor, int, bool, bool]:
    return call.grad, call.indices.numel(), call.deterministic, True


def _of_index_add(call: Any) -> tuple[Tensor, int, bool, bool]:
    return call.source, call.index.numel(), call.deterministic, True


def _of_in_place(call: Any) -> tuple[Tensor, int, bool, bool]:
    written = call.x.is_contiguous()
    return call.source, call.index.numel(), call.deterministic, written


def _of_index_put(call: Any) -> tuple[Tensor, int, bool, bool]:
    fixed = call.deterministic or not call.accumulate
    return call.values, call.index.numel(), fixed, True


def _of_scatter_rows(call: Any) -> tuple[Tensor, int, bool, bool]:
    return call.x, call.index.numel(), call.deterministic, True


# --- the operators --------------------------------------------------------------------------------


def _size(x: Tensor) -> int:
    return x.numel() * x.element_size()


def _eager_embedding_backward(
    grad: Tensor, indices: Tensor, rows: int, padding_idx: int | None, scale: float
) -> Tensor:
    index = -1 if padding_idx is None else padding_idx
    found = torch.ops.aten.embedding_dense_backward(grad, indices, rows, index, False)
    return found if scale == 1.0 else found * scale


def _eager_in_place(x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float) -> None:
    x.index_add_(dim, index, source, alpha=alpha)


_FAMILY: dict[str, Any] = {"family": "transform", "source": "accumulate"}

op_embedding = catalogue.add(
    Op(
        "embedding_backward(Tensor grad, Tensor indices, int rows, int? padding_idx=None, "
        "float scale=1.0, bool deterministic=True) -> Tensor",
        **_FAMILY,
        reference=lambda grad, indices, rows, padding_idx, scale: _embedding_backward(
            grad, indices, rows, padding_idx, scale
        ),
        ladder=_ladder(_of_embedding),
        triton="accumulate_triton:embedding_backward",
        fake=lambda grad, rows: grad.new_empty(rows, grad.shape[-1]),
        check=lambda grad, indices, rows, padding_idx: _check_embedding_backward(
            grad, indices, rows, padding_idx
        ),
        samples=cases.EMBEDDING,
        errors=cases.EMBEDDING_ERRORS,
        cost=Cost(
            bytes=lambda grad, rows, indices: (
                _size(grad) + rows * grad.shape[-1] * grad.element_size() + _size(indices)
            )
        ),
        bench=cases.EMBEDDING_BENCH,
        bench_dtypes=("bf16", "f32"),
        eager=_eager_embedding_backward,
    )
)
op_index_add = catalogue.add(
    Op(
        "index_add(Tensor x, int dim, Tensor index, Tensor source, float alpha=1.0, "
        "bool deterministic=True) -> Tensor",
        **_FAMILY,
        reference=lambda x, dim, index, source, alpha: _index_add(x, dim, index, source, alpha),
        ladder=_ladder(
            _of_index_add,
            {"scan": "index_add_small_index_{dtype}", "sorted": "index_add_large_index_{dtype}"},
        ),
        reads_fp8=True,
        triton="accumulate_triton:index_add",
        fake=lambda x: x.new_empty(x.shape),
        check=lambda x, dim, index, source: _check_index_add("index_add", x, dim, index, source),
        backward=_derive_index_add,
        samples=cases.INDEX_ADD,
        errors=cases.index_add_errors("index_add"),
        cost=Cost(bytes=lambda x, source, index: 2 * _size(x) + _size(source) + _size(index)),
        bench=cases.INDEX_ADD_BENCH,
        bench_dtypes=("f32", "bf16"),
        eager=lambda x, dim, index, source, alpha: x.index_add(dim, index, source, alpha=alpha),
    )
)
op_in_place = catalogue.add(
    Op(
        "index_add_inplace(Tensor(a!) x, int dim, Tensor index, Tensor source, float alpha=1.0, "
        "bool deterministic=True) -> ()",
        **_FAMILY,
        reference=lambda x, dim, index, source, alpha: _index_add(
            x, dim, index, source, alpha, "index_add_inplace"
        ),
        ladder=_ladder(_of_in_place),
        reads_fp8=True,
        triton="accumulate_triton:index_add_inplace",
        fake=lambda: None,
        check=_check_in_place,
        samples=cases.IN_PLACE,
        errors=cases.IN_PLACE_ERRORS,
        cost=Cost(
            bytes=lambda source, index: 3 * _size(source) + _size(index),
        ),
        bench=cases.IN_PLACE_BENCH,
        bench_dtypes=("f32", "bf16"),
        eager=_eager_in_place,
    )
)
op_index_put = catalogue.add(
    Op(
        "index_put(Tensor x, Tensor index, Tensor values, bool accumulate=False, "
        "bool deterministic=True) -> Tensor",
        **_FAMILY,
        reference=lambda x, index, values, accumulate: _index_put(x, index, values, accumulate),
        ladder=_ladder(_of_index_put, {"scan": "index_put_accumulate_{dtype}"}),
        reads_fp8=True,
        triton="accumulate_triton:index_put",
        fake=lambda x: x.new_empty(x.shape),
        check=lambda x, index, values: _check_index_put(x, index, values),
        backward=_derive_index_put,
        samples=cases.INDEX_PUT,
        errors=cases.INDEX_PUT_ERRORS,
        cost=Cost(bytes=lambda x, values, index: 2 * _size(x) + _size(values) + _size(index)),
        bench=cases.INDEX_PUT_BENCH,
        bench_dtypes=("f32", "bf16"),
        eager=lambda x, index, values, accumulate: x.index_put(
            (index.long(),), values, accumulate=accumulate
        ),
    )
)
op_scatter = catalogue.add(
    Op(
        "scatter_rows(Tensor x, Tensor index, int rows, bool deterministic=True) -> Tensor",
        **_FAMILY,
        reference=lambda x, index, rows: _scatter_rows(x, index, rows),
        ladder=_ladder(_of_scatter_rows),
        reads_fp8=True,
        triton="accumulate_triton:scatter_rows",
        fake=lambda x, rows: x.new_empty(rows, *x.shape[1:]),
        check=lambda x, index, rows: _check_scatter_rows(x, index, rows),
        backward=_derive_scatter_rows,
        samples=cases.SCATTER,
        errors=cases.SCATTER_ERRORS,
        cost=Cost(
            bytes=lambda x, rows, index: (
                _size(x) + rows * x.shape[1:].numel() * x.element_size() + _size(index)
            )
        ),
        bench=cases.SCATTER_BENCH,
        bench_dtypes=("bf16",),
    )
)
for _op in (op_embedding, op_index_add, op_in_place, op_index_put, op_scatter):
    dispatch.register(_op)
_add, _add_in_place, _put, _scatter = map(
    dispatch.public, (op_index_add, op_in_place, op_index_put, op_scatter)
)


def index_add(
    x: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    alpha: float = 1.0,
    deterministic: bool = True,
    *,
    inplace: bool = False,
    variant: str | None = None,
) -> Tensor:
    """Adds places of a dimension by their indices: `y = x; y[:, index[j], :] += alpha *
    source[:, j, :]` for the dimension `dim`.

    Args:
        x: at least one dimension; f32, f16 or bf16 (f64 without a kernel).
        dim: which dimension.
        index: int64 or int32, 1-D, in [0, size); may name one place several times.
        source: of the shape of `x` with a place along `dim` for each index, of its dtype.
        alpha: what the sums of terms are multiplied with.
        deterministic: the terms of a place are added up in f32, in their order, and rounded once;
            else with atomics, in any order, each rounded.
        inplace: writes over `x`, which must require no gradient.
        variant: one rung by name instead of the best one.

    Returns:
        A contiguous tensor like `x`; `x` itself if `inplace`.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit; with `inplace`, elements of `x` share
            memory, with `source` as well.
        IndexError: for a dimension that `x` does not have; on a CPU, for an index outside of [0,
            size). On a GPU that ends the kernel with a message, and CUDA fails with an assertion
            from then on.
        ValueError: the variant does not exist.

    Reference:
        `torch.index_add`.
    """
    if isinstance(index, Tensor) and index.dim() == 0:
        index = index.reshape(1)
    if inplace:
        _add_in_place(variant, x, dim, index, source, alpha, deterministic)
        return x
    return _add(variant, x, dim, index, source, alpha, deterministic)


def _put_anywhere(
    x: Tensor,
    index: Any,
    values: Tensor,
    accumulate: bool,
    deterministic: bool,
    variant: str | None,
) -> Tensor:
    """What `torch.index_put` takes beyond rows of x for a list of them: several indices, which
    count places of the first dimensions, of any shapes that broadcast; values that do so, too.
    """
    op, given = "index_put", index if isinstance(index, (tuple, list)) else (index,)
    messages.expect_tensors(op, x=x, values=values)
    indices.require_dimension(op, x)
    count = len(given)
    if odd := [at for at in given if not isinstance(at, Tensor)]:
        found = "None" if odd[0] is None else type(odd[0]).__name__
        raise TypeError(f"{op}: expected index to be a tensor or several, got {found} among them")
    if count == 0 or count > x.dim():
        raise IndexError(f"{op}: expected 1 to {x.dim()} tensors of indices, got {count}")
    for at in given:
        indices.check_dtype(op, "index", at, x, "x")
    try:
        shape = torch.broadcast_shapes(*(at.shape for at in given))
        values = values.expand(*shape, *x.shape[count:])
    except RuntimeError:
        shapes = ", ".join(shape_text(at) for at in given)
        wanted = "that of the places that indices name"
        raise RuntimeError(
            f"{op}: expected indices of shapes that broadcast, and values that broadcast to "
            f"{wanted}; got indices of {shapes} and values of {shape_text(values)}"
        ) from None
    places = x.shape[:count].numel()
    if count == 1:
        flat = given[0].reshape(-1)
    else:
        flat = torch.zeros((), dtype=torch.int64, device=x.device)
        inside = torch.ones((), dtype=torch.bool, device=x.device)
        for at, size in zip(given, x.shape, strict=False):
            wide = at.long()
            inside = inside & (wide >= -size) & (wide < size)
            flat = flat * size + torch.where(wide < 0, wide + size, wide)
        # one that is outside stays so
        flat = torch.where(inside, flat, places).expand(shape).reshape(-1)
    rows = x.reshape(places, *x.shape[count:])
    moved = values.reshape(flat.numel(), *x.shape[count:])
    try:
        return _put(variant, rows, flat, moved, accumulate, deterministic).view(x.shape)
    except IndexError:
        for at, size in zip(given, x.shape, strict=False):
            indices.inside(op, at, size, least=-size)  # which says so of the index that it is
        raise


def index_put(
    x: Tensor,
    index: Tensor | Sequence[Tensor],
    values: Tensor,
    accumulate: bool = False,
    deterministic: bool = True,
    *,
    variant: str | None = None,
) -> Tensor:
    """Rows put, or added, where indices say: `y = x; y[index[j]] = values[j]`, or `+=` if
    `accumulate`.

    Of several indices that name one row, the last one's values stay. What is put is moved bit by
    bit.

    Args:
        x: [rows, ...], f32, f16 or bf16 (f64 without a kernel).
        index: int64 or int32, 1-D, in [-rows, rows): from the end where it is negative. Or, as in
            PyTorch, several that broadcast, for the first dimensions of `x`, of any shape.
        values: [len(index), ...], or what broadcasts to it, of the dtype of `x`.
        accumulate: adds instead.
        deterministic: as in `index_add`.
        variant: one rung by name instead of the best one.

    Returns:
        A contiguous tensor like `x`.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit.
        IndexError: on a CPU, for an index outside of [-rows, rows). On a GPU that ends the kernel
            with a message.
        ValueError: the variant does not exist.
        TypeError: something of `index` is no tensor.

    Reference:
        `torch.index_put`.
    """
    if isinstance(index, (tuple, list)) or (
        isinstance(index, Tensor)
        and isinstance(values, Tensor)
        and isinstance(x, Tensor)
        and (index.dim() != 1 or values.shape[:1] != index.shape or values.dim() != x.dim())
    ):
        return _put_anywhere(x, index, values, accumulate, deterministic, variant)
    return _put(variant, x, index, values, accumulate, deterministic)


def scatter_rows(
    x: Tensor,
    index: Tensor,
    rows: int,
    deterministic: bool = True,
    *,
    variant: str | None = None,
) -> Tensor:
    """Rows put back where they came from: `y = 0; y[index[j]] += x[j]` where `index[j] >= 0`.

    The derivative of `gather_rows`, and with the places of tokens in a padded batch its opposite: a
    row that one index names is moved bit by bit, unless atomics add it to 0.

    Args:
        x: [count, ...], f32, f16 or bf16 (f64 without a kernel).
        index: int64 or int32, [count], below `rows`; a row with a negative one is left out.
        rows: of the result.
        deterministic: as in `index_add`; where no two indices are the same it makes no difference
            but to -0 and the payloads of NaN, which atomics do not keep.
        variant: one rung by name instead of the best one.

    Returns:
        A contiguous tensor of shape [rows, ...].

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit.
        IndexError: on a CPU, for an index that is rows or more. On a GPU that ends the kernel with
            a message.
        ValueError: the variant does not exist.

    Reference:
        `index_put_first_axis` of https://github.com/Dao-AILab/flash-attention.
    """
    return _scatter(variant, x, index, rows, deterministic)
