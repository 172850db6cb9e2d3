"""Calls on which the residual norms and their gradients are tested and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.norm.norms import Norm
from warpsmith.norm.plain_cases import PAST_2_31, far_apart, near_largest, repeatable_gradients

HALVES = ("f16", "bf16")


def call(
    norm: Norm,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    eps: float | None = None,
    zero_centered: bool = False,
) -> tuple[Any, ...]:
    affine = (weight, bias) if norm.layer else (weight,)
    return x, residual, *affine, norm.eps if eps is None else eps, zero_centered


def of(
    norm: Norm, i: Inputs, x: Tensor, residual: Tensor | None, wide: bool = False, **options: Any
) -> tuple[Any, ...]:
    """A call with a plain weight and bias, in f32 if `wide`."""
    weight, bias = i.randn(x.shape[-1], salt=2), i.randn(x.shape[-1], salt=3)
    if wide:
        weight, bias = weight.float(), bias.float()
    return call(norm, x, residual, weight, bias, **options)


RMS, LAYER = Norm(layer=False, source="add"), Norm(layer=True, source="add")

Make = Callable[[Inputs], tuple[Tensor, Tensor | None]]

# --- samples --------------------------------------------------------------------------------------


def _pair(*shape: int) -> Make:
    return lambda i: (i.randn(*shape), i.randn(*shape, salt=1))


def _layouts() -> dict[str, Make]:
    """x and residual in every layout that memory may have."""
    return {
        "1-d": _pair(768),
        "3-d": _pair(2, 5, 128),
        "4-d": _pair(2, 3, 4, 72),
        "no rows": _pair(0, 16),
        "no columns": _pair(4, 0),
        "row stride": lambda i: (i.randn(9, 320)[:, :256], i.randn(9, 256, salt=1)),
        "residual with a row stride": lambda i: (i.randn(9, 256), i.randn(9, 320, salt=1)[:, 64:]),
        "odd row stride": lambda i: (i.randn(9, 256), i.randn(9, 259, salt=1)[:, :256]),
        "expanded rows": lambda i: (i.randn(6, 64), i.randn(64, salt=1).expand(6, 64)),
        "transposed": lambda i: (i.randn(64, 24).t(), i.randn(24, 64, salt=1)),
        "both transposed": lambda i: (i.randn(64, 24).t(), i.randn(64, 24, salt=1).t()),
        "middle transposed": lambda i: (
            i.randn(3, 4, 5, 32).transpose(1, 2),
            i.randn(3, 5, 4, 32, salt=1),
        ),
        "misaligned": lambda i: (i.misaligned(5, 256), i.randn(5, 256, salt=1)),
        "misaligned residual": lambda i: (i.randn(5, 256), i.misaligned(5, 256, salt=1)),
        "small values": lambda i: (
            i.plain(3, 1000, scale=1e-3),
            i.plain(3, 1000, scale=1e-3, salt=1),
        ),
        "hundredfold": lambda i: (i.plain(3, 1024, scale=100.0), _outlier(i, 3, 1024)),
        "cancelling": lambda i: (i.plain(3, 512), i.plain(3, 512).neg()),
        "special": lambda i: (_special(i), i.randn(5, 64, salt=1)),
    }


def _outlier(i: Inputs, rows: int, cols: int) -> Tensor:
    x = i.plain(rows, cols, scale=100.0, salt=1)
    x[:, cols // 3] = 3e4
    return x


def _special(i: Inputs) -> Tensor:
    """Rows with NaN, infinities and zeros."""
    x = i.randn(5, 64)
    x[0, 3] = float("nan")
    x[1, 5] = float("inf")
    x[2, 7], x[2, 8] = float("-inf"), float("inf")
    x[3] = 0.0
    return x


SMALL_WIDTHS = (1, 2, 3, 7, 63, 64, 256, 1000, 1023, 1024, 4096)
LARGE_SHAPES = (
    (199, 512), (1030, 96), (2500, 1024), (37, 2048), (11, 1128), (5, 8192), (3, 12345), (3, 16384),
    (3, 20000), (5, 32768), (3, 40000), (2, 65536), (2, 131072), (1, 262144), (2, 300001),
)  # fmt: skip
#: More rows than clusters are resident at once, so that each walks over several.
MANY_LONG_ROWS = (
    (300, 16640),
    (300, 32768),
    (150, 65536),
    (90, 131072),
    (70, 262144),
    (40, 400000),
)


def samples(norm: Norm) -> tuple[Sample, ...]:
    def plain(rows: int, cols: int, small: bool = True, huge: bool = False) -> Sample:
        make = _pair(rows, cols)
        return Sample(f"{rows}x{cols}", lambda i: of(norm, i, *make(i)), small=small, huge=huge)

    def laid_out(label: str, make: Make) -> Sample:
        return Sample(label, lambda i: of(norm, i, *make(i)))

    rows = (3, 1, 33)
    long = (3, 40000)
    return (
        *(plain(rows[k % 3], n) for k, n in enumerate(SMALL_WIDTHS)),
        *(plain(m, n, small=False) for m, n in LARGE_SHAPES),
        *(plain(m, n, small=False, huge=True) for m, n in MANY_LONG_ROWS),
        *(laid_out(label, make) for label, make in _layouts().items()),
        Sample("defaults", lambda i: _pair(4, 64)(i)),
        Sample("no weight", lambda i: call(norm, *_pair(7, 256)(i), None, None)),
        Sample("no weight, odd", lambda i: call(norm, *_pair(7, 129)(i), None, None)),
        Sample("no weight, long", lambda i: call(norm, *_pair(*long)(i), None, None), small=False),
        Sample("weight alone", lambda i: call(norm, *_pair(7, 96)(i), i.randn(96, salt=2), None)),
        Sample("no residual", lambda i: of(norm, i, i.randn(5, 256), None)),
        Sample("no residual, odd", lambda i: of(norm, i, i.randn(5, 129), None)),
        Sample("no residual, long", lambda i: of(norm, i, i.randn(*long), None), small=False),
        Sample("zero-centred", lambda i: of(norm, i, *_pair(5, 256)(i), zero_centered=True)),
        Sample("zero-centred, odd", lambda i: of(norm, i, *_pair(3, 33)(i), zero_centered=True)),
        Sample(
            "zero-centred, no weight",
            lambda i: call(norm, *_pair(3, 64)(i), None, None, zero_centered=True),
        ),
        Sample("large eps", lambda i: of(norm, i, *_pair(3, 64)(i), eps=10.0)),
        Sample("eps 0", lambda i: of(norm, i, *_pair(3, 64)(i), eps=0.0)),
        Sample(
            "misaligned weight",
            lambda i: call(
                norm,
                *_pair(5, 256)(i),
                i.misaligned(256, salt=2),
                i.misaligned(256, offset=2, salt=3),
            ),
        ),
        Sample(
            "strided weight",
            lambda i: call(
                norm, *_pair(5, 64)(i), i.randn(128, salt=2)[::2], i.randn(192, salt=3)[::3]
            ),
        ),
        *(_NEAR_LARGEST if norm.layer else _PAST_2_31),
        *_mixed(norm),
        Sample(
            "rows past 2^31 elements",
            lambda i: of(norm, i, far_apart(i), i.plain(257, 1024, salt=1)),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
    )


_NEAR_LARGEST = (
    Sample(
        "near the largest",
        lambda i: of(LAYER, i, near_largest(i), None),
        dtypes=("f32", "bf16"),
    ),
    Sample(
        "near the largest, 516",
        lambda i: of(LAYER, i, near_largest(i, 516), None),
        dtypes=("f32",),
    ),
)


#: One of the two for both: their offsets are the same code.
_PAST_2_31 = (
    Sample(
        "outputs past 2^31 elements",
        lambda i: of(RMS, i, i.plain(*PAST_2_31), i.plain(*PAST_2_31, salt=1)),
        small=False,
        huge=True,
        dtypes=("f16",),
    ),
)


def _mixed(norm: Norm) -> tuple[Sample, ...]:
    """f32 beside 16 bits: residual, weights or both."""

    def sample(
        label: str, wide: str, *shape: int, small: bool = True, huge: bool = False
    ) -> Sample:
        def make(i: Inputs) -> tuple[Any, ...]:
            x, residual = i.randn(*shape), i.randn(*shape, salt=1)
            if "residual" in wide:
                residual = residual.float() + 2.0**-12
            return of(norm, i, x, residual, wide="weight" in wide)

        return Sample(label, make, small=small, huge=huge, dtypes=HALVES)

    return (
        sample("f32 residual", "residual", 5, 1024),
        sample("f32 residual, short", "residual", 9, 32),
        sample("f32 residual, odd", "residual", 7, 129),
        sample("f32 residual, wide", "residual", 3, 12288, small=False),
        sample("f32 residual, long", "residual", 3, 40000, small=False),
        sample("f32 residual, many long rows", "residual", 300, 20480, small=False, huge=True),
        sample("f32 weight", "weight", 5, 1024),
        sample("f32 weight, short", "weight", 9, 64),
        sample("f32 weight, long", "weight", 3, 65536, small=False),
        sample("f32 residual and weight", "residual weight", 5, 512),
        sample("f32 residual and weight, long", "residual weight", 2, 65536, small=False),
    )


def backward_samples(norm: Norm) -> tuple[Sample, ...]:
    return (
        *(_backward(norm, s) for s in samples(norm) if s.label not in ("special", "defaults")),
        Sample(
            "strided gradients",
            lambda i: _gradients(
                norm, i.randn(9, 80)[:, :64], i.randn(9, 96, salt=1)[:, 8:72], i.randn(9, 64)
            ),
        ),
        Sample(
            "expanded gradients",
            lambda i: _gradients(
                norm,
                i.randn(64).expand(9, 64),
                i.randn(9, 1, salt=1).expand(9, 64),
                i.randn(9, 64, salt=4),
            ),
        ),
        Sample(
            "misaligned h",
            lambda i: _gradients(norm, i.randn(5, 64), i.randn(5, 64), i.misaligned(5, 64)),
        ),
        Sample(
            "many rows",
            lambda i: _gradients(norm, *(i.randn(20011, 32, salt=k) for k in range(3))),
            small=False,
        ),
        Sample("special", lambda i: _gradients(norm, i.randn(5, 64), None, _special(i))),
        Sample(
            "one infinite gradient",
            lambda i: _gradients(norm, _one_infinity(i, 300, 64), None, i.randn(300, 64, salt=4)),
            small=False,
        ),
    )


def _one_infinity(i: Inputs, rows: int, cols: int) -> Tensor:
    """In the first row; those that the same block adds to its sums afterwards are ordinary."""
    x = i.randn(rows, cols)
    x[0, cols // 3] = float("inf")
    return x


def _gradients(norm: Norm, grad: Tensor, grad_h: Tensor | None, h: Tensor) -> tuple[Any, ...]:
    i = Inputs(grad.dtype, grad.device)
    return grad, grad_h, h, *of(norm, i, h, None)[2:], h.dtype != grad.dtype


def _backward(norm: Norm, sample: Sample) -> Sample:
    """The same call, backwards: x turns into its norm's gradient, the residual into h."""

    def make(inputs: Inputs) -> tuple[Any, ...]:
        x, residual, *rest = sample.make(inputs)
        if residual is None:
            return inputs.randn(*x.shape, salt=4), None, x, *rest, True
        grad_h = inputs.randn(*x.shape, salt=4).to(residual.dtype)
        return x, grad_h, residual, *rest, residual.dtype != x.dtype

    return Sample(sample.label, make, sample.small, sample.huge, sample.dtypes)


