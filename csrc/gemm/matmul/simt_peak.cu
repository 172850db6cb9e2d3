// Matrix product in f32 on the CUDA cores, at their peak.
//   Against `async_t8x16`: a warp computes 64 x 64, so a value read from shared memory is multiplied 8 or 16 times and
//   multiplications are nine instructions in ten; four buffers of copies hide DRAM; operands in either order
//   and at any alignment are copied straight into [k, row] order, 4 bytes at a time where they must be turned; tiles are
//   walked in groups that share L2; smaller tiles and slices of k fill the GPU where 128 x 128 do not. Takes every call.
//   Occupancy: two blocks of 128 threads x 255 registers and 33 KB; of the smaller tiles three of 168 and 25 KB or four
//   of 128 and 17 KB.
//   Bound: issue slots of FFMA.
#include "device/block_order.h"
#include "device/ptx/cp_async.h"
#include "device/ptx/cp_async_zfill.h"
#include "device/vec.h"
#include "gemm/chunks.cuh"
#include "gemm/epilogue.cuh"
#include "gemm/split.cuh"
#include "gemm/split.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 128;  // two by two warps
constexpr int kChunk = 4;      // values of a 16-byte access
constexpr int kGroup = 8;      // rows of tiles that are walked column by column

// A warp's lanes stand 8 x 4, so lane pairs at distance 1 share rows of a, those at distance 2 share columns of b:
// shared memory then answers a 16-byte read of half a warp at once. A thread's rows and columns come in chunks of four,
// a chunk of each lane side by side.
constexpr int kLaneRows = 8, kLaneCols = 4;
__device__ __forceinline__ int lane_row(int lane) { return lane >> 1 & 7; }
__device__ __forceinline__ int lane_col(int lane) { return (lane >> 4) << 1 | (lane & 1); }

template <int bm_, int bn_, int blocks_>
struct Tile {
  static constexpr int bm = bm_, bn = bn_, bk = 8;
  static constexpr int wm = bm / 2, wn = bn / 2;                  // of a warp
  static constexpr int tm = wm / kLaneRows, tn = wn / kLaneCols;  // of a thread
  static constexpr int stages = 4;
  static constexpr int blocks = blocks_;  // on a multiprocessor
};
using Large = Tile<128, 128, 2>;
using Medium = Tile<128, 64, 3>;
using Small = Tile<64, 64, 4>;

// --- copies into shared memory ----------------------------------------------------------------------------------
// What an operand looks like from the tile: `rows` of the product (columns for b), each with k values. A copy brings
// bk values of k of each; rows past the last one repeat it, as their products are not stored. Beyond the slice of k
// stand zeros.

struct Source {
  const float* data;  // of the first row and the first k of the slice
  int64_t ld;
  int rows_left;  // from the first one on, at least 1
};

// Values of k lie side by side: turned on the way, 4 bytes at a time. A warp brings 8 values of each of 4 rows; the
// padding spreads those over all banks.
template <int rows>
struct TurningCopy {
  static constexpr int stride = rows + kChunk;
  static constexpr int per_pass = kThreads / 8, passes = rows / per_pass;
  const float* from[passes];
  int to, k;

  __device__ explicit TurningCopy(const Source& x) {
    const int row = static_cast<int>(threadIdx.x) / 8;
    k = static_cast<int>(threadIdx.x) % 8;
    to = k * stride + row;
#pragma unroll
    for (int i = 0; i < passes; ++i) {
      from[i] = x.data + min(row + i * per_pass, x.rows_left - 1) * x.ld + k;
    }
  }

  __device__ void issue(float* shared, int depth) {
    const bool valid = k < depth;
#pragma unroll
    for (int i = 0; i < passes; ++i) {
      ptx::cp_async_zfill(reinterpret_cast<uint32_t*>(shared + to + i * per_pass),
                          reinterpret_cast<const uint32_t*>(from[i]), valid);
      from[i] += 8;
    }
  }
};

// Rows lie side by side: copied as they are, `width` values at a time.
template <int rows, int width>
struct StraightCopy {
  static constexpr int stride = rows;
  static constexpr int across = rows / width, per_pass = kThreads / across, passes = 8 / per_pass;
  static_assert(passes * per_pass == 8, "bk values of k");
  const float* from;
  int64_t ld;
  int to, k;

  __device__ explicit StraightCopy(const Source& x) : ld(x.ld) {
    const int row = static_cast<int>(threadIdx.x) % across * width;
    k = static_cast<int>(threadIdx.x) / across;
    to = k * stride + row;
    from = x.data + min(row, x.rows_left - width) + k * ld;
  }

  __device__ void issue(float* shared, int depth) {
    using Access = std::conditional_t<width == kChunk, uint4, uint32_t>;
#pragma unroll
    for (int i = 0; i < passes; ++i) {
      ptx::cp_async_zfill(reinterpret_cast<Access*>(shared + to + i * per_pass * stride),
                          reinterpret_cast<const Access*>(from + i * per_pass * ld), k + i * per_pass < depth);
    }
    from += 8 * ld;
  }
};

