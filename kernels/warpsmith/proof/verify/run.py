"""One operator on one device: what every check shares."""

from __future__ import annotations

import contextlib
import random
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from warpsmith.core import dispatch, twins
from warpsmith.core.catalogue import Inputs, Op, Sample, Variant
from warpsmith.proof import testing
from warpsmith.proof.pool import CrowdedError, LostDeviceError
from warpsmith.proof.testing import Expected

#: What can be asked for, in the order in which it runs.
KINDS: tuple[str, ...] = (
    "samples",
    "variants",
    "refusals",
    "triton",
    "nonfinite",
    "public",
    "opcheck",
    "compile",
    "graph",
    "stream",
    "device",
    "errors",
    "properties",
    "gradients",
)
#: These need a GPU: a variant on a CPU is the reference, and refuses in the words of the spec.
CUDA_KINDS: tuple[str, ...] = ("variants", "refusals", "graph", "stream", "device")
#: The interpreter and opcheck walk through Python: their samples stay below this.
FEW_ELEMENTS = 20_000
#: A CPU, which runs the reference, learns nothing from more.
MANY_ELEMENTS = 1 << 17
#: What is repeated for special values there runs at samples below this, which still are of several
#: blocks and a tail.
FEW_INTERPRETED = 5000
#: Larger samples are interpreted at one dtype each, in turn.
FEW_AT_EVERY_DTYPE = 1000
#: Where each dtype would cost seconds.
COMPILED_DTYPES = ("f32", "bf16")


@dataclass(frozen=True)
class Result:
    """One check. `op` is an operator's name, `detail` says what went wrong where `ok` is False."""

    op: str
    kind: str
    label: str
    ok: bool
    detail: str = ""
    #: Of the process that made it, since the check before.
    seconds: float = field(default=0.0, compare=False)


T = TypeVar("T")
Progress = Callable[[Result], None]
Complete = Callable[[Sequence[Result]], None]


