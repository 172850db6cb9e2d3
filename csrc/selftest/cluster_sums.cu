// device/cluster_sums.h: series of sums over clusters of 2 to 16 blocks, full and smaller than their storage, one value
// in even turns and three in odd ones, with blocks that fall behind. Passes without running below sm_90, which has no
// clusters.
#include "device/cluster_sums.h"

#include <utility>

#include "selftest/reductions.h"

namespace warpsmith::selftest {
namespace {

constexpr int kClusters = 3;
constexpr int kClusterSm = 90;
constexpr int kTurns = 9;
[[maybe_unused]] constexpr int kOdd = 3;  // values of an odd turn
[[maybe_unused]] constexpr int kDelay = 2000;

// to, from: [turns, clusters * cluster * threads]; an odd turn writes the sums of x, 2x and -x added up, which is 2x's.
template <int threads, int cluster>
__global__ void __launch_bounds__(threads)
    cluster_sums_kernel([[maybe_unused]] float* to, [[maybe_unused]] const float* from, [[maybe_unused]] int size) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  __shared__ ClusterSums<threads, cluster, kOdd> shared;
  cluster_sums_prepare(shared, 1, kOdd);
  cluster_arrive_relaxed();
  cluster_wait();  // every block expects what is sent from now on
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  for (int turn = 0; turn < kTurns; ++turn) {
    const float value = from[turn * size + i];
    if ((cluster_rank() + turn) % cluster == 0 && threadIdx.x < kWarp) {
      const long long start = clock64();
      while (clock64() - start < kDelay) {
      }
    }
    if (turn % 2 == 0) {
      to[turn * size + i] = cluster_sum(value, shared, turn);
    } else {
      float values[kOdd] = {value, 2.0f * value, -value};
      cluster_sum(values, shared, turn);
      to[turn * size + i] = values[0] + values[1] + values[2];
    }
  }
#endif
}

// With blocks of `block` threads, at most `threads`.
template <int threads, int cluster>
std::string check(int block) {
  const int group = cluster * block, size = kClusters * group;
  const std::vector<float> values = whole_numbers<float>(static_cast<size_t>(kTurns) * size);
  DeviceArray<float> from(values), to(values.size());
  LaunchConfig config{kClusters * cluster, static_cast<unsigned>(block)};
  config.cluster = cluster;
  warpsmith::launch<&cluster_sums_kernel<threads, cluster>>(config, kStream, to.data(),
                                                            static_cast<const float*>(from.data()), size);
  std::vector<float> expected = reduce_groups(values, group, HostSum{});
  for (size_t i = 0; i < expected.size(); ++i) {
    if (i / static_cast<size_t>(size) % 2 == 1) expected[i] *= 2.0f;
  }
  const std::string what = text("cluster_sum in turns <", threads, ", ", cluster, "> by blocks of ", block);
  const auto member = [&](size_t i) { return text("turn ", i / size, ", thread ", i % size); };
  return compare(what, expected, to.values(), member, [](float a, float b) { return a == b; });
}

template <int threads, int cluster>
std::string check_shape() {
  std::string failure;
  for (const int block : {threads, threads / 2 / kWarp * kWarp, kWarp}) {
    if (block != 0 && failure.empty()) failure = check<threads, cluster>(block);
  }
  return failure;
}

template <int threads, int... cluster>
std::string check_clusters(std::integer_sequence<int, cluster...>) {
  return first_failure(check_shape<threads, cluster>...);
}

std::string run() {
  if (device_info(current_device()).sm < kClusterSm) return "";
  constexpr std::integer_sequence<int, 2, 4, 8, 16> kSizes;
  return first_failure([&] { return check_clusters<32>(kSizes); }, [&] { return check_clusters<512>(kSizes); });
}

const SelfTestEntry entered{"cluster_sum in turns", run};

}  // namespace
}  // namespace warpsmith::selftest
