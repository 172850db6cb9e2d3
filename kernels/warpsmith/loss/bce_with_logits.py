"""Binary cross-entropy of logits: loss = (1 - t) x - log(sigmoid(x)), and its gradient."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import (
    PACK,
    Bad,
    Cost,
    Gradients,
    Inputs,
    Needs,
    Op,
    Property,
    Rung,
    Sample,
)
from warpsmith.loss.checks import REDUCTIONS, check_reduction, wide_dtype
from warpsmith.spec.checks import check_like
from warpsmith.spec.rows import address

#: As PyTorch numbers reductions.
NONE, MEAN, SUM = range(3)

# --- checks ---------------------------------------------------------------------------------------


def _check_pair(op: str, x: Tensor, target: Tensor) -> None:
    if not x.is_floating_point():
        raise RuntimeError(f"{op}: expected x to be a floating-point tensor, got {x.dtype}")
    check_like(op, "target", target, x)


def _check(x: Tensor, target: Tensor, reduction: int) -> None:
    op = "bce_with_logits_forward"
    _check_pair(op, x, target)
    if reduction not in (NONE, MEAN, SUM):
        raise RuntimeError(
            f"{op}: expected reduction to be 0 (none), 1 (mean) or 2 (sum), got {reduction}"
        )


def _check_backward(x: Tensor, target: Tensor, grad: Tensor) -> None:
    op = "bce_with_logits_backward"
    _check_pair(op, x, target)
    if grad.device != x.device:
        raise RuntimeError(f"{op}: expected grad to be on {x.device} like x, got {grad.device}")
    if grad.dtype != wide_dtype(x):
        raise RuntimeError(f"{op}: expected grad to have dtype {wide_dtype(x)}, got {grad.dtype}")
    if grad.dim() and grad.shape != x.shape:
        raise RuntimeError(
            f"{op}: expected grad to have shape {tuple(x.shape)} like x, or (), "
            f"got {tuple(grad.shape)}"
        )


# --- references -----------------------------------------------------------------------------------


def _reference(x: Tensor, target: Tensor, reduction: int) -> Tensor:
    wide = wide_dtype(x)
    return F.binary_cross_entropy_with_logits(
        x.to(wide), target.to(wide), reduction=REDUCTIONS[reduction]
    )


def _reference_backward(x: Tensor, target: Tensor, grad: Tensor, scale: float) -> Tensor:
    wide = wide_dtype(x)
    return ((x.to(wide).sigmoid() - target.to(wide)) * (grad * scale)).to(x.dtype)


def _fake(x: Tensor, reduction: int) -> Tensor:
    return x.new_empty(x.shape if reduction == NONE else (), dtype=wide_dtype(x))


def _derivative(grad: Tensor, x: Tensor, target: Tensor, reduction: int, needs: Needs) -> Gradients:
    scale = 1.0
    if reduction == MEAN:
        n = x.numel()
        if isinstance(n, int):
            scale = 1.0 / max(n, 1)
        else:  # a symbol of torch.compile, of which a float would become a constant
            grad = grad / torch.sym_max(n, 1)
    dx = dtarget = None
    if "x" in needs:
        dx = torch.ops.warpsmith.bce_with_logits_backward(x, target, grad, scale)
    if "target" in needs:
        dtarget = (x.to(grad.dtype) * (grad * -scale)).to(target.dtype)
    return {"x": dx, "target": dtarget}


# --- what the rungs take --------------------------------------------------------------------------


def _aligned(*tensors: Tensor) -> bool:
    """A kernel gets a contiguous copy of what is not contiguous."""
    return all(not t.is_contiguous() or address(t) % 16 == 0 for t in tensors)


def _needs_packs(x: Tensor, target: Tensor) -> str | None:
    fits = x.numel() == 0 or _aligned(x, target)
    return None if fits else "needs x and target aligned to 16 bytes"


def _needs_sum(x: Tensor, target: Tensor, reduction: int) -> str | None:
    if x.numel() and reduction == NONE:
        return "sums; it writes no loss per element"
    return _needs_packs(x, target)


def _needs_packs_backward(x: Tensor, target: Tensor, grad: Tensor) -> str | None:
    fits = x.numel() == 0 or _aligned(x, target, *((grad,) if grad.dim() else ()))
    return None if fits else "needs x, target and gradient aligned to 16 bytes"


# --- samples --------------------------------------------------------------------------------------


def _target(inputs: Inputs, *shape: int) -> Tensor:
    """Probabilities, some of them 0 and 1."""
    t = inputs.plain(*shape, salt=5).float().sigmoid()
    if t.numel() > 3:
        flat = t.view(-1)
        flat[1::5], flat[2::5] = 0.0, 1.0
    return t.to(inputs.dtype)


def _pair(inputs: Inputs, *shape: int) -> tuple[Tensor, Tensor]:
    return inputs.randn(*shape), _target(inputs, *shape)


def _special(inputs: Inputs) -> tuple[Tensor, Tensor]:
    x, t = _pair(inputs, 64)
    x[0], x[1], x[2], t[3] = math.nan, math.inf, -math.inf, math.nan
    x[4], x[5], t[4], t[5] = math.inf, -math.inf, 1.0, 1.0
    x[6], x[7] = 0.0, -0.0
    return x, t


def _samples() -> tuple[Sample, ...]:
    sizes = (1, 3, 7, 63, 64, 257, 1000, 1023, 4099, 12345)
    grid = [
        Sample(f"{n} {REDUCTIONS[k % 3]}", lambda i, n=n, k=k: (*_pair(i, n), k % 3))  # type: ignore[misc]
        for k, n in enumerate(sizes)
    ]
    grid += [
        Sample(
            f"{n} {REDUCTIONS[r]}",
            lambda i, n=n, r=r: (*_pair(i, n), r),  # type: ignore[misc]
            small=False,
        )
        for n in (100_003, 3_000_001)
        for r in (NONE, MEAN, SUM)
    ]
    return (
        *grid,
        Sample("defaults", lambda i: _pair(i, 5, 31)),
        Sample("0-d", lambda i: (*_pair(i), MEAN)),
        Sample("3-d", lambda i: (*_pair(i, 3, 5, 16), NONE)),
        Sample("nothing", lambda i: (*_pair(i, 0, 4), NONE)),
        Sample("sum of nothing", lambda i: (*_pair(i, 0, 4), SUM)),
        Sample("mean of nothing", lambda i: (*_pair(i, 0, 4), MEAN)),
        Sample("misaligned", lambda i: (i.misaligned(257), _target(i, 257), NONE)),
        Sample("misaligned sum", lambda i: (i.misaligned(257), _target(i, 258)[1:], SUM)),
        Sample("transposed", lambda i: (i.randn(16, 24).t(), _target(i, 24, 16), NONE)),
        Sample("transposed sum", lambda i: (i.randn(16, 24).t(), _target(i, 16, 24).t(), MEAN)),
        Sample("stepped", lambda i: (i.randn(9, 64)[:, ::2], _target(i, 9, 64)[:, 1::2], NONE)),
        Sample("expanded target", lambda i: (i.randn(9, 64), _target(i, 64).expand(9, 64), SUM)),
        Sample("times 100", lambda i: (i.plain(1000, scale=100.0), _target(i, 1000), MEAN)),
        Sample("special", lambda i: (*_special(i), NONE)),
        Sample("special sum", lambda i: (*_special(i), SUM)),
        Sample(
            "past 2^31 elements",
            lambda i: (i.plain((1 << 31) + 9), _target(i, 1).expand((1 << 31) + 9), SUM),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
    )


def _backward_samples() -> tuple[Sample, ...]:
    def backwards(sample: Sample) -> Sample:
        def make(inputs: Inputs) -> tuple[Any, ...]:
            x, target, reduction = (*sample.make(inputs), MEAN)[:3]
            shape = x.shape if reduction == NONE else ()
            scale = 1.0 / max(x.numel(), 1) if reduction == MEAN else 1.0
            return x, target, inputs.plain(*shape, salt=2).float(), scale

        return Sample(sample.label, make, sample.small, sample.huge, sample.dtypes)

    return (
        *(backwards(s) for s in _samples()),
        Sample(
            "misaligned gradient",
            lambda i: (*_pair(i, 128), i.plain(129, salt=2).float()[1:], 1.0),
        ),
        Sample(
            "expanded gradient",
            lambda i: (*_pair(i, 9, 64), i.plain(64, salt=2).float().expand(9, 64), 0.5),
        ),
    )


def _bench(label: str, n: int, reduction: int) -> Sample:
    return Sample(
        f"{label} {REDUCTIONS[reduction]}",
        lambda i: (i.plain(n), _target(i, n), reduction),
        small=False,
    )


def _bench_backward(label: str, n: int) -> Sample:
    return Sample(
        label,
        lambda i: (i.plain(n), _target(i, n), i.plain(salt=2).float(), 1.0 / n),
        small=False,
    )


# --- bad calls ------------------------------------------------------------------------------------


def _errors(op: str, *rest: Any) -> tuple[Bad, ...]:
    return (
        Bad(
            "integers",
            lambda i: (*(torch.ones(3, device=i.device).int(),) * 2, *rest),
            rf"{op}: expected x to be a floating-point tensor, got torch\.int32",
        ),
        Bad(
            "target of another shape",
            lambda i: (i.randn(3), i.randn(4), *rest),
            rf"{op}: expected target to have shape \(3,\) like x, got \(4,\)",
        ),
        Bad(
            "target of another dtype",
            lambda i: (i.randn(3), i.randn(3).double(), *rest),
            rf"{op}: expected target to have dtype torch\.\w+ like x, got torch\.float64",
        ),
        Bad(
            "target on the CPU",
            lambda i: (i.randn(3), torch.ones(3, dtype=i.dtype), *rest),
            rf"{op}: expected target to be on cuda:\d+ like x, got cpu",
            cuda_only=True,
        ),
    )


_ERRORS = (
    *_errors("bce_with_logits_forward", SUM),
    Bad(
        "no such reduction",
        lambda i: (*_pair(i, 3), 3),
        r"bce_with_logits_forward: expected reduction to be 0 \(none\), 1 \(mean\) or 2 \(sum\), "
        r"got 3",
    ),
    Bad(
        "pack, misaligned",
        lambda i: (*(Inputs(torch.float32, i.device).misaligned(8),) * 2, SUM),
        r"bce_with_logits_forward.*: .*needs x and target aligned to 16 bytes",
        variant="f32x4_pack",
    ),
    Bad(
        "unroll, a loss per element",
        lambda i: (*_pair(Inputs(torch.float32, i.device), 8), NONE),
        r"bce_with_logits_forward.*: .*sums; it writes no loss per element",
        variant="f32x4_pack_unroll",
    ),
)

_BACKWARD_ERRORS = (
    *_errors("bce_with_logits_backward", torch.ones(()), 1.0),
    Bad(
        "gradient of another shape",
        lambda i: (*_pair(i, 3), i.plain(1).float(), 1.0),
        r"bce_with_logits_backward: expected grad to have shape \(3,\) like x, or \(\), "
        r"got \(1,\)",
    ),
    Bad(
        "gradient of another dtype",
        lambda i: (*_pair(i, 3), i.plain(3).double(), 1.0),
        r"bce_with_logits_backward: expected grad to have dtype torch\.float32, got torch\.float64",
    ),
)

# --- properties -----------------------------------------------------------------------------------


def _mirrored(function: Any, inputs: Inputs) -> None:
    """Not x against not t costs what x costs against t."""
    x = inputs.plain(1000)
    zeros, ones = torch.zeros_like(x), torch.ones_like(x)
    torch.testing.assert_close(
        function(x, ones, NONE), function(-x, zeros, NONE), rtol=1e-5, atol=1e-6
    )


def _repeats(function: Any, inputs: Inputs) -> None:
    """Sums are joined in one order, so that a second call gives the same bits."""
    x, target = _pair(inputs, 300_007)
    assert torch.equal(function(x, target, SUM), function(x, target, SUM))


# --- the operators --------------------------------------------------------------------------------


def _bytes(x: Tensor, reduction: int) -> int:
    losses = x.numel() if reduction == NONE else 1
    return 2 * x.numel() * x.element_size() + losses * 4


def _bytes_backward(x: Tensor, grad: Tensor) -> int:
    return 3 * x.numel() * x.element_size() + grad.numel() * 4


bce_with_logits_forward_op = catalogue.add(
    Op(
        "bce_with_logits_forward(Tensor x, Tensor target, int reduction=1) -> Tensor",
        family="loss",
        source="bce_with_logits",
        reference=_reference,
        ladder=(
            Rung("naive", "one value an access"),
            Rung("pack", "128-bit accesses", width=PACK, pack=True, when=_needs_packs),
            Rung(
                "unroll",
                "sums with four packs of each operand in flight per thread",
                width=PACK,
                pack=True,
                technique="unroll",
                when=_needs_sum,
            ),
        ),
        triton="bce_with_logits_triton:bce_with_logits_forward",
        fake=_fake,
        check=_check,
        backward=_derivative,
        accumulates=True,
        aliases=("bce_with_logits", "binary_cross_entropy"),
        samples=_samples(),
        errors=_ERRORS,
        properties=(Property("mirrored", _mirrored), Property("repeats", _repeats)),
        cost=Cost(bytes=_bytes, flops=lambda x: 20 * x.numel()),
        bench=(
            _bench("64Mi", 1 << 26, MEAN),
            _bench("64Mi", 1 << 26, NONE),
            _bench("256Mi", 1 << 28, MEAN),
        ),
    )
)

bce_with_logits_backward_op = catalogue.add(
    Op(
        "bce_with_logits_backward(Tensor x, Tensor target, Tensor grad, float scale) -> Tensor",
        family="loss",
        source="bce_with_logits/backward",
        reference=_reference_backward,
        ladder=(
            Rung("naive", "one value an access"),
            Rung("pack", "128-bit accesses", width=PACK, pack=True, when=_needs_packs_backward),
        ),
        triton="bce_with_logits_triton:bce_with_logits_backward",
        fake=lambda x: x.new_empty(x.shape),
        check=_check_backward,
        samples=_backward_samples(),
        errors=_BACKWARD_ERRORS,
        cost=Cost(bytes=_bytes_backward, flops=lambda x: 8 * x.numel()),
        bench=(_bench_backward("64Mi", 1 << 26), _bench_backward("256Mi", 1 << 28)),
    )
)

dispatch.register(bce_with_logits_forward_op)
dispatch.register(bce_with_logits_backward_op)
_forward = dispatch.public(bce_with_logits_forward_op)


def _weighted(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    pos_weight: Tensor | None,
    reduction: str,
    variant: str | None,
) -> Tensor:
    """With p = pos_weight the loss is s times that against p t / s, where s = p t + 1 - t: the same
    kernel, in f32, between PyTorch's.
    """
    x, target = _in_one_dtype(x, target)
    if x.element_size() < 4:
        x, target = x.float(), target.float()
    factor = None
    if pos_weight is not None:
        weighed = target * pos_weight.to(x.dtype)
        factor = weighed + (1.0 - target)
        target = torch.where(factor == 0.0, 0.0, weighed / torch.where(factor == 0.0, 1.0, factor))
    loss = _forward(variant, x, target.expand(x.shape), REDUCTIONS.index("none"))
    if factor is not None:
        loss = loss * factor
    if weight is not None:
        loss = loss * weight
    return loss if reduction == "none" else loss.sum() if reduction == "sum" else loss.mean()


def _in_one_dtype(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the wider dtype, where both are floating-point."""
    given = (x, target)
    known = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    if x.dtype == target.dtype or not all(t.dtype in known for t in given):
        return given
    wide = torch.promote_types(x.dtype, target.dtype)
    return x.to(wide), target.to(wide)


