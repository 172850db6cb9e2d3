// GEMV of short rows of any length: a stretch of weights in shared memory.
//   Against `k16` and `k32`: rows that are not whole packs of 16 bytes lie one after another, and the stretch that a block
//   takes of them is read in whole packs. Then every thread has a row, or a part of one, to itself, and no shuffles are
//   needed. Blocks take their places while the kernel before ends.
//   Occupancy: 32 registers, on sm_89 40, x 256 threads; shared memory, 20 KB a block for 17 values, at most 34 KB, for
//   several vectors 45.
//   Bound: DRAM in f32; with many vectors shared memory. In 16 bits 17 values come to 3.5 TB/s, by what is not profiled yet.

#include "device/convert.h"
#include "device/ptx/copy.h"
#include "device/start_early.h"
#include "device/vec.h"
#include "gemm/gemv/gemv.h"
#include "host/launch.h"
#include "host/min_max.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kPackBytes = 16;
constexpr int64_t kMostValues = 128;         // of a row
constexpr int64_t kMostStretch = 32 * 1024;  // bytes of weights of a block
// Of so many bytes, where there are rows for them, a block takes long enough that its start and end hardly show.
constexpr int64_t kLongStretch = 24 * 1024;
constexpr int64_t kMostTurns = 8;
constexpr int64_t kBlocksToFill = 8;  // a multiprocessor
constexpr int kVectorsAtOnce = 4;
constexpr int kRun = 4;  // values of k whose x a thread reads together

// How a block of kThreads is shared out: `rows`, whole warps of them, and so many threads for each, `turns` times.
struct StagedRows {
  int rows, parts, turns;
};

// Of x and the parts' sums, in f32, before the stretch of weights.
template <int vectors>
constexpr int kRoomForX = vectors == 1 ? kMostValues : kMostVectors * kMostValues;
template <int vectors>
constexpr int kRoomBefore = kRoomForX<vectors> + kThreads * vectors;
static_assert(kRoomBefore<1> % 4 == 0 && kRoomBefore<kVectorsAtOnce> % 4 == 0, "stretches start on 16 bytes");

// Values from the last border of 16 bytes to `at`.
template <class T>
__device__ __forceinline__ int past_border(const T* at) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(at) % kPackBytes / sizeof(T));
}

// From global to shared memory, both of which are as far past a border of 16 bytes.
template <class T>
__device__ __forceinline__ void copy_stretch(T* to, const T* from, int count) {
  constexpr int kWidth = kPack<T>;
  const int head = past_border(from);
  for (int i = static_cast<int>(threadIdx.x) * kWidth - head; i < count; i += kThreads * kWidth) {
    if (i >= 0 && i + kWidth <= count) {
      ptx::cp_async(reinterpret_cast<uint4*>(to + i), reinterpret_cast<const uint4*>(from + i));
    } else {
      for (int j = max(i, 0); j < min(i + kWidth, count); ++j) to[j] = from[j];
    }
  }
  ptx::cp_async_commit();
}

// `vectors` of x at a time, kVectorsAtOnce or a single one.
template <class T, int vectors>
__global__ void __launch_bounds__(kThreads) gemv_staged_rows_kernel(const GemvArgs a, const StagedRows share) {
  extern __shared__ uint4 shared[];
  float* x = reinterpret_cast<float*>(shared);  // [groups of vectors, k, vectors]
  float* sums = x + kRoomForX<vectors>;         // [parts, vectors, rows]
  const int row_of_turn = static_cast<int>(threadIdx.x) % share.rows;
  const int part = static_cast<int>(threadIdx.x) / share.rows, most_rows = share.rows * share.turns;
  const int64_t first = int64_t{blockIdx.x} * most_rows;
  const int rows = static_cast<int>(min(int64_t{most_rows}, a.m - first)), k = static_cast<int>(a.k);
  const int groups = (a.vectors + vectors - 1) / vectors, pitch = static_cast<int>(a.a_row);

  start_early();

  // load
  const T* from = static_cast<const T*>(a.a) + first * a.a_row;  // [rows, k], a.a_row apart
  T* stretch = reinterpret_cast<T*>(x + kRoomBefore<vectors>) + past_border(from);
  copy_stretch(stretch, from, (rows - 1) * pitch + k);
  for (int i = static_cast<int>(threadIdx.x); i < groups * k * vectors; i += kThreads) {
    const int vector = i / (k * vectors) * vectors + i % vectors;
    const T* values = static_cast<const T*>(a.x) + min(vector, a.vectors - 1) * a.x_row;
    x[i] = to_float(values[i / vectors % k]);
  }
  ptx::cp_async_wait<0>();
  __syncthreads();

  // this thread's part of its rows; those that there are not take the last one's
  const int depth = (k + share.parts * kRun - 1) / (share.parts * kRun) * kRun;
  const int begin = min(part * depth, k), end = min(begin + depth, k);
  for (int turn = 0; turn < share.turns * groups; ++turn) {
    const int group = turn % groups, row = turn / groups * share.rows + row_of_turn;
    const T* weights = stretch + min(row, rows - 1) * pitch;  // [k]

    // multiply and add
    const float* values = x + group * k * vectors;  // [k, vectors]
    float sum[vectors] = {};
    const auto step = [&](int at, auto is_there) {
      Vec<float, 4> run[kRun * vectors / 4];
#pragma unroll
      for (int i = 0; i < kRun * vectors / 4; ++i) load(run[i], values + at * vectors + 4 * i);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        if (!is_there(i)) break;
        const float weight = to_float(weights[at + i]);
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
          const int value = i * vectors + v;
          sum[v] = fmaf(weight, run[value / 4][value % 4], sum[v]);
        }
      }
    };
    int at = begin;
