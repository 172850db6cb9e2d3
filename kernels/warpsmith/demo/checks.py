"""What is right: every operator by the accuracy rule, the layer by a bound on its roundings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from warpsmith.core import catalogue
from warpsmith.demo.model import INPUTS, STEPS, TABLES, Config, Weights, layer
from warpsmith.proof import testing

WHOLE = "whole layer"
#: Up to this step, which attends, a token's row depends on no other token.
ATTENDS = [step.op for step in STEPS].index("flash_attention")


@dataclass(frozen=True)
class Check:
    """One result judged. `error` is relative to PyTorch's own, or to the bound for the layer."""

    tokens: int
    what: str
    served: str
    ok: bool
    error: float
    detail: str = ""


def error_bound(
    attention: float,
    scores: float,
    contribution: float,
    residual: float,
    output: float,
    config: Config,
    dtype: torch.dtype,
) -> float:
    """How far the layer may be from float64, as a root mean square over its outputs.

    With u the unit roundoff of the dtype and v that of float32, in which products are summed:

    - A rounding moves a value by at most u of it. Roundings are independent, so their effects add
      in squares.
    - Independent random weights pass a relative error (as a root mean square) on unchanged: both
      the error and the signal come out multiplied by the same norm. Each product adds a rounding of
      its result and another where it is summed in parts, and sqrt(k) v for its k additions (Higham
      and Mary 2019, https://doi.org/10.1137/18M1226312).
    - The gate silu(g) u: an error of u passes unchanged, one of g is multiplied by g silu'(g) /
      silu(g), in the mean square at most 1.5 for normal g of any spread.

    - Relative errors e of queries and keys, independent from element to element, move a score by
      sqrt(2) e |q| |k| / d, whatever it is: by sqrt(2) e times the spread of all scores. A weight
      of the softmax moves by as much, relative to itself, and the answer, a sum of independent
      values, too.

    - Turning pairs of values keeps their length, and that of their errors.

    So, in squares relative to each tensor, with two roundings in a norm, one where queries and keys
    are turned, two in attention (weights and answer), one in the sum behind it, two in the gate
    (silu and its product) and one in the final sum:

        m:  2 u^2
        q, k, v:  m + 2 u^2 + hidden v^2
        turned q and k:  q + u^2
        o:  (q + u^2) (1 + 2 scores^2) + 2 u^2
        a:  o + 2 u^2 + hidden v^2
        x:  a |a|^2 / |x|^2 + u^2
        n:  x + 2 u^2
        h:  n + 2 u^2 + hidden v^2
        g:  2.5 h + 2 u^2
        d:  g + 2 u^2 + ffn v^2
        y:  x |x|^2 + d |d|^2 + u^2 |y|^2          which is the square of the bound

    Args:
        attention: root mean square of a, what attention adds to the residual stream.
        scores: root mean square of the scores.
        contribution: root mean square of d, what the layer adds to the residual stream.
        residual: root mean square of x, the residual stream behind attention.
        output: root mean square of y.
        config: the sizes.
        dtype: of all tensors.
    """
    u, v = torch.finfo(dtype).eps / 2, torch.finfo(torch.float32).eps / 2
    m = 2 * u**2
    q = m + 2 * u**2 + config.hidden * v**2
    o = (q + u**2) * (1 + 2 * scores**2) + 2 * u**2
    a = o + 2 * u**2 + config.hidden * v**2
    x = a * (attention / residual) ** 2 + u**2
    n = x + 2 * u**2
    h = n + 2 * u**2 + config.hidden * v**2
    g = 2.5 * h + 2 * u**2
    d = g + 2 * u**2 + config.ffn * v**2
    return math.sqrt(x * residual**2 + d * contribution**2 + (u * output) ** 2)


