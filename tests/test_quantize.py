"""Quantisation: what shares a scale, the bits, and the products that the codes are for."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import warpsmith
from warpsmith.quantize.reference import LEAST_SCALE, SHARERS, dequantized

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@pytest.mark.parametrize("granularity", list(SHARERS))
def test_shapes_of_scales(granularity: str) -> None:
    q, scale = warpsmith.quantize_fp8(torch.randn(130, 300), granularity)
    shapes = {"tensor": (), "token": (130,), "group": (130, 3), "block": (2, 3)}
    assert q.shape == (130, 300)
    assert q.dtype == torch.float8_e4m3fn
    assert tuple(scale.shape) == shapes[granularity]
    assert scale.dtype == torch.float32


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("granularity", list(SHARERS))
def test_the_scale_is_a_quotient_and_codes_are_products(
    granularity: str, dtype: torch.dtype
) -> None:
    """Value by value, in a loop that has nothing of the reference."""
    x = torch.randn(3, 130, generator=torch.Generator().manual_seed(1)) * 7
    q, scale = warpsmith.quantize_fp8(x, granularity, dtype)
    largest = torch.tensor(torch.finfo(dtype).max)
    for r in range(3):
        for c in (0, 1, 127, 128, 129):
            whole = {
                "tensor": x,
                "token": x[r],
                "group": x[r, c // 128 * 128 :][:128],
                "block": x[:, c // 128 * 128 :][:, :128],
            }[granularity]
            wanted = whole.abs().max() / largest
            at = {"tensor": (), "token": (r,), "group": (r, c // 128), "block": (0, c // 128)}
            assert scale[at[granularity]] == wanted
            assert q[r, c].float() == (x[r, c] * (1 / wanted)).to(dtype).float()


@pytest.mark.parametrize("dtype", FP8)
def test_the_largest_value_has_the_largest_code(dtype: torch.dtype) -> None:
    x = torch.randn(1000, 64, generator=torch.Generator().manual_seed(2)).exp()
    q, _ = warpsmith.quantize_fp8(x, "token", dtype)
    assert (q.float().amax(-1) == torch.finfo(dtype).max).all()
    q8, _ = warpsmith.quantize_int8(-x)
    assert (q8.amin(-1) == -127).all()


def test_zeros_have_the_least_scale() -> None:
    for q, scale in (
        warpsmith.quantize_fp8(torch.zeros(2, 8)),
        warpsmith.quantize_int8(torch.zeros(2, 8)),
        warpsmith.silu_and_mul_quantize(torch.zeros(2, 8)),
        warpsmith.rms_norm_quantize(torch.zeros(2, 8)),
        warpsmith.quantize_fp8(torch.full((2, 8), 1e-44)),
    ):
        assert (scale == LEAST_SCALE).all()
        assert (q.float() == 0).all()


def test_nan_and_infinity_spoil_what_shares_their_scale_and_no_more() -> None:
    x = torch.ones(4, 256)
    x[1, 3], x[2, 200] = float("nan"), float("-inf")
    q, scale = warpsmith.quantize_fp8(x, "group")
    assert scale[1].isnan().tolist() == [True, False]
    assert scale[2].isinf().tolist() == [False, True]
    assert q[1, :128].float().isnan().all()
    assert q[1, 128:].float().eq(448).all()
    assert q[2, 200].float().isnan()
    assert q[2, 128:200].float().eq(0).all()
    codes, scale = warpsmith.quantize_int8(x)
    assert codes[1].eq(0).all()
    assert scale[1].isnan()
    assert codes[2].eq(0).all()
    assert scale[2].isinf()


@pytest.mark.parametrize(
    ("left", "right"), [("tensor", "tensor"), ("token", "token"), ("group", "block")]
)
def test_codes_and_scales_are_what_scaled_matmul_takes(left: str, right: str) -> None:
    x, weight = torch.randn(37, 300), torch.randn(200, 300)
    (a, scale_a), (b, scale_b) = (
        warpsmith.quantize_fp8(x, left),
        warpsmith.quantize_fp8(weight, right),
    )
    along = scale_b.t() if right == "block" else scale_b
    out = warpsmith.scaled_matmul(a, b.t(), scale_a, along, "f32")
    exact = (
        dequantized(a, scale_a, SHARERS[left]).double()
        @ dequantized(b, scale_b, SHARERS[right]).double().t()
    )
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(out, x @ weight.t(), rtol=0.1, atol=4.0)


def test_int8_codes_multiply_too() -> None:
    x, weight = torch.randn(37, 300), torch.randn(200, 300)
    (a, scale_a), (b, scale_b) = warpsmith.quantize_int8(x), warpsmith.quantize_int8(weight)
    out = warpsmith.scaled_matmul(a, b.t(), scale_a, scale_b, "f32")
    torch.testing.assert_close(out, x @ weight.t(), rtol=0.05, atol=1.0)


@pytest.mark.parametrize("group", [0, 128])
@pytest.mark.parametrize("dtype", FP8)
def test_fused_is_the_quantiser_of_the_unrounded_values(group: int, dtype: torch.dtype) -> None:
    granularity = "group" if group else "token"
    x, weight = torch.randn(9, 512).bfloat16(), torch.randn(512)
    normal = F.rms_norm(x.float(), (512,), weight, 1e-6)
    for fused, values in (
        (warpsmith.rms_norm_quantize(x, weight, dtype, group), normal),
        (
            warpsmith.silu_and_mul_quantize(x, None, dtype, group),
            F.silu(x[:, :256].float()) * x[:, 256:].float(),
        ),
    ):
        q, scale = warpsmith.quantize_fp8(values, granularity, dtype)
        torch.testing.assert_close(fused[1], scale, rtol=1e-6, atol=0)
        same = (fused[0].float() == q.float()).float().mean()
        assert same > 0.99  # what lies next to the middle of two codes may fall to either


def test_a_weight_around_zero() -> None:
    x, weight = torch.randn(3, 128), torch.randn(128)
    around, plain = (
        warpsmith.rms_norm_quantize(x, w, zero_centered=z)
        for w, z in ((weight, True), (weight + 1, False))
    )
    assert torch.equal(around[0].float(), plain[0].float())


def test_messages_name_what_is_wrong() -> None:
    x = torch.ones(2, 8)
    with pytest.raises(ValueError, match=r"expected granularity to be 'tensor', .* got 'row'"):
        warpsmith.quantize_fp8(x, "row")
    with pytest.raises(ValueError, match="'tensor' or 'token', got 'group'"):
        warpsmith.quantize_int8(x, "group")
    with pytest.raises(RuntimeError, match=r"quantize_fp8: expected dtype .* got torch\.int8"):
        warpsmith.quantize_fp8(x, "token", torch.int8)
    with pytest.raises(RuntimeError, match="expected x to be 2-D for blocks"):
        warpsmith.quantize_fp8(torch.ones(2, 3, 8), "block")
    with pytest.raises(RuntimeError, match="expected group to be 0, a row, or 128, got 64"):
        warpsmith.rms_norm_quantize(x, group=64)


def test_not_differentiable() -> None:
    x = torch.ones(2, 8, requires_grad=True)
    for _, scale in (
        warpsmith.quantize_fp8(x),
        warpsmith.rms_norm_quantize(x),
        warpsmith.silu_and_mul_quantize(x),
    ):
        with pytest.raises(RuntimeError):
            scale.sum().backward()


def test_a_gradient_is_refused_by_the_public_name() -> None:
    """It would be lost in silence otherwise."""
    x = torch.randn(4, 128, requires_grad=True)
    for function, name in (
        (warpsmith.quantize_fp8, "quantize_fp8"),
        (warpsmith.quantize_int8, "quantize_int8"),
    ):
        _, scale = function(x)
        with pytest.raises(RuntimeError, match=f"^{name}: the derivative"):
            scale.sum().backward()
        assert not function(x.detach())[1].requires_grad
