"""Functions of one tensor, element by element, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from warpsmith.core import catalogue, dispatch, into
from warpsmith.core.catalogue import Gradients, Inputs, Op, Property
from warpsmith.elementwise import checks, ladder, samples
from warpsmith.spec import layout, references


@dataclass(frozen=True)
class Activation:
    """A function, as a row: what differs between one activation and the next."""

    name: str
    forward: Callable[..., Tensor]
    #: grad, x and the parameter, where there is one -> the gradient of x.
    backward: Callable[..., Tensor]
    #: What a PyTorch user writes.
    eager: Callable[..., Tensor]
    #: A number beside the tensor, as the schema spells it: "float alpha=1.0".
    parameter: str = ""
    #: Values of it to test, beyond the default.
    tried: tuple[float, ...] = ()
    #: The gradient is 0 where the function is flat, whatever `grad` is: no product with a slope.
    masks_gradient: bool = False
    aliases: tuple[str, ...] = ()
    #: fp8 is timed at every size.
    fp8_sizes: bool = False
    huge: bool = False
    properties: tuple[Property, ...] = ()
    seeds: tuple[str, ...] = ()


def _add(function: Activation) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Enters a function and its gradient into the catalogue; returns the call behind the public
    function, and that behind its `out`.
    """
    name, gradient = function.name, f"{function.name}_backward"
    more = f", {function.parameter}" if function.parameter else ""

    def check(x: Tensor) -> None:
        checks.floating(name, "x", x)

    def check_backward(grad: Tensor, x: Tensor) -> None:
        checks.floating(gradient, "x", x)
        checks.like(gradient, "grad", grad, x)
        checks.shaped(gradient, "grad", grad, tuple(x.shape))

    def backward(grad: Tensor, x: Tensor, **parameters: float) -> Gradients:
        call = getattr(torch.ops.warpsmith, gradient)
        return {"x": call(grad, x, *parameters.values())}

    forward_op = Op(
        f"{name}(Tensor x{more}) -> Tensor",
        family="elementwise",
        source="map",
        part="unary",
        elementwise=True,
        reference=function.forward,
        eager=references.through_f32(function.eager),
        ladder=ladder.rungs(ladder.unary, table=True, seeds=function.seeds),
        triton=f"map_triton:{name}",
        fake=lambda x: layout.empty_like(x),
        check=check,
        backward=backward,
        aliases=function.aliases,
        samples=(*samples.unary(function.tried), *((samples.huge(1),) if function.huge else ())),
        errors=(*samples.wrong_dtypes(name, 1), *samples.refusals(name, 1)),
        properties=function.properties,
        cost=samples.UNARY_COST,
        bench=samples.bench(1, fp8_sizes=function.fp8_sizes),
        bench_dtypes=ladder.ALL,
    )
    backward_op = Op(
        f"{gradient}(Tensor grad, Tensor x{more}) -> Tensor",
        family="elementwise",
        source="map",
        part="unary_backward",
        elementwise=True,
        reference=function.backward,
        eager=references.through_f32(function.backward),
        ladder=ladder.rungs(ladder.unary_backward, table=not function.masks_gradient),
        triton=f"map_triton:{gradient}",
        fake=lambda x: layout.empty_like(x),
        check=check_backward,
        samples=samples.unary_backward(function.tried),
        errors=(
            *samples.wrong_dtypes(gradient, 2),
            *samples.mismatches(gradient, 0, "grad", 2),
            samples.other_shape(gradient, 0, "grad", 2),
            *samples.refusals(gradient, 2),
        ),
        cost=samples.BACKWARD_COST,
        bench=samples.bench(2),
        bench_dtypes=ladder.ALL,
    )
    for op in (forward_op, backward_op):
        catalogue.add(op)
        dispatch.register(op)
    return dispatch.public(forward_op), into.register(forward_op)


# --- mathematical facts ---------------------------------------------------------------------------


def _idempotent(relu: Callable[..., Any], inputs: Inputs) -> None:
    once = relu(inputs.randn(1000))
    assert torch.equal(relu(once), once)


def _compares_rounded(hardshrink: Callable[..., Any], inputs: Inputs) -> None:
    """A value of 16 bits that is the nearest to lambd is not further than lambd."""
    for lambd in (0.3, 0.7, 1.1):
        x = torch.tensor([lambd, -lambd, 2.0], dtype=inputs.dtype, device=inputs.device)
        assert hardshrink(x, lambd).tolist() == [0.0, 0.0, 2.0], lambd