struct Turning {
  template <int rows>
  using Copy = TurningCopy<rows>;
};
struct Wide {
  template <int rows>
  using Copy = StraightCopy<rows, kChunk>;
};
struct Narrow {
  template <int rows>
  using Copy = StraightCopy<rows, 1>;
};

// --- results ----------------------------------------------------------------------------------------------------

// Where a thread's sums go: d, or the partial sums of a slice.
struct Target {
  float* data;  // [m, n]
  int64_t batch, row, col;
  bool finished;  // sums are results already
  bool wide;      // rows are whole chunks, aligned
};

// One row of a thread's sums: chunks of four columns, `step` apart.
template <bool finished, int tn>
__device__ __forceinline__ void store_row(const GemmArgs& p, const Target& to, int64_t row, int step,
                                          const float (&sums)[tn]) {
  if (row >= p.m) return;
  float* const out = to.data + row * p.n;
#pragma unroll
  for (int j = 0; j < tn; j += kChunk) {
    const int64_t col = to.col + j / kChunk * step;
    Vec<float, kChunk> values;
#pragma unroll
    for (int c = 0; c < kChunk; ++c) {
      values[c] = sums[j + c];
      if (!finished && col + c < p.n) values[c] = finish<float>(p, values[c], to.batch, row, col + c);
    }
    if (to.wide) {
      if (col < p.n) store(out + col, values);
    } else {
#pragma unroll
      for (int c = 0; c < kChunk; ++c) {
        if (col + c < p.n) out[col + c] = values[c];
      }
    }
  }
}

template <int tm>
__device__ __forceinline__ int64_t row_of(const Target& to, int i) {
  return to.row + i / kChunk * (kLaneRows * kChunk) + i % kChunk;
}

template <int tm, int tn>
__device__ __forceinline__ void store_sums(const GemmArgs& p, const Target& to, float (&sums)[tm][tn]) {
  constexpr int kStep = kLaneCols * kChunk;
  if (to.finished) {
#pragma unroll
    for (int i = 0; i < tm; ++i) store_row<true>(p, to, row_of<tm>(to, i), kStep, sums[i]);
    return;
  }
  // The formulas of the activations are long: the code for one row serves all, and since registers cannot be indexed,
  // the rows move up.
#pragma unroll 1
  for (int i = 0; i < tm; ++i) {
    store_row<false>(p, to, row_of<tm>(to, i), kStep, sums[0]);
#pragma unroll
    for (int next = 1; next < tm; ++next) {
#pragma unroll
      for (int j = 0; j < tn; ++j) sums[next - 1][j] = sums[next][j];
    }
  }
}

// --- the kernel -------------------------------------------------------------------------------------------------

