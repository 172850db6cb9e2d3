"""Random shapes, strides, offsets, broadcasts and options: every implementation of every operator.

Calls are drawn by the roles of their arguments (`draw`), written down as a line of text each, from
which they can be made again (`call`), and judged by the accuracy rule (`run`).
"""

from __future__ import annotations

from warpsmith.proof.random_calls.call import Call
from warpsmith.proof.random_calls.draw import UnknownRoleError, draw
from warpsmith.proof.random_calls.run import Failure, Progress, make, random_calls, remake

__all__ = [
    "Call",
    "Failure",
    "Progress",
    "UnknownRoleError",
    "draw",
    "make",
    "random_calls",
    "remake",
]
