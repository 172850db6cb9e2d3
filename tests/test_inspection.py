"""Compiled kernels and what is read from them: resources, occupancy, machine code."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from test_command_line import run
from warpsmith.native import (
    build,
    csrc,
    cubins,
    finding,
    inspection,
    launches,
    libraries,
    machine_code,
    occupancy,
    toolchain,
)
from warpsmith.native import resource_report as resource_report_module
from warpsmith.native.launches import Launch
from warpsmith.native.machine_code import Code
from warpsmith.native.resource_report import resource_report


@pytest.fixture(autouse=True)
def _no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the libraries here are names of what a dump is said to be of."""
    packed = machine_code.packed
    monkeypatch.setattr(machine_code, "packed", lambda path: packed(path) if path.exists() else {})


SYMBOL = "_ZN9warpsmith17map_stream_kernelINS_5UnaryINS_4ReluEEE6__halfLb1EEEvPT0_"
DUMP = f"""
Fatbin elf code:
================
arch = sm_80
code version = [1,8]

Resource usage:
 Common:
  GLOBAL:0
 Function {SYMBOL}:
  REG:32 STACK:0 SHARED:128 LOCAL:0 CONSTANT[0]:376 TEXTURE:0 SURFACE:0 SAMPLER:0

Fatbin elf code:
================
arch = sm_90a
code version = [1,8]

Resource usage:
 Common:
  GLOBAL:0
 Function {SYMBOL}:
  REG:40 STACK:24 SHARED:1152 LOCAL:8 CONSTANT[0]:552 TEXTURE:0 SURFACE:0 SAMPLER:0
"""


def test_resources_are_parsed() -> None:
    old, new = inspection.parse_resources(DUMP)
    assert (old.arch, old.registers, old.static_smem, old.stack) == ("80", 32, 128, 0)
    assert (new.arch, new.registers, new.static_smem, new.stack, new.local) == (
        "90a",
        40,
        128,
        24,
        8,
    )
    assert old.name == "map_stream_kernel<Unary<Relu>, f16, true>"


@pytest.mark.parametrize(
    ("name", "tidied"),
    [
        (
            "void warpsmith::(anonymous namespace)::k<warpsmith::Unary<warpsmith::Relu>, "
            "__nv_bfloat16, (int)8>(__nv_bfloat16 const*, long)",
            "k<Unary<Relu>, bf16, 8>",
        ),
        (
            "constexpr std::string_view warpsmith::detail::spelling() [with auto kernel = "
            "(& warpsmith::{anonymous}::k<float, true>); "
            "std::string_view = std::basic_string_view<char>]",
            "k<f32, true>",
        ),
        ("k<A<B<C> > >", "k<A<B<C>>>"),
        ("void warpsmith::k<(warpsmith::Order)1, (int)8>()", "k<Order::columns, 8>"),
        ("void warpsmith::k<warpsmith::Tile{128, 2, true, false}>()", "k<Tile{128, 2, true}>"),
        ("plain_kernel", "plain_kernel"),
    ],
)
def test_tidy(name: str, tidied: str) -> None:
    assert inspection.tidy(name) == tidied


def test_sass_is_trimmed() -> None:
    listing = (
        '\t.headerflags @"EF"\n'
        "        /*0000*/   LDC R1, c[0x0][0x28] ;    /* 0x00000a00ff017b82 */\n"
        "                                          /* 0x000fe20000000800 */\n"
        ".L_x_0:\n        /*0010*/   BRA `(.L_x_0);  /* 0xfffffffc00fc7947 */\n"
    )
    assert inspection._body(listing) == "0000  LDC R1, c[0x0][0x28]\n.L_x_0:\n0010  BRA `(.L_x_0)"


def test_resource_report_finds_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cubins, "cuobjdump", lambda *arguments, **options: DUMP)
    log = tmp_path / "elementwise_map_unary.build.log"
    log.write_text(
        "ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async are serialized\nfine\n"
    )
    found = resource_report([tmp_path / "warpsmith_elementwise_map_unary.so"], archs=["80", "90a"])
    assert len(found.kernels) == 2
    assert found.kernels[0].ops == ("relu",)
    assert len(found.problems) == 2
    assert "stack 24 B, local 8 B" in found.problems[0]
    assert "C7510" in found.problems[1]


