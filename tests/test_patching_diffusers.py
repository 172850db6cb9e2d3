"""`warpsmith.patch` on models of diffusers: the same answers and gradients as before, and back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import warpsmith
from warpsmith.patching import swap

diffusers = pytest.importorskip("diffusers")


def unet() -> tuple[Any, dict[str, Any]]:
    model = diffusers.UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=8,
        norm_num_groups=8,
    )
    return model, {
        "sample": torch.randn(2, 4, 8, 8),
        "timestep": torch.tensor([3, 7]),
        "encoder_hidden_states": torch.randn(2, 5, 16),
    }


def dit() -> tuple[Any, dict[str, Any]]:
    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        num_layers=2,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=10,
    )
    return model, {
        "hidden_states": torch.randn(2, 4, 8, 8),
        "timestep": torch.tensor([3, 7]),
        "class_labels": torch.tensor([1, 2]),
    }


SERVED = {
    "unet": {"group_norm(silu)": 8, "group_norm": 21, "layer_norm": 12, "gelu_and_mul": 4},
    "dit": {"layer_norm": 5, "gelu_tanh": 2},
}
MODELS = {"unet": unet, "dit": dit}


def answers(model: Any, inputs: dict[str, Any]) -> list[Tensor]:
    model.zero_grad()
    out = model(**inputs).sample
    out.square().mean().backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("name", MODELS)
def test_answers_and_gradients_agree(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model.eval()
    expected, keys = answers(model, inputs), list(model.state_dict())
    report = warpsmith.patch(model)
    assert report.functions() == SERVED[name], report
    assert list(model.state_dict()) == keys
    for found, e in zip(answers(model, inputs), expected, strict=True):
        torch.testing.assert_close(found, e, rtol=1e-4, atol=1e-5)
    assert not warpsmith.unpatch(model)
    assert not any(swap.is_swapped(module) for module in model.modules())
    assert all(map(torch.equal, answers(model, inputs), expected))


def test_blocks_that_are_not_known_are_left() -> None:
    block = diffusers.models.resnet.ResnetBlock2D
    options = {"in_channels": 16, "temb_channels": 8, "groups": 4}
    for more, why in (
        ({"up": True}, "resamples"),
        ({"time_embedding_norm": "scale_shift"}, "scaled and shifted"),
        ({"non_linearity": "relu"}, "no group norm with ReLU"),
    ):
        torch.manual_seed(0)
        model = block(**options, **more)
        x, temb = torch.randn(2, 16, 4, 4), torch.randn(2, 8)
        expected = model(x, temb)
        report = warpsmith.patch(model)
        assert [kept.why for kept in report.left if why in kept.why], report
        torch.testing.assert_close(model(x, temb), expected, rtol=1e-4, atol=1e-5)
