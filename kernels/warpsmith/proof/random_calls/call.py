"""A call written down: every argument by its name, every tensor by shape, layout and kind of
values, so that one line of text says exactly what was called.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue
from warpsmith.core.catalogue import DTYPES, Inputs, Op

Shape = tuple[int, ...]
#: Turns a shape and the number of an argument into values.
Values = Callable[[Inputs, Shape, int], Tensor]

#: How an argument that is a dtype begins.
_MARK = "dtype "

#: Sizes of dimensions, and of the last one.
SIZES = (0, 1, 2, 3, 5, 8, 13)
COLUMNS = (1, 2, 7, 8, 16, 31, 64, 96, 257)


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0] or [1]


@dataclass(frozen=True)
class Call:
    """A call of an operator.

    Attributes:
        op: the operator's name.
        dtype: that of the tensors that name no other.
        seed: of the tensors' values.
        arguments: by name. A tensor is a mapping: its shape, how it lies in memory (`LAYOUTS`),
            what its values are (`VALUES`), and its dtype where that is another.
    """

    op: str
    dtype: str
    seed: int
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        """One line of JSON."""
        return json.dumps(
            {"op": self.op, "dtype": self.dtype, "seed": self.seed, "arguments": self.arguments}
        )

    @staticmethod
    def parse(text: str | Mapping[str, Any]) -> Call:
        said = json.loads(text) if isinstance(text, str) else text
        return Call(said["op"], said["dtype"], said["seed"], said["arguments"])

    @property
    def label(self) -> str:
        """For people: dtype, shapes and layouts."""
        parts = [self.dtype]
        for name, a in self.arguments.items():
            if isinstance(a, Mapping):
                size = "x".join(map(str, a["shape"])) or "scalar"
                dtype = f" {a['dtype']}" if "dtype" in a else ""
                parts.append(f"{name} {size}{dtype} {a['layout']}")
            else:
                parts.append(f"{name} {a}")
        return ", ".join(parts)

    def make(self, device: str | torch.device) -> tuple[Any, ...]:
        """The operator's positional arguments."""
        op = catalogue.get(self.op)
        named = {
            name: self._argument(a, position, device)
            for position, (name, a) in enumerate(self.arguments.items())
        }
        if derive := CONSISTENT.get(op.name):
            derive(op, named)
        return tuple(named[name] for name in op.argument_names)

    def _argument(self, a: Any, position: int, device: str | torch.device) -> Any:
        if isinstance(a, str) and a.startswith(_MARK):
            return DTYPES[a.removeprefix(_MARK)]
        if not isinstance(a, Mapping):
            return a
        dtype = DTYPES.get(a.get("dtype", self.dtype)) or getattr(torch, a["dtype"])
        inputs = Inputs(dtype, device, self.seed)
        return lay_out(a["layout"], tuple(a["shape"]), VALUES[a["values"]], inputs, position)


def dtype_text(name: str) -> str:
    """A dtype as an argument."""
    return _MARK + name


# --- memory layouts -------------------------------------------------------------------------------

#: Of any tensor; the last one of images.
LAYOUTS = ("contiguous", "offset", "transposed", "stepped", "cropped", "expanded", "permuted")
CHANNELS_LAST = "channels last"
#: Those in which every element has an address of its own, so that it can be written.
OWN = tuple(layout for layout in LAYOUTS if layout != "expanded")


def lay_out(layout: str, shape: Shape, values: Values, inputs: Inputs, salt: int) -> Tensor:
    """A tensor of that shape, in a memory layout of that kind where the shape allows it."""
    rank = len(shape)
    if layout == "offset":
        count, offset = math.prod(shape), 1 + salt % 7
        return values(inputs, (count + offset,), salt)[offset:].view(shape)
    if layout == "transposed" and rank >= 2:
        return values(inputs, (*shape[:-2], shape[-1], shape[-2]), salt).transpose(-1, -2)
    if layout == "permuted" and rank >= 2:
        return values(inputs, shape[::-1], salt).permute(*reversed(range(rank)))
    if layout == "stepped" and rank >= 1:
        return values(inputs, (*shape[:-1], shape[-1] * 2), salt)[..., ::2]
    if layout == "cropped" and rank >= 1:
        wide = values(inputs, (*shape[:-1], shape[-1] + 3), salt)
        return wide[..., 1 : shape[-1] + 1]
    if layout == "expanded" and rank >= 1:
        return values(inputs, shape[1:], salt).expand(shape)
    if layout == CHANNELS_LAST and rank >= 3:
        return values(inputs, (shape[0], *shape[2:], shape[1]), salt).movedim(-1, 1)
    return values(inputs, shape, salt)


# --- values ---------------------------------------------------------------------------------------


def _normal(inputs: Inputs, shape: Shape, salt: int) -> Tensor:
    return inputs.randn(*shape, salt=salt)


def _uniform(inputs: Inputs, shape: Shape, salt: int) -> Tensor:
    generator = inputs.generator((*shape, salt))
    return torch.rand(shape, generator=generator, device=inputs.device)


def _unit(inputs: Inputs, shape: Shape, salt: int) -> Tensor:
    """From 0 to 1."""
    return _uniform(inputs, shape, salt).to(inputs.dtype)


def _ascending(inputs: Inputs, shape: Shape, salt: int) -> Tensor:
    """From about -2 on, in ascending order, some of them equal."""
    steps = (_uniform(inputs, shape, salt) * 4).floor() / 32
    return (steps.flatten().cumsum(0).view(shape) - 2).to(inputs.dtype)


