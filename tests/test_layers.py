"""Which part of the package may import which: everything downwards, nothing in a circle."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import warpsmith
from warpsmith.core.families import FAMILIES

ROOT = Path(warpsmith.__file__).parent
CSRC = ROOT.parents[1] / "csrc"
#: Infrastructure, from the top; a part imports itself and what stands to the right of it.
LAYERS = ("cli", "records", "measure", "proof", "native", "core")
#: What works on models, from the top; it imports families.
ON_MODELS = ("patching", "nn")
#: A command that shows all of it.
DEMO = "demo"
#: What the specs are written in, beside the infrastructure; it imports the core.
VOCABULARY = "spec"
#: Parts below that a file may import all the same: the first call of an operator finds its library,
#: and the first that is differentiated the one that records it.
UPWARDS = {
    "core/dispatch.py": {"native"},
    "core/loading.py": {"native"},
    "core/recorded_calls.py": {"native"},
    "cli/main.py": {DEMO},
    "records/api.py": {"nn"},  # whose reference it writes
}


def allowed(part: str) -> set[str]:
    """The parts that a file of `part` may import."""
    if part in FAMILIES:
        return {part, VOCABULARY, "core"}
    if part == VOCABULARY:
        return {VOCABULARY, "core"}
    if part == DEMO:
        return {DEMO, *LAYERS, *ON_MODELS, VOCABULARY, *FAMILIES}
    if part in ON_MODELS:
        return {*ON_MODELS[ON_MODELS.index(part) :], *FAMILIES, VOCABULARY, "core"}
    below = set(LAYERS[LAYERS.index(part) :])
    return below if below <= {"native", "core"} else below | {VOCABULARY}


def imported(path: Path) -> set[str]:
    """The parts of the package that a file imports, at its top or later."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        parts = [name.split(".") for name in names]
        found |= {p[1] for p in parts if p[0] == "warpsmith" and len(p) > 1}
    return found & allowed(DEMO)


@pytest.mark.parametrize("part", sorted(allowed(DEMO)))
def test_imports_go_downwards(part: str) -> None:
    paths = sorted((ROOT / part).rglob("*.py"))
    assert paths
    for path in paths:
        name = path.relative_to(ROOT).as_posix()
        upwards = imported(path) - allowed(part)
        assert upwards == UPWARDS.get(name, set()), f"{name} imports {sorted(upwards)}"


@pytest.mark.parametrize("family", FAMILIES)
def test_no_family_includes_headers_of_another(family: str) -> None:
    others = tuple(f'#include "{other}/' for other in FAMILIES if other != family)
    for path in (CSRC / family).rglob("*"):
        if path.suffix in (".h", ".cuh", ".cu", ".cpp"):
            lines = [line for line in path.read_text().splitlines() if line.startswith(others)]
            assert not lines, f"{path.relative_to(CSRC)}: {lines}"
