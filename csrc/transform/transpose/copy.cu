// Transpose of what lies transposed already, and permutations that leave the last dimension where it is: a copy of rows.
//   Against `row2col`: a thread moves up to 16 bytes, as far as rows and strides are aligned. Bound: DRAM.

#include "device/start_early.h"
#include "host/launch.h"
#include "host/min_max.h"
#include "host/registry.h"
#include "row/rows.h"
#include "transform/transpose/place.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kPacks = 4;  // accesses of a thread on their way, a block's width apart

// Packs of a row, and rows: everything in packs.
struct PackGrid {
  FastDivide row, cols;
  int64_t packs;
  int64_t x_col, y_col;
};

template <class Pack>
__global__ void __launch_bounds__(kThreads)
    transpose_copy_kernel(const __grid_constant__ TransposeArgs a, const __grid_constant__ PackGrid grid,
                          const __grid_constant__ BatchDims batch) {
  start_early();
  const int64_t first = int64_t{blockIdx.x} * kThreads * kPacks + threadIdx.x;
  Pack held[kPacks];
  int64_t to[kPacks];
  // load
#pragma unroll
  for (int u = 0; u < kPacks; ++u) {
    const int64_t i = first + u * kThreads;
    if (i >= grid.packs) continue;
    const int64_t line = grid.row.quotient_as(i), matrix = grid.cols.quotient_as(line);
    const int64_t pack = i - line * static_cast<int64_t>(grid.row.divisor);
    const int64_t col = line - matrix * static_cast<int64_t>(grid.cols.divisor);
    const Offsets at = matrix_offsets(batch, matrix);
    to[u] = at.y + col * grid.y_col + pack;
    held[u] = static_cast<const Pack*>(a.x)[at.x + col * grid.x_col + pack];
  }
  // write
#pragma unroll
  for (int u = 0; u < kPacks; ++u) {
    if (first + u * kThreads < grid.packs) static_cast<Pack*>(a.y)[to[u]] = held[u];
  }
}

// The widest access of which rows and strides are whole multiples, in bytes.
int64_t pack_bytes(const TransposeArgs& a) {
  const int64_t size = size_of(a.dtype);
  uint64_t bits = 16 | static_cast<uint64_t>(reinterpret_cast<uintptr_t>(a.x)) | static_cast<uint64_t>(a.rows * size);
  if (a.cols > 1) bits |= static_cast<uint64_t>(a.x_col * size) | static_cast<uint64_t>(a.y_col * size);
  for (int d = 0; d < a.batch.rank; ++d) {
    bits |= static_cast<uint64_t>(a.batch.x[d] * size) | static_cast<uint64_t>(a.batch.y[d] * size);
  }
  return static_cast<int64_t>(bits & -bits);
}

template <class Pack>
void copy(const TransposeArgs& a, cudaStream_t stream) {
  const int64_t per = static_cast<int64_t>(sizeof(Pack)) / size_of(a.dtype);
  BatchDims batch = a.batch;
  for (int d = 0; d < batch.rank; ++d) {
    batch.x[d] /= per;
    batch.y[d] /= per;
  }
  const int64_t row = a.rows / per;
  const PackGrid grid{.row = FastDivide(static_cast<uint64_t>(row)),
                      .cols = FastDivide(static_cast<uint64_t>(a.cols)),
                      .packs = a.count * a.cols * row,
                      .x_col = a.x_col / per,
                      .y_col = a.y_col / per};
  const LaunchConfig config{
      .grid = row_grid(ceil_div(grid.packs, kThreads * kPacks)), .block = kThreads, .early = true};
  warpsmith::launch<&transpose_copy_kernel<Pack>>(config, stream, a, grid, batch);
}

const char* takes(const TransposeArgs& a) {
  const char* reason = a.x_row == 1 ? nullptr : "needs x to be contiguous along the last dimension of its result";
  return unmet({needs_rank(a), reason});
}

void launch(const TransposeArgs& a, cudaStream_t stream) {
  switch (pack_bytes(a)) {
    case 1:
      return copy<uint8_t>(a, stream);
    case 2:
      return copy<uint16_t>(a, stream);
    case 4:
      return copy<uint32_t>(a, stream);
    case 8:
      return copy<uint2>(a, stream);
    default:
      return copy<uint4>(a, stream);
  }
}

const Register<TransposeArgs> registered{"copy", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
