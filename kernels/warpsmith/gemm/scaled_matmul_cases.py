"""Calls on which scaled_matmul is tested and measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import DTYPES, Bad, Inputs, Sample, is_fp8

Call = tuple[Tensor, Tensor, Tensor, Tensor, str]

#: Values of k up to which sums of products of -128 with itself stay within 32 bits.
MOST_DEPTH = 131071
#: Values of k, and columns of b, that share a scale of blocks.
BLOCK = 128


def blocks_of(count: int) -> int:
    return -(-count // BLOCK)


def matrix(inputs: Inputs, rows: int, cols: int, *, salt: int = 0) -> Tensor:
    """With outliers where the dtype is floating; every int8 otherwise."""
    if inputs.dtype == torch.int8:
        generator = inputs.generator((rows, cols, salt))
        return torch.randint(
            -128, 128, (rows, cols), generator=generator, device=inputs.device, dtype=torch.int8
        )
    return inputs.randn(rows, cols, salt=salt)


def columns(inputs: Inputs, k: int, n: int) -> Tensor:
    """[k, n], column-major: the layout of weights, and what tensor cores read."""
    return matrix(inputs, n, k, salt=1).t()


def scales(inputs: Inputs, *shape: int, salt: int = 2) -> Tensor:
    """Of either sign, over two orders of magnitude, small enough for f16 results."""
    plain = Inputs(torch.float32, inputs.device, inputs.seed).plain(*shape, salt=salt)
    return plain.sign() * (plain - 4).exp()


def call(inputs: Inputs, m: int, n: int, k: int, *, out: str = "bf16", each: bool = True) -> Call:
    """`each`: a scale for every row and column, or one for all."""
    scale_a = scales(inputs, m) if each else scales(inputs)
    scale_b = scales(inputs, n, salt=3) if each else scales(inputs, salt=3)
    return matrix(inputs, m, k), columns(inputs, k, n), scale_a, scale_b, out


def to_fp8(i: Inputs, args: Call, fast: bool = False, *, scaled: bool = True) -> tuple[Any, ...]:
    """With a scale for the result by which few of its values saturate."""
    size = 2.0 ** (4 if i.dtype == torch.int8 else 15) / math.sqrt(max(args[0].shape[1], 1))
    scale = torch.full((), size, device=i.device) if scaled else None
    return (*args, fast, scale)


def in_blocks(inputs: Inputs, m: int, n: int, k: int, *, out: str = "bf16") -> Call:
    scale_a = scales(inputs, m, blocks_of(k))
    scale_b = scales(inputs, blocks_of(k), blocks_of(n), salt=3)
    return matrix(inputs, m, k), columns(inputs, k, n), scale_a, scale_b, out


def _other(dtype: torch.dtype) -> torch.dtype:
    return torch.float8_e5m2 if dtype == torch.float8_e4m3fn else torch.float8_e4m3fn


def mixed(
    inputs: Inputs, m: int, n: int, k: int, *, blocks: bool = False, out: str = "bf16"
) -> Call:
    """b in the other format of fp8, of values that either has room for."""
    b = Inputs(_other(inputs.dtype), inputs.device, inputs.seed).plain(n, k, salt=1).t()
    whole = (in_blocks if blocks else call)(inputs, m, n, k, out=out)
    return whole[0], b, *whole[2:]


_SMALL = (
    (1, 1, 1, "bf16"),
    (7, 16, 33, "f16"),
    (16, 33, 64, "bf16"),
    (33, 7, 16, "f16"),
    (127, 33, 48, "bf16"),
    (1, 128, 160, "bf16"),
    (128, 1, 144, "f16"),
    (129, 127, 128, "bf16"),
    (64, 136, 272, "bf16"),
    (16, 129, 7, "bf16"),
    (33, 16, 127, "f16"),
    (7, 129, 129, "bf16"),
)
_LARGE = (
    (1000, 1000, 1008, "bf16"),
    (257, 4097, 400, "f16"),
    (33, 127, 4112, "bf16"),
    (1500, 2304, 512, "bf16"),
    (4096, 1536, 256, "f16"),
    (4097, 129, 1000, "f16"),
    (33, 129, 4097, "bf16"),
)


def _shaped(m: int, n: int, k: int, out: str, small: bool) -> Sample:
    return Sample(f"{m}x{n}x{k} to {out}", lambda i: call(i, m, n, k, out=out), small=small)


def _replaced(i: Inputs, a: Tensor, b: Tensor) -> Call:
    return a, b, *call(i, a.shape[0], b.shape[1], 1)[2:]


def samples() -> tuple[Sample, ...]:
    return (
        *(_shaped(*shape, small=True) for shape in _SMALL),
        *(_shaped(*shape, small=False) for shape in _LARGE),
        Sample("one scale for all", lambda i: call(i, 40, 72, 96, each=False)),
        Sample("expanded scales", _expanded),
        Sample("both row-major", lambda i: _replaced(i, matrix(i, 20, 64), matrix(i, 64, 48))),
        Sample("both column-major", lambda i: _replaced(i, columns(i, 20, 64), columns(i, 64, 48))),
        Sample("row stride", lambda i: _replaced(i, matrix(i, 20, 96)[:, :64], columns(i, 64, 33))),
        Sample(
            "odd row stride", lambda i: _replaced(i, matrix(i, 20, 65)[:, :64], columns(i, 64, 9))
        ),
        Sample(
            "misaligned",
            lambda i: _replaced(i, matrix(i, 1, 1025)[0, 1:].view(16, 64), columns(i, 64, 9)),
        ),
        *_in_blocks(),
        *_mixed(),
        Sample("f32 33x48x272", lambda i: call(i, 33, 48, 272, out="f32")),
        Sample("f32 9x7x33", lambda i: call(i, 9, 7, 33, out="f32")),
        Sample("f32 130x200x2048", lambda i: call(i, 130, 200, 2048, out="f32"), small=False),
        Sample("sums that may stay", lambda i: (*call(i, 130, 264, 400), True)),
        Sample("sums that may stay, large", lambda i: (*call(i, 260, 776, 144), True), small=False),
        _shaped(260, 520, 144, "bf16", small=False),
        Sample("blocks 260x520x400", lambda i: in_blocks(i, 260, 520, 400), small=False),
        Sample("sums that may stay, blocks", lambda i: (*in_blocks(i, 130, 264, 400), True)),
        Sample("sums that may stay, few rows", lambda i: (*call(i, 3, 136, 2048), True)),
        *_to_fp8(),
        Sample("no rows", lambda i: call(i, 0, 8, 16)),
        Sample("no columns", lambda i: call(i, 8, 0, 16)),
        Sample("k of 0", _nothing),
        Sample("nan and infinities", _nonfinite, dtypes=("e4m3", "e5m2")),
        _shaped(33, 48, 1 << 16, "bf16", small=False),
        _shaped(16, 16, MOST_DEPTH + 1, "bf16", small=False),
        Sample("least numbers, the longest sums in int32", _least, small=False, dtypes=("i8",)),
        _past_2_31("a", (1 << 20) + 1, 8, 2048),
        _past_2_31("b", 8, (1 << 20) + 1, 2048),
        _past_2_31("the product", 46_344, 46_344, 16),
    )


def _in_blocks() -> tuple[Sample, ...]:
    def sample(m: int, n: int, k: int, out: str, small: bool = True) -> Sample:
        def make(i: Inputs) -> Call:
            return in_blocks(i, m, n, k, out=out)

        return Sample(f"blocks {m}x{n}x{k} to {out}", make, small=small)

    def strided(i: Inputs) -> Call:
        """As quantisers leave them that write a column of scales for each block of k."""
        a, b, scale_a, scale_b, out = in_blocks(i, 40, 264, 400)
        return a, b, scale_a.t().contiguous().t(), scale_b.t().contiguous().t(), out

    def infinite(i: Inputs) -> Call:
        """Of sums, which are positive, and not of what these are sums of, a 0 among them."""
        a, b, scale_a, scale_b, out = in_blocks(i, 40, 264, 400)
        for x in (a, b):
            x.view(torch.uint8).bitwise_and_(127)  # the sign bit
        a.view(torch.uint8)[3, 200] = 0
        scale_a[3, 1] = math.inf
        return a, b, scale_a, scale_b, out

    return (
        sample(1, 1, 1, "bf16"),
        sample(7, 33, 100, "f16"),
        sample(20, 136, 144, "f32"),
        sample(130, 129, 272, "bf16"),
        sample(1, 200, 144, "f16"),
        sample(64, 392, 384, "f16"),
        sample(3, 256, 2048, "bf16"),
        sample(300, 400, 1024, "bf16", small=False),
        sample(257, 1000, 784, "f16", small=False),
        Sample("blocks, scales in columns", strided),
        Sample("blocks, k of 0", lambda i: in_blocks(i, 5, 6, 0)),
        Sample("blocks, infinite scales", infinite),
    )


def _mixed() -> tuple[Sample, ...]:
    """Of two formats of fp8."""

    def sample(
        m: int, n: int, k: int, blocks: bool, small: bool = True, out: str = "bf16"
    ) -> Sample:
        label = f"mixed {'blocks ' if blocks else ''}{m}x{n}x{k}"
        return Sample(
            label if out == "bf16" else f"{label} to {out}",
            lambda i: mixed(i, m, n, k, blocks=blocks, out=out),
            small=small,
            dtypes=("e4m3", "e5m2"),
        )

    return (
        sample(7, 9, 33, False),
        sample(64, 136, 272, False),
        sample(16, 129, 144, True),
        sample(1, 200, 400, False, out="f16"),
        sample(33, 129, 48, False, out="f32"),
        sample(33, 136, 208, True, out="f32"),
        Sample(
            "mixed 40x72x96 to e4m3",
            lambda i: to_fp8(i, mixed(i, 40, 72, 96, out="e4m3")),
            dtypes=("e4m3", "e5m2"),
        ),
        sample(300, 400, 1024, False, small=False),
    )


def _to_fp8() -> tuple[Sample, ...]:
    """Results of fp8."""

    def special(out: str) -> Sample:
        def make(i: Inputs) -> Call:
            return (*_nonfinite(i)[:4], out)

        return Sample(f"nan and infinities to {out}", make, dtypes=("e4m3", "e5m2"))

    def sample(
        m: int,
        n: int,
        k: int,
        out: str,
        make: Callable[..., Call] = call,
        *,
        small: bool = True,
        each: bool = True,
    ) -> Sample:
        said = f"{m}x{n}x{k} {'blocks ' if make is in_blocks else ''}to {out}"
        return Sample(
            said if each else f"{said}, unscaled",
            lambda i: to_fp8(i, make(i, m, n, k, out=out), scaled=each),
            small=small,
        )

    return (
        sample(7, 33, 100, "e4m3"),
        sample(33, 48, 272, "e5m2"),
        sample(130, 136, 48, "e4m3"),
        sample(130, 130, 48, "e4m3"),
        sample(3, 8, 1536, "e4m3"),
        sample(40, 72, 96, "e5m2", each=False),
        sample(130, 264, 32, "e4m3", in_blocks),
        sample(1500, 2304, 512, "e4m3", small=False),
        sample(33, 136, 16384, "e4m3", small=False),
        sample(1500, 2300, 512, "e5m2", in_blocks, small=False),
        Sample(
            "to e4m3, sums that may stay",
            lambda i: to_fp8(i, call(i, 130, 264, 32, out="e4m3"), True),
        ),
        Sample("to e4m3, no rows", lambda i: call(i, 0, 8, 16, out="e4m3")),
        Sample("to e4m3, k of 0", lambda i: call(i, 5, 6, 0, out="e4m3")),
        special("e4m3"),
        special("e5m2"),
    )


def _past_2_31(what: str, m: int, n: int, k: int) -> Sample:
    return Sample(
        f"past 2^31 elements of {what}",
        lambda i: call(i, m, n, k),
        small=False,
        huge=True,
        dtypes=("e4m3", "i8"),
    )


def _expanded(inputs: Inputs) -> Call:
    a, b, _, _, out = call(inputs, 20, 24, 64)
    return a, b, scales(inputs, 1).expand(20), scales(inputs, 48)[::2], out


def _least(inputs: Inputs) -> Call:
    k = MOST_DEPTH // 16 * 16  # in packs
    least = torch.full((16, k), -128, device=inputs.device, dtype=torch.int8)
    return _replaced(inputs, least, least.t())


def _nothing(inputs: Inputs) -> Call:
    """No products, which scales leave at 0."""
    a, b, scale_a, scale_b, out = call(inputs, 5, 6, 0)
    scale_a[1], scale_b[2] = math.nan, math.inf
    return a, b, scale_a, scale_b, out


def _nonfinite(inputs: Inputs) -> Call:
    """e4m3 has a NaN, e5m2 infinities too."""
    a, b, scale_a, scale_b, out = call(inputs, 40, 24, 64)
    a.view(torch.uint8)[3, 7] = 0x7C if inputs.dtype == torch.float8_e5m2 else 0x7F
    b.t().view(torch.uint8)[5, 63] = 0xFF
    return a, b, scale_a, scale_b, out


def bench() -> tuple[Sample, ...]:
    shapes = ((1024, 4096, 4096), (4096, 4096, 4096), (8192, 8192, 8192), (4096, 4096, 14336))

    def make(inputs: Inputs, m: int, n: int, k: int) -> Call:
        a, b = inputs.plain(m, k), inputs.plain(n, k, salt=1).t()
        return a, b, scales(inputs, m), scales(inputs, n, salt=3), "bf16"

    def blocks(inputs: Inputs, m: int, n: int, k: int) -> Call:
        a, b, *_ = make(inputs, m, n, k)
        return a, b, *in_blocks(inputs, m, n, k)[2:]

    def results(inputs: Inputs, m: int, n: int, k: int) -> tuple[Any, ...]:
        """With a scale for each tensor, which is what PyTorch's own takes beside such results."""
        a, b, *_ = make(inputs, m, n, k)
        one = torch.full((), 0.125, device=inputs.device)
        return a, b, one, one, "e4m3", False, one

    def case(m: int, n: int, k: int, dtypes: tuple[str, ...] | None = None) -> Sample:
        return Sample(f"{m}x{n}x{k}", lambda i: make(i, m, n, k), small=False, dtypes=dtypes)

    return (
        *(case(*shape) for shape in shapes),
        *(case(m, n, k, ("e4m3",)) for m in (16, 64, 128) for n, k in _FEW),
        *(
            Sample(
                f"blocks {m}x{n}x{k}",
                lambda i, size=(m, n, k): blocks(i, *size),  # type: ignore[misc]
                small=False,
                dtypes=("e4m3",),
            )
            for m, n, k in ((64, 4096, 4096), *shapes)
        ),
        *(
            Sample(
                f"{m}x{n}x{k}, sums may stay",
                lambda i, size=(m, n, k): (*make(i, *size), True),  # type: ignore[misc]
                small=False,
                dtypes=("e4m3",),
            )
            for m, n, k in shapes
        ),
        *(
            Sample(
                f"{m}x{n}x{k} to e4m3",
                lambda i, size=(m, n, k): results(i, *size),  # type: ignore[misc]
                small=False,
                dtypes=("e4m3",),
            )
            for m, n, k in shapes[1:]
        ),
    )


