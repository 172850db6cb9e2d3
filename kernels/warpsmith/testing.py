"""The accuracy rule, and the helpers around it, for tests, benchmarks and users.

An answer is right where

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

from warpsmith import dispatch
from warpsmith.catalogue import DTYPE_NAMES, Op, Variant

Outputs = tuple[Tensor, ...]

#: Larger elementwise answers are judged piece by piece, because the rule works in float64.
_PIECE = 1 << 26
#: Spacing of float32, the precision in which 16-bit and fp8 kernels compute.
_F32_EPS = 2.0**-23
#: A sum in 16 bits is spread over at least this many threads, then joined in a tree of this depth.
_MIN_THREADS = 32
_TREE_DEPTH = 12
#: Beyond this relative error, a sum in 16 bits is of no use to anybody.
_MAX_SUM_ERROR = 0.25


# --- what is right --------------------------------------------------------------------------------


def _tuple(out: Any) -> Outputs:
    return tuple(out) if isinstance(out, tuple | list) else (out,)


def _detached(args: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(a.detach() if isinstance(a, Tensor) else a for a in args)


def gold(op: Op, args: Sequence[Any]) -> Outputs:
    """The exact answer, as far as float64 goes: the reference on float64 copies of the arguments.

    Args:
        op: the operator.
        args: its positional arguments; trailing ones may be left to the schema's defaults.

    Returns:
        One float64 tensor per output (integer outputs keep their dtype).
    """
    args = dispatch.normalise(op, _detached(args))
    with torch.no_grad():
        return _tuple(op.reference(*dispatch.upcast(args, torch.float64)))


def yardstick(op: Op, args: Sequence[Any]) -> Outputs:
    """PyTorch's answer at the arguments' own dtype, on their own device.

    Args:
        op: the operator.
        args: its positional arguments.

    Returns:
        One tensor per output.
    """
    args = dispatch.normalise(op, _detached(args))
    with torch.no_grad():
        return _tuple(dispatch.reference(op, args))


def promised(op: Op, args: Sequence[Any]) -> Outputs:
    """Shape, dtype and strides that the operator's fake promises, on meta tensors."""
    args = dispatch.normalise(op, _detached(args))
    with torch.device("meta"):
        return _tuple(op.fake(*(_meta(a) if isinstance(a, Tensor) else a for a in args)))


