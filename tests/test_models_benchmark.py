"""`benchmarks/models.py`: what it compares computes the same, and what it makes of it."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from warpsmith.core import json_files
from warpsmith.measure import kernel_kinds
from warpsmith.measure.timing import Timing
from warpsmith.records import report
from warpsmith.records.report import Results

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
SMALL: dict[str, dict[str, Any]] = {
    "Llama": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    },
    "GPT2": {"n_embd": 32, "n_head": 4, "n_positions": 64, "vocab_size": 61},
    "Bert": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "vocab_size": 61,
    },
    "ViT": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "image_size": 16,
        "patch_size": 4,
    },
    "UNet2DConditionModel": {
        "sample_size": 8,
        "block_out_channels": (16, 32),
        "cross_attention_dim": 16,
        "norm_num_groups": 8,
    },
}
SMALL["Qwen3"] = {**SMALL["Llama"], "head_dim": 8}


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("transformers", minversion="5.0")
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("models")


def runner(models: Any, kind: str, phase: str) -> Any:
    model = next(m for m in models.MODELS if m.kind == kind)
    pytest.importorskip(model.home)
    published = next(p for p in model.phases if p.name == phase)
    tokens = 1 if phase == "decode" else 11 if published.tokens else 0
    of = models.Phase(phase, 2, tokens, 9 if phase == "decode" else 0)
    return models.Runner.make(model, of, torch.bfloat16, "cpu", **SMALL[kind])


CASES = [
    *((kind, phase) for kind in ("Llama", "Qwen3") for phase in ("prefill", "training", "decode")),
    ("GPT2", "prefill"),
    ("GPT2", "training"),
    *(
        (kind, p)
        for kind in ("Bert", "ViT", "UNet2DConditionModel")
        for p in ("forward", "training")
    ),
]


#: What there is of every model.
OURS = ["eager", "patched", "patched, linear"]


@pytest.mark.parametrize(("kind", "phase"), CASES)
def test_like_is_compared_with_like(kind: str, phase: str, models: Any) -> None:
    made = runner(models, kind, phase)
    made.to(torch.float32)
    exact = made.run().detach()
    made.to(torch.bfloat16)
    found = models.implementations(made, compiled=False, kinds=True, liger=False)
    assert list(found)[:3] == OURS
    assert len(found) > 3
    for name, run in found.items():
        first = run().detach()
        assert first.shape == exact.shape
        assert 0 < models.relative_error(first, exact) < 0.1, name
        assert torch.equal(run().detach(), first), name  # a call leaves the cache as it was
    if kind in ("Llama", "Qwen3"):  # whose roundings are fewer
        assert not torch.equal(found["patched"](), found["eager"]())


def test_kinds_are_those_that_a_model_has(models: Any) -> None:
    def kinds(kind: str, phase: str) -> set[str]:
        made = runner(models, kind, phase)
        return set(models.implementations(made, False, True, False)) - set(OURS)

    assert kinds("Llama", "prefill") == {"norms", "gates", "rope"}
    assert kinds("ViT", "forward") == {"norms", "activations"}


def test_compiled_models_are_compared_too(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **named: plain(f, backend="eager", **named))
    made = runner(models, "Llama", "training")
    found = models.implementations(made, compiled=True, kinds=False, liger=False)
    assert list(found) == [*OURS, "compiled", "compiled, patched"]
    for name in ("compiled", "compiled, patched"):
        expected = found[name.replace("compiled, ", "").replace("compiled", "eager")]()
        torch.testing.assert_close(found[name](), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("phase", ["prefill", "training", "decode"])
def test_attention_alone(phase: str, models: Any) -> None:
    made = runner(models, "Llama", phase)
    made.to(torch.float32)
    expected = made.run()
    found = models.attention_alone(made)
    assert list(found) == ["flash", "auto", "cudnn", "sdpa"]
    for name in ("auto", "sdpa", "auto"):
        torch.testing.assert_close(found[name](), expected, rtol=1e-4, atol=1e-5)
    assert made.model.config._attn_implementation == "warpsmith"


def test_liger_changes_the_module_only_while_it_is_called(
    models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.llama import modeling_llama

    made, calls = runner(models, "Llama", "prefill"), []
    plain = modeling_llama.apply_rotary_pos_emb

    def rope(*args: Any, **named: Any) -> Any:
        calls.append(1)
        return plain(*args, **named)

    def apply(*, model: Any, **options: Any) -> None:
        modeling_llama.apply_rotary_pos_emb = rope

    functions = types.SimpleNamespace(apply_liger_kernel_to_llama=apply)
    monkeypatch.setattr(models, "_liger_functions", lambda: functions)
    monkeypatch.setattr(models, "find_spec", lambda name: True)
    found = models.implementations(made, compiled=False)
    assert list(found) == [*OURS, "liger"]
    expected = found["eager"]()
    assert torch.equal(found["liger"](), expected)
    assert len(calls) == 2
    assert modeling_llama.apply_rotary_pos_emb is plain
    found["eager"]()
    assert len(calls) == 2


def test_liger_is_given_a_gradient_of_its_own(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its norms write over the one that they are given."""
    made = runner(models, "Llama", "training")
    assert made.grad is not None
    before = made.grad.clone()
    functions = types.SimpleNamespace(apply_liger_kernel_to_llama=lambda **named: None)
    monkeypatch.setattr(models, "_liger_functions", lambda: functions)

    def run(self: Any, call: Any = None) -> torch.Tensor:
        return self.grad.zero_()

    monkeypatch.setattr(models.Runner, "run", run)
    models._liger(made)()
    assert torch.equal(made.grad, before)


