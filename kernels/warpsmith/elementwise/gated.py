"""Gated activations, `act(gate) * up`: the middle of the MLP in Llama, Gemma and their kin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from warpsmith.core import catalogue, dispatch, into
from warpsmith.core.catalogue import Bad, Gradients, Inputs, Op, Property
from warpsmith.elementwise import checks, ladder, mixed, samples
from warpsmith.spec import layout, references


def _operands(x: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gate and up, out of one tensor or two."""
    return layout.halves(x) if up is None else (x, up)


def _odd(name: str, operands: int) -> Bad:
    def make(inputs: Inputs) -> tuple[Tensor, ...]:
        x = torch.ones(4, 7, device=inputs.device)
        return tuple(x for _ in range(operands))

    message = rf"{name}: expected the last dimension of x to be even, got shape \(4, 7\)"
    return Bad("odd last dimension", make, message)


def _scalar(name: str, operands: int) -> Bad:
    def make(inputs: Inputs) -> tuple[Tensor, ...]:
        return tuple(torch.ones((), device=inputs.device) for _ in range(operands))

    message = rf"{name}: expected at least 1 dimension in x, got shape \(\)"
    return Bad("0-d x", make, message)


def _halves_agree(function: Callable[..., Any], inputs: Inputs) -> None:
    x = inputs.randn(33, 128)
    assert torch.equal(function(x), function(x[:, :64], x[:, 64:]))


def _zero_up(function: Callable[..., Any], inputs: Inputs) -> None:
    x = inputs.randn(1000)
    assert (function(x, torch.zeros_like(x)).float() == 0).all()


FACTS = (
    Property("one tensor and its halves agree", _halves_agree),
    Property("up = 0 gives 0", _zero_up),
)

Peer = Callable[[], Callable[..., Any]]


