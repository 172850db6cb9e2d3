// device/ptx/store_matrix.h, tensor_store.h and warpgroup.h: matrices from registers to swizzled boxes, one, two and four
// at a time, plain and transposed, and boxes to a matrix, inside it and across its edges, while the next ones are written;
// boxes of matrices and of batches of them, stored and added, of every type that is added; loads with a policy; warps that
// hand each other work at barriers at which they only arrive. Passes without running below sm_90.
#include "device/ptx/tensor_store.h"

#include "device/cluster.h"
#include "device/ptx/barrier.h"
#include "device/ptx/store_matrix.h"
#include "device/ptx/tma.h"
#include "device/ptx/warpgroup.h"
#include "host/tensor_map.h"
#include "selftest/formats.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kLeastSm = 90, kBox = 64, kWarps = 4, kThreads = kWarps * kWarp, kBoxes = 2;
constexpr int kBoxBytes = kBox * kBox * 2;

// What stands at a row and column of the matrix.
__host__ __device__ constexpr uint32_t value_at(int row, int col) {
  return static_cast<uint32_t>(row * 977 + col * 31) & 0x7fff;
}

// One block writes a matrix of `down` by `across` boxes, through two boxes of shared memory. An instruction has so many
// matrices of 8 x 8.
template <int matrices, bool transposed>
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
      for (int first = 0; first < 4; first += matrices) {
        uint32_t words[matrices];
        for (int k = 0; k < matrices; ++k) {
          const auto at = [&](int i) {
            const int matrix = first + k, line = lane / 4, across_line = lane % 4 * 2 + i;
            const int row = transposed ? across_line : line, col = transposed ? line : across_line;
            return value_at(first_row + warp * 16 + matrix % 2 * 8 + row, first_col + j + matrix / 2 * 8 + col);
          };
          words[k] = at(0) | at(1) << 16;
        }
        const int matrix = first + lane / 8 % matrices;
        const int row = warp * 16 + matrix % 2 * 8 + lane % 8, chunk = j / 8 + matrix / 2;
        char* to = box + row * (kBox * 2) + (chunk ^ row % 8) * 16;
        if constexpr (transposed) {
          ptx::stmatrix_trans(to, words);
        } else {
          ptx::stmatrix(to, words);
        }
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

template <int matrices, bool transposed>
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
  warpsmith::launch<&tensor_store_kernel<matrices, transposed>>(
      {.grid = 1, .block = kThreads, .dynamic_smem = kBoxes * kBoxBytes}, kStream, map, 3, 3);
  return compare(text("tensor_store of stmatrix", transposed ? "_trans" : "", ", ", matrices, " at a time"), expected,
                 to.values(), [](size_t i) { return text("row ", i / kStride, ", column ", i % kStride); });
}

// A box of 32 lines of 128 bytes is brought, of matrices with a policy, and stored or added twice to where it came from in
// another tensor, `down` boxes of which lie below each other.
constexpr int kLine = 128, kBoxLines = 32, kDeep = 2;  // bytes; of all of a box; matrices in a box of rank 3
template <int rank>
constexpr int kLines = kBoxLines / (rank == 2 ? 1 : kDeep);

template <int rank, bool adds>
__global__ void tensor_box_kernel([[maybe_unused]] const __grid_constant__ CUtensorMap to,
                                  [[maybe_unused]] const __grid_constant__ CUtensorMap from,
                                  [[maybe_unused]] int down) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  extern __shared__ __align__(1024) char box[];
  __shared__ alignas(8) uint64_t landed;
  if (threadIdx.x == 0) {
    const int index = static_cast<int>(blockIdx.x);
    int corner[rank] = {};
    corner[rank - 2] = index % down * kLines<rank>;
    if constexpr (rank == 3) corner[0] = index / down * kDeep;
    ptx::mbarrier_init(&landed, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect(&landed, kBoxLines * kLine);
    if constexpr (rank == 2) {
      ptx::tensor_load(box, &from, corner, &landed, ptx::policy_evict_last());
    } else {
      ptx::tensor_load(box, &from, corner, &landed);
    }
    ptx::mbarrier_wait(&landed, 0);
    ptx::fence_proxy_async();
    if constexpr (adds) {
      for (int i = 0; i < 2; ++i) ptx::tensor_add(&to, corner, box);
    } else {
      ptx::tensor_store(&to, corner, box);
    }
    ptx::stores_commit();
    ptx::stores_wait<0>();
  }
#endif
}