@dataclass
class Run:
    """The verification of one operator on one device, or the share of it at some dtypes."""

    op: Op
    device: torch.device
    kinds: frozenset[str]
    dtypes: tuple[str, ...]
    results: list[Result]
    progress: Progress | None = None
    #: The dtypes of the whole verification, where `dtypes` is a share.
    all_dtypes: tuple[str, ...] = ()
    #: Other processes work on the same GPU, so that it may lack memory for their sake alone.
    crowded: bool = False
    #: (i, n): of the samples, and of the variants under opcheck, every n-th from the i-th on; under
    #: the sanitizer, of the calls.
    part: tuple[int, int] = (0, 1)
    #: The seed of a choice among samples, where not all are checked.
    quick: int | None = None
    #: The rungs whose variants are verified; None is all of them.
    rungs: frozenset[str] | None = None
    compiled: bool = field(init=False, default=False)
    sm: int | None = field(init=False, default=None)
    _last: float = field(init=False, default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.dtypes = tuple(d for d in self.op.dtypes if d in self.dtypes)
        self.all_dtypes = tuple(d for d in self.op.dtypes if d in (self.all_dtypes or self.dtypes))
        if self.on_gpu:
            self.sm = dispatch.device_sm(self.device)
            self.compiled = dispatch.load(self.op.library)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def wants(self, *kinds: str) -> bool:
        return any(kind in self.kinds for kind in kinds)

    def add(self, kind: str, label: str, ok: bool = True, detail: str = "") -> None:
        before, self._last = self._last, time.monotonic()
        result = Result(self.op.name, kind, label, ok, detail, self._last - before)
        self.results.append(result)
        if self.progress is not None:
            self.progress(result)

    @contextlib.contextmanager
    def check(self, kind: str, label: str, huge: bool = False) -> Iterator[None]:
        """One result: what the body raises is a failure."""
        try:
            yield
        except torch.cuda.OutOfMemoryError:
            self.out_of_memory(kind, label, huge)
        except Exception as error:
            self.blame_crowd(error)
            text = str(error) if isinstance(error, AssertionError) else f"{error!r}"
            self.add(kind, label, False, text[:2000])
            self.ensure_alive()
        else:
            self.add(kind, label)

    def out_of_memory(self, kind: str, label: str, huge: bool) -> None:
        """A huge sample may be too large for a GPU; any other must fit.

        Raises:
            CrowdedError: where others may be why.
        """
        detail = "this GPU has too little memory"
        if self.crowded:
            raise CrowdedError(detail)
        if huge:
            self.add("skipped", f"{kind} {label}", detail=detail)
        else:
            self.add(kind, label, False, detail)

    def blame_crowd(self, error: Exception) -> None:
        """Raises `CrowdedError` for any other error behind which there may be a lack of memory."""
        if self.crowded and re.search(r"out of memory|_ALLOC_FAILED", str(error)):
            raise CrowdedError(str(error)) from error

    def ensure_alive(self) -> None:
        if not self.on_gpu:
            return
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise LostDeviceError(str(error)) from error

    def overload(self, variant: Variant | None = None) -> Callable[..., Any]:
        """What PyTorch calls."""
        name = variant.op_name if variant else self.op.name
        return getattr(torch.ops.warpsmith, name).default

    def function(self, variant: Variant | None = None) -> Callable[..., Any]:
        """The same as a function without side effects."""
        return testing.with_written(self.op, self.overload(variant))

    def inputs(self, dtype: str, seed: int = 0) -> Inputs:
        return self.op.inputs(dtype, self.device, seed)

    def make(self, sample: Sample, dtype: str, seed: int = 0) -> tuple[Any, ...]:
        return dispatch.normalise(self.op, sample.make(self.inputs(dtype, seed)))

    def variants(self, dtype: str) -> Iterator[Variant]:
        """The variants of that dtype, where they can run at all."""
        if not self.on_gpu or self.compiled:
            of_dtype = (v for v in self.op.variants if v.dtype == dtype)
            yield from (v for v in of_dtype if self.rungs is None or v.rung.name in self.rungs)

    def accepting(self, dtype: str, args: tuple[Any, ...]) -> Iterator[Variant]:
        for variant in self.variants(dtype):
            if dispatch.refusal(variant, args, self.sm) is None:
                yield variant

    def some(self, items: Sequence[T], count: int, *what: str) -> list[T]:
        """In a quick verification so many of the items, others for each seed and purpose; all of
        them otherwise.
        """
        if self.quick is None or len(items) <= count:
            return list(items)
        chance = random.Random(f"{self.quick} {self.op.name} {what}")
        return [items[i] for i in sorted(chance.sample(range(len(items)), count))]

    def triton_runs(self) -> bool:
        return twins.triton_available() and (self.on_gpu or twins.interpreting())


def tensors(args: Sequence[Any]) -> list[Tensor]:
    return [a for a in args if isinstance(a, Tensor)]


def elements(args: Sequence[Any]) -> int:
    return max((t.numel() for t in tensors(args)), default=0)


def launches(args: Sequence[Any], out: Any) -> bool:
    """Whether the call has work to do."""
    outs = out if isinstance(out, tuple) else (out,)
    return all(t.numel() for t in tensors(args)) and any(o.numel() for o in outs)


def expect(condition: bool, message: str) -> None:
    """An assertion that also holds under `python -O`."""
    if not condition:
        raise AssertionError(message)


@contextlib.contextmanager
def strict() -> Iterator[None]:
    """Turns a fall-back that costs speed into an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", dispatch.FallbackWarning)
        yield


def expect_rung(run: Run, wanted: str) -> None:
    ran = dispatch.last_rung(run.op.library)
    expect(ran == wanted, f"the library launched rung '{ran}', `which` promised '{wanted}'")


def run_judged(
    run: Run,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    label: str,
    expected: Expected | None,
    variant: Variant | None = None,
) -> Any:
    """Calls with poisoned outputs and watched inputs, and judges the result."""
    with testing.unchanged(args), testing.poison(), torch.no_grad():
        for p in testing.promised(run.op, args) if run.on_gpu else ():
            # Poisons the block that the allocator hands out next, should a library not ask PyTorch
            # for uninitialised memory in the way that the mode covers.
            torch.empty_strided(p.shape, p.stride(), dtype=p.dtype, device=run.device)
        out = function(*args)
    testing.assert_matches(run.op, out, args, label, variant=variant, expected=expected)
    return out


# --- choosing samples -----------------------------------------------------------------------------


def finite(args: Sequence[Any]) -> bool:
    return all(bool(t.float().isfinite().all()) for t in tensors(args) if t.is_floating_point())


def small_samples(op: Op, dtype: str) -> list[Sample]:
    return [sample for sample in op.samples_for(dtype) if sample.small and not sample.huge]


def usable_samples(run: Run, dtype: str) -> list[tuple[Sample, tuple[Any, ...]]]:
    """Small samples of finite values with something in them."""
    found = []
    for sample in small_samples(run.op, dtype):
        args = run.make(sample, dtype)
        filled = all(t.numel() for t in tensors(args))
        if filled and 0 < elements(args) <= FEW_ELEMENTS and finite(args):
            found.append((sample, args))
    return found


def empty_samples(run: Run, dtype: str) -> list[tuple[Sample, tuple[Any, ...]]]:
    """Small samples with a tensor that has nothing in it."""
    made = [(sample, run.make(sample, dtype)) for sample in small_samples(run.op, dtype)]
    return [pair for pair in made if not all(t.numel() for t in tensors(pair[1]))]


def plain_samples(run: Run, dtype: str) -> list[tuple[Sample, tuple[Any, ...]]]:
    """Those of them whose tensors are contiguous, aligned and not degenerate; largest first."""

    def plain(t: Tensor) -> bool:
        return t.is_contiguous() and t.data_ptr() % 16 == 0 and t.dim() > 0 and min(t.shape) > 1

    found = [p for p in usable_samples(run, dtype) if all(plain(t) for t in tensors(p[1]))]
    return sorted(found, key=lambda pair: -elements(pair[1]))


def spread(items: list[Any], count: int) -> list[Any]:
    if len(items) <= count:
        return items
    return [items[i * len(items) // count] for i in range(count)]


def implementations(
    run: Run, dtype: str, args: tuple[Any, ...]
) -> Iterator[tuple[str, Callable[..., Any], Variant | None]]:
    """What can serve a call, each by its name. On a CPU a variant is what `auto` is."""
    yield "auto", run.function(), None
    for variant in run.accepting(dtype, args) if run.on_gpu else ():
        yield variant.name, run.function(variant), variant
    if run.triton_runs():
        yield "triton", lambda *a: testing.run_triton(run.op, a), None


def covering(run: Run, dtype: str) -> Iterator[tuple[Sample, tuple[Any, ...], frozenset[str]]]:
    """Samples, plain ones first, until every variant has met one that it takes. Where twins are
    interpreted, those of few elements first.

    Each comes with the names of the implementations that meet their first in it.
    """
    plain = plain_samples(run, dtype)
    if not run.on_gpu:
        plain.sort(key=lambda pair: elements(pair[1]) > FEW_INTERPRETED)
    known = {sample.label for sample, _ in plain}
    waiting = {variant.name for variant in run.variants(dtype)} if run.on_gpu else {"auto"}
    met: set[str] = set()
    for sample, args in plain + [p for p in usable_samples(run, dtype) if p[0].label not in known]:
        names = frozenset(name for name, _, _ in implementations(run, dtype, args)) - met
        if names:
            yield sample, args, names
        met |= names
        if waiting <= met:
            return


def as_tuple(out: Any) -> tuple[Any, ...]:
    return out if isinstance(out, tuple) else (out,)


def requiring(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        a.detach().requires_grad_() if isinstance(a, Tensor) and a.is_floating_point() else a
        for a in args
    )