#: n and k of a few of a model's weights.
_FEW = ((4096, 4096), (28672, 4096), (4096, 14336))


def _with(inputs: Inputs, **changed: Any) -> tuple[Any, ...]:
    values = dict(
        zip(("a", "b", "scale_a", "scale_b", "out"), call(inputs, 8, 16, 32), strict=True)
    )
    return tuple((values | changed).values())


ERRORS = (
    Bad(
        "int32",
        lambda i: _with(i, a=torch.ones(8, 32, device=i.device, dtype=torch.int32)),
        r"scaled_matmul: expected a to be an fp8 or int8 tensor, got torch\.int32",
    ),
    Bad(
        "f32",
        lambda i: (torch.ones(8, 32, device=i.device), *_with(i)[1:]),
        r"scaled_matmul: expected a to be an fp8 or int8 tensor, got torch\.float32",
    ),
    Bad(
        "1-D a",
        lambda i: _with(i, a=matrix(i, 1, 32)[0]),
        r"scaled_matmul: expected a to be 2-D, got shape \(32,\)",
    ),
    Bad(
        "two dtypes",
        lambda i: _with(i, b=torch.ones(32, 16, device=i.device)),
        r"scaled_matmul: expected b to be an fp8 or int8 tensor, got torch\.float32",
    ),
    Bad(
        "shapes",
        lambda i: _with(i, b=columns(i, 31, 16)),
        r"scaled_matmul: cannot multiply shapes \(8, 32\) and \(31, 16\)",
    ),
    Bad(
        "scales per column of a",
        lambda i: _with(i, scale_a=scales(i, 32)),
        r"scaled_matmul: expected scale_a to have shape \(\) or \(8,\), one value per row of a, or "
        r"\(8, 1\), one per row of a and 128 values of k, got \(32,\)",
    ),
    Bad(
        "half scales",
        lambda i: _with(i, scale_b=scales(i, 16).half()),
        r"scaled_matmul: expected scale_b to have dtype torch\.float32, got torch\.float16",
    ),
    Bad(
        "one double scale",
        lambda i: _with(i, scale_a=scales(i, 8).double()),
        r"scaled_matmul: expected scale_b to have dtype torch\.float64, got torch\.float32",
    ),
    Bad(
        "result of i8",
        lambda i: _with(i, out="i8"),
        r"scaled_matmul: expected out_dtype to be 'f16', 'bf16', 'f32', 'e4m3' or 'e5m2', got 'i8'",
    ),
    Bad(
        "scale of a wide result",
        lambda i: (*_with(i), False, scales(i)),
        r"scaled_matmul: expected no scale_result beside results of torch\.bfloat16",
    ),
    Bad(
        "half scale of the result",
        lambda i: (*_with(i, out="e4m3"), False, scales(i).half()),
        r"scaled_matmul: expected scale_result to have dtype torch\.float32, got torch\.float16",
    ),
    Bad(
        "scales of results",
        lambda i: (*_with(i, out="e4m3"), False, scales(i, 16)),
        r"scaled_matmul: expected scale_result to have shape \(\), got \(16,\)",
    ),
    Bad(
        "one scale of blocks",
        lambda i: _with(i, scale_a=scales(i, 8, 1)),
        r"scaled_matmul: expected scales of blocks for both of a and b or for neither",
    ),
    Bad(
        "other blocks",
        lambda i: _with(i, scale_a=scales(i, 8, 1), scale_b=scales(i, 2, 1)),
        r"scaled_matmul: expected scale_b to have shape \(\) or \(16,\), one value per column of "
        r"b, or \(1, 1\), one per 128 x 128 values of b, got \(2, 1\)",
    ),
)


