// Decoding from a cache in e4m3: split_kv with keys and values widened between shared memory and the tensor cores.
//   Half of the bytes, and twice the instructions for each: what is widened and multiplied of a tile takes some two thirds
//   of the time that it takes to arrive. Bound: memory.
#include "attention/kv_cache/split_kernel.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

const char* takes(const KvCacheArgs& a) { return takes_split<SplitKvE4m3Tile>(a, /*e4m3_cache=*/true); }

void launch(const KvCacheArgs& a, cudaStream_t stream) { launch_split<SplitKvE4m3Tile>(a, stream); }

const Register<KvCacheArgs> registered{"split_kv_e4m3", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
