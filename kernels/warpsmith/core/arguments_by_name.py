"""The arguments of a call, handed to the functions of a spec by name.

A function of a spec (a reference, a check, a condition of a rung, a Triton twin, ...) lists the
arguments of the operator that it needs, in any order, and gets these and no others:

    def needs_packs(x, weight): ...  # of "rms_norm(Tensor x, Tensor? weight, float eps) -> Tensor"

One whose only parameter is `call` gets the whole call, a `Call`. A parameter with a default may be
missing from the schema, so that operators that differ by an argument share their functions.
`**rest` gets the arguments that no other parameter names. A function with `*args`, or of PyTorch
itself, gets all of them by position. A condition of a rung that depends on the GPU as well takes
`sm: int | None = None` behind a star: the compute capability of the GPU that it is asked about, or
None. Any other name that the schema lacks is an error when the operator is made; signatures are
read then, and only then.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

#: The attribute of an adapter that holds what it adapts.
_ADAPTED = "_warpsmith_adapted"


class Call:
    """The arguments of a call by their names in the schema: `call.x`, `call.weight`."""

    def __init__(self, names: Sequence[str], values: Sequence[Any]) -> None:
        self._named = dict(zip(names, values, strict=True))

    def __getattr__(self, name: str) -> Any:
        try:
            return self._named[name]
        except KeyError:
            raise AttributeError(f"a call of {', '.join(self._named)} has no {name}") from None

    def __iter__(self) -> Iterator[Any]:
        """All arguments, in the schema's order."""
        return iter(self._named.values())

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors among the arguments, in the schema's order."""
        return tuple(a for a in self if isinstance(a, Tensor))


@functools.cache
def _parameters(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...] | None:
    """None where they are not to be had, are `*args`, or are named by PyTorch."""
    if (getattr(function, "__module__", None) or "").partition(".")[0] == "torch":
        return None
    try:
        parameters = tuple(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # of a built-in function
        return None
    return None if any(p.kind == p.VAR_POSITIONAL for p in parameters) else parameters


@functools.cache
def asks_for_gpu(function: Callable[..., Any]) -> bool:
    """Whether a function, or what it adapts, wants to be told `sm`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(map(_is_gpu, parameters))


def _is_gpu(parameter: inspect.Parameter) -> bool:
    return parameter.name == "sm" and parameter.kind == inspect.Parameter.KEYWORD_ONLY


def taken(
    function: Callable[..., Any], names: Sequence[str], owner: str, rest: Sequence[str] = ()
) -> tuple[str, ...] | None:
    """Which of `names` a function takes by name; None where it takes all of them by position.

    Args:
        function: as for `by_name`.
        names: what it may ask for.
        owner: the operator, for messages.
        rest: those of them that `**rest` stands for; all by default.

    Raises:
        TypeError: it has a parameter of another name, without a default.
    """
    parameters = _parameters(function)
    if parameters is None:
        return None
    named = [p for p in parameters if p.kind != p.VAR_KEYWORD]
    needed = (p.name for p in named if p.default is inspect.Parameter.empty)
    if unknown := [name for name in needed if name not in names]:
        called = getattr(function, "__qualname__", repr(function))
        raise TypeError(
            f"{owner}: {called} asks for {', '.join(unknown)}; there are {', '.join(names)}"
        )
    takes = dict.fromkeys(p.name for p in named if p.name in names)
    if len(named) < len(parameters):
        takes |= dict.fromkeys(rest or names)
    return tuple(takes)


def by_name(function: Callable[..., Any], names: Sequence[str], owner: str) -> Callable[..., Any]:
    """Adapts a function of some arguments to a function of all, by position.

    Args:
        function: takes arguments of a call by their names, or a `call`; one with `*args` takes
            them all by position already.
        names: of all arguments, in the schema's order.
        owner: the operator, for messages.

    Returns:
        `function` itself where it takes all arguments in this order, otherwise an adapter.

    Raises:
        TypeError: it asks for an argument that the operator does not have.
    """
    function = getattr(function, _ADAPTED, function)  # adapted to another operator before
    names = tuple(names)
    parameters = _parameters(function)
    run: Callable[..., Any]
    given = [p.name for p in parameters or () if not _is_gpu(p)]
    if given == ["call"]:

        def run(*args: Any, **gpu: int | None) -> Any:
            return function(Call(names, args), **gpu)

    else:
        takes = taken(function, names, owner)
        if takes is None or takes == names == tuple(p.name for p in parameters or ()):
            return function
        slots = tuple((name, names.index(name)) for name in takes)

        def run(*args: Any, **gpu: int | None) -> Any:
            return function(**{name: args[slot] for name, slot in slots}, **gpu)

    adapter = functools.wraps(function, updated=())(run)
    setattr(adapter, _ADAPTED, function)
    return adapter
