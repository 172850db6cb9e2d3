"""Plain calls: samples, variants, refusals, Triton twins, special values, bad calls, properties."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from warpsmith.core import dispatch, references
from warpsmith.core.catalogue import Op, Sample, Variant
from warpsmith.proof import testing
from warpsmith.proof.testing import Expected
from warpsmith.proof.verify.run import (
    FEW_AT_EVERY_DTYPE,
    FEW_ELEMENTS,
    MANY_ELEMENTS,
    Run,
    as_tuple,
    covering,
    elements,
    expect,
    expect_rung,
    implementations,
    launches,
    plain_samples,
    run_judged,
    strict,
    tensors,
    usable_samples,
)

#: What a quick verification makes of a dtype's samples: so many small ones, of which so many by
#: the Triton twin, which may be compiled anew for each.
_QUICK_SAMPLES, _QUICK_TWINS = 6, 2


def sample_checks(run: Run) -> None:
    if run.quick is None:
        _samples(run, huge=False)
    else:
        _some_samples(run)


def huge_checks(run: Run) -> None:
    """The samples that need several GB."""
    if run.on_gpu and run.quick is None:
        _samples(run, huge=True)


def _samples(run: Run, huge: bool) -> None:
    if not run.wants("samples", "variants", "refusals", "triton"):
        return
    first, step = (0, 1) if huge else run.part
    for dtype in run.dtypes:
        for sample in [s for s in run.op.samples_for(dtype) if s.huge == huge][first::step]:
            _guarded_sample(run, dtype, sample)
            if sample.huge:
                torch.cuda.empty_cache()


def _some_samples(run: Run) -> None:
    """A choice of small samples for each dtype and a larger one for one of them; then, of the
    others, those at which a variant that refused all of these can be called.
    """
    large_at = run.some(run.dtypes, 1, "large")
    for dtype in run.dtypes:
        samples = [s for s in run.op.samples_for(dtype) if not s.huge]
        small = [s for s in samples if s.small]
        chosen = run.some(small, _QUICK_SAMPLES, "small", dtype)
        if dtype in large_at:
            chosen += run.some([s for s in samples if not s.small], 1, "large", dtype)
        waiting = {v.name: v for v in run.variants(dtype) if v.rung.min_sm <= (run.sm or 0)}
        twins = run.some(chosen, _QUICK_TWINS, "twins", dtype)
        for sample in chosen:
            for name in _guarded_sample(run, dtype, sample, twin=sample in twins):
                waiting.pop(name, None)
        others = sorted((s for s in samples if s not in chosen), key=lambda s: not s.small)
        for sample in others if waiting else ():
            args = run.make(sample, dtype)
            able = [v for v in waiting.values() if dispatch.refusal(v, args, run.sm) is None]
            if able and run.wants("variants"):
                for name in _guarded_sample(run, dtype, sample, twin=False, only=able):
                    waiting.pop(name, None)
            if not waiting:
                break


def _guarded_sample(run: Run, dtype: str, sample: Sample, **how: Any) -> list[str]:
    try:
        return _one_sample(run, dtype, sample, **how)
    except torch.cuda.OutOfMemoryError:
        run.out_of_memory("samples", f"{dtype} {sample}", sample.huge)
    return []


def _one_sample(
    run: Run,
    dtype: str,
    sample: Sample,
    twin: bool = True,
    only: Sequence[Variant] | None = None,
) -> list[str]:
    """The names of the variants that took the call. `only`: of all implementations these alone."""
    args = run.make(sample, dtype)
    if not run.on_gpu:
        _one_sample_on_cpu(run, dtype, sample, args, twin)
        return []
    op, label, huge = run.op, f"{dtype} {sample}", sample.huge
    expected = None if huge and op.elementwise else Expected.of(op, args)
    if run.wants("samples") and only is None:
        with run.check("samples", label, huge):
            choice = dispatch.which(op.name, *args)
            guard = strict() if choice.implementation == "cuda" else contextlib.nullcontext()
            with guard:
                out = run_judged(run, run.function(), args, str(sample), expected)
            if choice.variant is not None and launches(args, out):
                expect_rung(run, choice.variant.rung.name)
    took = []
    for variant in run.variants(dtype) if only is None else only:
        why = dispatch.refusal(variant, args, run.sm)
        if why is None and run.wants("variants"):
            took.append(variant.name)
            with run.check("variants", f"{variant.name} {sample}", huge), strict():
                out = run_judged(run, run.function(variant), args, str(sample), expected, variant)
                if launches(args, out):
                    expect_rung(run, variant.rung.name)
        elif why is not None and run.wants("refusals"):
            with run.check("refusals", f"{variant.name} {sample}"):
                _expect_refusal(run, variant, args, why)
    if twin and run.wants("triton") and run.triton_runs():
        with run.check("triton", label, huge):
            run_judged(run, _twin(run), args, f"{sample}, Triton", expected)
    return took


def _twin(run: Run) -> Callable[..., Any]:
    return lambda *args: testing.run_triton(run.op, args)


def _one_sample_on_cpu(
    run: Run, dtype: str, sample: Sample, args: tuple[Any, ...], twin: bool
) -> None:
    """A CPU runs the reference, whose values nothing here could contradict but the Triton twin:
    that it runs, writes no input, and gives what the fake promises can fail.
    """
    size = elements(args)
    if size > MANY_ELEMENTS:
        return
    if run.wants("samples"):
        with run.check("samples", f"{dtype} {sample}"):
            with testing.unchanged(args), testing.poison(), torch.no_grad():
                out = tuple(o for o in as_tuple(run.function()(*args)) if o is not None)
            plain, promises = testing.yardstick(run.op, args), testing.promised(run.op, args)
            expect(len(out) == len(plain) == len(promises), "a different number of outputs")
            for ours, reference, promise in zip(out, plain, promises, strict=True):
                fault = testing.layout_fault(ours, promise)
                expect(not fault, fault)
                # before the operator lays it out as promised, which might broadcast it
                said = (reference.dtype, reference.shape)
                expect(said == (promise.dtype, promise.shape), f"the reference gives {said}")
    twin &= run.wants("triton") and run.triton_runs()
    if twin and sample.small and size <= FEW_ELEMENTS and _at_this_dtype(run, dtype, sample, size):
        with run.check("triton", f"{dtype} {sample}"):
            expected = Expected.of(run.op, args)
            run_judged(run, _twin(run), args, f"{sample}, Triton", expected)


def _at_this_dtype(run: Run, dtype: str, sample: Sample, size: int) -> bool:
    """Whether a twin is interpreted there. What a sample is about, a layout or a tail, it shows at
    one dtype; what a dtype needs, conversions, small samples show.
    """
    if size <= FEW_AT_EVERY_DTYPE:
        return True
    possible = [d for d in run.all_dtypes if sample.dtypes is None or d in sample.dtypes]
    return dtype == possible[run.op.samples.index(sample) % len(possible)]


def _expect_refusal(run: Run, variant: Variant, args: tuple[Any, ...], why: str) -> None:
    try:
        run.function(variant)(*args)
    except (RuntimeError, TypeError, ValueError) as error:
        expect(run.op.name in str(error), f"the refusal does not name the operator: {error}")
        expect(why in str(error), f"the refusal should say '{why}', it says: {error}")
    else:
        raise AssertionError(f"took a call that the spec refuses: {why}")


def wrong_dtype_checks(run: Run) -> None:
    """Every variant refuses another dtype."""
    if not run.wants("refusals"):
        return
    for dtype in run.dtypes:
        found = plain_samples(run, dtype)
        if not found:
            continue
        for variant in run.op.variants:
            if variant.dtype != dtype and run.compiled:
                with run.check("refusals", f"{variant.name} given {dtype}"):
                    why = dispatch.refusal(variant, found[0][1], run.sm)
                    _expect_refusal(run, variant, found[0][1], why or "takes")
        break


def nonfinite_checks(run: Run) -> None:
    """NaN, and for operators that are no derivatives infinities too, among ordinary values."""
    if not run.wants("nonfinite"):
        return
    values = nonfinite_values(run.op)
    for dtype in run.dtypes:
        for sample, args, names in covering(run, dtype):
            for value in run.some(values, 1, "nonfinite", dtype):
                changed = planted(args, value)
                expected = Expected.of(run.op, changed)
                for name, function, variant in implementations(run, dtype, changed):
                    if name not in names:
                        continue
                    label = f"{name} {dtype} {value}"
                    with run.check("nonfinite", label):
                        run_judged(run, function, changed, str(sample), expected, variant)


def nonfinite_values(op: Op) -> list[float]:
    """What `nonfinite_checks` plants among an operator's arguments. No infinities for gradients,
    from the output or not: whether two terms cancel there depends on how a formula is written.
    """
    values = [float("nan")]
    return values if "_backward" in op.name else [*values, float("inf"), -float("inf")]


def planted(args: tuple[Any, ...], value: float) -> tuple[Any, ...]:
    """The arguments with a value at three places of each floating-point tensor."""
    changed = []
    for i, a in enumerate(args):
        if isinstance(a, Tensor) and a.is_floating_point() and a.numel():
            a = a.clone()
            for place in (i, a.numel() // 2 + i, a.numel() - 1 - i):
                a[numpy.unravel_index(place % a.numel(), a.shape)] = value
        changed.append(a)
    return tuple(changed)


def _with_omitted(run: Run, out: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a public function returned, with None for outputs that the call leaves out: it returns
    those that there are, the only one by itself.
    """
    promised = references.promised(run.op, dispatch.normalise(run.op, args))
    there = iter(o for o in as_tuple(out) if o is not None)
    return tuple(None if promise is None else next(there, None) for promise in promised)


