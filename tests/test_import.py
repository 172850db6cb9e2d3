"""What `import warpsmith` costs, and when the rest is imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import warpsmith
from fresh import KERNELS
from warpsmith.core.families import FAMILIES, PUBLIC, TOOLS

#: MiB and seconds beyond `import torch`. The time is that of a busy machine, six times what an idle
#: one may take.
MOST_MEMORY, MOST_SECONDS = 30.0, 3.6
Run = Callable[[str], str]
COST = """
import resource, time, torch
def resident():
    status = open("/proc/self/status").read()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024
before, began = resident(), time.perf_counter()
import warpsmith
print(resident() - before, time.perf_counter() - began)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_importing_costs_little() -> None:
    said = subprocess.run(
        [sys.executable, "-c", COST],
        env={"PYTHONPATH": str(KERNELS), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    memory, seconds = map(float, said.split())
    assert memory <= MOST_MEMORY
    assert seconds <= MOST_SECONDS


def test_importing_imports_no_family(run_fresh: Run) -> None:
    """However many there are: no spec, no cases, nothing that measures or proves."""
    code = "import sys, warpsmith; print(*(m for m in sys.modules if m.startswith('warpsmith.')))"
    parts = {module.split(".")[1] for module in run_fresh(code).split()}
    assert parts == {"core", "native"}


def test_a_function_imports_its_family_alone(run_fresh: Run) -> None:
    code = "import sys, warpsmith; warpsmith.rms_norm; print(*sys.modules)"
    modules = run_fresh(code).split()
    assert {m for m in modules if m.removeprefix("warpsmith.") in FAMILIES} == {"warpsmith.norm"}
    assert not [m for m in modules if m.endswith("_triton")]
    assert "triton" not in modules


@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_of_functions_is_that_of_the_families(family: str) -> None:
    package = __import__(f"warpsmith.{family}", fromlist=["__all__"])
    assert PUBLIC[family] == tuple(package.__all__)
    assert all(getattr(warpsmith, name) is getattr(package, name) for name in PUBLIC[family])


def test_a_function_stays_one_when_its_family_bears_its_name(run_fresh: Run) -> None:
    run_fresh(
        "import torch, warpsmith, warpsmith.softmax.softmax\n"
        "warpsmith.softmax(torch.ones(3))\n"
        "from warpsmith.softmax import softmax\n"
        "assert softmax is warpsmith.softmax\n"
        "warpsmith.catalogue.load()\n"
        "assert softmax is warpsmith.softmax"
    )


@pytest.mark.parametrize("name", TOOLS)
def test_what_works_on_models_is_imported_when_it_is_asked_for(name: str, run_fresh: Run) -> None:
    modules = run_fresh(f"import sys, warpsmith; warpsmith.{name}; print(*sys.modules)").split()
    assert TOOLS[name] in modules
    assert not {"transformers", "diffusers", "triton"} & set(modules)
    assert not [m for m in modules if m.removeprefix("warpsmith.") in FAMILIES]
    assert name in warpsmith.__all__


def test_unknown_names_are_attribute_errors(run_fresh: Run) -> None:
    for owner in ("warpsmith", "torch.ops.warpsmith"):
        code = f"import torch, warpsmith\nassert not hasattr({owner}, 'nothing')"
        run_fresh(code)
    assert set(PUBLIC["norm"]) <= set(dir(warpsmith))


def test_operators_and_variants_are_defined_when_they_are_looked_up(run_fresh: Run) -> None:
    run_fresh(
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


def test_threads_define_a_variant_once(run_fresh: Run) -> None:
    run_fresh(
        "import threading, torch, warpsmith\n"
        "x, found = torch.randn(4, 16), []\n"
        "look = lambda: found.append(torch.ops.warpsmith.silu_f32x4_pack(x))\n"
        "threads = [threading.Thread(target=look) for _ in range(16)]\n"
        "[t.start() for t in threads], [t.join() for t in threads]\n"
        "assert len(found) == 16"
    )


def test_compiled_code_may_be_the_first_to_ask(run_fresh: Run) -> None:
    """Each in a process that has compiled before, and asked for no operator."""
    calls = (
        "warpsmith.silu(x)",
        "warpsmith.silu(x, variant='f32x4_pack')",
        "torch.ops.warpsmith.silu(x)",
        "torch.ops.warpsmith.silu_f32x4_pack(x)",
    )
    run_fresh(
        "import os, torch, warpsmith\n"
        "x = torch.randn(4, 16, requires_grad=True)\n"
        "def compiled(f, x):\n"
        "    return torch.compile(f, fullgraph=True, backend='aot_eager')(x)\n"
        # no gradient: threads of autograd do not survive a fork
        "compiled(lambda x: x + 1, x.detach())\n"
        f"for call in {calls}:\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        f = eval(f'lambda x: {call}')\n"
        "        compiled(f, x).sum().backward()\n"
        "        os._exit(0)\n"
        "    assert os.waitpid(child, 0)[1] == 0, call"
    )


def test_families_are_listed_in_their_order_whichever_came_first(run_fresh: Run) -> None:
    run_fresh(
        "import warpsmith\n"
        "warpsmith.rms_norm, warpsmith.matmul, warpsmith.add\n"
        "families = [op.family for op in warpsmith.catalogue.load().values()]\n"
        "from warpsmith.core.families import FAMILIES\n"
        "assert list(dict.fromkeys(families)) == list(FAMILIES)"
    )


def test_a_graph_names_an_operator_as_PyTorch_finds_it(run_fresh: Run) -> None:
    """Caches of compiled code are written by these names."""
    run_fresh(
        "import pickle, torch, warpsmith\n"
        "assert torch.ops.warpsmith.silu.__module__ == 'torch._ops.warpsmith'\n"
        "from torch.fx.node import _get_qualified_name\n"
        "op = torch.ops.warpsmith.silu.default\n"
        "assert _get_qualified_name(op) == 'torch.ops.warpsmith.silu.default'"
    )
