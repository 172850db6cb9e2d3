"""Registration of every operator with PyTorch, and the choice of the kernel that serves a call.

Per operator `op` the namespace `torch.ops.warpsmith` holds

    op                   what users call; picks the kernel
    op.rung              the same with the rung and the accumulator named; compiled library only
    op.fallback          Triton, else the PyTorch reference: where the library hands a call back
    op_<variant>         one op per variant

Schemas, CPU implementation, fake and autograd are registered here, when a family is imported: for
its first function that somebody names, or its first operator that somebody looks up in
`torch.ops.warpsmith`. A variant is defined when it is looked up there, by itself: there are
thousands, of which a process uses a few.

The CUDA implementations of `op` and `op.rung` come with the operator's compiled library, loaded by
the first CUDA call: until then a CompositeExplicitAutograd implementation stands in for them,
which ranks below a CUDA one once that exists.
"""

from __future__ import annotations

import functools
import operator
import re
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from warpsmith.core import (
    autocast,
    autograd,
    catalogue,
    elsewhere,
    families,
    messages,
    public_calls,
    recorded_calls,
    references,
    sharded,
    twins,
)
from warpsmith.core.arguments_by_name import asks_for_gpu
from warpsmith.core.catalogue import DTYPE_NAMES, DTYPES, Op, Variant
from warpsmith.core.loading import (
    _cutlass,
    as_told,
    built_with_cutlass,
    ladder_orders,
    last_rung,
    load,
)
from warpsmith.core.public_calls import in_order
from warpsmith.core.references import first_tensor
from warpsmith.core.schemas import alike, parse_name, parse_schema
from warpsmith.native import finding, toolchain

__all__ = ["_cutlass", "as_told", "built_with_cutlass", "in_order", "ladder_orders"]
__all__ += ["last_rung", "load"]

_library = torch.library.Library("warpsmith", "DEF")


@dataclass(frozen=True)
class Choice:
    """What serves a call, and why."""

    #: "cuda", "triton", "torch", "reference", "composite", or "refused": the call raises.
    implementation: str
    variant: Variant | None
    reason: str

    @property
    def name(self) -> str:
        return self.variant.op_name if self.variant else self.implementation

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class FallbackWarning(UserWarning):
    """A call is served by something slower than it could be."""


# --- the choice -----------------------------------------------------------------------------------


def refusal(variant: Variant, args: tuple[Any, ...], sm: int | None) -> str | None:
    """Why `variant` cannot take the call; None where it can. `sm` None stands for any GPU.

    A call without outputs needs no kernel: the bindings answer it before they ask a rung.
    """
    if why := variant.signature.mismatch(variant.op.argument_names, args):
        return why
    if has_no_outputs(variant.op, args):
        return None
    if sm is not None and sm < variant.rung.min_sm:
        return f"needs sm_{variant.rung.min_sm}, this GPU is sm_{sm}"
    when = variant.rung.when
    return when(*args, sm=sm) if asks_for_gpu(when) else when(*args)


def has_no_outputs(op: Op, args: tuple[Any, ...]) -> bool:
    """Whether a call returns nothing but tensors without elements, and writes to none."""
    if op.written or not any(isinstance(a, Tensor) and a.numel() == 0 for a in args):
        return False
    return all(o is None or o.numel() == 0 for o in references.promised(op, args))


def pick(op: Op, args: tuple[Any, ...], sm: int) -> Variant | None:
    """The CUDA variant that serves the call on a GPU of compute capability `sm`."""
    able = _automatic(op)
    return next((v for v in able if not (refusal(v, args, sm) or v.rung.suits(*args))), None)


def _automatic(op: Op) -> list[Variant]:
    """What may serve a call that names no variant, the best first."""
    return [v for v in reversed(op.variants) if not v.low_precision and not v.rung.unproven]


def device_sm(device: torch.device) -> int:
    """The compute capability of a GPU, 90 for 9.0, or that which it passes for."""
    if sm := toolchain.claimed_sm():
        return sm
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


