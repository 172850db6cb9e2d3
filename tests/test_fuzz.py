"""Random shapes, strides, offsets and broadcasts: whatever serves a call agrees with float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from conftest import GPU
from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import DTYPES, Inputs, Op
from warpsmith.gemm.scaled_matmul_cases import scales
from warpsmith.proof import testing
from warpsmith.proof.verify.run import Run, implementations

OPS = list(catalogue.load().values())
DEVICE = "cuda" if GPU else "cpu"
#: Those that multiply matrices have shapes of their own.
PRODUCTS = (
    "matmul",
    "matmul_tf32",
    "scaled_matmul",
    "linear",
    "addmm",
    "gemv",
    "gemv_complex",
    "gemv_scaled",
)
LAYOUTS = ("contiguous", "offset", "transposed", "stepped", "cropped", "expanded", "permuted")
SETTINGS = settings(
    max_examples=60 if GPU else 8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

#: What 8-bit weights are multiplied with.
COMPUTED = (torch.float32, torch.float16, torch.bfloat16)

Shape = tuple[int, ...]
Draw = Callable[..., Any]


def lay_out(layout: str, shape: Shape, inputs: Inputs, salt: int) -> Tensor:
    """A tensor of that shape, in a memory layout of that kind where the shape allows it."""
    rank = len(shape)
    if layout == "offset":
        return inputs.misaligned(*shape, offset=1 + salt % 7, salt=salt)
    if layout == "transposed" and rank >= 2:
        return inputs.randn(*shape[:-2], shape[-1], shape[-2], salt=salt).transpose(-1, -2)
    if layout == "permuted" and rank >= 2:
        return inputs.randn(*shape[::-1], salt=salt).permute(*reversed(range(rank)))
    if layout == "stepped" and rank >= 1:
        return inputs.randn(*shape[:-1], shape[-1] * 2, salt=salt)[..., ::2]
    if layout == "cropped" and rank >= 1:
        return inputs.randn(*shape[:-1], shape[-1] + 3, salt=salt)[..., 1 : shape[-1] + 1]
    if layout == "expanded" and rank >= 1:
        return inputs.randn(*shape[1:], salt=salt).expand(*shape)
    if layout == "channels last" and rank >= 3:
        return inputs.randn(shape[0], *shape[2:], shape[1], salt=salt).movedim(-1, 1)
    return inputs.randn(*shape, salt=salt)


@st.composite
def shapes(draw: Draw, least_rank: int = 0, multiple: int = 1) -> Shape:
    rank = draw(st.integers(least_rank, 4))
    sizes = [draw(st.sampled_from((0, 1, 2, 3, 5, 8, 13))) for _ in range(rank)]
    if rank:
        sizes[-1] = draw(st.sampled_from((1, 2, 7, 8, 16, 31, 64, 96, 257)))
        sizes[-1] = -(-sizes[-1] // multiple) * multiple
    return tuple(sizes)


@st.composite
def calls(draw: Draw, op: Op) -> tuple[str, tuple[Any, ...], str]:
    """A dtype, the arguments of a valid call, and a label that describes them."""
    dtype = draw(st.sampled_from(op.dtypes))
    inputs = Inputs(DTYPES[dtype], DEVICE, draw(st.integers(0, 99)))
    described: list[str] = [dtype]

    names = op.argument_names
    layouts = (*LAYOUTS, "channels last") if "groups" in names else LAYOUTS

    def tensor(shape: Shape, salt: int) -> Tensor:
        layout = draw(st.sampled_from(layouts))
        described.append(f"{layout} {shape}")
        return lay_out(layout, shape, inputs, salt)

    one_input_gate = "up" in names and draw(st.booleans())
    halves = op.name.startswith("glu")
    needs_row = one_input_gate or halves or not {"bias", "weight"}.isdisjoint(names)
    least_rank = 2 if "groups" in names else int(needs_row)
    shape = draw(shapes(least_rank, 2 if one_input_gate else 1))
    rank = max(len(shape), 1)
    dim = draw(st.integers(-rank, rank - 1)) if "dim" in names else 0
    half = shape
    if one_input_gate:
        half = (*shape[:-1], shape[-1] // 2)
    if halves:
        shape = tuple(2 * n if d == dim % rank else n for d, n in enumerate(half))
    other = shape
    columns = shape[1:2] if "groups" in names else shape[-1:]
    if op.name == "dot":
        shape = other = (draw(st.sampled_from((0, 1, 2, 7, 31, 64, 257, 1000))),)
    elif names == ("x", "y"):
        shape, other = draw(st.sampled_from(broadcasts(shape)))
    tensors: dict[str, Callable[[], Any]] = {
        "x": lambda: tensor(shape, 1),
        "y": lambda: tensor(other, 2),
        "up": lambda: None if one_input_gate else tensor(shape, 2),
        "bias": lambda: tensor(columns, 3),
        "weight": lambda: tensor(columns, 3) if draw(st.booleans()) else None,
        "grad": lambda: tensor(half, 4),
        "residual": lambda: tensor(shape, 5) if draw(st.booleans()) else None,
        "h": lambda: tensor(shape, 6),
        "grad_h": lambda: tensor(shape, 7) if draw(st.booleans()) else None,
        "zero_centered": lambda: draw(st.booleans()),
        "separate_x": lambda: draw(st.booleans()),
        "groups": lambda: draw(st.sampled_from(divisors(shape[1]))),
        "activation": lambda: draw(st.sampled_from(("none", "silu", "mish"))),
    }
    drawn = {name: tensors[name]() for name in names if name in tensors}
    defaults = dict(zip(names, dispatch.normalise(op, ()), strict=True))
    if "dim" in names:
        drawn["dim"] = dim
        described.append(f"dim {dim}")
    options = {"correction": st.integers(0, 2), "p": st.sampled_from((0.0, 0.3, 1.0))}
    options |= dict.fromkeys(("seed", "offset"), st.integers(-(2**63), 2**63 - 1))
    options |= dict.fromkeys(("keepdim", "reverse", "batch_invariant"), st.booleans())
    for name in [name for name in names if name in options]:
        drawn[name] = draw(options[name])
        described.append(f"{name} {drawn[name]}")
    floats = {"eps": 1e-6}
    args = tuple(drawn[n] if n in drawn else defaults[n] or floats.get(n, 1.0) for n in names)
    return dtype, args, ", ".join(described)


@st.composite
def products(draw: Draw, op: Op) -> tuple[str, tuple[Any, ...], str]:
    """The same for a[..., m, k] b[..., k, n], whatever an operator calls them."""
    dtype = draw(st.sampled_from(op.dtypes))
    inputs = Inputs(DTYPES[dtype], DEVICE, draw(st.integers(0, 99)))
    described: list[str] = [dtype]

    def tensor(salt: int, *shape: int) -> Tensor:
        layout = draw(st.sampled_from(LAYOUTS))
        described.append(f"{layout} {shape}")
        return lay_out(layout, shape, inputs, salt)

    size, scale = st.sampled_from((1, 2, 3, 8, 16, 31, 64, 129)), st.sampled_from((0.0, 1.0, -0.5))
    m, n, k = draw(st.tuples(size, size, size))
    if op.name == "linear":
        batch = draw(st.sampled_from(((), (m,), (2, m), (0, m))))
        bias = tensor(3, n) if draw(st.booleans()) else None
        activation = draw(st.sampled_from(("none", "relu", "gelu", "gelu_tanh", "silu")))
        described.append(activation)
        return (
            dtype,
            (tensor(1, *batch, k), tensor(2, n, k), bias, activation),
            ", ".join(described),
        )
    if op.name.startswith("gemv"):
        columns = draw(st.sampled_from(((), (1,), (2,), (3,), (16,))))
        pair = (2,) if op.name == "gemv_complex" else ()
        a = tensor(1, m, k, *pair)
        if op.name == "gemv_scaled":
            inputs = Inputs(draw(st.sampled_from(COMPUTED)), DEVICE, inputs.seed)
        x = tensor(2, *columns, k, *pair)
        factors = (scales(inputs, draw(st.sampled_from((m, 1)))),)
        return dtype, (a, x, *factors[: len(op.argument_names) - 2]), ", ".join(described)
    if op.name == "scaled_matmul":
        out = draw(st.sampled_from(("f16", "bf16")))
        described.append(out)
        factors = (scales(inputs, m), scales(inputs, n, salt=3))
        return dtype, (tensor(1, m, k), tensor(2, k, n), *factors, out), ", ".join(described)
    if op.name == "addmm":
        c = tensor(3, *draw(st.sampled_from(((m, n), (1, n), (m, 1), (n,), ()))))
        beta, alpha = draw(st.tuples(scale, scale))
        described.append(f"beta {beta}, alpha {alpha}")
        return dtype, (c, tensor(1, m, k), tensor(2, k, n), beta, alpha), ", ".join(described)
    batches = (((), ()), ((3,), ()), ((), (3,)), ((2, 1), (3,)), ((3,), (3,)), ((0,), ()))
    left, right = draw(st.sampled_from(batches))
    a, b = tensor(1, *left, m, k), tensor(2, *right, k, n)
    return dtype, (a, b), ", ".join(described)


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0] or [1]


def broadcasts(shape: Shape) -> list[tuple[Shape, Shape]]:
    """Pairs of shapes that broadcast to `shape`."""
    pairs = [(shape, shape), (shape, ()), ((), shape)]
    for i in range(len(shape)):
        flat = (*shape[:i], 1, *shape[i + 1 :])
        pairs += [(shape, shape[i:]), (shape[i:], shape), (shape, flat), (flat, shape)]
        pairs.append((flat, shape[i:]) if i else (shape, flat))
    return [pair for pair in pairs if torch.broadcast_shapes(*pair) == torch.Size(shape)]


def known_arguments(op: Op) -> bool:
    known = {"x", "y", "up", "bias", "weight", "grad", "eps", "alpha", "lambd", "dim"}
    known |= {"residual", "h", "grad_h", "zero_centered", "separate_x"}
    known |= {"keepdim", "correction", "reverse", "batch_invariant", "groups", "activation"}
    known |= {"p", "seed", "offset"}
    return set(op.argument_names) <= known


@pytest.mark.parametrize(
    "op", [op for op in OPS if op.name in PRODUCTS or known_arguments(op)], ids=str
)
def test_random_calls(op: Op) -> None:
    run = Run(op, torch.device(DEVICE), frozenset(), op.dtypes, [])

    @SETTINGS
    @given(products(op) if op.name in PRODUCTS else calls(op))
    def check(call: tuple[str, tuple[Any, ...], str]) -> None:
        dtype, args, label = call
        try:
            op.check(*args)
        except (IndexError, RuntimeError):
            hypothesis.assume(False)  # a call that no implementation may take
        expected = testing.Expected.of(op, args)
        for name, function, variant in implementations(run, dtype, args):
            if variant is not None and not GPU:
                continue
            with testing.unchanged(args), testing.poison(), torch.no_grad():
                out = function(*args)
            testing.assert_matches(
                op, out, args, f"{name}: {label}", variant=variant, expected=expected
            )

    check()