def test_what_is_far_from_f32_gets_no_number(models: Any) -> None:
    exact = torch.ones(4)

    def fail() -> torch.Tensor:
        raise ValueError("broken\nat length")

    calls = {
        "eager": lambda: exact + 0.01,
        "near": lambda: exact + 0.0109,
        "far": lambda: exact + 0.012,
        "nan": lambda: exact * torch.nan,
        "fails": fail,
    }
    rows: dict[str, Any] = {name: {} for name in calls}
    assert set(dict(models.judged(calls, exact, 1.1, rows))) == {"eager", "near"}
    assert rows["fails"]["error"] == "ValueError: broken"
    assert "allowed" in rows["far"]["error"]
    assert "allowed" in rows["nan"]["error"]
    assert rows["near"]["of_eagers_error"] == pytest.approx(1.09, abs=1e-3)


def test_rows_that_were_not_measured_stay(models: Any) -> None:
    case = "bf16 Llama-3-8B prefill 4x2048"
    later = "bf16 ViT-B forward 64"
    old = [{"case": later, "impl": "eager"}, {"case": case, "impl": "eager", "ms": 1.0}]
    new = [{"case": case, "impl": "eager", "ms": 2.0}, {"case": case, "impl": "patched"}]
    assert models.merged(old, new) == [*new, old[0]]


def small(model: Any, models: Any) -> Any:
    phases = tuple(
        models.Phase(p.name, 2, min(p.tokens, 11), min(p.cached, 9), p.graph) for p in model.phases
    )
    sizes = model.sizes | SMALL[model.kind]
    return dataclasses.replace(model, sizes=sizes, phases=tuple(dict.fromkeys(phases)))


