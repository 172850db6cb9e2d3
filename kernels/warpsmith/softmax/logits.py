"""Attention scores before their softmax: z = x * scale + bias, -inf where they are excluded.

What the operators on scores of shape [..., queries, keys] share: the checks of bias and mask, the
references, and how bias and mask lie over the rows of x (mirrors logits.h and operands.h in
csrc/softmax).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import DTYPE_NAMES, PACK
from warpsmith.spec.rows import address, tiles_rows

#: Dimensions before the last that a kernel unfolds a row's number into.
MOST_LEADING = 4
#: What one dimension of a CUDA grid can count.
MOST_ROWS = (1 << 31) - 1
#: Columns of a row that a warp can hold.
WARP_COLS = 2048
#: Bytes of a row that a block can hold.
BLOCK_BYTES = 64 << 10
#: Blocks of the largest cluster that shares a row.
MOST_CLUSTER = 16
#: Below this scale, dx has lost too much of the logits' gradient to give it back.
_LEAST_SCALE = 2.0**-8

# --- checks ---------------------------------------------------------------------------------------


def excluding(op: str, mask: Tensor | None, excluded: Tensor) -> Tensor:
    """What is given as `excluded`, in the place of a mask."""
    if mask is not None:
        raise ValueError(f"{op}: expected either a mask or excluded")
    if not isinstance(excluded, Tensor) or excluded.dtype != torch.bool:
        given = excluded.dtype if isinstance(excluded, Tensor) else type(excluded).__name__
        raise TypeError(f"{op}: expected excluded to be a tensor of torch.bool, got {given}")
    return excluded


def most_warp_cols(x: Tensor, causal: bool, drops: bool = False) -> int:
    """Columns of the longest row of which a warp makes better work than a block."""
    return WARP_COLS if x.dtype != torch.float32 and causal and drops else WARP_COLS // 2


def check_rows(op: str, x: Tensor, name: str = "x") -> None:
    if not x.is_floating_point():
        raise RuntimeError(f"{op}: expected {name} to be a floating-point tensor, got {x.dtype}")
    if x.dim() == 0:
        raise RuntimeError(f"{op}: expected at least 1 dimension in {name}, got shape ()")


def check_broadcasts(op: str, name: str, tensor: Tensor, x: Tensor) -> None:
    if tensor.device != x.device:
        raise RuntimeError(f"{op}: expected {name} to be on {x.device} like x, got {tensor.device}")
    pairs = zip(reversed(tensor.shape), reversed(x.shape), strict=False)
    if tensor.dim() > x.dim() or any(a not in (1, b) for a, b in pairs):
        raise RuntimeError(
            f"{op}: expected {name} to be broadcastable to the shape {tuple(x.shape)} of x, "
            f"got {tuple(tensor.shape)}"
        )


def is_bias_dtype(dtype: torch.dtype, x: Tensor) -> bool:
    """An additive operand: the dtype of x, or f32."""
    return dtype in (x.dtype, torch.float32)


def bias_dtypes(x: Tensor) -> str:
    return str(x.dtype) + ("" if x.dtype == torch.float32 else " or torch.float32")


def check_bias(op: str, bias: Tensor | None, x: Tensor) -> None:
    if bias is None:
        return
    check_broadcasts(op, "bias", bias, x)
    if not is_bias_dtype(bias.dtype, x):
        raise RuntimeError(f"{op}: expected bias to have dtype {bias_dtypes(x)}, got {bias.dtype}")


def check_bool_mask(op: str, mask: Tensor | None, x: Tensor) -> None:
    if mask is None:
        return
    check_broadcasts(op, "mask", mask, x)
    if mask.dtype != torch.bool:
        raise RuntimeError(f"{op}: expected mask to have dtype torch.bool, got {mask.dtype}")


# --- references -----------------------------------------------------------------------------------


def wide_dtype(x: Tensor) -> torch.dtype:
    """What logits and their statistics are held in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def beyond_diagonal(x: Tensor) -> Tensor:
    """[queries, keys]: True where key j lies behind query i, j > i + keys - queries."""
    queries, keys = x.shape[-2] if x.dim() > 1 else 1, x.shape[-1]
    i = torch.arange(queries, device=x.device)[:, None]
    excluded = torch.arange(keys, device=x.device) > i + (keys - queries)
    return excluded if x.dim() > 1 else excluded[0]


def masked_logits(
    x: Tensor, bias: Tensor | None, mask: Tensor | None, scale: float, causal: bool
) -> Tensor:
    wide = wide_dtype(x)
    z = x.to(wide) * scale
    if bias is not None:
        z = z + bias.to(wide)
    if mask is not None:
        z = z.masked_fill(mask, -math.inf)
    if causal:
        z = z.masked_fill(beyond_diagonal(x), -math.inf)
    return z