#pragma unroll 2
    for (; at + kRun <= end; at += kRun) step(at, [](int) { return true; });
    if (at < end) step(at, [&](int i) { return at + i < end; });

    // add up the parts, and write
    if (share.parts > 1) {
#pragma unroll
      for (int v = 0; v < vectors; ++v) sums[(part * vectors + v) * share.rows + row_of_turn] = sum[v];
      __syncthreads();
      for (int p = 1; part == 0 && p < share.parts; ++p) {
#pragma unroll
        for (int v = 0; v < vectors; ++v) sum[v] += sums[(p * vectors + v) * share.rows + row_of_turn];
      }
      __syncthreads();  // the next turn overwrites the sums
    }
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      const int vector = group * vectors + v;
      if (part == 0 && row < rows && vector < a.vectors) {
        static_cast<T*>(a.y)[vector * a.m + first + row] = from_float<T>(sum[v]);
      }
    }
  }
}

// Values from one row to the next.
int64_t pitch_of(const GemvArgs& a) { return a.m == 1 ? a.k : a.a_row; }

const char* takes(const GemvArgs& a) {
  if (const char* reason = needs_rows(a)) return reason;
  if (a.k > kMostValues) return "needs k of at most 128";
  if (pitch_of(a) > 2 * a.k) return "needs rows that lie at most twice their length apart";
  return needs_f32_accumulator(a);
}

template <class T, int vectors>
void launch_staged_rows(const GemvArgs& a, cudaStream_t stream) {
  constexpr int64_t kSize = sizeof(T), kBefore = kRoomBefore<vectors> * sizeof(float);
  const int64_t pitch = pitch_of(a);
  int rows = kThreads;
  while (rows * pitch * kSize > kMostStretch) rows /= 2;
  const int64_t turn_bytes = std::max<int64_t>(1, rows * pitch * kSize);  // expanded rows all lie in one place
  const int64_t full = a.m / (kBlocksToFill * a.sm_count * rows);
  const auto turns = static_cast<int>(clamp<int64_t>(std::min(kLongStretch / turn_bytes, full), 1, kMostTurns));
  const int64_t stretch = ((rows * turns - 1) * pitch + a.k) * kSize + kPackBytes;
  const LaunchConfig config{.grid = static_cast<unsigned>(ceil_div(a.m, rows * turns)),
                            .block = kThreads,
                            .dynamic_smem = static_cast<int>(kBefore + stretch),
                            .early = true};
  warpsmith::launch<&gemv_staged_rows_kernel<T, vectors>>(config, stream, a, StagedRows{rows, kThreads / rows, turns});
}

void launch(const GemvArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    if (a.vectors == 1) return launch_staged_rows<T, 1>(a, stream);
    launch_staged_rows<T, kVectorsAtOnce>(a, stream);
  });
}

// Threads of a warp read shared memory a row apart: less than whole packs apart, at most two meet in a bank.
bool suits(const GemvArgs& a) { return pitch_of(a) % (16 / size_of(a.dtype)) != 0; }

const Register<GemvArgs> registered{"staged_rows", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
