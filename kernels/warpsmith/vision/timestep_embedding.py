"""Sinusoidal embeddings of diffusion's steps, from a table that is computed once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch, messages
from warpsmith.core.catalogue import DTYPE_NAMES, PACK, Bad, Cost, Op, Rung, Sample
from warpsmith.spec.checks import shape_text
from warpsmith.spec.kept import kept
from warpsmith.spec.layout import address
from warpsmith.spec.rows import MOST_ROWS
from warpsmith.vision.steps import check_steps, rows_of, steps

STEPS = 1000


def _check(table: Tensor, t: Tensor) -> None:
    op = "timestep_rows"
    if not table.is_floating_point():
        raise RuntimeError(f"{op}: expected table to be a floating-point tensor, got {table.dtype}")
    if table.dim() != 2:
        raise RuntimeError(
            f"{op}: expected table to have shape (steps, dim), got {shape_text(table)}"
        )
    check_steps(op, t, table, "table")
    if t.dim() != 1:
        raise RuntimeError(f"{op}: expected t to have 1 dimension, got shape {shape_text(t)}")


def _needs_packs(table: Tensor, t: Tensor) -> str | None:
    steps_, dim = table.shape
    if t.shape[0] == 0 or dim == 0:
        return None
    width = PACK[DTYPE_NAMES[table.dtype]]
    read_as_it_is = table.stride(1) == 1 or dim == 1
    pitch = table.stride(0) if read_as_it_is else dim
    start = address(table) if read_as_it_is or table.is_contiguous() else 0
    if dim % width or (steps_ != 1 and pitch % width) or start % 16:
        return "needs rows of the table in packs of 16 bytes"
    return None if t.shape[0] * (dim // width) <= MOST_ROWS else "needs less than 2^31 packs"


def _bytes(table: Tensor, t: Tensor) -> int:
    return 2 * t.shape[0] * table.shape[1] * table.element_size() + t.numel() * t.element_size()


SAMPLES = (
    Sample("1 of 1x4", lambda i: (i.randn(1, 4), steps(i, 1, 1))),
    Sample("5 of 100x320", lambda i: (i.randn(100, 320), steps(i, 5, 100))),
    Sample("5 of 100x320, int32", lambda i: (i.randn(100, 320), steps(i, 5, 100, torch.int32))),
    Sample("33 of 10x257", lambda i: (i.randn(10, 257), steps(i, 33, 10))),
    Sample("misaligned", lambda i: (i.misaligned(20, 64), steps(i, 7, 20))),
    Sample("pitch", lambda i: (i.randn(20, 160)[:, 16:80], steps(i, 7, 20))),
    Sample("transposed", lambda i: (i.randn(64, 20).t(), steps(i, 7, 20))),
    Sample("every other step", lambda i: (i.randn(20, 64), steps(i, 14, 20)[::2])),
    Sample(
        "steps that there are not",
        lambda i: (i.randn(4, 64), torch.tensor([0, 4, -1, 3, 1 << 40], device=i.device)),
    ),
    Sample("no steps", lambda i: (i.randn(4, 64), steps(i, 0, 4))),
    Sample("no columns", lambda i: (i.randn(4, 0), steps(i, 3, 4))),
    Sample("512 of 1000x1280", lambda i: (i.randn(1000, 1280), steps(i, 512, 1000)), small=False),
)
ERRORS = (
    Bad(
        "integers",
        lambda i: (torch.ones(2, 8, dtype=torch.int32, device=i.device), steps(i, 2, 2)),
        r"timestep_rows: expected table to be a floating-point tensor, got torch\.int32",
    ),
    Bad(
        "a flat table",
        lambda i: (i.randn(8), steps(i, 2, 2)),
        r"timestep_rows: expected table to have shape \(steps, dim\), got \(8,\)",
    ),
    Bad(
        "steps that are floats",
        lambda i: (i.randn(2, 8), torch.ones(2, device=i.device)),
        r"timestep_rows: expected t to hold int32 or int64, got torch\.float32",
    ),
    Bad(
        "steps in two dimensions",
        lambda i: (i.randn(2, 8), steps(i, 2, 2)[None]),
        r"timestep_rows: expected t to have 1 dimension, got shape \(1, 2\)",
    ),
    Bad(
        "steps on the CPU",
        lambda i: (i.randn(2, 8), torch.zeros(2, dtype=torch.int64)),
        r"timestep_rows: expected t to be on cuda:\d+ like table, got cpu",
        cuda_only=True,
    ),
)

op = catalogue.add(
    Op(
        "timestep_rows(Tensor table, Tensor t) -> Tensor",
        family="vision",
        source="timestep_embedding",
        elementwise=True,
        reference=lambda table, t: rows_of(table, t).clone(),
        eager=lambda table, t: torch.nn.functional.embedding(t, table),
        ladder=(
            Rung("naive", "a value to a thread"),
            Rung("pack", "128-bit accesses", width=PACK, pack=True, when=_needs_packs),
        ),
        triton="steps_triton:timestep_rows",
        fake=lambda table, t: table.new_empty((t.shape[0], table.shape[1])),
        check=_check,
        samples=SAMPLES,
        errors=ERRORS,
        cost=Cost(bytes=_bytes),
        bench=(
            Sample("64 of 1000x1280", lambda i: (i.plain(1000, 1280), steps(i, 64, 1000))),
            Sample(
                "65536 of 1000x1280",
                lambda i: (i.plain(1000, 1280), steps(i, 65536, 1000)),
                small=False,
            ),
        ),
    )
)
dispatch.register(op)
_timestep_embedding = dispatch.public(op, "timestep_embedding")


@kept("timestep_embedding")
def _table(
    steps_: int,
    dim: int,
    max_period: float,
    cos_first: bool,
    frequency_shift: float,
    scale: float,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    t = torch.arange(steps_, dtype=torch.float64, device="cpu")
    rows = _rows(t, dim, max_period, cos_first, frequency_shift, scale)
    return rows.to(device=device, dtype=dtype)


def _rows(
    t: Tensor, dim: int, max_period: float, cos_first: bool, frequency_shift: float, scale: float
) -> Tensor:
    """The embeddings of steps, in float64."""
    half = dim // 2
    exponents = torch.arange(half, dtype=torch.float64, device=t.device) / (half - frequency_shift)
    frequencies = torch.exp(-math.log(max_period) * exponents)
    angles = scale * (t.double()[:, None] * frequencies)
    parts = (angles.cos(), angles.sin()) if cos_first else (angles.sin(), angles.cos())
    return torch.cat((*parts, angles.new_zeros(len(t), dim % 2)), 1)


def timestep_embedding(
    t: Tensor,
    dim: int,
    *,
    steps: int = STEPS,
    max_period: float = 10000.0,
    cos_first: bool = False,
    frequency_shift: float = 1.0,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float32,
    flip_sin_to_cos: bool | None = None,
    downscale_freq_shift: float | None = None,
    variant: str | None = None,
) -> Tensor:
    """Sinusoidal embeddings of steps, ``[sin(scale t f), cos(scale t f)]`` with
    ``f[k] = max_period^(-k / (dim / 2 - frequency_shift))``.

    The embeddings of all steps are computed once, in float64, and kept for the next call with the
    same options; a call reads its rows. Those of steps that are no whole numbers are computed in
    each call, in float64, by PyTorch's kernels, and are differentiable in `t`.

    Args:
        t: [n], or a single one without dimensions; int32 or int64, or floating-point.
        dim: how long an embedding is; an odd one ends in a zero.
        steps: how many there are of whole ones. Of one that there is not, the embedding is NaN.
        max_period: of the slowest frequency, in steps.
        cos_first: whether cosines come first.
        frequency_shift: see the formula; 0 in some models. Less than dim / 2.
        scale: of all angles.
        dtype: of the result: float32, float16, bfloat16 (others without a kernel of their own).
        flip_sin_to_cos: what diffusers calls `cos_first`.
        downscale_freq_shift: what diffusers calls `frequency_shift`.
        variant: one rung by name instead of the best one, "bf16x8_pack"; of whole steps only.

    Returns:
        A contiguous tensor of shape [n, dim] on the device of `t`; [1, dim] of a single step.

    Raises:
        RuntimeError: `t` has more than one dimension, or holds neither integers nor floating-point
            numbers, as `dtype` has to.
        ValueError: `dim` is too small for the shift; `steps` is negative; `max_period` is not
            positive; the variant does not exist, or comes with steps that are no whole numbers.

    Reference:
        Ho et al. 2020, "Denoising Diffusion Probabilistic Models",
        https://arxiv.org/abs/2006.11239
    """
    messages.expect_tensors("timestep_embedding", t=t)
    for name, number in (("dim", dim), ("steps", steps)):
        if not hasattr(number, "__index__"):
            found = type(number).__name__
            raise TypeError(
                f"timestep_embedding: expected {name} to be a whole number, got {found}"
            )
    if not dtype.is_floating_point:
        raise RuntimeError(
            f"timestep_embedding: expected dtype to be a floating-point one, got {dtype}"
        )
    cos_first = cos_first if flip_sin_to_cos is None else flip_sin_to_cos
    shift = frequency_shift if downscale_freq_shift is None else downscale_freq_shift
    if dim // 2 <= shift:
        raise ValueError(
            f"timestep_embedding: expected dim / 2 to be more than {shift}, got dim {dim}"
        )
    if steps < 0 or max_period <= 0:
        raise ValueError(
            "timestep_embedding: expected steps of at least 0 and a max_period above 0, "
            f"got {steps} and {max_period}"
        )
    if t.dim() == 0:
        t = t[None]
    if t.is_floating_point():
        if t.dim() != 1:
            raise RuntimeError(
                f"timestep_embedding: expected t to have 1 dimension, got shape {tuple(t.shape)}"
            )
        if variant is not None:
            raise ValueError(
                "timestep_embedding: expected variant to be None beside steps that are no whole "
                f"numbers, got '{variant}'"
            )
        return _rows(t, dim, max_period, cos_first, shift, scale).to(dtype)
    table = _table(steps, dim, max_period, cos_first, shift, scale, dtype, t.device)
    return _timestep_embedding(variant, table, t)
