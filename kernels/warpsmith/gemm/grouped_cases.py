"""Calls on which products of groups are tested and measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.spec.spoilt import Spoiler

Call = tuple[Tensor, ...]
Function = Callable[..., Any]


def ends(i: Inputs, *sizes: int) -> Tensor:
    """Where groups of these sizes end."""
    ends_ = torch.tensor(sizes, dtype=torch.int64).cumsum(0)
    return ends_.to(torch.int32).to(i.device)


def shares(total: int, groups: int, skew: float) -> list[int]:
    """`total` rows dealt out by a power law: all alike with a skew of 0, Zipf's with 1."""
    weights = [(group + 1) ** -skew for group in range(groups)]
    borders, so_far = [0], 0.0
    for weight in weights:
        so_far += weight
        borders.append(round(total * so_far / sum(weights)))
    sizes = [end - first for first, end in itertools.pairwise(borders)]
    # not in the order of their sizes, which would be a help
    return [sizes[group * 7 % groups] for group in range(groups)] if groups % 7 else sizes


def by_rows(i: Inputs, sizes: Sequence[int], n: int, k: int, *, columns: bool = True) -> Call:
    """`columns`: w [groups, k, n] is column-major, as weights [groups, n, k] are."""
    groups = len(sizes)
    w = i.randn(groups, n, k, salt=1).mT if columns else i.randn(groups, k, n, salt=1)
    return i.randn(sum(sizes), k), w, ends(i, *sizes)


def by_k(i: Inputs, sizes: Sequence[int], m: int, n: int) -> Call:
    """x column-major and w row-major, as the gradient of the weights has them."""
    k = sum(sizes)
    return i.randn(k, m).t(), i.randn(k, n, salt=1), ends(i, *sizes)


_ROWS: tuple[tuple[tuple[int, ...], int, int], ...] = (
    ((1,), 1, 1),
    ((7, 0, 9), 16, 33),
    ((0, 0, 5, 0), 8, 16),
    ((33, 1, 62), 72, 64),
    ((130, 0, 0, 3), 136, 72),
    ((16,) * 8, 24, 40),
    ((0, 128, 129, 0), 264, 136),
)
_LARGE_ROWS: tuple[tuple[tuple[int, ...], int, int], ...] = (
    ((700, 1, 0, 299), 392, 528),
    ((3, 2, 0, 1) * 40, 264, 1032),
    ((257, 255, 511, 1), 1000, 200),
)
_ALONG_K: tuple[tuple[tuple[int, ...], int, int], ...] = (
    ((1,), 1, 1),
    ((7, 0, 9), 16, 33),
    ((63, 65, 64, 0), 72, 24),
    ((0, 1, 130), 136, 264),
    ((200, 3), 129, 40),
)
_LARGE_ALONG_K: tuple[tuple[tuple[int, ...], int, int], ...] = (
    ((700, 1, 0, 299), 392, 528),
    ((5, 0, 11) * 16, 264, 136),
)


def _label(sizes: Sequence[int], *more: int) -> str:
    total, groups = sum(sizes), len(sizes)
    return f"{total} in {groups}, {'x'.join(map(str, more))}"


def _by_rows(sizes: Sequence[int], n: int, k: int, columns: bool, small: bool = True) -> Sample:
    label = f"{'TN' if columns else 'NN'} {_label(sizes, n, k)}"
    return Sample(label, lambda i: by_rows(i, sizes, n, k, columns=columns), small=small)


def _by_k(sizes: Sequence[int], m: int, n: int, small: bool = True) -> Sample:
    return Sample(f"along k {_label(sizes, m, n)}", lambda i: by_k(i, sizes, m, n), small=small)


def _huge(what: str, make: Callable[[Inputs], Call]) -> Sample:
    label = f"past 2^31 elements of {what}"
    return Sample(label, make, small=False, huge=True, dtypes=("bf16",))


def _shared(i: Inputs) -> Call:
    """All groups have one matrix."""
    x, w, offs = by_rows(i, (5, 12, 3), 24, 32)
    return x, w[:1].expand(3, -1, -1), offs


def _within(i: Inputs) -> Call:
    """Rows and matrices with room between them, ends that are every second value."""
    offs = ends(i, 40, 3, 90)
    wide = torch.stack((offs, offs), 1).reshape(-1)
    return i.randn(133, 96)[:, :64], i.randn(5, 72, 80, salt=1)[::2, :, :64].mT, wide[::2]


def _nonfinite(i: Inputs) -> Call:
    """In rows of one group, which those beside it do not meet."""
    x, w, offs = by_rows(i, (20, 20, 24), 24, 64)
    x[20, 3], x[39, 63], x[25, 0] = math.nan, math.inf, -math.inf
    w[2, 5, 7] = math.nan
    return x, w, offs


