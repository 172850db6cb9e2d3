"""Where dropout's numbers come from: a seed, PyTorch's generator, or PyTorch's own dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import warpsmith
from conftest import GPU
from warpsmith.elementwise.dropout import _pack_mask_by_sums, pack_mask

DEVICE = "cuda" if GPU else "cpu"
P = 0.5
X = torch.randn(64, 32, generator=torch.Generator().manual_seed(0)).to(DEVICE)

Draw = Callable[..., Tensor]
DRAWS: dict[str, Draw] = {
    "dropout": lambda x, **given: warpsmith.dropout(x, P, **given),
    "bias_dropout_add": lambda x, **given: warpsmith.bias_dropout_add(x, x[0], x, P, **given)[0],
    "dropout_add_rms_norm": lambda x, **given: warpsmith.dropout_add_rms_norm(x, x, p=P, **given)[
        1
    ],
    "dropout_add_layer_norm": lambda x, **given: warpsmith.dropout_add_layer_norm(
        x, x, p=P, **given
    )[1],
    "flash_attention": lambda x, **given: attend(x, **given),
    "flash_attention with a softcap": lambda x, **given: attend(x, softcap=30.0, **given),
    "scaled_dot_product_attention": lambda x, **given: attend_as_pytorch(x, **given),
    "softmax": lambda x, **given: warpsmith.bias_scale_mask_softmax_dropout(x, p=P, **given)[0],
}


def attend(x: Tensor, **given: Any) -> Tensor:
    """Of as many queries as x has rows."""
    q = x[None, :, None, :]
    return warpsmith.flash_attention(q, q, q, dropout_p=P, **given)[0, :, 0]


def attend_as_pytorch(x: Tensor, **given: Any) -> Tensor:
    if given:
        return attend(x, **given)
    q = x[None, None]
    return warpsmith.scaled_dot_product_attention(q, q, q, None, P)[0, 0]


draws = pytest.mark.parametrize("name", DRAWS)


@draws
def test_pytorch_seeds_it(name: str) -> None:
    draw = DRAWS[name]
    torch.manual_seed(3)
    first, second = draw(X), draw(X)
    torch.manual_seed(3)
    assert torch.equal(draw(X), first)
    assert not torch.equal(first, second)
    given = draw(X, seed=5)
    assert torch.equal(draw(X, seed=5), given)


@draws
def test_seeds_and_offsets_have_64_bits(name: str) -> None:
    draw = DRAWS[name]
    for bits in (2**63, 2**64 - 1):
        assert torch.equal(draw(X, seed=bits), draw(X, seed=bits - 2**64))
        assert torch.equal(draw(X, offset=bits), draw(X, offset=bits - 2**64))
    assert not torch.equal(draw(X, seed=2**63), draw(X, seed=0))
    for name_of in ("seed", "offset"):
        with pytest.raises(TypeError, match=f"expected {name_of} to be a whole number of 64 bits"):
            draw(X, **{name_of: 2**64})


@draws
def test_compiled_code_draws_anew(name: str) -> None:
    draw = DRAWS[name]
    torch._dynamo.reset()
    torch.manual_seed(1)
    compiled = torch.compile(draw, fullgraph=True, backend="aot_eager")
    first, second = compiled(X), compiled(X)
    assert not torch.equal(first, second)
    expected = torch.stack([compiled(X) for _ in range(400)]).mean(0)
    plain = torch.stack([draw(X, seed=k) for k in range(400)]).mean(0)
    torch.testing.assert_close(expected, plain, atol=0.8, rtol=0.0)


@draws
def test_checkpointing_draws_the_same_again(name: str) -> None:
    draw, x = DRAWS[name], X.clone().requires_grad_()
    torch.manual_seed(11)
    plain = torch.autograd.grad(draw(x).square().sum(), x)[0]
    torch.manual_seed(11)
    again = checkpoint(draw, x, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(again.square().sum(), x)[0], plain)


def test_as_in_pytorch() -> None:
    assert warpsmith.dropout(X, P, training=False) is X
    assert warpsmith.dropout(X, P, False) is X
    y = warpsmith.dropout(X, P, True)
    kept = y != 0
    torch.testing.assert_close(y[kept], 2 * X[kept])
    assert 0.3 < kept.float().mean() < 0.7


def test_the_mask_on_request() -> None:
    y, mask = warpsmith.dropout(X, P, return_mask=True)
    bits = (mask[:, None].cpu() >> torch.arange(32)) & 1
    assert torch.equal(bits.view(X.shape).bool(), (y != 0).cpu())
    everything = warpsmith.dropout(X, P, training=False, return_mask=True)[1]
    assert (everything == -1).all()


def test_a_mask_of_compiled_code() -> None:
    torch._dynamo.reset()
    run = torch.compile(
        lambda x: warpsmith.dropout(x, P, return_mask=True), fullgraph=True, backend="aot_eager"
    )
    y, mask = run(X)
    bits = (mask[:, None].cpu() >> torch.arange(32)) & 1
    assert torch.equal(bits.view(X.shape).bool(), (y != 0).cpu())


@pytest.mark.skipif(not GPU, reason="needs a GPU")
@draws
def test_a_graph_draws_anew_on_every_replay(name: str) -> None:
    draw, x = DRAWS[name], X.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        draw(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = draw(x)
    graph.replay()
    first = y.clone()
    graph.replay()
    assert not torch.equal(first, y)


@pytest.mark.parametrize("softcap", [0.0, 30.0])
def test_attention_of_compiled_code_drops_as_many(softcap: float) -> None:
    """Each row of the answer is a sum of the kept weights, as all values are 1."""
    q = torch.randn(2, 256, 2, 16, device=DEVICE)
    run = torch.compile(
        lambda q: warpsmith.flash_attention(
            q, q, torch.ones_like(q), causal=True, dropout_p=0.25, softcap=softcap
        ),
        fullgraph=True,
        backend="aot_eager",
    )
    torch._dynamo.reset()
    assert abs(float(run(q).mean()) - 1.0) < 0.1
    ours = warpsmith.flash_attention(
        q, q, torch.ones_like(q), causal=True, dropout_p=0.25, softcap=softcap
    )
    assert abs(float(ours.mean()) - 1.0) < 0.1


@pytest.mark.parametrize("options", [{}, {"window": (2, 0)}, {"causal": True}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dynamic", [False, True])
def test_attention_of_compiled_code_drops_at_any_size(
    dynamic: bool, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    """GQA, whose numbers of heads are symbols where sizes are; in f64, what is hidden is looked at
    elsewhere.
    """
    q, k = (torch.randn(2, n, h, 8, dtype=dtype, device=DEVICE) for n, h in ((4, 4), (6, 2)))
    torch._dynamo.reset()
    run = torch.compile(
        lambda q, k: warpsmith.flash_attention(q, k, torch.ones_like(k), dropout_p=0.25, **options),
        fullgraph=True,
        backend="aot_eager",
        dynamic=dynamic,
    )
    kept = run(q.repeat(1, 64, 1, 1), k.repeat(1, 64, 1, 1))
    assert abs(float(kept.mean()) - 1.0) < 0.1


def test_packed_attention_of_compiled_code_wants_a_seed() -> None:
    q, cu = torch.randn(8, 2, 16), torch.tensor([0, 3, 8], dtype=torch.int32)

    def run(q: Tensor) -> Tensor:
        return warpsmith.flash_attention_varlen(q, q, q, cu, cu, 5, 5, dropout_p=P)

    torch.manual_seed(2)
    first = run(q)
    assert not torch.equal(first, run(q))
    torch.manual_seed(2)
    assert torch.equal(first, run(q))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="expected a seed beside dropout_p in compiled code"):
        torch.compile(run, fullgraph=True, backend="aot_eager")(q)


@draws
def test_a_batch_of_vmap_differs_where_that_is_asked_for(name: str) -> None:
    x = torch.ones(3, *X.shape)

    def drawn(randomness: str) -> Tensor:
        return torch.vmap(lambda x: DRAWS[name](x), randomness=randomness)(x)

    same, different = drawn("same"), drawn("different")
    assert torch.equal(same[0], same[1])
    assert not torch.equal(different[0], different[1])


def test_arguments_in_the_order_of_pytorch() -> None:
    torch.manual_seed(3)
    first, second = (warpsmith.dropout(X, 0.5, True, False) for _ in range(2))
    assert not torch.equal(first, second)
    assert warpsmith.dropout(X, 0.5, False, False) is X
    with pytest.raises(ValueError, match="dropout: expected inplace=False"):
        warpsmith.dropout(X, 0.5, True, True)


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 1000])
def test_a_mask_is_packed_alike_without_views(n: int) -> None:
    kept = torch.rand(n, generator=torch.Generator().manual_seed(n)) < 0.5
    assert torch.equal(_pack_mask_by_sums(kept), pack_mask(kept))
