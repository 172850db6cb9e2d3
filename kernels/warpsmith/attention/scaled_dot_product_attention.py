"""PyTorch's `scaled_dot_product_attention`, through the kernels here where they serve a call best.

It is a composite: it has no ladder, as it only chooses. Calls go to `flash_attention` where a rung
on tensor cores takes them that a GPU has verified, and to PyTorch's own function everywhere else,
so that putting one in the place of the other makes nothing slower and changes no answer beyond
rounding.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from warpsmith.attention import kv_cache
from warpsmith.attention.flash_attention import flash_attention, flash_attention_op
from warpsmith.core import autograd, catalogue, compiling, dispatch, elsewhere
from warpsmith.core.catalogue import Composite, PartCall

_OP = "scaled_dot_product_attention"
_PYTORCH = f"torch.nn.functional.{_OP}"
_HALVES = (torch.float16, torch.bfloat16)
_FLASH, _DECODE = "flash_attention", "attention_with_kv_cache"
#: Up to so many queries a call is bound by the keys that it reads, which one block for a tile of
#: queries does not read fast enough: `attention_with_kv_cache` shares them out.
FEW_QUERIES = 16
#: Rungs without tensor cores take every call, and many of them later than PyTorch would.
_WITHOUT_TENSOR_CORES = ("naive", "online")
#: Heads of a cache lie on multiples of so many bytes.
_ALIGNED = 16


@dataclass(frozen=True)
class Faster:
    """Calls of 16 bits without a mask that PyTorch's backend answers over 3 % faster."""

    sm: int
    #: Whether these are calls for gradients, both ways together, or for the answer alone.
    gradient: bool
    #: The least and the most, None for any: of d, and of queries and of keys.
    dim: tuple[int, int | None]
    tokens: tuple[int, int | None]

    def has(self, sm: int, gradient: bool, dim: int, tokens: int) -> bool:
        return (
            sm == self.sm
            and gradient == self.gradient
            and _within(self.dim, dim)
            and _within(self.tokens, tokens)
        )


def _within(limits: tuple[int, int | None], size: int) -> bool:
    least, most = limits
    return least <= size and (most is None or size <= most)


#: By the record (core/elsewhere.json).
PYTORCH_IS_FASTER = tuple(
    Faster(rule.sm, rule.told["gradient"], tuple(rule.told["d"]), tuple(rule.told["tokens"]))
    for rule in elsewhere.rules()
    if rule.op == _OP
)


# --- the choice -----------------------------------------------------------------------------------


def _misfit(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool, gqa: bool
) -> str | None:
    """Why the kernels here are not asked; PyTorch's function takes the call, or says what is wrong
    with it.
    """
    tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    for x in tensors:
        if type(x) not in (Tensor, torch.nn.Parameter) or x.layout != torch.strided:
            return "only plain tensors"
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        return "only [batch, heads, tokens, d]"
    if query.dtype not in _HALVES:
        return "only f16 and bf16"
    if not query.dtype == key.dtype == value.dtype:
        return "only tensors of one dtype"
    if not query.device == key.device == value.device:
        return "only tensors of one device"
    b, heads, m, d = query.shape
    kv_heads, n = key.shape[1:3]
    if key.shape[0] != b or value.shape[:3] != key.shape[:3] or key.shape[3] != d:
        return "only shapes that fit without broadcasting"
    if heads != kv_heads and not (gqa and kv_heads and heads % kv_heads == 0):
        return "only as many heads of keys, or a divisor with enable_gqa"
    if not query.numel() or not key.numel() or not value.numel():
        return "nothing to compute"
    if attn_mask is not None:
        if is_causal:
            return "a mask beside is_causal"
        if attn_mask.dtype not in (torch.bool, query.dtype) or attn_mask.device != query.device:
            return "only masks of bools or of the query's dtype"
        sizes = tuple(attn_mask.shape)
        pairs = zip(reversed(sizes), reversed((b, heads, m, n)), strict=False)
        if len(sizes) > 4 or any(x not in (1, y) for x, y in pairs):
            return "only masks that broadcast to the scores"
    return None


@functools.cache
def _sm(index: int) -> int:
    return dispatch.device_sm(torch.device("cuda", index))


