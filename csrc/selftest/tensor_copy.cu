// device/ptx/tma.h and host/tensor_map.h: boxes of a matrix, swizzled, inside it and across its edges; of tensors of one to
// five dimensions and of every element size; rounding to TF32 on the way; halves of a box from either block of a cluster
// to both, with a policy and without; maps that were kept. Passes without running below sm_90.
#include "device/ptx/tma.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "device/cluster.h"
#include "device/ptx/tensor_store.h"
#include "host/tensor_map.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 64, kLeastSm = 90;
[[maybe_unused]] constexpr int kMostBytes = 16 * 1024;
constexpr uint32_t kBelowTf32 = 0x1fff;  // bits that tensor cores ignore

// The box as it lies in shared memory, in bytes.
__global__ void tensor_load_kernel([[maybe_unused]] uint32_t* to,
                                   [[maybe_unused]] const __grid_constant__ CUtensorMap map, [[maybe_unused]] int row,
                                   [[maybe_unused]] int col, [[maybe_unused]] int bytes) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  __shared__ alignas(1024) uint32_t box[kMostBytes / 4];
  __shared__ alignas(8) uint64_t landed;
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&map);
    ptx::mbarrier_init(&landed, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect(&landed, bytes);
    ptx::tensor_load(box, &map, {row, col}, &landed);
  }
  __syncthreads();
  ptx::mbarrier_wait(&landed, 0);
  for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x) to[i] = box[i];
#endif
}

// Every block of a cluster of two sends a half of each of two boxes to both. It refills the ring of one slot when both
// have read it.
template <bool with_policy>
__global__ void tensor_multicast_kernel([[maybe_unused]] uint32_t* to,
                                        [[maybe_unused]] const __grid_constant__ CUtensorMap map,
                                        [[maybe_unused]] int half_rows, [[maybe_unused]] int half_bytes) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  __shared__ alignas(1024) uint32_t box[kMostBytes / 4];
  __shared__ alignas(8) uint64_t full, empty;
  constexpr int kBlocks = 2, kRounds = 2;
  const int rank = cluster_rank(), words = 2 * half_bytes / 4;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&full, 1);
    ptx::mbarrier_init(&empty, kBlocks);
    ptx::fence_mbarrier_init();
  }
  cluster_sync();
  for (int round = 0; round < kRounds; ++round) {
    if (threadIdx.x == 0) {
      if (round > 0) ptx::mbarrier_wait_cluster(&empty, (round - 1) % 2);
      ptx::mbarrier_arrive_expect(&full, kBlocks * half_bytes);
      const int corner[] = {(kBlocks * round + rank) * half_rows, 0};
      uint32_t* half = box + rank * half_bytes / 4;
      constexpr uint16_t kAll = (1 << kBlocks) - 1;
      if constexpr (with_policy) {
        ptx::tensor_load_multicast(half, &map, corner, &full, kAll, ptx::policy_evict_first());
      } else {
        ptx::tensor_load_multicast(half, &map, corner, &full, kAll);
      }
    }
    ptx::mbarrier_wait(&full, round % 2);
    for (int i = threadIdx.x; i < words; i += blockDim.x) to[(blockIdx.x * kRounds + round) * words + i] = box[i];
    ptx::fence_proxy_async();
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < kBlocks) ptx::mbarrier_arrive_remote(&empty, static_cast<int>(threadIdx.x));
  }
  cluster_sync();  // no block ends before the other has signalled it
#endif
}

// Of a tensor of any rank: a box to this block, and the same by multicast to a cluster of one, behind it.
template <int rank>
struct BoxCorner {
  int at[rank];
};

template <int rank>
__global__ void tensor_box_kernel([[maybe_unused]] uint32_t* to,
                                  [[maybe_unused]] const __grid_constant__ CUtensorMap map,
                                  [[maybe_unused]] const BoxCorner<rank> corner, [[maybe_unused]] int bytes) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  __shared__ alignas(1024) uint32_t boxes[2][kMostBytes / 4];
  __shared__ alignas(8) uint64_t landed;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&landed, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect(&landed, 2 * bytes);
    ptx::tensor_load(boxes[0], &map, corner.at, &landed);
    ptx::tensor_load_multicast(boxes[1], &map, corner.at, &landed, 1);
  }
  __syncthreads();
  ptx::mbarrier_wait(&landed, 0);
  for (int box = 0; box < 2; ++box) {
    for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x) to[box * (bytes / 4) + i] = boxes[box][i];
  }
#endif
}

