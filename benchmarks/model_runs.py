"""Models from their configurations, of random weights and few layers, and what is run of them; for
`models.py`.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from warpsmith.patching.rules import CACHE

#: Of each model that is made of layers alone.
LAYERS = 2


@dataclass(frozen=True)
class Phase:
    """What is run: examples, tokens of each, and tokens that a cache holds before."""

    name: str
    batch: int
    tokens: int = 0
    cached: int = 0
    #: Replayed as a graph of CUDA, in which the host takes no time.
    graph: bool = False

    def __str__(self) -> str:
        size = f"{self.batch}x{self.tokens}" if self.tokens else str(self.batch)
        after = f" after {self.cached}" if self.cached else ""
        return f"{self.name} {size}{after}{' as a graph' if self.graph else ''}"


@dataclass(frozen=True)
class Model:
    """A configuration as its publisher has it, less layers and words.

    Args:
        name: the publisher's.
        kind: of transformers, whose classes begin with it, or the class of diffusers.
        sizes: of the configuration.
        phases: what is run.
        made: the end of the class's name; "LMHeadModel" has a head, and is trained with its loss.
    """

    name: str
    kind: str
    sizes: dict[str, Any]
    phases: tuple[Phase, ...]
    made: str = "Model"

    @property
    def home(self) -> str:
        return "diffusers" if self.kind.startswith("UNet") else "transformers"

    def make(self, **changes: Any) -> Any:
        library = importlib.import_module(self.home)
        sizes = self.sizes | changes
        if self.home == "diffusers":
            return getattr(library, self.kind)(**sizes)
        config = getattr(library, f"{self.kind}Config")(**sizes)
        return getattr(library, f"{self.kind}{self.made}")(config)


_DECODER = {"num_hidden_layers": LAYERS, "vocab_size": 128, "pad_token_id": None}
_LANGUAGE = (
    Phase("prefill", 4, 2048),
    Phase("prefill", 1, 8192),
    Phase("training", 4, 2048),
    Phase("training", 1, 8192),
    Phase("decode", 1, 1, cached=8192),
    Phase("decode", 1, 1, cached=8192, graph=True),
    Phase("decode", 32, 1, cached=4096),
    Phase("decode", 32, 1, cached=4096, graph=True),
)
MODELS = (
    Model(
        "Llama-3-8B",
        "Llama",
        {
            **_DECODER,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-5,
        },
        _LANGUAGE,
    ),
    Model(
        "Qwen3-8B",
        "Qwen3",
        {
            **_DECODER,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-6,
        },
        _LANGUAGE,
    ),
    Model(
        "GPT-2",
        "GPT2",
        {"n_layer": LAYERS, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        (Phase("prefill", 16, 1024), Phase("training", 16, 1024)),
        "LMHeadModel",
    ),
    Model(
        "BERT-base",
        "Bert",
        {
            "num_hidden_layers": LAYERS,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        (Phase("forward", 64, 512), Phase("training", 64, 512)),
    ),
    Model(
        "ViT-B",
        "ViT",
        {"num_hidden_layers": LAYERS},
        (Phase("forward", 64), Phase("training", 64)),
    ),
    Model(
        "UNet",
        "UNet2DConditionModel",
        {
            "sample_size": 64,
            "block_out_channels": (320, 640),
            "layers_per_block": 1,
            "down_block_types": ("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
            "cross_attention_dim": 768,
            "attention_head_dim": 8,
        },
        (Phase("forward", 4), Phase("training", 4)),
    ),
)


@dataclass
class Runner:
    """A model, a phase of it, and the arguments that it is called with."""

    model: Any
    phase: Phase
    #: What is differentiated by, and by the name of the argument that it is.
    x: Tensor
    argument: str
    more: dict[str, Any] = field(default_factory=dict)
    grad: Tensor | None = None
    cached: tuple[tuple[Tensor, Tensor], ...] = ()
    #: What the model calls its cache.
    cache: str = ""

    @staticmethod
    def make(model: Model, phase: Phase, dtype: torch.dtype, device: str, **changes: Any) -> Runner:
        torch.manual_seed(0)
        with torch.device(device):
            made = model.make(**changes).eval()
        made.to(dtype)
        generator = torch.Generator(device).manual_seed(1)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device=device).to(dtype)

        more: dict[str, Any] = {}
        cached: tuple[tuple[Tensor, Tensor], ...] = ()
        config, batch = made.config, phase.batch
        if model.home == "diffusers":
            argument, size = "sample", config["sample_size"]
            x = normal(batch, config["in_channels"], size, size)
            more["timestep"] = torch.arange(batch, device=device)
            more["encoder_hidden_states"] = normal(batch, 77, config["cross_attention_dim"])
        elif model.kind == "ViT":
            argument, size = "pixel_values", config.image_size
            x = normal(batch, config.num_channels, size, size)
        else:
            argument = "inputs_embeds"
            x = normal(batch, phase.tokens, config.hidden_size)
            decodes = model.kind != "Bert"
            if decodes:
                more["use_cache"] = bool(phase.cached)
            if phase.cached:
                dim = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
                shape = (batch, config.num_key_value_heads, phase.cached, dim)
                layers = range(config.num_hidden_layers)
                cached = tuple((normal(*shape), normal(*shape)) for _ in layers)
            if model.made == "LMHeadModel" and phase.name == "training":
                words = (0, config.vocab_size, (batch, phase.tokens))
                more["labels"] = torch.randint(*words, generator=generator, device=device)
        names = inspect.signature(made.forward).parameters
        name = next((name for name in CACHE if name in names), "")
        runner = Runner(made, phase, x, argument, more, None, cached, name)
        if phase.name == "training":
            x.requires_grad_()
            with torch.no_grad():
                runner.grad = normal(*runner._result(made).shape)
        return runner

    def to(self, dtype: torch.dtype) -> None:
        """The same numbers in another dtype."""
        self.model.to(dtype)

        def cast(x: Any) -> Any:
            return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x

        self.x = cast(self.x.detach()).requires_grad_(self.x.requires_grad)
        self.more = {name: cast(x) for name, x in self.more.items()}
        self.cached = tuple((cast(k), cast(v)) for k, v in self.cached)
        self.grad = cast(self.grad)

    def beside(self, model: Any) -> Runner:
        """The same arguments for another model."""
        made = copy.copy(self)
        made.model = model
        return made

    def _cache(self) -> dict[str, Any]:
        """A new cache, which a call may append to: that replaces its tensors."""
        if not self.cached:
            return {}
        import transformers

        cache = transformers.DynamicCache()
        for layer, (k, v) in enumerate(self.cached):
            cache.update(k, v, layer)
        return {self.cache: cache}

    def _result(self, model: Any) -> Tensor:
        out = model(**{self.argument: self.x}, **self.more, **self._cache())
        for name in ("loss", "sample", "logits", "last_hidden_state"):
            found = out.get(name)
            if found is not None:
                return found
        raise AssertionError(f"no result among {list(out)}")

    def run(self, call: Any = None) -> Tensor:
        """The result, or in training the gradient of the argument, with those of all parameters.

        Args:
            call: what is called instead of the model, a compiled form of it.
        """
        training = self.phase.name == "training"
        with torch.set_grad_enabled(training):
            y = self._result(self.model if call is None else call)
            if not training:
                return y
            wanted = [self.x, *(p for p in self.model.parameters() if p.requires_grad)]
            return torch.autograd.grad(y, wanted, self.grad, allow_unused=True)[0]


@contextmanager
def exactly() -> Iterator[None]:
    """Products and convolutions of f32 in f32."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def relative_error(found: Tensor, exact: Tensor) -> float:
    return float((found.float() - exact).norm() / exact.norm())
