"""What the numbers on record depend on: hashes of the files behind an operator.

A verification speaks for the kernels, the spec, its samples and the Triton twin. A benchmark speaks
for the same without the samples that nothing times: they have files of their own (`*_cases.py`,
`samples.py`), in place of which the calls that are timed enter its hash.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from warpsmith.core import catalogue
from warpsmith.core.catalogue import Composite, Op
from warpsmith.native import csrc

#: A line of Python that says nothing to the interpreter.
_COMMENT = re.compile(r"\s*(#.*)?$")
#: What twins draw with, of all families.
_DRAWING = "warpsmith.spec.triton.philox"
#: Modules of samples.
_SAMPLES = re.compile(r"(.*[._])?(cases|samples)")


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.unwrap(function) if callable(function) else function


def _origin(module: str) -> Path | None:
    spec = importlib.util.find_spec(module)
    return Path(spec.origin) if spec is not None and spec.origin else None


@functools.cache
def _imports(path: Path, family: str) -> tuple[str, ...]:
    """Modules of `family` that a file imports."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return tuple(name for name in found if name.startswith(f"{family}."))


def files(op: Op, *, samples: bool = True) -> list[Path]:
    """The Python files that make up an operator.

    Those that its spec's functions come from, its Triton twin, what these import of the family, and
    what it draws with, if it does; without `samples` no file is among them that is there for these
    alone.
    """
    family = f"warpsmith.{op.family}"
    functions: list[Any] = [op.reference, op.check, op.fake, op.backward, op.eager]
    functions += [condition for rung in op.ladder for condition in (rung.when, rung.suits)]
    functions += [op.cost.bytes, op.cost.flops] if op.cost else []
    if samples:
        functions += [sample.make for sample in (*op.samples, *op.bench)]
    waiting = {getattr(_unwrapped(function), "__module__", None) or "" for function in functions}
    waiting.add(f"{family}.{op.triton.partition(':')[0]}")
    seen: set[str] = set()
    found: set[Path] = set()
    while waiting:
        module = waiting.pop()
        if module in seen or not module.startswith(f"{family}."):
            continue
        seen.add(module)
        try:
            path = _origin(module)
        except ModuleNotFoundError:  # a name inside a module, not a module
            continue
        if path is not None:
            found.add(path)
            imported = _imports(path, family)
            waiting.update(n for n in imported if samples or not _SAMPLES.fullmatch(n))
    drawing = _origin(_DRAWING) if "seed" in op.argument_names else None
    return sorted(found if drawing is None else found | {drawing})


def _timed(op: Op) -> Iterator[str]:
    """The calls that are timed, one after another."""
    for dtype in op.bench_dtypes:
        for sample in op.bench_for(dtype):
            args = sample.make(op.inputs(dtype, "meta"))
            said = (
                f"{a.dtype} {tuple(a.shape)} {a.stride()}" if isinstance(a, Tensor) else f"{a}"
                for a in args
            )
            yield f"{dtype} {sample.label} {sample.ladder}: {'; '.join(said)}"


def _digest(op: Op, paths: list[Path], *extra: str) -> str:
    digest = hashlib.sha256(csrc.source_hash(op.family, op.source_dir).encode())
    for path in paths:
        lines = (line for line in path.read_text().splitlines() if not _COMMENT.match(line))
        digest.update((path.name + "\0" + "\n".join(lines)).encode())
    for text in extra:
        digest.update((text + "\0").encode())
    return digest.hexdigest()[:16]


def of_verification(op: Op) -> str:
    """A hash of everything that a verification of the operator depends on, less comments."""
    return _digest(op, files(op))


def of_benchmark(op: Op) -> str:
    """A hash of everything that the operator's times depend on, less comments."""
    return _digest(op, files(op, samples=False), *_timed(op))


def of_composite(composite: Composite) -> str:
    """The same for a composite: the kernels of its first operator, and its own file."""
    kernels = catalogue.get(composite.operators[0])
    digest = hashlib.sha256(csrc.source_hash(kernels.family, kernels.source_dir).encode())
    path = _origin(composite.module)
    assert path is not None
    digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def of_mma_peak() -> str:
    """The same for what `mma.sync` reaches: the loops over registers, and the products beside
    them.
    """
    digest = hashlib.sha256(csrc.file_hash(csrc.CSRC / "selftest/mma_rate.cu").encode())
    for source_dir in ("matmul", "matmul_tf32"):
        digest.update(csrc.source_hash("gemm", source_dir).encode())
    return digest.hexdigest()[:16]
