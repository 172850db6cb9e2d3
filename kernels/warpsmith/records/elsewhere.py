"""Derives from the records which calls another implementation serves faster (core/elsewhere.py)."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warpsmith.core import catalogue, dispatch, elsewhere
from warpsmith.core.catalogue import DTYPES, Inputs, Op, Sample
from warpsmith.core.elsewhere import SIZES, Rule
from warpsmith.measure import record
from warpsmith.records.report import Results, other_is_stale

#: So many times as fast another implementation has to be, at every case of a range, and at so many.
FASTER, LEAST_CASES = 1.03, 2


@dataclass(frozen=True)
class Case:
    """A case of a record: what its call is like, and what others need of our time there."""

    told: Mapping[str, Any]
    #: Our time over theirs, by implementation.
    ratios: Mapping[str, float]

    def key(self) -> tuple[tuple[str, Any], ...]:
        """What has to be the same in all calls of a rule."""
        return tuple((name, value) for name, value in self.told.items() if not _is_size(name))

    def sizes(self) -> dict[str, int]:
        return {name: value for name, value in self.told.items() if _is_size(name)}


def _is_size(name: str) -> bool:
    return name.rpartition(".")[2] in (*SIZES, "d", "tokens")


# --- ranges ---------------------------------------------------------------------------------------

Box = dict[str, tuple[int, int]]


def _hull(cases: Sequence[Case]) -> Box:
    each = [case.sizes() for case in cases]
    return {name: (min(s[name] for s in each), max(s[name] for s in each)) for name in each[0]}


def _has(box: Box, case: Case) -> bool:
    return all(box[name][0] <= size <= box[name][1] for name, size in case.sizes().items())


def boxes(winners: Sequence[Case], losers: Sequence[Case]) -> list[list[Case]]:
    """The winners in groups, no loser between the least and the largest sizes of each: grown one by
    one, from the largest calls on.
    """
    left = sorted(winners, key=lambda case: -math.prod(case.sizes().values()))
    found = []
    while left:
        group = [left.pop(0)]
        for case in list(left):
            grown = _hull([*group, case])
            if not any(_has(grown, loser) for loser in losers):
                group.append(case)
                left.remove(case)
        found.append(group)
    return found


def ranges(name: str, sm: int, cases: Iterable[Case], date: str) -> list[Rule]:
    """The rules of one operator. What reaches the largest size on record goes on beyond it."""
    found = []
    by_key: dict[tuple[Any, ...], list[Case]] = {}
    for case in cases:
        by_key.setdefault(case.key(), []).append(case)
    for key, alike in by_key.items():
        most = {size: high for size, (_, high) in _hull(alike).items()}
        taken: list[Case] = []
        for implementation in _best_first(alike):
            wins = [case for case in alike if case.ratios.get(implementation, 0) > FASTER]
            wins = [case for case in wins if case not in taken]
            losers = [case for case in alike if case.ratios.get(implementation, 0) <= FASTER]
            for group in boxes(wins, losers):
                if len(group) < LEAST_CASES:
                    continue
                taken += group
                box = {
                    size: [low, None if high == most[size] else high]
                    for size, (low, high) in _hull(group).items()
                }
                least = min(case.ratios[implementation] for case in group)
                told = {**dict(key), **box}
                found.append(
                    Rule(name, sm, implementation, round(least, 3), len(group), told, date)
                )
    return found


def _best_first(cases: Sequence[Case]) -> list[str]:
    """Implementations, the one that gains most first."""
    gains: dict[str, float] = {}
    for case in cases:
        for name, ratio in case.ratios.items():
            gains[name] = gains.get(name, 0.0) + math.log(max(ratio, 1.0))
    return sorted(gains, key=lambda name: -gains[name])


# --- records --------------------------------------------------------------------------------------


def times_itself(op: Op) -> bool:
    """Whether the twin tries several kernels at a first call, which nobody may have to wait for."""
    module = importlib.import_module(f"warpsmith.{op.family}.{op.triton.partition(':')[0]}")
    return any(type(value).__name__ == "Autotuner" for value in vars(module).values())


def _others(op: Op, args: tuple[Any, ...]) -> set[str]:
    """Implementations that may stand in for the kernels."""
    found = set()
    if not times_itself(op):
        found.add("triton")
    if op.torch_lacks is not None and op.torch_lacks(*args) is None:
        found.add("torch")
    return found


def _times(op: Op, results: Results) -> dict[str, dict[str, dict[str, Any]]]:
    """Rows with a time, by case and implementation."""
    times: dict[str, dict[str, dict[str, Any]]] = {}
    for row in results.records.get(op.name, {"rows": []})["rows"]:
        if "ms" in row:
            times.setdefault(row["case"], {})[row["impl"]] = row
    return times


def cases_of(op: Op, results: Results, sm: int) -> list[Case]:
    """The cases of which the record says what the kernels here do now."""
    known, times, found = results.records.get(op.name), _times(op, results), []
    if known is None:
        return []
    for dtype, sample in ((d, s) for d in op.dtypes for s in op.bench_for(d)):
        rows = times.get(f"{dtype} {sample.label}", {})
        ours = rows.get("auto")
        if ours is None or not record.is_fresh(ours, known, op, results.lock):
            continue
        args = dispatch.normalise(op, sample.make(Inputs(DTYPES[dtype], "meta")))
        chosen = dispatch.pick(op, args, sm)
        if chosen is None or chosen.name != ours.get("serves"):
            continue
        ratios = {name: ours["ms"] / rows[name]["ms"] for name in _others(op, args) if name in rows}
        found.append(Case(elsewhere.told_of(op, args), ratios))
    return found


#: What a choice goes by, of a call by its arguments; None for calls that are none of it.
Told = Callable[[Mapping[str, Any]], "dict[str, Any] | None"]


@dataclass(frozen=True)
class Spoken:
    """Calls of a composite that records of operators speak for."""

    #: Whose times add up, of the same case; the first one's call says what it is like.
    ops: tuple[str, ...]
    #: The rows that are PyTorch's ways to the same.
    peers: tuple[str, ...]
    #: What is told of such a call; None of one that the composite does not make.
    told: Told
    #: Whom the rules are for: PyTorch, or the operator where PyTorch serves by default.
    serves: str = "torch"


#: Up to so many, calls for the answer alone are not those of flash_attention.
_FEW_QUERIES = 16


def _attention(gradient: bool) -> Told:
    def told(named: Mapping[str, Any]) -> dict[str, Any] | None:
        q, k, v = named["q"], named["k"], named["v"]
        plain = all(named[name] is None for name in ("mask", "bias", "sinks", "alibi_slopes"))
        plain = plain and named["window_left"] < 0 and named["window_right"] < 0
        if not plain or named["softcap"] or named["dropout_p"] or q.shape[-1] != v.shape[-1]:
            return None
        if not gradient and q.shape[1] <= _FEW_QUERIES:
            return None  # for attention_with_kv_cache
        tokens = min(q.shape[1], k.shape[1])
        return {"gradient": gradient, "d": q.shape[-1], "tokens": tokens}

    return told


def _gated(named: Mapping[str, Any]) -> dict[str, Any] | None:
    x, w = named["x"], named["w_gate"]
    return {"x.rows": x.numel() // x.shape[-1], "x.cols": x.shape[-1], "w_gate.rows": w.shape[0]}


_SDPA = ("torch", "sdpa_cudnn", "sdpa_flash", "sdpa_efficient")
COMPOSITES: dict[str, tuple[Spoken, ...]] = {
    "scaled_dot_product_attention": (
        Spoken(("flash_attention",), _SDPA, _attention(False)),
        # what is called for its gradients: both ways, by the same backend
        Spoken(("flash_attention", "flash_attention_backward"), _SDPA, _attention(True)),
    ),
    "gated_mlp": (Spoken(("gated_linear",), ("cublas_and_gate",), _gated, "gated_linear"),),
}


def _times_now(op: Op, results: Results, dtype: str, sample: Sample) -> dict[str, float] | None:
    """By implementation; None where the record does not say what the kernels here do now."""
    known = results.records.get(op.name)
    rows = _times(op, results).get(f"{dtype} {sample.label}", {})
    ours = rows.get("auto")
    if known is None or ours is None or not record.is_fresh(ours, known, op, results.lock):
        return None
    return {name: row["ms"] for name, row in rows.items()}


def _spoken_for(spoken: Spoken, results: Results) -> list[Case]:
    """Of f16 and bf16."""
    ops, found = [catalogue.get(name) for name in spoken.ops], []
    for dtype, sample in itertools.product(("f16", "bf16"), ops[0].bench):
        args = dispatch.normalise(ops[0], sample.make(Inputs(DTYPES[dtype], "meta")))
        like = spoken.told(dict(zip(ops[0].argument_names, args, strict=True)))
        each = [_times_now(op, results, dtype, sample) for op in ops]
        times = [t for t in each if t is not None]
        if like is None or len(times) < len(each):
            continue
        ours = sum(t["auto"] for t in times)
        whole = [peer for peer in spoken.peers if all(peer in t for t in times)]
        best = min((sum(t[peer] for t in times) for peer in whole), default=math.inf)
        ratio = ours / best if spoken.serves == "torch" else best / ours if whole else 0.0
        found.append(Case(like, {spoken.serves: ratio}))
    return found


def cases_of_composite(name: str, results: Results) -> list[list[Case]]:
    """The same of a composite: of each kind of its calls."""
    return [_spoken_for(spoken, results) for spoken in COMPOSITES[name]]


# --- what patched models leave to torch.compile ---------------------------------------------------

#: So many times as fast a compiled model has to be without a kind of what is patched, over all
#: cases that have both; what is less is noise.
FASTER_MODEL = 1.005
#: What a kind is set against that is measured on top of another one.
BESIDE = {"rope": "compiled, norms"}
_PATCH = "patch"


def _kind_alone(implementation: str) -> str:
    """The kind that alone is served in a compiled model; "" of other implementations."""
    compiled, _, kind = implementation.partition(", ")
    return kind if compiled == "compiled" and kind != "patched" else ""


def left_to_compiler(rows: Iterable[Mapping[str, Any]], sm: int, date: str) -> list[Rule]:
    """The kinds that a compiled model is faster without, by the rows of `benchmarks/models.py`:
    `compiled`, in which nothing is served, beside `compiled, <kind>`.
    """
    times: dict[str, dict[str, float]] = {}
    for row in rows:
        if "ms" in row:
            times.setdefault(row["case"], {})[row["impl"]] = row["ms"]
    ratios: dict[str, list[float]] = {}
    for found in times.values():
        for name, ms in found.items():
            kind = _kind_alone(name)
            least = found.get(BESIDE.get(kind, "compiled"))
            if kind and least:
                ratios.setdefault(kind, []).append(ms / least)
    rules = []
    for kind, each in ratios.items():
        mean = math.exp(sum(map(math.log, each)) / len(each))
        if len(each) >= LEAST_CASES and mean > FASTER_MODEL:
            told = {"kind": kind}
            rules.append(Rule(_PATCH, sm, "compile", round(mean, 3), len(each), told, date))
    return rules


def derive(results: Results, sm: int, date: str, before: Sequence[Rule] = ()) -> list[Rule]:
    """All rules. Where a record says nothing of the kernels as they are, those from before stay.

    Args:
        results: the records of a GPU.
        sm: its compute capability.
        date: of the rules.
        before: those that there are.
    """
    made: list[Rule] = []
    for op in catalogue.load().values():
        if op.yields:
            cases = cases_of(op, results, sm)
            made += ranges(op.name, sm, cases, date) if cases else _kept(op.name, sm, before)
    for name in COMPOSITES:
        kinds = cases_of_composite(name, results)
        if all(kinds):
            made += [rule for cases in kinds for rule in ranges(name, sm, cases, date)]
        else:
            made += _kept(name, sm, before)
    models = results.others.get("models", {"rows": []})
    measured = any(_kind_alone(row["impl"]) for row in models["rows"])
    if measured and not other_is_stale(results, "models"):
        made += left_to_compiler(models["rows"], sm, date)
    else:
        made += _kept(_PATCH, sm, before)
    return [*(rule for rule in before if rule.sm != sm), *made]


def _kept(name: str, sm: int, before: Sequence[Rule]) -> list[Rule]:
    return [rule for rule in before if rule.op == name and rule.sm == sm]


def as_data(rules: Sequence[Rule], date: str) -> dict[str, Any]:
    """What the file holds."""
    each = [dataclasses.asdict(rule) for rule in rules]
    for rule in each:
        del rule["date"]
    return {"date": date, "rules": each}
