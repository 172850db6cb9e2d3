"""Nearest-neighbour upsampling of images, and its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch, messages
from warpsmith.core.catalogue import PACK, Cost, Gradients, Op, Property, Rung
from warpsmith.spec import references
from warpsmith.spec.bits import as_bits, says_which
from warpsmith.spec.checks import shape_text, wide_dtype
from warpsmith.spec.layout import address
from warpsmith.vision import upsample_nearest2d_cases as cases

ALL = ("f32", "f16", "bf16", "e4m3", "e5m2", "i8", "i32")
#: What `needs_rows` reads in one access: half a pack of x, a whole one of a gradient.
HALF, WHOLE = 8, 16
#: Of the rung `images`: those of a thread, and the threads below which it does not suit.
_IMAGES, _LEAST_THREADS = 4, 1 << 18


# --- layout, as csrc/vision/upsample_nearest2d has it ---------------------------------------------


def channels_last(x: Tensor) -> bool:
    """Channels are neighbours; what is contiguous too passes for that."""
    if x.dim() != 4 or x.is_contiguous():
        return False
    _, c, h, w = x.shape
    wanted = (c * h * w, 1, w * c, c)
    pairs = zip(x.shape, x.stride(), wanted, strict=True)
    return all(size == 1 or stride == want for size, stride, want in pairs)


def empty_image(like: Tensor, size: Sequence[int]) -> Tensor:
    n, c = like.shape[:2]
    h, w = size
    if channels_last(like):
        return like.new_empty_strided((n, c, h, w), (c * h * w, 1, w * c, c))
    return like.new_empty((n, c, h, w))


def scale_of(factor: float, size: int, out_size: int) -> float:
    """Rows or columns of x for one of the result, rounded to float as PyTorch does. A side that
    keeps its size is copied, whatever the factor.
    """
    if size == out_size:
        return 1.0
    if factor > 0:
        return float(torch.tensor(1.0 / factor, dtype=torch.float32, device="cpu"))
    wide = torch.tensor([size, out_size], dtype=torch.float32, device="cpu")
    return float(wide[0] / wide[1])


def sources(factor: float, size: int, out_size: int, device: torch.device) -> Tensor:
    """Which row or column of x each of the result's comes from, [out_size]."""
    scale = scale_of(factor, size, out_size)
    at = torch.arange(out_size, device=device).float() * scale
    return at.floor().long().clamp(max=size - 1)