// Where 16-byte chunk `chunk` of a row lies among those of its line.
int swizzled(CUtensorMapSwizzle swizzle, int row, int chunk) {
  switch (swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_128B:
      return chunk ^ row % 8;
    case CU_TENSOR_MAP_SWIZZLE_64B:
      return chunk ^ row / 2 % 4;
    case CU_TENSOR_MAP_SWIZZLE_32B:
      return chunk ^ row / 4 % 2;
    default:
      return chunk;
  }
}

// A box whose rows are lines of the swizzle, as it should arrive. Zeros lie outside the matrix. `col` is a multiple of 16
// bytes, outside the matrix too: elsewhere the copy is an illegal instruction.
template <class T>
std::vector<T> expected_box(const std::vector<T>& values, const MappedMatrix& x, int row, int col) {
  std::vector<T> box(static_cast<size_t>(x.box_rows) * x.box_cols, T{});
  constexpr int kChunk = 16 / static_cast<int>(sizeof(T));
  for (int r = 0; r < x.box_rows; ++r) {
    for (int c = 0; c < x.box_cols; ++c) {
      const int64_t from_row = row + r, from_col = col + c;
      if (from_row < 0 || from_row >= x.rows || from_col < 0 || from_col >= x.cols) continue;
      const int at = r * x.box_cols + swizzled(x.swizzle, r, c / kChunk) * kChunk + c % kChunk;
      box[at] = values[from_row * x.ld + from_col];
    }
  }
  return box;
}

// Of the matrix at x.data. Bits of values: uint32_t or uint16_t, but for those that are `ignored`.
template <class T>
std::string check_map(std::string_view what, const std::vector<T>& arriving, const MappedMatrix& x, int row, int col,
                      T ignored = 0) {
  const int bytes = x.box_rows * x.box_cols * static_cast<int>(sizeof(T));
  DeviceArray<T> to(bytes / sizeof(T));
  warpsmith::launch<&tensor_load_kernel>({1, kThreads}, kStream, reinterpret_cast<uint32_t*>(to.data()), tensor_map(x),
                                         row, col, bytes);
  return compare(
      text("tensor_load of ", what, ", swizzle ", static_cast<int>(x.swizzle), ", from row ", row, ", column ", col),
      expected_box(arriving, x, row, col), to.values(),
      [&](size_t i) { return text("row ", i / x.box_cols, ", place ", i % x.box_cols); },
      [&](T a, T b) { return ((a ^ b) & static_cast<T>(~ignored)) == 0; });
}

template <class T>
std::string check_box(std::string_view what, const std::vector<T>& values, const std::vector<T>& arriving,
                      MappedMatrix x, int row, int col, T ignored = 0) {
  DeviceArray<T> from(values);
  x.data = from.data();
  return check_map(what, arriving, x, row, col, ignored);
}

template <class T>
std::vector<T> numbered(int64_t size) {
  std::vector<T> values(size);
  for (int64_t i = 0; i < size; ++i) values[i] = static_cast<T>(i + 1);
  return values;
}

template <class T>
std::string check_boxes(const char* what, CUtensorMapDataType type) {
  constexpr int kRows = 75, kLd = 104;
  constexpr int kPerChunk = 16 / static_cast<int>(sizeof(T));
  const std::vector<T> values = numbered<T>(kRows * kLd);
  for (const int chunks : {8, 4, 2}) {
    MappedMatrix x{.type = type, .rows = kRows, .cols = 99, .ld = kLd, .box_rows = 32, .box_cols = chunks * kPerChunk};
    x.swizzle = chunks == 8   ? CU_TENSOR_MAP_SWIZZLE_128B
                : chunks == 4 ? CU_TENSOR_MAP_SWIZZLE_64B
                              : CU_TENSOR_MAP_SWIZZLE_32B;
    const std::string failure = first_failure([&] { return check_box(what, values, values, x, 0, 0); },
                                              [&] { return check_box(what, values, values, x, 13, 8); },
                                              [&] { return check_box(what, values, values, x, 64, 96); },
                                              [&] { return check_box(what, values, values, x, -3, -8); },
                                              [&] { return check_box(what, values, values, x, 200, 0); });
    if (!failure.empty()) return failure;
  }
  return "";
}

