"""Calls on which products of layers with what follows them are tested and measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Inputs, Sample
from warpsmith.spec.spoilt import Spoiler

Named = dict[str, Any]
_ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")


def _weight(i: Inputs, n: int, k: int, salt: int = 1, *, columns: bool = False) -> Tensor:
    """Of a magnitude that leaves the sums near one, where activations bend; `columns`: as [k, n] in
    memory.
    """
    weight = i.plain(n, k, scale=1 / math.sqrt(max(k, 1)), salt=salt)
    return weight.t().contiguous().t() if columns else weight


def _bias(i: Inputs, n: int, salt: int, kind: str) -> Tensor | None:
    """`kind`: "", "same", "f32" or "strided"."""
    if not kind:
        return None
    bias = i.plain(2 * n if kind == "strided" else n, salt=salt)
    return bias[::2] if kind == "strided" else bias.float() if kind == "f32" else bias


# --- linear_epilogue ------------------------------------------------------------------------------


def _layer(
    i: Inputs,
    x: tuple[int, ...],
    n: int,
    activation: str = "none",
    *,
    bias: str = "same",
    residual: bool = True,
    scale: float = 1.0,
    keep: bool = False,
    amax: bool = False,
    columns: bool = False,
) -> Named:
    return {
        "x": i.plain(*x),
        "weight": _weight(i, n, x[-1], columns=columns),
        "bias": _bias(i, n, 2, bias),
        "residual": i.plain(*x[:-1], n, salt=3) if residual else None,
        "scale": scale,
        "activation": activation,
        "keep": keep,
        "amax": amax,
    }


def _epilogue(x: tuple[int, ...], n: int, small: bool = True, **options: Any) -> Sample:
    shape = "x".join(map(str, x))
    text = ", ".join(f"{name} {value}" for name, value in options.items())
    return Sample(f"{shape} to {n}, {text}", lambda i: _layer(i, x, n, **options), small=small)


def _layer_past_2_31(
    what: str, x: tuple[int, int], n: int, activation: str = "none", **options: Any
) -> Sample:
    return Sample(
        f"past 2^31 elements of {what}",
        lambda i: _layer(i, x, n, activation, **options),
        small=False,
        huge=True,
        dtypes=("bf16",),
    )


def _special_layer(i: Inputs) -> Named:
    call = _layer(i, (20, 40), 24, "silu", keep=True, amax=True)
    call["x"][3, 7], call["x"][5, 0] = math.nan, math.inf
    call["weight"][2, 39], call["bias"][11], call["residual"][9, 4] = -math.inf, math.nan, math.inf
    return call


def epilogue_samples() -> tuple[Sample, ...]:
    return (
        *(_epilogue((33, 40), 24, activation=name, keep=True) for name in _ACTIVATIONS),
        *(_epilogue((129, 72), 136, activation=name, columns=True) for name in _ACTIVATIONS[:2]),
        _epilogue((130, 264), 200, activation="gelu", bias="f32", scale=0.5, keep=True),
        _epilogue((20, 1544), 40, activation="silu", bias="f32", keep=True),
        _epilogue((3, 2056), 72, activation="none", bias="", scale=-2.0),
        _epilogue((70, 1032), 264, activation="gelu_tanh", residual=False, keep=True),
        _epilogue((2, 3, 5, 40), 24, activation="relu", bias="strided"),
        _epilogue((64,), 40, activation="silu"),
        _epilogue((1, 64), 128, activation="none", bias="f32"),
        _epilogue((7, 33), 127, activation="gelu", keep=True),
        _epilogue((5, 1), 16, activation="relu"),
        _epilogue((2, 3, 1), 8, activation="none"),
        # by tiles of 128 x 192 where there are few multiprocessors, and where there are many
        _epilogue((130, 32), 328, activation="gelu", residual=False, keep=True, amax=True),
        _epilogue((1020, 32), 2200, activation="silu", bias="f32", keep=True, small=False),
        _epilogue((300, 128), 264, activation="silu", small=False),
        _epilogue((1000, 1000), 1000, activation="gelu", keep=True, small=False),
        _epilogue((257, 4096), 512, activation="none", bias="f32", scale=0.25, small=False),
        Sample(
            "x of every second row, weight in wider rows",
            lambda i: {
                "x": i.plain(40, 64)[::2],
                "weight": i.plain(24, 80, scale=0.125, salt=1)[:, :64],
                "bias": None,
                "residual": i.plain(24, 20, salt=3).t(),
            },
        ),
        Sample(
            "x transposed",
            lambda i: {"x": i.plain(40, 33).t(), "weight": _weight(i, 24, 40)},
        ),
        Sample(
            "heads",
            lambda i: {"x": i.plain(2, 9, 3, 16).transpose(1, 2), "weight": _weight(i, 24, 16)},
        ),
        Sample(
            "misaligned",
            lambda i: {"x": i.misaligned(64, 64), "weight": i.misaligned(72, 64, salt=1)},
        ),
        _layer_past_2_31("weight", (8, 2048), (1 << 20) + 8, "relu"),
        # without what takes a reference in f64 past 60 GB
        _layer_past_2_31("the result", (46_344, 16), 46_344, bias="", residual=False),
        Sample("special values", _special_layer),
        _epilogue((130, 264), 200, activation="silu", amax=True),
        _epilogue((40, 1544), 128, activation="gelu", bias="f32", keep=True, amax=True),
        _epilogue((2, 3, 2056), 72, activation="none", scale=-1.0, amax=True),
        _epilogue((7, 33), 127, activation="relu", amax=True),
        _epilogue((5, 0), 7, activation="relu", keep=True, amax=True),
        _epilogue((0, 16), 7, activation="relu", keep=True),
        _epilogue((4, 16), 0, activation="relu", amax=True),
    )


_spoil_layer = Spoiler("linear_epilogue", lambda i: _layer(i, (3, 4), 6, "relu", keep=True))
EPILOGUE_ERRORS = (
    _spoil_layer(
        "0-d", r"expected at least 1 dimension in x, got shape \(\)", x=lambda i: i.randn()
    ),
    _spoil_layer(
        "weight 3-D",
        r"expected weight to be 2-D, got shape \(2, 3, 4\)",
        weight=lambda i: i.randn(2, 3, 4),
    ),
    _spoil_layer(
        "inner sizes",
        r"cannot multiply shapes \(3, 4\) and \(6, 5\) transposed",
        weight=lambda i: i.randn(6, 5),
    ),
    _spoil_layer(
        "bias of another size",
        r"expected bias to have shape \(6,\), the rows of its weight, got \(4,\)",
        bias=lambda i: i.randn(4),
    ),
    _spoil_layer(
        "bias of another dtype",
        r"expected bias to have dtype torch.\w+ like x( or torch.float32)?, got torch.float64",
        bias=lambda i: i.randn(6).double(),
    ),
    _spoil_layer(
        "residual of another shape",
        r"expected residual to have shape \(3, 6\), that of the result, got \(6,\)",
        residual=lambda i: i.randn(6),
    ),
    _spoil_layer(
        "residual of another dtype",
        r"expected residual to have dtype torch.\w+ like x, got torch.float64",
        residual=lambda i: i.randn(3, 6).double(),
    ),
    _spoil_layer(
        "unknown activation", r"expected activation to be .*, got 'swish'", activation="swish"
    ),
)


def residual_alone(linear: Callable[..., Any], i: Inputs) -> None:
    """Of zeros and an activation that leaves zero alone, the residual is left, to the bit."""
    residual = i.randn(17, 24, salt=3)
    x = torch.zeros(17, 40, dtype=i.dtype, device=i.device)
    y, before, _ = linear(x, i.plain(24, 40), None, residual, 2.0, "gelu", True)
    assert torch.equal(y, residual)
    assert not before.any()


def epilogue_deterministic(linear: Callable[..., Any], i: Inputs) -> None:
    """A long k over few tiles, which is what gets split."""
    args = tuple(_layer(i, (40, 9000), 72, "silu", bias="f32").values())
    first = linear(*args)[0]
    assert all(torch.equal(first, linear(*args)[0]) for _ in range(3))


def _bench(m: int, n: int, k: int, **options: Any) -> Sample:
    text = " ".join(f"{name} {value}" for name, value in options.items())
    return Sample(f"{m}x{n}x{k} {text}", lambda i: _layer(i, (m, k), n, **options), small=False)


def epilogue_bench() -> tuple[Sample, ...]:
    """What leaves attention and the MLP of Llama-3-8B, and what enters the MLP of a ViT."""
    return (
        *(_bench(m, 4096, 4096, bias="") for m in (128, 1024, 4096)),
        *(_bench(m, 4096, 14336, bias="") for m in (128, 1024, 4096)),
        _bench(4096, 3072, 768, activation="gelu", residual=False, keep=True),
        _bench(4096, 3072, 768, activation="gelu", residual=False, bias="f32"),
        _bench(4096, 768, 3072),
    )


# --- gated_linear ---------------------------------------------------------------------------------


def _gated(
    i: Inputs,
    x: tuple[int, ...],
    n: int,
    activation: str = "silu",
    *,
    bias: str = "",
    keep: bool = False,
    amax: bool = False,
    columns: bool = False,
) -> Named:
    k = x[-1]
    return {
        "x": i.plain(*x),
        "w_gate": _weight(i, n, k, columns=columns),
        "w_up": _weight(i, n, k, 2, columns=columns),
        "b_gate": _bias(i, n, 3, bias),
        "b_up": _bias(i, n, 4, bias),
        "activation": activation,
        "keep": keep,
        "amax": amax,
    }


def _gate(x: tuple[int, ...], n: int, small: bool = True, **options: Any) -> Sample:
    shape = "x".join(map(str, x))
    text = ", ".join(f"{name} {value}" for name, value in options.items())
    return Sample(f"{shape} to {n}, {text}", lambda i: _gated(i, x, n, **options), small=small)


def _special_gate(i: Inputs) -> Named:
    call = _gated(i, (20, 40), 24, bias="same", keep=True, amax=True)
    call["x"][3, 7], call["x"][5, 0], call["w_gate"][2, 39] = math.nan, math.inf, -math.inf
    call["b_up"][11] = math.nan
    return call


def gated_samples() -> tuple[Sample, ...]:
    return (
        *(_gate((33, 40), 24, activation=name, keep=True) for name in _ACTIVATIONS[1:]),
        *(_gate((129, 72), 136, activation=name, columns=True) for name in ("silu", "relu")),
        _gate((130, 264), 200, activation="gelu", bias="f32", keep=True),
        _gate((70, 1032), 72, activation="gelu_tanh", bias="strided"),
        _gate((20, 1544), 328, bias="same"),
        _gate((2, 3, 5, 40), 24),
        _gate((64,), 40),
        _gate((7, 33), 127, keep=True),
        _gate((5, 1), 16),
        _gate((300, 128), 264, keep=True, small=False),
        _gate((1000, 1000), 1000, activation="gelu", bias="f32", small=False),
        Sample(
            "halves of one weight",
            lambda i: {
                "x": i.plain(40, 64)[::2],
                **dict(zip(("w_gate", "w_up"), _weight(i, 48, 64).chunk(2), strict=True)),
            },
        ),
        Sample(
            "weights that lie differently",
            lambda i: {
                "x": i.plain(40, 64),
                "w_gate": _weight(i, 24, 64),
                "w_up": _weight(i, 24, 64, 2, columns=True),
                "b_up": i.plain(24, salt=4),
            },
        ),
        Sample("special values", _special_gate),
        _gate((130, 264), 200, amax=True),
        _gate((2, 3, 72), 72, activation="gelu", bias="f32", keep=True, amax=True),
        _gate((7, 33), 127, amax=True),
        _gate((5, 0), 7, bias="same", keep=True, amax=True),
        _gate((0, 16), 7, keep=True),
        _gate((4, 16), 0, amax=True),
    )


_spoil_gate = Spoiler("gated_linear", lambda i: _gated(i, (3, 4), 6, bias="same", keep=True))
GATED_ERRORS = (
    _spoil_gate(
        "0-d", r"expected at least 1 dimension in x, got shape \(\)", x=lambda i: i.randn()
    ),
    _spoil_gate(
        "inner sizes",
        r"cannot multiply shapes \(3, 4\) and \(6, 5\) transposed",
        w_gate=lambda i: i.randn(6, 5),
    ),
    _spoil_gate(
        "weights of two shapes",
        r"expected w_up to have the shape \(6, 4\) of w_gate, got \(5, 4\)",
        w_up=lambda i: i.randn(5, 4),
    ),
    _spoil_gate(
        "bias of another size",
        r"expected b_up to have shape \(6,\), the rows of its weight, got \(4,\)",
        b_up=lambda i: i.randn(4),
    ),
    _spoil_gate(
        "bias of another dtype",
        r"expected b_gate to have dtype torch.\w+ like x( or torch.float32)?, got torch.float64",
        b_gate=lambda i: i.randn(6).double(),
    ),
    _spoil_gate("no gate", r"expected activation to be .*, got 'none'", activation="none"),
)


def gated_deterministic(gated: Callable[..., Any], i: Inputs) -> None:
    args = tuple(_gated(i, (40, 1000), 72).values())
    first = gated(*args)[0]
    assert all(torch.equal(first, gated(*args)[0]) for _ in range(3))


def gated_bench() -> tuple[Sample, ...]:
    """Gates of Llama-3-8B, Qwen3-4B and Gemma-3-1B, and one of a training step."""

    def case(m: int, n: int, k: int, **options: Any) -> Sample:
        text = " ".join(f"{name} {value}" for name, value in options.items())
        label = f"{m}x{n}x{k} {text}".strip()
        return Sample(label, lambda i: _gated(i, (m, k), n, **options), small=False)

    return (
        *(case(m, 14336, 4096) for m in (128, 512, 2048, 4096, 8192)),
        case(4096, 14336, 4096, keep=True),
        *(case(m, 9728, 2560) for m in (512, 4096)),
        *(case(m, 6912, 1152, activation="gelu_tanh") for m in (512, 4096)),
    )


# --- fused_qkv ------------------------------------------------------------------------------------


def _qkv(
    i: Inputs,
    x: tuple[int, int, int],
    heads: tuple[int, int, int],
    layout: str = "bshd",
    *,
    bias: str = "",
    columns: bool = False,
) -> Named:
    count, of_kv, size = heads
    n = (count + 2 * of_kv) * size
    return {
        "x": i.plain(*x),
        "weight": _weight(i, n, x[-1], columns=columns),
        "bias": _bias(i, n, 2, bias),
        "heads": count,
        "kv_heads": of_kv,
        "head_dim": size,
        "layout": layout,
    }


def _heads(
    x: tuple[int, int, int], heads: tuple[int, int, int], small: bool = True, **options: Any
) -> Sample:
    shape = "x".join(map(str, x))
    text = ", ".join(str(value) for value in (*heads, *options.values()))
    return Sample(f"{shape} to {text}", lambda i: _qkv(i, x, heads, **options), small=small)


def qkv_samples() -> tuple[Sample, ...]:
    both = ("bshd", "bhsd")
    return (
        *(_heads((2, 33, 40), (3, 1, 64), layout=layout) for layout in both),
        *(_heads((3, 5, 72), (2, 2, 64), layout=layout, bias="f32") for layout in both),
        *(_heads((1, 129, 64), (4, 2, 128), layout=layout, columns=True) for layout in both),
        *(_heads((70, 1, 64), (2, 1, 64), layout=layout, bias="same") for layout in both),
        *(_heads((2, 65, 40), (3, 1, 8), layout=layout) for layout in both),
        *(_heads((2, 7, 40), (3, 1, 24), layout=layout, bias="strided") for layout in both),
        *(_heads((2, 7, 33), (2, 1, 5), layout=layout) for layout in both),
        _heads((5, 50, 64), (1, 1, 192), layout="bhsd"),
        *(_heads((2, 65, 32), (2, 2, 64), layout=layout, bias="f32") for layout in both),
        *(_heads((4, 255, 32), (24, 5, 64), layout=layout, small=False) for layout in both),
        *(_heads((3, 300, 128), (6, 2, 128), layout=layout, small=False) for layout in both),
        Sample(
            "x transposed",
            lambda i: _qkv(i, (3, 9, 16), (2, 1, 8)) | {"x": i.plain(9, 3, 16).transpose(0, 1)},
        ),
        _heads((2, 3, 0), (2, 1, 8)),
        _heads((0, 3, 16), (2, 1, 8)),
        _heads((2, 0, 16), (2, 1, 8), layout="bhsd"),
    )


_spoil_qkv = Spoiler("fused_qkv", lambda i: _qkv(i, (2, 3, 4), (2, 1, 5), bias="same"))
QKV_ERRORS = (
    _spoil_qkv("x 2-D", r"expected x to be 3-D, got shape \(3, 4\)", x=lambda i: i.randn(3, 4)),
    _spoil_qkv(
        "inner sizes",
        r"cannot multiply shapes \(2, 3, 4\) and \(20, 5\) transposed",
        weight=lambda i: i.randn(20, 5),
    ),
    _spoil_qkv(
        "another number of rows",
        r"expected weight to have 20 rows, those of all heads of q, k and v, got shape \(19, 4\)",
        weight=lambda i: i.randn(19, 4),
    ),
    _spoil_qkv("no heads", r"expected heads, kv_heads and head_dim to be at least 1", kv_heads=0),
    _spoil_qkv(
        "bias of another size",
        r"expected bias to have shape \(20,\), the rows of its weight, got \(4,\)",
        bias=lambda i: i.randn(4),
    ),
    _spoil_qkv("no layout", r"expected layout to be 'bshd' or 'bhsd', got 'sbhd'", layout="sbhd"),
)


def qkv_deterministic(qkv: Callable[..., Any], i: Inputs) -> None:
    args = tuple(_qkv(i, (3, 40, 1000), (3, 1, 64)).values())
    first = qkv(*args)
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, qkv(*args), strict=True))


def qkv_bench() -> tuple[Sample, ...]:
    """Llama-3-8B's, Qwen3-4B's, and those of a ViT with biases."""

    def case(b: int, s: int, k: int, heads: tuple[int, int, int], **options: Any) -> Sample:
        text = " ".join(str(value) for value in (*heads, *options.values()))
        return Sample(
            f"{b}x{s}x{k} to {text}", lambda i: _qkv(i, (b, s, k), heads, **options), small=False
        )

    return (
        *(case(1, s, 4096, (32, 8, 128)) for s in (512, 4096)),
        case(4, 1024, 4096, (32, 8, 128), layout="bhsd"),
        case(1, 4096, 2560, (32, 8, 128), layout="bhsd"),
        case(64, 197, 768, (12, 12, 64), layout="bhsd", bias="same"),
    )


# --- accumulate_matmul ----------------------------------------------------------------------------


def _sum(i: Inputs, m: int, n: int, k: int, a: str = "columns", b: str = "rows") -> Named:
    """Which lines of a and b are contiguous; by default as the gradient of a weight comes."""
    left = i.plain(k, m, salt=1).t() if a == "columns" else i.plain(m, k, salt=1)
    right = i.plain(n, k, salt=2).t() if b == "columns" else i.plain(k, n, salt=2)
    wide = torch.float64 if i.dtype == torch.float64 else torch.float32
    return {"a": left, "b": right, "total": i.plain(m, n, salt=3).to(wide)}


def _summed(m: int, n: int, k: int, *lines: str, small: bool = True) -> Sample:
    text = " ".join((f"{m}x{n}x{k}", *lines))
    return Sample(text, lambda i: _sum(i, m, n, k, *lines), small=small)


def sum_samples() -> tuple[Sample, ...]:
    return (
        _summed(24, 40, 33),
        _summed(136, 264, 72),
        _summed(40, 72, 1544),
        _summed(72, 8, 2056),
        _summed(24, 40, 32, "rows", "columns"),
        _summed(24, 40, 32, "rows", "rows"),
        _summed(33, 16, 7, "rows", "rows"),
        _summed(33, 7, 65),
        _summed(1, 8, 5),
        _summed(264, 520, 129, small=False),
        _summed(512, 384, 4096, small=False),
        _summed(1000, 2296, 40, small=False),
        Sample(
            "total misaligned",
            lambda i: (
                _sum(i, 24, 40, 33)
                | {"total": i.misaligned(24, 40, salt=3).to(_sum(i, 1, 1, 1)["total"].dtype)}
            ),
        ),
        _summed(5, 8, 0),
        _summed(0, 8, 16),
    )


_spoil_sum = Spoiler("accumulate_matmul", lambda i: _sum(i, 3, 6, 4), like="a")
SUM_ERRORS = (
    _spoil_sum(
        "a 3-D", r"expected a to be 2-D, got shape \(2, 3, 4\)", a=lambda i: i.randn(2, 3, 4)
    ),
    _spoil_sum(
        "inner sizes",
        r"cannot multiply shapes \(3, 4\) and \(5, 6\)",
        b=lambda i: i.randn(5, 6),
    ),
    _spoil_sum(
        "total of 16 bits",
        r"expected total to have dtype torch.float\d\d, got torch.float16",
        total=lambda i: i.randn(3, 6).half(),
    ),
    _spoil_sum(
        "total of another shape",
        r"expected total to have shape \(3, 6\), that of the product, got \(6, 3\)",
        total=lambda i: _sum(i, 6, 3, 1)["total"],
    ),
    _spoil_sum(
        "total with gaps",
        r"expected total to be contiguous",
        total=lambda i: _sum(i, 6, 3, 1)["total"].t(),
    ),
)


def adds(accumulate: Callable[..., Any], i: Inputs) -> None:
    """Whole numbers are added exactly, as often as it is called."""
    a = torch.ones(40, 24, dtype=i.dtype, device=i.device).t()
    b = torch.full((40, 16), 2.0, dtype=i.dtype, device=i.device)
    wide = torch.float64 if i.dtype == torch.float64 else torch.float32
    total = torch.ones(24, 16, dtype=wide, device=i.device)
    for _ in range(3):
        (total,) = accumulate(a, b, total)
    assert torch.equal(total, torch.full_like(total, 241.0))


def sum_bench() -> tuple[Sample, ...]:
    """Weights of Llama-3-8B, over the tokens of a step."""
    sizes = ((4096, 4096, 4096), (14336, 4096, 4096), (4096, 14336, 4096), (6144, 4096, 8192))
    return tuple(_summed(*size, small=False) for size in sizes)