def _never_negative(relu: Callable[..., Any], inputs: Inputs) -> None:
    assert (relu(inputs.randn(1000)).float() >= 0).all()


def _adds_up_to_one(sigmoid: Callable[..., Any], inputs: Inputs) -> None:
    x = inputs.randn(1000)
    total = sigmoid(x).double() + sigmoid((-x.float()).to(x.dtype)).double()
    assert ((total - 1).abs() <= 2 * torch.finfo(x.dtype).eps).all()


def _zero_at_zero(function: Callable[..., Any], inputs: Inputs) -> None:
    zero = torch.zeros(100, dtype=inputs.dtype, device=inputs.device)
    assert torch.equal(function(zero), zero)


def _identity_far_right(function: Callable[..., Any], inputs: Inputs) -> None:
    x = torch.linspace(32, 400, 93, device=inputs.device).to(inputs.dtype)
    assert torch.equal(function(x), x)


RELU_FACTS = (
    Property("applied twice is applied once", _idempotent),
    Property("never negative", _never_negative),
)
GATE_FACTS = (
    Property("0 at 0", _zero_at_zero),
    Property("x far right of 0", _identity_far_right),
)


# --- the functions --------------------------------------------------------------------------------

_relu, _relu_into = _add(
    Activation(
        "relu",
        torch.relu,
        references.relu_backward,
        torch.relu,
        masks_gradient=True,
        fp8_sizes=True,
        huge=True,
        properties=RELU_FACTS,
        seeds=("elementwise_unary_{dtype}",),
    )
)
_sigmoid, _sigmoid_into = _add(
    Activation(
        "sigmoid",
        torch.sigmoid,
        references.sigmoid_backward,
        torch.sigmoid,
        properties=(Property("s(x) + s(-x) = 1", _adds_up_to_one),),
    )
)
_elu, _elu_into = _add(
    Activation(
        "elu",
        references.elu,
        references.elu_backward,
        F.elu,
        parameter="float alpha=1.0",
        tried=(0.5, 2.0),
        properties=GATE_FACTS,
    )
)
_gelu, _gelu_into = _add(
    Activation(
        "gelu",
        references.gelu,
        references.gelu_backward,
        F.gelu,
        fp8_sizes=True,
        properties=GATE_FACTS,
    )
)
_gelu_tanh, _gelu_tanh_into = _add(
    Activation(
        "gelu_tanh",
        references.gelu_tanh,
        references.gelu_tanh_backward,
        lambda x: F.gelu(x, approximate="tanh"),
        properties=GATE_FACTS,
    )
)
_gelu_by_tanh = dispatch.public(catalogue.entered("gelu_tanh"), "gelu")
_silu, _silu_into = _add(
    Activation(
        "silu",
        F.silu,
        references.silu_backward,
        F.silu,
        aliases=("swish",),
        fp8_sizes=True,
        properties=GATE_FACTS,
    )
)
_hardswish, _hardswish_into = _add(
    Activation(
        "hardswish",
        F.hardswish,
        references.hardswish_backward,
        F.hardswish,
        masks_gradient=True,
        properties=GATE_FACTS,
    )
)
_hardshrink, _hardshrink_into = _add(
    Activation(
        "hardshrink",
        references.hardshrink,
        references.hardshrink_backward,
        F.hardshrink,
        parameter="float lambd=0.5",
        tried=(0.0, 1.25),
        masks_gradient=True,
        properties=(
            *GATE_FACTS,
            Property(
                "compares with lambd rounded", _compares_rounded, dtypes=("f32", "f16", "bf16")
            ),
        ),
    )
)
_quick_gelu, _quick_gelu_into = _add(
    Activation(
        "quick_gelu",
        references.quick_gelu,
        references.quick_gelu_backward,
        references.quick_gelu,
        properties=GATE_FACTS,
    )
)
_mish, _mish_into = _add(
    Activation("mish", F.mish, references.mish_backward, F.mish, properties=GATE_FACTS)
)


