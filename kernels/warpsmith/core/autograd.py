"""What autograd knows of an operator: its derivative, that it has none, or what it writes to."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.catalogue import Op

BelowAutograd = torch._C._AutoDispatchBelowAutograd


def differentiate(library: torch.library.Library, op: Op, name: str) -> None:
    """Gives `warpsmith::name`, the operator or a variant of it, the operator's derivative."""
    assert op.backward is not None
    derivative, takes, arguments = op.backward, op.derivative_takes, op.argument_names
    kept = tuple(n for n in takes if n != "needs" and n not in op.gradients)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = op.results(output)
        given = dict(zip((*arguments, *op.outputs), (*inputs, *outputs), strict=True))
        unnamed = tuple(given[n] for n in (*arguments, *filter(None, op.outputs)))
        given |= {n: saved(*unnamed) for n, saved in op.saves.items()}
        ctx.others = [None if isinstance(given[n], Tensor) else given[n] for n in kept]
        ctx.tensor_slots = [i for i, n in enumerate(kept) if isinstance(given[n], Tensor)]
        ctx.save_for_backward(*(given[kept[i]] for i in ctx.tensor_slots))
        constants = (given[n] for n in op.constants)
        ctx.mark_non_differentiable(*(x for x in constants if isinstance(x, Tensor)))
        ctx.set_materialize_grads(False)
        ctx.present = [a is not None for a in inputs]

    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        if all(g is None for g in grads):
            return (None,) * len(arguments)
        values = list(ctx.others)
        for slot, tensor in zip(ctx.tensor_slots, ctx.saved_tensors, strict=True):
            values[slot] = tensor
        given = dict(zip(kept, values, strict=True)) | dict(zip(op.gradients, grads, strict=True))
        # arguments that were left out need nothing, and are not in `needs_input_grad`
        pairs = zip(arguments, ctx.needs_input_grad, strict=False)
        given["needs"] = frozenset(n for n, needed in pairs if needed)
        asked = {n: given[n] for n in takes}
        # A gradient that may have to be differentiated in its turn stays above autograd.
        below = contextlib.nullcontext() if torch.is_grad_enabled() else BelowAutograd()
        with below:
            found = derivative(**asked)
        assert found.keys() <= set(arguments), f"{op.name} has no argument for {found.keys()}"
        pairs = zip(arguments, ctx.present, strict=True)
        return tuple(found.get(n) if present else None for n, present in pairs)

    torch.library.register_autograd(
        f"warpsmith::{name}", backward, setup_context=setup_context, lib=library
    )


def refuse(library: torch.library.Library, op: Op, name: str) -> None:
    """Says of `warpsmith::name`, which has no derivative, that it has none."""

    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        raise RuntimeError(f"{op.name}: the derivative for warpsmith::{name} is not implemented")

    torch.library.register_autograd(f"warpsmith::{name}", backward, lib=library)


def write(library: torch.library.Library, op: Op, name: str, written: tuple[int, ...]) -> None:
    """Registers what tells autograd of the arguments that `warpsmith::name` writes to, by their
    places: it cannot differentiate such a call.
    """

    def run(*args: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in args):
            raise RuntimeError(
                f"{name}: not differentiable; expected arguments that require no gradient"
            )
        for slot in written:
            if slot < len(args) and isinstance(args[slot], Tensor):
                require_own_memory(op, slot, args[slot])
        with BelowAutograd():
            out = getattr(torch.ops.warpsmith, name).default(*args)
        for slot in written:
            if slot < len(args) and isinstance(args[slot], Tensor):
                torch.autograd.graph.increment_version(args[slot])
        return out

    library.impl(name, run, "Autograd")


def require_own_memory(op: Op, slot: int, x: Tensor) -> None:
    """Raises where elements that are written to share memory."""
    if x.layout != torch.strided:  # which is refused further down, in words of its own
        return
    if any(n > 1 and stride == 0 for n, stride in zip(x.shape, x.stride(), strict=True)):
        raise RuntimeError(
            f"{op.name}: expected {op.argument_names[slot]} that are not expanded, "
            "as they are written to"
        )
