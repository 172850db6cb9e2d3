"""Draws calls: a role for every argument of every operator.

What an argument may be follows from its name, as the schema has it, and the kind of operator. A
name that has no role is an error, so that no operator is left out in silence.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from warpsmith.core.catalogue import FP8, Op
from warpsmith.proof.random_calls import attention, caches, moves, quantized, vision
from warpsmith.proof.random_calls.call import (
    CHANNELS_LAST,
    COLUMNS,
    LAYOUTS,
    OWN,
    SIZES,
    Call,
    Shape,
    divisors,
    dtype_text,
)

#: Sizes of products.
MATRIX_SIZES = (1, 2, 3, 8, 16, 31, 64, 129)
#: What 8-bit weights are multiplied with.
COMPUTED = ("f32", "f16", "bf16")
_INT64 = 2**63

Drawn = dict[str, Any]


class UnknownRoleError(LookupError):
    """An argument of which nothing is known: it needs a role here."""


class Draw:
    """One call in the making."""

    def __init__(self, op: Op, seed: str) -> None:
        self.op = op
        self.random = random.Random(seed)
        self.dtype = self.pick(op.dtypes)
        self.layouts: tuple[str, ...] = LAYOUTS

    def pick(self, options: Sequence[Any]) -> Any:
        return self.random.choice(options)

    def maybe(self) -> bool:
        return self.random.random() < 0.5

    def tensor(
        self,
        shape: Shape,
        values: str = "normal",
        dtype: str = "",
        layouts: tuple[str, ...] | None = None,
    ) -> Drawn:
        drawn: Drawn = {
            "shape": list(shape),
            "layout": self.pick(layouts or self.layouts),
            "values": values,
        }
        return drawn | ({"dtype": dtype} if dtype not in ("", self.dtype) else {})

    def shape(self, least_rank: int = 0, multiple: int = 1) -> Shape:
        rank = self.random.randint(least_rank, 4)
        sizes = [self.pick(SIZES) for _ in range(rank)]
        if rank:
            sizes[-1] = -(-self.pick(COLUMNS) // multiple) * multiple
        return tuple(sizes)

    def wide(self) -> str:
        """The dtype of the call, or f32."""
        return self.pick((self.dtype, "f32"))

    def broadcast(self, shape: Shape) -> Shape:
        """A shape that broadcasts to it."""
        return tuple(self.pick((1, n)) for n in shape[self.random.randint(0, len(shape)) :])

    def number(self) -> int:
        return self.random.randint(-_INT64, _INT64 - 1)


Roles = dict[str, Callable[[], Any]]


def _options(draw: Draw) -> Roles:
    """Arguments that are no tensors and mean the same everywhere."""
    defaults = {
        a.name: a.default_value
        for a in torch._C.parse_schema(f"warpsmith::{draw.op.schema}").arguments
        if a.has_default_value()
    }
    roles: Roles = {
        name: lambda name=name: defaults.get(name, 1.0)  # type: ignore[misc]
        for name in ("alpha", "lambd")
    }
    return roles | {
        "eps": lambda: defaults.get("eps", 1e-6),
        "correction": lambda: draw.random.randint(0, 2),
        "p": lambda: draw.pick((0.0, 0.3, 1.0)),
        "seed": draw.number,
        "offset": draw.number,
        **dict.fromkeys(
            (
                "keepdim",
                "reverse",
                "batch_invariant",
                "causal",
                "zero_centered",
                "separate_x",
                "fast_accum",
            ),
            draw.maybe,
        ),
    }


# --- elementwise functions, reductions, softmax, norms --------------------------------------------


def _rows(draw: Draw) -> Roles:
    """Operators whose first tensor has any shape, which all others follow."""
    op = draw.op
    names = op.argument_names
    images = "groups" in names
    one_input_gate = "up" in names and draw.maybe()
    halves = op.name.startswith("glu")
    needs_row = one_input_gate or halves or not {"bias", "weight", "row_scale"}.isdisjoint(names)
    needs_row = needs_row or "eps" in names
    if images:
        draw.layouts = (*LAYOUTS, CHANNELS_LAST)
    shape = draw.shape(2 if images else int(needs_row), 2 if one_input_gate else 1)
    rank = max(len(shape), 1)
    dim = draw.random.randint(-rank, rank - 1)
    half = shape
    if one_input_gate:
        half = (*shape[:-1], shape[-1] // 2)
    if halves:
        shape = tuple(2 * n if d == dim % rank else n for d, n in enumerate(half))
    columns = shape[1:2] if images else shape[-1:]
    narrow = "grad" if "h" in names else "x"
    parameters = draw.dtype if op.family == "elementwise" or op.name == "addmm" else draw.wide()
    residual = draw.dtype if op.family == "elementwise" else draw.wide()
    kept = op.name.endswith("_from_output")
    always = "groups" not in names and op.family == "elementwise"
    given = always and op.name != "bias_dropout_add"  # a bias that is no option
    fp8_norm = "dtype" in names
    other = third = shape
    if op.name == "dot":
        shape = other = (draw.pick((0, 1, 2, 7, 31, 64, 257, 1000)),)
    elif names == ("x", "y"):
        shape, other = draw.pick(broadcasts(shape))
    elif names == ("x", "y", "z"):
        shape, other = draw.pick(broadcasts(shape))
        third = draw.broadcast(torch.broadcast_shapes(shape, other))
        order = draw.random.sample((shape, other, third), 3)
        shape, other, third = order
    separate = narrow == "grad" and residual != draw.dtype

    def optional(drawn: Callable[[], Drawn], needed: bool = False) -> Drawn | None:
        return drawn() if needed or draw.maybe() else None

    def parameter() -> Drawn:
        return draw.tensor(columns, "far from zero" if kept else "normal", parameters)

    return _options(draw) | {
        "x": lambda: draw.tensor(shape),
        "y": lambda: draw.tensor(other, layouts=OWN if kept else None),
        "z": lambda: draw.tensor(third),
        "up": lambda: None if one_input_gate else draw.tensor(shape),
        "bias": lambda: optional(lambda: draw.tensor(columns, "normal", parameters), given),
        "weight": lambda: optional(parameter),
        "grad": lambda: draw.tensor(half),
        "residual": lambda: optional(lambda: draw.tensor(shape, "normal", residual), fp8_norm),
        "h": lambda: draw.tensor(shape, "normal", residual),
        "grad_h": lambda: optional(lambda: draw.tensor(shape, "normal", residual)),
        "separate_x": lambda: separate or draw.maybe(),
        "row_scale": lambda: optional(lambda: draw.tensor(shape[:-1], "scales", "f32")),
        "rstd": lambda: draw.tensor(shape[:-1], "scales", "f32", OWN),
        "scale": lambda: optional(lambda: draw.tensor(draw.pick(((), (1,))), "scales", "f32")),
        "dtype": lambda: dtype_text(draw.pick(FP8)),
        "mask": lambda: draw.tensor((-(-_count(shape) // 32),), "words", "i32", ("contiguous",)),
        "groups": lambda: draw.pick(divisors(shape[1])),
        "activation": lambda: draw.pick(("none", "silu", "mish")),
        "dim": lambda: dim,
    }


def _count(shape: Shape) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def broadcasts(shape: Shape) -> list[tuple[Shape, Shape]]:
    """Pairs of shapes that broadcast to `shape`."""
    pairs = [(shape, shape), (shape, ()), ((), shape)]
    for i in range(len(shape)):
        flat = (*shape[:i], 1, *shape[i + 1 :])
        pairs += [(shape, shape[i:]), (shape[i:], shape), (shape, flat), (flat, shape)]
        pairs.append((flat, shape[i:]) if i else (shape, flat))
    return [pair for pair in pairs if torch.broadcast_shapes(*pair) == torch.Size(shape)]


def _terms(draw: Draw) -> Roles:
    """A weighted sum of up to eight tensors of one shape."""
    names = [name for name in draw.op.argument_names if name != "weights"]
    count, shape = draw.random.randint(1, len(names)), draw.shape()
    weights = [draw.pick((0.0, 1.0, -0.5, 1.7)) for _ in range(count)]
    # layouts that agree let the kernel walk the memory as it lies
    layouts = LAYOUTS if draw.maybe() else (draw.pick(LAYOUTS),)

    def term(k: int) -> Drawn | None:
        return draw.tensor(shape, layouts=layouts) if k < count else None

    return {"weights": lambda: weights} | {
        name: lambda k=k: term(k)  # type: ignore[misc]
        for k, name in enumerate(names)
    }


def _masked_softmax(draw: Draw) -> Roles:
    """Softmax of logits with a bias and a mask that broadcast."""
    shape = draw.shape(1)
    fused = "p" in draw.op.argument_names

    def mask() -> Drawn | None:
        if not draw.maybe():
            return None
        if fused or draw.maybe():
            return draw.tensor(draw.broadcast(shape), "bools", "bool")
        return bias()

    def bias() -> Drawn:
        return draw.tensor(draw.broadcast(shape), "normal", draw.wide())

    def per_row() -> Drawn:
        return draw.tensor(shape[:-1], "normal", "f32", OWN)

    return _options(draw) | {
        "x": lambda: draw.tensor(shape),
        "y": lambda: draw.tensor(shape, "unit"),
        "grad": lambda: draw.tensor(shape),
        "bias": lambda: bias() if draw.maybe() else None,
        "mask": mask,
        "lse": per_row,
        "grad_lse": lambda: per_row() if draw.maybe() else None,
        "scale": lambda: draw.pick((1.0, 0.125, -2.0)),
    }


def _cross_entropy(draw: Draw) -> Roles:
    rows, classes = draw.pick(SIZES), draw.pick(COLUMNS)

    def per_row(layouts: tuple[str, ...] | None = None) -> Drawn:
        return draw.tensor((rows,), "normal", "f32", layouts)

    return {
        "logits": lambda: draw.tensor((rows, classes)),
        "target": lambda: draw.tensor(
            (rows,), f"classes {classes}", draw.pick(("int64", "int32")), OWN
        ),
        "lse": lambda: per_row(OWN),
        "grad_loss": lambda: None if _optional(draw, "grad_loss") and draw.maybe() else per_row(),
        "grad_lse": per_row,
        "ignore_index": lambda: -100,
        "label_smoothing": lambda: draw.pick((0.0, 0.1, 1.0)),
        "z_loss": lambda: draw.pick((0.0, 1e-4, 0.5)),
    }


def _optional(draw: Draw, name: str) -> bool:
    return f"Tensor? {name}" in draw.op.schema


def _bce(draw: Draw) -> Roles:
    shape = draw.shape()
    return {
        "x": lambda: draw.tensor(shape),
        "target": lambda: draw.tensor(shape, "unit"),
        "grad": lambda: draw.tensor(draw.pick((shape, ())), "normal", "f32"),
        "reduction": lambda: draw.random.randint(0, 2),
        "scale": lambda: draw.pick((1.0, 0.125)),
    }


# --- products -------------------------------------------------------------------------------------


def _product(draw: Draw) -> Roles:
    """a[..., m, k] b[..., k, n], whatever an operator calls them."""
    op = draw.op
    m, n, k = (draw.pick(MATRIX_SIZES) for _ in range(3))
    if op.name == "linear":
        batch = draw.pick(((), (m,), (2, m), (0, m)))
        return _options(draw) | {
            "x": lambda: draw.tensor((*batch, k)),
            "weight": lambda: draw.tensor((n, k)),
            "bias": lambda: draw.tensor((n,)) if draw.maybe() else None,
            "activation": lambda: draw.pick(("none", "relu", "gelu", "gelu_tanh", "silu")),
        }
    if op.name == "linear_weight_gradient":
        return {
            "grad": lambda: draw.tensor((m, n)),
            "x": lambda: draw.tensor((m, k)),
            "wide_bias": draw.maybe,
        }
    if op.source == "fused_linear":
        return _layer(draw, m, n, k)
    if op.name.startswith("gemv"):
        columns = draw.pick(((), (1,), (2,), (3,), (16,)))
        pair = (2,) if op.name == "gemv_complex" else ()
        computed = draw.pick(COMPUTED) if "scale" in op.argument_names else draw.dtype
        return {
            "a": lambda: draw.tensor((m, k, *pair)),
            "x": lambda: draw.tensor((*columns, k, *pair), "normal", computed),
            "scale": lambda: draw.tensor(draw.pick(((m,), ())), "scales", "f32"),
        }
    if op.name == "addmm":
        shape = draw.pick(((m, n), (1, n), (m, 1), (n,), ()))
        factor = (0.0, 1.0, -0.5)
        return {
            "c": lambda: draw.tensor(shape),
            "a": lambda: draw.tensor((m, k)),
            "b": lambda: draw.tensor((k, n)),
            "beta": lambda: draw.pick(factor),
            "alpha": lambda: draw.pick(factor),
        }
    batches = (((), ()), ((3,), ()), ((), (3,)), ((2, 1), (3,)), ((3,), (3,)), ((0,), ()))
    scaled = "scale_a" in op.argument_names
    left, right = ((), ()) if scaled else draw.pick(batches)
    out_dtype = draw.pick(("f16", "bf16", "f32", "e4m3", "e5m2") if scaled else ("same", "f32"))
    fp8_result = out_dtype in ("e4m3", "e5m2")
    return _options(draw) | {
        "a": lambda: draw.tensor((*left, m, k)),
        "b": lambda: draw.tensor((*right, k, n)),
        "scale_a": lambda: draw.tensor(draw.pick(((m,), ())), "scales", "f32"),
        "scale_b": lambda: draw.tensor(draw.pick(((n,), ())), "scales", "f32"),
        "out_dtype": lambda: out_dtype,
        "fast_accum": draw.maybe,
        "scale_result": lambda: (
            draw.tensor((), "scales", "f32") if fp8_result and draw.maybe() else None
        ),
    }


def _layer(draw: Draw, m: int, n: int, k: int) -> Roles:
    """A product of a layer and what follows it."""
    batch = draw.pick(((), (m,), (2, m), (0, m)))
    heads, kv_heads, size = draw.pick((1, 2, 3)), draw.pick((1, 2)), draw.pick((1, 8, 24, 64))
    is_qkv = draw.op.name == "fused_qkv"
    if is_qkv:
        batch, n = draw.pick(((2, m), (1, m), (0, m))), (heads + 2 * kv_heads) * size
    of_biases = draw.wide()

    def bias() -> Drawn | None:
        return draw.tensor((n,), "normal", of_biases) if draw.maybe() else None

    gates = ("relu", "gelu", "gelu_tanh", "silu")
    return {
        "x": lambda: draw.tensor((*batch, k)),
        **dict.fromkeys(("weight", "w_gate", "w_up"), lambda: draw.tensor((n, k))),
        **dict.fromkeys(("bias", "b_gate", "b_up"), bias),
        "residual": lambda: draw.tensor((*batch, n)) if draw.maybe() else None,
        "scale": lambda: draw.pick((1.0, 0.5, -2.0)),
        "activation": lambda: draw.pick(
            gates if "w_up" in draw.op.argument_names else ("none", *gates)
        ),
        **dict.fromkeys(("keep", "amax"), draw.maybe),
        "heads": lambda: heads,
        "kv_heads": lambda: kv_heads,
        "head_dim": lambda: size,
        "layout": lambda: draw.pick(("bshd", "bhsd")),
        "a": lambda: draw.tensor((m, k)),
        "b": lambda: draw.tensor((k, n)),
        "total": lambda: draw.tensor((m, n), "normal", "f32", OWN),
    }


def _groups(draw: Draw) -> Roles:
    """Products of groups of rows, or of groups along k."""
    total, n, k = (draw.pick((0, *MATRIX_SIZES)) for _ in range(3))
    groups, along_k = draw.pick((0, 1, 2, 5)), draw.maybe()
    # Of groups of rows, rows past the last end hold anything: there are none.
    total = total if groups else 0
    w = (total, n) if along_k else (groups, k, n)
    return {
        "x": lambda: draw.tensor((k, total) if along_k else (total, k)),
        "w": lambda: draw.tensor(w),
        # of a part of longer ones, the last is not where rows end
        "offs": lambda: draw.tensor((groups,), f"ends {total}", "int32", ("contiguous", "offset")),
        "scale_x": lambda: draw.tensor((groups, k) if along_k else (total,), "scales", "f32"),
        "scale_w": lambda: draw.tensor((groups, n), "scales", "f32"),
        "out_dtype": lambda: draw.pick(("f16", "bf16", "f32")),
        "fast_accum": draw.maybe,
    }


# --- a call ---------------------------------------------------------------------------------------


def _plan(op: Op) -> Callable[[Draw], Roles]:
    names = op.argument_names
    for plans in (attention.PLANS, caches.PLANS, moves.PLANS, quantized.PLANS, vision.PLANS):
        if op.name in plans:
            return plans[op.name]
    if "offs" in names and op.family == "gemm":
        return _groups
    if op.family == "gemm":
        return _product
    if "logits" in names:
        return _cross_entropy
    if "target" in names:
        return _bce
    if "causal" in names:
        return _masked_softmax
    if "weights" in names:
        return _terms
    return _rows


def draw(op: Op, seed: int, index: int) -> Call:
    """A random call; the same for the same numbers.

    Args:
        op: an operator of the catalogue.
        seed: of all calls of a run.
        index: which of the operator's.

    Returns:
        The call, which the operator's own check need not let pass.

    Raises:
        UnknownRoleError: for an argument that has no role.
    """
    drawing = Draw(op, f"{seed} {op.name} {index}")
    roles = _plan(op)(drawing)
    if unknown := [name for name in op.argument_names if name not in roles]:
        raise UnknownRoleError(
            f"{op.name}: no role for {', '.join(unknown)}; random calls draw every argument by its "
            f"role, in {__name__}"
        )
    arguments = {name: roles[name]() for name in op.argument_names}
    return Call(op.name, drawing.dtype, drawing.random.randrange(2**31), arguments)
