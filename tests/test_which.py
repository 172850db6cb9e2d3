"""`warpsmith.which` picks the rung that the documentation promises, without a GPU to ask."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import warpsmith
from warpsmith.core import catalogue, dispatch, families
from warpsmith.core.catalogue import DTYPES, Inputs
from warpsmith.native import csrc
from warpsmith.proof.verify.calls import as_public

EPS = 1e-6


def rows(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Logits and a target for each of their rows."""
    return logits, torch.zeros(logits.shape[0], dtype=torch.int64)


def gradients(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same, and what the backward pass is given per row."""
    return *rows(logits), *(torch.zeros(logits.shape[0]) for _ in range(3))


Make = Callable[[Inputs], tuple[Any, ...]]


def pair(i: Inputs, *shape: int) -> tuple[Any, ...]:
    return i.plain(*shape), i.plain(*shape, salt=1)


def grouped(i: Inputs, *shape: int) -> tuple[Any, ...]:
    """The gradient of a group norm of two groups and SiLU."""
    return *pair(i, *shape), 2, None, None, 1e-5, "silu"


def product(i: Inputs, m: int, n: int, k: int) -> tuple[Any, ...]:
    return i.plain(m, k), i.plain(k, n, salt=1)


def quantised(i: Inputs, *shape: int) -> tuple[Any, ...]:
    """A norm into fp8, of x alone."""
    return i.plain(*shape), None, None, torch.float8_e4m3fn


def scaled(i: Inputs, rows: int, vectors: int) -> tuple[Any, ...]:
    """8-bit weights, their scale, and vectors of 1024 values."""
    x = Inputs(torch.bfloat16).plain(*(vectors, 1024)[vectors == 1 :])
    return i.plain(rows, 1024), x, torch.ones(())


def any_order(i: Inputs, count: int, cols: int) -> tuple[Any, ...]:
    """Rows put back where they came from, by atomics if that is fastest."""
    return i.plain(count, cols), torch.arange(count), count, False


def put(i: Inputs, count: int, accumulate: bool) -> tuple[Any, ...]:
    return i.plain(9, 16), torch.arange(count) % 18 - 9, i.plain(count, 16), accumulate


def last(x: Tensor) -> Tensor:
    """The same values with their channels as neighbours in memory."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


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
    ("reduce_sum", "f32", 90, "8 MiB", lambda i: (i.plain(1 << 21),), "two_pass"),
    ("reduce_sum", "f32", 90, "less", lambda i: (i.plain((1 << 21) - 1),), "one_pass"),
    ("reduce_sum", "f32", 80, "8 MiB", lambda i: (i.plain(1 << 21),), "one_pass"),
    ("dot", "bf16", 90, "4 MiB each", lambda i: (i.plain(1 << 21),) * 2, "two_pass"),
    ("dot", "bf16", 90, "less", lambda i: (i.plain((1 << 21) - 1),) * 2, "one_pass"),
    ("silu_backward", "e4m3", 90, "contiguous", lambda i: (i.plain(64, 128),) * 2, "lut"),
    ("relu_backward", "e4m3", 90, "contiguous", lambda i: (i.plain(64, 128),) * 2, "stream"),
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
    ("sum", "f32", 90, "over nothing", lambda i: (i.plain(4, 0),), "naive"),
    ("mean", "f32", 90, "invariant", lambda i: (i.plain(64, 128).t(), -1, False, True), "warp"),
    ("argmax", "f16", 90, "middle", lambda i: (i.plain(4, 64, 32), 1), "columns"),
    ("var", "bf16", 90, "stepped", lambda i: (i.plain(64, 128)[:, ::2],), "warp"),
    ("index_put", "bf16", 90, "few", lambda i: put(i, 2048, False), "scan"),
    ("index_put", "bf16", 90, "many", lambda i: put(i, 2049, False), "sorted"),
    ("index_put", "f32", 80, "many added", lambda i: put(i, 2049, True), "sorted"),
    ("scatter_rows", "bf16", 90, "in any order", lambda i: any_order(i, 2048, 320), "atomic"),
    ("scatter_rows", "bf16", 90, "few long rows", lambda i: any_order(i, 2048, 321), "scan"),
    ("scatter_rows", "f16", 80, "many values", lambda i: any_order(i, 2049, 2048), "sorted"),
    ("scatter_rows", "f32", 90, "many in f32", lambda i: any_order(i, 2049, 2048), "atomic"),
    ("cumsum", "f32", 90, "rows", lambda i: (i.plain(8, 1000),), "pack"),
    ("cumsum", "i32", 80, "a long row", lambda i: (i.plain(1 << 16),), "look_back"),
    ("cumsum", "f32", 90, "a longer row", lambda i: (i.plain(1 << 24),), "two_pass"),
    ("cumsum", "bf16", 90, "a longer row", lambda i: (i.plain(1 << 23),), "look_back"),
    ("cumsum", "bf16", 90, "the longest row", lambda i: (i.plain(1 << 24),), "two_pass"),
    ("cumsum", "f16", 90, "long rows", lambda i: (i.plain(2, 1 << 23),), "look_back"),
    ("cumsum", "bf16", 90, "rows at once", lambda i: (i.plain(512, 1 << 15),), "pack"),
    ("cumsum", "f32", 90, "rows at once", lambda i: (i.plain(512, 1 << 15),), "two_pass"),
    ("cumsum", "bf16", 90, "columns", lambda i: (i.plain(64, 128), 0), "columns"),
    ("rms_norm", "bf16", 90, "odd rows", lambda i: (i.plain(8, 1001), None, EPS), "unroll"),
    ("softmax", "bf16", 90, "short odd rows", lambda i: (i.plain(8, 1001), -1), "warp"),
    ("softmax", "bf16", 90, "odd rows", lambda i: (i.plain(2, 30001), -1), "shared"),
    ("softmax", "f16", 90, "long odd rows", lambda i: (i.plain(2, 50257), -1), "peeled_registers"),
    ("softmax", "bf16", 80, "old odd rows", lambda i: (i.plain(2, 50257), -1), "shared"),
    ("softmax", "bf16", 90, "apart", lambda i: (i.misaligned(2, 65536), -1), "peeled_registers"),
    ("softmax", "bf16", 90, "aligned", lambda i: (i.plain(2, 65536), -1), "registers"),
    ("softmax", "bf16", 90, "more than registers", lambda i: (i.plain(2, 102393), -1), "peeled"),
    ("softmax", "f32", 90, "not so long", lambda i: (i.plain(2, 16383), -1), "peeled"),
    ("softmax", "f32", 90, "long odd rows", lambda i: (i.plain(2, 51195), -1), "peeled_registers"),
    ("softmax", "f32", 90, "more than registers", lambda i: (i.plain(2, 51197), -1), "peeled"),
    ("softmax", "f32", 90, "longer odd rows", lambda i: (i.plain(1, 262145), -1), "online"),
    ("softmax", "bf16", 90, "longer rows", lambda i: (i.plain(1, 1 << 22), -1), "online_pack"),
    ("softmax", "bf16", 90, "columns", lambda i: (i.plain(8, 64, 24), 1), "columns"),
    ("softmax", "bf16", 80, "a copy of columns", lambda i: (i.plain(8, 1001).t(), 0), "columns"),
    ("softmax", "bf16", 90, "long columns", lambda i: (i.plain(1001, 8), 0), "columns_cluster"),
    ("softmax", "bf16", 90, "longest columns", lambda i: (i.plain(8193, 8), 0), "columns"),
    ("log_softmax", "f16", 80, "misaligned", lambda i: (i.misaligned(8, 64), -1), "warp"),
    ("softmax_backward", "bf16", 90, "odd rows", lambda i: (*[i.plain(2, 5001)] * 2, -1), "peeled"),
    ("softmax_backward", "bf16", 90, "columns", lambda i: (*[i.plain(8, 64)] * 2, 0), "columns"),
    ("add_rms_norm", "bf16", 90, "4096", lambda i: pair(i, 8, 4096), "registers"),
    ("add_rms_norm", "bf16", 80, "long rows", lambda i: pair(i, 2, 65536), "pack"),
    ("add_rms_norm", "bf16", 90, "long rows", lambda i: pair(i, 2, 65536), "cluster"),
    ("add_rms_norm", "bf16", 90, "odd rows", lambda i: pair(i, 8, 1001), "naive"),
    ("add_layer_norm", "f16", 90, "no residual", lambda i: (i.plain(8, 256), None), "registers"),
    ("rms_norm_fp8", "bf16", 90, "4096", lambda i: quantised(i, 8, 4096), "registers"),
    ("rms_norm_fp8", "bf16", 90, "long", lambda i: quantised(i, 2, 65536), "registers"),
    ("rms_norm_fp8", "bf16", 90, "longer", lambda i: quantised(i, 2, 65544), "pack"),
    ("gemv", "bf16", 90, "rows", lambda i: (i.plain(40, 1024), i.plain(1024)), "block"),
    ("gemv", "bf16", 90, "short rows", lambda i: (i.plain(40, 16), i.plain(3, 16)), "short_rows"),
    ("gemv", "f32", 80, "odd rows", lambda i: (i.plain(40, 17), i.plain(17)), "staged_rows"),
    ("gemv", "f32", 80, "rows apart", lambda i: (i.plain(40, 40)[:, :17], i.plain(17)), "k16"),
    ("gemv", "bf16", 90, "long odd rows", lambda i: (i.plain(40, 129), i.plain(129)), "k32"),
    (
        "gemv",
        "bf16",
        80,
        "columns",
        lambda i: (i.plain(512, 40).t(), i.plain(512)),
        "skinny_columns",
    ),
    (
        "gemv",
        "bf16",
        90,
        "short columns",
        lambda i: (i.plain(504, 40).t(), i.plain(504)),
        "columns",
    ),
    ("gemv", "f32", 90, "columns", lambda i: (i.plain(512, 40).t(), i.plain(512)), "columns"),
    (
        "gemv",
        "f32",
        90,
        "columns, two vectors",
        lambda i: (i.plain(512, 40).t(), i.plain(2, 512)),
        "skinny_columns",
    ),
    ("gemv_scaled", "e4m3", 90, "vector", lambda i: scaled(i, 9000, 1), "split_k"),
    ("gemv_scaled", "i8", 90, "vector", lambda i: scaled(i, 9000, 1), "pack"),
    ("gemv_scaled", "i8", 90, "vector, few rows", lambda i: scaled(i, 900, 1), "split_k"),
    ("gemv_scaled", "i8", 90, "two vectors", lambda i: scaled(i, 9000, 2), "block"),
    ("group_norm", "bf16", 90, "short", lambda i: (i.plain(140, 8, 4, 4), 2), "registers"),
    ("group_norm", "bf16", 90, "few", lambda i: (i.plain(1, 32, 32, 32), 2), "spread"),
    ("group_norm", "bf16", 90, "few and long", lambda i: (i.plain(1, 32, 64, 64), 2), "cluster"),
    ("group_norm", "bf16", 90, "huge, few", lambda i: (i.plain(1, 2, 65536, 10), 2), "spread"),
    ("group_norm", "bf16", 90, "huge", lambda i: (i.plain(1, 9, 65536, 10), 9), "split"),
    ("group_norm", "bf16", 80, "few", lambda i: (i.plain(1, 32, 64, 64), 2), "registers"),
    ("group_norm", "f32", 80, "few and long", lambda i: (i.plain(1, 32, 64, 64), 2), "split"),
    ("group_norm", "f32", 90, "long", lambda i: (i.plain(140, 1, 32800), 1), "cluster"),
    ("group_norm", "bf16", 90, "odd channels", lambda i: (i.plain(2, 16, 9), 2), "pack"),
    ("group_norm", "bf16", 90, "odd groups", lambda i: (i.plain(2, 6, 9), 2), "naive"),
    ("group_norm_backward", "bf16", 90, "long", lambda i: grouped(i, 1, 64, 64, 64), "stream"),
    ("group_norm_backward", "bf16", 90, "longer", lambda i: grouped(i, 1, 64, 128, 64), "split"),
    ("group_norm_backward", "f32", 90, "longer", lambda i: grouped(i, 1, 64, 128, 64), "stream"),
    ("group_norm", "f16", 90, "nhwc", lambda i: (last(i.plain(2, 64, 9)), 2), "nhwc_cluster"),
    ("group_norm", "f16", 80, "nhwc", lambda i: (last(i.plain(2, 64, 9)), 2), "nhwc_split"),
    ("group_norm", "f16", 90, "odd nhwc", lambda i: (last(i.plain(2, 12, 9)), 2), "naive"),
    ("matmul", "bf16", 90, "odd k", lambda i: product(i, 2500, 2552, 2055), "wgmma_padded"),
    ("matmul", "f16", 80, "odd n", lambda i: product(i, 1000, 1001, 1000), "mma_padded"),
    ("matmul", "bf16", 90, "odd and small", lambda i: product(i, 701, 703, 705), "mma_unaligned"),
    ("matmul", "bf16", 90, "odd and flat", lambda i: product(i, 90, 4001, 4001), "mma_unaligned"),
    ("matmul", "bf16", 90, "odd m", lambda i: product(i, 1001, 1000, 1000), "wgmma_peak"),
    ("matmul", "f32", 90, "odd k", lambda i: product(i, 1000, 1000, 1001), "simt_peak"),
    ("linear", "bf16", 90, "odd k", lambda i: pair(i, 1001, 1001), "wgmma_padded"),
    ("matmul", "f32", 90, "few rows", lambda i: product(i, 16, 1000, 512), "skinny_nn"),
    ("matmul", "bf16", 90, "few rows", lambda i: product(i, 1, 1000, 512), "skinny_nn"),
    ("matmul", "f32", 90, "few rows, short k", lambda i: product(i, 16, 1000, 508), "simt_peak"),
    ("matmul", "f32", 90, "17 rows", lambda i: product(i, 17, 1000, 512), "simt_peak"),
    ("linear", "f32", 90, "few rows", lambda i: pair(i, 16, 1024), "skinny"),
    ("cross_entropy", "bf16", 90, "short", lambda i: rows(i.plain(512, 1000)), "warp"),
    ("cross_entropy", "f32", 80, "misaligned", lambda i: rows(i.misaligned(512, 1001)), "warp"),
    ("cross_entropy", "bf16", 90, "long", lambda i: rows(i.plain(300, 50257)), "unroll"),
    ("cross_entropy", "bf16", 90, "few and long", lambda i: rows(i.plain(2, 50257)), "cluster"),
    ("cross_entropy", "bf16", 89, "few and long", lambda i: rows(i.plain(2, 50257)), "unroll"),
    ("cross_entropy_with_grad", "bf16", 90, "odd", lambda i: rows(i.plain(9, 1001)), "registers"),
    ("cross_entropy_with_grad", "f32", 90, "1000", lambda i: rows(i.plain(9, 1000)), "pack"),
    ("cross_entropy_with_grad", "f32", 90, "more", lambda i: rows(i.plain(9, 1100)), "registers"),
    ("cross_entropy_with_grad", "f32", 90, "long", lambda i: rows(i.plain(2, 50257)), "cluster"),
    ("cross_entropy_with_grad", "f32", 80, "long", lambda i: rows(i.plain(2, 50257)), "pack"),
    ("cross_entropy_with_grad", "f32", 90, "skew", lambda i: rows(i.misaligned(2, 64)), "naive"),
    ("cross_entropy_backward", "bf16", 90, "odd", lambda i: gradients(i.plain(9, 1001)), "pack"),
    ("cross_entropy_backward", "f16", 90, "t", lambda i: gradients(i.plain(64, 9).t()), "pack"),
    ("cross_entropy_backward", "f16", 80, "x", lambda i: gradients(i.misaligned(9, 64)), "naive"),
    ("bce_with_logits", "bf16", 90, "mean", lambda i: (i.plain(99), i.plain(99), 1), "unroll"),
    ("bce_with_logits", "bf16", 90, "none", lambda i: (i.plain(99), i.plain(99), 0), "pack"),
    ("bce_with_logits", "f32", 80, "skew", lambda i: (i.misaligned(9), i.plain(9), 2), "naive"),
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
    assert choice.reason.startswith(choice.variant.rung.story)  # and which of its kernels, and why
    assert choice.name in str(choice)


@pytest.mark.parametrize("op", list(catalogue.load().values()), ids=str)
@pytest.mark.parametrize("sm", [80, 89, 90])
def test_some_kernel_takes_every_sample(op: catalogue.Op, sm: int) -> None:
    """No call that the specs know of falls back for want of a rung, but to the twin where what is
    written, and so cannot be copied, lies as no rung writes it: a cache with gaps between a head's
    values, and what rows are added to in place, if it is not contiguous. Rungs that no GPU has
    verified are taken for verified.
    """
    op = dataclasses.replace(
        op, ladder=tuple(dataclasses.replace(rung, unproven=False) for rung in op.ladder)
    )
    for dtype in op.dtypes:
        for sample in op.samples_for(dtype):
            if sample.small:
                args = sample.make(op.inputs(dtype))
                chosen = dispatch.pick(op, dispatch.normalise(op, args), sm)
                gaps = sample.label == "gaps between a head's values"
                gaps |= op.name == "index_add_inplace" and not args[0].is_contiguous()
                assert (chosen is None) == gaps, f"{dtype} {sample}: {chosen}"


def test_without_a_gpu_the_reference_serves() -> None:
    choice = warpsmith.which("relu", torch.ones(3))
    assert choice.implementation == "reference"
    assert choice.variant is None


def test_aliases_are_understood() -> None:
    assert warpsmith.which("swish", torch.ones(64), sm=90).variant is not None


def test_bad_calls_raise_here_too() -> None:
    with pytest.raises(RuntimeError, match="relu: expected x to be a floating-point"):
        warpsmith.which("relu", torch.ones(3, dtype=torch.int64), sm=90)
    with pytest.raises(ValueError, match="unknown operator"):
        warpsmith.which("no_such_operator", torch.ones(3))


#: f32 is multiplied in parts, which makes NaN of infinity. Of a group that has either, group norm
#: leaves nothing but NaN, and nothing but NaN comes back through it.
NAN_EITHER_WAY = {"conv1d_group_norm_forward", "conv1d_backward"}


def test_what_may_overflow_is_never_chosen() -> None:
    for op in catalogue.load().values():
        for dtype in op.dtypes:
            for sample in [s for s in op.samples_for(dtype) if s.small][:4]:
                args = dispatch.normalise(op, sample.make(op.inputs(dtype)))
                variant = dispatch.pick(op, args, 90)
                if variant is not None:
                    assert not (op.accumulates and variant.low_precision)
                    if op.name not in NAN_EITHER_WAY:
                        assert variant.rung.valid is catalogue.everywhere


CUTE = "f16_cute_tn_stages_swizzle_f32"


def column_major(*shape: int) -> tuple[Tensor, Tensor]:
    """Operands of a matrix product [m, n, k] of which b lies along k."""
    m, n, k = shape
    i = Inputs(torch.float16)
    return i.plain(m, k), i.plain(n, k).t()


def test_a_library_without_cutlass_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    variant = catalogue.get("matmul").variant(CUTE)
    args = column_major(16, 24, 8)
    assert dispatch.refusal(variant, args, 80) is None  # until a library is loaded
    monkeypatch.setitem(dispatch._cutlass, "gemm/matmul", "4.2.0")
    assert dispatch.refusal(variant, args, 80) is None
    monkeypatch.setitem(dispatch._cutlass, "gemm/matmul", "")
    why = dispatch.refusal(variant, args, 80)
    assert why is not None
    assert "pip install 'warpsmith[cutlass]'" in why
    assert why in (csrc.CSRC / "gemm" / "gemm.h").read_text()
    with pytest.raises(RuntimeError, match=rf"matmul_{CUTE}: was built without"):
        warpsmith.matmul(*args, variant=CUTE)
    empty = dispatch.normalise(variant.op, column_major(0, 24, 8))
    assert dispatch.refusal(variant, empty, 80) is None  # no kernel is asked


def test_cute_is_never_chosen() -> None:
    """What serves a call does not depend on the headers that its library was built with."""
    op = catalogue.get("matmul")
    for dtype in ("f16", "bf16"):
        for sample in op.samples_for(dtype):
            if sample.small:
                args = dispatch.normalise(op, sample.make(op.inputs(dtype)))
                variant = dispatch.pick(op, args, 90)
                assert variant is None or not variant.rung.name.startswith("cute_")
    assert warpsmith.which("matmul", *column_major(64, 64, 64), sm=80).name != f"matmul_{CUTE}"


def test_arguments_may_be_named() -> None:
    x, weight = torch.ones(4, 64), torch.ones(64)
    assert dispatch.which("rms_norm", x, weight=weight, sm=90) == dispatch.which(
        "rms_norm", x, weight, sm=90
    )
    tanh = dispatch.which("gelu", x, approximate="tanh", sm=90)
    assert tanh == dispatch.which("gelu_tanh", x, sm=90)
    assert dispatch.which("gelu", x, approximate="none", sm=90) == dispatch.which("gelu", x, sm=90)


def _heads(heads: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.ones(2, 16, heads, 64, dtype=dtype)


TWO, IMAGE = torch.tensor([1, 0]), torch.ones(1, 3, 8, 8)
_BOXES = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.5, 0.5, 2.0, 2.0]])

