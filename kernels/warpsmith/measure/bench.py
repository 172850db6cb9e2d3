"""Benchmarks of operators, driven by the catalogue, and the records they leave behind.

The records are those of `record`. An implementation that gives a wrong result gets a row with an
`error` and no number.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import itertools
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import warpsmith
from warpsmith.core import catalogue, dispatch, json_files, references, twins
from warpsmith.core.catalogue import Op, Sample
from warpsmith.measure import limits, record, timing
from warpsmith.measure.record import Row, is_peer
from warpsmith.native.code_lock import Lock
from warpsmith.proof import testing

#: Tensors of about this many elements are used to time the host's part of a call.
OVERHEAD_ELEMENTS = 4096

#: Elementwise results of more elements than this are judged piece by piece.
SHARED_JUDGEMENT = 1 << 26

Function = Callable[..., Any]


@dataclass(frozen=True)
class Plan:
    """What to measure.

    `variants` is "ladder" (at the cases of `ladder_cases`), "all", "none", or names of variants.
    `peers` None is every peer of the operator; "torch", "compile" and "triton" count as peers here.
    Without `timed` no case is timed, which leaves the host times of `overhead`. `measured` has, by
    operator, the cases to leave out; `only`, by operator and case, which of ours are timed there,
    beside the peers, and what is not in it is left out; and `stuck`, by operator and case, what is
    not called there, as it did not come to an end.
    """

    dtypes: tuple[str, ...] | None = None
    cases: str | None = None
    variants: str | tuple[str, ...] = "ladder"
    peers: tuple[str, ...] | None = None
    sustained: bool = False
    overhead: bool = True
    timed: bool = True
    seconds: float = 0.25
    measured: Mapping[str, frozenset[str]] = field(default_factory=dict)
    only: Mapping[str, Mapping[str, frozenset[str]]] | None = None
    stuck: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def wants(self, impl: str) -> bool:
        return impl == "auto" or self.peers is None or impl in self.peers


Progress = Callable[[str], None]


def _quiet(message: str) -> None:
    """The progress callback that says nothing."""


# --- what is on record ----------------------------------------------------------------------------


def missing_cases(known: record.Record | None, op: Op, lock: Lock | None) -> list[str]:
    """Cases of the operator's benchmark that a record has no fresh row of."""
    plan = Plan(measured={op.name: record.measured_cases(known, op, lock)})
    return case_names(op, plan)


def without_measured(plan: Plan, ops: Sequence[Op], folder: Path) -> Plan:
    """The plan less the cases that the folder's records have fresh rows of."""
    lock = Lock.load()
    known = {op.name: record.load(folder, op) for op in ops}
    return replace(
        plan,
        measured={op.name: record.measured_cases(known[op.name], op, lock) for op in ops},
    )


def only_changed(plan: Plan, ops: Sequence[Op], folder: Path, sm: int | None = None) -> Plan:
    """The plan less what the folder's records have fresh rows of, implementation by implementation.

    Args:
        plan: what to measure.
        ops: operators of the catalogue.
        folder: of a GPU's records.
        sm: compute capability of that GPU; None stands for any.
    """
    lock = Lock.load()
    only = {}
    for op in ops:
        ladders = {dtype: ladder_cases(op, dtype, sm) for dtype in op.bench_dtypes}
        only[op.name] = record.to_measure(record.load(folder, op), op, lock, ladders)
    return replace(plan, only=only)


# --- implementations ------------------------------------------------------------------------------


@dataclass
class Case:
    """One operator at one dtype and shape: its buffer sets and what is compared on them."""

    op: Op
    dtype: str
    sample: Sample
    sets: list[tuple[Any, ...]]
    cold: bool
    functions: dict[str, Function] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.dtype} {self.sample.label}"

    def call(self, function: Function) -> timing.Implementation:
        sets = self.sets
        return lambda i: function(*sets[i])


def eager_function(op: Op, args: tuple[Any, ...]) -> Function:
    """What a PyTorch user would write for arguments like these; fp8, in which PyTorch cannot
    compute, by way of float32.
    """
    written = op.eager if op.eager is not None else op.reference
    if not catalogue.is_fp8(references.first_tensor(args).dtype):
        return written
    dtypes = tuple(promise.dtype for promise in testing.promised(op, args))

    def run(*args: Any) -> Any:
        out = written(*references.upcast(args, torch.float32))
        if isinstance(out, tuple):
            return tuple(o.to(dtype) for o, dtype in zip(out, dtypes, strict=True))
        return out.to(dtypes[0])

    return run


