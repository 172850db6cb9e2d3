"""Whether Triton twins can run here, and the twin of an operator."""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from warpsmith.core.arguments_by_name import by_name
from warpsmith.core.catalogue import Op


@functools.cache
def why_no_triton() -> str | None:
    """Why no twin can run here; None where it can."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return "Triton is not installed"
    if interpreting():
        return None
    # Triton compiles the code that starts its kernels.
    if not (os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang")))):
        return "Triton finds no C compiler (cc, gcc, clang, or what CC names)"
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        return f"Triton finds no headers of Python in {headers} (python3-dev)"
    return None


def triton_available() -> bool:
    return why_no_triton() is None


def interpreting() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


@functools.cache
def triton_function(op: Op) -> Callable[..., Any]:
    """The operator's Triton twin, a function of all its arguments."""
    module, name = op.triton.split(":")
    function = getattr(importlib.import_module(f"warpsmith.{op.family}.{module}"), name)
    return by_name(function, op.argument_names, op.name)
