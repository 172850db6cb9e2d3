"""The compiled libraries, as the first call of an operator loads them: which one, and the order of
the ladders in it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch

from warpsmith.core import catalogue, elsewhere, twins
from warpsmith.core.catalogue import Op
from warpsmith.native import finding, libraries


@functools.cache
def load(library: str) -> bool:
    """Loads (compiling first where needed) a CUDA library, "norm/rms_norm"; False where there is
    none to be had.
    """
    path = finding.find(library)
    if path is None:
        return False
    try:
        torch.ops.load_library(str(path))
    except OSError as error:  # compiled on another system, say, with a newer C library
        finding.give_up(library, f"{path} cannot be loaded: {error}")
        return False
    name = libraries.symbol(library)
    for op in catalogue.of_family(library.partition("/")[0]):
        if op.library == library:
            order = ladder_orders(op.family)[op.source_dir]
            getattr(torch.ops.warpsmith, f"_{name}_ladder")(op.source_dir, as_told(op, order))
            break
    for op in catalogue.of_family(library.partition("/")[0]):
        if op.library == library and op.yields:
            tell_elsewhere(op)
    _cutlass[library] = getattr(torch.ops.warpsmith, f"_{name}_cutlass")()
    return True


def tell_elsewhere(op: Op) -> None:
    """Tells a loaded library which calls of an operator others serve faster."""

    rules = elsewhere.as_told(op, elsewhere.served_here(op, twin=twins.triton_available()))
    getattr(torch.ops.warpsmith, f"_elsewhere_{op.name}")(op.name, rules)


def last_rung(library: str) -> str:
    """The rung of a loaded library that this thread launched last."""
    return getattr(torch.ops.warpsmith, f"_{libraries.symbol(library)}_last_rung")()


#: The CUTLASS that each loaded library was built with; empty where it was built without.
_cutlass: dict[str, str] = {}


def built_with_cutlass(library: str) -> bool | None:
    """Whether a library was built with CUTLASS; None until it is loaded."""
    return bool(_cutlass[library]) if library in _cutlass else None


def as_told(op: Op, order: Iterable[str]) -> str:
    """The order of a ladder as a library is told it: behind the name of a rung stands a question
    mark and the name of each operator of the folder for which no GPU has verified it.
    """
    unproven = [
        (rung.name, other.name)
        for other in catalogue.of_family(op.family)
        if other.source_dir == op.source_dir
        for rung in other.ladder
        if rung.unproven
    ]
    return ",".join(
        "?".join((name, *(other for rung, other in unproven if rung == name))) for name in order
    )


def ladder_orders(family: str) -> dict[str, tuple[str, ...]]:
    """Rung names in ladder order for every source folder; operators that share one differ only in
    rungs left out.
    """
    orders: dict[str, tuple[str, ...]] = {}
    for op in catalogue.of_family(family):
        names = tuple(rung.name for rung in op.ladder)
        longer, shorter = sorted((names, orders.get(op.source_dir, ())), key=len, reverse=True)
        if tuple(name for name in longer if name in shorter) != shorter:
            raise ValueError(
                f"{op.name}: its ladder orders {op.source_dir} differently from others"
            )
        orders[op.source_dir] = longer
    return orders
