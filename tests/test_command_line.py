"""The command line: all that needs no GPU."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

import recorded
import warpsmith
from warpsmith.cli import arguments
from warpsmith.cli import main as cli
from warpsmith.core import catalogue
from warpsmith.measure import bench, limits
from warpsmith.native import console, inspection, toolchain
from warpsmith.native.code_lock import Lock
from warpsmith.proof.verify import Result
from warpsmith.records import freshness, report


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "doctor", "--json")
    facts = json.loads(out)
    assert status == 0
    assert [f["family"] for f in facts["families"]] == list(catalogue.FAMILIES)
    assert {"GPU", "PyTorch", "nvcc", "autograd", "Triton"} <= {m["what"] for m in facts["machine"]}
    status, out, _ = run(capsys, "doctor")
    assert status == 0
    assert "what serves it" in out


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "list", "--json")
    names = [*catalogue.load(), *catalogue.composites()]
    assert [entry["name"] for entry in json.loads(out)] == names
    status, out, _ = run(capsys, "list", "relu")
    assert status == 0
    assert all(rung.name in out for rung in catalogue.get("relu").ladder)


def test_composites_are_listed_with_what_serves_them(capsys: pytest.CaptureFixture[str]) -> None:
    name = "fused_linear_cross_entropy"
    _, out, _ = run(capsys, "list")
    assert name in out
    status, out, _ = run(capsys, "list", name)
    assert status == 0
    assert "cross_entropy_with_grad" in out
    assert "torch.mm" in out
    shapes = ("--shape", "8192x4096", "--shape", "128256x4096")
    call = ("which", name, *shapes, "--dtype", "bf16", "--sm", "90")
    _, out, _ = run(capsys, *call, "--json")
    first, second = json.loads(out)["parts"]
    assert first["serves"].startswith("cross_entropy_with_grad_bf16")
    assert second["serves"].startswith("cross_entropy_forward_bf16")
    assert "4 chunks of 2048 x 128256 logits" in first["purpose"]
    status, out, _ = run(capsys, *call)
    assert status == 0
    assert first["serves"] in out
    status, _, err = run(capsys, "which", name, "--shape", "3x4")
    assert status == 2
    assert "wants the shapes of x and weight" in err
    x, weight = torch.empty(300, 8, device="meta"), torch.empty(33, 8, device="meta")
    choice = warpsmith.which(name, x, weight, sm=90)
    assert choice.implementation == "composite"
    assert "2 chunks of 256 x 33 logits" in choice.reason


@pytest.mark.parametrize("command", ["inspect", "bench", "verify", "build"])
def test_a_composite_names_its_parts(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, command, "relu_squared")
    assert status == 2
    assert "'relu_squared' is a composite; its parts are relu, mul" in err


@pytest.mark.parametrize(
    ("function", "op"),
    [
        ("quantize_fp8", "quantize"),
        ("quantize_int8", "quantize"),
        ("nms_fixed", "nms_ordered"),
        ("timestep_embedding", "timestep_rows"),
    ],
)
def test_a_function_is_listed_by_the_operator_that_it_calls(
    function: str, op: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(capsys, "list", function, "--json")
    (entry,) = json.loads(out)
    assert (status, entry["name"]) == (0, op)
    assert function in entry["functions"]
    _, out, _ = run(capsys, "list", function)
    assert all(variant.name in out for variant in catalogue.get(op).variants)


def test_which(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(
        capsys,
        "which",
        "rms_norm",
        "--shape",
        "8192x4096",
        "--dtype",
        "bf16",
        "--sm",
        "90",
        "--json",
    )
    answer = json.loads(out)
    assert status == 0
    assert answer["implementation"] == "cuda"
    assert [v["variant"] for v in answer["variants"] if v["chosen"]] == [
        answer["serves"].removeprefix("rms_norm_")
    ]
    status, out, _ = run(capsys, "which", "silu_and_mul", "--shape", "16x64", "--sm", "80")
    assert status == 0
    assert "silu_and_mul(16x64) on sm_80" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("which", "norm", "--shape", "3"), "'norm' is several operators: "),
        (("which", "relu", "--shape", "3", "--set", "a=1"), "relu has no argument 'a' to set"),
        (("which", "elu", "--shape", "3", "--set", "alpha=x"), "cannot read 'x' as alpha of elu"),
        (("which", "rellu", "--shape", "3"), "unknown operator 'rellu'; did you mean relu"),
        (("list", "zzzzzz"), "unknown operator 'zzzzzz'; `warpsmith list` shows them all"),
        (("which", "relu", "--shape", "3y"), "cannot read the shape '3y'"),
        (("which", "relu", "--shape", "3", "--dtype", "f17"), "unknown dtype 'f17'"),
        (("which", "relu", "--shape", "3", "--shape", "4"), "relu takes 1 tensors, got 2 shapes"),
        (("build", "nonsense"), "unknown operator 'nonsense'"),
        (("build", "loss", "--arch", "xyz"), "'xyz' is no architecture; write 80, 89 or 90a"),
        (("build", "--arch", "80", "--arch", "70"), "sm_70 is too old: the kernels need sm_80"),
        (("inspect", "relu", "--arch", "sm_90"), "'sm_90' is no architecture"),
        (("verify", "relu", "--device", "tpu"), "unknown device 'tpu'; cuda, cuda:1 or cpu"),
        (("verify", "relu", "--device", "meta"), "unknown device 'meta'; cuda, cuda:1 or cpu"),
        (("build", "loss", "--lock"), "--lock enters what --report finds: give both"),
        (("report", "--libraries", "."), "--libraries are checked: give --check, too"),
        (("report", "--check", "--libraries", "docs"), "there are no libraries in docs"),
        (("verify", "relu", "--device", "cpu", "--changed"), "--full are of what records hold"),
        (("verify", "relu", "--device", "cpu", "--as", "80"), "--as 80 is of kernels: it needs a"),
        (("verify", "--device", "cpu", "--random", "0"), "expected a number of random calls, got"),
        (("verify", "--device", "cpu", "--calls", "none"), "cannot read the calls of none: File"),
        (("list", "noise_table"), "'noise_table' has no kernels of its own, and no variants"),
        (("bench", "fused_mpl"), "unknown operator 'fused_mpl'; did you mean fused_mlp"),
        (("bench", "relu", "--peers", "torhc"), "unknown peer 'torhc'; known: torch, compile,"),
        (("bench", "relu", "--cases", "xyz"), "relu has no case 'xyz'; there are 'f32 "),
        (("bench", "relu", "--dtype", "i8"), "relu has no dtype 'i8'; known: f32, f16, bf16"),
    ],
)
def test_usage_errors(
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(toolchain.AS, "")  # which `--as` sets, for this test alone
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
@pytest.mark.parametrize("command", ["bench", "verify"])
def test_no_gpu_is_one_line(capsys: pytest.CaptureFixture[str], command: str) -> None:
    status, _, err = run(capsys, command, "relu")
    assert status == 2
    assert err.startswith(f"warpsmith: {command} needs a CUDA GPU, and PyTorch sees none")
    assert err.count("\n") == 1
    assert ("--device cpu" in err) == (command == "verify")


def test_a_gpu_that_is_not_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert arguments.parse_device("cuda:1") == torch.device("cuda:1")
    status, _, err = run(capsys, "verify", "relu", "--device", "cuda:2")
    assert status == 2
    assert err == "warpsmith: there is no cuda:2: PyTorch sees 2 GPUs\n"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Standard error, where it is a terminal; standard output is none."""
    monkeypatch.setenv("TERM", "xterm")
    shown = io.StringIO()
    monkeypatch.setattr(console, "err", Console(file=shown, force_terminal=True, width=100))
    return shown


