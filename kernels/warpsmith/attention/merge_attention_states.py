"""Joining two attentions of the same queries over different keys."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from warpsmith.attention import cache_checks as caches
from warpsmith.core import catalogue, dispatch, messages
from warpsmith.core.catalogue import (
    DTYPE_NAMES,
    PACK,
    Bad,
    Cost,
    Inputs,
    Op,
    Property,
    Rung,
    Sample,
)
from warpsmith.spec.checks import check_device, check_like, wide_dtype
from warpsmith.spec.layout import empty_like
from warpsmith.spec.rows import MOST_ROWS, address
from warpsmith.spec.spoilt import Spoiler

_OP = "merge_attention_states"
_INF = float("inf")


def _check(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> None:
    caches.check_wide_floating(_OP, "out_a", out_a)
    caches.check_heads(_OP, "out_a", out_a)
    check_like(_OP, "out_b", out_b, out_a, "out_a")
    batch, m, heads, _ = out_a.shape
    for name, lse in (("lse_a", lse_a), ("lse_b", lse_b)):
        check_device(_OP, name, lse, out_a, "out_a")
        caches.check_dtype(_OP, name, lse, wide_dtype(out_a.dtype))
        caches.check_shape(_OP, name, lse, (batch, heads, m))


def _reference(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    top = torch.maximum(lse_a, lse_b)
    top = torch.where(top == -_INF, 0.0, top)
    a, b = (lse_a - top).exp(), (lse_b - top).exp()
    total = a + b

    def part(out: Tensor, weight: Tensor) -> Tensor:
        share = torch.where(total == 0, 0.0, weight / total).transpose(1, 2).unsqueeze(-1)
        return torch.where(share == 0, 0.0, share * out.to(weight.dtype))

    out = (part(out_a, a) + part(out_b, b)).to(out_a.dtype)
    return torch.empty_like(_like(out_a)).copy_(out), (top + total.log()).contiguous()


def _like(x: Tensor) -> Tensor:
    """Of the layout of the result."""
    unit = x.shape[3] <= 1 or x.stride(3) == 1
    return empty_like(x) if unit else x.new_empty(x.shape)


def _fake(out_a: Tensor, lse_a: Tensor) -> tuple[Tensor, Tensor]:
    return _like(out_a), lse_a.new_empty(lse_a.shape)


# --- the ladder -----------------------------------------------------------------------------------


def _any(out_a: Tensor) -> str | None:
    if out_a.shape[:3].numel() > MOST_ROWS:
        return "needs at most 2^31 - 1 rows"
    return None


def _in_packs(x: Tensor) -> bool:
    width = PACK[DTYPE_NAMES[x.dtype]]
    if x.shape[3] == 0:
        return False
    if x.shape[3] > 1 and x.stride(3) != 1:  # the contiguous copy that a kernel gets
        return x.shape[3] % width == 0
    strides = (x.stride(i) for i in range(3) if x.shape[i] > 1)
    whole = x.shape[3] % width == 0 and all(stride % width == 0 for stride in strides)
    return whole and address(x) % 16 == 0


def _packs(out_a: Tensor, out_b: Tensor) -> str | None:
    if why := _any(out_a):
        return why
    whole = _in_packs(out_a) and _in_packs(out_b) and _in_packs(_like(out_a.to("meta")))
    return None if whole else "needs heads that are whole packs of 16 bytes, aligned"


_LADDER = (
    Rung("naive", "a warp per row, one value an access", when=_any),
    Rung("pack", "128-bit accesses", width=PACK, pack=True, when=_packs),
)


# --- calls ----------------------------------------------------------------------------------------


def _lse(inputs: Inputs, *shape: int, salt: int) -> Tensor:
    """Some of them far larger than others."""
    x = Inputs(torch.float32, inputs.device, inputs.seed).plain(*shape, scale=5.0, salt=salt)
    x.view(-1)[salt::11] += 60
    return x


def _call(inputs: Inputs, batch: int, m: int, heads: int, d: int) -> dict[str, Tensor]:
    return {
        "out_a": inputs.randn(batch, m, heads, d, salt=1),
        "lse_a": _lse(inputs, batch, heads, m, salt=1),
        "out_b": inputs.randn(batch, m, heads, d, salt=2),
        "lse_b": _lse(inputs, batch, heads, m, salt=2),
    }


def _some_unseen(inputs: Inputs) -> dict[str, Tensor]:
    given = _call(inputs, 2, 33, 3, 64)
    given["lse_a"].view(-1)[::7] = -_INF
    given["lse_b"].view(-1)[::5] = -_INF
    return given


def _heads_first(inputs: Inputs) -> dict[str, Tensor]:
    given = _call(inputs, 2, 5, 3, 64)
    return given | {"out_a": inputs.randn(2, 3, 5, 64).transpose(1, 2)}


def _strided(inputs: Inputs) -> dict[str, Tensor]:
    given = _call(inputs, 2, 5, 3, 64)
    return given | {
        "out_a": inputs.randn(2, 5, 3, 80)[..., :64],
        "out_b": inputs.randn(2, 5, 64, 3).transpose(2, 3),
        "lse_a": _lse(inputs, 2, 5, 3, salt=1).transpose(1, 2),
    }


def _far_apart(inputs: Inputs) -> dict[str, Tensor]:
    """Sequences of which the last lies past 2^31 elements, in 4 GB for each of the two."""
    given = _call(inputs, 3, 5, 2, 64)
    for name in ("out_a", "out_b"):
        x = given[name]
        strides = (2**30 + 8, *x.stride()[1:])
        given[name] = x.new_empty_strided(x.shape, strides).copy_(x)
    return given


def _nothing_seen(inputs: Inputs) -> dict[str, Tensor]:
    """What saw nothing is garbage."""
    given = _call(inputs, 1, 4, 2, 32)
    given["lse_a"][..., :2] = -_INF
    given["lse_b"][..., 1:3] = -_INF
    given["out_a"][:, :2] = float("nan")
    given["out_b"][:, 1:3] = float("nan")
    return given


def _bench(tokens: int) -> Sample:
    def make(inputs: Inputs) -> dict[str, Tensor]:
        wide = Inputs(torch.float32, inputs.device, inputs.seed)
        return {
            "out_a": inputs.plain(1, tokens, 32, 128, salt=1),
            "lse_a": wide.plain(1, 32, tokens, salt=1),
            "out_b": inputs.plain(1, tokens, 32, 128, salt=2),
            "lse_b": wide.plain(1, 32, tokens, salt=2),
        }

    label = f"{tokens} tokens, 32 heads of 128"
    return Sample(label, make, small=False, ladder=tokens == 8192)


def _union(merge: Any, inputs: Inputs) -> None:
    """Halves of the keys give what all of them give."""
    q, k, v = (inputs.plain(1, n, 2, 32, salt=n).double() for n in (5, 40, 40))
    scores = torch.einsum("bihd,bjhd->bhij", q, k)

    def attend(of: slice) -> tuple[Tensor, Tensor]:
        part = scores[..., of]
        out = torch.einsum("bhij,bjhd->bihd", part.softmax(-1), v[:, of])
        return out.to(inputs.dtype), part.logsumexp(-1).float()

    (a, lse_a), (b, lse_b) = attend(slice(0, 15)), attend(slice(15, 40))
    wanted, lse = attend(slice(0, 40))
    out, found = merge(a, lse_a, b, lse_b)
    eps = 4 * torch.finfo(inputs.dtype).eps
    torch.testing.assert_close(out, wanted, rtol=eps, atol=eps)
    torch.testing.assert_close(found, lse)


def _nothing_stays(merge: Any, inputs: Inputs) -> None:
    """An attention that saw nothing leaves the other as it is."""
    given = _call(inputs, 2, 3, 2, 64)
    given["lse_b"].fill_(-_INF)
    given["lse_a"].nan_to_num_(neginf=0.0)
    out, lse = merge(*given.values())
    assert torch.equal(out, given["out_a"])
    assert torch.equal(lse, given["lse_a"])


_bad = Spoiler(_OP, lambda i: _call(i, 2, 5, 3, 8), like="out_a")
_LSE = r"expected lse_b to have "

_ERRORS: tuple[Bad, ...] = (
    _bad.integers(),
    _bad.other_dtype("out_b", like="out_a"),
    _bad(
        "3-D",
        r"expected out_a to have shape \[batch, tokens, heads, d\], got \(5, 3, 8\)",
        out_a=lambda i: i.randn(5, 3, 8),
    ),
    _bad(
        "another length",
        r"expected out_b to have shape \(2, 5, 3, 8\) like out_a, got \(2, 4, 3, 8\)",
        out_b=lambda i: i.randn(2, 4, 3, 8),
    ),
    _bad(
        "lse of another layout",
        _LSE + r"shape \(2, 3, 5\), got \(2, 5, 3\)",
        lse_b=lambda i: i.randn(2, 5, 3).float(),
    ),
    _bad(
        "lse of another dtype",
        _LSE + r"dtype torch\.float32, got torch\.float64",
        lse_b=lambda i: i.randn(2, 3, 5).double(),
    ),
    _bad.on_the_cpu("out_b", 2, 5, 3, 8, narrow=True),
)

op = catalogue.add(
    Op(
        "merge_attention_states(Tensor out_a, Tensor lse_a, Tensor out_b, Tensor lse_b) -> "
        "(Tensor out, Tensor lse)",
        family="attention",
        reference=_reference,
        ladder=_LADDER,
        triton="merge_attention_states_triton:merge_attention_states",
        fake=_fake,
        check=_check,
        samples=(
            Sample("decode", lambda i: _call(i, 4, 1, 8, 128)),
            Sample("2x33, 3 heads of 64", lambda i: _call(i, 2, 33, 3, 64)),
            Sample("some see nothing", _some_unseen),
            Sample("odd heads", lambda i: _call(i, 2, 9, 3, 7)),
            Sample("one value", lambda i: _call(i, 1, 3, 2, 1)),
            Sample("heads of 1024", lambda i: _call(i, 1, 3, 2, 1024)),
            Sample("nothing seen", _nothing_seen),
            Sample("heads before tokens", _heads_first),
            Sample("strided", _strided),
            Sample("no tokens", lambda i: _call(i, 2, 0, 3, 64)),
            Sample("heads of nothing", lambda i: _call(i, 2, 3, 3, 0)),
            Sample("past 2^31 elements", _far_apart, small=False, huge=True, dtypes=("bf16",)),
        ),
        errors=_ERRORS,
        properties=(
            Property("a union of keys", _union),
            Property("nothing seen", _nothing_stays),
        ),
        cost=Cost(
            bytes=lambda out_a, lse_a: (
                3 * (out_a.numel() * out_a.element_size() + lse_a.numel() * lse_a.element_size())
            ),
            flops=lambda out_a: 3 * out_a.numel(),
        ),
        bench=(_bench(64), _bench(8192)),
        bench_dtypes=("bf16", "f16"),
    )
)
dispatch.register(op)
_merge = dispatch.public(op)


def merge_attention_states(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor, *, variant: str | None = None
) -> tuple[Tensor, Tensor]:
    """Joins two attentions of the same queries over different keys into that over all of them:
    `out = (exp(lse_a) out_a + exp(lse_b) out_b) / (exp(lse_a) + exp(lse_b))`, and
    `lse = log(exp(lse_a) + exp(lse_b))`.

    An attention whose lse is -inf saw nothing: what its out holds does not matter. Where neither
    saw anything, out is 0 and lse -inf. Not differentiable.

    Args:
        out_a: [batch, m, heads, d], f32, f16 or bf16, any strides; or [tokens, heads, d], of
            sequences that lie one behind the other.
        lse_a: f32, [batch, heads, m], or [heads, tokens]: natural logarithms of the sums of
            exponentials, any strides.
        out_b: like out_a.
        lse_b: like lse_a.
        variant: one rung by name instead of the best one.

    Returns:
        out, like out_a (contiguous where that has gaps), and lse, like lse_a and contiguous.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit; the variant cannot take the call.
        ValueError: the variant does not exist.

    Reference:
        Section 3.1 of Milakov & Gimelshein 2018, https://arxiv.org/abs/1805.02867.
    """
    messages.expect_tensors(_OP, out_a=out_a, lse_a=lse_a, out_b=out_b, lse_b=lse_b)
    if out_a.dim() == out_b.dim() == 3 and lse_a.dim() == lse_b.dim() == 2:
        out, lse = _merge(variant, out_a[None], lse_a[None], out_b[None], lse_b[None])
        return out[0], lse[0]
    return _merge(variant, out_a, lse_a, out_b, lse_b)