template <class Tile, class OfA, class OfB>
__global__ void __launch_bounds__(kThreads, Tile::blocks) matmul_simt_peak_kernel(const GemmArgs p, const Split split) {
  using CopyA = typename OfA::template Copy<Tile::bm>;
  using CopyB = typename OfB::template Copy<Tile::bn>;
  constexpr int kDepth = Tile::bk, kOfA = kDepth * CopyA::stride, kStage = kOfA + kDepth * CopyB::stride;
  constexpr int kRing = Tile::stages * kStage;
  __shared__ alignas(16) float ring[kRing];

  // which tile, of which product, with which slice of k
  const int64_t tiles_m = ceil_div(p.m, Tile::bm), tiles_n = ceil_div(p.n, Tile::bn);
  const uint32_t tiles = static_cast<uint32_t>(tiles_m * tiles_n);
  const TileCoord tile = grouped_tile(blockIdx.x % tiles, tiles_m, tiles_n, kGroup);
  const uint32_t above = blockIdx.x / tiles;
  const int64_t slice = above % static_cast<uint32_t>(split.count), batch = above / static_cast<uint32_t>(split.count);
  const int64_t first_row = tile.m * Tile::bm, first_col = tile.n * Tile::bn, first_k = slice * split.depth;
  const int64_t depth = min(split.depth, p.k - first_k);

  const auto source = [&](const Matrix& x, int64_t first, int64_t extent, int rows, bool by_k) {
    const float* data = static_cast<const float*>(x.data) + batch * x.batch;
    data += by_k ? first * x.ld + first_k : first + first_k * x.ld;
    return Source{data, x.ld, static_cast<int>(min(extent - first, int64_t{rows}))};
  };
  CopyA copy_a(source(p.a, first_row, p.m, Tile::bm, p.a.order == Order::rows));
  CopyB copy_b(source(p.b, first_col, p.n, Tile::bn, p.b.order == Order::columns));

  const int steps = static_cast<int>(ceil_div(depth, kDepth)),
            tail = static_cast<int>(depth - (steps - 1) * int64_t{kDepth});
  const auto next_stage = [](int at) { return at == kRing - kStage ? 0 : at + kStage; };
  int asked = 0, write = 0, read = 0;  // tiles of k asked for, where in the ring the next one goes, and one is read
  const auto issue = [&] {
    if (asked < steps) {
      const int left = asked == steps - 1 ? tail : kDepth;
      copy_a.issue(ring + write, left);
      copy_b.issue(ring + write + kOfA, left);
    }
    ++asked;
    ptx::cp_async_commit();
    write = next_stage(write);
  };
#pragma unroll
  for (int i = 0; i < Tile::stages - 1; ++i) issue();

  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int row = warp / 2 * Tile::wm + lane_row(lane) * kChunk, col = warp % 2 * Tile::wn + lane_col(lane) * kChunk;
  const float* const rows = ring + row;
  const float* const cols = ring + kOfA + col;
  float a[2][Tile::tm], b[2][Tile::tn], sums[Tile::tm][Tile::tn] = {};
  const auto load_fragments = [&](int buffer, int k) {
    load_chunks(a[buffer], rows + read + k * CopyA::stride, kLaneRows * kChunk);
    load_chunks(b[buffer], cols + read + k * CopyB::stride, kLaneCols * kChunk);
  };

  ptx::cp_async_wait<Tile::stages - 2>();
  __syncthreads();
  load_fragments(0, 0);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      // Fragments are read one k ahead, at the end of the tile from the next one. What this reads past the last tile is
      // not used.
      if (k == kDepth - 1) {
        ptx::cp_async_wait<Tile::stages - 2>();
        __syncthreads();
        read = next_stage(read);
      }
      load_fragments((k + 1) % 2, (k + 1) % kDepth);
      if (k == 0) issue();  // into the slot that all warps have left, by the barrier behind them
#pragma unroll
      for (int i = 0; i < Tile::tm; ++i) {
#pragma unroll
        for (int j = 0; j < Tile::tn; ++j) sums[i][j] = fmaf(a[k % 2][i], b[k % 2][j], sums[i][j]);
      }
    }
  }

  float* const data = split.count > 1 ? partial_sums(p, slice, batch) : static_cast<float*>(p.d) + batch * p.m * p.n;
  const bool finished = split.count > 1 || (p.c.data == nullptr && p.alpha == 1.0f && p.activation == Activation::none);
  const bool wide = p.n % kChunk == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0;
  store_sums(p, Target{data, batch, first_row + row, first_col + col, finished, wide}, sums);
}

// --- the choice -------------------------------------------------------------------------------------------------

// Efficiencies of a lone block of four warps, one a scheduler, and of a full multiprocessor.
constexpr float kRate = 128 * 1.7e3f;  // 128 multiplications a cycle
constexpr TileCost kTiles[] = {
    {Large::bm, Large::bn, Large::bk, Large::blocks, 0.75f, 1.0f, 32.0f, kRate},
    {Medium::bm, Medium::bn, Medium::bk, Medium::blocks, 0.65f, 0.92f, 32.0f, kRate},
    {Small::bm, Small::bn, Small::bk, Small::blocks, 0.45f, 0.75f, 32.0f, kRate},
};

template <class Tile, class OfA, class OfB>
void launch_tile(const GemmArgs& p, const Split& split, cudaStream_t stream) {
  const int64_t blocks = ceil_div(p.m, Tile::bm) * ceil_div(p.n, Tile::bn) * p.batch * split.count;
  warpsmith::launch<&matmul_simt_peak_kernel<Tile, OfA, OfB>>({static_cast<unsigned>(blocks), kThreads}, stream, p,
                                                              split);
  if (split.count > 1) sum_splits<float>(p, split.count, stream);
}

// Calls body with the way to copy an operand, whose values of k are `turned` where they lie side by side.
template <class Body>
void with_copy(const Matrix& x, bool turned, int64_t rows, int64_t depth, Body&& body) {
  if (turned) return body.template operator()<Turning>();
  const bool wide =
      x.order == Order::rows ? in_packs(x, depth, rows, Dtype::f32, 16) : in_packs(x, rows, depth, Dtype::f32, 16);
  wide ? body.template operator()<Wide>() : body.template operator()<Narrow>();
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  Split split;
  const int best = best_tile(p, kTiles, split);
  with_copy(p.a, p.a.order == Order::rows, p.m, p.k, [&]<class OfA>() {
    with_copy(p.b, p.b.order == Order::columns, p.n, p.k, [&]<class OfB>() {
      switch (best) {
        case 0:
          return launch_tile<Large, OfA, OfB>(p, split, stream);
        case 1:
          return launch_tile<Medium, OfA, OfB>(p, split, stream);
        default:
          return launch_tile<Small, OfA, OfB>(p, split, stream);
      }
    });
  });
}

const char* takes(const GemmArgs& p) { return p.dtype == Dtype::f32 ? needs_tiles_in_grid(p) : "takes f32"; }

const Register<GemmArgs> registered{"simt_peak", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
