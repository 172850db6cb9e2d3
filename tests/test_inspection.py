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
    cubins,
    finding,
    inspection,
    launches,
    libraries,
    occupancy,
    toolchain,
)
from warpsmith.native import resource_report as resource_report_module
from warpsmith.native.launches import Launch
from warpsmith.native.machine_code import Code
from warpsmith.native.resource_report import resource_report

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
