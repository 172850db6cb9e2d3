"""Calls that another implementation at hand serves faster than the kernels here, on the record: the
Triton twin, or PyTorch's own.

`elsewhere.json` has them, as ranges of what a call is like. It is derived from the records by
`python benchmarks/elsewhere.py`. A compiled library is told the ranges of its operators when it is
loaded (csrc/host/elsewhere.h), and hands such a call to `op.fallback`; `which` says so. A call that
names a variant, and one that promises more than the other implementation keeps, stays here.

What is told of an argument, by its name in the schema:

    a.dtype   "bf16", or "absent" of a tensor that is not given
    a.rank
    a.rows    the product of all sizes but the last
    a.cols    the last size
    a.order   "rows" of a contiguous tensor, "columns" of the transpose of one, "other"
    a.packs   whether its lines are whole packs of 16 bytes
    p         the value of what is no tensor
"""

from __future__ import annotations

import functools
import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from warpsmith.core.catalogue import DTYPE_NAMES, DTYPES, Op

DATA = Path(__file__).with_name("elsewhere.json")
#: Where it is set, nothing is served elsewhere: kernels are measured and verified as they are.
OWN_KERNELS = "WARPSMITH_OWN_KERNELS"
#: What a range is compared with, in the order of csrc/host/elsewhere.h.
FACTS = ("dtype", "rank", "rows", "cols", "order", "packs", "value")
#: Those that a rule has ranges of; of all others it has one value.
SIZES = ("rows", "cols")
_ORDERS = ("rows", "columns", "other")
_DTYPES = (*DTYPES, "other")
_PACK_BYTES = 16
_NAMES = {
    "triton": "the Triton twin",
    "torch": "PyTorch's own",
    "gated_linear": "gated_linear",
    "compile": "torch.compile",
}


@dataclass(frozen=True)
class Rule:
    """Calls of an operator on GPUs of one compute capability."""

    op: str
    sm: int
    #: "triton" or "torch"; of a composite that is PyTorch's by default, an operator; "compile" of
    #: what patched models leave to torch.compile.
    implementation: str
    #: The least that it was faster by, and at how many cases of the record.
    ratio: float
    cases: int
    #: By what is told: a value, or the least and the most of it.
    told: Mapping[str, Any]
    #: Of the rules.
    date: str

    def __str__(self) -> str:
        return (
            f"{_NAMES[self.implementation]} is over 3 % faster on the record of {self.date}, "
            f"{self.ratio:.2f} times at least in {self.cases} cases of these sizes"
        )


@functools.cache
def rules() -> tuple[Rule, ...]:
    """All that the file has."""
    made = json.loads(DATA.read_text())
    return tuple(Rule(date=made["date"], **rule) for rule in made["rules"])


def _own_kernels() -> bool:
    return os.environ.get(OWN_KERNELS, "0") not in ("", "0")


def of(op: Op | str) -> tuple[Rule, ...]:
    """The rules of an operator, or of a composite by its name."""
    name = op if isinstance(op, str) else op.name
    return () if _own_kernels() else tuple(rule for rule in rules() if rule.op == name)


# --- what is told of a call -----------------------------------------------------------------------


def _order(x: Tensor) -> str:
    if x.is_contiguous():
        return "rows"
    return "columns" if x.dim() >= 2 and x.mT.is_contiguous() else "other"


def _is_aligned(x: Tensor) -> bool:
    try:
        return x.data_ptr() % _PACK_BYTES == 0
    except RuntimeError:  # no data
        return True


def _of_tensor(x: Tensor | None) -> dict[str, Any]:
    if x is None:
        return {"dtype": "absent", "rank": 0, "rows": 0, "cols": 0, "order": "rows", "packs": False}
    order, rank = _order(x), x.dim()
    cols = x.shape[-1] if rank else 1
    length = x.shape[-2] if order == "columns" else cols
    packs = (
        x.dtype in DTYPE_NAMES
        and order != "other"
        and length * x.element_size() % _PACK_BYTES == 0
        and _is_aligned(x)
    )
    return {
        "dtype": DTYPE_NAMES.get(x.dtype, "other"),
        "rank": rank,
        "rows": math.prod(x.shape) // cols if cols else 0,
        "cols": cols,
        "order": order,
        "packs": packs,
    }


def _same(value: Any) -> Any:
    return value


#: Values as a schema has them: a whole number may be given for a float.
_KINDS: Mapping[str, Callable[[Any], Any]] = {"float": float, "int": int, "bool": bool}


def told_of(op: Op, args: Iterable[Any]) -> dict[str, Any]:
    """What rules may ask of a call."""
    told: dict[str, Any] = {}
    for argument, value in zip(op.parsed.arguments, args, strict=True):
        if "Tensor" in str(argument.type):
            told |= {f"{argument.name}.{fact}": of for fact, of in _of_tensor(value).items()}
        else:
            told[argument.name] = _KINDS.get(str(argument.type), _same)(value)
    return told


def _within(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, list):
        least, most = wanted
        return bool(least <= found and (most is None or found <= most))
    return type(wanted) is type(found) and bool(wanted == found)


def holds(rule: Rule, sm: int, told: Mapping[str, Any]) -> bool:
    return rule.sm == sm and all(
        name in told and _within(wanted, told[name]) for name, wanted in rule.told.items()
    )


def served_here(op: Op, *, twin: bool) -> tuple[Rule, ...]:
    """The rules of an operator without those of a twin that cannot run here."""
    return tuple(rule for rule in of(op) if twin or rule.implementation != "triton")


def rule_for(op: Op, args: tuple[Any, ...], sm: int, *, twin: bool) -> Rule | None:
    """The rule that a call falls under.

    Args:
        op: the operator.
        args: all its arguments.
        sm: the compute capability of the GPU.
        twin: whether the Triton twin can run here.
    """
    candidates = served_here(op, twin=twin)
    if not candidates:
        return None
    told = told_of(op, args)
    return next((rule for rule in candidates if holds(rule, sm, told)), None)


def rule_of(composite: str, sm: int, **told: Any) -> Rule | None:
    """The same of a composite, which says itself what its calls are like."""
    return next((rule for rule in of(composite) if holds(rule, sm, told)), None)


# --- what a library is told -----------------------------------------------------------------------


def _number(fact: str, value: Any) -> int:
    """As csrc/host/elsewhere.h has it."""
    if fact == "dtype":
        return -1 if value == "absent" else _DTYPES.index(value)
    if fact == "order":
        return _ORDERS.index(value)
    if fact == "value" and isinstance(value, float):
        return int(struct.unpack("<q", struct.pack("<d", value))[0])
    if isinstance(value, str):
        hashed = 0xCBF29CE484222325
        for byte in value.encode():
            hashed = (hashed ^ byte) * 0x100000001B3 % 2**64
        return hashed - 2**64 if hashed >= 2**63 else hashed
    return int(value)


def as_told(op: Op, served: Iterable[Rule]) -> str:
    """Rules of an operator, as its library is told them."""
    lines = []
    for rule in served:
        ranges = []
        for name, wanted in rule.told.items():
            argument, _, fact = name.partition(".")
            least, most = wanted if isinstance(wanted, list) else (wanted, wanted)
            of_fact = fact or "value"
            place = op.argument_names.index(argument), FACTS.index(of_fact)
            largest = 2**63 - 1 if most is None else _number(of_fact, most)
            ranges.append(f"{place[0]} {place[1]} {_number(of_fact, least)} {largest}")
        lines.append(f"{rule.sm} {len(ranges)} {' '.join(ranges)}")
    return "\n".join(lines)
