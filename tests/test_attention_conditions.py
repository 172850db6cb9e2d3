"""What rungs of attention refuse where there is nothing to attend to or from, and what rungs of
large tiles refuse on GPUs whose blocks have little shared memory.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import warpsmith
from warpsmith.attention import few_queries
from warpsmith.core import catalogue, dispatch
from warpsmith.native import csrc

OPS = [op.name for op in catalogue.load().values() if op.family == "attention"]


def made(op: str, label: str, **changes: Any) -> tuple[Any, ...]:
    """The arguments of a sample, with some of them exchanged."""
    spec = catalogue.get(op)
    sample = next(s for s in spec.samples if s.label == label)
    args = dispatch.normalise(spec, sample.make(spec.inputs("bf16", "meta")))
    named = dict(zip(spec.argument_names, args, strict=True)) | changes
    return tuple(named.values())


def refusals(op: str, args: tuple[Any, ...], sm: int = 90) -> dict[str, str | None]:
    variants = [v for v in catalogue.get(op).variants if v.dtype == "bf16"]
    return {v.rung.name: dispatch.refusal(v, args, sm) for v in variants}


@pytest.mark.parametrize("op", OPS)
def test_calls_without_outputs_are_refused_by_no_rung(op: str) -> None:
    spec = catalogue.get(op)
    for dtype in spec.dtypes:
        for sample in spec.samples_for(dtype):
            args = dispatch.normalise(spec, sample.make(spec.inputs(dtype, "meta")))
            if dispatch.has_no_outputs(spec, args):
                for v in (v for v in spec.variants if v.dtype == dtype):
                    assert {dispatch.refusal(v, args, sm) for sm in (80, 89, 90)} == {None}


@pytest.mark.parametrize(
    ("op", "label"),
    [
        ("flash_attention", "1x0x2x16 of 5, no queries"),
        ("flash_attention", "0x5x2x16 of 5, no sequences"),
        ("flash_attention_varlen", "no tokens"),
        ("flash_attention_varlen", "no sequences"),
    ],
)
def test_the_largest_of_no_logits_is_an_output(op: str, label: str) -> None:
    wanted = refusals(op, made(op, label, return_max_logits=True))
    assert wanted["mma_options"] is None
    assert wanted["split_q"] == "takes no options but a window"
    assert wanted["mma_peak"] == "needs a call without options beyond a window"
    nothing = made(op, label, return_max_logits=False)
    assert set(refusals(op, nothing).values()) == {None}
    assert set(refusals(op, nothing, 80).values()) == {None}


def test_queries_without_keys_have_outputs() -> None:
    of = made("flash_attention", "1x5x2x16 of 0, no keys", return_max_logits=False)
    wanted = refusals("flash_attention", of)
    assert set(wanted.values()) == {None}
    assert refusals("flash_attention", of, 80)["large_cluster"] == "needs sm_90, this GPU is sm_80"
    capped = made("flash_attention", "1x5x2x16 of 0, no keys", softcap=5.0)
    assert refusals("flash_attention", capped)["split_q"] == "takes no options but a window"


@pytest.mark.parametrize(
    ("label", "refused"),
    [
        ("1x0x2x16 of 5, no queries", True),
        ("1x5x2x16 of 0, no keys", True),
        ("0x5x2x16 of 5, no sequences", False),
    ],
)
def test_gradients_of_keys_that_no_query_sees_are_outputs(label: str, refused: bool) -> None:
    wanted = refusals("flash_attention_backward", made("flash_attention_backward", label))
    assert wanted["naive"] is None
    assert wanted["mma_peak"] is None
    assert wanted["mma_wide"] == ("needs heads of 129 to 256 values" if refused else None)
    assert wanted["mma_large"] == ("needs heads of 257 to 1024 values" if refused else None)


def test_heads_of_nothing_have_a_log_sum_exp() -> None:
    refused = refusals("merge_attention_states", made("merge_attention_states", "heads of nothing"))
    assert refused["naive"] is None
    assert refused["pack"] == "needs heads that are whole packs of 16 bytes, aligned"


def test_nothing_to_store_is_refused_by_no_rung() -> None:
    for label in ("no tokens", "no sequences"):
        assert set(refusals("store_kv", made("store_kv", label)).values()) == {None}


# --- GPUs of little shared memory -----------------------------------------------------------------

LITTLE = "needs more than 99 KB of shared memory in a block"


def attend(d: int) -> tuple[Any, ...]:
    q = torch.empty(1, 8, 2, d, dtype=torch.bfloat16, device="meta")
    return dispatch.normalise(catalogue.get("flash_attention"), (q, q, q, 0.1))


@pytest.mark.parametrize(("sm", "little"), [(80, False), (86, True), (89, True), (90, False)])
def test_the_longest_heads_need_room(sm: int, little: bool) -> None:
    assert refusals("flash_attention", attend(768), sm)["large_registers"] is None
    wanted = LITTLE if little else None
    assert refusals("flash_attention", attend(776), sm)["large_registers"] == wanted
    served = dispatch.which("flash_attention", *attend(1024), sm=sm).variant
    assert served is not None
    assert (served.rung.name in ("large_registers", "large_cluster")) != little


def test_the_room_of_blackwell() -> None:
    for sm, wanted in ((100, None), (120, LITTLE)):
        assert refusals("flash_attention", attend(128), sm)["large_cluster"] == wanted
        a, b = (torch.empty(512, 512, dtype=torch.bfloat16, device="meta") for _ in range(2))
        args = dispatch.normalise(catalogue.get("matmul"), (a, b.t()))
        assert refusals("matmul", args, sm)["mma_tma"] == wanted


def test_any_gpu_has_room() -> None:
    variants = catalogue.get("flash_attention").variants
    large = next(v for v in variants if v.rung.name == "large_registers" and v.dtype == "bf16")
    assert dispatch.refusal(large, attend(1024), None) is None


@pytest.mark.parametrize("window", [3, (3,), (1, 2, 3), None])
def test_a_window_has_two_sides(window: Any) -> None:
    q = torch.ones(1, 3, 1, 8)
    with pytest.raises(TypeError, match=r"flash_attention: expected window to be two numbers of"):
        warpsmith.flash_attention(q, q, q, window=window)


# --- one rung for all sizes -----------------------------------------------------------------------

INVARIANT_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"causal": True, "window_left": 100},
    "soft cap": {"softcap": 1.0},
    "largest scores": {"return_max_logits": True},
}


def invariant(op: str, dtype: torch.dtype, d: int, b: int, m: int, n: int) -> dict[str, Any]:
    """A call that is promised to have the bits of its rows alone."""
    apart = op == "flash_attention"
    q, k = (
        torch.empty(
            *((b, tokens) if apart else (b * tokens,)), heads, d, dtype=dtype, device="meta"
        )
        for tokens, heads in ((m, 4), (n, 2))
    )
    starts = torch.empty(b + 1, dtype=torch.int32, device="meta")
    lengths = {"max_seqlen_q": m, "max_seqlen_k": n}
    named = {} if apart else {"cu_seqlens_q": starts, "cu_seqlens_k": starts, **lengths}
    return {"q": q, "k": k, "v": k, "scale": 0.1, "batch_invariant": True, **named}


@pytest.mark.parametrize("options", INVARIANT_OPTIONS)
@pytest.mark.parametrize("sm", [80, 89, 90])
@pytest.mark.parametrize("op", ["flash_attention", "flash_attention_varlen"])
def test_a_batch_does_not_choose_the_rung(op: str, sm: int, options: str) -> None:
    """Another rung adds up in another order, which rows alone would not have."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for d in (8, 12, 64, 100, 128, 192, 256, 264, 512, 1000, 1024):
            served = {
                dispatch.which(op, sm=sm, **given, **INVARIANT_OPTIONS[options]).name
                for b, m, n in (
                    (1, 1, 1), (1, 1, 4096), (1, 1000, 1000), (1, 4096, 4096), (300, 1, 8192),
                    (8, 8192, 8192), (65535, 64, 64),
                )
                for given in (invariant(op, dtype, d, b, m, n),)
            }  # fmt: skip
            assert len(served) == 1, (dtype, d, served)
            assert served.isdisjoint({"triton", "reference"}), (dtype, d)


