// device/ptx/store_matrix.h, tensor_store.h and warpgroup.h: matrices from registers to swizzled boxes, plain and transposed,
// and boxes to a matrix, inside it and across its edges, while the next ones are written; boxes added to a matrix; loads with
// a policy; warps that hand each other work at barriers at which they only arrive. Passes without running below sm_90.
#include "device/ptx/tensor_store.h"

#include "device/cluster.h"
#include "device/ptx/barrier.h"
#include "device/ptx/store_matrix.h"
#include "device/ptx/tma.h"
#include "device/ptx/warpgroup.h"
#include "host/tensor_map.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kLeastSm = 90, kBox = 64, kWarps = 4, kThreads = kWarps * kWarp, kBoxes = 2;
constexpr int kBoxBytes = kBox * kBox * 2;

// What stands at a row and column of the matrix.
__host__ __device__ constexpr uint32_t value_at(int row, int col) {
  return static_cast<uint32_t>(row * 977 + col * 31) & 0x7fff;
}

// One block writes a matrix of `down` by `across` boxes, through two boxes of shared memory.
template <bool transposed>
__global__ void tensor_store_kernel([[maybe_unused]] const __grid_constant__ CUtensorMap map, [[maybe_unused]] int down,
                                    [[maybe_unused]] int across) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  extern __shared__ __align__(1024) char boxes[];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int i = 0; i < down * across; ++i) {
    const int first_row = i / across * kBox, first_col = i % across * kBox;
    char* box = boxes + i % kBoxes * kBoxBytes;
    if (threadIdx.x == 0) ptx::stores_wait_read<kBoxes - 1>();
    __syncthreads();
    // Each warp has 16 rows; four matrices are 16 x 16, down before right.
    for (int j = 0; j < kBox; j += 16) {
      uint32_t words[4];
      for (int word = 0; word < 4; ++word) {
        const auto at = [&](int i) {
          const int line = lane / 4, across_line = lane % 4 * 2 + i;
          const int row = transposed ? across_line : line, col = transposed ? line : across_line;
          return value_at(first_row + warp * 16 + word % 2 * 8 + row, first_col + j + word / 2 * 8 + col);
        };
        words[word] = at(0) | at(1) << 16;
      }
      const int row = warp * 16 + lane % 16, chunk = j / 8 + lane / 16;
      char* to = box + row * (kBox * 2) + (chunk ^ row % 8) * 16;
      if constexpr (transposed) {
        ptx::stmatrix_trans(to, words);
      } else {
        ptx::stmatrix(to, words);
      }
    }
    ptx::fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) {
      ptx::tensor_store(&map, {first_row, first_col}, box);
      ptx::stores_commit();
    }
  }
  if (threadIdx.x == 0) ptx::stores_wait<0>();
#endif
}

template <bool transposed>
std::string check_store() {
  constexpr int kRows = 150, kCols = 136, kStride = 144;
  std::vector<uint16_t> expected(kRows * kStride, uint16_t{kPoison * 0x101});
  for (int row = 0; row < kRows; ++row) {
    for (int col = 0; col < kCols; ++col) expected[row * kStride + col] = static_cast<uint16_t>(value_at(row, col));
  }
  DeviceArray<uint16_t> to(expected.size());
  const CUtensorMap map = tensor_map(MappedMatrix{.data = to.data(),
                                                  .type = tensor_map_type(Dtype::f16),
                                                  .rows = kRows,
                                                  .cols = kCols,
                                                  .ld = kStride,
                                                  .box_rows = kBox,
                                                  .box_cols = kBox});
  warpsmith::launch<&tensor_store_kernel<transposed>>(
      {.grid = 1, .block = kThreads, .dynamic_smem = kBoxes * kBoxBytes}, kStream, map, 3, 3);
  return compare(transposed ? "tensor_store of stmatrix_trans" : "tensor_store of stmatrix", expected, to.values(),
                 [](size_t i) { return text("row ", i / kStride, ", column ", i % kStride); });
}

