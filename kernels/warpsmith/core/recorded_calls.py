"""Calls that autograd records in C++ (`csrc/autograd`), where that library is there, compiled for
the PyTorch at hand.

A derivative in the spec stays the truth: it is what compilers trace, what transforms go through,
and what runs where the library is missing. Where it is one call of another operator, `PLANS` says
the same as a plan that C++ follows without Python; `tests/test_recorded_calls.py` compares the two.
Called from C++, any other derivative would cost more than in a function of autograd in Python.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes

from warpsmith.core import autograd
from warpsmith.core.schemas import gradient_names
from warpsmith.native import recorded_library

#: As in csrc/autograd/recorded.cpp.
_KIND = 1000
_ARGUMENT, _OUTPUT, _GRADIENT, _NEEDED, _APART = (kind * _KIND for kind in range(5))

_TEXT = re.compile(r"(?P<op>\w+)\((?P<takes>.*)\) -> (?P<gives>[^;]*)(; \w+ -> (?P<passes>.*))?")


@dataclass(frozen=True)
class Plan:
    """How the gradient of an operator is computed.

    Args:
        text: ``op(takes) -> gives``, in names of arguments, outputs and gradients of outputs.
            Of what it takes, ``a|b`` is b where a has no elements; ``grad|b`` zeros like b where
            nothing came back; ``?a`` whether a gradient of a is wanted; ``a!=b`` whether their
            dtypes differ. It gives the gradients of those arguments, in the order of its outputs,
            or ``a=1|0``: the second, or the first where that has no elements. ``; grad -> a, b``:
            where the first output has no gradient, theirs is that one.
        when: the name of an argument, and of what values of it the plan holds; of others the spec's
            derivative runs.
    """

    text: str
    when: tuple[str, Callable[[Any], bool]] | None = None


def _norm(name: str, affine: str) -> dict[str, Plan]:
    """Of a norm, one that keeps rstd, and one of a sum."""
    more = f"{affine}, eps"
    added = "".join(f", {a}={slot}" for slot, a in enumerate(affine.split(", "), 2))
    return {
        name: Plan(f"{name}_backward(grad, x, {more}) -> x, {affine}"),
        f"{name}_with_rstd": Plan(
            f"{name}_backward_from_output(grad_y, y, {affine}, rstd, eps) -> x, {affine}"
        ),
        f"add_{name}": Plan(
            f"add_{name}_backward(grad_y, grad_h, h|x, {more}, zero_centered, x!=h) "
            f"-> x=1|0, residual=0{added}; grad_h -> x, residual"
        ),
    }


def _attention(name: str, starts: str) -> Plan:
    options = "scale, causal, window_left, window_right, softcap, alibi_slopes, mask, bias, sinks, "
    options += "gate, q_documents, k_documents, tree, dropout_p, seed, offset"
    return Plan(
        f"{name}_backward(grad_out|out, grad_lse, q, k, v, out, lse, {starts}{options}, "
        "deterministic, batch_invariant, ?bias) -> q, k, v, bias, sinks, alibi_slopes, gate",
        ("return_lse", bool),
    )


def _is_constant(mask: Tensor | None) -> bool:
    return mask is None or not mask.requires_grad


_OF_X = ("relu", "sigmoid", "gelu", "gelu_tanh", "silu", "hardswish", "quick_gelu", "mish")
_GATED = ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul")

PLANS: Mapping[str, Plan] = {
    **{name: Plan(f"{name}_backward(grad, x) -> x") for name in _OF_X},
    **{name: Plan(f"{name}_backward(grad, x, up) -> x, up") for name in _GATED},
    "elu": Plan("elu_backward(grad, x, alpha) -> x"),
    "hardshrink": Plan("hardshrink_backward(grad, x, lambd) -> x"),
    "glu": Plan("glu_backward(grad, x, dim) -> x"),
    "dropout": Plan("dropout_backward(grad_y, mask, p) -> x"),
    "softmax": Plan("softmax_backward(grad_y, y, dim) -> x"),
    "log_softmax": Plan("log_softmax_backward(grad_y, y, dim) -> x"),
    "scaled_masked_softmax": Plan(
        "scaled_masked_softmax_backward(grad_y, y, scale, causal) -> x", ("mask", _is_constant)
    ),
    **_norm("rms_norm", "weight"),
    **_norm("layer_norm", "weight, bias"),
    "group_norm": Plan(
        "group_norm_backward(grad, x, groups, weight, bias, eps, activation) -> x, weight, bias"
    ),
    "cross_entropy_forward": Plan(
        "cross_entropy_backward(logits, target, lse, grad_loss|lse, grad_lse|lse, ignore_index, "
        "label_smoothing, z_loss) -> logits"
    ),
    "flash_attention": _attention("flash_attention", ""),
    "flash_attention_varlen": _attention(
        "flash_attention_varlen", "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, "
    ),
}


def _coder(arguments: Sequence[str], outputs: Sequence[str]) -> Callable[[str], int]:
    """What C++ calls an output of an operator, the gradient of one, or an argument. An output may
    have the name of an argument; derivatives mean the output then.
    """
    gradients = gradient_names(outputs)

    def code(of: str) -> int:
        if of in gradients:
            return _GRADIENT + gradients.index(of)
        if of in outputs:
            return _OUTPUT + outputs.index(of)
        return _ARGUMENT + arguments.index(of)

    return code


def steps(name: str, formula: autograd.Derivative) -> tuple[Any, ...]:
    """The plan of an operator as C++ takes it: the operator that it calls, and columns."""
    parts = _TEXT.fullmatch(PLANS[name].text)
    assert parts is not None, PLANS[name].text
    arguments, outputs = formula.arguments, formula.outputs
    code = _coder(arguments, outputs)

    def taken(word: str) -> tuple[int, int]:
        if word[0] == "?":
            return _NEEDED + arguments.index(word[1:]), -1
        if "!=" in word:
            first, second = word.split("!=")
            return _APART + arguments.index(first), code(second)
        first, _, second = word.partition("|")
        return code(first), code(second) if second else -1

    takes = [taken(word) for word in parts["takes"].split(", ")]
    gives = dict.fromkeys(arguments, (-1, -1))
    for slot, word in enumerate(parts["gives"].split(", ")):
        argument, _, places = word.partition("=")
        first, _, second = (places or str(slot)).partition("|")
        gives[argument] = int(first), int(second or -1)
    passes: list[int] = []
    if parts["passes"]:
        which = code(parts[4].split()[1]) - _GRADIENT
        passes = [which if a in parts["passes"].split(", ") else -1 for a in arguments]
    constants = [outputs.index(name) for name in formula.constant_names]
    columns = [*zip(*takes, strict=True), *zip(*gives.values(), strict=True), passes, constants]
    return parts["op"], *(list(column) for column in columns)


#: Operators that are defined for C++, by what they are recorded for.
_defined: dict[tuple[str, str], Callable[..., Any]] = {}
_defining = threading.RLock()


@functools.cache
def _library() -> torch.library.Library:
    return torch.library.Library("warpsmith", "FRAGMENT")


def _signature(name: str) -> str:
    """As it was registered: what is drawn anew in each call is symbolic there."""
    schema = str(getattr(torch.ops.warpsmith, name).default._schema)
    return schema.removeprefix(f"warpsmith::{name}")


def _define(name: str, called: str, formula: autograd.Derivative) -> Callable[..., Any]:
    """`warpsmith::name` as it is recorded for a public function."""
    gradient, *columns = steps(name, formula)
    overload, differentiable = f"recorded_{called}", f"_{gradient}_of_{called}"
    # in whose name second derivatives are refused
    run = autograd.speaking(called, getattr(torch.ops.warpsmith, gradient).default)
    _library().define(differentiable + _signature(gradient))
    _library().impl(differentiable, run, "CompositeImplicitAutograd")
    torch.ops.warpsmith._record(
        name, overload, _signature(name), gradient, differentiable, *columns
    )
    return getattr(getattr(torch.ops.warpsmith, name), overload)._op  # type: ignore[no-any-return]


def _recorded_for(name: str, called: str, formula: autograd.Derivative) -> Callable[..., Any]:
    """The same, defined once, whichever threads ask, and unseen by whoever watches calls."""
    found = _defined.get((name, called))
    if found is None:
        with _defining, _disable_current_modes(), torch._C.DisableTorchFunction():
            found = _defined.get((name, called)) or _define(name, called, formula)
            _defined[name, called] = found
    return found


def _is_watched() -> bool:
    """Whether a mode sees calls of functions that is not PyTorch's for a default device."""
    modes = range(torch._C._len_torch_function_stack())
    return any(type(torch._C._get_function_stack_at(i)) is not DeviceContext for i in modes)


def recorded(name: str, formula: autograd.Formula) -> Callable[..., Any]:
    """What autograd records of calls of `warpsmith::name`, at the least cost to the host: in C++
    where there is a plan and the library, and by the formula of the spec.
    """
    plan, otherwise = PLANS.get(name), autograd.eager(formula, name)
    if plan is None or isinstance(formula, autograd.NoDerivative) or not recorded_library.load():
        return otherwise
    known, called, speaker = formula, formula.called, autograd._speaker
    of, holds = plan.when or (formula.arguments[0], lambda first: True)
    slot, modes = formula.arguments.index(of), torch._C._len_torch_function_stack

    def call(*args: Any) -> Any:
        if (modes() and _is_watched()) or not holds(args[slot]):
            return otherwise(*args)
        # what a public function is built of speaks in its name
        return _recorded_for(name, speaker.name or called, known)(*args)

    return call
