"""Histograms, upsampling, boxes, steps of a schedule: what the catalogue's samples do not say."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import warpsmith

# --- histograms -----------------------------------------------------------------------------------


def test_bytes_are_counted_unsigned() -> None:
    x = torch.tensor([0, 1, 127, 128, 255, 255], dtype=torch.uint8)
    counts = warpsmith.histogram(x)
    assert counts.nonzero().flatten().tolist() == [0, 1, 127, 128, 255]
    assert int(counts[255]) == 2
    assert int(warpsmith.histogram(x.view(torch.int8)).sum()) == 3  # the others are negative


@pytest.mark.parametrize("bins", [1, 7, 100])
def test_floats_are_counted_as_pytorch_counts(bins: int) -> None:
    x = torch.randn(5000)
    edges = torch.linspace(-2, 2, bins + 1)
    theirs = torch.histogram(x, edges).hist.long()
    assert torch.equal(warpsmith.histogram(x, edges=edges), theirs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_floats_of_other_dtypes_are_counted(dtype: torch.dtype) -> None:
    """f64 as it is: in f32 a value just below an edge would lie on it."""
    x, edges = torch.randn(3000).to(dtype), torch.linspace(-2, 2, 33).to(dtype)
    if dtype == torch.float64:
        x = torch.cat((x, edges, edges.nextafter(edges - 1), edges.nextafter(edges + 1)))
    theirs = torch.histogram(x.double(), edges.double()).hist.long()
    assert torch.equal(warpsmith.histogram(x, edges=edges), theirs)
    assert torch.equal(warpsmith.histogram(x, 8), warpsmith.histogram(x.double(), 8))


EXTREMES = {
    torch.int64: [-(2**63), -(2**32) + 3, -1, 2**32 + 3, 2**63 - 1],
    torch.int32: [-(2**31), -1, 2**31 - 1],
    torch.int16: [-(2**15), -1, 2**15 - 1],
    torch.bool: [],
    torch.uint8: [255],
    torch.uint16: [2**16 - 1],
    torch.uint32: [2**32 - 1],
    torch.uint64: [2**63 + 3, 2**64 - 1],
}


@pytest.mark.parametrize("dtype", EXTREMES, ids=str)
def test_integers_of_any_size_are_counted(dtype: torch.dtype) -> None:
    values = [0, 1, 1] if dtype == torch.bool else [0, 3, 3, 9, 10]
    x = torch.tensor(values + EXTREMES[dtype], dtype=dtype)
    wanted = [values.count(n) for n in range(10)]
    assert warpsmith.histogram(x, 10).tolist() == wanted
    assert warpsmith.which("histogram", x, 10, sm=90).implementation == "cuda"


def test_what_is_not_finite_spreads_no_bins() -> None:
    x, odd = torch.arange(10.0), torch.tensor([math.nan, math.inf, -math.inf])
    assert warpsmith.histogram(torch.cat((x, odd)), 5).tolist() == [2] * 5
    assert warpsmith.histogram(odd, 5).tolist() == [0] * 5
    for wrong in ((-math.inf, 9), (0, math.nan), (3, 3), (1, 2, 3), ("a", "b"), 4):
        with pytest.raises(ValueError, match="histogram: expected a range of two ascending finite"):
            warpsmith.histogram(x, 5, range=wrong)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "dtype", [*(d for d in EXTREMES if d != torch.bool), torch.float16, torch.float64], ids=str
)
def test_histograms_are_captured(dtype: torch.dtype) -> None:
    x = torch.randint(0, 100, (5000,), device="cuda").to(dtype)
    wanted = warpsmith.histogram(x, 64)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        counts = warpsmith.histogram(x, 64)
    graph.replay()
    assert torch.equal(counts, wanted)


# --- upsampling -----------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.4, 1.0, 1.7, 2.0, 3.0, (2.0, 1.5)])
@pytest.mark.parametrize("last", [False, True])
def test_images_are_resized_as_pytorch_resizes(factor: float, last: bool) -> None:
    x = torch.randn(2, 3, 11, 13, requires_grad=True)
    given = x.to(memory_format=torch.channels_last) if last else x
    ours = warpsmith.upsample_nearest2d(given, scale_factor=factor)
    theirs = F.interpolate(given, scale_factor=factor, mode="nearest")
    assert torch.equal(ours, theirs)
    assert ours.stride() == theirs.stride()
    grad = torch.randn_like(ours)
    (mine,) = torch.autograd.grad(ours, x, grad)
    (wanted,) = torch.autograd.grad(theirs, x, grad)
    torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize("factor", [0.3, 0.5, 0.9, 1.02, 1.1, 1.4, 1.5, 1.9, 2.1, 2.5, 3.3])
def test_every_size_is_resized_as_pytorch_resizes(factor: float) -> None:
    """Those that a factor leaves as they are, too, one side or both."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for height, width in [(h, w) for h in range(1, 14) for w in (h, h + 2, 2 * h + 5)]:
        for factors in ((factor, factor), (1.0, factor), (factor, 2.0)):
            out = [int(n * f) for n, f in zip((height, width), factors, strict=True)]
            doubled = [
                2 * n == m and f != 2 for n, m, f in zip((height, width), out, factors, strict=True)
            ]
            if 0 in out or (any(doubled) and device == "cpu"):  # see the docstring
                continue
            x = torch.randn(1, 2, height, width, device=device, requires_grad=True)
            ours = warpsmith.upsample_nearest2d(x, scale_factor=factors)
            theirs = F.interpolate(x, scale_factor=factors, mode="nearest")
            assert torch.equal(ours, theirs), (height, width, factors)
            if device == "cpu":  # on a GPU, PyTorch's gradient is not always that of its result
                grad = torch.randn_like(ours)
                (mine,) = torch.autograd.grad(ours, x, grad)
                torch.testing.assert_close(mine, torch.autograd.grad(theirs, x, grad)[0])


