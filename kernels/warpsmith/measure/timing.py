"""Honest times of GPU code: cold caches, interleaved implementations, medians.

    times = measure({"ours": lambda i: relu(x[i]), "torch": lambda i: torch.relu(x[i])},
    sets=len(x))

Every implementation is captured in a CUDA graph of several calls that walk over the buffer sets, so
neither Python nor the launch shows in short times, and no call finds its data in L2 once the sets
together are larger than it. The graphs then run in turn, forward and backward, so that clocks and
temperature favour nobody.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from warpsmith.spec.peers import stream

#: Raised on purpose whenever times before and after a change of this module do not compare.
METHOD = 1
#: Rotated buffers hold this many times the L2 cache.
COLD_FACTOR = 3
#: More sets than this are not worth their memory: below that size the launch is what takes the
#: time.
MAX_SETS = 256
#: One replay of a graph should last at least this long, so that the host's part of a replay
#: disappears.
REPLAY_MS = 2.0
MAX_CALLS_PER_GRAPH = 512
#: A call that lasts this long shows neither its launch nor what it finds in L2: it is timed by
#: itself, without a graph.
LONG_MS = 50.0
#: Turns that an implementation takes; where one turn alone lasts longer than the time asked for,
#: the smaller number has to do.
MIN_TURNS, MAX_TURNS = 7, 40
SLOW_TURNS = 3

Implementation = Callable[[int], Any]


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call."""

    ms: float
    ms_low: float
    ms_high: float
    samples: tuple[float, ...] = field(repr=False)
    method: str  # "graph", or "loop" where the calls could not be captured, or last long
    note: str = ""

    @staticmethod
    def of(samples: list[float], method: str, note: str = "") -> Timing:
        low, middle, high = percentiles(samples)
        return Timing(middle, low, high, tuple(samples), method, note)


def percentiles(samples: list[float]) -> tuple[float, float, float]:
    """The 20th, 50th and 80th percentile."""
    ordered = sorted(samples)

    def at(share: float) -> float:
        position = share * (len(ordered) - 1)
        low = math.floor(position)
        high = math.ceil(position)
        return ordered[low] + (ordered[high] - ordered[low]) * (position - low)

    return at(0.2), statistics.median(ordered), at(0.8)


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)


def bytes_of(value: Any) -> int:
    """Bytes that the tensors in `value` span; an expanded tensor counts what it reads, not what it
    repeats.
    """
    seen: dict[int, int] = {}
    for tensor in tensors_in(value):
        span = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
        used = min(tensor.numel(), span) * tensor.element_size()
        seen[tensor.data_ptr()] = max(used, seen.get(tensor.data_ptr(), 0))
    return sum(seen.values())


def sets_for(bytes_per_call: int, l2_bytes: int) -> int:
    """How many buffer sets leave nothing of a call's data in L2 when its turn comes again."""
    if bytes_per_call <= 0:
        return 2
    return min(MAX_SETS, max(2, math.ceil(COLD_FACTOR * l2_bytes / bytes_per_call)))


def l2_bytes(device: int | None = None) -> int:
    if device is None:
        device = torch.cuda.current_device()
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


class _Program:
    """One implementation, ready to be replayed: `calls` calls at a time."""

    def __init__(
        self, run: Callable[[], None], calls: int, method: str, note: str, graph: Any = None
    ) -> None:
        self.run = run
        self.calls = calls
        self.method = method
        self.note = note
        self.graph = graph
        self.samples: list[float] = []
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event, int]] = []

    def record(self, repeats: int) -> None:
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(repeats):
            self.run()
        end.record()
        self.events.append((start, end, repeats * self.calls))

    def collect(self) -> None:
        self.samples += [start.elapsed_time(end) / calls for start, end, calls in self.events]
        self.events.clear()


def _walk(implementation: Implementation, sets: int, calls: int) -> None:
    # The last outputs stay alive, so that they too take turns over distinct memory.
    alive: deque[Any] = deque(maxlen=sets)
    for i in range(calls):
        alive.append(implementation(i % sets))


