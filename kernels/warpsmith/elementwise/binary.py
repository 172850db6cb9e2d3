"""Functions of two tensors that broadcast against each other, and activations of x + bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from warpsmith.core import catalogue, dispatch, into
from warpsmith.core.catalogue import Bad, Gradients, Inputs, Needs, Op, Property, is_fp8
from warpsmith.elementwise import checks, ladder, mixed, samples
from warpsmith.spec import layout, references

Derivative = Callable[..., Gradients]


def sum_to(grad: Tensor, shape: torch.Size) -> Tensor:
    """Sums away what broadcasting repeated; fp8, which PyTorch cannot sum, in float32."""
    if grad.shape == shape:
        return grad
    if is_fp8(grad.dtype):
        return sum_to(grad.float(), shape).to(grad.dtype)
    # `sum_to_size` would ask a sharded tensor for the sizes of its part
    more = grad.dim() - len(shape)
    kept = [d for d in range(more, grad.dim()) if shape[d - more] == 1 and grad.shape[d] != 1]
    if kept:
        grad = grad.sum(kept, keepdim=True)
    return grad.sum(list(range(more))) if more else grad


def _add_backward(grad: Tensor, x: Tensor, y: Tensor, needs: Needs) -> Gradients:
    sums = {"x": x, "y": y}
    return {name: sum_to(grad, sums[name].shape) for name in needs}


def _mul_backward(grad: Tensor, x: Tensor, y: Tensor, needs: Needs) -> Gradients:
    times = torch.ops.warpsmith.mul
    return {
        "x": sum_to(times(grad, y), x.shape) if "x" in needs else None,
        "y": sum_to(times(grad, x), y.shape) if "y" in needs else None,
    }


def _no_broadcast(name: str) -> Bad:
    def make(inputs: Inputs) -> tuple[Tensor, Tensor]:
        device = inputs.device
        return torch.ones(2, 3, device=device), torch.ones(2, 4, device=device)

    return Bad("shapes apart", make, rf"{name}: shapes \(2, 3\) and \(2, 4\) do not broadcast")


def _add_binary(
    name: str,
    function: Callable[[Tensor, Tensor], Tensor],
    backward: Derivative,
    properties: tuple[Property, ...],
    aliases: tuple[str, ...] = (),
    huge: bool = False,
    seeds: tuple[str, ...] = (),
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Enters a function into the catalogue; returns the call behind the public function, and that
    behind its `out`.
    """

    def check(x: Tensor, y: Tensor) -> None:
        checks.floating(name, "x", x)
        checks.like(name, "y", y, x)
        checks.broadcast_shape(name, x, y)

    def fake(x: Tensor, y: Tensor) -> Tensor:
        return layout.empty_for(checks.broadcast_shape(name, x, y), x, y)

    op = Op(
        f"{name}(Tensor x, Tensor y) -> Tensor",
        family="elementwise",
        source="map",
        part="binary",
        elementwise=True,
        reference=function,
        eager=references.through_f32(function),
        ladder=ladder.rungs(ladder.broadcasting, seeds=seeds),
        triton=f"map_triton:{name}",
        fake=fake,
        check=check,
        backward=backward,
        aliases=aliases,
        samples=(*samples.binary(), *((samples.huge(2),) if huge else ())),
        errors=(
            *samples.wrong_dtypes(name, 2),
            *samples.mismatches(name, 1, "y", 2),
            _no_broadcast(name),
            *samples.refusals(name, 2),
        ),
        properties=properties,
        cost=samples.BROADCAST_COST,
        bench=samples.bench(2),
        bench_dtypes=ladder.ALL,
    )
    catalogue.add(op)
    dispatch.register(op)
    return dispatch.public(op), into.register(op)


def _commutes(function: Callable[..., Any], inputs: Inputs) -> None:
    x, y = inputs.randn(33, 65), inputs.randn(65, salt=1)
    assert torch.equal(function(x, y), function(y, x))


def _zero_changes_nothing(add: Callable[..., Any], inputs: Inputs) -> None:
    x = inputs.randn(1000)
    assert torch.equal(add(x, torch.zeros_like(x)), x)


def _one_changes_nothing(mul: Callable[..., Any], inputs: Inputs) -> None:
    x = inputs.randn(1000)
    one = torch.ones((), device=x.device).to(x.dtype)
    assert torch.equal(mul(x, one), x)


COMMUTES = Property("x, y and y, x agree", _commutes)

_add, _add_into = _add_binary(
    "add",
    torch.add,
    _add_backward,
    (COMMUTES, Property("x + 0 = x", _zero_changes_nothing)),
    aliases=("elementwise",),
    huge=True,
    seeds=("elementwise_binary_{dtype}",),
)
_mul, _mul_into = _add_binary(
    "mul", torch.mul, _mul_backward, (COMMUTES, Property("1 x = x", _one_changes_nothing))
)