def test_a_size_or_a_factor() -> None:
    x = torch.randn(1, 1, 4, 4)
    for size, factor in ((None, None), ((8, 8), 2.0)):
        with pytest.raises(ValueError, match="either size or scale_factor"):
            warpsmith.upsample_nearest2d(x, size, factor)


# --- boxes ----------------------------------------------------------------------------------------


def _kept(boxes: Tensor, scores: Tensor, threshold: float, classes: list[int]) -> list[int]:
    """By the definition, in Python's numbers."""
    order = sorted(range(len(scores)), key=lambda i: -float(scores[i]))  # which is stable
    kept: list[int] = []
    for i in order:
        x1, y1, x2, y2 = boxes[i].tolist()
        for j in kept:
            a1, b1, a2, b2 = boxes[j].tolist()
            shared = max(min(x2, a2) - max(x1, a1), 0) * max(min(y2, b2) - max(y1, b1), 0)
            union = (x2 - x1) * (y2 - y1) + (a2 - a1) * (b2 - b1) - shared
            if classes[i] == classes[j] and union and shared / union > threshold:
                break
        else:
            kept.append(i)
    return kept


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("count", [1, 3])
def test_boxes_are_kept_by_the_definition(threshold: float, count: int) -> None:
    corners = torch.randint(0, 12, (120, 2)).float()
    boxes = torch.cat((corners, corners + torch.randint(1, 8, (120, 2))), 1)
    scores = torch.randint(0, 10, (120,)).float()  # many of them equal
    classes = torch.arange(120) % count
    wanted = _kept(boxes, scores, threshold, classes.tolist())
    assert warpsmith.nms(boxes, scores, threshold, classes).tolist() == wanted
    keep, found = warpsmith.nms_fixed(boxes, scores, threshold, classes)
    assert int(found) == len(wanted)
    assert keep.tolist() == wanted + [-1] * (120 - len(wanted))


def test_scores_are_as_many_as_boxes() -> None:
    with pytest.raises(RuntimeError, match=r"expected scores to have shape \(3,\)"):
        warpsmith.nms(torch.zeros(3, 4), torch.zeros(2), 0.5)


# --- steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cos_first", [False, True])
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_embeddings_are_sines(cos_first: bool, shift: float) -> None:
    t = torch.tensor([0, 1, 999, 500])
    y = warpsmith.timestep_embedding(t, 33, cos_first=cos_first, frequency_shift=shift)
    for row, step in zip(y.tolist(), t.tolist(), strict=True):
        angles = [step * 10000 ** (-k / (16 - shift)) for k in range(16)]
        sines, cosines = [math.sin(a) for a in angles], [math.cos(a) for a in angles]
        wanted = [*cosines, *sines, 0.0] if cos_first else [*sines, *cosines, 0.0]
        assert row == pytest.approx(wanted, abs=1e-7)


def test_a_step_that_there_is_not_is_nan() -> None:
    y = warpsmith.timestep_embedding(torch.tensor([5, 10, -1]), 8, steps=10)
    assert y.isnan().any(1).tolist() == [False, True, True]


def test_noise_in_the_measure_of_the_schedule() -> None:
    kept = torch.linspace(0.99, 0.01, 100)
    table = warpsmith.noise_table(kept)
    x, noise, t = torch.randn(4, 3, 5), torch.randn(4, 3, 5), torch.tensor([0, 99, 50, 50])
    wanted = kept[t].sqrt()[:, None, None] * x + (1 - kept[t]).sqrt()[:, None, None] * noise
    torch.testing.assert_close(warpsmith.add_noise(x, noise, t, table), wanted)


def test_the_schedule_has_a_gradient() -> None:
    given = [
        torch.randn(*s, dtype=torch.float64).requires_grad_() for s in ((3, 4), (3, 4), (5, 2))
    ]
    t = torch.tensor([0, 4, 4])
    call = lambda x, noise, table: warpsmith.add_noise(x, noise, t, table)  # noqa: E731
    assert torch.autograd.gradcheck(call, given)
