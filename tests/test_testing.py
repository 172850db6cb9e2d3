"""The judge is judged: `warpsmith.testing` lets right results pass, and no wrong ones."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from warpsmith.core import catalogue
from warpsmith.core.catalogue import DTYPES, Inputs, Op, Rung, Variant
from warpsmith.proof import testing
from warpsmith.spec import accuracy, peers

DOUBLE = Op(
    "double(Tensor x) -> Tensor",
    family="elementwise",
    reference=lambda x: x * 2,
    ladder=(Rung("scalar", "one value per thread", dtypes=tuple(DTYPES)),),
    triton="none:none",
    fake=torch.empty_like,
    elementwise=True,
)
SILU = Op(
    "swish(Tensor x) -> Tensor",
    family="elementwise",
    reference=torch.nn.functional.silu,
    ladder=(Rung("scalar", "one value per thread"),),
    triton="none:none",
    fake=torch.empty_like,
    elementwise=True,
)
TOTAL = Op(
    "total(Tensor x) -> Tensor",
    family="reduce",
    reference=lambda x: x.sum(-1),
    ladder=(Rung("tree", "a block per row", accumulators=("f32", "same")),),
    triton="none:none",
    fake=lambda x: x.new_empty(x.shape[:-1]),
    accumulates=True,
)
HALVES = Op(
    "halves(Tensor x) -> (Tensor, Tensor)",
    family="elementwise",
    reference=lambda x: (x / 2, x / 4),
    ladder=(Rung("scalar", "one value per thread"),),
    triton="none:none",
    fake=lambda x: (torch.empty_like(x), torch.empty_like(x)),
    elementwise=True,
)
LARGEST = Op(
    "largest(Tensor x) -> Tensor",
    family="reduce",
    reference=lambda x: x.argmax(-1),
    ladder=(Rung("scalar", "one value per thread"),),
    triton="none:none",
    fake=lambda x: x.new_empty(x.shape[:-1], dtype=torch.int64),
)
FLOATING = ("f32", "f16", "bf16", "e4m3", "e5m2")


def inputs(name: str, *shape: int) -> Tensor:
    return Inputs(DTYPES[name]).randn(*shape)


def right(op: Op, x: Tensor) -> Tensor:
    return testing.gold(op, (x,))[0].to(x.dtype)


def ulps(x: Tensor, count: int) -> Tensor:
    """`x` moved by a number of representable values away from zero."""
    width = {4: torch.int32, 2: torch.int16, 1: torch.int8}[x.element_size()]
    return (x.view(width) + count).view(x.dtype)


@pytest.mark.parametrize("name", FLOATING)
@pytest.mark.parametrize("op", [DOUBLE, SILU], ids=str)
def test_right_answer_passes(op: Op, name: str) -> None:
    x = inputs(name, 33, 65)
    comparison = testing.compare(op, right(op, x), (x,))
    assert comparison.ok, comparison.message
    assert comparison.error_ratio <= 1.0
    assert comparison.bad == 0.0


@pytest.mark.parametrize("name", FLOATING)
def test_one_wrong_element_fails(name: str) -> None:
    x = inputs(name, 33, 65)
    out = right(DOUBLE, x)
    out[7, 11] = -out[7, 11].float() - 1
    comparison = testing.compare(DOUBLE, out, (x,), label="33x65")
    assert not comparison.ok
    assert f"double [{name} 33x65]: 1 of 2145 elements" in comparison.message
    assert "worst at (7, 11)" in comparison.message
    assert comparison.bad == pytest.approx(1 / 2145)
    with pytest.raises(AssertionError, match="1 of 2145"):
        testing.assert_matches(DOUBLE, out, (x,))


@pytest.mark.parametrize("name", ["f16", "bf16", "e4m3", "e5m2"])
def test_two_ulp_fail_where_pytorch_is_exact(name: str) -> None:
    x = inputs(name, 999)
    assert testing.compare(DOUBLE, ulps(right(DOUBLE, x), 1), (x,)).ok
    assert not testing.compare(DOUBLE, ulps(right(DOUBLE, x), 2), (x,)).ok


def test_float32_is_credited_with_one_ulp() -> None:
    x = inputs("f32", 999)
    assert testing.compare(DOUBLE, ulps(right(DOUBLE, x), 3), (x,)).ok
    assert not testing.compare(DOUBLE, ulps(right(DOUBLE, x), 4), (x,)).ok


@pytest.mark.parametrize("name", FLOATING)
def test_swallowed_nan_fails(name: str) -> None:
    x = inputs(name, 64)
    x[5] = math.nan
    out = right(DOUBLE, x)
    assert testing.compare(DOUBLE, out, (x,)).ok
    out[5] = 0.0
    assert not testing.compare(DOUBLE, out, (x,)).ok


@pytest.mark.parametrize("name", FLOATING)
def test_invented_nan_fails(name: str) -> None:
    x = inputs(name, 64)
    out = right(DOUBLE, x)
    out[9] = math.nan
    comparison = testing.compare(DOUBLE, out, (x,))
    assert not comparison.ok
    assert "worst at (9,)" in comparison.message


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "e5m2"])
def test_sign_of_infinity_matters(name: str) -> None:
    x = inputs(name, 64)
    x[3], x[4] = math.inf, torch.finfo(x.dtype).max
    out = torch.full_like(x, 0).copy_((x.float() * 2).to(x.dtype))
    out[4] = math.inf
    assert testing.compare(DOUBLE, out, (x,)).ok
    out[3] = -math.inf
    assert not testing.compare(DOUBLE, out, (x,)).ok
    out[3], out[4] = math.inf, -math.inf
    assert not testing.compare(DOUBLE, out, (x,)).ok
    out[4] = 1.0
    assert not testing.compare(DOUBLE, out, (x,)).ok


def test_e4m3_overflow_is_nan_or_saturates() -> None:
    x = torch.tensor([400.0, -400.0, 1.0]).to(torch.float8_e4m3fn)
    nan, top = math.nan, 448.0
    for values, ok in (
        ((nan, nan, 2.0), True),
        ((top, -top, 2.0), True),
        ((top, top, 2.0), False),
        ((416.0, -top, 2.0), False),
    ):
        out = torch.tensor(values).to(torch.float8_e4m3fn)
        assert testing.compare(DOUBLE, out, (x,)).ok is ok, values


def test_subnormal_answers_have_subnormal_tolerance() -> None:
    x = torch.tensor([2.0**-24], dtype=torch.float16)
    assert testing.compare(DOUBLE, torch.tensor([2.0**-23]).half(), (x,)).ok
    assert not testing.compare(DOUBLE, torch.tensor([2.0**-21]).half(), (x,)).ok


@pytest.mark.parametrize("name", FLOATING)
def test_unwritten_output_fails(name: str) -> None:
    x = inputs(name, 16, 16)
    with testing.poison():
        out = torch.empty_like(x)
    out[:15].copy_(right(DOUBLE, x)[:15])
    comparison = testing.compare(DOUBLE, out, (x,))
    assert not comparison.ok
    assert "16 of 256 elements" in comparison.message


def test_poison_restores_the_modes() -> None:
    before = torch.are_deterministic_algorithms_enabled()
    with testing.poison():
        assert torch.empty(8).isnan().all()
        assert (torch.empty(8, dtype=torch.int8) == 127).all()
    assert torch.are_deterministic_algorithms_enabled() == before


def test_layout_is_part_of_the_answer() -> None:
    x = inputs("f32", 8, 9)
    out = right(DOUBLE, x)
    transposed = torch.empty(9, 8).t().copy_(out)
    assert "strides" in testing.compare(DOUBLE, transposed, (x,)).message
    assert "dtype" in testing.compare(DOUBLE, out.double(), (x,)).message
    assert "shape" in testing.compare(DOUBLE, out[:7], (x,)).message
    assert "2 outputs" in testing.compare(DOUBLE, (out, out), (x,)).message
    assert testing.compare(DOUBLE, right(DOUBLE, x.t()), (x.t(),)).ok


def test_strides_of_single_elements_are_free() -> None:
    x = torch.ones(1, 7)
    assert testing.compare(DOUBLE, torch.full((7,), 2.0).as_strided((1, 7), (3, 1)), (x,)).ok


def test_every_output_is_judged() -> None:
    x = inputs("bf16", 40)
    a, b = (g.to(x.dtype) for g in testing.gold(HALVES, (x,)))
    assert testing.compare(HALVES, (a, b), (x,)).ok
    assert "output 1" in testing.compare(HALVES, (a, a), (x,)).message


def test_integers_have_no_tolerance() -> None:
    x = inputs("f16", 12, 31)
    out = x.argmax(-1)
    assert testing.compare(LARGEST, out, (x,)).ok
    out[4] += 1
    comparison = testing.compare(LARGEST, out, (x,))
    assert "first at (4,)" in comparison.message
    y = torch.arange(-9, 9, dtype=torch.int32)
    assert testing.compare(DOUBLE, y * 2, (y,)).ok
    assert not testing.compare(DOUBLE, y * 2 + (y == 3), (y,)).ok


def test_one_float32_answer_is_credited_with_one_ulp() -> None:
    """That PyTorch is exact at the only result of a reduction is luck."""
    exact = torch.tensor([0.75], dtype=torch.float64)
    theirs = exact.float()
    step = 2.0**-24
    for ulps, right in ((3, True), (4, False), (-3, True), (-4, False)):
        ours = (exact + ulps * step).float()
        assert testing.compare_tensors(ours, exact, theirs, elementwise=False).ok == right, ulps


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_reductions_are_judged_against_the_largest(name: str) -> None:
    x = inputs(name, 20, 500)
    out = right(TOTAL, x)
    assert testing.compare(TOTAL, out, (x,)).ok
    scale = out.abs().max().double()
    largest = testing.ulp(scale, x.dtype)
    comparison = testing.compare(TOTAL, (out.double() + 8 * largest).to(x.dtype), (x,))
    theirs = (testing.yardstick(TOTAL, (x,))[0] - testing.gold(TOTAL, (x,))[0]).abs().max()
    assert comparison.ok == bool(2 * theirs > 7 * largest)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_low_precision_accumulator_is_bounded(name: str) -> None:
    variant = Variant(TOTAL, TOTAL.ladder[0], name, name)
    x = Inputs(DTYPES[name]).plain(4, 2048).abs()
    exact = testing.gold(TOTAL, (x,))[0]
    depth = 2048 / 32 + 12
    allowed = min(depth * torch.finfo(x.dtype).eps / 2, 0.25)
    near = (exact * (1 - 0.8 * allowed)).to(x.dtype)
    far = (exact * (1 - 1.3 * allowed)).to(x.dtype)
    assert testing.compare(TOTAL, near, (x,), variant=variant).ok
    assert not testing.compare(TOTAL, near, (x,)).ok
    assert not testing.compare(TOTAL, far, (x,), variant=variant).ok


EVERYTHING = Op(
    "everything(Tensor x) -> Tensor",
    family="reduce",
    reference=lambda x: x.sum(),
    ladder=(Rung("pack", "a few values a thread", dtypes=("e4m3",), accumulators=("f16",)),),
    triton="none:none",
    fake=lambda x: x.new_empty((), dtype=torch.float32),
    accumulates=True,
    terms=lambda x: x.flatten(),
    low_precision_terms=64,
)


def test_low_precision_terms_bound_a_sum_in_16_bits() -> None:
    """By the depth that the operator names, however many terms there are."""
    variant = EVERYTHING.variants[0]
    assert variant.low_precision
    x = Inputs(torch.float8_e4m3fn).plain(300, 200)
    x = x.float().abs().to(x.dtype)
    exact = testing.gold(EVERYTHING, (x,))[0]
    allowed = 64 * torch.finfo(torch.float16).eps / 2
    near, far = ((exact * (1 - share * allowed)).float() for share in (0.9, 1.1))
    assert testing.compare(EVERYTHING, near, (x,), variant=variant).ok
    assert not testing.compare(EVERYTHING, near, (x,)).ok
    assert not testing.compare(EVERYTHING, far, (x,), variant=variant).ok


def test_low_precision_terms_that_fit_are_judged() -> None:
    """64 values of 448 stay below half of 65504, so an overflow is wrong; of twice that, they may
    not.
    """
    variant = EVERYTHING.variants[0]
    x = torch.full((1000,), 448.0).to(torch.float8_e4m3fn)
    infinite = torch.tensor(math.inf)
    assert not testing.compare(EVERYTHING, infinite, (x,), variant=variant).ok
    larger = dataclasses.replace(EVERYTHING, terms=lambda x: 2 * x.flatten())
    assert testing.compare(larger, infinite, (x,), variant=variant).ok


def test_overflowing_accumulator_is_not_judged() -> None:
    variant = Variant(TOTAL, TOTAL.ladder[0], "f16", "f16")
    x = torch.tensor([6e4, -6e4]).half().repeat(2, 32)  # its sum is 0, partial sums overflow
    infinite = torch.full((2,), math.inf).half()
    assert testing.compare(TOTAL, infinite, (x,), variant=variant).ok
    assert not testing.compare(TOTAL, infinite, (x,)).ok


def test_beyond_what_a_rung_is_valid_for_only_the_layout_counts() -> None:
    timid = Rung("timid", "right below 10", valid=lambda x: bool((x < 10).all()))
    variant = Variant(TOTAL, timid, "f32", "f32")
    small, large = torch.ones(2, 64), torch.full((2, 64), 20.0)
    assert testing.compare(TOTAL, torch.full((2,), 64.0), (small,), variant=variant).ok
    assert not testing.compare(TOTAL, torch.zeros(2), (small,), variant=variant).ok
    assert testing.compare(TOTAL, torch.zeros(2), (large,), variant=variant).ok
    assert not testing.compare(TOTAL, torch.zeros(3), (large,), variant=variant).ok
    assert not testing.compare(TOTAL, torch.zeros(2), (large,)).ok


def test_cancelling_formulas_are_judged_by_their_kind() -> None:
    """Near a derivative's zero, float32 is off by an ulp of its terms, not of their sum."""
    grid = torch.linspace(-1.4, -1.1, 4001)
    derivative = Op(
        "swish_slope(Tensor x) -> Tensor",
        family="elementwise",
        reference=lambda x: torch.sigmoid(x) * (1 + x * (1 - torch.sigmoid(x))),
        ladder=(Rung("scalar", "one value per thread"),),
        triton="none:none",
        fake=torch.empty_like,
        elementwise=True,
    )
    s = 1 / (1 + torch.exp(-grid))
    fused = torch.addcmul(s, s * grid, 1 - s)
    assert testing.compare(derivative, fused, (grid,)).ok
    assert not testing.compare(derivative, fused + 1e-6, (grid,)).ok