// A box of f32 is brought with a policy, and added twice to where it came from in another matrix.
__global__ void tensor_add_kernel([[maybe_unused]] const __grid_constant__ CUtensorMap to,
                                  [[maybe_unused]] const __grid_constant__ CUtensorMap from) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  extern __shared__ __align__(1024) char box[];
  __shared__ alignas(8) uint64_t landed;
  if (threadIdx.x == 0) {
    constexpr int kLines = 32;
    const int row = static_cast<int>(blockIdx.x) * kLines;
    ptx::mbarrier_init(&landed, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect(&landed, kLines * 128);
    ptx::tensor_load(box, &from, {row, 0}, &landed, ptx::policy_evict_last());
    ptx::mbarrier_wait(&landed, 0);
    ptx::fence_proxy_async();
    for (int i = 0; i < 2; ++i) ptx::tensor_add(&to, {row, 0}, box);
    ptx::stores_commit();
    ptx::stores_wait<0>();
  }
#endif
}

std::string check_add() {
  constexpr int kRows = 50, kCols = 32, kLines = 32;
  Random random(61);
  std::vector<float> values(kRows * kCols), start(values.size()), expected(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(random.integer(-9, 9));
    start[i] = static_cast<float>(random.integer(-9, 9));
    expected[i] = start[i] + 2 * values[i];
  }
  DeviceArray<float> from(values), to(start);
  const auto map_of = [](const float* data) {
    return tensor_map(MappedMatrix{.data = data,
                                   .type = tensor_map_type(Dtype::f32),
                                   .rows = kRows,
                                   .cols = kCols,
                                   .ld = kCols,
                                   .box_rows = kLines,
                                   .box_cols = kCols});
  };
  warpsmith::launch<&tensor_add_kernel>({.grid = 2, .block = kWarp, .dynamic_smem = kLines * 128}, kStream,
                                        map_of(to.data()), map_of(from.data()));
  return compare("tensor_add", expected, to.values(),
                 [](size_t i) { return text("row ", i / kCols, ", column ", i % kCols); });
}

constexpr int kRounds = 20;

// The first warp writes, and waits only where the second has not read the round before last; the second reads. One lane of
// each, the same all along, counts rounds.
__global__ void arrive_warps_kernel([[maybe_unused]] uint32_t* to, [[maybe_unused]] const uint32_t* from) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  __shared__ uint32_t slots[2][kWarp];
  constexpr int kFull = 1, kEmpty = 3, kBoth = 2 * kWarp;  // two barriers each
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint32_t elected = 0;
  for (int round = 0; round < kRounds; ++round) {
    const int slot = round % 2;
    if (threadIdx.x < kWarp) {
      if (round >= 2) ptx::sync_warps(kEmpty + slot, kBoth);
      slots[slot][lane] = from[round * kWarp + lane] + 1;
      ptx::arrive_warps(kFull + slot, kBoth);
    } else {
      ptx::sync_warps(kFull + slot, kBoth);
      to[round * kWarp + lane] = slots[slot][(lane + 5) % kWarp];
      if (round + 2 < kRounds) ptx::arrive_warps(kEmpty + slot, kBoth);
    }
    elected += ptx::elect_lane();
  }
  to[kRounds * kWarp + threadIdx.x] = elected;
#endif
}

std::string check_arrive() {
  Random random(62);
  std::vector<uint32_t> values(kRounds * kWarp), expected;
  for (uint32_t& value : values) value = random.word();
  for (size_t i = 0; i < values.size(); ++i) expected.push_back(values[i / kWarp * kWarp + (i + 5) % kWarp] + 1);
  DeviceArray<uint32_t> from(values), to(values.size() + 2 * kWarp);
  warpsmith::launch<&arrive_warps_kernel>({1, 2 * kWarp}, kStream, to.data(), from.data());
  std::vector<uint32_t> found = to.values();
  for (int warp = 0; warp < 2; ++warp) {
    int lanes = 0;
    for (int lane = 0; lane < kWarp; ++lane) lanes += found[values.size() + warp * kWarp + lane] == kRounds ? 1 : 0;
    uint32_t rounds = 0;
    for (int lane = 0; lane < kWarp; ++lane) rounds += found[values.size() + warp * kWarp + lane];
    if (lanes != 1 || rounds != kRounds) return text("elect_lane: ", lanes, " lanes of warp ", warp, ", ", rounds);
  }
  found.resize(values.size());
  return compare("arrive_warps", expected, found,
                 [](size_t i) { return text("round ", i / kWarp, ", lane ", i % kWarp); });
}

std::string run() {
  if (device_info(current_device()).sm < kLeastSm) return "";
  return first_failure(check_store<false>, check_store<true>, check_add, check_arrive);
}

const SelfTestEntry entered{"tensor_store", run};

}  // namespace
}  // namespace warpsmith::selftest
