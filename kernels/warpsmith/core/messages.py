"""What a call that failed says, in the words of the public function."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from warpsmith.core import families
from warpsmith.core.catalogue import Op

#: What PyTorch says of an argument that is of another kind than the schema's.
_KIND = re.compile(
    r"Expected a value of type '(.+?)' for argument '(\w+)' but instead found type '(\w+)'"
)
#: What PyTorch says of an operator that has no sharding rule.
_UNSHARDED = re.compile(r"warpsmith\.\w+\.(\w+) does not have a sharding strategy")
#: What it says where some tensors are sharded and others are not.
_MIXED = "got mixed torch.Tensor and DTensor"
_KINDS = {
    "Tensor": "a tensor",
    "Optional[Tensor]": "a tensor or None",
    "int": "a whole number",
    "Optional[int]": "a whole number or None",
    "float": "a number",
    "bool": "a bool",
    "str": "a string",
    "List[int]": "a list of whole numbers",
    "List[float]": "a list of numbers",
}

#: What values have that PyTorch takes for a number, in the place of one of that kind.
_HAVE = {"int": "__index__", "float": "__float__", "bool": "__bool__"}


#: The types of arguments that a function has taken before, behind its name.
_FITTING: set[tuple[Any, ...]] = set()


def kinds_of(schema: Any) -> tuple[tuple[str, str], ...]:
    """Of a parsed schema, what its arguments are called and of which kind they are."""
    return tuple((a.name, str(a.type)) for a in schema.arguments)


def check_kinds(called: str, kinds: Sequence[tuple[str, str]], values: Sequence[Any]) -> None:
    """For functions that make the steps of an operator, and not the operator itself, whose schema
    would refuse arguments of another kind: tensors that may be left out, numbers and names.

    Raises:
        TypeError: in the words of `in_words`.
    """
    types = (called, *map(type, values))
    if types in _FITTING:
        return
    for (name, kind), value in zip(kinds, values, strict=True):
        if kind == "Optional[Tensor]":
            fits = value is None or isinstance(value, Tensor)
        elif kind == "str":
            fits = isinstance(value, str)
        else:
            fits = kind not in _HAVE or hasattr(value, _HAVE[kind])
        if not fits:
            found = type(value).__name__
            raise TypeError(f"{called}: expected {name} to be {_KINDS[kind]}, got {found}")
    _FITTING.add(types)


def called_by(op: Op) -> str:
    """The public function of an operator that users do not know by its name."""
    if families.of_function(op.name):
        return op.name
    public = families.PUBLIC.get(op.family, ())
    known = [n for n in public if op.name.startswith(f"{n}_")]
    if known:
        return max(known, key=len)
    stem = op.name.partition("_backward")[0]
    longer = [n for n in public if n.startswith(f"{stem}_")]
    return longer[0] if len(longer) == 1 else op.name


def expect_tensors(called: str, **given: Any) -> None:
    """For a public function that looks at its tensors before it calls an operator.

    Raises:
        TypeError: one of them is none.
    """
    for name, x in given.items():
        if not isinstance(x, Tensor):
            found = "None" if x is None else type(x).__name__
            raise TypeError(f"{called}: expected {name} to be a tensor, got {found}")


def of_sharded(called: str, error: Exception) -> Exception | None:
    """What PyTorch says of sharded tensors as the public function does; None of anything else."""
    message = str(error)
    if _MIXED in message:
        return type(error)(
            f"{called}: expected either all its tensors to be DTensors or none; of what it makes "
            "itself none is: hand it x.to_local(), or x.full_tensor()"
        )
    if not (known := _UNSHARDED.search(message)):
        return None
    which = "out beside sharded tensors" if known[1] == "out" else "sharded tensors"
    return type(error)(no_sharded(called, which))


def no_sharded(called: str, which: str = "sharded tensors") -> str:
    return f"{called}: expected no {which}; hand it x.to_local(), or x.full_tensor()"


def in_words(op: Op, called: str, error: Exception) -> Exception | None:
    """An error of a call as the public function says it; None where it does so already."""
    message = str(error)
    if kind := _KIND.search(message):
        wanted, name, found = kind.groups()
        of_dtype = f"ScalarType {name}" in op.schema  # which PyTorch takes for whole numbers
        wanted = "a torch.dtype" if of_dtype else _KINDS.get(wanted, wanted)
        if wanted == _KINDS["int"] and found == "int":
            wanted = f"{wanted} of 64 bits"
        return TypeError(f"{called}: expected {name} to be {wanted}, got {found}")
    if called != op.name and message.startswith(f"{op.name}:"):
        return type(error)(f"{called}{message[len(op.name) :]}")
    return None
