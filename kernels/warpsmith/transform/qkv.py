"""Queries, keys and values between a fused projection and heads of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import (
    DTYPE_NAMES,
    PACK,
    Bad,
    Cost,
    Gradients,
    Inputs,
    Op,
    Property,
    Rung,
    Sample,
)
from warpsmith.spec import cost, references
from warpsmith.spec.checks import check_device, check_like, shape_text
from warpsmith.spec.layout import address

Heads = tuple[Tensor, Tensor, Tensor]

_NO_PACKS = "needs heads of whole packs of 16 bytes, aligned to these"


def _check(x: Tensor, heads: int, kv_heads: int, bias: Tensor | None) -> None:
    op = "unpack_qkv"
    if not x.is_floating_point():
        raise RuntimeError(f"{op}: expected x to be a floating-point tensor, got {x.dtype}")
    if x.dim() != 3:
        raise RuntimeError(f"{op}: expected x to have shape (b, s, n), got {shape_text(x)}")
    if min(heads, kv_heads) < 1:
        raise RuntimeError(
            f"{op}: expected heads and kv_heads to be at least 1, got {heads} and {kv_heads}"
        )
    cols = x.shape[2]
    if max(heads, kv_heads) > cols or cols % (heads + 2 * kv_heads):
        raise RuntimeError(
            f"{op}: expected the last dimension of x to be whole heads, {heads} of queries and "
            f"twice {kv_heads}, got {cols}"
        )
    if bias is None:
        return
    check_device(op, "bias", bias, x)
    if bias.dtype != x.dtype:
        raise RuntimeError(f"{op}: expected bias to have dtype {x.dtype} like x, got {bias.dtype}")
    if tuple(bias.shape) != (cols,):
        raise RuntimeError(
            f"{op}: expected bias to have shape ({cols},), the last dimension of x, "
            f"got {shape_text(bias)}"
        )


def _check_pack(q: Tensor, k: Tensor, v: Tensor) -> None:
    op = "pack_qkv"
    if not q.is_floating_point():
        raise RuntimeError(f"{op}: expected q to be a floating-point tensor, got {q.dtype}")
    if q.dim() != 4:
        raise RuntimeError(f"{op}: expected q to have shape (b, heads, s, d), got {shape_text(q)}")
    check_device(op, "k", k, q, "q")
    if k.dtype != q.dtype:
        raise RuntimeError(f"{op}: expected k to have dtype {q.dtype} like q, got {k.dtype}")
    b, _, s, d = q.shape
    if k.dim() != 4 or (k.shape[0], k.shape[2], k.shape[3]) != (b, s, d):
        raise RuntimeError(
            f"{op}: expected k to have shape ({b}, kv_heads, {s}, {d}) like q, got {shape_text(k)}"
        )
    check_like(op, "v", v, k, "k")


def _split(x: Tensor, heads: int, kv_heads: int) -> Heads:
    """Views of shape [b, heads, s, d]."""
    d = x.shape[2] // (heads + 2 * kv_heads)
    turned = x.unflatten(2, (heads + 2 * kv_heads, d)).transpose(1, 2)
    q, k, v = turned.split((heads, kv_heads, kv_heads), 1)
    return q, k, v


def _taken_apart(x: Tensor, heads: int, kv_heads: int, bias: Tensor | None) -> Heads:
    q, k, v = _split(x if bias is None else x + bias, heads, kv_heads)
    apart = [t.clone(memory_format=torch.contiguous_format) for t in (q, k, v)]
    return apart[0], apart[1], apart[2]


_added = references.rounded_once(_taken_apart)


@references.written_as(_taken_apart)
def _reference(x: Tensor, heads: int, kv_heads: int, bias: Tensor | None) -> Heads:
    """Without a bias, NaN keeps its payload, which it loses on its way through f32."""
    return (_taken_apart if bias is None else _added)(x, heads, kv_heads, bias)


def _reference_pack(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.cat((q, k, v), 1).transpose(1, 2).flatten(2).contiguous()


def _fake(x: Tensor, heads: int, kv_heads: int) -> Heads:
    q, k, v = _split(x, heads, kv_heads)
    return x.new_empty(q.shape), x.new_empty(k.shape), x.new_empty(v.shape)


def _fake_pack(q: Tensor, k: Tensor) -> Tensor:
    b, heads, s, d = q.shape
    return q.new_empty((b, s, (heads + 2 * k.shape[1]) * d))


def _derivative(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad_q: Tensor | None,
    grad_k: Tensor | None,
    grad_v: Tensor | None,
    needs: frozenset[str],
) -> Gradients:
    pairs = ((grad_q, q), (grad_k, k), (grad_v, v))
    given = (like.new_zeros(like.shape) if grad is None else grad for grad, like in pairs)
    packed = torch.ops.warpsmith.pack_qkv(*given)
    wide = torch.promote_types(packed.dtype, torch.float32)
    found = {"x": packed}
    if "bias" in needs:
        found["bias"] = packed.sum((0, 1), dtype=wide).to(packed.dtype)
    return found


def _derivative_pack(grad: Tensor, heads: tuple[int, int]) -> Gradients:
    q, k, v = torch.ops.warpsmith.unpack_qkv(grad, *heads)
    return {"q": q, "k": k, "v": v}


def _needs_packs(x: Tensor, heads: int, kv_heads: int, bias: Tensor | None) -> str | None:
    if x.numel() == 0:
        return None
    d = x.shape[2] // (heads + 2 * kv_heads)
    given = [t for t in (x, bias) if t is not None and t.is_contiguous()]
    aligned = all(address(t) % 16 == 0 for t in given)
    return None if d % PACK[DTYPE_NAMES[x.dtype]] == 0 and aligned else _NO_PACKS


def _needs_packs_pack(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    if q.numel() + k.numel() + v.numel() == 0:
        return None
    aligned = all(address(t) % 16 == 0 for t in (q, k, v) if t.is_contiguous())
    return None if q.shape[3] % PACK[DTYPE_NAMES[q.dtype]] == 0 and aligned else _NO_PACKS


# --- calls ----------------------------------------------------------------------------------------

#: b, s, heads, kv_heads, d
SIZES = (
    (1, 1, 1, 1, 1),
    (2, 5, 4, 4, 8),
    (2, 7, 6, 2, 16),
    (1, 33, 3, 1, 24),
    (3, 4, 2, 1, 5),
    (0, 3, 2, 2, 8),
    (2, 0, 2, 2, 8),
)


def _packed(i: Inputs, b: int, s: int, heads: int, kv_heads: int, d: int) -> Tensor:
    return i.randn(b, s, (heads + 2 * kv_heads) * d)


def _apart(i: Inputs, b: int, s: int, heads: int, kv_heads: int, d: int) -> Heads:
    return (
        i.randn(b, heads, s, d),
        i.randn(b, kv_heads, s, d, salt=1),
        i.randn(b, kv_heads, s, d, salt=2),
    )


def _label(sizes: tuple[int, ...]) -> str:
    b, s, heads, kv_heads, d = sizes
    return f"{b}x{s}, {heads} and {kv_heads} heads of {d}"


def _with_bias(i: Inputs, sizes: Any) -> tuple[Any, ...]:
    x = _packed(i, *sizes)
    return x, sizes[2], sizes[3], i.randn(x.shape[2], salt=1)


SAMPLES = (
    *(
        Sample(_label(s), lambda i, s=s: (_packed(i, *s), s[2], s[3], None))  # type: ignore[misc]
        for s in SIZES
    ),
    *(
        Sample(f"{_label(s)}, bias", lambda i, s=s: _with_bias(i, s))  # type: ignore[misc]
        for s in SIZES
    ),
    Sample("misaligned", lambda i: (i.misaligned(2, 3, 64), 2, 1, None)),
    Sample("misaligned bias", lambda i: (i.randn(2, 3, 64), 2, 1, i.misaligned(64))),
    Sample("sliced", lambda i: (i.randn(2, 9, 160)[:, ::2, 16:80], 2, 1, i.randn(128)[::2])),
    Sample(
        "2x300, 12 and 4 heads of 64", lambda i: _with_bias(i, (2, 300, 12, 4, 64)), small=False
    ),
    Sample(
        "past 2^31 elements",
        lambda i: (i.plain(1, 2**20 + 9, 2048), 30, 1, i.plain(2048, salt=1)),
        small=False,
        huge=True,
        dtypes=("f16",),
    ),
)
PACK_SAMPLES = (
    *(
        Sample(_label(s), lambda i, s=s: _apart(i, *s))  # type: ignore[misc]
        for s in SIZES
    ),
    Sample("misaligned", lambda i: (i.misaligned(2, 3, 4, 16), *_apart(i, 2, 4, 3, 2, 16)[1:])),
    Sample(
        "transposed",
        lambda i: tuple(t.transpose(1, 2) for t in _apart(i, 2, 3, 5, 5, 16)),
    ),
    Sample("2x300, 12 and 4 heads of 64", lambda i: _apart(i, 2, 300, 12, 4, 64), small=False),
    Sample(
        "past 2^31 elements",
        lambda i: _apart(i, 1, 2**20 + 9, 30, 1, 64),
        small=False,
        huge=True,
        dtypes=("f16",),
    ),
)


def _bad(label: str, message: str, *args: Any, shape: tuple[int, ...] = (2, 3, 32)) -> Bad:
    return Bad(label, lambda i: (i.randn(*shape), *args), f"unpack_qkv: {message}")


ERRORS = (
    Bad(
        "integers",
        lambda i: (torch.ones(2, 3, 32, dtype=torch.int32, device=i.device), 2, 1),
        r"unpack_qkv: expected x to be a floating-point tensor, got torch\.int32",
    ),
    _bad("2-d", r"expected x to have shape \(b, s, n\), got \(6, 32\)", 2, 1, shape=(6, 32)),
    _bad("no heads", "expected heads and kv_heads to be at least 1, got 0 and 1", 0, 1),
    _bad(
        "a part of a head",
        "expected the last dimension of x to be whole heads, 4 of queries and twice 3, got 32",
        4,
        3,
    ),
    Bad(
        "too short a bias",
        lambda i: (i.randn(2, 3, 32), 2, 1, i.randn(31)),
        r"unpack_qkv: expected bias to have shape \(32,\), the last dimension of x, got \(31,\)",
    ),
)


def _bad_pack(label: str, message: str, at: int, *shape: int) -> Bad:
    def make(i: Inputs) -> tuple[Any, ...]:
        given: list[Any] = list(_apart(i, 2, 3, 4, 2, 8))
        given[at] = i.randn(*shape)
        return tuple(given)

    return Bad(label, make, f"pack_qkv: {message}")


PACK_ERRORS = (
    _bad_pack("3-d", r"expected q to have shape \(b, heads, s, d\), got \(2, 3, 8\)", 0, 2, 3, 8),
    _bad_pack(
        "other tokens",
        r"expected k to have shape \(2, kv_heads, 3, 8\) like q, got \(2, 2, 4, 8\)",
        1,
        *(2, 2, 4, 8),
    ),
    _bad_pack(
        "other heads of values",
        r"expected v to have shape \(2, 2, 3, 8\) like k, got \(2, 1, 3, 8\)",
        2,
        *(2, 1, 3, 8),
    ),
)


def _there_and_back(unpack: Any, inputs: Inputs) -> None:
    x = inputs.randn(2, 5, 8 * 16)
    assert torch.equal(torch.ops.warpsmith.pack_qkv(*unpack(x, 4, 2)), x)


_BENCH = ((8, 4096, 32, 8, 128), (32, 512, 12, 12, 64))


def _ladder(condition: Any) -> tuple[Rung, ...]:
    return (
        Rung("naive", "a value to a thread"),
        Rung("pack", "128-bit accesses", width=PACK, pack=True, when=condition),
    )


unpack_op = catalogue.add(
    Op(
        "unpack_qkv(Tensor x, int heads, int kv_heads, Tensor? bias=None)"
        " -> (Tensor q, Tensor k, Tensor v)",
        family="transform",
        elementwise=True,
        reference=_reference,
        ladder=_ladder(_needs_packs),
        triton="qkv_triton:unpack_qkv",
        fake=_fake,
        check=_check,
        backward=_derivative,
        samples=SAMPLES,
        errors=ERRORS,
        properties=(Property("there and back", _there_and_back),),
        cost=Cost(bytes=lambda x, bias: cost.size(x, x, bias), flops=lambda x: x.numel()),
        bench=tuple(
            Sample(f"{_label(s)}, bias", lambda i, s=s: _with_bias(i, s), small=False)  # type: ignore[misc]
            for s in _BENCH
        ),
    )
)
pack_op = catalogue.add(
    Op(
        "pack_qkv(Tensor q, Tensor k, Tensor v) -> Tensor",
        family="transform",
        elementwise=True,
        reference=_reference_pack,
        ladder=_ladder(_needs_packs_pack),
        triton="qkv_triton:pack_qkv",
        fake=_fake_pack,
        check=_check_pack,
        backward=_derivative_pack,
        saves={"heads": lambda q, k: (q.shape[1], k.shape[1])},
        samples=PACK_SAMPLES,
        errors=PACK_ERRORS,
        cost=Cost(bytes=lambda q, k, v: 2 * cost.size(q, k, v)),
        bench=tuple(
            Sample(_label(s), lambda i, s=s: _apart(i, *s), small=False)  # type: ignore[misc]
            for s in _BENCH
        ),
    )
)
dispatch.register(unpack_op)
dispatch.register(pack_op)
_unpack = dispatch.public(unpack_op)
_pack = dispatch.public(pack_op)


def unpack_qkv(
    x: Tensor,
    heads: int,
    kv_heads: int | None = None,
    bias: Tensor | None = None,
    *,
    variant: str | None = None,
) -> Heads:
    """Takes what a fused projection has computed apart into heads, and adds its bias on the way.

    Added in float32 and rounded once. Differentiable.

    Args:
        x: [b, s, (heads + 2 kv_heads) d]: of each token all queries, then all keys, then all
            values; float32, float16 or bfloat16 (others without a kernel of their own).
        heads: of the queries.
        kv_heads: of the keys, and of the values; as many as queries by default.
        bias: as long as the last dimension of `x`, of its dtype.
        variant: one rung by name instead of the best one, "bf16x8_pack".

    Returns:
        Contiguous q [b, heads, s, d], k and v [b, kv_heads, s, d].

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit; the variant cannot take the call.
        ValueError: the variant does not exist.

    Reference:
        `x.unflatten(2, (heads + 2 * kv_heads, d)).transpose(1, 2).split(...)`, made contiguous.
    """
    return _unpack(variant, x, heads, heads if kv_heads is None else kv_heads, bias)


def pack_qkv(q: Tensor, k: Tensor, v: Tensor, *, variant: str | None = None) -> Tensor:
    """Puts queries, keys and values together as a fused projection has them: what `unpack_qkv`
    takes apart. Differentiable.

    Args:
        q: [b, heads, s, d], float32, float16 or bfloat16 (others without a kernel of their own);
            what is not contiguous is copied.
        k: [b, kv_heads, s, d], of the dtype of `q`.
        v: as `k`.
        variant: one rung by name instead of the best one, "bf16x8_pack".

    Returns:
        A contiguous tensor of shape [b, s, (heads + 2 kv_heads) d].

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit; the variant cannot take the call.
        ValueError: the variant does not exist.

    Reference:
        `torch.cat((q, k, v), 1).transpose(1, 2).flatten(2)`.
    """
    return _pack(variant, q, k, v)