def test_code_is_read_beside_a_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: io.StringIO
) -> None:
    kernel = inspection.Kernel("relu_kernel", "90a", 8, 0, 0, 0)
    library = Path("warpsmith_elementwise.so")
    monkeypatch.setattr(inspection, "library_for", lambda family, arch: library)
    monkeypatch.setattr(inspection, "sass", lambda op, arch: iter([(kernel, "0000  EXIT")]))
    monkeypatch.setattr(inspection, "ptx", lambda op, arch: iter([(Path("naive.cu"), "ret;")]))
    status, out, _ = run(capsys, "inspect", "relu", "--sass")
    assert (status, out) == (0, "// relu_kernel, sm_90a\n0000  EXIT\n\n")
    assert "disassembling" in terminal.getvalue()
    status, out, _ = run(capsys, "inspect", "relu", "--ptx")
    assert (status, out) == (0, "// naive.cu\nret;\n\n")
    status, out, _ = run(capsys, "inspect", "relu", "--ptx", "--json")
    assert (status, json.loads(out)) == (0, [{"title": "naive.cu", "code": "ret;"}])
    assert f"0/{len(catalogue.get('relu').ladder)}" in terminal.getvalue()


def test_limits_are_measured_beside_a_bar(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    terminal: io.StringIO,
    tmp_path: Path,
) -> None:
    measured = {"copy_tbps": 4.0}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(limits, "ensure", lambda folder, again: {"measured": measured})
    status, out, _ = run(capsys, "bench", "--limits", "--out", str(tmp_path))
    assert (status, json.loads(out)) == (0, measured)
    assert "measuring the limits of this GPU" in terminal.getvalue()
    monkeypatch.setattr(bench, "bench", lambda ops, plan, **_: [])
    arguments = ("bench", "relu", "--limits", "--json", "--out", str(tmp_path))
    status, out, _ = run(capsys, *arguments)
    assert (status, json.loads(out)) == (0, {})