BENCH_SHAPES = (
    (262144, 256),
    (65536, 1024),
    (32768, 4096),
    (16384, 8192),
    (8192, 32768),
    (2048, 131072),
    (512, 262144),
)


def _bench_affine(norm: Norm, i: Inputs, cols: int) -> tuple[Tensor, ...]:
    return tuple(i.plain(cols, salt=2 + k) for k in range(1 + norm.layer))


def bench(norm: Norm) -> tuple[Sample, ...]:
    def case(rows: int, cols: int) -> Sample:
        def make(i: Inputs) -> tuple[Any, ...]:
            x, residual = i.plain(rows, cols), i.plain(rows, cols, salt=1)
            return x, residual, *_bench_affine(norm, i, cols), norm.eps, False

        return Sample(f"{rows}x{cols}", make, small=False)

    return tuple(case(*shape) for shape in BENCH_SHAPES)


def bench_backward(norm: Norm) -> tuple[Sample, ...]:
    def case(rows: int, cols: int) -> Sample:
        def make(i: Inputs) -> tuple[Any, ...]:
            grad, grad_h, h = (i.plain(rows, cols, salt=k) for k in range(3))
            return grad, grad_h, h, *_bench_affine(norm, i, cols), norm.eps, False, False

        return Sample(f"{rows}x{cols}", make, small=False)

    return tuple(case(*shape) for shape in BENCH_SHAPES)