#: a public function, a call of it that its operator takes in other words, what serves that
PUBLIC_CALLS: tuple[tuple[str, tuple[Any, ...], dict[str, Any], str], ...] = (
    ("rope", (_heads(8), _heads(2)), {}, "rope_bf16x8_pack"),
    ("rope", (_heads(8),), {"base": 5e5, "inplace": True}, "rope_inplace_bf16x8_pack"),
    ("flash_attention", (_heads(8), _heads(2), _heads(2)), {"window": (3, 0)}, "flash_attention"),
    ("transpose", (torch.ones(64, 3, 32), 0, 2), {}, "permute_f32"),
    ("upsample_nearest2d", (torch.ones(1, 3, 8, 8),), {"scale_factor": 2}, "upsample_nearest2d_fo"),
    ("nms", (_BOXES, torch.ones(2), 0.5), {}, "nms_ordered_f32_mask"),
    ("nms_fixed", (_BOXES, torch.ones(2), 0.5), {}, "nms_ordered_f32_mask"),
    ("layer_norm", (torch.ones(4, 64), (64,)), {}, "layer_norm_f32x4_pack_registers"),
    ("embedding", (torch.tensor([1, 0]), torch.ones(8, 64)), {}, "embedding_f32x4_pack"),
    # in a dtype that passes as another one
    ("transpose", (torch.ones(64, 128, dtype=torch.uint8),), {}, "transpose_i8x16_pack"),
    ("transpose", (torch.ones(4, 64, 4, dtype=torch.bool), 0, 1), {}, "permute_i8x16_pack"),
    ("permute", (torch.ones(64, 128).to(torch.uint16), 1, 0), {}, "permute_f16x8_pack"),
    ("index_select", (torch.ones(64, 128).short(), 0, TWO), {}, "index_select_f16x8_pack"),
    ("gather_rows", (torch.ones(64, 128).to(torch.uint32), TWO), {}, "gather_rows_i32x4_pack"),
    ("upsample_nearest2d", (IMAGE.to(torch.uint8), 16), {}, "upsample_nearest2d_forward_i8x16"),
    ("histogram", (TWO, 16), {}, "histogram_i32x4"),
    ("histogram", (TWO.to(torch.uint8), 16), {}, "histogram_i8x16"),
    ("histogram", (TWO.bfloat16(), 16), {"range": (0, 1)}, "histogram_f32x4"),
)


