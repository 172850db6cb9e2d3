"""`warpsmith which`, and the calls that it makes of shapes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from test_command_line import run
from warpsmith.cli import calls
from warpsmith.core import catalogue

#: Shapes of the first tensors of a call, where a matrix of 24 rows of 64 does not describe it.
SHAPES = {
    "gemv_complex": ("24x64x2",),
    "dot": ("64",),
    "dropout_backward": ("24x64", "48"),
    "glu_backward": ("24x32", "24x64"),
    **dict.fromkeys(
        (
            "flash_attention",
            "flash_attention_backward",
            "attention_with_kv_cache",
            "store_kv",
            "rope_store_kv",
            "rope_store_kv_inplace",
            "merge_attention_states",
        ),
        ("1x24x4x64",),
    ),
    **dict.fromkeys(("flash_attention_varlen", "flash_attention_varlen_backward"), ("24x4x64",)),
    **dict.fromkeys(
        ("rope", "rope_inplace", "qk_norm_rope", "qk_norm_rope_backward"), ("1x24x4x64",)
    ),
    "fused_qkv": ("1x512x64", "256x64"),
    "gated_linear": ("512x64", "128x64", "128x64"),
    "unpack_qkv": ("1x24x192",),
    "pack_qkv": ("1x1x24x64",),
    "nms_ordered": ("24x4",),
    **dict.fromkeys(("conv1d_group_norm_forward", "conv1d_backward"), ("2x24x64",)),
    "quantized_linear": ("24x64", "1x1x512", "2x64"),
    **dict.fromkeys(("upsample_nearest2d_forward", "upsample_nearest2d_backward"), ("1x24x8x8",)),
}
#: Functions that leave few rows to other operators.
IN_PARTS = ("fused_qkv", "gated_linear")


@pytest.mark.parametrize("name", list(catalogue.load()))
def test_which_answers_for_every_operator(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = [f"--shape={shape}" for shape in SHAPES.get(name, ("24x64",))]
    dtype = ("--dtype", "bf16") if name in IN_PARTS else ()
    status, out, err = run(capsys, "which", name, *shapes, *dtype, "--sm", "90", "--json")
    assert status == 0, err
    answer = json.loads(out)
    assert answer["op"] == name
    verified = any(not rung.unproven for rung in catalogue.get(name).ladder)
    assert answer["implementation"] == ("cuda" if verified else "triton")
    assert sum(variant["chosen"] for variant in answer["variants"]) == verified


@pytest.mark.parametrize("name", IN_PARTS)
def test_which_answers_for_what_a_function_calls(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = [f"--shape={shape.replace('512', '16')}" for shape in SHAPES[name]]
    status, out, _ = run(capsys, "which", name, *shapes, "--dtype", "bf16", "--sm", "90", "--json")
    assert status == 0
    answer = json.loads(out)
    assert (answer["op"], answer["implementation"]) == (name, "composite")
    assert "linear" in {part["op"] for part in answer["parts"]}


@pytest.mark.parametrize("dtype", ["i8", "i32"])
@pytest.mark.parametrize(
    "name", ["relu", "add", "softmax", "scaled_masked_softmax", "cross_entropy_forward"]
)
def test_which_names_the_dtypes_of_an_operator(
    name: str, dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(capsys, "which", name, "--shape", "24x64", "--dtype", dtype)
    assert status == 2
    dtypes = ", ".join(catalogue.get(name).dtypes)
    assert err.endswith(f"got {catalogue.DTYPES[dtype]}; {name} has kernels for {dtypes}\n")


def test_which_answers_where_the_reference_takes_the_dtype(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("--shape", "24x64", "--dtype", "i32", "--sm", "90", "--json")
    status, out, _ = run(capsys, "which", "sum", *arguments)
    assert status == 0
    assert json.loads(out)["serves"] == "reference"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shape", "4x8", "--shape", "9x8", "--dtype", "i8"), "to be a floating-point tensor"),
        (("--shape", "4x8", "--shape", "9x7"), "expected weight to have shape (v, 8), got (9, 7)"),
    ],
)
def test_a_composite_says_what_it_does_not_take(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(capsys, "which", "fused_linear_cross_entropy", *arguments)
    assert status == 2
    assert message in err


@pytest.mark.parametrize(
    ("name", "op"), [("softmax", "softmax"), ("gemm", "matmul"), ("swish", "silu")]
)
def test_which_prefers_the_name(name: str, op: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "which", name, "--shape", "64x64", "--sm", "90", "--json")
    assert json.loads(out)["op"] == op


def test_which_takes_arguments_that_are_no_tensors(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--shape", "8x320x16x16", "--set", "groups=32", "--set", "activation=silu")
    status, out, _ = run(capsys, "which", "group_norm", *arguments, "--sm", "90")
    assert status == 0
    assert "group_norm(8x320x16x16, groups=32, activation=silu) on sm_90" in out


@pytest.mark.parametrize(
    ("name", "shape", "setting", "said"),
    [
        ("flash_attention", "1x24x4x64", "window=63,0", "window_left=63, window_right=0"),
        ("attention_with_kv_cache", "1x24x4x64", "window=9,-1", "window_left=9"),
        ("transpose", "3x4x5", "dim0=0", "permute(3x4x5"),
        ("quantize_int8", "128x128", "granularity=tensor", "dtype=torch.int8"),
    ],
)
def test_which_takes_arguments_of_the_function(
    name: str, shape: str, setting: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ("which", name, "--shape", shape, "--set", setting, "--sm", "90")
    status, out, err = run(capsys, *call)
    assert status == 0, err
    assert said in out


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("window=3", "expected window to be two numbers of keys, before and past, got (3,)"),
        ("window=x", "cannot read 'x' as window of flash_attention"),
        ("windows=3", "flash_attention has no argument 'windows' to set; it has: scale, causal"),
    ],
)
def test_which_says_what_a_function_does_not_take(
    setting: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ("which", "flash_attention", "--shape", "1x24x4x64", "--set", setting, "--sm", "90")
    status, _, err = run(capsys, *call)
    assert status == 2
    assert said in err


@pytest.mark.parametrize(
    ("name", "shapes", "dtype", "wanted"),
    [
        (
            "gemv_scaled",
            [(64, 128)],
            "e4m3",
            [("e4m3", 64, 128), ("bf16", 128), ("f32", 64)],
        ),
        ("matmul", [(8, 64, 128)], "f16", [("f16", 8, 64, 128), ("f16", 8, 128, 128)]),
        ("matmul", [(64, 128), (128, 9)], "f16", [("f16", 64, 128), ("f16", 128, 9)]),
        ("linear", [(64, 128), (9, 128), (9,)], "f32", [("f32", 64, 128), ("f32", 9, 128)]),
        ("softmax", [(5, 6, 7)], "bf16", [("bf16", 5, 6, 7)]),
        ("histogram", [(24, 64)], "f32", [("f32", 24, 64), ("f32", 257)]),
        ("add_noise", [(4, 64)], "f32", [("f32", 4, 64), ("f32", 4, 64)]),
    ],
)
def test_arguments_follow_the_samples(
    name: str, shapes: list[tuple[int, ...]], dtype: str, wanted: list[Any]
) -> None:
    values = calls.arguments_for(catalogue.get(name), shapes, dtype, "meta")
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    found = [(catalogue.DTYPE_NAMES[v.dtype], *v.shape) for v in tensors]
    assert found[: len(wanted)] == wanted