def _add_bias(
    activation: str,
    function: Callable[[Tensor], Tensor],
    derivative: Callable[[Tensor, Tensor], Tensor],
    eager: Callable[[Tensor, Tensor], Tensor],
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    name, gradient = f"bias_{activation}", f"bias_{activation}_backward"

    def check(x: Tensor, bias: Tensor) -> None:
        checks.bias(name, x, bias)

    def check_backward(grad: Tensor, x: Tensor, bias: Tensor) -> None:
        checks.bias(gradient, x, bias)
        checks.like(gradient, "grad", grad, x)
        checks.shaped(gradient, "grad", grad, tuple(x.shape))

    def backward(grad: Tensor, x: Tensor, bias: Tensor, needs: Needs) -> Gradients:
        dx = getattr(torch.ops.warpsmith, gradient)(grad, x, bias)
        return {"x": dx, "bias": sum_to(dx, bias.shape) if "bias" in needs else None}

    @references.rounded_once
    def reference(x: Tensor, bias: Tensor) -> Tensor:
        return function(x + bias)

    @references.rounded_once
    def reference_backward(grad: Tensor, x: Tensor, bias: Tensor) -> Tensor:
        return derivative(grad, x + bias)

    def short_bias(op: str, operands: int) -> Bad:
        def make(inputs: Inputs) -> tuple[Tensor, ...]:
            x = torch.ones(4, 8, device=inputs.device)
            return (*(x for _ in range(operands - 1)), x[0, :7])

        message = rf"{op}: expected bias to have shape \(8,\), the last dimension of x, got \(7,\)"
        return Bad("short bias", make, message)

    def scalar_x(op: str, operands: int) -> Bad:
        def make(inputs: Inputs) -> tuple[Tensor, ...]:
            x = torch.ones((), device=inputs.device)
            return (*(x for _ in range(operands - 1)), torch.ones(1, device=inputs.device))

        return Bad("0-d x", make, rf"{op}: expected at least 1 dimension in x, got shape \(\)")

    forward_op = Op(
        f"{name}(Tensor x, Tensor bias) -> Tensor",
        family="elementwise",
        source="map",
        part="biased",
        elementwise=True,
        reference=reference,
        eager=references.through_f32(eager),
        ladder=ladder.rungs(ladder.bias),
        triton=f"map_triton:{name}",
        fake=lambda x: layout.empty_like(x),
        check=check,
        backward=backward,
        samples=samples.bias(),
        errors=(
            *samples.wrong_dtypes(name, 2),
            *samples.mismatches(name, 1, "bias", 2),
            short_bias(name, 2),
            scalar_x(name, 2),
            *samples.refusals(name, 2),
        ),
        cost=samples.UNARY_COST,
        bench=samples.bench_bias(1),
        bench_dtypes=ladder.ALL,
    )
    backward_op = Op(
        f"{gradient}(Tensor grad, Tensor x, Tensor bias) -> Tensor",
        family="elementwise",
        source="map",
        part="biased",
        elementwise=True,
        reference=reference_backward,
        eager=references.through_f32(reference_backward),
        ladder=ladder.rungs(ladder.bias_backward),
        triton=f"map_triton:{gradient}",
        fake=lambda x: layout.empty_like(x),
        check=check_backward,
        samples=samples.bias_backward(),
        errors=(
            *samples.wrong_dtypes(gradient, 3),
            *samples.mismatches(gradient, 0, "grad", 3),
            samples.other_shape(gradient, 0, "grad", 3),
            short_bias(gradient, 3),
            scalar_x(gradient, 3),
            *samples.refusals(gradient, 3),
        ),
        cost=samples.BACKWARD_COST,
        bench=samples.bench_bias(2),
        bench_dtypes=ladder.ALL,
    )
    for op in (forward_op, backward_op):
        catalogue.add(op)
        dispatch.register(op)
    return dispatch.public(forward_op), into.register(forward_op)


_bias_gelu, _bias_gelu_into = _add_bias(
    "gelu", references.gelu, references.gelu_backward, lambda x, bias: F.gelu(x + bias)
)
_bias_gelu_tanh, _bias_gelu_tanh_into = _add_bias(
    "gelu_tanh",
    references.gelu_tanh,
    references.gelu_tanh_backward,
    lambda x, bias: F.gelu(x + bias, approximate="tanh"),
)
_bias_gelu_by_tanh = dispatch.public(catalogue.entered("bias_gelu_tanh"), "bias_gelu")


def add(
    x: Tensor,
    y: Tensor | float,
    *,
    alpha: float = 1,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """Sum, `x + alpha * y`, with broadcasting.

    Args:
        x: any shape, strides and floating dtype (float32, float16, bfloat16, float8_e4m3fn and
            float8_e5m2 have kernels).
        y: the device of `x`, and a shape that broadcasts with it; of another floating dtype, both
            meet in the wider one. Or a number: that sum, and one with an `alpha` of operands that
            broadcast, is PyTorch's own kernel.
        alpha: what `y` is multiplied by.
        out: a tensor for the result, of its shape and dtype, which is returned; not differentiable,
            and with no variant.
        variant: the kernel to use; by default the fastest that takes the call.

    Returns:
        A tensor of the broadcast shape, computed in float32 and rounded once.

    Raises:
        RuntimeError: for other dtypes, devices or shapes than these.
        ValueError: for an unknown variant, or one beside a number or an `alpha`.
        RuntimeError: where the variant cannot take the call.

    Reference:
        `torch.add`.
    """
    if out is not None:
        if alpha == 1 and mixed.agree(x, y):
            return _add_into(out, variant, x, y)  # type: ignore[no-any-return]
        return into.copied("add", add(x, y, alpha=alpha), out, variant)
    if alpha == 1 and isinstance(y, Tensor) and isinstance(x, Tensor):
        return _add(variant, x, y) if y.dtype == x.dtype else _add(variant, *mixed.alike(x, y))
    mixed.refuse_variant("add", variant, "beside a number or an alpha")
    return mixed.with_numbers("add", lambda a, b: torch.add(a, b, alpha=alpha), x, y)


def mul(
    x: Tensor, y: Tensor | float, *, out: Tensor | None = None, variant: str | None = None
) -> Tensor:
    """Product, `x * y`, with broadcasting.

    Args:
        x: any shape, strides and floating dtype, as in `add`.
        y: the device of `x`, and a shape that broadcasts with it; of another floating dtype, both
            meet in the wider one. Or a number: that product is PyTorch's own kernel.
        out: a tensor for the result, of its shape and dtype, which is returned; not differentiable,
            and with no variant.
        variant: the kernel to use; by default the fastest that takes the call.

    Returns:
        A tensor of the broadcast shape, computed in float32 and rounded once.

    Raises:
        RuntimeError: for other dtypes, devices or shapes than these.
        ValueError: for an unknown variant, or one beside a number.
        RuntimeError: where the variant cannot take the call.

    Reference:
        `torch.mul`.
    """
    if out is not None:
        if mixed.agree(x, y):
            return _mul_into(out, variant, x, y)  # type: ignore[no-any-return]
        return into.copied("mul", mul(x, y), out, variant)
    if isinstance(y, Tensor) and isinstance(x, Tensor):
        return _mul(variant, x, y) if y.dtype == x.dtype else _mul(variant, *mixed.alike(x, y))
    mixed.refuse_variant("mul", variant, "beside a number")
    return mixed.with_numbers("mul", torch.mul, x, y)


def bias_gelu(
    x: Tensor,
    bias: Tensor,
    approximate: str = "none",
    *,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """`gelu(x + bias)` in one pass, the sum held in float32.

    Args:
        x: [..., n], any strides and floating dtype, as in `add`.
        bias: [n], the dtype and device of `x`.
        approximate: "none" or "tanh", as in `gelu`.
        out: a tensor for the result, of its shape and dtype, which is returned; not differentiable,
            and with no variant.
        variant: the kernel to use; by default the fastest that takes the call.

    Returns:
        A tensor of the shape and dtype of `x`, with its strides where it is dense.

    Raises:
        RuntimeError: for other dtypes, devices or shapes than these, or another `approximate`.
        ValueError: for an unknown variant.
        RuntimeError: where the variant cannot take the call.

    Reference:
        Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415
    """
    if approximate == "none":
        if out is not None:
            return _bias_gelu_into(out, variant, x, bias)
        return _bias_gelu(variant, x, bias)
    if approximate == "tanh":
        if out is not None:
            return _bias_gelu_tanh_into(out, variant, x, bias)
        return _bias_gelu_by_tanh(variant, x, bias)
    raise RuntimeError(
        f"bias_gelu: expected approximate to be 'none' or 'tanh', got '{approximate}'"
    )


def bias_gelu_tanh(
    x: Tensor, bias: Tensor, *, out: Tensor | None = None, variant: str | None = None
) -> Tensor:
    """`bias_gelu` in its tanh approximation.

    Args:
        x: [..., n], any strides and floating dtype, as in `add`.
        bias: [n], the dtype and device of `x`.
        out: a tensor for the result, of its shape and dtype, which is returned; not differentiable,
            and with no variant.
        variant: the kernel to use; by default the fastest that takes the call.

    Returns:
        A tensor of the shape and dtype of `x`, with its strides where it is dense.

    Raises:
        RuntimeError: for other dtypes, devices or shapes than these.
        ValueError: for an unknown variant.
        RuntimeError: where the variant cannot take the call.

    Reference:
        Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415
    """
    if out is not None:
        return _bias_gelu_tanh_into(out, variant, x, bias)
    return _bias_gelu_tanh(variant, x, bias)
