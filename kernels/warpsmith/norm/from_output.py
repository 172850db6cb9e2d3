"""Gradients of the norms from their outputs, for graphs that keep y and rstd and not x."""

from __future__ import annotations

from warpsmith.core.catalogue import Property
from warpsmith.norm import from_output_cases as cases
from warpsmith.norm.norms import Norm, backward

for _layer in (False, True):
    _norm = Norm(_layer, sink="with_rstd")
    backward(
        _norm,
        samples=cases.samples(_norm),
        errors=cases.errors(_norm),
        properties=(Property("repeatable", cases.repeatable(_norm)),),
        bench=cases.bench(_norm),
    )