def as_public(function: Callable[..., Any], named: dict[str, Any]) -> dict[str, Any]:
    """An operator's arguments by the names that a public function has for them: the two sides of a
    window may be one pair, and what an operator returns beside the result has to be asked for.
    """
    if "return_mask" in inspect.signature(function).parameters:
        named = named | {"return_mask": True}
    if "window_left" not in named or "window" not in inspect.signature(function).parameters:
        return named
    rest = {name: x for name, x in named.items() if not name.startswith("window_")}
    return rest | {"window": (named["window_left"], named.get("window_right", -1))}


def _by_position(run: Run, function: Callable[..., Any]) -> Callable[..., Any]:
    """A public function that takes all of its operator's arguments by position."""
    kinds = [p.kind for p in inspect.signature(function).parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY not in kinds:
        return function
    first = kinds.index(inspect.Parameter.KEYWORD_ONLY)

    def call(*args: Any, **more: Any) -> Any:
        named = dict(zip(run.op.argument_names[first:], args[first:], strict=False))
        return function(*args[:first], **as_public(function, named), **more)

    return call


def public_checks(run: Run) -> None:
    """The function of the package, which goes below autograd where it may."""
    import warpsmith

    function = getattr(warpsmith, run.op.name, None)
    if not run.wants("public") or run.op.name not in warpsmith.__all__ or function is None:
        return
    for dtype in run.dtypes:
        for sample, args in run.some(usable_samples(run, dtype)[:3], 1, "public", dtype):
            given = sample.make(run.inputs(dtype))
            with run.check("public", f"{dtype} {sample}"):
                called = testing.with_written(run.op, _by_position(run, function))
                out = _with_omitted(run, called(*given), args)
                testing.assert_matches(run.op, out, args, f"{sample}, public function")
                graph = any(o.requires_grad for o in tensors(as_tuple(out)))
                expect(not graph, "a result that nothing asked a gradient of requires one")
    with run.check("public", "unknown variant"):
        args = run.op.samples_for(run.dtypes[0])[0].make(run.inputs(run.dtypes[0]))
        try:
            _by_position(run, function)(*args, variant="no_such_variant")
        except ValueError as error:
            expect(run.op.name in str(error), f"the message does not name the operator: {error}")
            expect("no_such_variant" in str(error), f"the message does not name it: {error}")
        else:
            raise AssertionError("an unknown variant was accepted")


def error_checks(run: Run) -> None:
    if not run.wants("errors"):
        return
    op = run.op
    for bad in op.errors:
        if bad.cuda_only and not run.on_gpu:
            continue
        variant = op.variant(bad.variant) if bad.variant else None
        if variant is not None and run.on_gpu and not run.compiled:
            continue
        dtype = variant.dtype if variant else run.dtypes[0]
        with run.check("errors", bad.label):
            args = bad.make(run.inputs(dtype))
            try:
                run.function(variant)(*args)
            except bad.error as error:
                text = str(error)
                expect(
                    re.search(bad.message, text) is not None,
                    f"expected a message like '{bad.message}', got: {text[:500]}",
                )
            else:
                raise AssertionError("the call did not raise")
            run.ensure_alive()
    usable = usable_samples(run, run.dtypes[0])
    if op.errors and usable:
        with run.check("errors", "a good call afterwards"):
            sample, args = usable[0]
            run_judged(run, run.function(), args, str(sample), None)


def property_checks(run: Run) -> None:
    if not run.wants("properties"):
        return
    for fact in run.op.properties:
        able = [d for d in run.dtypes if fact.dtypes is None or d in fact.dtypes]
        for dtype in run.some(able, 1, "properties", fact.label):
            with run.check("properties", f"{fact.label} {dtype}"), torch.no_grad():
                fact.check(run.function(), run.inputs(dtype))