@pytest.mark.parametrize(
    ("dtype", "d", "rung"),
    [
        (torch.float32, 64, "online"),
        (torch.float32, 1024, "online"),
        (torch.float32, 1032, "naive"),
        (torch.bfloat16, 12, "online"),
        (torch.bfloat16, 1032, "naive"),
    ],
)
def test_scores_in_memory_are_for_heads_that_nothing_else_takes(
    dtype: torch.dtype, d: int, rung: str
) -> None:
    for op in ("flash_attention", "flash_attention_varlen"):
        found = dispatch.which(op, sm=80, **invariant(op, dtype, d, 1, 64, 64)).variant
        assert found is not None
        assert found.rung.name == rung


# --- few queries ----------------------------------------------------------------------------------


def few(m: int, n: int, heads: int = 8, kv: int = 2, b: int = 1, **named: Any) -> tuple[Any, ...]:
    """A call of bf16, d of 128."""
    op, shapes = catalogue.get("flash_attention"), ((b, m, heads, 128), (b, n, kv, 128))
    q, k = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes)
    return dispatch.checked(op, dispatch.in_order(op, (q, k, k, 0.1), named))


def served(args: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> str:
    """The rung, once a GPU has run all of them."""
    op = catalogue.get("flash_attention")
    for rung in op.ladder:
        monkeypatch.setitem(vars(rung), "unproven", False)
    variant = dispatch.pick(op, args, 90)
    assert variant is not None
    return variant.rung.name


def test_few_queries_after_many_keys_are_a_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = torch.empty(1, 1, 1, 4096, dtype=torch.bool, device="meta")
    sinks = torch.empty(8, device="meta")
    for args in (
        few(1, 4096),
        few(1, 128),
        few(4, 4096, causal=True),
        few(8, 4096, causal=True),  # 32 rows, keys that L2 holds
        few(1, 4096, heads=16, kv=1),
        few(1, 4096, mask=seen),
        few(1, 4096, window_left=1023, softcap=30.0, sinks=sinks, return_lse=True),
    ):
        assert served(args, monkeypatch) == "few_queries"
    for args in (
        few(1, 127),
        few(9, 4096),
        few(8, 4096, b=64),  # keys that it does not hold
        few(1, 4096, batch_invariant=True),
    ):
        assert served(args, monkeypatch) == "mma_peak"
    for args in (few(1, 4096, dropout_p=0.1), few(1, 4096, return_max_logits=True)):
        assert served(args, monkeypatch) == "mma_options"


def test_numbers_of_few_queries_are_those_of_the_kernel() -> None:
    text = (csrc.CSRC / "attention/flash_attention/few_queries.h").read_text()
    assert f"kFewestSharedKeys = {few_queries._FEWEST_SHARED_KEYS};" in text
    assert "struct FewQueriesTile : SplitKvTile<T, d>" in text


def test_few_queries_take_no_sequences_of_several_lengths() -> None:
    op = "flash_attention_varlen"
    spec = catalogue.get(op)
    sample = next(s for s in spec.bench if "128" in s.label)
    args = dispatch.normalise(spec, sample.make(spec.inputs("bf16", "meta")))
    assert refusals(op, args)["few_queries"] == "needs sequences of one length"
