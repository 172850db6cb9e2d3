"""`warpsmith verify` itself: it must report what is wrong with a kernel, and go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from warpsmith import catalogue, verify
from warpsmith.catalogue import Variant
from warpsmith.verify import sanitizer
from warpsmith.verify.run import Run

Function = Callable[..., Any]


def replace_kernel(monkeypatch: pytest.MonkeyPatch, broken: Function) -> None:
    monkeypatch.setattr(Run, "function", lambda self, variant=None: broken)


def failures(kind: str) -> list[verify.Result]:
    results = verify.verify(["relu"], device="cpu", kinds=(kind,), dtypes=("f32",))
    assert results
    return [result for result in results if not result.ok]


def test_the_real_operator_passes() -> None:
    assert not failures("samples")


def test_wrong_values_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_kernel(monkeypatch, lambda x: torch.relu(x) + (x > 2) * 1e-3)
    found = failures("samples")
    assert any("relu [f32 33x65]" in result.detail for result in found)


def test_swallowed_nan_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_kernel(monkeypatch, lambda x: torch.relu(x.nan_to_num(0.0)))
    assert [result for result in failures("nonfinite") if result.label == "auto f32 nan"]


def test_written_inputs_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_kernel(monkeypatch, lambda x: torch.relu(x).copy_(x.relu_()) if x.numel() else x)
    assert any(
        "wrote to the memory of argument 0" in result.detail for result in failures("samples")
    )


def test_unwritten_outputs_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets_the_tail(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        if x.dim() == 1:
            out[: x.numel() // 4 * 4] = torch.relu(x)[: x.numel() // 4 * 4]
            return out
        return out.copy_(torch.relu(x))

    replace_kernel(monkeypatch, forgets_the_tail)
    found = failures("samples")
    assert {"f32 7", "f32 63", "f32 4099"} <= {result.label for result in found}
    assert "f32 33x65" not in {result.label for result in found}


def test_wrong_layout_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_kernel(monkeypatch, lambda x: torch.relu(x).contiguous())
    assert any("strides" in result.detail for result in failures("samples"))


def test_variant_that_takes_what_the_spec_refuses_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace_kernel(monkeypatch, torch.relu)
    found = failures("refusals")
    assert found
    assert all("took a call that the spec refuses" in result.detail for result in found)


def test_refusal_must_give_the_reason_of_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(x: Tensor) -> Tensor:
        raise RuntimeError("relu: not today")

    replace_kernel(monkeypatch, refuses)
    assert all("the refusal should say" in result.detail for result in failures("refusals"))


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


# --- compute-sanitizer ----------------------------------------------------------------------------


def test_copies_for_the_sanitizer_keep_strides_offsets_and_sharing() -> None:
    base = torch.arange(40.0)
    args = (base[1:31].view(5, 6).t(), base[3:], 2.5, None)
    copies = sanitizer._copied_exactly(args, torch.device("cpu"))
    for a, b in zip(args[:2], copies[:2], strict=True):
        assert isinstance(a, Tensor)
        assert (a.stride(), a.storage_offset()) == (b.stride(), b.storage_offset())
        assert torch.equal(a, b)
    assert copies[2:] == args[2:]
    assert copies[0].untyped_storage().data_ptr() == copies[1].untyped_storage().data_ptr()


def fake_sanitizer(folder: Path, script: str) -> Path:
    path = folder / "compute-sanitizer"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_sanitizer_that_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_sanitizer(tmp_path, 'echo "$@"; echo "========= ERROR SUMMARY: 0 errors"')
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: path)
    results = verify.run_sanitizer(["relu", "gelu"])
    assert [result.label for result in results] == list(verify.SANITIZER_TOOLS)
    assert all(result.ok for result in results)
    assert all("0 errors" in result.detail for result in results)


def test_sanitizer_that_finds_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_sanitizer(tmp_path, 'echo "========= Invalid __global__ write"; exit 99')
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: path)
    (result,) = verify.run_sanitizer(["relu"], tools=("memcheck",))
    assert not result.ok
    assert result.op == "relu"
    assert "Invalid __global__ write" in result.detail


def test_missing_sanitizer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: None)
    (result,) = verify.run_sanitizer(["relu"], tools=("racecheck",))
    assert not result.ok
    assert "compute-sanitizer is neither" in result.detail


def test_variants_reach_the_operator_by_either_name() -> None:
    op = catalogue.get("relu")
    for variant in op.variants:
        assert isinstance(variant, Variant)
        assert op.variant(variant.name) is op.variant(variant.op_name)
