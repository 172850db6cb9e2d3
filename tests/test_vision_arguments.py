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
