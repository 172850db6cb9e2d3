"""The costs by which products by wgmma choose their tile (csrc/gemm/wgmma_plan.h):
`python benchmarks/wgmma_costs.py [--out <file>]` times every tile and number of slices that has a
chance on this GPU, and fits the costs to the times; `--fit <file>` fits to times that were taken.

Writes `csrc/gemm/wgmma_costs.h` and `kernels/warpsmith/gemm/wgmma_costs.json`, and says how much
slower than the best of all tiles the chosen one is, on average and at most.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import random
import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

if find_spec("warpsmith") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels"))

import warpsmith  # noqa: F401
from warpsmith.core import json_files
from warpsmith.gemm import wgmma_plan
from warpsmith.gemm.wgmma_plan import MENU, Choice, Sizes
from warpsmith.measure import limits, timing
from warpsmith.native import csrc

HEADER = csrc.CSRC / "gemm" / "wgmma_costs.h"
SLICES = (1, 2, 3, 4, 6, 8)
#: Of device time for each tile and number of slices of a case.
SECONDS = 0.01
SQUARES = (512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
#: Rows through the weights [n, k] of language models.
WEIGHTS = ((4096, 4096), (28672, 4096), (4096, 14336), (6144, 4096), (7168, 2048), (2112, 7168))
ROWS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
#: What is fitted, and in how many steps.
FITTED = (
    "l2_rate",
    "l2_rate_of_one",
    "memory_rate",
    "step_percent",
    "store",
    "store_rate",
    "store_in_turns",
    "once",
    "second_kernel",
    "partials_rate",
)
STEPS = 3000

Row = dict[str, Any]


# --- times ----------------------------------------------------------------------------------------


def sizes_of(m: int, n: int, k: int, sm_count: int) -> Sizes:
    most = wgmma_plan.most_splits(1, m, n, k, sm_count)
    return Sizes(1, m, n, k, most_slices=most, sm_count=sm_count)


def with_a_chance(sizes: Sizes) -> Iterator[tuple[int, int]]:
    """Tiles and slices that today's costs do not put far behind the best."""
    bound = 1.5 * wgmma_plan.choose(sizes).clocks
    for tile in range(len(MENU)):
        seen = set()
        for wanted in SLICES:
            found = wgmma_plan.cost(sizes, tile, wanted)
            if wanted > sizes.most_slices or found.slices in seen or found.clocks > bound:
                continue
            seen.add(found.slices)
            yield tile, found.slices


def expected(sizes: Sizes, time: Row) -> Choice:
    """What the model says of a tile and slices that were timed."""
    return wgmma_plan.cost(sizes, time["tile"], time["slices"])


def timed(
    sets: Sequence[tuple[torch.Tensor, torch.Tensor]], chosen: Iterable[tuple[int, int]]
) -> list[Row]:
    """Tiles and slices in turns, on operands that are not in L2."""

    def calls(tile: int, slices: int) -> timing.Implementation:
        def call(i: int) -> torch.Tensor:
            os.environ["WARPSMITH_WGMMA_TILE"] = f"{tile}/{slices}"
            return torch.ops.warpsmith.matmul.rung(*sets[i], rung="wgmma_peak", accumulator="f32")

        return call

    every = {f"{tile}/{slices}": (tile, slices) for tile, slices in chosen}
    functions = {name: calls(*of) for name, of in every.items()}
    times = timing.measure(functions, sets=len(sets), seconds=SECONDS)
    os.environ.pop("WARPSMITH_WGMMA_TILE", None)
    return [
        {"tile": tile, "slices": slices, "us": times[name].ms * 1e3}
        for name, (tile, slices) in every.items()
    ]