def relu(x: Tensor, *, out: Tensor | None = None, variant: str | None = None) -> Tensor:
    """Rectified linear unit, `max(x, 0)`; NaN stays NaN.

    Args:
        x: any shape, strides and floating dtype (float32, float16, bfloat16, float8_e4m3fn and
            float8_e5m2 have kernels).
        out: a tensor for the result, of its shape and dtype, which is returned; not differentiable,
            and with no variant.
        variant: the kernel to use, "f16x8_pack"; by default the fastest that takes the call.

    Returns:
        A tensor of the shape and dtype of `x`, with its strides where it is dense.

    Raises:
        RuntimeError: for an `x` that is not floating-point.
        ValueError: for an unknown variant.
        RuntimeError: where the variant cannot take the call.

    Reference:
        Nair and Hinton 2010, "Rectified Linear Units Improve Restricted Boltzmann Machines".
    """
    if out is not None:
        return _relu_into(out, variant, x)
    return _relu(variant, x)


def sigmoid(x: Tensor, *, out: Tensor | None = None, variant: str | None = None) -> Tensor:
    """Logistic function, `1 / (1 + exp(-x))`.

    Args:
        x: any shape, strides and floating dtype, as in `relu`.
        out: a tensor for the result, of its shape and dtype, which is returned; not differentiable,
            and with no variant.
        variant: the kernel to use; by default the fastest that takes the call.

    Returns:
        A tensor of the shape and dtype of `x`, with its strides where it is dense.

    Raises:
        RuntimeError: for an `x` that is not floating-point.
        ValueError: for an unknown variant.
        RuntimeError: where the variant cannot take the call.

    Reference:
        `torch.sigmoid`.
    """
    if out is not None:
        return _sigmoid_into(out, variant, x)
    return _sigmoid(variant, x)


def elu(
    x: Tensor, alpha: float = 1.0, *, out: Tensor | None = None, variant: str | None = None
) -> Tensor:
    """Exponential linear unit: `x` where positive, else `alpha * (exp(x) - 1)`.

    Args:
        x: any shape, strides and floating dtype, as in `relu`.
        alpha: the negated limit for large negative x.
        out: a tensor for the result, of its shape and dtype, which is returned; not differentiable,
            and with no variant.
        variant: the kernel to use; by default the fastest that takes the call.

    Returns:
        A tensor of the shape and dtype of `x`, with its strides where it is dense.

    Raises:
        RuntimeError: for an `x` that is not floating-point.
        ValueError: for an unknown variant.
        RuntimeError: where the variant cannot take the call.

    Reference:
        Clevert et al. 2015, https://arxiv.org/abs/1511.07289
    """
    if out is not None:
        return _elu_into(out, variant, x, alpha)
    return _elu(variant, x, alpha)


def gelu(
    x: Tensor, approximate: str = "none", *, out: Tensor | None = None, variant: str | None = None
) -> Tensor:
    """Gaussian error linear unit, `x * Phi(x)`, Phi being the normal cumulative distribution.

    Args:
        x: any shape, strides and floating dtype, as in `relu`.
        approximate: "none", or "tanh" for `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
        out: a tensor for the result, of its shape and dtype, which is returned; not differentiable,
            and with no variant.
        variant: the kernel to use; by default the fastest that takes the call.

    Returns:
        A tensor of the shape and dtype of `x`, with its strides where it is dense.

    Raises:
        RuntimeError: for an `x` that is not floating-point, or another `approximate`.
        ValueError: for an unknown variant.
        RuntimeError: where the variant cannot take the call.

    Reference:
        Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415
    """
    if approximate == "none":
        if out is not None:
            return _gelu_into(out, variant, x)
        return _gelu(variant, x)
    if approximate == "tanh":
        if out is not None:
            return _gelu_tanh_into(out, variant, x)
        return _gelu_by_tanh(variant, x)
    raise RuntimeError(f"gelu: expected approximate to be 'none' or 'tanh', got '{approximate}'")


def gelu_tanh(x: Tensor, *, out: Tensor | None = None, variant: str | None = None) -> Tensor:
    """`gelu` in its tanh approximation, `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.

    Args:
        x: any shape, strides and floating dtype, as in `relu`.
        out: a tensor for the result, of its shape and dtype, which is returned; not differentiable,
            and with no variant.
        variant: the kernel to use; by default the fastest that takes the call.

    Returns:
        A tensor of the shape and dtype of `x`, with its strides where it is dense.

    Raises:
        RuntimeError: for an `x` that is not floating-point.
        ValueError: for an unknown variant.
        RuntimeError: where the variant cannot take the call.

    Reference:
        Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415
    """
    if out is not None:
        return _gelu_tanh_into(out, variant, x)
    return _gelu_tanh(variant, x)