def _powers(generator: torch.Generator, *shape: int) -> Tensor:
    return 2.0 ** torch.randint(-2, 3, shape, generator=generator)


def whole_numbers(function: Callable[..., Any], inputs: Inputs) -> None:
    """Products of small whole numbers add up exactly, and scales are powers of two."""
    generator = torch.Generator().manual_seed(inputs.seed)
    for m, n, k in ((67, 40, 208), (130, 129, 96), (70, 200, 528), (3, 136, 1040)):
        drawn = torch.randint(-2, 3, (m + n, k), generator=generator).to(inputs.device)
        a, b = drawn[:m].double(), drawn[m:].double()
        scale = torch.full((), 0.25, device=inputs.device)
        left, right = a.to(inputs.dtype), b.to(inputs.dtype).t()
        out = function(left, right, scale, scale, "f16")
        assert torch.equal(out, (a @ b.t() / 16).half()), f"{m}x{n}x{k}"
        for name in ("e4m3", "e5m2"):
            most, half = torch.finfo(DTYPES[name]).max, torch.full((), 0.5, device=inputs.device)
            wanted = (a @ b.t() / 2).float().clamp(-most, most).to(DTYPES[name])
            out = function(left, right, 4 * scale, 4 * scale, name, scale_result=half)
            assert torch.equal(out.float(), wanted.float()), f"{m}x{n}x{k} to {name}"
        of_a = _powers(generator, m, blocks_of(k)).to(inputs.device)
        of_b = _powers(generator, blocks_of(k), blocks_of(n)).to(inputs.device)
        spread = of_b.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:k, :n].double()
        exact = (a * of_a.double().repeat_interleave(BLOCK, 1)[:, :k]) @ (b.t() * spread)
        out = function(left, right, of_a, of_b, "f32")
        assert torch.equal(out.double(), exact), f"{m}x{n}x{k} of blocks"


def deterministic(function: Callable[..., Any], inputs: Inputs) -> None:
    args = call(inputs, 200, 136, 512)
    first = function(*args)
    assert all(torch.equal(function(*args), first) for _ in range(3)), "two runs differ"


def operations(a: Tensor, b: Tensor) -> int:
    return 2 * math.prod((*a.shape, b.shape[1]))


def scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    out_dtype: str,
    fast_accum: bool = False,
    scale_result: Tensor | None = None,
) -> Tensor:
    """cuBLASLt through PyTorch; fp8 only."""
    if not is_fp8(a.dtype):
        raise NotImplementedError("torch._scaled_mm takes fp8")
    if scale_a.dim() == 2:  # blocks of k in rows of their own, as it wants them
        scale_a = scale_a.t().contiguous().t()
        scale_b = scale_b.t().contiguous().t()
    elif scale_a.dim() == 1 or scale_b.dim() == 1:
        scale_a, scale_b = scale_a.unsqueeze(-1), scale_b.unsqueeze(0)
    return torch._scaled_mm(
        a,
        b,
        scale_a=scale_a,
        scale_b=scale_b,
        scale_result=scale_result,
        out_dtype=DTYPES[out_dtype],
        use_fast_accum=fast_accum,
    )
