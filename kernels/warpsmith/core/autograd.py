"""What autograd knows of an operator: its derivative, that it has none, or what it writes to.

A derivative is written once, in the spec, and reaches autograd as a plain
`torch.autograd.Function`, which costs the host less than one with `setup_context` or a formula of
`torch.library`. Public functions run it by themselves; what is registered with the dispatcher does
it for calls of `torch.ops.warpsmith`, for compilers, which trace it, and at each level of the
transforms of `torch.func`.
"""

from __future__ import annotations

import functools
import inspect
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd import forward_ad

from warpsmith.core import messages
from warpsmith.core.arguments_by_name import taken
from warpsmith.core.catalogue import Op
from warpsmith.core.schemas import defaults, gradient_names, parse_schema

F = TypeVar("F", bound=Callable[..., Any])

#: Operators that compute gradients, by their names.
_GRADIENT = re.compile(r"_backward|_with_grad$")

BelowAutograd = torch._C._AutoDispatchBelowAutograd
_forward_grad = forward_ad._set_fwd_grad_enabled
_is_grad_enabled = torch.is_grad_enabled
_is_transforming = torch._C._are_functorch_transforms_active
_any_requires_grad = torch._C._any_requires_grad


class _Speaker(threading.local):
    """In whose name operators refuse: that of the public function which is built of them."""

    name: str | None = None


_speaker = _Speaker()


