"""Norms whose weight is centred at zero; dropout: its mask in pieces, what it is compared with;
long rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import warpsmith
from warpsmith.core import catalogue, dispatch, twins
from warpsmith.core.catalogue import DTYPES, Inputs
from warpsmith.proof import testing
from warpsmith.spec import philox

NORMS: list[Any] = [
    pytest.param(warpsmith.rms_norm, 1, id="rms_norm"),
    pytest.param(warpsmith.layer_norm, 2, id="layer_norm"),
]
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.gpu),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("norm", "parameters"), NORMS)
def test_zero_centered_weight_is_its_distance_from_one(
    norm: Callable[..., Tensor], parameters: int, dtype: torch.dtype, device: str
) -> None:
    """Weights of a few bits, to which 1 is added exactly: result and gradients are the same."""
    inputs = Inputs(dtype, device)
    weight = (torch.arange(264, device=device) % 9 - 4).to(dtype) / 4
    x, bias, grad = inputs.randn(7, 264), inputs.randn(264, salt=1), inputs.randn(7, 264, salt=2)

    def run(weight: Tensor, **options: Any) -> tuple[Tensor, ...]:
        leaves = [t.clone().requires_grad_() for t in (x, weight, bias)[: 1 + parameters]]
        y = norm(*leaves, **options)
        return (y, *torch.autograd.grad(y, leaves, grad))

    ours, wanted = run(weight, zero_centered=True), run(weight + 1)
    for a, b in zip(ours, wanted, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("norm", "parameters"), NORMS)
def test_zero_centered_needs_a_weight_to_matter(
    norm: Callable[..., Tensor], parameters: int
) -> None:
    x = torch.randn(3, 64)
    assert torch.equal(norm(x, zero_centered=True), norm(x))


@pytest.mark.parametrize(("norm", "parameters"), NORMS)
def test_zero_centered_says_what_it_does_not_go_with(
    norm: Callable[..., Tensor], parameters: int
) -> None:
    x, weight = torch.randn(3, 64), torch.randn(64)
    name = norm.__name__
    with pytest.raises(ValueError, match=f"^{name}: expected memory_efficient to be False .* True"):
        norm(x, weight, zero_centered=True, memory_efficient=True)
    with pytest.raises(ValueError, match=f"^{name}: expected variant to be None .* 'f32x4_pack'"):
        norm(x, weight, zero_centered=True, variant="f32x4_pack")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("norm", "parameters"), NORMS)
def test_memory_efficient_frees_the_input(
    norm: Callable[..., Tensor], parameters: int, device: str
) -> None:
    """Result and gradients are those of the norm that keeps x, of which nothing is kept."""
    inputs = Inputs(torch.float32, device)
    weight = inputs.plain(264, salt=3).abs() + 0.5
    x, bias, grad = inputs.randn(7, 264), inputs.randn(264, salt=1), inputs.randn(7, 264, salt=2)
    kept: list[Tensor] = []

    def keep(t: Tensor) -> Tensor:
        kept.append(t)
        return t

    def run(**options: Any) -> tuple[Tensor, ...]:
        kept.clear()
        leaves = [t.clone().requires_grad_() for t in (x, weight, bias)[: 1 + parameters]]
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            y = norm(*leaves, **options)
        assert any(t.data_ptr() == leaves[0].data_ptr() for t in kept) is not bool(options)
        return (y, *torch.autograd.grad(y, leaves, grad))

    for ours, wanted in zip(run(memory_efficient=True), run(), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-4)


def test_a_mask_in_pieces_is_the_same_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = ((0, 4), (3,), (5, 129), (7, 64))
    whole = [philox.keep_mask(shape, 0.5, 11, 1 << 40) for shape in shapes]
    monkeypatch.setattr(philox, "_PIECE", 10)
    for shape, wanted in zip(shapes, whole, strict=True):
        assert torch.equal(philox.keep_mask(shape, 0.5, 11, 1 << 40), wanted)


def test_no_compiler_is_given_the_generator() -> None:
    """Inductor does not end on ten rounds of it: PyTorch's side gets a mask."""
    drawing = [op for name in catalogue.load() if "seed" in (op := catalogue.get(name)).schema]
    assert len(drawing) >= 6
    for op in drawing:
        assert op.eager is not None, op.name
        assert "compile" in op.peers, op.name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_gradients_of_residual_norms_with_dropout_as_autograd_has_them(
    norm: str, dtype: torch.dtype
) -> None:
    op = catalogue.get(f"dropout_add_{norm}_norm_backward")
    inputs = Inputs(dtype, "cpu")
    grad, grad_h, h = (inputs.randn(6, 64, salt=salt) for salt in range(3))
    affine = [inputs.randn(64, salt=3 + i) for i in range(2 if norm == "layer" else 1)]
    row_scale = torch.tensor([1.5, 0.0]).repeat(3)
    args = (grad, grad_h, h, *affine, row_scale, 0.1, 5, 3, 1e-5, False)
    assert op.eager is not None
    for ours, wanted in zip(op.eager(*args), op.reference(*args), strict=True):
        torch.testing.assert_close(ours, wanted)


