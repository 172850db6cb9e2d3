"""Histograms of integers and of floats."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch, messages
from warpsmith.core.catalogue import PACK, Bad, Cost, Inputs, Op, Property, Rung, Sample
from warpsmith.spec import cost
from warpsmith.spec.bits import says_which
from warpsmith.spec.checks import check_device, shape_text

MOST_BINS, MOST_WARP_BINS, MOST = 1 << 16, 2048, (1 << 31) - 1
DTYPES = ("f32", "i32", "i8")
_NARROW_FLOATS = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
#: What `histogram` makes int8, int32 or float32 of.
_CONVERTED = (
    *(torch.uint8, torch.bool, torch.int16, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
    *_NARROW_FLOATS,
)
#: Values that are worth the sum of partial histograms, for each bin.
WORTH_COPIES = 4


def _check(x: Tensor, bins: int, edges: Tensor | None) -> None:
    op = "histogram"
    if x.is_complex():
        raise RuntimeError(f"{op}: expected x to hold real numbers, got {x.dtype}")
    if not 1 <= bins <= MOST:
        raise RuntimeError(f"{op}: expected bins to be from 1 to {MOST}, got {bins}")
    if x.is_floating_point() != (edges is not None):
        raise RuntimeError(
            f"{op}: expected edges for floating-point values and for no others, got x in {x.dtype}"
        )
    if edges is None:
        return
    check_device(op, "edges", edges, x)
    if edges.dtype != x.dtype:
        raise RuntimeError(
            f"{op}: expected edges to have dtype {x.dtype} like x, got {edges.dtype}"
        )
    if tuple(edges.shape) != (bins + 1,):
        raise RuntimeError(
            f"{op}: expected edges to have shape ({bins + 1},), one more than bins, "
            f"got {tuple(edges.shape)}"
        )


def _reference(x: Tensor, bins: int, edges: Tensor | None, is_unsigned: bool) -> Tensor:
    if edges is None:
        values = x.flatten().long()
        if is_unsigned and x.dtype == torch.int8:
            values = values % 256
    else:
        flat = x.flatten()
        low, high = (
            torch.zeros_like(flat, dtype=torch.int64),
            torch.full_like(flat, bins, dtype=torch.int64),
        )
        for _ in range(bins.bit_length()):
            middle = low + (high - low) // 2
            below, narrow = edges[middle] <= flat, high - low > 1
            low = torch.where(narrow & below, middle, low)
            high = torch.where(narrow & ~below, middle, high)
        values = low
        values = torch.where(flat == edges[-1], bins - 1, values)
        values = torch.where((flat >= edges[0]) & (flat <= edges[-1]), values, bins)
    # not `bincount`, which asks the GPU for the largest value
    kept = torch.where((values >= 0) & (values < bins), values, bins)
    counts = torch.zeros(bins + 1, dtype=torch.int64, device=x.device)
    return counts.scatter_add_(0, kept, torch.ones_like(counts[:1]).expand_as(kept))[:bins].clone()


def _eager(x: Tensor, bins: int, edges: Tensor | None, is_unsigned: bool) -> Tensor:
    """What a user of PyTorch writes, who knows that all values are in range."""
    if edges is None:
        return torch.bincount(x.flatten(), minlength=bins)
    return _reference(x, bins, edges, is_unsigned)


def _few_bins(x: Tensor, bins: int) -> str | None:
    if x.numel() == 0 or bins <= MOST_BINS:
        return None
    return "needs at most 65536 bins"


def _warp_bins(x: Tensor, bins: int) -> str | None:
    if x.numel() == 0 or bins <= MOST_WARP_BINS:
        return None
    return "needs at most 2048 bins"


def _suits_copies(x: Tensor, bins: int) -> str | None:
    return None if x.numel() >= WORTH_COPIES * bins else "there are few values for each bin"


def _wide(name: str, story: str, **more: Any) -> Rung:
    return Rung(name, story, dtypes=DTYPES, width=PACK, **more)


# --- calls ----------------------------------------------------------------------------------------


def _edges(i: Inputs, bins: int) -> Tensor:
    return torch.linspace(-3, 3, bins + 1, device=i.device, dtype=torch.float32).to(i.dtype)


def _values(i: Inputs, n: int, bins: int, beyond: bool = True) -> Tensor:
    """Floats around the edges; integers in range and, if `beyond`, some that are not."""
    if i.dtype.is_floating_point:
        return i.randn(n)
    info = torch.iinfo(i.dtype)
    margin = bins // 4 + 1 if beyond else 0
    least, most = max(info.min, -margin), min(info.max, bins - 1 + margin)
    if torch.device(i.device).type == "meta":
        return torch.empty(n, dtype=i.dtype, device="meta")
    generator = i.generator((n, bins))
    return torch.randint(least, most + 1, (n,), generator=generator, device=i.device, dtype=i.dtype)


def _call(i: Inputs, x: Tensor, bins: int, is_unsigned: bool = False) -> tuple[Any, ...]:
    return x, bins, _edges(i, bins) if i.dtype.is_floating_point else None, is_unsigned


def _sized(n: int, bins: int, small: bool = True, is_unsigned: bool = False) -> Sample:
    label = f"{n} in {bins}" + (", unsigned" if is_unsigned else "")
    return Sample(label, lambda i: _call(i, _values(i, n, bins), bins, is_unsigned), small=small)


def _uneven(i: Inputs) -> tuple[Any, ...]:
    """Edges that are neither evenly spaced nor all different, and values on them."""
    edges = torch.tensor([-9.0, -8.5, -1.0, -1.0, 0.0, 1e-30, 0.5, 0.5, 7.0], device=i.device)
    x = torch.cat((i.randn(1000).float(), edges, edges + 1e-6, -edges)).to(i.dtype)
    return x, 8, edges.to(i.dtype), False


def _out_of_order(i: Inputs) -> tuple[Any, ...]:
    """Which means what a search finds."""
    edges = torch.tensor([-3.0, 2.0, -1.0, float("nan"), 0.5, 0.0, 1.0, float("inf"), 3.0])
    return i.randn(900), 8, edges.to(device=i.device, dtype=i.dtype), False


def _special(i: Inputs) -> tuple[Any, ...]:
    x = torch.tensor(
        [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 3.0, -3.0, 2.9999999],
        device=i.device,
    )
    return x.to(i.dtype).repeat(40), 16, _edges(i, 16), False


def _endless(i: Inputs) -> tuple[Any, ...]:
    edges = torch.tensor([-float("inf"), -1.0, 0.0, 1.0, float("inf")], device=i.device)
    return i.randn(500), 4, edges.to(i.dtype), False


def _same(i: Inputs, n: int, bins: int) -> tuple[Any, ...]:
    """All values in one bin."""
    return _call(i, torch.ones(n, device=i.device).to(i.dtype), bins)


SAMPLES = (
    *(_sized(n, bins) for n, bins in ((1, 1), (7, 3), (1000, 16), (3001, 256), (5000, 100))),
    *(_sized(n, bins) for n, bins in ((4099, 2048), (9000, 5000), (3000, 1), (2000, 33000))),
    _sized(3001, 256, is_unsigned=True),
    Sample("uneven edges", _uneven, dtypes=("f32",)),
    Sample("edges out of order", _out_of_order, dtypes=("f32",)),
    Sample("special values", _special, dtypes=("f32",)),
    Sample("edges at infinity", _endless, dtypes=("f32",)),
    Sample("all in one bin", lambda i: _same(i, 4000, 256)),
    # more than the 255 that a thread's counter of a byte counts
    Sample("2^26 in one bin", lambda i: _same(i, 1 << 26, 256), small=False, dtypes=("i8",)),
    Sample("all in one bin of many", lambda i: _same(i, 19000, 65536), small=False),
    Sample("misaligned", lambda i: _call(i, _values(i, 1003, 64)[3:], 64)),
    Sample("strided", lambda i: _call(i, _values(i, 2000, 64).view(50, 40)[:, ::3], 64)),
    Sample("transposed", lambda i: _call(i, _values(i, 2000, 64).view(50, 40).t(), 64)),
    Sample("0-d", lambda i: _call(i, _values(i, 1, 8)[0], 8)),
    Sample("nothing", lambda i: _call(i, _values(i, 0, 8), 8)),
    Sample("1000003 in 256", lambda i: _call(i, _values(i, 1000003, 256), 256), small=False),
    Sample("1000003 in 65536", lambda i: _call(i, _values(i, 1000003, 65536), 65536), small=False),
    Sample("1000003 in 70000", lambda i: _call(i, _values(i, 1000003, 70000), 70000), small=False),
    Sample(
        "past 2^31 values",
        lambda i: _call(i, _values(i, (1 << 31) + 5, 64), 64),
        small=False,
        huge=True,
        dtypes=("i8",),
    ),
)


def _bad(label: str, message: str, *args: Any, dtype: torch.dtype = torch.float32) -> Bad:
    def make(i: Inputs) -> tuple[Any, ...]:
        given = (Inputs(dtype, i.device).plain(8), *args)
        return tuple(a.to(i.device) if isinstance(a, Tensor) else a for a in given)

    return Bad(label, make, f"histogram: {message}")


ERRORS = (
    Bad(
        "complex numbers",
        lambda i: (torch.ones(4, dtype=torch.complex64, device=i.device), 4, None),
        r"histogram: expected x to hold real numbers, got torch\.complex64",
    ),
    _bad("no bins", "expected bins to be from 1 to 2147483647, got 0", 0, None, dtype=torch.int32),
    _bad("floats without edges", "expected edges for floating-point values and for no", 4, None),
    _bad(
        "integers with edges",
        r"expected edges for floating-point values and for no others, got x in torch\.int32",
        4,
        torch.zeros(5),
        dtype=torch.int32,
    ),
    _bad(
        "too few edges",
        r"expected edges to have shape \(5,\), one more than bins, got \(4,\)",
        4,
        torch.zeros(4),
    ),
    _bad(
        "edges of another dtype",
        r"expected edges to have dtype torch\.float32 like x, got torch\.float64",
        4,
        torch.zeros(5, dtype=torch.float64),
    ),
    Bad(
        "edges on the CPU",
        lambda i: (torch.ones(4, device=i.device), 4, torch.zeros(5)),
        r"histogram: expected edges to be on cuda:\d+ like x, got cpu",
        cuda_only=True,
    ),
    Bad(
        "too many bins for shared memory",
        lambda i: (torch.ones(4, device=i.device).int(), 70000, None),
        r"histogram.*: .*needs at most 65536 bins",
        variant="i32x4_replicated",
    ),
)


def _counts_all(histogram: Any, inputs: Inputs) -> None:
    """Values in range are all counted."""
    x = _values(inputs, 5000, 64, beyond=False)
    edges = None
    if inputs.dtype.is_floating_point:
        edges = torch.linspace(-31, 31, 65, device=inputs.device)
    assert int(histogram(x, 64, edges).sum()) == x.numel()


_MANY = 1 << 28

BENCH = (
    Sample(
        "256 Mi in 256",
        lambda i: _call(i, _values(i, _MANY, 256, beyond=False), 256),
        small=False,
        ladder=True,
    ),
    Sample("256 Mi in one of 256", lambda i: _same(i, _MANY, 256), small=False),
    Sample(
        "256 Mi in 4096",
        lambda i: _call(i, _values(i, _MANY, 4096, beyond=False), 4096),
        small=False,
        dtypes=("i32", "f32"),
    ),
    Sample(
        "256 Mi in 65536",
        lambda i: _call(i, _values(i, _MANY, 65536, beyond=False), 65536),
        small=False,
        dtypes=("i32",),
    ),
)


op = catalogue.add(
    Op(
        "histogram(Tensor x, int bins, Tensor? edges=None, bool is_unsigned=False) -> Tensor",
        family="vision",
        reference=_reference,
        eager=_eager,
        elementwise=True,
        ladder=(
            Rung("naive", "a value to a thread, global memory", dtypes=DTYPES),
            _wide("x4", "128-bit loads"),
            _wide(
                "warp", "a copy for each warp in shared memory", technique="warp", when=_warp_bins
            ),
            _wide(
                "replicated",
                "copies of each bin dealt out to lanes, a byte to each thread for values of 8 bits",
                technique="replicated",
                when=_few_bins,
                suits=_suits_copies,
            ),
        ),
        triton="histogram_triton:histogram",
        fake=lambda x, bins: x.new_empty((bins,), dtype=torch.int64),
        check=_check,
        samples=SAMPLES,
        errors=ERRORS,
        properties=(Property("all are counted", _counts_all),),
        cost=Cost(bytes=lambda x, bins, edges: cost.size(x, edges) + 8 * bins),
        bench=BENCH,
        bench_dtypes=DTYPES,
    )
)
dispatch.register(op)
_histogram = dispatch.public(op)


def _range_of(range: Any) -> tuple[float, float]:
    try:
        low, high = map(float, range)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (low < high and math.isfinite(low) and math.isfinite(high)):
        message = f"histogram: expected a range of two ascending finite numbers, got {range}"
        raise ValueError(message)
    return low, high


def _evenly_spaced(x: Tensor, bins: int, range: Any) -> Tensor:
    """Edges from the least to the largest finite value, or of a range, of which the host need not
    know.
    """
    steps = torch.arange(max(bins, 0) + 1, dtype=torch.float64, device=x.device) / max(bins, 1)
    if range is not None:
        low, high = _range_of(range)
        return (low + (high - low) * steps).to(x.dtype)
    if x.numel() == 0:
        return steps.to(x.dtype)
    least, most = (
        getattr(x.nan_to_num(bound, bound, bound), of)().double()
        for bound, of in ((math.inf, "amin"), (-math.inf, "amax"))
    )
    # where none is finite, as where there is none
    least, most = (torch.where(least > most, d, v) for v, d in ((least, 0.0), (most, 1.0)))
    # of a single value, as PyTorch has it
    least, most = (torch.where(least == most, v + d, v) for v, d in ((least, -0.5), (most, 0.5)))
    edges = (least + (most - least) * steps).to(x.dtype)
    edges[-1:] = most.to(x.dtype)  # which no rounding is to leave outside
    return edges


def _as_counted(x: Tensor, bins: int, edges: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The same values, as far as a bin has them, in a dtype that kernels count."""
    if edges is not None:
        alike = x.dtype in _NARROW_FLOATS and edges.dtype == x.dtype
        return (x.float(), edges.float()) if alike else (x, edges)
    if x.dtype in (torch.bool, torch.int16, torch.uint16):
        return x.int(), None
    if x.dtype in (torch.int64, torch.uint32, torch.uint64):
        return x.long().clamp(-1, bins).int(), None
    return x, None