@pytest.fixture
def on_a_cpu(models: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Small models without a GPU, whose times are given."""
    times: dict[str, float] = {}
    made = tuple(small(m, models) for m in models.MODELS if m.kind in ("Llama", "Bert"))
    monkeypatch.setattr(models, "MODELS", made)
    monkeypatch.setattr(models, "DEVICE", "cpu")
    monkeypatch.setattr(models.limits, "ensure", lambda folder: {"measured": {}})
    monkeypatch.setattr(models.limits, "floor_ms", lambda *args: 0.0)
    monkeypatch.setattr(models, "_most_memory", lambda run: 2.0)
    monkeypatch.setattr(models.kernel_kinds, "shares", lambda run: {"products": 0.9, "rope": 0.1})

    def measure(calls: Any, **named: Any) -> dict[str, Timing]:
        method = "graph" if named["graph"] else "loop"
        return {name: Timing.of([times.get(name, 1.0)] * 3, method) for name in calls}

    monkeypatch.setattr(models.timing, "measure", measure)
    return times


def test_the_record_and_its_table(models: Any, on_a_cpu: dict[str, float], tmp_path: Path) -> None:
    on_a_cpu |= {"eager": 3.0, "patched": 2.0, "patched, linear": 3.0}
    arguments = ["--out", str(tmp_path), "--no-compile", "--only"]
    assert models.main([*arguments, "Llama"]) == 0
    first = json_files.read_json(tmp_path / "models.json")
    assert first is not None
    cases = [f"bf16 Llama-3-8B {phase}" for phase in models.MODELS[0].phases]
    assert [row["case"] for row in first["rows"]] == [c for c in cases for _ in OURS]
    for row in first["rows"]:
        assert "error" not in row
        assert row["of_eager"] == (1.5 if row["impl"] == "patched" else 1.0)
        assert (row.get("method") == "loop") == (not row["case"].endswith("graph"))
        assert row["of_eagers_error"] <= 1.1
    models.main([*arguments, "BERT"])
    both = json_files.read_json(tmp_path / "models.json")
    assert both is not None
    assert both["rows"][: len(first["rows"])] == first["rows"]
    assert both["rows"][-1]["case"].startswith("bf16 BERT-base training")
    results = Results("cpu", {}, None, {"models": both})
    table = report.block("models", results).splitlines()
    assert table[0].startswith("| model | eager | patched | patched, linear | of compiled |")
    assert table[2].startswith("| Llama-3-8B prefill 2x11 | 3.00 ms | 1.50× | 1.00× | – |")
    assert table[-1].startswith("| geometric mean |  | 1.50× | 1.00× | – |")
    long = report.block("other:models", results)
    assert "products 90 %, rope 10 %" in long
    assert report.AGED not in long
    assert report.block("models", Results("cpu", {}, None, {})) == "No records yet."


def test_attention_alone_has_a_record_of_its_own(
    models: Any, on_a_cpu: dict[str, float], tmp_path: Path
) -> None:
    on_a_cpu |= {"flash": 3.0, "auto": 2.0}
    models.main(["--out", str(tmp_path), "--attention", "--only", "prefill"])
    found = json_files.read_json(tmp_path / "models_attention.json")
    assert found is not None
    rows = {row["impl"]: row for row in found["rows"]}
    assert set(rows) == {"flash", "auto", "cudnn", "sdpa"}
    assert rows["auto"].get("of_flash", 1.5) == 1.5
    assert not (tmp_path / "models.json").exists()


def test_cases_by_their_names(models: Any) -> None:
    def chosen(*arguments: str) -> list[str]:
        return [case for case, _, _ in models.chosen(models.parsed(list(arguments)))]

    assert len(chosen()) == len(set(chosen())) == sum(len(m.phases) for m in models.MODELS)
    assert chosen("--only", "GPT-2|BERT") == [
        "bf16 GPT-2 prefill 16x1024",
        "bf16 GPT-2 training 16x1024",
        "bf16 BERT-base forward 64x512",
        "bf16 BERT-base training 64x512",
    ]
    alone = chosen("--attention")
    assert len(alone) == 12
    assert not any("ViT" in case for case in alone)
    assert isinstance(models.parsed([]), argparse.Namespace)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT", "products"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "products"),
        ("void warpsmith::(anonymous namespace)::gated_linear_wgmma_kernel<x>", "products"),
        ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized>", "products"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob", "attention"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80", "attention"),
        ("void warpsmith::attention_with_kv_cache_split_kernel<__nv_bfloat16>", "attention"),
        ("void warpsmith::(anonymous namespace)::rms_norm_pack_kernel<bf16>", "norms"),
        (
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::Half>",
            "norms",
        ),
        ("void at::native::RowwiseMomentsCUDAKernel<float>", "norms"),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_3", "norms"),
        ("triton_poi_fused_add_cat_mul_neg_slice_2", "rope"),
        ("_triton_rope", "rope"),
        ("triton_poi_fused_mul_silu_5", "elementwise"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::silu>", "elementwise"),
        ("void warpsmith::(anonymous)::map_pack_kernel<silu_and_mul>", "elementwise"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<uint>", "elementwise"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float>", "attention"),
        ("warpsmith::cross_entropy_online_kernel", "losses"),
        ("Memcpy DtoD (Device -> Device)", "other"),
        ("void at::native::reduce_kernel<512, 1, MeanOps>", "other"),
    ],
)
def test_kernels_by_their_names(kernel: str, kind: str) -> None:
    assert kernel_kinds.kind_of(kernel) == kind


def test_parts_add_up() -> None:
    found = kernel_kinds.add_up([("nvjet_a", 6.0), ("nvjet_b", 2.0), ("triton_poi_fused_add", 2.0)])
    assert found == {"elementwise": 0.2, "products": 0.8}
