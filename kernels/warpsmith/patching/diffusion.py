"""Blocks of diffusers' UNets and transformers."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor
from torch.nn import Module

from warpsmith.nn import calls
from warpsmith.patching.compiled import left
from warpsmith.patching.mlps import activation_of
from warpsmith.patching.norms import takes_activation
from warpsmith.patching.rules import Left, Rule, reads

# --- residual blocks of convolutions --------------------------------------------------------------


def make_resnet(base: type[Module], option: Any) -> dict[str, Any]:
    """Group norms join the activations behind them."""
    plain: Any = base.forward
    activation: str = option

    def forward(
        self: Any, input_tensor: Tensor, temb: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> Tensor:
        if args or kwargs:
            return plain(self, input_tensor, temb, *args, **kwargs)
        x = self.conv1(self.norm1(input_tensor, activation))
        if self.time_emb_proj is not None:
            assert temb is not None
            temb = temb if self.skip_time_act else self.nonlinearity(temb)
            temb = self.time_emb_proj(temb)[:, :, None, None]
        if temb is not None:
            x = x + temb
        x = self.conv2(self.dropout(self.norm2(x, activation)))
        if self.conv_shortcut is not None:
            rows = input_tensor.contiguous() if self.training else input_tensor
            input_tensor = self.conv_shortcut(rows)
        return (input_tensor + x) / self.output_scale_factor

    return {"forward": forward}


def _resnet(module: Any) -> str:
    if module.upsample is not None or module.downsample is not None:
        raise Left("it resamples between norm and convolution")
    if module.time_embedding_norm != "default":
        raise Left(f"its norm is scaled and shifted by time ({module.time_embedding_norm})")
    if not (takes_activation(module.norm1) and takes_activation(module.norm2)):
        raise Left("its norms are not served here, or have hooks")
    name = activation_of(module.nonlinearity)
    if name not in ("silu", "mish"):
        raise Left(f"no group norm with {type(module.nonlinearity).__name__} here")
    return name


RESNET = Rule(
    "norms",
    "group_norm({})",
    make_resnet,
    reads(
        "ValueError chunk contiguous conv1 conv2 conv_shortcut deprecate downsample dropout get "
        "len nonlinearity norm1 norm2 output_scale_factor shape skip_time_act time_emb_proj "
        "time_embedding_norm torch training upsample"
    ),
    _resnet,
)

# --- feed-forward ---------------------------------------------------------------------------------


def make_gate(base: type[Module], option: Any) -> dict[str, Any]:
    """Of one product, whose second half is the gate."""
    plain: Any = base.forward

    def forward(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if args or kwargs or left("gates", hidden_states):
            return plain(self, hidden_states, *args, **kwargs)
        up, gate = self.proj(hidden_states).chunk(2, dim=-1)
        return calls.gate(gate, up, option)

    return {"forward": forward}


def make_projected_gelu(base: type[Module], option: Any) -> dict[str, Any]:
    plain = cast(Any, base).gelu

    def gelu(self: Any, gate: Tensor) -> Tensor:
        return plain(self, gate) if left("activations", gate) else calls.activate(gate, option)

    return {"gelu": gelu}


def _approximate(module: Any) -> str:
    known = {"none": "gelu", "tanh": "gelu_tanh"}
    if module.approximate not in known:
        raise Left(f"no such gelu here ({module.approximate})")
    return known[module.approximate]


def _silu(module: Any) -> str:
    if activation_of(module.activation) != "silu":
        raise Left(f"no gate with {type(module.activation).__name__} here")
    return "silu"


GEGLU = Rule(
    "gates",
    "{}_and_mul",
    make_gate,
    reads("chunk deprecate gelu get is_torch_npu_available len npu_geglu proj torch_npu"),
    lambda module: "gelu",
)
SWIGLU = Rule(
    "gates", "{}_and_mul", make_gate, reads("activation chunk proj"), _silu, ("activation",)
)
GELU = Rule("activations", "{}", make_projected_gelu, reads("gelu proj"), _approximate)
