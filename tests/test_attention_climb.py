"""Which rung of attention's climb serves long heads once all are proven, and what keeps calls from
the others.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from warpsmith.attention.flash_attention import flash_attention_op
from warpsmith.attention.ladder_climb import CLIMB, NAIVE
from warpsmith.core import dispatch
from warpsmith.core.catalogue import Rung

LADDER = {rung.name: rung for rung in flash_attention_op.ladder}


def call(d: int, dv: int = 0, heads: int = 2, keys: int = 9, **options: Any) -> tuple[Any, ...]:
    def empty(tokens: int, values: int) -> torch.Tensor:
        return torch.empty(1, tokens, heads, values, dtype=torch.bfloat16, device="meta")

    named = {"q": empty(8, d), "k": empty(keys, d), "v": empty(keys, dv or d), "scale": 0.1}
    named |= options
    names = flash_attention_op.argument_names
    last = max(names.index(name) for name in named)
    defaults = dict(zip(names, flash_attention_op.defaults, strict=True))
    given = tuple(named.get(name, defaults[name]) for name in names[: last + 1])
    return dispatch.normalise(flash_attention_op, given)


@pytest.mark.parametrize(
    ("d", "dv", "sm", "best"),
    [
        (264, 264, 80, "large_registers"),
        (512, 64, 90, "large_registers"),
        (64, 520, 90, "large_cluster"),
        (1024, 1024, 90, "large_cluster"),
        (1024, 1024, 80, "large_registers"),
    ],
)
def test_long_heads_have_rungs_of_their_own(d: int, dv: int, sm: int, best: str) -> None:
    args = call(d, dv)

    def serves(rung: Rung) -> bool:
        return rung.min_sm <= sm and rung.when(*args) is None and rung.suits(*args) is None

    assert [rung.name for rung in LADDER.values() if serves(rung)][-1] == best


@pytest.mark.parametrize("rung", CLIMB, ids=lambda rung: rung.name)
def test_short_heads_do_not_suit_the_rungs_of_long_ones(rung: Rung) -> None:
    suits = LADDER[rung.name].suits(*call(128)) is None
    assert suits != rung.name.startswith("large_")


@pytest.mark.parametrize("rung", [NAIVE, *CLIMB], ids=lambda rung: rung.name)
def test_the_climb_takes_no_options(rung: Rung) -> None:
    options = ({"softcap": 1.0}, {"return_max_logits": True}, {"scale": -1.0}, {"dropout_p": 0.5})
    when = LADDER[rung.name].when
    assert when(*call(64)) is None
    assert {when(*call(64, **option)) for option in options} == {"takes no options but a window"}


@pytest.mark.parametrize(
    ("name", "args", "reason"),
    [
        ("split_q", call(136), "needs head dimensions of at most 128"),
        ("split_q", call(64, 136), "needs head dimensions of at most 128"),
        ("split_q", call(36), "needs head dimensions that are multiples of 8"),
        ("split_q", call(64, heads=65536), "needs at most 65535 sequences and heads"),
        ("large_twice", call(1032), "needs head dimensions of at most 1024"),
        ("naive", call(64, keys=1 << 26), "needs at most 2 GB of scores"),
    ],
)
def test_reasons(name: str, args: tuple[Any, ...], reason: str) -> None:
    assert LADDER[name].when(*args) == reason
