"""A function in the place of another, behind the same decorators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

from warpsmith.patching.rules import Left

#: Whose decorators are known to call what they hold in their closures.
_HOME = "transformers."


def around(function: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """A function, behind copies of the decorators of another one.

    Raises:
        Left: a decorator is not transformers', or holds the other one elsewhere than in its
            closure.
    """
    wrapped = getattr(plain, "__wrapped__", None)
    if wrapped is None:
        return function
    function = around(function, wrapped)
    cells = getattr(plain, "__closure__", None) or ()
    holding = [_holds(cell, wrapped) for cell in cells]
    if not any(holding) or not plain.__globals__["__name__"].startswith(_HOME):
        raise Left("its forward is decorated")
    cells = tuple(CellType(function) if h else c for c, h in zip(cells, holding, strict=True))
    copied = FunctionType(
        plain.__code__, plain.__globals__, plain.__name__, plain.__defaults__, cells
    )
    copied.__kwdefaults__ = plain.__kwdefaults__
    return functools.update_wrapper(copied, function)


def check(plain: Callable[..., Any]) -> None:
    """Whether another function can take its place.

    Raises:
        Left: see `around`.
    """
    around(plain, plain)


def _holds(cell: CellType, function: Callable[..., Any]) -> bool:
    try:
        return cell.cell_contents is function
    except ValueError:  # it is empty
        return False
