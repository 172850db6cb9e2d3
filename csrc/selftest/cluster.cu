// device/cluster.h and device/ptx/barrier.h: sums over clusters of 2 to 16 blocks, full and smaller than their storage,
// and the parts they are made of: ranks, barriers and stores into a neighbour's shared memory. Passes without running
// below sm_90, which has no clusters.
#include "device/cluster.h"

#include <utility>

#include "selftest/reductions.h"

namespace warpsmith::selftest {
namespace {

constexpr int kClusters = 3;
constexpr int kClusterSm = 90;

struct Results {
  float* sums;          // [clusters, cluster, threads]
  float* negated_sums;  // the same, of the negated values, through storage of its own
  float* received;      // [clusters, cluster]; the rank that the block's left neighbour sent
};

template <int threads, int cluster>
__global__ void __launch_bounds__(threads)
    cluster_sum_kernel([[maybe_unused]] Results to, [[maybe_unused]] const float* from) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  __shared__ ClusterReduceStorage<threads, cluster> first, second;
  __shared__ float received;
  cluster_sum_prepare(first);
  cluster_sum_prepare(second);
  cluster_arrive_relaxed();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const float value = from[i];
  cluster_wait();  // every block expects what is sent now
  to.sums[i] = cluster_sum(value, first);
  to.negated_sums[i] = cluster_sum(-value, second);
  if (threadIdx.x == 0) {
    const int rank = cluster_rank();
    store_remote(&received, (rank + 1) % cluster, static_cast<float>(rank));
  }
  cluster_sync();
  if (threadIdx.x == 0) to.received[blockIdx.x] = received;
#endif
}

// With blocks of `block` threads, at most `threads`.
template <int threads, int cluster, class Equal = bool (*)(float, float)>
std::string check(int block, std::string_view kind, const std::vector<float>& values, Equal equal = same<float>) {
  constexpr int kBlocks = kClusters * cluster;
  const int group = cluster * block;
  DeviceArray<float> from(values), sums(values.size()), negated_sums(values.size()), received(kBlocks);
  LaunchConfig config{kBlocks, static_cast<unsigned>(block)};
  config.cluster = cluster;
  warpsmith::launch<&cluster_sum_kernel<threads, cluster>>(config, kStream,
                                                           Results{sums.data(), negated_sums.data(), received.data()},
                                                           static_cast<const float*>(from.data()));

  std::vector<float> negated = values, ranks(kBlocks);
  for (float& value : negated) value = -value;
  for (int i = 0; i < kBlocks; ++i) ranks[i] = static_cast<float>((i + cluster - 1) % cluster);
  const std::string what = text("cluster_sum<", threads, ", ", cluster, "> by blocks of ", block, " of ", kind);
  const auto member = describe_member(group);
  // Sums of whole numbers that cancel may carry either sign of zero.
  const auto equal_values = [&](float a, float b) { return a == b || equal(a, b); };
  return first_failure(
      [&] { return compare(what, reduce_groups(values, group, HostSum{}), sums.values(), member, equal_values); },
      [&] {
        return compare(what + ", negated", reduce_groups(negated, group, HostSum{}), negated_sums.values(), member,
                       equal_values);
      },
      [&] { return check_agreement(what, sums.values(), group); },
      [&] {
        return compare(text("store_remote in clusters of ", cluster), ranks, received.values(),
                       [](size_t i) { return text("block ", i); });
      });
}

template <int threads, int cluster>
std::string check_shape() {
  std::string failure;
  for (const int block : {threads, threads / 2 / kWarp * kWarp, threads - kWarp, kWarp}) {
    if (block == 0 || !failure.empty()) continue;
    const int group = block * cluster;
    const size_t size = static_cast<size_t>(kClusters) * group;
    failure = first_failure(
        [&] { return check<threads, cluster>(block, "whole numbers", whole_numbers<float>(size)); },
        [&] { return check<threads, cluster>(block, "fractions", fractions(size), within_sum_error(group)); });
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
  return first_failure([&] { return check_clusters<32>(kSizes); }, [&] { return check_clusters<128>(kSizes); },
                       [&] { return check_clusters<256>(kSizes); }, [&] { return check_clusters<1024>(kSizes); });
}

const SelfTestEntry entered{"cluster_sum", run};

}  // namespace
}  // namespace warpsmith::selftest