def _scales(inputs: Inputs, shape: Shape, salt: int) -> Tensor:
    """Of either sign, from 1/512 to 1/8: small enough for f16 results."""
    sizes = torch.exp2(6 * _uniform(inputs, shape, salt) - 9)
    return _signed(sizes, inputs, salt).to(inputs.dtype)


def _signed(sizes: Tensor, inputs: Inputs, salt: int) -> Tensor:
    return torch.where(_uniform(inputs, tuple(sizes.shape), salt + 100) < 0.5, -sizes, sizes)


def _far_from_zero(inputs: Inputs, shape: Shape, salt: int) -> Tensor:
    """Weights that can be divided by, of both signs."""
    sizes = torch.exp2(2 * _uniform(inputs, shape, salt) - 1)
    return _signed(sizes, inputs, salt).to(inputs.dtype)


def _bools(inputs: Inputs, shape: Shape, salt: int) -> Tensor:
    return _uniform(inputs, shape, salt) < 0.3


def _words(inputs: Inputs, shape: Shape, salt: int) -> Tensor:
    """All bits random."""
    generator = inputs.generator((*shape, salt))
    return torch.randint(
        -(2**31), 2**31, shape, generator=generator, device=inputs.device, dtype=inputs.dtype
    )


def _below(count: int) -> Values:
    """Integers from 0 on, one in eight of them -100: classes, some of which are ignored."""

    def values(inputs: Inputs, shape: Shape, salt: int) -> Tensor:
        ignored = _uniform(inputs, shape, salt + 100) < 0.125
        found = (_uniform(inputs, shape, salt) * count).floor().clamp(max=count - 1)
        return torch.where(ignored, -100.0, found).to(inputs.dtype)

    return values


def _lengths(count: int) -> Values:
    """Integers from 0 on."""

    def values(inputs: Inputs, shape: Shape, salt: int) -> Tensor:
        return (_uniform(inputs, shape, salt) * count).floor().clamp(max=count - 1).to(inputs.dtype)

    return values


def _distinct(count: int) -> Values:
    """Different integers from 0 on."""

    def values(inputs: Inputs, shape: Shape, salt: int) -> Tensor:
        order = _uniform(inputs, (count,), salt).argsort()
        return order[: math.prod(shape)].view(shape).to(inputs.dtype)

    return values


def _starts(tokens: int) -> Values:
    """Where sequences begin that share out so many tokens, and where the last one ends."""

    def values(inputs: Inputs, shape: Shape, salt: int) -> Tensor:
        places = (_uniform(inputs, shape, salt) * (tokens + 1)).floor().clamp(max=tokens)
        places = places.sort().values
        places[:1] = 0
        places[-1:] = tokens
        return places.to(inputs.dtype)

    return values


def _ends(total: int) -> Values:
    """Where groups end that share out so many rows, some of them none."""

    def values(inputs: Inputs, shape: Shape, salt: int) -> Tensor:
        places = (_uniform(inputs, shape, salt) * (total + 1)).floor().clamp(max=total)
        places = places.flatten().sort().values
        places[-1:] = total
        return places.view(shape).to(inputs.dtype)

    return values


class _Kinds(dict[str, Values]):
    def __missing__(self, kind: str) -> Values:
        """ "classes 31" are integers below 31, some of them -100; "below 31" are so many, and of
        "distinct 31" no two are the same; "starts 31" cut 31 tokens into sequences, "ends 31" 31
        rows into groups.
        """
        word, count = kind.split()
        made = {
            "classes": _below,
            "below": _lengths,
            "distinct": _distinct,
            "starts": _starts,
            "ends": _ends,
        }
        return made[word](int(count))


VALUES: Mapping[str, Values] = _Kinds(
    {
        "normal": _normal,
        "unit": _unit,
        "scales": _scales,
        "far from zero": _far_from_zero,
        "ascending": _ascending,
        "bools": _bools,
        "words": _words,
    }
)


# --- arguments that follow from others ------------------------------------------------------------


def _forward(name: str, named: Mapping[str, Any], **changed: Any) -> tuple[Tensor, ...]:
    """The results of an operator's reference to arguments of these names."""
    op = catalogue.get(name)
    given = {**named, **changed}
    out = op.reference(*(given[argument] for argument in op.argument_names))
    return out if isinstance(out, tuple) else (out,)


def _kept_lse(forward: str) -> Callable[[Op, dict[str, Any]], None]:
    def derive(op: Op, named: dict[str, Any]) -> None:
        named["lse"].copy_(_forward(forward, named)[1])

    return derive


def _kept_output(forward: str) -> Callable[[Op, dict[str, Any]], None]:
    def derive(op: Op, named: dict[str, Any]) -> None:
        y, rstd = _forward(forward, named, x=named["y"].clone())
        named["y"].copy_(y)
        named["rstd"].copy_(rstd)

    return derive


def _kept_answer(forward: str) -> Callable[[Op, dict[str, Any]], None]:
    def derive(op: Op, named: dict[str, Any]) -> None:
        out, lse, *_ = _forward(forward, named, return_lse=True, return_max_logits=False)
        named["out"].copy_(out)
        named["lse"].copy_(lse)

    return derive


#: What a gradient gets from the forward pass is what that would have kept.
CONSISTENT: Mapping[str, Callable[[Op, dict[str, Any]], None]] = {
    "cross_entropy_backward": _kept_lse("cross_entropy_forward"),
    "bias_scale_mask_softmax_dropout_backward": _kept_lse("bias_scale_mask_softmax_dropout"),
    "rms_norm_backward_from_output": _kept_output("rms_norm_with_rstd"),
    "flash_attention_backward": _kept_answer("flash_attention"),
    "flash_attention_varlen_backward": _kept_answer("flash_attention_varlen"),
    "layer_norm_backward_from_output": _kept_output("layer_norm_with_rstd"),
}
