"""What a call of a public function comes to: the operator, and the arguments that it gets; or
PyTorch's kernels, which serve what no operator does.

The function runs until it calls the operator that bears its name, which does not run. Where it
calls none such, all of it runs, and the first operator that it calls is what serves it. So a call
can be asked about as users write it, with arguments of the function that the operator does not
have.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from warpsmith.core import catalogue, families, messages
from warpsmith.core.catalogue import Op, PartCall, Variant

#: Functions that leave some calls to other operators than the one of their name, and what says to
#: which.
_in_parts: dict[str, tuple[inspect.Signature, Callable[..., tuple[PartCall, ...] | None]]] = {}

#: Functions without an operator of their name, and the operator that they call: by the name in
#: which they do (`dispatch.public`).
_behind: dict[str, Op] = {}


def in_parts(
    function: Callable[..., Any], calls: Callable[..., tuple[PartCall, ...] | None]
) -> None:
    """Enters a function whose calls may take several steps.

    Args:
        function: a public one that bears the name of an operator.
        calls: of the arguments of a call, all by name, and `on_gpu`, whether to answer as on a GPU:
            the operators that the call comes to, a single one without a purpose; None where that
            is the operator of the function's name, as it is given.
    """
    _in_parts[function.__name__] = inspect.signature(function), calls


def speaks_for(called: str, op: Op) -> None:
    """Enters an operator that is called in the name of a function."""
    _behind.setdefault(called, op)


def behind(name: str) -> Op | None:
    """The operator that a public function calls which has none of its own name; None where it
    calls none.
    """
    catalogue.load()
    return _behind.get(name)


def functions_over(op: Op) -> list[str]:
    """The public functions that call an operator, and have none of their own name."""
    apart = (n for n in _behind if families.of_function(n) and n not in catalogue.load())
    return sorted(name for name in apart if _behind[name] is op and name not in op.aliases)


def in_order(op: Op, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """All arguments of a call, those that were given by name in their places.

    Raises:
        TypeError: as for a Python function.
    """
    names = op.argument_names
    takes = f"{op.name} takes {', '.join(names)}"
    if len(args) > len(names):
        raise TypeError(f"{takes}; got {len(args)} arguments")
    for name in named:
        if name not in names[len(args) :]:
            how = "twice" if name in names else "unknown to it"
            raise TypeError(f"{takes}; got {name}, {how}")
    for a in op.parsed.arguments[len(args) :]:
        if a.name in named or a.has_default_value():
            args = (*args, named.get(a.name, a.default_value))
        else:
            raise TypeError(f"{takes}; got no {a.name}")
    return args


def parts(
    name: str, args: tuple[Any, ...], named: Mapping[str, Any], sm: int | None
) -> tuple[PartCall, ...] | None:
    """The operators that a call comes to: of a composite, and of a function that takes the
    arguments and leaves the call to others than the operator of its name. `sm` as in `which`.

    Raises:
        What the function raises of the call.
    """
    if composite := catalogue.composites().get(name):
        return composite.calls_on(sm, *args, **named)
    if name not in _in_parts:
        return None
    signature, calls = _in_parts[name]
    try:
        call = signature.bind(*args, **named)
    except TypeError:  # in the order of the operator's
        return None
    call.apply_defaults()
    given = (a for a in call.arguments.values() if isinstance(a, Tensor))
    return calls(sm is not None or any(a.is_cuda for a in given), **call.arguments)


#: An operator, its arguments, and the variant of it that is called by name.
Reached = tuple[Op, tuple[Any, ...], Variant | None]


class _Reached(BaseException):
    """No error, so that nothing on the way takes it for one."""

    def __init__(self, call: Reached) -> None:
        self.call = call


class _Stop(TorchDispatchMode):
    """Ends a call where it comes to an operator that is known by the name of the function."""

    def __init__(self, function: str) -> None:
        super().__init__()
        self.ops = catalogue.load()
        self.function = function
        self.first: Reached | None = None
        #: What PyTorch computes, by its operators' names.
        self.by_pytorch: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        space, _, name = func._schema.name.partition("::")
        if space == "warpsmith" and (found := self._entered(name)) is not None:
            op, variant = found
            call = op, tuple(args), variant
            if self.function in (messages.called_by(op), *op.aliases):
                raise _Reached(call)
            self.first = self.first or call
        elif space == "aten" and name not in self.by_pytorch:
            self.by_pytorch.append(name)
        if space == "warpsmith" and not func._schema.returns:
            return None  # what it would write to stays as it is
        return func(*args, **(kwargs or {}))

    def _entered(self, name: str) -> tuple[Op, Variant | None] | None:
        """What an operator of PyTorch's stands for: one of the catalogue, or a variant of it."""
        if (op := self.ops.get(name)) is not None:
            return op, None
        near = (op for op in self.ops.values() if name.startswith(f"{op.name}_"))
        variants = (variant for op in near for variant in op.variants)
        named = next((v for v in variants if v.op_name == name), None)
        return (named.op, named) if named else None


def reached(name: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> Reached | str | None:
    """The operator, its arguments and the variant that the call names, or what serves a call that
    comes to no operator; None where there is no such function, and where it takes no such
    arguments.

    Raises:
        What the function raises of the call.
    """
    family = families.of_function(name)
    function = getattr(importlib.import_module(f"warpsmith.{family}"), name) if family else None
    if not inspect.isfunction(function):
        return None
    try:
        inspect.signature(function).bind(*args, **named)
    except TypeError:
        return None
    given = [a for a in (*args, *named.values()) if isinstance(a, Tensor)]
    devices = sorted({a.device.index for a in given if a.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices), _Stop(name) as stop:  # seeds may be drawn
            function(*args, **named)
    except _Reached as stopped:
        return stopped.call
    if stop.first is not None:
        return stop.first
    if stop.by_pytorch:
        return f"PyTorch's kernels serve such a call: {', '.join(stop.by_pytorch)}"
    return "nothing is computed"
