"""One value in the place of those that a mask names."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import (
    DTYPE_NAMES,
    PACK,
    Bad,
    Cost,
    Gradients,
    Inputs,
    Op,
    Property,
    Rung,
    Sample,
)
from warpsmith.spec.checks import check_device, shape_text
from warpsmith.spec.rows import MOST_ROWS, address
from warpsmith.spec.spoilt import Spoiler

_OP, _THREADS, _DIMS = "masked_fill", 256, 4


def _check(x: Tensor, mask: Tensor) -> None:
    if not x.is_floating_point():
        raise RuntimeError(f"{_OP}: expected x to be a floating-point tensor, got {x.dtype}")
    check_device(_OP, "mask", mask, x)
    if mask.dtype != torch.bool:
        raise RuntimeError(f"{_OP}: expected mask to have dtype torch.bool, got {mask.dtype}")
    pairs = zip(reversed(mask.shape), reversed(x.shape), strict=False)
    if mask.dim() > x.dim() or any(n not in (1, size) for n, size in pairs):
        raise RuntimeError(
            f"{_OP}: expected mask to broadcast to the shape of x, {shape_text(x)}, got "
            f"{shape_text(mask)}"
        )


def _derivative(grad: Tensor, mask: Tensor) -> Gradients:
    return {"x": torch.ops.warpsmith.masked_fill(grad, mask, 0.0)}


def _any(x: Tensor) -> str | None:
    if x.numel() == 0:
        return None
    if x.dim() > _DIMS:
        return "needs at most 4 dimensions"
    return None if x.numel() <= MOST_ROWS * _THREADS else "needs at most 2^31 - 1 blocks"


def _packs(x: Tensor, mask: Tensor) -> str | None:
    if x.numel() == 0:
        return None
    if x.dim() > _DIMS:
        return "needs at most 4 dimensions"
    width = PACK[DTYPE_NAMES[x.dtype]]
    aligned = not x.is_contiguous() or address(x) % 16 == 0
    same = mask.numel() == x.numel() and mask.is_contiguous()
    of_mask = address(mask) % width == 0 if same else _broadcasts_in_packs(x, mask, width)
    if x.numel() % width or not aligned or not of_mask:
        return "needs x and its mask in whole packs, aligned"
    return _any(x)


def _broadcasts_in_packs(x: Tensor, mask: Tensor, width: int) -> bool:
    """Whether no access reaches over the end of a row, and each finds its bytes of the mask
    together and aligned.
    """
    if x.dim() == 0 or x.shape[-1] % width:
        return False
    steps = [s if n > 1 else 0 for s, n in zip(mask.stride(), mask.shape, strict=True)][::-1]
    if not steps or steps[0] == 0:
        return True
    whole = steps[0] == 1 and all(step % width == 0 for step in steps[1:])
    return whole and address(mask) % width == 0


# --- samples --------------------------------------------------------------------------------------


def _mask(i: Inputs, *shape: int) -> Tensor:
    return Inputs(torch.float32, i.device, i.seed).plain(*shape, salt=9) > 0.3


def _call(i: Inputs, shape: tuple[int, ...], mask: tuple[int, ...], value: float = -1.5) -> Any:
    return {"x": i.randn(*shape), "mask": _mask(i, *mask), "value": value}


_SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "one": ((1,), (1,)),
    "0-d": ((), ()),
    "packs": ((16, 64), (16, 64)),
    "odd": ((7, 13), (7, 13)),
    "by column": ((7, 24), (24,)),
    "by column, rows of no whole packs": ((8, 6), (6,)),
    "by row": ((7, 24), (7, 1)),
    "all alike": ((7, 24), ()),
    "of attention": ((2, 3, 8, 16), (2, 1, 8, 16)),
    "a query each": ((2, 3, 8, 5), (8, 1)),
    "empty": ((0, 4), (4,)),
}
SAMPLES = (
    *(
        Sample(label, lambda i, s=shape, m=mask: _call(i, s, m))  # type: ignore[misc]
        for label, (shape, mask) in _SHAPES.items()
    ),
    Sample("-inf", lambda i: _call(i, (16, 64), (16, 64), -float("inf"))),
    Sample("rounded", lambda i: _call(i, (16, 64), (16, 64), 0.1)),
    Sample("misaligned", lambda i: _call(i, (16, 64), (16, 64)) | {"x": i.misaligned(16, 64)}),
    Sample("transposed", lambda i: _call(i, (16, 64), (16, 64)) | {"x": i.randn(64, 16).t()}),
    Sample("transposed mask", lambda i: _call(i, (16, 8), (16, 8)) | {"mask": _mask(i, 8, 16).t()}),
    Sample(
        "misaligned mask",
        lambda i: _call(i, (16, 8), (16, 8)) | {"mask": _mask(i, 129)[1:].view(16, 8)},
    ),
    Sample("long", lambda i: _call(i, (300, 1024), (300, 1024)), small=False),
    Sample("long, by column", lambda i: _call(i, (300, 1024), (1024,)), small=False),
    Sample(
        "past 2^31 elements",
        lambda i: _call(i, (1,), (2**19 + 5, 4096)) | {"x": i.plain(2**19 + 5, 4096)},
        small=False,
        huge=True,
        dtypes=("f16",),
    ),
)


def _good(i: Inputs) -> dict[str, Any]:
    return {"x": torch.ones(2, 8, device=i.device), "mask": _mask(i, 2, 8), "value": 0.0}


_bad = Spoiler(_OP, _good)
ERRORS: tuple[Bad, ...] = (
    _bad.integers(),
    _bad(
        "a mask of numbers",
        r"expected mask to have dtype torch\.bool, got torch\.float32",
        mask=lambda i: torch.ones(2, 8, device=i.device),
    ),
    _bad(
        "a mask of another shape",
        r"expected mask to broadcast to the shape of x, \(2, 8\), got \(3, 8\)",
        mask=lambda i: _mask(i, 3, 8),
    ),
    _bad(
        "a mask of more dimensions",
        r"expected mask to broadcast to the shape of x, \(2, 8\), got \(1, 2, 8\)",
        mask=lambda i: _mask(i, 1, 2, 8),
    ),
    _bad.refused(
        "rows of no whole packs",
        "needs x and its mask in whole packs, aligned",
        "f32x4_pack",
        x=lambda i: torch.ones(4, 6, device=i.device),
        mask=lambda i: _mask(i, 6),
    ),
)


def _nan(masked_fill: Any, i: Inputs) -> None:
    """Of no sample: it is not equal to itself."""
    x, mask = i.plain(16, 64), _mask(i, 16, 64)
    assert torch.equal(masked_fill(x, mask, float("nan")).isnan(), mask)


op = catalogue.add(
    Op(
        "masked_fill(Tensor x, Tensor mask, float value) -> Tensor",
        family="transform",
        reference=lambda x, mask, value: torch.where(mask, x.new_full((), value), x),
        reads_fp8=True,
        ladder=(
            Rung(
                "naive",
                "one value a thread, whatever the mask's shape",
                when=_any,
                seeds=("masked_fill_{dtype}",),
            ),
            Rung(
                "pack",
                "128-bit accesses, also of masks that broadcast along rows of whole packs",
                width=PACK,
                pack=True,
                when=_packs,
            ),
        ),
        triton="masked_fill_triton:masked_fill",
        fake=lambda x: x.new_empty(x.shape),
        check=_check,
        backward=_derivative,
        elementwise=True,
        samples=SAMPLES,
        errors=ERRORS,
        properties=(Property("NaN", _nan),),
        cost=Cost(bytes=lambda x, mask: 2 * x.numel() * x.element_size() + mask.numel()),
        bench=(
            Sample("64Mi", lambda i: _call(i, (8192, 8192), (8192, 8192)), small=False),
            Sample("64Mi, by column", lambda i: _call(i, (8192, 8192), (8192,)), small=False),
        ),
        bench_dtypes=("f32", "bf16"),
    )
)
dispatch.register(op)
_masked_fill = dispatch.public(op)


def _is_larger(mask: Tensor, x: Tensor) -> bool:
    """In some dimension."""
    if mask.dim() > x.dim():
        return True
    return any(m > n == 1 for m, n in zip(mask.shape[::-1], x.shape[::-1], strict=False))


def masked_fill(x: Tensor, mask: Tensor, value: float, *, variant: str | None = None) -> Tensor:
    """One value in the place of those that a mask names: `y = mask ? value : x`.

    Args:
        x: f32, f16 or bf16 (f64 without a kernel); what is not contiguous is copied.
        mask: bool, of a shape that broadcasts to that of `x`; or both broadcast to a larger one.
        value: rounded to the dtype of `x`; beyond its range infinite, where PyTorch refuses.
        variant: one rung by name instead of the best one.

    Returns:
        A contiguous tensor like `x`; what the mask leaves is moved bit by bit.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit.
        ValueError: the variant does not exist.

    Reference:
        `torch.masked_fill`.
    """
    if isinstance(x, Tensor) and isinstance(mask, Tensor) and _is_larger(mask, x):
        with contextlib.suppress(RuntimeError):  # the operator says what does not fit
            x = x.expand(torch.broadcast_shapes(x.shape, mask.shape))
    return _masked_fill(variant, x, mask, value)
