"""What surrounds a call in PyTorch: opcheck, torch.compile, graphs, streams, devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import dispatch
from warpsmith.core.catalogue import DTYPES, is_fp8
from warpsmith.proof import testing
from warpsmith.proof.testing import Expected
from warpsmith.proof.verify.gradients import judge_gradients
from warpsmith.proof.verify.run import (
    COMPILED_DTYPES,
    Run,
    covering,
    elements,
    expect,
    implementations,
    plain_samples,
    requiring,
    tensors,
    usable_samples,
)

#: Keeps a stream busy for long enough that a kernel on another one overtakes it.
_SLEEP_CYCLES = 3_000_000


def _opcheck(run: Run, function: Any, args: tuple[Any, ...], dtype: str) -> None:
    tests: Any = ("test_schema", "test_autograd_registration", "test_faketensor")
    if _can_be_compared(run, args):
        tests += ("test_aot_dispatch_dynamic",)
    if is_fp8(DTYPES[run.op.signature(dtype).first]):
        # PyTorch has neither the arithmetic that its schema test needs at fp8, nor the sums that
        # reduce an output to the scalar whose gradient it takes.
        tests = tests[1:]
    elif run.op.backward is not None:
        torch.library.opcheck(function, requiring(args), test_utils=tests)
    torch.library.opcheck(function, args, test_utils=tests)


def _can_be_compared(run: Run, args: tuple[Any, ...]) -> bool:
    """Whether PyTorch, to which no NaN equals another, can set one call beside the next: sums that
    are added up in any order differ.
    """
    given = dict(zip(run.op.argument_names, dispatch.normalise(run.op, args), strict=True))
    if given.get("deterministic") is False:
        return False
    return not any(bool(o.float().isnan().any()) for o in testing.yardstick(run.op, args))


def _few_dtypes(run: Run) -> tuple[str, ...]:
    """Those of slow checks; of an operator that has none of them, its last."""
    few: tuple[str, ...] = COMPILED_DTYPES
    if not set(few) & set(run.op.dtypes):
        few = run.all_dtypes[-1:]
    return tuple(d for d in run.dtypes if d in few)


def opcheck_checks(run: Run) -> None:
    if not run.wants("opcheck"):
        return
    # The reference's way through PyTorch is the same at every dtype.
    for dtype in run.some(run.dtypes if run.on_gpu else _few_dtypes(run)[:1], 1, "opcheck"):
        usable = [p for p in usable_samples(run, dtype) if elements(p[1]) <= 5000]
        strided = [p for p in usable if not all(t.is_contiguous() for t in tensors(p[1]))]
        plain = [p for p in plain_samples(run, dtype) if elements(p[1]) <= 5000]
        first, step = run.part
        for sample, args in (plain[:1] + strided[:1])[first::step]:
            with run.check("opcheck", f"{dtype} {sample}"):
                _opcheck(run, run.overload(), args, dtype)
        done = 0
        variants = list(run.variants(dtype))[first::step]
        for variant in run.some(variants, 1, "opcheck", dtype):
            for sample, args in plain + usable:
                if dispatch.refusal(variant, args, run.sm) is None:
                    with run.check("opcheck", f"{variant.name} {sample}"):
                        _opcheck(run, run.overload(variant), args, dtype)
                    done += 1
                    break
            if done and not run.on_gpu:
                break


def _signature(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(("tensor", a.dim()) if isinstance(a, Tensor) else a for a in args)


def compile_checks(run: Run) -> None:
    """A static graph at f32; a dynamic one that meets two shapes at bf16, or at the last dtype of
    an operator without it; with gradients.
    """
    if not run.wants("compile"):
        return
    backend = "inductor" if run.on_gpu else "aot_eager"
    few = _few_dtypes(run)
    modes = [(dtype, False) for dtype in few if dtype != "bf16"]
    if "bf16" in run.all_dtypes:
        modes += [(dtype, True) for dtype in few if dtype == "bf16"]
    else:
        modes += [(dtype, True) for dtype in few[-1:]]
    for dtype, dynamic in run.some(modes, 1, "compile"):
        found = plain_samples(run, dtype)
        if not found:
            continue
        first = found[0][1]
        shapes = [tuple(t.shape) for t in tensors(first)]
        others = [
            args
            for _, args in found[1:]
            if _signature(args) == _signature(first)
            and [tuple(t.shape) for t in tensors(args)] != shapes
        ]
        with run.check("compile", f"{dtype} {'dynamic' if dynamic else 'static'}"):
            torch._dynamo.reset()
            compiled = torch.compile(
                run.overload(), fullgraph=True, dynamic=dynamic, backend=backend
            )
            function = testing.with_written(run.op, compiled)
            for args in (first, *(others[:1] if dynamic else ())):
                label = f"{[tuple(t.shape) for t in tensors(args)]}, compiled"
                with torch.no_grad():
                    out = function(*args)
                testing.assert_matches(run.op, out, args, label)
                if run.op.backward is not None:
                    judge_gradients(run, function, args, label)
    torch._dynamo.reset()


def _refill(static: tuple[Any, ...], fresh: tuple[Any, ...]) -> None:
    for old, new in zip(static, fresh, strict=True):
        if isinstance(old, Tensor):
            old.copy_(new)


def graph_checks(run: Run) -> None:
    """A captured call must follow its inputs when they change."""
    if not run.wants("graph"):
        return
    for dtype in run.dtypes:
        for sample, _, names in covering(run, dtype):
            names = frozenset(run.some(sorted(names), 2, "graph", dtype, str(sample)))
            fresh = run.make(sample, dtype, seed=1)
            expected = Expected.of(run.op, fresh)
            for name, function, variant in implementations(run, dtype, fresh):
                if name not in names:
                    continue
                static = run.make(sample, dtype)
                with run.check("graph", f"{name} {dtype} {sample}"), torch.no_grad():
                    graph, out = _capture(function, static)
                    _refill(static, fresh)
                    graph.replay()
                    torch.cuda.synchronize()
                    testing.assert_matches(
                        run.op, out, fresh, "replayed", variant=variant, expected=expected
                    )


def _capture(
    function: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[torch.cuda.CUDAGraph, Any]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        function(*args)
        stream.synchronize()
        graph.capture_begin()
        try:
            out = function(*args)
        except BaseException:
            with contextlib.suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph, out


def stream_checks(run: Run) -> None:
    """On a busy side stream that still has to produce the inputs."""
    if not run.wants("stream"):
        return
    for dtype in run.dtypes:
        for sample, _, names in covering(run, dtype):
            names = frozenset(run.some(sorted(names), 2, "stream", dtype, str(sample)))
            fresh = run.make(sample, dtype, seed=1)
            expected = Expected.of(run.op, fresh)
            for name, function, variant in implementations(run, dtype, fresh):
                if name not in names:
                    continue
                static = run.make(sample, dtype)
                side = torch.cuda.Stream()
                with run.check("stream", f"{name} {dtype} {sample}"), torch.no_grad():
                    torch.cuda.synchronize()
                    with torch.cuda.stream(side):
                        torch.cuda._sleep(_SLEEP_CYCLES)
                        _refill(static, fresh)
                        out = function(*static)
                    side.synchronize()
                    testing.assert_matches(
                        run.op, out, fresh, "side stream", variant=variant, expected=expected
                    )


def device_checks(run: Run) -> None:
    """Tensors on a GPU that is not the current one."""
    if not run.wants("device") or torch.cuda.device_count() < 2:
        return
    current = torch.cuda.current_device()
    other = torch.device("cuda", (current + 1) % torch.cuda.device_count())
    for dtype in run.dtypes:
        for sample, _, names in covering(run, dtype):
            names = frozenset(run.some(sorted(names), 2, "device", dtype, str(sample)))
            args = dispatch.normalise(run.op, sample.make(run.op.inputs(dtype, other)))
            for name, function, variant in implementations(run, dtype, args):
                if name not in names:
                    continue
                with run.check("device", f"{name} {dtype} on {other}"), torch.no_grad():
                    out = function(*args)
                    testing.assert_matches(run.op, out, args, f"on {other}", variant=variant)
                    expect(torch.cuda.current_device() == current, "left another GPU current")
