"""Calls on which cross-entropy and its gradient are tested and measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs, Sample
from warpsmith.spec.accuracy import as_tuple

IGNORE_INDEX = -100

# --- ingredients ----------------------------------------------------------------------------------


def classes(
    inputs: Inputs,
    rows: int,
    count: int,
    *,
    ignore: int | None = None,
    dtype: torch.dtype = torch.int64,
) -> Tensor:
    """An index below `count` per row; every third is `ignore`, where that is given."""
    generator = inputs.generator((rows, count, 7))
    target = torch.randint(0, count, (rows,), generator=generator, device=inputs.device)
    if ignore is not None:
        target[1::3] = ignore
    return target.to(dtype)


def per_row(inputs: Inputs, rows: int, salt: int) -> Tensor:
    return inputs.plain(rows, salt=salt).float()


def _call(logits: Tensor, inputs: Inputs, **options: Any) -> tuple[Any, ...]:
    return logits, classes(inputs, *logits.shape, **options)


def _rows(rows: int, cols: int, *, small: bool = True) -> Sample:
    return Sample(f"{rows}x{cols}", lambda i: _call(i.randn(rows, cols), i), small=small)


def _special(inputs: Inputs) -> Tensor:
    """Rows with NaN, infinities of either sign, nothing but one of them, and an ordinary one."""
    x = inputs.randn(7, 64)
    x[0, 3] = math.nan
    x[1, 5] = math.inf
    x[2, 7], x[2, 8] = -math.inf, math.inf
    x[3, ::2] = -math.inf
    x[4] = -math.inf
    x[5] = math.nan
    return x


def _outlier(inputs: Inputs) -> Tensor:
    x = inputs.plain(5, 1000) * 1e-2
    x[:, 500] = 300.0
    return x


# --- samples --------------------------------------------------------------------------------------


def samples() -> tuple[Sample, ...]:
    widths = (1, 2, 3, 7, 16, 63, 64, 255, 256, 511, 1000, 1023, 1024, 2047, 4096)
    rows = (1, 3, 199)
    grid = [_rows(rows[k % 3], n) for k, n in enumerate(widths)]
    grid += [
        _rows(m, n, small=False)
        for m, n in (
            (199, 65), (1030, 96), (300, 1024), (37, 1128), (37, 2048), (5, 8192), (3, 12345),
            (300, 4100), (3, 32000), (9, 50257), (2, 128256), (1, 262144), (2, 300001),
        )
    ]  # fmt: skip
    return (
        *grid,
        Sample("int32", lambda i: _call(i.randn(9, 100), i, dtype=torch.int32)),
        Sample(
            "int32, long",
            lambda i: _call(i.randn(9, 50257), i, dtype=torch.int32, ignore=IGNORE_INDEX),
            small=False,
        ),
        Sample("ignored rows", lambda i: _call(i.randn(10, 129), i, ignore=IGNORE_INDEX)),
        Sample(
            "ignored rows, long",
            lambda i: _call(i.randn(10, 40000), i, ignore=IGNORE_INDEX),
            small=False,
        ),
        Sample("ignored class", lambda i: (*_call(i.randn(10, 129), i, ignore=0), 0)),
        Sample(
            "all ignored", lambda i: (i.randn(4, 64), classes(i, 4, 64).fill_(-1), -1)
        ),
        Sample("smoothing", lambda i: (*_call(i.randn(9, 100), i), IGNORE_INDEX, 0.1)),
        Sample("smoothing, odd", lambda i: (*_call(i.randn(9, 127), i), IGNORE_INDEX, 0.25)),
        Sample(
            "smoothing, middling",
            lambda i: (*_call(i.randn(9, 5001), i), IGNORE_INDEX, 0.1),
            small=False,
        ),
        Sample(
            "smoothing, long",
            lambda i: (*_call(i.randn(9, 50257), i), IGNORE_INDEX, 0.1),
            small=False,
        ),
        Sample("smoothing, a class", lambda i: (*_call(i.randn(9, 1), i), IGNORE_INDEX, 0.1)),
        Sample("nothing but smoothing", lambda i: (*_call(i.randn(9, 33), i), IGNORE_INDEX, 1.0)),
        Sample("z-loss", lambda i: (*_call(i.randn(9, 100), i), IGNORE_INDEX, 0.0, 1e-4)),
        Sample(
            "everything",
            lambda i: (*_call(i.randn(9, 100), i, ignore=3), 3, 0.1, 1e-3),
        ),
        Sample(
            "everything, long",
            lambda i: (*_call(i.randn(9, 40001), i, ignore=3), 3, 0.1, 1e-3),
            small=False,
        ),
        Sample(
            "many short rows", lambda i: _call(i.randn(1_300_003, 13), i), small=False, huge=True
        ),
        Sample("no rows", lambda i: _call(i.randn(0, 16), i)),
        Sample("row stride", lambda i: _call(i.randn(9, 320)[:, :256], i)),
        Sample("odd row stride", lambda i: _call(i.randn(9, 259)[:, :256], i)),
        Sample(
            "row stride, long", lambda i: _call(i.randn(3, 70000)[:, :50257], i), small=False
        ),
        Sample("columns on the right", lambda i: _call(i.randn(9, 260)[:, 3:], i)),
        Sample("expanded rows", lambda i: _call(i.randn(1, 64).expand(6, 64), i)),
        Sample("transposed", lambda i: _call(i.randn(64, 24).t(), i)),
        Sample("stepped", lambda i: _call(i.randn(5, 200)[:, ::2], i)),
        Sample("misaligned", lambda i: _call(i.misaligned(5, 256), i)),
        Sample("misaligned, odd", lambda i: _call(i.misaligned(11, 101, offset=3), i)),
        Sample(
            "misaligned, long", lambda i: _call(i.misaligned(5, 20001, offset=5), i), small=False
        ),
        Sample(
            "strided target", lambda i: (i.randn(6, 64), classes(i, 12, 64)[::2])
        ),
        Sample(
            "one target", lambda i: (i.randn(6, 64), classes(i, 1, 64).expand(6))
        ),
        Sample("large logits", lambda i: _call(i.plain(5, 1000, scale=1e4), i)),
        Sample("times 100", lambda i: _call(i.plain(5, 1000, scale=100.0), i)),
        Sample("one outlier", lambda i: _call(_outlier(i), i)),
        Sample("equal logits", lambda i: _call(i.plain(5, 257) * 0 + 3, i)),
        Sample("special", lambda i: _call(_special(i), i)),
        Sample("special, smoothing", lambda i: (*_call(_special(i), i), IGNORE_INDEX, 0.1, 1e-3)),
        Sample(
            "rows past 2^31 elements",
            lambda i: _call(i.plain(257, (1 << 23) + 8)[:, :1000], i),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
        Sample(
            "many rows", lambda i: _call(i.randn(70_003, 500), i), small=False, huge=True
        ),
    )  # fmt: skip


def _options(call: tuple[Any, ...]) -> tuple[Any, ...]:
    """Logits and target, then what follows, with the defaults filled in."""
    return (*call, *(IGNORE_INDEX, 0.0, 0.0)[len(call) - 2 :])


#: Logits and gradient of more than 2^31 elements.
_WIDE_AND_LONG = (16800, 128256)


def with_grad_samples() -> tuple[Sample, ...]:
    def plain(sample: Sample) -> Sample:
        def make(inputs: Inputs) -> tuple[Any, ...]:
            logits, target, *options = _options(sample.make(inputs))
            return logits, target, None, *options

        return Sample(sample.label, make, sample.small, sample.huge, sample.dtypes)

    return (
        *(plain(s) for s in samples()),
        Sample(
            "weighted rows",
            lambda i: (*_call(i.randn(9, 100), i, ignore=IGNORE_INDEX), per_row(i, 9, 3)),
        ),
        Sample(
            "one weight for all rows",
            lambda i: (*_call(i.randn(9, 1001), i), per_row(i, 1, 3).expand(9)),
        ),
        Sample(
            "weighted rows, long",
            lambda i: (*_call(i.randn(5, 50264)[:, :50257], i), per_row(i, 10, 3)[::2]),
            small=False,
        ),
        Sample(
            "past 2^31 elements",
            lambda i: (*_call(i.plain(*_WIDE_AND_LONG), i), None),
            small=False,
            huge=True,
            dtypes=("f16",),
        ),
    )


def _with_gradients(call: tuple[Any, ...], inputs: Inputs) -> tuple[Any, ...]:
    """The same call, backwards: lse and the gradients of loss and lse after the target."""
    logits, target, *options = _options(call)
    lse = logits.float().logsumexp(-1).masked_fill(target == options[0], 0.0)
    rows = logits.shape[0]
    return logits, target, lse, per_row(inputs, rows, 3), per_row(inputs, rows, 4), *options


def backward_samples() -> tuple[Sample, ...]:
    def backwards(sample: Sample) -> Sample:
        return Sample(
            sample.label,
            lambda i: _with_gradients(sample.make(i), i),
            sample.small,
            sample.huge,
            sample.dtypes,
        )

    def expanded(inputs: Inputs) -> tuple[Any, ...]:
        logits, target, lse, *_ = _with_gradients(_call(inputs.randn(9, 100), inputs), inputs)
        one = per_row(inputs, 1, 3).expand(9)
        return logits, target, lse, one, torch.zeros_like(one)

    def strided(inputs: Inputs) -> tuple[Any, ...]:
        logits, target, lse, *_ = _with_gradients(_call(inputs.randn(9, 100), inputs), inputs)
        apart = per_row(inputs, 18, 3)
        return logits, target, torch.stack((lse, lse), 1)[:, 0], apart[::2], apart[1::2]

    return (
        *(backwards(s) for s in samples()),
        Sample("expanded gradient", expanded),
        Sample("strided gradients", strided),
        backwards(
            Sample(
                "past 2^31 elements",
                lambda i: _call(i.plain(*_WIDE_AND_LONG), i),
                small=False,
                huge=True,
                dtypes=("f16",),
            )
        ),
    )


BENCH_SHAPES = (
    (262144, 1000),
    (32768, 32000),
    (8192, 50257),
    (8192, 128256),
    (64, 128256),
)


def _bench(rows: int, cols: int, make: Callable[[Inputs], tuple[Any, ...]]) -> Sample:
    return Sample(f"{rows}x{cols}", make, small=False)


def bench(rows: int, cols: int) -> Sample:
    return _bench(rows, cols, lambda i: _call(i.plain(rows, cols), i))


def bench_with_grad(rows: int, cols: int) -> Sample:
    return _bench(rows, cols, lambda i: (*_call(i.plain(rows, cols), i), None))


def bench_backward(rows: int, cols: int) -> Sample:
    def make(inputs: Inputs) -> tuple[Any, ...]:
        call = _with_gradients(_call(inputs.plain(rows, cols), inputs), inputs)
        return (*call[:4], torch.zeros_like(call[4]), *call[5:])

    return _bench(rows, cols, make)


# --- bad calls ------------------------------------------------------------------------------------


def _errors(
    op: str, rest: Callable[[Inputs, int], tuple[Any, ...]], between: tuple[None, ...] = ()
) -> tuple[Bad, ...]:
    """What none of the operators takes; `rest` makes what follows the target, for so many rows,
    `between` stands for what else comes before the options.
    """

    def target(inputs: Inputs, *values: int) -> Tensor:
        return torch.tensor(values, device=inputs.device)

    def beyond(share: float) -> Bad:
        return Bad(
            f"label smoothing {share:g}",
            lambda i: (i.randn(2, 8), target(i, 0, 1), *rest(i, 2), *between, IGNORE_INDEX, share),
            rf"{op}: expected label_smoothing to be between 0 and 1, got {share:g}",
        )

    return (
        Bad(
            "integer logits",
            lambda i: (torch.ones(2, 8, device=i.device).int(), target(i, 0, 1), *rest(i, 2)),
            rf"{op}: expected logits to be a floating-point tensor, got torch\.int32",
        ),
        Bad(
            "1-d logits",
            lambda i: (i.randn(8), target(i, 0), *rest(i, 1)),
            rf"{op}: expected logits to have 2 dimensions, got shape \(8,\)",
        ),
        Bad(
            "no classes",
            lambda i: (i.randn(2, 0), target(i, 0, 0), *rest(i, 2)),
            rf"{op}: expected logits to have at least 1 class, got shape \(2, 0\)",
        ),
        Bad(
            "floating-point target",
            lambda i: (i.randn(2, 8), target(i, 0, 1).float(), *rest(i, 2)),
            rf"{op}: expected target to have dtype torch\.int64 or torch\.int32, "
            r"got torch\.float32",
        ),
        Bad(
            "too few targets",
            lambda i: (i.randn(2, 8), target(i, 0), *rest(i, 2)),
            rf"{op}: expected target to have shape \(2,\), one class per row of logits, "
            r"got \(1,\)",
        ),
        Bad(
            "2-d target",
            lambda i: (i.randn(2, 8), target(i, 0, 1)[:, None], *rest(i, 2)),
            rf"{op}: expected target to have shape \(2,\), .*, got \(2, 1\)",
        ),
        Bad(
            "target on the CPU",
            lambda i: (i.randn(2, 8), torch.tensor([0, 1]), *rest(i, 2)),
            rf"{op}: expected target to be on cuda:\d+ like logits, got cpu",
            cuda_only=True,
        ),
        *(beyond(share) for share in (-0.5, 1.5, math.nan)),
    )


def _long_row(inputs: Inputs, dtype: torch.dtype, cols: int) -> tuple[Any, ...]:
    return _call(Inputs(dtype, inputs.device).plain(1, cols), inputs)


ERRORS = (
    *_errors("cross_entropy_forward", lambda i, rows: ()),
    Bad(
        "warp, row too long",
        lambda i: _long_row(i, torch.float32, 1025),
        r"cross_entropy_forward.*: .*needs rows of at most 4 KiB",
        variant="f32x4_pack_warp",
    ),
    Bad(
        "variant of another dtype",
        lambda i: _long_row(i, torch.float32, 8),
        r"cross_entropy_forward_bf16_online_f32: takes bf16, got f32",
        variant="bf16_online_f32",
    ),
)

WITH_GRAD_ERRORS = (
    *_errors("cross_entropy_with_grad", lambda i, rows: (), between=(None,)),
    Bad(
        "weights of another dtype",
        lambda i: (*_call(i.randn(2, 8), i), per_row(i, 2, 3).double()),
        r"cross_entropy_with_grad: expected grad_loss to have dtype torch\.float32, "
        r"got torch\.float64",
    ),
    Bad(
        "too few weights",
        lambda i: (*_call(i.randn(2, 8), i), per_row(i, 1, 3)),
        r"cross_entropy_with_grad: expected grad_loss to have shape \(2,\), one number per row of "
        r"logits, got \(1,\)",
    ),
    Bad(
        "weights on the CPU",
        lambda i: (*_call(i.randn(2, 8), i), torch.ones(2)),
        r"cross_entropy_with_grad: expected grad_loss to be on cuda:\d+ like logits, got cpu",
        cuda_only=True,
    ),
    Bad(
        "pack, misaligned",
        lambda i: _call(Inputs(torch.float32, i.device).misaligned(2, 8), i),
        r"cross_entropy_with_grad.*: .*needs logits and gradient at the same offset from 16 bytes",
        variant="f32x4_pack",
    ),
    Bad(
        "registers, row too long",
        lambda i: _long_row(i, torch.float32, 16385),
        r"cross_entropy_with_grad.*: .*needs rows of at most 64 KiB",
        variant="f32x4_pack_registers",
    ),
)

BACKWARD_ERRORS = (
    *_errors("cross_entropy_backward", lambda i, rows: (per_row(i, rows, 3),) * 3),
    Bad(
        "lse of another dtype",
        lambda i: (*_call(i.randn(2, 8), i), per_row(i, 2, 3).double(), *(per_row(i, 2, 4),) * 2),
        r"cross_entropy_backward: expected lse to have dtype torch\.float32, got torch\.float64",
    ),
    Bad(
        "gradient of one number",
        lambda i: (*_call(i.randn(2, 8), i), per_row(i, 2, 3), per_row(i, 1, 4), per_row(i, 2, 5)),
        r"cross_entropy_backward: expected grad_loss to have shape \(2,\), .*, got \(1,\)",
    ),
    Bad(
        "gradient of lse on the CPU",
        lambda i: (*_call(i.randn(2, 8), i), *(per_row(i, 2, 3),) * 2, torch.ones(2)),
        r"cross_entropy_backward: expected grad_lse to be on cuda:\d+ like logits, got cpu",
        cuda_only=True,
    ),
)


# --- properties -----------------------------------------------------------------------------------


def _judge_no_such_class(
    function: Callable[..., Any], inputs: Inputs, call: tuple[Any, ...], logits: Tensor
) -> None:
    """On a GPU a target that is no class spoils its row, and nothing else; on a CPU it raises."""
    wrong = classes(inputs, *logits.shape)
    right = wrong.clone()
    wrong[1], wrong[3] = logits.shape[1], -1
    if logits.device.type != "cuda":
        try:
            function(logits, wrong, *call)
        except (IndexError, RuntimeError):
            return
        raise AssertionError("took a target that is no class")
    spoilt, whole = function(logits, wrong, *call), function(logits, right, *call)
    pairs = zip(*((o,) if isinstance(o, Tensor) else o for o in (spoilt, whole)), strict=True)
    for index, (bad, good) in enumerate(pairs):
        for row in range(logits.shape[0]):
            if row not in (1, 3):
                assert torch.equal(bad[row], good[row]), f"output {index}: row {row} changed"
            elif good.dim() == 2 or index == 0:  # the loss, or a gradient
                assert bool(bad[row].isnan().all()), f"output {index}: row {row} is not NaN"


def no_such_class(function: Callable[..., Any], inputs: Inputs) -> None:
    for cols in (33, 1500, 20001):
        _judge_no_such_class(function, inputs, (), inputs.randn(5, cols))


def no_such_class_backward(function: Callable[..., Any], inputs: Inputs) -> None:
    for cols in (33, 1500, 20001):
        logits = inputs.randn(5, cols)
        lse = logits.float().logsumexp(-1)
        _judge_no_such_class(function, inputs, (lse, torch.ones_like(lse), lse * 0), logits)


def shift_invariant(function: Callable[..., Any], inputs: Inputs) -> None:
    """Adding a number to a row's logits changes its lse by that number, and its loss not at all:
    integers, of which every dtype holds all up to 256, are moved without a rounding.
    """
    logits = inputs.plain(5, 129).mul_(2).round_().clamp_(-8, 8)
    target = classes(inputs, 5, 129)
    loss, lse = function(logits, target)
    moved_loss, moved_lse = function(logits + 64, target)
    torch.testing.assert_close(moved_loss, loss, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(moved_lse, lse + 64, rtol=1e-6, atol=0.0)


def uniform(function: Callable[..., Any], inputs: Inputs) -> None:
    """Equal logits leave every class as likely as any other."""
    for cols in (1, 7, 1000, 5001):
        logits = torch.full((3, cols), 5.0, dtype=inputs.dtype, device=inputs.device)
        loss, lse = function(logits, classes(inputs, 3, cols), IGNORE_INDEX, 0.1)
        wanted = torch.full_like(loss, math.log(cols))
        torch.testing.assert_close(loss, wanted, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(lse, wanted + 5.0, rtol=1e-6, atol=0.0)


def rows_independent(function: Callable[..., Any], inputs: Inputs) -> None:
    for cols in (264, 5001):
        logits, target = inputs.randn(6, cols), classes(inputs, 6, cols)
        changed = logits.clone()
        changed[2] = inputs.randn(cols, salt=3)
        rest = [0, 1, 3, 4, 5]
        for before, after in zip(function(logits, target), function(changed, target), strict=True):
            assert torch.equal(before[rest], after[rest]), "a row's result depends on another row"


def repeatable(
    call: Callable[[Inputs, int, int], tuple[Any, ...]],
) -> Callable[[Callable[..., Any], Inputs], None]:
    """The property that two runs agree in every bit; `call` makes the arguments for a shape."""

    def check(function: Callable[..., Any], inputs: Inputs) -> None:
        for rows, cols in ((9, 101), (5, 5001), (2, 40000)):
            args = call(inputs, rows, cols)
            first, second = (as_tuple(function(*args)) for _ in range(2))
            assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True)), (
                f"two calls differ at {rows}x{cols}"
            )

    return check


def with_grad_call(inputs: Inputs, rows: int, cols: int) -> tuple[Any, ...]:
    return (*_call(inputs.randn(rows, cols), inputs), None, IGNORE_INDEX, 0.1, 1e-3)


def backward_call(inputs: Inputs, rows: int, cols: int) -> tuple[Any, ...]:
    return _with_gradients(_call(inputs.randn(rows, cols), inputs), inputs)


def gradient_sums_to_zero(function: Callable[..., Any], inputs: Inputs) -> None:
    """A row's softmax and its smoothed target both sum to one. Allowed: an error of each value, and
    one that all of a row share, of the float32 sum that they are divided by; a sum by halves is
    log2(cols) additions deep. (PyTorch's own softmax is off by 2 eps on some CPUs.)
    """
    for cols in (100, 5001):
        logits, target = inputs.plain(5, cols), classes(inputs, 5, cols)
        dlogits = function(logits, target, None, IGNORE_INDEX, 0.1)[2].double()
        rounding = torch.finfo(inputs.dtype).eps * dlogits.abs().sum(-1)
        rounding += torch.finfo(torch.float32).eps * math.log2(cols)
        assert bool((dlogits.sum(-1).abs() <= rounding).all())