def operands(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    return a, b.t()


def measured() -> list[Row]:
    properties = torch.cuda.get_device_properties()
    cases = [(s, s, s) for s in SQUARES] + [(m, n, k) for n, k in WEIGHTS for m in ROWS]
    rows = []
    for m, n, k in cases:
        count = timing.sets_for(2 * (m * k + n * k + m * n), timing.l2_bytes())
        sets = [operands(m, n, k) for _ in range(count)]
        sizes = sizes_of(m, n, k, properties.multi_processor_count)
        found = timed(sets, with_a_chance(sizes))
        sms = properties.multi_processor_count
        rows.append({"m": m, "n": n, "k": k, "sm_count": sms, "times": found})
        best = min(found, key=lambda f: f["us"])
        chosen = wgmma_plan.choose(sizes)
        print(f"{m}x{n}x{k}: {expected(sizes, best)}, {best['us']:.1f} us")
        print(f"  chosen: {chosen}", flush=True)
    return rows


# --- costs ----------------------------------------------------------------------------------------


def losses(rows: list[Row]) -> list[float]:
    """How much slower the chosen tile is than the best of those timed, of each case."""
    lost = []
    for row in rows:
        sizes = sizes_of(row["m"], row["n"], row["k"], row["sm_count"])
        cost = [expected(sizes, t).clocks for t in row["times"]]
        chosen = row["times"][cost.index(min(cost))]
        lost.append(chosen["us"] / min(t["us"] for t in row["times"]))
    return lost


def misfit(rows: list[Row]) -> float:
    """Of the choices first, and then of the times themselves, up to a factor."""
    logs = []
    for row in rows:
        sizes = sizes_of(row["m"], row["n"], row["k"], row["sm_count"])
        for t in row["times"]:
            clocks = expected(sizes, t).clocks
            logs.append(math.log(t["us"] * 1e3 / clocks))
    lost = losses(rows)
    return statistics.mean(lost) + 0.1 * max(lost) + 0.1 * statistics.pstdev(logs)


def fit(rows: list[Row]) -> dict[str, Any]:
    """By steps of some costs at a time, as one alone seldom changes a choice for the better."""
    known, chance = wgmma_plan.costs(), random.Random(0)
    best = misfit(rows)
    for _ in range(STEPS):
        names = chance.sample(FITTED, chance.choice((1, 1, 2, 3)))
        before = {name: getattr(known, name) for name in names}
        for name, value in before.items():
            step = chance.gauss(0.0, chance.choice((0.05, 0.2, 0.5)))
            setattr(known, name, max(1, round(value * math.exp(step))))
        if known.l2_rate_of_one <= known.l2_rate and (found := misfit(rows)) < best:
            best = found
        else:
            vars(known).update(before)
    return dict(vars(known))


def write(costs: dict[str, Any], gpu: str) -> None:
    old = vars(wgmma_plan.costs())["date"]
    costs = {**costs, "date": datetime.date.today().isoformat(), "gpu": gpu}
    text = HEADER.read_text()
    for name, value in costs.items():
        if not isinstance(value, int):
            continue
        camel = "".join(part.capitalize() for part in name.split("_"))
        constant = re.compile(rf"(k{camel} = )(\d+; *)(?=//)")  # comments stay in their column

        def written(found: re.Match[str], value: int = value) -> str:
            return found[1] + f"{value};".ljust(len(found[2]))

        text, count = constant.subn(written, text)
        assert count == 1, name
    text = text.replace(old, costs["date"])
    HEADER.write_text(text)
    json_files.write_json(wgmma_plan.COSTS, costs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="file for the times")
    parser.add_argument("--fit", type=Path, help="times that were taken")
    options = parser.parse_args()
    if options.fit:
        taken = json.loads(options.fit.read_text())
    else:
        limits.need_gpu()
        taken = {"gpu": torch.cuda.get_device_name(), "rows": measured()}
        if options.out:
            json_files.write_json(options.out, taken)

    def say(when: str) -> None:
        lost = losses(taken["rows"])
        mean, most = statistics.mean(lost) - 1, max(lost) - 1
        print(f"{when}: chosen tiles are {mean:.1%} slower than the best, {most:.1%} at most")

    say("before")
    costs = fit(taken["rows"])
    say("after")
    write(costs, taken["gpu"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
