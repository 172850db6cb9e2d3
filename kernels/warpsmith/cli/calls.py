"""Arguments of a call of given shapes, for questions that need no values: what would serve it?

Whatever is not said is taken from the operator's own samples: the dtype of every tensor, the shapes
of the further ones in their relation to the first, whole numbers and names.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from warpsmith.core import catalogue, dispatch, families, public_calls, references
from warpsmith.core.catalogue import DTYPES, Composite, Op, PartCall
from warpsmith.native.console import UsageError

Shape = tuple[int, ...]


def default_dtype(op: Op) -> str:
    """The dtype of a call that names none."""
    return "f32" if "f32" in op.dtypes else op.dtypes[0]


def parse_shape(text: str) -> Shape:
    """`8192x4096`; `scalar` for no dimension."""
    if text == "scalar":
        return ()
    try:
        shape = tuple(int(part) for part in text.lower().replace(",", "x").split("x"))
    except ValueError:
        raise UsageError(f"cannot read the shape '{text}'; write it as 8192x4096") from None
    if any(size < 0 for size in shape):
        raise UsageError(f"the shape '{text}' has a negative size")
    return shape


def parse_settings(
    op: Op, texts: Sequence[str], function: str = ""
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments that are no tensors: `groups=32`, `activation=silu`. First those of the operator,
    then those that only the public function over it has: `window=63,0`.
    """
    schema = torch._C.parse_schema(f"warpsmith::{op.schema}")
    kinds = {a.name: str(a.type) for a in schema.arguments if "Tensor" not in str(a.type)}
    of_function = {n: k for n, k in _kinds_of(function).items() if n not in op.argument_names}
    settings: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in kinds and name not in of_function:
            known = ", ".join([*kinds, *of_function]) or "none"
            raise UsageError(f"{op.name} has no argument '{name}' to set; it has: {known}")
        kind = kinds.get(name) or of_function[name]
        try:
            read = _READERS.get(kind, str)(value)
        except (KeyError, ValueError):
            raise UsageError(f"cannot read '{value}' as {name} of {op.name}") from None
        (settings if name in kinds else others)[name] = read
    return settings, others


def _kinds_of(function: str) -> dict[str, str]:
    """The arguments of a public function that can be set, and their types."""
    if not (family := families.of_function(function)):
        return {}
    found = getattr(importlib.import_module(f"warpsmith.{family}"), function)
    kinds = {p.name: str(p.annotation) for p in inspect.signature(found).parameters.values()}
    kinds = {name: kind.removesuffix(" | None") for name, kind in kinds.items()}
    return {n: k for n, k in kinds.items() if n != "variant" and k in (*_READERS, "str")}


def through_function(
    name: str,
    op: Op,
    values: Sequence[Any],
    settings: Mapping[str, Any],
    others: Mapping[str, Any],
) -> tuple[Op, tuple[Any, ...]]:
    """What a call of a public function comes to, the operator and all its arguments.

    Args:
        name: the function's.
        op: the operator that it calls.
        values: arguments of that, of which the function gets the tensors and those that were set.
        settings: these.
        others: arguments that the function alone has.

    Raises:
        UsageError: the function takes no such call.
    """
    function = getattr(importlib.import_module(f"warpsmith.{families.of_function(name)}"), name)
    takes = inspect.signature(function).parameters
    pairs = zip(op.argument_names, values, strict=False)
    given = {n: a for n, a in pairs if n in takes and (isinstance(a, Tensor) or n in settings)}
    try:
        found = public_calls.reached(name, (), {**given, **others})
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise UsageError(str(error)) from error
    if not isinstance(found, tuple):
        raise UsageError(f"{name}: {found or 'no call of these arguments'}")
    return found[:2]


_READERS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "number": float,
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "tuple[int, int]": lambda text: tuple(int(part) for part in text.strip("()").split(",")),
}


def changed_settings(name: str, values: Sequence[Any]) -> str:
    """Arguments that are no tensors and not what they are by default."""
    op = catalogue.get(name)
    defaults, values = dispatch.normalise(op, ()), dispatch.normalise(op, tuple(values))
    changed = [
        f", {argument}={value}"
        for argument, value, default in zip(op.argument_names, values, defaults, strict=True)
        if not isinstance(value, Tensor) and value != default
    ]
    return "".join(changed)


def arguments_for(
    op: Op,
    shapes: Sequence[Shape],
    dtype: str,
    device: str,
    settings: Mapping[str, Any] | None = None,
) -> tuple[Any, ...]:
    """Arguments of the given shapes, in the order of the operator's tensors. Tensors beyond them
    are left out where the operator allows it.

    Args:
        settings: arguments by name that are no tensors.
        dtype: that of the first tensor; the others follow as in the operator's samples.
        device: where the tensors are; nothing is written to them.

    Raises:
        UsageError: the operator takes no such call.
    """
    schema = torch._C.parse_schema(f"warpsmith::{op.schema}")
    kinds = [str(argument.type) for argument in schema.arguments]
    places = [i for i, kind in enumerate(kinds) if kind in ("Tensor", "Optional[Tensor]")]
    if len(shapes) > len(places):
        raise UsageError(f"{op.name} takes {len(places)} tensors, got {len(shapes)} shapes")
    given = dict(zip(places, shapes, strict=False))
    fixed = {
        i: argument.default_value
        for i, argument in enumerate(schema.arguments)
        if i not in given and argument.has_default_value()
    }
    for name, value in (settings or {}).items():
        fixed[op.argument_names.index(name)] = value
    error: Exception | None = None
    for sample in itertools.chain(_samples(op, shapes[0], dtype), _guesses(kinds, shapes, dtype)):
        for with_optional, as_sampled in ((False, False), (True, False), (True, True)):
            values = [
                _argument(i, kind, sample, given, fixed, with_optional, as_sampled)
                for i, kind in enumerate(kinds)
            ]
            try:
                op.check(*values)
                op.fake(*values)
            except (RuntimeError, TypeError, ValueError, IndexError) as problem:
                error = error or problem
                continue
            return tuple(_placed(value, device) for value in values)
    dtypes = "" if dtype in op.dtypes else f"; {op.name} has kernels for {', '.join(op.dtypes)}"
    raise UsageError(f"{error}{dtypes}")