def speaking(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, of whose operators and their derivatives, whenever these run, users know by the
    name of a public function. The outermost name counts.
    """

    @functools.wraps(function)
    def run(*args: Any, **named: Any) -> Any:
        if _speaker.name is not None or torch.compiler.is_compiling():
            return function(*args, **named)
        _speaker.name = name
        try:
            return function(*args, **named)
        finally:
            _speaker.name = None

    return run


def speaker(called: str) -> str:
    """The public function in whose name one of that name is called: itself, or one built of it."""
    return _speaker.name or called


def _pick(slots: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """What gets several places of a sequence at once."""
    if len(slots) > 1:
        return itemgetter(*slots)
    return (lambda values: (values[slots[0]],)) if slots else (lambda values: ())


class Derivative:
    """An operator's derivative: what a call keeps for it, and the gradients of a call.

    Which of the kept values are tensors follows from the schema; what `saves` adds is looked at in
    each call.

    Args:
        name: the operator's, for messages.
        called: the public function behind which it stands.
        schema: the operator's, parsed.
        function: as `Op.backward`.
        takes: the names of what it takes.
        saves: as `Op.saves`, each a function of all arguments and named outputs.
        constants: outputs that autograd takes for constants.
    """

    def __init__(
        self,
        name: str,
        called: str,
        schema: Any,
        function: Callable[..., Mapping[str, Tensor | None]],
        takes: Sequence[str],
        saves: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
        constants: Sequence[str] = (),
    ) -> None:
        self.name, self.called, self.function = name, called, function
        self.arguments = tuple(a.name for a in schema.arguments)
        self.defaults = defaults(schema)
        self.outputs = outputs = tuple(output.name for output in schema.returns)
        self.constant_names = tuple(constants)
        self.saves = tuple(saves.values())
        names = (*self.arguments, *outputs, *saves)
        slots = {n: i for i, n in enumerate(names) if n}
        is_tensor = {a.name: "Tensor" in str(a.type) for a in schema.arguments}
        kept = [n for n in takes if n in slots]
        tensors = [n for n in kept if n in saves or is_tensor.get(n, True)]
        others = [n for n in kept if n in saves or n not in tensors]
        asked = [n for n in takes if n not in slots and n != "needs"]
        self.tensors = _pick([slots[n] for n in tensors])
        self.others = _pick([slots[n] for n in others])
        self.grads = _pick([gradient_names(outputs).index(n) for n in asked])
        #: Of what the derivative gets. What `saves` adds stands in both; the later one counts.
        self.names = (*others, *tensors, *asked, *(("needs",) if "needs" in takes else ()))
        self.in_order = self._order(takes)
        self.either = tuple((tensors.index(n), others.index(n)) for n in tensors if n in saves)
        self.takes_needs = "needs" in takes
        #: By which gradients are wanted: the arguments' names, None for the others, and `needs`.
        self.wanted: dict[tuple[bool, ...], tuple[tuple[str | None, ...], Any]] = {}
        self.known = frozenset(self.arguments)
        self.constants = _pick([slots[n] for n in constants]) if constants else None
        self.named = _pick([i for i, n in enumerate((*self.arguments, *outputs)) if n])
        self.several = len(outputs) != 1

    def _order(self, takes: Sequence[str]) -> Callable[[Sequence[Any]], tuple[Any, ...]] | None:
        """What puts the values of `names` into the order in which the derivative takes them; None
        where it has to get them by name.
        """
        parameters = inspect.signature(self.function).parameters.values()
        if any(p.kind != p.POSITIONAL_OR_KEYWORD for p in parameters):
            return None
        if tuple(p.name for p in parameters)[: len(takes)] != tuple(takes):
            return None
        slots = {n: i for i, n in enumerate(self.names)}
        return _pick([slots[n] for n in takes])

    def _want(self, wanted: tuple[bool, ...]) -> tuple[tuple[str | None, ...], Any]:
        pairs = zip(self.arguments, wanted, strict=False)
        names = tuple(n if needed else None for n, needed in pairs)
        found = self.wanted[wanted] = names, frozenset(filter(None, names))
        return found

    def keep(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keeps what the derivative will ask for. `inputs` are all arguments of the call."""
        given = (*inputs, *output) if self.several else (*inputs, output)
        if self.saves:
            named = self.named(given)
            given = (*given, *[saved(*named) for saved in self.saves])
        kept, others = self.tensors(given), self.others(given)
        if self.either:
            kept = tuple([k if isinstance(k, Tensor) else None for k in kept])
            others = tuple([None if isinstance(o, Tensor) else o for o in others])
        ctx.save_for_backward(*kept)
        ctx.others = others
        if _speaker.name is not None:
            ctx.speaker = _speaker.name
        if self.constants is not None:
            outputs = self.constants(given)
            ctx.mark_non_differentiable(*[o for o in outputs if isinstance(o, Tensor)])
        ctx.set_materialize_grads(False)

    def gradients(self, ctx: Any, grads: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        """One for each argument that the call was given."""
        wanted = ctx.needs_input_grad
        for g in grads:
            if g is not None:
                break
        else:
            return (None,) * len(wanted)
        names, needs = self.wanted.get(wanted) or self._want(wanted)
        kept = ctx.saved_tensors
        if self.either:
            kept = list(kept)
            for i, j in self.either:
                kept[i] = ctx.others[j] if kept[i] is None else kept[i]
        given = (*ctx.others, *kept, *self.grads(grads))
        if self.takes_needs:
            given = (*given, needs)
        # A gradient that may have to be differentiated in its turn stays above autograd.
        if _is_grad_enabled():
            found = speaking(getattr(ctx, "speaker", self.called), self._run)(given)
        else:
            with BelowAutograd():
                found = self._run(given)
        assert found.keys() <= self.known, f"{self.name} has no argument for {found.keys()}"
        return tuple(map(found.get, names))

    def _run(self, given: tuple[Any, ...]) -> Mapping[Any, Tensor | None]:
        if self.in_order is not None:
            return self.function(*self.in_order(given))
        return self.function(**dict(zip(self.names, given, strict=True)))


class NoDerivative:
    """Of an operator that has none: takes part in autograd, and raises where it is asked. `called`:
    the public function behind which it stands.
    """

    def __init__(self, name: str, schema: Any, called: str) -> None:
        self.name, self.called, self.defaults = name, called, defaults(schema)

    def keep(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.speaker = _speaker.name or self.called

    def gradients(self, ctx: Any, grads: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        # of what computes gradients: what users differentiate is the function that has them
        if _GRADIENT.search(self.name):
            raise RuntimeError(f"{ctx.speaker}: second derivatives are not implemented")
        raise RuntimeError(
            f"{ctx.speaker}: the derivative for warpsmith::{self.name} is not implemented"
        )


Formula = Derivative | NoDerivative


@functools.cache
def derivative_of(op: Op, called: str | None = None) -> Formula:
    """`called`: the public function, where it is not the one that the operator's name tells."""
    called = called or messages.called_by(op)
    if op.backward is None:
        return NoDerivative(op.name, op.parsed, called)
    takes = op.derivative_takes
    return Derivative(op.name, called, op.parsed, op.backward, takes, op.saves, op.constants)


def derivative(
    name: str, called: str, schema: str, backward: Callable[..., Mapping[str, Tensor | None]] | None
) -> Formula:
    """Of an operator that is no `Op`, behind a public function. Its derivative names nothing but
    arguments, outputs and their gradients.
    """
    parsed = parse_schema(schema)
    if backward is None:
        return NoDerivative(name, parsed, called)
    outputs = tuple(output.name for output in parsed.returns)
    known = (*(a.name for a in parsed.arguments), *outputs, *gradient_names(outputs), "needs")
    takes = taken(backward, known, name)
    assert takes is not None
    return Derivative(name, called, parsed, backward, takes)


@functools.cache
def eager(derivative: Formula, name: str) -> Callable[..., Any]:
    """`warpsmith::name`, an operator or a variant of it, as a plain function of autograd: what
    costs a call least. It takes all arguments.
    """
    direct = _direct(name)

    def forward(ctx: Any, *args: Any) -> Any:
        if _is_transforming():  # the levels below record it too, for which both ways are off here
            with torch.enable_grad(), _forward_grad(True), BelowAutograd():
                output = direct(*args)
        else:
            with BelowAutograd():
                output = direct(*args)
        derivative.keep(ctx, args, output)
        return output

    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return derivative.gradients(ctx, grads)

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return apply_of(type(name, (torch.autograd.Function,), members))


def apply_of(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function.apply` without what that does for `setup_context` and for transforms, which may
    not be active.
    """
    return super(torch.autograd.Function, function).apply  # type: ignore[misc]


def _direct(name: str) -> Callable[..., Any]:
    """The C++ object of `warpsmith::name`."""
    return getattr(torch.ops.warpsmith, name).default._op


def refuse_tangents(name: str, args: tuple[Any, ...]) -> None:
    """Forward-mode differentiation would take the result for a constant.

    Raises:
        NotImplementedError: where an argument carries a tangent.
    """
    for a in args:
        if isinstance(a, Tensor) and forward_ad.unpack_dual(a).tangent is not None:
            raise NotImplementedError(f"{name}: forward-mode derivatives are not implemented")


def differentiate(
    library: torch.library.Library,
    derivative: Callable[[], Formula],
    name: str,
) -> None:
    """Registers what autograd runs where `warpsmith::name` is called above it: by `torch.ops`, in
    code that is compiled or exported, under transforms of `torch.func`, and in derivatives that are
    differentiated in their turn. `derivative` makes it, on first use.
    """

    def run(*args: Any) -> Any:
        if forward_ad._current_level >= 0:
            refuse_tangents(name, args)
        if not (_is_grad_enabled() and _any_requires_grad(*args)):
            with BelowAutograd():
                return _direct(name)(*args)
        formula = derivative()
        args += formula.defaults[len(args) :]  # which the dispatcher leaves out
        recorded = eager(formula, name)
        if not _is_transforming():
            return recorded(*args)
        # The dispatcher has taken the tensors to one level of the transforms already.
        with enable_single_level_autograd_function():
            return recorded(*args)

    library.impl(name, run, "Autograd")


def loop_over_batch(library: torch.library.Library, name: str) -> None:
    """Registers that `torch.vmap` calls `warpsmith::name` once for each of a batch. PyTorch does so
    by itself, but with a warning, and not where an output may be left out.
    """

    def one_of(a: Any, dim: Any, k: int) -> Any:
        if isinstance(dim, list):
            return [one_of(part, d, k) for part, d in zip(a, dim, strict=True)]
        return a if dim is None else a.select(dim, k)

    def one_by_one(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        def of(k: int) -> Any:
            return _direct(name)(*(one_of(a, d, k) for a, d in zip(args, in_dims, strict=True)))

        if info.batch_size == 0:
            raise RuntimeError(f"{name}: expected a batch of at least one for vmap")
        found = [of(k) for k in range(info.batch_size)]
        several = isinstance(found[0], tuple)
        outputs = list(zip(*found, strict=True)) if several else [tuple(found)]
        stacked = tuple(None if o[0] is None else torch.stack(o) for o in outputs)
        dims = tuple(None if o is None else 0 for o in stacked)
        return (stacked, dims) if several else (stacked[0], dims[0])

    def run(*args: Any) -> Any:
        from torch._functorch.autograd_function import custom_function_call_vmap_helper
        from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

        interpreter: Any = retrieve_current_functorch_interpreter()
        op = getattr(torch.ops.warpsmith, name).default
        return custom_function_call_vmap_helper(interpreter, one_by_one, op, *args)

    library.impl(name, run, "FuncTorchBatched")


class _Once(torch.autograd.Function):
    """A gradient that depends on tensors in a way that autograd did not see."""

    @staticmethod
    def forward(ctx: Any, what: str, gradient: Tensor, *of: Tensor) -> Tensor:
        ctx.what = what
        return gradient.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        raise RuntimeError(f"{ctx.what}: second derivatives are not implemented")


def once(what: str, gradient: Tensor, *of: Tensor) -> Tensor:
    """A gradient that a function of autograd has computed where autograd did not see it, from
    tensors that it has kept. If it is to be differentiated in its turn, that raises: otherwise the
    second derivative would be lost. (`once_differentiable` of PyTorch does so only where the
    gradient of the output asks for it.)
    """
    if not _is_grad_enabled():
        return gradient
    return _Once.apply(what, gradient, *of)  # type: ignore[no-untyped-call, no-any-return]


def write(library: torch.library.Library, op: Op, name: str, written: tuple[int, ...]) -> None:
    """Registers what tells autograd of the arguments that `warpsmith::name` writes to, by their
    places: it cannot differentiate such a call, nor can `torch.vmap` make it.
    """
    how = " with inplace" if op.name.endswith("_inplace") else ""

    def run(*args: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in args):
            raise RuntimeError(
                f"{name}: not differentiable{how}; expected arguments that require no gradient"
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
    refuse_batch(library, name, name, how)


def refuse_batch(library: torch.library.Library, name: str, called: str, how: str = "") -> None:
    """Registers that `torch.vmap` does not call `warpsmith::name`, which writes to its arguments.
    PyTorch does not either, and says that a rule is missing. `how`: what makes the function write.
    """

    def run(*args: Any, **outs: Any) -> Any:
        from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

        if not any(map(_is_batched, (*args, *outs.values()))):
            with retrieve_current_functorch_interpreter().lower():  # type: ignore[no-untyped-call]
                space, _, overload = name.partition(".")
                return getattr(getattr(torch.ops.warpsmith, space), overload or "default")(
                    *args, **outs
                )
        raise RuntimeError(f"{called}: expected no torch.vmap{how}, as it writes to its arguments")

    library.impl(name, run, "FuncTorchBatched")


def outside_vmap(why: str) -> Callable[[F], F]:
    """Of a public function for which the host waits to read a value, which `torch.vmap` cannot."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def run(*args: Any, **named: Any) -> Any:
            mapped = not torch.compiler.is_compiling() and _is_transforming()
            if mapped and any(map(_is_batched, (*args, *named.values()))):
                raise RuntimeError(f"{function.__name__}: expected no torch.vmap, {why}")
            return function(*args, **named)

        return cast(F, run)

    return decorate


def _is_batched(a: Any) -> bool:
    return isinstance(a, Tensor) and torch._C._functorch.is_batchedtensor(a)


def require_own_memory(op: Op, slot: int, x: Tensor) -> None:
    """Raises where elements that are written to share memory."""
    if x.layout != torch.strided:  # which is refused further down, in words of its own
        return
    if any(n > 1 and stride == 0 for n, stride in zip(x.shape, x.stride(), strict=True)):
        raise RuntimeError(
            f"{op.name}: expected {op.argument_names[slot]} that are not expanded, "
            "as they are written to"
        )
