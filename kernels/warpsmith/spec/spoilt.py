"""Good calls, spoilt in the usual ways, and the messages that they must raise."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Bad, Inputs

Value = Any  # of an argument, or a function that makes it from the inputs


def values(given: dict[str, Value], i: Inputs) -> dict[str, Any]:
    """Calls what has to be made."""
    return {name: v(i) if callable(v) else v for name, v in given.items()}


class Spoiler:
    """Makes bad calls of an operator from a good one.

    Args:
        op: the operator's name.
        good: makes the arguments of a good call by name.
        like: the argument that the others have to be like, in messages.
    """

    def __init__(self, op: str, good: Callable[[Inputs], dict[str, Any]], like: str = "x") -> None:
        self.op, self.good, self.like = op, good, like

    def __call__(self, label: str, message: str, cuda_only: bool = False, **changes: Value) -> Bad:
        """The good call with some arguments changed; `message` is a regular expression behind the
        operator's name.
        """

        def make(i: Inputs) -> dict[str, Any]:
            return self.good(i) | values(changes, i)

        return Bad(label, make, f"{self.op}: {message}", cuda_only=cuda_only)

    def _rows(self, i: Inputs) -> Tensor:
        return self.good(i)[self.like]

    def integers(self) -> Bad:
        wrong = lambda i: torch.ones(2, 8, dtype=torch.int32, device=i.device)  # noqa: E731
        message = rf"expected {self.like} to be a floating-point tensor, got torch\.int32"
        changes: dict[str, Any] = {self.like: wrong}
        return self("integers", message, **changes)

    def no_dimension(self) -> Bad:
        message = rf"expected at least 1 dimension in {self.like}, got shape \(\)"
        changes: dict[str, Any] = {self.like: lambda i: i.randn()}
        return self("0-d", message, **changes)

    def other_length(self, name: str, *shape: int, like: str = "") -> Bad:
        """Of a vector with a value for each of 8 columns."""
        wrong = shape or (7,)
        got = re.escape(str(wrong))
        message = (
            rf"expected {name} to have shape \(8,\), the last dimension of {like or self.like}, "
            f"got {got}"
        )
        label = f"{name} of another length" if len(wrong) == 1 else f"{len(wrong)}-d {name}"
        changes: dict[str, Any] = {name: lambda i: i.randn(*wrong)}
        return self(label, message, **changes)

    def other_shape(self, name: str, *wrong: int, said: str = "", like: str = "") -> Bad:
        """Of a tensor of shape [2, 8] like another."""
        message = rf"expected {name} to have shape \(2, 8\) like {like or self.like}, got "
        message += re.escape(str(wrong))
        changes: dict[str, Any] = {name: lambda i: i.randn(*wrong)}
        return self(f"{said or name} of another shape", message, **changes)

    def other_dtype(self, name: str, said: str = "", like: str = "") -> Bad:
        """f64; messages name what it has to be `like`, unless f32 would do as well."""
        wanted = rf"torch\.\w+ like {like}" if like else r"torch\.\w+.*"
        message = rf"expected {name} to have dtype {wanted}, got torch\.float64"
        wrong: dict[str, Any] = {name: lambda i: self._rows(i).double()}
        return self(f"{said or name} of another dtype", message, **wrong)

    def integer(self, name: str) -> Bad:
        message = rf"expected {name} to have dtype torch\.\w+.*, got torch\.int64"
        wrong = lambda i: torch.ones(8, dtype=torch.int64, device=i.device)  # noqa: E731
        changes: dict[str, Any] = {name: wrong}
        return self(f"integer {name}", message, **changes)

    def two_dtypes(self, first: str, second: str) -> Bad:
        """Two vectors of 8 values that have to be of one dtype, beside rows in bf16."""
        message = rf"expected {second} to have dtype torch\.bfloat16 like {first}, "
        message += r"got torch\.float32"
        changes: dict[str, Any] = {
            self.like: lambda i: self._rows(i).bfloat16(),
            first: lambda i: i.randn(8).bfloat16(),
            second: lambda i: i.randn(8).float(),
        }
        return self(f"{second} of another dtype than {first}", message, **changes)

    def on_the_cpu(self, name: str, *shape: int, said: str = "", narrow: bool = False) -> Bad:
        """f32, or in the dtype of the call if `narrow`."""
        message = rf"expected {name} to be on cuda:\d+ like {self.like}, got cpu"
        wrong = lambda i: torch.ones(shape, dtype=i.dtype if narrow else None)  # noqa: E731
        changes: dict[str, Any] = {name: wrong}
        return self(f"{said or name} on the CPU", message, True, **changes)

    def refused(self, label: str, why: str, variant: str, **changes: Value) -> Bad:
        """A call in f32 that a variant cannot take."""

        def make(i: Inputs) -> dict[str, Any]:
            wide = Inputs(torch.float32, i.device)
            return self.good(wide) | values(changes, wide)

        return Bad(label, make, rf"{self.op}.*: .*{why}", variant=variant)

    def other_variant(self) -> Bad:
        """f32 to a variant of bf16."""

        def make(i: Inputs) -> dict[str, Any]:
            return self.good(Inputs(torch.float32, i.device))

        name = "bf16x8_pack_f32"
        message = f"{self.op}_{name}: takes bf16, got f32"
        return Bad("variant of another dtype", make, message, variant=name)
