"""Weights of few bits: what others write becomes words, words become what they stand for."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import warpsmith
from warpsmith.gemm.quantized_weight import codes_of, dequantized, packed

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def words(codes: Tensor, order: tuple[int, ...]) -> Tensor:
    """[a, 8 b] to int32 [a, b]: column order[i] of eight in the i-th four bits."""
    found = torch.zeros(codes.shape[0], codes.shape[1] // 8, dtype=torch.int64)
    for place, column in enumerate(order):
        found |= codes[:, column::8].long() << (4 * place)
    return torch.where(found >= 2**31, found - 2**32, found).to(torch.int32)


def made(n: int, k: int, group: int, layout: str, seed: int = 0) -> tuple[dict[str, Any], Tensor]:
    """Arguments of the repacking, and the weight [n, k] that they stand for."""
    g = generator(seed)
    groups = k // group
    codes = torch.randint(0, 16, (n, k), generator=g)
    zeros = torch.randint(0, 16, (groups, n), generator=g)
    scales = torch.rand(groups, n, generator=g).half() * 0.1
    if layout == "awq":
        given = {"qweight": words(codes.t(), AWQ_ORDER), "qzeros": words(zeros, AWQ_ORDER)}
    else:
        in_order = tuple(range(8))
        given = {"qweight": words(codes, in_order).t(), "qzeros": words(zeros, in_order)}
        zeros = zeros + int(layout == "gptq")
    spread = [t.t().repeat_interleave(group, 1) for t in (zeros, scales)]
    return given | {"scales": scales, "layout": layout}, (codes - spread[0]) * spread[1].double()


@pytest.mark.parametrize("layout", ["awq", "gptq", "gptq_v2"])
@pytest.mark.parametrize(("n", "k", "group"), [(64, 64, 32), (72, 256, 64), (8, 128, 128)])
def test_four_bits_of_each_layout(layout: str, n: int, k: int, group: int) -> None:
    given, weight = made(n, k, group, layout)
    of = warpsmith.repack_quantized_weight(**given)
    assert of.weight.shape == (-(-n // 64), -(-k // 64), 512)
    assert of.zeros is not None
    assert of.zeros.dtype == torch.int8
    assert torch.equal(dequantized(of.weight, of.scales.double(), of.zeros, k), weight)
    x = torch.randn(3, k, generator=generator(1)).half()
    y = warpsmith.quantized_linear(x, *of)
    torch.testing.assert_close(y.double(), F.linear(x.double(), weight), rtol=1e-3, atol=1e-2)


def test_without_zeros_the_middle_is_zero() -> None:
    given, _ = made(16, 64, 64, "gptq_v2")
    plain = warpsmith.repack_quantized_weight(**given | {"qzeros": None})
    eights = torch.full((1, 2), int("0x08888888", 16) - 2**31, dtype=torch.int32)
    said = warpsmith.repack_quantized_weight(**given | {"qzeros": eights})
    assert plain.zeros is None
    assert said.zeros is not None
    assert said.zeros.eq(8).all()
    x = torch.randn(3, 64).half()
    assert torch.equal(warpsmith.quantized_linear(x, *plain), warpsmith.quantized_linear(x, *said))


@pytest.mark.parametrize("group", [0, 32, 128])
def test_eight_bits(group: int) -> None:
    q = torch.randint(-128, 128, (40, 256), generator=generator(), dtype=torch.int8)
    groups = 256 // group if group else 1
    scales = torch.rand(40, groups, generator=generator(2)) * 0.01
    of = warpsmith.repack_quantized_weight(
        q, scales if group else scales[:, 0], layout="int8", dtype=torch.bfloat16
    )
    assert of.weight.shape == (1, 4, 1024)
    assert of.zeros is None
    assert of.scales.dtype == torch.bfloat16
    spread = scales.bfloat16().repeat_interleave(256 // groups, 1)
    wanted = q * spread.double()
    assert torch.equal(dequantized(of.weight, of.scales.double(), None, 256), wanted)


def test_quantize_int8_makes_such_a_weight() -> None:
    weight, x = torch.randn(24, 128, generator=generator()), torch.randn(5, 128)
    q, scale = warpsmith.quantize_int8(weight)
    of = warpsmith.repack_quantized_weight(q, scale, layout="int8")
    torch.testing.assert_close(
        warpsmith.quantized_linear(x, *of), F.linear(x, weight), rtol=0.05, atol=0.5
    )


@pytest.mark.parametrize("bits", [4, 8])
def test_words_lie_as_the_picture_says(bits: int) -> None:
    """By the formulas of quantized_linear.h, a code at a time."""
    least, most = (0, 16) if bits == 4 else (-128, 128)
    codes = torch.randint(least, most, (70, 130), generator=generator())
    found = packed(codes, bits)
    assert torch.equal(codes_of(found, 70, 130).long(), codes)
    for j, column in ((0, 0), (9, 1), (17, 63), (63, 64), (69, 129), (45, 90)):
        fragment, right, t = column % 64 // 16, column // 8 % 2, column % 8 // 2
        second, lane, r, down = column % 2, 4 * (j % 8) + t, j % 64 // 16, j // 8 % 2
        if bits == 4:
            word, bit = 128 * r + 4 * lane + fragment, 4 * (down + 2 * right) + 16 * second
        else:
            word = 256 * r + 128 * (fragment // 2) + 4 * lane + 2 * (fragment % 2) + right
            bit = 8 * down + 16 * second
        code = int(found[j // 64, column // 64, word]) >> bit & (2**bits - 1)
        assert code == int(codes[j, column]) & (2**bits - 1)


@pytest.mark.parametrize(("k", "group", "bits"), [(192, 64, 4), (448, 0, 4), (448, 0, 8)])
def test_an_infinite_scale_of_a_long_group_in_the_twin(k: int, group: int, bits: int) -> None:
    """The twin adds long groups up in parts, which an infinite scale must not meet one by one."""
    pytest.importorskip("triton")
    if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("the twin runs here in the interpreter only")
    from warpsmith.gemm import quantized_linear_triton

    g = generator(3)
    groups = k // group if group else 1
    words_of_unit = 512 if bits == 4 else 1024
    weight = torch.randint(-(2**31), 2**31, (1, k // 64, words_of_unit), generator=g)
    x = torch.randint(-2, 3, (3, k), generator=g).half()
    scales = torch.zeros(groups, 16).half()
    scales[0] = float("inf")
    given = (x, weight.to(torch.int32), scales, None, None)
    found = quantized_linear_triton.quantized_linear(*given)
    sums = x[:, : group or k].double() @ codes_of(given[1], 16, k).double()[:, : group or k].t()
    if bits == 4:
        sums -= 8 * x[:, : group or k].double().sum(-1, keepdim=True)
    assert sums.ne(0).any()
    assert torch.equal(found.double().nan_to_num(7.0), (sums * float("inf")).nan_to_num(7.0))


def test_order_of_groups() -> None:
    given, _ = made(16, 128, 32, "gptq")
    in_order = torch.arange(128, dtype=torch.int32) // 32
    with_it = warpsmith.repack_quantized_weight(**given, g_idx=in_order)
    assert torch.equal(with_it.weight, warpsmith.repack_quantized_weight(**given).weight)
    with pytest.raises(RuntimeError, match="expected g_idx to name groups in their order"):
        warpsmith.repack_quantized_weight(**given, g_idx=in_order.flip(0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qweight": torch.ones(8, 8)}, r"expected qweight of 'gptq' .* got \(8, 8\) of torch"),
        ({"scales": torch.ones(4, 16, dtype=torch.int32)}, "expected scales to be a floating"),
        ({"scales": torch.ones(4, 24)}, r"expected scales of 16 columns .* got \(4, 24\)"),
        ({"scales": torch.ones(8, 16)}, "groups of 32, 64 or 128 of 128 values, got 8 groups"),
        ({"qzeros": torch.ones(4, 2)}, r"expected qzeros to be 2-D .* torch\.float32"),
        ({"qzeros": torch.ones(2, 2).int()}, r"expected qzeros to stand for \(4, 16\) zeros"),
        ({"scales": torch.ones(16)}, r"expected scales of 'gptq' to be 2-D, got shape \(16,\)"),
        ({"scales": torch.ones(4, 16).to(torch.float8_e4m3fn)}, "at least 16 bits an element, got"),
        ({"scales": torch.ones(4, 16, device="meta")}, "expected scales to be on cpu like qweight"),
        ({"g_idx": torch.ones(128, device="meta")}, "expected g_idx to be on cpu like qweight"),
        ({"dtype": torch.int8}, r"expected dtype to be torch\.float32, .* got torch\.int8"),
        ({"dtype": torch.float8_e5m2}, r"expected dtype to be .* got torch\.float8_e5m2"),
        ({"qweight": [1]}, "expected qweight to be a tensor, got list"),
        ({"scales": None}, "expected scales to be a tensor, got None"),
        ({"qzeros": [1]}, "expected qzeros to be a tensor or None, got list"),
        ({"g_idx": 3}, "expected g_idx to be a tensor or None, got int"),
    ],
)
def test_what_does_not_fit(changes: dict[str, Any], message: str) -> None:
    given, _ = made(16, 128, 32, "gptq")
    with pytest.raises((RuntimeError, TypeError), match=f"repack_quantized_weight: .*{message}"):
        warpsmith.repack_quantized_weight(**given | changes)


@pytest.mark.parametrize("shape", [(), (8, 2, 1)])
def test_scales_of_int8_have_one_or_two_dimensions(shape: tuple[int, ...]) -> None:
    q = torch.ones(8, 64, dtype=torch.int8)
    with pytest.raises(RuntimeError, match="expected scales of 'int8' to be 1-D or 2-D, got shape"):
        warpsmith.repack_quantized_weight(q, torch.ones(shape), layout="int8")


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("layout", ["awq", "gptq"])
def test_repacking_compiles_whole(layout: str, dynamic: bool) -> None:
    given, _ = made(16, 128, 32, layout)
    repack = warpsmith.repack_quantized_weight
    compiled = torch.compile(repack, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for ours, wanted in zip(compiled(**given), repack(**given), strict=True):
        assert torch.equal(ours, wanted)


def test_unknown_layout_and_zeros_of_int8() -> None:
    q, scales = torch.ones(8, 64, dtype=torch.int8), torch.ones(8)
    with pytest.raises(ValueError, match=r"expected layout to be 'awq', .* got 'marlin'"):
        warpsmith.repack_quantized_weight(q, scales, layout="marlin")
    with pytest.raises(RuntimeError, match="expected qzeros to be None for 'int8'"):
        warpsmith.repack_quantized_weight(q, scales, torch.ones(1, 1).int(), "int8")
    with pytest.raises(RuntimeError, match="expected qweight of 'int8' to be 2-D"):
        warpsmith.repack_quantized_weight(q.int(), scales, layout="int8")


def test_gradients_are_those_of_the_dense_layer() -> None:
    """Whole numbers, so that sums have no order."""

    def numbers(seed: int, *shape: int) -> Tensor:
        return torch.randint(-4, 5, shape, generator=generator(seed)).float()

    given, weight = made(24, 64, 32, "awq")
    of = warpsmith.repack_quantized_weight(**given, dtype=torch.float32)
    x, bias, scales = (
        t.requires_grad_() for t in (numbers(1, 5, 64), numbers(2, 24), of.scales.clone())
    )
    y = warpsmith.quantized_linear(x, of.weight, scales, of.zeros, bias)
    grad = numbers(3, 5, 24)
    dx, dbias, dscales = torch.autograd.grad(y, (x, bias, scales), grad)
    torch.testing.assert_close(dx, grad @ weight.float())
    assert torch.equal(dbias, grad.sum(0))
    codes = (weight / of.scales.double().t().repeat_interleave(32, 1)).round()
    each = (grad.t() @ x.detach()) * codes
    assert torch.equal(dscales, each.view(24, 2, 32).sum(-1).t().float())
    assert not of.weight.requires_grad


def test_a_bias_in_f32_beside_rows_in_16_bits() -> None:
    given, _ = made(64, 64, 32, "gptq")
    repacked = warpsmith.repack_quantized_weight(**given)
    x = torch.randn(4, 64, generator=generator(1)).half()
    bias = torch.randn(64, generator=generator(2)).requires_grad_()
    y = warpsmith.quantized_linear(x, *repacked, bias)
    assert torch.equal(y, warpsmith.quantized_linear(x, *repacked, bias.detach().half()))
    y.sum().backward()
    assert bias.grad is not None
    assert bias.grad.dtype == torch.float32
    assert torch.equal(bias.grad, torch.full_like(bias, 4.0))
