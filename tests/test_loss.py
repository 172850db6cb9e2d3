"""What the losses do beyond their operators: reductions, gradients in place, the fused layer."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import warpsmith
from conftest import GPU
from warpsmith.core import dispatch
from warpsmith.core.catalogue import DTYPES, Inputs
from warpsmith.loss.cross_entropy_cases import classes
from warpsmith.loss.fused_linear_cross_entropy import (
    CHUNK_BYTES,
    CHUNKS,
    LEAST_CHUNKS,
    LEAST_ROWS,
    ROW_TILE,
    _class_blocks,
    default_chunk,
)

DEVICE = "cuda" if GPU else "cpu"
BACKEND = "inductor" if GPU else "aot_eager"
REDUCTIONS = ("none", "mean", "sum")
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ignored": {"ignore_index": 3},
    "smoothed": {"label_smoothing": 0.2, "z_loss": 1e-3},
}
#: The gradient is written over the logits of these.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "row stride": lambda x: F.pad(x, (0, 3))[:, : x.shape[1]],
    "right columns": lambda x: F.pad(x, (3, 0))[:, 3:],
    "transposed": lambda x: x.t().contiguous().t(),
    "stepped": lambda x: x.repeat_interleave(2, 1)[:, ::2],
}


def logits_and_target(
    rows: int, cols: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    inputs = Inputs(dtype, DEVICE)
    return inputs.randn(rows, cols), classes(inputs, rows, cols, ignore=3)


def expected(logits: Tensor, target: Tensor, reduction: str, **options: Any) -> Tensor:
    """In float64, with the z-loss that PyTorch does not have."""
    options = dict(options)
    z_loss, ignore = options.pop("z_loss", 0.0), options.get("ignore_index", -100)
    wide = logits.double()
    loss = F.cross_entropy(wide, target.long(), reduction="none", **options)
    loss = loss + z_loss * wide.logsumexp(-1).square().masked_fill(target == ignore, 0.0)
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / (target != ignore).sum()


# --- cross-entropy --------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_cross_entropy_reduces_as_pytorch(
    dtype: str, reduction: str, options: dict[str, Any]
) -> None:
    logits, target = logits_and_target(33, 101, DTYPES[dtype])
    logits.requires_grad_()
    loss = warpsmith.cross_entropy(logits, target, reduction=reduction, **options)
    wanted = expected(logits, target, reduction, **options)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-6, atol=1e-5)
    (ours,) = torch.autograd.grad(loss.sum(), logits)
    (theirs,) = torch.autograd.grad(wanted.sum(), logits)
    # A softmax in f32 is off by the rounding of its exponent, which is as large as the logits.
    relative = 2 * torch.finfo(logits.dtype).eps + 2 * 30 * torch.finfo(torch.float32).eps
    rounding = relative * float(theirs.abs().max())
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=rounding)


def test_mean_over_nothing_is_nan_without_a_gradient() -> None:
    logits, _ = logits_and_target(4, 16)
    target = torch.full((4,), -100, device=DEVICE)
    loss = warpsmith.cross_entropy(logits.requires_grad_(), target)
    assert bool(loss.isnan())
    loss.backward()
    assert logits.grad is not None
    assert not bool(logits.grad.any())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(9, 100), (5, 1001), (2, 40001)], ids=str)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_gradient_takes_the_place_of_the_logits(
    dtype: str, shape: tuple[int, int], layout: str
) -> None:
    plain, target = logits_and_target(*shape, DTYPES[dtype])
    logits = LAYOUTS[layout](plain.clone()).requires_grad_()
    assert torch.equal(logits, plain)
    options: dict[str, Any] = {"ignore_index": 3, "label_smoothing": 0.1}
    loss = warpsmith.cross_entropy(logits, target, inplace_backward=True, **options)
    (ours,) = torch.autograd.grad(loss, logits)
    assert ours.data_ptr() == logits.data_ptr()
    assert ours.stride() == logits.stride()
    plain.requires_grad_()
    (wanted,) = torch.autograd.grad(warpsmith.cross_entropy(plain, target, **options), plain)
    torch.testing.assert_close(ours, wanted, rtol=0.0, atol=0.0)


def test_memory_beside_the_logits_is_left_alone() -> None:
    """The gradient of some columns of a larger tensor, over the logits."""
    storage = Inputs(torch.float32, DEVICE).randn(7, 140)
    before = storage.clone()
    logits = storage[:, 5:132]
    target = classes(Inputs(device=DEVICE), 7, 127)
    torch.ops.warpsmith.cross_entropy_with_grad_(logits, target)
    assert torch.equal(storage[:, :5], before[:, :5])
    assert torch.equal(storage[:, 132:], before[:, 132:])
    assert not torch.equal(logits, before[:, 5:132])


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(70_003, 500), (300_007, 121)], ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_many_short_rows_in_place(dtype: str, shape: tuple[int, int]) -> None:
    """A lane reads the target's logit of a row that others of its group write to later."""
    logits, target = logits_and_target(*shape, DTYPES[dtype])
    wanted = torch.ops.warpsmith.cross_entropy_with_grad(logits, target)
    found = torch.ops.warpsmith.cross_entropy_with_grad_(logits, target)
    assert dispatch.last_rung("loss/cross_entropy_with_grad") == "rows"
    for ours, theirs in zip((*found, logits), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.0, atol=0.0)


