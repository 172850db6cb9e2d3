"""The accuracy rule for one tensor.

    err(ours, float64) <= 2 * err(PyTorch at the same dtype, float64) + one ulp

element by element, or relative to the largest of all elements.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

#: Larger results are judged piece by piece, because the rule works in float64.
PIECE = 1 << 26
#: Spacing of float32, the precision in which 16-bit and fp8 kernels compute.
F32_EPS = 2.0**-23
#: How float64 holds a power of two.
_F64_BIAS, _F64_MANTISSA = 1023, 52
#: Directions in which the inputs are moved, each of them both ways, to see how much the result
#: depends on them.
_DRAWS = 4
#: How often every intermediate value is rounded up or down by chance, to see what roundings cost:
#: that two of them cancel in all draws has the chance 2^-16.
_ROUNDINGS = 16
#: How many inputs next to the given ones are asked how far off PyTorch is there.
NEIGHBOURS = 8
#: Fewer results than these do not show the error that a function has.
FEW = 64


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
    # Not torch.ldexp, whose kernel runs on the current GPU, wherever the tensor lies:
    # https://github.com/pytorch/pytorch/issues/189567
    power = ((exponent.long() - 1 + _F64_BIAS) << _F64_MANTISSA).view(torch.float64)
    return power * info.eps


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


def as_tuple(out: Any) -> tuple[Any, ...]:
    return tuple(out) if isinstance(out, tuple | list) else (out,)


# --- the rule -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Extent:
    """Of all results within the range of the dtype."""

    largest: Tensor  # float64, the magnitude
    theirs: Tensor  # float64, PyTorch's error

    def __or__(self, other: _Extent) -> _Extent:
        largest = torch.maximum(self.largest, other.largest)
        return _Extent(largest, torch.maximum(self.theirs, other.theirs))


@dataclass(frozen=True)
class _Verdict:
    bad: Tensor  # bool, where the result is wrong
    allowed: Tensor  # float64, the tolerance
    ours: Tensor  # float64, the largest error of a finite result
    extent: _Extent


def _largest(values: Tensor, where: Tensor) -> Tensor:
    if values.numel() == 0:
        return values.new_zeros(())
    return torch.where(where, values, 0.0).max()


def _extent(exact: Tensor, theirs: Tensor) -> _Extent:
    t, magnitude = theirs.double(), exact.abs()
    inside = (magnitude < _overflow(theirs.dtype)) & t.isfinite()
    return _Extent(_largest(magnitude, inside), _largest((t - exact).abs(), inside))


def _identical(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, so that NaN equals NaN."""
    if a.dtype != b.dtype:
        return False
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.view(width), b.view(width))


