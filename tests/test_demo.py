"""The demo: its verdicts, its exit status, its tables, with and without a GPU."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import warpsmith
from warpsmith import demo
from warpsmith.cli import main as cli
from warpsmith.core import twins
from warpsmith.demo import checks, model, times
from warpsmith.spec import accuracy

CPU = ["demo", "--device", "cpu", "--tokens", "1,3"]
LIMITS = {"measured": {"copy_tbps": 4.0, "bf16_tflops": 700.0, "f32_tflops": 50.0}}


@pytest.fixture(autouse=True)
def _no_interpreter_for_others() -> None:
    """The demo switches the interpreter on where Triton is not imported yet.

    On a machine with a GPU that would reach the other tests of this process.
    """
    if torch.cuda.is_available() and twins.triton_available():
        import triton  # noqa: F401


def weights(dtype: torch.dtype = torch.bfloat16) -> model.Weights:
    return model.Weights(model.SMALL, dtype, torch.device("cpu"))


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_small_configuration_is_right(dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*CPU, "--dtype", dtype, "--train", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"]
    assert answer["rows"] == []
    found = {(check["what"], check["served"]) for check in answer["checks"]}
    for step in model.STEPS:
        if step.op is not None:
            assert (step.name, "reference") in found
            if twins.interpreting():
                assert (step.name, "Triton, interpreted") in found
    assert {what for what, _ in found} >= {
        "whole layer",
        "gradient of residual",
        "gradient of qkv_weight",
        "gradient of down_weight",
    }


def test_says_that_there_is_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(CPU) == 0
    text = capsys.readouterr().out
    assert "nothing is timed" in text
    assert "results are right" in text
    assert "WRONG" not in text


def _without_weight(
    attention: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    x = attention + residual
    return torch.nn.functional.rms_norm(x, x.shape[-1:], None, eps), x


def _old_residual(
    attention: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    x = attention + residual
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps), residual


def _outputs_exchanged(
    attention: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    x = attention + residual
    return x, torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


def _not_turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return q, k


def _turned_the_other_way(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return model._rope(q, k, cos, -sin)


def _not_causal(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    return model._attention(q, k, v, scale, False)


def _not_scaled(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    return model._attention(q, k, v, 1.0, causal)


def _heads_exchanged(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    return model._attention(q, k, v, scale, causal).flip(2)


def _swapped(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return gate * torch.nn.functional.silu(up)


def _one_element_off(x: Tensor, y: Tensor) -> Tensor:
    out = x + y
    out.view(-1)[-1] *= 1.02
    return out


def _nan(x: Tensor, y: Tensor) -> Tensor:
    return torch.full_like(x, math.nan)


@pytest.fixture
def _no_twins(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are what they are, whatever a public function does."""
    monkeypatch.setattr(demo, "_interpreter", lambda: "not of interest")


