// device/cluster_gather.h: every block of clusters of 2 to 16 receives what every other sent, twice in a row through
// storage of their own. Passes without running below sm_90, which has no clusters.
#include "device/cluster_gather.h"

#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kClusters = 3, kThreads = 96, kClusterSm = 90;

struct Pair {
  float block, square;
};

__global__ void cluster_gather_kernel([[maybe_unused]] float* to, [[maybe_unused]] int cluster) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  __shared__ ClusterGather<Pair> first;
  __shared__ ClusterGather<float> second;
  cluster_gather_prepare(first, cluster);
  cluster_gather_prepare(second, cluster);
  cluster_arrive_relaxed();
  const auto block = static_cast<float>(blockIdx.x);
  cluster_wait();  // every block expects what is sent now
  cluster_gather(Pair{block, block * block}, first, cluster);
  cluster_gather(-block, second, cluster);
  float* own = to + (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 3 * kMostClusterBlocks;
  for (int i = 0; i < cluster; ++i) {
    own[3 * i] = first.values[i].block;
    own[3 * i + 1] = first.values[i].square;
    own[3 * i + 2] = second.values[i];
  }
#endif
}

std::string check(int cluster) {
  const int blocks = kClusters * cluster;
  const size_t size = static_cast<size_t>(blocks) * kThreads * 3 * kMostClusterBlocks;
  DeviceArray<float> to(std::vector<float>(size, 0.0f));
  LaunchConfig config{static_cast<unsigned>(blocks), kThreads};
  config.cluster = cluster;
  warpsmith::launch<&cluster_gather_kernel>(config, kStream, to.data(), cluster);
  std::vector<float> expected(size, 0.0f);
  for (size_t thread = 0; thread < size / (3 * kMostClusterBlocks); ++thread) {
    const auto leader = static_cast<int>(thread / kThreads / cluster * cluster);
    for (int i = 0; i < cluster; ++i) {
      float* own = &expected[(thread * kMostClusterBlocks + i) * 3];
      own[0] = static_cast<float>(leader + i);
      own[1] = own[0] * own[0];
      own[2] = -own[0];
    }
  }
  return compare(text("cluster_gather in clusters of ", cluster), expected, to.values(), [](size_t i) {
    const size_t thread = i / (3 * kMostClusterBlocks);
    return text("block ", thread / kThreads, ", thread ", thread % kThreads, ", from block ",
                i / 3 % kMostClusterBlocks);
  });
}

std::string run() {
  if (device_info(current_device()).sm < kClusterSm) return "";
  return first_failure([] { return check(2); }, [] { return check(4); }, [] { return check(8); },
                       [] { return check(16); });
}

const SelfTestEntry entered{"cluster_gather", run};

}  // namespace
}  // namespace warpsmith::selftest
