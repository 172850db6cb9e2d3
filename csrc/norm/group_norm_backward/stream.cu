// Group norm backward of contiguous tensors, groups streamed through a thread-block cluster.
//   Against `cluster`: clusters are persistent and have x and grad copied ahead while they work on the group before; the
//   gradient of the activation stays in registers between the sums and dx. Bound: DRAM, as long as groups are many.
// CUDA C++ Programming Guide, "Thread Block Clusters", "Distributed Shared Memory" and "Asynchronous Data Copies".
#include "norm/group_norm_backward/stream.cuh"

namespace warpsmith {
namespace {

using Tiles = std::tuple<GradTile<448, 3, 2, 2, true, true>, GradTile<448, 3, 2, 4, true, true>, GradTile<448, 3, 2, 8, true, true>,
                         GradTile<448, 3, 2, 16, true, true>, GradTile<832, 5, 1, 16, true, true>>;
constexpr int64_t kMostBytes = 1024 * 1024;

const char* takes(const GroupNormBackwardArgs& a) {
  if (const char* reason = needs_whole_channels(a)) return reason;
  if (a.shape.spatial * size_of(a.dtype) % (16 * kWarp) != 0) return "needs channels of a multiple of 512 bytes";
  return a.row_bytes() <= kMostBytes ? nullptr : "needs groups of at most 1 MiB";
}

template <class T, class Activation, class... Tile>
void launch_tiles(const GroupNormBackwardArgs& a, cudaStream_t stream, std::tuple<Tile...>) {
  const int64_t packs = a.row_bytes() / 16;
  bool done = false;
  const auto attempt = [&]<class One>() {
    if (done || packs > One::most_packs) return;
    PartialSums sums = partial_sums(a, "stream", One::cluster);
    if (a.dw == nullptr && a.db == nullptr) sums.data = nullptr;
    launch_grad_tile<T, Activation, One>(a, sums, stream);
    if (sums.data != nullptr) sum_parameters<T>(a, sums, stream);
    done = true;
  };
  (attempt.template operator()<Tile>(), ...);
}

void launch(const GroupNormBackwardArgs& a, cudaStream_t stream) {
  visit_activations(a.dtype, a.activation, [&]<class T, class Activation>() { launch_tiles<T, Activation>(a, stream, Tiles{}); });
}

const Register<GroupNormBackwardArgs> registered{"stream", /*min_sm=*/90, takes, launch};

}  // namespace
}  // namespace warpsmith
