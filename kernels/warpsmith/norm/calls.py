"""What the calls are made of on which the row-wise normalisations are tested and measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Inputs, Sample
from warpsmith.norm.norms import Norm
from warpsmith.spec.spoilt import Value, values

HALVES = ("f16", "bf16")
#: One row more than 2^31 elements.
PAST_2_31 = ((1 << 21) + 1, 1024)
BENCH_SHAPES = (
    (262144, 256), (65536, 1024), (32768, 4096), (16384, 8192), (8192, 32768), (2048, 131072),
    (512, 262144),
    (777, 50257),  # rows that begin anywhere
)  # fmt: skip

Rows = Callable[[Inputs], Tensor]

# --- rows -----------------------------------------------------------------------------------------


def rows(*shape: int, salt: int = 0) -> Rows:
    return lambda i: i.randn(*shape, salt=salt)


def plain(*shape: int, scale: float = 1.0, salt: int = 0) -> Rows:
    """Without outliers."""
    return lambda i: i.plain(*shape, scale=scale, salt=salt)


def far_apart(inputs: Inputs, salt: int = 0) -> Tensor:
    """[257, 1024], of which the last row begins past 2^31 elements."""
    return inputs.plain(257, (1 << 23) + 8, salt=salt)[:, :1024]


def outliers(rows: int, cols: int) -> Rows:
    """Normal rows but for one value each, of magnitude 5000 and of a place of its own."""

    def make(inputs: Inputs) -> Tensor:
        x = inputs.plain(rows, cols)
        for row in range(rows):
            x[row, (row + 1) * cols // (rows + 1)] = 5e3 * (-1) ** row
        return x

    return make


def special(inputs: Inputs) -> Tensor:
    """Rows with NaN, infinities and zeros."""
    x = inputs.randn(5, 64)
    x[0, 3] = float("nan")
    x[1, 5] = float("inf")
    x[2, 7], x[2, 8] = float("-inf"), float("inf")
    x[3] = 0.0
    return x


def constant(rows: int, cols: int) -> Rows:
    """Rows of one value each, with more digits than a sum over them keeps."""

    def make(inputs: Inputs) -> Tensor:
        found = torch.tensor([0.0, 1.1, -333.3, 9999.9, 1e-3], device=inputs.device)
        return found[:rows, None].to(inputs.dtype).expand(rows, cols).contiguous()

    return make


def half_constant(inputs: Inputs) -> Tensor:
    """The first half of a row lies far from the other: parts of it have means of their own."""
    x = inputs.plain(4, 2048)
    x[:, :1024] = 200.0
    return x


def near_largest(inputs: Inputs, cols: int = 1024) -> Tensor:
    """Rows of one value each, of which two or more add up to infinity. Their mean is exact."""
    found = torch.tensor([2.0**127, -1.5 * 2.0**126, 2.0**120], device=inputs.device)
    return found[:, None].to(inputs.dtype).expand(3, cols).contiguous()


#: In every layout that memory may have.
LAYOUTS: Mapping[str, Rows] = {
    "1-d": rows(768),
    "3-d": rows(2, 5, 128),
    "4-d": rows(2, 3, 4, 72),
    "no rows": rows(0, 16),
    "no columns": rows(4, 0),
    "row stride": lambda i: i.randn(9, 320)[:, :256],
    "odd row stride": lambda i: i.randn(9, 259)[:, :256],
    "expanded rows": lambda i: i.randn(1, 64).expand(6, 64),
    "transposed": lambda i: i.randn(64, 24).t(),
    "middle transposed": lambda i: i.randn(3, 4, 5, 32).transpose(1, 2),
    "misaligned": lambda i: i.misaligned(5, 256),
}

# --- samples --------------------------------------------------------------------------------------


class Sampler:
    """Makes samples of a norm.

    Args:
        norm: which one.
        call: `call(norm, i, *rows, **changes)`: the arguments of a call of these rows by name.
    """

    def __init__(self, norm: Norm, call: Callable[..., dict[str, Any]]) -> None:
        self.norm, self.call = norm, call

    def __call__(
        self,
        label: str,
        rows: Rows | tuple[Rows | None, ...],
        small: bool = True,
        dtypes: tuple[str, ...] | None = None,
        wide: str = "",
        huge: bool = False,
        **changes: Value,
    ) -> Sample:
        """`wide` names what is in f32: "weight", of the bias too, "residual"."""

        def make(i: Inputs) -> dict[str, Any]:
            made: list[Any] = [x and x(i) for x in (rows if isinstance(rows, tuple) else (rows,))]
            if "residual" in wide:
                made[1] = made[1].float() + 2.0**-12
            given = self.call(self.norm, i, *made, **values(changes, i))
            for name in self.norm.affine if "weight" in wide else ():
                given[name] = given[name] if given[name] is None else given[name].float()
            return given

        return Sample(label, make, small=small, huge=huge, dtypes=dtypes)

    def grid(
        self, shapes: Sequence[tuple[int, int]], rows: Any, small: bool, huge: bool = False
    ) -> list[Sample]:
        return [self(f"{m}x{n}", rows(m, n), small, huge=huge) for m, n in shapes]

    def past_2_31(self, label: str, rows: Rows | tuple[Rows, ...]) -> Sample:
        return self(label, rows, small=False, huge=True, dtypes=("f16",))


def backwards(sample: Sample, make: Callable[[Inputs, dict[str, Any]], dict[str, Any]]) -> Sample:
    """The same call, backwards: `make(i, arguments)` of the gradient from those of the sample."""
    return Sample(
        sample.label, lambda i: make(i, sample.make(i)), sample.small, sample.huge, sample.dtypes
    )


def benchmarks(
    make: Callable[[Inputs, int, int], dict[str, Any]],
    shapes: Sequence[tuple[int, int]] = BENCH_SHAPES,
) -> tuple[Sample, ...]:
    """`make(i, rows, cols)` of every shape."""

    def case(m: int, n: int) -> Sample:
        return Sample(f"{m}x{n}", lambda i: make(i, m, n), small=False)

    return tuple(case(*shape) for shape in shapes)


# --- properties -----------------------------------------------------------------------------------


def same_twice(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    pairs = zip(function(*args), function(*args), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs), "two calls differ"


def repeatable_gradients(
    arguments: Callable[[Inputs, Tensor, Tensor], tuple[Any, ...]],
) -> Callable[[Callable[..., Any], Inputs], None]:
    """Every gradient, those of weight and bias included, is the same bit for bit in every run.

    Args:
        arguments: those of the operator, given a gradient and rows like it.
    """

    def check(function: Callable[..., Any], inputs: Inputs) -> None:
        # many rows, odd rows and long ones, whose sums are added up in three different ways
        for shape in ((1031, 264), (129, 129), (40, 8200)):
            grad, x = inputs.plain(*shape, salt=2), inputs.plain(*shape)
            same_twice(function, arguments(inputs, grad, x))

    return check
