"""Digests of the Python that an operator is made of: function by function, wherever they stand.

A digest is over syntax trees, without comments, layout and docstrings. From a function it follows
every name that the function uses to what the name stands for in the package, be it a function, a
class or a constant, and goes on from there; what a function has closed over counts as well. So an
edit of a shared module changes the operators that use what was edited, and no others. Where a
module is used as a value (`getattr(module, name)`), all of it counts. `core` and the packages below
the command line are known by name only: they carry calls and judge results, which is no part of an
operator. Twins are followed by what their source says, and not imported.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from warpsmith.core import dispatch
from warpsmith.core.catalogue import Inputs, Op, Sample

PACKAGE = "warpsmith"
#: Packages that are known by name only.
_APART = {"core", "native", "proof", "measure", "records", "cli"}
#: Of an operator, what says nothing about its results or has a digest of its own.
_NOT_THE_SPEC = {"samples", "errors", "properties", "bench", "bench_dtypes", "peers", "triton"}
_NOT_THE_SPEC |= {"story", "seeds", "peer_seeds", "aliases", "peer_error_ratio"}
_NOT_THE_SPEC |= {"unproven", "source", "cancels", "plan", "sum_error", "coarse_sums"}
_NOT_THE_SPEC |= {"yields", "torch_lacks"}
#: Fields that came when there were digests: at their defaults they say nothing, so that all digests
#: stay as they were.
_LATER = {"recomputes", "twin_lacks", "too_large", "reads_fp8"}
#: Likewise the last arguments of operators.
_LATER_ARGUMENTS = {"blocks"}


def _is_followed(module: str) -> bool:
    first, _, rest = module.partition(".")
    return first == PACKAGE and rest.partition(".")[0] not in _APART


# --- syntax ---------------------------------------------------------------------------------------


def _without_docstring(node: ast.AST) -> list[ast.stmt]:
    body: list[ast.stmt] = getattr(node, "body", [])
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
    return body


def _dump(node: Any) -> str:
    """A syntax tree as text, the same from every version of Python."""
    if isinstance(node, list):
        return f"[{','.join(map(_dump, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return ""  # what it brings is followed by its name
    parts = []
    for name, value in ast.iter_fields(node):
        if name in ("ctx", "kind", "type_comment", "type_params"):
            continue
        if name == "body" and isinstance(value, list):
            value = _without_docstring(node)
        if value is not None and value != []:
            parts.append(f"{name}={_dump(value)}")
    return f"{type(node).__name__}({','.join(parts)})"


@functools.cache
def _path(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # a name in a module, not a module
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


class _Piece(NamedTuple):
    """Some source: as text, the names of its module that it uses, and those of other modules."""

    text: str
    names: tuple[str, ...]
    origins: tuple[tuple[str, str], ...]


class _Module:
    """What the names of a module stand for, by its source."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.tree = ast.parse(path.read_bytes())
        self.is_package = path.name == "__init__.py"
        self.statements: dict[str, list[ast.stmt]] = {}
        #: Name -> module and the name there, "" where it is a module.
        self.imports: dict[str, tuple[str, str]] = {}
        #: First line and name -> functions; of lambdas in one line all.
        self.functions: dict[tuple[int, str], list[ast.AST]] = {}
        self._pieces: dict[ast.AST, _Piece] = {}
        self._enter(self.tree.body)
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                self.functions.setdefault((first, node.name), []).append(node)
            elif isinstance(node, ast.Lambda):
                self.functions.setdefault((node.lineno, "<lambda>"), []).append(node)

    def piece(self, node: ast.AST) -> _Piece:
        """A piece of the module's source."""
        if node not in self._pieces:
            self._pieces[node] = self._piece(node)
        return self._pieces[node]

    def _piece(self, node: ast.AST) -> _Piece:
        inside = list(ast.walk(node))
        local: dict[str, tuple[str, str]] = {}
        for inner in inside:
            local |= imported(inner, self.name, self.is_package)
        names, origins, chained = set[str](), set[tuple[str, str]](), set[int]()
        for inner in inside:  # outer attributes come before those that they are of
            if isinstance(inner, ast.Attribute) and (found := self._of_module(inner, local)):
                base, origin = found
                if id(base) not in chained:
                    chained.add(id(base))
                    origins.add(origin)
        for inner in inside:
            if isinstance(inner, ast.Name) and id(inner) not in chained:
                if inner.id in local:
                    origins.add(local[inner.id])
                else:
                    names.add(inner.id)
        return _Piece(_dump(node), tuple(sorted(names)), tuple(sorted(origins)))

    def _of_module(
        self, node: ast.Attribute, local: Mapping[str, tuple[str, str]]
    ) -> tuple[ast.Name, tuple[str, str]] | None:
        """Of `module.name` the name of the module as it stands there, and what it stands for."""
        names = [node.attr]
        base: ast.expr = node.value
        while isinstance(base, ast.Attribute):
            names.append(base.attr)
            base = base.value
        if not isinstance(base, ast.Name) or base.id in self.statements:
            return None
        module, name = local.get(base.id) or self.imports.get(base.id) or ("", "")
        if not module or name:
            return None
        while names and _is_followed(module) and _path(f"{module}.{names[-1]}") is not None:
            module = f"{module}.{names.pop()}"
        return base, (module, names[-1] if names else "")

    def _enter(self, statements: Iterable[ast.stmt]) -> None:
        for node in statements:
            self.imports |= imported(node, self.name, self.is_package)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                self.statements.setdefault(node.name, []).append(node)
            elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)):
                targets = getattr(node, "targets", None) or [getattr(node, "target", node)]
                for target in targets:
                    for name in _written(target):
                        self.statements.setdefault(name, []).append(node)
            for inner in ("body", "orelse", "finalbody", "handlers"):
                if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    self._enter(getattr(node, inner, ()))