def layer_calls(
    composite: Composite, shapes: Sequence[Shape], dtype: str, device: str, sm: int | None
) -> tuple[tuple[Tensor, ...], tuple[PartCall, ...]]:
    """The floating-point arguments of a composite, whose others keep to what they are by default,
    and the calls that it makes for them.

    Raises:
        UsageError: the composite takes no such call.
    """
    names = composite.shaped
    if len(shapes) != len(names):
        wanted = f"{', '.join(names[:-1])} and {names[-1]}"
        raise UsageError(f"{composite.name} wants the shapes of {wanted}, got {len(shapes)}")
    values = tuple(torch.empty(shape, dtype=DTYPES[dtype], device=device) for shape in shapes)
    try:
        return values, composite.calls_on(sm, *values)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


def _samples(op: Op, first: Shape, dtype: str) -> Iterator[tuple[Any, ...]]:
    """Calls without data, those of as many dimensions first. In a sample of which two sizes are the
    same, nobody can tell which of them another tensor shares.
    """
    later = []
    for sample in (*op.bench, *op.samples):
        if sample.dtypes is not None and dtype not in sample.dtypes:
            continue
        try:
            values = dispatch.normalise(op, sample.make(op.inputs(dtype, "meta")))
        except (ArithmeticError, RuntimeError, TypeError, ValueError):
            continue  # looks at data, or is written for other dtypes
        leading = references.first_tensor(values)
        if leading.dtype is not DTYPES[dtype]:
            continue
        sizes = leading.shape
        if 0 in sizes or len(set(sizes)) < len(sizes) or not leading.is_contiguous():
            continue
        if len(sizes) == len(first):
            yield values
        else:
            later.append(values)
    yield from later


def _guesses(
    kinds: Sequence[str], shapes: Sequence[Shape], dtype: str
) -> Iterator[tuple[Any, ...]]:
    """Every tensor of the dtype and shape of the first, or of its last size."""
    for shape in (shapes[0], shapes[0][-1:]):
        like = torch.empty(shape, dtype=DTYPES[dtype], device="meta")
        numbers = {"float": 1e-6, "number": 1e-6, "int": 1, "bool": False}
        yield tuple(like if "Tensor" in kind else numbers.get(kind) for kind in kinds)


def _argument(
    place: int,
    kind: str,
    sample: tuple[Any, ...],
    given: dict[int, Shape],
    fixed: dict[int, Any],
    with_optional: bool,
    as_sampled: bool,
) -> Any:
    """`as_sampled`: sizes that the first tensor does not have are those of the sample."""
    like = sample[place]
    if "Tensor" not in kind:
        return fixed.get(place, like)
    first = references.first_tensor(sample)
    if place in given:
        return _empty_like(like if isinstance(like, Tensor) else first, given[place])
    if like is None or (kind != "Tensor" and not with_optional):
        return None
    shape = related_shape(tuple(like.shape), tuple(first.shape), given[min(given)])
    if as_sampled and len(shape) == like.dim():
        pairs = zip(shape, like.shape, strict=True)
        shape = tuple(new if old in first.shape else old for new, old in pairs)
    return _empty_like(like, shape)


def _empty_like(like: Tensor, shape: Shape) -> Tensor:
    """Of the same dtype, and with its dimensions in the same order in memory."""
    if like.dim() != len(shape) or like.is_contiguous():
        return torch.empty(shape, dtype=like.dtype, device="meta")
    strides = like.stride()
    order = sorted(range(len(shape)), key=lambda dim: -strides[dim])
    dense = torch.empty([shape[dim] for dim in order], dtype=like.dtype, device="meta")
    return dense.permute([order.index(dim) for dim in range(len(shape))])


def related_shape(shape: Shape, first: Shape, given: Shape) -> Shape:
    """What `shape` becomes where `given` takes the place of `first`.

    >>> related_shape((16, 33), (7, 16), (128, 4096))
    (4096, 4096)
    >>> related_shape((7,), (7, 16), (8, 128, 4096))
    (8, 128)
    """
    rank = len(shape)
    if shape == first:
        return given
    if rank < len(first) and shape == first[len(first) - rank :]:
        return given[len(given) - rank :] if rank else ()
    if rank < len(first) and shape == first[:rank]:
        return given[: max(0, len(given) - (len(first) - rank))]
    return tuple(_related_size(size, first, given) for size in shape)


def _related_size(size: int, first: Shape, given: Shape) -> int:
    if size == 1 or not given:
        return size
    from_end = len(first) - first.index(size) if size in first else 1
    return given[-min(from_end, len(given))]


def _placed(value: Any, device: str) -> Any:
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
