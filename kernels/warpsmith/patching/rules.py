"""What a rule is: which modules it takes, and what it makes of their class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from torch.nn import Module

from warpsmith.patching.swap import Make

#: What models of transformers call the cache of keys and values, the newest name first.
CACHE = ("cache", "past_key_values")


class Left(Exception):
    """Why a module is left as it is."""


@dataclass(frozen=True)
class Rule:
    """How modules of a class are served.

    Args:
        kind: the option of `patch` that turns it on.
        function: what serves it, as the report says; `{}` in it is the option.
        make: the members of the subclass, from the base and the option.
        reads: what a `forward` may read that this one stands for, each set a version of it. Another
            model of the same name, or a later one, that reads anything else is left alone. Empty
            where the class is PyTorch's.
        option: what else the subclass needs to know of a module. Raises `Left` where it does not
            serve it.
        parts: attributes of a module that are then no longer called: it stands for them, too.
        otherwise: the rule to try where this one leaves a module.
    """

    kind: str
    function: str
    make: Make
    reads: tuple[frozenset[str], ...] = ()
    option: Callable[[Module], Hashable] = lambda module: None
    parts: tuple[str, ...] = ()
    otherwise: Rule | None = None

    def apply_to(self, module: Module) -> Hashable:
        """The option for a module, or `Left`."""
        if "forward" in module.__dict__:
            raise Left("its forward has been replaced already")
        if self.reads:
            check_reads(type(module).forward, self.reads)
        return self.option(module)


def check_reads(function: Callable[..., Any], known: Iterable[frozenset[str]]) -> None:
    """Raises `Left` where a function reads other names than one of these sets."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    names = frozenset(code.co_names) if code is not None else frozenset()
    known = tuple(known)
    if names not in known:
        nearest = min(known, key=lambda k: len(k ^ names))
        other = ", ".join(sorted(nearest ^ names)[:4])
        raise Left(f"its forward is not the one that this stands for ({other})")


def reads(*names: str) -> tuple[frozenset[str], ...]:
    """Each argument a version: names, separated by spaces."""
    return tuple(frozenset(n.split()) for n in names)