def _nonfinite_along_k(i: Inputs) -> Call:
    """In the first and the last value of a group along k."""
    x, w, offs = by_k(i, (37, 20, 43), 24, 32)
    x[3, 37], x[5, 56], w[56, 9] = math.nan, math.inf, -math.inf
    return x, w, offs


def _misaligned(i: Inputs) -> Call:
    return i.misaligned(29, 33), i.misaligned(2, 33, 24, salt=1), ends(i, 9, 20)


def samples() -> tuple[Sample, ...]:
    both = (True, False)
    return (
        *(_by_rows(*shape, columns) for shape in _ROWS for columns in both),
        *(_by_rows(*shape, columns, small=False) for shape in _LARGE_ROWS for columns in both),
        *(_by_k(*shape) for shape in _ALONG_K),
        *(_by_k(*shape, small=False) for shape in _LARGE_ALONG_K),
        _huge("w", lambda i: by_rows(i, (33, 0, 5, 1, 70, 16, 2, 3), 16_392, 16_384)),
        _huge("the products along k", lambda i: by_k(i, (16, 0, 15, 17) * 8, 8200, 8192)),
        Sample("one matrix for all groups", _shared),
        Sample("parts of tensors", _within),
        Sample("misaligned", _misaligned),
        Sample("x column-major", lambda i: _swapped(by_rows(i, (9, 20, 3), 24, 40))),
        Sample("along k, x row-major", lambda i: _swapped(by_k(i, (9, 20, 3), 24, 40))),
        Sample("nan and infinities", _nonfinite),
        Sample("nan and infinities along k", _nonfinite_along_k),
        Sample("600 groups", lambda i: by_rows(i, (1, 0, 2) * 200, 8, 16)),
        Sample("no rows", lambda i: by_rows(i, (0, 0), 8, 16)),
        Sample("no columns", lambda i: by_rows(i, (3, 5), 0, 16)),
        Sample("k of 0", lambda i: by_rows(i, (3, 5), 8, 0)),
        Sample("along k of 0", lambda i: by_k(i, (0, 0), 8, 16)),
        Sample("no groups along k", lambda i: by_k(i, (), 8, 16)),
    )


def _swapped(call: Call) -> Call:
    """x with its lines the other way."""
    x, *rest = call
    return (x.t().contiguous().t() if x.is_contiguous() else x.contiguous(), *rest)


_spoilt = Spoiler(
    "grouped_matmul",
    lambda i: {"x": i.randn(6, 8), "w": i.randn(2, 8, 4), "offs": ends(i, 2, 4)},
)


def _errors() -> tuple[Bad, ...]:
    return (
        _spoilt.integers(),
        _spoilt("1-D x", r"expected x to be 2-D, got shape \(8,\)", x=lambda i: i.randn(8)),
        _spoilt("1-D w", r"expected w to be 2-D or 3-D, got shape \(8,\)", w=lambda i: i.randn(8)),
        _spoilt(
            "shapes",
            r"cannot multiply shapes \(6, 8\) and \(2, 7, 4\)",
            w=lambda i: i.randn(2, 7, 4),
        ),
        _spoilt(
            "dtypes differ",
            r"expected w to have dtype torch\.\w+ like x, got torch\.float64",
            w=lambda i: i.randn(2, 8, 4).double(),
        ),
        _spoilt(
            "offs in int64",
            r"expected offs to have dtype torch\.int32, got torch\.int64",
            offs=lambda i: ends(i, 2, 4).long(),
        ),
        _spoilt(
            "2-D offs",
            r"expected offs to be 1-D, got shape \(1, 2\)",
            offs=lambda i: ends(i, 2, 4).unsqueeze(0),
        ),
        _spoilt(
            "too many offs",
            r"expected offs to have shape \(2,\), one end per matrix of w, got \(3,\)",
            offs=lambda i: ends(i, 2, 2, 2),
        ),
        _spoilt(
            "devices differ",
            r"expected offs to be on cuda:\d+ like x, got cpu",
            cuda_only=True,
            offs=lambda i: ends(i, 2, 4).cpu(),
        ),
    )


ERRORS = _errors()


# --- mathematical facts ---------------------------------------------------------------------------


def whole_numbers(grouped_matmul: Function, inputs: Inputs) -> None:
    """Sums of small integers are exact; groups of every length about that of a tile."""
    generator = torch.Generator().manual_seed(inputs.seed)
    sizes = (1, 31, 32, 33, 0, 63, 64, 65, 127, 128, 129, 0, 255, 2)
    total = sum(sizes)

    def drawn(*shape: int) -> Tensor:
        made = torch.randint(-3, 4, shape, generator=generator)
        return made.to(inputs.device, inputs.dtype)

    x, w, g, offs = drawn(total, 72), drawn(14, 72, 136), drawn(total, 136), ends(inputs, *sizes)
    y, dw = grouped_matmul(x, w, offs), grouped_matmul(x.t(), g, offs)
    first = 0
    for group, size in enumerate(sizes):
        rows = slice(first, first + size)
        exact = (x[rows].double() @ w[group].double()).to(inputs.dtype)
        assert torch.equal(y[rows], exact), f"group {group} of {size} rows"
        exact = (x[rows].double().t() @ g[rows].double()).to(inputs.dtype)
        assert torch.equal(dw[group], exact), f"group {group} of {size} values of k"
        first += size