def without_logits(z: Tensor) -> Tensor:
    """[..., 1]: rows in which everything is excluded."""
    return (z == -math.inf).all(-1, keepdim=True)


class KeptSoftmax(torch.autograd.Function):
    """Softmax whose backward pass works from the result as it was rounded, as that of PyTorch does;
    zeros for rows in which everything is excluded.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, dtype: torch.dtype) -> Tensor:
        y = torch.softmax(z, -1).masked_fill(without_logits(z), 0.0).to(dtype)
        ctx.save_for_backward(y)
        ctx.wide = z.dtype
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        y, g = ctx.saved_tensors[0].to(ctx.wide), grad.to(ctx.wide)
        return y * (g - (g * y).sum(-1, keepdim=True)), None


# --- gradients ------------------------------------------------------------------------------------


def additive_gradient(
    operand: Tensor, dx: Tensor, scale: float, unscaled: Callable[[], Tensor]
) -> Tensor:
    """The gradient of what is added to x * scale: that of the logits, summed where it is broadcast.

    Args:
        operand: the bias.
        dx: gradient of x: that of the logits times `scale`.
        scale: of x.
        unscaled: computes the gradient of the logits at the operand's precision, for where `dx` has
            lost it.
    """
    wide = wide_dtype(dx)
    total, divisor = dx, scale
    if operand.dtype != dx.dtype or not _LEAST_SCALE <= abs(scale) < math.inf:
        total, divisor = unscaled(), 1.0
    missing = total.dim() - operand.dim()
    dims = [
        d
        for d in range(total.dim())
        if d < missing or (operand.shape[d - missing] == 1 and total.shape[d] != 1)
    ]
    total = total.sum(dims, keepdim=True, dtype=wide) if dims else total.to(wide)
    return (total / divisor).view(operand.shape).to(operand.dtype)


# --- layout ---------------------------------------------------------------------------------------


def rows_of(x: Tensor) -> int:
    return x.numel() // x.shape[-1] if x.numel() else 0


def row_bytes(x: Tensor) -> int:
    return x.shape[-1] * x.element_size() if x.numel() else 0


def is_copied(operand: Tensor, x: Tensor) -> bool:
    """Whether a kernel gets a copy: of strided columns, or of more dimensions than it unfolds."""
    if x.dim() - 1 > MOST_LEADING:
        return True
    return operand.dim() > 0 and operand.shape[-1] != 1 and operand.stride(-1) > 1


def tiles_operand(operand: Tensor | None, x: Tensor, width: int) -> bool:
    """Whether accesses of `width` values tile the rows of an operand that is broadcast over x."""
    if operand is None or is_copied(operand, x):
        return True
    if operand.dim() == 0 or operand.shape[-1] == 1 or operand.stride(-1) == 0:
        return True
    missing = x.dim() - operand.dim()
    for d in range(operand.dim() - 1):
        if operand.shape[d] != 1 and x.shape[d + missing] != 1 and operand.stride(d) % width:
            return False
    return address(operand) % min(width * operand.element_size(), 16) == 0


def pack_of(x: Tensor) -> int:
    return PACK[DTYPE_NAMES[x.dtype]]


def needs_packs(x: Tensor, bias: Tensor | None, mask: Tensor | None) -> str | None:
    width = pack_of(x)
    if x.numel() == 0 or (
        tiles_rows(x, width) and tiles_operand(bias, x, width) and tiles_operand(mask, x, width)
    ):
        return None
    return "needs rows of x, bias and mask aligned to packs of 16 bytes of x"


def needs_grid(x: Tensor) -> str | None:
    return None if rows_of(x) <= MOST_ROWS else "needs at most 2^31 - 1 rows"


def needs_cluster_grid(x: Tensor) -> str | None:
    return None if rows_of(x) <= MOST_ROWS // MOST_CLUSTER else "needs at most 2^27 - 1 rows"


def fits_cluster(x: Tensor) -> str | None:
    fits = row_bytes(x) <= MOST_CLUSTER * BLOCK_BYTES
    return None if fits else "needs rows of at most 1 MiB"


def suits_cluster(x: Tensor) -> str | None:
    return None if row_bytes(x) > BLOCK_BYTES else "the row fits a block's registers"


# --- cost -----------------------------------------------------------------------------------------


def live_elements(x: Tensor, causal: bool) -> int:
    """Elements before the diagonal, which alone have to be read."""
    if not causal or x.numel() == 0 or x.dim() < 2:
        return x.numel()
    queries, keys = x.shape[-2:]
    first = keys - queries + 1  # what query 0 sees; the others see one more each
    hidden = max(0, 1 - first)  # queries that see nothing
    seen = queries - hidden
    total = seen * (first + hidden) + seen * (seen - 1) // 2
    return x.numel() // (queries * keys) * total


def operand_bytes(*operands: Tensor | None) -> int:
    return sum(t.numel() * t.element_size() for t in operands if t is not None)
