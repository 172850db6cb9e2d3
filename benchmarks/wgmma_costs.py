"""The costs by which products by wgmma choose their tile (csrc/gemm/wgmma_plan.h):
`python benchmarks/wgmma_costs.py [--out <file>]` times every tile and number of slices that has a
chance on this GPU, and fits the costs to the times; `--fit <file>` fits to times that were taken.
Most costs are those of products of bf16; what it costs that sums leave the tensor cores is fitted
after them, to products of fp8 whose sums do (`scaled_matmul`). `--only` does one of the two.

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
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

if find_spec("warpsmith") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels"))

import warpsmith  # noqa: F401
from warpsmith.core import json_files
from warpsmith.core.inputs import Inputs
from warpsmith.gemm import wgmma_plan
from warpsmith.gemm.scaled_matmul_cases import blocks_of, scales
from warpsmith.gemm.wgmma_plan import MENU, SCALED_MENU, Choice, Sizes, Tile
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
#: What becomes of the sums of a step (`Sizes.sums`), of products of each dtype that are timed.
SUMS = {"bf16": ("stay",), "fp8": ("leave", "scaled")}
#: What is fitted to their times, in so many steps for each; the costs of bf16 hold for fp8 as well.
FITTED = {
    "bf16": (
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
    ),
    "fp8": ("wide_apart_percent", "swapped_scales_percent"),
}
STEPS = 300

Row = dict[str, Any]


# --- times ----------------------------------------------------------------------------------------


def cases(dtypes: Iterable[str], sm_count: int) -> list[Row]:
    """What is timed, as rows without their times."""
    shapes = [(s, s, s) for s in SQUARES] + [(m, n, k) for n, k in WEIGHTS for m in ROWS]
    return [
        {"m": m, "n": n, "k": k, "sm_count": sm_count, "sums": sums}
        for dtype in dtypes
        for sums in SUMS[dtype]
        for m, n, k in shapes
    ]


def dtype_of(row: Row) -> str:
    return "bf16" if row["sums"] == "stay" else "fp8"


def sizes_of(row: Row) -> Sizes:
    m, n, k, sms = (row[name] for name in ("m", "n", "k", "sm_count"))
    size = 2 if dtype_of(row) == "bf16" else 1
    most = wgmma_plan.most_splits(1, m, n, k, sms)
    return Sizes(1, m, n, k, size, most_slices=most, sm_count=sms, sums=row["sums"])


def menu_of(sizes: Sizes) -> Sequence[Tile]:
    return MENU if sizes.sums == "stay" else SCALED_MENU[:-1]


def expected(sizes: Sizes, tile: int, slices: int) -> Choice:
    """What the model says of a tile and slices."""
    return wgmma_plan.cost(sizes, tile, slices, menu_of(sizes))


def with_a_chance(sizes: Sizes) -> Iterator[tuple[int, int]]:
    """Tiles and slices that today's costs do not put far behind the best, or would not if it cost
    nothing that sums leave, as that may be too high today.
    """
    menu = menu_of(sizes)
    bound = 1.5 * wgmma_plan.choose(sizes, menu=menu).clocks
    for tile in range(len(menu)):
        seen = set()
        for wanted in SLICES:
            found = wgmma_plan.cost(replace(sizes, sums="stay"), tile, wanted, menu)
            if wanted > sizes.most_slices or found.slices in seen or found.clocks > bound:
                continue
            seen.add(found.slices)
            yield tile, found.slices


def operands(row: Row, device: str = "cuda") -> tuple[torch.Tensor, ...]:
    """Of a call of `product`; of fp8 with a scale for each row and column, or for each block."""
    m, n, k = row["m"], row["n"], row["k"]
    dtype = torch.bfloat16 if dtype_of(row) == "bf16" else torch.float8_e4m3fn
    inputs = Inputs(dtype, device)
    factors = inputs.plain(m, k), inputs.plain(n, k, salt=1).t()
    if row["sums"] == "stay":
        return factors
    if row["sums"] == "leave":
        return *factors, scales(inputs, m), scales(inputs, n)
    blocks = blocks_of(k), blocks_of(n)
    return *factors, scales(inputs, m, blocks[0]), scales(inputs, *blocks)


def product(row: Row) -> Any:
    """The operator, whose rung is timed."""
    ops = torch.ops.warpsmith
    return ops.matmul if dtype_of(row) == "bf16" else ops.scaled_matmul


def timed(row: Row, chosen: Iterable[tuple[int, int]]) -> list[Row]:
    """Times of tiles and slices that take turns, on operands that are not in L2."""
    first = operands(row)
    of_call = timing.bytes_of(first) + 2 * row["m"] * row["n"]
    count = timing.sets_for(of_call, timing.l2_bytes())
    sets = [first, *(operands(row) for _ in range(count - 1))]
    rung = product(row).rung

    def calls(tile: int, slices: int) -> timing.Implementation:
        def call(i: int) -> torch.Tensor:
            os.environ["WARPSMITH_WGMMA_TILE"] = f"{tile}/{slices}"
            return rung(*sets[i], rung="wgmma_peak", accumulator="f32")

        return call

    every = {f"{tile}/{slices}": (tile, slices) for tile, slices in chosen}
    functions = {name: calls(*of) for name, of in every.items()}
    times = timing.measure(functions, sets=count, seconds=SECONDS)
    os.environ.pop("WARPSMITH_WGMMA_TILE", None)
    return [
        {"tile": tile, "slices": slices, "us": times[name].ms * 1e3}
        for name, (tile, slices) in every.items()
    ]


def measured(dtypes: Iterable[str]) -> list[Row]:
    rows = cases(dtypes, torch.cuda.get_device_properties().multi_processor_count)
    for row in rows:
        sizes = sizes_of(row)
        row["times"] = timed(row, with_a_chance(sizes))
        best = min(row["times"], key=lambda f: f["us"])
        found = expected(sizes, best["tile"], best["slices"])
        what = f"{dtype_of(row)} {sizes.m}x{sizes.n}x{sizes.k}, sums {sizes.sums}"
        print(f"{what}: {found}, {best['us']:.1f} us")
        print(f"  chosen: {wgmma_plan.choose(sizes, menu=menu_of(sizes))}", flush=True)
    return rows


# --- costs ----------------------------------------------------------------------------------------


def clocks_of(row: Row) -> list[int]:
    """What the model says of the tiles and slices that were timed."""
    sizes = sizes_of(row)
    return [expected(sizes, t["tile"], t["slices"]).clocks for t in row["times"]]


def losses(rows: list[Row]) -> list[float]:
    """How much slower the chosen tile is than the best of those timed, of each case."""
    lost = []
    for row in rows:
        cost = clocks_of(row)
        chosen = row["times"][cost.index(min(cost))]
        lost.append(chosen["us"] / min(t["us"] for t in row["times"]))
    return lost


def misfit(rows: list[Row]) -> float:
    """Of the choices first, and then of the times themselves, up to a factor."""
    logs = []
    for row in rows:
        for t, clocks in zip(row["times"], clocks_of(row), strict=True):
            logs.append(math.log(t["us"] * 1e3 / clocks))
    lost = losses(rows)
    return statistics.mean(lost) + 0.1 * max(lost) + 0.1 * statistics.pstdev(logs)


def fit(rows: list[Row], fitted: Sequence[str]) -> None:
    """By steps of some costs at a time, as one alone seldom changes a choice for the better."""
    known, chance = wgmma_plan.costs(), random.Random(0)
    best = misfit(rows)
    for _ in range(STEPS * len(fitted)):
        names = chance.sample(fitted, min(chance.choice((1, 1, 2, 3)), len(fitted)))
        before = {name: getattr(known, name) for name in names}
        for name, value in before.items():
            step = chance.gauss(0.0, chance.choice((0.05, 0.2, 0.5)))
            setattr(known, name, max(1, round(value * math.exp(step))))
        if known.l2_rate_of_one <= known.l2_rate and (found := misfit(rows)) < best:
            best = found
        else:
            vars(known).update(before)


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


def say(when: str, rows: list[Row]) -> None:
    lost = losses(rows)
    mean, most = statistics.mean(lost) - 1, max(lost) - 1
    print(f"{when}: chosen tiles are {mean:.1%} slower than the best, {most:.1%} at most")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="file for the times")
    parser.add_argument("--fit", type=Path, help="times that were taken")
    parser.add_argument("--only", choices=FITTED, help="products of this dtype")
    options = parser.parse_args()
    dtypes = [options.only] if options.only else list(FITTED)
    if options.fit:
        taken = json.loads(options.fit.read_text())
    else:
        limits.need_gpu()
        taken = {"gpu": torch.cuda.get_device_name(), "rows": measured(dtypes)}
        if options.out:
            json_files.write_json(options.out, taken)
    for dtype in dtypes:
        rows = [row for row in taken["rows"] if dtype_of(row) == dtype]
        if rows:
            say(f"{dtype} before", rows)
            fit(rows, FITTED[dtype])
            say(f"{dtype} after", rows)
    write(vars(wgmma_plan.costs()), taken["gpu"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
