// Dropout, one 128-bit access a thread.
//   Against `naive`: a call of the generator serves four elements, and the mask is written a byte at a time by the threads
//   whose elements it speaks of. Bound: latency; a thread waits for its pack and only then draws.
#include "elementwise/dropout/elements.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void dropout_pack_kernel(const DropoutView<T> v) {
  constexpr int kWidth = kPack<T>;
  const int64_t packs = v.n / kMaskBits * (kMaskBits / kWidth), pack = int64_t{kThreads} * blockIdx.x + threadIdx.x;
  const bool exists = pack < packs;
  uint32_t bits[1] = {0};
  if (exists) {
    const bool biased = v.bias != nullptr, added = v.residual != nullptr;
    DropoutPacks<T> in;
    load(in.x, v.x + pack * kWidth);
    if (biased) load(in.bias, v.bias + v.in_row(pack) * kWidth);
    if (added) load(in.residual, v.residual + pack * kWidth);
    draw<kWidth>(bits, v.dropout, pack);
    drop_pack(in, biased, added, bits[0], v.dropout.scale);
    store(v.y + pack * kWidth, in.x);
  }
  keep_bits<kWidth>(v.mask, pack, bits[0], exists);
  drop_rest(v);
}

void launch(const DropoutArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const dim3 grid(static_cast<unsigned>(ceil_div(a.n, int64_t{kThreads} * kPack<T>)));
    warpsmith::launch<&dropout_pack_kernel<T>>({grid, kThreads}, stream, DropoutView<T>(a, kPack<T>));
  });
}

const Register<DropoutArgs> registered{"pack", /*min_sm=*/80, needs_packs, launch};

}  // namespace
}  // namespace warpsmith
