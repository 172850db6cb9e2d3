"""What a call that failed says, in the words of the public function."""

from __future__ import annotations

import re

from warpsmith.core import families
from warpsmith.core.catalogue import Op

#: What PyTorch says of an argument that is of another kind than the schema's.
_KIND = re.compile(
    r"Expected a value of type '(.+?)' for argument '(\w+)' but instead found type '(\w+)'"
)
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


def in_words(op: Op, called: str, error: Exception) -> Exception | None:
    """An error of a call as the public function says it; None where it does so already."""
    message = str(error)
    if kind := _KIND.search(message):
        wanted, name, found = kind.groups()
        of_dtype = f"ScalarType {name}" in op.schema  # which PyTorch takes for whole numbers
        wanted = "a torch.dtype" if of_dtype else _KINDS.get(wanted, wanted)
        return TypeError(f"{called}: expected {name} to be {wanted}, got {found}")
    if called != op.name and message.startswith(f"{op.name}:"):
        return type(error)(f"{called}{message[len(op.name) :]}")
    return None
