"""Commands that look things up: doctor, list, which."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from warpsmith.cli.arguments import (
    find_composites,
    find_op,
    find_ops,
    parse_dtypes,
)
from warpsmith.cli.calls import (
    arguments_for,
    changed_settings,
    default_dtype,
    layer_calls,
    parse_settings,
    parse_shape,
    through_function,
)
from warpsmith.core import catalogue, dispatch, families, messages, public_calls
from warpsmith.core.catalogue import Composite, Op, PartCall
from warpsmith.native.console import (
    UsageError,
    print_facts,
    print_json,
    print_table,
    write,
)


def doctor(args: argparse.Namespace) -> int:
    from warpsmith.cli.doctor import examine

    facts = examine()
    if args.json:
        print_json(facts)
    else:
        print_facts(facts)
    return 0


def list_ops(args: argparse.Namespace) -> int:
    composites = find_composites(args.op)
    named = any(composite.name == args.op for composite in composites)
    try:
        ops = [] if named else find_ops([args.op] if args.op else [])
    except UsageError:
        if not composites:
            raise
        ops = []
    if args.json:
        print_json([*map(_describe, ops), *map(_describe_composite, composites)])
        return 0
    if args.op:
        for op in ops:
            rows = [
                (
                    rung.name,
                    rung.story,
                    f"sm_{rung.min_sm}",
                    " ".join(v.name for v in op.variants if v.rung is rung),
                )
                for rung in op.ladder
            ]
            write(f"{op.schema}   family {op.family}")
            if op.aliases:
                write(f"also known as {', '.join(op.aliases)}")
            if functions := public_calls.functions_over(op):
                write(f"called by {' and '.join(functions)}")
            print_table("", ("rung", "the idea", "from", "variants"), rows)
            write("")
        for composite in composites:
            write(f"{composite.schema}   family {composite.family}")
            write("a composite: no ladder of its own; the kernels are those of its parts")
            print_table("", ("part", "what for", "rungs"), _parts(composite))
            write("")
        return 0
    overview = []
    for op in ops:
        ladder = " ".join(rung.name for rung in op.ladder)
        overview.append((op.name, op.family, " ".join(op.dtypes), len(op.variants), ladder))
    print_table("", ("operator", "family", "dtypes", "variants", "ladder"), overview)
    write("")
    made = [(c.name, c.family, " ".join(c.operators)) for c in composites]
    print_table("", ("composite", "family", "made of, beside PyTorch's operators"), made)
    return 0


def _parts(composite: Composite) -> list[tuple[str, str, str]]:
    ladders = {
        name: " ".join(rung.name for rung in catalogue.get(name).ladder)
        for name in composite.operators
    }
    return [(name, purpose, ladders.get(name, "")) for name, purpose in composite.parts]


def _describe_composite(composite: Composite) -> dict[str, Any]:
    return {
        "name": composite.name,
        "schema": composite.schema,
        "family": composite.family,
        "composite": [{"part": name, "purpose": purpose} for name, purpose in composite.parts],
    }


def _describe(op: Op) -> dict[str, Any]:
    return {
        "name": op.name,
        "schema": op.schema,
        "family": op.family,
        "aliases": list(op.aliases),
        "functions": public_calls.functions_over(op),
        "dtypes": list(op.dtypes),
        "ladder": [
            {
                "rung": rung.name,
                "story": rung.story,
                "min_sm": rung.min_sm,
                "variants": [v.op_name for v in op.variants if v.rung is rung],
            }
            for rung in op.ladder
        ],
    }


def _why_not(variant: catalogue.Variant, values: tuple[Any, ...], sm: int) -> str:
    if reason := dispatch.refusal(variant, values, sm) or variant.rung.suits(*values):
        return reason
    if variant.rung.unproven:
        return "only by name: no GPU has verified it"
    return "only by name" if variant.low_precision else ""


def which(args: argparse.Namespace) -> int:
    shapes = [parse_shape(text) for text in args.shape]
    named = parse_dtypes(args.dtype)
    here = torch.cuda.is_available() and args.sm is None
    asked = dispatch.device_sm(torch.device("cuda")) if here else args.sm or 90
    place = "cuda" if here else "meta"
    where = "this GPU" if here else f"sm_{asked}"
    sm = None if here else asked
    if composite := catalogue.composites().get(args.op):
        values, calls = layer_calls(composite, shapes, (named or ("f32",))[0], place, sm)
        return _say_parts(composite.name, values, calls, sm, asked, where, args.json)
    op = find_op(args.op)
    function = args.op if families.of_function(args.op) else messages.called_by(op)
    settings, others = parse_settings(op, args.set, function)
    values = arguments_for(op, shapes, (named or (default_dtype(op),))[0], place, settings)
    if others:
        op, values = through_function(function, op, values, settings, others)
    by_name = dict(zip(op.argument_names, values, strict=False))
    calls = public_calls.parts(op.name, (), by_name, sm) or ()
    if len(calls) > 1:
        return _say_parts(op.name, values, calls, sm, asked, where, args.json)
    answer = _served(op.name, values, sm, asked)
    if args.json:
        print_json(answer)
    else:
        _print_served(answer, values, where)
    return 0


def _say_parts(
    name: str,
    values: Sequence[Any],
    calls: Sequence[PartCall],
    sm: int | None,
    asked: int,
    where: str,
    as_json: bool,
) -> int:
    """What serves the calls that a function makes."""
    if as_json:
        parts = [{"purpose": c.purpose, **_served(c.op, c.args, sm, asked)} for c in calls]
        serves = {"serves": "composite", "implementation": "composite", "parts": parts}
        print_json({"op": name, "sm": asked, **serves})
        return 0
    write(f"{name}({_shapes(values)}) on {where}: a composite")
    for call in calls:
        write("")
        write(call.purpose)
        _print_served(_served(call.op, call.args, sm, asked), call.args, where)
    return 0


def _shapes(values: Sequence[Any]) -> str:
    tensors = (v for v in values if isinstance(v, Tensor))
    return ", ".join("x".join(map(str, v.shape)) or "scalar" for v in tensors)


def _served(name: str, values: tuple[Any, ...], sm: int | None, asked: int) -> dict[str, Any]:
    """What serves a call, and what the variants of its dtype say to it."""
    if "." in name:
        return {"op": name, "sm": asked, "serves": name, "implementation": "pytorch",
                "reason": "PyTorch's own", "variants": []}  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dispatch.FallbackWarning)
        choice = dispatch.which(name, *values, sm=sm)
    op = catalogue.get(name)
    values = dispatch.normalise(op, values)
    variants = [
        {
            "variant": variant.name,
            "chosen": variant is choice.variant,
            "why_not": _why_not(variant, values, asked),
            "story": variant.rung.story,
        }
        for variant in op.variants
        if variant.signature.mismatch(op.argument_names, values) is None
    ]
    return {
        "op": op.name,
        "sm": asked,
        "serves": choice.name,
        "implementation": choice.implementation,
        "reason": choice.reason,
        "variants": variants,
    }


def _print_served(answer: dict[str, Any], values: Sequence[Any], where: str) -> None:
    name, choice = answer["op"], f"{answer['serves']}: {answer['reason']}"
    if answer["implementation"] == "pytorch":
        write(f"{name} on {where}: {answer['reason']}")
        return
    call = f"{_shapes(values)}{changed_settings(name, values)}"
    write(f"{name}({call}) on {where}: {choice}")
    rows = [
        ("*" if r["chosen"] else "", r["variant"], r["why_not"] or "could serve", r["story"])
        for r in answer["variants"]
    ]
    print_table("", ("", "variant", "for this call", "the idea"), rows)
