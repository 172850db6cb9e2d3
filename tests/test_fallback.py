"""Where the CUDA kernels are not to be had, the call is served all the same and the reason said; a
variant that cannot take a call says what it was given.
"""

from __future__ import annotations

import shutil
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import warpsmith  # noqa: F401  (registers the operators)
from warpsmith.core import catalogue, dispatch, twins
from warpsmith.native import finding

WORDS = 'relu.cu(7): error: expected a ";"'


@pytest.fixture(autouse=True)
def without_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU for which the family did not compile."""
    monkeypatch.setattr(dispatch, "load", lambda library: False)
    monkeypatch.setattr(finding, "why_not", lambda family: WORDS)
    caches = dispatch._warn_once, twins.why_no_triton
    for known in caches:
        known.cache_clear()
    yield
    for known in caches:
        known.cache_clear()


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, overload: str) -> Callable[..., Any]:
    """The stand-in for the CUDA implementation, which takes CPU tensors for CUDA tensors."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    return dispatch._until_loaded(catalogue.get("relu"), overload)


def test_the_call_is_served_and_the_reason_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "why_no_triton", lambda: "Triton is not installed")
    relu = on_a_gpu(monkeypatch, "default")
    x = torch.tensor([-1.0, 2.0, float("nan")])
    with pytest.warns(dispatch.FallbackWarning, match="expected a"):
        out = relu(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        relu(x)
    torch.testing.assert_close(out, torch.relu(x), equal_nan=True)


def test_a_variant_raises_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    relu = on_a_gpu(monkeypatch, "rung")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match=r"relu: the variant 'pack' needs.*expected a"):
            relu(torch.ones(3), rung="pack", accumulator="")


def test_no_twin_without_a_c_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(twins, "interpreting", lambda: False)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    (tmp_path / "Python.h").touch()
    op, args = catalogue.get("relu"), (torch.ones(3),)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/gcc" if name == "gcc" else None)
    assert dispatch.fallback_choice(op, args, "no library").implementation == "triton"
    twins.why_no_triton.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    choice = dispatch.fallback_choice(op, args, "no library")
    assert choice.implementation == "reference"
    assert "no library; Triton finds no C compiler" in choice.reason
    twins.why_no_triton.cache_clear()
    monkeypatch.setenv("CC", "/opt/cc")
    assert dispatch.fallback_choice(op, args, "no library").implementation == "triton"
    twins.why_no_triton.cache_clear()
    (tmp_path / "Python.h").unlink()
    choice = dispatch.fallback_choice(op, args, "no library")
    assert choice.implementation == "reference"
    assert "no headers of Python" in choice.reason


@pytest.mark.parametrize(
    ("variant", "x", "told"),
    [
        ("relu_f16x8_pack", torch.ones(8), "takes f16, got f32; got x torch.float32 (8,)"),
        (
            "relu_f32x4_pack",
            torch.ones(9)[1:],
            r"needs data aligned to 16 bytes; got x torch.float32 \(8,\) .*aligned to 4 bytes",
        ),
        (
            "relu_f32x4_pack",
            torch.ones(8, 8)[:, ::2],
            r"got x torch.float32 \(8, 4\) of strides \(8, 2\)",
        ),
    ],
)
def test_a_refusal_says_what_it_was_given(variant: str, x: torch.Tensor, told: str) -> None:
    told = told if "\\" in told else told.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(RuntimeError, match=f"^{variant}: .*{told}"):
        getattr(torch.ops.warpsmith, variant)(x)