def _written(target: ast.AST) -> Iterator[str]:
    """Names that an assignment, or a call of a method (`table.update(...)`), may change."""
    if isinstance(target, ast.Expr):
        call = target.value
        target = call.func if isinstance(call, ast.Call) else call
        if not isinstance(target, ast.Attribute):
            return
    while isinstance(target, (ast.Attribute, ast.Subscript, ast.Starred)):
        target = target.value
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            yield from _written(element)


def imported(node: ast.AST, module: str, is_package: bool) -> dict[str, tuple[str, str]]:
    """The names that an import gives, with where they come from."""
    found = {}
    if isinstance(node, ast.Import):
        for alias in node.names:
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            found[alias.asname or name] = (name, "")
    elif isinstance(node, ast.ImportFrom):
        origin = node.module or ""
        if node.level:
            parts = module.split(".")
            base = parts[: len(parts) - node.level + is_package]
            origin = ".".join([*base, *([origin] if origin else [])])
        for alias in node.names:
            within = f"{origin}.{alias.name}"
            is_module = _is_followed(within) and _path(within) is not None
            found[alias.asname or alias.name] = (within, "") if is_module else (origin, alias.name)
    return found


@functools.cache
def _module(name: str) -> _Module | None:
    path = _path(name)
    return _Module(name, path) if path is not None and path.suffix == ".py" else None


# --- following names ------------------------------------------------------------------------------


class Reach:
    """What can be reached from some functions; `digest` is over all of it.

    Args:
        through_operators: whether what an operator is made of belongs to what names it. Whoever
            times functions that call operators knows these by their kernels; how they are judged
            (references, checks of samples) is no part of that.
    """

    def __init__(self, through_operators: bool = True) -> None:
        self._seen: set[Any] = set()
        self._found: list[str] = []
        self._through_operators = through_operators

    def digest(self) -> str:
        return hashlib.sha256("\n".join(sorted(set(self._found))).encode()).hexdigest()[:12]

    def name(self, module: str, name: str) -> None:
        """What `name` stands for in a module; all of the module without a name."""
        if (module, name) in self._seen:
            return
        self._seen.add((module, name))
        source = _module(module) if _is_followed(module) else None
        if source is None:
            if module.partition(".")[0] != PACKAGE:
                self._found.append(f"{module}:{name}")
        elif not name:
            for known in source.statements:
                self.name(module, known)
        elif name in source.statements:
            for node in source.statements[name]:
                if self._through_operators or not _defines_operator(node):
                    self._tree(node, source)
                else:
                    self._found.append(f"operator {name}")
        elif name in source.imports:
            self.name(*source.imports[name])

    def _tree(self, node: ast.AST, source: _Module, known: Mapping[str, Any] | None = None) -> None:
        """A piece of source, and what its names stand for: first in `known`."""
        text, names, origins = source.piece(node)
        self._found.append(text)
        for name in names:
            if known is not None and name in known:
                self.value(known[name])
            elif name in source.statements or name in source.imports:
                self.name(source.name, name)
        for origin in origins:
            self.name(*origin)

    def value(self, value: Any) -> None:
        """A function, or what a field of an operator holds."""
        if isinstance(value, functools.partial):
            for part in (value.func, *value.args, *value.keywords.items()):
                self.value(part)
        elif isinstance(value, (tuple, list, set, frozenset)):
            self._found.append(f"{len(value)} values")
            for part in sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value:
                self.value(part)
        elif isinstance(value, Mapping):
            for key, part in value.items():
                self._found.append(f"key {key!r}")
                self.value(part)
        elif isinstance(value, Op):
            self._found.append(f"operator {value.name}")
        elif is_dataclass(value) and not isinstance(value, type):
            self.record(value)
        elif isinstance(value, types.MethodType):
            self.value(value.__func__)
            self.value(value.__self__)
        elif isinstance(value, types.ModuleType):
            self.name(value.__name__, "")
        elif inspect.isfunction(unwrapped := inspect.unwrap(value) if callable(value) else value):
            self._function(unwrapped)
        elif isinstance(value, type):
            self.name(value.__module__, value.__qualname__.partition(".")[0])
        elif _is_followed(type(value).__module__):
            self.value(type(value))
            self.value(vars(value))
        elif callable(value):
            self._found.append(str(getattr(value, "__name__", type(value).__name__)))
        else:
            self._found.append(repr(value) if not isinstance(value, Tensor) else "tensor")

    def record(self, value: Any, leave_out: Iterable[str] = ()) -> None:
        """The fields of a dataclass."""
        self._found.append(type(value).__name__)
        for field in fields(value):
            content = getattr(value, field.name)
            if field.name not in leave_out and not (
                field.name in _LATER and content == field.default
            ):
                inner = Reach()
                inner._seen = self._seen
                inner._field(content, leave_out)
                self._found.append(f"{field.name}: {'; '.join(inner._found)}")

    def _field(self, value: Any, leave_out: Iterable[str]) -> None:
        nested = isinstance(value, tuple) and value and is_dataclass(value[0])
        for part in value if nested else ():
            self.record(part, leave_out)
        if not nested:
            self.value(value)

    def _function(self, function: types.FunctionType) -> None:
        module, code = function.__module__ or "", function.__code__
        cells = [cell for cell in function.__closure__ or () if _is_filled(cell)]
        key = (module, code.co_firstlineno, code.co_name, *(id(c.cell_contents) for c in cells))
        if key in self._seen:
            return
        self._seen.add(key)
        source = _module(module) if _is_followed(module) else None
        if source is None:  # an adapter, which may hold a function of the spec
            self._found.append(function.__qualname__)
            if module.partition(".")[0] == PACKAGE:
                for cell in cells:
                    self.value(cell.cell_contents)
                self.value(vars(function))
            return
        named = zip(code.co_freevars, function.__closure__ or (), strict=True)
        known = {name: cell.cell_contents for name, cell in named if _is_filled(cell)}
        for node in source.functions.get((code.co_firstlineno, code.co_name), ()):
            self._tree(node, source, known)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.value(default)


