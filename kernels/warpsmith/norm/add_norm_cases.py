"""Calls on which the residual norms and their gradients are tested and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.norm.calls import (
    HALVES,
    LAYOUTS,
    PAST_2_31,
    Rows,
    Sampler,
    backwards,
    benchmarks,
    far_apart,
    near_largest,
    plain,
    repeatable_gradients,
    rows,
    special,
)
from warpsmith.norm.norms import Norm
from warpsmith.spec.spoilt import Spoiler

Pair = tuple[Rows, Rows]


def call(
    norm: Norm, i: Inputs, x: Tensor, residual: Tensor | None, **changes: Any
) -> dict[str, Any]:
    """With a plain weight and bias."""
    cols = x.shape[-1]
    given = {
        "weight": i.randn(cols, salt=2),
        "bias": i.randn(cols, salt=3),
        "eps": norm.eps,
        "zero_centered": False,
    }
    return norm.given(x=x, residual=residual, **given | changes)


# --- samples --------------------------------------------------------------------------------------


def pair(*shape: int) -> Pair:
    return rows(*shape), rows(*shape, salt=1)


def _outlier(i: Inputs) -> Tensor:
    x = i.plain(3, 1024, scale=100.0, salt=1)
    x[:, 341] = 3e4
    return x


#: Of x, beside a plain residual, and of the residual.
_LAID_OUT: dict[str, Pair] = {
    **{
        label: (x, lambda i, x=x: i.randn(*x(i).shape, salt=1))  # type: ignore[misc]
        for label, x in LAYOUTS.items()
        if label not in ("odd row stride", "expanded rows")
    },
    "residual with a row stride": (rows(9, 256), lambda i: i.randn(9, 320, salt=1)[:, 64:]),
    "odd row stride": (rows(9, 256), lambda i: i.randn(9, 259, salt=1)[:, :256]),
    "expanded rows": (rows(6, 64), lambda i: i.randn(64, salt=1).expand(6, 64)),
    "both transposed": (lambda i: i.randn(64, 24).t(), lambda i: i.randn(64, 24, salt=1).t()),
    "misaligned residual": (rows(5, 256), lambda i: i.misaligned(5, 256, salt=1)),
    "small values": (plain(3, 1000, scale=1e-3), plain(3, 1000, scale=1e-3, salt=1)),
    "hundredfold": (plain(3, 1024, scale=100.0), _outlier),
    "cancelling": (plain(3, 512), lambda i: i.plain(3, 512).neg()),
    "special": (special, rows(5, 64, salt=1)),
}
_SMALL = tuple(
    ((3, 1, 33)[k % 3], n) for k, n in enumerate((1, 2, 3, 7, 63, 64, 256, 1000, 1023, 1024, 4096))
)
_LARGE = (
    (199, 512), (1030, 96), (2500, 1024), (37, 2048), (11, 1128), (5, 8192), (3, 12345), (3, 16384),
    (3, 20000), (5, 32768), (3, 40000), (2, 65536), (2, 131072), (1, 262144), (2, 300001),
)  # fmt: skip
#: More rows than clusters are resident at once, so that each walks over several.
_MANY_LONG_ROWS = (
    (300, 16640), (300, 32768), (150, 65536), (90, 131072), (70, 262144), (40, 400000),
)  # fmt: skip


def samples(norm: Norm) -> tuple[Sample, ...]:
    sample = Sampler(norm, call)
    none: dict[str, Any] = dict.fromkeys(norm.affine)
    if norm.layer:
        particular = [
            sample("near the largest", (near_largest, None), dtypes=("f32", "bf16")),
            sample(
                "near the largest, 516", (lambda i: near_largest(i, 516), None), dtypes=("f32",)
            ),
        ]
    else:  # one of the two for both: their offsets are the same code
        past = plain(*PAST_2_31), plain(*PAST_2_31, salt=1)
        particular = [sample.past_2_31("outputs past 2^31 elements", past)]
    return (
        *sample.grid(_SMALL, pair, small=True),
        *sample.grid(_LARGE, pair, small=False),
        *sample.grid(_MANY_LONG_ROWS, pair, small=False, huge=True),
        *(sample(label, made) for label, made in _LAID_OUT.items()),
        Sample("defaults", lambda i: {"x": i.randn(4, 64), "residual": i.randn(4, 64, salt=1)}),
        sample("no weight", pair(7, 256), **none),
        sample("no weight, odd", pair(7, 129), **none),
        sample("no weight, long", pair(3, 40000), small=False, **none),
        sample("weight alone", pair(7, 96), bias=None),
        sample("no residual", (rows(5, 256), None)),
        sample("no residual, odd", (rows(5, 129), None)),
        sample("no residual, long", (rows(3, 40000), None), small=False),
        sample("zero-centred", pair(5, 256), zero_centered=True),
        sample("zero-centred, odd", pair(3, 33), zero_centered=True),
        sample("zero-centred, no weight", pair(3, 64), zero_centered=True, **none),
        sample("large eps", pair(3, 64), eps=10.0),
        sample("eps 0", pair(3, 64), eps=0.0),
        sample(
            "misaligned weight",
            pair(5, 256),
            weight=lambda i: i.misaligned(256, salt=2),
            bias=lambda i: i.misaligned(256, offset=2, salt=3),
        ),
        sample(
            "strided weight",
            pair(5, 64),
            weight=lambda i: i.randn(128, salt=2)[::2],
            bias=lambda i: i.randn(192, salt=3)[::3],
        ),
        *particular,
        *_mixed(sample),
        sample.past_2_31("rows past 2^31 elements", (far_apart, plain(257, 1024, salt=1))),
    )


def _mixed(sample: Sampler) -> list[Sample]:
    """f32 beside 16 bits: residual, weights or both."""

    def mixed(label: str, wide: str, *shape: int, small: bool = True, huge: bool = False) -> Sample:
        return sample(label, pair(*shape), small, HALVES, wide, huge)

    return [
        mixed("f32 residual", "residual", 5, 1024),
        mixed("f32 residual, short", "residual", 9, 32),
        mixed("f32 residual, odd", "residual", 7, 129),
        mixed("f32 residual, wide", "residual", 3, 12288, small=False),
        mixed("f32 residual, long", "residual", 3, 40000, small=False),
        mixed("f32 residual, many long rows", "residual", 300, 20480, small=False, huge=True),
        mixed("f32 weight", "weight", 5, 1024),
        mixed("f32 weight, short", "weight", 9, 64),
        mixed("f32 weight, of two blocks", "weight", 3, 20000, small=False),
        mixed("f32 weight, long", "weight", 3, 65536, small=False),
        mixed("f32 residual and weight", "residual weight", 5, 512),
        mixed("f32 residual and weight, long", "residual weight", 2, 65536, small=False),
    ]


def _gradients(
    norm: Norm, grad: Tensor, grad_h: Tensor | None, h: Tensor, **changes: Any
) -> dict[str, Any]:
    given = call(norm, Inputs(grad.dtype, grad.device), h, None, **changes)
    del given["x"], given["residual"]
    return {"grad": grad, "grad_h": grad_h, "h": h, **given, "separate_x": h.dtype != grad.dtype}


def backward(norm: Norm) -> Callable[[Inputs, dict[str, Any]], dict[str, Any]]:
    """x turns into its norm's gradient, the residual into h."""

    def make(i: Inputs, given: dict[str, Any]) -> dict[str, Any]:
        x, residual = given.pop("x"), given.pop("residual")
        other = i.randn(*x.shape, salt=4)
        grad, grad_h, h = (other, None, x) if residual is None else (x, other, residual)
        made = {
            "grad": grad,
            "grad_h": None if grad_h is None else grad_h.to(h.dtype),
            "h": h,
            **given,
        }
        if norm.source == "add":
            made["separate_x"] = residual is None or h.dtype != grad.dtype
        return made

    return make


