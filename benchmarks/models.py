"""Layers of transformers' Llama and Qwen3, from their configurations, with nothing but attention
exchanged: `python benchmarks/models.py [--out <folder>]`.

Two layers of random weights at the model's own sizes, bf16, in three phases: `prefill`, the
forward pass of a prompt; `training`, forward and backward; `decode`, a token for each of some
sequences that have a cache. `auto` is warpsmith (`warpsmith.transformers`); `flash` is PyTorch's
FLASH backend behind transformers' "sdpa", `cudnn` its cuDNN backend, `sdpa` what PyTorch chooses.
Writes `models.json`. An implementation whose answer is further from float32 than that of `flash`
by a factor of two gets no number. Needs transformers.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

if find_spec("warpsmith") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels"))

import warpsmith.transformers
from warpsmith.core import json_files
from warpsmith.measure import bench, limits, timing
from warpsmith.measure.record import record_path
from warpsmith.records import sources

NAME = "models"
LAYERS = 2
#: Of the last hidden state, or of the gradient of the input, over that of `flash`.
MOST_ERROR_RATIO = 2.0


@dataclass(frozen=True)
class Model:
    """A configuration as its publisher has it, less layers and words."""

    name: str
    kind: str
    sizes: dict[str, Any]

    def config(self) -> Any:
        import transformers

        common = {"num_hidden_layers": LAYERS, "vocab_size": 128, "pad_token_id": None}
        return getattr(transformers, f"{self.kind}Config")(**common, **self.sizes)


MODELS = (
    Model(
        "Llama-3-8B",
        "Llama",
        {
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-5,
        },
    ),
    Model(
        "Qwen3-8B",
        "Qwen3",
        {
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-6,
        },
    ),
)


@dataclass(frozen=True)
class Phase:
    """What is run: sequences, tokens of each, and tokens that a cache holds before."""

    name: str
    batch: int
    tokens: int
    cached: int = 0

    def __str__(self) -> str:
        after = f" after {self.cached}" if self.cached else ""
        return f"{self.name} {self.batch}x{self.tokens}{after}"


PHASES = (
    Phase("prefill", 4, 2048),
    Phase("prefill", 1, 8192),
    Phase("training", 4, 2048),
    Phase("training", 1, 8192),
    Phase("decode", 1, 1, cached=8192),
    Phase("decode", 32, 1, cached=4096),
)
#: What exchanges attention: the implementation that transformers is asked for, and the backend that
#: PyTorch is held to.
IMPLEMENTATIONS: dict[str, tuple[str, SDPBackend | None]] = {
    "auto": (warpsmith.transformers.NAME, None),
    "flash": ("sdpa", SDPBackend.FLASH_ATTENTION),
    "cudnn": ("sdpa", SDPBackend.CUDNN_ATTENTION),
    "sdpa": ("sdpa", None),
}


class Runner:
    """A model, and a phase of it as a function of what attends."""

    def __init__(self, model: Model, phase: Phase, dtype: torch.dtype, device: str) -> None:
        import transformers

        warpsmith.transformers.register()
        self.phase = phase
        torch.manual_seed(0)
        config = model.config()
        with torch.device(device):
            self.model = transformers.AutoModel.from_config(config, torch_dtype=dtype).eval()
        self.model.to(dtype)
        generator = torch.Generator(device).manual_seed(1)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device=device).to(dtype)

        self.x = normal(phase.batch, phase.tokens, config.hidden_size)
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (phase.batch, config.num_key_value_heads, phase.cached, dim)
        self.cached = [(normal(*shape), normal(*shape)) for _ in range(LAYERS)]
        self.place = torch.arange(phase.cached, phase.cached + phase.tokens, device=device)[None]
        if phase.name == "training":
            self.x.requires_grad_()
            self.grad = normal(*self.x.shape)

    def to(self, dtype: torch.dtype) -> None:
        """The same numbers in another dtype."""
        self.model.to(dtype)
        self.x = self.x.detach().to(dtype).requires_grad_(self.x.requires_grad)
        self.cached = [(k.to(dtype), v.to(dtype)) for k, v in self.cached]
        if self.phase.name == "training":
            self.grad = self.grad.to(dtype)

    def _cache(self) -> Any:
        """A new cache, which a call may append to: that replaces its tensors."""
        if not self.phase.cached:
            return None
        import transformers

        cache = transformers.DynamicCache()
        for layer, (k, v) in enumerate(self.cached):
            cache.update(k, v, layer)
        return cache

    def run(self, implementation: str) -> Tensor:
        attention, backend = IMPLEMENTATIONS.get(implementation, (implementation, None))
        self.model.config._attn_implementation = attention
        held = contextlib.nullcontext() if backend is None else sdpa_kernel(backend)
        training = self.phase.name == "training"
        with held, torch.set_grad_enabled(training):
            y = self.model(
                inputs_embeds=self.x,
                position_ids=self.place,
                past_key_values=self._cache(),
                use_cache=bool(self.phase.cached),
            ).last_hidden_state
            if not training:
                return y
            wanted = [self.x, *self.model.parameters()]
            wanted = [w for w in wanted if w.requires_grad and w.numel()]
            return torch.autograd.grad(y, wanted, self.grad, allow_unused=True)[0]


def relative_error(found: Tensor, exact: Tensor) -> float:
    return float((found.float() - exact).norm() / exact.norm())


def measure(model: Model, phase: Phase, seconds: float, known: dict[str, Any]) -> list[bench.Row]:
    runner = Runner(model, phase, torch.bfloat16, "cuda")
    runner.to(torch.float32)
    # the scores of float32, too, are those of a backend that keeps none
    exact = runner.run("sdpa").detach()
    runner.to(torch.bfloat16)
    allowed = None
    rows: dict[str, bench.Row] = {}
    calls: dict[str, Callable[[int], Any]] = {}
    for name in ("flash", *(n for n in IMPLEMENTATIONS if n != "flash")):
        row = rows[name] = {"case": f"bf16 {model.name} {phase}", "impl": name}
        try:
            error = relative_error(runner.run(name).detach(), exact)
        except Exception as problem:  # a backend that does not take it
            row["error"] = bench.first_line(problem)
            continue
        allowed = MOST_ERROR_RATIO * error if allowed is None else allowed
        if not error <= allowed:  # NaN is not
            row["error"] = f"relative error {error:.3g}, allowed {allowed:.3g}"
            continue
        calls[name] = lambda i, n=name: runner.run(n)
    del exact
    torch.cuda.empty_cache()
    graph = phase.name == "decode"  # where the host would be what is timed
    for name, time in timing.measure(calls, sets=1, seconds=seconds, graph=graph).items():
        bench.fill_row(rows[name], time, known, "bf16", 0, 0)
        print(rows[name])
    if "ms" in rows["auto"] and "ms" in rows["flash"]:
        rows["auto"]["of_flash"] = round(rows["flash"]["ms"] / rows["auto"]["ms"], 4)
    return [rows[name] for name in IMPLEMENTATIONS]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the record")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each implementation")
    options = parser.parse_args(arguments)
    import transformers

    environment = {**limits.environment(), "transformers": transformers.__version__}
    source = sources.of_attention()
    record: dict[str, Any] = {"environment": environment, "source": source, "rows": []}
    folder = options.out or limits.results_dir()
    known = limits.ensure(folder)
    for model in MODELS:
        for phase in PHASES:
            record["rows"] += measure(model, phase, options.seconds, known)
            torch.cuda.empty_cache()
    json_files.write_json(record_path(folder, NAME), record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
