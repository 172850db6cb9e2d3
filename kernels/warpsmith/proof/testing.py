"""Whether a result is right, and the helpers around it, for tests, benchmarks and users.

A result is right where

    err(ours, float64) <= 2 * err(PyTorch at the same dtype, float64) + one ulp

element by element for operators that work on each element by itself, and relative to the largest
output for the others. NaN, infinities, integers, shapes, dtypes and strides have no tolerance.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import dispatch, references, twins
from warpsmith.core.catalogue import DTYPE_NAMES, DTYPES, Op, Variant, is_fp8
from warpsmith.proof import interpreted
from warpsmith.spec import accuracy
from warpsmith.spec.accuracy import (
    Comparison,
    as_tuple,
    compare_tensors,
    conditioning,
    largest_error,
    rounding,
    same_magnitude,
    ulp,
    worse,
)

__all__ = [
    "Comparison",
    "Expected",
    "assert_matches",
    "compare",
    "compare_tensors",
    "conditioning",
    "gold",
    "poison",
    "promised",
    "run_triton",
    "ulp",
    "unchanged",
    "with_written",
    "yardstick",
]

Outputs = tuple[Tensor, ...]

#: Depth of the tree that joins the threads over which a sum in 16 bits is spread.
_TREE_DEPTH = 12
#: Beyond this relative error, a sum in 16 bits is of no use to anybody.
_MAX_SUM_ERROR = 0.25
#: The largest error of no more float32 results than these says little about PyTorch's errors.
_FEW_RESULTS = 4096


# --- what is right --------------------------------------------------------------------------------


def _detached(args: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(a.detach() if isinstance(a, Tensor) else a for a in args)


def gold(op: Op, args: Sequence[Any]) -> Outputs:
    """The exact result, as far as float64 goes: the reference on float64 copies of the arguments.

    Args:
        op: the operator.
        args: its positional arguments; trailing ones may be left to the schema's defaults.

    Returns:
        One float64 tensor per output that there is (integer outputs keep their dtype), and per
        argument that is written to.
    """
    args = dispatch.normalise(op, _detached(args))
    with torch.no_grad():
        return _exact(op, *references.upcast(args, torch.float64))


def _exact(op: Op, *args: Any) -> Outputs:
    """The reference, in which what a call quantises to fp8 is counted as the numbers it stands
    for.
    """
    found = _present(as_tuple(op.reference(*args)))
    return tuple(o.double() if is_fp8(o.dtype) else o for o in found)


def _present(outs: Sequence[Tensor | None]) -> Outputs:
    """Those of optional outputs that are there."""
    return tuple(o for o in outs if o is not None)


def yardstick(op: Op, args: Sequence[Any]) -> Outputs:
    """PyTorch's result at the arguments' own dtype, on their own device.

    Args:
        op: the operator.
        args: its positional arguments.

    Returns:
        One tensor per output that there is, and per argument that is written to.
    """
    args = dispatch.normalise(op, _detached(args))
    with torch.no_grad():
        return _present(as_tuple(references.reference(op, args)))


def promised(op: Op, args: Sequence[Any]) -> Outputs:
    """Shape, dtype and strides that the operator's fake promises, on meta tensors, of the outputs
    that there are; then those of the arguments that are written to.
    """
    return _present(references.promised(op, dispatch.normalise(op, _detached(args))))


@dataclass(frozen=True)
class Expected:
    """What a call is judged by; reusable for every implementation of the same call."""

    op: Op
    args: tuple[Any, ...]
    gold: Outputs
    torch: Outputs

    @staticmethod
    def of(op: Op, args: Sequence[Any]) -> Expected:
        args = dispatch.normalise(op, _detached(args))
        return Expected(op, args, gold(op, args), yardstick(op, args))


# --- sums in 16 bits ------------------------------------------------------------------------------


def _largest_sum(op: Op, args: tuple[Any, ...]) -> float:
    """A bound on the magnitude of every sum that a 16-bit accumulator may hold."""
    if op.terms is None:
        # Sums of products, of which a square is the largest.
        dtype = references.first_tensor(args).dtype
        wide = [a.double() for a in args if isinstance(a, Tensor) and a.dtype == dtype]
        return max(float(w.square().sum(-1 if w.dim() else None).max()) for w in wide)
    magnitude = op.terms(*references.upcast(args, torch.float64)).abs()
    largest = float(magnitude.sum(-1).max())
    if op.low_precision_terms:
        return min(largest, op.low_precision_terms * float(magnitude.max()))
    return largest


def _sum_slack(expected: Expected, index: int, accumulator: torch.dtype) -> float:
    """What a sum held in 16 bits may cost, on top of the rule.

    A sum of terms t_i through additions of unit roundoff u, none of which has passed more than d
    additions, is off by at most d * u * sum|t_i| (Higham, Accuracy and Stability of Numerical
    Algorithms, section 4.2). A row of n terms is spread over t threads, the operator's
    `low_precision_threads` at least, so d <= n / t + the depth of the tree that joins them, and no
    more than its `low_precision_terms`.
    The reference on |arguments| bounds what sum|t_i| contributes to an output. The error is capped
    at a quarter of that: rounding errors do not all point the same way, and a kernel that is
    further off is of no use.

    That holds where an output is linear in the sums. A layer norm subtracts their mean m from the
    terms, and divides by what is left: off by u |m|, it moves outputs of size 1 by u |m| / s, s
    being the terms' deviation. Of many terms s is seldom far below |m|; of two, (|a| + |b|) / |a -
    b| has no bound. Where terms are few, the result may therefore be as far off as it moves when
    every intermediate value is rounded to the accumulator's dtype, `accuracy.rounding`, as often as
    a sum has passed an addition.

    Raises:
        _SumOverflowsError: where the sum may leave the range of its dtype.
    """
    op, args = expected.op, expected.args
    info = torch.finfo(accumulator)
    first = references.first_tensor(args)
    produced = expected.gold[index].numel()
    if first.numel() == 0 or produced == 0:
        return 0.0
    if _largest_sum(op, args) > info.max / 2:
        raise _SumOverflowsError
    terms = max(first.shape[-1] if first.dim() else 1, math.ceil(first.numel() / produced))
    depth = terms / op.low_precision_threads + _TREE_DEPTH
    if op.low_precision_terms:
        depth = min(depth, op.low_precision_terms)
    relative = min(depth * info.eps / 2, _MAX_SUM_ERROR)
    wide = references.upcast(args, torch.float64)
    absolute = gold(op, [a.abs() if isinstance(a, Tensor) else a for a in wide])[index]
    slack = relative * _largest(absolute)
    if terms < accuracy.FEW:
        exactly = functools.partial(_exact, op)
        rounded = rounding(exactly, wide, expected.gold, accumulator)[index]
        slack = max(slack, min(depth, max(1, terms - 1)) * _largest(rounded))
    return slack


def _largest(values: Tensor) -> float:
    """The largest finite magnitude."""
    finite = torch.where(values.isfinite(), values.abs(), 0.0)
    return float(finite.max()) if finite.numel() else 0.0


def _coarse_slack(expected: Expected, index: int, variant: Variant | None, out: Tensor) -> float:
    """What sums that tensor cores hold in fewer bits than f32 may cost, on top of the rule."""
    op = expected.op
    coarse = variant is None or variant.rung.coarse_sums
    if op.sum_error is None or not coarse or out.device.type != "cuda":
        return 0.0
    wide = references.upcast(expected.args, torch.float64)
    magnitudes = gold(op, [a.abs() if isinstance(a, Tensor) else a for a in wide])[index]
    return op.sum_error(*expected.args) * _largest(magnitudes)


class _SumOverflowsError(Exception):
    """A 16-bit accumulator may overflow on these inputs, which its documentation says."""


# --- calls ----------------------------------------------------------------------------------------


def layout_fault(out: Tensor, promise: Tensor) -> str:
    """In what dtype, shape or strides differ from those promised; empty where they do not."""
    if out.dtype != promise.dtype:
        return f"dtype {out.dtype}, promised {promise.dtype}"
    if out.shape != promise.shape:
        return f"shape {tuple(out.shape)}, promised {tuple(promise.shape)}"
    if out.numel() > 1:
        for size, ours, wanted in zip(out.shape, out.stride(), promise.stride(), strict=True):
            if size > 1 and ours != wanted:
                return f"strides {out.stride()}, promised {promise.stride()}"
    return ""


def compare(
    op: Op,
    out: Any,
    args: Sequence[Any],
    *,
    variant: Variant | None = None,
    label: str = "",
    expected: Expected | None = None,
) -> Comparison:
    """Judges the result of a call: its layout against the fake, its values by the accuracy rule.

    Args:
        op: the operator.
        out: what the implementation returned, a tensor or a tuple of them; of an operator that
            writes to arguments what `with_written` adds, too.
        args: the arguments that it was given.
        variant: the variant that ran, if one did; one that sums in 16 bits is allowed what such a
            sum costs, and one that is not valid for these values answers for its layout only.
        label: names the sample in the message.
        expected: `Expected.of(op, args)`, where several implementations are judged by it.

    Returns:
        The comparison; `message` names operator, variant, dtype, sample and the worst element.
    """
    args = dispatch.normalise(op, _detached(args))
    outs = as_tuple(out)
    dtype = references.first_tensor(args).dtype
    title = f"{variant.op_name if variant else op.name} [{DTYPE_NAMES.get(dtype, dtype)}"
    title += f" {label}]" if label else "]"
    said = references.promised(op, args)
    if len(outs) != len(said):
        return Comparison(False, f"{title}: {len(outs)} outputs, promised {len(said)}")
    for i, (o, promise) in enumerate(zip(outs, said, strict=True)):
        if (o is None) != (promise is None):
            there = "is None" if o is None else "is there, promised None"
            return Comparison(False, f"{title}: output {i} {there}", bad=1.0)
    outs, promises = _present(outs), _present(said)
    for i, (o, promise) in enumerate(zip(outs, promises, strict=True)):
        if fault := layout_fault(o, promise):
            which = f" output {i}" if len(outs) > 1 else ""
            return Comparison(False, f"{title}:{which} {fault}", bad=1.0)
    if variant is not None and not variant.rung.valid(*args):
        return Comparison(True)
    result = Comparison(True)
    if expected is None and (pieces := _pieces(op, outs, args)):
        for start, piece_out, piece_args in pieces:
            piece = Expected.of(op, piece_args)
            part = _compare_values(op, piece_out, piece, variant, f"{title} from row {start}")
            result = worse(result, part)
        return result
    return _compare_values(op, outs, expected or Expected.of(op, args), variant, title)


def _compare_values(
    op: Op, outs: Outputs, expected: Expected, variant: Variant | None, title: str
) -> Comparison:
    result = Comparison(True)
    for i, (o, exact, theirs) in enumerate(zip(outs, expected.gold, expected.torch, strict=True)):
        try:
            slack = _coarse_slack(expected, i, variant, o)
            if variant is not None and variant.low_precision:
                slack = _sum_slack(expected, i, DTYPES[variant.accumulator])
        except _SumOverflowsError:
            continue
        exact, theirs = exact.to(o.device), theirs.to(o.device)

        def floor(i: int = i, exact: Tensor = exact, theirs: Tensor = theirs) -> Tensor:
            with torch.no_grad():
                wide = references.upcast(expected.args, torch.float64)
                exactly = functools.partial(_exact, op)
                least = conditioning(exactly, wide, expected.gold)[i].to(exact.device)
                few = not op.elementwise and exact.numel() <= _FEW_RESULTS
                if (few or op.cancels) and theirs.dtype != torch.float64:
                    rounded = rounding(exactly, wide, expected.gold)[i].to(exact.device)
                    least = torch.maximum(least, rounded)
            if theirs.dtype != torch.float32:
                return least
            if not op.elementwise:
                if few or op.alternatives:
                    error = largest_error(
                        (lambda *a: yardstick(op, a), *op.alternatives),
                        lambda *a: gold(op, a),
                        expected.args,
                        i,
                        accuracy.NEIGHBOURS if few else 0,
                        op.input_eps,
                    )
                    least = least.clamp(min=error)
                return least
            return torch.maximum(least, same_magnitude(exact, theirs))

        name = f"{title} output {i}" if len(outs) > 1 else title
        part = compare_tensors(
            o, exact, theirs, elementwise=op.elementwise, title=name, slack=slack, floor=floor
        )
        result = worse(result, part)
    return result


def _pieces(
    op: Op, outs: Outputs, args: tuple[Any, ...]
) -> Iterator[tuple[int, Outputs, tuple[Any, ...]]] | None:
    """Cuts a large elementwise call along its first dimension; None where it need or can not be."""
    rank, rows = outs[0].dim(), outs[0].shape[0] if outs[0].dim() else 1
    if not op.elementwise or outs[0].numel() <= accuracy.PIECE or rows < 2:
        return None
    shape = outs[0].shape
    if any(o.dim() != rank or o.shape[0] != rows for o in outs):
        return None

    def follows(t: Tensor) -> bool:
        return t.dim() == rank and t.shape[0] == rows

    def constant(t: Tensor) -> bool:
        """Broadcasts over the rows: of what does not broadcast, each piece would get the same."""
        sizes = zip(reversed(t.shape), reversed(shape), strict=False)
        spread = t.dim() < rank or (t.dim() == rank and t.shape[0] == 1)
        return spread and all(n in (1, m) for n, m in sizes)

    tensors = [a for a in args if isinstance(a, Tensor)]
    if not all(follows(t) or constant(t) for t in tensors):
        return None
    step = max(1, rows * accuracy.PIECE // outs[0].numel())

    def cut() -> Iterator[tuple[int, Outputs, tuple[Any, ...]]]:
        for start in range(0, rows, step):
            size = min(step, rows - start)
            yield (
                start,
                tuple(o.narrow(0, start, size) for o in outs),
                tuple(
                    a.narrow(0, start, size) if isinstance(a, Tensor) and follows(a) else a
                    for a in args
                ),
            )

    return cut()


def assert_matches(
    op: Op,
    out: Any,
    args: Sequence[Any],
    label: str = "",
    *,
    variant: Variant | None = None,
    expected: Expected | None = None,
) -> Comparison:
    """`compare`, raising where the result is wrong.

    Args:
        op: the operator.
        out: what the implementation returned.
        args: the arguments that it was given.
        label: names the sample in the message.
        variant: the variant that ran, if one did.
        expected: reused judgement of the same call.

    Returns:
        The comparison, which is ok.

    Raises:
        AssertionError: with the comparison's message.
    """
    comparison = compare(op, out, args, variant=variant, label=label, expected=expected)
    if not comparison.ok:
        raise AssertionError(comparison.message)
    return comparison


# --- circumstances --------------------------------------------------------------------------------


@contextlib.contextmanager
def poison() -> Iterator[None]:
    """Fills what PyTorch allocates uninitialised with NaN (integers with their maximum) meanwhile.

    An output element that a kernel never writes then shows, instead of passing on what an earlier
    call left there.
    """
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    mode = torch.get_deterministic_debug_mode()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
        torch.set_deterministic_debug_mode(mode)


@contextlib.contextmanager
def unchanged(args: Sequence[Any]) -> Iterator[None]:
    """Asserts that the memory behind the tensors among `args` is, bit for bit, the same afterwards.

    The whole storage is compared, so a write beside a view shows too.

    Args:
        args: arguments of a call; what is no tensor is ignored.

    Raises:
        AssertionError: naming the argument by its position.
    """
    before: dict[int, tuple[int, Tensor, Tensor]] = {}
    for i, a in enumerate(args):
        if isinstance(a, Tensor) and a.untyped_storage().nbytes():
            raw = _raw(a)
            before.setdefault(raw.data_ptr(), (i, raw, raw.clone()))
    yield
    for i, raw, copy in before.values():
        if not torch.equal(raw, copy):
            raise AssertionError(f"the call wrote to the memory of argument {i}")


def with_written(op: Op, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of an operator that returns, behind its outputs, what arguments that it writes to
    hold afterwards; the arguments themselves, of which it gets copies of the same layout, stay as
    they are. `function` itself for an operator that writes to none. Arguments that lie in
    one storage do so as copies, too.

    Raises of a call:
        AssertionError: it wrote beside an argument, into memory between its elements; a call that
            is captured into a graph, where nothing can be looked at, is not asked.
    """
    if not op.written:
        return function

    def run(*args: Any) -> tuple[Any, ...]:
        given = list(dispatch.normalise(op, args))
        slots = [i for i in op.written if isinstance(given[i], Tensor)]
        copies = {_home(given[i]): _raw(given[i]).clone() for i in slots}
        for i, a in enumerate(given):
            if isinstance(a, Tensor) and (copy := copies.get(_home(a))) is not None:
                given[i] = _placed(a, copy)
        out = op.results(function(*given))
        captured = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        arounds = {home: copy.clone() for home, copy in copies.items()} if not captured else {}
        for home, around in arounds.items():
            here = [i for i in slots if _home(args[i]) == home]
            for i in here:
                _placed(args[i], around).copy_(args[i])
            same = torch.equal(around, _raw(args[here[0]]))
            names = " and ".join(op.argument_names[i] for i in here)
            assert same, f"the call wrote beside {names}"
        return (*out, *(given[i] for i in op.written))

    return run


