"""Compiles the Triton twins for a GPU that need not be here:
`python tests/compile_twins.py [--sm 80] [OPERATOR ...]`

Where there is no GPU, tests run the twins in Triton's interpreter, which takes what its compiler
does not.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels"))

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from warpsmith.cli.arguments import UsageError, find_ops
from warpsmith.core import catalogue, dispatch, twins
from warpsmith.core.catalogue import Op, Sample
from warpsmith.proof.verify.run import small_samples, spread


class AbsentGpu:
    """What Triton asks the driver of a GPU before it compiles."""

    def __init__(self, sm: int) -> None:
        self.sm = sm

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.sm, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


def pretend(sm: int) -> None:
    """From here on, launches in this process only compile, for a GPU of that architecture."""
    triton.runtime.driver.set_active(AbsentGpu(sm))
    torch.cuda.get_device_capability = lambda *args: divmod(sm, 10)
    torch.cuda.get_device_properties = lambda *args: SimpleNamespace(multi_processor_count=132)

    def compile_one(kernel: Any, *args: Any, **options: Any) -> bool:
        """Whether a multiprocessor of sm_90 has the shared memory."""
        machine = kernel.warmup(*args, grid=(1,), **options)
        if sm == 90 and options.get("BOXED"):
            for instruction in ("cp.async.bulk.tensor", "wgmma.mma_async"):
                assert instruction in machine.asm["ptx"], f"no {instruction}: {options}"
        return sm != 90 or machine.metadata.shared <= 227 * 1024

    def compile_only(kernel: Any, grid: Any) -> Callable[..., Any]:
        def launch(*args: Any, **options: Any) -> None:
            assert compile_one(kernel, *args, **options), f"too much shared memory: {options}"

        return launch

    def compile_all(tuned: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        fits = False  # configurations that do not are passed over
        for config in tuned.configs:
            chosen = {**options, **config.all_kwargs()}
            if config.pre_hook:
                config.pre_hook({**dict(zip(tuned.arg_names, args, strict=False)), **chosen})
            fits = compile_one(tuned.fn, *args, **chosen) or fits
        assert fits, "every configuration takes too much shared memory"

    JITFunction.__getitem__ = compile_only
    Autotuner.run = compile_all


class _MadeError(Exception):
    """What Triton's compiler has made when it is stopped."""


def ttir(kernel: Any, *args: Any, **options: Any) -> str:
    """A kernel of such a process in the compiler's first form, which is the same for every GPU;
    what becomes of it takes nine tenths of the time.
    """

    def stop(module: Any, *rest: Any) -> None:
        raise _MadeError(str(module))

    compiler = type(triton.compiler.make_backend(GPUTarget("cuda", 90, 32)))
    goes_on, compiler.make_ttgir = compiler.make_ttgir, staticmethod(stop)
    try:
        return kernel.warmup(*args, grid=(1,), **options).asm["ttir"]  # from Triton's cache
    except _MadeError as made:
        return str(made)
    finally:
        compiler.make_ttgir = staticmethod(goes_on)


def calls(op: Op, dtype: str, most: int) -> list[tuple[Sample, str]]:
    """Some of the small samples, the narrowest, and the first benchmark, for which no memory is
    needed.
    """
    samples = small_samples(op, dtype)
    found = [(sample, "cpu") for sample in spread(samples, most)]
    if narrow := [sample for sample in samples if sample.label.split()[0] == "2x2"]:
        found.append((narrow[0], "cpu"))  # tiles of fewer values than an instruction converts
    return found + [(sample, "meta") for sample in op.bench_for(dtype)[:1]]


def compiled(name: str, dtype: str, most: int) -> tuple[int, list[str]]:
    """How many calls of an operator's twin were compiled, and which were not and why."""
    op = catalogue.get(name)
    twin, failures = twins.triton_function(op), []
    samples = calls(op, dtype, most)
    for sample, device in samples:
        try:
            twin(*dispatch.normalise(op, sample.make(op.inputs(dtype, device))))
        except Exception as error:
            failures.append(f"{name} {dtype} {sample}: {type(error).__name__}: {error}"[:600])
    return len(samples) - len(failures), failures


def main() -> int:
    parser = argparse.ArgumentParser(description="compiles the Triton twins, runs none")
    parser.add_argument("op", nargs="*", help="operators, families or patterns; all by default")
    parser.add_argument("--sm", type=int, default=90, help="compute capability, 90 for 9.0")
    parser.add_argument("--samples", type=int, default=4, help="for an operator at a dtype")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes side by side")
    options = parser.parse_args()
    try:
        ops = find_ops(options.op)
    except UsageError as error:
        parser.error(str(error))
    done, failed = 0, 0
    with ProcessPoolExecutor(options.jobs, initializer=pretend, initargs=(options.sm,)) as pool:
        waiting = [
            pool.submit(compiled, op.name, dtype, options.samples)
            for op in ops
            for dtype in op.dtypes
        ]
        for future in waiting:
            count, failures = future.result()
            for failure in failures:
                print(f"FAILED {failure}", flush=True)
            done, failed = done + count, failed + len(failures)
    print(f"{len(waiting)} twins at a dtype for sm_{options.sm}: {done} calls, {failed} failed")
    return 1 if failed or not done else 0


if __name__ == "__main__":
    sys.exit(main())