@pytest.mark.parametrize(("name", "args", "named", "serves"), PUBLIC_CALLS)
def test_calls_of_functions_are_understood(
    name: str, args: tuple[Any, ...], named: dict[str, Any], serves: str
) -> None:
    before = [a.clone() for a in args if isinstance(a, Tensor)]
    assert dispatch.which(name, *args, sm=90, **named).name.startswith(serves)
    after = [a for a in args if isinstance(a, Tensor)]
    assert all(map(torch.equal, before, after)), "nothing is computed"


@pytest.mark.parametrize(
    ("name", "args", "named", "says"),
    [
        ("add", (torch.ones(4, 8), 2.0), {}, "PyTorch's kernels serve such a call: add"),
        ("add", (torch.ones(4), torch.ones(4)), {"alpha": 2}, "PyTorch's kernels .*: add"),
        ("mul_add", (torch.ones(4), torch.ones(4), 1.0), {}, "PyTorch's kernels .*: addcmul|mul"),
        ("dropout", (torch.ones(4),), {"training": False}, "nothing is computed"),
        (
            "fused_linear_cross_entropy",
            (torch.ones(2, 3, 8), torch.ones(16, 8), torch.zeros(2, 3, dtype=torch.int64)),
            {"reduction": "none", "softcap": 3.0, "token_weight": torch.ones(2, 3)},
            "of 6 x 16 logits",
        ),
    ],
)
def test_what_the_function_takes_beyond_its_kernels(
    name: str, args: tuple[Any, ...], named: dict[str, Any], says: str
) -> None:
    assert re.search(says, dispatch.which(name, *args, sm=90, **named).reason)


