"""warpsmith: GPU kernels for PyTorch, from the naive rung to the peak, under one namespace.

import warpsmith
y = warpsmith.rms_norm(x, weight)
print(warpsmith.which("rms_norm", x, weight))
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from warpsmith.core import catalogue, dispatch
from warpsmith.core.dispatch import Choice, FallbackWarning, which
from warpsmith.core.families import FAMILIES, PUBLIC, TOOLS, of_function

if TYPE_CHECKING:
    from warpsmith import nn as nn
    from warpsmith.attention import *  # noqa: F403
    from warpsmith.elementwise import *  # noqa: F403
    from warpsmith.gemm import *  # noqa: F403
    from warpsmith.loss import *  # noqa: F403
    from warpsmith.norm import *  # noqa: F403
    from warpsmith.patching import patch as patch
    from warpsmith.patching import unpatch as unpatch
    from warpsmith.patching.use import use as use
    from warpsmith.quantize import *  # noqa: F403
    from warpsmith.reduce import *  # noqa: F403
    from warpsmith.softmax import *  # noqa: F403
    from warpsmith.transform import *  # noqa: F403
    from warpsmith.vision import *  # noqa: F403

__version__ = "0.1.0"
__all__ = ["Choice", "FallbackWarning", "catalogue", "dispatch", "which"]
__all__ += [name for names in PUBLIC.values() for name in names]
__all__ += list(TOOLS)


class _Package(ModuleType):
    """This package, which imports a family when something of it is first asked for."""

    def __getattr__(self, name: str) -> Any:
        if family := of_function(name):
            package = importlib.import_module(f"warpsmith.{family}")
            for function in PUBLIC[family]:
                setattr(self, function, getattr(package, function))
            return getattr(package, name)
        if name in TOOLS:
            module = importlib.import_module(TOOLS[name])
            return module if TOOLS[name] == f"warpsmith.{name}" else getattr(module, name)
        if name in FAMILIES:
            return importlib.import_module(f"warpsmith.{name}")
        raise AttributeError(f"module 'warpsmith' has no attribute '{name}'")

    def __setattr__(self, name: str, value: Any) -> None:
        # Imported, a family becomes an attribute; but `softmax` is a function here, too.
        if isinstance(value, ModuleType) and of_function(name):
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