def torch_op(name: str) -> Function:
    return getattr(torch.ops.warpsmith, name).default


def public_function(op: Op) -> Function:
    """The function that users call; an operator without one (a gradient) as autograd calls it."""
    if op.name in warpsmith.__all__:
        return getattr(warpsmith, op.name)
    return functools.partial(dispatch.public(op), None)


def compiled_function(op: Op, args: tuple[Any, ...]) -> Function:
    """`torch.compile` of what a PyTorch user would write, for this one shape."""
    torch._dynamo.reset()
    written = eager_function(op, args)
    return torch.compile(lambda *given: written(*given), dynamic=False)


def chosen_variants(
    op: Op, args: tuple[Any, ...], plan: Plan, ladder: bool
) -> Iterator[catalogue.Variant]:
    if plan.variants == "none" or (plan.variants == "ladder" and not ladder):
        return
    named = None
    if not isinstance(plan.variants, str):
        named = {name.removeprefix(f"{op.name}_") for name in plan.variants}
    sm = dispatch.device_sm(references.first_tensor(args).device)
    for variant in op.variants:
        wanted = named is None or variant.name in named or variant.rung.name in named
        if wanted and dispatch.refusal(variant, args, sm) is None:
            yield variant


def implementations(case: Case, plan: Plan, ladder: bool, say: Progress) -> dict[str, Function]:
    """Everything to time in a case: name -> function of the operator's arguments."""
    op = case.op
    functions: dict[str, Function] = {"auto": torch_op(op.name)}
    if plan.wants("triton") and twins.triton_available():
        functions["triton"] = twins.triton_function(op)
    if plan.wants("torch"):
        functions["torch"] = eager_function(op, case.sets[0])
    if plan.wants("compile") and "compile" not in op.peers:
        functions["compile"] = compiled_function(op, case.sets[0])
    for name, factory in op.peers.items():
        if not plan.wants(name):
            continue
        if name == "compile":
            torch._dynamo.reset()
        try:
            functions[name] = factory()
        except Exception as error:  # not installed, or broken: the others are still measured
            say(f"{op.name}: {name} is left out: {first_line(error)}")
    if dispatch.load(op.library):
        for variant in chosen_variants(op, case.sets[0], plan, ladder or plan.only is not None):
            functions[variant.name] = torch_op(variant.op_name)
    if plan.only is None:
        return functions
    wanted = plan.only.get(op.name, {}).get(case.label, frozenset())
    return {name: f for name, f in functions.items() if name in wanted or is_peer(op, name)}


# --- one case -------------------------------------------------------------------------------------


def first_line(error: BaseException) -> str:
    """What a row says of an implementation that raised; of paths, the names of files alone."""
    lines = str(error).strip().splitlines()
    line = re.sub(r"/(?:[\w.@+-]+/)+", "", lines[0]) if lines else ""
    return f"{type(error).__name__}: {line}".rstrip(": ")


def make_sets(sample: Sample, dtype: str, op: Op, l2: int) -> tuple[list[tuple[Any, ...]], bool]:
    """Buffer sets of different values, enough of them that none is in L2 when its turn comes; and
    whether that held.
    """

    def one(seed: int) -> tuple[Any, ...]:
        return dispatch.normalise(op, sample.make(op.inputs(dtype, "cuda", seed)))

    first = one(0)
    per_call = max(timing.bytes_of(first), op.cost.bytes(*first) if op.cost else 0)
    count = timing.sets_for(per_call, l2)
    return [
        first,
        *(one(seed) for seed in range(1, count)),
    ], per_call * count >= timing.COLD_FACTOR * l2


def _judged_once(op: Op, args: tuple[Any, ...]) -> testing.Expected | None:
    """What every implementation of a case is judged by; None where the rule had better work piece
    by piece.
    """
    if op.elementwise and references.first_tensor(args).numel() > SHARED_JUDGEMENT:
        return None
    return testing.Expected.of(op, args)


def _as_promised(op: Op, out: Any, args: tuple[Any, ...], expected: testing.Expected | None) -> Any:
    """A peer's result in the layout that our operator promises: a peer makes no such promise. An
    output that it does not compute, which it returns as None, is not held against it.
    """
    said = references.promised(op, dispatch.normalise(op, args))
    outs = tuple(out) if isinstance(out, (tuple, list)) else (out,)
    moved: list[Any] = []
    computed = iter(expected.torch if expected is not None else ())
    for o, promise in itertools.zip_longest(outs, said):
        if promise is None:  # not asked for
            moved.append(o)
            continue
        known = next(computed, None)
        o = known if o is None else o
        if o is not None and o.shape == promise.shape and o.stride() != promise.stride():
            target = torch.empty_strided(
                promise.shape, promise.stride(), dtype=o.dtype, device=o.device
            )
            o = target.copy_(o)
        moved.append(o)
    return tuple(moved) if len(moved) > 1 else moved[0]


