// Dropout at memory speed: the generator runs while the loads are on their way.
//   Against `pack`: a thread starts the loads of two or four packs past L1, draws for all, and only then waits; what is
//   added is known at compile time, so that no load hides behind a branch. It takes its place while the kernel before ends.
//   Bound: DRAM, with the generator's instructions close behind in 16 bits.
#include "device/start_early.h"
#include "device/stream_policy.h"
#include "elementwise/dropout/elements.cuh"

namespace warpsmith {
namespace {

// Threads of a block | packs of a thread, of each operand | blocks per multiprocessor. More packs of 16-bit values make up
// for the time that drawing for twice as many of them takes, where no other operand is on its way beside them.
template <class T, bool alone>
struct Tile {
  static constexpr bool more = alone && sizeof(T) == 2;
  static constexpr int threads = more ? 128 : 256, packs = more ? 4 : 2, min_blocks = more ? 6 : 4;
};

template <class T, bool biased, bool added, class Tile = Tile<T, !biased && !added>>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks)
    dropout_stream_kernel(const DropoutView<T> v, const StreamPolicy l2) {
  start_early();
  constexpr int kWidth = kPack<T>, kThreads = Tile::threads, kPacks = Tile::packs;
  const int64_t packs = v.n / kMaskBits * (kMaskBits / kWidth);
  const int64_t first = int64_t{kThreads} * kPacks * blockIdx.x + threadIdx.x;
  DropoutPacks<T> in[kPacks];
  uint32_t bits[kPacks];

  // load
  const uint64_t policy = l2.of_loads();
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int64_t pack = first + i * kThreads;
    if (pack >= packs) continue;
    load_with_policy(in[i].x, v.x + pack * kWidth, policy);
    if constexpr (added) load_with_policy(in[i].residual, v.residual + pack * kWidth, policy);
    if constexpr (biased) load(in[i].bias, v.bias + v.in_row(pack) * kWidth);
  }
  // draw
  draw<kWidth>(bits, v.dropout, first, kThreads);
  // write
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int64_t pack = first + i * kThreads;
    const bool exists = pack < packs;
    if (exists) {
      drop_pack(in[i], biased, added, bits[i], v.dropout.scale);
      store<Cache::streaming>(v.y + pack * kWidth, in[i].x);
    }
    keep_bits<kWidth>(v.mask, pack, bits[i], exists);
  }
  drop_rest(v);
}

void launch(const DropoutArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const DropoutView<T> view(a, kPack<T>);
    const StreamPolicy l2(a.n * size_of(a.dtype) * (a.residual != nullptr ? 2 : 1));
    const auto run = [&]<bool biased, bool added>() {
      using Mine = Tile<T, !biased && !added>;
      const int64_t of_block = int64_t{Mine::threads} * Mine::packs * kPack<T>;
      const dim3 grid(static_cast<unsigned>(ceil_div(a.n, of_block)));
      const LaunchConfig config{.grid = grid, .block = Mine::threads, .early = true};
      warpsmith::launch<&dropout_stream_kernel<T, biased, added>>(config, stream, view, l2);
    };
    if (a.bias != nullptr) {
      a.residual != nullptr ? run.template operator()<true, true>() : run.template operator()<true, false>();
    } else {
      a.residual != nullptr ? run.template operator()<false, true>() : run.template operator()<false, false>();
    }
  });
}

const Register<DropoutArgs> registered{"stream", /*min_sm=*/80, needs_packs, launch};

}  // namespace
}  // namespace warpsmith