# --- bad calls ------------------------------------------------------------------------------------


def errors(norm: Norm) -> tuple[Bad, ...]:
    def f32(i: Inputs) -> Inputs:
        return Inputs(torch.float32, i.device)

    found: tuple[Bad, ...] = (
        Bad(
            "integers",
            lambda i: (torch.ones(2, 8, dtype=torch.int32, device=i.device), None),
            rf"{norm.name}: expected x to be a floating-point tensor, got torch\.int32",
        ),
        Bad(
            "0-d",
            lambda i: (i.randn(), None),
            rf"{norm.name}: expected at least 1 dimension in x, got shape \(\)",
        ),
        Bad(
            "residual of another shape",
            lambda i: (i.randn(2, 8), i.randn(1, 8)),
            rf"{norm.name}: expected residual to have shape \(2, 8\) like x, got \(1, 8\)",
        ),
        Bad(
            "residual of another dtype",
            lambda i: (i.randn(2, 8), i.randn(2, 8).double()),
            rf"{norm.name}: expected residual to have dtype torch\.\w+.*, got torch\.float64",
        ),
        Bad(
            "weight of another length",
            lambda i: (i.randn(2, 8), None, i.randn(7)),
            rf"{norm.name}: expected weight to have shape \(8,\), .*, got \(7,\)",
        ),
        Bad(
            "residual on the CPU",
            lambda i: (i.randn(2, 8), torch.ones(2, 8, dtype=i.dtype)),
            rf"{norm.name}: expected residual to be on cuda:\d+ like x, got cpu",
            cuda_only=True,
        ),
        Bad(
            "pack, misaligned residual",
            lambda i: (f32(i).randn(2, 8), f32(i).misaligned(2, 8)),
            rf"{norm.name}.*: .*needs rows, weight and bias aligned to 16 bytes",
            variant="f32x4_pack",
        ),
        Bad(
            "registers, row too long",
            lambda i: (f32(i).plain(1, 16388), None),
            rf"{norm.name}.*: .*needs rows of at most 64 KiB",
            variant="f32x4_pack_registers",
        ),
    )
    if norm.layer:
        found += (
            Bad(
                "bias of another length",
                lambda i: (i.randn(2, 8), None, None, i.randn(1, 8)),
                rf"{norm.name}: expected bias to have shape \(8,\), .*, got \(1, 8\)",
            ),
            Bad(
                "bias of another dtype than weight",
                lambda i: (
                    i.randn(2, 8).bfloat16(),
                    None,
                    i.randn(8).bfloat16(),
                    i.randn(8).float(),
                ),
                rf"{norm.name}: expected bias to have dtype torch\.bfloat16 like weight, "
                r"got torch\.float32",
            ),
        )
    return found


