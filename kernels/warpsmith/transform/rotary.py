"""Rotary positions: angles, and how models scale them.

An angle is counted in turns, as a fraction of 64 bits: `turns[i]` is by how much pair i turns from
one position to the next, in 2^-64 of a turn. A product with a position wraps where the circle does
and is exact, at position 10^6 as at 1, where f32 would have no digit left behind the point.

    frequencies = rotary.frequencies(128, base=500000.0)      # radians per position
    frequencies = rotary.llama3(frequencies, factor=8.0)      # or yarn(...)
    turns = rotary.turns(frequencies).to("cuda")
    q, k = warpsmith.rope(q, k, positions=positions, turns=turns)
    cos, sin = rotary.tables(turns, 131072)                   # or tables, once for all layers
"""

from __future__ import annotations

from warpsmith.spec.rotary import axes, frequencies, llama3, radians, tables, turns, yarn

__all__ = ["axes", "frequencies", "llama3", "radians", "tables", "turns", "yarn"]
