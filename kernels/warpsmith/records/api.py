"""`docs/api.md`: every public function and module, from its docstring."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterator
from typing import Any

import torch

from warpsmith.core.families import PUBLIC

PREFACE = (
    "Written by `warpsmith report` from the docstrings. What serves a call says "
    "`warpsmith.which`, which kernels there are `warpsmith list`, and what of PyTorch's machinery "
    "takes a function [pytorch.md](pytorch.md)."
)
_SECTIONS = ("Args", "Shape", "Returns", "Raises", "Reference")
#: What works on models, beside the modules.
_MODELS = (
    "patch", "patching.Report", "unpatch", "use", "transformers.register", "transformers.attention",
    "transformers.mask",
)  # fmt: skip
#: Of all functions.
_TOOLS = ("which", "Choice", "FallbackWarning", "catalogue.load", "philox.keep_mask")
#: Of a signature on one line.
WIDTH = 100
#: "name: what it is", and what belongs to it further in.
_ENTRY = re.compile(r"^(\*{0,2}\w+): ", re.M)


def page() -> str:
    parts = ["# API", PREFACE]
    for family, names in PUBLIC.items():
        package = importlib.import_module(f"warpsmith.{family}")
        parts.append(f"## {family}")
        for name in sorted(names, key=str.lower):
            parts += _entry(f"warpsmith.{name}", getattr(package, name))
    parts += ["## Models", *_tools()]
    return "\n\n".join(parts) + "\n"


def _tools() -> Iterator[str]:
    """What works on models, says what serves a call, and what the functions' texts refer to."""
    from warpsmith import layers, nn

    for name in _MODELS:
        yield from _entry(f"warpsmith.{name}", _found(name))
    for name in sorted(nn.__all__):
        yield from _entry(f"warpsmith.nn.{name}", getattr(nn, name))
    for name in sorted(layers.__all__):
        yield from _entry(f"warpsmith.layers.{name}", getattr(layers, name))
    yield "## Tools"
    for name in _TOOLS:
        yield from _entry(f"warpsmith.{name}", _found(name))


def _found(name: str) -> Any:
    """Of the package, or of one of its modules."""
    module, _, name = name.rpartition(".")
    package = importlib.import_module("warpsmith")
    if not module:
        return getattr(package, name)
    known = getattr(package, module, None)
    return getattr(known or importlib.import_module(f"warpsmith.{module}"), name)


def _entry(name: str, thing: Any) -> Iterator[str]:
    yield f"### `{name}`"
    yield f"```python\n{_signature(name.rpartition('.')[2], thing)}\n```"
    yield from _described(inspect.getdoc(thing) or "")


def _signature(name: str, thing: Callable[..., Any]) -> str:
    """On one line where it fits, else an argument on each."""
    if isinstance(thing, type) and thing.__init__ is torch.nn.Module.__init__:  # type: ignore[misc]
        return f"class {name}(torch.nn.Module)"
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    words, star = [], False
    for p in signature.parameters.values():
        if p.kind == p.KEYWORD_ONLY and not star:
            words.append("*")
        star = star or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        words.append(_parameter(p))
    of = signature.return_annotation
    returns = "" if of is signature.empty else f" -> {_annotation(of)}"
    line = f"{name}({', '.join(words)}){returns}"
    if len(line) <= WIDTH:
        return line
    inside = "".join(f"    {word},\n" for word in words)
    return f"{name}(\n{inside}){returns}"


def _parameter(p: inspect.Parameter) -> str:
    stars = "*" * (p.kind == p.VAR_POSITIONAL) + "**" * (p.kind == p.VAR_KEYWORD)
    typed = "" if p.annotation is p.empty else f": {_annotation(p.annotation)}"
    if p.default is p.empty:
        return f"{stars}{p.name}{typed}"
    made = repr(p.default) == "<factory>"  # of a dataclass
    default = f'"{p.default}"' if isinstance(p.default, str) else "..." if made else repr(p.default)
    return f"{p.name}{typed}{' = ' if typed else '='}{default}"


def _annotation(of: Any) -> str:
    if typing.get_origin(of) is typing.Union:  # as later versions of PyTorch write it
        return " | ".join(_annotation(one) for one in typing.get_args(of))
    return of if isinstance(of, str) else inspect.formatannotation(of)


def _described(text: str) -> Iterator[str]:
    """A docstring as Markdown: prose as it is, sections as lists."""
    pieces = re.split(rf"^({'|'.join(_SECTIONS)}):\n", text, flags=re.M)
    yield _prose(pieces[0])
    for title, body in zip(pieces[1::2], pieces[2::2], strict=True):
        inside = textwrap.dedent(body).strip()
        heads = _ENTRY.findall(inside) if title in ("Args", "Raises") else []
        if not heads:
            yield f"**{title}.** {_prose(inside)}"
            continue
        bodies = _ENTRY.split(inside)[2::2]
        lines = (f"- `{head}`: {_joined(said)}" for head, said in zip(heads, bodies, strict=True))
        yield f"**{title}.**\n\n" + "\n".join(lines)


def _joined(text: str) -> str:
    return " ".join(text.split())


def _prose(text: str) -> str:
    """Paragraphs on a line each; what is indented stays as code."""
    found = []
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        if all(line.startswith("    ") for line in paragraph.splitlines()):
            found.append(f"```python\n{textwrap.dedent(paragraph)}\n```")
        else:
            found.append(_joined(paragraph).replace("``", "`"))
    return "\n\n".join(found)