def _judge(
    out: Tensor,
    exact: Tensor,
    theirs: Tensor,
    elementwise: bool,
    slack: float = 0.0,
    floor: Tensor | None = None,
    extent: _Extent | None = None,
) -> _Verdict:
    """Applies the rule to one floating-point output, or to a piece of one of the given extent.

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
    error_t = torch.where(exact.isfinite() & (kind_t == 0), (t - exact).abs(), 0.0)
    in_range = (kind_exact == 0) & (kind_t == 0)
    extent = extent or _extent(exact, theirs)
    if elementwise:
        spacing = ulp(torch.where(target.isfinite(), target, 0.0), dtype)
        if dtype in (torch.float32, torch.float64):
            # CUDA documents its float32 functions to 1 or 2 ulp, and CPU libraries to about 1: that
            # PyTorch is exact at one element is luck, and no property of PyTorch's function.
            error_t = torch.maximum(error_t, spacing)
        if floor is not None:
            error_t = torch.maximum(error_t, floor)
        allowed = 2 * error_t + spacing
    else:
        worst_t = extent.theirs if floor is None else torch.maximum(extent.theirs, floor.max())
        if out.numel() < FEW and dtype in (torch.float32, torch.float64):
            # As above: among few results PyTorch's largest error is luck too.
            worst_t = torch.maximum(worst_t, ulp(extent.largest, dtype))
        allowed = (2 * worst_t + ulp(extent.largest, dtype) + slack).expand_as(exact)

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
    return _Verdict(bad, allowed, worst_o, extent)


def _opposite(a: Tensor, generator: torch.Generator, eps: float = F32_EPS) -> tuple[Tensor, Tensor]:
    """Each element moved by one ulp (of float32) in a direction of its own, and the other way."""
    signs = torch.randint(0, 2, a.shape, generator=generator, device=a.device) * 2 - 1
    return a * (1 + signs * eps), a * (1 - signs * eps)


def _raise_to(most: Sequence[Tensor], shifted: Sequence[Tensor], exact: Sequence[Tensor]) -> None:
    """Raises each of `most` to how far `shifted` is from `exact`."""
    for peak, s, e in zip(most, shifted, exact, strict=True):
        peak.copy_(torch.maximum(peak, (s - e).abs().nan_to_num(0.0, 0.0, 0.0)))


def conditioning(
    function: Callable[..., Any],
    args: Sequence[Any],
    exact: Sequence[Tensor],
    eps: float = F32_EPS,
    draws: int = _DRAWS,
) -> list[Tensor]:
    """How far exact results move when the inputs move by one float32 ulp.

    A kernel that computes in float32 cannot be asked for more: near a zero of the function (a
    derivative that changes sign, say) or where a sum cancels, the relative error of any float32
    computation is unbounded, PyTorch's too, and which of the two is nearer at one element is luck.
    To first order, the result of a stable computation is exact for inputs moved by a few ulp. Each
    element moves in a direction of its own, as rounding errors do, and then the other way: of an
    input halfway between two values of a dtype that the function rounds to (TF32) either neighbour
    is as near, and one of the two moves shows each of them.

    Args:
        function: what computes the results, in float64.
        args: its float64 arguments.
        exact: its results.
        eps: by how much the inputs move, relative to their size.
        draws: in how many directions.

    Returns:
        For each result a float64 tensor of its shape: the most that each argument moved it in a
        few draws, summed over the arguments.
    """
    moved = [torch.zeros_like(e) for e in exact]
    for i, a in enumerate(args):
        if not (isinstance(a, Tensor) and a.is_floating_point()):
            continue
        generator = torch.Generator(device=a.device).manual_seed(i)
        most = [torch.zeros_like(e) for e in exact]
        for _ in range(draws):
            for there in _opposite(a, generator, eps):
                shifted = as_tuple(function(*args[:i], there, *args[i + 1 :]))
                _raise_to(most, shifted, exact)
        for total, peak in zip(moved, most, strict=True):
            total.add_(peak)
    return moved


class _RoundsAtRandom(TorchDispatchMode):
    """Float64 arithmetic in which every operand is rounded to one of its two neighbours in `dtype`,
    whichever chance says; what `dtype` holds exactly stays as it is.

    Compound operators are taken apart first, where PyTorch knows how: inside of one nothing would
    be rounded.
    """

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        super().__init__()
        self.dtype = dtype
        self.seed = seed
        self.generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _parts():
            with self:
                return _parts()[func](*args, **kwargs)
        if func.is_view or func._schema.is_mutable:
            return func(*args, **kwargs)
        args, kwargs = pytree.tree_map_only(Tensor, self._rounded, (args, kwargs))
        return func(*args, **kwargs)

    def _rounded(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float64:
            return x
        if x.device not in self.generators:
            self.generators[x.device] = torch.Generator(x.device).manual_seed(self.seed)
        flips = torch.rand(x.shape, generator=self.generators[x.device], device=x.device) < 0.5
        spacing = ulp(x.nan_to_num(0.0, 0.0, 0.0), self.dtype)
        below = torch.floor(x / spacing) * spacing
        return torch.where(flips & (below != x), below + spacing, below)


@functools.cache
def _parts() -> dict[Any, Callable[..., Any]]:
    """Compound operators of references, and their formulas."""
    aten = torch.ops.aten
    compound = (
        aten.native_layer_norm,
        aten.native_group_norm,
        aten._fused_rms_norm,
        aten.addmm,
        aten.baddbmm,
        aten.addcmul,
        aten._softmax,
        aten._log_softmax,
    )
    return dict(get_decompositions(compound))


def rounding(
    function: Callable[..., Any],
    args: Sequence[Any],
    exact: Sequence[Tensor],
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    """How far exact results move when every intermediate value is rounded to `dtype` at random.

    `conditioning` asks what errors of the inputs do, and so assumes that errors of the arithmetic
    look like them. In the gradient of a norm over a row of one element they do not. There

        dx = rstd (s - xhat^2 s),  s = grad weight,  xhat = x rstd,  rstd = (x^2 + eps)^-1/2

    is rstd s eps / (x^2 + eps), whose relative error under moved inputs is a few times theirs. Yet
    a computation in float32 (u = 2^-24) forms the two terms, which agree in all but eps / x^2, and
    has rounded each before it subtracts them: its error is up to rstd |s| (3 u), however small the
    difference. In a layer norm both are the same, dx is 0, and the product s, rounded in one term
    and kept whole by a fused multiply-add in the other, leaves rstd |s| u. Among many elements the
    largest error of PyTorch shows this; of few it is luck whether it does: of the roundings of one
    value half are none. So it is with one value that towers above all others: in a row with one 30,
    its norm passes the roundings of a sum, a root and two products, of u to 2 u each, which in
    PyTorch's computation may happen to cancel.

    So the formula is computed with each operand of each step rounded up or down by chance (Monte
    Carlo arithmetic: Parker, Pierce and Eggert 2000, Computing in Science & Engineering 2(4);
    Vignes 1993, Mathematics and Computers in Simulation 35(3)). What float32 holds is not rounded,
    so a step that is exact in every float32 computation costs nothing here either.

    Args:
        function: what computes the results, in float64.
        args: its float64 arguments.
        exact: its results.
        dtype: what a computation holds its values in.

    Returns:
        For each result a float64 tensor of its shape: the most that it moved.
    """
    most = [torch.zeros_like(e) for e in exact]
    for seed in range(_ROUNDINGS):
        with _RoundsAtRandom(dtype, seed):
            shifted = as_tuple(function(*args))
        _raise_to(most, shifted, exact)
    return most


_MOVABLE = (torch.float32, torch.bfloat16, torch.float16)


def largest_error(
    ways: Sequence[Callable[..., Any]],
    exactly: Callable[..., Any],
    args: Sequence[Any],
    index: int,
    neighbours: int = NEIGHBOURS,
    eps: float = F32_EPS,
) -> float:
    """PyTorch's largest error in one result, over its ways to compute it and over inputs nearby.

    Where few results cancel, their largest error is one draw from a wide distribution. Inputs next
    to the given ones are as hard, and show what else PyTorch draws from it.

    Args:
        ways: PyTorch's computations at the dtype of their arguments.
        exactly: the same in float64, given the same arguments.
        args: of which floating-point tensors move, those of 16 bits by their own last bit.
        index: which result.
        neighbours: so many inputs that differ from `args` in their last bit are asked as well.
        eps: what the last bit of an input is worth, relative to the input.
    """
    largest = 0.0
    for draw in range(-1, neighbours):
        moved = list(args)
        for i, a in enumerate(args):
            if draw >= 0 and isinstance(a, Tensor) and a.dtype in _MOVABLE:
                seed = draw * len(args) + i
                generator = torch.Generator(device=a.device).manual_seed(seed)
                moved[i], _ = _opposite(a, generator, max(eps, torch.finfo(a.dtype).eps))
        exact = as_tuple(exactly(*moved))[index]
        for way in ways:
            error = as_tuple(way(*moved))[index].double() - exact
            largest = max(largest, float(error.abs().nan_to_num(0.0, 0.0, 0.0).max()))
    return largest


def same_magnitude(exact: Tensor, theirs: Tensor) -> Tensor:
    """PyTorch's largest error among the results of the same sign and binade, for each of them.

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