def _ms_of(implementation: Implementation, sets: int, calls: int) -> float:
    """Milliseconds of a call, launched one by one."""
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    _walk(implementation, sets, calls)
    end.record()
    end.synchronize()
    return max(start.elapsed_time(end) / calls, 1e-4)


def _estimate_ms(implementation: Implementation, sets: int) -> float:
    # A first call may have to prepare something, which tells nothing of the ones that follow.
    if _ms_of(implementation, 1, 1) >= LONG_MS:
        long = _ms_of(implementation, 1, 1)
        if long >= LONG_MS:
            return long
    calls = min(sets, 16)
    _walk(implementation, sets, calls)
    return _ms_of(implementation, sets, calls)


def _capture(
    implementation: Implementation, sets: int, calls: int, pool: Any
) -> torch.cuda.CUDAGraph:
    # Not torch.cuda.graph(): that collects garbage and empties the cache each time, which would
    # take longer than the measurement.
    free, total = torch.cuda.mem_get_info()
    if free < total // 2:
        torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        _walk(implementation, sets, calls)
    except BaseException:
        with contextlib.suppress(RuntimeError):  # would hide what went wrong
            graph.capture_end()
        raise
    graph.capture_end()
    graph.replay()
    torch.cuda.current_stream().synchronize()
    return graph


