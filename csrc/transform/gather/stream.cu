// Rows by their indices at memory speed: four packs a thread, a block's width apart.
//   Against `pack`: four indices, then four packs are on their way at once, past L1, which would keep what nobody reads
//   again; for this, no index is judged before all are asked for. It takes its place while the kernel before ends. Bound:
//   DRAM.
#include "device/start_early.h"
#include "transform/gather/words.cuh"

namespace warpsmith {
namespace {

constexpr int kPacks = 4, kBytes = 16;

template <class T, bool scaled>
__device__ __forceinline__ void gather_packs(const GatherArgs& a, const GatherUnits& u) {
  const uint32_t units = static_cast<uint32_t>(u.units),
                 first = uint32_t{kGatherThreads} * kPacks * blockIdx.x + threadIdx.x;
  GatherPlace places[kPacks];
  int64_t rows[kPacks];
  Pack<T> packs[kPacks];
  // ask for all rows before the first is known; past the end, for the last one
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    places[i] = gather_place(u, min(first + i * kGatherThreads, units - 1));
    rows[i] = read_index(a.index, places[i].at, a.wide);
  }
  bool outside = false;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) outside |= !is_zero(a, rows[i]) && is_outside(rows[i], a.rows);
  end_if(outside);
  // load
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    reinterpret_cast<uint4&>(packs[i]) = uint4{};
    if (is_zero(a, rows[i])) continue;
    load<Cache::streaming>(packs[i], reinterpret_cast<const T*>(gather_from(a, u, places[i], rows[i], kBytes)));
  }
  // write
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const uint32_t unit = first + i * kGatherThreads;
    if (unit >= units) continue;
    if constexpr (scaled) {
      float wide[kPack<T>];
      to_float(wide, packs[i]);
#pragma unroll
      for (float& value : wide) value *= a.scale;
      from_float(packs[i], wide);
    }
    store<Cache::streaming>(static_cast<T*>(a.y) + int64_t{unit} * kPack<T>, packs[i]);
  }
}

__global__ void __launch_bounds__(kGatherThreads) gather_stream_kernel(const GatherArgs a, const GatherUnits u) {
  start_early();
  gather_packs<uint32_t, false>(a, u);
}

template <class T>
__global__ void __launch_bounds__(kGatherThreads) gather_stream_scaled_kernel(const GatherArgs a, const GatherUnits u) {
  start_early();
  gather_packs<T, true>(a, u);
}

const char* takes(const GatherArgs& a) {
  return unmet({is_fp8(a.dtype) ? needs_no_scale(a) : nullptr, needs_units(a, kBytes, kBytes),
                counts_in_32_bits(a.elements() * size_of(a.dtype) / kBytes) ? nullptr : "needs less than 2^31 packs"});
}

// Below, threads of one pack each do not fill a large GPU.
constexpr int64_t kLeastPacks = 1 << 18;

bool suits(const GatherArgs& a) { return a.elements() * size_of(a.dtype) / kBytes >= kLeastPacks; }

void launch(const GatherArgs& a, cudaStream_t stream) {
  const GatherUnits units(a, kBytes);
  LaunchConfig config = gather_config(units, kPacks);
  config.early = true;
  if (!a.scaled) return warpsmith::launch<&gather_stream_kernel>(config, stream, a, units);
  dispatch_float(a.dtype,
                 [&]<class T>() { warpsmith::launch<&gather_stream_scaled_kernel<T>>(config, stream, a, units); });
}

const Register<GatherArgs> registered{"stream", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