def _defines_operator(node: ast.AST) -> bool:
    """`op = catalogue.add(Op(...))`."""
    match node:
        case ast.Assign(value=ast.Call(args=[ast.Call(func=ast.Name(id="Op"))])):
            return True
    return False


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None or True
    except ValueError:
        return False


# --- of an operator -------------------------------------------------------------------------------


@functools.cache
def of_twin(op: Op) -> str:
    """Of the Triton twin."""
    reach = Reach()
    module, _, function = op.triton.partition(":")
    reach.name(f"{PACKAGE}.{op.family}.{module}", function)
    return reach.digest()


@functools.cache
def of_spec(op: Op) -> str:
    """Of all that a verification speaks for beside kernels and samples: the spec and the twin."""
    reach = Reach()
    reach.record(op, _NOT_THE_SPEC)
    return hashlib.sha256(f"{reach.digest()} {of_twin(op)}".encode()).hexdigest()[:12]


@functools.cache
def of_cases(op: Op) -> str:
    """Of the calls that a verification makes."""
    reach = Reach()
    for table in (op.samples, op.bench, op.errors, op.properties):
        for case in table:
            reach.record(case, ("small", "ladder"))
    source = _module(Inputs.__module__)
    assert source is not None
    for node in source.statements[Inputs.__name__]:
        reach._found.append(_dump(node))
    return reach.digest()


def described(args: Iterable[Any]) -> str:
    """A call, as far as anything but its values can differ."""
    return "; ".join(
        f"{a.dtype} {tuple(a.shape)} {a.stride()} {a.storage_offset()}"
        if isinstance(a, Tensor)
        else repr(a)
        for a in args
    )


@functools.cache
def timed(op: Op) -> tuple[tuple[str, Sample, str], ...]:
    """The calls that are timed, in the order of the spec: dtype, case, and what it is."""
    return tuple(
        (dtype, sample, described(_planned(op, sample, dtype)))
        for dtype in op.bench_dtypes
        for sample in op.bench_for(dtype)
    )


def _planned(op: Op, sample: Sample, dtype: str) -> tuple[Any, ...]:
    args = dispatch.normalise(op, sample.make(op.inputs(dtype, "meta")))
    pairs = list(zip(op.argument_names, args, op.defaults, strict=True))
    while pairs[-1][0] in _LATER_ARGUMENTS and pairs[-1][1] == pairs[-1][2]:
        pairs.pop()
    return args[: len(pairs)]


def of_module(name: str) -> str:
    """Of a whole module, and what it uses, operators by their names."""
    reach = Reach(through_operators=False)
    reach.name(name, "")
    return reach.digest()