// A tensor of `rank` dimensions with gaps between the lines of each, and a box across its far edges.
template <int rank, class T>
std::string check_rank(CUtensorMapDataType type, CUtensorMapSwizzle swizzle) {
  constexpr int kChunk = 16 / static_cast<int>(sizeof(T));
  const int line = swizzle == CU_TENSOR_MAP_SWIZZLE_NONE ? 48 : 16 << static_cast<int>(swizzle);  // bytes
  const int outer_sizes[] = {3, 2, 4, 5}, outer_boxes[] = {2, 2, 3, 4}, outer_corners[] = {1, 0, 2, 3};
  MappedTensor x{.type = type, .rank = rank, .swizzle = swizzle};
  BoxCorner<rank> corner;
  int64_t size = 0, lines = 1;
  for (int d = rank - 1; d >= 0; --d) {
    if (d == rank - 1) {
      x.sizes[d] = 11 * kChunk - 1;
      x.box[d] = line / static_cast<int>(sizeof(T));
      corner.at[d] = 4 * kChunk;
      size = 12 * kChunk;
    } else {
      const int at = d + 5 - rank;  // the same dimensions next to the last one, whatever the rank
      x.sizes[d] = outer_sizes[at];
      x.box[d] = outer_boxes[at];
      corner.at[d] = outer_corners[at];
      x.strides[d] = size;
      size = size * outer_sizes[at] + kChunk;
      lines *= outer_boxes[at];
    }
  }
  const std::vector<T> values = numbered<T>(size);
  std::vector<T> expected(lines * x.box[rank - 1], T{});
  for (int i = 0; i < static_cast<int>(lines); ++i) {
    int64_t from = 0;
    bool inside = true;
    for (int d = rank - 2, left = i; d >= 0; left /= x.box[d--]) {
      const int at = corner.at[d] + left % x.box[d];
      inside = inside && at < x.sizes[d];
      from += at * x.strides[d];
    }
    for (int c = 0; inside && c < x.box[rank - 1]; ++c) {
      const int col = corner.at[rank - 1] + c;
      if (col >= x.sizes[rank - 1]) continue;
      expected[i * x.box[rank - 1] + swizzled(swizzle, i, c / kChunk) * kChunk + c % kChunk] = values[from + col];
    }
  }
  const size_t once = expected.size();
  expected.resize(2 * once);
  std::copy_n(expected.begin(), once, expected.begin() + static_cast<int64_t>(once));

  DeviceArray<T> from(values), to(2 * once);
  x.data = from.data();
  warpsmith::launch<&tensor_box_kernel<rank>>({1, kThreads}, kStream, reinterpret_cast<uint32_t*>(to.data()),
                                              tensor_map(x), corner, static_cast<int>(once * sizeof(T)));
  return compare(text("rank ", rank, ", ", sizeof(T), " bytes an element, swizzle ", static_cast<int>(swizzle)),
                 expected, to.values(), [&](size_t i) {
                   return text("copy ", i / once, ", line ", i % once / x.box[rank - 1], ", place ",
                               i % x.box[rank - 1]);
                 });
}

template <int rank>
std::string check_elements(CUtensorMapSwizzle swizzle) {
  return first_failure([&] { return check_rank<rank, uint8_t>(CU_TENSOR_MAP_DATA_TYPE_UINT8, swizzle); },
                       [&] { return check_rank<rank, uint16_t>(CU_TENSOR_MAP_DATA_TYPE_UINT16, swizzle); },
                       [&] { return check_rank<rank, uint32_t>(CU_TENSOR_MAP_DATA_TYPE_INT32, swizzle); },
                       [&] { return check_rank<rank, uint64_t>(CU_TENSOR_MAP_DATA_TYPE_INT64, swizzle); });
}

std::string check_ranks() {
  for (const CUtensorMapSwizzle swizzle :
       {CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_32B, CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_128B}) {
    const std::string failure =
        first_failure([&] { return check_elements<1>(swizzle); }, [&] { return check_elements<2>(swizzle); },
                      [&] { return check_elements<3>(swizzle); }, [&] { return check_elements<4>(swizzle); },
                      [&] { return check_elements<5>(swizzle); });
    if (!failure.empty()) return failure;
  }
  return "";
}

// One row, of which nobody knows the distance to the next.
std::string check_row() {
  const std::vector<uint32_t> values = numbered<uint32_t>(32);
  MappedMatrix x{.type = tensor_map_type(Dtype::f32), .rows = 1, .cols = 30, .ld = 0, .box_rows = 8, .box_cols = 32};
  return check_box("one row", values, values, x, 0, 0);
}

std::string check_tf32() {
  constexpr uint32_t kInfinity = 0x7f800000u;
  Random random(1);
  std::vector<uint32_t> values(64 * 32), rounded(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t& x = values[i] = random.word();
    if (i % 5 == 0) x = (x & ~kBelowTf32) | 0x1000u;  // a tie
    if (i % 64 == 1) x = kInfinity | (x & 0x80000000u);
    if ((x & kInfinity) == kInfinity && (x & 0x007fffffu) != 0) x = 0x3f800000u;  // NaN has a test of its own
    rounded[i] = (x & kInfinity) == kInfinity ? x : x + 0xfff + (x >> 13 & 1);
  }
  MappedMatrix x{
      .type = CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, .rows = 64, .cols = 32, .ld = 32, .box_rows = 64, .box_cols = 32};
  return check_box("TF32", values, rounded, x, 0, 0, kBelowTf32);
}