def check_steps(
    weights: Weights, tokens: int, twins: bool
) -> tuple[list[Check], dict[str, Tensor]]:
    """Runs the layer step by step and judges each operator by the accuracy rule.

    Args:
        weights: the layer.
        tokens: rows of the activations.
        twins: judge each operator's Triton twin on the same tensors, too.

    Returns:
        The checks, and every tensor of the run by name.
    """
    values = dict(zip(INPUTS + TABLES, weights.inputs(tokens), strict=True))
    checks = []
    for step in STEPS:
        args = step.arguments(values)
        outs = step.run(step.ours, values)
        if step.op is None:
            continue
        op = catalogue.get(step.op)
        served: dict[str, Any] = {step.serves(args): step.answers(outs)}
        if twins:
            with numpy.errstate(all="ignore"):  # what lanes compute that a mask leaves out
                served["Triton, interpreted"] = testing.run_triton(op, args)
        for name, out in served.items():
            checks.append(_judged(tokens, step.name, name, testing.compare(op, out, args)))
    return checks, values


def _judged(tokens: int, what: str, served: str, found: testing.Comparison) -> Check:
    return Check(tokens, what, served, found.ok, found.error_ratio, found.message)


def check_layer(weights: Weights, values: dict[str, Tensor]) -> list[Check]:
    """Judges the whole layer, and PyTorch's beside it, against float64 and against each other.

    The two may be apart by the sum of their errors, hence by twice the bound.
    """
    tensors = [values[name] for name in INPUTS + TABLES]
    ours, theirs = values["y"], layer("theirs")(*tensors)
    wide = dict(zip(INPUTS + TABLES, (t.double() for t in tensors), strict=True))
    before = dict(wide)
    for step in STEPS[:ATTENDS]:
        step.run(step.theirs, before)
    scores = float(before["q"].square().mean().sqrt() * before["k"].square().mean().sqrt())
    tokens = len(ours)
    squares = torch.zeros(7, dtype=torch.float64, device=ours.device)
    for rows in torch.arange(tokens, device=ours.device).split(1024):  # float64 needs space
        part = {**wide, "residual": wide["residual"][rows]}
        part["turned_q"] = before["turned_q"][:, rows]
        seen = int(rows[-1]) + 1
        part |= {name: before[name][:, :seen] for name in ("turned_k", "v")}
        for step in STEPS[ATTENDS:]:
            step.run(step.theirs, part)
        x, exact = part["x"], part["y"]
        o, t = ours[rows].double(), theirs[rows].double()
        parts = (o - exact, t - exact, o - t, part["attention"], exact - x, x, exact)
        squares += torch.stack([of.square().sum() for of in parts])
    roots = (squares / ours.numel()).sqrt().tolist()
    mine, pytorch, apart, attention, contribution, stream, output = roots
    bound = error_bound(attention, scores, contribution, stream, output, weights.config, ours.dtype)
    return [
        _within(WHOLE, "warpsmith", tokens, mine, bound),
        _within(WHOLE, "PyTorch", tokens, pytorch, bound),
        _within(WHOLE, "one against the other", tokens, apart, 2 * bound),
    ]


def _within(what: str, served: str, tokens: int, error: float, bound: float) -> Check:
    ok = error <= bound  # NaN is not
    detail = "" if ok else f"root mean square error {error:.3g}, at most {bound:.3g} expected"
    return Check(tokens, what, served, ok, error / bound, detail)


def check_training(weights: Weights, tokens: int) -> list[Check]:
    """One step forward and backward: the gradient of every input by the accuracy rule,

        max |ours - float64| <= 2 max |PyTorch - float64| + one ulp of the largest gradient

    because both round at the same places, warpsmith at fewer of them.
    """
    given = weights.inputs(tokens)
    inputs, tables = given[: len(INPUTS)], given[len(INPUTS) :]
    dtype = inputs[0].dtype
    cotangent = torch.randn_like(inputs[0])

    def gradients(side: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
        leaves = [t.detach().to(dtype, copy=True).requires_grad_() for t in inputs]
        with torch.enable_grad():
            y = layer(side)(*leaves, *tables)
        return torch.autograd.grad(y, leaves, cotangent.to(dtype))

    ours, theirs = gradients("ours", dtype), gradients("theirs", dtype)
    exact = gradients("theirs", torch.float64)
    checks = []
    for name, o, e, t in zip(INPUTS, ours, exact, theirs, strict=True):
        title = f"gradient of {name}"
        found = testing.compare_tensors(o, e, t, elementwise=False, title=title)
        checks.append(_judged(tokens, title, "warpsmith", found))
    return checks
