// device/shuffle.h: merges of structs in which order counts, over every group size; every lane must hold the result.
#include "device/shuffle.h"

#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 128, kBlocks = 4, kValues = kThreads * kBlocks;

// x -> scale * x + offset modulo 2^32. Composition is associative, and no other order gives the same map.
struct Affine {
  uint32_t scale, offset, steps;

  bool operator==(const Affine&) const = default;
  std::string text() const { return selftest::text(scale, " x + ", offset, " of ", steps); }
};

// First a, then b.
struct Compose {
  __host__ __device__ Affine operator()(const Affine& a, const Affine& b) const {
    return {a.scale * b.scale, a.offset * b.scale + b.offset, a.steps + b.steps};
  }
};

__global__ void merge_lanes_kernel(Affine* to, const Affine* from, int lanes) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  to[i] = merge_lanes(from[i], lanes, Compose{});
}

std::string check(const std::vector<Affine>& values, int lanes) {
  std::vector<Affine> expected;
  for (int i = 0; i < kValues; ++i) {
    const int first = i / lanes * lanes;
    Affine map = values[first];
    for (int k = 1; k < lanes; ++k) map = Compose{}(map, values[first + k]);
    expected.push_back(map);
  }
  DeviceArray<Affine> from(values), to(values.size());
  warpsmith::launch<&merge_lanes_kernel>({kBlocks, kThreads}, kStream, to.data(),
                                         static_cast<const Affine*>(from.data()), lanes);
  return compare(text("merge_lanes over ", lanes), expected, to.values(), [](size_t i) { return text("lane ", i); });
}

std::string run() {
  Random random(5);
  std::vector<Affine> values(kValues);
  for (Affine& value : values) value = {random.word() | 1, random.word(), 1};
  for (int lanes = 1; lanes <= kWarp; lanes *= 2) {
    if (std::string failure = check(values, lanes); !failure.empty()) return failure;
  }
  return "";
}

const SelfTestEntry entered{"shuffle", run};

}  // namespace
}  // namespace warpsmith::selftest