def which(name: str, *args: Any, sm: int | None = None, **named: Any) -> Choice:
    """What serves a call, as a pure function of the arguments, the GPU and what is built.

    It takes the GPU for a whole one. On a part of one that holds no cluster of so many blocks as a
    rung wants, a call goes to the next rung that takes it.

    Args:
        name: an operator ("rms_norm") or an alias of it, a public function, or a composite
            ("fused_linear_cross_entropy"), of which the reason says what serves its parts.
        *args: the function's arguments, or the operator's, as `torch.ops.warpsmith` takes them;
            tensors may be on any device. A call that names its variant is served by that, or
            refused.
        **named: those that are given by name; and `approximate="tanh"` of what has a second
            operator for it ("gelu_tanh").
        sm: ask for a GPU of this compute capability (90) instead of the tensors' own device;
            the result then says which compiled kernel would serve, whether or not it is built
            here.

    Returns:
        A `Choice`: implementation, variant and reason; `print` it.

    Raises:
        ValueError: there is no such operator, or no such variant of it.
        TypeError: it takes no such arguments, or more than these; `sm` is no number, or the name
            no string.
    """
    if not isinstance(name, str):
        raise TypeError(f"which: expected the name of an operator, got {type(name).__name__}")
    if sm is not None:
        try:
            sm = operator.index(sm)
        except TypeError:
            message = f"which: expected sm to be a whole number (90, say), got {sm!r}"
            raise TypeError(message) from None
    if parts := public_calls.parts(name, args, named, sm):
        if len(parts) == 1 and not parts[0].purpose:
            return which(parts[0].op, *parts[0].args, sm=sm)
        served = (
            f"{c.op}: {c.purpose}" if "." in c.op else f"{c.purpose}: {which(c.op, *c.args, sm=sm)}"
            for c in parts
        )
        return Choice("composite", None, "; ".join(served))
    try:
        op = catalogue.get(name)
        if "approximate" in named and f"{op.name}_tanh" in catalogue.load():
            op = catalogue.get(f"{op.name}_tanh" if named.pop("approximate") == "tanh" else op.name)
        args = checked(op, in_order(op, args, named))
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError):
        if (found := public_calls.reached(name, args, named)) is None:
            raise
        if isinstance(found, str):
            return Choice("torch", None, found)
        op, args = found[0], checked(*found[:2])
        if found[2] is not None:
            return _of_variant(found[2], args, sm)
    tensor = first_tensor(args)
    if sm is None:
        if (place := tensor.device.type) != "cuda":
            return Choice("reference", None, f"{place} tensors run the PyTorch reference")
        if any(
            isinstance(a, Tensor) and a.is_floating_point() and a.dtype not in DTYPE_NAMES
            for a in args
        ):
            why = f"no kernel for {tensor.dtype}; the PyTorch reference serves it"
            return reference_choice(op, args, why)
        if not load(op.library):
            return fallback_choice(op, args, finding.why_not(op.library))
        sm = device_sm(tensor.device)
    if faster := faster_elsewhere(op, args, sm):
        return Choice(faster.implementation, None, str(faster))
    if variant := pick(op, args, sm):
        return Choice("cuda", variant, _story(variant, args))
    why = f"no compiled kernel takes {tensor.dtype}, shape {tuple(tensor.shape)}"
    here = (v for v in _automatic(op) if v.rung.min_sm <= sm)
    if best := next((v for v in here if not v.signature.mismatch(op.argument_names, args)), None):
        said = refusal(best, args, sm) or best.rung.suits(*args)
        why = f"no compiled kernel takes the call; {best.rung.name}: {said}"
    if sm < toolchain.MIN_SM:
        why = f"the GPU is sm_{sm}, the kernels need sm_{toolchain.MIN_SM}"
    return fallback_choice(op, args, why)


def _of_variant(variant: Variant, args: tuple[Any, ...], sm: int | None) -> Choice:
    """What serves a call that names its variant."""
    device, library = first_tensor(args).device, variant.op.library
    asked = device_sm(device) if sm is None and device.type == "cuda" else sm
    why = refusal(variant, args, asked)
    if why is None and sm is None:
        if device.type != "cuda":
            return Choice("reference", None, f"{device.type} tensors run the PyTorch reference")
        why = None if load(library) else f"needs the compiled library: {finding.why_not(library)}"
    if why is not None:
        return Choice("refused", None, f"{variant.op_name}: {why}")
    return Choice("cuda", variant, _story(variant, args))


