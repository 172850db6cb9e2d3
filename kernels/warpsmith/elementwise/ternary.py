"""Functions of three tensors that broadcast against each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch, into
from warpsmith.core.catalogue import Bad, Gradients, Inputs, Needs, Op, Property
from warpsmith.elementwise import checks, ladder, mixed, samples
from warpsmith.elementwise.binary import Derivative, sum_to
from warpsmith.spec import layout, references

Function = Callable[[Tensor, Tensor, Tensor], Tensor]


def _no_broadcast(name: str) -> Bad:
    def make(inputs: Inputs) -> tuple[Tensor, ...]:
        return tuple(torch.ones(shape, device=inputs.device) for shape in ((2, 3), (3,), (2, 4)))

    shapes = r"\(2, 3\), \(3,\) and \(2, 4\)"
    return Bad("shapes apart", make, rf"{name}: shapes {shapes} do not broadcast")


def _add_ternary(
    name: str,
    function: Function,
    eager: Function,
    backward: Derivative,
    properties: tuple[Property, ...],
    seeds: tuple[str, ...] = (),
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Enters a function into the catalogue; returns the call behind the public function, and that
    behind its `out`.
    """

    def check(x: Tensor, y: Tensor, z: Tensor) -> None:
        checks.floating(name, "x", x)
        checks.like(name, "y", y, x)
        checks.like(name, "z", z, x)
        checks.broadcast_shape(name, x, y, z)

    def fake(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return layout.empty_for(checks.broadcast_shape(name, x, y, z), x, y, z)

    op = Op(
        f"{name}(Tensor x, Tensor y, Tensor z) -> Tensor",
        family="elementwise",
        source="map",
        part="binary",
        elementwise=True,
        reference=references.rounded_once(function),
        eager=references.through_f32(eager),
        ladder=ladder.rungs(ladder.broadcasting, seeds=seeds),
        triton=f"map_triton:{name}",
        fake=fake,
        check=check,
        backward=backward,
        samples=samples.ternary(),
        errors=(
            *samples.wrong_dtypes(name, 3),
            *samples.mismatches(name, 1, "y", 3),
            *samples.mismatches(name, 2, "z", 3),
            _no_broadcast(name),
            *samples.refusals(name, 3),
        ),
        properties=properties,
        cost=samples.BROADCAST_COST,
        bench=samples.bench(3),
        bench_dtypes=ladder.ALL,
    )
    catalogue.add(op)
    dispatch.register(op)
    return dispatch.public(op), into.register(op)


def _mul_add_backward(grad: Tensor, x: Tensor, y: Tensor, z: Tensor, needs: Needs) -> Gradients:
    times = torch.ops.warpsmith.mul
    return {
        "x": sum_to(times(grad, y), x.shape) if "x" in needs else None,
        "y": sum_to(times(grad, x), y.shape) if "y" in needs else None,
        "z": sum_to(grad, z.shape) if "z" in needs else None,
    }


def _one_adds(mul_add: Callable[..., Any], inputs: Inputs) -> None:
    x, z = inputs.randn(1000), inputs.randn(1000, salt=1)
    one = torch.ones((), device=x.device).to(x.dtype)
    assert torch.equal(mul_add(x, one, z), torch.ops.warpsmith.add(x, z))


_mul_add, _mul_add_into = _add_ternary(
    "mul_add",
    lambda x, y, z: x * y + z,
    lambda x, y, z: torch.addcmul(z, x, y),
    _mul_add_backward,
    (Property("1 x + z = x + z", _one_adds),),
    seeds=("elementwise_ternary_{dtype}",),
)


def mul_add(
    x: Tensor,
    y: Tensor | float,
    z: Tensor | float,
    *,
    value: float = 1,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """Product and sum, `value * x * y + z`, with broadcasting, in one pass.

    Args:
        x: any shape, strides and floating dtype, as in `add`.
        y: the device of `x`, and a shape that broadcasts with it; of another floating dtype, all
            meet in the widest one. Or a number.
        z: likewise.
        value: what the product is multiplied by. With it, or with a number, the call is PyTorch's
            own kernel.
        out: a tensor for the result, of its shape and dtype, which is returned; not differentiable,
            and with no variant.
        variant: the kernel to use; by default the fastest that takes the call.

    Returns:
        A tensor of the broadcast shape, computed in float32 and rounded once.

    Raises:
        RuntimeError: for other dtypes, devices or shapes than these.
        ValueError: for an unknown variant, or one beside a number or a `value`.
        RuntimeError: where the variant cannot take the call.

    Reference:
        `torch.addcmul(z, x, y, value=value)`.
    """
    if out is not None:
        if value == 1 and mixed.agree(x, y, z):
            return _mul_add_into(out, variant, x, y, z)  # type: ignore[no-any-return]
        return into.copied("mul_add", mul_add(x, y, z, value=value), out, variant)
    if value == 1 and isinstance(y, Tensor) and isinstance(z, Tensor) and isinstance(x, Tensor):
        if x.dtype == y.dtype == z.dtype:
            return _mul_add(variant, x, y, z)
        return _mul_add(variant, *mixed.alike(x, y, z))
    mixed.refuse_variant("mul_add", variant, "beside a number or a value")
    return mixed.with_numbers("mul_add", lambda *given: _scaled(value, *given), x, y, z)


def _scaled(value: float, x: Tensor, y: Tensor | float, z: Tensor | float) -> Tensor:
    if not isinstance(y, Tensor):
        factor = value * y
        if isinstance(z, Tensor):
            return torch.add(z, x, alpha=factor)
        # of two numbers both are held in f32
        return torch.add(x.float() * factor if x.dtype.itemsize < 4 else x * factor, z).to(x.dtype)
    x, y = mixed.alike(x, y)
    if not isinstance(z, Tensor):
        z = torch.full((), z, dtype=x.dtype, device=x.device)
    x, y, z = mixed.alike(x, y, z)
    return torch.addcmul(z, x, y, value=value)
