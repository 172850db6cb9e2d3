"""`out=`: results that go into tensors which the caller has.

An operator that takes part has an overload `op.out` in `torch.ops.warpsmith`: its arguments, and
by name a tensor for each result, which it writes to; it returns nothing. The compiled library's
kernels write there themselves (csrc/host/into.h), the twin and the reference by a copy. A binding
and a spec take part by a line each; nothing else of an operator knows of it. Results that an
operator may leave out are left out of such calls.

As in PyTorch, such calls are not differentiable, and autocast leaves them alone. Unlike there, a
tensor of another shape is refused and not resized, and one that shares memory with an argument gets
a result that was computed apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from warpsmith.core import autograd, catalogue, dispatch, messages, references
from warpsmith.core.catalogue import Op

#: Goes before that of `dispatch` when Python ends: PyTorch takes `op.fallback`, whose arguments are
#: those of `op`, for gone with it, and stumbles over that where it forgets an overload later.
_library = torch.library.Library("warpsmith", "FRAGMENT")

#: The operators that take part, each with what the overload calls its tensors.
_names: dict[str, tuple[str, ...]] = {}


def operators() -> tuple[Op, ...]:
    """All operators with `op.out`."""
    ops = catalogue.load()
    return tuple(ops[name] for name in _names)


def names_of(op: Op) -> tuple[str, ...]:
    """What `op.out` calls the tensors that it writes to, in the order of the results."""
    return _names[op.name]


def schema(op: Op, overload: str = "out") -> str:
    """That of `op.out`."""
    inner = op.schema[len(op.name) :].rsplit(" -> ", 1)[0][1:-1]
    separator = ", " if "*" in inner else ", *, "
    tensors = (f"Tensor({'abcd'[i]}!) {name}" for i, name in enumerate(names_of(op)))
    return f"{op.name}.{overload}({inner}{separator}{', '.join(tensors)}) -> ()"


def register(op: Op, called: str | None = None) -> Callable[..., Any]:
    """Defines `op.out` of a registered operator.

    Args:
        op: its results are tensors, of which one to three may not be left out.
        called: the public function, for messages; by default the one that the operator's name is.

    Returns:
        The call behind that function's `out`: `run(out, variant, *args)`, with all arguments, which
        returns what it was given.
    """
    always = [r.name for r in op.parsed.returns if str(r.type) == "Tensor"]
    names = tuple(f"out_{name or i}" for i, name in enumerate(always))
    names = names if len(always) > 1 else ("out",)
    _names[op.name] = names
    _library.define(schema(op), tags=(torch.Tag.pt2_compliant_tag,))
    packet = getattr(torch.ops.warpsmith, op.name)
    implementations: dict[str, Callable[..., Any]] = {
        "CPU": _cpu(op),
        "Meta": _meta(op),
        "CompositeExplicitAutograd": _until_loaded(op),
        "Autograd": _autograd(op),
    }
    for key, implementation in implementations.items():
        _library.impl(f"{op.name}.out", implementation, key)
    default, called = packet.out, called or messages.called_by(op)
    autograd.refuse_batch(_library, f"{op.name}.out", called, " with out")
    direct = default._op
    is_compiling = torch.compiler.is_compiling
    is_transforming = torch._C._are_functorch_transforms_active

    def run(out: Any, variant: str | None, *args: Any) -> Any:
        if variant is not None:  # which is called for what it returns
            alone(called, variant)
        tensors = _as_given(called, names, out)
        named = dict(zip(names, tensors, strict=True))
        if is_compiling() or is_transforming():
            default(*args, **named)
            return out
        if forward_ad._current_level >= 0:
            autograd.refuse_tangents(called, (*args, *tensors))
        _refuse_gradients(called, (*args, *tensors))
        try:
            with autograd.BelowAutograd():
                direct(*args, **named)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            dispatch.require_tensors(op, dispatch.normalise(op, args), called)
            said = messages.of_sharded(autograd.speaker(called), error)
            if said := said or messages.in_words(op, called, error):
                raise said from error
            raise
        _changed(tensors)
        return out

    return run


def copied(called: str, found: Tensor, out: Tensor, variant: str | None = None) -> Tensor:
    """The result of a call that several kernels serve, in the tensor that was given for it."""
    alone(called, variant)
    require(called, out, found.shape, found, (found,))
    return out.copy_(found)


def copied_all(called: str, names: Sequence[str], found: Sequence[Tensor], out: Any) -> Any:
    """The same of several results."""
    tensors = _as_given(called, names, out)
    _refuse_gradients(called, (*found, *tensors))
    _check_results(called, tensors, found, found[0].device)
    for given, result in zip(tensors, found, strict=True):
        given.copy_(result)
    return out


def by_last(called: str, operator: Any, out: Tensor, like: Tensor, *args: Any) -> Tensor:
    """The result of a function that several operators serve, which the last of them, a packet of
    `torch.ops`, writes to `out`; `like`: a tensor of its shape, dtype and device.
    """
    require(called, out, like.shape, like, args)
    operator.out(*args, out=out)
    return out


def require(
    called: str, out: Tensor, shape: Sequence[int], like: Tensor, args: Sequence[Any]
) -> None:
    """That `out` may get the result of a function that several operators serve.

    Args:
        called: the function.
        out: what it was given for its result.
        shape: the result's.
        like: a tensor of the result's dtype and device.
        args: what shall require no gradient.

    Raises:
        TypeError: `out` is no tensor.
        RuntimeError: the result cannot go there, or a gradient would be lost.
    """
    (out,) = _as_given(called, ("out",), out)
    if not torch.compiler.is_compiling() and forward_ad._current_level >= 0:
        autograd.refuse_tangents(called, (*args, out))
    _refuse_gradients(called, (*args, out))
    _check_apart(called, out)
    _check_alike(called, "out", out, tuple(shape), like.dtype, like.device)


def alone(called: str, variant: str | None) -> None:
    """That no variant is named.

    Raises:
        ValueError: where there is one.
    """
    if variant is not None:
        raise ValueError(f"{called}: expected no variant beside out")


# --- what may be written to -----------------------------------------------------------------------


def _as_given(called: str, names: Sequence[str], out: Any) -> tuple[Tensor, ...]:
    tensors = (out,) if len(names) == 1 else tuple(out) if isinstance(out, tuple | list) else ()
    if len(tensors) != len(names) or not all(isinstance(t, Tensor) for t in tensors):
        wanted = "a tensor" if len(names) == 1 else f"a tuple of {len(names)} tensors"
        found = type(out).__name__
        if len(names) > 1 and isinstance(out, tuple | list):
            found = f"a {found} of {', '.join(type(t).__name__ for t in out) or 'nothing'}"
        raise TypeError(f"{called}: expected out to be {wanted}, got {found}")
    return tensors


def _refuse_gradients(called: str, tensors: Sequence[Any]) -> None:
    if torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors):
        raise RuntimeError(
            f"{called}: not differentiable with out; expected arguments that require no gradient"
        )


def _changed(tensors: Sequence[Tensor]) -> None:
    for t in tensors:
        if not t.is_inference():
            torch.autograd.graph.increment_version(t)


def _check(op: Op, args: tuple[Any, ...], outs: Mapping[str, Tensor]) -> None:
    """Against what the operator promises of its results, and of itself."""
    promises = references.promised(op, args)
    if not _is_alone(op, promises):
        raise RuntimeError(f"{op.name}: expected no more results than out is for")
    device = references.first_tensor(args).device
    _check_results(op.name, tuple(outs.values()), promises[: len(outs)], device)


def is_alone(op: Op, args: tuple[Any, ...]) -> bool:
    """Whether a call leaves out all results that it may, as `op.out` wants it."""
    return _is_alone(op, references.promised(op, args))


def _is_alone(op: Op, promises: Sequence[Tensor | None]) -> bool:
    return all(p is None for p in promises[len(names_of(op)) : len(op.outputs)])


def _check_results(
    called: str, outs: Sequence[Tensor], like: Sequence[Tensor | None], device: torch.device
) -> None:
    for place, (out, promise) in enumerate(zip(outs, like, strict=True)):
        _check_apart(called, out)
        name = "out" if len(outs) == 1 else f"the {('first', 'second', 'third')[place]} of out"
        assert promise is not None
        _check_alike(called, name, out, tuple(promise.shape), promise.dtype, device)
    if any(_meet(a, b) for a, b in itertools.combinations(outs, 2)):
        raise RuntimeError(f"{called}: expected tensors for out that share no memory")


def _check_alike(
    called: str,
    name: str,
    out: Tensor,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    for what, wanted, got in (
        ("be on", device, out.device),
        ("have dtype", dtype, out.dtype),
        ("have shape", shape, tuple(out.shape)),
    ):
        if wanted != got:
            raise RuntimeError(f"{called}: expected {name} to {what} {wanted}, got {got}")


def _check_apart(called: str, out: Tensor) -> None:
    """That each element has memory of its own, as in csrc/host/memory.h."""
    if out.layout != torch.strided or out.is_contiguous() or out.numel() == 0:
        return  # the first also where sizes are symbols, which cannot be sorted
    reach = 0
    for stride, size in sorted(zip(out.stride(), out.shape, strict=True)):
        if size > 1 and stride <= reach:
            how = "that are not expanded" if stride == 0 else "without elements that overlap"
            raise RuntimeError(f"{called}: expected tensors for out {how}, as they are written to")
        reach += (size - 1) * stride


def _meet(a: Tensor, b: Tensor) -> bool:
    """Whether the memory of two tensors overlaps, from the first element of each to the last."""
    if a.is_meta or 0 in (a.numel(), b.numel()):
        return False

    def reach(t: Tensor) -> tuple[int, int]:
        last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
        return t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()

    (first, end), (other, other_end) = reach(a), reach(b)
    return first < other_end and other < end


# --- implementations ------------------------------------------------------------------------------


def _cpu(op: Op) -> Callable[..., None]:
    def run(*args: Any, **outs: Tensor) -> None:
        args = dispatch.checked(op, args)
        _check(op, args, outs)
        _keep(op, references.computed(op, args), outs)

    return run


def _meta(op: Op) -> Callable[..., None]:
    def run(*args: Any, **outs: Tensor) -> None:
        _check(op, dispatch.checked(op, args), outs)

    return run


def _keep(op: Op, found: Any, outs: Mapping[str, Tensor]) -> None:
    for out, result in zip(outs.values(), op.results(found)[: len(outs)], strict=True):
        out.copy_(result)


def _until_loaded(op: Op) -> Callable[..., None]:
    """Stands in for the compiled library's, as for the operator itself."""

    def run(*args: Any, **outs: Tensor) -> None:
        packet = getattr(torch.ops.warpsmith, op.name)
        given = dispatch.normalise(op, args)
        dispatch.require_tensors(op, given)
        on_gpu = any(isinstance(a, Tensor) and a.is_cuda for a in (*args, *outs.values()))
        if on_gpu and dispatch.load(op.library):
            with autograd.BelowAutograd():
                packet.out(*args, **outs)
            return
        if on_gpu:
            dispatch._warn_once(op.family, dispatch.finding.why_not(op.library))
        _check(op, dispatch.checked(op, args), outs)
        _keep(op, packet.fallback(*args), outs)

    return run


def _autograd(op: Op) -> Callable[..., None]:
    def run(*args: Any, **outs: Tensor) -> None:
        _refuse_gradients(op.name, (*args, *outs.values()))
        with autograd.BelowAutograd():
            getattr(torch.ops.warpsmith, op.name).out(*args, **outs)
        _changed(tuple(outs.values()))

    return run
