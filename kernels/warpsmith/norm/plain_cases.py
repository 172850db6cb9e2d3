"""Calls on which rms_norm, layer_norm and their gradients are tested and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Property, Sample
from warpsmith.norm.calls import (
    HALVES,
    LAYOUTS,
    PAST_2_31,
    Rows,
    Sampler,
    backwards,
    benchmarks,
    constant,
    far_apart,
    half_constant,
    near_largest,
    outliers,
    plain,
    repeatable_gradients,
    rows,
    special,
)
from warpsmith.norm.norms import Norm
from warpsmith.spec.spoilt import Spoiler, Value

# --- calls ----------------------------------------------------------------------------------------


def call(norm: Norm, i: Inputs, x: Tensor, **changes: Any) -> dict[str, Any]:
    """`x` with a weight and a bias."""
    cols = x.shape[-1]
    given = {"weight": i.randn(cols, salt=1), "bias": i.randn(cols, salt=3), "eps": norm.eps}
    return norm.given(x=x, **given | changes)


def gentle(norm: Norm, i: Inputs, x: Tensor, **changes: Any) -> dict[str, Any]:
    """With a weight around 1 and a small bias: from the output, xhat comes with the digits of x."""
    cols = x.shape[-1]
    affine = {
        "weight": i.plain(cols, scale=0.1, salt=1) + 1,
        "bias": i.plain(cols, scale=0.1, salt=3),
    }
    return call(norm, i, x, **affine | changes)


_SMALL = tuple(
    ((1, 3, 199)[k % 3], n)
    for k, n in enumerate((1, 2, 3, 7, 63, 64, 255, 256, 1000, 1023, 1024, 4096))
)
_LARGE = (
    (199, 63), (199, 512), (1030, 96), (2500, 1024), (37, 1128), (5, 8192), (3, 12345), (3, 16384),
    (3, 20000), (3, 32768), (5, 65536), (2, 131072), (3, 262144), (2, 300001),
)  # fmt: skip


def samples(norm: Norm) -> tuple[Sample, ...]:
    sample = Sampler(norm, call)
    both = " and ".join(norm.affine)
    none: dict[str, Any] = dict.fromkeys(norm.affine)
    return (
        *sample.grid(_SMALL, rows, small=True),
        *sample.grid(_LARGE, rows, small=False),
        *(sample(label, x) for label, x in LAYOUTS.items()),
        *(_of_layer(sample) if norm.layer else _of_rms(sample)),
        sample("no weight, long", rows(3, 40960), small=False, **none),
        sample(f"f32 {both}", rows(5, 1024), dtypes=HALVES, wide="weight"),
        sample(f"f32 {both}, long", rows(3, 65536), False, HALVES, wide="weight"),
        Sample("defaults", lambda i: {"x": i.randn(4, 64)}),
        sample("row stride, long", lambda i: i.randn(3, 70000)[:, :65536], small=False),
        sample("misaligned pairs", lambda i: i.misaligned(5, 64, offset=2), **none),
        sample("misaligned weight", rows(5, 256), weight=lambda i: i.misaligned(256, salt=1)),
        sample(
            f"strided {both}",
            rows(5, 64),
            weight=lambda i: i.randn(128, salt=1)[::2],
            bias=lambda i: i.randn(128, salt=3)[::2],
        ),
        sample("large eps", rows(3, 64), eps=10.0),
        sample("eps 0", rows(3, 64), eps=0.0),
        sample("small values", plain(3, 1000, scale=1e-3)),
        sample("squares beyond f16", plain(3, 1024, scale=1e4)),
        sample("values of 100", plain(5, 1024, scale=100.0)),
        sample("one outlier a row", outliers(5, 1000)),
        sample("one outlier a row, long", outliers(3, 40000), small=False),
        sample("special", special),
        sample.past_2_31("output past 2^31 elements", plain(*PAST_2_31)),
        sample.past_2_31("rows past 2^31 elements", far_apart),
    )


def _of_rms(sample: Sampler) -> list[Sample]:
    return [
        sample("no weight", rows(7, 256), weight=None),
        sample("no weight, odd", rows(7, 129), weight=None),
    ]


def _of_layer(sample: Sampler) -> list[Sample]:
    f32 = ("f32",)
    return [
        sample("no weight, no bias", rows(7, 256), weight=None, bias=None),
        sample("no weight", rows(7, 256), weight=None),
        sample("no bias", rows(7, 256), bias=None),
        sample("no weight, odd", rows(7, 129), weight=None),
        sample("no bias, odd", rows(7, 129), bias=None),
        sample("f32 bias", rows(5, 264), dtypes=HALVES, wide="weight", weight=None),
        sample("f32 weight and bias, many rows", rows(700, 8192), False, HALVES, wide="weight"),
        sample("misaligned bias", rows(5, 256), bias=lambda i: i.misaligned(256, salt=3)),
        sample("mean 1e4", lambda i: i.plain(5, 1000) + 1e4, dtypes=f32),
        sample("mean 1e4, long", lambda i: i.plain(3, 40000) + 1e4, small=False, dtypes=f32),
        sample("constant rows", constant(5, 100)),
        # A mean held in bf16 is off by more than such a row deviates, as the docstring says.
        sample("constant rows, long", constant(3, 20000), small=False, dtypes=("f32", "f16")),
        sample("half constant", half_constant),
        sample("near the largest", near_largest, dtypes=("f32", "bf16")),
        # On a CPU, PyTorch's own sums stay finite at lengths like this one.
        sample("near the largest, 516", lambda i: near_largest(i, 516), dtypes=f32),
    ]


def with_rstd_samples(norm: Norm) -> tuple[Sample, ...]:
    sample = Sampler(norm, gentle)
    both = " and ".join(norm.affine)
    small = (
        (5, 1), (7, 3), (3, 7), (9, 63), (4, 64), (7, 129), (19, 256), (3, 1000), (2, 1023),
        (9, 1024),
    )  # fmt: skip
    large = (
        (199, 512), (20011, 256), (3, 12345), (5, 32768), (2, 131072), (3, 262144), (2, 300001),
        *(() if norm.layer else ((2, 65544), (1, 600000))),
    )  # fmt: skip
    layouts: dict[str, Rows] = {
        "1-d": plain(768),
        "3-d": plain(2, 5, 128),
        "no rows": plain(0, 16),
        "no columns": plain(4, 0),
        "row stride": lambda i: i.plain(9, 320)[:, :256],
        "transposed": lambda i: i.plain(64, 24).t(),
        "misaligned": lambda i: i.misaligned(5, 256),
    }
    wide: Callable[[int], Value] = lambda n: lambda i: i.plain(n, salt=1).float().abs() + 1  # noqa: E731
    if norm.layer:
        particular = [
            sample("no weight, no bias", plain(7, 256), weight=None, bias=None),
            sample("no weight", plain(7, 96), weight=None),
            sample("no bias", plain(7, 96), bias=None),
            sample(f"f32 {both}", plain(5, 264), dtypes=HALVES, wide="weight"),
            sample(f"f32 {both}, short", plain(9, 64), dtypes=HALVES, wide="weight"),
            sample(f"f32 {both}, of two blocks", plain(3, 20000), False, HALVES, wide="weight"),
            sample("mean 1e4", lambda i: i.plain(5, 1000) + 1e4, dtypes=("f32",)),
        ]
    else:
        particular = [
            sample("no weight", plain(7, 256), weight=None),
            sample("f32 weight", plain(5, 264), dtypes=HALVES, weight=wide(264)),
            sample("f32 weight, short", plain(9, 64), dtypes=HALVES, weight=wide(64)),
            sample("f32 weight, of two blocks", plain(3, 20000), False, HALVES, weight=wide(20000)),
            sample("f32 weight, long", plain(3, 131072), False, HALVES, weight=wide(131072)),
        ]
    return (
        *sample.grid(small, plain, small=True),
        *sample.grid(large, plain, small=False),
        *(sample(label, x) for label, x in layouts.items()),
        *particular,
        Sample("defaults", lambda i: {"x": i.plain(4, 64)}),
        sample("values of 100", plain(5, 1024, scale=100.0)),
        sample("one outlier a row", outliers(5, 1000)),
        sample("one outlier a row, long", outliers(3, 40000), small=False),
        sample("special", special),
        sample.past_2_31("output past 2^31 elements", plain(*PAST_2_31)),
        sample.past_2_31("rows past 2^31 elements", far_apart),
    )


def backward_samples(norm: Norm) -> tuple[Sample, ...]:
    """The same calls, backwards, with a gradient like x; and gradients in other layouts."""

    def backward(i: Inputs, given: dict[str, Any]) -> dict[str, Any]:
        given = norm.given(weight=None, bias=None, eps=norm.eps) | given
        return {"grad": i.randn(*given["x"].shape, salt=2), **given}

    def of(label: str, grad: Rows, *shape: int, small: bool = True) -> Sample:
        def make(i: Inputs) -> dict[str, Any]:
            return {"grad": grad(i), **call(norm, i, i.randn(*shape))}

        return Sample(label, make, small=small)

    return (
        *(backwards(s, backward) for s in samples(norm)),
        of("strided gradient", lambda i: i.randn(9, 80, salt=2)[:, :64], 9, 64),
        of("expanded gradient", lambda i: i.randn(64, salt=2).expand(9, 64), 9, 64),
        of("misaligned gradient", lambda i: i.misaligned(5, 64, salt=2), 5, 64),
        of("many rows", rows(20011, 32, salt=2), 20011, 32, small=False),
    )


def bench(norm: Norm, backward: bool = False) -> tuple[Sample, ...]:
    def make(i: Inputs, m: int, n: int) -> dict[str, Any]:
        grad = {"grad": i.plain(m, n, salt=2)} if backward else {}
        affine = {"weight": i.plain(n, salt=1), "bias": i.plain(n, salt=3)}
        return grad | norm.given(x=i.plain(m, n), eps=norm.eps, **affine)

    return benchmarks(make)


# --- bad calls ------------------------------------------------------------------------------------


def _good(norm: Norm, i: Inputs) -> dict[str, Any]:
    return norm.given(x=i.randn(2, 8), weight=None, bias=None, eps=norm.eps)


def errors(norm: Norm) -> tuple[Bad, ...]:
    spoil = Spoiler(norm.name, lambda i: _good(norm, i))
    aligned = f"needs rows{',' * norm.layer} {'weight and bias' if norm.layer else 'and weight'}"
    found = [
        spoil.integers(),
        spoil.no_dimension(),
        *(spoil.other_length(name) for name in norm.affine),
        spoil.other_length("weight", 1, 8),
        *(spoil.integer(name) for name in norm.affine),
        *(spoil.on_the_cpu(name, 8) for name in norm.affine),
        spoil.refused(
            "pack, misaligned",
            f"{aligned} aligned to 16 bytes",
            "f32x4_pack",
            x=lambda i: i.misaligned(2, 8),
        ),
        spoil.refused(
            "registers, row too long",
            "needs rows of at most 128 KiB",
            "f32x4_pack_registers",
            x=lambda i: i.plain(1, 32772),
        ),
        spoil.other_variant(),
    ]
    if norm.layer:
        found.append(spoil.two_dtypes("weight", "bias"))
    return tuple(found)


def backward_errors(norm: Norm) -> tuple[Bad, ...]:
    good = lambda i: {"grad": i.randn(2, 8), **_good(norm, i)}  # noqa: E731
    spoil = Spoiler(norm.backward_name, good)
    return (
        spoil.other_shape("grad", 2, 7, said="gradient"),
        spoil.other_dtype("grad", said="gradient", like="x"),
        *(spoil.other_length(name) for name in norm.affine),
        spoil.on_the_cpu("grad", 2, 8, said="gradient", narrow=True),
    )


# --- properties -----------------------------------------------------------------------------------


def properties(norm: Norm) -> tuple[Property, ...]:
    def rows_independent(function: Callable[..., Any], inputs: Inputs) -> None:
        given = call(norm, inputs, inputs.randn(6, 264))
        changed = given["x"].clone()
        changed[2] = inputs.randn(264, salt=3)
        rest = [0, 1, 3, 4, 5]
        before, after = function(**given)[rest], function(**given | {"x": changed})[rest]
        assert torch.equal(before, after), "a row's result depends on another row"

    def scale_invariant(function: Callable[..., Any], inputs: Inputs) -> None:
        """A power of two changes no rounding, so it leaves the result as it was where eps is 0."""
        x, weight = inputs.randn(5, 96), inputs.randn(96, salt=1)
        torch.testing.assert_close(function(4 * x, weight, 0.0), function(x, weight, 0.0))

    def unit_rms(function: Callable[..., Any], inputs: Inputs) -> None:
        y = function(inputs.randn(5, 1024), None, 0.0).double()
        rms = y.square().mean(-1).sqrt()
        torch.testing.assert_close(rms, torch.ones_like(rms), rtol=4e-3, atol=0.0)

    def shift_invariant(function: Callable[..., Any], inputs: Inputs) -> None:
        """Quarters below 32 take another 32 without rounding, in every dtype."""
        given = gentle(norm, inputs, torch.round(4 * inputs.randn(5, 96)) / 4)
        shifted = given | {"x": given["x"] + 32}
        torch.testing.assert_close(function(**shifted), function(**given))

    def standardised(function: Callable[..., Any], inputs: Inputs) -> None:
        y = function(inputs.randn(5, 1024) + 8, None, None, 0.0).double()
        assert bool((y.mean(-1).abs() <= 4e-3).all()), "the mean of a row is not 0"
        variance = y.var(-1, correction=0)
        torch.testing.assert_close(variance, torch.ones_like(variance), rtol=8e-3, atol=0.0)

    def constant_rows(function: Callable[..., Any], inputs: Inputs) -> None:
        """The mean of equal values is that value: nothing but the bias is left."""
        for cols in (96, 1000):
            given = call(norm, inputs, constant(5, cols)(inputs))
            left = given["bias"].expand(5, cols)
            assert torch.equal(function(**given), left), "a constant row leaves more than the bias"

    independent = Property("rows independent", rows_independent)
    if norm.layer:
        return (
            Property("shift invariant", shift_invariant),
            independent,
            Property("standardised", standardised),
            # In 16 bits PyTorch's own function leaves more on a CPU.
            Property("constant rows", constant_rows, dtypes=("f32",)),
        )
    return (
        Property("scale invariant", scale_invariant),
        independent,
        Property("unit rms", unit_rms),
    )


def backward_properties(norm: Norm) -> tuple[Property, ...]:
    def arguments(i: Inputs, grad: Tensor, x: Tensor) -> tuple[Any, ...]:
        affine = (i.plain(x.shape[-1], salt=1), i.plain(x.shape[-1], salt=3))
        return grad, x, *affine[: len(norm.affine)], norm.eps

    def orthogonal(function: Callable[..., Any], inputs: Inputs) -> None:
        """The result changes neither along x nor, of layer norm, along ones; without eps, nor does
        its gradient.
        """
        grad, x = inputs.randn(5, 512, salt=2), inputs.randn(5, 512)
        dx = function(grad, x, *(None for _ in norm.affine), 0.0)[0].double()
        for along in (x.double(), torch.ones_like(dx))[: len(norm.affine)]:
            product = dx * along
            assert bool((product.sum(-1).abs() <= 2e-2 * product.abs().sum(-1)).all())

    label = "orthogonal to x and ones" if norm.layer else "orthogonal to x"
    return Property(label, orthogonal), Property("repeatable", repeatable_gradients(arguments))
