"""What arguments of the command line mean: operators, families, dtypes, variants, processes.

Whatever fits nothing raises `UsageError`, with what may have been meant.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence

import torch

from warpsmith import build, catalogue
from warpsmith.catalogue import DTYPES, Composite, Op
from warpsmith.console import UsageError


def _near(name: str, known: Iterable[str], otherwise: str) -> str:
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f"did you mean {', '.join(near)}?" if near else otherwise


def _matching(name: str, ops: Mapping[str, Op]) -> list[Op]:
    if name in ops:
        return [ops[name]]
    found = [
        op
        for op in ops.values()
        if name in (op.family, *op.aliases) or fnmatch.fnmatchcase(op.name, name)
    ]
    return sorted(found, key=lambda op: name not in op.aliases)


def find_ops(names: Sequence[str]) -> list[Op]:
    """Operators by name, or else by alias, family or pattern ("gelu*"); all of them for no name."""
    ops = catalogue.load()
    if not names or list(names) == ["all"]:
        return list(ops.values())
    chosen: dict[str, Op] = {}
    for name in names:
        found = _matching(name, ops)
        if not found:
            known = [
                *ops,
                *(alias for op in ops.values() for alias in op.aliases),
                *catalogue.composites(),
                *catalogue.FAMILIES,
            ]
            hint = _near(name, known, "`warpsmith list` shows them all")
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


def find_families(names: Sequence[str]) -> list[str]:
    known = build.all_families()
    for name in names:
        if name not in known:
            raise UsageError(f"unknown family '{name}'; known: {', '.join(known)}")
    return list(names or known)


def parse_archs(texts: Sequence[str]) -> list[str]:
    """Architectures as nvcc names them, "80" or "90a", each once."""
    for text in texts:
        if not re.fullmatch(r"[1-9]\d+a?", text):
            raise UsageError(f"'{text}' is no architecture; write 80, 89 or 90a, say")
        if build.sm_of(text) < build.MIN_SM:
            raise UsageError(f"sm_{text} is too old: the kernels need sm_{build.MIN_SM}")
    return list(dict.fromkeys(texts))


def parse_dtypes(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(text.split(","))
    for name in names:
        if name not in DTYPES:
            raise UsageError(f"unknown dtype '{name}'; known: {', '.join(DTYPES)}")
    return names


def parse_variants(text: str, ops: Sequence[Op]) -> str | tuple[str, ...]:
    """`ladder`, `all`, `none`, or names of variants or rungs that some of the operators have."""
    if text in ("ladder", "all", "none"):
        return text
    names = tuple(text.split(","))
    variants = [variant for op in ops for variant in op.variants]
    known = {name for v in variants for name in (v.name, v.op_name, v.rung.name)}
    for name in names:
        if name not in known:
            hint = _near(name, known, "`warpsmith list --op` shows them; or ladder, all, none")
            raise UsageError(f"unknown variant '{name}'; {hint}")
    return names


def parse_jobs(text: str, device: str) -> int:
    """A number of processes, or `auto`."""
    from warpsmith import pool

    if text == "auto":
        return pool.sensible_jobs(torch.device(device))
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"'{text}' is no number of processes; write 8, say, or auto")
    return int(text)


def parse_peers(text: str | None) -> tuple[str, ...] | None:
    """Names of peers, `none` for no peer; None for all of them."""
    if text is None:
        return None
    return () if text == "none" else tuple(text.split(","))


def parse_part(text: str) -> tuple[int, int]:
    """I/N: every N-th from the I-th on."""
    first, _, parts = text.partition("/")
    if not (first.isdecimal() and parts.isdecimal() and int(first) < int(parts)):
        raise UsageError(f"'{text}' is no part; write 0/4, say, for every fourth from the first on")
    return int(first), int(parts)


def need_gpu(command: str, otherwise: str = "") -> None:
    """`otherwise` says what can be done without one."""
    if not torch.cuda.is_available():
        raise UsageError(
            f"{command} needs a CUDA GPU, and PyTorch sees none; `warpsmith doctor` says why"
            f"{otherwise and '; '}{otherwise}"
        )
