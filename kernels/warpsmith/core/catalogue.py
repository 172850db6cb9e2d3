"""What an operator is: the vocabulary in which every spec is written, and the list of all of them.

A spec (`kernels/warpsmith/<family>/<op>.py`) builds one or more `Op`s. Everything else in the
package (dispatch, tests, benchmarks, documentation tables) is driven by what it finds here.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from warpsmith.core.arguments_by_name import by_name, taken
from warpsmith.core.families import FAMILIES
from warpsmith.core.inputs import Inputs
from warpsmith.core.inputs import is_fp8 as is_fp8
from warpsmith.core.schemas import defaults, gradient_names, parse_name, parse_schema

#: Short dtype names, as they stand in variant names, and what they mean in PyTorch.
DTYPES: dict[str, torch.dtype] = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "i8": torch.int8,
    "i32": torch.int32,
}
DTYPE_NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}

FLOATS = ("f32", "f16", "bf16")
FP8 = ("e4m3", "e5m2")
#: Values in one 128-bit pack.
PACK: dict[str, int] = {"f32": 4, "f16": 8, "bf16": 8, "e4m3": 16, "e5m2": 16, "i8": 16, "i32": 4}


@dataclass(frozen=True)
class Sample:
    """Arguments of one call. `make(Inputs)` returns them by position, or by name in a dict; an
    operator's own samples return them by position either way.
    """

    label: str
    make: Callable[[Inputs], Any]
    #: Small enough for compute-sanitizer and for the Triton interpreter.
    small: bool = True
    #: Needs several GB, or minutes on a CPU: run on a GPU only.
    huge: bool = False
    #: Restricts the dtypes; None is every dtype of the operator.
    dtypes: tuple[str, ...] | None = None
    #: A benchmark at which every variant is timed, instead of the largest.
    ladder: bool = False

    def __str__(self) -> str:
        return self.label


@dataclass(frozen=True)
class Bad:
    """A call that must raise. `make(Inputs)` returns the arguments as that of a sample does;
    `message` is a regular expression.
    """

    label: str
    make: Callable[[Inputs], Any]
    message: str
    error: type[Exception] | tuple[type[Exception], ...] = (RuntimeError, TypeError, ValueError)
    #: Only meaningful where a CUDA device exists (mixed devices, say).
    cuda_only: bool = False
    #: Runs through this variant instead of the operator's own choice.
    variant: str | None = None


@dataclass(frozen=True)
class Property:
    """A mathematical fact. `check(function, Inputs)` calls `function` like the operator and
    asserts.
    """

    label: str
    check: Callable[[Callable[..., Any], Inputs], None]
    dtypes: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Cost:
    """The fewest bytes a call must move, and the operations it must do. Both take arguments of
    the call by name.
    """

    bytes: Callable[..., int]
    flops: Callable[..., int] = lambda *args: 0
    #: Whose matrix rate limits the operations ("tf32"), where it is not that of the call's dtype.
    matrix: str = ""


Condition = Callable[..., "str | None"]
#: What a derivative returns: gradients by the names of arguments.
Gradients = Mapping[str, "Tensor | None"]
#: The names of the arguments whose gradients are asked for.
Needs = frozenset[str]


def always(*args: Any) -> str | None:
    """The condition that accepts every call."""
    return None


def everywhere(*args: Any) -> bool:
    """The domain of a kernel that is right for every input that it takes."""
    return True


@dataclass(frozen=True)
class Rung:
    """One step of a ladder: one `.cu` file, one idea.

    `when` returns None where the kernel can take the call, otherwise the reason why it cannot
    ("needs x aligned to 16 bytes"); the kernel's own check in C++ must say the same, and tests hold
    the two together. Where that depends on the GPU, `when` asks for it (`arguments_by_name`).
    `suits` returns None where the kernel is a good choice: `auto` takes the last
    rung whose `when` and `suits` both accept. Both take arguments of the call by name.
    """

    name: str
    story: str
    #: Dtypes of the operator's first tensor, or names of its signatures.
    dtypes: tuple[str, ...] = FLOATS
    #: Values per access, for the variant's name: a number, or one per dtype.
    width: int | Mapping[str, int] = 1
    pack: bool = False
    technique: str = ""
    #: Accumulators that this rung offers, for all its dtypes or for each of them. "same" is the
    #: dtype of the input itself.
    accumulators: tuple[str, ...] | Mapping[str, tuple[str, ...]] = ("f32",)
    min_sm: int = 80
    when: Condition = always
    suits: Condition = always
    #: What a rung that chooses between kernels says of a call that it serves: which, and why.
    plan: Condition = always
    #: Whether the kernel's result means anything for the values of a call. Outside, where its
    #: documentation says that it overflows, only shape, dtype and strides are judged.
    valid: Callable[..., bool] = everywhere
    #: Rows of the seed list that a variant of this rung answers, beyond those that match by name:
    #: the first of the dtype, or with ":f32" behind the name the first that accumulates in f32.
    seeds: tuple[str, ...] = ()
    #: Its sums are off by what the operator's `sum_error` says.
    coarse_sums: bool = False
    #: No GPU has verified it yet: `auto` passes it over, and it runs only by name. A test asks for
    #: the mark where no verification is on record; it goes with the first.
    unproven: bool = False

    def width_of(self, signature: Signature) -> int:
        if isinstance(self.width, int):
            return self.width
        return self.width.get(signature.name, signature.pack)

    def accumulators_of(self, dtype: str) -> tuple[str, ...]:
        offered = self.accumulators
        return offered if isinstance(offered, tuple) else offered[dtype]


@dataclass(frozen=True)
class Signature:
    """The dtypes that a kernel is written for, by the name that its variants bear.

    Most kernels are written for the dtype of the first tensor, and take the others as the
    operator's check does: that is what "bf16" stands for. Where a kernel is one of a combination,
    the operator names it, in `Op.signatures`: bf16 queries beside a cache in e4m3, say, are

        Signature("bf16_e4m3", {"q": "bf16", "cache": "e4m3"}, pack=8)
    """

    name: str
    #: The dtype of every argument that it speaks of, the first tensor first.
    dtypes: Mapping[str, str]
    #: What a 128-bit pack counts, for the variant's name.
    pack: int

    @property
    def first(self) -> str:
        """The dtype of the first tensor."""
        return next(iter(self.dtypes.values()))

    def mismatch(self, names: Iterable[str], args: Iterable[Any]) -> str | None:
        """What of a call is of another dtype; None where nothing is."""
        for name, a in zip(names, args, strict=False):
            if name not in self.dtypes or not isinstance(a, Tensor):
                continue
            dtype = DTYPE_NAMES.get(a.dtype)
            if dtype != self.dtypes[name]:
                of = "" if len(self.dtypes) == 1 else f"{name} in "
                return f"takes {of}{self.dtypes[name]}, got {dtype or a.dtype}"
        return None


@dataclass(frozen=True, repr=False)
class Variant:
    """A rung at a dtype, or a signature, and an accumulator: a torch op of its own."""

    op: Op
    rung: Rung
    dtype: str
    accumulator: str

    @cached_property
    def name(self) -> str:
        """Without the operator: `f16x8_pack_f32`."""
        parts = [self.dtype]
        width = self.rung.width_of(self.signature)
        if width > 1:
            parts[0] += f"x{width}"
        if self.rung.pack:
            parts.append("pack")
        if self.rung.technique:
            parts.append(self.rung.technique)
        if self.op.accumulates and self.dtype != "f32":
            parts.append(self.accumulator)
        return "_".join(parts)

    @cached_property
    def signature(self) -> Signature:
        return self.op.signature(self.dtype)

    @property
    def low_precision(self) -> bool:
        """Accumulates in 16 bits, which is only ever done by name."""
        return self.accumulator in ("f16", "bf16")

    @cached_property
    def op_name(self) -> str:
        """The torch op: `rms_norm_f16x8_pack_f32`."""
        return f"{self.op.name}_{self.name}"

    def __repr__(self) -> str:
        return self.op_name


@dataclass(frozen=True, eq=False, repr=False)
class Op:
    """An operator: the single source of truth about it.

    Its functions take arguments of a call by their names in the schema, only those that they need
    (`arguments_by_name`); once it is made, they take all of them by position.
    """

    #: As PyTorch writes it: "rms_norm(Tensor x, Tensor? weight, float eps) -> Tensor". Arguments
    #: may be written to ("Tensor(a!) cache", "Tensor(b!)? out"), or outputs be left out
    #: ("-> (Tensor y, Tensor? lse)"): None stands for such an output in what is returned.
    schema: str
    family: str
    #: Plain PyTorch at any floating dtype, float64 included; must not write its inputs. Where the
    #: operator writes to arguments, what these hold afterwards follows the outputs.
    reference: Callable[..., Any]
    ladder: tuple[Rung, ...]
    #: "<module in the family's package>:<function>", imported on first use.
    triton: str
    #: Shape and dtype of the outputs, allocated with torch.empty and friends.
    fake: Callable[..., Any]
    #: Raises on a call that no implementation may take. Runs before the reference, the fake and
    #: Triton.
    check: Callable[..., None] = always  # type: ignore[assignment]
    #: The derivative: returns gradients by the names of the arguments, those that there are. It
    #: takes, by name, arguments; outputs, as the schema names them; `grad_<output>`, or `grad`
    #: where the schema has one output and no name for it; what `saves` adds; and `needs`, the names
    #: of the arguments whose gradients are asked for. What it does not name is not kept for it.
    #: Where there are several outputs, the gradient of one that nothing used is None. An operator
    #: without a derivative takes part in autograd too, and raises there.
    backward: Callable[..., Mapping[str, Tensor | None]] | None = None
    #: What `backward` gets beyond that, or in place of an argument of this name: each from the
    #: arguments and outputs that its function names.
    saves: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    #: The derivative computes from an output, whose rounding its gradients carry, and takes the
    #: first argument for something else; without the first argument that goes without saying.
    from_output: bool = False
    #: The derivative computes again what the forward pass had, and sets it against an output: what
    #: the two round apart does not cancel.
    recomputes: bool = False
    #: The reference takes fp8 as it is, so that NaN keep their payload; otherwise through float32.
    reads_fp8: bool = False
    #: Adds products element by element, which may cancel: what rounding each of them costs is then
    #: no part of the result's own size.
    cancels: bool = False
    #: Outputs that autograd takes for constants.
    constants: tuple[str, ...] = ()
    #: Combinations of dtypes that rungs are written for, beyond plain dtypes of the first tensor.
    signatures: tuple[Signature, ...] = ()
    #: Folder under csrc/<family>/ that holds the rungs, where it is not the operator's name; it may
    #: lie in another one's: "rms_norm/backward".
    source: str = ""
    #: Which of the groups of functions that the folder is cut into has this one (its `parts/`).
    part: str = ""
    #: Rungs may offer several accumulators, so 16-bit variants carry the accumulator in their name.
    accumulates: bool = False
    #: What a 16-bit accumulator sums along the last dimension, as a function of the arguments, so
    #: that such variants are judged where they cannot overflow; None stands for the squares of each
    #: argument.
    terms: Callable[..., Tensor] | None = None
    #: At most so many terms are added in 16 bits, before wider sums take over; 0: all of them.
    low_precision_terms: int = 0
    #: A sum in 16 bits is spread over at least so many threads.
    low_precision_threads: int = 32
    #: What sums in the tensor cores of sm_90 may be off by where they keep fewer bits than f32,
    #: relative to the largest sum of the terms' magnitudes: of the twin and of rungs that say
    #: `coarse_sums`.
    sum_error: Callable[..., float] | None = None
    #: Compared element by element (True), or relative to the largest output (False).
    elementwise: bool = False
    #: PyTorch's other ways to the same results, functions of the arguments: where a result in f32
    #: that is not elementwise would be wrong, their errors count as PyTorch's too.
    alternatives: tuple[Callable[..., Any], ...] = ()
    #: What the last bit of an f32 input that the operator takes note of is worth, relative to the
    #: input: more than that of f32 where it rounds its inputs.
    input_eps: float = 2.0**-23
    #: Other names under which the seed list and users know it.
    aliases: tuple[str, ...] = ()
    samples: tuple[Sample, ...] = ()
    errors: tuple[Bad, ...] = ()
    properties: tuple[Property, ...] = ()
    cost: Cost | None = None
    #: Benchmark cases; the label carries the shape, the dtype is prefixed.
    bench: tuple[Sample, ...] = ()
    #: Dtypes benchmarked by default.
    bench_dtypes: tuple[str, ...] = FLOATS
    #: Peers beyond "torch" (the reference, eager) and "compile": name -> factory. The factory
    #: imports the peer (what raises is left out) and returns a function with the operator's
    #: arguments.
    peers: Mapping[str, Callable[[], Callable[..., Any]]] = field(default_factory=dict)
    #: Rows of the seed list that are no kernels of this library but peers: row -> peer.
    peer_seeds: Mapping[str, str] = field(default_factory=dict)
    #: A peer whose error is at most this many times PyTorch's is compared with, if at a remark.
    peer_error_ratio: float = 8.0
    #: Rounds its arguments, so that finite differences say nothing about its gradient.
    steps: bool = False
    #: Its binding asks whether another implementation is faster on the record (core/elsewhere.py).
    yields: bool = False
    #: Why PyTorch's own, which is what "torch" runs, may not stand in for the operator at a call
    #: that it serves faster: it does not promise as much. None where it may.
    torch_lacks: Callable[..., str | None] | None = None
    #: What "torch" and "compile" run where the reference is not what a PyTorch user would write.
    eager: Callable[..., Any] | None = None
    #: Why the Triton twin cannot take a call, None where it can: the reference serves such a call.
    twin_lacks: Callable[..., str | None] | None = None
    #: Why a call on a GPU that neither a kernel nor the twin takes is too large for the reference,
    #: None where it is not: such a call is refused.
    too_large: Callable[..., str | None] | None = None

    def __post_init__(self) -> None:
        def bound(function: Callable[..., Any]) -> Callable[..., Any]:
            return by_name(function, self.argument_names, self.name)

        def factory(peer: Callable[[], Callable[..., Any]]) -> Callable[[], Callable[..., Any]]:
            return lambda: bound(peer())

        changed: dict[str, Any] = {
            name: bound(function)
            for name in (
                "reference",
                "fake",
                "check",
                "terms",
                "eager",
                "twin_lacks",
                "too_large",
                "torch_lacks",
                "sum_error",
            )
            if (function := getattr(self, name)) is not None
        }
        changed["ladder"] = tuple(
            replace(
                r,
                when=bound(r.when),
                suits=bound(r.suits),
                plan=bound(r.plan),
                valid=bound(r.valid),
            )
            for r in self.ladder
        )
        changed["alternatives"] = tuple(bound(function) for function in self.alternatives)
        changed["peers"] = {name: factory(peer) for name, peer in self.peers.items()}
        if self.cost is not None:
            bytes_, flops = bound(self.cost.bytes), bound(self.cost.flops)
            changed["cost"] = replace(self.cost, bytes=bytes_, flops=flops)
        for name in ("samples", "bench", "errors"):
            calls = getattr(self, name)
            changed[name] = tuple(replace(c, make=self._positional(c.make)) for c in calls)
        for name, value in changed.items():
            object.__setattr__(self, name, value)
        if self.written:
            self._check_writes()
        elif self.backward is not None:
            self._check_derivative()

    def _positional(self, make: Callable[[Inputs], Any]) -> Callable[[Inputs], tuple[Any, ...]]:
        """`make`, with a dict's arguments in their places, up to the last one that is given."""

        @functools.wraps(make)
        def positional(inputs: Inputs) -> tuple[Any, ...]:
            made = make(inputs)
            if not isinstance(made, Mapping):
                return made
            if unknown := set(made) - set(self.argument_names):
                raise TypeError(f"{self.name} takes no {', '.join(sorted(unknown))}")
            last = max((self.argument_names.index(name) for name in made), default=-1)
            places = zip(self.argument_names[: last + 1], self.defaults, strict=False)
            return tuple(made.get(name, default) for name, default in places)

        return positional

    def _check_writes(self) -> None:
        """What PyTorch asks of an operator that writes, so that it can be compiled."""
        if self.backward is not None:
            raise ValueError(f"{self.name}: PyTorch differentiates no operator that writes")
        if any(str(output.type) != "Tensor" for output in self.parsed.returns):
            raise ValueError(
                f"{self.name}: PyTorch compiles an operator that writes only where all outputs are "
                "there; what may be left out can be an argument that is written to, 'Tensor(b!)?'"
            )

    def _check_derivative(self) -> None:
        if len(self.outputs) > 1 and not all(self.outputs):
            raise ValueError(f"{self.name}: its derivative needs names for the schema's outputs")
        given = (*self.argument_names, *filter(None, self.outputs))
        saves = {name: by_name(f, given, self.name) for name, f in self.saves.items()}
        object.__setattr__(self, "saves", saves)
        _ = self.derivative_takes

    @cached_property
    def gradients(self) -> tuple[str, ...]:
        """What the derivative calls the gradient of each output."""
        return gradient_names(self.outputs)

    @cached_property
    def derivative_takes(self) -> tuple[str, ...]:
        """The names of what `backward` takes."""
        assert self.backward is not None
        known = (*self.argument_names, *filter(None, self.outputs), *self.saves, *self.gradients)
        known = tuple(dict.fromkeys((*known, "needs")))
        takes = taken(self.backward, known, self.name, rest=self.argument_names)
        if takes is None:
            raise TypeError(f"{self.name}: the derivative must name its arguments")
        return takes

    @cached_property
    def starts_from_output(self) -> bool:
        """Whether the gradients carry the rounding of an output."""
        takes = self.derivative_takes
        used = any(name in takes for name in (*self.outputs, *self.saves))
        return self.from_output or (used and self.argument_names[0] not in takes)

    @cached_property
    def name(self) -> str:
        return parse_name(self.schema)

    @cached_property
    def parsed(self) -> Any:
        """The schema as PyTorch reads it."""
        return parse_schema(self.schema)

    @cached_property
    def argument_names(self) -> tuple[str, ...]:
        return tuple(argument.name for argument in self.parsed.arguments)

    @cached_property
    def defaults(self) -> tuple[Any, ...]:
        """What each argument is where it is not given; None where it has to be."""
        return defaults(self.parsed)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The name of each output, empty where the schema has none."""
        return tuple(output.name for output in self.parsed.returns)

    @cached_property
    def written(self) -> tuple[int, ...]:
        """Places of the arguments that a call writes to."""
        aliases = (argument.alias_info for argument in self.parsed.arguments)
        return tuple(i for i, a in enumerate(aliases) if a is not None and a.is_write)

    def results(self, out: Any) -> tuple[Any, ...]:
        """What a call returned, as one value an output."""
        if len(self.outputs) == 1:
            return (out,)
        return out if self.outputs else ()

    def signature(self, name: str) -> Signature:
        """The signature of that name, or what a dtype stands for."""
        for signature in self.signatures:
            if signature.name == name:
                return signature
        tensors = (a.name for a in self.parsed.arguments if "Tensor" in str(a.type))
        return Signature(name, {next(tensors): name}, PACK[name])

    def inputs(self, dtype: str, device: str | torch.device = "cpu", seed: int = 0) -> Inputs:
        """What samples are made of for a dtype or signature of the operator."""
        own = {name: DTYPES[of] for name, of in self.signature(dtype).dtypes.items()}
        return Inputs(next(iter(own.values())), device, seed, own if len(own) > 1 else {})

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """Every dtype that some rung takes, in catalogue order, then every signature."""
        found = {dtype for rung in self.ladder for dtype in rung.dtypes}
        named = dict.fromkeys((*DTYPES, *(signature.name for signature in self.signatures)))
        return tuple(name for name in named if name in found)

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        return tuple(
            Variant(self, rung, dtype, first if accumulator == "same" else accumulator)
            for rung in self.ladder
            for dtype in rung.dtypes
            for first in (self.signature(dtype).first,)
            for accumulator in rung.accumulators_of(dtype)
            if not (accumulator == "same" and first == "f32")
        )

    @cached_property
    def source_dir(self) -> str:
        return self.source or self.name

    @cached_property
    def library(self) -> str:
        """The compiled library that holds the rungs, by its path below csrc: "norm/rms_norm"."""
        return "/".join(filter(None, (self.family, self.source_dir, self.part)))

    def variant(self, name: str, called: str | None = None) -> Variant:
        called = called or self.name  # what messages name
        if not isinstance(name, str):
            given = type(name).__name__
            raise TypeError(f"{called}: expected variant to be a string, got {given}")
        for variant in self.variants:
            prefixed = (f"{prefix}_{variant.name}" for prefix in (self.name, *self.aliases))
            if name in (variant.name, *prefixed):
                return variant
        listed = f"`warpsmith list {self.name}` shows them all"
        hint = did_you_mean(name, (v.name for v in self.variants), listed)
        if of_rung := [v.name for v in self.variants if v.rung.name == name]:
            hint = f"it is a rung, with the variants {', '.join(of_rung)}"
        raise ValueError(f"{called}: unknown variant '{name}'; {hint}")

    def samples_for(self, dtype: str) -> tuple[Sample, ...]:
        return tuple(s for s in self.samples if s.dtypes is None or dtype in s.dtypes)

    def bench_for(self, dtype: str) -> tuple[Sample, ...]:
        return tuple(s for s in self.bench if s.dtypes is None or dtype in s.dtypes)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class PartCall:
    """A call of an operator that a composite makes, on tensors without content; or of one of
    PyTorch's, by its whole name, without arguments.
    """

    op: str
    args: tuple[Any, ...]
    purpose: str


@dataclass(frozen=True, eq=False)
class Composite:
    """A public function that is written on top of operators, and has no ladder of its own."""

    #: The public function, as PyTorch would write it.
    schema: str
    family: str
    #: What it is made of, in order: operators of the catalogue by their names, and PyTorch's
    #: ("torch.mm"), each with what it is there for.
    parts: tuple[tuple[str, str], ...]
    #: `calls(*args)`: the operators of the catalogue that a call comes to, from its arguments.
    calls: Callable[..., tuple[PartCall, ...]]
    #: The module that it is written in.
    module: str
    #: Its arguments of which a command asks the shapes.
    shaped: tuple[str, ...] = ("x", "weight")
    #: What it calls depends on the GPU: `calls` takes `sm`, as `which` does.
    by_gpu: bool = False

    @cached_property
    def name(self) -> str:
        return parse_name(self.schema)

    def calls_on(self, sm: int | None, *args: Any, **named: Any) -> tuple[PartCall, ...]:
        """The calls on a GPU of that compute capability; None: on the tensors' own."""
        return self.calls(*args, **named, **({"sm": sm} if self.by_gpu else {}))

    @cached_property
    def operators(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.parts if "." not in name)


