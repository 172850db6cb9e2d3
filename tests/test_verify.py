"""`warpsmith verify` itself: it must report what is wrong with a kernel, and go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from warpsmith.cli import main as cli
from warpsmith.cli import verification
from warpsmith.core import catalogue, twins
from warpsmith.core.catalogue import Variant
from warpsmith.proof import testing, verify
from warpsmith.proof.verify import calls
from warpsmith.proof.verify.run import Run

Function = Callable[..., Any]


def replace_kernel(monkeypatch: pytest.MonkeyPatch, broken: Function) -> None:
    """In place of the operator and of its twin, whose results a CPU compares with float64."""
    monkeypatch.setattr(Run, "function", lambda self, variant=None: broken)
    monkeypatch.setattr(Run, "triton_runs", lambda self: True)
    monkeypatch.setattr(testing, "run_triton", lambda op, args: broken(*args))


def failures(kind: str) -> list[verify.Result]:
    results = verify.verify(["relu"], device="cpu", kinds=(kind,), dtypes=("f32",))
    assert results
    return [result for result in results if not result.ok]


def test_the_real_operator_passes() -> None:
    assert not failures("samples")
    if twins.triton_available() and twins.interpreting():
        assert not failures("triton")


def test_wrong_values_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_kernel(monkeypatch, lambda x: torch.relu(x) + (x > 2) * 1e-3)
    found = failures("triton")
    assert any("relu [f32 33x65, Triton]" in result.detail for result in found)


def test_swallowed_nan_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_kernel(monkeypatch, lambda x: torch.relu(x.nan_to_num(0.0)))
    found = failures("nonfinite")
    assert {"auto f32 nan", "triton f32 nan"} <= {result.label for result in found}


def test_written_inputs_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_kernel(monkeypatch, lambda x: torch.relu(x).copy_(x.relu_()) if x.numel() else x)
    for kind in ("samples", "triton"):
        details = [result.detail for result in failures(kind)]
        assert any("wrote to the memory of argument 0" in detail for detail in details)


def test_unwritten_outputs_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets_the_tail(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        if x.dim() == 1:
            out[: x.numel() // 4 * 4] = torch.relu(x)[: x.numel() // 4 * 4]
            return out
        return out.copy_(torch.relu(x))

    replace_kernel(monkeypatch, forgets_the_tail)
    found = failures("triton")
    assert {"f32 7", "f32 63", "f32 4099"} <= {result.label for result in found}
    assert "f32 33x65" not in {result.label for result in found}


def test_wrong_layout_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_kernel(monkeypatch, lambda x: torch.relu(x).contiguous())
    for kind in ("samples", "triton"):
        assert any("strides" in result.detail for result in failures(kind))


def test_a_reference_of_another_shape_or_dtype_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where laying it out as promised would broadcast it."""
    for broken in (lambda x: torch.relu(x)[:1], lambda x: torch.relu(x).double()):
        monkeypatch.setattr(testing, "yardstick", lambda op, args, f=broken: (f(*args),))
        assert any("the reference gives" in result.detail for result in failures("samples"))


def refusals(monkeypatch: pytest.MonkeyPatch, variant: Function) -> list[verify.Result]:
    """What comes of a variant that should refuse a call, as on a GPU."""
    op = catalogue.get("relu")
    run = Run(op, torch.device("cpu"), frozenset(verify.KINDS), ("f32",), [])
    monkeypatch.setattr(Run, "function", lambda self, _=None: variant)
    with run.check("refusals", "x2"):
        args = (torch.ones(3),)
        calls._expect_refusal(run, op.variant("f32x2"), args, "needs data aligned to 2 elements")
    return [result for result in run.results if not result.ok]


def test_variant_that_takes_what_the_spec_refuses_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (result,) = refusals(monkeypatch, torch.relu)
    assert "took a call that the spec refuses" in result.detail


def test_refusal_must_give_the_reason_of_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(x: Tensor) -> Tensor:
        raise RuntimeError("relu: not today")

    (result,) = refusals(monkeypatch, refuses)
    assert "the refusal should say" in result.detail

    def says_why(x: Tensor) -> Tensor:
        raise RuntimeError("relu: needs data aligned to 2 elements")

    assert not refusals(monkeypatch, says_why)


def test_bad_call_that_passes_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_kernel(monkeypatch, torch.relu)
    assert any("did not raise" in result.detail for result in failures("errors"))


def test_wrong_gradient_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_kernel(monkeypatch, lambda x: torch.relu(x) * 1.01)
    assert any("gradient of x" in result.detail for result in failures("gradients"))


def test_every_result_is_announced() -> None:
    seen: list[verify.Result] = []
    results = verify.verify(["relu"], device="cpu", kinds=("errors",), progress=seen.append)
    assert seen == results
    assert {result.op for result in results} == {"relu"}


def test_unknown_names_raise() -> None:
    with pytest.raises(ValueError, match="no_such_kind"):
        verify.verify(["relu"], device="cpu", kinds=("no_such_kind",))
    with pytest.raises(ValueError, match="no_such_operator"):
        verify.verify(["no_such_operator"], device="cpu")


def test_cuda_kinds_are_left_out_on_a_cpu() -> None:
    assert verify.verify(["relu"], device="cpu", kinds=verify.CUDA_KINDS) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("relu", "--kinds", "graph"), "nothing to check"),
        (("relu", "--sanitize", "--dtype", "f32"), "leave out --dtype, --kinds"),
        (("matmul_tf32", "--dtype", "bf16"), "matmul_tf32 has no dtype 'bf16'"),
    ],
)
def test_what_checks_nothing_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert cli.main(["verify", *arguments, "--device", "cpu"]) == 2
    assert message in capsys.readouterr().err


def test_variants_reach_the_operator_by_either_name() -> None:
    op = catalogue.get("relu")
    for variant in op.variants:
        assert isinstance(variant, Variant)
        assert op.variant(variant.name) is op.variant(variant.op_name)


@pytest.mark.parametrize(("device", "index"), [("cuda", 0), ("cuda:1", 1)])
def test_the_command_verifies_on_the_gpu_that_it_records(
    device: str, index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[Any] = []
    monkeypatch.setattr(verification, "need_gpu", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "set_device", lambda where: chosen.append(int(where)))
    found = [verify.Result("relu", "accuracy", "sample", True, "")]
    monkeypatch.setattr(verify, "verify", lambda *args, **options: found)
    arguments = ("verify", "relu", "--device", device, "--jobs", "1", "--out", str(tmp_path))
    assert cli.main(arguments) == 0
    assert chosen == [index]
    assert "relu" in json.loads((tmp_path / "verify.json").read_text())["ops"]
