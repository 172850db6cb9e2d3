"""`warpsmith.which` picks the rung that the documentation promises, without a GPU to ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import warpsmith
from warpsmith import catalogue, dispatch
from warpsmith.catalogue import DTYPES, Inputs

EPS = 1e-6
Make = Callable[[Inputs], tuple[Any, ...]]

#: operator, dtype, SM, what the call looks like, its arguments, the rung that must serve it
CASES: tuple[tuple[str, str, int, str, Make, str], ...] = (
    ("relu", "f32", 80, "contiguous", lambda i: (i.plain(64, 128),), "stream"),
    ("relu", "bf16", 90, "contiguous", lambda i: (i.plain(64, 128),), "stream"),
    ("relu", "bf16", 90, "a tail", lambda i: (i.plain(4099),), "stream"),
    ("relu", "bf16", 90, "misaligned", lambda i: (i.misaligned(64, 128),), "unroll"),
    ("relu", "bf16", 90, "transposed", lambda i: (i.plain(64, 128).t(),), "stream"),
    ("relu", "bf16", 90, "stepped", lambda i: (i.plain(64, 128)[:, ::2],), "strided"),
    ("relu", "bf16", 90, "left columns", lambda i: (i.plain(64, 128)[:, :64],), "stream"),
    ("relu", "bf16", 90, "ragged columns", lambda i: (i.plain(64, 67)[:, :33],), "unroll"),
    ("relu", "e4m3", 90, "contiguous", lambda i: (i.plain(64, 128),), "lut"),
    ("relu", "e5m2", 80, "contiguous", lambda i: (i.plain(64, 128),), "lut"),
    ("gelu", "f16", 89, "contiguous", lambda i: (i.plain(64, 128),), "stream"),
    ("silu", "e4m3", 89, "misaligned", lambda i: (i.misaligned(64, 128),), "unroll"),
    ("add", "f32", 90, "same shape", lambda i: (i.plain(8, 64), i.plain(8, 64)), "stream"),
    ("add", "e4m3", 90, "same shape", lambda i: (i.plain(8, 64), i.plain(8, 64)), "stream"),
    ("add", "bf16", 90, "a row for all", lambda i: (i.plain(8, 64), i.plain(64)), "stream"),
    ("add", "bf16", 90, "a column for all", lambda i: (i.plain(8, 64), i.plain(8, 1)), "strided"),
    ("add", "bf16", 90, "orders differ", lambda i: (i.plain(8, 64), i.plain(64, 8).t()), "strided"),
    ("silu_and_mul", "bf16", 90, "halves", lambda i: (i.plain(8, 256),), "stream"),
    ("silu_and_mul", "bf16", 90, "odd halves", lambda i: (i.plain(8, 62),), "unroll"),
    ("silu_and_mul", "bf16", 90, "apart", lambda i: (i.plain(8, 64), i.plain(8, 64)), "stream"),
    ("bias_gelu", "bf16", 90, "contiguous", lambda i: (i.plain(8, 64), i.plain(64)), "stream"),
    ("relu_backward", "bf16", 90, "contiguous", lambda i: (i.plain(64), i.plain(64)), "stream"),
    ("rms_norm", "bf16", 90, "4096", lambda i: (i.plain(8, 4096), i.plain(4096), EPS), "registers"),
    ("rms_norm", "bf16", 80, "256", lambda i: (i.plain(8, 256), i.plain(256), EPS), "registers"),
    ("rms_norm", "f32", 90, "long rows", lambda i: (i.plain(2, 262144), None, EPS), "cluster"),
    ("rms_norm", "f32", 89, "long rows", lambda i: (i.plain(2, 262144), None, EPS), "pack"),
    ("rms_norm", "bf16", 90, "longer rows", lambda i: (i.plain(1, 1 << 22), None, EPS), "pack"),
    ("sum", "f32", 90, "short rows", lambda i: (i.plain(8, 1000),), "warp"),
    ("sum", "bf16", 80, "rows", lambda i: (i.plain(8, 8192),), "pack"),
    ("sum", "bf16", 90, "misaligned rows", lambda i: (i.misaligned(8, 8192),), "pack"),
    ("sum", "f32", 90, "few long rows", lambda i: (i.plain(2, 65536),), "split"),
    ("sum", "f32", 90, "columns", lambda i: (i.plain(64, 128), 0), "columns"),
    ("sum", "f32", 90, "transposed", lambda i: (i.plain(64, 128).t(),), "columns"),
    ("mean", "f32", 90, "invariant", lambda i: (i.plain(64, 128).t(), -1, False, True), "warp"),
    ("argmax", "f16", 90, "middle", lambda i: (i.plain(4, 64, 32), 1), "columns"),
    ("var", "bf16", 90, "stepped", lambda i: (i.plain(64, 128)[:, ::2],), "warp"),
    ("cumsum", "f32", 90, "rows", lambda i: (i.plain(8, 1000),), "pack"),
    ("cumsum", "i32", 80, "a long row", lambda i: (i.plain(1 << 16),), "look_back"),
    ("cumsum", "bf16", 90, "columns", lambda i: (i.plain(64, 128), 0), "columns"),
    ("rms_norm", "bf16", 90, "odd rows", lambda i: (i.plain(8, 1001), None, EPS), "unroll"),
)


@pytest.mark.parametrize(
    ("name", "dtype", "sm", "make", "rung"),
    [
        pytest.param(name, dtype, sm, make, rung, id=f"{name}-{dtype}-sm{sm}-{label}")
        for name, dtype, sm, label, make, rung in CASES
    ],
)
def test_rung(name: str, dtype: str, sm: int, make: Make, rung: str) -> None:
    choice = warpsmith.which(name, *make(Inputs(DTYPES[dtype])), sm=sm)
    assert choice.implementation == "cuda", str(choice)
    assert choice.variant is not None
    assert choice.variant.rung.name == rung, str(choice)
    assert choice.variant.dtype == dtype
    assert choice.reason == choice.variant.rung.story
    assert choice.name in str(choice)


@pytest.mark.parametrize("op", list(catalogue.load().values()), ids=str)
@pytest.mark.parametrize("sm", [80, 89, 90])
def test_some_kernel_takes_every_sample(op: catalogue.Op, sm: int) -> None:
    """No call that the specs know of falls back for want of a rung."""
    for dtype in op.dtypes:
        for sample in op.samples_for(dtype):
            if sample.small:
                args = sample.make(Inputs(DTYPES[dtype]))
                choice = warpsmith.which(op.name, *args, sm=sm)
                assert choice.implementation == "cuda", f"{dtype} {sample}: {choice}"


def test_without_a_gpu_the_reference_serves() -> None:
    choice = warpsmith.which("relu", torch.ones(3))
    assert choice.implementation == "reference"
    assert choice.variant is None


def test_aliases_are_understood() -> None:
    assert warpsmith.which("swish", torch.ones(64), sm=90).variant is not None


def test_bad_calls_raise_here_too() -> None:
    with pytest.raises(
        (RuntimeError, TypeError, ValueError), match="relu: expected x to be a floating-point"
    ):
        warpsmith.which("relu", torch.ones(3, dtype=torch.int64), sm=90)
    with pytest.raises(ValueError, match="unknown operator"):
        warpsmith.which("no_such_operator", torch.ones(3))


def test_reduced_accumulation_is_never_chosen() -> None:
    for op in catalogue.load().values():
        for dtype in op.dtypes:
            for sample in [s for s in op.samples_for(dtype) if s.small][:4]:
                args = dispatch.normalise(op, sample.make(Inputs(DTYPES[dtype])))
                variant = dispatch.pick(op, args, 90)
                if variant is not None and op.accumulates:
                    assert variant.accumulator == "f32"