@pytest.mark.usefixtures("_no_twins")
@pytest.mark.parametrize(
    ("op", "wrong"),
    [
        ("add_rms_norm", _without_weight),
        ("add_rms_norm", _old_residual),
        ("add_rms_norm", _outputs_exchanged),
        ("rope", _not_turned),
        ("rope", _turned_the_other_way),
        ("flash_attention", _not_causal),
        ("flash_attention", _not_scaled),
        ("flash_attention", _heads_exchanged),
        ("silu_and_mul", _swapped),
        ("add", _one_element_off),
        ("add", _nan),
    ],
)
def test_a_wrong_operator_fails(
    op: str, wrong: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(warpsmith, op, wrong)
    assert cli.main(CPU) == 1
    captured = capsys.readouterr()
    assert "results are WRONG" in captured.out
    assert f"WRONG: 3 tokens, {op}, reference" in captured.err
    assert cli.main([*CPU, "--json"]) == 1
    assert not json.loads(capsys.readouterr().out)["ok"]


@pytest.mark.parametrize(
    ("op", "wrong"),
    [
        ("add_rms_norm", _without_weight),
        ("add_rms_norm", _old_residual),
        ("add_rms_norm", _outputs_exchanged),
        ("flash_attention", _not_causal),
        ("flash_attention", _not_scaled),
        ("flash_attention", _heads_exchanged),
        ("silu_and_mul", _swapped),
        ("add", _nan),
    ],
)
def test_the_bound_of_the_layer_can_fail(
    op: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = weights()
    with torch.no_grad():
        right = checks.check_layer(layer, checks.check_steps(layer, 16, twins=False)[1])
        monkeypatch.setattr(warpsmith, op, wrong)
        found = checks.check_layer(layer, checks.check_steps(layer, 16, twins=False)[1])
    assert all(check.ok for check in right)
    assert [check.ok for check in found] == [False, True, False]
    # A bound that the right result stays far below would let too much through.
    assert all(check.error > 0.1 for check in right if check.served == "PyTorch")


def test_wrong_gradients_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def detached(x: Tensor, y: Tensor) -> Tensor:
        return x.detach() + y

    monkeypatch.setattr(warpsmith, "add", detached)
    found = {check.what: check.ok for check in checks.check_training(weights(), 3)}
    assert not found["gradient of out_weight"]
    assert not found["gradient of residual"]
    assert found["gradient of down_weight"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "0"], "token counts"),
        (["--tokens", "1,many"], "token counts"),
        (["--device", "nowhere"], "unknown device"),
        (["--device", "meta"], "unknown device"),
        (["--device", "cuda:99"], "GPU"),
    ],
)
def test_bad_calls(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_steps_fit_together() -> None:
    known = set(model.INPUTS + model.TABLES)
    for step in model.STEPS:
        assert known >= set(step.inputs)
        known.update(step.outputs)
        assert step.op is None or step.op in warpsmith.core.catalogue.load()


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_steps_compute_the_formula(side: str) -> None:
    """Both sides share the wiring of `STEPS`, so only a formula beside it can find it wrong."""
    tensors = weights(torch.float32).inputs(3)
    residual, first, qkv, out, norm, gate_up, down = (t.double() for t in tensors[:7])
    half = model.HEAD_DIM // 2

    def normalised(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + model.EPS).sqrt() * weight

    def turned(x: Tensor, token: int) -> Tensor:
        angles = token * 500_000.0 ** (-torch.arange(half).double() / half)
        z = torch.complex(*x.unflatten(-1, (2, half)).unbind(-2)) * torch.polar(
            torch.ones_like(angles), angles
        )
        return torch.cat((z.real, z.imag), -1)

    rows = (normalised(residual, first) @ qkv.T).view(3, -1, model.HEAD_DIM)
    heads = rows.shape[1] // 6
    for token in range(3):
        rows[token, : 5 * heads] = turned(rows[token, : 5 * heads], token)
    attended = torch.zeros(3, 4 * heads, model.HEAD_DIM, dtype=torch.float64)
    for token in range(3):
        for head in range(4 * heads):
            keys = rows[: token + 1, 4 * heads + head // 4]
            values = rows[: token + 1, 5 * heads + head // 4]
            scores = keys @ rows[token, head] / math.sqrt(model.HEAD_DIM)
            attended[token, head] = scores.softmax(0) @ values
    x = attended.view(3, -1) @ out.T + residual
    gate, up = (normalised(x, norm) @ gate_up.T).chunk(2, -1)
    y = x + (gate * gate.sigmoid() * up) @ down.T
    with torch.no_grad():
        torch.testing.assert_close(model.layer(side)(*tensors), y.float(), rtol=1e-4, atol=1e-4)


def test_torch_compile_sees_one_graph() -> None:
    inputs = weights(torch.float32).inputs(3)
    function = model.layer("theirs")
    compiled = torch.compile(function, fullgraph=True, dynamic=False, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), function(*inputs))


def test_times_of_a_layer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fake(functions: Any, args: Any, outs: Any, seconds: float) -> dict[str, float]:
        for function in functions.values():
            found = accuracy.as_tuple(function(*args))
            assert [t.shape for t in found] == [t.shape for t in outs]
        return {name: 2.0 if name == "torch" else 1.0 for name in functions}

    monkeypatch.setattr(times, "_times", fake)
    layer = weights()
    with torch.no_grad():
        _, values = checks.check_steps(layer, 4, twins=False)
        rows = times.time_layer(values, LIMITS, 0.1, compiled=False)
    assert [row.step for row in rows] == [s.name for s in model.STEPS] + [
        times.BETWEEN,
        checks.WHOLE,
    ]
    tokens, hidden, ffn = 4, model.SMALL.hidden, model.SMALL.ffn
    kv = hidden // model.GROUP
    elements = [
        2 * tokens * hidden + hidden,
        (tokens + hidden + 2 * kv) * hidden + tokens * (hidden + 2 * kv),
        2 * tokens * (hidden + kv) + 2 * tokens * model.HEAD_DIM,  # tables in f32
        2 * tokens * hidden + 2 * tokens * kv,
        2 * tokens * hidden + hidden * hidden,
        4 * tokens * hidden + hidden,
        tokens * hidden + 2 * ffn * hidden + tokens * 2 * ffn,
        tokens * 2 * ffn + tokens * ffn,
        tokens * ffn + ffn * hidden + tokens * hidden,
        3 * tokens * hidden,
    ]
    limits = [row.limit_ms for row in rows[: len(elements)]]
    assert limits == pytest.approx([2 * n / 4e9 for n in elements])
    between, whole = rows[-2:]
    assert between.ms == 6.0
    assert between.speedup(between.torch_ms) == 2.0
    assert between.compile_ms is None
    assert whole.limit_ms == pytest.approx(sum(limits))
    assert all(row.limit_ms > 0 for row in rows)
    demo.print_times(rows)
    text = capsys.readouterr().out
    assert "2.00×" in text
    assert "PyTorch in both" in text


@pytest.mark.gpu
def test_on_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["demo", "--tokens", "1,16", "--seconds", "0.01", "--no-compile", "--train"]
    assert cli.main([*arguments, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"]
    assert {row["tokens"] for row in answer["rows"]} == {1, 16}
    assert all(row["ms"] > 0 for row in answer["rows"])