def _add(
    activation: str,
    function: Callable[[Tensor], Tensor],
    derivative: Callable[[Tensor, Tensor], Tensor],
    eager: Callable[[Tensor], Tensor],
    *,
    peers: dict[str, Peer] | None = None,
    fp8_sizes: bool = False,
    huge: bool = False,
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Enters `<activation>_and_mul` and its gradient into the catalogue; returns the call behind
    the public function, and that behind its `out`.
    """
    name, gradient = f"{activation}_and_mul", f"{activation}_and_mul_backward"

    def check(x: Tensor, up: Tensor | None) -> None:
        checks.gate_shape(name, x, up)

    def check_backward(grad: Tensor, x: Tensor, up: Tensor | None) -> None:
        shape = checks.gate_shape(gradient, x, up)
        checks.like(gradient, "grad", grad, x)
        checks.shaped(gradient, "grad", grad, shape)

    @references.rounded_once
    def reference(x: Tensor, up: Tensor | None = None) -> Tensor:
        gate, up = _operands(x, up)
        return function(gate) * up

    @references.rounded_once
    def reference_backward(
        grad: Tensor, x: Tensor, up: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        gate, other = _operands(x, up)
        d_gate, d_up = derivative(grad * other, gate), grad * function(gate)
        if up is not None:
            return d_gate, d_up
        return torch.cat((d_gate, d_up), dim=-1), x.new_empty(0)

    def eager_forward(x: Tensor, up: Tensor | None = None) -> Tensor:
        gate, up = _operands(x, up)
        return eager(gate) * up

    def fake(x: Tensor, up: Tensor | None) -> Tensor:
        return (
            layout.empty_like(x)
            if up is not None
            else x.new_empty((*x.shape[:-1], x.shape[-1] // 2))
        )

    def fake_backward(x: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
        return layout.empty_like(x), x.new_empty(0) if up is None else layout.empty_like(up)

    def backward(grad: Tensor, x: Tensor, up: Tensor | None) -> Gradients:
        dx, dup = getattr(torch.ops.warpsmith, gradient)(grad, x, up)
        return {"x": dx, "up": dup}

    forward_op = Op(
        f"{name}(Tensor x, Tensor? up=None) -> Tensor",
        family="elementwise",
        source="map",
        part="gated",
        elementwise=True,
        reference=reference,
        eager=references.through_f32(eager_forward),
        ladder=ladder.rungs(ladder.gated, table=True),
        triton=f"map_triton:{name}",
        fake=fake,
        check=check,
        backward=backward,
        samples=(*samples.gated(), *((samples.huge(2),) if huge else ())),
        errors=(
            *samples.wrong_dtypes(name, 2),
            *samples.mismatches(name, 1, "up", 2),
            samples.other_shape(name, 1, "up", 2),
            _odd(name, 1),
            _scalar(name, 1),
            *samples.refusals(name, 2),
        ),
        properties=FACTS,
        cost=samples.GATED_COST,
        bench=samples.bench(2, fused=True, fp8_sizes=fp8_sizes),
        bench_dtypes=ladder.ALL,
        peers=peers or {},
    )
    backward_op = Op(
        f"{gradient}(Tensor grad, Tensor x, Tensor? up=None) -> (Tensor, Tensor)",
        family="elementwise",
        source="map",
        part="gated",
        elementwise=True,
        reference=reference_backward,
        eager=references.through_f32(reference_backward),
        ladder=ladder.rungs(ladder.gated_backward, table=True),
        triton=f"map_triton:{gradient}",
        fake=fake_backward,
        check=check_backward,
        samples=samples.gated_backward(),
        errors=(
            *samples.wrong_dtypes(gradient, 3),
            *samples.mismatches(gradient, 0, "grad", 3),
            *samples.mismatches(gradient, 2, "up", 3),
            samples.other_shape(gradient, 0, "grad", 3),
            samples.other_shape(gradient, 2, "up", 3),
            _odd(gradient, 2),
            _scalar(gradient, 2),
            *samples.refusals(gradient, 3),
        ),
        cost=samples.GATED_BACKWARD_COST,
        bench=samples.bench(3, fused=True),
        bench_dtypes=ladder.ALL,
    )
    for op in (forward_op, backward_op):
        catalogue.add(op)
        dispatch.register(op)
    return dispatch.public(forward_op), into.register(forward_op)


def _liger_swiglu() -> Callable[..., Any]:
    from liger_kernel.ops.swiglu import swiglu_forward

    return lambda x, up=None: swiglu_forward(*_operands(x, up))[-1]


def _liger_geglu() -> Callable[..., Any]:
    from liger_kernel.ops.geglu import geglu_forward

    return lambda x, up=None: geglu_forward(*_operands(x, up))[-1]


_silu_and_mul, _silu_and_mul_into = _add(
    "silu",
    F.silu,
    references.silu_backward,
    F.silu,
    peers={"liger": _liger_swiglu},
    fp8_sizes=True,
    huge=True,
)
_gelu_and_mul, _gelu_and_mul_into = _add("gelu", references.gelu, references.gelu_backward, F.gelu)
_gelu_tanh_and_mul, _gelu_tanh_and_mul_into = _add(
    "gelu_tanh",
    references.gelu_tanh,
    references.gelu_tanh_backward,
    lambda x: F.gelu(x, approximate="tanh"),
    peers={"liger": _liger_geglu},
)
_gelu_by_tanh_and_mul = dispatch.public(catalogue.entered("gelu_tanh_and_mul"), "gelu_and_mul")


def _clamped(
    op: str,
    x: Tensor,
    up: Tensor | None,
    limit: float | None,
    multiplier: float,
    alpha: float = 1.0,
    shift: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Gate and up as models change them in front of the product, by PyTorch's kernels."""
    if up is None:
        if x.dim() == 0 or x.shape[-1] % 2:
            checks.gate_shape(op, x, up)  # which raises
        x, up = x.chunk(2, -1)
    if limit is not None:
        x, up = x.clamp(max=limit), up.clamp(-limit, limit)
    if multiplier != 1.0 or alpha != 1.0:
        x = x * (multiplier * alpha)
    if shift != 0.0:
        up = up + shift
    return x, up


def silu_and_mul(
    x: Tensor,
    up: Tensor | None = None,
    *,
    limit: float | None = None,
    multiplier: float = 1.0,
    alpha: float = 1.0,
    shift: float = 0.0,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """SwiGLU's middle, `silu(gate) * up`, the product held in float32.

    With the other arguments it is what models make of it: `g = multiplier * min(gate, limit)`,
    `u = clamp(up, -limit, limit) + shift`, and `g * sigmoid(alpha * g) * u`. gpt-oss has limit 7,
    alpha 1.702 and shift 1; Falcon-H1 a multiplier. They change gate and up by PyTorch's kernels,
    each rounded, in front of this one.

    Args:
        x: the gate, any shape, strides and floating dtype (float32, float16, bfloat16,
            float8_e4m3fn and float8_e5m2 have kernels); or, without `up`, [..., 2 d] with the gate
            in the first d columns and up in the last d.
        up: the shape and device of `x`; of another floating dtype, both meet in the wider one.
        limit: the largest gate, and the largest magnitude of up; None for none.
        multiplier: of the gate.
        alpha: of the gate, within the sigmoid alone.
        shift: added to up.
        out: a tensor for the result, of its shape and dtype, which is returned; not differentiable,
            and with no variant.
        variant: the kernel to use; by default the fastest that takes the call.

    Returns:
        A tensor of the shape and dtype of the gate, with its strides where `up` is given and `x`
        is dense, else contiguous.

    Raises:
        RuntimeError: for other dtypes, devices or shapes than these.
        ValueError: for an unknown variant.
        RuntimeError: where the variant cannot take the call.

    Reference:
        Shazeer 2020, "GLU Variants Improve Transformer", https://arxiv.org/abs/2002.05202
    """
    if limit is not None or multiplier != 1.0 or alpha != 1.0 or shift != 0.0:
        x, up = _clamped("silu_and_mul", x, up, limit, multiplier, alpha, shift)
        if alpha != 1.0:
            up = up / alpha
    if isinstance(up, Tensor) and isinstance(x, Tensor) and up.dtype != x.dtype:
        x, up = mixed.alike(x, up)
    if out is not None:
        return _silu_and_mul_into(out, variant, x, up)
    return _silu_and_mul(variant, x, up)


def gelu_and_mul(
    x: Tensor,
    up: Tensor | None = None,
    approximate: str = "none",
    *,
    limit: float | None = None,
    multiplier: float = 1.0,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """GEGLU's middle, `gelu(gate) * up`, the product held in float32.

    Args:
        x: the gate; or, without `up`, [..., 2 d] with gate and up side by side, as in
            `silu_and_mul`.
        up: the shape and device of `x`; of another floating dtype, both meet in the wider one.
        approximate: "none" or "tanh", as in `gelu`.
        limit: the largest gate, and the largest magnitude of up, as in `silu_and_mul`.
        multiplier: of the gate, likewise.
        out: a tensor for the result, of its shape and dtype, which is returned; not differentiable,
            and with no variant.
        variant: the kernel to use; by default the fastest that takes the call.

    Returns:
        A tensor of the shape and dtype of the gate, with its strides where `up` is given and `x`
        is dense, else contiguous.

    Raises:
        RuntimeError: for other dtypes, devices or shapes than these, or another `approximate`.
        ValueError: for an unknown variant.
        RuntimeError: where the variant cannot take the call.

    Reference:
        Shazeer 2020, "GLU Variants Improve Transformer", https://arxiv.org/abs/2002.05202
    """
    if approximate == "none":
        run, run_into = _gelu_and_mul, _gelu_and_mul_into
    elif approximate == "tanh":
        run, run_into = _gelu_by_tanh_and_mul, _gelu_tanh_and_mul_into
    else:
        raise RuntimeError(
            f"gelu_and_mul: expected approximate to be 'none' or 'tanh', got '{approximate}'"
        )
    if limit is not None or multiplier != 1.0:
        x, up = _clamped("gelu_and_mul", x, up, limit, multiplier)
    if isinstance(up, Tensor) and isinstance(x, Tensor) and up.dtype != x.dtype:
        x, up = mixed.alike(x, up)
    if out is not None:
        return run_into(out, variant, x, up)
    return run(variant, x, up)


def gelu_tanh_and_mul(
    x: Tensor,
    up: Tensor | None = None,
    *,
    limit: float | None = None,
    multiplier: float = 1.0,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """`gelu_and_mul` in its tanh approximation.

    Args:
        x: the gate; or, without `up`, [..., 2 d] with gate and up side by side, as in
            `silu_and_mul`.
        up: the shape and device of `x`; of another floating dtype, both meet in the wider one.
        limit: the largest gate, and the largest magnitude of up, as in `silu_and_mul`.
        multiplier: of the gate, likewise.
        out: a tensor for the result, of its shape and dtype, which is returned; not differentiable,
            and with no variant.
        variant: the kernel to use; by default the fastest that takes the call.

    Returns:
        A tensor of the shape and dtype of the gate, with its strides where `up` is given and `x`
        is dense, else contiguous.

    Raises:
        RuntimeError: for other dtypes, devices or shapes than these.
        ValueError: for an unknown variant.
        RuntimeError: where the variant cannot take the call.

    Reference:
        Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415
    """
    if limit is not None or multiplier != 1.0:
        x, up = _clamped("gelu_tanh_and_mul", x, up, limit, multiplier)
    if isinstance(up, Tensor) and isinstance(x, Tensor) and up.dtype != x.dtype:
        x, up = mixed.alike(x, up)
    if out is not None:
        return _gelu_tanh_and_mul_into(out, variant, x, up)
    return _gelu_tanh_and_mul(variant, x, up)