def test_backward_in_place_runs_once() -> None:
    logits, target = logits_and_target(4, 16)
    logits.requires_grad_()
    loss = warpsmith.cross_entropy(logits * 1, target, inplace_backward=True)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_whoever_else_needs_the_logits_is_told() -> None:
    x, target = logits_and_target(4, 16)
    logits = x.requires_grad_() * 1
    other = logits.square().sum()  # its backward reads the logits
    loss = warpsmith.cross_entropy(logits, target, inplace_backward=True)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        other.backward()


def test_expanded_logits_are_not_written_to() -> None:
    logits = torch.zeros(1, 16, device=DEVICE).expand(4, 16)
    target = torch.zeros(4, dtype=torch.int64, device=DEVICE)
    with pytest.raises(RuntimeError, match="cross_entropy_with_grad: expected logits that are not"):
        torch.ops.warpsmith.cross_entropy_with_grad_(logits, target)


def test_operators_in_place_lose_no_gradient() -> None:
    logits, target = logits_and_target(5, 24)
    rows = torch.ones(5, device=DEVICE, requires_grad=True)
    operators = torch.ops.warpsmith
    for call in (
        lambda: operators.cross_entropy_with_grad_(logits, target, rows),
        lambda: operators.cross_entropy_backward_(logits, target, rows, rows, rows),
    ):
        with pytest.raises(RuntimeError, match=r"^cross_entropy_.*_: not differentiable; expected"):
            call()
    with torch.no_grad():
        operators.cross_entropy_with_grad_(logits, target, rows)
    assert logits._version > 0


@pytest.mark.parametrize("index", [0, 2], ids=["backward", "with_grad"])
def test_operators_in_place_satisfy_opcheck(index: int) -> None:
    logits, target = logits_and_target(5, 24)
    rows = torch.ones(5, device=DEVICE)
    if index == 0:
        op, args = torch.ops.warpsmith.cross_entropy_backward_, (rows, rows, rows)
    else:
        op, args = torch.ops.warpsmith.cross_entropy_with_grad_, (rows,)
    assert op.default._schema.is_mutable
    torch.library.opcheck(op.default, (logits, target, *args))


@pytest.mark.parametrize("inplace", [False, True])
def test_cross_entropy_compiles(inplace: bool) -> None:
    logits, target = logits_and_target(9, 40)

    def step(x: Tensor) -> Tensor:
        return warpsmith.cross_entropy(x * 2, target, ignore_index=3, inplace_backward=inplace)

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend=BACKEND)
    found = []
    for function in (step, compiled):
        x = logits.clone().requires_grad_()
        loss = function(x)
        found.append((loss.detach(), *torch.autograd.grad(loss, x)))
    torch.testing.assert_close(found[0], found[1])


