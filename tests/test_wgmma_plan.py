"""The choice of a tile of wgmma: C++ and Python agree, and choose what can be launched."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from warpsmith.core import catalogue
from warpsmith.gemm import grouped_plan, wgmma_plan
from warpsmith.gemm.grouped_plan import GroupedSizes
from warpsmith.gemm.wgmma_plan import INTEGER_MENU, MENU, SCALED_MENU, Sizes, Tile
from warpsmith.native import csrc, toolchain

#: As the program prints them.
MENUS = (*MENU, *SCALED_MENU, *INTEGER_MENU)

#: Reads calls, a line each, and prints what it chooses, of fp8 where `size` is 1, whose last number
#: is that of the sums; of int8 where it is 0.
PROGRAM = """
#include <cstdio>
#include "gemm/scaled_matmul/wgmma_plan.h"
using namespace warpsmith;
int main() {
  for (const WgmmaTile& t : kWgmmaMenu) {
    std::printf("%d %d %d %d %d\\n", t.bm, t.bn, t.cluster, t.turns, t.swapped);
  }
  for (const WgmmaTile& t : kScaledMenu) {
    std::printf("%d %d %d %d %d\\n", t.bm, t.bn, t.cluster, t.turns, t.swapped);
  }
  for (const WgmmaTile& t : kIntegerMenu) {
    std::printf("%d %d %d %d %d\\n", t.bm, t.bn, t.cluster, t.turns, t.swapped);
  }
  long long batch, m, n, k, most;
  int size, along, swaps, sms, invariant;
  while (std::scanf("%lld %lld %lld %lld %d", &batch, &m, &n, &k, &size) == 5 &&
         std::scanf("%d %d %lld %d %d", &along, &swaps, &most, &sms, &invariant) == 5) {
    const StepSums sums = size == 1 ? static_cast<StepSums>(invariant) : StepSums::stay;
    const WgmmaProblem p{batch,      m,          n,    k,   size == 0 ? 1 : size,
                         along != 0, swaps != 0, most, sms, sums};
    const WgmmaChoice c = size == 0   ? choose_integer(p)
                          : size == 1 ? choose_scaled(p)
                                      : choose_wgmma(p, invariant != 0);
    std::printf("%d %d %lld ", c.tile, c.slices, static_cast<long long>(c.depth));
    std::printf("%lld\\n", static_cast<long long>(c.clocks));
  }
}
"""

#: The same of groups.
GROUPED = """
#include <cstdio>
#include "gemm/scaled_grouped_matmul/wgmma_plan.h"
using namespace warpsmith;
int main() {
  for (const WgmmaTile& t : kGroupedMenu) {
    std::printf("%d %d %d %d %d\\n", t.bm, t.bn, t.cluster, t.turns, t.swapped);
  }
  for (const WgmmaTile& t : kScaledGroupedMenu) {
    std::printf("%d %d %d %d %d\\n", t.bm, t.bn, t.cluster, t.turns, t.swapped);
  }
  long long groups, m, n, k;
  int along, size, sms, fast;
  while (std::scanf("%lld %lld %lld %lld", &groups, &m, &n, &k) == 4 &&
         std::scanf("%d %d %d %d", &along, &size, &sms, &fast) == 4) {
    const GroupedSizes p{groups, m, n, k, along != 0, size, sms};
    const GroupedChoice c = size == 1 ? choose_scaled_grouped(p, fast != 0) : choose_grouped(p);
    std::printf("%d %lld\\n", c.tile, static_cast<long long>(c.clocks));
  }
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _compiled(PROGRAM, tmp_path_factory.mktemp("wgmma_plan"))


def _compiled(text: str, folder: Path) -> Path:
    home = toolchain.cuda_home()
    if shutil.which("g++") is None or home is None:
        pytest.skip("needs g++ and the headers of CUDA")
    source, made = folder / "choose.cpp", folder / "choose"
    source.write_text(text)
    includes = [f"-I{csrc.CSRC}", f"-I{Path(home) / 'include'}"]
    subprocess.run(
        ["g++", "-std=c++20", "-O1", *includes, str(source), "-o", str(made)], check=True
    )
    return made


def said_of(t: Tile) -> str:
    return f"{t.bm} {t.bn} {t.cluster} {int(t.turns)} {int(t.swapped)}"


def calls(count: int) -> list[tuple[Sizes, bool]]:
    """Of all orders of magnitude, at the edges of tiles and off them."""
    generator = random.Random(38)

    def size() -> int:
        near = generator.choice((1, 8, 16, 64, 128, 192, 256, 1024, 4096, 14336, 28672, 151936))
        value = generator.choice((near, near + 1, near - 1, generator.randint(1, 2 * near)))
        return max(1, value)

    made = []
    for _ in range(count):
        batch, m, n, k = generator.choice((1, 1, 1, 3, 48)), size(), size(), size()
        sms = generator.choice((132, 114, 78, 16, 1))
        most = wgmma_plan.most_splits(batch, m, n, k, sms)
        along, swaps = generator.random() < 0.7, generator.random() < 0.2
        sizes = Sizes(batch, m, n, k, generator.choice((2, 4)), along, swaps, most, sms)
        made.append((sizes, generator.random() < 0.2))
    return made


def test_cpp_and_python_choose_the_same(program: Path) -> None:
    asked = calls(10_000)
    lines = "".join(
        f"{s.batch} {s.m} {s.n} {s.k} {s.size} {int(s.a_along_k)} {int(s.swaps)} "
        f"{s.most_slices} {s.sm_count} {int(invariant)}\n"
        for s, invariant in asked
    )
    said = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    menu, chosen = said.stdout.split("\n")[: len(MENUS)], said.stdout.split("\n")[len(MENUS) : -1]
    assert menu == [said_of(t) for t in MENUS]
    assert len(chosen) == len(asked)
    used = set()
    for (sizes, invariant), line in zip(asked, chosen, strict=True):
        c = wgmma_plan.choose(sizes, invariant)
        assert line == f"{c.tile} {c.slices} {c.depth} {c.clocks}", (sizes, invariant)
        assert (c.slices - 1) * c.depth < -(-sizes.k * sizes.size // 128) <= c.slices * c.depth
        assert c.slices <= sizes.most_slices
        assert not MENU[c.tile].swapped or (sizes.a_along_k and not invariant)
        used.add(c.tile)
    assert used == set(range(len(MENU))), "a tile that nothing takes"


def test_cpp_and_python_choose_the_same_for_groups(tmp_path: Path) -> None:
    program, generator = _compiled(GROUPED, tmp_path), random.Random(6)
    asked = []
    for sizes, fast in calls(5_000):
        groups, size = generator.choice((1, 2, 3, 8, 128, 256, 511)), generator.choice((1, 2))
        along_k = size == 2 and generator.random() < 0.3
        of = (groups, sizes.m, sizes.n, sizes.k, along_k, size, sizes.sm_count)
        asked.append((GroupedSizes(*of), fast))
    lines = "".join(
        f"{s.groups} {s.m} {s.n} {s.k} {int(s.along_k)} {s.size} {s.sm_count} {int(fast)}\n"
        for s, fast in asked
    )
    said = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    menus = {2: grouped_plan.MENU, 1: grouped_plan.SCALED_MENU}
    both = (*menus[2], *menus[1])
    told, chosen = said.stdout.split("\n")[: len(both)], said.stdout.split("\n")[len(both) : -1]
    assert told == [said_of(t) for t in both]
    assert len(chosen) == len(asked)
    used = set()
    for (s, fast), line in zip(asked, chosen, strict=True):
        menu = menus[s.size] if s.size == 2 or fast else menus[1][:-1]
        c = grouped_plan.choose(s, menu)
        assert line == f"{menu.index(c.tile)} {c.clocks}", s
        assert not (s.along_k and c.tile.swapped)
        used.add((s.size, c.tile))
    assert used == {(size, tile) for size in menus for tile in menus[size]}, (
        "one that nothing takes"
    )


@pytest.mark.parametrize("integers", [False, True])
def test_cpp_and_python_choose_the_same_for_values_of_a_byte(program: Path, integers: bool) -> None:
    generator, kinds = random.Random(8), ("stay", "leave", "scaled")
    asked = [
        replace(s, batch=1, size=1, a_along_k=True, swaps=False, sums=generator.choice(kinds))
        for s, _ in calls(4_000)
    ]
    size = 0 if integers else 1
    lines = "".join(
        f"1 {s.m} {s.n} {s.k} {size} 1 0 {s.most_slices} {s.sm_count} {kinds.index(s.sums)}\n"
        for s in asked
    )
    said = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    chosen = said.stdout.split("\n")[len(MENUS) : -1]
    assert len(chosen) == len(asked)
    used = set()
    for s, line in zip(asked, chosen, strict=True):
        stay = integers or s.sums == "stay"
        menu = INTEGER_MENU if integers else SCALED_MENU if stay else SCALED_MENU[:-1]
        c = wgmma_plan.choose(replace(s, sums="stay") if integers else s, menu=menu)
        assert line == f"{c.tile} {c.slices} {c.depth} {c.clocks}", s
        assert stay or menu[c.tile].bn <= 192
        used.add(c.tile)
    assert used == set(range(len(INTEGER_MENU if integers else SCALED_MENU))), (
        "a tile that nothing takes"
    )


def test_costs_are_those_of_the_header() -> None:
    text = (csrc.CSRC / "gemm" / "wgmma_costs.h").read_text()
    found = {
        re.sub("([A-Z])", r"_\1", name).lower(): int(value)
        for name, value in re.findall(r"k([A-Z]\w*) = (\d+);", text)
    }
    costs = vars(wgmma_plan.costs())
    assert {f"_{name}" for name in costs} - {"_date", "_gpu"} == set(found)
    assert all(found[f"_{name}"] == value for name, value in costs.items() if f"_{name}" in found)
    assert costs["date"] in text


def test_the_choice_of_batch_invariant_products_does_not_follow_rows() -> None:
    for n, k in ((4096, 4096), (28672, 4096), (1000, 136)):
        chosen = {
            (c.tile, c.slices)
            for m in (1, 7, 16, 64, 129, 1000, 8192)
            for c in (wgmma_plan.choose(Sizes(1, m, n, k, most_slices=8), invariant=True),)
        }
        assert len(chosen) == 1
        assert {slices for _, slices in chosen} == {1}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("matmul", torch.bfloat16), ("linear", torch.float16), ("matmul_tf32", torch.float32)],
)
def test_the_rung_says_which_tile_and_why(name: str, dtype: torch.dtype) -> None:
    op = catalogue.get(name)
    rung = next(rung for rung in op.ladder if rung.name == "wgmma_peak")
    x = torch.empty(16, 4096, dtype=dtype, device="meta")
    weight = torch.empty(4096, 4096, dtype=dtype, device="meta")
    rest = {"matmul": (False,), "linear": (None, "none", False), "matmul_tf32": ()}[name]
    sizes = Sizes(1, 16, 4096, 4096, dtype.itemsize, swaps=name == "matmul_tf32")
    most = wgmma_plan.most_splits(1, 16, 4096, 4096, sizes.sm_count)
    chosen = wgmma_plan.choose(replace(sizes, most_slices=most))
    if torch.cuda.is_available():
        pytest.skip("says it of this GPU")
    said = rung.plan(x, weight, *rest)
    assert said == f"{chosen}: {chosen.clocks} clocks expected, the least of its menu"
    assert said.startswith("tiles of 64 x ")
    assert rung.plan(x[:0], weight, *rest) is None


def test_the_rung_of_fp8_says_which_tile_and_why() -> None:
    if torch.cuda.is_available():
        pytest.skip("says it of this GPU")
    op = catalogue.get("scaled_matmul")
    rung = next(rung for rung in op.ladder if rung.name == "wgmma_peak")
    a = torch.empty(8192, 4096, dtype=torch.float8_e4m3fn, device="meta")
    one = torch.empty((), device="meta")
    blocks = torch.empty(8192, 32, device="meta"), torch.empty(32, 64, device="meta")
    assert "128 x 256" in rung.plan(a, a.t(), one, one, "bf16", True)
    for scales, fast in ((blocks, True), ((one, one), False)):
        assert "128 x 192" in rung.plan(a, a.t(), *scales, "bf16", fast)
    few = rung.plan(a[:16], a.t(), one, one, "bf16", False)
    assert few.startswith("tiles of 64 x 16, operands swapped")
    assert rung.plan(a[:0], a.t(), one, one, "bf16", False) is None