def gate(case: Case, say: Progress, stuck: str | None = None) -> None:
    """Keeps the implementations whose result is right; the others get a row that says what is wrong
    with them.

    Ours have to satisfy the accuracy rule. A peer only has to compute the same thing: one that
    misses the rule by less than the operator's `peer_error_ratio` keeps its number, and a remark.
    What is `stuck` is not called.
    """
    op, args = case.op, case.sets[0]
    variants = {variant.name: variant for variant in op.variants}
    expected = _judged_once(op, args)
    for name, function in list(case.functions.items()):
        row: Row = {"case": case.label, "impl": name}
        ours = not is_peer(op, name)
        try:
            if name == stuck:
                raise TimeoutError("its first call did not come to an end")
            out = testing.with_written(op, function)(*args)
            if not ours:
                out = _as_promised(op, out, args, expected)
            verdict = testing.compare(
                op,
                out,
                args,
                variant=variants.get(name),
                label=case.sample.label,
                expected=expected,
            )
            if math.isfinite(verdict.error_ratio):
                row["error_ratio"] = _round(verdict.error_ratio)
            if not verdict.ok and not ours and 0 < verdict.error_ratio <= op.peer_error_ratio:
                row["remark"] = _brief(verdict.message)
            elif not verdict.ok:
                row["error"] = _brief(verdict.message)
        except torch.cuda.OutOfMemoryError:
            row["error"] = "out of memory while checking the result"
        except Exception as error:  # a peer may fail in any way; the others are still measured
            row["error"] = first_line(error)
        case.rows[name] = row
        if "error" in row:
            del case.functions[name]
            say(f"{op.name} {case.label}: {name}: {row['error']}")
    del expected
    torch.cuda.empty_cache()


def _brief(message: str) -> str:
    return message.strip().splitlines()[0][:200] if message.strip() else "wrong result"


def _round(value: float) -> float:
    return float(f"{value:.5g}")


def fill_row(
    row: Row, time: timing.Timing, known: dict[str, Any], dtype: str, moved: int, flops: int
) -> None:
    """Adds the numbers that follow from a time."""
    row["ms"] = _round(time.ms)
    row["ms_low"] = _round(time.ms_low)
    row["ms_high"] = _round(time.ms_high)
    if moved:
        row["tbps"] = _round(moved / time.ms / 1e9)
    if flops:
        row["tflops"] = _round(flops / time.ms / 1e9)
    floor = limits.floor_ms(known, dtype, moved, flops)
    if floor > 0:
        row["of_limit"] = _round(floor / time.ms)
    if time.method != "graph":
        row["method"] = time.method
        row["note"] = time.note


def _failing_later(case: Case, calls: dict[str, Callable[[int], Any]]) -> list[str]:
    """Peers that fail on a later buffer set, out of memory say: it costs the others nothing."""
    found = []
    for name, call in calls.items():
        if not is_peer(case.op, name):
            continue
        try:
            for i in range(1, len(case.sets)):
                call(i)
        except Exception as error:
            case.rows[name]["error"] = first_line(error)
            found.append(name)
            torch.cuda.empty_cache()
    return found


def measure_case(case: Case, plan: Plan, known: dict[str, Any], say: Progress) -> list[Row]:
    """Gates and times every implementation of a case."""
    op = case.op
    gate(case, say, plan.stuck.get((op.name, case.label)))
    calls = {name: case.call(function) for name, function in case.functions.items()}
    for name in _failing_later(case, calls):
        say(f"{op.name} {case.label}: {name}: {case.rows[name]['error']}")
        del calls[name]
    if not calls:
        return list(case.rows.values())
    moved = op.cost.bytes(*case.sets[0]) if op.cost else 0
    flops = op.cost.flops(*case.sets[0]) if op.cost else 0
    with timing.Telemetry(0.6 * plan.seconds * len(calls)) as telemetry:
        times = timing.measure(calls, sets=len(case.sets), seconds=plan.seconds)
    for name, time in times.items():
        row = case.rows[name]
        ceiling = (op.cost.matrix if op.cost else "") or case.dtype
        fill_row(row, time, known, ceiling, moved, flops)
        if not case.cold:
            row["cache"] = "warm"
    if plan.sustained:
        for name, time in timing.sustained(calls, sets=len(case.sets)).items():
            case.rows[name]["ms_sustained"] = _round(time.ms)
    if "auto" in times:
        case.rows["auto"] |= telemetry.reading
        case.rows["auto"]["serves"] = _serves(op, case.sets[0])
    return list(case.rows.values())


