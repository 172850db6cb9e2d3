"""References of what the documentation says: formulas that do not cancel, rounded once."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

import warpsmith
from warpsmith.core import catalogue, references
from warpsmith.core.catalogue import Op
from warpsmith.proof import testing
from warpsmith.proof.verify.run import Run, usable_samples
from warpsmith.spec import accuracy

#: Computed by PyTorch in several steps; sigmoid_backward too, whose 1 - s cancels before it rounds.
COMPOSED = (
    "mul_add",
    "bias_gelu",
    "bias_gelu_backward",
    "bias_gelu_tanh",
    "bias_gelu_tanh_backward",
    "silu_and_mul",
    "silu_and_mul_backward",
    "gelu_and_mul",
    "gelu_and_mul_backward",
    "gelu_tanh_and_mul",
    "gelu_tanh_and_mul_backward",
    "glu_backward",
    "quick_gelu",
    "quick_gelu_backward",
    "weighted_sum_forward",
    "bias_dropout_add",
)


def test_a_product_and_a_sum_are_rounded_once() -> None:
    x, z = torch.tensor([1.0078125], dtype=torch.bfloat16), torch.tensor(-1.015625)
    assert warpsmith.mul_add(x, x, z.bfloat16()).item() == 2.0**-14


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("op", [catalogue.get(name) for name in COMPOSED], ids=str)
def test_rounds_once(op: Op, dtype: str) -> None:
    """Half a unit in the last place, and what float32 makes of the arithmetic before."""
    run = Run(op, torch.device("cpu"), frozenset(), (dtype,), [])
    for sample, args in usable_samples(run, dtype)[:4]:
        exact, rounded = testing.gold(op, args), testing.yardstick(op, args)
        wide = references.upcast(args, torch.float64)
        moved = accuracy.conditioning(functools.partial(testing._exact, op), wide, exact)
        for e, r, least in zip(exact, rounded, moved, strict=True):
            if r.is_floating_point():
                allowed = 0.5 * accuracy.ulp(e, r.dtype) + 8 * least
                assert ((r.double() - e).abs() <= allowed).all(), f"{sample}"


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("gelu", (-9.3,)),
        ("bias_gelu", (-9.0, -0.3)),
        ("gelu_and_mul", (-9.3, 1.0)),
        ("linear", (-9.3, [[1.0]], None, "gelu")),
    ],
)
def test_gelu_far_left(name: str, args: tuple[object, ...]) -> None:
    """x Phi(x): in 0.5 (1 + erf(x / sqrt(2))) nothing is left of -6.5e-20."""

    def tensor(value: object) -> object:
        if isinstance(value, float):
            return torch.tensor([value], dtype=torch.float64)
        return torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value

    (exact,) = testing.gold(catalogue.get(name), tuple(map(tensor, args)))
    assert exact.item() == pytest.approx(-6.53068e-20, rel=1e-5, abs=0.0)


@pytest.mark.parametrize("x", [-5.0, -9.3])
def test_gelu_tanh_and_slopes_far_left(x: float) -> None:
    """Of linear too, and of gradients: against 50 digits."""
    mpmath = pytest.importorskip("mpmath")
    mpmath.mp.dps = 50
    z = mpmath.mpf(x)
    root = mpmath.sqrt(2 / mpmath.pi)

    def tanh_form(t):  # type: ignore[no-untyped-def]
        return t * (1 + mpmath.tanh(root * (t + mpmath.mpf("0.044715") * t**3))) / 2

    def erf_form(t):  # type: ignore[no-untyped-def]
        return t * mpmath.ncdf(t)

    value, one = torch.tensor([x], dtype=torch.float64), torch.ones(1, dtype=torch.float64)

    def answer(name: str, *args: object) -> float:
        out: Tensor = testing.gold(catalogue.get(name), args)[0]
        return out.item()

    wanted = float(tanh_form(z))
    linear = answer("linear", value, one[None], None, "gelu_tanh")
    assert answer("gelu_tanh", value) == pytest.approx(wanted, rel=1e-10, abs=0.0)
    assert linear == pytest.approx(wanted, rel=1e-10, abs=0.0)
    for name, form in (("gelu", erf_form), ("gelu_tanh", tanh_form)):
        slope = float(mpmath.diff(form, z))
        assert answer(f"{name}_backward", one, value) == pytest.approx(slope, rel=1e-9, abs=0.0)