@functools.cache
def _unserved(
    index: int, asked: int, dtype: torch.dtype, d: int, dv: int, extra: str, gradient: bool
) -> str | None:
    """Why no rung serves such calls; `asked`: the compute capability, 0 for that of the device."""
    sm = asked or _sm(index)
    names = [_FLASH]
    if extra == "cache":
        names = [_DECODE]
    elif gradient:
        names.append(f"{_FLASH}_backward")
    for name in names:
        if name not in catalogue.load():
            return f"there is no {name}"
        op = catalogue.get(name)
        if not asked and not dispatch.load(op.library):
            return f"no compiled {name}"
        variant = dispatch.pick(op, _probe(op, dtype, d, dv, extra), sm)
        if variant is None:
            return f"no rung of {name} that a GPU has verified takes it"
        if variant.rung.name in _WITHOUT_TENSOR_CORES:
            return f"no rung of {name} on tensor cores takes it"
    return None


def _probe(op: catalogue.Op, dtype: torch.dtype, d: int, dv: int, extra: str) -> tuple[Any, ...]:
    """A call of that kind without content, by which to ask for the rung."""

    def empty(*shape: int, of: torch.dtype = dtype) -> Tensor:
        return torch.empty(shape, dtype=of, device="meta")

    given = {
        "q": empty(1, 64, 1, d),
        "k": empty(1, 64, 1, d),
        "v": empty(1, 64, 1, dv),
        "k_cache": empty(1, 1, 64, d).transpose(1, 2),
        "v_cache": empty(1, 1, 64, dv).transpose(1, 2),
        "lengths": empty(1, of=torch.int32),
        "out": empty(1, 64, 1, dv),
        "grad_out": empty(1, 64, 1, dv),
        "lse": empty(1, 1, 64, of=torch.float32),
        "scale": 1.0,
        "mask": empty(1, 1, 64, 64, of=torch.bool) if extra == "mask" else None,
        "bias": empty(1, 1, 64, 64) if extra == "bias" else None,
        "dropout_p": 0.5 if extra == "drops" else 0.0,
    }
    return tuple(
        given.get(name, default)
        for name, default in zip(op.argument_names, op.defaults, strict=True)
    )


@compiling.constant
def _sm_of(index: int) -> int:
    return _sm(index)


@compiling.constant
def _why_unserved(*call: Any) -> str | None:
    """`_unserved`, which compiled code takes for a constant: it asks the GPU and the catalogue."""
    return _unserved(*call)


def _slower(sm: int, gradient: bool, d: int, dv: int, m: int, n: int) -> str | None:
    for case in PYTORCH_IS_FASTER:
        if d == dv and case.has(sm, gradient, d, min(m, n)):
            ways = ", forward and backward" if gradient else ""
            return f"its backend is over 3 % faster on the record{ways}"
    return None


def _choice(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    sm: int = 0,
) -> tuple[str, str]:
    """The operator that takes a call, or PyTorch's function and why. `sm`: as if on a GPU of that
    compute capability.
    """
    if not isinstance(query, Tensor):
        return _PYTORCH, "the kernels here take only tensors"
    if not sm and query.device.type != "cuda":
        return _PYTORCH, f"no kernels for tensors on {query.device.type}"
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        return _PYTORCH, "no rules for function transforms"
    if why := _misfit(query, key, value, attn_mask, is_causal, enable_gqa):
        return _PYTORCH, f"the kernels here take {why}" if why.startswith("only") else why
    if dropout_p > 0.0 and (torch.compiler.is_compiling() or _capturing(query)):
        return _PYTORCH, "dropout draws its seed on the host, once for a graph"
    tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    gradient = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    (m, d), (n, dv) = query.shape[2:], value.shape[2:]
    of = (_index(query), sm, query.dtype, d, dv)
    plain = attn_mask is None and dropout_p == 0.0
    if plain and not gradient and m <= FEW_QUERIES:
        if is_causal and m > 1:
            return _PYTORCH, "few queries at the first keys"
        if not (_in_packs(key) and _in_packs(value)):
            return _PYTORCH, "a cache has heads aligned to 16 bytes"
        why = _why_unserved(*of, "cache", False)
        return (_DECODE, "") if why is None else (_PYTORCH, why)
    settled = gradient and _deterministic()
    if plain and not settled:
        why = _slower(sm or _sm_of(_index(query)), gradient, d, dv, m, n)
        if why is not None:
            return _PYTORCH, why
    if attn_mask is not None:
        extra = "mask" if attn_mask.dtype == torch.bool else "bias"
    else:  # another option, of which any stands for all
        extra = "drops" if dropout_p > 0.0 or not (scale is None or scale > 0.0) else ""
    why = _why_unserved(*of, extra, gradient)
    return (_FLASH, "") if why is None else (_PYTORCH, why)


#: Operators of plain calls on GPUs, by their kinds.
_known: dict[tuple[Any, ...], str] = {}
#: Of so many kinds: a loop that decodes has another one on each step, for its keys.
_MOST_KNOWN = 4096