def backward_errors(norm: Norm) -> tuple[Bad, ...]:
    op = norm.backward_name

    def call(grad: Tensor, grad_h: Tensor | None, h: Tensor, cols: int = 8) -> tuple[Any, ...]:
        weight = torch.ones(cols, dtype=grad.dtype, device=grad.device)
        affine = (weight, None) if norm.layer else (weight,)
        return grad, grad_h, h, *affine, norm.eps, False, False

    return (
        Bad(
            "h of another shape",
            lambda i: call(i.randn(2, 8), None, i.randn(2, 7)),
            rf"{op}: expected h to have shape \(2, 8\) like grad, got \(2, 7\)",
        ),
        Bad(
            "h of another dtype",
            lambda i: call(i.randn(2, 8), None, i.randn(2, 8).double()),
            rf"{op}: expected h to have dtype torch\.\w+.*, got torch\.float64",
        ),
        Bad(
            "gradient of h of another shape",
            lambda i: call(i.randn(2, 8), i.randn(8), i.randn(2, 8)),
            rf"{op}: expected grad_h to have shape \(2, 8\) like h, got \(8,\)",
        ),
        Bad(
            "gradient of h of another dtype",
            lambda i: call(i.randn(2, 8), i.randn(2, 8).double(), i.randn(2, 8)),
            rf"{op}: expected grad_h to have dtype torch\.\w+ like h, got torch\.float64",
        ),
        Bad(
            "weight of another length",
            lambda i: call(i.randn(2, 8), None, i.randn(2, 8), cols=7),
            rf"{op}: expected weight to have shape \(8,\), .*, got \(7,\)",
        ),
        Bad(
            "h on the CPU",
            lambda i: call(i.randn(2, 8), None, torch.ones(2, 8, dtype=i.dtype)),
            rf"{op}: expected h to be on cuda:\d+ like grad, got cpu",
            cuda_only=True,
        ),
    )


