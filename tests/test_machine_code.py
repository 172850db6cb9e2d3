"""What changes the digest of a compiled kernel, and what does not."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from warpsmith.native import cubins, machine_code, toolchain

HEADER = """
#pragma once
namespace warpsmith {
struct HeldRow { float scale; int width; };
__device__ inline float scaled(const HeldRow& row, float x) { return x * row.scale + 3.0f; }
}
"""
KERNELS = """
#include "device/rows.h"
namespace warpsmith {
namespace {
__constant__ float table[4] = {1.0f, 2.0f, 3.0f, 5.0f};

template <class T>
__global__ void __launch_bounds__(256) row_kernel(const HeldRow row, const T* x, T* y) {
  __shared__ float held[256];
  held[threadIdx.x] = scaled(row, x[threadIdx.x]) + table[threadIdx.x % 4];
  __syncthreads();
  float sum = 0.0f;
  for (int i = 0; i < row.width; ++i) sum += held[(threadIdx.x + i) % 256];
  y[threadIdx.x] = sum;
}
template __global__ void row_kernel<float>(const HeldRow, const float*, float*);
template __global__ void row_kernel<double>(const HeldRow, const double*, double*);
}
}
"""


def digests(
    folder: Path, source: str = "rows/warp.cu", text: str = KERNELS, **headers: str
) -> Counter[str]:
    """Of the kernels in a source, compiled in a tree of its own."""
    nvcc = toolchain.find_nvcc()
    if nvcc is None or cubins.find_tool("cuobjdump") is None:
        pytest.skip("needs nvcc and cuobjdump")
    files = {source: text, "device/rows.h": HEADER}
    files |= {f"device/{name}.h": header for name, header in headers.items()}
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    fatbin = folder / "out.fatbin"
    architecture = "-gencode=arch=compute_90a,code=sm_90a"
    command = [nvcc, "-std=c++20", architecture, f"-I{folder}", "-fatbin"]
    subprocess.run([*command, folder / source, "-o", fatbin], check=True)
    found = machine_code.read(fatbin, [source])
    assert [code.arch for code in found] == ["90a"] * 2
    assert {code.source for code in found} == {source}
    assert {code.max_threads for code in found} == {256}
    return Counter(code.digest for code in found)


EMPTY = """
__global__ void nothing_kernel(float*) {
#if __CUDA_ARCH__ < 900
  never();
#endif
}
__global__ void something_kernel(float* y) { *y = 1.0f; }
"""


def test_a_kernel_that_ends_at_once_is_empty(tmp_path: Path) -> None:
    nvcc = toolchain.find_nvcc()
    if nvcc is None or cubins.find_tool("cuobjdump") is None:
        pytest.skip("needs nvcc and cuobjdump")
    source, fatbin = tmp_path / "some.cu", tmp_path / "out.fatbin"
    source.write_text(EMPTY)
    architecture = "-gencode=arch=compute_90a,code=sm_90a"
    subprocess.run([nvcc, architecture, "-fatbin", source, "-o", fatbin], check=True)
    empty = {code.symbol: code.empty for code in machine_code.read(fatbin)}
    assert sorted(empty.values()) == [False, True]
    assert next(symbol for symbol in empty if empty[symbol]).startswith("_Z14nothing")


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    found = digests(tmp_path_factory.mktemp("before"))
    assert len(found) == 2  # float and double
    return found


def test_names_headers_and_folders_do_not_count(tmp_path: Path, before: Counter[str]) -> None:
    """A type renamed in a shared header, the header split, a function extracted, and the file in
    another folder.
    """
    head, type_, function = HEADER.partition("__device__")
    split = f'{head}}}\n#include "device/scaled.h"\n'.replace("HeldRow", "RowInRegisters")
    scaled = f"#pragma once\nnamespace warpsmith {{\n{type_}{function}".replace(
        "HeldRow", "RowInRegisters"
    )
    summed = """
__device__ float sum_of(const float (&held)[256], int width) {
  float sum = 0.0f;
  for (int i = 0; i < width; ++i) sum += held[(threadIdx.x + i) % 256];
  return sum;
}

template"""
    text = KERNELS.replace("HeldRow", "RowInRegisters").replace("\ntemplate", summed, 1)
    loop = "  float sum = 0.0f;\n  for (int i = 0; i < row.width; ++i) sum"
    start = text.index(loop)
    end = text.index("  y[threadIdx.x]", start)
    text = text[:start] + "  const float sum = sum_of(held, row.width);\n" + text[end:]
    text = text.replace("row_kernel", "rows_of_a_warp_kernel")
    after = digests(tmp_path, "rows/forward/held/warp.cu", text, rows=split, scaled=scaled)
    assert after == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("5.0f}", "6.0f}"),  # in a table
        ("< row.width", "< row.width - 1"),  # in an instruction
        ("held[256]", "held[512]"),  # shared memory
    ],
)
def test_what_the_hardware_gets_counts(
    tmp_path: Path, before: Counter[str], old: str, new: str
) -> None:
    assert old in KERNELS
    after = digests(tmp_path, text=KERNELS.replace(old, new))
    assert not after & before


def test_a_template_argument_changes_one_kernel(tmp_path: Path, before: Counter[str]) -> None:
    changed = KERNELS.replace("row_kernel<double>(const HeldRow, const double*, double*)",
                              "row_kernel<int>(const HeldRow, const int*, int*)")  # fmt: skip
    after = digests(tmp_path, text=changed)
    assert sum((after & before).values()) == 1


def test_kernels_together_have_a_digest_in_any_order() -> None:
    assert machine_code.combined(["a", "b"]) == machine_code.combined(["b", "a"])
    assert machine_code.combined(["a", "a"]) != machine_code.combined(["a"])