def test_unknown_reductions_are_refused() -> None:
    x, target = logits_and_target(2, 8)
    for function in (
        functools.partial(warpsmith.cross_entropy, x),
        functools.partial(warpsmith.bce_with_logits, x),
        functools.partial(warpsmith.fused_linear_cross_entropy, x, x),
    ):
        with pytest.raises(ValueError, match="expected reduction to be one of 'none', 'mean'"):
            function(target, reduction="average")


def test_variants_are_reached_by_name() -> None:
    logits, target = logits_and_target(9, 40)
    ours = warpsmith.cross_entropy(logits, target, variant="f32_online")
    torch.testing.assert_close(ours, warpsmith.cross_entropy(logits, target))
    with pytest.raises(ValueError, match="unknown variant 'no_such'"):
        warpsmith.cross_entropy(logits, target, variant="no_such")


# --- binary cross-entropy -------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_bce_reduces_as_pytorch(dtype: str, reduction: str) -> None:
    inputs = Inputs(DTYPES[dtype], DEVICE)
    x = inputs.randn(7, 33).requires_grad_()
    target = inputs.plain(7, 33, salt=1).sigmoid().requires_grad_()
    loss = warpsmith.bce_with_logits(x, target, reduction=reduction)
    wanted = F.binary_cross_entropy_with_logits(x.double(), target.double(), reduction=reduction)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-6, atol=1e-5)
    ours = torch.autograd.grad(loss.sum(), (x, target))
    theirs = torch.autograd.grad(wanted.sum(), (x, target))
    for our, their in zip(ours, theirs, strict=True):
        rounding = 2 * torch.finfo(x.dtype).eps * float(their.abs().max())
        torch.testing.assert_close(our, their, rtol=0.0, atol=rounding)


# --- the fused layer ------------------------------------------------------------------------------


