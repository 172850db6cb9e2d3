"""Why `patch` leaves a module that no rule is for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Module

from warpsmith.patching import architectures

PRODUCTS = "products are PyTorch's unless linear=True"
UNLISTED = "its architecture is not in the tables"
_NONE = "no counterpart here"
_OWN = "it is warpsmith's own"
_SAME: dict[type[Module], str] = {
    torch.nn.Linear: PRODUCTS,
    torch.nn.Dropout: "PyTorch draws in one kernel, too",
    torch.nn.Embedding: "PyTorch looks up in one kernel, too",
}
#: Functions that compute what a class does, by the package of the class and its name.
_COUNTERPARTS: dict[str, dict[str, str]] = {
    "torch.nn.": {
        "BCEWithLogitsLoss": "bce_with_logits",
        "ELU": "elu",
        "GLU": "glu",
        "Hardshrink": "hardshrink",
        "Hardswish": "hardswish",
        "LogSoftmax": "log_softmax",
        "NonDynamicallyQuantizableLinear": "linear",
        "Sigmoid": "sigmoid",
        "Softmax": "softmax",
        "Softmax2d": "softmax",
        "UpsamplingNearest2d": "upsample_nearest2d",
    },
    "transformers.": {"Conv1D": "linear", "ReLUSquaredActivation": "relu_squared"},
    "diffusers.models.": {"RMSNorm": "rms_norm", "Timesteps": "timestep_embedding"},
}


def _counterpart(module: Module) -> str | None:
    cls = type(module)
    if isinstance(module, torch.nn.Upsample) and module.mode == "nearest":
        return "upsample_nearest2d"
    for package, functions in _COUNTERPARTS.items():
        if cls.__module__.startswith(package) and cls.__name__ in functions:
            return functions[cls.__name__]
    return None


def of_class(cls: type[Module], is_known: Callable[[type[Any]], bool]) -> str | None:
    """Why a class that is not known is not served, where it is made of one that is."""
    if cls.__module__.startswith("warpsmith."):
        return None
    base: Any
    for base in cls.__mro__[1:]:
        if is_known(base):
            # transformers wraps that of every subclass
            if inspect.unwrap(cls.forward) is inspect.unwrap(base.forward):
                return f"its class is made of {base.__name__}, as fully_shard's are: patch first"
            return f"its class is made of {base.__name__} and has a forward of its own"
    return None


def of(module: Module) -> str:
    """Why any other module is left."""
    cls = type(module)
    if cls.__module__.startswith("warpsmith."):
        return _OWN
    if cls in _SAME:
        return _SAME[cls]
    if function := _counterpart(module):
        return f"has a counterpart, warpsmith.{function}, which patch does not put in its place"
    if cls.__module__.startswith("transformers.models.") and not architectures.of_class(cls):
        return UNLISTED
    return _NONE
