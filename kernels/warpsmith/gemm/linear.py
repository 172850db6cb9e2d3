"""Matrix products with something done to the result before it is written: linear and addmm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, overload

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.core import autocast, catalogue, dispatch, into, messages, public_calls, sharded
from warpsmith.core.catalogue import FLOATS, Cost, Gradients, Needs, Op, PartCall, Property
from warpsmith.gemm import linear_cases as cases
from warpsmith.gemm.ladder import whole
from warpsmith.gemm.linear_epilogue import (
    IntoBuffer,
    calls_of_layer,
    keeps,
    keeps_on_gpu,
    linear_and_more,
    parameter_gradients,
)
from warpsmith.gemm.matmul import (
    check_alike,
    check_operand,
    gradients,
    moved_bytes,
    operations,
    product_shape,
    torch_lacks,
)
from warpsmith.gemm.problem import Problem, product
from warpsmith.gemm.reference_in_large import among_others, repeated
from warpsmith.spec import references
from warpsmith.spec.checks import shape_text

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}
#: The same for the reference: PyTorch's gelu cancels in float64 too.
_WITHOUT_CANCELLATION = {
    **ACTIVATIONS,
    "gelu": references.gelu,
    "gelu_tanh": references.gelu_tanh,
}

# --- linear ---------------------------------------------------------------------------------------


def _check_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> None:
    check_operand("linear", "x", x, 1)
    check_operand("linear", "weight", weight, 2)
    if weight.dim() != 2:
        raise RuntimeError(f"linear: expected weight to be 2-D, got shape {shape_text(weight)}")
    check_alike("linear", "weight", weight, x, "x")
    if x.shape[-1] != weight.shape[1]:
        raise RuntimeError(
            f"linear: cannot multiply shapes {shape_text(x)} and {shape_text(weight)} transposed"
        )
    if bias is not None:
        check_alike("linear", "bias", bias, x, "x")
        n = weight.shape[0]
        if bias.dim() != 1 or bias.shape[0] != n:
            raise RuntimeError(
                f"linear: expected bias to have shape ({n},), the rows of weight, "
                f"got {shape_text(bias)}"
            )
    if activation not in ACTIVATIONS:
        raise RuntimeError(
            "linear: expected activation to be 'none', 'relu', 'gelu', 'gelu_tanh' or 'silu', "
            f"got '{activation}'"
        )


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return ACTIVATIONS[activation](F.linear(x, weight, bias))


def _reference_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """The activation of the sum before it is rounded, as a fused kernel computes it."""
    activate = _WITHOUT_CANCELLATION[activation]
    if activation == "none" or x.dtype not in (torch.float16, torch.bfloat16):
        return activate(F.linear(x, weight, bias))
    wide_bias = None if bias is None else bias.float()
    return activate(F.linear(x.float(), weight.float(), wide_bias)).to(x.dtype)


def _linear_among_others(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    batch_invariant: bool = False,
) -> Tensor:
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    more_bias = None if bias is None else repeated(bias, 0)
    out = among_others(
        lambda a, b: _reference_linear(a, b.t(), more_bias, activation), rows, weight.t()
    )
    return out.reshape(*x.shape[:-1], weight.shape[0])


def _linear_problem(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    batch_invariant: bool = False,
) -> Problem:
    return product(
        x,
        weight,
        transposed=True,
        c=bias,
        activation=activation,
        batch_invariant=batch_invariant,
    )


def _linear_derivative(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    batch_invariant: bool,
    needs: Needs,
) -> Gradients:
    if activation != "none":
        before = torch.ops.warpsmith.linear(x, weight, bias, "none", batch_invariant)
        grad = getattr(torch.ops.warpsmith, f"{activation}_backward")(grad, before)
    product = torch.ops.warpsmith.matmul
    found: dict[str, Tensor | None] = {}
    if "x" in needs:
        found["x"] = product(grad, weight, batch_invariant)
    found["weight"], found["bias"] = parameter_gradients(
        grad, x, bias if "bias" in needs else None, "weight" in needs
    )
    return found


def _linear_bytes(x: Tensor, weight: Tensor, bias: Tensor | None) -> int:
    more = 0 if bias is None else bias.numel() * bias.element_size()
    return moved_bytes(x, weight.t()) + more


linear_op = catalogue.add(
    Op(
        'linear(Tensor x, Tensor weight, Tensor? bias=None, str activation="none", '
        "bool batch_invariant=False) -> Tensor",
        family="gemm",
        source="matmul",
        reference=_reference_linear,
        eager=_linear,
        ladder=whole(_linear_problem),
        triton="matmul_triton:linear",
        yields=True,
        torch_lacks=lambda x, batch_invariant: torch_lacks(x, batch_invariant),
        fake=lambda x, weight: x.new_empty((*x.shape[:-1], weight.shape[0])),
        check=_check_linear,
        backward=_linear_derivative,
        alternatives=(_linear_among_others,),
        samples=cases.linear_samples(),
        errors=cases.LINEAR_ERRORS,
        properties=(
            Property("bias alone", cases.bias_alone),
            Property("deterministic", cases.deterministic),
        ),
        cost=Cost(bytes=_linear_bytes, flops=lambda x, weight: operations(x, weight.t())),
        bench=cases.linear_bench(),
        bench_dtypes=FLOATS,
    )
)
dispatch.register(linear_op)
_run_linear = dispatch.public(linear_op)
_linear_into = into.register(linear_op)


@overload
def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = ...,
    activation: str = ...,
    *,
    residual: Tensor | None = ...,
    scale: float = ...,
    keep: Literal[False] = ...,
    amax: Literal[False] = ...,
    grad_weight: Tensor | None = ...,
    batch_invariant: bool = ...,
    out: Tensor | None = ...,
    variant: str | None = ...,
) -> Tensor: ...
@overload
def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = ...,
    activation: str = ...,
    *,
    residual: Tensor | None = ...,
    scale: float = ...,
    keep: Literal[True],
    amax: bool = ...,
    grad_weight: Tensor | None = ...,
    batch_invariant: bool = ...,
    out: Tensor | None = ...,
    variant: str | None = ...,
) -> tuple[Tensor, ...]: ...
@overload
def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = ...,
    activation: str = ...,
    *,
    residual: Tensor | None = ...,
    scale: float = ...,
    keep: Literal[False] = ...,
    amax: Literal[True],
    grad_weight: Tensor | None = ...,
    batch_invariant: bool = ...,
    out: Tensor | None = ...,
    variant: str | None = ...,
) -> tuple[Tensor, ...]: ...
def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str = "none",
    *,
    residual: Tensor | None = None,
    scale: float = 1.0,
    keep: bool = False,
    amax: bool = False,
    grad_weight: Tensor | None = None,
    batch_invariant: bool = False,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """A linear layer and what follows it in one kernel:
    `activation(scale x weight^T + bias) + residual`.

    Everything is computed in f32 and rounded once; f32 operands are multiplied as they are, without
    TF32. With one of the arguments from `residual` to `amax`, few rows, f32, and rows that are no
    packs of 16 bytes go through several kernels on a GPU: in 16 bits what goes into the activation
    is then rounded, as is its result before the residual is added.

    Differentiable in x, weight, bias and residual. What goes into an activation is kept for the
    backward pass where the kernels of `linear_epilogue` serve the call: on a GPU from 65 rows on in
    16 bits, and with one of the arguments from `residual` to `grad_weight` or a bias of f32.
    Otherwise the backward pass computes it again.

    Args:
        x: [..., k], f32, f16 or bf16 (f64 by the reference), any strides.
        weight: [n, k], of the dtype and device of x, any strides.
        bias: [n], of the dtype of x or f32; None adds nothing.
        activation: "none", "relu", "gelu" (by erf), "gelu_tanh" or "silu".
        residual: [..., n], of the dtype of x, added to the result; None adds nothing.
        scale: of the product.
        keep: whether what goes into the activation is returned too.
        amax: whether the largest magnitude of each row of the result is returned too, [...] in f32,
            for a quantiser. Not differentiable.
        grad_weight: [n, k], f32 (f64 beside f64), contiguous. The backward pass adds the gradient
            of weight to it, which is never rounded to 16 bits, and leaves `weight.grad` alone. Not
            while compiling, within a transform of `torch.func` or of sharded tensors, nor beside
            `keep`, `amax`, `batch_invariant` or a variant.
        batch_invariant: whether a row shall have the same bits whatever other rows the call has,
            and however many: few rows are then multiplied as many are, in one sum along k. A
            promise of the compiled kernels and of Triton's, each for itself.
        out: a tensor for the result, best contiguous, of its shape and dtype, which is returned
            (`docs/pytorch.md`, results in tensors of the caller). Not differentiable, and with
            no variant, keep, amax or grad_weight.
        variant: one rung by name instead of the best one, "bf16_mma_peak"; with a residual, a
            scale, `keep`, `amax` or a bias of f32 one of `linear_epilogue`, "bf16_wgmma".

    Returns:
        A contiguous tensor [..., n] of the dtype of x; with `keep` or `amax` a tuple of it, of what
        is kept, and of the largest.

    Raises:
        RuntimeError: an operand is not floating-point, or fp8; the dtypes, devices or shapes do not
            fit; the activation is unknown; the variant cannot take the input.
        ValueError: the variant does not exist, or one of `linear_epilogue` is asked for
            `batch_invariant`; grad_weight or out stands beside what it cannot.

    Reference:
        `torch.nn.functional.linear`, followed by the activation, and the sum with the residual.
    """
    if out is not None:
        return _into_given(
            out, variant, x, weight, bias, activation, residual, scale, batch_invariant,
            keep or amax or grad_weight is not None,
        )  # fmt: skip
    alone = not (keep or amax) and residual is None and grad_weight is None and scale == 1.0
    if variant is None and not (alone and _is_narrow(bias, x)):
        x, weight, bias, residual = autocast.lowered(x, weight, bias, residual)
    if alone and _is_narrow(bias, x):
        plain = activation == "none" or variant is not None or batch_invariant
        if plain or not isinstance(x, Tensor) or not keeps(x, weight, bias):
            return _run_linear(variant, x, weight, bias, activation, batch_invariant)  # type: ignore[no-any-return]
    if grad_weight is not None:
        traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
        traced = traced or bool(sharded.of(x, weight))
        if keep or amax or batch_invariant or variant is not None or traced:
            raise ValueError(
                "linear: expected no grad_weight while compiling, within a transform of torch.func "
                "or of sharded tensors, nor beside keep, amax, batch_invariant or variant"
            )
        dispatch.require_tensors(linear_op, (x, weight, bias, activation, False), "linear")
        messages.check_kinds("linear", (("grad_weight", "Optional[Tensor]"),), (grad_weight,))
        _check_buffer(weight, grad_weight)
        return IntoBuffer.apply(  # type: ignore[no-any-return,no-untyped-call]
            x, weight, bias, residual, scale, activation, grad_weight
        )
    y, before, largest = linear_and_more(
        x, weight, bias, residual, scale, activation, keep, amax, batch_invariant, variant
    )
    if not (keep or amax):
        return y
    return tuple(t for t in (y, before, largest) if t is not None)


def _into_given(
    out: Tensor,
    variant: str | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    residual: Tensor | None,
    scale: float,
    batch_invariant: bool,
    more: bool,
) -> Tensor:
    """Into `out`; `more`: something else is asked for beside the result."""
    if more:
        raise ValueError("linear: expected neither keep nor amax nor grad_weight beside out")
    if residual is None and scale == 1.0 and _is_narrow(bias, x):
        return _linear_into(out, variant, x, weight, bias, activation, batch_invariant)  # type: ignore[no-any-return]
    into.alone("linear", variant)
    with autocast.off(x):
        y, *_ = linear_and_more(
            x, weight, bias, residual, scale, activation, batch_invariant=batch_invariant, out=out
        )
    return y


def _calls(
    on_gpu: bool,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    residual: Tensor | None,
    scale: float,
    keep: bool,
    amax: bool,
    grad_weight: Tensor | None,
    batch_invariant: bool,
    out: Tensor | None,
    variant: str | None,
) -> tuple[PartCall, ...] | None:
    if variant is not None or not (isinstance(x, Tensor) and isinstance(weight, Tensor)):
        return None
    if out is None:
        x, weight, bias, residual = autocast.lowered(x, weight, bias, residual)
    alone = not (keep or amax) and residual is None and grad_weight is None and scale == 1.0
    if alone and _is_narrow(bias, x):
        plain = activation == "none" or batch_invariant or out is not None
        if plain or not on_gpu or not keeps_on_gpu(x, weight, bias):
            return None
    keep = keep or (grad_weight is not None and activation != "none")
    return calls_of_layer(
        on_gpu, x, weight, bias, residual, scale, activation, keep, amax, batch_invariant, out
    )


public_calls.in_parts(linear, _calls)


def _is_narrow(bias: Tensor | None, x: Tensor) -> bool:
    """Whether it has the dtype of x, or is none that has another."""
    tensors = isinstance(bias, Tensor) and isinstance(x, Tensor)
    return not tensors or bias.dtype == x.dtype  # type: ignore[union-attr]


def _check_buffer(weight: Tensor, buffer: Tensor) -> None:
    wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
    fits = buffer.dtype == wide and buffer.device == weight.device and buffer.is_contiguous()
    if not fits or buffer.shape != weight.shape:
        raise RuntimeError(
            f"linear: expected grad_weight to be a contiguous tensor of {wide} on {weight.device} "
            f"of shape {shape_text(weight)}, got {buffer.dtype} on {buffer.device} of "
            f"{shape_text(buffer)}"
        )


# --- addmm ----------------------------------------------------------------------------------------


def _check_addmm(c: Tensor, a: Tensor, b: Tensor) -> None:
    check_operand("addmm", "a", a, 2)
    check_operand("addmm", "b", b, 2)
    if not c.is_floating_point():
        raise RuntimeError(f"addmm: expected c to be a floating-point tensor, got {c.dtype}")
    check_alike("addmm", "b", b, a, "a")
    check_alike("addmm", "c", c, a, "a")
    shape = product_shape("addmm", a, b)
    try:
        fits = torch.broadcast_shapes(c.shape, shape) == shape
    except RuntimeError:
        fits = False
    if not fits:
        raise RuntimeError(
            f"addmm: expected c to be broadcastable to the shape {tuple(shape)} of the product, "
            f"got {shape_text(c)}"
        )


def _addmm(c: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float) -> Tensor:
    """As `torch.addmm`, `torch.baddbmm`; broadcasts like `torch.matmul`."""
    if a.dim() == b.dim() == 2 and c.dim() <= 2:
        return torch.addmm(c, a, b, beta=beta, alpha=alpha)
    return _written_addmm(c, a, b, beta, alpha)


def _written_addmm(c: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float) -> Tensor:
    value = alpha * torch.matmul(a, b)
    return value if beta == 0 else value + beta * c


def _reference_addmm(c: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float) -> Tensor:
    # An alpha of 0 takes NaN and infinities out of the product where BLAS does not form it, as for
    # PyTorch's f32, and leaves NaN where it is multiplied, as in bf16, in batches and here. Either
    # is right: float64 has the one, what is judged by it the other.
    if a.dtype == torch.float64 and alpha == 0:
        return _written_addmm(c, a, b, beta, alpha)
    if a.dtype not in (torch.float16, torch.bfloat16):
        return _addmm(c, a, b, beta, alpha)
    return _addmm(c.float(), a.float(), b.float(), beta, alpha).to(a.dtype)


def _addmm_among_others(c: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float) -> Tensor:
    more_c = repeated(repeated(c.expand(product_shape("addmm", a, b)), -2), -1)
    return among_others(lambda x, y: _reference_addmm(more_c, x, y, beta, alpha), a, b)


def _addmm_problem(c: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float) -> Problem:
    return product(a, b, c=None if beta == 0 else c, alpha=alpha)


def _addmm_derivative(
    grad: Tensor, c: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float, needs: Needs
) -> Gradients:
    grad_c = (grad * beta).sum_to_size(c.shape) if "c" in needs else None
    of_product = grad * alpha if alpha != 1 else grad
    grad_a, grad_b = gradients(a, b, ("a" in needs, "b" in needs), of_product)
    return {"c": grad_c, "a": grad_a, "b": grad_b}


def _addmm_bytes(c: Tensor, a: Tensor, b: Tensor, beta: float) -> int:
    return moved_bytes(a, b) + (0 if beta == 0 else c.numel() * c.element_size())


def _addmm_operations(a: Tensor, b: Tensor) -> int:
    return operations(a, b) + 2 * math.prod(product_shape("addmm", a, b))


addmm_op = catalogue.add(
    Op(
        "addmm(Tensor c, Tensor a, Tensor b, float beta=1.0, float alpha=1.0) -> Tensor",
        family="gemm",
        source="matmul",
        reference=_reference_addmm,
        eager=_addmm,
        ladder=whole(_addmm_problem),
        triton="matmul_triton:addmm",
        yields=True,
        torch_lacks=lambda a: torch_lacks(a),
        fake=lambda a, b: a.new_empty(product_shape("addmm", a, b)),
        check=_check_addmm,
        backward=_addmm_derivative,
        alternatives=(_addmm_among_others,),
        samples=cases.addmm_samples(),
        errors=cases.ADDMM_ERRORS,
        properties=(Property("deterministic", cases.addmm_deterministic),),
        cost=Cost(bytes=_addmm_bytes, flops=_addmm_operations),
        bench=cases.addmm_bench(),
        bench_dtypes=FLOATS,
    )
)
dispatch.register(addmm_op)
_run_addmm = dispatch.public(addmm_op)
_addmm_into = into.register(addmm_op)


def addmm(
    c: Tensor,
    a: Tensor,
    b: Tensor,
    beta: float = 1.0,
    alpha: float = 1.0,
    *,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """A matrix product, scaled and added to: `beta * c + alpha * a b`.

    Everything is computed in f32 and rounded once; f32 operands are multiplied as they are, without
    TF32. Differentiable in c, a and b.

    Args:
        c: broadcastable to the product, of the dtype and device of a; not read where beta is 0.
        a: [..., m, k], f32, f16 or bf16 (f64 by the reference), any strides.
        b: [..., k, n], of the dtype and device of a, any strides.
        beta: what c is multiplied by.
        alpha: what the product is multiplied by.
        out: a tensor for the result, best contiguous, of its shape and dtype, which is returned
            (`docs/pytorch.md`, results in tensors of the caller). Not differentiable, and with no
            variant.
        variant: one rung by name instead of the best one, "bf16_mma_peak".

    Returns:
        A contiguous tensor [..., m, n] of the dtype of a.

    Raises:
        RuntimeError: an operand is not floating-point, or fp8, or has fewer than two dimensions;
            the dtypes, devices or shapes do not fit; the variant cannot take the input.
        ValueError: the variant does not exist, or comes with out.

    Reference:
        `torch.addmm`; with more than two dimensions `torch.baddbmm`, broadcast as `torch.matmul`.
    """
    if out is not None:
        return _addmm_into(out, variant, c, a, b, beta, alpha)  # type: ignore[no-any-return]
    return _run_addmm(variant, c, a, b, beta, alpha)