def layer(
    rows: int, width: int, count: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inputs = Inputs(dtype, DEVICE)
    x, weight = inputs.plain(rows, width), inputs.plain(count, width, salt=1) * width**-0.5
    bias = inputs.plain(count, salt=2)
    return (
        x.requires_grad_(),
        weight.requires_grad_(),
        classes(inputs, rows, count, ignore=3),
        bias.requires_grad_(),
    )


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("chunk_rows", [None, 16, 7])
def test_fused_layer_is_the_layer_and_the_loss(
    chunk_rows: int | None, with_bias: bool, reduction: str, options: dict[str, Any]
) -> None:
    x, weight, target, bias = layer(45, 24, 101)
    given = bias if with_bias else None
    leaves = (x, weight, bias) if with_bias else (x, weight)
    ours = warpsmith.fused_linear_cross_entropy(
        x, weight, target, given, reduction=reduction, chunk_rows=chunk_rows, **options
    )
    wanted = expected(F.linear(x, weight, given), target, reduction, **options)
    torch.testing.assert_close(ours, wanted, rtol=1e-12, atol=1e-12)
    gradients = torch.autograd.grad(3 * ours, leaves)
    for our, their in zip(gradients, torch.autograd.grad(3 * wanted, leaves), strict=True):
        torch.testing.assert_close(our, their, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("accumulate_f32", [False, True])
@pytest.mark.parametrize("chunk_rows", [None, 128])
def test_fused_layer_is_as_accurate_as_pytorch(
    chunk_rows: int | None, accumulate_f32: bool, dtype: str
) -> None:
    """At an odd number of classes, over several chunks. PyTorch too rounds the logits and their
    gradient to the dtype; summed in it, dW is rounded once more for every chunk but the first.
    The error of a mean is one draw, which for PyTorch may come out near zero: four standard
    deviations of it, from the errors of PyTorch's rows, are allowed as well.
    """
    chunks = 3 if chunk_rows else 2
    leaves = layer(384, 64, 257, DTYPES[dtype])
    x, weight, target, bias = leaves

    def gradients(loss: Tensor, of: tuple[Tensor, ...]) -> list[Tensor]:
        return [loss.detach().double(), *(g.double() for g in torch.autograd.grad(loss, of))]

    ours = warpsmith.fused_linear_cross_entropy(
        x, weight, target, bias, chunk_rows=chunk_rows, accumulate_f32=accumulate_f32
    )
    assert ours.dtype == torch.float32
    logits = F.linear(x, weight, bias).float()
    theirs = F.cross_entropy(logits, target)
    wide = tuple(t.detach().double().requires_grad_() for t in (x, weight, bias))
    exact = F.cross_entropy(F.linear(*wide), target)
    errors = F.cross_entropy(logits.double(), target, reduction="none") - F.cross_entropy(
        F.linear(*wide), target, reduction="none"
    )
    deviation = float(errors.detach().norm()) / int((target >= 0).sum())
    found = gradients(ours, (x, weight, bias))
    reference = gradients(theirs, (x, weight, bias))
    for our, their, right in zip(found, reference, gradients(exact, wide), strict=True):
        eps = torch.finfo(x.dtype if right.dim() else torch.float32).eps
        rounding = (1 if accumulate_f32 else chunks) * eps * float(right.abs().max())
        theirs_off = float((their - right).abs().max())
        allowed = 2 * theirs_off if right.dim() else max(2 * theirs_off, 4 * deviation)
        assert float((our - right).abs().max()) <= allowed + rounding


@pytest.mark.parametrize(
    ("dtype", "count", "lengths"),
    [
        ("bf16", 50257, [50256, 1]),
        ("f16", 32000, [32000]),
        ("bf16", 7, [7]),
        ("f32", 50257, [50256, 1]),
        ("f32", 11, [8, 3]),
    ],
)
def test_products_run_along_whole_pieces_of_rows(
    dtype: str, count: int, lengths: list[int]
) -> None:
    blocks = _class_blocks(count, torch.empty(0, dtype=DTYPES[dtype]))
    assert [len(range(count)[block]) for block in blocks] == lengths
    assert [i for block in blocks for i in range(count)[block]] == list(range(count))


def test_gradients_of_a_mean_over_many_rows_survive_f16() -> None:
    """Divided by the number of rows before the matrix products, they would underflow."""
    rows, count = 8192, 33
    x, weight, target, _ = layer(rows, 16, count, torch.float16)
    target = torch.arange(rows, device=DEVICE) % count
    scale = 65536.0  # as a gradient scaler multiplies the loss
    loss = warpsmith.fused_linear_cross_entropy(x, weight, target)
    (ours,) = torch.autograd.grad(loss * scale, x)
    wide = x.detach().double().requires_grad_()
    exact = F.cross_entropy(F.linear(wide, weight.detach().double()), target)
    (wanted,) = torch.autograd.grad(exact * scale, wide)
    error = (ours.double() - wanted).abs().max() / wanted.abs().max()
    assert float(error) < 4 * torch.finfo(torch.float16).eps


def test_fused_layer_gradcheck() -> None:
    x, weight, target, bias = layer(5, 3, 7)

    def loss(*leaves: Tensor) -> Tensor:
        return warpsmith.fused_linear_cross_entropy(
            leaves[0], leaves[1], target, leaves[2], ignore_index=3, label_smoothing=0.1,
            z_loss=1e-2, chunk_rows=2,
        )  # fmt: skip

    assert torch.autograd.gradcheck(loss, (x, weight, bias))


@pytest.mark.parametrize("accumulate_f32", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_layer_by_products_of_this_library(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, accumulate_f32: bool
) -> None:
    """As on sm_90, where tiles of its own multiply."""
    x, weight, target, bias = layer(45, 24, 104, dtype)
    leaves = (x, weight, bias)

    def run() -> tuple[Tensor, ...]:
        loss = warpsmith.fused_linear_cross_entropy(
            x, weight, target, bias, chunk_rows=16, accumulate_f32=accumulate_f32
        )
        return loss, *torch.autograd.grad(loss, leaves)

    module = sys.modules["warpsmith.loss.fused_linear_cross_entropy"]
    wanted = run()
    monkeypatch.setattr(module, "_has_tiles", lambda *_: True)
    monkeypatch.setattr(module, "_is_proven", lambda *_: True)
    if accumulate_f32 and dtype == torch.bfloat16:  # then PyTorch's are not called at all
        for name in ("mm", "addmm"):
            monkeypatch.delattr(torch, name)
    found = run()
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)


def test_fused_layer_backward_twice() -> None:
    x, weight, target, _ = layer(45, 24, 101)
    loss = warpsmith.fused_linear_cross_entropy(x, weight, target)
    first = torch.autograd.grad(loss, (x, weight), retain_graph=True)
    kept = [g.clone() for g in first]
    second = torch.autograd.grad(2 * loss, (x, weight))
    for a, b, c in zip(first, kept, second, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(2 * a, c)


@pytest.mark.parametrize("frozen", ["x", "weight", "bias", "all"])
def test_fused_layer_computes_what_is_asked_for(frozen: str) -> None:
    tensors = dict(zip(("x", "weight", "target", "bias"), layer(45, 24, 101), strict=True))
    wanted = warpsmith.fused_linear_cross_entropy(*tensors.values())
    wanted.backward()
    for name, tensor in tensors.items():
        if frozen in (name, "all") and tensor.is_floating_point():
            tensors[name] = tensor.detach()
    loss = warpsmith.fused_linear_cross_entropy(*tensors.values())
    torch.testing.assert_close(loss, wanted)
    leaves = [t for t in tensors.values() if t.requires_grad]
    assert loss.requires_grad == bool(leaves)
    for leaf in leaves:
        (gradient,) = torch.autograd.grad(loss, leaf, retain_graph=True)
        torch.testing.assert_close(gradient, leaf.grad)


def test_fused_layer_without_rows_or_targets() -> None:
    x, weight, target, _ = layer(45, 24, 101)
    for rows, ignored in ((0, False), (45, True)):
        chosen = torch.full_like(target, -100) if ignored else target
        loss = warpsmith.fused_linear_cross_entropy(x[:rows], weight, chosen[:rows])
        assert bool(loss.isnan())
        for gradient in torch.autograd.grad(loss, (x, weight)):
            assert not bool(gradient.any())


def test_fused_layer_satisfies_opcheck() -> None:
    x, weight, target, bias = (t.detach() for t in layer(45, 24, 101, torch.float32))
    for given, flags in ((None, (True, True, False)), (bias, (False, True, True))):
        args = (x, weight, target, given, -100, 0.1, 1e-3, True, 16, False, *flags)
        torch.library.opcheck(torch.ops.warpsmith.fused_linear_cross_entropy.default, args)


def test_fused_layer_compiles() -> None:
    x, weight, target, bias = layer(45, 24, 101, torch.float32)

    def step(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return warpsmith.fused_linear_cross_entropy(x * 2, weight, target, bias, chunk_rows=16)

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend=BACKEND)
    found = []
    for function in (step, compiled):
        loss = function(x, weight, bias)
        found.append((loss.detach(), *torch.autograd.grad(loss, (x, weight, bias))))
    torch.testing.assert_close(found[0], found[1])


BAD_LAYERS: dict[str, tuple[Callable[..., tuple[Any, ...]], str]] = {
    "1-d x": (
        lambda x, w, t, b: (x[0], w, t, b),
        r"expected target to have shape \(\), one class per row of x, got \(45,\)",
    ),
    "target of other rows": (
        lambda x, w, t, b: (x.view(5, 9, 24), w, t.view(9, 5), b),
        r"expected target to have shape \(5, 9\), one class per row of x, got \(9, 5\)",
    ),
    "integer x": (lambda x, w, t, b: (x.long(), w, t, b), r"expected x to be a floating-point"),
    "weight of another width": (
        lambda x, w, t, b: (x, w[:, 1:], t, b),
        r"expected weight to have shape \(v, 24\), got \(101, 23\)",
    ),
    "weight of another dtype": (
        lambda x, w, t, b: (x, w.float(), t, b),
        r"expected weight to have dtype torch\.float64 like x, got torch\.float32",
    ),
    "no classes": (lambda x, w, t, b: (x, w[:0], t, b[:0]), r"expected weight to have at least 1"),
    "too few targets": (
        lambda x, w, t, b: (x, w, t[1:], b),
        r"expected target to have shape \(45,\), one class per row of x, got \(44,\)",
    ),
    "bias of another length": (
        lambda x, w, t, b: (x, w, t, b[1:]),
        r"expected bias to have shape \(101,\), the classes of weight, got \(100,\)",
    ),
}


@pytest.mark.parametrize("label", BAD_LAYERS)
def test_fused_layer_refuses(label: str) -> None:
    make, message = BAD_LAYERS[label]
    args = make(*(t.detach() for t in layer(45, 24, 101)))
    with pytest.raises(RuntimeError, match=f"fused_linear_cross_entropy: {message}"):
        warpsmith.fused_linear_cross_entropy(*args)


def test_chunks_are_even_and_large() -> None:
    for rows, row_bytes in ((8192, 256512), (9000, 256512), (100, 64), (8192, 8 << 20), (0, 64)):
        chunk = default_chunk(rows, row_bytes)
        assert chunk % ROW_TILE == 0
        assert chunk >= min(rows // CHUNKS, LEAST_ROWS)
        assert chunk * row_bytes <= max(CHUNK_BYTES, LEAST_ROWS * row_bytes)


@pytest.mark.parametrize("row_bytes", [64, 64000, 100608, 256512, 8 << 20])
def test_by_default_there_are_several_chunks(row_bytes: int) -> None:
    """However small the logits are: of more than a tile of rows never all are held, of many rows
    about a quarter.
    """
    for rows in (*range(ROW_TILE + 1, 20 * ROW_TILE, 37), 4096, 8192, 65536, 100001):
        chunk = default_chunk(rows, row_bytes)
        assert -(-rows // chunk) >= LEAST_CHUNKS
        if rows % (CHUNKS * ROW_TILE) == 0 and rows >= CHUNKS * LEAST_ROWS:
            assert chunk * CHUNKS <= rows
    for rows in (1, ROW_TILE):
        assert default_chunk(rows, row_bytes) >= rows


def test_no_chunk_of_no_rows() -> None:
    x, weight, target, _ = layer(4, 8, 16)
    with pytest.raises(ValueError, match="expected chunk_rows to be at least 1, got 0"):
        warpsmith.fused_linear_cross_entropy(x, weight, target, chunk_rows=0)


def test_by_default_no_product_sees_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest block of logits that a matrix product writes."""
    x, weight, target, _ = layer(300, 8, 32)
    seen: list[int] = []
    mm = torch.mm

    def spy(a: Tensor, b: Tensor, **options: Any) -> Tensor:
        if b.shape[1] == weight.shape[0]:
            seen.append(a.shape[0])
        return mm(a, b, **options)

    monkeypatch.setattr(torch, "mm", spy)
    warpsmith.fused_linear_cross_entropy(x, weight, target)
    assert seen == [256, 44]


@pytest.mark.gpu
@pytest.mark.parametrize("chunk_rows", [None, 512])
def test_fused_layer_never_holds_the_logits(chunk_rows: int | None) -> None:
    rows, width, count = 4096, 512, 50257
    x, weight, target, _ = layer(rows, width, count, torch.bfloat16)
    assert dispatch.load("loss/cross_entropy_with_grad")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    warpsmith.fused_linear_cross_entropy(x, weight, target, chunk_rows=chunk_rows).backward()
    torch.cuda.synchronize()
    used = torch.cuda.max_memory_allocated() - before
    chunk = (chunk_rows or rows // CHUNKS) * 50304 * 2
    gradients = (weight.numel() + x.numel()) * 2
    assert used < chunk + gradients + (8 << 20), f"{used >> 20} MiB"
