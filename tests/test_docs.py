"""The documentation agrees with the code: links, paths, commands, ladders, the example."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Container
from pathlib import Path
from typing import Any

import pytest
import torch

import warpsmith
from warpsmith import demo
from warpsmith.cli import main as cli
from warpsmith.core import catalogue
from warpsmith.core.families import PUBLIC
from warpsmith.records import api, report

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/architecture.md",
    "docs/models.md",
    "docs/pytorch.md",
)
#: Written by `warpsmith report`.
GENERATED = ("docs/plots/", "docs/benchmarks.md", "docs/api.md")
#: The operator that CONTRIBUTING.md adds.
EXAMPLE = "l2_normalize"


def read(page: str) -> str:
    return (ROOT / page).read_text()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    prose = re.sub(r"```.*?```", "", read(page), flags=re.S)
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose):
        if target.startswith("https://"):
            continue
        path = (ROOT / page).parent / target
        where = path.resolve().relative_to(ROOT).as_posix()
        assert path.exists() or where.startswith(GENERATED), f"{page}: {target}"


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page: str) -> None:
    paths = re.findall(r"`((?:csrc|kernels|tests|benchmarks|docs|\.ci)/[\w./]+)`", read(page))
    for path in paths:
        if EXAMPLE not in path:
            assert (ROOT / path).exists() or path.startswith(GENERATED), f"{page}: {path}"


@pytest.mark.parametrize("page", PAGES[:2])
def test_commands_parse(page: str) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", read(page), re.S)
    lines = [line for block in blocks for line in re.split(r"\n|&&", block)]
    commands = [line.strip() for line in lines if line.strip().startswith("warpsmith ")]
    assert commands
    for command in commands:
        arguments = shlex.split(command, comments=True)[1:]
        if arguments[0] == "demo":
            demo.parser().parse_args(arguments[1:])
        else:
            cli.parser().parse_args(arguments)


def test_readme_lists_the_operators() -> None:
    rows = re.findall(r"^\| (\w+) \| (`.*?) \| ((?:\w+ ?)+) \|$", read("README.md"), re.M)
    assert {family for family, _, _ in rows} == set(catalogue.FAMILIES)
    for family, functions, dtypes in rows:
        package = importlib.import_module(f"warpsmith.{family}")
        public = {n for n in package.__all__ if not isinstance(getattr(package, n), type)}
        assert set(re.findall(r"`(\w+)`", functions)) == public, family
        ops = [op for op in catalogue.load().values() if op.family == family]
        assert set(dtypes.split()) == {dtype for op in ops for dtype in op.dtypes}, family


def test_readme_shows_the_ladders_in_order() -> None:
    shown = dict(re.findall(r"^\| \[csrc/([\w/]+)\]\(.*?\) \| (.*?) \|$", read("README.md"), re.M))
    ladders: dict[str, tuple[str, ...]] = {}
    for op in catalogue.load().values():
        rungs = tuple(rung.name for rung in op.ladder)
        folder = f"{op.family}/{op.source_dir}"
        ladders[folder] = max(rungs, ladders.get(folder, ()), key=len)
    assert shown.keys() == ladders.keys()
    for folder, rungs in ladders.items():
        assert tuple(re.findall(r"`(\w+)\.cu`", shown[folder])) == rungs, folder


def test_readme_tables_have_a_generator() -> None:
    text = read("README.md")
    assert re.findall(r"warpsmith:begin (\S+)", text)
    report.fill(text, report.Results("none", {}, None))


def test_readme_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(r"```python\n(.*?)```", read("README.md"), re.S)
    assert len(examples) == 2
    for code in examples:
        if not torch.cuda.is_available():
            code = code.replace('device="cuda"', 'device="cpu"')
            code = code.replace("fullgraph=True", 'fullgraph=True, backend="aot_eager"')
        exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out


def test_the_page_of_models_is_true() -> None:
    """Options with their defaults, modules and functions are there, and none is missing."""
    page = read("docs/models.md")
    (options,) = re.findall(r"\| option \|.*?\n\n", page, re.S)
    named = dict(re.findall(r"^\| `(\w+)` \| (on|off) \|", options, re.M))
    parameters = list(inspect.signature(warpsmith.patch).parameters.values())[1:]
    assert named == {p.name: "on" if p.default else "off" for p in parameters}
    assert set(re.findall(r"`nn\.(\w+)", page)) == set(warpsmith.nn.__all__)
    functions = {n for names in PUBLIC.values() for n in names}
    (modules,) = re.findall(r"\| in place of \|.*?\n\n", page, re.S)
    assert {n for row in modules.splitlines()[2:] for n in re.findall(r"`([a-z]\w+)`", row)} <= (
        functions
    )
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        compile(block, "docs/models.md", "exec")
    assert "accelerate" in read("pyproject.toml") or "device_map" not in page  # which needs it


def test_every_extra_is_explained() -> None:
    text = read("pyproject.toml")
    (extras,) = re.findall(r"^\[project.optional-dependencies\]\n(.*?)\n\n", text, re.M | re.S)
    for extra in re.findall(r"^(\w+) = ", extras, re.M):
        wanted = re.compile(rf"pip install [^`\n]*\[[\w,]*\b{extra}\b")
        assert any(wanted.search(read(page)) for page in PAGES), extra


def test_the_version_is_the_packages() -> None:
    assert f'\nversion = "{warpsmith.__version__}"\n' in read("pyproject.toml")


def test_the_layout_names_every_shared_header() -> None:
    (layout,) = re.findall(r"## Layout\n\n```\n(.*?)```", read("docs/architecture.md"), re.S)
    (shared,) = re.findall(r"  device/ (.*)  row/ ", layout, re.S)
    for path in (*ROOT.glob("csrc/device/*.h"), *ROOT.glob("csrc/host/*.h")):
        assert re.search(rf"\b{path.stem}\b", shared), path.name


PARTS = ("core", "spec", "spec/triton", "native", "proof", "measure", "records", "cli")


@pytest.mark.parametrize("part", PARTS)
def test_the_layout_names_every_module(part: str) -> None:
    (layout,) = re.findall(r"## Layout\n\n```\n(.*?)```", read("docs/architecture.md"), re.S)
    (said,) = re.findall(rf"^  {part}/ (.*?)^  \w", layout, re.S | re.M)
    for path in ROOT.glob(f"kernels/warpsmith/{part}/*.py"):
        assert path.stem == "__init__" or re.search(rf"\b{path.stem}\b", said), path.name


def test_the_layout_names_every_script() -> None:
    page = read("docs/architecture.md")
    (said,) = re.findall(r"^benchmarks/\*\.py (.*?)^benchmarks/", page, re.S | re.M)
    for path in ROOT.glob("benchmarks/*.py"):
        assert re.search(rf"\b{path.name}\b", said), path.name


def test_the_readme_names_what_promises_batch_invariance() -> None:
    (said,) = re.findall(r"`batch_invariant=True` \((.*?)\)", read("README.md"), re.S)
    public = (getattr(warpsmith, name) for names in PUBLIC.values() for name in names)
    promise = {f.__name__ for f in public if "batch_invariant" in _parameters(f)}
    assert set(re.findall(r"`(\w+)`", said)) == promise


def _parameters(thing: Any) -> Container[str]:
    return inspect.signature(thing).parameters if inspect.isfunction(thing) else ()


def test_the_lists_of_functions_are_named() -> None:
    code = read("csrc/elementwise/map/functions.h")
    lists = re.findall(r"^using (\w+) = std::tuple<\w", code, re.M)
    assert "TernaryFunctions" in lists
    assert all(f"`{name}`" in read("docs/architecture.md") for name in lists)


def test_the_walk_through_runs() -> None:
    """The operator and the rung that CONTRIBUTING.md adds, under a name that nobody gives one, in a
    process that has no other use.
    """
    blocks = re.findall(r"```python\n(.*?)```", read("CONTRIBUTING.md"), re.S)
    spec = next(block for block in blocks if "catalogue.add(" in block)
    condition = next(block for block in blocks if "def _needs_packs" in block)
    rung = next(block for block in blocks if block.startswith('(Rung("pack"'))
    imported = next(line for line in spec.splitlines() if "from warpsmith.core.catalogue" in line)
    naive = 'Rung("naive", "a block per row, two sweeps", unproven=True),'
    assert naive in spec
    spec = spec.replace(imported, condition).replace(naive, naive + rung.strip()[1:-1])
    call = f"""
