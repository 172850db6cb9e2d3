"""Triton's interpreter without what it does over and over.

It looks through all of `triton.language` for functions to replace, for a kernel and again for each
call of a function within it: half of what our twins take in it. Here that is done once for each
module of a launch, and a module is looked through once. Likewise, types of tiles and what tiles
have from their types are made once. Nothing that is computed changes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def hasten() -> None:
    """Does nothing to an interpreter that is built in another way."""
    try:
        import triton.language as tl
        from triton.runtime import interpreter
    except ImportError:
        return
    needed = ("_patch_lang", "_patch_builtin", "_patch_attr", "_get_np_dtype", "GridExecutor")
    if not all(hasattr(interpreter, name) for name in needed):
        return
    replaced: set[int] = set()
    names: dict[Any, list[str]] = {}
    replace, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    convert = interpreter._get_np_dtype
    converted = functools.lru_cache(maxsize=None)(convert)

    def run(self: Any, *args: Any, **options: Any) -> Any:
        replaced.clear()
        try:
            return launch(self, *args, **options)
        finally:
            replaced.clear()

    def replace_once(function: Callable[..., Any]) -> Any:
        module = id(function.__globals__)
        if module in replaced:
            return None
        replaced.add(module)
        return replace(function)

    def replace_builtins(package: Any, *how: Any) -> None:
        if package not in names:
            members = inspect.getmembers(package)
            names[package] = [name for name, member in members if tl.core.is_builtin(member)]
        for name in names[package]:
            member = getattr(package, name)
            if tl.core.is_builtin(member):
                interpreter._patch_attr(package, name, member, *how)

    make_type, make_tile = tl.block_type.__init__, tl.tensor.__init__
    types: dict[Any, dict[str, Any]] = {}
    tiles: dict[str, dict[str, Any]] = {}

    def init_type(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *(getattr(size, "value", size) for size in shape))
        if key not in types:
            make_type(self, element_ty, shape)
            types[key] = dict(vars(self))
        vars(self).update(types[key], element_ty=element_ty)

    def init_tile(self: Any, handle: Any, type: Any) -> None:
        if type.name not in tiles:
            make_tile(self, handle, type)
            tiles[type.name] = dict(vars(self), handle=None)
        vars(self).update(tiles[type.name], handle=handle, type=type)

    tl.block_type.__init__, tl.tensor.__init__ = init_type, init_tile
    interpreter.GridExecutor.__call__ = run
    interpreter._patch_lang = replace_once
    interpreter._patch_builtin = replace_builtins
    interpreter._get_np_dtype = lambda t: converted(t) if type(t) is tl.dtype else convert(t)