# --- one tensor -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """The outcome of judging one result.

    Attributes:
        ok: whether it is right.
        message: what is wrong, naming the worst element; empty where nothing is.
        error: the largest error against float64 over all outputs.
        torch_error: the same for PyTorch at the same dtype.
        error_ratio: `error` relative to PyTorch's, which counts as half an ulp of the largest
            output at least; infinite where an integer is wrong, or a NaN or an infinity, which no
            error measures.
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


def worse(a: Comparison, b: Comparison) -> Comparison:
    """Both of two parts of a result taken together."""
    first = a if not a.ok else b
    return Comparison(
        a.ok and b.ok,
        first.message,
        max(a.error, b.error),
        max(a.torch_error, b.torch_error),
        max(a.error_ratio, b.error_ratio),
        max(a.bad, b.bad),
    )


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
    extent: _Extent | None = None,
) -> Comparison:
    """Judges one tensor by the accuracy rule.

    Args:
        out: our result, of any dtype; integers must be equal to `exact`.
        exact: the float64 result, same shape.
        theirs: PyTorch's result at the dtype of `out`, same shape.
        elementwise: whether each element answers for itself, or all relative to the largest.
        title: how the message names the result.
        slack: added to the tolerance of results that are not elementwise.
        floor: computes, where the rule alone does not hold, the least error that PyTorch is
            credited with.
        extent: of the whole result, where this is a piece of it.

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
        return Comparison(False, message, error_ratio=math.inf, bad=bad / out.numel())
    if out.numel() > PIECE and max(out.shape) > 1:
        return _compare_in_pieces(out, exact, theirs, elementwise, title, slack, floor)
    if _identical(out, theirs):
        extent = extent or _extent(exact, theirs)
        error = float(extent.theirs)
        rounding = float(ulp(extent.largest, out.dtype)) / 2
        return Comparison(True, "", error, error, error / max(error, rounding))
    verdict = _judge(out, exact, theirs, elementwise, slack, extent=extent)
    half_ulp = ulp(verdict.extent.largest, out.dtype) / 2
    parts = [verdict.bad.sum().double(), verdict.ours, verdict.extent.theirs, half_ulp]
    wrong_count, ours, torch_error, rounding = torch.stack(parts).tolist()
    if wrong_count and floor is not None:
        verdict = _judge(out, exact, theirs, elementwise, slack, floor(), extent)
        wrong_count = float(verdict.bad.sum())
    bad = int(wrong_count)
    message = _describe(title, out, exact, theirs, verdict, bad) if bad else ""
    ratio = ours / max(torch_error, rounding)
    if bad and not out.double()[verdict.bad].isfinite().all():
        ratio = math.inf
    return Comparison(not bad, message, ours, torch_error, ratio, bad / out.numel())


def _compare_in_pieces(
    out: Tensor,
    exact: Tensor,
    theirs: Tensor,
    elementwise: bool,
    title: str,
    slack: float,
    floor: Callable[[], Tensor] | None,
) -> Comparison:
    """The same in pieces along the longest dimension, all held to the largest of them all."""
    dim = max(range(out.dim()), key=lambda d: out.shape[d])
    size = out.shape[dim]
    step = max(1, size * PIECE // out.numel())
    spans = [(start, min(step, size - start)) for start in range(0, size, step)]

    def cut(start: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        piece = [t.narrow(dim, start, count) for t in (out, exact, theirs)]
        return piece[0], piece[1], piece[2]

    extent = None
    if not elementwise:
        for span in spans:
            own = _extent(*cut(*span)[1:])
            extent = own if extent is None else extent | own
    whole = functools.cache(floor) if floor is not None else None
    result = Comparison(True)
    for start, count in spans:

        def least(start: int = start, count: int = count) -> Tensor:
            assert whole is not None
            return whole().narrow(dim, start, count) if elementwise else whole().max()

        ours, wanted, their = cut(start, count)
        part = compare_tensors(
            ours,
            wanted,
            their,
            elementwise=elementwise,
            title=f"{title} from {start} of dimension {dim}",
            slack=slack,
            floor=least if whole is not None else None,
            extent=extent,
        )
        result = worse(result, part)
    return result