def _kind(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float | None, gqa: bool
) -> tuple[Any, ...]:
    """All that `_choice` looks at in plain tensors, without a mask or dropout."""
    shape = query.shape
    gradient = torch.is_grad_enabled() and (
        query.requires_grad or key.requires_grad or value.requires_grad
    )
    few = not gradient and len(shape) == 4 and shape[2] <= FEW_QUERIES
    return (
        *(shape, key.shape, value.shape),
        *(query.dtype, key.dtype, value.dtype),
        *(query.get_device(), key.get_device(), value.get_device()),
        *(is_causal, gqa, scale is None or scale > 0.0),
        gradient and (True, _deterministic()),
        few and key.dim() == value.dim() == 4 and (_in_packs(key), _in_packs(value)),
    )


def _kept_choice(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float | None, gqa: bool
) -> str:
    """The operator that `_choice` gives for a call without a mask or dropout. On a GPU it is looked
    up where there was such a call before: to judge it costs the host as much as PyTorch's whole
    function.
    """
    kind = None
    if (
        not torch.compiler.is_compiling()
        and type(query) is type(key) is type(value) is Tensor
        and query.is_cuda
        and key.is_cuda
        and value.is_cuda
        and query.layout is key.layout is value.layout is torch.strided
        and not torch._C._are_functorch_transforms_active()
    ):
        kind = _kind(query, key, value, is_causal, scale, gqa)
        known = _known.get(kind)
        if known is not None:
            return known
    name, _ = _choice(query, key, value, None, 0.0, is_causal, scale=scale, enable_gqa=gqa)
    if kind is not None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[kind] = name
    return name


def _deterministic() -> bool:
    """Whether gradients are asked for that do not change from run to run: by default, PyTorch's
    backends sum those of the queries in any order, those here never do.
    """
    return torch.are_deterministic_algorithms_enabled()


def _in_packs(x: Tensor) -> bool:
    """Whether heads of a cache can be read 16 bytes at a time."""
    width = _ALIGNED // x.element_size()
    *outer, step = x.stride()
    if step != 1 or x.shape[-1] % width or any(stride % width for stride in outer):
        return False
    return torch.compiler.is_compiling() or x.is_meta or x.data_ptr() % _ALIGNED == 0


def _index(x: Tensor) -> int:
    return x.device.index or 0


def _capturing(x: Tensor) -> bool:
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def _as_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any]]:
    """The same call in terms of `flash_attention`. There the last query stands at the last key,
    here the first one at the first.
    """
    options: dict[str, Any] = {}
    m, n = query.shape[2], key.shape[2]
    if is_causal:
        if m <= n:
            key, value = key[:, :, :m], value[:, :, :m]
            options["causal"] = True
        else:
            options["window"] = (-1, m - n)
    if attn_mask is not None:
        options["mask" if attn_mask.dtype == torch.bool else "bias"] = attn_mask
    return (query, key, value), options


_lengths_kept: dict[tuple[int, torch.device], Tensor] = {}


def _no_lengths(query: Tensor) -> Tensor:
    """Zeros of each sequence, made once."""
    if torch.compiler.is_compiling() or query.is_meta:
        return torch.zeros(query.shape[0], dtype=torch.int32, device=query.device)
    kind = (query.shape[0], query.device)
    kept = _lengths_kept.get(kind)
    if kept is not None:
        return kept
    made = torch.zeros(kind[0], dtype=torch.int32, device=kind[1])
    if _capturing(query):
        return made  # in the memory of a graph, which may go
    if query.is_cuda:  # calls on other streams may come first
        torch.cuda.current_stream(query.device).synchronize()
    _lengths_kept[kind] = made
    return made


def _as_decoding(query: Tensor, key: Tensor, value: Tensor) -> dict[str, Any]:
    """The call in terms of `attention_with_kv_cache`: of an empty cache, to which all keys have
    been appended, so that how many there are needs no tensor.
    """
    return {
        "q": query.transpose(1, 2),
        "k_cache": key.transpose(1, 2),
        "v_cache": value.transpose(1, 2),
        "lengths": _no_lengths(query),
        "appended": key.shape[2],
        "causal": False,
    }


def _calls(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    sm: int | None = None,
) -> tuple[PartCall, ...]:
    name, why = _choice(
        query, key, value, attn_mask, dropout_p, is_causal,
        scale=scale, enable_gqa=enable_gqa, sm=sm or 0,
    )  # fmt: skip
    if name == _PYTORCH:
        return (PartCall(_PYTORCH, (), why),)
    if name == _DECODE:
        named = _as_decoding(query, key, value)
    else:
        (q, k, v), named = _as_flash_attention(query, key, value, attn_mask, is_causal)
        named = {x: y.transpose(1, 2) for x, y in (("q", q), ("k", k), ("v", v))} | named
        named["window_left"], named["window_right"] = named.pop("window", (-1, -1))
        named["dropout_p"] = dropout_p
    named["scale"] = query.shape[-1] ** -0.5 if scale is None else scale
    args = dispatch.in_order(catalogue.get(name), (), named)
    return (PartCall(name, args, "taken over"),)


