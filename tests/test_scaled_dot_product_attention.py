"""PyTorch's attention through this library: who serves a call, and that it means the same."""

from __future__ import annotations

import importlib
import random
import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import warpsmith
from warpsmith.core import catalogue
from warpsmith.records import elsewhere as records

NAME = "scaled_dot_product_attention"
MODULE = catalogue.composites()[NAME].module


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    return importlib.import_module(MODULE)


def tensors(m: int, n: int, kv: int = 4, dv: int = 8, dtype: Any = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(m * 1000 + n)
    shapes = ((2, 4, m, 8), (2, kv, n, 8), (2, kv, n, dv))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def bools(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(5)) < 0.6


CALLS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "plain": ((5, 7), {}),
    "scaled": ((5, 7), {"scale": 0.3}),
    "other values": ((5, 7, 4, 3), {}),
    "causal": ((6, 6), {"is_causal": True}),
    "causal, more keys": ((3, 9), {"is_causal": True}),
    "causal, more queries": ((9, 3), {"is_causal": True}),
    "grouped": ((5, 7, 2), {"enable_gqa": True}),
    "grouped, causal": ((5, 7, 1), {"enable_gqa": True, "is_causal": True}),
    "mask": ((5, 7), {"attn_mask": bools(5, 7)}),
    "mask of a head": ((5, 7), {"attn_mask": bools(4, 1, 7)}),
    "nothing seen": ((5, 7), {"attn_mask": torch.tensor([[1], [0], [1], [1], [0]]).bool()}),
    "bias": ((5, 7), {"attn_mask": torch.linspace(-2, 2, 35).view(5, 7)}),
    "bias with gaps": ((5, 7), {"attn_mask": torch.full((5, 7), -torch.inf).triu(3)}),
}