std::string check_tf32_nan() {
  std::vector<uint32_t> values(8 * 32), bits = {0x7fc00000u, 0x7f800001u, 0xffffffffu, 0xff800001u};
  for (size_t i = 0; i < values.size(); ++i) values[i] = bits[i % bits.size()];
  DeviceArray<uint32_t> from(values), to(values.size());
  const MappedMatrix x{.data = from.data(),
                       .type = CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
                       .rows = 8,
                       .cols = 32,
                       .ld = 32,
                       .box_rows = 8,
                       .box_cols = 32};
  warpsmith::launch<&tensor_load_kernel>({1, kThreads}, kStream, to.data(), tensor_map(x), 0, 0,
                                         static_cast<int>(values.size() * sizeof(float)));
  std::vector<float> seen;
  for (const uint32_t word : to.values()) seen.push_back(std::bit_cast<float>(word & ~kBelowTf32));
  return compare("tensor_load of NaN as TF32", std::vector<float>(seen.size(), std::numeric_limits<float>::quiet_NaN()),
                 seen, [](size_t i) { return text("value ", i); });
}

template <bool with_policy>
std::string check_multicast() {
  constexpr int kHalf = 32, kCols = 32, kClusters = 3, kBlocks = 2 * kClusters;
  const std::vector<uint32_t> values = numbered<uint32_t>(4 * kHalf * kCols);
  DeviceArray<uint32_t> from(values), to(kBlocks * values.size());
  MappedMatrix x{.data = from.data(),
                 .type = tensor_map_type(Dtype::f32),
                 .rows = 4 * kHalf - 1,
                 .cols = kCols,
                 .ld = kCols,
                 .box_rows = kHalf,
                 .box_cols = kCols};
  LaunchConfig config{kBlocks, kThreads};
  config.cluster = 2;
  warpsmith::launch<&tensor_multicast_kernel<with_policy>>(config, kStream, to.data(), tensor_map(x), kHalf,
                                                           kHalf * kCols * static_cast<int>(sizeof(float)));
  MappedMatrix all = x;
  all.box_rows = 4 * kHalf;
  const std::vector<uint32_t> once = expected_box(values, all, 0, 0);
  std::vector<uint32_t> expected;
  for (int block = 0; block < kBlocks; ++block) expected.insert(expected.end(), once.begin(), once.end());
  return compare(with_policy ? "tensor_load_multicast with a policy" : "tensor_load_multicast", expected, to.values(),
                 [&](size_t i) {
                   return text("block ", i / once.size(), ", row ", i % once.size() / kCols, ", place ", i % kCols);
                 });
}

// Matrices of one memory, of as many shapes as are kept and more: asked for again, each gets its own map.
std::string check_kept() {
  constexpr int kMost = 11, kCols = 32;
  const std::vector<uint32_t> values = numbered<uint32_t>(kMost * kCols);
  DeviceArray<uint32_t> from(values);
  const MappedMatrix all{.data = from.data(),
                         .type = tensor_map_type(Dtype::i32),
                         .rows = 1,
                         .cols = kCols,
                         .ld = kCols,
                         .box_rows = kMost,
                         .box_cols = kCols};
  for (const int rows : {1, 2, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 11, 1, 10, 2}) {
    MappedMatrix x = all;
    x.rows = rows;
    const std::string failure = check_map(text("the first ", rows, " rows"), values, x, 0, 0);
    if (!failure.empty()) return failure;
  }
  return "";
}

std::string check_refusal() {
  DeviceArray<float> from(256);
  try {
    tensor_map({.data = from.data() + 1,
                .type = tensor_map_type(Dtype::f32),
                .rows = 8,
                .cols = 8,
                .ld = 8,
                .box_rows = 8,
                .box_cols = 8});
  } catch (const std::runtime_error&) {
    return "";
  }
  return "a map of a misaligned matrix: expected an error, got none";
}

std::string run() {
  if (device_info(current_device()).sm < kLeastSm) return "";
  return first_failure([] { return check_boxes<uint32_t>("f32", tensor_map_type(Dtype::f32)); },
                       [] { return check_boxes<uint16_t>("bf16", tensor_map_type(Dtype::bf16)); }, check_ranks,
                       check_row, check_tf32, check_tf32_nan, check_multicast<false>, check_multicast<true>, check_kept,
                       check_refusal);
}

const SelfTestEntry entered{"tensor_copy", run};

}  // namespace
}  // namespace warpsmith::selftest
