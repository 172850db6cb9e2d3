"""What `import warpsmith` costs, and when the rest is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import warpsmith
from warpsmith.core.families import FAMILIES, PUBLIC, TOOLS

KERNELS = Path(warpsmith.__file__).parents[1]
#: MiB and seconds beyond `import torch`. The time is that of a busy machine, six times what an idle
#: one may take.
MOST_MEMORY, MOST_SECONDS = 30.0, 3.6
COST = """
import resource, time, torch
def resident():
    status = open("/proc/self/status").read()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024
before, began = resident(), time.perf_counter()
import warpsmith
print(resident() - before, time.perf_counter() - began)
"""


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(KERNELS), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_importing_costs_little() -> None:
    memory, seconds = map(float, run(COST).split())
    assert memory <= MOST_MEMORY
    assert seconds <= MOST_SECONDS


def test_importing_imports_no_family() -> None:
    """However many there are: no spec, no cases, nothing that measures or proves."""
    code = "import sys, warpsmith; print(*(m for m in sys.modules if m.startswith('warpsmith.')))"
    parts = {module.split(".")[1] for module in run(code).split()}
    assert parts == {"core", "native"}


def test_a_function_imports_its_family_alone() -> None:
    code = "import sys, warpsmith; warpsmith.rms_norm; print(*sys.modules)"
    modules = run(code).split()
    assert {m for m in modules if m.removeprefix("warpsmith.") in FAMILIES} == {"warpsmith.norm"}
    assert not [m for m in modules if m.endswith("_triton")]
    assert "triton" not in modules


@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_of_functions_is_that_of_the_families(family: str) -> None:
    package = __import__(f"warpsmith.{family}", fromlist=["__all__"])
    assert PUBLIC[family] == tuple(package.__all__)
    assert all(getattr(warpsmith, name) is getattr(package, name) for name in PUBLIC[family])


def test_a_function_stays_one_when_its_family_bears_its_name() -> None:
    run(
        "import torch, warpsmith, warpsmith.softmax.softmax\n"
        "warpsmith.softmax(torch.ones(3))\n"
        "from warpsmith.softmax import softmax\n"
        "assert softmax is warpsmith.softmax\n"
        "warpsmith.catalogue.load()\n"
        "assert softmax is warpsmith.softmax"
    )


@pytest.mark.parametrize("name", TOOLS)
def test_what_works_on_models_is_imported_when_it_is_asked_for(name: str) -> None:
    modules = run(f"import sys, warpsmith; warpsmith.{name}; print(*sys.modules)").split()
    assert TOOLS[name] in modules
    assert not {"transformers", "diffusers", "triton"} & set(modules)
    assert not [m for m in modules if m.removeprefix("warpsmith.") in FAMILIES]
    assert name in warpsmith.__all__


def test_unknown_names_are_attribute_errors() -> None:
    for owner in ("warpsmith", "torch.ops.warpsmith"):
        code = f"import torch, warpsmith\nassert not hasattr({owner}, 'nothing')"
        run(code)
    assert set(PUBLIC["norm"]) <= set(dir(warpsmith))


def test_operators_and_variants_are_defined_when_they_are_looked_up() -> None:
    run(
        "import torch, warpsmith\n"
        "x = torch.randn(4, 16, requires_grad=True)\n"
        "def defined(name):\n"
        "    return any(n.name == f'warpsmith::{name}' for n in torch._C._jit_get_all_schemas())\n"
        "assert not defined('silu')\n"
        "torch.ops.warpsmith.silu_f32x4_pack(x).sum().backward()\n"
        "assert defined('silu') and defined('silu_f32x4_pack') and not defined('silu_f32')\n"
        "assert torch.equal(torch.ops.warpsmith.silu_f32(x), torch.ops.warpsmith.silu(x))\n"
        "assert not defined('rms_norm')"
    )


def test_threads_define_a_variant_once() -> None:
    run(
        "import threading, torch, warpsmith\n"
        "x, found = torch.randn(4, 16), []\n"
        "look = lambda: found.append(torch.ops.warpsmith.silu_f32x4_pack(x))\n"
        "threads = [threading.Thread(target=look) for _ in range(16)]\n"
        "[t.start() for t in threads], [t.join() for t in threads]\n"
        "assert len(found) == 16"
    )


@pytest.mark.parametrize(
    "call",
    [
        "warpsmith.silu(x)",
        "warpsmith.silu(x, variant='f32x4_pack')",
        "torch.ops.warpsmith.silu(x)",
        "torch.ops.warpsmith.silu_f32x4_pack(x)",
    ],
)
def test_compiled_code_may_be_the_first_to_ask(call: str) -> None:
    run(
        "import torch, warpsmith\n"
        "x = torch.randn(4, 16, requires_grad=True)\n"
        f"f = torch.compile(lambda x: {call}, fullgraph=True, backend='aot_eager')\n"
        "f(x).sum().backward()"
    )


def test_families_are_listed_in_their_order_whichever_came_first() -> None:
    run(
        "import warpsmith\n"
        "warpsmith.rms_norm, warpsmith.matmul, warpsmith.add\n"
        "families = [op.family for op in warpsmith.catalogue.load().values()]\n"
        "from warpsmith.core.families import FAMILIES\n"
        "assert list(dict.fromkeys(families)) == list(FAMILIES)"
    )


def test_a_graph_names_an_operator_as_PyTorch_finds_it() -> None:
    """Caches of compiled code are written by these names."""
    run(
        "import pickle, torch, warpsmith\n"
        "assert torch.ops.warpsmith.silu.__module__ == 'torch._ops.warpsmith'\n"
        "from torch.fx.node import _get_qualified_name\n"
        "op = torch.ops.warpsmith.silu.default\n"
        "assert _get_qualified_name(op) == 'torch.ops.warpsmith.silu.default'"
    )