def _serves(op: Op, args: tuple[Any, ...]) -> str:
    choice = dispatch.which(op.name, *args)
    return choice.variant.name if choice.variant else choice.implementation


# --- host overhead --------------------------------------------------------------------------------


def overhead_sample(op: Op, dtype: str) -> tuple[Sample, tuple[Any, ...]] | None:
    """The contiguous small sample nearest to the size at which the host is all that matters."""
    best: tuple[int, Sample, tuple[Any, ...]] | None = None
    for sample in op.samples_for(dtype):
        if not sample.small:
            continue
        args = sample.make(op.inputs(dtype, "cuda"))
        tensors = [a for a in args if isinstance(a, Tensor)]
        if not tensors or not all(
            t.is_contiguous() and t.numel() and t.data_ptr() % 16 == 0 for t in tensors
        ):
            continue
        distance = abs(tensors[0].numel() - OVERHEAD_ELEMENTS)
        if best is None or distance < best[0]:
            best = (distance, sample, args)
    return None if best is None else best[1:]


def measure_overhead(op: Op, dtype: str) -> list[Row]:
    """Host time per call: the public function, PyTorch, and `torch.add` as the yardstick."""
    found = overhead_sample(op, dtype)
    if found is None:
        return []
    sample, args = found
    x = torch.zeros(OVERHEAD_ELEMENTS, device="cuda")
    calls: dict[str, Callable[[], Any]] = {
        "auto": functools.partial(public_function(op), *args),
        "torch": functools.partial(eager_function(op, args), *dispatch.normalise(op, args)),
        "torch.add": functools.partial(torch.add, x, x),
    }
    rows: dict[str, Row] = {}
    for name, call in list(calls.items()):
        rows[name] = {"case": f"{dtype} {sample.label}", "impl": name}
        try:
            call()
        except Exception as error:  # an eager backward may want more than a plain call, say
            rows[name]["error"] = first_line(error)
            del calls[name]
    for name, microseconds in timing.host_times(calls).items():
        rows[name]["cpu_us"] = _round(microseconds)
    return list(rows.values())


# --- operators ------------------------------------------------------------------------------------


def bench_dtypes(op: Op, plan: Plan) -> tuple[str, ...]:
    if plan.dtypes is None:
        return op.bench_dtypes
    return tuple(dtype for dtype in plan.dtypes if dtype in op.dtypes)


def bench_cases(op: Op, dtype: str, plan: Plan) -> tuple[Sample, ...]:
    if not plan.timed:
        return ()
    measured = plan.measured.get(op.name, frozenset())
    only = plan.only.get(op.name, {}) if plan.only is not None else None
    return tuple(
        s
        for s in op.bench_for(dtype)
        if (plan.cases is None or plan.cases in f"{dtype} {s.label}")
        and f"{dtype} {s.label}" not in measured
        and (only is None or f"{dtype} {s.label}" in only)
    )


def ladder_cases(op: Op, dtype: str, sm: int | None = None) -> tuple[str, ...]:
    """Labels of the cases at which every variant is timed: those that the operator names, or the
    one that moves the most bytes; then as few others as show each rung where it is at home, or at
    least where it takes a case.

    Args:
        op: an operator.
        dtype: the dtype of the cases.
        sm: compute capability of the GPU; None stands for any.

    Returns:
        The labels, judged without allocating a case.
    """
    samples = op.bench_for(dtype)
    takes = {sample.label: _rungs_for(op, sample, dtype, sm) for sample in samples}
    sizes = {sample.label: _planned_bytes(op, sample, dtype) for sample in samples}
    # The last of equals, as the spec lists its cases from small to large.
    by_size = sorted(sizes, key=sizes.__getitem__)[::-1]
    chosen = [sample.label for sample in samples if sample.ladder] or by_size[:1]
    for strict in (True, False):
        shown = {
            n: {r for r, at_home in found.items() if at_home or not strict}
            for n, found in takes.items()
        }
        missing = set[str]().union(*shown.values()).difference(*(shown[n] for n in chosen))
        while missing:
            chosen.append(max(by_size, key=lambda label: len(shown[label] & missing)))
            missing -= shown[chosen[-1]]
    return tuple(label for label in takes if label in chosen)


