"""Calls of quantized_linear for tests and benchmarks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.gemm.quantized_weight import UNIT, WORDS, shifted_codes
from warpsmith.spec.peers import PerInput
from warpsmith.spec.spoilt import Spoiler

Named = dict[str, Any]

#: n and k of layers of Llama-3-8B and Llama-3-70B.
LAYERS = ((28672, 4096), (4096, 14336), (6144, 4096), (8192, 28672))


def _words(i: Inputs, n: int, k: int, bits: int) -> Tensor:
    """Any codes."""
    shape = (-(-n // UNIT), -(-k // UNIT), WORDS[bits])
    if torch.device(i.device).type == "meta":
        return torch.empty(shape, dtype=torch.int32, device="meta")
    least, most = -(2**31), 2**31 - 1
    generator = i.generator((*shape, 77))
    return torch.randint(
        least, most, shape, generator=generator, device=i.device, dtype=torch.int32
    )


def _zeros(i: Inputs, groups: int, n: int) -> Tensor:
    if torch.device(i.device).type == "meta":
        return torch.empty(groups, n, dtype=torch.int8, device="meta")
    generator = i.generator((groups, n, 78))
    return torch.randint(0, 17, (groups, n), generator=generator, device=i.device, dtype=torch.int8)


def call(
    i: Inputs,
    x: Tensor,
    n: int,
    group: int = 128,
    bits: int = 4,
    zeros: bool = False,
    bias: bool = False,
) -> Named:
    """`group` 0: one for all of k."""
    k = x.shape[-1]
    groups = k // group if group else 1
    scales = i.plain(groups, n, scale=0.01 if bits == 8 else 0.1, salt=5)
    return {
        "x": x,
        "weight": _words(i, n, k, bits),
        "scales": scales,
        "zeros": _zeros(i, groups, n) if zeros else None,
        "bias": i.randn(n, salt=6) if bias else None,
    }


def _sample(label: str, make: Callable[[Inputs], Named], small: bool = True, **more: Any) -> Sample:
    return Sample(label, make, small=small, **more)


def _shaped(
    m: int, n: int, k: int, group: int, bits: int, zeros: bool, bias: bool, small: bool = True
) -> Sample:
    label = f"{m}x{n}x{k} w{bits} group {group}{' zeros' * zeros}{' bias' * bias}"
    return _sample(label, lambda i: call(i, i.randn(m, k), n, group, bits, zeros, bias), small)


def _huge(what: str, m: int, n: int, k: int, group: int, bits: int) -> Sample:
    label = f"past 2^31 elements of {what}"
    return _sample(
        label,
        lambda i: call(i, i.plain(m, k), n, group, bits),
        small=False,
        huge=True,
        dtypes=("bf16",),
    )


def samples() -> tuple[Sample, ...]:
    return (
        _shaped(1, 8, 32, 32, 4, True, False),
        _shaped(1, 64, 128, 128, 4, False, True),
        _shaped(3, 72, 96, 32, 4, True, True),
        _shaped(16, 136, 192, 64, 4, True, False),
        _shaped(17, 128, 128, 64, 4, False, False),
        _shaped(33, 64, 256, 128, 4, True, True),
        _shaped(65, 40, 128, 32, 4, True, False),
        _shaped(5, 24, 72, 0, 4, True, True),
        _shaped(2, 16, 8, 0, 4, False, False),
        _shaped(1, 64, 64, 0, 8, False, False),
        _shaped(7, 72, 96, 32, 8, False, True),
        _shaped(19, 40, 136, 0, 8, False, True),
        _shaped(34, 136, 128, 64, 8, False, False),
        _shaped(70, 64, 256, 128, 8, False, True),
        _shaped(3, 7, 128, 64, 4, True, True),
        _shaped(2, 5, 13, 0, 8, False, True),
        _shaped(0, 16, 64, 32, 4, True, True),
        _shaped(3, 0, 64, 32, 4, True, True),
        _shaped(3, 16, 0, 0, 4, True, True),
        _shaped(4, 16, 0, 0, 8, False, False),
        _shaped(5, 16, 512, 128, 4, True, True),
        _shaped(12, 112, 1088, 64, 4, False, False),
        _shaped(2, 16, 1088, 64, 4, False, True),
        _shaped(4, 48, 1160, 0, 4, True, True),
        _shaped(1, 32, 1032, 0, 8, False, True),
        _shaped(21, 32, 1160, 0, 8, False, True),
        _shaped(40, 16, 1024, 32, 8, False, True),
        _sample("1-d", lambda i: call(i, i.randn(128), 24, 64, zeros=True)),
        _sample("3-d", lambda i: call(i, i.randn(2, 3, 64), 24, 32, bias=True)),
        _sample("row stride", lambda i: call(i, i.randn(5, 192)[:, :128], 24, 64)),
        _sample("odd row stride", lambda i: call(i, i.randn(5, 131)[:, :128], 24, 64)),
        _sample("transposed", lambda i: call(i, i.randn(128, 6).t(), 24, 128, zeros=True)),
        _sample("expanded", lambda i: call(i, i.randn(1, 64).expand(4, 64), 24, 32)),
        _sample("misaligned x", lambda i: call(i, i.misaligned(5, 128), 24, 64)),
        _sample("misaligned scales", _misaligned_scales),
        _sample("parameters with strides", _strided),
        _huge("weight", 5, (1 << 20) + 8, 2048, 128, 8),
        _huge("the result", 46_344, 46_344, 64, 0, 4),
        _shaped(1, 1024, 4096, 128, 4, True, False, small=False),
        _shaped(16, 520, 2048, 64, 4, True, True, small=False),
        _shaped(48, 512, 1024, 32, 4, True, False, small=False),
        _shaped(300, 512, 1024, 128, 4, True, True, small=False),
        _shaped(300, 512, 1056, 32, 4, False, False, small=False),
        _shaped(120, 272, 2176, 128, 4, True, True, small=False),
        _shaped(1030, 400, 640, 64, 4, True, True, small=False),
        _shaped(8, 1024, 4096, 0, 8, False, False, small=False),
        _shaped(129, 520, 1024, 128, 8, False, True, small=False),
    )


def _misaligned_scales(i: Inputs) -> Named:
    given = call(i, i.randn(3, 128), 24, 64)
    return given | {"scales": i.misaligned(2, 24, salt=5)}


def _strided(i: Inputs) -> Named:
    given = call(i, i.randn(3, 128), 24, 64, zeros=True)
    doubled = torch.cat((given["weight"], given["weight"]), -1)[..., : WORDS[4]]
    return given | {
        "scales": i.plain(24, 2, salt=5).t(),
        "zeros": given["zeros"].t().contiguous().t(),
        "weight": doubled,
        "bias": i.randn(48)[::2],
    }


def bench() -> tuple[Sample, ...]:
    def case(m: int, n: int, k: int, group: int, bits: int) -> Sample:
        make = lambda i: call(i, i.plain(m, k), n, group, bits, zeros=bits == 4)  # noqa: E731
        return _sample(
            f"{m}x{n}x{k} w{bits}", make, small=False, ladder=(m, n, bits) == (16, 28672, 4)
        )

    rows = (1, 16, 64, 128, 512, 2048, 8192)
    return (
        *(case(m, 28672, 4096, 128, 4) for m in rows),
        *(case(m, n, k, 128, 4) for n, k in LAYERS[1:] for m in (1, 16, 128, 2048)),
        *(case(m, 28672, 4096, 0, 8) for m in (1, 16, 128, 2048)),
    )


def linear_of_16_bits(dequantized: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """PyTorch's linear of the weight in 16 bits, made beforehand."""
    dense = PerInput(lambda weight, *of: dequantized(weight, *of))

    def run(
        x: Tensor, weight: Tensor, scales: Tensor, zeros: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        return F.linear(x, dense(weight, scales, zeros, x.shape[-1]), bias)

    return run


# --- properties -----------------------------------------------------------------------------------


def whole_numbers(quantized_linear: Any, inputs: Inputs) -> None:
    """Codes, zeros and rows of ones and powers of two: every sum is a whole number that 16 bits
    hold.
    """
    for bits, group in ((4, 32), (4, 128), (8, 64), (8, 0)):
        given = call(inputs, inputs.plain(9, 128), 64, group, bits, zeros=bits == 4)
        x = torch.zeros_like(given["x"])
        x[torch.arange(9), torch.arange(9) * 13] = 1.0
        scales = torch.ones_like(given["scales"])
        out = quantized_linear(x, given["weight"], scales, given["zeros"], None)
        codes = shifted_codes(given["weight"], given["zeros"], 64, 128)
        assert torch.equal(out.float(), codes[:, torch.arange(9) * 13].t().float())


def deterministic(quantized_linear: Any, inputs: Inputs) -> None:
    given = call(inputs, inputs.randn(5, 2048), 256, 128, zeros=True, bias=True)
    first = quantized_linear(*given.values())
    assert all(torch.equal(first, quantized_linear(*given.values())) for _ in range(5))


def infinite_scales(quantized_linear: Any, inputs: Inputs) -> None:
    """What an infinite scale makes of a group is infinity of the sign of its sum, however k is cut:
    parts of the group that were scaled apart would make NaN of it where their signs differ.
    """
    for m, k, group, bits in (
        (5, 1088, 32, 4),
        (5, 1088, 64, 4),
        (70, 2176, 0, 4),
        (5, 4096, 0, 8),
    ):
        given = call(inputs, inputs.plain(m, k), 64, group, bits, zeros=bits == 4)
        generator = torch.Generator().manual_seed(k + group)
        x = torch.randint(-2, 3, (m, k), generator=generator).to(given["x"])
        scales = torch.full_like(given["scales"], float("inf"))
        scales[1:] = 0.0
        out = quantized_linear(x, given["weight"], scales, given["zeros"], None)
        codes = shifted_codes(given["weight"], given["zeros"], 64, k).double()[:, : group or k]
        sums = x.double()[:, : group or k] @ codes.t()
        there = sums != 0  # 0 times infinity is NaN
        assert out[~there].isnan().all()
        assert torch.equal(out[there].double(), sums[there] * float("inf"))


# --- bad calls ------------------------------------------------------------------------------------


def _good(i: Inputs) -> Named:
    return call(i, i.randn(2, 64), 8, 32, zeros=True, bias=True)


def _errors() -> tuple[Bad, ...]:
    bad = Spoiler("quantized_linear", _good)

    def shape(name: str, message: str, *got: int, **changes: Any) -> Bad:
        return bad(f"{name}: {got}", message + re.escape(str(got)), **changes)

    return (
        bad.integers(),
        bad.no_dimension(),
        bad(
            "fp8",
            "expected x to have at least 16 bits an element",
            x=lambda i: torch.ones(2, 64, device=i.device).to(torch.float8_e4m3fn),
        ),
        bad(
            "floats as words",
            r"expected weight to hold torch\.int32, got torch\.float32",
            weight=lambda i: torch.ones(1, 1, 512, device=i.device),
        ),
        shape(
            "weight",
            r"expected weight to have shape \(n / 64, k / 64, 512 or 1024\), .* got ",
            1,
            1,
            256,
            weight=lambda i: torch.ones(1, 1, 256, device=i.device, dtype=torch.int32),
        ),
        shape(
            "units",
            r"expected weight to have shape \(1, 1, 512 or 1024\) for n of 8 and k of 64, got ",
            1,
            2,
            512,
            weight=lambda i: torch.ones(1, 2, 512, device=i.device, dtype=torch.int32),
        ),
        bad(
            "scales of another dtype",
            r"expected scales to have dtype torch\.\w+ like x, got torch\.float64",
            scales=lambda i: i.plain(2, 8).double(),
        ),
        shape("scales", r"expected scales to have shape \(groups, n\), got ", 8, scales=_vector),
        bad(
            "other groups",
            "expected one group, or groups of 32, 64 or 128 of 64 values, got 4 groups",
            scales=lambda i: i.plain(4, 8),
        ),
        bad(
            "zeros of another dtype",
            r"expected zeros to hold torch\.int8, got torch\.int32",
            zeros=lambda i: torch.ones(2, 8, device=i.device, dtype=torch.int32),
        ),
        shape(
            "zeros",
            r"expected zeros to have shape \(2, 8\) like scales, got ",
            1,
            8,
            zeros=lambda i: torch.ones(1, 8, device=i.device, dtype=torch.int8),
        ),
        bad(
            "zeros of 8 bits",
            "expected zeros to be None beside weights of 8 bits",
            weight=lambda i: torch.ones(1, 1, 1024, device=i.device, dtype=torch.int32),
        ),
        bad(
            "bias of another dtype",
            r"expected bias to have dtype torch\.\w+ like x, got torch\.float64",
            bias=lambda i: i.plain(8).double(),
        ),
        shape("bias", r"expected bias to have shape \(8,\), got ", 2, 8, bias=_matrix),
        bad.on_the_cpu("bias", 8, narrow=True),
        bad.on_the_cpu("scales", 2, 8, narrow=True),
    )


def _vector(i: Inputs) -> Tensor:
    return i.plain(8)


def _matrix(i: Inputs) -> Tensor:
    return i.plain(2, 8)


ERRORS = _errors()
