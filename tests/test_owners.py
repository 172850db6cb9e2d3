"""Which operators and rung a compiled kernel belongs to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from warpsmith.core import catalogue
from warpsmith.native import inspection, libraries


@pytest.mark.parametrize(
    ("kernel", "op"),
    [
        ("map_stream_kernel<Unary<Relu>, f16, true>", "relu"),
        ("map_stream_kernel<UnaryBackward<GeluTanh>, f16, true>", "gelu_tanh_backward"),
        ("map_pack_kernel<Gated<Silu>, bf16>", "silu_and_mul"),
        ("map_pack_kernel<Binary<Add>, bf16>", "add"),
        ("rms_norm_registers_kernel<bf16, 8>", "rms_norm"),
        ("rms_norm_backward_registers_kernel<bf16, 8>", "rms_norm_backward"),
        ("stranger_kernel<f32>", None),
    ],
)
def test_owners_by_name(kernel: str, op: str | None) -> None:
    found, rung = inspection.owners(kernel, None, catalogue.load().values())
    assert [o.name for o in found] == ([op] if op else [])
    assert rung is None or rung in kernel


@pytest.mark.parametrize(
    ("kernel", "source", "ops", "rung"),
    [
        ("skinny_ring_kernel<Tile{}, A>", "gemm/gemv/skinny.cu", "gemv", "skinny"),
        ("skinny_sum_kernel<A>", "gemm/gemv_scaled/split_k.cu", "gemv_scaled", "split_k"),
        ("sum_splits_kernel<f16>", "gemm/matmul/mma_peak.cu", "matmul linear addmm", "mma_peak"),
        ("sum_splits_kernel<f16>", "gemm/matmul/sum_splits.cu", "matmul linear addmm", None),
        ("matmul_wmma_naive_kernel<f16>", "gemm/matmul/wmma_naive.cu", "matmul", "wmma_naive"),
        ("map_pack_kernel<Unary<Relu>, f16>", "elementwise/map/pack.cu", "relu", "pack"),
        ("reduce_dim_pack_kernel<Sum, f32>", "reduce/reduce_dim/pack.cu", "sum", "pack"),
        (
            "reduce_dim_pack_kernel<Extreme<Largest>, f32>",
            "reduce/reduce_dim/pack.cu",
            "amax",
            "pack",
        ),
        (
            "row_registers_kernel<Softmax<f32, A>>",
            "softmax/softmax/registers.cu",
            "softmax log_softmax",
            "registers",
        ),
        (
            "row_registers_kernel<NormRow<f32, RmsNorm, OfX>, TileAt<RowTiles, 2>>",
            "norm/rms_norm/registers.cu",
            "rms_norm rms_norm_with_rstd",
            "registers",
        ),
        ("probe_kernel", "selftest/launch.cu", "", None),
    ],
)
def test_owners_by_file(kernel: str, source: str, ops: str, rung: str | None) -> None:
    family = [op for op in catalogue.load().values() if source.startswith(f"{op.family}/")]
    found, of = inspection.owners(kernel, source, family)
    assert {op.name for op in found} == set(ops.split())
    assert of == rung


def test_owners_by_a_file_in_a_folder_inside_another() -> None:
    ops = [
        catalogue.get("rms_norm"),
        replace(catalogue.get("rms_norm_backward"), source="rms_norm/backward"),
    ]
    for source, op in (("norm/rms_norm/pack.cu", 0), ("norm/rms_norm/backward/naive.cu", 1)):
        assert inspection.owners("a_kernel<f32>", source, ops) == ((ops[op],), Path(source).stem)
    assert inspection.owners("rms_norm_backward_naive_kernel<f32>", None, ops) == (
        (ops[1],),
        "naive",
    )


@pytest.mark.parametrize("library", libraries.all_libraries())
def test_every_kernel_file_has_an_owner(library: str) -> None:
    mine = [op for op in catalogue.load().values() if op.library == library]
    for source in inspection._sources(library) if library != libraries.SELFTEST else ():
        assert inspection.owners("a_kernel<f32>", source, mine)[0], source


def test_every_library_has_operators_and_every_operator_a_library() -> None:
    wanted = {op.library for op in catalogue.load().values()} | {libraries.SELFTEST}
    assert wanted == set(libraries.all_libraries())
    assert len({libraries.symbol(library) for library in wanted}) == len(wanted)
    for library in wanted:
        assert libraries.of_file(Path(libraries.file_name(library))) == library
        assert [path.suffix for path in libraries.sources(library)].count(".cpp") == 3, library


def test_kernels_of_a_file_without_names() -> None:
    """Kernels outside anonymous namespaces are known by where their file stands in the link."""
    entry = " Function {}:\n  REG:8 STACK:0 SHARED:0 LOCAL:0 TEXTURE:0\n"
    ring = "_ZN9warpsmith4ringEv"
    local = "_ZN9warpsmith51_GLOBAL__N__25ae76bb_7_pack_cu_7ae8547d_1953154ringEv"
    text = "".join(
        f"arch = sm_{arch}\n{entry.format(symbol)}"
        for symbol in (ring, local)
        for arch in ("80", "90a")
    )
    sources = ["gemm/gemv/block.cu", "gemm/gemv/pack.cu"]
    found = [(k.arch, k.source) for k in inspection.parse_resources(text, sources)]
    assert found == [(arch, source) for source in sources for arch in ("80", "90a")]
    renamed = inspection.parse_resources(text, ["gemm/gemv/block.cu", "gemm/gemv/rows.cu"])
    assert [k.source for k in renamed] == ["gemm/gemv/block.cu", "gemm/gemv/block.cu", None, None]
    assert all(k.source is None for k in inspection.parse_resources(text, sources[:1]))