# Several rows for each cluster; a pack more than the clusters of a shorter tile hold.
LONG_ROWS = [
    (150, 65536), (70, 114688), (70, 131072), (2, 32776), (2, 57352), (2, 65544), (2, 114696),
    (2, 131080), (2, 262152),
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "cols"), LONG_ROWS)
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "rms_norm", "layer_norm"])
def test_clusters_of_every_tile(name: str, rows: int, cols: int) -> None:
    op = catalogue.get(name)
    sm = dispatch.device_sm(torch.device("cuda"))
    for dtype in op.dtypes:
        inputs = Inputs(DTYPES[dtype], "cuda")
        parameters = [inputs.randn(cols, salt=i) for i in (1, 2)]
        given = (inputs.randn(rows, cols), *parameters[: len(op.argument_names) - 2])
        args = dispatch.normalise(op, given)
        expected = testing.Expected.of(op, args)
        for variant in op.variants:
            if variant.rung.name != "cluster" or dispatch.refusal(variant, args, sm) is not None:
                continue
            out = getattr(torch.ops.warpsmith, variant.op_name)(*args)
            verdict = testing.compare(op, out, args, variant=variant, expected=expected)
            assert verdict.ok, verdict.message


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["rms_norm_with_rstd", "layer_norm_with_rstd"])
def test_rstd_of_many_long_rows(name: str) -> None:
    """A sum that is rounded at every value is wrong in one long row of a thousand."""
    op = catalogue.get(name)
    for dtype in op.dtypes:
        inputs = Inputs(DTYPES[dtype], "cuda")
        parameters = [inputs.plain(131072, scale=0.1, salt=i) + 1 for i in (1, 2)]
        given = (inputs.plain(2048, 131072), *parameters[: len(op.argument_names) - 2], 1e-5)
        args = dispatch.normalise(op, given)
        expected = testing.Expected.of(op, args)
        for variant in op.variants:
            if dispatch.refusal(variant, args, dispatch.device_sm(torch.device("cuda"))) is None:
                out = getattr(torch.ops.warpsmith, variant.op_name)(*args)
                verdict = testing.compare(op, out, args, variant=variant, expected=expected)
                assert verdict.ok, verdict.message


@pytest.mark.parametrize("norm", ["add_rms_norm", "add_layer_norm"])
@pytest.mark.parametrize("source", ["", "dropout_"])
def test_gradients_of_residual_norms_are_judged_from_the_sum_they_keep(
    source: str, norm: str
) -> None:
    """It is rounded to the dtype of the residual, and stands for x in all of them."""
    assert catalogue.get(source + norm).starts_from_output


@pytest.mark.parametrize("op", ["dropout_add_rms_norm", "dropout_add_layer_norm"])
def test_a_factor_brings_back_what_dropout_sends_past_f32(op: str) -> None:
    """Both factors of a row in one, in kernels, the twin and the reference: 2 * 3e38 is infinite,
    2 * 3e38 / 8 is not.
    """
    x = torch.full((4, 8), 3e38)
    stream = {"seed": 3, "offset": 1}
    of = catalogue.get(op)
    given = {"x": x, "residual": None, "row_scale": torch.full((4,), 1 / 8), "p": 0.5} | stream
    args = tuple(given.get(a.name, a.default_value) for a in of.parsed.arguments)
    found = [getattr(warpsmith, op)(**given)[1]]
    if twins.triton_available():
        found.append(testing.run_triton(of, args)[1])
    kept = philox.keep_mask(x.shape, 0.5, 3, 1)
    for h in found:
        torch.testing.assert_close(h, torch.where(kept, 2 * 3e38 / 8, 0.0))
