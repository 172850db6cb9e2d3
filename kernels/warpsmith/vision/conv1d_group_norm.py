"""A convolution of signals, group norm and an activation: a block of diffusion policy's network;
and the gradients of the convolution.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.core import catalogue, dispatch, messages
from warpsmith.core.catalogue import Cost, Gradients, Op, Property, Rung
from warpsmith.spec import cost
from warpsmith.spec.checks import check_device, shape_text
from warpsmith.vision import conv1d_group_norm_cases as cases

EPS = 1e-5
MOST_TAPS = 7
#: Of the largest tile of the kernel that normalises what it has added up.
MOST_GROUP_CHANNELS, MOST_LENGTH = 128, 128
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda z: z,
    "silu": F.silu,
    "mish": F.mish,
}


# --- checks ---------------------------------------------------------------------------------------


def _check_dtype(op: str, name: str, tensor: Tensor, x: Tensor) -> None:
    check_device(op, name, tensor, x)
    if tensor.dtype != x.dtype:
        raise RuntimeError(
            f"{op}: expected {name} to have dtype {x.dtype} like x, got {tensor.dtype}"
        )


def _check_conv1d(op: str, x: Tensor, weight: Tensor) -> None:
    if not x.is_floating_point():
        raise RuntimeError(f"{op}: expected x to be a floating-point tensor, got {x.dtype}")
    if x.dtype.itemsize == 1:
        raise RuntimeError(f"{op}: expected x to have at least 16 bits an element, got {x.dtype}")
    if x.dim() != 3 or 0 in x.shape[1:]:
        raise RuntimeError(
            f"{op}: expected x to have shape (n, c, l) with channels and positions, "
            f"got {shape_text(x)}"
        )
    _check_dtype(op, "weight", weight, x)
    c = x.shape[1]
    fits = weight.dim() == 3 and weight.shape[0] > 0 and weight.shape[1] == c
    if not fits or not 1 <= weight.shape[2] <= MOST_TAPS:
        raise RuntimeError(
            f"{op}: expected weight to have shape (channels, {c}, 1 to 7), got {shape_text(weight)}"
        )


def _check(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm_weight: Tensor,
    norm_bias: Tensor,
    groups: int,
    activation: str,
) -> None:
    op = "conv1d_group_norm_forward"
    _check_conv1d(op, x, weight)
    c = weight.shape[0]
    named = (("bias", bias), ("norm_weight", norm_weight), ("norm_bias", norm_bias))
    for name, vector in named:
        if vector is None:
            continue
        _check_dtype(op, name, vector, x)
        if tuple(vector.shape) != (c,):
            raise RuntimeError(
                f"{op}: expected {name} to have shape ({c},), a value for each channel of weight, "
                f"got {shape_text(vector)}"
            )
    if groups < 1:
        raise RuntimeError(f"{op}: expected groups to be at least 1, got {groups}")
    if c % groups:
        raise RuntimeError(
            f"{op}: expected groups to divide the {c} channels of weight, got {groups}"
        )
    if activation not in ACTIVATIONS:
        raise RuntimeError(
            f"{op}: expected activation to be 'none', 'silu' or 'mish', got '{activation}'"
        )


def _check_backward(grad: Tensor, x: Tensor, weight: Tensor) -> None:
    op = "conv1d_backward"
    _check_conv1d(op, x, weight)
    _check_dtype(op, "grad", grad, x)
    wanted = (x.shape[0], weight.shape[0], x.shape[2])
    if tuple(grad.shape) != wanted:
        raise RuntimeError(f"{op}: expected grad to have shape {wanted}, got {shape_text(grad)}")


# --- references -----------------------------------------------------------------------------------


def _padded(x: Tensor, taps: int) -> Tensor:
    before = (taps - 1) // 2
    return F.pad(x, (before, taps - 1 - before))


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """In the dtype of x, without TF32."""
    with torch.backends.cudnn.flags(allow_tf32=False):
        return F.conv1d(_padded(x, weight.shape[2]), weight, bias)


def _normalised(h: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    if h.dtype != torch.float64:
        return torch.group_norm(h, groups, weight, bias, eps)  # F.group_norm refuses single values
    # The yardstick of all others: PyTorch multiplies before it subtracts the mean.
    values = h.reshape(h.shape[0], groups, -1)
    deviation = values - values.mean(-1, keepdim=True)
    xhat = deviation * torch.rsqrt(deviation.square().mean(-1, keepdim=True) + eps)
    return xhat.reshape(h.shape) * weight[:, None] + bias[:, None]


def _reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm_weight: Tensor,
    norm_bias: Tensor,
    groups: int,
    eps: float,
    activation: str,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    if x.numel() == 0:
        y = x.new_empty(x.shape[0], weight.shape[0], x.shape[2])
        return y, torch.empty_like(y) if keep else x.new_empty(0)
    h = _convolve(x, weight, bias)
    y = ACTIVATIONS[activation](_normalised(h, groups, norm_weight, norm_bias, eps))
    return y, h.detach() if keep else x.new_empty(0)


def _eager(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm_weight: Tensor,
    norm_bias: Tensor,
    groups: int,
    eps: float,
    activation: str,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    taps = weight.shape[2]
    if taps % 2:
        h = F.conv1d(x, weight, bias, padding=taps // 2)
    else:
        h = F.conv1d(_padded(x, taps), weight, bias)
    y = ACTIVATIONS[activation](F.group_norm(h, groups, norm_weight, norm_bias, eps))
    return y, h if keep else x.new_empty(0)


def _reference_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if x.numel() == 0:
        return torch.empty_like(x), torch.zeros_like(weight), weight.new_zeros(weight.shape[0])
    with torch.backends.cudnn.flags(allow_tf32=False):
        dx, dweight, dbias = _gradients(grad, x, weight)
        if x.dtype != torch.float64 and not weight.isfinite().all():
            # Beyond the ends of a signal a gradient is 0, and 0 times such a weight NaN: tensor
            # cores multiply it, and PyTorch's on a CPU leaves it out. Either is right: float64 has
            # the one, what is judged by it the other.
            taps, before = weight.shape[2], (weight.shape[2] - 1) // 2
            beyond = F.pad(grad, (taps - 1 - before, before))
            dx = F.conv1d(beyond, weight.flip(2).transpose(0, 1))
        return dx, dweight, dbias


def _gradients(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    taps, length = weight.shape[2], x.shape[2]
    sizes, before = [weight.shape[0]], (taps - 1) // 2
    padding = taps // 2 if taps % 2 else 0
    read = x if taps % 2 else _padded(x, taps)
    dx, dweight, dbias = torch.ops.aten.convolution_backward(
        grad, read, weight, sizes, [1], [padding], [1], False, [0], 1, [True] * 3
    )
    dx = dx if taps % 2 else dx[..., before : before + length]
    return dx.contiguous(), dweight.contiguous(), dbias


def _fake(x: Tensor, weight: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    shape = (x.shape[0], weight.shape[0], x.shape[2])
    return x.new_empty(shape), x.new_empty(shape if keep else (0,))


def _fake_backward(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty(weight.shape[0])


def _derivative(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm_weight: Tensor,
    norm_bias: Tensor,
    groups: int,
    eps: float,
    activation: str,
    keep: bool,
    h: Tensor,
) -> Gradients:
    ops = torch.ops.warpsmith
    if not keep:  # not by PyTorch, which on a GPU rounds before it adds the bias, too
        given = (x, weight, bias, norm_weight, norm_bias)
        _, h = ops.conv1d_group_norm_forward(*given, groups, eps, activation, True)
    gh, dscale, dshift = ops.group_norm_backward(
        grad_y, h, groups, norm_weight, norm_bias, eps, activation
    )
    dx, dweight, dbias = ops.conv1d_backward(gh, x, weight)
    if groups == weight.shape[0]:
        dbias = dbias * 0  # the mean takes it out again, but for what gh was rounded; NaN stays
    return {
        "x": dx,
        "weight": dweight,
        "bias": None if bias is None else dbias,
        "norm_weight": dscale,
        "norm_bias": dshift,
    }


# --- what the rungs take, as csrc/vision/conv1d_group_norm has it ---------------------------------


def _countable(x: Tensor, weight: Tensor) -> str | None:
    n, c, length = x.shape
    fits = n * length <= 1 << 30 and length <= 1 << 30 and max(c, weight.shape[0]) <= 1 << 20
    return None if fits else "needs at most 2^30 positions and 2^20 channels"


def _needs_countable(x: Tensor, weight: Tensor) -> str | None:
    return _countable(x, weight) if x.numel() else None


def _needs_whole_groups(x: Tensor, weight: Tensor, groups: int) -> str | None:
    if x.numel() == 0:
        return None
    if why := _countable(x, weight):
        return why
    if weight.shape[0] // groups <= MOST_GROUP_CHANNELS and x.shape[2] <= MOST_LENGTH:
        return None
    return "needs groups of at most 128 channels and signals of at most 128 positions"


def _finite(*tensors: Tensor) -> bool:
    return all(bool(t.isfinite().all()) for t in tensors)


def _valid(x: Tensor, weight: Tensor) -> bool:
    """f32 is multiplied in parts, of which infinity has some that are zero."""
    return x.dtype != torch.float32 or _finite(x, weight)


def _valid_backward(grad: Tensor, x: Tensor, weight: Tensor) -> bool:
    return x.dtype != torch.float32 or _finite(grad, x, weight)


# --- the operators --------------------------------------------------------------------------------


def _bytes(x: Tensor, weight: Tensor, bias: Tensor | None, keep: bool) -> int:
    result = x.shape[0] * weight.shape[0] * x.shape[2] * x.element_size()
    vectors = (3 if bias is not None else 2) * weight.shape[0] * x.element_size()
    return cost.size(x, weight) + vectors + (2 if keep else 1) * result


def _bytes_backward(grad: Tensor, x: Tensor, weight: Tensor) -> int:
    return cost.size(grad, x, weight, x, weight) + weight.shape[0] * x.element_size()


def _flops(x: Tensor, weight: Tensor) -> int:
    return 2 * x.shape[0] * x.shape[2] * weight.numel()


conv1d_op = catalogue.add(
    Op(
        "conv1d_group_norm_forward(Tensor x, Tensor weight, Tensor? bias, Tensor norm_weight, "
        "Tensor norm_bias, int groups, float eps=1e-05, str activation='mish', bool keep=False)"
        " -> (Tensor y, Tensor h)",
        family="vision",
        source="conv1d_group_norm",
        aliases=("conv1d_group_norm",),
        reference=_reference,
        eager=_eager,
        ladder=(
            Rung(
                "naive",
                "a value of the convolution to a thread, then a block per group",
            ),
            Rung(
                "mma",
                "a product of matrices for each tap, of lines that it moves",
                technique="mma",
                when=_needs_countable,
                valid=_valid,
            ),
            Rung(
                "mma_fused",
                "tiles of whole groups, which leave normalised",
                technique="mma_fused",
                when=_needs_whole_groups,
                valid=_valid,
            ),
        ),
        triton="conv1d_group_norm_triton:conv1d_group_norm",
        fake=_fake,
        check=_check,
        backward=_derivative,
        from_output=True,  # of h, as it is kept: in 16 bits, groups of few values show its rounding
        constants=("h",),
        samples=cases.SAMPLES,
        errors=cases.ERRORS,
        properties=(Property("scale of the weights", cases.ignores_scale),),
        cost=Cost(bytes=_bytes, flops=_flops),
        bench=cases.BENCH,
    )
)

conv1d_backward_op = catalogue.add(
    Op(
        "conv1d_backward(Tensor grad, Tensor x, Tensor weight)"
        " -> (Tensor dx, Tensor dweight, Tensor dbias)",
        family="vision",
        source="conv1d_group_norm/backward",
        reference=_reference_backward,
        eager=_gradients,
        ladder=(
            Rung("naive", "a value of dx, or a weight, to a thread"),
            Rung(
                "mma",
                "dx a convolution, dweight a product of matrices for each tap",
                technique="mma",
                when=_needs_countable,
                valid=_valid_backward,
            ),
        ),
        triton="conv1d_group_norm_triton:conv1d_backward",
        fake=_fake_backward,
        check=_check_backward,
        samples=cases.BACKWARD_SAMPLES,
        errors=cases.BACKWARD_ERRORS,
        cost=Cost(bytes=_bytes_backward, flops=lambda x, weight: 2 * _flops(x, weight)),
        bench=cases.BACKWARD_BENCH,
    )
)

dispatch.register(conv1d_op)
dispatch.register(conv1d_backward_op)
_conv1d_group_norm: Callable[..., Any] = dispatch.public(conv1d_op)


def conv1d_group_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    groups: int,
    eps: float = EPS,
    activation: str = "mish",
    *,
    variant: str | None = None,
) -> Tensor:
    """A convolution of signals that keeps their length, group norm of its result, an activation.

    ``h[b, o, l] = bias[o] + sum over i and t of weight[o, i, t] x[b, i, l + t - (k - 1) // 2]``,
    where x is zero outside of the signal, and ``y = activation((h - mean) / sqrt(variance + eps) *
    norm_weight + norm_bias)``, mean and variance over a group's channels and all positions of a
    sample. Differentiable; h is kept only where a gradient will need it. Sums are added up in
    float32, those of float32 values from products of bfloat16 parts whose sum these are.

    Args:
        x: [n, c_in, l], float32, float16 or bfloat16 (float64 without a kernel of its own); what
            is not contiguous is copied.
        weight: [c_out, c_in, k], k from 1 to 7, in the dtype of `x` as the others.
        bias: [c_out], or None.
        norm_weight: [c_out], or None for ones.
        norm_bias: [c_out], or None for zeros.
        groups: a divisor of c_out.
        eps: added to the variance.
        activation: "mish", "silu" or "none".
        variant: one rung by name instead of the best one, "bf16_mma_fused".

    Returns:
        [n, c_out, l], contiguous, in the dtype of `x`.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit; the activation is unknown; the variant
            cannot take the call.
        ValueError: the variant does not exist.

    Reference:
        Conv1dBlock of Chi et al. 2023, "Diffusion Policy", https://arxiv.org/abs/2303.04137;
        `torch.nn.functional.conv1d` with padding "same", `group_norm` and `mish`.
    """
    messages.expect_tensors("conv1d_group_norm", x=x, weight=weight)
    channels = weight.shape[:1]  # none of a number, of which the operator says so
    if norm_weight is None:
        norm_weight = weight.new_ones(channels)
    if norm_bias is None:
        norm_bias = weight.new_zeros(channels)
    given = (x, weight, bias, norm_weight, norm_bias)
    keep = torch.is_grad_enabled() and (
        any(t is not None and t.requires_grad for t in given)
        # what is differentiated within a transform may not say so
        or (not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active())
    )
    return _conv1d_group_norm(variant, *given, groups, eps, activation, keep)[0]
