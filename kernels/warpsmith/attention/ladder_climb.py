"""The climb of attention: rungs that teach a step each, and those for head dimensions past 256."""

from __future__ import annotations

from collections.abc import Callable

from warpsmith.attention.conditions import has_options, needs_packed_heads
from warpsmith.core.arguments_by_name import Call
from warpsmith.core.catalogue import Condition, Rung
from warpsmith.spec.gpus import needs_much_shared_memory

_HALVES = ("f16", "bf16")
_ACCUMULATORS = {"f16": ("f16", "f32"), "bf16": ("f32",)}
#: Sequences and heads: those of a grid.
_MOST_ALONG_GRID = 65535
#: Bytes of scores.
_MOST_SCORES = 2 << 30
#: Up to where other rungs are faster than those for long heads.
_SHORT_DIM = 256
#: Up to where one block holds a head.
_CLUSTER_DIM = 512
#: The head dimensions whose operands fit 99 KB of shared memory.
_LITTLE_DIM = 768

_Needs = Callable[[Call], str | None]


def _needs_no_options(call: Call) -> str | None:
    if has_options(call) or call.return_max_logits:
        return "takes no options but a window"
    return None


def _sequences(call: Call) -> tuple[int, int, int]:
    """How many there are, and the tokens of the longest: queries, and keys."""
    if (starts := getattr(call, "cu_seqlens_q", None)) is not None:
        return starts.shape[0] - 1, call.max_seqlen_q, call.max_seqlen_k
    return call.q.shape[0], call.q.shape[1], call.k.shape[1]


def _needs_grid(call: Call) -> str | None:
    fits = max(_sequences(call)[0], call.q.shape[-2]) <= _MOST_ALONG_GRID
    return None if fits else "needs at most 65535 sequences and heads"


def _needs_few_scores(call: Call) -> str | None:
    batch, m, n = _sequences(call)
    if 4 * batch * call.q.shape[-2] * m * n > _MOST_SCORES:
        return "needs at most 2 GB of scores"
    return None


def _needs_packs(call: Call) -> str | None:
    return needs_packed_heads(call.q, call.v)


def _needs_dim(most: int) -> _Needs:
    def needs(call: Call) -> str | None:
        if max(call.q.shape[-1], call.v.shape[-1]) > most:
            return f"needs head dimensions of at most {most}"
        return None

    return needs


def _all(*needs: _Needs) -> Condition:
    def unmet(call: Call) -> str | None:
        return next((reason for need in needs if (reason := need(call)) is not None), None)

    return unmet


def _heads(most: int) -> Condition:
    return _all(_needs_packs, _needs_dim(most), _needs_no_options, _needs_grid)


def _long_heads(little_dim: int) -> Condition:
    """`little_dim`: up to where 99 KB of shared memory do."""
    heads = _heads(1024)

    def unmet(call: Call, *, sm: int | None = None) -> str | None:
        if reason := heads(call):
            return reason
        fits = max(call.q.shape[-1], call.v.shape[-1]) <= little_dim
        return None if fits else needs_much_shared_memory(sm)

    return unmet


def _rung(name: str, story: str, f16: str = "", f32: str = "", most: int = 128) -> Rung:
    """`f16`, `f32`: the rows of the seed list that its variants of such sums answer, spelled as
    there.
    """
    rows = ((f16, "f16"), (f32, "f32"))
    return Rung(
        name,
        story,
        dtypes=_HALVES,
        technique=name,
        accumulators=_ACCUMULATORS,
        when=_heads(most),
        seeds=tuple(f"{_escaped(row)}:{accumulator}" for row, accumulator in rows if row),
    )


def _escaped(row: str) -> str:
    """What `str.format` makes `row` of."""
    return row.replace("{", "{{").replace("}", "}}")


NAIVE = Rung(
    "naive",
    "scores in memory, three kernels",
    technique="naive",
    when=_all(_needs_no_options, _needs_few_scores),
)

_SPLIT = (
    _rung("fused", "scores in registers, keys swept twice"),
    _rung("split_kv", "a running softmax; keys shared out to the warps"),
    _rung("split_kv_stages", "the next operands on their way", "flash_attn_mma_stages_split_kv"),
    _rung("split_q", "queries shared out to the warps, scores stay in registers"),
    _rung("split_q_stages", "the next keys on their way", "flash_attn_mma_stages_split_q"),
)

_SHARED_KV = (
    _rung("shared_kv", "k and v in one place"),
    _rung(
        "shared_kv_stages",
        "k and v in turns in two places",
        "flash_attn_mma_stages...shared_kv",
        "flash_attn_mma_stages...shared_kv{f32}",
    ),
    _rung(
        "shared_kv_reduced",
        "sums scaled in place: half of the registers",
        f32="flash_attn_mma...shared_kv{f32}{rr}",
        most=256,
    ),
    _rung("shared_kv_swizzle_q", "q swizzled", "flash_attn_mma...shared_kv_swizzle{q}"),
    _rung("shared_kv_swizzle_qk", "k too", "flash_attn_mma...shared_kv_swizzle{qk}"),
    _rung("shared_kv_swizzle_qkv", "v too", "flash_attn_mma...shared_kv_swizzle{qkv}", most=256),
    _rung("q_in_registers", "q kept in registers"),
)

