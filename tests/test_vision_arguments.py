"""Arguments of the public functions of vision that their operators do not see."""

import pytest
import torch

import warpsmith


def test_classes_are_integers():
    boxes, scores = torch.rand(4, 4), torch.rand(4)
    with pytest.raises(RuntimeError, match=r"nms: expected idxs to be a tensor of integers"):
        warpsmith.nms(boxes, scores, 0.5, torch.zeros(4))
    with pytest.raises(RuntimeError, match="tensor of integers, got float"):
        warpsmith.nms(boxes, scores, torch.zeros(4), 0.5)  # torchvision's order of batched_nms


BOXES = torch.rand(4, 4)


@pytest.mark.parametrize("name", ["nms", "nms_fixed"])
@pytest.mark.parametrize(
    ("args", "error", "said"),
    [
        (([1.0], BOXES[0], 0.5), TypeError, "expected boxes to be a tensor, got list"),
        ((BOXES, None, 0.5), TypeError, "expected scores to be a tensor, got None"),
        ((BOXES[0, 0], BOXES[0], 0.5), RuntimeError, "expected boxes to have shape (n, 4), got ()"),
        (
            (BOXES, BOXES[0, :3], 0.5),
            RuntimeError,
            "expected scores to have shape (4,), one for each box, got (3,)",
        ),
        (
            (BOXES, BOXES[0], 0.5, torch.zeros(3, dtype=torch.int64)),
            RuntimeError,
            "expected idxs to have shape (4,), one for each box, got (3,)",
        ),
    ],
)
def test_boxes_that_do_not_fit(name, args, error, said):
    with pytest.raises(error) as raised:
        getattr(warpsmith, name)(*args)
    assert str(raised.value) == f"{name}: {said}"


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (
            lambda: warpsmith.histogram(BOXES, "a"),
            TypeError,
            "histogram: expected bins to be a whole number or a tensor of edges, got str",
        ),
        (
            lambda: warpsmith.histogram(BOXES, [0.0, 1.0]),
            TypeError,
            "histogram: expected bins to be a whole number or a tensor of edges, got list",
        ),
        (
            lambda: warpsmith.histogram(BOXES, edges=[0.0, 1.0]),
            TypeError,
            "histogram: expected edges to be a tensor, got list",
        ),
        (
            lambda: warpsmith.histogram(BOXES, torch.ones(1)),
            RuntimeError,
            "histogram: expected at least 2 edges, got shape (1,)",
        ),
        (
            lambda: warpsmith.upsample_nearest2d(BOXES[None, None], 5.0),
            TypeError,
            "upsample_nearest2d: expected size to be one or two whole numbers, got 5.0",
        ),
        (
            lambda: warpsmith.upsample_nearest2d([1.0], scale_factor=2),
            TypeError,
            "upsample_nearest2d: expected x to be a tensor, got list",
        ),
        (
            lambda: warpsmith.upsample_nearest2d(BOXES[0], scale_factor=2),
            RuntimeError,
            "upsample_nearest2d: expected x to have shape (n, c, h, w) with pixels, got (4,)",
        ),
        (
            lambda: warpsmith.timestep_embedding(3, 8),
            TypeError,
            "timestep_embedding: expected t to be a tensor, got int",
        ),
        (
            lambda: warpsmith.timestep_embedding(torch.ones(1).int(), 8, dtype=torch.int32),
            RuntimeError,
            "timestep_embedding: expected dtype to be a floating-point one, got torch.int32",
        ),
        (
            lambda: warpsmith.noise_table([1.0]),
            TypeError,
            "noise_table: expected alphas_cumprod to be a tensor, got list",
        ),
        (
            lambda: warpsmith.conv1d_group_norm(BOXES[None], [1.0], None, None, None, 1),
            TypeError,
            "conv1d_group_norm: expected weight to be a tensor, got list",
        ),
        (
            lambda: warpsmith.conv1d_group_norm(BOXES[None], BOXES[0, 0], None, None, None, 1),
            RuntimeError,
            "conv1d_group_norm: expected weight to have shape (channels, 4, 1 to 7), got ()",
        ),
    ],
)
def test_wrong_calls_are_said_in_the_words_of_the_function(call, error, said):
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value) == said


@pytest.mark.parametrize("factor", [(1, 2, 3), float("nan"), float("inf"), "a", (2, None)])
def test_factors_are_finite_numbers(factor):
    with pytest.raises(ValueError, match="upsample_nearest2d: expected scale_factor to be one or"):
        warpsmith.upsample_nearest2d(BOXES[None, None], scale_factor=factor)


def test_one_size_for_both_sides():
    x = torch.randn(2, 3, 4, 5)
    ours = warpsmith.upsample_nearest2d(x, 8)
    assert torch.equal(ours, torch.nn.functional.interpolate(x, 8))


@pytest.mark.parametrize("options", [{"steps": -1}, {"max_period": 0}])
def test_no_table_of_steps(options):
    with pytest.raises(ValueError, match="timestep_embedding: expected steps of at least 0"):
        warpsmith.timestep_embedding(torch.zeros(1, dtype=torch.int64), 8, **options)


def test_a_schedule_is_flat():
    with pytest.raises(RuntimeError, match=r"noise_table: .* got shape \(4, 2\)"):
        warpsmith.noise_table(torch.ones(4, 2))