def _program(implementation: Implementation, sets: int, graph: bool, pool: list[Any]) -> _Program:
    estimate = _estimate_ms(implementation, sets)
    if estimate >= LONG_MS:
        note = f"a call lasts longer than {LONG_MS:.0f} ms"
        return _Program(lambda: _walk(implementation, 1, 1), 1, "loop", note)
    walks = math.ceil(REPLAY_MS / (estimate * sets))
    calls = sets * max(1, min(walks, MAX_CALLS_PER_GRAPH // sets))
    note = ""
    if graph:
        # Every set once before the capture: whatever an implementation prepares for an input has to
        # exist by then.
        _walk(implementation, sets, sets)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                captured = _capture(implementation, sets, calls, pool[0])
            return _Program(captured.replay, calls, "graph", "", captured)
        except Exception as error:  # anything may refuse a capture; a loop still gives a number
            # The pool stays marked as recording after a failed capture.
            pool[0] = torch.cuda.graph_pool_handle()
            lines = str(error).strip().splitlines()
            note = f"not capturable: {lines[0] if lines else type(error).__name__}"
            with contextlib.suppress(RuntimeError):
                torch.cuda.synchronize()
    return _Program(lambda: _walk(implementation, sets, calls), calls, "loop", note)


@contextlib.contextmanager
def _measuring() -> Iterator[None]:
    side = stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        yield
    torch.cuda.current_stream().wait_stream(side)


def turns_of(replays: float) -> int:
    """Turns of an implementation that could be replayed `replays` times in the time asked for."""
    if replays < 1:
        return SLOW_TURNS
    return min(MAX_TURNS, max(MIN_TURNS, math.ceil(replays)))


def takes_part(turn: int, takes: int, turns: int) -> bool:
    """Whether an implementation that takes `takes` of all `turns`, evenly spread, has this one."""
    return (turn + 1) * takes // turns > turn * takes // turns


def measure(
    functions: Mapping[str, Implementation],
    *,
    sets: int,
    seconds: float = 0.25,
    rounds: int | None = None,
    graph: bool = True,
) -> dict[str, Timing]:
    """Times implementations against each other.

    Args:
        functions: name -> `call(i)`, which runs on buffer set `i` and returns its outputs.
        sets: number of buffer sets; see `sets_for`.
        seconds: device time to spend on each implementation.
        rounds: turns that each implementation takes; chosen from `seconds` by default, and fewer
            for those that a single turn takes longer than that.
        graph: capture calls in CUDA graphs (a loop of calls where that fails, or a call is long).

    Returns:
        A `Timing` for each name: median, 20th and 80th percentile over the rounds.

    Raises:
        Exception: whatever an implementation raises when it is called.
    """
    # The graphs run one after another and nobody reads their outputs, so they may share their
    # memory.
    pool = [torch.cuda.graph_pool_handle()]
    with _measuring():
        programs = {name: _program(call, sets, graph, pool) for name, call in functions.items()}
        for program in programs.values():
            program.record(1)
        torch.cuda.synchronize()
        replays: dict[str, float] = {}
        for name, program in programs.items():
            program.collect()
            replays[name] = seconds * 1e3 / max(program.samples.pop() * program.calls, 1e-3)
        takes = {name: rounds or turns_of(count) for name, count in replays.items()}
        turns = max(takes.values(), default=0)
        for turn in range(turns):
            order = list(programs) if turn % 2 == 0 else list(reversed(programs))
            for name in order:
                if takes_part(turn, takes[name], turns):
                    programs[name].record(max(1, round(replays[name] / takes[name])))
        torch.cuda.synchronize()
        for program in programs.values():
            program.collect()
    return {name: Timing.of(p.samples, p.method, p.note) for name, p in programs.items()}


def sustained(
    functions: Mapping[str, Implementation], *, sets: int, seconds: float = 2.0, graph: bool = True
) -> dict[str, Timing]:
    """Times each implementation after it has heated the GPU: the second half of a loop of
    `seconds`.
    """
    results = {}
    pool = [torch.cuda.graph_pool_handle()]
    with _measuring():
        for name, call in functions.items():
            program = _program(call, sets, graph, pool)
            program.record(1)
            torch.cuda.synchronize()
            program.collect()
            replay_ms = max(program.samples.pop() * program.calls, 1e-3)
            repeats = max(1, math.ceil(20.0 / replay_ms))
            started = time.perf_counter()
            while (elapsed := time.perf_counter() - started) < seconds:
                program.record(repeats)
                program.record(repeats)
                program.events[-2][1].synchronize()
                if elapsed < seconds / 2:
                    program.events = program.events[-1:]
            torch.cuda.synchronize()
            program.collect()
            results[name] = Timing.of(program.samples, program.method, program.note)
    return results


def host_times(
    functions: Mapping[str, Callable[[], Any]], *, calls: int = 200, batches: int = 21
) -> dict[str, float]:
    """Microseconds of host time per call, with nothing ahead of it in the GPU's queue. Batches of
    all functions take turns, so that a busy spell of the host meets every one.

    Args:
        functions: name -> a call on tensors so small that the GPU keeps up with the host.
        calls: calls in a batch; fewer than the launches that the driver queues before it blocks.
        batches: the results are medians over these.

    Returns:
        Name -> microseconds.
    """
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        for _ in range(calls):
            function()
    for _ in range(batches):
        for name, function in functions.items():
            wait()
            start = time.perf_counter()
            for _ in range(calls):
                function()
            samples[name].append((time.perf_counter() - start) / calls * 1e6)
    wait()
    return {name: statistics.median(times) for name, times in samples.items()}


class Telemetry:
    """The GPU's clock, power and temperature in the middle of a `with` block, read once from the
    side. `reading` stays empty without nvidia-ml-py.
    """

    QUERIES = (
        ("clock_mhz", torch.cuda.clock_rate, 1),
        ("power_w", torch.cuda.power_draw, 1000),
        ("temperature_c", torch.cuda.temperature, 1),
    )

    def __init__(self, delay: float) -> None:
        self._thread = threading.Thread(target=self._read, args=(delay,), daemon=True)
        self._left = threading.Event()
        self.reading: dict[str, float] = {}

    def __enter__(self) -> Telemetry:
        self._device = torch.cuda.current_device()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._left.set()
        self._thread.join()

    def _read(self, delay: float) -> None:
        if self._left.wait(delay):
            return
        for name, query, unit in self.QUERIES:
            with contextlib.suppress(Exception):  # no library, or a driver that does not tell
                self.reading[name] = query(self._device) / unit
