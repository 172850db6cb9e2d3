"""What arguments of the command line mean: operators, families, dtypes, cases, variants, peers,
devices, processes.

Whatever fits nothing raises `UsageError`, with what may have been meant.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Mapping, Sequence

import torch

from warpsmith.core import catalogue, families, public_calls
from warpsmith.core.catalogue import DTYPES, Composite, Op
from warpsmith.measure import limits
from warpsmith.native import libraries, recorded_library, toolchain
from warpsmith.native.console import UsageError

#: A message names so many cases of those that there are.
SHOWN_CASES = 8


def _called(ops: Sequence[Op]) -> str:
    return f"{ops[0].name} has" if len(ops) == 1 else f"the {len(ops)} operators have"


def _matching(name: str, ops: Mapping[str, Op]) -> list[Op]:
    if name in ops:
        return [ops[name]]
    found = [
        op
        for op in ops.values()
        if name in (op.family, *op.aliases) or fnmatch.fnmatchcase(op.name, name)
    ]
    return sorted(found, key=lambda op: name not in op.aliases)


def _behind(function: str) -> list[Op]:
    """The operator of a public function that has none of its name."""
    if composite := catalogue.composites().get(function):
        parts = ", ".join(dict.fromkeys(composite.operators))
        raise UsageError(f"'{function}' is a composite; its parts are {parts}")
    if op := public_calls.behind(function):
        return [op]
    raise UsageError(f"'{function}' has no kernels of its own, and no variants")


def find_ops(names: Sequence[str]) -> list[Op]:
    """Operators by name, or else by alias, family, pattern ("gelu*") or the public function that
    calls them; all of them for no name.
    """
    ops = catalogue.load()
    if not names or list(names) == ["all"]:
        return list(ops.values())
    chosen: dict[str, Op] = {}
    for name in names:
        found = _matching(name, ops)
        if not found and families.of_function(name):
            found = _behind(name)
        if not found:
            known = [
                *ops,
                *(alias for op in ops.values() for alias in op.aliases),
                *(name for names in families.PUBLIC.values() for name in names),
                *catalogue.FAMILIES,
            ]
            hint = catalogue.did_you_mean(name, known, "`warpsmith list` shows them all")
            raise UsageError(f"unknown operator '{name}'; {hint}")
        chosen.update((op.name, op) for op in found)
    return list(chosen.values())


def find_op(name: str) -> Op:
    """The operator of this name or alias, also where a family is called the same."""
    found = find_ops([name])
    if name in found[0].aliases or len(found) == 1:
        return found[0]
    raise UsageError(f"'{name}' is several operators: {', '.join(op.name for op in found)}")


def find_composites(name: str | None) -> list[Composite]:
    """Composites by name, family or pattern; all of them for no name."""
    return [
        composite
        for composite in catalogue.composites().values()
        if name in (None, "all", composite.name, composite.family)
        or fnmatch.fnmatchcase(composite.name, str(name))
    ]


def find_libraries(names: Sequence[str]) -> list[str]:
    """Compiled libraries by name ("norm/rms_norm"), those of operators or families, "selftest", or
    "autograd", which has no kernels; all of them for no name.
    """
    known = (*libraries.all_libraries(), recorded_library.NAME)
    chosen: list[str] = []
    for name in names:
        if name in libraries.FAMILIES:
            chosen += libraries.of_family(name)
        elif name in known:
            chosen.append(name)
        else:
            chosen += [op.library for op in find_ops([name])]
    return list(dict.fromkeys(chosen)) or list(known)


def parse_archs(texts: Sequence[str]) -> list[str]:
    """Architectures as nvcc names them, "80" or "90a", or "80-ptx", each once."""
    for text in texts:
        if not re.fullmatch(r"[1-9]\d+(a|-ptx)?", text):
            raise UsageError(f"'{text}' is no architecture; write 80, 89 or 90a, say")
        if toolchain.sm_of(text) < toolchain.MIN_SM:
            raise UsageError(f"sm_{text} is too old: the kernels need sm_{toolchain.MIN_SM}")
    return list(dict.fromkeys(texts))


def parse_dtypes(text: str | None, ops: Sequence[Op] = ()) -> tuple[str, ...] | None:
    """Names of dtypes, each of which some of the operators has, where there are any."""
    if text is None:
        return None
    names = tuple(text.split(","))
    had = [dtype for dtype in DTYPES if any(dtype in op.dtypes for op in ops)]
    for name in names:
        if name not in DTYPES:
            raise UsageError(f"unknown dtype '{name}'; known: {', '.join(DTYPES)}")
        if ops and name not in had:
            raise UsageError(f"{_called(ops)} no dtype '{name}'; known: {', '.join(had)}")
    return names


def parse_cases(
    text: str | None, ops: Sequence[Op], dtypes: tuple[str, ...] | None = None
) -> str | None:
    """A part of the name of some benchmark case that the operators have at these dtypes."""
    from warpsmith.measure import bench

    if text is None:
        return None
    plan = bench.Plan(dtypes=dtypes)
    known = dict.fromkeys(case for op in ops for case in bench.case_names(op, plan))
    if not any(text in case for case in known):
        first = [f"'{case}'" for case in itertools.islice(known, SHOWN_CASES)]
        more = ", ..." if len(known) > len(first) else ""
        raise UsageError(f"{_called(ops)} no case '{text}'; there are {', '.join(first)}{more}")
    return text


def parse_variants(text: str, ops: Sequence[Op]) -> str | tuple[str, ...]:
    """`ladder`, `all`, `none`, or names of variants or rungs that some of the operators have."""
    if text in ("ladder", "all", "none"):
        return text
    names = tuple(text.split(","))
    variants = [variant for op in ops for variant in op.variants]
    known = {name for v in variants for name in (v.name, v.op_name, v.rung.name)}
    for name in names:
        if name not in known:
            hint = catalogue.did_you_mean(
                name, known, "`warpsmith list <op>` shows them; or ladder, all, none"
            )
            raise UsageError(f"unknown variant '{name}'; {hint}")
    return names


def parse_jobs(text: str, device: str) -> int:
    """A number of processes, or `auto`."""
    from warpsmith.proof import pool

    if text == "auto":
        return pool.sensible_jobs(torch.device(device))
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"'{text}' is no number of processes; write 8, say, or auto")
    return int(text)


def parse_peers(text: str | None, ops: Sequence[Op] = ()) -> tuple[str, ...] | None:
    """Names of peers that some of the operators (of all, without any) are compared with; `none` for
    no peer, None for all of them.
    """
    if text is None:
        return None
    if text == "none":
        return ()
    names = tuple(text.split(","))
    peers = {peer for op in ops or find_ops([]) for peer in op.peers}
    known = dict.fromkeys(("torch", "compile", "triton", *sorted(peers)))
    for name in names:
        if name not in known:
            raise UsageError(f"unknown peer '{name}'; known: {', '.join(known)}, or none")
    return names


def parse_device(text: str) -> torch.device:
    """The CPU or a GPU; that there is none at all is for `need_gpu` to say."""
    try:
        device = torch.device(text)
    except RuntimeError:
        raise UsageError(f"unknown device '{text}'; cuda, cuda:1 or cpu") from None
    if device.type not in ("cuda", "cpu"):
        raise UsageError(f"unknown device '{text}'; cuda, cuda:1 or cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and count and (device.index or 0) >= count:
        raise UsageError(f"there is no {text}: PyTorch sees {count} GPUs")
    return device


def parse_part(text: str) -> tuple[int, int]:
    """I/N: every N-th from the I-th on."""
    first, _, parts = text.partition("/")
    if not (first.isdecimal() and parts.isdecimal() and int(first) < int(parts)):
        raise UsageError(f"'{text}' is no part; write 0/4, say, for every fourth from the first on")
    return int(first), int(parts)


def parse_rungs(texts: Sequence[str]) -> dict[str, frozenset[str]]:
    """OPERATOR=RUNG,RUNG each: of these operators those rungs alone."""
    pairs = (text.partition("=") for text in texts)
    return {name: frozenset(rungs.split(",")) for name, _, rungs in pairs}


def need_gpu(command: str, otherwise: str = "") -> None:
    """`otherwise` says what can be done without one."""
    if not torch.cuda.is_available():
        raise UsageError(f"{command} {limits.NO_GPU}{otherwise and '; '}{otherwise}")