def _rungs_for(op: Op, sample: Sample, dtype: str, sm: int | None) -> dict[str, bool]:
    """Names of the rungs that take a case, and whether it suits them."""
    args = _planned(op, sample, dtype)
    return {
        v.rung.name: v.rung.suits(*args) is None
        for v in op.variants
        if dispatch.refusal(v, args, sm) is None
    }


def _planned(op: Op, sample: Sample, dtype: str) -> tuple[Any, ...]:
    return dispatch.normalise(op, sample.make(op.inputs(dtype, "meta")))


def _planned_bytes(op: Op, sample: Sample, dtype: str) -> int:
    return int(op.cost.bytes(*_planned(op, sample, dtype))) if op.cost else 0


def case_names(op: Op, plan: Plan) -> list[str]:
    """Of the cases to time, as a record has them."""
    return [f"{dt} {s.label}" for dt in bench_dtypes(op, plan) for s in bench_cases(op, dt, plan)]


def count_cases(ops: Sequence[Op], plan: Plan) -> int:
    return sum(len(case_names(op, plan)) for op in ops)


def bench_op(
    op: Op, plan: Plan, known: dict[str, Any], say: Progress = _quiet, step: Progress = _quiet
) -> Iterator[list[Row]]:
    """Rows of one operator, case by case."""
    device = torch.device("cuda", torch.cuda.current_device())
    l2, sm = timing.l2_bytes(device.index), dispatch.device_sm(device)
    for dtype in bench_dtypes(op, plan):
        cases = bench_cases(op, dtype, plan)
        ladders = ladder_cases(op, dtype, sm) if cases else ()
        for sample in cases:
            step(f"{op.name} {dtype} {sample.label}")
            timing.stream().wait_stream(torch.cuda.current_stream())
            try:
                # On the measuring stream throughout: see timing.stream().
                with torch.cuda.stream(timing.stream()), warnings.catch_warnings():
                    warnings.simplefilter("ignore", dispatch.FallbackWarning)
                    sets, cold = make_sets(sample, dtype, op, l2)
                    case = Case(op, dtype, sample, sets, cold)
                    case.functions = implementations(case, plan, sample.label in ladders, say)
                    rows = measure_case(case, plan, known, say)
            except torch.cuda.OutOfMemoryError:
                error = "this GPU has too little memory"
                rows = [{"case": f"{dtype} {sample.label}", "impl": "auto", "error": error}]
                say(f"{op.name} {dtype} {sample.label}: skipped, {error}")
            finally:
                case = sets = None  # type: ignore[assignment]
                torch.cuda.empty_cache()
            yield rows


def bench(
    ops: Sequence[Op],
    plan: Plan,
    *,
    out: Path | None = None,
    say: Progress = _quiet,
    step: Progress = _quiet,
) -> list[Path]:
    """Benchmarks operators and writes their records, case by case.

    Args:
        ops: operators of the catalogue.
        plan: what to measure.
        out: folder for the records; `benchmarks/results/<gpu>` by default.
        say: called with each message for the user.
        step: called with the name of each case as it begins.

    Returns:
        The files written.

    Raises:
        RuntimeError: where there is no CUDA GPU.
    """
    if not torch.cuda.is_available():
        raise RuntimeError(f"bench {limits.NO_GPU}")
    folder = out or limits.results_dir()
    if limits.load(folder) is None:
        say("measuring the limits of this GPU (about half a minute, once)")
    known = limits.ensure(folder)
    if importlib.util.find_spec("pynvml") is None:
        say("clocks, power and temperatures are left out: `pip install 'warpsmith[bench]'`")
    lock = Lock.load()
    written: list[Path] = []
    for op in ops:
        path = record.record_path(folder, op.name)
        run = record.this_run()
        if (lock is None or not lock.knows(op)) and plan.timed:
            say(
                f"{op.name}: benchmarks/code.json is not of these sources, and rows will not say "
                "what they speak for; `warpsmith build --arch 90a --report --lock` enters them"
            )
        for rows in bench_op(op, plan, known, say, step):
            coded = record.with_code(op, rows, lock)
            _enter(path, record.made(run, rows=coded), op)
        gc.collect()
        if plan.overhead:
            dtype = "bf16" if "bf16" in op.dtypes else op.dtypes[0]
            _enter(path, record.made(run, overhead=measure_overhead(op, dtype)), op)
        if path.exists():
            written.append(path)
    return written


def _enter(path: Path, made: record.Record, op: Op) -> None:
    if made["rows"] or made.get("overhead"):
        json_files.update_json(path, lambda known: record.merge(known, made, op))
