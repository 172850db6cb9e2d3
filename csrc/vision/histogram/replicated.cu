// Histogram, as many copies of each bin as fit, dealt out to lanes.
//   Against `warp`: the copies of a bin lie side by side, one for each lane where bins are few, so that lanes of a warp meet
//   neither in a word nor in a bank, whatever the values are. Bins for which a word each is too much have half a word, which
//   is emptied into global memory long before it is full; of more than 32768, blocks count a share each. Values of 8 bits
//   have a byte for each thread, which needs no atomics. Bound: DRAM, or one addition a lane and value.
#include <bit>

#include "device/warp.h"
#include "host/occupancy.h"
#include "host/registry.h"
#include "vision/histogram/bins.cuh"
#include "vision/histogram/bytes.cuh"
#include "vision/histogram/even.cuh"

namespace warpsmith {
namespace {

constexpr int kMinBlocks = 4;
constexpr int kMostCopies = kWarp;
constexpr int64_t kShare = kCountedBytes / 2;  // bins of half a word in a block
constexpr int64_t kSharedEdges = 1 << 12;      // of so many bins, edges lie in shared memory too
constexpr uint32_t kHalf = 16, kHalfMask = 0xffff;
// A half word that has counted so far is emptied by the thread that brought it there. Meanwhile others may add once each:
// far less than is left.
constexpr uint32_t kEmptied = 1 << 12;

struct Copies {
  int of_bin;  // a power of two; 0: half a word for each bin
  int shift;   // of it the logarithm
  int words;
  int edges;  // of them in shared memory, behind the words