def test_a_call_that_writes_first_leaves_its_arguments() -> None:
    k_cache, v_cache = (torch.zeros(2, 32, 2, 64, dtype=torch.bfloat16) for _ in range(2))
    lengths = torch.zeros(2, dtype=torch.int32)
    tokens = {"k": _heads(2), "v": _heads(2)}
    choice = dispatch.which(
        "attention_with_kv_cache", _heads(8), k_cache, v_cache, lengths, sm=90, **tokens
    )
    assert choice.name.startswith("attention_with_kv_cache_bf16")
    assert not k_cache.any()


def test_asking_draws_nothing() -> None:
    state = torch.get_rng_state()
    assert dispatch.which("dropout", torch.ones(4, 64), 0.5, True, sm=90).variant is not None
    assert torch.equal(torch.get_rng_state(), state)


#: Shapes of scales of blocks, of 4096 x 4096 values.
_BLOCKS = ((4096, 32), (32, 32))


def _codes(rows: int, cols: int, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    return torch.empty(rows, cols, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("b", "scales", "sm", "says"),
    [
        (_codes(4096, 4096, torch.int8).t(), _BLOCKS, 80, "mma_i8: takes no scales of blocks"),
        (_codes(4096, 4096), ((), ()), 89, "mma_fp8: needs a row-major and b column-major"),
        (_codes(4096, 4096), ((), ()), 90, "wgmma_peak: needs a row-major and b column-major"),
    ],
)
def test_where_no_kernel_serves_the_best_says_why(
    b: Tensor, scales: tuple[tuple[int, ...], ...], sm: int, says: str
) -> None:
    made = (torch.empty(shape, device="meta") for shape in scales)
    choice = dispatch.which("scaled_matmul", _codes(4096, 4096, b.dtype), b, *made, sm=sm)
    assert f"no compiled kernel takes the call; {says}" in choice.reason


@pytest.mark.parametrize("scales", [((), ()), _BLOCKS])
@pytest.mark.parametrize("b", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_mma_takes_either_format_and_scales_of_blocks(
    b: torch.dtype, scales: tuple[tuple[int, ...], ...]
) -> None:
    made = (torch.empty(shape, device="meta") for shape in scales)
    args = _codes(4096, 4096), _codes(4096, 4096, b).t(), *made
    variant = dispatch.which("scaled_matmul", *args, sm=89).variant
    assert variant is not None
    assert variant.rung.name == "mma_fp8"


def test_bad_calls_of_functions_raise_here_too() -> None:
    with pytest.raises(RuntimeError, match=r"expected k to have dtype .* like q, got"):
        dispatch.which("flash_attention", _heads(8), _heads(2, torch.float16), _heads(2), sm=90)
    with pytest.raises(RuntimeError, match=r"expected boxes to have shape \(n, 4\), got \(2, 3\)"):
        dispatch.which("nms", _BOXES[:, :3], torch.ones(2), 0.5, sm=90)


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((1, 2), {}, "relu takes x; got 2 arguments"),
        ((1,), {"y": 2}, "relu takes x; got y, unknown to it"),
        ((1,), {"x": 2}, "relu takes x; got x, twice"),
        ((), {}, "relu takes x; got no x"),
        ((1,), {"approximate": "tanh"}, "relu takes x; got approximate, unknown to it"),
    ],
)
def test_wrong_arguments_are_named(
    args: tuple[Any, ...], named: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        dispatch.which("relu", *args, **named)


def _public_calls() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Of each public function that takes a variant and bears the name of its operator, the first
    variant and a call of its dtype.
    """
    found = {}
    for op in catalogue.load().values():
        function = getattr(warpsmith, op.name, None) if families.of_function(op.name) else None
        takes = inspect.signature(function).parameters if function else {}
        if "variant" in takes:
            variant = op.variants[0]
            sample = op.samples_for(variant.dtype)[0].make(op.inputs(variant.dtype))
            named = dict(zip(op.argument_names, dispatch.normalise(op, sample), strict=True))
            named = as_public(function, named)
            found[op.name] = variant, {n: a for n, a in named.items() if n in takes}
    return found


CALLS = _public_calls()


@pytest.mark.parametrize("name", CALLS)
def test_which_is_told_a_variant(name: str) -> None:
    variant, named = CALLS[name]
    choice = dispatch.which(name, **named, variant=variant.name, sm=90)
    if choice.variant is None:
        assert choice.implementation == "refused"
        assert choice.reason.startswith(f"{variant}: ")
    else:
        assert (choice.variant, choice.implementation) == (variant, "cuda")
    assert len(repr(choice)) < 400


def test_which_says_why_a_variant_is_refused() -> None:
    x = torch.randn(4, 4)
    for sm in (None, 90):
        choice = dispatch.which("matmul", x, x, variant="f16_naive_f32", sm=sm)
        assert str(choice) == "refused: matmul_f16_naive_f32: takes f16, got f32"
    peak = dispatch.which("matmul", x.half(), x.half(), variant="f16_wgmma_smem_f32", sm=80)
    assert str(peak) == "refused: matmul_f16_wgmma_smem_f32: needs sm_90, this GPU is sm_80"
    assert dispatch.which("matmul", x, x, variant="f32_naive").implementation == "reference"
    assert dispatch.which("quantize_fp8", x, variant="f32", sm=90).name == "quantize_f32"
    with pytest.raises(ValueError, match="matmul: unknown variant 'f99'"):
        dispatch.which("matmul", x, x, variant="f99")


@pytest.mark.parametrize("name", [warpsmith.rms_norm, None, 3])
def test_which_wants_a_name(name: Any) -> None:
    given = type(name).__name__
    with pytest.raises(TypeError, match=f"^which: expected the name of an operator, got {given}$"):
        warpsmith.which(name, torch.ones(3))


def test_which_wants_a_number_for_a_gpu() -> None:
    with pytest.raises(
        TypeError, match=r"^which: expected sm to be a whole number \(90, say\), got '90'$"
    ):
        warpsmith.which("relu", torch.ones(3), sm="90")  # type: ignore[arg-type]