def test_records_are_checked_beside_a_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: io.StringIO
) -> None:
    monkeypatch.setattr(freshness, "stale", lambda results: ["stale"])
    monkeypatch.setattr(freshness, "unlocked", lambda lock: [])
    monkeypatch.setattr(freshness, "unverified", lambda root, gpu, lock: ["unverified"])
    monkeypatch.setattr(freshness, "outdated_pages", lambda pages, results: ["outdated"])
    monkeypatch.setattr(report, "benchmarks_page", lambda results, plots, docs: "other")
    status, out, _ = run(capsys, "report", "--check", "--json")
    assert status == 0
    assert json.loads(out)["problems"] == []
    assert json.loads(out)["warnings"] == [
        "stale",
        "unverified",
        "outdated",
        "docs/benchmarks.md differs from the records; run `warpsmith report`",
    ]
    assert "checking the records" in terminal.getvalue()


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"warpsmith {warpsmith.__version__}\n"


def test_report_check_never_fails_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, _ = run(capsys, "report", "--check")
    assert status == 0


def test_verification_record_keeps_other_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lock, "load", lambda: recorded.Everything())

    def outcome(op: str, ok: bool) -> Result:
        return Result(op, "samples", "bf16 (7,)", ok, "" if ok else "off by one", 0.5)

    path = tmp_path / "verify.json"
    freshness.record_verification(path, [outcome("relu", True), outcome("relu", False)])
    freshness.record_verification(path, [outcome("silu", True)])
    ops = json.loads(path.read_text())["ops"]
    assert ops["relu"]["checks"] == 2
    assert ops["relu"]["failed"] == ["samples bf16 (7,): off by one"]
    assert ops["silu"]["kinds"] == {"samples": 1}
    assert ops["relu"]["seconds"] == {"samples": 1.0}
    silu = catalogue.get("silu")
    assert ops["silu"]["rungs"] == recorded.entry(silu)["rungs"]
    assert ops["silu"]["python"] == "now"


def test_the_script_is_the_command() -> None:
    script = Path(__file__).resolve().parents[1] / "benchmarks" / "run.py"
    done = subprocess.run(
        [sys.executable, str(script), "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    assert all(
        flag in done.stdout
        for flag in ("--variants", "--dtype", "--cases", "--peers", "--sustained")
    )
