"""Group norm: mean and variance over groups of channels, with an activation fused; and its
gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.core import catalogue, dispatch, into
from warpsmith.core.catalogue import PACK, Cost, Gradients, Op, Property, Rung
from warpsmith.norm import arguments
from warpsmith.norm import group_norm_cases as cases
from warpsmith.norm.group_layout import Groups, as_groups, empty_like
from warpsmith.spec.checks import check_device, check_like, shape_text
from warpsmith.spec.peers import RetainedGraph
from warpsmith.spec.rows import address

EPS = cases.EPS

Activate = Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, Activate] = {"none": lambda z: z, "silu": F.silu, "mish": F.mish}

# --- checks ---------------------------------------------------------------------------------------


def _check_input(op: str, x: Tensor, groups: int) -> None:
    if not x.is_floating_point():
        raise RuntimeError(f"{op}: expected x to be a floating-point tensor, got {x.dtype}")
    if x.dim() < 2:
        raise RuntimeError(f"{op}: expected at least 2 dimensions in x, got shape {shape_text(x)}")
    if groups < 1:
        raise RuntimeError(f"{op}: expected groups to be at least 1, got {groups}")
    if x.shape[1] % groups:
        raise RuntimeError(
            f"{op}: expected groups to divide the {x.shape[1]} channels of x, got {groups}"
        )


def _check_vector(op: str, name: str, vector: Tensor | None, x: Tensor) -> None:
    """One value per channel, in the dtype of `x` or in f32."""
    if vector is None:
        return
    check_device(op, name, vector, x)
    c = x.shape[1]
    if vector.dim() != 1 or vector.shape[0] != c:
        raise RuntimeError(
            f"{op}: expected {name} to have shape ({c},), the channels of x, "
            f"got {shape_text(vector)}"
        )
    if vector.dtype not in (x.dtype, torch.float32):
        wide = "" if x.dtype == torch.float32 else " or torch.float32"
        raise RuntimeError(
            f"{op}: expected {name} to have dtype {x.dtype}{wide}, got {vector.dtype}"
        )


def _check_activation(op: str, activation: str) -> None:
    if activation not in ACTIVATIONS:
        raise RuntimeError(
            f"{op}: expected activation to be 'none', 'silu' or 'mish', got '{activation}'"
        )


def _check(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, activation: str
) -> None:
    op = "group_norm"
    _check_input(op, x, groups)
    _check_vector(op, "weight", weight, x)
    _check_vector(op, "bias", bias, x)
    _check_activation(op, activation)


def _check_backward(
    grad: Tensor,
    x: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    activation: str,
) -> None:
    op = "group_norm_backward"
    _check_input(op, x, groups)
    check_like(op, "grad", grad, x)
    _check_vector(op, "weight", weight, x)
    _check_vector(op, "bias", bias, x)
    _check_activation(op, activation)


# --- references -----------------------------------------------------------------------------------


def _eager(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, activation: str
) -> Tensor:
    return ACTIVATIONS[activation](F.group_norm(x, groups, weight, bias, eps))


def _normalised(x: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    """(x - mean) / std as [n, c, spatial], and 1 / std as [n, groups, 1]."""
    n, c = x.shape[:2]
    values = x.reshape(n, groups, -1)
    deviation = values - values.mean(-1, keepdim=True)
    rstd = torch.rsqrt(deviation.square().mean(-1, keepdim=True) + eps)
    return (deviation * rstd).reshape(n, c, -1), rstd


def _affine(xhat: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    z = xhat if weight is None else xhat * weight[:, None]
    return z if bias is None else z + bias[:, None]


def _reference(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, activation: str
) -> Tensor:
    if x.numel() == 0:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.dtype == torch.float64:
        # The yardstick of all others: PyTorch multiplies before it subtracts the mean, which makes
        # infinite weights NaN.
        xhat, _ = _normalised(x, groups, eps)
        z = _affine(xhat, weight, bias).reshape(x.shape)
        return ACTIVATIONS[activation](z)
    wide = x.dtype
    for vector in (weight, bias):
        wide = wide if vector is None else torch.promote_types(wide, vector.dtype)
    w, b = (None if v is None else v.to(wide) for v in (weight, bias))
    if w is None and b is not None:
        w = torch.ones_like(b)  # PyTorch's gradient of a bias alone fails in 16 bits on the CPU
    # F.group_norm refuses groups of one value.
    z = torch.group_norm(x.to(wide), groups, w, b, eps)
    return ACTIVATIONS[activation](z).to(x.dtype)


def _activation_backward(grad: Tensor, z: Tensor, activation: str) -> Tensor:
    if activation == "silu":
        return torch.ops.aten.silu_backward(grad, z)
    if activation == "mish":
        return torch.ops.aten.mish_backward(grad, z)
    return grad


def _reference_backward(
    grad: Tensor,
    x: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    activation: str,
) -> tuple[Tensor, Tensor, Tensor]:
    if x.numel() == 0:
        dw, db = (x.new_zeros(0) if v is None else torch.zeros_like(v) for v in (weight, bias))
        return torch.empty(x.shape, dtype=x.dtype, device=x.device), dw, db
    wide = torch.promote_types(x.dtype, torch.float32)
    n, c = x.shape[:2]
    by_channel, by_group = (n, c, -1), (n, groups, -1)
    xhat, rstd = _normalised(x.to(wide), groups, eps)
    w = torch.ones(c, dtype=wide, device=x.device) if weight is None else weight.to(wide)
    b = None if bias is None else bias.to(wide)
    gz = _activation_backward(grad.to(wide).reshape(by_channel), _affine(xhat, w, b), activation)
    scaled, xhat_groups = (gz * w[:, None]).reshape(by_group), xhat.reshape(by_group)
    along = (scaled * xhat_groups).mean(-1, keepdim=True)
    dx = rstd * (scaled - scaled.mean(-1, keepdim=True) - xhat_groups * along)
    dw = x.new_empty(0) if weight is None else (gz * xhat).sum((0, 2)).to(weight.dtype)
    db = x.new_empty(0) if bias is None else gz.sum((0, 2)).to(bias.dtype)
    return dx.reshape(x.shape).to(x.dtype), dw, db


def _fake(x: Tensor) -> Tensor:
    return empty_like(x)


def _fake_backward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    dw, db = (x.new_empty(0) if v is None else v.new_empty(v.shape) for v in (weight, bias))
    return empty_like(x), dw, db


def _derivative(
    grad: Tensor,
    x: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    activation: str,
) -> Gradients:
    dx, dw, db = torch.ops.warpsmith.group_norm_backward(
        grad, x, groups, weight, bias, eps, activation
    )
    return {"x": dx, "weight": dw, "bias": db}


# --- what the rungs take --------------------------------------------------------------------------

KIB = 1 << 10
MIB = 1 << 20
#: A grid must be able to count 16 blocks for each.
MOST_GROUPS = ((1 << 31) - 1) // 16
MOST_CHANNELS = 1 << 20
MOST_COLUMNS = 256
MOST_HALF_BYTES = 256 * KIB  # of a group whose gradient is read once


def _width(x: Tensor) -> int:
    return PACK[catalogue.DTYPE_NAMES[x.dtype]]


def _aligned(x: Tensor, layout: Groups) -> bool:
    return layout.copied or address(x) % 16 == 0


def _row_bytes(x: Tensor, groups: int) -> int:
    return as_groups(x, groups).row_size * x.element_size()


def _packed_groups(x: Tensor, groups: int) -> str | None:
    layout = as_groups(x, groups)
    if layout.channels_last:
        return "needs contiguous x"
    if layout.row_size % _width(x) or not _aligned(x, layout):
        return "needs groups aligned to 16 bytes"
    return None


def _packed_channels(x: Tensor, groups: int) -> str | None:
    layout = as_groups(x, groups)
    if not layout.channels_last:
        return "needs channels-last x"
    if layout.c > MOST_CHANNELS:
        return "needs at most 2^20 channels"
    if layout.c % _width(x) or not _aligned(x, layout):
        return "needs channels aligned to 16 bytes"
    if layout.unit_packs(_width(x)) > MOST_COLUMNS:
        return "needs a group to end within 256 packs of channels"
    return None


def _few_groups(x: Tensor, groups: int) -> str | None:
    rows = as_groups(x, groups).rows
    return None if rows <= MOST_GROUPS else "needs fewer than 2^27 groups"


def _needs_pack(x: Tensor, groups: int) -> str | None:
    return _packed_groups(x, groups) if x.numel() else None


def _needs_groups(x: Tensor, groups: int) -> str | None:
    if x.numel() == 0:
        return None
    return _packed_groups(x, groups) or _few_groups(x, groups)


def _whole_channels(x: Tensor, groups: int) -> str | None:
    layout = as_groups(x, groups)
    if layout.channels_last:
        return "needs contiguous x"
    if layout.spatial % _width(x) or not _aligned(x, layout):
        return "needs channels aligned to 16 bytes"
    return None


def _at_most(size: int, text: str) -> Callable[..., str | None]:
    def condition(x: Tensor, groups: int) -> str | None:
        if x.numel() == 0:
            return None
        if why := _whole_channels(x, groups) or _few_groups(x, groups):
            return why
        return None if _row_bytes(x, groups) <= size else f"needs groups of at most {text}"

    return condition


def _needs_channels(x: Tensor, groups: int) -> str | None:
    if x.numel() == 0:
        return None
    return _packed_channels(x, groups) or _few_groups(x, groups)


def _needs_nhwc_cluster(x: Tensor, groups: int) -> str | None:
    if x.numel() == 0:
        return None
    if why := _needs_channels(x, groups):
        return why
    layout = as_groups(x, groups)
    fits = 16 * layout.unit_packs(_width(x)) * layout.spatial <= 3 * MIB
    return None if fits else "needs runs of whole groups of at most 3 MiB"


def _longer_than(size: int, why: str) -> Callable[..., str | None]:
    def condition(x: Tensor, groups: int) -> str | None:
        return None if x.numel() and _row_bytes(x, groups) > size else why

    return condition


def _are_few(x: Tensor, groups: int) -> bool:
    return as_groups(x, groups).rows < 132


def _suits_spread(x: Tensor, groups: int) -> str | None:
    if x.numel() == 0:
        return None
    size = _row_bytes(x, groups)
    if size > MIB:  # a cluster of 16 blocks for each, of which a multiprocessor has room for one
        at_once = as_groups(x, groups).rows * 16 <= 128
        return None if at_once else "the groups take turns; `split` is faster"
    few = _are_few(x, groups)
    return None if few and 16 * KIB < size <= 64 * KIB else "the groups keep the GPU busy"


def _suits_cluster(x: Tensor, groups: int) -> str | None:
    size = _row_bytes(x, groups) if x.numel() else 0
    fits = size > 80 * KIB or (size > 64 * KIB and _are_few(x, groups))
    return None if fits else "two groups fit a multiprocessor's registers"


def _suits_nhwc_cluster(x: Tensor, groups: int) -> str | None:
    if x.numel() == 0:
        return None
    layout, width = as_groups(x, groups), _width(x)
    columns = layout.columns(width, 10)
    if 16 * columns * layout.spatial > 8 * 84 * KIB:
        columns = layout.columns(width, 4)
    if 16 * columns * layout.spatial > 3 * MIB:
        columns = layout.columns(width, 1)
    long = columns >= 4 or columns == layout.c // width
    return None if long else "the runs that a cluster holds are too short for DRAM"


# --- what the rungs of the gradient take ----------------------------------------------------------


def _whole_channels_backward(grad: Tensor, x: Tensor, groups: int) -> str | None:
    if why := _whole_channels(x, groups):
        return why
    if not _grad_aligned(grad, x):
        return "needs channels aligned to 16 bytes"
    few = x.shape[0] * x.shape[1] <= MOST_GROUPS
    return None if few else "needs fewer than 2^27 channels in all samples"


def _grad_aligned(grad: Tensor, x: Tensor) -> bool:
    strides = as_groups(x, 1).strides
    copied = any(s > 1 and grad.stride(d) != strides[d] for d, s in enumerate(grad.shape))
    return copied or address(grad) % 16 == 0


def _needs_whole_channels(grad: Tensor, x: Tensor, groups: int) -> str | None:
    return _whole_channels_backward(grad, x, groups) if x.numel() else None


def _resident(size: int, text: str) -> Callable[..., str | None]:
    def condition(grad: Tensor, x: Tensor, groups: int) -> str | None:
        if x.numel() == 0:
            return None
        if why := _whole_channels_backward(grad, x, groups):
            return why
        if as_groups(x, groups).group_channels > 1024:
            return "needs groups of at most 1024 channels"
        fits = _row_bytes(x, groups) <= size
        return None if fits else f"needs groups of at most {text}"

    return condition


def _needs_stream_backward(grad: Tensor, x: Tensor, groups: int, *rest: Any) -> str | None:
    if x.numel() == 0:
        return None
    if why := _whole_channels_backward(grad, x, groups):
        return why
    if as_groups(x, groups).spatial * x.element_size() % 512:
        return "needs channels of a multiple of 512 bytes"
    if rest[-1] == "mish":
        return "needs no activation, or SiLU"
    fits = as_groups(x, groups).row_size <= 1 << 18
    return None if fits else "needs groups of at most 2^18 values"


def _suits_stream_backward(x: Tensor, groups: int) -> str | None:
    if x.numel() == 0:
        return None
    size, half = _row_bytes(x, groups), x.element_size() == 2
    if half and size > MOST_HALF_BYTES:
        return "it computes longer than `split` reads"
    least = 64 * KIB if half else 160 * KIB + 1
    return None if size >= least else "`cluster` has no more to compute than to wait"


def _suits_cluster_backward(x: Tensor, groups: int) -> str | None:
    if x.numel() == 0:
        return None
    size = _row_bytes(x, groups)
    if x.element_size() == 2 and size > MOST_HALF_BYTES:
        return "it computes longer than `split` reads"
    few = _are_few(x, groups)
    return None if size > 32 * KIB or (few and size > 16 * KIB) else "the group fits a block"


def _needs_channels_backward(grad: Tensor, x: Tensor, groups: int) -> str | None:
    if x.numel() == 0:
        return None
    if why := _packed_channels(x, groups):
        return why
    if not _grad_aligned(grad, x):
        return "needs channels aligned to 16 bytes"
    return _few_groups(x, groups)


# --- peers ----------------------------------------------------------------------------------------


def _liger() -> Callable[..., Any]:
    from liger_kernel.ops.group_norm import group_norm_forward

    def run(
        x: Tensor,
        groups: int,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        activation: str,
    ) -> Tensor:
        z = group_norm_forward(x, x.shape[1], groups, weight, bias, eps)[0]
        return ACTIVATIONS[activation](z)

    return run


def _compiled_backward() -> Callable[..., Any]:
    return RetainedGraph(torch.compile(_eager, dynamic=False))


def _liger_backward() -> Callable[..., Any]:
    from liger_kernel.ops.group_norm import LigerGroupNormFunction

    def forward(
        x: Tensor,
        groups: int,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        activation: str,
    ) -> Tensor:
        z = LigerGroupNormFunction.apply(x, weight, bias, x.shape[1], groups, eps)
        return ACTIVATIONS[activation](z)

    return RetainedGraph(forward)


# --- the operators --------------------------------------------------------------------------------


def _vector_bytes(*vectors: Tensor | None) -> int:
    return sum(v.numel() * v.element_size() for v in vectors if v is not None)


def _bytes(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> int:
    return 2 * x.numel() * x.element_size() + _vector_bytes(weight, bias)


def _bytes_backward(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> int:
    return 3 * x.numel() * x.element_size() + 2 * _vector_bytes(weight, bias)


group_norm_op = catalogue.add(
    Op(
        "group_norm(Tensor x, int groups, Tensor? weight=None, Tensor? bias=None, float eps=1e-5, "
        'str activation="none") -> Tensor',
        family="norm",
        reference=_reference,
        ladder=(
            Rung("naive", "a block per group, three sweeps, any layout"),
            Rung(
                "pack",
                "128-bit accesses, both moments in one sweep",
                width=PACK,
                pack=True,
                when=_needs_pack,
                seeds=("group_norm_silu_{dtype}", "group_norm_mish_{dtype}"),
            ),
            Rung(
                "split",
                "groups cut into pieces for as many blocks as there is room for, x read twice",
                width=PACK,
                pack=True,
                technique="split",
                when=_needs_groups,
                suits=_longer_than(128 * KIB, "the group fits a block"),
            ),
            Rung(
                "registers",
                "the group held in registers and read once, small groups sharing a block",
                width=PACK,
                pack=True,
                technique="registers",
                when=_at_most(128 * KIB, "128 KiB"),
            ),
            Rung(
                "cluster",
                "a group held in the registers of a cluster, several on a multiprocessor",
                width=PACK,
                pack=True,
                technique="cluster",
                min_sm=90,
                when=_at_most(MIB, "1 MiB"),
                suits=_suits_cluster,
            ),
            Rung(
                "spread",
                "a group spread over the shared memory of a cluster of its own",
                width=PACK,
                pack=True,
                technique="spread",
                min_sm=90,
                when=_at_most(3 * MIB, "3 MiB"),
                suits=_suits_spread,
            ),
            Rung(
                "nhwc_split",
                "channels last: slabs of positions, a thread stays with its channels, x read twice",
                width=PACK,
                pack=True,
                technique="nhwc_split",
                when=_needs_channels,
                seeds=("group_norm_nhwc_{dtype}",),
            ),
            Rung(
                "nhwc_cluster",
                "channels last: a tile of channels held by a cluster and read once",
                width=PACK,
                pack=True,
                technique="nhwc_cluster",
                min_sm=90,
                when=_needs_nhwc_cluster,
                suits=_suits_nhwc_cluster,
            ),
        ),
        triton="group_norm_triton:group_norm",
        fake=_fake,
        check=_check,
        backward=_derivative,
        accumulates=True,
        samples=cases.forward_samples(),
        errors=cases.ERRORS,
        properties=(
            Property("groups independent", cases.groups_independent),
            Property("layouts agree", cases.layouts_agree),
            Property("normalised", cases.normalised),
            Property("repeatable", cases.repeatable),
        ),
        cost=Cost(bytes=_bytes, flops=lambda x: 8 * x.numel()),
        bench=cases.bench(),
        peers={"liger": _liger},
        eager=_eager,
    )
)

group_norm_backward_op = catalogue.add(
    Op(
        "group_norm_backward(Tensor grad, Tensor x, int groups, Tensor? weight, Tensor? bias, "
        "float eps, str activation) -> (Tensor, Tensor, Tensor)",
        family="norm",
        source="group_norm/backward",
        reference=_reference_backward,
        ladder=(
            Rung("naive", "a block per group for dx, a block per channel for dw and db"),
            Rung(
                "split",
                "passes over memory with as many blocks as there is room for",
                width=PACK,
                pack=True,
                technique="split",
                when=_needs_whole_channels,
            ),
            Rung(
                "shared",
                "x and grad of a group held in a block's shared memory and read once",
                width=PACK,
                pack=True,
                technique="shared",
                when=_resident(32 * KIB, "32 KiB"),
            ),
            Rung(
                "cluster",
                "x and grad of a group spread over a cluster's shared memory",
                width=PACK,
                pack=True,
                technique="cluster",
                min_sm=90,
                when=_resident(1536 * KIB, "1.5 MiB"),
                suits=_suits_cluster_backward,
            ),
            Rung(
                "stream",
                "groups streamed through a cluster, which reads groups ahead",
                width=PACK,
                pack=True,
                technique="stream",
                min_sm=90,
                when=_needs_stream_backward,
                suits=_suits_stream_backward,
            ),
            Rung(
                "nhwc_split",
                "channels last: slabs of positions, channel sums in registers",
                width=PACK,
                pack=True,
                technique="nhwc_split",
                when=_needs_channels_backward,
            ),
        ),
        triton="group_norm_triton:group_norm_backward",
        fake=_fake_backward,
        check=_check_backward,
        samples=cases.backward_samples(),
        errors=cases.BACKWARD_ERRORS,
        properties=(
            Property("dx sums to zero", cases.balanced),
            Property("repeatable", cases.repeatable_gradients),
        ),
        cost=Cost(bytes=_bytes_backward, flops=lambda x: 24 * x.numel()),
        bench=cases.bench_backward(),
        peers={"compile": _compiled_backward, "liger": _liger_backward},
        eager=RetainedGraph(_eager),
    )
)

dispatch.register(group_norm_op)
dispatch.register(group_norm_backward_op)
_group_norm = dispatch.public(group_norm_op)
_group_norm_into = into.register(group_norm_op)


def group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = EPS,
    activation: str = "none",
    *,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """Normalises groups of channels: ``y = act((x - mean) / sqrt(var + eps) * weight + bias)``.

    Mean and (biased) variance are over the channels of a group and all positions of a sample, held
    in f32, the only accumulator that there is here, and free of cancellation. Differentiable in x,
    weight and bias; the backward pass recomputes statistics and activation, so that only the inputs
    are kept.

    Args:
        x: [n, c, *spatial], f32, f16 or bf16 (f64 and fp8 without a kernel of their own), any
            strides. Contiguous and channels-last tensors are read as they are.
        groups: how many groups the channels are cut into; divides c.
        weight: [c], in the dtype of x or f32; None for ones. Of another dtype it is read in f32.
        bias: [c], likewise; None for zeros.
        eps: added to the variance before the root.
        activation: "none", "silu" or "mish", applied to the result.
        out: a tensor of the shape and dtype of x for the result, which is returned; best if it lies
            as the result would. Not differentiable, and with no variant.
        variant: one rung by name instead of the best one, "f16x8_pack_cluster_f32".

    Returns:
        A dense tensor of the shape and dtype of x: channels last where the channels of x are
        neighbours in memory, else contiguous.

    Raises:
        RuntimeError: x is not floating-point or has fewer than two dimensions; groups is below 1 or
            does not divide c; weight or bias has another shape, dtype or device; the activation is
            unknown; the variant cannot take the input.
        ValueError: the variant does not exist, or comes with out.

    Reference:
        Wu & He 2018, Group Normalization, https://arxiv.org/abs/1803.08494
    """
    if not arguments.taken(x, weight, bias):
        (weight,), (bias,) = (arguments.fitting(x, a) for a in (weight, bias))
    if out is not None:
        return _group_norm_into(out, variant, x, groups, weight, bias, eps, activation)  # type: ignore[no-any-return]
    return _group_norm(variant, x, groups, weight, bias, eps, activation)