_SHARED_QKV = (
    _rung("shared_qkv", "q, k and v in one place, q kept in registers"),
    _rung(
        "shared_qkv_stages",
        "two places for all",
        "flash_attn_mma_stages...shared_qkv",
        "flash_attn_mma_stages...shared_qkv{f32}",
    ),
    _rung(
        "shared_qkv_reduced",
        "sums scaled in place",
        f32="flash_attn_mma...shared_qkv{f32}{rr}",
    ),
    _rung("shared_qkv_swizzle_q", "q swizzled", "flash_attn_mma...shared_qkv_swizzle{q}"),
    _rung("shared_qkv_swizzle_qk", "k too", "flash_attn_mma...shared_qkv_swizzle{qk}"),
    _rung("shared_qkv_swizzle_qkv", "v too", "flash_attn_mma...shared_qkv_swizzle{qkv}"),
)

_TILING = (
    _rung(
        "tiling_qk",
        "q and k in slices of 32 values",
        "flash_attn_mma_stages...tiling_qk",
        "flash_attn_mma_stages...tiling_qk{f32}",
    ),
    _rung("tiling_qk_swizzle_q", "q swizzled", "flash_attn_mma...tiling_qk_swizzle{q}"),
    _rung("tiling_qk_swizzle_qk", "k too", "flash_attn_mma...tiling_qk_swizzle{qk}"),
    _rung("tiling_qk_swizzle_qkv", "v too", "flash_attn_mma...tiling_qk_swizzle{qkv}"),
    _rung("tiling_qkv", "v in slices as well, one stage", most=256),
    _rung(
        "tiling_qkv_stages",
        "the next slice on its way",
        "flash_attn_mma_stages...tiling_qkv",
        "flash_attn_mma_stages...tiling_qkv{f32}",
        most=256,
    ),
    _rung(
        "tiling_qkv_swizzle_q",
        "q swizzled",
        "flash_attn_mma...tiling_qkv_swizzle{q}",
        "flash_attn...tiling_qkv_swizzle{q}{f32}",
    ),
    _rung(
        "tiling_qkv_swizzle_qk",
        "k too",
        "flash_attn_mma...tiling_qkv_swizzle{qk}",
        "flash_attn...tiling_qkv_swizzle{qk}{f32}",
    ),
    _rung(
        "tiling_qkv_swizzle_qkv",
        "v too",
        "flash_attn_mma...tiling_qkv_swizzle{qkv}",
        "flash_attn...tiling_qkv_swizzle{qkv}{f32}",
        most=256,
    ),
)


def _suits_long(call: Call) -> str | None:
    if max(call.q.shape[-1], call.v.shape[-1]) <= _SHORT_DIM:
        return "head dimensions up to 256 fit the registers of a warp"
    return None


def _large(name: str, story: str, level: str, little_dim: int = 1024) -> tuple[Rung, Rung]:
    """A rung for head dimensions of up to 1024, behind one of the same with mixed sums: scores in
    f32, p v in f16.
    """
    seed = f"ffpa_mma_stages_split_q_{level}"
    when = _long_heads(little_dim)
    mixed = Rung(
        f"{name}_mixed",
        f"{story}; scores summed in f32, p v in f16",
        dtypes=("f16",),
        technique=f"{name}_mixed",
        accumulators=("f16",),
        when=when,
        suits=_suits_long,
        seeds=(f"{seed}_mixed_acc",),
    )
    whole = Rung(
        name,
        story,
        dtypes=_HALVES,
        technique=name,
        accumulators=_ACCUMULATORS,
        when=when,
        suits=_suits_long,
        seeds=(f"{seed}_F16F16F16:f16", f"{seed}_F16F16F32:f32"),
    )
    return mixed, whole


_LARGE = (
    *_large("large_rescaled", "long heads, the answer in global memory", "L3"),
    *_large("large_twice", "long heads, q k computed again for every 128 columns", "L2"),
    *_large(
        "large_registers",
        "long heads, the answer's columns shared out to the warps",
        "L1",
        little_dim=_LITTLE_DIM,
    ),
)


def _suits_cluster(call: Call) -> str | None:
    if max(call.q.shape[-1], call.v.shape[-1]) <= _CLUSTER_DIM:
        return "head dimensions up to 512 fit the registers of one block"
    return None


_CLUSTER = Rung(
    "large_cluster",
    "a head shared by two blocks of a cluster, which halves what L2 delivers",
    dtypes=_HALVES,
    technique="large_cluster",
    when=_long_heads(little_dim=0),
    suits=_suits_cluster,
    min_sm=90,
)

#: In order, between what takes every option and the fastest of head dimensions up to 256.
CLIMB: tuple[Rung, ...] = (*_SPLIT, *_SHARED_KV, *_SHARED_QKV, *_TILING, *_LARGE, _CLUSTER)
