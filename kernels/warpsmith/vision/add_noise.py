"""Diffusion's forward step: noise in the measure that a schedule has for each sample's step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch, messages
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
from warpsmith.spec import cost, references
from warpsmith.spec.checks import check_device, check_like, shape_text
from warpsmith.spec.layout import address
from warpsmith.vision.steps import check_steps, rows_of, steps


def _check(x: Tensor, noise: Tensor, t: Tensor, table: Tensor) -> None:
    op = "add_noise"
    if not x.is_floating_point():
        raise RuntimeError(f"{op}: expected x to be a floating-point tensor, got {x.dtype}")
    if x.dim() == 0:
        raise RuntimeError(f"{op}: expected at least 1 dimension in x, got shape ()")
    check_like(op, "noise", noise, x)
    check_steps(op, t, x, "x")
    if tuple(t.shape) != (x.shape[0],):
        raise RuntimeError(
            f"{op}: expected t to have shape ({x.shape[0]},), a step for each sample of x, "
            f"got {shape_text(t)}"
        )
    check_device(op, "table", table, x)
    if table.dim() != 2 or table.shape[1] != 2:
        raise RuntimeError(
            f"{op}: expected table to have shape (steps, 2), got {shape_text(table)}"
        )
    wanted = torch.float64 if x.dtype == torch.float64 else torch.float32
    if table.dtype != wanted:
        raise RuntimeError(f"{op}: expected table to have dtype {wanted}, got {table.dtype}")


def _factors(x: Tensor, t: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    shape = (-1, *(1,) * (x.dim() - 1))
    rows = rows_of(table, t)
    return rows[:, 0].view(shape), rows[:, 1].view(shape)


@references.rounded_once
def _reference(x: Tensor, noise: Tensor, t: Tensor, table: Tensor) -> Tensor:
    keep, add = _factors(x, t, table)
    return (keep * x + add * noise).contiguous()


def _eager(x: Tensor, noise: Tensor, t: Tensor, table: Tensor) -> Tensor:
    shape = (-1, *(1,) * (x.dim() - 1))
    keep, add = (table[t, k].to(x.dtype).view(shape) for k in (0, 1))
    return keep * x + add * noise


def _derivative(
    grad: Tensor, x: Tensor, noise: Tensor, t: Tensor, table: Tensor, needs: frozenset[str]
) -> Gradients:
    keep, add = _factors(grad, t, table)
    pairs = {"x": keep, "noise": add}
    found = {name: (f * grad).to(grad.dtype) for name, f in pairs.items() if name in needs}
    if "table" in needs:
        rows = torch.stack(
            [(grad.to(table) * a).unsqueeze(-1).flatten(1).sum(1) for a in (x, noise)], 1
        )
        known = (t >= 0) & (t < table.shape[0])
        rows, places = torch.where(known[:, None], rows, 0), torch.where(known, t, 0)
        zeros = table.new_zeros(table.shape)
        found["table"] = zeros.index_add(0, places, rows) if table.shape[0] else zeros
    return found


def _needs_packs(x: Tensor, noise: Tensor) -> str | None:
    if x.numel() == 0:
        return None
    inner = x.numel() // x.shape[0]
    starts = [0 if not a.is_contiguous() else address(a) for a in (x, noise)]
    if inner % PACK[DTYPE_NAMES[x.dtype]] == 0 and all(start % 16 == 0 for start in starts):
        return None
    return "needs samples of whole packs of 16 bytes, and x and noise aligned to these"


# --- calls ----------------------------------------------------------------------------------------


def _schedule(i: Inputs, limit: int) -> Tensor:
    kept = torch.linspace(0.999, 0.01, limit, dtype=torch.float64)
    wanted = torch.float64 if i.dtype == torch.float64 else torch.float32
    return torch.stack((kept.sqrt(), (1 - kept).sqrt()), 1).to(device=i.device, dtype=wanted)


def _call(i: Inputs, x: Tensor, noise: Tensor, limit: int = 50) -> tuple[Any, ...]:
    return x, noise, steps(i, x.shape[0], limit), _schedule(i, limit)


def _shaped(*shape: int, small: bool = True) -> Sample:
    label = "x".join(map(str, shape))
    return Sample(label, lambda i: _call(i, i.randn(*shape), i.randn(*shape, salt=1)), small=small)


def _beyond(i: Inputs) -> tuple[Any, ...]:
    t = torch.tensor([0, 50, -1, 49, 1 << 40], device=i.device)
    return i.randn(5, 16), i.randn(5, 16, salt=1), t, _schedule(i, 50)


SAMPLES = (
    *(_shaped(*s) for s in ((1,), (7,), (3, 4, 8, 8), (2, 3, 5, 7), (5, 4, 16), (0, 4), (4, 0))),
    Sample(
        "int32",
        lambda i: (
            i.randn(4, 24),
            i.randn(4, 24, salt=1),
            steps(i, 4, 9, torch.int32),
            _schedule(i, 9),
        ),
    ),
    Sample("misaligned", lambda i: _call(i, i.misaligned(4, 32), i.misaligned(4, 32, salt=1))),
    Sample("transposed", lambda i: _call(i, i.randn(16, 4).t(), i.randn(16, 4, salt=1).t())),
    Sample("one transposed", lambda i: _call(i, i.randn(16, 4).t(), i.randn(4, 16, salt=1))),
    Sample(
        "strided schedule",
        lambda i: (
            i.randn(4, 32),
            i.randn(4, 32, salt=1),
            steps(i, 8, 20)[::2],
            _schedule(i, 40)[::2],
        ),
    ),
    Sample("steps that there are not", _beyond),
    _shaped(65, 4, 32, 32, small=False),
    Sample(
        "past 2^31 elements",
        lambda i: _call(i, i.plain(5, 2**29 + 8), i.plain(5, 2**29 + 8, salt=1)),
        small=False,
        huge=True,
        dtypes=("f16",),
    ),
)


def _good(i: Inputs) -> list[Any]:
    return [i.randn(3, 8), i.randn(3, 8, salt=1), steps(i, 3, 50), _schedule(i, 50)]


def _bad(label: str, message: str, at: int, make: Any, cuda_only: bool = False) -> Bad:
    def call(i: Inputs) -> tuple[Any, ...]:
        args = _good(i)
        args[at] = make(i)
        return tuple(args)

    return Bad(label, call, f"add_noise: {message}", cuda_only=cuda_only)


ERRORS = (
    _bad(
        "integers",
        r"expected x to be a floating-point tensor, got torch\.int32",
        0,
        lambda i: torch.ones(3, 8, dtype=torch.int32, device=i.device),
    ),
    _bad("0-d", r"expected at least 1 dimension in x, got shape \(\)", 0, lambda i: i.randn()),
    _bad(
        "noise of another shape",
        r"expected noise to have shape \(3, 8\) like x, got \(3, 7\)",
        1,
        lambda i: i.randn(3, 7),
    ),
    _bad(
        "steps that are floats",
        r"expected t to hold int32 or int64, got torch\.float32",
        2,
        lambda i: torch.ones(3, device=i.device),
    ),
    _bad(
        "too few steps",
        r"expected t to have shape \(3,\), a step for each sample of x, got \(2,\)",
        2,
        lambda i: steps(i, 2, 50),
    ),
    _bad(
        "a schedule of three columns",
        r"expected table to have shape \(steps, 2\), got \(50, 3\)",
        3,
        lambda i: torch.ones(50, 3, device=i.device),
    ),
    _bad(
        "a schedule in 16 bits",
        r"expected table to have dtype torch\.float\d+, got torch\.float16",
        3,
        lambda i: torch.ones(50, 2, device=i.device, dtype=torch.float16),
    ),
    _bad(
        "a schedule on the CPU",
        r"expected table to be on cuda:\d+ like x, got cpu",
        3,
        lambda i: torch.ones(50, 2),
        cuda_only=True,
    ),
)


def _no_noise(add_noise: Any, inputs: Inputs) -> None:
    x, noise = inputs.randn(4, 24), inputs.randn(4, 24, salt=1)
    wanted = torch.float64 if inputs.dtype == torch.float64 else torch.float32
    table = torch.tensor([[1.0, 0.0], [0.0, 1.0]], device=inputs.device, dtype=wanted)
    y = add_noise(x, noise, torch.tensor([0, 1, 1, 0], device=inputs.device), table)
    assert torch.equal(y, torch.stack((x[0], noise[1], noise[2], x[3])))


op = catalogue.add(
    Op(
        "add_noise(Tensor x, Tensor noise, Tensor t, Tensor table) -> Tensor",
        family="vision",
        elementwise=True,
        cancels=True,
        reference=_reference,
        eager=_eager,
        ladder=(
            Rung("naive", "a value to a thread"),
            Rung("pack", "128-bit accesses", width=PACK, pack=True, when=_needs_packs),
        ),
        triton="steps_triton:add_noise",
        fake=lambda x: x.new_empty(x.shape),
        check=_check,
        backward=_derivative,
        samples=SAMPLES,
        errors=ERRORS,
        properties=(Property("no noise and nothing but noise", _no_noise),),
        cost=Cost(
            bytes=lambda x, noise, t: cost.size(x, x, noise, t), flops=lambda x: 3 * x.numel()
        ),
        bench=(
            Sample(
                "64x16x128x128",
                lambda i: _call(
                    i, i.plain(64, 16, 128, 128), i.plain(64, 16, 128, 128, salt=1), 1000
                ),
                small=False,
            ),
            Sample(
                "64x3x512x512",
                lambda i: _call(
                    i, i.plain(64, 3, 512, 512), i.plain(64, 3, 512, 512, salt=1), 1000
                ),
                small=False,
            ),
        ),
    )
)
dispatch.register(op)
_add_noise = dispatch.public(op)


def noise_table(alphas_cumprod: Tensor) -> Tensor:
    """The constants of a schedule, computed once for `add_noise`.

    Args:
        alphas_cumprod: [steps], how much of the signal's variance is left at each step.

    Returns:
        [steps, 2], ``sqrt(alphas_cumprod)`` and ``sqrt(1 - alphas_cumprod)`` in float32, computed
        in float64, on the device of the argument.

    Raises:
        RuntimeError: `alphas_cumprod` has not one dimension.
    """
    messages.expect_tensors("noise_table", alphas_cumprod=alphas_cumprod)
    if alphas_cumprod.dim() != 1:
        raise RuntimeError(
            "noise_table: expected alphas_cumprod to have 1 dimension, "
            f"got shape {shape_text(alphas_cumprod)}"
        )
    kept = alphas_cumprod.double()
    return torch.stack((kept.sqrt(), (1 - kept).sqrt()), 1).float()


def add_noise(
    x: Tensor, noise: Tensor, t: Tensor, table: Tensor, *, variant: str | None = None
) -> Tensor:
    """Noise in the measure of each sample's step, ``y[i] = a x[i] + b noise[i]`` with
    ``a, b = table[t[i]]``.

    Computed in float32 and rounded once. Differentiable.

    Args:
        x: [n, ...], float32, float16 or bfloat16 (others without a kernel of their own); what is
            not contiguous is copied.
        noise: of the shape and dtype of `x`.
        t: [n], int32 or int64. Of a step that the table does not have, the result is NaN.
        table: [steps, 2], float32: see `noise_table`. Of float64 `x` it is read in float64.
        variant: one rung by name instead of the best one, "bf16x8_pack".

    Returns:
        A contiguous tensor of the shape and dtype of `x`.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit; the variant cannot take the call.
        ValueError: the variant does not exist.

    Reference:
        Ho et al. 2020, "Denoising Diffusion Probabilistic Models",
        https://arxiv.org/abs/2006.11239, equation 4
    """
    if isinstance(x, Tensor) and isinstance(table, Tensor) and x.dtype == torch.float64:
        table = table.double()
    return _add_noise(variant, x, noise, t, table)