template <class T>
constexpr Dtype kDtype = std::is_same_v<T, float> ? Dtype::f32 : (std::is_same_v<T, f16> ? Dtype::f16 : Dtype::bf16);

template <class T>
auto bits_of(int value) {
  if constexpr (std::is_same_v<T, float>) {
    return std::bit_cast<uint32_t>(static_cast<float>(value));
  } else {
    return static_cast<uint16_t>(encode_reference(format_of<T>(), static_cast<float>(value)));
  }
}

// Sums are whole numbers that every type holds. What lies between lines and between matrices stays as it is, but for the
// 16 bytes in which a line ends: they get zeros, which is what the load found there.
template <class T, int rank, bool adds>
std::string check_boxes() {
  using Bits = decltype(bits_of<T>(0));
  constexpr int kChunk = 16 / sizeof(T), kCols = kLine / sizeof(T) - 3, kStride = kLine / sizeof(T) + kChunk;
  constexpr int kRows = 50, kMatrices = rank == 2 ? 1 : 3, kMatrix = kRows * kStride + kChunk;
  Random random(61);
  std::vector<Bits> values(kMatrices * kMatrix), start(values.size()), expected;
  for (int i = 0; i < kMatrices * kMatrix; ++i) {
    const int value = random.integer(-9, 9), before = random.integer(-9, 9), at = i % kMatrix;
    const int row = at / kStride, col = at % kStride, found = col < kCols ? value : 0;
    const bool written = row < kRows && col < kCols / kChunk * kChunk + kChunk;
    values[i] = bits_of<T>(value), start[i] = bits_of<T>(before);
    expected.push_back(written ? bits_of<T>(adds ? before + 2 * found : found) : start[i]);
  }
  DeviceArray<Bits> from(values), to(start);
  const auto map_of = [](const Bits* data) {
    MappedTensor x{.data = data, .type = tensor_map_type(kDtype<T>), .rank = rank};
    if constexpr (rank == 2) {
      x.sizes = {kRows, kCols}, x.strides = {kStride}, x.box = {kLines<rank>, kLine / sizeof(T)};
    } else {
      x.sizes = {kMatrices, kRows, kCols}, x.strides = {kMatrix, kStride};
      x.box = {kDeep, kLines<rank>, kLine / sizeof(T)};
    }
    return tensor_map(x);
  };
  constexpr int kDown = (kRows + kLines<rank> - 1) / kLines<rank>,
                kBoxesOfAll = kDown * ((kMatrices + kDeep - 1) / kDeep);
  warpsmith::launch<&tensor_box_kernel<rank, adds>>(
      {.grid = kBoxesOfAll, .block = kWarp, .dynamic_smem = kBoxLines * kLine}, kStream, map_of(to.data()),
      map_of(from.data()), kDown);
  return compare(text(adds ? "tensor_add" : "tensor_store", " of ", name_of(kDtype<T>), " of rank ", rank), expected,
                 to.values(), [](size_t i) {
                   return text("matrix ", i / kMatrix, ", row ", i % kMatrix / kStride, ", column ",
                               i % kMatrix % kStride);
                 });
}

template <class T>
std::string check_all_boxes() {
  return first_failure(check_boxes<T, 2, false>, check_boxes<T, 2, true>, check_boxes<T, 3, false>,
                       check_boxes<T, 3, true>);
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
  return first_failure(check_store<1, false>, check_store<2, false>, check_store<4, false>, check_store<1, true>,
                       check_store<2, true>, check_store<4, true>, check_all_boxes<float>, check_all_boxes<f16>,
                       check_all_boxes<bf16>, check_arrive);
}

const SelfTestEntry entered{"tensor_store", run};

}  // namespace
}  // namespace warpsmith::selftest
