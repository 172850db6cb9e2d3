"""Inputs of linear_weight_gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from warpsmith.core.catalogue import Inputs, Sample
from warpsmith.spec.spoilt import Spoiler

Named = dict[str, Any]


def _given(
    i: Inputs, m: int, n: int, k: int, wide: bool = False, grad: str = "rows", x: str = "rows"
) -> Named:
    """Which lines of grad and x are contiguous."""
    left = i.plain(m, n, salt=1) if grad == "rows" else i.plain(n, m, salt=1).t()
    right = i.plain(m, k, salt=2) if x == "rows" else i.plain(k, m, salt=2).t()
    return {"grad": left, "x": right, "wide_bias": wide}


def _sample(m: int, n: int, k: int, *more: Any, small: bool = True) -> Sample:
    text = " ".join(map(str, (f"{m}x{n}x{k}", *more)))
    return Sample(text, lambda i: _given(i, m, n, k, *more), small=small)


def samples() -> tuple[Sample, ...]:
    return (
        _sample(33, 24, 40),
        _sample(72, 136, 264, True),
        _sample(1544, 40, 72, True),
        _sample(2056, 72, 8),
        _sample(32, 24, 40, False, "columns"),
        _sample(32, 24, 40, True, "rows", "columns"),
        _sample(65, 33, 7),
        _sample(1, 8, 5),
        _sample(129, 264, 520, small=False),
        _sample(4096, 512, 384, True, small=False),
        _sample(40, 1000, 2296, small=False),
        _sample(72, 1000, 2296, True, small=False),
        _sample(0, 8, 5),
        _sample(5, 8, 0),
        _sample(16, 0, 8),
    )


_spoil = Spoiler("linear_weight_gradient", lambda i: _given(i, 4, 3, 6), like="grad")
ERRORS = (
    _spoil(
        "grad 3-D",
        r"expected grad to be 2-D, got shape \(2, 4, 3\)",
        grad=lambda i: i.randn(2, 4, 3),
    ),
    _spoil(
        "rows",
        r"expected x to have as many rows as grad, got shapes \(5, 6\) and \(4, 3\)",
        x=lambda i: i.randn(5, 6),
    ),
)


def whole_numbers(gradients: Callable[..., Any], i: Inputs) -> None:
    """Sums of whole numbers are exact: of each column of grad, whichever tile it lies in."""
    columns = torch.arange(136, device=i.device) % 5
    grad = columns.to(i.dtype).expand(40, 136).contiguous()
    weight, bias = gradients(grad, torch.ones(40, 264, dtype=i.dtype, device=i.device), True)
    assert torch.equal(bias, (40 * columns).to(bias.dtype))
    assert torch.equal(weight, (40 * columns).to(i.dtype).unsqueeze(1).expand(136, 264))


def deterministic(gradients: Callable[..., Any], i: Inputs) -> None:
    """Many rows over few tiles, whose sums are cut into slices."""
    args = tuple(_given(i, 9000, 72, 40, True).values())
    first = gradients(*args)
    for _ in range(3):
        assert all(map(torch.equal, first, gradients(*args)))


def bench() -> tuple[Sample, ...]:
    """Layers with biases of GPT-2 XL, a ViT and Qwen2-7B, over the rows of a step."""
    sizes = ((4096, 6400, 1600), (4096, 3072, 768), (4096, 768, 3072), (8192, 4608, 3584))
    return tuple(_sample(*size, small=False) for size in sizes)