def rows_of_no_group(grouped_matmul: Function, inputs: Inputs) -> None:
    """Rows past the last end are not read, and those before it do not depend on them."""
    x, w, offs = by_rows(inputs, (40, 0, 75), 72, 64)
    more = torch.cat((x, torch.full_like(x[:50], math.nan)))
    assert torch.equal(grouped_matmul(more, w, offs)[:115], grouped_matmul(x, w, offs))
    x, w, offs = by_k(inputs, (40, 0, 75), 72, 64)
    longer = torch.cat((x.t(), torch.full_like(x.t()[:50], math.nan))).t()
    wider = torch.cat((w, torch.full_like(w[:50], math.nan)))
    assert torch.equal(grouped_matmul(longer, wider, offs), grouped_matmul(x, w, offs))


def _said_of(function: Function, *call: Tensor) -> str:
    """What a call that is refused raises."""
    try:
        function(*call)
    except RuntimeError as error:
        return str(error)
    return ""


def wrong_ends(grouped_matmul: Function, inputs: Inputs) -> None:
    """Ends past the last row, and some that decrease, reach nothing outside of the operands; on a
    CPU, where they can be seen, they are refused.
    """
    x, w, _ = by_rows(inputs, (40, 40, 40), 72, 64)
    offs = torch.tensor((40, 20, 1000), dtype=torch.int32, device=inputs.device)
    if not offs.is_cuda:
        refused = {
            (40, 20, 1000): "expected offs that do not decrease, got 20 behind 40",
            (20, 40, 1000): "expected offs to lie in [0, 120], got 1000",
            (-1, 40, 80): "expected offs to lie in [0, 120], got -1",
        }
        for ends_, message in refused.items():
            assert message in _said_of(grouped_matmul, x, w, torch.tensor(ends_).int())
        assert "in [0, 64], got 65" in _said_of(grouped_matmul, x, w[0], torch.tensor([65]).int())
        return
    y = grouped_matmul(x, w, offs)
    close = {"rtol": 0.1, "atol": 0.1 * y[:20].abs().max().item()}
    torch.testing.assert_close(y[:20], x[:20] @ w[0], **close)
    torch.testing.assert_close(y[40:], x[40:] @ w[2], **close)


def deterministic(grouped_matmul: Function, inputs: Inputs) -> None:
    call = by_rows(inputs, (40, 0, 3, 300), 72, 2048)
    first = grouped_matmul(*call)
    assert all(torch.equal(first, grouped_matmul(*call)) for _ in range(3))


# --- benchmarks -----------------------------------------------------------------------------------

#: Rows of tokens beside copies, experts, and their sizes: both products of an expert.
MODELS = {
    "Mixtral-8x7B": (4096 * 2, 8, (14336, 4096), (4096, 14336)),
    "Qwen3-30B-A3B": (4096 * 8, 128, (768, 2048), (2048, 768)),
    "DeepSeek-V3": (4096 * 8, 256, (2048, 7168), (7168, 2048)),
}
SKEWS = {"even": 0.0, "Zipf": 1.0}


def bench() -> tuple[Sample, ...]:
    def case(model: str, skew: str, n: int, k: int, along_k: bool = False) -> Sample:
        rows, experts, *_ = MODELS[model]
        sizes = shares(rows, experts, SKEWS[skew])

        def make(i: Inputs) -> Call:
            x = i.plain(rows, k)
            if along_k:
                return x.t(), i.plain(rows, n, salt=1), ends(i, *sizes)
            return x, i.plain(experts, n, k, salt=1).mT, ends(i, *sizes)

        which = "dw " if along_k else ""
        return Sample(f"{model} {skew} {which}{rows}x{n}x{k} in {experts}", make, small=False)

    shapes = [(model, skew, *nk) for model in MODELS for skew in SKEWS for nk in MODELS[model][2:]]
    return (
        *(case(model, skew, n, k) for model, skew, n, k in shapes),
        *(case(model, "even", *MODELS[model][2], along_k=True) for model in MODELS),
        case("Qwen3-30B-A3B", "Zipf", 768, 2048, along_k=True),
    )


def grouped_mm(x: Tensor, w: Tensor, offs: Tensor) -> Tensor:
    """PyTorch's own."""
    return torch.nn.functional.grouped_mm(x, w, offs=offs)