def _meta(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


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


# --- floating-point facts -------------------------------------------------------------------------


def ulp(magnitude: Tensor, dtype: torch.dtype) -> Tensor:
    """Spacing of `dtype` at a magnitude; never less than that of its subnormals.

    Args:
        magnitude: float64 tensor of any shape, finite.
        dtype: a floating dtype.

    Returns:
        A float64 tensor of the same shape.
    """
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(magnitude.abs().clamp(info.tiny, info.max))
    return torch.ldexp(torch.full_like(magnitude, info.eps), exponent - 1)


@functools.cache
def _overflow(dtype: torch.dtype) -> float:
    """Magnitude from which rounding to nearest leaves the range of `dtype`: half an ulp past it.

    e4m3 gives the encoding after 448 to NaN, so 464, halfway to where 480 would be, is its end.
    """
    info = torch.finfo(dtype)
    return info.max + float(ulp(torch.tensor(info.max, dtype=torch.float64), dtype)) / 2


def _kind(x: Tensor) -> Tensor:
    """0 finite, 1 plus infinity, 2 minus infinity, 3 NaN."""
    return (x == math.inf).byte() + 2 * (x == -math.inf).byte() + 3 * x.isnan().byte()


# --- the rule -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Verdict:
    bad: Tensor  # bool, where the answer is wrong
    allowed: Tensor  # float64, the tolerance
    ours: Tensor  # float64, the largest error of a finite answer
    theirs: Tensor  # float64, the same for PyTorch
    half_ulp: Tensor  # float64, half the spacing at the largest answer: what rounding costs anybody


def _largest(values: Tensor, where: Tensor) -> Tensor:
    if values.numel() == 0:
        return values.new_zeros(())
    return torch.where(where, values, 0.0).max()


def _judge(
    out: Tensor,
    exact: Tensor,
    theirs: Tensor,
    elementwise: bool,
    slack: float = 0.0,
    floor: Tensor | None = None,
) -> _Verdict:
    """Applies the rule to one floating-point output.

    Where PyTorch leaves the finite numbers and float64 does not, or the other way round, an
    intermediate value or the rounding of the result overflowed: "as in PyTorch" and "as in exact
    arithmetic" are then both right.
    """
    dtype = out.dtype
    info = torch.finfo(dtype)
    o, t = out.double(), theirs.double()
    kind_o, kind_t = _kind(o), _kind(t)
    over = exact.abs() >= _overflow(dtype)
    e4m3 = dtype == torch.float8_e4m3fn
    kind_over = torch.full_like(kind_o, 3) if e4m3 else torch.where(exact > 0, 1, 2).byte()
    kind_exact = torch.where(over, kind_over, 3 * exact.isnan().byte())
    target = torch.where(exact.isfinite(), exact, t)
    magnitude = torch.where(target.isfinite(), target, 0.0)

    in_range = (kind_exact == 0) & (kind_t == 0)
    error_t = torch.where(exact.isfinite() & (kind_t == 0), (t - exact).abs(), 0.0)
    scale = _largest(magnitude.abs(), in_range)
    worst_t = _largest(error_t, in_range)
    if elementwise:
        spacing = ulp(magnitude, dtype)
        if dtype in (torch.float32, torch.float64):
            # CUDA documents its float32 functions to 1 or 2 ulp, and CPU libraries to about 1: that
            # PyTorch is exact at one element is luck, and no property of PyTorch's function.
            error_t = torch.maximum(error_t, spacing)
        if floor is not None:
            error_t = torch.maximum(error_t, floor)
        allowed = 2 * error_t + spacing
    else:
        allowed = (2 * worst_t + ulp(scale, dtype) + slack).expand_as(exact)

    # Within the noise of float32 arithmetic around the overflow threshold, either side is right.
    noise = _overflow(dtype) * (2.0**-18 if info.bits < 32 else 4 * info.eps)
    edge = (exact.abs() - _overflow(dtype)).abs() <= noise
    error_o = (o - target).abs()
    may_be_finite = (kind_exact == 0) | (kind_t == 0) | edge
    right_finite = may_be_finite & (error_o <= allowed)
    if e4m3:
        right_finite &= ~over | edge
        # PyTorch releases differ in whether the conversion saturates or gives NaN.
        right_finite |= over & (o == exact.sign() * info.max)
    right_other = (kind_o == kind_exact) | (kind_o == kind_t) | (edge & (kind_o == kind_over))
    bad = ~torch.where(kind_o == 0, right_finite, right_other)
    worst_o = _largest(error_o, in_range & (kind_o == 0))
    return _Verdict(bad, allowed, worst_o, worst_t, ulp(scale, dtype) / 2)


def _conditioning(op: Op, args: tuple[Any, ...], exact: Sequence[Tensor]) -> list[Tensor]:
    """How far the exact answers move when the inputs move by one float32 ulp.

    A kernel that computes in float32 cannot be asked for more: near a zero of the function (a
    derivative that changes sign, say) the relative error of any float32 computation is unbounded,
    PyTorch's too, and which of the two is nearer at one element is luck. To first order, the answer
    of a stable computation is exact for inputs moved by a few ulp.
    """
    moved = [torch.zeros_like(e) for e in exact]
    wide = dispatch.upcast(args, torch.float64)
    for i, a in enumerate(wide):
        if not (isinstance(a, Tensor) and a.is_floating_point()):
            continue
        shifted = _tuple(op.reference(*wide[:i], a * (1 + _F32_EPS), *wide[i + 1 :]))
        for total, s, e in zip(moved, shifted, exact, strict=True):
            total.add_((s - e).abs().nan_to_num_(0.0, 0.0, 0.0))
    return moved


def _same_magnitude(exact: Tensor, theirs: Tensor) -> Tensor:
    """PyTorch's largest error among the answers of the same sign and binade, for each of them.

    Where a formula cancels (1 + erf far left of zero), PyTorch's error is a wide distribution, of
    which one element shows one draw.
    """
    error = (theirs.double() - exact).abs().nan_to_num(0.0, 0.0, 0.0).reshape(-1)
    finite = torch.where(exact.isfinite(), exact, 0.0).reshape(-1)
    _, exponent = torch.frexp(finite)
    bins = exponent.clamp(-200, 200).long() + 200 + 401 * (finite < 0).long()
    pool = torch.zeros(802, dtype=torch.float64, device=exact.device)
    pool.scatter_reduce_(0, bins, error, "amax")
    return pool[bins].view_as(exact)


def _low_precision(variant: Variant | None) -> bool:
    if variant is None:
        return False
    return variant.accumulator == variant.dtype and variant.dtype in ("f16", "bf16")


def _sum_slack(expected: Expected, index: int) -> float:
    """What a sum held in 16 bits may cost, on top of the rule.

    A sum of terms t_i through additions of unit roundoff u, none of which has passed more than d
    additions, is off by at most d * u * sum|t_i| (Higham, Accuracy and Stability of Numerical
    Algorithms, section 4.2). A row of n terms is spread over at least 32 threads, so d <= n / 32 +
    the depth of the tree that joins them. The reference on |arguments| bounds what sum|t_i|
    contributes to an output. The error is capped at a quarter of that: rounding errors do not all
    point the same way, and a kernel that is further off is of no use.

    Raises:
        _SumOverflowsError: where the sum may leave the range of its dtype.
    """
    op, args = expected.op, expected.args
    tensors = [a for a in args if isinstance(a, Tensor) and a.is_floating_point()]
    dtype = tensors[0].dtype
    info = torch.finfo(dtype)
    first = tensors[0]
    if first.numel() == 0:
        return 0.0
    # Sums of products, of which a square is the largest.
    wide = [t.double() for t in tensors if t.dtype == dtype]
    if max(float(w.square().sum(-1 if w.dim() else None).max()) for w in wide) > info.max / 2:
        raise _SumOverflowsError
    produced = expected.gold[index].numel()
    terms = max(first.shape[-1] if first.dim() else 1, math.ceil(first.numel() / max(produced, 1)))
    relative = min((terms / _MIN_THREADS + _TREE_DEPTH) * info.eps / 2, _MAX_SUM_ERROR)
    absolute = gold(op, [a.abs() if isinstance(a, Tensor) else a for a in args])[index]
    scale = torch.where(absolute.isfinite(), absolute.abs(), 0.0)
    return relative * float(scale.max()) if scale.numel() else 0.0


class _SumOverflowsError(Exception):
    """A 16-bit accumulator may overflow on these inputs, which its documentation says."""


# --- comparison -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """The outcome of judging one answer.

    Attributes:
        ok: whether it is right.
        message: what is wrong, naming the worst element; empty where nothing is.
        error: the largest error against float64 over all outputs.
        torch_error: the same for PyTorch at the same dtype.
        error_ratio: `error` relative to PyTorch's, which counts as half an ulp of the largest
            output at least.
        bad: share of wrong elements.
    """

    ok: bool
    message: str = ""
    error: float = 0.0
    torch_error: float = 0.0
    error_ratio: float = 0.0
    bad: float = 0.0

    def __bool__(self) -> bool:
        return self.ok


def _worse(a: Comparison, b: Comparison) -> Comparison:
    """Both of two parts of an answer taken together."""
    first = a if not a.ok else b
    return Comparison(
        a.ok and b.ok,
        first.message,
        max(a.error, b.error),
        max(a.torch_error, b.torch_error),
        max(a.error_ratio, b.error_ratio),
        max(a.bad, b.bad),
    )


def _layout_fault(out: Tensor, promise: Tensor) -> str:
    if out.dtype != promise.dtype:
        return f"dtype {out.dtype}, promised {promise.dtype}"
    if out.shape != promise.shape:
        return f"shape {tuple(out.shape)}, promised {tuple(promise.shape)}"
    if out.numel() > 1:
        for size, ours, wanted in zip(out.shape, out.stride(), promise.stride(), strict=True):
            if size > 1 and ours != wanted:
                return f"strides {out.stride()}, promised {promise.stride()}"
    return ""


def _coordinate(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    place = []
    for size in reversed(shape):
        place.append(flat % size)
        flat //= size
    return tuple(reversed(place))


def _describe(
    title: str, out: Tensor, exact: Tensor, theirs: Tensor, verdict: _Verdict, bad: int
) -> str:
    excess = (out.double() - exact).abs() - verdict.allowed
    excess = torch.where(verdict.bad, excess.nan_to_num(math.inf, math.inf, math.inf), -math.inf)
    at = _coordinate(int(excess.reshape(-1).argmax()), out.shape)
    total = out.numel()
    ours, wanted = float(out[at]), float(exact[at])
    return (
        f"{title}: {bad} of {total} elements ({100 * bad / total:.3g} %) are wrong; worst at {at}: "
        f"ours {ours:.9g}, torch {float(theirs[at]):.9g}, float64 {wanted:.17g}, "
        f"error {abs(ours - wanted):.3g}, allowed {float(verdict.allowed[at]):.3g}"
    )


def compare_tensors(
    out: Tensor,
    exact: Tensor,
    theirs: Tensor,
    *,
    elementwise: bool,
    title: str = "output",
    slack: float = 0.0,
    floor: Callable[[], Tensor] | None = None,
) -> Comparison:
    """Judges one tensor by the accuracy rule.

    Args:
        out: our answer, of any dtype; integers must be equal to `exact`.
        exact: the float64 answer, same shape.
        theirs: PyTorch's answer at the dtype of `out`, same shape.
        elementwise: whether each element answers for itself, or all relative to the largest.
        title: how the message names the answer.
        slack: added to the tolerance of answers that are not elementwise.
        floor: computes, where the rule alone does not hold, the least error that PyTorch is
            credited with.

    Returns:
        The comparison.
    """
    if out.numel() == 0:
        return Comparison(True)
    if not out.is_floating_point():
        wrong = out != exact.to(out.dtype)
        bad = int(wrong.sum())
        if not bad:
            return Comparison(True)
        at = _coordinate(int(wrong.reshape(-1).byte().argmax()), out.shape)
        share = f"{bad} of {out.numel()} elements ({100 * bad / out.numel():.3g} %)"
        message = (
            f"{title}: {share} are wrong; "
            f"first at {at}: ours {out[at].item()}, expected {exact[at].item()}"
        )
        return Comparison(False, message, bad=bad / out.numel())
    verdict = _judge(out, exact, theirs, elementwise, slack)
    parts = [verdict.bad.sum().double(), verdict.ours, verdict.theirs, verdict.half_ulp]
    wrong_count, ours, torch_error, half_ulp = torch.stack(parts).tolist()
    if wrong_count and floor is not None and elementwise:
        verdict = _judge(out, exact, theirs, elementwise, slack, floor())
        wrong_count = float(verdict.bad.sum())
    bad = int(wrong_count)
    message = _describe(title, out, exact, theirs, verdict, bad) if bad else ""
    ratio = ours / max(torch_error, half_ulp)
    return Comparison(not bad, message, ours, torch_error, ratio, bad / out.numel())


def compare(
    op: Op,
    out: Any,
    args: Sequence[Any],
    *,
    variant: Variant | None = None,
    label: str = "",
    expected: Expected | None = None,
) -> Comparison:
    """Judges the answer of a call: its layout against the fake, its values by the accuracy rule.

    Args:
        op: the operator.
        out: what the implementation returned, a tensor or a tuple of them.
        args: the arguments that it was given.
        variant: the variant that ran, if one did; one that sums in 16 bits is allowed what such a
            sum costs.
        label: names the sample in the message.
        expected: `Expected.of(op, args)`, where several implementations are judged by it.

    Returns:
        The comparison; `message` names operator, variant, dtype, sample and the worst element.
    """
    args = dispatch.normalise(op, _detached(args))
    outs = _tuple(out)
    dtype = dispatch.first_tensor(args).dtype
    title = f"{variant.op_name if variant else op.name} [{DTYPE_NAMES.get(dtype, dtype)}"
    title += f" {label}]" if label else "]"
    promises = promised(op, args)
    if len(outs) != len(promises):
        return Comparison(False, f"{title}: {len(outs)} outputs, promised {len(promises)}")
    for i, (o, promise) in enumerate(zip(outs, promises, strict=True)):
        if fault := _layout_fault(o, promise):
            which = f" output {i}" if len(outs) > 1 else ""
            return Comparison(False, f"{title}:{which} {fault}", bad=1.0)
    result = Comparison(True)
    if expected is None and (pieces := _pieces(op, outs, args)):
        for start, piece_out, piece_args in pieces:
            piece = Expected.of(op, piece_args)
            part = _compare_values(op, piece_out, piece, variant, f"{title} from row {start}")
            result = _worse(result, part)
        return result
    return _compare_values(op, outs, expected or Expected.of(op, args), variant, title)


def _compare_values(
    op: Op, outs: Outputs, expected: Expected, variant: Variant | None, title: str
) -> Comparison:
    result = Comparison(True)
    for i, (o, exact, theirs) in enumerate(zip(outs, expected.gold, expected.torch, strict=True)):
        try:
            slack = _sum_slack(expected, i) if _low_precision(variant) else 0.0
        except _SumOverflowsError:
            continue
        exact, theirs = exact.to(o.device), theirs.to(o.device)

        def floor(i: int = i, exact: Tensor = exact, theirs: Tensor = theirs) -> Tensor:
            with torch.no_grad():
                least = _conditioning(op, expected.args, expected.gold)[i].to(exact.device)
            if theirs.dtype != torch.float32:
                return least
            return torch.maximum(least, _same_magnitude(exact, theirs))

        name = f"{title} output {i}" if len(outs) > 1 else title
        part = compare_tensors(
            o, exact, theirs, elementwise=op.elementwise, title=name, slack=slack, floor=floor
        )
        result = _worse(result, part)
    return result


def _pieces(
    op: Op, outs: Outputs, args: tuple[Any, ...]
) -> Iterator[tuple[int, Outputs, tuple[Any, ...]]] | None:
    """Cuts a large elementwise call along its first dimension; None where it need or can not be."""
    rank, rows = outs[0].dim(), outs[0].shape[0] if outs[0].dim() else 1
    if not op.elementwise or outs[0].numel() <= _PIECE or rows < 2:
        return None
    if any(o.shape[:1] != outs[0].shape[:1] for o in outs):
        return None

    def follows(t: Tensor) -> bool:
        return t.dim() == rank and t.shape[0] == rows

    def constant(t: Tensor) -> bool:
        return t.dim() < rank or t.shape[0] == 1

    tensors = [a for a in args if isinstance(a, Tensor)]
    if not all(follows(t) or constant(t) for t in tensors):
        return None
    step = max(1, rows * _PIECE // outs[0].numel())

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
    """`compare`, raising where the answer is wrong.

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
            raw = torch.empty(0, dtype=torch.uint8, device=a.device).set_(a.untyped_storage())
            before.setdefault(raw.data_ptr(), (i, raw, raw.clone()))
    yield
    for i, raw, copy in before.values():
        if not torch.equal(raw, copy):
            raise AssertionError(f"the call wrote to the memory of argument {i}")


def run_triton(op: Op, args: Sequence[Any]) -> Any:
    """Runs the operator's Triton twin: on a GPU, or for CPU tensors under Triton's interpreter.

    Args:
        op: the operator.
        args: its positional arguments.

    Returns:
        What the twin returns.

    Raises:
        RuntimeError: for CPU tensors where the interpreter is off (`TRITON_INTERPRET=1` must be set
            before Triton is imported), or where Triton is missing.
    """
    args = dispatch.normalise(op, tuple(args))
    if not dispatch.triton_available():
        raise RuntimeError(f"{op.name}: the Triton twin needs Triton, which is not installed")
    device = dispatch.first_tensor(args).device
    if device.type == "cpu" and not dispatch.interpreting():
        raise RuntimeError(f"{op.name}: Triton takes CPU tensors only with TRITON_INTERPRET=1")
    return dispatch.triton_function(op)(*args)