def silu(x: Tensor, *, out: Tensor | None = None, variant: str | None = None) -> Tensor:
    """Sigmoid linear unit, `x / (1 + exp(-x))`, also known as swish.

    Args:
        x: any shape, strides and floating dtype, as in `relu`.
        out: a tensor for the result, of its shape and dtype, which is returned; not differentiable,
            and with no variant.
        variant: the kernel to use; by default the fastest that takes the call.

    Returns:
        A tensor of the shape and dtype of `x`, with its strides where it is dense.

    Raises:
        RuntimeError: for an `x` that is not floating-point.
        ValueError: for an unknown variant.
        RuntimeError: where the variant cannot take the call.

    Reference:
        Ramachandran et al. 2017, https://arxiv.org/abs/1710.05941
    """
    if out is not None:
        return _silu_into(out, variant, x)
    return _silu(variant, x)


swish = silu


def hardswish(x: Tensor, *, out: Tensor | None = None, variant: str | None = None) -> Tensor:
    """Piecewise swish, `x * min(max(x + 3, 0), 6) / 6`.

    Args:
        x: any shape, strides and floating dtype, as in `relu`.
        out: a tensor for the result, of its shape and dtype, which is returned; not differentiable,
            and with no variant.
        variant: the kernel to use; by default the fastest that takes the call.

    Returns:
        A tensor of the shape and dtype of `x`, with its strides where it is dense.

    Raises:
        RuntimeError: for an `x` that is not floating-point.
        ValueError: for an unknown variant.
        RuntimeError: where the variant cannot take the call.

    Reference:
        Howard et al. 2019, https://arxiv.org/abs/1905.02244
    """
    if out is not None:
        return _hardswish_into(out, variant, x)
    return _hardswish(variant, x)


def hardshrink(
    x: Tensor, lambd: float = 0.5, *, out: Tensor | None = None, variant: str | None = None
) -> Tensor:
    """Hard shrinkage: 0 where `-lambd <= x <= lambd`, else `x`; NaN stays NaN.

    Args:
        x: any shape, strides and floating dtype, as in `relu`.
        lambd: half the width of the interval that becomes zero; rounded to a 16-bit dtype of `x`.
        out: a tensor for the result, of its shape and dtype, which is returned; not differentiable,
            and with no variant.
        variant: the kernel to use; by default the fastest that takes the call.

    Returns:
        A tensor of the shape and dtype of `x`, with its strides where it is dense.

    Raises:
        RuntimeError: for an `x` that is not floating-point.
        ValueError: for an unknown variant.
        RuntimeError: where the variant cannot take the call.

    Reference:
        `torch.nn.functional.hardshrink`.
    """
    if out is not None:
        return _hardshrink_into(out, variant, x, lambd)
    return _hardshrink(variant, x, lambd)


def quick_gelu(x: Tensor, *, out: Tensor | None = None, variant: str | None = None) -> Tensor:
    """`gelu` approximated by a logistic function, `x / (1 + exp(-1.702 x))`.

    Args:
        x: any shape, strides and floating dtype, as in `relu`.
        out: a tensor for the result, of its shape and dtype, which is returned; not differentiable,
            and with no variant.
        variant: the kernel to use; by default the fastest that takes the call.

    Returns:
        A tensor of the shape and dtype of `x`, with its strides where it is dense.

    Raises:
        RuntimeError: for an `x` that is not floating-point.
        ValueError: for an unknown variant.
        RuntimeError: where the variant cannot take the call.

    Reference:
        Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415, section 2.
    """
    if out is not None:
        return _quick_gelu_into(out, variant, x)
    return _quick_gelu(variant, x)


def mish(x: Tensor, *, out: Tensor | None = None, variant: str | None = None) -> Tensor:
    """`x * tanh(log(1 + exp(x)))`.

    Args:
        x: any shape, strides and floating dtype, as in `relu`.
        out: a tensor for the result, of its shape and dtype, which is returned; not differentiable,
            and with no variant.
        variant: the kernel to use; by default the fastest that takes the call.

    Returns:
        A tensor of the shape and dtype of `x`, with its strides where it is dense.

    Raises:
        RuntimeError: for an `x` that is not floating-point.
        ValueError: for an unknown variant.
        RuntimeError: where the variant cannot take the call.

    Reference:
        Misra 2019, https://arxiv.org/abs/1908.08681
    """
    if out is not None:
        return _mish_into(out, variant, x)
    return _mish(variant, x)