composite = catalogue.add_composite(
    Composite(
        f"{_OP}(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
        "float dropout_p=0.0, bool is_causal=False, *, float? scale=None, "
        "bool enable_gqa=False) -> Tensor",
        family="attention",
        parts=(
            (_FLASH, "what a rung on tensor cores takes that a GPU has verified"),
            (_DECODE, f"up to {FEW_QUERIES} queries without a mask and without gradients"),
            (_PYTORCH, "everything else, and what its backend is faster at on the record"),
        ),
        calls=_calls,
        module=__name__,
        shaped=("query", "key", "value"),
        by_gpu=True,
    )
)


# --- the public function --------------------------------------------------------------------------

_flash_attention = autograd.speaking(_OP, flash_attention)
# Without a mask or dropout the operators are called as they are: what their public functions look
# at costs the host as much as a kernel's launch.
_attend = autograd.speaking(_OP, dispatch.public(flash_attention_op))
_decode = autograd.speaking(_OP, dispatch.public(kv_cache.op))
#: Behind the window of `flash_attention`, up to what it promises; behind `causal` of a cache.
_NO_OPTIONS = flash_attention_op.defaults[7:-4]
_OF_A_CACHE = kv_cache.op.defaults[8:]


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, with its signature and its meaning.

    `flash_attention` takes the calls that one of its verified rungs on tensor cores serves (of
    heads of a multiple of 8 values, beside a mask of up to 256), and `attention_with_kv_cache`
    those of up to 16 queries without gradients; PyTorch's own function takes all others, and those
    in which its backend is over 3 % faster on the record: on Hopper, for now, most calls of long
    sequences, which cuDNN answers with instructions that the kernels here do not use yet. Calls for
    gradients are judged by both ways together, and stay here under
    ``torch.use_deterministic_algorithms(True)``.
    ``warpsmith.which("scaled_dot_product_attention", query, key, value)`` says who serves a call,
    and why.

    Args:
        query: [batch, heads, m, d], any dtype that PyTorch takes; f16 and bf16 are taken over.
        key: [batch, kv_heads, n, d].
        value: [batch, kv_heads, n, dv].
        attn_mask: bool (True takes part) or of the query's dtype (added to the scores), broadcast
            to [batch, heads, m, n]. Differentiable where it is added.
        dropout_p: the probability of dropping a weight. What is dropped follows from PyTorch's seed
            for the CPU, in another way than PyTorch's own. In compiled code, and in CUDA graphs,
            such calls are PyTorch's.
        is_causal: whether query i sees keys up to i: the first query stands at the first key, other
            than in `flash_attention`.
        scale: what products are multiplied by; None stands for ``d ** -0.5``.
        enable_gqa: whether key and value may have fewer heads than query.

    Returns:
        [batch, heads, m, dv], of the query's dtype.

    Raises:
        RuntimeError: what PyTorch raises.

    Reference:
        `torch.nn.functional.scaled_dot_product_attention`.
    """
    plain = attn_mask is None and dropout_p == 0.0
    if plain:
        name = _kept_choice(query, key, value, is_causal, scale, enable_gqa)
    else:
        name, _ = _choice(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if name == _PYTORCH:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if not plain:
        tensors, options = _as_flash_attention(query, key, value, attn_mask, is_causal)
        options |= {"scale": scale, "dropout_p": dropout_p, "layout": "bhsd"}
        return _flash_attention(*tensors, **options)  # type: ignore[no-any-return]
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1])
    if name == _DECODE:
        out = _decode(
            None, query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
            _no_lengths(query), scale, None, key.shape[2], False, *_OF_A_CACHE,
        )[0]  # fmt: skip
        return out.transpose(1, 2)  # type: ignore[no-any-return]
    past = -1
    if is_causal and (m := query.shape[2]) != (n := key.shape[2]):
        if m < n:
            key, value = key[:, :, :m], value[:, :, :m]
        else:
            is_causal, past = False, m - n
    gradient = torch.is_grad_enabled() and (
        query.requires_grad or key.requires_grad or value.requires_grad
    )
    out = _attend(
        None, query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), scale,
        is_causal, -1, past, *_NO_OPTIONS, gradient, False, True, False,
    )[0]  # fmt: skip
    return out.transpose(1, 2)  # type: ignore[no-any-return]