def bce_with_logits(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    pos_weight: Tensor | None = None,
    reduction: str = "mean",
    variant: str | None = None,
) -> Tensor:
    """Binary cross-entropy of logits against probabilities:
    ``loss = -t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x))``, computed without overflow.

    Everything is computed in f32, and the loss is f32 whatever the dtype of x; sums are joined in
    f64 and in one order, so that they repeat bit by bit. Differentiable in x and target.

    Args:
        x: logits of any shape, f32, f16 or bf16 (f64 and fp8 without a kernel of their own), any
            strides (what is not contiguous is copied).
        target: probabilities, of the shape of x; of another floating dtype, both meet in the wider
            one.
        weight: broadcastable to x: what each loss is multiplied by, by PyTorch's kernels.
        pos_weight: broadcastable to x: what the term of the target is multiplied by, likewise.
        reduction: "none" for a loss per element, "sum" or "mean".
        variant: one rung by name instead of the best one, "bf16x8_pack_unroll_f32".

    Returns:
        An f32 tensor (f64 for f64 logits): contiguous and of the shape of x for "none", otherwise a
        scalar.

    Raises:
        RuntimeError: x is not floating-point; target has another shape, dtype or device; the
            variant cannot take the input.
        ValueError: the reduction or the variant does not exist.

    Reference:
        `torch.nn.functional.binary_cross_entropy_with_logits`.
    """
    check_reduction("bce_with_logits", reduction)
    if weight is not None or pos_weight is not None:
        return _weighted(x, target, weight, pos_weight, reduction, variant)
    if isinstance(x, Tensor) and isinstance(target, Tensor) and x.dtype != target.dtype:
        x, target = _in_one_dtype(x, target)
    return _forward(variant, x, target, REDUCTIONS.index(reduction))