def _story(variant: Variant, args: tuple[Any, ...]) -> str:
    plan = variant.rung.plan(*args)
    return f"{variant.rung.story}{f' ({plan})' if plan else ''}"


def faster_elsewhere(op: Op, args: tuple[Any, ...], sm: int) -> elsewhere.Rule | None:
    """What the record says of a call that another implementation serves faster."""
    if not op.yields:
        return None
    return elsewhere.rule_for(op, args, sm, twin=twins.triton_available())


def _faster_here(op: Op, args: tuple[Any, ...]) -> elsewhere.Rule | None:
    """The same on the tensors' own device."""
    device = first_tensor(args).device
    if not op.yields or device.type != "cuda":
        return None
    return faster_elsewhere(op, args, device_sm(device))


def fallback_choice(op: Op, args: tuple[Any, ...], why: str) -> Choice:
    dtype = first_tensor(args).dtype
    # a twin is written for integers where some rung is
    firsts = (DTYPES[op.signature(name).first] for name in op.dtypes)
    integers = any(not first.is_floating_point for first in firsts)
    if dtype not in DTYPE_NAMES or not (dtype.is_floating_point or integers):
        return reference_choice(op, args, why)
    if lacking := twins.why_no_triton():
        return reference_choice(op, args, f"{why}; {lacking}")
    if op.twin_lacks is not None and (lacking := op.twin_lacks(*args)):
        return reference_choice(op, args, f"{why}; the Triton twin {lacking}")
    return Choice("triton", None, why)


def reference_choice(op: Op, args: tuple[Any, ...], why: str) -> Choice:
    """The reference on a GPU, unless the call is too large for it."""
    if op.too_large is not None and (refused := op.too_large(*args)):
        return Choice("refused", None, f"{why}; {refused}")
    return Choice("reference", None, why)


# --- implementations ------------------------------------------------------------------------------


