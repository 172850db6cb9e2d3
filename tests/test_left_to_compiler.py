"""What patched models leave to torch.compile: by which record, and that it is left."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import warpsmith
from warpsmith.core.compiling import constant
from warpsmith.core.elsewhere import Rule
from warpsmith.patching import compiled
from warpsmith.records import elsewhere as derived
from warpsmith.records.others import OTHERS
from warpsmith.records.report import Results

# --- the record -----------------------------------------------------------------------------------


def rows(**ms: tuple[float, ...]) -> list[dict[str, Any]]:
    """Rows by implementation, "_" in the place of ", "; a time for each case."""
    return [
        {"case": f"bf16 case {i}", "impl": name.replace("_", ", "), "ms": time}
        for name, times in ms.items()
        for i, time in enumerate(times)
    ]


def test_a_kind_is_left_that_compiled_models_are_slower_with() -> None:
    found = derived.left_to_compiler(
        rows(
            compiled=(1.0, 2.0),
            compiled_norms=(1.02, 2.02),
            compiled_gates=(0.99, 2.0),
            compiled_rope=(1.01, 2.0),  # faster than with norms alone
            compiled_patched=(2.0, 4.0),
            norms=(9.0, 9.0),
            eager=(1.0, 1.0),
        ),
        90,
        "2026-01-02",
    )
    told = {"kind": "norms"}
    assert found == [Rule("patch", 90, "compile", 1.015, 2, told, "2026-01-02")]


def test_not_by_a_single_case_or_by_noise() -> None:
    one = rows(compiled=(1.0,), compiled_norms=(1.2,))
    assert derived.left_to_compiler(one, 90, "") == []
    noise = rows(compiled=(1.0, 1.0), compiled_norms=(1.004, 1.004))
    assert derived.left_to_compiler(noise, 90, "") == []
    failed = [{"case": "bf16 case 0", "impl": "compiled", "error": "no"}]
    assert derived.left_to_compiler(failed + one[1:], 90, "") == []


def test_rules_of_before_stay_where_kinds_were_not_measured() -> None:
    before = [Rule("patch", 90, "compile", 1.1, 2, {"kind": "gates"}, "2026-01-02")]

    def kinds(*measured: dict[str, Any], source: str | None = None) -> list[str]:
        source = OTHERS["models"].source() if source is None else source
        record = {"source": source, "rows": list(measured)}
        results = Results("h200", {}, None, {"models": record})
        made = derived.derive(results, 90, "2026-02-03", before)
        return [rule.told["kind"] for rule in made if rule.op == "patch"]

    assert kinds() == ["gates"]
    assert kinds(*rows(compiled=(1.0, 1.0), compiled_patched=(2.0, 2.0))) == ["gates"]
    new = rows(compiled=(1.0, 1.0), compiled_norms=(1.1, 1.1))
    assert kinds(*new) == ["norms"]
    assert kinds(*new, source="of before") == ["gates"]


# --- what is done of it ---------------------------------------------------------------------------


@pytest.fixture
def leave(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has kinds left on every device."""
    torch._dynamo.reset()

    def run(*kinds: str) -> None:
        monkeypatch.setattr(compiled, "LEFT", {90: dict.fromkeys(kinds, "why")})
        monkeypatch.setattr(compiled, "_is_left", lambda kind, index: kind in kinds)

    return run


def served(model: Any, **inputs: Any) -> tuple[set[str], Any]:
    """The operators of warpsmith in the graph of a model, and its answer."""
    seen: set[str] = set()

    def backend(graph: Any, inputs: Any) -> Any:
        names = (str(node.target) for node in graph.graph.nodes)
        seen.update(n.split(".")[1] for n in names if n.startswith("warpsmith."))
        return graph

    with torch.no_grad():
        found = torch.compile(model, backend=backend, fullgraph=True)(**inputs)
    return seen, found


_LLAMA = {"rms_norm", "add_rms_norm", "rope", "silu_and_mul"}


@pytest.mark.parametrize(
    ("name", "kinds", "expected"),
    [
        ("Llama", (), _LLAMA),
        ("Llama", ("norms",), {"rope", "silu_and_mul"}),
        ("Llama", ("gates",), _LLAMA - {"silu_and_mul"}),
        ("Llama", ("rope",), _LLAMA - {"rope"}),
        ("Llama", ("norms", "gates", "rope"), set()),
        ("Qwen3", ("rope",), _LLAMA - {"rope"}),
        ("Phi3", ("gates",), _LLAMA - {"silu_and_mul"}),
        ("GPT2", ("norms",), {"gelu_tanh"}),
        ("GPT2", ("norms", "activations"), set()),
        ("ViT", ("norms", "activations"), set()),
    ],
)
def test_it_is_not_in_the_graph(
    name: str, kinds: tuple[str, ...], expected: set[str], leave: Any
) -> None:
    pytest.importorskip("transformers", minversion="5.0")
    from test_patching import inputs, make

    model = make(name)
    given = {k: x for k, x in inputs(name).items() if k != "labels"}
    with torch.no_grad():
        before = model(**given).logits
    warpsmith.patch(model)
    leave(*kinds)
    seen, found = served(model, **given)
    assert seen == expected
    torch.testing.assert_close(found.logits, before, rtol=1e-4, atol=1e-5)


def test_group_norms_and_their_activations(leave: Any) -> None:
    pytest.importorskip("diffusers")
    from test_patching_diffusers import unet

    model, given = unet()
    with torch.no_grad():
        before = model(**given).sample
    warpsmith.patch(model)
    leave("norms", "gates", "activations")
    seen, found = served(model, **given)
    assert seen == set()
    torch.testing.assert_close(found.sample, before, rtol=1e-4, atol=1e-5)


def test_modules_of_pytorch(leave: Any) -> None:
    model = torch.nn.Sequential(torch.nn.RMSNorm(8), torch.nn.LayerNorm(8), torch.nn.GELU())
    warpsmith.patch(model)
    x = torch.randn(3, 8)
    assert served(model, input=x)[0] == {"rms_norm", "layer_norm", "gelu"}
    torch._dynamo.reset()
    leave("norms", "activations")
    assert served(model, input=x)[0] == set()


def test_nothing_is_left_without_compilation(leave: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    leave("norms")
    model = torch.nn.Sequential(torch.nn.LayerNorm(8))
    warpsmith.patch(model)
    calls: list[int] = []
    plain = warpsmith.layer_norm
    monkeypatch.setattr(
        warpsmith, "layer_norm", lambda x, **named: (calls.append(1), plain(x, **named))[1]
    )
    model(torch.randn(3, 8))
    assert calls == [1]


def test_what_asks_the_gpu_is_a_constant_of_compiled_code() -> None:
    torch._dynamo.reset()
    asked: list[int] = []

    @constant
    def ask(index: int) -> int:
        asked.append(hash(object()))  # nothing that could be traced
        return index + 90

    run = torch.compile(lambda x: x * ask(0), backend="eager", fullgraph=True)
    assert run(torch.ones(1)).item() == 90
    assert run(torch.ones(1)).item() == 90
    assert len(asked) == 1


def test_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    why = {"norms": "left to torch.compile", "rope": "left, too"}
    monkeypatch.setattr(compiled, "said", lambda device: why)
    model = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 8))
    report = warpsmith.patch(model)
    assert report.compiled == {"norms": "left to torch.compile"}
    assert "norms: left to torch.compile" in str(report)
    assert warpsmith.patch(torch.nn.Linear(2, 2)).compiled == {}
    monkeypatch.undo()
    assert compiled.said(torch.device("cpu")) == {}