@pytest.mark.parametrize("label", CALLS)
def test_what_is_taken_over_means_the_same(
    label: str, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, options = CALLS[label]
    given = tensors(*sizes)
    monkeypatch.setattr(module, "_choice", lambda *args, **named: (module._FLASH, ""))
    ours = warpsmith.scaled_dot_product_attention(*given, **options)
    monkeypatch.undo()
    theirs = F.scaled_dot_product_attention(*given, **options)
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("label", ["causal, more keys", "grouped, causal", "bias", "nothing seen"])
def test_gradients_mean_the_same(label: str, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, options = CALLS[label]
    given = [x.requires_grad_() for x in tensors(*sizes)]
    if label == "bias":
        options = {"attn_mask": options["attn_mask"].clone().requires_grad_()}
        given.append(options["attn_mask"])
    monkeypatch.setattr(module, "_choice", lambda *args, **named: (module._FLASH, ""))
    ours = warpsmith.scaled_dot_product_attention(*given[:3], **options)
    theirs = F.scaled_dot_product_attention(*given[:3], **options)
    grad = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1))
    for a, b in zip(*(torch.autograd.grad(y, given, grad) for y in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_compiled_code_chooses_as_well(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.dispatch, "pick", lambda op, args, sm: op.variants[-1])
    module._unserved.cache_clear()
    one, many = tensors(1, 40, dtype=torch.float16), tensors(40, 40, dtype=torch.float16)
    wanted = {module._DECODE: one, module._FLASH: many}

    def chosen(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q + list(wanted).index(module._choice(q, k, v, sm=80)[0])

    for i, given in enumerate(wanted.values()):
        compiled = torch.compile(chosen, fullgraph=True, backend="eager", dynamic=False)
        assert torch.equal(compiled(*given), given[0] + i)
    module._unserved.cache_clear()
    plain = torch.compile(
        lambda q, k, v: warpsmith.scaled_dot_product_attention(q, k, v, is_causal=True),
        fullgraph=True,
        backend="eager",
    )
    q, k, v = tensors(6, 6)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(plain(q, k, v), expected)


@pytest.mark.parametrize("label", ["plain", "scaled", "other values", "grouped"])
def test_decoding_means_the_same(label: str, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, options = CALLS[label]
    given = tensors(*sizes)
    monkeypatch.setattr(module, "_choice", lambda *args, **named: (module._DECODE, ""))
    for _ in range(2):  # the lengths are kept from call to call
        ours = warpsmith.scaled_dot_product_attention(*given, **options)
        theirs = F.scaled_dot_product_attention(*given, **options)
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)


def test_dropout_follows_the_seed(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tensors(40, 40)
    monkeypatch.setattr(module, "_choice", lambda *args, **named: (module._FLASH, ""))

    def call(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return warpsmith.scaled_dot_product_attention(*given, dropout_p=0.5)

    assert torch.equal(call(3), call(3))
    assert not torch.equal(call(3), call(4))
    plain = warpsmith.scaled_dot_product_attention(*given)
    mean = torch.stack([call(seed) for seed in range(200)]).mean(0)
    assert float((mean - plain).abs().mean()) < 0.25 * float(plain.abs().mean())


def test_the_rest_is_pytorchs() -> None:
    for sizes, options in CALLS.values():
        given = tensors(*sizes)
        ours = warpsmith.scaled_dot_product_attention(*given, **options)
        assert torch.equal(ours, F.scaled_dot_product_attention(*given, **options))
    with pytest.raises(RuntimeError):
        warpsmith.scaled_dot_product_attention(*tensors(5, 7, 3))


def made(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes]


def reason(*shapes: tuple[int, ...], sm: int | None = 80, **options: Any) -> str:
    return warpsmith.which(NAME, *made(*shapes), sm=sm, **options).reason


def test_which_says_who_serves(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (2, 8, 1024, 128)
    assert "no kernels for tensors on cpu" in warpsmith.which(NAME, *tensors(5, 7)).reason
    monkeypatch.setattr(module, "_why_unserved", lambda *call: None)
    taken = reason(shape, shape, shape, is_causal=True)
    assert taken.startswith("taken over: ")
    # on Hopper long calls are left to cuDNN by the record
    for sm, left in ((80, False), (89, False), (90, True)):
        assert ("faster on the record" in reason(shape, shape, shape, sm=sm)) == left
    short = (2, 8, 64, 128)
    assert "taken over" in reason(short, short, short, sm=90)
    one, cache = (2, 8, 1, 128), (2, 2, 4096, 128)
    calls = catalogue.composites()[NAME].calls_on
    for sm in (80, 90):
        assert calls(sm, *made(short, short, short))[0].op == "flash_attention"
        decoding = calls(sm, *made(one, cache, cache), enable_gqa=True)[0]
        assert decoding.op == "attention_with_kv_cache"
        assert decoding.args[6] == 4096
    assert "first keys" in reason((2, 8, 4, 128), *((2, 8, 9, 128),) * 2, is_causal=True)
    assert "aligned" in reason((2, 8, 1, 100), *((2, 8, 9, 100),) * 2)
    mask = torch.empty(1024, 1024, dtype=torch.bool, device="meta")
    assert "taken over" in reason(shape, shape, shape, sm=90, attn_mask=mask)


def test_calls_for_gradients_are_judged_by_both_ways(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_why_unserved", lambda *call: None)
    ways = {True: (128, 256, 1000, 2000), False: (64, 128, 1000, 2000)}
    faster = [module.Faster(90, gradient, dims[:2], dims[2:]) for gradient, dims in ways.items()]
    monkeypatch.setattr(module, "PYTORCH_IS_FASTER", faster)

    def served(tokens: int, d: int, gradient: bool) -> str:
        given = [x.requires_grad_(gradient) for x in made(*((2, 8, tokens, d),) * 3)]
        return warpsmith.which(NAME, *given, sm=90).reason

    both, one = "faster on the record, forward and backward", "faster on the record"
    assert served(1000, 128, gradient=True).endswith(both)
    assert served(1000, 128, gradient=False).endswith(one)
    assert served(1000, 64, gradient=False).endswith(one)
    for tokens, d, gradient in ((1000, 64, True), (1000, 256, False), (999, 128, True)):
        assert "taken over" in served(tokens, d, gradient)
    assert "taken over" in served(2001, 128, True)
    given = [x.requires_grad_() for x in made(*((2, 8, 1000, 128),) * 3)]
    with torch.no_grad():
        assert warpsmith.which(NAME, *given, sm=90).reason.endswith(one)
    dropped = warpsmith.which(NAME, *given, dropout_p=0.1, sm=90)
    assert "taken over" in dropped.reason
    torch.use_deterministic_algorithms(True)
    try:
        assert "taken over" in served(1000, 128, gradient=True)
        assert served(1000, 128, gradient=False).endswith(one)
    finally:
        torch.use_deterministic_algorithms(False)


def test_calls_of_a_kind_are_served_alike(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `_kept_choice` looks a call up by tells apart whatever `_choice` does."""
    monkeypatch.setattr(module, "_unserved", lambda index, sm, dtype, d, *more: f"{d} {more}")
    generator = random.Random(11)
    found: dict[Any, set[tuple[str, str]]] = {}
    for _ in range(3000):
        m, n, d, dv, kv = (
            generator.choice(sizes)
            for sizes in ((1, 8, 16, 17, 4096), (1, 17, 4096), (64, 128), (64, 60), (1, 3, 4))
        )
        dtype = generator.choice((torch.bfloat16, torch.float32))
        shapes = [(1, 4, m, d), (1, kv, n, d), (1, kv, n, dv)]
        if generator.random() < 0.1:
            shapes[2] = shapes[2][1:]
        given = [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes]
        if generator.random() < 0.2:
            given[1] = torch.empty(*shapes[1][:3], d + 1, dtype=dtype, device="meta")[..., :d]
        given[generator.randrange(3)].requires_grad_(generator.random() < 0.5)
        causal, gqa = generator.random() < 0.5, generator.random() < 0.5
        scale = generator.choice((None, 0.3, -1.0))
        kind = module._kind(*given, causal, scale, gqa)
        said = module._choice(*given, None, 0.0, causal, scale=scale, enable_gqa=gqa, sm=90)
        found.setdefault(kind, set()).add(said)
    assert {len(answers) for answers in found.values()} == {1}
    assert len(set().union(*found.values())) > 8


def test_calls_of_few_queries_are_no_record_of_flash_attention(module: Any) -> None:
    assert records._FEW_QUERIES == module.FEW_QUERIES


def test_the_record_leaves_long_training_on_hopper_to_pytorch(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_why_unserved", lambda *call: None)
    given = [x.requires_grad_() for x in made((1, 32, 8192, 128), *((1, 8, 8192, 128),) * 2)]
    named = {"is_causal": True, "enable_gqa": True}
    assert "forward and backward" in warpsmith.which(NAME, *given, sm=90, **named).reason
    assert "taken over" in warpsmith.which(NAME, *given, sm=80, **named).reason


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        (((2, 8, 9, 64), (1, 8, 9, 64), (1, 8, 9, 64)), {}, "fit without broadcasting"),
        (((2, 8, 9, 64), (2, 4, 9, 64), (2, 4, 9, 64)), {}, "enable_gqa"),
        (((8, 9, 64),) * 3, {}, r"only \[batch"),
        (((2, 8, 9, 64), (2, 8, 0, 64), (2, 8, 0, 64)), {}, "nothing to compute"),
    ],
)
def test_which_says_why_not(shapes: Any, options: Any, message: str) -> None:
    assert re.search(message, reason(*shapes, **options))


def test_what_tensor_cores_do_not_serve_is_pytorchs() -> None:
    """Where our rungs on CUDA cores are several times slower than PyTorch's own."""
    lacking = "no rung of flash_attention on tensor cores takes it"
    mask = {"attn_mask": torch.empty(64, 64, dtype=torch.bool, device="meta")}
    bias = {"attn_mask": torch.empty(64, 64, dtype=torch.bfloat16, device="meta")}
    for d, options, served in (
        (12, {}, False), (65, mask, False), (100, {}, False), (264, mask, False), (1032, {}, False),
        (1024, bias, False), (512, {"dropout_p": 0.1}, False), (512, {"scale": -1.0}, False),
        (256, {"dropout_p": 0.1}, True), (256, {"scale": -1.0}, True), (64, mask, True),
        (256, bias, True), (512, {}, True), (1024, {}, True),
    ):  # fmt: skip
        said = reason(*((2, 8, 64, d),) * 3, **options)
        assert (lacking in said, "taken over" in said) == (not served, served), (d, said)
    few, cache = (2, 8, 1, 512), (2, 8, 64, 512)
    assert "no rung of attention_with_kv_cache on tensor cores" in reason(few, cache, cache)


def test_what_is_no_tensor_raises_as_in_pytorch() -> None:
    x = torch.ones(1, 1, 2, 8)
    for given in (([1.0], x, x), (x, None, x)):
        messages = []
        for attend in (F.scaled_dot_product_attention, warpsmith.scaled_dot_product_attention):
            with pytest.raises(TypeError) as error:
                attend(*given)
            messages.append(str(error.value))
        assert messages[0] == messages[1]


def test_an_unverified_rung_takes_nothing_over(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (2, 8, 1024, 128)
    monkeypatch.setattr(module.dispatch, "pick", lambda op, args, sm: None)
    module._unserved.cache_clear()
    assert "no rung of flash_attention that a GPU has verified" in reason(shape, shape, shape)
    module._unserved.cache_clear()
