"""Calls on which dropout is tested and timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.elementwise import samples as common
from warpsmith.spec import philox

P, SEED, OFFSET = 0.1, 0x1234_5678_9ABC, 3
#: Around a word of the mask, a pack, a warp, a block.
SIZES = (1, 3, 7, 31, 32, 33, 63, 64, 257, 1000, 1023, 4099, 12345)
Make = Callable[[Inputs], tuple[Any, ...]]
PackMask = Callable[[Tensor], Tensor]


def _drawn(p: float = P, seed: int = SEED, offset: int = OFFSET) -> tuple[float, int, int]:
    return p, seed, offset


def special_values(i: Inputs) -> Tensor:
    """Without what is or becomes a subnormal of bf16: Triton's interpreter has none."""
    x = common.special_values(i)
    if i.dtype == torch.bfloat16:
        x = torch.where(x.abs() < 4 * torch.finfo(i.dtype).tiny, 0.0, x)
    return x


# --- samples --------------------------------------------------------------------------------------


def samples() -> tuple[Sample, ...]:
    """x, p, seed, offset."""
    views = {
        "0-d": lambda i: i.randn(),
        "3-d": lambda i: i.randn(3, 5, 16),
        "nothing": lambda i: i.randn(3, 0, 5),
        "misaligned": lambda i: i.misaligned(1000),
        "transposed": lambda i: i.randn(65, 33).t(),
        "left columns": lambda i: i.randn(40, 96)[:, :64],
        "expanded": lambda i: i.randn(64).expand(9, 64),
        "special values": special_values,
    }
    streams = {
        "half": _drawn(0.5),
        "no p": _drawn(0.0),
        "all p": _drawn(1.0),
        "a tiny p": _drawn(2.0**-33),
        "negative seed": _drawn(0.3, -5),
        "wide offset": _drawn(0.3, 1 << 62, (1 << 40) + 7),
    }
    return (
        *(Sample(f"{n}", lambda i, n=n: (i.randn(n), *_drawn())) for n in SIZES),  # type: ignore[misc]
        *(Sample(label, lambda i, of=of: (of(i), *_drawn())) for label, of in views.items()),  # type: ignore[misc]
        *(Sample(label, lambda i, d=d: (i.randn(1000), *d)) for label, d in streams.items()),  # type: ignore[misc]
        Sample("defaults", lambda i: (i.randn(100),)),
        Sample("large", lambda i: (i.randn(common.LARGE), *_drawn()), small=False),
        Sample(
            "past 2^31 elements",
            lambda i: (i.plain(common.HUGE), *_drawn()),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
    )


def fused_samples() -> tuple[Sample, ...]:
    """x, bias, residual, p, seed, offset."""

    def call(i: Inputs, *shape: int, bias: bool = True, residual: bool = True, p: float = P) -> Any:
        return (
            i.randn(*shape),
            i.randn(shape[-1], salt=1) if bias else None,
            i.randn(*shape, salt=2) if residual else None,
            *_drawn(p),
        )

    shapes = ((1,), (33,), (3, 1), (7, 31), (33, 64), (5, 65), (2, 3, 40), (9, 1000), (4, 0))
    return (
        *(Sample(common.text(s), lambda i, s=s: call(i, *s)) for s in shapes),  # type: ignore[misc]
        Sample("bias alone", lambda i: call(i, 33, 64, residual=False)),
        Sample("residual alone", lambda i: call(i, 33, 65, bias=False)),
        Sample("neither", lambda i: call(i, 33, 65, bias=False, residual=False)),
        Sample("0-d", lambda i: (i.randn(), None, i.randn(salt=2), *_drawn(0.5))),
        Sample("p = 0", lambda i: call(i, 33, 64, p=0.0)),
        Sample("p = 1", lambda i: call(i, 33, 64, p=1.0)),
        Sample("defaults", lambda i: call(i, 33, 64)[:3]),
        Sample("misaligned x", lambda i: (i.misaligned(9, 64), *call(i, 9, 64)[1:])),
        Sample(
            "misaligned bias",
            lambda i: (i.randn(9, 64), i.misaligned(64), i.randn(9, 64, salt=2), *_drawn()),
        ),
        Sample(
            "misaligned residual",
            lambda i: (i.randn(9, 64), i.randn(64, salt=1), i.misaligned(9, 64), *_drawn()),
        ),
        Sample(
            "gaps everywhere",
            lambda i: (
                i.randn(9, 128)[:, ::2],
                i.randn(128, salt=1)[::2],
                i.randn(64, 9, salt=2).t(),
                *_drawn(),
            ),
        ),
        Sample("large", lambda i: call(i, 129, 4096), small=False),
        Sample("large and ragged", lambda i: call(i, 129, 4099), small=False),
        Sample(
            "past 2^31 elements",
            lambda i: (i.plain(common.HUGE // 1024, 1024), i.randn(1024, salt=1), None, *_drawn()),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
    )


def _masked(i: Inputs, pack_mask: PackMask, grad: Tensor, p: float = P) -> tuple[Any, ...]:
    return grad, pack_mask(philox.keep_mask(grad.shape, p, SEED, OFFSET, grad.device)), p


def backward_samples(pack_mask: PackMask) -> tuple[Sample, ...]:
    """grad, mask, p."""

    def of(make: Callable[[Inputs], Tensor], p: float = P) -> Make:
        return lambda i: _masked(i, pack_mask, make(i), p)

    def misaligned_mask(i: Inputs) -> tuple[Any, ...]:
        grad, mask, p = _masked(i, pack_mask, i.randn(1000))
        return grad, torch.cat((mask[:1], mask))[1:], p

    return (
        *(Sample(f"{n}", of(lambda i, n=n: i.randn(n))) for n in SIZES),  # type: ignore[misc]
        Sample("0-d", of(lambda i: i.randn())),
        Sample("nothing", of(lambda i: i.randn(3, 0))),
        Sample("p = 0", of(lambda i: i.randn(1000), 0.0)),
        Sample("p = 1", of(lambda i: i.randn(1000), 1.0)),
        Sample("misaligned", of(lambda i: i.misaligned(1000))),
        Sample("misaligned mask", misaligned_mask),
        Sample("transposed", of(lambda i: i.randn(65, 33).t())),
        Sample("expanded", of(lambda i: i.randn(1).expand(33, 64))),
        Sample("special values", of(special_values, 0.5)),
        Sample("large", of(lambda i: i.randn(common.LARGE)), small=False),
        Sample(
            "past 2^31 elements",
            of(lambda i: i.plain(common.HUGE)),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
    )


# --- wrong calls ----------------------------------------------------------------------------------


def _share(op: str, *tensors: bool) -> tuple[Bad, ...]:
    """A p that is no probability; the tensors are those that a call has before it."""

    def make(p: float) -> Make:
        return lambda i: (*(torch.ones(8, device=i.device) if t else None for t in tensors), p)

    message = f"{op}: expected p to be between 0 and 1, got "
    return (
        Bad("p above 1", make(1.5), message + r"1\.5"),
        Bad("p below 0", make(-0.1), message + r"-0\.1"),
        Bad("p that is NaN", make(float("nan")), message + "nan"),
    )


def errors() -> tuple[Bad, ...]:
    return (
        *common.wrong_dtypes("dropout", 1),
        *_share("dropout", True),
        Bad(
            "a pack across a boundary",
            lambda i: (torch.ones(65, device=i.device)[1:],),
            "dropout.*needs x, bias and residual aligned to 16 bytes",
            variant="f32x4_pack_stream",
        ),
    )


def fused_errors() -> tuple[Bad, ...]:
    op = "bias_dropout_add"

    def ones(i: Inputs, *shape: int) -> Tensor:
        return torch.ones(shape, device=i.device)

    return (
        *common.wrong_dtypes(op, 3),
        *common.mismatches(op, 1, "bias", 3),
        *common.mismatches(op, 2, "residual", 3),
        common.other_shape(op, 2, "residual", 3),
        *_share(op, True, True, True),
        Bad(
            "short bias",
            lambda i: (ones(i, 4, 8), ones(i, 7), None),
            rf"{op}: expected bias to have shape \(8,\), the last dimension of x, got \(7,\)",
        ),
        Bad(
            "0-d x beside a bias",
            lambda i: (ones(i), ones(i, 1), None),
            rf"{op}: expected at least 1 dimension in x, got shape \(\)",
        ),
        Bad(
            "ragged rows beside a bias",
            lambda i: (ones(i, 4, 7), ones(i, 7), None),
            f"{op}.*needs rows that are whole packs beside a bias",
            variant="f32x4_pack",
        ),
    )


def backward_errors() -> tuple[Bad, ...]:
    op = "dropout_backward"

    def call(i: Inputs, n: int = 64, words: int = 2, dtype: torch.dtype = torch.int32) -> Any:
        return torch.ones(n, device=i.device), torch.ones(words, dtype=dtype, device=i.device), P

    return (
        Bad(
            "integers",
            lambda i: (call(i)[0].int(), *call(i)[1:]),
            rf"{op}: expected grad to be a floating-point tensor, got torch\.int32",
        ),
        Bad(
            "mask of another dtype",
            lambda i: call(i, dtype=torch.uint8),
            rf"{op}: expected mask to have dtype torch\.int32, got torch\.uint8",
        ),
        Bad(
            "short mask",
            lambda i: call(i, 65),
            rf"{op}: expected mask to have shape \(3,\), a bit for each element of grad, "
            r"got \(2,\)",
        ),
        Bad(
            "mask on the CPU",
            lambda i: (call(i)[0], call(i)[1].cpu(), P),
            rf"{op}: expected mask to be on cuda:\d+ like grad, got cpu",
            cuda_only=True,
        ),
        Bad(
            "p above 1",
            lambda i: (*call(i)[:2], 1.5),
            rf"{op}: expected p to be between 0 and 1, got 1\.5",
        ),
        Bad(
            "a pack across a boundary",
            lambda i: (call(i, 65)[0][1:], *call(i)[1:]),
            f"{op}.*needs grad aligned to 16 bytes",
            variant="f32x4_pack_stream",
        ),
    )


# --- properties -----------------------------------------------------------------------------------


def drops_what_philox_says(dropout: Any, inputs: Inputs) -> None:
    """The mask, bit by bit, and zeros nowhere else."""
    x = inputs.plain(5, 999).abs() + 1
    y, mask = dropout(x.to(inputs.dtype), 0.3, SEED, OFFSET)
    kept = philox.keep_mask(x.shape, 0.3, SEED, OFFSET, x.device).view(-1)
    assert torch.equal(y.view(-1) != 0, kept)
    element = torch.arange(kept.numel(), device=x.device)
    bits = (mask[element // 32].long() >> (element % 32)) & 1
    assert torch.equal(bits.bool(), kept)


def keeps_all(dropout: Any, inputs: Inputs) -> None:
    x = inputs.randn(1000)
    y, mask = dropout(x, 0.0)
    assert torch.equal(y, x)
    assert (mask[:31] == -1).all()
    assert mask[31] == (1 << 8) - 1


def keeps_none(dropout: Any, inputs: Inputs) -> None:
    y, mask = dropout(inputs.randn(1000), 1.0)
    assert (y == 0).all()
    assert (mask == 0).all()


def alone_is_dropout(bias_dropout_add: Any, inputs: Inputs) -> None:
    x = inputs.randn(33, 65)
    ours = bias_dropout_add(x, None, None, P, SEED, OFFSET)
    theirs = torch.ops.warpsmith.dropout(x, P, SEED, OFFSET)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


# --- benchmarks -----------------------------------------------------------------------------------


def bench() -> tuple[Sample, ...]:
    """[rows, 4096] of 16, 64 and 256 Mi elements."""
    return tuple(
        Sample(label, lambda i, r=rows: (i.plain(r, common.COLS), *_drawn()), small=False)  # type: ignore[misc]
        for label, rows in common.ROWS.items()
    )


def fused_bench() -> tuple[Sample, ...]:
    """The same beside a bias and a residual; and with nothing dropped."""

    def of(rows: int, p: float) -> Make:
        return lambda i: (
            i.plain(rows, common.COLS),
            i.plain(common.COLS, salt=1),
            i.plain(rows, common.COLS, salt=2),
            *_drawn(p),
        )

    return (
        *(Sample(label, of(rows, P), small=False) for label, rows in common.ROWS.items()),
        Sample("64Mi, p = 0", of(common.ROWS["64Mi"], 0.0), small=False),
    )


def backward_bench(pack_mask: PackMask) -> tuple[Sample, ...]:
    return tuple(
        Sample(
            label,
            lambda i, r=rows: _masked(i, pack_mask, i.plain(r, common.COLS)),  # type: ignore[misc]
            small=False,
        )
        for label, rows in common.ROWS.items()
    )