@dataclass(frozen=True)
class Images:
    outer: int
    inner: int
    height: int
    width: int
    out_height: int
    out_width: int
    doubles: bool
    address: int
    itemsize: int

    @staticmethod
    def of(
        x: Tensor, size: Sequence[int], out: Sequence[int], factors: tuple[float, float]
    ) -> Images:
        """`x`: what is read; `size` of the smaller image, `out` of the upsampled one."""
        scales = tuple(map(scale_of, factors, size, out))
        twice = tuple(out) == (2 * size[0], 2 * size[1]) and scales == (0.5, 0.5)
        last = channels_last(x)
        start = address(x) if last or x.is_contiguous() else 0  # a copy is aligned
        n, c = x.shape[:2]
        outer, inner = (n, c) if last else (n * c, 1)
        (h, w), (out_h, out_w) = size, out
        return Images(outer, inner, h, w, out_h, out_w, twice, start, x.element_size())

    def needs_channel_packs(self) -> str | None:
        if self.inner % (16 // self.itemsize) == 0 and self.address % 16 == 0:
            return None
        return "needs channels that are neighbours, in packs of 16 bytes"

    def needs_result_packs(self) -> str | None:
        if self.inner != 1:
            return self.needs_channel_packs()
        whole = self.out_width % (16 // self.itemsize) == 0
        return None if whole else "needs rows of the result in packs of 16 bytes"

    def needs_doubled_rows(self, read: int) -> str | None:
        if self.inner != 1 or not self.doubles:
            return "needs contiguous rows, twice as many and twice as long"
        if self.out_width % (16 // self.itemsize) == 0 and self.address % read == 0:
            return None
        return "needs rows that begin at and are whole packs of 16 bytes, of x half as many"

    def fill_threads(self) -> str | None:
        """Whether threads of several images each are many."""
        threads = -(-self.outer // _IMAGES) * self.height * self.width * self.inner
        if self.outer >= _IMAGES and threads >= _LEAST_THREADS:
            return None
        return "few values, for which a thread each is faster"


Ask = Callable[[Images], "str | None"]


def _of_forward(ask: Ask) -> Callable[..., str | None]:
    def condition(x: Tensor, size: Sequence[int], factor_h: float, factor_w: float) -> str | None:
        if x.numel() == 0:
            return None
        return ask(Images.of(x, x.shape[-2:], size, (factor_h, factor_w)))

    return condition


def _of_backward(ask: Ask) -> Callable[..., str | None]:
    def condition(
        grad: Tensor, size: Sequence[int], factor_h: float, factor_w: float
    ) -> str | None:
        if grad.numel() == 0:
            return None
        return ask(Images.of(grad, size, grad.shape[-2:], (factor_h, factor_w)))

    return condition


# --- checks, references ---------------------------------------------------------------------------


def _check_images(op: str, name: str, x: Tensor, size: Sequence[int]) -> None:
    if x.dim() != 4 or 0 in x.shape[2:]:
        raise RuntimeError(
            f"{op}: expected {name} to have shape (n, c, h, w) with pixels, got {shape_text(x)}"
        )
    if len(size) != 2 or min(size) < 1:
        raise RuntimeError(
            f"{op}: expected size to be a height and a width of at least 1, got {list(size)}"
        )


def _check(x: Tensor, size: Sequence[int]) -> None:
    _check_images("upsample_nearest2d_forward", "x", x, size)


def _check_backward(grad: Tensor, size: Sequence[int]) -> None:
    op = "upsample_nearest2d_backward"
    if not grad.is_floating_point():
        raise RuntimeError(f"{op}: expected grad to be a floating-point tensor, got {grad.dtype}")
    _check_images(op, "grad", grad, size)


def _reference(x: Tensor, size: Sequence[int], factor_h: float, factor_w: float) -> Tensor:
    rows = sources(factor_h, x.shape[2], size[0], x.device)
    cols = sources(factor_w, x.shape[3], size[1], x.device)
    return x.index_select(2, rows).index_select(3, cols)


def _eager(x: Tensor, size: Sequence[int], factor_h: float, factor_w: float) -> Tensor:
    factors = (factor_h or None, factor_w or None)
    return torch.ops.aten.upsample_nearest2d(x, list(size), *factors)


@references.rounded_once
def _reference_backward(
    grad: Tensor, size: Sequence[int], factor_h: float, factor_w: float
) -> Tensor:
    n, c, out_h, out_w = grad.shape
    wide = grad.to(wide_dtype(grad.dtype))
    cols = sources(factor_w, size[1], out_w, grad.device)
    rows = sources(factor_h, size[0], out_h, grad.device)
    across = wide.new_zeros(n, c, out_h, size[1]).index_add(3, cols, wide)
    return wide.new_zeros(n, c, size[0], size[1]).index_add(2, rows, across).to(grad.dtype)


def _eager_backward(grad: Tensor, size: Sequence[int], factor_h: float, factor_w: float) -> Tensor:
    shape = [*grad.shape[:2], *size]
    factors = (factor_h or None, factor_w or None)
    return torch.ops.aten.upsample_nearest2d_backward(grad, list(grad.shape[2:]), shape, *factors)


def _derivative(grad: Tensor, sizes: Sequence[int], factor_h: float, factor_w: float) -> Gradients:
    backward = torch.ops.warpsmith.upsample_nearest2d_backward
    return {"x": backward(grad, sizes, factor_h, factor_w)}


def _derivative_of_gradient(
    grad_dx: Tensor, sizes: Sequence[int], factor_h: float, factor_w: float
) -> Gradients:
    forward = torch.ops.warpsmith.upsample_nearest2d_forward
    return {"grad": forward(grad_dx, sizes, factor_h, factor_w)}


# --- the operators --------------------------------------------------------------------------------


def _bytes(x: Tensor, size: Sequence[int]) -> int:
    n, c, h, w = x.shape
    # rows and columns that nothing comes from are not read
    read = min(h, size[0]) * min(w, size[1])
    return n * c * (read + size[0] * size[1]) * x.element_size()


def _bytes_backward(grad: Tensor, size: Sequence[int]) -> int:
    n, c, h, w = grad.shape
    return n * c * (h * w + size[0] * size[1]) * grad.element_size()


def _packed(
    name: str, story: str, dtypes: tuple[str, ...], when: Callable[..., str | None]
) -> Rung:
    return Rung(
        name,
        story,
        dtypes=dtypes,
        width=PACK,
        pack=True,
        technique="" if name == "pack" else name,
        when=when,
    )


upsample_op = catalogue.add(
    Op(
        "upsample_nearest2d_forward(Tensor x, int[] size, float factor_h=0.0, float factor_w=0.0)"
        " -> Tensor",
        family="vision",
        source="upsample_nearest2d",
        elementwise=True,
        aliases=("upsample_nearest2d",),
        reference=_reference,
        eager=_eager,
        ladder=(
            Rung("naive", "a value of the result to a thread", dtypes=ALL),
            _packed(
                "pack",
                "16 bytes of the result to a thread",
                ALL,
                _of_forward(Images.needs_result_packs),
            ),
            _packed(
                "double",
                "half a pack to a pack in two rows, for twice the size",
                ALL,
                _of_forward(lambda images: images.needs_doubled_rows(HALF)),
            ),
        ),
        triton="upsample_nearest2d_triton:upsample_nearest2d",
        fake=lambda x, size: empty_image(x, size),
        check=_check,
        backward=_derivative,
        saves={"sizes": lambda x: list(x.shape[-2:])},
        samples=cases.SAMPLES,
        errors=cases.errors("upsample_nearest2d_forward", "x"),
        properties=(Property("as PyTorch indexes", cases.indexes_like_pytorch),),
        cost=Cost(bytes=_bytes),
        bench=cases.BENCH,
        bench_dtypes=("f32", "bf16"),
    )
)

upsample_backward_op = catalogue.add(
    Op(
        "upsample_nearest2d_backward(Tensor grad, int[] size, float factor_h=0.0, "
        "float factor_w=0.0) -> Tensor dx",
        family="vision",
        source="upsample_nearest2d/backward",
        reference=_reference_backward,
        eager=_eager_backward,
        ladder=(
            Rung("naive", "a value of x to a thread, no atomics"),
            Rung(
                "images",
                "values of four images to a thread, looked for once",
                technique="images",
                suits=_of_backward(Images.fill_threads),
            ),
            _packed(
                "pack",
                "a pack of channels to a thread",
                ("f32", "f16", "bf16"),
                _of_backward(Images.needs_channel_packs),
            ),
            _packed(
                "double",
                "packs of two rows to half a pack, for twice the size",
                ("f32", "f16", "bf16"),
                _of_backward(lambda images: images.needs_doubled_rows(WHOLE)),
            ),
        ),
        triton="upsample_nearest2d_triton:upsample_nearest2d_backward",
        fake=lambda grad, size: empty_image(grad, size),
        check=_check_backward,
        backward=_derivative_of_gradient,
        saves={"sizes": lambda grad: list(grad.shape[-2:])},
        samples=cases.BACKWARD_SAMPLES,
        errors=cases.backward_errors(),
        cost=Cost(bytes=_bytes_backward, flops=lambda grad: grad.numel()),
        bench=cases.BACKWARD_BENCH,
        bench_dtypes=("f32", "bf16"),
    )
)

dispatch.register(upsample_op)
dispatch.register(upsample_backward_op)
_upsample = dispatch.public(upsample_op)


def _sizes(size: int | Sequence[int]) -> list[int]:
    sizes: list[Any] = list(size) if isinstance(size, Iterable) else [size, size]
    if not all(hasattr(side, "__index__") for side in sizes):
        raise TypeError(
            f"upsample_nearest2d: expected size to be one or two whole numbers, got {size!r}"
        )
    return sizes


def _factors(scale_factor: Any) -> tuple[float, float]:
    pair = scale_factor if isinstance(scale_factor, Iterable) else (scale_factor, scale_factor)
    try:
        factor_h, factor_w = map(float, pair)
    except (TypeError, ValueError):
        factor_h = factor_w = math.nan
    if not (math.isfinite(factor_h) and math.isfinite(factor_w)):
        raise ValueError(
            "upsample_nearest2d: expected scale_factor to be one or two finite numbers, got "
            f"{scale_factor}"
        )
    return factor_h, factor_w


def upsample_nearest2d(
    x: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    *,
    variant: str | None = None,
) -> Tensor:
    """Resizes images by repeating, or leaving out, pixels.

    ``y[n, c, i, j] = x[n, c, floor(i * s_h), floor(j * s_w)]``, where s is one over the scale
    factor or, where a size is given, the ratio of the sizes, in float32 as in PyTorch. A side that
    keeps its size is copied. (On a CPU, PyTorch also takes s as 0.5 where a side doubles by a
    factor other than 2, 5 to 10 by 2.1, say. Its kernels for CUDA do not, nor do these.)
    Differentiable; the gradient adds up in a fixed order, without atomics.

    Args:
        x: [n, c, h, w] with at least one pixel, contiguous or channels last (anything else is
            copied), of any dtype; elements of 1, 2 and 4 bytes have kernels.
        size: height and width of the result, one number or two; or else
        scale_factor: what height and width are multiplied with, one number or two.
        variant: one rung by name instead of the best one, "bf16x8_pack_double".

    Returns:
        [n, c, *size] in the layout of `x`, channels last or contiguous.

    Raises:
        RuntimeError: `x` is no batch of images; the size is not positive; the variant cannot take
            the call.
        ValueError: not exactly one of size and scale factor is given; the factor is not one or two
            finite numbers; the variant does not exist.
        TypeError: the size is no number and no list of them.

    Reference:
        `torch.nn.functional.interpolate` with mode "nearest".
    """
    if (size is None) == (scale_factor is None):
        raise ValueError("upsample_nearest2d: expected either size or scale_factor")
    messages.expect_tensors("upsample_nearest2d", x=x)
    if size is not None:
        return as_bits(_upsample, variant, x, _sizes(size), 0.0, 0.0)
    factor_h, factor_w = _factors(scale_factor)
    h, w = x.shape[2:] if x.dim() == 4 else (1, 1)  # the operator says of other ranks
    sizes = [int(h * factor_h), int(w * factor_w)]
    return as_bits(_upsample, variant, x, sizes, factor_h, factor_w)


says_which(upsample_nearest2d)