def backward_samples(norm: Norm) -> tuple[Sample, ...]:
    def of(label: str, grad: Rows, grad_h: Rows | None, h: Rows, small: bool = True) -> Sample:
        def make(i: Inputs) -> dict[str, Any]:
            return _gradients(norm, grad(i), grad_h and grad_h(i), h(i))

        return Sample(label, make, small=small)

    def one_infinity(i: Inputs) -> Tensor:
        """In the first row; those that the same block adds to its sums afterwards are ordinary."""
        x = i.randn(300, 64)
        x[0, 21] = float("inf")
        return x

    many = rows(20011, 32), rows(20011, 32, salt=1), rows(20011, 32, salt=2)
    made = [s for s in samples(norm) if s.label not in ("special", "defaults")]
    return (
        *(backwards(s, backward(norm)) for s in made),
        of(
            "strided gradients",
            lambda i: i.randn(9, 80)[:, :64],
            lambda i: i.randn(9, 96, salt=1)[:, 8:72],
            rows(9, 64),
        ),
        of(
            "expanded gradients",
            lambda i: i.randn(64).expand(9, 64),
            lambda i: i.randn(9, 1, salt=1).expand(9, 64),
            rows(9, 64, salt=4),
        ),
        of("misaligned h", rows(5, 64), rows(5, 64), lambda i: i.misaligned(5, 64)),
        of("many rows", *many, small=False),
        of("special", rows(5, 64), None, special),
        of("one infinite gradient", one_infinity, None, rows(300, 64, salt=4), small=False),
    )


