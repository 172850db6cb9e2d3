"""The layer: its sizes, its steps, its weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import warpsmith
from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import DTYPE_NAMES
from warpsmith.measure import limits
from warpsmith.spec import rotary
from warpsmith.spec.accuracy import as_tuple

EPS = 1e-5
#: Of the angles: pair j turns by BASE^(-2 j / d) a position.
BASE = 500_000.0
SEED = 0


@dataclass(frozen=True)
class Config:
    """Sizes of the layer, and the token counts that it is run at."""

    name: str
    hidden: int
    ffn: int
    tokens: tuple[int, ...]


LLAMA_3_8B = Config("Llama-3-8B", 4096, 14336, (1, 16, 128, 1024, 4096, 8192))
SMALL = Config("Llama-3-8B in miniature", 512, 1024, (1, 4, 16))
#: Values of a head, and heads of queries for each of keys, in both.
HEAD_DIM, GROUP = 128, 4


@dataclass(frozen=True)
class Step:
    """One call in the layer: reads the named tensors, writes one or more new ones.

    `op` is the operator of the catalogue that serves it here, None for a matrix product, which is
    PyTorch's on both sides. `extra` are the arguments behind the tensors.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    theirs: Callable[..., Any]
    op: str | None = None
    extra: tuple[Any, ...] = ()
    #: The names of `extra`, where the public function takes them by name only.
    named: tuple[str, ...] = ()

    @property
    def ours(self) -> Callable[..., Any]:
        if self.op is None:
            return self.theirs
        function = getattr(warpsmith, self.op)
        if not self.named:
            return function
        count = len(self.inputs)
        return lambda *args: function(
            *args[:count], **dict(zip(self.named, args[count:], strict=True))
        )

    def answers(self, outs: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        """As the operator returns them: None stands for what was not asked for."""
        assert self.op is not None
        return (*outs, *(None,) * (len(catalogue.get(self.op).outputs) - len(outs)))

    def arguments(self, values: dict[str, Tensor]) -> tuple[Any, ...]:
        return (*(values[name] for name in self.inputs), *self.extra)

    def run(self, call: Callable[..., Any], values: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Puts into `values` what `call`, one of `ours` and `theirs`, makes of them."""
        outs = as_tuple(call(*self.arguments(values)))
        values.update(zip(self.outputs, outs, strict=True))
        return outs

    def serves(self, args: Sequence[Any]) -> str:
        """What runs it: a variant, "triton", "reference", or PyTorch's own product."""
        if self.op is None:
            return "PyTorch in both"
        choice = dispatch.which(self.op, *args)
        return choice.variant.name if choice.variant else choice.implementation

    def floor_ms(self, known: dict[str, Any], args: Sequence[Any]) -> float:
        """The least time for the bytes and the arithmetic of the step on this GPU."""
        dtype = DTYPE_NAMES[args[0].dtype]
        if self.op is None:
            a, b = args
            rows = a.numel() // b.shape[1]
            moved = (a.numel() + b.numel() + rows * b.shape[0]) * a.element_size()
            return limits.floor_ms(known, dtype, moved, 2 * a.numel() * b.shape[0])
        op = catalogue.get(self.op)
        assert op.cost is not None
        args = dispatch.normalise(op, tuple(args))
        return limits.floor_ms(known, dtype, op.cost.bytes(*args), op.cost.flops(*args))


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def _queries_keys_values(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """[1, tokens, heads, d] each: the tokens are one sequence."""
    rows = F.linear(x, weight).view(1, len(x), -1, HEAD_DIM)
    heads = rows.shape[2] // (GROUP + 2)
    return rows.split((GROUP * heads, heads, heads), 2)


def _rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Value j of a head and value j + d / 2 turn together; rounded once."""

    def turned(x: Tensor) -> Tensor:
        c, s = cos[:, None], sin[:, None]
        a, b = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, -1)
        return torch.cat((a * c - b * s, b * c + a * s), -1).to(x.dtype)

    return turned(q), turned(k)


def _attention(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """The queries are the last of the sequence; all, unless it is computed in parts."""
    m, n = q.shape[1], k.shape[1]
    earlier = None if m == n else torch.ones(m, n, dtype=torch.bool, device=q.device).tril(n - m)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(
        q, k, v, earlier, is_causal=causal and m == n, scale=scale, enable_gqa=True
    )
    return out.transpose(1, 2)


def _project(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x.reshape(x.shape[1], -1), weight)


def _add_rms_norm(
    attention: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    x = attention + residual
    return F.rms_norm(x, x.shape[-1:], weight, eps), x


def _matmul(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight)


def _silu_and_mul(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def _add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


#: What goes in: the residual stream, a row per token; then weights: of the norm before attention,
#: of queries, keys and values as one, of what comes out of it, of the second norm, of the gate and
#: up projection as one, of the down projection.
INPUTS = (
    "residual",
    "attention_norm_weight",
    "qkv_weight",
    "out_weight",
    "norm_weight",
    "gate_up_weight",
    "down_weight",
)
#: What goes in beside: cosines and sines of the angles at each position, f32 [tokens, d / 2].
TABLES = ("cos", "sin")

STEPS = (
    Step("rms_norm", INPUTS[:2], ("m",), _rms_norm, "rms_norm", (EPS,)),
    Step("q, k and v: matmul", ("m", "qkv_weight"), ("q", "k", "v"), _queries_keys_values),
    Step("rope", ("q", "k", *TABLES), ("turned_q", "turned_k"), _rope, "rope"),
    Step(
        "flash_attention",
        ("turned_q", "turned_k", "v"),
        ("o",),
        _attention,
        "flash_attention",
        (HEAD_DIM**-0.5, True),
        ("scale", "causal"),
    ),
    Step("out: matmul", ("o", "out_weight"), ("attention",), _project),
    Step(
        "add_rms_norm",
        ("attention", "residual", "norm_weight"),
        ("n", "x"),
        _add_rms_norm,
        "add_rms_norm",
        (EPS,),
    ),
    Step("gate and up: matmul", ("n", "gate_up_weight"), ("h",), _matmul),
    Step("silu_and_mul", ("h",), ("a",), _silu_and_mul, "silu_and_mul"),
    Step("down: matmul", ("a", "down_weight"), ("d",), _matmul),
    Step("add", ("x", "d"), ("y",), _add, "add"),
)


def layer(side: str) -> Callable[..., Tensor]:
    """The whole layer as one function of `INPUTS` and `TABLES`.

    Args:
        side: "ours" or "theirs".
    """
    calls = tuple((step, getattr(step, side)) for step in STEPS)

    def run(*tensors: Tensor) -> Tensor:
        values = dict(zip(INPUTS + TABLES, tensors, strict=True))
        for step, call in calls:
            step.run(call, values)
        return values["y"]

    return run


class Weights:
    """Seeded weights: normal, 0.02 wide at the model's width.

    A narrower layer gets wider weights, so that its activations spread as those of the model do.
    """

    def __init__(self, config: Config, dtype: torch.dtype, device: torch.device) -> None:
        self.config, self.dtype, self.device = config, dtype, device
        self._generator = torch.Generator(device=device).manual_seed(SEED)
        width = 0.02 * math.sqrt(LLAMA_3_8B.hidden / config.hidden)
        hidden, kv = config.hidden, config.hidden // GROUP
        self.tensors = (
            self._norm(hidden),
            self._normal(hidden + 2 * kv, hidden, width=width),
            self._normal(hidden, hidden, width=width),
            self._norm(hidden),
            self._normal(2 * config.ffn, hidden, width=width),
            self._normal(hidden, config.ffn, width=width),
        )

    def _norm(self, hidden: int) -> Tensor:
        return (self._normal(hidden, width=0.1).float() + 1).to(self.dtype)

    def _normal(self, *shape: int, width: float = 1.0) -> Tensor:
        x = torch.randn(shape, generator=self._generator, device=self.device, dtype=self.dtype)
        return x.mul_(width)

    def inputs(self, tokens: int) -> tuple[Tensor, ...]:
        """`INPUTS` and `TABLES` for that many tokens."""
        self._generator.manual_seed(SEED + 1 + tokens)
        turns = rotary.turns(rotary.frequencies(HEAD_DIM, BASE)).to(self.device)
        residual = self._normal(tokens, self.config.hidden)
        return (residual, *self.tensors, *rotary.tables(turns, tokens))