_ops: dict[str, Op] = {}
_composites: dict[str, Composite] = {}


def add(op: Op) -> Op:
    """Enters an operator into the catalogue. Specs call it as they are imported."""
    if op.name in _ops:
        raise ValueError(f"operator '{op.name}' is in the catalogue already")
    _ops[op.name] = op
    return op


def load() -> dict[str, Op]:
    """Every operator by name, family by family; imports the families that nobody asked for yet."""
    if missing := [f for f in FAMILIES if f"warpsmith.{f}" not in sys.modules]:
        for family in missing:
            importlib.import_module(f"warpsmith.{family}")
        listed = sorted(_ops.values(), key=lambda op: FAMILIES.index(op.family))
        _ops.clear()
        _ops.update({op.name: op for op in listed})
    return _ops


def entered(name: str) -> Op:
    """An operator that is in the catalogue already, for the family that has entered it: `get`
    imports all others.
    """
    return _ops[name]


def known() -> tuple[Op, ...]:
    """The operators of the families that are imported so far."""
    return tuple(_ops.values())


def of_family(family: str) -> tuple[Op, ...]:
    """The operators of one family, and no other family imported."""
    importlib.import_module(f"warpsmith.{family}")
    return tuple(op for op in _ops.values() if op.family == family)


def add_composite(composite: Composite) -> Composite:
    """Enters a composite into the catalogue, beside the operators."""
    _composites[composite.name] = composite
    return composite


