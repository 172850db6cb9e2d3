"""The inputs on which elementwise operators are tested and timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import FLOATS, Bad, Cost, Inputs, Sample, is_fp8

Make = Callable[[Inputs], tuple[Any, ...]]
#: Makes one tensor; the salt tells the operands of a call apart.
Operand = Callable[[Inputs, int], Tensor]

SHAPES: tuple[tuple[int, ...], ...] = (
    (),
    (1,),
    (0,),
    (3, 0, 5),
    (7,),
    (63,),
    (1000,),
    (4099,),
    (33, 65),
    (2, 3, 5, 7),
)
#: More than one block of every kernel, with a tail.
LARGE = 65536 * 8 + 3
#: More elements than a 32-bit index can count.
HUGE = 2**31 + 1024
HUGE_DTYPES = ("f16", "e4m3")

ROWS = {"16Mi": 4096, "64Mi": 16384, "256Mi": 65536}
COLS = 4096


def text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "0-d"


def _shaped(*shape: int) -> Operand:
    return lambda inputs, salt: inputs.randn(*shape, salt=salt)


#: Layouts other than contiguous. Two operands of one layout agree in their strides.
VIEWS: dict[str, Operand] = {
    "misaligned 1000": lambda inputs, salt: inputs.misaligned(1000, salt=salt),
    "misaligned 33x64": lambda inputs, salt: inputs.misaligned(33, 64, salt=salt),
    "transposed 65x33": lambda inputs, salt: inputs.randn(33, 65, salt=salt).t(),
    "every other column": lambda inputs, salt: inputs.randn(40, 68, salt=salt)[:, ::2],
    "gapped transposed": lambda inputs, salt: inputs.randn(66, 40, salt=salt).t()[:, ::2],
    "left columns": lambda inputs, salt: inputs.randn(40, 96, salt=salt)[:, :64],
    "ragged columns": lambda inputs, salt: inputs.randn(40, 67, salt=salt)[:, :33],
    "expanded rows": lambda inputs, salt: inputs.randn(64, salt=salt).expand(9, 64),
    "expanded columns": lambda inputs, salt: inputs.randn(9, 1, salt=salt).expand(9, 64),
    "channels last": lambda inputs, salt: inputs.randn(2, 4, 5, 6, salt=salt).to(
        memory_format=torch.channels_last
    ),
    "six gapped dimensions": lambda inputs, salt: inputs.randn(3, 4, 3, 4, 3, 4, salt=salt)[
        :, ::2, :, ::2, :, ::2
    ],
}


def special_values(inputs: Inputs) -> Tensor:
    """Zeros, infinities, NaN, the ends of the format, its subnormals, and where formulas break; of
    fp8 every number there is.
    """
    if is_fp8(inputs.dtype):
        return torch.arange(256, dtype=torch.uint8).view(inputs.dtype).to(inputs.device)
    info = torch.finfo(inputs.dtype)
    step = info.tiny * info.eps
    values = [0.0, float("inf"), info.max, 4.1, 11.2, 100.0, 88.5, 3.0, 0.5, 1.0, 20.5]
    values += [info.tiny, info.tiny / 2, step, info.eps]
    x = torch.tensor([float("nan"), *values, *(-v for v in values)], dtype=torch.float64)
    return x.to(inputs.dtype).to(inputs.device)


def _even(inputs: Inputs, like: Tensor, low: float, high: float) -> Tensor:
    x = torch.linspace(low, high, like.numel(), dtype=torch.float32, device=inputs.device)
    return x.to(inputs.dtype)


def _with_parameter(operands: int, p: float) -> Make:
    return lambda inputs: (*(inputs.randn(1000, salt=i) for i in range(operands)), p)


def unary(parameters: tuple[float, ...] = ()) -> tuple[Sample, ...]:
    """x, at the default parameter; `parameters` are tried on one sample each."""

    def operand(make: Operand) -> Make:
        return lambda inputs: (make(inputs, 0),)

    return (
        *(Sample(text(shape), operand(_shaped(*shape))) for shape in SHAPES),
        *(Sample(label, operand(make)) for label, make in VIEWS.items()),
        Sample("special values", lambda inputs: (special_values(inputs),)),
        *(Sample(f"parameter {p:g}", _with_parameter(1, p)) for p in parameters),
        Sample("large", operand(_shaped(LARGE)), small=False),
    )


def unary_backward(parameters: tuple[float, ...] = ()) -> tuple[Sample, ...]:
    """grad, x; layouts that agree and layouts that do not."""

    def both(make: Operand) -> Make:
        return lambda inputs: (make(inputs, 1), make(inputs, 0))

    def special_x(inputs: Inputs) -> tuple[Tensor, Tensor]:
        x = special_values(inputs)
        return _even(inputs, x, 0.5, 2.0), x

    def special_grad(inputs: Inputs) -> tuple[Tensor, Tensor]:
        grad = special_values(inputs)
        return grad, _even(inputs, grad, -3.0, 3.0)

    def dense_x(inputs: Inputs) -> tuple[Tensor, Tensor]:
        grad = inputs.randn(4001, salt=1)
        return grad, _even(inputs, grad, -3.0, 0.0)

    return (
        *(Sample(text(shape), both(_shaped(*shape))) for shape in SHAPES),
        *(Sample(label, both(make)) for label, make in VIEWS.items()),
        Sample(
            "expanded grad",
            lambda inputs: (inputs.randn(1, salt=1).expand(33, 64), inputs.randn(33, 64)),
        ),
        Sample(
            "transposed grad",
            lambda inputs: (inputs.randn(65, 33, salt=1).t(), inputs.randn(33, 65)),
        ),
        Sample("special x", special_x),
        Sample("special grad", special_grad),
        Sample("where slopes cancel", dense_x),
        *(Sample(f"parameter {p:g}", _with_parameter(2, p)) for p in parameters),
        Sample("large", both(_shaped(LARGE)), small=False),
    )


def _pair(first: tuple[int, ...], second: tuple[int, ...]) -> Make:
    return lambda inputs: (inputs.randn(*first), inputs.randn(*second, salt=1))


def binary() -> tuple[Sample, ...]:
    """x, y of one shape, of shapes that broadcast, and in layouts that differ."""
    broadcast = (
        ((4, 1, 5), (3, 1)),
        ((2, 2), (2,)),
        ((33, 64), (64,)),
        ((33, 65), (65,)),
        ((64,), (33, 64)),
        ((33, 64), (33, 1)),
        ((33, 64), ()),
        ((), (33, 64)),
        ((5, 1, 7), (1, 6, 7)),
        ((3, 0, 5), (5,)),
        ((8, 1, 3, 1, 4), (2, 1, 5, 1)),
    )

    def both(make: Operand) -> Make:
        return lambda inputs: (make(inputs, 0), make(inputs, 1))

    def special(inputs: Inputs) -> tuple[Tensor, Tensor]:
        x = special_values(inputs)
        return x[:, None], x

    return (
        *(Sample(text(shape), both(_shaped(*shape))) for shape in SHAPES),
        *(Sample(f"{text(a)} with {text(b)}", _pair(a, b)) for a, b in broadcast),
        *(Sample(label, both(make)) for label, make in VIEWS.items()),
        Sample(
            "contiguous with transposed",
            lambda inputs: (inputs.randn(33, 65), inputs.randn(65, 33, salt=1).t()),
        ),
        Sample(
            "aligned with misaligned",
            lambda inputs: (inputs.randn(1000), inputs.misaligned(1000, salt=1)),
        ),
        Sample("special values, each with each", special),
        Sample("large", both(_shaped(LARGE)), small=False),
    )


def ternary() -> tuple[Sample, ...]:
    """x, y, z of one shape, of shapes that broadcast, and in layouts that differ."""
    broadcast: tuple[tuple[tuple[int, ...], ...], ...] = (
        ((4, 1, 5), (3, 1), (2, 1, 1, 1)),
        ((2, 2), (2,), (2, 1)),
        ((33, 64), (64,), (33, 1)),
        ((33, 65), (65,), (65,)),
        ((64,), (33, 1), (33, 64)),
        ((33, 64), (), ()),
        ((), (), (33, 64)),
        ((3, 0, 5), (5,), (1, 1)),
    )

    def three(make: Operand) -> Make:
        return lambda inputs: tuple(make(inputs, salt) for salt in range(3))

    def shaped(shapes: tuple[tuple[int, ...], ...]) -> Make:
        return lambda inputs: tuple(inputs.randn(*s, salt=i) for i, s in enumerate(shapes))

    def special(inputs: Inputs) -> tuple[Tensor, ...]:
        x = special_values(inputs)
        return x[:, None], x, _even(inputs, x, -2.0, 1.5)

    return (
        *(Sample(text(shape), three(_shaped(*shape))) for shape in SHAPES),
        *(Sample(" with ".join(map(text, shapes)), shaped(shapes)) for shapes in broadcast),
        *(Sample(label, three(make)) for label, make in VIEWS.items()),
        Sample(
            "contiguous with transposed",
            lambda i: (i.randn(33, 65), i.randn(65, 33, salt=1).t(), i.randn(33, 65, salt=2)),
        ),
        Sample(
            "aligned with misaligned",
            lambda i: (i.randn(1000), i.randn(1000, salt=1), i.misaligned(1000, salt=2)),
        ),
        Sample("special values, each with each", special),
        Sample("large", three(_shaped(LARGE)), small=False),
    )


def _bias_shapes() -> tuple[tuple[int, ...], ...]:
    return ((2, 2), *(shape for shape in SHAPES if shape))


def _with_bias(make: Operand) -> Make:
    def operands(inputs: Inputs) -> tuple[Tensor, Tensor]:
        x = make(inputs, 0)
        return x, inputs.randn(x.shape[-1], salt=2)

    return operands


def bias() -> tuple[Sample, ...]:
    """x, bias."""

    def special(inputs: Inputs) -> tuple[Tensor, Tensor]:
        x = special_values(inputs)
        return x[:, None].expand(-1, 8), inputs.randn(8, scale=0.1, salt=2)

    return (
        *(Sample(text(shape), _with_bias(_shaped(*shape))) for shape in _bias_shapes()),
        *(Sample(label, _with_bias(make)) for label, make in VIEWS.items()),
        Sample("gapped bias", lambda i: (i.randn(33, 64), i.randn(128, salt=2)[::2])),
        Sample("misaligned bias", lambda i: (i.randn(33, 64), i.misaligned(64, salt=2))),
        Sample("special x", special),
        Sample("large", _with_bias(_shaped(129, 4099)), small=False),
    )


def bias_backward() -> tuple[Sample, ...]:
    """grad, x, bias."""

    def three(make: Operand) -> Make:
        return lambda inputs: (make(inputs, 1), *_with_bias(make)(inputs))

    def special(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
        x = special_values(inputs)
        grad = _even(inputs, x, 0.5, 2.0)
        return grad[:, None].expand(-1, 8), x[:, None].expand(-1, 8), inputs.plain(8, scale=0.1)

    return (
        *(Sample(text(shape), three(_shaped(*shape))) for shape in _bias_shapes()),
        *(Sample(label, three(make)) for label, make in VIEWS.items()),
        Sample("special x", special),
        Sample("large", three(_shaped(129, 4099)), small=False),
    )


#: Shapes of one input that holds gate and up side by side.
FUSED_SHAPES: tuple[tuple[int, ...], ...] = (
    (2,),
    (0,),
    (3, 0),
    (0, 6),
    (14,),
    (1000,),
    (33, 64),
    (33, 130),
    (2, 3, 5, 14),
)

_FUSED_VIEWS = (
    "misaligned 33x64",
    "every other column",
    "left columns",
    "expanded rows",
    "channels last",
    "six gapped dimensions",
)


def _transposed_pair(inputs: Inputs, salt: int) -> Tensor:
    return inputs.randn(66, 33, salt=salt).t()


def gated() -> tuple[Sample, ...]:
    """x, up; or x alone, which holds both."""

    def both(make: Operand) -> Make:
        return lambda inputs: (make(inputs, 0), make(inputs, 1))

    def one(make: Operand) -> Make:
        return lambda inputs: (make(inputs, 0),)

    def special(inputs: Inputs) -> tuple[Tensor, Tensor]:
        x = special_values(inputs)
        return x, _even(inputs, x, -2.0, 1.5)

    def halves_of_one(inputs: Inputs) -> tuple[Tensor, Tensor]:
        x = inputs.randn(33, 128)
        return x[:, :64], x[:, 64:]

    return (
        *(Sample(text(shape), both(_shaped(*shape))) for shape in SHAPES),
        *(Sample(label, both(make)) for label, make in VIEWS.items()),
        *(Sample(f"fused {text(shape)}", one(_shaped(*shape))) for shape in FUSED_SHAPES),
        *(Sample(f"fused {label}", one(VIEWS[label])) for label in _FUSED_VIEWS),
        Sample("fused transposed", one(_transposed_pair)),
        Sample("fused pair, stepped", lambda i: (i.randn(4)[::2],)),
        Sample("halves of one", halves_of_one),
        Sample("special gate", special),
        Sample("large", both(_shaped(LARGE)), small=False),
        Sample("fused large", one(_shaped(65, 8200)), small=False),
    )


def gated_backward() -> tuple[Sample, ...]:
    """grad, x, up; or grad, x."""

    def three(make: Operand) -> Make:
        return lambda inputs: (make(inputs, 2), make(inputs, 0), make(inputs, 1))

    def two(make: Operand) -> Make:
        def operands(inputs: Inputs) -> tuple[Tensor, Tensor]:
            x = make(inputs, 0)
            return inputs.randn(*x.shape[:-1], x.shape[-1] // 2, salt=2), x

        return operands

    def special(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
        x = special_values(inputs)
        return _even(inputs, x, 0.5, 2.0), x, _even(inputs, x, -2.0, 1.5)

    return (
        *(Sample(text(shape), three(_shaped(*shape))) for shape in SHAPES),
        *(Sample(label, three(make)) for label, make in VIEWS.items()),
        *(Sample(f"fused {text(shape)}", two(_shaped(*shape))) for shape in FUSED_SHAPES),
        *(Sample(f"fused {label}", two(VIEWS[label])) for label in _FUSED_VIEWS),
        Sample("fused transposed", two(_transposed_pair)),
        Sample("fused pair, stepped", lambda i: (i.randn(1, salt=2), i.randn(4)[::2])),
        Sample("special gate", special),
        Sample("large", three(_shaped(LARGE)), small=False),
        Sample("fused large", two(_shaped(65, 8200)), small=False),
    )


def huge(operands: int) -> Sample:
    """More elements than 32 bits can index, from a repeated pattern."""

    def make(inputs: Inputs) -> tuple[Tensor, ...]:
        pattern = 1 << 20
        return tuple(
            inputs.randn(pattern, salt=salt).repeat(HUGE // pattern + 1)[:HUGE]
            for salt in range(operands)
        )

    return Sample("huge", make, small=False, huge=True, dtypes=HUGE_DTYPES)


# --- wrong calls ----------------------------------------------------------------------------------


def _aligned_f32(inputs: Inputs, *shape: int) -> Tensor:
    return torch.ones(shape, device=inputs.device)


def _misaligned_f32(inputs: Inputs, n: int) -> Tensor:
    return torch.ones(n + 1, device=inputs.device)[1:]


def wrong_dtypes(op: str, operands: int) -> Iterator[Bad]:
    """Integers, booleans and complex numbers in every operand."""
    for dtype in (torch.int32, torch.bool, torch.complex64):
        name = str(dtype).removeprefix("torch.")

        def make(inputs: Inputs, dtype: torch.dtype = dtype) -> tuple[Tensor, ...]:
            return tuple(torch.ones(8, dtype=dtype, device=inputs.device) for _ in range(operands))

        yield Bad(
            f"{name} x",
            make,
            rf"{op}: expected x to be a floating-point tensor, got .*{name}",
        )


def mismatches(op: str, position: int, name: str, operands: int) -> Iterator[Bad]:
    """One operand of another dtype or on another device than x."""

    def other_dtype(inputs: Inputs) -> tuple[Tensor, ...]:
        tensors = [_aligned_f32(inputs, 8) for _ in range(operands)]
        tensors[position] = tensors[position].half()
        return tuple(tensors)

    def other_device(inputs: Inputs) -> tuple[Tensor, ...]:
        tensors = [_aligned_f32(inputs, 8) for _ in range(operands)]
        tensors[position] = tensors[position].cpu()
        return tuple(tensors)

    yield Bad(
        f"{name} of another dtype",
        other_dtype,
        rf"{op}: expected {name} to have dtype torch\.float32 like x, got torch\.float16",
    )
    yield Bad(
        f"{name} on another device",
        other_device,
        rf"{op}: expected {name} to be on cuda:\d+ like x, got cpu",
        cuda_only=True,
    )


def other_shape(op: str, position: int, name: str, operands: int) -> Bad:
    def make(inputs: Inputs) -> tuple[Tensor, ...]:
        tensors = [_aligned_f32(inputs, 8) for _ in range(operands)]
        tensors[position] = _aligned_f32(inputs, 2, 4)
        return tuple(tensors)

    return Bad(
        f"{name} of another shape",
        make,
        rf"{op}: expected {name} to have shape \(8,\) like x, got \(2, 4\)",
    )


def refusals(op: str, operands: int) -> tuple[Bad, ...]:
    """Variants that must say no to layouts they cannot take."""

    def misaligned(inputs: Inputs) -> tuple[Tensor, ...]:
        return tuple(_misaligned_f32(inputs, 64) for _ in range(operands))

    def gapped(inputs: Inputs) -> tuple[Tensor, ...]:
        return tuple(_aligned_f32(inputs, 64)[::2] for _ in range(operands))

    def other_dtype(inputs: Inputs) -> tuple[Tensor, ...]:
        return tuple(_aligned_f32(inputs, 64).half() for _ in range(operands))

    return (
        Bad(
            "a pack across a boundary",
            misaligned,
            rf"{op}.*needs data aligned to 16 bytes",
            variant="f32x4_pack_stream",
        ),
        Bad("rows with gaps", gapped, rf"{op}.*needs unit-stride rows", variant="f32x4"),
        Bad("f16 to an f32 variant", other_dtype, rf"{op}.*takes f32, got f16", variant="f32x4"),
    )


# --- benchmarks -----------------------------------------------------------------------------------


def _fp8_once(cases: Iterable[Sample]) -> tuple[Sample, ...]:
    """The same cases, of which fp8 has the middle size only."""
    return tuple(c if c.label == "64Mi" else replace(c, dtypes=FLOATS) for c in cases)


def bench(operands: int, *, fused: bool = False, fp8_sizes: bool = False) -> tuple[Sample, ...]:
    """`operands` tensors [rows, 4096] of 16, 64 and 256 Mi elements; `fused` makes one of the last
    two. In fp8 64 Mi alone, or with `fp8_sizes` all of them.
    """

    def make(rows: int, fuse: bool) -> Make:
        def tensors(inputs: Inputs) -> tuple[Tensor, ...]:
            count = operands - 2 if fuse else operands
            flat = tuple(inputs.plain(rows, COLS, salt=i) for i in range(count))
            return (*flat, inputs.plain(rows, 2 * COLS, salt=count)) if fuse else flat

        return tensors

    cases = tuple(Sample(label, make(rows, False), small=False) for label, rows in ROWS.items())
    if fused:
        cases += (Sample("64Mi fused", make(ROWS["64Mi"], True), small=False),)
    return cases if fp8_sizes else _fp8_once(cases)


def bench_bias(operands: int) -> tuple[Sample, ...]:
    """Tensors [rows, 4096], and a bias [4096]; in fp8 64 Mi elements alone."""

    def make(rows: int) -> Make:
        return lambda inputs: (
            *(inputs.plain(rows, COLS, salt=i) for i in range(operands)),
            inputs.plain(COLS, salt=operands),
        )

    return _fp8_once(Sample(label, make(rows), small=False) for label, rows in ROWS.items())


def _bytes(*tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))


#: Every input read once, outputs as large as the named inputs written once.
UNARY_COST = Cost(lambda x, *p: 2 * _bytes(x))
BACKWARD_COST = Cost(lambda grad, x, *rest: 2 * _bytes(x) + _bytes(grad, *rest))
BROADCAST_COST = Cost(
    lambda x, *others: (
        _bytes(x, *others)
        + torch.broadcast_shapes(x.shape, *(y.shape for y in others)).numel() * x.element_size()
    )
)
GATED_COST = Cost(
    lambda x, up=None: 3 * _bytes(x) // 2 if up is None else 2 * _bytes(x) + _bytes(up)
)
GATED_BACKWARD_COST = Cost(lambda grad, x, up=None: _bytes(grad) + 2 * _bytes(x, up))