def _affine(i: Inputs, cols: int) -> dict[str, Tensor]:
    return {"weight": i.plain(cols, salt=2), "bias": i.plain(cols, salt=3)}


def bench(norm: Norm) -> tuple[Sample, ...]:
    def make(i: Inputs, m: int, n: int) -> dict[str, Any]:
        return call(norm, i, i.plain(m, n), i.plain(m, n, salt=1), **_affine(i, n))

    return benchmarks(make)


def bench_backward(norm: Norm) -> tuple[Sample, ...]:
    def make(i: Inputs, m: int, n: int) -> dict[str, Any]:
        grad, grad_h, h = (i.plain(m, n, salt=k) for k in range(3))
        return _gradients(norm, grad, grad_h, h, **_affine(i, n))

    return benchmarks(make)


# --- bad calls ------------------------------------------------------------------------------------


def errors(norm: Norm) -> tuple[Bad, ...]:
    good = lambda i: call(norm, i, i.randn(2, 8), None, weight=None, bias=None)  # noqa: E731
    spoil = Spoiler(norm.name, good)
    return (
        spoil.integers(),
        spoil.no_dimension(),
        spoil.other_shape("residual", 1, 8),
        spoil.other_dtype("residual"),
        *(spoil.other_length(name) for name in norm.affine),
        *(spoil.other_length(name, 1, 8) for name in norm.affine[1:]),
        spoil.on_the_cpu("residual", 2, 8, narrow=True),
        spoil.refused(
            "pack, misaligned residual",
            "needs rows, weight and bias aligned to 16 bytes",
            "f32x4_pack",
            residual=lambda i: i.misaligned(2, 8),
        ),
        spoil.refused(
            "registers, row too long",
            "needs rows of at most 64 KiB",
            "f32x4_pack_registers",
            x=lambda i: i.plain(1, 16388),
        ),
        *([spoil.two_dtypes("weight", "bias")] if norm.layer else ()),
    )


def backward_errors(norm: Norm) -> tuple[Bad, ...]:
    def good(i: Inputs) -> dict[str, Any]:
        x = i.randn(2, 8)
        ones = torch.ones(8, dtype=x.dtype, device=x.device)
        return _gradients(norm, x, None, x, weight=ones, bias=None)

    spoil = Spoiler(norm.backward_name, good, like="grad")
    return (
        spoil.other_shape("h", 2, 7),
        spoil.other_dtype("h"),
        spoil.other_shape("grad_h", 8, said="gradient of h", like="h"),
        spoil.other_dtype("grad_h", said="gradient of h", like="h"),
        spoil.other_length("weight", like="x"),
        spoil.on_the_cpu("h", 2, 8, narrow=True),
    )


# --- properties -----------------------------------------------------------------------------------


def outputs_agree(function: Callable[..., Any], inputs: Inputs) -> None:
    """y is the norm of the h that is handed out, however the sum was made."""
    x, residual = inputs.randn(7, 328), inputs.randn(7, 328, salt=1)
    y, h = function(x, residual)
    again, same = function(h, torch.zeros_like(h))
    assert torch.equal(h, x + residual)
    assert torch.equal(h, same)
    assert torch.equal(y, again)


def rows_independent(function: Callable[..., Any], inputs: Inputs) -> None:
    x, residual = inputs.randn(6, 264), inputs.randn(6, 264, salt=1)
    changed = x.clone()
    changed[2] = inputs.randn(264, salt=3)
    rest = [0, 1, 3, 4, 5]
    before, after = function(x, residual)[0][rest], function(changed, residual)[0][rest]
    assert torch.equal(before, after), "a row's result depends on another row"


def repeatable(norm: Norm) -> Callable[[Callable[..., Any], Inputs], None]:
    return repeatable_gradients(lambda i, grad, h: tuple(_gradients(norm, grad, grad, h).values()))


def shift_invariant(function: Callable[..., Any], inputs: Inputs) -> None:
    """What is added to a whole row falls to the mean; powers of two leave h exact."""
    x = torch.randint(-8, 8, (5, 96), device=inputs.device).to(inputs.dtype)
    shifted, _ = function(x, torch.full_like(x, 16.0))
    y, _ = function(x, torch.zeros_like(x))
    eps = torch.finfo(inputs.dtype).eps
    torch.testing.assert_close(shifted, y, rtol=4 * eps, atol=8 * eps)