def composites() -> dict[str, Composite]:
    """Every composite by name."""
    load()
    return _composites


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """What to say of a name that is not known: up to three that are most like it."""
    near = difflib.get_close_matches(name, list(dict.fromkeys(known)), n=3, cutoff=0.5)
    return f"did you mean {', '.join(near)}?" if near else otherwise


def get(name: str) -> Op:
    """The operator of that name or alias.

    Raises:
        ValueError: if there is none.
    """
    ops = load()
    if name in ops:
        return ops[name]
    for op in ops.values():
        if name in op.aliases:
            return op
    hint = did_you_mean(name, ops, "`warpsmith list` shows them all")
    raise ValueError(f"unknown operator '{name}'; {hint}")


def variants() -> Iterator[Variant]:
    for op in load().values():
        yield from op.variants


def seed_rows() -> dict[str, str]:
    """Seed kernel name -> the variant (torch op name) that answers it."""
    answers: dict[str, str] = {}
    for op in load().values():
        for variant in op.variants:
            for prefix in (op.name, *op.aliases):
                answers.setdefault(f"{prefix}_{variant.name}", variant.op_name)
            for seed in variant.rung.seeds:
                row, _, accumulator = seed.partition(":")
                if accumulator in ("", variant.accumulator):
                    answers.setdefault(row.format(dtype=variant.dtype), variant.op_name)
    return answers


def peer_rows() -> dict[str, tuple[Op, str]]:
    """Seed kernel name -> the operator, and its peer, that it is."""
    return {seed: (op, peer) for op in load().values() for seed, peer in op.peer_seeds.items()}