# --- properties -----------------------------------------------------------------------------------


def outputs_agree(function: Callable[..., Any], inputs: Inputs) -> None:
    """y is the norm of the h that is handed out, however the sum was made."""
    x, residual = inputs.randn(7, 328), inputs.randn(7, 328, salt=1)
    y, h = function(x, residual)
    again, same = function(h, torch.zeros_like(h))
    assert torch.equal(h, x + residual)
    assert torch.equal(h, same)
    assert torch.equal(y, again)


def rows_independent(function: Callable[..., Any], inputs: Inputs) -> None:
    x, residual = inputs.randn(6, 264), inputs.randn(6, 264, salt=1)
    changed = x.clone()
    changed[2] = inputs.randn(264, salt=3)
    rest = [0, 1, 3, 4, 5]
    before, after = function(x, residual)[0][rest], function(changed, residual)[0][rest]
    assert torch.equal(before, after), "a row's answer depends on another row"


def repeatable(norm: Norm) -> Callable[[Callable[..., Any], Inputs], None]:
    return repeatable_gradients(lambda i, grad, h: _gradients(norm, grad, grad, h))


def shift_invariant(function: Callable[..., Any], inputs: Inputs) -> None:
    """What is added to a whole row falls to the mean; powers of two leave h exact."""
    x = torch.randint(-8, 8, (5, 96), device=inputs.device).to(inputs.dtype)
    shifted, _ = function(x, torch.full_like(x, 16.0))
    y, _ = function(x, torch.zeros_like(x))
    eps = torch.finfo(inputs.dtype).eps
    torch.testing.assert_close(shifted, y, rtol=4 * eps, atol=8 * eps)