x = torch.ones(3, 16)
assert torch.equal(l2_normalize(x), x / 4)
assert torch.equal(l2_normalize(x, variant="f32x4_pack"), x / 4)
try:
    l2_normalize(x[:, :3], variant="f32x4_pack")
except RuntimeError as error:
    assert "needs rows aligned to 16 bytes" in str(error)
else:
    raise AssertionError("{EXAMPLE} takes rows that packs do not tile")
"""
    code = (spec + call).replace(EXAMPLE, f"{EXAMPLE}_of_the_docs")
    subprocess.run([sys.executable, "-c", code], cwd=ROOT / "kernels", check=True)


def test_what_an_elementwise_function_costs_is_said_in_full() -> None:
    page = read("CONTRIBUTING.md")
    section = page.partition("## An elementwise function\n")[2].partition("\n## ")[0]
    said = {ROOT / path for path in re.findall(r"`((?:csrc|kernels)/[\w./]+)`", section)}
    folders = (ROOT / "csrc", ROOT / "kernels/warpsmith")
    kinds = (".py", ".h", ".cuh", ".cu", ".cpp")
    files = [p for folder in folders for p in folder.rglob("*.*") if p.suffix in kinds]
    # what serves models names some functions, and is not touched for another
    files = [p for p in files if not {"nn", "patching", "layers.py"} & set(p.parts)]
    assert said == {
        path for path in files if re.search(r"\b(quick_gelu|QuickGelu)\b", path.read_text())
    }
    assert len(said) == 10
    assert "| an elementwise function | a few lines in each of ten files:" in page


def test_the_reference_has_every_public_name() -> None:
    page = read("docs/api.md")
    named = set(re.findall(r"^### `warpsmith\.([\w.]+)`$", page, re.M))
    assert named >= {name for names in PUBLIC.values() for name in names}
    assert named >= {"patch", "use", "nn.RMSNorm", "patching.Report", "transformers.register"}
    assert named >= {"FallbackWarning", "catalogue.load", "philox.keep_mask", "layers.RMSNorm"}
    for name in ("rms_norm", "flash_attention"):
        at = page.index(f"### `warpsmith.{name}`")
        entry = page[at : page.index("\n### ", at)]
        arguments = set(inspect.signature(getattr(warpsmith, name)).parameters) - {"order"}
        assert arguments <= set(re.findall(r"^- `(\w+)`: \S", entry, re.M))
    assert page == api.page(), "run `warpsmith report`"