def test_resource_report_knows_dynamic_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each architecture has its own launches; a file that only others launch from has none."""
    name = "map_stream_kernel<Unary<Relu>, f16, true>"
    source = "elementwise/map/stream.cu"
    monkeypatch.setattr(inspection, "_sources", lambda family: [source])
    library = tmp_path / "warpsmith_elementwise_map_unary.so"
    monkeypatch.setattr(cubins, "cuobjdump", lambda *arguments, **options: DUMP)

    def report(**record: int) -> tuple[list[inspection.Kernel], str]:
        known = {sm[2:]: {source: (Launch(256, 1, smem),)} for sm, smem in record.items()}
        monkeypatch.setattr(launches, "load", lambda: known)
        found = resource_report([library])
        return found.kernels, "\n".join(found.problems)

    (old, new), problems = report(sm80=48 << 10)
    assert (old.threads, old.dynamic_smem, old.blocks_per_sm) == (256, 48 << 10, 3)
    assert new.blocks_per_sm is new.dynamic_smem is None
    assert "shared memory" not in problems
    (_, new), problems = report(sm80=163 << 10, sm90=2048)
    assert (new.dynamic_smem, new.blocks_per_sm) == (2048, 6)
    assert f"{name} (sm_80): {(163 << 10) + 128} B of shared memory, of {163 << 10}" in problems


def test_launches_are_kept_by_source_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "RECORD", tmp_path / "launches.json")
    launches.load.cache_clear()
    assert launches.load() == {}
    found = launches.summed_up(Launch(*kind) for kind in ((128, 2, 0), (128, 2, 64), (512, 1, 0)))
    assert found == (Launch(128, 2, 64), Launch(512, 1, 0))
    assert launches.summed_up([Launch(512, 1, 0)]) == ()
    launches.save({"80": {"norm/rms_norm/pack.cu": found, "norm/rms_norm/naive.cu": ()}})
    assert launches.load() == {"80": {"norm/rms_norm/pack.cu": found}}
    launches.load.cache_clear()


def test_the_launch_of_a_kernel_fits_its_bounds() -> None:
    found = (Launch(128, 2, 64), Launch(256, 1, 32), Launch(512, 1, 0))
    assert launches.likely(found, 256) == found[1]
    assert launches.likely(found, 384) == launches.likely(found, None) == found[0]
    assert launches.likely(found, 64) is launches.likely((), None) is None


@pytest.mark.parametrize(
    ("dump", "problem"),
    [
        ("", "no kernel could be read"),
        (DUMP[: DUMP.index("arch = sm_90a")], "no kernel for sm_90a"),
        (DUMP.replace("sm_90a", "sm_90"), "no kernel for sm_90a"),
    ],
)
def test_resource_report_misses_kernels(
    dump: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cubins, "cuobjdump", lambda *arguments, **options: dump)
    library = tmp_path / "warpsmith_elementwise_map_unary.so"
    found = resource_report([library], archs=["80", "90a"])
    assert [p for p in found.problems if "no kernel" in p] == [f"{library.name}: {problem}"]


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks", "share"),
    [
        ("80", 256, 32, 0, 8, 1.0),
        ("89", 256, 32, 0, 6, 1.0),
        ("90a", 256, 128, 0, 2, 0.25),
        ("90a", 96, 41, 0, 13, 0.6094),  # 40 warps by registers
        ("89", 32, 16, 0, 24, 0.5),  # as many as there may be
        ("89", 128, 64, 99 << 10, 1, 0.0833),
        ("80", 256, 168, 48 << 10, 1, 0.125),
        ("90a", 1024, 80, 0, 0, 0.0),
    ],
)
def test_occupancy(
    arch: str, threads: int, registers: int, shared: int, blocks: int, share: float
) -> None:
    """The numbers are those of `cuda_occupancy.h`."""
    assert occupancy.occupancy(arch, threads, registers, shared) == (blocks, share)
    assert occupancy.occupancy("75", threads, registers, shared) is None


#: nvcc takes it: the call is in a template.
MISTAKE = """
struct Rows {
  int n;
  __device__ int size() const { return n; }
};
template <class Body> void visit(Body&& body) { body.template operator()<Rows>(); }
extern "C" bool is_long(int n) {
  bool found = false;
  visit([&]<class T>() { found = T{n}.size() > 3; });
  return found;
}
"""


@pytest.mark.parametrize("source", [MISTAKE, MISTAKE.replace("__device__", "")])
def test_resource_report_finds_device_functions_called_by_the_host(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvcc = toolchain.find_nvcc()
    if nvcc is None or shutil.which("nm") is None:
        pytest.skip("needs nvcc and nm")
    code, library = tmp_path / "mistake.cu", tmp_path / "mistake.so"
    code.write_text(source)
    flags = ["-std=c++20", "-arch=sm_90", "-shared", "-Xcompiler", "-fPIC"]
    subprocess.run([nvcc, *flags, code, "-o", library], check=True)
    kernels = inspection.parse_resources(DUMP)[:1]
    monkeypatch.setattr(inspection, "resources", lambda library: kernels)
    problems = resource_report([library]).problems
    assert len(problems) == (source is MISTAKE)


def test_inspect_says_what_it_compiles_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[tuple[str, int, int]] = []

    class Bar:
        def update(self, task: str, completed: int) -> None:
            told.append((task, completed, len(libraries.sources("elementwise/glu"))))

    @contextlib.contextmanager
    def bar(label: str, total: int) -> Iterator[tuple[Bar, str]]:
        yield Bar(), label

    def compiler(
        names: list[str], archs: list[str], out: Path, on_progress: build.Progress
    ) -> list[Path]:
        (library,) = names
        total = len(libraries.sources(library))
        on_progress(library, total, total)
        out.mkdir(parents=True)
        path = out / libraries.file_name(library)
        path.touch()
        return [path]

    monkeypatch.setenv("WARPSMITH_CACHE", str(tmp_path))
    monkeypatch.delenv("WARPSMITH_LIBRARY_DIR", raising=False)
    monkeypatch.setattr(finding, "_device_archs", lambda: ())
    monkeypatch.setattr(toolchain, "why_no_compiler", lambda: None)
    monkeypatch.setattr(build, "build", compiler)
    monkeypatch.setattr(inspection, "progress_bar", bar)
    path = inspection.library_for("elementwise/glu", "80")
    assert (
        capsys.readouterr().err
        == f"compiling 'elementwise/glu' for sm_80, once, into {path.parent}\n"
    )
    assert [(task, done == total) for task, done, total in told] == [
        ("compiling elementwise/glu", True)
    ]
    assert inspection.library_for("elementwise/glu", "80") == path
    assert capsys.readouterr().err == ""


KERNEL = """
namespace warpsmith {
template <class T> __global__ void probe_kernel(T* x) { x[threadIdx.x] += T(1); }
template <class T> __global__ void __launch_bounds__(192) bound_kernel(T* x) {
  __shared__ T row[192];
  row[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = row[191 - threadIdx.x];
}
void launch(float* x) {
  probe_kernel<float><<<1, 32>>>(x);
  bound_kernel<float><<<1, 192>>>(x);
}
}
"""


def test_a_compiled_kernel_is_read(tmp_path: Path) -> None:
    nvcc = toolchain.find_nvcc()
    if nvcc is None or cubins.find_tool("cuobjdump") is None:
        pytest.skip("needs nvcc and cuobjdump")
    source = tmp_path / "probe.cu"
    source.write_text(KERNEL)
    fatbin = tmp_path / "probe.fatbin"
    command = [nvcc, "-gencode=arch=compute_90,code=sm_90", "-fatbin", source, "-o", fatbin]
    subprocess.run(command, check=True)
    bound, probe = sorted(inspection.read_kernels(fatbin), key=lambda kernel: kernel.name)
    assert (probe.name, probe.arch, probe.local) == ("probe_kernel<f32>", "90", 0)
    assert probe.registers > 0
    assert probe.max_threads is probe.occupancy is None
    assert (bound.name, bound.static_smem) == ("bound_kernel<f32>", 192 * 4)
    assert (bound.max_threads, bound.threads, bound.dynamic_smem) == (192, 192, 0)
    assert (bound.blocks_per_sm, bound.occupancy) == (10, 0.9375)
    assert inspection._with_occupancy(probe, 64).threads == 64
    full = inspection._with_occupancy(bound, 1024, 100 << 10)
    assert (full.threads, full.dynamic_smem, full.blocks_per_sm) == (192, 100 << 10, 2)


@pytest.mark.skipif(
    not (shutil.which("c++") and Path(sysconfig.get_path("include"), "Python.h").exists()),
    reason="needs a C++ compiler and Python's headers",
)
def test_inspect_module_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPSMITH_CACHE", str(tmp_path))
    inspection.module.cache_clear()
    try:
        module = inspection.module()
        with pytest.raises(RuntimeError, match="nowhere"):
            module.Library("/nowhere/lib.so")
    finally:
        inspection.module.cache_clear()


def test_build_reports_every_kernel(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "warpsmith_elementwise_map_unary.so"
    monkeypatch.setattr(cubins, "cuobjdump", lambda *arguments, **options: DUMP)
    monkeypatch.setattr(build, "build", lambda *arguments: [library])
    call = ("build", "elementwise/map/unary", "--out", str(tmp_path), "--report")
    status, out, _ = run(capsys, *call, "--arch", "80", "--arch", "89")
    assert status == 1
    assert f"{library.name}: no kernel for sm_89" in out
    status, out, _ = run(capsys, *call, "--arch", "80", "--json")
    found = json.loads(out)
    assert len(found["problems"]) == 1
    kernels = json.loads(Path(found["resources"]).read_text())
    assert [kernel["arch"] for kernel in kernels] == ["80", "90a"]
    assert len(kernels) == found["kernels"]


def test_kernels_that_a_library_holds_twice_are_counted() -> None:
    codes = [Code(f"k{i}", "90a", digest) for i, digest in enumerate("abac")]
    codes.append(Code("k", "80", "a"))
    codes += [Code(f"nothing{i}", "90a", "-", empty=True) for i in range(2)]
    assert resource_report_module.identical(codes) == {"90a": (1, 4), "80": (0, 1)}


@pytest.mark.parametrize(
    ("low", "high", "name"),
    [
        (0x00000000041879F0, 0x000FE60008001818, "HGMMA.64x8"),  # x16.F32.BF16, a in shared memory
        (0x41E00000041879F0, 0x000FE60008000818, "HGMMA.64x128"),  # x16.F32, b transposed
        (0x62E00000041879F0, 0x000FE20008700818, "HGMMA.64x192"),  # x16.F32, both transposed
        (0x03E00000041879F0, 0x000FE60008000018, "HGMMA.64x256"),  # x16.F16
        (0x04E0000438187DF0, 0x000FE60008002818, "HGMMA.64x64"),  # x8.F32.TF32, a in registers
        (0x01600000041879F3, 0x000FE2000BF00818, "QGMMA.64x96"),  # x32.F32.E4M3.E4M3
        (0x00E0000430187DF3, 0x000FE20008701018, "QGMMA.64x64"),  # x32.F16.E5M2.E4M3, registers
        (0x000000041C187DF1, 0x000FE60008041018, "IGMMA.64x8"),  # x32.S8.S8, registers
        (0x02A00000041879F1, 0x000FE60008041018, "IGMMA.64x96"),
        (0x06600000041879F1, 0x000FE20008741018, "IGMMA.64x256"),
        (0x000000489080723C, 0x000FF000000018FF, "HMMA"),  # .16816.F32
        (0x0000002824047237, 0x000FF000000018FF, "IMMA"),  # .16832.S8.S8
        (0x00000A00FF017B82, 0x000FE20000000800, ""),  # LDC
    ],
)
def test_instructions_of_tensor_cores_are_known(low: int, high: int, name: str) -> None:
    """As nvdisasm says of these."""
    code = b"".join(word.to_bytes(8, "little") for word in (0, 0, low, high))
    assert machine_code.products(code) == ({name} if name else set())


@pytest.mark.parametrize(
    ("name", "found", "wanted"),
    [
        ("k_wgmma_kernel<C<bf16, WgmmaTile{128, 256, 2}>>", {"HGMMA.64x256"}, None),
        ("k_wgmma_kernel<C<bf16, WgmmaTile{128, 256, 2}>>", {"HGMMA.64x256", "HGMMA.64x8"}, None),
        ("k_wgmma_kernel<C<bf16, WgmmaTile{128, 256, 2}>>", {"HGMMA.64x128"}, "HGMMA.64x256"),
        ("k_wgmma_kernel<C<f16, WgmmaTile{64, 16, 1}>>", {"HGMMA.64x160"}, "HGMMA.64x16"),
        ("k_wgmma_kernel<C<e4m3, e5m2, WgmmaTile{128, 64, 1}>>", {"HGMMA.64x64"}, "QGMMA.64x64"),
        ("k_wgmma_kernel<C<i8, i8, WgmmaTile{128, 64, 1}>>", {"IGMMA.64x64"}, None),
        ("k_wgmma_kernel<QuantizedWgmma<f16, 4, 32, true, 1>>", {"HGMMA.64x32"}, None),
        ("wgmma_kernel<Case<WgmmaKind<e5m2, e4m3, f16>, 24, F{}>>", {"QGMMA.64x16"}, "QGMMA.64x24"),
        ("matmul_wgmma_tma_kernel<WgmmaConfig<bf16, Plan>>", {"HGMMA.64x128"}, None),
        ("matmul_wgmma_tma_kernel<WgmmaConfig<bf16, Plan>>", {"HGMMA.64x128", "HMMA"}, "HGMMA.64x"),
        ("matmul_wgmma_tma_kernel<WgmmaConfig<bf16, Plan>>", set(), "HGMMA.64x"),
        ("scaled_matmul_sum_slices_kernel<bf16, 1>", set(), None),
        ("matmul_mma_kernel<C<bf16>>", {"HMMA"}, None),
    ],
)
def test_kernels_by_wgmma_have_the_instruction_of_their_tile(
    name: str, found: set[str], wanted: str | None
) -> None:
    said = resource_report_module.wrong_products(name, found)
    got = ", ".join(sorted(found)) or "no products"
    assert said == (wanted and f"expected {wanted} and no mma.sync, got {got}")


def test_resource_report_holds_kernels_by_wgmma_against_their_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    symbol = "_ZN9warpsmith19matmul_wgmma_kernelI13__nv_bfloat16EEvPT_"
    dump = DUMP.replace(SYMBOL, symbol).replace("STACK:24", "STACK:0").replace("LOCAL:8", "LOCAL:0")
    codes = [
        Code(symbol, "80", "a", empty=True),
        Code(symbol, "90a", "b", products=frozenset({"HMMA"})),
    ]
    monkeypatch.setattr(cubins, "cuobjdump", lambda *arguments, **options: dump)
    monkeypatch.setattr(machine_code, "read", lambda *arguments: codes)
    assert resource_report([tmp_path / "warpsmith_gemm_matmul.so"]).problems == [
        "matmul_wgmma_kernel<bf16> (sm_90a): expected HGMMA.64x and no mma.sync, got HMMA"
    ]


def test_machine_code_is_measured_by_architecture(tmp_path: Path) -> None:
    nvcc = toolchain.find_nvcc()
    if nvcc is None:
        pytest.skip("needs nvcc")
    source, made = tmp_path / "probe.cu", tmp_path / "probe.o"
    source.write_text(KERNEL)
    flags = ["--compress-mode=size", *toolchain.gencode(["80", "90a"])]
    subprocess.run([nvcc, *flags, "-c", source, "-o", made], check=True)
    found = machine_code.packed(made)
    (section,) = (s for s in machine_code._sections(made.read_bytes()) if s.name == ".nv_fatbin")
    assert set(found) == {80, 90}
    assert min(found.values()) > 500
    assert sum(found.values()) + 16 == section.size  # the container's own header


def test_libraries_are_held_against_what_their_family_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = {
        "transform/rope": {80: 7 << 20, 90: 1 << 20},
        "vision/nms": {90: 1 << 20},
        "gemm/matmul": {80: 99 << 20},
    }
    files = [tmp_path / libraries.file_name(library) for library in packed]
    for file, size in zip(files, (10 << 20, 1 << 20, 100 << 20), strict=True):
        with file.open("w") as opened:
            opened.truncate(size)
    by_file = dict(zip(files, packed.values(), strict=True))
    monkeypatch.setattr(machine_code, "packed", lambda file: by_file[file])
    count = sum(len(libraries.of_family(family)) for family in ("transform", "vision"))
    line = f"transform and vision: 4.00 MiB for sm_90a, of at most 4, in 2 of {count} libraries"
    assert resource_report_module.sizes(files) == ([line], [])
    by_file[files[0]][80] -= 1 << 20
    line = line.replace("4.00", "5.00")
    assert resource_report_module.sizes(files) == ([], [line])


def test_every_family_has_a_size_that_it_may_have() -> None:
    named = [family for families in resource_report_module.MOST_MIB for family in families]
    assert sorted([*named, libraries.SELFTEST]) == sorted(libraries.FAMILIES)


def test_logs_say_how_long_files_took(tmp_path: Path) -> None:
    source = csrc.CSRC / "norm" / "rms_norm" / "pack.cu"
    step = build.Step(source, ("echo", "warpsmith took 9 s\n"), "key", lambda: "key", 0)
    ((seconds, file),) = build.seconds_of(step._make(tmp_path / "pack.o"))
    assert file == "norm/rms_norm/pack.cu"
    assert 0 <= seconds < 9


def test_files_that_compile_long_are_told_of() -> None:
    took = [(3.2, "a.cu"), (61.4, "b.cu"), (75.0, "c.cu"), (75.0, "c.cu")]
    longest = "c.cu: 75 s to compile, the longest"
    assert resource_report_module.slow(took, 3) == [longest]
    too_long = [
        f"{file}: {seconds} s to compile, of at most 60"
        for file, seconds in (("c.cu", 75), ("b.cu", 61))
    ]
    assert resource_report_module.slow(took, 1) == [longest, *too_long]
    assert resource_report_module.slow([], 1) == []