def histogram(
    x: Tensor,
    bins: int | Tensor | None = None,
    edges: Tensor | None = None,
    is_unsigned: bool = False,
    *,
    range: tuple[float, float] | None = None,
    variant: str | None = None,
) -> Tensor:
    """Counts how many values fall into each bin.

    Of integers, bin b counts the values b. Of floats, it counts those from ``edges[b]`` up to, and
    without, ``edges[b + 1]``; the last bin has its upper edge, too. What falls into no bin, such as
    negative integers and NaN, is not counted, and nothing is asked of the GPU: there is no
    synchronisation, and the call can be captured in a graph.

    Args:
        x: any shape and strides; int32, int8, uint8 or float32. Other integers are counted as
            int32, and narrower floats as float32, at the cost of a copy; float64 has no kernel.
        bins: how many, by default one less than the edges, or 256; up to 65536 are counted in
            shared memory. Or the edges, as `torch.histogram` takes them.
        edges: [bins + 1], of the dtype of `x`, for floats and only for these. In ascending order
            (of others, a bin is what a binary search finds); evenly spaced ones are the fastest.
        is_unsigned: whether int8 stands for 0 to 255, as uint8 does without saying so.
        range: of evenly spaced bins of floats, where there are no edges: the lowest and the highest
            edge; by default the least and the largest of the finite values.
        variant: one rung by name instead of the best one, "i32x4_replicated".

    Returns:
        An int64 tensor of shape [bins].

    Raises:
        RuntimeError: edges are not wanted or of another shape, dtype or device; `x` is complex; the
            variant cannot take the call.
        ValueError: the variant does not exist; a range comes beside edges or integers, is empty or
            not finite.
        TypeError: bins are no number, edges no tensor.

    Reference:
        `torch.bincount`, `torch.histogram`; Gómez-Luna et al. 2013, "An optimized approach to
        histogram computation on GPU", https://doi.org/10.1007/s00138-012-0443-3
    """
    messages.expect_tensors("histogram", x=x)
    if isinstance(bins, Tensor) and edges is None:
        bins, edges = None, bins
    if edges is not None:
        messages.expect_tensors("histogram", edges=edges)
    if bins is None:
        if edges is not None and edges.numel() < 2:
            raise RuntimeError(
                f"histogram: expected at least 2 edges, got shape {shape_text(edges)}"
            )
        bins = 256 if edges is None else edges.numel() - 1
    if not hasattr(bins, "__index__") or isinstance(bins, Tensor):
        found = type(bins).__name__
        wanted = "a whole number" if edges is not None else "a whole number or a tensor of edges"
        raise TypeError(f"histogram: expected bins to be {wanted}, got {found}")
    if range is not None and (edges is not None or not x.is_floating_point()):
        beside = "integers" if edges is None else "edges"
        raise ValueError(f"histogram: expected no range beside {beside}, got {range}")
    if edges is None and x.is_floating_point():
        x = x.float() if x.dtype in _NARROW_FLOATS else x
        edges = _evenly_spaced(x, bins, range)
    if x.dtype == torch.uint8:
        x, is_unsigned = x.view(torch.int8), True
    x, edges = _as_counted(x, bins, edges)
    return _histogram(variant, x, bins, edges, is_unsigned)


says_which(histogram, _CONVERTED)
