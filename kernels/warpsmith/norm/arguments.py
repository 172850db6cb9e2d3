"""Arguments of the public norms beyond what their kernels take: PyTorch's order, which names the
dimensions first, several dimensions, parameters of other dtypes, a weight for each head.

The functions look for these where it costs the host next to nothing, and come here for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Run = Callable[..., Tensor]
#: Where a norm rounds: once, or, as Llama's, to the dtype of its input in front of the weight, too.
ROUNDINGS = ("once", "before_weight")


def in_order(
    op: str, order: tuple[Any, ...], names: tuple[str, ...], named: tuple[Any, ...]
) -> tuple[Any, ...]:
    """What was given by position behind x, in either order, and by keyword.

    Args:
        op: the function, for messages.
        order: by position: normalized_shape or not, and then what `names` name.
        names: of parameters and eps, in their order.
        named: normalized_shape and they as given by keyword, or their defaults.

    Returns:
        normalized_shape, None where there is none, and what `names` name.

    Raises:
        TypeError: more were given by position than there are, or the shape twice.
    """
    shape, *found = named
    if order and isinstance(order[0], Sequence | int):
        if shape is not None:
            raise TypeError(f"{op}: got normalized_shape twice")
        shape, order = order[0], order[1:]
    if len(order) > len(names):
        raise TypeError(
            f"{op} takes x, normalized_shape or not, {', '.join(names)}; got {len(order)} of the "
            "latter by position"
        )
    return shape, *order, *found[len(order) :]


def fits(x: Tensor, parameter: Any) -> bool:
    """Whether the kernels take a weight or a bias beside x as it is, or are to refuse it."""
    if not isinstance(parameter, Tensor):
        return True
    dtype = parameter.dtype
    return parameter.dim() == 1 and (dtype == torch.float32 or dtype == x.dtype)


def eps_of(x: Tensor) -> float:
    """What PyTorch's RMS norm takes for None: the epsilon of what it computes in."""
    return torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps


def taken(x: Tensor, *given: Any) -> bool:
    """Whether the kernels take what is given beside x in its dtype, or are to refuse it."""
    dtype = getattr(x, "dtype", None)
    for a in given:
        if isinstance(a, Tensor) and a.dtype is not dtype and a.dtype is not torch.float32:
            return False
    return True


def alike(weight: Any, bias: Any) -> bool:
    """Whether both are of one dtype, or one is missing."""
    return (
        not (isinstance(weight, Tensor) and isinstance(bias, Tensor)) or weight.dtype is bias.dtype
    )


def fitting(x: Tensor, *parameters: Any) -> tuple[Any, ...]:
    """Parameters that a kernel takes beside x, in its dtype or in f32 and all in one: those that it
    does not take in f32, in which they lose nothing.
    """
    given = [p for p in parameters if isinstance(p, Tensor)]
    if all(p.dtype == given[0].dtype for p in given) and (
        not given or given[0].dtype in (x.dtype, torch.float32)
    ):
        return parameters
    wide = (torch.float32, torch.float16, torch.bfloat16)
    return tuple(
        p.float() if isinstance(p, Tensor) and p.dtype in wide and x.dtype != torch.float64 else p
        for p in parameters
    )


def check_shape(op: str, name: str, parameter: Any, shape: int | Sequence[int]) -> None:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if isinstance(parameter, Tensor) and tuple(parameter.shape) != sizes:
        raise RuntimeError(
            f"{op}: expected {name} to have normalized_shape, {sizes}, got {tuple(parameter.shape)}"
        )


def over_shape(
    op: str, run: Run, x: Tensor, shape: int | Sequence[int] | None, *parameters: Any
) -> Tensor:
    """`run(rows, *parameters)` of the last dimensions, which have that shape, taken as one; of the
    last dimension where there is no shape.

    Raises:
        RuntimeError: x does not end in that shape.
    """
    if shape is None:
        return run(x, *parameters)
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    count = len(sizes)
    if not 1 <= count <= x.dim() or tuple(x.shape[-count:]) != sizes:
        raise RuntimeError(
            f"{op}: expected x to end in normalized_shape, {sizes}, got {tuple(x.shape)}"
        )
    if count == 1:
        return run(x, *parameters)
    flat = (p.flatten() if isinstance(p, Tensor) else p for p in parameters)
    return run(x.flatten(-count), *flat).view(x.shape)


def is_by_head(x: Tensor, weight: Any) -> bool:
    """Whether a weight is one of [heads, n] for x of [..., heads, n], say."""
    count = weight.dim() if isinstance(weight, Tensor) else 0
    return 1 < count <= x.dim() and x.shape[-count:] == weight.shape


def times(y: Tensor, weight: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """A norm without parameters, times a weight and plus a bias that broadcast, each rounded, in
    the dtype of the norm.
    """
    wide = y
    if weight is not None:
        wide = wide * weight
    if bias is not None:
        wide = wide + bias
    return wide.to(y.dtype)


def residual_parameters(
    op: str,
    run: Callable[[Tensor | None], tuple[Tensor, Tensor]],
    weight: Tensor | None,
    bias: Tensor | None,
    rounding: str,
    zero_centered: bool,
    out: Any,
) -> tuple[Tensor, Tensor]:
    """y and h of a residual norm with a bias, or with a rounding in front of its weight, which
    PyTorch's kernels multiply by and add: `run(weight)` is the norm as its own kernels take it,
    and `out` what it writes to.
    """
    check_rounding(op, rounding)
    factor = None
    if rounding == "before_weight" and weight is not None:
        factor = 1.0 + weight if zero_centered else weight
        weight = None
    needs_gradient = any(isinstance(a, Tensor) and a.requires_grad for a in (factor, bias))
    if out is not None and needs_gradient and torch.is_grad_enabled():
        raise RuntimeError(
            f"{op}: not differentiable with out; expected arguments that require no gradient"
        )
    y, h = run(weight)
    if factor is None and bias is None:
        return y, h
    found = times(y, factor, bias)
    return (found if out is None else y.copy_(found)), h


def check_rounding(op: str, rounding: str) -> None:
    if rounding not in ROUNDINGS:
        known = " or ".join(repr(name) for name in ROUNDINGS)
        raise ValueError(f"{op}: expected rounding to be {known}, got {rounding!r}")