  explicit Copies(const HistogramArgs& a) {
    const int fit = static_cast<int>(kCountedBytes / 4 / a.bins);
    of_bin = std::min(static_cast<int>(std::bit_floor(static_cast<unsigned>(fit))), kMostCopies);
    shift = of_bin > 0 ? std::countr_zero(static_cast<unsigned>(of_bin)) : 0;
    words = static_cast<int>(of_bin > 0 ? a.bins * of_bin : ceil_div(std::min(a.bins, kShare), 2));
    edges = a.edges != nullptr && a.bins <= kSharedEdges ? static_cast<int>(a.bins + 1) : 0;
  }
  int bytes() const { return (words + edges) * 4; }
};

template <class T, class Bin>
__device__ __forceinline__ void count_values(const HistogramArgs& a, const Copies& copies, uint32_t* words,
                                             const Bin& bin_of) {
  const T* x = static_cast<const T*>(a.x);
  if (copies.of_bin > 0) {
    uint32_t* own = words + static_cast<int>(threadIdx.x) % copies.of_bin;
    walk_values<4>(x, a.n, [&](T value) {
      const uint32_t bin = bin_of(value);
      if (bin < bin_of.bins) atomicAdd(own + (bin << copies.shift), 1u);
    });
  } else {
    const auto first = static_cast<uint32_t>(blockIdx.y * kShare);
    const uint32_t share = min(bin_of.bins - first, static_cast<uint32_t>(kShare));
    walk_values<4>(x, a.n, [&](T value) {
      const uint32_t bin = bin_of(value) - first;
      if (bin >= share) return;
      const uint32_t shift = bin % 2 * kHalf;
      const uint32_t before = atomicAdd(words + bin / 2, 1u << shift) >> shift & kHalfMask;
      if (before == kEmptied - 1) {
        atomicAdd(words + bin / 2, 0u - (kEmptied << shift));
        add_count(a.counts, first + bin, kEmptied);
      }
    });
  }
}

template <class T>
__global__ void __launch_bounds__(kHistogramThreads, kMinBlocks)
    histogram_replicated_kernel(const HistogramArgs a, const Copies copies) {
  extern __shared__ uint32_t words[];  // [bins, copies], then the edges
  for (int i = threadIdx.x; i < copies.words; i += kHistogramThreads) words[i] = 0;
  auto* edges = reinterpret_cast<float*>(words + copies.words);
  for (int i = threadIdx.x; i < copies.edges; i += kHistogramThreads) edges[i] = a.edges[i];
  __syncthreads();

  // count
  if constexpr (std::is_same_v<T, float>) {
    __shared__ unsigned out_of_order, margin;
    if (threadIdx.x == 0) out_of_order = margin = 0;
    __syncthreads();
    const float* at = copies.edges > 0 ? edges : a.edges;
    const BinOf<float> searched(a, at, /*in_order_=*/true);
    EvenBins even(searched);
    bool in_order = true;
    unsigned most = 0;  // as words, in the order of floats, NaN beyond all
    for (int i = threadIdx.x; i <= static_cast<int>(a.bins); i += kHistogramThreads) {
      if (i > 0) in_order &= at[i - 1] <= at[i];
      most = max(most, __float_as_uint(even.margin_of(i)));
    }
    if (!in_order) atomicOr(&out_of_order, 1u);
    atomicMax(&margin, most);
    __syncthreads();
    if (copies.of_bin > 0 && out_of_order == 0 && even.knows(__uint_as_float(margin))) {
      uint32_t* own = words + static_cast<int>(threadIdx.x) % copies.of_bin;
      walk_values<4>(static_cast<const float*>(a.x), a.n, CountEven{even, own, copies.shift});
    } else if (copies.edges > 0) {
      count_values<T>(a, copies, words, BinOf<T>(a, edges, out_of_order == 0));
    } else {
      count_values<T>(a, copies, words, BinOf<T>(a, a.edges, out_of_order == 0));
    }
  } else {
    count_values<T>(a, copies, words, BinOf<T>(a, nullptr));
  }
  __syncthreads();

  // add up, every lane from another copy on
  if (copies.of_bin == 0) {
    const int64_t first = blockIdx.y * kShare;
    for (int bin = threadIdx.x; bin < min(a.bins - first, kShare); bin += kHistogramThreads) {
      const uint32_t sum = words[bin / 2] >> (bin % 2 * kHalf) & kHalfMask;
      if (sum > 0) add_count(a.counts, static_cast<uint32_t>(first) + bin, sum);
    }
    return;
  }
  for (int bin = threadIdx.x; bin < static_cast<int>(a.bins); bin += kHistogramThreads) {
    uint32_t sum = 0;
    for (int i = 0; i < copies.of_bin; ++i) {
      sum += words[(bin << copies.shift) + (i + static_cast<int>(threadIdx.x)) % copies.of_bin];
    }
    if (sum > 0) add_count(a.counts, bin, sum);
  }
}

__global__ void __launch_bounds__(kHistogramThreads) histogram_bytes_kernel(const HistogramArgs a) {
  extern __shared__ uint4 counters[];
  count_bytes(a, counters);
}

void launch_bytes(const HistogramArgs& a, cudaStream_t stream) {
  LaunchConfig config{.grid = 1, .block = kHistogramThreads, .dynamic_smem = kByteSharedBytes};
  config.grid = histogram_grid(ceil_div(a.n, kPack<int8_t>) + 1, resident_clusters<&histogram_bytes_kernel>(config));
  warpsmith::launch<&histogram_bytes_kernel>(config, stream, a);
}

void launch(const HistogramArgs& a, cudaStream_t stream) {
  if (a.dtype == Dtype::i8) return launch_bytes(a, stream);
  const auto run = [&]<class T>() {
    const Copies copies(a);
    LaunchConfig config{.grid = 1, .block = kHistogramThreads, .dynamic_smem = copies.bytes()};
    // asked once, for the most that a block takes; of smaller ones there is room for more
    constexpr int kMost = kCountedBytes + static_cast<int>(kSharedEdges + 1) * 4;
    LaunchConfig most = config;
    most.dynamic_smem = kMost;
    const int64_t room = kMost / std::max(config.dynamic_smem, kMost / 4);
    const auto shares = static_cast<unsigned>(copies.of_bin > 0 ? 1 : ceil_div(a.bins, kShare));
    const int64_t resident = resident_clusters<&histogram_replicated_kernel<T>>(most) * room / shares;
    config.grid = dim3(histogram_grid(ceil_div(a.n, kPack<T>) + 1, std::max<int64_t>(resident, 1)), shares);
    warpsmith::launch<&histogram_replicated_kernel<T>>(config, stream, a, copies);
  };
  a.dtype == Dtype::f32 ? run.template operator()<float>() : run.template operator()<int32_t>();
}

// With few values to a bin, what it costs to add the copies up is not worth it.
bool suits(const HistogramArgs& a) { return a.n >= 4 * a.bins; }

const Register<HistogramArgs> registered{"replicated", /*min_sm=*/80, needs_few_bins, launch, suits};

}  // namespace
}  // namespace warpsmith
