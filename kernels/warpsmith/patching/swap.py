"""A module's class, exchanged for a subclass that computes here.

The subclass bears the name of its base, is an instance of it, and has no state of its own: state
dicts, hooks, deep copies, gradient checkpointing, `isinstance` and what looks classes up by name go
on as before, and giving the class back undoes everything.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable
from typing import Any

from torch.nn import Module

#: `make(base, option)`: the members of the subclass. A function of a module, found by its name.
Make = Callable[[type[Module], Any], dict[str, Any]]

_classes: dict[tuple[type[Module], Make, Hashable], type[Module]] = {}


def subclass(base: type[Module], make: Make, option: Hashable) -> type[Module]:
    """The one subclass of `base` with the members that `make` gives it."""
    key = (base, make, option)
    if key not in _classes:
        members = {
            **make(base, option),
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": base.__doc__,
            "__reduce_ex__": _reduce,
            "_warpsmith_base": base,
            "_warpsmith_made": (make.__module__, make.__qualname__, option),
        }
        _classes[key] = type(base.__name__, (base,), members)
    return _classes[key]


def _reduce(self: Module, protocol: Any) -> tuple[Any, ...]:
    """For copies and pickles, which look classes up by their names."""
    cls: Any = type(self)
    _, _, *state = cls._warpsmith_base.__reduce_ex__(self, 2)
    return (_new, (cls._warpsmith_base, *cls._warpsmith_made), *state)


def _new(base: type[Module], module: str, name: str, option: Hashable) -> Module:
    cls = subclass(base, getattr(importlib.import_module(module), name), option)
    return cls.__new__(cls)


def is_swapped(module: Module) -> bool:
    """Whether the class of the module is such a subclass, whatever was put on top of it since."""
    return hasattr(type(module), "_warpsmith_base")


def swap(module: Module, make: Make, option: Hashable) -> None:
    module.__class__ = subclass(type(module), make, option)


def restore(module: Module) -> bool:
    """Gives the class back; False where somebody has put another on top of ours."""
    cls: Any = type(module)
    if "_warpsmith_base" not in cls.__dict__:
        return False
    module.__class__ = cls._warpsmith_base
    return True