def _raw(x: Tensor) -> Tensor:
    """The bytes of the storage behind a tensor."""
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())


def _home(x: Tensor) -> int:
    """What tells storages apart, also those without memory."""
    return int(x.untyped_storage()._cdata)


def _placed(x: Tensor, raw: Tensor) -> Tensor:
    """What lies in the bytes `raw` where `x` lies in its storage."""
    return torch.empty(0, dtype=x.dtype, device=x.device).set_(
        raw.untyped_storage(), x.storage_offset(), x.shape, x.stride()
    )


def run_triton(op: Op, args: Sequence[Any]) -> Any:
    """Runs the operator's Triton twin: on a GPU, or for CPU tensors under Triton's interpreter.

    Args:
        op: the operator.
        args: its positional arguments.

    Returns:
        What the twin returns, and what it wrote (`with_written`).

    Raises:
        RuntimeError: for CPU tensors where the interpreter is off (`TRITON_INTERPRET=1` must be set
            before Triton is imported), or where Triton is missing.
        StrayAccessError: interpreted, the twin left the memory of what its kernels were given; the
            interpreter may wrap it in errors of its own.
    """
    args = dispatch.normalise(op, tuple(args))
    if not twins.triton_available():
        raise RuntimeError(f"{op.name}: the Triton twin needs Triton, which is not installed")
    device = references.first_tensor(args).device
    if device.type == "cpu" and not twins.interpreting():
        raise RuntimeError(f"{op.name}: Triton takes CPU tensors only with TRITON_INTERPRET=1")
    if device.type == "cpu":
        interpreted.guard()
    return with_written(op, twins.triton_function(op))(*args)