def checked(op: Op, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """All arguments of a call that the operator takes; any other raises."""
    args = normalise(op, args)
    require_tensors(op, args)
    op.check(*args)
    return args


def require_tensors(op: Op, args: tuple[Any, ...], called: str | None = None) -> None:
    """Raises where a tensor is missing, which PyTorch lets pass if it is None, or has no strides.
    Messages are those of `called`, by default of the operator.

    Raises:
        TypeError: None, a number or a list, say, in place of a tensor.
        NotImplementedError: a sparse tensor, say.
    """
    for name, needed, a in zip(op.argument_names, _tensors(op), args, strict=True):
        if needed and not isinstance(a, Tensor):
            given = "None" if a is None else type(a).__name__
            raise TypeError(f"{called or op.name}: expected {name} to be a tensor, got {given}")
        if isinstance(a, Tensor) and a.layout != torch.strided:
            raise NotImplementedError(
                f"{called or op.name}: expected {name} to be a strided tensor, got {a.layout}"
            )


@functools.cache
def _tensors(op: Op) -> tuple[bool, ...]:
    """Which arguments have to be tensors."""
    return tuple(isinstance(a.type, torch.TensorType) for a in op.parsed.arguments)


def normalise(op: Op, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Fills in the schema's defaults, so that checks and references see every argument."""
    return args + op.defaults[len(args) :]


def _cpu(op: Op) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        return references.computed(op, checked(op, args))

    return run


def _meta(op: Op) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        args = checked(op, args)
        return op.fake(*args)

    return run


def _fallback(op: Op) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        args = checked(op, args)
        if faster := _faster_here(op, args):
            if faster.implementation == "triton":
                return twins.triton_function(op)(*args)
            return references.computed(op, args, op.eager)
        choice = fallback_choice(op, args, "no compiled kernel serves the call")
        if choice.implementation == "refused":
            raise RuntimeError(f"{op.name}: {choice.reason}")
        if choice.implementation == "triton":
            return twins.triton_function(op)(*args)
        return references.computed(op, args)

    return run


@functools.cache
def _warn_once(family: str, why: str) -> None:
    warnings.warn(
        f"warpsmith: the CUDA kernels of '{family}' are not in use, "
        f"a slower implementation serves: {why}",
        FallbackWarning,
        stacklevel=4,
    )


def _until_loaded(op: Op, overload: str) -> Callable[..., Any]:
    """Stands in for the CUDA implementation until the operator's library is there."""

    def run(*args: Any, **kwargs: Any) -> Any:
        packet = getattr(torch.ops.warpsmith, op.name)
        require_tensors(op, normalise(op, args))
        if not any(isinstance(a, Tensor) and a.is_cuda for a in args):
            # the library would leave the call to this function again
            if overload == "rung":
                device = first_tensor(args).device
                raise RuntimeError(
                    f"{op.name}: the variant '{kwargs['rung']}' needs CUDA tensors, got {device}"
                )
            return packet.fallback(*args)
        if load(op.library):
            with autograd.BelowAutograd():
                return getattr(packet, overload)(*args, **kwargs)
        why = finding.why_not(op.library)
        if overload == "rung":
            raise RuntimeError(
                f"{op.name}: the variant '{kwargs['rung']}' needs the compiled CUDA library: {why}"
            )
        _warn_once(op.family, why)
        return packet.fallback(*args)

    return run


def _refuse(
    variant: Variant, args: tuple[Any, ...], why: str | None, cause: Exception | None = None
) -> NoReturn:
    """Raises with the reason and the arguments that it speaks of."""
    got = "; ".join(
        f"{name} {_described(a)}"
        for name, a in zip(variant.op.argument_names, args, strict=True)
        if isinstance(a, Tensor)
    )
    raise RuntimeError(f"{variant.op_name}: {why}; got {got}") from cause


def _described(x: Tensor) -> str:
    text = f"{x.dtype} {tuple(x.shape)} of strides {x.stride()}"
    alignment = x.data_ptr() & -x.data_ptr()
    return text if alignment == 0 or alignment >= 16 else f"{text}, aligned to {alignment} bytes"


def _variant(variant: Variant) -> Callable[..., Any]:
    """A variant refuses what it cannot take, with the reason; a CPU computes the reference."""

    def run(*args: Any) -> Any:
        op = variant.op
        args = checked(op, args)
        tensor = first_tensor(args)
        if tensor.device.type == "cuda":
            packet = getattr(torch.ops.warpsmith, op.name)
            if why := variant.signature.mismatch(op.argument_names, args):
                _refuse(variant, args, why)
            try:
                return packet.rung(*args, rung=variant.rung.name, accumulator=variant.accumulator)
            except RuntimeError as error:
                if why := refusal(variant, args, device_sm(tensor.device)):
                    _refuse(variant, args, why, error)
                raise
        if why := refusal(variant, args, None):
            _refuse(variant, args, why)
        return references.computed(op, args)

    return run


# --- registration ---------------------------------------------------------------------------------


#: Numbers that are new in every call, so that compiled code must not be made for one of them.
_DRAWN = re.compile(r"\bint (?=(seed|offset)\b)")


#: What is being defined just now: PyTorch looks whether it is there already.
_coming: set[str] = set()


def _define(schema: str) -> None:
    name = parse_name(schema).partition(".")[0]
    _coming.add(name)
    try:
        _library.define(_DRAWN.sub("SymInt ", schema), tags=(torch.Tag.pt2_compliant_tag,))
    finally:
        _coming.discard(name)


#: What of the catalogue `torch.ops.warpsmith` has, by name.
_registered: set[str] = set()


class _Namespace(type(torch.ops.warpsmith)):  # type: ignore[misc]
    """`torch.ops.warpsmith`: what it does not have yet is defined when it is asked for."""

    #: PyTorch finds operators again by it.
    __module__ = type(torch.ops.warpsmith).__module__

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or name in _coming or not _define_late(name):
                raise
        return super().__getattr__(name)


torch.ops.warpsmith.__class__ = _Namespace


#: Variants that nobody has asked for yet, by name; they are defined once, whichever threads ask.
_variants: dict[str, Variant] = {}
_defining = threading.RLock()


def _define_late(name: str) -> bool:
    """Defines an operator, with its family, or a variant; False where there is none of the name."""
    with _defining:
        if _define_variant(name):
            return True
        for family in families.likely(name):
            catalogue.of_family(family)
            if _define_variant(name):
                return True
    return False


def _define_variant(name: str) -> bool:
    if variant := _variants.pop(name, None):
        _register_variant(variant)
        _registered.add(name)
    return name in _registered


def _register_variant(variant: Variant) -> None:
    op, name = variant.op, variant.op_name
    _define(f"{name}{op.schema[len(op.name) :]}")
    _library.impl(name, _variant(variant), "CompositeExplicitAutograd")
    _library.impl(name, _meta(op), "Meta")
    _register_autograd(op, name)


def _register_autograd(op: Op, name: str) -> None:
    if op.written:
        autograd.write(_library, op, name, op.written)
        return
    derivative = functools.partial(autograd.derivative_of, op)
    autograd.differentiate(_library, derivative, name)
    autograd.loop_over_batch(_library, name)


def register(op: Op) -> None:
    """Defines the operator in `torch.ops.warpsmith`, and its variants when they are asked for."""
    _registered.add(op.name)
    # Their names are made now, as torch.compile traces no lookup that would make them.
    _variants.update({variant.op_name: variant for variant in op.variants})
    signature = op.schema[len(op.name) :]
    arguments, returns = signature.rsplit(" -> ", 1)
    inner = arguments[1:-1]
    separator = ", " if "*" in inner else ", *, "
    overloads = {
        op.name: f"{op.name}{signature}",
        f"{op.name}.rung": (
            f"{op.name}.rung({inner}{separator}str rung, str accumulator) -> {returns}"
        ),
        f"{op.name}.fallback": f"{op.name}.fallback{arguments} -> {alike(returns)}",
    }
    for schema in overloads.values():
        _define(schema)
    _library.impl(op.name, _cpu(op), "CPU")
    _library.impl(op.name, _meta(op), "Meta")
    _library.impl(op.name, _until_loaded(op, "default"), "CompositeExplicitAutograd")
    _library.impl(f"{op.name}.rung", _until_loaded(op, "rung"), "CompositeExplicitAutograd")
    _library.impl(f"{op.name}.fallback", _fallback(op), "CompositeExplicitAutograd")
    _register_autograd(op, op.name)
    autocast.register(_library, op.name, op.argument_names)
    if "torch.distributed.tensor" in sys.modules and (sharding := sharded.rules()):
        sharding.register(op)


def is_registered(op: Op) -> bool:
    """Whether `torch.ops.warpsmith` has the operator."""
    return op.name in _registered


def register_inplace(op: Op, index: int) -> None:
    """Defines `<op>_`, which writes output `index` over the first argument and returns the others.

    The compiled library implements it for CUDA. It is not differentiable, and raises
    where a gradient would be lost.

    Args:
        op: a registered operator, whose first argument is a tensor.
        index: the output of that tensor's shape and dtype.
    """
    arguments, _ = op.schema[len(op.name) :].rsplit(" -> ", 1)
    others = ["Tensor"] * (len(op.outputs) - 1)
    returns = others[0] if len(others) == 1 else f"({', '.join(others)})"
    name = f"{op.name}_"
    _define(f"{name}{arguments.replace('(Tensor ', '(Tensor(a!) ', 1)} -> {returns}")

    def rest(out: Any) -> Any:
        kept = out if isinstance(out, tuple) else (out,)
        kept = kept[:index] + kept[index + 1 :]
        return None if not kept else kept[0] if len(kept) == 1 else kept

    def written(implementation: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        autograd.require_own_memory(op, 0, args[0])
        out = implementation(*args)
        args[0].copy_(out[index] if isinstance(out, tuple) else out)
        return rest(out)

    def until_loaded(*args: Any) -> Any:
        if load(op.library):
            with autograd.BelowAutograd():
                return getattr(torch.ops.warpsmith, name)(*args)
        _warn_once(op.family, finding.why_not(op.library))
        return written(getattr(torch.ops.warpsmith, op.name).fallback, args)

    autograd.write(_library, op, name, (0,))
    _library.impl(name, lambda *args: written(_cpu(op), args), "CPU")
    _library.impl(name, lambda *args: rest(_meta(op)(*args)), "Meta")
    _library.impl(name, until_loaded, "CompositeExplicitAutograd")


def register_composite(
    schema: str,
    implementation: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., catalogue.Gradients] | None = None,
    called: str | None = None,
) -> Callable[..., Any]:
    """Defines an operator that is written in Python on top of others, the same for every device.

    Args:
        schema: as PyTorch writes it.
        implementation: takes the operator's arguments.
        fake: allocates its outputs.
        backward: as `Op.backward`; without it, the operator is not differentiable.
        called: the public function, for messages; by default the one that the operator's name is.

    Returns:
        The call of the operator that costs the host least. It takes all arguments.
    """
    name = parse_name(schema)
    _define(schema)
    _library.impl(name, implementation, "CompositeExplicitAutograd")
    _library.impl(name, fake, "Meta")
    derivative = functools.cache(
        lambda: autograd.derivative(name, called or name, schema, backward)
    )
    autograd.differentiate(_library, derivative, name)
    autocast.register(_library, name, [a.name for a in parse_schema(schema).arguments])
    call = _call(name, derivative)

    def run(*args: Any) -> Any:
        if forward_ad._current_level >= 0 and not torch.compiler.is_compiling():
            autograd.refuse_tangents(name, args)
        return call(*args)

    return run


# --- the public functions -------------------------------------------------------------------------


def _call(name: str, derivative: Callable[[], autograd.Formula] | None) -> Callable[..., Any]:
    """The call of `warpsmith::name` that costs the host least, with all arguments: below autograd
    where nothing needs a gradient, and through the function of autograd that is made from
    `derivative` where something does. Compilers and transforms see the plain op.
    """
    default = getattr(torch.ops.warpsmith, name).default
    direct = default._op
    is_compiling = torch.compiler.is_compiling
    is_grad_enabled = torch.is_grad_enabled
    is_transforming = torch._C._are_functorch_transforms_active
    is_autocast, casts = autocast.is_enabled, name in autocast.POLICIES
    below = autograd.BelowAutograd

    def recorded(*args: Any) -> Any:
        """Replaced by what it makes, on first use."""
        nonlocal recorded
        recorded = recorded_calls.recorded(name, derivative()) if derivative else default
        return recorded(*args)

    def call(*args: Any) -> Any:
        # A tensor that vmap has batched does not say whether it requires a gradient; autocast comes
        # above autograd.
        if is_compiling() or is_transforming() or (casts and is_autocast()):
            return default(*args)
        if is_grad_enabled():
            for a in args:
                if isinstance(a, Tensor) and a.requires_grad:
                    return recorded(*args)
        with below():
            return direct(*args)

    return call


def public(op: Op, called: str | None = None) -> Callable[..., Any]:
    """The call behind a public function: `run(variant, *args)`, with all arguments.

    What the library says of a tensor that is missing names no argument, and what PyTorch says of
    one of another kind is a page long: looked for only when a call has failed, which costs the
    others nothing.

    Args:
        op: the operator.
        called: the function, for messages; by default the public one whose name the operator's
            begins with.
    """
    given = () if called is None else (called,)
    if called is not None:
        public_calls.speaks_for(called, op)
    called = called or messages.called_by(op)
    derivative = None if op.written else functools.partial(autograd.derivative_of, op, *given)
    call = _call(op.name, derivative)
    is_compiling = torch.compiler.is_compiling

    def run(variant: str | None, *args: Any) -> Any:
        compiling = is_compiling()
        if not compiling and forward_ad._current_level >= 0:
            autograd.refuse_tangents(called, args)
        if variant is not None:
            return getattr(torch.ops.warpsmith, op.variant(variant, called).op_name).default(*args)
        if compiling:
            return call(*args)
        try:
            return call(*args)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            require_tensors(op, normalise(op, args), called)
            unknown = "not have a sharding strategy" in str(error)
            if unknown and "warpsmith.sharding" not in sys.modules and sharded.rules():
                return call(*args)
            said = messages.of_sharded(autograd.speaker(called), error)
            if said := said or messages.in_words(op, called, error):
                raise said from error
            raise

    return run