def test_large_answers_are_judged_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "PIECE", 1000)
    x = inputs("bf16", 70, 100)
    out = right(DOUBLE, x)
    assert testing.compare(DOUBLE, out, (x,)).ok
    out[53, 3] = 77.0
    comparison = testing.compare(DOUBLE, out, (x,))
    assert "from row 50" in comparison.message
    assert comparison.error > 1.0
    whole = testing.Expected.of(DOUBLE, (x,))
    comparison = testing.compare(DOUBLE, out, (x,), expected=whole)
    assert "from 0 of dimension 1: 1 of 980 elements" in comparison.message


@pytest.mark.parametrize("shape", [(70, 100), (96, 32)], ids=str)
def test_what_does_not_broadcast_over_rows_is_not_cut(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bits of all elements, which each piece would read from the first on; as many words as rows,
    which would go with them.
    """
    monkeypatch.setattr(accuracy, "PIECE", 1000)
    x = inputs("f32", *shape)
    forward, backward = catalogue.get("dropout"), catalogue.get("dropout_backward")
    drawn = (x, 0.5, 1, 2)
    y, mask = forward.reference(*drawn)
    assert testing.compare(forward, (y, mask), drawn).ok
    assert testing.compare(backward, backward.reference(x, mask, 0.5), (x, mask, 0.5)).ok


def test_pieces_of_a_reduction_share_the_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Inputs(torch.bfloat16).plain(3000, 50)
    x[1700] *= 1000
    out = right(TOTAL, x)
    out[2900] += testing.ulp(out.abs().max().double(), x.dtype).to(x.dtype)
    whole = testing.compare(TOTAL, out, (x,))
    monkeypatch.setattr(accuracy, "PIECE", 1000)
    pieces = testing.compare(TOTAL, out, (x,))
    assert whole.ok == pieces.ok
    assert whole.error == pieces.error
    assert whole.torch_error == pieces.torch_error


def test_errors_nearby_are_those_of_inputs_that_differ_in_their_last_bit() -> None:
    eps = 2.0**-23
    at, count = torch.ones(8), torch.arange(8)

    def largest(way: Callable[..., Any], exactly: Callable[..., Any], **options: Any) -> float:
        return accuracy.largest_error((way,), exactly, (at, count), 0, **options)

    # 1 + 10000 is exact in float32; the numbers next to 1 lose all of their distance from it.
    assert largest(lambda x, _: (x + 10000 - 10000,), lambda x, _: (x.double(),)) == eps
    assert largest(lambda x, _: x + 10000 - 10000, lambda x, _: x.double(), neighbours=0) == 0.0
    assert largest(lambda x, _: (x * 2,), lambda x, _: (x.double() * 2,)) == 0.0

    # Who rounds to bfloat16 takes no note of a bit of float32, but of one of bfloat16.
    def narrow(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return x.bfloat16().float() - 1

    assert largest(narrow, lambda x, _: x.bfloat16().double()) == 1.0
    assert largest(narrow, lambda x, _: x.bfloat16().double() - 1, eps=2.0**-7) == 0.0
    assert largest(lambda x, _: narrow(x, _) * 2, lambda x, _: x.double() - 1, eps=2.0**-7) > 0.007


def test_the_largest_error_is_that_of_the_worst_way() -> None:
    x = torch.ones(8)
    ways = [lambda x, e=e: x + e for e in (0.25, -0.5, math.nan, math.inf, 0.125)]
    assert accuracy.largest_error(ways, lambda x: x.double(), (x,), 0, neighbours=0) == 0.5


@pytest.mark.parametrize("count", [100, 5000])
def test_answers_are_allowed_the_errors_of_alternatives_and_no_more(count: int) -> None:
    asked = []

    def alternative(x: Tensor) -> Tensor:
        asked.append(x.shape)
        return x + 1e-4

    plain = dataclasses.replace(TOTAL, reference=lambda x: x, fake=torch.empty_like)
    op = dataclasses.replace(plain, alternatives=(alternative,))
    x = torch.ones(count)
    assert testing.compare(op, x + 1e-7, (x,)).ok
    assert not asked, "a right answer needs no second opinion"
    assert testing.compare(op, x + 1.9e-4, (x,)).ok
    assert asked
    assert not testing.compare(op, x + 2.1e-4, (x,)).ok
    assert not testing.compare(op, x + 1e-3, (x,)).ok
    assert not testing.compare(plain, x + 1.9e-4, (x,)).ok
    elementwise = dataclasses.replace(op, elementwise=True)
    assert not testing.compare(elementwise, x + 1.9e-4, (x,)).ok


def test_few_answers_are_allowed_the_errors_nearby_and_no_more() -> None:
    def lucky(x: Tensor) -> Tensor:
        """x, but in float32 off by 1e-4 everywhere beside 1."""
        return x if x.dtype == torch.float64 else torch.where(x == 1, x, x + 1e-4)

    op = dataclasses.replace(TOTAL, reference=lucky, fake=torch.empty_like)
    few, many = torch.ones(100), torch.ones(5000)
    assert testing.compare(op, few + 1.5e-4, (few,)).ok
    assert not testing.compare(op, few + 3e-4, (few,)).ok
    assert not testing.compare(op, many + 1.5e-4, (many,)).ok


def test_unchanged_sees_writes_beside_the_view() -> None:
    base = torch.zeros(16)
    with testing.unchanged((base[2:5], 3)):
        pass
    with pytest.raises(AssertionError, match="argument 0"), testing.unchanged((base[2:5],)):
        base[9] = 1.0
    nan = torch.full((4,), math.nan)
    with testing.unchanged((nan,)):
        pass


def test_ulp_is_the_distance_to_the_next_value() -> None:
    for name in FLOATING:
        dtype = DTYPES[name]
        for value in (1.0, 1.75, 0.25, 13.0, torch.finfo(dtype).tiny, 0.0):
            here = torch.tensor([value]).to(dtype)
            gap = ulps(here, 1).double() - here.double()
            assert float(testing.ulp(here.double(), dtype)) == float(gap), (name, value)


def test_what_a_peer_saved_goes_with_its_input() -> None:
    saved = peers.PerInput(lambda x, factor: x * factor)
    x, y = torch.ones(4), torch.ones(4)
    first = saved(x, 2.0)
    assert saved(x, 2.0) is first
    assert saved(y, 3.0) is not first
    assert len(saved.known) == 2
    del x
    assert len(saved.known) == 1


def test_a_wrong_nan_or_integer_has_no_ratio() -> None:
    exact = torch.randn(100, dtype=torch.float64)
    theirs = exact.float()
    off = theirs * (1 + 1e-6)
    finite = accuracy.compare_tensors(off, exact, theirs, elementwise=True)
    assert not finite.ok
    assert math.isfinite(finite.error_ratio)
    off[3] = math.nan
    assert accuracy.compare_tensors(off, exact, theirs, elementwise=True).error_ratio == math.inf
    ones = torch.ones(4, dtype=torch.int32)
    wrong = accuracy.compare_tensors(ones, 2.0 * ones.double(), ones, elementwise=True)
    assert not wrong.ok
    assert wrong.error_ratio == math.inf
